"""A graph of operations as text, and the greedy rule that says which of them share a kernel.

One operation a line, ``name kind in1,in2 -> out:bytes``; a tensor that nobody produces is declared ``in name:bytes``.
Bytes are per element: 2 for BF16, 4 for FP32, 0 for what is not counted (one number a row, weights).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from calculators.core.errors import refuse
from calculators.core.numbers import NotANumber, parse_number

KINDS = ("pointwise", "reduction", "matmul", "opaque")
MOST_LINES, MOST_BYTES = 50, 64
ITEM = ".item()"
_NAME = re.compile(r"[^\s,:;=<>→「」：，]{1,24}")

GRAPHS: Mapping[str, str] = {
    "rmsnorm": """in x:2
        upcast pointwise x -> xf:4
        square pointwise xf -> sq:4
        mean reduction sq -> ms:0
        ×rsqrt pointwise xf,ms -> y:4
        cast pointwise y -> yc:2
        ×weight pointwise yc -> out:2""",
    "swiglu": """in gate:2
        in up:2
        silu pointwise gate -> s:2
        mul pointwise s,up -> out:2""",
    "gelu8": """in x:2
        pow3 pointwise x -> a:2
        ×0.044715 pointwise a -> b:2
        add pointwise x,b -> c:2
        ×√(2/π) pointwise c -> d:2
        tanh pointwise d -> e:2
        +1 pointwise e -> f:2
        ×0.5 pointwise x -> g:2
        mul pointwise g,f -> out:2""",
    "gelu-mlp": """matmul matmul -> y:2
        bias pointwise y -> z:2
        gelu pointwise z -> out:2""",
    "attention-block": """QKᵀ matmul -> S:2
        scale pointwise S -> S1:2
        mask pointwise S1 -> S2:2
        row-max reduction S2 -> m:0
        sub+exp pointwise S2,m -> E:2
        row-sum reduction E -> l:0
        div pointwise E,l -> P:2
        PV matmul P -> O:0""",
}
"""PyTorch's eager operations of five well-known pieces; in the last one an element is a score."""


class BadLine(ValueError):
    """A line that says no operation; the message is the rule that it breaks."""


@dataclass(frozen=True)
class Op:
    """One operation; ``axis`` is what a reduction reduces over, ``writes`` is empty when it returns nothing."""

    name: str
    kind: str
    reads: tuple[str, ...] = ()
    writes: str = ""
    axis: str = ""


@dataclass(frozen=True)
class Graph:
    """Operations in the order of execution, and the bytes per element of every tensor."""

    ops: tuple[Op, ...]
    sizes: Mapping[str, float]

    def eager_bytes(self, op: Op) -> float:
        """Alone, an operation reads all its inputs and writes its output."""
        return sum(self.sizes[t] for t in (*op.reads, *([op.writes] if op.writes else [])))


@dataclass(frozen=True)
class Kernel:
    """Operations that share one launch, and the tensors that still cross HBM."""

    ops: tuple[Op, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]


def read_graph(text: str, field: str) -> Graph:
    """The graph that a text describes.  Raises Refusal, which names the line."""
    lines = [(i, line.strip()) for i, line in enumerate(re.split(r"[\n;；]", text), 1) if line.strip()]
    if len(lines) > MOST_LINES:
        raise refuse(field, f"自己的算子图最多 {MOST_LINES} 行", f"{len(lines)} 行", "拆成几段分别算")
    ops: list[Op] = []
    sizes: dict[str, float] = {}
    for i, line in lines:
        try:
            op = _read_line(line.replace("，", ",").replace("：", ":").replace("→", "->"), sizes)
        except BadLine as error:
            raise refuse(field, f"自己的算子图第 {i} 行{error}", f"「{line[:40]}」") from None
        ops += [op] if op else []
    return Graph(tuple(ops), sizes)


