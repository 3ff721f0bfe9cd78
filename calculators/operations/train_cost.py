"""What does a training run cost in card-hours, days, money and energy, and what did a published run achieve?"""

from __future__ import annotations

from calculators.catalog import Accelerator, Model, gpu_input
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Series
from calculators.core.errors import Refusal, refuse
from calculators.core.inputs import Scalar, choice, integer, linear_stops, log_stops, number, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.units import DAY, HOUR
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.cost import facility_energy
from calculators.formulas.training import card_seconds, implied_mfu, training_flops
from calculators.operations._custom_model import model_or_custom
from calculators.operations._money import DATE, SIGNS, amount, currency_input, dated

CHINCHILLA = 20
"""Tokens per parameter, Hoffmann et al. 2022."""


def _chart(run: Run, *, mfu: float, currency: str, **_: object) -> tuple[Chart, ...]:
    cost = float(run.values["cost"])  # type: ignore[arg-type]
    if not 0 < cost < 1e15:
        return ()
    shares = sorted({*linear_stops(0.1, 0.7, 0.02), mfu})
    return (
        LineChart(
            "MFU 就是折扣",
            "总运算量不变，钱和 MFU 成反比：从 20% 提到 40% 省一半，从 50% 提到 55% 只省一成。",
            Axis("MFU", "%"),
            Axis("费用", SIGNS[currency], low=0),
            (Series("费用", tuple((100 * s, cost * mfu / s) for s in shares), emphasis=True),),
            marks=(Mark("现在", 100 * mfu, cost, emphasis=True),),
        ),
    )


