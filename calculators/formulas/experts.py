"""Expert parallelism: bytes of the all-to-all per token and layer, the arithmetic that might hide them, how routing spreads.

Source: DeepSeek-V3 report §3.2.2 and §3.2.1 (each token goes to at most M nodes, over InfiniBand once a node, on inside it
over NVLink).
"""

from __future__ import annotations

from calculators.core.worked import N, ceil
from calculators.formulas.params import gated_ffn_params


def token_bytes(copies: N, h: N, elem_bytes: N) -> N:
    """One hidden vector, sent to ``copies`` places."""
    return copies * h * elem_bytes


def leaving_share(nodes: N) -> N:
    """Experts picked evenly over the nodes: the share of copies that leave the token's own node."""
    return 1 - 1 / nodes


def layer_flops(two: N, experts: N, h: N, f: N, attention: N) -> N:
    """Forward FLOP of one token in one MoE layer: the experts that it visits and the attention projections."""
    return two * experts * gated_ffn_params(h, f) + attention


def same_cost_experts(nodes: N, intra: N, inter: N) -> N:
    """How many experts a token may visit before NVLink, which fans out inside a node, takes longer than InfiniBand: ⌈M·intra/inter⌉."""
    return ceil(nodes * intra / inter)


def routed_params(layers: N, experts: N, h: N, f: N) -> N:
    """All routed experts of all layers."""
    return layers * experts * gated_ffn_params(h, f)
