"""The engine: numbers as typed and as printed, units, inputs, worked lines, declarations, the index."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calculators.core import calculator as calculator_module
from calculators.core.calculator import Output, Result, argument_name, calculator, declared_name
from calculators.core.errors import Refusal, refuse
from calculators.core.index import ids, load, modules
from calculators.core.inputs import choice, flag, integer, is_used, linear_stops, log_stops, number, parse_all, powers_of_two
from calculators.core.numbers import NotANumber, format_number, format_value, parse_number, round_sig, with_unit
from calculators.core.units import convertible, registry, unit_of
from calculators.core.worked import Worked, ceil, floor, in_unit, larger, ln, quantity, smaller, sqrt, total

SETTINGS = settings(max_examples=200, deadline=None, derandomize=True, database=None)

# numbers as people type them


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("8k", "", 8000), ("8K", "", 8000), ("7B", "", 7e9), ("1.5 万", "", 15_000), ("1.5万", "", 15_000), ("2 亿", "", 2e8), ("3 万亿", "", 3e12),
        ("32Ki", "", 32_768), ("4Mi", "", 4 * 2**20), ("１２８", "", 128), ("１．５", "", 1.5), ("1e9", "", 1e9), ("1E-3", "", 1e-3), (".5", "", 0.5),
        ("5.", "", 5), ("+3", "", 3), ("−1", "", -1), ("-1", "", -1), ("1_000", "", 1000), ("1,000,000", "", 1e6), ("１，０００", "", 1000),
        (" 42 ", "", 42), ("50%", "", 0.5),
        ("80 GB", "GB", 80), ("80GB", "GB", 80), ("0.08 TB", "GB", 80), ("80G", "GB", 80), ("80000 MB", "GB", 80), ("3.35 TB/s", "GB/s", 3350),
        ("50 %", "%", 50), ("50", "%", 50), ("1.5x", "×", 1.5), ("200 ms", "s", 0.2), ("2 h", "s", 7200), ("2 小时", "s", 7200), ("30 分钟", "h", 0.5),
        ("7B", "1e9", 7), ("70", "1e9", 70), ("700M", "1e9", 0.7), ("7 B 参数", "1e9", 7), ("70 亿", "1e9", 7), ("8.03B", "params", 8.03e9),
        ("4k tokens", "token", 4000), ("128 卡", "卡", 128), ("128 GPUs", "卡", 128), ("1.5 万元", "元", 15_000), ("400 Gbps", "Gb/s", 400),
        ("0.4 Tb/s", "Gb/s", 400), ("989 TFLOPS", "TFLOPS", 989), ("1 PFLOPS", "TFLOPS", 1000), ("64 GiB", "GiB", 64), ("65536 MiB", "GiB", 64),
    ],
)  # fmt: skip
def test_typed_numbers_are_read(text, unit, value):
    assert parse_number(text, unit) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("", ""), ("   ", ""), ("NaN", ""), ("nan", ""), ("inf", ""), ("-inf", ""), ("1e400", ""), ("abc", ""), ("--1", ""), ("1.2.3", ""), ("十", ""),
        ("1e", ""), ("0x10", ""), ("<b>1</b>", ""), ("😀", ""), ("1/2", ""), ("５苹果", ""),
        ("80 GiB", "GB"), ("80 GB", "GiB"), ("400 Gb/s", "GB/s"), ("50 GB/s", "Gb/s"), ("3 ms", "GB"), ("3 元", "$"), ("3 $", "元"), ("5 GB", ""),
    ],
)  # fmt: skip
def test_other_texts_are_no_numbers(text, unit):
    with pytest.raises(NotANumber):
        parse_number(text, unit)


@SETTINGS
@given(st.text(max_size=40), st.sampled_from(sorted({u.symbol for u in registry().values()})))
def test_any_text_is_a_finite_number_or_refused(text, unit):
    with contextlib.suppress(NotANumber):
        assert math.isfinite(parse_number(text, unit))


# numbers as pages print them


@pytest.mark.parametrize(
    ("value", "style", "text"),
    [
        (0, "plain", "0"), (-0.0, "plain", "0"), (14, "plain", "14"), (14.0, "plain", "14"), (4.66666, "plain", "4.667"), (1365.33, "plain", "1365"),
        (9999.4, "plain", "9999"), (9999.5, "plain", "10,000"), (99_995, "plain", "99,995"), (99_994.6, "plain", "99,995"), (12_345.6, "plain", "12,346"),
        (1_000_000, "plain", "1,000,000"), (999_999_999_999_999, "plain", "999,999,999,999,999"), (1e15, "plain", "10¹⁵"), (1.5e15, "plain", "1.5×10¹⁵"),
        (0.00099995, "plain", "0.001"), (0.00099994, "plain", "0.0009999"), (0.0001, "plain", "0.0001"), (0.000099995, "plain", "10⁻⁴"),
        (0.00001234, "plain", "1.234×10⁻⁵"), (-5, "plain", "−5"), (-12_345, "plain", "−12,345"), (-1.5e-7, "plain", "−1.5×10⁻⁷"),
        (0.1 + 0.2, "plain", "0.3"), (2.5, "plain", "2.5"), (0.00025, "plain", "0.00025"), (1.00004, "plain", "1"), (1.0005, "plain", "1.001"),
        (9_999, "cjk", "9999"), (10_000, "cjk", "1 万"), (15_000, "cjk", "1.5 万"), (99_994_999, "cjk", "9999 万"), (99_995_000, "cjk", "1 亿"),
        (2e8, "cjk", "2 亿"), (1.25e12, "cjk", "1.25 万亿"), (-15_000, "cjk", "−1.5 万"), (12_345_678, "cjk", "1235 万"),
        (99_999, "short", "99,999"), (131_072, "short", "131,072"), (999_999, "short", "999,999"), (1_048_576, "short", "1.049M"), (7e9, "short", "7B"),
        (8_030_261_248, "short", "8.03B"), (999_950_000, "short", "1B"), (15e12, "short", "15T"), (-7e9, "short", "−7B"),
        (999_999, "sci", "999,999"), (1e6, "sci", "10⁶"), (6.3e24, "sci", "6.3×10²⁴"), (3.14159e23, "sci", "3.142×10²³"), (9.9996e23, "sci", "10²⁴"),
        (-2e9, "sci", "−2×10⁹"),
    ],
)  # fmt: skip
def test_printed_numbers(value, style, text):
    assert format_number(value, style) == text


def test_digits_are_a_choice():
    assert format_number(8_030_261_248, "short", 6) == "8.03026B"
    assert format_number(2 / 3, digits=2) == "0.67"
    assert format_number(295.2238, digits=6) == "295.224"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_never_printed(value):
    with pytest.raises(ValueError, match="finite"):
        format_number(value)


def test_a_truth_value_is_no_number():
    with pytest.raises(TypeError):
        format_number(True)


def test_rounding_is_half_up_and_forgets_the_last_bits():
    assert str(round_sig(0.125, 2)) == "0.13"
    assert str(round_sig(2.675, 3)) == "2.68"
    assert round_sig(1.0000000000000002, 4) == 1
    assert round_sig(0.0, 4) == 0


@SETTINGS
@given(st.floats(-1e18, 1e18, allow_subnormal=False), st.sampled_from(["plain", "cjk", "short"]))
def test_printed_numbers_read_back(value, style):
    """What a page prints can be typed into a field again, within half a unit of the fourth digit."""
    text = format_number(value, style)
    if "×10" in text or (text.startswith(("10", "−10")) and any(c in text for c in "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")):
        return
    assert parse_number(text) == pytest.approx(value, rel=5.01e-4, abs=1e-300)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (14.0, "GB", "14 GB"), (3.2, "×", "3.2 倍"), (53.1, "%", "53.1%"), (8_030_261_248, "params", "8.03B 参数"), (7.0, "1e9", "7B 参数"),
        (1068, "万元", "1068 万元"), (15_000, "元", "1.5 万元"), (120, "s", "120 秒"), (0.5, "", "0.5"), (None, "GB", "—"), (True, "", "是"),
        (False, "", "否"), ("显存", "GB", "显存"), ([1.0, 2.5], "GB", "1、2.5 GB"), ([], "GB", "—"), ([{"a": 1}, {"a": 2}], "", "2 行"), (192, "KB (1024 B)", "192 KiB"),
    ],
)  # fmt: skip
def test_printed_values(value, unit, text):
    assert format_value(value, unit) == text


def test_what_has_no_format_is_an_error():
    with pytest.raises(TypeError):
        format_value(object())


# units


def test_units_are_registered_once():
    """The same spelling never means two units (a later one would be shadowed in silence)."""
    assert unit_of("B").symbol == "B"
    assert unit_of("字节").dimension == "bytes"
    assert unit_of("token/秒").symbol == "token/s"
    assert unit_of("张").dimension == "card"


@pytest.mark.parametrize(
    ("a", "b"),
    [("GB", "GiB"), ("GB/s", "Gb/s"), ("B", "bit"), ("元", "$"), ("KB/token", "KiB/token"), ("FLOP", "FLOPS"), ("TFLOPS", "TOPS"), ("GB", "ms"), ("month", "h"), ("%", "pt"),
     ("元/Mtok", "$/Mtok"), ("卡", "台")],
)  # fmt: skip
def test_units_that_must_never_be_converted(a, b):
    assert not convertible(a, b)


@pytest.mark.parametrize(
    ("a", "b", "ratio"),
    [("TB", "GB", 1e3), ("GiB", "MiB", 1024), ("h", "s", 3600), ("µs", "ns", 1e3), ("PFLOPS", "TFLOPS", 1e3), ("TFLOP/s", "TFLOPS", 1), ("亿元", "万元", 1e4),
     ("×", "%", 100), ("GB/s", "MB/s", 1e3), ("Tb/s", "Gb/s", 1e3), ("GPU·h", "GPU·s", 3600), ("year", "day", 365), ("kWh", "J", 3.6e6)],
)  # fmt: skip
def test_units_of_one_dimension_convert(a, b, ratio):
    assert convertible(a, b)
    assert unit_of(a).scale / unit_of(b).scale == pytest.approx(ratio, rel=1e-12)


def test_gib_is_binary_and_gb_decimal():
    assert unit_of("GiB").scale == 2**30
    assert unit_of("GB").scale == 1e9


def test_an_unknown_unit_is_a_label_without_conversion():
    assert unit_of("苹果").scale == 1
    assert not convertible("苹果", "GB")
    assert with_unit("3", "苹果") == "3 苹果"


# inputs

SIZE = number("size", "数据量", 14, "GB", low=0, high=1000, low_open=True, stops=(1, 10, 100))
CARDS = integer("n_gpus", "卡数", 8, "卡", low=1, high=1024)
OPTIMISER = choice("opt", "优化器", "adam", ("adam", "sgd", "custom"), labels={"adam": "AdamW"})
BYTES = choice("bytes", "每参数字节", 16, (12, 16, 18, 20), "B")
MASTER = flag("master", "FP32 主权重", True)
CUSTOM = number("own", "自定义字节", None, "B", low=1, high=64, only_if=("opt", ("custom",)))
MASTER_BYTES = integer("master_bytes", "主权重字节", 4, "B", only_if=("master", ("true",)))
FIELDS = (SIZE, CARDS, OPTIMISER, BYTES, MASTER, CUSTOM, MASTER_BYTES)


def message(item, text):
    with pytest.raises(Refusal) as caught:
        item.parse(text)
    assert [e.field for e in caught.value.errors] == [item.name]
    return caught.value.errors[0].message


def test_numbers_are_held_to_their_range():
    assert SIZE.parse("80 GB") == 80
    assert SIZE.parse("1000") == 1000
    assert SIZE.parse("") == 14
    assert message(SIZE, "0") == "数据量必须大于 0、不超过 1000：「0」"
    assert message(SIZE, "1001") == "数据量必须大于 0、不超过 1000：「1001」"
    assert message(CARDS, "0") == "卡数必须在 1 到 1024 之间：「0」"
    assert number("x", "数", 1, low=2).range_text() == "不能小于 2"
    assert number("x", "数", 1, low=2, low_open=True).range_text() == "必须大于 2"
    assert number("x", "数", 1, high=2).range_text() == "不能大于 2"
    assert message(number("g", "带宽", 400, "Gb/s", high=1600, range_remedy="按 Gb/s 填"), "400000").endswith("，按 Gb/s 填")


def test_refusals_of_texts_give_an_example():
    assert message(SIZE, "很多") == "数据量必须是数字：「很多」，例如 14"
    assert "不认识，单位是 GB" in message(SIZE, "3 GiB")
    assert "太大" in message(SIZE, "1e400")
    assert "最多 200 个字符" in message(SIZE, "1" * 300)
    assert len(message(SIZE, "乱" * 150)) < 120


def test_integers_are_whole():
    assert CARDS.parse("8.0") == 8
    assert isinstance(CARDS.parse("1e2"), int)
    assert CARDS.parse("1k") == 1000
    assert message(CARDS, "2.5") == "卡数必须是整数：「2.5」，例如 2"


def test_choices_keep_their_type():
    assert OPTIMISER.parse("sgd") == "sgd"
    assert OPTIMISER.parse("") == "adam"
    assert BYTES.parse("18") == 18
    assert BYTES.parse("18 字节") == 18
    assert BYTES.parse("１２") == 12
    assert "可取 12、16、18、20" in message(BYTES, "13")
    assert "可取 adam、sgd、custom" in message(OPTIMISER, "AdamW")
    assert OPTIMISER.shown("adam") == "AdamW"


def test_flags_read_words():
    assert [MASTER.parse(t) for t in ("true", "1", "是", "on", "")] == [True] * 5
    assert [MASTER.parse(t) for t in ("false", "0", "否", "No")] == [False] * 4
    assert "只能是 true 或 false" in message(MASTER, "也许")
    assert MASTER.shown(True) == "是"


@pytest.mark.parametrize("item", FIELDS, ids=lambda i: i.name)
def test_values_survive_their_own_text(item):
    for value in (item.default, *item.choices, *item.stops):
        assert item.parse(item.text(value)) == value


@SETTINGS
@given(st.floats(0, 1000, exclude_min=True, allow_subnormal=False))
def test_any_float_survives_its_own_text(value):
    assert SIZE.parse(SIZE.text(value)) == value


def test_a_field_that_the_choice_does_not_use_is_refused_or_dropped():
    with pytest.raises(Refusal) as caught:
        parse_all(FIELDS, {"own": "6"})
    assert caught.value.errors[0].field == "own"
    assert caught.value.errors[0].message == "自定义字节只在优化器取 custom 时使用：优化器是 adam，请清空它或改选"
    assert parse_all(FIELDS, {"own": "6"}, drop_unused=True)["own"] is None
    assert parse_all(FIELDS, {"own": "6", "opt": "custom"})["own"] == 6
    assert parse_all(FIELDS, {"master_bytes": "4", "master": "false"})["master_bytes"] == 4
    with pytest.raises(Refusal):
        parse_all(FIELDS, {"master_bytes": "2", "master": "false"})
    assert is_used(CUSTOM, {"opt": "custom"})
    assert not is_used(MASTER_BYTES, {"master": False})
    assert is_used(SIZE, {})


def test_every_bad_field_is_reported_at_once():
    with pytest.raises(Refusal) as caught:
        parse_all(FIELDS, {"size": "x", "n_gpus": "0", "nope": "1"})
    assert [e.field for e in caught.value.errors] == ["nope", "size", "n_gpus"]
    assert "nope" in caught.value.errors[0].message
    assert "可取 size、n_gpus" in caught.value.errors[0].message


def test_empty_fields_take_defaults():
    assert parse_all(FIELDS, {}) == {"size": 14, "n_gpus": 8, "opt": "adam", "bytes": 16, "master": True, "own": None, "master_bytes": 4}
    assert parse_all(FIELDS, {"size": "  "})["size"] == 14


def test_slider_stops():
    assert powers_of_two(1, 16) == (1, 2, 4, 8, 16)
    assert linear_stops(0, 1, 0.25) == (0, 0.25, 0.5, 0.75, 1)
    stops = log_stops(1, 1000, per_decade=3)
    assert (stops[0], stops[-1]) == (1, 1000)
    assert list(stops) == sorted(set(stops))


def test_refusals_have_one_shape():
    error = refuse("tp", "n_heads 必须能被 tp 整除", "32 / 6", "可取 1、2、4、8").errors[0]
    assert (error.field, error.message) == ("tp", "n_heads 必须能被 tp 整除：32 / 6，可取 1、2、4、8")
    assert str(refuse("", "规则", "值")) == "规则：值"


# worked lines


def q(value, unit=""):
    return quantity(value, unit)


@pytest.mark.parametrize(
    ("made", "text", "value"),
    [
        (lambda: q(2) + q(3) * q(4), "2 + 3 × 4", 14), (lambda: (q(2) + q(3)) * q(4), "(2 + 3) × 4", 20), (lambda: q(2) - (q(3) - q(4)), "2 − (3 − 4)", 3),
        (lambda: q(2) - (q(3) + q(4)), "2 − (3 + 4)", -5), (lambda: q(2) - q(3) - q(4), "2 − 3 − 4", -5), (lambda: q(8) / (q(4) / q(2)), "8 ÷ (4 ÷ 2)", 4),
        (lambda: q(8) / (q(4) * q(2)), "8 ÷ (4 × 2)", 1), (lambda: q(8) / q(4) / q(2), "8 ÷ 4 ÷ 2", 1), (lambda: q(8) / q(4) * q(2), "8 ÷ 4 × 2", 4),
        (lambda: q(2) * q(3) ** 2, "2 × 3^2", 18), (lambda: (q(2) * q(3)) ** 2, "(2 × 3)^2", 36), (lambda: q(2) ** (q(1) + q(2)), "2^(1 + 2)", 8),
        (lambda: (q(2) ** 3) ** 2, "(2^3)^2", 64), (lambda: 2 * q(3), "2 × 3", 6), (lambda: 6 / q(3), "6 ÷ 3", 2), (lambda: 1 - q(0.25), "1 − 0.25", 0.75),
        (lambda: 1 + q(2), "1 + 2", 3), (lambda: 7 / (q(3) + 4), "7 ÷ (3 + 4)", 1), (lambda: ceil(q(7) / 2), "⌈7 ÷ 2⌉", 4), (lambda: floor(q(7) / 2), "⌊7 ÷ 2⌋", 3),
        (lambda: sqrt(q(9)), "√9", 3), (lambda: sqrt(q(4) + 5), "√(4 + 5)", 3), (lambda: ln(q(1) + 0), "ln(1 + 0)", 0), (lambda: larger(q(2), 3), "max(2, 3)", 3),
        (lambda: smaller(2, q(3)), "min(2, 3)", 2), (lambda: total([q(1), q(2), q(3)]), "1 + 2 + 3", 6),
    ],
)  # fmt: skip
def test_expressions_print_what_they_compute(made, text, value):
    result = made()
    assert result.text == text
    assert result.value == pytest.approx(value, rel=1e-15)


def test_plain_numbers_stay_plain():
    assert (ceil(3.2), floor(3.8), sqrt(9.0), ln(1.0), larger(1.0, 2.0), smaller(1.0, 2.0)) == (4, 3, 3, 0, 2, 1)


def test_ceil_and_floor_forgive_the_last_bits():
    assert ceil(3 * (1 + 1e-15)) == 3
    assert floor(3 * (1 - 1e-15)) == 3
    assert ceil(3.001) == 4
    assert floor(2.999) == 2


def test_quantities_hold_base_units():
    assert quantity(14, "GB").value == 14e9
    assert quantity(50, "%").value == 0.5
    assert in_unit(quantity(3, "TB/s"), "GB/s") == pytest.approx(3000)
    assert quantity(2, "").value == 2


def test_lines_and_their_results():
    w = Worked()
    time = w.line("HBM", quantity(14, "GB") / quantity(3, "TB/s"), "ms")
    assert w.lines == ("HBM：14 GB ÷ 3 TB/s = 4.667 ms",)
    assert time.text == "4.667 ms"
    assert time.value == 14e9 / 3e12
    w.line("两次", time * 2, "ms")
    w.line("", time + time, "ms")
    w.line("给定", quantity(5, "GB"), "GB")
    w.say("二分查找 → 43 卡")
    assert w.lines[1:] == ("两次：4.667 ms × 2 = 9.333 ms", "4.667 ms + 4.667 ms = 9.333 ms", "给定 → 5 GB", "二分查找 → 43 卡")
    with pytest.raises(ValueError, match="→"):
        w.say("a = b")


@pytest.mark.parametrize("unit", ["", "%"])
def test_an_infinite_line_overflows(unit):
    with pytest.raises(OverflowError):
        Worked().line("太大", quantity(1e307) * 1000, unit)
    with pytest.raises(OverflowError):
        Worked().line("换成百分数才太大", quantity(1e307), "%")


# declarations


def declared(function, **changes):
    parts = {
        "title": "题", "question": "问？", "chapter": "00", "inputs": (number("a", "甲", 1.0),), "outputs": (Output("b", "乙", "GB"),),
        "leaves_out": "无", "sources": ("出处",),
    }  # fmt: skip
    return calculator(**{**parts, **changes})(function)


def answer(value):
    return Result({"b": value}, ("甲 → 乙",), "好。")


def test_a_calculator_parses_computes_and_prints():
    def double(*, a):
        return answer(quantity(a * 2, "TB"))

    run = declared(double).run({"a": "1.5"})
    assert run.values == {"b": 3000}
    assert run.texts == {"b": "3000 GB"}
    assert declared(double).id == "test-core"


def test_overflow_and_division_by_zero_are_refused():
    def divide(*, a):
        return answer(1 / a)

    def overflow(*, a):
        return answer(math.exp(a))

    def infinite(*, a):
        return answer(a * 1e308 * 10)

    for function, text in ((divide, "0"), (overflow, "1000"), (infinite, "5")):
        with pytest.raises(Refusal) as caught:
            declared(function).run({"a": text})
        assert "范围" in str(caught.value)


def test_faulty_declarations_fail_at_import():
    def other(*, z):
        return answer(z)

    def right(*, a):
        return answer(a)

    with pytest.raises(TypeError, match="the function takes"):
        declared(other)
    with pytest.raises(TypeError, match="declared twice"):
        declared(right, inputs=(number("a", "甲", 1.0), number("a", "甲", 1.0)))
    with pytest.raises(TypeError, match="declared twice"):
        declared(right, outputs=(Output("b", "乙"), Output("b", "乙")))


def test_python_keywords_may_name_inputs():
    def route(*, from_):
        raise refuse("from_", "起点不对", from_)

    assert (argument_name("from"), declared_name("from_"), declared_name("a_"), argument_name("a")) == ("from_", "from", "a_", "a")
    with pytest.raises(Refusal) as caught:
        declared(route, inputs=(number("from", "起点", 1.0),)).run()
    assert caught.value.errors[0].field == "from"


def test_residuals_print_as_bounds():
    output = Output("r", "残差", bound=1e-14)
    assert output.text(3e-17) == "< 1e-14"
    assert output.text(0.5) == "0.5"
    assert Output("r", "残差", bound=1e-9).text(0.0) == "< 1e-9"


def test_lookups_hand_over_the_object():
    def named(*, a):
        return answer(float(len(a)))

    item = choice("a", "甲", "x", ("x", "yy"))
    looked_up = declared(named, inputs=(type(item)(**{**item.__dict__, "lookup": lambda s: s * 3}),))
    assert looked_up.run({"a": "yy"}).values == {"b": 6}


def test_unit_labels():
    assert calculator_module.unit_label("s") == "秒"


# the index


def test_the_index_knows_every_file():
    assert ids() == sorted(modules())
    assert "move-time" in ids()
    assert modules()["move-time"] == "calculators.foundations.move_time"
    assert load("move-time").id == "move-time"


def test_an_unknown_id_is_refused_with_near_names():
    with pytest.raises(Refusal) as caught:
        load("move-tiem")
    assert caught.value.errors[0].field == "id"
    assert "move-time" in str(caught.value)
    with pytest.raises(Refusal) as caught:
        load("￥" * 100)
    assert "list" in str(caught.value)
    assert len(str(caught.value)) < 200
