"""Checkpoint questions: asked under ✅ 检查点 (a numeric one can be typed), answered (folded) under 👀 答案."""

from __future__ import annotations

import re

from markdown import Markdown

from calculators.core.units import unit_of
from calculators.render.html import Html, h
from calculators.site.inline import inline_html
from calculators.site.literals import literal
from calculators.site.page import Question, source_name
from calculators.site.sections import told_in
from calculators.site.targets import BadTarget, resolve

_MARKERS = re.compile(r"^(问|数|答)[:：]\s*", re.MULTILINE)
_FIGURE = re.compile(r"\[([^\]]+)\]\(((?:calc|spec|ref):[^\s)]+)\)")


def parse_questions(source: str) -> list[Question]:
    """Read 「问: …」, 「数: [56 GB](calc:…)」 (only where the answer can be typed), 「答: …」.  Raises BadTarget.

    A paragraph goes on until the next marker.
    """
    pieces = _MARKERS.split(source.strip())
    order = "".join(pieces[1::2])
    if pieces[0].strip() or not order or re.fullmatch(r"(问数?答)+", order) is None:
        raise BadTarget("检查点的写法：「问: …」一行，能填数的再加「数: [56 GB](calc:…)」一行，「答: …」一行")
    found: list[Question] = []
    texts = [re.sub(r"\n(?=\S)", "", p.strip()) for p in pieces[2::2]]
    for mark, text in zip(order, texts, strict=True):
        if mark == "问":
            found.append(Question(text, ""))
        elif mark == "答":
            found[-1].answer = text
        elif _FIGURE.fullmatch(text):
            found[-1].figure = text
        else:
            raise BadTarget("「数:」后面只写一个有出处的数：[56 GB](calc:…)")
    return found


def questions_html(questions: list[Question], md: Markdown) -> Html:
    """The numbered questions; each carries the section that it is about, for the page of weak points."""
    return h("ol", *(_question(i, q, md) for i, q in enumerate(questions, 1)), class_="check")


def _question(i: int, q: Question, md: Markdown) -> Html:
    about = told_in(source_name(md), f"{q.question} {q.figure} {q.answer}")
    return h(
        "li",
        h("span", inline_html(q.question, md), class_="check-question"),
        _field(i, q) if q.figure else None,
        id=f"check-{i}",
        data_at=f"#{about.slug}" if about else None,
        data_section=about.title if about else None,
    )


def _field(i: int, q: Question) -> Html:
    match = _FIGURE.fullmatch(q.figure)
    assert match is not None  # parse_questions saw to it
    text, url = match[1], match[2]
    target = resolve(url)
    printed = literal(text, target.unit)
    if printed is None or not isinstance(target.value, int | float) or isinstance(target.value, bool):
        raise BadTarget(f"「数: {q.figure}」不是一个数")
    # a bare number is read in the unit that the text prints (58 for "58 ms" of a result kept in seconds)
    unit, value = (printed.unit, target.value * unit_of(target.unit).scale / unit_of(printed.unit).scale) if printed.unit else (target.unit, target.value)
    label = f"第 {i} 题：填一个数，可以带单位"
    form = h(
        "form",
        h("input", type="text", inputmode="decimal", name="typed", placeholder="填个数，可带单位", aria_label=label, autocomplete="off", spellcheck="false"),
        h("button", "对一下"),
        h("a", "看答案", href=f"#answer-{i}", data_act="see-answer"),
    )
    ask = h("book-check", form, h("span", data_role="said", role="status"), data_n=i, data_value=value, data_unit=unit, data_step=printed.half_step)
    return h("div", ask, data_search_exclude=True)


def answers_html(questions: list[Question], md: Markdown) -> Html:
    """The answers, one fold each, so that a look at one gives nothing else away; without a number the reader judges himself."""
    return h("ol", *(_answer(i, q, md) for i, q in enumerate(questions, 1)), class_="answers")


def _answer(i: int, q: Question, md: Markdown) -> Html:
    rate = h(
        "p",
        "你答对了吗？",
        h("button", "会了", type="button", data_act="rate", data_ok="1", aria_pressed="false"),
        h("button", "还不会", type="button", data_act="rate", aria_pressed="false"),
        class_="check-rate",
        data_n=i,
        data_search_exclude=True,
    )
    question = h("summary", h("span", _unlinked(inline_html(q.question, md))))
    return h("li", h("details", question, h("p", inline_html(q.answer, md)), rate, class_="answer", id=f"answer-{i}"))


def _unlinked(html: Html) -> Html:
    """Without links: inside a ``<summary>`` a tap must unfold, and the question above has them."""
    return Html(re.sub(r"</?a\b(?:[^>\"]|\"[^\"]*\")*>", "", html))
