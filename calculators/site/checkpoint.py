"""Checkpoint questions: asked under ✅ 检查点, answered (folded) under 👀 答案."""

from __future__ import annotations

import re

from markdown import Markdown

from calculators.render.html import Html, h
from calculators.site.inline import inline_html
from calculators.site.page import Question
from calculators.site.targets import BadTarget


def parse_questions(source: str) -> list[Question]:
    """Read 「问: …」 and 「答: …」 pairs; a paragraph goes on until the next marker.  Raises BadTarget on a broken pair."""
    pieces = re.split(r"^(问|答)[:：]\s*", source.strip(), flags=re.MULTILINE)
    if pieces[0].strip() or len(pieces) < 5 or pieces[1::2] != ["问", "答"] * (len(pieces) // 4):
        raise BadTarget("检查点的写法：「问: …」一行，「答: …」一行，一问一答")
    texts = [re.sub(r"\n(?=\S)", "", p.strip()) for p in pieces[2::2]]
    return [Question(q, a) for q, a in zip(texts[::2], texts[1::2], strict=True)]


def questions_html(questions: list[Question], md: Markdown) -> Html:
    """The numbered questions."""
    return h("ol", *(h("li", inline_html(q.question, md)) for q in questions), class_="check")


def answers_html(questions: list[Question], md: Markdown) -> Html:
    """The answers, one fold each, so that a look at one gives nothing else away."""
    rows = [
        h("li", h("details", h("summary", h("span", _unlinked(inline_html(q.question, md)))), h("p", inline_html(q.answer, md)), class_="answer"))
        for q in questions
    ]
    return h("ol", *rows, class_="answers")


def _unlinked(html: Html) -> Html:
    """Without links: inside a ``<summary>`` a tap must unfold, and the question above has them."""
    return Html(re.sub(r"</?a\b(?:[^>\"]|\"[^\"]*\")*>", "", html))
