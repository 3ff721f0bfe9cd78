"""How many bytes does every parameter cost under a training recipe, and which part of it costs them?"""

from __future__ import annotations

from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Bar, BarChart, Chart, Part
from calculators.core.inputs import Input, choice, integer, log_stops, number, powers_of_two
from calculators.core.units import GB
from calculators.core.worked import Quantity, Worked, quantity, total
from calculators.formulas.memory import state_bytes
from calculators.formulas.recipes import RECIPES, Recipe, sharded_bytes_per_param

CUSTOM = "custom"
MORE_CARDS = 8
"""One server: what the verdict proposes to split the optimizer over."""
BYTES = (0, 0.5, 1, 2, 4)
PARTS = (("权重", "weights_gb"), ("梯度", "grads_gb"), ("主权重", "master_gb"), ("m、v", "moments_gb"))


def _part(name: str, label: str, default: float) -> Input:
    return choice(name, f"{label}，每参数", default, BYTES, "B", more=True, only_if=("recipe", (CUSTOM,)))


def _label(id: str, recipe: Recipe) -> str:
    parts = "+".join(f"{b:g}" for b in (recipe.weight, recipe.grad, recipe.master, recipe.m, recipe.v))
    return f"{id}：{parts}" + (f"（另有 {recipe.transient:g} 临时）" if recipe.transient else "")


def _blocks_gb(params: float, recipe: Recipe, dp: int) -> dict[str, float]:
    """GB by part, as the chart stacks them."""
    each = (recipe.weight, recipe.grad, recipe.master / dp, (recipe.m + recipe.v) / dp)
    return {name: state_bytes(params, b) / GB for (name, _), b in zip(PARTS, each, strict=True) if b}


def _chart(
    run: Run, *, N: float, recipe: str, dp: int, w_bytes: float, g_bytes: float, master_bytes: float, m_bytes: float, v_bytes: float
) -> tuple[Chart, ...]:
    shown = dict(RECIPES)
    if recipe == CUSTOM:
        shown = {CUSTOM: Recipe(w_bytes, g_bytes, master_bytes, m_bytes, v_bytes, ""), **shown}
    bars = []
    for id, r in shown.items():
        blocks = _blocks_gb(N, r, dp)
        if r.transient:
            blocks["临时的 BF16 副本"] = state_bytes(N, r.transient) / GB
        kept = sum(gb for name, gb in blocks.items() if not name.startswith("临时"))
        bars.append(Bar("自己填" if id == CUSTOM else id, tuple(Part(*b) for b in blocks.items()), quantity(kept, "GB", 4).text, emphasis=id == recipe))
    return (BarChart("每种配方，状态各占多少", "一段是一块状态，右边的数是合计；临时副本画在后面，不计入合计。", Axis("显存", "GB"), tuple(bars)),)


