"""MFU: which share of the peak did the model's own arithmetic get?  Chowdhery et al. 2022 (PaLM) §4.1 and appendix B.

The attention core per token is q = layers × heads × head_dim × seq: QKᵀ and PV cost 4q FLOP forward and 8q backward.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from calculators.core.errors import Refusal, refuse
from calculators.core.numbers import format_number
from calculators.core.worked import N, Quantity, quantity

Recompute = Literal["none", "selective", "full"]


@dataclass(frozen=True)
class Band:
    """One step of the MFU scale: from ``low`` percent (included) up to the next step's."""

    name: str
    low: float
    meaning: str


MFU_BANDS: tuple[Band, ...] = (
    Band("<10", 0, "没喂饱"),
    Band("10-20", 10, "未经优化"),
    Band("20-30", 20, "未经优化与框架默认之间"),
    Band("30-40", 30, "框架默认"),
    Band("40-45", 40, "框架默认与精心优化之间"),
    Band("45-55", 45, "精心优化"),
    Band("55-60", 55, "顶尖"),
    Band(">60", 60, "先查口径"),
)
"""A rule of thumb of the book (chapter 01); published runs sit in it (chapter 04)."""


def mfu_band(mfu_pct: float) -> Band:
    """The band of an MFU in percent; a lower edge belongs to the band above it."""
    return next(band for band in reversed(MFU_BANDS) if mfu_pct >= band.low)


def flop(count: float, like: N) -> N:
    """``count`` FLOP as a factor: a plain number beside plain numbers, ``6 FLOP`` beside quantities."""
    if isinstance(like, Quantity):
        return quantity(count, "FLOP")
    return count


def attention_core(layers: N, heads: N, head_dim: N, seq: N, causal_half: bool = False) -> N:
    """q: multiply-adds of QKᵀ (as many again for PV) per token.  Query heads count, KV heads do not."""
    return attention_core_of_width(layers, heads * head_dim, seq, causal_half)


def attention_core_of_width(layers: N, width: N, seq: N, causal_half: bool = False) -> N:
    """The same with width = heads × head_dim."""
    full = layers * width * seq
    return full / 2 if causal_half else full


def flops_per_token(params: N, q: N) -> N:
    """Forward and backward of one token: 6N + 12q.  Active parameters for a mixture of experts."""
    return flop(6, params) * params + flop(12, params) * q


def hardware_flops_per_token(params: N, q: N, recompute: Recompute = "none") -> N:
    """What the chip really computes: selective recomputes the attention core (+4q), full the whole forward (8N + 16q)."""
    if recompute == "full":
        return flop(8, params) * params + flop(16, params) * q
    model = flops_per_token(params, q)
    return model + flop(4, params) * q if recompute == "selective" else model


def mfu(tokens_per_s: N, flops_per_token: N, n_gpus: N, peak_flops: N) -> N:
    """Share of the peak of all chips together; ``tokens_per_s`` of the whole job, ``peak_flops`` dense."""
    return tokens_per_s * flops_per_token / (n_gpus * peak_flops)


def above_peak(field: str, share: float) -> Refusal:
    """The refusal for an MFU or HFU above 1."""
    shown = format_number(share * 100) if math.isfinite(share * 100) else "远远大于 100"
    return refuse(
        field,
        "MFU 不能超过 100 %",
        f"{shown} %",
        "多半是 tokens/s 和卡数对不上（一个按整个作业、一个按单卡），或峰值填错口径（要填所用精度的稠密峰值）",
    )
