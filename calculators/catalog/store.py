"""Reads the catalog's files: TOML in the repository, the same data as JSON in the browser bundle (it parses at once)."""

from __future__ import annotations

import json
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent


@cache
def read(name: str) -> dict[str, Any]:
    """The table called ``name``: one file, or a folder of files (one a chapter) whose keys are unique over all of them."""
    packed = _HERE / f"{name}.json"
    if packed.exists():
        return dict(json.loads(packed.read_text(encoding="utf-8")))
    folder = _HERE / name
    if not folder.is_dir():
        return tomllib.loads((_HERE / f"{name}.toml").read_text(encoding="utf-8"))
    merged: dict[str, Any] = {}
    for part in sorted(folder.glob("*.toml")):
        for key, value in tomllib.loads(part.read_text(encoding="utf-8")).items():
            if key in merged:
                raise ValueError(f"{name}/{part.name}: {key} stands in another file too")
            merged[key] = value
    return merged


def entries(name: str) -> dict[str, dict[str, Any]]:
    """The table's named entries, without its own header fields."""
    return {key: value for key, value in read(name).items() if isinstance(value, dict)}
