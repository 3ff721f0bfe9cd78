"""Changed inputs to try on any calculator: what a reader would do to one field of its card."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from calculators.core.calculator import Calculator, Run
from calculators.core.errors import Refusal
from calculators.core.inputs import Input

Texts = dict[str, str]


def variations(calculator: Calculator, given: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """(input, new text): the next option, the next slider stop, twice the number."""
    run = accepted(calculator, given)
    for item in calculator.inputs:
        present = given.get(item.name) or item.text(run.resolved.get(item.name, item.default) if run else item.default)
        yield from ((item.name, text) for text in _others(item, present) if text != present)


def _others(item: Input, present: str) -> list[str]:
    if item.type == "bool":
        return ["false" if present == "true" else "true"]
    if item.type == "text":
        return [item.placeholder]
    if item.type == "choice":
        choices = [str(c) for c in item.choices]
        here = choices.index(present) if present in choices else -1
        return [choices[(here + 1) % len(choices)]]
    try:
        number = float(present)
    except ValueError:
        number = 1.0
    stops = [s for s in item.stops if s > number] or list(reversed(item.stops))
    doubled = number * 2 or 1.0
    return [item.text(float(s)) for s in stops[:1]] + [item.text(round(doubled) if item.type == "int" else doubled)]


def accepted(calculator: Calculator, texts: Mapping[str, str]) -> Run | None:
    """The run, or None when the calculator declines these inputs."""
    try:
        return calculator.run(texts, drop_unused=True)
    except Refusal:
        return None


def compared(calculator: Calculator) -> list[str]:
    """Names of the outputs that must agree everywhere."""
    return [o.name for o in calculator.outputs if o.agreement == "exact"]
