"""How long does one gradient all-reduce take, on a ring or in levels, in the words of nccl-tests?"""

from __future__ import annotations

from dataclasses import dataclass

from calculators.catalog import Accelerator, Model, gpu_input
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Series
from calculators.core.errors import refuse
from calculators.core.inputs import choice, integer, log_stops, number, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.units import GB, MB, unit_of
from calculators.core.worked import N, Quantity, Worked, quantity, total
from calculators.distributed._models import CUSTOM, model_or
from calculators.formulas.collectives import Cost, allreduce_factor, hierarchical_phases, one_pass_factor, ring_allreduce

ALGORITHMS = {"ring": "一条环", "hierarchical": "分层：机内、机间、机内"}
SIZES_MB = log_stops(1e-3, 1e5, 4)
LATENCY_CURVE_US = 5.0
"""Drawn for comparison when the typed α is 0."""


@dataclass(frozen=True)
class Links:
    """Bandwidths in bytes per second, α in seconds."""

    intra: float
    inter: float
    alpha: float


def _phases(algorithm: str, n: N, g: N, k: N, size: N, intra: N, inter: N, alpha: N, waits_for_nic: bool) -> tuple[Cost[N], ...]:
    """One ring at the speed of its slowest hop, or the two levels one after the other."""
    if algorithm == "ring":
        return (ring_allreduce(n, size, inter if waits_for_nic else intra, alpha),)
    return hierarchical_phases(g, k, size, intra, inter, alpha, alpha)


def _waits_for_nic(n: int, per_node: int, intra: float, inter: float) -> bool:
    """Is the slowest hop of one ring a NIC?  Inside a node PCIe may be the slower one."""
    return n > per_node and (per_node == 1 or inter <= intra)


def _seconds(algorithm: str, n: int, per_node: int, size: float, links: Links) -> float:
    g = min(n, per_node)
    costs = _phases(algorithm, float(n), float(g), n / g, size, links.intra, links.inter, links.alpha, _waits_for_nic(n, per_node, links.intra, links.inter))
    return sum(cost.seconds for cost in costs)


def _chart(
    run: Run, *, algorithm: str, n_gpus: int, gpus_per_node: int, bus_bw_intra: float, bus_bw_inter: float, alpha: float, **_: object
) -> tuple[Chart, ...]:
    size = float(run.values["grad_gb"]) * GB  # type: ignore[arg-type]
    counts = [n for n in sorted({8, 64, n_gpus}) if n <= gpus_per_node or algorithm == "ring" or n % gpus_per_node == 0]

    def curve(n: int, alpha_us: float) -> tuple[tuple[float, float], ...]:
        links = Links(bus_bw_intra * GB, bus_bw_inter * GB, alpha_us * 1e-6)
        return tuple((mb, _seconds(algorithm, n, gpus_per_node, mb * MB, links) * 1e3) for mb in SIZES_MB)

    series = [Series(f"{n} 张卡", curve(n, alpha), emphasis=n == n_gpus) for n in counts]
    if not alpha:
        series.append(Series(f"{n_gpus} 张卡，α 取 {LATENCY_CURVE_US:g} µs", curve(n_gpus, LATENCY_CURVE_US), dashed=True))
    at = float(run.values["time_ms"])  # type: ignore[arg-type]
    marks = (Mark("现在", size / MB, at, emphasis=True),) if SIZES_MB[0] <= size / MB <= SIZES_MB[-1] and at > 0 else ()
    return (
        LineChart(
            "消息越大越久；消息再小，也有个底",
            "两轴都是对数。斜的一段付的是字节，大一倍久一倍；左边平的一段付的是每一步的延迟 α，消息再小也是这么久。",
            Axis("消息大小", "MB", log=True), Axis("时间", "ms", log=True), tuple(series), marks,
        ),
    )  # fmt: skip


