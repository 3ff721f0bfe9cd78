"""A live experiment: the same requests scheduled by batch and by iteration; who waits for whom?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from calculators.core.calculator import Output, Result, Row, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Rule, Series, Span, Timeline
from calculators.core.inputs import choice, integer, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.worked import Worked, quantity
from calculators.formulas.batching import Stay, continuous_schedule, last_step, static_schedule

NAMES = {"constant": "一样长", "uniform": "均匀", "exponential": "指数", "lognormal": "对数正态"}
SIGMA = 1.0
STATIC, CONTINUOUS = "静态", "连续"
MOST_SLOTS = 32
"""Slots that the timelines draw."""
MOST_BLOCKS = 1200
"""Blocks that a timeline draws one by one; beyond it a slot's requests in a row become one block."""
SAMPLES = 120
AT = (0, 1, 50, 100, 200, 300, 400, 600, 800, 1000, 1500, 2000, 3000, 4000, 5000, 6000, 8000, 10_000, 15_000, 20_000)


@dataclass(frozen=True)
class Film:
    """Both schedules; ``until``: the step up to which they are drawn."""

    static: list[Stay]
    continuous: list[Stay]
    until: int


def lengths(dist: str, n: int, mean: int, most: int, seed: int) -> list[int]:
    """Output tokens of each request, between 1 and ``most``."""
    import numpy as np

    rng = np.random.default_rng(seed)
    draw: dict[str, Callable[[], object]] = {
        "constant": lambda: np.full(n, mean),
        "uniform": lambda: rng.integers(1, 2 * mean, n),
        "exponential": lambda: np.ceil(rng.exponential(mean, n)),
        "lognormal": lambda: np.ceil(rng.lognormal(np.log(mean) - SIGMA * SIGMA / 2, SIGMA, n)),
    }
    clipped = np.clip(np.asarray(draw[dist](), dtype=np.float64), 1, most)
    return [int(x) for x in clipped.tolist()]


def _chart(run: Run, *, batch: int, **_: object) -> tuple[Chart, ...]:
    film = run.result.trace
    assert isinstance(film, Film)
    axis = Axis("步", low=0, high=float(film.until))
    slots = min(batch, MOST_SLOTS)
    lanes = tuple(f"槽 {i}" for i in range(slots))
    only = f"只画前 {slots} 个槽。" if slots < batch else ""
    tones = ("一条请求", "同一个槽的下一条")
    return (
        Timeline("静态：一批一批地跑", f"一行是一个槽位，一块是一条请求，空白是空等。整批出完，下一批才进来。{only}", axis, lanes, _spans(film.static, film.until, slots), tones),
        Timeline("连续：出完就换人", f"同一批请求、同样的横轴。右边的空白是已经全部做完。{only}", axis, lanes, _spans(film.continuous, film.until, slots), tones),
        LineChart(
            "每一步有几个槽在干活",
            "静态的每一批都从满槽掉到只剩一条；连续的一直满，直到队列空了才往下掉。",
            Axis("步", low=0, high=float(film.until)),
            Axis("在干活的槽", low=0),
            (
                Series(STATIC, _busy_curve(film.static, film.until)),
                Series(CONTINUOUS, _busy_curve(film.continuous, film.until), emphasis=True),
            ),
            rules=(Rule(f"batch {batch}", y=float(batch)),),
        ),
    )  # fmt: skip


def _spans(stays: Sequence[Stay], until: int, slots: int) -> tuple[Span, ...]:
    shown = [stay for stay in stays if stay.slot < slots and stay.start < until]
    turn = [0] * slots
    spans: list[Span] = []
    if len(shown) > MOST_BLOCKS:
        return _merged(shown, until)
    for stay in shown:
        spans.append(Span(stay.slot, float(stay.start), float(min(stay.end, until)), tone=turn[stay.slot] % 2))
        turn[stay.slot] += 1
    return tuple(spans)