@calculator(
    title="训练一个模型要多少钱",
    question="这么多参数、这么多 token，要多少卡时、几天、多少钱、多少电？",
    chapter="23",
    inputs=(
        model_or_custom("llama-3-70b"),
        number("tokens", "训练 token 数", 15e12, "token", low=1e6, high=1e14, kind="tokens", stops=log_stops(1e9, 1e14, 5)),
        gpu_input(),
        integer("n_gpus", "卡数", 2048, "card", low=1, high=1_000_000, stops=powers_of_two(1, 65536)),
        number("mfu", "MFU", 0.40, low=0.01, high=1, kind="fraction", stops=linear_stops(0.05, 0.7, 0.05)),
        number("price", "一张卡一小时", 2.5, low=0, high=100, kind="money", stops=linear_stops(0, 10, 0.5), help="填你拿到的报价"),
        number("N", "参数量 N", None, "params", low=1e6, high=2e12, more=True, stops=log_stops(1e8, 1e12, 5), help="留空用模型的激活参数"),
        choice("flops_factor", "每参数每 token", 6, (6, 8), "FLOP", labels={"6": "6（MFU）", "8": "8（全部重算，按 HFU）"}, more=True),
        number("peak_tflops", "每卡峰值", None, "TFLOPS", low=1, high=1e5, more=True, stops=(125, 312, 756, 989, 1979, 2250), help="稠密；留空用这张卡的 BF16"),
        number("goodput", "goodput（有效时间）", 0.95, low=0.1, high=1, kind="fraction", more=True, stops=linear_stops(0.5, 1, 0.01), help="丢掉的时间也要付钱"),
        currency_input(),
        *DATE,
        number("kw_per_gpu", "每卡功率（含服务器）", 1.0, "kW", low=0.1, high=3, more=True, stops=linear_stops(0.1, 3, 0.1)),
        number("pue", "机房 PUE", 1.2, low=1, high=2, more=True, stops=linear_stops(1, 2, 0.05), help="总用电 ÷ 机器用电"),
        number("known_gpu_hours", "公布的卡时", 0, "GPU·h", low=0, high=1e10, more=True, stops=(0, *log_stops(1e3, 1e8, 3)), help="0 是没有；填了就反推它的利用率"),
    ),
    outputs=(
        Output("flops", "总运算量", "FLOP"),
        Output("gpu_hours", "卡时", "GPU·h", main=True, digits=6),
        Output("days", "天数", "day", main=True),
        Output("cost", "费用（所填币种）", main=True, digits=6),
        Output("energy_mwh", "用电", "MWh", main=True, digits=6),
        Output("tokens_per_param", "每参数 token 数"),
        Output("implied_mfu_pct", "公布的卡时折合利用率", "%"),
        Output("known_cost", "公布的卡时折合费用", digits=6),
        Output("known_days", "公布的卡时折合天数", "day"),
    ),
    chart=_chart,
    formula=(
        "总运算量 = 6 × N × token 数",
        "卡时 = 总运算量 ÷ (峰值 × MFU) ÷ goodput",
        "费用 = 卡时 × 单价；用电 = 卡时 × 功率 × PUE",
        "折合利用率 = 6 × N × token 数 ÷ (公布的卡时 × 峰值)",
    ),
    assumptions=("峰值用稠密 BF16，FP8 训练要自己填峰值", "加卡不掉 MFU；真实的扩展会掉（第 10、14 章）", "功率、PUE、单价都是假设，按合同改"),
    leaves_out="不算 attention 的运算、消融实验、失败的尝试、数据、评测和人。第一次做的项目，常见说法是再乘 2–4（未核实）。",
    sources=("6ND：Kaplan et al. 2020；Hoffmann et al. 2022", "和第 04 章 train-time 同一条公式", "公布的卡时：DeepSeek-V3 技术报告 Table 1；Llama 3.1 model card"),
)  # fmt: skip
def train_cost(
    *, model: Model | None, tokens: float, gpu: Accelerator, n_gpus: int, mfu: float, price: float, N: float | None, flops_factor: int,
    peak_tflops: float | None, goodput: float, currency: str, price_year: int, price_month: int, kw_per_gpu: float, pue: float, known_gpu_hours: float,
) -> Result:  # fmt: skip
    """6ND over the sustained rate of a card; lost time is paid for as well."""
    resolved: dict[str, Scalar] = {}
    if N is None:
        if model is None:
            raise refuse("N", "参数量 N 必须填，custom 没有预设可用", "空", "例如 70e9；MoE 填激活参数")
        N = resolved["N"] = model.active_params
    if peak_tflops is None:
        peak_tflops = resolved["peak_tflops"] = gpu.dense_tflops
    w = Worked()
    params, seen, peak, cards = quantity(N, "params", 8), quantity(tokens, "token"), quantity(peak_tflops, "TFLOPS"), quantity(n_gpus, "card")
    per_hour = quantity(price, SIGNS[currency])
    flops = w.line("总运算量", training_flops(params, seen, quantity(flops_factor, "FLOP")), "FLOP", 6)
    busy = w.line("在算的卡时", card_seconds(flops, peak, quantity(mfu)), "GPU·h", 7)
    paid = busy if goodput == 1 else w.line("付钱的卡时", busy / quantity(goodput), "GPU·h", 7)
    days = w.line("天数", paid / cards, "day")
    cost = w.line("费用（卡时 × 单价）", quantity(paid.value / HOUR, "", 8) * per_hour, SIGNS[currency], 6)
    energy = w.line("用电", facility_energy(paid, quantity(kw_per_gpu, "kW"), quantity(pue)), "MWh", 6)
    per_param = w.line("每参数 token 数", quantity(tokens / 1e9) / quantity(N / 1e9, "", 8))
    implied = known_cost = known_days = None
    published = ""
    if known_gpu_hours:
        known = quantity(known_gpu_hours, "GPU·h", 8)
        model_flops = flops if flops_factor == 6 else w.line("模型的运算量", training_flops(params, seen, quantity(6, "FLOP")), "FLOP", 6)
        implied = w.line("公布的卡时折合利用率", implied_mfu(model_flops, known, peak), "%", 5)
        if implied.value > 1:
            raise _above_peak(implied.value)
        known_cost = w.line("公布的卡时折合费用", quantity(known_gpu_hours, "", 8) * per_hour, SIGNS[currency], 6)
        known_days = w.line("公布的卡时折合天数", known / cards, "day")
        share = quantity(implied.value * 100, "%", 3).text
        published = (
            f"公布的 {known.text}，{cards.text}是 {quantity(known_days.value / DAY, 'day', 3).text}、{amount(known_cost, currency)}，折合利用率 {share}。"
        )
    return Result(
        values={
            "flops": flops, "gpu_hours": paid, "days": days, "cost": cost.value, "energy_mwh": energy, "tokens_per_param": per_param.value,
            "implied_mfu_pct": implied, "known_cost": None if known_cost is None else known_cost.value, "known_days": known_days,
        },
        lines=w.lines,
        verdict=_verdict(dated(price_year, price_month), paid, cards, days, cost, currency, published, mfu * goodput * 6 / flops_factor),
        resolved=resolved,
        notes=_notes(tokens / N),
    )  # fmt: skip


def _above_peak(share: float) -> Refusal:
    shown = f"{format_number(100 * share)}%" if share < 1e12 else "大得离谱"
    return refuse("known_gpu_hours", "公布的卡时折合利用率超过 100%", shown, "检查参数量（MoE 用激活参数）、token 数和峰值口径")


def _verdict(date: str, paid: Quantity, cards: Quantity, days: Quantity, cost: Quantity, currency: str, published: str, used: float) -> str:
    share = quantity(used * 100, "%", 3).text
    if published:
        return (
            f"{date}{published}照你填的 MFU 和 goodput（合 {share}）算，要 {quantity(paid.value / HOUR, 'GPU·h').text}。这只是最后一次训练的钱，实验和人另算。"
        )
    head = f"{date}{quantity(paid.value / HOUR, 'GPU·h').text}，{cards.text}跑 {quantity(days.value / DAY, 'day', 3).text}，{amount(cost, currency)}。"
    return f"{head}买来的峰值有 {share} 变成了模型（MFU × goodput）。这只是最后一次训练的钱，实验和人另算。"


def _notes(per_param: float) -> tuple[str, ...]:
    if per_param >= CHINCHILLA:
        return ()
    return (f"每参数只有 {format_number(per_param, digits=3)} 个 token，比 Chinchilla 的 {CHINCHILLA} 少：同样的钱，模型小一点、数据多一点更好。",)
