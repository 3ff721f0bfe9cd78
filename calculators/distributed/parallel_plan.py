"""Does a layout TP × CP × PP × DP fit, and how long does a step take?"""

from __future__ import annotations

from dataclasses import dataclass, replace

from calculators.catalog import Accelerator, Model, gpu_input, model_input
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Bar, BarChart, Chart, Part, Rule
from calculators.core.errors import refuse
from calculators.core.inputs import choice, integer, linear_stops, number, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.units import GB, TB
from calculators.core.worked import Quantity, Worked, larger, quantity
from calculators.distributed._plan_lines import activation_lines, compute_lines, cp_lines, state_lines, tp_lines
from calculators.formulas.layout import (
    ELEM_BYTES,
    Estimate,
    Job,
    Layout,
    Machine,
    bubble_ratio,
    dp_traffic,
    estimate,
    hiding_window,
    job_of,
    kept_per_token_layer,
    layers_short,
    micro_batches,
    model_flops_per_token,
    step_seconds,
    wrong_shape,
)
from calculators.formulas.pipeline import interleaved_refusal
from calculators.formulas.tensor import near
from calculators.formulas.zero import PASSES, volume_passes

ZERO = {"0": "0：不切", "1": "1：切优化器", "2": "2：再切梯度", "3": "3：权重也切"}
NEARLY_FULL = 0.95
SHRINKS = {
    "气泡": "微批多、v 大、段少，它就小",
    "TP 通信": "tp 小，它就小，可每卡要装的更多",
    "CP 通信": "它只搬 K、V，cp 小就少搬",
    "露出的 DP": "每步的 token 多，它就藏得住",
}
ZERO_3_HIDES = "ZeRO-3 每个微批都要收两遍参数，每个微批的 token 多才藏得住"


@dataclass(frozen=True)
class Trace:
    """What the charts and the advice need."""

    job: Job
    layout: Layout
    machine: Machine
    now: Estimate


def _chart(run: Run, *, gpu: Accelerator, **_: object) -> tuple[Chart, ...]:
    trace = run.result.trace
    assert isinstance(trace, Trace)
    step = tuple(Part(name, seconds) for name, seconds in trace.now.seconds_of_step().items() if seconds > 0 or name == "计算")
    bars = []
    for zero, name in ZERO.items():
        e = estimate(trace.job, replace(trace.layout, zero=int(zero)), trace.machine)
        blocks = {"权重": e.weights + e.gathered, "梯度": e.grads, "优化器": e.optimizer, "激活": e.activations}
        bars.append(Bar(f"ZeRO-{name}", tuple(Part(n, b / GB) for n, b in blocks.items()), f"{format_number(e.total / GB)} GB", int(zero) == trace.layout.zero))
    return (
        BarChart("一步花在哪", "计算之外的每一段都是切模型的代价。", Axis("时间", "s"), (Bar("一步", step, f"{format_number(trace.now.step)} 秒"),)),
        BarChart("每卡装着什么", "换一级 ZeRO 只动前三段，激活一点不动。越过竖线就装不下。", Axis("显存", "GB"), tuple(bars), (Rule(f"{format_number(gpu.memory_gb)} GB", x=gpu.memory_gb),)),
    )  # fmt: skip


