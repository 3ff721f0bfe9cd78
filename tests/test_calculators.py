"""Every calculator keeps the same promises: a complete declaration, and an answer or a refusal for whatever is typed."""

from __future__ import annotations

import ast
import inspect
import math
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from in_range import raw_inputs

from calculators.catalog import chapters
from calculators.core.calculator import Calculator, Run
from calculators.core.errors import Refusal
from calculators.core.index import ids, load, modules
from calculators.core.inputs import Input
from calculators.core.numbers import format_number
from calculators.core.units import registry
from calculators.render.svg import figure

CHINESE = re.compile(r"[一-鿿]")
NOT_FINITE = re.compile(r"(?<![a-z])(nan|inf|infinity)(?![a-z])|∞", re.IGNORECASE)
TERM = re.compile(r"[A-Za-z0-9 .+/%·×÷_()\-]{1,24}")
"""A label may be a bare term of the field (batch, MFU, TP) instead of Chinese."""

GARBAGE = (
    "", " ", "-1", "−1", "1e400", "-1e400", "NaN", "inf", "１２８", "8k", "7B", "1.5 万", "0", "1e-300", "1e300", "50%", "1,000", "1_000", "32Ki",
    "<script>alert(1)</script>", "十", "1" * 190, "9" * 5000, "😀", "1 2 3", "0x10", "--5", "1e", "null", "é", "١٢", "\x00", "3 GB", "5 苹果",
)  # fmt: skip

PLAIN = settings(max_examples=25, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck), print_blob=False)
EXPERIMENT = settings(PLAIN, max_examples=5)

every_calculator = pytest.mark.parametrize("id", ids())


def is_label(text: str) -> bool:
    return bool(CHINESE.search(text) or TERM.fullmatch(text))


def shown_texts(run: Run) -> list[str]:
    return [*run.texts.values(), *run.lines, run.verdict, *run.notes]


