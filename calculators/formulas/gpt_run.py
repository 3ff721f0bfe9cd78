"""Megatron's own accounting of a GPT run with full recomputation.  Narayanan et al. 2021, eqs. 2–4.

The shape is GPT's: four h × h attention matrices, a feed-forward of 4h without a gate, all heads with K and V of their own,
one vocabulary table.  Not Llama's.
"""

from __future__ import annotations

from calculators.core.worked import N

HARDWARE_FLOP = 96
"""Forward 24, its repetition 24, backward 48, per token, layer and h²."""
MODEL_FLOP = 72
"""Without the repetition."""


def gpt_params(layers: N, h: N, vocab: N, seq: N) -> N:
    """Eq. 2: 12lh²(1 + 13/12h + (V + s)/12lh)."""
    return 12 * layers * h * h * (1 + 13 / (12 * h) + (vocab + seq) / (12 * layers * h))


def hardware_flops(flop: N, batch: N, seq: N, layers: N, h: N, vocab: N) -> N:
    """Eq. 3, ``flop`` = 96 FLOP: what the cards compute in an iteration."""
    return flop * batch * seq * layers * h * h * (1 + seq / (6 * h) + vocab / (16 * layers * h))


def model_flops(flop: N, batch: N, seq: N, layers: N, h: N, vocab: N) -> N:
    """``flop`` = 72 FLOP: what the model asks for.  The head is not recomputed, hence 12 in place of 16."""
    return flop * batch * seq * layers * h * h * (1 + seq / (6 * h) + vocab / (12 * layers * h))
