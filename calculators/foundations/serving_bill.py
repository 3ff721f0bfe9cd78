"""What does it cost to serve a dense model all month, before and after the usual optimisations, and which one pays?"""

from __future__ import annotations

from dataclasses import replace

from calculators.catalog import Accelerator, Model, gpu_input, model_input
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, Waterfall
from calculators.core.errors import Refusal, refuse
from calculators.core.inputs import Input, flag, integer, linear_stops, log_stops, number
from calculators.core.numbers import format_number
from calculators.core.units import DAY
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.serving import MOST_CARDS, Bill, Load, Side, arrival_per_s, serve, tokens_per_request

STEPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("真正的张量并行", ("layer_sequential",)),
    ("KV 利用率", ("kv_util",)),
    ("去掉 Python 开销、换好 kernel", ("overhead_ms", "bw_eff", "flop_eff")),
    ("权重变小（只有权重）", ("weight_bytes", "mem_frac", "cards_per_replica")),
    ("矩阵乘也用低精度的峰值", ("peak", "peak_unit")),
)
"""Bars of the waterfall: what each step takes over from the optimised side.  The memory share may grow tighter only together
with the smaller weights; a different number of cards per replica belongs to the same step."""

RENT_OF = "a100-80gb"
"""The card that the default rent belongs to."""
FEW_CARDS = 10
"""Below this, rounding up to whole replicas hides what a step saves."""


def waterfall(load: Load, naive: Side, optimised: Side) -> list[int] | None:
    """Cards after each cumulative step; None when a step in between does not fit."""
    side, cards = naive, []
    for fields in ((), *(fields for _, fields in STEPS)):
        side = replace(side, **{name: getattr(optimised, name) for name in fields})
        try:
            cards.append(int(serve(load, side, Worked()).cards.value))
        except Refusal:
            return None
    return cards


def _chart(run: Run, **_: object) -> tuple[Chart, ...]:
    cards = run.values["waterfall_cards"]
    if not isinstance(cards, list):
        return ()
    names = ("朴素", *(name for name, _ in STEPS))
    steps = tuple((name, float(level)) for name, level in zip(names, cards, strict=True))  # type: ignore[arg-type]
    return (Waterfall("卡是怎么一步步省下来的", "一步步叠加。没省的那一步：当时卡住的不是它；卡少时也可能是凑整副本。", Axis("卡数", "卡"), steps),)


def _pair(
    name: str, label: str, defaults: tuple[float | None, float | None], unit: str, low: float, high: float, stops: tuple[float, ...], help: str = ""
) -> tuple[Input, Input]:
    return (
        number(f"{name}_naive", f"朴素：{label}", defaults[0], unit, low=low, high=high, stops=stops, more=True, help=help),
        number(f"{name}_opt", f"优化：{label}", defaults[1], unit, low=low, high=high, stops=stops, more=True, help=help),
    )


