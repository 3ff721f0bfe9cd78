"""A KV pool under load: contiguous reservations from a buddy allocator, or pages.  Simulations, seeded.

All requests are there at t = 0, served first come first served, each running one yields a token a step.
Reference: Kwon et al. 2023 (PagedAttention), Fig. 2 and 13; the length distribution is ShareGPT-like, not ShareGPT.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

SMALLEST = 16
"""Slots of the smallest chunk of the buddy allocator."""
STEP = 16
"""Tokens that a paged iteration generates for every running request."""
FRAMES = 40
"""Maps of the pool that a film keeps at most."""


@dataclass(frozen=True)
class Request:
    """``prompt`` tokens come, ``output`` tokens follow."""

    prompt: int
    output: int

    @property
    def whole(self) -> int:
        return self.prompt + self.output


@dataclass(frozen=True)
class Hold:
    """A piece of the pool that a request holds: ``asked`` slots from ``at``, of which ``useful`` hold tokens and ``whole`` ever will."""

    at: int
    useful: int
    whole: int
    asked: int


@dataclass
class Film:
    """What a policy did while somebody waited.

    ``shares`` of the pool, time-averaged: useful, reserved for tokens to come, inside a reservation for nobody, outside all
    reservations.  None when nobody ever waited.  ``frames``: maps of the pool at up to ``FRAMES`` moments, evenly thinned out.
    """

    shares: tuple[float, float, float, float] | None = None
    batch: float | None = None
    preemptions: int = 0
    times: list[int] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    frames: list[tuple[int, Callable[[], list[Hold]]]] = field(default_factory=list)
    every: int = 1

    def show(self, time: int, running: int, freeze: Callable[[], Callable[[], list[Hold]]]) -> None:
        """Note a moment; ``freeze`` copies the state when this moment is one of those that are kept, and returns how to draw it."""
        if len(self.times) % self.every == 0:
            self.frames.append((time, freeze()))
            if len(self.frames) > FRAMES:
                self.frames = self.frames[::2]
                self.every *= 2
        self.times.append(time)
        self.running.append(running)


def up_to_power_of_two(n: int) -> int:
    """The smallest power of two that is not below n."""
    return 1 << (n - 1).bit_length()


def reserved_slots(policy: str, request: Request, max_len: int) -> int:
    """How much a contiguous policy asks for: the longest, the next power of two, or exactly what an oracle knows."""
    asked = {"max": max_len, "pow2": min(max_len, request.prompt + up_to_power_of_two(request.output)), "oracle": request.whole}
    return asked[policy]


class Buddy:
    """Chunks of powers of two.  The pool is cut into roots of ``max_len`` and the rest into ever smaller powers of two."""

    def __init__(self, pool: int, max_len: int) -> None:
        self.free: dict[int, list[int]] = {}
        self.root: dict[int, tuple[int, int]] = {}
        """Address of a taken chunk → its root's address and size."""
        self.roots: list[tuple[int, int]] = []
        at, size = 0, max_len
        while size >= SMALLEST:
            while pool - at >= size:
                self.roots.append((at, size))
                self.free.setdefault(size, []).append(at)
                at += size
            size //= 2

    def take(self, slots: int) -> tuple[int, int] | None:
        """Smallest chunk that is large enough, lowest address, split down to the wanted power of two: (address, size)."""
        wanted = max(SMALLEST, up_to_power_of_two(slots))
        fitting = [size for size, free in self.free.items() if size >= wanted and free]
        if not fitting:
            return None
        size = min(fitting)
        at = min(self.free[size])
        self.free[size].remove(at)
        while size > wanted:
            size //= 2
            self.free.setdefault(size, []).append(at + size)
        return at, size

    def give(self, at: int, size: int) -> None:
        """Free a chunk; merge it with its buddy as long as that is free and of the same root."""
        root, whole = next((r, s) for r, s in self.roots if r <= at < r + s)
        while size < whole:
            buddy = root + ((at - root) ^ size)
            if buddy not in self.free.get(size, []):
                break
            self.free[size].remove(buddy)
            at, size = min(at, buddy), 2 * size
        self.free.setdefault(size, []).append(at)


class Counter:
    """No allocator at all: a request fits when enough slots are free, wherever they are."""

    def __init__(self, pool: int) -> None:
        self.left = pool

    def take(self, slots: int) -> tuple[int, int] | None:
        if slots > self.left:
            return None
        self.left -= slots
        return 0, slots

    def give(self, at: int, size: int) -> None:
        self.left += size


