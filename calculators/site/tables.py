"""Generated tables: a sweep of a calculator, rows of the catalog or of the references, answers of public calculators.

Every cell is a bound figure.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote

from calculators.catalog.hardware import accelerators
from calculators.catalog.models import models
from calculators.catalog.references import references
from calculators.catalog.tools import Answer, Case, Question, questions, tools
from calculators.core.calculator import unit_label
from calculators.core.index import load
from calculators.core.numbers import format_number, format_value
from calculators.core.units import unit_of
from calculators.render.html import Html, h
from calculators.site.links import figure_attributes
from calculators.site.targets import MODEL_FIELDS, SPEC_FIELDS, BadTarget, Target, evaluate, resolve

Options = dict[str, str]


def _words(options: Options, name: str) -> list[str]:
    return [w.strip() for w in options.get(name, "").split(",") if w.strip()]


def _cell(target: Target, page: str, text: str = "") -> Html:
    attributes = figure_attributes(target, page)
    link = h("a", text or target.text, class_=attributes["class"], href=attributes["href"], data_why=attributes["data-why"], tabindex="-1")
    return h("td", link, h("small", "（未核实）") if target.kind == "unverified" or any(w.startswith("未核实") for w in target.why[2:]) else None)


def _bare(target: Target, digits: int = 4) -> str:
    """The value without its unit: the unit stands in the column's head."""
    return format_value(target.value, "", digits) if isinstance(target.value, int | float) and not isinstance(target.value, bool) else target.text


def _head(label: str, unit: str) -> Html:
    shown = unit_label(unit)
    return h("th", f"{label}（{shown}）" if shown else label, scope="col")


def _table(head: list[Html], rows: list[Html], caption: str = "") -> Html:
    return h("div", h("table", h("caption", caption) if caption else None, h("thead", h("tr", *head)), h("tbody", *rows), class_="plain"), class_="calc-table")


def sweep_table(options: Options, page: str) -> Html:
    """``sweep="roofline" over="m=1,16,128" set="k=4096;n=4096" show="ai,time_us"``: one row for each value of ``over``."""
    calculator = load(options["sweep"])
    name, equals, listed = options.get("over", "").partition("=")
    swept = calculator.input(name.strip())
    if not equals or swept is None:
        raise BadTarget(f'over="名字=值,值" 里的名字必须是 {calculator.id} 的输入')
    fixed = dict(pair.split("=", 1) for pair in options.get("set", "").split(";") if "=" in pair)
    outputs = [calculator.output(o) for o in _words(options, "show")]
    if not outputs or None in outputs:
        raise BadTarget(f"show 里的名字必须是 {calculator.id} 的输出：{'、'.join(o.name for o in calculator.outputs)}")
    shown = [o for o in outputs if o is not None]
    rows = []
    for value in (v.strip() for v in listed.split(",")):
        given = "&".join(f"{quote(k.strip())}={quote(v.strip(), safe='')}" for k, v in [*fixed.items(), (name.strip(), value)])
        cells = [_cell(t, page, _bare(t)) for t in (resolve(f"calc:{calculator.id}?{given}#{o.name}") for o in shown)]
        rows.append(h("tr", h("th", swept.shown(swept.parse(value)), scope="row"), *cells))
    return _table([_head(swept.label, ""), *(_head(o.label, o.unit) for o in shown)], rows, options.get("caption", ""))


_CATALOGS: dict[str, tuple[Callable[[], dict[str, str]], dict[str, tuple[str, str]]]] = {
    "hardware": (lambda: {id: a.name for id, a in accelerators().items()}, {f: (label, unit) for f, (label, unit, _) in SPEC_FIELDS.items()}),
    "models": (lambda: {id: m.name for id, m in models().items()}, {f: (label, unit) for f, (label, unit, _) in MODEL_FIELDS.items()}),
}


def _catalog_cell(id: str, field: str, page: str) -> Html:
    try:
        target = resolve(f"spec:{id}#{field}")
    except BadTarget:
        return h("td", "—")  # not supported, or no source
    return _cell(target, page, _bare(target, 6))  # given figures, as the catalog has them


def catalog_table(options: Options, page: str) -> Html:
    """``catalog="hardware" rows="a100-80gb,h100-sxm" show="bf16_tflops,memory_gb"``; without ``rows`` every entry."""
    if options["catalog"] not in _CATALOGS:
        raise BadTarget("catalog 只能是 hardware 或 models")
    names, fields = _CATALOGS[options["catalog"]]
    shown = _words(options, "show")
    unknown = [f for f in shown if f not in fields]
    if unknown or not shown:
        raise BadTarget(f"show 里没有的字段 {'、'.join(unknown)}；有 {'、'.join(fields)}")
    rows = []
    for id in _words(options, "rows") or list(names()):
        if id not in names():
            raise BadTarget(f"目录里没有 {id}")
        rows.append(h("tr", h("th", names()[id], scope="row"), *(_catalog_cell(id, field, page) for field in shown)))
    return _table([h("th", "型号", scope="col"), *(_head(fields[f][0], fields[f][1]) for f in shown)], rows, options.get("caption", ""))


