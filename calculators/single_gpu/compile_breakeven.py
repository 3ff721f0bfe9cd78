"""After how many steps does the time spent on compiling come back?"""

from __future__ import annotations

from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Rule, Series
from calculators.core.errors import refuse
from calculators.core.inputs import integer, log_stops, number
from calculators.core.numbers import format_number
from calculators.core.worked import Quantity, Worked, ceil, quantity
from calculators.formulas.launch import breakeven_steps


def _chart(run: Run, *, compile_s: float, before_ms: float, after_ms: float, steps: int, recompiles: int) -> tuple[Chart, ...]:
    even = run.values["breakeven_steps"]
    assert isinstance(even, int)
    cost = compile_s * (1 + recompiles)
    last = float(max(2 * even, 10))
    marks = [Mark("回本", float(even), even * before_ms / 1e3, emphasis=True)] if even else []
    rules = (Rule(f"只跑 {format_number(steps)} 步", x=float(steps)),) if steps < last else ()
    return (
        LineChart(
            "累计时间：编译先亏后赚",
            "编译那条线一开头就垫付一大截，然后爬得慢；两条线相交处回本。任务在交点左边就结束，编译是亏的。",
            Axis("步", "step", low=0),
            Axis("累计", "s", low=0),
            (
                Series("编译", ((0.0, cost), (last, cost + last * after_ms / 1e3)), emphasis=True),
                Series("不编译", ((0.0, 0.0), (last, last * before_ms / 1e3)), dashed=True),
            ),
            marks=tuple(marks),
            rules=rules,
        ),
    )


@calculator(
    title="编译值不值",
    question="编译花掉的时间，跑几步才赚得回来？整个任务净省多少？",
    chapter="07",
    inputs=(
        number("compile_s", "编译一次", 120, "s", low=0, high=7200, kind="seconds", stops=(0, 5, 10, 20, 30, 60, 90, 120, 180, 300, 600, 1800, 3600, 7200)),
        number("before_ms", "编译前每步", 250, "ms", low=0, low_open=True, high=1e7, stops=log_stops(1, 10_000, 6)),
        number("after_ms", "编译后每步", 135, "ms", low=0, low_open=True, high=1e7, stops=log_stops(1, 10_000, 6)),
        integer("steps", "任务一共几步", 600_000, "step", low=1, high=10**9, stops=log_stops(10, 1e7, 3)),
        integer("recompiles", "中途重编译几次", 0, low=0, high=1000, stops=(0, 1, 2, 3, 5, 8, 16, 32, 64, 128, 1000), help="输入形状变一种，就可能重编一次"),
    ),
    outputs=(
        Output("breakeven_steps", "回本要几步", "step", main=True, digits=9),
        Output("total_saving_h", "整个任务净省", "h", main=True),
        Output("speedup_x", "每步快", "×", main=True),
        Output("step_saving_pct", "每步省", "%"),
        Output("net_saving_pct", "扣掉编译，净省", "%"),
    ),
    chart=_chart,
    formula=("成本 = 编译时间 × (1 + 重编译次数)", "回本 = ⌈成本 ÷ (编译前 − 编译后)⌉", "净省 = (编译前 − 编译后) × 步数 − 成本"),
    assumptions=("每步的时间不随步数变；重编译每次和第一次一样久",),
    leaves_out="不算编译缓存（第二次启动只要几秒到几十秒）和调 graph break 花掉的人的时间。",
    sources=("nanoGPT README：A100 上 250 → 135 ms，60 万步", "Llama-3.1-8B 解码：8.4 → 5.1 ms（cloudai.pt, 2026）"),
)
def compile_breakeven(*, compile_s: float, before_ms: float, after_ms: float, steps: int, recompiles: int) -> Result:
    """⌈compile time × (1 + recompiles) ÷ time saved per step⌉."""
    if after_ms >= before_ms:
        raise refuse("after_ms", "编译后每步必须比编译前短", f"{format_number(after_ms)} ms ≥ {format_number(before_ms)} ms", "编译后没变快，先看 graph break")
    w = Worked()
    before, after, count = quantity(before_ms, "ms", 9), quantity(after_ms, "ms", 9), quantity(steps)
    cost = quantity(compile_s, "s")
    if recompiles:
        cost = w.line("编译一共", cost * (1 + quantity(recompiles)), "s")
    saved = w.line("每步省", before - after, "ms")
    even = w.line("回本", ceil(breakeven_steps(cost, saved)), "", 9)
    share = w.line("每步省几成", saved / before, "%")
    speedup = w.line("每步快", before / after, "×")
    gross = w.line("全程省（没扣编译）", saved * count, "h")
    net = w.line("扣掉编译，净省", gross - cost, "h")
    whole = w.line("不编译的全程", before * count, "h")
    net_share = w.line("净省几成", net / whole, "%")
    return Result(
        values={
            "breakeven_steps": round(even.value), "total_saving_h": net, "speedup_x": speedup, "step_saving_pct": share, "net_saving_pct": net_share,
        },
        lines=w.lines,
        verdict=_verdict(round(even.value), steps, net, speedup, recompiles),
    )  # fmt: skip


def _lost(seconds: float) -> str:
    return (quantity(seconds / 3600, "h", 4) if seconds >= 3600 else quantity(seconds, "s", 4)).text


def _verdict(even: int, steps: int, net: Quantity, speedup: Quantity, recompiles: int) -> str:
    fewer = "，先把重编译按住（TORCH_LOGS 看是哪个形状在变）" if recompiles else ""
    if net.value < 0:
        return f"不值：要 {format_number(even)} 步才回本，任务只有 {format_number(steps)} 步，反而多花 {_lost(-net.value)}{fewer}。"
    return f"值：每步快 {speedup.text}，第 {format_number(even)} 步回本，{format_number(steps)} 步净省 {net.text}{fewer}。"
