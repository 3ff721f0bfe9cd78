"""How many machines are away at once: Poisson, whatever the repair times' distribution (M/G/∞)."""

from __future__ import annotations

import math


def poisson(k: int, mean: float) -> float:
    """P(X = k); by logarithms, since the factorial overflows."""
    return math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) if mean > 0 else float(k == 0)


def spares_for(mean: float, confidence: float) -> tuple[int, float]:
    """The smallest k with P(X ≤ k) ≥ ``confidence`` (below 1), and that probability."""
    k, reached = 0, poisson(0, mean)
    while reached < confidence:
        k += 1
        reached += poisson(k, mean)
    return k, reached
