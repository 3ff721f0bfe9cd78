"""A pruned model is a smaller dense one: its parameters, counted.  Head size stays, so Q and O become h × (heads · head size)."""

from __future__ import annotations

from dataclasses import dataclass

from calculators.catalog.models import Model
from calculators.core.worked import N
from calculators.formulas.params import attention_params, gated_ffn_params, norm_params, stack_params


@dataclass(frozen=True)
class Dims:
    """What pruning may change."""

    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int


def dims_of(model: Model) -> Dims:
    return Dims(model.layers, model.hidden, model.ffn, model.heads, model.kv_heads)


def qkv_bias_params(heads: N, kv_heads: N, head_dim: N) -> N:
    """Biases of Q, K and V (Qwen2)."""
    return (heads + 2 * kv_heads) * head_dim


def has_qkv_bias(model: Model) -> bool:
    return "attn.q_proj.bias" in model.small_terms_per_layer


def pruned_params(model: Model, dims: Dims) -> float:
    """Total parameters of the model with other dimensions."""
    h, hd = float(dims.hidden), float(model.head_dim)
    heads, kv = float(dims.heads), float(dims.kv_heads)
    layer = attention_params(h, heads, kv, hd) + gated_ffn_params(h, float(dims.ffn)) + norm_params(h)
    if has_qkv_bias(model):
        layer += qkv_bias_params(heads, kv, hd)
    return stack_params(float(dims.layers), layer, h, model.vocab * h, 1.0 if model.tied else 2.0)


def read_params(model: Model, dims: Dims) -> float:
    """Parameters that one decode step reads: all but the input table, which is only looked up (a tied one is the head)."""
    return pruned_params(model, dims) - (0 if model.tied else model.vocab * dims.hidden)
