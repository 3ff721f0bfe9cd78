"""A live experiment: Adam cut over ranks against Adam done whole, and sums in another order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, Grid, LineChart, Series
from calculators.core.errors import refuse
from calculators.core.inputs import choice, integer, number, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.worked import Worked, ceil, quantity
from calculators.formulas.collectives import allreduce_factor, one_pass_factor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.floating]

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8
MOST_DRAWS = 5_000_000
"""params × ranks × steps: under a second of arithmetic."""
MISTAKES = {
    "none": "没写错", "skip-reduce": "忘了归约：各用各的梯度", "skip-gather": "忘了收集：只有自己那片是新的", "wrong-shard": "重启后拿错了别人的 m、v",
}  # fmt: skip
RESTART_AFTER = 1
"""Steps before the restart of ``wrong-shard``."""


@dataclass
class Adam:
    """State of one optimizer, whole or of a shard."""

    m: Array
    v: Array
    t: int = 0

    def step(self, theta: Array, gradient: Array, lr: float) -> Array:
        """New parameters; bias-corrected (Kingma and Ba 2015), every number in the precision of ``theta``."""
        import numpy as np

        self.t += 1
        beta_1, beta_2 = (theta.dtype.type(beta) for beta in (BETA_1, BETA_2))
        self.m = beta_1 * self.m + (1 - beta_1) * gradient
        self.v = beta_2 * self.v + (1 - beta_2) * gradient * gradient
        mean, spread = self.m / (1 - beta_1**self.t), self.v / (1 - beta_2**self.t)
        return theta - lr * mean / (np.sqrt(spread) + EPSILON)


@dataclass(frozen=True)
class Trace:
    """Largest differences: by rank and shard at the end (float64), and after every step (float32, other order)."""

    by_shard: list[list[float]]
    by_step: list[float]


def _average(rows: Iterable[Array]) -> Array:
    """Sum in the order given, then divide: the order of the additions is the point."""
    listed = list(rows)
    result = listed[0].copy()
    for row in listed[1:]:
        result += row
    return result / len(listed)


def _whole(theta: Array, gradients: Array, lr: float, backwards: bool = False) -> list[Array]:
    """All-reduce, then the same full Adam on every rank: the parameters after every step."""
    adam, history = Adam(theta * 0, theta * 0), []
    for step in gradients:
        theta = adam.step(theta, _average(step[::-1] if backwards else step), lr)
        history.append(theta)
    return history


def _sharded(theta: Array, gradients: Array, lr: float, mistake: str) -> list[list[Array]]:
    """Reduce-scatter, Adam on one shard a rank, all-gather: what every rank holds at the end, shard by shard."""
    import numpy as np

    ranks = gradients.shape[1]
    held = [np.split(theta, ranks) for _ in range(ranks)]
    shards = [Adam(piece * 0, piece * 0) for piece in held[0]]
    for t, step in enumerate(gradients):
        if mistake == "wrong-shard" and t == RESTART_AFTER:
            shards = [*shards[1:], shards[0]]
        pieces = [np.split(row, ranks) for row in step]
        for r in range(ranks):
            gradient = pieces[r][r] if mistake == "skip-reduce" else _average(piece[r] for piece in pieces)
            held[r][r] = shards[r].step(held[r][r], gradient, lr)
        if mistake != "skip-gather":
            held = [[held[c][c] for c in range(ranks)] for _ in range(ranks)]
    return held


def _chart(run: Run, *, ranks: int, **_: object) -> tuple[Chart, ...]:
    trace = run.result.trace
    assert isinstance(trace, Trace)
    worst = max(max(row) for row in trace.by_shard)
    grid = Grid(
        "每张卡手里的每一片，和不切的差多少",
        "行是卡，列是片，对角线是自己更新的那一片。「同」是一个比特不差；数字是最大的差，越大颜色越深。" + ("现在全是「同」。" if worst == 0 else ""),
        tuple(f"卡 {r}" for r in range(ranks)),
        tuple(f"片 {c}" for c in range(ranks)),
        tuple(tuple(0.0 if x == 0 else 0.4 + 0.6 * x / worst for x in row) for row in trace.by_shard),
        tuple(tuple("同" if x == 0 else f"{x:.0e}".replace("e-0", "e-") for x in row) for row in trace.by_shard),
    )
    points = tuple((float(t + 1), x) for t, x in enumerate(trace.by_step) if x > 0)
    if not points:
        return (grid,)
    return (
        grid,
        LineChart(
            "float32，求和的次序反过来",
            "同样的梯度，从卡 0 加到最后一张，和倒着加。差在末位，一步一步攒着；换了卡数，loss 的尾数对不上，就是它。",
            Axis("第几步", low=0 if len(points) == 1 else None, high=2 if len(points) == 1 else None),
            Axis("参数最大的差", log=True),
            (Series("最大的差", points, emphasis=True),),
        ),
    )


@calculator(
    title="切开的 Adam 和不切的一模一样",
    question="每张卡只更新自己那一片，拼起来，和每张卡都更新整份，差多少？",
    chapter="11",
    inputs=(
        integer("params", "参数个数", 1000, "element", low=10, high=100_000, stops=(10, 100, 1000, 10_000, 100_000)),
        integer("ranks", "几张卡", 4, "卡", low=2, high=16, stops=powers_of_two(2, 16)),
        integer("steps", "几步", 5, "step", low=1, high=50, stops=(1, 2, 5, 10, 20, 50)),
        choice("mistake", "故意写错", "none", tuple(MISTAKES), labels=MISTAKES),
        number("lr", "学习率", 1e-3, low=1e-5, high=1, stops=(1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1)),
    ),
    outputs=(
        Output("equal_same_order", "一个比特不差", main=True),
        Output("max_diff_f64", "最大的差，float64", main=True, agreement="band"),
        Output("max_diff_other_order_f32", "float32 换次序，最大的差", main=True, agreement="band", digits=2),
        Output("adam_state_per_rank", "每卡存 m、v", "element", main=True),
        Output("adam_state_whole", "不切要存", "element"),
        Output("sent_per_rank", "每卡每步发出", "element"),
    ),
    chart=_chart,
    needs=("numpy",),
    formula=(
        "不切：all-reduce 梯度，每张卡做整份 Adam",
        "切开：reduce-scatter 梯度，各自更新 1/n，all-gather 新参数",
        "两边都发 2(n−1)/n 份",
    ),
    assumptions=("β 0.9、0.999，ε 1e-8，带偏差修正；梯度按卡平均", "长度除不尽卡数时补零", "种子 0：初值、每步每卡的梯度都是标准正态"),
    leaves_out="不算混合精度：真实训练里切的是 FP32 主权重。也没有梯度裁剪：切开之后，整体范数要先跨卡加起来。",
    sources=("Kingma & Ba 2015（Adam）", "Rajbhandari et al. 2020（ZeRO）§5：只改存放，不改数学"),
)  # fmt: skip
def sharded_adam_lab(*, params: int, ranks: int, steps: int, mistake: str, lr: float) -> Result:
    """Both ways in float64 with the same order of sums, and the whole way in float32 with the order reversed."""
    import numpy as np

    if params * ranks * steps > MOST_DRAWS:
        raise refuse("steps", f"参数 × 卡数 × 步数不能超过 {format_number(MOST_DRAWS, 'cjk')}", format_number(params * ranks * steps), "减小其中一个")
    w = Worked()
    n = quantity(ranks)
    padded = round(w.line("补零到", ceil(quantity(params) / n) * n).value) if params % ranks else params
    rng = np.random.default_rng(0)
    theta, gradients = np.zeros(padded), np.zeros((steps, ranks, padded))
    theta[:params] = rng.standard_normal(params)
    gradients[:, :, :params] = rng.standard_normal((steps, ranks, params))
    whole = np.split(_whole(theta, gradients, lr)[-1], ranks)
    held = _sharded(theta, gradients, lr, mistake)
    by_shard = [[float(np.abs(piece - right).max()) for piece, right in zip(row, whole, strict=True)] for row in held]
    equal = all(np.array_equal(piece, right) for row in held for piece, right in zip(row, whole, strict=True))
    single = theta.astype(np.float32), gradients.astype(np.float32)
    orders = zip(_whole(*single, lr), _whole(*single, lr, backwards=True), strict=True)
    by_step = [float(np.abs(forwards - backwards).max()) for forwards, backwards in orders]

    state = w.line("每卡存 m、v", 2 * quantity(padded, "element") / n, "element")
    everything = w.line("不切要存", 2 * quantity(padded, "element"), "element")
    one = w.line("reduce-scatter 或 all-gather，每卡发", one_pass_factor(n) * quantity(padded, "element"), "element")
    sent = w.line("两样合计", one + one, "element")
    w.line("all-reduce 也是", allreduce_factor(n) * quantity(padded, "element"), "element")
    w.say(f"{ranks} 张卡、{steps} 步之后逐个比对 → " + ("全同" if equal else "不同"))
    worst = max(max(row) for row in by_shard)
    return Result(
        values={
            "equal_same_order": equal, "max_diff_f64": worst, "max_diff_other_order_f32": by_step[-1],
            "adam_state_per_rank": round(state.value), "adam_state_whole": round(everything.value), "sent_per_rank": sent,
        },
        lines=w.lines,
        verdict=_verdict(ranks, steps, mistake, equal, worst, by_step[-1]),
        notes=(f"{params} 个参数分不成 {ranks} 等份，补了 {padded - params} 个零。",) if padded != params else (),
        trace=Trace(by_shard, by_step),
    )  # fmt: skip


def _verdict(ranks: int, steps: int, mistake: str, equal: bool, worst: float, other_order: float) -> str:
    if not equal:
        return f"错了：{MISTAKES[mistake]}，最大差 {worst:.1e}，没有任何报错。".replace("e-0", "e-")
    if mistake != "none":
        return f"这次碰巧没露出来：只有 {steps} 步，错还没赶上。多走几步再看。"
    head = f"切开和不切一个比特都不差，每卡的 m、v 只存 1/{ranks}。"
    if other_order == 0:
        return head + "换个次序相加也没有差：两张卡只加一次，先后都一样。" if ranks == 2 else head + "这一次换次序相加也没有差。"
    return head + f"float32 里换个次序相加，就差 {other_order:.0e}：换了卡数，loss 的尾数对不上，不是 bug。".replace("e-0", "e-")
