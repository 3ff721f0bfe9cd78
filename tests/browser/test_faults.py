"""Whatever goes wrong ends in the printed answer and one Chinese sentence that names the file or the remedy."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cards import cards, change, outputs, settle, status
from playwright.sync_api import BrowserContext, Locator, Page, expect
from serving import Fault, SiteServer
from test_cards import ID, PAGE, expected, given, opened, started, workers
from test_every_card import put_card

KEPT = "下面仍是改数以前的结果"


@pytest.fixture
def strange(new_context: Callable[..., BrowserContext], server: SiteServer) -> Callable[..., Locator]:
    """Opens the page in a context of its own (nothing cached), with a script that runs before the page's."""

    def open_page(early_script: str = "") -> Locator:
        context = new_context()
        if early_script:
            context.add_init_script(early_script)
        return opened(context.new_page(), server)

    return open_page


def fails(card: Locator, *parts: str) -> None:
    """A change ends in one sentence with these parts; the printed answer and what was typed stay."""
    before = outputs(card)
    change(card, "hbm_tbs", "6")
    settle(card)
    said = status(card)

    assert all(p in said for p in parts), said
    assert said.endswith(KEPT), said
    assert "\n" not in said
    assert outputs(card) == before == expected(**given(card))
    expect(card.locator("[name=hbm_tbs]")).to_have_value("6")


PROXY = "<!doctype html><title>请先登录</title>".encode()
NO_SNAPSHOT = {"/snapshot-": Fault(status=404)}
FAULTS = {
    "wasm is missing": ({"/wasm-": Fault(status=404), "pyodide.asm.wasm": Fault(status=404)}, ("pyodide.asm.wasm", "404")),
    "wasm is damaged": ({"/wasm-": Fault(damage=True), "pyodide.asm.wasm": Fault(damage=True)}, ("pyodide.asm.wasm", "内容不对")),
    "library is missing": (NO_SNAPSHOT | {"/stdlib-": Fault(status=404)}, ("stdlib-", "404")),
    "library is damaged": (NO_SNAPSHOT | {"/stdlib-": Fault(damage=True)}, ("stdlib-", "内容不对")),
    "bundle is missing": (NO_SNAPSHOT | {"/calculators-": Fault(status=404)}, ("calculators-", "404")),
    "bundle is damaged": (NO_SNAPSHOT | {"/calculators-": Fault(damage=True)}, ("calculators-", "内容不对")),
    "loader is missing": ({"pyodide.mjs": Fault(status=404)}, ("pyodide.mjs", "404")),
    "loader is damaged": ({"pyodide.mjs": Fault(damage=True)}, ("pyodide.mjs", "内容不对")),
    "machine's script is missing": ({"pyodide.asm.mjs": Fault(status=404)}, ("pyodide.asm.mjs", "404")),
    "machine's script is damaged": ({"pyodide.asm.mjs": Fault(damage=True)}, ("pyodide.asm.mjs", "内容不对")),
    "a proxy's page instead": (NO_SNAPSHOT | {"/calculators-": Fault(page=PROXY, type="text/html")}, ("calculators-", "内容不对")),
    "loader has a wrong type": ({"pyodide.asm.mjs": Fault(type="text/plain")}, ("pyodide.asm.mjs", "text/javascript")),
    "server breaks": ({"wasm": Fault(status=503)}, ("pyodide.asm.wasm", "503")),
    "engine is missing": ({"calc-engine.js": Fault(status=404)}, ("calc-engine.js",)),
    "book is missing": ({"book.js": Fault(status=404)}, ("book.js",)),
    "worker is damaged": ({"calc-worker.mjs": Fault(damage=True)}, ("calc-worker.mjs",)),
    "worker is missing": ({"calc-worker.mjs": Fault(status=404)}, ("calc-worker.mjs", "404")),
    "worker has a wrong type": ({"calc-worker.mjs": Fault(type="application/octet-stream")}, ("calc-worker.mjs", "text/javascript")),
}


@pytest.mark.parametrize(("faults", "parts"), FAULTS.values(), ids=FAULTS.keys())
def test_faulty_files(strange: Callable[..., Locator], server: SiteServer, faults: dict[str, Fault], parts: tuple[str, ...]) -> None:
    server.faults.update(faults)

    fails(strange(), *parts)


