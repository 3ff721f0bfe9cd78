"""Every page on the narrowest phone, and the way from one chapter to the next."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cards import cards
from playwright.sync_api import BrowserContext, Page
from serving import SiteServer

DOCS = Path(__file__).parents[2] / "docs"
WIDTH = 360
# what sticks out of the page without a frame that scrolls
OUTSIDE = """width => {
  const framed = (e) => e && e !== document.body && (getComputedStyle(e).overflowX !== 'visible' || framed(e.parentElement));
  return [...document.querySelectorAll('body *')]
    .filter(e => e.getClientRects().length && e.getBoundingClientRect().right > width + 1 && !framed(e.parentElement))
    .slice(0, 2).map(e => `${e.localName}.${e.getAttribute('class')} in ${e.closest('calc-card')?.id}: ${e.textContent.trim().slice(0, 40)}`);
}"""
UNFOLD = "document.querySelectorAll('details').forEach(fold => (fold.open = true))"
SCROLL_WIDTH = "document.documentElement.scrollWidth"


def test_no_page_scrolls_sideways_on_a_phone(new_context: Callable[..., BrowserContext], server: SiteServer) -> None:
    page = new_context(viewport={"width": WIDTH, "height": 740}, has_touch=True, color_scheme="dark").new_page()
    wide = []
    for path in sorted(DOCS.glob("*.md")):
        page.goto(f"{server.url}{path.stem}.html")
        folded = page.evaluate(SCROLL_WIDTH)
        page.evaluate(UNFOLD)
        unfolded = page.evaluate(SCROLL_WIDTH)
        if max(folded, unfolded) > WIDTH:
            wide.append((path.name, folded, unfolded, page.evaluate(OUTSIDE, WIDTH)))
    assert wide == []


def test_the_next_chapter_opens_at_its_top(page: Page, server: SiteServer) -> None:
    """Soon after scrolling, too: nothing writes the old page's section into the new address."""
    page.goto(server.url + "02-what-is-a-gpu.html")
    for chapter in ("03", "04"):
        cards(page)
        page.locator(".guide-next").scroll_into_view_if_needed()
        page.wait_for_timeout(200)
        page.locator(".guide-next").click()
        page.wait_for_url(f"**/{chapter}-*")
        page.wait_for_timeout(600)
        assert "#" not in page.url
        assert page.evaluate("scrollY") == 0


def test_the_note_of_a_figure_opens_in_sight(new_context: Callable[..., BrowserContext], server: SiteServer) -> None:
    page = new_context(viewport={"width": WIDTH, "height": 740}, has_touch=True).new_page()
    page.goto(server.url + "01-what-ai-infra-solves.html")
    cards(page)
    figure = page.locator("article > p > a.fig, article > ul a.fig").first
    figure.evaluate("f => scrollTo(0, scrollY + f.getBoundingClientRect().bottom - innerHeight + 2)")  # at the foot of the screen
    figure.tap()
    top, bottom = page.locator(".fig-note").evaluate("n => [n.getBoundingClientRect().top, n.getBoundingClientRect().bottom]")
    assert top >= 0
    assert bottom <= 740


def test_a_dark_page_prints_on_white(new_context: Callable[..., BrowserContext], server: SiteServer) -> None:
    page = new_context(color_scheme="dark").new_page()
    page.goto(server.url + "04-roofline-mfu.html")
    paper = "getComputedStyle(document.body).getPropertyValue('--md-default-bg-color').trim()"
    on_screen = page.evaluate(paper)
    page.emulate_media(media="print")
    assert on_screen == "#15191a"
    assert page.evaluate(paper) in ("#fff", "hsla(0, 0%, 100%, 1)", "#ffffff")
