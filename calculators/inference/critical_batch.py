"""From which batch on is decode limited by arithmetic, and can the KV cache keep it from ever getting there?"""

from __future__ import annotations

from calculators.catalog import Accelerator, Model, gpu_input, model_input
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Rule, Series
from calculators.core.errors import refuse
from calculators.core.inputs import choice, integer, number, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.inference import Shape, batch_flops, batch_intensity, intensity_limit, kv_request, shape_of, weights_read
from calculators.formulas.inference import critical_batch as critical
from calculators.formulas.roofline import arithmetic_intensity, ridge

BATCHES = tuple(2**k for k in range(13))
"""1 … 4096, the range of the input."""
CONTEXTS = (0, 512, 2048, 8192)
"""Drawn for comparison; 0 = weights only."""
FARTHEST = 2**40
"""A batch beyond this is called unreachable."""


def _chart(run: Run, *, model: Model, weight_bytes: float, kv_bytes: float, context_tokens: int, batch: int, **_: object) -> tuple[Chart, ...]:
    shape = shape_of(model)
    level = float(run.values["ridge_flop_per_byte"])  # type: ignore[arg-type]
    series = []
    for context in sorted({*CONTEXTS, context_tokens}):
        points = tuple((float(b), batch_intensity(shape, weight_bytes, kv_bytes, b, context)) for b in BATCHES)
        name = f"上下文 {context}" if context else "只算权重"
        series.append(Series(name, points, emphasis=context == context_tokens, dashed=context != context_tokens))
    return (
        LineChart(
            "加 batch，算术强度爬到哪",
            "两轴都是对数。横线是拐点，线过了它才是算力瓶颈；有 KV 的线会被压平，上下文越长压得越早。",
            Axis("batch", "sequence", log=True),
            Axis("算术强度", "FLOP/B", log=True),
            tuple(series),
            marks=(Mark("现在", float(batch), float(run.values["ai_at_batch"]), emphasis=True),),  # type: ignore[arg-type]
            rules=(Rule(f"拐点 {format_number(level)}", y=level),),
        ),
    )


@calculator(
    title="临界 batch 与 KV 天花板",
    question="batch 加到多少，decode 才从带宽瓶颈变成算力瓶颈？",
    chapter="15",
    inputs=(
        gpu_input(),
        model_input(),
        integer("context_tokens", "每条的上下文", 2048, "token", high=1_000_000, kind="tokens", stops=powers_of_two(128, 131072)),
        integer("batch", "batch", 1, "sequence", high=4096, stops=powers_of_two(1, 4096)),
        choice("math_precision", "用什么精度算", "bf16", ("bf16", "fp8", "int8", "fp4"), labels={"bf16": "BF16", "fp8": "FP8", "int8": "INT8", "fp4": "FP4"}),
        number("weight_bytes", "每个权重的字节", 2, "B", low=0.5, high=4, stops=(0.5, 1, 2, 4), help="存储的字节，可以和算的精度不同：4 bit 存、BF16 算就填 0.5"),
        number("kv_bytes", "KV 每个数的字节", 2, "B", low=0.5, high=2, more=True, stops=(0.5, 1, 2)),
        number("peak_tflops", "稠密峰值", None, "TFLOPS", low=0, high=1e6, more=True, help="留空用这张卡在所选精度下的"),
        number("bandwidth_gb_s", "显存带宽", None, "GB/s", low=0, high=1e6, more=True, help="留空用这张卡的"),
    ),
    outputs=(
        Output("critical_batch", "临界 batch（只算权重）", main=True),
        Output("ridge_flop_per_byte", "拐点", "FLOP/B", main=True),
        Output("ai_limit", "batch 无穷大时的算术强度", "FLOP/B", main=True),
        Output("reachable", "够得到拐点吗", main=True),
        Output("ai_at_batch", "现在的算术强度", "FLOP/B"),
        Output("weight_read_ms", "读一遍权重（不打折）", "ms"),
        Output("batch_to_ridge", "这个上下文下要的 batch"),
    ),
    chart=_chart,
    formula=(
        "临界 batch = 峰值 × 每权重字节 ÷ (2 × 带宽)",
        "算术强度 = B·(2N + attention) ÷ (权重字节 + B·KV 字节)；B 无穷大时只剩 (2N + attention) ÷ KV 字节",
        "够得到：上面这个极限 > 峰值 ÷ 带宽",
    ),
    assumptions=("N 不算输入词表；MoE 按激活的专家，临界 batch 的公式把它当稠密", "峰值和带宽都不打折；峰值和字节要属于同一种算法"),
    leaves_out="attention 的带宽利用率比矩阵乘低；临界 batch 是弯，不是台阶：到一半就已经弯了。",
    sources=("kipply, Transformer Inference Arithmetic（batch sizes 一节；A100-40GB 是 312e12 ÷ 1.5e12 → 208）", "峰值与带宽：硬件目录（稠密）"),
)  # fmt: skip
def critical_batch(
    *, gpu: Accelerator, model: Model, context_tokens: int, batch: int, math_precision: str, weight_bytes: float, kv_bytes: float,
    peak_tflops: float | None, bandwidth_gb_s: float | None,
) -> Result:  # fmt: skip
    """F·bytes/(2·BW), and the intensity that the KV cache allows."""
    shape = shape_of(model)
    peak_t, bandwidth_g = peak_tflops or _peak(gpu, math_precision), bandwidth_gb_s or gpu.bandwidth_gb_s
    w = Worked()
    params, width = quantity(shape.matmul_params, "params"), quantity(weight_bytes, "B")
    bandwidth = quantity(bandwidth_g, "GB/s")
    level = w.line("拐点", ridge(quantity(peak_t, "TFLOPS"), bandwidth), "FLOP/B", 5)
    b_star = w.line("临界 batch", critical(level, width, quantity(2, "FLOP")), digits=5)
    once = w.line("读一遍权重", params * width / bandwidth, "ms")
    per_token = quantity(batch_flops(shape, 1, context_tokens), "FLOP")
    w.say(f"一个 token 的运算（2N + attention） → {format_number(per_token.value / 1e9)} GFLOP")
    held = quantity(kv_request(shape, kv_bytes, context_tokens), "B")
    w.say(f"一条 {context_tokens} token 的 KV → {format_number(held.value / 1e6)} MB")
    limit = intensity_limit(shape, kv_bytes, context_tokens)
    if limit is not None:
        w.line("batch 无穷大", arithmetic_intensity(per_token, held), "FLOP/B")
    read = weights_read(shape, batch)
    step = w.line("一步读的字节", quantity(read, "params", 12) * width + quantity(batch) * held, "GB", 5)
    now = w.line("现在的算术强度", arithmetic_intensity(quantity(batch) * per_token, step), "FLOP/B")
    reachable = limit is None or limit > level.value
    needed = _batch_to_ridge(shape, weight_bytes, kv_bytes, context_tokens, level.value) if reachable else None
    return Result(
        values={
            "critical_batch": b_star, "ridge_flop_per_byte": level, "ai_limit": limit, "reachable": reachable, "ai_at_batch": now,
            "weight_read_ms": once, "batch_to_ridge": needed,
        },
        lines=w.lines,
        verdict=_verdict(shape, b_star, level, limit, context_tokens, needed, now, batch),
        resolved={name: value for name, value, given in (("peak_tflops", peak_t, peak_tflops), ("bandwidth_gb_s", bandwidth_g, bandwidth_gb_s)) if given is None},
        notes=_notes(shape),
    )  # fmt: skip


