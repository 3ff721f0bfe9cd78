"""How many blocks of a kernel can live on one SM, and which resource runs out first?"""

from __future__ import annotations

from calculators.catalog import Accelerator, gpu_input
from calculators.catalog.chips import shared_memories
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Bar, BarChart, Chart, LineChart, Mark, Part, Series
from calculators.core.errors import refuse
from calculators.core.inputs import integer, number
from calculators.core.numbers import format_number
from calculators.core.worked import Quantity, Worked, ceil, quantity, smaller
from calculators.formulas.chip import (
    MOST_BLOCKS,
    MOST_WARPS,
    REGISTER_STEP,
    REGISTERS,
    RESERVED_SMEM_KB,
    WARP,
    blocks_by_registers,
    blocks_by_shared_memory,
    blocks_by_warps,
    registers_per_warp,
)

REMEDIES = {
    "registers": "寄存器先用完：减每线程寄存器（launch bounds、更小的 tile）才住得下更多",
    "shared_memory": "共享内存先用完：减每块的 tile 或流水级数才住得下更多",
    "warps": "warp 名额先满，可每块的 warp 除不尽 64：换成 256 或 512 线程一块，才填得满",
    "blocks": "块名额先满：每块太小，把块加大",
}
"""In the order that settles a tie."""
NAMES = {"registers": "寄存器", "shared_memory": "共享内存", "warps": "warp 名额", "blocks": "块名额"}
LOW_PCT = 30
MOST_REGISTERS = 255
"""Of one thread."""


def _occupancy_pct(regs: int, warps: int, by_others: int) -> float:
    by_regs = blocks_by_registers(float(REGISTERS), float(warps), registers_per_warp(float(regs), WARP, REGISTER_STEP))
    return 100 * min(by_regs, by_others) * warps / MOST_WARPS


