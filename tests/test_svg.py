"""Charts: well-formed, inside their frame, without colliding labels or colours of their own, and small enough to send."""

from __future__ import annotations

import math
import re
import time
import xml.etree.ElementTree as ET
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calculators.core.charts import Axis, Bar, BarChart, Grid, LineChart, Mark, Part, Rule, Series, Span, Timeline, Waterfall
from calculators.render.svg import figure
from calculators.render.svg_place import Places, along, around
from calculators.render.svg_scale import FONT, WIDTH, Scale, axis_title, domain, rounded_up, text_width, tick_texts, ticks, wrap
from calculators.render.svg_table import MOST_ROWS, thin

PHONE = 304
"""Pixels that a card leaves for a chart on a 360 px wide phone."""

ROOF = tuple((10 ** (i / 20), min(989.0, 3.35 * 10 ** (i / 20))) for i in range(-20, 81))

ROOFLINE = LineChart(
    "Roofline", "斜线段受带宽限制。", Axis("算术强度", "FLOP/B", log=True), Axis("可达性能", "TFLOPS", log=True),
    (Series("H100 SXM", ROOF, emphasis=True), Series("一半带宽", tuple((x, y / 2) for x, y in ROOF), dashed=True)),
    (Mark("解码", 1, 3.35), Mark("预填充", 1400, 900, emphasis=True), Mark("LayerNorm", 1.1, 3.6)), (Rule("拐点 295", x=295),),
)  # fmt: skip
STACK = BarChart(
    "训练显存", "最大的是优化器状态。", Axis("显存", "GB"),
    (Bar("DDP", (Part("权重", 16.1), Part("梯度", 16.1), Part("Adam 的 m、v", 64.2), Part("激活", 6.2))),
     Bar("ZeRO-3 加激活重算，名字很长的一行", (Part("权重", 2), Part("梯度", 2), Part("Adam 的 m、v", 8), Part("激活", 2.2)), emphasis=True)),
    (Rule("A100 80 GB", x=80), Rule("L40S 48 GB", x=48), Rule("B200 180 GB", x=180)),
)  # fmt: skip
LOG_BARS = BarChart(
    "时间", "横轴是对数。", Axis("时间", "ms", log=True), tuple(Bar(name, (Part(name, v),)) for name, v in (("HBM", 4.7), ("网", 280.0), ("零", 0.0)))
)
WATERFALL = Waterfall("MFU", "每一级掉多少。", Axis("算力", "TFLOPS"), (("标称", 989), ("降频", 870), ("通信没有藏住的那一部分时间", 560), ("追回", 620)))
PIPELINE = Timeline(
    "流水线", "空白是气泡。", Axis("时间", "ms"), tuple(f"GPU {i}" for i in range(4)),
    tuple(Span(lane, lane + 2.0 * k, lane + 2.0 * k + 1.5, str(k), k % 2) for lane in range(4) for k in range(6)), ("前向", "反向"),
)  # fmt: skip
MASK = Grid(
    "掩码", "只看前面。", tuple("我爱北京"), tuple("我爱北京"),
    tuple(tuple(1 / (i + 1) if j <= i else None for j in range(4)) for i in range(4)),
    tuple(tuple(f"{1 / (i + 1):.2f}" if j <= i else "" for j in range(4)) for i in range(4)),
)  # fmt: skip
CHARTS = {"roofline": ROOFLINE, "stack": STACK, "log bars": LOG_BARS, "waterfall": WATERFALL, "timeline": PIPELINE, "grid": MASK}

every_chart = pytest.mark.parametrize("chart", CHARTS.values(), ids=CHARTS.keys())


def parsed(chart) -> ET.Element:
    return ET.fromstring(figure(chart, key="k"))


def boxes(root: ET.Element) -> list[tuple[str, float, float, float, float]]:
    """(text, left, top, right, bottom) of every text, groups' translations applied."""
    found = []

    def walk(node: ET.Element, dx: float, dy: float) -> None:
        move = re.match(r"translate\(([-\d.]+) ([-\d.]+)\)", node.get("transform", ""))
        if move:
            dx, dy = dx + float(move[1]), dy + float(move[2])
        if node.tag == "text":
            width = text_width(node.text or "", "emphasis" in node.get("class", ""))
            shift = {"end": width, "middle": width / 2}.get(node.get("text-anchor", ""), 0.0)
            left, base = float(node.get("x")) + dx - shift, float(node.get("y")) + dy
            found.append((node.text or "", left, base - 0.75 * FONT, left + width, base + 0.2 * FONT))
        for child in node:
            walk(child, dx, dy)

    walk(root.find("svg"), 0.0, 0.0)
    return found


