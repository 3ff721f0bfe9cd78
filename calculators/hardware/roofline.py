"""How fast can an operation be on a card, and which wall stops it: arithmetic or bandwidth?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from calculators.catalog import Accelerator, accelerators, gpu_input
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Series
from calculators.core.errors import Refusal
from calculators.core.inputs import choice, integer, linear_stops, log_stops, number, powers_of_two
from calculators.core.units import GB, TB
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.attention import attention_flops, fused_elements, unfused_elements
from calculators.formulas.roofline import arithmetic_intensity, attainable, crossover_rows, dense_peak_tflops, gemm_elements, gemm_flops, reaches_ridge
from calculators.formulas.roofline import ridge as ridge_point

MATRIX_OPS = ("gemm", "attention-unfused", "attention-flash", "elementwise")
ROOFS = ("a100-80gb", "h100-sxm", "h200", "b200", "h20")
"""Cards drawn for comparison."""


@dataclass(frozen=True)
class Shape:
    """The sizes that an operation may use, as printed quantities, and the typed counts of ``custom``."""

    m: Quantity
    n: Quantity
    k: Quantity
    head_dim: Quantity
    elem: Quantity
    flops: Quantity
    bytes: Quantity


@dataclass(frozen=True)
class Op:
    """FLOPs and bytes of an operation, and what helps when bandwidth is its wall."""

    flops: Callable[[Shape], Quantity]
    bytes: Callable[[Shape], Quantity]
    remedy: str


TWO = quantity(2, "FLOP")
OPS: dict[str, Op] = {
    "gemm": Op(lambda s: gemm_flops(s.m, s.n, s.k, TWO), lambda s: s.elem * gemm_elements(s.m, s.n, s.k), "把更多行凑成一批，让同一份权重多算几次"),
    "attention-unfused": Op(
        lambda s: attention_flops(s.m, s.n, s.head_dim, TWO),
        lambda s: s.elem * unfused_elements(s.m, s.n, s.head_dim),
        "别把 m×n 的分数矩阵写回显存：换 FlashAttention（第 08 章）",
    ),
    "attention-flash": Op(
        lambda s: attention_flops(s.m, s.n, s.head_dim, TWO),
        lambda s: s.elem * fused_elements(s.m, s.n, s.head_dim),
        "query 或 key 太少，搬来的数只用几次：让多个头、多条请求共用同一份 K、V",
    ),
    "elementwise": Op(
        lambda s: quantity(1, "FLOP") * s.m * s.n, lambda s: quantity(3) * s.elem * s.m * s.n, "和前后的算子融合，省掉中间的一写一读（第 07 章）"
    ),
    "custom": Op(lambda s: s.flops, lambda s: s.bytes, "减少字节：融合、低精度、重用"),
}


def _chart(run: Run, *, gpu: Accelerator, elem_bytes: float, **_: object) -> tuple[Chart, ...]:
    ai, ridge, top = (float(run.values[name]) for name in ("ai", "ridge", "attainable_tflops"))  # type: ignore[arg-type]
    if not 1e-9 < ai < 1e12:
        return ()  # no axis shows both this and a card
    low, high = min(0.1, ai / 3), max(1e4, ai * 3)
    own_peak, own_bandwidth = _own_roof(run)
    roofs = [Series("你的设定" if _typed(run) else _short(gpu), _roof(own_peak, own_bandwidth, low, high), emphasis=True)]
    for id in ROOFS:
        card = accelerators()[id]
        if card is gpu and not _typed(run):
            continue
        try:
            peak = dense_peak_tflops(card, elem_bytes)
        except Refusal:
            continue  # a card without that precision has no roof
        roofs.append(Series(_short(card), _roof(peak, card.bandwidth_gb_s, low, high), dashed=True))
    side = "平顶上：算力是墙" if run.values["compute_bound"] else "斜坡上：带宽是墙"
    return (
        LineChart(
            "屋顶线",
            f"横轴是每字节做多少次运算，纵轴是最多能跑多快，两轴都是对数。点在{side}。拐点在 {ridge:.4g}，往右才用得满算力。",
            Axis("算术强度", "FLOP/B", log=True),
            Axis("上限", "TFLOPS", log=True),
            tuple(roofs),
            marks=(Mark("这个算子", ai, top, emphasis=True),),
        ),
    )


def _short(card: Accelerator) -> str:
    return card.name.removeprefix("NVIDIA ")


def _typed(run: Run) -> bool:
    return run.inputs["peak_tflops"] is not None or run.inputs["bw_gbs"] is not None


def _own_roof(run: Run) -> tuple[float, float]:
    taken = {**run.resolved, **{name: v for name, v in run.inputs.items() if v is not None}}
    return float(taken["peak_tflops"]) * float(taken["peak_eff"]), float(taken["bw_gbs"]) * float(taken["bw_eff"])


def _roof(peak_tflops: float, bandwidth_gb_s: float, low: float, high: float) -> tuple[tuple[float, float], ...]:
    """Three corners suffice: both pieces are straight on logarithmic axes."""
    per_intensity = bandwidth_gb_s * GB / TB
    corner = peak_tflops / per_intensity
    return tuple((x, attainable(peak_tflops, x, per_intensity)) for x in sorted({low, min(max(corner, low), high), high}))


@calculator(
    title="屋顶线",
    question="这个算子在这张卡上最快能跑多少？先撞哪堵墙：算力还是带宽？",
    chapter="04",
    inputs=(
        gpu_input(),
        choice(
            "op", "算子", "gemm", tuple(OPS),
            labels={"gemm": "矩阵乘 (m×k)(k×n)", "attention-unfused": "attention（不融合，一个头）", "attention-flash": "attention（FlashAttention，一个头）",
                    "elementwise": "逐元素（两读一写）", "custom": "自己填 FLOP 和字节"},
        ),
        integer("m", "m（行；attention 里是 query 数）", 4096, low=1, high=1_000_000, stops=powers_of_two(1, 65536), only_if=("op", MATRIX_OPS)),
        integer("n", "n（列；attention 里是 key 数）", 4096, low=1, high=1_000_000, stops=powers_of_two(1, 65536), only_if=("op", MATRIX_OPS)),
        integer("k", "k（内维）", 4096, low=1, high=1_000_000, stops=powers_of_two(1, 65536), only_if=("op", ("gemm",))),
        integer("head_dim", "每头维度", 128, low=1, high=1024, stops=powers_of_two(32, 256), more=True, only_if=("op", ("attention-unfused", "attention-flash"))),
        choice("elem_bytes", "每个数的字节", 2, (1, 2, 4), "B", more=True, help="1 用 FP8 峰值，2 用 BF16，4 按 TF32（BF16 的一半）"),
        number("flops", "FLOP", 1e12, "FLOP", low=0, low_open=True, more=True, stops=log_stops(1e6, 1e15, 3), only_if=("op", ("custom",))),
        number("bytes", "字节", 1e10, "B", low=0, low_open=True, kind="bytes", more=True, stops=log_stops(1e6, 1e12, 3), only_if=("op", ("custom",))),
        number("bw_eff", "带宽利用率", 1.0, low=0.1, high=1, kind="fraction", more=True, stops=linear_stops(0.1, 1, 0.05)),
        number("peak_eff", "算力利用率", 1.0, low=0.1, high=1, kind="fraction", more=True, stops=linear_stops(0.1, 1, 0.05)),
        number("peak_tflops", "峰值算力", None, "TFLOPS", low=1e-6, high=1e6, more=True, stops=log_stops(1, 10_000), help="留空用这张卡的稠密峰值；填了就是你自己的机器"),
        number("bw_gbs", "带宽", None, "GB/s", low=1e-3, high=1e6, more=True, stops=log_stops(10, 20_000), help="留空用这张卡的显存带宽"),
    ),
    outputs=(
        Output("gflop", "运算量", "GFLOP"),
        Output("traffic_mb", "搬运量", "MB"),
        Output("ai", "算术强度", "FLOP/B", main=True),
        Output("ridge", "拐点", "FLOP/B", main=True),
        Output("attainable_tflops", "上限", "TFLOPS", main=True),
        Output("share_of_peak_pct", "占峰值", "%"),
        Output("time_us", "最短时间", "µs", main=True),
        Output("compute_bound", "算力瓶颈"),
        Output("crossover_batch", "矩阵乘变成算力瓶颈的最小 m", "row"),
    ),
    chart=_chart,
    formula=("上限 = min(峰值, 算术强度 × 带宽)", "拐点 = 峰值 ÷ 带宽", "矩阵乘：2mnk FLOP，搬 b·(mk + kn + mn) 字节"),
    assumptions=("每个矩阵只进出显存一次（必需流量）", "attention 按一个头、不带因果掩码算，softmax 的运算不计"),
    leaves_out="不算缓存命中、tile 填不满和 kernel 启动；大矩阵实测一般是这条线的 60–85%。",
    sources=("Williams, Waterman, Patterson, CACM 2009", "Dao et al. 2022, Algorithm 0（不融合 attention 的读写次数）", "峰值与带宽：硬件目录（稠密）"),
)  # fmt: skip
def roofline(
    *, gpu: Accelerator, op: str, m: int, n: int, k: int, head_dim: int, elem_bytes: int, flops: float, bytes: float,
    bw_eff: float, peak_eff: float, peak_tflops: float | None, bw_gbs: float | None,
) -> Result:  # fmt: skip
    """min(peak, intensity × bandwidth); bytes counted once each, so measured kernels stay below it."""
    resolved: dict[str, float | int | bool | str] = {}
    if peak_tflops is None:
        peak_tflops = resolved["peak_tflops"] = dense_peak_tflops(gpu, elem_bytes)
    if bw_gbs is None:
        bw_gbs = resolved["bw_gbs"] = gpu.bandwidth_gb_s
    w = Worked()
    shape = Shape(quantity(m), quantity(n), quantity(k), quantity(head_dim), quantity(elem_bytes, "B"), quantity(flops, "FLOP"), quantity(bytes, "B"))
    work = w.line("运算量", OPS[op].flops(shape), "GFLOP")
    traffic = w.line("搬运量", OPS[op].bytes(shape), "MB")
    peak = quantity(peak_tflops, "TFLOPS") if peak_eff == 1 else w.line("可用算力", quantity(peak_tflops, "TFLOPS") * quantity(peak_eff), "TFLOPS")
    bandwidth = quantity(bw_gbs, "GB/s") if bw_eff == 1 else w.line("可用带宽", quantity(bw_gbs, "GB/s") * quantity(bw_eff), "GB/s")
    ai = w.line("算术强度", arithmetic_intensity(work, traffic), "FLOP/B")
    ridge = w.line("拐点", ridge_point(peak, bandwidth), "FLOP/B")
    top = w.line("上限", attainable(peak, ai, bandwidth), "TFLOPS")
    seconds = w.line("最短时间", work / top, "µs")
    share = w.line("占可用算力", top / peak, "%")
    crossover = _crossover(w, ridge, elem_bytes, n, k) if op == "gemm" else None
    compute_bound = ai.value >= ridge.value
    return Result(
        values={
            "gflop": work, "traffic_mb": traffic, "ai": ai, "ridge": ridge, "attainable_tflops": top, "share_of_peak_pct": share,
            "time_us": seconds, "compute_bound": compute_bound, "crossover_batch": crossover,
        },
        lines=w.lines,
        verdict=_compute_verdict(ai, ridge, seconds) if compute_bound else _bandwidth_verdict(op, ai, ridge, share, crossover),
        resolved=resolved,
    )  # fmt: skip


def _crossover(w: Worked, ridge: Quantity, elem_bytes: int, n: int, k: int) -> int | None:
    half = quantity(ridge.value)
    if elem_bytes != 2:
        half = w.line("拐点折成 2 字节", half * quantity(elem_bytes) / quantity(2))
    if not reaches_ridge(half.value, n, k):
        w.say("变成算力瓶颈的 m → 没有：n、k 太小，m 再大也到不了拐点")
        return None
    return round(w.line("变成算力瓶颈的 m", crossover_rows(half, quantity(n), quantity(k)), "row").value)


def _compute_verdict(ai: Quantity, ridge: Quantity, seconds: Quantity) -> str:
    return f"算力瓶颈：算术强度 {ai.text}，过了拐点 {ridge.text}，最快 {seconds.text}。想更快，只能换更高的峰值或更低的精度，加带宽没用。"


def _bandwidth_verdict(op: str, ai: Quantity, ridge: Quantity, share: Quantity, crossover: int | None) -> str:
    batch = f"m 到 {crossover} 行才会转成算力瓶颈。" if crossover is not None else ""
    remedy = "n、k 太小，凑再多行也到不了拐点，只能和前后的算子融合" if op == "gemm" and crossover is None else OPS[op].remedy
    return f"带宽瓶颈：算术强度只有 {ai.text}，拐点是 {ridge.text}，最多用上算力的 {share.text}。换算力更强的卡没用；{remedy}。{batch}"
