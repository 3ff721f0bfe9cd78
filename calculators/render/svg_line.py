"""Curves over an axis, with marked points and rules: throughput curves, rooflines."""

from __future__ import annotations

import math

from calculators.core.charts import LineChart, Mark, Rule, Series
from calculators.core.numbers import format_value
from calculators.render.html import Html, h, join
from calculators.render.svg_place import Places, along, around
from calculators.render.svg_scale import (
    FONT,
    LINE,
    WIDTH,
    Drawing,
    Scale,
    axis_title,
    domain,
    is_usable,
    label,
    legend,
    n,
    rounded_up,
    series_class,
    text_width,
    tick_texts,
    ticks,
    wrap,
    x_axis,
)

_PLOT_HEIGHT = 210.0
_TEXT_HEIGHT = FONT + 1
_AIR = 0.12
"""Share of a logarithmic axis left free above and below: a name fits over the highest curve."""
_DASHES = ("7 4", "2 3", "9 3 2 3", "12 4", "4 3 1 3", "1 4")
"""Only for several curves that find no place for their names and go into the legend."""

Points = list[tuple[float, float]]


def draw_lines(chart: LineChart) -> Drawing:
    """Axes thin, names beside the curves; a legend only for what finds no place."""
    title_lines = wrap(axis_title(chart.y), WIDTH)
    top = len(title_lines) * LINE + 6
    bottom = top + _PLOT_HEIGHT
    y_low, y_high = _y_range(chart)
    y_scale = Scale(y_low, y_high, bottom, top, chart.y.log)
    y_values = ticks(y_low, y_high, 4, chart.y.log)
    y_texts = tick_texts(y_values, chart.y.log)
    left = max((text_width(t) for t in y_texts), default=0.0) + 8
    right = WIDTH - 6
    x_scale = Scale(*domain(_xs(chart), chart.x), left, right, chart.x.log)

    out = [label(0, 14 + i * LINE, line, "axis-title") for i, line in enumerate(title_lines)]
    for value, text in zip(y_values, y_texts, strict=True):
        y = y_scale.at(value)
        out.append(h("line", x1=n(left), x2=n(right), y1=n(y), y2=n(y), class_="grid"))
        out.append(label(left - 6, y + 5, text, "tick", "end"))
    below, height = x_axis(x_scale, chart.x, top, bottom)
    out += below
    out.append(h("path", d=f"M{n(left)} {n(top)}V{n(bottom)}H{n(right)}", class_="axis"))

    curves = [(s, _curve(s, chart, x_scale, y_scale)) for s in chart.series]
    places = Places(left + 2, top, WIDTH, bottom - 1)
    for _, points in curves:
        places.curve([p for p in points if left <= p[0] <= right])
    for mark in chart.marks:
        x, y = x_scale.inside(mark.x), y_scale.inside(mark.y)
        places.take((x - 5, y - 5, 10, 10))
    unplaced: list[tuple[Html, str]] = []
    rules = [_rule(rule, places, x_scale, y_scale, unplaced) for rule in chart.rules]
    marks = [_mark(mark, chart, places, x_scale, y_scale, unplaced) for mark in sorted(chart.marks, key=lambda m: not m.emphasis)]
    lines, names = _curves(curves, places, (left, top, right, bottom), unplaced)
    entries, height = legend(unplaced, height, sample=26)
    return Drawing(height, join(out, rules, lines, marks, names, entries))


def _xs(chart: LineChart) -> list[float]:
    return [x for s in chart.series for x, y in s.points if is_usable(y, chart.y)] + [m.x for m in chart.marks] + [r.x for r in chart.rules if r.x is not None]


def _y_range(chart: LineChart) -> tuple[float, float]:
    """The data's range with air above: up to the next tick, on a logarithm a little beyond."""
    ys = [y for s in chart.series for _, y in s.points] + [m.y for m in chart.marks] + [r.y for r in chart.rules if r.y is not None]
    low, high = domain(ys, chart.y, from_zero=True)
    if chart.y.log:
        air = (high / low) ** _AIR
        return (low if chart.y.low else low / air), (high if chart.y.high else high * air)
    if chart.y.high is None:
        high = rounded_up(low, high, 4)
    return low, high


def _curve(series: Series, chart: LineChart, x_scale: Scale, y_scale: Scale) -> Points:
    return [(x_scale.at(x), y_scale.at(y)) for x, y in series.points if is_usable(x, chart.x) and is_usable(y, chart.y)]


