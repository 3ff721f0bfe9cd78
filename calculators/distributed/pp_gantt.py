"""A live experiment: run a pipeline schedule operation by operation and look at who waits and who holds what."""

from __future__ import annotations

import math
from dataclasses import dataclass

from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, Grid, Span, Timeline
from calculators.core.errors import refuse
from calculators.core.inputs import choice, integer, number, text
from calculators.core.lists import read_numbers
from calculators.core.numbers import format_number
from calculators.core.worked import Worked, quantity
from calculators.formulas.pipeline import SCHEDULES, check_schedule, idle_time
from calculators.formulas.schedules import CHUNKS, ORDERS, SPLIT, Done, Film, held, lengths, peak, simulate, step_time

LABELS = {**{name: SCHEDULES[name] for name in ORDERS}, **{name: f"{SCHEDULES[name]}（零气泡）" for name in SPLIT}}
TONES = {"F": 0, "B": 1, "W": 2}
NAMES = {"F": "前向", "B": "反向", "W": "反向 W（权重的梯度）"}
WANTS = {
    "zb1p": "它要微批不少于段数，W 不比 F 和 B 长",
    "zb2p": "它要微批不少于 2p − 1，F、B、W 一样长",
    "zbv": "它要微批不少于 2p − 1，F、B、W 一样长",
}
"""What the closed form takes for granted."""
MOST_DRAWN = 256
"""Blocks a rank that the chart draws one by one; beyond it they are thinner than a hair and neighbours melt into one."""
COLUMNS = 20
NOTHING = 1e-9
"""A relative difference that only rounding makes."""


@dataclass(frozen=True)
class Trace:
    """The step as it ran; ``v`` chunks on each rank."""

    film: Film
    v: int


def _chart(run: Run, *, microbatches: int, schedule: str, **_: object) -> tuple[Chart, ...]:
    trace = run.result.trace
    assert isinstance(trace, Trace)
    film, v = trace.film, trace.v
    ends = max(done[-1].end for done in film)
    peaks = [peak(schedule, done, v) for done in film]
    names = tuple(f"卡 {i}" for i in range(len(film)))
    backward = "反向 B（输入的梯度）" if schedule in SPLIT else NAMES["B"]
    tones = (NAMES["F"], backward, *((NAMES["W"],) if schedule in SPLIT else ()))
    if len(film[0]) <= MOST_DRAWN:
        spans = tuple(Span(i, op.start, op.end, str(op.micro_batch + 1), TONES[op.kind]) for i, done in enumerate(film) for op in done)
    else:
        spans, tones = tuple(Span(i, start, end) for i, done in enumerate(film) for start, end in _busy(done)), ("在忙（微批太多，连着的并成一块）",)
    width = ends / COLUMNS
    levels = tuple(_levels(held(schedule, done, v), width) for done in film)
    darkest = min(microbatches, 4 * len(film))
    rows = tuple(f"卡 {i}：{format_number(most)}" for i, most in enumerate(peaks))
    return (
        Timeline("谁在什么时候忙", "一行是一张卡，一块是一件活，数字是第几个微批。空白就是气泡。", Axis("时间"), names, spans, tones),
        Grid("各卡攒着几个微批的激活", f"横着还是上面那段时间。越深攒得越多，最深是 {darkest} 个微批{'' if darkest == microbatches else '或更多'}；行名后面是最多攒几个。", rows, ("",) * COLUMNS, levels, low=0, high=float(darkest)),
    )  # fmt: skip


def _busy(done: list[Done]) -> list[tuple[float, float]]:
    """Stretches without a gap."""
    out: list[tuple[float, float]] = []
    for op in done:
        if out and math.isclose(out[-1][1], op.start, rel_tol=1e-9):
            out[-1] = (out[-1][0], op.end)
        else:
            out.append((op.start, op.end))
    return out


def _levels(steps: list[tuple[float, float]], width: float) -> tuple[float | None, ...]:
    """The most that is held within each column of the heat map; nothing held stays blank."""
    out: list[float | None] = []
    level, at = 0.0, 0
    for column in range(COLUMNS):
        most = level
        while at < len(steps) and steps[at][0] < (column + 1) * width * (1 - 1e-9):
            level = steps[at][1]
            most = max(most, level)
            at += 1
        out.append(most or None)
    return tuple(out)


