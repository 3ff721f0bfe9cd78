"""What strangers hand a reader: links, pasted and dropped files, imported files.  Seeded, and capped in time.

No markup of theirs reaches the page, nothing beyond the site is asked for, no error is thrown (the fixture looks at that).
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from cards import cards, settle
from playwright.sync_api import FilePayload, Page
from serving import PREFIX, SiteServer
from test_cards import ID, PAGE, opened
from test_every_card import PATIENT
from test_mine import CONFIG, json_file

SEED = 20261130
MOST_S = 8.0
EVIL = (
    "<img src=x onerror=hit()>", '"><svg onload=hit()>', "<script>hit()</script>", "javascript:hit()", "</textarea><iframe src=//evil.example>", "' onfocus=hit() autofocus '",
    "../../../../etc/passwd", "..%2f..%2fbook.js", "file:///etc/passwd", "//evil.example/x.js", "https://evil.example/", "data:text/html,<script>hit()</script>",
    "__proto__", "constructor", "toString", "{{7*7}}", "${hit()}", "{hit}", "%s%n", "\u202e\u2066", "\x00", "\ud800", "\U0001f4a5" * 40, "９９", "1e999", "-0", "NaN", "nan", "1_000",
    "９e９", "0x10", "∞", "", " ", "9" * 400, "a" * 5000, "[" * 3000, "{" * 3000, '{"a":' * 2000, "null", "true", "[]", "{}", "{", "%", "%E0%A4%A", "&", "=", "#", "~1", f"{ID}~1", "~", "&i.",
)  # fmt: skip
MARKS = "img[src='x'], iframe[src*='evil'], script:not([src]), [onerror], [onload], [onfocus], object, embed, base"
COUNT = f"""() => document.querySelectorAll("{MARKS}").length
  + [...document.links].filter(a => a.protocol === "javascript:" || a.hostname.includes("evil")).length"""


def text_of(chance: random.Random) -> str:
    parts = [chance.choice(EVIL) for _ in range(chance.choice((1, 1, 1, 2, 3)))]
    return chance.choice(("", "", "8", "{")) + chance.choice(("", " ", ",")).join(parts)


def value_of(chance: random.Random, depth: int = 3) -> object:
    """JSON as somebody's program might write it."""
    kind = chance.randrange(8 if depth else 6)
    if kind == 6:
        return [value_of(chance, depth - 1) for _ in range(chance.randrange(4))]
    if kind == 7:
        return {text_of(chance): value_of(chance, depth - 1) for _ in range(chance.randrange(4))}
    return (text_of(chance), chance.randrange(-5, 10**6), chance.choice((1e308, -1e308, 0.1, 1e-320)), None, chance.random() < 0.5, "8")[kind]


def limited(most_s: float = MOST_S) -> Iterator[random.Random]:
    """The same sequence every time; a slow machine sees less of it."""
    chance = random.Random(SEED)
    end = time.monotonic() + most_s
    while time.monotonic() < end:
        yield chance


@pytest.fixture
def watched(page: Page, server: SiteServer) -> Iterator[Page]:
    """A tab in which `hit` says that markup ran; every file that it asks for must be one of the site's."""
    page.add_init_script("globalThis.hits = 0; globalThis.hit = () => (hits += 1);")
    lost: list[str] = []
    page.on("response", lambda r: lost.append(r.url) if r.url.startswith(server.origin) and (r.status >= 400 or PREFIX not in r.url) else None)
    page.on("dialog", lambda dialog: (lost.append("dialog"), dialog.dismiss()))
    yield page
    assert page.evaluate("hits") == 0
    assert lost == []


def link(chance: random.Random) -> str:
    names = ["hbm_tbs", "preset", "net_gbps", "bytes_gb", text_of(chance)]
    parts = [f"calc={quote(chance.choice((f'{ID}~1', f'{ID}~2', text_of(chance))), errors='replace')}"]
    parts += [f"i.{quote(chance.choice(names), errors='replace')}={quote(text_of(chance), errors='replace')}" for _ in range(chance.randrange(5))]
    parts += [f"{name}={quote(text_of(chance), errors='replace')}" for name in ("route", "h", "x") if chance.random() < 0.4]
    if chance.random() < 0.3:
        parts.append(chance.choice(("i.hbm_tbs=%E0%A4%A", "%", "i.%=1", "i.hbm_tbs", "=", "i.", "calc", "route=%ff")))
    chance.shuffle(parts)
    return "?" + "&".join(parts)[:7000]


REACH = """([url, back]) => {
  history.pushState(null, "", url);
  if (back) dispatchEvent(new PopStateEvent("popstate"));
  else for (const card of document.querySelectorAll("calc-card")) card.take(aiInfraState.readLink(new URL(url).search));
}"""


def test_links(watched: Page, server: SiteServer) -> None:
    """Some open the page; most reach the open card as Back does."""
    opened(watched, server)
    watched.evaluate(PATIENT)
    before = watched.evaluate(COUNT)
    seen = 0
    for chance in limited():
        url = server.url + PAGE + link(chance) + chance.choice(("", "#" + quote(text_of(chance), errors="replace"), "#%E0%A4%A"))[:500]
        if seen % 12 == 0:
            watched.goto(url)
            cards(watched)
        else:
            watched.evaluate(REACH, [url, seen % 12 == 6])
        seen += 1
        assert watched.evaluate(COUNT) == before, url
    assert seen > 5


