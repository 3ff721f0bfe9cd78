"""Who sends which chunk to whom, step by step: the schedule of a ring all-reduce, and of the star that it replaces.

Chunk c is the cth of n pieces of every rank's buffer.  The schedule is plain data; ``play`` moves anything that can be added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Move:
    """One chunk on its way; the receiver adds it to its own or puts it in place."""

    sender: int
    receiver: int
    chunk: int
    adds: bool


Step = tuple[Move, ...]
"""Moves of one step happen at the same time."""


def ring_schedule(order: Sequence[int]) -> tuple[Step, ...]:
    """n−1 steps of reduce-scatter, then n−1 of all-gather, around the ranks in that order.

    Position i sends chunk i−s in step s of the first phase, so that chunk i+1 is complete there at its end.
    """
    n = len(order)
    reduce = [tuple(Move(order[i], order[(i + 1) % n], (i - s) % n, True) for i in range(n)) for s in range(n - 1)]
    gather = [tuple(Move(order[i], order[(i + 1) % n], (i + 1 - s) % n, False) for i in range(n)) for s in range(n - 1)]
    return (*reduce, *gather)


def star_schedule(n: int) -> tuple[Step, ...]:
    """Everything to rank 0, one rank after the other, then the sum back to each."""
    to_root = [tuple(Move(r, 0, c, True) for c in range(n)) for r in range(1, n)]
    back = [tuple(Move(0, r, c, False) for c in range(n)) for r in range(1, n)]
    return (*to_root, *back)


def forget_to_add(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Receivers overwrite their own share instead of adding."""
    return tuple(tuple(replace(m, adds=False) for m in step) for step in steps)


def never_change_chunk(steps: Sequence[Step]) -> tuple[Step, ...]:
    """In the first phase every position sends the chunk of step 0 again and again."""
    first = {m.sender: m.chunk for m in steps[0]}
    return tuple(tuple(replace(m, chunk=first[m.sender]) if m.adds else m for m in step) for step in steps)


def stop_reducing_early(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The last step of the first phase is left out."""
    last = max(i for i, step in enumerate(steps) if step[0].adds)
    return tuple(step for i, step in enumerate(steps) if i != last)


def stop_gathering_early(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The last step of all is left out."""
    return tuple(steps[:-1])


def play(held: list[list[T]], steps: Sequence[Step], add: Callable[[T, T], T]) -> list[list[list[T]]]:
    """``held[rank][chunk]`` before the first step and after each; what is sent in a step was there when it began."""
    states = [held]
    for step in steps:
        before = states[-1]
        after = [list(row) for row in before]
        for m in step:
            sent = before[m.sender][m.chunk]
            after[m.receiver][m.chunk] = add(after[m.receiver][m.chunk], sent) if m.adds else sent
        states.append(after)
    return states
