"""Units: what a symbol is worth in its base unit, how it is written in Chinese, and which units may be converted.

GB is 1e9 bytes and GiB is 2**30 bytes; they are different *dimensions of accounting* (``bytes`` and ``bytes-binary``)
so that no figure in the text can slide from one to the other unnoticed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

KB, MB, GB, TB, PB = 1e3, 1e6, 1e9, 1e12, 1e15
KIB, MIB, GIB, TIB = 2.0**10, 2.0**20, 2.0**30, 2.0**40
MINUTE, HOUR, DAY, YEAR = 60.0, 3600.0, 86400.0, 365.0 * 86400.0
BITS_PER_BYTE = 8.0


@dataclass(frozen=True)
class Unit:
    """A unit of the registry.

    ``scale`` is its size in the base unit of ``dimension``; ``text`` is how pages print it; ``style`` chooses the
    number format: ``plain``, ``cjk`` (万, 亿), ``short`` (K, M, B, T, as in "7B 参数") or ``sci`` (powers of ten).
    """

    symbol: str
    dimension: str
    scale: float = 1.0
    text: str = ""
    style: str = "plain"
    aliases: tuple[str, ...] = ()
    tight: bool = False
    """No space between number and unit (``×``)."""

    @property
    def label(self) -> str:
        return self.text or self.symbol


def _decimal(dimension: str, stem: str, base: float = 1.0, first: int = 0, aliases: bool = True) -> list[Unit]:
    steps = (("", 1.0), ("K", KB), ("M", MB), ("G", GB), ("T", TB), ("P", PB), ("E", 1e18))
    return [Unit(p + stem, dimension, s * base, aliases=(("k" + stem,) if p == "K" and aliases else ())) for p, s in steps[first:]]


_UNITS: tuple[Unit, ...] = (
    Unit("", "count"),
    # bytes, decimal and binary
    Unit("B", "bytes", 1.0, "字节", aliases=("byte", "bytes", "Byte", "B/param", "字节/参数")),
    *_decimal("bytes", "B", first=1),
    Unit("KiB", "bytes-binary", KIB),
    Unit("MiB", "bytes-binary", MIB),
    Unit("GiB", "bytes-binary", GIB),
    Unit("TiB", "bytes-binary", TIB),
    Unit("KB (1024 B)", "bytes-binary", KIB, "KiB"),
    Unit("bit", "bits", 1.0, "位", aliases=("bits", "比特")),
    # rates
    *_decimal("bytes/s", "B/s"),
    Unit("bit/s", "bits/s", 1.0),
    Unit("Kb/s", "bits/s", KB),
    Unit("Mb/s", "bits/s", MB, aliases=("Mbps", "Mbit/s")),
    Unit("Gb/s", "bits/s", GB, aliases=("Gbps", "Gbit/s")),
    Unit("Tb/s", "bits/s", TB, aliases=("Tbps",)),
    # time
    Unit("s", "time", 1.0, "秒", aliases=("sec",)),
    Unit("ms", "time", 1e-3, aliases=("毫秒",)),
    Unit("µs", "time", 1e-6, aliases=("us", "μs", "微秒")),
    Unit("ns", "time", 1e-9, aliases=("纳秒",)),
    Unit("min", "time", MINUTE, "分钟"),
    Unit("h", "time", HOUR, "小时"),
    Unit("day", "time", DAY, "天", aliases=("days",)),
    Unit("week", "time", 7 * DAY, "周"),
    Unit("core-days", "core-time", DAY, "核·天", aliases=("核天",)),
    Unit("month", "months", 1.0, "个月"),
    Unit("year", "time", YEAR, "年", aliases=("years",)),
    # arithmetic
    Unit("FLOP", "flop", 1.0, style="sci", aliases=("FLOPs",)),
    *_decimal("flop", "FLOP", first=1),
    Unit("FLOPS", "flop/s", 1.0, style="sci", aliases=("FLOP/s",)),
    *_decimal("flop/s", "FLOPS", first=1),
    *[Unit(p + "FLOP/s", "flop/s", s) for p, s in (("M", MB), ("G", GB), ("T", TB), ("P", PB))],
    Unit("GOPS", "op/s", GB),
    Unit("TOPS", "op/s", TB),
    Unit("POPS", "op/s", PB),
    Unit("FLOP/B", "flop/byte", 1.0, "FLOP/字节", aliases=("FLOP/byte", "FLOPs/byte")),
    Unit("FLOP/token", "flop/token", 1.0, style="sci"),
    Unit("GFLOP/token", "flop/token", GB),
    Unit("TFLOP/token", "flop/token", TB),
    # shares and ratios
    Unit("%", "ratio", 0.01, tight=True),
    Unit("×", "ratio", 1.0, "倍", aliases=("x", "X", "倍")),
    Unit("× h", "ratio-h", 1.0, "h"),
    Unit("pt", "points", 0.01, "个百分点", aliases=("百分点",)),
    # counts of things
    Unit("token", "token", 1.0, style="short", aliases=("tokens", "tok", "词元")),
    Unit("B/token", "bytes/token", 1.0, "字节/token"),
    Unit("KB/token", "bytes/token", KB),
    Unit("MB/token", "bytes/token", MB),
    Unit("KiB/token", "bytes-binary/token", KIB),
    Unit("token/s", "token/s", 1.0, style="short", aliases=("tok/s", "tokens/s", "token/秒")),
    Unit("token/s/card", "token/s/card", 1.0, "token/s/卡", style="short", aliases=("tok/s/卡", "tok/s/card")),
    Unit("params", "param", 1.0, "参数", style="short", aliases=("param", "个参数")),
    Unit("1e9", "param-billions", 1.0, "B 参数", tight=True),
    Unit("卡", "card", 1.0, aliases=("card", "cards", "张", "张卡", "块", "GPU", "GPUs")),
    Unit("台", "node", 1.0, aliases=("node", "nodes", "个节点", "节点")),
    Unit("sequence", "sequence", 1.0, "条", aliases=("sequences", "条序列")),
    Unit("row", "row", 1.0, "行", aliases=("rows",)),
    Unit("element", "element", 1.0, "个元素", aliases=("elements", "元素")),
    Unit("layer", "layer", 1.0, "层", aliases=("layers",)),
    Unit("group", "group", 1.0, "组", aliases=("groups",)),
    Unit("chapter", "chapter", 1.0, "章"),
    Unit("step", "step", 1.0, "步", aliases=("steps",)),
    Unit("block", "block", 1.0, "块", aliases=("blocks",)),
    Unit("float32", "float32", 1.0, "个 float32"),
    Unit("cycle", "cycle", 1.0, "个周期", aliases=("cycles", "clk")),
    Unit("Hz", "1/s", 1.0),
    Unit("MHz", "1/s", MB),
    Unit("GHz", "1/s", GB),
    # traffic of requests
    Unit("request", "request", 1.0, "个请求", style="cjk", aliases=("requests", "请求")),
    Unit("request/s", "request/s", 1.0, "请求/s", aliases=("req/s", "QPS", "rps", "次/s")),
    Unit("1/day", "request/day", 1.0, "次/天", style="cjk", aliases=("次/天",)),
    # money; currencies never mix
    Unit("元", "cny", 1.0, style="cjk"),
    Unit("万元", "cny", 1e4),
    Unit("亿元", "cny", 1e8),
    Unit("元/卡/月", "cny/card/month", 1.0, style="cjk"),
    Unit("万元/卡/月", "cny/card/month", 1e4),
    Unit("万元/月", "cny/month", 1e4),
    Unit("元/月", "cny/month", 1.0, style="cjk"),
    Unit("元/卡·时", "cny/card/hour", 1.0, aliases=("元/卡/时", "元/GPU·h", "元/卡·小时")),
    Unit("$", "usd", 1.0, "美元", aliases=("USD", "美元")),
    Unit("$/h", "usd/hour", 1.0, "美元/小时", aliases=("美元/小时", "USD/h")),
    Unit("$/EFLOP", "usd/flop", 1e-18, "美元/EFLOP"),
    Unit("$/PB", "usd/byte", 1e-15, "美元/PB"),
    Unit("元/Mtok", "cny/mtok", 1.0, "元/百万 token", aliases=("元/百万token",)),
    Unit("$/Mtok", "usd/mtok", 1.0, "美元/百万 token"),
    Unit("GPU·h", "card-time", HOUR, "卡·时", style="cjk", aliases=("GPUh", "GPU-hours", "卡时", "GPU 小时")),
    Unit("GPU·s", "card-time", 1.0, "卡·秒"),
    # physics
    Unit("W", "power", 1.0),
    Unit("kW", "power", KB),
    Unit("MW", "power", MB),
    Unit("pJ", "energy", 1e-12),
    Unit("J", "energy", 1.0),
    Unit("kWh", "energy", 3.6e6),
    Unit("MWh", "energy", 3.6e9),
    Unit("GWh", "energy", 3.6e12),
    Unit("mm", "length", 1e-3, aliases=("毫米",)),
    Unit("m", "length", 1.0, "米"),
    Unit("°C", "temperature", 1.0),
    Unit("per 2 years", "rate-2y", 1.0, "倍/2 年", aliases=("倍/2 年", "×/2 年")),
)


@lru_cache(maxsize=1)
def registry() -> dict[str, Unit]:
    """Every spelling of every unit."""
    table: dict[str, Unit] = {}
    for unit in _UNITS:
        for spelling in (unit.symbol, unit.text, *unit.aliases):
            if spelling or unit.symbol == "":
                table.setdefault(spelling, unit)
    return table


def unit_of(symbol: str) -> Unit:
    """Look a unit up by any of its spellings; a unit that nobody registered is a plain label without conversion."""
    return registry().get(symbol) or Unit(symbol, f"={symbol}")


def convertible(a: str, b: str) -> bool:
    """May a figure in unit ``a`` stand for a value in unit ``b``?  GB and GiB may not."""
    return unit_of(a).dimension == unit_of(b).dimension
