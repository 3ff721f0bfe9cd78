"""From counted parts to the catalog's ``Model``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Literal

from calculators.catalog.configs.count import TOWER, Tally
from calculators.catalog.configs.values import ALIASES, Config, shown
from calculators.catalog.configs.weights import weights
from calculators.catalog.models import MlaShape, Model, MoeShape
from calculators.core.numbers import format_number

KV_BYTES = 2
LONGEST_CONTEXT = 10**9
MOST_PARAMETERS = 10**15
Basis = Literal["exact", "text", "assumed", "partial"]
_ODD = re.compile(r"expert|moe_|lora_rank|mamba|ssm|conv|linear_att|recurrent|block_config|per_layer|cross_att|hybrid|kv_shared|latent|codebook|altup")
_HARMLESS = re.compile(r"group|interval|freq|coef|dtype|score|norm|parallel|capacity|chunk|factor|id$|dropout|bias_|_std|seed|version|layer_types")
"""Among the keys that nothing reads: which smell of structure, and which of those do not matter."""


def model(c: Config, outer: Config, tally: Tally, family_name: str, known: bool) -> Model:
    """The model as the calculators take it; counts that are unknown are 0 and ``basis`` says so."""
    counted = not tally.doubts
    params = tally.params if counted else {}
    everything = sum(params.values())
    active = everything - tally.idle if counted and tally.idle is not None else 0
    table, head, tower = params.get("input_table", 0), params.get("output_head", 0), params.get(TOWER, 0)
    lookups = params.get("per_layer_table", 0) + (table if head >= table else 0)
    if everything > MOST_PARAMETERS:
        raise c.refuse("参数量不能超过 1000 万亿", f"按这些尺寸是 {everything:.3g} 个", "有一个尺寸写错了")
    weight = weights(c, outer, params)
    unread = _unread(c)
    _add_notes(c, tally, unread, stated_weight=weight is not None)
    heads = _heads(c)
    return Model(
        id="config", name=_name(c, everything), family=family_name or "unknown", hidden=c.need("hidden"), layers=len(tally.layers), heads=heads,
        kv_heads=heads if _is_mla(c) else _kv_heads(c, tally, heads), head_dim=0 if _is_mla(c) else _head_dim(c, heads), ffn=_largest_of(c, "ffn") or _ffn_from(params, c.need("hidden"), len(tally.layers), tally.gated),
        ffn_gated=tally.gated, vocab=_largest_of(c, "vocab"), tied=head < table or not table, max_context=_context(c),
        total_params=everything, active_params=active, active_params_no_input_embedding=max(active - lookups - tower, 0),
        embedding_and_head_params=table + head + params.get("position_table", 0), largest_module_params=_largest_module(c, params, tally),
        kv_elems_per_token_layer=max((block.kv for block in tally.mixers), default=0), kv_bytes_per_token=KV_BYTES * sum(block.kv for block in tally.mixers),
        breakdown=params, source="粘贴的 config.json", checked="", moe=_moe(c, params, tally), mla=_mla(c), sliding_window=windows(tally), notes=c.notes,
        basis=_basis(tally, counted, known, bool(unread)), weight_bytes_per_param=weight.bytes_per_param if weight else None,
        weights_stored=weight.text if weight else "", kv_layers=sum(block.kv > 0 for block in tally.mixers),
        kv_window_bytes_per_token=KV_BYTES * sum(block.kv for block in tally.mixers if block.window), scores=_scores(tally),
    )  # fmt: skip


def _ffn_from(params: Mapping[str, int], hidden: int, layers: int, gated: bool) -> int:
    """The width of a dense FFN whose file leaves it out (GPT-2, BLOOM, Falcon: 4 × hidden): from what was counted."""
    return params.get("dense_ffn", 0) // ((3 if gated else 2) * hidden * layers) if layers else 0


def _basis(tally: Tally, counted: bool, known: bool, unread: bool) -> Basis:
    if not counted or tally.idle is None:
        return "partial"
    if not known or unread or tally.assumed:
        return "assumed"
    return "text" if tally.text_only else "exact"


def _name(c: Config, everything: int) -> str:
    size = f"，{format_number(everything, 'short', 3)}" if everything else ""
    return f"config.json（{c.model_type}{size}）"


def _heads(c: Config) -> int:
    return _largest_of(c, "heads") if c.given("heads")[1] is not None or c.nested else 0


def _largest_of(c: Config, name: str) -> int:
    """The stated size, the largest of a list that has one a layer, 0 when the file states none."""
    _, value = c.value(name)
    if isinstance(value, list):
        return max((n for n in value if isinstance(n, int) and not isinstance(n, bool)), default=0)
    return c.count(name) or 0


def _context(c: Config) -> int:
    """The longest context, 0 when the file states none that makes sense (tokenizers write 10^30 for "no limit")."""
    _, value = c.value("context")
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= LONGEST_CONTEXT else 0


def _head_dim(c: Config, heads: int) -> int:
    stated = c.raw.get("head_dim") or c.raw.get("kv_channels") or c.defaults.get("head_dim")
    return stated if isinstance(stated, int) and not isinstance(stated, bool) else c.need("hidden") // heads if heads else 0


def _kv_heads(c: Config, tally: Tally, heads: int) -> int:
    size = _head_dim(c, heads)
    return max((block.kv for block in tally.mixers), default=0) // (2 * size) if size else 0


def _is_mla(c: Config) -> bool:
    return (c.raw.get("kv_lora_rank") or c.defaults.get("kv_lora_rank")) is not None


def _mla(c: Config) -> MlaShape | None:
    if not _is_mla(c):
        return None
    rank = c.count("q_lora_rank") if c.given("q_lora_rank")[1] is not None else 0
    return MlaShape(rank or 0, *(c.count(key) or 0 for key in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")))


def _moe(c: Config, params: Mapping[str, int], tally: Tally) -> MoeShape | None:
    sparse = sum(layer.feed == "moe" for layer in tally.layers)
    if not sparse or not params.get("routed_experts"):
        return None
    at = c if c.given("experts")[1] is not None or c.nested else c.section("ffn_config")  # DBRX nests them
    width = _largest_of(at, "expert_ffn") or _largest_of(at, "ffn")
    return MoeShape(
        _largest_of(at, "experts"), _largest_of(at, "top_k"), _largest_of(at, "shared"), width, len(tally.layers) - sparse, params["routed_experts"]
    )


def _largest_module(c: Config, params: Mapping[str, int], tally: Tally) -> int:
    """The vocabulary table, the head, one feed-forward matrix, or one layer's experts."""
    experts = max((block.params.get("routed_experts", 0) for block in tally.feeds), default=0)
    return max(params.get("input_table", 0), params.get("output_head", 0), experts, c.need("hidden") * _largest_of(c, "ffn")) if params else 0


