"""The worked lines of parallel-plan: what a card holds, and how long one micro-batch takes on one stage."""

from __future__ import annotations

from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.context import gathered_bytes, kv_bytes
from calculators.formulas.layout import (
    ELEM_BYTES,
    GRAD_BYTES,
    KV_GATHERS,
    OPTIMIZER_BYTES,
    TP_ALL_REDUCES,
    WEIGHT_BYTES,
    Job,
    Layout,
    activation_bytes,
    cp_seconds,
    gathered_layer_bytes,
    head_flops,
    kept_per_token_layer,
    tp_seconds,
    with_recompute,
)
from calculators.formulas.mfu import attention_core_of_width
from calculators.formulas.pipeline import in_flight
from calculators.formulas.tensor import kv_heads_per_gpu, layer_flops, layer_seconds, message_bytes
from calculators.formulas.zero import stage_bytes_per_param


def state_lines(w: Worked, job: Job, layout: Layout, here: Quantity, sharders: Quantity) -> Quantity:
    weight, grad, optimizer = quantity(WEIGHT_BYTES, "B"), quantity(GRAD_BYTES, "B"), quantity(OPTIMIZER_BYTES, "B")
    each = w.line("每个参数的状态", stage_bytes_per_param(layout.zero, weight, grad, optimizer, sharders), "B")
    if layout.zero < 3:
        return w.line("状态", here * each, "GB")
    matrices = quantity(job.shape.matrix_params, "params")
    gathered = w.line("收齐的两层，和一层的梯度", gathered_layer_bytes(matrices, weight, grad, quantity(layout.tp)), "GB")
    return w.line("状态", here * each + gathered, "GB")


def activation_lines(w: Worked, job: Job, layout: Layout, tokens: Quantity, layers: Quantity, m: Quantity) -> Quantity:
    per_token = quantity(kept_per_token_layer(job.shape, job.ffn_copies, layout.recompute), "B")
    w.say(f"每 token 每层留 → {per_token.text}" + ("，只有层的输入" if layout.recompute else ""))
    flying = w.line("第一段在飞的微批", in_flight(layout.schedule, quantity(layout.pp), quantity(0), m, quantity(layout.v)))
    return w.line("激活", activation_bytes(tokens, per_token, layers, flying, quantity(layout.tp)), "GB")


def compute_lines(w: Worked, job: Job, layout: Layout, tokens: Quantity, layers: Quantity, peak_tflops: float, efficiency: float) -> tuple[Quantity, Quantity]:
    """Seconds of a micro-batch on one stage: what is computed, and without recomputation."""
    shape, cards, speed, eff = job.shape, quantity(layout.tp), quantity(peak_tflops, "TFLOPS"), quantity(efficiency)
    core = w.line("每 token 每层的注意力 q", attention_core_of_width(quantity(1), quantity(shape.width), quantity(job.seq), causal_half=True), "", 6)
    layer = w.line("一层，前向加反向", layer_flops(tokens, quantity(shape.matrix_params, "params"), core), "TFLOP")
    head = w.line("输出头", head_flops(tokens, quantity(job.head_params, "params")), "TFLOP")
    of_layers, of_head = w.line("一段的层", layer * layers, "TFLOP"), w.line("摊到每段的输出头", head / quantity(layout.pp), "TFLOP")
    plain = w.line("不重算的话" if layout.recompute else "计算", layer_seconds(of_layers + of_head, cards, speed, eff), "ms")
    if not layout.recompute:
        return plain, plain
    return w.line("计算，层的前向多一遍", layer_seconds(with_recompute(of_layers, of_head, True), cards, speed, eff), "ms"), plain


def tp_lines(w: Worked, job: Job, layout: Layout, tokens: Quantity, layers: Quantity, bandwidth: float) -> Quantity:
    if layout.tp == 1:
        return quantity(0, "ms")
    message = w.line("一次 all-reduce 的消息", message_bytes(tokens, quantity(job.shape.hidden), quantity(ELEM_BYTES, "B")), "MB")
    times = quantity(TP_ALL_REDUCES[layout.recompute])
    return w.line("TP", tp_seconds(times, layers, quantity(layout.tp), message, quantity(bandwidth, "GB/s")), "ms")


def cp_lines(w: Worked, job: Job, layout: Layout, layers: Quantity, bandwidth: float) -> Quantity:
    if layout.cp == 1:
        return quantity(0, "ms")
    heads = quantity(kv_heads_per_gpu(job.shape.kv_heads, layout.tp))
    kv = quantity(layout.micro_batch) * kv_bytes(quantity(job.seq), quantity(job.shape.head_dim), heads, quantity(ELEM_BYTES, "B"))
    arrives = w.line("每层收到的 K、V", gathered_bytes(quantity(layout.cp), w.line("一层的 K、V", kv, "MB")), "MB")
    return w.line("CP", cp_seconds(quantity(KV_GATHERS[layout.recompute]), layers, arrives, quantity(bandwidth, "GB/s")), "ms")
