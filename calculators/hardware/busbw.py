"""A line of nccl-tests: from size and time to algbw, busbw and the share of the link's line rate."""

from __future__ import annotations

from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Bar, BarChart, Chart, Part, Rule
from calculators.core.errors import refuse
from calculators.core.inputs import choice, flag, integer, log_stops, number
from calculators.core.numbers import format_number
from calculators.core.units import GB
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.collectives import OPS, bus_factor
from calculators.formulas.collectives import in_network_factor as in_network

TOO_SLOW = 0.01
"""Below this share of the line rate a large message more likely has a wrong unit than a wrong path."""
HEALTHY, USUAL_LOW, USUAL_HIGH = 0.75, 80, 85
"""Share of the line rate from which a result passes, and the band (%) of a sound ring: 360–380 of 450 GB/s on H100."""


def _chart(run: Run, *, link_uni_gbs: float, **_: object) -> tuple[Chart, ...]:
    bars = tuple(
        Bar(name, (Part(name, float(run.values[key])),), run.texts[key], emphasis=key == "busbw_gbs")  # type: ignore[arg-type]
        for name, key in (("algbw", "algbw_gbs"), ("busbw", "busbw_gbs"))
    )
    desc = "竖线是这条链路单向的线速。点对点搬，busbw 越不过去；越过去了，要么有交换机帮着加，要么有个数填错了。"
    return (BarChart("和线速比", desc, Axis("带宽", "GB/s", low=0), bars, limits=(Rule(f"线速 {format_number(link_uni_gbs)}", x=link_uni_gbs),)),)


@calculator(
    title="看懂 nccl-tests",
    question="nccl-tests 打出来的 algbw 和 busbw 差在哪？这个结果健康吗？",
    chapter="05",
    inputs=(
        choice("op", "测的是哪个", "all-reduce", OPS),
        integer("n", "几张卡", 8, "卡", low=2, high=100_000, stops=(2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)),
        number("size_gb", "size 那一列", 8, "GB", low=1e-9, high=10_000, kind="bytes", stops=log_stops(1e-3, 16, 3), help="一张卡上的整块缓冲区"),
        number("time_ms", "time 那一列", 29.09, "ms", low=1e-4, high=1e7, stops=(10, 20, 29.09, 31.1, 37.8, 40, 50, 75, 100, 200, 500, 1000), help="nccl-tests 打的是 µs，除以 1000 再填"),
        number("link_uni_gbs", "链路线速，每卡单向", 450, "GB/s", low=1, high=1800, stops=(12.5, 25, 50, 100, 200, 300, 450, 900), help="H800 200、A100 300、H100 450、B200 900；400G 网卡 50"),
        flag("nvls", "开着交换机内归约（NVLS）", True, help="H100 起的 NVSwitch 默认开；不进算式，只影响判断"),
    ),
    outputs=(
        Output("algbw_gbs", "algbw", "GB/s", main=True),
        Output("busbw_gbs", "busbw", "GB/s", main=True),
        Output("busbw_factor", "busbw ÷ algbw", main=True),
        Output("in_network_factor", "(n−1)/(n+1)，仅供对照"),
        Output("line_rate_pct", "busbw 占线速", "%", main=True),
        Output("over_line_rate", "超过线速"),
    ),
    chart=_chart,
    formula=("algbw = size ÷ time", "busbw = algbw × 系数", "系数：all-reduce 2(n−1)/n；reduce-scatter、all-gather、all-to-all (n−1)/n；broadcast、reduce 1"),
    assumptions=("系数按点对点算法定，开不开 NVLS，nccl-tests 都这么乘",),
    leaves_out="不判断这个大小该不该到线速：消息小的时候慢是延迟，先拿 1 GB 以上的行来看。健康的 80–85% 是 H100 单机的经验，跨机看网卡。",
    sources=("NVIDIA/nccl-tests doc/PERFORMANCE.md（系数；(n−1)/(n+1) 也在那里）", "NVIDIA/nccl-tests issue 212：H100×8 线速 450，有效约 370，NVLS busbw 约 480"),
)  # fmt: skip
def busbw(*, op: str, n: int, size_gb: float, time_ms: float, link_uni_gbs: float, nvls: bool) -> Result:
    """algbw, busbw and their share of the line rate."""
    w = Worked()
    size, seconds, link = quantity(size_gb, "GB"), quantity(time_ms, "ms"), quantity(link_uni_gbs, "GB/s")
    algbw = w.line("algbw", size / seconds, "GB/s")
    factor = w.line("系数", bus_factor(op, quantity(n), quantity(1)))
    bus = w.line("busbw", algbw * factor, "GB/s")
    share = w.line("占线速", bus / link, "%")
    large = size.value >= 0.1 * GB
    if bus.value > 2 * link.value:
        raise refuse(
            "time_ms",
            f"busbw 不可能到线速的两倍（{bus.text} 对 {link.text}）：时间可能填成了秒，或者多除了一次 1000",
            f"{format_number(time_ms)} ms",
            "核对时间和 size 的单位",
        )
    nvls_factor = w.line("(n−1)/(n+1)，没乘进去", in_network(quantity(n))) if op == "all-reduce" else None
    return Result(
        values={
            "algbw_gbs": algbw, "busbw_gbs": bus, "busbw_factor": factor, "in_network_factor": nvls_factor,
            "line_rate_pct": share, "over_line_rate": share.value > 1,
        },
        lines=w.lines,
        verdict=_verdict(bus, share, nvls and op == "all-reduce", large),
        notes=() if large else ("size 不到 100 MB：这一行多半在测延迟，挑大的行看。",),
    )  # fmt: skip


def _verdict(bus: Quantity, share: Quantity, nvls: bool, large: bool) -> str:
    head = f"busbw {bus.text}，线速的 {share.text}。"
    if share.value > 1:
        return head + ("只有交换机内归约做得到：数据没走那么多，是交换机替你加了。" if nvls else "超过线速：检查单位或 nvls。")
    if share.value < TOO_SLOW and large:
        return head + "低得不像真的：nccl-tests 的 time 是 µs，先看有没有除以 1000 再填；填对了，就查是不是走了以太网。"
    if share.value < HEALTHY:
        return head + "偏低：先查是不是走了 PCIe 或主机内存，再查链路数、拓扑和消息大小。"
    band = f"不靠交换机归约的环，一般在 {USUAL_LOW}–{USUAL_HIGH}%。"
    return head + "健康。" + band + ("这像是环：真用上 NVLS 会更高（H100 单机约 480），查它开没开。" if nvls and 100 * share.value <= USUAL_HIGH else "")
