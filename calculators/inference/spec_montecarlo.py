"""A live experiment: draw, accept, reject, resample.  Does the emitted token still follow the target's distribution?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Bar, BarChart, Chart, LineChart, Part, Series, Span, Timeline
from calculators.core.inputs import choice, integer, linear_stops, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.worked import Worked, quantity, sqrt
from calculators.formulas.speculation import tokens_per_round

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

RULES = {"none": "正确的规则", "accept-p": "错一：按 p(d) 收", "resample-p": "错二：拒了从 p 重抽"}
SHOWN_WORDS = 5
SHOWN_ROUNDS = 10
NOISE = 4.5
"""Standard errors of one word's frequency that 20,000 correct rounds over at most 64 words practically never exceed."""
TONES = ("收下的草稿", "白猜的", "目标自己出的一个")


@dataclass(frozen=True)
class Trace:
    """Distributions word by word, and how many guesses the first rounds kept."""

    p: tuple[float, ...]
    q: tuple[float, ...]
    emitted: tuple[float, ...]
    kept: tuple[int, ...]


@dataclass(frozen=True)
class Drawn:
    """What the rounds gave: the first token's frequencies, and the kept guesses of every round."""

    emitted: Floats
    kept: NDArray[np.int64]


def _distributions(seed: int, vocab: int) -> tuple[Floats, Floats]:
    """Target p, uniform over the simplex; draft q, half of it p."""
    import numpy as np

    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(vocab))
    return p, 0.5 * p + 0.5 * rng.dirichlet(np.ones(vocab))


def _play(p: Floats, q: Floats, seed: int, rounds: int, gamma: int, bug: str) -> Drawn:
    """All rounds at once: γ guesses from q each, accepted while u < min(1, p/q); the first refused one is drawn again."""
    import numpy as np

    rng = np.random.default_rng(seed + 1)
    drafts = rng.choice(p.size, (rounds, gamma), p=q)
    uniforms = rng.random((rounds, gamma))
    again = rng.choice(p.size, rounds, p=p if bug == "resample-p" else _residual(p, q))
    chance = p if bug == "accept-p" else np.minimum(1.0, p / np.maximum(q, 1e-300))
    accepted = uniforms < chance[drafts]
    kept = np.where(accepted.all(axis=1), gamma, np.argmin(accepted, axis=1))
    first = np.where(accepted[:, 0], drafts[:, 0], again)
    return Drawn(np.bincount(first, minlength=p.size) / rounds, kept)


def _residual(p: Floats, q: Floats) -> Floats:
    """Where the target wants more than the draft gives, normed."""
    import numpy as np

    more = np.maximum(0.0, p - q)
    rest: Floats = more / more.sum()
    return rest


def _expected(p: Floats, q: Floats, bug: str) -> Floats:
    """The emitted distribution that endless rounds would show."""
    import numpy as np

    kept = q * p if bug == "accept-p" else np.minimum(p, q)
    emitted: Floats = kept + (1 - kept.sum()) * (p if bug == "resample-p" else _residual(p, q))
    return emitted


def _chart(run: Run, *, gamma: int, **_: object) -> tuple[Chart, ...]:
    trace = run.result.trace
    assert isinstance(trace, Trace)
    order = sorted(range(len(trace.p)), key=lambda i: -trace.p[i])
    bars = []
    for i in order[:SHOWN_WORDS]:
        for name, shares in (("草稿 q", trace.q), ("目标 p", trace.p), ("吐出来", trace.emitted)):
            bars.append(Bar(f"词 {i} {name}", (Part("概率", 100 * shares[i]),), f"{format_number(100 * shares[i], digits=3)}%", name == "吐出来"))
    spans = []
    for lane, kept in enumerate(trace.kept):
        for i in range(gamma):
            spans.append(Span(lane, float(i), float(i + 1), tone=0 if i < kept else 1 if i > kept else 2))
        if kept == gamma:
            spans.append(Span(lane, float(gamma), float(gamma + 1), tone=2))
    ranks = range(1, len(order) + 1)
    return (
        BarChart(
            "吐出来的，和目标一样吗",
            "目标最常说的几个词。规则对的时候，「吐出来」和「目标 p」一样长，不管草稿 q 多长；换成写错的规则，它就走样。",
            Axis("概率", "%", low=0),
            tuple(bars),
        ),
        LineChart(
            "所有的词，按目标从常到少排",
            "规则对，「吐出来」压在「目标 p」上；写错了就分开。",
            Axis("第几常见的词"),
            Axis("概率", "%", low=0),
            (
                Series("吐出来", tuple((float(r), 100 * trace.emitted[i]) for r, i in zip(ranks, order, strict=True)), emphasis=True),
                Series("目标 p", tuple((float(r), 100 * trace.p[i]) for r, i in zip(ranks, order, strict=True)), dashed=True),
                Series("草稿 q", tuple((float(r), 100 * trace.q[i]) for r, i in zip(ranks, order, strict=True)), dashed=True),
            ),
        ),
        Timeline(
            "头几轮，一轮猜中几个",
            "一行一轮。第一个没收下的位置，由目标自己出一个；再往后的全白猜；全收下就多送一个。γ 越大，白猜的越多。",
            Axis("位置", "token"),
            tuple(f"第 {i + 1} 轮" for i in range(len(trace.kept))),
            tuple(spans),
            TONES,
        ),
    )


