"""A live experiment: one layer, four criteria, the same number of zeros; how wrong does its output become?"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, Grid, LineChart, Mark, Series
from calculators.core.errors import refuse
from calculators.core.inputs import integer, linear_stops, number, powers_of_two
from calculators.core.worked import Worked, quantity

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

RANK = 16
"""Common factors that make the inputs correlated."""
BLOCK = 32
"""Columns that SparseGPT masks at a time."""
DAMPING = 0.01
GROUP = 4
CURVE = (0.1, 0.3, 0.5, 0.7, 0.9)
COARSE = (0.3, 0.7)
"""Points of the curve in a large layer, so that the card stays quick."""
LARGE = 256 * 256
SHOWN = 8
"""Last inputs of the first neuron that the picture shows: there SparseGPT has most to make up for."""
NAMES = {
    "magnitude": "magnitude", "wanda": "Wanda", "sparsegpt": "SparseGPT", "structured": "整列剪",
    "magnitude_24": "magnitude 2:4", "wanda_24": "Wanda 2:4", "sparsegpt_24": "SparseGPT 2:4",
}  # fmt: skip


@dataclass(frozen=True)
class Layer:
    """Weights (outputs × inputs), the input norms, XᵀX, and the squared norm of the true output."""

    W: NDArray[np.float64]
    norms: NDArray[np.float64]
    gram: NDArray[np.float64]
    U: NDArray[np.float64]
    size: float

    def error_pct(self, pruned: NDArray[np.float64]) -> float:
        """‖X·(W − W')ᵀ‖ ÷ ‖X·Wᵀ‖, from XᵀX: no tokens needed any more."""
        D = self.W - pruned
        return 100 * math.sqrt(max(float((D @ self.gram * D).sum()), 0.0)) / self.size


def layer(seed: int, n_out: int, n_in: int, n_tokens: int) -> Layer:
    """Normal weights; inputs with 16 common factors and log-normal channel scales."""
    import numpy as np

    rng = np.random.default_rng(seed)
    W = rng.standard_normal((n_out, n_in))
    scales = np.exp(rng.standard_normal(n_in))
    X = (rng.standard_normal((n_tokens, RANK)) @ rng.standard_normal((RANK, n_in)) * 0.25 + rng.standard_normal((n_tokens, n_in))) * scales
    gram = X.T @ X
    H = gram + DAMPING * float(np.diag(gram).mean()) * np.eye(n_in)
    U = np.linalg.cholesky(np.linalg.inv(H)).T
    return Layer(W, np.sqrt(np.diag(gram)), gram, U, math.sqrt(float((W @ gram * W).sum())))


def two_of_four(score: NDArray[np.float64]) -> NDArray[np.bool_]:
    """True where pruned: the two smallest of every four neighbours of a row."""
    import numpy as np

    groups = score.reshape(len(score), -1, GROUP)
    smallest = np.argsort(groups, axis=2, kind="stable")[:, :, : GROUP // 2]
    mask = np.zeros(groups.shape, bool)
    np.put_along_axis(mask, smallest, True, axis=2)
    return mask.reshape(score.shape)


def _smallest(score: NDArray[np.float64], count: int) -> NDArray[np.bool_]:
    """True at the ``count`` smallest entries of each row."""
    import numpy as np

    mask = np.zeros(score.shape, bool)
    np.put_along_axis(mask, np.argpartition(score, count, axis=1)[:, :count], True, axis=1)
    return mask


def magnitude(x: Layer, sparsity: float) -> NDArray[np.float64]:
    """One threshold for the whole matrix."""
    import numpy as np

    size = np.abs(x.W)
    return np.where(size <= np.quantile(size, sparsity), 0.0, x.W)


def wanda(x: Layer, sparsity: float) -> NDArray[np.float64]:
    """|w|·‖x‖, compared within a row (Sun et al. 2023)."""
    import numpy as np

    return np.where(_smallest(np.abs(x.W) * x.norms, int(sparsity * x.W.shape[1])), 0.0, x.W)


def structured(x: Layer, sparsity: float) -> NDArray[np.float64]:
    """Whole input columns with the smallest ‖w‖·‖x‖."""
    import numpy as np

    score = np.linalg.norm(x.W, axis=0) * x.norms
    return np.where(_smallest(score[None, :], int(sparsity * x.W.shape[1])), 0.0, x.W)


def sparsegpt(x: Layer, sparsity: float | None) -> NDArray[np.float64]:
    """Column by column: prune, and let the later columns make up for it (Frantar & Alistarh 2023).  None: 2:4."""
    import numpy as np

    W, U = x.W.copy(), x.U
    n_out, n_in = W.shape
    diagonal = np.diag(U)
    for start in range(0, n_in, BLOCK):
        end = min(start + BLOCK, n_in)
        errors, mask = np.zeros((n_out, end - start)), np.zeros((n_out, end - start), bool)
        if sparsity is not None:
            score = (W[:, start:end] / diagonal[start:end]) ** 2
            mask = _smallest(score.reshape(1, -1), int(sparsity * score.size)).reshape(score.shape)
        for j in range(start, end):
            if sparsity is None and j % GROUP == 0:
                group = slice(j, j + GROUP)
                mask[:, j - start : j - start + GROUP] = two_of_four((W[:, group] / diagonal[group]) ** 2)
            error = np.where(mask[:, j - start], W[:, j], 0.0) / U[j, j]
            W[:, j:end] -= np.outer(error, U[j, j:end])
            W[mask[:, j - start], j] = 0.0
            errors[:, j - start] = error
        W[:, end:] -= errors @ U[start:end, end:]
    return W


METHODS: dict[str, Callable[[Layer, float], NDArray[np.float64]]] = {
    "magnitude": magnitude, "wanda": wanda, "sparsegpt": sparsegpt, "structured": structured,
}  # fmt: skip


def prune_all(x: Layer, sparsity: float) -> dict[str, NDArray[np.float64]]:
    """The seven pruned matrices."""
    import numpy as np

    pruned = {name: method(x, sparsity) for name, method in METHODS.items()}
    pruned["magnitude_24"] = np.where(two_of_four(np.abs(x.W)), 0.0, x.W)
    pruned["wanda_24"] = np.where(two_of_four(np.abs(x.W) * x.norms), 0.0, x.W)
    pruned["sparsegpt_24"] = sparsegpt(x, None)
    return pruned


@dataclass(frozen=True)
class Trace:
    """Error of each method at the sparsities of the curve, and the last weights of the first neuron, before and after."""

    curves: dict[str, tuple[tuple[float, float], ...]]
    first: dict[str, tuple[float, ...]]


def _chart(run: Run, *, sparsity: float, n_in: int, **_: object) -> tuple[Chart, ...]:
    trace = run.result.trace
    assert isinstance(trace, Trace)
    own = float(run.values["err_sparsegpt_pct"])  # type: ignore[arg-type]
    widest = max(abs(v) for name, values in trace.first.items() if name != "输入大小" for v in values)
    return (
        LineChart(
            "剪得越多，错得越多",
            "同一层，同样多的零，一条线一种准则。看看多看一眼输入（Wanda）差多少，再补偿一下（SparseGPT）又差多少。",
            Axis("零占", "%", low=0, high=100),
            Axis("输出误差", "%", low=0),
            tuple(Series(NAMES[name], points, dashed=name == "structured") for name, points in trace.curves.items()),
            (Mark("SparseGPT，现在", 100 * sparsity, own, emphasis=True),),
        ),
        Grid(
            f"第一个神经元的最后 {len(trace.first['原来'])} 个权重",
            "一列是一个输入，最上面一行是这个输入有多大。空格是剪掉的。只有 SparseGPT 会改留下的值，去补前面剪掉的：拿它那行和「原来」比。",
            ("输入大小", *(name for name in trace.first if name != "输入大小")),
            tuple(str(j) for j in range(n_in - len(trace.first["原来"]), n_in)),
            (
                tuple(None for _ in trace.first["输入大小"]),
                *(tuple(abs(v) / widest if v else None for v in values) for name, values in trace.first.items() if name != "输入大小"),
            ),
            (
                tuple(f"{v:.2g}" for v in trace.first["输入大小"]),
                *(tuple(f"{v:.1f}".replace("-", "−") if v else "" for v in values) for name, values in trace.first.items() if name != "输入大小"),
            ),
        ),
    )


def _error_outputs() -> tuple[Output, ...]:
    return tuple(Output(f"err_{name}_pct", f"{label} 的误差", "%", main=name in METHODS, agreement="band") for name, label in NAMES.items())


@calculator(
    title="四种剪枝准则",
    question="同样多的零，剪谁最不伤？四种准则在同一层上比。",
    chapter="18c",
    inputs=(
        number("sparsity", "零占多少", 0.5, low=0.1, high=0.95, kind="fraction", stops=linear_stops(0.1, 0.95, 0.05), help="2:4 那三行不看它"),
        integer("seed", "随机种子", 0, low=0, high=99, stops=linear_stops(0, 9, 1)),
        integer("n_tokens", "校准 token", 256, "token", low=32, high=1024, stops=powers_of_two(32, 1024)),
        integer("n_in", "输入维度", 128, low=32, high=512, more=True, stops=powers_of_two(32, 512), help="4 的倍数"),
        integer("n_out", "输出维度", 128, low=4, high=512, more=True, stops=powers_of_two(4, 512)),
    ),
    outputs=_error_outputs(),
    chart=_chart,
    needs=("numpy",),
    formula=(
        "误差 = ‖X·Wᵀ − X·W'ᵀ‖ ÷ ‖X·Wᵀ‖",
        "magnitude 看 |w|；Wanda 看 |w|·‖x‖，每行自己比；整列剪看 ‖w 列‖·‖x‖",
        "SparseGPT 看 w² ÷ U²，剪一列，就让后面的列补上它的误差（H⁻¹ = UᵀU，H = XᵀX + 1% 阻尼）",
    ),
    assumptions=("权重标准正态；输入有 16 个公共因子，各通道的大小是对数正态", "误差就在校准用的那些 token 上量"),
    leaves_out="只有一层：误差逐层累积没算。通道大小悬殊是假设，整列剪在这里因此显得不坏：一半的列本来就不要紧。",
    sources=("Wanda：Sun et al. 2023", "SparseGPT：Frantar & Alistarh 2023，块 32", "numpy.random.default_rng(seed)"),
)  # fmt: skip
def prune_compare(*, sparsity: float, seed: int, n_tokens: int, n_in: int, n_out: int) -> Result:
    """Relative output error of seven prunings of one layer."""
    if n_in % GROUP:
        raise refuse("n_in", f"输入维度必须是 {GROUP} 的倍数（2:4 按 4 个一组）", str(n_in), f"可取 {n_in // GROUP * GROUP}、{-(-n_in // GROUP) * GROUP}")
    x = layer(seed, n_out, n_in, n_tokens)
    pruned = prune_all(x, sparsity)
    errors = {name: x.error_pct(matrix) for name, matrix in pruned.items()}

    w = Worked()
    texts = {name: quantity(error, "%", 4).text for name, error in errors.items()}
    total = w.line("权重一共", quantity(n_out) * quantity(n_in))
    for name, matrix in pruned.items():
        zeros = int(matrix.size - (matrix != 0).sum())
        w.say(f"{NAMES[name]}：{zeros} 个变成零（共 {total.text}），输出误差 → {texts[name]}")
    return Result(
        values={f"err_{name}_pct": error for name, error in errors.items()},
        lines=w.lines,
        verdict=_verdict(errors, texts, sparsity),
        trace=Trace(_curves(x, sparsity, errors), _first(x, pruned)),
    )


def _curves(x: Layer, sparsity: float, errors: dict[str, float]) -> dict[str, tuple[tuple[float, float], ...]]:
    """Each method at a few sparsities; the reader's own point is known already."""
    at = COARSE if x.W.size > LARGE else CURVE
    curves = {}
    for name, method in METHODS.items():
        points = {s: x.error_pct(method(x, s)) for s in at if s != sparsity} | {sparsity: errors[name]}
        curves[name] = tuple((100 * s, points[s]) for s in sorted(points))
    return curves


def _first(x: Layer, pruned: dict[str, NDArray[np.float64]]) -> dict[str, tuple[float, ...]]:
    rows = {"输入大小": (x.norms / x.norms.mean())[-SHOWN:], "原来": x.W[0, -SHOWN:]} | {NAMES[name]: matrix[0, -SHOWN:] for name, matrix in pruned.items()}
    return {name: tuple(float(v) for v in row.tolist()) for name, row in rows.items()}


def _verdict(errors: dict[str, float], texts: dict[str, str], sparsity: float) -> str:
    best = min(METHODS, key=errors.__getitem__)
    worst = max(METHODS, key=errors.__getitem__)
    zeros = quantity(100 * sparsity, "%", 3).text
    head = f"{zeros} 的零，错得最多：{NAMES[worst]}（{texts[worst]}）；最少：{NAMES[best]}（{texts[best]}）。"
    price = f"改成 2:4，SparseGPT 是 {texts['sparsegpt_24']}。" if sparsity == 0.5 else f"2:4（固定一半是零）的 SparseGPT 是 {texts['sparsegpt_24']}。"
    if errors["wanda"] >= errors["magnitude"]:
        return head + price + "这一组里，多看输入大小没有帮上忙。"
    return head + price + f"Wanda 只比 magnitude 多看一个输入大小，误差 {texts['magnitude']} → {texts['wanda']}。"
