"""The SuperFences of the book: ``calc``, ``calc-table``, ``check``, ``log``, ``guide`` and ``my-config``.

SuperFences swallows every exception but its own and passes a block on silently when a validator says no.  So the
validator accepts everything and the formatter judges; whatever is wrong becomes a ``SuperFencesException``.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from typing import Any

from markdown import Markdown
from pymdownx.superfences import SuperFencesException

from calculators.core.calculator import Calculator
from calculators.core.errors import Refusal
from calculators.core.index import load
from calculators.render.card import Guess, card
from calculators.render.html import Html
from calculators.site.checkpoint import answers_html, parse_questions, questions_html
from calculators.site.guide import guide_html
from calculators.site.logs import quoted
from calculators.site.page import source_name, state
from calculators.site.panel import panel_html
from calculators.site.results import kept
from calculators.site.sources import sources_list
from calculators.site.tables import catalog_table, reference_table, sweep_table, tool_table
from calculators.site.targets import BadTarget

Options = dict[str, str]
Formatter = Callable[[str, Options, Markdown], str]


def validator(language: str, inputs: dict[str, str], options: dict[str, Any], attrs: dict[str, Any], md: Markdown) -> bool:
    """Accept every option; the formatter says what is wrong."""
    options.update({k: (v if isinstance(v, str) else "true") for k, v in inputs.items()})
    return True


def formatter(source: str, language: str, css_class: str, options: dict[str, Any], md: Markdown, **_: object) -> str:
    """Render one fence of the book, or abort the build with page, fence and reason."""
    try:
        return FENCES[language](source, dict(options), md)
    except (Refusal, BadTarget, FenceError) as error:
        shown = " ".join(f'{k}="{v}"' for k, v in options.items())
        raise SuperFencesException(f"{source_name(md) or '?'}: ```{language} {shown}``` {error}") from error


class FenceError(ValueError):
    """A fence that the author must mend."""


def _calc(source: str, options: Options, md: Markdown) -> str:
    id = options.pop("id", "")
    if not id:
        raise FenceError('缺少 id="…"')
    calculator = load(id)
    page = state(md)
    page.cards[id] += 1
    n = page.cards[id]
    guess = _parse_guess(source)
    return kept("card", json.dumps([id, n, options, source]), lambda: _render(calculator, n, options, guess))


def _render(calculator: Calculator, n: int, given: Options, guess: Guess | None) -> Html:
    return card(calculator, n, given, calculator.run(given), guess, inspect.getsource(calculator.compute))


def _parse_guess(source: str) -> Guess | None:
    lines = [line.strip() for line in source.strip().splitlines() if line.strip()]
    if not lines:
        return None
    options = [line[1:].strip() for line in lines[1:]]
    right = [i for i, option in enumerate(options) if option.endswith("*")]
    if not re.match(r"猜[:：]", lines[0]) or len(options) < 2 or any(not line.startswith("-") for line in lines[1:]) or len(right) != 1:
        raise FenceError("先猜的写法：第一行「猜: 问题」，每个选项一行以「- 」开头，恰好一个选项以「*」结尾")
    return Guess(_unlinked(lines[0][2:].strip()), tuple(_unlinked(option.rstrip("* ")) for option in options), right[0])


def _unlinked(text: str) -> str:
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)


def _table(source: str, options: Options, md: Markdown) -> str:
    makers: dict[str, Callable[[Options, str], Html]] = {
        "sweep": sweep_table, "catalog": catalog_table, "refs": reference_table, "tools": tool_table, "sources": sources_list,
    }  # fmt: skip
    chosen = [name for name in makers if name in options]
    if len(chosen) != 1:
        raise FenceError("calc-table 需要 " + "、".join(f'{name}="…"' for name in makers) + " 之一")
    return makers[chosen[0]](options, source_name(md))


def _check(source: str, options: Options, md: Markdown) -> str:
    page = state(md)
    if options.get("show") == "answers":
        if not page.questions:
            raise FenceError("答案前面要有一个 check 块")
        return answers_html(page.questions, md)
    page.questions = parse_questions(source)
    return questions_html(page.questions, md)


def _log(source: str, options: Options, md: Markdown) -> str:
    return quoted(source, options)


def _guide(source: str, options: Options, md: Markdown) -> str:
    return guide_html(source_name(md), options.get("show", ""))


def _panel(source: str, options: Options, md: Markdown) -> str:
    return panel_html()


FENCES: dict[str, Formatter] = {"calc": _calc, "calc-table": _table, "check": _check, "log": _log, "guide": _guide, "my-config": _panel}
"""One row a fence."""
