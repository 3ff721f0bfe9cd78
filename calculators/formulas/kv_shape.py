"""What one sequence of a model keeps in its KV cache, layer by layer: full layers, windowed layers, layers that keep nothing."""

from __future__ import annotations

from dataclasses import dataclass

from calculators.catalog.architecture import window_kv_bytes_per_token
from calculators.catalog.models import Model

BF16 = 2
"""Bytes of an element in the catalog's ``kv_bytes_per_token``."""


@dataclass(frozen=True)
class CacheShape:
    """Elements, K and V together, that one token adds: summed over the layers that keep every token, and over the windowed ones.

    ``each``: elements of one layer, 0 when the layers differ.  ``head_dim``: of a value head (MLA: v_head_dim).
    """

    kind: str
    each: int
    full: int
    windowed: int
    full_layers: int
    window_layers: int
    window: int
    heads: int
    kv_heads: int
    head_dim: int

    @property
    def layers(self) -> int:
        return self.full_layers + self.window_layers

    @property
    def elements(self) -> int:
        """A token in all layers, nothing dropped."""
        return self.full + self.windowed

    @property
    def comparable(self) -> bool:
        """An MHA of the same heads is defined: the layers are alike, and K is as wide as V (MLA: as its value heads)."""
        alike = self.kind == "mla" or self.each == 2 * self.kv_heads * self.head_dim
        return alike and self.each > 0 and self.heads > 0 and self.head_dim > 0

    @property
    def mha_elements(self) -> int:
        """The same layers with a K and a V for every attention head."""
        return 2 * self.heads * self.head_dim * self.layers

    def kept(self, context: float) -> float:
        """Elements of one sequence of that length."""
        return self.full * context + self.windowed * min(context, self.window)

    def growth(self, context: int) -> int:
        """Elements that the last token of that context added."""
        return self.elements if context <= self.window else self.full


def uniform(kind: str, each: int, full_layers: int, window_layers: int, window: int, heads: int, kv_heads: int, head_dim: int) -> CacheShape:
    """Every layer keeps the same number of elements of a token."""
    return CacheShape(kind, each, each * full_layers, each * window_layers, full_layers, window_layers, window, heads, kv_heads, head_dim)


def cache_shape(model: Model) -> CacheShape:
    """The shape of a preset or of a pasted config.json."""
    elements, windowed = model.kv_bytes_per_token // BF16, window_kv_bytes_per_token(model) // BF16
    layers = model.layers if model.kv_layers is None else model.kv_layers
    window = model.sliding_window or {"full_layers": layers, "sliding_layers": 0, "window": 0}
    each = model.kv_elems_per_token_layer if model.kv_elems_per_token_layer * layers == elements else 0
    head_dim = model.mla.v_head_dim if model.mla else model.head_dim
    kind = "mla" if model.mla else "mqa" if model.kv_heads == 1 < model.heads else "mha" if model.kv_heads == model.heads else "gqa"
    return CacheShape(
        kind, each, elements - windowed, windowed, window["full_layers"], window["sliding_layers"], window["window"], model.heads, model.kv_heads, head_dim
    )
