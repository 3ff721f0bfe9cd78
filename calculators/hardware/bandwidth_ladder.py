"""Four questions to a bandwidth number, and the rung on which it stands: HBM, NVLink, PCIe, network."""

from __future__ import annotations

from calculators.catalog import Accelerator, accelerator, gpu_input
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Bar, BarChart, Chart, Part
from calculators.core.inputs import choice, integer, linear_stops, number
from calculators.core.numbers import format_number
from calculators.core.units import GB
from calculators.core.worked import Quantity, Worked, quantity
from calculators.hardware._links import has_scale_up_link

PCIE_5_X16 = accelerator("h100-pcie").link_gb_s_per_dir
"""GB/s, one direction: 32 GT/s × 16 lanes ÷ 8, before encoding (catalog: the link of the H100 PCIe)."""
NIC_GBPS, ETHERNET_GBPS = 400, 100
"""Gb/s of a NIC; the line rate of a NIC is quoted for one direction."""
ONE_WAY, BOTH_WAYS = "单向", "双向合计"


def _link_name(gpu: Accelerator) -> str:
    return gpu.link_kind.partition(" (")[0]


def _chart(run: Run, *, basis: str, gpu: Accelerator, **_: object) -> tuple[Chart, ...]:
    ways = 2 if basis == BOTH_WAYS else 1

    def bar(name: str, gb_s: float, own: bool = False) -> Bar:
        return Bar(name, (Part(name, gb_s),), f"{format_number(gb_s)} GB/s", emphasis=own)

    values = run.values
    links = ((_link_name(gpu), "link_gb_s"), ("PCIe 5 x16", "pcie_gb_s"), (f"{NIC_GBPS}G 网卡", "nic_gb_s"), (f"{ETHERNET_GBPS}G 网卡", "ethernet_gb_s"))
    bars = [bar("HBM", float(values["hbm_gb_s"]))]  # type: ignore[arg-type]
    bars += [bar(name, ways * float(values[key])) for name, key in links]  # type: ignore[arg-type]
    bars.append(bar("你的", ways * float(values["own_gb_s"]), own=True))  # type: ignore[arg-type]
    note = "HBM 读写共用一条总线，没有「双向」一说，所以它那根不变。" if basis == BOTH_WAYS else ""
    return (BarChart(f"带宽阶梯，{basis}", f"横轴是对数，一格十倍。{note}", Axis("每张卡", "GB/s", log=True), tuple(bars)),)


