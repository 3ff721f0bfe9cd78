"""What does a million tokens cost from throughput, price and utilisation, and how many cards does a day's output take?"""

from __future__ import annotations

from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Series
from calculators.core.inputs import choice, integer, linear_stops, log_stops, number, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.units import DAY, HOUR
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.cost import cards_for, seconds_per_output
from calculators.formulas.price import blended, cost_per_mtok, day_cost, mtok_per_h
from calculators.operations._money import DATE, SIGNS, amount, currency_input, dated

SEPARATE = "separate"
RATES = {SEPARATE: "分开测：卡只做这一样", "concurrent": "同时跑：同一批卡上一起出"}


def _chart(run: Run, *, utilisation: float, currency: str, **_: object) -> tuple[Chart, ...]:
    def curve(name: str) -> tuple[tuple[float, float], ...]:
        now = float(run.values[name])  # type: ignore[arg-type]
        return tuple((100 * u, now * utilisation / u) for u in sorted({*linear_stops(0.05, 1, 0.05), utilisation}))

    if not float(run.values["cost_per_m_blended"]) > 0:  # type: ignore[arg-type]
        return ()
    return (
        LineChart(
            "利用率就是单价",
            "双曲线：利用率减半，单价翻倍。左边那一段最陡，夜里没人用的卡就在那里。",
            Axis("平均利用率", "%", low=0, high=100),
            Axis("每百万 token", SIGNS[currency], low=0),
            (Series("输出", curve("cost_per_m_out"), dashed=True), Series("合计", curve("cost_per_m_blended"), emphasis=True)),
            marks=(Mark("现在", 100 * utilisation, float(run.values["cost_per_m_blended"]), emphasis=True),),  # type: ignore[arg-type]
        ),
    )


