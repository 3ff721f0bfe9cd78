"""What leads a reader through the book: routes, ⚡ points, the judged answers, the sections behind questions, all sources."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from calculators.catalog.chapters import chapters, routes
from calculators.catalog.references import references
from calculators.core.index import ids
from calculators.core.judge import judge
from calculators.render.live import respond
from calculators.site.checkpoint import parse_questions
from calculators.site.guide import guide_html
from calculators.site.page import card_pages
from calculators.site.reading import llms_text, reading_script
from calculators.site.sections import rescue, sections, summary, told_in
from calculators.site.sources import homes
from calculators.site.targets import BadTarget

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
NUMBERED = [c for c in chapters().values() if c.minutes and (DOCS / f"{c.slug}.md").exists()]


@pytest.fixture(autouse=True)
def _in_the_project(monkeypatch):
    monkeypatch.chdir(ROOT)


def questions_of(chapter):
    text = (DOCS / f"{chapter.slug}.md").read_text(encoding="utf-8")
    return parse_questions(re.search(r"^```check\s*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)[1])


# --- judged answers ---
@pytest.mark.parametrize(
    "typed", ["56", "56GB", "56 GB", "0.056 TB", "５６", "56,000 MB", "5.6e10 字节", "55.2", "56.9", "56 gb", "约 56 GB", "56 左右", "5.6×10^10 B"]
)
def test_every_spelling_of_the_right_number_is_right(typed):
    assert judge(typed, 56.0, "GB")[0] is True


@pytest.mark.parametrize(
    ("typed", "hint"), [("28", "2 倍"), ("7", "位和字节"), ("448", "位和字节"), ("56000", "一级单位"), ("60", "大了 7.1%"), ("-56", "差得远")]
)
def test_a_wrong_number_is_wrong_and_says_by_how_much(typed, hint):
    right, say = judge(typed, 56.0, "GB")

    assert right is False
    assert hint in say
    assert "算出来是" not in say, "the reader may try again"


@pytest.mark.parametrize("typed", ["", "  ", "abc", "56 ms", "56 倍", "nan", "inf", "1e999", "<img src=x>"])
def test_what_is_no_such_number_is_neither_right_nor_wrong(typed):
    right, say = judge(typed, 56.0, "GB")

    assert right is None
    assert "GB" in say


def test_gib_for_gb_is_converted_aloud():
    """52.15 GiB are 52.15 × 1.073741824 = 56.0 GB."""
    right, say = judge("52.15 GiB", 56.0, "GB")

    assert right is True
    assert say.startswith("52.15 GiB 就是 56 GB")
    assert judge("56 GiB", 56.0, "GB")[0] is False


def test_the_printed_digits_are_excused_up_to_five_percent():
    assert judge("0.11", 0.1084, "%", half_step=0.005)[0] is True
    assert judge("7.4", 7.0, "", half_step=0.5)[0] is False


def test_the_engine_judges_for_the_page():
    reply = json.loads(respond(json.dumps({"judge": {"typed": "0.28 s", "value": 280.0, "unit": "ms", "half_step": 0.5}})))

    assert reply["right"] is True
    assert "280 ms" in reply["say"]


@pytest.mark.parametrize("source", ["", "问: 一", "答: 一", "数: [1](ref:a#b)\n问: 一\n答: 二", "问: 一\n数: 14\n答: 二", "问: 一\n数: [1](https://a)\n答: 二"])
def test_a_broken_checkpoint_is_refused(source):
    with pytest.raises(BadTarget):
        parse_questions(source)


# --- chapters ---
@pytest.mark.parametrize("chapter", NUMBERED, ids=lambda c: c.id)
def test_a_chapter_gives_the_reading_aids_what_they_need(chapter):
    assert len(rescue(chapter)) == 3
    assert all(10 < len(point) < 160 and "](" not in point for point in rescue(chapter))
    assert len(summary(chapter)) > 15
    for q in questions_of(chapter):
        assert told_in(f"{chapter.slug}.md", f"{q.question} {q.answer}") in sections(f"{chapter.slug}.md")


def test_most_chapters_ask_for_a_number():
    asking = [c.id for c in NUMBERED if any(q.figure for q in questions_of(c))]

    assert len(asking) >= len(NUMBERED) * 0.75


@pytest.mark.parametrize(
    ("page", "question", "section"),
    [
        ("15-inference-vs-training.md", "没有 KV cache，2048 进、512 出要多做多少运算？", "两段人生"),
        ("17-continuous-batching.md", "抢占的两种找法各要多少？重算，换出", "抢占|赶|满"),
        ("05-interconnect.md", "1:2 收敛，跨叶的通信会怎样？", "收敛|拓扑|交换|网络"),
    ],
)
def test_a_question_leads_to_the_section_that_tells_it(page, question, section):
    assert re.search(section, told_in(page, question).title)


# --- the generated script, llms.txt ---
def test_the_script_knows_every_written_chapter_and_route():
    data = json.loads(reading_script().removeprefix("globalThis.aiInfraReading = ").removesuffix(";\n"))

    assert data["order"] == [c.id for c in chapters().values() if (DOCS / f"{c.slug}.md").exists()]
    assert set(data["routes"]) == set(routes())
    for route in routes().values():
        assert data["routes"][route.id]["chapters"] == [id for id in route.chapters if id in data["chapters"]]


def test_llms_txt_lists_every_chapter_and_calculator():
    text = llms_text()

    assert text.startswith("# ")
    for chapter in NUMBERED:
        assert f"]({chapter.slug}.html)" in text
    for id in ids():
        assert (f"[{id}](" in text) is (id in card_pages())
    for page in re.findall(r"\]\(([\w-]+)\.html", text):
        assert (DOCS / f"{page}.md").exists()


def test_each_route_states_its_minutes_and_leads_to_its_first_station():
    html = guide_html("index.md", "routes")

    for route in routes().values():
        stations = [chapters()[id] for id in route.chapters]
        assert f"{len(stations)} 章，光读正文 {sum(c.minutes for c in stations)} 分钟" in html
        assert f'href="{stations[0].slug}.html?route={route.id}"' in html


# --- all sources ---
def test_the_page_of_sources_lists_every_reference_once():
    text = (DOCS / "references.md").read_text(encoding="utf-8")
    listed = re.findall(r'^```calc-table sources="([^"]+)"$', text, re.MULTILINE)
    wanted = {homes().get(id, "其它页") for id in references()}

    assert sorted(listed) == sorted(wanted), "run the chapters' order: one heading with one fence for each"
    for heading, place in re.findall(r'^## (.+)\n\n```calc-table sources="([^"]+)"', text, re.MULTILINE):
        assert heading == (chapters()[place].heading if place in chapters() else place)
