"""What a list of measurements says: median, percentiles, spread, how far from the prediction, and the fits of α–β.

Sources: order statistics; Hockney's α–β model (from memory) with the ring's factors of ``collectives``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from calculators.core.worked import N

STEADY = 0.10
"""A coefficient of variation above this means: measure again before explaining anything (a rule of ours)."""

KINDS = {"time": "时间", "throughput": "吞吐", "bytes": "字节"}


def percentile(values: Sequence[float], share: float) -> float:
    """Linear interpolation between the order statistics (numpy's default)."""
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    below = math.floor(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (at - below) * (ordered[above] - ordered[below])


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two in the middle."""
    return percentile(values, 0.5)


def variation(values: Sequence[float]) -> float:
    """Coefficient of variation: sample standard deviation (n − 1) over the mean; 0 for a single value."""
    if len(values) < 2:
        return 0.0
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((v - mean) * (v - mean) for v in values) / (len(values) - 1)) / mean


def worse_by(kind: str, predicted: N, measured: N) -> N:
    """Above 1 always means worse than predicted: measured/predicted, for a throughput the inverse."""
    return predicted / measured if kind == "throughput" else measured / predicted


def fit_alpha_beta(latency: Sequence[float], wire: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """α and 1/B of t = latency·α + wire/B, minimising Σ(1 − t_fit/t)²: every row divided by its own t, so no size outweighs another.

    Needs at least two different ``wire``.
    """
    x = [a / t for a, t in zip(latency, seconds, strict=True)]
    y = [b / t for b, t in zip(wire, seconds, strict=True)]
    xx, yy, xy = (math.fsum(p * q for p, q in zip(u, v, strict=True)) for u, v in ((x, x), (y, y), (x, y)))
    sx, sy = math.fsum(x), math.fsum(y)
    determinant = xx * yy - xy * xy
    return (sx * yy - sy * xy) / determinant, (sy * xx - sx * xy) / determinant
