"""The search finds the right chapter for what a reader would type: among the first three pages that it lists."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from playwright.sync_api import BrowserContext, Page
from serving import SiteServer

DOCS = Path(__file__).parents[2] / "docs"
FIRST = 3
QUERIES = (
    ("显存不够", "09"),
    ("为什么慢", "03"),
    ("梯度检查点", "09"),
    ("KV cache 多大", "16"),
    ("带宽墙", "03"),
    ("张量并行 通信", "12"),
    ("气泡", "13"),
    ("loss scaling", "06"),
    ("环形 allreduce", "05"),
    ("MFU 怎么算", "04"),
    ("FlashAttention 为什么快", "08"),
    ("碎片", "09"),
    ("LoRA 显存", "09"),
    ("屋顶线", "04"),
    ("算子融合", "07"),
    ("流水线并行", "13"),
    ("混合精度", "06"),
    ("数据并行 全局 batch", "10"),
    ("激活重计算", "09"),
    ("显存带宽", "03"),
    ("算力利用率", "04"),
    ("NVLink 带宽", "05"),
    ("占用率", "02"),
    ("怎么用这份教程", "00"),
    ("ZeRO-3 通信量", "11"),
    ("all-reduce", "05"),
    ("连续批处理", "17"),
    # from the middle of a phrase
    ("批处理", "17"),
    ("显存占用怎么算", "03"),
    ("吞吐和延迟", "17"),
    ("加卡为什么不快", "10"),
    ("续训", "21"),
    ("利用率 100%", "23"),
    ("缓存", "16"),
    ("草稿模型", "19"),
    ("省显存", "09"),
    ("4bit", "18"),
    ("学生模型", "18b"),
    ("稀疏", "18c"),
    ("要几张卡", "20"),
    ("去重", "22"),
    ("租还是买", "23"),
    ("首字延迟", "15"),
    ("专家并行", "14"),
    # Chinese and Latin glued
    ("kv缓存", "16"),
    ("GPU利用率", "23"),
    ("zero3", "11"),
)
FROM_DISK = QUERIES[::2]
PAGES = "[...document.querySelectorAll('.md-search-result__item')].map(item => item.querySelector('a').pathname.split('/').pop())"


def found(page: Page, server: SiteServer, query: str) -> list[str]:
    return ask(page, f"{server.url}index.html", query)


def ask(page: Page, home: str, query: str) -> list[str]:
    """The pages that the search lists, asked by the theme's own ``?q=``."""
    page.goto(f"{home}?q={quote(query)}")
    page.wait_for_function("/结果/.test(document.querySelector('.md-search-result__meta').textContent)", timeout=20_000)
    names: list[str] = page.evaluate(PAGES)
    return names


def test_the_right_chapter_comes_first(page: Page, server: SiteServer) -> None:
    missed = []
    for query, chapter in QUERIES:
        if not list(DOCS.glob(f"{chapter}-*.md")):
            continue  # not written yet
        names = found(page, server, query)
        if not any(name.startswith(f"{chapter}-") for name in names[:FIRST]):
            missed.append((query, chapter, names[:FIRST]))
    assert missed == []


def test_the_right_chapter_comes_first_from_a_disk(new_context: Callable[..., BrowserContext], server: SiteServer) -> None:
    page = new_context().new_page()
    missed = []
    for query, chapter in FROM_DISK:
        if list(DOCS.glob(f"{chapter}-*.md")):
            names = ask(page, (server.folder / "index.html").as_uri(), query)
            if not any(name.startswith(f"{chapter}-") for name in names[:FIRST]):
                missed.append((query, chapter, names[:FIRST]))
    assert missed == []


def test_search_words_show_nowhere(page: Page, server: SiteServer) -> None:
    assert "09-memory-optimization.html" in found(page, server, "显存不够")[:FIRST]
    assert not page.locator(".md-search-result .md-tags").first.is_visible()


def test_search_words_are_not_on_the_page(page: Page, server: SiteServer) -> None:
    page.goto(server.url + "09-memory-optimization.html")
    assert page.locator(".md-content .md-tags").count() == 0
