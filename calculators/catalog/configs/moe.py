"""Families whose layers hold routed experts."""

from __future__ import annotations

from dataclasses import replace

from calculators.catalog.configs import plans
from calculators.catalog.configs.attention import Gqa, Mla, grouped_config_heads
from calculators.catalog.configs.family import Family
from calculators.catalog.configs.feedforward import DbrxMoe, Ffn, Moe, shared_multiples, shared_width, stated_width
from calculators.catalog.configs.parts import Layer
from calculators.catalog.configs.values import Config

_BOTH = Gqa(qkv_bias="attention_bias", out_bias="attention_bias")
_QKV = Gqa(qkv_bias="attention_bias")
_PER_HEAD = replace(_BOTH, qk_norm="head")
_FULL_NORM = replace(_BOTH, qk_norm="full")
_WIDE = Moe(expert=stated_width)
_SHARED = Moe(shared=shared_multiples)
_ONE_SHARED = Moe(shared=shared_width)


def one_wide_shared(c: Config, layer: Layer) -> int:
    """One shared expert of the dense width."""
    return c.need("ffn")


def wide_shared(c: Config, layer: Layer) -> int:
    """n shared experts of the dense width."""
    return (c.count("shared") or 0) * c.need("ffn")


def llama4_dense(c: Config, layer: Layer) -> int:
    """Dense layers have their own width."""
    return c.need("intermediate_size_mlp")


def granite_shared(c: Config, layer: Layer) -> int:
    """``shared_intermediate_size``."""
    return c.count("shared_intermediate_size") or 0


def hunyuan_width(c: Config, layer: Layer) -> int:
    """``moe_intermediate_size``, one for all or one a layer; else the dense width."""
    return c.size("expert_ffn", layer.index) or c.need("ffn")


def prefix_width(c: Config, layer: Layer) -> int:
    """Cohere's first dense layers may have their own width."""
    return c.size("prefix_dense_intermediate_size") or c.need("ffn")


def minimax3_dense(c: Config, layer: Layer) -> int:
    """``dense_intermediate_size``."""
    return c.need("dense_intermediate_size")


DEEPSEEK2 = Family("DeepSeek-V2", Mla(), Ffn(bias="mlp_bias"), replace(_SHARED, shared_bias="mlp_bias"), sparse=plans.after_dense())
DEEPSEEK3 = Family("DeepSeek-V3", Mla(), Ffn(), _SHARED, sparse=plans.after_dense())
GLM4_MOE = Family("GLM-4.5", replace(_QKV, qk_norm="head", qk_norm_if="use_qk_norm"), Ffn(), _SHARED, sparse=plans.after_dense())
SPARSE_MLA = replace(DEEPSEEK3, attention=Mla(indexer=True))
QWEN3_MOE = Family("Qwen3-MoE", _PER_HEAD, Ffn(), Moe(), mixes=plans.use_window, sparse=plans.sparse_step)

