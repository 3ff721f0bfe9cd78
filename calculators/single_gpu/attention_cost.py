"""What does attention cost on my model: FLOPs, time, and the memory that the scores would take?"""

from __future__ import annotations

from calculators.catalog import Accelerator, Model, gpu_input, model_input
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Rule, Series
from calculators.core.errors import refuse
from calculators.core.inputs import choice, flag, integer, linear_stops, number, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.units import GB
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.attention import attention_flops
from calculators.formulas.flash import PASS_FACTOR, log_sum_exp_bytes, score_bytes

SCORE_BYTES = 2
LSE_BYTES = 4


def _chart(run: Run, *, model: Model, n: int, batch: int, heads: int, gpu: Accelerator, **_: object) -> tuple[Chart, ...]:
    copies = float((heads or model.heads) * batch)

    def scores(length: float) -> float:
        return score_bytes(length, copies, float(SCORE_BYTES)) / GB

    def kept(length: float) -> float:
        return log_sum_exp_bytes(length, copies, float(LSE_BYTES)) / GB

    lengths = sorted({*powers_of_two(128, 1_048_576), float(n)})
    return (
        LineChart(
            "一层要留的东西",
            "两轴都是对数。存分数矩阵，序列长一倍要四倍；只存 log-sum-exp，长一倍要一倍。横线是整张卡的显存。",
            Axis("序列长度 n", "token", log=True),
            Axis("每层占", "GB", log=True),
            (
                Series("分数矩阵 S", tuple((length, scores(length)) for length in lengths), emphasis=True),
                Series("log-sum-exp", tuple((length, kept(length)) for length in lengths)),
            ),
            marks=(Mark("", n, scores(n), emphasis=True), Mark("", n, kept(n))),
            rules=(Rule(f"{gpu.name.removeprefix('NVIDIA ')} 的显存", y=gpu.memory_gb),),
        ),
    )


