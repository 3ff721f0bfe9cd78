"""Attention of one head: FLOPs and HBM traffic of the standard and the fused form.

Shapes: m query tokens, n key tokens, head size d.  Traffic is counted in elements; multiply by the element size.
"""

from __future__ import annotations

from calculators.core.worked import N


def attention_flops(m: N, n: N, d: N, two: N) -> N:
    """QKᵀ and PV: two matrix products of 2·m·n·d FLOP each (``two`` = 2 FLOP per multiply-add)."""
    return 2 * two * m * n * d


def unfused_elements(m: N, n: N, d: N, extra_passes: int = 0) -> N:
    """HBM traffic of the unfused form: write S, read S, write P, read P (4·m·n), Q and O (2·m·d), K and V (2·n·d).

    Each extra pass (scale, mask, dropout as its own kernel) reads and writes the m·n matrix once more.
    Source: Dao et al. 2022, Algorithm 0.
    """
    return (4 + 2 * extra_passes) * m * n + 2 * m * d + 2 * n * d


def fused_elements(m: N, n: N, d: N) -> N:
    """The compulsory traffic: read Q, K, V once and write O once."""
    return 2 * m * d + 2 * n * d