def assert_tidy(chart) -> None:
    """Every text inside the picture, none over another, every coordinate finite."""
    root = parsed(chart)
    _, _, width, height = map(float, root.find("svg").get("viewBox").split())
    texts = boxes(root)
    for text, left, top, right, bottom in texts:
        assert left >= -0.6, f"{text} is cut off at the left"
        assert right <= width + 0.6, f"{text} is cut off at the right"
        assert top >= -0.6, f"{text} is cut off at the top"
        assert bottom <= height + 0.6, f"{text} is cut off at the bottom"
    for (a, l1, t1, r1, b1), (b, l2, t2, r2, b2) in combinations(texts, 2):
        assert l1 >= r2 - 0.2 or l2 >= r1 - 0.2 or t1 >= b2 - 0.2 or t2 >= b1 - 0.2, f"「{a}」 and 「{b}」 collide"
    for node in root.iter():
        for name in ("x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "width", "height"):
            if node.get(name) not in (None, "100%"):
                assert math.isfinite(float(node.get(name)))


@every_chart
def test_figure_is_labelled(chart):
    root = parsed(chart)
    svg = root.find("svg")
    assert root.tag == "figure"
    assert root.get("class") == "calc-chart"
    assert svg.get("role") == "img"
    ids = svg.get("aria-labelledby").split()
    assert [svg.find("title").get("id"), svg.find("desc").get("id")] == ids
    assert svg.find("title").text == chart.title
    assert svg.find("desc").text == chart.desc


@every_chart
def test_keys_keep_ids_apart(chart):
    first, second = (set(re.findall(r'id="([^"]+)"', figure(chart, key=key))) for key in ("a", "b"))
    assert first
    assert not first & second


@every_chart
def test_no_colour_is_written_down(chart):
    text = figure(chart, key="k")
    assert not re.search(r"#[0-9a-fA-F]{3,8}\b|rgba?\(|hsla?\(|style=|fill=\"|stroke=\"", text)


@every_chart
def test_labels_stay_inside_and_apart(chart):
    assert_tidy(chart)


@every_chart
def test_table_holds_the_numbers(chart):
    details = parsed(chart).find("details")
    assert details.get("class") == "calc-data"
    assert details.find("summary").text == "图里的数"
    rows = details.findall("table/tbody/tr")
    assert 1 <= len(rows) <= MOST_ROWS
    width = len(details.findall("table/thead/tr/th"))
    assert all(len(row) == width for row in rows)


def test_text_is_legible_on_a_phone():
    assert FONT * PHONE / WIDTH >= 11


def test_names_are_escaped():
    evil = '<script>alert("x")</script>&'
    chart = BarChart(evil, evil, Axis(evil, "GB"), (Bar(evil, (Part(evil, 1.0), Part("b", 2.0)), evil),), (Rule(evil, x=1.0),))
    text = figure(chart, key='k"><b>')
    assert "<script" not in text
    assert "<b>" not in text
    ET.fromstring(text)


def test_every_block_and_mark_has_hover_text():
    for chart, count in ((ROOFLINE, 2 + 3 + 1), (STACK, 8 + 3), (LOG_BARS, 2), (PIPELINE, 24), (MASK, 16)):
        svg = parsed(chart).find("svg")
        assert len(list(svg.iter("title"))) == 1 + count
    assert "解码：算术强度 1 FLOP/字节，可达性能 3.35 TFLOPS" in figure(ROOFLINE, key="k")
    assert "DDP · 权重：16.1 GB" in figure(STACK, key="k")


def test_roofline_bends_where_peak_meets_bandwidth():
    """989 TFLOPS ÷ 3.35 TB/s = 295 FLOP/byte: the drawn curve is flat to the right of the rule and straight to the left."""
    line = next(p for p in parsed(ROOFLINE).iter("polyline"))
    points = [tuple(map(float, p.split(","))) for p in line.get("points").split()]
    flat = [y for _, y in points if y == points[-1][1]]
    assert len(flat) == sum(1 for _, y in ROOF if y == 989)
    slopes = [(y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in pairwise(points[:60])]
    assert max(slopes) - min(slopes) < 0.06


def test_dashes_and_emphasis_are_shown():
    lines = list(parsed(ROOFLINE).iter("polyline"))
    assert [line.get("stroke-dasharray") for line in lines] == [None, "5 4"]
    assert ["emphasis" in line.get("class") for line in lines] == [True, False]


def test_bars_are_as_long_as_their_values():
    chart = BarChart("t", "d", Axis("显存", "GB"), (Bar("一", (Part("一", 10.0),)), Bar("二", (Part("二", 40.0),))))
    widths = [float(r.get("width")) for r in parsed(chart).iter("rect")]
    assert (widths[1] + 1) / (widths[0] + 1) == pytest.approx(4, rel=0.01)


def test_stacked_names_stand_inside_or_in_the_legend():
    texts = [t for t, *_ in boxes(parsed(STACK))]
    assert {"权重", "梯度", "Adam 的 m、v", "激活"} <= set(texts)


def test_a_logarithm_cannot_show_zero():
    assert len(list(parsed(LOG_BARS).iter("rect"))) == 2


def test_a_logarithm_does_not_blow_up_a_small_difference():
    chart = BarChart("t", "d", Axis("速度", "GB/s", log=True), (Bar("一", (Part("一", 3.39),)), Bar("二", (Part("二", 3.45),))))
    short, long = (float(r.get("width")) for r in parsed(chart).iter("rect"))
    assert short > 0.95 * long


def test_waterfall_shows_level_and_change():
    texts = [t for t, *_ in boxes(parsed(WATERFALL))]
    assert {"989 TFLOPS", "−119 → 870 TFLOPS", "+60 → 620 TFLOPS"} <= set(texts)


def test_curves_are_cut_at_given_limits():
    chart = LineChart("t", "d", Axis("x"), Axis("y", low=0.0, high=1.0), (Series("线", ((0, 0), (1, 5), (2, 0.5))),))
    inner = parsed(chart).find("svg/svg")
    assert inner.get("overflow") == "hidden"
    assert_tidy(chart)


def test_many_coinciding_curves_go_into_a_dashed_legend():
    series = tuple(Series(f"{c}：一种名字很长很长的做法，长到图里无论如何也放不下它", tuple((x, 50 + x / 100) for x in range(50))) for c in "甲乙丙丁")
    chart = LineChart("t", "d", Axis("x"), Axis("y"), series)
    assert_tidy(chart)
    joined = "".join(t for t, *_ in boxes(parsed(chart)))
    assert all(c in joined for c in "甲乙丙丁")
    dashes = [line.get("stroke-dasharray") for line in parsed(chart).iter("polyline")]
    assert len(set(dashes)) == 4
    assert None not in dashes


@pytest.mark.parametrize(
    "series",
    [(), (Series("空", ()),), (Series("点", ((1, 1),)),), (Series("平", ((1, 0), (2, 0))),), (Series("坏", ((1, math.nan), (math.inf, 2), (3, 4))),),
     (Series("负", ((-5, -3), (4, -1))),), (Series("大", ((1, 1e300), (2, 1e-300))),)],
    ids=lambda s: s[0].name if s else "none",
)  # fmt: skip
@pytest.mark.parametrize("log", [False, True])
def test_odd_curves_are_drawn_without_fuss(series, log):
    assert_tidy(LineChart("t", "d", Axis("横", log=log), Axis("纵", "GB", log=log), series, (Mark("这里", 2, 3),), (Rule("限", y=2),)))


def test_other_empty_charts():
    for chart in (BarChart("t", "d", Axis("v"), ()), Waterfall("t", "d", Axis("v"), ()), Timeline("t", "d", Axis("v"), (), ()), Grid("t", "d", (), (), ())):
        ET.fromstring(figure(chart, key="k"))


def test_two_thousand_blocks_stay_small():
    spans = tuple(Span(lane, 5.0 * k + lane, 5.0 * k + lane + 4, str(k), k % 3) for lane in range(40) for k in range(50))
    chart = Timeline("t", "d", Axis("时间", "ms"), tuple(f"第 {i} 卡" for i in range(40)), spans, ("前", "后", "停"))
    text = figure(chart, key="k")
    assert len(text.encode()) < 150_000
    assert_tidy(chart)


def test_large_matrices_stay_small():
    cells = tuple(tuple(math.exp(-(i - j) / 9) if j <= i else None for j in range(64)) for i in range(64))
    names = tuple(map(str, range(64)))
    assert len(figure(Grid("t", "d", names, names, cells), key="k")) < 60_000


def test_long_lane_names_are_shortened_but_kept_whole_for_hovering():
    name = "一张名字长得离谱的加速卡，连着它的整台机器和机柜"
    chart = Timeline("t", "d", Axis("时间", "s"), (name, "乙"), (Span(0, 0, 1), Span(1, 0, 2)))
    assert_tidy(chart)
    assert f"<title>{name}</title>" in figure(chart, key="k")


def test_drawing_is_fast():
    """About 1 ms here; the bound leaves room for a slow, busy machine."""
    chart = LineChart("t", "d", Axis("x"), Axis("y"), tuple(Series(f"线{k}", tuple((x, k + math.sin(x / 9)) for x in range(100))) for k in range(2)))
    best = math.inf
    for _ in range(5):
        start = time.perf_counter()
        figure(chart, key="k")
        best = min(best, time.perf_counter() - start)
    assert best < 0.02


# measures


def test_ticks_are_round():
    assert ticks(0, 100, 5, False) == [0, 20, 40, 60, 80, 100]
    assert ticks(0, 7, 5, False) == [0, 2, 4, 6]
    assert ticks(0.13, 0.38, 4, False) == [0.2, 0.3]
    assert ticks(-3, 3, 4, False) == [-2, 0, 2]
    assert ticks(1, 1e6, 9, True) == [1, 10, 100, 1e3, 1e4, 1e5, 1e6]
    assert ticks(1, 1e12, 5, True) == [1, 1e3, 1e6, 1e9, 1e12]
    assert ticks(3, 60, 5, True) == [5, 10, 20, 50]
    assert ticks(41, 48, 5, True) == [42, 44, 46, 48]
    assert rounded_up(0, 123, 4) == 150


def test_tick_texts_are_short_and_of_one_manner():
    assert tick_texts([0, 20_000, 40_000], False) == ["0", "20k", "40k"]
    assert tick_texts([0, 500_000, 1_000_000], False) == ["0", "0.5M", "1M"]
    assert tick_texts([0, 2000, 4000], False) == ["0", "2000", "4000"]
    assert tick_texts([0.1, 1, 10, 100, 1000, 10_000], True) == ["0.1", "1", "10", "100", "1k", "10k"]
    assert tick_texts([1, 1e4, 1e8], True) == ["10⁰", "10⁴", "10⁸"]
    assert tick_texts([0, 2e12, 4e12], False) == ["0", "2×10¹²", "4×10¹²"]
    assert tick_texts([1e-6, 1e-5], True) == ["10⁻⁶", "10⁻⁵"]


def test_scales():
    assert Scale(0, 10, 100, 200).at(5) == 150
    assert Scale(1, 100, 0, 200, True).at(10) == pytest.approx(100)
    assert Scale(1, 100, 7, 200, True).at(0) == 7
    assert Scale(0, 10, 100, 200).inside(99) == 200


def test_domains_are_never_empty():
    assert domain([3, 9], Axis("x")) == (3, 9)
    assert domain([3, 9], Axis("x"), from_zero=True) == (0, 9)
    assert domain([8, 9], Axis("x"), from_zero=True) == (8, 9)
    for values in ([], [5], [0, 0], [-2], [math.nan]):
        for log in (False, True):
            low, high = domain(values, Axis("x", log=log))
            assert high > low


def test_axis_titles_name_unit_and_logarithm():
    assert axis_title(Axis("时间", "ms", log=True)) == "时间（ms，对数）"
    assert axis_title(Axis("batch")) == "batch"


def test_wrapping_keeps_every_character_and_the_width():
    text = "读权重（含量化后的缩放因子与零点，逐组 128）以及 KV Cache 的一部分"
    for width in (60, 100, 200, 400):
        lines = wrap(text, width)
        assert re.sub(r"\s", "", "".join(lines)) == re.sub(r"\s", "", text)
        assert all(text_width(line) <= width + FONT for line in lines)
        assert not any(line[0] in "，。）" for line in lines)
    assert wrap("", 100) == [""]
    assert wrap("averyveryverylongword" * 5, 80)


def test_places_prefer_the_free_side():
    places = Places(0, 0, 200, 100)
    places.take((100, 40, 90, 20))
    box = places.place(around(90, 50, 60, 14, (8,)))
    assert box is not None
    assert box[0] + box[2] < 90
    places = Places(0, 0, 200, 100)
    places.curve([(0, 50), (200, 50)])
    box = places.place(along([(0, 50), (200, 50)], 60, 14))
    assert box[1] + box[3] < 50 or box[1] > 50
    assert Places(0, 0, 20, 20).place(around(10, 10, 60, 14, (8, 50))) is None


def test_thinning_keeps_both_ends():
    assert thin(range(1000), 40)[0] == 0
    assert thin(range(1000), 40)[-1] == 999
    assert len(thin(range(1000), 40)) == 40
    assert thin([1, 2], 40) == [1, 2]


# any chart

NAME = st.text(st.sampled_from("显存带宽通信优化器状态ABCxyz 019（，）%"), min_size=1, max_size=24).map(str.strip).filter(bool)
VALUE = st.floats(0, 1e9, allow_subnormal=False)
SETTINGS = settings(max_examples=60, deadline=None, derandomize=True, database=None)


@st.composite
def axes(draw) -> Axis:
    return Axis(draw(NAME), draw(st.sampled_from(["", "GB", "ms", "token/s"])), log=draw(st.booleans()))


@SETTINGS
@given(
    axes(), axes(), st.lists(st.tuples(NAME, st.lists(st.tuples(VALUE, VALUE), max_size=12), st.booleans()), max_size=5),
    st.lists(st.tuples(NAME, VALUE, VALUE), max_size=6), st.lists(st.tuples(NAME, VALUE, st.booleans()), max_size=2),
)  # fmt: skip
def test_any_line_chart_is_tidy(x, y, series, marks, rules):
    chart = LineChart(
        "t", "d", x, y, tuple(Series(n, tuple(sorted(p)), e) for n, p, e in series), tuple(Mark(*m) for m in marks),
        tuple(Rule(n, x=v) if up else Rule(n, y=v) for n, v, up in rules),
    )  # fmt: skip
    assert_tidy(chart)


@SETTINGS
@given(
    axes(), st.lists(st.tuples(NAME, st.lists(st.tuples(NAME, VALUE), min_size=1, max_size=5), st.booleans()), min_size=1, max_size=6),
    st.lists(st.tuples(NAME, VALUE), max_size=4),
)  # fmt: skip
def test_any_bar_chart_is_tidy(axis, bars, limits):
    chart = BarChart("t", "d", axis, tuple(Bar(n, tuple(Part(*p) for p in parts), "", e) for n, parts, e in bars), tuple(Rule(n, x=v) for n, v in limits))
    assert_tidy(chart)


@SETTINGS
@given(axes(), st.lists(st.tuples(NAME, VALUE), min_size=1, max_size=8))
def test_any_waterfall_is_tidy(axis, steps):
    assert_tidy(Waterfall("t", "d", axis, tuple(steps)))


@SETTINGS
@given(st.lists(NAME, min_size=1, max_size=60), st.lists(st.tuples(st.integers(0, 59), st.floats(0, 100), st.floats(0, 100), NAME), max_size=80))
def test_any_timeline_is_tidy(lanes, spans):
    """Blocks of one lane may overlap in a faulty schedule, so labels inside blocks are left out here."""
    chart = Timeline("t", "d", Axis("时间", "ms"), tuple(lanes), tuple(Span(lane, *sorted((a, b)), "", 1) for lane, a, b, _ in spans), ("忙", "等"))
    assert_tidy(chart)


@SETTINGS
@given(st.integers(1, 20), st.integers(1, 30), NAME)
def test_any_grid_is_tidy(rows, columns, name):
    cells = tuple(tuple((i * j) % 7 / 7 for j in range(columns)) for i in range(rows))
    texts = tuple(tuple(str(i * j) for j in range(columns)) for i in range(rows))
    assert_tidy(Grid("t", "d", tuple(f"{name}{i}" for i in range(rows)), tuple(f"{name}{j}" for j in range(columns)), cells, texts))
