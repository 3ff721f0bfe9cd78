"""A live experiment: walk through a ring all-reduce, see who holds what after every step, and break it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from calculators.core.calculator import Output, Result, Row, Run, calculator
from calculators.core.charts import Chart, Grid
from calculators.core.errors import refuse
from calculators.core.inputs import choice, integer
from calculators.core.numbers import format_number
from calculators.core.worked import Worked, quantity
from calculators.formulas.collectives import allreduce_factor
from calculators.formulas.ring import (
    Step,
    forget_to_add,
    never_change_chunk,
    play,
    ring_schedule,
    star_schedule,
    stop_gathering_early,
    stop_reducing_early,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

MOST_RANKS, MOST_STEPS = 16, 30
MOST_NARROW_STEPS = 14
"""Up to so many columns have room for a bare number over each."""
ROUTES = {"ring": "环，同机的卡挨着", "interleaved": "环，几台机器的卡交错着排", "star": "不走环：都发给卡 0，再由它发回"}
MISTAKES: dict[str, tuple[str, Callable[[Sequence[Step]], tuple[Step, ...]]]] = {
    "none": ("没写错", tuple),
    "forget-add": ("收到就覆盖，忘了加", forget_to_add),
    "same-chunk": ("每一步都发同一块", never_change_chunk),
    "short-reduce": ("归约散发少走一步", stop_reducing_early),
    "short-gather": ("收集少走一步", stop_gathering_early),
}
ON_A_RING = ("route", ("ring", "interleaved"))
TWICE = "重"
"""Stands in a cell whose chunk counts some rank more than once."""


@dataclass(frozen=True)
class Trace:
    """``shares[t][rank][chunk]``: how often each rank's numbers are in that chunk after t steps; ``steps``: the moves."""

    shares: list[list[list[Integers]]]
    steps: tuple[Step, ...]
    shown: int


def _chunk(c: int) -> str:
    return chr(ord("A") + c)


def _text(share: Integers) -> str:
    return TWICE if int(share.max()) > 1 else str(int(share.sum()))


def _chart(run: Run, *, n: int, route: str, mistake: str, **_: object) -> tuple[Chart, ...]:
    trace = run.result.trace
    assert isinstance(trace, Trace)
    ranks = tuple(f"卡 {r}" for r in range(n))
    held = trace.shares[trace.shown]

    def share(cell: Integers) -> float:
        return float((cell > 0).sum()) / n

    when = "开始之前" if trace.shown == 0 else f"第 {trace.shown} 步之后"
    twice = f"「{TWICE}」是同一张卡的份被加了不止一次。" if mistake == "same-chunk" else ""
    holding = Grid(
        f"{when}，谁手里有什么",
        f"行是卡，列是块。格子里的数：这一块已经加了几张卡的份，加到 {n} 才算完。{twice}拖「看到第几步」，看它怎么长满。",
        ranks,
        tuple(_chunk(c) for c in range(n)),
        tuple(tuple(share(cell) for cell in row) for row in held),
        tuple(tuple(_text(cell) for cell in row) for row in held),
    )
    count = len(trace.steps)
    arrivals: list[list[float | None]] = [[None] * count for _ in ranks]
    names = [[""] * count for _ in ranks]
    for t, step in enumerate(trace.steps):
        for move in step:
            arrivals[move.receiver][t] = share(trace.shares[t + 1][move.receiver][move.chunk])
            names[move.receiver][t] = _chunk(move.chunk) if len(step) == len({m.receiver for m in step}) else "全"
    through = Grid(
        "每一步，谁收到哪一块",
        f"行是卡，列是第几步，字母是收到的块，颜色是它到手后凑了几成。{_seen(route, mistake)}",
        ranks,
        tuple(f"第 {t + 1} 步" if count > MOST_NARROW_STEPS else str(t + 1) for t in range(count)),
        tuple(tuple(row) for row in arrivals),
        tuple(tuple(row) for row in names),
    )
    return holding, through


def _seen(route: str, mistake: str) -> str:
    if route == "star":
        return "每一步只有一张卡在收，别的都空着；「全」是整份数组。"
    if mistake != "none":
        return "和没写错时比，看颜色断在哪一步。"
    return "前一半越来越深：边传边加；后一半全深：只是抄给下一家。没有一格是空的，谁都没闲着。"


