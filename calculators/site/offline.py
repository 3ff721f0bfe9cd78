"""The offline edition: a built site as one archive whose calculators run from file://, by double-click.

A page opened from a disk may load classic scripts only: no fetch, no module, no worker file.  So the files of Python travel
as base64 in such scripts: ``offline/python.js``, ``offline/plain.js`` (for a start without snapshot), ``offline/numpy.js``.
``offline.js`` hands them to a blob worker.
"""

from __future__ import annotations

import base64
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

_HERE = Path(__file__).parent
_DATE = (1980, 1, 1, 0, 0, 0)
LARGEST = 25_000_000
"""Bytes of the archive; more would be a mistake."""
_USELESS = (".map", ".xml", ".xml.gz")
"""Endings of what only servers, search engines and the theme's authors read."""
_BOOK = "assets/generated/book.js"


class OfflineError(Exception):
    """The site cannot become an offline edition; the message says why."""


def write_offline(site: Path, target: Path) -> int:
    """Write the archive; returns its size in bytes.  Raises OfflineError."""
    if not (site / _BOOK).is_file():
        raise OfflineError(f"{site} 里没有生成好的网站：先运行 python -m calculators build --site-dir {site}")
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w") as archive:
        for path, data in sorted(members(site).items()):
            archive.writestr(zipfile.ZipInfo(f"{target.stem}/{path}", _DATE), data, zipfile.ZIP_DEFLATED, 6)
    size = target.stat().st_size
    if size > LARGEST:
        raise OfflineError(f"{target} 有 {size / 1e6:.1f} MB，超过 {LARGEST / 1e6:.0f} MB：看看网站里多了什么")
    return size


def members(site: Path) -> dict[str, bytes]:
    """Path → content of every file of the edition."""
    book = json.loads((site / _BOOK).read_text(encoding="utf-8").partition(" = ")[2].rstrip(";\n"))
    runtime = book["pyodide"]
    generated = site / "assets/generated"
    packages = {name: runtime["folder"] + facts["file_name"] for name, facts in runtime["lock"]["packages"].items()}
    plain_wasm = runtime["folder"] + "pyodide.asm.wasm"  # the packed one will do
    start = {path for path in runtime["integrity"] if path not in {*packages.values(), plain_wasm} and not path.endswith(".js")}
    plain = {book["bundle"], runtime["stdlib"], runtime["rest"], runtime["wasm"]} & start
    python = {"worker": _worker(site / "assets/calc-worker.mjs"), **{path: _read(generated / path) for path in sorted(start - plain)}}
    kept = {path: data for path, data in _site_files(site) if path.removeprefix("assets/generated/") not in {*start, *packages.values(), plain_wasm}}
    return {
        **kept,
        _BOOK: kept[_BOOK] + (_HERE / "offline.js").read_bytes(),
        "assets/offline/python.js": _script(python),
        "assets/offline/plain.js": _script({path: (generated / path).read_bytes() for path in sorted(plain)}),
        **{f"assets/offline/{name}.js": _script({path: (generated / path).read_bytes()}) for name, path in packages.items()},
    }


def _site_files(site: Path) -> Iterator[tuple[str, bytes]]:
    for path in site.rglob("*"):
        if path.is_file() and not path.name.endswith(_USELESS):
            yield path.relative_to(site).as_posix(), path.read_bytes()


def _worker(script: Path) -> bytes:
    return (_HERE / "offline_worker.js").read_bytes() + _own_import(script.read_bytes())


def _read(path: Path) -> bytes:
    return _own_import(path.read_bytes()) if path.name == "pyodide.mjs" else path.read_bytes()


def _own_import(script: bytes) -> bytes:
    """``import(…)`` cannot be replaced from outside: it gets a name that can."""
    return re.sub(rb"\bimport\(", b"importOffline(", script)


def _script(files: dict[str, bytes]) -> bytes:
    texts = {path: base64.b64encode(data).decode() for path, data in files.items()}
    return f"aiInfraOffline.take({json.dumps(texts, separators=(',', ':'))});\n".encode()
