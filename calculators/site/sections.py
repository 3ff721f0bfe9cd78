"""What the build reads from a chapter's Markdown beside its rendering: sections with their addresses, ⚡ points, the one-line summary."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache

from pymdownx.slugs import slugify

from calculators.catalog.chapters import Chapter
from calculators.site.page import DOCS

_SLUG = slugify(case="lower")
_TARGET = re.compile(r"\]\(((?:calc|spec|ref):[^\s)]+)\)")
RESCUE = "⚡ 走神救援"
SUMMARY = "🎯 一句话"


@dataclass(frozen=True)
class Section:
    """One level-2 section: heading as text, address on its page, source."""

    title: str
    slug: str
    body: str

    @cached_property
    def figures(self) -> frozenset[str]:
        """The targets that its text quotes."""
        return frozenset(_TARGET.findall(self.body))

    @cached_property
    def pairs(self) -> frozenset[str]:
        """Its pairs of Chinese characters and its Latin words."""
        return frozenset(_pairs(self.title + self.body))


def sections(page: str) -> tuple[Section, ...]:
    """The level-2 sections of a page of ``docs`` in order; none where the page does not exist."""
    path = DOCS / page
    return _sections(page, path.stat().st_mtime_ns) if path.is_file() else ()


@lru_cache(maxsize=64)
def _sections(page: str, changed_ns: int) -> tuple[Section, ...]:
    text = (DOCS / page).read_text(encoding="utf-8")
    text = re.sub(r"^(```+|~~~+).*?^\1\s*$", lambda m: m[0].replace("\n#", "\n "), text, flags=re.DOTALL | re.MULTILINE)
    taken: set[str] = set()
    found = []
    for piece in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        heading, _, body = piece.partition("\n")
        title = plain(heading)
        found.append(Section(title, _unique(_SLUG(title, "-"), taken), body))
    return tuple(found)


def _unique(slug: str, taken: set[str]) -> str:
    """As the table of contents does it: a second equal heading gets ``_1``."""
    name, count = slug, 1
    while name in taken:
        name = f"{slug}_{count}"
        count += 1
    taken.add(name)
    return name


def plain(markdown: str) -> str:
    """Inline Markdown as the reader sees it, without links, marks and code ticks."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", markdown)
    text = re.sub(r"<[^>]+>", "", text)
    return re.sub(r"[*`]+", "", text).strip()


def section(page: str, title: str) -> Section | None:
    """The section with that heading."""
    return next((s for s in sections(page) if s.title == title), None)


def rescue(chapter: Chapter) -> tuple[str, ...]:
    """The points of a chapter's ⚡走神救援 as plain text."""
    found = section(f"{chapter.slug}.md", RESCUE)
    return tuple(plain(m[1]) for m in re.finditer(r"^(?:[-*]|\d+\.)\s+(.+)$", found.body, re.MULTILINE)) if found else ()


def summary(chapter: Chapter) -> str:
    """The first paragraph of 🎯 一句话 as plain text."""
    found = section(f"{chapter.slug}.md", SUMMARY)
    return plain(found.body.strip().partition("\n\n")[0].replace("\n", "")) if found else ""


def told_in(page: str, question: str) -> Section | None:
    """The numbered section of the page that a question (with its answer) is about.

    It shares the most figures with the question, then the most pairs of Chinese characters; both are measured against the
    section's own length, so that a long section is not always the answer.
    """
    candidates = [s for s in sections(page) if re.match(r"[一二三四五六七八九十]+、", s.title)]
    if not candidates:
        return None
    figures, pairs = set(_TARGET.findall(question)), _pairs(question)

    def nearness(s: Section) -> tuple[int, float]:
        return len(figures & s.figures), len(pairs & s.pairs) / (len(s.pairs) + 60) ** 0.5

    best = max(candidates, key=nearness)
    return best if nearness(best)[1] > 0 else None


def _pairs(text: str) -> set[str]:
    words = re.sub(r"\([^)]*\)", "", text)
    han = {words[i : i + 2] for i in range(len(words) - 1) if re.fullmatch(r"[\u4e00-\u9fff]{2}", words[i : i + 2])}
    return han | {w.lower() for w in re.findall(r"[A-Za-z][A-Za-z0-9-]{1,}", words)}
