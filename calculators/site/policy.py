"""The Content-Security-Policy under which a built site works, and how to send it."""

from __future__ import annotations

import base64
import hashlib
from html.parser import HTMLParser
from pathlib import Path

_DATA = ("application/json", "application/ld+json")
"""Types of ``<script>`` that hold data: a browser does not run them, a policy need not name them."""


class _InlineScripts(HTMLParser):
    """Collects the text of every script that stands in the page itself."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.found: list[str] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self._inside = tag == "script" and "src" not in given and given.get("type") not in _DATA
        if self._inside:
            self.found.append("")

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.found[-1] += data

    def handle_endtag(self, tag: str) -> None:
        self._inside = False


def inline_scripts(html: str) -> list[str]:
    """The scripts that a browser would run and that are no files: all of them the theme's."""
    parser = _InlineScripts()
    parser.feed(html)
    return parser.found


def policy(site: Path) -> str:
    """One policy for every page of the site: its own files, WebAssembly, and the theme's inline scripts by their hashes."""
    hashes = {_hash(text) for page in site.rglob("*.html") for text in inline_scripts(page.read_text(encoding="utf-8"))}
    return "; ".join(
        (
            "default-src 'self'",
            " ".join(("script-src 'self' 'wasm-unsafe-eval'", *sorted(hashes))),
            "worker-src 'self'",
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data:",
        )
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
