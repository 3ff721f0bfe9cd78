"""Where a figure of the text comes from: ``calc:``, ``spec:`` and ``ref:`` targets and their provenance."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from urllib.parse import parse_qsl, unquote

from calculators.catalog.hardware import Accelerator, accelerators
from calculators.catalog.models import Model, models
from calculators.catalog.references import Figure, Reference, references
from calculators.core.errors import Refusal
from calculators.core.index import load
from calculators.core.numbers import format_value
from calculators.core.units import unit_of
from calculators.site.results import Printed, printed

SCHEMES = ("calc", "spec", "ref")


class BadTarget(ValueError):
    """A target that names nothing; the message says what is missing and what there is."""


@dataclass(frozen=True)
class Target:
    """A resolved target.

    ``text`` is the value as a card prints it; ``why`` the lines shown on a click; ``calculator`` and ``given`` say which card
    opens with which inputs; ``kind`` is ``calc``, ``spec`` or the reference's kind.
    """

    url: str
    value: object
    unit: str
    text: str
    kind: str
    why: tuple[str, ...]
    calculator: str = ""
    given: tuple[tuple[str, str], ...] = ()
    differs_from: str = ""


@cache
def resolve(url: str) -> Target:
    """Evaluate a target URL.  Raises BadTarget."""
    scheme, colon, rest = url.partition(":")
    if not colon or scheme not in SCHEMES:
        raise BadTarget(f"{url}：出处必须以 calc:、spec: 或 ref: 开头")
    body, hash, name = rest.partition("#")
    if not hash or not name:
        raise BadTarget(f"{url}：缺少 #名字")
    return _RESOLVERS[scheme](url, unquote(body), unquote(name))


def _calc(url: str, body: str, name: str) -> Target:
    id, _, query = body.partition("?")
    given = dict(parse_qsl(url.partition("?")[2].partition("#")[0].replace("+", "%2B"), keep_blank_values=True)) if query else {}
    try:
        calculator = load(id)
        run = printed(id, given)
    except Refusal as refusal:
        raise BadTarget(f"{url}：{refusal}") from None
    opened = tuple(sorted(given.items()))
    if name.startswith("in."):
        item = calculator.input(name[3:])
        if item is None:
            raise BadTarget(f"{url}：{id} 没有输入 {name[3:]}；有 {'、'.join(i.name for i in calculator.inputs)}")
        raw = run.inputs[item.name]
        parsed = item.parse(raw)
        return Target(
            url,
            parsed,
            item.unit,
            item.shown(parsed),
            "calc",
            (f"「{calculator.title}」的输入：{item.label}", item.help) if item.help else (f"「{calculator.title}」的输入：{item.label}",),
            id,
            opened,
        )
    head, _, path = name.partition(".")
    output = calculator.output(head)
    if output is None:
        raise BadTarget(f"{url}：{id} 没有输出 {head}；有 {'、'.join(o.name for o in calculator.outputs)}")
    value: object = run.values[head]
    unit, text = output.unit, run.texts[head]
    for step in path.split(".") if path else ():
        try:
            value = value[int(step)] if isinstance(value, list) else value[step]  # type: ignore[index]
        except (KeyError, IndexError, ValueError, TypeError):
            raise BadTarget(f"{url}：{head} 里没有 {path}") from None
        column = next((c for c in output.columns if c[0] == step), None)
        unit = column[2] if column else unit
    if path:
        text = format_value(value, unit, output.digits)
    return Target(url, value, unit, text, "calc", _derivation(calculator.title, id, given, run, text, output.label), id, opened)


def _derivation(title: str, id: str, given: dict[str, str], run: Printed, text: str, label: str) -> tuple[str, ...]:
    calculator = load(id)
    changed = "，".join(f"{i.label} {i.shown(i.parse(given[i.name]))}" for i in calculator.inputs if i.name in given)
    head = f"「{title}」算出：{label} {text}" + (f"（{changed}）" if changed else "（默认输入）")
    ending = [line for line in run.lines if line.endswith((f"= {text}", f"→ {text}"))]
    return (head, *(ending[-1:] or run.lines[-2:]), *(calculator.formula[:1] if not ending else ()))


SPEC_FIELDS: dict[str, tuple[str, str, Callable[[Accelerator], object]]] = {
    "memory_gb": ("标称显存", "GB", lambda a: a.memory_gb),
    "memory_gib_reported": ("驱动报告的显存", "GiB", lambda a: a.memory_gib_reported),
    "bandwidth_gb_s": ("显存带宽", "GB/s", lambda a: a.bandwidth_gb_s),
    "bf16_tflops": ("BF16 稠密峰值", "TFLOPS", lambda a: a.tflops.get("bf16")),
    "fp16_tflops": ("FP16 稠密峰值", "TFLOPS", lambda a: a.tflops.get("fp16")),
    "fp8_tflops": ("FP8 稠密峰值", "TFLOPS", lambda a: a.tflops.get("fp8")),
    "fp4_tflops": ("FP4 稠密峰值", "TFLOPS", lambda a: a.tflops.get("fp4")),
    "int8_tops": ("INT8 稠密峰值", "TOPS", lambda a: a.tflops.get("int8")),
    "link_gb_s_bidir": ("卡间互联（双向合计）", "GB/s", lambda a: a.link_gb_s_bidir),
    "link_gb_s_per_dir": ("卡间互联（单向）", "GB/s", lambda a: a.link_gb_s_per_dir),
    "nic_gb_s_per_dir": ("每卡网卡（单向）", "GB/s", lambda a: a.nic_gb_s_per_dir),
    "tdp_w": ("热设计功耗", "W", lambda a: a.tdp_w),
    "year": ("发布年份", "", lambda a: a.year),
    "name": ("名称", "", lambda a: a.name),
    "status": ("核对", "", lambda a: a.status),
}
"""Fields of an accelerator that the text may quote: label, unit, getter."""

_UNVERIFIED_NAME = {"bf16_tflops": "tflops.bf16", "fp16_tflops": "tflops.fp16", "fp8_tflops": "tflops.fp8", "fp4_tflops": "tflops.fp4", "int8_tops": "tflops.int8",
                    "link_gb_s_bidir": "link", "link_gb_s_per_dir": "link"}  # fmt: skip

MODEL_FIELDS: dict[str, tuple[str, str, Callable[[Model], object]]] = {
    "total_params": ("总参数", "params", lambda m: m.total_params),
    "active_params": ("激活参数", "params", lambda m: m.active_params),
    "active_params_no_input_embedding": ("激活参数（不含输入词表）", "params", lambda m: m.active_params_no_input_embedding),
    "embedding_and_head_params": ("词表与输出头参数", "params", lambda m: m.embedding_and_head_params),
    "kv_bytes_per_token": ("每 token 的 KV（BF16）", "B", lambda m: m.kv_bytes_per_token),
    "hidden": ("隐藏维", "", lambda m: m.hidden),
    "layers": ("层数", "layer", lambda m: m.layers),
    "heads": ("头数", "", lambda m: m.heads),
    "kv_heads": ("KV 头数", "", lambda m: m.kv_heads),
    "head_dim": ("每头维度", "", lambda m: m.head_dim),
    "ffn": ("FFN 宽度", "", lambda m: m.ffn),
    "vocab": ("词表大小", "", lambda m: m.vocab),
    "max_context": ("最大上下文", "token", lambda m: m.max_context),
    "name": ("名称", "", lambda m: m.name),
}
"""Fields of a model that the text may quote: label, unit, getter."""


def _spec(url: str, id: str, name: str) -> Target:
    if id in accelerators():
        card = accelerators()[id]
        if name not in SPEC_FIELDS:
            raise BadTarget(f"{url}：加速卡没有字段 {name}；有 {'、'.join(SPEC_FIELDS)}")
        label, unit, get = SPEC_FIELDS[name]
        value = get(card)
        marks = []
        if card.is_unverified(_UNVERIFIED_NAME.get(name, name)):
            marks.append("未核实：没有见到可靠来源")
        if card.contested:
            marks.append(f"有争议：{card.contested}")
        why = (
            f"{card.name}：{label} {format_value(value, unit, 6)}",
            f"来源：{card.source}（{card.checked} 核对）",
            *([card.note] if card.note else []),
            *marks,
        )
        return _present(Target(url, value, unit, format_value(value, unit, 6), "spec", why))
    if id in models():
        model = models()[id]
        if name not in MODEL_FIELDS:
            raise BadTarget(f"{url}：模型没有字段 {name}；有 {'、'.join(MODEL_FIELDS)}")
        label, unit, read = MODEL_FIELDS[name]
        value = read(model)
        return _present(
            Target(
                url,
                value,
                unit,
                format_value(value, unit),
                "spec",
                (f"{model.name}：{label} {format_value(value, unit)}", f"来源：{model.source}（{model.checked} 核对）"),
            )
        )
    raise BadTarget(f"{url}：目录里没有 {id}")


def _present(target: Target) -> Target:
    if target.value is None:
        raise BadTarget(f"{target.url}：这一项没有数值（不支持或没有来源）")
    return target


DERIVED = "算法："
KIND_LABEL = {"fact": "来源", "rule": "本书的约定", "claim": "常见的错误说法", "derived": "由别的数推出", "unverified": "未核实"}


def _ref(url: str, id: str, name: str) -> Target:
    entry = references().get(id)
    if entry is None:
        raise BadTarget(f"{url}：references 里没有 {id}")
    figure = entry.values.get(name)
    if figure is None:
        raise BadTarget(f"{url}：{id} 没有 {name}；有 {'、'.join(entry.values)}")
    value = evaluate(figure.expr, figure.unit) if figure.expr else figure.value
    if value is None:
        raise BadTarget(f"{url}：{id}#{name} 没有数值")
    text = format_value(value, figure.unit)
    return Target(url, value, figure.unit, text, entry.kind, _citation(entry, figure, text), differs_from=figure.differs_from)


def _citation(entry: Reference, figure: Figure, text: str) -> tuple[str, ...]:
    lines = [f"{KIND_LABEL[entry.kind]}：{entry.title}" + (f"，{figure.where}" if figure.where else "")]
    if entry.source:
        lines.append(entry.source + (f"（{entry.checked} 核对）" if entry.checked else ""))
    if figure.expr:
        lines.append(DERIVED + re.sub(r"(?:calc|spec|ref):[^\s()]+", lambda m: resolve(m[0]).text, figure.expr) + f" → {text}")
    if figure.differs_from:
        lines.append(f"正确的是 {resolve(figure.differs_from).text}")
    if entry.note:
        lines.append(entry.note)
    return tuple(lines)


_OPERATORS: dict[type, Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}


def evaluate(expr: str, unit: str) -> float:
    """Arithmetic over targets and plain numbers, in base units, expressed in ``unit``.  Raises BadTarget."""
    found: list[float] = []

    def place(match: re.Match[str]) -> str:
        target = resolve(match[0])
        if not isinstance(target.value, int | float):
            raise BadTarget(f"{match[0]}：推导里只能用数")
        found.append(target.value * unit_of(target.unit).scale)
        return f"t{len(found) - 1}"

    text = re.sub(r"(?:calc|spec|ref):[^\s()]+", place, expr)

    def value(node: ast.AST) -> float:
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](value(node.left), value(node.right))
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            return float(node.value)
        if isinstance(node, ast.Name) and node.id[1:].isdigit():
            return found[int(node.id[1:])]
        raise BadTarget(f"{expr}：推导里只能有 + − × ÷ 和数")

    try:
        return value(ast.parse(text, mode="eval").body) / unit_of(unit).scale
    except SyntaxError:
        raise BadTarget(f"{expr}：推导写法不对") from None


_RESOLVERS: dict[str, Callable[[str, str, str], Target]] = {"calc": _calc, "spec": _spec, "ref": _ref}


def with_kind_mark(target: Target, shown: str) -> str:
    """The text of a figure, with 「未核实」 where that is so."""
    return f"{shown}（未核实）" if target.kind == "unverified" and "未核实" not in shown else shown
