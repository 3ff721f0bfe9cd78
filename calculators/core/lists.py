"""Lists of numbers typed into a text field: ``5, 5, 4``, ``[5 5 4]``, ``5、5、4``."""

from __future__ import annotations

import math
import re

from calculators.core.errors import refuse
from calculators.core.numbers import NotANumber, format_number, parse_number

_SEPARATORS = re.compile(r"[\s,，、;；]+")


def read_numbers(field: str, label: str, text: str, *, low: float, high: float = math.inf) -> tuple[float, ...]:
    """The numbers of a list in order, each from ``low`` to ``high``; a comma always separates.  Raises Refusal."""
    items = [item for item in _SEPARATORS.split(text.strip().strip("[]()（）")) if item]
    if not items:
        raise refuse(field, f"{label}里要有数", f"「{_clip(text)}」", "用逗号隔开，例如 1, 2, 4")
    return tuple(_read(field, f"{label}的第 {k} 个", item, low, high) for k, item in enumerate(items, 1))


def read_integers(field: str, label: str, text: str, *, low: float, high: float = math.inf) -> tuple[int, ...]:
    """The same for whole numbers.  Raises Refusal."""
    found = []
    for k, value in enumerate(read_numbers(field, label, text, low=low, high=high), 1):
        if not math.isclose(value, round(value), rel_tol=0, abs_tol=1e-9):
            raise refuse(field, f"{label}的第 {k} 个必须是整数", format_number(value), f"例如 {math.floor(value)}")
        found.append(round(value))
    return tuple(found)


def _read(field: str, label: str, item: str, low: float, high: float) -> float:
    try:
        value = parse_number(item)
    except NotANumber as error:
        raise refuse(field, f"{label}{error}", f"「{_clip(item)}」", "用逗号隔开，例如 1, 2, 4") from None
    if not low <= value <= high:
        allowed = f"不能小于 {format_number(low)}" if math.isinf(high) else f"必须在 {format_number(low)} 到 {format_number(high)} 之间"
        raise refuse(field, f"{label}{allowed}", f"「{_clip(item)}」")
    return value


def _clip(text: str) -> str:
    return text if len(text) <= 40 else text[:40] + "…"