def windows(tally: Tally) -> dict[str, int] | None:
    """The most frequent window, how many layers have one, how many keep everything."""
    sizes = Counter(block.window for block in tally.mixers if block.kv)
    kept = {window: layers for window, layers in sizes.items() if window}
    if not kept:
        return None
    return {"window": max(kept, key=lambda window: kept[window]), "sliding_layers": sum(kept.values()), "full_layers": sizes[0]}


def _scores(tally: Tally) -> dict[int, int]:
    by_window: Counter[int] = Counter()
    for block in tally.mixers:
        by_window[block.window] += block.score
    return {window: score for window, score in by_window.items() if score}


# --- notes


def _add_notes(c: Config, tally: Tally, unread: list[str], *, stated_weight: bool) -> None:
    n, kept, window = len(tally.layers), sum(block.kv > 0 for block in tally.mixers), windows(tally)
    for doubt in tally.doubts:
        c.note(f"参数量不能确定：{doubt}。")
    if tally.idle is None:
        c.note("文件没写每 token 用几个专家：激活参数算不出。")
    if kept == 0:
        c.note("没有一层存 K、V：状态大小固定，不随上下文变长。")
    elif kept < n:
        c.note(f"{n} 层里只有 {kept} 层存 K、V，其余层的状态大小固定或共用别层的。")
    if window:
        c.note(f"{window['sliding_layers']} 层是滑动窗口，最多存 {window['window']} 个 token；每 token 的 KV 按没到窗口时算，所有层都在内。")
    mtp = c.raw.get("num_nextn_predict_layers") or c.raw.get("num_mtp_layers")
    if isinstance(mtp, int) and not isinstance(mtp, bool) and mtp > 0:
        c.note(f"另有 {mtp} 层多 token 预测（MTP），没有算在内。")
    if not stated_weight:
        c.note("文件没写 torch_dtype：权重按 16 位（2 字节）算。")
    if unread:
        c.note(f"文件里还有这里没用到的键：{'、'.join(shown(key).strip('「」') for key in unread[:6])}。如果它们改变结构，参数量会不同。")


def _unread(c: Config) -> list[str]:
    """Structural keys that nothing has read."""
    known = {key for keys in ALIASES.values() for key in keys} | set(c.defaults) | set(c.used)
    return [
        key for key, value in c.raw.items()
        if key not in known and isinstance(value, int) and not isinstance(value, bool) and value and _ODD.search(key) and not _HARMLESS.search(key)
    ]  # fmt: skip
