"""Documents of uneven length in rows of fixed length: what is padding, what is cut, who shares a row with whom.

Attention pairs of a row with f real tokens: f² (the causal half gives the same share); inside documents Σ len².
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SHORTEST = 8


@dataclass(frozen=True)
class Row:
    """``parts``: real tokens of each document (piece) in this row; ``width``: tokens that the row allocates."""

    parts: tuple[int, ...]
    width: int


def one_per_row(lengths: Sequence[int], seq: int) -> list[Row]:
    """Every document padded to ``seq``."""
    return [Row((length,), seq) for length in lengths]


def longest_of_group(lengths: Sequence[int], batch: int) -> list[Row]:
    """Groups of ``batch`` in the given order, padded to the group's longest."""
    rows: list[Row] = []
    for i in range(0, len(lengths), batch):
        group = lengths[i : i + batch]
        width = max(group)
        rows.extend(Row((length,), width) for length in group)
    return rows


def next_fit(lengths: Sequence[int], seq: int) -> list[Row]:
    """Each document into the last row if it has room, else a new row: nothing to look back for."""
    rows: list[list[int]] = []
    room = 0
    for length in lengths:
        if length > room:
            rows.append([])
            room = seq
        rows[-1].append(length)
        room -= length
    return [Row(tuple(parts), seq) for parts in rows]


def chopped(lengths: Sequence[int], seq: int) -> tuple[list[Row], int]:
    """All documents end to end, cut every ``seq`` tokens; also how many documents a cut goes through."""
    rows: list[list[int]] = [[]]
    room, cut = seq, 0
    for length in lengths:
        left = length
        while left > room:
            if room:
                rows[-1].append(room)
                left -= room
            rows.append([])
            room = seq
        cut += left < length
        rows[-1].append(left)
        room -= left
    return [Row(tuple(parts), seq) for parts in rows], cut


def real_share(rows: Sequence[Row]) -> float:
    """Real tokens over allocated tokens."""
    return sum(sum(row.parts) for row in rows) / sum(row.width for row in rows)


def cross_share(rows: Sequence[Row]) -> float:
    """Attention pairs between different documents over all pairs of real tokens in a row."""
    inside = sum(part * part for row in rows for part in row.parts)
    fills = [sum(row.parts) for row in rows]
    return 1 - inside / sum(fill * fill for fill in fills)
