"""How much of the card does a matrix product leave idle because its tiles do not fill the last wave or their own edge?"""

from __future__ import annotations

import math

from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Bar, BarChart, Chart, LineChart, Mark, Part, Series
from calculators.core.inputs import integer
from calculators.core.numbers import format_number
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.chip import tile_count, wave_count

WIDEST_PLOT = 8192
MOST_TEETH = 90
"""Teeth drawn corner by corner; finer saws are sampled evenly."""
MOST_BARS = 6
GOOD = 0.9
"""Efficiency from which the shape may stay as it is."""


def total_efficiency(m: int, n: int, tile_m: int, tile_n: int, sms: int) -> float:
    """Useful output elements ÷ elements that the waves have room for."""
    return m * n / (wave_count(tile_count(m, n, tile_m, tile_n), sms) * sms * tile_m * tile_n)


def _corners(n: int, tile_m: int, tile_n: int, sms: int, high: int) -> list[int]:
    """The M at which a wave begins and ends: between them the curve is straight."""
    per_row = math.ceil(n / tile_n)
    corners, row = [1], 0
    while len(corners) <= 2 * MOST_TEETH:
        row = math.ceil((row + 1) * per_row / sms) * sms // per_row  # the last row of tiles in as many waves
        if row * tile_m >= high:
            break
        corners += [row * tile_m, row * tile_m + 1]
    if len(corners) > 2 * MOST_TEETH:
        return sorted({max(1, round(i * high / 199)) for i in range(200)})
    return sorted({*corners, high})


def _saw(run: Run, m: int, n: int, tile_m: int, tile_n: int, sms: int) -> LineChart:
    high = max(WIDEST_PLOT, round(m * 1.25))
    points = tuple((float(x), 100 * total_efficiency(x, n, tile_m, tile_n, sms)) for x in _corners(n, tile_m, tile_n, sms, high))
    return LineChart(
        "锯齿：多一行，多一波",
        "只变 M，别的不动。掉下来的地方就是多开了一波；M 越大，一波越不要紧。乘上整卡峰值就是 TFLOPS。",
        Axis("M", low=0, high=high),
        Axis("占峰值", "%", low=0, high=100),
        (Series("", points, emphasis=True),),
        marks=(Mark("现在", m, float(run.values["total_eff_pct"]), emphasis=True),),  # type: ignore[arg-type]
    )


def _waves(run: Run, sms: int) -> BarChart:
    waves, last = int(run.values["waves"]), int(run.values["last_wave_tiles"])  # type: ignore[arg-type]
    shown = list(range(1, waves + 1)) if waves <= MOST_BARS else [1, 2, waves - 1, waves]
    busy = {i: sms if i < waves else last for i in shown}
    bars = [Bar(f"第 {i} 波", (Part("有活的 SM", n), Part("空等的 SM", sms - n)), f"{n} 个有活") for i, n in busy.items()]
    skipped = "" if waves <= MOST_BARS else f"中间 {waves - 4} 波都是满的，没有画。"
    return BarChart("每一波有几个 SM 在干活", f"一个 SM 一次算一个 tile，这一波全算完才轮到下一波。{skipped}", Axis("SM", low=0), tuple(bars))


def _chart(run: Run, *, M: int, N: int, tile_m: int, tile_n: int, n_sm: int) -> tuple[Chart, ...]:
    return _saw(run, M, N, tile_m, tile_n, n_sm), _waves(run, n_sm)


SIZES = (1, 16, 64, 128, 256, 512, 1024, 1536, 2048, 2304, 2305, 3072, 4096, 6912, 7040, 8192, 16384, 32768)


