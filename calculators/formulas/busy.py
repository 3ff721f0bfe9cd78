"""Is a card busy, and how much of it?  What the counters of a monitoring tool are averages of."""

from __future__ import annotations

from calculators.core.worked import N


def busy_share(in_kernels: N, in_gaps: N) -> N:
    """GPU-Util: the share of time in which any kernel runs."""
    return in_kernels / (in_kernels + in_gaps)


def sm_active(sm_share: N, busy: N) -> N:
    """SM-active: averaged over all SMs, for kernels that each fill ``sm_share`` of them from start to end."""
    return sm_share * busy
