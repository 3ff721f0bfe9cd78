"""What is counted in one layer, and how layers add up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Layer:
    """One layer of a plan.

    ``mix`` says what mixes tokens: ``full``, ``window``, ``chunk`` (attention), ``linear`` (a fixed state), ``both``,
    ``shared`` (Zamba's blocks), ``none``.  ``feed``: ``dense``, ``moe``, ``none``.  ``sizes`` override the config's.
    """

    index: int
    mix: str = "full"
    feed: str = "dense"
    sizes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Block:
    """Parameters by part (the catalog's names), and what the part costs at run time.

    ``kv``: values cached per token.  ``window``: how many tokens they are kept for, 0 = all.  ``score``: multiply-adds per
    attended token.  ``idle``: parameters of routed experts that a token does not visit, None when unknown.
    """

    params: Mapping[str, int] = field(default_factory=dict)
    kv: int = 0
    window: int = 0
    score: int = 0
    idle: int | None = 0


def total(blocks: Iterable[Block]) -> dict[str, int]:
    """Parameters by part over all blocks, empty parts left out."""
    sum_by_part: Counter[str] = Counter()
    for block in blocks:
        sum_by_part.update(block.params)
    return {part: count for part, count in sum_by_part.items() if count}


def idle(blocks: Iterable[Block]) -> int | None:
    """Parameters that a token does not visit, None when one block does not know."""
    counts = [block.idle for block in blocks]
    known = [c for c in counts if c is not None]
    return sum(known) if len(known) == len(counts) else None
