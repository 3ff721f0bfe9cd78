"""A live experiment: workers prepare batches, the GPU takes them.  How long does it wait, and for which batch?"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Rule, Series, Span, Timeline
from calculators.core.inputs import flag, integer, linear_stops, log_stops, number
from calculators.core.numbers import format_number
from calculators.core.worked import Worked, ceil, quantity
from calculators.formulas.dataloader import Delivery, deliver, fewest_workers, utilisation

MOST_WORKERS, MOST_PREFETCH = 64, 16
ENOUGH = 0.95
CURVE_WORKERS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32, 48, 64)
SPREADS = (0.0, 0.5, 1.5)
CURVE_BATCHES = 30_000
"""Batches that all curves together may simulate, so that a browser stays quick."""
SHOWN_WORKERS = 12
AROUND = 8
"""Training steps that the timeline shows before and after the wait."""
TONES = ("准备一批", "全场在等的那一批", "训练一步", "GPU 空等")


@dataclass(frozen=True)
class Film:
    """The run, the batches' seconds, and the step whose wait is shown."""

    delivery: Delivery
    loads: list[float]
    step: int
    from_: float


def loads_of(mean: float, cv: float, n: int, seed: int) -> list[float]:
    """Seconds that each batch takes one worker: mean ``mean``, standard deviation ``cv`` × ``mean``."""
    import numpy as np

    variance = math.log1p(cv * cv)
    drawn = np.random.default_rng(seed).lognormal(math.log(mean) - variance / 2, math.sqrt(variance), n)
    return [float(x) for x in drawn.tolist()]


