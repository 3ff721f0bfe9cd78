"""The page's foot: previous and next chapter."""

from __future__ import annotations

from calculators.catalog.chapters import Chapter, chapters
from calculators.render.html import Html, h
from calculators.site.page import chapter_of, written
from calculators.site.targets import BadTarget


def guide_html(page: str) -> Html:
    """Links to the neighbours in book order; a chapter that is not written yet is named without a link."""
    here = chapter_of(page)
    if here is None:
        raise BadTarget("guide 只用在章节页")
    order = list(chapters().values())
    at = order.index(here)
    before = order[at - 1] if at else None
    after = order[at + 1] if at + 1 < len(order) else None
    return h(
        "nav",
        _step(before, "上一节", "prev") if before else None,
        _step(after, "下一节", "next") if after else None,
        class_="guide",
        aria_label="上一节与下一节",
        data_chapter=here.id,
        data_search_exclude=True,
    )


def _step(chapter: Chapter, word: str, rel: str) -> Html:
    label = [h("small", word), h("span", chapter.heading), h("small", f"{chapter.minutes} 分钟") if chapter.minutes else None]
    if f"{chapter.slug}.md" in written():
        return h("a", *label, href=f"{chapter.slug}.html", rel=rel, class_=f"guide-{rel}")
    return h("span", *label, h("small", "（在写）"), class_=f"guide-{rel} unwritten")
