"""Worked lines: the same expression gives the value and the line that a reader checks with a pocket calculator.

``Quantity`` is a number in base units (bytes, seconds, FLOP …) together with the text that shows where it came from.
Formulas of ``calculators.formulas`` are written with plain operators, so they accept floats and quantities alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar, overload

from calculators.core.numbers import format_number, with_unit
from calculators.core.units import unit_of

_SUM, _PRODUCT, _POWER, _ATOM = 1, 2, 3, 4


class Quantity:
    """A value in base units and its printed derivation."""

    __slots__ = ("text", "tight", "value")

    def __init__(self, value: float, text: str, tight: int = _ATOM) -> None:
        self.value = value
        self.text = text
        self.tight = tight

    def __repr__(self) -> str:
        return f"Quantity({self.value!r}, {self.text!r})"

    def _binary(self, other: Number, sign: str, value: float, tight: int, right_tight: int, swap: bool = False) -> Quantity:
        mine, theirs = self, _lift(other)
        left, right = (theirs, mine) if swap else (mine, theirs)
        return Quantity(value, f"{_wrap(left, tight)} {sign} {_wrap(right, right_tight)}", tight)

    def __add__(self, other: Number) -> Quantity:
        return self._binary(other, "+", self.value + _value(other), _SUM, _SUM)

    def __radd__(self, other: Number) -> Quantity:
        return self._binary(other, "+", _value(other) + self.value, _SUM, _SUM, swap=True)

    def __sub__(self, other: Number) -> Quantity:
        return self._binary(other, "−", self.value - _value(other), _SUM, _PRODUCT)

    def __rsub__(self, other: Number) -> Quantity:
        return self._binary(other, "−", _value(other) - self.value, _SUM, _PRODUCT, swap=True)

    def __mul__(self, other: Number) -> Quantity:
        return self._binary(other, "×", self.value * _value(other), _PRODUCT, _PRODUCT)

    def __rmul__(self, other: Number) -> Quantity:
        return self._binary(other, "×", _value(other) * self.value, _PRODUCT, _PRODUCT, swap=True)

    def __truediv__(self, other: Number) -> Quantity:
        return self._binary(other, "÷", self.value / _value(other), _PRODUCT, _POWER)

    def __rtruediv__(self, other: Number) -> Quantity:
        return self._binary(other, "÷", _value(other) / self.value, _PRODUCT, _POWER, swap=True)

    def __pow__(self, other: Number) -> Quantity:
        exponent = _value(other)
        value = self.value * self.value if exponent == 2 else self.value**exponent  # x*x is bit-identical everywhere, x**2 is not
        return Quantity(value, f"{_wrap(self, _ATOM)}^{_wrap(_lift(other), _ATOM)}", _POWER)


Number = float | int | Quantity
N = TypeVar("N", float, Quantity)
"""What a formula works on: plain numbers, or quantities that remember their derivation."""


def _value(x: Number) -> float:
    return x.value if isinstance(x, Quantity) else x


def _lift(x: Number) -> Quantity:
    return x if isinstance(x, Quantity) else Quantity(x, format_number(x, digits=6))


def _wrap(x: Quantity, at_least: int) -> str:
    return x.text if x.tight >= at_least else f"({x.text})"


@overload
def ceil(x: Quantity) -> Quantity: ...
@overload
def ceil(x: float) -> float: ...
def ceil(x: Number) -> Number:
    """⌈x⌉, forgiving the last bits: 3.0000000000001 is 3."""
    value = math.ceil(_value(x) * (1 - 1e-12))
    return Quantity(value, f"⌈{x.text}⌉") if isinstance(x, Quantity) else value


@overload
def floor(x: Quantity) -> Quantity: ...
@overload
def floor(x: float) -> float: ...
def floor(x: Number) -> Number:
    """⌊x⌋, forgiving the last bits: 2.9999999999999 is 3."""
    value = math.floor(_value(x) * (1 + 1e-12))
    return Quantity(value, f"⌊{x.text}⌋") if isinstance(x, Quantity) else value


@overload
def sqrt(x: Quantity) -> Quantity: ...
@overload
def sqrt(x: float) -> float: ...
def sqrt(x: Number) -> Number:
    """√x."""
    value = math.sqrt(_value(x))
    return Quantity(value, f"√{_wrap(x, _ATOM)}", _POWER) if isinstance(x, Quantity) else value


@overload
def power(x: Quantity, exponent: Number) -> Quantity: ...
@overload
def power(x: float, exponent: float) -> float: ...
def power(x: Number, exponent: Number) -> Number:
    """x^exponent, for formulas: ``float ** float`` has no type of its own."""
    return x**exponent if isinstance(x, Quantity) else math.pow(x, _value(exponent))


@overload
def ln(x: Quantity) -> Quantity: ...
@overload
def ln(x: float) -> float: ...
def ln(x: Number) -> Number:
    """Natural logarithm."""
    value = math.log(_value(x))
    return Quantity(value, f"ln({x.text})") if isinstance(x, Quantity) else value


@overload
def larger(a: float, b: float) -> float: ...
@overload
def larger(a: Quantity, b: Quantity) -> Quantity: ...
@overload
def larger(a: Number, b: Number) -> Number: ...
def larger(a: Number, b: Number) -> Number:
    """max(a, b)."""
    return _picked(a, b, "max", max(_value(a), _value(b)))


@overload
def smaller(a: float, b: float) -> float: ...
@overload
def smaller(a: Quantity, b: Quantity) -> Quantity: ...
@overload
def smaller(a: Number, b: Number) -> Number: ...
def smaller(a: Number, b: Number) -> Number:
    """min(a, b)."""
    return _picked(a, b, "min", min(_value(a), _value(b)))


def _picked(a: Number, b: Number, word: str, value: float) -> Number:
    if isinstance(a, Quantity) or isinstance(b, Quantity):
        return Quantity(value, f"{word}({_lift(a).text}, {_lift(b).text})")
    return value


def quantity(value: float, unit: str = "", digits: int = 6) -> Quantity:
    """A given number in ``unit``: carries its value in base units, prints as ``14 GB``."""
    known = unit_of(unit)
    return Quantity(value * known.scale if known.scale != 1.0 else value, with_unit(format_number(value, known.style, digits), unit))


def in_unit(x: Number, unit: str) -> float:
    """A value in base units, expressed in ``unit``."""
    scale = unit_of(unit).scale
    return _value(x) / scale if scale != 1.0 else _value(x)


class Worked:
    """Collects the lines that a card shows."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def line(self, label: str, result: Number, unit: str = "", digits: int = 4) -> Quantity:
        """Record ``label: expression = result`` and return the result as a printed number for the next lines.

        The returned quantity keeps the full value; only its text is rounded.  Raises OverflowError on an infinite result.
        """
        value = in_unit(result, unit)
        if not math.isfinite(value):
            raise OverflowError(label)
        shown = with_unit(format_number(value, unit_of(unit).style, digits), unit)
        source = _lift(result)
        if source.text != shown:
            self._lines.append(f"{label}：{source.text} = {shown}" if label else f"{source.text} = {shown}")
        else:
            self._lines.append(f"{label} → {shown}")
        return Quantity(_value(result), shown)

    def say(self, text: str) -> None:
        """Record a line that cannot be re-evaluated (a search, a simulation, a look-up): it uses 「→」 and no 「=」."""
        if "=" in text:
            raise ValueError(f"a line without a checkable result must use → instead of =: {text}")
        self._lines.append(text)

    @property
    def lines(self) -> tuple[str, ...]:
        return tuple(self._lines)


def total(parts: Sequence[Quantity]) -> Quantity:
    """Sum of several quantities, printed as one sum."""
    result = parts[0]
    for part in parts[1:]:
        result = result + part
    return result
