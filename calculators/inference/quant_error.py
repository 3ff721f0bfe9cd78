"""A live experiment: what rounding does to real matrices, by format and granularity, with outliers and with the cures."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Bar, BarChart, Chart, Grid, LineChart, Mark, Part, Series
from calculators.core.inputs import integer, number
from calculators.core.numbers import format_number
from calculators.core.worked import Worked, quantity
from calculators.inference._quantizers import WEIGHT_FORMATS, awq, error_pct, gptq, integers, product, smooth

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NAMES = {
    "int8_tensor": "INT8 整张量", "int8_row": "INT8 每行", "fp8_tensor": "FP8 整张量", "nvfp4": "NVFP4（16 个一块）", "int4_g32": "INT4 32 个一组",
    "mxfp4": "MXFP4（32 个一块）", "int4_g128": "INT4 128 个一组", "int4_row": "INT4 每行", "int4_tensor": "INT4 整张量",
}  # fmt: skip
ALPHAS = tuple(i / 10 for i in range(11))
SQ_ALPHAS = tuple(i / 8 for i in range(9))
OUTLIER_WEIGHTS, OUTLIER_CHANNELS = 66, 2
SHOWN = 8
"""Weights around an outlier that the picture shows."""
GRID_FORMATS = ("int4_tensor", "int4_row", "int4_g128", "int4_g32", "nvfp4")


@dataclass(frozen=True)
class Part1:
    """Weights: errors in % by format, without and with outliers; the first outlier's neighbours before and after."""

    clean: dict[str, float]
    outlier: dict[str, float]
    normal: dict[str, float]
    """The same with outliers, looking at the other weights only."""
    largest: float
    neighbours: tuple[tuple[float, ...], ...]
    outlier_at: int


@lru_cache(maxsize=8)
def weights_part(seed: int, scale: float) -> Part1:
    """256×256 Gaussian weights; 66 of them made larger."""
    import numpy as np

    W = _weights(seed)
    at = np.random.default_rng(5).choice(65536, OUTLIER_WEIGHTS, replace=False)
    V = W.copy()
    V.ravel()[at] *= scale
    restored = {name: f(V) for name, f in WEIGHT_FORMATS.items()}
    normal = np.ones(V.size, dtype=bool)
    normal[at] = False
    row, column, first = _at_an_edge(V, at.tolist())
    cut = slice(first, first + SHOWN)
    return Part1(
        _clean_errors(seed),
        {name: error_pct(V, Q) for name, Q in restored.items()},
        {name: error_pct(V.ravel()[normal], Q.ravel()[normal]) for name, Q in restored.items()},
        float(np.abs(V).max()),
        tuple(tuple(M[row, cut].tolist()) for M in (V, *(restored[name] for name in GRID_FORMATS))),
        column - first,
    )


def _at_an_edge(V: NDArray[np.float64], outliers: list[int]) -> tuple[int, int, int]:
    """Row, column and first column shown of the largest outlier beside an edge between two groups of 32 that 128 does not share.

    Half of the picture lies in its group, half in the next: there the finer scales show what they save.
    """
    half, shown = SHOWN // 2, []
    for row, column in (divmod(k, V.shape[1]) for k in outliers):
        edge = (column + half) // 32 * 32
        if edge % 128 and edge - half <= column < edge + half:
            shown.append((abs(float(V[row, column])), row, column, edge - half))
    return max(shown)[1:]


@lru_cache(maxsize=8)
def _clean_errors(seed: int) -> dict[str, float]:
    W = _weights(seed)
    return {name: error_pct(W, f(W)) for name, f in WEIGHT_FORMATS.items()}


def _weights(seed: int) -> NDArray[np.float64]:
    import numpy as np

    return np.random.default_rng(seed).standard_normal((256, 256)) * 0.02


@dataclass(frozen=True)
class Part2:
    """Activations: output errors in %, the size of a normal channel in steps, and the cures along their α."""

    errors: dict[str, float]
    steps: float
    smooth: dict[float, float]
    awq: dict[int, dict[float, float]]


