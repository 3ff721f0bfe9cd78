"""Typed inputs: what may be typed into a field, and the refusal when it may not."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from calculators.core.errors import FieldError, Refusal, refuse
from calculators.core.numbers import NotANumber, format_number, format_value, parse_number
from calculators.core.units import unit_of

Scalar = float | int | bool | str
Type = Literal["int", "float", "choice", "bool", "text"]

_TRUE = {"true", "1", "yes", "on", "是", "真"}
_FALSE = {"false", "0", "no", "off", "否", "假"}
_LONGEST_TEXT = 200


@dataclass(frozen=True)
class Input:
    """One declared input.

    ``default`` is ``None`` when an empty field takes its value from a preset (the calculator says which, in
    ``Result.resolved``).  ``kind`` groups inputs of one meaning (``model``, ``gpu``, ``tokens`` …): 「我的配置」 fills every
    input of kind ``model`` or ``gpu`` whatever its name.  ``stops`` are the slider's positions.  ``only_if`` names another
    input and the values for which this one is used at all.  ``lookup`` turns a choice into the object it stands for.
    ``longest`` limits typed text; ``placeholder`` is what an empty text field shows.
    """

    name: str
    label: str
    type: Type
    default: Scalar | None = None
    unit: str = ""
    low: float = -math.inf
    high: float = math.inf
    low_open: bool = False
    choices: tuple[Scalar, ...] = ()
    choice_labels: Mapping[str, str] | None = None
    kind: str = ""
    help: str = ""
    more: bool = False
    stops: tuple[float, ...] = ()
    only_if: tuple[str, tuple[str, ...]] | None = None
    longest: int = _LONGEST_TEXT
    placeholder: str = ""
    lookup: Callable[[str], object] | None = None
    accepts_text: Callable[[str], bool] | None = None
    """Says whether a text outside ``choices`` may be handed to ``lookup`` (a pasted config.json)."""
    range_remedy: str = ""
    caution: Callable[[str], str] | None = None
    """A sentence to show when this choice rests on figures that nobody verified; empty when it does not."""

    def parse(self, text: str) -> Scalar | None:
        """Turn typed text into a value of this input's type; empty text is the default.  Raises Refusal."""
        stripped = text.strip()
        if not stripped:
            return self.default
        if self.type == "choice":
            return self._parse_choice(stripped)
        if len(stripped) > self.longest:
            raise refuse(self.name, f"{self.label}太长，最多 {self.longest} 个字符", f"{len(stripped)} 个")
        if self.type == "text":
            return stripped
        if self.type == "bool":
            return self._parse_bool(stripped)
        return self._parse_number(stripped)

    def _parse_choice(self, text: str) -> Scalar:
        for choice in self.choices:
            if text == str(choice):
                return choice
        for choice in self.choices:
            if text.replace("x", "×") == str(choice):  # 16x8 typed for 16×8
                return choice
        if all(isinstance(c, int | float) for c in self.choices):
            try:
                number = parse_number(text, self.unit)
            except NotANumber:
                number = math.nan
            for choice in self.choices:
                if choice == number:
                    return choice
        if self.accepts_text is not None and self.accepts_text(text):
            return text
        shown = "、".join(str(c) for c in self.choices[:12]) + ("……" if len(self.choices) > 12 else "")
        raise refuse(self.name, f"{self.label}不在可选项里", _clip(text), f"可取 {shown}")

    def _parse_bool(self, text: str) -> bool:
        lowered = text.lower()
        if lowered in _TRUE:
            return True
        if lowered in _FALSE:
            return False
        raise refuse(self.name, f"{self.label}只能是 true 或 false", _clip(text))

    def _parse_number(self, text: str) -> float | int:
        try:
            value = parse_number(text, self.unit)
        except NotANumber as error:
            raise refuse(self.name, f"{self.label}{error}", _clip(text), f"例如 {self.example()}") from None
        if self.type == "int":
            if not math.isclose(value, round(value), rel_tol=0, abs_tol=1e-9 * max(1.0, abs(value))):
                raise refuse(self.name, f"{self.label}必须是整数", _clip(text), f"例如 {math.floor(value)}")
            value = round(value)
        below = value <= self.low if self.low_open else value < self.low
        if below or value > self.high:
            raise refuse(self.name, f"{self.label}{self.range_text()}", _clip(text), self.range_remedy)
        return value

    def example(self) -> str:
        for candidate in (self.default, *self.stops, self.low, 1):
            if isinstance(candidate, int | float) and math.isfinite(candidate):
                return format_number(candidate)
        return "1"

    def range_text(self) -> str:
        """The allowed range as a rule: 「必须大于 0」, 「必须在 1 到 1024 之间」."""
        low = format_number(self.low) if math.isfinite(self.low) else ""
        high = format_number(self.high) if math.isfinite(self.high) else ""
        if low and high:
            return f"必须大于 {low}、不超过 {high}" if self.low_open else f"必须在 {low} 到 {high} 之间"
        if low:
            return f"必须大于 {low}" if self.low_open else f"不能小于 {low}"
        return f"不能大于 {high}"

    def text(self, value: object) -> str:
        """A value as it is written in a field, a fence or a link: parses back to the same value."""
        if value is None:
            return ""
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, float):
            return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
        return str(value)

    def shown(self, value: object) -> str:
        """A value as a reader sees it, with its unit (the echo beside the field, the print line)."""
        if isinstance(value, str) and self.type == "text":
            return _clip(value)
        if isinstance(value, str):
            return (self.choice_labels or {}).get(value, value if len(value) < 60 else "粘贴的 config.json")
        return format_value(value, self.unit if not isinstance(value, bool) else "", digits=6)

    @property
    def unit_label(self) -> str:
        return unit_of(self.unit).label