@calculator(
    title="一笔服务账单：优化前后",
    question="每天这么多请求，要多少张卡、每月多少钱？哪一项优化最值？",
    chapter="01",
    inputs=(
        number("requests_per_day", "每天请求数", 1e7, "1/day", low=1e3, high=1e10, kind="count", stops=log_stops(1e4, 1e9, 3)),
        integer("prompt", "提示长度", 150, "token", high=100_000, kind="tokens", stops=(50, 100, 150, 300, 500, 1000, 2000, 4000, 8000)),
        integer("output", "输出长度", 80, "token", high=100_000, kind="tokens", stops=(20, 40, 80, 150, 200, 300, 500, 1000, 2000)),
        number("peak_factor", "高峰是平均的", 1, "×", low=1, high=10, stops=linear_stops(1, 10, 0.5)),
        gpu_input("a100-80gb"),
        model_input("llama-3-70b", where=lambda m: m.is_dense, more=True, help="只算稠密模型；MoE 见第 20 章"),
        number("price", "租金", 20_000, "元/卡/月", low=0, high=200_000, kind="money", more=True, stops=linear_stops(0, 40_000, 2000), help="一个假设，约合 27.4 元/卡·时；不同市场差几倍"),
        integer("floor_cards", "算力下限按几张卡", 15, "卡", high=100_000, more=True, stops=(5, 10, 15, 20, 50, 100)),
        *_pair("weight_bytes", "每参数字节", (2, 1), "B", 0.5, 4, (0.5, 1, 2, 4)),
        integer("cards_per_replica_naive", "朴素：每副本卡数", 2, "卡", high=MOST_CARDS, more=True, stops=(1, 2, 4, 8, 16)),
        integer("cards_per_replica_opt", "优化：每副本卡数", 2, "卡", high=MOST_CARDS, more=True, stops=(1, 2, 4, 8, 16)),
        flag("layer_sequential_naive", "朴素：逐层轮流算", True, more=True, help="device_map：同一时刻只有一张卡在干活"),
        flag("layer_sequential_opt", "优化：逐层轮流算", False, more=True, help="否就是张量并行"),
        *_pair("mem_frac", "显存用到几成", (0.95, 0.90), "", 0.1, 1, linear_stops(0.5, 1, 0.05)),
        *_pair("kv_util", "KV 显存的利用率", (0.30, 0.95), "", 0.05, 1, linear_stops(0.05, 1, 0.05)),
        *_pair("bw_eff", "带宽发挥几成", (0.60, 0.70), "", 0.05, 1, linear_stops(0.05, 1, 0.05)),
        number("peak_tflops_naive", "朴素：峰值算力", None, "TFLOPS", low=1, high=20_000, more=True, help="留空：这张卡的 BF16 稠密峰值"),
        number("peak_tflops_opt", "优化：峰值算力", None, "TOPS", low=1, high=20_000, more=True, help="留空：这张卡的 INT8 稠密峰值（W8A8）"),
        *_pair("flop_eff", "算力发挥几成", (0.40, 0.50), "", 0.05, 1, linear_stops(0.05, 1, 0.05)),
        *_pair("overhead_ms", "每步的额外开销", (20, 0), "ms", 0, 1000, (0, 1, 2, 5, 10, 20, 50, 100), "Python 循环、kernel 启动"),
    ),
    outputs=(
        Output("cards_naive", "朴素：卡数", "卡", main=True),
        Output("cards_opt", "优化：卡数", "卡", main=True),
        Output("cost_wan_naive", "朴素：每月", "万元/月", main=True),
        Output("cost_wan_opt", "优化：每月", "万元/月", main=True),
        Output("ratio_x", "卡数之比", "×"),
        Output("free_gb_naive", "朴素：留给 KV", "GB"),
        Output("free_gb_opt", "优化：留给 KV", "GB"),
        Output("batch_naive", "朴素：batch", "sequence"),
        Output("batch_opt", "优化：batch", "sequence"),
        Output("step_ms_naive", "朴素：一步", "ms"),
        Output("step_ms_opt", "优化：一步", "ms"),
        Output("prefill_s_naive", "朴素：整批 prefill", "s"),
        Output("prefill_s_opt", "优化：整批 prefill", "s"),
        Output("rps_naive", "朴素：每副本", "request/s"),
        Output("rps_opt", "优化：每副本", "request/s"),
        Output("compute_bound_naive", "朴素：卡在算力"),
        Output("compute_bound_opt", "优化：卡在算力"),
        Output("waterfall_cards", "逐项叠加后的卡数", "卡"),
        Output("floor_tokens_bf16", "这么多卡，每个请求最多花得起（BF16）", "token"),
        Output("floor_tokens_opt", "这么多卡，每个请求最多花得起（优化侧峰值）", "token"),
    ),
    chart=_chart,
    formula=(
        "batch = ⌊(卡数 × 显存 × 利用比例 − 权重) × KV 利用率 ÷ ((P + O) × 每 token 的 KV)⌋",
        "一步 = max(读权重 + 读 KV, 2N × batch ÷ 有效算力) + 开销；读 KV 按输出过半时算",
        "每副本 = batch ÷ (整批 prefill + O × 一步)",
        "卡数 = ⌈每秒请求 ÷ 每副本⌉ × 每副本卡数；月租 = 卡数 × 租金",
    ),
    assumptions=("整批一起 prefill、一起解码", "KV Cache 存 BF16", "逐层轮流算时，同一时刻只有一张卡的带宽和算力有用"),
    leaves_out="不算到达的起伏、排队、前缀缓存和网络：上下差 2 倍以内。量级，不是实测。",
    sources=(
        "模型算术：每 token 2N 次浮点运算，每步读一遍权重和 KV",
        "Kwon et al. 2023（vLLM）：早先系统的 KV 有效利用率 20.4–38.2%（未核实）",
        "租金是假设：2 万元/卡/月，按 730 小时合 27.4 元/卡·时",
    ),
)  # fmt: skip
def serving_bill(
    *,
    requests_per_day: float, prompt: int, output: int, peak_factor: float, model: Model, gpu: Accelerator, price: float, floor_cards: int,
    weight_bytes_naive: float, weight_bytes_opt: float, cards_per_replica_naive: int, cards_per_replica_opt: int,
    layer_sequential_naive: bool, layer_sequential_opt: bool, mem_frac_naive: float, mem_frac_opt: float, kv_util_naive: float, kv_util_opt: float,
    bw_eff_naive: float, bw_eff_opt: float, peak_tflops_naive: float | None, peak_tflops_opt: float | None, flop_eff_naive: float, flop_eff_opt: float,
    overhead_ms_naive: float, overhead_ms_opt: float,
) -> Result:  # fmt: skip
    """Cards and monthly rent of a naive and an optimised system for one load."""
    naive = Side(
        "naive", "朴素", weight_bytes_naive, cards_per_replica_naive, layer_sequential_naive, mem_frac_naive, kv_util_naive, bw_eff_naive,
        _peak(peak_tflops_naive, gpu, "bf16", "peak_tflops_naive", "朴素：峰值算力"), "TFLOPS", flop_eff_naive, overhead_ms_naive,
    )  # fmt: skip
    optimised = Side(
        "opt", "优化", weight_bytes_opt, cards_per_replica_opt, layer_sequential_opt, mem_frac_opt, kv_util_opt, bw_eff_opt,
        _peak(peak_tflops_opt, gpu, "int8", "peak_tflops_opt", "优化：峰值算力"), "TOPS", flop_eff_opt, overhead_ms_opt,
    )  # fmt: skip
    w = Worked()
    arrival = w.line("每秒请求", arrival_per_s(quantity(requests_per_day, "1/day"), quantity(DAY, "s"), quantity(peak_factor)), "request/s")
    load = Load(model, gpu, prompt, output, arrival)
    before, after = serve(load, naive, w), serve(load, optimised, w)
    rent = quantity(price, "元/卡/月")
    cost_before = w.line("朴素 · 每月", before.cards * rent, "万元/月")
    cost_after = w.line("优化 · 每月", after.cards * rent, "万元/月")
    ratio = w.line("卡数之比", before.cards / after.cards, "×")
    held = quantity(floor_cards, "卡")
    demand = w.line("每个 token 每秒要的运算", arrival * (quantity(2, "FLOP") * quantity(model.total_params, "params")), "TFLOPS")

    def affordable(label: str, peak: float, unit: str) -> Quantity:
        return w.line(f"每个请求最多花得起（{label}）", tokens_per_request(held, quantity(peak, unit), quantity(flop_eff_opt), demand), "token")

    bf16 = gpu.tflops.get("bf16")
    floor_bf16 = affordable("BF16", bf16, "TFLOPS") if bf16 is not None else None
    floor_opt = affordable("优化侧峰值", optimised.peak, "TOPS")
    steps = waterfall(load, naive, optimised)
    if steps is not None:
        w.say(f"逐项叠加（每步重算一遍卡数） → {'、'.join(format_number(c) for c in steps)} 卡")
    return Result(
        values={
            "cards_naive": int(before.cards.value), "cards_opt": int(after.cards.value), "cost_wan_naive": cost_before, "cost_wan_opt": cost_after,
            "ratio_x": ratio, "free_gb_naive": before.room, "free_gb_opt": after.room, "batch_naive": int(before.batch.value),
            "batch_opt": int(after.batch.value), "step_ms_naive": before.step, "step_ms_opt": after.step, "prefill_s_naive": before.prefill,
            "prefill_s_opt": after.prefill, "rps_naive": before.rate, "rps_opt": after.rate, "compute_bound_naive": before.compute_bound,
            "compute_bound_opt": after.compute_bound, "waterfall_cards": steps, "floor_tokens_bf16": floor_bf16, "floor_tokens_opt": floor_opt,
        },
        lines=w.lines,
        verdict=_verdict(before, after, cost_before, cost_after, ratio, steps, _idle_steps(steps, naive, optimised)),
        resolved={"peak_tflops_naive": naive.peak, "peak_tflops_opt": optimised.peak},
        notes=_notes(steps, floor_cards, floor_bf16, floor_opt, prompt + output, "" if gpu.id == RENT_OF else gpu.name),
    )  # fmt: skip


