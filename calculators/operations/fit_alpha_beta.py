"""A live experiment: which latency α and which bandwidth B stand behind measured all-reduce times?"""

from __future__ import annotations

import math
from dataclasses import dataclass

from calculators.core.calculator import Output, Result, Row, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Series
from calculators.core.errors import refuse
from calculators.core.inputs import integer, log_stops, number, text
from calculators.core.numbers import format_number
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.collectives import allreduce_factor, half_speed_bytes, ring_allreduce
from calculators.formulas.measurement import fit_alpha_beta as least_squares
from calculators.operations._samples import SHORTEST, number_of, numbers_of, read_rows, remark

COLUMNS = ("bytes", "seconds")
SIZES = tuple(10 ** (3 + 0.6 * i) for i in range(11))
"""Synthetic messages: 1 KB to 1 GB, evenly spaced on a logarithm."""
MOST = 200
PASS = 0.20
"""The fit reproduces every size within this (chapter 24, P4)."""
NOTHING = 1e-9
"""A fitted term below this share of every measured time is rounding."""


@dataclass(frozen=True)
class Fit:
    """For the chart: what was measured and what the two parameters say."""

    n: int
    measured: tuple[tuple[float, float], ...]
    alpha: float
    inverse_b: float

    def seconds(self, size: float) -> float:
        return ring_allreduce(float(self.n), size, 1 / self.inverse_b, self.alpha).seconds


def _chart(run: Run, **_: object) -> tuple[Chart, ...]:
    fit = run.result.trace
    assert isinstance(fit, Fit)
    sizes = sorted(s for s, _ in fit.measured)
    low, high = sizes[0] / 2, sizes[-1] * 2
    grid = [low * (high / low) ** (i / 60) for i in range(61)]
    curves = (
        Series("拟合", tuple((s, fit.seconds(s) * 1e3) for s in grid), emphasis=True),
        Series("只有延迟", tuple((s, fit.seconds(0) * 1e3) for s in grid), dashed=True),
        Series("只有带宽", tuple((s, (fit.seconds(s) - fit.seconds(0)) * 1e3) for s in grid), dashed=True),
    )
    marks = tuple(Mark("", s, t * 1e3) for s, t in fit.measured)
    return (
        LineChart(
            "左边的平台是 α，右边的斜坡是 B",
            "两轴都是对数，点是样本。小消息付的是步数 × α，大消息付的是字节 ÷ B；点在哪一段离线远，哪一段就不是这两个数能说的。",
            Axis("消息", "B", log=True),
            Axis("一次 all-reduce", "ms", log=True),
            curves,
            marks=marks,
        ),
    )


