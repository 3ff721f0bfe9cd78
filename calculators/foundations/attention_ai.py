"""How fast could this attention be, and is it the arithmetic or the bytes that hold it back?"""

from __future__ import annotations

from calculators.catalog import Accelerator, gpu_input
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Rule, Series
from calculators.core.inputs import choice, integer, linear_stops, powers_of_two
from calculators.core.worked import Quantity, Worked, larger, quantity
from calculators.formulas.attention import attention_flops, fused_elements, unfused_elements
from calculators.formulas.roofline import arithmetic_intensity, attainable, dense_peak_tflops, ridge


def _chart(run: Run, *, gpu: Accelerator, elem_bytes: int, **_: object) -> tuple[Chart, ...]:
    peak, bandwidth = dense_peak_tflops(gpu, elem_bytes), gpu.bandwidth_gb_s / 1000  # TFLOPS and TB/s: FLOP/B × TB/s = TFLOPS

    def roof(intensity: float) -> float:
        return attainable(peak, intensity, bandwidth)

    knee = peak / bandwidth
    readings = (("只数 n² 一遍", "naive_ai"), ("未融合", "unfused_ai"), ("融合", "fused_ai"))
    dots = [(name, float(run.values[key])) for name, key in readings]  # type: ignore[arg-type]
    low, high = min(x for _, x in dots) / 4, max(knee, *(x for _, x in dots)) * 2
    return (
        LineChart(
            f"{gpu.name} 的屋顶线",
            "竖线是拐点。" + ("「未融合」在它左边：带宽说了算。「融合」把它推到右边。" if run.values["memory_bound"] else "三个点都在它右边：算力说了算。"),
            Axis("算术强度", "FLOP/B", log=True, low=low, high=high),
            Axis("最多能跑到", "TFLOPS", log=True),
            (Series("屋顶", ((low, roof(low)), (knee, peak), (high, peak)), emphasis=True),),
            marks=tuple(Mark(name, x, roof(x), emphasis=name == "未融合") for name, x in dots),
            rules=(Rule(f"拐点 {run.texts['ridge']}", x=knee),),
        ),
    )


