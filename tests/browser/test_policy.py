"""The site under the Content-Security-Policy that ``build`` prints: everything works, and what it forbids is said."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from cards import cards, change, outputs, settle
from playwright.sync_api import BrowserContext, Page, expect
from serving import SiteServer
from test_cards import ID, OTHER, expected, given, go, opened
from test_every_card import PATIENT, put_card
from test_faults import fails

from calculators.site.bundle import integrity
from calculators.site.policy import inline_scripts, policy

TELL = "addEventListener('securitypolicyviolation', e => console.log(`CSP ${e.violatedDirective} ${e.blockedURI} ${e.sourceFile}:${e.lineNumber}`))"


@pytest.fixture
def guarded(new_context: Callable[..., BrowserContext], server: SiteServer) -> Page:
    """A tab in which every page comes with the policy; what it blocks is kept in the tab's context."""
    server.policy = policy(server.folder)
    context = new_context(viewport={"width": 1280, "height": 900})
    context.add_init_script(TELL)
    return context.new_page()


def test_the_policy_is_the_documented_one(server: SiteServer) -> None:
    directives = dict(part.split(" ", 1) for part in policy(server.folder).split("; "))
    hashes = directives["script-src"].split()[2:]

    assert directives == {
        "default-src": "'self'", "script-src": " ".join(["'self' 'wasm-unsafe-eval'", *hashes]), "worker-src": "'self'", "style-src": "'self' 'unsafe-inline'",
        "img-src": "'self' data:",
    }  # fmt: skip
    assert 1 <= len(hashes) <= 5, "the theme's own, the same on every page"
    assert all(h.startswith("'sha256-") for h in hashes)


def test_every_file_that_python_loads_has_its_hash(server: SiteServer) -> None:
    generated = server.folder / "assets/generated"
    book = json.loads((generated / "book.js").read_text(encoding="utf-8").partition(" = ")[2].rstrip(";\n"))
    loaded = [p for p in generated.rglob("*") if p.is_file() and p.suffix not in (".js", ".json")]

    assert loaded
    for path in loaded:
        assert book["pyodide"]["integrity"][path.relative_to(generated).as_posix()] == integrity(path)


def test_data_and_files_need_no_hash() -> None:
    assert inline_scripts('<script>a&lt;b</script><script src="x"></script><script type="application/json">{}</script><p>c</p>') == ["a&lt;b"]


def test_a_reader_meets_no_violation(guarded: Page, server: SiteServer) -> None:
    """Cards, numpy, palette, search, instant navigation, self-test."""
    blocked: list[str] = []
    guarded.on("console", lambda message: blocked.append(message.text) if message.text.startswith(("CSP", "Refused")) else None)
    card = opened(guarded, server)
    guarded.evaluate(PATIENT)
    change(card, "hbm_tbs", "6")
    settle(card)
    assert outputs(card)["hbm_ms"] == expected(**{**given(card), "hbm_tbs": "6"})["hbm_ms"]
    assert guarded.evaluate("document.documentElement.dataset.python") == "snapshot"
    numeric = put_card(guarded, "bandwidth-here")
    change(numeric, "mat_n", "512")
    settle(numeric)
    expect(numeric.locator("[data-role=status]")).to_have_text("")

    scheme = guarded.evaluate("document.body.dataset.mdColorScheme")
    guarded.locator("form[data-md-component=palette] label:visible").click()
    assert guarded.evaluate("document.body.dataset.mdColorScheme") != scheme
    guarded.locator(".md-search__input").click()
    guarded.keyboard.insert_text("显存带宽")
    guarded.keyboard.press("End")  # the theme looks at keys, not at input
    expect(guarded.locator(".md-search-result__meta")).to_contain_text("结果", timeout=20_000)
    guarded.keyboard.press("Escape")
    go(guarded, OTHER)
    assert cards(guarded)

    guarded.goto(server.url + "04-roofline-mfu.html")
    check = guarded.locator("book-check").first
    check.locator("input").fill("1")
    check.locator("button").click()
    expect(check).to_have_attribute("data-right", "false", timeout=60_000)
    guarded.goto(server.url + "self-test.html")
    expect(guarded.locator("[data-role=weak] ul")).to_have_count(1)
    guarded.goto(server.url + "no-such-page.html")
    guarded.goto(server.url + "404.html")
    assert blocked == []


@pytest.mark.parametrize(
    ("allowed", "instead", "parts"),
    [("'wasm-unsafe-eval' ", "", ("WebAssembly", "wasm-unsafe-eval")), ("worker-src 'self'", "worker-src 'none'", ("worker-src",))],
    ids=["no WebAssembly", "no workers"],
)
def test_what_a_stricter_policy_forbids_is_said(guarded: Page, server: SiteServer, allowed: str, instead: str, parts: tuple[str, ...]) -> None:
    server.policy = policy(server.folder).replace(allowed, instead)

    fails(opened(guarded, server), *parts)


def test_the_page_alone_works_where_every_script_of_ours_is_forbidden(guarded: Page, server: SiteServer) -> None:
    server.policy = "default-src 'self'; script-src 'none'; style-src 'self' 'unsafe-inline'; img-src 'self' data:"
    guarded.goto(server.url + "00-how-to-use.html")

    expect(guarded.locator(f"calc-card[data-id={ID}] [data-output=hbm_ms]").first).to_be_visible(timeout=20_000)
