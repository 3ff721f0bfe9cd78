"""A 算一算 card as HTML: the form at build time, the result at build time and in the browser."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from calculators.core.calculator import Calculator, Output, Run, Value
from calculators.core.inputs import Input, is_used
from calculators.core.numbers import format_value
from calculators.render.html import Html, h, join
from calculators.render.svg import figure

MOST_OPEN_LINES = 12
"""More worked lines than that are folded: the verdict must stay on one screen with the inputs."""

LONGEST_IN_HALF = 9
"""A value with more characters is cut off in half the width of a phone."""


@dataclass(frozen=True)
class Guess:
    """A 先猜 question: options and which of them is right."""

    question: str
    options: tuple[str, ...]
    answer: int


def card_id(id: str, n: int) -> str:
    """The card's HTML id: calculator and ordinal on its page."""
    return f"calc-{id}-{n}"


def card(calculator: Calculator, n: int, given: Mapping[str, str], run: Run, guess: Guess | None, source_code: str) -> Html:
    """The whole card, complete without JavaScript; ``given`` are the chapter's overrides of the defaults."""
    key = card_id(calculator.id, n)
    main = [i for i in calculator.inputs if not i.more]
    more = [i for i in calculator.inputs if i.more]
    fields = [_field(i, key, given, run) for i in main]
    if more:
        folded = h("div", *(_field(i, key, given, run) for i in more), class_="calc-inputs")
        fields.append(h("details", h("summary", "更多参数"), folded, class_="calc-more"))
    form = h(
        "form",
        h(
            "fieldset",
            h("legend", f"{calculator.title}：输入", class_="calc-hidden"),
            h("div", *fields, class_="calc-inputs"),
            class_="calc-fields",
            disabled=True,
        ),
        class_="calc-form",
        autocomplete="off",
        data_search_exclude=True,
    )
    body = h(
        "calc-card",
        h("p", h("span", "算一算", class_="calc-kicker"), " ", h("span", calculator.title, class_="calc-title"), class_="calc-head"),
        h("p", calculator.question, class_="calc-question"),
        form,
        _guess(guess, key) if guess else None,
        h("div", result(calculator, run, key), class_="calc-result", data_role="result", data_search_exclude=True),
        h("p", class_="calc-status", data_role="status", role="status"),
        h(
            "div",
            h("button", "回到正文的数", type="button", data_act="reset", hidden=True),
            h("button", "复制链接", type="button", data_act="copy"),
            h("button", "报错", type="button", data_act="report"),
            _mine() if any(i.kind in ("model", "gpu") for i in calculator.inputs) else None,
            class_="calc-actions",
            data_search_exclude=True,
        ),
        h("p", class_="calc-hidden", data_role="live", aria_live="polite"),
        _about(calculator, source_code),
        id=key,
        data_id=calculator.id,
        data_n=n,
        data_needs=" ".join(calculator.needs),
        data_guess="open" if guess else None,
        role="group",
        aria_label=f"算一算：{calculator.title}",
    )
    return h("div", body, class_="calc")


def _field(item: Input, key: str, given: Mapping[str, str], run: Run) -> Html:
    id = f"{key}-{item.name}"
    default = item.text(item.default)
    text = item.text(item.parse(given.get(item.name, ""))) if item.name in given else default
    described = f"{id}-msg"
    unit = h("span", item.unit_label, class_="calc-unit") if item.unit_label and item.type != "bool" else None
    control = _CONTROLS[item.type](item, id, text, default, run)
    return h(
        "div",
        h("label", item.label, for_=id),
        h("span", control, unit, class_="calc-control"),
        _slider(item, id, text),
        h("p", item.help, class_="calc-help") if item.help else None,
        _paste(item, id) if _takes_file(item) else None,
        h("p", class_="calc-msg", id=described),
        class_="calc-field is-wide" if _is_wide(item, text) else "calc-field",
        data_field=item.name,
        data_unused=not is_used(item, run.inputs),
        data_kind=item.kind or None,
    )


