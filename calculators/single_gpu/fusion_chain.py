"""A chain of elementwise operations, one kernel each or all in one: how many bytes, how many launches, how much time?"""

from __future__ import annotations

from calculators.catalog import Accelerator, gpu_input
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Rule, Series
from calculators.core.errors import refuse
from calculators.core.inputs import choice, integer, linear_stops, log_stops, number
from calculators.core.numbers import format_number
from calculators.core.units import GB, MB
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.fusion import crossover_elements, fused_passes, inner_passes, unfused_passes

SIZES = log_stops(1e3, 1e10, 8)


def _chart(
    run: Run, *, n_elem: int, k_ops: int, elem_bytes: int, extra_inputs: int, gpu: Accelerator, launch_us: float, bw_eff: float, **_: object
) -> tuple[Chart, ...]:
    bandwidth, launch = gpu.hbm_bytes_per_s * bw_eff, launch_us * 1e-6

    def seconds(n: float, passes: float, launches: float) -> float:
        return passes * n * elem_bytes / bandwidth + launches * launch

    many, few = unfused_passes(float(k_ops), float(extra_inputs)), fused_passes(float(extra_inputs))
    curves = {
        "融合：两样都省": (few, 1.0), "只少搬字节": (few, float(k_ops)), "只少发射（CUDA Graph）": (many, 1.0),
    }  # fmt: skip
    series = tuple(
        Series(name, tuple((n, seconds(n, many, float(k_ops)) / seconds(n, *how)) for n in SIZES), emphasis=i == 0)
        for i, (name, how) in enumerate(curves.items())
    )
    here = float(run.values["speedup_x"])  # type: ignore[arg-type]
    border = crossover_elements(launch, bandwidth, float(elem_bytes))
    return (
        LineChart(
            "快几倍：张量小，省的是发射；张量大，省的是字节",
            "竖线左边，一个 kernel 的时间多半花在发射；右边多半花在读写。两条细线是只省一样能快多少。",
            Axis("元素个数", "element", log=True),
            Axis("快几倍", "×", low=0),
            series,
            marks=(Mark("现在", float(n_elem), here, emphasis=True),),
            rules=(Rule(f"分界 {format_number(border / 1e6)} 百万个元素", x=border),),
        ),
    )


