"""How many spare machines keep a job of fixed size running while broken ones are away?"""

from __future__ import annotations

from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Rule, Series
from calculators.core.inputs import number
from calculators.core.numbers import format_number
from calculators.core.worked import Worked, quantity
from calculators.formulas.spares import poisson, spares_for

MEANS = (0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0)
MOST_POINTS = 150


def _chart(run: Run, *, confidence: float, **_: object) -> tuple[Chart, ...]:
    mean, kept = run.values["mean_in_repair"], run.values["spares"]
    assert isinstance(mean, float | int)
    assert isinstance(kept, int)
    last = max(10, round(1.5 * kept))
    every, points, reached = -(-(last + 1) // MOST_POINTS), [], 0.0
    for k in range(last + 1):
        reached += poisson(k, mean)
        if k % every == 0 or k == kept:
            points.append((float(k), 100 * min(1.0, reached)))
    means = sorted({*MEANS, mean} - {0.0}) if mean <= 2 * MEANS[-1] else [mean * f for f in (0.01, 0.03, 0.1, 0.2, 0.4, 0.7, 1.0)]
    needed = [(m, float(spares_for(m, confidence)[0])) for m in means]
    return (
        LineChart(
            "多一台备机，多几分把握",
            "横轴是备机台数，纵轴是「坏着的不超过备机」的时间占比。到了平均数只有一半多一点的把握，要够 99% 还得再加一截。",
            Axis("备机", "node", low=0),
            Axis("够用的时间", "%", low=0, high=100),
            (Series("够用", tuple(points), emphasis=True),),
            marks=(Mark("现在", float(kept), 100 * float(run.values["p_enough"]), emphasis=True),),  # type: ignore[arg-type]
            rules=(Rule(f"把握 {format_number(100 * confidence, digits=4)}%", y=100 * confidence), Rule("平均坏着", x=float(mean))),
        ),
        LineChart(
            "池子越大，余量占得越少",
            "虚线是平均坏着几台，实线是要备几台。两条线的差随平方根长：集群合在一起备，比各备各的省。",
            Axis("平均坏着", "node", log=True),
            Axis("台数", "node", log=True),
            (
                Series("要备", tuple((m, k) for m, k in needed if k > 0), emphasis=True),
                Series("平均坏着", tuple((m, m) for m in means), dashed=True),
            ),
            marks=(Mark("现在", float(mean), float(kept), emphasis=True),) if mean > 0 and kept > 0 else (),
        ),
    )


@calculator(
    title="备几台机器",
    question="机器坏了要修几天，备几台才够替？",
    chapter="21",
    inputs=(
        number("failures_per_day", "每天坏几台", 2, low=0, high=1000, stops=(0, 0.1, 0.2, 0.5, 1, 2, 3, 5, 10, 20, 50, 100)),
        number("repair_days", "修一台要几天", 3, "day", low=0.01, high=60, stops=(0.05, 0.1, 0.25, 0.5, 1, 2, 3, 5, 7, 14, 30)),
        number(
            "confidence", "要多大把握", 0.99, low=0.5, high=0.9999, kind="fraction", stops=(0.5, 0.8, 0.9, 0.95, 0.99, 0.999, 0.9999),
            range_remedy="100% 的把握要无穷多台备机",
        ),
    ),
    outputs=(
        Output("mean_in_repair", "平均坏着", "node", main=True),
        Output("spares", "要备几台", "node", main=True),
        Output("p_enough", "够用的概率", digits=5),
        Output("p_enough_pct", "够用的时间", "%", main=True),
    ),
    chart=_chart,
    formula=("λ = 每天坏几台 × 修几天（Little）", "坏着 k 台的概率 = e^(−λ) × λ^k ÷ k!", "备机 = 累加到「要多大把握」的最小的 k"),
    assumptions=("一台一台独立地坏", "替上去不花时间；修多久不影响结论，只看平均"),
    leaves_out="不算一次坏一整柜（电源、交换机）：那要按柜备；也不算备机自己坏着没人知道，备机要常跑体检。",
    sources=("泊松分布；M/G/∞ 里同时在修的台数", "OPT-175B 要了 12 台备机，一天约坏 2 台（arXiv 2205.01068 与训练日志）；修 3 天是本书的假设"),
)  # fmt: skip
def spares(*, failures_per_day: float, repair_days: float, confidence: float) -> Result:
    """The smallest stock that covers the machines in repair with the wanted confidence."""
    w = Worked()
    mean = w.line("平均坏着 λ", quantity(failures_per_day, "node") * quantity(repair_days), "node")
    kept, reached = spares_for(mean.value, confidence)
    if kept:
        before = reached - poisson(kept, mean.value)
        w.say(f"泊松累加，{kept - 1} 台 → {_percent(before)}，不够")
    w.say(f"泊松累加，{kept} 台 → {_percent(reached)}，够了")
    return Result(
        values={"mean_in_repair": mean, "spares": kept, "p_enough": min(1.0, reached), "p_enough_pct": 100 * min(1.0, reached)},
        lines=w.lines,
        verdict=_verdict(mean.value, kept, reached, repair_days, confidence),
    )


def _verdict(mean: float, kept: int, reached: float, repair_days: float, confidence: float) -> str:
    if kept == 0:
        return f"平均坏着 {format_number(mean, digits=3)} 台，{_percent(reached)} 的时间一台都没坏着：不用备。"
    sooner = spares_for(mean / 2, confidence)[0]
    gain = f"修得快一倍（{format_number(repair_days / 2, digits=3)} 天），{format_number(sooner)} 台就够。" if sooner < kept else ""
    return f"平均坏着 {format_number(mean, digits=3)} 台，备 {format_number(kept)} 台，{_percent(reached)} 的时间够用。{gain}"


def _percent(share: float) -> str:
    return f"{format_number(100 * min(1.0, share), digits=4)}%"
