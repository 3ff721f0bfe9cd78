"""Families whose layers differ in size: Gemma 3n and 4, DeciLM (Nemotron-NAS), sparse-attention layers that share an indexer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from calculators.catalog.configs import plans
from calculators.catalog.configs.attention import Gqa, Heads, usual_heads
from calculators.catalog.configs.family import Family
from calculators.catalog.configs.feedforward import Ffn, Moe, shared_width
from calculators.catalog.configs.moe import SPARSE_MLA
from calculators.catalog.configs.parts import Block, Layer
from calculators.catalog.configs.values import Config, Json, MissingKey, shown

_PER_HEAD = Gqa(qkv_bias="attention_bias", out_bias="attention_bias", qk_norm="head")


# --- Gemma 3n and Gemma 4: late layers reuse the K and V of earlier ones, small per-layer embeddings


class SharedKv:
    """Attention with q/k norms whose last layers have no K and V of their own; ``values`` 0: V is K."""

    def count(self, c: Config, layer: Layer) -> Block:
        own = bool(layer.sizes["own_kv"])
        return replace(_PER_HEAD, keys=own, values_from_keys=not layer.sizes["values"]).count(c, layer)


def _shared_from(c: Config, n: int) -> int:
    shared = c.count("num_kv_shared_layers") or 0
    if shared:
        c.note(f"最后 {shared} 层共用前面的 K 和 V：它们没有 K、V 投影，也不占 KV 缓存。")
    return n - shared


def gemma3n_layers(c: Config) -> list[Layer]:
    """Every fifth layer sees all; the last ``num_kv_shared_layers`` reuse K and V."""
    n = c.need("layers")
    mixes = plans.named_mixes(c, "layer_types", n) or plans.every(5)(c, n)
    first = _shared_from(c, n)
    return [Layer(i, mix, "dense", {"own_kv": int(i < first), "values": 1}) for i, mix in enumerate(mixes)]


def gemma4_layers(c: Config) -> list[Layer]:
    """Full layers have their own head size and KV heads; V may be K; shared layers may have twice the feed-forward."""
    n = c.need("layers")
    mixes = plans.named_mixes(c, "layer_types", n) or plans.every(6)(c, n)
    mixes[-1] = "full"
    first, same = _shared_from(c, n), c.switch("attention_k_eq_v")
    wide = 2 if c.switch("use_double_wide_mlp") else 1
    overrides = c.section("per_layer_config")
    global_size = c.size("global_head_dim") or 512
    global_kv = c.size("num_global_key_value_heads") if same else None
    layers = []
    for i, mix in enumerate(mixes):
        sizes = {"own_kv": int(i < first), "values": int(not (same and mix == "full")), "ffn": c.need("ffn") * (wide if i >= first else 1)}
        if overrides.raw:
            own = overrides.section(f"{i:02}" if f"{i:02}" in overrides.raw else str(i))
            sizes |= {name: stated for name in ("head_dim", "kv_heads") if (stated := own.size(name)) is not None}
        elif mix == "full":
            sizes |= {"head_dim": global_size} | ({"kv_heads": global_kv} if global_kv else {})
        layers.append(Layer(i, mix, "moe" if c.switch("enable_moe_block") else "dense", sizes))
    return layers


@dataclass(frozen=True)
class Gemma4Moe:
    """Gemma 4's experts stand beside the dense feed-forward; the router has a scale a channel and one an expert."""

    def count(self, c: Config, layer: Layer) -> Block:
        dense, routed = Ffn().count(c, layer), Moe().count(c, layer)
        h, e = c.need("hidden"), c.need("experts")
        params = {**dense.params, **routed.params, "norms": 3 * h, "router": routed.params["router"] + h + e}
        return Block(params, idle=routed.idle)


def per_layer_inputs(c: Config, layers: Sequence[Layer]) -> Block:
    """Per-layer embeddings: one wide table, its projection, and a gate, projection and norm in each layer."""
    size, h, n = c.count("hidden_size_per_layer_input") or 0, c.need("hidden"), len(layers)
    if not size:
        return Block()
    c.note("每层还有一张小的输入表（per-layer embedding）：查表，不做矩阵乘，可以放在显存之外。")
    rows = c.need("vocab_size_per_layer_input")
    return Block({"per_layer_table": rows * n * size, "per_layer_input": h * n * size + size + n * 2 * h * size, "norms": n * h})


def gemma3n_extra(c: Config, layers: Sequence[Layer]) -> Block:
    """AltUp (several copies of the residual stream) and Laurel (a low-rank side branch)."""
    h, n, copies, rank = c.need("hidden"), len(layers), c.need("altup_num_inputs"), c.need("laurel_rank")
    altup = n * (h + copies * copies + copies**3 + copies * h) + 2 * (copies - 1) * h * h
    inputs = per_layer_inputs(c, layers)
    return Block({**inputs.params, "altup": altup, "laurel": n * 2 * h * rank, "norms": inputs.params.get("norms", 0) + 2 * n * h})


# --- MiMo-V2: windowed layers have twice the KV heads, and sinks


def mimo_heads(c: Config, layer: Layer) -> Heads:
    """Values are narrower than keys; ``swa_`` keys say how windowed layers differ, else they have twice the KV heads."""
    a, kv, d, dv = c.need("heads"), c.need("kv_heads"), c.need("head_dim"), c.need("v_head_dim")
    if layer.mix != "window":
        return Heads(a, kv, d, dv)
    own = {name: c.size(f"swa_{name}") for name in ("num_attention_heads", "num_key_value_heads", "head_dim", "v_head_dim")}
    return Heads(own["num_attention_heads"] or a, own["num_key_value_heads"] or 2 * kv, own["head_dim"] or d, own["v_head_dim"] or dv)