@calculator(
    title="这套并行能不能跑",
    question="TP、CP、PP、DP 各开多少：装得下吗？一步多久，时间花在哪？",
    chapter="14",
    inputs=(
        model_input("llama-3.1-405b", help="稠密模型；MoE 用 moe-ep"),
        integer("n_gpus", "一共几张卡", 16384, "card", low=1, high=131_072, stops=powers_of_two(8, 131_072)),
        integer("tp", "张量并行 tp", 8, low=1, high=72, stops=powers_of_two(1, 64)),
        integer("cp", "上下文并行 cp", 1, low=1, high=64, stops=powers_of_two(1, 64)),
        integer("pp", "流水段数 pp", 16, low=1, high=256, stops=powers_of_two(1, 64)),
        choice("zero_stage", "ZeRO", 2, (0, 1, 2, 3), labels=ZERO),
        integer("virtual_stages", "每卡几块 v", 8, low=1, high=16, more=True, stops=(1, 2, 3, 4, 6, 8, 16), help="1 = 普通 1F1B"),
        integer("seq", "序列长度", 8192, "token", low=128, high=4_000_000, kind="tokens", more=True, stops=powers_of_two(1024, 1_048_576)),
        integer("global_batch", "全局 batch", 2048, "sequence", low=1, high=1_000_000, more=True, stops=powers_of_two(1, 65_536)),
        integer("micro_batch", "micro-batch", 1, "sequence", low=1, high=64, more=True, stops=powers_of_two(1, 64)),
        choice("recompute", "重算", "none", ("none", "full"), labels={"none": "不重算", "full": "全部重算"}, more=True),
        gpu_input(more=True),
        number("compute_eff", "算力用上几成", 0.517, low=0.2, high=0.8, kind="fraction", more=True, stops=linear_stops(0.2, 0.8, 0.01), help="用一次实测反推：默认值让 Llama 3 的 8192 卡那一行对上"),
        number("bw_intra", "机内，每卡单向", 360, "GB/s", low=1, high=1000, more=True, stops=(45, 90, 160, 180, 360, 720, 1000)),
        number("bw_inter", "跨机，每卡单向", 45, "GB/s", low=1, high=1000, more=True, stops=(5, 12, 22.5, 45, 50, 90, 180, 360)),
        integer("gpus_per_node", "一台几卡", 8, "card", low=1, high=72, more=True, stops=(1, 2, 4, 8, 16, 32, 64, 72), help="NVLink 连着的一圈"),
    ),
    outputs=(
        Output("dp", "数据并行 dp"),
        Output("microbatches", "微批数 m"),
        Output("params_per_gpu_b", "每卡参数", "1e9"),
        Output("states_gb", "状态", "GB"),
        Output("act_gb", "激活，第一段", "GB"),
        Output("total_gb", "每卡共", "GB", main=True),
        Output("capacity_gb", "卡的容量", "GB"),
        Output("fits", "装得下", main=True),
        Output("act_coef", "激活，每 token 每层每 h", "B"),
        Output("compute_ms", "一个微批一段：计算", "ms"),
        Output("tp_ms", "一个微批一段：TP", "ms"),
        Output("cp_ms", "一个微批一段：CP", "ms"),
        Output("bubble_ratio_pct", "气泡 ÷ 理想", "%", main=True),
        Output("dp_comm_s", "DP 通信", "s"),
        Output("dp_exposed_s", "其中露出来的", "s"),
        Output("step_s", "一步", "s", main=True),
        Output("tok_s_per_gpu", "每卡吞吐", "token/s"),
        Output("tflops_per_gpu", "每卡实得", "TFLOPS", main=True),
        Output("mfu_pct", "MFU", "%", main=True),
        Output("global_batch_tokens", "全局 batch", "token", digits=8),
    ),
    chart=_chart,
    formula=(
        "状态 = 每卡参数 × (权重 2 + 梯度 2 + 优化器 12)，ZeRO 切开的那几项 ÷ (dp × cp)",
        "激活 = 每 token 每层 × (s ÷ cp) × b ÷ tp × (L ÷ pp) × 在飞的微批",
        "一步 = m × (计算 + TP + CP) × (1 + (pp − 1)/(v·m)) + 露出的 DP",
        "TP = 每层 4 次 all-reduce（重算 6 次）；CP = 每层收 2 遍 K、V（重算 3 遍）",
        "DP 搬 2 遍参数；ZeRO-3 搬 2m + 1 遍。能藏在半个反向里，ZeRO-3 藏在一半的计算里",
        "MFU = token/s × (6N + 12·L·a·d·s·½) ÷ 峰值",
    ),
    assumptions=("BF16 权重与梯度，FP32 主权重和 m、v；FlashAttention；TP 带序列并行", "带宽是每卡、单向、有效值；CP、DP 一律走跨机的网", "CP 先收齐 K、V 再算，不藏；ZeRO-2 的梯度一步只归约一次", "算力用上几成是校准出来的：先拿一次实测反推，再比方案"),
    leaves_out="不算切得不匀、TP 的重叠、kernel 启动、掉队、激活提前释放、FP32 梯度缓冲、全部重算时那一层的工作区、末段的 logits。校准过一次：±10%；没校准：±30%。",
    sources=("第 10–13 章的公式", "Llama 3 报告 Table 4（校准）与 §3.3.2（排布）", "Rajbhandari et al. 2020（ZeRO）"),
)  # fmt: skip
def parallel_plan(
    *, model: Model, gpu: Accelerator, n_gpus: int, tp: int, cp: int, pp: int, virtual_stages: int, zero_stage: int, seq: int, global_batch: int,
    micro_batch: int, recompute: str, compute_eff: float, bw_intra: float, bw_inter: float, gpus_per_node: int,
) -> Result:  # fmt: skip
    """Memory of the first stage and time of a step, from the formulas of chapters 10–13."""
    if model.moe is not None:
        raise refuse("model", "MoE 请用 moe-ep 单独算", model.name, "换一个稠密模型")
    job = job_of(model, seq, global_batch)
    layout = Layout(tp, cp, pp, _check(job, n_gpus, tp, cp, pp, micro_batch), zero_stage, recompute == "full", virtual_stages, micro_batch)
    machine = Machine(gpu.dense_flops, compute_eff, bw_intra * GB, bw_inter * GB, gpus_per_node)
    now = estimate(job, layout, machine)
    if virtual_stages > 1 and now.microbatches % pp:
        raise interleaved_refusal(pp, now.microbatches, "virtual_stages")

    w = Worked()
    dp = w.line("dp", quantity(n_gpus) / (quantity(tp) * quantity(cp) * quantity(pp)))
    m = w.line("微批 m", quantity(global_batch) / (dp * quantity(micro_batch)))
    sharders = w.line("同一块参数在几张卡上", dp * quantity(cp)) if cp > 1 else dp
    here = w.line("每卡参数", quantity(job.params, "params") / (quantity(tp) * quantity(pp)), "params")
    states = state_lines(w, job, layout, here, sharders)
    tokens = w.line("一个微批在每卡的 token", quantity(micro_batch) * quantity(seq) / quantity(cp), "", 6)
    layers = w.line("每段的层", quantity(job.shape.layers) / quantity(pp))
    activations = activation_lines(w, job, layout, tokens, layers, m)
    whole = w.line("每卡共", states + activations, "GB")
    compute, plain = compute_lines(w, job, layout, tokens, layers, gpu.dense_tflops, compute_eff)
    tp_time = tp_lines(w, job, layout, tokens, layers, bw_intra if tp <= gpus_per_node else bw_inter)
    cp_time = cp_lines(w, job, layout, layers, bw_inter)
    one = compute
    for extra in (tp_time, cp_time):
        one = one + extra if extra.value else one
    one = w.line("一个微批一段", one, "ms") if tp > 1 or cp > 1 else compute
    bubble = w.line("气泡 ÷ 理想", bubble_ratio(quantity(pp), quantity(virtual_stages), m), "%")
    passes = volume_passes(zero_stage, now.microbatches, True)
    w.say(f"DP：{'、'.join(f'{name} {count(now.microbatches, True)} 遍' for name, count in PASSES[zero_stage])} → {passes} 遍")
    dp_time = w.line("DP 通信", dp_traffic(quantity(passes), sharders, quantity(ELEM_BYTES, "B") * here) / quantity(bw_inter, "GB/s"), "s")
    window = w.line("能藏住它的", hiding_window(zero_stage, m, compute, plain), "s")
    exposed = w.line("露出来的", larger(quantity(0, "s"), dp_time - window), "s")
    step = w.line("一步", step_seconds(m, one, bubble, exposed), "s")
    batch = w.line("一步的 token", quantity(global_batch) * quantity(seq, "token"), "token", 8)
    speed = w.line("每卡吞吐", batch / (step * quantity(n_gpus)), "token/s")
    per_token = w.line(
        "每 token", model_flops_per_token(quantity(job.params, "params"), quantity(job.shape.layers), quantity(job.shape.width), quantity(seq)), "GFLOP"
    )
    useful = w.line("每卡实得", speed * per_token, "TFLOPS")
    mfu = w.line("MFU", useful / quantity(gpu.dense_tflops, "TFLOPS"), "%")
    fits = whole.value <= gpu.memory_bytes
    trace = Trace(job, layout, machine, now)
    return Result(
        values={
            "dp": layout.dp, "microbatches": now.microbatches, "params_per_gpu_b": here.value / 1e9, "states_gb": states, "act_gb": activations, "total_gb": whole,
            "capacity_gb": gpu.memory_gb, "fits": fits, "act_coef": kept_per_token_layer(job.shape, job.ffn_copies, layout.recompute) / job.shape.hidden,
            "compute_ms": compute, "tp_ms": tp_time, "cp_ms": cp_time, "bubble_ratio_pct": bubble, "dp_comm_s": dp_time, "dp_exposed_s": exposed, "step_s": step,
            "tok_s_per_gpu": speed, "tflops_per_gpu": useful, "mfu_pct": mfu, "global_batch_tokens": global_batch * seq,
        },
        lines=w.lines,
        verdict=(_fits(trace, gpu, mfu) if fits else _too_big(trace, gpu)),
        notes=_notes(trace, model, gpu, gpus_per_node),
        trace=trace,
    )  # fmt: skip


