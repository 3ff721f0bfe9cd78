"""Results for the build: computed once, kept on disk under a key of all source code, so a warm build computes nothing."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from pathlib import Path

from calculators.core.calculator import Value
from calculators.core.index import load

PACKAGE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Printed:
    """What the text needs of a finished run."""

    inputs: dict[str, str]
    values: dict[str, Value]
    texts: dict[str, str]
    lines: list[str]
    verdict: str


@lru_cache(maxsize=1)
def source_hash() -> str:
    """Hash of every source and catalog file: any change of code or data makes every kept result void."""
    digest = hashlib.sha256()
    for path in sorted(p for suffix in ("*.py", "*.toml") for p in PACKAGE.rglob(suffix)):
        digest.update(str(path.relative_to(PACKAGE)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def cache_root() -> Path:
    """The user's cache folder for this project (``AI_INFRA_CACHE`` overrides it)."""
    chosen = os.environ.get("AI_INFRA_CACHE") or os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(chosen) / ("" if os.environ.get("AI_INFRA_CACHE") else "ai-infra-tutorial")


def kept(kind: str, key: str, make: Callable[[], str]) -> str:
    """The text made for ``key``, from disk when the code has not changed since."""
    folder = cache_root() / "results" / source_hash()
    path = folder / f"{kind}-{hashlib.sha256(key.encode()).hexdigest()[:24]}"
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        text = make()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}")
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError:
        pass  # a read-only home only costs time
    return text


@cache
def _printed(id: str, given: tuple[tuple[str, str], ...]) -> Printed:
    def make() -> str:
        calculator = load(id)
        run = calculator.run(dict(given))
        inputs = {i.name: i.text(run.resolved.get(i.name) if run.inputs[i.name] is None else run.inputs[i.name]) for i in calculator.inputs}
        return json.dumps(asdict(Printed(inputs, dict(run.values), dict(run.texts), list(run.lines), run.verdict)), ensure_ascii=False)

    return Printed(**json.loads(kept("run", json.dumps([id, given], ensure_ascii=False), make)))


def printed(id: str, given: dict[str, str]) -> Printed:
    """Run a calculator, or recall the run.  Raises Refusal."""
    load(id)  # an unknown id is refused before a file name is made of it
    return _printed(id, tuple(sorted(given.items())))
