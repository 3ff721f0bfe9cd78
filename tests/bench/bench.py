"""``make bench``: one table of ratios, measured in one run on this machine.  Prints; asserts nothing about time."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "browser"))

from find_chromium import find  # noqa: E402 - the browser tests' own server and finder
from playwright.sync_api import Browser, Page, sync_playwright  # noqa: E402
from serving import SiteServer  # noqa: E402
from shaping import FarServer  # noqa: E402

from calculators.site.runtime import cached, manifest  # noqa: E402

FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run")
GC = ("--js-flags=--expose-gc", "--enable-precise-memory-info")
COLD_RUNS = int(os.environ.get("COLD_RUNS", "5"))
WARM_EVENTS, SLIDER_EVENTS, BUILD_RUNS = 200, 10_000, 3
PAGE = "03-memory-wall.html"
PLAIN_CARD, NUMPY_CARD = ("decode-bound", "ctx", "4096"), ("bandwidth-here", "mat_n", "128")
LINES = {"本机": (0, 0, False), "40 Mbit/s、40 ms": (40, 40, False), "40 Mbit/s、40 ms、服务器压缩": (40, 40, True)}
"""Megabits a second, milliseconds to an answer, does the server pack."""
BARE = """<!doctype html><title>bare</title><script type="module">
import {{ loadPyodide }} from "./assets/generated/{folder}pyodide.mjs";
globalThis.begin = async (packages) => {{
  const t = performance.now();
  const indexURL = new URL("./assets/generated/{folder}", location.href).href;
  const pyodide = await loadPyodide({{ indexURL, packageBaseUrl: indexURL, lockFileContents: {lock} }});
  if (packages) await pyodide.loadPackage("numpy");
  pyodide.runPython(packages ? "import numpy; 14 / 0.05" : "14 / 0.05");
  return performance.now() - t;
}};
</script>"""

Row = tuple[str, str, str]


def main() -> int:
    chromium = find()
    if chromium is None:
        print("没有 Chromium：先运行 python tests/browser/find_chromium.py", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as scratch:
        site = Path(scratch) / "site"
        server = SiteServer(site)
        subprocess.run(
            [sys.executable, "-m", "calculators", "build", "--site-dir", str(site), "--site-url", server.url], cwd=ROOT, check=True, capture_output=True
        )
        write_bare_page(site)
        show("量什么", "量到", "标准")
        report(sizes(site))
        with sync_playwright() as p:

            def launch(*more: str) -> Browser:
                return p.chromium.launch(executable_path=chromium, args=[*FLAGS, *more])

            report(untouched(launch, server))
            for name, line in LINES.items():
                report(cold(launch, site, name, line))
            report(warm(launch, server))
        server.close()
        report(builds(Path(scratch)))
    return 0


def report(rows: Iterable[Row]) -> None:
    for row in rows:
        show(*row)


def show(name: str, value: str, bar: str) -> None:
    print(f"{name}{' ' * (58 - wide(name))}  {value}{' ' * (42 - wide(value))}  {bar}", flush=True)


def wide(text: str) -> int:
    return sum(2 if ord(c) > 0x2E7F else 1 for c in text)


def write_bare_page(site: Path) -> None:
    """The yardstick: the same Pyodide on a page with nothing else, with the numpy that Pyodide publishes."""
    folder = manifest().folder
    wheel = manifest().wheel("numpy")
    shutil.copyfile(cached(wheel), site / "assets/generated" / wheel.path)
    lock = json.dumps(json.dumps(manifest().lock()))
    (site / "bare.html").write_text(BARE.format(folder=f"{folder}/", lock=lock), encoding="utf-8")


def sizes(site: Path) -> list[Row]:
    own = [p for p in (site / "assets").glob("calc*") if p.suffix in (".js", ".mjs", ".css")] + [site / "assets/generated/book.js"]
    packed = sum(len(gzip.compress(p.read_bytes(), 9)) for p in own)
    runtime = [p for p in (site / "assets/generated").rglob("*") if p.is_file()]
    return [
        ("我们的 JS + CSS，gzip", f"{packed / 1000:.1f} KB", "≤ 60 KB"),
        ("运行时与打包，磁盘", f"{sum(p.stat().st_size for p in runtime) / 1e6:.1f} MB", ""),
    ]


@contextmanager
def fresh_page(launch: Callable[..., Browser], *flags: str) -> Iterator[Page]:
    """A page of a browser that has never seen the site: nothing cached, nothing compiled."""
    browser = launch(*flags)
    yield browser.new_page(viewport={"width": 1280, "height": 900})
    browser.close()


def untouched(launch: Callable[..., Browser], server: SiteServer) -> Iterator[Row]:
    with fresh_page(launch) as page:
        server.reset()
        page.goto(server.url + PAGE)
        page.wait_for_timeout(1500)
        asked = [n for n in server.asked if n.endswith((".wasm", ".whl", ".bin")) or "pyodide" in n or n.startswith(("stdlib", "calculators-"))]
    yield "碰卡片以前请求的 Pyodide 文件", f"{len(asked)} 个", "0 个"


def cold(launch: Callable[..., Browser], site: Path, name: str, line: tuple[float, float, bool]) -> Iterator[Row]:
    """First touch → first recalculated number, against the bare page; trials alternate, medians."""
    server = FarServer(site, *line)
    bars = {False: "≤ 0.25" if not line[0] else "≤ 0.45", True: "≤ 0.6"}
    for numpy in (False, True):
        bare_ms, bare_mb, our_ms, our_mb, longest = [], [], [], [], []
        for _ in range(COLD_RUNS):
            with fresh_page(launch) as page:
                page.goto(server.url + "bare.html")
                page.wait_for_function("typeof begin === 'function'")  # a function itself would be called
                before = server.sent
                bare_ms.append(float(page.evaluate(f"begin({'true' if numpy else 'false'})")))
                bare_mb.append((server.sent - before) / 1e6)
            with fresh_page(launch) as page:
                open_card(page, server.url, *PLAIN_CARD[:1])
                page.wait_for_timeout(1000)  # the theme's search has its index
                before = server.sent
                page.evaluate(WATCH_LONG_TASKS)
                our_ms.append(float(page.evaluate(CHANGE, list(NUMPY_CARD if numpy else PLAIN_CARD))))
                our_mb.append((server.sent - before) / 1e6)
                longest.append(float(page.evaluate("new Promise((done) => setTimeout(() => done(longest), 100))")))
        bare, ours = statistics.median(bare_ms), statistics.median(our_ms)
        amount = f"；{statistics.median(our_mb):.1f} MB ÷ {statistics.median(bare_mb):.1f} MB"
        yield f"冷启动 ÷ 裸 Pyodide{' + numpy' if numpy else ''}，{name}", f"{ours / bare:.2f}（{ours:.0f} ms ÷ {bare:.0f} ms{amount}）", bars[numpy]
        if not numpy:
            yield f"　其间主线程最长的一次占用，{name}", f"{statistics.median(longest):.0f} ms", "≤ 50 ms"
    server.close()


WATCH_LONG_TASKS = """() => {
  globalThis.longest = 0; // a task shorter than 50 ms is not reported
  new PerformanceObserver((list) => list.getEntries().forEach(({ duration }) => (longest = Math.max(longest, duration)))).observe({ type: "longtask" });
}"""
CHANGE = """([id, name, text]) => new Promise((done) => {
  const card = document.getElementById(`calc-${id}-1`), result = card.querySelector('[data-role="result"]');
  const control = card.querySelector(`[name="${name}"]`);
  const t = performance.now();
  new MutationObserver((_, watch) => { watch.disconnect(); done(performance.now() - t); }).observe(result, { childList: true });
  control.dispatchEvent(new FocusEvent("focusin", { bubbles: true }));
  control.value = text;
  control.dispatchEvent(new Event("input", { bubbles: true }));
})"""
SLIDE = """([id, name, events]) => new Promise(async (done) => {
  const card = document.getElementById(`calc-${id}-1`);
  const slider = card.querySelector(`.calc-slider[data-for="${name}"]`);
  for (let i = 0; i < events; i++) {
    slider.value = i % (Number(slider.max) + 1);
    slider.dispatchEvent(new Event("input", { bubbles: true }));
    if (i % 10 === 9) await new Promise((next) => setTimeout(next));
  }
  const wait = () => (card.dataset.state ? setTimeout(wait, 20) : done());
  wait();
})"""


def open_card(page: Page, url: str, id: str, path: str = PAGE) -> None:
    page.goto(url + path)
    page.wait_for_selector(f"#calc-{id}-1 .calc-fields:not([disabled])")


def warm(launch: Callable[..., Browser], server: SiteServer) -> Iterator[Row]:
    """Change → result in the DOM, Python already running; and what many slider events leave in memory."""
    with fresh_page(launch, *GC) as page:
        open_card(page, server.url, "roofline", "04-roofline-mfu.html")
        page.evaluate(CHANGE, ["roofline", "m", "7"])
        times = sorted(float(page.evaluate(CHANGE, ["roofline", "m", str(100 + i)])) for i in range(WARM_EVENTS))
        yield "改一个数 → 结果与图更新", f"中位 {statistics.median(times):.1f} ms，p95 {times[int(len(times) * 0.95)]:.1f} ms", "≤ 8 ms，≤ 33 ms"
        page.evaluate(SLIDE, ["roofline", "m", SLIDER_EVENTS // 10])
        before = heaps(page)
        page.evaluate(SLIDE, ["roofline", "m", SLIDER_EVENTS])
        grown = [after - earlier for after, earlier in zip(heaps(page), before, strict=True)]
        yield f"{SLIDER_EVENTS} 次滑动后的堆：页面，Worker", f"{grown[0] / 1e6:+.2f} MB，{grown[1] / 1e6:+.2f} MB", "< 1 MB"


def heaps(page: Page) -> tuple[float, float]:
    """Bytes in use after a collection: the page's JavaScript; the worker's, Python's memory among them."""
    page.evaluate("gc(); gc()")
    own = float(page.evaluate("performance.memory.usedJSHeapSize"))
    browser = page.context.browser
    assert browser is not None
    session = browser.new_browser_cdp_session()
    target = next(t for t in session.send("Target.getTargets", {"filter": [{}]})["targetInfos"] if "calc-worker" in t["url"])
    answers: list[str] = []
    session.on("Target.receivedMessageFromTarget", lambda event: answers.append(event["message"]))
    attached = session.send("Target.attachToTarget", {"targetId": target["targetId"], "flatten": False})["sessionId"]
    for number, method in enumerate(("HeapProfiler.collectGarbage", "Runtime.getHeapUsage")):
        session.send("Target.sendMessageToTarget", {"sessionId": attached, "message": json.dumps({"id": number, "method": method})})
        while len(answers) <= number:
            page.wait_for_timeout(20)
    session.detach()
    usage = json.loads(answers[-1])["result"]
    return own, float(usage["usedSize"] + usage.get("backingStorageSize", 0))