def _is_wide(item: Input, text: str) -> bool:
    """Does a number, or the name of a choice, need the whole width of a phone?"""
    labels = item.choice_labels or {}
    if item.type == "choice":
        return any(len(labels.get(str(c), str(c))) > LONGEST_IN_HALF for c in item.choices)
    return item.type in ("int", "float") and len(text) > LONGEST_IN_HALF


def _attributes(item: Input, id: str, text: str, default: str) -> dict[str, str]:
    return {"id": id, "name": item.name, "data_given": text, "data_default": default, "aria_describedby": f"{id}-msg"}


def _text_control(item: Input, id: str, text: str, default: str, run: Run) -> Html:
    resolved = item.text(run.resolved.get(item.name)) if item.name in run.resolved else ""
    mode = "numeric" if item.type == "int" else "decimal"
    return h("input", type="text", inputmode=mode, value=text, placeholder=resolved, spellcheck="false", **_attributes(item, id, text, default))


def _select_control(item: Input, id: str, text: str, default: str, run: Run) -> Html:
    labels = item.choice_labels or {}
    options = [h("option", labels.get(str(c), str(c)), value=str(c), selected=str(c) == text) for c in item.choices]
    return h("select", *options, data_pastes=_takes_file(item), **_attributes(item, id, text, default))


def _flag_control(item: Input, id: str, text: str, default: str, run: Run) -> Html:
    if item.default is None:
        resolved = "是" if run.resolved.get(item.name) else "否"
        options = (("", f"按预设（{resolved}）"), ("true", "是"), ("false", "否"))
        return h("select", *(h("option", label, value=value, selected=value == text) for value, label in options), **_attributes(item, id, text, default))
    return h("input", type="checkbox", checked=text == "true", **_attributes(item, id, text, default))


def _lines_control(item: Input, id: str, text: str, default: str, run: Run) -> Html:
    return h(
        "textarea",
        text,
        rows=max(2, item.placeholder.count("\n") + 1),
        placeholder=item.placeholder,
        spellcheck="false",
        **_attributes(item, id, text, default),
    )


_CONTROLS = {"int": _text_control, "float": _text_control, "choice": _select_control, "bool": _flag_control, "text": _lines_control}


def _slider(item: Input, id: str, text: str) -> Html | None:
    if not item.stops:
        return None
    stops = [item.text(float(s)) for s in item.stops]
    try:
        here = float(text)
        position = min(range(len(stops)), key=lambda i: abs(item.stops[i] - here))
    except ValueError:
        position = len(stops) // 2
    listing = "[" + ",".join(f'"{s}"' for s in stops) + "]"
    return h(
        "input", type="range", class_="calc-slider", min=0, max=len(stops) - 1, step=1, value=position,
        data_for=item.name, data_stops=listing, aria_label=f"{item.label}（滑块）", autocomplete="off",
    )  # fmt: skip


def _takes_file(item: Input) -> bool:
    return item.kind == "model" and item.accepts_text is not None


def _paste(item: Input, id: str) -> Html:
    return h(
        "details",
        h("summary", "用我的 config.json"),
        h(
            "textarea",
            rows=3,
            spellcheck="false",
            placeholder="把 config.json 的内容贴在这里，或把文件拖到卡片上",
            aria_label=f"{item.label}：粘贴 config.json",
            data_paste=True,
        ),
        h("input", type="file", accept=".json,application/json", aria_label=f"{item.label}：选择 config.json 文件", data_file=True),
        class_="calc-paste",
    )


def _mine() -> Html:
    return h(
        "calc-mine",
        h("span", data_role="mine-text"),
        h("button", "按我的配置算", type="button", data_act="mine-use", hidden=True),
        h("button", "记作我的配置", type="button", data_act="mine-set"),
        hidden=True,
    )


