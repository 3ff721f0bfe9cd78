"""The offline edition, opened from a disk: its calculators run, its search finds, and it is small enough to send."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from cards import cards, change, outputs, settle, status
from playwright.sync_api import BrowserContext, Locator, Page, expect
from serving import SiteServer
from test_cards import ID, expected, given, started
from test_every_card import PATIENT
from variations import accepted

from calculators.core.index import load
from calculators.site.cli import main
from calculators.site.offline import LARGEST, OfflineError, write_offline

NUMERIC = "online-softmax"


@pytest.fixture(scope="module")
def edition(server: SiteServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive, unpacked."""
    archive = tmp_path_factory.mktemp("edition") / "book.zip"
    assert main(["offline", "--site-dir", str(server.folder), "--out", str(archive)]) == 0
    assert archive.stat().st_size <= LARGEST
    with zipfile.ZipFile(archive) as opened:
        assert opened.testzip() is None
        opened.extractall(archive.parent)
    return archive.with_suffix("")


@pytest.fixture
def tab(new_context: Callable[..., BrowserContext]) -> Page:
    return new_context().new_page()


def page_of(edition: Path, id: str) -> Path:
    return next(page for page in sorted(edition.glob("*.html")) if f'data-id="{id}"' in page.read_text(encoding="utf-8"))


def opened(tab: Page, edition: Path, id: str) -> Locator:
    tab.goto(page_of(edition, id).as_uri())
    cards(tab)
    tab.evaluate(PATIENT)
    card = tab.locator(f"calc-card[data-id={id}]").first
    card.evaluate("c => c.guess && c.guessed('skip', false)")
    return card


def test_cards_calculate_from_a_disk(tab: Page, edition: Path) -> None:
    card = opened(tab, edition, ID)
    change(card, "hbm_tbs", "6")
    settle(card)
    assert status(card) == ""
    assert outputs(card)["hbm_ms"] == expected(**{**given(card), "hbm_tbs": "6"})["hbm_ms"]
    assert started(tab) == "snapshot"
    tab.evaluate("aiInfraBook.pyodide.snapshot = ''; dispatchEvent(new PageTransitionEvent('pagehide'))")
    change(card, "hbm_tbs", "5")
    settle(card)
    assert outputs(card)["hbm_ms"] == expected(**{**given(card), "hbm_tbs": "5"})["hbm_ms"]
    assert started(tab) == "plain"

    numeric = opened(tab, edition, NUMERIC)
    change(numeric, "n", "1024")
    settle(numeric)
    run = accepted(load(NUMERIC), {**given(numeric), "n": "1024"})
    assert run
    assert status(numeric) == ""
    assert outputs(numeric)["blocks"] == run.texts["blocks"] == "8"


def test_search_answers_from_a_disk(tab: Page, edition: Path) -> None:
    tab.goto(f"{(edition / 'index.html').as_uri()}?q={quote('显存带宽')}")

    expect(tab.locator(".md-search-result__item").first).to_be_visible(timeout=20_000)


def test_an_incomplete_folder_is_said(tab: Page, edition: Path) -> None:
    """Opened inside the archive's window, or copied in part."""
    script = edition / "assets/offline/python.js"
    away = script.rename(script.with_suffix(".away"))
    try:
        card = opened(tab, edition, ID)
        before = outputs(card)
        change(card, "hbm_tbs", "6")
        settle(card)
        assert "python.js" in status(card)
        assert "整个解开" in status(card)
        assert outputs(card) == before
    finally:
        away.rename(script)
    change(card, "hbm_tbs", "5")
    settle(card)
    assert status(card) == ""


def test_the_edition_is_the_whole_book(edition: Path, server: SiteServer) -> None:
    pages = {page.name for page in server.folder.glob("*.html")}

    assert {page.name for page in edition.glob("*.html")} == pages
    assert not list(edition.rglob("*.wasm")), "once is enough"


def test_the_ordinary_site_carries_nothing_of_it(server: SiteServer) -> None:
    assert "aiInfraOffline" not in (server.folder / "assets/generated/book.js").read_text(encoding="utf-8")
    assert not (server.folder / "assets/offline").exists()


def test_without_a_site_it_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(OfflineError, match="calculators build"):
        write_offline(tmp_path, tmp_path / "book.zip")