@lru_cache(maxsize=8)
def activations_part(weight_seed: int, act_seed: int, scale: float) -> Part2:
    """Y = X·Wᵀ with 128×256 activations, two channels of them made larger."""
    import numpy as np

    W, rng = _weights(weight_seed), np.random.default_rng(act_seed)
    C = rng.standard_normal((128, 256))
    big = rng.choice(256, OUTLIER_CHANNELS, replace=False)
    X = C.copy()
    X[:, big] *= scale
    normal = np.ones(256, dtype=bool)
    normal[big] = False
    Y, Yc, W8 = product(X, W), product(C, W), integers(W, 8, 256)
    per_tensor = product(integers(X, 8, X.size), W8)
    exact = product(X[:, big], W[:, big])
    rest = np.where(normal, X, 0.0)
    errors = {
        "act_err_tensor_pct": error_pct(Y, per_tensor),
        "act_err_tensor_normal_pct": error_pct(Y, per_tensor, Y - exact),
        "act_err_token_pct": error_pct(Y, product(integers(X, 8, 256), W8)),
        "act_err_channel_pct": error_pct(Y, product(np.ascontiguousarray(integers(np.ascontiguousarray(X.T), 8, 128).T), W8)),
        "act_clean_tensor_pct": error_pct(Yc, product(integers(C, 8, C.size), W8)),
        "act_clean_token_pct": error_pct(Yc, product(integers(C, 8, 256), W8)),
        "act_err_split_pct": error_pct(Y, product(integers(rest, 8, 256), W8) + exact),
    }
    for bits in (4, 3):
        Q = integers(W, bits, 128)
        errors[f"w{bits}_rtn_outlier_pct"] = error_pct(Y, product(X, Q))
        Q[:, big] = W[:, big]
        errors[f"keep{bits}_err_pct"] = error_pct(Y, product(X, Q))
    return Part2(
        errors,
        127 / float(np.abs(X).max()),
        {a: error_pct(Y, smooth(X, W, a)) for a in SQ_ALPHAS},
        {bits: {a: error_pct(Y, product(X, awq(X, W, bits, a))) for a in ALPHAS} for bits in (4, 3)},
    )


@lru_cache(maxsize=8)
def gptq_part(seed: int) -> dict[str, float]:
    """Correlated inputs: rounding to nearest against GPTQ."""
    import numpy as np

    rng = np.random.default_rng(seed)
    X = rng.standard_normal((512, 16)) @ rng.standard_normal((16, 128)) * 0.3 + rng.standard_normal((512, 128)) * 0.3
    W = rng.standard_normal((128, 128)) * 0.02
    Y = product(X, W)
    found = {}
    for bits in (4, 3):
        found[f"rtn{bits}_err_pct"] = error_pct(Y, product(X, integers(W, bits, 128)))
        found[f"gptq{bits}_err_pct"] = error_pct(Y, product(X, gptq(W, X, bits)))
    return found


def _chart(run: Run, *, weight_outlier_scale: float, act_outlier_scale: float, **_: object) -> tuple[Chart, ...]:
    trace = run.result.trace
    assert isinstance(trace, tuple)
    one, two, three = trace
    assert isinstance(one, Part1)
    assert isinstance(two, Part2)
    times = format_number(weight_outlier_scale)
    return (
        _bars("权重：没有离群值", "同一个矩阵存九次。8 位在最上面，4 位里粒度越细越好。", {NAMES[k]: one.clean[k] for k in NAMES}),
        _bars(f"权重：千分之一的数乘 {times}", "只看没放大的那些权重，还是九种、同一个顺序。到 100% 就是全存成了 0；组越小，被拖累的邻居越少。", {NAMES[k]: one.normal[k] for k in NAMES}),
        Grid(
            "离群值和它的邻居（× 0.01）", "一行一种存法，最深的一列是离群值，左右各一半分属两个 32 个的组。写着 0 的，是被离群值的 scale 抹掉的：组小，隔壁就没事。",
            ("原来", *(NAMES[k].split("（")[0] for k in GRID_FORMATS)), tuple("离群" if j == one.outlier_at else str(j) for j in range(SHOWN)),
            tuple(tuple(1.0 if j == one.outlier_at else 0.4 if x == 0 else 0.0 for j, x in enumerate(row)) for row in one.neighbours),
            tuple(tuple(_short(100 * x) for x in row) for row in one.neighbours),
        ),
        _bars(
            f"激活：两个通道乘 {format_number(act_outlier_scale)}，存 8 位", "输出的误差。整张量一个 scale 最差；后三条是治法，「每通道」算得出却乘不进矩阵乘。",
            {
                "没有离群，整张量": two.errors["act_clean_tensor_pct"], "整张量": two.errors["act_err_tensor_pct"], "每 token": two.errors["act_err_token_pct"],
                "每通道（用不了）": two.errors["act_err_channel_pct"], "SmoothQuant 0.5": two.smooth[0.5], "离群通道留高精度": two.errors["act_err_split_pct"],
            },
        ),
        LineChart(
            "难度搬多少：α", "横轴是 α。SmoothQuant 把激活的难度搬给权重，搬太少太多都差；AWQ 放大吃到大输入的那几列权重，α = 0 就是直接取整。",
            Axis("α", low=0, high=1), Axis("输出误差", "%", log=True),
            (
                Series("SmoothQuant W8A8", tuple(two.smooth.items()), emphasis=True),
                Series("AWQ INT4", tuple(two.awq[4].items())),
                Series("AWQ INT3", tuple(two.awq[3].items()), dashed=True),
            ),
            marks=(Mark("最低", *min(two.smooth.items(), key=lambda p: p[1]), emphasis=True),),
        ),
        _bars(
            "权重：直接取整（RTN）和 GPTQ", "输入互相有关联时，把一列的误差摊给后面的列，能抵掉一大半。",
            {f"INT{b} {name}": three[f"{id}{b}_err_pct"] for b in (4, 3) for id, name in (("rtn", "RTN"), ("gptq", "GPTQ"))},
        ),
    )  # fmt: skip


