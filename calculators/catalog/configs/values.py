"""Typed values of a config.json: one name for each dimension whatever the file calls it, and a record of what was assumed."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TypeAlias

from calculators.core.errors import Refusal, refuse

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
Switch = bool | str
"""A fixed answer, or the config key that holds it; ``"!key"`` is its opposite."""

ALIASES: dict[str, tuple[str, ...]] = {
    "hidden": ("hidden_size", "n_embd", "d_model", "n_embed", "model_dim"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_transformer_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv", "n_kv_heads"),
    "head_dim": ("head_dim", "attention_head_dim", "dim_head"),
    "ffn": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "dim_ff", "dff"),
    "vocab": ("vocab_size",),
    "experts": ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
    "top_k": ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts", "moe_top_k", "experts_per_token"),
    "expert_ffn": ("moe_intermediate_size", "expert_intermediate_size"),
    "shared": ("n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts"),
    "internlm3_qkv_bias": ("qkv_bias", "attention_bias"),
    "internlm3_bias": ("bias", "mlp_bias"),
    "context": (
        "max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_sequence_length", "seq_length", "model_max_length", "context_length",
    ),
}  # fmt: skip
"""Our name → the file's names.  Any other name is a key of its own."""

CORE = ("hidden", "layers", "heads", "vocab", "ffn", "experts", "top_k", "expert_ffn")
"""Dimensions that every complete file states: a class default may stand for them only inside a nested config."""

_LIMITS = {
    "hidden": 2**20, "layers": 10_000, "heads": 2**16, "kv_heads": 2**16, "head_dim": 2**16, "ffn": 2**24, "vocab": 10**8,
    "experts": 2**16, "top_k": 2**16, "expert_ffn": 2**24, "shared": 2**12, "context": 10**10,
}  # fmt: skip
_LIMIT = 2**24
_SMALLEST = 1e-3
_PLAIN = re.compile(r"[A-Za-z0-9_.+\-/ ]{1,40}")


class MissingKey(Exception):
    """A dimension that the file does not state and nobody may guess; ``key`` is its usual name."""

    def __init__(self, name: str) -> None:
        self.key = ALIASES.get(name, (name,))[0]
        super().__init__(self.key)


def shown(value: Json) -> str:
    """A value of the file as it may be repeated to the reader: short, and nothing but plain characters."""
    if isinstance(value, str):
        return f"「{value}」" if _PLAIN.fullmatch(value) else "一段文字（含特殊字符，不显示）"
    if isinstance(value, list):
        return f"一个列表（{len(value)} 项）"
    if isinstance(value, dict):
        return "一个对象"
    if value is None:
        return "null"
    text = str(value).lower() if isinstance(value, bool) else format(value, "") if isinstance(value, float) else _digits(value)
    return f"「{text}」"


def _digits(value: int) -> str:
    return str(value) if value.bit_length() < 100 else f"约 2 的 {value.bit_length()} 次方"


