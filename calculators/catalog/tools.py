"""Public calculators, and what they answer for work that this book computes too."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from calculators.catalog.store import read


@dataclass(frozen=True)
class Tool:
    """A public calculator at one commit or release; ``date`` is empty where the commit's date was not noted."""

    name: str
    repo: str
    version: str
    date: str
    what: str


@dataclass(frozen=True)
class Answer:
    """What a tool printed, in the question's unit; None when it stopped with an error.

    ``apart``: why it is not to be compared (another convention, a slightly different question); ``how`` it was asked, where
    there are two ways.
    """

    id: str
    tool: str
    value: float | None = None
    apart: str = ""
    how: str = ""
    stopped: bool = False


@dataclass(frozen=True)
class Case:
    """One piece of work.  ``right``: a target of ours, or arithmetic over targets."""

    of: str
    right: str
    answers: tuple[Answer, ...]


@dataclass(frozen=True)
class Question:
    """Cases with one unit; ``shown`` is the unit of the table; ``why`` explains a tool's differences where they were traced;
    ``by``: whose the right value is.
    """

    title: str
    unit: str
    shown: str
    by: str
    why: dict[str, str]
    cases: tuple[Case, ...]


def _question(raw: dict[str, Any]) -> Question:
    cases = tuple(Case(c["of"], c["right"], tuple(Answer(**a) for a in c["answers"])) for c in raw["cases"])
    return Question(raw["title"], raw["unit"], raw.get("shown", raw["unit"]), raw.get("by", "本书"), raw["why"], cases)


@lru_cache(maxsize=1)
def tools() -> dict[str, Tool]:
    """Every tool by its short name."""
    return {id: Tool(**raw) for id, raw in read("tools")["tools"].items()}


@lru_cache(maxsize=1)
def questions() -> dict[str, Question]:
    """Every question by its metric."""
    return {id: _question(raw) for id, raw in read("tools").items() if isinstance(raw, dict) and id != "tools"}
