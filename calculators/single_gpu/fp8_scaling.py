"""A live experiment: one outlier channel, three 8-bit formats, four granularities of scaling; who is ruined?"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Chart, Grid
from calculators.core.errors import refuse
from calculators.core.inputs import choice, integer, log_stops, number, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.worked import Worked, quantity
from calculators.formulas.number_formats import FORMATS
from calculators.single_gpu._rounding import nearest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

OUTLIER = 7
"""The channel that is made large."""
BLOCK, MX_BLOCK = 128, 32
LARGEST = {"e4m3": FORMATS["e4m3"].largest, "int8": 127.0, "e5m2": FORMATS["e5m2"].largest}
NAMES = {"e4m3": "FP8 E4M3", "int8": "INT8", "e5m2": "FP8 E5M2"}
GRANULARITIES: dict[str, Callable[[int, int], tuple[int, int, int]]] = {
    "per-tensor": lambda rows, cols: (1, 1, rows * cols),
    "per-row": lambda rows, cols: (rows, 1, cols),
    "1×128": lambda rows, cols: (rows, cols // BLOCK, BLOCK),
    "mx32": lambda rows, cols: (rows, cols // MX_BLOCK, MX_BLOCK),
}
"""How the matrix is cut; every block along the last axis has its own scale."""
SHORT = {"per-tensor": "整张量", "per-row": "每行", "1×128": "每 128", "mx32": "每 32"}
LABELS = {"per-tensor": "整个张量一个", "per-row": "每行一个", "1×128": "每 128 列一个", "mx32": "每 32 列一个，只取 2 的幂"}
SHOWN = 8
"""Channels of the first row that the picture shows, the outlier the last of them."""
RUINED, FLUSHED = 10.0, 3.0
"""Percent of error and of zeros from which the verdict calls a format bad."""


@dataclass(frozen=True)
class Damage:
    """What quantisation did to the channels that are no outliers, and the first values of the first row.

    ``amax`` and ``scale`` belong to the block that holds the outlier of the first row.
    """

    error_pct: float
    zero_pct: float
    first: tuple[float, ...]
    amax: float
    scale: float


def damage(X: NDArray[np.float64], fmt: str, granularity: str) -> Damage:
    """Scale each block to the format's largest number, round, scale back; compare everywhere but in the outlier channel."""
    import numpy as np

    blocks = X.reshape(GRANULARITIES[granularity](*X.shape))
    amax = np.abs(blocks).max(axis=-1, keepdims=True)
    scale = amax / LARGEST[fmt]
    if granularity == "mx32":
        scale = np.exp2(np.ceil(np.log2(scale)))  # rounded up, so that nothing saturates
    q = blocks / scale
    q = np.rint(q) if fmt == "int8" else nearest(q, FORMATS[fmt])
    np.clip(q, -LARGEST[fmt], LARGEST[fmt], out=q)
    Y = (q * scale).reshape(X.shape)
    first, others = tuple(Y[0, :SHOWN].tolist()), X.size - len(X)
    Y[:, OUTLIER], original = 1.0, X.copy()
    difference = Y - original
    difference[:, OUTLIER] = original[:, OUTLIER] = 0.0
    squares = [float(np.vdot(a, a)) for a in (difference, original)]
    return Damage(
        math.sqrt(squares[0] / squares[1]) * 100, (X.size - int(np.count_nonzero(Y))) / others * 100, first, float(amax[0, 0, 0]), float(scale[0, 0, 0])
    )


@dataclass(frozen=True)
class Trace:
    """The first values before quantisation, and the damage by (format, granularity)."""

    original: tuple[float, ...]
    table: dict[tuple[str, str], Damage]


def _chart(run: Run, *, fmt: str, granularity: str, **_: object) -> tuple[Chart, ...]:
    trace = run.result.trace
    assert isinstance(trace, Trace)
    return (_values(trace, fmt), _map(trace))


