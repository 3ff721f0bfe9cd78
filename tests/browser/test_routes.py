"""A reader's way: the five routes on a phone, back after an interruption, self-test, print, and all that without storage."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from cards import cards
from playwright.sync_api import BrowserContext, Page, expect
from serving import SiteServer

from calculators.catalog.chapters import chapters, routes

DOCS = Path(__file__).parents[2] / "docs"
WRITTEN = [id for id, c in chapters().items() if (DOCS / f"{c.slug}.md").exists()]
PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True}
BLOCKED = """for (const name of ['localStorage', 'sessionStorage'])
  Object.defineProperty(globalThis, name, { configurable: true, get() { throw new DOMException('blocked', 'SecurityError'); } });"""
FULL = "Storage.prototype.setItem = () => { throw new DOMException('full', 'QuotaExceededError'); };"


def stations(route: str) -> list[str]:
    return [id for id in routes()[route].chapters if id in WRITTEN]


def slug(id: str) -> str:
    return chapters()[id].slug


def to_the_foot(page: Page) -> None:
    page.locator("book-guide").scroll_into_view_if_needed()


@pytest.mark.parametrize("route", sorted(routes()))
def test_a_route_leads_through_its_stations(route: str, new_context: Callable[..., BrowserContext], server: SiteServer) -> None:
    page = new_context(**PHONE).new_page()
    page.goto(server.url + "index.html")
    page.locator(f'[data-route="{route}"]').tap()
    way = stations(route)
    for i, id in enumerate(way):
        page.wait_for_url(f"**/{slug(id)}.html*")
        place = page.locator(".place-route")
        rest = sum(chapters()[s].minutes for s in way[i:])
        expect(place).to_contain_text(f"第 {i + 1} 站，共 {len(way)} 站")
        expect(place).to_contain_text(f"含这一章还剩 {rest} 分钟")
        to_the_foot(page)
        if i + 1 < len(way):
            expect(place.locator("a")).to_have_text(chapters()[way[i + 1]].heading)
            page.locator(".on-route .guide-next").tap()
    page.locator('[data-act="read"]').tap()
    expect(page.locator(".on-route")).to_contain_text("走完了")
    page.get_by_role("button", name="离开路线").tap()
    expect(page.locator(".place-route")).to_have_count(0)
    expect(page.locator(".on-route")).to_have_count(0)
    page.reload()
    expect(page.locator("book-place")).to_be_attached()
    expect(page.locator(".place-route")).to_have_count(0)


def test_a_link_chooses_a_route_and_an_unknown_one_is_ignored(page: Page, server: SiteServer) -> None:
    page.goto(server.url + f"{slug('16')}.html?route=serve")
    expect(page.locator(".place-route")).to_contain_text("要部署推理服务")
    page.goto(server.url + f"{slug('16')}.html?route=%3Cb%3E__proto__")
    expect(page.locator(".place-route")).to_contain_text("要部署推理服务")
    page.goto(server.url + f"{slug('10')}.html")
    expect(page.locator(".place-route")).to_contain_text("这一章不在路线上")
    expect(page.locator(".on-route .guide-next")).to_contain_text("回到路线")


@pytest.mark.parametrize("trouble", [BLOCKED, FULL], ids=["blocked", "full"])
def test_without_storage_the_route_travels_in_the_address(trouble: str, new_context: Callable[..., BrowserContext], server: SiteServer) -> None:
    context = new_context(viewport={"width": 1280, "height": 900})
    context.add_init_script(trouble)
    page = context.new_page()
    page.goto(server.url + f"{slug('03')}.html?route=serve")
    expect(page.locator(".place-route")).to_contain_text("关掉这一页就忘")
    to_the_foot(page)
    page.goto(page.locator(".on-route .guide-next").evaluate("a => a.href"))  # a full load, as a new tab makes
    expect(page.locator(".place-route")).to_contain_text("第 2 站")
    cards(page)


def test_the_interrupted_reader_is_offered_the_place_and_the_points_before_it(new_context: Callable[..., BrowserContext], server: SiteServer) -> None:
    context = new_context(**PHONE)
    page = context.new_page()
    page.goto(server.url + f"{slug('17')}.html?route=serve")
    assert page.locator(".place-back").count() == 0
    heading = page.locator(".md-content h2").nth(3)
    title = heading.evaluate("h => h.firstChild.textContent.trim()")
    heading.evaluate("h => h.scrollIntoView()")
    page.wait_for_function("localStorage['aiinfra.v1.place']")
    page.close()

    for path in ("index.html", f"{slug('03')}.html", "errata.html"):
        back = context.new_page()
        back.goto(server.url + path)
        offer = back.locator(".place-back")
        expect(offer).to_contain_text(f"上次读到 {chapters()['17'].heading} § {title}")
        assert [len(t) > 10 for t in offer.locator("li").all_text_contents()] == [True] * 3
        expect(offer.locator("summary")).to_contain_text(chapters()["16"].heading)  # the chapter before, along the route
        back.close()

    back = context.new_page()
    back.goto(server.url + "index.html")
    back.locator(".place-back a").tap()
    back.wait_for_url(f"**/{slug('17')}.html*")
    expect(back.locator(".md-content h2").nth(3)).to_be_in_viewport()
    back.goto(server.url + "index.html")
    back.get_by_role("button", name="不用了").tap()
    expect(back.locator(".place-back")).to_have_count(0)
    back.reload()
    expect(back.locator("book-place")).to_be_attached()
    expect(back.locator(".place-back")).to_have_count(0)


def test_what_was_read_is_marked_in_the_navigation_and_can_be_unmarked(page: Page, server: SiteServer) -> None:
    page.goto(server.url + f"{slug('05')}.html")
    entry = page.locator(f'.md-nav--primary a[href$="{slug("05")}.html"], .md-nav--primary .md-nav__link--active[href]').last
    to_the_foot(page)
    expect(page.locator('[data-act="read"]')).to_have_attribute("aria-pressed", "false")  # seen is not read
    page.locator('[data-act="read"]').click()
    expect(entry).to_have_class(re.compile("is-read"))
    page.locator('[data-act="read"]').click()
    expect(page.locator('[data-act="read"]')).to_have_attribute("aria-pressed", "false")
    expect(entry).not_to_have_class(re.compile("is-read"))


def test_answers_are_judged_rated_listed_and_carried_over(page: Page, server: SiteServer, tmp_path: Path) -> None:
    page.goto(server.url + f"{slug('15')}.html")
    field = page.locator("book-check").first
    n = int(field.get_attribute("data-n") or 0)
    value = float(field.get_attribute("data-value") or 0)
    field.locator("input").fill("不是数")
    field.locator("input").press("Enter")
    expect(field.locator('[data-role="said"]')).to_contain_text("没看懂", timeout=60_000)
    field.locator("input").fill(f"{value * 2}")
    field.locator("button").click()
    expect(field.locator('[data-role="said"]')).to_contain_text("不对")
    page.locator(".answers summary").first.click()
    page.locator(".check-rate").first.get_by_text("还不会").click()
    expect(page.locator(".check-rate [aria-pressed=true]").first).to_have_text("还不会")
    expect(page.locator(".check-rate [aria-pressed=true]")).to_have_count(2)  # the wrong number counts as well
    page.locator(".calc-guess input").first.click()
    to_the_foot(page)
    expect(page.locator('[data-role="score"]')).to_contain_text(re.compile(r"猜对 [01]/1"))

    page.goto(server.url + "self-test.html")
    weak = page.locator('[data-role="weak"] li:has(a[href*="#check-"])')
    expect(weak).to_have_count(2)
    for link in weak.locator("a").all():
        target = link.evaluate("a => a.href")
        with page.context.expect_page() as opened:
            page.evaluate("url => open(url)", target)
        expect(opened.value.locator(f'[id="{target_id(target)}"]')).to_be_attached()
        opened.value.close()
    with page.expect_download() as saved:
        page.get_by_role("button", name="导出").click()
    file = tmp_path / "progress.json"
    saved.value.save_as(file)
    page.get_by_role("button", name="全部清除").click()
    expect(weak).to_have_count(2)  # a slip of the finger erases nothing
    page.get_by_role("button", name="再点一次").click()
    expect(weak).to_have_count(0)
    assert page.evaluate("Object.keys(localStorage).filter(k => k.startsWith('aiinfra.')).length") == 0
    page.locator('book-self-test input[type="file"]').set_input_files(file)
    expect(weak).to_have_count(2)

    page.goto(server.url + f"{slug('15')}.html")
    field.locator("input").fill(f"{value}")
    field.locator("button").click()
    expect(field).to_have_attribute("data-right", "true", timeout=60_000)
    page.goto(server.url + "self-test.html")
    expect(weak).to_have_count(1 if n != 1 else 0)


def target_id(url: str) -> str:
    from urllib.parse import unquote

    return unquote(url.partition("#")[2])


@pytest.mark.parametrize("text", ["", "{}", "[]", "no", '{"schema": 2, "kept": {}}', '{"schema": 1, "kept": {"a": 1}}'])
def test_a_file_that_is_no_export_changes_nothing(text: str, page: Page, server: SiteServer) -> None:
    page.goto(server.url + "self-test.html")
    page.evaluate("localStorage['aiinfra.v1.read'] = JSON.stringify({'03': '2026-11-30'})")
    page.locator('book-self-test input[type="file"]').set_input_files({"name": "x.json", "mimeType": "application/json", "buffer": text.encode()})
    expect(page.locator('book-self-test [data-role="said"]')).to_contain_text("没有导入，原来的还在")
    assert page.evaluate("localStorage['aiinfra.v1.read']") == '{"03":"2026-11-30"}'


def test_stored_nonsense_harms_no_page(page: Page, server: SiteServer) -> None:
    """Another version, another program or an attacker's file may have written anything under our names."""
    page.goto(server.url + "index.html")
    evil = '<img src=x onerror="globalThis.hit=1">'
    for junk in (
        "5",
        "null",
        "[]",
        '"x"',
        "{",
        json.dumps({"1": {"ok": False, "question": evil, "at": f"javascript:{evil}", "section": evil}}),
        json.dumps({"chapter": "03", "at": 1}),
    ):
        page.evaluate(
            "junk => { for (const k of ['route', 'read', 'place', 'check.03', 'guess.03', 'mine', 'figures']) localStorage['aiinfra.v1.' + k] = junk; }", junk
        )
        for path in ("index.html", f"{slug('03')}.html", "self-test.html"):
            page.goto(server.url + path)
            expect(page.locator("book-place")).to_be_attached()
    assert page.evaluate("globalThis.hit") is None
    assert page.locator("[data-role=weak] img").count() == 0


