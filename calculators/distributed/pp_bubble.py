"""How much of a step do the cards of a pipeline wait, and how many micro-batches does it take to wait less?"""

from __future__ import annotations

from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Series
from calculators.core.inputs import choice, integer, number, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.worked import Quantity, Worked, ceil, larger, quantity
from calculators.formulas.pipeline import NO_BUBBLE, SCHEDULES, SPLITS_BACKWARD, bubble_fraction, check_schedule, idle_time

LABELS = {**SCHEDULES, "interleaved": "交错 1F1B（虚拟流水线）", "zb1p": "ZB1P（ZB-H1）", "zb2p": "ZB2P（ZB-H2）"}
ALWAYS_DRAWN = {"1f1b": "GPipe、1F1B", "interleaved": "交错，v = {v}", "zb1p": "ZB1P"}
"""Curves to compare with: schedule → name."""


def _chart(run: Run, *, pp: int, microbatches: int, virtual_stages: int, schedule: str, t_f: float, t_b: float, t_w: float, **_: object) -> tuple[Chart, ...]:
    if pp == 1:
        return ()
    fb = float(run.inputs["t_fb_overlap"] or t_f + t_b + t_w)
    v = virtual_stages if schedule == "interleaved" else 4
    work = t_f + t_b + t_w
    last = max(16 * pp, microbatches)
    counts = sorted({round(pp * (last / pp) ** (k / 32)) for k in range(33)} | {microbatches})

    def curve(name: str) -> tuple[tuple[float, float], ...]:
        idle = max(idle_time(name, float(pp), float(v), t_f, t_b, t_w, fb), 0.0)
        return tuple((float(m), 100 * bubble_fraction(idle, m * work)) for m in counts)

    here = "1f1b" if schedule == "gpipe" else schedule
    shown = {**ALWAYS_DRAWN, here: ALWAYS_DRAWN.get(here, SCHEDULES[here])}
    return (
        LineChart(
            "微批越多，气泡越小",
            "横轴是对数。微批翻倍，气泡大约减半；换调度，整条线往下挪。",
            Axis("微批数 m", log=True),
            Axis("气泡占全程", "%", low=0),
            tuple(Series(label.format(v=v), curve(name), emphasis=name == here) for name, label in shown.items()),
            marks=(Mark("现在", float(microbatches), float(run.values["bubble_fraction_pct"]), emphasis=True),),  # type: ignore[arg-type]
        ),
    )


@calculator(
    title="流水线的气泡",
    question="p 段流水线、m 个微批，一步里有多少时间在空等？要多少微批才降到目标？",
    chapter="13",
    inputs=(
        choice("schedule", "调度", "1f1b", tuple(SCHEDULES), labels=LABELS),
        integer("pp", "流水段数 p", 8, low=1, high=256, stops=powers_of_two(1, 64)),
        integer("microbatches", "微批数 m", 32, low=1, high=8192, stops=powers_of_two(1, 1024), help="一步里每条流水线要过的 micro-batch"),
        integer("virtual_stages", "每卡几块 v", 1, low=1, high=16, stops=(1, 2, 3, 4, 6, 8, 16), only_if=("schedule", ("interleaved",)), help="交错时一张卡分到的层块数"),
        number("target_pct", "想降到全程的", 5, "%", low=0.1, high=90, stops=(0.5, 1, 2, 3, 5, 10, 20, 30, 50)),
        number("t_f", "前向 F", 1, low=0.01, high=100, more=True, help="每微批每段的时间，单位随意，几项一致就行"),
        number("t_b", "反向 B：对输入", 1, low=0.01, high=100, more=True, help="只算输入梯度的一半；DualPipe 的表把 B 写成整个反向"),
        number("t_w", "反向 W：对权重", 1, low=0.01, high=100, more=True),
        number("t_fb_overlap", "F 和反向叠着跑", None, low=0, high=300, low_open=True, more=True, only_if=("schedule", ("dualpipe",)), help="空着：F + B + W，也就是没有重叠"),
    ),
    outputs=(
        Output("bubble_ratio_pct", "气泡 ÷ 理想时间", "%", main=True),
        Output("bubble_fraction_pct", "气泡 ÷ 全程", "%", main=True),
        Output("min_microbatches", "降到目标要的微批", main=True),
        Output("idle_units", "每张卡空等", main=True),
        Output("makespan_units", "一步的时长"),
        Output("idle_vs_1f1b", "是 1F1B 气泡的", "×"),
    ),
    chart=_chart,
    formula=(
        "空等：GPipe、1F1B = (p − 1)(F + B + W)；交错再除以 v；ZB1P = (p − 1)(F + B − W)；ZB2P、ZBV = 0",
        "DualPipe = (p ÷ 2 − 1)(F&反向 + (B + W) − 3W)",
        "÷ 理想 = 空等 ÷ m(F + B + W)（Megatron 的口径）；÷ 全程 = 空等 ÷ (空等 + m(F + B + W))（GPipe 的口径）",
    ),
    assumptions=("各段一样快，传激活不花时间", "B 只是输入梯度，W 是权重梯度；零气泡那几种要 m 够多（ZB1P：m ≥ p；ZB2P、ZBV：m ≥ 2p − 1）"),
    leaves_out="不算段间传输、各段快慢不一、优化器同步：ZB2P、ZBV 的零要求步末不等全局梯度范数，保留它，作者量到慢约 8%。真实的气泡通常比这里多 2 到 8 个百分点。",
    sources=("Huang et al. 2019（GPipe）§2.3", "Narayanan et al. 2021 §2.2", "Qi et al. 2023（Zero Bubble）和仓库 README", "deepseek-ai/DualPipe README；DeepSeek-V3 技术报告表 2"),
)  # fmt: skip
def pp_bubble(
    *, pp: int, microbatches: int, virtual_stages: int, schedule: str, t_f: float, t_b: float, t_w: float, t_fb_overlap: float | None, target_pct: float
) -> Result:
    """Closed forms of the idle time; the schedules themselves are simulated by pp-gantt."""
    check_schedule(schedule, pp, microbatches)
    w = Worked()
    stages, m, v, f, b, weights = (quantity(x) for x in (pp, microbatches, virtual_stages, t_f, t_b, t_w))
    one = w.line("一个微批的工作", f + b + weights)
    work = w.line("理想的一步", m * one)
    both = t_f + t_b + t_w if t_fb_overlap is None else t_fb_overlap
    idle = _idle(w, schedule, stages, v, f, b, weights, quantity(both))
    plain = idle_time("1f1b", float(pp), 1.0, t_f, t_b, t_w, both)
    ratio = w.line("÷ 理想", idle / work, "%")
    fraction = w.line("÷ 全程", bubble_fraction(idle, work), "%")
    makespan = w.line("一步的时长", work + idle)
    enough = _enough(w, idle, one, quantity(target_pct, "%"), schedule, pp)
    return Result(
        values={
            "idle_units": idle, "idle_vs_1f1b": idle.value / plain if plain else None, "bubble_ratio_pct": ratio, "bubble_fraction_pct": fraction,
            "makespan_units": makespan, "min_microbatches": enough,
        },
        lines=w.lines,
        verdict=f"空等占全程的 {fraction.text}，占理想时间的 {ratio.text}。" + _advice(schedule, pp, microbatches, virtual_stages, enough, target_pct, idle.value),
        resolved={"t_fb_overlap": both} if schedule == "dualpipe" and t_fb_overlap is None else {},
        notes=_notes(schedule, pp, microbatches, t_f, t_b, t_w, both),
    )  # fmt: skip


