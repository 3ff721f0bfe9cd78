"""What stands on one card at the peak of an FSDP step, and which part of it does the wrapping decide?"""

from __future__ import annotations

from calculators.catalog import Model
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Bar, BarChart, Chart, Part
from calculators.core.errors import refuse
from calculators.core.inputs import choice, flag, integer, linear_stops, log_stops, number, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.units import GB
from calculators.core.worked import Quantity, Worked, quantity, total
from calculators.distributed._models import CUSTOM, model_or
from calculators.distributed.zero_memory import OPTIMIZERS
from calculators.formulas.fsdp import embedding_params, gathered_bytes, layer_params, smallest_dim0
from calculators.formulas.memory import state_bytes
from calculators.formulas.zero import stage_bytes_per_param

WRAPS = {"layer": "每层一个单元，词表另算", "whole-model": "整个模型一个单元"}


def _sizes(model: Model | None, params: float, layer: float, embed: float) -> tuple[float, float, float]:
    if model:
        return float(model.total_params), float(layer_params(model)), float(embedding_params(model))
    if layer > params or embed > params:
        raise refuse("layer_params", "一层的参数不能比整个模型多", f"{format_number(max(layer, embed))} > {format_number(params)}", "改小一层或词表")
    return params, layer, embed


def _gathered(w_bytes: float, sizes: tuple[float, float, float], units: int, wrap: str, reshard: bool) -> tuple[float, float]:
    """Bytes of weights on hand, and parameters whose gradients are not yet cut."""
    psi, layer, embed = sizes
    if wrap == "whole-model":
        return psi * w_bytes, psi
    return (gathered_bytes(float(units), layer * w_bytes, embed * w_bytes) if reshard else psi * w_bytes), layer


def _chart(
    run: Run, *, model: Model | None, wrap: str, reshard_after_forward: bool, w_bytes: int, g_bytes: int, units_in_flight: int, act_gb: float,
    params: float, layer_params: float, embed_params: float, **_: object,
) -> tuple[Chart, ...]:  # fmt: skip
    sizes = _sizes(model, params, layer_params, embed_params)
    ways = (("每层一个单元", "layer", True), ("前向完不放掉", "layer", False), ("整个模型一个单元", "whole-model", True))
    present = ("whole-model", True) if wrap == "whole-model" else ("layer", reshard_after_forward)

    def bar(name: str, way: str, reshard: bool) -> Bar:
        weights, pending = _gathered(float(w_bytes), sizes, units_in_flight, way, reshard)
        parts = {"切开的状态": float(run.values["shard_gb"]), "收集来的参数": weights / GB, "还没切的梯度": pending * g_bytes / GB, "激活": act_gb}  # type: ignore[arg-type]
        return Bar(name, tuple(Part(*p) for p in parts.items() if p[1]), f"{format_number(sum(parts.values()))} GB", emphasis=(way, reshard) == present)

    return (
        BarChart("包法决定峰值", "切开的状态三种一样大，差的是临时收集来的参数和还没归约的梯度。", Axis("每卡峰值", "GB"), tuple(bar(*way) for way in ways)),
    )