@calculator(
    title="这个 attention 该多快",
    question="一个头的 attention，最快要多久？卡在算，还是卡在搬？",
    chapter="01",
    inputs=(
        integer("n", "序列长度 n", 4096, "token", low=128, high=131_072, kind="tokens", stops=powers_of_two(128, 131_072)),
        choice("d", "每头维度 d", 128, (64, 128, 256)),
        choice("elem_bytes", "每个元素", 2, (1, 2, 4), "B", help="2 按 BF16，1 按 FP8，4 按 TF32 的峰值"),
        integer("extra_passes", "多出来的读写遍数", 0, low=0, high=6, stops=linear_stops(0, 6, 1), help="缩放、mask、dropout 各自成一个 kernel，就各多一遍"),
        gpu_input("a100-80gb"),
    ),
    outputs=(
        Output("gflop", "浮点运算", "GFLOP"),
        Output("n2_matrix_mb", "n² 矩阵", "MB"),
        Output("naive_ai", "强度：只数 n² 一遍", "FLOP/B"),
        Output("unfused_mb", "未融合的读写", "MB"),
        Output("unfused_ai", "强度：未融合", "FLOP/B", main=True),
        Output("fused_mb", "融合的读写下限", "MB"),
        Output("fused_ai", "强度：融合", "FLOP/B"),
        Output("ridge", "拐点", "FLOP/B", main=True),
        Output("compute_us", "算完要", "µs"),
        Output("unfused_mem_us", "未融合，搬完要", "µs"),
        Output("fused_mem_us", "融合，搬完要", "µs"),
        Output("lower_bound_us", "未融合，最快", "µs", main=True),
        Output("fused_speedup_x", "融合能快", "×", main=True),
        Output("memory_bound", "未融合卡在带宽"),
    ),
    chart=_chart,
    formula=(
        "F = 4n²d（两次矩阵乘，一次乘加算 2 FLOP）",
        "未融合的字节 =（4 + 2 × 多出来的遍数）× n² × b + 4nd × b；融合的下限 = 4nd × b",
        "最快 = max(F ÷ 峰值, 字节 ÷ 带宽)",
        "n 再大，未融合的强度也不会超过 d/b：序列变长救不了它",
    ),
    assumptions=("一个头、一条序列、前向；时间随头数 × batch 等比放大，强度和倍数不变", "峰值取目录里的稠密值；TF32 按 BF16 的一半"),
    leaves_out="不算 softmax 的运算（d = 128 时约 1%）；因果 mask 让 F 减半，未融合的字节不变；实测一般跑到屋顶的 60–85%。",
    sources=("Dao et al. 2022（FlashAttention），算法 0", "NVIDIA A100 数据手册：312 TFLOPS、2039 GB/s"),
)
def attention_ai(*, n: int, d: int, elem_bytes: int, extra_passes: int, gpu: Accelerator) -> Result:
    """Roofline of one attention head, unfused and fused (compulsory traffic only)."""
    w = Worked()
    size, rows, width = quantity(elem_bytes, "B"), quantity(n), quantity(d)
    peak = quantity(dense_peak_tflops(gpu, elem_bytes), "TFLOPS")
    bandwidth = quantity(gpu.bandwidth_gb_s, "GB/s")
    flops = w.line("浮点运算", attention_flops(rows, rows, width, quantity(2, "FLOP")), "GFLOP")
    matrix = w.line("n² 矩阵", rows * rows * size, "MB")
    naive_ai = w.line("强度，只数 n² 一遍", arithmetic_intensity(flops, matrix), "FLOP/B")
    unfused = w.line("未融合的读写", unfused_elements(rows, rows, width, extra_passes) * size, "MB")
    unfused_ai = w.line("强度，未融合", arithmetic_intensity(flops, unfused), "FLOP/B")
    fused = w.line("融合的读写", fused_elements(rows, rows, width) * size, "MB")
    fused_ai = w.line("强度，融合", arithmetic_intensity(flops, fused), "FLOP/B")
    knee = w.line("拐点", ridge(peak, bandwidth), "FLOP/B")
    compute = w.line("算完", flops / peak, "µs")
    unfused_mem = w.line("未融合搬完", unfused / bandwidth, "µs")
    fused_mem = w.line("融合搬完", fused / bandwidth, "µs")
    bound = w.line("未融合最快", larger(compute, unfused_mem), "µs")
    fused_bound = w.line("融合最快", larger(compute, fused_mem), "µs")
    speedup = w.line("融合能快", bound / fused_bound, "×")
    memory_bound = unfused_ai.value < knee.value
    return Result(
        values={
            "gflop": flops, "n2_matrix_mb": matrix, "naive_ai": naive_ai, "unfused_mb": unfused, "unfused_ai": unfused_ai,
            "fused_mb": fused, "fused_ai": fused_ai, "ridge": knee, "compute_us": compute, "unfused_mem_us": unfused_mem,
            "fused_mem_us": fused_mem, "lower_bound_us": bound, "fused_speedup_x": speedup, "memory_bound": memory_bound,
        },
        lines=w.lines,
        verdict=_verdict(unfused_ai, knee, bound, fused_bound, speedup, memory_bound),
    )  # fmt: skip


def _verdict(unfused_ai: Quantity, knee: Quantity, bound: Quantity, fused_bound: Quantity, speedup: Quantity, memory_bound: bool) -> str:
    if memory_bound:
        return (
            f"带宽瓶颈：未融合只有 {unfused_ai.text}，拐点在 {knee.text}，最快 {bound.text}。"
            f"融合后最快 {fused_bound.text}，快 {speedup.text}：一次乘法没少做，少搬的是字节。"
        )
    return f"算力瓶颈：未融合已有 {unfused_ai.text}，过了拐点 {knee.text}，最快 {bound.text}。在这张卡上融合不会更快，省的是显存。"
