"""A live experiment: the same few samples, labelled by a teacher's distribution instead of its answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Bar, BarChart, Chart, Grid, LineChart, Mark, Part, Series
from calculators.core.inputs import integer, linear_stops, log_stops, number
from calculators.core.worked import Worked, quantity

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CLASSES, DIMS, SPREAD = 10, 20, 0.9
TEACHER_SAMPLES, TEACHER_STEPS, STUDENT_STEPS = 4000, 60, 200
RATE, SOFT_RATE, DECAY = 1.0, 0.3, 1e-3
CURVE = (20, 40, 80, 160, 320, 640)
SHOWN = 6
"""Samples whose labels the card prints."""
TIE = 0.5
"""Points of accuracy below which two students count as equal: ten of 2000 test samples."""
NAMES = {"hard": "硬标签", "teacher_hard": "老师的答案", "soft_t1": "软标签，不升温", "soft_t": "软标签，升温"}


@dataclass(frozen=True)
class Data:
    """Inputs with a constant-1 column, and the true class."""

    X: NDArray[np.float64]
    y: NDArray[np.int64]


@dataclass(frozen=True)
class Trace:
    """Accuracy over the number of samples, and the teacher's distribution at T for the first samples with their true class."""

    hard: tuple[tuple[float, float], ...]
    soft: tuple[tuple[float, float], ...]
    labels: tuple[tuple[float, ...], ...]
    truth: tuple[int, ...]


def draw(rng: np.random.Generator, means: NDArray[np.float64], n: int) -> Data:
    """Classes first, then the noise: the order fixes the stream."""
    import numpy as np

    y = rng.integers(0, CLASSES, n)
    x = means[y] + rng.standard_normal((n, DIMS))
    return Data(np.concatenate([x, np.ones((n, 1))], axis=1), y)


def softmax(z: NDArray[np.float64]) -> NDArray[np.float64]:
    """Along the last axis, the largest subtracted first."""
    import numpy as np

    e = np.exp(z - z.max(axis=-1, keepdims=True))
    softened: NDArray[np.float64] = e / e.sum(axis=-1, keepdims=True)
    return softened


def train(X: NDArray[np.float64], targets: list[NDArray[np.float64]], temperatures: list[float], rates: list[float], steps: int) -> list[NDArray[np.float64]]:
    """One student for each of ``targets`` (samples × classes); weights features × classes.  Gradient T·Xᵀ(softmax(XW ÷ T) − target) ÷ n.

    T times, not 1 ÷ T times: the factor T² of the distillation loss.  All students step together, samples on the last axis, in place,
    the products by einsum: that is the fast way without BLAS.  V is W ÷ T, so T drops out of the step.
    """
    import numpy as np

    goal = np.stack([target.T for target in targets])
    columns = np.ascontiguousarray(X.T)
    rate = np.array(rates)[:, None, None]
    gain, keep = rate / len(X), 1 - rate * DECAY
    V = np.zeros((len(targets), CLASSES, X.shape[1]))
    for _ in range(steps):
        p = np.einsum("scf,fn->scn", V, columns)
        p -= p.max(axis=1, keepdims=True)
        np.exp(p, out=p)
        p /= p.sum(axis=1, keepdims=True)
        p -= goal
        V *= keep
        V -= np.einsum("scn,fn->scf", p, columns) * gain
    return [T * weights.T for T, weights in zip(temperatures, V, strict=True)]


def longer_steps(n: int) -> int:
    """By how much a student's steps are longer and fewer: a browser has no BLAS, and many samples bear it (tested: within half a point)."""
    return 1 if n < 80 else 2 if n < 320 else 4


