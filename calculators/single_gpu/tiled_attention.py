"""A live experiment: FlashAttention written by hand, tile by tile, with the bytes it moves counted and its bugs on offer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Bar, BarChart, Chart, Grid, Part
from calculators.core.errors import refuse
from calculators.core.inputs import choice, flag, integer, number, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.attention import fused_elements, unfused_elements
from calculators.single_gpu.online_softmax import absorb

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

LOOPS = {"q-outer": "FA2，外层走 Q", "kv-outer": "FA1，外层走 K、V"}
MISTAKES = {"none": "写对", "no-rescale": "忘了给旧账打折", "no-max": "不减最大值，P 存 FP16", "no-diagonal-mask": "对角块忘了掩码"}
WRONG = 0.01
"""A row whose output is off by more than this, or no number, counts as wrong."""
EXACT = 1e-12
MOST_ORDINALS = 8

Tile = tuple[int, int]
"""query block, key block"""


@dataclass(frozen=True)
class Trace:
    """What the charts draw: tiles in the order of the loop, elements moved by kind, wrong rows of each query block."""

    tiles: int
    visited: tuple[Tile, ...]
    moved: dict[str, int]
    wrong: tuple[int, ...]


def visits(tiles: int, causal: bool, loop: str) -> list[Tile]:
    """The tiles in the order of the loop; with a causal mask those above the diagonal are never touched."""
    pairs = ((a, b) for a in range(tiles) for b in range(tiles))
    ordered = ((a, b) if loop == "q-outer" else (b, a) for a, b in pairs)
    return [(i, j) for i, j in ordered if j <= i or not causal]


def traffic(visited: list[Tile], sizes: list[int], d: int, loop: str) -> dict[str, int]:
    """Elements that cross HBM when nothing but the present tile stays on the chip.

    FA2 keeps Q, O and the softmax account of a query block until its row is done; FA1 keeps K and V of a key block and
    reads and writes O, ℓ and m for every tile.  Summed over all tiles: ``flash2_elements`` and ``flash1_elements``.
    """
    query_rows = sum(sizes[i] for i in dict.fromkeys(i for i, _ in visited))
    key_rows = sum(sizes[j] for j in dict.fromkeys(j for _, j in visited))
    if loop == "q-outer":
        return {"Q": query_rows * d, "K、V": 2 * d * sum(sizes[j] for _, j in visited), "O": query_rows * d, "ℓ、m": query_rows}
    rows = sum(sizes[i] for i, _ in visited)
    return {"Q": rows * d, "K、V": 2 * d * key_rows, "O": 2 * d * rows, "ℓ、m": 4 * rows}


def _chart(run: Run, *, n: int, d: int, causal: bool, loop: str, mistake: str, **_: object) -> tuple[Chart, ...]:
    trace = run.result.trace
    assert isinstance(trace, Trace)
    charts: list[Chart] = [_map(trace, causal, loop), _bars(trace, n, d, loop)]
    if mistake != "none":
        bad = "、".join(f"Q{i + 1}" for i, count in enumerate(trace.wrong[:99]) if count)
        shades = tuple(float(bool(count)) for count in trace.wrong)
        texts = tuple(str(count) if count else "对" for count in trace.wrong) if trace.tiles <= MOST_ORDINALS else ()
        desc = f"一格是一块 Q，数字是算错的行数。错在：{bad or '没有'}。"
        charts.append(Grid("输出哪几块错了", desc, ("",), tuple(f"Q{i + 1}" for i in range(trace.tiles)), (shades,), (texts,) if texts else ()))
    return tuple(charts)


def _map(trace: Trace, causal: bool, loop: str) -> Grid:
    order = {tile: k + 1 for k, tile in enumerate(trace.visited)}

    def shade(i: int, j: int) -> float | None:
        if (i, j) not in order:
            return None
        return 0.45 if causal and i == j else 1.0

    every = range(trace.tiles)
    texts = tuple(tuple(str(order.get((i, j), "")) for j in every) for i in every) if trace.tiles <= MOST_ORDINALS else ()
    walk = "一行走完再走下一行，O 一直留在片上" if loop == "q-outer" else "一列走完再走下一列，每格都要把 O 读出来再写回去"
    mask = "空格在对角线上方，从不访问；浅色是对角块，块内还要掩码。" if causal else "没有掩码，每格都要算。"
    numbers = "数字是访问的次序。" if texts else ""
    return Grid("tile 怎么走", f"行是 Q 块，列是 K、V 块：{walk}。{numbers}{mask}", tuple(f"Q{i + 1}" for i in every), tuple(f"K{j + 1}" for j in every),
                tuple(tuple(shade(i, j) for j in every) for i in every), texts)  # fmt: skip


def _bars(trace: Trace, n: int, d: int, loop: str) -> BarChart:
    def bar(name: str, parts: dict[str, int], emphasis: bool = False) -> Bar:
        return Bar(name, tuple(Part(k, float(v)) for k, v in parts.items()), format_number(sum(parts.values())), emphasis)

    matrices = {"Q": n * d, "K、V": 2 * n * d, "O": n * d}
    bars = (
        bar("标准实现", {**matrices, "S、P（n²）": 4 * n * n}),
        bar(LOOPS[loop], trace.moved, emphasis=True),
        bar("各搬一遍（下限）", matrices),
    )
    return BarChart("搬了多少个数", "片上只放得下当前这块时，进出 HBM 的元素。块越小，重读越多；换成 FA1 的次序，O 要来回搬。", Axis("元素"), bars)


@calculator(
    title="手写一个 FlashAttention",
    question="不存 n² 的矩阵，一块一块地走，结果对不对？走的次序和块的大小，决定搬多少？",
    chapter="08",
    inputs=(
        integer("n", "序列长度 n", 512, "token", low=8, high=1024, stops=powers_of_two(64, 1024)),
        integer("block", "块的边长", 64, low=8, high=1024, stops=powers_of_two(8, 512), help="Q 和 K、V 用一样大的块"),
        flag("causal", "因果掩码", False),
        choice("loop", "循环次序", "q-outer", tuple(LOOPS), labels=LOOPS),
        choice("mistake", "故意写错", "none", tuple(MISTAKES), labels=MISTAKES),
        number("score_scale", "分数放大", 1, "×", low=0.1, high=50, stops=(0.1, 0.5, 1, 2, 3, 4, 6, 10, 20, 50), help="乘在 Q 上；配「不减最大值」看它溢出"),
        integer("d", "每头维度 d", 64, low=8, high=256, more=True, stops=powers_of_two(8, 256)),
        integer("seed", "随机种子", 0, low=0, high=999, more=True),
    ),
    outputs=(
        Output("max_abs_diff", "和一次算完的最大差", main=True, agreement="band", bound=1e-13),
        Output("wrong_rows", "算错的行", "row", main=True, agreement="band"),
        Output("tiles_visited", "访问的 tile", main=True),
        Output("tiles_total", "全部 tile"),
        Output("visited_pct", "访问了", "%", main=True),
        Output("moved_elems", "搬的元素", "element", main=True),
        Output("standard_elems", "标准实现搬的元素", "element"),
        Output("saved_x", "比标准实现少搬", "×", main=True),
    ),
    chart=_chart,
    needs=("numpy",),
    formula=("每块 tile：s = Q·Kᵀ ÷ √d，再走一步在线 softmax（m、ℓ、o）", "因果掩码：只走 j ≤ i 的 tile，占 (T+1) ÷ 2T", "FA2 的读写：2nd + 2nd × T + n；FA1：2nd + T × (3nd + 4n)"),
    assumptions=("float64，与一次算完的 softmax(QKᵀ/√d)·V 比", "片上只放当前 tile，没有 L2", "错误「不减最大值」：eˢ 存成 FP16，累加仍是 float64"),
    leaves_out="不模拟并行：GPU 上各块 Q 同时走，不是一块接一块。因果时标准实现仍按整张 n² 数。",
    sources=("Dao et al. 2022，算法 1；Dao 2023（FlashAttention-2），算法 1", "numpy.random.default_rng(seed).standard_normal，依次是 Q、K、V"),
)  # fmt: skip
def tiled_attention(*, n: int, block: int, causal: bool, loop: str, mistake: str, score_scale: float, d: int, seed: int) -> Result:
    """softmax(QKᵀ/√d)·V of one head over square tiles, beside the same in one go."""
    import numpy as np

    _check(n, block, causal, mistake)
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal((n, d)) for _ in range(3))
    q = q * score_scale
    starts = range(0, n, block)
    sizes = [min(block, n - start) for start in starts]
    tiles = visits(len(sizes), causal, loop)
    m, total, out = np.full(n, -np.inf), np.zeros(n), np.zeros((n, d))
    with np.errstate(over="ignore", invalid="ignore"):
        for i, j in tiles:
            rows, keys = slice(i * block, i * block + sizes[i]), slice(j * block, j * block + sizes[j])
            scores = q[rows] @ k[keys].T / np.sqrt(d)
            if causal and i == j and mistake != "no-diagonal-mask":
                scores = np.where(np.tri(sizes[i], dtype=bool), scores, -np.inf)
            if mistake == "no-max":
                weights = np.exp(scores).astype(np.float16).astype(np.float64)
                total[rows] += weights.sum(axis=1)
                out[rows] += weights @ v[keys]
            else:
                m[rows], total[rows], out[rows], _ = absorb(m[rows], total[rows], out[rows], scores, v[keys], rescale=mistake != "no-rescale")
        error = abs(out / total[:, None] - _at_once(q, k, v, causal)).max(axis=1)
    wrong = ~(error <= WRONG)  # an error that is no number is wrong too
    moved = traffic(tiles, sizes, d, loop)
    worst = float(error.max())
    return _result(
        n, d, loop, mistake, Trace(len(sizes), tuple(tiles), moved, tuple(int(wrong[start : start + block].sum()) for start in starts)),
        worst if np.isfinite(worst) else None,
    )  # fmt: skip


def _check(n: int, block: int, causal: bool, mistake: str) -> None:
    if block > n:
        raise refuse("block", "块的边长不能超过序列长度", f"{block} > {n}", f"可取 8 到 {n}")
    if mistake == "no-diagonal-mask" and not causal:
        raise refuse("mistake", "故意写错「对角块忘了掩码」要先有因果掩码", "因果掩码没开", "勾上因果掩码")


def _at_once(q: Floats, k: Floats, v: Floats, causal: bool) -> Floats:
    """The reference: the whole n × n matrix."""
    import numpy as np

    scores = q @ k.T / np.sqrt(q.shape[1])
    if causal:
        scores = np.where(np.tri(len(q), dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    exact: Floats = weights @ v / weights.sum(axis=1, keepdims=True)
    return exact


def _result(n: int, d: int, loop: str, mistake: str, trace: Trace, worst: float | None) -> Result:
    w = Worked()
    seen, every, moved = len(trace.visited), trace.tiles * trace.tiles, sum(trace.moved.values())
    rows, width = quantity(n), quantity(d)
    share = w.line("访问的 tile", quantity(seen) / quantity(every), "%")
    parts = " + ".join(f"{name} {format_number(count)}" for name, count in trace.moved.items())
    w.say(f"{LOOPS[loop]}：{parts} → {quantity(moved, 'element').text}")
    standard = w.line("标准实现", unfused_elements(rows, rows, width), "element")
    w.line("各搬一遍", fused_elements(rows, rows, width), "element")
    saved = w.line("比标准实现少搬", standard / quantity(moved, "element"), "×")
    wrong = sum(trace.wrong)
    return Result(
        values={
            "max_abs_diff": worst, "wrong_rows": wrong, "tiles_visited": seen, "tiles_total": every, "visited_pct": share,
            "moved_elems": moved, "standard_elems": round(standard.value), "saved_x": saved,
        },
        lines=w.lines,
        verdict=_verdict(mistake, wrong, n, worst, saved),
        trace=trace,
    )  # fmt: skip


def _verdict(mistake: str, wrong: int, n: int, worst: float | None, saved: Quantity) -> str:
    size = "有的成了非数" if worst is None else f"最大差 {format_number(worst, digits=3)}"
    if mistake == "none":
        more = quantity(1 / saved.value, "×", 3).text
        less = f"比标准实现少搬 {saved.text}" if saved.value > 1 else f"可是搬的字节是标准实现的 {more}：块太小，重读太多"
        return f"n² 的矩阵一次也没存，结果和一次算完只差浮点的末位。{less}。"
    if wrong:
        return f"「{MISTAKES[mistake]}」：{n} 行里错了 {wrong} 行，{size}。程序照样跑完，不比对一次就发现不了。"
    return f"「{MISTAKES[mistake]}」这次没错到哪里去（{size}）：分数太小，露不出来。把分数放大，再看。"