class Config:
    """One (possibly nested) config; ``defaults`` are the class defaults of its model_type."""

    def __init__(self, raw: Mapping[str, Json], defaults: Mapping[str, Json], *, model_type: str = "", nested: bool = False, field: str = "model") -> None:
        self.raw = raw
        self.defaults = defaults
        self.model_type = model_type
        self.nested = nested
        self.field = field
        self.used: dict[str, Json] = {}
        self._notes: dict[str, None] = {}
        self._switches: dict[str, bool] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """One sentence for each value that was derived or assumed; switches left out share one."""
        silent = "、".join(f"{key} {'true' if on else 'false'}" for key, on in self._switches.items())
        return (*self._notes, *((f"没写的开关按 {self.model_type} 类的默认：{silent}。",) if silent else ()))

    def note(self, sentence: str) -> None:
        self._notes[sentence] = None

    def refuse(self, rule: str, value: str, remedy: str = "") -> Refusal:
        return refuse(self.field, rule, value, remedy)

    # --- raw access

    def given(self, name: str) -> tuple[str, Json]:
        """The key that states ``name`` and its value, null left out; ("", None) when there is none.  Raises Refusal."""
        found = [(key, self.raw[key]) for key in ALIASES.get(name, (name,)) if self.raw.get(key) is not None]
        if not found:
            return "", None
        key, value = found[0]
        for other, different in found[1:]:
            if different != value and name != "context":
                raise self.refuse(f"{key} 和 {other} 说的是同一件事，必须相同", f"{shown(value)} 和 {shown(different)}", "删掉不对的那一个")
        self.used[key] = value
        return key, value

    def is_null(self, name: str) -> bool:
        """Is the key there with an explicit null?"""
        keys = [key for key in ALIASES.get(name, (name,)) if key in self.raw]
        return bool(keys) and all(self.raw[key] is None for key in keys)

    def default(self, name: str) -> tuple[str, Json]:
        """The class default, where one may stand for a missing value."""
        if (name in CORE and not self.nested) or self.is_null(name):
            return "", None
        return next(((key, self.defaults[key]) for key in ALIASES.get(name, (name,)) if key in self.defaults), ("", None))

    def value(self, name: str) -> tuple[str, Json]:
        """The file's value, else the class default (noted)."""
        key, value = self.given(name)
        if value is not None:
            return key, value
        key, value = self.default(name)
        if value is not None:
            self.note(f"文件没写 {key}：按 {self.model_type} 类的默认值 {shown(value).strip('「」')}。")
        return key, value

    # --- typed access; every one raises Refusal on a value of the wrong kind

    def count(self, name: str, layer: int | None = None) -> int | None:
        """A whole number ≥ 0, or None when neither file nor class states it."""
        key, value = self.value(name)
        if isinstance(value, list) and layer is not None:
            if layer >= len(value):
                raise self.refuse(f"{key} 是按层的列表，必须每层一项", f"{len(value)} 项")
            value = value[layer]
        if value is None:
            return None
        limit = _LIMITS.get(name, _LIMIT)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value != int(value) or not 0 <= value <= limit:
            raise self.refuse(f"{key} 必须是 0 到 {limit} 的整数", shown(value), "找原始的 config.json 核对这一项")
        return int(value)

    def size(self, name: str, layer: int | None = None) -> int | None:
        """A whole number ≥ 1, or None."""
        number = self.count(name, layer)
        if number == 0:
            key, _ = self.value(name)
            raise self.refuse(f"{key} 必须大于 0", "「0」", "找原始的 config.json 核对这一项")
        return number

    def need(self, name: str, layer: int | None = None) -> int:
        """A whole number ≥ 1.  Raises MissingKey when there is none."""
        number = self.size(name, layer)
        if number is None:
            raise MissingKey(name)
        return number

    def need_any(self, *names: str) -> int:
        """The first of these that the file states, else the class default of the last.  Raises MissingKey."""
        return self.need(next((name for name in names if self.given(name)[1] is not None), names[-1]))

    def number(self, name: str) -> float | None:
        """A positive number of a sane size, or None."""
        key, value = self.value(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or not _SMALLEST <= value <= _LIMIT:
            raise self.refuse(f"{key} 必须是 {_SMALLEST:g} 到 {_LIMIT} 之间的数", shown(value))
        return float(value)

    def switch(self, switch: Switch) -> bool:
        """A yes/no value: fixed by the family, or a key's."""
        if isinstance(switch, bool):
            return switch
        name = switch.removeprefix("!")
        key, value = self.given(name)
        if value is not None and not isinstance(value, bool):
            raise self.refuse(f"{key} 必须是 true 或 false", shown(value))
        if value is None:
            value = self._switches[name] = bool(self.defaults.get(name, False))
        return value is not switch.startswith("!")

    def word(self, name: str) -> str | None:
        """A text, or None."""
        key, value = self.value(name)
        if value is not None and not isinstance(value, str):
            raise self.refuse(f"{key} 必须是文字", shown(value))
        return value

    def items(self, name: str) -> list[Json] | None:
        """A list, or None."""
        key, value = self.value(name)
        if value is not None and not isinstance(value, list):
            raise self.refuse(f"{key} 必须是列表", shown(value))
        return value

    def section(self, key: str) -> Config:
        """The object under ``key`` as a config of its own (empty when the file has none); notes are shared."""
        value = self.raw.get(key)
        if value is not None and not isinstance(value, dict):
            raise self.refuse(f"{key} 必须是对象", shown(value))
        self.used[key] = value
        defaults = self.defaults.get(key)
        inner = Config(value or {}, defaults if isinstance(defaults, dict) else {}, model_type=self.model_type, nested=True, field=self.field)
        inner._notes, inner._switches = self._notes, self._switches
        return inner