def _check(job: Job, n_gpus: int, tp: int, cp: int, pp: int, micro_batch: int) -> int:
    """The data-parallel degree of a legal layout.  Raises Refusal."""
    model_cards = tp * cp * pp
    if n_gpus % model_cards:
        raise refuse(
            "n_gpus", f"{n_gpus} 不能被 tp·cp·pp={model_cards} 整除", f"{n_gpus} / {model_cards}", f"卡数可取 {max(1, n_gpus // model_cards) * model_cards}"
        )
    if reason := wrong_shape(job.shape, tp):
        raise refuse("tp", reason, f"tp 是 {tp}", f"可取 {near(job.shape.legal, tp)}")
    if pp > job.shape.layers:
        raise refuse("pp", "流水段数 pp 不能超过层数", f"{pp} > {job.shape.layers}", f"最多 {job.shape.layers}")
    if cp > 1 and job.seq % (2 * cp):
        raise refuse("cp", "序列长度必须能被 2·cp 整除（首尾配对）", f"{job.seq} / {2 * cp}", f"序列可取 {max(1, job.seq // (2 * cp)) * 2 * cp}")
    dp = n_gpus // model_cards
    if not micro_batches(job.global_batch, dp, micro_batch):
        each = dp * micro_batch
        raise refuse(
            "global_batch",
            "每个 DP 组分不到整数个微批",
            f"{job.global_batch} / ({dp} × {micro_batch})",
            f"全局 batch 可取 {-(-job.global_batch // each) * each}",
        )
    return dp