@calculator(
    title="流水线甘特图模拟器",
    question="换一种调度、多几个微批、慢一张卡，流水线哪里空着，各卡攒着几份激活？",
    chapter="13",
    inputs=(
        choice("schedule", "调度", "1f1b", tuple(ORDERS), labels=LABELS),
        integer("pp", "流水段数 p", 8, low=2, high=16, stops=(2, 3, 4, 6, 8, 12, 16)),
        integer("microbatches", "微批数 m", 32, low=1, high=128, stops=(1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128)),
        integer("virtual_stages", "每卡几块 v", 1, low=1, high=4, stops=(1, 2, 3, 4), only_if=("schedule", ("interleaved",))),
        number("p2p", "传一次激活", 0, low=0, high=10, stops=(0, 0.1, 0.2, 0.5, 1, 2, 5, 10), help="每次跨卡多等这么久"),
        text("stage_scale", "各卡快慢", longest=300, placeholder="1, 1, 1, 1, 1, 1, 1, 1.5", help="一张卡一个倍数，几张写几个；空着：都是 1"),
        number("t_f", "前向", 1, low=0.01, high=100, more=True, stops=(0.5, 1, 1.5, 2, 3)),
        number("t_b", "整个反向", 2, low=0.01, high=100, more=True, stops=(1, 1.5, 2, 2.5, 3, 4), help="一张卡一个微批的；分成 v 块时每块占 1/v"),
        number("t_w", "其中 W", None, low=0, high=100, low_open=True, more=True, only_if=("schedule", SPLIT), help="权重的梯度；空着：整个反向的一半"),
    ),
    outputs=(
        Output("makespan_units", "一步的时长", main=True),
        Output("bubble_fraction_pct", "气泡占全程", "%", main=True),
        Output("peak_in_flight", "各卡最多攒几个微批", main=True),
        Output("peak_first_stage", "卡 0 最多攒", main=True),
        Output("with_sync_units", "步末要等全体的话"),
        Output("one_f_one_b_units", "同样的输入，1F1B 要"),
        Output("gpipe_units", "同样的输入，GPipe 要"),
        Output("closed_form_units", "公式给的时长"),
    ),
    chart=_chart,
    formula=(
        "卡空了、要的东西也到齐了，一件活就开始：F(i) 等 F(i − 1)，B(i) 等 B(i + 1)，最后一张卡的 B 等自己的 F；跨卡再加传输",
        "热身的前向数：1F1B p − i − 1；交错 2(p − i − 1) + (v − 1)p；ZB2P 2(p − i) − 1；ZB1P 同 1F1B，卡 i 把 i 个 W 往后挪",
        "气泡占全程 = 各卡空等的平均 ÷ 一步的时长",
    ),
    assumptions=("一步的时长：一张卡从第一件活到最后一件活，取最长的那张；步末不等全体时，下一步就能隔这么久跟上", "攒着：做了前向、还没做完反向的微批；W 单独做时，到 W 做完才放"),
    leaves_out="通信和计算不抢资源，各微批一样长；不画 DualPipe（两个方向、前向反向叠着跑）。真实的 kernel 时长有抖动，气泡通常再多 2 到 8 个百分点。",
    sources=("Huang et al. 2019（GPipe）", "Narayanan et al. 2021 §2.2，Megatron-LM 的热身公式", "Qi et al. 2023（Zero Bubble）：ZB-H1、ZB-H2、ZBV", "torch.distributed.pipelining：ScheduleZBVZeroBubble 的次序"),
)  # fmt: skip
def pp_gantt(
    *, pp: int, microbatches: int, virtual_stages: int, schedule: str, t_f: float, t_b: float, t_w: float | None, p2p: float, stage_scale: str
) -> Result:
    """List scheduling with a fixed order on each rank."""
    check_schedule(schedule, pp, microbatches)
    scale = _scale(stage_scale, pp)
    t_w = _weights_part(schedule, t_b, t_w)
    v = CHUNKS.get(schedule, virtual_stages)

    def ran(name: str) -> Film:
        return simulate(name, pp, microbatches, virtual_stages if name == schedule else 1, lengths(name, t_f, t_b, t_w), scale, p2p)

    film = ran(schedule)
    makespan, synced = step_time(film), max(done[-1].end for done in film)
    peaks = [_whole(peak(schedule, done, v)) for done in film]
    rivals = {name: makespan if name == schedule else step_time(ran(name)) for name in ("1f1b", "gpipe")}
    even = p2p == 0 and len(set(scale)) == 1
    formula = scale[0] * _closed_form(schedule, pp, microbatches, v, t_f, t_b, t_w) if even else None

    w = Worked()
    w.say(f"按次序走完 {sum(map(len, film))} 件活 → 一步 {format_number(makespan, digits=6)}")
    work = quantity(microbatches) * (quantity(t_f) + quantity(t_b))
    if set(scale) != {1.0}:
        work = work * quantity(sum(scale) / pp)
    busy = w.line("各卡平均在忙", work)
    share = quantity(0, "%")
    if makespan - busy.value > NOTHING * makespan:
        share = w.line("气泡占全程", (quantity(makespan) - busy) / quantity(makespan), "%")
    else:
        w.say("平均空等 → 0")
    if formula is not None:
        w.say(f"公式给的时长 → {format_number(formula, digits=6)}")
    return Result(
        values={
            "makespan_units": makespan, "bubble_fraction_pct": share, "peak_in_flight": peaks, "peak_first_stage": peaks[0], "with_sync_units": synced,
            "one_f_one_b_units": rivals["1f1b"], "gpipe_units": rivals["gpipe"], "closed_form_units": formula,
        },
        lines=w.lines,
        verdict=f"一步 {format_number(makespan)}，空等 {share.text}；卡 0 最多攒 {format_number(peaks[0])} 个微批的激活。"
        + _compared(schedule, makespan, rivals, min(pp, microbatches), microbatches) + _reason(schedule, scale, p2p, makespan, formula) + _synced(makespan, synced),
        resolved={"t_w": t_w} if schedule in SPLIT else {},
        trace=Trace(film, v),
    )  # fmt: skip


