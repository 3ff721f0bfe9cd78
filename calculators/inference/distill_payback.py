"""After how many output tokens has a distilled model paid for its training?"""

from __future__ import annotations

from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Series
from calculators.core.errors import refuse
from calculators.core.inputs import log_stops, number
from calculators.core.worked import Worked, quantity
from calculators.formulas.distillation import breakeven_mtok

LONG_DAYS = 365.0
"""A teacher is replaced within about a year: a slower payback is a bet that it is not."""
SHORT_DAYS = 30.0
"""A payback within a month needs no bet at all."""


def _chart(run: Run, *, one_off_usd: float, teacher_usd_per_mtok: float, student_usd_per_mtok: float, tokens_per_day: float, **_: object) -> tuple[Chart, ...]:
    meet = float(run.values["breakeven_days"])  # type: ignore[arg-type]
    if not 1e-9 < meet < 1e12:
        return ()  # no axis shows both this and a day
    mtok = tokens_per_day / 1e6
    ends = (0.0, 2 * meet)
    return (
        LineChart(
            "两条账单在哪里相交",
            "老师从零起步、走得陡；学生先付一笔训练账，走得平。交点之前是亏的。",
            Axis("上线后的天数", "day", low=0),
            Axis("累计花费", "$", low=0),
            (
                Series("一直用老师", tuple((x, teacher_usd_per_mtok * mtok * x) for x in ends)),
                Series("蒸馏出学生", tuple((x, one_off_usd + student_usd_per_mtok * mtok * x) for x in ends), emphasis=True),
            ),
            (Mark("回本", meet, teacher_usd_per_mtok * mtok * meet, emphasis=True),),
        ),
    )


@calculator(
    title="多少流量才回本",
    question="蒸馏的那笔钱，服务多少 token 才赚回来？",
    chapter="18b",
    inputs=(
        number("one_off_usd", "一次性花费", 2658, "$", low=0, high=1e9, kind="money", stops=log_stops(100, 1e7, 3), help="蒸馏要花多少，从上一张卡片抄"),
        number("teacher_usd_per_mtok", "老师，每百万 token", 0.520, "$", low=1e-4, high=1000, kind="money", stops=log_stops(0.05, 50, 5)),
        number("student_usd_per_mtok", "学生，每百万 token", 0.0764, "$", low=1e-4, high=1000, kind="money", stops=log_stops(0.01, 10, 5)),
        number("tokens_per_day", "每天的输出 token", 1e8, "token", low=1, high=1e13, kind="tokens", stops=log_stops(1e6, 1e12, 3)),
    ),
    outputs=(
        Output("saving_usd_per_mtok", "每百万 token 省", "$/Mtok", main=True),
        Output("price_ratio", "单价之比", "×"),
        Output("breakeven_tokens", "回本要服务", "token", main=True),
        Output("breakeven_days", "回本要", "day", main=True),
    ),
    chart=_chart,
    formula=("每百万 token 省 = 老师的价 − 学生的价", "回本 = 一次性花费 ÷ 每百万 token 省，单位是百万 token", "天数 = 回本的 token ÷ 每天的 token"),
    assumptions=(
        "两个单价是第 20 章的满载价：第 15 章的一步时间，batch 64，上下文 1024，每卡时 2 美元",
        "70B 用 4 张 H100，8B 用 1 张；MBU 0.8、MFU 0.5",
    ),
    leaves_out="不算质量变差的损失、老师换代后重蒸一次的钱，也不算闲着的卡：两个单价按量付，或一直满载。包着的卡要按卡数算，回本和流量无关。",
    sources=("单价：第 20 章的 cost-per-mtok", "一次性花费：同章的 distill-cost"),
)  # fmt: skip
def distill_payback(*, one_off_usd: float, teacher_usd_per_mtok: float, student_usd_per_mtok: float, tokens_per_day: float) -> Result:
    """One-off cost over the price gap."""
    if student_usd_per_mtok >= teacher_usd_per_mtok:
        raise refuse("student_usd_per_mtok", "学生不比老师便宜，没有回本点", f"{student_usd_per_mtok:g} ≥ {teacher_usd_per_mtok:g}", "换更小的学生，或查单价")
    w = Worked()
    teacher, student = quantity(teacher_usd_per_mtok, "$/Mtok"), quantity(student_usd_per_mtok, "$/Mtok")
    saving = w.line("每百万 token 省", teacher - student, "$/Mtok", 6)
    ratio = w.line("单价之比", teacher / student, "×")
    mtok = w.line("回本（百万 token）", breakeven_mtok(quantity(one_off_usd, "$"), teacher, student), "", 6)
    tokens = w.line("折成 token", mtok * quantity(1e6, "token"), "token", 6)
    days = w.line("天数", tokens / quantity(tokens_per_day, "token"), "", 6)
    in_days = quantity(days.value, "day", 4)
    return Result(
        values={"saving_usd_per_mtok": saving, "price_ratio": ratio, "breakeven_tokens": tokens, "breakeven_days": days.value},
        lines=w.lines,
        verdict=f"每百万 token 省 {saving.text}，服务 {quantity(tokens.value, 'token', 4).text} 才回本，照现在的流量要 {in_days.text}。{_advice(days.value)}",
    )


def _advice(days: float) -> str:
    if days == 0:
        return "没有一次性的花费，从第一个 token 起就省。"
    if days <= SHORT_DAYS:
        return "不到一个月就回本：值得蒸，先拿一个任务验质量。"
    if days > LONG_DAYS:
        return "一年都回不来，老师多半先换代了：流量起来之前别蒸。"
    return "老师在这之前不换代、流量撑得住，这笔账才成立。"
