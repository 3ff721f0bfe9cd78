"""Context parallelism: one sequence on c cards.  What each card receives, and who works how much under the causal mask.

Every byte count is one card's, for one forward pass of one layer, K and V (or Q, K, V and the output) together.

Sources: Llama 3 report §3.3.2 (all-gather of K and V, 2c chunks paired first with last); Jacobs et al. 2023 (Ulysses);
Liu et al. 2023 (ring attention).  The last two from memory.
"""

from __future__ import annotations

from calculators.core.worked import N
from calculators.formulas.collectives import one_pass_factor
from calculators.formulas.kv import kv_elements


def kv_bytes(seq: N, head_dim: N, kv_heads: N, elem_bytes: N) -> N:
    """K and V of the whole sequence, as one tensor-parallel rank would hold them."""
    return kv_elements(kv_heads, head_dim) * seq * elem_bytes


def gathered_bytes(c: N, kv: N) -> N:
    """All-gather or ring: everyone else's K and V."""
    return one_pass_factor(c) * kv


def exchanged_bytes(c: N, seq: N, head_dim: N, q_heads: N, kv_heads: N, elem_bytes: N) -> N:
    """Ulysses: an all-to-all each for Q, K, V and the output; the heads are those of one card while it attends."""
    return one_pass_factor(c) * (elem_bytes * seq * head_dim * (2 * q_heads + 2 * kv_heads))


def attention_forward_flops(queries: N, q: N, four: N) -> N:
    """QKᵀ and PV of one layer; ``q`` is heads × head_dim × seq, halved when causal (formulas.mfu); ``four`` = 4 FLOP."""
    return four * queries * q


def contiguous_work(rank: float, c: float) -> float:
    """Causal work of a rank that holds one stretch of the sequence, as a multiple of the mean: (2·rank + 1) ÷ c."""
    return (2 * rank + 1) / c


def contiguous_imbalance(c: N) -> N:
    """The last rank against the mean."""
    return (2 * c - 1) / c


def contiguous_efficiency(c: N) -> N:
    """Mean against the last rank."""
    return c / (2 * c - 1)


def paired_chunks(rank: int, c: int) -> tuple[int, int]:
    """Of 2c chunks the rank takes one from the front and its mirror image: the same work for everyone."""
    return rank, 2 * c - 1 - rank
