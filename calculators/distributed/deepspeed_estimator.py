"""The memory that DeepSpeed's estimator prints, line by line, and what its "GB" means."""

from __future__ import annotations

from calculators.core.calculator import Output, Result, Row, Run, calculator
from calculators.core.charts import Axis, Bar, BarChart, Chart, Part
from calculators.core.errors import refuse
from calculators.core.inputs import choice, flag, integer, linear_stops, log_stops, number, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.units import GIB
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.deepspeed import Setup, stage2_cpu, stage2_gpu, stage3_cpu, stage3_gpu

VERSIONS = {"docs": "旧版与文档：4Ψ + 16Ψ/n", "0.19.8": "新版（PR #5099 起）：2Ψ + 18Ψ/n"}
Option = tuple[bool, bool, bool]
"""offload_param, offload_optimizer, zero_init"""
PRINTED: dict[int, tuple[Option, ...]] = {
    2: ((False, True, True), (False, False, True)),
    3: ((True, True, True), (True, True, False), (False, True, True), (False, True, False), (False, False, True), (False, False, False)),
}
"""Options in the order in which the estimator prints its lines."""


def _bytes(s: Setup[float], stage: int, option: Option, documented: bool) -> tuple[float, float]:
    """GPU and CPU."""
    offload_param, offload_optimizer, zero_init = option
    if stage == 2:
        return stage2_gpu(s, offload_optimizer, documented), stage2_cpu(s, offload_optimizer)
    return stage3_gpu(s, offload_optimizer, offload_param), stage3_cpu(s, offload_optimizer, offload_param, zero_init)


def _options_text(stage: int, option: Option) -> str:
    param, optimizer, zero_init = option
    device = {True: "cpu ", False: "none"}
    if stage == 2:
        return f"offload_optimizer={device[optimizer]}".rstrip()
    return f"offload_param={device[param]}, offload_optimizer={device[optimizer]}, zero_init={int(zero_init)}"


def _chart(run: Run, *, stage: int, **_: object) -> tuple[Chart, ...]:
    setup = run.result.trace
    assert isinstance(setup, tuple)
    s, documented, now = setup
    names = {(True, True): "参数和优化器都卸载", (False, True): "只卸载优化器", (False, False): "都不卸载"}

    def bars(which: int) -> tuple[Bar, ...]:
        return tuple(
            Bar(
                names[option[:2]] + ("" if stage == 2 else "，zero.Init" if option[2] else "，没有 zero.Init"),
                (Part("", _bytes(s, stage, option, documented)[which] / GIB),),
                f"{_bytes(s, stage, option, documented)[which] / GIB:.2f}",
                emphasis=option == now,
            )
            for option in PRINTED[stage]
        )

    return (
        BarChart("每张卡", "卸载把显存换成主机内存，和下一张图对着看。", Axis("显存", "GiB"), bars(0)),
        BarChart("每台主机", "没有 zero.Init 时，台上每个进程先各建一份 FP32 的整个模型：内存先爆。", Axis("内存", "GiB"), bars(1)),
    )