def study(X: NDArray[np.float64], targets: list[NDArray[np.float64]], temperatures: list[float]) -> list[NDArray[np.float64]]:
    """Students of these samples: rate 1.0 at temperature 1, 0.3 for softened labels; 200 steps or the same way in fewer."""
    longer = longer_steps(len(X))
    rates = [longer * (SOFT_RATE if k == len(targets) - 1 else RATE) for k in range(len(targets))]
    return train(X, targets, temperatures, rates, STUDENT_STEPS // longer)


def accuracy_pct(W: NDArray[np.float64], test: Data) -> float:
    return 100 * float(((test.X @ W).argmax(axis=1) == test.y).mean())


def _chart(run: Run, *, n_train: int, temperature: float, **_: object) -> tuple[Chart, ...]:
    trace = run.result.trace
    assert isinstance(trace, Trace)
    bars = [("老师", "acc_teacher_pct"), *((name, f"acc_{key}_pct") for key, name in NAMES.items())]
    own = [(name, float(run.values[key]), run.texts[key]) for name, key in bars]  # type: ignore[arg-type]
    return (
        BarChart(
            "测试准确率",
            "四个学生看的是同样的样本，差的只是标签。",
            Axis("准确率", "%", low=0, high=100),
            tuple(Bar(name, (Part("准确率", value),), shown, emphasis=name == NAMES["soft_t"]) for name, value, shown in own),
        ),
        LineChart(
            "样本多了，软标签还值钱吗",
            "横轴是对数。样本少时差得多，样本一多两条就并到一起。",
            Axis("训练样本", "", log=True),
            Axis("准确率", "%", high=100),
            (Series("软标签，升温", trace.soft, emphasis=True), Series("硬标签", trace.hard)),
            (Mark("现在", float(n_train), own[-1][1], emphasis=True),),
        ),
        Grid(
            f"前 {len(trace.labels)} 个样本，T={temperature:g} 时的软标签",
            "一行一个样本，一列一类，格子里是百分数。硬标签每行只有一个 100；软标签还写着它像谁。",
            tuple(f"真类 {y}" for y in trace.truth),
            tuple(str(k) for k in range(CLASSES)),
            trace.labels,
            tuple(tuple(f"{100 * p:.0f}" if p >= 0.005 else "" for p in row) for row in trace.labels),
        ),
    )


@calculator(
    title="软标签实验",
    question="同样几十个样本，标签换成老师的分布，学生能追上多少？",
    chapter="18b",
    inputs=(
        integer("n_train", "学生的样本数", 40, low=10, high=640, stops=(10, 20, 40, 80, 160, 320, 640)),
        number("temperature", "温度 T", 4.0, low=1, high=20, stops=(1, 2, 3, 4, 5, 6, 8, 10, 15, 20)),
        integer("seed", "随机种子", 0, low=0, high=99, stops=linear_stops(0, 9, 1)),
        integer("n_test", "测试样本数", 2000, low=200, high=5000, more=True, stops=log_stops(200, 5000, 5), help="改它会改变抽样，正文的数只对 2000 成立"),
    ),
    outputs=(
        Output("acc_teacher_pct", "老师", "%", main=True, agreement="band"),
        Output("acc_hard_pct", "硬标签", "%", main=True, agreement="band"),
        Output("acc_teacher_hard_pct", "老师的答案当标签", "%", agreement="band"),
        Output("acc_soft_t1_pct", "软标签 T=1", "%", agreement="band"),
        Output("acc_soft_t_pct", "软标签 T", "%", main=True, agreement="band"),
        Output("gain_soft_over_hard_points", "软比硬高", "pt", main=True, agreement="band"),
    ),
    chart=_chart,
    needs=("numpy",),
    formula=("学生 = softmax(XW)，从零开始全批量梯度下降 200 步", "软标签的梯度 = T²·(q − p) ÷ T", "软比硬高 = 软标签 T 的准确率 − 硬标签的准确率"),
    assumptions=("10 类高斯，20 维；老师看 4000 个样本，60 步", "学习率 1.0（T=1）、0.3（软标签 T），权重衰减 0.001", "曲线上别的样本数用同一个老师、另抽的样本；80 个样本起，步子大 2–4 倍、步数少 2–4 倍，差不到半个点"),
    leaves_out="老师和学生是一样大的线性模型：只看得出标签的作用，看不出老师太强、学生太小时的差距。硬标签没有调早停和权重衰减；调了也追不上。",
    sources=("numpy.random.default_rng(seed)", "Hinton, Vinyals, Dean 2015, arXiv 1503.02531"),
)  # fmt: skip
def soft_label(*, n_train: int, temperature: float, seed: int, n_test: int) -> Result:
    """Softmax regression on the same samples with true labels, the teacher's answers, and its distributions at 1 and T."""
    import numpy as np

    rng = np.random.default_rng(seed)
    means = rng.standard_normal((CLASSES, DIMS)) * SPREAD
    own, test, taught = (draw(rng, means, n) for n in (n_train, n_test, TEACHER_SAMPLES))
    pool = draw(rng, means, max(CURVE))
    eye = np.eye(CLASSES)
    teacher = train(taught.X, [eye[taught.y]], [1], [RATE], TEACHER_STEPS)[0]
    z = own.X @ teacher
    targets = [eye[own.y], eye[z.argmax(axis=1)], softmax(z), softmax(z / temperature)]
    students = study(own.X, targets, [1, 1, 1, temperature])
    scores = {name: accuracy_pct(W, test) for name, W in zip(NAMES, students, strict=True)}
    best = accuracy_pct(teacher, test)
    gain = scores["soft_t"] - scores["hard"]

    hard, soft = {n_train: scores["hard"]}, {n_train: scores["soft_t"]}
    for n in CURVE:
        if n != n_train:
            X, y = pool.X[:n], pool.y[:n]
            pair = study(X, [eye[y], softmax(X @ teacher / temperature)], [1, temperature])
            hard[n], soft[n] = (accuracy_pct(W, test) for W in pair)

    w = Worked()
    w.say(f"老师看 {TEACHER_SAMPLES} 个样本，测试 {n_test} 个 → {quantity(best, '%', 4).text}")
    for name, score in scores.items():
        w.say(f"{NAMES[name]}，{n_train} 个样本 → {quantity(score, '%', 4).text}")
    w.line("软比硬高", quantity(scores["soft_t"], "%") - quantity(scores["hard"], "%"), "pt")
    return Result(
        values={"acc_teacher_pct": best, **{f"acc_{name}_pct": score for name, score in scores.items()}, "gain_soft_over_hard_points": gain},
        lines=w.lines,
        verdict=_verdict(n_train, gain, scores, best),
        trace=Trace(
            tuple((float(n), hard[n]) for n in sorted(hard)),
            tuple((float(n), soft[n]) for n in sorted(soft)),
            tuple(tuple(row) for row in softmax(z[:SHOWN] / temperature).tolist()),
            tuple(own.y[:SHOWN].tolist()),
        ),
    )


def _verdict(n_train: int, gain: float, scores: dict[str, float], best: float) -> str:
    soft, hard = (quantity(scores[name], "%", 4).text for name in ("soft_t", "hard"))
    head = f"{n_train} 个样本：硬标签 {hard}，软标签 {soft}，老师 {quantity(best, '%', 4).text}。"
    points = quantity(abs(gain), "pt", 3).text
    if gain > TIE:
        return head + f"只换标签，多出 {points}。"
    if gain < -TIE:
        return head + f"软标签反而低 {points}：这里它没有用。"
    return head + "这一组样本上，两种标签差不多。软标签补的是样本不够，样本一多就没什么可补。"
