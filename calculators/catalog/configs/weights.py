"""What a parameter weighs: the file's dtype, and its ``quantization_config``.

Only linear layers are quantised; tables, norms, biases, routers and the output head keep the dtype unless the file says
otherwise.  Scales are counted (one a group or block), so FP8 in 128 × 128 blocks is a little over 1 byte.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from calculators.catalog.configs.values import Config, shown

DTYPES = {
    "float64": 8.0, "float32": 4.0, "float": 4.0, "fp32": 4.0, "bfloat16": 2.0, "bf16": 2.0, "float16": 2.0, "half": 2.0, "fp16": 2.0,
    "float8_e4m3fn": 1.0, "float8_e5m2": 1.0, "fp8": 1.0, "int8": 1.0,
}  # fmt: skip
LINEAR = ("attention", "dense_ffn", "routed_experts", "shared_experts", "recurrent", "indexer", "adapters", "projections")
"""Parts made of linear layers."""
_LONGEST_LIST = 200_000


@dataclass(frozen=True)
class Weights:
    """Average bytes of a parameter, and how that comes about in words."""

    bytes_per_param: float
    text: str


@dataclass(frozen=True)
class Format:
    """Bytes of a quantised parameter with its share of the scales."""

    bytes: float
    text: str


def weights(c: Config, outer: Config, params: Mapping[str, int]) -> Weights | None:
    """What the file says, None when it says nothing."""
    dtype = _dtype(c) or _dtype(outer)
    rest = DTYPES.get(dtype)
    if dtype and rest is None:
        c.note(f"不认识的 dtype {shown(dtype)}：权重字节数按 2 算。")
    section = _quantisation(c) or _quantisation(outer)
    if section is None:
        return Weights(rest, dtype) if rest is not None else None
    quantised = _format(section)
    if quantised is None:
        c.note("文件写了 quantization_config，但方法不认识：权重字节数没有按它折算。")
        return Weights(rest, dtype) if rest is not None else None
    plain, rest_name = (rest, dtype) if rest is not None else (2.0, "16 位")
    text = f"{quantised.text}，其余 {rest_name}"
    total = sum(params.values())
    if total == 0:
        return Weights(plain, text)
    kept = _kept(section, c.count("layers") or 1)
    narrow = sum(count * (1 - kept.get(part, 0.0)) for part, count in params.items() if part in LINEAR)
    if c.model_type == "gpt_oss":  # its MXFP4 covers the experts alone
        narrow = float(params.get("routed_experts", 0))
    average = (narrow * quantised.bytes + (total - narrow) * plain) / total
    share = 100 * narrow / total
    c.note(f"权重按 quantization_config 折算：{quantised.text} 占 {share:.1f}% 的参数，其余 {rest_name}；平均 {average:.4g} 字节一个参数。")
    return Weights(average, text)


def _dtype(c: Config) -> str:
    """``torch_dtype`` or ``dtype``, without the ``torch.`` some tools write."""
    for key in ("dtype", "torch_dtype"):
        value = c.raw.get(key)
        if isinstance(value, str):
            return value.removeprefix("torch.")
    return ""


def _quantisation(c: Config) -> Config | None:
    """The config's own or its compressed-tensors section."""
    for key in ("quantization_config", "compression_config"):
        if isinstance(c.raw.get(key), dict):
            return c.section(key)
    return None


def _format(q: Config) -> Format | None:
    """The stored format.  None when the method is unknown."""
    method = (q.word("quant_method") or ("modelopt" if q.raw.get("quant_algo") else "compressed-tensors" if "config_groups" in q.raw else "")).lower()
    reader = _METHODS.get(method)
    return reader(q) if reader else None


def _fp8(q: Config) -> Format:
    block = q.items("weight_block_size")
    if block and len(block) == 2 and all(isinstance(side, int) and not isinstance(side, bool) and side > 0 for side in block):
        rows, columns = (int(str(side)) for side in block)
        return Format(1 + 4 / (rows * columns), f"FP8（块 {rows}×{columns}）")
    return Format(1.0, "FP8")


def _grouped(bits: float, group: float, scale_bytes: float, text: str, zero_bits: float = 0.0) -> Format:
    return Format(bits / 8 + (scale_bytes + zero_bits / 8) / group if group > 0 else bits / 8, text)


def _integer(q: Config) -> Format | None:
    """GPTQ, AWQ and kin: integers in groups with a 16-bit scale and a zero point."""
    bits = q.size("bits") or q.size("w_bit")
    if bits is None or bits > 16:
        return None
    group = q.given("group_size")[1] or q.given("q_group_size")[1]
    size = group if isinstance(group, int) and not isinstance(group, bool) else 128
    return _grouped(bits, size, 2, f"INT{bits}（{'每组 ' + str(size) if size > 0 else '每列一个缩放'}）", bits)


