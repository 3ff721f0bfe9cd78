"""How much memory do the model states of a training run take, and which block is the largest?"""

from __future__ import annotations

from calculators.catalog import accelerators, model
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Bar, BarChart, Chart, Part, Rule
from calculators.core.inputs import choice, flag, log_stops, number
from calculators.core.numbers import format_number
from calculators.core.units import GB, GIB
from calculators.core.worked import Quantity, Worked, ceil, quantity, total
from calculators.formulas.memory import state_bytes

CUSTOM = "custom"
CUSTOM_PARAMS_B = 7.0
PRESETS = ("llama-3-8b", "llama-3-70b", "qwen2.5-7b")
MASTER_BYTES = 4
"""An FP32 copy of the weights."""
BLOCKS = (("权重", "weights_gb"), ("梯度", "grads_gb"), ("Adam 的 m、v", "adam_gb"), ("FP32 主权重", "master_gb"))


def _chart(run: Run, *, card_gb: float, **_: object) -> tuple[Chart, ...]:
    parts = tuple(Part(name, float(run.values[key])) for name, key in BLOCKS if run.values[key])  # type: ignore[arg-type]
    card = Rule(f"{quantity(card_gb, 'GB').text}（{run.texts['card_gib']}）", x=card_gb)
    bar = Bar("模型状态", parts, run.texts["total_gb"])
    return (BarChart("模型状态占多少显存", "竖线是一张卡的标称容量。激活还没算进来。", Axis("显存", "GB"), (bar,), (card,)),)


@calculator(
    title="训练要多少显存",
    question="把模型训起来，光是权重、梯度、优化器要多少显存？一张卡够吗？",
    chapter="01",
    inputs=(
        choice("preset", "模型", CUSTOM, (CUSTOM, *PRESETS), labels={CUSTOM: "自己填参数量", **{id: model(id).name for id in PRESETS}}),
        number(
            "params_b", "参数量", None, "1e9", low=0.01, high=2000, kind="count", stops=log_stops(0.1, 1000), help="留空：自己填时取 7B，否则取所选模型的",
            range_remedy="单位是十亿：70 亿填 7 或 7B",
        ),
        choice("weight_bytes", "权重，每参数", 2, (2, 4), "B", more=True),
        choice("grad_bytes", "梯度，每参数", 2, (2, 4), "B", more=True, help="Megatron 默认用 FP32 累加梯度：4"),
        choice("opt_bytes", "Adam 的 m、v，每参数", 8, (2, 4, 8), "B", help="两个合计：FP32 是 8，BF16 是 4，8 位是 2"),
        flag("master_fp32", "另存 FP32 主权重", False, help="常说的 16 字节/参数含这一份：多 4 字节"),
        number("card_gb", "一张卡的显存", 80, "GB", low=8, high=1000, kind="bytes", stops=(8, 16, 24, 32, 48, 64, 80, 96, 141, 180, 192, 288)),
    ),
    outputs=(
        Output("weights_gb", "权重", "GB"),
        Output("grads_gb", "梯度", "GB"),
        Output("adam_gb", "Adam 的 m、v", "GB", main=True),
        Output("master_gb", "FP32 主权重", "GB"),
        Output("total_gb", "合计", "GB", main=True),
        Output("bytes_per_param", "每个参数", "B"),
        Output("total_gib", "合计（GiB）", "GiB"),
        Output("card_gib", "这张卡的标称容量（GiB）", "GiB"),
        Output("fits", "一张卡装得下", main=True),
    ),
    chart=_chart,
    formula=("每一块 = 参数量 × 每参数字节", "合计 = 参数量 ×（权重 + 梯度 + m、v + 主权重）", "装得下：合计 ≤ 标称容量（1 GB 按 10⁹ 字节，不留余量）"),
    leaves_out="不算激活（第 09 章）、CUDA 上下文（0.5–1 GB）和碎片：真实占用再多 10–100%。",
    sources=(
        "Rajbhandari et al. 2020（ZeRO）§3.1：2 + 2 + 12 字节，12 里含主权重",
        "Megatron-LM theoretical_memory_usage.py：18 字节，或分布式优化器下 6 + 12/d",
    ),
)  # fmt: skip
def train_memory_quick(*, preset: str, params_b: float | None, weight_bytes: int, grad_bytes: int, opt_bytes: int, master_fp32: bool, card_gb: float) -> Result:
    """States of mixed-precision training: parameters × bytes per parameter, block by block (GB = 1e9 B)."""
    count = params_b * 1e9 if params_b is not None else CUSTOM_PARAMS_B * 1e9 if preset == CUSTOM else float(model(preset).total_params)
    w = Worked()
    params = quantity(count, "params")
    each = [quantity(b, "B") for b in (weight_bytes, grad_bytes, opt_bytes, MASTER_BYTES if master_fp32 else 0)]
    used = [(name, b) for (name, _), b in zip(BLOCKS, each, strict=True) if b.value]
    blocks = [w.line(name, state_bytes(params, b), "GB") for name, b in used]
    per_param = w.line("每个参数", total([b for _, b in used]), "B")
    states = w.line("合计", total(blocks), "GB")
    card = quantity(card_gb, "GB")
    gib = w.line("合计换成 GiB", states, "GiB")
    card_gib = w.line("这张卡换成 GiB", card, "GiB")
    fits = states.value <= card.value
    name, largest = max(zip((n for n, _ in used), blocks, strict=True), key=lambda pair: pair[1].value)
    return Result(
        values={
            **{key: count * b.value / GB for (_, key), b in zip(BLOCKS, each, strict=True)},
            "total_gb": states, "bytes_per_param": per_param, "total_gib": gib, "card_gib": card_gib, "fits": fits,
        },
        lines=w.lines,
        verdict=_verdict(params, states, card, name, largest),
        resolved={"params_b": count / 1e9},
        notes=_reported(card_gb),
    )  # fmt: skip


def _verdict(params: Quantity, states: Quantity, card: Quantity, name: str, largest: Quantity) -> str:
    head = f"{params.text}的模型状态要 {states.text}，最大的一块：{name}，{largest.text}。"
    if states.value > card.value:
        cards = int(ceil(states.value / card.value))
        short = quantity((states.value - card.value) / GB, "GB", digits=4)
        return head + f"一张 {card.text} 的卡装不下，差 {short.text}，还没算激活。切到 {cards} 张卡上才勉强放下，再留出激活的地方（第 11 章）。"
    left = quantity((card.value - states.value) / GB, "GB", digits=4)
    return head + f"一张 {card.text} 的卡装得下，剩 {left.text} 给激活和碎片。"


def _reported(card_gb: float) -> tuple[str, ...]:
    """What drivers of cards with that label report: the label is loose."""
    cards = [(a, a.memory_gib_reported) for a in accelerators().values() if a.memory_gb == card_gb and a.memory_gib_reported is not None]
    known = [
        f"{a.name} {format_number(gib)} GiB，合 {format_number(gib * GIB / GB)} GB" + ("（未核实）" if a.is_unverified("memory_gib_reported") else "")
        for a, gib in cards[:2]
    ]
    return (f"标称 {format_number(card_gb)} GB 的卡，驱动实际报告：{'；'.join(known)}。这里按标称算。",) if known else ()
