"""A static server on 127.0.0.1 for the built site, with the faults that hosts have."""

from __future__ import annotations

import re
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PREFIX = "/a/b/"
TYPES = {
    ".html": "text/html; charset=utf-8", ".css": "text/css", ".js": "text/javascript", ".mjs": "text/javascript", ".json": "application/json",
    ".xml": "application/xml", ".wasm": "application/wasm", ".svg": "image/svg+xml", ".png": "image/png", ".zip": "application/zip",
}  # fmt: skip


@dataclass
class Fault:
    """What is wrong with the files whose path contains a given text."""

    status: int = 200
    type: str = ""
    damage: bool = False
    hang: bool = False
    page: bytes = b""
    """Sent instead of the file, as by a proxy's page."""
    before: bytes = b""
    """Put in front of a script: what another browser or machine would do there."""


@dataclass
class SiteServer:
    """Serves ``folder`` below ``PREFIX``; tests set ``faults`` and ``policy`` and read ``asked``."""

    folder: Path
    faults: dict[str, Fault] = field(default_factory=dict)
    policy: str = ""
    asked: list[str] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle(self) -> None:
                with suppress(ConnectionError):  # the page left
                    super().handle()

            def do_GET(self) -> None:
                owner.answer(self)

            def do_HEAD(self) -> None:
                owner.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.http.server_address[1]}"

    @property
    def url(self) -> str:
        return self.origin + PREFIX

    def release(self) -> None:
        """Let go of the requests that hang."""
        self.closing.set()

    def reset(self) -> None:
        self.closing.clear()
        self.faults.clear()
        self.policy = ""
        self.asked.clear()

    def close(self) -> None:
        self.closing.set()
        self.http.shutdown()
        self.http.server_close()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        path = request.path.partition("?")[0]
        self.asked.append(path.rpartition("/")[2])
        fault = next((f for part, f in self.faults.items() if part in path), Fault())
        if fault.hang:
            self.closing.wait(30)
        file = self.folder / (path.removeprefix(PREFIX) or "index.html")
        found = path.startswith(PREFIX) and file.is_file()
        status = fault.status if found else 404
        body = file.read_bytes() if status == 200 else b"<!doctype html><title>no</title>"
        if file.name == "sitemap.xml":  # a site built for another address: instant navigation compares them
            body = re.sub(rb"<loc>[^<]*/", b"<loc>" + self.url.encode(), body)
        if fault.page:
            body = fault.page
        body = fault.before + body
        if fault.damage:
            half = len(body) // 2  # behind any comment
            body = body[:half] + bytes(b ^ 0x55 for b in body[half : half + 200]) + body[half + 200 :]
        request.send_response(status)
        request.send_header("Content-Type", fault.type or (TYPES.get(file.suffix, "application/octet-stream") if status == 200 else "text/html"))
        request.send_header("Content-Length", str(len(body)))
        request.send_header("Cache-Control", "no-store" if self.faults else "max-age=600")
        if self.policy:
            request.send_header("Content-Security-Policy", self.policy)
        request.end_headers()
        if request.command == "GET":
            request.wfile.write(body)
