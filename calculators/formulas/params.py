"""Parameter counts of the Llama shape: gated feed-forward, grouped-query attention, RMSNorm, no biases.

QKV biases (Qwen2.5) and q/k norms (Qwen3) are left out: below 0.02 %.
"""

from __future__ import annotations

from calculators.core.worked import N


def attention_params(h: N, a: N, kv: N, hd: N) -> N:
    """Q and output projection (h × a·hd each), K and V (h × kv·hd each)."""
    return 2 * h * a * hd + 2 * h * kv * hd


def gated_ffn_params(h: N, f: N) -> N:
    """Gate, up and down projection."""
    return 3 * h * f


def norm_params(h: N) -> N:
    """Two RMSNorms a layer."""
    return 2 * h


def stack_params(layers: N, layer: N, h: N, table: N, tables: N) -> N:
    """All layers, the final norm, and the vocabulary table once (tied) or twice (input and output head)."""
    return layers * layer + h + tables * table


def llama_params(h: float, layers: float, a: float, kv: float, hd: float, f: float, v: float, tied: bool) -> float:
    """Total parameters of a Llama-shaped model."""
    layer = attention_params(h, a, kv, hd) + gated_ffn_params(h, f) + norm_params(h)
    return stack_params(layers, layer, h, v * h, 1.0 if tied else 2.0)
