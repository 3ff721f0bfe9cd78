"""Families with one dense feed-forward a layer: Llama's kin, Qwen, Gemma 1, Cohere, Phi, GLM …"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from calculators.catalog.configs import plans
from calculators.catalog.configs.attention import Gqa, Mla, channel_heads, equal_heads, split_heads
from calculators.catalog.configs.family import Family
from calculators.catalog.configs.feedforward import Ffn, stated_or_four_times
from calculators.catalog.configs.parts import Block, Layer
from calculators.catalog.configs.values import Config

_BOTH = Gqa(qkv_bias="attention_bias", out_bias="attention_bias")
_QKV = Gqa(qkv_bias="attention_bias")
_PER_HEAD = Gqa(qkv_bias="attention_bias", out_bias="attention_bias", qk_norm="head")
_FULL_NORM = Gqa(qkv_bias="attention_bias", out_bias="attention_bias", qk_norm="full")
_GATED = Ffn(bias="mlp_bias")
_PLAIN = Ffn(gated=False, bias="mlp_bias")


def half_width(c: Config, layer: Layer) -> int:
    """Qwen 1 states twice the width that its two halves have."""
    width = c.need("ffn")
    c.note(f"Qwen 一代的 intermediate_size（{width}）是门控和上投影加起来的宽度：每个只有一半，{width // 2}。")
    return width // 2


def _lambdas(c: Config, layers: Sequence[Layer]) -> Block:
    """DiffLlama's four vectors of a head's size in each layer."""
    return Block({"attention": 4 * len(layers) * (c.size("head_dim") or c.need("hidden") // c.need("heads"))})


def _residual_norms(c: Config) -> int:
    return 1 if c.switch("use_parallel_residual") else 2


def _post_norms(c: Config) -> int:
    return 4 if c.switch("use_post_norm") else 2


LLAMA = Family("Llama", _BOTH, _GATED)
QWEN2 = Family("Qwen2", Gqa(qkv_bias=True), mixes=plans.qwen_window)
QWEN3 = Family("Qwen3", _PER_HEAD, mixes=plans.qwen_window)
MISTRAL = Family("Mistral", mixes=plans.windowed)
GLM4 = Family("GLM-4", _QKV, norms=4)

DENSE: dict[str, Family] = {
    "llama": LLAMA,
    "yi": replace(LLAMA, name="Yi"),
    "exaone": replace(LLAMA, name="EXAONE 3"),
    "iquestcoder": replace(LLAMA, name="IQuest-Coder"),
    "granite": replace(LLAMA, name="Granite"),
    "smollm3": Family("SmolLM3", _BOTH, _GATED),
    "hyperclovax": Family("HyperCLOVA X", _BOTH, _GATED, norms=_post_norms),
    "helium": Family("Helium", _QKV, _GATED),
    "cwm": Family("CWM", Gqa(), _GATED, mixes=plans.every(4, first=True)),
    "seed_oss": Family("Seed-OSS", Gqa(qkv_bias="attention_bias", out_bias="attention_out_bias"), _GATED),
    "ernie4_5": Family("ERNIE 4.5", Gqa(qkv_bias="use_bias", out_bias="use_bias"), Ffn(bias="use_bias")),
    "emu3_text_model": Family("Emu3"),
    "mistral": MISTRAL,
    "ministral": replace(MISTRAL, name="Ministral"),
    "ministral3": replace(MISTRAL, name="Ministral 3"),
    "diffllama": Family("DiffLlama", _BOTH, extra=_lambdas),
    "arcee": Family("Arcee", _BOTH, _PLAIN),
    "apertus": Family("Apertus", _PER_HEAD, Ffn(gated=False, scalars=2)),
    "apertus1p5_text": Family("Apertus 1.5", _PER_HEAD, Ffn(gated=False, scalars=2)),
    "bitnet": Family("BitNet", replace(_BOTH, out_norm=True), Ffn(inner_norm=True)),
    "nanochat": Family("nanochat", _BOTH, Ffn(gated=False), norms=0, final_norm=False),
    "jais2": Family("Jais 2", _BOTH, _PLAIN, norm_bias=True),
    "nemotron": Family("Nemotron", _BOTH, _PLAIN, norm_bias=True),
    "internlm": Family("InternLM", Gqa(qkv_bias="bias", out_bias="bias")),
    "internlm2": Family("InternLM2", Gqa(qkv_bias="bias", out_bias="bias")),
    "internlm3": Family("InternLM3", Gqa(qkv_bias="internlm3_qkv_bias", out_bias="internlm3_bias"), Ffn(bias="internlm3_bias")),
    "baichuan": Family("Baichuan", Gqa(heads=equal_heads)),
    "minicpm": Family("MiniCPM"),
    "xverse": Family("XVERSE"),
    "orion": Family("Orion", norm_bias=True, unchecked=True),
    "olmo": Family("OLMo", _BOTH, norms=0, final_norm=False),
    "olmo2": Family("OLMo 2", _FULL_NORM),
    "olmo3": Family("OLMo 3", _FULL_NORM, mixes=plans.every(4)),
    "qwen": Family("Qwen", Gqa(qkv_bias=True, heads=equal_heads), Ffn(width=half_width)),
    "qwen2": QWEN2,
    "qwen2_vl_text": replace(QWEN2, name="Qwen2-VL 的文字部分"),
    "qwen2_5_vl_text": replace(QWEN2, name="Qwen2.5-VL 的文字部分"),
    "qwen3": QWEN3,
    "qwen3_vl_text": replace(QWEN3, name="Qwen3-VL 的文字部分", mixes=plans.full),
    "gemma": Family("Gemma", _BOTH),
    "gemma2": Family("Gemma 2", _BOTH, norms=4, mixes=plans.every(2)),
    "gemma3_text": Family("Gemma 3", _PER_HEAD, norms=4, mixes=plans.every(6, "sliding_window_pattern")),
    "vaultgemma": Family("VaultGemma", _BOTH, mixes=plans.every(2)),
    "cohere": Family("Cohere", replace(_FULL_NORM, qk_norm_if="use_qk_norm"), norms=1),
    "cohere2": Family("Cohere 2", replace(_BOTH, heads=split_heads), norms=1, mixes=plans.every(4, "sliding_window_pattern")),
    "exaone4": Family("EXAONE 4", Gqa(qk_norm="head"), mixes=plans.exaone_pattern),
    "hunyuan_v1_dense": Family("Hunyuan", _PER_HEAD),
    "granite_swa": Family("Granite SWA", replace(_BOTH, sinks=True), _GATED, mixes=plans.every(4, first=True)),
    "glm": Family("GLM", _QKV),
    "glm4": GLM4,
    "glm4v_text": replace(GLM4, name="GLM-4V 的文字部分", attention=Gqa(qkv_bias=True)),
    "phi3": Family("Phi-3", mixes=plans.windowed),
    "phi": Family(
        "Phi", Gqa(qkv_bias=True, out_bias=True, qk_norm="head", qk_norm_if="qk_layernorm", qk_norm_bias=True),
        Ffn(gated=False, bias=True, width=stated_or_four_times), norms=1, norm_bias=True, head_bias=True,
    ),
    "stablelm": Family(
        "StableLM", Gqa(qkv_bias="use_qkv_bias", qk_norm="full", qk_norm_if="qk_layernorm", heads=split_heads), norms=_residual_norms, norm_bias=True,
    ),
    "starcoder2": Family(
        "StarCoder2", Gqa(qkv_bias="use_bias", out_bias="use_bias"), Ffn(gated=False, bias="use_bias"), norm_bias=True, mixes=plans.windowed,
    ),
    "persimmon": Family(
        "Persimmon", Gqa(qkv_bias=True, out_bias=True, qk_norm="head", qk_norm_if="qk_layernorm", qk_norm_bias=True, heads=equal_heads),
        Ffn(gated=False, bias=True), norm_bias=True,
    ),
    "minicpm3": Family("MiniCPM3", Mla(), Ffn(bias="mlp_bias")),
    "youtu": Family("Youtu", Mla(), Ffn(bias="mlp_bias")),
    "chatglm": Family("ChatGLM", Gqa(qkv_bias="add_qkv_bias", out_bias="add_bias_linear", heads=channel_heads), Ffn(bias="add_bias_linear")),
}  # fmt: skip
"""model_type → family."""
