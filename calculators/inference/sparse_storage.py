"""What does a sparse format really save, once the positions of the zeros are stored too?"""

from __future__ import annotations

from collections.abc import Callable

from calculators.catalog import Model, model_input
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Rule, Series
from calculators.core.errors import refuse
from calculators.core.inputs import choice, flag, linear_stops, number
from calculators.core.numbers import format_number
from calculators.core.worked import N, Quantity, Worked, quantity
from calculators.formulas.sparse import bitmask_bits, bitmask_breakeven, csr_bits, csr_breakeven, stored_bytes, two_four_bits

INDEX_BITS = 16
"""Column index of CSR: enough for 65,536 columns."""
TABLE_BITS = 16
"""Vocabulary tables stay BF16."""
NAMES = {"dense": "稠密", "bitmask": "位图", "csr16": "CSR（16 位列号）", "2:4": "2:4"}
SAME = 1e-9
"""Closer to the dense size than this is no saving but rounding."""
SAMPLES = tuple(i / 50 for i in range(50))


def _bits(fmt: str, sparsity: N, bits: N, one_bit: N, index_bits: N) -> N:
    table: dict[str, Callable[[], N]] = {
        "dense": lambda: bits,
        "bitmask": lambda: bitmask_bits(sparsity, bits, one_bit),
        "csr16": lambda: csr_bits(sparsity, bits, index_bits),
        "2:4": lambda: two_four_bits(bits, one_bit),
    }
    return table[fmt]()


def _chart(run: Run, *, bits: int, sparsity: float, format: str, **_: object) -> tuple[Chart, ...]:
    curves = tuple(
        Series(NAMES[f], tuple((100 * s, _bits(f, s, float(bits), 1.0, float(INDEX_BITS)) / bits) for s in SAMPLES), emphasis=f == format)
        for f in ("bitmask", "csr16")
    )
    two_four = two_four_bits(float(bits), 1.0) / bits
    marks = [Mark("2:4", 50.0, two_four, emphasis=format == "2:4")]
    if format not in ("2:4", "dense"):
        marks.append(Mark("现在", 100 * sparsity, float(run.values["ratio"]), emphasis=True))  # type: ignore[arg-type]
    return (
        LineChart(
            "剪掉多少，存的才变少",
            "横线是稠密。曲线在线上面的那一段，剪了反而更占地方；2:4 只有一个点。",
            Axis("零占", "%", low=0, high=100),
            Axis("是稠密的", "×", low=0),
            curves,
            tuple(marks),
            (Rule("稠密", y=1.0),),
        ),
    )


@calculator(
    title="稀疏存储到底省多少",
    question="剪成零之后，连零在哪儿也要存：还剩多少字节？",
    chapter="18c",
    inputs=(
        choice("format", "存成", "2:4", tuple(NAMES), labels=NAMES),
        number("sparsity", "零占多少", 0.5, low=0, high=1, kind="fraction", stops=linear_stops(0, 0.95, 0.05), help="2:4 固定 0.5"),
        choice("bits", "每个非零值", 16, (16, 8, 4), "bit"),
        model_input(),
        flag("linear_only", "词表和输出头留稠密 16 位", True, more=True),
    ),
    outputs=(
        Output("bits_per_element", "每个元素", "bit", main=True),
        Output("ratio", "是稠密的", "×", main=True),
        Output("model_gb", "整个模型", "GB", main=True, digits=5),
        Output("dense_model_gb", "不剪时", "GB", digits=5),
        Output("breakeven_bitmask_pct", "位图从多少零开始省", "%"),
        Output("breakeven_csr16_pct", "CSR 从多少零开始省", "%"),
    ),
    chart=_chart,
    formula=(
        "位图：(1 − s)·b + 1 bit；CSR：(1 − s)·(b + 16) bit；2:4：b/2 + 1 bit",
        "省的起点：位图 1 ÷ b，CSR 16 ÷ (b + 16)",
        "模型 =（线性层参数 × bit + 词表参数 × 16）÷ 8",
    ),
    assumptions=("2:4 每 4 个留 2 个，每个留下的用 2 bit 记位置", "CSR 的列号 16 bit，行指针忽略", "norm 算在线性层里，占不到千分之一"),
    leaves_out="不算对齐、分块填充，也不算量化的 scale：2:4 加 INT4，每 128 个一个 16 位 scale，每个元素再多 0.125 bit。",
    sources=("NVIDIA 结构化稀疏：每个保留值 2 bit 索引", "模型形状：模型目录"),
)  # fmt: skip
def sparse_storage(*, format: str, sparsity: float, bits: int, model: Model, linear_only: bool) -> Result:
    """Bits an element, its ratio to dense, and the model with dense vocabulary tables."""
    if sparsity >= 1:
        raise refuse("sparsity", "零的占比必须小于 1", format_number(sparsity), "全是零就没有模型了，例如 0.5")
    if format == "2:4" and sparsity != 0.5:
        raise refuse("sparsity", "2:4 的稀疏度固定为 50%", format_number(sparsity), "填 0.5，或换成位图、CSR")
    w = Worked()
    b, one, index, eight = quantity(bits, "bit"), quantity(1, "bit"), quantity(INDEX_BITS, "bit"), quantity(8)
    element = w.line("每个元素", _bits(format, quantity(sparsity), b, one, index), "bit", 6)
    ratio = w.line("是稠密的", element / b, "×")
    tables = model.embedding_and_head_params if linear_only else 0
    linear_params = quantity(model.total_params - tables, "params")
    linear = w.line("线性层", stored_bytes(linear_params, element, eight), "GB", 5)
    dense = w.line("线性层，稠密", stored_bytes(linear_params, b, eight), "GB", 5)
    if tables:
        kept = w.line("词表和输出头，16 位", stored_bytes(quantity(tables, "params"), quantity(TABLE_BITS, "bit"), eight), "GB", 5)
        linear, dense = w.line("整个模型", linear + kept, "GB", 5), w.line("不剪时", dense + kept, "GB", 5)
    bitmask = w.line("位图从这里开始省", bitmask_breakeven(b, one), "%")
    csr = w.line("CSR 从这里开始省", csr_breakeven(b, index), "%")
    return Result(
        values={
            "bits_per_element": element, "ratio": ratio, "model_gb": linear, "dense_model_gb": dense, "breakeven_bitmask_pct": bitmask, "breakeven_csr16_pct": csr,
        },
        lines=w.lines,
        verdict=_verdict(format, sparsity, element, ratio, linear, dense, {"bitmask": bitmask, "csr16": csr}),
    )  # fmt: skip


def _verdict(fmt: str, sparsity: float, element: Quantity, ratio: Quantity, size: Quantity, dense: Quantity, starts: dict[str, Quantity]) -> str:
    if fmt == "dense":
        return f"稠密照存 {dense.text}：写成零的也一位不少。"
    zeros = quantity(sparsity * 100, "%", 4).text
    if fmt in starts and ratio.value > 1 - SAME:
        return f"{zeros} 是零，可每个元素还要 {element.text}，是稠密的 {ratio.text}，没省：零要超过 {starts[fmt].text} 才开始省。"
    return f"{zeros} 是零，每个元素 {element.text}，是稠密的 {ratio.text}：模型 {dense.text} → {size.text}。多出来的是位置信息，它不随量化变小。"