def _guess(guess: Guess, key: str) -> Html:
    options = [h("label", h("input", type="radio", name=f"guess-{key}", value=i), " ", option) for i, option in enumerate(guess.options)]
    answer = guess.options[guess.answer]
    return h(
        "fieldset",
        h("legend", f"先猜：{guess.question}"),
        *options,
        h("button", "跳过，直接看", type="button", data_act="skip"),
        h("p", data_role="guess-note", data_right=f"猜对了：{answer}。", data_wrong=f"没猜中。答案是：{answer}。", hidden=True),
        class_="calc-guess",
        data_role="guess",
        data_answer=guess.answer,
    )


def result(calculator: Calculator, run: Run, key: str, base: Mapping[str, str] | None = None) -> Html:
    """The inside of ``.calc-result``; ``key`` keeps ids unique on the page; with ``base`` (the chapter's printed values) every changed value shows both."""
    main = [o for o in calculator.outputs if o.main] or list(calculator.outputs[:3])
    rest = [o for o in calculator.outputs if o not in main]
    lines = h("ol", *(_line(text) for text in run.lines), class_="calc-lines") if run.lines else None
    if len(run.lines) > MOST_OPEN_LINES:
        lines = h("details", h("summary", f"算式（{len(run.lines)} 行）"), lines, class_="calc-all")
    charts = [figure(c, key=f"{key}-{i}") for i, c in enumerate(calculator.charts(run))]
    return join(
        h("dl", *(_output(o, run, base) for o in main), class_="calc-outputs"),
        h("p", run.verdict, class_="calc-verdict"),
        [h("p", note, class_="calc-note") for note in (*run.notes, *calculator.cautions(run))],
        lines,
        charts,
        h("details", h("summary", "全部结果"), h("dl", *(_output(o, run, base) for o in rest), class_="calc-outputs calc-rest"), class_="calc-all")
        if rest
        else None,
    )


def _line(text: str) -> Html:
    label, colon, rest = text.partition("：")
    if not colon:
        label, rest = "", text
    expression, equals, value = rest.rpartition(" = ")
    if not equals:
        return h("li", h("span", label, class_="calc-label"), h("span", rest, class_="calc-expr"))
    return h("li", h("span", label, class_="calc-label"), h("span", expression, class_="calc-expr"), h("span", f"= {value}", class_="calc-value"))


def _output(output: Output, run: Run, base: Mapping[str, str] | None) -> Html:
    text = run.texts[output.name]
    was = (base or {}).get(output.name, text)
    value = run.values[output.name]
    if isinstance(value, list) and value and isinstance(value[0], dict):
        shown: Html = _table(output, value)
    elif was != text:
        shown = join(h("s", f"正文：{was}"), h("span", "→ 现在：", class_="calc-now"), h("strong", text))
    else:
        shown = h("strong", text)
    return h("div", h("dt", output.label), h("dd", shown), data_output=output.name, data_text=text, class_="is-changed" if was != text else None)


def _table(output: Output, rows: Value) -> Html:
    assert isinstance(rows, list)
    head = [h("th", label + (f"（{unit}）" if unit else ""), scope="col") for _, label, unit in output.columns]
    body = [h("tr", *(h("td", format_value(row.get(name), "", output.digits)) for name, _, _ in output.columns)) for row in rows if isinstance(row, dict)]
    return h("div", h("table", h("thead", h("tr", *head)), h("tbody", *body), class_="plain"), class_="calc-table")


def _about(calculator: Calculator, source_code: str) -> Html:
    def listing(title: str, items: tuple[str, ...]) -> Html | None:
        return join(h("p", title, class_="calc-about-title"), h("ul", *(h("li", i) for i in items))) if items else None

    return h(
        "details",
        h("summary", "公式与来源"),
        listing("公式", calculator.formula),
        listing("前提", calculator.assumptions),
        listing("没算进去的", (calculator.leaves_out,)),
        listing("来源", calculator.sources),
        h("details", h("summary", "Python 函数"), h("pre", h("code", source_code, class_="language-python"))) if source_code else None,
        class_="calc-about",
        data_search_exclude=True,
    )
