"""Attention blocks: grouped-query attention with its variants, and multi-head latent attention.

Sizes: h hidden, a heads, kv KV heads, d key size of a head, dv value size of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from calculators.catalog.configs.parts import Block, Layer
from calculators.catalog.configs.values import Config, MissingKey, Switch


@dataclass(frozen=True)
class Heads:
    """Head counts and sizes of one layer."""

    a: int
    kv: int
    d: int
    dv: int


def head_size(c: Config, heads: int, layer: int | None = None) -> int:
    """The stated size of a head, else hidden ÷ heads.  Raises Refusal when that does not divide."""
    stated = c.size("head_dim", layer)
    return stated if stated is not None else split_size(c, heads)


def split_size(c: Config, heads: int) -> int:
    """hidden ÷ heads, for classes that know no ``head_dim``."""
    hidden = c.need("hidden")
    if hidden % heads:
        raise c.refuse("hidden_size 必须能被 num_attention_heads 整除（文件没写 head_dim）", f"{hidden} / {heads}", "核对这两项，或补上 head_dim")
    c.note(f"每头维度由 hidden_size ÷ num_attention_heads 得出：{hidden} ÷ {heads} → {hidden // heads}。")
    return hidden // heads


def stated_kv_heads(c: Config, heads: int, layer: int | None = None) -> int:
    """The stated KV heads, else the class default, else one for each query head."""
    stated = c.size("kv_heads", layer)
    if stated is not None:
        return stated
    c.note(f"没有单独的 KV 头数：按多头注意力（MHA）算，KV 头数等于 num_attention_heads（{heads}）。")
    return heads


def usual_heads(c: Config, layer: Layer) -> Heads:
    """Heads as most classes read them; a layer's own sizes come first."""
    a = layer.sizes.get("heads") or c.need("heads", layer.index)
    kv = layer.sizes.get("kv_heads") or stated_kv_heads(c, a, layer.index)
    d = layer.sizes.get("head_dim") or head_size(c, a, layer.index)
    return Heads(a, kv, d, layer.sizes.get("v_head_dim") or d)


def split_heads(c: Config, layer: Layer) -> Heads:
    """Heads of classes without ``head_dim``: hidden ÷ heads, KV heads as stated."""
    a = c.need("heads")
    d = split_size(c, a)
    return Heads(a, stated_kv_heads(c, a), d, d)


def equal_heads(c: Config, layer: Layer) -> Heads:
    """Multi-head attention of classes that know neither KV heads nor ``head_dim``."""
    a = c.need("heads")
    d = split_size(c, a)
    return Heads(a, a, d, d)


def multi_query_heads(c: Config, layer: Layer) -> Heads:
    """GPT-BigCode: ``multi_query`` means one KV head."""
    a = c.need("heads")
    d = split_size(c, a)
    return Heads(a, 1 if c.switch("multi_query") else a, d, d)


def is_new_falcon(c: Config) -> bool:
    """The 40B and larger; their first files (RefinedWeb) only state the KV heads."""
    return c.switch("new_decoder_architecture") or (c.model_type == "RefinedWeb" and c.given("kv_heads")[1] is not None)


def falcon_heads(c: Config, layer: Layer) -> Heads:
    """Falcon: the new architecture states its KV heads, the old one is multi-query or multi-head.  Raises MissingKey."""
    a = c.need("heads")
    d = split_size(c, a)
    if is_new_falcon(c):
        kv = stated_kv_heads(c, a)
        c.note(f"新版 Falcon 按 num_kv_heads（{kv}）算 KV；transformers 自带的缓存会按全部 {a} 个头存，推理引擎按 {kv} 个头存。")
        return Heads(a, kv, d, d)
    if c.given("multi_query")[1] is None:
        raise MissingKey("multi_query")
    return Heads(a, 1 if c.switch("multi_query") else a, d, d)


def channel_heads(c: Config, layer: Layer) -> Heads:
    """ChatGLM: ``kv_channels`` is the head size, ``multi_query_group_num`` the KV heads."""
    a = c.need("heads")
    d = c.need("kv_channels")
    return Heads(a, c.need("multi_query_group_num") if c.switch("multi_query_attention") else a, d, d)


def grouped_config_heads(c: Config, layer: Layer) -> Heads:
    """DBRX and MPT keep the KV heads in ``attn_config.kv_n_heads``."""
    a = c.need("heads")
    d = split_size(c, a)
    inner = c.section("attn_config")
    usual = 1 if inner.word("attn_type") == "multiquery_attention" else a
    return Heads(a, inner.size("kv_n_heads") or usual, d, d)


