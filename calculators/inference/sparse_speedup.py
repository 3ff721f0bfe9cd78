"""How much faster does 2:4 sparsity make prefill (mathematics) and decode (bytes), and how does plain 4-bit compare?"""

from __future__ import annotations

from dataclasses import dataclass

from calculators.catalog import Model, model_input
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Series
from calculators.core.inputs import choice, integer, linear_stops, number, powers_of_two
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.amdahl import overall_speedup
from calculators.formulas.kv import bytes_per_token
from calculators.formulas.sparse import read_ratio, stored_bytes, two_four_bits

W4_BITS = 4.125
"""INT4 with a 16-bit scale for every 128 weights."""
BATCHES = tuple(2**k for k in range(13))
PHASES = {"decode": "decode（卡在读）", "prefill": "prefill（卡在算）"}


@dataclass(frozen=True)
class Trace:
    """Bytes of a step: weights three ways (with the dense head), and the KV of one sequence."""

    dense: float
    sparse: float
    bf16: float
    w4: float
    kv_each: float


def _chart(run: Run, *, batch: int, **_: object) -> tuple[Chart, ...]:
    trace = run.result.trace
    assert isinstance(trace, Trace)
    at = sorted({*BATCHES, batch})
    sparse = tuple((float(b), read_ratio(trace.dense, trace.sparse, b * trace.kv_each)) for b in at)
    four = tuple((float(b), read_ratio(trace.bf16, trace.w4, b * trace.kv_each)) for b in at)
    return (
        LineChart(
            "decode：2:4 和 4-bit，batch 越大越不值",
            "2:4 和同样位宽的稠密比，W4A16 和 BF16 比。KV 每条一份，剪不到它：batch 越大，两条线越往 1 掉。",
            Axis("batch", "sequence", log=True),
            Axis("快", "×", low=1),
            (Series("2:4", sparse, emphasis=True), Series("W4A16", four, dashed=True)),
            (Mark("现在", float(batch), read_ratio(trace.dense, trace.sparse, batch * trace.kv_each), emphasis=True),),
        ),
    )


