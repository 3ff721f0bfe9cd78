"""Numbers as people type them and as pages print them: the only parser and the only formatter."""

from __future__ import annotations

import math
import re
import unicodedata
from decimal import ROUND_HALF_UP, Decimal

from calculators.core.units import Unit, unit_of

_SUFFIX = {
    "": 1.0, "k": 1e3, "K": 1e3, "m": 1e6, "M": 1e6, "b": 1e9, "B": 1e9, "G": 1e9, "g": 1e9, "T": 1e12, "t": 1e12,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "千": 1e3, "万": 1e4, "百万": 1e6, "亿": 1e8, "十亿": 1e9, "万亿": 1e12,
}  # fmt: skip
_NUMBER = re.compile(r"([+-]?(?:\d[\d,_ ]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*)", re.DOTALL)
_GROUPED = re.compile(r"[+-]?\d{1,3}(?:([,_ ])\d{3})(?:\1\d{3})*(?:\.\d*)?(?:[eE][+-]?\d+)?")
_SUPERSCRIPT = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


class NotANumber(ValueError):
    """The text is no finite number; the message says which rule it broke."""


def parse_number(text: str, unit: str = "") -> float:
    """Read ``8k``, ``1e9``, ``１２８``, ``1.5 万``, ``80 GB`` as a number in ``unit``.

    k, M, B (G), T and 万, 亿 are decimal, Ki and Mi binary.  A spelled-out unit of the same dimension is converted
    (``0.08 TB`` in a GB field is 80).  In a field counted in 1e9 parameters a suffix is absolute: ``7B`` is 7.
    Raises NotANumber.
    """
    cleaned = unicodedata.normalize("NFKC", text).strip().replace("−", "-")
    if not cleaned:
        raise NotANumber("不能为空")
    match = _NUMBER.fullmatch(cleaned)
    if match is None:
        raise NotANumber("必须是数字")
    digits = match[1].strip()
    if re.search(r"[,_ ]", digits) and not _GROUPED.fullmatch(digits):
        raise NotANumber("里的逗号、空格只能三位一分（小数点用「.」）")
    try:
        value = float(re.sub(r"[,_ ]", "", digits))
    except ValueError:
        raise NotANumber("必须是数字") from None
    suffix = match[2].strip()
    if suffix:
        value *= _suffix_factor(suffix, unit_of(unit))
    if not math.isfinite(value):
        raise NotANumber("必须是有限的数（太大了）")
    return value


def _suffix_factor(suffix: str, own: Unit) -> float:
    billions = own.symbol == "1e9"
    base = {"bytes": "B", "bytes/s": "B/s", "flop/s": "FLOPS"}.get(own.dimension, "")
    if base and own.symbol != base and suffix in "KMGTP":
        return unit_of(suffix + base).scale / own.scale  # "80G" in a GB field is 80 GB
    if suffix == "m" and own.dimension in ("time", "card-time"):
        raise NotANumber("后缀「m」说不清是百万还是分钟；写 min 或 M")
    if suffix in _SUFFIX and not (suffix == "B" and own.dimension == "bytes"):
        return _SUFFIX[suffix] / (1e9 if billions else 1.0)
    unit = unit_of(suffix)
    if unit.dimension == own.dimension:
        return unit.scale / own.scale
    if own.dimension == "count" and unit.symbol == "%":
        return 0.01
    for magnitude in ("万亿", "百万", "十亿", "万", "亿", "k", "K", "M", "B", "T"):
        rest = suffix.removeprefix(magnitude).strip()
        if suffix.startswith(magnitude) and unit_of(rest).dimension in (own.dimension, "param" if billions else own.dimension):
            return _SUFFIX[magnitude] * unit_of(rest).scale / (1e9 if billions else own.scale)
    wanted = f"，单位是 {own.label}" if own.label else ""
    raise NotANumber(f"后缀「{suffix[:12]}」不认识{wanted}；可以写 8k、7B、1.5 万、1e9")


def round_sig(value: float, digits: int) -> Decimal:
    """Round half up to ``digits`` significant figures.

    The detour over 12 digits makes the text independent of the last bit, in which Pyodide's libm and the host's differ.
    """
    exact = Decimal(f"{value:.12g}")
    if exact == 0:
        return Decimal(0)
    return exact.quantize(Decimal((0, (1,), exact.adjusted() - digits + 1)), rounding=ROUND_HALF_UP)


def _plain(number: Decimal) -> str:
    text = f"{number:f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text) or "0"


def _grouped(text: str) -> str:
    whole, dot, fraction = text.partition(".")
    sign, digits = ("-", whole[1:]) if whole.startswith("-") else ("", whole)
    return ("−" if sign else "") + (f"{int(digits):,}" if len(digits) > 4 else digits) + dot + fraction


def _scientific(value: float, digits: int) -> str:
    rounded = round_sig(value, digits)
    exponent = rounded.adjusted()
    mantissa = _plain(rounded.scaleb(-exponent))
    power = "10" + str(exponent).translate(_SUPERSCRIPT)
    return power if mantissa == "1" else f"{mantissa}×{power}".replace("-", "−")


def format_number(value: float, style: str = "plain", digits: int = 4) -> str:
    """Print a number for a reader.

    Whole numbers stay whole up to 15 digits (``style`` plain); everything else gets ``digits`` significant figures.
    """
    if isinstance(value, bool):
        raise TypeError("a truth value is no number")
    if not math.isfinite(value):
        raise ValueError("a result must be finite")
    size = abs(value)
    if size == 0:
        return "0"
    if style == "sci" and size >= 1e6:
        return _scientific(value, digits)
    if style == "short" and size >= 1e6:
        for limit, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
            if size >= limit * 0.99995 and size < 1e16:
                return _grouped(_plain(round_sig(value / limit, digits))) + letter
    if style == "cjk" and size >= 1e4:
        for limit, word in ((1e12, "万亿"), (1e8, "亿"), (1e4, "万")):
            if size >= limit * 0.99995 and size < 1e16:
                return _grouped(_plain(round_sig(value / limit, digits))) + " " + word
    if float(value).is_integer() and size < 1e15:
        return _grouped(str(int(value)))
    if size >= 1e15 or size < 1e-4:
        return _scientific(value, digits)
    return _grouped(_plain(round_sig(value, max(digits, _whole_digits(size)))))


def _whole_digits(size: float) -> int:
    return Decimal(f"{size:.12g}").adjusted() + 1


def format_value(value: object, unit: str = "", digits: int = 4) -> str:
    """Print an output of any type: number with unit, 是/否, text, list, and 「—」 where it does not apply."""
    if value is None:
        return "—"
    if isinstance(value, bool):
        return "是" if value else "否"
    if isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return with_unit(format_number(value, unit_of(unit).style, digits), unit)
    if isinstance(value, list | tuple):
        if value and isinstance(value[0], dict):
            return f"{len(value)} 行"
        if value and isinstance(value[0], list):
            return " ｜ ".join(format_value(v) for v in value)
        inner = "、".join(format_value(v, "", digits) for v in value)
        return with_unit(inner, unit) if inner else "—"
    raise TypeError(f"no format for {type(value).__name__}")


def with_unit(number: str, unit: str) -> str:
    """Join a printed number and its unit: ``14 GB``, ``3.2 倍``, ``8.03B 参数``, ``1068 万元``."""
    known = unit_of(unit)
    if not known.label:
        return number
    tight = known.tight or number.endswith(("万", "亿"))  # 1000 万次/天
    return number + ("" if tight else " ") + known.label
