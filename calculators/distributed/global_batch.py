"""How large is the global batch, and what does a batch of that size cost in steps and in data?"""

from __future__ import annotations

import math

from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Series
from calculators.core.errors import refuse
from calculators.core.inputs import integer, log_stops, number, powers_of_two
from calculators.core.numbers import format_number, format_value
from calculators.core.worked import Quantity, Worked, ceil, quantity
from calculators.formulas.data_parallel import data_factor, steps_factor

WIDEST, POINTS = 1e3, 60
"""The curve runs from B = B_crit ÷ 1000 to B_crit × 1000, further when the batch does."""


def _chart(run: Run, *, b_crit_tokens: float, **_: object) -> tuple[Chart, ...]:
    data, steps = (float(run.values[name]) for name in ("data_factor", "steps_factor"))  # type: ignore[arg-type]
    ratio = float(run.values["batch_tokens"]) / b_crit_tokens  # type: ignore[arg-type]
    reach = math.log10(max(WIDEST, ratio * 3, 3 / ratio))
    ratios = [10 ** (reach * (2 * i / (POINTS - 1) - 1)) for i in range(POINTS)]
    return (
        LineChart(
            "同样的 loss，用步数换数据",
            "双曲线上每一点都练到同样的 loss。往左上：batch 小，数据省，步数多；往右下：batch 大，步数到了底，数据成倍地烧。拐弯处就是临界批。",
            Axis("数据，是最少的几倍", "×", log=True),
            Axis("步数，是最少的几倍", "×", log=True),
            (Series("同样的 loss", tuple((data_factor(r, 1.0), steps_factor(r, 1.0)) for r in ratios), emphasis=True),),
            marks=(Mark("临界批", 2.0, 2.0), Mark("现在", data, steps, emphasis=True)),
        ),
    )


@calculator(
    title="全局批与临界批",
    question="全局 batch 有多大？再大下去，省下的步数值不值多烧的数据？",
    chapter="10",
    inputs=(
        integer("micro_batch", "micro-batch", 1, "sequence", low=1, high=1024, stops=powers_of_two(1, 128)),
        integer("accum", "累积几次", 1, low=1, high=4096, stops=powers_of_two(1, 1024)),
        integer("dp", "数据并行", 64, "卡", low=1, high=65_536, stops=powers_of_two(1, 65_536), help="几份模型；不算张量、流水线并行占的卡"),
        integer("seq", "序列长度", 8192, "token", low=128, high=1_000_000, kind="tokens", stops=powers_of_two(512, 131_072)),
        number("b_crit_tokens", "临界批，你的估计", 4e6, "token", low=1e5, high=1e8, stops=log_stops(1e5, 1e8, 6), help="训练中会变大，按 ±3 倍看"),
        number("tokens_total", "一共训多少", 1e12, "token", low=1e6, high=1e14, more=True, stops=log_stops(1e9, 1e14, 3)),
    ),
    outputs=(
        Output("batch_seqs", "全局 batch", "sequence"),
        Output("batch_tokens", "全局 batch", "token", main=True, digits=7),
        Output("steps", "步数", "step", main=True),
        Output("steps_factor", "步数，是最少的", "×", main=True),
        Output("data_factor", "数据，是最少的", "×", main=True),
        Output("comm_per_token_vs_accum1", "每 token 通信，比不累积", "×"),
    ),
    chart=_chart,
    formula=("B = micro-batch × 累积 × 数据并行 × 序列长度", "步数 ÷ 最少 = 1 + B_crit/B；数据 ÷ 最少 = 1 + B/B_crit"),
    assumptions=("B_crit 是常数；学习率按 batch 重新调过", "累积时只在最后一个 micro-batch 之后同步一次（DDP 的 no_sync）"),
    leaves_out="B_crit 在训练中变大，也随优化器变：按 ±3 倍看。不算学习率没调好的损失，也不算长短不一的样本（按 token 加权，见 ring-allreduce-lab）。",
    sources=("McCandlish et al. 2018, An Empirical Model of Large-Batch Training：步数与数据的权衡（公式凭记忆，没有对过原文）",),
)  # fmt: skip
def global_batch(*, micro_batch: int, seq: int, accum: int, dp: int, b_crit_tokens: float, tokens_total: float) -> Result:
    """Sequences and tokens of a global batch, and its place on the curve of equal loss."""
    w = Worked()
    seqs = w.line("全局 batch", quantity(micro_batch, "sequence") * quantity(accum) * quantity(dp), "sequence")
    batch = w.line("合 token", seqs * quantity(seq, "token"), "token", 6)
    if batch.value > tokens_total:
        raise refuse("tokens_total", "一共训多少，不能比一个 batch 还少", f"{format_value(tokens_total, 'token')} < {batch.text}", "减小 batch，或多训一点")
    steps = w.line("步数", ceil(quantity(tokens_total, "token") / batch), "step")
    critical = quantity(b_crit_tokens, "token")
    more_steps = w.line("步数，是最少的", steps_factor(batch, critical), "×")
    more_data = w.line("数据，是最少的", data_factor(batch, critical), "×")
    return Result(
        values={
            "batch_seqs": micro_batch * accum * dp, "batch_tokens": micro_batch * accum * dp * seq, "steps": round(steps.value),
            "steps_factor": more_steps, "data_factor": more_data, "comm_per_token_vs_accum1": 1 / accum,
        },
        lines=w.lines,
        verdict=_verdict(batch, critical, more_steps, more_data),
    )  # fmt: skip


def _verdict(batch: Quantity, critical: Quantity, steps: Quantity, data: Quantity) -> str:
    ratio = batch.value / critical.value
    head = f"全局 batch {batch.text}，是临界批的 {format_number(ratio, digits=3)} 倍。"
    if ratio <= 0.5:
        fewer, more = 100 / (2 * (1 + ratio)), 100 * ratio / (1 + ratio)
        return head + f"还小：再翻一倍，步数少 {format_number(fewer, digits=2)}%，数据只多 {format_number(more, digits=2)}%。有卡就加。"
    if ratio <= 2:
        return head + f"就在拐弯处：步数是最少的 {steps.text}，数据是 {data.text}。再大，多烧的数据会比省下的步数多。"
    return head + f"过头了：步数是最少的 {steps.text}，降不下去了，数据却要 {data.text}。多出来的卡换别的并行，别再加大 batch。"
