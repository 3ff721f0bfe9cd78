"""Can this model be cut t ways at all, and how thin do the matrix products become?"""

from __future__ import annotations

from dataclasses import dataclass

from calculators.catalog import Model, accelerator
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Bar, BarChart, Chart, Grid, Part, Rule
from calculators.core.errors import FieldError, Refusal, refuse
from calculators.core.inputs import Scalar, flag, integer, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.worked import Quantity, Worked, quantity, total
from calculators.distributed._models import CUSTOM, model_or
from calculators.formulas.params import attention_params, gated_ffn_params, norm_params
from calculators.formulas.roofline import arithmetic_intensity, gemm_elements, gemm_flops, ridge
from calculators.formulas.tensor import (
    LARGEST_TP,
    gpt_attention_params,
    gpt_ffn_params,
    gpt_norm_params,
    kv_copies,
    kv_heads_per_gpu,
    legal_tps,
    padded_vocab,
    refuse_what_tp_cannot_cut,
    why_illegal,
)

H100 = accelerator("h100-sxm")
MOST_CARDS, MOST_HEADS = 16, 16
"""What the picture of who holds which head shows."""
LABELS = {"hidden": "隐藏维 h", "heads": "注意力头 a", "kv_heads": "KV 头", "head_dim": "每头维度 d", "ffn": "FFN 宽度", "vocab": "词表 V"}
EXAMPLES = {"hidden": 14336, "heads": 112, "kv_heads": 112, "head_dim": 128, "ffn": 57344, "vocab": 250680}