@calculator(
    title="四问一个带宽",
    question="手里这个带宽，换成每卡、单向、有效的 GB/s 是多少？站在阶梯的哪一级？",
    chapter="05",
    inputs=(
        number("stated", "手里的数", 400, low=0.001, high=1e6, stops=(10, 25, 32, 50, 64, 100, 128, 200, 300, 400, 450, 600, 800, 900, 1800)),
        choice("unit", "一问：单位", "Gb/s", ("Gb/s", "GB/s"), labels={"Gb/s": "Gb/s（bit）", "GB/s": "GB/s（byte）"}, help="网卡、交换机写 bit；NVLink、PCIe、HBM 写 byte"),
        choice("direction", "二问：方向", ONE_WAY, (ONE_WAY, BOTH_WAYS), help="NVLink、PCIe 的宣传页常写双向合计；网卡写单向"),
        integer("links", "三问：一张卡有几条", 1, low=1, high=144, stops=(1, 2, 4, 6, 8, 12, 18), help="数是每条链路的就填条数；已经是每卡的填 1"),
        number("eff", "四问：有效的几成", 1.0, low=0.1, high=1, kind="fraction", stops=linear_stops(0.5, 1, 0.05), help="线速填 1；NVLink 实测 0.83 上下"),
        gpu_input(where=has_scale_up_link, label="和哪张卡的阶梯比"),
        choice("basis", "图按", ONE_WAY, (ONE_WAY, BOTH_WAYS), more=True),
    ),
    outputs=(
        Output("own_gb_s", "每卡、单向、有效", "GB/s", main=True),
        Output("own_ms_per_gb", "搬 1 GB", "ms", main=True),
        Output("hbm_over_own_x", "HBM 是它的", "×", main=True),
        Output("hbm_gb_s", "HBM", "GB/s"),
        Output("link_gb_s", "卡间互联，单向", "GB/s"),
        Output("pcie_gb_s", "PCIe 5 x16，单向", "GB/s"),
        Output("nic_gb_s", f"{NIC_GBPS}G 网卡，单向", "GB/s"),
        Output("ethernet_gb_s", f"{ETHERNET_GBPS}G 网卡，单向", "GB/s"),
        Output("hbm_over_link_x", "HBM ÷ 卡间互联", "×"),
        Output("hbm_over_pcie_x", "HBM ÷ PCIe", "×"),
        Output("hbm_over_nic_x", f"HBM ÷ {NIC_GBPS}G", "×"),
        Output("hbm_over_ethernet_x", f"HBM ÷ {ETHERNET_GBPS}G", "×"),
        Output("link_over_nic_x", f"卡间互联 ÷ {NIC_GBPS}G", "×"),
    ),
    chart=_chart,
    formula=("有效带宽 = 手里的数 ÷ 8（若是 bit）÷ 2（若是双向合计）× 链路条数 × 效率",),
    assumptions=("一张卡一块网卡；PCIe 按 5.0 x16",),
    leaves_out="只是线速乘效率，不算延迟：消息在几十 MB 以下，时间由延迟定。没有点对点的 PCIe 卡（如 RTX 4090）要绕主机内存，到不了这里的 PCIe 一级。",
    sources=("HBM 与互联：硬件目录（单向）", "PCIe 5.0：32 GT/s × 16 条 ÷ 8，未扣编码", "NVLink 实测 83%：NVIDIA/nccl issue 1264"),
)  # fmt: skip
def bandwidth_ladder(*, stated: float, unit: str, direction: str, links: int, eff: float, gpu: Accelerator, basis: str) -> Result:
    """Bits to bytes, one direction, per GPU, effective; then the ratio to each rung.  ``basis`` concerns the chart alone."""
    w = Worked()
    own = quantity(stated, unit)
    if unit == "Gb/s":
        own = w.line("bit → byte", own / quantity(8), "GB/s")
    if direction == BOTH_WAYS:
        own = w.line("双向 → 单向", own / quantity(2), "GB/s")
    if links > 1:
        own = w.line("每链路 → 每卡", own * quantity(links), "GB/s")
    if eff < 1:
        own = w.line("线速 → 有效", own * quantity(eff), "GB/s")
    hbm, link, pcie = quantity(gpu.bandwidth_gb_s, "GB/s"), quantity(gpu.link_gb_s_per_dir, "GB/s"), quantity(PCIE_5_X16, "GB/s")
    nic, ethernet = (quantity(gbps / 8, "GB/s") for gbps in (NIC_GBPS, ETHERNET_GBPS))
    per_gb = w.line("搬 1 GB", quantity(1, "GB") / own, "ms")
    over_own = w.line("HBM ÷ 你的", hbm / own, "×")
    over_link = w.line("HBM ÷ 卡间互联", hbm / link, "×")
    link_over_nic = w.line(f"卡间互联 ÷ {NIC_GBPS}G 网卡", link / nic, "×")
    return Result(
        values={
            "own_gb_s": own, "own_ms_per_gb": per_gb, "hbm_over_own_x": over_own, "hbm_gb_s": hbm, "link_gb_s": link, "pcie_gb_s": pcie,
            "nic_gb_s": nic, "ethernet_gb_s": ethernet, "hbm_over_link_x": over_link, "hbm_over_pcie_x": hbm / pcie,
            "hbm_over_nic_x": hbm / nic, "hbm_over_ethernet_x": hbm / ethernet, "link_over_nic_x": link_over_nic,
        },
        lines=w.lines,
        verdict=_verdict(gpu, own, over_own, link),
    )  # fmt: skip


def _verdict(gpu: Accelerator, own: Quantity, over_own: Quantity, link: Quantity) -> str:
    gb_s = own.value / GB
    rungs = {"HBM": gpu.bandwidth_gb_s, _link_name(gpu): gpu.link_gb_s_per_dir, "PCIe 5 x16": PCIE_5_X16, f"{NIC_GBPS}G 网卡": NIC_GBPS / 8, f"{ETHERNET_GBPS}G 网卡": ETHERNET_GBPS / 8}  # fmt: skip
    near = min(rungs, key=lambda name: abs(gb_s / rungs[name] - 1) if gb_s > rungs[name] else abs(rungs[name] / gb_s - 1))
    head = f"每卡单向 {own.text}，最接近「{near}」那一级"
    if over_own.value < 1:
        return head + "，比 HBM 还快：先核对这四问。"
    beside = f"，卡间互联是它的 {format_number(link.value / own.value, digits=2)} 倍" if own.value < 0.95 * link.value else ""
    return head + f"；HBM 是它的 {over_own.text}{beside}。"
