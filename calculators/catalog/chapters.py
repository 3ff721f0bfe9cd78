"""Chapters in book order and the five reading routes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from calculators.catalog.store import read


@dataclass(frozen=True)
class Chapter:
    """One chapter; ``minutes`` is its reading time, 0 for the appendix."""

    id: str
    slug: str
    title: str
    part: str
    minutes: int
    star: bool

    @property
    def heading(self) -> str:
        """The text of its level-1 heading."""
        return f"{self.id} · {self.title}" if self.id != "A" else f"附录 A · {self.title}"


@dataclass(frozen=True)
class Route:
    """A way through the book; ``stated_min`` is the promised time, None where no sum can be promised."""

    id: str
    title: str
    chapters: tuple[str, ...]
    stated: str
    stated_min: int | None
    star: bool


@lru_cache(maxsize=1)
def chapters() -> dict[str, Chapter]:
    """Every chapter by id, in book order."""
    return {raw["id"]: Chapter(**raw) for raw in read("chapters")["chapter"]}


@lru_cache(maxsize=1)
def routes() -> dict[str, Route]:
    """Every route by id."""
    return {
        raw["id"]: Route(raw["id"], raw["title"], tuple(raw["chapters"]), raw["stated"], raw.get("stated_min"), raw["star"])
        for raw in read("chapters")["route"]
    }
