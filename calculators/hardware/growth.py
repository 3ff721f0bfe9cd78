"""How far have arithmetic and bandwidth grown apart?"""

from __future__ import annotations

from dataclasses import dataclass

from calculators.catalog import accelerator, reference
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Series
from calculators.core.errors import refuse
from calculators.core.inputs import choice, linear_stops, number
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.growth import growth_factor, rate_per_two_years


@dataclass(frozen=True)
class Generation:
    """A card as it was headlined in its year: dense peak of that day's usual precision, bandwidth."""

    year: int
    tflops: float
    gb_s: float


def _from_catalog(id: str) -> Generation:
    card = accelerator(id)
    return Generation(card.year, card.dense_tflops, card.bandwidth_gb_s)


def _from_reference(id: str) -> Generation:
    figures = reference(id).values
    year, tflops, gb_s = (figures[name].value for name in ("year", "fp32_tflops", "bandwidth_gb_s"))
    if not isinstance(year, int | float) or not isinstance(tflops, int | float) or not isinstance(gb_s, int | float):
        raise TypeError(f"{id}: year, fp32_tflops and bandwidth_gb_s must be numbers")
    return Generation(int(year), tflops, gb_s)


CARDS = {
    "C870": _from_reference("tesla-c870"), "C1060": _from_reference("tesla-c1060"), "V100": _from_catalog("v100-sxm-32gb"),
    "A100": _from_catalog("a100-80gb"), "H100": _from_catalog("h100-sxm"), "B200": _from_catalog("b200"),
}  # fmt: skip
"""FP32 for the two oldest, FP16 or BF16 tensor cores since V100: what one would have trained with."""


def _chart(run: Run, **_: object) -> tuple[Chart, ...]:
    span = float(run.values["span_years"])  # type: ignore[arg-type]
    curves = (("算力", "flops_x"), ("显存带宽", "bw_x"), ("互联带宽", "link_x"))
    series = []
    for name, key in curves:
        factor = run.values[key]
        if isinstance(factor, int | float):
            points = tuple((span * i / 40, float(factor) ** (i / 40)) for i in range(41))
            series.append(Series(name, points, emphasis=key == "flops_x"))
    return (
        LineChart(
            "两条曲线的剪刀差",
            "纵轴是对数，起点都是 1 倍。两条线张开的口子就是每个字节要多喂的运算。",
            Axis("年数", "year"),
            Axis("增长", "×", log=True),
            tuple(series),
        ),
    )


@calculator(
    title="两条曲线的剪刀差",
    question="算力涨了多少倍，带宽涨了多少倍，差距有多大？",
    chapter="03",
    inputs=(
        choice("mode", "怎么比", "trend", ("trend", "cards"), labels={"trend": "按趋势：每 2 年多少倍", "cards": "拿两张卡比"}),
        number("years", "年数", 20, "year", low=1, high=40, stops=linear_stops(1, 40, 1), only_if=("mode", ("trend",))),
        number("flops_rate", "算力每 2 年", 3.0, "per 2 years", low=1, high=10, stops=linear_stops(1, 4, 0.1), only_if=("mode", ("trend",))),
        number("bw_rate", "显存带宽每 2 年", 1.6, "per 2 years", low=1, high=10, stops=linear_stops(1, 4, 0.1), only_if=("mode", ("trend",))),
        number("link_rate", "互联带宽每 2 年", 1.4, "per 2 years", low=1, high=10, more=True, stops=linear_stops(1, 4, 0.1), only_if=("mode", ("trend",))),
        choice("card_from", "起点", "C1060", tuple(CARDS), only_if=("mode", ("cards",))),
        choice("card_to", "终点", "H100", tuple(CARDS), only_if=("mode", ("cards",))),
    ),
    outputs=(
        Output("flops_x", "算力涨", "×", main=True, digits=5),
        Output("bw_x", "显存带宽涨", "×", main=True),
        Output("link_x", "互联带宽涨", "×"),
        Output("gap_x", "差距", "×", main=True),
        Output("span_years", "跨度", "year"),
        Output("flops_rate_2y", "算力每 2 年", "per 2 years"),
        Output("bw_rate_2y", "显存带宽每 2 年", "per 2 years"),
    ),
    chart=_chart,
    formula=("增长 = 每 2 年的倍数^(年数 ÷ 2)", "差距 = 算力增长 ÷ 带宽增长"),
    leaves_out="两张卡比的是各自时代的主打精度：2008 年是 FP32，今天是 BF16 Tensor Core，一部分增长来自降精度；同一精度比，差距小得多。",
    sources=(
        "Gholami et al. 2024（IEEE Micro，arXiv 2403.14123）摘要：每 2 年 3.0、1.6、1.4 倍",
        "C870 0.5184 TFLOPS（FP32）、76.8 GB/s；C1060 0.93312 TFLOPS、102.4 GB/s：NVIDIA Tesla 规格",
        "V100、A100、H100、B200：硬件目录",
    ),
)  # fmt: skip
def growth(*, mode: str, years: float, flops_rate: float, bw_rate: float, link_rate: float, card_from: str, card_to: str) -> Result:
    """Compound growth by a rate, or the quotient of two cards with the rate that it amounts to."""
    return _trend(years, flops_rate, bw_rate, link_rate) if mode == "trend" else _cards(card_from, card_to)