def _bars(title: str, desc: str, errors: dict[str, float]) -> BarChart:
    return BarChart(
        title, desc, Axis("相对误差", "%", low=0), tuple(Bar(name, (Part("误差", e),), f"{format_number(e, digits=3)}%") for name, e in errors.items())
    )


def _short(value: float) -> str:
    """At most four characters."""
    return "0" if value == 0 else f"{value:.1f}".replace("-", "−") if abs(value) < 9.95 else f"{value:.0f}".replace("-", "−")


def _percent(name: str, label: str, main: bool = False) -> Output:
    return Output(name, label, "%", main=main, agreement="band")


@calculator(
    title="误差从哪来",
    question="同样的位数，scale 的粒度、离群值和取整的办法各差多少？",
    chapter="18",
    inputs=(
        number("weight_outlier_scale", "离群权重放大", 20, "×", low=1, high=100, stops=(1, 2, 5, 10, 20, 30, 50, 75, 100), help="66 个权重，约千分之一"),
        number("act_outlier_scale", "离群通道放大", 60, "×", low=1, high=100, stops=(1, 2, 5, 10, 20, 30, 40, 60, 80, 100), help="256 个输入通道里的 2 个"),
        integer("weight_seed", "权重种子", 0, low=0, high=1_000_000, more=True),
        integer("act_seed", "激活种子", 1, low=0, high=1_000_000, more=True),
        integer("gptq_seed", "GPTQ 种子", 2, low=0, high=1_000_000, more=True),
    ),
    outputs=(
        *[_percent(f"err_{k}_pct", f"{NAMES[k]}，没有离群值") for k in WEIGHT_FORMATS],
        *[_percent(f"outlier_err_{k}_pct", f"{NAMES[k]}，有离群值") for k in WEIGHT_FORMATS],
        _percent("outlier_normal_err_int4_tensor_pct", "INT4 整张量，只看普通权重", True),
        _percent("outlier_normal_err_int4_g32_pct", "INT4 32 个一组，只看普通权重", True),
        Output("act_normal_std_steps", "普通通道的标准差，合几格", agreement="band"),
        _percent("act_err_tensor_pct", "激活整张量"),
        _percent("act_err_tensor_normal_pct", "激活整张量，对普通通道的信号", True),
        _percent("act_err_token_pct", "激活每 token"),
        _percent("act_err_channel_pct", "激活每通道（用不了）"),
        _percent("act_clean_tensor_pct", "没有离群，激活整张量"),
        _percent("act_clean_token_pct", "没有离群，激活每 token"),
        _percent("act_err_split_pct", "离群通道留高精度"),
        *[_percent(f"sq_err_a{a:03d}_pct", f"SmoothQuant，α 取 {a / 100:g}", a == 50) for a in (25, 50, 75, 100)],
        *[
            output for bits in (4, 3) for output in (
                _percent(f"w{bits}_rtn_outlier_pct", f"离群输入，INT{bits} 直接取整"),
                _percent(f"awq{bits}_err_pct", f"离群输入，INT{bits} AWQ"),
                _percent(f"keep{bits}_err_pct", f"离群输入，INT{bits}，那两列留高精度"),
                _percent(f"rtn{bits}_err_pct", f"关联输入，INT{bits} 直接取整", bits == 4),
                _percent(f"gptq{bits}_err_pct", f"关联输入，INT{bits} GPTQ", bits == 4),
            )
        ],
        Output("awq4_alpha", "AWQ INT4 选中的 α", agreement="band"),
    ),
    chart=_chart,
    needs=("numpy",),
    formula=(
        "s = 组内最大的绝对值 ÷ (2^(位数−1) − 1)，还原 = 取整(x ÷ s) × s",
        "误差 = ‖原来 − 还原‖ ÷ ‖原来‖；激活和 GPTQ 比的是输出 X·Wᵀ",
        "SmoothQuant：s = max|X 的列|^α ÷ max|W 的列|^(1−α)，X ÷ s，W × s",
        "AWQ：s = (|X 的列| 的平均)^α，W × s 按 128 个一组取整，再 ÷ s",
    ),
    assumptions=("随机的高斯权重，没有训练过；离群值放大是为了看得清，真实模型里约 20 倍", "组沿输入维切；整数取整到最近、五成双，超出截断"),
    leaves_out="这里的误差是一个矩阵的，不是困惑度，更不是你的任务；真实权重不是高斯，真实输入有更多关联。",
    sources=("SmoothQuant：Xiao et al. 2211.10438", "GPTQ：Frantar et al. 2210.17323", "AWQ：Lin et al. 2306.00978", "LLM.int8()：Dettmers et al. 2208.07339", "OCP Microscaling Formats v1.0"),
)  # fmt: skip
def quant_error(*, weight_outlier_scale: float, act_outlier_scale: float, weight_seed: int, act_seed: int, gptq_seed: int) -> Result:
    """Three parts, each remembered: only what depends on the changed input is done again."""
    one = weights_part(weight_seed, weight_outlier_scale)
    two = activations_part(weight_seed, act_seed, act_outlier_scale)
    three = gptq_part(gptq_seed)
    best = {bits: min(found, key=lambda a: found[a]) for bits, found in two.awq.items()}
    w = Worked()
    w.say(f"有离群值时，最大的权重 → {quantity(one.largest).text}")
    step = w.line("INT4 整张量的一格", quantity(one.largest) / quantity(7))
    w.say(f"普通权重的标准差 0.02，一格的一半 → {quantity(step.value / 2).text}，不到一半的都变成 0")
    w.say(f"激活整张量：普通通道的标准差合 → {quantity(two.steps, digits=4).text} 格")
    w.say(f"AWQ 试 11 个 α，选中 → INT4 {best[4]}，INT3 {best[3]}")
    w.say(f"INT8 → INT4（每行），误差 → {quantity(one.clean['int8_row'], '%', 4).text} → {quantity(one.clean['int4_row'], '%', 4).text}")
    values: dict[str, float] = {
        **{f"err_{k}_pct": e for k, e in one.clean.items()},
        **{f"outlier_err_{k}_pct": e for k, e in one.outlier.items()},
        "outlier_normal_err_int4_tensor_pct": one.normal["int4_tensor"],
        "outlier_normal_err_int4_g32_pct": one.normal["int4_g32"],
        "act_normal_std_steps": two.steps,
        **two.errors,
        **{f"sq_err_a{round(100 * a):03d}_pct": two.smooth[a] for a in (0.25, 0.5, 0.75, 1.0)},
        "awq4_alpha": best[4],
        "awq4_err_pct": two.awq[4][best[4]],
        "awq3_err_pct": two.awq[3][best[3]],
        **three,
    }
    return Result(values=values, lines=w.lines, verdict=_verdict(one, two, three, weight_outlier_scale), trace=(one, two, three))


def _verdict(one: Part1, two: Part2, three: dict[str, float], times: float) -> str:
    def pct(value: float) -> str:
        return quantity(value, "%", 3).text

    weights = f"千分之一的权重乘 {format_number(times)}，INT4 整张量一个 scale，其余权重错 {pct(one.normal['int4_tensor'])}；32 个一组，错 {pct(one.normal['int4_g32'])}。"
    tensor, sq = two.errors["act_err_tensor_normal_pct"], two.smooth[0.5]
    cure = "小于" if sq < two.errors["act_err_tensor_pct"] else "不小于"
    activations = (
        f"激活整张量一个 scale，普通通道错 {pct(tensor)}；SmoothQuant 0.5 的总误差 {pct(sq)}，{cure}整张量的 {pct(two.errors['act_err_tensor_pct'])}。"
    )
    return weights + activations + f"输入有关联时，INT4 的 GPTQ 把 {pct(three['rtn4_err_pct'])} 变成 {pct(three['gptq4_err_pct'])}。"