@dataclass(frozen=True)
class Sizes:
    """All fields filled; ``vocab`` 0 when nobody said."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    ffn_gated: bool


@dataclass(frozen=True)
class Gemm:
    """One matrix product of a card: (tokens × k)(k × n)."""

    name: str
    k: int
    n: int
    intensity: float


def _chart(run: Run, *, tp: int, tokens: int, **_: object) -> tuple[Chart, ...]:
    trace = run.result.trace
    assert isinstance(trace, tuple)
    sizes, gemms = trace
    turn = ridge(H100.dense_flops, H100.hbm_bytes_per_s)
    thinnest = min(gemms, key=lambda g: g.intensity)
    names = {"qkv": "QKV（列切）", "out": "输出（行切）", "up": "上投影（列切）", "down": "下投影（行切）"}
    bars = BarChart(
        "每张卡的矩阵乘还有多厚",
        f"M 是 {format_number(tokens)} 个 token。切得越多，每张卡的矩阵越窄，每搬一个字节算得越少。",
        Axis("算术强度", "FLOP/B", low=0),
        tuple(Bar(f"{names[g.name]} {g.k}×{g.n}", (Part("强度", g.intensity),), format_number(g.intensity, digits=3), emphasis=g is thinnest) for g in gemms),
        limits=(Rule(f"H100 的拐点 {format_number(turn, digits=3)}", x=turn),),
    )
    if sizes.kv_heads > MOST_HEADS or tp > MOST_CARDS or tp == 1:
        return (bars,)
    return (_holders(sizes, tp), bars)


def _holders(sizes: Sizes, tp: int) -> Grid:
    """Rows are cards, columns KV heads; the text says which query heads come with them."""
    queries, keys = sizes.heads // tp, kv_heads_per_gpu(sizes.kv_heads, tp)
    copies = kv_copies(sizes.kv_heads, tp)
    cells, texts = [], []
    for card in range(tp):
        first = card * keys if copies == 1 else card // copies
        held = range(first, first + keys)
        cells.append(tuple(1.0 if head in held else None for head in range(sizes.kv_heads)))
        texts.append(tuple(("KV" if head in held else "") for head in range(sizes.kv_heads)))
    how = f"每个 KV 头在 {copies} 张卡上各存一份，KV cache 不再变小" if copies > 1 else f"每张卡 {keys} 个 KV 头"
    return Grid(
        "哪张卡拿哪个 KV 头",
        f"行是卡，列是 KV 头。每张卡 {queries} 个注意力头，{how}。",
        tuple(f"卡 {card}" for card in range(tp)),
        tuple(str(head) for head in range(sizes.kv_heads)),
        tuple(cells),
        tuple(texts) if sizes.kv_heads <= 8 else (),
    )


@calculator(
    title="这个 TP 合法吗",
    question="头、FFN、词表除得尽吗？切完每张卡的矩阵还有多厚？",
    chapter="12",
    inputs=(
        model_or(CUSTOM, "自己填尺寸", "llama-3-70b"),
        integer("tp", "张量并行 t", 8, "card", low=1, high=LARGEST_TP, stops=powers_of_two(1, 64)),
        integer("tokens", "一次算几个 token", 8192, "token", low=1, high=1e6, kind="tokens", stops=powers_of_two(1, 65536), help="矩阵乘的 M；解码时就是 batch"),
        integer("vocab_divisor", "词表补到它 × t 的倍数", 128, low=1, high=1024, more=True, stops=powers_of_two(1, 1024)),
        integer("hidden", LABELS["hidden"], None, low=1, high=1e6, more=True),
        integer("heads", LABELS["heads"], None, low=1, high=10_000, more=True),
        integer("kv_heads", LABELS["kv_heads"], None, low=1, high=10_000, more=True),
        integer("head_dim", LABELS["head_dim"], None, low=1, high=10_000, more=True),
        integer("ffn", LABELS["ffn"], None, low=1, high=1e7, more=True),
        integer("vocab", LABELS["vocab"], None, "token", low=1, high=1e7, more=True),
        flag("ffn_gated", "门控 FFN（SwiGLU，三个矩阵）", None, more=True, help="否：两个矩阵，带偏置和 LayerNorm 的 GPT 块"),
    ),
    outputs=(
        Output("heads_per_gpu", "每卡的注意力头", main=True),
        Output("kv_heads_per_gpu", "每卡的 KV 头", main=True),
        Output("kv_replication", "每个 KV 头存几份", "×", main=True),
        Output("ffn_per_gpu", "每卡的 FFN 列"),
        Output("slimmest_gemm", "最薄的矩阵乘"),
        Output("slimmest_ai", "它的强度", "FLOP/B", main=True),
        Output("weights_per_gpu_gb", "每卡的权重（BF16）", "GB", main=True),
        Output("legal_tp", "合法的 t", main=True),
        Output("padded_vocab", "补齐后的词表", "token", digits=9),
        Output("embed_params", "补齐后的词表参数", digits=12),
        Output("layer_params", "一层的参数", digits=12),
        Output("gate_up_k", "上投影的 K"),
        Output("gate_up_n", "上投影的 N"),
    ),
    chart=_chart,
    formula=(
        "a % t = 0，ffn % t = 0，kv % t = 0 或 t % kv = 0（后者要复制）",
        "补齐的词表 = ⌈V ÷ (除数 × t)⌉ × 除数 × t",
        "强度 = M·K·N ÷ (M·K + K·N + M·N)，每个数 2 字节",
        "QKV h × (a/t + 2·KV 头)·d；输出 (a/t)·d × h；上投影 h × 2·ffn/t（门控，拼在一起）；下投影 ffn/t × h",
    ),
    assumptions=("权重按 BF16、全部平均切；norm 其实每张卡一份，不到 0.01%", "门控层的参数不含偏置；不门控按带偏置的 GPT 块数"),
    leaves_out="不算 kernel 的分块对不齐、QKV 拼接的次序。改了尺寸，全模型的参数按「预设 + 层数 × 一层的差」重算；自己填的尺寸没有层数，不给权重。",
    sources=("Shoeybi et al. 2019（Megatron-LM）§3", "Megatron-LM 的词表补齐：make-vocab-size-divisible-by 128", "bigscience README：BLOOM 一层 12h² + 13h，词表补到 250,880"),
)  # fmt: skip
def tp_shapes(
    *, model: Model | None, tp: int, tokens: int, vocab_divisor: int, hidden: int | None, heads: int | None, kv_heads: int | None, head_dim: int | None,
    ffn: int | None, vocab: int | None, ffn_gated: bool | None,
) -> Result:  # fmt: skip
    """Divisibility first, then what each card holds."""
    if model is not None:
        refuse_what_tp_cannot_cut(model)
    sizes, resolved = _filled(model, {"hidden": hidden, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "ffn": ffn, "vocab": vocab}, ffn_gated)
    legal = legal_tps(sizes.heads, sizes.kv_heads, sizes.ffn)
    reason = why_illegal(sizes.heads, sizes.kv_heads, sizes.ffn, tp)
    if reason:
        raise Refusal((FieldError("tp", f"{reason}，可用 {'/'.join(map(str, legal))}"),))
    w = Worked()
    cards, each_kv = quantity(tp), kv_heads_per_gpu(sizes.kv_heads, tp)
    own_heads = w.line("每卡的注意力头", quantity(sizes.heads) / cards, "", 6)
    columns = w.line("每卡的 FFN 列", quantity(sizes.ffn) / cards, "", 6)
    w.say(f"KV 头：{sizes.kv_heads} 个分给 {tp} 张卡 → 每卡 {each_kv} 个，每个存 {kv_copies(sizes.kv_heads, tp)} 份")
    padded = _padded(w, sizes, vocab_divisor, tp)
    parts = [w.line(name, part, "", 12) for name, part in zip(("注意力的参数", "FFN 的参数", "norm 的参数"), _layer_parts(sizes), strict=True)]
    layer = w.line("一层的参数", total(parts), "", 12)
    params = _all_params(model, sizes)
    weights = None if params is None else w.line("每卡的权重", quantity(params, "params") * quantity(2, "B") / cards, "GB")
    gemms = _gemms(sizes, tp, tokens)
    thin = min(gemms, key=lambda g: g.intensity)
    rows, k, n = quantity(tokens), quantity(thin.k), quantity(thin.n)
    flops = w.line(f"最薄的是 {thin.name}", gemm_flops(rows, n, k, quantity(2, "FLOP")), "FLOP")
    elements = w.line("它要搬的数", gemm_elements(rows, n, k), "", 12)
    w.line("强度", arithmetic_intensity(flops, quantity(2, "B") * elements), "FLOP/B")
    return Result(
        values={
            "heads_per_gpu": round(own_heads.value), "kv_heads_per_gpu": each_kv, "kv_replication": kv_copies(sizes.kv_heads, tp),
            "ffn_per_gpu": round(columns.value), "slimmest_gemm": thin.name, "slimmest_ai": thin.intensity, "weights_per_gpu_gb": weights,
            "legal_tp": legal, "padded_vocab": padded, "embed_params": None if padded is None else padded * sizes.hidden, "layer_params": round(layer.value),
            "gate_up_k": sizes.hidden, "gate_up_n": gemms[2].n,
        },
        lines=w.lines,
        verdict=_verdict(sizes, tp, tokens, thin),
        resolved=resolved,
        trace=(sizes, gemms),
    )  # fmt: skip


def _filled(model: Model | None, given: dict[str, int | None], gated: bool | None) -> tuple[Sizes, dict[str, Scalar]]:
    """Typed sizes over the preset's, and what the empty ones were taken to be.  Raises Refusal where nobody knows."""
    filled: dict[str, int] = {}
    resolved: dict[str, Scalar] = {}
    refusals = []
    for name, value in given.items():
        preset = getattr(model, name) if model is not None else 0
        if value is not None:
            filled[name] = value
        elif preset or (name == "vocab" and model is None):
            filled[name] = preset
            if preset:
                resolved[name] = preset
        else:
            refusals.append(refuse(name, f"「{LABELS[name]}」必须填，模型没有给", "空", f"例如 {EXAMPLES[name]}"))
    if refusals:
        raise Refusal(tuple(error for refusal in refusals for error in refusal.errors))
    if gated is None:
        gated = resolved["ffn_gated"] = model.ffn_gated if model is not None else True
    return Sizes(**filled, ffn_gated=gated), resolved