def _values(trace: Trace, fmt: str) -> Grid:
    rows = [("原来", trace.original), *((SHORT[g], trace.table[fmt, g].first) for g in GRANULARITIES)]
    return Grid(
        f"第一行的前 {SHOWN} 个数，存成 {NAMES[fmt]} 再还原",
        "最右一列是离群通道。颜色越深，离原来的数越远；写着 0 的，是被离群值撑大的 scale 抹掉的。",
        tuple(name for name, _ in rows),
        tuple(str(j) for j in range(SHOWN)),
        tuple(tuple(min(abs(y - x) / abs(x), 1.0) for x, y in zip(trace.original, values, strict=True)) for _, values in rows),
        tuple(tuple(_short(y) for y in values) for _, values in rows),
    )


def _map(trace: Trace) -> Grid:
    return Grid(
        "三种格式 × 四种粒度：其余通道的误差",
        "数字是误差的百分数。颜色越深越糟；整数格式先坏，粒度越细越救得回来。",
        tuple(NAMES.values()),
        tuple(SHORT.values()),
        tuple(tuple(trace.table[f, g].error_pct for g in GRANULARITIES) for f in NAMES),
        tuple(tuple(format_number(trace.table[f, g].error_pct, digits=3) for g in GRANULARITIES) for f in NAMES),
        high=50.0,
    )


def _short(value: float) -> str:
    """At most five characters: 0.13, −1.2, 84, 13k."""
    size = abs(value)
    shown = f"{size:.2f}" if 0 < size < 0.995 else f"{size:.1f}" if size < 9.95 else f"{size:.0f}" if size < 9950 else f"{size / 1000:.0f}k"
    return ("−" if value < 0 and float(shown.rstrip("k")) else "") + ("0" if value == 0 else shown)


@calculator(
    title="一个离群通道毁掉谁",
    question="激活里有一个通道特别大，存成 8 位，别的通道还剩下什么？",
    chapter="06",
    inputs=(
        number("outlier_mult", "离群通道放大", 100, "×", low=1, high=100_000, stops=log_stops(1, 100_000, 3)),
        choice("fmt", "格式", "e4m3", tuple(NAMES), labels=NAMES),
        choice("granularity", "scale 的粒度", "per-tensor", tuple(GRANULARITIES), labels=LABELS),
        integer("rows", "行数", 32, low=8, high=64, more=True, stops=(8, 16, 32, 64)),
        integer("cols", "通道数", 4096, low=512, high=8192, more=True, stops=powers_of_two(512, 8192), help="128 的倍数"),
        integer("seed", "随机种子", 0, low=0, high=999, more=True),
    ),
    outputs=(
        Output("rel_rms_err_pct", "其余通道的误差", "%", main=True, agreement="band"),
        Output("zero_pct", "其余通道变成 0 的", "%", main=True, agreement="band"),
        Output("scale", "离群值那一块的 scale", agreement="band"),
        Output("amax", "那一块最大的数", agreement="band"),
        Output("n_scales", "一共几个 scale"),
    ),
    chart=_chart,
    needs=("numpy",),
    formula=(
        "scale = 块内最大的绝对值 ÷ 格式的最大值（E4M3 448，E5M2 57344，INT8 127）",
        "还原 = 取整(数 ÷ scale) × scale；mx32 的 scale 往上取到 2 的幂",
        "误差 = √(差的平方的平均 ÷ 原数平方的平均)，不算离群通道",
    ),
    assumptions=(f"标准正态的矩阵，第 {OUTLIER} 个通道（从 0 数起）整列放大", "取整到最近、五成双，超出就截到最大值"),
    leaves_out="只看一个矩阵存一次的误差，不看它传到 loss 是多少；也不算 scale 自己占的字节。",
    sources=(
        "Micikevicius et al. 2022（FP8 Formats for Deep Learning）",
        "DeepSeek-V3 报告 §3.3：激活 1×128，权重 128×128",
        "OCP Microscaling Formats v1.0：32 个数一块，scale 是 E8M0",
    ),
)  # fmt: skip
def fp8_scaling(*, outlier_mult: float, fmt: str, granularity: str, rows: int, cols: int, seed: int) -> Result:
    """Relative RMS error and share of zeros in all channels but the outlier."""
    import numpy as np

    if cols % BLOCK:
        raise refuse("cols", f"通道数必须是 {BLOCK} 的倍数", f"{cols} / {BLOCK}", f"可取 {cols // BLOCK * BLOCK}、{-(-cols // BLOCK) * BLOCK}")
    X = np.random.default_rng(seed).standard_normal((rows, cols))
    X[:, OUTLIER] *= outlier_mult
    table = {(f, g): damage(X, f, g) for f in NAMES for g in GRANULARITIES}
    own = table[fmt, granularity]

    w = Worked()
    r, c = quantity(rows), quantity(cols)
    per_scale = {"per-tensor": r * c, "per-row": c, "1×128": quantity(BLOCK), "mx32": quantity(MX_BLOCK)}[granularity]
    n_scales = w.line("一共几个 scale", r * c / per_scale)
    w.say(f"离群值所在的块（第一行那块），最大的数 → {quantity(own.amax).text}")
    top = quantity(LARGEST[fmt])
    if granularity == "mx32":
        w.say(f"scale：{quantity(own.amax).text} 除以 {top.text}，往上取到 2 的幂 → {quantity(own.scale).text}")
        scale = quantity(own.scale)
    else:
        scale = w.line("scale", quantity(own.amax) / top)
    scaled = w.line("第一行第 0 个数，除以 scale", quantity(float(X[0, 0])) / scale)
    code = quantity(_code(scaled.value, fmt))
    w.say(f"取到格子上 → {code.text}")
    w.line("还原", code * scale)
    w.say(f"其余 {cols - 1} 个通道，均方根相对误差 → {quantity(own.error_pct, '%', 4).text}，变成 0 的 → {quantity(own.zero_pct, '%', 4).text}")
    return Result(
        values={"rel_rms_err_pct": own.error_pct, "zero_pct": own.zero_pct, "scale": own.scale, "amax": own.amax, "n_scales": round(n_scales.value)},
        lines=w.lines,
        verdict=_verdict(fmt, granularity, own, table, outlier_mult),
        trace=Trace(tuple(X[0, :SHOWN].tolist()), table),
    )