@calculator(
    title="一次 all-reduce 要多久",
    question="数据并行每步要把整份梯度 all-reduce 一次：在你的卡上要多久，每张卡发多少？",
    chapter="10",
    inputs=(
        model_or(CUSTOM, "自己填", "llama-3-8b"),
        integer("n_gpus", "几张卡", 8, "卡", low=2, high=16_384, stops=powers_of_two(2, 16_384), range_remedy="至少 2 张卡才需要通信"),
        integer("gpus_per_node", "每台几张卡", 8, "卡", low=1, high=72, stops=(1, 2, 4, 8, 16, 32, 36, 72), help="不超过这个数就只走机内链路"),
        choice("algorithm", "怎么走", "ring", tuple(ALGORITHMS), labels=ALGORITHMS),
        number("bus_bw_intra", "机内，每卡单向", 360, "GB/s", low=5, high=1000, stops=(25, 64, 150, 200, 240, 300, 360, 450, 720, 900), help="填有效值：H100 NVLink 单向 450，取八成"),
        number("bus_bw_inter", "网卡，每卡单向", 50, "GB/s", low=0.1, high=200, stops=(3.125, 6.25, 12.5, 25, 45, 50, 100), help="400 Gb/s 是 50", range_remedy="单位是 GB/s，400 Gb/s 请填 50"),
        choice("grad_bytes", "每个梯度", 2, (2, 4), "B", more=True, help="BF16 是 2；不少框架用 FP32 归约，是 4"),
        number("alpha", "每一步的延迟 α", 0, "µs", low=0, high=100, more=True, stops=(0, 1, 2, 3, 5, 10, 20, 50)),
        number("params_override", "参数量", None, "params", low=1e6, high=2e12, kind="count", more=True, stops=log_stops(1e8, 1e12, 3), help="填了就不用模型的"),
        number("size_gb", "消息大小", None, "GB", low=1e-6, high=1e4, kind="bytes", more=True, stops=log_stops(1e-3, 1e3, 3), help="填了就不用参数量 × 字节"),
        gpu_input(more=True, help="只用来提醒：填的带宽像不像双向的"),
    ),
    outputs=(
        Output("grad_gb", "要同步的梯度", "GB", main=True),
        Output("sent_per_gpu_gb", "每卡发出", "GB", main=True),
        Output("time_ms", "一次要", "ms", main=True),
        Output("latency_ms", "其中延迟", "ms"),
        Output("steps", "走几步"),
        Output("algbw_gb_s", "algbw", "GB/s"),
        Output("busbw_gb_s", "busbw", "GB/s", main=True),
        Output("busbw_factor", "busbw ÷ algbw", main=True),
        Output("rs_ag_factor", "reduce-scatter、all-gather 各发几份"),
        Output("inter_over_intra", "全走网卡比全走机内慢", "×"),
    ),
    chart=_chart,
    formula=(
        "S = 参数量 × 每个梯度的字节",
        "环：2(n−1)/n · S/B + 2(n−1)·α，B 取最慢的一跳",
        "分层：机内 2(g−1)/g · S/B + 机间 2(k−1)/k · (S/g)/B，α 同理",
        "algbw = S ÷ 时间；busbw = algbw × 2(n−1)/n",
    ),
    assumptions=("带宽是每卡、单向、有效值", "MoE 也按全部参数：每个专家都有梯度", "分层的三段不重叠；「一条环」跨机时当作只有一块网卡，是悲观的界"),
    leaves_out="不算树和交换机内归约（NVLS），不算协议（NCCL 作者说约占线速的 20%）和计算抢 SM：大消息 −10% 到 +30%，小于 1 MB 差 2–10 倍。",
    sources=("NVIDIA/nccl-tests doc/PERFORMANCE.md：系数，algbw 与 busbw", "Patarasuk & Yuan 2009：环搬的字节最少（凭记忆，未核实）", "和第 05 章的 allreduce 是同一套公式"),
)  # fmt: skip
def allreduce_time(
    *, model: Model | None, n_gpus: int, gpus_per_node: int, algorithm: str, bus_bw_intra: float, bus_bw_inter: float, grad_bytes: int, alpha: float,
    params_override: float | None, size_gb: float | None, gpu: Accelerator,
) -> Result:  # fmt: skip
    """Bytes of the gradients over the bandwidth of the slowest hop, and α for every step."""
    crosses = n_gpus > gpus_per_node
    if algorithm == "hierarchical" and crosses and n_gpus % gpus_per_node:
        raise refuse("n_gpus", "几张卡：分层算法要求总卡数是每机卡数的整数倍", f"{n_gpus} / {gpus_per_node}", f"例如 {n_gpus // gpus_per_node * gpus_per_node}")
    w = Worked()
    size = _size(w, model, params_override, grad_bytes, size_gb)
    n, g = quantity(n_gpus), quantity(min(n_gpus, gpus_per_node))
    k = w.line("几台 k", n / g) if algorithm == "hierarchical" and crosses else quantity(n_gpus // min(n_gpus, gpus_per_node))
    intra, inter, step = quantity(bus_bw_intra, "GB/s"), quantity(bus_bw_inter, "GB/s"), quantity(alpha, "µs")
    factor = w.line("每卡发几份", allreduce_factor(n))
    sent = w.line("每卡发出", factor * size, _bytes_unit(factor.value * size.value))
    costs = _phases(algorithm, n, g, k, size, intra, inter, step, _waits_for_nic(n_gpus, gpus_per_node, bus_bw_intra, bus_bw_inter))
    names = ("",) if algorithm == "ring" else ("机内", "机间")
    wires, latencies = [], []
    for name, cost in zip(names, costs, strict=True):
        if cost.wire.value:
            wires.append(w.line(f"{name}搬字节", cost.wire, _time_unit(cost.wire.value)))
        if cost.latency.value:
            latencies.append(w.line(f"{name}延迟", cost.latency, "ms"))
    both = total([*wires, *latencies])
    seconds = w.line("一次要", both, _time_unit(both.value)) if len(wires) + len(latencies) > 1 else wires[0]
    latency = quantity(sum(part.value for part in latencies) * 1e3, "ms")
    algbw = w.line("algbw", size / seconds, "GB/s")
    busbw = w.line("busbw", algbw * factor, "GB/s")
    ratio = _ratio(w, n, size, intra, inter, step)
    return Result(
        values={
            "grad_gb": size, "sent_per_gpu_gb": sent, "time_ms": seconds, "latency_ms": latency, "steps": _steps(algorithm, n_gpus, gpus_per_node),
            "algbw_gb_s": algbw, "busbw_gb_s": busbw, "busbw_factor": factor, "rs_ag_factor": one_pass_factor(n), "inter_over_intra": ratio,
        },
        lines=w.lines,
        verdict=_verdict(algorithm, n_gpus, gpus_per_node, size, sent, seconds, latency, Links(intra.value, inter.value, step.value)),
        resolved={
            **({} if params_override or not model else {"params_override": float(model.total_params)}),
            **({} if size_gb else {"size_gb": size.value / GB}),
        },
        notes=_notes(gpu, bus_bw_intra),
    )  # fmt: skip


def _size(w: Worked, model: Model | None, params_override: float | None, grad_bytes: int, size_gb: float | None) -> Quantity:
    if size_gb is not None:
        unit = _bytes_unit(size_gb * GB)
        size = quantity(size_gb * GB / unit_of(unit).scale, unit)
        w.say(f"消息大小，直接填的 → {size.text}")
        return size
    if model is None and params_override is None:
        raise refuse("params_override", "参数量要自己填：模型选了「自己填」", "空着", "例如 7e9")
    typed = params_override if params_override is not None else model.total_params if model is not None else 0
    params = quantity(typed, "params")
    if model is not None and params_override is None:
        w.say(f"{model.name} 的参数量 → {params.text}")
    return w.line("梯度 S", params * quantity(grad_bytes, "B"), _bytes_unit(params.value * grad_bytes))


def _ratio(w: Worked, n: Quantity, size: Quantity, intra: Quantity, inter: Quantity, step: Quantity) -> Quantity:
    """The same ring over the NICs alone and inside a node alone."""
    slow, fast = (cost.seconds if step.value else cost.wire for cost in (ring_allreduce(n, size, link, step) for link in (inter, intra)))
    return w.line("慢几倍", w.line("同一条环全走网卡", slow, _time_unit(slow.value)) / w.line("全走机内链路", fast, _time_unit(fast.value)), "×")


def _steps(algorithm: str, n: int, per_node: int) -> int:
    g = min(n, per_node)
    return 2 * (n - 1) if algorithm == "ring" else 2 * (g - 1) + 2 * (n // g - 1)


def _bytes_unit(value: float) -> str:
    return next((unit for unit in ("GB", "MB") if value >= 0.1 * unit_of(unit).scale), "KB")


def _time_unit(value: float) -> str:
    return "ms" if value >= 1e-4 else "µs"


def _notes(gpu: Accelerator, intra: float) -> tuple[str, ...]:
    if intra <= gpu.link_gb_s_per_dir:
        return ()
    return (
        f"机内填了 {format_number(intra)} GB/s，{gpu.name} 单向只有 {format_number(gpu.link_gb_s_per_dir)}：你可能填了双向带宽，请除以 2；"
        "只有 NVLS 的 busbw 可以更高。",
    )


def _verdict(algorithm: str, n: int, per_node: int, size: Quantity, sent: Quantity, seconds: Quantity, latency: Quantity, links: Links) -> str:
    head = f"{n} 张卡同步 {size.text}：{seconds.text}，每卡发出 {sent.text}。"
    if latency.value > seconds.value / 2:
        return head + "一半以上是延迟：消息太小，攒成大块再发。"
    g = min(n, per_node)
    if n <= per_node:
        return head + "全走机内：拿这个 busbw 对照 nccl-tests 的 busbw 那一列，低得多就先查链路。"
    if algorithm == "hierarchical":
        flat = _seconds("ring", n, per_node, size.value, links)
        return head + (f"只有一条环、跟着最慢的一跳走，要 {_shown(flat)}。" if g > 1 else "每台只有一张卡，分层和一条环一样。")
    if not _waits_for_nic(n, per_node, links.intra, links.inter):
        return head + "最慢的一跳在机内，不在网卡：先换机内的链路。"
    if g > 1 and n % g == 0:
        levels = _seconds("hierarchical", n, per_node, size.value, links)
        if levels < seconds.value:
            return head + f"每一跳都等网卡；先在机内加好再过网卡，{_shown(levels)}。每张卡的网卡都接好，多条环一起跑也行（第 05 章）。"
    return head + "每一跳都等网卡：要么少搬，要么换更快的网卡。"


def _shown(seconds: float) -> str:
    unit = _time_unit(seconds)
    return quantity(seconds / unit_of(unit).scale, unit, 4).text