@calculator(
    title="融合一条链",
    question="几个逐元素算子串成一串，融成一个 kernel 能快几倍？",
    chapter="07",
    inputs=(
        integer("n_elem", "张量有几个元素", 16_777_216, "element", low=1, high=10**10, stops=log_stops(1e3, 1e10, 4)),
        integer("k_ops", "几个算子", 5, low=1, high=50, stops=linear_stops(1, 50, 1)),
        choice("elem_bytes", "每个元素的字节", 2, (1, 2, 4), "B", help="BF16 是 2，FP32 是 4"),
        integer("extra_inputs", "另外还要读几个张量", 0, low=0, high=10, stops=linear_stops(0, 10, 1), help="残差、门控这些，每个只被读一次"),
        gpu_input(),
        number("launch_us", "每次发射", 3, "µs", low=0.5, high=50, more=True, stops=(0.5, 1, 2, 3, 5, 10, 20, 50)),
        number("bw_eff", "带宽利用率", 1.0, low=0.1, high=1, kind="fraction", more=True, stops=linear_stops(0.1, 1, 0.05)),
        number("l2_gbs", "L2 带宽（你的假设）", 0, "GB/s", low=0, high=50_000, more=True, stops=(0, 4000, 5500, 7000, 10_000, 20_000), help="0：当 L2 不存在"),
        number("l2_mb", "L2 容量（你的假设）", 50, "MB", low=1, high=512, more=True, stops=(6, 40, 50, 72, 96, 126, 256, 512)),
    ),
    outputs=(
        Output("unfused_us", "一个算子一个 kernel", "µs", main=True),
        Output("fused_us", "融成一个", "µs", main=True),
        Output("speedup_x", "快", "×", main=True),
        Output("unfused_mb", "不融合搬", "MB", digits=5),
        Output("fused_mb", "融合后搬", "MB"),
        Output("launches_saved", "少发几次"),
        Output("crossover_melem", "发射和读写各占一半的大小（百万元素）"),
    ),
    chart=_chart,
    formula=(
        "不融合 = k × (一读 + 一写 + 一次发射) + 另外的张量各读一次",
        "融合 = 一读 + 一写 + 另外的张量各读一次 + 一次发射",
        "分界 = 一次发射 × 带宽 ÷ (2 × 每元素字节)",
    ),
    assumptions=("读写和发射不重叠，时间相加", "填了 L2 带宽、张量又不超过 L2 的一半时，中间那几趟按 L2 的带宽算"),
    leaves_out="默认不算 L2：H100 有 50 MB，约 25 MB 以下的张量中间结果可能留在片上，融合的好处没有这么大；也不算链太长时寄存器溢出。",
    sources=("NVIDIA Optimizing Memory-Limited Layers", "带宽：硬件目录"),
)  # fmt: skip
def fusion_chain(
    *, n_elem: int, k_ops: int, elem_bytes: int, extra_inputs: int, gpu: Accelerator, launch_us: float, bw_eff: float, l2_gbs: float, l2_mb: float
) -> Result:
    """Passes × bytes ÷ bandwidth + launches × launch time, with every operation a kernel and with one for all."""
    w = Worked()
    bandwidth = quantity(gpu.bandwidth_gb_s, "GB/s")
    if bw_eff != 1:
        bandwidth = w.line("可用带宽", bandwidth * quantity(bw_eff), "GB/s")
    if 0 < l2_gbs * GB < bandwidth.value:
        raise refuse("l2_gbs", "L2 带宽（你的假设）必须是 0，或者不低于显存带宽", f"{format_number(l2_gbs)} < {bandwidth.text}", "填 0 就不算 L2")
    ops, extra, launch = quantity(k_ops), quantity(extra_inputs), quantity(launch_us, "µs")
    tensor = w.line("一个张量", quantity(n_elem, "element") * quantity(elem_bytes, "B"), "MB")
    many = w.line("不融合，过几遍", unfused_passes(ops, extra))
    few = w.line("融合后，过几遍", fused_passes(extra))
    unfused_bytes = w.line("不融合搬", many * tensor, "MB", 5)
    fused_bytes = w.line("融合后搬", few * tensor, "MB", 5)
    cached = l2_gbs > 0 and tensor.value <= l2_mb * MB / 2 and k_ops > 1
    unfused = _with_l2(w, tensor, ops, extra, bandwidth, quantity(l2_gbs, "GB/s"), launch) if cached else unfused_bytes / bandwidth + ops * launch
    slow = w.line("一个算子一个 kernel", unfused, "µs")
    fast = w.line("融成一个", fused_bytes / bandwidth + launch, "µs")
    speedup = w.line("快", slow / fast, "×")
    border = w.line("分界（元素个数）", crossover_elements(launch, bandwidth, quantity(elem_bytes, "B")), "element")
    return Result(
        values={
            "unfused_us": slow, "fused_us": fast, "speedup_x": speedup, "unfused_mb": unfused_bytes, "fused_mb": fused_bytes,
            "launches_saved": k_ops - 1, "crossover_melem": border.value / 1e6,
        },
        lines=w.lines,
        verdict=_verdict(k_ops, n_elem, slow, fast, speedup, border, unfused_bytes, fused_bytes, cached),
        notes=(f"张量 {tensor.text}，超过 L2 的一半（{format_number(l2_mb / 2)} MB）：L2 带宽没用上，把张量缩小再看。",) if l2_gbs > 0 and k_ops > 1 and not cached else (),
    )  # fmt: skip


def _with_l2(w: Worked, tensor: Quantity, ops: Quantity, extra: Quantity, bandwidth: Quantity, l2: Quantity, launch: Quantity) -> Quantity:
    """The passes between kernels at the speed of the cache, the others at that of HBM."""
    inner = w.line("其中中间结果走 L2", inner_passes(ops))
    outer = w.line("走 HBM", fused_passes(extra))
    return outer * tensor / bandwidth + inner * tensor / l2 + ops * launch


def _verdict(
    k_ops: int, n_elem: int, slow: Quantity, fast: Quantity, speedup: Quantity, border: Quantity, before: Quantity, after: Quantity, cached: bool
) -> str:
    if k_ops == 1:
        return "只有一个算子，没有可融的。"
    said = f"{slow.text} → {fast.text}，快 {speedup.text}。"
    if n_elem < border.value:
        return said + f"张量小，时间花在发射上：{k_ops} 次变 1 次。只录 CUDA Graph、不融合，也能省下大半。"
    said += f"张量大，时间花在读写上：{before.text} 变 {after.text}，运算一次没少。"
    return said + ("中间结果走的是 L2，所以没有算子个数那么多倍。" if cached else "")
