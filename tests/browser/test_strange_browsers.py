"""Browsers that lack something, run out of something or lose something: the answer stays, one sentence says what helps."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import product

import pytest
from cards import change, outputs, settle, status
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect
from serving import Fault, SiteServer
from test_cards import ID, PAGE, expected, given, opened, started
from test_every_card import PATIENT, put_card
from test_faults import KEPT, fails

KEEP_WORKERS = (
    "globalThis.made = []; globalThis.Worker = class extends Worker { constructor(...a) { super(...a); /calc-worker/.test(a[0]) && made.push(this); } };"
)
FULL = "Storage.prototype.setItem = () => { throw new DOMException('storage is full', 'QuotaExceededError'); };"
SMALL = b"WebAssembly.Memory.prototype.grow = () => { throw new RangeError('Maximum memory size exceeded'); };\n"
NO_ROOM = b"""const { instantiate } = WebAssembly;
WebAssembly.instantiate = async (what, ...more) => {
  if (WebAssembly.Module.imports(what).length > 20) throw new RangeError("WebAssembly.Memory(): could not allocate memory");
  return instantiate(what, ...more);
};
"""
OLD = b"delete self.DecompressionStream;\n"


@pytest.fixture
def tab(new_context: Callable[..., BrowserContext]) -> Callable[..., Page]:
    """A tab of its own, with a script that runs before the page's."""

    def make(early_script: str = "") -> Page:
        context = new_context()
        context.add_init_script(early_script or "0")
        return context.new_page()

    return make


@pytest.fixture
def broken_tab(browser: Browser, server: SiteServer) -> Iterator[Page]:
    """A tab whose errors nobody counts: a script of ours is missing, others may miss it."""
    server.reset()
    context = browser.new_context()
    yield context.new_page()
    context.close()


def works(card: Locator, text: str = "6") -> None:
    change(card, "hbm_tbs", text)
    settle(card)
    assert status(card) == ""
    assert outputs(card)["hbm_ms"] == expected(**{**given(card), "hbm_tbs": text})["hbm_ms"]


class TestLacking:
    def test_no_webassembly(self, tab: Callable[..., Page], server: SiteServer) -> None:
        fails(opened(tab("delete globalThis.WebAssembly"), server), "浏览器太旧", "16.4")

    def test_nothing_that_unpacks(self, tab: Callable[..., Page], server: SiteServer) -> None:
        """Browsers of before 2023 have no DecompressionStream: the plain files are taken."""
        server.faults["calc-worker.mjs"] = Fault(before=OLD)
        card = opened(tab("delete globalThis.DecompressionStream"), server)

        works(card)
        assert started(card.page) == "plain"

    @pytest.mark.parametrize(
        ("name", "fault"),
        [
            ("reading.js", Fault(status=404)),
            *product(["calc-read.js", "calc-mine.js", "calc-check.js", "calc-page.js", "calc.js"], [Fault(status=404), Fault(damage=True)]),
        ],
    )
    def test_a_script_of_ours_is_named(self, broken_tab: Page, server: SiteServer, name: str, fault: Fault) -> None:
        server.faults[f"/{name}"] = fault
        broken_tab.goto(server.url + PAGE)

        expect(broken_tab.locator(".book-broken")).to_have_text(
            f"{name} 没有正常载入，有的按钮不能用，正文和答案照旧。请刷新；还不行，请关掉拦截插件或者换个网络。"
        )
        if name != "calc.js":
            works(broken_tab.locator(f"calc-card[data-id={ID}]").first)

    @pytest.mark.parametrize("name", ["calc-engine.js", "book.js"])
    def test_a_damaged_script_is_named_in_the_card_too(self, broken_tab: Page, server: SiteServer, name: str) -> None:
        server.faults[name] = Fault(damage=True)

        fails(opened(broken_tab, server), name)

    @pytest.mark.parametrize("names", [["/calc.js"], ["/calc-state.js"], ["/calc-state.js", "/calc.js"]], ids=["calc.js", "calc-state.js", "both"])
    def test_a_card_without_its_script_shows_its_answer(self, broken_tab: Page, server: SiteServer, names: list[str]) -> None:
        """Even where the answer would wait for a guess."""
        server.faults.update({name: Fault(status=404) for name in names})
        broken_tab.goto(server.url + PAGE)
        card = broken_tab.locator(f"calc-card[data-id={ID}]").first

        expect(card.locator("[data-output=hbm_ms]")).to_be_visible(timeout=20_000)
        assert "请刷新" in card.evaluate("c => getComputedStyle(c, '::after').content")
        assert card.evaluate("c => getComputedStyle(c, '::after').visibility") == "visible"


