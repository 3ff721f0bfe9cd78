"""A live experiment: the run dies in the middle of an epoch.  Which samples are read twice, and which never?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Chart, Grid
from calculators.core.errors import refuse
from calculators.core.inputs import choice, integer, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.worked import Worked, quantity

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Order = NDArray[np.int64]

GRID_ROWS, GRID_COLUMNS = 12, 30
SAVED = {
    "all": "种子和读过的样本数",
    "weights": "只有权重",
    "steps": "种子和步数",
    "dispatched": "种子和派出去的位置",
    "no_seed": "样本数，没存种子",
}


@dataclass(frozen=True)
class Crash:
    """The run at the moment of the crash, and how it goes on; batches are global, in samples."""

    consumed: int
    steps: int
    batch_after: int
    in_flight: int


RESUME_AT: dict[str, Callable[[Crash], int]] = {
    "all": lambda crash: crash.consumed,
    "weights": lambda crash: 0,
    "steps": lambda crash: crash.steps * crash.batch_after,
    "dispatched": lambda crash: crash.consumed + crash.in_flight,
    "no_seed": lambda crash: crash.consumed,
}
"""Where in the epoch's order the loader goes on."""


def _times_read(n: int, crash: Crash, saved: str, seed: int) -> Order:
    """How often each sample is read by the end of the epoch, in the order of the first run."""
    import numpy as np

    before = np.random.default_rng(seed).permutation(n)
    after = np.random.default_rng(seed + 1).permutation(n) if saved == "no_seed" else before
    reads = np.zeros(n, np.int64)
    np.add.at(reads, before[: crash.consumed], 1)
    np.add.at(reads, after[RESUME_AT[saved](crash) :], 1)
    in_order: Order = reads[before]
    return in_order


