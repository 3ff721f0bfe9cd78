"""How many days and how much money does a training run take?"""

from __future__ import annotations

from calculators.catalog import Accelerator, Model, gpu_input, model_input
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Series
from calculators.core.inputs import Scalar, integer, linear_stops, log_stops, number, powers_of_two
from calculators.core.units import DAY, HOUR
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.training import card_seconds, implied_mfu, training_flops

MFUS = (0.20, 0.40, 0.55)
"""Unoptimised, framework default, excellent (chapter 01's scale)."""


def _chart(run: Run, *, gpu: Accelerator, n_gpus: int, goodput: float, **_: object) -> tuple[Chart, ...]:
    flops, now = float(run.values["flops"]), float(run.values["days"])  # type: ignore[arg-type]
    if not 1e-9 < now < 1e12:
        return ()  # no axis shows both this and a run that anyone would start
    fewest, most = min(8.0, float(n_gpus)), max(131_072.0, float(n_gpus))
    counts = [fewest * (most / fewest) ** (i / 20) for i in range(21)]

    def days(mfu: float, cards: float) -> float:
        return card_seconds(flops, gpu.dense_flops, mfu) / goodput / cards / DAY

    curves = tuple(Series(f"MFU {mfu:.0%}", tuple((c, days(mfu, c)) for c in counts), emphasis=mfu == 0.40) for mfu in MFUS)
    return (
        LineChart(
            "卡数和天数",
            "两轴都是对数，三条平行线：卡数翻倍，天数减半（假设 MFU 不掉）；线与线的间距就是优化值多少。",
            Axis("卡数", "card", log=True),
            Axis("天数", "day", log=True),
            curves,
            marks=(Mark("现在", float(n_gpus), now, emphasis=True),),
        ),
    )


@calculator(
    title="训练要多少天、多少钱",
    question="这么多 token，这么多卡，要训几天、花多少钱？",
    chapter="04",
    inputs=(
        model_input(),
        number("tokens", "训练 token 数 D", 15e12, "token", low=1e6, high=1e15, kind="tokens", stops=log_stops(1e9, 1e14, 5)),
        gpu_input(),
        integer("n_gpus", "卡数", 1024, "card", low=1, high=1_000_000, stops=powers_of_two(1, 65536)),
        number("mfu", "MFU", 0.40, low=0, high=1, low_open=True, kind="fraction", stops=linear_stops(0.05, 0.7, 0.05)),
        number("N", "参数量 N", None, "params", low=1e6, high=1e13, more=True, stops=log_stops(1e8, 1e12, 5), help="留空用模型的激活参数"),
        number("goodput", "goodput（有效时间）", 0.95, low=0, high=1, low_open=True, kind="fraction", more=True, stops=linear_stops(0.5, 1, 0.01), help="故障、重启、检查点之外还剩的时间；丢掉的时间也要付钱"),
        number("gpu_price_per_h", "单价", 20, "元/卡·时", low=0, high=500, kind="money", more=True, stops=linear_stops(0, 60, 1), help="假设的租价，按你的合同改"),
        number("known_gpu_hours", "公布的卡时", None, "GPU·h", low=0, low_open=True, more=True, help="有公开数字时填，反推它的 MFU"),
    ),
    outputs=(
        Output("flops", "总运算量", "FLOP"),
        Output("gpu_hours_ideal", "卡时（不出故障）", "GPU·h", digits=6),
        Output("gpu_hours", "卡时", "GPU·h", main=True, digits=6),
        Output("days_ideal", "天数（不出故障）", "day"),
        Output("days", "天数", "day", main=True),
        Output("cost_wan", "费用", "万元", main=True),
        Output("implied_mfu_pct", "公布的卡时折合 MFU", "%"),
    ),
    chart=_chart,
    formula=("总运算量 = 6 × N × D", "卡时 = 总运算量 ÷ (峰值 × MFU) ÷ goodput", "天数 = 卡时 ÷ 卡数 ÷ 24", "折合 MFU = 总运算量 ÷ (公布的卡时 × 峰值)"),
    assumptions=("峰值用稠密 BF16，FP8 训练也折成它", "加卡不掉 MFU；真实的扩展会掉（第 10、14 章）"),
    leaves_out="不算 attention 的运算（8K 长度多 27%，按因果一半算多 13%）、评测、失败的尝试和数据处理。",
    sources=("6ND：Kaplan et al. 2020；Hoffmann et al. 2022", "公布的卡时：Llama 3 / 3.1 model card，DeepSeek-V3 技术报告 Table 1", "峰值：硬件目录；单价是假设"),
)  # fmt: skip
def train_time(
    *,
    model: Model,
    tokens: float,
    gpu: Accelerator,
    n_gpus: int,
    mfu: float,
    N: float | None,
    goodput: float,
    gpu_price_per_h: float,
    known_gpu_hours: float | None,
) -> Result:
    """6ND ÷ (peak × MFU), lost time paid as well; the same hours as chapter 23's ``train-cost``."""
    resolved: dict[str, Scalar] = {}
    if N is None:
        N = resolved["N"] = model.active_params
    w = Worked()
    peak, cards = quantity(gpu.dense_tflops, "TFLOPS"), quantity(n_gpus, "card")
    flops = w.line("总运算量", training_flops(quantity(N, "params"), quantity(tokens, "token"), quantity(6, "FLOP")), "FLOP", 6)
    busy = w.line("卡时（不出故障）", card_seconds(flops, peak, quantity(mfu)), "GPU·h", 6)
    paid = busy if goodput == 1 else w.line("卡时", busy / quantity(goodput), "GPU·h", 6)
    days_ideal = busy.value / n_gpus / DAY
    days = w.line("天数", paid / cards, "day")
    hours = quantity(paid.value / HOUR)
    cost = w.line("费用（卡时 × 单价）", hours * quantity(gpu_price_per_h, "元/卡·时"), "万元")
    implied, published = None, ""
    notes: tuple[str, ...] = ()
    if known_gpu_hours is not None:
        implied = w.line("公布的卡时折合 MFU", implied_mfu(flops, quantity(known_gpu_hours, "GPU·h"), peak), "%")
        published = f"公布的 {quantity(known_gpu_hours, 'GPU·h').text}折合 MFU {implied.text}。"
        if implied.value > 1:
            notes = ("折合的 MFU 超过 100%：卡时、参数量（MoE 要用激活参数）或峰值对不上。",)
    return Result(
        values={
            "flops": flops, "gpu_hours_ideal": busy, "gpu_hours": paid, "days_ideal": days_ideal, "days": days, "cost_wan": cost, "implied_mfu_pct": implied,
        },
        lines=w.lines,
        verdict=f"{cards.text} {gpu.name} 要跑 {days.text}，花 {cost.text}。{published}{_advice(mfu, days, cost)}",
        resolved=resolved,
        notes=notes,
    )  # fmt: skip


def _advice(mfu: float, days: Quantity, cost: Quantity) -> str:
    """What a better MFU would save, in the reader's own days and money."""
    better = MFUS[-1]
    if mfu >= better:
        return "MFU 已经到顶，再省只剩少出故障（goodput）和换更便宜的卡时。"
    share = 1 - mfu / better
    saved_days, saved = quantity(days.value * share / DAY, "day", 3), quantity(cost.value * share / 1e4, "万元", 3)
    return f"MFU 从 {quantity(mfu * 100, '%', 3).text} 提到 {quantity(better * 100, '%').text}，少 {saved_days.text}，省 {saved.text}。"
