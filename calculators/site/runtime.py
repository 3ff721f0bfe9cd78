"""Fetches the files that run Python in a browser and verifies each.

``runtime.toml`` is the manifest.  A file is accepted only with the manifest's sha256, whatever source it came from.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO

_HERE = Path(__file__).parent
_CDN_TIMEOUT_S = 8
_TOOL_TIMEOUT_S = 1200
"""One slow download of 106 MB; not meant to be reached."""


class FetchError(Exception):
    """No source gave a file; the message says which were asked, why each failed and what to do."""


class SourceFailed(Exception):
    """This source cannot help; the next one is asked."""


@dataclass(frozen=True)
class RuntimeFile:
    """One pinned file, with its address in each source (``""`` where that source lacks it)."""

    path: str
    bytes: int
    sha256: str
    package: str
    version: str
    licence: str
    optional: bool = False
    cdn: str = ""
    npm: str = ""
    npm_member: str = ""
    pip_member: str = ""

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    def matches(self, path: Path) -> bool:
        """Is the file there, whole and unchanged?"""
        try:
            return path.stat().st_size == self.bytes and file_sha256(path) == self.sha256
        except OSError:
            return False


@dataclass(frozen=True)
class Manifest:
    """``runtime.toml``."""

    pyodide: str
    folder: str
    shim: str
    cdn: str
    pip: str
    pip_python: str
    files: tuple[RuntimeFile, ...]
    lock_info: dict[str, object]
    lock_packages: dict[str, dict[str, object]]

    def file(self, name: str) -> RuntimeFile:
        """The pinned file of that name.  Raises StopIteration."""
        return next(f for f in self.files if f.name == name)

    def wheel(self, package: str) -> RuntimeFile:
        """The pinned wheel of a package that the lock names."""
        return next(f for f in self.files if f.package == package)

    def lock(self, compiled: Mapping[str, tuple[str, str]] | None = None) -> dict[str, object]:
        """Pyodide's lock, cut to the packages we carry; ``compiled`` names the file and its sha256 that stand in for a package's wheel."""
        packages = {}
        for name, facts in self.lock_packages.items():
            wheel = self.wheel(name)
            file, sha256 = (compiled or {}).get(name, (wheel.name, wheel.sha256))
            packages[name] = {**facts, "file_name": file, "sha256": sha256}
        return {"info": self.lock_info, "packages": packages}


@lru_cache(maxsize=1)
def manifest() -> Manifest:
    """The pinned files."""
    raw = tomllib.loads((_HERE / "runtime.toml").read_text(encoding="utf-8"))
    files = tuple(RuntimeFile(**entry) for entry in raw.pop("file"))
    lock = raw.pop("lock")
    return Manifest(**raw, files=files, lock_info=lock["info"], lock_packages=lock["packages"])


def cache_dir() -> Path:
    """Where downloads are kept between builds and checkouts: ``$AI_INFRA_CACHE`` or the user's cache folder."""
    if chosen := os.environ.get("AI_INFRA_CACHE"):
        return Path(chosen).expanduser()
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "ai-infra-calculators"


def fetch(target: Path, in_cache: Collection[str] = ()) -> tuple[RuntimeFile, ...]:
    """Put every pinned file under ``target``, those of the packages ``in_cache`` into the cache only; what verifies is left alone.

    Returns the optional files that no source had.  Raises FetchError.
    """
    pinned = manifest()
    missing = [f for f in pinned.files if not f.matches(cached(f) if f.package in in_cache else target / f.path)]
    failures: list[str] = []
    for label, ask in _SOURCES.items():
        wanted = [f for f in missing if not f.matches(cached(f))]
        if not wanted or (ask is _from_pip and not any(f.pip_member for f in wanted)):
            break
        try:
            for file, data in ask(pinned, wanted):
                _store(file, data)
        except SourceFailed as failure:
            failures.append(f"{label}：{failure}")
    absent = tuple(f for f in missing if not f.matches(cached(f)))
    if needed := [f.name for f in absent if not f.optional]:
        raise FetchError(
            f"运行时文件没有取到：{'、'.join(needed)}\n"
            + "".join(f"  {failure}\n" for failure in failures)
            + f"任选一种办法再运行一次：连上能访问 CDN 的网络；装好 npm；让 pip 能下载 {pinned.pip}；"
            f"或者从另一台构建过的机器把缓存目录拷到 {cache_dir()}"
        )
    for file in missing:
        if file not in absent and file.package not in in_cache:
            replace_file(target / file.path, cached(file).read_bytes())
    return absent


