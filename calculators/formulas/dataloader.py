"""Workers that prepare batches and a training loop that takes them: who waits for whom?

The rule is PyTorch's DataLoader: at most ``prefetch`` × ``workers`` batches are under way or ready, a new one is handed out
when the loop takes one.  In order, batch i belongs to worker i mod n and the loop waits for exactly the next number.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Delivery:
    """``starts``, ``owners``: by batch, when a worker began it and which; ``order``, ``takes``: by step, which batch was taken and when."""

    starts: list[float]
    owners: list[int]
    order: list[int]
    takes: list[float]


def in_main_process(loads: Sequence[float], step: float) -> Delivery:
    """No workers: prepare a batch, train on it, prepare the next."""
    starts, takes, now = [], [], 0.0
    for load in loads:
        starts.append(now)
        takes.append(now + load)
        now += load + step
    n = len(loads)
    return Delivery(starts, [0] * n, list(range(n)), takes)


def in_order(loads: Sequence[float], workers: int, prefetch: int, step: float) -> Delivery:
    """The loop takes batch 0, 1, 2 … whatever else is ready."""
    n, window = len(loads), workers * prefetch
    free = [0.0] * workers
    starts, takes = [0.0] * n, [0.0] * n
    end = 0.0
    for i, load in enumerate(loads):
        worker = i % workers
        start = free[worker]
        if i >= window and takes[i - window] > start:
            start = takes[i - window]
        ready = start + load
        starts[i], free[worker] = start, ready
        take = ready if ready > end else end
        takes[i] = take
        end = take + step
    return Delivery(starts, [i % workers for i in range(n)], list(range(n)), takes)


def any_order(loads: Sequence[float], workers: int, prefetch: int, step: float) -> Delivery:
    """The loop takes whatever is ready first; the next batch goes to the next worker in turn that holds fewer than ``prefetch``.

    A batch waits in its worker's own queue: behind a slow one it stays there, even when another worker is idle.
    """
    n, window = len(loads), workers * prefetch
    free, held = [0.0] * workers, [0] * workers
    turn = itertools.cycle(range(workers))
    ready: list[tuple[float, int]] = []
    starts, owners = [0.0] * n, [0] * n
    order, takes = [0] * n, [0.0] * n

    def hand_out(batch: int, now: float) -> None:
        worker = next(w for w in turn if held[w] < prefetch)
        owners[batch], starts[batch] = worker, max(free[worker], now)
        free[worker] = starts[batch] + loads[batch]
        held[worker] += 1
        heapq.heappush(ready, (free[worker], batch))

    for batch in range(min(n, window)):
        hand_out(batch, 0.0)
    end = 0.0
    for k in range(n):
        at, batch = heapq.heappop(ready)
        order[k], takes[k] = batch, max(at, end)
        held[owners[batch]] -= 1
        if k + window < n:
            hand_out(k + window, takes[k])
        end = takes[k] + step
    return Delivery(starts, owners, order, takes)


def deliver(loads: Sequence[float], workers: int, prefetch: int, step: float, ordered: bool = True) -> Delivery:
    """One epoch of ``len(loads)`` batches."""
    if workers == 0:
        return in_main_process(loads, step)
    return (in_order if ordered else any_order)(loads, workers, prefetch, step)


def utilisation(delivery: Delivery, step: float) -> float:
    """Share of the whole time in which the training loop trains."""
    return len(delivery.takes) * step / (delivery.takes[-1] + step)


def fewest_workers(loads: Sequence[float], prefetch: int, step: float, share: float, most: int, ordered: bool = True) -> int | None:
    """The fewest workers, up to ``most``, with which training runs at least ``share`` of the time.

    n workers need at least Σ loads ÷ n, so smaller n need not be tried.
    """
    first = max(1, math.floor(share * math.fsum(loads) / (len(loads) * step)))
    return next((n for n in range(first, most + 1) if utilisation(deliver(loads, n, prefetch, step, ordered), step) >= share), None)
