"""A roofline from the reader's own measurements: how fast does this machine compute, how fast does it move bytes?"""

from __future__ import annotations

from dataclasses import dataclass

from calculators.core.calculator import Output, Result, Row, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Series
from calculators.core.errors import refuse
from calculators.core.inputs import number, text
from calculators.core.numbers import format_number
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.roofline import arithmetic_intensity, attainable, ridge
from calculators.operations._samples import SHORTEST, number_of, numbers_of, read_rows

COLUMNS = ("flops", "bytes", "seconds")
DEFAULT = "2.147483648e9,1.2582912e7,0.116; 1.7179869184e10,5.0331648e7,0.488; 1.34217728e8,2.68435456e8,0.04474; 0,5.36870912e8,0.0603"
MOST = 500
FACTS = 40
"""Dots drawn; more would only hide one another."""
COMPUTE_PASS, COPY_PASS, RIDGE_PASS = 0.60, 0.75, 0.25
"""What P1 asks for: share of the dense peak, share of the spec's bandwidth, distance of the ridge."""


@dataclass(frozen=True)
class Sample:
    """One measured operation."""

    flops: float
    bytes: float
    seconds: float

    @property
    def gflop_s(self) -> float:
        return self.flops / self.seconds / 1e9

    @property
    def gb_s(self) -> float:
        return self.bytes / self.seconds / 1e9

    @property
    def intensity(self) -> float:
        return arithmetic_intensity(self.flops, self.bytes)


def _chart(run: Run, **_: object) -> tuple[Chart, ...]:
    samples = run.result.trace
    assert isinstance(samples, tuple)
    top, rate = float(run.values["max_gflop_s"]), float(run.values["max_gb_s"])  # type: ignore[arg-type]
    dots = [s for s in samples if s.flops > 0]
    low, high = min([top / rate, *(s.intensity for s in dots)]) / 4, max([top / rate, *(s.intensity for s in dots)]) * 4
    grid = [low * (high / low) ** (i / 80) for i in range(81)]
    roof = Series("实测的屋顶", tuple((x, attainable(top, x, rate)) for x in grid), emphasis=True)
    marks = tuple(Mark("", s.intensity, s.gflop_s) for s in dots[:FACTS])
    return (
        LineChart(
            "点贴着哪条边，就卡在哪条边",
            "两轴都是对数。贴着斜坡的点卡在搬，贴着平顶的点卡在算；离两边都远的点，卡在启动开销，或还没写好。纯拷贝没有运算，不在图上。",
            Axis("算术强度", "FLOP/B", log=True),
            Axis("计算速度", "GFLOP/s", log=True),
            (roof,),
            marks=marks,
        ),
    )


@calculator(
    title="从实测点画 Roofline",
    question="自己的机器，平顶多高，斜坡多陡，拐点在哪？",
    chapter="24",
    inputs=(
        text("samples", "实测", DEFAULT, longest=40_000, placeholder="1e12,2e9,0.002; 0,4e9,0.0016", help="一行一个 flops,bytes,seconds；脚本 roofline.py 印的那块直接贴"),
        number("peak_gflop_s", "预测的峰值", 0, "GFLOP/s", low=0, high=1e9, stops=(0, 50, 100, 500, 1000, 5000, 10_000, 50_000, 100_000, 500_000, 1_000_000), help="0：没填"),
        number("peak_gb_s", "预测的带宽", 0, "GB/s", low=0, high=1e6, stops=(0, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000), help="0：没填"),
    ),
    outputs=(
        Output("max_gflop_s", "平顶", "GFLOP/s", main=True, digits=5),
        Output("max_gb_s", "斜坡", "GB/s", main=True, digits=5),
        Output("ridge_flop_per_byte", "拐点", "FLOP/B", main=True, digits=5),
        Output("gflop_s", "每个样本的计算速度", "GFLOP/s", digits=5),
        Output("gb_s", "每个样本的带宽", "GB/s", digits=5),
        Output("intensity_flop_per_byte", "每个样本的算术强度", "FLOP/B", digits=5),
        Output("per_flop_x", "每次运算，最慢是最快的", "×", main=True),
        Output("peak_pct", "到了峰值的", "%"),
        Output("bandwidth_pct", "到了带宽的", "%"),
        Output("ridge_off_pct", "拐点偏了", "%"),
        Output("rows", "逐个看", columns=(("sample", "第几个", ""), ("gflop_s", "计算", "GFLOP/s"), ("gb_s", "搬", "GB/s"), ("intensity", "FLOP/字节", ""))),
    ),
    chart=_chart,
    formula=("GFLOP/s = flops ÷ seconds ÷ 10⁹，GB/s = bytes ÷ seconds ÷ 10⁹", "拐点 = 最大的 GFLOP/s ÷ 最大的 GB/s", "每次运算差几倍：只比有运算的样本"),
    assumptions=("字节是必需的那份：每个数组只算一次进出", "P1 的线：平顶到峰值的 60%，斜坡到带宽的 75%，拐点差在 25% 以内"),
    leaves_out="不算缓存：小矩阵乘真正走内存的字节和「必需的」不一样。斜坡取最大的 GB/s，样本小到放进缓存就会虚高。",
    sources=("Williams, Waterman, Patterson, CACM 2009", "默认值：一台 2 核的共享机器，NumPy fp32，只当例子"),
)  # fmt: skip
def roofline_from_samples(*, samples: str, peak_gflop_s: float, peak_gb_s: float) -> Result:
    """Rates of every sample, the two roofs as their maxima, and the ridge between them."""
    measured = _read(samples)
    fastest, mover = max(measured, key=lambda s: s.gflop_s), max(measured, key=lambda s: s.gb_s)
    slowest = min((s for s in measured if s.flops > 0), key=lambda s: s.gflop_s)
    w = Worked()
    top = w.line("平顶", quantity(fastest.flops / 1e9, "GFLOP", 12) / quantity(fastest.seconds, "s", 12), "GFLOP/s", 5)
    rate = w.line("斜坡", quantity(mover.bytes / 1e9, "GB", 12) / quantity(mover.seconds, "s", 12), "GB/s", 5)
    bend = w.line("拐点", ridge(top, rate), "FLOP/B", 5)
    times = w.line("每次运算，最慢是最快的", top / quantity(slowest.gflop_s, "GFLOP/s", 5), "×")
    reached = w.line("到了峰值的", top / quantity(peak_gflop_s, "GFLOP/s"), "%") if peak_gflop_s else None
    moved = w.line("到了带宽的", rate / quantity(peak_gb_s, "GB/s"), "%") if peak_gb_s else None
    off = None
    if peak_gflop_s and peak_gb_s:
        expected = w.line("预测的拐点", ridge(quantity(peak_gflop_s, "GFLOP/s"), quantity(peak_gb_s, "GB/s")), "FLOP/B")
        off = w.line("拐点偏了", bend / expected - 1, "%")
    rows: list[Row] = [
        {"sample": k, "gflop_s": s.gflop_s, "gb_s": s.gb_s, "intensity": s.intensity if s.flops else 0.0} for k, s in enumerate(measured, 1)
    ]  # fmt: skip
    return Result(
        values={
            "max_gflop_s": top, "max_gb_s": rate, "ridge_flop_per_byte": bend,
            "gflop_s": [s.gflop_s for s in measured], "gb_s": [s.gb_s for s in measured],
            "intensity_flop_per_byte": [s.intensity for s in measured], "per_flop_x": times,
            "peak_pct": reached, "bandwidth_pct": moved, "ridge_off_pct": off, "rows": rows,
        },
        lines=w.lines,
        verdict=_verdict(top, rate, bend, times, reached, moved, off),
        trace=measured,
    )  # fmt: skip


