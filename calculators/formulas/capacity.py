"""Cards for a load with latency limits: the batch that memory, cap and SLO allow, and the time that a replica spends on one request.

A replica prefills each request alone and decodes ``batch`` together; a static batch waits for its longest request (H_B).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from calculators.core.worked import N
from calculators.formulas.batching import harmonic
from calculators.formulas.inference import Engine, Shape, kv_request, largest_true, prefill_seconds, step_parts

MOST_BATCH = 10_000_000


@dataclass(frozen=True)
class Replica:
    """One replica: what its working cards deliver, what its pool holds, what was promised.  0 = no limit."""

    shape: Shape
    engine: Engine
    pool_bytes: float
    batch_cap: int
    tpot_slo_s: float
    waits_for_longest: bool


@dataclass(frozen=True)
class Plan:
    """One request on the replica."""

    batch_kv_max: int
    batch: int
    step_s: float
    prefill_s: float
    stretch: float
    """Steps per output token: H_B when a static batch waits for its longest request, else 1."""
    seconds: float


def kv_batch(replica: Replica, prompt: int, output: int) -> int:
    """Whole requests that the pool holds at full length; a model without KV is held to a large number."""
    each = kv_request(replica.shape, replica.engine.kv_bytes, float(prompt + output))
    return int(min(replica.pool_bytes // each, MOST_BATCH)) if each else MOST_BATCH


def step_s(replica: Replica, batch: int, prompt: int, output: int) -> float:
    """One step, halfway through the output."""
    return max(step_parts(replica.shape, replica.engine, float(batch), prompt + output / 2))


def request_seconds(prefill: N, output: N, stretch: N, step: N, batch: N) -> N:
    """Replica time per request: its prefill alone, its share of the decode steps."""
    return prefill + output * stretch * step / batch


def plan(replica: Replica, prompt: int, output: int) -> Plan:
    """Largest batch within pool, cap and SLO.  ``batch`` is 0 when nothing fits or even one request misses the SLO."""
    fits = kv_batch(replica, prompt, output)
    most = min(fits, replica.batch_cap) if replica.batch_cap else fits
    batch = most if not replica.tpot_slo_s else largest_true(lambda b: step_s(replica, b, prompt, output) <= replica.tpot_slo_s, 1, most)
    if batch < 1:
        return Plan(fits, 0, step_s(replica, 1, prompt, output), 0.0, 1.0, 0.0)
    step = step_s(replica, batch, prompt, output)
    prefill = prefill_seconds(replica.shape, replica.engine, 1.0, float(prompt))
    stretch = harmonic(min(batch, 100_000)) if replica.waits_for_longest else 1.0
    return Plan(fits, batch, step, prefill, stretch, request_seconds(prefill, float(output), stretch, step, float(batch)))


def effective_tpot(batch: N, per_request: N, output: N) -> N:
    """Between two tokens of one user once prefills share the cards."""
    return batch * per_request / output


def without_slo(replica: Replica, cap: int) -> Replica:
    """The same replica with a fixed largest batch."""
    return replace(replica, tpot_slo_s=0.0, batch_cap=cap)