def test_mended_files_work_at_the_next_change(strange: Callable[..., Locator], server: SiteServer) -> None:
    server.faults["wasm"] = Fault(status=503)
    card = strange()
    fails(card, "503")
    server.faults.clear()

    change(card, "hbm_tbs", "5")
    settle(card)

    assert outputs(card)["hbm_ms"] == expected(**{**given(card), "hbm_tbs": "5"})["hbm_ms"]
    assert status(card) == ""


@pytest.mark.parametrize("packed", [Fault(status=404), Fault(damage=True)], ids=["missing", "damaged"])
def test_plain_wasm_of_any_type_will_do(strange: Callable[..., Locator], server: SiteServer, packed: Fault) -> None:
    server.faults["/wasm-"] = packed
    server.faults["pyodide.asm.wasm"] = Fault(type="application/octet-stream")
    card = strange()
    change(card, "hbm_tbs", "6")
    settle(card)

    assert outputs(card)["hbm_ms"] == expected(**{**given(card), "hbm_tbs": "6"})["hbm_ms"]


@pytest.mark.parametrize("fault", [Fault(status=404), Fault(damage=True)], ids=["missing", "damaged"])
def test_without_its_snapshot_python_starts_as_usual(strange: Callable[..., Locator], server: SiteServer, fault: Fault) -> None:
    server.faults["/snapshot-"] = fault
    card = strange()
    change(card, "hbm_tbs", "6")
    settle(card)

    assert started(card.page) == "plain"
    assert status(card) == ""
    assert outputs(card)["hbm_ms"] == expected(**{**given(card), "hbm_tbs": "6"})["hbm_ms"]


def test_a_snapshot_of_another_book_is_not_used(strange: Callable[..., Locator]) -> None:
    """An old file under a new name: its own name for the book gives it away."""
    card = strange()
    card.page.evaluate("aiInfraBook.bundle = aiInfraBook.bundle.replace('.zip', '.zip?another')")
    change(card, "hbm_tbs", "6")
    settle(card)

    assert started(card.page) == "plain"
    assert outputs(card)["hbm_ms"] == expected(**{**given(card), "hbm_tbs": "6"})["hbm_ms"]


def test_a_snapshot_that_never_arrives_is_not_waited_for_twice(strange: Callable[..., Locator], server: SiteServer) -> None:
    card = strange()
    server.faults["/snapshot-"] = Fault(hang=True)
    card.page.evaluate("aiInfraBook.limits = { bootMs: 4000 }; setTimeout(() => (aiInfraBook.limits = {}), 3500)")
    change(card, "hbm_tbs", "6")
    settle(card)
    server.release()

    assert started(card.page) == "plain"
    assert outputs(card)["hbm_ms"] == expected(**{**given(card), "hbm_tbs": "6"})["hbm_ms"]


def test_a_machine_that_lacks_something_is_given_up_for_a_whole_one(strange: Callable[..., Locator]) -> None:
    """Its first answer is a trap: the same request is asked again, and the reader sees the answer."""
    card = strange("""
      const Native = Worker; let trapped = false;
      globalThis.Worker = class extends Native {
        set onmessage(hear) {
          super.onmessage = (event) => {
            const trap = !trapped && event.data.includes('"is":"reply"');
            trapped ||= trap;
            hear(trap ? { data: JSON.stringify({ is: "failed", text: "unreachable" }) } : event);
          };
        }
      };
    """)
    change(card, "hbm_tbs", "6")
    settle(card)

    assert started(card.page) == "plain"
    assert status(card) == ""
    assert outputs(card)["hbm_ms"] == expected(**{**given(card), "hbm_tbs": "6"})["hbm_ms"]


def test_files_that_never_arrive(strange: Callable[..., Locator], server: SiteServer) -> None:
    """No event tells: the time-out does, after one restart."""
    card = strange(
        "globalThis.workers = 0; const W = Worker; globalThis.Worker = class extends W { constructor(...a) { super(...a); globalThis.workers += 1; } };"
    )
    server.faults["/wasm-"] = Fault(hang=True)
    card.page.evaluate("aiInfraBook.limits = { bootMs: 700 }")
    before = workers(card.page)

    fails(card, "启动超时")

    assert workers(card.page) - before == 2
    server.release()


