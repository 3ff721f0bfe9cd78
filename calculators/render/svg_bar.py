"""Horizontal bars and waterfalls: one row each, names beside the bars or, when they are long, above them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from calculators.core.charts import Axis, Bar, BarChart, Rule, Waterfall
from calculators.core.numbers import format_value
from calculators.render.html import Html, h, join
from calculators.render.svg_scale import (
    LINE,
    WIDTH,
    Drawing,
    Scale,
    domain,
    fill_class,
    label,
    legend,
    n,
    swatch,
    text_width,
    wrap,
    x_axis,
)

_WIDEST_NAME = 0.32 * WIDTH
_SHORTEST_PLOT = 0.4 * WIDTH
_GAP = 7.0

LimitName = tuple[float, int, str]
"""left, line above the bars, text"""


class Block(NamedTuple):
    """A coloured piece of a bar, from ``left`` to ``right``."""

    name: str
    value: float
    left: float
    right: float

    def holds(self, text: str) -> bool:
        return text_width(text) + 6 <= self.right - self.left


@dataclass(frozen=True)
class Row:
    """What the layout needs to know of a bar: its names, how far it reaches, and the text after it."""

    name: str
    reach: float
    text: str
    emphasis: bool = False


@dataclass(frozen=True)
class Place:
    """Where a row stands."""

    top: float
    thickness: float
    labels: tuple[Html, ...]
    height: float


@dataclass(frozen=True)
class Layout:
    """The value axis and the places of all rows."""

    scale: Scale
    places: tuple[Place, ...]
    top: float
    bottom: float
    is_beside: bool
    """Do the names stand beside the bars?"""


def draw_bars(chart: BarChart) -> Drawing:
    """Stacked when a bar has several parts; names inside the blocks where they fit, else digits and a legend."""
    limits = [r for r in chart.limits if r.x is not None or r.y is not None]
    low, high = _range([*(end for bar in chart.bars for end in _ends(bar)), *(_at(r) for r in limits)], chart.value)
    rows = [_row(bar, chart.value) for bar in chart.bars]
    limit_names = _limit_names(limits, _lay_out(rows, low, high, chart.value, top=0.0).scale)
    layout = _lay_out(rows, low, high, chart.value, top=_above_bars(limit_names))
    blocks = [_blocks(bar, layout.scale) for bar in chart.bars]
    parts: list[str] = []
    digits: dict[str, str] = {}
    if any(len(bar.parts) > 1 for bar in chart.bars):
        parts = list(dict.fromkeys(p.name for bar in chart.bars for p in bar.parts))
        digits = _digits(blocks, parts)

    axis, height = x_axis(layout.scale, chart.value, layout.top, layout.bottom)
    is_selective = not parts and any(bar.emphasis for bar in chart.bars)
    fills = [
        _block(b, place, chart.value, fill_class(_index(b, parts)) + (" quiet" if is_selective and not bar.emphasis else ""), bar.name)
        for bar, place, row in zip(chart.bars, layout.places, blocks, strict=True)
        for b in row
    ]
    inside = [_inside(b, place, parts, digits) for place, row in zip(layout.places, blocks, strict=True) for b in row] if parts else []
    names = [place.labels for place in layout.places]
    entries, height = legend([(swatch(parts.index(name), digit), name) for name, digit in digits.items()], height)
    return Drawing(height, join(axis, fills, _zero_line(layout), _limits(limits, limit_names, layout), inside, names, entries))


def draw_waterfall(chart: Waterfall) -> Drawing:
    """Each row: the level that is left as a full block, and the step's gain or loss as a light one beside it."""
    levels = [level for _, level in chart.steps]
    before = levels[:1] + levels[:-1]
    rows = [
        Row(name, max(level, last), _step_text(level, level - last, chart.value), emphasis=i == len(levels) - 1)
        for i, ((name, level), last) in enumerate(zip(chart.steps, before, strict=True))
    ]
    layout = _lay_out(rows, *_range(levels, chart.value), chart.value, top=0.0)
    axis, height = x_axis(layout.scale, chart.value, layout.top, layout.bottom)
    scale, fills, leaders = layout.scale, [], []
    for i, (place, row, level, last) in enumerate(zip(layout.places, rows, levels, before, strict=True)):
        now, then = scale.inside(level), scale.inside(last)
        kept = Block(row.name, level, *sorted((_zero(scale), min(now, then))))
        fills.append(_block(kept, place, chart.value, "fill series-1"))
        fills.append(_block(Block(row.name, level - last, *sorted((now, then))), place, chart.value, "step gain" if level > last else "step loss"))
        if i + 1 < len(rows):
            foot = layout.places[i + 1].top
            leaders.append(h("line", x1=n(now), x2=n(now), y1=n(place.top + place.thickness), y2=n(foot), class_="leader"))
    return Drawing(height, join(axis, leaders, fills, _zero_line(layout), [place.labels for place in layout.places]))


