"""Where does one decoder layer spend its time, and how much of that can fusion give back?"""

from __future__ import annotations

from calculators.catalog import Accelerator, Model, gpu_input, model_input
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Bar, BarChart, Chart, Part
from calculators.core.inputs import integer, linear_stops, number, powers_of_two
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.attention import attention_flops
from calculators.formulas.fusion import (
    NORM_EAGER,
    NORM_FUSED,
    RESIDUAL,
    ROTARY_EAGER,
    ROTARY_FUSED,
    SWIGLU_EAGER,
    SWIGLU_FUSED,
    elementwise_bytes,
    elementwise_flops,
)
from calculators.formulas.params import attention_params, gated_ffn_params


def _chart(run: Run, **_: object) -> tuple[Chart, ...]:
    def bar(name: str, elementwise: str, share: str) -> Bar:
        parts = (("矩阵乘", "matmul_us"), ("attention", "attention_us"), ("逐元素和归一化", elementwise))
        return Bar(name, tuple(Part(label, float(run.values[key])) for label, key in parts), f"逐元素占 {run.texts[share]}")  # type: ignore[arg-type]

    return (
        BarChart(
            "一层的时间花在哪",
            "融合只缩短最后一段，前两段一点没动：那一段全没了，也只快到上限那么多。",
            Axis("时间", "µs"),
            (bar("逐个发", "elementwise_eager_us", "eager_share_pct"), bar("融合后", "elementwise_fused_us", "fused_share_pct")),
        ),
    )


