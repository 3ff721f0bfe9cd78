"""The figures in the prose: a note with the provenance, the calculator with the same inputs, the tab order on request."""

from __future__ import annotations

import pytest
from cards import cards, change, settle
from playwright.sync_api import Locator, Page, expect
from serving import SiteServer
from test_cards import ID, OTHER, PAGE, opened


@pytest.fixture
def figure(page: Page, server: SiteServer) -> Locator:
    """A figure of this page whose link opens the card of this page; made here, so that no chapter's text matters."""
    opened(page, server)
    page.evaluate(
        """() => {
          const p = document.createElement('p');
          p.innerHTML = '前 <a class="fig" id="made" tabindex="-1">2.9 ms</a> 后';
          const link = p.firstElementChild;
          link.href = '00-how-to-use.html?calc=move-time~1&i.hbm_tbs=4.8#calc-move-time-1';
          link.dataset.why = '第一行 <b>\\n第二行';
          document.querySelector('article h1').after(p);
        }"""
    )
    return page.locator("#made")


def test_click_shows_where_the_number_comes_from(figure: Locator) -> None:
    page = figure.page
    figure.click()
    note = page.locator(".fig-note")

    expect(note).to_have_count(1)
    assert note.locator("p").all_text_contents() == ["第一行 <b>", "第二行"]
    assert note.get_attribute("role") == "note"
    assert figure.get_attribute("aria-expanded") == "true"
    assert page.url.endswith(PAGE), "the page did not change"
    figure.click()
    expect(note).to_have_count(0)


def test_escape_and_another_figure_close_the_note(figure: Locator) -> None:
    page = figure.page
    figure.click()
    page.keyboard.press("Escape")
    expect(page.locator(".fig-note")).to_have_count(0)

    figure.click()
    other = page.locator("a.fig:not(#made)").first
    other.click()
    expect(page.locator(".fig-note")).to_have_count(1)
    assert figure.get_attribute("aria-expanded") is None


def test_the_note_opens_the_card_with_these_inputs_and_back_returns(figure: Locator) -> None:
    page = figure.page
    card = page.locator(f"calc-card[data-id={ID}]").first
    change(card, "hbm_tbs", "6")
    settle(card)
    figure.click()
    page.locator(".fig-note [data-role=open-card]").click()

    expect(card.locator("[name=hbm_tbs]")).to_have_value("4.8")
    expect(card).to_be_in_viewport()
    assert "i.hbm_tbs=4.8" in page.url
    page.go_back()
    expect(card.locator("[name=hbm_tbs]")).to_have_value("6")
    page.go_forward()
    expect(card.locator("[name=hbm_tbs]")).to_have_value("4.8")


def test_a_figure_of_another_page_goes_there(figure: Locator, server: SiteServer) -> None:
    page = figure.page
    figure.evaluate(f"a => a.href = '{OTHER}?calc=train-memory-quick~1&i.card_gb=40#calc-train-memory-quick-1'")
    figure.click()
    page.locator(".fig-note [data-role=open-card]").click()
    page.wait_for_function("document.querySelector('calc-card[data-id=train-memory-quick]')")
    cards(page)
    card = page.locator("#calc-train-memory-quick-1")
    settle(card)

    assert page.url.startswith(server.url + OTHER)
    expect(card.locator(".is-changed[data-field]")).to_have_count(1)


def test_every_figure_shows_a_note(page: Page, server: SiteServer) -> None:
    page.goto(server.url + PAGE)
    cards(page)
    empty = page.evaluate(
        """() => [...document.querySelectorAll('a.fig')].filter(a => {
          a.click();
          const shown = document.querySelectorAll('.fig-note p').length;
          a.click();
          return !shown || document.querySelector('.fig-note');
        }).map(a => a.textContent)"""
    )

    assert empty == []


def test_figures_join_the_tab_order_only_on_request(page: Page, server: SiteServer) -> None:
    page.goto(server.url + PAGE)
    cards(page)
    switch = page.locator(".fig-switch")
    if not switch.count():
        pytest.skip("this page has no switch")
    figures = page.locator("a.fig")
    assert set(figures.evaluate_all("all => all.map(a => a.tabIndex)")) == {-1}
    expect(switch).to_be_visible()
    switch.click()

    assert set(figures.evaluate_all("all => all.map(a => a.tabIndex)")) == {0}
    assert switch.get_attribute("aria-pressed") == "true"
    page.reload()
    cards(page)
    assert set(figures.evaluate_all("all => all.map(a => a.tabIndex)")) == {0}
    switch.click()
    assert set(figures.evaluate_all("all => all.map(a => a.tabIndex)")) == {-1}