def _clip(text: str) -> str:
    return f"「{text if len(text) <= 40 else text[:40] + '…'}」"


def number(
    name: str, label: str, default: float | None, unit: str = "", *, low: float = -math.inf, high: float = math.inf, low_open: bool = False,
    kind: str = "", help: str = "", more: bool = False, stops: tuple[float, ...] = (), only_if: tuple[str, tuple[str, ...]] | None = None, range_remedy: str = "",
) -> Input:  # fmt: skip
    """A real-valued input."""
    return Input(
        name, label, "float", default, unit, low, high, low_open, kind=kind, help=help, more=more, stops=stops, only_if=only_if, range_remedy=range_remedy
    )


def integer(
    name: str, label: str, default: int | None, unit: str = "", *, low: float = 1, high: float = math.inf,
    kind: str = "", help: str = "", more: bool = False, stops: tuple[float, ...] = (), only_if: tuple[str, tuple[str, ...]] | None = None, range_remedy: str = "",
) -> Input:  # fmt: skip
    """A whole-number input."""
    return Input(name, label, "int", default, unit, low, high, kind=kind, help=help, more=more, stops=stops, only_if=only_if, range_remedy=range_remedy)


def choice(
    name: str, label: str, default: Scalar, choices: tuple[Scalar, ...], unit: str = "", *, labels: Mapping[str, str] | None = None,
    kind: str = "", help: str = "", more: bool = False, only_if: tuple[str, tuple[str, ...]] | None = None,
) -> Input:  # fmt: skip
    """One of a few values; numbers among them arrive as numbers."""
    return Input(name, label, "choice", default, unit, choices=choices, choice_labels=labels, kind=kind, help=help, more=more, only_if=only_if)


def flag(name: str, label: str, default: bool | None, *, help: str = "", more: bool = False, only_if: tuple[str, tuple[str, ...]] | None = None) -> Input:
    """A yes/no input; ``None`` when an empty field takes the preset's value."""
    return Input(name, label, "bool", default, help=help, more=more, only_if=only_if)


def text(
    name: str, label: str, default: str = "", *, longest: int, placeholder: str = "", help: str = "", more: bool = False,
    only_if: tuple[str, tuple[str, ...]] | None = None,
) -> Input:  # fmt: skip
    """Several lines of text, which the calculator reads itself; ``placeholder`` shows how to write them."""
    return Input(name, label, "text", default, longest=longest, placeholder=placeholder, help=help, more=more, only_if=only_if)


def log_stops(low: float, high: float, per_decade: int = 10) -> tuple[float, ...]:
    """Slider positions, evenly spaced on a logarithm and rounded to two figures."""
    count = max(2, round(math.log10(high / low) * per_decade) + 1)
    raw = [low * (high / low) ** (i / (count - 1)) for i in range(count)]
    return tuple(dict.fromkeys(float(f"{v:.2g}") for v in raw))


def linear_stops(low: float, high: float, step: float) -> tuple[float, ...]:
    """Slider positions, evenly spaced."""
    return tuple(float(f"{low + i * step:.10g}") for i in range(round((high - low) / step) + 1))


def powers_of_two(low: int, high: int) -> tuple[float, ...]:
    """Slider positions 2**k from ``low`` to ``high``."""
    return tuple(float(2**k) for k in range(round(math.log2(low)), round(math.log2(high)) + 1))


def parse_all(inputs: tuple[Input, ...], raw: Mapping[str, str], *, drop_unused: bool = False) -> dict[str, Scalar | None]:
    """Parse every field; unknown names and every bad value are reported together.

    An explicit value that the chosen operation does not use is refused, or ignored with ``drop_unused`` (the page keeps
    such fields in its form).  Raises Refusal.
    """
    known = {i.name: i for i in inputs}
    errors = [FieldError(name, f"没有名为 {name[:40]} 的输入：可取 {'、'.join(known)}") for name in raw if name not in known]
    values: dict[str, Scalar | None] = {}
    for item in inputs:
        try:
            values[item.name] = item.parse(raw.get(item.name, ""))
        except Refusal as refusal:
            errors.extend(refusal.errors)
            values[item.name] = item.default
    for item in inputs:
        if is_used(item, values) or values[item.name] == item.default:
            continue
        if drop_unused:
            values[item.name] = item.default
        else:
            other, allowed = item.only_if or ("", ())
            errors.append(
                FieldError(
                    item.name, f"{item.label}只在{known[other].label}取 {'、'.join(allowed)} 时使用：{known[other].label}是 {values[other]}，请清空它或改选"
                )
            )
    if errors:
        raise Refusal(tuple(errors))
    return values


def is_used(item: Input, values: Mapping[str, object]) -> bool:
    """Does the chosen operation read this input?"""
    if item.only_if is None:
        return True
    other, allowed = item.only_if
    value = values.get(other)
    return ("true" if value is True else "false" if value is False else str(value)) in allowed