@calculator(
    title="配方字节账",
    question="这个训练配方，每个参数要几个字节？总共多少？",
    chapter="06",
    inputs=(
        number("N", "参数量", 7e9, "params", low=0, low_open=True, high=1e14, kind="count", stops=log_stops(1e8, 1e12, 3)),
        choice("recipe", "配方（权重 + 梯度 + 主权重 + m + v）", "seed-12", (*RECIPES, CUSTOM), labels={**{id: _label(id, r) for id, r in RECIPES.items()}, CUSTOM: "自己填"}),
        integer("dp", "优化器切到几张卡", 1, "卡", low=1, high=1024, stops=powers_of_two(1, 1024), help="分布式优化器（ZeRO-1）：主权重和 m、v 各卡一份不重复的"),
        _part("w_bytes", "权重", 2),
        _part("g_bytes", "梯度", 2),
        _part("master_bytes", "主权重", 0),
        _part("m_bytes", "一阶动量 m", 4),
        _part("v_bytes", "二阶动量 v", 4),
    ),
    outputs=(
        Output("bytes_per_param", "每个参数", "B", main=True),
        Output("total_gb", "状态合计，每卡", "GB", main=True),
        Output("weights_gb", "权重", "GB"),
        Output("grads_gb", "梯度", "GB"),
        Output("master_gb", "FP32 主权重", "GB"),
        Output("moments_gb", "两个动量 m、v", "GB"),
        Output("transient_gb", "临时的低精度副本，不计入合计", "GB", main=True),
    ),
    chart=_chart,
    formula=("每个参数 = 权重 + 梯度 +（主权重 + m + v）÷ 切到几张卡", "合计 = 参数量 × 每个参数"),
    assumptions=("Adam：m、v 两份；临时副本只在前向、反向时存在，另列",),
    leaves_out="不算激活（第 03、09 章）；也不算块缩放的 scale：每 128 个数 4 字节，给 FP8 的那一块添 3%。",
    sources=(
        "Rajbhandari et al. 2020（ZeRO）§3.1：2 + 2 + 12",
        "Megatron-LM theoretical_memory_usage.py：18，分布式优化器 6 + 12/d",
        "DeepSeek-V3 报告 §3.3：BF16 的 m、v，FP32 的主权重与梯度",
        "Dettmers et al. 2022（8-bit Optimizers）",
    ),
)  # fmt: skip
def bytes_per_param(*, N: float, recipe: str, dp: int, w_bytes: float, g_bytes: float, master_bytes: float, m_bytes: float, v_bytes: float) -> Result:
    """Bytes per parameter by part × parameters; the optimizer's part divided by the ranks that share it."""
    r = RECIPES[recipe] if recipe != CUSTOM else Recipe(w_bytes, g_bytes, master_bytes, m_bytes, v_bytes, "")
    w = Worked()
    params, ranks = quantity(N, "params"), quantity(dp)
    weight, grad = quantity(r.weight, "B"), quantity(r.grad, "B")
    optimizer = quantity(r.m + r.v, "B")
    if r.master:
        optimizer = w.line("优化器（主权重 + m、v）", quantity(r.master, "B") + optimizer, "B")
    per_param = sharded_bytes_per_param(weight, grad, optimizer, ranks) if dp > 1 else total([weight, grad, optimizer])
    each = w.line("每个参数", per_param, "B")
    whole = w.line("合计", state_bytes(params, each), "GB")
    transient = w.line("另有临时副本", state_bytes(params, quantity(r.transient, "B")), "GB") if r.transient else quantity(0, "GB")
    return Result(
        values={
            "bytes_per_param": each, "total_gb": whole, "weights_gb": N * r.weight / GB, "grads_gb": N * r.grad / GB,
            "master_gb": N * r.master / dp / GB, "moments_gb": N * (r.m + r.v) / dp / GB, "transient_gb": transient,
        },
        lines=w.lines,
        verdict=_verdict(params, r, dp, each, whole, transient),
    )  # fmt: skip


def _verdict(params: Quantity, r: Recipe, dp: int, each: Quantity, whole: Quantity, transient: Quantity) -> str:
    parts = {"权重": r.weight, "梯度": r.grad, "主权重": r.master / dp, "m、v": (r.m + r.v) / dp}
    largest = max(parts, key=lambda name: parts[name])
    if not parts[largest]:
        return "五项都填了 0：没有这样的训练。"
    head = f"{params.text}，每个参数 {each.text}，每张卡 {whole.text}。最大的一块：{largest}，每个参数 {quantity(parts[largest], 'B', 4).text}。"
    if r.transient:
        return head + f"开了 AMP 状态没有变小，前向时还多 {transient.text} 的 BF16 副本；省的是激活，快的是矩阵乘。"
    if not r.master and r.weight < 4:
        return head + "没留 FP32 主权重：更新小于半格就被吞，要么用随机舍入，要么补上这 4 字节。"
    if not r.m + r.v:
        return head
    if dp > 1:
        return head + "优化器已经切开；再省，切梯度和权重（第 11 章）。"
    cut = sharded_bytes_per_param(r.weight, r.grad, r.master + r.m + r.v, float(MORE_CARDS))
    return head + f"多卡就先切优化器：切到 {MORE_CARDS} 张卡，每个参数只剩 {quantity(cut, 'B', 4).text}。"
