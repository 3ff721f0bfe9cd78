"""What does a million tokens cost on rented cards, and how much of that is the batch and the idle time?"""

from __future__ import annotations

from calculators.catalog import accelerator, model
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Rule, Series
from calculators.core.inputs import choice, integer, linear_stops, log_stops, number, powers_of_two
from calculators.core.units import HOUR, unit_of
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.inference import Engine, shape_of, step_parts
from calculators.formulas.price import blended, mtok_per_h
from calculators.formulas.price import cost_per_mtok as cost_of

CURRENCY = {"usd": ("$", "$/Mtok"), "cny": ("元", "元/Mtok")}
CURVE_CONTEXT = 2048.0
CURVE_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 192, 222)
"""Up to the KV limit of Llama-3-8B on one H100 at this context (chapter 17)."""


def _chart(run: Run, *, gpu_price_per_h: float, utilisation: float, currency: str, **_: object) -> tuple[Chart, ...]:
    gpu = accelerator("h100-sxm")
    shape, engine = shape_of(model("llama-3-8b")), Engine(gpu.dense_flops * 0.5, gpu.hbm_bytes_per_s * 0.8, 2.0, 2.0)

    def cost(batch: int) -> float:
        rate = batch / max(step_parts(shape, engine, float(batch), CURVE_CONTEXT))
        return cost_of(gpu_price_per_h, 1.0, mtok_per_h(rate, HOUR, 1e6))

    full = tuple((float(b), cost(b)) for b in CURVE_BATCHES)
    mine = run.values["cost_out_per_mtok"]
    assert isinstance(mine, float)
    return (
        LineChart(
            "同一张卡，batch 决定单价",
            "Llama-3-8B、一张 H100、2k 上下文，用你填的租价和利用率。两轴都是对数。横线是你填的吞吐折出的价。",
            Axis("batch", "request", log=True),
            Axis("每百万输出 token", CURRENCY[currency][0], log=True),
            (Series("一直满载", full, dashed=True), Series("按你的利用率", tuple((b, c / utilisation) for b, c in full), emphasis=True)),
            rules=(Rule("你填的", y=mine),),
        ),
    )


@calculator(
    title="每百万 token 成本",
    question="租来的卡，每百万输入、输出 token 折多少钱？",
    chapter="20",
    inputs=(
        number("gpu_price_per_h", "一张卡一小时", 2.0, low=0.1, high=50, kind="money", stops=log_stops(0.5, 50, 6), help="市场价变得快：填你拿到的报价"),
        choice("currency", "币种", "usd", ("usd", "cny"), labels={"usd": "美元", "cny": "人民币"}, help="不换算：价是什么币，结果就是什么币"),
        integer("price_year", "报价：年", 2026, low=2000, high=2100, more=True, help="价格是哪天的，只写进结论"),
        integer("price_month", "报价：月", 11, low=1, high=12, more=True),
        integer("n_gpus", "卡数", 1, "卡", low=1, high=100_000, stops=powers_of_two(1, 1024)),
        number("output_tok_s", "解码吞吐（全部卡）", 4442, "token/s", low=1, high=1e8, kind="count", stops=log_stops(100, 1e6, 5), help="这些卡只解码时的合计"),
        number("utilisation", "平均利用率", 0.4, low=0.01, high=1, kind="fraction", stops=linear_stops(0.05, 1, 0.05)),
        number("input_output_ratio", "输入是输出的几倍", 4, "×", low=0, high=1000, more=True, stops=(0, 1, 2, 3, 4, 6, 8, 10, 20, 50, 100)),
        number("input_tok_s", "prefill 吞吐（全部卡）", 31_800, "token/s", low=1, high=1e9, kind="count", more=True, stops=log_stops(1000, 1e7, 5), help="同样的卡只做 prefill 时的合计"),
        number("cache_hit", "输入的缓存命中", 0, low=0, high=1, kind="fraction", more=True, stops=linear_stops(0, 1, 0.05), help="命中的输入当成不花钱"),
    ),
    outputs=(
        Output("cost_out_full_per_mtok", "每百万输出 token，一直满载", digits=5),
        Output("cost_out_per_mtok", "每百万输出 token", main=True, digits=5),
        Output("cost_in_per_mtok", "每百万输入 token", main=True),
        Output("blended_per_mtok", "输入输出合计，每百万", main=True),
    ),
    chart=_chart,
    formula=("满载单价 = 卡时价 × 卡数 ÷ (token/s × 3600 ÷ 1e6)", "单价 = 满载单价 ÷ 利用率", "合计 = (r × 未命中 × 输入单价 + 输出单价) ÷ (r + 1)"),
    assumptions=("两个吞吐属于同样的卡、同一个模型", "输入、输出分开计价：各自当成卡只干这一件事"),
    leaves_out="不算 CPU、网络、存储、人力（常再加 30–100%，判断），也不算故障和流量费。",
    sources=("4442 token/s：第 17 章 Llama-3-8B、一张 H100、batch 32、上下文 1024", "31,800 token/s：第 15 章 2048 token 的 prefill 64.4 ms"),
)  # fmt: skip
def cost_per_mtok(
    *, gpu_price_per_h: float, currency: str, price_year: int, price_month: int, n_gpus: int, output_tok_s: float, utilisation: float, input_output_ratio: float,
    input_tok_s: float, cache_hit: float,
) -> Result:  # fmt: skip
    """Rent of an hour over the tokens of an hour, divided by the share of time that is worked."""
    unit, per_mtok = CURRENCY[currency]
    money = unit_of(unit).label
    w = Worked()
    price, cards, busy, ratio = quantity(gpu_price_per_h), quantity(n_gpus), quantity(utilisation), quantity(input_output_ratio)

    def full(name: str, rate: float) -> Quantity:
        hourly = w.line(f"一小时的{name}（百万 token）", mtok_per_h(quantity(rate, "token/s", 10), quantity(HOUR, "s"), quantity(1e6, "token")), "", 6)
        return w.line(f"每百万{name}，满载（{money}）", cost_of(price, cards, hourly), "", 6)

    out_full, in_full = full("输出", output_tok_s), full("输入", input_tok_s)
    cost_out = w.line(f"每百万输出，按利用率（{money}）", out_full / busy, "", 6)
    cost_in = w.line(f"每百万输入，按利用率（{money}）", in_full / busy, "", 6)
    miss = w.line("要算的输入", 1 - quantity(cache_hit), "", 6)
    mixed = w.line(f"合计，每百万（{money}）", blended(ratio, miss, cost_in, cost_out), "")
    return Result(
        values={
            "cost_out_full_per_mtok": out_full.value, "cost_out_per_mtok": cost_out.value, "cost_in_per_mtok": cost_in.value, "blended_per_mtok": mixed.value,
        },
        lines=w.lines,
        verdict=_verdict(cost_out, cost_in, out_full, utilisation, f"{price_year} 年 {price_month} 月", per_mtok),
    )  # fmt: skip


def _verdict(cost_out: Quantity, cost_in: Quantity, out_full: Quantity, utilisation: float, date: str, unit: str) -> str:
    head = f"按 {date}的租价：输出 {_short(cost_out, unit)}，输入 {_short(cost_in, unit)}。"
    if utilisation < 1:
        return head + f"闲着的时间也付钱：一直满载时输出是 {_short(out_full, unit)}。"
    return head + "这是一直满载的价，实际一定更高。"


def _short(x: Quantity, unit: str) -> str:
    return quantity(x.value, unit, 4).text