def numbers_of(value: object) -> list[float]:
    """Every number inside an output, tables included."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return []
    if isinstance(value, dict):
        return [x for v in value.values() for x in numbers_of(v)]
    if isinstance(value, list | tuple):
        return [x for v in value for x in numbers_of(v)]
    assert isinstance(value, int | float), f"an output holds a {type(value).__name__}"
    return [value]


def assert_finite(run: Run) -> None:
    for name, value in run.values.items():
        assert all(math.isfinite(x) for x in numbers_of(value)), f"{name} = {value}"
    for text in shown_texts(run):
        assert not NOT_FINITE.search(text), text


def assert_drawn(calculator: Calculator, run: Run) -> None:
    for i, chart in enumerate(calculator.charts(run)):
        svg = figure(chart, key=f"{calculator.id}-{i}")
        assert "<title" in svg
        assert "<desc" in svg
        assert not NOT_FINITE.search(re.sub(r"<[^>]*class=[^>]*>", lambda tag: tag[0].replace("infinite", ""), svg)), (
            f"{chart.title}: a coordinate is not finite"
        )


@every_calculator
def test_declaration_is_complete(id):
    calculator = load(id)
    assert is_label(calculator.title)
    assert CHINESE.search(calculator.question)
    assert CHINESE.search(calculator.leaves_out)
    assert calculator.chapter in {*chapters(), "my-model"}
    assert calculator.sources
    assert all(s.strip() for s in calculator.sources)
    assert calculator.compute.__name__ == modules()[id].rpartition(".")[2]
    assert (calculator.compute.__doc__ or "").strip()
    assert (inspect.getmodule(calculator.compute).__doc__ or "").strip()
    assert all(p.kind is p.KEYWORD_ONLY for p in inspect.signature(calculator.compute).parameters.values())


@every_calculator
def test_inputs_are_declared_soundly(id):
    calculator = load(id)
    main = [i for i in calculator.inputs if not i.more]
    assert 1 <= len(main) <= 6, f"{len(main)} inputs stand open on the card"
    names = {i.name for i in calculator.inputs}
    for item in calculator.inputs:
        assert is_label(item.label), item.label
        assert re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", item.name), item.name
        assert item.unit in registry(), f"{item.name}: unit {item.unit!r} is not registered"
        assert item.only_if is None or item.only_if[0] in names
        values = [item.default, *item.choices, *item.stops]
        for value in values:
            assert item.parse(item.text(value)) == (item.default if value is None else value), f"{item.name}: {value!r} does not survive its own text"
        if item.type == "choice":
            assert item.choices
            assert set(item.choice_labels or {}) <= {str(c) for c in item.choices}
            if item.only_if is None:
                assert item.default in item.choices
        assert list(item.stops) == sorted(set(item.stops)), f"{item.name}: slider stops must ascend"


@every_calculator
def test_only_if_names_values_that_exist(id):
    calculator = load(id)
    for item in calculator.inputs:
        if item.only_if is None:
            continue
        other = calculator.input(item.only_if[0])
        possible = {"true", "false"} if other.type == "bool" else {str(c) for c in other.choices}
        assert set(item.only_if[1]) <= possible, f"{item.name}: {item.only_if}"


@every_calculator
def test_outputs_are_declared_soundly(id):
    calculator = load(id)
    main = [o for o in calculator.outputs if o.main]
    assert 1 <= len(main) <= 6, f"{len(main)} outputs stand open on the card"
    for output in calculator.outputs:
        assert is_label(output.label), output.label
        assert re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", output.name), output.name
        assert output.unit in registry(), f"{output.name}: unit {output.unit!r} is not registered"
        assert all(unit in registry() for _, _, unit in output.columns)


@every_calculator
def test_defaults_give_a_finished_card(id):
    calculator = load(id)
    run = calculator.run()
    assert set(run.result.values) == {o.name for o in calculator.outputs}
    assert CHINESE.search(run.verdict)
    assert run.lines
    assert_finite(run)
    assert_drawn(calculator, run)
    for name, value in run.resolved.items():
        item = calculator.input(name)
        assert item is not None, f"resolved names {name}, which is no input"
        assert item.default is None, f"resolved {name} has a default of its own"
        assert value is not None
    for output in calculator.outputs:
        value = run.values[output.name]
        if output.columns and value is not None:
            assert all(set(row) == {field for field, _, _ in output.columns} for row in value), output.name
        if isinstance(value, list) and value and isinstance(value[0], dict):
            assert output.columns, f"{output.name}: a table needs columns"


@every_calculator
def test_charts_say_what_to_see(id):
    calculator = load(id)
    for chart in calculator.charts(calculator.run()):
        assert CHINESE.search(chart.title)
        assert CHINESE.search(chart.desc)


@every_calculator
def test_numpy_is_declared_when_used(id):
    calculator = load(id)
    tree = ast.parse(inspect.getsource(inspect.getmodule(calculator.compute)))
    imported = {a.name.partition(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
    imported |= {(node.module or "").partition(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert ("numpy" in imported) == ("numpy" in calculator.needs)


@every_calculator
def test_runs_are_deterministic(id):
    calculator = load(id)
    first, second = calculator.run(), calculator.run()
    steady = [o.name for o in calculator.outputs if o.agreement != "machine"]
    assert {n: first.values[n] for n in steady} == {n: second.values[n] for n in steady}
    if len(steady) == len(calculator.outputs):
        assert shown_texts(first) == shown_texts(second)


@every_calculator
def test_any_values_in_range_give_an_answer_or_a_refusal(id):
    calculator = load(id)

    @(EXPERIMENT if calculator.needs else PLAIN)
    @given(raw_inputs(calculator))
    def check(raw):
        try:
            run = calculator.run(raw, drop_unused=True)
        except Refusal as refusal:
            assert_readable(refusal, calculator)
            return
        assert_finite(run)
        assert_drawn(calculator, run)

    check()


def assert_readable(refusal: Refusal, calculator: Calculator) -> None:
    assert refusal.errors
    for error in refusal.errors:
        assert CHINESE.search(error.message), error.message
        assert not NOT_FINITE.search(re.sub(r"「[^」]*」", "", error.message)), error.message
        assert error.field == "" or calculator.input(error.field) is not None, f"{error.field} is no input"


def assert_named(refusal: Refusal, item: Input) -> None:
    """A refusal of a single field begins with what that field is called."""
    for error in refusal.errors:
        assert error.field == item.name
        assert item.label in error.message


def type_into(calculator: Calculator, item: Input, text: str) -> None:
    """One field holds ``text``, the others their defaults."""
    raw = {item.name: text}
    if item.only_if is not None:
        raw[item.only_if[0]] = item.only_if[1][0]
    try:
        item.parse(text)
    except Refusal as refusal:
        assert_named(refusal, item)
    try:
        run = calculator.run(raw, drop_unused=True)
    except Refusal as refusal:
        assert_readable(refusal, calculator)
        return
    assert_finite(run)


@every_calculator
def test_garbage_gives_an_answer_or_a_refusal_that_names_the_field(id):
    calculator = load(id)
    texts = GARBAGE if not calculator.needs else GARBAGE[::4]
    for item in calculator.inputs:
        for text in texts:
            type_into(calculator, item, text)


@every_calculator
def test_any_text_gives_an_answer_or_a_refusal(id):
    calculator = load(id)

    @(EXPERIMENT if calculator.needs else PLAIN)
    @given(st.sampled_from(calculator.inputs), st.text(max_size=30))
    def check(item, text):
        type_into(calculator, item, text)

    check()


@every_calculator
def test_unknown_inputs_are_refused_by_name(id):
    with pytest.raises(Refusal) as caught:
        load(id).run({"no_such_input": "1"})
    assert "no_such_input" in str(caught.value)


@every_calculator
def test_all_bad_fields_are_reported_together(id):
    calculator = load(id)
    bad = [i.name for i in calculator.inputs if i.type not in ("choice", "text")][:2]
    bad += ["no_such_input"] * (2 - len(bad))  # a card of menus has one typed field: an unknown name is the second fault
    with pytest.raises(Refusal) as caught:
        calculator.run(dict.fromkeys(bad, "垃圾"))
    assert {e.field for e in caught.value.errors} >= set(bad)


@every_calculator
def test_ranges_refuse_what_lies_beyond(id):
    for item in load(id).inputs:
        if item.type not in ("int", "float"):
            continue
        beyond = [x for x in (item.low - max(1.0, abs(item.low)), item.high + max(1.0, abs(item.high))) if math.isfinite(x)]
        for value in beyond:
            with pytest.raises(Refusal) as caught:
                item.parse(f"{value:.15g}")
            assert item.label in str(caught.value)
        if item.low_open and math.isfinite(item.low):
            with pytest.raises(Refusal):
                item.parse(format_number(item.low))