def _row(bar: Bar, axis: Axis) -> Row:
    total = sum(p.value for p in bar.parts)
    return Row(bar.name, max(total, 0.0), bar.note or format_value(total, axis.unit), bar.emphasis)


def _step_text(level: float, change: float, axis: Axis) -> str:
    text = format_value(level, axis.unit)
    return f"{'+' if change > 0 else ''}{format_value(change)} → {text}" if change else text


def _zero(scale: Scale) -> float:
    return scale.start if scale.log else scale.inside(0.0)


def _zero_line(layout: Layout) -> Html | None:
    """Where the bars begin; left out when names stand above the bars, for it would run through them."""
    if not layout.is_beside:
        return None
    x = n(_zero(layout.scale))
    return h("line", x1=x, x2=x, y1=n(layout.top), y2=n(layout.bottom), class_="axis")


def _at(rule: Rule) -> float:
    return rule.x if rule.x is not None else rule.y or 0.0


def _ends(bar: Bar) -> Iterable[float]:
    end = 0.0
    for part in bar.parts:
        end += part.value
        yield end


def _range(values: Sequence[float], axis: Axis) -> tuple[float, float]:
    """From zero, or on a logarithm from the power of ten below the least value, to the longest bar or limit."""
    if axis.log:
        low, high = domain(values, axis)
        return (low if axis.low else 10.0 ** math.floor(math.log10(low / 1.5))), high
    return domain([0.0, *values], axis)


def _lay_out(rows: Sequence[Row], low: float, high: float, axis: Axis, top: float) -> Layout:
    """Names to the left when they are short and the texts after the bars leave room, else above the bars."""
    start = max((text_width(r.name, r.emphasis) for r in rows), default=0.0) + 10
    end = _end_with_texts(rows, Scale(low, high, start, WIDTH, axis.log))
    is_beside = start <= _WIDEST_NAME and end - start >= _SHORTEST_PLOT
    if is_beside:
        scale = Scale(low, high, start, end, axis.log)
        places = [_beside(row, top + 4 + i * 30, scale) for i, row in enumerate(rows)]
    else:
        scale = Scale(low, high, 1, WIDTH - 4, axis.log)
        places = []
        y = top
        for row in rows:
            places.append(_above(row, y))
            y += places[-1].height
    bottom = places[-1].top + places[-1].thickness + 7 if places else top + 30
    return Layout(scale, tuple(places), top, bottom, is_beside)


def _end_with_texts(rows: Sequence[Row], scale: Scale) -> float:
    """How far right the axis may reach so that every text after its bar stays inside the picture."""
    end = WIDTH - 12
    for row in rows:
        share = (scale.inside(row.reach) - scale.start) / (scale.end - scale.start)
        room = WIDTH - scale.start - text_width(row.text, row.emphasis) - _GAP - 1
        if share > 0:
            end = min(end, scale.start + room / share)
    return end


def _beside(row: Row, y: float, scale: Scale) -> Place:
    bold = " emphasis" if row.emphasis else ""
    return Place(
        y,
        22,
        (
            label(scale.start - 8, y + 16, row.name, "name" + bold, "end"),
            label(max(scale.inside(row.reach), scale.start) + _GAP, y + 16, row.text, "value" + bold),
        ),
        30,
    )


