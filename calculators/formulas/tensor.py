"""Tensor parallelism: what one matrix product costs when t cards share it, and which t divide a model at all.

Per layer and micro-batch four all-reduces of tokens × hidden elements: two forward, two backward, all on the critical path.
Bytes and seconds of one all-reduce come from ``collectives``; every bandwidth is that of one GPU in one direction.

Sources: Shoeybi et al. 2019 (Megatron-LM) §3; Narayanan et al. 2021 §3.2; Megatron-LM's tokenizer for the padded vocabulary.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from calculators.catalog.hardware import Accelerator
from calculators.catalog.models import Model
from calculators.core.errors import refuse
from calculators.core.worked import N, ceil
from calculators.formulas.collectives import Cost, allreduce_factor, ring_allreduce
from calculators.formulas.mfu import attention_core_of_width, flops_per_token
from calculators.formulas.params import attention_params, gated_ffn_params

ALL_REDUCES = 4
"""Per layer and micro-batch: after the attention and after the feed-forward block, forward and backward."""
FORWARD_ALL_REDUCES = 2
LARGEST_TP = 72
"""One NVLink rack."""
ONE_SERVER = 8
NIC_BUS_GB_S = 45.0
"""What a 400 Gb/s NIC gives a ring, per direction: 50 GB/s of line rate at 90 %."""


@dataclass(frozen=True)
class TensorShape:
    """What tensor parallelism divides.  ``ffn`` 0: the width is not known and is not checked."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    matrix_params: float
    """Matrix parameters of one layer: attention and feed-forward, no norms, no biases."""

    @property
    def width(self) -> int:
        """heads × head_dim."""
        return self.heads * self.head_dim

    @property
    def legal(self) -> list[int]:
        return legal_tps(self.heads, self.kv_heads, self.ffn)


def refuse_what_tp_cannot_cut(model: Model, field: str = "model") -> None:
    """Experts are dealt out whole, one latent serves all heads, a recurrent layer has none.  Raises Refusal."""
    if model.moe is not None:
        raise refuse(field, "MoE 的专家用 EP 切，见第 14 章", model.name, "换一个稠密模型")
    if model.mla is not None:
        raise refuse(field, "MLA 的 KV 压成一份，按头切不开，见第 14 章", model.name, "换一个稠密模型")
    if not model.heads or "recurrent" in model.breakdown or (model.kv_layers is not None and model.kv_layers < model.layers):
        raise refuse(field, "每一层都要有 attention 和 FFN，这里才会切", model.name, "换一个普通的 Transformer")


def shape_of(model: Model, field: str = "model") -> TensorShape:
    """A dense model.  Raises Refusal."""
    refuse_what_tp_cannot_cut(model, field)
    matrices = (model.breakdown["attention"] + model.breakdown["dense_ffn"]) / model.layers
    return TensorShape(model.hidden, model.layers, model.heads, model.kv_heads, model.head_dim, model.ffn, matrices)


def llama_shape(hidden: int, layers: int, heads: int, kv_heads: int, head_dim: int, ffn: int) -> TensorShape:
    """Typed dimensions, with a gated feed-forward block."""
    h, a, kv, d, f = float(hidden), float(heads), float(kv_heads), float(head_dim), float(ffn)
    return TensorShape(hidden, layers, heads, kv_heads, head_dim, ffn, attention_params(h, a, kv, d) + gated_ffn_params(h, f))


# ---- which t are legal


def why_illegal(heads: int, kv_heads: int, ffn: int, t: int) -> str:
    """The first rule that t breaks, empty when none: whole heads, whole feed-forward columns, KV heads divided or copied."""
    if heads % t:
        return f"{heads} 个注意力头不能被 {t} 整除"
    if ffn % t:
        return f"FFN {ffn} 不能被 {t} 整除"
    if kv_heads % t and t % kv_heads:
        return f"{kv_heads} 个 KV 头和 {t} 张卡谁也除不尽谁"
    return ""


def legal_tps(heads: int, kv_heads: int, ffn: int) -> list[int]:
    """Every legal t up to one rack."""
    return [t for t in range(1, min(heads, LARGEST_TP) + 1) if not why_illegal(heads, kv_heads, ffn, t)]


