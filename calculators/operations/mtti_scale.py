"""How often is a cluster of this size interrupted, and does a run of this length come through?"""

from __future__ import annotations

from calculators.catalog import reference
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Series
from calculators.core.inputs import choice, integer, number
from calculators.core.numbers import format_number
from calculators.core.units import DAY, HOUR
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.reliability import mtti_of, observed_rate, survival

HOURS_PER_YEAR = 8766
"""365.25 days."""
DRAWN = tuple(2**k for k in range(18))
"""1 … 131,072 cards."""
PUBLISHED = (
    ("RSC 8 卡", 8, "mttf_8_d", 24.0), ("RSC 1024", 1024, "mttf_1024_h", 1.0), ("RSC 推算", 16384, "mttf_16384_h", 1.0), ("RSC 推算", 131072, "mttf_131072_h", 1.0),
)  # fmt: skip
MANUAL = 7 * DAY
"""Interruptions rarer than this can wait for a person."""
LABELS = {"value": "已知：多少卡时断一次", "observed": "从自己的记录数出来"}


def _published() -> tuple[Mark, ...]:
    figures = reference("rsc-mttf").values
    return tuple(Mark(name, float(n), float(value) * hours) for name, n, key, hours in PUBLISHED if isinstance(value := figures[key].value, int | float))


def _chart(run: Run, *, n_gpus: int, **_: object) -> tuple[Chart, ...]:
    rate, here = run.values["gpu_hours_per_interruption"], run.values["mtti_h"]
    assert isinstance(rate, float | int)
    assert isinstance(here, float | int)
    cards = sorted({*DRAWN, n_gpus})
    return (
        LineChart(
            "卡翻倍，间隔减半",
            "两轴都是对数，所以是一条直线：卡多一倍，平均中断间隔短一半。小点是 Meta 的 RSC（A100）：8 卡和 1024 卡是实测，再大的是他们推算的，和直线差两三倍。",
            Axis("卡数", "card", log=True),
            Axis("平均中断间隔", "h", log=True),
            (Series("按这个故障率", tuple((float(n), rate / n) for n in cards), emphasis=True),),
            marks=(*_published(), Mark("现在", float(n_gpus), float(here), emphasis=True)),
        ),
    )


