"""Numbers as the prose writes them: find them, read them, compare them with a target."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache

from calculators.catalog.hardware import accelerators
from calculators.catalog.models import models
from calculators.core.units import Unit, registry, unit_of
from calculators.site.targets import Target

_MAGNITUDES = {"万亿": 1e12, "百万": 1e6, "十亿": 1e9, "万": 1e4, "亿": 1e8, "K": 1e3, "k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_NUMBER = r"(?P<sign>[−-])?(?P<digits>\d[\d,]*(?:\.\d+)?)(?:\s?×\s?10(?P<power>[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+)|[eE](?P<exponent>[+-]?\d+))?"
_ROUGH = re.compile(r"(约|≈|大约|左右|将近)")


@lru_cache(maxsize=1)
def _unit_pattern() -> str:
    spellings = [u for u in registry() if u not in ("", "B") and not u.startswith("KB (")]
    bytes_ = r"(?<=\s)B(?![A-Za-z/])"  # "2 B" is bytes, "7B" is seven billion
    return "|".join([*(re.escape(u) for u in sorted(spellings, key=len, reverse=True)), bytes_])


@lru_cache(maxsize=1)
def _figure_pattern() -> re.Pattern[str]:
    # A Latin unit must not run on into a longer word ("8 Bits", "5 seconds"); a multiplication sign between operands is no unit.
    magnitude = r"(?P<magnitude>万亿|百万|十亿|万|亿|[KkMBT](?![A-Za-z/]))?"
    unit = rf"(?P<unit>(?:{_unit_pattern()}))"
    after = r"(?![A-Za-z])(?<!×)|(?<=×)(?!\s?[\dA-Za-z(（⌈√])"
    return re.compile(rf"(?<![\w.,]){_NUMBER}\s?{magnitude}\s?{unit}(?:{after})")


@lru_cache(maxsize=1)
def _bare_pattern() -> re.Pattern[str]:
    return re.compile(rf"{_NUMBER}\s?(?P<magnitude>万亿|百万|十亿|万|亿|[KkMBT](?![A-Za-z/]))?")


@dataclass(frozen=True)
class Literal:
    """A printed number: value as written, unit, size of half its last digit, and whether it is called rough."""

    text: str
    value: float
    unit: str
    half_step: float
    rough: bool


def _read(match: re.Match[str], unit: str, rough: bool) -> Literal:
    digits = Decimal(match["digits"].replace(",", ""))
    exponent = int(match["power"].translate(_SUPERSCRIPTS)) if match["power"] else int(match["exponent"] or 0)
    factor = 10.0**exponent * (_MAGNITUDES[match["magnitude"]] if match["magnitude"] else 1.0)
    parts = digits.as_tuple()
    last = Decimal(1).scaleb(int(parts.exponent))
    if rough and digits:
        last = max(last, Decimal(1).scaleb(digits.adjusted()))
    value = float(digits) * factor * (-1 if match["sign"] else 1)
    return Literal(match[0], value, unit, float(last) / 2 * factor, rough)


def literal(text: str, own_unit: str = "", *, rough: bool = False) -> Literal | None:
    """The one number in a link's text; ``own_unit`` is assumed where the text names none."""
    rough = rough or bool(_ROUGH.search(text))
    match = _figure_pattern().search(text)
    if match:
        return _read(match, match["unit"], rough)
    match = _bare_pattern().search(text)
    return _read(match, own_unit, rough) if match else None


def agrees(text: str, target: Target, *, rough: bool = False) -> bool:
    """Does the printed text equal the target's value at the printed precision?  (A text target must be printed as it is.)"""
    if isinstance(target.value, bool) or not isinstance(target.value, int | float):
        return target.text == text.strip() or str(target.value) == text.strip()
    if text.strip() == target.text:
        return True  # as the card prints it: also a residual, which prints as a bound (< 1e-14)
    number = literal(text, target.unit, rough=rough)
    if number is None:
        return False
    wanted, written = unit_of(target.unit), unit_of(number.unit)
    if number.unit not in (target.unit, wanted.label) and not _convertible(written, wanted):
        return False
    same_spelling = number.unit in (target.unit, wanted.label)
    scale = 1.0 if same_spelling else written.scale / wanted.scale
    gap = abs(number.value * scale - target.value)
    return gap <= number.half_step * scale * (1 + 1e-9) + abs(target.value) * 1e-12


def _convertible(a: Unit, b: Unit) -> bool:
    # "7B 参数" and a count of parameters in units of 1e9 are the same thing
    families = {"param-billions": "param"}
    return families.get(a.dimension, a.dimension) == families.get(b.dimension, b.dimension)


@lru_cache(maxsize=1)
def _names() -> re.Pattern[str]:
    """Names of models and cards as people write them: they may hold digits with a unit (A100 80GB) and are no figures."""
    names: set[str] = set()
    for card in accelerators().values():
        bare = re.sub(r"^(NVIDIA|GeForce|AMD|Google|Huawei|Intel)\s+", "", re.sub(r"\s*[(（].*[)）]$", "", card.name))
        names |= {card.id, card.name, bare, re.sub(r"\s(SXM\d?|PCIe)\b", "", bare), bare.replace("GeForce ", "")}
    for model in models().values():
        names |= {model.id, model.name, model.name.replace(" ", "-")}
    loose = [re.escape(n).replace(r"\ ", r"[ -]?").replace(r"\-", r"[ -]?") for n in sorted(names, key=len, reverse=True) if n]
    return re.compile("|".join(rf"(?<![A-Za-z0-9]){n}(?![A-Za-z0-9])" for n in loose), re.IGNORECASE)


_DATES = re.compile(r"(?:19|20)\d\d\s?年(?:\s?\d{1,2}\s?月)?(?:\s?\d{1,2}\s?日)?|(?:19|20)\d\d-\d\d(?:-\d\d)?|第\s?\d+[bc]?\s?[章节步层行页条]")


def _blank(match: re.Match[str]) -> str:
    return " " * len(match[0])  # offsets must stay


def unbound(text: str) -> Iterator[tuple[int, str]]:
    """Offsets and texts of the numbers with a unit in a text that holds no link any more."""
    masked = _DATES.sub(_blank, _names().sub(_blank, text))
    for match in _figure_pattern().finditer(masked):
        yield match.start(), match[0].strip()
