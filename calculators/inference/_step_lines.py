"""Worked lines of a prefill or a decode step: KV bytes, parameters read, attention FLOPs, whatever the architecture."""

from __future__ import annotations

from calculators.core.numbers import format_number
from calculators.core.worked import Quantity, Worked, quantity, total
from calculators.formulas.decode import experts_touched, moe_params_read
from calculators.formulas.inference import Shape, attended, attended_by_prompt, score_flops

TWO = quantity(2, "FLOP")


def kv_bytes_line(w: Worked, shape: Shape, kv_bytes: float, context: int) -> Quantity:
    """KV of one request; layers that keep a window count their window only."""
    tokens = shape.full_layers * context + shape.window_layers * min(context, shape.window)
    if not shape.window_layers:
        return quantity(shape.elements) * quantity(kv_bytes, "B") * quantity(shape.full_layers) * quantity(context)
    w.say(f"各层一共留 token（窗口 {format_number(shape.window)}） → {format_number(tokens, digits=6)}")
    return quantity(shape.elements) * quantity(kv_bytes, "B") * quantity(tokens, digits=12)


def params_read_line(w: Worked, shape: Shape, tokens: int) -> Quantity:
    per_token = quantity(shape.matmul_params, "params")
    if shape.moe is None or tokens == 1:
        return per_token
    top_k, experts, routed = quantity(shape.moe.top_k), quantity(shape.moe.experts), quantity(shape.moe.routed_params, "params")
    touched = w.line(f"{tokens} 个 token 点到的专家", experts_touched(top_k, experts, quantity(tokens)), "%")
    return w.line("读到的参数", moe_params_read(per_token, routed, top_k, experts, touched), "params", 6)


def attention_line(w: Worked, label: str, shape: Shape, tokens: Quantity, absorbed: float, *, of_prompt: bool) -> Quantity:
    """QKᵀ and PV, window by window."""
    pairs_of = attended_by_prompt if of_prompt else attended
    parts = [
        score_flops(TWO, quantity(absorbed * count), pairs_of(tokens, quantity(window) if window else None)) for window, count in shape.scores.items() if count
    ]
    unit = "TFLOP" if of_prompt else "GFLOP"
    if not parts:
        return quantity(0, unit)
    if len(parts) == 1:
        return w.line(label, parts[0], unit)
    return w.line(label, total([w.line("其中一种层", part, unit) for part in parts]), unit)
