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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "browser"))

from find_chromium import find  # noqa: E402 - the browser tests' own server and finder
from playwright.sync_api import Browser, Page, sync_playwright  # noqa: E402
from serving import SiteServer  # noqa: E402

FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run")
COLD_RUNS, WARM_EVENTS, BUILD_RUNS = 3, 200, 3
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
        rows: list[tuple[str, str, str]] = [*sizes(site)]
        with sync_playwright() as p:
            browser = p.chromium.launch(executable_path=chromium, args=list(FLAGS))
            rows += untouched(browser, server)
            rows += cold(browser, server)
            rows += warm(browser, server)
            browser.close()
        server.close()
        rows += builds(Path(scratch))
    width = max(wide(r[0]) for r in rows)
    for name, value, bar in rows:
        print(f"{name}{' ' * (width - wide(name))}  {value:<34}{bar}")
    return 0


def wide(text: str) -> int:
    return sum(2 if ord(c) > 0x2E7F else 1 for c in text)


def write_bare_page(site: Path) -> None:
    """The yardstick: the same Pyodide files on a page with nothing else."""
    book = json.loads(re.sub(r"^.*?=\s*|;\s*$", "", (site / "assets/generated/book.js").read_text(encoding="utf-8"), flags=re.DOTALL))
    lock = json.dumps(json.dumps(book["pyodide"]["lock"]))
    (site / "bare.html").write_text(BARE.format(folder=book["pyodide"]["folder"], lock=lock), encoding="utf-8")


def sizes(site: Path) -> list[tuple[str, str, str]]:
    own = [p for p in (site / "assets").glob("calc*") if p.suffix in (".js", ".mjs", ".css")] + [site / "assets/generated/book.js"]
    packed = sum(len(gzip.compress(p.read_bytes(), 9)) for p in own)
    runtime = [p for p in (site / "assets/generated").rglob("*") if p.is_file()]
    return [
        ("我们的 JS + CSS，gzip", f"{packed / 1000:.1f} KB", "≤ 60 KB"),
        ("运行时与打包，磁盘", f"{sum(p.stat().st_size for p in runtime) / 1e6:.1f} MB", ""),
    ]


@contextmanager
def fresh_page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    yield context.new_page()
    context.close()


def untouched(browser: Browser, server: SiteServer) -> list[tuple[str, str, str]]:
    with fresh_page(browser) as page:
        server.reset()
        page.goto(server.url + "03-memory-wall.html")
        page.wait_for_timeout(1500)
        asked = [n for n in server.asked if n.endswith((".wasm", ".whl")) or "pyodide" in n or n.startswith(("stdlib", "calculators-"))]
    return [("碰卡片以前请求的 Pyodide 文件", f"{len(asked)} 个", "0 个")]


def cold(browser: Browser, server: SiteServer) -> list[tuple[str, str, str]]:
    """First touch → first recalculated number, against the bare page; interleaved, medians."""
    kinds: dict[str, tuple[Callable[[Page], float], Callable[[Page], float]]] = {
        "冷启动": (lambda p: bare(p, server, False), lambda p: touch(p, server, "03-memory-wall.html", "decode-bound", "ctx", "4096")),
        "冷启动（numpy 卡片）": (lambda p: bare(p, server, True), lambda p: touch(p, server, "03-memory-wall.html", "bandwidth-here", "mat_n", "128")),
    }
    bars = {"冷启动": "≤ 0.25（快照之后；.pyc 约 0.39）", "冷启动（numpy 卡片）": "≤ 0.6"}
    rows = []
    for name, (yardstick, ours) in kinds.items():
        a, b = [], []
        for _ in range(COLD_RUNS):
            with fresh_page(browser) as page:
                a.append(yardstick(page))
            with fresh_page(browser) as page:
                b.append(ours(page))
        base, own = statistics.median(a), statistics.median(b)
        rows.append((f"{name}，与裸 Pyodide 之比", f"{own / base:.2f}（{own:.0f} ms ÷ {base:.0f} ms）", bars[name]))
    return rows


