"""Sparse weights: bits per element of four storage formats, and bytes of a model whose vocabulary tables stay dense.

``bits`` is the width of a kept value, ``sparsity`` the share of zeros.  Alignment, per-tile padding, row pointers and the scales
of quantised values are left out.  Source: NVIDIA structured sparsity (two bits of index for every kept value); arithmetic.
"""

from __future__ import annotations

from calculators.core.worked import N


def bitmask_bits(sparsity: N, bits: N, one_bit: N) -> N:
    """Kept values, and one bit an element that says where they are."""
    return (1 - sparsity) * bits + one_bit


def csr_bits(sparsity: N, bits: N, index_bits: N) -> N:
    """Every kept value carries its column number."""
    return (1 - sparsity) * (bits + index_bits)


def two_four_bits(bits: N, one_bit: N) -> N:
    """Two of four are kept, each with two bits of position: half the values and one bit an element."""
    return bits / 2 + one_bit


def bitmask_breakeven(bits: N, one_bit: N) -> N:
    """Sparsity from which a bitmask is smaller than the dense matrix."""
    return one_bit / bits


def csr_breakeven(bits: N, index_bits: N) -> N:
    """Sparsity from which CSR is smaller than the dense matrix."""
    return index_bits / (bits + index_bits)


def stored_bytes(params: N, bits: N, bits_per_byte: N) -> N:
    """Bytes of so many elements (``bits_per_byte`` = 8)."""
    return params * bits / bits_per_byte


def read_ratio(dense_weights: N, weights: N, kv: N) -> N:
    """Decode reads weights and KV: speed-up is the ratio of the bytes."""
    return (dense_weights + kv) / (weights + kv)