def _bitsandbytes(q: Config) -> Format | None:
    if q.raw.get("load_in_4bit") is True or q.raw.get("_load_in_4bit") is True:
        return Format(0.5 + (1 / 64 + 4 / (64 * 256) if q.raw.get("bnb_4bit_use_double_quant") is True else 4 / 64), "NF4")
    return Format(1.0, "INT8") if q.raw.get("load_in_8bit") is True or q.raw.get("_load_in_8bit") is True else None


def _compressed(q: Config) -> Format | None:
    """compressed-tensors and ModelOpt: the first group's weights say bits, type and group."""
    groups = q.raw.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        return _named(q)
    first = next(iter(groups.values()))
    inner = first.get("weights") if isinstance(first, dict) else None
    if not isinstance(inner, dict):
        return None
    w = Config(inner, {}, nested=True, field=q.field)
    bits, group = w.size("num_bits"), w.given("group_size")[1]
    if bits is None or bits > 16:
        return None
    size = group if isinstance(group, int) and not isinstance(group, bool) else 0
    float_type = w.raw.get("type") == "float"
    name = f"FP{bits}" if float_type else f"INT{bits}"
    if float_type and bits == 4:
        return Format(0.5 + 1 / (size or 16), "NVFP4" if size == 16 else "MXFP4" if size == 32 else "FP4")
    return _grouped(bits, size, 2, f"{name}（每组 {size}）") if size > 0 else Format(bits / 8, name)


_ALGORITHMS = {
    "FP8": Format(1.0, "FP8"),
    "NVFP4": Format(0.5 + 1 / 16, "NVFP4"),
    "MXFP4": Format(0.5 + 1 / 32, "MXFP4"),
    "W4A16_AWQ": Format(0.5 + 2 / 128, "INT4（每组 128）"),
    "INT8_SQ": Format(1.0, "INT8"),
}


def _named(q: Config) -> Format | None:
    return _ALGORITHMS.get(q.word("quant_algo") or "")


def _fixed(bytes_: float, text: str) -> Callable[[Config], Format | None]:
    return lambda q: Format(bytes_, text)


_METHODS: dict[str, Callable[[Config], Format | None]] = {
    "fp8": _fp8, "fbgemm_fp8": _fp8, "finegrained_fp8": _fp8, "gptq": _integer, "gptqmodel": _integer, "awq": _integer, "auto-round": _integer, "intel/auto-round": _integer,
    "bitsandbytes": _bitsandbytes, "mxfp4": _fixed(0.5 + 1 / 32, "MXFP4"), "compressed-tensors": _compressed, "modelopt": _compressed, "modelopt_fp4": _compressed,
    "eetq": _fixed(1.0, "INT8"),
}  # fmt: skip

_LAYER = re.compile(r"(?:layers?|blocks|h)[.\\]+(\d{1,5})\b")


def _kept(q: Config, layers: int) -> dict[str, float]:
    """Which share of each linear part the file leaves unquantised."""
    kept = dict.fromkeys(LINEAR, 0.0)
    for name in ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules", "llm_int8_skip_modules"):
        listed = q.raw.get(name)
        for pattern in listed[:_LONGEST_LIST] if isinstance(listed, list) else ():
            if isinstance(pattern, str):
                _keep(kept, pattern, layers)
    return {part: min(share, 1.0) for part, share in kept.items()}


def _keep(kept: dict[str, float], pattern: str, layers: int) -> None:
    """Add one pattern: a whole part of all layers, or of one layer."""
    share = 1 / layers if _LAYER.search(pattern) else 1.0
    for part in _parts(pattern):
        kept[part] += share


def _parts(pattern: str) -> tuple[str, ...]:
    """The parts that an ignore pattern names; single projections, routers, norms and tables name none."""
    if "attn" in pattern or "attention" in pattern:
        whole = not re.search(r"(?:attn|attention)[.\\]+\w", pattern.rstrip("*.$"))
        return ("attention",) if whole else ()
    if "shared_expert" in pattern and "gate" not in pattern.rpartition("shared_expert")[2].replace("gate_proj", "").replace("gate_up", ""):
        return ("shared_experts",)
    if "experts" in pattern and "shared" not in pattern:
        return ("routed_experts",)
    if re.search(r"mlp[.\\]+\(gate\|up", pattern) or re.search(r"mlp[.\\]+(?:gate|up|down|gate_up)_proj", pattern):
        return ("dense_ffn",) if not _LAYER.search(pattern) or "(" in pattern else ()
    if re.search(r"mlp\*?\$?$", pattern):
        return ("dense_ffn", "shared_experts", "routed_experts")
    return ("recurrent",) if "mamba" in pattern or "linear_attn" in pattern else ()
