"""Is it cheaper to own a card or to rent one, and at which utilisation does that turn?"""

from __future__ import annotations

from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Rule, Series
from calculators.core.inputs import linear_stops, log_stops, number
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.cost import capital_per_hour, operations_per_hour, power_per_hour
from calculators.operations._money import DATE, SIGNS, amount, currency_input, dated

HOURS_PER_YEAR = 8760


def _chart(run: Run, *, rent: float, utilisation: float, currency: str, **_: object) -> tuple[Chart, ...]:
    own = float(run.values["own_per_gpu_h"])  # type: ignore[arg-type]
    shares = sorted({*linear_stops(0.1, 1, 0.05), max(utilisation, 0.1)})
    return (
        LineChart(
            "用得越满，自建越便宜",
            "自建的钱不管用不用都要付，摊到真用上的那一小时里；租只付用上的。两条线相交处就是回本的利用率。",
            Axis("利用率", "%", low=0, high=100),
            Axis("一卡时（用上的）", SIGNS[currency], low=0),
            (Series("自建", tuple((100 * u, own / u) for u in shares), emphasis=True),),
            marks=(Mark("现在", 100 * utilisation, own / utilisation, emphasis=True),) if utilisation >= 0.1 else (),
            rules=(Rule("租", y=rent),),
        ),
    )


@calculator(
    title="自建还是租",
    question="自己买卡摊下来一小时多少钱？用到几成才比租便宜？",
    chapter="23",
    inputs=(
        number("capex", "一张卡的全部身价", 40_000, low=1e3, high=2e5, kind="money", stops=log_stops(1000, 200_000, 8), help="卡、服务器、网络、机柜摊到一张卡"),
        number("years", "折旧年数", 4, "year", low=1, high=8, stops=linear_stops(1, 8, 1)),
        number("rent", "租，一卡时", 2.5, low=0, high=100, kind="money", stops=linear_stops(0, 10, 0.25)),
        number("utilisation", "利用率", 0.6, low=0.01, high=1, kind="fraction", stops=linear_stops(0.05, 1, 0.05)),
        number("kw", "每卡功率（含服务器）", 1.3, "kW", low=0.1, high=3, more=True, stops=linear_stops(0.1, 3, 0.1)),
        number("pue", "机房 PUE", 1.3, low=1, high=2, more=True, stops=linear_stops(1, 2, 0.05)),
        number("elec", "一度电", 0.08, low=0, high=1, kind="money", more=True, stops=linear_stops(0, 1, 0.02)),
        number("opex_pct", "每年运维，占身价", 0.08, low=0, high=0.5, kind="fraction", more=True, stops=linear_stops(0, 0.5, 0.01)),
        currency_input(),
        *DATE,
    ),
    outputs=(
        Output("own_per_gpu_h", "自建，一卡时（满载）", main=True, digits=6),
        Output("capital_per_gpu_h", "其中折旧", digits=6),
        Output("power_per_gpu_h", "其中电", digits=5),
        Output("operations_per_gpu_h", "其中运维", digits=5),
        Output("own_per_useful_gpu_h", "自建，用上的一卡时", main=True, digits=6),
        Output("break_even_util_pct", "回本的利用率", "%", main=True, digits=5),
        Output("own_is_cheaper", "自建更便宜", main=True),
    ),
    chart=_chart,
    formula=(
        "折旧 = 身价 ÷ (年数 × 8760)",
        "电 = 功率 × PUE × 电价；运维 = 身价 × 每年份额 ÷ 8760",
        "用上的一卡时 = 三样之和 ÷ 利用率；回本的利用率 = 三样之和 ÷ 租价",
    ),
    assumptions=("八个默认值都是示意，没有来源：换成你的报价", "租的卡不用就退，只付用上的小时；包月的闲着也付，拿满载价去比", "闲着的卡和忙着的卡一样耗电"),
    leaves_out="不算残值、利息、故障停机和换代：卡每两年便宜一截，锁四年是有代价的。",
    sources=("算术；价格全是输入",),
)  # fmt: skip
def own_vs_rent(
    *, capex: float, years: float, kw: float, pue: float, elec: float, opex_pct: float, rent: float, utilisation: float, currency: str, price_year: int,
    price_month: int,
) -> Result:  # fmt: skip
    """Owning costs the same whether used or not; renting costs only what is used."""
    w = Worked()
    unit = SIGNS[currency]
    price, hours = quantity(capex, unit), quantity(HOURS_PER_YEAR)
    capital = w.line("折旧，一卡时", capital_per_hour(price, quantity(years), hours), unit, 6)
    power = w.line("电，一卡时", power_per_hour(quantity(kw), quantity(pue), quantity(elec, unit)), unit, 6)
    operations = w.line("运维，一卡时", operations_per_hour(price, quantity(opex_pct), hours), unit, 6)
    own = w.line("自建，一卡时", capital + power + operations, unit, 6)
    useful = w.line("自建，用上的一卡时", own / quantity(utilisation), unit, 6)
    even = w.line("回本的利用率", own / quantity(rent, unit), "%", 5) if rent else None
    cheaper = useful.value < rent
    return Result(
        values={
            "own_per_gpu_h": own.value, "capital_per_gpu_h": capital.value, "power_per_gpu_h": power.value, "operations_per_gpu_h": operations.value,
            "own_per_useful_gpu_h": useful.value, "break_even_util_pct": even, "own_is_cheaper": cheaper,
        },
        lines=w.lines,
        verdict=dated(price_year, price_month) + _verdict(own, useful, even, quantity(rent), utilisation, cheaper, currency),
        notes=(_largest({"折旧": capital.value, "电": power.value, "运维": operations.value}, own.value),),
    )  # fmt: skip


def _verdict(own: Quantity, useful: Quantity, even: Quantity | None, rent: Quantity, utilisation: float, cheaper: bool, currency: str) -> str:
    at = quantity(utilisation * 100, "%", 3).text
    head = f"利用率 {at}，自建一卡时 {amount(useful, currency, 3)}，租 {amount(rent, currency, 3)}。"
    if even is None:
        return head + "白给的卡，租。"
    if even.value > 1:
        return head + f"自建满载也要 {amount(own, currency, 3)}，比租贵：租。"
    point = quantity(even.value * 100, "%", 3).text
    if cheaper:
        return head + f"过了 {point} 的回本线：自建。前提是这几年都用到这么满。"
    return head + f"用到 {point} 才回本，还没到：租，或者先把卡用满。"


def _largest(parts: dict[str, float], whole: float) -> str:
    name = max(parts, key=lambda part: parts[part])
    largest = f"最大的一块是{name}，占 {quantity(100 * parts[name] / whole, '%', 3).text}"
    return largest + ("。" if name == "电" else f"；电占 {quantity(100 * parts['电'] / whole, '%', 3).text}。")
