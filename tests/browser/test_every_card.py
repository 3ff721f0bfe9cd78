"""Every card of every page, and every calculator that has no page yet: a change changes the answer, as CPython says."""

from __future__ import annotations

from pathlib import Path

from cards import cards, change, read, settle, status
from playwright.sync_api import Locator, Page
from serving import SiteServer
from variations import accepted, compared, variations

from calculators.core.calculator import Calculator, Run
from calculators.core.index import ids, load
from calculators.render.card import card as render

HOST = "index.html"
PATIENT = "aiInfraBook.limits = { runMs: 60000 }"
"""A busy test machine is no reader's; the limit has its own test."""


def pages_with_cards(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.glob("*.html") if "<calc-card" in p.read_text(encoding="utf-8"))


def usable_change(calculator: Calculator, given: dict[str, str]) -> tuple[str, str, Run]:
    """A change that is accepted and alters a named output; for what only a machine or a seed decides, any accepted one."""
    before = accepted(calculator, given)
    assert before is not None, f"{calculator.id}: the page's own values are refused"
    for name, text in variations(calculator, given):
        run = accepted(calculator, {**given, name: text})
        if run and (not compared(calculator) or any(run.texts[o] != before.texts[o] for o in compared(calculator))):
            return name, text, run
    raise AssertionError(f"{calculator.id}: no single change alters an output")


def problems_of(card: Locator) -> list[str]:
    seen = read(card)
    calculator, given, before = load(str(seen["id"])), seen["given"], seen["outputs"]
    assert isinstance(given, dict)
    assert isinstance(before, dict)
    name, text, expected = usable_change(calculator, given)
    change(card, name, text)
    settle(card)
    after = read(card)["outputs"]
    assert isinstance(after, dict)
    where = f"{card.page.url}: {calculator.id} {name}={text}"
    if status(card):
        return [f"{where}: {status(card)}"]
    exact = compared(calculator)
    found = [f"{where}: {o} is {after[o]}, CPython gives {expected.texts[o]}" for o in exact if after[o] != expected.texts[o]]
    if set(after) != {o.name for o in calculator.outputs}:
        found.append(f"{where}: outputs {sorted(after)}")
    if exact and all(after[o] == before[o] for o in exact):
        found.append(f"{where}: nothing changed")
    return found


def test_every_card_of_every_page(page: Page, server: SiteServer) -> None:
    problems = []
    seen = 0

    for name in pages_with_cards(server.folder):
        page.goto(server.url + name)
        page.evaluate(PATIENT)
        for card in cards(page):
            problems += problems_of(card)
            seen += 1
        if page.evaluate("workers") > 1:
            problems.append(f"{name}: the machine put back from the snapshot was given up (test_cut_machine_is_complete)")

    assert seen
    assert not problems, "\n".join(problems)


def test_calculators_that_no_page_shows(page: Page, server: SiteServer) -> None:
    html = "".join((server.folder / name).read_text(encoding="utf-8") for name in pages_with_cards(server.folder))
    missing = [id for id in ids() if f'data-id="{id}"' not in html]
    page.goto(server.url + HOST)
    page.evaluate(PATIENT)
    problems = []

    for id in missing:
        problems += problems_of(put_card(page, id))

    assert not problems, "\n".join(problems)


def put_card(page: Page, id: str) -> Locator:
    """A card of that calculator at the end of the open page."""
    calculator = load(id)
    html = render(calculator, 99, {}, calculator.run({}), None, "")
    page.evaluate("html => document.querySelector('article').insertAdjacentHTML('beforeend', html)", str(html))
    return page.locator(f"#calc-{id}-99")
