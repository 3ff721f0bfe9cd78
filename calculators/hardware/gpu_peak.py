"""Where do a card's peak TFLOPS and its memory bandwidth come from, and is a number in a spec sheet a sparse one?"""

from __future__ import annotations

from calculators.catalog import accelerator
from calculators.catalog.chips import Chip, chips
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Bar, BarChart, Chart, Part, Rule
from calculators.core.errors import Refusal, refuse
from calculators.core.inputs import Input, Scalar, integer, linear_stops, number
from calculators.core.numbers import format_number
from calculators.core.units import TB
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.chip import memory_bandwidth, peak_flops
from calculators.formulas.roofline import ridge as ridge_point

CUSTOM = "custom"
FMA_CHOICES = (64, 128, 256, 512, 1024)
SUSPICIOUS, NEAR = 1.5, 0.02
"""Times the catalog's dense peak: a 2:4-sparse number is exactly 2; the presets themselves lie within 0.3 % of 1."""
LABELS = {
    "n_sm": "SM 数",
    "units_per_sm": "每个 SM 的 Tensor Core 数",
    "fma_per_unit_clk": "每个单元每拍 FMA 数",
    "clock_ghz": "频率",
    "bus_bits": "显存位宽",
    "mem_clock_mhz": "显存频率",
    "ddr": "每拍传几次",
}
EXAMPLES = {"n_sm": "108", "units_per_sm": "4", "fma_per_unit_clk": "256", "clock_ghz": "1.41", "bus_bits": "5120", "mem_clock_mhz": "1593", "ddr": "2"}


def _fields(part: Chip) -> dict[str, float]:
    return {
        "n_sm": part.sms, "units_per_sm": part.tensor_cores_per_sm, "fma_per_unit_clk": part.fma_per_clk, "clock_ghz": part.boost_ghz,
        "bus_bits": part.bus_bits, "mem_clock_mhz": part.mem_clock_mhz, "ddr": part.transfers_per_clk,
    }  # fmt: skip


def _filled(preset: str, given: dict[str, float | None]) -> tuple[dict[str, float], dict[str, Scalar]]:
    """Typed fields over the preset's, and what the empty ones were taken to be; ``custom`` has none to fall back on."""
    base: dict[str, float] = {} if preset == CUSTOM else _fields(chips()[preset])
    missing = [name for name, value in given.items() if value is None and name not in base]
    if missing:
        refusals = [refuse(name, f"「{LABELS[name]}」必须填，custom 没有预设可用", "空", f"例如 {EXAMPLES[name]}") for name in missing]
        raise Refusal(tuple(error for refusal in refusals for error in refusal.errors))
    resolved: dict[str, Scalar] = {name: base[name] for name, value in given.items() if value is None}
    return {name: base[name] if value is None else value for name, value in given.items()}, resolved


def _peak_tflops(f: dict[str, float]) -> float:
    return peak_flops(f["n_sm"], f["units_per_sm"], f["fma_per_unit_clk"], 2.0, f["clock_ghz"] * 1e9) / TB


def _chart(run: Run, *, preset: str, **_: object) -> tuple[Chart, ...]:
    mine = float(run.values["peak_tflops"])  # type: ignore[arg-type]
    others = [(accelerator(id).name.removeprefix("NVIDIA "), _peak_tflops(_fields(part))) for id, part in chips().items() if id != preset]
    bars = (
        Bar("现在的输入", (Part("TFLOPS", mine),), run.texts["peak_tflops"], emphasis=True),
        *(Bar(name, (Part("TFLOPS", value),), f"{format_number(value)} TFLOPS") for name, value in others),
    )
    dense = None if preset == CUSTOM else accelerator(preset).dense_tflops
    limits = () if dense is None else (Rule(f"稠密 {format_number(dense)}", x=dense), Rule(f"稀疏 {format_number(2 * dense)}", x=2 * dense))
    seen = "" if dense is None else "竖线是这张卡规格书上的稠密峰值和它的两倍：碰到右边那条，多半拿了稀疏的数。"
    return (BarChart("四个数乘出来的峰值", f"同一个公式算几张卡。{seen}", Axis("峰值", "TFLOPS", low=0), bars, limits),)