@calculator(
    title="我的集群多久断一次",
    question="这么多卡，平均多久断一次？跑一天不断的机会有多大？",
    chapter="21",
    inputs=(
        integer("n_gpus", "卡数", 16384, "card", high=1_000_000, kind="count", stops=(1, 8, 64, 256, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 100_000, 131_072)),
        choice("rate_from", "故障率从哪来", "value", ("value", "observed"), labels=LABELS),
        number(
            "gpu_hours_per_interruption", "多少卡时断一次", 50677, "GPU·h", low=1e3, high=1e7, stops=(1000, 2000, 5000, 8090, 10_000, 20_000, 50_677, 100_000, 200_000, 500_000, 1e6),
            only_if=("rate_from", ("value",)), help="Llama 3 的 H100：50,677；RSC 的 A100（1024 卡）：8090",
        ),
        integer("observed_interruptions", "断了几次", 419, high=1_000_000, stops=(1, 2, 5, 10, 20, 50, 100, 200, 419, 1000), only_if=("rate_from", ("observed",))),
        number("observed_days", "记了几天", 54, "day", low=0.01, high=1e4, stops=(1, 7, 14, 30, 54, 90, 180, 365), only_if=("rate_from", ("observed",))),
        integer("observed_gpus", "记的是几张卡", 16384, "card", high=1_000_000, stops=(8, 64, 256, 1024, 2048, 4096, 8192, 16384, 32768), only_if=("rate_from", ("observed",))),
        number("hours", "要连着跑", 24, "h", low=0.01, high=1e5, more=True, stops=(1, 4, 8, 24, 48, 72, 168, 720)),
    ),
    outputs=(
        Output("mtti_h", "平均中断间隔", "h", main=True, digits=5),
        Output("p_survive", "一次不断的概率"),
        Output("p_survive_pct", "一次不断", "%", main=True, digits=3),
        Output("expected_interruptions", "平均断几次", main=True),
        Output("gpu_hours_per_interruption", "多少卡时断一次", "GPU·h", digits=5),
        Output("card_years_per_interruption", "一张卡多久一次", "year", main=True),
    ),
    chart=_chart,
    formula=("平均中断间隔 M = 每次中断的卡时 ÷ 卡数", "一次不断的概率 = e^(−时长 ÷ M)", "从记录：每次中断的卡时 = 天数 × 24 × 卡数 ÷ 次数"),
    assumptions=("各卡独立，故障率不随时间变", "一张卡断，全部都停（同步训练）"),
    leaves_out="不算新机器头几周的高故障率、交换机一坏一片、计划内的维护（Llama 3 连维护一共 466 次，2.78 小时一次）。集群之间差两三倍很平常。",
    sources=("Llama 3（arXiv 2407.21783）§3.3.4：54 天，16,384 张 H100，419 次意外中断", "Meta RSC（arXiv 2410.21680），数字转录自二手资料"),
)  # fmt: skip
def mtti_scale(
    *, n_gpus: int, rate_from: str, gpu_hours_per_interruption: float, observed_interruptions: int, observed_days: float, observed_gpus: int, hours: float
) -> Result:  # fmt: skip
    """Mean time to interruption falls as 1/n; the chance of an undisturbed span falls exponentially."""
    w = Worked()
    cards = quantity(n_gpus, "card")
    if rate_from == "observed":
        seen = observed_rate(quantity(observed_days, "day"), quantity(observed_gpus, "card"), quantity(observed_interruptions))
        rate = w.line("每次中断的卡时", seen, "GPU·h", 6)
    else:
        rate = quantity(gpu_hours_per_interruption, "GPU·h")
    mtti = w.line("平均中断间隔", mtti_of(rate, cards), "h", 5)
    span = quantity(hours, "h")
    expected = w.line("平均断几次", span / mtti)
    clean = survival(span.value, mtti.value)
    w.say(f"一次不断：e^(−{expected.text}) → {format_number(100 * clean, digits=3)}%")
    years = w.line("一张卡几年一次", quantity(rate.value / HOUR) / quantity(HOURS_PER_YEAR))
    return Result(
        values={
            "mtti_h": mtti, "p_survive": clean, "p_survive_pct": 100 * clean, "expected_interruptions": expected,
            "gpu_hours_per_interruption": rate, "card_years_per_interruption": years.value,
        },
        lines=w.lines,
        verdict=_verdict(n_gpus, mtti, span, clean, years.value),
    )  # fmt: skip


def _verdict(n_gpus: int, mtti: Quantity, span: Quantity, clean: float, years: float) -> str:
    each = f"单卡 {quantity(years, 'year', 3).text}才断一次" if years >= 1 else f"单卡 {quantity(years * 365.25, 'day', 3).text}断一次"
    head = f"{each}，{format_number(n_gpus)} 张就是 {_plain_time(mtti.value)}一次。" if n_gpus > 1 else f"{each}。"
    head += f"连着跑 {span.text}，一次不断的机会 {format_number(100 * clean, digits=3)}%。"
    if mtti.value >= MANUAL:
        return head + "照常存盘，断了人来重启也来得及。"
    if mtti.value >= DAY:
        return head + "存盘要自动；重启靠人，半夜那次就白等到天亮。"
    return head + f"一天断 {format_number(DAY / mtti.value, digits=3)} 次：别指望不坏，要让存盘和重启自动、够快。"


def _plain_time(seconds: float) -> str:
    unit = "day" if seconds >= 2 * 86400 else "h" if seconds >= HOUR else "min" if seconds >= 60 else "s"
    scale = {"day": 86400.0, "h": HOUR, "min": 60.0, "s": 1.0}[unit]
    return quantity(seconds / scale, unit, 3).text
