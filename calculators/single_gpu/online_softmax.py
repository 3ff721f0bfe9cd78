"""A live experiment: softmax of one row taken block by block gives exactly what softmax in one go gives, until you break it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from calculators.core.calculator import Output, Result, Row, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Rule, Series
from calculators.core.errors import refuse
from calculators.core.inputs import choice, flag, integer, linear_stops, number, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.worked import Worked

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

FP16_LARGEST = 65_504.0
FP16_LARGEST_SCORE = 11.0899
"""ln 65504: e^s of a larger score is no FP16 number."""
EXACT = 1e-12
"""Beyond this a difference is no rounding any more."""
MOST_POINTS, MOST_STEPS = 180, 12
MOST_BLOCKS = 8192
"""A Python loop takes one turn a block: more of them keep a browser busy for seconds."""
ORDERS = {"given": "原来的顺序", "rising": "从小到大（最坏）", "falling": "从大到小（最好）"}
NO_MAX, WITH_MAX = ("subtract_max", ("false",)), ("subtract_max", ("true",))


@dataclass(frozen=True)
class Step:
    """The state after a block: its own largest score, the running maximum, what the old sum was multiplied by, the new sum."""

    block_max: float
    m: float
    factor: float
    total: float


@dataclass(frozen=True)
class Trace:
    """What the charts draw: the steps of the recurrence, or the plain sums of e^s."""

    steps: tuple[Step, ...] = ()
    block_max: tuple[float, ...] = ()
    plain_sums: tuple[float, ...] = ()


def absorb(
    m: Floats, total: Floats, out: Floats, scores: Floats, values: Floats, rescale: bool = True, threshold: float = 0.0
) -> tuple[Floats, Floats, Floats, Floats]:
    """Take one block into the running maximum, sum and output of some rows: m' = max(m, max s), the old account times e^(m−m').

    ``scores``: rows × keys, ``values``: keys × d.  Returns m', ℓ', o' and the factor.  Milakov & Gimelshein 2018, Algorithm 3.
    """
    import numpy as np

    block_max = scores.max(axis=1)
    new_m = np.where(block_max > m + threshold, np.maximum(m, block_max), m)
    factor = np.exp(m - new_m) if rescale else np.ones_like(m)
    weights = np.exp(scores - new_m[:, None])
    return new_m, total * factor + weights.sum(axis=1), out * factor[:, None] + weights @ values, factor


def _chart(run: Run, *, subtract_max: bool, rescale: bool, **_: object) -> tuple[Chart, ...]:
    trace = run.result.trace
    assert isinstance(trace, Trace)
    axis = Axis("第几块", low=1, high=float(max(2, len(trace.block_max))))
    peaks = Series("每块自己的最大值", _thin(trace.block_max), dashed=True)
    if not subtract_max:
        return (
            LineChart(
                "分数有多大", "超过横线的分数，e 的多少次方在 FP16 里就装不下。", axis, Axis("分数"),
                (peaks,), rules=(Rule("FP16 的 exp 到这里为止：11.09", y=FP16_LARGEST_SCORE),),
            ),
            LineChart(
                "不减最大值，Σeˢ 涨到哪", "纵轴是对数。过了横线，FP16 里的和就是无穷大。", axis, Axis("Σeˢ", log=True),
                (Series("到这一块为止的 Σeˢ", _thin(trace.plain_sums), emphasis=True),), rules=(Rule("FP16 的上限 65,504", y=FP16_LARGEST),),
            ),
        )  # fmt: skip
    rises = tuple(i + 1 for i, step in enumerate(trace.steps) if _rose(trace.steps, i))
    where = "、".join(str(i) for i in rises[:8]) + ("……" if len(rises) > 8 else "")
    return (
        LineChart(
            "最大值 m，一块一块地抬", f"虚线是每块自己的最大值；m 只在见到更大的那几块抬高：第 {where} 块。", axis, Axis("m"),
            (peaks, Series("到这一块为止的 m", _thin(tuple(s.m for s in trace.steps)), emphasis=True)),
        ),
        _sums(trace.steps, axis, rescale),
    )  # fmt: skip


def _sums(steps: tuple[Step, ...], axis: Axis, rescale: bool) -> LineChart:
    """The sum block by block; without the discount, the sum that it should have been beside it."""
    title, ours = "分母 ℓ，一边累加一边打折", Series("ℓ", _thin(tuple(s.total for s in steps)), emphasis=True)
    if rescale:
        return LineChart(title, "m 一抬，旧的 ℓ 先乘 e^(m−m′)，曲线就往下掉一截；别的块只往上加。", axis, Axis("ℓ"), (ours,))
    right, sums = 0.0, []
    for i, step in enumerate(steps):
        before = steps[i - 1] if i else step
        right = right * math.exp(before.m - step.m) + step.total - (before.total if i else 0.0)
        sums.append(right)
    missed = "虚线是该有的 ℓ：m 一抬就掉一截。实线忘了打折，从第一次抬高起就再也没对过。"
    return LineChart(title, missed, axis, Axis("ℓ"), (Series("没打折的 ℓ", ours.points, emphasis=True), Series("该有的 ℓ", _thin(tuple(sums)), dashed=True)))


def _thin(values: tuple[float, ...]) -> tuple[tuple[float, float], ...]:
    """(block, value), at most ``MOST_POINTS`` of them, the last always among them."""
    stride = -(-len(values) // MOST_POINTS)
    shown = sorted({*range(0, len(values), stride), len(values) - 1})
    return tuple((float(i + 1), values[i]) for i in shown)


@calculator(
    title="分块算 softmax，一步一步",
    question="一行分数切成块，看不到后面的块，softmax 怎么还能一个数都不差？",
    chapter="08",
    inputs=(
        integer("n", "一行有几个分数", 4096, low=2, high=65_536, stops=powers_of_two(64, 65_536)),
        integer("block", "每块几个", 128, low=1, high=65_536, stops=powers_of_two(16, 8192), help="最后一块可以不满"),
        number("score_std", "分数有多散（标准差）", 4, low=0.1, high=50, stops=(0.1, 0.5, 1, 2, 3, 4, 6, 10, 20, 50), help="越大，越容易溢出"),
        flag("subtract_max", "减去最大值", True, help="去掉勾：直接在 FP16 里算 eˢ"),
        flag("rescale", "m 抬了，给旧账打折", True, help="去掉勾：忘了乘 e^(m−m′)", only_if=WITH_MAX),
        choice("order", "块的顺序", "given", tuple(ORDERS), labels=ORDERS, only_if=WITH_MAX),
        number("threshold", "m 抬多少才打折", 0, low=0, high=10, more=True, stops=linear_stops(0, 10, 1), help="FA4 的条件缩放：抬得不多就先不动", only_if=WITH_MAX),
        integer("d", "每头维度 d", 64, low=1, high=256, more=True, stops=powers_of_two(16, 256)),
        integer("seed", "随机种子", 0, low=0, high=999, more=True),
    ),
    outputs=(
        Output("max_abs_diff", "和一次算完的最大差", main=True, agreement="band", bound=1e-14),
        Output("max_updates", "m 抬了几次", main=True),
        Output("blocks", "一共几块", main=True),
        Output("final_max", "最后的 m", agreement="band"),
        Output("final_sum", "最后的 ℓ", agreement="band"),
        Output("overflow_count", "装不下的 eˢ", main=True),
        Output("is_nan", "结果成了非数（NaN）", main=True),
        Output(
            "steps", "m 抬高的那几步", agreement="band",
            columns=(("block", "第几块", ""), ("block_max", "这块的最大值", ""), ("m", "m′", ""), ("factor", "旧账乘", ""), ("total", "ℓ′", "")),
        ),
    ),
    chart=_chart,
    needs=("numpy",),
    formula=(
        "m′ = max(m, 这块的最大值)",
        "ℓ′ = ℓ × e^(m−m′) + Σ e^(s−m′)",
        "o′ = o × e^(m−m′) + Σ e^(s−m′) × V",
        "最后输出 o ÷ ℓ",
    ),
    assumptions=("分块与对照都用 float64；不减最大值时 eˢ、求和、除法、乘 V 全用 FP16", "分数和 V 是标准正态的随机数，分数再乘标准差"),
    leaves_out="真 kernel 用 FP32 累加、BF16 输入，差在 1e-3 上下：那是精度，不是分块。",
    sources=("Milakov & Gimelshein 2018, arXiv 1805.02867（online softmax）", "Dao et al. 2022（FlashAttention），算法 1", "numpy.random.default_rng(seed).standard_normal"),
)  # fmt: skip
def online_softmax(
    *, n: int, block: int, score_std: float, subtract_max: bool, rescale: bool, order: str, threshold: float, d: int, seed: int
) -> Result:  # fmt: skip
    """One row of scores against V: the recurrence over blocks beside softmax in one go."""
    import numpy as np

    _check(n, block)
    rng = np.random.default_rng(seed)
    scores, values = rng.standard_normal(n) * score_std, rng.standard_normal((n, d))
    weights = np.exp(scores - scores.max())
    exact = weights @ values / weights.sum()
    starts = range(0, n, block)
    peaks: list[float] = np.maximum.reduceat(scores, starts).tolist()
    if not subtract_max:
        return _without_max(scores, values, exact, starts, peaks)
    turns = list(zip(peaks, starts, strict=True))
    if order != "given":
        turns.sort(reverse=order == "falling")
    m, total, out = np.full(1, -np.inf), np.zeros(1), np.zeros((1, d))
    steps = []
    for peak, start in turns:
        cut = slice(start, start + block)
        m, total, out, factor = absorb(m, total, out, scores[None, cut], values[cut], rescale, threshold)
        steps.append(Step(peak, float(m[0]), float(factor[0]), float(total[0])))
    error = float(abs(out[0] / total[0] - exact).max())
    rises = [i for i in range(len(steps)) if _rose(steps, i)]
    return Result(
        values={
            "max_abs_diff": error, "max_updates": len(rises), "blocks": len(steps), "final_max": steps[-1].m, "final_sum": steps[-1].total,
            "overflow_count": 0, "is_nan": False, "steps": [_row(i, steps[i]) for i in rises[:MOST_STEPS]],
        },
        lines=_lines(steps, rises, n, block, error),
        verdict=_verdict(error, len(rises), len(steps), rescale),
        notes=(f"表里只列前 {MOST_STEPS} 步。",) if len(rises) > MOST_STEPS else (),
        trace=Trace(steps=tuple(steps), block_max=tuple(s.block_max for s in steps)),
    )  # fmt: skip


def _check(n: int, block: int) -> None:
    if block > n:
        raise refuse("block", "每块几个不能超过一行的分数", f"{block} > {n}", f"可取 1 到 {n}")
    if n > MOST_BLOCKS * block:
        least = -(-n // MOST_BLOCKS)
        raise refuse("block", f"块数不能超过 {MOST_BLOCKS}，再多浏览器要算好几秒", f"{n} ÷ {block} = {-(-n // block)} 块", f"每块取 {least} 以上")


def _rose(steps: list[Step] | tuple[Step, ...], i: int) -> bool:
    return i == 0 or steps[i].m > steps[i - 1].m


def _row(i: int, step: Step) -> Row:
    return {"block": i + 1, "block_max": step.block_max, "m": step.m, "factor": step.factor if i else None, "total": step.total}


def _lines(steps: list[Step], rises: list[int], n: int, block: int, error: float) -> tuple[str, ...]:
    w = Worked()
    w.say(f"{n} 个分数，{block} 个一块 → {len(steps)} 块")
    for i in rises[:4]:
        step = steps[i]
        old = f"旧账 × {format_number(step.factor)}，" if i else ""
        w.say(f"第 {i + 1} 块：m → {format_number(step.m)}，{old}ℓ → {format_number(step.total)}")
    if len(rises) > 4:
        w.say(f"后面还有 {len(rises) - 4} 次抬高 → 见表")
    w.say(f"看完最后一块：ℓ → {format_number(steps[-1].total)}")
    w.say(f"o ÷ ℓ 与一次算完相比，最大差 → {'< 1e-14' if error < 1e-14 else format_number(error)}")
    return w.lines


def _verdict(error: float, rises: int, blocks: int, rescale: bool) -> str:
    if rescale:
        return f"{blocks} 块逐块算，和一次算完只差浮点的末位：这不是近似。m 抬了 {rises} 次（含第一块），旧账打了 {rises - 1} 次折；别的块只做加法。"
    if error < EXACT:
        return "忘了打折，这次没露馅：m 在第一块就到了顶，没有旧账要打折。把块改小，或把次序换成从小到大，再看。"
    return f"忘了打折，差到 {format_number(error, digits=3)}，不报错也不溢出，只是错：旧块还按旧的最大值记账，比新块重了 e^(m′−m) 倍。"


def _without_max(scores: Floats, values: Floats, exact: Floats, starts: range, peaks: list[float]) -> Result:
    """softmax(s)·V in FP16 with nothing subtracted: overflow makes ∞ ÷ ∞, which is no number, or a sum of ∞, which makes zeros."""
    import numpy as np

    with np.errstate(over="ignore", invalid="ignore"):
        weights = np.exp(scores.astype(np.float16))
        total = weights.sum()
        out = (weights / total) @ values.astype(np.float16)
    overflows, is_nan, sum_fits = int(np.isinf(weights).sum()), bool(np.isnan(out).any()), bool(np.isfinite(total))
    error = None if is_nan else float(abs(out.astype(np.float64) - exact).max())
    sums = np.cumsum(np.add.reduceat(np.exp(scores), starts))
    largest = format_number(float(scores.max()))
    w = Worked()
    w.say(f"最大的分数 → {largest}（FP16 的 exp 到 11.09 为止）")
    w.say(f"装不下的 eˢ → {overflows} 个")
    w.say(f"Σeˢ → {format_number(float(sums[-1]))}（FP16 最大 65,504）")
    return Result(
        values={
            "max_abs_diff": error, "max_updates": None, "blocks": len(peaks), "final_max": None, "final_sum": float(total) if sum_fits else None,
            "overflow_count": overflows, "is_nan": is_nan, "steps": [],
        },
        lines=w.lines,
        verdict=_broken(overflows, is_nan, sum_fits, largest, error),
        trace=Trace(block_max=tuple(peaks), plain_sums=tuple(float(x) for x in sums)),
    )  # fmt: skip


def _broken(overflows: int, is_nan: bool, sum_fits: bool, largest: str, error: float | None) -> str:
    if is_nan:
        return f"坏了：{overflows} 个 eˢ 在 FP16 里成了无穷大，Σ 也是无穷大，两个无穷大相除得非数，整个输出报废。减去最大值，最大的指数就是 0。"
    if not sum_fits:
        return "没有一个 eˢ 溢出，可是加起来溢出了：分母是无穷大，输出全成了 0。不报错，比非数更难查。"
    return f"这次没溢出（最大的分数才 {largest}），但只剩 FP16 的精度，差 {format_number(error or 0.0, digits=3)}。把标准差调大，看它怎么坏。"