def _padded(w: Worked, sizes: Sizes, divisor: int, tp: int) -> int | None:
    if not sizes.vocab:
        return None
    multiple = w.line("词表补到它的倍数", quantity(divisor) * quantity(tp), "", 6)
    return round(w.line("补齐后的词表", padded_vocab(quantity(sizes.vocab), multiple), "", 9).value)


def _layer_parts(sizes: Sizes) -> tuple[Quantity, Quantity, Quantity]:
    """Parameters of attention, feed-forward and norms."""
    h, a, kv, d, f = (quantity(x, digits=12) for x in (sizes.hidden, sizes.heads, sizes.kv_heads, sizes.head_dim, sizes.ffn))
    if sizes.ffn_gated:
        return attention_params(h, a, kv, d), gated_ffn_params(h, f), norm_params(h)
    return gpt_attention_params(h, a, kv, d), gpt_ffn_params(h, f), gpt_norm_params(h)


def _layer_params(sizes: Sizes) -> float:
    return total(_layer_parts(sizes)).value


def _all_params(model: Model | None, sizes: Sizes) -> float | None:
    """The preset's count, moved by what the typed sizes change; None without a number of layers."""
    if model is None:
        return None
    own = Sizes(model.hidden, model.heads, model.kv_heads, model.head_dim, model.ffn or sizes.ffn, model.vocab, model.ffn_gated)
    tables = 1 if model.tied else 2
    layers = model.layers * (_layer_params(sizes) - _layer_params(own))
    return model.total_params + layers + tables * (sizes.vocab * sizes.hidden - own.vocab * own.hidden)


