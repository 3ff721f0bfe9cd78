"""What is this number in another unit: bits or bytes, GB or GiB, PFLOP/s-days or FLOP, 亿 or 万亿?"""

from __future__ import annotations

from calculators.core.calculator import Output, Result, calculator
from calculators.core.errors import refuse
from calculators.core.inputs import Input, number
from calculators.core.numbers import format_number
from calculators.core.worked import Worked, quantity

_BITS = {"b": 1.0, "Kb": 1e3, "Mb": 1e6, "Gb": 1e9, "Tb": 1e12}
_BYTES = {"B": 1.0, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "PB": 1e15}
_BINARY = {"KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40, "PiB": 2.0**50}
_DATA = {**{unit: bits / 8 for unit, bits in _BITS.items()}, **_BYTES, **_BINARY}
FAMILIES: dict[str, dict[str, float]] = {
    "data": _DATA,
    "rate": {f"{unit}/s": factor for unit, factor in _DATA.items()},
    "FLOP": {"FLOP": 1.0, "GFLOP": 1e9, "TFLOP": 1e12, "PFLOP": 1e15, "EFLOP": 1e18, "ZFLOP": 1e21, "PFLOP/s-day": 8.64e19},
    "count": {"个": 1.0, "万": 1e4, "百万": 1e6, "亿": 1e8, "十亿": 1e9, "万亿": 1e12},
}
"""Family → unit → its size in the family's base: byte, byte/s, FLOP, one."""
FACTORS = {unit: (family, factor) for family, units in FAMILIES.items() for unit, factor in units.items()}
NAMES = {"data": "字节", "rate": "带宽", "FLOP": "FLOP", "count": "个数"}
BASES = {"data": "B", "rate": "B/s", "FLOP": "FLOP", "count": "个"}
LABELS = {"百万": "百万（M）", "亿": "亿（0.1B）", "十亿": "十亿（B）", "万亿": "万亿（T）", "PFLOP/s-day": "PFLOP/s-day（跑一天）"}
_ANY_CASE = {unit.lower(): [u for u in FACTORS if u.lower() == unit.lower()] for unit in FACTORS}


def _unit_input(name: str, label: str, default: str) -> Input:
    """A unit by its exact spelling; another case of a known one gets a refusal of its own, since b is not B."""

    def lookup(text: str) -> str:
        if text in FACTORS:
            return text
        near = _ANY_CASE[text.lower()]
        asked = f"：{near[0]} 还是 {near[1]}？差 8 倍" if len(near) == 2 else ""
        raise refuse(name, f"{label}要分清大小写{asked}", f"「{text}」", f"b 是 bit，B 是 byte；可取 {'、'.join(near)}")

    return Input(
        name, label, "choice", default, choices=tuple(FACTORS), choice_labels=LABELS, lookup=lookup, accepts_text=lambda text: text.lower() in _ANY_CASE
    )


@calculator(
    title="单位换算器",
    question="这个数换个单位是多少？bit 还是 byte，GB 还是 GiB，亿还是万亿？",
    chapter="A",
    inputs=(
        number("value", "数值", 400),
        _unit_input("from", "原单位", "Gb/s"),
        _unit_input("to", "新单位", "GB/s"),
    ),
    outputs=(Output("result", "结果", main=True, digits=6), Output("family", "哪一类")),
    formula=(
        "结果 = 数值 × 原单位有多大 ÷ 新单位有多大",
        "b 是 1/8 B；K、M、G、T、P 按 1000 进，Ki、Mi、Gi、Ti、Pi 按 1024 进",
        "1 PFLOP/s-day = 10¹⁵ × 86400 FLOP",
    ),
    leaves_out="没有误差：每个单位都是定义。只换单位，不换口径：双向合计还是单向、稠密还是稀疏，它不知道。",
    sources=("十进制词头：SI；Ki、Mi、Gi：IEC 80000-13", "PFLOP/s-day：每秒 10¹⁵ 次，跑一天"),
)
def unit_convert(*, value: float, from_: str, to: str) -> Result:
    """``value`` × factor(from) ÷ factor(to) inside one family.  Bare M, B and T are no units here: B is the byte."""
    family, factor = FACTORS[from_]
    other, base = FACTORS[to]
    if family != other:
        raise refuse(
            "to", f"新单位和原单位要是一类：{NAMES[family]}和 {NAMES[other]} 不能互换", f"{from_} → {to}", f"{from_} 可以换成 {'、'.join(FAMILIES[family])}"
        )
    w = Worked()
    for unit in dict.fromkeys((from_, to)):
        w.say(f"1 {unit} → {_bits(unit)}{format_number(FACTORS[unit][1], digits=6)} {BASES[family]}")
    result = w.line("结果", quantity(value, "", 12) * quantity(factor, "", 12) / quantity(base, "", 12), "", 6)
    shown = f"{format_number(value, digits=6)} {from_} = {format_number(result.value, digits=6)} {to}。"
    return Result(values={"result": result.value, "family": family}, lines=w.lines, verdict=shown + _slip(from_, to))


def _bits(unit: str) -> str:
    bits = _BITS.get(unit.removesuffix("/s"))
    return f"{format_number(bits)} bit ÷ 8 → " if bits else ""


def _slip(from_: str, to: str) -> str:
    """The mistake that lies nearest to this conversion."""
    units = {from_.removesuffix("/s"), to.removesuffix("/s")}
    slips = (
        (len(units & set(_BITS)) == 1, "b 是 bit，B 是 byte，差 8 倍。"),
        (len(units & set(_BINARY)) == 1, "带 i 的按 1024 进，不带的按 1000 进：K 差 2.4%，G 差 7.4%，T 差 10%。"),
        ("PFLOP/s-day" in units, "它是次数，不是速率：一天 86,400 秒已经乘进去了。"),
    )
    return "".join(text for applies, text in slips if applies and len(units) == 2) or "进位相同，只挪小数点。"