class MimoAttention:
    """Sinks stand in the windowed layers only."""

    def count(self, c: Config, layer: Layer) -> Block:
        return Gqa(qkv_bias="attention_bias", sinks=layer.mix == "window", heads=mimo_heads).count(c, layer)


# --- Laguna: query heads vary by layer, and so does the kind of output gate


def laguna_heads(c: Config, layer: Layer) -> Heads:
    """``num_attention_heads_per_layer`` where the file has it."""
    listed = c.raw.get("num_attention_heads_per_layer")
    own = c.size("num_attention_heads_per_layer", layer.index) if isinstance(listed, list) else None
    n = usual_heads(c, layer)
    return replace(n, a=own) if own else n


class LagunaAttention:
    """``gating``: true or "per-head" = one value a head, anything else = as wide as the output."""

    def count(self, c: Config, layer: Layer) -> Block:
        per_head = c.raw.get("gating", True) in (True, "per-head", None)
        return replace(_PER_HEAD, gate="head" if per_head else "full", heads=laguna_heads).count(c, layer)


# --- DeciLM: every block lists its own attention and feed-forward


def deci_width(c: Config, multiplier: float) -> int:
    """2/3 · 4 · multiplier · hidden, rounded up to 256."""
    return -(-int(2 * multiplier * c.need("hidden") / 3) // 256) * 256


def deci_layers(c: Config) -> list[Layer]:
    """``block_configs``: KV heads and feed-forward width a block, ``no_op`` where a part is missing."""
    blocks = c.items("block_configs")
    if blocks is None:
        raise MissingKey("block_configs")
    n, heads = c.need("layers"), c.need("heads")
    if len(blocks) != n:
        raise c.refuse("block_configs 必须每层一项", f"{len(blocks)} 项，共 {n} 层")
    layers = []
    for i, raw in enumerate(blocks):
        if not isinstance(raw, dict):
            raise c.refuse("block_configs 的每一项必须是对象", shown(raw))
        block = Config(raw, {}, model_type=c.model_type, nested=True, field=c.field)
        attention, ffn = block.section("attention"), block.section("ffn")
        if any(part.switch("replace_with_linear") for part in (attention, ffn)):
            raise MissingKey("replace_with_linear")
        sizes: dict[str, int] = {}
        if not attention.switch("no_op"):
            sizes["kv_heads"] = max(1, heads // attention.need("n_heads_in_group"))
        multiplier = ffn.number("ffn_mult")
        if not ffn.switch("no_op"):
            sizes["ffn"] = ffn.size("intermediate_size") or deci_width(c, multiplier or 4)
        layers.append(Layer(i, "full" if "kv_heads" in sizes else "none", "dense" if "ffn" in sizes else "none", sizes))
    kept = sum(layer.mix == "full" for layer in layers)
    c.note(f"{n} 个块里 {kept} 个有注意力，{n - kept} 个没有：KV 只算有的。")
    return layers


def deci_norms(c: Config, layers: Sequence[Layer]) -> Block:
    """One norm for each part that is there."""
    return Block({"norms": c.need("hidden") * sum((layer.mix != "none") + (layer.feed != "none") for layer in layers)})


# --- DeepSeek's sparse attention with indexers that several layers share


def indexer_layers(c: Config) -> list[Layer]:
    """GLM-5: ``indexer_types`` says which layers have an indexer of their own."""
    n = c.need("layers")
    sparse = plans.named_feeds(c, n) or plans.after_dense()(c, n)
    kinds = c.items("indexer_types")
    if kinds is None:
        kinds = _indexer_schedule(c, n)
    if len(kinds) < n:
        raise c.refuse("indexer_types 必须每层一项", f"{len(kinds)} 项，共 {n} 层")
    return [Layer(i, "full", "moe" if sparse[i] else "dense", {"indexer": int(kinds[i] == "full")}) for i in range(n)]


def _indexer_schedule(c: Config, n: int) -> list[Json]:
    pattern = c.given("index_topk_pattern")[1]
    if isinstance(pattern, str):
        return ["full" if kind == "F" else "shared" for kind in pattern]
    step, offset = c.size("index_topk_freq") or 1, c.count("index_skip_topk_offset")
    start = 2 if offset is None else offset
    return ["full" if max(i - start + 1, 0) % step == 0 else "shared" for i in range(n)]


_GEMMA4 = Family("Gemma 4", SharedKv(), Ffn(), Gemma4Moe(), norms=4, layers=gemma4_layers, extra=per_layer_inputs)

SPECIAL: dict[str, Family] = {
    "gemma3n_text": Family("Gemma 3n", SharedKv(), norms=4, layers=gemma3n_layers, extra=gemma3n_extra),
    "gemma4_text": _GEMMA4,
    "gemma4_unified_text": _GEMMA4,
    "nemotron-nas": Family("Nemotron-NAS", layers=deci_layers, norms=0, extra=deci_norms),
    "deci": Family("DeciLM", norms=2, doubt="DeciLM 的 KV 头数按层而变，这里只认 block_configs 的写法"),
    "mimo_v2_flash": Family("MiMo-V2", MimoAttention(), Ffn(), Moe(), mixes=plans.mimo, sparse=plans.after_dense(default=1)),
    "laguna": Family("Laguna", LagunaAttention(), Ffn(), Moe(shared=shared_width, correction=True), sparse=plans.after_dense(default=1)),
    "glm_moe_dsa": replace(SPARSE_MLA, name="GLM-5", layers=indexer_layers),
}
"""model_type → family."""
