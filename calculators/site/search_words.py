"""A MkDocs hook: what readers type for a chapter although its text says it otherwise.

The words go into the field ``tags`` of the search index, which the theme ranks above titles; nothing shows on the page.
"""

from __future__ import annotations

from mkdocs.structure.pages import Page

WORDS = {
    "03-memory-wall": ("带宽墙", "显存带宽"),
    "04-roofline-mfu": ("算力利用率", "屋顶线", "MFU"),
    "09-memory-optimization": ("显存不够", "激活重计算", "梯度检查点", "OOM", "碎片", "LoRA", "QLoRA"),
    "10-data-parallel": ("数据并行", "DDP"),
    "12-tensor-parallel": ("张量并行", "TP"),
    "13-pipeline-parallel": ("流水线并行", "PP", "气泡"),
    "16-kv-cache": ("KV cache",),
}
"""A chapter's page → search words."""


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    """Hand the page's words to the search plugin."""
    words = WORDS.get(page.file.name)
    if words:
        page.meta["tags"] = list(words)
    return markdown
