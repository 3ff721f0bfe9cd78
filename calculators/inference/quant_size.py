"""How large is a quantised checkpoint, with its scales and with the tables that stay in BF16?"""

from __future__ import annotations

from calculators.catalog import Model, model_input
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Bar, BarChart, Chart, Part
from calculators.core.errors import refuse
from calculators.core.inputs import choice, flag, integer, number, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.units import GB
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.quantization import SCHEMES, TABLE_BITS, Scheme, bits_per_weight, stored_bytes

CUSTOM = ("scheme", ("custom",))
CUSTOM_NAME = "自己填"


def _parts(model: Model, payload: float, overhead: float, keep: bool) -> tuple[Part, ...]:
    """Linear weights, their scales, the tables: in GB."""
    tables = model.embedding_and_head_params if keep else 0
    linear = model.total_params - tables
    return (
        Part("线性层", stored_bytes(linear, payload) / GB),
        Part("scale、零点", stored_bytes(linear, overhead) / GB),
        Part("词表", stored_bytes(tables, TABLE_BITS) / GB),
    )


def _overhead(scheme: Scheme) -> float:
    return (scheme.scale_bits + scheme.zero_bits) / scheme.group if scheme.group else 0.0


def _chart(run: Run, *, model: Model, scheme: str, keep_embeddings_bf16: bool, custom_bits: int, custom_bpw: float, **_: object) -> tuple[Chart, ...]:
    rows = [(id, s.name, float(s.bits), _overhead(s)) for id, s in SCHEMES.items()]
    if scheme == "custom":
        used = run.values["bits_per_weight"]
        assert isinstance(used, float)
        payload = used if custom_bpw else float(custom_bits)
        rows.append(("custom", CUSTOM_NAME, payload, used - payload))
    bars = []
    for id, name, payload, overhead in rows:
        parts = _parts(model, payload, overhead, keep_embeddings_bf16)
        bars.append(Bar(name, parts, f"{format_number(sum(p.value for p in parts), digits=4)} GB", emphasis=id == scheme))
    return (
        BarChart(
            f"{model.name}：各种方案的权重", "每条是整个模型。词表那一段不跟着缩，scale 那一段是 4 位真正多出来的。", Axis("权重", "GB", low=0), tuple(bars)
        ),
    )


