"""Quantised weights: true bits a weight, size of a checkpoint, time of a step with them.

A scale (and a zero point) is shared by a group of weights, so it costs its bits divided by the group.
Sources: Frantar et al. 2210.17323 (GPTQ, groups); OCP Microscaling v1.0 (32 values, 8-bit E8M0); NVIDIA NVFP4 (16 values, 8-bit E4M3).
"""

from __future__ import annotations

from dataclasses import dataclass

from calculators.core.worked import N

TABLE_BITS = 16.0
"""Embedding and lm_head stay in BF16."""


@dataclass(frozen=True)
class Scheme:
    """How a weight is stored.  ``group`` 0: one scale a row, below 0.01 bit and left out."""

    name: str
    bits: int
    group: int = 0
    scale_bits: int = 0
    zero_bits: int = 0


SCHEMES: dict[str, Scheme] = {
    "bf16": Scheme("BF16", 16),
    "int8": Scheme("INT8 每行一个 scale", 8),
    "fp8": Scheme("FP8", 8),
    "int4-g128": Scheme("INT4，128 个一组", 4, 128, 16),
    "int4-g128-zp": Scheme("INT4，128 个一组，带 4 位零点", 4, 128, 16, 4),
    "int4-g32": Scheme("INT4，32 个一组", 4, 32, 16),
    "mxfp4": Scheme("MXFP4", 4, 32, 8),
    "nvfp4": Scheme("NVFP4", 4, 16, 8),
}


def bits_per_weight(bits: N, scale_bits: N, zero_bits: N, group: N) -> N:
    """Payload plus the group's share of its scale and zero point."""
    return bits + (scale_bits + zero_bits) / group


def stored_bytes(params: N, bits: N) -> N:
    """8 bits a byte."""
    return params * bits / 8


def step_weight_bytes(read: N, head: N, bits: N, two: N) -> N:
    """Weights that a decode step reads: the output head in BF16 (``two`` = 2 B), everything else quantised."""
    return (read - head) * bits / 8 + head * two


def compute_seconds(flops: N, flops_per_s: N, efficiency: N) -> N:
    """Matrix products at what is left of the peak after dequantising."""
    return flops / (flops_per_s * efficiency)