@calculator(
    title="分布变没变",
    question="先让小模型猜，再由大模型批改：吐出来的词，还是大模型的分布吗？",
    chapter="19",
    inputs=(
        choice("bug", "批改的规则", "none", tuple(RULES), labels=RULES),
        integer("gamma", "每轮猜几个 γ", 4, "token", low=1, high=16, stops=linear_stops(1, 16, 1)),
        integer("vocab", "词表", 8, low=2, high=64, stops=powers_of_two(2, 64)),
        integer("rounds", "轮数", 20_000, low=1_000, high=50_000, stops=(1_000, 2_000, 5_000, 10_000, 20_000, 50_000)),
        integer("seed", "随机种子", 0, low=0, high=99, more=True, stops=linear_stops(0, 30, 1)),
    ),
    outputs=(
        Output("max_abs_deviation", "吐出来的和 p 最多差", main=True, agreement="band"),
        Output("expected_deviation", "这条规则无穷多轮后差", main=True, agreement="band", bound=1e-12),
        Output("alpha", "接受率 α", main=True, agreement="band", digits=5),
        Output("tokens_per_round_mc", "每轮 token 数，数出来", "token", main=True, agreement="band"),
        Output("tokens_per_round_closed", "每轮 token 数，公式", "token", main=True, agreement="band"),
        Output("tokens_per_round_se", "数出来的标准误", "token", agreement="band"),
    ),
    chart=_chart,
    needs=("numpy",),
    formula=(
        "收下草稿 d 的概率：min(1, p(d) ÷ q(d))",
        "第一次拒绝：改从 max(0, p − q) 归一后抽，这一轮结束；全收下，目标再送一个",
        "α = Σ min(p, q) = 1 − TV(p, q)",
    ),
    assumptions=("每个位置都用同一对 p、q，互不相关；真模型的 p、q 随上文变", "p 均匀取自所有分布；q 一半是 p，一半另抽"),
    leaves_out="不跑模型，只跑抽样规则；「最多差」里有抽样噪声，轮数加四倍，噪声减半。",
    sources=("Leviathan et al. 2023（2211.17192）附录 A.1", "Chen et al. 2023（2302.01318）定理 1", "numpy.random.default_rng(seed)"),
)  # fmt: skip
def spec_montecarlo(*, seed: int, vocab: int, rounds: int, gamma: int, bug: str) -> Result:
    """Seeded rounds of speculative sampling with the correct rule or with one of two classic bugs."""
    import numpy as np

    p, q = _distributions(seed, vocab)
    drawn = _play(p, q, seed, rounds, gamma, bug)
    alpha = float(np.minimum(p, q).sum())
    counts = drawn.kept + 1
    mean, se = float(counts.mean()), float(counts.std(ddof=1) / np.sqrt(rounds))
    closed = tokens_per_round(alpha, gamma)
    deviation = float(np.abs(drawn.emitted - p).max())
    expected = float(np.abs(_expected(p, q, bug) - p).max())
    noise = NOISE * float(np.sqrt(p * (1 - p)).max()) / float(np.sqrt(rounds))

    w = Worked()
    w.say(f"抽 p、q，逐词取小的加起来 → α {format_number(alpha)}")
    w.line("p、q 的距离 TV", 1 - quantity(alpha))
    w.say(f"公式：每轮 → {quantity(closed, 'token', 4).text}")
    w.say(f"{RULES[bug]}，抽 {format_number(rounds)} 轮 → 每轮 {quantity(mean, 'token', 4).text}")
    spread = float(counts.std(ddof=1))
    w.line("标准误", quantity(spread) / sqrt(quantity(rounds)))
    w.say(f"每个词出现的份数减 p，最大的 → {format_number(deviation)}")
    return Result(
        values={
            "max_abs_deviation": deviation, "expected_deviation": expected, "alpha": alpha, "tokens_per_round_mc": mean,
            "tokens_per_round_closed": closed, "tokens_per_round_se": se,
        },
        lines=w.lines,
        verdict=_verdict(bug, deviation, expected, noise, abs(mean - closed) <= NOISE * se),
        trace=Trace(tuple(p.tolist()), tuple(q.tolist()), tuple(drawn.emitted.tolist()), tuple(int(k) for k in drawn.kept[:SHOWN_ROUNDS])),
    )  # fmt: skip


def _verdict(bug: str, deviation: float, expected: float, noise: float, same_count: bool) -> str:
    seen = f"吐出来的和目标最多差 {format_number(deviation, digits=3)}"
    if bug == "none":
        where = "在抽样噪声之内" if deviation <= noise else "碰巧比抽样噪声大"
        return f"分布没变：{seen}，{where}；轮数再多，差会趋于 0。"
    count = "每轮 token 数却和公式对得上，只看速度发现不了" if same_count else "每轮 token 数也和公式对不上"
    if deviation <= noise:
        return f"规则错了，这一次看不出来：{seen}，和抽样噪声一样大，无穷多轮后差 {format_number(expected, digits=3)}。加轮数，或换个种子。"
    return f"分布走样了：{seen}，远不止抽样噪声；{count}。"
