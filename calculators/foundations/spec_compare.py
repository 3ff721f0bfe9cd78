"""Two accelerators side by side: which one does more for the money, when arithmetic is the limit and when bandwidth is?"""

from __future__ import annotations

from calculators.catalog import Accelerator, gpu_input
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Bar, BarChart, Chart, Part, Rule
from calculators.core.errors import refuse
from calculators.core.inputs import choice, log_stops, number
from calculators.core.numbers import format_number
from calculators.core.units import HOUR
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.roofline import ridge

WORKLOADS = {"train": "训练", "prefill": "prefill", "decode": "decode"}
BANDWIDTH_BOUND = {"decode"}
"""Workloads taken as memory-bound; the others as compute-bound."""
EVEN = 0.005
"""Closer than half a percent is called even."""


def _chart(run: Run, *, gpu_a: Accelerator, gpu_b: Accelerator, **_: object) -> tuple[Chart, ...]:
    pairs = (
        ("稠密峰值", gpu_a.dense_tflops, gpu_b.dense_tflops),
        ("显存带宽", gpu_a.bandwidth_gb_s, gpu_b.bandwidth_gb_s),
        ("显存", gpu_a.memory_gb, gpu_b.memory_gb),
        ("卡间互联", gpu_a.link_gb_s_per_dir, gpu_b.link_gb_s_per_dir),
    )
    bars = tuple(Bar(name, (Part(name, b / a),), f"{format_number(b / a, digits=3)} 倍") for name, a, b in pairs)
    return (
        BarChart("乙是甲的几倍", "过了 1 的竖线，乙更强。四根长得不一样，换卡才要先问自己卡在哪。", Axis("乙 ÷ 甲", "×"), bars, limits=(Rule("一样", x=1.0),)),
    )


@calculator(
    title="两张卡谁更划算",
    question="两张卡，按你付的租价，训练和推理各该选谁？",
    chapter="A",
    inputs=(
        gpu_input(name="gpu_a", label="甲"),
        gpu_input("h200", name="gpu_b", label="乙"),
        number(
            "price_a", "甲的租价", 2.5, "$/h", low=0.01, high=1000, kind="money", stops=log_stops(0.5, 20, 8), help="每卡每小时；默认是假设，填你拿到的报价"
        ),
        number("price_b", "乙的租价", 2.5, "$/h", low=0.01, high=1000, kind="money", stops=log_stops(0.5, 20, 8)),
        choice("workload", "干什么", "decode", tuple(WORKLOADS), labels=WORKLOADS, help="decode 按卡带宽算，训练和 prefill 按卡算力算"),
    ),
    outputs=(
        Output("peak_ratio", "峰值，乙 ÷ 甲", "×"),
        Output("bandwidth_ratio", "带宽，乙 ÷ 甲", "×"),
        Output("ridge_a_flop_per_byte", "甲的拐点", "FLOP/B"),
        Output("ridge_b_flop_per_byte", "乙的拐点", "FLOP/B"),
        Output("speed_ratio", "速度，乙 ÷ 甲", "×", main=True),
        Output("value_ratio", "每块钱，乙 ÷ 甲", "×", main=True),
        Output("cost_per_eflop_a", "甲，每 EFLOP", "$/EFLOP"),
        Output("cost_per_eflop_b", "乙，每 EFLOP", "$/EFLOP"),
        Output("cost_per_pb_a", "甲，每搬 1 PB", "$/PB"),
        Output("cost_per_pb_b", "乙，每搬 1 PB", "$/PB"),
    ),
    chart=_chart,
    formula=(
        "拐点 = 稠密峰值 ÷ 带宽",
        "速度之比：训练、prefill 取峰值之比，decode 取带宽之比",
        "每块钱之比 = 速度之比 × 甲的租价 ÷ 乙的租价",
        "每 EFLOP = 租价 ÷ 3600 ÷ 峰值；每 PB = 租价 ÷ 3600 ÷ 带宽",
    ),
    assumptions=("峰值是稠密 BF16，没有 BF16 的卡用 FP16", "两张卡发挥出的比例一样"),
    leaves_out="不算显存大小（它决定 batch，也就决定 decode 的吞吐）、互联、kernel 成熟不成熟、两张卡 MFU 的差别。",
    sources=("峰值与带宽：硬件目录", "租价是假设，2026-11"),
)
def spec_compare(*, gpu_a: Accelerator, gpu_b: Accelerator, price_a: float, price_b: float, workload: str) -> Result:
    """Ratios of catalog figures; the workload says which of them is its speed."""
    for name, gpu in (("gpu_a", gpu_a), ("gpu_b", gpu_b)):
        if not {"bf16", "fp16"} & set(gpu.tflops):
            raise refuse(name, "这张卡没有公布稠密 BF16 峰值", gpu.name, "换一张")
    w = Worked()
    peaks = [quantity(gpu.dense_tflops, "TFLOPS") for gpu in (gpu_a, gpu_b)]
    bandwidths = [quantity(gpu.bandwidth_gb_s / 1000, "TB/s") for gpu in (gpu_a, gpu_b)]
    prices = [quantity(price, "$/h") for price in (price_a, price_b)]
    ridges = [w.line(f"{who}的拐点", ridge(peak, bandwidth), "FLOP/B") for who, peak, bandwidth in zip("甲乙", peaks, bandwidths, strict=True)]
    peak_ratio = w.line("峰值，乙 ÷ 甲", peaks[1] / peaks[0], "×")
    bandwidth_ratio = w.line("带宽，乙 ÷ 甲", bandwidths[1] / bandwidths[0], "×")
    speed = bandwidth_ratio if workload in BANDWIDTH_BOUND else peak_ratio
    value = w.line("每块钱，乙 ÷ 甲", speed * prices[0] / prices[1], "×")
    hour = quantity(HOUR)
    eflop = [w.line(f"{who}，每 EFLOP", price / hour / peak, "$/EFLOP") for who, price, peak in zip("甲乙", prices, peaks, strict=True)]
    moved = [w.line(f"{who}，每搬 1 PB", price / hour / bandwidth, "$/PB") for who, price, bandwidth in zip("甲乙", prices, bandwidths, strict=True)]
    return Result(
        values={
            "peak_ratio": peak_ratio, "bandwidth_ratio": bandwidth_ratio, "ridge_a_flop_per_byte": ridges[0], "ridge_b_flop_per_byte": ridges[1],
            "speed_ratio": speed, "value_ratio": value, "cost_per_eflop_a": eflop[0], "cost_per_eflop_b": eflop[1], "cost_per_pb_a": moved[0],
            "cost_per_pb_b": moved[1],
        },
        lines=w.lines,
        verdict=_verdict(gpu_a, gpu_b, workload, speed, value),
    )  # fmt: skip


def _verdict(gpu_a: Accelerator, gpu_b: Accelerator, workload: str, speed: Quantity, value: Quantity) -> str:
    limit = "带宽" if workload in BANDWIDTH_BOUND else "算力"
    task = {"train": "训练"}.get(workload, f"{workload} ")
    head = f"{task}按卡{limit}算，{gpu_b.name} 的速度是 {gpu_a.name} 的 {speed.text}，同样的钱干 {value.text}的活："
    if abs(value.value - 1) < EVEN:
        if gpu_a.memory_gb == gpu_b.memory_gb:
            return head + "一样划算。"
        return head + f"一样划算，{max((gpu_a, gpu_b), key=lambda g: g.memory_gb).name} 的显存更大。"
    better = gpu_b if value.value > 1 else gpu_a
    return head + f"选 {better.name}。"