def _chart(
    run: Run, *, t_batch: float, t_step: float, workers: int, prefetch: int, cv: float, in_order: bool, iterations: int, seed: int, **_: object
) -> tuple[Chart, ...]:
    film = run.result.trace
    assert isinstance(film, Film)
    spreads = SPREADS if cv in SPREADS else (SPREADS[0], SPREADS[-1], cv)
    counts = sorted({*CURVE_WORKERS, workers} - {0})
    budget = CURVE_BATCHES if in_order else CURVE_BATCHES // 2  # its queues cost twice the time
    batches = max(100, min(iterations, budget // (len(counts) * len(spreads))))
    series = []
    for spread in spreads:
        loads = loads_of(t_batch, spread, batches, seed)
        points = tuple((float(n), 100 * utilisation(deliver(loads, n, prefetch, t_step, in_order), t_step)) for n in counts)
        series.append(Series(f"cv {format_number(spread)}", points, emphasis=spread == cv))
    marks = (Mark("现在", float(workers), 100 * float(run.values["gpu_util_frac"]), emphasis=True),) if workers else ()  # type: ignore[arg-type]
    return (
        _timeline(film, t_step, workers),
        LineChart(
            "加 worker，GPU 能忙到几成",
            f"横轴是对数。不抖的线到平均够用就满；抖得越厉害，爬得越慢。每个点跑 {batches} 批。",
            Axis("worker", log=True),
            Axis("GPU 在训练", "%", low=0, high=100),
            tuple(series),
            marks=marks,
            rules=(Rule("95%", y=100 * ENOUGH),),
        ),
    )  # fmt: skip


def _timeline(film: Film, t_step: float, workers: int) -> Timeline:
    """The workers and the GPU around one wait."""
    d, k = film.delivery, film.step
    low = film.from_
    high = d.takes[k] + AROUND * t_step
    late = d.order[k]
    shown = min(max(workers, 1), SHOWN_WORKERS)
    late_shown = d.owners[late] < shown  # otherwise it takes the last lane: it has to be seen
    lanes = list(range(shown)) if late_shown else [*range(shown - 1), d.owners[late]]
    row = {worker: i for i, worker in enumerate(lanes)}
    spans = [
        Span(row[owner], max(start, low), min(start + load, high), tone=1 if i == late else 0)
        for i, (start, load, owner) in enumerate(zip(d.starts, film.loads, d.owners, strict=True))
        if owner in row and start < high and start + load > low
    ]
    gpu, end = len(lanes), max(low, d.takes[k - 1] + t_step) if k else 0.0
    first = bisect_right(d.takes, low - t_step)
    end = d.takes[first - 1] + t_step if first else 0.0
    for take in d.takes[first:]:
        if end >= high:
            break
        if take > max(end, low):
            spans.append(Span(gpu, max(end, low), min(take, high), tone=3))
        if take < high:
            spans.append(Span(gpu, max(take, low), min(take + t_step, high), tone=2))
        end = take + t_step
    names = tuple(f"worker {n}" for n in lanes) if workers else ("主进程",)
    hidden = f"共 {workers} 个 worker，只画 {shown} 个。" if workers > shown else ""
    return Timeline(
        f"第 {k} 步附近：GPU 在等谁",
        f"上面每行一个 worker，一块是一批；最下面一行是 GPU。别的 worker 停着，多半是预取已满、轮不到新的一批。{hidden}",
        Axis("时间", "s", low=low, high=high),
        (*names, "GPU"),
        tuple(spans),
        TONES,
    )


@calculator(
    title="worker、预取与抖动",
    question="worker 开几个，GPU 才不等数据？",
    chapter="22",
    inputs=(
        integer("workers", "worker", 6, low=0, high=MOST_WORKERS, stops=(0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 48, 64), help="0：主进程自己读"),
        number("cv", "抖动 cv", 0.5, low=0, high=3, stops=linear_stops(0, 3, 0.1), help="一批的时间：标准差 ÷ 平均；0 是每批一样"),
        number("t_batch", "一个 worker 做一批", 2.0, "s", low=0.001, high=100, kind="seconds", stops=log_stops(0.01, 100, 10)),
        number("t_step", "训练一步", 0.4, "s", low=0.001, high=100, kind="seconds", stops=log_stops(0.01, 100, 10)),
        integer("prefetch", "每个 worker 预取", 2, low=1, high=MOST_PREFETCH, stops=(1, 2, 3, 4, 6, 8, 12, 16), help="prefetch_factor"),
        flag("in_order", "按次序取", True, help="关掉：哪一批先好先用哪一批"),
        integer("at_step", "看第几步", 0, "step", low=0, high=5000, more=True, stops=(0, 1, 50, 100, 500, 1000, 1500, 1999), help="0：开头之后等得最久的一步"),
        integer("iterations", "跑几批", 2000, low=100, high=5000, more=True, stops=(100, 500, 1000, 2000, 5000)),
        integer("seed", "随机种子", 0, low=0, high=1_000_000, more=True, stops=(0, 1, 2, 3, 4, 5)),
    ),
    outputs=(
        Output("gpu_util_pct", "GPU 在训练的时间", "%", main=True, agreement="band"),
        Output("stall_pct", "等数据的时间", "%", main=True, agreement="band"),
        Output("workers_mean_rule", "按平均要几个 worker", main=True),
        Output("workers_for_95", "要到 95% 得几个", main=True, agreement="band"),
        Output("waits", "等过的步数", "step", agreement="band"),
        Output("longest_wait_s", "最久的一次等", "s", agreement="band"),
        Output("ready_meanwhile", "那时已经备好、没轮到的批", agreement="band"),
        Output("gpu_util_frac", "GPU 在训练（比例）", agreement="band"),
        Output("stall_frac", "等数据（比例）", agreement="band"),
    ),
    chart=_chart,
    needs=("numpy",),
    formula=(
        "第 i 批归 worker i mod n；那个 worker 空了、且第 i − 预取 × n 批已被取走，才开工",
        "取走的时刻 = max(这一批做好，上一步训完)",
        "在训练的时间 = 批数 × 每步 ÷ 最后一步训完的时刻；按平均要的 worker = ⌈做一批 ÷ 每步⌉",
    ),
    assumptions=("一批的时间是对数正态，互相独立", "每步的时间不变", "不按次序时，取走一批补一批，轮流给手上不满的 worker；排在慢批后面的也得等"),
    leaves_out="worker 之间抢磁盘、抢 CPU（开得越多，每个越慢），锁页和拷到 GPU 的时间，整个 epoch 开头重建 worker 的时间。",
    sources=("派活的规则：PyTorch DataLoader 的 _try_put_index（num_workers、prefetch_factor、in_order）", "numpy.random.default_rng(seed).lognormal；仿真是本书的"),
)  # fmt: skip
def dataloader_lab(
    *, workers: int, cv: float, t_batch: float, t_step: float, prefetch: int, in_order: bool, at_step: int, iterations: int, seed: int
) -> Result:
    """Simulate the hand-over batch by batch."""
    loads = loads_of(t_batch, cv, iterations, seed)
    d = deliver(loads, workers, prefetch, t_step, in_order)
    util = utilisation(d, t_step)
    ends = [0.0, *(take + t_step for take in d.takes)]
    waits = [take - end for take, end in zip(d.takes, ends, strict=False)]
    warm = min(iterations - 1, max(1, workers * prefetch))
    worst = max(range(warm, iterations), key=waits.__getitem__)
    step = min(at_step, iterations - 1) if at_step else worst
    deeper = min(2 * prefetch, MOST_PREFETCH)
    deep_util = utilisation(deliver(loads, workers, deeper, t_step, in_order), t_step)
    needed = fewest_workers(loads, prefetch, t_step, ENOUGH, MOST_WORKERS, in_order)
    late = d.takes[worst]
    taken = set(d.order[: worst + 1])
    ready = sum(i not in taken and start + load <= late for i, (start, load) in enumerate(zip(d.starts, loads, strict=True)) if start < late)

    w = Worked()
    w.say(f"抽 {iterations} 批 → 平均 {format_number(math.fsum(loads) / iterations)} 秒，最慢 {format_number(max(loads))} 秒")
    total = quantity(d.takes[-1] + t_step, "s")
    w.say(f"一批一批地走 → 全程 {total.text}")
    busy = w.line("GPU 在训练的时间", quantity(iterations) * quantity(t_step, "s") / total, "%")
    stall = w.line("等数据的时间", quantity(100, "%") - busy, "%")
    rule = w.line("按平均要", ceil(quantity(t_batch, "s") / quantity(t_step, "s")))
    w.say(f"worker 从少到多各跑一遍 → 到 95% {f'要 {needed} 个' if needed else f'{MOST_WORKERS} 个也不够'}")
    film = Film(d, loads, step, max(0.0, min(d.starts[d.order[step]], d.takes[step] - AROUND * t_step)))
    return Result(
        values={
            "gpu_util_pct": busy, "stall_pct": stall, "gpu_util_frac": util, "stall_frac": stall.value, "workers_mean_rule": int(rule.value), "workers_for_95": needed,
            "waits": sum(wait > 1e-9 for wait in waits), "longest_wait_s": waits[worst], "ready_meanwhile": ready,
        },
        lines=w.lines,
        verdict=_verdict(util, workers, int(rule.value), needed, _blame(waits, worst, ready, in_order and cv > 0), _remedy(needed, util, deep_util, deeper)),
        trace=film,
    )  # fmt: skip


def _percent(share: float) -> str:
    return quantity(100 * share, "%", 3).text


def _blame(waits: Sequence[float], worst: int, ready: int, queues: bool) -> str:
    """What the GPU waited for, when the mean would do."""
    if waits[0] > math.fsum(waits) / 2:
        return ""
    blocked = f"，那时另有 {ready} 批早做好了，轮不到" if queues and ready else ""
    return f"最久的一次等了 {format_number(waits[worst], digits=3)} 秒{blocked}"


def _verdict(util: float, workers: int, rule: int, needed: int | None, blame: str, remedy: str) -> str:
    seen = f"GPU 有 {_percent(1 - util)} 的时间在等数据"
    if workers == 0:
        return f"{seen}：读和训轮流来，谁也不和谁重叠。开 worker。"
    if util >= ENOUGH:
        return f"{seen}，{workers} 个 worker 够了{f'；{needed} 个就到 95%' if needed and needed < workers else ''}。"
    if workers < rule:
        return f"{seen}：平均就供不上，{workers} 个不到 {format_number(rule)} 个。{remedy}"
    if not blame:
        return f"{seen}：大半是开头等第一批，跑得久就摊薄了。"
    return f"{seen}：平均够，抖动不够。{blame}。{remedy}"


def _remedy(needed: int | None, util: float, deep_util: float, deeper: int) -> str:
    """What brings training to 95 %: more workers, or a deeper queue when that helps."""
    more = f"要到 95%，得 {needed} 个 worker" if needed else f"{MOST_WORKERS} 个 worker 也到不了 95%：先把一批做快，或者把抖动压下去"
    return f"{more}；worker 不加，预取改成 {deeper}，能到 {_percent(deep_util)}。" if deep_util > util + 0.01 else f"{more}。"
