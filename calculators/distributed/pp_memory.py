"""How many activations does a stage of a pipeline hold, under each schedule?"""

from __future__ import annotations

from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Bar, BarChart, Chart, LineChart, Part, Series
from calculators.core.errors import Refusal, refuse
from calculators.core.inputs import choice, integer, linear_stops, number, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.units import GB
from calculators.core.worked import Worked, quantity
from calculators.formulas.pipeline import SCHEDULES, check_schedule, in_flight

PARAM_COPIES = {"dualpipe": 2}
"""DualPipe feeds micro-batches from both ends, so a card holds a stage of each direction."""


def _usable_v(schedule: str, p: int, m: int, v: int, layers: int) -> int:
    """The number of chunks to compare with: the reader's own, or the largest of 4 and 2 that these sizes allow; 0 for none."""
    if schedule == "interleaved":
        return v
    return next((k for k in (4, 2) if layers % (p * k) == 0 and m % p == 0), 0)


def _chart(run: Run, *, pp: int, m: int, v: int, schedule: str, stage: int, act_gb: float, layers: int) -> tuple[Chart, ...]:
    chunks = _usable_v(schedule, pp, m, v, layers)
    per_batch = layers / pp * act_gb

    def gb(name: str, i: int) -> float:
        return in_flight(name, float(pp), float(i), float(m), float(chunks if name == "interleaved" else 1)) * per_batch

    bars = []
    for name, label in SCHEDULES.items():
        if (name == "interleaved" and not chunks) or (name == "dualpipe" and pp % 2):
            continue
        shown = f"{label}，v = {chunks}" if name == "interleaved" else label
        bars.append(Bar(shown, (Part("激活", gb(name, stage)),), f"{format_number(gb(name, stage))} GB", emphasis=name == schedule))
    charts: list[Chart] = [BarChart(f"段 {stage} 的激活", "零气泡那几种是各段里的上限。DualPipe 还要多存一份参数。", Axis("激活", "GB"), tuple(bars))]
    if pp > 1:
        names = ["1f1b"] if schedule == "1f1b" else ["1f1b", schedule]
        stages = range(pp)
        charts.append(
            LineChart(
                "越靠前攒得越多", "1F1B 从段 0 到最后一段是一条斜线；GPipe 和零气泡各段一样。", Axis("第几段"), Axis("激活", "GB", low=0),
                tuple(Series(SCHEDULES[name], tuple((float(i), gb(name, i)) for i in stages), emphasis=name == schedule) for name in names),
            )
        )  # fmt: skip
    return tuple(charts)


