"""A live experiment: how much memory does a caching allocator hold when samples of different lengths come in different orders?"""

from __future__ import annotations

from dataclasses import dataclass, field

from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Rule, Series, Span, Timeline
from calculators.core.errors import refuse
from calculators.core.inputs import choice, flag, integer, number
from calculators.core.numbers import format_number
from calculators.core.units import GB
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.allocator import Block, CachingAllocator, OutOfMemory, rounded_up

STEPS, LAYERS, SHORTEST, LONGEST = 20, 32, 512, 4096
LAYER_BYTES = 139_264
"""Activations per token and layer of Llama-3-8B (chapter 03): a step keeps one block for each of its 32 layers."""


@dataclass
class Film:
    """What each step showed: its tokens, the most bytes in use and reserved, and the map of the reserved memory at its end."""

    tokens: list[int] = field(default_factory=list)
    live: list[int] = field(default_factory=list)
    reserved: list[int] = field(default_factory=list)
    maps: list[list[tuple[int, int, bool]]] = field(default_factory=list)
    oom: bool = False


def lengths(order: str, pad_to: int, seed: int) -> tuple[list[int], list[int]]:
    """Tokens of each step before and after padding."""
    import numpy as np

    drawn = [int(n) for n in np.random.default_rng(seed).integers(SHORTEST, LONGEST + 1, STEPS)]
    arranged = {"随机": drawn, "升序": sorted(drawn), "降序": sorted(drawn, reverse=True), "固定4096": [LONGEST] * STEPS}[order]
    return arranged, [rounded_up(n, pad_to) for n in arranged]


def simulate(samples: list[int], allocator: CachingAllocator) -> Film:
    """Every step takes a block a layer and frees them in reverse, as a backward pass does."""
    film = Film()
    for tokens in samples:
        held: list[Block] = []
        live = reserved = 0
        try:
            for _ in range(LAYERS):
                held.append(allocator.malloc(tokens * LAYER_BYTES))
                live, reserved = max(live, allocator.live), max(reserved, allocator.reserved)
        except OutOfMemory:
            film.oom = True
        film.tokens.append(tokens)
        film.live.append(live)
        film.reserved.append(reserved)
        film.maps.append(allocator.stretches())
        if film.oom:
            break
        for block in reversed(held):
            allocator.free(block)
    return film


def _chart(run: Run, *, cap_gb: float, **_: object) -> tuple[Chart, ...]:
    film = run.result.trace
    assert isinstance(film, Film)
    steps = range(1, len(film.live) + 1)
    curves = (
        Series("reserved：攥着的", tuple((float(i), film.reserved[i - 1] / GB) for i in steps), emphasis=True),
        Series("allocated：在用的", tuple((float(i), film.live[i - 1] / GB) for i in steps)),
    )
    lanes = tuple(f"{i}：{n}" for i, n in enumerate(film.tokens, 1))
    spans = tuple(Span(lane, start / GB, end / GB, tone=0 if used else 1) for lane, found in enumerate(film.maps) for start, end, used in _merged(found))
    cap = (Rule(f"上限 {format_number(cap_gb)} GB", y=cap_gb),) if cap_gb else ()
    return (
        Timeline(
            "每一步结束前，攥着的显存长什么样",
            "一行是一步（序号：样本的 token 数），横着是攥在手里的显存，按申请的先后排。浅色是空着、却塞不下新块的洞。",
            Axis("攥着的显存", "GB"),
            lanes,
            spans,
            ("在用", "空着"),
        ),
        LineChart("在用的和攥着的", "两条线之间就是碎片。攥着的只在退段时下降。", Axis("步"), Axis("显存", "GB", low=0), curves, rules=cap),
    )


def _merged(found: list[tuple[int, int, bool]]) -> list[tuple[int, int, bool]]:
    """Neighbours of one kind as one stretch: blocks of the same step are not worth telling apart."""
    out: list[tuple[int, int, bool]] = []
    for start, end, used in found:
        if out and out[-1][2] == used:
            out[-1] = (out[-1][0], end, used)
        else:
            out.append((start, end, used))
    return out