def cached(file: RuntimeFile) -> Path:
    """Where the cache keeps the file, if it does."""
    return cache_dir() / file.sha256[:16] / file.name


def _store(file: RuntimeFile, data: bytes) -> None:
    found = hashlib.sha256(data).hexdigest()
    if found != file.sha256:
        raise SourceFailed(f"{file.name} 的 sha256 是 {found[:12]}…，应为 {file.sha256[:12]}…")
    try:
        replace_file(cached(file), data)
    except OSError as error:
        raise FetchError(f"缓存目录写不进去：{error}。设环境变量 AI_INFRA_CACHE 换一个目录再试") from None


_Given = Iterator[tuple[RuntimeFile, bytes]]


def _from_cdn(pinned: Manifest, wanted: list[RuntimeFile]) -> _Given:
    for file in wanted:
        request = urllib.request.Request(pinned.cdn + file.cdn, headers={"User-Agent": "ai-infra-calculators"})
        try:
            with urllib.request.urlopen(request, timeout=_CDN_TIMEOUT_S) as response:
                yield file, response.read()
        except (urllib.error.URLError, OSError) as error:
            raise SourceFailed(f"{file.name} {getattr(error, 'reason', error)}") from None


def _from_npm(_: Manifest, wanted: list[RuntimeFile]) -> _Given:
    npm = shutil.which("npm")
    if npm is None:
        raise SourceFailed("没有装 npm")
    for package in dict.fromkeys(f.npm for f in wanted if f.npm):
        with tempfile.TemporaryDirectory() as folder:
            run_tool([npm, "pack", package, "--silent", "--pack-destination", folder], folder)
            with tarfile.open(next(Path(folder).glob("*.tgz"))) as tarball:
                for file in wanted:
                    if file.npm == package:
                        yield file, _member(tarball.extractfile, file.npm_member, package)


def _from_pip(pinned: Manifest, wanted: list[RuntimeFile]) -> _Given:
    print(f"从 {pinned.pip} 的 wheel 里取运行时（106 MB，只此一次）……", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        run_tool(
            [*_pip(), "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:",
             "--python-version", pinned.pip_python, "--dest", folder, pinned.pip],
            folder,
        )  # fmt: skip
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
            for file in wanted:
                if file.pip_member:
                    yield file, _member(wheel.open, file.pip_member, pinned.pip)


def _pip() -> list[str]:
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    for name in ("pip3", "pip"):  # an environment made by uv has none of its own
        if found := shutil.which(name):
            return [found]
    raise SourceFailed("没有装 pip")


_SOURCES: dict[str, Callable[[Manifest, list[RuntimeFile]], _Given]] = {"jsDelivr CDN": _from_cdn, "npm": _from_npm, "pip": _from_pip}


def _member(open_member: Callable[[str], IO[bytes] | None], name: str, package: str) -> bytes:
    try:
        stream = open_member(name)
    except KeyError:
        stream = None
    if stream is None:
        raise SourceFailed(f"{package} 里没有 {name}")
    with stream:
        return stream.read()


def run_tool(command: list[str], folder: str) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_TOOL_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SourceFailed(str(error)) from None
    if done.returncode != 0:
        last = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()][-1:]
        raise SourceFailed(f"{' '.join(command[:4])} … 退出码 {done.returncode}：{''.join(last)[:200]}")


def file_sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def replace_file(path: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=path.suffix)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
