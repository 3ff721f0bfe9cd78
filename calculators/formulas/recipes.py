"""Bytes per parameter, part by part: which number formats a training recipe keeps its states in."""

from __future__ import annotations

from dataclasses import dataclass

from calculators.core.worked import N
from calculators.formulas.memory import STATE_RECIPES


@dataclass(frozen=True)
class Recipe:
    """Bytes per parameter.  ``transient``: copies that exist only during forward and backward, never part of the total."""

    weight: float
    grad: float
    master: float
    m: float
    v: float
    source: str
    transient: float = 0.0


def _shared(id: str) -> Recipe:
    """A recipe of chapter 03, with Adam's two moments apart."""
    states = STATE_RECIPES[id]
    moment = states.optimizer_bytes / 2
    return Recipe(states.weight_bytes, states.grad_bytes, states.master_bytes, moment, moment, states.source)


RECIPES: dict[str, Recipe] = {
    "fp32": Recipe(4, 4, 0, 4, 4, "全 FP32"),
    # torch.autocast keeps weights, gradients and moments in FP32; BF16 copies of the weights are cached within the region
    "amp-autocast": Recipe(4, 4, 0, 4, 4, "PyTorch AMP：状态仍是 FP32，autocast 区域里缓存 BF16 副本", transient=2),
    "zero-16": _shared("zero-16"),
    "megatron-18": _shared("megatron-18"),
    "seed-12": _shared("seed-12"),
    "bf16-8": _shared("bf16-8"),
    "bf16mv-12": Recipe(2, 2, 4, 2, 2, "BF16 权重、梯度与 m、v，留 FP32 主权重"),
    "8bit-10": _shared("8bit-10"),
    # weights 1 byte, gradients and master FP32, moments BF16; block scales left out
    "fp8-13": Recipe(1, 4, 4, 2, 2, "DeepSeek-V3 报告 §3.3：FP8 权重，FP32 梯度与主权重，BF16 的 m、v"),
}
"""The recipes of chapter 06; those shared with chapter 03 have one definition."""


def sharded_bytes_per_param(weight: N, grad: N, optimizer: N, ranks: N) -> N:
    """A distributed optimizer (ZeRO-1) splits master copy and moments over the data-parallel ranks."""
    return weight + grad + optimizer / ranks