def _idle(w: Worked, schedule: str, p: Quantity, v: Quantity, f: Quantity, b: Quantity, weights: Quantity, both: Quantity) -> Quantity:
    if schedule in NO_BUBBLE:
        w.say(f"{SCHEDULES[schedule]} 的 W 填满每道缝 → 0")
        return quantity(0)
    idle = idle_time(schedule, p, v, f, b, weights, both)
    return w.line("每张卡空等", larger(idle, quantity(0)) if idle.value < 0 else idle)


def _enough(w: Worked, idle: Quantity, one: Quantity, target: Quantity, schedule: str, p: int) -> int:
    if idle.value <= 0:
        return p if schedule == "interleaved" else 1
    found = w.line("降到目标要的微批", ceil(idle * (quantity(1) - target) / (target * one)))
    enough = max(1, round(found.value))
    if schedule == "interleaved" and enough % p:
        enough += p - enough % p
        w.say(f"补到 {p} 的整数倍 → {enough}")
    return enough


def _advice(schedule: str, p: int, m: int, v: int, enough: int, target: float, idle: float) -> str:
    if p == 1:
        return "只有一段，没有流水线。"
    if idle <= 0:
        return {"zb2p": "气泡没了，账记在激活上：翻倍。", "zbv": "气泡没了，账记在段间传输上：翻倍。", "dualpipe": "没有气泡，账记在参数上：存两份。"}.get(
            schedule, ""
        )
    goal = f"{format_number(target)}% 以内"
    if m >= enough:
        return f"已经在 {goal}，最少要 {enough} 个微批。"
    said = f"要到 {goal}，微批得从 {m} 加到 {enough}，全局 batch 跟着涨到 {format_number(enough / m, digits=3)} 倍。"
    if schedule in ("gpipe", "1f1b"):
        return said + "涨不动，就换交错或零气泡。"
    return said + (f"或者把 v 从 {v} 调大，层数要除得尽。" if schedule == "interleaved" and v < 16 else "")


def _notes(schedule: str, p: int, m: int, f: float, b: float, w: float, both: float) -> tuple[str, ...]:
    if p == 1 or schedule not in SPLITS_BACKWARD:
        return ()
    if idle_time(schedule, float(p), 1.0, f, b, w, both) < 0:
        return ("公式给出负数：W 比能填的缝还长。这里按 0 算，真实的调度做不到这么好。",)
    least = p if schedule == "zb1p" else 2 * p if schedule == "dualpipe" else 2 * p - 1
    if m < least:
        return (
            f"微批少于 {least} 个，W 不够填缝：公式给的是做不到的下限，「甘特图模拟器」里能看到实际。"
            if schedule != "dualpipe"
            else f"微批少于 {least} 个，DualPipe 的公式不成立。",
        )
    if schedule in NO_BUBBLE and not f == b == w:
        return ("三段时间不一样长，零气泡就不是零：在「甘特图模拟器」里改时长看看。",)
    if schedule == "zb1p" and w > min(f, b):
        return ("W 比 F 或 B 长，公式偏乐观：第一个反向传回来之前，级 0 没有 W 可填。",)
    return ()
