"""From the text of a config.json to a ``Model``: exact where the family is known, otherwise honest about what is missing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from calculators.catalog.configs.attention import Gqa, Mla
from calculators.catalog.configs.count import count
from calculators.catalog.configs.family import Family
from calculators.catalog.configs.identity import ENCODER_DECODER, OTHERS, family_of, implied_type, model_type_of
from calculators.catalog.configs.shape import model
from calculators.catalog.configs.text import parse
from calculators.catalog.configs.values import ALIASES, Config, Json, shown
from calculators.catalog.models import Model
from calculators.catalog.store import read
from calculators.core.errors import refuse

NESTED = ("text_config", "llm_config", "language_config", "language_model_config", "thinker_config")
_EXPERTS = re.compile(r"expert|moe_|_moe")
_OTHER_ATTENTION = re.compile(
    r"lora_rank|mamba|ssm|conv|linear_att|recurrent|block_config|per_layer|cross_att|hybrid|kv_shared|state_size|latent|codebook|altup|compress|"
    r"index_|block_types|layers_block|kda|rwkv|decoder_layers|encoder_layers|swa_|global_head|shared_kv|share_kv|loop"
)
"""Keys of an unknown architecture that say: not a plain Llama."""
_MLA_KEYS = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


UNSTATED = "没写"
"""What stands for the model_type of a file that states none."""


def read_config(text: str, name: str = "model") -> Model:
    """The model that a pasted config.json describes; ``name`` is the input that a refusal belongs to.  Raises Refusal."""
    raw = parse(text, name)
    outer_type = model_type_of(raw, name)
    inner = _text_section(raw)
    model_type = outer_type if inner is None else model_type_of(inner, name) or f"{outer_type}_text"
    _refuse_others(raw, outer_type, model_type, name)
    known_as, family = family_of(model_type, inner or raw)
    c = Config(inner or raw, read("configs").get(known_as, {}), model_type=model_type or UNSTATED, nested=inner is not None, field=name)
    outer = Config(raw, read("configs").get(outer_type, {}), model_type=outer_type, field=name)
    agrees = _note_identity(c, raw, model_type, family)
    return model(c, outer, count(c, outer, family or _guessed(c)), known_as, known=family is not None and agrees)


def _text_section(raw: Mapping[str, Json]) -> Mapping[str, Json] | None:
    """The language model inside a multimodal config."""
    for key in NESTED:
        section = raw.get(key)
        if isinstance(section, dict) and section:
            return _text_section(section) or section
    return None


def _refuse_others(raw: Mapping[str, Json], outer_type: str, model_type: str, name: str) -> None:
    kind = OTHERS.get(outer_type) or OTHERS.get(model_type) or (ENCODER_DECODER if raw.get("is_encoder_decoder") is True else "")
    if kind:
        raise refuse(name, "这里只算纯解码器的语言模型", f"这份文件是 {outer_type or model_type}，{kind}", "换一个生成式语言模型的 config.json")


def _note_identity(c: Config, raw: Mapping[str, Json], model_type: str, family: Family | None) -> bool:
    """Do model_type and architectures agree, as far as both are known?"""
    implied = implied_type(raw)
    if not raw.get("model_type") and implied:
        c.note(f"文件没写 model_type：按 architectures 认作 {implied}。")
    elif implied and not c.nested and family is not None and _differ(implied, model_type):
        c.note(f"architectures 指向 {implied}，model_type 却写着 {model_type}：两者不一致，按 model_type 算。")
        return False
    return True


def _differ(implied: str, model_type: str) -> bool:
    """Do two names stand for families of different shape?"""
    one, other = family_of(implied, {})[1], family_of(model_type, {})[1]
    return one is not None and other is not None and replace(one, name="") != replace(other, name="")


def _guessed(c: Config) -> Family:
    """An unknown architecture: its familiar keys read as a Llama's; no total when anything looks different, a refusal when the attention does."""
    set_keys = [key for key, value in c.raw.items() if value not in (None, False, 0, [], {})]
    experts = [key for key in set_keys if _EXPERTS.search(key.lower())]
    strange = [key for key in set_keys if _OTHER_ATTENTION.search(key.lower())]
    is_mla = all(c.given(key)[1] is not None for key in _MLA_KEYS)
    strange = [key for key in strange if not (is_mla and (key in _MLA_KEYS or key == "q_lora_rank"))]
    kind = f"不认识的架构 {shown(c.model_type)}" if c.model_type != UNSTATED else "没写 model_type 的文件"
    if strange:
        raise c.refuse(f"{kind}，而且注意力不像普通的 GQA", f"有 {_names(strange)}", "KV 和参数量都不能猜；换一个认识的架构，或直接填尺寸")
    missing = [ALIASES[name][0] for name in ("hidden", "layers", "heads", "kv_heads") if c.given(name)[1] is None]
    if missing:
        raise c.refuse(f"{kind}，不能靠默认值", f"文件没写 {'、'.join(missing)}", "找完整的 config.json；这些数不能猜")
    c.note(f"{kind}：只当它有 Llama 的形状（门控 FFN、RMSNorm、没有偏置），没有核对过。用到的键：{_names(_used_keys(c))}。")
    doubt = f"不认识的架构，而且有专家（{_names(experts)}），不能当稠密模型算" if experts else "不认识的架构，MLA 之外的部分没有核对过" if is_mla else ""
    return Family("Llama 的形状", Mla(bias=False) if is_mla else Gqa(), doubt=doubt)


def _names(keys: list[str]) -> str:
    return "、".join(shown(key).strip("「」") for key in keys[:6]) + ("……" if len(keys) > 6 else "")


def _used_keys(c: Config) -> list[str]:
    names = ("hidden", "layers", "heads", "kv_heads", "head_dim", "ffn", "vocab")
    return [key for name in names if (key := c.given(name)[0])]
