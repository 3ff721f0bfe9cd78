"""Prune the width or the depth: how large is the smaller model, what does a token of KV cost, and how much faster is decode?"""

from __future__ import annotations

from dataclasses import dataclass, replace

from calculators.catalog import Accelerator, Model, gpu_input, model_input
from calculators.core.calculator import Output, Result, Row, Run, calculator
from calculators.core.charts import Axis, Bar, BarChart, Chart, LineChart, Mark, Part, Series
from calculators.core.errors import refuse
from calculators.core.inputs import integer, linear_stops, number, powers_of_two
from calculators.core.units import GB
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.decode import step_seconds
from calculators.formulas.kv import bytes_per_token, kv_elements
from calculators.formulas.params import attention_params, gated_ffn_params, norm_params, stack_params
from calculators.formulas.pruned import Dims, dims_of, has_qkv_bias, pruned_params, qkv_bias_params, read_params

TILE = 128
"""Hidden and FFN sizes stay multiples of it: tensor-core tiles, and divisibility under tensor parallelism."""
BF16 = 2


@dataclass(frozen=True)
class Variant:
    """One shape and what it costs."""

    name: str
    dims: Dims
    params: float
    kv_per_token: float
    weights_s: float
    kv_s: float


def _variant(name: str, model: Model, dims: Dims, load: float, bandwidth: float) -> Variant:
    kv = bytes_per_token(kv_elements(float(dims.kv_heads), float(model.head_dim)), float(dims.layers), float(BF16))
    return Variant(name, dims, pruned_params(model, dims), kv, read_params(model, dims) * BF16 / bandwidth, kv * load / bandwidth)


def _to_tile(size: float) -> int:
    return max(TILE, int(size / TILE + 0.5) * TILE)


