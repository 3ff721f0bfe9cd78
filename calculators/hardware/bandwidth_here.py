"""A live experiment: how fast do an element-wise add and a matrix product run on the machine that reads this page?"""

from __future__ import annotations

import math
import platform
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Bar, BarChart, Chart, Part
from calculators.core.inputs import integer, powers_of_two
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.roofline import arithmetic_intensity, gemm_elements, gemm_flops

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FLOAT32 = 4
CHECK_BLOCK = 65_536
"""Elements compared with float64 at a time, so that the check stays in the cache."""
TICKS = 20
"""Clock steps that one measurement lasts at least: a browser's clock moves in steps of up to 0.1 ms."""
SPEND_S = 0.01
"""Short work is measured more often than asked, so that one quiet moment of a busy machine is enough."""


def _chart(run: Run, **_: object) -> tuple[Chart, ...]:
    def bars(unit: str) -> tuple[Bar, ...]:
        values = ((name, run.values[f"{key}_{unit}"], run.texts[f"{key}_{unit}"]) for name, key in (("逐元素加", "add"), ("矩阵乘", "matmul")))
        return tuple(Bar(name, (Part(name, value),), text) for name, value, text in values if isinstance(value, float))

    return (
        BarChart("算得多快", "横轴是对数。同一台机器、同一种数，差的只是每个字节用了几次。", Axis("计算速度", "GFLOP/s", log=True), bars("gflop_s")),
        BarChart("搬得多快", "横轴是对数。矩阵乘要搬的字节少得多，它不靠带宽吃饭。", Axis("必需的字节 ÷ 时间", "GB/s", log=True), bars("gb_s")),
    )


@calculator(
    title="在你的浏览器里测一次墙",
    question="同一台机器，逐元素加和矩阵乘各能跑多快？",
    chapter="03",
    inputs=(
        integer("n_elems", "逐元素加的长度", 4_000_000, "float32", low=100_000, high=20_000_000, stops=(100_000, 300_000, 1_000_000, 2_000_000, 4_000_000, 10_000_000, 20_000_000)),
        integer("mat_n", "矩阵边长", 256, low=32, high=1024, stops=powers_of_two(32, 1024)),
        integer("repeats", "至少测几次取最快", 5, low=1, high=20, stops=(1, 3, 5, 10, 20)),
        integer("seed", "随机种子", 0, low=0, more=True),
    ),
    outputs=(
        Output("add_ai", "逐元素加的算术强度", "FLOP/B"),
        Output("matmul_ai", "矩阵乘的算术强度", "FLOP/B"),
        Output("add_gb_s", "逐元素加的带宽", "GB/s", main=True, agreement="machine"),
        Output("matmul_gb_s", "矩阵乘的带宽", "GB/s", agreement="machine"),
        Output("add_gflop_s", "逐元素加的速度", "GFLOP/s", main=True, agreement="machine"),
        Output("matmul_gflop_s", "矩阵乘的速度", "GFLOP/s", main=True, agreement="machine"),
        Output("add_max_rel_err", "逐元素加与 float64 的差", agreement="band", bound=1e-6),
        Output("matmul_max_rel_err", "矩阵乘与 float64 的差", agreement="band", bound=1e-5),
    ),
    chart=_chart,
    needs=("numpy",),
    formula=("GFLOP/s = 运算量 ÷ 时间", "GB/s = 必需的字节 ÷ 时间（每个数组只算一次进出）", "差 = 最大绝对误差 ÷ 最大绝对值"),
    assumptions=("时间取最短的一次，很短的工作会多测几次；数组先写过一遍，不算第一次分页",),
    leaves_out="测的是这台机器的 CPU，不是 GPU；数组小到放进缓存时，测到的是缓存的带宽。浏览器里没有多线程 BLAS，矩阵乘会慢几十倍。",
    sources=("numpy.random.default_rng(seed).standard_normal，float32", "Williams, Waterman, Patterson, CACM 2009"),
)  # fmt: skip
def bandwidth_here(*, n_elems: int, mat_n: int, repeats: int, seed: int) -> Result:
    """np.add over ``n_elems`` float32 and an ``mat_n``² product, best of ``repeats``; results compared with float64."""
    import numpy as np

    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal(n_elems, dtype=np.float32), rng.standard_normal(n_elems, dtype=np.float32)
    left, right = rng.standard_normal((mat_n, mat_n), dtype=np.float32), rng.standard_normal((mat_n, mat_n), dtype=np.float32)
    summed, product = np.zeros_like(a), np.zeros_like(left)
    add_s = _fastest(lambda: np.add(a, b, out=summed), repeats)
    matmul_s = _fastest(lambda: np.matmul(left, right, out=product), repeats)

    w = Worked()
    four, n = quantity(FLOAT32, "B"), quantity(mat_n)
    add_work, add_bytes = quantity(n_elems, "FLOP"), w.line("逐元素加搬的字节", quantity(3) * four * quantity(n_elems), "MB")
    matmul_work = w.line("矩阵乘的运算量", gemm_flops(n, n, n, quantity(2, "FLOP")), "GFLOP")
    matmul_bytes = w.line("矩阵乘搬的字节", four * gemm_elements(n, n, n), "MB")
    add_ai = w.line("逐元素加的算术强度", arithmetic_intensity(add_work, add_bytes), "FLOP/B")
    matmul_ai = w.line("矩阵乘的算术强度", arithmetic_intensity(matmul_work, matmul_bytes), "FLOP/B")
    add_time = _measured(w, "逐元素加，最快的一次", add_s)
    matmul_time = _measured(w, "矩阵乘，最快的一次", matmul_s)
    add_speed = w.line("逐元素加的速度", add_work / add_time, "GFLOP/s")
    matmul_speed = w.line("矩阵乘的速度", matmul_work / matmul_time, "GFLOP/s")
    add_rate = w.line("逐元素加的带宽", add_bytes / add_time, "GB/s")
    matmul_rate = w.line("矩阵乘的带宽", matmul_bytes / matmul_time, "GB/s")
    return Result(
        values={
            "add_ai": add_ai, "matmul_ai": matmul_ai,
            "add_gb_s": add_rate, "matmul_gb_s": matmul_rate, "add_gflop_s": add_speed, "matmul_gflop_s": matmul_speed,
            "add_max_rel_err": _relative_error(summed, lambda lo, hi: a[lo:hi].astype(np.float64) + b[lo:hi]),
            "matmul_max_rel_err": _relative_error(product, lambda lo, hi: left[lo:hi].astype(np.float64) @ right.astype(np.float64)),
        },
        lines=w.lines,
        verdict=_verdict(add_speed, matmul_speed, add_rate, matmul_rate) + f"（{_where()}测得，numpy {np.__version__}）",
    )  # fmt: skip