def _chart(run: Run, *, threads: int, regs: int, **_: object) -> tuple[Chart, ...]:
    limits: dict[str, int] = {name: int(run.values[f"by_{name}"]) for name in REMEDIES}  # type: ignore[arg-type]
    tight = str(run.values["limiter"])
    bars = tuple(Bar(NAMES[name], (Part("块", min(n, MOST_BLOCKS)),), f"{n} 块", emphasis=name == tight) for name, n in limits.items())
    warps = -(-threads // WARP)
    others = min(n for name, n in limits.items() if name != "registers")
    stairs = tuple(
        (float(r), _occupancy_pct(r, warps, others)) for step in range(16, MOST_REGISTERS + 8, 8) for r in (max(step - 7, 16), min(step, MOST_REGISTERS))
    )
    return (
        BarChart("四道限额，最短的说了算", f"每道限额各放得下几块；超过 {MOST_BLOCKS} 块的画到 {MOST_BLOCKS}。", Axis("块", low=0, high=MOST_BLOCKS), bars),
        LineChart(
            "每线程寄存器和占用率",
            "别的不动，只加寄存器：按 8 个一档发，块只能整块住，所以是台阶。平着走的那段，是别的限额先到。",
            Axis("每线程寄存器"),
            Axis("占用率", "%", low=0, high=100),
            (Series("", tuple(dict.fromkeys(stairs)), emphasis=True),),
            marks=(Mark("现在", regs, float(run.values["occupancy_pct"]), emphasis=True),),  # type: ignore[arg-type]
        ),
    )


@calculator(
    title="一个 SM 能住几个块",
    question="这个 kernel 的块，一个 SM 住得下几个？先用完的是寄存器、共享内存，还是名额？",
    chapter="02",
    inputs=(
        integer("threads", "每块线程", 256, low=32, high=1024, stops=(32, 64, 128, 192, 256, 384, 512, 768, 1024)),
        integer("regs", "每线程寄存器", 64, low=16, high=MOST_REGISTERS, stops=(16, 24, 32, 40, 48, 64, 72, 80, 96, 128, 168, 192, 224, 255), help="编译时加 -Xptxas -v 看"),
        number("smem_kb", "每块共享内存", 0, "KB (1024 B)", low=0, high=227, stops=(0, 8, 16, 32, 48, 64, 80, 96, 128, 163, 227)),
        gpu_input("a100-80gb", where=lambda a: a.id in shared_memories()),
    ),
    outputs=(
        Output("blocks", "住得下的块", main=True),
        Output("warps", "住得下的 warp", main=True),
        Output("occupancy_pct", "占用率", "%", main=True),
        Output("limiter", "先用完的"),
        Output("by_registers", "寄存器放得下的块"),
        Output("by_shared_memory", "共享内存放得下的块"),
        Output("by_warps", "warp 名额放得下的块"),
        Output("by_blocks", "块名额"),
        Output("regs_allocated", "每线程实发寄存器"),
        Output("smem_per_sm_kb", "一个 SM 的共享内存", "KB (1024 B)"),
        Output("smem_per_block_kb", "一块最多拿的共享内存", "KB (1024 B)"),
    ),
    chart=_chart,
    formula=(
        "一个 warp 的寄存器 = ⌈每线程 × 32 ÷ 256⌉ × 256；一个 SM 有 65,536 个",
        "共享内存放得下 = ⌊每 SM ÷ (每块 + 1 KiB)⌋：每块有 1 KiB 留给系统",
        "块 = 四道限额里最小的；占用率 = 块 × 每块 warp ÷ 64",
    ),
    assumptions=("计算能力 8.0 和 9.0：64 个 warp、32 个块、65,536 个寄存器；共享内存只算动态申请的",),
    leaves_out="不算块数不够铺满整卡的情况（见「尾巴浪费」），也不算集群启动。占用率高不等于快。",
    sources=("CUDA C++ Programming Guide，compute capability 8.0、9.0 的表", "CUDA occupancy calculator：寄存器按 256 个一份发给 warp", "每 SM 的共享内存：目录 chips.toml"),
)  # fmt: skip
def occupancy(*, threads: int, regs: int, smem_kb: float, gpu: Accelerator) -> Result:
    """The smallest of four limits; registers are handed out per warp in pieces of 256, 1 KB of shared memory per block is reserved."""
    room = shared_memories()[gpu.id]
    if smem_kb > room.per_block_kb:
        limit = f"{gpu.name.removeprefix('NVIDIA ')} 上最多 {room.per_block_kb} KiB"
        raise refuse("smem_kb", f"每块共享内存超过了单块上限，{limit}", f"{format_number(smem_kb, digits=6)} KiB", "把 tile 或流水级数减小")
    w = Worked()
    lanes, step, count = quantity(WARP), quantity(REGISTER_STEP), quantity(regs)
    warps = w.line("一块的 warp", ceil(quantity(threads) / lanes))
    per_warp = w.line("一个 warp 的寄存器", registers_per_warp(count, lanes, step))
    per_thread = round(per_warp.value / WARP)
    by_regs = w.line("寄存器放得下", blocks_by_registers(quantity(REGISTERS), warps, per_warp))
    if not by_regs.value:
        launched = round(warps.value) * WARP
        raise refuse("regs", "寄存器不够", f"{launched}×{per_thread} > {REGISTERS}", f"每线程最多 {REGISTERS // launched // 8 * 8} 个，或把块变小")
    by_smem = w.line("共享内存放得下", blocks_by_shared_memory(quantity(room.per_sm_kb), quantity(smem_kb), quantity(RESERVED_SMEM_KB)))
    by_warps = w.line("warp 名额放得下", blocks_by_warps(quantity(MOST_WARPS), warps))
    blocks = w.line("住得下的块", smaller(smaller(by_regs, by_smem), smaller(by_warps, quantity(MOST_BLOCKS))))
    resident = w.line("住得下的 warp", blocks * warps)
    share = w.line("占用率", resident / quantity(MOST_WARPS), "%")
    limits = dict(zip(REMEDIES, (round(q.value) for q in (by_regs, by_smem, by_warps, quantity(MOST_BLOCKS))), strict=True))
    limiter = min(limits, key=lambda name: limits[name])  # the first of equals: the order of REMEDIES
    return Result(
        values={
            "blocks": limits[limiter], "warps": round(resident.value), "occupancy_pct": share, "limiter": limiter,
            **{f"by_{name}": n for name, n in limits.items()},
            "regs_allocated": per_thread, "smem_per_sm_kb": room.per_sm_kb, "smem_per_block_kb": room.per_block_kb,
        },
        lines=w.lines,
        verdict=_verdict(blocks, resident, share, [name for name, n in limits.items() if n == limits[limiter]]),
        notes=(f"寄存器按 8 个一档发：每线程 {regs} 个，实发 {per_thread} 个。",) if per_thread != regs else (),
    )  # fmt: skip


def _advice(share: Quantity, tight: list[str]) -> str:
    """``tight``: the limits that are reached together."""
    if share.value == 1:
        return "住满了：寄存器、共享内存再省也住不下更多"
    if "warps" in tight:
        return REMEDIES["warps"]
    return REMEDIES[tight[0]] if len(tight) == 1 else f"{'、'.join(NAMES[name] for name in tight)}同时到顶：只松一样没有用"


def _verdict(blocks: Quantity, warps: Quantity, share: Quantity, tight: list[str]) -> str:
    low = "低不等于慢：靠宽读、异步拷贝、大 tile 藏延迟的 kernel，常年就在这里。" if share.value * 100 < LOW_PCT else ""
    return f"一个 SM 住 {blocks.text} 块、{warps.text} 个 warp，占用率 {share.text}。{_advice(share, tight)}。{low}"