def _peak(gpu: Accelerator, precision: str) -> float:
    """Dense peak of that precision; BF16 falls back on FP16.  Raises Refusal when the card has none."""
    peak = gpu.dense_tflops if precision == "bf16" else gpu.tflops.get(precision)
    if peak is None:
        able = "、".join(p.upper() for p in ("bf16", "fp8", "int8", "fp4") if p == "bf16" or p in gpu.tflops)
        raise refuse("math_precision", "用什么精度算，要这张卡会", f"{gpu.name} 没有 {precision.upper()} 张量核", f"可取 {able}，或手填稠密峰值")
    return peak


def _batch_to_ridge(shape: Shape, weight_bytes: float, kv_bytes: float, context: int, level: float) -> int | None:
    """Smallest whole batch whose intensity reaches the ridge: intensity only grows with the batch."""
    high = 1
    while batch_intensity(shape, weight_bytes, kv_bytes, high, context) < level:
        high *= 2
        if high > FARTHEST:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        if batch_intensity(shape, weight_bytes, kv_bytes, middle, context) < level:
            low = middle
        else:
            high = middle
    return high


def _verdict(shape: Shape, b_star: Quantity, level: Quantity, limit: float | None, context: int, needed: int | None, now: Quantity, batch: int) -> str:
    star = format_number(b_star.value)
    head = f"只看权重，batch 到 {star} 就转成算力瓶颈。" if shape.moe is None else f"稠密模型的临界 batch 是 {star}，MoE 要更大。"
    if needed is None:
        top = format_number(limit if limit is not None else level.value)
        return head + f"带上 {context} token 的 KV，batch 再大强度也只到 {top}，够不着拐点 {level.text}：decode 一直卡在带宽，先压 KV（第 16 章）。"
    if batch >= needed:
        return head + f"带上 {context} token 的 KV 是 {needed}，现在 {batch} 已经过了（强度 {now.text}）：再加 batch 只添延迟。"
    return head + f"带上 {context} token 的 KV 要 {needed}；现在 {batch}，强度 {now.text}，还在带宽那边。"


def _notes(shape: Shape) -> tuple[str, ...]:
    if shape.moe is None:
        return ()
    return (
        f"MoE：每个 token 只用 {shape.moe.experts} 个专家里的 {shape.moe.top_k} 个，batch 一大却几乎全要读：「这个上下文下要的 batch」比临界 batch 大得多。",
    )