MOE: dict[str, Family] = {
    "mixtral": Family("Mixtral", Gqa(), moe=_WIDE, mixes=plans.windowed),
    "qwen2_moe": Family(
        "Qwen2-MoE", Gqa(qkv_bias="qkv_bias"), moe=Moe(shared=shared_width, shared_gate=True), mixes=plans.qwen2_moe_window, sparse=plans.sparse_step
    ),
    "qwen3_moe": QWEN3_MOE,
    "qwen3_vl_moe_text": replace(QWEN3_MOE, name="Qwen3-VL-MoE 的文字部分", mixes=plans.full),
    "olmoe": Family("OLMoE", _FULL_NORM, moe=_WIDE),
    "flex_olmo": Family("FlexOlmo", _FULL_NORM, moe=_WIDE),
    "phimoe": Family("Phi-MoE", _BOTH, moe=_WIDE, norm_bias=True, head_bias="lm_head_bias", mixes=plans.windowed),
    "granitemoe": Family("Granite MoE", _BOTH, moe=_WIDE),
    "granitemoeshared": Family("Granite MoE", _BOTH, moe=Moe(expert=stated_width, shared=granite_shared)),
    "granitemoe_swa": Family("Granite MoE SWA", replace(_BOTH, sinks=True), moe=Moe(expert=stated_width, shared=granite_shared), mixes=plans.every(4, first=True)),
    "gpt_oss": Family(
        "gpt-oss", replace(_BOTH, sinks=True), moe=Moe(expert=stated_width, bias=True, router_bias=True), mixes=plans.every(2),
    ),
    "llama4_text": Family(
        "Llama 4", _BOTH, Ffn(width=llama4_dense), Moe(expert=stated_width, shared=one_wide_shared), mixes=plans.rope_chunks, sparse=plans.interleaved
    ),
    "deepseek": Family("DeepSeek MoE", Gqa(qkv_bias="attention_bias", out_bias="attention_bias"), Ffn(), _SHARED, sparse=plans.after_dense()),
    "deepseek_v2": DEEPSEEK2,
    "deepseek_v3": DEEPSEEK3,
    "kimi_k2": replace(DEEPSEEK3, name="Kimi K2"),
    "sarvam_mla": replace(DEEPSEEK3, name="Sarvam"),
    "deepseek_v32": replace(SPARSE_MLA, name="DeepSeek-V3.2"),
    "axk1": replace(DEEPSEEK3, name="A.X K1", moe=Moe(shared=shared_multiples, norm=True), sparse=plans.after_dense(default=1)),
    "glm4_moe_lite": replace(DEEPSEEK3, name="GLM-4.7-Flash", sparse=plans.after_dense(default=1)),
    "glm4_moe": GLM4_MOE,
    "glm4v_moe_text": replace(GLM4_MOE, name="GLM-4.5V 的文字部分", attention=_QKV),
    "sarvam_moe": replace(GLM4_MOE, name="Sarvam MoE"),
    "solar_open": Family("Solar Open", _QKV, moe=_SHARED),
    "dots1": Family("dots.llm1", _PER_HEAD, Ffn(), _SHARED, mixes=plans.late_window, sparse=plans.after_dense()),
    "ernie4_5_moe": Family(
        "ERNIE 4.5 MoE", Gqa(qkv_bias="use_bias", out_bias="use_bias"), Ffn(bias="use_bias"),
        Moe(shared=shared_multiples, correction=True, shared_bias="use_bias"), sparse=plans.ernie_sparse, head_bias="use_bias",
    ),
    "exaone_moe": Family("EXAONE MoE", Gqa(qk_norm="head"), Ffn(), _SHARED, mixes=plans.exaone_pattern, sparse=plans.after_dense()),
    "hunyuan_v1_moe": Family("Hunyuan MoE", _PER_HEAD, moe=Moe(expert=hunyuan_width, shared=one_wide_shared)),
    "hy_v3": Family("Hy3", _PER_HEAD, Ffn(bias="mlp_bias"), replace(_SHARED, shared_bias="mlp_bias"), sparse=plans.after_dense(default=1)),
    "aria_text": Family("Aria", _BOTH, moe=Moe(expert=stated_width, shared=wide_shared, shared_bias="mlp_bias")),
    "dbrx": Family("DBRX", Gqa(heads=grouped_config_heads), moe=DbrxMoe()),
    "minimax_m2": Family("MiniMax-M2", Gqa(qk_norm="full"), moe=_WIDE),
    "minimax_m3_vl_text": Family("MiniMax-M3", Gqa(qk_norm="head"), Ffn(width=minimax3_dense), Moe(expert=stated_width, shared=granite_shared)),
    "afmoe": Family(
        "AFMoE", replace(_PER_HEAD, gate="full"), Ffn(), Moe(shared=shared_multiples, correction=True), norms=4,
        mixes=plans.every(4, "global_attn_every_n_layers"), sparse=plans.after_dense("num_dense_layers"),
    ),
    "flint": Family("Flint", replace(_PER_HEAD, sinks=True), Ffn(), _ONE_SHARED, sparse=plans.first_two_dense),
    "kolibri1": Family("Kolibri", Gqa(qk_norm="head"), moe=_ONE_SHARED, norms=4, mixes=plans.every(5)),
    "mellum": Family("Mellum", _PER_HEAD, moe=Moe()),
    "cohere2_moe": Family(
        "Cohere 2 MoE", _BOTH, Ffn(width=prefix_width), Moe(expert=stated_width, shared=wide_shared), norms=1, mixes=plans.every(4, "sliding_window_pattern"),
        sparse=plans.after_dense(),
    ),
    "minicpm_moe": Family("MiniCPM-MoE", moe=_WIDE),
    "bailing_moe": Family(
        "Ling", Gqa(qkv_bias="use_qkv_bias", out_bias="use_bias", qk_norm="head", qk_norm_if="use_qk_norm"), Ffn(), _SHARED, sparse=plans.after_dense(),
        unchecked=True,
    ),
    "jetmoe": Family("JetMoE", doubt="JetMoE 的注意力也是专家，这里没有描述"),
    "longcat_flash": Family("LongCat-Flash", doubt="LongCat 每层两份注意力，还有不带参数的零专家，这里没有描述"),
}  # fmt: skip
"""model_type → family."""
