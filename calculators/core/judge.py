"""Is a typed answer right?  Numbers of a self-test, with their units."""

from __future__ import annotations

from calculators.core.numbers import NotANumber, format_value, parse_number
from calculators.core.units import unit_of

TOLERANCE = 0.02
"""A reader who rounds to two figures is right; a slip of a factor never is."""

MOST = 0.05
"""The printed digits excuse no more than that."""

_OTHER_ACCOUNTING = {"bytes": "GiB", "bytes-binary": "GB"}
"""Dimension → a unit of the other way to count bytes."""

_SLIPS = ((8, "是不是把位和字节混了"), (1000, "是不是差了一级单位"), (100, "是不是百分数和小数混了"), (2, "是不是漏了一个 2"))


def judge(typed: str, value: float, unit: str, half_step: float = 0.0) -> tuple[bool | None, str]:
    """Compare ``typed`` (``56``, ``56GB``, ``56 GB``, ``0.056 TB``) with ``value`` in ``unit``; returns (right, sentence).

    A number without a unit is in ``unit``; one of the same dimension is converted, and GiB for GB is converted aloud.  Right is
    within 2 %, or within ``half_step``, half of the last digit that the text prints.  None: not readable as such a number.
    """
    aloud = ""
    try:
        given = parse_number(typed, unit)
    except NotANumber as error:
        converted = _converted(typed, unit)
        if converted is None:
            return None, _unreadable(str(error), unit)
        given, aloud = converted, f"{typed.strip()} 就是 {format_value(converted, unit)}："
    if abs(given - value) <= max(TOLERANCE * abs(value), min(half_step, MOST * abs(value))) * (1 + 1e-9):
        return True, f"{aloud}对，算出来是 {format_value(value, unit)}。"
    return False, f"{aloud}不对：你填的是 {format_value(given, unit)}，{_how_far(given, value)}。改一改再试，或者看答案。"


def _converted(typed: str, unit: str) -> float | None:
    own = unit_of(unit)
    other = _OTHER_ACCOUNTING.get(own.dimension)
    if other is None:
        return None
    try:
        return parse_number(typed, other) * unit_of(other).scale / own.scale
    except NotANumber:
        return None


def _unreadable(reason: str, unit: str) -> str:
    wanted = unit_of(unit).label
    return f"没看懂：你填的{reason}" + (f"；这一题的单位是 {wanted}" if wanted and wanted not in reason else "")


def _how_far(given: float, value: float) -> str:
    if not value or given / value <= 0:
        return "差得远"
    word, ratio = ("大了", given / value) if abs(given) > abs(value) else ("小了", value / given)
    if ratio < 1.1:
        return f"差一点（{word} {format_value((ratio - 1) * 100, '%', 2)}）"
    slip = next((f"：{meaning}" for factor, meaning in _SLIPS if abs(ratio / factor - 1) < 0.02), "")
    return f"{word}，差 {format_value(ratio, '×', 2)}{slip}"
