"""Sources of the figures that no calculator and no data sheet gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from calculators.catalog.store import entries

Kind = Literal["fact", "rule", "claim", "derived", "unverified"]
KINDS: tuple[Kind, ...] = ("fact", "rule", "claim", "derived", "unverified")


@dataclass(frozen=True)
class Figure:
    """One value of a reference.

    ``differs_from`` (claims): the target that refutes it.  ``expr`` (derived): arithmetic over other targets.
    """

    value: float | str | None
    unit: str = ""
    where: str = ""
    differs_from: str = ""
    expr: str = ""


@dataclass(frozen=True)
class Reference:
    """A source with its figures.  Kinds: see ``references.toml``."""

    id: str
    kind: Kind
    title: str
    source: str
    date: str
    checked: str
    values: Mapping[str, Figure]
    note: str = ""


def _build(id: str, raw: dict[str, Any]) -> Reference:
    figures = {name: Figure(**({"value": v} if not isinstance(v, dict) else {"value": None, **v})) for name, v in raw.get("values", {}).items()}
    return Reference(id, raw["kind"], raw["title"], raw.get("source", ""), raw.get("date", ""), raw.get("checked", ""), figures, raw.get("note", ""))


@lru_cache(maxsize=1)
def references() -> dict[str, Reference]:
    """Every reference by id.  A chapter keeps its own in ``references/<chapter>.toml``; ids are unique over all of them."""
    return {id: _build(id, raw) for id, raw in entries("references").items()}


def reference(id: str) -> Reference:
    """The reference of that id.  Raises KeyError."""
    return references()[id]