def reference_table(options: Options, page: str) -> Html:
    """``refs="horowitz-2014,williams-2009"``: every value of these references with where it stands."""
    rows = []
    for id in _words(options, "refs"):
        entry = references().get(id)
        if entry is None:
            raise BadTarget(f"references 里没有 {id}")
        for name, figure in entry.values.items():
            rows.append(
                h(
                    "tr",
                    h("th", figure.where or name, scope="row"),
                    _cell(resolve(f"ref:{id}#{name}"), page),
                    h("td", f"{entry.title}（{entry.date}）" if entry.date else entry.title),
                )
            )
    return _table([h("th", "量", scope="col"), h("th", "数值", scope="col"), h("th", "来源", scope="col")], rows, options.get("caption", ""))


def tool_table(options: Options, page: str) -> Html:
    """``tools="param_count"``: what public calculators answered, case by case, below the value that our code computes.
    ``tools="about"``: one row for each of them.
    """
    name = options["tools"]
    if name == "about":
        return _tools_summary()
    if name not in questions():
        raise BadTarget(f"tools 只能是 about 或 {'、'.join(questions())}")
    question = questions()[name]
    rows = [row for case in question.cases for row in _case_rows(question, case, page)]
    reasons = [h("li", f"{tools()[tool].name}：{why}") for tool, why in question.why.items()]
    head = [h("th", "工具", scope="col"), h("th", question.title, scope="col"), h("th", "差", scope="col")]
    return h("div", _table(head, rows, options.get("caption", "")), h("ul", *reasons) if reasons else None, class_="tool-answers")


def right_value(question: Question, case: Case) -> Target:
    """What our code computes for a case, in the question's unit."""
    if " " in case.right:
        value, why = evaluate(case.right, question.unit), ("由别的数推出",)
        return Target(case.right, value, question.unit, _shown(question, value), "derived", why)
    found = resolve(case.right)
    assert isinstance(found.value, int | float)
    value = found.value * unit_of(found.unit).scale / unit_of(question.unit).scale
    return Target(found.url, value, question.unit, _shown(question, value), found.kind, found.why, found.calculator, found.given)


def off_by(answer: Answer, right: Target) -> float | None:
    """The answer's distance as a share of the right value; None when there is no answer."""
    assert isinstance(right.value, int | float)
    return None if answer.value is None else answer.value / right.value - 1


def _shown(question: Question, value: float) -> str:
    return format_value(value * unit_of(question.unit).scale / unit_of(question.shown).scale, question.shown, 4)


def _case_rows(question: Question, case: Case, page: str) -> list[Html]:
    right = right_value(question, case)
    return [
        h("tr", h("th", case.of, scope="colgroup", colspan="3")),
        h("tr", h("td", question.by), _cell(right, page), h("td", "—")),
        *(_answer_row(question, case, answer, right, page) for answer in case.answers),
    ]


def _answer_row(question: Question, case: Case, answer: Answer, right: Target, page: str) -> Html:
    tool, off = tools()[answer.tool], off_by(answer, right)
    said = _shown(question, answer.value) if answer.value is not None else "报错停下"
    why = (f"{tool.name} 的答案：{case.of}", f"{tool.repo}，{tool.version}" + (f"（{tool.date}）" if tool.date else ""), question.why.get(answer.tool, ""))
    printed = Target("", answer.value, question.unit, said, "fact", tuple(line for line in why if line))
    how, apart = (h("small", f"（{note}）") if note else None for note in (answer.how, answer.apart))
    return h("tr", h("td", tool.name, how), _cell(printed, page), h("td", _distance(off), apart))


def _distance(off: float | None) -> str:
    if off is None:
        return "—"
    if abs(off) < 5e-5:
        return "一致"
    return f"{format_number(off + 1, digits=2)}\N{NO-BREAK SPACE}倍" if off > 0.9 else f"{'+' if off > 0 else '−'}{format_number(abs(off) * 100, digits=2)}%"


def _tools_summary() -> Html:
    """The tools, with the commit or release that was asked."""
    rows = [
        h("tr", h("th", tool.name, scope="row"), h("td", tool.what, h("br"), h("small", "，".join(p for p in (f"{tool.repo} {tool.version}", tool.date) if p))))
        for tool in tools().values()
    ]
    return _table([h("th", "工具", scope="col"), h("th", "算什么，问的是哪一版", scope="col")], rows)
