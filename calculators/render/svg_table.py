"""The numbers of a chart as a table: for readers who do not see the picture, and for copying."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import TypeVar

from calculators.core.charts import Axis, BarChart, Chart, Grid, LineChart, Timeline, Waterfall
from calculators.core.numbers import format_number
from calculators.core.units import unit_of
from calculators.render.html import Html, h

MOST_ROWS = 40
_MOST_COLUMNS = 16

Row = Sequence[str]
T = TypeVar("T")


def data_table(chart: Chart) -> Html:
    """``<details>`` with the chart's values, long curves thinned to ``MOST_ROWS`` rows."""
    head, rows = _content(chart)
    columns = h("tr", [h("th", name, scope="col") for name in head])
    body = [h("tr", h("th", row[0], scope="row"), [h("td", cell) for cell in row[1:]]) for row in thin(rows, MOST_ROWS)]
    return h("details", h("summary", "图里的数"), h("table", h("thead", columns), h("tbody", body), class_="plain"), class_="calc-data")


def thin(items: Sequence[T], most: int) -> list[T]:
    """Evenly spaced items, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def _content(chart: Chart) -> tuple[Row, list[Row]]:
    match chart:
        case LineChart():
            return _lines(chart)
        case BarChart():
            return _bars(chart)
        case Waterfall():
            return _waterfall(chart)
        case Timeline():
            return _timeline(chart)
        case Grid():
            return _grid(chart)


def _number(value: float | None, axis: Axis | None = None) -> str:
    if value is None or not math.isfinite(value):
        return "—"
    return format_number(value, unit_of(axis.unit).style if axis else "plain")


def _head(axis: Axis) -> str:
    unit = unit_of(axis.unit).label
    return f"{axis.label}（{unit}）" if unit else axis.label


def _lines(chart: LineChart) -> tuple[Row, list[Row]]:
    """One column a curve when all share their x values, else a row a point; marks and rules follow."""
    xs = [tuple(x for x, _ in s.points) for s in chart.series]
    extra: list[Row] = [(m.name, _number(m.x, chart.x), _number(m.y, chart.y)) for m in chart.marks]
    extra += [(r.name, _number(r.x, chart.x), _number(r.y, chart.y)) for r in chart.rules]
    extra = extra[: MOST_ROWS // 2]
    if xs and len(set(xs)) == 1 and not extra:
        points = zip(xs[0], *([y for _, y in s.points] for s in chart.series), strict=True)
        rows: list[Row] = [(_number(x, chart.x), *(_number(y, chart.y) for y in ys)) for x, *ys in points]
        names = [s.name for s in chart.series] if len(chart.series) > 1 else [_head(chart.y)]
        return (_head(chart.x), *names), rows
    each = (MOST_ROWS - len(extra)) // max(1, len(chart.series))
    rows = [(s.name, _number(x, chart.x), _number(y, chart.y)) for s in chart.series for x, y in thin(s.points, max(2, each))]
    return ("", _head(chart.x), _head(chart.y)), [*extra, *rows]


def _bars(chart: BarChart) -> tuple[Row, list[Row]]:
    parts = list(dict.fromkeys(p.name for bar in chart.bars for p in bar.parts))
    rows: list[Row] = []
    if any(len(bar.parts) > 1 for bar in chart.bars):
        for bar in chart.bars:
            held: dict[str, float] = defaultdict(float)
            for part in bar.parts:
                held[part.name] += part.value
            rows.append((bar.name, *(_number(held.get(p), chart.value) for p in parts), _number(sum(held.values()), chart.value)))
        head: Row = (_head(chart.value), *parts, "合计")
    else:
        rows = [(bar.name, _number(sum(p.value for p in bar.parts), chart.value)) for bar in chart.bars]
        head = ("", _head(chart.value))
    blank = ("",) * (len(head) - 2)
    limits = [(r.name, *blank, _number(r.x if r.x is not None else r.y, chart.value)) for r in chart.limits]
    return head, [*rows, *limits]


def _waterfall(chart: Waterfall) -> tuple[Row, list[Row]]:
    before = [None, *(level for _, level in chart.steps)]
    rows: list[Row] = [
        (name, "—" if last is None else _number(level - last, chart.value), _number(level, chart.value))
        for (name, level), last in zip(chart.steps, before, strict=False)
    ]
    return ("步骤", "变化", _head(chart.value)), rows


def _timeline(chart: Timeline) -> tuple[Row, list[Row]]:
    """Every block when they are few, else a summary of each lane."""
    spans = [s for s in chart.spans if 0 <= s.lane < len(chart.lanes)]
    unit = unit_of(chart.time.unit).label
    if len(spans) <= MOST_ROWS:
        rows: list[Row] = [(chart.lanes[s.lane], s.label or _tone(chart, s.tone), _number(s.start, chart.time), _number(s.end, chart.time)) for s in spans]
        return ("行", "块", *(f"{word}（{unit}）" if unit else word for word in ("从", "到"))), rows
    blocks: dict[int, int] = defaultdict(int)
    busy: dict[int, float] = defaultdict(float)
    for span in spans:
        blocks[span.lane] += 1
        busy[span.lane] += span.end - span.start
    rows = [(lane, str(blocks[i]), _number(busy[i], chart.time)) for i, lane in enumerate(chart.lanes)]
    return ("行", "块数", f"合计（{unit}）" if unit else "合计"), rows


def _tone(chart: Timeline, tone: int) -> str:
    return chart.tones[tone] if tone < len(chart.tones) else ""


def _grid(chart: Grid) -> tuple[Row, list[Row]]:
    shown = thin(range(max((len(r) for r in chart.cells), default=0)), _MOST_COLUMNS)
    head = ("", *(chart.columns[j] if j < len(chart.columns) else str(j + 1) for j in shown))
    rows: list[Row] = []
    for i, row in enumerate(chart.cells):
        texts = chart.texts[i] if i < len(chart.texts) else ()
        cells = (texts[j] if j < len(texts) and texts[j] else _number(row[j]) if j < len(row) else "" for j in shown)
        rows.append((chart.rows[i] if i < len(chart.rows) else str(i + 1), *cells))
    return head, rows
