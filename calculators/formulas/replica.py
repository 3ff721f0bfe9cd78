"""One replica under random arrivals, iteration by iteration: who is admitted, which prompt tokens run, when tokens come out.

First come, first served; a request is admitted when the KV pool holds its whole prompt and output.  ``prefill-first`` runs whole
prompts alone while any waits, ``chunked`` gives every decode one token and the rest of a token budget to prompts.
Sources: Yu et al. 2022 (Orca); Agrawal et al. 2024 (Sarathi-Serve).  A prompt's own attention is left out.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Request:
    """Arrival in seconds, prompt and output tokens."""

    arrival: float
    prompt: int
    output: int


@dataclass(frozen=True)
class StepCost:
    """Seconds of an iteration: ``read_s`` + ``read_token_s`` a context token, or ``token_s`` a token + ``attend_s`` a context token."""

    read_s: float
    read_token_s: float
    token_s: float
    attend_s: float

    def seconds(self, tokens: int, context: int) -> float:
        return max(self.read_s + self.read_token_s * context, self.token_s * tokens + self.attend_s * context)


@dataclass(frozen=True)
class Served:
    """When a request's first and last token came out."""

    first: float
    finish: float


def simulate(requests: Sequence[Request], cost: StepCost, pool: int, *, chunked: bool, budget: int, max_prefill: int) -> list[Served]:
    """Run until all are done; ``requests`` in the order of arrival.

    A decoding request is kept by the decode step at which it ends, so an iteration costs O(1) however many decode.
    """
    total = len(requests)
    first, finish = [0.0] * total, [0.0] * total
    waiting: deque[int] = deque()
    prompts: deque[list[int]] = deque()  # [request, prompt tokens left]
    ends: list[tuple[int, int]] = []  # (decode step, request)
    now, used, arrived, step, decoding, context = 0.0, 0, 0, 0, 0, 0
    done = 0
    while done < total:
        while arrived < total and requests[arrived].arrival <= now:
            waiting.append(arrived)
            arrived += 1
        while waiting and used + requests[waiting[0]].prompt + requests[waiting[0]].output <= pool:
            i = waiting.popleft()
            used += requests[i].prompt + requests[i].output
            prompts.append([i, requests[i].prompt])
        if not prompts and not decoding:
            now = requests[arrived].arrival
            continue
        ready: list[int] = []
        decodes = decoding if chunked or not prompts else 0
        room, taken = (max(0, budget - decodes), 0) if chunked else (max_prefill, 0)
        while prompts and taken < room:
            part = min(prompts[0][1], room - taken) if chunked else prompts[0][1]
            taken += part
            prompts[0][1] -= part
            if prompts[0][1] == 0:
                ready.append(prompts.popleft()[0])
        now += cost.seconds(decodes + taken, context if decodes else 0)
        if decodes:
            step += 1
            context += decodes
            while ends and ends[0][0] <= step:
                _, i = heapq.heappop(ends)
                finish[i] = now
                used -= requests[i].prompt + requests[i].output
                context -= requests[i].prompt + requests[i].output
                decoding -= 1
                done += 1
        for i in ready:
            first[i] = now
            if requests[i].output == 1:
                finish[i] = now
                used -= requests[i].prompt + 1
                done += 1
                continue
            heapq.heappush(ends, (step + requests[i].output - 1, i))
            decoding += 1
            context += requests[i].prompt + 1
    return [Served(a, b) for a, b in zip(first, finish, strict=True)]


def goodput(rates: Sequence[float], attained: Sequence[float], target: float) -> float | None:
    """Largest rate on the straight-line interpolation that still reaches ``target``; None when no rate of the grid does."""
    best = None
    for k, (rate, share) in enumerate(zip(rates, attained, strict=True)):
        if share >= target:
            best = rate
            if k + 1 < len(rates) and attained[k + 1] < target:
                best = rate + (rates[k + 1] - rate) * (share - target) / (share - attained[k + 1])
    return best
