"""Is a typed answer right?  Numbers of a self-test, with their units."""

from __future__ import annotations

import re

from calculators.core.numbers import NotANumber, format_value, parse_number
from calculators.core.units import registry, unit_of

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
    typed = _plain(typed)
    try:
        given = parse_number(typed, unit)
    except NotANumber as error:
        converted = _converted(typed, unit)
        if converted is None:
            return None, _unreadable(typed, str(error), unit)
        given, aloud = converted, f"{typed.strip()} 就是 {format_value(converted, unit)}："
    if abs(given - value) <= max(TOLERANCE * abs(value), min(half_step, MOST * abs(value))) * (1 + 1e-9):
        return True, f"{aloud}对，算出来是 {format_value(value, unit)}。"
    return False, f"{aloud}不对：你填的是 {format_value(given, unit)}，{_how_far(given, value)}。改一改再试，或者看答案。"


def _plain(typed: str) -> str:
    """Without 约, with ``8.4×10^10`` as ``8.4e10`` and a unit typed in the wrong case (``84 gb``) as the one unit that it can be."""
    text = re.sub(r"约|大约|左右|≈|~", "", typed).strip()
    text = re.sub(r"\s*[×xX*]\s*10\s*\^?\s*([+-]?\d+)", r"e\1", text)
    match = re.fullmatch(r"(.*?[\d.])\s*([A-Za-z/]+)", text)
    if match is None or match[2] in registry():
        return text
    same = {unit_of(u).symbol for u in registry() if u.lower() == match[2].lower()}
    return f"{match[1]} {same.pop()}" if len(same) == 1 else text


def _converted(typed: str, unit: str) -> float | None:
    own = unit_of(unit)
    other = _OTHER_ACCOUNTING.get(own.dimension)
    if other is None:
        return None
    try:
        return parse_number(typed, other) * unit_of(other).scale / own.scale
    except NotANumber:
        return None


def _unreadable(typed: str, reason: str, unit: str) -> str:
    wanted = unit_of(unit).label
    read = f"没看懂「{typed[:20]}」：{reason}" if typed else "还没填数"
    return read + (f"；这一题的单位是 {wanted}" if wanted and wanted not in reason else "")


def _how_far(given: float, value: float) -> str:
    if not value or given / value <= 0:
        return "差得远"
    word, ratio = ("大了", given / value) if abs(given) > abs(value) else ("小了", value / given)
    if ratio < 1.95:
        return f"{word} {format_value((ratio - 1) * 100, '%', 2)}"
    slip = next((f"：{meaning}" for factor, meaning in _SLIPS if abs(ratio / factor - 1) < 0.02), "")
    return f"{word}，差 {format_value(ratio, '×', 2)}{slip}"
