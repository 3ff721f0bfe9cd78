"""A simulator of pipeline schedules: each rank does its operations in a fixed order, an operation starts when the rank is
free and what it needs has arrived.

Orders: GPipe; 1F1B and interleaved 1F1B as in Megatron-LM (Narayanan et al. 2021 §2.2); ZB-H1 (here zb1p), ZB-H2 (zb2p)
and ZBV as drawn in Qi et al. 2023, the latter in the order of torch.distributed.pipelining's ScheduleZBVZeroBubble.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

Kind = Literal["F", "B", "W"]
"""Forward; backward (of the inputs only where W follows on its own); gradient of the weights."""
Op = tuple[Kind, int, int]
"""kind, micro-batch, chunk of the rank"""


@dataclass(frozen=True)
class Done:
    """An operation with its times."""

    kind: Kind
    micro_batch: int
    chunk: int
    start: float
    end: float


Film = list[list[Done]]
"""What each rank did, in order."""


def gpipe(p: int, m: int, v: int, rank: int) -> Iterator[Op]:
    """All forwards, then all backwards."""
    yield from (("F", k, 0) for k in range(m))
    yield from (("B", k, 0) for k in range(m))


def one_f_one_b(p: int, m: int, v: int, rank: int) -> Iterator[Op]:
    """p − rank − 1 forwards to warm up, then one forward and one backward in turn."""
    yield from _pairs([("F", k, 0) for k in range(m)], [("B", k, 0) for k in range(m)], p - rank - 1)


def interleaved(p: int, m: int, v: int, rank: int) -> Iterator[Op]:
    """The same over v chunks: p micro-batches go through a chunk before the next chunk's turn."""
    k = range(m * v)
    batch = [n // (p * v) * p + n % p for n in k]
    chunk = [n % (p * v) // p for n in k]
    forward: list[Op] = [("F", batch[n], chunk[n]) for n in k]
    backward: list[Op] = [("B", batch[n], v - 1 - chunk[n]) for n in k]
    yield from _pairs(forward, backward, 2 * (p - rank - 1) + (v - 1) * p)


def _pairs(forward: list[Op], backward: list[Op], warm_up: int) -> Iterator[Op]:
    warm_up = min(warm_up, len(forward))
    yield from forward[:warm_up]
    for f, b in zip(forward[warm_up:], backward, strict=False):
        yield f
        yield b
    yield from backward[len(forward) - warm_up :]


def zb1p(p: int, m: int, v: int, rank: int) -> Iterator[Op]:
    """1F1B's order; the last ranks hand their B back at once and put off as many W as there are ranks before them."""
    put_off = rank
    done = 0
    for op in one_f_one_b(p, m, v, rank):
        yield op
        if op[0] == "B" and op[1] >= put_off:
            yield ("W", done, 0)
            done += 1
    yield from (("W", k, 0) for k in range(done, m))


def zb2p(p: int, m: int, v: int, rank: int) -> Iterator[Op]:
    """Twice the warm-up, so that no rank waits for its first B, and twice the W put off."""
    warm_up = min(2 * (p - rank) - 1, m)
    yield from (("F", k, 0) for k in range(warm_up))
    done = 0
    for k in range(m):
        yield ("B", k, 0)
        if k >= 2 * rank:
            yield ("W", done, 0)
            done += 1
        if warm_up + k < m:
            yield ("F", warm_up + k, 0)
    yield from (("W", k, 0) for k in range(done, m))


def zbv(p: int, m: int, v: int, rank: int) -> Iterator[Op]:
    """Two chunks a rank, laid out as a V: the last stage sits on rank 0 again and starts the backward there."""
    return (op for op in _zbv(p, max(2 * p - 1, m), rank) if op[1] < m)


def _zbv(p: int, m: int, rank: int) -> Iterator[Op]:
    next_one = {(kind, chunk): 0 for kind in ("F", "B", "W") for chunk in (0, 1)}

    def take(kind: Kind, chunk: int) -> Op:
        next_one[kind, chunk] += 1
        return (kind, next_one[kind, chunk] - 1, chunk)

    def several(times: int, *what: tuple[Kind, int]) -> Iterator[Op]:
        for _ in range(times):
            yield from (take(*each) for each in what)

    yield from several(2 * (p - rank) - 1, ("F", 0))
    yield from several(rank, ("F", 1), ("F", 0))
    yield from several(p - rank, ("F", 1), ("B", 1), ("W", 1))
    while next_one["F", 1] < next_one["F", 0] or next_one["F", 0] < m:
        if next_one["F", 0] < m:
            yield take("F", 0)
        yield from several(1, ("B", 0), ("W", 0), ("F", 1), ("B", 1), ("W", 1))
    yield from several(rank, ("B", 0), ("B", 1))
    yield from several(p - rank, ("B", 0), ("W", 0))
    yield from several(m - next_one["W", 1], ("W", 1))
    yield from several(m - next_one["W", 0], ("W", 0))


ORDERS: dict[str, Callable[[int, int, int, int], Iterator[Op]]] = {
    "gpipe": gpipe, "1f1b": one_f_one_b, "interleaved": interleaved, "zb1p": zb1p, "zb2p": zb2p, "zbv": zbv,
}  # fmt: skip
CHUNKS = {"zbv": 2}
"""Chunks on a rank where the schedule fixes them."""
SPLIT = ("zb1p", "zb2p", "zbv")
"""Schedules with a W of their own."""


def stage_of(schedule: str, p: int, rank: int, chunk: int) -> int:
    """Where in the model a rank's chunk lies."""
    if schedule == "zbv":
        return rank if chunk == 0 else 2 * p - 1 - rank
    return chunk * p + rank


def lengths(schedule: str, t_f: float, t_b: float, t_w: float) -> dict[Kind, float]:
    """How long each kind of operation takes; ``t_w`` is a part of the full backward ``t_b``."""
    return {"F": t_f, "B": t_b - t_w, "W": t_w} if schedule in SPLIT else {"F": t_f, "B": t_b}


def simulate(schedule: str, p: int, m: int, v: int, length: dict[Kind, float], scale: tuple[float, ...], p2p: float) -> Film:
    """Run one step.  ``length`` for a whole rank and micro-batch, a chunk takes 1/v of it; ``scale`` a factor for each rank;
    ``p2p`` is added whenever a dependency crosses to another rank.
    """
    v = CHUNKS.get(schedule, v)
    orders = [list(ORDERS[schedule](p, m, v, rank)) for rank in range(p)]
    last = p * v - 1
    ended: dict[tuple[Kind, int, int], tuple[float, int]] = {}
    """(kind, stage, micro-batch) → when and on which rank"""
    free = [0.0] * p
    film: Film = [[] for _ in range(p)]

    def needs(kind: Kind, stage: int, k: int) -> tuple[Kind, int, int] | None:
        if kind == "F":
            return ("F", stage - 1, k) if stage else None
        if kind == "W":
            return ("B", stage, k)
        return ("B", stage + 1, k) if stage < last else ("F", stage, k)

    moved = True
    while moved:
        moved = False
        for rank, order in enumerate(orders):
            done = film[rank]
            while len(done) < len(order):
                kind, k, chunk = order[len(done)]
                stage = stage_of(schedule, p, rank, chunk)
                need = needs(kind, stage, k)
                ready = 0.0
                if need is not None:
                    if need not in ended:
                        break
                    when, where = ended[need]
                    ready = when if where == rank else when + p2p
                start = max(free[rank], ready)
                free[rank] = start + length[kind] * scale[rank] / v
                ended[kind, stage, k] = (free[rank], rank)
                done.append(Done(kind, k, chunk, start, free[rank]))
                moved = True
    if any(len(done) < len(order) for done, order in zip(film, orders, strict=True)):
        raise RuntimeError(f"{schedule} with p = {p}, m = {m}, v = {v} waits for ever")
    return film


def step_time(film: Film) -> float:
    """From its first operation to its last, for the rank that takes longest: the next step can follow at this distance."""
    return max(done[-1].end - done[0].start for done in film)


def held(schedule: str, done: list[Done], v: int) -> list[tuple[float, float]]:
    """(time, micro-batches whose activations the rank holds from then on).  A W of its own keeps them until it is done."""
    v = CHUNKS.get(schedule, v)
    frees = "W" if schedule in SPLIT else "B"
    level, steps = 0, []
    for op in done:
        if op.kind == "F":
            level += 1
            steps.append((op.start, level / v))
        elif op.kind == frees:
            level -= 1
            steps.append((op.end, level / v))
    return steps


def peak(schedule: str, done: list[Done], v: int) -> float:
    """The most micro-batches that the rank holds at once."""
    return max(level for _, level in held(schedule, done, v))
