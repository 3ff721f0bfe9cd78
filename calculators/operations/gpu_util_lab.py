"""A live experiment: kernels and gaps on a time line; what GPU-Util counts and what the SMs really do."""

from __future__ import annotations

from dataclasses import dataclass

from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Bar, BarChart, Chart, Part, Rule, Span, Timeline
from calculators.core.inputs import integer, linear_stops, log_stops, number
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.busy import busy_share, sm_active

SHOWN = 12
"""Kernels on the drawn time line."""
GROUPS = 8
"""Lanes of the drawing; each stands for an eighth of the SMs."""
GOOD, BAD = 80, 50
"""SM-active in percent: NVIDIA's DCGM guide calls 0.8 necessary, below 0.5 ineffective."""


@dataclass(frozen=True)
class Film:
    """The first kernels and the gap after each, in µs."""

    kernels: tuple[float, ...]
    gaps: tuple[float, ...]


def _chart(run: Run, *, sm_share: float, **_: object) -> tuple[Chart, ...]:
    film = run.result.trace
    assert isinstance(film, Film)
    lit = max(1, round(sm_share * GROUPS))
    spans: list[Span] = []
    clock = 0.0
    for kernel, gap in zip(film.kernels, film.gaps, strict=True):
        spans.append(Span(0, clock, clock + kernel, "", 1))
        spans.extend(Span(lane, clock, clock + kernel, "", 0) for lane in range(1, lit + 1))
        clock += kernel + gap
    util, active = (float(run.values[name]) for name in ("gpu_util_pct", "sm_active_pct"))  # type: ignore[arg-type]
    return (
        Timeline(
            "GPU-Util 看见的，和 SM 在做的",
            f"前 {len(film.kernels)} 个 kernel。第一行只问「有没有 kernel 在跑」，下面一行是八分之一的 SM：空着的行从头空到尾，GPU-Util 一点不知道。",
            Axis("时间", "µs", low=0, high=clock or 1.0),
            ("GPU-Util", *(f"SM {k}/{GROUPS}" for k in range(1, GROUPS + 1))),
            tuple(spans),
            ("SM 里有活", "GPU-Util 记为忙"),
        ),
        BarChart(
            "同一段时间，两个读数",
            "两条线是 DCGM 手册对 SM 活跃的建议：80% 是有效使用的必要条件，50% 以下多半没用好。",
            Axis("读数", "%", low=0, high=100),
            (
                Bar("GPU-Util", (Part("读数", util),), run.texts["gpu_util_pct"]),
                Bar("SM 活跃", (Part("读数", active),), run.texts["sm_active_pct"], emphasis=True),
            ),
            (Rule(f"{BAD}", x=BAD), Rule(f"{GOOD}", x=GOOD)),
        ),
    )


@calculator(
    title="为什么 100% 是假的",
    question="kernel 一个接一个，nvidia-smi 显示接近满格；SM 到底忙了几成？",
    chapter="23",
    inputs=(
        number("kernel_us", "一个 kernel 平均", 50, "µs", low=0.1, high=1e5, stops=log_stops(0.1, 1e5, 4)),
        number("gap_us", "间隙平均", 2, "µs", low=0, high=1e5, stops=(0, *log_stops(0.1, 1e5, 4)), help="CPU 发得慢、等数据、等同步"),
        number("sm_share", "一个 kernel 占 SM 的几成", 0.25, low=0.01, high=1, kind="fraction", stops=(0.01, *linear_stops(0.05, 1, 0.05)), help="block 数少于 SM 数，剩下的 SM 就空着"),
        integer("n_kernels", "几个 kernel", 20_000, low=100, high=200_000, more=True, stops=log_stops(100, 200_000, 4)),
        integer("seed", "随机种子", 0, low=0, high=1_000_000, more=True, stops=linear_stops(0, 9, 1)),
    ),
    outputs=(
        Output("gpu_util_pct", "GPU-Util", "%", main=True, agreement="band", digits=3),
        Output("sm_active_pct", "SM 活跃", "%", main=True, agreement="band", digits=3),
        Output("expected_util_pct", "GPU-Util，公式", "%"),
        Output("expected_sm_pct", "SM 活跃，公式", "%"),
    ),
    chart=_chart,
    formula=("GPU-Util = kernel 时间之和 ÷ 总时间", "SM 活跃 = 占 SM 的份额 × GPU-Util"),
    assumptions=("kernel 和间隙的长短都按指数分布抽", "每个 kernel 占的 SM 一样多，从头占到尾"),
    leaves_out="不算并排的 stream、最后一波的尾巴、kernel 里面 Tensor Core 的空闲：PIPE_TENSOR_ACTIVE 只会更低。",
    sources=("NVIDIA DCGM 手册：DCGM_FI_DEV_GPU_UTIL、DCGM_FI_PROF_SM_ACTIVE 的定义",),
    needs=("numpy",),
)  # fmt: skip
def gpu_util_lab(*, kernel_us: float, gap_us: float, sm_share: float, n_kernels: int, seed: int) -> Result:
    """Draw kernel and gap lengths, add them up; the share of SMs multiplies."""
    import numpy as np

    rng = np.random.default_rng(seed)
    kernels, gaps = rng.exponential(kernel_us, n_kernels), rng.exponential(gap_us, n_kernels)
    w = Worked()
    w.say(f"{n_kernels} 个 kernel、{n_kernels} 段间隙，按指数分布抽，种子 {seed} → 各自加起来")
    in_kernels, in_gaps = quantity(float(kernels.sum()) / 1e3, "ms", 7), quantity(float(gaps.sum()) / 1e3, "ms", 7)
    share = quantity(sm_share)
    util = w.line("GPU-Util", busy_share(in_kernels, in_gaps), "%", 6)
    active = w.line("SM 活跃", sm_active(share, util), "%")
    expected = w.line("GPU-Util，公式", busy_share(quantity(kernel_us, "µs"), quantity(gap_us, "µs")), "%", 6)
    expected_sm = w.line("SM 活跃，公式", sm_active(share, expected), "%")
    return Result(
        values={"gpu_util_pct": util, "sm_active_pct": active, "expected_util_pct": expected, "expected_sm_pct": expected_sm},
        lines=w.lines,
        verdict=_verdict(util, active, sm_share),
        trace=Film(tuple(kernels[:SHOWN].tolist()), tuple(gaps[:SHOWN].tolist())),
    )


def _verdict(util: Quantity, active: Quantity, sm_share: float) -> str:
    busy, doing = 100 * util.value, 100 * active.value
    head = f"GPU-Util {quantity(busy, '%', 3).text}，SM 活跃 {quantity(doing, '%', 3).text}。"
    if doing >= GOOD:
        return head + "两个数都高，才轮到看 Tensor Core 忙不忙。"
    if busy < GOOD <= 100 * sm_share:
        return head + "卡在等：间隙太长。查 CPU 发射、数据、同步。"
    if busy >= GOOD:
        return head + "满格是假的：kernel 一直有，只是每个都没铺满。加大 batch，或把小 kernel 融成大的。"
    return head + "又在等，又没铺满：先补间隙，再把 kernel 做大。"
