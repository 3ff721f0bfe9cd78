"""From pasted text to a JSON object, or a refusal that says what the text seems to be instead."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from calculators.catalog.configs.values import ALIASES, Json
from calculators.core.errors import Refusal, refuse

MOST_CHARACTERS = 5_000_000
_WANTED = "要的是模型仓库里的 config.json，里面有 hidden_size、num_hidden_layers、num_attention_heads"
_DIMENSIONS = frozenset(key for name in ("hidden", "layers", "heads") for key in ALIASES[name])


def parse(text: str, field: str) -> dict[str, Json]:
    """The object that ``text`` holds.  Raises Refusal."""
    if len(text) > MOST_CHARACTERS:
        raise refuse(field, "config.json 不能超过 5 MB", f"{len(text) / 1e6:.0f} MB", f"这多半是权重、分词表或日志；{_WANTED}（几 KB）")
    body = text.strip().removeprefix("\ufeff").strip()
    try:
        value = json.loads(body, object_pairs_hook=_no_conflicts)
    except _Twice as error:
        raise refuse(field, "config.json 里同一个键只能写一次", f"「{error}」写了两次而且不同", "删掉不对的那一个") from None
    except (ValueError, RecursionError) as error:
        raise _not_json(body, error, field) from None
    if not isinstance(value, dict):
        raise refuse(field, "config.json 的最外层必须是一个对象 {…}", f"这是{_KINDS[type(value)]}", _WANTED)
    for shape in _SHAPES:
        if shape.fits(value):
            raise refuse(field, "这里要一份模型的 config.json", f"这像是 {shape.name}", shape.instead or _WANTED)
    return value


_KINDS: dict[type, str] = {list: "一个列表", str: "一段文字", int: "一个数", float: "一个数", bool: "true 或 false", type(None): "null"}


class _Twice(Exception):
    """A key stands twice in one object, with two values."""


def _no_conflicts(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    table: dict[str, Json] = {}
    for key, value in pairs:
        if key in table and table[key] != value and key in _STRUCTURE:
            raise _Twice(key)
        table[key] = value
    return table


_STRUCTURE = frozenset(key for keys in ALIASES.values() for key in keys)


def _not_json(body: str, error: Exception, field: str) -> Refusal:
    def refused(what: str, remedy: str) -> Refusal:
        return refuse(field, "config.json 必须是 JSON", what, remedy)

    head = body[:2000]
    if not body:
        return refused("内容是空的", _WANTED)
    if head.lstrip().startswith("<"):
        return refused("这像是网页（HTML 或 XML）", "在模型页打开 config.json，点 raw，再复制")
    if head.startswith("version https://git-lfs"):
        return refused("这是 Git LFS 的指针，不是文件本身", "用 git lfs pull 取回真正的文件")
    if head.startswith("{'") or "': " in head:
        return refused("这像是 Python 打印出来的字典（单引号、True、None）", "用 json.dumps(config.to_dict()) 再打印一次，或直接复制 config.json")
    if isinstance(error, RecursionError):
        return refused("嵌套太深", _WANTED)
    if "//" in head or "/*" in head:
        return refused("里面有注释，JSON 不允许", "删掉注释再粘贴")
    if isinstance(error, json.JSONDecodeError):
        return refused(f"第 {error.lineno} 行第 {error.colno} 列读不下去", "多半是没复制全，或多了一个逗号；从 { 复制到最后一个 }")
    return refused("里面有一个长得离谱的数", "找原始的 config.json")


# --- files that people mistake for a config.json

Object = dict[str, Json]


@dataclass(frozen=True)
class Shape:
    """A kind of file: what it is called, how it is recognised, and what to look for instead."""

    name: str
    fits: Callable[[Object], bool]
    instead: str = ""


def _has(*keys: str) -> Callable[[Object], bool]:
    return lambda o: all(key in o for key in keys)


def _bare(*keys: str) -> Callable[[Object], bool]:
    """Any of these keys, and no dimension of a model anywhere."""
    return lambda o: any(key in o for key in keys) and not _dimensions(o)


def _dimensions(o: Object) -> bool:
    inner = [value for value in o.values() if isinstance(value, dict)]
    return any(_DIMENSIONS & part.keys() for part in (o, *inner))


def _is_vocabulary(o: Object) -> bool:
    return len(o) > 200 and all(isinstance(value, int) for value in o.values())


_NAMES = "；它和 config.json 的叫法不同：dim → hidden_size，n_layers → num_hidden_layers，n_heads → num_attention_heads，n_kv_heads → num_key_value_heads"

_SHAPES = (
    Shape("LoRA 的 adapter_config.json", lambda o: "peft_type" in o or {"lora_alpha", "r"} <= o.keys(), "换成底座模型的 config.json（base_model_name_or_path 写着是哪个）"),
    Shape("diffusers 的图像模型（model_index.json 或 UNet 配置）", lambda o: "_class_name" in o or "_diffusers_version" in o, "扩散模型没有 KV 缓存，这里算不了；" + _WANTED),
    Shape("权重索引 model.safetensors.index.json", _has("weight_map"), _WANTED),
    Shape("分词器 tokenizer.json", lambda o: isinstance(o.get("model"), dict) and ("added_tokens" in o or "pre_tokenizer" in o)),
    Shape("hf_quant_config.json（ModelOpt 的量化说明）", lambda o: isinstance(o.get("quantization"), dict) and not _dimensions(o), "它只说怎么量化；要同一目录里的 config.json"),
    Shape("quantize_config.json（GPTQ 或 AWQ 的量化说明）", _bare("bits", "w_bit", "quant_method"), "它只说怎么量化；要同一目录里的 config.json"),
    Shape("DeepSeek 自带推理代码的配置", _has("dim", "n_layers", "inter_dim"), "要 Hugging Face 仓库里的 config.json" + _NAMES),
    Shape("Meta 或 Mistral 原版的 params.json", _has("dim", "n_layers", "n_heads"), "要 Hugging Face 仓库里的 config.json" + _NAMES),
    Shape("DeepSpeed 的训练配置", _bare("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size")),
    Shape("训练日志 trainer_state.json", _bare("log_history")),
    Shape("图像或音频的 preprocessor_config.json", _bare("image_processor_type", "feature_extractor_type", "processor_class", "image_mean")),
    Shape("sentence-transformers 的池化配置", _has("word_embedding_dimension")),
    Shape("分词器的 tokenizer_config.json", _bare("tokenizer_class", "added_tokens_decoder", "chat_template", "add_bos_token", "tokenizer_type")),
    Shape("特殊词表 special_tokens_map.json", lambda o: bool(o) and all(key.endswith(("_token", "_tokens")) for key in o)),
    Shape("词表 vocab.json", _is_vocabulary),
    Shape("generation_config.json", _bare("_from_model_config", "temperature", "top_p", "do_sample", "max_new_tokens", "repetition_penalty")),
    Shape("generation_config.json", lambda o: bool(o) and o.keys() <= {"bos_token_id", "eos_token_id", "pad_token_id", "transformers_version", "max_length"}),
)  # fmt: skip
"""Tried in this order."""
