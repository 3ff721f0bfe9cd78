"""Model states: the bytes that one parameter costs in training, weights, gradient and optimizer together."""

from __future__ import annotations

from dataclasses import dataclass

from calculators.core.worked import N


@dataclass(frozen=True)
class StateRecipe:
    """Bytes per parameter of one way to train.  ``optimizer_bytes``: Adam's m and v together, without the master copy."""

    weight_bytes: float
    grad_bytes: float
    optimizer_bytes: float
    master_bytes: float
    source: str

    @property
    def bytes_per_param(self) -> float:
        return self.weight_bytes + self.grad_bytes + self.optimizer_bytes + self.master_bytes


STATE_RECIPES: dict[str, StateRecipe] = {
    # BF16 weights and gradients, FP32 m and v, no master copy: the smallest honest count, used in chapter 01
    "seed-12": StateRecipe(2, 2, 8, 0, "BF16 权重与梯度，FP32 的 m、v，不留主权重"),
    # the widely quoted 16: 2Ψ + 2Ψ + KΨ with K = 12 (FP32 master, m, v)
    "zero-16": StateRecipe(2, 2, 8, 4, "Rajbhandari et al. 2020（ZeRO）§3.1：2Ψ + 2Ψ + 12Ψ"),
    # gradients accumulated in FP32
    "megatron-18": StateRecipe(2, 4, 8, 4, "Megatron-LM theoretical_memory_usage.py：不用分布式优化器时 18 字节/参数"),
    # everything in BF16: small updates are lost (chapter 06)
    "bf16-8": StateRecipe(2, 2, 4, 0, "全 BF16：m、v 也是 BF16，不留主权重"),
    # m and v in 8 bits; the block-wise scales (about 1.6 % of these two bytes) are left out
    "8bit-10": StateRecipe(2, 2, 2, 4, "Dettmers et al. 2022（8-bit Optimizers）：m、v 各 1 字节，留 FP32 主权重"),
}
"""The ways of counting that the book compares; chapters 01, 03, 09 and 11 name them."""


def state_bytes(params: N, bytes_per_param: N) -> N:
    """One block of the states: parameters × bytes per parameter."""
    return params * bytes_per_param
