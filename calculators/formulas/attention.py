"""Attention of one head: FLOPs and HBM traffic of the standard and the fused form.

Shapes: m query tokens, n key tokens, head size d.  Traffic is counted in elements; multiply by the element size.
"""

from __future__ import annotations

from calculators.core.worked import N, ceil


def attention_flops(m: N, n: N, d: N, two: N) -> N:
    """QKᵀ and PV: two matrix products of 2·m·n·d FLOP each (``two`` = 2 FLOP per multiply-add)."""
    return 2 * two * m * n * d


def unfused_elements(m: N, n: N, d: N, extra_passes: int = 0) -> N:
    """HBM traffic of the unfused form: write S, read S, write P, read P (4·m·n), Q and O (2·m·d), K and V (2·n·d).

    Each extra pass (scale, mask, dropout as its own kernel) reads and writes the m·n matrix once more.
    Source: Dao et al. 2022, Algorithm 0.
    """
    return (4 + 2 * extra_passes) * m * n + 2 * (m + n) * d


def fused_elements(m: N, n: N, d: N) -> N:
    """The compulsory traffic: read Q, K, V once and write O once."""
    return 2 * (m + n) * d


def asymptotic_elements(n: N, d: N, sram: N) -> N:
    """Leading term of FlashAttention's traffic, n²d²/M, without its constant.  ``sram``: M in elements, d ≤ M ≤ n·d.

    Source: Dao et al. 2022, Theorem 2.
    """
    return n * n * d * d / sram


def key_block(sram: N, d: N) -> N:
    """B_c of Dao et al. 2022, Algorithm 1: how many rows of K and V stay on the chip, ⌈M/4d⌉."""
    return ceil(sram / (4 * d))


def flash1_elements(n: N, d: N, key_blocks: N) -> N:
    """Traffic of Algorithm 1 as written: K and V once; for every key block Q is read, O read and written (3nd), ℓ and m too (4n)."""
    return 2 * n * d + key_blocks * (3 * n * d + 4 * n)