def test_questions_lead_to_sections_that_exist(page: Page, server: SiteServer) -> None:
    for id in WRITTEN:
        page.goto(server.url + f"{slug(id)}.html")
        lost = page.evaluate("[...document.querySelectorAll('[data-at]')].map(q => q.dataset.at.slice(1)).filter(at => !document.getElementById(at))")
        assert lost == [], id


def test_paper_and_readers_without_scripts_get_the_plain_order(page: Page, new_context: Callable[..., BrowserContext], server: SiteServer) -> None:
    page.goto(server.url + f"{slug('04')}.html?route=serve")
    expect(page.locator(".guide.on-route")).to_be_visible()
    page.emulate_media(media="print")
    expect(page.locator(".guide.on-route")).to_be_hidden()
    expect(page.locator(".guide:not(.on-route) .guide-next")).to_be_visible()
    expect(page.locator(".guide:not(.on-route) .guide-next")).to_contain_text(chapters()["05"].heading)
    expect(page.locator("book-place")).to_be_hidden()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator(".answers details:not([open])").count() == 0
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator(".answers details[open]").count() == 0

    silent = new_context(java_script_enabled=False, **PHONE).new_page()
    silent.goto(server.url + f"{slug('04')}.html?route=serve")
    expect(silent.locator(".guide-next")).to_contain_text(chapters()["05"].heading)
    expect(silent.locator("book-check").first).to_be_hidden()


