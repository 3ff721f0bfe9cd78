"""A layout TP × CP × PP × DP for a dense model: what a card holds, and a first-order time of one step.

step = m·(compute + TP + CP)·(1 + bubble) + exposed DP.  Bytes per parameter: BF16 weights 2, BF16 gradients 2, FP32 master,
m and v 12.  The functions take numbers or quantities; ``estimate`` puts them together for searches and charts.

Sources: chapters 10–13, whose formulas are imported; Llama 3 report §3.3.2 for the order of the dimensions.  Left out:
imbalance, overlap of TP, launches, stragglers, activations freed early, buffers.
"""

from __future__ import annotations

from dataclasses import dataclass

from calculators.catalog.models import Model
from calculators.core.worked import N, larger
from calculators.formulas.activations import layer_bytes, stack_bytes
from calculators.formulas.collectives import allreduce_factor, one_pass_factor
from calculators.formulas.context import gathered_bytes, kv_bytes
from calculators.formulas.mfu import attention_core_of_width, flop, flops_per_token
from calculators.formulas.pipeline import in_flight
from calculators.formulas.tensor import TensorShape, kv_heads_per_gpu, layer_flops, layer_seconds, message_bytes, shape_of, why_illegal
from calculators.formulas.zero import stage_bytes_per_param, volume_passes

ELEM_BYTES = 2
WEIGHT_BYTES, GRAD_BYTES, OPTIMIZER_BYTES = 2, 2, 12
FULL_RECOMPUTE_KEEPS = 2
"""× h bytes per token and layer: the layer's input."""
TP_ALL_REDUCES = {False: 4, True: 6}
"""Per layer: forward 2, backward 2, and 2 more when the forward pass is repeated (True)."""
KV_GATHERS = {False: 2, True: 3}
"""K and V are gathered in the forward and again in the backward pass."""
UNGATED_COPIES = 4
"""A feed-forward without a gate keeps its activation's input and output, not gate, up and product."""


@dataclass(frozen=True)
class Job:
    """What is to be trained."""

    shape: TensorShape
    params: float
    head_params: float
    ffn_copies: int
    seq: int
    global_batch: int


@dataclass(frozen=True)
class Machine:
    """``node``: cards that share the fast link; bytes per second are one card's, one direction."""

    peak_flops: float
    efficiency: float
    bytes_per_s_intra: float
    bytes_per_s_inter: float
    node: int

    def tp_link(self, tp: int) -> float:
        return self.bytes_per_s_intra if tp <= self.node else self.bytes_per_s_inter


@dataclass(frozen=True)
class Layout:
    """``v``: chunks of layers on each card (1 = plain 1F1B)."""

    tp: int
    cp: int
    pp: int
    dp: int
    zero: int
    recompute: bool
    v: int = 1
    micro_batch: int = 1

    @property
    def sharders(self) -> int:
        """Cards that hold the same part of the model, and may share its states: dp × cp."""
        return self.dp * self.cp

    @property
    def schedule(self) -> str:
        return "interleaved" if self.v > 1 else "1f1b"


def job_of(model: Model, seq: int, global_batch: int) -> Job:
    """A dense model.  Raises Refusal."""
    shape = shape_of(model)
    return Job(shape, float(model.total_params), float(model.vocab * model.hidden), 6 if model.ffn_gated else UNGATED_COPIES, seq, global_batch)


# ---- may it be at all


def micro_batches(global_batch: int, dp: int, micro_batch: int) -> int:
    """Whole micro-batches of each pipeline; 0 when they do not come out even."""
    return global_batch // (dp * micro_batch) if global_batch % (dp * micro_batch) == 0 else 0


def layers_short(layers: int, pieces: int) -> int:
    """How many layers are missing for every piece to have as many: Llama 3's 126 are 2 short of 16 × 8."""
    return -layers % pieces


def wrong_shape(shape: TensorShape, tp: int) -> str:
    """Why tp does not divide this model, empty when it does."""
    return why_illegal(shape.heads, shape.kv_heads, shape.ffn, tp)


# ---- what a card holds


def gathered_layer_bytes(layer_params: N, weight: N, grad: N, tp: N) -> N:
    """ZeRO-3 at work: two layers gathered, the gradients of one (chapter 11)."""
    return (2 * weight + grad) * layer_params / tp


def kept_per_token_layer(shape: TensorShape, ffn_copies: int, recompute: bool) -> float:
    """Bytes of activations per token and layer before tp cuts them."""
    h, a, kv, d, f = (float(x) for x in (shape.hidden, shape.heads, shape.kv_heads, shape.head_dim, shape.ffn))
    return FULL_RECOMPUTE_KEEPS * h if recompute else layer_bytes(h, a, kv, d, f, ffn_copies)


def activation_bytes(tokens: N, per_token_layer: N, layers: N, flying: N, tp: N) -> N:
    """The first stage: ``tokens`` of a micro-batch on this card, ``layers`` of a stage, ``flying`` micro-batches in flight."""
    return stack_bytes(tokens, layers, per_token_layer) * flying / tp


# ---- how long a step takes


def head_flops(tokens: N, head_params: N) -> N:
    """Forward and backward pass of the output head."""
    return flop(6, tokens) * tokens * head_params


def with_recompute(layers: N, head: N, recompute: bool) -> N:
    """FLOP of a micro-batch from those of the layers and of the head; repeating the layers' forward pass adds a third."""
    return layers * 4 / 3 + head if recompute else layers + head


def tp_seconds(all_reduces: N, layers: N, t: N, message: N, bytes_per_s: N) -> N:
    """All-reduces of one micro-batch on one stage, nothing hidden (chapter 12)."""
    return all_reduces * layers * allreduce_factor(t) * message / bytes_per_s


