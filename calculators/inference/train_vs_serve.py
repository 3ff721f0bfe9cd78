"""After how many served tokens has inference cost more than training?"""

from __future__ import annotations

from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Series
from calculators.core.inputs import linear_stops, log_stops, number
from calculators.core.numbers import format_number
from calculators.core.worked import N, Quantity, Worked, quantity
from calculators.formulas.training import training_flops

SIX, TWO = quantity(6, "FLOP"), quantity(2, "FLOP")


def per_token(params: N, two: N) -> N:
    """Forward pass of one token."""
    return two * params


def _chart(run: Run, *, tokens_per_day: float, util_train: float, util_serve: float, **_: object) -> tuple[Chart, ...]:
    days, by_cards = (float(run.values[name]) for name in ("breakeven_days", "breakeven_days_gpu"))  # type: ignore[arg-type]
    end = 2 * max(days, by_cards)
    speed = by_cards / days
    if not 1e-12 < speed < 1e12:
        return ()
    return (
        LineChart(
            "上线第几天，推理追平训练",
            "纵轴 1 是训练的那一次。按卡时算的线，斜率是按运算算的线的（训练利用率 ÷ 推理利用率）倍。",
            Axis("上线天数", "day", low=0),
            Axis("推理累计 ÷ 训练", "×", low=0),
            (
                Series("按运算", ((0.0, 0.0), (end, end / days))),
                Series("按卡时", ((0.0, 0.0), (end, end / by_cards)), emphasis=True),
                Series("训练", ((0.0, 1.0), (end, 1.0)), dashed=True),
            ),
            marks=(Mark("按运算追平", days, 1.0), Mark("按卡时追平", by_cards, 1.0, emphasis=True)),
        ),
    )


@calculator(
    title="什么时候推理花得比训练多",
    question="训练一次付清，推理每个 token 都付：多久追平？",
    chapter="15",
    inputs=(
        number("n_params", "参数量", 8.03e9, "params", low=1e6, high=1e13, stops=log_stops(1e9, 1e12, 5), help="MoE 填激活的；追平点和它无关"),
        number("train_tokens", "训练用了", 15e12, "token", low=1e6, high=1e15, kind="tokens", stops=log_stops(1e11, 1e14, 5)),
        number("tokens_per_day", "每天服务", 1e12, "token", low=1, high=1e15, kind="tokens", stops=log_stops(1e8, 1e14, 3), help="提示和输出都算"),
        number("util_train", "训练的利用率", 0.40, low=0.001, high=1, kind="fraction", stops=linear_stops(0.05, 1, 0.05)),
        number("util_serve", "推理的利用率", 0.10, low=0.001, high=1, kind="fraction", stops=linear_stops(0.05, 1, 0.05), help="峰值的几成真在算；batch 小的 decode 远低于这个数"),
    ),
    outputs=(
        Output("breakeven_days_gpu", "按卡时追平", "day", main=True),
        Output("breakeven_days", "按运算追平", "day", main=True),
        Output("breakeven_tokens", "按运算：服务了", "token", main=True),
        Output("breakeven_tokens_gpu", "按卡时：服务了", "token", main=True),
        Output("train_flop", "训练的运算", "FLOP"),
    ),
    chart=_chart,
    formula=("训练 6·N·D，推理每个 token 2·N：追平要 3·D 个 token", "按卡时再乘 推理利用率 ÷ 训练利用率", "天数 = 要的 token ÷ 每天的 token"),
    assumptions=("attention 两边都不计；同一种卡", "利用率是全程平均：训练含停机，推理含空转"),
    leaves_out="不算失败的训练、消融实验和强化学习的采样（那本身就是推理）。",
    sources=("6ND 与 2N：Kaplan et al. 2020", "两个利用率是假设，填你自己的"),
)  # fmt: skip
def train_vs_serve(*, n_params: float, train_tokens: float, tokens_per_day: float, util_train: float, util_serve: float) -> Result:
    """6ND against 2N a token; the parameters cancel."""
    w = Worked()
    params, data = quantity(n_params, "params"), quantity(train_tokens, "token")
    train = w.line("训练", training_flops(params, data, SIX), "FLOP")
    each = w.line("推理一个 token", per_token(params, TWO), "FLOP")
    tokens = w.line("按运算追平", train / each, "token")
    tokens_gpu = w.line("按卡时追平", tokens * quantity(util_serve) / quantity(util_train), "token")
    a_day = quantity(tokens_per_day, "token")
    days, days_gpu = w.line("按运算，几天", tokens / a_day), w.line("按卡时，几天", tokens_gpu / a_day)
    return Result(
        values={
            "train_flop": train, "breakeven_tokens": tokens, "breakeven_days": days.value, "breakeven_tokens_gpu": tokens_gpu, "breakeven_days_gpu": days_gpu.value,
        },
        lines=w.lines,
        verdict=_verdict(days, days_gpu, tokens_gpu, util_train, util_serve),
    )  # fmt: skip


def _verdict(days: Quantity, days_gpu: Quantity, tokens: Quantity, util_train: float, util_serve: float) -> str:
    when = f"按卡时，服务 {tokens.text}、也就是 {days_gpu.text} 天后，推理就比训练花得多"
    if util_serve == util_train:
        return when + "；两边利用率一样，按运算也是这么多。"
    why = f"推理只用上峰值的 {format_number(100 * util_serve)}%，同样的运算占更多卡时" if util_serve < util_train else "推理的利用率比训练还高，核对一下"
    return when + f"；只数运算是 {days.text} 天。{why}。"