def _fastest(work: Callable[[], object], repeats: int) -> float:
    """Seconds of one call, best of at least ``repeats`` measurements; work below the clock's step is looped."""
    work()  # first touch of the pages, start of the threads
    shortest, loops = TICKS * _clock_step(), 1
    while _elapsed(work, loops) < shortest:
        loops *= 2
    best, spent, measured = math.inf, 0.0, 0
    while measured < repeats or spent < SPEND_S:
        seconds = _elapsed(work, loops)
        best, spent, measured = min(best, seconds), spent + seconds, measured + 1
    return best / loops


def _elapsed(work: Callable[[], object], loops: int) -> float:
    start = time.perf_counter()
    for _ in range(loops):
        work()
    return time.perf_counter() - start


def _clock_step() -> float:
    start = time.perf_counter()
    while (now := time.perf_counter()) == start:
        pass
    return now - start


def _measured(w: Worked, label: str, seconds: float) -> Quantity:
    return w.line(label, quantity(seconds * 1e3, "ms", 4), "ms")


def _relative_error(got: NDArray[np.float32], exact: Callable[[int, int], NDArray[np.float64]]) -> float:
    """Largest absolute error ÷ largest absolute value, block by block."""
    worst = largest = 0.0
    rows = max(1, CHECK_BLOCK // got[:1].size)
    for low in range(0, len(got), rows):
        want = exact(low, min(low + rows, len(got)))
        largest = max(largest, float(abs(want).max()))
        worst = max(worst, float(abs(want - got[low : low + rows]).max()))
    return worst / largest


def _where() -> str:
    return "在你的浏览器里" if sys.platform == "emscripten" else f"在构建机（{platform.system()} {platform.machine()}）上"


def _verdict(add: Quantity, matmul: Quantity, add_rate: Quantity, matmul_rate: Quantity) -> str:
    faster = matmul.value / add.value
    if faster < 1:
        return (
            f"每秒搬的字节：逐元素加 {add_rate.text}，矩阵乘 {matmul_rate.text}，矩阵乘不缺带宽。"
            f"它的 {matmul.text} 反而低于 {add.text}，是算得慢：没有优化过的 BLAS，或机器正忙，等一会儿再测。"
        )
    return f"逐元素加 {add.text}，矩阵乘 {matmul.text}，差 {quantity(faster, '×', 3).text}。算术强度低的那个卡在搬数据：想快，就让每个字节多用几次。"
