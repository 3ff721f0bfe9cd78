"""What becomes of a number stored in a floating-point format, and how far apart are its neighbours?"""

from __future__ import annotations

import math
from dataclasses import dataclass

from calculators.core.calculator import Output, Result, Row, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Series
from calculators.core.inputs import choice, number
from calculators.core.numbers import format_number
from calculators.core.worked import Worked, quantity
from calculators.formulas.number_formats import FORMATS, FloatFormat

WIDEST = 8
"""Exponent bits of FP32, TF32 and BF16: no format here has more."""
NORMAL, SUBNORMAL, ZERO, OVERFLOW = "正常", "次正规", "归零", "溢出"
SHOWN = (1e-10, 1e8)
"""Magnitudes that the chart shows: FP16 from end to end, while FP32 and BF16 run out of the picture on both sides."""


@dataclass(frozen=True)
class Stored:
    """``value`` is None when the number lies beyond the format."""

    value: float | None
    kind: str
    error_pct: float | None


def store(x: float, fmt: FloatFormat) -> Stored:
    """Round ``x`` to the format and name the region in which it lands."""
    y = fmt.nearest(x)
    if math.isinf(y):
        return Stored(None, OVERFLOW, None)
    kind = NORMAL if abs(y) >= fmt.min_normal or x == 0 else SUBNORMAL if y else ZERO
    return Stored(y, kind, abs(y - x) / abs(x) * 100 if x else 0.0)


def _chart(run: Run, *, x: float, fmt: str, **_: object) -> tuple[Chart, ...]:
    def ruler(id: str) -> Series:
        f = FORMATS[id]
        low, high = max(f.min_subnormal, SHOWN[0]), min(f.largest, SHOWN[1])
        corners = sorted({low, min(max(f.min_normal, low), high), high})
        return Series(f.name, tuple((c, max(f.eps, f.min_subnormal / c)) for c in corners), emphasis=id == fmt, dashed=id == "tf32")

    here = abs(x)
    height = min(FORMATS[fmt].spacing(here) / here, 1.0) if here else 1.0
    marks = (Mark("你的数", here, height, emphasis=True),) if SHOWN[0] < here < SHOWN[1] else ()
    return (
        LineChart(
            "七把尺子",
            "横轴是数的大小，纵轴是相邻两个数差这个数的几成，两轴都是对数。线越低，刻度越细；FP32、TF32、BF16 两头都伸出图外，别的在图里就到头了。左端翘起的是次正规区。点落在自己那条线外面，就存不下。",
            Axis("数的大小", "", log=True, low=SHOWN[0], high=SHOWN[1]),
            Axis("相邻两数之差 ÷ 这个数", "", log=True, low=1e-8, high=2),
            tuple(ruler(id) for id in FORMATS),
            marks=marks,
        ),
    )