@calculator(
    title="峰值算力和带宽从零算",
    question="规格书上的 TFLOPS 和 TB/s 是怎么乘出来的？这个数是不是稀疏口径？",
    chapter="02",
    inputs=(
        Input(
            "preset", "哪张卡", "choice", "a100-80gb", choices=(*chips(), CUSTOM), kind="gpu", help="下面留空的格子用它的值",
            choice_labels={**{id: accelerator(id).name for id in chips()}, CUSTOM: "自己填"},
        ),
        integer("n_sm", LABELS["n_sm"], None, low=1, high=400, stops=(16, 46, 78, 80, 108, 128, 132, 148, 200, 304)),
        Input(
            "fma_per_unit_clk", LABELS["fma_per_unit_clk"], "int", None, low=64, high=1024, choices=FMA_CHOICES, stops=FMA_CHOICES,
            help="可取 64、128、256、512、1024；填大一倍就是稀疏或 FP8 的口径",
        ),
        number("clock_ghz", LABELS["clock_ghz"], None, "GHz", low=0.5, high=3, stops=linear_stops(0.5, 3, 0.05)),
        integer("units_per_sm", LABELS["units_per_sm"], None, low=1, high=16, more=True, stops=(1, 2, 4, 8, 16)),
        integer("bus_bits", LABELS["bus_bits"], None, "bit", low=32, high=16384, more=True, stops=(128, 256, 384, 512, 4096, 5120, 6144, 8192)),
        number("mem_clock_mhz", LABELS["mem_clock_mhz"], None, "MHz", low=100, high=12000, more=True, stops=(877, 1215, 1593, 2000, 2617, 3200, 5000, 10501)),
        integer("ddr", LABELS["ddr"], None, low=1, high=8, more=True, stops=(1, 2, 4, 8), help="DDR 上升沿、下降沿各一次，是 2"),
    ),
    outputs=(
        Output("peak_tflops", "峰值", "TFLOPS", main=True, digits=5),
        Output("bandwidth_gb_s", "显存带宽", "GB/s", main=True, digits=5),
        Output("ridge", "拐点", "FLOP/B", main=True, digits=5),
        Output("sms", "SM 数"),
        Output("tensor_cores", "全卡的 Tensor Core"),
        Output("flop_per_clk_sm", "每个 SM 每拍", "FLOP"),
        Output("dense_tflops", "规格书的稠密峰值", "TFLOPS"),
        Output("over_dense_x", "是规格书的几倍", "×"),
    ),
    chart=_chart,
    formula=("峰值 = SM 数 × 单元数 × 每拍 FMA × 2 × 频率", "带宽 = 位宽 ÷ 8 × 显存频率 × 每拍传几次", "拐点 = 峰值 ÷ 带宽"),
    assumptions=("16 位输入、FP32 累加、稠密；一次 FMA 算 2 FLOP（一乘一加）", "推出来的数和规格书的取整数差不到 0.3%；别的章用规格书的数"),
    leaves_out="不算功耗墙降频：大矩阵持续跑，一般只有这个峰值的 70–80%。",
    sources=("NVIDIA GPU Performance Background User's Guide：A100 108 SM、1.41 GHz、312 TFLOPS", "NVIDIA H100 白皮书：峰值按 1.83 GHz；按最高 1.98 GHz 会算成 1070，是常见的错", "各卡的部件：目录 chips.toml"),
)  # fmt: skip
def gpu_peak(
    *, preset: str, n_sm: int | None, units_per_sm: int | None, fma_per_unit_clk: int | None, clock_ghz: float | None,
    bus_bits: int | None, mem_clock_mhz: float | None, ddr: int | None,
) -> Result:  # fmt: skip
    """SMs × units × FMA per clock × 2 × clock, and bus width × transfer rate; dense, at boost clock."""
    if fma_per_unit_clk is not None and fma_per_unit_clk not in FMA_CHOICES:
        raise refuse("fma_per_unit_clk", f"{LABELS['fma_per_unit_clk']}不在可选项里", fma_per_unit_clk, f"可取 {'、'.join(map(str, FMA_CHOICES))}")
    given: dict[str, float | None] = {
        "n_sm": n_sm, "units_per_sm": units_per_sm, "fma_per_unit_clk": fma_per_unit_clk, "clock_ghz": clock_ghz, "bus_bits": bus_bits, "mem_clock_mhz": mem_clock_mhz, "ddr": ddr,
    }  # fmt: skip
    f, resolved = _filled(preset, given)
    w = Worked()
    sms, units, fma, two = quantity(f["n_sm"]), quantity(f["units_per_sm"]), quantity(f["fma_per_unit_clk"]), quantity(2, "FLOP")
    each = w.line("每个 SM 每拍", units * fma * two, "FLOP")
    peak = w.line("峰值", peak_flops(sms, units, fma, two, quantity(f["clock_ghz"], "GHz")), "TFLOPS", 5)
    bandwidth = w.line(
        "带宽", memory_bandwidth(quantity(f["bus_bits"], "bit"), quantity(8), quantity(f["mem_clock_mhz"], "MHz"), quantity(f["ddr"])), "GB/s", 5
    )
    ridge = w.line("拐点", ridge_point(peak, bandwidth), "FLOP/B", 5)
    dense = over = None
    if preset != CUSTOM:
        dense = quantity(accelerator(preset).dense_tflops, "TFLOPS")
        over = w.line("是规格书稠密值的", peak / dense, "×")
    return Result(
        values={
            "peak_tflops": peak, "bandwidth_gb_s": bandwidth, "ridge": ridge, "sms": int(f["n_sm"]), "tensor_cores": int(f["n_sm"] * f["units_per_sm"]),
            "flop_per_clk_sm": each, "dense_tflops": dense, "over_dense_x": over,
        },
        lines=w.lines,
        verdict=_verdict(peak, bandwidth, ridge, over),
        resolved=resolved,
        notes=("可能用了稀疏(2:4)或 FP8 的数字，请除以 2。",) if over is not None and over.value > SUSPICIOUS else (),
    )  # fmt: skip


def _doubt(times: float) -> str:
    """What a peak that is not the data sheet's most likely is."""
    if abs(times - 2) < NEAR:
        return "多半是稀疏或更低精度的口径，不能拿来和别的卡比"
    if times > SUSPICIOUS:
        return "不是稀疏、更低精度，就是哪个格子填了别的卡的数"
    if times > 1:
        return "先核对频率，Tensor Core 的峰值不按最高频率定"
    return "没进 Tensor Core，或者哪个格子填少了"


def _verdict(peak: Quantity, bandwidth: Quantity, ridge: Quantity, over: Quantity | None) -> str:
    said = f"峰值 {peak.text}，带宽 {bandwidth.text}。"
    if over is not None and abs(over.value - 1) > NEAR:
        said = f"峰值 {peak.text}，是规格书稠密值的 {over.text}：{_doubt(over.value)}。"
    return f"{said}每从显存读 1 字节，要做够 {ridge.text.removesuffix('/字节')} 才喂得饱它。"
