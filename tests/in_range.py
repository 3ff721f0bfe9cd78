"""Hypothesis strategies made from a calculator's declaration: typed texts that every field accepts."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from calculators.core.calculator import Calculator
from calculators.core.inputs import Input

_BEYOND = 1e12
"""Where the declaration sets no limit."""


def raw_inputs(calculator: Calculator) -> st.SearchStrategy[dict[str, str]]:
    """Texts for all or some of the fields; run them with ``drop_unused``."""
    return st.fixed_dictionaries({}, optional={i.name: texts(i) for i in calculator.inputs})


def texts(item: Input) -> st.SearchStrategy[str]:
    """Texts of one field, limits and slider stops among them."""
    if item.type == "choice":
        return st.sampled_from([item.text(c) for c in item.choices])
    if item.type == "bool":
        return st.sampled_from(["true", "false", ""])
    if item.type == "text":
        return st.sampled_from([item.text(item.default), item.placeholder])
    return _numbers(item).map(item.text)


def _numbers(item: Input) -> st.SearchStrategy[float | int]:
    low = item.low if math.isfinite(item.low) else -_BEYOND
    high = item.high if math.isfinite(item.high) else max(_BEYOND, low * 10)
    if item.type == "int":
        first, last = math.ceil(low), math.floor(high)
        ends = [v for v in {first, last, *map(round, item.stops)} if first <= v <= last]
        return st.one_of(st.sampled_from(sorted(ends)), st.integers(first, last), _logarithmic(max(first, 1), last).map(round))
    ends = sorted(v for v in {low, high, *item.stops} if low <= v <= high and not (v == low and item.low_open))
    anywhere = st.floats(low, high, exclude_min=item.low_open, allow_subnormal=False)
    return st.one_of(st.sampled_from(ends), anywhere, _logarithmic(max(low, high * 1e-9), high)) if high > 0 else st.one_of(st.sampled_from(ends), anywhere)


def _logarithmic(low: float, high: float) -> st.SearchStrategy[float]:
    """Values of every magnitude: a uniform draw almost never is a small one."""
    return st.floats(math.log(low), math.log(high)).map(lambda x: min(max(math.exp(x), low), high))
