"""Writes ``docs/assets/generated/``: Pyodide, the calculators as one archive, and ``book.js`` that names them."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from calculators.catalog import store
from calculators.site import precompile, runtime
from calculators.site.runtime import file_sha256, manifest, replace_file

PACKAGE = Path(__file__).parents[1]
_NOT_FOR_BROWSERS = ("site", "__main__.py")
_DATE = (1980, 1, 1, 0, 0, 0)
_OURS = ("calculators-*.zip", "stdlib-*.zip", "snapshot-*.bin", "shelf-*.bin", "wasm-*.bin", "pyodide-*/*", "pyodide-*/*/*", "iframe-worker*")
"""What this module may delete in the folder: files of these shapes that the present build does not use."""


@dataclass(frozen=True)
class Assets:
    """What a build wrote.  ``snapshot``: ``""`` where no Node could make one.  ``missing``: optional runtime files that no source had."""

    folder: Path
    bundle: str
    stdlib: str
    snapshot: str
    missing: tuple[str, ...]


def write_assets(docs_dir: Path, extra: Mapping[str, object] | None = None) -> Assets:
    """Bring ``docs_dir/assets/generated`` up to date; ``extra`` is merged into ``book.js``.  Raises FetchError."""
    folder = docs_dir / "assets" / "generated"
    pinned = manifest()
    if precompile.find_node() is None:
        print("没有 Node：不预编译，也不做内存快照；网站照常能用，第一次改数要多等一两秒", file=sys.stderr)
    missing = runtime.fetch(folder, in_cache=pinned.lock_packages)
    plain = f"{pinned.folder}/python_stdlib.zip"
    compiled = precompile.compiled_stdlib(folder / pinned.folder)
    stdlib = _write_named(folder, "stdlib", ".zip", compiled) if compiled else plain
    wasm = _write_packed(folder, folder / pinned.folder)
    wheels = _write_wheels(folder / pinned.folder)
    runtime.fetch(folder, in_cache=wheels)
    bundle, *kept = _write_bundle(folder, folder / pinned.folder, compiled)
    snapshot, cut = kept[:2] or ("", "")
    replaced = {pinned.wheel(name) for name in wheels}
    files = [f.path for f in pinned.files if f not in (*missing, *replaced)] + [f"{pinned.folder}/{file}" for file, _ in wheels.values()]
    used = {*files, bundle, stdlib, wasm, *kept}
    _remove_stale(folder, used)
    book: dict[str, object] = {
        "version": bundle.removeprefix("calculators-").removesuffix(".zip"),
        "bundle": bundle,
        "pyodide": {
            "folder": pinned.folder + "/",
            "stdlib": stdlib,
            "wasm": wasm,
            "rest": plain if stdlib != plain else "",
            "snapshot": snapshot,
            "cut": cut,
            "lock": pinned.lock(wheels),
            "integrity": {path: integrity(folder / path) for path in sorted(used)},
        },
        **(extra or {}),
    }
    text = f"globalThis.aiInfraBook = {json.dumps(book, ensure_ascii=False, separators=(',', ':'))};\n"
    target = folder / "book.js"
    if not target.exists() or target.read_text(encoding="utf-8") != text:
        replace_file(target, text.encode())
    return Assets(folder, bundle, stdlib, snapshot, tuple(f.path for f in missing))


def build_bundle() -> bytes:
    """``calculators/`` without its build-time part, as a zip whose bytes depend on the contents only."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, read in sorted(_members().items()):
            archive.writestr(zipfile.ZipInfo(name, _DATE), read(), zipfile.ZIP_DEFLATED, 9)
    return out.getvalue()


def integrity(path: Path) -> str:
    """The file's hash as browsers write it."""
    return "sha256-" + base64.b64encode(bytes.fromhex(file_sha256(path))).decode()


