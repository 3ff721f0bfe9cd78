"""How often to write a checkpoint, and which share of the time is left for training?"""

from __future__ import annotations

import math

from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Rule, Series
from calculators.core.errors import refuse
from calculators.core.inputs import log_stops, number
from calculators.core.numbers import format_number
from calculators.core.units import HOUR, MINUTE
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.reliability import best_interval, daly, daly_interval, efficiency, longest_restart, young_interval, young_overhead

TARGET = 0.9
"""The effective share that Llama 3 and MegaScale report to exceed."""
CONTOURS = (0.95, 0.9, 0.85, 0.8)
CURVE = 60
NEAR = 0.005
"""Half a point from the best: not worth a change."""
HOPELESS = 0.01


def _spread(low: float, high: float, count: int = CURVE) -> list[float]:
    """Evenly spaced on a logarithm."""
    return [low * math.exp(math.log(high / low) * i / count) for i in range(count + 1)]


def _chart(run: Run, *, mtti_h: float, delta_s: float, restart_s: float, **_: object) -> tuple[Chart, ...]:
    mtti, tau = mtti_h * HOUR, float(run.values["tau_used_min"]) * MINUTE  # type: ignore[arg-type]
    daly_s = daly(delta_s, mtti)
    taus = sorted({*_spread(min(daly_s / 10, tau), max(daly_s * 10, tau)), tau})
    restarts = sorted({restart_s, restart_s / 2, 0.0} if restart_s else {0.0, 300.0, 600.0})
    curves = tuple(
        Series(f"重启 {_span(r)}", tuple((t / MINUTE, 100 * efficiency(t, delta_s, r, mtti)) for t in taus), emphasis=r == restart_s, dashed=r != restart_s)
        for r in restarts
    )
    return (
        LineChart(
            "太勤和太懒都亏，中间很平",
            "横轴是对数。左边亏在老是停下来存盘，右边亏在一断就丢一大段。顶上很平：间隔差一倍，亏不了多少。",
            Axis("存盘间隔", "min", log=True),
            Axis("有效时间", "%", low=0, high=100),
            curves,
            marks=(Mark("现在", tau / MINUTE, 100 * efficiency(tau, delta_s, restart_s, mtti), emphasis=True),),
            rules=(Rule("Daly", x=daly_s / MINUTE),),
        ),
        LineChart(
            "存盘的代价和重做的代价，在 Young 的间隔上相等",
            "两轴都是对数。存得越稀，花在存盘上的越少，断一次要重做的越多；两条线交叉的地方，加起来最小。",
            Axis("存盘间隔", "min", log=True),
            Axis("占时间", "%", log=True),
            (
                Series("存盘 δ/τ", tuple((t / MINUTE, 100 * delta_s / t) for t in taus), dashed=True),
                Series("重做 τ/2M", tuple((t / MINUTE, 100 * t / 2 / mtti) for t in taus), dashed=True),
                Series("加起来", tuple((t / MINUTE, 100 * (delta_s / t + t / 2 / mtti)) for t in taus), emphasis=True),
            ),
            rules=(Rule("Young", x=young_interval(delta_s, mtti) / MINUTE),),
        ),
        _contours(mtti, delta_s, restart_s),
    )


def _contours(mtti: float, delta_s: float, restart_s: float) -> LineChart:
    """Lines of equal efficiency over δ and R, each point at its own best interval (Daly's)."""
    intervals = [(d, daly(d, mtti)) for d in _spread(min(1.0, delta_s), max(min(mtti / 5, 3600.0), delta_s), 40)]
    series = []
    for share in CONTOURS:
        points = [(d, r / MINUTE) for d, tau in intervals if (r := longest_restart(share, tau, d, mtti)) is not None]
        if len(points) > 1:
            series.append(Series(f"{100 * share:.0f}%", tuple(points), emphasis=share == TARGET, dashed=share != TARGET))
    return LineChart(
        "要到 90%，存盘和重启各要多快",
        "每条线上有效时间一样多，间隔都取最好的。站在 90% 那条线的左下方才够。",
        Axis("一次存盘停多久", "s", log=True),
        Axis("一次重启", "min", low=0),
        tuple(series),
        marks=(Mark("现在", delta_s, restart_s / MINUTE, emphasis=True),),
    )


