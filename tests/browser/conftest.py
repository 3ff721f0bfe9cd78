"""One built site, one server, one Chromium for the whole session; a fresh tab for each test."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from find_chromium import find
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright
from serving import SiteServer

HERE = Path(__file__).parent
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--no-first-run", "--disable-quic",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SiteServer]:
    """The site, built for the address it is served at; ``$AI_INFRA_SITE`` names one that is built already."""
    ready = os.environ.get("AI_INFRA_SITE")
    folder = Path(ready) if ready else tmp_path_factory.mktemp("site")
    served = SiteServer(folder)
    if not ready:
        command = [sys.executable, "-m", "calculators", "build", "--site-dir", str(folder), "--site-url", served.url]
        done = subprocess.run(command, cwd=HERE.parents[1], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
    yield served
    served.close()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    chromium = find()
    if chromium is None:
        if os.environ.get("CI"):
            pytest.fail("no Chromium: run python tests/browser/find_chromium.py")
        pytest.skip("no Chromium: run python tests/browser/find_chromium.py")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
        yield launched
        launched.close()


BLOCKED = "storage is blocked"
"""A test's own error: the theme's inline scripts do not expect it, and it is no fault of ours."""


class Watch:
    """What a context's pages asked of other hosts, and the errors that they threw."""

    def __init__(self, context: BrowserContext, origin: str) -> None:
        self.elsewhere: list[str] = []
        self.errors: list[str] = []
        context.on("request", lambda r: None if r.url.startswith((origin, "data:", "blob:", "file:")) else self.elsewhere.append(r.url))
        context.on("weberror", lambda e: None if BLOCKED in str(e.error) else self.errors.append(str(e.error)))

    def check(self) -> None:
        assert self.elsewhere == [], "a reader's browser must not ask anybody else"
        assert self.errors == []


@pytest.fixture(scope="session")
def shared(browser: Browser, server: SiteServer) -> Iterator[tuple[BrowserContext, Watch]]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.grant_permissions(["clipboard-read", "clipboard-write"], origin=server.origin)
    context.add_init_script(COUNT_WORKERS)
    yield context, Watch(context, server.origin)
    context.close()


@pytest.fixture
def page(shared: tuple[BrowserContext, Watch], server: SiteServer) -> Iterator[Page]:
    """A tab of the shared context; the test fails when a page threw or asked another host."""
    context, watch = shared
    server.reset()
    tab = context.new_page()
    yield tab
    if not tab.is_closed():
        if tab.url.startswith(server.origin):
            tab.evaluate("localStorage.clear()")
        tab.close()
    errors, elsewhere = list(watch.errors), list(watch.elsewhere)
    watch.errors.clear()
    watch.elsewhere.clear()
    assert (errors, elsewhere) == ([], [])


@pytest.fixture
def new_context(browser: Browser, server: SiteServer) -> Iterator[Callable[..., BrowserContext]]:
    """Contexts with other settings (no JavaScript, another width); closed and checked at the end."""
    made: list[tuple[BrowserContext, Watch]] = []
    server.reset()

    def make(**options: object) -> BrowserContext:
        context = browser.new_context(**options)  # type: ignore[arg-type]
        made.append((context, Watch(context, server.origin)))
        return context

    yield make
    for context, watch in made:
        context.close()
        watch.check()


# `workers` counts the workers that the tab starts for calculators; with `deaf` they never hear of a request, as one lost
# in a long calculation does not
COUNT_WORKERS = """
(() => {
  const Native = globalThis.Worker;
  globalThis.workers = 0;
  globalThis.Worker = class extends Native {
    constructor(url, options) {
      super(url, options);
      if (String(url).includes("calc-worker")) globalThis.workers += 1;
    }
    postMessage(message) {
      if (!globalThis.deaf || !String(message).includes('"do":"run"')) super.postMessage(message);
    }
  };
})();
"""