@pytest.mark.parametrize(
    ("fault", "part"),
    [(Fault(status=403), "403"), (Fault(damage=True), "内容不对"), (Fault(page=PROXY, type="text/html"), "内容不对")],
    ids=["refused", "damaged", "replaced"],
)
def test_package_that_does_not_arrive_leaves_other_cards_alive(strange: Callable[..., Locator], server: SiteServer, fault: Fault, part: str) -> None:
    """Proxies refuse ``.whl``, or answer with a page of their own."""
    server.faults["numpy-"] = fault
    card = strange()
    numeric = put_card(card.page, "bandwidth-here")
    card.page.evaluate("aiInfraBook.limits = { runMs: 60000 }")  # a busy test machine is no reader's
    change(numeric, "mat_n", "512")
    settle(numeric)
    assert "numpy-2" in status(numeric)
    assert part in status(numeric)

    change(card, "hbm_tbs", "6")
    settle(card)

    assert outputs(card)["hbm_ms"] == expected(**{**given(card), "hbm_tbs": "6"})["hbm_ms"]


def test_run_that_takes_too_long_is_stopped(page: Page, server: SiteServer) -> None:
    card = opened(page, server)
    change(card, "hbm_tbs", "6")
    settle(card)
    good = outputs(card)
    page.evaluate("deaf = true; aiInfraBook.limits = { runMs: 200 }")
    change(card, "hbm_tbs", "5")
    settle(card)

    assert "算得太久" in status(card)
    assert outputs(card) == good
    assert workers(page) == 2, "one restart, then the sentence"

    page.evaluate("deaf = false; aiInfraBook.limits = {}")
    change(card, "hbm_tbs", "4")
    settle(card)
    assert outputs(card)["hbm_ms"] == expected(**{**given(card), "hbm_tbs": "4"})["hbm_ms"]
    assert status(card) == ""


def test_old_browser(strange: Callable[..., Locator]) -> None:
    """One that does not look at the worker's type."""
    fails(strange("globalThis.Worker = class { terminate() {} postMessage() {} }"), "浏览器太旧", "16.4")


def test_workers_forbidden(strange: Callable[..., Locator]) -> None:
    fails(strange("globalThis.Worker = class { constructor() { throw new DOMException('no', 'SecurityError'); } }"), "Worker", "隐私设置")


def test_storage_is_blocked(strange: Callable[..., Locator]) -> None:
    card = strange(
        "for (const s of ['localStorage', 'sessionStorage']) Object.defineProperty(globalThis, s, { get() { throw new DOMException('storage is blocked', 'SecurityError'); } });"
    )
    change(card, "hbm_tbs", "6")
    settle(card)

    assert outputs(card)["hbm_ms"] == expected(**{**given(card), "hbm_tbs": "6"})["hbm_ms"]


def test_opened_from_a_disk(new_context: Callable[..., BrowserContext], server: SiteServer) -> None:
    tab = new_context().new_page()
    tab.goto((server.folder / PAGE).as_uri())
    cards(tab)
    card = tab.locator(f"calc-card[data-id={ID}]").first
    change(card, "hbm_tbs", "6")

    assert "python -m http.server" in status(card)
    assert "localhost:8000" in status(card)
    assert outputs(card) == expected(**given(card))


def test_cards_share_the_worker_when_one_is_slow(page: Page, server: SiteServer) -> None:
    """A request waits its turn; none is lost."""
    card = opened(page, server)
    numeric = put_card(page, "bandwidth-here")
    card.page.evaluate("aiInfraBook.limits = { runMs: 60000 }")  # a busy test machine is no reader's
    change(numeric, "mat_n", "512")
    change(card, "hbm_tbs", "6")
    settle(card)
    settle(numeric)

    assert outputs(card)["hbm_ms"] == expected(**{**given(card), "hbm_tbs": "6"})["hbm_ms"]
    expect(numeric.locator("[data-role=status]")).to_have_text("")
    assert workers(page) == 1
