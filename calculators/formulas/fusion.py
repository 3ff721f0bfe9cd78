"""Fusing memory-bound operations: the bytes and the launches of a chain, and of the elementwise part of a decoder layer.

Every operation reads its inputs from HBM and writes its output back; a fused kernel keeps what passes between its
operations in registers.  NVIDIA, Optimizing Memory-Limited Layers.
"""

from __future__ import annotations

from calculators.core.worked import N


def unfused_passes(ops: N, extra: N) -> N:
    """Passes over a tensor when every operation is a kernel: each reads and writes it, each extra tensor is read once."""
    return 2 * ops + extra


def fused_passes(extra: N) -> N:
    """One kernel: the first input and the extra tensors are read, the last output is written."""
    return 2 + extra


def inner_passes(ops: N) -> N:
    """Passes that only hand a result from one kernel to the next; these may find it in the L2 cache."""
    return 2 * (ops - 1)


def crossover_elements(launch_s: N, bytes_per_s: N, elem_bytes: N) -> N:
    """Tensor size at which one launch takes as long as one read and one write: above it a kernel is bandwidth-bound."""
    return launch_s * bytes_per_s / (2 * elem_bytes)


# Bytes per token of the elementwise part of a decoder layer in BF16: two RMSNorms, SwiGLU, rotary embedding of q and k,
# two residual additions.  h hidden, f feed-forward width, q and kv the widths of the query and key projections.

NORM_EAGER, NORM_FUSED = 36, 4
"""RMSNorm with its FP32 up-cast as six kernels, and as one (the fusion planner's graph ``rmsnorm``)."""
SWIGLU_EAGER, SWIGLU_FUSED = 10, 6
ROTARY_EAGER, ROTARY_FUSED = 12, 4
"""x·cos, rotate(x)·sin and their sum as three kernels; read and written once."""
RESIDUAL = 6
"""Two reads, one write: nothing to fuse with inside the layer."""


def elementwise_bytes(h: N, f: N, q: N, kv: N, norm: N, swiglu: N, rotary: N, residual: N) -> N:
    """Two norms, one SwiGLU, rotary on q and k, two residual additions."""
    return 2 * norm * h + swiglu * f + rotary * (q + kv) + 2 * residual * h


def elementwise_flops(h: N, f: N, q: N, kv: N) -> N:
    """About 4 FLOP an element for a norm, 5 for SwiGLU, 6 for the rotary embedding, 1 for an addition."""
    return 2 * 4 * h + 5 * f + 6 * (q + kv) + 2 * h
