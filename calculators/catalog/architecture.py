"""Parameter counts computed from a preset's dimensions, by the same counting that reads a config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping

from calculators.catalog.models import Model


def as_config(model: Model) -> dict[str, object]:
    """A preset as the config.json that describes it.  Biases and q/k norms are known from its list of small terms."""
    small = model.small_terms_per_layer
    config: dict[str, object] = {
        "model_type": model.family, "hidden_size": model.hidden, "num_hidden_layers": model.layers, "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads, "intermediate_size": model.ffn, "vocab_size": model.vocab, "tie_word_embeddings": model.tied,
        "max_position_embeddings": model.max_context, "attention_bias": "attn.q_proj.bias" in small, "use_qk_norm": "attn.q_norm" in small,
    }  # fmt: skip
    if model.mla is not None:
        config |= {
            "q_lora_rank": model.mla.q_lora_rank or None, "kv_lora_rank": model.mla.kv_lora_rank, "qk_nope_head_dim": model.mla.qk_nope_head_dim,
            "qk_rope_head_dim": model.mla.qk_rope_head_dim, "v_head_dim": model.mla.v_head_dim,
        }  # fmt: skip
    else:
        config["head_dim"] = model.head_dim
    if model.moe is not None:
        config |= {
            "num_experts": model.moe.experts, "num_experts_per_tok": model.moe.top_k, "moe_intermediate_size": model.moe.ffn,
            "n_shared_experts": model.moe.shared, "first_k_dense_replace": model.moe.dense_layers,
        }  # fmt: skip
    return config


def counted(model: Model) -> Model:
    """The preset's dimensions counted afresh: a model whose totals owe nothing to the stored ones."""
    from calculators.catalog.configs.reader import read_config

    return read_config(json.dumps(as_config(model)))


def scores(model: Model) -> Mapping[int, int]:
    """Multiply-adds per attended token over all layers, by window (0 = the whole context)."""
    if model.scores is not None:
        return model.scores
    if model.mla is not None:
        each = model.heads * (model.mla.qk_nope_head_dim + model.mla.qk_rope_head_dim + model.mla.v_head_dim)
    else:
        each = 2 * model.heads * model.head_dim
    window = model.sliding_window
    if window is None:
        return {0: model.layers * each}
    return {0: window["full_layers"] * each, window["window"]: window["sliding_layers"] * each}


def window_kv_bytes_per_token(model: Model) -> int:
    """The part of the KV bytes that only windowed layers keep, and only for a window of tokens."""
    if model.kv_window_bytes_per_token is not None:
        return model.kv_window_bytes_per_token
    window = model.sliding_window
    return model.kv_bytes_per_token * window["sliding_layers"] // model.layers if window else 0