def _fits(trace: Trace, gpu: Accelerator, mfu: Quantity) -> str:
    now = trace.now
    useful = mfu.value * gpu.dense_flops / TB
    said = f"装得下：{format_number(now.total / GB)} GB，{gpu.name} 还剩 {format_number(gpu.memory_gb - now.total / GB, digits=3)} GB。"
    said += f"一步 {format_number(now.step, digits=3)} 秒，每卡 {format_number(useful, digits=3)} TFLOPS，MFU {format_number(100 * mfu.value, digits=3)}%。"
    name, seconds = max(list(now.seconds_of_step().items())[1:], key=lambda part: part[1])
    if seconds < 0.01 * now.step:
        return said + "时间几乎全在计算上。"
    hint = ZERO_3_HIDES if name == "露出的 DP" and trace.layout.zero == 3 else SHRINKS[name]
    return said + f"计算之外最大的一块是{name}，占一步的 {format_number(100 * seconds / now.step, digits=3)}%：{hint}。"


def _too_big(trace: Trace, gpu: Accelerator) -> str:
    now, layout = trace.now, trace.layout
    largest, size = ("激活", now.activations) if now.activations > now.states else ("状态", now.states)
    said = f"装不下：要 {format_number(now.total / GB)} GB，{gpu.name} 差 {format_number(now.total / GB - gpu.memory_gb, digits=3)} GB。最大的一块是{largest}（{format_number(size / GB)} GB）。"
    found = [(name, e) for name, e in _changes(trace) if e.total <= gpu.memory_bytes]
    if found:
        name, e = min(found, key=lambda pair: pair[1].step)
        return (
            said
            + f"只改一处，最快的是{name}：{format_number(e.total / GB)} GB，一步 {format_number(now.step, digits=3)} → {format_number(e.step, digits=3)} 秒。"
        )
    least = estimate(trace.job, replace(layout, zero=3, recompute=True, v=1, micro_batch=1), trace.machine)
    if least.total <= gpu.memory_bytes:
        return said + f"只改一处不够：ZeRO-3、全部重算、不交错、micro-batch 1 全用上是 {format_number(least.total / GB)} GB，才装得下。"
    return said + f"ZeRO-3、全部重算都用上也要 {format_number(least.total / GB)} GB：把模型切得更碎（加 pp、tp，长序列加 cp），或换大卡。"


