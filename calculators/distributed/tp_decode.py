"""How many cards make decoding fastest, and what does a token then cost in card time?"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from calculators.catalog import Accelerator, Model, gpu_input, model_input
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Bar, BarChart, Chart, LineChart, Part, Series
from calculators.core.errors import refuse
from calculators.core.inputs import choice, linear_stops, number, text
from calculators.core.lists import read_integers
from calculators.core.numbers import format_number
from calculators.core.units import GB
from calculators.core.worked import Worked, quantity
from calculators.formulas.tensor import LARGEST_TP, decode_allreduce_seconds, decode_seconds, near

MS = 1e3
MOST = 16
"""Entries of a list."""


@dataclass(frozen=True)
class Point:
    """One t: milliseconds a token spends reading and synchronising, and whether the weights fit."""

    t: int
    read_ms: float
    sync_ms: float
    fits: bool

    @property
    def latency_ms(self) -> float:
        return self.read_ms + self.sync_ms


def _chart(run: Run, **_: object) -> tuple[Chart, ...]:
    points = run.result.trace
    assert isinstance(points, tuple)
    bars = tuple(
        Bar(f"t = {p.t}" + ("" if p.fits else "（装不下）"), (Part("读权重", p.read_ms), Part("等 all-reduce", p.sync_ms)), f"{format_number(p.latency_ms, digits=3)} ms")
        for p in points
    )  # fmt: skip
    charts: list[Chart] = [BarChart("一个 token 要多久", "读权重随卡数变短，等 all-reduce 的一段不变短。", Axis("每个 token", "ms", low=0), bars)]
    if len(points) > 1:
        charts.append(
            LineChart(
                "快了多少，贵了多少",
                "都和第一个 t 比。延迟降得越来越慢，卡时间只升不降：两条线之间就是代价。横轴是对数。",
                Axis("张量并行几张卡", "card", log=True),
                Axis("是第一个 t 的", "×", low=0),
                (
                    Series("延迟", tuple((float(p.t), p.latency_ms / points[0].latency_ms) for p in points), emphasis=True),
                    Series("每个 token 的卡时间", tuple((float(p.t), p.t * p.latency_ms / (points[0].t * points[0].latency_ms)) for p in points), dashed=True),
                ),
            )
        )
    return tuple(charts)


@calculator(
    title="decode 用几张卡最划算",
    question="一次吐一个 token，多加卡还快不快？",
    chapter="12",
    inputs=(
        model_input("llama-3-70b"),
        gpu_input(),
        choice("w_bytes", "每个权重的字节", 2, (2, 1, 0.5), "B", labels={"2": "2（BF16）", "1": "1（FP8、INT8）", "0.5": "0.5（4 bit）"}),
        number("ar_latency_us", "一次小 all-reduce", 10, "µs", low=1, high=200, stops=(1, 2, 5, 10, 15, 20, 30, 50, 100, 200), help="10 是假设：量你自己的（未核实）"),
        number("bw_eff", "带宽利用率", 0.8, low=0.3, high=1, kind="fraction", stops=linear_stops(0.3, 1, 0.05)),
        text("tp_list", "试哪几个 t", "1,2,4,8", longest=100, placeholder="1,2,4,8,16", more=True, help="从小到大，逗号隔开，都要能整除注意力头"),
    ),
    outputs=(
        Output("last_latency_ms", "最后一个 t 的延迟", "ms", main=True),
        Output("speedup", "比装得下的最小 t 快", "×", main=True),
        Output("gpu_time_ratio", "卡时间是它的", "×", main=True),
        Output("first_fit_tp", "装得下的最小 t", "card", main=True),
        Output("latency_ms", "各个 t 的延迟", "ms", main=True),
        Output("allreduce_ms", "其中等 all-reduce", "ms"),
        Output("fits", "装得下吗"),
    ),
    chart=_chart,
    formula=(
        "每个 token = N × 每权重字节 ÷ (t × 带宽 × 利用率) + 2L × 一次 all-reduce（t > 1 时）",
        "卡时间 = t × 每个 token 的时间",
        "装得下：权重 ÷ t ≤ 显存",
    ),
    assumptions=("batch 1：MoE 读激活的参数，装得下按全部参数", "消息只有几 KB，一次 all-reduce 付的全是延迟；10 µs 是假设（未核实）"),
    leaves_out="不算读 KV cache、启动开销（CUDA Graph 能去掉大半）。batch 大了 MoE 会碰到更多专家。",
    sources=("每步读一遍权重：第 03 章的解码下界", "每层前向 2 次 all-reduce：Shoeybi et al. 2019 §3"),
)  # fmt: skip
def tp_decode(*, model: Model, gpu: Accelerator, w_bytes: float, ar_latency_us: float, bw_eff: float, tp_list: str) -> Result:
    """Weights ÷ t over the bandwidth, plus two latencies a layer."""
    counts = _counts(tp_list, model)
    w = Worked()
    active = quantity(model.active_params, "params")
    weights = w.line("读的权重", active * quantity(w_bytes, "B"), "GB")
    speed = w.line("实得带宽", quantity(gpu.bandwidth_gb_s, "GB/s") * quantity(bw_eff), "GB/s", 6)
    sync = w.line("等 all-reduce", decode_allreduce_seconds(quantity(model.layers), quantity(ar_latency_us, "µs")), "ms")
    needed = model.total_params * w_bytes
    points = []
    for t in counts:
        read = w.line(f"t {t}，读权重", decode_seconds(weights, quantity(t), speed), "ms")
        if t > 1:
            w.line(f"t {t}，每个 token", read + sync, "ms")
        points.append(Point(t, read.value * MS, sync.value * MS if t > 1 else 0.0, needed <= t * gpu.memory_bytes))
    fitting = [p for p in points if p.fits]
    first, last = (fitting[0] if fitting else None), points[-1]
    w.say(f"装得下：{format_number(needed / GB)} GB ÷ t 不超过 {format_number(gpu.memory_gb)} GB → 最小的 t 是 {first.t if first else '没有'}")
    speedup = first.latency_ms / last.latency_ms if first else None
    cost = last.t * last.latency_ms / (first.t * first.latency_ms) if first else None
    fits: list[int] = [p.fits for p in points]
    return Result(
        values={
            "latency_ms": [p.latency_ms for p in points], "last_latency_ms": last.latency_ms, "allreduce_ms": last.sync_ms,
            "fits": fits, "first_fit_tp": first.t if first else None, "speedup": speedup, "gpu_time_ratio": cost,
        },
        lines=w.lines,
        verdict=_verdict(first, last, speedup, cost),
        trace=tuple(points),
    )  # fmt: skip


def _counts(typed: str, model: Model) -> tuple[int, ...]:
    """Raises Refusal."""
    counts = read_integers("tp_list", "试哪几个 t", typed, low=1, high=1024)
    if len(counts) > MOST:
        raise refuse("tp_list", f"试哪几个 t 最多 {MOST} 个", len(counts))
    if any(b <= a for a, b in pairwise(counts)):
        raise refuse("tp_list", "试哪几个 t 要从小到大", "、".join(map(str, counts)))
    heads = model.heads
    if not heads:
        raise refuse("model", "没有注意力头的模型，这里不会切", model.name, "换一个 Transformer")
    for t in counts:
        if heads % t:
            legal = [d for d in range(1, LARGEST_TP + 1) if heads % d == 0]
            raise refuse("tp_list", f"{heads} 个注意力头不能被 {t} 整除", model.name, f"可取 {near(legal, t)}")
    return counts


def _verdict(first: Point | None, last: Point, speedup: float | None, cost: float | None) -> str:
    took = f"{format_number(last.latency_ms, digits=3)} ms"
    if first is None or speedup is None or cost is None:
        return f"{last.t} 张卡也装不下，一个 token 的下界是 {took}：多用几张卡，或把权重压小。"
    if first is last:
        return f"只有 t = {last.t} 装得下，一个 token {took}。往列表里再加几个 t 才看得出拐点。"
    fold, gain = last.t / first.t, format_number(speedup, digits=3)
    paid = f"每个 token 的卡时间是原来的 {format_number(cost, digits=3)} 倍"
    floor = f"卡再多，也低不过等 all-reduce 的 {format_number(last.sync_ms, digits=3)} ms"
    if speedup < 1:
        return f"{first.t} → {last.t} 张反而更慢，延迟是原来的 {format_number(1 / speedup, digits=3)} 倍，{paid}：退回 {first.t} 张。"
    return f"{first.t} → {last.t} 张，卡是 {format_number(fold)} 倍，延迟只快 {gain} 倍，到 {took}；{paid}。{floor}。"
