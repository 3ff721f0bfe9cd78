"""Re-evaluates worked lines from their printed numbers, as a reader with a pocket calculator would.

Every printed number stands for an interval, since it was rounded.  A line holds when the interval of its result meets the
interval that its left side spans.  How finely a number was rounded depends on where it comes from: results are printed
with 4 significant digits, given quantities with up to 6, and trailing zeros are dropped in both; so ``14 GB`` as a given
is 14.0000, and as a result of an earlier line 14.00.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache

from calculators.core.units import registry

GIVEN_DIGITS = 6
RESULT_DIGITS = 4
EXACT_DIGITS = 12
"""The formatter goes through 12 digits, so that no platform's last bit shows."""
FLOAT_SLACK = 1e-12

_MAGNITUDES = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12, "万": 1e4, "亿": 1e8, "万亿": 1e12}
_NUMBER = re.compile(r"(?P<digits>(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?)(?:×10(?P<power>[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+))?")
_POWER_OF_TEN = re.compile(r"10(?P<power>[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)")
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_WORD = re.compile(r"[^\s\d÷×+−^√()（）⌈⌉⌊⌋,，=→][^\s÷×+−^√()⌈⌉⌊⌋,，=→]*")
_OPERATOR_SPELLINGS = {"", "×", "x", "X"}
_BIT_DIMENSIONS, _BYTE_DIMENSIONS = {"bits", "bits/s"}, {"bytes", "bytes/s", "bytes-binary"}


class WrongLine(AssertionError):
    """The line cannot be read, or its result does not follow from its left side."""


@dataclass(frozen=True)
class Interval:
    """All the values that a printed expression may stand for."""

    low: float
    high: float

    def __add__(self, other: Interval) -> Interval:
        return Interval(self.low + other.low, self.high + other.high)

    def __sub__(self, other: Interval) -> Interval:
        return Interval(self.low - other.high, self.high - other.low)

    def __mul__(self, other: Interval) -> Interval:
        return _span(a * b for a in (self.low, self.high) for b in (other.low, other.high))

    def __truediv__(self, other: Interval) -> Interval:
        if other.low <= 0 <= other.high:
            return Interval(-math.inf, math.inf)
        return _span(a / b for a in (self.low, self.high) for b in (other.low, other.high))

    def __pow__(self, other: Interval) -> Interval:
        if self.low < 0:
            if other.low != other.high or other.low != round(other.low):
                raise WrongLine("a negative number to a power that is no whole number")
            powers = [self.low**other.low, self.high**other.low]
            return _span([*powers, 0.0] if self.high > 0 and other.low % 2 == 0 else powers)
        return _span(a**b for a in (self.low, self.high) for b in (other.low, other.high))

    def meets(self, other: Interval) -> bool:
        slack = FLOAT_SLACK * max(abs(self.low), abs(self.high))
        return self.low - slack <= other.high and other.low <= self.high + slack


def _span(values: Iterable[float]) -> Interval:
    found = list(values)
    return Interval(min(found), max(found))


@dataclass(frozen=True)
class Printed:
    """A number as printed, with its unit."""

    text: str
    interval: Interval
    dimension: str


@dataclass
class Reader:
    """Reads one expression from left to right; ``results`` are the texts of earlier results."""

    text: str
    results: frozenset[str] = frozenset()
    at: int = 0
    seen: list[Printed] = field(default_factory=list)

    def whole(self) -> Interval:
        value = self._sum()
        self._skip()
        if self.at < len(self.text):
            raise WrongLine(f"cannot read 「{self.text[self.at :]}」 in 「{self.text}」")
        return value

    def _skip(self) -> None:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1

    def _take(self, *signs: str) -> str:
        """The sign that stands here, if it is one of these."""
        self._skip()
        for sign in signs:
            if self.text.startswith(sign, self.at):
                self.at += len(sign)
                return sign
        return ""

    def _expect(self, sign: str) -> None:
        if not self._take(sign):
            raise WrongLine(f"「{sign}」 is missing at 「{self.text[self.at :]}」 in 「{self.text}」")

    def _sum(self) -> Interval:
        value = self._product()
        while sign := self._take("+", "−"):
            value = value + self._product() if sign == "+" else value - self._product()
        return value

    def _product(self) -> Interval:
        value = self._power()
        while sign := self._take("×", "÷"):
            value = value * self._power() if sign == "×" else value / self._power()
        return value

    def _power(self) -> Interval:
        base = self._atom()
        return base ** _exponent(self._atom()) if self._take("^") else base

    def _atom(self) -> Interval:
        if self._take("−"):
            return Interval(0, 0) - self._atom()
        sign = self._take(*_BRACKETED)
        if sign:
            closing, function = _BRACKETED[sign]
            values = [self._sum()]
            while self._take(","):
                values.append(self._sum())
            self._expect(closing)
            return function(*values)
        if self._take("√"):
            return _root(self._atom())
        return self._number()

    def _number(self) -> Interval:
        self._skip()
        start = self.at
        match = _POWER_OF_TEN.match(self.text, start) or _NUMBER.match(self.text, start)
        if match is None:
            raise WrongLine(f"no number at 「{self.text[start:]}」 in 「{self.text}」")
        self.at = match.end()
        scale = self._magnitude()
        unit_scale, dimension = self._unit()
        text = self.text[start : self.at]
        digits = RESULT_DIGITS if text in self.results or "−" + text in self.results else GIVEN_DIGITS
        interval = _rounded(match, digits) * Interval(scale * unit_scale, scale * unit_scale)
        self.seen.append(Printed(text, interval, dimension))
        return interval

    def _magnitude(self) -> float:
        """``8.03B 参数``, ``1000 万次/天``: a letter stands right behind the number and alone, 万 and 亿 behind a space."""
        for word in sorted(_MAGNITUDES, key=len, reverse=True):
            spelled = word if word.isascii() else " " + word
            end = self.at + len(spelled)
            if self.text.startswith(spelled, self.at) and not (word.isascii() and self.text[end : end + 1].isalpha()):
                self.at = end
                return _MAGNITUDES[word]
        return 1.0

    def _unit(self) -> tuple[float, str]:
        """Scale and dimension of the unit behind the number; an unknown word is a label without a scale."""
        start = self.at
        self._skip()
        for spelling, scale, dimension in _spellings():
            end = self.at + len(spelling)
            if self.text.startswith(spelling, self.at) and not _goes_on(self.text[end : end + 1], spelling):
                self.at = end
                return scale, dimension
        word = _WORD.match(self.text, self.at)
        if word is None:
            self.at = start
            return 1.0, ""
        self.at = word.end()
        return 1.0, word[0]


