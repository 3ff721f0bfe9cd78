"""A live experiment: how many gradients vanish in a 16- or 8-bit format, and what does a loss scale rescue?"""

from __future__ import annotations

import math
from dataclasses import dataclass

from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Rule, Series
from calculators.core.inputs import choice, integer, linear_stops, number
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.number_formats import FORMATS, FloatFormat
from calculators.single_gpu._rounding import nearest

LARGEST_SCALE = 30
VIEW = (-60.0, 20.0)
"""Exponents that the histogram shows at least: the axis stays while the window moves."""
FAINT = 1e-4
"""Percent below which the sweep draws nothing."""
FEW_ZEROS, FEW_SUBNORMALS = 0.1, 20.0
"""Percent that the verdict lets pass: gradients lost, and gradients short of digits."""
HOPELESS = 1.0
"""Percent still lost at the largest scale without overflow: the format itself is too narrow."""


@dataclass(frozen=True)
class Trace:
    """The histogram: lowest exponent and the count of every whole exponent from there."""

    first: int
    counts: tuple[int, ...]


def zero_exponent(fmt: FloatFormat) -> int:
    """Half the smallest subnormal, as a power of two: at or below it everything rounds to zero."""
    return fmt.min_exponent - fmt.man_bits - 1


def share_below(exponent: float, mean: float, std: float) -> float:
    """P(log2|g| ≤ exponent) for a normal exponent."""
    if std == 0:
        return 1.0 if mean <= exponent else 0.0
    return 0.5 * math.erfc((mean - exponent) / std / math.sqrt(2))


def share_above(exponent: float, mean: float, std: float) -> float:
    """P(log2|g| ≥ exponent)."""
    if std == 0:
        return 1.0 if mean >= exponent else 0.0
    return 0.5 * math.erfc((exponent - mean) / std / math.sqrt(2))


def _chart(run: Run, *, fmt: str, log2_mean: float, log2_std: float, log2_scale: int, **_: object) -> tuple[Chart, ...]:
    trace = run.result.trace
    assert isinstance(trace, Trace)
    return (_histogram(trace, FORMATS[fmt], log2_scale), _sweep(run, FORMATS[fmt], log2_mean, log2_std, log2_scale))


def _histogram(trace: Trace, fmt: FloatFormat, log2_scale: int) -> LineChart:
    zero, normal, over = zero_exponent(fmt) - log2_scale, fmt.min_exponent - log2_scale, fmt.max_exponent + 1 - log2_scale
    regions = (("归零", -math.inf, zero), ("次正规", zero, normal), ("正常", normal, over), ("溢出", over, math.inf))
    total = sum(trace.counts)
    series = []
    for name, low, high in regions:
        bins = [(trace.first + i, count / total * 100) for i, count in enumerate(trace.counts) if low <= trace.first + i < high]
        if any(share for _, share in bins):
            steps = [point for e, share in bins for point in ((float(e), share), (float(e + 1), share))]
            series.append(Series(name, ((steps[0][0], 0.0), *steps, (steps[-1][0], 0.0)), emphasis=name in ("归零", "溢出")))
    last = trace.first + len(trace.counts)
    ends = (min(VIEW[0], trace.first, zero), max(VIEW[1], last, over))
    return LineChart(
        f"梯度的指数，和 {fmt.name} 的窗口",
        "横轴是放大之前的梯度，每格差 2 倍。竖线是窗口的边：最左边归零，最右边溢出。scale 每大 2 倍，窗口就往左挪一格。",
        Axis("梯度的指数 log₂|g|", "", low=ends[0], high=ends[1]),
        Axis("占全部梯度", "%"),
        tuple(series),
        rules=(Rule("归零线", x=zero), Rule("次正规线", x=normal), Rule("溢出线", x=over)),
    )


