"""Fine-tuning with low-rank adapters: how many parameters are trained, and what the frozen base weighs.

Sources: Hu et al. 2021 (LoRA), Dettmers et al. 2023 (QLoRA).
"""

from __future__ import annotations

from calculators.core.worked import N


def attention_ends(h: N, a: N, kv: N, hd: N, wide: N, narrow: N) -> N:
    """in + out of the adapted attention matrices: ``wide`` of Q and the output projection, ``narrow`` of K and V."""
    return wide * (h + a * hd) + narrow * (h + kv * hd)


def ffn_ends(h: N, f: N) -> N:
    """in + out of gate, up and down together."""
    return 3 * (h + f)


def adapter_params(r: N, layers: N, ends: N) -> N:
    """A (r × in) and B (out × r) beside every adapted matrix of every layer."""
    return r * layers * ends


def quantised_bytes(params: N, bits: N, bits_per_byte: N) -> N:
    """Frozen weights in ``bits`` bits each, block constants included."""
    return params * bits / bits_per_byte
