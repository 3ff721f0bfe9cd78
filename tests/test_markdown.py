"""Fences, joined lines, figure links: what the Markdown side does and how it refuses."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import markdown
import pytest
from pymdownx.superfences import SuperFencesException

from calculators.site.extension import JoinChineseLines
from calculators.site.fences import formatter, validator

ROOT = Path(__file__).parents[1]
FENCES = [{"name": n, "class": n, "validator": validator, "format": formatter} for n in ("calc", "calc-table", "check", "log", "guide")]


@pytest.fixture(autouse=True)
def _in_the_project(monkeypatch):
    monkeypatch.chdir(ROOT)


def convert(text: str, page: str = "") -> str:
    md = markdown.Markdown(
        extensions=["tables", "attr_list", "pymdownx.superfences", "calculators.site.extension"],
        extension_configs={"pymdownx.superfences": {"custom_fences": FENCES}},
    )
    md._book_source = page
    return md.convert(text)


@pytest.mark.parametrize(
    ("lines", "joined"),
    [
        (["第一句。", "第二句。"], ["第一句。第二句。"]),
        (["中文", "中文"], ["中文中文"]),
        (["中文", "Latin"], ["中文", "Latin"]),
        (["用 H100", "的人"], ["用 H100", "的人"]),
        (["句号。", "A100 很快"], ["句号。A100 很快"]),
        (["句号。", "[56 GB](calc:x#y) 很多"], ["句号。[56 GB](calc:x#y) 很多"]),
        (["要 [56 GB](calc:x#y)。", "**粗**"], ["要 [56 GB](calc:x#y)。**粗**"]),
        (["# 标题", "正文"], ["# 标题", "正文"]),
        (["- 一", "- 二"], ["- 一", "- 二"]),
        (["- 一", "  续"], ["- 一续"]),
        (["| 表 |", "| 表 |"], ["| 表 |", "| 表 |"]),
        (["段落", "", "段落"], ["段落", "", "段落"]),
        (["段落", "1. 列表"], ["段落", "1. 列表"]),
        (['!!! note "题"', "    正文"], ['!!! note "题"', "    正文"]),
        (["硬换行  ", "下一行"], ["硬换行  ", "下一行"]),
    ],
)
def test_lines_are_joined_only_where_a_gap_would_print(lines, joined):
    assert JoinChineseLines().run(lines) == joined


def test_a_card_is_complete_without_scripts():
    html = convert('```calc id="move-time" net_gbps="800"\n猜: 快多少？\n- 一倍 *\n- 两倍\n```')

    assert html.count("<calc-card") == 1
    assert "140 ms" in html
    assert 'data-given="800"' in html
    assert 'data-default="400"' in html
    assert "<svg" in html
    assert "<p><calc-card" not in html
    assert 'data-answer="0"' in html


def test_two_cards_of_one_calculator_have_different_keys():
    html = convert('```calc id="move-time"\n```\n\n```calc id="move-time"\n```')

    assert re.findall(r'<calc-card id="([^"]+)"', html) == ["calc-move-time-1", "calc-move-time-2"]
    ids = re.findall(r'(?<![-\w])id="([^"]+)"', html)
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize(
    ("fence", "words"),
    [
        ('```calc id="no-such-thing"\n```', "没有这个计算器"),
        ('```calc id="move-time" net_gbps="-5"\n```', "跨机带宽"),
        ('```calc id="move-time" colour="red"\n```', "colour"),
        ('```calc seq="3"\n```', "id="),
        ('```calc id="move-time"\n猜: 几个？\n- 一\n- 二\n```', "先猜"),
        ('```calc-table sweep="move-time" over="nothing=1" show="net_ms"\n```', "over"),
        ('```calc-table sweep="move-time" over="net_gbps=100" show="nothing"\n```', "show"),
        ('```calc-table catalog="hardware" rows="h100-sxm" show="flops"\n```', "flops"),
        ("```calc-table\n```", "calc-table"),
        ("```check\n问: 只有问题？\n```", "检查点"),
        ('```check show="answers"\n```', "check"),
        ('```log src="nothing"\nline\n```', "log"),
        ("```guide\n```", "guide"),
    ],
)
def test_a_faulty_fence_aborts_the_build(fence, words):
    with pytest.raises(SuperFencesException, match=re.escape(words)):
        convert(fence)


def test_questions_come_before_their_folded_answers():
    html = convert('```check\n问: 多久？\n答: [0.28 s](calc:move-time#net_ms)。\n问: 为何？\n答: 见 [01](99-none.md)。\n```\n\n```check show="answers"\n```')

    assert html.count("<details") == 2
    assert 'class="fig fig-calc"' in html
    assert "net_ms" not in re.sub(r"<[^>]*>", "", html)


def test_a_figure_link_carries_its_derivation_and_its_inputs():
    html = convert("要 [31.1 ms](calc:move-time?nvlink_basis=单向#nvlink_ms)。", page="00-how-to-use.md")

    assert "14 GB ÷ 450 GB/s = 31.11 ms" in html
    assert "i.nvlink_basis=%E5%8D%95%E5%90%91" in html
    assert 'tabindex="-1"' in html


def test_a_link_to_an_unwritten_chapter_is_plain_text(monkeypatch):
    monkeypatch.setattr("calculators.site.links.written", lambda: frozenset())

    assert convert("见 [第 20 章](20-serving.md)。") == '<p>见 <span class="unwritten">第 20 章</span>。</p>'


def test_text_is_escaped_everywhere():
    html = convert('```calc id="move-time"\n猜: <script>alert(1)</script>？\n- <b>甲</b> *\n- 乙\n```')

    assert "<script>" not in html
    assert "<b>甲" not in html


@pytest.mark.parametrize(
    ("chapter", "words"),
    [
        ('```calc id="move-time" net_gbps="-5"\n```', ["bad.md", "net_gbps", "-5"]),
        ('```calc id="nobody"\n```', ["bad.md", "nobody"]),
        ("[281 ms](calc:move-time#net_ms)", ["bad.md", "281 ms", "280 ms"]),
        ("[1 GB](calc:nobody#x)", ["bad.md", "nobody"]),
        ("[x](no-such-page.md)", ["no-such-page.md"]),
    ],
)
def test_a_strict_build_fails_and_says_where(tmp_path, chapter, words):
    """MkDocs itself, strict: exit code and message."""
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "bad.md").write_text(f"# 坏\n\n{chapter}\n", encoding="utf-8")
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[0]
    config = re.sub(r"\nhooks:.*|\n  - offline\b|\n +jieba_dict_user:.*", "", config)
    config = config.replace("base_path: [docs/assets/diagrams], check_paths: true", "check_paths: false")
    (tmp_path / "mkdocs.yml").write_text(config, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path / "out")],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    said = done.stdout + done.stderr

    assert done.returncode != 0, said
    for word in words:
        assert word in said, said