def builds(scratch: Path) -> Iterator[Row]:
    """The book and its first chapters, against plain MkDocs on the same Markdown without fences; result cache warm and empty."""
    chapters = sorted(p.name for p in (ROOT / "docs").glob("[0-9]*.md"))
    for number in (10, len(chapters)):
        left_out = {*chapters[number:], "references.md"}  # the list of sources wants every chapter
        ours = book(scratch / f"ours-{number}", left_out, plain=False)
        base = timed_build(book(scratch / f"plain-{number}", left_out, plain=True))
        cache = {"AI_INFRA_CACHE": str(scratch / f"cache-{number}")}
        empty, full = timed_build(ours, cache, runs=1), timed_build(ours, cache)
        yield f"构建 {number} 章 ÷ 纯 MkDocs，结果缓存是热的", f"{full / base:.2f}（{full:.1f} s ÷ {base:.1f} s）", "≤ 2"
        yield f"构建 {number} 章 ÷ 纯 MkDocs，结果缓存是空的", f"{empty / base:.2f}（{empty:.1f} s）", "≤ 5"


def book(folder: Path, left_out: set[str], plain: bool) -> Path:
    """A copy of the book without some chapters; ``plain``: without our fences, links and extension."""
    shutil.copytree(ROOT / "docs", folder / "docs", ignore=shutil.ignore_patterns(*left_out, *(["generated"] if plain else [])))
    for page in (folder / "docs").glob("*.md") if plain else ():
        text = re.sub(r"^```+(?:calc|calc-table|check|log|guide|my-config)\b.*?^```+$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        page.write_text(re.sub(r"\]\((?:calc|spec|ref):[^)]*\)", "](index.md)", text), encoding="utf-8")
    (folder / "tests").symlink_to(ROOT / "tests")  # quoted logs stand there
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").replace("strict: true", "strict: false")
    if plain:
        config = config.replace("  - calculators.site.extension\n", "")
    (folder / "mkdocs.yml").write_text(re.sub(r"^nav:\n(?:[ #].*\n|\n)*", "", config, flags=re.MULTILINE), encoding="utf-8")
    return folder


def timed_build(folder: Path, extra: Mapping[str, str] | None = None, runs: int = BUILD_RUNS) -> float:
    times = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as out:
            start = time.perf_counter()
            subprocess.run(
                [sys.executable, "-m", "mkdocs", "build", "-q", "-d", out],
                cwd=folder,
                check=True,
                capture_output=True,
                env={**os.environ, "NO_MKDOCS_2_WARNING": "1", **(extra or {})},
            )
            times.append(time.perf_counter() - start)
    return statistics.median(times)


if __name__ == "__main__":
    sys.exit(main())