@calculator(
    title="从测量拟合 α–β",
    question="一串 all-reduce 的时间里，每步的延迟和链路的带宽各是多少？",
    chapter="24",
    inputs=(
        text("samples", "实测（空着就造数据）", longest=20_000, placeholder="1e3,1.5e-4; 1e5,7e-4; 1e7,5.6e-2", help="一行一个 bytes,seconds；脚本 ring_mp.py 印的那块直接贴"),
        integer("n", "几个进程 n", 8, low=2, high=100_000, stops=(2, 3, 4, 8, 16, 32, 64, 128, 256, 1024)),
        number("alpha_us", "α 的预测", 8, "µs", low=0, high=1e4, stops=(0, 1, 2, 5, 8, 10, 20, 50, 100, 200, 500, 1000), help="有实测，拿来对；没有，按它造数据"),
        number("b_gb_s", "B 的预测", 360, "GB/s", low=0.001, high=1e4, stops=log_stops(0.1, 1000, 4), help="有实测，拿来对；没有，按它造数据"),
        number("noise", "造数据的噪声 σ", 0.05, low=0, high=0.3, stops=(0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3), more=True),
        integer("seed", "随机种子", 0, low=0, high=1_000_000, more=True, stops=tuple(range(10))),
    ),
    outputs=(
        Output("alpha_fit_us", "每步延迟 α", "µs", main=True, agreement="band"),
        Output("b_fit_gb_s", "带宽 B", "GB/s", main=True, agreement="band"),
        Output("max_rel_error_pct", "拟合离样本最远", "%", main=True, agreement="band", bound=1e-9),
        Output("points", "样本", "row"),
        Output("half_size_mb", "延迟和带宽各占一半的消息", "MB", agreement="band"),
        Output("rows", "逐个看", columns=(("bytes", "消息", "B"), ("measured_ms", "实测", "ms"), ("fitted_ms", "拟合", "ms"), ("off_pct", "拟合偏", "%"), ("busbw_gb_s", "busbw", "GB/s")), agreement="band"),
    ),
    chart=_chart,
    needs=("numpy",),
    formula=(
        "t = 2(n−1)·α + 2(n−1)/n·S ÷ B，S 是每个进程手里整个数组的字节",
        "取让 Σ(1 − t_拟合 ÷ t)² 最小的 α 和 1/B：每一行先除以自己的 t，大小消息一样说得上话",
    ),
    assumptions=("环算法，每一步的 α 一样，每条链路的 B 一样", "busbw = 2(n−1)/n·S ÷ t"),
    leaves_out="NCCL 会按大小换协议（LL、LL128、Simple），曲线其实分几段，一对 α、B 只能对上一段。不加权的最小二乘只看得见最大的几个消息，别用。",
    sources=("Hockney 的 α–β 模型（凭记忆）", "系数：NVIDIA/nccl-tests doc/PERFORMANCE.md", "造的数据：numpy.random.default_rng(seed).standard_normal(11)，10³ 到 10⁹ 字节"),
)  # fmt: skip
def fit_alpha_beta(*, samples: str, n: int, alpha_us: float, b_gb_s: float, noise: float, seed: int) -> Result:
    """Weighted least squares on the reader's samples, or on synthetic ones whose truth is known."""
    field = "samples" if samples else "noise"
    told = remark(samples, "n") or n
    if told < 2 or told > 100_000:
        raise refuse("samples", "样本里的 n 必须在 2 到 100,000 之间", told)
    points = _read(samples) if samples else _synthetic(told, alpha_us * 1e-6, b_gb_s * 1e9, noise, seed)
    steps, factor = 2 * (told - 1), allreduce_factor(float(told))
    alpha, inverse = least_squares([float(steps)] * len(points), [factor * s for s, _ in points], [t for _, t in points])
    if abs(alpha) * steps < NOTHING * min(t for _, t in points):
        alpha = 0.0
    if inverse * factor * max(s for s, _ in points) < NOTHING * max(t for _, t in points):
        raise refuse(field, "数据里没有带宽段", "拟合的 B 不是正数", "把消息加大到 64 MB 以上")
    if alpha < 0:
        raise refuse(field, "数据里没有延迟段", "拟合的 α 小于 0", "补 1–64 KB 的点")
    fit = Fit(told, points, alpha, inverse)
    worst = max(abs(fit.seconds(s) / t - 1) for s, t in points)
    w = Worked()
    w.say(f"{len(points)} 个样本，加权最小二乘 → α {quantity(alpha * 1e6, 'µs', 4).text}，B {quantity(1e-9 / inverse, 'GB/s', 4).text}")
    per_step, wire = quantity(alpha * 1e6, "µs", 4), quantity(1e-9 / inverse, "GB/s", 4)
    w.line("小消息的底", 2 * (quantity(told) - 1) * per_step, "ms")
    half = w.line("延迟和带宽各占一半", half_speed_bytes(quantity(told), per_step, wire), "MB")
    w.say(f"逐个比 t_拟合 ÷ t，最远的 → {quantity(100 * worst, '%', 3).text}")
    return Result(
        values={
            "alpha_fit_us": alpha * 1e6, "b_fit_gb_s": 1e-9 / inverse, "max_rel_error_pct": 100 * worst, "points": len(points),
            "half_size_mb": half, "rows": _rows(fit, factor),
        },
        lines=w.lines,
        verdict=_verdict(bool(samples), per_step, wire, alpha_us, b_gb_s, worst),
        notes=(f"样本里写着 n={told}，按它算，没用卡片上的 {n}。",) if told != n else (),
        trace=fit,
    )  # fmt: skip


