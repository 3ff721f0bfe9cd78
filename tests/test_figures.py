"""The prose is bound to the code: every printed figure equals its target, every number with a unit has one."""

from __future__ import annotations

from pathlib import Path

import pytest

from calculators.catalog.references import KINDS, references
from calculators.site.figures import check, scan, scan_markdown, scan_svg
from calculators.site.targets import BadTarget, resolve

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def scanned():
    return scan(DOCS)


def test_every_bound_figure_equals_its_target(scanned):
    """Printed value = target at the printed precision, in every page and diagram."""
    wrong = [f"{b.file}:{b.line}: [{b.text}]({b.target}) {b.message}" for b in scanned[0] if not b.ok]

    assert not wrong, "\n".join(wrong)


def test_no_number_with_a_unit_is_unbound(scanned):
    """A figure that nothing guards cannot be printed."""
    assert not scanned[1], "\n".join(f"{u.file}:{u.line}: {u.text}" for u in scanned[1])


def test_the_scan_sees_the_book(scanned):
    """A scan that finds nothing would pass everything."""
    chapters = {p.name for p in DOCS.glob("[0-9]*.md")}

    assert {Path(b.file).name for b in scanned[0]} >= chapters
    assert len(scanned[0]) > 20 * len(chapters)


@pytest.mark.parametrize(
    ("text", "target", "ok"),
    [
        ("280 ms", "calc:move-time#net_ms", True),
        ("0.28 s", "calc:move-time#net_ms", True),
        ("281 ms", "calc:move-time#net_ms", False),
        ("0.28 ms", "calc:move-time#net_ms", False),
        ("4.67 ms", "calc:move-time#hbm_ms", True),
        ("4.66 ms", "calc:move-time#hbm_ms", False),
        ("4.7 ms", "calc:move-time#hbm_ms", True),
        ("5 ms", "calc:move-time#hbm_ms", True),
        ("60 倍", "calc:move-time#net_over_hbm_x", True),
        ("60×", "calc:move-time#net_over_hbm_x", True),
        ("31.1 ms", "calc:move-time?nvlink_basis=单向#nvlink_ms", True),
        ("3.35 TB/s", "spec:h100-sxm#bandwidth_gb_s", True),
        ("3350 GiB", "spec:h100-sxm#bandwidth_gb_s", False),
        ("74.5 GiB", "spec:h100-sxm#memory_gb", False),
        ("80 GB", "spec:h100-sxm#memory_gb", True),
        ("989 TFLOPS", "spec:h100-sxm#bf16_tflops", True),
        ("1979 TFLOPS", "spec:h100-sxm#bf16_tflops", False),
        ("8.03B 参数", "spec:llama-3-8b#total_params", True),
        ("80.3 亿 参数", "spec:llama-3-8b#total_params", True),
        ("约 60 倍", "calc:move-time#net_over_hbm_x", True),
        ("约 70 倍", "calc:move-time#net_over_hbm_x", False),
        ("400 Gb/s", "calc:move-time#in.net_gbps", True),
        ("56 GB", "calc:no-such#total_gb", False),
        ("56 GB", "calc:move-time#no_such_output", False),
        ("56 GB", "ref:nobody-1999#x", False),
    ],
)
def test_a_literal_is_judged_at_its_printed_precision(text, target, ok):
    assert check(text, target, "x.md", 1).ok is ok


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("权重 14 GB 放得下", ["14 GB"]),
        ("慢 1.5× 了", ["1.5×"]),
        ("慢了 60 倍", ["60 倍"]),
        ("用 8 张卡", ["8 张卡"]),
        ("占 30% 的时间", ["30%"]),
        ("在 8×H100 上", []),
        ("2022 年 3 月发布，第 3 章讲", []),
        ("7B 模型、batch 32、序列 8192", []),
        ("NVIDIA A100 SXM4 80GB 和 H100 80GB", []),
        ("`14 GB` 是代码", []),
        ("[14 GB](calc:move-time#hbm_ms)", []),
        ("[第 03 章的 14 GB](03-memory-wall.md)", ["14 GB"]),
        ("| 312 TFLOPS | 2 小时 |", ["312 TFLOPS", "2 小时"]),
        ("10–[20 %](calc:move-time#hbm_ms)", ["10–20 %"]),
        ("3.14×10²³ FLOP", ["3.14×10²³ FLOP"]),
    ],
)
def test_the_scan_finds_what_a_reader_would_call_a_figure(line, found):
    assert [u.text for u in scan_markdown(line, "x.md")[1]] == found


def test_prose_inside_fences_is_scanned_and_code_is_not():
    """先猜 options and answers are prose; a code block is not."""
    source = '```calc id="move-time"\n猜: 多久？\n- 3 GB\n- 4 GB *\n```\n```python\nx = 5  # 5 GB\n```\n```check\n问: 几张？\n答: 6 GB。\n```\n'

    assert [u.text for u in scan_markdown(source, "x.md")[1]] == ["3 GB", "4 GB", "6 GB"]


def test_text_in_a_diagram_is_scanned():
    source = '<svg><text>80 GB</text><text data-figure="spec:h100-sxm#memory_gb">80 GB</text><text data-figure="spec:h100-sxm#memory_gb">81 GB</text></svg>'
    bound, free = scan_svg(source, "x.svg")

    assert [b.ok for b in bound] == [True, False]
    assert [u.text for u in free] == ["80 GB"]


@pytest.mark.parametrize("id", sorted(references()))
def test_a_reference_is_complete(id):
    """Every entry has a kind, a source or a reason, and values that evaluate; a claim is refuted by its target."""
    entry = references()[id]

    assert entry.kind in KINDS
    assert entry.values
    assert entry.source or (entry.kind in ("rule", "derived", "claim") and (entry.note or entry.kind != "rule"))
    if entry.kind == "fact":
        assert entry.date, "a fact carries its date"
        assert entry.checked, "and the day it was checked"
    for name, figure in entry.values.items():
        target = resolve(f"ref:{id}#{name}")
        if entry.kind == "claim":
            right = resolve(figure.differs_from)
            assert target.value != pytest.approx(right.value, rel=1e-6), f"{id}#{name} is no wrong claim"
        if entry.kind == "derived":
            assert figure.expr


def test_a_target_must_name_something():
    for url in ("calc:move-time", "http://x#y", "spec:h100-sxm#nothing", "spec:nobody#x"):
        with pytest.raises(BadTarget):
            resolve(url)
