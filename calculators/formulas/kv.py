"""KV cache: bytes a token, bytes a request, and the arithmetic of vLLM's two start-up lines.

Elements are per token and layer, K and V together.  ``memory``, ``pool`` … are bytes (or quantities of bytes).
Sources: Kwon et al. 2023 (PagedAttention) §3; DeepSeek-V2 report §2.1 (the latent); vllm v1/core/kv_cache_utils.py.
Block rounding inside a sequence (at most block − 1 tokens) and CUDA-graph pools are left out.
"""

from __future__ import annotations

from calculators.core.worked import N, floor, smaller


def kv_elements(kv_heads: N, head_dim: N) -> N:
    """K and V of every KV head: all heads in MHA, the groups in GQA, one in MQA."""
    return 2 * kv_heads * head_dim


def latent_elements(kv_lora_rank: N, rope_dim: N) -> N:
    """MLA: one latent that serves K and V, and one rotary key.  No factor 2."""
    return kv_lora_rank + rope_dim


def element_bytes(kv_bytes: N, group: N, scale_bytes: N) -> N:
    """Bytes of an element whose ``group`` neighbours share one scale: q8_0 of llama.cpp is 1 + 2/32."""
    return kv_bytes + scale_bytes / group


def bytes_per_token(elements: N, layers: N, each: N) -> N:
    """All layers, nothing windowed."""
    return elements * layers * each


def bytes_per_request(elements: N, each: N, full_layers: N, window_layers: N, context: N, window: N) -> N:
    """One sequence: full layers keep every token, windowed ones the last ``window`` (0: linear layers that keep no K and V)."""
    return elements * each * (full_layers * context + window_layers * smaller(context, window))


def pool_bytes(memory: N, utilization: N, weights: N, other: N) -> N:
    """What is left for the cache on one card; ``other``: peak activations and everything outside PyTorch."""
    return memory * utilization - weights - other


def block_count(pool: N, block: N, per_token: N) -> N:
    """Whole blocks of ``block`` tokens in the pool."""
    return floor(pool / (block * per_token))


def cache_tokens(blocks: N, block: N) -> N:
    """Tokens that the blocks hold: the line "GPU KV cache size", and the longest single request."""
    return blocks * block


def max_concurrency(tokens: N, max_model_len: N) -> N:
    """The line "Maximum concurrency": requests at once when each is as long as allowed.  Below 1 the engine refuses to start."""
    return tokens / max_model_len