def _goes_on(following: str, spelling: str) -> bool:
    """Is this only the beginning of a longer word?"""
    return following == "/" or (following.isalpha() and spelling[-1].isalpha()) or following == "·"


@cache
def _spellings() -> list[tuple[str, float, str]]:
    """Every spelling of every unit, longest first."""
    table = [(s, unit.scale, unit.dimension) for s, unit in registry().items() if s not in _OPERATOR_SPELLINGS and not s[0].isdigit()]
    return sorted(table, key=lambda entry: -len(entry[0]))


def _rounded(match: re.Match[str], digits: int) -> Interval:
    """The interval of a number rounded to ``digits`` significant digits, or to as many as are printed if these are more."""
    plain = (match.groupdict().get("digits") or "1").replace(",", "")
    value = float(plain)
    factor = 10.0 ** int(match["power"].translate(_SUPERSCRIPTS)) if match["power"] else 1.0
    if value == 0:
        return Interval(0, 0)
    decimals = len(plain.partition(".")[2])
    leading = math.floor(math.log10(value) + 1e-12)
    last = max(min(leading - digits + 1, -decimals), leading - EXACT_DIGITS + 1)
    half = 0.5 * 10.0**last
    return Interval((value - half) * factor, (value + half) * factor)


def _exponent(x: Interval) -> Interval:
    """A whole exponent is meant exactly."""
    whole = round((x.low + x.high) / 2)
    return Interval(whole, whole) if x.low <= whole <= x.high else x


def _root(x: Interval) -> Interval:
    return Interval(math.sqrt(max(x.low, 0.0)), math.sqrt(max(x.high, 0.0)))


def _ln(x: Interval) -> Interval:
    return Interval(math.log(x.low) if x.low > 0 else -math.inf, math.log(x.high))


def _ceil(x: Interval) -> Interval:
    return Interval(math.ceil(x.low - 1e-12 * abs(x.low)), math.ceil(x.high - 1e-12 * abs(x.high)))


def _floor(x: Interval) -> Interval:
    return Interval(math.floor(x.low + 1e-12 * abs(x.low)), math.floor(x.high + 1e-12 * abs(x.high)))


def _max(*xs: Interval) -> Interval:
    return Interval(max(x.low for x in xs), max(x.high for x in xs))


def _min(*xs: Interval) -> Interval:
    return Interval(min(x.low for x in xs), min(x.high for x in xs))


def _same(x: Interval) -> Interval:
    return x


_BRACKETED = {"max(": (")", _max), "min(": (")", _min), "ln(": (")", _ln), "⌈": ("⌉", _ceil), "⌊": ("⌋", _floor), "(": (")", _same)}


def body(line: str) -> str:
    """The line without its label."""
    return line.rpartition("：")[2].strip()


def check_line(line: str, results: frozenset[str] = frozenset()) -> str:
    """Re-evaluate one line and return its printed result.  Raises WrongLine."""
    left, equals, right = body(line).partition("=")
    if not equals or "=" in right:
        raise WrongLine(f"a worked line has one 「=」: {line}")
    source = Reader(left.strip(), results)
    value = source.whole()
    shown = right.strip()
    target = Reader(shown, frozenset({shown}))
    result = target.whole()
    if len(target.seen) != 1:
        raise WrongLine(f"the result must be one number: {line}")
    if not result.meets(value):
        raise WrongLine(f"{line}: the left side is {value.low:.8g} to {value.high:.8g}, the result {result.low:.8g} to {result.high:.8g}")
    _check_bits(line, source.seen, target.seen[0])
    return shown


def _check_bits(line: str, operands: list[Printed], result: Printed) -> None:
    """Bits become bytes only by an 8 that the reader sees."""
    kinds = {p.dimension for p in operands}
    crosses = (result.dimension in _BYTE_DIMENSIONS and kinds & _BIT_DIMENSIONS) or (result.dimension in _BIT_DIMENSIONS and kinds & _BYTE_DIMENSIONS)
    if crosses and not any(p.text in ("8", "8 位") for p in operands):
        raise WrongLine(f"bits and bytes are mixed without a factor of 8: {line}")


def check_lines(lines: Iterable[str]) -> None:
    """Re-evaluate a card's lines in order; a line without 「=」 must say 「→」.  Raises WrongLine."""
    results: set[str] = set()
    for line in lines:
        if "=" in body(line):
            results.add(check_line(line, frozenset(results)))
        elif "→" in line:
            results.update(printed_numbers(line.rpartition("→")[2]))
        else:
            raise WrongLine(f"neither 「=」 nor 「→」: {line}")


def printed_numbers(text: str) -> list[str]:
    """Every number with its unit that stands in a text."""
    found = []
    at = 0
    while match := _NUMBER.search(text, at):
        reader = Reader(text, at=match.start())
        reader._number()
        found.append(reader.seen[0].text)
        at = reader.at
    return found
