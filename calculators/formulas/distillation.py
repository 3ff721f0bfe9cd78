"""Distillation: what the teacher adds to a training run, what its answers take on disk, when the small model pays back.

The temperature part is Hinton, Vinyals, Dean 2015 (arXiv 1503.02531) §2.1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from calculators.core.worked import N
from calculators.formulas.training import training_flops

KEPT_LOGIT_BYTES = 6.0
"""One kept logit: a 2-byte value and a 4-byte index."""


def teacher_flops(two: N, params: N, tokens: N) -> N:
    """One forward pass over every token: 2ND, a training step's count with 2 FLOP in the place of 6."""
    return training_flops(params, tokens, two)


def logit_bytes(tokens: N, per_token: N, each: N) -> N:
    """Stored answers of the teacher: so many numbers a token, so many bytes each."""
    return tokens * per_token * each


def breakeven_mtok(one_off: N, teacher_price: N, student_price: N) -> N:
    """Millions of output tokens after which the price gap has paid the one-off cost."""
    return one_off / (teacher_price - student_price)


def encoder_embedding(vocab: N, positions: N, token_types: N, d: N) -> N:
    """Token, position and segment tables, and the LayerNorm (scale and bias) after them."""
    return (vocab + positions + token_types) * d + 2 * d


def encoder_layer(d: N, ffn: N) -> N:
    """Q, K, V, output (d × d with bias), two feed-forward matrices with biases, two LayerNorms."""
    return 4 * (d * d + d) + 2 * d * ffn + ffn + d + 4 * d


def encoder_pooler(d: N) -> N:
    """The dense layer over the first token."""
    return d * d + d


def softmax(logits: Sequence[float], temperature: float) -> list[float]:
    """softmax(z ÷ T), the largest subtracted first."""
    top = max(logits)
    raw = [math.exp((z - top) / temperature) for z in logits]
    total = math.fsum(raw)
    return [v / total for v in raw]


def entropy_bits(probs: Sequence[float]) -> float:
    """−Σ p·log2 p; a class of probability 0 adds nothing."""
    return max(0.0, -math.fsum(p * math.log2(p) for p in probs if p > 0))


def soft_gradient(student: Sequence[float], teacher: Sequence[float], temperature: float) -> list[float]:
    """∂KL ÷ ∂(student logits) = (q − p) ÷ T, both softened by T."""
    q, p = softmax(student, temperature), softmax(teacher, temperature)
    return [(a - b) / temperature for a, b in zip(q, p, strict=True)]


def norm(vector: Sequence[float]) -> float:
    """L2."""
    return math.sqrt(math.fsum(v * v for v in vector))
