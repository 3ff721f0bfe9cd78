"""What is derived from the runtime files so that Pyodide starts sooner: Python compiled by Pyodide itself, and a packed wasm."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import json
import os
import shutil
import sys
import tempfile
import zipfile
import zlib
from pathlib import Path

from calculators.site.runtime import SourceFailed, cache_dir, manifest, replace_file, run_tool

_HERE = Path(__file__).parent
SCRIPT = _HERE / "compile_stdlib.mjs"
MODULES = _HERE / "stdlib_modules.txt"
_KEPT = 8
"""Archives of one kind that stay in the cache; every change of the package makes another."""


def find_node() -> str | None:
    """A Node that can run Pyodide: the one on PATH, else the one inside Playwright's wheel."""
    if on_path := shutil.which("node"):
        return on_path
    spec = importlib.util.find_spec("playwright")
    if spec is None or spec.origin is None:
        return None
    bundled = Path(spec.origin).parent / "driver" / ("node.exe" if os.name == "nt" else "node")
    return str(bundled) if bundled.exists() else None


def compiled_stdlib(runtime: Path) -> bytes | None:
    """The standard library's modules in use, compiled by Pyodide's own Python; None where no Node can do it.

    Modules left out are fetched from the plain library when one is imported: a missing name costs time, never an error.
    """
    return _compiled(runtime, "library", MODULES, manifest().file("python_stdlib.zip").sha256)


def compiled_package(runtime: Path, archive: bytes) -> bytes:
    """The package's archive with its shared parts compiled; the archive itself where no Node can do it."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "in.zip"
        source.write_bytes(archive)
        return _compiled(runtime, "package", source, manifest().pyodide) or archive


def packed_wasm(runtime: Path) -> bytes:
    """The machine itself, gzipped: 3.5 MB instead of 9.6 for the many hosts that send wasm as it is."""
    wasm = runtime / "pyodide.asm.wasm"
    kept = cache_dir() / "wasm" / f"{manifest().file(wasm.name).sha256[:16]}.gz"
    try:
        data = kept.read_bytes()
        if gzip.decompress(data) == wasm.read_bytes():
            return data
    except (OSError, EOFError, zlib.error):
        pass  # not there yet, or damaged
    data = gzip.compress(wasm.read_bytes(), 9, mtime=0)
    replace_file(kept, data)
    return data


def _compiled(runtime: Path, job: str, source: Path, of: str) -> bytes | None:
    key = hashlib.sha256(SCRIPT.read_bytes() + source.read_bytes() + of.encode()).hexdigest()
    kept = cache_dir() / job / f"{key[:16]}.zip"
    if not _sound_zip(kept):
        node = find_node()
        if node is None:
            return None
        kept.parent.mkdir(parents=True, exist_ok=True)
        made = kept.with_suffix(f".{os.getpid()}")
        try:
            run_tool([node, str(SCRIPT), str(runtime.resolve()), json.dumps(manifest().lock()), job, str(source), str(made)], str(_HERE))
            made.replace(kept)
            _forget_old(kept.parent)
        except SourceFailed as failure:
            print(f"没有预编译，浏览器里启动会慢一些（{failure}）", file=sys.stderr)
            return None
        finally:
            made.unlink(missing_ok=True)
    return kept.read_bytes()


def _sound_zip(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except (OSError, zipfile.BadZipFile):
        return False


def _forget_old(folder: Path) -> None:
    for old in sorted(folder.glob("*.zip"), key=lambda p: p.stat().st_mtime)[:-_KEPT]:
        old.unlink(missing_ok=True)