def bare(page: Page, server: SiteServer, numpy: bool) -> float:
    page.goto(server.url + "bare.html")
    page.wait_for_function("globalThis.begin")
    return float(page.evaluate(f"begin({'true' if numpy else 'false'})"))


CHANGE = """([id, name, text]) => new Promise((done) => {
  const card = document.getElementById(`calc-${id}-1`), result = card.querySelector('[data-role="result"]');
  const control = card.querySelector(`[name="${name}"]`);
  const t = performance.now();
  new MutationObserver((_, watch) => { watch.disconnect(); done(performance.now() - t); }).observe(result, { childList: true });
  control.dispatchEvent(new FocusEvent("focusin", { bubbles: true }));
  control.value = text;
  control.dispatchEvent(new Event("input", { bubbles: true }));
})"""


def touch(page: Page, server: SiteServer, path: str, id: str, name: str, text: str) -> float:
    page.goto(server.url + path)
    page.wait_for_selector(f"#calc-{id}-1 .calc-fields:not([disabled])")
    return float(page.evaluate(CHANGE, [id, name, text]))


def warm(browser: Browser, server: SiteServer) -> list[tuple[str, str, str]]:
    """Change → result in the DOM, Python already running; and what many events leave in memory."""
    with fresh_page(browser) as page:
        touch(page, server, "04-roofline-mfu.html", "roofline", "m", "7")
        times = sorted(float(page.evaluate(CHANGE, ["roofline", "m", str(100 + i)])) for i in range(WARM_EVENTS))
        heap = "() => { globalThis.gc?.(); return performance.memory.usedJSHeapSize; }"
        before = page.evaluate(heap)
        for i in range(WARM_EVENTS):
            page.evaluate(CHANGE, ["roofline", "m", str(1000 + i)])
        grown = (page.evaluate(heap) - before) / 1e6
    return [
        ("改一个数 → 结果与图更新", f"中位 {statistics.median(times):.1f} ms，p95 {times[int(len(times) * 0.95)]:.1f} ms", "≤ 8 ms，≤ 33 ms"),
        (f"再改 {WARM_EVENTS} 次后页面堆增长", f"{grown:+.1f} MB", "< 1 MB（10 000 次）"),
    ]


def builds(scratch: Path) -> list[tuple[str, str, str]]:
    """Strict build with a cold and a warm result cache, against plain MkDocs on the same Markdown without fences."""
    plain = scratch / "plain"
    shutil.copytree(ROOT / "docs", plain / "docs", ignore=shutil.ignore_patterns("generated"))
    for page in (plain / "docs").glob("*.md"):
        text = re.sub(r"^```+(?:calc|calc-table|check|log|guide)\b.*?^```+$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        page.write_text(re.sub(r"\]\((?:calc|spec|ref):[^)]*\)", "](index.md)", text), encoding="utf-8")
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").replace("  - calculators.site.extension\n", "")
    (plain / "mkdocs.yml").write_text(re.sub(r"\n    - \w*/?assets/generated/iframe-worker.js", "\n    - assets/iframe-worker.js", config), encoding="utf-8")
    base = timed_build(plain, {})
    cache = {"AI_INFRA_CACHE": str(scratch / "cache")}
    cold_s = timed_build(ROOT, cache, runs=1)
    warm_s = timed_build(ROOT, cache)
    return [
        ("构建，结果缓存是热的，与纯 MkDocs 之比", f"{warm_s / base:.2f}（{warm_s:.1f} s ÷ {base:.1f} s）", "≤ 2"),
        ("构建，结果缓存是空的", f"{cold_s / base:.2f}（{cold_s:.1f} s）", "≤ 5"),
    ]


def timed_build(folder: Path, extra: dict[str, str], runs: int = BUILD_RUNS) -> float:
    times = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as out:
            start = time.perf_counter()
            subprocess.run(
                [sys.executable, "-m", "mkdocs", "build", "-q", "-d", out],
                cwd=folder,
                check=True,
                capture_output=True,
                env={**os.environ, "NO_MKDOCS_2_WARNING": "1", **extra},
            )
            times.append(time.perf_counter() - start)
    return statistics.median(times)


if __name__ == "__main__":
    sys.exit(main())
