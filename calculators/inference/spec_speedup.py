"""How much faster is decoding with a draft model, which draft length is best, and what does it cost in arithmetic?"""

from __future__ import annotations

from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Rule, Series
from calculators.core.inputs import integer, linear_stops, number
from calculators.core.numbers import format_number
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.speculation import MOST_GAMMA, best_gamma, ops_factor, round_cost, tokens_closed, tokens_per_round
from calculators.formulas.speculation import speedup as speedup_of

ALPHAS = (0.6, 0.7, 0.8, 0.9)
"""Drawn for comparison."""
NEARLY_1 = 0.999
"""Above it the closed form divides two numbers next to 0: the line shows the sum instead."""


def _speed(alpha: float, gamma: int, c: float) -> float:
    return speedup_of(tokens_per_round(alpha, gamma), round_cost(float(gamma), c))


def _chart(run: Run, *, alpha: float, gamma: int, c: float, **_: object) -> tuple[Chart, ...]:
    shown = sorted({*ALPHAS, alpha})
    series = tuple(
        Series(f"α {format_number(a)}", tuple((float(g), _speed(a, g, c)) for g in range(MOST_GAMMA + 1)), emphasis=a == alpha, dashed=a != alpha)
        for a in shown
    )
    best = int(run.values["best_gamma"])  # type: ignore[arg-type]
    marks = [Mark("现在", float(gamma), _speed(alpha, gamma, c), emphasis=True)]
    if best != gamma:
        marks.append(Mark("最快", float(best), _speed(alpha, best, c)))
    return (
        LineChart(
            "一轮猜几个最快",
            f"每条线先升后降：猜得越远越难全中，草稿的时间却照付。c 是 {format_number(c)}。低于横线就是变慢。",
            Axis("每轮猜几个 γ", "token"),
            Axis("加速", "×", low=0),
            series,
            marks=tuple(marks),
            rules=(Rule("不快不慢", y=1.0),),
        ),
    )


@calculator(
    title="投机解码加速",
    question="猜中率、草稿快慢都知道了：一轮猜几个，能快几倍？",
    chapter="19",
    inputs=(
        number("alpha", "接受率 α", 0.8, low=0, high=1, stops=linear_stops(0, 1, 0.05), help="草稿的一个 token 被收下的概率"),
        integer("gamma", "每轮猜几个 γ", 4, "token", low=0, high=MOST_GAMMA, stops=(*linear_stops(0, 16, 1), 20, 24, 28, 32)),
        number("c", "草稿时间比 c", 0.05, low=0, high=2, stops=(0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.8, 1, 1.5, 2), help="草稿一步 ÷ 目标一步"),
        number("c_hat", "草稿运算比 ĉ", 0.05, low=0, high=1, more=True, stops=(0, 0.02, 0.05, 0.1, 0.2, 0.5, 1), help="草稿一个 token 的 FLOP ÷ 目标的"),
    ),
    outputs=(
        Output("tokens_per_round", "每轮 token 数 E", "token", main=True),
        Output("speedup", "加速 S", "×", main=True),
        Output("best_gamma", "最快的 γ", "token", main=True),
        Output("best_speedup", "最快时的加速", "×", main=True),
        Output("ops_factor", "每 token 的运算，是原来的", "×", main=True),
        Output("breakeven_tokens_per_round", "每轮至少几个才不亏", "token"),
        Output("tokens_per_round_limit", "每轮最多（全中）", "token"),
    ),
    chart=_chart,
    formula=(
        "E = 1 + α + … + α^γ = (1 − α^(γ+1)) ÷ (1 − α)",
        "S = E ÷ (1 + γ·c)；最快的 γ 在 0 到 32 里挨个试，并列取小的",
        "每 token 的运算 = (γ·ĉ + γ + 1) ÷ E",
    ),
    assumptions=("每个位置的 α 一样，互不相关", "验 γ + 1 个位置和算一个一样久：算力有富余时成立"),
    leaves_out="越靠后的位置接受率越低；γ 大、batch 大时验证变慢；不算采样和调度。论文实测是这个公式的 0.68–1.29 倍。",
    sources=("Leviathan et al. 2023（2211.17192）式 1、定理 3.8、3.11（编号据二手资料）",),
)  # fmt: skip
def spec_speedup(*, alpha: float, gamma: int, c: float, c_hat: float) -> Result:
    """E, S, best γ and the price in FLOPs."""
    w = Worked()
    a, g = quantity(alpha), quantity(gamma)
    value = tokens_per_round(alpha, gamma)
    if alpha > NEARLY_1:
        w.say(f"每轮 token 数：α 的 0 到 {gamma} 次方加起来 → {format_number(value, digits=6)}")
        tokens = quantity(value)
    else:
        tokens = w.line("每轮 token 数", Quantity(value, tokens_closed(a, g).text))
    cost = w.line("一轮要几个目标步", round_cost(g, quantity(c)))
    speed = w.line("加速", speedup_of(tokens, cost), "×")
    ops = w.line("每 token 的运算", ops_factor(g, quantity(c_hat), tokens), "×")
    best = best_gamma(alpha, c)
    top = _speed(alpha, best, c)
    w.say(f"γ 从 0 试到 {MOST_GAMMA} → 最快是 {best}，{quantity(top, '×', 4).text}")
    return Result(
        values={
            "tokens_per_round": value, "speedup": speed, "best_gamma": best, "best_speedup": top, "ops_factor": ops,
            "breakeven_tokens_per_round": cost.value, "tokens_per_round_limit": gamma + 1,
        },
        lines=w.lines,
        verdict=_verdict(gamma, speed, ops, best, top, cost, tokens),
    )  # fmt: skip


def _verdict(gamma: int, speed: Quantity, ops: Quantity, best: int, top: float, cost: Quantity, tokens: Quantity) -> str:
    if best == 0:
        start = "γ 是 0，没有投机" if gamma == 0 else f"每轮 {tokens.text} 个，要 {cost.text} 个才够本"
        slower = f"，会变慢，只有 {speed.text}" if speed.value < 1 else ""
        return f"{start}{slower}。接受率没超过草稿的时间比，猜几个都不赚：别开。"
    further = f"（只搜到 {MOST_GAMMA}）" if best == MOST_GAMMA else ""
    better = "γ 已经最快" if gamma == best else f"γ 取 {best} 最快，{quantity(top, '×', 4).text}"
    if gamma == 0:
        return f"γ 是 0，没有投机；{better}{further}。"
    if speed.value < 1:
        return f"会变慢：每轮 {tokens.text} 个，要 {cost.text} 个才够本，只有 {speed.text}；{better}{further}。"
    return f"快到 {speed.text}，每个 token 的运算是 {ops.text}；{better}{further}。"
