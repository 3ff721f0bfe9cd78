"""Compound growth, quoted as a factor per two years."""

from __future__ import annotations

from calculators.core.worked import N, power


def growth_factor(rate_per_2_years: N, years: N) -> N:
    """How much a quantity grew in ``years``: rate^(years ÷ 2)."""
    return power(rate_per_2_years, years / 2)


def rate_per_two_years(factor: N, years: N) -> N:
    """The inverse: factor^(2 ÷ years)."""
    return power(factor, 2 / years)