def contiguous(requests: list[Request], policy: str, pool: int, max_len: int, buddy: bool) -> Film:
    """Event by event: a request leaves when it has generated its output, and the head of the queue may enter.

    Between events every running request grows by one useful slot a step, so the integrals are exact.  The window ends
    when the last request has been admitted.
    """
    chunks = Buddy(pool, max_len) if buddy else Counter(pool)
    running: dict[int, tuple[int, int, int, int]] = {}  # number → admitted at, address, size, asked
    film, waiting, now = Film(), deque(range(len(requests))), 0
    useful = reserved = internal = batch = 0.0

    def admit() -> None:
        while waiting:
            asked = reserved_slots(policy, requests[waiting[0]], max_len)
            chunk = chunks.take(asked)
            if chunk is None:
                return
            running[waiting.popleft()] = (now, *chunk, asked)

    def freeze() -> Callable[[], list[Hold]]:
        held = [Hold(at, requests[n].prompt + now - since, requests[n].whole, asked) for n, (since, at, _, asked) in running.items()]
        return lambda: sorted(held, key=lambda hold: hold.at) if buddy else packed(held)

    admit()
    while waiting:
        film.show(now, len(running), freeze)
        end, leaving = min((since + requests[number].output, number) for number, (since, *_) in running.items())
        span = end - now
        for number, (since, _, _, asked) in running.items():
            request = requests[number]
            grown = span * (request.prompt + (now - since) + span / 2)
            useful += grown
            reserved += span * request.whole - grown
            internal += span * (asked - request.whole)
        batch += span * len(running)
        now = end
        _, at, size, _ = running.pop(leaving)
        chunks.give(at, size)
        admit()
    if now:
        whole = pool * now
        film.shares = (useful / whole, reserved / whole, internal / whole, (whole - useful - reserved - internal) / whole)
        film.batch = batch / now
    return film


def packed(held: list[Hold]) -> list[Hold]:
    """Without addresses: one after another."""
    out, at = [], 0
    for hold in held:
        out.append(Hold(at, hold.useful, hold.whole, hold.asked))
        at += hold.asked
    return out


def whole_blocks(tokens: int, block: int) -> int:
    """The part of a prefix that fills whole blocks: only those are shared."""
    return tokens // block * block


def paged(requests: list[Request], pool: int, block: int) -> Film:
    """Iterations of ``STEP`` tokens: admit while blocks are free, grow in order of admission, preempt the youngest when none is."""
    free = list(range(pool // block))[::-1]
    generated = [0] * len(requests)
    blocks: list[list[int]] = [[] for _ in requests]
    running: list[int] = []
    film, waiting, now = Film(), deque(range(len(requests))), 0
    sums, batch = [0, 0], 0

    def needed(number: int) -> int:
        return -(-(requests[number].prompt + generated[number]) // block)

    def freeze() -> Callable[[], list[Hold]]:
        held = [(requests[n].prompt + generated[n], list(blocks[n])) for n in running]

        def draw_pages() -> list[Hold]:
            pages = sorted((at * block, min(block, tokens - i * block)) for tokens, own in held for i, at in enumerate(own))
            return [Hold(at, used, used, block) for at, used in pages]

        return draw_pages

    def release(number: int) -> None:
        free.extend(reversed(blocks[number]))
        blocks[number] = []

    while waiting or running:
        while waiting and needed(waiting[0]) <= len(free):
            number = waiting.popleft()
            blocks[number] = [free.pop() for _ in range(needed(number))]
            running.append(number)
        for number in list(running):
            if number not in running:
                continue
            grown = min(generated[number] + STEP, requests[number].output)
            lacking = -(-(requests[number].prompt + grown) // block) - len(blocks[number])
            while lacking > len(free):
                youngest = running.pop()
                release(youngest)
                waiting.appendleft(youngest)
                film.preemptions += 1
                if youngest == number:
                    break
            else:
                generated[number] = grown
                blocks[number] += [free.pop() for _ in range(lacking)]
        if waiting:
            used = sum(requests[n].prompt + generated[n] for n in running)
            held = sum(len(blocks[n]) for n in running) * block
            sums[0] += used
            sums[1] += held - used
            batch += len(running)
            film.show(now, len(running), freeze)
        now += STEP
        for number in [n for n in running if generated[n] >= requests[n].output]:
            running.remove(number)
            release(number)
    moments = len(film.times)
    if moments:
        whole = pool * moments
        film.shares = (sums[0] / whole, 0.0, sums[1] / whole, (whole - sums[0] - sums[1]) / whole)
        film.batch = batch / moments
    return film