@calculator(
    title="显存碎片实验",
    question="样本长短不一，换个顺序，显存分配器多攥多少显存？",
    chapter="09",
    inputs=(
        choice("order", "样本的顺序", "随机", ("随机", "升序", "降序", "固定4096"), labels={"升序": "升序：越来越长", "降序": "降序：先跑最长的", "固定4096": "固定：都是 4096"}),
        choice("pad_to", "补齐到几的倍数", 1, (1, 512, 1024), "token", help="1：不补齐"),
        number("cap_gb", "显存上限", 0, "GB", low=0, high=1000, stops=(0, 16, 18, 20, 24, 32, 40, 48, 80), help="0：没有上限"),
        flag("expandable", "可扩展段", False, help="expandable_segments：只有一个段，按页往后长"),
        integer("seed", "随机种子", 0, low=0, high=999, stops=(0, 1, 2, 3, 4, 5)),
    ),
    outputs=(
        Output("peak_live_gb", "在用的，最多", "GB", main=True, agreement="band"),
        Output("reserved_peak_gb", "攥着的，最多", "GB", main=True, agreement="band"),
        Output("reserved_over_live_x", "攥着 ÷ 在用", "×", main=True, agreement="band"),
        Output("oom", "OOM", main=True, agreement="band"),
        Output("segments_allocated", "向驱动要过几段", agreement="band"),
        Output("segments_freed", "退过几段", agreement="band"),
        Output("pad_extra_pct", "补齐多出的 token", "%", agreement="band"),
        Output("pad_share_pct", "补齐占实际计算的", "%", agreement="band"),
    ),
    chart=_chart,
    needs=("numpy",),
    formula=(
        "每步 32 块，每块 = 长度 × 139,264 字节，凑 512 字节；步末倒序释放",
        "申请：最小的够大的空块，剩 1 MiB 以上就切开；没有就要新段（10 MiB 以下要 20 MiB，以上凑 2 MiB）",
        "释放：只在同一段里和邻居合并；到上限就退掉全空的段，再试一次",
    ),
    assumptions=("20 个样本，长度均匀取自 512 到 4096；Llama-3-8B，不重算，一层一块",),
    leaves_out="不算多条流、小块池、长住不走的张量（有了它们，段退不掉，才真的 OOM）和 cudaMalloc、cudaFree 的时间。",
    sources=("pytorch/pytorch c10/cuda/CUDACachingAllocator.cpp", "numpy.random.default_rng(seed).integers(512, 4097, 20)"),
)  # fmt: skip
def allocator_sim(*, order: str, pad_to: int, cap_gb: float, expandable: bool, seed: int) -> Result:
    """Best fit, split, merge inside a segment: replay the steps and look at what stays reserved."""
    if 0 < cap_gb < 1:
        raise refuse("cap_gb", "显存上限要么是 0（没有），要么至少 1 GB", format_number(cap_gb), "例如 24")
    real, padded = lengths(order, pad_to, seed)
    allocator = CachingAllocator(cap_gb * GB, expandable)
    film = simulate(padded, allocator)
    peak_live, peak_reserved = max(film.live), max(film.reserved)
    w = Worked()
    block = w.line("最长的一块", quantity(max(film.tokens), "token") * quantity(LAYER_BYTES, "B"), "MB")
    live = quantity(peak_live / GB, "GB", 4)
    if film.oom:
        w.say(f"模拟到第 {len(film.tokens)} 步 → 在用 {quantity(allocator.live / GB, 'GB', 4).text} 时申请失败")
    else:
        live = w.line("在用的，最多", quantity(LAYERS) * block, "GB")
    reserved = quantity(peak_reserved / GB, "GB", 4)
    w.say(f"模拟 {len(film.tokens)} 步 → 攥着的最多 {reserved.text}，要过 {allocator.segments_allocated} 段，退过 {allocator.segments_freed} 段")
    ratio = peak_reserved / peak_live if peak_live else None
    if peak_live:
        w.line("攥着 ÷ 在用", Quantity(peak_reserved, reserved.text) / Quantity(peak_live, live.text), "×")
    more = sum(padded) - sum(real)
    if more:
        w.line("补齐多出的 token", quantity(more, "token") / quantity(sum(real), "token"), "%")
    return Result(
        values={
            "peak_live_gb": peak_live / GB, "reserved_peak_gb": peak_reserved / GB, "reserved_over_live_x": ratio, "oom": film.oom,
            "segments_allocated": allocator.segments_allocated, "segments_freed": allocator.segments_freed,
            "pad_extra_pct": 100 * more / sum(real), "pad_share_pct": 100 * more / sum(padded),
        },
        lines=w.lines,
        verdict=_verdict(film, allocator, live.text, reserved.text, ratio or 0.0, 100 * more / sum(real)),
        trace=film,
    )  # fmt: skip


def _verdict(film: Film, allocator: CachingAllocator, live: str, reserved: str, ratio: float, more_pct: float) -> str:
    if film.oom:
        asked = film.tokens[-1] * LAYER_BYTES
        held = [quantity(size / GB, "GB", 4).text for size in (allocator.live, allocator.reserved, asked)]
        freed = f"空段全退了（{allocator.segments_freed} 段）还是放不下" if allocator.segments_freed else "没有空段可退"
        enough = not allocator.expandable and allocator.live + asked <= allocator.cap
        why = "按字节本来够，差在各段切剩的零头：开 expandable_segments 再试。" if enough else "这不是碎片：减激活，或换大卡。"
        return f"第 {len(film.tokens)} 步（{film.tokens[-1]} token）OOM：在用 {held[0]}，攥着 {held[1]}，下一块要 {held[2]}，{freed}。{why}"
    said = f"在用的最多 {live}，攥着 {reserved}，{format_number(ratio)} 倍。"
    if allocator.segments_freed:
        said += f"没 OOM，因为到上限就退段：退了 {allocator.segments_freed} 段，每退一次都要停下来等卡。"
    elif ratio > 1.2:
        said += "来了更长的样本，旧洞一个都塞不下，只好再要一批。先跑最长的样本，或开 expandable_segments。"
    else:
        said += "几乎没有碎片。"
    return said + (f"代价是多算 {format_number(more_pct, digits=3)}% 的 token。" if more_pct else "")
