"""FSDP: what stands on a card at the worst moment of a step, and how large a decoder layer is.

Source: PyTorch FSDP2 ``fully_shard`` (sharded on dim 0, one unit gathered at a time).
"""

from __future__ import annotations

from calculators.catalog import Model
from calculators.core.worked import N, larger

OUTSIDE_LAYERS = ("input_table", "output_head", "position_table", "per_layer_table", "vision_tower")
EXPERT_PARTS = ("routed_experts", "shared_experts", "router")


def layer_params(model: Model) -> int:
    """Parameters of the largest decoder layer: norms included, of a mixture of experts one with all its experts.

    The final norm is taken to be one vector (RMSNorm, gated feed-forward) or two (LayerNorm with a bias).
    """
    parts = model.breakdown
    outside = sum(parts.get(name, 0) for name in OUTSIDE_LAYERS)
    experts = sum(parts.get(name, 0) for name in EXPERT_PARTS)
    final_norm = model.hidden * (1 if model.ffn_gated else 2)
    body = model.total_params - outside - final_norm
    if model.moe is None or model.layers == model.moe.dense_layers:
        return body // model.layers
    return (body - experts - parts.get("dense_ffn", 0)) // model.layers + experts // (model.layers - model.moe.dense_layers)


def embedding_params(model: Model) -> int:
    """The input table: vocabulary × hidden."""
    return model.vocab * model.hidden


def smallest_dim0(model: Model) -> int:
    """Rows of the parameter with the fewest: K and V, a norm, or the router."""
    rows = [model.hidden, model.kv_heads * model.head_dim if model.head_dim else model.hidden]
    return min(rows if model.moe is None else [*rows, model.moe.experts])


def gathered_bytes(units: N, layer: N, embedding: N) -> N:
    """Layers on hand (the present one and those fetched ahead), or the embedding when that alone is larger."""
    return larger(units * layer, embedding)
