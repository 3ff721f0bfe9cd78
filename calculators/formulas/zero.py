"""ZeRO: what each stage cuts over n ranks, and what it sends.

Stage 1 cuts the optimizer's part of the states, 2 the gradients too, 3 the weights too.  Volumes are counted in passes: one
pass moves a BF16 copy of all parameters once, (n−1)/n of it per rank.  Source: Rajbhandari et al. 2020 (ZeRO) §3, §5, §7.
"""

from __future__ import annotations

from collections.abc import Callable

from calculators.core.worked import N
from calculators.formulas.collectives import allreduce_factor
from calculators.formulas.recipes import sharded_bytes_per_param

STAGES = (0, 1, 2, 3)
STAGE_NAMES = {0: "DDP", 1: "ZeRO-1", 2: "ZeRO-2", 3: "ZeRO-3"}
CPU_ADAM_BYTES = 28
"""Per parameter, streamed by an optimizer step on the host: FP32 gradient read 4; master, m and v read and written 3 × 8."""


def stage_bytes_per_param(stage: int, weight: N, grad: N, optimizer: N, ranks: N) -> N:
    """Bytes per parameter that one rank keeps."""
    if stage == 0:
        return weight + grad + optimizer
    if stage == 1:
        return sharded_bytes_per_param(weight, grad, optimizer, ranks)
    return weight + (grad + optimizer) / ranks if stage == 2 else (weight + grad + optimizer) / ranks


PASSES: dict[int, tuple[tuple[str, Callable[[int, bool], int]], ...]] = {
    0: (("reduce-scatter 梯度", lambda k, once: 1), ("all-gather 梯度", lambda k, once: 1)),
    1: (("reduce-scatter 梯度", lambda k, once: 1), ("all-gather 新参数", lambda k, once: 1)),
    2: (("reduce-scatter 梯度", lambda k, once: 1 if once else k), ("all-gather 新参数", lambda k, once: 1)),
    3: (
        ("all-gather 参数，前向", lambda k, once: k),
        ("all-gather 参数，反向", lambda k, once: k),
        ("reduce-scatter 梯度", lambda k, once: 1 if once else k),
    ),
}
"""Collectives of an optimizer step with k micro-batches, and how many passes each makes.  Stage 0 calls its two an all-reduce."""


def volume_passes(stage: int, micro_batches: int, reduced_once: bool) -> int:
    """All passes of an optimizer step: 2 (stage 2: k + 1 when every micro-batch reduces its gradients), or 2k + 1 (then 3k) at stage 3."""
    return sum(count(micro_batches, reduced_once) for _, count in PASSES[stage])


def best_step(compute: float, comm: float) -> float:
    """Lower bound of a step: perfect overlap."""
    return max(compute, comm)


def forward_gathers(stage: int, micro_batches: int) -> int:
    """Gathers of an optimizer step that only the forward pass of one micro-batch can hide: new parameters once, or every time at stage 3."""
    return (0, 1, 1, micro_batches)[stage]


def hybrid_states(states: N, shard: N) -> N:
    """HSDP: states per rank when they are cut inside a group of ``shard`` ranks and repeated across groups."""
    return states / shard


def hybrid_inter_bytes(gradients: N, shard: N, replicas: N) -> N:
    """HSDP: what a rank sends between groups, an all-reduce of its shard of the gradients over the ``replicas``."""
    return allreduce_factor(replicas) * gradients / shard
