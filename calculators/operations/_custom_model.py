"""A model input with one more option: ``custom``, whose dimensions the reader types."""

from __future__ import annotations

from dataclasses import replace

from calculators.catalog import model_input
from calculators.core.inputs import Input

CUSTOM = "custom"


def model_or_custom(default: str) -> Input:
    """``model_input`` plus ``custom``, for which the calculator receives None instead of a Model."""
    base = model_input()
    lookup, caution = base.lookup, base.caution
    assert lookup is not None
    assert caution is not None
    return replace(
        base,
        default=default,
        choices=(*base.choices, CUSTOM),
        choice_labels={**(base.choice_labels or {}), CUSTOM: "自己填参数量"},
        lookup=lambda text: None if text == CUSTOM else lookup(text),
        caution=lambda text: "" if text == CUSTOM else caution(text),
    )