def _above(row: Row, y: float) -> Place:
    """Name at the left and text at the right on the line above the bar; on lines of their own when they do not fit side by side."""
    bold = " emphasis" if row.emphasis else ""
    texts = wrap(row.text, WIDTH)
    beside = text_width(row.text, row.emphasis) + 12
    fits = beside < 0.6 * WIDTH
    names = wrap(row.name, (WIDTH - beside if fits else WIDTH) / (1.06 if row.emphasis else 1.0))
    labels = [label(0, y + 15 + i * LINE, line, "name" + bold) for i, line in enumerate(names)]
    count = len(names) + (0 if fits else len(texts))
    first = len(names) - 1 if fits else len(names)
    labels += [label(WIDTH, y + 15 + (first + i) * LINE, line, "value" + bold, "end") for i, line in enumerate(texts)]
    bar_top = y + count * LINE + 2
    return Place(bar_top, 16, tuple(labels), count * LINE + 2 + 16 + 10)


def _blocks(bar: Bar, scale: Scale) -> list[Block]:
    blocks: list[Block] = []
    left = _zero(scale)
    for part, end in zip(bar.parts, _ends(bar), strict=True):
        right = scale.inside(end)
        blocks.append(Block(part.name, part.value, min(left, right), max(left, right)))
        left = right
    return blocks


def _digits(blocks: Sequence[Sequence[Block]], parts: Sequence[str]) -> dict[str, str]:
    """A digit for every part that stands somewhere without its name and has room for a digit, or never has room for its name."""
    visible = [b for row in blocks for b in row if b.right > b.left]
    named = {b.name for b in visible if b.holds(b.name)}
    numbered = {b.name for b in visible if not b.holds(b.name) and (b.holds("0") or b.name not in named)}
    return {name: str(i + 1) for i, name in enumerate(p for p in parts if p in numbered)}


def _index(block: Block, parts: Sequence[str]) -> int:
    return parts.index(block.name) if parts else 0


def _inside(block: Block, place: Place, parts: Sequence[str], digits: dict[str, str]) -> Html | None:
    """The part's name in its block, else its digit, else nothing."""
    text = next((t for t in (block.name, digits.get(block.name, "")) if t and block.holds(t)), None)
    if text is None:
        return None
    class_ = "on-tint" if _index(block, parts) % 2 else "on"
    return label((block.left + block.right) / 2, place.top + place.thickness / 2 + 5, text, class_, "middle")


def _block(block: Block, place: Place, axis: Axis, class_: str, bar: str = "") -> Html | None:
    width = block.right - block.left
    if width <= 0:
        return None
    name = f"{bar} · {block.name}" if bar and block.name and bar != block.name else block.name or bar
    title = h("title", f"{name}：{format_value(block.value, axis.unit)}")
    shown = max(width - (1 if width > 3 else 0), 0.8)
    return h("g", title, h("rect", x=n(block.left), y=n(place.top), width=n(shown), height=n(place.thickness), class_=class_))


def _above_bars(names: Sequence[LimitName]) -> float:
    """The room that the limits' names need above the bars."""
    return (max(row for _, row, _ in names) + 1) * LINE + 4 if names else 0.0


def _limit_names(limits: Sequence[Rule], scale: Scale) -> list[LimitName]:
    """Each name centred over its line, moved up where two would collide."""
    taken: list[tuple[float, float, int]] = []
    out: list[LimitName] = []
    for rule in limits:
        lines = wrap(rule.name, WIDTH)
        width = max(text_width(line) for line in lines)
        left = min(max(scale.inside(_at(rule)) - width / 2, 0.0), WIDTH - width)
        row = 0
        while any(left < right + 8 and start < left + width + 8 and row <= used < row + len(lines) for start, right, used in taken):
            row += 1
        for i, line in enumerate(reversed(lines)):
            taken.append((left, left + width, row + i))
            out.append((left, row + i, line))
    return out


def _limits(limits: Sequence[Rule], names: Sequence[LimitName], layout: Layout) -> list[Html]:
    out = []
    for rule in limits:
        x = layout.scale.inside(_at(rule))
        out.append(h("g", h("title", rule.name), h("line", x1=n(x), x2=n(x), y1=n(layout.top - 2), y2=n(layout.bottom), class_="limit")))
    return out + [label(left, layout.top - 6 - row * LINE, text, "limit-name") for left, row, text in names]