def _variants(model: Model, dims: Dims, load: float, bandwidth: float) -> list[Variant]:
    """The model, the typed shape, and the three of the chapter in this model's proportions (8B: 3072/9216, 16 and 24 layers)."""
    own = dims_of(model)
    shapes = {
        "原模型": own,
        "你填的": dims,
        "剪宽": replace(own, hidden=_to_tile(own.hidden * 3 / 4), ffn=_to_tile(own.ffn * 9 / 14)),
        "剪深，留一半": replace(own, layers=max(1, own.layers // 2)),
        "剪深，留四分之三": replace(own, layers=max(1, own.layers * 3 // 4)),
    }
    return [_variant(name, model, shape, load, bandwidth) for name, shape in shapes.items()]


def _chart(run: Run, *, model: Model, new_layers: int, new_ffn: int, **_: object) -> tuple[Chart, ...]:
    variants: list[Variant] = run.result.trace  # type: ignore[assignment]
    dims = next(v for v in variants if v.name == "你填的").dims
    bars = tuple(
        Bar(
            f"{v.name}（{v.dims.layers} 层，宽 {v.dims.hidden}）",
            (Part("读权重", 1e3 * v.weights_s), Part("读 KV", 1e3 * v.kv_s)),
            quantity(1e3 * (v.weights_s + v.kv_s), "ms", 3).text,
            emphasis=v.name == "你填的",
        )
        for v in variants
    )
    layers = sorted({*(max(1, round(model.layers * i / 16)) for i in range(1, 17)), new_layers})
    widths = sorted({*(_to_tile(model.ffn * i / 16) for i in range(1, 17)), new_ffn})
    by_layers = tuple((100 * n / model.layers, pruned_params(model, replace(dims, layers=n)) / GB) for n in layers)
    by_ffn = tuple((100 * n / model.ffn, pruned_params(model, replace(dims, ffn=n)) / GB) for n in widths)
    now = pruned_params(model, dims) / GB
    return (
        BarChart("一步的时间", "一条是一种剪法。剪宽只缩读权重的那一段，剪深两段一起缩：把 batch 拖大看看。", Axis("时间", "ms", low=0), bars),
        LineChart(
            "再剪层数，还是再剪 FFN",
            "从你填的形状出发，各动一个。动层数能一直截到只剩词表；动 FFN，attention 那份还在。",
            Axis("留下原来的", "%", low=0),
            Axis("参数", "1e9", low=0),
            (Series("动层数", by_layers), Series("动 FFN", by_ffn, dashed=True)),
            (
                Mark("现在的层数", 100 * new_layers / model.layers, now, emphasis=True),
                Mark("现在的 FFN", 100 * new_ffn / model.ffn, now),
            ),
        ),
    )


@calculator(
    title="剪宽还是剪深",
    question="砍维度，还是砍层数：剩多大，每个 token 的 KV 多少，decode 快多少？",
    chapter="18c",
    inputs=(
        model_input("llama-3.1-8b", where=lambda m: m.is_plain_gated and m.family in ("llama", "qwen2"), help="Llama、Qwen2 这类稠密模型"),
        integer("new_layers", "留几层", 32, "layer", high=1000, stops=(8, 16, 24, 32, 48, 64, 80)),
        integer("new_hidden", "留多宽 d", 3072, low=128, high=65536, stops=(1024, 2048, 3072, 4096, 5120, 8192), help="128 的倍数"),
        integer("new_ffn", "FFN 留多宽", 9216, low=128, high=262144, stops=(4096, 9216, 11008, 14336, 28672), help="128 的倍数"),
        integer("batch", "batch", 1, "sequence", high=4096, stops=powers_of_two(1, 4096)),
        integer("new_heads", "query 头数", 32, high=1024, more=True),
        integer("new_kv_heads", "KV 头数", 8, high=1024, more=True),
        integer("context_tokens", "上下文", 2048, "token", high=1_000_000, kind="tokens", more=True, stops=powers_of_two(128, 131072)),
        gpu_input(more=True),
        number("mbu", "MBU", 0.8, low=0.05, high=1, kind="fraction", more=True, stops=linear_stops(0.05, 1, 0.05), help="读的时候用上带宽的几成"),
    ),
    outputs=(
        Output("params", "参数", "params", main=True, digits=4),
        Output("params_ratio_pct", "是原来的", "%", main=True),
        Output("bf16_gb", "BF16 权重", "GB"),
        Output("kv_bytes_per_token", "每个 token 的 KV", "B", main=True, digits=6),
        Output("step_ms", "decode 一步", "ms", main=True),
        Output("base_step_ms", "原模型一步", "ms"),
        Output("decode_speedup", "decode 快", "×", main=True),
        Output(
            "variants", "几种剪法",
            columns=(
                ("name", "剪法", ""), ("layers", "层", ""), ("hidden", "d", ""), ("ffn", "FFN", ""), ("params_b", "参数", "1e9"), ("gb", "BF16", "GB"), ("kv", "KV/token", "B"), ("ms", "一步", "ms"),
            ),
        ),
    ),
    chart=_chart,
    formula=(
        "参数 = 词表（共享算 1 份，不共享 2 份）·V·d + L·(d·hd·(2·头数 + 2·KV 头数) + 3·d·FFN + 2·d) + d",
        "每个 token 的 KV = 2·L·KV 头数·hd·2 字节",
        "一步 =（读的参数 × 2 + KV × 上下文 × batch）÷（带宽 × MBU）；不读输入词表",
    ),
    assumptions=("每头维度不变，头数变了只改 Q、K、V、O 的宽度", "Qwen2 另加 Q、K、V 的 bias"),
    leaves_out="不算精度；也不算每层的启动和 all-reduce：层数减半，这部分跟着减半，剪深还要再快一点。",
    sources=("模型形状：模型目录", "Minitron-4B-Width：d 3072、FFN 9216、32 层"),
)  # fmt: skip
def structured_prune(
    *, model: Model, new_layers: int, new_hidden: int, new_ffn: int, batch: int, new_heads: int, new_kv_heads: int, context_tokens: int, gpu: Accelerator, mbu: float,
) -> Result:  # fmt: skip
    """Count the smaller model and read it once a step."""
    for name, label, size in (("new_hidden", "d", new_hidden), ("new_ffn", "FFN", new_ffn)):
        if size % TILE:
            raise refuse(
                name, f"{label}必须是 {TILE} 的倍数（tensor core 的块）", str(size), f"可取 {max(TILE, size // TILE * TILE)}、{-(-size // TILE) * TILE}"
            )
    if new_heads % new_kv_heads:
        raise refuse("new_kv_heads", "query 头数必须是 KV 头数的倍数", f"{new_heads} / {new_kv_heads}", f"例如 {new_heads} 和 1")
    dims, own = Dims(new_layers, new_hidden, new_ffn, new_heads, new_kv_heads), dims_of(model)
    variants = _variants(model, dims, float(batch * context_tokens), gpu.hbm_bytes_per_s * mbu)

    w = Worked()
    h, hd, heads, kv_heads = quantity(new_hidden), quantity(model.head_dim), quantity(new_heads), quantity(new_kv_heads)
    attention = w.line("一层 attention", attention_params(h, heads, kv_heads, hd), "params", 12)
    layer = w.line("一层", attention + gated_ffn_params(h, quantity(new_ffn)) + norm_params(h), "params", 12)
    if has_qkv_bias(model):
        layer = w.line("加上 bias", layer + qkv_bias_params(heads, kv_heads, hd), "params", 12)
    table = w.line("词表", quantity(model.vocab, digits=12) * h, "params", 12)
    params = w.line("参数", stack_params(quantity(new_layers), layer, h, table, quantity(1 if model.tied else 2)), "params", 12)
    ratio = w.line("是原来的", params / quantity(pruned_params(model, own), "params", 12), "%")
    weights = w.line("BF16 权重", params * quantity(BF16, "B"), "GB", 5)
    kv = w.line("每个 token 的 KV", bytes_per_token(kv_elements(kv_heads, hd), quantity(new_layers), quantity(BF16, "B")), "B", 12)
    read = weights if model.tied else w.line("一步读的权重", (params - table) * quantity(BF16, "B"), "GB", 5)
    load = w.line("一步读的 KV", kv * quantity(context_tokens) * quantity(batch), "GB", 5)
    bandwidth = w.line("实得带宽", quantity(gpu.bandwidth_gb_s, "GB/s") * quantity(mbu), "GB/s", 5)
    step = w.line("decode 一步", step_seconds(read, load, bandwidth), "ms")
    base = _base_step(w, variants[0], bandwidth, batch * context_tokens, model)
    speedup = w.line("decode 快", base / step, "×")
    return Result(
        values={
            "params": round(params.value), "params_ratio_pct": ratio, "bf16_gb": weights, "kv_bytes_per_token": round(kv.value), "step_ms": step, "base_step_ms": base,
            "decode_speedup": speedup, "variants": [_row(v) for v in variants],
        },
        lines=w.lines,
        verdict=_verdict(params, ratio, base, step, speedup, kv.value / variants[0].kv_per_token),
        notes=_notes(dims, own),
        trace=variants,
    )  # fmt: skip


def _base_step(w: Worked, base: Variant, bandwidth: Quantity, tokens: int, model: Model) -> Quantity:
    read = w.line("原模型一步读的权重", quantity(read_params(model, base.dims), "params", 12) * quantity(BF16, "B"), "GB", 5)
    load = w.line("原模型一步读的 KV", quantity(base.kv_per_token, "B", 12) * quantity(tokens, digits=12), "GB", 5)
    return w.line("原模型一步", step_seconds(read, load, bandwidth), "ms")


def _row(v: Variant) -> Row:
    return {
        "name": v.name, "layers": v.dims.layers, "hidden": v.dims.hidden, "ffn": v.dims.ffn, "params_b": v.params / GB, "gb": v.params * BF16 / GB,
        "kv": round(v.kv_per_token), "ms": 1e3 * (v.weights_s + v.kv_s),
    }  # fmt: skip


def _verdict(params: Quantity, ratio: Quantity, base: Quantity, step: Quantity, speedup: Quantity, kv: float) -> str:
    head = f"剩 {quantity(params.value, 'params', 4).text}，是原来的 {ratio.text}；一步 {base.text} → {step.text}。"
    if speedup.value <= 1:
        return head + "没有变快：它读的字节不比原模型少。"
    if kv < 1:
        return head + f"快 {speedup.text}；每个 token 的 KV 剩 {quantity(100 * kv, '%', 3).text}，batch 大了这份也省得到。"
    if kv == 1 and ratio.value < 1:
        return head + f"快 {speedup.text}；KV 一点没少，batch 和上下文越大，这个倍数越小。"
    return head + f"快 {speedup.text}。"


def _notes(dims: Dims, own: Dims) -> tuple[str, ...]:
    names = {
        "层数": (dims.layers, own.layers),
        "d": (dims.hidden, own.hidden),
        "FFN": (dims.ffn, own.ffn),
        "头数": (dims.heads, own.heads),
        "KV 头数": (dims.kv_heads, own.kv_heads),
    }
    return tuple(f"{name} {new} 比原模型的 {old} 还大：这不是剪。" for name, (new, old) in names.items() if new > old)
