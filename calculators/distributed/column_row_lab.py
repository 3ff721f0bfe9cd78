"""Cut A by columns and B by rows: one sum at the end is enough.  Cut A by rows first, and the activation stands in the way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from calculators.core.calculator import Output, Result, Row, Run, calculator
from calculators.core.charts import Axis, Bar, BarChart, Chart, Grid, Part
from calculators.core.inputs import choice, integer
from calculators.core.numbers import format_number
from calculators.core.worked import Worked, quantity
from calculators.formulas.collectives import allreduce_factor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

ROWS, WIDTH, HIDDEN = 4, 8, 16
"""X is 4×8, A 8×16, B 16×8."""
DOUBLE = 8
WRONG = 1e-9
ORDERS = {
    "column-row": "A 切列，B 切行",
    "row-first": "A 切行，最后才加",
    "row-first-sum": "A 切行，先加一次",
}
ACTIVATIONS = {"relu": "ReLU", "gelu": "GELU", "silu": "SiLU（SwiGLU 里的那个）", "none": "没有激活（线性）"}


@dataclass(frozen=True)
class Trace:
    """|Y − the uncut Y|, cell by cell, and what each card adds to the first cell."""

    error: tuple[tuple[float, ...], ...]
    first_cell: tuple[float, ...]
    exact: float


def _activation(name: str, x: Floats) -> Floats:
    import numpy as np

    if name == "relu":
        return np.maximum(x, 0.0)
    if name == "gelu":
        inner = np.sqrt(2 / np.pi) * (x + 0.044715 * x * x * x)
        gelu: Floats = 0.5 * x * (1 + np.tanh(inner))
        return gelu
    if name == "silu":
        silu: Floats = x / (1 + np.exp(-x))
        return silu
    return x


def _chart(run: Run, *, t: int, order: str, **_: object) -> tuple[Chart, ...]:
    trace = run.result.trace
    assert isinstance(trace, Trace)
    largest = max(max(row) for row in trace.error)
    wrong = largest > WRONG
    texts = tuple(tuple(format_number(cell, digits=2) if cell > WRONG else "对" for cell in row) for row in trace.error)
    shades = tuple(tuple(cell if wrong else 0.0 for cell in row) for row in trace.error)
    bars = [Bar(f"卡 {i}", (Part("Y 左上角", value),), format_number(value, digits=3)) for i, value in enumerate(trace.first_cell)]
    bars.append(Bar("加起来", (Part("Y 左上角", sum(trace.first_cell)),), format_number(sum(trace.first_cell), digits=3), emphasis=True))
    bars.append(Bar("不切，一次算完", (Part("Y 左上角", trace.exact),), format_number(trace.exact, digits=3)))
    return (
        Grid(
            "Y 的每一格差多少",
            f"{ORDERS[order]}。" + (f"最大差 {format_number(largest, digits=3)}，颜色越深差得越多。" if wrong else "每一格都和不切时一样。"),
            tuple(str(i + 1) for i in range(ROWS)),
            tuple(str(j + 1) for j in range(WIDTH)),
            shades,
            texts,
            high=largest if wrong else 1.0,
        ),
        BarChart("左上角那一格，谁出了多少", f"{t} 张卡各有一份部分和，all-reduce 就是把它们加起来，每张卡都拿到总数。", Axis("Y 左上角", ""), tuple(bars)),
    )


@calculator(
    title="先列后行只通信一次",
    question="一对矩阵切给 t 张卡，怎么切才只用加一次？",
    chapter="12",
    inputs=(
        choice("t", "切给几张卡 t", 4, (2, 4, 8), "card"),
        choice("order", "怎么切", "column-row", tuple(ORDERS), labels=ORDERS),
        choice("activation", "中间的激活函数", "relu", tuple(ACTIVATIONS), labels=ACTIVATIONS),
        integer("seed", "随机种子", 0, low=0, high=999, more=True),
    ),
    outputs=(
        Output("max_err", "这种切法，Y 最大差", main=True, agreement="band", bound=1e-12),
        Output("bytes_now", "这种切法，每卡发出", "B", main=True),
        Output("all_reduces", "前向几次 all-reduce", main=True),
        Output("max_err_column_row", "A 切列，最大差", agreement="band", bound=1e-12),
        Output("max_err_row_first", "A 切行、最后才加，最大差", agreement="band", bound=1e-12),
        Output("bytes_per_gpu", "A 切列，每卡发出", "B"),
        Output("bytes_per_gpu_row_first", "A 切行做对，每卡发出", "B"),
        Output("parts", "每张卡拿什么", columns=(("card", "卡", ""), ("a", "A 的哪一块", ""), ("b", "B 的哪一块", ""), ("y", "它那份 Y 的左上角", "")), agreement="band"),
    ),
    chart=_chart,
    needs=("numpy",),
    formula=(
        "先列后行：Y = Σ f(X·Aᵢ)·Bᵢ，只在最后加一次",
        "先切行：X·A = Σ Xᵢ·Aᵢ 要先加，才能过 f：f(Σ) ≠ Σf",
        "环形 all-reduce 每卡发出 2(t−1)/t × 消息",
    ),
    assumptions=("float64，numpy default_rng(seed) 标准正态，依次抽 X(4×8)、A(8×16)、B(16×8)", "GELU 用 tanh 近似"),
    leaves_out="只看前向。反向照样：先列后行在 A 之前加一次 X 的梯度，也是一次 all-reduce。",
    sources=("Shoeybi et al. 2019（Megatron-LM）§3：列切接行切", "环形 all-reduce 的字节：第 05 章"),
)  # fmt: skip
def column_row_lab(*, t: int, order: str, activation: str, seed: int) -> Result:
    """Both ways of cutting a two-layer perceptron over t pretended cards, beside the uncut one."""
    import numpy as np

    rng = np.random.default_rng(seed)
    x, a, b = (rng.standard_normal(shape) for shape in ((ROWS, WIDTH), (WIDTH, HIDDEN), (HIDDEN, WIDTH)))
    exact = _activation(activation, x @ a) @ b
    columns = np.split(np.arange(HIDDEN), t)
    slices = np.split(np.arange(WIDTH), t)
    column_row = [_activation(activation, x @ a[:, c]) @ b[c] for c in columns]
    row_first = [_activation(activation, x[:, s] @ a[s]) @ b for s in slices]
    summed = _activation(activation, np.sum([x[:, s] @ a[s] for s in slices], axis=0))
    row_first_sum = [summed[:, c] @ b[c] for c in columns]
    parts = {"column-row": column_row, "row-first": row_first, "row-first-sum": row_first_sum}[order]
    worst = {name: float(np.abs(sum(p) - exact).max()) for name, p in (("column-row", column_row), ("row-first", row_first), (order, parts))}
    error = np.abs(sum(parts) - exact)

    w = Worked()
    cards, eight = quantity(t), quantity(DOUBLE, "B")
    out = w.line("加 Y，每卡发", allreduce_factor(cards) * (quantity(ROWS) * quantity(WIDTH) * eight), "B", 6)
    middle = w.line("加 X·A，每卡发", allreduce_factor(cards) * (quantity(ROWS) * quantity(HIDDEN) * eight), "B", 6)
    both = w.line("两次一共", middle + out, "B", 6)
    w.say(f"{ORDERS[order]}：和不切的 Y 比，最大差 → {_shown(worst[order])}")
    sent = both if order == "row-first-sum" else out
    rows: list[Row] = [
        {"card": i, "a": _span("行" if order != "column-row" else "列", slices[i] if order != "column-row" else columns[i]),
         "b": "整个" if order == "row-first" else _span("行", columns[i]), "y": float(p[0, 0])}
        for i, p in enumerate(parts)
    ]  # fmt: skip
    return Result(
        values={
            "max_err": worst[order], "bytes_now": round(sent.value), "all_reduces": 2 if order == "row-first-sum" else 1,
            "max_err_column_row": worst["column-row"], "max_err_row_first": worst["row-first"], "bytes_per_gpu": round(out.value),
            "bytes_per_gpu_row_first": round(both.value), "parts": rows,
        },
        lines=w.lines,
        verdict=_verdict(order, activation, worst[order], round(out.value), round(both.value)),
        trace=Trace(tuple(tuple(map(float, row)) for row in error), tuple(float(p[0, 0]) for p in parts), float(exact[0, 0])),
    )  # fmt: skip


def _span(word: str, indices: NDArray[np.int64]) -> str:
    first, last = int(indices[0]) + 1, int(indices[-1]) + 1
    return f"第 {first} {word}" if first == last else f"第 {first}–{last} {word}"


def _shown(error: float) -> str:
    return format_number(error, digits=3) if error > WRONG else "只剩浮点的末位"


def _verdict(order: str, activation: str, error: float, once: int, twice: int) -> str:
    if order == "column-row":
        return f"切开和不切，结果只差浮点的末位。激活函数逐个元素算，各卡算各卡的列，谁也不用等谁：前向只加一次，每卡发 {once} 字节。"
    if order == "row-first-sum":
        return f"结果对了，代价是激活之前多加一次更宽的矩阵：每卡发 {twice} 字节，先列后行只要 {once}。"
    if activation == "none":
        return "没有激活函数，先加后加都一样，这次没错。换回任何一个激活函数，再看。"
    return f"Y 最大差 {_shown(error)}：每张卡手里只是 X·A 的一部分，先过激活函数再加，加出来的不是同一个数。"
