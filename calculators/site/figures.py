"""The scan of the chapters: every bound figure with its verdict, and every number with a unit that is not bound."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from calculators.site.literals import agrees, unbound
from calculators.site.targets import SCHEMES, BadTarget, resolve

LINK = re.compile(r"(?<!!)\[(?P<text>(?:[^\[\]]|\[[^\[\]]*\])*)\]\((?P<url>[^()\s]*(?:\([^()\s]*\)[^()\s]*)*)\)")
_FENCE = re.compile(r"^(?P<indent>[ >]*)(?P<marks>`{3,}|~{3,})(?P<info>.*)$")
_PROSE_FENCES = ("calc ", "check")
_ROUGH_BEFORE = re.compile(r"(约|≈|大约|将近)\s?\**$")
_RANGE_BEFORE_LINK = re.compile(r"(?<![\w.,#(])\d[\d,.]*\s?[–—~～]\s?\**$")


@dataclass(frozen=True)
class Bound:
    """One bound figure: ``ok`` when the printed text equals the target at the printed precision."""

    file: str
    line: int
    text: str
    target: str
    value: object
    unit: str
    ok: bool
    message: str = ""


@dataclass(frozen=True)
class Unbound:
    """A number with a unit that nothing guards."""

    file: str
    line: int
    text: str


def prose_lines(source: str) -> Iterator[tuple[int, str]]:
    """(line number, text) of everything a reader reads as prose: no front matter, no code, but 先猜 options and answers."""
    lines = source.splitlines()
    start = 0
    if lines and lines[0].strip() == "---":
        start = next((i + 1 for i, line in enumerate(lines[1:], 1) if line.strip() == "---"), 0)
    closing, reading = "", True
    for number, line in enumerate(lines[start:], start + 1):
        fence = _FENCE.match(line)
        if fence and not closing:
            closing, reading = fence["marks"], fence["info"].strip().startswith(_PROSE_FENCES)
            continue
        if fence and fence["marks"].startswith(closing) and not fence["info"].strip():
            closing, reading = "", True
            continue
        if not closing or reading:
            yield number, re.sub(r"`[^`]*`", lambda m: " " * len(m[0]), line)


def scan_markdown(source: str, file: str) -> tuple[list[Bound], list[Unbound]]:
    """Scan one chapter."""
    bound: list[Bound] = []
    free: list[Unbound] = []
    for number, line in prose_lines(source):
        rest = line
        for match in LINK.finditer(line):
            before = line[: match.start()]
            if match["url"].startswith(tuple(f"{s}:" for s in SCHEMES)):
                bound.append(check(match["text"], match["url"], file, number, rough=bool(_ROUGH_BEFORE.search(before))))
                if _RANGE_BEFORE_LINK.search(before):
                    free.append(Unbound(file, number, before[-8:].strip() + match["text"]))
                kept = ""
            else:
                kept = match["text"]  # an ordinary link: its words are prose like any other
            rest = rest.replace(match[0], " " + kept.ljust(len(match[0]) - 1)[: len(match[0]) - 1], 1)
        if line.startswith("⏱"):
            continue  # reading minutes come from chapters.toml and have a test of their own
        rest = re.sub(r"<[^>]*>|\]\([^)]*\)", lambda m: " " * len(m[0]), rest)
        free.extend(Unbound(file, number, text) for _, text in unbound(rest))
        if line.lstrip().startswith("#") and (LINK.search(line) and "calc:" in line):
            free.append(Unbound(file, number, f"标题里不放数：{line.strip()}"))
    return bound, free


def check(text: str, url: str, file: str, line: int, *, rough: bool = False) -> Bound:
    """Judge one link."""
    shown = text.replace("*", "").strip()
    try:
        target = resolve(url)
    except BadTarget as error:
        return Bound(file, line, shown, url, None, "", False, str(error))
    if target.kind == "claim":
        right = resolve(target.differs_from) if target.differs_from else None
        if right is None or not agrees(shown, target, rough=rough):
            return Bound(file, line, shown, url, target.value, target.unit, False, "错误说法必须写明它与哪个正确值不同（differs_from），并与登记的数一致")
        return Bound(
            file,
            line,
            shown,
            url,
            target.value,
            target.unit,
            not agrees(shown, right),
            "" if not agrees(shown, right) else f"这个「错误说法」和正确值 {right.text} 没有区别",
        )
    ok = agrees(shown, target, rough=rough)
    return Bound(file, line, shown, url, target.value, target.unit, ok, "" if ok else f"写的是 {shown}，出处给的是 {target.text}")


_SVG_NODE = re.compile(r"<(?P<tag>text|tspan|title|desc)\b(?P<attributes>[^>]*)>(?P<body>.*?)</(?P=tag)>", re.DOTALL)


def scan_svg(source: str, file: str) -> tuple[list[Bound], list[Unbound]]:
    """Scan a diagram: a text with a number must carry ``data-figure="TARGET"``."""
    bound: list[Bound] = []
    free: list[Unbound] = []

    def visit(match: re.Match[str]) -> None:
        body = match["body"]
        inner = list(_SVG_NODE.finditer(body))
        for child in inner:
            visit_at(child, match.start("body") + child.start())
        own = _SVG_NODE.sub(" ", body)
        judge(match["attributes"], own, source.count("\n", 0, match.start()) + 1)

    def visit_at(match: re.Match[str], offset: int) -> None:
        judge(match["attributes"], match["body"], source.count("\n", 0, offset) + 1)

    def judge(attributes: str, text: str, line: int) -> None:
        found = re.search(r'data-figure="([^"]+)"', attributes)
        plain = re.sub(r"<[^>]*>", "", text).strip()
        if found:
            bound.append(check(plain, found[1].replace("&amp;", "&"), file, line))
        else:
            free.extend(Unbound(file, line, number) for _, number in unbound(plain))

    for match in _SVG_NODE.finditer(source):
        visit(match)
    return bound, free


def scan(docs: Path) -> tuple[list[Bound], list[Unbound]]:
    """Scan every page and every diagram under ``docs``."""
    bound: list[Bound] = []
    free: list[Unbound] = []
    for path in sorted(docs.glob("*.md")):
        b, f = scan_markdown(path.read_text(encoding="utf-8"), str(path.relative_to(docs.parent)))
        bound, free = bound + b, free + f
    for path in sorted((docs / "assets" / "diagrams").glob("*.svg")):
        b, f = scan_svg(path.read_text(encoding="utf-8"), str(path.relative_to(docs.parent)))
        bound, free = bound + b, free + f
    return bound, free
