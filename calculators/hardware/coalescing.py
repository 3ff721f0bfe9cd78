"""A live experiment: which 32-byte sectors does one load of a warp touch, and how many of the moved bytes does it use?"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from calculators.core.calculator import Output, Result, Row, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Series, Span, Timeline
from calculators.core.errors import refuse
from calculators.core.inputs import choice, integer
from calculators.core.numbers import format_number
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.chip import LINE_BYTES, SECTOR_BYTES, WARP

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SECTORS_PER_LINE = LINE_BYTES // SECTOR_BYTES
WIDEST_STRIDE = 64
USED, WASTED = 0, 1
TONES = ("lane 要的字节", "跟着扇区搬来、没人用的")


def addresses(stride: int, elem_bytes: int, offset_bytes: int) -> NDArray[np.int64]:
    """First byte that each of the 32 lanes asks for."""
    import numpy as np

    return offset_bytes + np.arange(WARP, dtype=np.int64) * stride * elem_bytes


def touched(first: NDArray[np.int64], elem_bytes: int) -> NDArray[np.int64]:
    """Numbers of the sectors that hold any byte of any lane, ascending."""
    import numpy as np

    return np.unique((first[:, None] + np.arange(elem_bytes)) // SECTOR_BYTES)


def _lanes_of(sectors: list[int], first: list[int]) -> dict[int, list[int]]:
    """Lanes served by each sector; aligned elements never lie across two."""
    served: dict[int, list[int]] = {sector: [] for sector in sectors}
    for lane, address in enumerate(first):
        served[address // SECTOR_BYTES].append(lane)
    return served


def _names(lanes: list[int]) -> str:
    return f"lane {lanes[0]}" + (f"–{lanes[-1]}" if lanes[-1] > lanes[0] else "")


def _rows(served: dict[int, list[int]], elem_bytes: int) -> list[Row]:
    """One row a cache line, in address order."""
    rows: list[Row] = []
    for line in sorted({sector // SECTORS_PER_LINE for sector in served}):
        inside = [sector for sector in served if sector // SECTORS_PER_LINE == line]
        lanes = [lane for sector in inside for lane in served[sector]]
        rows.append(
            {
                "address": line * LINE_BYTES,
                "sectors": "、".join(str(sector % SECTORS_PER_LINE) for sector in inside),
                "lanes": _names(lanes),
                "moved_b": len(inside) * SECTOR_BYTES,
                "useful_b": len(lanes) * elem_bytes,
            }
        )
    return rows


def _map(stride: int, elem_bytes: int, offset_bytes: int) -> Timeline:
    """Every touched cache line as a row of four sectors: what was asked for, and what came along."""
    first = addresses(stride, elem_bytes, offset_bytes)
    asked = {address + i: lane for lane, address in enumerate(first.tolist()) for i in range(elem_bytes)}
    sectors: list[int] = touched(first, elem_bytes).tolist()
    rows = {line: row for row, line in enumerate(dict.fromkeys(sector // SECTORS_PER_LINE for sector in sectors))}
    spans = []
    for sector in sectors:
        line = sector // SECTORS_PER_LINE
        for wanted, run in groupby(range(sector * SECTOR_BYTES, (sector + 1) * SECTOR_BYTES), key=asked.__contains__):
            held = list(run)
            start, end = held[0] / SECTOR_BYTES - line * SECTORS_PER_LINE, (held[-1] + 1) / SECTOR_BYTES - line * SECTORS_PER_LINE
            spans.append(Span(rows[line], start, end, _names([asked[held[0]], asked[held[-1]]]) if wanted else "", USED if wanted else WASTED))
    return Timeline(
        "这一次读，碰了哪些扇区",
        f"一行是一条 {LINE_BYTES} 字节的缓存行，左边是它的起点；四格是四个 {SECTOR_BYTES} 字节的扇区；空白的没搬，没碰到的行不画。"
        f"显存按整个扇区搬：碰 1 字节，搬 {SECTOR_BYTES} 字节。",
        Axis("缓存行里的第几个扇区", low=0, high=SECTORS_PER_LINE),
        tuple(f"+{line * LINE_BYTES}" for line in rows),
        tuple(spans),
        TONES,
    )


def _chart(run: Run, *, stride: int, elem_bytes: int, offset_bytes: int) -> tuple[Chart, ...]:
    def share(s: int) -> float:
        return 100 * WARP * elem_bytes / (len(touched(addresses(s, elem_bytes, offset_bytes), elem_bytes)) * SECTOR_BYTES)

    falling = LineChart(
        "步长一大，效率掉到底",
        f"底在 {format_number(100 * elem_bytes / SECTOR_BYTES)}%：每个 lane 独占一个扇区，再大也不会更差。",
        Axis("步长", "", low=1, high=WIDEST_STRIDE),
        Axis("用上的字节", "%", low=0, high=100),
        (Series("", tuple((float(s), share(s)) for s in range(1, WIDEST_STRIDE + 1)), emphasis=True),),
        marks=(Mark("现在", stride, float(run.values["efficiency_pct"]), emphasis=True),),  # type: ignore[arg-type]
    )
    return _map(stride, elem_bytes, offset_bytes), falling


@calculator(
    title="合并访存模拟",
    question="一个 warp 的 32 个线程读一次显存，碰了几个扇区？搬来的字节有几成用得上？",
    chapter="02",
    inputs=(
        integer("stride", "步长（隔几个元素）", 1, low=1, high=WIDEST_STRIDE, stops=(1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64), range_remedy="0 是广播，另一回事"),
        choice("elem_bytes", "每个元素", 4, (2, 4, 8), "B", help="BF16 是 2，FP32 是 4，FP64 是 8"),
        integer("offset_bytes", "起点偏移", 0, "B", low=0, high=127, stops=(0, 4, 8, 16, 32, 64, 96, 120), help="要能被元素大小整除"),
    ),
    outputs=(
        Output("sectors", "碰到的扇区", main=True),
        Output("bytes_moved", "搬了", "B", main=True),
        Output("bytes_useful", "用上", "B", main=True),
        Output("efficiency", "用上的比例"),
        Output("efficiency_pct", "用上的", "%", main=True),
        Output("wasted_pct", "白搬的", "%"),
        Output("cache_lines", "碰到的缓存行"),
        Output("lines", "逐行看", columns=(("address", "缓存行起点", "B"), ("sectors", "碰到的扇区", ""), ("lanes", "给谁", ""), ("moved_b", "搬了", "B"), ("useful_b", "用上", "B"))),
    ),
    chart=_chart,
    needs=("numpy",),
    formula=("lane i 读的字节 = 偏移 + i × 步长 × 元素，往后一个元素", "扇区 = 字节号 ÷ 32 取整，不同的数几个", "用上的 = 32 × 元素 ÷ (扇区 × 32)"),
    assumptions=("一次读只看一个 warp；显存的最小搬运单位是 32 字节的扇区，四个扇区一条 128 字节的缓存行",),
    leaves_out="不算缓存：白搬的字节若马上被下一次读用到、还没被挤出去，就不白搬。也不算 DRAM 换行，步长很大时真实带宽还要低。",
    sources=("CUDA C++ Best Practices Guide，Coalesced Access to Global Memory（32 字节的扇区）",),
)  # fmt: skip
def coalescing(*, stride: int, elem_bytes: int, offset_bytes: int) -> Result:
    """Addresses of the 32 lanes, the sectors that they fall into, and the share of the moved bytes that was asked for."""
    if offset_bytes % elem_bytes:
        below = offset_bytes // elem_bytes * elem_bytes
        raise refuse("offset_bytes", "地址必须按元素大小对齐", f"{offset_bytes} / {elem_bytes}", f"可取 {below} 或 {below + elem_bytes}")
    first = addresses(stride, elem_bytes, offset_bytes)
    sectors: list[int] = touched(first, elem_bytes).tolist()
    rows = _rows(_lanes_of(sectors, first.tolist()), elem_bytes)
    w = Worked()
    w.say(f"lane 0 读第 {offset_bytes} 字节，lane {WARP - 1} 读第 {int(first[-1])} 字节，逐个字节数扇区 → {len(sectors)} 个")
    moved = w.line("搬了", quantity(len(sectors)) * quantity(SECTOR_BYTES, "B"), "B")
    useful = w.line("用上", quantity(WARP) * quantity(elem_bytes, "B"), "B")
    share = w.line("用上的比例", useful / moved, "%")
    return Result(
        values={
            "sectors": len(sectors), "bytes_moved": round(moved.value), "bytes_useful": round(useful.value), "efficiency": share.value,
            "efficiency_pct": share, "wasted_pct": (moved - useful) / moved, "cache_lines": len(rows), "lines": rows,
        },
        lines=w.lines,
        verdict=_verdict(len(sectors), share, moved, useful, stride, offset_bytes),
    )  # fmt: skip


def _verdict(sectors: int, share: Quantity, moved: Quantity, useful: Quantity, stride: int, offset_bytes: int) -> str:
    if share.value == 1:
        return f"合并好了：{sectors} 个扇区，搬的 {moved.text}全用上。"
    fate = f"要 {useful.text}，搬了 {moved.text}，只用上 {share.text}"
    if stride == 1:
        return f"{fate}：起点偏了 {offset_bytes % SECTOR_BYTES} 字节，头尾各有一个扇区用不满，多搬一个。把起点对齐到 {SECTOR_BYTES} 字节。"
    if sectors == WARP:
        return f"{fate}：每个 lane 独占一个扇区，已经到底。换成相邻线程读相邻地址（转置、SoA，或先合并搬进共享内存）。"
    return f"{fate}：相邻线程隔着 {stride} 个元素，扇区里夹着没人要的数。让相邻线程读相邻地址。"