def test_searches(watched: Page, server: SiteServer) -> None:
    """The theme's own parameter."""
    before = None
    for chance in limited(4):
        watched.goto(f"{server.url}{PAGE}?q={quote(text_of(chance)[:1500], errors='replace')}")
        watched.wait_for_timeout(300)
        count = watched.evaluate(COUNT)
        before = count if before is None else before
        assert count == before


def config(chance: random.Random) -> str:
    given: dict[str, object] = {**CONFIG}
    for name in chance.sample(sorted(CONFIG), chance.randrange(4)):
        given[name] = value_of(chance)
    for _ in range(chance.randrange(3)):
        given[chance.choice((*EVIL, "model_type", "quantization_config", "rope_scaling", "_name_or_path", "num_experts", "torch_dtype"))] = value_of(chance)
    text = json.dumps(given)
    return chance.choice((text, text, text, text[: chance.randrange(len(text))], "{" + text_of(chance), text.replace(":", "：")))


def test_configurations(watched: Page, server: SiteServer) -> None:
    """Pasted, and dropped under any name; Python reads them."""
    watched.goto(server.url + "my-model.html")
    card = cards(watched)[0]
    watched.evaluate(PATIENT)
    before = watched.evaluate(COUNT)
    seen = 0
    for chance in limited(10):
        card.evaluate(
            """(card, [text, name]) => {
              const data = new DataTransfer();
              data.items.add(new File([text], name || "x"));
              const area = card.querySelector("textarea[data-paste]");
              if (name) card.dispatchEvent(new DragEvent("drop", { bubbles: true, cancelable: true, dataTransfer: data }));
              else Object.assign(area, { value: text }).dispatchEvent(new Event("input", { bubbles: true }));
            }""",
            [config(chance), chance.choice(("", "", text_of(chance)[:80]))],
        )
        settle(card)
        seen += 1
        assert "内部出错" not in (card.locator("[data-role=status]").text_content() or "")
        if seen % 7 == 0:
            card.locator("[data-act=mine-set]").click()
        assert watched.evaluate(COUNT) == before
    assert seen > 5


def imported(chance: random.Random) -> FilePayload:
    """Nearly right in half of the cases."""
    ids = ("read", "route", "place", "mine", "check.03", "check.15", "guess.03", f"guess./a/b/{PAGE}#{ID}~1", "figures", text_of(chance)[:50])
    place = {"chapter": "03", "at": text_of(chance), "title": text_of(chance), "when": chance.choice((0, 10**13, None))}
    marks = {"1": {"ok": chance.random() < 0.3, "question": value_of(chance), "at": chance.choice((value_of(chance), "#x")), "section": value_of(chance)}}
    kept = {name: json.dumps(chance.choice((value_of(chance), place, marks, {"03": text_of(chance)}))) for name in ids if chance.random() < 0.7}
    whole: object = {"schema": 1, "kept": kept, "model": text_of(chance), "gpu": chance.choice(("a100-80gb", text_of(chance)))}
    return json_file(json.dumps(chance.choice((whole, whole, whole, value_of(chance)))), text_of(chance)[:40].replace("/", "_").replace("\x00", "") or "x")


BROKEN = "\ud800<img src=x onerror=hit()>"
KEPT = {
    "place": {"chapter": "03", "at": BROKEN, "title": BROKEN, "when": 0},
    "check.03": {BROKEN: {"ok": False, "question": BROKEN, "at": "#" + "\ud800", "section": BROKEN}},
    "guess.03": [BROKEN, {}],
    "read": {"03": BROKEN, "__proto__": 1},
    "route": "__proto__",
    "mine": {"schema": 1, "model": '{"model_type": "<img src=x onerror=hit()>"}'},
}
WORST = json_file(json.dumps({"schema": 1, "kept": {name: json.dumps(value) for name, value in KEPT.items()}}))


def test_imported_progress(watched: Page, server: SiteServer) -> None:
    """After each file the pages that show what was kept are opened."""
    before: dict[str, int] = {}
    files = [WORST]
    for chance in limited(12):
        watched.goto(server.url + "self-test.html")
        watched.locator('book-self-test input[type="file"]').set_input_files(files.pop() if files else imported(chance))
        watched.wait_for_function("() => document.querySelector('book-self-test [data-role=said]').textContent")
        for name in ("index.html", "03-memory-wall.html", "self-test.html"):
            watched.goto(server.url + name)
            count = watched.evaluate(COUNT)
            assert count == before.setdefault(name, count), name


def test_imported_configuration(watched: Page, server: SiteServer) -> None:
    watched.goto(server.url + "my-model.html")
    cards(watched)
    before = watched.evaluate(COUNT)
    for chance in limited(4):
        watched.locator("my-config input").set_input_files(imported(chance))
        watched.wait_for_function("() => document.querySelector('my-config [data-role=mine-status]').textContent")
        assert watched.evaluate(COUNT) == before