class TestMemory:
    def test_too_little_to_start(self, tab: Callable[..., Page], server: SiteServer) -> None:
        server.faults["calc-worker.mjs"] = Fault(before=NO_ROOM)

        fails(opened(tab(), server), "内存不够", "关掉")

    def test_too_little_for_this_calculation(self, tab: Callable[..., Page], server: SiteServer) -> None:
        """The card says so, and goes on with smaller numbers."""
        server.faults["calc-worker.mjs"] = Fault(before=SMALL)
        card = opened(tab(), server)
        card.page.evaluate(PATIENT)
        large = put_card(card.page, "bandwidth-here")
        change(large, "mat_n", "2048")
        settle(large)

        assert "内存不够" in status(large)
        assert status(large).endswith(KEPT)
        works(card)


class TestLosing:
    def test_a_worker_that_dies_is_started_again(self, tab: Callable[..., Page], server: SiteServer) -> None:
        """The system kills it without a word; the run's limit notices, and the request is asked again."""
        card = opened(tab(KEEP_WORKERS), server)
        works(card)
        card.page.evaluate("made.at(-1).terminate(); aiInfraBook.limits = { runMs: 500 }; setTimeout(() => (aiInfraBook.limits = {}), 400)")

        works(card, "5")

    def test_the_network_goes_away(self, tab: Callable[..., Page], server: SiteServer) -> None:
        page = tab()
        card = opened(page, server)
        page.wait_for_load_state("networkidle")
        while "lunr.zh.min.js" not in server.asked:  # the theme's search has a worker of its own, which throws when it is cut off
            page.wait_for_timeout(100)
        page.wait_for_timeout(300)
        page.context.set_offline(True)
        fails(card, "下载不到", "网络断了")
        page.context.set_offline(False)

        works(card, "5")

    def test_a_page_left_and_come_back_to(self, tab: Callable[..., Page], server: SiteServer) -> None:
        """Left for good, the worker ends; kept by the browser after all, the next change starts another."""
        card = opened(tab(KEEP_WORKERS), server)
        works(card)
        card.page.evaluate("dispatchEvent(new PageTransitionEvent('pagehide', { persisted: false }))")
        card.page.evaluate("dispatchEvent(new PageTransitionEvent('pageshow', { persisted: true }))")

        works(card, "5")
        assert card.page.evaluate("made.length") == 2


class TestKeeping:
    def test_storage_is_full(self, tab: Callable[..., Page], server: SiteServer) -> None:
        page = tab(FULL)
        card = opened(page, server)
        works(card)
        page.goto(server.url + "my-model.html")
        page.locator("calc-card [data-act=mine-set]").first.click()
        expect(page.locator("calc-card [data-role=status]").first).to_contain_text("浏览器不让保存")
        page.goto(server.url + "self-test.html")
        file = json.dumps({"schema": 1, "kept": {"read": "{}"}})
        page.locator('book-self-test input[type="file"]').set_input_files({"name": "x.json", "mimeType": "application/json", "buffer": file.encode()})
        expect(page.locator('book-self-test [data-role="said"]')).to_contain_text("没有导入，原来的还在")

    def test_two_tabs(self, tab: Callable[..., Page], server: SiteServer) -> None:
        """Each has its own values and its own Python; 「我的配置」 is common to both."""
        one = tab()
        other = one.context.new_page()
        here, there = opened(one, server), opened(other, server)
        works(here, "6")
        works(there, "5")
        expect(here.locator("[name=hbm_tbs]")).to_have_value("6")
        for page in (one, other):
            page.goto(server.url + "my-model.html")
        one.locator("calc-card [name=model]").first.select_option("qwen2.5-7b")
        one.locator("calc-card [data-act=mine-set]").first.click()

        expect(other.locator("my-config")).to_contain_text("Qwen2.5 7B")
