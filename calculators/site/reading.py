"""Writes what readers' scripts and language models read about the book: ``reading.js`` and ``llms.txt``."""

from __future__ import annotations

import json
from pathlib import Path

from calculators.catalog.chapters import Chapter, chapters, routes
from calculators.core.index import ids, load
from calculators.site.page import card_pages, written
from calculators.site.sections import rescue, summary

TITLE = "AI 基础设施：每个数都能当场改的中文教程"
ABOUT = "为什么慢、装不装得下、要花多少钱：27 章加一份速查表，正文的数都由经过测试的 Python 计算器算出，读者可以在页面里换成自己的模型和卡。"


def reading_script() -> str:
    """Chapters that exist (in book order, with their ⚡ points) and routes, for ``calc-read.js``."""
    table = {c.id: {"page": c.slug, "title": c.heading, "minutes": c.minutes, "rescue": rescue(c)} for c in _existing()}
    ways = {r.id: {"title": r.title, "chapters": [id for id in r.chapters if id in table]} for r in routes().values()}
    data = json.dumps({"chapters": table, "order": list(table), "routes": ways}, ensure_ascii=False, separators=(",", ":"))
    return f"globalThis.aiInfraReading = {data};\n"


def llms_text() -> str:
    """The book for a language model (llmstxt.org): what it is, its pages with one sentence each, its calculators."""
    lines = [f"# {TITLE}", "", f"> {ABOUT}", ""]
    part = ""
    for chapter in _existing():
        if chapter.part != part:
            part = chapter.part
            lines += ["", f"## {part}", ""]
        lines.append(f"- [{chapter.heading}]({chapter.slug}.html): {summary(chapter) or chapter.title}")
    lines += ["", "## 计算器", "", "每一行：编号、它回答的问题、所在的页。链接可以带输入：`页.html?calc=编号~1&i.输入名=值`。", ""]
    for id in ids():
        page = card_pages().get(id)
        if page:
            lines.append(f"- [{id}]({page.removesuffix('.md')}.html?calc={id}~1#calc-{id}-1): {load(id).question}")
    return "\n".join(lines) + "\n"


def write_reading(docs_dir: Path) -> None:
    """Bring both files up to date."""
    for path, text in ((docs_dir / "assets" / "generated" / "reading.js", reading_script()), (docs_dir / "llms.txt", llms_text())):
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")


def _existing() -> list[Chapter]:
    return [c for c in chapters().values() if f"{c.slug}.md" in written()]