def _curves(
    curves: list[tuple[Series, Points]], places: Places, plot: tuple[float, float, float, float], unplaced: list[tuple[Html, str]]
) -> tuple[Html, list[Html]]:
    """The polylines (cut at the plot's edge) and the names beside them."""
    left, top, right, bottom = plot
    inside = [[p for p in points if left - 0.1 <= p[0] <= right + 0.1 and top - 0.1 <= p[1] <= bottom + 0.1] for _, points in curves]
    boxes = {}
    for i in sorted(range(len(curves)), key=lambda i: not curves[i][0].emphasis):
        series = curves[i][0]
        width = text_width(series.name, series.emphasis)
        boxes[i] = places.place(along(inside[i], width, _TEXT_HEIGHT)) if inside[i] and series.name else None
    missing = [i for i, (series, _) in enumerate(curves) if boxes[i] is None and series.name]
    lines, names = [], []
    for i, (series, points) in enumerate(curves):
        class_ = f"line {series_class(i)}" + (" emphasis" if series.emphasis else "")
        dash = _DASHES[i % len(_DASHES)] if len(missing) > 1 and i in missing else "5 4" if series.dashed else ""
        path = " ".join(f"{n(x - left)},{n(y - top)}" for x, y in points)
        lines.append(h("g", h("title", series.name), h("polyline", points=path, class_=class_, stroke_dasharray=dash or None)))
        if len(points) == 1:
            lines.append(h("circle", cx=n(points[0][0] - left), cy=n(points[0][1] - top), r=3, class_=f"dot {series_class(i)}"))
        box = boxes[i]
        if box is not None:
            names.append(label(box[0], box[1] + FONT - 2, series.name, f"name {series_class(i)}" + (" emphasis" if series.emphasis else "")))
        elif series.name:
            unplaced.append((h("line", x1=0, x2=26, y1=0, y2=0, class_=class_, stroke_dasharray=dash or None), series.name))
    # an inner <svg> cuts the curves at the plot's edge without needing an id for a clip path
    cut = h("svg", lines, x=n(left), y=n(top), width=n(right - left), height=n(bottom - top), overflow="hidden")
    return cut, names


def _rule(rule: Rule, places: Places, x_scale: Scale, y_scale: Scale, unplaced: list[tuple[Html, str]]) -> Html:
    """A line across the plot; its name stands beside its upper end or above its right end."""
    width = text_width(rule.name)
    left, right, bottom, top = x_scale.start, x_scale.end, y_scale.start, y_scale.end
    if rule.x is not None:
        x = x_scale.inside(rule.x)
        drawn = h("line", x1=n(x), x2=n(x), y1=n(top), y2=n(bottom), class_="limit")
        rows = [top + 2 + i * (_TEXT_HEIGHT + 2) for i in range(10)]
        box = places.place((at, row, width, _TEXT_HEIGHT) for row in rows for at in (x + 5, x - 5 - width))
        places.curve([(x, top), (x, bottom)])
    else:
        y = y_scale.inside(rule.y or 0.0)
        drawn = h("line", x1=n(left), x2=n(right), y1=n(y), y2=n(y), class_="limit")
        columns = [right - width - i * (right - left - width) / 6 for i in range(7)]
        box = places.place((at, row, width, _TEXT_HEIGHT) for at in columns for row in (y - _TEXT_HEIGHT - 3, y + 3))
        places.curve([(left, y), (right, y)])
    if box is None and rule.name:
        unplaced.append((h("line", x1=0, x2=26, y1=0, y2=0, class_="limit"), rule.name))
    name = label(box[0], box[1] + FONT - 2, rule.name, "limit-name") if box else None
    return h("g", h("title", rule.name), drawn, name)


def _mark(mark: Mark, chart: LineChart, places: Places, x_scale: Scale, y_scale: Scale, unplaced: list[tuple[Html, str]]) -> Html:
    """A dot and its name; a thin leader when the name stands further off."""
    x, y = x_scale.inside(mark.x), y_scale.inside(mark.y)
    emphasis = " emphasis" if mark.emphasis else ""
    width = text_width(mark.name, mark.emphasis)
    box = places.place(around(x, y, width, _TEXT_HEIGHT, (8, 18, 32, 50, 72, 100))) if mark.name else None
    values = f"{chart.x.label} {format_value(mark.x, chart.x.unit)}，{chart.y.label} {format_value(mark.y, chart.y.unit)}"
    parts = [h("title", f"{mark.name}：{values}")]
    if box is None and mark.name:
        unplaced.append((h("circle", cx=13, cy=0, r=4, class_="mark" + emphasis), mark.name))
    if box is not None:
        near_x, near_y = min(max(x, box[0]), box[0] + box[2]), min(max(y, box[1]), box[1] + box[3])
        if math.hypot(near_x - x, near_y - y) > 14:
            parts.append(h("line", x1=n(x), y1=n(y), x2=n(near_x), y2=n(near_y), class_="leader"))
    parts.append(h("circle", cx=n(x), cy=n(y), r=5 if mark.emphasis else 4, class_="mark" + emphasis))
    if box is not None:
        parts.append(label(box[0], box[1] + FONT - 2, mark.name, "mark-name" + emphasis))
    return h("g", parts)