@calculator(
    title="attention 的运算、显存和时间",
    question="你的模型，一层 attention 要算多少、要多久？分数矩阵存下来要多大？",
    chapter="08",
    inputs=(
        model_input(where=lambda m: m.head_dim > 0),
        integer("n", "序列长度 n", 8192, "token", low=1, high=1_048_576, kind="tokens", stops=powers_of_two(256, 1_048_576)),
        choice("pass", "哪一趟", "fwd", tuple(PASS_FACTOR), labels={"fwd": "前向", "bwd": "反向", "fwd+bwd": "前向加反向"}),
        flag("causal", "因果掩码（运算减半）", True),
        gpu_input(),
        number("measured_tflops", "实测速度", 0, "TFLOPS", low=0, high=20_000, stops=(0, 124, 230, 346, 740, 1605), help="论文或你自己测的；0 是没有"),
        integer("batch", "batch", 1, low=1, high=4096, more=True, stops=powers_of_two(1, 64)),
        number("util", "算力利用率", 0.5, low=0.01, high=1, kind="fraction", more=True, stops=linear_stops(0.05, 1, 0.05)),
        choice("dtype", "精度", "bf16", ("bf16", "fp8"), labels={"bf16": "BF16", "fp8": "FP8"}, more=True, help="只决定用哪个峰值；分数都按 2 字节"),
        integer("heads", "头数", 0, low=0, high=1024, more=True, help="0 用预设"),
        integer("head_dim", "每头维度", 0, low=0, high=512, more=True, help="0 用预设"),
    ),
    outputs=(
        Output("layer_tflop", "每层运算", "TFLOP", main=True),
        Output("time_ms_per_layer", "每层时间", "ms", main=True),
        Output("score_gb_per_layer", "分数矩阵，每层", "GB", main=True),
        Output("lse_mb_per_layer", "log-sum-exp，每层", "MB", main=True),
        Output("model_tflop", "全模型运算", "TFLOP"),
        Output("model_ms", "全模型时间", "ms"),
        Output("measured_util_pct", "实测占峰值", "%"),
    ),
    chart=_chart,
    formula=(
        "F = 4 × n² × 每头维度 × 头数 × batch × (因果 ½) × c；c：前向 1，反向 2.5，合计 3.5",
        "时间 = F ÷ (峰值 × 利用率)",
        "分数矩阵 = 头数 × batch × n² × 2 字节；log-sum-exp = 头数 × batch × n × 4 字节",
    ),
    assumptions=("query 头数说了算，GQA 不减这里的运算", "峰值是目录里的稠密值", "FlashAttention 的论文就按这个式子报 TFLOPS：重算的那一遍算进反向的 2.5"),
    leaves_out="不算 softmax 的运算（d = 128 时约 1%）、RoPE 和 Q、K、V、O 的投影；块对不齐的因果掩码做的运算略多于一半。",
    sources=("Dao 2023（FlashAttention-2）§4.1：4·n²·d·头数，因果除以 2，反向乘 2.5", "Shah et al. 2024（FlashAttention-3）§4.1"),
)
def attention_cost(
    *, model: Model, heads: int, head_dim: int, n: int, batch: int, causal: bool, pass_: str, util: float, gpu: Accelerator, dtype: str, measured_tflops: float
) -> Result:
    """Attention core of one layer and of the whole model, projections left out."""
    peak_tflops = _peak(gpu, dtype)
    if not (heads or model.heads) or not (head_dim or model.head_dim):
        raise refuse("model", "模型要有注意力头和单一的每头维度", model.name, "在更多参数里填头数和每头维度")
    if measured_tflops > peak_tflops:
        said = f"{format_number(measured_tflops)} > {format_number(peak_tflops)} TFLOPS"
        raise refuse("measured_tflops", "实测速度超过稠密峰值", said, "是不是把因果掩码的一半也算进去了？")
    w = Worked()
    length, width = quantity(n), quantity(head_dim or model.head_dim)
    copies = quantity(heads or model.heads) if batch == 1 else w.line("头数 × batch", quantity(heads or model.heads) * quantity(batch))
    full = w.line("两次矩阵乘", attention_flops(length, length, width, quantity(2, "FLOP")) * copies, "TFLOP")
    layer = _pass(w, full, causal, pass_)
    seconds = w.line("每层时间", layer / (quantity(peak_tflops, "TFLOPS") * quantity(util)), "ms")
    scores = w.line("分数矩阵", score_bytes(length, copies, quantity(SCORE_BYTES, "B")), "GB")
    kept = w.line("log-sum-exp", log_sum_exp_bytes(length, copies, quantity(LSE_BYTES, "B")), "MB")
    layers = quantity(model.layers, "layer")
    total = w.line("全模型运算", layers * layer, "TFLOP")
    total_time = w.line("全模型时间", layers * seconds, "ms")
    share = w.line("实测 ÷ 峰值", quantity(measured_tflops, "TFLOPS") / quantity(peak_tflops, "TFLOPS"), "%") if measured_tflops else None
    return Result(
        values={
            "layer_tflop": layer, "time_ms_per_layer": seconds, "score_gb_per_layer": scores, "lse_mb_per_layer": kept,
            "model_tflop": total, "model_ms": total_time, "measured_util_pct": share,
        },
        lines=w.lines,
        verdict=_verdict(scores, kept, gpu, seconds, share),
        notes=_notes(model, n, pass_),
    )  # fmt: skip


def _peak(gpu: Accelerator, dtype: str) -> float:
    peak = gpu.tflops.get(dtype)
    if peak is None:
        raise refuse("dtype", "精度要有稠密峰值可除", f"{gpu.name} 没有 {dtype.upper()}", "换一种精度或换一张卡")
    return peak


def _pass(w: Worked, full: Quantity, causal: bool, pass_: str) -> Quantity:
    forward = w.line("因果掩码减半", full / 2, "TFLOP") if causal else full
    if pass_ == "fwd":
        return forward
    return w.line("这一趟", forward * quantity(PASS_FACTOR[pass_]), "TFLOP")


def _verdict(scores: Quantity, kept: Quantity, gpu: Accelerator, seconds: Quantity, share: Quantity | None) -> str:
    room = "一层就装不进整张卡" if scores.value > gpu.memory_bytes else "还只是一层"
    said = f"分数矩阵 {scores.text}，{room}；FlashAttention 只留 {kept.text} 的 log-sum-exp，反向时把分数重算一遍。"
    if share is not None:
        return said + f"实测是峰值的 {share.text}：先问它有没有按因果减半、反向乘 2.5。"
    return said + f"这一趟每层 {seconds.text}。"


def _notes(model: Model, n: int, pass_: str) -> tuple[str, ...]:
    notes = []
    if model.sliding_window and n > model.sliding_window["window"]:
        window, layers = model.sliding_window["window"], model.sliding_window["sliding_layers"]
        notes.append(f"{model.name} 有 {layers} 层是滑动窗口，每个 token 只看 {window} 个 key；这里每层都按全长算，全模型的数偏大。")
    if pass_ != "fwd":
        notes.append("反向的 2.5 倍含重算分数的那一次矩阵乘；标准实现存着分数，只要 2 倍。")
    return tuple(notes)
