"""Which numbers does a small floating-point format hold?  Every code is decoded and counted."""

from __future__ import annotations

import math
from itertools import pairwise

from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Series
from calculators.core.errors import refuse
from calculators.core.inputs import choice, integer
from calculators.core.numbers import format_number
from calculators.core.worked import Worked, quantity
from calculators.formulas.number_formats import FORMATS

MOST_BITS = 15
POINTS = 200
LISTED = 16
SPECIAL = {"ieee": "最大的指数留给 inf 和 NaN", "fn": "只有全 1 是 NaN", "none": "每个码都是数"}


def positive_values(exp_bits: int, man_bits: int, bias: int, special: str) -> list[float]:
    """Every finite positive number, smallest first."""
    codes = 2 ** (exp_bits + man_bits)
    last = codes - {"ieee": 2**man_bits, "fn": 1, "none": 0}[special]
    return [decode(code, man_bits, bias) for code in range(1, last) if decode(code, man_bits, bias) > 0]


def decode(code: int, man_bits: int, bias: int) -> float:
    """f/2^m · 2^(1−bias) for exponent 0, (1 + f/2^m) · 2^(E−bias) above."""
    exponent, fraction = divmod(code, 2**man_bits)
    if exponent == 0:
        return math.ldexp(fraction, 1 - bias - man_bits)
    return math.ldexp(2**man_bits + fraction, exponent - bias - man_bits)


def _gaps(values: list[float]) -> tuple[tuple[float, float], ...]:
    """(number, distance to the next as % of it), thinned to what a chart can draw."""
    pairs = list(pairwise(values))
    keep = {round(i * (len(pairs) - 1) / (POINTS - 1)) for i in range(POINTS)} if len(pairs) > POINTS else set(range(len(pairs)))
    return tuple((a, 100 * (b - a) / a) for i, (a, b) in enumerate(pairs) if i in keep)


def _chart(run: Run, **_: object) -> tuple[Chart, ...]:
    own = run.result.trace
    assert isinstance(own, list)
    known = [
        Series(f.name, _gaps(positive_values(f.exp_bits, f.man_bits, f.bias, f.special)), dashed=True)
        for f in (FORMATS["e4m3"], FORMATS["e5m2"], FORMATS["e2m1"])
    ]
    mine = _gaps(own)
    curves = (*known, Series("你的格式", mine, emphasis=True)) if mine else tuple(known)
    return (
        LineChart(
            "数轴：每个数离下一个多远",
            "横轴是数（对数），纵轴是它到下一个数差百分之几（对数）。锯齿的一个齿是一个 2 的幂；左端翘起的是次正规数；线断的地方就是最大值。",
            Axis("正数", "", log=True),
            Axis("离下一个数", "%", log=True),
            curves,
        ),
    )


@calculator(
    title="一个格式能表示哪些数",
    question="几位指数、几位尾数，一共能存多少个数，最大最小到哪？",
    chapter="18",
    inputs=(
        integer("exp_bits", "指数位", 4, "bit", low=1, high=8, stops=tuple(float(i) for i in range(1, 9))),
        integer("man_bits", "尾数位", 3, "bit", low=0, high=10, stops=tuple(float(i) for i in range(11))),
        choice("special", "特殊值", "fn", tuple(SPECIAL), labels=SPECIAL),
        integer("bias", "偏置", None, low=0, high=255, more=True, help="留空 = 2^(指数位−1) − 1"),
    ),
    outputs=(
        Output("max_value", "最大值", main=True, digits=5),
        Output("min_subnormal", "最小的次正规数", main=True),
        Output("min_normal", "最小的正常数", main=True),
        Output("finite_count", "一共几个数", main=True, digits=6),
        Output("first_values", f"从小到大，前 {LISTED} 个正数"),
    ),
    chart=_chart,
    formula=("指数码 0：f ÷ 2^尾数位 × 2^(1 − 偏置)", "指数码 E：(1 + f ÷ 2^尾数位) × 2^(E − 偏置)", "一共 = 2 × 正数的个数 + 1（0 只算一次）"),
    assumptions=("一位符号，正负对称", "次正规数照算"),
    leaves_out="只数格子；硬件是否支持、怎么舍入不在这里。",
    sources=("E4M3、E5M2：Micikevicius et al. 2022（FP8 Formats for Deep Learning）", "E2M1、E3M2、E2M3：OCP Microscaling Formats v1.0"),
)
def fp_grid(*, exp_bits: int, man_bits: int, special: str, bias: int | None) -> Result:
    """Enumerate."""
    if exp_bits + man_bits > MOST_BITS:
        raise refuse("man_bits", f"指数位加尾数位不能超过 {MOST_BITS}", f"{exp_bits} + {man_bits}", f"尾数可取 0 到 {MOST_BITS - exp_bits}")
    offset = 2 ** (exp_bits - 1) - 1 if bias is None else bias
    values = positive_values(exp_bits, man_bits, offset, special)
    if not values:
        raise refuse("special", "格式里除了 0 没有别的数", f"{exp_bits} 位指数、{man_bits} 位尾数，{SPECIAL[special]}", "加一位，或特殊值选「每个码都是数」")
    min_normal = math.ldexp(1.0, 1 - offset)
    has_normal = values[-1] >= min_normal
    w = Worked()
    if bias is None:
        w.line("偏置", quantity(2) ** quantity(exp_bits - 1) - quantity(1))
    codes = w.line("正数一侧的码", quantity(2) ** (quantity(exp_bits) + quantity(man_bits)), digits=6)
    w.say(f"扣掉 0 和特殊值，剩下的正数 → {len(values)}")
    count = w.line("一共几个数", quantity(2) * quantity(len(values)) + quantity(1), digits=6)
    if has_normal:
        w.say(f"最小的正常数：2 的 {format_number(1 - offset)} 次方 → {quantity(min_normal, digits=4).text}")
    if man_bits:
        w.say(f"最小的次正规数：2 的 {format_number(1 - offset - man_bits)} 次方 → {quantity(values[0], digits=4).text}")
    w.say(f"逐个解码 {codes.text} 个码，最大的 → {quantity(values[-1], digits=5).text}")
    return Result(
        values={
            "max_value": values[-1], "min_subnormal": values[0] if man_bits else None, "min_normal": min_normal if has_normal else None,
            "finite_count": round(count.value), "first_values": values[:LISTED],
        },
        lines=w.lines,
        verdict=f"{1 + exp_bits + man_bits} 位里，能存 {format_number(round(count.value), digits=6)} 个数，最大 {format_number(values[-1], digits=5)}，最小的正数 {format_number(values[0], digits=4)}："
        f"跨度 {format_number(math.log2(values[-1]) - math.log2(values[0]), digits=3)} 个二倍，一个二倍里 {2**man_bits} 格。",
        resolved={"bias": offset} if bias is None else {},
        trace=values,
    )  # fmt: skip
