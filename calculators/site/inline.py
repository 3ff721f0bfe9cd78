"""Markdown inside a fence (answers, table notes): inline text with the same figure links as the page."""

from __future__ import annotations

import re

import markdown
from markdown import Markdown

from calculators.render.html import Html
from calculators.site.links import FigureLinks, UnwrittenChapters
from calculators.site.page import source_name


def inline_html(text: str, md: Markdown) -> Html:
    """Render one paragraph of Markdown without its ``<p>``; links to chapters become links to their pages."""
    small = markdown.Markdown()
    small._book_source = source_name(md)  # type: ignore[attr-defined]
    small.treeprocessors.register(UnwrittenChapters(small), "unwritten", 1)
    small.treeprocessors.register(FigureLinks(small), "figures", -1)
    html = small.convert(text)
    html = re.sub(r'href="([\w.-]+)\.md(#[^"]*)?"', r'href="\1.html\2"', html)
    return Html(re.sub(r"^<p>(.*)</p>$", r"\1", html, flags=re.DOTALL))
