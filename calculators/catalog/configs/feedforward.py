"""Feed-forward blocks: dense, and mixtures of experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from calculators.catalog.configs.parts import Block, Layer
from calculators.catalog.configs.values import Config, Switch


def stated_width(c: Config, layer: Layer) -> int:
    """The stated width, one for all layers or one a layer."""
    return layer.sizes.get("ffn") or c.need("ffn", layer.index)


def stated_or_four_times(c: Config, layer: Layer) -> int:
    """The stated width; an explicit null means 4 × hidden."""
    return 4 * c.need("hidden") if c.is_null("ffn") else c.need("ffn")


def four_times(c: Config, layer: Layer) -> int:
    """The stated width, or 4 × hidden where the class takes that for a missing or null value."""
    return c.size("ffn") or 4 * c.need("hidden")


@dataclass(frozen=True)
class Ffn:
    """Dense feed-forward: up and down projection, plus a gate.  ``scalars``: extra single parameters (Apertus' activation)."""

    gated: bool = True
    bias: Switch = False
    width: Callable[[Config, Layer], int] = stated_width
    inner_norm: bool = False
    scalars: int = 0

    def count(self, c: Config, layer: Layer) -> Block:
        h, f = c.need("hidden"), self.width(c, layer)
        wide = 2 if self.gated else 1
        biases = (wide * f + h) * c.switch(self.bias) + self.scalars
        return Block({"dense_ffn": (wide + 1) * h * f, "biases": biases, "norms": f * self.inner_norm})


@dataclass(frozen=True)
class Rwkv4Ffn:
    """RWKV-4's channel mixing: key, value and a receptance gate of hidden × hidden."""

    def count(self, c: Config, layer: Layer) -> Block:
        h = c.need("hidden")
        return Block({"dense_ffn": 2 * h * four_times(c, layer) + h * h + 2 * h})


def separate_width(c: Config, layer: Layer) -> int:
    """``moe_intermediate_size``."""
    return c.need("expert_ffn", layer.index)


def no_shared(c: Config, layer: Layer) -> int:
    """No shared expert."""
    return 0


def shared_multiples(c: Config, layer: Layer) -> int:
    """n shared experts, each as wide as a routed one."""
    return (c.count("shared", layer.index) or 0) * separate_width(c, layer)


def shared_width(c: Config, layer: Layer) -> int:
    """``shared_expert_intermediate_size``."""
    return c.count("shared_expert_intermediate_size") or 0


@dataclass(frozen=True)
class Moe:
    """Routed experts behind a router, and shared experts that every token visits.

    ``expert``: width of one expert.  ``shared``: width of all shared experts together.  ``correction``: the class keeps the
    router's load-balancing bias as a parameter.  ``gated``: experts have a gate projection.
    """

    expert: Callable[[Config, Layer], int] = separate_width
    shared: Callable[[Config, Layer], int] = no_shared
    gated: bool = True
    bias: Switch = False
    router_bias: bool = False
    correction: bool = False
    shared_gate: bool = False
    shared_bias: Switch = False
    norm: bool = False

    def count(self, c: Config, layer: Layer) -> Block:
        h, e, width = c.need("hidden"), c.need("experts", layer.index), self.expert(c, layer)
        k = c.size("top_k", layer.index)
        if k is not None and k > e:
            raise c.refuse("每 token 的专家数不能超过专家数", f"{k} / {e}", "核对 num_experts_per_tok 和 num_experts")
        wide, shared = (2 if self.gated else 1), self.shared(c, layer)
        each = (wide + 1) * h * width + (wide * width + h) * c.switch(self.bias)
        shared_biases = (wide * shared + h) * c.switch(self.shared_bias) if shared else 0
        return Block(
            {
                "routed_experts": e * each, "router": h * e + e * self.router_bias + e * self.correction + h * self.shared_gate * (shared > 0),
                "shared_experts": (wide + 1) * h * shared, "biases": shared_biases, "norms": h * self.norm,
            },
            idle=None if k is None else (e - k) * each,
        )  # fmt: skip


@dataclass(frozen=True)
class DbrxMoe:
    """DBRX keeps its experts in ``ffn_config``."""

    def count(self, c: Config, layer: Layer) -> Block:
        inner, h = c.section("ffn_config"), c.need("hidden")
        e, k, width = inner.need("moe_num_experts"), inner.need("moe_top_k"), inner.need("ffn_hidden_size")
        return Block({"routed_experts": e * 3 * h * width, "router": h * e}, idle=(e - k) * 3 * h * width)


@dataclass(frozen=True)
class LatentMoe:
    """Nemotron-H: experts without a gate, optionally working in a narrower latent space; shared experts of their own width."""

    def count(self, c: Config, layer: Layer) -> Block:
        h, e, width, k = c.need("hidden"), c.need("experts"), c.need("expert_ffn"), c.size("top_k")
        latent = c.size("moe_latent_size")
        inside = latent or h
        each = 2 * inside * width
        bias = c.switch("mlp_bias")
        shared = c.need("moe_shared_expert_intermediate_size")
        return Block(
            {
                "routed_experts": e * each, "router": h * e + (2 * h * latent + (h + latent) * bias if latent else 0),
                "shared_experts": 2 * h * shared, "biases": (shared + h) * bias,
            },
            idle=None if k is None else (e - k) * each,
        )  # fmt: skip
