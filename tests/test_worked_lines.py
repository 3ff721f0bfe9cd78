"""Worked lines: the evaluator itself, and every line of every calculator."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from in_range import raw_inputs
from worked_line import WrongLine, body, check_line, check_lines, printed_numbers

from calculators.core.calculator import Run
from calculators.core.errors import Refusal
from calculators.core.index import ids, load
from calculators.core.worked import Worked, ceil, floor, larger, ln, quantity, smaller, sqrt

RIGHT = (
    "HBM：14 GB ÷ 3 TB/s = 4.667 ms",
    "朴素 · 权重：70.5537B 参数 × 2 字节 = 141.1 GB",
    "跨机：400 Gb/s ÷ 8 = 50 GB/s",
    "合计换成 GiB：84 GB = 78.23 GiB",
    "每月：100 卡 × 2 万元/卡/月 = 200 万元/月",
    "每秒请求：1000 万次/天 ÷ 86,400 秒 = 115.7 请求/s",
    "卡时：7.227×10²³ FLOP ÷ (989 TFLOPS × 0.4) = 50.75 万卡·时",
    "账单：3 万亿元 ÷ 1.5 亿元 = 2 万",
    "占比：2 亿 ÷ 8 亿 = 25 %",
    "总运算：6 × 70B 参数 × 15T token = 6.3×10²⁴ FLOP",
    "很小：1 ÷ 10⁸ = 10⁻⁸",
    "很小：3 ÷ 7×10⁵ = 4.286×10⁻⁶",
    "气泡：(4 − 1) ÷ (8 + 4 − 1) = 27.27 %",
    "取整：⌈4096 ÷ 384⌉ = 11",
    "取整：⌊10.89 GB × 0.3 ÷ 75.37 MB⌋ = 43",
    "上限：min(989 TFLOPS, 1365 FLOP/字节 × 3350 GB/s) = 989 TFLOPS",
    "慢的那个：max(27.53 µs, 67.88 µs) = 67.88 µs",
    "故障前：(1 − 0.01)^100 = 36.6 %",
    "间隔：√(2 × 60 秒 × 3 小时) = 1138 秒",
    "对数：ln(2) = 0.6931",
    "负数：3 − 5 = −2",
    "负数：−3 × 2 = −6",
    "M：192 KiB ÷ 2 字节 = 98,304 个元素",
    "增长：3 倍/2 年 × 2 = 6 倍/2 年",
    "分组：2048 × 4096 = 8,388,608",
    "无标签的单位：3 个窗口 × 4 = 12 个窗口",
    "等于自己：379.2 分钟 = 6.32 小时",
    "16 GB + 4 × 2 GB = 24 GB",
)

WRONG = {
    "factor 2": "权重：7B 参数 × 2 字节 = 28 GB",
    "GB for GiB": "合计换成 GiB：84 GB = 84 GiB",
    "GiB for GB": "KV：16 GiB × 2 = 32 GB",
    "bits for bytes": "跨机：400 Gb/s = 400 GB/s",
    "bits for bytes, in a quotient": "跨机：400 Gb/s ÷ 2 = 200 GB/s",
    "8 with the wrong sign": "跨机：400 Gb/s × 8 = 50 GB/s",
    "last digit up": "HBM：14 GB ÷ 3 TB/s = 4.668 ms",
    "last digit down": "HBM：14 GB ÷ 3 TB/s = 4.666 ms",
    "last digit of a grouped integer": "分组：128 × 128 = 16,385",
    "percent dropped": "占比：1 ÷ 4 = 25",
    "万 for 亿": "每月：100 卡 × 2 万元/卡/月 = 200 亿元",
    "exponent off by one": "总运算：6 × 70B 参数 × 15T token = 6.3×10²³ FLOP",
    "precedence": "气泡：4 − 1 ÷ 8 = 0.375",
    "power before product": "2 × 3^2 = 36",
    "ceiling taken as rounding": "取整：⌈4096 ÷ 384⌉ = 10",
    "floor taken as ceiling": "取整：⌊10 ÷ 3⌋ = 4",
    "min for max": "慢的那个：max(27.53 µs, 67.88 µs) = 27.53 µs",
    "sign": "负数：3 − 5 = 2",
    "milliseconds for seconds": "HBM：14 GB ÷ 3 TB/s = 4.667 秒",
}


@pytest.mark.parametrize("line", RIGHT)
def test_accepts(line):
    check_line(line)


@pytest.mark.parametrize("line", WRONG.values(), ids=WRONG.keys())
def test_rejects(line):
    with pytest.raises(WrongLine):
        check_line(line)


@pytest.mark.parametrize("line", ["标签：", "a：1 + = 2", "a：(1 + 2 = 3", "a：1 = 1 = 1", "a：1 → 2", "a：2 + 2 = 2 + 2", "a：1 ÷ ) = 3", "a：没有数 = 3"])
def test_rejects_what_it_cannot_read(line):
    with pytest.raises(WrongLine):
        check_line(line)


def test_a_result_is_rounded_to_four_digits_and_a_given_to_six():
    """138.97 prints as 139; from then on 139 µs means 138.95 to 139.05, while a given 139 is 139."""
    check_lines(["一步：137.4 GFLOP ÷ 988.7 TFLOPS = 139 µs", "千步：139 µs × 1000 = 138.97 ms"])
    with pytest.raises(WrongLine):
        check_lines(["千步：139 µs × 1000 = 138.97 ms"])


def test_lines_without_equals_name_their_method_with_an_arrow():
    check_lines(["二分查找 → 43 卡", "每卡：86 GB ÷ 43 卡 = 2 GB"])
    with pytest.raises(WrongLine):
        check_lines(["二分查找，43 卡"])


def test_a_label_may_hold_an_equals_sign():
    check_lines(["batch=1：2 × 3 = 6"])


def test_numbers_of_a_text():
    assert printed_numbers("一共 12,288 token，1.5 万元，8.03B 参数，7×10²³ FLOP") == ["12,288 token", "1.5 万元", "8.03B 参数", "7×10²³ FLOP"]


UNITS = ("", "GB", "GiB", "TB/s", "Gb/s", "ms", "h", "params", "token", "FLOP", "TFLOPS", "%", "×", "万元", "元", "卡", "B/token", "request")


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(st.lists(st.tuples(st.floats(1e-3, 1e12), st.sampled_from(UNITS)), min_size=3, max_size=3), st.sampled_from(UNITS))
def test_agrees_with_the_engine_that_prints_the_lines(givens, unit):
    """Whatever Worked prints, the evaluator reads; bits are left out of the result, since they need a visible 8."""
    a, b, c = (quantity(value, u) for value, u in givens)
    w = Worked()
    first = w.line("积", a * b / c, unit if "b/s" not in unit else "")
    second = w.line("和", first + a * 2)
    w.line("差", second - first)
    w.line("根", sqrt(b) + ln(larger(a, quantity(1))) ** 2)
    w.line("整", ceil(a) + floor(b) - smaller(c, b))
    bits = any(u in ("Gb/s",) for _, u in givens)
    check_lines([line for line in w.lines if not (bits and line.endswith(("GB", "TB/s", "GiB")))])


def run_or_none(id: str, raw: dict[str, str]) -> Run | None:
    try:
        return load(id).run(raw, drop_unused=True)
    except Refusal:
        return None


@pytest.mark.parametrize("id", ids())
def test_lines_at_the_defaults(id):
    run = load(id).run()
    assert run.lines
    check_lines(run.lines)


@pytest.mark.parametrize("id", ids())
def test_a_factor_of_two_would_be_noticed_in_every_line(id):
    results: set[str] = set()
    for line in load(id).run().lines:
        if "=" not in body(line):
            results.update(printed_numbers(line.rpartition("→")[2]))
            continue
        left, _, right = body(line).partition("=")
        if right.strip()[0] != "0":
            with pytest.raises(WrongLine):
                check_line(f"({left.strip()}) × 2 = {right}", frozenset(results))
        results.add(right.strip())


@pytest.mark.parametrize("id", ids())
def test_lines_at_any_inputs(id):
    calculator = load(id)

    @settings(
        max_examples=8 if calculator.needs else 30, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck), print_blob=False
    )
    @given(raw_inputs(calculator))
    def check(raw):
        run = run_or_none(id, raw)
        if run is not None:
            check_lines(run.lines)

    check()