def _code(value: float, fmt: str) -> float:
    return float(round(value)) if fmt == "int8" else FORMATS[fmt].nearest(value)


def _verdict(fmt: str, granularity: str, own: Damage, table: dict[tuple[str, str], Damage], mult: float) -> str:
    name, error, zeros = NAMES[fmt], quantity(own.error_pct, "%", 3).text, quantity(own.zero_pct, "%", 2).text
    if own.error_pct >= RUINED:
        best = min(GRANULARITIES, key=lambda g: table[fmt, g].error_pct)
        rescue = quantity(table[fmt, best].error_pct, "%", 3).text
        other = "e5m2" if fmt == "e4m3" else "e4m3"
        other_error = quantity(table[other, granularity].error_pct, "%", 3).text
        return (
            f"离群通道大 {format_number(mult)} 倍，把 scale 也撑大了：{name} 的误差 {error}，{zeros} 的数变成 0。"
            + (f"scale 改成{LABELS[best]}，误差降到 {rescue}；" if best != granularity else "")
            + f"同样的粒度换 {NAMES[other]}，误差 {other_error}。"
        )
    if own.zero_pct >= FLUSHED:
        return f"{name} 开始坏了：误差 {error}，{zeros} 的数不到最小格子的一半，变成 0。把粒度取细，让离群值只影响自己那一块。"
    why = _FLOAT if fmt != "int8" else _INTEGER if mult == 1 or granularity == "per-tensor" else _CONTAINED
    return f"{name} 扛得住：误差 {error}，{zeros} 变成 0。{why}"


_FLOAT = "浮点格式每个数自带指数，scale 大了，小数只是挪到低一档的格子里，相对误差不变。"
_INTEGER = "整数格式只有一把等距的尺子，离群值再大，别的数就挤到 0 附近。"
_CONTAINED = "离群值只撑大它自己那一块的 scale，别的块没受影响。"
