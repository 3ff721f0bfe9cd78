"""Can the CPU launch kernels as fast as the GPU finishes them, and what does a CUDA graph give at most?"""

from __future__ import annotations

from calculators.catalog import accelerator, model
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Rule, Series
from calculators.core.inputs import flag, integer, log_stops, number
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.launch import graph_seconds, launch_seconds, step_seconds

CONTEXT = 2048
BATCHES = tuple(2 ** (i / 4) for i in range(33))
"""1 … 256."""


def _chart(run: Run, *, kernels: int, launch_us: float, gpu_ms: float, use_graph: bool, graph_launch_us: float, node_us: float) -> tuple[Chart, ...]:
    per_sequence = CONTEXT * model("llama-3-8b").kv_bytes_per_token / accelerator("h100-sxm").hbm_bytes_per_s * 1e3
    eager, graph = launch_seconds(float(kernels), launch_us) / 1e3, graph_seconds(float(kernels), graph_launch_us, node_us) / 1e3

    def curve(cpu_ms: float) -> tuple[tuple[float, float], ...]:
        return tuple((b, step_seconds(cpu_ms, gpu_ms + (b - 1) * per_sequence)) for b in BATCHES)

    return (
        LineChart(
            "batch 加大，一步要多久",
            f"平的那段是 CPU 在发 kernel，batch 翻倍，时间不动；抬头以后才轮到 GPU。GPU 的时间从你填的数起，每多一条加读 {CONTEXT} token 的 KV（Llama-3-8B，H100）。",
            Axis("batch", "sequence", log=True),
            Axis("一步", "ms", low=0),
            (Series("逐个发", curve(eager), emphasis=not use_graph), Series("CUDA Graph", curve(graph), emphasis=use_graph)),
            marks=(Mark("现在", 1.0, float(run.values["step_ms"]), emphasis=True),),  # type: ignore[arg-type]
            rules=(Rule("GPU 自己要的（batch 1）", y=gpu_ms),),
        ),
    )


@calculator(
    title="CPU 发得过来吗",
    question="一步里 kernel 又小又多，是 GPU 在算，还是 GPU 在等 CPU 发？",
    chapter="07",
    inputs=(
        integer("kernels", "一步几个 kernel", 419, low=1, high=20_000, stops=log_stops(10, 20_000, 8), help="用 profiler 数；419 是 8B decode 的假设"),
        number("launch_us", "发一个要", 20, "µs", low=0.5, high=100, stops=(0.5, 1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 100), help="PyTorch eager 5–20，C++ 3–5"),
        number(
            "gpu_ms", "GPU 自己要", 4.794, "ms", low=0.001, high=10_000, stops=log_stops(0.1, 1000, 5), help="kernel 时间之和；默认是第 03 章的 decode 下界"
        ),
        flag("use_graph", "用 CUDA Graph", False),
        number("graph_launch_us", "发一张图要", 10, "µs", low=0, high=1000, more=True, stops=(0, 5, 10, 20, 50, 100, 1000)),
        number("node_us", "图里每个 kernel 再加", 1, "µs", low=0, high=20, more=True, stops=(0, 0.5, 1, 2, 5, 10, 20)),
    ),
    outputs=(
        Output("cpu_ms", "CPU 发完要", "ms", main=True),
        Output("step_ms", "一步", "ms", main=True),
        Output("gpu_util_pct", "GPU 真在忙", "%", main=True),
        Output("launch_bound", "卡在发射", main=True),
        Output("graph_step_ms", "换成 CUDA Graph，一步", "ms"),
        Output("graph_speedup_x", "CUDA Graph 比逐个发快", "×"),
    ),
    chart=_chart,
    formula=("CPU = kernel 数 × 每个的发射时间；CUDA Graph：一次发射 + 每个 kernel 一点", "一步 = max(CPU, GPU)", "GPU 真在忙 = GPU ÷ 一步"),
    assumptions=("CPU 和 GPU 完全并排，谁慢听谁的", "图里每个 kernel 的 1 µs 是假设，量级来自 GPU 端的间隙"),
    leaves_out="不算部分重叠和同步点：一句 .item() 会让两边相加而不是取大，实测比这里慢。8B decode 实测 8.4 ms 和 5.1 ms（快 1.65 倍），这里给 8.38 和 4.79。",
    sources=(
        "Llama-3.1-8B、H100 实测：8.4 ms → 5.1 ms（cloudai.pt, 2026）",
        "GPU 下界：第 03 章 decode-bound",
        "CUDA.jl 文档 Graphs：80 个 kernel，260 → 70 µs",
    ),
)
def launch_bound(*, kernels: int, launch_us: float, gpu_ms: float, use_graph: bool, graph_launch_us: float, node_us: float) -> Result:
    """max(kernels × launch, GPU time); a graph replaces the launches by one and a little for each node."""
    w = Worked()
    count, gpu = quantity(kernels), quantity(gpu_ms, "ms")
    eager = w.line("逐个发", launch_seconds(count, quantity(launch_us, "µs")), "ms")
    graph = w.line("发一张图", graph_seconds(count, quantity(graph_launch_us, "µs"), quantity(node_us, "µs")), "ms")
    cpu = graph if use_graph else eager
    eager_step = w.line("一步，逐个发", step_seconds(eager, gpu), "ms")
    graph_step = w.line("一步，CUDA Graph", step_seconds(graph, gpu), "ms")
    step = graph_step if use_graph else eager_step
    busy = w.line("GPU 真在忙", gpu / step, "%")
    speedup = w.line("CUDA Graph 比逐个发快", eager_step / graph_step, "×")
    bound = cpu.value > gpu.value
    return Result(
        values={
            "cpu_ms": cpu, "step_ms": step, "gpu_util_pct": busy, "launch_bound": bound, "graph_step_ms": graph_step, "graph_speedup_x": speedup,
        },
        lines=w.lines,
        verdict=_verdict(use_graph, cpu, gpu, step, busy, graph_step, speedup),
    )  # fmt: skip


def _verdict(use_graph: bool, cpu: Quantity, gpu: Quantity, step: Quantity, busy: Quantity, graph_step: Quantity, speedup: Quantity) -> str:
    if cpu.value > gpu.value and not use_graph:
        gain = f"录成 CUDA Graph，一步 {graph_step.text}，快 {speedup.text}；" if speedup.value > 1 else "录成图也不省（图里每个 kernel 的时间填大了？）；"
        return f"卡在发射：CPU 要 {cpu.text}，GPU 只要 {gpu.text}，只有 {busy.text} 的时间有事做。{gain}融合让 kernel 变少，也管用。"
    if cpu.value > gpu.value:
        return f"录成图还是卡在发射：发图要 {cpu.text}，GPU 只要 {gpu.text}。kernel 太碎，先融合，把个数压下来。"
    if use_graph:
        return f"CPU 退场了：一步 {step.text}，全是 GPU 的时间。还想快，只能少读字节（量化）或换带宽更高的卡。"
    return f"没卡在发射：CPU {cpu.text} 就发完，GPU 要 {gpu.text}。CUDA Graph 帮不上，去减字节、减运算。"
