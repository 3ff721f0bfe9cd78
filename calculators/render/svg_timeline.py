"""Lanes with blocks over time (pipelines, batching, allocators) and matrices of cells (masks, who holds what)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby

from calculators.core.charts import Grid, Span, Timeline
from calculators.core.numbers import format_number, format_value
from calculators.render.html import Html, h, join
from calculators.render.svg_scale import (
    FONT,
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

_PITCHES = ((8, 29.0), (16, 22.0), (40, 12.0), (100, 6.0))
"""(up to so many lanes, height of each)"""
_TALLEST = 600.0
_WIDEST_NAME = 0.34 * WIDTH
_SEPARATE = 300
"""Up to so many blocks each has its own element and hover text; more are joined into one path a tone."""
_LEVELS = 10
_PLAIN = tuple(round(0.04 + 0.096 * level, 3) for level in range(_LEVELS + 1))
_WRITTEN = (*(round(0.04 + 0.06 * level, 2) for level in range(8)), 0.88, 0.94, 1.0)
"""Opacity of each level; with texts inside, none so middling that neither ink nor paper reads well on it."""


def draw_timeline(chart: Timeline) -> Drawing:
    """Block labels stand only where they fit; lane names thin out when lanes are low."""
    spans = [s for s in chart.spans if math.isfinite(s.start) and math.isfinite(s.end) and 0 <= s.lane < len(chart.lanes)]
    count = max(1, len(chart.lanes))
    pitch = next((height for most, height in _PITCHES if count <= most), max(2.0, _TALLEST / count))
    names = [_clipped(name, _WIDEST_NAME) for name in chart.lanes]
    left = max((text_width(name) for name in names), default=0.0) + 8
    entries, top = legend([(swatch(i), name) for i, name in enumerate(chart.tones)], 0.0)
    bottom = top + 2 + count * pitch
    scale = Scale(*domain([t for s in spans for t in (s.start, s.end)], chart.time), left, WIDTH - 6, chart.time.log)

    axis, height = x_axis(scale, chart.time, top, bottom)
    out: list[object] = [*entries, *axis]
    stride = math.ceil(LINE * 0.85 / pitch)
    for i, name in enumerate(names):
        if i % stride == 0:
            full = h("title", chart.lanes[i]) if name != chart.lanes[i] else None
            out.append(h("g", full, label(left - 7, top + 2 + (i + 0.5) * pitch + 5, name, "tick", "end")))
    gap = 3.0 if pitch > 20 else 1.0
    boxes = [_box(s, scale, top + 2 + s.lane * pitch, pitch - gap) for s in spans]
    out.append(_separate(chart, spans, boxes) if len(spans) <= _SEPARATE else _joined(spans, boxes))
    for span, (x, y, width, thickness) in zip(spans, boxes, strict=True):
        if span.label and thickness >= FONT and text_width(span.label) + 2 <= width:
            out.append(label(x + width / 2, y + thickness / 2 + 5, span.label, "on-tint" if span.tone % 2 else "on", "middle"))
    out.append(h("path", d=f"M{n(left)} {n(top)}V{n(bottom)}H{n(WIDTH - 6)}", class_="axis"))
    return Drawing(height, join(out))


def _clipped(name: str, width: float) -> str:
    """A lane's name, cut with … when it would take the room of the blocks; hover text and table hold it whole."""
    if text_width(name) <= width:
        return name
    kept = name
    while kept and text_width(kept + "…") > width:
        kept = kept[:-1]
    return kept + "…"


Box = tuple[float, float, float, float]


def _box(span: Span, scale: Scale, y: float, thickness: float) -> Box:
    start, end = scale.inside(span.start), scale.inside(span.end)
    return start, y, max(end - start, 0.4), thickness


def _separate(chart: Timeline, spans: Sequence[Span], boxes: Sequence[Box]) -> list[Html]:
    unit = chart.time.unit
    out = []
    for span, (x, y, width, height) in zip(spans, boxes, strict=True):
        what = " · ".join(t for t in (chart.lanes[span.lane], span.label) if t)
        title = h("title", f"{what}：{format_number(span.start)} → {format_value(span.end, unit)}")
        out.append(h("g", title, h("rect", x=n(x), y=n(y), width=n(width), height=n(height), class_=f"span {fill_class(span.tone)}")))
    return out


def _joined(spans: Sequence[Span], boxes: Sequence[Box]) -> list[Html]:
    paths: dict[int, list[str]] = defaultdict(list)
    for span, (x, y, width, height) in zip(spans, boxes, strict=True):
        width -= 0.5 if width > 1.5 else 0
        paths[span.tone].append(f"M{n(x)} {n(y)}h{n(width)}v{n(height)}h-{n(width)}z")
    return [h("path", d="".join(parts), class_=f"span dense {fill_class(tone)}") for tone, parts in sorted(paths.items())]


