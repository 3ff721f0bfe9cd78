"""What is derived from the runtime files so that Pyodide starts sooner: compiled Python, a memory snapshot, a packed wasm."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import io
import json
import os
import shutil
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

from calculators.render.live import respond
from calculators.site.runtime import SourceFailed, cache_dir, manifest, replace_file, run_tool

_HERE = Path(__file__).parent
SCRIPT = _HERE / "compile_stdlib.mjs"
SNAPSHOT = _HERE / "snapshot.mjs"
FUNCTIONS = _HERE / "wasm_functions.txt"
CUT = _HERE / "cut_wasm.mjs"
MODULES = _HERE / "stdlib_modules.txt"
PROOF = json.dumps({"id": "move-time", "key": "proof", "values": {}})
"""The request that a restored machine must answer as CPython does here: plain arithmetic, no last digit at stake."""
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


def compiled_wheel(runtime: Path, wheel: Path) -> bytes | None:
    """The wheel compiled, without what no calculator uses; None where no Node can do it."""
    return _compiled(runtime, "wheel", wheel, manifest().pyodide)


def memory_snapshot(runtime: Path, stdlib: bytes, archive: bytes, book: str) -> dict[str, bytes]:
    """A Pyodide that has imported the engine: its memory ``snapshot.bin``, its machine ``wasm.bin`` and shelves that it fetches by name.

    ``book`` is what the memory must be woken with.  Empty where no Node can make it.
    """
    proof = json.dumps({"book": book, "request": PROOF, "reply": respond(PROOF)})
    with tempfile.TemporaryDirectory() as folder:
        inputs = [Path(folder) / name for name in ("stdlib.zip", "bundle.zip", "proof.json")]
        for path, data in zip(inputs, (stdlib, archive, proof.encode()), strict=True):
            path.write_bytes(data)
        made = _derived(
            SNAPSHOT,
            "snapshot",
            [stdlib, archive, proof.encode(), manifest().pyodide.encode(), FUNCTIONS.read_bytes(), CUT.read_bytes()],
            lambda: [runtime, _lock(), *inputs, FUNCTIONS],
        )
    if made is None:
        return {}
    with zipfile.ZipFile(io.BytesIO(made)) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


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
    return _derived(SCRIPT, job, [source.read_bytes(), of.encode()], lambda: [runtime, _lock(), job, source])


def _lock() -> str:
    return json.dumps(manifest().lock())


def _derived(script: Path, kind: str, made_from: list[bytes], arguments: Callable[[], list[Path | str]]) -> bytes | None:
    """The archive that ``node script arguments TARGET`` writes, kept in the cache for as long as the script and what it is made from stay."""
    parts = [hashlib.sha256(part).digest() for part in (script.read_bytes(), *made_from)]
    kept = cache_dir() / kind / f"{hashlib.sha256(b''.join(parts)).hexdigest()[:16]}.zip"
    if not _sound_zip(kept):
        node = find_node()
        if node is None:
            return None
        kept.parent.mkdir(parents=True, exist_ok=True)
        made = kept.with_suffix(f".{os.getpid()}")
        try:
            run_tool([node, str(script), *(str(a.resolve() if isinstance(a, Path) else a) for a in arguments()), str(made)], str(_HERE))
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
