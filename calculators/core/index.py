"""The table of calculators: id → module, by file name.  A module is imported when it is asked for."""

from __future__ import annotations

import importlib
import pkgutil
from difflib import get_close_matches
from functools import cache, lru_cache

from calculators.core.calculator import Calculator
from calculators.core.errors import refuse

TOPICS = ("foundations", "hardware", "single_gpu", "distributed", "inference", "operations")


@lru_cache(maxsize=1)
def modules() -> dict[str, str]:
    """Calculator id → module name.  Raises ImportError when two files claim one id."""
    table: dict[str, str] = {}
    for topic in TOPICS:
        package = importlib.import_module(f"calculators.{topic}")
        for found in pkgutil.iter_modules(package.__path__):
            if found.name.startswith("_"):
                continue
            id = found.name.replace("_", "-")
            if id in table:
                raise ImportError(f"two calculators are called {id}: {table[id]} and {topic}")
            table[id] = f"calculators.{topic}.{found.name}"
    return table


@cache
def load(id: str) -> Calculator:
    """The calculator of that id.  Raises Refusal with the nearest names when there is none."""
    table = modules()
    if id not in table:
        near = get_close_matches(id, table, n=3, cutoff=0.4)
        raise refuse("id", "没有这个计算器", id[:60], f"相近的有 {'、'.join(near)}" if near else "用 python -m calculators list 查看全部")
    module = importlib.import_module(table[id])
    found = getattr(module, table[id].rpartition(".")[2])
    if not isinstance(found, Calculator):
        raise ImportError(f"{table[id]} must define {table[id].rpartition('.')[2]} with @calculator")
    return found


def ids() -> list[str]:
    """Every calculator id, sorted."""
    return sorted(modules())
