"""Measures of a chart: scales, ticks and their texts, estimated text widths, and free places for labels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from calculators.core.charts import Axis
from calculators.core.numbers import format_number
from calculators.core.units import unit_of
from calculators.render.html import Html, h

WIDTH = 400.0
"""Every chart is drawn 400 units wide; at the 304 px that a phone leaves, FONT comes to 11 px."""
FONT = 14.5
LINE = 19.0
"""Distance of two lines of text."""

_LARGEST = 1e150
"""Beyond it, squares and ratios of coordinates would overflow."""

_NARROW = set(" .,:;'|!()[]ijlIft·")
_WIDE = set("mwMW%@→←＋")
_CLOSING = set("，。；：、！？）」』》…）%")


def text_width(text: str, bold: bool = False) -> float:
    """Estimated width in units: CJK 1 em, Latin about 0.55 em."""
    ems = 0.0
    for c in text:
        if c > "⺀":
            ems += 1.0
        elif c in _NARROW:
            ems += 0.34
        elif c in _WIDE:
            ems += 0.9
        else:
            ems += 0.68 if c.isupper() else 0.57
    return ems * FONT * (1.06 if bold else 1.0)


def wrap(text: str, width: float) -> list[str]:
    """Break into lines no wider than ``width``: between any two CJK characters, in Latin at spaces, in need anywhere.

    No line begins with closing punctuation: it takes the character before it along.
    """
    lines: list[str] = []
    line = ""
    for word in _words(text):
        if line and text_width(line + word.rstrip()) > width:
            kept = len(line.rstrip()) - (1 if word in _CLOSING else 0)
            while kept > 1 and word in _CLOSING and line[kept] in _CLOSING:
                kept -= 1
            lines.append(line[:kept].rstrip())
            line = (line[kept:] + word).lstrip()
        else:
            line += word
        while text_width(line.rstrip()) > width and len(line) > 1:
            cut = next(i for i in range(len(line) - 1, 0, -1) if i == 1 or text_width(line[:i]) <= width)
            lines.append(line[:cut])
            line = line[cut:]
    return [shown for shown in (*lines, line.strip()) if shown] or [""]


def _words(text: str) -> list[str]:
    words: list[str] = []
    for c in text:
        if words and c < "⺀" and words[-1][-1] < "⺀" and not words[-1].endswith(" "):
            words[-1] += c
        else:
            words.append(c)
    return words


@dataclass(frozen=True)
class Drawing:
    """The inside of an ``<svg>`` and its height."""

    height: float
    parts: Html


@dataclass(frozen=True)
class Scale:
    """Maps a value to a coordinate."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """The coordinate; what a logarithm cannot show stands at the start, and nothing runs far out of the plot."""
        if self.log:
            if value <= 0:
                return self.start
            share = (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + min(max(share, -2.0), 3.0) * (self.end - self.start)

    def inside(self, value: float) -> float:
        """The coordinate, held within the plot."""
        low, high = sorted((self.start, self.end))
        return min(max(self.at(value), low), high)


def is_usable(value: float, axis: Axis) -> bool:
    """Can the axis show this value at all?"""
    return abs(value) <= _LARGEST and (value >= 1 / _LARGEST or not axis.log)


def domain(values: Iterable[float], axis: Axis, *, from_zero: bool = False) -> tuple[float, float]:
    """The range of an axis; never empty.  ``from_zero`` lets a linear axis begin at zero when that costs little room."""
    shown = [v for v in values if is_usable(v, axis)] or [1.0]
    low = axis.low if axis.low is not None and (axis.low > 0 or not axis.log) else min(shown)
    high = axis.high if axis.high is not None and (axis.high > 0 or not axis.log) else max(shown)
    if axis.log:
        return (low, high) if high > low * 1.001 else (low / 2, max(low, high) * 2)
    if from_zero and axis.low is None and 0 < low < 0.7 * high:
        low = 0.0
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        room = abs(low) or 1.0
        return (0.0, high + room) if low >= 0 and axis.low is None else (low - room, low + room)
    return low, high


def ticks(low: float, high: float, count: int, log: bool) -> list[float]:
    """About ``count`` round values between ``low`` and ``high``: powers of ten, or steps of 1, 2, 5."""
    if log:
        first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
        if last - first >= 1:
            step = -(-(last - first + 1) // max(2, count))
            return [10.0**k for k in range(first, last + 1) if k % step == 0]
        fine = [float(f"{m}e{k}") for k in range(first - 1, last + 2) for m in (1, 2, 5)]
        inside = [v for v in fine if low * (1 - 1e-9) <= v <= high * (1 + 1e-9)]
        if len(inside) >= 2:
            return inside
    step_size = _step(high - low, count)
    first, last = math.ceil(low / step_size - 1e-9), math.floor(high / step_size + 1e-9)
    return [float(f"{k * step_size:.12g}") for k in range(first, last + 1)]


def _step(span: float, count: int) -> float:
    raw = span / max(1, count)
    power = 10.0 ** math.floor(math.log10(raw))
    return next(m * power for m in (1, 2, 5, 10) if raw <= m * power * (1 + 1e-9))


def rounded_up(low: float, high: float, count: int) -> float:
    """The first tick at or above ``high``."""
    step = _step(high - low, count)
    return float(f"{math.ceil(high / step - 1e-9) * step:.12g}")


def tick_texts(values: Sequence[float], log: bool) -> list[str]:
    """Short texts in one manner for the whole axis: 20k, 3M, 10⁹."""
    sizes = [abs(v) for v in values if v]
    if not sizes:
        return [format_number(v) for v in values]
    top, least = max(sizes), min(sizes)
    if top > 1e9 or (log and (top > 1e7 or least < 1e-4)):
        return [_power(v) for v in values]
    if log:
        return [_short(v, 1e6 if v >= 1e6 else 1e3 if v >= 1e3 else 1.0) for v in values]
    factor = 1e6 if top >= 1e6 else 1e3 if top >= 1e4 else 1.0
    return [_short(v, factor) for v in values]


def _short(value: float, factor: float) -> str:
    letter = {1.0: "", 1e3: "k", 1e6: "M"}[factor]
    return format_number(value / factor) + (letter if value else "")


def _power(value: float) -> str:
    """A power of ten, or a mantissa of one figure times one."""
    if not value:
        return "0"
    exponent = math.floor(math.log10(abs(value)) + 1e-9)
    power = "10" + str(exponent).translate(str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻"))
    mantissa = format_number(value / 10.0**exponent, digits=2)
    return power if mantissa == "1" else f"{mantissa}×{power}"


def axis_title(axis: Axis) -> str:
    """``时间（ms，对数）``."""
    remarks = [r for r in (unit_of(axis.unit).label, "对数" if axis.log else "") if r]
    return axis.label + (f"（{'，'.join(remarks)}）" if remarks else "")


def n(value: float) -> str:
    """A coordinate: one decimal is finer than any screen."""
    return f"{value:.1f}".removesuffix(".0")


def label(x: float, y: float, text: str, class_: str, anchor: str | None = None) -> Html:
    """One line of text; ``y`` is its baseline."""
    return h("text", text, x=n(x), y=n(y), class_=class_, text_anchor=anchor)


def x_axis(scale: Scale, axis: Axis, top: float, bottom: float, count: int = 5) -> tuple[list[Html], float]:
    """Grid lines, tick texts and title of a horizontal axis; returns also the y below all of it."""
    values = ticks(scale.low, scale.high, count, scale.log)
    out: list[Html] = []
    free_from = -math.inf
    for value, text in zip(values, tick_texts(values, scale.log), strict=True):
        x, width = scale.at(value), text_width(text)
        out.append(h("line", x1=n(x), x2=n(x), y1=n(top), y2=n(bottom), class_="grid"))
        left = min(max(x - width / 2, 0), WIDTH - width)
        if left >= free_from:
            out.append(label(left, bottom + 19, text, "tick"))
            free_from = left + width + 6
    y = bottom + 19
    for line in wrap(axis_title(axis), WIDTH):
        y += LINE
        out.append(label(WIDTH, y, line, "axis-title", "end"))
    return out, y + 6


def legend(entries: Sequence[tuple[Html, str]], y: float, sample: float = 16.0) -> tuple[list[Html], float]:
    """Samples with their names in rows; a sample is drawn around (0, 0) to the right.  Returns also the y below."""
    if not entries:
        return [], y
    out: list[Html] = []
    x = 0.0
    for drawn, name in entries:
        lines = wrap(name, WIDTH - sample - 6)
        width = sample + 6 + max(text_width(line) for line in lines)
        if x and x + width > WIDTH:
            x, y = 0.0, y + LINE
        out.append(h("g", drawn, transform=f"translate({n(x)} {n(y + 9)})"))
        for i, line in enumerate(lines):
            y += LINE if i else 0
            out.append(label(x + sample + 6, y + 14, line, "legend"))
        x += width + 14
    return out, y + LINE + 6


def series_class(index: int) -> str:
    return f"series-{index % 6 + 1}"


def fill_class(index: int) -> str:
    """Fills alternate between full and light, so that neighbours differ in lightness and not in hue alone."""
    return f"fill {series_class(index)}" + (" tint" if index % 2 else "")


def swatch(index: int, digit: str = "") -> Html:
    """A sample of a fill; a digit repeats the one inside the block."""
    box = h("rect", x=0, y=-8, width=16, height=16, rx=2, class_=fill_class(index))
    return Html(box + label(8, 5, digit, "on" if index % 2 == 0 else "on-tint", "middle")) if digit else box
