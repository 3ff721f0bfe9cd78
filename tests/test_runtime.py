"""The pinned runtime and the browser bundle: fetched once, verified always, the same bytes from the same sources."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from calculators.catalog import store
from calculators.site import bundle, precompile, runtime
from calculators.site.runtime import FetchError, Manifest, RuntimeFile, manifest

CORE = b"core"
SHIM = b"shim"


def pinned(path: str, data: bytes, **more: object) -> RuntimeFile:
    return RuntimeFile(path, len(data), hashlib.sha256(data).hexdigest(), "pkg", "1", "MIT", cdn=path, pip_member=path, **more)  # type: ignore[arg-type]


class Sources:
    """Two sources: the first gives what it was told to give, the second fails."""

    def __init__(self, gives: dict[str, bytes]) -> None:
        self.gives = gives
        self.asked: list[str] = []

    def first(self, _: Manifest, wanted: list[RuntimeFile]) -> Iterator[tuple[RuntimeFile, bytes]]:
        for file in wanted:
            self.asked.append(file.path)
            if file.path not in self.gives:
                raise runtime.SourceFailed("no route to host")
            yield file, self.gives[file.path]

    def second(self, _: Manifest, wanted: list[RuntimeFile]) -> Iterator[tuple[RuntimeFile, bytes]]:
        self.asked += [f"second {f.path}" for f in wanted]
        raise runtime.SourceFailed("not installed")
        yield


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Sources:
    """A manifest of two small files, an empty cache, and sources without a network."""
    given = Sources({"p/core.bin": CORE, "shim.js": SHIM})
    small = replace(manifest(), files=(pinned("p/core.bin", CORE), pinned("shim.js", SHIM, optional=True)))
    monkeypatch.setattr(runtime, "manifest", lambda: small)
    monkeypatch.setattr(runtime, "_SOURCES", {"cdn": given.first, "npm": given.second})
    monkeypatch.setenv("AI_INFRA_CACHE", str(tmp_path / "cache"))
    return given


def test_second_fetch_asks_nobody(sources: Sources, tmp_path: Path) -> None:
    runtime.fetch(tmp_path / "one")
    sources.asked.clear()

    runtime.fetch(tmp_path / "one")
    runtime.fetch(tmp_path / "two")

    assert sources.asked == []
    assert (tmp_path / "two/p/core.bin").read_bytes() == CORE


def test_corrupted_cache_is_noticed_and_fetched_again(sources: Sources, tmp_path: Path) -> None:
    runtime.fetch(tmp_path / "one")
    next((tmp_path / "cache").glob("*/core.bin")).write_bytes(b"c0re")
    sources.asked.clear()

    runtime.fetch(tmp_path / "two")

    assert sources.asked == ["p/core.bin"]
    assert (tmp_path / "two/p/core.bin").read_bytes() == CORE


def test_corrupted_site_file_is_replaced_from_the_cache(sources: Sources, tmp_path: Path) -> None:
    runtime.fetch(tmp_path)
    (tmp_path / "p/core.bin").write_bytes(b"c0re")
    sources.asked.clear()

    runtime.fetch(tmp_path)

    assert sources.asked == []
    assert (tmp_path / "p/core.bin").read_bytes() == CORE


def test_wrong_bytes_are_refused_and_the_next_source_asked(sources: Sources, tmp_path: Path) -> None:
    sources.gives["p/core.bin"] = b"evil"

    with pytest.raises(FetchError) as caught:
        runtime.fetch(tmp_path)

    assert "second p/core.bin" in sources.asked
    for part in ("core.bin", "cdn", "sha256", "npm：not installed", str(tmp_path / "cache")):
        assert part in str(caught.value)
    assert not (tmp_path / "p/core.bin").exists()


def test_a_missing_optional_file_does_not_stop_the_build(sources: Sources, tmp_path: Path) -> None:
    del sources.gives["shim.js"]

    assert [f.path for f in runtime.fetch(tmp_path)] == ["shim.js"]
    assert (tmp_path / "p/core.bin").exists()


def test_unwritable_cache_says_what_to_do(sources: Sources, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("AI_INFRA_CACHE", str(tmp_path / "file/below"))

    with pytest.raises(FetchError, match="AI_INFRA_CACHE"):
        runtime.fetch(tmp_path / "site")


def test_a_source_that_fails_is_not_asked_file_by_file(sources: Sources, tmp_path: Path) -> None:
    """No waiting for one time-out a file where the CDN is blocked."""
    sources.gives.clear()

    with pytest.raises(FetchError):
        runtime.fetch(tmp_path)

    assert sources.asked.count("p/core.bin") + sources.asked.count("shim.js") == 1


def test_manifest_is_consistent() -> None:
    files = manifest().files

    assert len({f.path for f in files}) == len(files)
    for file in files:
        assert re.fullmatch(r"[0-9a-f]{64}", file.sha256), file.path
        assert file.bytes > 0
        assert file.licence
        assert file.cdn
        assert file.npm_member or file.pip_member, f"{file.path}: the CDN alone is not enough"
        assert bool(file.npm) == bool(file.npm_member)
        assert file.version in file.cdn or manifest().pyodide in file.cdn
        assert not file.npm or file.npm == f"{file.package}@{file.version}"
    assert manifest().folder == f"pyodide-{manifest().pyodide}"
    assert manifest().file("pyodide.mjs").version == manifest().pyodide


def test_lock_names_the_pinned_wheel() -> None:
    lock = manifest().lock()
    packages = lock["packages"]
    assert isinstance(packages, dict)
    numpy = packages["numpy"]

    wheel = manifest().file(numpy["file_name"])

    assert numpy["sha256"] == wheel.sha256
    assert numpy["version"] == wheel.version
    assert lock["info"]["version"] == manifest().pyodide  # type: ignore[index]


def test_pinned_files_arrive(tmp_path: Path) -> None:
    """The real ones, from the user's cache or the network."""
    absent = runtime.fetch(tmp_path)

    assert all(f.matches(tmp_path / f.path) for f in manifest().files if f not in absent)