def _sweep(run: Run, fmt: FloatFormat, mean: float, std: float, log2_scale: int) -> LineChart:
    scales = range(LARGEST_SCALE + 1)
    zeros = tuple((float(s), 100 * share_below(zero_exponent(fmt), mean + s, std)) for s in scales)
    infs = tuple((float(s), 100 * share_above(fmt.max_exponent + 1, mean + s, std)) for s in scales)
    curves = tuple(
        Series(name, visible, emphasis=name == "归零")
        for name, points in (("归零", zeros), ("溢出", infs))
        if (visible := tuple(p for p in points if p[1] >= FAINT))
    )
    here = [float(v) for name in ("zero_pct", "inf_pct") if isinstance(v := run.values[name], int | float) and v >= FAINT]
    marks = tuple(Mark("现在" if i == 0 else "", float(log2_scale), y, emphasis=True) for i, y in enumerate(here))
    return LineChart(
        "scale 往大调，两头各丢多少",
        "曲线是理论值，点是这次数出来的，纵轴是对数。往右，归零的变少，溢出的变多。溢出一个，整步就白算。",
        Axis("log₂(loss scale)", "", low=0, high=LARGEST_SCALE),
        Axis("占全部梯度", "%", log=True, low=FAINT, high=100),
        curves,
        marks=marks,
    )


@calculator(
    title="FP16 下溢与 loss scaling",
    question="这批梯度存成 16 位，多少归零，多少溢出？scale 该调到几？",
    chapter="06",
    inputs=(
        integer("log2_scale", "loss scale（2 的几次方）", 0, low=0, high=LARGEST_SCALE, stops=linear_stops(0, LARGEST_SCALE, 1), help="0 就是不放大；GradScaler 从 16 起步"),
        choice("fmt", "梯度存成", "fp16", ("fp16", "bf16", "e5m2"), labels={"fp16": "FP16", "bf16": "BF16", "e5m2": "FP8 E5M2"}),
        number("log2_mean", "梯度指数的均值", -22, low=-40, high=0, stops=linear_stops(-40, 0, 1), help="−22：典型的梯度约 2.4×10⁻⁷"),
        number("log2_std", "梯度指数的标准差", 5, low=0, high=10, stops=linear_stops(0, 10, 0.5), help="越大，大小梯度差得越远"),
        integer("n", "多少个梯度", 200_000, low=1000, high=500_000, more=True, stops=(1000, 10_000, 50_000, 100_000, 200_000, 500_000)),
        integer("seed", "随机种子", 0, low=0, high=999, more=True),
    ),
    outputs=(
        Output("zero_pct", "归零", "%", main=True, agreement="band"),
        Output("subnormal_pct", "次正规", "%", main=True, agreement="band"),
        Output("inf_pct", "溢出成无穷大", "%", main=True, agreement="band"),
        Output("step_skipped", "这一步被跳过", main=True, agreement="band"),
        Output("zero_closed_form_pct", "归零，理论值", "%"),
        Output("inf_closed_form_pct", "溢出，理论值", "%"),
        Output("largest_safe_log2_scale", "一个都不溢出的最大 scale（2 的几次方）", agreement="band"),
        Output("zero_at_safe_pct", "放大到那里还归零（理论值）", "%", agreement="band"),
    ),
    chart=_chart,
    needs=("numpy",),
    formula=(
        "梯度 = ±2^e，e 取正态(均值, 标准差)；乘上 2^scale 再四舍六入五成双",
        "理论归零 = Φ((归零线 − scale − 均值) ÷ 标准差)，归零线是最小次正规数一半的指数",
        "理论溢出 = 1 − Φ((最大指数 + 1 − scale − 均值) ÷ 标准差)",
    ),
    assumptions=("梯度的大小按对数正态抽；真实的梯度各层不同，也没有这么整齐", "溢出成无穷大，不截断"),
    leaves_out="真实梯度不是对数正态，各层的均值能差几千倍：同一个 scale，有的层归零，有的层溢出。",
    sources=("Micikevicius et al. 2018（Mixed Precision Training）§3.2：小于 2⁻²⁴ 的归零", "numpy.random.default_rng(seed)：先 normal，再 random 定正负"),
)  # fmt: skip
def grad_underflow(*, log2_scale: int, fmt: str, log2_mean: float, log2_std: float, n: int, seed: int) -> Result:
    """Draw ±2^e, multiply by the scale, round to the format, count zeros, subnormals and infinities."""
    import numpy as np

    f = FORMATS[fmt]
    rng = np.random.default_rng(seed)
    exponents = rng.normal(log2_mean, log2_std, n)
    signs = np.where(rng.random(n) < 0.5, -1.0, 1.0)
    gradients = signs * np.exp2(exponents)
    size = np.abs(nearest(gradients * 2.0**log2_scale, f))
    zeros, infs = int((size == 0).sum()), int(np.isinf(size).sum())
    subnormals = int((size < f.min_normal).sum()) - zeros
    bins = np.floor(exponents).astype(int)
    first = int(bins.min())

    w = Worked()
    line = zero_exponent(f)
    above = w.line("典型的梯度在归零线之上几个 2 倍", quantity(-line) - quantity(-log2_mean) + quantity(log2_scale))
    if log2_std:
        w.line("折成几个标准差", above / quantity(log2_std))
    scaled_mean = log2_mean + log2_scale
    zero_theory, inf_theory = 100 * share_below(line, scaled_mean, log2_std), 100 * share_above(f.max_exponent + 1, scaled_mean, log2_std)
    w.say(f"正态分布落在归零线以下的份额 → {quantity(zero_theory, '%', 4).text}")
    w.say(
        f"照种子 {seed} 抽 {quantity(n).text} 个梯度，逐个取整 → 归零 {quantity(zeros).text} 个，次正规 {quantity(subnormals).text} 个，溢出 {quantity(infs).text} 个"
    )
    count = quantity(n)
    zero = w.line("归零", quantity(zeros) / count, "%")
    safe = _largest_safe_scale(float(np.abs(gradients).max()), f)
    left = 100 * share_below(line, log2_mean + safe, log2_std)
    fits_unscaled = 100 * share_below(line, log2_mean, log2_std) < FEW_ZEROS and 100 * share_below(f.min_exponent, log2_mean, log2_std) < FEW_SUBNORMALS
    return Result(
        values={
            "zero_pct": zero, "subnormal_pct": w.line("次正规", quantity(subnormals) / count, "%"), "inf_pct": w.line("溢出", quantity(infs) / count, "%"),
            "step_skipped": infs > 0, "zero_closed_form_pct": zero_theory, "inf_closed_form_pct": inf_theory,
            "largest_safe_log2_scale": safe, "zero_at_safe_pct": left,
        },
        lines=w.lines,
        verdict=_verdict(f, zero, infs, 100 * subnormals / n, log2_scale, safe, left, fits_unscaled),
        trace=Trace(first, tuple(np.bincount(bins - first).tolist())),
    )  # fmt: skip


