"""What the chapters' tests ask of a calculator: a run, one output, the refusal; and how close a printed value must be."""

from __future__ import annotations

import pytest

from calculators.catalog.references import references
from calculators.core.calculator import Run
from calculators.core.errors import FieldError, Refusal
from calculators.core.index import load
from calculators.site.targets import evaluate


def run(id: str, query: str = "") -> Run:
    """``run("zero-memory", "params=7e9 n_dp=8")``."""
    return load(id).run(dict(pair.split("=", 1) for pair in query.split()))


def value(id: str, query: str, output: str):
    """One output of a run."""
    return run(id, query).values[output]


def refusal(id: str, query: str) -> Refusal:
    """The refusal that these inputs meet."""
    with pytest.raises(Refusal) as caught:
        run(id, query)
    return caught.value


def first_error(id: str, query: str) -> FieldError:
    """Its first field with the message."""
    return refusal(id, query).errors[0]


def check(actual: object, expected: object, tolerance: float) -> None:
    """Equal, numbers within a relative tolerance (0: to the last bits)."""
    if isinstance(expected, bool) or expected is None or isinstance(expected, str):
        assert actual == expected
    else:
        assert actual == pytest.approx(expected, rel=tolerance or 1e-12)


def half_of(printed: str) -> float:
    """Half of the last digit of a printed number."""
    return 0.5001 * 10 ** (-len(printed.partition(".")[2]))


def ref(name: str):
    """A figure of the references: ``nvlink-links#h100_links``."""
    id, _, field = name.partition("#")
    figure = references()[id].values[field]
    return evaluate(figure.expr, figure.unit) if figure.expr else figure.value