@calculator(
    title="量化后多大",
    question="说是 4 位，scale 和不量化的词表都算上，整个模型到底多大？",
    chapter="18",
    inputs=(
        model_input(),
        choice("scheme", "方案", "int4-g128", (*SCHEMES, "custom"), labels={**{id: s.name for id, s in SCHEMES.items()}, "custom": CUSTOM_NAME}),
        flag("keep_embeddings_bf16", "词表留 BF16", True, help="输入词表和 lm_head；多数权重量化不动它们"),
        integer("custom_bits", "每权重位数", 4, "bit", low=1, high=16, more=True, only_if=CUSTOM, stops=(2, 3, 4, 5, 6, 8, 16)),
        integer("custom_group", "几个一组", 128, low=1, high=65536, more=True, only_if=CUSTOM, stops=powers_of_two(16, 4096)),
        integer("custom_scale_bits", "scale 的位数", 16, "bit", low=0, high=32, more=True, only_if=CUSTOM, stops=(0, 8, 16, 32)),
        integer("custom_zero_bits", "零点的位数", 0, "bit", low=0, high=32, more=True, only_if=CUSTOM, stops=(0, 4, 8, 16)),
        number("custom_bpw", "实测平均位数", 0, "bit", low=0, high=16, more=True, only_if=CUSTOM, help="0 = 用上面四格；填了就用它，例如 GGUF Q4_K_M 的 4.8944"),
    ),
    outputs=(
        Output("size_gb", "整个模型", "GB", main=True, digits=5),
        Output("size_gib", "换成 GiB", "GiB", main=True, digits=5),
        Output("bits_per_weight", "线性层每个权重", "bit", main=True, digits=6),
        Output("ratio_to_bf16", "BF16 是它的", "×", main=True),
        Output("average_bits", "连词表平均", "bit", digits=5),
        Output("n_lin_params", "量化的参数", digits=12),
        Output("linear_gb", "线性层（不含 scale）", "GB"),
        Output("scales_gb", "scale 和零点", "GB"),
        Output("tables_gb", "词表（BF16）", "GB"),
    ),
    chart=_chart,
    formula=(
        "每权重 = 位数 + (scale 位数 + 零点位数) ÷ 组的大小",
        "大小 = (线性层参数 × 每权重 + 词表参数 × 16) ÷ 8",
    ),
    assumptions=("norm 算在线性层里，不到万分之一", "INT8、FP8 每行一个 scale，合不到 0.01 位，不计", "不留 BF16 时，词表按同样的位数量化"),
    leaves_out="不算文件头、tokenizer，也不算张量并行补齐的行。",
    sources=("分组：Frantar et al. 2210.17323", "OCP Microscaling Formats v1.0：32 个数共用一个 8 位 E8M0", "NVIDIA NVFP4：16 个数共用一个 8 位 E4M3"),
)  # fmt: skip
def quant_size(
    *, model: Model, scheme: str, keep_embeddings_bf16: bool, custom_bits: int, custom_group: int, custom_scale_bits: int, custom_zero_bits: int, custom_bpw: float
) -> Result:  # fmt: skip
    """(N_lin · bits per weight + N_tables · 16) / 8."""
    if 0 < custom_bpw < 1:
        raise refuse("custom_bpw", "实测平均位数要在 1 到 16 之间", format_number(custom_bpw), "填 0 就用上面四格")
    own = SCHEMES.get(scheme) or Scheme(CUSTOM_NAME, custom_bits, custom_group, custom_scale_bits, custom_zero_bits)
    measured = scheme == "custom" and custom_bpw > 0
    if own.group and not measured:
        _check_group(model, own.group, "custom_group" if scheme == "custom" else "scheme")
    w = Worked()
    if measured:
        bpw = quantity(custom_bpw, "bit")
    elif own.group:
        share = bits_per_weight(quantity(own.bits, "bit"), quantity(own.scale_bits, "bit"), quantity(own.zero_bits, "bit"), quantity(own.group))
        bpw = w.line("每权重", share, "bit", 6)
    else:
        bpw = quantity(own.bits, "bit")
    kept = model.embedding_and_head_params if keep_embeddings_bf16 else 0
    total, tables = quantity(model.total_params, "params", 10), quantity(kept, "params", 10)
    linear = w.line("量化的参数", total - tables, "params", 10) if kept else total
    low = w.line("线性层", stored_bytes(linear, bpw), "GB", 5)
    high = w.line("词表，BF16", stored_bytes(tables, quantity(TABLE_BITS, "bit")), "GB", 5) if kept else quantity(0, "GB")
    size = w.line("整个模型", low + high, "GB", 5) if kept else low
    full = w.line("全存 BF16", total * quantity(2, "B"), "GB", 5)
    ratio = w.line("BF16 是它的", full / size, "×")
    average = w.line("连词表平均", quantity(8, "bit") * size / total, "bit", 5)
    payload = custom_bpw if measured else float(own.bits)
    parts = _parts(model, payload, bpw.value - payload, keep_embeddings_bf16)
    return Result(
        values={
            "bits_per_weight": bpw.value, "n_lin_params": model.total_params - kept, "size_gb": size, "size_gib": size.value / 2**30, "average_bits": average,
            "ratio_to_bf16": ratio, "linear_gb": parts[0].value, "scales_gb": parts[1].value, "tables_gb": parts[2].value,
        },
        lines=w.lines,
        verdict=_verdict(own.name, bpw, size, full, ratio, average, bool(kept)),
    )  # fmt: skip


def _check_group(model: Model, group: int, field: str) -> None:
    """Groups run along the input dimension of a layer."""
    widths = {"hidden": model.hidden, "FFN 宽度": model.ffn, "专家宽度": model.moe.ffn if model.moe else 0}
    for name, width in widths.items():
        if width % group:
            raise refuse(field, f"{name}必须是组的大小的整数倍", f"{width} / {group}", "换小一点的组，例如 32、64")


def _verdict(name: str, bpw: Quantity, size: Quantity, full: Quantity, ratio: Quantity, average: Quantity, kept: bool) -> str:
    sizes = f"{name}：{size.text}，BF16 是 {full.text}。"
    if abs(ratio.value - 1) < 1e-9:
        return sizes + "没有压缩。"
    if ratio.value < 1:
        return sizes + f"每个权重连 scale 合 {bpw.text}，比 BF16 还大：组太小，scale 比数还占地方。"
    naive = quantity(16 / bpw.value, "×", 3).text
    if kept:
        return sizes + f"线性层每个权重 {bpw.text}，看着能小 {naive}；词表留在 BF16，平均成了 {average.text}，实际小 {ratio.text}。"
    return sizes + f"每个权重 {bpw.text}，词表也量化了，小 {ratio.text}。"
