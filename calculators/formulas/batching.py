"""Static and continuous batching: how long a batch lasts when its requests want different numbers of tokens.

Static: the batch ends with its longest request, E[max of B] steps of which a slot works the mean.  Continuous (iteration-level)
scheduling: the next request takes the slot that is free first.  Sources: order statistics; Yu et al. 2022 (Orca) §2–3.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

NEGLIGIBLE = 1e-15
"""A tail of the geometric distribution that no longer counts."""
MANY = 500
"""Mean beyond which the geometric sum is taken by Euler–Maclaurin: it differs by less than 1e-12 there."""


def harmonic(n: int) -> float:
    """H_n = 1 + 1/2 + … + 1/n."""
    return math.fsum(1 / k for k in range(1, n + 1))


def exponential_max(mean: float, batch: int) -> float:
    """Mean of the longest of ``batch`` exponential lengths: mean × H_B."""
    return mean * harmonic(batch)


def geometric_max(mean: float, batch: int) -> float:
    """The same for whole lengths 1, 2, … that end with probability 1/mean at every token: Σ 1 − (1 − q^k)^B."""
    q = 1 - 1 / mean
    if q == 0 or batch == 1:
        return mean
    if mean > MANY:
        return harmonic(batch) / -math.log1p(-1 / mean) + 0.5
    terms = [1.0]
    tail = q
    while tail >= NEGLIGIBLE:
        terms.append(-math.expm1(batch * math.log1p(-tail)))
        tail *= q
    return math.fsum(terms)


def uniform_max(mean: float, batch: int) -> float:
    """Uniform between 0 and twice the mean."""
    return mean * (2 * batch / (batch + 1))


def constant_max(mean: float, batch: int) -> float:
    """All alike: nobody waits."""
    return mean


def empirical_max(lengths: Sequence[tuple[float, float]], batch: int) -> float:
    """Σ k·(F(k)^B − F(k−1)^B) over (length, count), drawn with replacement; F is the cumulative share."""
    total = math.fsum(count for _, count in lengths)
    expected: list[float] = []
    seen = below = 0.0
    for length, count in sorted(lengths):
        seen += count
        upto = min(seen / total, 1.0) ** batch
        expected.append(length * (upto - below))
        below = upto
    expected.append(max(length for length, _ in lengths) * (1 - below))  # what rounding left of the last share
    return math.fsum(expected)


def empirical_mean(lengths: Sequence[tuple[float, float]]) -> float:
    """Mean of (length, count)."""
    return math.fsum(length * count for length, count in lengths) / math.fsum(count for _, count in lengths)


@dataclass(frozen=True)
class Stay:
    """A request in its slot: steps ``start`` + 1 … ``end``."""

    slot: int
    start: int
    end: int


def static_schedule(lengths: Sequence[int], batch: int) -> list[Stay]:
    """Consecutive groups; a group starts when the longest of the one before has ended."""
    stays: list[Stay] = []
    now = 0
    for first in range(0, len(lengths), batch):
        group = lengths[first : first + batch]
        stays += [Stay(slot, now, now + length) for slot, length in enumerate(group)]
        now += max(group)
    return stays


def continuous_schedule(lengths: Sequence[int], batch: int) -> list[Stay]:
    """Each request in turn takes the slot that is free first."""
    free = [(0, slot) for slot in range(batch)]
    stays: list[Stay] = []
    for length in lengths:
        start, slot = free[0]
        heapq.heapreplace(free, (start + length, slot))
        stays.append(Stay(slot, start, start + length))
    return stays


def last_step(stays: Sequence[Stay]) -> int:
    """When everyone is done."""
    return max(stay.end for stay in stays)
