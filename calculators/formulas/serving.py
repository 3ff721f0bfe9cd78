"""Serving a dense model with a fixed batch: memory gives the batch, batch gives the step, the step gives requests per second.

All sequences of a batch are prefilled together and then decoded together; queueing, prefix caches and bursts are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from calculators.catalog.hardware import Accelerator
from calculators.catalog.models import Model
from calculators.core.errors import Refusal, refuse
from calculators.core.numbers import format_number
from calculators.core.units import GB, MB
from calculators.core.worked import N, Quantity, Worked, ceil, floor, larger, quantity
from calculators.formulas.memory import state_bytes

MOST_CARDS = 64
"""Cards of one replica."""


def arrival_per_s(requests_per_day: N, day_s: N, peak_factor: N) -> N:
    """Requests per second at the busiest time; the plain average at a peak factor of 1."""
    return requests_per_day / day_s * peak_factor


def kv_room(cards: N, memory: N, mem_frac: N, weights: N) -> N:
    """Bytes that a replica has left for the KV cache."""
    return cards * memory * mem_frac - weights


def kv_per_sequence(prompt: N, output: N, kv_per_token: N) -> N:
    """KV cache of one finished sequence."""
    return (prompt + output) * kv_per_token


def batch_size(room: N, kv_util: N, per_sequence: N) -> N:
    """How many sequences fit when only ``kv_util`` of the room holds useful KV."""
    return floor(room * kv_util / per_sequence)


def kv_read(batch: N, prompt: N, output: N, kv_per_token: N) -> N:
    """Bytes of KV that one step reads, halfway through the output."""
    return batch * (prompt + output / 2) * kv_per_token


def prefill_flops(two: N, params: N, tokens: N, batch: N) -> N:
    """2N per token; ``two`` = 2 FLOP."""
    return two * params * tokens * batch


def decode_flops(two: N, params: N, batch: N) -> N:
    """One new token for every sequence of the batch."""
    return two * params * batch


def requests_per_s(batch: N, prefill_s: N, output: N, step_s: N) -> N:
    """A replica's rate: prefill the batch, then one step a token."""
    return batch / (prefill_s + output * step_s)


def cards_needed(arrival: N, per_replica: N, cards_per_replica: N) -> N:
    """Whole replicas, in cards."""
    return ceil(arrival / per_replica) * cards_per_replica


def tokens_per_request(cards: N, peak: N, flop_eff: N, demand: N) -> N:
    """Tokens (prompt and output) that a request may cost at most when the arithmetic alone is the limit.

    ``demand``: FLOP/s that one token a request costs, arrival × 2N.
    """
    return cards * peak * flop_eff / demand


@dataclass(frozen=True)
class Side:
    """How a system runs the model; ``key`` is the suffix of its inputs, ``name`` begins its lines."""

    key: str
    name: str
    weight_bytes: float
    cards_per_replica: int
    layer_sequential: bool
    mem_frac: float
    kv_util: float
    bw_eff: float
    peak: float
    peak_unit: str
    flop_eff: float
    overhead_ms: float


@dataclass(frozen=True)
class Load:
    """What has to be served, on which cards."""

    model: Model
    gpu: Accelerator
    prompt: int
    output: int
    arrival: Quantity


@dataclass(frozen=True)
class Bill:
    """What a system needs for the load."""

    cards: Quantity
    room: Quantity
    batch: Quantity
    step: Quantity
    prefill: Quantity
    rate: Quantity
    compute_bound: bool


def serve(load: Load, side: Side, w: Worked) -> Bill:
    """Cards for the load, with the worked lines.  Raises Refusal when the weights or a single request do not fit."""
    model, gpu = load.model, load.gpu
    two, params, kv_token = quantity(2, "FLOP"), quantity(model.total_params, "params"), quantity(model.kv_bytes_per_token, "B/token")
    prompt, output, cards = quantity(load.prompt), quantity(load.output), quantity(side.cards_per_replica)

    def line(label: str, result: Quantity, unit: str = "") -> Quantity:
        return w.line(f"{side.name} · {label}", result, unit)

    weights = line("权重", state_bytes(params, quantity(side.weight_bytes, "B")), "GB")
    room = kv_room(cards, quantity(gpu.memory_gb, "GB"), quantity(side.mem_frac), weights)
    if room.value <= 0:
        raise _too_heavy(side, gpu, weights.value)
    room = line("留给 KV", room, "GB")
    each = line("一条的 KV", kv_per_sequence(prompt, output, kv_token), "MB")
    batch = batch_size(room, quantity(side.kv_util), each)
    if batch.value < 1:
        raise _too_long(side, room.value * side.kv_util, each.value, model.kv_bytes_per_token)
    batch = line("batch", batch)
    working = quantity(1) if side.layer_sequential else cards  # one card at a time, or all together
    bandwidth = line("有效带宽", working * quantity(gpu.bandwidth_gb_s, "GB/s") * quantity(side.bw_eff), "GB/s")
    compute = line("有效算力", working * quantity(side.peak, side.peak_unit) * quantity(side.flop_eff), side.peak_unit)
    read_weights = line("读一遍权重", weights / bandwidth, "ms")
    read_kv = line("读一遍 KV", kv_read(batch, prompt, output, kv_token) / bandwidth, "ms")
    calculate = line("算一步", decode_flops(two, params, batch) / compute, "ms")
    busy = larger(read_weights + read_kv, calculate)
    step = line("一步", busy + quantity(side.overhead_ms, "ms") if side.overhead_ms else busy, "ms")
    prefill = line("整批 prefill", prefill_flops(two, params, prompt, batch) / compute, "s")
    rate = line("每副本", requests_per_s(batch, prefill, output, step), "request/s")
    needed = line("卡数", cards_needed(load.arrival, rate, cards), "卡")
    return Bill(needed, room, batch, step, prefill, rate, calculate.value > read_weights.value + read_kv.value)


def _too_heavy(side: Side, gpu: Accelerator, weights: float) -> Refusal:
    per_card = gpu.memory_bytes * side.mem_frac
    least = floor(weights / per_card) + 1
    return refuse(
        f"cards_per_replica_{side.key}",
        f"{side.name}：权重 {format_number(weights / GB)} GB 装不进 {side.cards_per_replica}×{format_number(gpu.memory_gb)} GB",
        f"显存用到 {format_number(side.mem_frac * 100)}% 只有 {format_number(side.cards_per_replica * per_card / GB)} GB",
        f"这一侧每副本至少 {format_number(least)} 张卡" if least <= MOST_CARDS else "换显存更大的卡，或把每参数字节调小",
    )


def _too_long(side: Side, usable: float, each: float, kv_per_token: int) -> Refusal:
    return refuse(
        "prompt",
        f"{side.name}：提示加输出太长，一条的 KV Cache 就放不下",
        f"要 {format_number(each / MB)} MB，能用的只有 {format_number(usable / MB)} MB",
        f"两者合计不超过 {format_number(floor(usable / kv_per_token))} token，或给这一侧加卡",
    )
