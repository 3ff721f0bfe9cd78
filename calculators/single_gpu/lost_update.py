"""A live experiment: add a small update a thousand times; does the weight move?"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from calculators.core.calculator import Output, Result, Row, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Series
from calculators.core.errors import Refusal, refuse
from calculators.core.inputs import choice, integer, log_stops, number
from calculators.core.numbers import format_number
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.number_formats import FORMATS, FloatFormat

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SR = "bf16-SR"
NAMES = {"bf16": "BF16", "fp16": "FP16", "fp32": "FP32", SR: "BF16 随机舍入"}
SR_WEIGHTS = 1000
"""Weights that are rounded stochastically side by side: one alone says nothing about the mean."""
SAMPLES = 60
UPPER_HALF = 0xFFFF0000
"""The 16 bits of an FP32 number that BF16 keeps."""


@dataclass(frozen=True)
class Walk:
    """(step, mean weight) at sampled steps, the spread at the end, and how many steps moved before the weight stood still."""

    points: tuple[tuple[float, float], ...]
    std: float
    stalled_at: int | None

    @property
    def start(self) -> float:
        return self.points[0][1]

    @property
    def end(self) -> float:
        return self.points[-1][1]


def _format(fmt: str) -> FloatFormat:
    return FORMATS["bf16" if fmt == SR else fmt]


def _to_nearest(total: NDArray[np.float32]) -> NDArray[np.float32]:
    """BF16 by round to nearest even: keep the upper 16 bits."""
    import numpy as np

    bits = total.view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + odd) & np.uint32(UPPER_HALF)).view(np.float32)


def _stochastic(total: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    """BF16 by stochastic rounding: add 16 random bits, then cut; the nearer neighbour is the likelier one."""
    import numpy as np

    noise = rng.integers(0, 65536, total.size).astype(np.uint32)
    return ((total.view(np.uint32) + noise) & np.uint32(UPPER_HALF)).view(np.float32)


def walk(fmt: str, w0: float, update: float, steps: int, seed: int) -> Walk:
    """w ← round(w + update), ``steps`` times; stops early once rounding gives the same weight again."""
    import numpy as np

    dtype = "float16" if fmt == "fp16" else "float32"
    rng = np.random.default_rng(seed)
    rounding: dict[str, Callable[[NDArray[np.float32]], NDArray[np.float32]]] = {"bf16": _to_nearest, SR: lambda total: _stochastic(total, rng)}
    stored = rounding.get(fmt)  # FP16 and FP32: numpy's own addition rounds
    sampled = {round(steps * i / SAMPLES) for i in range(1, SAMPLES + 1)}
    w, u = np.full(SR_WEIGHTS if fmt == SR else 1, _format(fmt).nearest(w0), dtype), np.asarray(update, dtype)
    points, stalled_at = [(0.0, _mean(w))], None
    for k in range(1, steps + 1):
        moved = stored(w + u) if stored else w + u
        if fmt != SR and moved[0] == w[0]:
            stalled_at = k - 1
            points += [(float(k - 1), _mean(w)), (float(steps), _mean(w))]
            break
        w = moved
        if k in sampled:
            points.append((float(k), _mean(w)))
    return Walk(tuple(points), float(w.std(dtype=np.float64)) if math.isfinite(points[-1][1]) else 0.0, stalled_at)


def _mean(w: NDArray[np.floating]) -> float:
    return float(w.mean(dtype="float64"))


def _chart(run: Run, *, fmt: str, **_: object) -> tuple[Chart, ...]:
    walks = run.result.trace
    assert isinstance(walks, dict)
    curves = tuple(Series(NAMES[f], w.points, emphasis=f == fmt) for f, w in walks.items() if all(math.isfinite(y) for _, y in w.points))
    return (
        LineChart(
            "权重走了多远",
            "同样的更新，加同样多次。走平的那条线，是每加一次都被舍掉；斜率和 FP32 一样的，才是把更新记住了。",
            Axis("加了多少次"),
            Axis("权重 w"),
            curves,
        ),
    )


@calculator(
    title="更新被吞",
    question="往权重上一次次加很小的更新，它动了没有？",
    chapter="06",
    inputs=(
        choice("fmt", "权重存成", "bf16", ("bf16", "fp16", "fp32", SR), labels=NAMES),
        number("update", "每步的更新", 1e-3, stops=(1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 4e-3, 1e-2, 3e-2, 0.1, 1), help="学习率 × 归一化后的梯度；Adam 的一步大约就是学习率"),
        number("w0", "权重的初值", 1.0, stops=(0, 0.01, 0.1, 0.5, 1, 2, 10, 100)),
        integer("steps", "加多少次", 1000, low=1, high=20_000, stops=log_stops(10, 10_000, 3)),
        integer("seed", "随机种子（随机舍入用）", 0, low=0, high=999, more=True),
    ),
    outputs=(
        Output("w_final", "最后的 w（随机舍入取平均）", main=True, agreement="band", digits=6),
        Output("lost_pct", "被吞掉的更新", "%", main=True, agreement="band"),
        Output("w_std", "各权重之间的标准差", agreement="band"),
        Output("stalled_at", "动到第几步为止", "step", main=True, agreement="band"),
        Output("min_update", "一次要加过多少才动得了（随机舍入没有门槛）", agreement="band"),
        Output("all_formats", "四种格式", agreement="band", columns=(("format", "格式", ""), ("w_final", "最后的 w", ""), ("lost_pct", "被吞", "%"))),
    ),
    chart=_chart,
    needs=("numpy",),
    formula=("每步 w ← 取整(w + 更新)", "被吞 = 1 − (最后的 w − 初值) ÷ (步数 × 更新)", "动得了的最小更新：w（停住时的，没停就是初值）旁边间距的一半"),
    assumptions=("BF16：和先用 FP32 算，再按最近取整（五成双）留前 16 位", f"随机舍入：{SR_WEIGHTS} 个权重一起走，给 FP32 的低 16 位加一个随机数再截断"),
    leaves_out="真实的更新有正有负、每步不同；一步够大的照样记得住。初值先存成那种格式，再开始加。",
    sources=("IEEE 754 的最近取整、五成双；numpy 的 float16 加法", "随机舍入用 numpy.random.default_rng(seed)"),
)  # fmt: skip
def lost_update(*, fmt: str, update: float, w0: float, steps: int, seed: int) -> Result:
    """w ← round(w + update) in four formats; what the chosen one kept of it."""
    import numpy as np

    f = _format(fmt)
    for name, label, value in (("w0", "权重的初值", w0), ("update", "每步的更新", update)):
        if math.isinf(f.nearest(value)):
            raise refuse(name, f"{label}超出了 {f.name} 的最大值 {format_number(f.largest, digits=5)}", format_number(value), "改小，或换一种格式")
    with np.errstate(over="ignore"):
        walks = {name: walk(name, w0, update, steps, seed) for name in NAMES if math.isfinite(_format(name).nearest(w0))}
    own = walks[fmt]
    if not math.isfinite(own.end):
        raise _overflow(f, own, steps)

    w = Worked()
    due = w.line("该走", quantity(steps) * quantity(update))
    w.say(f"从 {quantity(own.start).text} 起逐步加、逐步取整 → 最后 {quantity(own.end).text}")
    walked = w.line("实际走了", quantity(own.end) - quantity(own.start))
    lost = w.line("被吞", quantity(1) - walked / due, "%") if due.value else None
    here = own.start if own.stalled_at is None else own.end
    gap = w.line(f"{f.name} 在 {quantity(here).text} 旁边的间距", quantity(2) ** quantity(f.spacing_exponent(_toward(here, update))))
    least = None if fmt == SR else w.line("一次加不到半格就被舍掉，半格是", gap / quantity(2))
    return Result(
        values={
            "w_final": own.end, "lost_pct": lost, "w_std": own.std, "stalled_at": own.stalled_at, "min_update": least,
            "all_formats": [_row(name, walk_, steps * update) for name, walk_ in walks.items() if math.isfinite(walk_.end)],
        },
        lines=w.lines,
        verdict=_verdict(fmt, own, update, steps, gap, lost),
        trace=walks,
    )  # fmt: skip


def _toward(w: float, update: float) -> float:
    """Just beside ``w`` on the side of the update: below a power of two the spacing is half of that above."""
    return math.nextafter(w, math.copysign(math.inf, update))


def _row(name: str, taken: Walk, due: float) -> Row:
    return {"format": NAMES[name], "w_final": taken.end, "lost_pct": 100 * (1 - (taken.end - taken.start) / due) if due else None}


def _overflow(fmt: FloatFormat, taken: Walk, steps: int) -> Refusal:
    at = steps if taken.stalled_at is None else taken.stalled_at
    return refuse("steps", f"加多少次：{fmt.name} 加不到这么多次就超过最大值 {format_number(fmt.largest, digits=5)}", f"到第 {at} 次已溢出", "把次数或更新改小")


def _verdict(fmt: str, own: Walk, update: float, steps: int, gap: Quantity, lost: Quantity | None) -> str:
    end, aim = quantity(own.end).text, quantity(own.start + steps * update).text
    if lost is None:
        return "更新是 0，当然不动。填一个不是 0 的更新再试。"
    if fmt == SR:
        return f"每次按概率进一格或不进：平均走到 {end}，该到 {aim}。平均不偏，代价是权重之间多出 {quantity(own.std, '', 3).text} 的抖动。"
    if own.stalled_at == 0:
        return f"加了 {steps} 次 {quantity(update).text}，w 还是 {end}：这里两格相距 {gap.text}，加不到半格的全被舍掉。权重另存一份 FP32，或用随机舍入。"
    if own.stalled_at is not None:
        return f"动到第 {own.stalled_at} 步，停在 {end}，再也加不动：w 越大，格子越稀，更新不到半格了。该到 {aim}。累加要用 FP32。"
    return f"走到 {end}，该到 {aim}，{_LOST[lost.value > 0]} {quantity(abs(lost.value) * 100, '%', 3).text}：每一步都落在格子上，舍入的零头越积越多。"


_LOST = {True: "少走", False: "多走"}