@calculator(
    title="一层里谁在花时间",
    question="矩阵乘、attention、逐元素，一层里各占几成时间？把逐元素全融掉能快多少？",
    chapter="07",
    inputs=(
        model_input(where=lambda m: m.is_plain_gated, help="稠密、门控 FFN 的模型"),
        integer("T", "序列长度（一条）", 8192, "token", low=1, high=1_048_576, kind="tokens", stops=powers_of_two(512, 131_072)),
        gpu_input(),
        number("matmul_eff", "矩阵乘用上峰值的", 0.75, low=0.05, high=1, kind="fraction", more=True, stops=linear_stops(0.05, 1, 0.05), help="假设"),
        number("attn_eff", "attention 用上峰值的", 0.5, low=0.05, high=1, kind="fraction", more=True, stops=linear_stops(0.05, 1, 0.05), help="假设"),
        number("bw_eff", "逐元素用上带宽的", 0.8, low=0.05, high=1, kind="fraction", more=True, stops=linear_stops(0.05, 1, 0.05), help="假设"),
    ),
    outputs=(
        Output("matmul_us", "矩阵乘", "µs", digits=5),
        Output("attention_us", "attention", "µs", digits=5),
        Output("elementwise_eager_us", "逐元素，逐个发", "µs", digits=5),
        Output("elementwise_fused_us", "逐元素，融合后", "µs"),
        Output("eager_share_pct", "逐元素占（逐个发）", "%", main=True),
        Output("fused_share_pct", "逐元素占（融合后）", "%", main=True),
        Output("layer_speedup_x", "融合让这一层快", "×", main=True),
        Output("amdahl_limit_x", "逐元素全免，最多快", "×", main=True),
        Output("elementwise_flops_pct", "逐元素的运算，和矩阵乘、attention 比", "%"),
    ),
    chart=_chart,
    formula=(
        "矩阵乘 = 2 × T × 一层的权重 ÷ (峰值 × 效率)；attention（因果）= 2 × T² × 头数 × 每头维度 ÷ (峰值 × 效率)",
        "逐元素，每 token 的字节：逐个发 2·36h + 10f + 12(q + kv) + 2·6h，融合后 2·4h + 6f + 4(q + kv) + 2·6h",
    ),
    assumptions=("BF16；两个 RMSNorm、一个 SwiGLU、q 和 k 的旋转位置编码、两次残差相加", "各段不重叠，时间相加；RMSNorm 按 FP32 中间值的 6 个算子算"),
    leaves_out="不算反向、发射时间、词表和 logits；矩阵乘只按算力算，几百个 token 以下要改按读权重算。效率是假设的，各段时间可能差两成。",
    sources=("Amdahl, AFIPS 1967", "字节：本章的 fusion-planner；峰值、带宽、模型：目录"),
)  # fmt: skip
def layer_share(*, model: Model, T: int, gpu: Accelerator, matmul_eff: float, attn_eff: float, bw_eff: float) -> Result:
    """FLOPs ÷ effective peak for products and attention, bytes ÷ effective bandwidth for the rest."""
    w = Worked()
    tokens, two, peak = quantity(T, "token"), quantity(2, "FLOP"), quantity(gpu.dense_tflops, "TFLOPS")
    h, f, q, kv = (quantity(x) for x in (model.hidden, model.ffn, model.heads * model.head_dim, model.kv_heads * model.head_dim))
    heads, head_dim = quantity(model.heads), quantity(model.head_dim)
    attention_weights = w.line("attention 的权重", attention_params(h, heads, quantity(model.kv_heads), head_dim), "params", 6)
    weights = w.line("一层的权重", attention_weights + gated_ffn_params(h, f), "params", 6)
    products = w.line("矩阵乘的运算", two * tokens * weights, "TFLOP")
    scores = w.line("attention 的运算（因果，一半）", attention_flops(tokens, tokens, head_dim, two) * heads / 2, "TFLOP")
    matmul = w.line("矩阵乘", products / (peak * quantity(matmul_eff)), "µs", 5)
    attention = w.line("attention", scores / (peak * quantity(attn_eff)), "µs", 5)

    eager_bytes = w.line("逐元素每 token，逐个发", _bytes(h, f, q, kv, (NORM_EAGER, SWIGLU_EAGER, ROTARY_EAGER)), "B")
    fused_bytes = w.line("逐元素每 token，融合后", _bytes(h, f, q, kv, (NORM_FUSED, SWIGLU_FUSED, ROTARY_FUSED)), "B")
    bandwidth = w.line("可用带宽", quantity(gpu.bandwidth_gb_s, "GB/s") * quantity(bw_eff), "GB/s")
    eager = w.line("逐元素，逐个发", tokens * eager_bytes / bandwidth, "µs", 5)
    fused = w.line("逐元素，融合后", tokens * fused_bytes / bandwidth, "µs")

    heavy = w.line("矩阵乘加 attention", matmul + attention, "µs", 6)
    before = w.line("一层，逐个发", heavy + eager, "µs", 6)
    after = w.line("一层，融合后", heavy + fused, "µs", 6)
    eager_share = w.line("逐元素占", eager / before, "%")
    fused_share = w.line("融合后占", fused / after, "%")
    speedup = w.line("融合让这一层快", before / after, "×")
    limit = w.line("逐元素全免，最多快", before / heavy, "×")
    flops = w.line("逐元素每 token 的运算", elementwise_flops(h, f, q, kv) * quantity(1, "FLOP"), "FLOP")
    flops_share = w.line("运算之比", tokens * flops / (products + scores), "%")
    reading = 2 * weights.value / bandwidth.value  # BF16 weights, read once
    return Result(
        values={
            "matmul_us": matmul, "attention_us": attention, "elementwise_eager_us": eager, "elementwise_fused_us": fused,
            "eager_share_pct": eager_share, "fused_share_pct": fused_share, "layer_speedup_x": speedup, "amdahl_limit_x": limit,
            "elementwise_flops_pct": flops_share,
        },
        lines=w.lines,
        verdict=_verdict(eager_share, fused_share, speedup, limit, flops_share),
        notes=("token 太少：矩阵乘卡在读权重，不在算，这里的矩阵乘时间低估了，几成别当真（decode 看第 03 章）。",) if reading > matmul.value else (),
    )  # fmt: skip


def _bytes(h: Quantity, f: Quantity, q: Quantity, kv: Quantity, per_element: tuple[int, int, int]) -> Quantity:
    norm, swiglu, rotary, residual = (quantity(b, "B") for b in (*per_element, RESIDUAL))
    return elementwise_bytes(h, f, q, kv, norm, swiglu, rotary, residual)


def _verdict(eager_share: Quantity, fused_share: Quantity, speedup: Quantity, limit: Quantity, flops: Quantity) -> str:
    said = f"逐元素的运算只有矩阵乘和 attention 的 {flops.text}，却占 {eager_share.text} 的时间；融合后占 {fused_share.text}，这一层快 {speedup.text}。"
    if limit.value < 1.1:
        return said + f"就算全免也只快 {limit.text}：这个形状由矩阵乘和 attention 说了算，别在这里花时间。"
    return said + f"上限 {limit.text}：再往下，要动的是矩阵乘和 attention。"