def _peak(given: float | None, gpu: Accelerator, precision: str, field: str, label: str) -> float:
    """The given peak, or the card's own.  Raises Refusal when the card has none."""
    peak = gpu.tflops.get(precision) if given is None else given
    if peak is None:
        raise refuse(field, f"{label}留空时取这张卡的，而 {gpu.name} 没有 {precision.upper()} 稠密峰值", "空", "手填一个数，或换一张卡")
    return peak


def _idle_steps(steps: list[int] | None, naive: Side, optimised: Side) -> list[str]:
    """Steps that change something and still save no card; a step whose two sides are alike is no step."""
    pairs = zip(steps, steps[1:], STEPS, strict=False) if steps else ()
    return [
        name
        for a, b, (name, fields) in pairs
        if a == b and any(getattr(naive, f) != getattr(optimised, f) for f in fields if f != "peak_unit")  # TFLOPS or TOPS: only a word
    ]


def _verdict(before: Bill, after: Bill, cost_before: Quantity, cost_after: Quantity, ratio: Quantity, steps: list[int] | None, idle_steps: list[str]) -> str:
    head = f"朴素 {before.cards.text}、{cost_before.text}；优化后 {after.cards.text}、{cost_after.text}。"
    if ratio.value <= 1:
        return head + "这组参数下，优化没有省出卡来。"
    head += f"卡数差 {ratio.text}。"
    if steps is None:
        return head
    saved = [(a - b, name) for a, b, (name, _) in zip(steps, steps[1:], STEPS, strict=False)]
    most, name = max(saved)
    idle = "、".join(f"「{name}」" for name in idle_steps)
    why = "当时卡住的不是它" if min(steps) >= FEW_CARDS else "卡少，凑整副本就凑没了"
    return head + f"省得最多的一步是「{name}」：{most} 张。" + (f"{idle}一张没省：{why}。" if idle else "")


def _notes(steps: list[int] | None, cards: int, bf16: Quantity | None, opt: Quantity, length: int, other_card: str) -> tuple[str, ...]:
    notes = []
    if bf16 is not None:
        enough = _ENOUGH[bf16.value >= length, opt.value >= length]
        notes.append(f"只看算力，{cards} 张卡每个请求最多花得起 {bf16.text}（BF16）或 {opt.text}（优化侧峰值）。你的请求是 {length} token：{enough}。")
    if other_card:
        notes.append(f"默认的租金是按 A100 取的：{other_card} 的价钱请自己填。")
    if steps is None:
        notes.append("逐项叠加的中间某一步装不下，瀑布图不画。")
    return tuple(notes)


_ENOUGH = {
    (True, True): "都够",
    (False, True): "只有优化侧的峰值才够",
    (True, False): "BF16 够，优化侧的峰值反而不够",
    (False, False): "都不够，请求再短些或加卡",
}
"""Is the arithmetic enough at the BF16 peak, at the optimised side's peak?"""
