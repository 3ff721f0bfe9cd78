"""The Markdown extension of the book, listed in ``mkdocs.yml`` under ``markdown_extensions``."""

from __future__ import annotations

import re
import unicodedata

from markdown import Markdown
from markdown.extensions import Extension
from markdown.postprocessors import Postprocessor
from markdown.preprocessors import Preprocessor

from calculators.site.links import ChapterHead, FigureLinks, UnwrittenChapters
from calculators.site.page import written

_BLOCK_START = re.compile(r"\s*(?:#{1,6}\s|[-*+]\s|\d+[.)]\s|>|\||!!!|\?\?\?|:::|===|---|```|~~~|<|:\s|\[\^|\*\[)")
_MARKUP = "*_[(`~「『《（"


class JoinChineseLines(Preprocessor):
    """One sentence a line in the source must not print gaps between Chinese sentences.

    A line is joined to the one before when both belong to one paragraph and the break falls between Chinese characters or
    after full-width punctuation.  Between Chinese and Latin the line break stays: it prints the space that belongs there.
    """

    def run(self, lines: list[str]) -> list[str]:
        joined: list[str] = []
        for line in lines:
            if joined and _joins(joined[-1], line):
                joined[-1] = joined[-1].rstrip() + line.lstrip()
            else:
                joined.append(line)
        return joined


def _joins(before: str, after: str) -> bool:
    left, right = before.rstrip(), after.strip()
    if not left.strip() or not right or before.endswith("  "):
        return False
    if _BLOCK_START.match(after) or re.match(r"\s*(?:#{1,6}\s|\||!!!|\?\?\?|<|---|===)", before):
        return False
    last = left.rstrip("*_`)~")[-1:] or left[-1]
    if last == "]" or left.endswith(")"):
        text = re.search(r"\[([^\[\]]*)\](?:\([^)]*\))?[*_]*$", left)
        last = text[1][-1:] if text and text[1] else left[-1]
    first = right.lstrip("*_[`~")[:1] or right[0]
    return _is_wide(last) and (_is_wide(first) or _is_punctuation(last))


def _is_wide(character: str) -> bool:
    return unicodedata.east_asian_width(character) in "WF"


def _is_punctuation(character: str) -> bool:
    return character in "，。：；？！、）」』》…—"


class UnwrittenInDiagrams(Postprocessor):
    """Takes the address from a diagram's link to a chapter that does not exist yet.

    Diagrams write ``xlink:href``: the theme assigns to ``href`` of everything that has one, which an SVG link refuses.
    """

    def run(self, text: str) -> str:
        return re.sub(r'<a (?:xlink:)?href="([\w-]+)\.html">', lambda m: m[0] if f"{m[1]}.md" in written() else "<a>", text)


class BookExtension(Extension):
    """Joined lines, figure links, the line under the title, links to chapters still to come."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 - Python-Markdown's name
        md.registerExtension(self)
        md.preprocessors.register(JoinChineseLines(md), "book-join", 15)  # after fences were taken out (25), before links (none here)
        md.treeprocessors.register(UnwrittenChapters(md), "book-unwritten", 5)  # before MkDocs' relpath (0)
        md.treeprocessors.register(ChapterHead(md), "book-head", 4)
        md.treeprocessors.register(FigureLinks(md), "book-figures", -10)  # after relpath
        md.postprocessors.register(UnwrittenInDiagrams(md), "book-diagrams", 1)  # after raw HTML was put back (30)


def makeExtension(**settings: object) -> BookExtension:  # noqa: N802 - Python-Markdown's entry point
    """Entry point of Python-Markdown."""
    return BookExtension(**settings)