def _synthetic(n: int, alpha: float, bytes_per_s: float, noise: float, seed: int) -> tuple[tuple[float, float], ...]:
    import numpy as np

    truth = Fit(n, (), alpha, 1 / bytes_per_s)
    draws = np.random.default_rng(seed).standard_normal(len(SIZES)).tolist()
    points = tuple((size, truth.seconds(size) * (1 + noise * z)) for size, z in zip(SIZES, draws, strict=True))
    if min(t for _, t in points) <= 0:
        raise refuse("noise", "噪声太大，造出了负的时间", format_number(noise), "换个种子，或把噪声调小")
    return points


def _read(samples: str) -> tuple[tuple[float, float], ...]:
    points = []
    for k, cells in enumerate(read_rows("samples", samples, ",".join(COLUMNS), MOST), 1):
        size, seconds = numbers_of("samples", cells, COLUMNS, f"第 {k} 行")
        number_of("samples", cells[1], f"第 {k} 行的 seconds", SHORTEST, 1e7)
        number_of("samples", cells[0], f"第 {k} 行的 bytes", 1, 1e15)
        points.append((size, seconds))
    if len({s for s, _ in points}) < 2:
        raise refuse("samples", "样本至少要有两种大小", f"{len(points)} 行", "小消息看 α，大消息看 B，各来几个")
    if max(t for _, t in points) > 1e12 * min(t for _, t in points) or max(s for s, _ in points) < 1.01 * min(s for s, _ in points):
        raise refuse("samples", "样本的跨度拟合不了", "大小太接近，或时间差得太多", "取 1 KB 到 64 MB")
    return tuple(points)


def _rows(fit: Fit, factor: float) -> list[Row]:
    return [
        {
            "bytes": round(s), "measured_ms": t * 1e3, "fitted_ms": fit.seconds(s) * 1e3, "off_pct": round(100 * (fit.seconds(s) / t - 1), 2),
            "busbw_gb_s": factor * s / t / 1e9,
        }
        for s, t in fit.measured
    ]  # fmt: skip


def _verdict(measured: bool, alpha: Quantity, b: Quantity, alpha_us: float, b_gb_s: float, worst: float) -> str:
    told = f"拟合出 α {alpha.text}，B {b.text}"
    if not measured:
        return (
            f"{told}；造数据用的是 {quantity(alpha_us, 'µs').text} 和 {quantity(b_gb_s, 'GB/s').text}。α 由小消息定，B 由大消息定：缺了哪一段，哪个数就是瞎猜。"
        )
    if worst > PASS:
        return f"{told}，可有的样本离它 {quantity(100 * worst, '%', 3).text}，过了 20%：这串数不是一条 α–β 线。看图里哪一段离得远：换了协议、数组大到出了缓存、进程比核多，都会。分成两段各拟合一次。"
    off = [name for name, got, guess in (("α", alpha.value * 1e6, alpha_us), ("B", b.value / 1e9, b_gb_s)) if _differs(got, guess)]
    if not off:
        return f"{told}，每个样本都在 20% 以内，和预测也对得上：拿这两个数去预测别的大小。"
    return f"{told}，每个样本都在 20% 以内。预测的 {'、'.join(off)} 该重估：换成拟合的数；α 差是每步的软件开销和同步，B 差是链路、拷贝或抢核。"


def _differs(got: float, guess: float) -> bool:
    return math.isclose(guess, 0) or abs(got / guess - 1) > PASS