def _read_line(line: str, sizes: dict[str, float]) -> Op | None:
    """One line; its output joins ``sizes``.  Raises BadLine."""
    head, arrow, tail = (part.strip() for part in line.partition("->"))
    words = head.split(maxsplit=2)
    if words[:1] == ["in"] and not arrow:
        for declared in "".join(words[1:]).split(","):
            _declare(declared, sizes)
        return None
    if len(words) < 2:
        raise BadLine("要写成「名字 种类 输入,输入 -> 输出:字节」，凭空来的张量写「in 名字:字节」")
    kind, _, axis = words[1].partition(":")
    if kind not in KINDS:
        raise BadLine(f"的种类「{words[1][:20]}」不认识，可取 {'、'.join(KINDS)}")
    reads = tuple(dict.fromkeys(r.strip() for r in "".join(words[2:]).split(",") if r.strip()))
    unknown = [t for t in reads if t not in sizes]
    if unknown:
        raise BadLine(f"读了还没有的张量 {unknown[0][:24]}：先产生它，或在前面加一行 in {unknown[0][:24]}:2")
    _check_name(words[0])
    if not arrow and kind != "opaque":
        raise BadLine("缺少「-> 输出:字节」")
    return Op(words[0], kind, reads, _declare(tail, sizes) if arrow else "", axis)


def _declare(text: str, sizes: dict[str, float]) -> str:
    name, colon, size = (part.strip() for part in text.partition(":"))
    if not colon:
        raise BadLine(f"的张量要写成「名字:每元素字节」，例如 {name[:12] or 'x'}:2")
    _check_name(name)
    if name in sizes:
        raise BadLine(f"又产生了一次 {name}：每个张量只能写一次，换个名字")
    try:
        value = parse_number(size)
    except NotANumber as error:
        raise BadLine(f"的每元素字节{error}") from None
    if not 0 <= value <= MOST_BYTES:
        raise BadLine(f"的每元素字节必须在 0 到 {MOST_BYTES} 之间")
    sizes[name] = value
    return name


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise BadLine("的名字要有 1 到 24 个字符，不能含空格、逗号、冒号、等号和箭头")


def with_break(graph: Graph) -> Graph:
    """An ``.item()`` after the first half of the operations: Python waits for a number, the graph is cut in two."""
    half = len(graph.ops) // 2
    return replace(graph, ops=(*graph.ops[:half], Op(ITEM, "opaque"), *graph.ops[half:]))


def fuse(graph: Graph) -> tuple[Kernel, ...]:
    """Greedy, in order: a matmul begins a kernel, pointwise operations join, a reduction joins what is no matmul and reduces
    along the same axis, an opaque operation ends the kernel and is none itself."""
    groups: list[list[Op]] = []
    is_open = False
    for op in graph.ops:
        if op.kind == "opaque":
            is_open = False
        elif is_open and _JOINS[op.kind](groups[-1], op):
            groups[-1].append(op)
        else:
            groups.append([op])
            is_open = True
    return tuple(_kernel(graph, group) for group in groups)


def _reduces_alike(group: list[Op], op: Op) -> bool:
    return group[0].kind != "matmul" and all(o.axis == op.axis for o in group if o.kind == "reduction")


_JOINS: Mapping[str, Callable[[list[Op], Op], bool]] = {
    "matmul": lambda group, op: False,
    "pointwise": lambda group, op: True,
    "reduction": _reduces_alike,
}


def _kernel(graph: Graph, group: list[Op]) -> Kernel:
    """What it reads from outside, each tensor once, and what a later operation or the caller needs of its outputs."""
    made = {op.writes for op in group}
    reads = dict.fromkeys(t for op in group for t in op.reads if t not in made)
    read_anywhere = {t for op in graph.ops for t in op.reads}
    read_outside = {t for op in graph.ops if op not in group for t in op.reads}
    writes = tuple(op.writes for op in group if op.writes in read_outside or op.writes not in read_anywhere)
    return Kernel(tuple(group), tuple(reads), writes)


def moved_bytes(graph: Graph, kernel: Kernel) -> float:
    """Bytes per element between HBM and the chip."""
    return sum(graph.sizes[t] for t in (*kernel.reads, *kernel.writes))


def builtin(name: str) -> Graph:
    """A graph of this file."""
    return read_graph(GRAPHS[name], name)