def test_bundle_is_reproducible_and_for_browsers_only() -> None:
    data = bundle.build_bundle()
    archive = zipfile.ZipFile(io.BytesIO(data))
    names = archive.namelist()

    assert data == bundle.build_bundle()
    assert names == sorted(names)
    assert {i.date_time for i in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    assert not [n for n in names if n.startswith("calculators/site/") or n.endswith((".toml", ".pyc")) or "__pycache__" in n]
    assert "calculators/render/live.py" in names
    for name in names:
        if name.endswith(".py"):
            assert "calculators.site" not in archive.read(name).decode(), name


def test_bundle_carries_the_catalog_as_json() -> None:
    archive = zipfile.ZipFile(io.BytesIO(bundle.build_bundle()))
    tables = {p.stem for p in (bundle.PACKAGE / "catalog").glob("*.toml")} | {"references"}

    for table in tables:
        assert json.loads(archive.read(f"calculators/catalog/{table}.json")) == store.read(table), table


def test_write_assets_names_what_it_wrote(tmp_path: Path) -> None:
    assets = bundle.write_assets(tmp_path, {"routes": {"quick": ["00"]}})
    book = read_book(assets.folder)
    pyodide = book["pyodide"]

    assert book["bundle"] == assets.bundle
    assert book["routes"] == {"quick": ["00"]}
    assert pyodide["stdlib"] == assets.stdlib
    for path, hashed in pyodide["integrity"].items():
        assert bundle.integrity(assets.folder / path) == hashed
    written = {p.relative_to(assets.folder).as_posix() for p in assets.folder.rglob("*") if p.is_file() and not p.name.startswith(".")}
    assert written == {*pyodide["integrity"], "book.js"}


def test_packed_wasm_is_the_pinned_wasm(tmp_path: Path) -> None:
    assets = bundle.write_assets(tmp_path)
    packed = (assets.folder / read_book(assets.folder)["pyodide"]["wasm"]).read_bytes()

    assert hashlib.sha256(gzip.decompress(packed)).hexdigest() == manifest().file("pyodide.asm.wasm").sha256


def test_write_assets_again_is_quick_and_changes_nothing(tmp_path: Path) -> None:
    assets = bundle.write_assets(tmp_path)
    before = {p: p.stat().st_mtime_ns for p in assets.folder.rglob("*")}

    started = time.perf_counter()
    bundle.write_assets(tmp_path)
    seconds = time.perf_counter() - started

    assert {p: p.stat().st_mtime_ns for p in assets.folder.rglob("*")} == before
    assert seconds < 1, "0.05 s is usual; every preview waits for it"


def test_write_assets_removes_what_earlier_builds_left(tmp_path: Path) -> None:
    folder = tmp_path / "assets/generated"
    for path in ("calculators-00000000.zip", "stdlib-00000000.zip", "pyodide-1.0.0/pyodide.mjs", "other.txt"):
        runtime.replace_file(folder / path, b"old")

    bundle.write_assets(tmp_path)

    assert not list(folder.glob("*-00000000.zip"))
    assert not (folder / "pyodide-1.0.0").exists()
    assert (folder / "other.txt").exists()


def test_without_node_everything_is_plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(precompile, "find_node", lambda: None)
    monkeypatch.setenv("AI_INFRA_CACHE", str(cache_without_derived(tmp_path)))

    assets = bundle.write_assets(tmp_path / "docs")
    pyodide = read_book(assets.folder)["pyodide"]

    assert assets.stdlib == f"{manifest().folder}/python_stdlib.zip"
    assert (pyodide["rest"], pyodide["snapshot"], pyodide["cut"]) == ("", "", "")
    assert pyodide["lock"] == manifest().lock()
    assert (assets.folder / manifest().wheel("numpy").path).exists()
    assert capsys.readouterr().err.count("Node") == 1, "one line says so"


def cache_without_derived(tmp_path: Path) -> Path:
    """A cache with the pinned files and nothing that a Node made."""
    for file in manifest().files:
        if runtime.cached(file).exists():
            runtime.replace_file(tmp_path / "cache" / runtime.cached(file).relative_to(runtime.cache_dir()), runtime.cached(file).read_bytes())
    return tmp_path / "cache"


needs_node = pytest.mark.skipif(precompile.find_node() is None, reason="no Node on PATH and none from playwright")


@needs_node
def test_what_a_node_made_names_itself(tmp_path: Path) -> None:
    """Names hold the hash of the contents; a memory knows the book it was made for."""
    assets = bundle.write_assets(tmp_path)
    pyodide = read_book(assets.folder)["pyodide"]

    for name in (pyodide["snapshot"], pyodide["cut"], *(p.name for p in assets.folder.glob("shelf-*.bin"))):
        assert hashlib.sha256((assets.folder / name).read_bytes()).hexdigest()[:8] == name.removesuffix(".bin").rpartition("-")[2]
    assert assets.bundle.encode() in gzip.decompress((assets.folder / pyodide["snapshot"]).read_bytes())


@needs_node
def test_cut_machine_is_much_smaller_and_the_same_from_outside(tmp_path: Path) -> None:
    assets = bundle.write_assets(tmp_path)
    cut = gzip.decompress((assets.folder / read_book(assets.folder)["pyodide"]["cut"]).read_bytes())
    whole = (assets.folder / manifest().folder / "pyodide.asm.wasm").read_bytes()

    assert len(cut) < 0.7 * len(whole)
    assert sections(cut).keys() == sections(whole).keys()
    assert {k: v for k, v in sections(cut).items() if k != CODE} == {k: v for k, v in sections(whole).items() if k != CODE}


CODE = 10


def sections(wasm: bytes) -> dict[int, bytes]:
    """A wasm's sections by number (custom ones, 0, joined)."""
    found: dict[int, bytes] = {}
    at = 8
    while at < len(wasm):
        number, at, size, shift = wasm[at], at + 1, 0, 0
        while True:
            byte, at = wasm[at], at + 1
            size |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        found[number] = found.get(number, b"") + wasm[at : at + size]
        at += size
    return found


@needs_node
def test_compiled_wheel_is_the_pinned_one_without_sources(tmp_path: Path) -> None:
    assets = bundle.write_assets(tmp_path)
    lock = read_book(assets.folder)["pyodide"]["lock"]
    facts = lock["packages"]["numpy"]  # type: ignore[index]
    file = assets.folder / manifest().folder / facts["file_name"]  # type: ignore[index]
    names = zipfile.ZipFile(file).namelist()

    assert hashlib.sha256(file.read_bytes()).hexdigest() == facts["sha256"]  # type: ignore[index]
    assert file.stat().st_size < manifest().wheel("numpy").bytes
    assert not [n for n in names if n.endswith((".py", ".pyi", ".h"))]
    assert "numpy/__init__.pyc" in names


def read_book(folder: Path) -> dict[str, dict[str, str]]:
    text = (folder / "book.js").read_text(encoding="utf-8")
    return dict(json.loads(text.removeprefix("globalThis.aiInfraBook = ").removesuffix(";\n")))