def _merged(shown: Sequence[Stay], until: int) -> tuple[Span, ...]:
    """Requests of a slot that follow each other without a gap, as one block."""
    spans: list[Span] = []
    for stay in sorted(shown, key=lambda s: (s.slot, s.start)):
        end = float(min(stay.end, until))
        if spans and spans[-1].lane == stay.slot and spans[-1].end == stay.start:
            spans[-1] = Span(stay.slot, spans[-1].start, end)
        else:
            spans.append(Span(stay.slot, float(stay.start), end))
    return tuple(spans)


def _busy_curve(stays: Sequence[Stay], until: int) -> tuple[tuple[float, float], ...]:
    """(step, working slots) at sampled steps."""
    steps = sorted({max(1, round(until * i / SAMPLES)) for i in range(SAMPLES + 1)})
    starts, ends = sorted(stay.start for stay in stays), sorted(stay.end for stay in stays)
    points: list[tuple[float, float]] = []
    begun = gone = 0
    for at in steps:
        while begun < len(starts) and starts[begun] < at:
            begun += 1
        while gone < len(ends) and ends[gone] < at:
            gone += 1
        points.append((float(at), float(begun - gone)))
    return tuple(points)


@calculator(
    title="静态对连续批处理",
    question="同样的请求，一批一批地跑，和出完就换人，差多少步？",
    chapter="17",
    inputs=(
        choice("length_dist", "输出长度", "exponential", tuple(NAMES), labels=NAMES),
        integer("batch", "槽位 B", 32, low=1, high=512, stops=powers_of_two(1, 512)),
        integer("n_requests", "请求数", 512, "request", low=1, high=5000, stops=(1, 8, 32, 64, 128, 256, 512, 1024, 2048, 5000)),
        integer("mean_tokens", "平均输出", 256, "token", low=2, high=4096, kind="tokens", more=True, stops=powers_of_two(2, 4096)),
        integer("max_tokens", "最长输出", 2048, "token", low=2, high=32768, kind="tokens", more=True, stops=powers_of_two(2, 32768), help="max_tokens：到了就截断"),
        integer("at_step", "看到第几步", 0, "step", low=0, high=200_000_000, stops=AT, help="拖动一步步看；0：画到底"),
        integer("seed", "随机种子", 0, low=0, high=1_000_000, stops=(0, 1, 2, 3, 4)),
    ),
    outputs=(
        Output("speedup", "连续快", "×", main=True, agreement="band"),
        Output("static_steps", "静态要", "step", main=True, agreement="band", digits=6),
        Output("continuous_steps", "连续要", "step", main=True, agreement="band", digits=6),
        Output("static_util_pct", "静态：在干活的槽位", "%", main=True, agreement="band"),
        Output("continuous_util_pct", "连续：在干活的槽位", "%", main=True, agreement="band"),
        Output("total_tokens", "一共出了", "token", agreement="band", digits=6),
        Output("static_wait_steps", "静态：平均排多久才进槽", "step", agreement="band"),
        Output("continuous_wait_steps", "连续：平均排多久才进槽", "step", agreement="band"),
        Output(
            "at", "那一步的状态", agreement="band",
            columns=(("schedule", "调度", ""), ("step", "第几步", "step"), ("busy", "在出 token", ""), ("idle", "空等的槽", ""), ("waiting", "排队", ""), ("done", "已出完", "")),
        ),
    ),
    chart=_chart,
    needs=("numpy",),
    formula=(
        "静态：按到达的次序每 B 条一批，一批的步数 = 最长的那条",
        "连续：下一条进最早空出来的槽",
        "在干活的槽位 = token 总数 ÷ (B × 步数)",
    ),
    assumptions=("请求在开始时全部到齐", "对数正态 σ = 1；长度都截在 1 和最长输出之间", "一步里每条出一个 token；状态表没选第几步时，取连续收工的那一步"),
    leaves_out="两边的一步算一样长（真实的步随 batch 和上下文变长）；不算 prefill 的步，不按 KV 池准入。",
    sources=("Yu et al. 2022（Orca，OSDI）的迭代级调度", "numpy.random.default_rng(seed)：exponential、integers、lognormal"),
)  # fmt: skip
def batching_sim(*, length_dist: str, batch: int, n_requests: int, mean_tokens: int, max_tokens: int, at_step: int, seed: int) -> Result:
    """List scheduling against batches that end together."""
    tokens = lengths(length_dist, n_requests, mean_tokens, max_tokens, seed)
    static, continuous = static_schedule(tokens, batch), continuous_schedule(tokens, batch)
    ends = last_step(static), last_step(continuous)
    total = sum(tokens)
    until = min(at_step, ends[0]) if at_step else ends[0]
    shown = min(at_step, ends[0]) if at_step else ends[1]

    rows = [_state(STATIC, static, shown, batch), _state(CONTINUOUS, continuous, shown, batch)]
    seen = (
        f"第 {shown} 步：" + "，".join(f"{row['schedule']}有 {row['busy']} 个槽在出 token、{row['waiting']} 条在排队" for row in rows) + "。" if at_step else ""
    )

    w = Worked()
    w.say(f"{n_requests} 条，种子 {seed} → 共 {format_number(total, digits=9)} token，最长 {format_number(max(tokens), digits=9)}")
    w.say(f"{-(-n_requests // batch)} 批，每批等最长的 → {format_number(ends[0], digits=9)} 步")
    w.say(f"出完就换下一条 → {format_number(ends[1], digits=9)} 步")
    slow, fast, slots, work = quantity(ends[0], digits=9), quantity(ends[1], digits=9), quantity(batch), quantity(total, digits=9)
    speedup = w.line("连续快", slow / fast, "×")
    static_util = w.line("静态在干活的槽位", work / (slots * slow), "%")
    continuous_util = w.line("连续在干活的槽位", work / (slots * fast), "%")
    return Result(
        values={
            "speedup": speedup, "static_steps": ends[0], "continuous_steps": ends[1], "static_util_pct": static_util, "continuous_util_pct": continuous_util,
            "total_tokens": total, "static_wait_steps": _mean_wait(static), "continuous_wait_steps": _mean_wait(continuous),
            "at": rows,
        },
        lines=w.lines,
        verdict=seen + _verdict(ends, tokens, batch, static_util.text, continuous_util.text, speedup.text),
        trace=Film(static, continuous, until),
    )  # fmt: skip


