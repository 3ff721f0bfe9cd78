"""Figure links in the built page, links to chapters that are not written yet, and the line under the title."""

from __future__ import annotations

import logging
import re
from urllib.parse import quote
from xml.etree.ElementTree import Element

from markdown import Markdown
from markdown.treeprocessors import Treeprocessor

from calculators.catalog.chapters import chapters
from calculators.render.card import card_id
from calculators.site.figures import check
from calculators.site.page import card_pages, chapter_of, source_name, written
from calculators.site.targets import SCHEMES, BadTarget, Target, resolve, with_kind_mark

SOURCES = "references"
"""The page that lists every reference."""

log = logging.getLogger("mkdocs.plugins.calculators")
"""A child of MkDocs' own logger: a warning here fails a strict build."""


def is_figure(url: str) -> bool:
    """Is this the URL of a bound figure?"""
    return url.startswith(tuple(f"{s}:" for s in SCHEMES))


def card_href(target: Target, page: str) -> str:
    """Where a figure opens its calculator with exactly its inputs; ``""`` when no page holds that calculator."""
    home = card_pages().get(target.calculator, "")
    if not home:
        return ""
    query = "".join(f"&i.{quote(k)}={quote(v, safe='')}" for k, v in target.given)
    file = "" if home == page else home.removesuffix(".md") + ".html"
    return f"{file}?calc={target.calculator}~1{query}#{card_id(target.calculator, 1)}"


def source_href(target: Target) -> str:
    """Where a figure's reference is listed; ``""`` for other figures and as long as there is no such page."""
    scheme, _, rest = target.url.partition(":")
    return f"{SOURCES}.html#ref-{rest.partition('#')[0]}" if scheme == "ref" and f"{SOURCES}.md" in written() else ""


def figure_attributes(target: Target, page: str) -> dict[str, str]:
    """Attributes of the quiet link that stands for a figure."""
    href = card_href(target, page) or source_href(target) or "#"
    return {"class": f"fig fig-{target.kind}", "href": href, "data-why": "\n".join(target.why), "tabindex": "-1"}


class FigureLinks(Treeprocessor):
    """Turns ``[56 GB](calc:…)`` into a quiet link; runs after MkDocs has resolved ordinary links."""

    def run(self, root: Element) -> None:
        page = source_name(self.md)
        previous = ""
        for parent in root.iter():
            for child in parent:
                if child.tag == "a" and is_figure(child.get("href", "")):
                    self._rewrite(child, page, (parent.text or "") if child is parent[0] else previous)
                previous = child.tail or ""

    def _rewrite(self, link: Element, page: str, before: str) -> None:
        url = link.get("href", "")
        text = "".join(link.itertext())
        try:
            target = resolve(url)
        except BadTarget as error:
            log.warning("%s: [%s] %s", page or "?", text, error)
            return
        judged = check(text, url, page, 0, rough=bool(re.search(r"(约|≈|大约|将近)\s?$", before)))
        if not judged.ok:
            log.warning("%s: [%s](%s) %s", page or "?", text, url, judged.message)
        for name, value in figure_attributes(target, page).items():
            link.set(name, value)
        if with_kind_mark(target, text) != text:
            note = Element("small")
            note.text = "（未核实）"
            note.tail, link.tail = link.tail, None
            _insert_after(self.md, link, note)


def _insert_after(md: Markdown, link: Element, note: Element) -> None:
    link.append(note)  # inside the link: the mark belongs to the figure
    link.tail, note.tail = note.tail, None


class UnwrittenChapters(Treeprocessor):
    """Shows a link to a chapter that does not exist yet as plain text; runs before MkDocs checks links."""

    def run(self, root: Element) -> None:
        missing = {f"{c.slug}.md" for c in chapters().values()} - written()
        for element in root.iter("a"):
            if element.get("href", "").partition("#")[0] in missing:
                element.tag = "span"
                element.attrib.clear()
                element.set("class", "unwritten")


class ChapterHead(Treeprocessor):
    """Marks the ⏱ line under a chapter's title and gives it the switch of the figure sources; every page gets a ``<book-place>``."""

    def run(self, root: Element) -> None:
        page = source_name(self.md)
        here = chapter_of(page)
        title = next((i for i, e in enumerate(root) if e.tag == "h1"), None)
        if page and title is not None:
            root.insert(title + 1, Element("div", {"class": "book-place", "data-search-exclude": "data-search-exclude"}))
            root[title + 1].append(Element("book-place", {"data-page": page.removesuffix(".md"), "data-chapter": here.id if here else ""}))
        if here is None:
            return
        for element in root.iter("p"):
            if (element.text or "").lstrip().startswith("⏱"):
                element.set("class", "chapter-meta")
                element.set("data-search-exclude", "data-search-exclude")
                switch = Element("button", {"type": "button", "class": "fig-switch", "data-act": "figures", "aria-pressed": "false", "hidden": "hidden"})
                switch.text = "数字出处"
                element.append(switch)
                return
