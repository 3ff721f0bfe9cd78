"""How many bytes must be under way at once to keep HBM busy, and which occupancy is that?"""

from __future__ import annotations

from calculators.catalog import Accelerator, gpu_input
from calculators.catalog.chips import chips, latencies
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Rule, Series
from calculators.core.inputs import Scalar, choice, integer, linear_stops, number
from calculators.core.numbers import format_number
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.chip import MOST_WARPS, WARP, bytes_in_flight, warp_bytes

LOAD_BYTES = (4, 8, 16)
WIDEST = LOAD_BYTES[-1]


def _chart(run: Run, *, gpu: Accelerator, bytes_per_thread_load: int, loads_in_flight: int, **_: object) -> tuple[Chart, ...]:
    peak, per_sm, need = gpu.bandwidth_gb_s, float(run.values["inflight_per_sm_b"]), float(run.values["occupancy_pct"])  # type: ignore[arg-type]

    def reached(width: int, occupancy_pct: float) -> float:
        return min(1.0, MOST_WARPS * occupancy_pct / 100 * warp_bytes(WARP, width, loads_in_flight) / per_sm) * peak

    def full_at(width: int) -> float:
        return min(100.0, 100 * per_sm / warp_bytes(WARP, width, loads_in_flight) / MOST_WARPS)

    curves = tuple(
        Series(f"{width} 字节", tuple((x, reached(width, x)) for x in sorted({0.0, full_at(width), 100.0})), emphasis=width == bytes_per_thread_load)
        for width in LOAD_BYTES
    )
    here = min(need, 100.0)
    return (
        LineChart(
            "占用率和拿到的带宽",
            "横轴是 SM 住满了几成。一次读得越宽，越早到顶；到顶之后再加 warp，一点不快。",
            Axis("占用率", "%", low=0, high=100),
            Axis("带宽", "GB/s", low=0),
            curves,
            marks=(Mark("喂饱" if need <= 100 else "开满也不够", here, reached(bytes_per_thread_load, here), emphasis=True),),
            rules=(Rule(f"{format_number(peak)} GB/s", y=peak),),
        ),
    )


@calculator(
    title="要同时飞多少字节",
    question="显存一来一回要几百个周期。同时有多少字节在路上，带宽才用得满？要住多少个 warp？",
    chapter="02",
    inputs=(
        gpu_input("a100-80gb", where=lambda a: a.id in latencies()),
        choice("bytes_per_thread_load", "每个线程一次读", 4, LOAD_BYTES, "B", help="float 是 4，float4 是 16"),
        integer("loads_in_flight", "每个线程同时等几次读", 1, low=1, high=8, stops=(1, 2, 3, 4, 6, 8), help="循环展开后，几条读可以一起等"),
        number(
            "latency_cycles", "显存延迟", None, "cycle", low=100, high=2000, stops=(100, 200, 300, 400, 466, 479, 550, 600, 703, 860, 1000, 1500, 2000),
            help="留空用 466（A100）、479（H100），未核实；指针追逐测到 550、703",
        ),
        number("clock_ghz", "SM 频率", None, "GHz", low=0.5, high=3, more=True, stops=linear_stops(0.5, 3, 0.05)),
    ),
    outputs=(
        Output("latency_ns", "延迟", "ns"),
        Output("inflight_kb", "全卡要在途", "KB", main=True),
        Output("inflight_per_sm_b", "每个 SM 要在途", "B", digits=5),
        Output("warps_needed", "每个 SM 要住的 warp", main=True),
        Output("occupancy_pct", "合占用率", "%", main=True),
    ),
    chart=_chart,
    formula=("在途字节 = 延迟 × 带宽（Little 定律）", "warp 数 = 每个 SM 的在途字节 ÷ (32 × 每次读的字节 × 同时等几次)", "占用率 = warp 数 ÷ 64"),
    assumptions=("每次读都落到显存；每个 SM 最多住 64 个 warp（计算能力 8.0、9.0）",),
    leaves_out="不算 L2 命中、DRAM 换行和排队：误差约 ±30%。指针追逐测到的延迟含 TLB 未命中，偏高。",
    sources=(
        "Little 定律；466、479 周期：arXiv 2402.13499（凭记忆，未核实）",
        "550、703 周期：markdewing/AI_kernels 指针追逐，工作集超过 1 GB",
        "SM 数与频率：目录 chips.toml；带宽：硬件目录",
    ),
)  # fmt: skip
def little_law(*, gpu: Accelerator, latency_cycles: float | None, clock_ghz: float | None, bytes_per_thread_load: int, loads_in_flight: int) -> Result:
    """Latency × bandwidth, spread over the SMs, in warps of 32 loads each; no cache hits, no queueing."""
    known = latencies()[gpu.id]
    resolved: dict[str, Scalar] = {}
    notes: tuple[str, ...] = ()
    if latency_cycles is None:
        latency_cycles = resolved["latency_cycles"] = known.cycles
        cycles, chased = format_number(known.cycles), format_number(known.chase_cycles)
        notes = (f"{cycles} 周期凭记忆引自论文，未核实。指针追逐在同一种卡上测到 {chased}（含 TLB 未命中）：把延迟改成 {chased} 再看一遍。",)
    if clock_ghz is None:
        clock_ghz = resolved["clock_ghz"] = known.clock_ghz
    w = Worked()
    latency = w.line("延迟", quantity(latency_cycles, "cycle") / quantity(clock_ghz, "GHz"), "ns")
    total = w.line("全卡在途", bytes_in_flight(latency, quantity(gpu.bandwidth_gb_s, "GB/s")), "KB")
    per_sm = w.line("每个 SM", total / quantity(chips()[gpu.id].sms), "B")
    one = w.line("一个 warp 在途", warp_bytes(quantity(WARP), quantity(bytes_per_thread_load, "B"), quantity(loads_in_flight)), "B")
    warps = w.line("要几个 warp", per_sm / one)
    occupancy = w.line("占用率", warps / quantity(MOST_WARPS), "%")
    return Result(
        values={"latency_ns": latency, "inflight_kb": total, "inflight_per_sm_b": per_sm, "warps_needed": warps, "occupancy_pct": occupancy},
        lines=w.lines,
        verdict=_verdict(total, warps, occupancy, bytes_per_thread_load),
        resolved=resolved,
        notes=notes,
    )


def _verdict(total: Quantity, warps: Quantity, occupancy: Quantity, width: int) -> str:
    need = f"在途 {total.text} 才用得满带宽，每个 SM 要 {warps.text} 个 warp"
    if warps.value > MOST_WARPS:
        remedy = "换 16 字节加载或多发几条" if width < WIDEST else "一个线程多发几条再等"
        return f"{need}，可一个 SM 只住得下 {MOST_WARPS} 个：占用率开满也喂不饱，{remedy}。"
    wider = quantity(warps.value * width / WIDEST)
    advice = f"换成 16 字节的读，{format_number(wider.value, digits=3)} 个就够。" if width < WIDEST else "占用率不用再高，省下的寄存器留给大 tile。"
    return f"{need}，占用率 {occupancy.text}。{advice}"
