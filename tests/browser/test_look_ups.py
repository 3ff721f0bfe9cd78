"""Twenty look-ups in the cheat sheet, by the search and by its contents; narrow screens; paper."""

from __future__ import annotations

import io
import re
from urllib.parse import quote, unquote

import pytest
from playwright.sync_api import Browser, Page
from serving import SiteServer

PAGE = "appendix-a-cheatsheet.html"
FAST_S = 10
LOOKUPS = (
    ("全归约", "全归约 all-reduce"),
    ("reduce-scatter", "归约散播"),
    ("ridge point", "拐点"),
    ("屋脊点", "拐点"),
    ("接受率", "接受率 acceptance rate"),
    ("acceptance rate", "接受率"),
    ("首 token 延迟", "TTFT"),
    ("TTFT", "TTFT"),
    ("掉队者", "straggler"),
    ("bubble", "气泡 bubble"),
    ("GQA", "分组查询注意力"),
    ("NVLink bandwidth", "NVLink"),
    ("HBM 带宽", "带宽 bandwidth"),
    ("稠密峰值", "稠密峰值"),
    ("DP 门槛", "DP 门槛"),
    ("模型状态", "模型状态"),
    ("6ND", "6ND"),
    ("decode 下界", "decode 下界"),
    ("GiB", "GB 与 GiB"),
    ("万亿", "万亿"),
    ("MinHash", "LSH"),
)
"""What is typed, and words of the section's heading on which the search must land."""
HURRIED = (
    ("H100 带宽", "带宽 bandwidth"),
    ("NVLink 单向", "单向与双向"),
    ("H100 TFLOPS", "算力 compute"),
    ("7B 训练显存", "训练 training"),
    ("每参数 16 字节", "训练 training"),
    ("KV 每 token", "推理 inference"),
    ("MFU 公式", "计算公式"),
    ("激活值公式", "显存公式"),
    ("气泡公式", "流水线公式"),
    ("checkpoint 间隔", "可靠性与成本公式"),
    ("训练成本", "可靠性与成本公式"),
    ("B200 规格", "规格表 specs"),
    ("显卡参数", "规格表 specs"),
    ("H100 H200 对比", "两张卡对比"),
    ("GiB GB", "GB 与 GiB"),
    ("Gb/s GB/s", "Gb/s 与 GB/s"),
    ("bf16 字节", "精度与字节"),
    ("一天多少秒", "时间一天多少秒"),
    ("1B 是多少", "1B1T 是多少"),
    ("数量级", "数量级"),
    ("费米", "费米估算"),
    ("术语", "词汇表"),
)
"""As an engineer types in a hurry: the sheet must be among the first three pages, and the section among its hits."""
FIRST = 3
HITS = "[...document.querySelectorAll('.md-search-result__item')].map(i => [...i.querySelectorAll('a')].map(a => [a.pathname.split('/').pop(), a.hash]))"


@pytest.mark.parametrize(("typed", "heading"), LOOKUPS, ids=[typed for typed, _ in LOOKUPS])
def test_a_look_up_lands_on_its_section(page: Page, server: SiteServer, typed: str, heading: str) -> None:
    """The sheet is among the pages listed, and the section itself among its hits."""
    page.goto(f"{server.url}index.html?q={quote(typed)}")
    page.wait_for_function("/结果/.test(document.querySelector('.md-search-result__meta').textContent)", timeout=FAST_S * 1000)
    pages: list[list[list[str]]] = page.evaluate(HITS)
    sheet = next((i for i, hits in enumerate(pages) if hits[0][0] == PAGE), None)

    assert sheet is not None
    wanted = re.sub(r"[^\w-]", "", heading.replace(" ", "-")).lower()
    assert any(wanted in unquote(anchor) for _, anchor in pages[sheet]), [unquote(a) for _, a in pages[sheet]]


def test_what_a_hurried_engineer_types_finds_the_sheet_first(page: Page, server: SiteServer) -> None:
    missed = []
    for typed, heading in HURRIED:
        page.goto(f"{server.url}index.html?q={quote(typed)}")
        page.wait_for_function("/结果/.test(document.querySelector('.md-search-result__meta').textContent)", timeout=FAST_S * 1000)
        pages: list[list[list[str]]] = page.evaluate(HITS)
        anchors = [unquote(anchor) for hits in pages[:FIRST] if hits[0][0] == PAGE for _, anchor in hits]
        wanted = re.sub(r"[^\w-]", "", heading.replace(" ", "-")).lower()
        if not any(wanted in anchor for anchor in anchors):
            missed.append((typed, [hits[0][0] for hits in pages[:FIRST]], anchors[:6]))
    assert missed == []


@pytest.mark.parametrize("typed", ["token", "memory-bound", "all-gather"])
def test_the_search_is_mended(page: Page, server: SiteServer, typed: str) -> None:
    """These used to find nothing: see calculators/site/search_worker.py."""
    page.goto(f"{server.url}index.html?q={typed}")
    page.wait_for_function("/结果/.test(document.querySelector('.md-search-result__meta').textContent)", timeout=20_000)

    assert page.evaluate(HITS)


def test_the_contents_list_every_group(page: Page, server: SiteServer) -> None:
    page.goto(server.url + PAGE)
    listed = page.eval_on_selector_all(".md-sidebar--secondary a.md-nav__link", "links => links.map(a => decodeURIComponent(a.hash))")
    groups = page.eval_on_selector_all("article :is(h2, h3)[id]", "heads => heads.map(h => '#' + h.id)")

    assert [anchor for anchor in listed if anchor] == groups
    assert len(groups) > 30


def test_nothing_is_wider_than_a_phone(browser: Browser, server: SiteServer) -> None:
    context = browser.new_context(viewport={"width": 360, "height": 780})
    page = context.new_page()
    page.goto(server.url + PAGE)

    assert page.evaluate("document.documentElement.scrollWidth") == 360
    context.close()


def test_a_link_to_a_card_leads_to_that_card(page: Page, server: SiteServer) -> None:
    """Follow one link of each target page; the anchor exists there."""
    page.goto(server.url + PAGE)
    targets: list[str] = page.eval_on_selector_all("article a[href*='#calc-']:not(.fig)", "links => links.map(a => a.href)")
    by_page = {target.partition("#")[0]: target.partition("#")[2] for target in targets}

    assert len(by_page) > 15
    for url, anchor in by_page.items():
        page.goto(url)
        assert page.locator(f"[id='{anchor}']").count() == 1, (url, anchor)


def test_it_prints_on_its_own(page: Page, server: SiteServer) -> None:
    """On paper: no navigation, no buttons, and nothing cut off at the right."""
    page.goto(server.url + PAGE)
    page.emulate_media(media="print")
    hidden = ".md-header, .md-sidebar, .md-footer, .calc-actions, .fig-switch, .md-search"
    width = page.evaluate("document.querySelector('article').getBoundingClientRect().right")

    assert page.eval_on_selector_all(hidden, "all => all.filter(e => getComputedStyle(e).display !== 'none').map(e => e.className)") == []
    assert page.eval_on_selector_all("article table", f"all => all.filter(t => t.getBoundingClientRect().right > {width} + 1).length") == 0
    sheet = io.BytesIO(page.pdf(format="A4"))
    assert sheet.getvalue().startswith(b"%PDF")
