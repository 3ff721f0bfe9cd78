"""What does a monthly bill say per card-hour and per request, and what would today's price make of it?"""

from __future__ import annotations

from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Bar, BarChart, Chart, Part
from calculators.core.errors import refuse
from calculators.core.inputs import integer, linear_stops, log_stops, number
from calculators.core.numbers import format_number
from calculators.core.units import DAY
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.cost import implied_price, per_thousand
from calculators.formulas.serving import arrival_per_s
from calculators.operations._money import DATE, SIGNS, amount, currency_input, dated


def _chart(run: Run, *, monthly_bill: float, currency: str, **_: object) -> tuple[Chart, ...]:
    again = float(run.values["repriced_monthly_bill"])  # type: ignore[arg-type]
    rows = (("账单上的", monthly_bill), ("按现在的卡时价", again))
    return (
        BarChart(
            "同样的卡，两个价",
            "卡数没变，变的只是单价。和别人比账单之前，先把卡时价对齐。",
            Axis("每月", SIGNS[currency], low=0),
            tuple(Bar(name, (Part("每月", value),), format_number(value, "cjk"), emphasis=i == 1) for i, (name, value) in enumerate(rows)),
        ),
    )


@calculator(
    title="月账单对账",
    question="这张月账单折合一卡时多少钱、每千次请求多少钱？换个卡时价是多少？",
    chapter="23",
    inputs=(
        integer("cards", "卡数", 100, "卡", low=1, high=1_000_000, stops=(1, 2, 4, 8, 15, 30, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)),
        number("monthly_bill", "一个月付", 2e6, low=0, high=1e10, kind="money", stops=(0, *log_stops(1e3, 1e8, 5))),
        number("requests_per_day", "每天请求", 1e7, "1/day", low=1, high=1e12, kind="count", stops=log_stops(1e3, 1e10, 4)),
        number("price", "现在一卡时", 10, low=0, high=1000, kind="money", stops=linear_stops(0, 40, 1), help="填你拿到的报价"),
        number("hours_per_month", "一个月几小时", 730, "h", low=672, high=744, more=True, stops=(672, 720, 730, 744), help="8760 ÷ 12；第 20 章按 720"),
        currency_input("cny"),
        *DATE,
    ),
    outputs=(
        Output("implied_price_per_gpu_h", "账单折合一卡时", main=True, digits=5),
        Output("requests_per_s", "每秒请求", "request/s", digits=5),
        Output("cost_per_1k_requests", "每千次请求", main=True, digits=5),
        Output("repriced_monthly_bill", "按现在的价，一个月", main=True, digits=6),
    ),
    chart=_chart,
    formula=("一卡时 = 账单 ÷ (卡数 × 一个月的小时)", "每千次 = 账单 ÷ (每天请求 × 一个月的天数) × 1000", "按现在的价 = 卡数 × 一个月的小时 × 卡时价"),
    assumptions=("卡一直租着，闲的时候也付钱", "账单里只有卡"),
    leaves_out="不算高峰（第 01 章按平均流量），不算卡以外的开销。",
    sources=("算术；默认的账单是第 01 章的量级",),
)  # fmt: skip
def bill_check(
    *, cards: int, monthly_bill: float, requests_per_day: float, hours_per_month: float, price: float, currency: str, price_year: int, price_month: int
) -> Result:
    """The bill over the card-hours that it pays for and over the requests that it served."""
    if not monthly_bill:
        raise refuse("monthly_bill", "一个月付的钱必须大于 0", "0", "没有账单就没有可对的账")
    w = Worked()
    unit = SIGNS[currency]
    bill, held, hours = quantity(monthly_bill, unit), quantity(cards), quantity(hours_per_month)
    implied = w.line("账单折合一卡时", implied_price(bill, held, hours), unit, 5)
    rate = w.line("每秒请求", arrival_per_s(quantity(requests_per_day, "1/day"), quantity(DAY, "s"), quantity(1)), "request/s", 5)
    days = w.line("一个月的天数", hours / 24, "", 7)
    each = w.line("每千次请求", per_thousand(bill, quantity(requests_per_day), days, quantity(1000)), unit, 5)
    again = w.line("按现在的价，一个月", held * hours * quantity(price, unit), unit, 6)
    return Result(
        values={
            "implied_price_per_gpu_h": implied.value, "requests_per_s": rate, "cost_per_1k_requests": each.value, "repriced_monthly_bill": again.value,
        },
        lines=w.lines,
        verdict=_verdict(implied, each, again, monthly_bill, currency, dated(price_year, price_month).rstrip("：")),
    )  # fmt: skip


def _verdict(implied: Quantity, each: Quantity, again: Quantity, bill: float, currency: str, date: str) -> str:
    head = f"账单折合一卡时 {amount(implied, currency, 3)}，每千次请求 {amount(each, currency, 3)}。"
    change = again.value / bill
    head += f"{date}，同样的卡一个月 {amount(again, currency, 3)}，是账单的 {format_number(change, digits=3)} 倍。"
    if 0.8 < change < 1.25:
        return head + "单价没差多少：要省，减卡数。"
    return head + "和别人比账单，先把卡时价对齐：经得起换价的只有倍数。"
