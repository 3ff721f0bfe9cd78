"""How fast a training run reads its data, and how large the data is."""

from __future__ import annotations

from calculators.core.worked import N

UINT16_VOCAB = 65_536
"""Token ids 0 … 65,535 fit into two bytes."""


def tokens_per_s(n_gpus: N, achieved_flops: N, params: N, six: N) -> N:
    """Cards × achieved FLOP/s ÷ 6N, attention left out (``six`` = 6 FLOP): the convention of ``train-time``."""
    return n_gpus * achieved_flops / (six * params)


def id_bytes(vocab: int) -> int:
    """Bytes of one stored token id: uint16 as long as the vocabulary fits, else uint32."""
    return 2 if vocab <= UINT16_VOCAB else 4
