"""A published GPT run, recomputed from its layout: parameters, micro-batches, seconds of an iteration, days, HFU and MFU."""

from __future__ import annotations

from calculators.catalog import Accelerator, gpu_input
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Bar, BarChart, Chart, Part, Rule
from calculators.core.errors import refuse
from calculators.core.inputs import integer, log_stops, number, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.worked import Worked, quantity
from calculators.formulas.gpt_run import HARDWARE_FLOP, MODEL_FLOP, gpt_params, hardware_flops, model_flops
from calculators.formulas.layout import micro_batches
from calculators.formulas.mfu import above_peak


def _chart(run: Run, *, gpu: Accelerator, tflops_per_gpu: float, **_: object) -> tuple[Chart, ...]:
    useful = tflops_per_gpu * float(run.values["mfu_pct"]) / float(run.values["hfu_pct"])  # type: ignore[arg-type]
    bar = Bar("每张卡", (Part("模型要的", useful), Part("重算的", tflops_per_gpu - useful), Part("没用上的", gpu.dense_tflops - tflops_per_gpu)))
    peak = Rule(f"峰值 {format_number(gpu.dense_tflops)}", x=gpu.dense_tflops)
    return (BarChart("一张卡的算力去了哪", "前两段加起来是论文报的，第一段才是 MFU。", Axis("算力", "TFLOPS"), (bar,), (peak,)),)


@calculator(
    title="复算一次公开的大训练",
    question="论文给了层数、卡数和每卡 TFLOPS：一步几秒，训多少天，那个「利用率」是 HFU 还是 MFU？",
    chapter="14",
    inputs=(
        integer("layers", "层数 l", 80, "layer", low=1, high=1000, stops=(24, 30, 36, 40, 48, 60, 80, 96, 105, 128)),
        integer("hidden", "隐藏维 h", 12_288, low=128, high=131_072, stops=(2304, 3072, 4096, 6144, 8192, 10_240, 12_288, 16_384, 20_480, 25_600)),
        integer("n_gpus", "一共几张卡", 1536, "card", low=1, high=131_072, stops=(32, 64, 128, 256, 512, 1024, 1536, 1920, 2520, 3072)),
        integer("batch", "全局 batch", 2304, "sequence", low=1, high=1_000_000, stops=(512, 1024, 1536, 1792, 2160, 2304, 2520, 3072)),
        number("tflops_per_gpu", "每卡实得，含重算", 148, "TFLOPS", low=1, high=5000, stops=(100, 120, 135, 140, 148, 155, 163, 180, 200)),
        integer("tp", "张量并行 tp", 8, low=1, high=131_072, more=True, stops=powers_of_two(1, 8)),
        integer("pp", "流水段数 pp", 8, low=1, high=131_072, more=True, stops=(1, 2, 4, 8, 16, 35, 64)),
        integer("micro_batch", "micro-batch", 1, "sequence", low=1, high=64, more=True, stops=powers_of_two(1, 64)),
        integer("vocab", "词表", 51_200, "token", low=1000, high=1_000_000, more=True),
        integer("seq", "序列长度", 2048, "token", low=128, high=1_000_000, more=True, stops=powers_of_two(512, 16_384)),
        gpu_input("a100-80gb", more=True),
        number("tokens_total", "一共训多少", 3e11, "token", low=1e6, high=1e14, more=True, stops=log_stops(1e9, 1e14, 3)),
    ),
    outputs=(
        Output("params_b", "参数量", "1e9", main=True),
        Output("dp", "数据并行 dp"),
        Output("microbatches", "微批数 m"),
        Output("iteration_s", "一步", "s", main=True),
        Output("days", "训完", "day", main=True),
        Output("hfu_pct", "HFU，含重算", "%", main=True),
        Output("mfu_pct", "MFU", "%", main=True),
    ),
    chart=_chart,
    formula=(
        "参数 = 12·l·h²·(1 + 13/(12h) + (V + s)/(12·l·h))",
        "一步的运算，全部重算 = 96·B·s·l·h²·(1 + s/(6h) + V/(16·l·h))；模型要的 = 72·B·s·l·h²·(1 + s/(6h) + V/(12·l·h))",
        "一步 = 运算 ÷ (卡数 × 每卡实得)；HFU = 每卡实得 ÷ 峰值；MFU = HFU × 模型要的 ÷ 算了的",
    ),
    assumptions=("GPT 的形状：MHA、4h 的 FFN、无门控；全部重算", "注意力按全部算，不按因果减半"),
    leaves_out="不算 GQA、SwiGLU、选择性重算：别拿它算 Llama。默认这一行的 batch、卡数和 148 TFLOPS 凭记忆（未核实）。",
    sources=("Narayanan et al. 2021（Megatron-LM）式 2–4、Table 1",),
)  # fmt: skip
def gpt_run(
    *, layers: int, hidden: int, vocab: int, seq: int, batch: int, micro_batch: int, n_gpus: int, tp: int, pp: int, tflops_per_gpu: float, gpu: Accelerator,
    tokens_total: float,
) -> Result:  # fmt: skip
    """Megatron's own accounting."""
    if n_gpus % (tp * pp):
        raise refuse("n_gpus", "卡数必须能被 tp·pp 整除", f"{n_gpus} / {tp * pp}", f"可取 {max(1, n_gpus // (tp * pp)) * tp * pp}")
    dp = n_gpus // (tp * pp)
    m = micro_batches(batch, dp, micro_batch)
    if not m:
        each = dp * micro_batch
        raise refuse("batch", "全局 batch 必须能被 dp × micro-batch 整除", f"{batch} / ({dp} × {micro_batch})", f"可取 {-(-batch // each) * each}")
    if tflops_per_gpu > gpu.dense_tflops:
        raise above_peak("tflops_per_gpu", tflops_per_gpu / gpu.dense_tflops)
    w = Worked()
    depth, width, words, length = quantity(layers), quantity(hidden), quantity(vocab), quantity(seq)
    params = w.line("参数", gpt_params(depth, width, words, length), "params")
    w.say(f"dp，卡数 ÷ (tp × pp) → {dp}；微批 m，batch ÷ (dp × micro-batch) → {m}")
    flops = w.line("一步要算，含重算", hardware_flops(quantity(HARDWARE_FLOP, "FLOP"), quantity(batch), length, depth, width, words), "FLOP")
    model = w.line("其中模型要的", model_flops(quantity(MODEL_FLOP, "FLOP"), quantity(batch), length, depth, width, words), "FLOP")
    iteration = w.line("一步", flops / (quantity(n_gpus) * quantity(tflops_per_gpu, "TFLOPS")), "s")
    steps = w.line("步数", quantity(tokens_total, "token") / (quantity(batch) * quantity(seq, "token")))
    days = w.line("训完", steps * iteration, "day")
    hfu = w.line("HFU", quantity(tflops_per_gpu, "TFLOPS") / quantity(gpu.dense_tflops, "TFLOPS"), "%")
    mfu = w.line("MFU", hfu * (model / flops), "%")
    return Result(
        values={
            "params_b": params.value / 1e9, "dp": dp, "microbatches": m, "iteration_s": iteration, "days": days, "hfu_pct": hfu, "mfu_pct": mfu,
        },
        lines=w.lines,
        verdict=f"{params.text}，{n_gpus} 张卡：一步 {iteration.text}，训完 {days.text}。报的 {format_number(tflops_per_gpu)} TFLOPS 含重算，是峰值的 {hfu.text}（HFU）；"
        f"模型要的只占 {mfu.text}（MFU），比不重算的系统先看这个数。",
    )  # fmt: skip