def kv_heads_per_gpu(kv_heads: int, t: int) -> int:
    """Below one KV head a card, heads are copied."""
    return max(1, kv_heads // t)


def kv_copies(kv_heads: int, t: int) -> int:
    """On how many cards each KV head lies."""
    return max(1, t // kv_heads)


def padded_vocab(vocab: N, multiple: N) -> N:
    """The next multiple of divisor × t, so that every card gets as many rows."""
    return ceil(vocab / multiple) * multiple


def link_domain(gpu: Accelerator) -> int:
    """How many cards its scale-up link joins: a rack where the data sheet says so, else one server."""
    rack = re.search(r"\((\d+)-\w+ domain\)", gpu.link_kind)
    return int(rack[1]) if rack else ONE_SERVER


def gpt_attention_params(h: N, a: N, kv: N, d: N) -> N:
    """QKV and the output projection, both with biases."""
    return h * (a + 2 * kv) * d + (a + 2 * kv) * d + a * d * h + h


def gpt_ffn_params(h: N, f: N) -> N:
    """Two matrices with biases."""
    return 2 * h * f + f + h


def gpt_norm_params(h: N) -> N:
    """Two LayerNorms.  With MHA and f = 4h the layer has 12h² + 13h parameters in all."""
    return 4 * h


# ---- what it costs in training


def message_bytes(tokens: N, h: N, elem_bytes: N) -> N:
    """One activation of the residual stream: what every all-reduce of a layer carries."""
    return elem_bytes * tokens * h


def layer_allreduce(t: N, message: N, bytes_per_s: N, alpha: N) -> Cost[N]:
    """One of the four."""
    return ring_allreduce(t, message, bytes_per_s, alpha)


def exposed(one: N, hidden_share: N) -> N:
    """Seconds of communication per layer that nothing hides."""
    return ALL_REDUCES * one * (1 - hidden_share)


def layer_traffic(t: N, message: N) -> N:
    """Bytes that each GPU sends per layer and micro-batch."""
    return ALL_REDUCES * allreduce_factor(t) * message


def layer_flops(tokens: N, matrix_params: N, core: N) -> N:
    """Forward and backward of one layer: (6P + 12q) per token; ``core`` is q = heads × head_dim × seq, halved when causal."""
    return tokens * flops_per_token(matrix_params, core)


def layer_seconds(flops: N, t: N, peak_flops: N, efficiency: N) -> N:
    """Computation of one layer, divided evenly."""
    return flops / (t * peak_flops * efficiency)


def share(communication: N, computation: N) -> N:
    """Of the time."""
    return communication / (communication + computation)


@dataclass(frozen=True)
class Layer:
    """One layer on given hardware in plain numbers, for curves and searches."""

    shape: TensorShape
    tokens: float
    seq: float
    causal: bool
    peak_flops: float
    efficiency: float
    alpha: float
    hidden_share: float

    @property
    def flops(self) -> float:
        core = attention_core_of_width(1.0, float(self.shape.width), self.seq, self.causal)
        return layer_flops(self.tokens, self.shape.matrix_params, core)

    def computation(self, t: int) -> float:
        return layer_seconds(self.flops, float(t), self.peak_flops, self.efficiency)

    def communication(self, t: int, bytes_per_s: float) -> float:
        message = message_bytes(self.tokens, float(self.shape.hidden), 2.0)
        return exposed(layer_allreduce(float(t), message, bytes_per_s, self.alpha).seconds, self.hidden_share)

    def share(self, t: int, bytes_per_s: float) -> float:
        return share(self.communication(t, bytes_per_s), self.computation(t))

    def largest_within(self, budget: float, bytes_per_s: float) -> int:
        """Largest legal t whose share is within the budget; 1 costs nothing and is always legal."""
        return max(t for t in self.shape.legal if self.share(t, bytes_per_s) <= budget)


# ---- what it costs in decoding


def decode_seconds(weight_bytes: N, t: N, bytes_per_s: N) -> N:
    """Reading the weights once, a tth on each card."""
    return weight_bytes / (t * bytes_per_s)


def decode_allreduce_seconds(layers: N, latency: N) -> N:
    """Two all-reduces a layer, of a few KB: only their latency counts."""
    return FORWARD_ALL_REDUCES * layers * latency


def near(legal: list[int], wanted: int, most: int = 6) -> str:
    """The legal values closest to what was typed, for a refusal."""
    nearest = sorted(legal, key=lambda t: abs(math.log(t / wanted)))[:most]
    return "、".join(str(t) for t in sorted(nearest))