@dataclass(frozen=True)
class Gqa:
    """Grouped-query attention (multi-head and multi-query are its ends).

    ``qk_norm``: ``head`` = one vector for all heads, ``full`` = a value for each element of the projection.
    ``gate``: an output gate, ``full`` as wide as the output, ``query`` the same inside the Q projection, ``head`` one value
    a head.  ``sinks``: one logit a head.  ``out_norm``: a norm before the output projection (BitNet).
    """

    qkv_bias: Switch = False
    out_bias: Switch = False
    qk_norm: Literal["", "head", "full"] = ""
    qk_norm_if: Switch = True
    qk_norm_bias: bool = False
    gate: Literal["", "full", "query", "head"] = ""
    gate_if: Switch = True
    sinks: bool = False
    out_norm: bool = False
    keys: bool = True
    """False: no K and V projection of its own (uses another layer's cache)."""
    values_from_keys: bool = False
    heads: Callable[[Config, Layer], Heads] = usual_heads

    def count(self, c: Config, layer: Layer) -> Block:
        n, h = self.heads(c, layer), c.need("hidden")
        if n.a % n.kv:
            raise c.refuse("num_attention_heads 必须能被 num_key_value_heads 整除", f"{n.a} / {n.kv}", "核对这两项")
        q, k, v = n.a * n.d, n.kv * n.d * self.keys, n.kv * n.dv * self.keys
        out = n.a * n.dv
        v_weights = 0 if self.values_from_keys else v
        gate = {"": 0, "full": out, "query": out, "head": n.a}[self.gate] if c.switch(self.gate_if) else 0
        norm = {"": 0, "head": n.d * (1 + self.keys), "full": q + k}[self.qk_norm] if c.switch(self.qk_norm_if) else 0
        biases = (q + k + v_weights + gate * (self.gate == "query")) * c.switch(self.qkv_bias) + h * c.switch(self.out_bias)
        return Block(
            {
                "attention": h * (q + k + v_weights + out + gate), "biases": biases,
                "norms": norm * (1 + self.qk_norm_bias) + out * self.out_norm, "attention_sinks": n.a * self.sinks,
            },
            kv=k + v, window=window_of(c, layer), score=q + out,
        )  # fmt: skip


def window_of(c: Config, layer: Layer) -> int:
    """How many tokens this layer keeps, 0 = all."""
    if layer.mix == "window":
        return c.size("sliding_window") or c.size("window_size") or 0
    return (c.size("attention_chunk_size") or 0) if layer.mix == "chunk" else 0


@dataclass(frozen=True)
class Mla:
    """Multi-head latent attention: K and V come from one low-rank latent, which alone is cached (with the rope keys).

    ``indexer``: DeepSeek's sparse-attention indexer, in the layers that have their own.
    """

    bias: Switch = "attention_bias"
    indexer: bool = False
    gate: Literal["", "full", "head"] = ""

    def count(self, c: Config, layer: Layer) -> Block:
        h, a = c.need("hidden"), c.need("heads")
        latent, rope, nope, value = c.need("kv_lora_rank"), c.need("qk_rope_head_dim"), c.need("qk_nope_head_dim"), c.need("v_head_dim")
        low = q_rank(c)
        query = h * low + low * a * (nope + rope) if low else h * a * (nope + rope)
        gate = {"": 0, "full": h * a * value, "head": h * a}[self.gate]
        params = {
            "attention": query + h * (latent + rope) + latent * a * (nope + value) + a * value * h + gate,
            "biases": (low + latent + rope + h) * c.switch(self.bias),
            "norms": low + latent,
        }
        if self.indexer and layer.sizes.get("indexer", 1):
            size, index_heads = c.need("index_head_dim"), c.need("index_n_heads")
            params["indexer"] = low * index_heads * size + h * size + h * index_heads + 2 * size
            c.note(f"稀疏注意力的索引器每层每 token 另存 {size} 个值，没有算进每 token 的 KV。")
        return Block(params, kv=latent + rope, score=a * (nope + rope + value))


def q_rank(c: Config) -> int:
    """Rank of the query's low-rank form; 0 = a plain projection."""
    rank = c.given("q_lora_rank")[1]
    if rank is None and not c.is_null("q_lora_rank") and "q_lora_rank" in c.defaults:
        if c.nested:
            return c.need("q_lora_rank")
        c.note(f"文件没写 q_lora_rank：按「Q 不压缩」算（原文件多半写着 null）；{c.model_type} 类的默认值是 {c.defaults['q_lora_rank']}，按它算会多出参数。")
    return (c.size("q_lora_rank") or 0) if rank is not None else 0
