"""Which acceptance rate stands behind a measured time per token, or behind a measured number of tokens per round?"""

from __future__ import annotations

from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Series
from calculators.core.errors import refuse
from calculators.core.inputs import choice, integer, linear_stops, log_stops, number
from calculators.core.numbers import format_number
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.speculation import alpha_for, measured_tokens, tokens_per_round

ROUNDING = 1e-12
POINTS = 51


def _chart(run: Run, *, gamma: int, **_: object) -> tuple[Chart, ...]:
    alpha, tokens = float(run.values["alpha"]), float(run.values["tokens_per_round"])  # type: ignore[arg-type]
    grid = [i / (POINTS - 1) for i in range(POINTS)]
    lengths = sorted({1, 4, 8, gamma})
    return (
        LineChart(
            "从每轮 token 数往回读接受率",
            "横线过测得的每轮 token 数，和你的 γ 那条线相交处就是 α。越往右越陡：α 高的时候，一点误差差不了多少 α。",
            Axis("接受率 α"),
            Axis("每轮 token 数", "token", low=0),
            tuple(Series(f"γ {g}", tuple((a, tokens_per_round(a, g)) for a in grid), emphasis=g == gamma, dashed=g != gamma) for g in lengths),
            marks=(Mark("测得", alpha, tokens, emphasis=True),),
        ),
    )


@calculator(
    title="反推接受率",
    question="测到了每个 token 的时间，草稿到底猜中几成？",
    chapter="19",
    inputs=(
        choice("mode", "手里有", "time", ("time", "tokens"), labels={"time": "每个 token 的时间", "tokens": "每轮 token 数"}),
        number("measured_ms", "开投机后每 token", 5.73, "ms", low=1e-3, high=1e4, only_if=("mode", ("time",)), stops=(3, 4, 5, 5.73, 6, 7, 7.52, 8, 10, 12, 14)),
        number("target_ms", "目标一步", 14.1, "ms", low=1e-3, high=1e4, only_if=("mode", ("time",)), stops=log_stops(1, 100)),
        number("draft_ms", "草稿一步", 1.8, "ms", low=0, high=1e4, only_if=("mode", ("time",)), stops=(0, 0.2, 0.5, 1, 1.8, 3, 5, 10)),
        integer("gamma", "每轮猜几个 γ", 4, "token", low=1, high=32, stops=(*linear_stops(1, 16, 1), 20, 24, 28, 32)),
        number("measured_tokens_per_round", "测得每轮", 3.7, "token", low=1, high=33, only_if=("mode", ("tokens",)), stops=linear_stops(1, 9, 0.1), help="含目标自己的那一个：1 + 收下的 ÷ 轮数"),
    ),
    outputs=(
        Output("tokens_per_round", "每轮 token 数", "token", main=True),
        Output("alpha", "接受率 α", main=True, digits=5),
        Output("speedup", "加速", "×", main=True),
    ),
    chart=_chart,
    formula=("每轮 token 数 = (目标一步 + γ × 草稿一步) ÷ 测得的每 token", "α：对 1 + α + … + α^γ 二分，直到等于每轮 token 数", "加速 = 目标一步 ÷ 测得的每 token"),
    assumptions=("验一次和目标一步一样久", "每个位置的 α 一样；树形草稿不合这条式子，直接用测得的每轮 token 数"),
    leaves_out="采样、调度、批处理的时间都算进了测得的每 token，会把 α 压低。",
    sources=("Leviathan et al. 2023（2211.17192）式 1", "默认值：Chen et al. 2023（2302.01318）表 1，HumanEval"),
)  # fmt: skip
def alpha_from_measurement(*, mode: str, measured_ms: float, draft_ms: float, target_ms: float, gamma: int, measured_tokens_per_round: float) -> Result:
    """Invert E(α, γ)."""
    w = Worked()
    speed: Quantity | None = None
    if mode == "time":
        target, measured = quantity(target_ms, "ms"), quantity(measured_ms, "ms")
        tokens = w.line("每轮 token 数", measured_tokens(target, quantity(draft_ms, "ms"), quantity(gamma), measured))
        speed = w.line("加速", target / measured, "×")
    else:
        tokens = quantity(measured_tokens_per_round)
    _check(mode, tokens.value, gamma)
    alpha = alpha_for(tokens.value, gamma)
    w.say(f"二分：每轮 {tokens.text} 个，一轮猜 {gamma} 个 → α {format_number(alpha)}")
    return Result(values={"tokens_per_round": tokens.value, "alpha": alpha, "speedup": speed}, lines=w.lines, verdict=_verdict(alpha, tokens, speed, gamma))


def _check(mode: str, tokens: float, gamma: int) -> None:
    name, label = ("measured_ms", "开投机后每 token") if mode == "time" else ("measured_tokens_per_round", "测得每轮")
    most = gamma + 1
    if 1 - ROUNDING <= tokens <= most * (1 + ROUNDING):
        return
    raise refuse(name, f"{label}：测量值不可能，检查计时", f"折成每轮 {format_number(tokens)} 个 token", f"一轮只能有 1 到 {most} 个")


def _verdict(alpha: float, tokens: Quantity, speed: Quantity | None, gamma: int) -> str:
    start = f"猜 {gamma} 个，每轮吐 {tokens.text} 个，接受率 {format_number(alpha, digits=3)}"
    if speed is None:
        return f"{start}。快多少还要看草稿的时间：把 α 填进「投机解码加速」。"
    if speed.value < 1:
        return f"{start}，可每个 token 比不开还慢（{speed.text}）：草稿太慢，或者没猜中。"
    return f"{start}，加速 {speed.text}。"
