"""The fence ``guide``: the page's foot, the routes to choose from, the page of self-tests."""

from __future__ import annotations

import re
from collections.abc import Callable

from calculators.catalog.chapters import Chapter, Route, chapters, routes
from calculators.render.html import Html, h
from calculators.site.checkpoint import parse_questions
from calculators.site.links import figure_attributes
from calculators.site.page import DOCS, chapter_of, written
from calculators.site.sections import section
from calculators.site.targets import BadTarget, resolve


def guide_html(page: str, show: str) -> Html:
    """What ``show`` names.  Raises BadTarget."""
    if show not in _SHOWS:
        raise BadTarget(f'guide 没有 show="{show}"：可取 {"、".join(s for s in _SHOWS if s)}，或者不写（页脚）')
    return _SHOWS[show](page)


def _foot(page: str) -> Html:
    """Links to the neighbours in book order, which a chosen route may replace; a chapter to come is named without a link."""
    here = chapter_of(page)
    if here is None:
        raise BadTarget("guide 只用在章节页")
    order = list(chapters().values())
    at = order.index(here)
    before = order[at - 1] if at else None
    after = order[at + 1] if at + 1 < len(order) else None
    plain = h(
        "nav",
        _step(before, "上一节", "prev") if before else None,
        _step(after, "下一节", "next") if after else None,
        class_="guide",
        aria_label="上一节与下一节",
    )
    score = h("p", h("span", data_role="score"), " ", h("a", "自测与进度", href="self-test.html"), class_="guide-score")
    read = h("p", h("button", "标为读过", type="button", data_act="read", aria_pressed="false"), " ", _report(), class_="guide-read")
    return h("div", h("book-guide", score, read, plain, data_chapter=here.id), data_search_exclude=True)


def _report() -> Html:
    return h("button", "报错", type="button", data_act="report")


def _step(chapter: Chapter, word: str, rel: str) -> Html:
    label = [h("small", word), h("span", chapter.heading), h("small", f"{chapter.minutes} 分钟") if chapter.minutes else None]
    if f"{chapter.slug}.md" in written():
        return h("a", *label, href=f"{chapter.slug}.html", rel=rel, class_=f"guide-{rel}")
    return h("span", *label, h("small", "（在写）"), class_=f"guide-{rel} unwritten")


def _routes(page: str) -> Html:
    """Every route with its stations and a link that starts it; the link works without scripts."""
    return h("div", *(_route(r, page) for r in routes().values()), class_="routes")


def _route(route: Route, page: str) -> Html:
    stations = [chapters()[id] for id in route.chapters]
    first = next((c for c in stations if f"{c.slug}.md" in written()), None)
    minutes = sum(c.minutes for c in stations)
    whole = len(stations) == sum(c.minutes > 0 for c in chapters().values())
    stops: list[object] = ["从 ", _link(stations[0]), " 起按书的顺序全读，再做 ", _link(stations[-1]), " 的项目"] if whole else []
    for c in () if whole else stations:
        stops += [" → ", _link(c)] if stops else [_link(c)]
    return h(
        "section",
        h("p", h("strong", route.title), " ⭐" if route.star else None, class_="route-title"),
        h("p", _stated(route, page), f"，{len(stations)} 章，光读正文 {minutes} 分钟", class_="route-time"),
        h("p", *stops, class_="route-stops"),
        h("p", h("a", "走这条路线", href=f"{first.slug}.html?route={route.id}", data_route=route.id, class_="route-go")) if first else None,
    )


def _stated(route: Route, page: str) -> Html:
    if route.stated_min is not None:
        return _figure(route.stated, f"calc:route-time?route={route.title}#stated_min", page)
    low, _, high = route.stated.partition("–")
    return h("span", _figure(low, "ref:reading#all_weeks_low", page), "–", _figure(high, "ref:reading#all_weeks_high", page))


def _figure(text: str, url: str, page: str) -> Html:
    return h("a", text, **figure_attributes(resolve(url), page))


def _link(chapter: Chapter) -> Html:
    if f"{chapter.slug}.md" not in written():
        return h("span", chapter.id, class_="unwritten")
    return h("a", chapter.id, href=f"{chapter.slug}.html", title=chapter.title)


def _self_test(page: str) -> Html:
    """One row a chapter; the reader's own results are filled in by ``calc-check.js``."""
    rows = [_row(c) for c in chapters().values() if c.minutes and f"{c.slug}.md" in written()]
    head = h("tr", *(h("th", t, scope="col") for t in ("章", "检查点", "会了", "还不会", "先猜猜对", "读过")))
    table = h("table", h("thead", head), h("tbody", *rows), class_="plain")
    panel = h(
        "p",
        h("button", "导出", type="button", data_act="all-export"),
        " ",
        h("label", "导入", h("input", type="file", accept=".json,application/json", class_="calc-hidden", data_act="all-import")),
        " ",
        h("button", "全部清除", type="button", data_act="all-erase"),
    )
    weak = h("div", h("p", "还没有记下答错的题。做几道 ✅ 检查点，或者在答案下面点「还不会」。"), data_role="weak", aria_live="polite")
    body = h("book-self-test", weak, h("div", table, class_="calc-table"), panel, h("p", data_role="said", role="status"))
    return h("div", body, data_search_exclude=True)


def _row(chapter: Chapter) -> Html:
    text = (DOCS / f"{chapter.slug}.md").read_text(encoding="utf-8")
    asked = re.search(r"^```check\s*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    count = len(parse_questions(asked[1])) if asked else 0
    found = section(f"{chapter.slug}.md", "✅ 检查点")
    cells = [h("td", h("a", f"{count} 题", href=f"{chapter.slug}.html#{found.slug if found else ''}"))]
    cells += [h("td", "", data_role=role) for role in ("right", "wrong", "guessed", "read")]
    return h("tr", h("th", h("a", chapter.heading, href=f"{chapter.slug}.html"), scope="row"), *cells, data_chapter=chapter.id)


_SHOWS: dict[str, Callable[[str], Html]] = {"": _foot, "routes": _routes, "self-test": _self_test}
