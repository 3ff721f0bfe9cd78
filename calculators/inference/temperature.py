"""A live experiment: what does the temperature do to a distribution, and why is the distillation loss multiplied by T²?"""

from __future__ import annotations

from dataclasses import dataclass

from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Bar, BarChart, Chart, LineChart, Mark, Part, Rule, Series
from calculators.core.errors import refuse
from calculators.core.inputs import integer, linear_stops, number, text
from calculators.core.lists import read_numbers
from calculators.core.numbers import format_number
from calculators.core.worked import Worked, quantity
from calculators.formulas.distillation import entropy_bits, norm, soft_gradient, softmax

CLASSES = 10
SPREAD = 3.0
"""Standard deviation of the random logits."""
CLOSE = 0.05
"""T²·|grad| this near to its limit no longer depends on T to the eye."""
FAINT = 1e-9
"""Gradients below it are not drawn: the logarithmic axis would show nothing else."""


@dataclass(frozen=True)
class Trace:
    """The logits of the bars, and the random student and teacher of the gradient."""

    logits: tuple[float, ...]
    student: tuple[float, ...]
    teacher: tuple[float, ...]


def random_logits(seed: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Student, then teacher: normal(0, 3), each made zero-mean."""
    import numpy as np

    rng = np.random.default_rng(seed)
    s, t = (rng.normal(0, SPREAD, CLASSES) for _ in range(2))
    return tuple((s - s.mean()).tolist()), tuple((t - t.mean()).tolist())


def _chart(run: Run, *, temperature: float, **_: object) -> tuple[Chart, ...]:
    trace = run.result.trace
    assert isinstance(trace, Trace)
    now, sharp = softmax(trace.logits, temperature), softmax(trace.logits, 1.0)
    bars = tuple(
        Bar(f"第 {k} 类", (Part("概率", 100 * p),), f"{format_number(100 * p, digits=3)}%（T=1 时 {format_number(100 * q, digits=3)}%）", emphasis=k == 1)
        for k, (p, q) in enumerate(zip(now, sharp, strict=True), 1)
    )
    temperatures = sorted({*(10 ** (i / 20) for i in range(41)), temperature})
    plain = [(T, norm(soft_gradient(trace.student, trace.teacher, T))) for T in temperatures]
    shown = [(T, g) for T, g in plain if g > FAINT]
    own = float(run.values["grad_norm_t2"])  # type: ignore[arg-type]
    return (
        BarChart("这个温度下的分布", "温度越高，条子越平：错的那些类谁更像，看得越清楚。", Axis("概率", "%", low=0, high=100), bars),
        LineChart(
            "乘不乘 T²",
            "两轴都是对数。不乘 T²，温度一高梯度就没了；乘上，曲线走平，贴住极限。",
            Axis("温度 T", "", log=True),
            Axis("梯度的长度", "", log=True),
            (
                Series("乘 T²", tuple((T, T * T * g) for T, g in shown), emphasis=True),
                Series("不乘", tuple(shown), dashed=True),
            ),
            (Mark("现在", temperature, own, emphasis=True),) if own > FAINT else (),
            (Rule("极限", y=float(run.values["limit_norm"])),),  # type: ignore[arg-type]
        ),
    )


@calculator(
    title="温度与 T²",
    question="温度调高，分布变成什么样？梯度缩多少？",
    chapter="18b",
    inputs=(
        text("logits", "logits", "6,4,2,0", longest=200, placeholder="6,4,2,0", help="2 到 20 个数，逗号隔开"),
        number("temperature", "温度 T", 1.0, low=0.1, high=100, stops=(0.1, 0.2, 0.5, 1, 2, 3, 4, 5, 6, 8, 10, 20, 50, 100)),
        integer("seed", "梯度那半的随机种子", 0, low=0, high=99, more=True, stops=linear_stops(0, 9, 1)),
    ),
    outputs=(
        Output("probs", "概率", main=True, digits=3),
        Output("entropy_bit", "熵", "bit", main=True),
        Output("grad_norm", "梯度的长度", agreement="band"),
        Output("grad_norm_t2", "乘 T² 之后", main=True, agreement="band"),
        Output("limit_norm", "极限的长度", agreement="band"),
        Output("limit_distance_pct", "离极限", "%", main=True, agreement="band"),
    ),
    chart=_chart,
    needs=("numpy",),
    formula=("p = softmax(z ÷ T)", "熵 = −Σ p·log₂p", "grad = (q − p) ÷ T", "T → ∞：T²·grad → (z 学生 − z 老师) ÷ N，N 是类数", "离极限 = ‖T²·grad − 极限‖ ÷ ‖极限‖"),
    assumptions=("梯度那半用 10 类随机 logits，标准差 3，各自减去平均", "长度都是 L2"),
    leaves_out="真的词表有十几万类，logits 也不是正态的：走平的形状一样，从哪个 T 走平不一样。",
    sources=("Hinton, Vinyals, Dean 2015, arXiv 1503.02531 §2.1", "numpy.random.default_rng(seed)"),
)  # fmt: skip
def temperature(*, logits: str, temperature: float, seed: int) -> Result:
    """Softened probabilities of typed logits, and the soft-label gradient of ten random ones."""
    z = read_numbers("logits", "logits", logits, low=-1000, high=1000)
    if not 2 <= len(z) <= 20:
        raise refuse("logits", "logits 要 2 到 20 个", f"{len(z)} 个", "例如 6, 4, 2, 0")
    student, teacher = random_logits(seed)
    probs = softmax(z, temperature)
    entropy = entropy_bits(probs)
    grad = soft_gradient(student, teacher, temperature)
    limit = [(s - t) / CLASSES for s, t in zip(student, teacher, strict=True)]
    squared = temperature * temperature
    distance = norm([squared * g - m for g, m in zip(grad, limit, strict=True)]) / norm(limit)

    w = Worked()
    w.say(f"softmax(z ÷ {format_number(temperature)}) → {'、'.join(format_number(p, digits=4) for p in probs)}")
    w.say(f"熵 → {quantity(entropy, 'bit', 4).text}（{len(z)} 类全一样时最多 {quantity(entropy_bits([1 / len(z)] * len(z)), 'bit', 4).text}）")
    w.say(f"|grad| → {format_number(norm(grad), digits=6)}")
    t, length = quantity(temperature), quantity(norm(grad))
    scaled = w.line("T²·|grad|", t * t * length)
    top = quantity(norm(limit))
    w.line("和极限的长度比", scaled / top, "%")
    w.say(f"方向也算上，离极限 → {quantity(100 * distance, '%', 4).text}")
    return Result(
        values={
            "probs": probs, "entropy_bit": entropy, "grad_norm": norm(grad), "grad_norm_t2": scaled, "limit_norm": norm(limit),
            "limit_distance_pct": 100 * distance,
        },
        lines=w.lines,
        verdict=_verdict(temperature, max(probs), entropy, norm(grad), scaled.value / top.value),
        trace=Trace(z, student, teacher),
    )  # fmt: skip


def _verdict(temperature: float, largest: float, entropy: float, length: float, share: float) -> str:
    head = f"T={format_number(temperature)}：最大的一类占 {quantity(100 * largest, '%', 3).text}，分布带 {quantity(entropy, 'bit', 3).text}。"
    reached, plain = quantity(100 * share, "%", 3).text, format_number(length, digits=3)
    if abs(share - 1) <= CLOSE:
        return head + f"不乘 T²，梯度只有 {plain}；乘上，是极限的 {reached}：再加温度，大小也不变了。"
    return head + f"乘上 T² 的梯度是极限的 {reached}，还没走平：换个温度，这一项的分量就变。"