def _members() -> dict[str, Callable[[], bytes]]:
    members: dict[str, Callable[[], bytes]] = {}
    for path in _sources():
        if path.suffix != ".toml":
            members[path.relative_to(PACKAGE.parent).as_posix()] = path.read_bytes
    for table in (PACKAGE / "catalog").iterdir():
        if table.suffix == ".toml" or any(table.glob("*.toml")):
            members[f"calculators/catalog/{table.stem}.json"] = partial(_catalog_json, table.stem)
    return members


def _sources() -> Iterator[Path]:
    for path in sorted(PACKAGE.rglob("*")):
        inside = path.relative_to(PACKAGE).parts
        if path.is_file() and inside[0] not in _NOT_FOR_BROWSERS and "__pycache__" not in inside and not path.name.startswith("."):
            yield path


def _catalog_json(name: str) -> bytes:
    return json.dumps(store.read(name), ensure_ascii=False, separators=(",", ":")).encode()


def _write_bundle(folder: Path, pyodide: Path, stdlib: bytes | None) -> list[str]:
    """The names of the archive, the snapshot and its shelves (where Node can make them); made again only when a source changed since the last time."""
    stamp = folder / ".bundle.json"
    digest = hashlib.sha256(stdlib or b"")
    for path in (*_sources(), Path(__file__), precompile.SCRIPT, precompile.SNAPSHOT, precompile.FUNCTIONS, precompile.CUT):
        digest.update(f"{path.relative_to(PACKAGE).as_posix()}\n{path.stat().st_size}\n".encode())
        digest.update(path.read_bytes())
    key = digest.hexdigest()
    if stamp.exists():
        known = json.loads(stamp.read_text(encoding="utf-8"))
        if known["key"] == key and all((folder / name).exists() for name in known["names"]):
            return list(known["names"])
    store.read.cache_clear()
    archive = build_bundle()
    names = [_write_named(folder, "calculators", ".zip", precompile.compiled_package(pyodide, archive))]
    kept = precompile.memory_snapshot(pyodide, stdlib, archive, names[0]) if stdlib else {}
    for stem in ("snapshot", "wasm") if kept else ():
        names.append(_write_named(folder, stem, ".bin", kept.pop(f"{stem}.bin")))  # servers give .gz a meaning of their own
    for name, data in kept.items():
        replace_file(folder / name, data)
        names.append(name)
    replace_file(stamp, json.dumps({"key": key, "names": names}).encode())
    return names


def _write_wheels(pyodide: Path) -> dict[str, tuple[str, str]]:
    """Package → the file and sha256 of its compiled wheel, where Node can make one.  A wheel must keep its name, so the folder has the hash."""
    written = {}
    for package in manifest().lock_packages:
        wheel = manifest().wheel(package)
        data = precompile.compiled_wheel(pyodide, runtime.cached(wheel))
        if data:
            sha256 = hashlib.sha256(data).hexdigest()
            file = f"{package}-{sha256[:8]}/{wheel.name}"
            if not (pyodide / file).exists():
                replace_file(pyodide / file, data)
            written[package] = (file, sha256)
    return written


def _write_packed(folder: Path, pyodide: Path) -> str:
    """The packed wasm's name; packing is skipped while the file is there (its name holds the hash of what is packed)."""
    name = f"wasm-{manifest().file('pyodide.asm.wasm').sha256[:8]}.bin"
    if not (folder / name).exists():
        replace_file(folder / name, precompile.packed_wasm(pyodide))
    return name


def _write_named(folder: Path, stem: str, suffix: str, data: bytes) -> str:
    name = f"{stem}-{hashlib.sha256(data).hexdigest()[:8]}{suffix}"
    target = folder / name
    if not target.exists() or target.stat().st_size != len(data):
        replace_file(target, data)
    return name


def _remove_stale(folder: Path, used: set[str]) -> None:
    for pattern in _OURS:
        for path in folder.glob(pattern):
            if path.is_file() and path.relative_to(folder).as_posix() not in used:
                path.unlink()
                if path.parent != folder and not any(path.parent.iterdir()):
                    path.parent.rmdir()
