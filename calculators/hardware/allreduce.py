"""How long does a collective take on this cluster, and is it the latency or the bandwidth that costs?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Rule, Series
from calculators.core.errors import refuse
from calculators.core.inputs import choice, integer, linear_stops, log_stops, number, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.units import GB, MB, unit_of
from calculators.core.worked import N, Quantity, Worked, quantity, total
from calculators.formulas.collectives import (
    ONE_ROOT,
    OPS,
    Cost,
    bus_factor,
    half_speed_bytes,
    hierarchical_phases,
    in_network_allreduce,
    multi_ring_allreduce,
    one_pass,
    one_root,
    ring_allreduce,
    tree_allreduce,
    tree_depth,
)

ALGO_LABELS = {
    "ring": "一条环（ring）", "tree": "树（tree）", "hierarchical": "分层（机内 → 机间 → 机内）", "in-network": "交换机内归约（NVLS、SHARP）",
    "multi-ring": "多条环，一条轨道一条",
}  # fmt: skip
BOTH_DIRECTIONS = {600: "A100 单向是 300", 900: "H100 单向是 450；B200 单向才是 900", 1800: "B200 单向是 900"}
"""What data sheets print for NVLink, both directions added."""
NVLS_SHARE_PCT = 61
"""Measured NVLS algbw ≈ 275 of 450 GB/s on 8 H100 (NCCL maintainer, nccl-tests issue 212)."""
SIZES = log_stops(1e-6, 10, 8)
"""GB; 1 KB to 10 GB."""


BYTE_UNITS, TIME_UNITS = ("GB", "MB", "KB", "B"), ("ms", "µs")


@dataclass(frozen=True)
class Cluster:
    """Numbers of a run as printed quantities; ``link`` and ``alpha`` are those of the slowest hop of one flat ring."""

    n: Quantity
    g: Quantity
    k: Quantity
    size: Quantity
    intra: Quantity
    inter: Quantity
    alpha_intra: Quantity
    alpha_inter: Quantity

    @property
    def link(self) -> Quantity:
        return self.intra if self.k.value == 1 else self.inter

    @property
    def alpha(self) -> Quantity:
        return self.alpha_intra if self.k.value == 1 else self.alpha_inter

    @property
    def depth(self) -> Quantity:
        return quantity(tree_depth(round(self.n.value)))


Phases = tuple[tuple[str, Cost[Quantity]], ...]
"""(prefix of the worked lines, cost); phases follow one another."""


def _hierarchical(c: Cluster) -> Phases:
    inside, across = hierarchical_phases(c.g, c.k, c.size, c.intra, c.inter, c.alpha_intra, c.alpha_inter)
    named = (("机内", inside), ("机间", across))
    return tuple(phase for phase, size in zip(named, (c.g, c.k), strict=True) if size.value > 1)


def _multi_ring(c: Cluster) -> Phases:
    if c.k.value == 1:
        return (("", ring_allreduce(c.n, c.size, c.intra, c.alpha)),)
    return (("", multi_ring_allreduce(c.n, c.g, c.size, c.intra, c.inter, c.alpha)),)


ALGOS: dict[str, Callable[[Cluster], Phases]] = {
    "ring": lambda c: (("", ring_allreduce(c.n, c.size, c.link, c.alpha)),),
    "tree": lambda c: (("", tree_allreduce(c.depth, c.size, c.link, c.alpha)),),
    "hierarchical": _hierarchical,
    "in-network": lambda c: (("", in_network_allreduce(c.size, c.link, c.alpha)),),
    "multi-ring": _multi_ring,
}
"""All-reduce algorithms."""


def _phases(c: Cluster, op: str, algo: str) -> Phases:
    if op == "all-reduce":
        return ALGOS[algo](c)
    cost = one_root if op in ONE_ROOT else one_pass
    return (("", cost(c.n, c.size, c.link, c.alpha)),)


def _cost(c: Cluster, op: str, algo: str) -> tuple[float, float]:
    """Seconds of latency and seconds on the wire, as plain numbers."""
    phases = _phases(c, op, algo)
    return sum(cost.latency.value for _, cost in phases), sum(cost.wire.value for _, cost in phases)


def _sent(op: str, algo: str, factor: N, size: N, two: N) -> N:
    """Bytes that the busiest rank sends."""
    if op == "all-reduce" and algo == "tree":
        return two * size
    return size if algo == "in-network" else factor * size


def _chart(run: Run, *, op: str, algo: str, size_gb: float, **_: object) -> tuple[Chart, ...]:
    cluster = run.result.trace
    assert isinstance(cluster, Cluster)
    across = cluster.k.value > 1
    drawn = ["ring"]
    if op == "all-reduce":
        drawn += ["tree", "hierarchical" if across else "in-network"]
        drawn += [algo] if algo not in drawn and (across or algo == "in-network") else []
    sizes = sorted({*SIZES, size_gb})

    def curve(name: str) -> tuple[tuple[float, float], ...]:
        latency, wire = _cost(cluster, op, name)
        return tuple((s * GB / MB, (latency + wire * s / size_gb) * 1e3) for s in sizes)

    half = run.values["n_half_mb"]
    rules = (Rule("n½：左边延迟，右边带宽", x=half),) if isinstance(half, float) and SIZES[0] < half * MB / GB < SIZES[-1] else ()
    return (
        LineChart(
            "大小和时间",
            "两轴都是对数。左边平的一段，消息再小也是这么久：付的是延迟；右边斜的一段，付的是字节。",
            Axis("消息大小", "MB", log=True),
            Axis("时间", "ms", log=True),
            tuple(Series(ALGO_LABELS[name].partition("（")[0], curve(name), emphasis=name == algo) for name in drawn),
            marks=(Mark("现在", size_gb * GB / MB, float(run.values["time_ms"]), emphasis=True),),  # type: ignore[arg-type]
            rules=rules,
        ),
    )


@calculator(
    title="集合通信要多久",
    question="这么大一块数据，在你的集群上做一次集合通信要多久？付的是延迟，还是字节？",
    chapter="05",
    inputs=(
        number("size_gb", "每张卡上的数据", 14, "GB", low=1e-9, high=10_000, kind="bytes", stops=log_stops(1e-6, 100, 3), help="nccl-tests 的口径：一张卡上整块缓冲区；7B 的 BF16 梯度是 14"),
        choice("op", "做什么", "all-reduce", OPS),
        choice("algo", "怎么走", "ring", tuple(ALGOS), labels=ALGO_LABELS, help="除 ring 外只对 all-reduce 建模"),
        integer("gpus_per_node", "每台几张卡", 8, "卡", low=1, high=72, stops=(1, 2, 4, 8, 16, 32, 36, 72)),
        integer("nodes", "几台", 1, "台", low=1, high=4096, stops=powers_of_two(1, 4096)),
        number("nvlink_uni_gbs", "NVLink，每卡单向", 450, "GB/s", low=10, high=1800, more=True, stops=(150, 200, 300, 370, 450, 900), help="H800 200、A100 300、H100 450、B200 900"),
        number(
            "nic_gbs", "网卡，每卡单向", 50, "GB/s", low=0.1, high=200, more=True, stops=(3.125, 6.25, 12.5, 25, 50, 100),
            help="每张卡一块 400G 是 50；整台只有一块就除以卡数", range_remedy="单位是 GB/s，400 Gb/s 请填 50",
        ),
        number("alpha_intra_us", "机内每步延迟 α", 3, "µs", low=0, high=100, more=True, stops=(0, 1, 2, 3, 5, 10)),
        number("alpha_inter_us", "机间每步延迟 α", 5, "µs", low=0, high=100, more=True, stops=(0, 2, 5, 10, 20, 50)),
        number("eff", "链路效率", 1.0, low=0.1, high=1, kind="fraction", more=True, stops=(*linear_stops(0.5, 0.8, 0.05), 0.8222, 0.85, 0.9, 0.95, 1.0), help="NVLink 实测 0.82 上下；两种链路都乘"),
    ),
    outputs=(
        Output("time_ms", "时间", "ms", main=True),
        Output("time_us", "合计", "µs", digits=6),
        Output("latency_us", "其中延迟", "µs", main=True),
        Output("algbw_gbs", "algbw", "GB/s", main=True),
        Output("busbw_gbs", "busbw", "GB/s", main=True),
        Output("busbw_factor", "busbw ÷ algbw"),
        Output("sent_gb_per_rank", "最忙的卡发出", "GB", main=True),
        Output("n_half_mb", "n½（延迟和字节一样久）", "MB"),
    ),
    chart=_chart,
    formula=(
        "时间 = 步数 × α + 字节 ÷ 带宽",
        "ring：2(n−1)α + 2(n−1)/n · S/B，B 取最慢的一跳",
        "tree：2⌈log₂n⌉α + 2S/B；交换机内归约：2α + S/B",
        "分层：机内环（S，NVLink）+ 机间环（S ÷ g，网卡）",
        "多条环：2(n−1)α + 2(n−1)/n · S ÷ min(NVLink, g × 网卡)",
        "algbw = S ÷ 时间；busbw = algbw × 2(n−1)/n（all-reduce）或 (n−1)/n 或 1",
    ),
    assumptions=("带宽都是每卡、单向", "「一条环」跨机时只用一块网卡：它是悲观的界，不是 NCCL 的实测", "分层的三段不重叠", "α 3 µs、5 µs 是假设"),
    leaves_out="不算协议（LL、LL128、Simple，NVLink 上约 20%）、拥塞、重叠和 NCCL 自己的选择：±25%。小消息时 NCCL 用 LL 协议，真实延迟约是这里的一半到四分之一（未核实）。",
    sources=("NVIDIA/nccl-tests doc/PERFORMANCE.md", "Patarasuk & Yuan 2009：环的字节数最少（凭记忆，未核实）"),
)  # fmt: skip
def allreduce(
    *, size_gb: float, op: str, algo: str, gpus_per_node: int, nodes: int, nvlink_uni_gbs: float, nic_gbs: float,
    alpha_intra_us: float, alpha_inter_us: float, eff: float,
) -> Result:  # fmt: skip
    """Steps × α + bytes ÷ bandwidth of the chosen algorithm; no protocol, no congestion, no overlap."""
    if op != "all-reduce" and algo != "ring":
        raise refuse("algo", "除 ring 外只对 all-reduce 建模", f"{op} + {algo}", "把「怎么走」改回 ring")
    if gpus_per_node * nodes < 2:
        raise refuse("gpus_per_node", "一张卡不需要通信", f"{gpus_per_node} × {nodes}", "卡数至少 2")
    w = Worked()
    g, k = quantity(gpus_per_node), quantity(nodes)
    cluster = Cluster(
        n=w.line("卡数 n", g * k) if nodes > 1 else g,
        g=g,
        k=k,
        size=_readable(size_gb * GB, BYTE_UNITS),
        intra=_effective(w, "NVLink 有效", nvlink_uni_gbs, eff, used=nodes == 1 or algo in ("hierarchical", "multi-ring")),
        inter=_effective(w, "网卡有效", nic_gbs, eff, used=nodes > 1),
        alpha_intra=quantity(alpha_intra_us, "µs"),
        alpha_inter=quantity(alpha_inter_us, "µs"),
    )
    if algo == "tree":
        w.say(f"树高 ⌈log₂ {gpus_per_node * nodes}⌉ → {tree_depth(gpus_per_node * nodes)}")
    latency, wire = [], []
    for prefix, cost in _phases(cluster, op, algo):
        latency.append(w.line(f"{prefix}延迟", cost.latency, "µs"))
        wire.append(w.line(f"{prefix}搬字节", cost.wire, _unit(cost.wire.value, TIME_UNITS)))
    all_latency = w.line("延迟合计", total(latency), "µs") if len(latency) > 1 else latency[0]
    both = total([*latency, *wire])
    seconds = w.line("合计", both, _unit(both.value, TIME_UNITS))
    factor = w.line("busbw ÷ algbw", bus_factor(op, cluster.n, quantity(1)))
    algbw = w.line("algbw", cluster.size / seconds, "GB/s")
    busbw = w.line("busbw", algbw * factor, "GB/s")
    leaving = _sent(op, algo, factor, cluster.size, quantity(2))
    sent = w.line("最忙的卡发出", leaving, _unit(leaving.value, BYTE_UNITS))
    half = None
    if algo == "ring":
        passes = quantity(round(cluster.n.value) - 1) if op in ONE_ROOT else cluster.n
        half = w.line("n½", half_speed_bytes(passes, cluster.alpha, cluster.link), "MB")
    return Result(
        values={
            "time_ms": seconds, "time_us": seconds, "latency_us": all_latency, "algbw_gbs": algbw, "busbw_gbs": busbw,
            "busbw_factor": factor, "sent_gb_per_rank": sent, "n_half_mb": half,
        },
        lines=w.lines,
        verdict=_verdict(cluster, op, algo, seconds, all_latency, sent),
        notes=_notes(nvlink_uni_gbs, nic_gbs, nodes),
        trace=cluster,
    )  # fmt: skip


def _unit(value: float, units: tuple[str, ...]) -> str:
    """The largest of the units in which the value is at least 0.1, else the smallest."""
    return next((unit for unit in units if value >= 0.1 * unit_of(unit).scale), units[-1])


def _readable(value: float, units: tuple[str, ...]) -> Quantity:
    unit = _unit(value, units)
    return Quantity(value, quantity(value / unit_of(unit).scale, unit).text)


def _effective(w: Worked, label: str, gb_s: float, eff: float, used: bool) -> Quantity:
    link = quantity(gb_s, "GB/s")
    return w.line(label, link * quantity(eff), "GB/s") if used and eff < 1 else Quantity(link.value * eff, link.text)


def _notes(nvlink: float, nic: float, nodes: int) -> tuple[str, ...]:
    notes = []
    if nvlink in BOTH_DIRECTIONS:
        notes.append(f"NVLink 填了 {format_number(nvlink)}：这是双向数字吗？{BOTH_DIRECTIONS[round(nvlink)]}。")
    if nodes > 1 and nic > nvlink:
        notes.append("网卡填得比 NVLink 还快：核对单位；这里的「一条环」跨机时总按网卡算。")
    return tuple(notes)


def _verdict(c: Cluster, op: str, algo: str, seconds: Quantity, latency: Quantity, sent: Quantity) -> str:
    head = f"{format_number(c.n.value)} 张卡 {op} 一块 {c.size.text}：{seconds.text}，最忙的卡发 {sent.text}。"
    share = latency.value / seconds.value
    if share > 0.5:
        part = "几乎全是" if share > 0.99 else f"{format_number(share * 100, digits=3)}% 是"
        return head + f"{part}延迟：消息太小，攒成大块（分桶）再发。"
    if op == "all-reduce" and c.k.value > 1:
        return head + _across(c, algo, seconds)
    if algo == "in-network":
        return head + f"这是理想的界：每张卡只发一份。H100 实测的 NVLS 约到它的 {NVLS_SHARE_PCT}%。"
    if algo == "tree":
        return head + f"树的步数少，字节多：环要 {_text(c, 'ring')}。消息小、卡多时才轮到树。"
    return head + "付的是字节：要么少搬，要么换更快的链路。"


def _across(c: Cluster, algo: str, seconds: Quantity) -> str:
    """What to do about an all-reduce between nodes."""
    flat, best = _text(c, "ring"), min(("hierarchical", "multi-ring"), key=lambda name: sum(_cost(c, "all-reduce", name)))
    if algo == "hierarchical":
        return f"机内先加好，过网卡的每卡只剩 1/{format_number(c.g.value)}；一条平铺的环要 {flat}。"
    if algo == "multi-ring":
        return f"{format_number(c.g.value)} 块网卡一起跑；只有一条环时要 {flat}。"
    if c.g.value > 1 and sum(_cost(c, "all-reduce", best)) < seconds.value:
        return (
            f"每一步都等最慢的一跳（{c.inter.text} 的网卡）。分层 {_text(c, 'hierarchical')}，{format_number(c.g.value)} 条环一起跑 {_text(c, 'multi-ring')}。"
        )
    return "每一步都过网卡：要么少搬，要么换更快的网卡。"


def _text(c: Cluster, algo: str) -> str:
    seconds = sum(_cost(c, "all-reduce", algo))
    unit = _unit(seconds, TIME_UNITS)
    return quantity(seconds / unit_of(unit).scale, unit, digits=4).text
