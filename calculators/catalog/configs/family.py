"""A family: how the models of one ``model_type`` are built, as a small description; and the count over its layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from calculators.catalog.configs import plans
from calculators.catalog.configs.attention import Gqa
from calculators.catalog.configs.feedforward import Ffn
from calculators.catalog.configs.parts import Block, Layer
from calculators.catalog.configs.values import Config, Switch


class Counts(Protocol):
    """A part of a layer that can be counted."""

    def count(self, c: Config, layer: Layer) -> Block: ...


@dataclass(frozen=True)
class Positions:
    """A learned position table: rows beyond the context (OPT keeps two), and when it exists at all."""

    extra: int = 0
    switch: Switch = True


@dataclass(frozen=True)
class Family:
    """One family; what is not said is as in Llama.

    ``mixes`` and ``sparse`` place attention and experts where the file does not.  ``linear`` is the block of layers that
    keep a fixed state.  ``norms``: vectors of the hidden size in a layer.  ``doubt`` says why a total cannot be trusted.
    ``layers``: the whole plan of irregular models.  ``extra``: parameters outside layers and tables.
    """

    name: str
    attention: Counts = field(default_factory=Gqa)
    ffn: Counts = field(default_factory=Ffn)
    moe: Counts | None = None
    linear: Counts | None = None
    mixes: plans.Mixes = plans.full
    sparse: plans.Feeds = plans.all_sparse
    layers: Callable[[Config], list[Layer]] | None = None
    norms: int | Callable[[Config], int] = 2
    norm_bias: Switch = False
    final_norm: Switch = True
    embed_norm: bool = False
    positions: Positions | None = None
    head_bias: Switch = False
    extra: Callable[[Config, Sequence[Layer]], Block] | None = None
    types_key: str = "layer_types"
    doubt: str = ""
    unchecked: bool = False
    """Described from public code alone: no library class was at hand to count against."""
    refuses: tuple[str, ...] = ()
    """Keys that, when set (``!key``: when false), change the model in a way that this description does not follow: no total then."""
    tied: bool | None = None
    """Whether head and input table are one, where the class does not ask the file."""


def layer_plan(c: Config, family: Family) -> list[Layer]:
    """Every layer's kinds.  Raises Refusal, MissingKey."""
    if family.layers is not None:
        return family.layers(c)
    n = c.need("layers")
    mixes = plans.named_mixes(c, family.types_key, n) or family.mixes(c, n)
    sparse = (plans.named_feeds(c, n) or family.sparse(c, n)) if family.moe is not None else [False] * n
    return [Layer(i, mix, "moe" if moe else "dense") for i, (mix, moe) in enumerate(zip(mixes, sparse, strict=True))]


def mixer(c: Config, family: Family, layer: Layer) -> Block:
    """The token-mixing part of one layer."""
    if layer.mix == "linear" and family.linear is not None:
        return family.linear.count(c, layer)
    if layer.mix == "both" and family.linear is not None:
        return _joined(family.attention.count(c, layer), family.linear.count(c, layer))
    return family.attention.count(c, layer) if layer.mix != "none" else Block()


def feed(c: Config, family: Family, layer: Layer) -> Block:
    """The feed-forward part of one layer."""
    if layer.feed == "moe" and family.moe is not None:
        return family.moe.count(c, layer)
    return family.ffn.count(c, layer) if layer.feed == "dense" else Block()


def norms(c: Config, family: Family) -> Block:
    """The norm vectors of one layer."""
    each = family.norms if isinstance(family.norms, int) else family.norms(c)
    return Block({"norms": each * c.need("hidden") * (1 + c.switch(family.norm_bias))})


def tables(c: Config, family: Family, tied: bool) -> Block:
    """Vocabulary and position tables, output head, the norms outside the layers."""
    h, v = c.need("hidden"), c.need("vocab")
    wide = c.size("word_embed_proj_dim") or h
    params = {"input_table": v * wide}
    if family.positions is not None and c.switch(family.positions.switch):
        params["position_table"] = (c.need("context") + family.positions.extra) * h
    params["norms"] = h * (1 + c.switch(family.norm_bias)) * (c.switch(family.final_norm) + family.embed_norm)
    params["projections"] = 2 * h * wide if wide != h else 0
    params["output_head"] = (0 if tied else v * wide) + v * c.switch(family.head_bias)
    return Block(params)


def _joined(a: Block, b: Block) -> Block:
    params = {part: a.params.get(part, 0) + b.params.get(part, 0) for part in (*a.params, *b.params)}
    return Block(params, kv=a.kv + b.kv, window=a.window, score=a.score + b.score)
