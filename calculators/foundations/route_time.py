"""How long does a reading route take, and does the sum keep the promise?"""

from __future__ import annotations

from itertools import groupby

from calculators.catalog import chapters, routes
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Bar, BarChart, Chart, Part, Rule
from calculators.core.inputs import choice, flag, linear_stops, number
from calculators.core.units import HOUR, MINUTE
from calculators.core.worked import Worked, ceil, quantity, total

CALCULATOR_FACTOR = 1.2
"""Changing numbers in the calculators takes a fifth of the reading time on top."""
TOLERANCE_MIN = 15
_ROUTES = {route.title: route for route in routes().values()}


def _chart(run: Run, *, route: str, **_: object) -> tuple[Chart, ...]:
    chosen = _ROUTES[route]
    factor = float(run.values["total_min"]) / float(run.values["base_min"])  # type: ignore[arg-type]
    minutes = {id: chapters()[id].minutes for id in chosen.chapters}
    bars = (
        Bar("按标准速度读", tuple(Part(id, m) for id, m in minutes.items()), run.texts["base_min"]),
        Bar("按你的读法", tuple(Part(id, m * factor) for id, m in minutes.items()), run.texts["total_min"], emphasis=True),
    )
    limits = () if chosen.stated_min is None else (Rule(f"写明的 {chosen.stated}", x=chosen.stated_min),)
    return (BarChart(f"「{route}」的时间花在哪几章", "每一段是一章。竖线是这条路线写明的时间。", Axis("时间", "min"), bars, limits),)


@calculator(
    title="五种读法要多久",
    question="照你的速度，这条路线要读多久？写明的时间靠得住吗？",
    chapter="00",
    inputs=(
        choice("route", "读法", "要部署推理服务", tuple(_ROUTES)),
        number("pace", "时间倍数", 1.0, "×", low=0.5, high=3, stops=linear_stops(0.5, 3, 0.25), help="2 表示花两倍时间，速度减半"),
        flag("include_calculators", "边读边改计算器", True, help="多花两成时间"),
    ),
    outputs=(
        Output("n_chapters", "章数"),
        Output("base_min", "阅读时间", "min", main=True),
        Output("total_min", "你要花的时间", "min", main=True),
        Output("total_h", "你要花的时间", "h", main=True),
        Output("stated_min", "写明的时间", "min"),
        Output("gap_min", "阅读时间 − 写明的时间", "min"),
        Output("within_15_min", "相差不超过 15 分钟"),
    ),
    chart=_chart,
    formula=("阅读时间 = 各章分钟数之和", "你的时间 = 阅读时间 × 时间倍数 ×（边读边算再 × 1.2）"),
    leaves_out="不算第 24 章项目本身的时间，也不算附录：完整打牢要 2–3 周，多出来的都花在动手上。",
    sources=("各章开头写明的阅读分钟数",),
)
def route_time(*, route: str, pace: float, include_calculators: bool) -> Result:
    """Sum of the chapters' reading minutes, scaled by the reader's pace."""
    chosen = _ROUTES[route]
    w = Worked()
    parts = [
        w.line(part, total([quantity(chapters()[id].minutes, "min") for id in ids]), "min")
        for part, ids in groupby(chosen.chapters, key=lambda id: chapters()[id].part)
    ]
    base = w.line("阅读时间", total(parts), "min")
    scaled = base * quantity(pace, "×")
    mine = w.line("你的时间", scaled * quantity(CALCULATOR_FACTOR, "×") if include_calculators else scaled, "min")
    mine = w.line("换成小时", mine, "h")
    base_min = round(base.value / MINUTE)
    gap = None if chosen.stated_min is None else base_min - chosen.stated_min
    return Result(
        values={
            "n_chapters": len(chosen.chapters), "base_min": base_min, "total_min": mine.value / MINUTE, "total_h": mine,
            "stated_min": chosen.stated_min, "gap_min": gap, "within_15_min": None if gap is None else abs(gap) <= TOLERANCE_MIN,
        },
        lines=w.lines,
        verdict=f"{len(chosen.chapters)} 章，光读 {base_min} 分钟；照你的读法要 {mine.text}。" + _promise(chosen.stated, gap, mine.value),
    )  # fmt: skip


def _promise(stated: str, gap: int | None, mine_s: float) -> str:
    if gap is None:
        return f"写明的 {stated}连项目一起算：读只是零头。"
    kept = "对得上" if gap == 0 else f"只差 {abs(gap)} 分钟"
    evenings = ceil(mine_s / HOUR)
    return f"写明的 {stated}和阅读时间{kept}。" + (f"一晚读一小时，{evenings} 晚读完。" if evenings > 1 else "")