def _mean_wait(stays: Sequence[Stay]) -> float:
    return sum(stay.start for stay in stays) / len(stays)


def _state(name: str, stays: Sequence[Stay], at: int, batch: int) -> Row:
    """During step ``at``: who is in a slot, who waits, who has left."""
    busy = sum(stay.start < at <= stay.end for stay in stays)
    waiting = sum(stay.start >= at for stay in stays)
    return {"schedule": name, "step": at, "busy": busy, "idle": batch - busy, "waiting": waiting, "done": len(stays) - busy - waiting}


def _verdict(ends: tuple[int, int], tokens: Sequence[int], batch: int, static_util: str, continuous_util: str, speedup: str) -> str:
    n, total, alike = len(tokens), sum(tokens), len(set(tokens)) == 1
    if n <= batch:
        return f"{n} 条一次全进了槽，没有人排队：两种调度一样，都是 {format_number(ends[0], digits=9)} 步。请求比槽位多，才分得出高下。"
    if batch == 1:
        return f"只有一个槽，两种调度都是一条接一条，{format_number(ends[0], digits=9)} 步。"
    if alike:
        return f"输出一样长，两种调度都是 {format_number(ends[0], digits=9)} 步：拿固定长度压测，连续批处理看上去一点用也没有。"
    if ends[0] <= ends[1]:
        return f"两种调度都要 {format_number(ends[1], digits=9)} 步：这一批请求里，没有哪一批等出了空来。"
    tail = "剩下的空是收尾：队列空了，没人来补。" if total < ends[1] * batch else ""
    return f"同样的请求，静态走的步数是连续的 {speedup}：槽位从 {static_util} 在干活，到 {continuous_util}。{tail}"
