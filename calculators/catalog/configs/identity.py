"""Which family a config belongs to, and which kinds of model are no decoder at all."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from calculators.catalog.configs.dense import DENSE
from calculators.catalog.configs.family import Family
from calculators.catalog.configs.gpt import GPT
from calculators.catalog.configs.hybrid import HYBRID
from calculators.catalog.configs.moe import MOE
from calculators.catalog.configs.special import SPECIAL
from calculators.catalog.configs.values import ALIASES, Json, shown
from calculators.core.errors import refuse

FAMILIES: dict[str, Family] = {**DENSE, **GPT, **MOE, **HYBRID, **SPECIAL}

SAME: dict[str, str] = {
    "phi-msft": "phi", "mixformer-sequential": "phi", "RefinedWeb": "falcon", "RefinedWebModel": "falcon", "Yi": "yi", "InternLM": "internlm",
    "minimax_text_01": "minimax", "minimax_m1": "minimax", "minimax_m3_vl": "minimax_m3_vl_text", "emu3": "emu3_text_model",
    "qwen2_vl": "qwen2_vl_text", "qwen2_5_vl": "qwen2_5_vl_text", "qwen2_audio_text": "qwen2", "qwen2_5_omni_text": "qwen2_5_vl_text",
    "gemma3": "gemma3_text", "gemma3n": "gemma3n_text", "gemma4": "gemma4_text", "gemma4_unified": "gemma4_unified_text", "llama4": "llama4_text",
    "qwen3_vl": "qwen3_vl_text", "qwen3_vl_moe": "qwen3_vl_moe_text", "qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text", "glm4v_moe": "glm4v_moe_text",
    "aria": "aria_text", "qwen3_omni_moe_text": "qwen3_moe", "hunyuan": "hunyuan_v1_moe", "mimo": "qwen2", "stablelm_epoch": "stablelm", "bailing_moe_v2": "bailing_moe",
}  # fmt: skip
"""Other names of the same shape."""

RENAMED: dict[tuple[str, str], str] = {("minimax", "minimax_m2"): "minimax_m2"}
"""(model_type, model_type that ``architectures`` implies) → what the model is: a type that its makers used twice."""

ENCODER_DECODER = "编码器加解码器的模型（交叉注意力另有 K 和 V）"
ENCODER = "编码器（没有逐 token 生成，也就没有 KV 缓存）"
VISION = "图像或语音模型"

OTHERS: dict[str, str] = {
    **dict.fromkeys(
        ("t5", "mt5", "umt5", "longt5", "switch_transformers", "bart", "mbart", "pegasus", "marian", "m2m_100", "nllb-moe", "whisper", "led", "prophetnet",
         "blenderbot", "blenderbot-small", "bigbird_pegasus", "plbart", "mvp", "fsmt", "seamless_m4t", "speech_to_text", "t5gemma", "t5gemma2", "encoder-decoder",
         "vision-encoder-decoder", "trocr", "pix2struct", "udop"),
        ENCODER_DECODER,
    ),
    **dict.fromkeys(
        ("bert", "roberta", "xlm-roberta", "xlm-roberta-xl", "albert", "electra", "deberta", "deberta-v2", "distilbert", "mpnet", "camembert", "modernbert",
         "nomic_bert", "longformer", "big_bird", "ernie", "ernie_m", "funnel", "layoutlm", "layoutlmv3", "mobilebert", "squeezebert", "esm", "eurobert", "roformer",
         "rembert", "megatron-bert", "xlm", "flaubert", "convbert", "canine", "fnet", "nezha", "luke", "xmod", "data2vec-text", "ibert", "neobert", "jina_bert"),
        ENCODER,
    ),
    **dict.fromkeys(
        ("vit", "clip", "siglip", "siglip2", "dinov2", "dinov3_vit", "swin", "beit", "deit", "convnext", "resnet", "detr", "sam", "sam2", "wav2vec2", "hubert", "wavlm",
         "encodec", "mimi", "clip_vision_model", "siglip_vision_model", "clip_text_model", "depth_anything", "segformer", "mask2former", "vits", "clap"),
        VISION,
    ),
}  # fmt: skip
"""model_type → what it is instead."""

_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,60}")


def model_type_of(raw: Mapping[str, Json], field: str) -> str:
    """The stated model_type, else the one that ``architectures`` implies, else "".  Raises Refusal on anything but a plain name."""
    stated = raw.get("model_type")
    if stated not in (None, ""):
        if not isinstance(stated, str) or not _NAME.fullmatch(stated):
            raise refuse(field, "model_type 必须是一个普通的名字（字母、数字、下划线）", shown(stated), "这份文件被改过，找原始的 config.json")
        return RENAMED.get((stated, implied_type(raw) or ""), stated)
    return implied_type(raw) or ""


def implied_type(raw: Mapping[str, Json]) -> str | None:
    """The model_type that the first of ``architectures`` belongs to, None when unknown."""
    listed = raw.get("architectures")
    first = listed[0] if isinstance(listed, list) and listed else None
    return _by_class().get(_class_key(first)) if isinstance(first, str) else None


def _class_key(name: str) -> str:
    """LlamaForCausalLM → llama."""
    return re.sub(r"(ForCausalLM|LMHeadModel|ForConditionalGeneration|Model)$", "", name[:80]).lower()


@lru_cache(maxsize=1)
def _by_class() -> dict[str, str]:
    known = {re.sub(r"[^a-z0-9]", "", name.lower()): name for name in (*OTHERS, *SAME, *FAMILIES)}
    return {**known, "decilm": "nemotron-nas"}


def family_of(model_type: str, raw: Mapping[str, Json]) -> tuple[str, Family | None]:
    """The name under which the family stands, and the family (None when unknown).

    A dense family whose file names experts is its sparse sibling, or not to be trusted: never silently dense.
    """
    name = SAME.get(model_type, model_type)
    family = FAMILIES.get(name)
    if family is not None and family.moe is None and not family.doubt and any(raw.get(key) not in (None, 0) for key in ALIASES["experts"]):
        sibling = f"{name}_moe"
        if sibling in FAMILIES:
            return sibling, FAMILIES[sibling]
        return name, replace(family, doubt=f"{name} 通常没有专家，这份文件却写着专家数")
    return name, family
