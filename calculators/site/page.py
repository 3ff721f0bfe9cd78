"""What the Markdown side knows about the page it is rendering: kept on the Markdown instance, one for each page."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from markdown import Markdown

from calculators.catalog.chapters import Chapter, chapters

DOCS = Path("docs")
CARD_FENCE = re.compile(r'^[ >]*`{3,}calc\s+id="(?P<id>[^"]+)"', re.MULTILINE)


@dataclass
class Question:
    """One checkpoint question with its answer, both Markdown; ``figure`` is the bound number of an answer that can be typed."""

    question: str
    answer: str
    figure: str = ""


@dataclass
class PageState:
    """Counters and stashes of one page."""

    cards: Counter[str] = field(default_factory=Counter)
    questions: list[Question] = field(default_factory=list)


def state(md: Markdown) -> PageState:
    """The state that belongs to this Markdown instance (MkDocs makes a new one for each page)."""
    kept = getattr(md, "_book_page", None)
    if not isinstance(kept, PageState):
        kept = PageState()
        md._book_page = kept  # type: ignore[attr-defined]
    return kept


def source_name(md: Markdown) -> str:
    """The page's file name (``03-memory-wall.md``), read from MkDocs' own treeprocessor; ``""`` outside MkDocs."""
    if "relpath" in md.treeprocessors:
        return str(getattr(getattr(md.treeprocessors["relpath"], "file", None), "src_uri", ""))
    return str(getattr(md, "_book_source", ""))


def chapter_of(name: str) -> Chapter | None:
    """The chapter whose page has that file name."""
    return next((c for c in chapters().values() if f"{c.slug}.md" == name), None)


@lru_cache(maxsize=1)
def written() -> frozenset[str]:
    """Pages that exist now."""
    return frozenset(p.name for p in DOCS.glob("*.md"))


@lru_cache(maxsize=1)
def card_pages() -> dict[str, str]:
    """Calculator id → the page that holds its first card, chapters before other pages, the home page last."""
    found: dict[str, str] = {}
    for name in sorted(written(), key=lambda n: (not n[0].isdigit(), n == "index.md", n)):
        for match in CARD_FENCE.finditer((DOCS / name).read_text(encoding="utf-8")):
            found.setdefault(match["id"], name)
    return found


def forget() -> None:
    """Drop what was read from ``docs`` (the preview server builds again and again in one process)."""
    written.cache_clear()
    card_pages.cache_clear()
