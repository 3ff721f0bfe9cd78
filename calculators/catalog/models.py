"""Architecture presets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from calculators.catalog.store import entries, read


@dataclass(frozen=True)
class MoeShape:
    """Mixture of experts: ``ffn`` is the width of one expert, ``dense_layers`` come first and have no experts."""

    experts: int
    top_k: int
    shared: int
    ffn: int
    dense_layers: int
    routed_params: int


@dataclass(frozen=True)
class MlaShape:
    """Multi-head latent attention: low ranks and head sizes; ``q_lora_rank`` 0 means a plain query projection."""

    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int


@dataclass(frozen=True)
class Model:
    """One architecture.  Sizes are element counts; parameters as in ``models.toml``'s header.

    The fields from ``notes`` on say what a pasted config.json adds: a preset leaves them at their defaults.  ``basis``:
    ``exact`` = counted, ``text`` = the text part counted, towers left out, ``assumed`` = read as something it may not be,
    ``partial`` = some counts are unknown and 0.
    ``scores``: multiply-adds per attended token, by window (0 = the whole context).
    """

    id: str
    name: str
    family: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    ffn_gated: bool
    vocab: int
    tied: bool
    max_context: int
    total_params: int
    active_params: int
    active_params_no_input_embedding: int
    embedding_and_head_params: int
    largest_module_params: int
    kv_elems_per_token_layer: int
    kv_bytes_per_token: int
    breakdown: Mapping[str, int]
    source: str
    checked: str
    moe: MoeShape | None = None
    mla: MlaShape | None = None
    sliding_window: Mapping[str, int] | None = None
    kv_note: str = ""
    small_terms_per_layer: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    basis: Literal["exact", "text", "assumed", "partial"] = "exact"
    weight_bytes_per_param: float | None = None
    weights_stored: str = ""
    kv_layers: int | None = None
    """Layers that keep K and V; None = all."""
    kv_window_bytes_per_token: int | None = None
    """The part of ``kv_bytes_per_token`` that only a window of tokens occupies; None = from ``sliding_window``."""
    scores: Mapping[int, int] | None = None

    @property
    def is_dense(self) -> bool:
        """No experts."""
        return self.moe is None

    @property
    def is_plain_gated(self) -> bool:
        """Dense, gated FFN, the same attention in every layer and little else: what the activation formulas describe.

        "Little else": attention, FFN and vocabulary tables of that shape are the whole model within 1 % (norms and biases
        make up the rest), so a hybrid with recurrent layers or a model with unequal layers is none.
        """
        if not self.ffn_gated or self.moe is not None or self.mla is not None or self.kv_layers not in (None, self.layers):
            return False
        layer = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads) + 3 * self.hidden * self.ffn
        shape = self.layers * layer + (1 if self.tied else 2) * self.vocab * self.hidden
        return abs(self.total_params - shape) <= 0.01 * self.total_params


def _build(id: str, raw: dict[str, Any]) -> Model:
    moe, mla = raw.get("moe"), raw.get("mla")
    if mla is not None:
        mla = {**mla, "q_lora_rank": mla.get("q_lora_rank") or 0}
    plain = {
        name: raw[name]
        for name in (
            "name", "family", "hidden", "layers", "heads", "kv_heads", "ffn", "ffn_gated", "vocab", "tied", "max_context", "total_params", "active_params",
            "active_params_no_input_embedding", "embedding_and_head_params", "largest_module_params", "kv_elems_per_token_layer", "kv_bytes_per_token", "breakdown", "source",
        )
    }  # fmt: skip
    return Model(
        id=id,
        head_dim=raw.get("head_dim", 0 if mla else raw["hidden"] // raw["heads"]),
        moe=MoeShape(**moe) if moe else None,
        mla=MlaShape(**mla) if mla else None,
        sliding_window=raw.get("sliding_window"),
        kv_note=raw.get("kv_note", ""),
        small_terms_per_layer=tuple(raw["small_terms_per_layer"]),
        checked=read("models")["checked"],
        **plain,
    )


@lru_cache(maxsize=1)
def models() -> dict[str, Model]:
    """Every model by id, in catalog order."""
    return {id: _build(id, raw) for id, raw in entries("models").items()}


def model(id: str) -> Model:
    """The model of that id.  Raises KeyError."""
    return models()[id]
