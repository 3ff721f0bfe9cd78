"""The memory estimators of DeepSpeed, restated: bytes on a GPU and in the memory of one node.

Source: DeepSpeed docs, Memory Requirements, and the functions estimate_zero2_… and estimate_zero3_model_states_mem_needs.
``n`` GPUs in all, ``g`` of them in a node.  16 = FP32 weight, gradient, m and v; 18 adds the 16-bit weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

from calculators.core.worked import N, Quantity, larger, quantity


@dataclass(frozen=True)
class Setup(Generic[N]):
    """What the estimators take; ``buffer`` is their additional_buffer_factor."""

    params: N
    largest: N
    g: N
    nodes: N
    n: N
    buffer: N


def _each(count: float, like: N) -> N:
    """``count`` bytes per parameter: a plain number beside plain numbers, ``18 字节`` beside quantities."""
    if isinstance(like, Quantity):
        return quantity(count, "B")
    return count


def stage2_gpu(s: Setup[N], offload_optimizer: bool, documented: bool) -> N:
    """``documented``: 4Ψ + 16Ψ/n, as the documentation prints; the code of 0.19.8 counts 2Ψ + 18Ψ/n."""
    whole, cut = (4, 16) if documented else (2, 18)
    if offload_optimizer:
        return _each(2, s.params) * s.params
    return _each(whole, s.params) * s.params + _each(cut, s.params) * s.params / s.n


def stage2_cpu(s: Setup[N], offload_optimizer: bool) -> N:
    """All GPUs in the maximum, where stage 3 counts one node's."""
    four = _each(4, s.params)
    return s.buffer * larger(four * s.n, _each(16, s.params)) * s.params if offload_optimizer else s.buffer * four * s.g * s.params


def stage3_gpu(s: Setup[N], offload_optimizer: bool, offload_param: bool) -> N:
    """The largest layer is gathered: 2 bytes of weights, 2 of gradients."""
    gathered = _each(4, s.largest) * s.largest
    if offload_param:
        return gathered
    return gathered + _each(2 if offload_optimizer else 18, s.params) * s.params / s.n


def stage3_cpu(s: Setup[N], offload_optimizer: bool, offload_param: bool, zero_init: bool) -> N:
    """Without zero.Init every process of the node first builds the whole model in FP32."""
    four, kept = _each(4, s.params), _each(18 if offload_param else 16, s.params)
    if not offload_optimizer:
        return s.buffer * four * s.g * (s.largest if zero_init else s.params)
    return s.buffer * (kept / s.nodes if zero_init else larger(four * s.g, kept / s.nodes)) * s.params
