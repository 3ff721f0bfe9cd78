"""How much of the model states does each ZeRO stage leave on a card, and which is the first that fits?"""

from __future__ import annotations

import math

from calculators.catalog import Accelerator, Model, gpu_input
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Bar, BarChart, Chart, LineChart, Mark, Part, Rule, Series
from calculators.core.errors import refuse
from calculators.core.inputs import choice, integer, linear_stops, log_stops, number, powers_of_two
from calculators.core.numbers import format_number, format_value
from calculators.core.units import GB, GIB
from calculators.core.worked import Quantity, Worked, quantity
from calculators.distributed._models import CUSTOM, model_or
from calculators.formulas.memory import state_bytes
from calculators.formulas.offload import transfer_seconds
from calculators.formulas.zero import CPU_ADAM_BYTES, STAGE_NAMES, STAGES, stage_bytes_per_param

OPTIMIZERS = {
    "12": "12：FP32 主权重 + m + v", "8": "8：FP32 m + v，无主权重；或主权重 + BF16 m、v", "6": "6：主权重 + 8 位 m、v", "4": "4：SGD 动量；或 BF16 m、v",
    "2": "2：8 位 m、v，无主权重", "0": "0：纯 SGD",
}  # fmt: skip
COUNTS = tuple(2**k for k in range(17))
COST = {0: "不用切。", 1: "通信量和 DDP 一样，白省。", 2: "通信量和 DDP 一样，白省；梯度累积时多几趟。", 3: "通信量是 DDP 的 1.5 倍，梯度累积时更多。"}


def _chart(
    run: Run, *, model: Model | None, params: float, n_dp: int, w_bytes: int, g_bytes: int, k_opt: int, gpu: Accelerator, other_gb: float, **_: object
) -> tuple[Chart, ...]:
    psi = float(model.total_params) if model else params
    w, g, k = float(w_bytes), float(g_bytes), float(k_opt)
    room = gpu.memory_gb - other_gb

    def bar(stage: int) -> Bar:
        cut = [n_dp if stage >= least else 1 for least in (3, 2, 1)]
        parts = zip(("权重", "梯度", "优化器"), (w, g, k), cut, strict=True)
        return Bar(
            STAGE_NAMES[stage],
            tuple(Part(name, state_bytes(psi, b) / ranks / GB) for name, b, ranks in parts if b),
            run.texts[f"stage{stage}_gb"],
            emphasis=stage == run.values["first_stage_fits"],
        )

    def curve(stage: int) -> tuple[tuple[float, float], ...]:
        return tuple((float(n), state_bytes(psi, stage_bytes_per_param(stage, w, g, k, float(n))) / GB) for n in COUNTS)

    limits = (Rule(f"{format_number(gpu.memory_gb)} 减 {format_number(other_gb)} GB", x=room),) if room > 0 else ()
    return (
        BarChart("每一级还剩什么", f"{n_dp} 张卡。先切最大的那块：优化器，再切梯度，最后切权重。竖线是留出激活等之后的显存。", Axis("每卡", "GB"), tuple(bar(s) for s in STAGES), limits),
        LineChart(
            "卡越多，省得越多",
            "两轴都是对数。DDP 是平的；ZeRO-1、2 降到一条地板：没切的那部分；只有 ZeRO-3 一路往下。",
            Axis("数据并行的卡数", "卡", log=True),
            Axis("每卡状态", "GB", log=True),
            tuple(Series(STAGE_NAMES[s], curve(s), emphasis=s == run.values["first_stage_fits"]) for s in STAGES),
            marks=(Mark("现在", float(n_dp), float(run.values[f"stage{_shown(run)}_gb"]), emphasis=True),),  # type: ignore[arg-type]
            rules=(Rule(f"标称 {format_number(gpu.memory_gb)} GB", y=gpu.memory_gb),),
        ),
    )  # fmt: skip


