"""Activations that a modern decoder layer keeps for its backward pass: bytes per token and layer in BF16, no dropout.

Kept, in units of (elements × 2 bytes): input and output of both norms (4h), Q and the attention output (2·a·hd), K and V
(2·kv·hd), gate, up and their product (3f).  Counted from autograd on a Hugging Face decoder layer, exactly.
"""

from __future__ import annotations

from calculators.core.worked import N

SCORE_BYTES = {"flash": 0, "unfused": 5, "unfused-no-dropout": 2}
"""Bytes per score that attention keeps: softmax output 2, dropout output 2, dropout mask 1; FlashAttention keeps none.
Korthikanti et al. 2022, Eq. 1 (the 5as/h term)."""


def layer_bytes(h: N, a: N, kv: N, hd: N, f: N, ffn_copies: int = 6) -> N:
    """8h + 4·a·hd + 4·kv·hd + 6f bytes per token; ``ffn_copies`` 8 when silu(gate) is kept too (unfused SwiGLU)."""
    return 8 * h + 4 * a * hd + 4 * kv * hd + ffn_copies * f


def plain_norm_bytes(h: N, a: N) -> N:
    """What plain modules keep besides: an FP32 copy of each norm's input and its rsqrt, the log-sum-exp of attention."""
    return 8 * h + 4 * a + 8


def score_bytes(bytes_per_score: N, a: N, seq: N) -> N:
    """The attention scores of one token and layer: a heads × seq keys."""
    return bytes_per_score * a * seq


def stack_bytes(tokens: N, layers: N, layer: N) -> N:
    """Everything kept: tokens × layers × bytes per token and layer."""
    return tokens * layers * layer


def full_recompute_bytes(tokens: N, layers: N, layer: N, h: N) -> N:
    """Only the layer inputs (2h bytes each) and one layer in flight."""
    return tokens * (2 * h * layers + layer)


def logits_bytes(tokens: N, vocab: N, bytes_per_logit: N) -> N:
    """BF16 logits 2, their FP32 copy 4, the BF16 gradient 2: 8 bytes per token and vocabulary entry."""
    return tokens * vocab * bytes_per_logit
