"""How many tokens must each GPU process in a step so that the gradient all-reduce hides behind the backward pass?"""

from __future__ import annotations

from calculators.catalog import Accelerator, gpu_input
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Rule, Series
from calculators.core.inputs import choice, linear_stops, number
from calculators.core.numbers import format_number
from calculators.core.units import GB
from calculators.core.worked import Quantity, Worked, quantity, total
from calculators.formulas.collectives import hierarchical_phases, ring_allreduce, tokens_to_hide
from calculators.hardware._links import has_scale_up_link

GPUS_PER_NODE = 8
ONE_NODE, SIXTEEN = "8×NVLink", "16×8 hierarchical"
NODES = {ONE_NODE: 1, SIXTEEN: 16}
ALPHA_INTRA_US, ALPHA_INTER_US = 3.0, 5.0
"""Assumed, as in ``allreduce``."""
BACKWARD_FLOP = 4
"""FLOP per parameter and token of the backward pass."""
MICRO_BATCH = 4096
"""Tokens of the micro-batch that the verdict compares with."""


def _seconds(n_params: float, grad_bytes: float, gpu: Accelerator, nic_gbs: float, nodes: int, flat: bool = False) -> float:
    """The all-reduce in plain numbers, for the curves."""
    size, intra, inter, alpha = n_params * grad_bytes, gpu.link_gb_s_per_dir * GB, nic_gbs * GB, (ALPHA_INTRA_US * 1e-6, ALPHA_INTER_US * 1e-6)
    if flat and nodes > 1:
        return ring_allreduce(float(GPUS_PER_NODE * nodes), size, inter, alpha[1]).seconds
    inside, across = hierarchical_phases(float(GPUS_PER_NODE), float(nodes), size, intra, inter, *alpha)
    return inside.seconds + across.seconds


def _chart(run: Run, *, N: float, grad_bytes: int, gpu: Accelerator, nic_gbs: float, mfu: float, topology: str) -> tuple[Chart, ...]:
    per_token, speed = BACKWARD_FLOP * N, gpu.dense_flops * mfu

    def curve(flat: bool) -> tuple[tuple[float, float], ...]:
        return tuple(
            (float(k), tokens_to_hide(_seconds(N, grad_bytes, gpu, nic_gbs, k, flat), speed, per_token)) for k in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
        )

    return (
        LineChart(
            "机器越多，要多少 token 才藏得住",
            "出了机器跳一下，之后几乎是平的：搬的字节封顶在两份，涨的只有延迟。横轴是对数。",
            Axis("机器", "台", log=True),
            Axis("每卡每步的 token", "token", low=0),
            (Series("分层", curve(False), emphasis=True), Series("只有一条环", curve(True), dashed=True)),
            marks=(Mark("现在", float(NODES[topology]), float(run.values["tokens_per_gpu"]), emphasis=True),),  # type: ignore[arg-type]
            rules=(Rule(f"micro-batch {MICRO_BATCH}", y=float(MICRO_BATCH)),),
        ),
    )


@calculator(
    title="多少 token 能藏住通信",
    question="每张卡每步要算多少 token，反向那段时间才盖得住一次梯度 all-reduce？",
    chapter="05",
    inputs=(
        number("N", "参数量", 7e9, "params", low=1e6, high=1e13, stops=(1e8, 1e9, 3e9, 7e9, 1.3e10, 3e10, 7e10, 1.8e11, 4.05e11, 1e12)),
        choice("topology", "集群", ONE_NODE, tuple(NODES), labels={ONE_NODE: "1 台 × 8 卡，走 NVLink", SIXTEEN: "16 台 × 8 卡，分层"}),
        gpu_input(where=has_scale_up_link),
        number("mfu", "算力利用率 MFU", 0.40, low=0.01, high=1, kind="fraction", stops=linear_stops(0.1, 0.7, 0.05), help="算得越快，越难藏住"),
        choice("grad_bytes", "每个梯度的字节", 2, (2, 4), "B", help="BF16 是 2；不少框架用 FP32 做归约，是 4"),
        number("nic_gbs", "网卡，每卡单向", 50, "GB/s", low=0.1, high=200, more=True, stops=(3.125, 6.25, 12.5, 25, 50, 100), only_if=("topology", (SIXTEEN,)), range_remedy="单位是 GB/s，400 Gb/s 请填 50"),
    ),
    outputs=(
        Output("comm_ms", "一次梯度同步", "ms", main=True),
        Output("tokens_per_gpu", "每卡每步至少", "token", main=True),
    ),
    chart=_chart,
    formula=("反向：每个 token 4N FLOP", "token = 通信时间 × 峰值 × MFU ÷ (4 × N)"),
    assumptions=("反向全程都能和通信重叠；α 机内 3 µs、机间 5 µs", "字节数和运算数都随 N 涨，所以门槛几乎和模型大小无关"),
    leaves_out="不算分桶留下的尾巴（最后一桶没有反向可藏）和 attention 的运算；按实测的链路效率 82% 算，门槛高两成。第 10 章细算。",
    sources=("反向是前向的两倍：每个参数每个 token 4 FLOP（第 04 章）", "all-reduce：同 allreduce", "峰值与 NVLink 单向带宽：硬件目录"),
)  # fmt: skip
def hide_comm(*, N: float, topology: str, gpu: Accelerator, mfu: float, grad_bytes: int, nic_gbs: float) -> Result:
    """All-reduce time × achieved FLOP/s ÷ 4N."""
    w = Worked()
    params, nodes = quantity(N, "params"), NODES[topology]
    size = w.line("梯度", params * quantity(grad_bytes, "B"), "GB" if N * grad_bytes >= 0.1 * GB else "MB")
    links = quantity(gpu.link_gb_s_per_dir, "GB/s"), quantity(nic_gbs, "GB/s")
    alphas = quantity(ALPHA_INTRA_US, "µs"), quantity(ALPHA_INTER_US, "µs")
    phases = hierarchical_phases(quantity(GPUS_PER_NODE), quantity(nodes), size, *links, *alphas)
    named = list(zip(("机内", "机间"), phases, strict=True))[: 2 if nodes > 1 else 1]
    parts: list[Quantity] = []
    for where, cost in named:
        parts.append(w.line(f"{where}延迟", cost.latency, "µs"))
        parts.append(w.line(f"{where}搬字节", cost.wire, "ms"))
    comm = w.line("一次梯度同步", total(parts), "ms")
    speed = w.line("每卡实际算力", quantity(gpu.dense_tflops, "TFLOPS") * quantity(mfu), "TFLOPS")
    per_token = w.line("反向每个 token", quantity(BACKWARD_FLOP, "FLOP") * params, "GFLOP")
    tokens = w.line("每卡每步至少", tokens_to_hide(comm, speed, per_token), "token")
    return Result(
        values={"comm_ms": comm, "tokens_per_gpu": tokens},
        lines=w.lines,
        verdict=_verdict(tokens.value),
    )


def _verdict(tokens: float) -> str:
    head = f"每卡每步不少于 {format_number(round(tokens))} token，梯度同步就藏得进反向。"
    margin = MICRO_BATCH / tokens
    if margin >= 1:
        return head + f"一个 {MICRO_BATCH} token 的 micro-batch 够藏，还有 {format_number(margin, digits=2)} 倍的余地：数据并行可以放到机器外面。"
    return head + f"一个 {MICRO_BATCH} token 的 micro-batch 藏不住：攒几个 micro-batch 再同步，或者换更宽的网。"