def test_nothing_jumps_while_a_page_comes_alive(new_context: Callable[..., BrowserContext], server: SiteServer) -> None:
    """With a route and an offer in place: what the scripts add is there before the first paint."""
    context = new_context(**PHONE)
    context.add_init_script(
        "globalThis.shift = 0; new PerformanceObserver(l => l.getEntries().forEach(e => shift += e.hadRecentInput ? 0 : e.value)).observe({type: 'layout-shift', buffered: true});"
    )
    first = context.new_page()
    first.goto(server.url + f"{slug('17')}.html?route=serve")
    first.locator(".md-content h2").nth(2).evaluate("h => h.scrollIntoView()")
    first.wait_for_function("localStorage['aiinfra.v1.place']")
    first.close()
    for path in ("index.html", f"{slug('03')}.html", f"{slug('16')}.html", "my-model.html"):
        page = context.new_page()
        page.goto(server.url + path)
        cards(page)
        page.wait_for_timeout(300)
        assert page.evaluate("shift") < 0.02, path
        page.close()


def test_a_reference_opens_its_entry(page: Page, server: SiteServer) -> None:
    page.goto(server.url + f"{slug('01')}.html")
    cards(page)
    page.locator("a.fig-fact").first.click()
    page.wait_for_timeout(400)  # the theme stores the scroll position late: who clicks within that time lands there
    page.locator('.fig-note [data-role="open-source"]').click()
    page.wait_for_url("**/references.html#ref-*")
    expect(page.locator(f'[id="{target_id(page.url)}"]')).to_be_in_viewport()


def test_a_report_carries_chapter_calculator_and_inputs(page: Page, server: SiteServer) -> None:
    page.goto(server.url + f"{slug('00')}.html")
    card = cards(page)[1]
    card.locator('[data-act="report"]').click()
    text = card.locator("textarea.report").input_value()
    for part in ("页面：00 · 怎么用这份教程", f"计算器：{card.get_attribute('data-id')}~1", "输入：", "结果：", "我看到的："):
        assert part in text
    page.locator("book-guide [data-act=report]").click()
    assert "计算器" not in page.locator("book-guide textarea.report").input_value()