@calculator(
    title="稀疏能快多少",
    question="换成 2:4，prefill 和 decode 各快多少？同样的条件下 4-bit 呢？",
    chapter="18c",
    inputs=(
        choice("phase", "看哪一段", "decode", tuple(PHASES), labels=PHASES),
        model_input(where=lambda m: m.is_dense, help="稠密模型：MoE 读哪些专家随 batch 变"),
        integer("batch", "batch", 1, "sequence", high=4096, stops=powers_of_two(1, 4096)),
        integer("context_tokens", "上下文", 2048, "token", high=1_000_000, kind="tokens", stops=powers_of_two(128, 131072)),
        number("kernel_speedup", "kernel 快几倍", 1.5, "×", low=1, high=2, stops=linear_stops(1, 2, 0.1), range_remedy="2:4 的硬件上限 2×"),
        number("gemm_share", "GEMM 占 prefill", 0.8, low=0, high=1, kind="fraction", more=True, stops=linear_stops(0, 1, 0.05)),
        choice("bits", "权重位宽", 16, (16, 8, 4), "bit", more=True),
    ),
    outputs=(
        Output("speedup", "这一段快", "×", main=True),
        Output("prefill_speedup", "prefill", "×", main=True),
        Output("decode_speedup", "decode", "×", main=True),
        Output("w4a16_decode_speedup", "W4A16 的 decode", "×", main=True),
        Output("dense_read_gb", "稠密，一步读", "GB", digits=5),
        Output("sparse_read_gb", "2:4，一步读", "GB", digits=5),
    ),
    chart=_chart,
    formula=(
        "prefill = 1 ÷ (1 − f + f ÷ k)，f 是 GEMM 占的时间，k 是 kernel 快的倍数",
        "decode =（权重 + KV）÷（2:4 的权重 + KV），2:4 每个元素 b/2 + 1 bit",
        "W4A16 =（BF16 权重 + KV）÷（4.125 bit 权重 + KV）",
    ),
    assumptions=("decode 只数字节", "输出头留稠密 BF16，输入词表只查一行，不算", "KV 是 BF16"),
    leaves_out="不算布局转换、填充和小矩阵的低效；decode 的算那一侧也不算（batch 很大时会卡上）。实测只会比它低。",
    sources=("Amdahl 1967", "NVIDIA 结构化稀疏：数学最多 2×", "每 128 个权重一个 16 位 scale：4.125 bit"),
)  # fmt: skip
def sparse_speedup(*, phase: str, model: Model, batch: int, context_tokens: int, kernel_speedup: float, gemm_share: float, bits: int) -> Result:
    """Amdahl for prefill, a ratio of bytes for decode."""
    w = Worked()
    prefill = w.line("prefill", overall_speedup(quantity(gemm_share), quantity(kernel_speedup), quantity(1)), "×")

    linear, head = quantity(model.total_params - model.embedding_and_head_params, "params"), quantity(model.vocab * model.hidden, "params")
    b, eight = quantity(bits, "bit"), quantity(8)
    head_bytes = w.line("输出头，BF16", head * quantity(2, "B"), "GB", 5)
    each = w.line("2:4 每个元素", two_four_bits(b, quantity(1, "bit")), "bit")
    dense = w.line("权重，稠密", stored_bytes(linear, b, eight) + head_bytes, "GB", 5)
    sparse = w.line("权重，2:4", stored_bytes(linear, each, eight) + head_bytes, "GB", 5)
    bf16 = dense if bits == 16 else w.line("权重，BF16", stored_bytes(linear, quantity(16, "bit"), eight) + head_bytes, "GB", 5)
    four = w.line("权重，W4A16", stored_bytes(linear, quantity(W4_BITS, "bit"), eight) + head_bytes, "GB", 5)
    kv = w.line("KV", bytes_per_token(quantity(model.kv_bytes_per_token, "B"), quantity(context_tokens), quantity(batch)), "GB", 5)
    dense_read = w.line("一步读，稠密", dense + kv, "GB", 5)
    sparse_read = w.line("一步读，2:4", sparse + kv, "GB", 5)
    decode = w.line("decode", dense_read / sparse_read, "×")
    w4a16 = w.line("W4A16 的 decode", read_ratio(bf16, four, kv), "×")
    return Result(
        values={
            "speedup": {"prefill": prefill, "decode": decode}[phase], "prefill_speedup": prefill, "decode_speedup": decode, "w4a16_decode_speedup": w4a16,
            "dense_read_gb": dense_read, "sparse_read_gb": sparse_read,
        },
        lines=w.lines,
        verdict=_prefill_verdict(prefill, gemm_share, kernel_speedup) if phase == "prefill" else _decode_verdict(decode, w4a16, dense, kv, bits),
        notes=_notes(model, context_tokens),
        trace=Trace(dense.value, sparse.value, bf16.value, four.value, kv.value / batch),
    )  # fmt: skip


def _prefill_verdict(speedup: Quantity, share: float, factor: float) -> str:
    if speedup.value == 1:
        return "没有快：GEMM 不占时间，或者 kernel 没有变快。"
    rest = f"剩下 {quantity((1 - share) * 100, '%', 3).text} 的时间 2:4 碰不到。" if share < 1 else "这是全部时间都在 GEMM 的上限。"
    return f"kernel 快 {quantity(factor, '×').text}，整段快 {speedup.text}：{rest}"


def _decode_verdict(decode: Quantity, w4a16: Quantity, weights: Quantity, kv: Quantity, bits: int) -> str:
    head = f"2:4 的 decode 最多快 {decode.text}（和 {bits} 位稠密比）；BF16 换成 W4A16 是 {w4a16.text}。"
    if kv.value > weights.value:
        return head + f"一步里 KV（{kv.text}）已经比权重（{weights.text}）多，剪权重够不着它。"
    return head + f"一步里权重 {weights.text}，KV {kv.text}；batch 和上下文越大，这两个倍数越小。"


def _notes(model: Model, context: int) -> tuple[str, ...]:
    window = (model.sliding_window or {}).get("window", 0)
    return (f"{model.name} 有滑动窗口（{window} token），这里按全上下文算 KV，偏大，倍数偏小。",) if window and context > window else ()