def _scale(typed: str, p: int) -> tuple[float, ...]:
    if not typed:
        return (1.0,) * p
    found = read_numbers("stage_scale", "各卡快慢", typed, low=0.001, high=1000)
    if len(found) != p:
        raise refuse("stage_scale", "各卡快慢必须一张卡一个数", f"{len(found)} 个数，{p} 张卡", f"写 {p} 个，用逗号隔开，或清空")
    return found


def _weights_part(schedule: str, t_b: float, t_w: float | None) -> float:
    part = t_b / 2 if t_w is None else t_w
    if schedule in SPLIT and part >= t_b:
        raise refuse("t_w", "其中 W必须小于整个反向", f"{format_number(part)} 对 {format_number(t_b)}", f"例如 {format_number(t_b / 2)}")
    return part


def _closed_form(schedule: str, p: int, m: int, v: int, t_f: float, t_b: float, t_w: float) -> float:
    work = t_f + t_b
    return m * work + max(idle_time(schedule, float(p), float(v), t_f, t_b - t_w, t_w, work), 0.0)


def _whole(x: float) -> float:
    return int(x) if x.is_integer() else x


def _compared(schedule: str, makespan: float, rivals: dict[str, float], p_or_m: int, m: int) -> str:
    other = "gpipe" if schedule == "1f1b" else "1f1b"
    name, rival, holds = SCHEDULES[other], rivals[other], m if other == "gpipe" else p_or_m
    held_too = f"攒 {holds} 个"
    if math.isclose(rival, makespan, rel_tol=NOTHING):
        if schedule in ("1f1b", "gpipe") and p_or_m == m:
            return f"{name} 一样长，攒得也一样多：微批不比段数多。"
        return f"{name} 一样长，{held_too}。"
    return f"{name} 要 {format_number(rival)}，{held_too}。"


def _reason(schedule: str, scale: tuple[float, ...], p2p: float, makespan: float, formula: float | None) -> str:
    if formula is not None:
        if math.isclose(makespan, formula, rel_tol=NOTHING):
            return "和公式一样。"
        return f"公式说 {format_number(formula)}，这里到不了：{WANTS.get(schedule, '')}。"
    said = ""
    if len(set(scale)) > 1:
        slowest = scale.index(max(scale))
        said += f"卡 {slowest} 最慢，是 {format_number(scale[slowest])} 倍，别的卡都跟着它的节拍等。"
    if p2p:
        said += f"每次跨卡多等 {format_number(p2p)}，去一趟回一趟都算进了缝里。"
    return said


def _synced(makespan: float, synced: float) -> str:
    if synced - makespan <= NOTHING * makespan:
        return ""
    return f"这是步末谁也不等谁；要是等全体求一次梯度范数，一步就是 {format_number(synced)}。"
