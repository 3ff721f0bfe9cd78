"""Finding, changing and reading the cards of a page."""

from __future__ import annotations

import sys
from pathlib import Path

from playwright.sync_api import Locator, Page

sys.path.insert(0, str(Path(__file__).parents[1]))  # tests/variations.py is shared with the parity test

TYPED = "calc-card input[type=text][name]"
READ = """card => ({
  id: card.dataset.id, n: card.dataset.n,
  given: Object.fromEntries([...card.querySelectorAll('[data-given]')].map(c => [c.name, c.dataset.given])),
  outputs: Object.fromEntries([...card.querySelectorAll('[data-output]')].map(o => [o.dataset.output, o.dataset.text])),
  status: card.querySelector('[data-role=status]').textContent,
  state: card.dataset.state ?? '',
  live: card.querySelector('[data-role=live]').textContent,
})"""
# the answer to the last change is on the page
SETTLED = """([id, before]) => {
  const card = document.getElementById(id);
  return card.dataset.state === '' && card.querySelector('[data-role=live]').textContent !== before;
}"""


def cards(page: Page) -> list[Locator]:
    """Every card of the page, once it is alive."""
    page.wait_for_function("() => [...document.querySelectorAll('calc-card')].every(c => !c.querySelector('.calc-fields').disabled)")
    return page.locator("calc-card").all()


def read(card: Locator) -> dict[str, str | dict[str, str]]:
    found: dict[str, str | dict[str, str]] = card.evaluate(READ)
    return found


def outputs(card: Locator) -> dict[str, str]:
    found = read(card)["outputs"]
    assert isinstance(found, dict)
    return found


def change(card: Locator, name: str, text: str) -> None:
    """Put a value into a field as a reader would, unfolding what hides it."""
    control = card.locator(f"[name='{name}'][data-given]")
    folded = card.locator(f"details:not([open]):has([name='{name}']) > summary")
    if folded.count():
        folded.click()
    tag = control.evaluate("c => c.tagName === 'SELECT' ? 'select' : c.type")
    if tag == "select":
        control.select_option(text)
    elif tag == "checkbox":
        control.set_checked(text == "true")
    else:
        control.fill(text)


def settle(card: Locator, timeout_s: float = 60) -> None:
    """Wait for the answer to the last change."""
    card.page.wait_for_function("id => document.getElementById(id).dataset.state === ''", arg=card.get_attribute("id"), timeout=timeout_s * 1000)


def status(card: Locator) -> str:
    return card.locator("[data-role=status]").text_content() or ""