def _gemms(sizes: Sizes, tp: int, tokens: int) -> tuple[Gemm, ...]:
    """The four products of a layer on one card; gate and up are one."""
    own, columns = sizes.heads // tp * sizes.head_dim, sizes.ffn // tp
    shapes = {
        "qkv": (sizes.hidden, own + 2 * kv_heads_per_gpu(sizes.kv_heads, tp) * sizes.head_dim),
        "out": (own, sizes.hidden),
        "up": (sizes.hidden, 2 * columns if sizes.ffn_gated else columns),
        "down": (columns, sizes.hidden),
    }
    m = float(tokens)
    found = []
    for name, (k, n) in shapes.items():
        flops = gemm_flops(m, float(n), float(k), 2.0)
        found.append(Gemm(name, k, n, arithmetic_intensity(flops, 2.0 * gemm_elements(m, float(n), float(k)))))
    return tuple(found)


def _verdict(sizes: Sizes, tp: int, tokens: int, thin: Gemm) -> str:
    turn = ridge(H100.dense_flops, H100.hbm_bytes_per_s)
    copies = kv_copies(sizes.kv_heads, tp)
    kv = f"KV 头只有 {sizes.kv_heads} 个，每个要存 {copies} 份，KV cache 从 {sizes.kv_heads} 张卡起不再变小" if copies > 1 else "头、FFN 都除得尽"
    shown = format_number(thin.intensity, digits=3)
    thick = f"最薄的 {thin.name} 还有 {shown} FLOP/字节，高过 H100 的拐点 {format_number(turn, digits=3)}"
    slim = f"最薄的 {thin.name} 只有 {shown} FLOP/字节，低于 H100 的拐点 {format_number(turn, digits=3)}，卡在带宽"
    return f"合法：{kv}。" + (thick if thin.intensity >= turn else slim) + "。"