@calculator(
    title="尾巴浪费",
    question="这个形状的矩阵乘，有几成的 SM 在空等，几成在算填充？",
    chapter="02",
    inputs=(
        integer("M", "M（输出的行）", 2304, low=1, high=100_000, stops=SIZES),
        integer("N", "N（输出的列）", 1536, low=1, high=100_000, stops=SIZES),
        integer("n_sm", "SM 数", 108, low=1, high=400, stops=(16, 46, 78, 80, 108, 128, 132, 148, 304), help="A100 108，H100 132"),
        integer("tile_m", "tile 的行", 128, low=8, high=512, more=True, stops=(8, 16, 32, 64, 128, 256, 512)),
        integer("tile_n", "tile 的列", 256, low=8, high=512, more=True, stops=(8, 16, 32, 64, 128, 256, 512)),
    ),
    outputs=(
        Output("tiles", "tile 数", main=True),
        Output("waves", "波数", main=True),
        Output("wave_eff", "SM 坑位用上（比例）"),
        Output("tile_fill", "tile 填满（比例）"),
        Output("total_eff", "合计（比例）"),
        Output("wave_eff_pct", "SM 坑位用上", "%", main=True),
        Output("tile_fill_pct", "tile 填满", "%", main=True),
        Output("total_eff_pct", "合计", "%", main=True),
        Output("last_wave_tiles", "最后一波的 tile"),
    ),
    chart=_chart,
    formula=("tile 数 = ⌈M ÷ tile 行⌉ × ⌈N ÷ tile 列⌉", "波数 = ⌈tile 数 ÷ SM 数⌉", "合计 = tile 数 ÷ (波数 × SM 数) × M·N ÷ (tile 数 × tile 面积)"),
    assumptions=("一个 SM 一次算一个 tile，每个 tile 一样久；边上填不满的 tile 照样整个算",),
    leaves_out="不算 split-K、stream-K：它们把最后一波切碎了分，锯齿会平得多。库会按形状另挑 tile，这里的 tile 是你填的。",
    sources=("NVIDIA Matrix Multiplication Background User's Guide，tile 与 wave 量化两节",),
)  # fmt: skip
def wave_quant(*, M: int, N: int, tile_m: int, tile_n: int, n_sm: int) -> Result:
    """Whole tiles in whole waves: the share of SM slots used, times the share of the tiles that is wanted."""
    w = Worked()
    m, n, rows, columns, sms = (quantity(x) for x in (M, N, tile_m, tile_n, n_sm))
    tiles = w.line("tile 数", tile_count(m, n, rows, columns))
    waves = w.line("波数", wave_count(tiles, sms))
    slots = w.line("SM 坑位用上", tiles / (waves * sms), "%")
    fill = w.line("tile 填满", m * n / (tiles * rows * columns), "%")
    both = w.line("合计", slots * fill, "%")
    last = round(tiles.value - (waves.value - 1) * n_sm)
    return Result(
        values={
            "tiles": round(tiles.value), "waves": round(waves.value), "wave_eff": slots.value, "tile_fill": fill.value, "total_eff": both.value,
            "wave_eff_pct": slots, "tile_fill_pct": fill, "total_eff_pct": both, "last_wave_tiles": last,
        },
        lines=w.lines,
        verdict=_verdict(M, N, tile_m, tile_n, n_sm, slots, fill, both, last),
    )  # fmt: skip


def _verdict(m: int, n: int, tile_m: int, tile_n: int, sms: int, slots: Quantity, fill: Quantity, both: Quantity, last: int) -> str:
    if both.value >= GOOD:
        return f"凑得好：坑位和 tile 一共用上 {both.text}，形状不用动。"
    waves = wave_count(tile_count(m, n, tile_m, tile_n), sms)
    if waves == 1 and last < sms:
        why = f"只有 {last} 个 tile，{sms - last} 个 SM 没有活"
        return f"一共只用上 {both.text}：{why}。换小 tile，或者把更多行凑成一批。"
    if fill.value < slots.value:
        return f"一共用上 {both.text}：tile 只填满 {fill.text}，边上在算填充。换小 tile，或把尺寸凑成 tile 的整数倍。"
    full = (int(waves) - 1) * sms // math.ceil(n / tile_n) * tile_m
    less = f"M 减到 {format_number(full)} 就少一波。" if full else ""
    return f"一共用上 {both.text}：{waves:.0f} 波里，最后一波只有 {last} 个 SM 有活，别的在等。{less}"