@calculator(
    title="环形 all-reduce，一步一步",
    question="没有一张卡见过全部数据，怎么每张卡最后都拿到了总和？各发了多少？",
    chapter="05",
    inputs=(
        integer("n", "几张卡", 8, "卡", low=2, high=MOST_RANKS, stops=(2, 3, 4, 5, 6, 8, 10, 12, 16)),
        integer("step", "看到第几步", None, low=0, high=MOST_STEPS, stops=tuple(range(MOST_STEPS + 1)), help="0 是开始之前；留空看第一阶段（归约散发）走完"),
        choice("route", "怎么走", "ring", tuple(ROUTES), labels=ROUTES),
        choice("mistake", "故意写错", "none", tuple(MISTAKES), labels={name: label for name, (label, _) in MISTAKES.items()}, only_if=ON_A_RING),
        integer("per_node", "每台机器几张卡", 4, "卡", low=1, high=MOST_RANKS, stops=(1, 2, 4, 8, 16), help="只影响谁和谁隔着网卡"),
        integer("m", "每张卡的数组多长", 8000, "element", low=2, high=20_000, more=True, stops=(16, 100, 1000, 8000, 20_000), help="不能少于卡数"),
        integer("seed", "随机种子", 0, low=0, high=999, more=True),
    ),
    outputs=(
        Output("all_equal", "每张卡都等于总和", main=True),
        Output("ranks_agree", "各张卡彼此相同"),
        Output("sent_per_rank", "最忙的卡发出", "element", main=True),
        Output("sent_factor", "合几份数组", main=True),
        Output("steps", "走了几步", "step", main=True),
        Output("wrong_pct", "错了的位置", "%"),
        Output("nic_elements", "最忙的一台机器，从网卡出去", "element", main=True),
        Output(
            "rank_0", "卡 0 的每一步",
            columns=(("step", "第几步", ""), ("sends", "发出", ""), ("receives", "收到", ""), ("does", "收到之后", ""), ("shares", "这块凑了几份", "")),
        ),
    ),
    chart=_chart,
    needs=("numpy",),
    formula=("第一阶段 n−1 步：发一块，收一块，加上去（归约散发）", "第二阶段 n−1 步：发一块，收一块，换上去（收集）", "每张卡发 2(n−1) 块，每块 1/n：2(n−1)/n 份数组"),
    assumptions=("整数相加，所以「相等」就是一个不差", "同一步里所有的卡同时收发，发出去的是这一步开始时手里的", "长度除不尽卡数时，块与块差一个元素，报最忙的那张卡"),
    leaves_out="不计时间：一步多久看最慢的一跳，用上面的 allreduce。浮点数的和与相加次序有关，但环保证每张卡拿到的一模一样。",
    sources=("Patarasuk & Yuan 2009（凭记忆，未核实）；nccl-tests doc/PERFORMANCE.md", "数据：numpy.random.default_rng(seed).integers(0, 1000, (n, m))"),
)  # fmt: skip
def ring_sim(*, n: int, step: int | None, route: str, mistake: str, per_node: int, m: int, seed: int) -> Result:
    """Play the schedule on random integers, and on one-hot counters that remember whose numbers a chunk holds."""
    import numpy as np

    if m < n:
        raise refuse("m", "数组不能比卡数还短：每张卡至少管一个元素", f"{m} < {n}", f"至少 {n}")
    data = np.random.default_rng(seed).integers(0, 1000, (n, m))
    steps = MISTAKES[mistake][1](_schedule(n, route, per_node))
    ended = play([np.array_split(row, n) for row in data], steps, np.add)[-1]
    shares = play([list(np.tile(one_hot, (n, 1))) for one_hot in np.eye(n, dtype=np.int64)], steps, np.add)
    final = np.array([np.concatenate(row) for row in ended])
    wrong = float((final != data.sum(axis=0)).mean())
    agree = bool((final == final[0]).all())
    lengths = [len(chunk) for chunk in np.array_split(data[0], n)]
    sent, leaving = _traffic(steps, lengths, n, per_node)
    shown = min(n - 1 if step is None else step, len(steps))
    w = Worked()
    if route == "star" or mistake != "none" or m % n:
        w.say(f"最忙的卡发出，逐块数 → {format_number(sent)} 个元素")
    else:
        w.line("每张卡发出", allreduce_factor(quantity(n)) * quantity(m, "element"), "element")
    w.line("合几份数组", quantity(sent, "element") / quantity(m, "element"))
    w.say(f"逐个比对 {format_number(n * m)} 个数 → {format_number(round(wrong * n * m))} 个不等于总和")
    w.say(f"第 {shown} 步之后，凑齐的块 → {_complete(shares[shown], n)} / {n * n}")
    return Result(
        values={
            "all_equal": wrong == 0, "ranks_agree": agree, "sent_per_rank": sent, "sent_factor": sent / m, "steps": len(steps),
            "wrong_pct": 100 * wrong, "nic_elements": leaving, "rank_0": _rank_0(steps, shares),
        },
        lines=w.lines,
        verdict=_verdict(
            route, mistake, n, wrong, agree, sent / m, leaving,
            least=min(int((cell > 0).sum()) for row in shares[-1] for cell in row),
            tidy=_traffic(ring_schedule(range(n)), lengths, n, per_node)[1],
        ),
        resolved={"step": shown} if step is None else {},
        notes=(f"一共 {len(steps)} 步，图里是最后一步。",) if step is not None and step > len(steps) else (),
        trace=Trace(shares, steps, shown),
    )  # fmt: skip