def _shown(run: Run) -> int:
    first = run.values["first_stage_fits"]
    return first if isinstance(first, int) and first >= 0 else 3


@calculator(
    title="ZeRO 各级每卡显存",
    question="同一份状态，切到哪一级才放得下？还剩多少？",
    chapter="11",
    inputs=(
        model_or(CUSTOM, "自己填", CUSTOM, help="选了模型，参数量就用它的"),
        number("params", "参数量 Ψ", 7.5e9, "params", low=1e6, high=2e12, kind="count", stops=log_stops(1e8, 1e12, 3), only_if=("model", (CUSTOM,))),
        integer("n_dp", "数据并行", 64, "卡", low=1, high=65_536, stops=powers_of_two(1, 65_536)),
        choice("k_opt", "优化器，每参数", 12, (12, 8, 6, 4, 2, 0), "B", labels=OPTIMIZERS),
        gpu_input(),
        number("other_gb", "激活等", 10, "GB", low=0, high=1000, stops=linear_stops(0, 60, 5), help="激活、缓冲、CUDA 上下文"),
        choice("w_bytes", "权重，每参数", 2, (2, 4), "B", more=True),
        choice("g_bytes", "梯度，每参数", 2, (2, 4), "B", more=True, help="4 是 FP32 累积"),
        number("pcie_gb_s", "PCIe，单向", 25, "GB/s", low=1, high=200, more=True, stops=(12, 25, 50, 100, 200), help="有效值；PCIe 4 ×16 约 25，PCIe 5 约 50"),
        number("dram_gb_s", "主机内存", 200, "GB/s", low=10, high=2000, more=True, stops=(50, 100, 200, 400, 800)),
    ),
    outputs=(
        *(Output(f"stage{s}_gb", f"{STAGE_NAMES[s]}，每卡", "GB", main=True) for s in STAGES),
        *(Output(f"stage{s}_gib", f"{STAGE_NAMES[s]}，每卡", "GiB") for s in STAGES),
        Output("first_stage_fits", "第一个放得下的级，−1 是都不行", main=True),
        Output("bytes_per_param", "每个参数", "B"),
        Output("cluster_gb", "DDP，所有卡加起来", "GB"),
        Output("duplicate_gb", "其中重复的", "GB", main=True),
        Output("limit_stage1_gb", "ZeRO-1 的地板", "GB"),
        Output("limit_stage2_gb", "ZeRO-2 的地板", "GB"),
        Output("offload_pcie_s", "优化器放主机，每步搬", "s"),
        Output("offload_cpu_adam_s", "优化器放主机，CPU 更新", "s"),
    ),
    chart=_chart,
    formula=(
        "DDP = (w + g + K)·Ψ",
        "ZeRO-1 = (w + g + K/n)·Ψ；ZeRO-2 = (w + (g + K)/n)·Ψ；ZeRO-3 = (w + g + K)/n·Ψ",
        "放主机：搬 (w + g)·Ψ ÷ PCIe；更新 28·Ψ ÷ 内存带宽",
    ),
    assumptions=("均分，没有补齐", "放得下 = 状态 + 激活等 ≤ 标称容量（1 GB = 1e9 字节）", "CPU 上的 Adam：读 FP32 梯度 4，读写主权重、m、v 各 8，共 28 字节",
                 "放主机按一张卡拿整份算：n 张卡各搬一片，每条 PCIe 的时间 ÷ n；同一台的内存是共用的，不变"),
    leaves_out="不算激活、碎片、补齐、ZeRO-3 收集来的参数（看 fsdp-peak）和 NCCL 缓冲（约 0.5–2 GB，未核实）：每卡一般少算 2–8 GB。",
    sources=("Rajbhandari et al. 2020（ZeRO）§3、§5，Table 1、Fig. 1", "每参数几字节：第 06 章的 bytes-per-param"),
)  # fmt: skip
def zero_memory(
    *, model: Model | None, params: float, n_dp: int, k_opt: int, gpu: Accelerator, other_gb: float, w_bytes: int, g_bytes: int, pcie_gb_s: float, dram_gb_s: float
) -> Result:  # fmt: skip
    """Bytes per parameter and rank at each stage × parameters."""
    psi_value = float(model.total_params) if model else params
    if n_dp > psi_value:
        raise refuse("n_dp", "数据并行切得比参数还多", f"{n_dp} > {format_value(psi_value, 'params')}", "减少卡数")
    w = Worked()
    psi, n = quantity(psi_value, "params"), quantity(n_dp)
    weight, grad, optimizer = (quantity(b, "B") for b in (w_bytes, g_bytes, k_opt))
    if model:
        w.say(f"{model.name} 的参数量 → {psi.text}")
    each = w.line("每个参数", weight + grad + optimizer, "B")
    stages: list[Quantity] = []
    for s in STAGES:
        per_param = each if s == 0 else stage_bytes_per_param(s, weight, grad, optimizer, n)
        stages.append(w.line(STAGE_NAMES[s], state_bytes(psi, per_param), "GB"))
    cluster = w.line("DDP，所有卡加起来", n * stages[0], "GB")
    duplicate = w.line("其中重复的", (n - 1) * stages[0], "GB")
    floor_1 = w.line("ZeRO-1 的地板", state_bytes(psi, weight + grad), "GB")
    floor_2 = w.line("ZeRO-2 的地板", state_bytes(psi, weight), "GB")
    moved = w.line("放主机，每步搬", transfer_seconds(state_bytes(psi, weight + grad), quantity(pcie_gb_s, "GB/s")), "s")
    adam = w.line("放主机，CPU 更新", transfer_seconds(state_bytes(psi, quantity(CPU_ADAM_BYTES, "B")), quantity(dram_gb_s, "GB/s")), "s")
    room = gpu.memory_bytes - other_gb * GB
    first = next((s for s in STAGES if stages[s].value <= room), -1)
    return Result(
        values={
            **{f"stage{s}_gb": stages[s] for s in STAGES}, **{f"stage{s}_gib": stages[s].value / GIB for s in STAGES},
            "first_stage_fits": first, "bytes_per_param": each, "cluster_gb": cluster, "duplicate_gb": duplicate,
            "limit_stage1_gb": floor_1, "limit_stage2_gb": floor_2, "offload_pcie_s": moved, "offload_cpu_adam_s": adam,
        },
        lines=w.lines,
        verdict=_verdict(gpu, n_dp, other_gb, first, stages, room),
        notes=_reported(gpu),
    )  # fmt: skip


