"""Layers that keep a fixed state instead of K and V: Mamba, gated delta rule, linear attention, short convolutions.

Their parameters stand under ``recurrent`` (norm vectors under ``norms``); they add nothing to the KV cache.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from calculators.catalog.configs.parts import Block, Layer
from calculators.catalog.configs.values import Config, Switch


def scaled_width(c: Config, key: str, default: float = 2.0) -> int:
    """expand × hidden, as the classes compute it."""
    return int((c.number(key) or default) * c.need("hidden"))


def auto_rank(c: Config, key: str) -> int:
    """Rank of the time step; ``"auto"`` is ⌈hidden / 16⌉."""
    if c.given(key)[1] in (None, "auto"):
        return math.ceil(c.need("hidden") / 16)
    return c.need(key)


@dataclass(frozen=True)
class Mamba1:
    """Selective state space (Gu & Dao 2023).  ``norms``: Jamba normalises dt, B and C."""

    state: str = "mamba_d_state"
    conv: str = "mamba_d_conv"
    expand: str = "mamba_expand"
    rank: str = "mamba_dt_rank"
    conv_bias: Switch = "mamba_conv_bias"
    bias: Switch = "mamba_proj_bias"
    width: str = ""
    norms: bool = False

    def count(self, c: Config, layer: Layer) -> Block:
        h, s, rank = c.need("hidden"), c.need(self.state), auto_rank(c, self.rank)
        stated = c.size(self.width) if self.width else None
        w = stated if stated is not None else scaled_width(c, self.expand)
        weights = 3 * h * w + w * (rank + 2 * s) + rank * w + w + w * s + w + w * c.need(self.conv)
        biases = w * c.switch(self.conv_bias) + (2 * w + h) * c.switch(self.bias)
        return Block({"recurrent": weights + biases, "norms": (rank + 2 * s) * self.norms})


@dataclass(frozen=True)
class Mamba2:
    """State-space duality (Dao & Gu 2024).  ``heads`` and ``size`` may fix the width, else it is expand × hidden."""

    heads: str = "mamba_n_heads"
    size: str = ""
    state: str = "mamba_d_state"
    groups: str = "mamba_n_groups"
    conv: str = "mamba_d_conv"
    expand: str = "mamba_expand"
    width: str = ""
    conv_bias: Switch = "mamba_conv_bias"
    in_bias: Switch = "mamba_proj_bias"
    out_bias: Switch = "mamba_proj_bias"
    norm: Switch = True

    def count(self, c: Config, layer: Layer) -> Block:
        h, heads = c.need("hidden"), c.need(self.heads)
        w = self._width(c, heads)
        conv = w + 2 * c.need(self.groups) * c.need(self.state)
        weights = h * (w + conv + heads) + w * h + 3 * heads + conv * c.need(self.conv)
        biases = conv * c.switch(self.conv_bias) + (w + conv + heads) * c.switch(self.in_bias) + h * c.switch(self.out_bias)
        return Block({"recurrent": weights + biases, "norms": w * c.switch(self.norm)})

    def _width(self, c: Config, heads: int) -> int:
        if self.width:
            stated = c.size(self.width)
            return stated if stated is not None else scaled_width(c, self.expand)
        return heads * c.need(self.size) if self.size else scaled_width(c, self.expand)


@dataclass(frozen=True)
class DeltaNet:
    """Gated delta rule (Qwen3-Next, OLMo hybrid): Q, K, V, output gate, two scalars a head."""

    def count(self, c: Config, layer: Layer) -> Block:
        h, value_heads = c.need("hidden"), c.need("linear_num_value_heads")
        key = c.need("linear_num_key_heads") * c.need("linear_key_head_dim")
        value = value_heads * c.need("linear_value_head_dim")
        weights = h * (2 * key + 3 * value + 2 * value_heads) + (2 * key + value) * c.need("linear_conv_kernel_dim") + 2 * value_heads
        return Block({"recurrent": weights, "norms": c.need("linear_value_head_dim")})


@dataclass(frozen=True)
class Kda:
    """Kimi delta attention; ``low_rank``: forget and output gate go through one head's width.

    Sizes stand in ``linear_attn_config`` or under ``linear_`` keys, in Ling 2.5 under the keys of the attention itself.
    """

    low_rank: bool = True
    heads: str = "linear_num_heads"
    size: str = "linear_head_dim"
    kernel: str = "linear_conv_kernel_dim"

    def count(self, c: Config, layer: Layer) -> Block:
        h = c.need("hidden")
        size = self._size(c, "head_dim", "linear_head_dim", self.size)
        heads = self._size(c, "num_heads", "linear_num_heads", self.heads)
        kernel = self._size(c, "short_conv_kernel_size", "linear_conv_kernel_dim", self.kernel)
        w = heads * size
        gates = 2 * (h * size + size * w) if self.low_rank else 2 * h * w
        return Block({"recurrent": 4 * h * w + gates + h * heads + 3 * w * kernel + w + heads, "norms": size})

    @staticmethod
    def _size(c: Config, inner: str, key: str, other: str) -> int:
        return c.section("linear_attn_config").size(inner) or c.need_any(key, other)


@dataclass(frozen=True)
class Lightning:
    """Lightning attention (MiniMax-01): linear attention with a norm and an output gate."""

    def count(self, c: Config, layer: Layer) -> Block:
        h, a = c.need("hidden"), c.need("heads")
        w = a * (c.size("head_dim") or h // a)
        return Block({"recurrent": 5 * h * w, "norms": w})


@dataclass(frozen=True)
class ShortConv:
    """LFM2's gated short convolution."""

    def count(self, c: Config, layer: Layer) -> Block:
        h = c.need("hidden")
        return Block({"recurrent": 4 * h * h + h * c.need("conv_L_cache") + 5 * h * c.switch("conv_bias")})


@dataclass(frozen=True)
class RgLru:
    """Recurrent block of Griffin (RecurrentGemma)."""

    def count(self, c: Config, layer: Layer) -> Block:
        h, heads = c.need("hidden"), c.need("heads")
        w = c.size("lru_width") or h
        gates = 2 * (w * (w // heads) + w)
        return Block({"recurrent": 3 * h * w + 2 * w + h + w * c.need("conv1d_width") + w + w + gates})


@dataclass(frozen=True)
class Rwkv4:
    """RWKV-4's time mixing."""

    def count(self, c: Config, layer: Layer) -> Block:
        h = c.need("hidden")
        w = c.size("attention_hidden_size") or h
        first_norm = 2 * h if layer.index == 0 else 0
        return Block({"recurrent": 4 * h * w + 2 * w + 3 * h, "norms": first_norm})
