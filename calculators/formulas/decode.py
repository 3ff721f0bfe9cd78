"""Decode: which bytes does one generated token read?  Weights once a step, every sequence its own KV cache."""

from __future__ import annotations

from calculators.catalog.models import Model
from calculators.core.worked import N, power


def params_per_token(model: Model, count_input_embedding: bool = True) -> int:
    """Parameters that one token touches (the active ones of a mixture of experts).

    Without the look-up tables (input embedding of an untied model, learned positions) it is a strict floor: of a table
    one row is read, not all.  A tied table is read once as the output head and stays in.
    """
    if count_input_embedding:
        return model.active_params
    return model.active_params_no_input_embedding - model.breakdown.get("position_table", 0)


def experts_touched(top_k: N, experts: N, tokens: N) -> N:
    """Expected share of the experts that a step of so many tokens touches: independent, uniform routing."""
    return 1 - power(1 - top_k / experts, tokens)


def moe_params_read(per_token: N, routed: N, top_k: N, experts: N, touched: N) -> N:
    """Parameters that a step reads: those of one token, its own experts exchanged for all the touched ones."""
    return per_token - routed * top_k / experts + routed * touched


def params_read(model: Model, tokens: int, count_input_embedding: bool = True) -> float:
    """Parameters that a step of ``tokens`` tokens reads: one token, the active ones; many tokens, nearly all experts."""
    per_token = float(params_per_token(model, count_input_embedding))
    if model.moe is None or tokens == 1:
        return per_token
    top_k, experts = float(model.moe.top_k), float(model.moe.experts)
    return moe_params_read(per_token, float(model.moe.routed_params), top_k, experts, experts_touched(top_k, experts, float(tokens)))


def kv_split(model: Model, tp: int) -> int:
    """Over how many of ``tp`` cards the KV cache divides: by KV heads; the latent of MLA is replicated."""
    return 1 if model.mla is not None else max(1, min(tp, model.kv_heads))  # a model without KV has no heads to split


def step_seconds(weight_bytes_per_card: N, kv_bytes_per_card: N, bytes_per_s: N) -> N:
    """One decode step cannot be faster than the reading of what each card holds."""
    return (weight_bytes_per_card + kv_bytes_per_card) / bytes_per_s


def decode_flops(active_params: N, batch: N, two: N) -> N:
    """Forward pass of one token in every sequence (``two`` = 2 FLOP per parameter), attention left out."""
    return two * active_params * batch
