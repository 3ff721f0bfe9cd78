"""Failures of a cluster and what checkpoints cost: independent failures at a constant rate (exponential gaps).

Sources: Young 1974 (CACM 17:9) and Daly 2006 (FGCS 22:3), their formulas as secondary sources quote them.
``mtti``: mean time to interruption; ``tau``: useful work between two checkpoints; ``delta``: the time a checkpoint blocks;
``restart``: from the failure until training goes on.  All in seconds (any one unit of time will do).
"""

from __future__ import annotations

import math

from calculators.core.worked import N, sqrt

BISECTIONS = 80


def observed_rate(days: N, gpus: N, interruptions: N) -> N:
    """Card-time per interruption, from a log book."""
    return days * gpus / interruptions


def mtti_of(gpu_time_per_interruption: N, gpus: N) -> N:
    """Independent cards: n cards are interrupted n times as often."""
    return gpu_time_per_interruption / gpus


def survival(span: float, mtti: float) -> float:
    """Chance of no interruption within ``span``."""
    return math.exp(-span / mtti)


def young_interval(delta: N, mtti: N) -> N:
    """Where writing (δ/τ) and redoing (τ/2M) cost the same."""
    return sqrt(2 * delta * mtti)


def young_overhead(delta: N, mtti: N) -> N:
    """Writing and redoing together at Young's interval; the restart is extra."""
    return sqrt(2 * delta / mtti)


def daly_interval(young: N, half: N, delta: N) -> N:
    """Daly's correction of Young's interval; ``half`` = δ / 2M, below 1."""
    return young * (1 + sqrt(half) / 3 + half / 9) - delta


def daly(delta: float, mtti: float) -> float:
    """Daly's interval for any δ: beyond 2M it is M."""
    return daly_interval(young_interval(delta, mtti), delta / mtti / 2, delta) if delta < 2 * mtti else mtti


def efficiency(tau: float, delta: float, restart: float, mtti: float) -> float:
    """Useful share of the time when failures may strike at any moment: τ / (M·e^(R/M)·(e^((τ+δ)/M) − 1)), written so that nothing overflows."""
    segment = (tau + delta) / mtti
    return tau / mtti * math.exp(-(restart / mtti + segment)) / -math.expm1(-segment)


def efficiency_safe_restart(tau: float, delta: float, restart: float, mtti: float) -> float:
    """The same when no failure strikes a restart: τ / ((M + R)·(e^((τ+δ)/M) − 1))."""
    segment = (tau + delta) / mtti
    return tau / (mtti + restart) * math.exp(-segment) / -math.expm1(-segment)


def first_order(tau: float, delta: float, restart: float, mtti: float) -> float:
    """At most one failure a segment: 1 − δ/(τ+δ) − (τ/2 + R)/M; below zero where failures come too fast for it."""
    return 1 - delta / (tau + delta) - (tau / 2 + restart) / mtti


def best_interval(delta: float, mtti: float) -> float:
    """The τ that maximises ``efficiency``, whatever the restart costs.

    With x = τ/M and s = (τ+δ)/M the slope vanishes where e^s − 1 = x·e^s; the difference falls once through zero on (0, 1).
    """
    low, high = 0.0, 1.0
    for _ in range(BISECTIONS):
        x = (low + high) / 2
        s = x + delta / mtti
        if math.expm1(s) > x * math.exp(s):
            low = x
        else:
            high = x
    return low * mtti


def longest_restart(share: float, tau: float, delta: float, mtti: float) -> float | None:
    """The restart at which the efficiency is just ``share``; None when not even an instant restart reaches it."""
    instant = efficiency(tau, delta, 0.0, mtti)
    return mtti * math.log(instant / share) if instant >= share else None