@calculator(
    title="浮点尺",
    question="这个数存进去会变成什么？它旁边的数离多远？",
    chapter="06",
    inputs=(
        number("x", "要存的数", 70_000, help="正负都行，例如 1e-8、0.001、70000"),
        choice("fmt", "格式", "fp16", tuple(FORMATS), labels={id: f.name for id, f in FORMATS.items()}),
    ),
    outputs=(
        Output("kind", "落在哪一段", main=True),
        Output("stored", "存成", main=True, digits=7),
        Output("error_pct", "误差", "%", main=True),
        Output("spacing", "这一带的间距"),
        Output("largest", "最大值", digits=5),
        Output("min_normal", "最小的正常数"),
        Output("min_subnormal", "最小的次正规数"),
        Output("eps", "1.0 处的间距"),
        Output("bits", "一共几位", "bit"),
        Output("exp_bits", "指数", "bit"),
        Output("man_bits", "尾数", "bit"),
        Output("significand_bits", "有效位（尾数加隐含的 1 位）", "bit"),
        Output("bytes", "每个数", "B"),
        Output("all_formats", "各种格式存成什么", columns=(("format", "格式", ""), ("stored", "存成", ""), ("kind", "落在", ""), ("error_pct", "误差", "%"))),
    ),
    chart=_chart,
    formula=(
        "间距 = 2^(指数 − 尾数位)，指数不低于最小正常数的指数",
        "存成 = 四舍六入五成双(数 ÷ 间距) × 间距",
        "最大值 = (2 − 2^−尾数位) × 2^最大指数；E4M3 少最后一格，那一格是 NaN",
    ),
    leaves_out="只算存一次的舍入；硬件是否把次正规数直接冲成零（FTZ）、累加器用几位，各家不同。TF32 的次正规区不列。",
    sources=(
        "IEEE 754-2008 binary16、binary32；BF16 是 FP32 的前 16 位",
        "Micikevicius et al. 2022（FP8 Formats for Deep Learning）：E4M3 最大 448，E5M2 最大 57344",
        "OCP Microscaling Formats v1.0：E2M1",
    ),
)
def float_ruler(*, x: float, fmt: str) -> Result:
    """Round to nearest even on the format's grid; beyond the largest number it overflows."""
    f = FORMATS[fmt]
    found = store(x, f)
    w = Worked()
    step = None
    if found.value is None:
        w.say(f"最大只到 {format_number(f.largest, digits=5)} → 放不下 {quantity(x).text}")
    else:
        step = w.line(f"{f.name} 在这一带的间距", quantity(2) ** quantity(f.spacing_exponent(x)))
        cells = w.line("合多少格", quantity(x, digits=9) / step, digits=9)
        whole = quantity(found.value / step.value, digits=9)
        w.say(f"取最近的整格（{cells.text}） → {whole.text} 格")
        w.line("存成", whole * step, digits=9)
    return Result(
        values={
            "kind": found.kind, "stored": found.value, "error_pct": found.error_pct, "spacing": step, "largest": f.largest, "min_normal": f.min_normal,
            "min_subnormal": None if fmt == "tf32" else f.min_subnormal, "eps": f.eps, "bits": 1 + f.exp_bits + f.man_bits, "exp_bits": f.exp_bits,
            "man_bits": f.man_bits, "significand_bits": f.man_bits + 1, "bytes": f.bytes,
            "all_formats": [_row(x, g) for g in FORMATS.values()],
        },
        lines=w.lines,
        verdict=_verdict(x, f, found),
    )  # fmt: skip


def _row(x: float, fmt: FloatFormat) -> Row:
    found = store(x, fmt)
    return {"format": fmt.name, "stored": found.value, "kind": found.kind, "error_pct": found.error_pct}


def _verdict(x: float, fmt: FloatFormat, found: Stored) -> str:
    given = quantity(x).text
    if found.value is None:
        instead = store(x, FORMATS["bf16"])
        hint = "" if instead.value is None else f"BF16 放得下，存成 {quantity(instead.value).text}，误差 {quantity(instead.error_pct or 0, '%', 2).text}。"
        return f"{fmt.name} 最大只到 {format_number(fmt.largest, digits=5)}，{given} 放不下，{_BEYOND[fmt.special]}。{hint}"
    if found.kind == ZERO:
        return f"{given} 连 {fmt.name} 最小的格子 {format_number(fmt.min_subnormal)} 的一半都不到，存进去就是 0。" + _TOO_SMALL[fmt.exp_bits < WIDEST]
    error = quantity(found.error_pct or 0, "%", 2).text
    if found.kind == SUBNORMAL:
        return f"落在次正规区，有效位不够 {fmt.man_bits + 1} 位，误差 {error}。再小下去就归零。"
    return f"存成 {quantity(found.value, '', 7).text}，误差 {error}。相邻两个数差 {quantity(fmt.spacing(x), '', 4).text}：往它上面加不到一半的数，等于没加。"


_TOO_SMALL = {True: "要么先放大再存，要么换指数更宽的格式。", False: "指数没有更宽的了：先放大再存，或者就当它是 0。"}
_BEYOND = {"ieee": "变成无穷大", "fn": "这种格式没有无穷大，不截断就成了非数", "none": "这种格式没有无穷大，只能截到最大值"}
"""What a format does with a number beyond its range."""