def _chart(run: Run, **_: object) -> tuple[Chart, ...]:
    reads = run.result.trace
    assert isinstance(reads, list)
    cells = GRID_ROWS * GRID_COLUMNS
    edges = [i * len(reads) // cells for i in range(cells + 1)]
    means = [sum(reads[a:b]) / (b - a) if b > a else None for a, b in pairwise(edges)]
    return (
        Grid(
            "这一轮的样本，各读了几遍",
            "按原来的次序从左到右、从上到下排，一格是一小段样本。中等的深浅是正好一遍，全白是漏掉，最深是读了两遍。",
            ("",) * GRID_ROWS,
            (),
            tuple(tuple(means[r * GRID_COLUMNS : (r + 1) * GRID_COLUMNS]) for r in range(GRID_ROWS)),
            high=2.0,
        ),
    )


@calculator(
    title="断点续读",
    question="训到一半崩了，续上以后哪些数据读了两遍、哪些再也没读到？",
    chapter="22",
    inputs=(
        choice("saved", "读取器存了什么", "steps", tuple(SAVED), labels=SAVED),
        integer("crash_step", "崩在第几步", 80, "step", low=1, high=100_000, stops=(1, 10, 20, 40, 60, 80, 100, 120, 150)),
        integer("dp_before", "原来几路数据并行", 8, low=1, high=4096, stops=powers_of_two(1, 64)),
        integer("dp_after", "续训几路", 6, low=1, high=4096, stops=(1, 2, 4, 6, 8, 12, 16, 32, 64), help="坏了卡，或者加了卡"),
        integer("per_rank", "每路每步", 8, "sequence", low=1, high=4096, more=True, stops=powers_of_two(1, 64)),
        integer("n_samples", "一轮的样本", 10000, "sequence", low=100, high=100_000, more=True, stops=(1000, 2000, 5000, 10000, 20000, 50000, 100000)),
        integer("workers", "每路 worker", 4, low=1, high=64, more=True, only_if=("saved", ("dispatched",)), stops=(1, 2, 4, 8, 16)),
        integer("prefetch", "每个 worker 预取", 2, low=1, high=16, more=True, only_if=("saved", ("dispatched",)), stops=(1, 2, 4, 8)),
        integer("seed", "随机种子", 0, low=0, high=1_000_000, more=True, stops=(0, 1, 2, 3, 4, 5)),
    ),
    outputs=(
        Output("repeated_pct", "读了两遍", "%", main=True, agreement="band"),
        Output("missed_pct", "再没读到", "%", main=True, agreement="band"),
        Output("repeated", "读了两遍的样本", "sequence", agreement="band"),
        Output("missed", "再没读到的样本", "sequence", agreement="band"),
        Output("resume_at", "从第几条接着读", "sequence", main=True, digits=6),
        Output("consumed", "崩之前读了", "sequence", main=True, digits=6),
        Output("steps_left", "这一轮还剩", "step"),
    ),
    chart=_chart,
    needs=("numpy",),
    formula=(
        "次序 = permutation(种子)；崩之前读了 步数 × 路数 × 每路每步",
        "接着读的位置：存样本数 → 就从那里；存步数 → 步数 × 现在的 batch；存派出去的位置 → 再加 路数 × worker × 预取 × 每路每步",
    ),
    assumptions=("一步的样本按次序轮流分给各路", "崩的那一刻权重和优化器都存好了，只有读取器的状态不同", "读到这一轮的末尾为止"),
    leaves_out="打包缓冲区、打散缓冲区、增强用的随机数：它们没存，续上的样本次序对了，内容也不会一模一样。",
    sources=("PyTorch StatefulDataLoader 的 state_dict 存已交出的批数；读取器的状态要和权重存进同一个检查点", "numpy.random.default_rng(seed).permutation；仿真是本书的"),
)  # fmt: skip
def resume_lab(*, saved: str, crash_step: int, dp_before: int, dp_after: int, per_rank: int, n_samples: int, workers: int, prefetch: int, seed: int) -> Result:
    """Count how often every sample is read."""
    w = Worked()
    each = quantity(per_rank, "sequence")
    batch = w.line("原来一步", quantity(dp_before) * each, "sequence")
    consumed = w.line("崩之前读了", quantity(crash_step) * batch, "sequence")
    if consumed.value > n_samples:
        most = n_samples // (dp_before * per_rank)
        remedy = f"崩在第 {most} 步以前" if most else "把样本改多，或把路数改少"
        raise refuse("crash_step", "崩之前读的不能超过一轮的样本", f"{format_number(consumed.value)} 对 {n_samples}", remedy)
    after = w.line("现在一步", quantity(dp_after) * each, "sequence")
    crash = Crash(round(consumed.value), crash_step, dp_after * per_rank, dp_before * workers * prefetch * per_rank)
    at = min(RESUME_AT[saved](crash), n_samples)
    w.say(f"{SAVED[saved]} → 从第 {format_number(at, digits=9)} 条接着读")
    reads = _times_read(n_samples, crash, saved, seed).tolist()
    repeated, missed = sum(r > 1 for r in reads), sum(r == 0 for r in reads)
    total = quantity(n_samples, "sequence")
    twice = w.line("读了两遍", quantity(repeated, "sequence") / total, "%")
    never = w.line("再没读到", quantity(missed, "sequence") / total, "%")
    left = w.line("这一轮还剩", quantity(max(0, n_samples - at), "sequence") / after, "step")
    return Result(
        values={
            "repeated_pct": twice, "missed_pct": never, "repeated": repeated, "missed": missed,
            "resume_at": at, "consumed": crash.consumed, "steps_left": left,
        },
        lines=w.lines,
        verdict=_verdict(saved, repeated, missed, dp_before != dp_after),
        trace=reads,
    )  # fmt: skip


def _verdict(saved: str, repeated: int, missed: int, resized: bool) -> str:
    if not repeated and not missed:
        if saved == "steps":
            return "一条没多，一条没少：因为 batch 没变。卡数一变，步数就换算不回样本了。"
        return f"一条没多，一条没少{'，换了卡数也一样' if resized and saved == 'all' else ''}。"
    twice = f"{format_number(repeated)} 条读了两遍" if repeated else "没有读两遍的"
    never = f"{format_number(missed)} 条再没读到" if missed else "没有漏的"
    return f"{twice}，{never}，训练照跑，一个错也不报。{REASONS[saved]}"


REASONS = {
    "all": "",
    "weights": "读取器从头再来，崩之前读过的又读一遍。",
    "steps": "步数乘上了新的 batch，位置算错。要存样本数，不要存步数。",
    "dispatched": "派给 worker、还没训的批，跟着进程一起没了。要存训练循环真正用掉的位置。",
    "no_seed": "次序换了一副，旧的位置对不上新的样本。种子和位置要一起存。",
}