@calculator(
    title="FSDP 单卡峰值",
    question="状态都切开了，为什么峰值还是这么高？谁说了算？",
    chapter="11",
    inputs=(
        model_or(CUSTOM, "自己填", "llama-3-8b"),
        integer("n_shard", "切到几张卡", 8, "卡", low=1, high=4096, stops=powers_of_two(1, 4096)),
        choice("wrap", "怎么包", "layer", tuple(WRAPS), labels=WRAPS),
        flag("reshard_after_forward", "前向完就放掉", True, help="否：参数留到反向，少一趟收集（ZeRO-2 的做法）"),
        number("act_gb", "激活", 10, "GB", low=0, high=1000, stops=linear_stops(0, 60, 5)),
        integer("units_in_flight", "手上几个单元", 2, low=1, high=4, stops=(1, 2, 3, 4), help="正在算的，加上提前收集的"),
        choice("w_bytes", "权重，每参数", 2, (2, 4), "B", more=True),
        choice("g_bytes", "梯度，每参数", 2, (2, 4), "B", more=True),
        choice("k_opt", "优化器，每参数", 12, (12, 8, 6, 4, 2, 0), "B", labels=OPTIMIZERS, more=True),
        number("params", "参数量", 7e9, "params", low=1e6, high=2e12, kind="count", more=True, stops=log_stops(1e8, 1e12, 3), only_if=("model", (CUSTOM,))),
        number("layer_params", "一层的参数", 2e8, "params", low=1, high=2e12, kind="count", more=True, stops=log_stops(1e7, 1e10, 3), only_if=("model", (CUSTOM,))),
        number("embed_params", "词表的参数", 1.3e8, "params", low=1, high=2e12, kind="count", more=True, stops=log_stops(1e7, 1e10, 3), only_if=("model", (CUSTOM,))),
    ),
    outputs=(
        Output("layer_gb", "一层的权重", "GB"),
        Output("embed_gb", "词表", "GB"),
        Output("shard_gb", "切开的状态", "GB", main=True),
        Output("gathered_gb", "收集来的参数", "GB", main=True),
        Output("grad_unit_gb", "还没切的梯度", "GB", main=True),
        Output("total_gb", "峰值", "GB", main=True),
    ),
    chart=_chart,
    formula=(
        "峰值 = (w + g + K)·Ψ/n + max(单元数 × w·层, w·词表) + g·层 + 激活",
        "前向完不放掉：收集来的是 w·Ψ；整个模型一个单元：收集 w·Ψ，梯度 g·Ψ",
    ),
    assumptions=("一层连 norm 一起；MoE 的一层含全部专家", "词表单独一个单元：它常常比一层还大"),
    leaves_out="不算分配器碎片、提前收集的限流、优化器那一步的临时副本（foreach 会把一组参数翻倍）：误差 5–20%。",
    sources=("PyTorch FSDP2 文档 fully_shard：逐参数在第 0 维切，不用 record_stream",),
)  # fmt: skip
def fsdp_peak(
    *, model: Model | None, n_shard: int, wrap: str, reshard_after_forward: bool, act_gb: float, units_in_flight: int, w_bytes: int, g_bytes: int, k_opt: int,
    params: float, layer_params: float, embed_params: float,
) -> Result:  # fmt: skip
    """Shard + gathered weights + gradients not yet cut + activations."""
    sizes = _sizes(model, params, layer_params, embed_params)
    w = Worked()
    psi, layer, table = (quantity(size, "params") for size in sizes)
    weight, grad, optimizer = (quantity(b, "B") for b in (w_bytes, g_bytes, k_opt))
    whole = wrap == "whole-model"
    layer_bytes = w.line("一层的权重", state_bytes(layer, weight), "GB")
    table_bytes = w.line("词表", state_bytes(table, weight), "GB")
    shard = w.line("切开的状态", state_bytes(psi, stage_bytes_per_param(3, weight, grad, optimizer, quantity(n_shard))), "GB")
    if whole or not reshard_after_forward:
        gathered = w.line("收集来的参数，整个模型", state_bytes(psi, weight), "GB")
    else:
        gathered = w.line("收集来的参数", gathered_bytes(quantity(units_in_flight), layer_bytes, table_bytes), "GB")
    pending = w.line("还没切的梯度", state_bytes(psi if whole else layer, grad), "GB")
    peak = w.line("峰值", total([shard, gathered, pending, quantity(act_gb, "GB")]), "GB")
    return Result(
        values={
            "layer_gb": layer_bytes, "embed_gb": table_bytes, "shard_gb": shard, "gathered_gb": gathered, "grad_unit_gb": pending, "total_gb": peak,
        },
        lines=w.lines,
        verdict=_verdict(whole, reshard_after_forward, units_in_flight, layer_bytes, table_bytes, shard, gathered, pending, peak, act_gb),
        notes=_padding(model, n_shard),
    )  # fmt: skip


def _padding(model: Model | None, n_shard: int) -> tuple[str, ...]:
    if model is None or n_shard <= smallest_dim0(model):
        return ()
    return (f"FSDP2 在第 0 维切：最小的参数只有 {smallest_dim0(model)} 行，切不成 {n_shard} 份，多出来的卡拿到的是补齐的空片。",)


def _verdict(
    whole: bool, reshard: bool, units: int, layer: Quantity, table: Quantity, shard: Quantity, gathered: Quantity, pending: Quantity, peak: Quantity, act_gb: float
) -> str:  # fmt: skip
    head = f"峰值 {peak.text}：切开的状态 {shard.text}，激活 {format_number(act_gb)} GB，临时的 {format_number((gathered.value + pending.value) / GB)} GB。"
    if whole:
        return head + "整个模型一个单元，参数和梯度都要整份收齐：按层包。"
    if not reshard:
        return head + "参数留到反向，少一趟收集，代价是整份权重一直在。"
    if table.value > units * layer.value:
        return head + f"手上最大的是词表（{table.text}），比 {units} 层（{format_number(units * layer.value / GB)} GB）还大：别把它和层包进同一个单元。"
    less = "少提前收集一个" if units > 1 else "把一层拆成几个单元"
    return head + f"手上最大的是 {units} 个单元的层，每层 {layer.text}：还嫌高，就{less}。"
