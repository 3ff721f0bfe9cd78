"""How long does it take to move some bytes over HBM, NVLink and the network between machines?"""

from __future__ import annotations

from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Bar, BarChart, Chart, Part
from calculators.core.errors import refuse
from calculators.core.inputs import choice, log_stops, number
from calculators.core.numbers import format_number
from calculators.core.worked import Quantity, Worked, quantity

PRESET_GB = {"7B 权重(BF16)": 14.0, "70B 权重(BF16)": 140.0, "一次梯度同步(7B)": 14.0}
"""Parameters × 2 bytes (BF16): 7e9 × 2 B and 70e9 × 2 B; a gradient is as large as its weights."""
CUSTOM = "自定义"
TYPED_AS_GB_PER_S = (12.5, 50.0)
"""100 Gb/s and 400 Gb/s written in GB/s: the usual slip, and too small a number for any upper limit to catch."""


def _chart(run: Run, **_: object) -> tuple[Chart, ...]:
    links = (("HBM", "hbm_ms"), ("NVLink", "nvlink_ms"), ("跨机网络", "net_ms"))
    bars = tuple(Bar(name, (Part(name, float(run.values[key])),), run.texts[key]) for name, key in links)  # type: ignore[arg-type]
    steps = [float(run.values[key]) for key in ("nvlink_over_hbm_x", "net_over_nvlink_x")]  # type: ignore[arg-type]
    seen = f"每跨一级，慢 {run.texts['nvlink_over_hbm_x']}、{run.texts['net_over_nvlink_x']}。" if min(steps) >= 1 else ""
    return (BarChart("搬同样的字节要多久", f"{seen}横轴是对数：一格十倍。", Axis("时间", "ms", log=True), bars),)


@calculator(
    title="搬一次要多久",
    question="同样一份数据，走 HBM、NVLink、跨机网络，各要多少时间？",
    chapter="00",
    inputs=(
        choice("preset", "搬什么", "7B 权重(BF16)", (*PRESET_GB, CUSTOM)),
        number("bytes_gb", "数据量", None, "GB", low=0.001, high=10_000, kind="bytes", stops=log_stops(0.1, 1000), help="留空就用左边那一项的大小"),
        number("hbm_tbs", "HBM 带宽", 3, "TB/s", low=0.1, high=20, stops=(0.9, 2.039, 3, 3.35, 4.8, 7.7), help="A100 2.039、H100 3.35、H200 4.8、B200 7.7"),
        number("nvlink_gbs", "NVLink 标称带宽", 900, "GB/s", low=10, high=3600, stops=(300, 600, 900, 1800), help="厂商写的数：两个方向相加"),
        number(
            "net_gbps",
            "跨机带宽",
            400,
            "Gb/s",
            low=1,
            high=1600,
            stops=(25, 50, 100, 200, 400, 800),
            range_remedy="跨机带宽按 Gb/s 填；如果手里的数是 Mb/s，除以 1000",
        ),
        choice("nvlink_basis", "NVLink 口径", "双向合计", ("双向合计", "单向"), help="一次搬运只用得上一个方向"),
    ),
    outputs=(
        Output("hbm_ms", "走 HBM", "ms", main=True),
        Output("nvlink_ms", "走 NVLink", "ms", main=True),
        Output("net_ms", "走跨机网络", "ms", main=True),
        Output("nvlink_gb_s", "NVLink 用于计算的带宽", "GB/s"),
        Output("net_gb_s", "跨机带宽", "GB/s"),
        Output("net_over_hbm_x", "跨机 ÷ HBM", "×"),
        Output("net_over_nvlink_x", "跨机 ÷ NVLink", "×"),
        Output("nvlink_over_hbm_x", "NVLink ÷ HBM", "×"),
    ),
    chart=_chart,
    formula=("时间 = 字节 ÷ 带宽", "单向带宽 = 标称带宽 ÷ 2", "1 Gb/s = 1/8 GB/s"),
    leaves_out="不算延迟（约 10 MB 以下才要紧）和协议效率（NVLink 实测约 83%，InfiniBand 约 95%）；NVLink 按单向算，大块传输误差不超过 20%，按双向合计再差一倍。",
    sources=("NVIDIA H100 数据手册：3.35 TB/s；NVLink 900 GB/s 为双向合计", "400 Gb/s：NDR InfiniBand 线速"),
)
def move_time(*, preset: str, bytes_gb: float | None, hbm_tbs: float, nvlink_gbs: float, net_gbps: float, nvlink_basis: str) -> Result:
    """Time to move ``bytes_gb`` (GB = 1e9 B) over three links; no latency, no protocol overhead."""
    if bytes_gb is None:
        if preset == CUSTOM:
            raise refuse("bytes_gb", "选「自定义」时必须填数据量", "空", "例如 14")
        bytes_gb = PRESET_GB[preset]
    w = Worked()
    size = quantity(bytes_gb, "GB")
    headline = quantity(nvlink_gbs, "GB/s")
    nvlink = w.line("NVLink 单向", headline / 2, "GB/s") if nvlink_basis == "单向" else headline
    net = w.line("跨机", quantity(net_gbps, "Gb/s") / quantity(8), "GB/s")
    hbm_s = w.line("HBM", size / quantity(hbm_tbs, "TB/s"), "ms")
    nvlink_s = w.line("NVLink", size / nvlink, "ms")
    net_s = w.line("跨机网络", size / net, "ms")
    step_1 = w.line("HBM → NVLink", nvlink_s / hbm_s, "×")
    step_2 = w.line("NVLink → 跨机", net_s / nvlink_s, "×")
    notes = tuple(
        f"跨机带宽填的是 {format_number(net_gbps)} Gb/s。如果你手里的数是 {format_number(net_gbps)} GB/s，要填成 {format_number(net_gbps * 8)} Gb/s。"
        for slip in TYPED_AS_GB_PER_S
        if net_gbps == slip
    )
    return Result(
        values={
            "hbm_ms": hbm_s, "nvlink_ms": nvlink_s, "net_ms": net_s, "nvlink_gb_s": nvlink, "net_gb_s": net,
            "net_over_hbm_x": net_s.value / hbm_s.value, "net_over_nvlink_x": step_2, "nvlink_over_hbm_x": step_1,
        },
        lines=w.lines,
        verdict=_verdict(size, hbm_s, nvlink_s, net_s, (step_1, step_2), both=nvlink_basis != "单向"),
        resolved={"bytes_gb": bytes_gb},
        notes=notes,
    )  # fmt: skip


def _verdict(size: Quantity, hbm_s: Quantity, nvlink_s: Quantity, net_s: Quantity, steps: tuple[Quantity, Quantity], both: bool) -> str:
    one_way = f"（双向合计；一次搬运只走单向，要 {quantity(2 * nvlink_s.value * 1000, 'ms', digits=4).text}）" if both else ""
    head = f"同样 {size.text}：HBM {hbm_s.text}，NVLink {nvlink_s.text}{one_way}，跨机 {net_s.text}。"
    if min(s.value for s in steps) < 1:
        return head + "外面的路反而比里面快：先核对这几个带宽。"
    return head + f"每跨一级，慢 {steps[0].text}、{steps[1].text}：能留在本卡的别出卡，能留在本机的别出机。"