@calculator(
    title="复现 DeepSpeed 的显存估算器",
    question="估算器打印的每一行从哪来？它的「GB」是什么？",
    chapter="11",
    inputs=(
        number("total_params", "总参数", 2851e6, "params", low=1e6, high=2e12, kind="count", stops=log_stops(1e8, 1e12, 3)),
        choice("stage", "级", 3, (2, 3), labels={"2": "ZeRO-2", "3": "ZeRO-3"}),
        flag("offload_optimizer", "优化器放主机", False),
        flag("offload_param", "参数也放主机", False, help="要先卸载优化器，而且是 ZeRO-3"),
        integer("gpus_per_node", "每台几张卡", 8, "卡", low=1, high=16, stops=(1, 2, 4, 8, 16)),
        integer("nodes", "几台", 1, "台", low=1, high=1024, stops=powers_of_two(1, 1024)),
        number("largest_layer_params", "最大一层", 32e6, "params", low=1e3, high=1e10, kind="count", more=True, stops=log_stops(1e6, 1e10, 3), help="一个模块自己的参数，常常是词表；只 ZeRO-3 用"),
        flag("zero_init", "用 zero.Init 建模型", True, more=True, help="边建边切；只 ZeRO-3 有差别"),
        number("buffer_factor", "内存余量系数", 1.5, low=1, high=3, more=True, stops=linear_stops(1, 3, 0.1)),
        choice("version", "ZeRO-2 的公式", "docs", tuple(VERSIONS), labels=VERSIONS, more=True, help="只影响不卸载的 ZeRO-2"),
    ),
    outputs=(
        Output("gpu_gib", "每卡", "GiB", main=True),
        Output("cpu_gib", "每台主机", "GiB", main=True),
        Output("gpu_gb", "每卡，10⁹ 字节", "GB", main=True),
        Output("printed", "估算器打印的行", columns=(("cpu", "per CPU", ""), ("gpu", "per GPU", ""), ("options", "Options", ""))),
    ),
    chart=_chart,
    formula=(
        "ZeRO-3：4 × 最大一层 + 18Ψ/n；卸载优化器 18 换成 2；参数也卸载只剩 4 × 最大一层",
        "ZeRO-2：4Ψ + 16Ψ/n（PR #5099 之后的代码是 2Ψ + 18Ψ/n）；卸载优化器 2Ψ",
        "主机：余量 × 每台 4g·Ψ（zero.Init：4g × 最大一层）；卸载：余量 × 16Ψ 或 18Ψ ÷ 台数，没有 zero.Init 取 max(4g, …)",
    ),
    assumptions=("16 = FP32 的权重、梯度、m、v 各 4；18 再加 FP16 权重 2", "打印时除以 2³⁰，却写 GB"),
    leaves_out="估算器自己就不算激活、碎片和通信缓冲：真实占用比它多几 GB 到几十 GB。",
    sources=("DeepSpeed 文档 Memory Requirements（2851M、最大一层 32M、8 张卡的打印）", "deepspeedai/DeepSpeed PR #5099（ZeRO-2 从 4Ψ + 16Ψ/n 改成 2Ψ + 18Ψ/n），0.19.8 的代码"),
)  # fmt: skip
def deepspeed_estimator(
    *, total_params: float, stage: int, offload_optimizer: bool, offload_param: bool, gpus_per_node: int, nodes: int, largest_layer_params: float,
    zero_init: bool, buffer_factor: float, version: str,
) -> Result:  # fmt: skip
    """The estimator's own formulas; every line that it would print, and the chosen one worked."""
    if offload_param and (stage == 2 or not offload_optimizer):
        how = "ZeRO-2" if stage == 2 else "优化器没卸载"
        raise refuse("offload_param", "参数也放主机：DeepSpeed 只在 stage 3 且优化器已卸载时才允许卸载参数", how, "改成 ZeRO-3，并卸载优化器")
    w = Worked()
    g, k = quantity(gpus_per_node), quantity(nodes)
    n = w.line("卡数 n", g * k) if nodes > 1 else g
    psi, largest = quantity(total_params, "params"), quantity(largest_layer_params, "params")
    s = Setup(psi, largest, g, k, n, quantity(buffer_factor))
    documented = version == "docs"
    if stage == 2:
        on_gpu, on_cpu = stage2_gpu(s, offload_optimizer, documented), stage2_cpu(s, offload_optimizer)
    else:
        on_gpu, on_cpu = stage3_gpu(s, offload_optimizer, offload_param), stage3_cpu(s, offload_optimizer, offload_param, zero_init)
    gpu = w.line("每卡", on_gpu, "GiB")
    cpu = w.line("每台主机", on_cpu, "GiB")
    gb = w.line("每卡，换成 10⁹ 字节", gpu, "GB")
    plain = Setup(total_params, largest_layer_params, float(gpus_per_node), float(nodes), float(gpus_per_node * nodes), buffer_factor)
    now = (offload_param, offload_optimizer, zero_init or stage == 2)
    return Result(
        values={"gpu_gib": gpu, "cpu_gib": cpu, "gpu_gb": gb, "printed": _printed(plain, stage, documented)},
        lines=w.lines,
        verdict=_verdict(gpu, cpu, gb),
        notes=_notes(plain, stage, offload_optimizer, documented),
        trace=(plain, documented, now),
    )


def _printed(s: Setup[float], stage: int, documented: bool) -> list[Row]:
    rows: list[Row] = []
    for option in PRINTED[stage]:
        gpu, cpu = _bytes(s, stage, option, documented)
        rows.append({"cpu": f"{cpu / GIB:.2f}GB", "gpu": f"{gpu / GIB:.2f}GB", "options": _options_text(stage, option)})
    return rows


def _notes(s: Setup[float], stage: int, offload_optimizer: bool, documented: bool) -> tuple[str, ...]:
    if stage == 3 or offload_optimizer:
        return ()
    other = stage2_gpu(s, False, not documented) / GIB
    return (f"{VERSIONS['0.19.8' if documented else 'docs']}，会是 {format_number(other)} GiB。文档里的打印是旧版的；你装的是哪一版，就打印哪一个。",)


def _verdict(gpu: Quantity, cpu: Quantity, gb: Quantity) -> str:
    return f"它打印 {gpu.value / GIB:.2f}GB，其实是 {gpu.text}，合 {gb.text}；主机那一列 {cpu.value / GIB:.2f}GB 也一样，是 GiB。"