def _largest_safe_scale(largest: float, fmt: FloatFormat) -> int:
    """The largest S for which 2^S times the largest gradient still rounds to a finite number."""
    first_lost = fmt.largest + fmt.spacing(fmt.largest) / 2
    scale = math.floor(math.log2(first_lost) - math.log2(largest))
    return scale if largest * 2.0**scale < first_lost else scale - 1


def _verdict(fmt: FloatFormat, zero: Quantity, infs: int, subnormal_pct: float, log2_scale: int, safe: int, left_pct: float, fits_unscaled: bool) -> str:
    if infs:
        head = f"有 {quantity(infs).text} 个梯度溢出成无穷大：这一步整个跳过，GradScaler 把 scale 减半再来。"
        head += f"这批梯度受得住的最大 scale 是 2 的 {quantity(safe).text} 次方"
        return head + ("。" if left_pct < HOPELESS else f"，可那时又有 {quantity(left_pct, '%', 3).text} 归零：{fmt.name} 的窗口太窄，换指数更宽的格式。")
    lost = f"{zero.text} 的梯度归零" if zero.value else "一个都没归零"
    short = f"{quantity(subnormal_pct, '%', 3).text} 有效位不全"
    if zero.value * 100 < FEW_ZEROS and subnormal_pct < FEW_SUBNORMALS:
        fits = f"{fmt.name} 的指数够宽，不用放大" if fits_unscaled or log2_scale == 0 else f"scale 取 2 的 {log2_scale} 次方合用"
        return f"{lost}，{short}，没有溢出：{fits}。"
    if safe <= log2_scale:
        return f"{lost}，{short}，而 scale 已经到头，再翻倍就有梯度溢出。{fmt.name} 的窗口装不下这批梯度，换指数更宽的格式。"
    if safe > LARGEST_SCALE:
        return f"{lost}，{short}：这些更新收不全。把 scale 往大调，离溢出还远。"
    return f"{lost}，{short}：这些更新收不全。scale 最大可以到 2 的 {safe} 次方，那时归零的只剩 {quantity(left_pct, '%', 2).text}。"