def cp_seconds(gathers: N, layers: N, gathered: N, bytes_per_s: N) -> N:
    """Gathering K and V, nothing hidden."""
    return gathers * layers * gathered / bytes_per_s


def bubble_ratio(p: N, v: N, m: N) -> N:
    """Idle ÷ ideal: (p − 1)/(v·m) (chapter 13)."""
    return (p - 1) / (v * m)


def dp_traffic(passes: N, n: N, size: N) -> N:
    """``passes`` over the parameters (chapter 11); ``size``: the bytes of those on this card."""
    return passes * one_pass_factor(n) * size


def hiding_window(stage: int, m: N, compute: N, plain: N) -> N:
    """What may hide the traffic of dp: half of the backward passes, with ZeRO-3 half of everything; ``plain`` is without recomputation."""
    return m * compute / 2 if stage == 3 else m * plain / 3


def step_seconds(m: N, one: N, bubble: N, exposed: N) -> N:
    """``one``: a micro-batch on one stage, communication included."""
    return m * one * (1 + bubble) + exposed


@dataclass(frozen=True)
class Estimate:
    """Bytes of one card and seconds of one step, in plain numbers."""

    weights: float
    grads: float
    optimizer: float
    gathered: float
    activations: float
    compute: float
    compute_plain: float
    """Without recomputation."""
    tp: float
    cp: float
    bubble: float
    dp: float
    exposed: float
    step: float
    microbatches: int

    @property
    def states(self) -> float:
        return self.weights + self.grads + self.optimizer + self.gathered

    @property
    def total(self) -> float:
        return self.states + self.activations

    def seconds_of_step(self) -> dict[str, float]:
        """Where a step goes."""
        m = self.microbatches
        busy = {"计算": m * self.compute, "TP 通信": m * self.tp, "CP 通信": m * self.cp}
        return {**busy, "气泡": sum(busy.values()) * self.bubble, "露出的 DP": self.exposed}


def estimate(job: Job, layout: Layout, machine: Machine) -> Estimate:
    """Everything about a layout whose batch comes out even."""
    shape, tp, cp, pp = job.shape, float(layout.tp), float(layout.cp), float(layout.pp)
    m = micro_batches(job.global_batch, layout.dp, layout.micro_batch)
    here, layers, n = job.params / (tp * pp), shape.layers / pp, float(layout.sharders)
    weights, grads, optimizer = (
        here * stage_bytes_per_param(layout.zero, w, g, k, n)
        for w, g, k in ((float(WEIGHT_BYTES), 0.0, 0.0), (0.0, float(GRAD_BYTES), 0.0), (0.0, 0.0, float(OPTIMIZER_BYTES)))
    )
    gathered = gathered_layer_bytes(shape.matrix_params, float(WEIGHT_BYTES), float(GRAD_BYTES), tp) if layout.zero == 3 else 0.0

    tokens = layout.micro_batch * job.seq / cp
    flying = in_flight(layout.schedule, pp, 0.0, float(m), float(layout.v))
    activations = activation_bytes(tokens, kept_per_token_layer(shape, job.ffn_copies, layout.recompute), layers, flying, tp)

    core = attention_core_of_width(1.0, float(shape.width), float(job.seq), causal_half=True)
    of_layers, of_head = layer_flops(tokens, shape.matrix_params, core) * layers, head_flops(tokens, job.head_params) / pp
    compute = layer_seconds(with_recompute(of_layers, of_head, layout.recompute), tp, machine.peak_flops, machine.efficiency)
    message = message_bytes(tokens, float(shape.hidden), float(ELEM_BYTES))
    tp_time = tp_seconds(float(TP_ALL_REDUCES[layout.recompute]), layers, tp, message, machine.tp_link(layout.tp))
    kv = layout.micro_batch * kv_bytes(float(job.seq), float(shape.head_dim), float(kv_heads_per_gpu(shape.kv_heads, layout.tp)), float(ELEM_BYTES))
    cp_time = cp_seconds(float(KV_GATHERS[layout.recompute]), layers, gathered_bytes(cp, kv), machine.bytes_per_s_inter)

    dp_time = dp_traffic(float(volume_passes(layout.zero, m, True)), n, ELEM_BYTES * here) / machine.bytes_per_s_inter
    plain = layer_seconds(of_layers + of_head, tp, machine.peak_flops, machine.efficiency)
    exposed = larger(0.0, dp_time - hiding_window(layout.zero, float(m), compute, plain))
    bubble = bubble_ratio(pp, float(layout.v), float(m))
    step = step_seconds(float(m), compute + tp_time + cp_time, bubble, exposed)
    return Estimate(weights, grads, optimizer, gathered, activations, compute, plain, tp_time, cp_time, bubble, dp_time, exposed, step, m)


def model_flops_per_token(params: N, layers: N, width: N, seq: N) -> N:
    """6N + 12·L·a·d·s·½ (formulas.mfu): what MFU counts."""
    return flops_per_token(params, attention_core_of_width(layers, width, seq, causal_half=True))


# ---- who stands where


def coordinates(rank: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """A rank's place in each dimension, the innermost first: rank = tp + TP·(cp + CP·(pp + PP·dp))."""
    places = []
    for size in sizes:
        places.append(rank % size)
        rank //= size
    return tuple(places)


def group(rank: int, sizes: tuple[int, ...], which: int) -> list[int]:
    """The ranks that differ from this one in dimension ``which`` alone."""
    stride = 1
    for size in sizes[:which]:
        stride *= size
    first = rank - coordinates(rank, sizes)[which] * stride
    return [first + i * stride for i in range(sizes[which])]
