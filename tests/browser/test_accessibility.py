"""axe finds nothing serious on any page, in either palette, with everything unfolded; controls are large enough for a finger."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page
from serving import SiteServer

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [*sorted(p.stem for p in DOCS.glob("*.md")), "404"]
AXE = files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
UNFOLD = "document.querySelectorAll('details').forEach(fold => (fold.open = true))"
RULES = {"light": {}, "dark": {"runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}}}
SERIOUS = """async options => (await axe.run(document, {resultTypes: ['violations'], ...options})).violations
  .filter(v => ['serious', 'critical'].includes(v.impact))
  .map(v => [v.id, v.nodes.length, v.nodes[0].html.slice(0, 160), v.nodes[0].failureSummary.slice(0, 200)])"""
# what a finger must hit: WCAG 2.5.8, links within a sentence excepted
SMALL = """() => [...document.querySelectorAll('.md-content :is(button, input, select, summary, textarea), .guide a, .route-go, book-check a, .place-route a')]
  .filter(e => e.getClientRects().length && !e.closest('.calc-hidden'))
  .map(e => e.closest('label') ?? e)
  .map(e => [e.outerHTML.slice(0, 80), e.getBoundingClientRect()])
  .filter(([, r]) => r.width < 24 || r.height < 23.5).map(([html, r]) => [html, r.width, r.height])"""


@pytest.fixture(params=sorted(RULES))
def palette(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_axe_finds_nothing_serious(palette: str, new_context: Callable[..., BrowserContext], server: SiteServer) -> None:
    """The policy of a strict host forbids no test its tool: axe is injected past it."""
    context = new_context(viewport={"width": 1280, "height": 900}, color_scheme=palette, bypass_csp=True)
    page = context.new_page()
    found = {}
    for name in PAGES:
        page.goto(f"{server.url}{name}.html?route=serve")
        page.evaluate(UNFOLD)
        page.evaluate(AXE)
        violations = page.evaluate(SERIOUS, RULES[palette])
        if violations:
            found[name] = violations
    assert found == {}


def test_a_finger_hits_every_control(new_context: Callable[..., BrowserContext], server: SiteServer) -> None:
    page: Page = new_context(viewport={"width": 360, "height": 740}, has_touch=True).new_page()
    small = {}
    for name in PAGES:
        page.goto(f"{server.url}{name}.html?route=serve")
        page.evaluate(UNFOLD)
        if found := page.evaluate(SMALL):
            small[name] = found[:3]
    assert small == {}