def draw_grid(chart: Grid) -> Drawing:
    """Cells shaded by value; texts inside where they fit."""
    rows, columns = len(chart.cells), max((len(r) for r in chart.cells), default=0)
    if not rows or not columns:
        return Drawing(LINE, Html(""))
    names = [_clipped(name, _WIDEST_NAME) for name in chart.rows]
    left = max((text_width(name) for name in names), default=0.0) + (8 if any(names) else 1)
    width = min((WIDTH - left - 1) / columns, 56.0)
    height = min(width, 30.0) if columns <= 12 else width
    top, heads = _heads(chart.columns, left, width)
    shades = [[_level(value, chart) for value in row] for row in chart.cells]
    is_written = any(any(row) for row in chart.texts)
    cells = _cells_apart if rows * columns <= _SEPARATE else _cells_joined
    drawn = cells(chart, shades, (left, top, width, height), _WRITTEN if is_written else _PLAIN)
    texts = [
        label(left + (j + 0.5) * width, top + (i + 0.5) * height + 5, text, "on" if shades[i][j] >= 8 else "on-tint", "middle")
        for i, row in enumerate(chart.texts[:rows])
        for j, text in enumerate(row[: len(shades[i])])
        if text and text_width(text) + 2 <= width and height >= FONT + 1
    ]
    return Drawing(top + rows * height + 4, join(heads, _row_names(names, left, top, height), drawn, texts))


def _level(value: float | None, chart: Grid) -> int:
    """0 to 10 for the share of the range; −1 for an empty cell."""
    if value is None or not math.isfinite(value):
        return -1
    share = (value - chart.low) / ((chart.high - chart.low) or 1.0)
    return round(min(max(share, 0.0), 1.0) * _LEVELS)


def _cells_apart(chart: Grid, shades: list[list[int]], at: Box, opacity: Sequence[float]) -> list[Html]:
    """An element with hover text for every cell."""
    left, top, width, height = at
    out = []
    for i, row in enumerate(shades):
        for j, level in enumerate(row):
            box = {"x": n(left + j * width), "y": n(top + i * height), "width": n(width - 1), "height": n(height - 1)}
            out.append(h("g", h("title", _cell_text(chart, i, j)), h("rect", **box, **_shade(level, opacity))))
    return out


def _cells_joined(_: Grid, shades: list[list[int]], at: Box, opacity: Sequence[float]) -> list[Html]:
    """One path a level; equal neighbours in a row become one block, empty cells stay blank."""
    left, top, width, height = at
    paths: dict[int, list[str]] = defaultdict(list)
    for i, row in enumerate(shades):
        start = 0
        for level, run in groupby(row):
            length = sum(1 for _ in run)
            if level >= 0:
                x, y, wide = n(left + start * width), n(top + i * height), n(length * width)
                paths[level].append(f"M{x} {y}h{wide}v{n(height)}h-{wide}z")
            start += length
    return [h("path", d="".join(parts), **_shade(level, opacity)) for level, parts in sorted(paths.items())]


def _shade(level: int, opacity: Sequence[float]) -> dict[str, str | float]:
    return {"class_": "cell empty"} if level < 0 else {"class_": "cell series-1", "fill_opacity": opacity[level]}


def _cell_text(chart: Grid, i: int, j: int) -> str:
    where = " · ".join(names[k] for names, k in ((chart.rows, i), (chart.columns, j)) if k < len(names) and names[k])
    value = chart.cells[i][j]
    text = chart.texts[i][j] if i < len(chart.texts) and j < len(chart.texts[i]) else ""
    shown = text or (format_number(value) if value is not None and math.isfinite(value) else "空")
    return f"{where}：{shown}" if where else shown


def _heads(columns: Sequence[str], left: float, width: float) -> tuple[float, list[Html]]:
    """Where the cells begin, and the column names: over their columns, or when these are narrow every so many on one line."""
    if not any(columns):
        return 2.0, []
    heads = [wrap(name, max(width - 4, FONT)) for name in columns]
    lines = max(len(x) for x in heads)
    if lines <= 3 and all(text_width(line) <= width - 2 for x in heads for line in x):
        top = lines * LINE + 4
        return top, [
            label(left + (j + 0.5) * width, top - 6 - (len(x) - 1 - k) * LINE, line, "tick", "middle") for j, x in enumerate(heads) for k, line in enumerate(x)
        ]
    stride = math.ceil((max(text_width(name) for name in columns) + 8) / width)
    out, free_from = [], 0.0
    for j, name in list(enumerate(columns))[::stride]:
        size = text_width(name)
        x = min(max(left + (j + 0.5) * width - size / 2, 0.0), WIDTH - size)
        if x >= free_from:
            out.append(label(x, LINE - 2, name, "tick"))
            free_from = x + size + 8
    return LINE + 4, out


def _row_names(names: Sequence[str], left: float, top: float, tall: float) -> list[Html]:
    stride = math.ceil(LINE * 0.85 / tall)
    return [label(left - 7, top + (i + 0.5) * tall + 5, name, "tick", "end") for i, name in enumerate(names) if name and i % stride == 0]
