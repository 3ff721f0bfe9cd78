"""Data parallelism: a step whose gradient all-reduce runs behind the backward pass, and what a larger batch costs.

FLOP per active parameter and token: 2 forward, 4 backward, 6 with full recomputation.  Attention, the optimizer step and
stragglers are left out.  The overlap model (equal buckets, a pipeline of two stages) is ours.
"""

from __future__ import annotations

from dataclasses import dataclass

from calculators.core.worked import N, larger

FORWARD_FLOP, BACKWARD_FLOP, RECOMPUTE_FLOP = 2, 4, 2


def pass_seconds(flop_per_param: N, active_params: N, tokens: N, flops_per_s: N) -> N:
    """Seconds of a pass over ``tokens`` tokens on one GPU."""
    return flop_per_param * active_params * tokens / flops_per_s


def exposed_seconds(backward: N, comm: N, buckets: N) -> N:
    """What sticks out of the backward pass: the last bucket, or all that is left when the all-reduces are the slower ones.

    Equal buckets: the first waits for the first part of the backward pass.  The step lasts
    forward + max(backward + comm/buckets, backward/buckets + comm).
    """
    return larger(comm / buckets, backward / buckets + comm - backward)


@dataclass(frozen=True)
class Bucket:
    """When a bucket's gradients are ready, and when its all-reduce runs."""

    ready: float
    start: float
    end: float


def bucket_schedule(forward: float, backward: float, comm: float, buckets: int) -> list[Bucket]:
    """One all-reduce after the other, each as soon as its gradients are there."""
    schedule, free = [], 0.0
    for i in range(buckets):
        ready = forward + backward * (i + 1) / buckets
        start = max(ready, free)
        free = start + comm / buckets
        schedule.append(Bucket(ready, start, free))
    return schedule


def steps_factor(batch: N, critical_batch: N) -> N:
    """Steps ÷ fewest possible steps for the same loss: 1 + B_crit/B (McCandlish et al. 2018)."""
    return 1 + critical_batch / batch


def data_factor(batch: N, critical_batch: N) -> N:
    """Samples ÷ fewest possible samples for the same loss: 1 + B/B_crit."""
    return 1 + batch / critical_batch


def mean_of_means(a: N, b: N) -> N:
    """Every micro-batch counts the same: wrong when they hold different numbers of tokens."""
    return (a + b) / 2


def token_weighted(a: N, b: N, tokens_a: N, tokens_b: N) -> N:
    """Every token counts the same."""
    return (a * tokens_a + b * tokens_b) / (tokens_a + tokens_b)