@calculator(
    title="多久存一次盘",
    question="多久存一次检查点最划算？算上存盘、重做和重启，真在训练的时间占几成？",
    chapter="21",
    inputs=(
        number("mtti_h", "平均中断间隔 M", 3.093, "h", low=0.01, high=1e4, stops=(0.1, 0.2, 0.5, 1, 2, 3.093, 4, 6, 8, 12, 24, 48, 100, 200, 500, 1000)),
        number("delta_s", "存一次停多久 δ", 60, "s", low=0.1, high=3600, kind="seconds", stops=(1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 3600), help="只算训练停下来的时间，异步写盘不算"),
        number("restart_s", "一次重启 R", 600, "s", low=0, high=36000, kind="seconds", stops=(0, 30, 60, 120, 300, 600, 900, 1200, 1800, 3600, 7200), help="从断到重新开始算：发现、换机、拉起、读检查点"),
        number("tau_min", "存盘间隔 τ", None, "min", low=0.5, high=1e4, stops=log_stops(1, 1000, 8), help="留空用 Daly 的最优间隔"),
    ),
    outputs=(
        Output("young_min", "Young 的间隔", "min", main=True),
        Output("daly_min", "Daly 的间隔", "min", main=True),
        Output("best_min", "数值找到的最优", "min"),
        Output("tau_used_min", "现在用的间隔", "min"),
        Output("eff_pct", "有效时间", "%", main=True),
        Output("eff_frac", "有效时间（比例）", digits=5),
        Output("eff_best_pct", "最好能到", "%", main=True),
        Output("eff_best_frac", "最好能到（比例）", digits=5),
        Output("eff_first_order_pct", "粗算的有效时间", "%"),
        Output("eff_first_order_frac", "粗算的有效时间（比例）", digits=5),
        Output("young_overhead_pct", "存盘加重做，Young 的间隔上", "%"),
        Output("young_overhead_frac", "存盘加重做（比例）"),
        Output("restart_90_s", "要到 90%，重启最多", "s"),
    ),
    chart=_chart,
    formula=(
        "Young：τ = √(2δM)，这时存盘和重做合起来占 √(2δ/M)",
        "Daly：τ = √(2δM) × (1 + √(δ/2M)/3 + (δ/2M)/9) − δ",
        "有效时间 = τ ÷ (M × e^(R/M) × (e^((τ+δ)/M) − 1))",
        "粗算：1 − δ/(τ+δ) − (τ/2 + R)/M",
    ),
    assumptions=("故障随机来，间隔服从指数分布", "存盘和重启的时候也会断", "断了就回到上一个检查点"),
    leaves_out="不算每步忽快忽慢、存盘失败、故障扎堆。M 差一倍，最优间隔只差四成，有效时间在顶上更不敏感。",
    sources=("Young 1974（CACM 17:9）", "Daly 2006（FGCS 22:3）；两式按二手资料的引用"),
)  # fmt: skip
def checkpoint_interval(*, mtti_h: float, delta_s: float, restart_s: float, tau_min: float | None) -> Result:
    """Young's and Daly's interval, and the exponential model at the reader's; the numerical optimum checks both."""
    if delta_s >= 2 * mtti_h * HOUR:
        raise refuse("delta_s", "存一次盘比故障间隔还长，先把存盘变快", f"δ {format_number(delta_s)} 秒，M {format_number(mtti_h * HOUR)} 秒", "δ 要小于 2M")
    w = Worked()
    mtti, delta, restart = quantity(mtti_h, "h"), quantity(delta_s, "s"), quantity(restart_s, "s")
    young = w.line("Young", young_interval(delta, mtti), "min")
    half = w.line("δ ÷ 2M", delta / (2 * mtti), "", 6)
    better = w.line("Daly", daly_interval(young, half, delta), "min")
    best = best_interval(delta.value, mtti.value)
    tau = better if tau_min is None else quantity(tau_min, "min")
    writing = w.line("存盘占", delta / (tau + delta), "%")
    redoing = w.line("重做占", tau / (2 * mtti), "%")
    waiting = w.line("重启占", restart / mtti, "%")
    rough = w.line("粗算", 1 - writing - redoing - waiting, "%")
    share = efficiency(tau.value, delta.value, restart.value, mtti.value)
    w.say(f"指数模型，τ 取 {tau.text} → {_percent(share)}")
    at_best = efficiency(best, delta.value, restart.value, mtti.value)
    w.say(f"二分找最优的 τ → {quantity(best / MINUTE, 'min', 4).text}，{_percent(at_best)}")
    overhead = young_overhead(delta.value, mtti.value)
    return Result(
        values={
            "young_min": young, "daly_min": better, "best_min": best / MINUTE, "tau_used_min": tau,
            "eff_pct": 100 * share, "eff_frac": share, "eff_best_pct": 100 * at_best, "eff_best_frac": at_best,
            "eff_first_order_pct": rough, "eff_first_order_frac": rough.value, "young_overhead_pct": 100 * overhead, "young_overhead_frac": overhead,
            "restart_90_s": longest_restart(TARGET, best, delta.value, mtti.value),
        },
        lines=w.lines,
        verdict=_verdict(tau, share, at_best, best, delta.value, restart.value, mtti.value),
        resolved={"tau_min": float(f"{better.value / MINUTE:.4g}")} if tau_min is None else {},
        notes=("粗算已经失效：它假设每段里最多断一次，而现在的故障太密。",) if abs(rough.value - share) > 0.1 else (),
    )  # fmt: skip


def _verdict(tau: Quantity, share: float, at_best: float, best: float, delta: float, restart: float, mtti: float) -> str:
    if at_best < HOPELESS:
        return "断得太勤，真在训练的时间不到 1%：先让故障少下来，或者让一次重启短过平均中断间隔。"
    head = f"每 {_span(tau.value)}存一次，真在训练的时间是 {_percent(share)}。"
    if at_best - share > NEAR:
        return head + f"{'太勤' if tau.value < best else '太懒'}了：改成 {_span(best)}一次，能到 {_percent(at_best)}。"
    if at_best > 0.99:
        return head + "再调也省不出一个百分点：先去管别的。"
    quick_restart = efficiency(best, delta, restart / 2, mtti)
    halved = best_interval(delta / 2, mtti)
    quick_write = efficiency(halved, delta / 2, restart, mtti)
    first = "重启" if quick_restart >= quick_write else "存盘"
    return head + f"间隔已经合适。重启快一倍到 {_percent(quick_restart)}，存盘快一倍到 {_percent(quick_write)}：先砍{first}。"


def _percent(share: float) -> str:
    return f"{format_number(100 * share, digits=3 if share < 0.999 else 4)}%"


def _span(seconds: float) -> str:
    unit, scale = ("h", HOUR) if seconds >= 2 * HOUR else ("min", MINUTE) if seconds >= MINUTE else ("s", 1.0)
    return quantity(seconds / scale, unit, 3).text
