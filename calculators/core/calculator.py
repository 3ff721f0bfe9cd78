"""A calculator: a pure function with a declaration."""

from __future__ import annotations

import inspect
import keyword
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from calculators.core.charts import Chart
from calculators.core.errors import Refusal, refuse
from calculators.core.inputs import Input, Scalar, parse_all
from calculators.core.numbers import format_value
from calculators.core.units import unit_of
from calculators.core.worked import Quantity, in_unit

Row = dict[str, Scalar | None]
Value = Scalar | None | list[float] | list[int] | list[str] | list[list[str]] | list[Row]
Given = Value | Quantity
Agreement = Literal["exact", "band", "machine"]


@dataclass(frozen=True)
class Output:
    """A declared result.

    ``main`` outputs stand open on the card, the others behind 「全部结果」.  ``agreement``: ``exact`` results agree between
    CPython and Pyodide at rel 1e-12 and as text, ``band`` within the spec's tolerance, ``machine`` depend on the machine.
    ``bound`` prints a residual as an upper bound (``< 1e-14``).  ``columns`` label the fields of a table output.
    """

    name: str
    label: str
    unit: str = ""
    main: bool = False
    agreement: Agreement = "exact"
    digits: int = 4
    bound: float | None = None
    columns: tuple[tuple[str, str, str], ...] = ()
    """(field, label, unit) of each column when the value is a list of rows."""

    def text(self, value: Value) -> str:
        if self.bound is not None and isinstance(value, int | float) and abs(value) < self.bound:
            return f"< {self.bound:.0e}".replace("e-0", "e-")
        return format_value(value, self.unit, self.digits)


@dataclass(frozen=True)
class Result:
    """What a calculator's function returns.

    ``values``: outputs by name, plain numbers already in the declared unit or quantities in base units.
    ``resolved``: what each empty input was taken to be.  ``notes``: remarks that are no refusal.
    """

    values: Mapping[str, Given]
    lines: tuple[str, ...]
    verdict: str
    resolved: Mapping[str, Scalar] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    trace: object = None
    """Whatever the chart needs and the outputs do not carry (a timeline, sampled points)."""


@dataclass(frozen=True)
class Run:
    """A finished calculation: parsed inputs, outputs in declared units, printed texts."""

    inputs: Mapping[str, Scalar | None]
    values: Mapping[str, Value]
    texts: Mapping[str, str]
    lines: tuple[str, ...]
    verdict: str
    resolved: Mapping[str, Scalar]
    notes: tuple[str, ...]
    result: Result


@dataclass(frozen=True)
class Calculator:
    """The declaration; ``compute`` is the pure function."""

    id: str
    title: str
    question: str
    chapter: str
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    compute: Callable[..., Result]
    leaves_out: str
    sources: tuple[str, ...]
    formula: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    chart: Callable[..., tuple[Chart, ...]] | None = None
    needs: tuple[str, ...] = ()
    """Packages beyond the standard library: ``("numpy",)`` for experiments."""

    def input(self, name: str) -> Input | None:
        return next((i for i in self.inputs if i.name == name), None)

    def output(self, name: str) -> Output | None:
        return next((o for o in self.outputs if o.name == name), None)

    def parse(self, raw: Mapping[str, str], *, drop_unused: bool = False) -> dict[str, Scalar | None]:
        """Typed values from texts.  Raises Refusal."""
        return parse_all(self.inputs, raw, drop_unused=drop_unused)

    def arguments(self, values: Mapping[str, Scalar | None]) -> dict[str, object]:
        """Keyword arguments of ``compute``: looked-up objects for choices that name one, ``from_`` for ``from``."""
        arguments: dict[str, object] = {}
        for item in self.inputs:
            value: object = values[item.name]
            if item.lookup is not None and isinstance(value, str):
                value = item.lookup(value)
            arguments[argument_name(item.name)] = value
        return arguments

    def run(self, raw: Mapping[str, str] | None = None, *, drop_unused: bool = False) -> Run:
        """Parse, compute, check and print.  Raises Refusal."""
        values = self.parse(raw or {}, drop_unused=drop_unused)
        return self.run_values(values)

    def run_values(self, values: Mapping[str, Scalar | None]) -> Run:
        """Compute from values that were parsed already.  Raises Refusal, also when the result overflows."""
        try:
            result = self.compute(**self.arguments(values))
        except (OverflowError, ZeroDivisionError):
            raise refuse("", "这组输入算出来的数超出了范围", "无法计算", "把数值改小或改大一些再试") from None
        except Refusal as refusal:
            raise Refusal(tuple(replace(e, field=declared_name(e.field)) for e in refusal.errors)) from None
        outputs = {o.name: self._checked(o, result.values[o.name]) for o in self.outputs}
        texts = {o.name: o.text(outputs[o.name]) for o in self.outputs}
        return Run(dict(values), outputs, texts, result.lines, result.verdict, result.resolved, result.notes, result)

    def _checked(self, output: Output, given: Given) -> Value:
        value: Value = in_unit(given, output.unit) if isinstance(given, Quantity) else given
        if isinstance(value, float) and not math.isfinite(value):
            raise refuse("", f"「{output.label}」超出了可计算的范围", "结果不是有限的数", "把输入改小或改大一些再试")
        return value

    def cautions(self, run: Run) -> tuple[str, ...]:
        """What a reader should know about the chosen presets: unverified and contested figures."""
        said = (i.caution(value) for i in self.inputs if i.caution is not None and isinstance(value := run.inputs[i.name], str))
        return tuple(dict.fromkeys(s for s in said if s))

    def charts(self, run: Run) -> tuple[Chart, ...]:
        """Sample the curves of a finished run; apart from the result so that nothing else pays for them."""
        if self.chart is None:
            return ()
        return self.chart(run, **self.arguments(run.inputs))


def argument_name(name: str) -> str:
    """An input's name as a Python parameter (``from`` → ``from_``)."""
    return name + "_" if keyword.iskeyword(name) else name


def declared_name(parameter: str) -> str:
    """The inverse of ``argument_name``."""
    bare = parameter.removesuffix("_")
    return bare if keyword.iskeyword(bare) else parameter


def calculator(
    *, title: str, question: str, chapter: str, inputs: tuple[Input, ...], outputs: tuple[Output, ...], leaves_out: str, sources: tuple[str, ...],
    formula: tuple[str, ...] = (), assumptions: tuple[str, ...] = (), chart: Callable[..., tuple[Chart, ...]] | None = None, needs: tuple[str, ...] = (),
) -> Callable[[Callable[..., Result]], Calculator]:  # fmt: skip
    """Declare a calculator; its id is the module's file name with hyphens.  Raises TypeError on a faulty declaration."""

    def declare(function: Callable[..., Result]) -> Calculator:
        id = function.__module__.rpartition(".")[2].replace("_", "-")
        for what, names in (("input", [i.name for i in inputs]), ("output", [o.name for o in outputs])):
            if len(set(names)) != len(names):
                raise TypeError(f"{id}: an {what} is declared twice")
        parameters = list(inspect.signature(function).parameters)
        if sorted(parameters) != sorted(argument_name(i.name) for i in inputs):
            raise TypeError(f"{id}: the function takes {parameters}, the declaration names {[i.name for i in inputs]}")
        return Calculator(id, title, question, chapter, inputs, outputs, function, leaves_out, sources, formula, assumptions, chart, needs)

    return declare


def unit_label(symbol: str) -> str:
    """How pages print a unit."""
    return unit_of(symbol).label
