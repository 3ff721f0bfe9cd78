"""Quoted log lines: shown only as they stand under ``tests/data/logs``."""

from __future__ import annotations

from pathlib import Path

from calculators.render.html import Html, h
from calculators.site.targets import BadTarget

LOGS = Path("tests/data/logs")


def quoted(source: str, options: dict[str, str]) -> Html:
    """A block of log lines with its source.  Raises BadTarget when a line is not in the stored log."""
    name = options.get("src", "")
    path = LOGS / f"{name}.txt"
    if not name or not path.is_file():
        raise BadTarget(f'log 需要 src="…"，对应 tests/data/logs 里的文件；没有 {name or "（空）"}')
    first, _, body = path.read_text(encoding="utf-8").partition("\n")
    known = {line.strip() for line in body.splitlines()}
    for line in source.strip().splitlines():
        if line.strip() not in known:
            raise BadTarget(f"这一行不在 {path.name} 里：{line.strip()}")
    return h("figure", h("pre", h("code", source.strip())), h("figcaption", first.removeprefix("#").strip()), class_="log")
