"""The skeleton of a chapter, the routes, the navigation and the cards."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from calculators.catalog.chapters import chapters, routes
from calculators.core.index import ids, load
from calculators.site.figures import LINK, prose_lines
from calculators.site.page import CARD_FENCE

DOCS = Path(__file__).parents[1] / "docs"
WRITTEN = [c for c in chapters().values() if (DOCS / f"{c.slug}.md").exists()]
NUMBERED = [c for c in WRITTEN if c.id != "A"]
FIXED_HEADINGS = ["## 🎯 一句话", "## ⚠️ 错误直觉", "## 🔗 和其他章的关系", "## ✅ 检查点", "## 👀 答案", "## 🛑 可以停在这里", "## ⚡ 走神救援"]


def text_of(chapter) -> str:
    return (DOCS / f"{chapter.slug}.md").read_text(encoding="utf-8")


def front_matter(text: str) -> dict[str, object]:
    match = re.match(r"---\n(.*?)\n---\n", text, re.DOTALL)
    assert match, "a chapter begins with front matter"
    return yaml.safe_load(match[1])


def section(text: str, heading: str) -> str:
    return text.partition(heading)[2].partition("\n## ")[0]


def by_id(chapter) -> str:
    return chapter.id


@pytest.mark.parametrize("chapter", WRITTEN, ids=by_id)
def test_front_matter_agrees_with_the_table(chapter):
    """chapters.toml owns title, minutes and stars; the page repeats them and may not differ."""
    text = text_of(chapter)
    front = front_matter(text)

    assert front["title"] == chapter.heading
    assert front.get("minutes", 0) == chapter.minutes
    assert bool(front.get("star", False)) is chapter.star
    assert re.search(rf"^# {re.escape(chapter.heading)}$", text, re.MULTILINE)


@pytest.mark.parametrize("chapter", NUMBERED, ids=by_id)
def test_the_line_under_the_title_states_the_minutes(chapter):
    line = next(line for line in text_of(chapter).splitlines() if line.startswith("⏱"))

    assert line == f"⏱ {chapter.minutes} 分钟" + (" ｜ ⭐" if chapter.star else "")


@pytest.mark.parametrize("chapter", NUMBERED, ids=by_id)
def test_a_chapter_has_its_fixed_parts_in_order(chapter):
    text = text_of(chapter)
    found = [line for line in text.splitlines() if line in FIXED_HEADINGS]

    assert found == FIXED_HEADINGS
    numbered = re.findall(r"^## [一二三四五六七八九十]+、", text, re.MULTILINE)
    assert len(numbered) >= 3, "numbered sections carry the chapter"


@pytest.mark.parametrize("chapter", NUMBERED, ids=by_id)
def test_a_chapter_names_trades_and_refutes_with_numbers(chapter):
    """得到什么 / 付出什么 with a bound number; ❌ → ✅ rows each refuted by one."""
    text = text_of(chapter)
    rows = [line for line in section(text, "## ⚠️ 错误直觉").splitlines() if line.startswith("|") and "---" not in line]

    assert re.search(r"\|\s*得到什么\s*\|\s*付出什么\s*\|", text), "no trade table"
    assert len(rows) >= 4, "a head and at least three rows"
    assert rows[0].count("❌") == 1
    assert rows[0].count("✅") == 1
    for row in rows[1:]:
        assert LINK.search(row), f"no bound number refutes: {row}"


@pytest.mark.parametrize("chapter", NUMBERED, ids=by_id)
def test_a_checkpoint_asks_five_to_eight_questions_with_answers(chapter):
    text = text_of(chapter)
    asked = section(text, "## ✅ 检查点")

    assert 5 <= len(re.findall(r"^问[:：]", asked, re.MULTILINE)) <= 8
    assert len(re.findall(r"^问[:：]", asked, re.MULTILINE)) == len(re.findall(r"^答[:：]", asked, re.MULTILINE))
    assert '```check show="answers"' in section(text, "## 👀 答案")


@pytest.mark.parametrize("chapter", NUMBERED, ids=by_id)
def test_the_rescue_has_three_points_and_the_foot_leads_on(chapter):
    text = text_of(chapter)
    rescue = section(text, "## ⚡ 走神救援")

    assert len(re.findall(r"^(?:\d+\.|-) ", rescue, re.MULTILINE)) == 3
    assert text.rstrip().endswith("```guide\n```")


@pytest.mark.parametrize("chapter", NUMBERED, ids=by_id)
def test_headings_carry_no_figures_and_callouts_stay_rare(chapter):
    text = text_of(chapter)
    for number, line in prose_lines(text):
        if line.startswith("#"):
            assert not re.search(r"\]\((?:calc|spec|ref):", line), f"line {number}: a heading carries no figure"
    for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        for mark in ("💡", "🔑"):
            callouts = re.findall(rf"^(?:!!! .*|>\s*|\*{{0,2}}){mark}", part, re.MULTILINE)
            assert len(callouts) <= 1, f"more than one {mark} in «{part.splitlines()[0]}»"


@pytest.mark.parametrize("chapter", NUMBERED, ids=by_id)
def test_one_sentence_a_line(chapter):
    """Reviewable diffs: no source line of running prose holds two sentences (tables, quotes and lists may)."""
    for number, line in prose_lines(text_of(chapter)):
        if line.startswith(("|", "#", "-", ">", "!", "?", " ", "1", "2", "3", "4", "5", "6", "7", "8", "9", "猜", "问", "答", "<", "`")):
            continue
        plain = re.sub(r"\([^()]*\)|「[^」]*」", "", line)
        assert len(re.findall(r"。(?=.)", plain)) == 0, f"{chapter.slug}.md:{number}: {line}"


@pytest.mark.parametrize("chapter", NUMBERED, ids=by_id)
def test_length_is_a_chapters_length(chapter):
    """2 000–5 000 Chinese characters, as short as the idea allows; never a stub."""
    han = len(re.findall(r"[\u4e00-\u9fff]", text_of(chapter)))

    assert 1800 <= han <= 6500


def test_no_placeholder_stands_anywhere():
    for path in DOCS.glob("*.md"):
        assert not re.search(r"TODO|FIXME|待补|占位|敬请期待|lorem", path.read_text(encoding="utf-8")), path.name


def test_route_sums_keep_their_promise():
    """The four summed routes stay within 15 minutes of the stated hours; the fifth promises none."""
    table = chapters()
    promised = {r.id: r.stated_min for r in routes().values()}

    assert promised == {"money": 120, "serve": 330, "train": 180, "interview": 180, "all": None}
    for route in routes().values():
        minutes = sum(table[c].minutes for c in route.chapters)
        if route.stated_min is not None:
            assert abs(minutes - route.stated_min) <= 15, route.title
    assert sum(c.minutes for c in table.values()) == 773


def test_the_navigation_lists_every_page_in_book_order():
    text = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r"^\s+- (?:[^:\n]+: )?([\w.-]+\.md)$", text, re.MULTILINE)
    in_nav = [name for name in listed if name[0].isdigit() or name.startswith("appendix")]

    assert in_nav == [f"{c.slug}.md" for c in WRITTEN]
    assert sorted(listed) == sorted(p.name for p in DOCS.glob("*.md"))


def test_every_calc_fence_is_quoted_and_known():
    """An unquoted id is silently no fence: count both ways of writing."""
    for path in DOCS.glob("*.md"):
        text = path.read_text(encoding="utf-8")
        opened = re.findall(r"^[ >]*```+\s*calc(?![\w-]).*$", text, re.MULTILINE)
        assert len(opened) == len(CARD_FENCE.findall(text)), f'{path.name}: a calc fence without id="…"'
        for id in CARD_FENCE.findall(text):
            assert id in ids(), f"{path.name}: {id}"


def test_every_calculator_is_used_by_its_chapter():
    used = {c.id: set(CARD_FENCE.findall(text_of(c))) for c in WRITTEN}
    for id in ids():
        chapter = load(id).chapter
        if chapter in used:
            assert id in used[chapter], f"{id} has no card in chapter {chapter}"


def test_links_lead_to_pages_that_exist_or_will():
    known = {f"{c.slug}.md" for c in chapters().values()} | {p.name for p in DOCS.glob("*.md")}
    for path in DOCS.glob("*.md"):
        for _, line in prose_lines(path.read_text(encoding="utf-8")):
            for match in LINK.finditer(line):
                target = match["url"].partition("#")[0]
                if target.endswith(".md"):
                    assert target in known, f"{path.name}: {target}"
