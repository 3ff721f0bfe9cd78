"""A model input with one more option: ``custom`` (or a paper's shape), whose dimensions the reader types."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from calculators.catalog import Model, model_input
from calculators.core.inputs import Input

CUSTOM = "custom"


def model_or(extra: str, label: str, default: str, *, where: Callable[[Model], bool] | None = None, help: str = "") -> Input:
    """``model_input`` plus the choice ``extra``, for which the calculator receives None instead of a Model."""
    base = model_input(where=where, help=help)
    lookup, caution = base.lookup, base.caution
    assert lookup is not None
    assert caution is not None
    return replace(
        base,
        default=default,
        choices=(*base.choices, extra),
        choice_labels={**(base.choice_labels or {}), extra: label},
        lookup=lambda text: None if text == extra else lookup(text),
        caution=lambda text: "" if text == extra else caution(text),
    )
