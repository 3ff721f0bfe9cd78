"""A live experiment: a ring all-reduce on real arrays, and the averaging mistake of gradient accumulation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from calculators.core.calculator import Output, Result, Row, Run, calculator
from calculators.core.charts import Axis, Bar, BarChart, Chart, Part, Span, Timeline
from calculators.core.inputs import choice, integer, log_stops, number
from calculators.core.numbers import format_number
from calculators.core.worked import Quantity, Worked, ceil, quantity
from calculators.formulas.collectives import allreduce_factor
from calculators.formulas.data_parallel import mean_of_means, token_weighted
from calculators.formulas.ring import Step, forget_to_add, never_change_chunk, play, ring_schedule, stop_gathering_early, stop_reducing_early

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Integers = NDArray[np.int32]

ELEMENT_BYTES = 4
MISTAKES: dict[str, tuple[str, Callable[[Sequence[Step]], tuple[Step, ...]]]] = {
    "none": ("没写错", tuple),
    "forget-add": ("收到就覆盖，忘了加", forget_to_add),
    "same-chunk": ("每一步都发同一块", never_change_chunk),
    "short-reduce": ("第一阶段少走一步", stop_reducing_early),
    "short-gather": ("第二阶段少走一步", stop_gathering_early),
}


@dataclass(frozen=True)
class Trace:
    """The moves, for the timeline."""

    steps: tuple[Step, ...]


def _chunk(c: int) -> str:
    return chr(ord("A") + c)


def _chart(run: Run, *, n: int, **_: object) -> tuple[Chart, ...]:
    trace = run.result.trace
    assert isinstance(trace, Trace)
    spans = tuple(Span(m.sender, float(t), float(t + 1), _chunk(m.chunk), 0 if m.adds else 1) for t, step in enumerate(trace.steps) for m in step)
    ring = Timeline(
        "每一步，谁发哪一块",
        "一行一张卡，字母是它这一步发给下一张卡的块。同一步里人人都在发，发的都不一样：没有谁是瓶颈。写错时看字母怎么乱。",
        Axis("第几步"), tuple(f"卡 {r}" for r in range(n)), spans, ("reduce-scatter：收到就加", "all-gather：收到就换"),
    )  # fmt: skip
    bars = tuple(
        Bar(name, (Part(name, float(run.values[key])),), run.texts[key], emphasis=key == "token_weighted")  # type: ignore[arg-type]
        for name, key in (("先各自平均", "mean_of_means"), ("按 token 加权", "token_weighted"))
    )
    loss = BarChart("两个微批的 loss，怎么合", "两条一样长，才能不加权。", Axis("loss", low=0), bars)
    return ring, loss


@calculator(
    title="用 numpy 跑一遍 ring",
    question="环走完，每张卡真的都拿到总和了吗？各发了多少字节？微批长短不一，梯度怎么平均才对？",
    chapter="10",
    inputs=(
        integer("n", "几张卡", 4, "卡", low=2, high=16, stops=(2, 3, 4, 5, 6, 8, 12, 16)),
        integer("elements", "每张卡的数组", 1_000_000, "element", low=16, high=2_000_000, stops=(16, 100, 1000, 10_000, 100_000, 1_000_000, 2_000_000), help="int32，每个 4 字节"),
        choice("mistake", "故意写错", "none", tuple(MISTAKES), labels={name: label for name, (label, _) in MISTAKES.items()}),
        integer("tokens_a", "微批甲", 100, "token", low=1, high=1_000_000, stops=log_stops(10, 100_000, 3)),
        integer("tokens_b", "微批乙", 900, "token", low=1, high=1_000_000, stops=log_stops(10, 100_000, 3)),
        number("loss_a", "甲的 loss", 3.0, low=0, low_open=True, high=1e6, more=True, stops=tuple(i / 2 for i in range(1, 21))),
        number("loss_b", "乙的 loss", 1.0, low=0, low_open=True, high=1e6, more=True, stops=tuple(i / 2 for i in range(1, 21))),
    ),
    outputs=(
        Output("equals_sum", "每张卡都等于总和", main=True),
        Output("sent_per_rank_elements", "每张卡发出", "element"),
        Output("sent_per_rank_bytes", "每张卡发出", "B", main=True),
        Output("steps", "走了几步", main=True),
        Output("padded_elements", "补齐到", "element"),
        Output("wrong_pct", "错了的位置", "%"),
        Output("mean_of_means", "先各自平均，loss"),
        Output("token_weighted", "按 token 加权，loss", main=True),
        Output("gap_pct", "前者偏了", "%", main=True),
        Output("moves", "每一步", columns=(("step", "第几步", ""), ("phase", "在做", ""), ("sends", "卡 0、1、2…各发", ""), ("bytes", "每卡", "B"))),
    ),
    chart=_chart,
    needs=("numpy",),
    formula=(
        "reduce-scatter n−1 步，收到就加；all-gather n−1 步，收到就换",
        "每张卡发 2(n−1)/n 份数组",
        "按 token 加权 = Σ loss × token ÷ Σ token",
    ),
    assumptions=("整数相加，所以「等于」就是一个不差", "长度除不尽卡数时补零，补到卡数的整数倍"),
    leaves_out="不计时间：时间看 allreduce-time。真的梯度是浮点数，和与相加次序有关（看第 11 章的 sharded-adam-lab）。",
    sources=("环：Patarasuk & Yuan 2009（凭记忆，未核实）；系数见 nccl-tests doc/PERFORMANCE.md", "数据：numpy.random.default_rng(0).integers(0, 1000)"),
)  # fmt: skip
def ring_allreduce_lab(*, n: int, elements: int, mistake: str, tokens_a: int, tokens_b: int, loss_a: float, loss_b: float) -> Result:
    """Play the schedule on n arrays, count what every rank sends, and compare with the plain sum."""
    import numpy as np

    w = Worked()
    ranks = quantity(n)
    padded = w.line("补零到", ceil(quantity(elements, "element") / ranks) * ranks, "element") if elements % n else quantity(elements, "element")
    data = np.zeros((n, round(padded.value)), dtype=np.int32)
    data[:, :elements] = np.random.default_rng(0).integers(0, 1000, (n, elements), dtype=np.int32)
    steps = MISTAKES[mistake][1](ring_schedule(range(n)))
    held = [np.split(row, n) for row in data]
    sent = [0] * n
    for step in steps:
        for move in step:
            sent[move.sender] += held[move.sender][move.chunk].nbytes
        held = play(held, (step,), np.add)[-1]
    wrong = _wrong(held, np.split(data.sum(axis=0, dtype=np.int32), n))
    if mistake == "none":
        w.line("每张卡发出", allreduce_factor(ranks) * padded, "element")
        w.line("合字节", quantity(max(sent) // ELEMENT_BYTES, "element") * quantity(ELEMENT_BYTES, "B"), "B")
    else:
        w.say(f"逐块数字节，每张卡发出 → {format_number(max(sent))} 字节")
    w.say(f"和 numpy 的 sum 逐个比 {format_number(n * round(padded.value))} 个数，不等的 → {format_number(wrong)}")
    means = _means(w, tokens_a, tokens_b, loss_a, loss_b)
    return Result(
        values={
            "equals_sum": wrong == 0, "sent_per_rank_elements": max(sent) // ELEMENT_BYTES, "sent_per_rank_bytes": max(sent), "steps": len(steps),
            "padded_elements": round(padded.value), "wrong_pct": 100 * wrong / data.size,
            "mean_of_means": means[0], "token_weighted": means[1], "gap_pct": means[2], "moves": _moves(steps, round(padded.value) // n * ELEMENT_BYTES),
        },
        lines=w.lines,
        verdict=_ring_verdict(n, mistake, wrong, max(sent) / (ELEMENT_BYTES * padded.value), 100 * wrong / data.size) + _loss_verdict(*means, tokens_a == tokens_b),
        notes=(f"{format_number(elements)} 个元素分不成 {n} 等份，补了 {round(padded.value) - elements} 个零。",) if elements % n else (),
        trace=Trace(steps),
    )  # fmt: skip


def _wrong(held: list[list[Integers]], sums: list[Integers]) -> int:
    return sum(int((chunk != right).sum()) for row in held for chunk, right in zip(row, sums, strict=True))


def _moves(steps: Sequence[Step], chunk_bytes: int) -> list[Row]:
    return [
        {
            "step": t + 1,
            "phase": "reduce-scatter" if step[0].adds or t < len(steps) // 2 else "all-gather",
            "sends": "、".join(_chunk(m.chunk) for m in sorted(step, key=lambda m: m.sender)),
            "bytes": chunk_bytes,
        }
        for t, step in enumerate(steps)
    ]


def _means(w: Worked, tokens_a: int, tokens_b: int, loss_a: float, loss_b: float) -> tuple[Quantity, Quantity, Quantity]:
    a, b = quantity(loss_a), quantity(loss_b)
    plain = w.line("先各自平均，再平均", mean_of_means(a, b))
    weighted = w.line("按 token 加权", token_weighted(a, b, quantity(tokens_a), quantity(tokens_b)))
    return plain, weighted, w.line("偏了", plain / weighted - 1, "%")


def _ring_verdict(n: int, mistake: str, wrong: int, factor: float, share: float) -> str:
    if wrong:
        return f"错了，{format_number(share, digits=3)}% 的数不等于总和，没有任何报错。"
    if mistake != "none":
        return f"这次碰巧对了：{n} 张卡太少，这个错没露出来，加几张卡再看。"
    return f"{n} 张卡都拿到了总和，一个不差；每张卡发了 {format_number(factor)} 份数组，卡再多也不到 2 份。"


def _loss_verdict(plain: Quantity, weighted: Quantity, gap: Quantity, same_length: bool) -> str:
    if same_length:
        return "两个微批一样长，怎么平均都一样。"
    if abs(gap.value) < 1e-12:
        return "两个微批的 loss 一样，怎么平均都一样。"
    way = "高" if gap.value > 0 else "低"
    return f"微批一长一短：先各自平均得 {plain.text}，该是 {weighted.text}，偏{way} {format_number(abs(100 * gap.value), digits=3)}%。按 token 加权。"
