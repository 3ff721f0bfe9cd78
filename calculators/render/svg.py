"""Charts as SVG text.  Geometry stands in the attributes; every colour and stroke is a class of ``assets/calc.css``.

Text is never smaller than 11 px on a 360 px phone, labels stand beside what they name, and the numbers follow as a table.
"""

from __future__ import annotations

from calculators.core.charts import BarChart, Chart, Grid, LineChart, Timeline, Waterfall
from calculators.render.html import Html, h
from calculators.render.svg_bar import draw_bars, draw_waterfall
from calculators.render.svg_line import draw_lines
from calculators.render.svg_scale import FONT, WIDTH, Drawing, n
from calculators.render.svg_table import data_table
from calculators.render.svg_timeline import draw_grid, draw_timeline


def figure(chart: Chart, *, key: str) -> Html:
    """A chart with its title, what to see in it, and its numbers; ``key`` makes the ids unique on the page."""
    drawing = _draw(chart)
    svg = h(
        "svg",
        h("title", chart.title, id=f"{key}-title"),
        h("desc", chart.desc, id=f"{key}-desc"),
        drawing.parts,
        viewBox=f"0 0 {n(WIDTH)} {n(drawing.height)}",
        font_size=FONT,
        role="img",
        aria_labelledby=f"{key}-title {key}-desc",
    )
    caption = h("figcaption", h("strong", chart.title), h("span", chart.desc, class_="calc-chart-desc"))
    return h("figure", caption, svg, data_table(chart), class_="calc-chart")


def _draw(chart: Chart) -> Drawing:
    match chart:
        case LineChart():
            return draw_lines(chart)
        case BarChart():
            return draw_bars(chart)
        case Waterfall():
            return draw_waterfall(chart)
        case Timeline():
            return draw_timeline(chart)
        case Grid():
            return draw_grid(chart)
