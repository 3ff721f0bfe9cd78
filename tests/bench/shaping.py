"""A static server as it is far away: one line of so many bits a second, so many milliseconds to an answer."""

from __future__ import annotations

import gzip
import threading
import time
from contextlib import suppress
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from serving import PREFIX, TYPES

PIECE = 16_384
PACKED = (".html", ".css", ".js", ".mjs", ".json", ".wasm", ".svg", ".xml")
"""What a host that packs, packs."""


@lru_cache(maxsize=64)
def body(file: Path, packed: bool) -> bytes:
    data = file.read_bytes()
    return gzip.compress(data, 6) if packed else data


class Line:
    """The bytes of all connections, one after the other, at ``rate`` bytes a second; 0: at once."""

    def __init__(self, rate: float) -> None:
        self.rate, self.free, self.lock = rate, 0.0, threading.Lock()

    def carry(self, size: int) -> None:
        if not self.rate:
            return
        with self.lock:
            self.free = max(self.free, time.perf_counter()) + size / self.rate
            until = self.free
        time.sleep(max(0.0, until - time.perf_counter()))


class FarServer:
    """Serves ``folder`` below ``PREFIX``; ``packs``: gzip for what accepts it.  ``sent`` counts the bytes of bodies."""

    def __init__(self, folder: Path, mbit_s: float = 0, delay_ms: float = 0, packs: bool = False) -> None:
        owner = self
        self.folder, self.line, self.delay_s, self.packs, self.sent = folder, Line(mbit_s * 1e6 / 8), delay_ms / 1000, packs, 0

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle(self) -> None:
                with suppress(ConnectionError):  # the page left
                    super().handle()

            def do_GET(self) -> None:
                owner.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}{PREFIX}"

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        time.sleep(self.delay_s)
        path = request.path.partition("?")[0]
        file = self.folder / path.removeprefix(PREFIX)
        if not path.startswith(PREFIX) or not file.is_file():
            request.send_error(404)
            return
        packed = self.packs and file.suffix in PACKED and "gzip" in request.headers.get("Accept-Encoding", "")
        data = body(file, packed)
        request.send_response(200)
        request.send_header("Content-Type", TYPES.get(file.suffix, "application/octet-stream"))
        request.send_header("Content-Length", str(len(data)))
        request.send_header("Cache-Control", "max-age=600")
        if packed:
            request.send_header("Content-Encoding", "gzip")
        request.end_headers()
        for at in range(0, len(data), PIECE):
            piece = data[at : at + PIECE]
            self.line.carry(len(piece))
            request.wfile.write(piece)
            with self.line.lock:
                self.sent += len(piece)