def _changes(trace: Trace) -> list[tuple[str, Estimate]]:
    """One thing changed, the mildest first."""
    layout = trace.layout
    options = [(f"换 ZeRO-{z}", replace(layout, zero=z)) for z in range(layout.zero + 1, 4) if layout.sharders > 1]
    if layout.v > 1:
        options.append(("不交错（v 降到 1）", replace(layout, v=1)))
    if layout.micro_batch > 1:
        options.append(("micro-batch 降到 1", replace(layout, micro_batch=1)))
    if not layout.recompute:
        options.append(("开全部重算", replace(layout, recompute=True)))
    return [(name, estimate(trace.job, changed, trace.machine)) for name, changed in options]


def _notes(trace: Trace, model: Model, gpu: Accelerator, node: int) -> tuple[str, ...]:
    layout, total = trace.layout, trace.now.total
    notes = []
    if NEARLY_FULL * gpu.memory_bytes < total <= gpu.memory_bytes:
        notes.append(f"占到 {format_number(100 * total / gpu.memory_bytes, digits=3)}%：碎片和缓冲区没地方放，多半还是 OOM。")
    if reduced_each := _zero_2_accumulates(trace):
        notes.append(reduced_each)
    if uneven := _uneven(trace.job.shape.layers, layout.pp, layout.v):
        notes.append(uneven)
    if layout.tp > node:
        notes.append(f"tp {layout.tp} 超出一台 {node} 张卡：TP 的 all-reduce 按跨机的带宽算。")
    if not model.ffn_gated:
        notes.append(f"{model.name} 的 FFN 没有门控：激活里 FFN 那一项按 4 份算，不是 6 份。")
    if model.sliding_window is not None:
        notes.append(f"{model.name} 有滑动窗口的层，长序列上注意力比这里算的少。")
    return tuple(notes)


def _zero_2_accumulates(trace: Trace) -> str:
    """Gradients cut between micro-batches must be reduced every time; reduced once, they stay whole (chapter 11)."""
    now, layout = trace.now, trace.layout
    if layout.zero != 2 or now.microbatches == 1 or layout.sharders == 1:
        return ""
    once, each = (volume_passes(2, now.microbatches, reduced_once) for reduced_once in (True, False))
    window = hiding_window(2, float(now.microbatches), now.compute, now.compute_plain)
    longer = larger(0.0, now.dp * each / once - window) - now.exposed
    cost = f"一步再慢 {format_number(longer, digits=3)} 秒" if longer else "还藏得住"
    whole = now.grads * (layout.sharders - 1)
    return f"ZeRO-2 这里时间按一步归约一次算。每个微批都归约要搬 {each} 遍，{cost}；不那样，梯度就整份占着，再加 {format_number(whole / GB, digits=3)} GB。"


def _uneven(layers: int, pp: int, v: int) -> str:
    short = layers_short(layers, pp * v)
    if not short:
        return ""
    pieces = f"{pp} × {v} 块" if v > 1 else f"{pp} 段"
    missing = "没有层" if pp * v > layers else "少一层"
    return f"{layers} 层分 {pieces}，有 {short} {pieces[-1]}{missing}；这里按平均算。"