def _verdict(gpu: Accelerator, n_dp: int, other_gb: float, first: int, stages: list[Quantity], room: float) -> str:
    head = f"{n_dp} 张 {gpu.name}，每卡留 {format_number(other_gb)} GB 给激活等："
    if first == 0:
        return head + f"DDP 要 {stages[0].text}，放得下。" + COST[0]
    if first > 0:
        return head + f"DDP 要 {stages[0].text}，放不下；{STAGE_NAMES[first]} 剩 {stages[first].text}，放得下。" + COST[first]
    if room <= 0:
        return head + f"激活等就占满了 {format_number(gpu.memory_gb)} GB，先把它压下去（第 09 章）。"
    least = math.ceil(stages[0].value / room)
    return head + f"切到底的 ZeRO-3 也要 {stages[3].text}，放不下。光切状态至少要 {format_number(least)} 张卡；或把优化器放主机，或上张量、流水线并行。"


def _reported(gpu: Accelerator) -> tuple[str, ...]:
    if gpu.memory_gib_reported is None:
        return ()
    mark = "（未核实）" if gpu.is_unverified("memory_gib_reported") else ""
    return (f"标称 {format_number(gpu.memory_gb)} GB；驱动报告 {format_number(gpu.memory_gib_reported)} GiB{mark}。这里按标称的 1e9 字节比。",)
