"""The slowest of many: a synchronous step takes as long as its slowest rank.  Order statistics of the normal distribution."""

from __future__ import annotations

import math
from functools import lru_cache

from calculators.core.worked import N, ln, sqrt

STEPS = 4000
"""Of the trapezoid rule; 400 agree to five digits."""
REACH = 8.0
"""Standard deviations beyond which nothing happens."""


def below(x: float) -> float:
    """Φ: the share of a standard normal below x."""
    return math.erfc(-x / math.sqrt(2)) / 2


def _log_below(x: float) -> float:
    """ln Φ, exact where Φ is nearly 1: a large power of it must not lose its digits."""
    if x > 0:
        return math.log1p(-math.erfc(x / math.sqrt(2)) / 2)
    share = below(x)
    return math.log(share) if share else -math.inf


def shorthand(sigma: N, ranks: N) -> N:
    """σ·√(2 ln n), the usual rule of thumb: an upper bound."""
    return sigma * sqrt(2 * ln(ranks))


@lru_cache(maxsize=512)
def expected_slowest(ranks: int, sigma: float, slow_ranks: int = 0, slow: float = 0.0, steps: int = STEPS) -> float:
    """E[max] − 1 of ``ranks`` step times, mean 1, standard deviation σ; ``slow_ranks`` of them have mean 1 + ``slow``.

    a + ∫ (1 − P(all below x)) dx from a, where surely none is below, to b, where surely all are.
    """
    extra = slow if slow_ranks else 0.0
    if sigma == 0 or ranks == 1:
        return extra
    low, high = -REACH * sigma, extra + REACH * sigma
    step = (high - low) / steps
    above = [-math.expm1(_log_all_below(low + i * step, ranks, sigma, slow_ranks, extra)) for i in range(steps + 1)]
    return low + step * (math.fsum(above) - (above[0] + above[-1]) / 2)


def _log_all_below(x: float, ranks: int, sigma: float, slow_ranks: int, extra: float) -> float:
    ordinary = (ranks - slow_ranks) * _log_below(x / sigma) if slow_ranks < ranks else 0.0
    return ordinary + slow_ranks * _log_below((x - extra) / sigma) if slow_ranks else ordinary
