"""Amdahl's law: what a faster part does for the whole.  Amdahl, AFIPS 1967."""

from __future__ import annotations

from calculators.core.worked import N


def overall_speedup(share: N, factor: N, one: N) -> N:
    """Whole step when ``share`` of its time becomes ``factor`` times faster (``one`` = 1)."""
    return one / (one - share + share / factor)


def accelerated_share(speedup: N, factor: N, one: N) -> N:
    """The inverse: the share that must have become ``factor`` times faster to explain ``speedup``."""
    return (one - one / speedup) / (one - one / factor)
