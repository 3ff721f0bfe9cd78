"""A caching allocator like PyTorch's large pool: best fit, split, merge inside a segment, give whole segments back.

Sizes in bytes.  Source: pytorch/pytorch c10/cuda/CUDACachingAllocator.cpp (512 B rounding, 20 MiB segments below 10 MiB,
2 MiB multiples from there, a remainder above 1 MiB is split off).  One stream; the pool of small blocks is left out.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

MIB = 2**20
ROUND_BLOCK = 512
SEGMENT_BELOW_10_MIB = 20 * MIB
FROM_HERE_EXACT = 10 * MIB
ROUND_SEGMENT = 2 * MIB
WORTH_SPLITTING = MIB


class OutOfMemory(Exception):
    """A new segment would pass the cap, even after every wholly free segment went back."""


@dataclass(eq=False)
class Block:
    """A stretch of one segment; ``before`` and ``after`` are its neighbours there.  ``used``: bytes asked for, 0 when free."""

    segment: int
    offset: int
    size: int
    used: int = 0
    before: Block | None = None
    after: Block | None = None

    @property
    def key(self) -> tuple[int, int, int]:
        """Order of the free list: the smallest first, ties by address."""
        return (self.size, self.segment, self.offset)

    @property
    def is_whole_segment(self) -> bool:
        return self.before is None and self.after is None


def rounded_up(size: int, step: int) -> int:
    return -(-size // step) * step


def segment_size(size: int) -> int:
    """What a request asks of the driver when nothing free fits."""
    return SEGMENT_BELOW_10_MIB if size < FROM_HERE_EXACT else rounded_up(size, ROUND_SEGMENT)


class CachingAllocator:
    """``cap`` in bytes, 0 for none; ``expandable``: one segment that grows page by page."""

    def __init__(self, cap: float = 0, expandable: bool = False) -> None:
        self.cap = cap
        self.expandable = expandable
        self.first: dict[int, Block] = {}
        self.last: Block | None = None
        self.free_keys: list[tuple[int, int, int]] = []
        self.free_blocks: dict[tuple[int, int, int], Block] = {}
        self.live = self.reserved = self.segments_allocated = self.segments_freed = 0

    def malloc(self, size: int) -> Block:
        """The smallest free block that fits, else a new segment.  Raises OutOfMemory."""
        size = rounded_up(size, ROUND_BLOCK)
        block = self._best_fit(size) or self._new_segment(size)
        self._forget(block)
        if block.size - size > WORTH_SPLITTING or (self.expandable and block.size > size):
            self._split(block, size)
        block.used = size
        self.live += size
        return block

    def free(self, block: Block) -> None:
        """Keep the block for later; merge it with free neighbours of the same segment."""
        self.live -= block.used
        block.used = 0
        if block.after is not None and not block.after.used:
            self._forget(block.after)
            self._absorb(block, block.after)
        if block.before is not None and not block.before.used:
            self._forget(block.before)
            block = block.before
            assert block.after is not None
            self._absorb(block, block.after)
        self._remember(block)

    def stretches(self) -> list[tuple[int, int, bool]]:
        """(start, end, used) of every block, segments laid end to end in the order in which they were allocated."""
        found, base = [], 0
        for head in self.first.values():
            block: Block | None = head
            while block is not None:
                found.append((base, base + block.size, block.used > 0))
                base, block = base + block.size, block.after
        return found

    def _best_fit(self, size: int) -> Block | None:
        at = bisect_left(self.free_keys, (size, -1, -1))
        return self.free_blocks[self.free_keys[at]] if at < len(self.free_keys) else None

    def _new_segment(self, size: int) -> Block:
        if self.expandable and self.last is not None:
            return self._grow(self.last, size)
        wanted = rounded_up(size, ROUND_SEGMENT) if self.expandable else segment_size(size)
        if not self._has_room(wanted):
            self._give_back()
            if not self._has_room(wanted):
                raise OutOfMemory
        block = self.last = self.first[self.segments_allocated] = Block(self.segments_allocated, 0, wanted)
        self.segments_allocated += 1
        self.reserved += wanted
        self._remember(block)
        return block

    def _grow(self, tail: Block, size: int) -> Block:
        """Map more pages behind the last block, which is taken along when it is free."""
        missing = rounded_up(size if tail.used else size - tail.size, ROUND_SEGMENT)
        if not self._has_room(missing):
            raise OutOfMemory
        self.reserved += missing
        if tail.used:
            block = self.last = tail.after = Block(tail.segment, tail.offset + tail.size, missing, before=tail)
        else:
            block = tail
            self._forget(block)
            block.size += missing
        self._remember(block)
        return block

    def _has_room(self, size: int) -> bool:
        return not self.cap or self.reserved + size <= self.cap

    def _give_back(self) -> None:
        for block in [b for b in self.free_blocks.values() if b.is_whole_segment]:
            self._forget(block)
            del self.first[block.segment]
            self.reserved -= block.size
            self.segments_freed += 1

    def _split(self, block: Block, size: int) -> None:
        rest = Block(block.segment, block.offset + size, block.size - size, before=block, after=block.after)
        if rest.after is not None:
            rest.after.before = rest
        block.size, block.after = size, rest
        if self.last is block:
            self.last = rest
        self._remember(rest)

    def _absorb(self, block: Block, following: Block) -> None:
        block.size, block.after = block.size + following.size, following.after
        if block.after is not None:
            block.after.before = block
        if self.last is following:
            self.last = block

    def _remember(self, block: Block) -> None:
        insort(self.free_keys, block.key)
        self.free_blocks[block.key] = block

    def _forget(self, block: Block) -> None:
        del self.free_keys[bisect_left(self.free_keys, block.key)]
        del self.free_blocks[block.key]