def _trend(years: float, flops_rate: float, bw_rate: float, link_rate: float) -> Result:
    w = Worked()
    span = quantity(years)
    flops = w.line("算力", growth_factor(quantity(flops_rate), span), "×", 5)
    bandwidth = w.line("显存带宽", growth_factor(quantity(bw_rate), span), "×")
    link = w.line("互联带宽", growth_factor(quantity(link_rate), span), "×")
    gap = w.line("差距", flops / bandwidth, "×")
    return Result(
        values={
            "flops_x": flops, "bw_x": bandwidth, "link_x": link, "gap_x": gap, "span_years": years,
            "flops_rate_2y": flops_rate, "bw_rate_2y": bw_rate,
        },
        lines=w.lines,
        verdict=f"{span.text} 年里{_verdict(flops, bandwidth, gap)}",
    )  # fmt: skip


def _cards(card_from: str, card_to: str) -> Result:
    old, new = CARDS[card_from], CARDS[card_to]
    if new.year <= old.year:
        raise refuse("card_to", "终点必须比起点新", f"{card_from}（{old.year}）→ {card_to}（{new.year}）", "把两张卡对调，或换一张更新的")
    w = Worked()
    flops = w.line("算力", quantity(new.tflops, "TFLOPS") / quantity(old.tflops, "TFLOPS"), "×")
    bandwidth = w.line("显存带宽", quantity(new.gb_s, "GB/s") / quantity(old.gb_s, "GB/s"), "×")
    gap = w.line("差距", flops / bandwidth, "×")
    span = w.line("跨度", quantity(new.year) - quantity(old.year), "")
    flops_rate = w.line("算力每 2 年", rate_per_two_years(quantity(flops.value), span), "×")
    bandwidth_rate = w.line("显存带宽每 2 年", rate_per_two_years(quantity(bandwidth.value), span), "×")
    return Result(
        values={
            "flops_x": flops, "bw_x": bandwidth, "link_x": None, "gap_x": gap, "span_years": new.year - old.year,
            "flops_rate_2y": flops_rate.value, "bw_rate_2y": bandwidth_rate.value,
        },
        lines=w.lines,
        verdict=f"{card_from} 到 {card_to}，{span.text} 年，{_verdict(flops, bandwidth, gap)}",
    )  # fmt: skip


def _verdict(flops: Quantity, bandwidth: Quantity, gap: Quantity) -> str:
    ahead = gap.value > 1
    change = (
        f"每搬一个字节，要多做 {gap.text}的运算才喂得饱算力。优化先想怎么少搬，再想怎么少算。"
        if ahead
        else "带宽没有落后：墙没再长高，原来那堵还在。先看你的算子在拐点哪一边（第 04 章）。"
    )
    return f"算力涨 {flops.text}，显存带宽涨 {bandwidth.text}。{change}"
