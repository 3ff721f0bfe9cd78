"""Families of the GPT line: plain feed-forward, biases, LayerNorm, learned or ALiBi positions."""

from __future__ import annotations

from collections.abc import Sequence

from calculators.catalog.configs import plans
from calculators.catalog.configs.attention import Gqa, equal_heads, falcon_heads, grouped_config_heads, is_new_falcon, multi_query_heads
from calculators.catalog.configs.family import Family, Positions
from calculators.catalog.configs.feedforward import Ffn, four_times
from calculators.catalog.configs.parts import Block, Layer
from calculators.catalog.configs.values import Config

_BIASED = Gqa(qkv_bias=True, out_bias=True, heads=equal_heads)
_FOUR = Ffn(gated=False, bias=True, width=four_times)


def _falcon_norms(c: Config) -> int:
    """Two norms when attention and feed-forward run one after the other, or when the new architecture says so."""
    if not c.switch("parallel_attn"):
        return 2
    stated = c.count("num_ln_in_parallel_attn")
    return stated if stated is not None else 2 if is_new_falcon(c) else 1


def mpt_width(c: Config, layer: Layer) -> int:
    """MPT: 4 × hidden in transformers; ``expansion_ratio`` in the original code."""
    ratio = c.number("expansion_ratio") or 4
    if ratio != 4:
        c.note(f"expansion_ratio 是 {ratio:g}：按它算；transformers 自己的 MPT 类固定用 4。")
    return int(ratio * c.need("hidden"))


def japanese_width(c: Config, layer: Layer) -> int:
    """A multiple of hidden."""
    return (c.size("intermediate_multiple_size") or 4) * c.need("hidden")


def _last_layer_bias(c: Config, layers: Sequence[Layer]) -> Block:
    return Block({"biases": c.need("hidden")})


GPT2 = Family("GPT-2", _BIASED, _FOUR, norm_bias=True, positions=Positions(), refuses=("add_cross_attention",))

GPT: dict[str, Family] = {
    "gpt2": GPT2,
    "gpt-sw3": GPT2,
    "openai-gpt": Family("GPT", _BIASED, _FOUR, norm_bias=True, positions=Positions(), final_norm=False),
    "gpt_bigcode": Family("GPT-BigCode", Gqa(qkv_bias=True, out_bias=True, heads=multi_query_heads), _FOUR, norm_bias=True, positions=Positions()),
    "gpt_neo": Family("GPT-Neo", Gqa(out_bias=True, heads=equal_heads), _FOUR, norm_bias=True, positions=Positions(), mixes=plans.gpt_neo_mixes),
    "gpt_neox": Family(
        "GPT-NeoX", Gqa(qkv_bias="attention_bias", out_bias="attention_bias", heads=equal_heads), Ffn(gated=False, bias=True), norm_bias=True,
    ),
    "gpt_neox_japanese": Family(
        "GPT-NeoX Japanese", Gqa(heads=equal_heads), Ffn(gated=False, width=japanese_width), norm_bias=True, extra=_last_layer_bias,
    ),
    "gptj": Family("GPT-J", Gqa(heads=equal_heads), _FOUR, norms=1, norm_bias=True, head_bias=True),
    "codegen": Family("CodeGen", Gqa(heads=equal_heads), _FOUR, norms=1, norm_bias=True, head_bias=True),
    "opt": Family(
        "OPT", Gqa(qkv_bias="enable_bias", out_bias="enable_bias", heads=equal_heads), Ffn(gated=False, bias="enable_bias"),
        norm_bias=True, positions=Positions(extra=2), final_norm="do_layer_norm_before", refuses=("_remove_final_layer_norm",),
    ),
    "bloom": Family("BLOOM", _BIASED, _FOUR, norm_bias=True, embed_norm=True),
    "falcon": Family(
        "Falcon", Gqa(qkv_bias="bias", out_bias="bias", heads=falcon_heads), Ffn(gated=False, bias="bias", width=four_times), norms=_falcon_norms, norm_bias=True,
    ),
    "mpt": Family("MPT", Gqa(heads=grouped_config_heads), Ffn(gated=False, width=mpt_width), positions=Positions(switch=False)),
    "xglm": Family("XGLM", _BIASED, Ffn(gated=False, bias=True), norm_bias=True),
    "biogpt": Family("BioGPT", _BIASED, Ffn(gated=False, bias=True), norm_bias=True, positions=Positions(extra=2)),
    "ctrl": Family("CTRL", _BIASED, Ffn(gated=False, bias=True), norm_bias=True, head_bias=True),
}  # fmt: skip
"""model_type → family."""