def _schedule(n: int, route: str, per_node: int) -> tuple[Step, ...]:
    if route == "star":
        return star_schedule(n)
    order = sorted(range(n), key=lambda rank: (rank % per_node, rank)) if route == "interleaved" else range(n)
    return ring_schedule(order)


def _traffic(steps: Sequence[Step], lengths: Sequence[int], n: int, per_node: int) -> tuple[int, int]:
    """Elements that the busiest rank sends, and that leave the busiest node."""
    sent, left = [0] * n, [0] * n
    for move in (m for step in steps for m in step):
        sent[move.sender] += lengths[move.chunk]
        if move.sender // per_node != move.receiver // per_node:
            left[move.sender // per_node] += lengths[move.chunk]
    return max(sent), max(left)


def _complete(held: Sequence[Sequence[Integers]], n: int) -> int:
    return sum(_text(cell) == str(n) for row in held for cell in row)


def _rank_0(steps: Sequence[Step], shares: list[list[list[Integers]]]) -> list[Row]:
    rows: list[Row] = []
    for t, step in enumerate(steps):
        into = [m for m in step if m.receiver == 0]
        rows.append(
            {
                "step": t + 1,
                "sends": "".join(_chunk(m.chunk) for m in step if m.sender == 0) or "—",
                "receives": "".join(_chunk(m.chunk) for m in into) or "—",
                "does": ("加上" if into[0].adds else "换上") if into else "等",
                "shares": _text(shares[t + 1][0][into[0].chunk]) if into else "—",
            }
        )
    return rows


def _verdict(route: str, mistake: str, n: int, wrong: float, agree: bool, factor: float, leaving: int, least: int, tidy: int) -> str:
    """``least``: ranks in the poorest chunk at the end; ``tidy``: what leaves a node when neighbours share one."""
    share = f"{format_number(100 * wrong, digits=3)}% 的位置不等于总和"
    if wrong and agree:
        return f"错了，{share}：块里只有 {least} 张卡的份。可各张卡彼此一样，不报错，训练照跑。要核对总和，别核对彼此。"
    if wrong:
        return f"错了，{share}，各张卡还互不相同：不报错，参数从这一步起各走各的。"
    if mistake != "none":
        return f"这次碰巧对了：{n} 张卡太少，这个错没露出来。加几张卡再看。"
    done = f"{n} 张卡都拿到了总和，一个数不差。"
    if route == "star":
        return done + f"可卡 0 一张就发了 {format_number(factor)} 份数组，别的卡在等：步数和环一样，环上每步只搬 1/{n} 份，这里每步搬一整份。"
    if leaving > tidy:
        return (
            done
            + f"可每台机器从网卡出去 {format_number(leaving)} 个元素：环在机器之间来回穿，几股流挤一块网卡。同机的卡挨着排，只出去 {format_number(tidy)} 个。"
        )
    out = f"；每台机器从网卡只出去 {format_number(leaving)} 个元素，一股流" if leaving else ""
    return done + f"每张卡只发了 {format_number(factor)} 份数组，卡再多也不到 2 份{out}。"