@calculator(
    title="每段要留几份激活",
    question="流水线的某一段，同时攒着几个微批的激活，一共多少 GB？",
    chapter="13",
    inputs=(
        choice("schedule", "调度", "1f1b", tuple(SCHEDULES), labels=SCHEDULES),
        integer("pp", "流水段数 p", 8, low=1, high=256, stops=powers_of_two(1, 64)),
        integer("m", "微批数 m", 32, low=1, high=8192, stops=powers_of_two(1, 1024)),
        integer("v", "每卡几块 v", 1, low=1, high=16, stops=(1, 2, 3, 4, 6, 8, 12, 16), only_if=("schedule", ("interleaved",))),
        integer("stage", "第几段", 0, low=0, high=255, stops=linear_stops(0, 15, 1), help="从 0 数起，0 最靠前"),
        number("act_gb", "每层每微批", 0.10695, "GB", low=0, high=100, stops=(0.01, 0.02, 0.05, 0.10695, 0.2, 0.5, 1, 2), help="默认：GPT-3，张量并行 8 卡加序列并行加选择性重算（第 12 章）"),
        integer("layers", "层数 L", 96, "layer", low=1, high=1000, more=True, stops=(32, 64, 80, 96, 128)),
    ),
    outputs=(
        Output("in_flight", "同时攒着几个微批", main=True),
        Output("act_total_gb", "这一段的激活", "GB", main=True),
        Output("in_flight_factor", "是段数 p 的", "×", main=True),
        Output("param_copies", "参数是平常的", "×", main=True),
    ),
    chart=_chart,
    formula=(
        "攒着的微批（不超过 m）：GPipe = m；1F1B 的段 i = p − i；交错 = (2(p − i − 1) + (v − 1)p + 1) ÷ v",
        "ZB1P、ZBV ≤ p；ZB2P ≤ 2p；DualPipe = p + 1，参数两份",
        "激活 = 攒着的微批 × (L ÷ p) × 每层每微批",
    ),
    assumptions=("各段层数相同；DualPipe 一张卡上两个方向各一段，每段 L ÷ p 层",),
    leaves_out="不算词表和 logits（末段另加）、收发缓冲区。零气泡的几行是上限，真实的次序可能少一两份。",
    sources=("Narayanan et al. 2021 §2.2", "Korthikanti et al. 2022 §4.2.3：交错是 1 + (p − 1)/(pm) 倍，那里的 m 是每卡的块数", "Zero Bubble README；DualPipe README"),
)  # fmt: skip
def pp_memory(*, pp: int, m: int, v: int, schedule: str, stage: int, act_gb: float, layers: int) -> Result:
    """Micro-batches in flight × layers of a stage × activations of a layer."""
    check_schedule(schedule, pp, m, field="m")
    _check(pp, v, stage, layers)
    w = Worked()
    stages, batches = quantity(pp), quantity(m)
    held = w.line("攒着的微批", in_flight(schedule, stages, quantity(stage), batches, quantity(v)))
    mine = w.line("这一段的层", quantity(layers, "layer") / stages, "layer")
    total = w.line("这一段的激活", held * (quantity(layers) / stages) * quantity(act_gb, "GB"), "GB")
    factor = w.line("是段数的", held / stages, "×")
    copies = PARAM_COPIES.get(schedule, 1)
    return Result(
        values={
            "in_flight": int(held.value) if float(held.value).is_integer() else held.value, "in_flight_factor": factor, "act_total_gb": total, "param_copies": copies,
        },
        lines=w.lines,
        verdict=f"段 {stage} 最多攒 {held.text} 个微批，每个 {mine.text}，{total.text}。" + _advice(schedule, pp, m, stage, layers, act_gb, total.value / GB),
    )  # fmt: skip


def _check(p: int, v: int, stage: int, layers: int) -> None:
    if stage >= p:
        raise refuse("stage", "第几段必须小于流水段数", f"{stage}，一共 {p} 段", f"可取 0 到 {p - 1}")
    if layers % (p * v):
        raise _uneven(p, v, layers)


def _uneven(p: int, v: int, layers: int) -> Refusal:
    pieces = p * v
    what, shown = ("p × v", f"{layers} / ({p} × {v})") if v > 1 else ("流水段数 p", f"{layers} / {p}")
    lower = layers // pieces * pieces
    return refuse("layers", f"层数 L 必须能被{' ' if v > 1 else ''}{what} 整除", shown, f"层数可取 {f'{lower} 或 ' if lower else ''}{lower + pieces}")


def _advice(schedule: str, p: int, m: int, stage: int, layers: int, act_gb: float, gb: float) -> str:
    if p == 1:
        return "只有一段，没有流水线。"
    whole = layers * act_gb
    if schedule == "1f1b":
        if stage == 0 and m >= p:
            return "加深流水线省不了它：p 份 × L ÷ p 层，总是 L 层的激活。"
        return f"段 0 攒得最多，{format_number(min(p, m) / p * whole)} GB：显存按它算。" if stage else "微批比段数少，还没攒满。"
    plain = min(p - stage, m) / p * whole
    against = f"1F1B 在这一段是 {format_number(plain)} GB"
    if schedule == "gpipe":
        return f"{against}，时间一样。" if gb > plain * (1 + 1e-9) else f"{against}，一样多：微批不比这一段要攒的多。"
    return f"{against}。" + ("参数还要多存一份。" if schedule == "dualpipe" else "")