@calculator(
    title="百万 token 多少钱",
    question="租来的卡，每百万输入、输出、合计各折多少钱，一天要几张？",
    chapter="23",
    inputs=(
        number("gpu_price_per_h", "一张卡一小时", 2.5, low=0, high=100, kind="money", stops=linear_stops(0, 10, 0.5), help="填你拿到的报价"),
        integer("gpus", "卡数", 1, "卡", low=1, high=100_000, stops=powers_of_two(1, 65536)),
        number("out_tok_s", "输出吞吐（全部卡）", 2500, "token/s", low=0.1, high=1e7, kind="count", stops=log_stops(100, 1e6, 5)),
        number("in_tok_s", "输入吞吐（全部卡）", 12_500, "token/s", low=0.1, high=1e8, kind="count", stops=log_stops(1000, 1e7, 5), help="prefill"),
        number("utilisation", "平均利用率", 0.4, low=0.01, high=1, kind="fraction", stops=linear_stops(0.05, 1, 0.05)),
        number("in_per_out", "输入是输出的几倍", 4, low=0, high=1000, more=True, stops=(0, 1, 2, 3, 4, 6, 8, 10, 20, 50, 100), only_if=("rates", (SEPARATE,))),
        number("cache_hit", "输入的缓存命中", 0, low=0, high=1, kind="fraction", more=True, stops=linear_stops(0, 1, 0.05), only_if=("rates", (SEPARATE,)), help="吞吐里已含命中的，填 0"),
        choice("rates", "两个吞吐怎么测的", SEPARATE, tuple(RATES), labels=RATES, more=True),
        number("out_tokens_per_day", "一天要出", 1e9, "token", low=0, high=1e15, kind="tokens", more=True, stops=(0, *log_stops(1e6, 1e13, 3))),
        currency_input(),
        *DATE,
    ),
    outputs=(
        Output("cost_per_m_out", "每百万输出", main=True, digits=5),
        Output("cost_per_m_in", "每百万输入（真算的）", main=True, digits=5),
        Output("cost_per_m_blended", "输入输出合计，每百万", main=True),
        Output("tok_s_per_gpu", "每卡 token/s，输入加输出", "token/s"),
        Output("gpus_needed", "一天要几张", "卡", main=True),
        Output("fleet_cost_per_day", "这些卡一天", digits=6),
    ),
    chart=_chart,
    formula=(
        "H = 卡时价 × 卡数 ÷ 3600 ÷ 利用率 × 1e6",
        "输出单价 = H ÷ 输出吞吐；输入单价 = H ÷ 输入吞吐",
        "分开测：合计 = (r × 未命中 × 输入单价 + 输出单价) ÷ (r + 1)",
        "同时跑：合计 = H ÷ (输入 + 输出吞吐)，两个单价各自背下整笔账",
    ),
    assumptions=("命中缓存的输入当成不花钱", "利用率对输入、输出一样"),
    leaves_out="不算 CPU、网络、存储、人力（常再加 30–100%，未核实），也不算为高峰备着的副本。",
    sources=("和第 20 章 cost-per-mtok、day-bill 同一条公式", "DeepSeek open-infra-index，Day 6（2025-03）：每台 73.7K 进、14.8K 出，一卡时 2 美元"),
)  # fmt: skip
def serve_cost(
    *, gpu_price_per_h: float, gpus: int, out_tok_s: float, in_tok_s: float, in_per_out: float, cache_hit: float, utilisation: float, rates: str,
    out_tokens_per_day: float, currency: str, price_year: int, price_month: int,
) -> Result:  # fmt: skip
    """Rent of an hour over the tokens of a worked hour; two phases share the cards in turn or run side by side."""
    w = Worked()
    price, cards, busy = quantity(gpu_price_per_h, SIGNS[currency]), quantity(gpus), quantity(utilisation)
    out_rate, in_rate = quantity(out_tok_s, "token/s", 12), quantity(in_tok_s, "token/s", 12)

    def cost(name: str, rate: Quantity) -> Quantity:
        hourly = w.line(f"一小时{name}，满载（百万）", mtok_per_h(rate, quantity(HOUR, "s"), quantity(1e6, "token")), "", 7)
        full = w.line(f"{name}，满载", cost_per_mtok(price, cards, hourly), SIGNS[currency], 7)
        return w.line(f"{name}，按利用率", full / busy, SIGNS[currency], 7)

    cost_out, cost_in = cost("输出", out_rate), cost("输入", in_rate)
    if rates == SEPARATE:
        ratio, miss = quantity(in_per_out, "", 12), w.line("要算的输入", 1 - quantity(cache_hit, "", 9), "", 9)
        mixed = w.line("合计", blended(ratio, miss, cost_in, cost_out), SIGNS[currency], 6)
        seconds = w.line("一个输出 token 占机器", seconds_per_output(out_rate, in_rate, ratio, miss), "µs", 7)
        each = w.line("每卡，输入加输出", (1 + ratio) / seconds / cards, "token/s", 6)
    else:
        both = w.line("输入加输出", in_rate + out_rate, "token/s", 12)
        mixed = cost("合计", both)
        seconds = w.line("一个输出 token 占机器", 1 / out_rate, "µs", 7)
        each = w.line("每卡，输入加输出", both / cards, "token/s", 6)
    needed = w.line("一天要几张", cards_for(cards, quantity(out_tokens_per_day), seconds, quantity(DAY, "s"), busy), "卡")
    daily = w.line("这些卡一天", day_cost(quantity(1), cards, quantity(24), price), SIGNS[currency], 6)
    return Result(
        values={
            "cost_per_m_out": cost_out.value, "cost_per_m_in": cost_in.value, "cost_per_m_blended": mixed.value, "tok_s_per_gpu": each,
            "gpus_needed": needed.value, "fleet_cost_per_day": daily.value,
        },
        lines=w.lines,
        verdict=_verdict(dated(price_year, price_month), mixed, cost_out, utilisation, needed, out_tokens_per_day, currency),
    )  # fmt: skip


def _verdict(date: str, mixed: Quantity, out: Quantity, utilisation: float, needed: Quantity, per_day: float, currency: str) -> str:
    head = f"{date}合计 {amount(mixed, currency, 3)}/百万 token，单看输出 {amount(out, currency, 3)}。"
    if not mixed.value:
        return head + "卡不要钱的话，token 也不要钱：填上报价再看。"
    idle = (
        f"利用率只有 {quantity(utilisation * 100, '%', 3).text}，同样的卡一直满载是 {amount(Quantity(mixed.value * utilisation, ''), currency, 3)}。"
        if utilisation < 1
        else "这是一直满载的价，没有哪项服务做得到。"
    )
    fleet = f"一天出 {format_number(per_day, 'cjk', 3)} token，要 {format_number(needed.value, digits=3)} 张卡（取整之前）。" if per_day else ""
    return head + idle + fleet