def _read(samples: str) -> tuple[Sample, ...]:
    found = []
    for k, cells in enumerate(read_rows("samples", samples, ",".join(COLUMNS), MOST), 1):
        flops, moved, seconds = numbers_of("samples", cells, COLUMNS, f"第 {k} 行")
        number_of("samples", cells[2], f"第 {k} 行的 seconds", SHORTEST, 1e9)
        if 0 < flops < 1 or 0 < moved < 1:
            raise refuse(
                "samples", f"第 {k} 行的 flops、bytes 要么是 0，要么不小于 1", format_number(flops if 0 < flops < 1 else moved), "单位是次和字节，不是 G"
            )
        if moved == 0 and flops > 0:
            raise refuse("samples", f"第 {k} 行有运算没有字节", format_number(flops), "输入和输出至少要进出一次内存")
        if moved == 0:
            raise refuse("samples", f"第 {k} 行的 flops 和 bytes 不能都是 0", "0", "删掉这一行")
        found.append(Sample(flops, moved, seconds))
    if all(s.flops == 0 for s in found):
        raise refuse("samples", "样本里没有一个做了运算", f"{len(found)} 行的 flops 都是 0", "加一个矩阵乘")
    return tuple(found)


def _verdict(top: Quantity, rate: Quantity, bend: Quantity, times: Quantity, reached: Quantity | None, moved: Quantity | None, off: Quantity | None) -> str:
    told = f"这台机器平顶 {top.text}，斜坡 {rate.text}，拐点 {bend.text}"
    gap = f"；样本里每次运算最慢的比最快的慢 {times.text}，差在每个字节用了几次" if times.value >= 2 else ""
    if reached is None and moved is None:
        return f"{told}{gap}。要判断够不够，把规格书的峰值和带宽填上。"
    failed = [
        text
        for value, line, text in (
            (reached, COMPUTE_PASS, f"平顶只有预测的 {reached.text if reached else ''}，矩阵再大一些、频率和 TF32 查过之后还是这样，就重估效率"),
            (moved, COPY_PASS, f"斜坡只有预测的 {moved.text if moved else ''}，数组比缓存大得多还是这样，就重估带宽"),
        )
        if value is not None and value.value < line
    ]
    beyond = [name for value, name in ((reached, "峰值"), (moved, "带宽")) if value is not None and value.value > 1.02]
    if beyond:
        return f"{told}。实测超过了你填的{'、'.join(beyond)}：不是填低了（稀疏、降频、通道数），就是样本小到只在缓存里跑。"
    if failed:
        return f"{told}。{'；'.join(failed)}。"
    if off is not None and abs(off.value) > RIDGE_PASS:
        return f"{told}。平顶和斜坡都过了线，拐点却偏了 {off.text}：两边打的折扣不一样，后面的预测要用实测的这一对。"
    return f"{told}，过了线。后面的项目用这一对实测数，别再用规格书的。"
