"""What a layer keeps when tensor parallelism cuts it, what recomputation gives up, and how many checkpoints to set.

Per token and layer, a block keeps a part that tensor parallelism cuts and a part that stays whole on every card (the
inputs of the norms, the dropout masks behind them); sequence parallelism cuts that part too.
Source: Korthikanti et al. 2022, Eq. 1 and Table 2; Chen et al. 2016 for the √n rule.
"""

from __future__ import annotations

from calculators.core.worked import N, ceil, sqrt

GPT_WHOLE = 10
"""× h bytes that tensor parallelism leaves whole: inputs of two LayerNorms 4, of attention and MLP 4, two dropout masks 2."""
GPT_CUT = 24
"""× h bytes that it cuts: Q, K, V and the input of the output projection 8, of GeLU and of the second MLP matrix 16."""


def cut_layer_bytes(whole: N, cut: N, tp: N, sp: bool) -> N:
    """Bytes per token and layer on one card; with sequence parallelism everything is divided."""
    return (whole + cut) / tp if sp else whole + cut / tp


def crossover_seq(linear_bytes: N, a: N, bytes_per_score: N) -> N:
    """The sequence length at which the scores weigh as much as everything else: 34h ÷ 5a for a GPT block."""
    return linear_bytes / (bytes_per_score * a)


def attention_share(attention_flops: N, matrix_flops: N) -> N:
    """What selective recomputation repeats, as a share of the forward pass: s ÷ (6h + s) for a GPT block."""
    return attention_flops / (attention_flops + matrix_flops)


def share_of_step(share_of_forward: N) -> N:
    """Forward 1, backward 2: a share of the forward pass is a third of that of the step."""
    return share_of_forward / 3


def checkpoint_bytes(tokens: N, k: N, layers: N, layer: N, kept: N) -> N:
    """k checkpoints, and the full activations of the one segment that is being recomputed."""
    return tokens * (k * kept + ceil(layers / k) * layer)


def best_segments(layers: N, layer: N, kept: N) -> N:
    """k* = √(L·a/c), were segments divisible at will."""
    return sqrt(layers * layer / kept)


def checkpoint_bound(tokens: N, layers: N, layer: N, kept: N) -> N:
    """2√(L·a·c): no k gets below."""
    return 2 * sqrt(layers * layer * kept) * tokens
