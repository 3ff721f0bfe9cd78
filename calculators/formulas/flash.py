"""FlashAttention beyond its FLOPs: traffic of the second generation, what a pass costs, what it keeps, cycles of one tile.

Traffic is counted in elements of one head, as in ``attention``; n tokens, head size d.
"""

from __future__ import annotations

from calculators.core.worked import N

PASS_FACTOR = {"fwd": 1.0, "bwd": 2.5, "fwd+bwd": 3.5}
"""Matrix products relative to the two of the forward pass: the backward has five (it recomputes S, then dV, dP, dQ, dK).

Source: benchmark scripts of flash-attention (FA2, FA3) and Dao 2023, §4.1.
"""


def flash2_elements(n: N, d: N, query_blocks: N) -> N:
    """FA2 without any cache hit: Q read and O written once, K and V read once for every query block, one log-sum-exp a row.

    Source: Dao 2023 (FlashAttention-2), Algorithm 1.
    """
    return 2 * n * d + 2 * n * d * query_blocks + n


def score_bytes(n: N, heads: N, bytes_per_score: N) -> N:
    """The n × n scores of all heads, were they kept."""
    return heads * n * n * bytes_per_score


def log_sum_exp_bytes(n: N, heads: N, bytes_per_row: N) -> N:
    """What FlashAttention keeps of the softmax for its backward pass: one FP32 number for each row."""
    return heads * n * bytes_per_row


def tile_matmul_cycles(tile: N, d: N, flop_per_cycle: N) -> N:
    """QKᵀ and PV of a tile × tile block: 4·tile²·d FLOP on the tensor cores of one SM."""
    return 4 * tile * tile * d / flop_per_cycle


def tile_exp_cycles(tile: N, exp_per_cycle: N) -> N:
    """One exponential for every score of the tile, on the special function units of one SM."""
    return tile * tile / exp_per_cycle
