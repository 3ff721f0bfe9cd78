"""How long does a request take: the prompt in one pass (TTFT), then one pass a token (TPOT), and which phase is paid for?"""

from __future__ import annotations

from dataclasses import dataclass

from calculators.catalog import Accelerator, Model, gpu_input, model_input
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Bar, BarChart, Chart, LineChart, Mark, Part, Rule, Series
from calculators.core.errors import refuse
from calculators.core.inputs import integer, linear_stops, number, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.units import GB, TB
from calculators.core.worked import Quantity, Worked, larger, quantity
from calculators.formulas.decode import decode_flops
from calculators.formulas.inference import (
    Engine,
    Shape,
    capacity_bytes,
    decode_seconds,
    explicit_shape,
    kv_request,
    largest_true,
    prefill_seconds,
    step_parts,
)
from calculators.formulas.roofline import arithmetic_intensity
from calculators.formulas.serving import prefill_flops
from calculators.inference._step_lines import TWO, attention_line, kv_bytes_line, params_read_line

LENGTHS = tuple(2**k for k in range(12))
"""Output lengths of the chart: 1 … 2048."""
LARGEST_BATCH = 4096


@dataclass(frozen=True)
class Trace:
    """What the charts need."""

    shape: Shape
    engine: Engine
    largest_batch: int


def _chart(run: Run, *, prompt_tokens: int, output_tokens: int, batch: int, **_: object) -> tuple[Chart, ...]:
    trace: Trace = run.result.trace  # type: ignore[assignment]
    shape, engine = trace.shape, trace.engine
    prefill = prefill_seconds(shape, engine, batch, prompt_tokens)
    bars = []
    for length in sorted({*LENGTHS, output_tokens}):
        decode = decode_seconds(shape, engine, batch, prompt_tokens + 1, prompt_tokens + length - 1)
        whole = prefill + decode
        parts = (Part("prefill", 100 * prefill / whole), Part("decode", 100 * decode / whole))
        bars.append(Bar(f"{length} token", parts, f"{format_number(whole, digits=3)} s", emphasis=length == output_tokens))
    at = [b for b in range_of_batches(trace.largest_batch) if b != batch] + [batch]
    first = max(step_parts(shape, engine, 1, prompt_tokens))
    steps = [(float(b), max(step_parts(shape, engine, b, prompt_tokens)) / first) for b in sorted(at)]
    now = max(step_parts(shape, engine, batch, prompt_tokens)) / first
    rules = (Rule(f"显存到头：batch {trace.largest_batch}", x=float(trace.largest_batch)),) if trace.largest_batch < LARGEST_BATCH else ()
    return (
        BarChart(
            "输出越长，decode 占得越多", "每条是一个输出长度，从 1 到 2048（你的那条加粗）；右边是全程时间。", Axis("占全程", "%", low=0, high=100), tuple(bars)
        ),
        LineChart(
            "加 batch：总吞吐涨多少，每个人慢多少",
            "都和 batch 1 比，两轴都是对数。两条线的间隔就是白赚的；线在显存装不下的地方停住。",
            Axis("batch", "sequence", log=True),
            Axis("是 batch 1 的", "×", log=True),
            (
                Series("总吞吐", tuple((b, b / slower) for b, slower in steps), emphasis=True),
                Series("每个 token 的等待", tuple(steps), dashed=True),
            ),
            marks=(Mark("现在", float(batch), batch / now, emphasis=True),),
            rules=rules,
        ),
    )


def range_of_batches(largest: int) -> list[int]:
    """1, 2, 4 … and the largest that fits."""
    return sorted({1, largest, *(2**k for k in range(13) if 2**k <= largest)})


@calculator(
    title="一次请求的时间账",
    question="首字等多久，之后每个 token 等多久？钱花在哪一段？",
    chapter="15",
    inputs=(
        model_input(),
        gpu_input(),
        integer("prompt_tokens", "提示长度", 2048, "token", high=1_000_000, kind="tokens", stops=powers_of_two(128, 131072)),
        integer("output_tokens", "输出长度", 512, "token", high=100_000, kind="tokens", stops=powers_of_two(1, 32768)),
        integer("batch", "batch", 1, "sequence", high=LARGEST_BATCH, stops=powers_of_two(1, LARGEST_BATCH)),
        integer("n_gpus", "几张卡", 1, "card", high=256, more=True, stops=powers_of_two(1, 256)),
        number("weight_bytes", "每个权重的字节", 2, "B", low=0.5, high=4, more=True, stops=(0.5, 1, 2, 4), help="BF16 是 2，FP8、INT8 是 1，4 bit 是 0.5"),
        number("kv_bytes", "KV 每个数的字节", 2, "B", low=0.5, high=2, more=True, stops=(0.5, 1, 2)),
        number("mfu_prefill", "MFU", 0.5, low=0.05, high=1, kind="fraction", more=True, stops=linear_stops(0.05, 1, 0.05), help="算的那一段用上峰值的几成，两个阶段都用它"),
        number("mbu_decode", "MBU", 0.8, low=0.05, high=1, kind="fraction", more=True, stops=linear_stops(0.05, 1, 0.05), help="读的那一段用上带宽的几成；batch 1 实测多在 0.6–0.9"),
        number("measured_tok_s", "实测吞吐", 0, "token/s", low=0, high=1e6, more=True, help="0 = 没测；填了就算出你的 MBU"),
        number("measured_size_gib", "日志里的模型大小", 0, "GiB", low=0, high=2000, more=True, help="0 = 用这里算出的每步字节"),
        integer("n_layers", "层数", None, "layer", low=0, high=10_000, more=True, help="留空用预设；填了任何一个形状，就按普通 GQA、全上下文算"),
        integer("n_heads", "query 头数", None, low=0, high=10_000, more=True),
        integer("n_kv_heads", "KV 头数", None, low=0, high=10_000, more=True),
        integer("head_dim", "每头维度", None, low=0, high=10_000, more=True),
        number("n_mat_params", "参与矩阵乘的参数", None, "params", low=0, high=1e13, more=True, help="不算输入词表；留空用预设，填了按稠密算"),
        number("n_total_params", "总参数", None, "params", low=0, high=1e13, more=True, help="只填了上一格，就和它一样"),
        number("peak_tflops", "稠密峰值", None, "TFLOPS", low=0, high=1e6, more=True, help="留空用这张卡的"),
        number("bandwidth_gb_s", "显存带宽", None, "GB/s", low=0, high=1e6, more=True, help="留空用这张卡的"),
        number("memory_gb", "每张卡的显存", None, "GB", low=0, high=1e5, more=True, help="留空用这张卡的（驱动报告的容量）"),
    ),
    outputs=(
        Output("ttft_ms", "首字延迟 TTFT", "ms", main=True),
        Output("tpot_ms", "每个 token 的时间 TPOT", "ms", main=True),
        Output("e2e_s", "全程", "s", main=True),
        Output("decode_share_pct", "decode 占", "%", main=True),
        Output("decode_tok_s", "吞吐（所有请求合计）", "token/s", main=True),
        Output("weights_gb", "权重", "GB", digits=5),
        Output("kv_gb", "KV cache（全部请求，到最后）", "GB", digits=5),
        Output("prefill_tflop", "prefill 的运算", "TFLOP", digits=5),
        Output("step_memory_ms", "一步：读要", "ms"),
        Output("step_compute_ms", "一步：算要", "ms"),
        Output("step_gb", "一步读的字节", "GB", digits=5),
        Output("ai_prefill", "算术强度：prefill", "FLOP/B"),
        Output("ai_decode", "算术强度：decode", "FLOP/B"),
        Output("decode_mfu_pct", "decode 的 MFU", "%"),
        Output("decode_vs_prefill", "每个 token：decode 是 prefill 的", "×"),
        Output("effective_bandwidth_gb_s", "实测折成带宽", "GB/s"),
        Output("mbu_measured_pct", "实测 MBU", "%"),
        Output("largest_batch", "装得下的最大 batch", "sequence"),
        Output("attention_share_pct", "prefill 里 attention 占", "%"),
    ),
    chart=_chart,
    formula=(
        "TTFT = max(B·(2·N·S + attention) ÷ (卡数·峰值·MFU), 权重字节 ÷ (卡数·带宽·MBU))",
        "一步 = max((权重字节 + B·KV 字节) ÷ (卡数·带宽·MBU), B·(2·N + attention) ÷ (卡数·峰值·MFU))",
        "TPOT = 上下文为 S 时的一步；全程 = TTFT + 之后 T − 1 步，一步比一步长",
    ),
    assumptions=(
        "N 不算输入词表：查表不是矩阵乘；共享的词表算一次",
        "整批一起 prefill，再一起 decode；多卡时字节和运算都均分",
        "attention 按因果算：全上下文 S²/2，滑动窗口只数窗口里的；MLA 在 decode 里按吸收后的宽度算",
        "读和算完全重叠，取长的那个",
        "输出词表按提示的每个 token 都过一遍；引擎多半只算最后一个位置，Llama-3-8B 的 prefill 会少 7% 左右",
    ),
    leaves_out="不算张量并行的 all-reduce、kernel 启动、采样和分词：batch 1 实测一般是带宽下界的 60–90%，默认的 0.8 在其中。MoE 按均匀路由，真实路由偏，碰到的专家更少。",
    sources=("kipply, Transformer Inference Arithmetic（latency 一节）", "Pope et al. 2211.05102 §2", "每 token 2N：Kaplan et al. 2020", "峰值、带宽、容量：硬件目录（稠密）"),
)  # fmt: skip
def infer_two_phases(
    *, model: Model, gpu: Accelerator, prompt_tokens: int, output_tokens: int, batch: int, n_gpus: int, weight_bytes: float, kv_bytes: float, mfu_prefill: float,
    mbu_decode: float, measured_tok_s: float, measured_size_gib: float, n_layers: int | None, n_heads: int | None, n_kv_heads: int | None, head_dim: int | None,
    n_mat_params: float | None, n_total_params: float | None, peak_tflops: float | None, bandwidth_gb_s: float | None, memory_gb: float | None,
) -> Result:  # fmt: skip
    """Both phases from FLOPs, bytes and two utilisations."""
    shape = explicit_shape(model, n_layers, n_heads, n_kv_heads, head_dim, n_mat_params, n_total_params)
    peak_t, bandwidth_g = peak_tflops or gpu.dense_tflops, bandwidth_gb_s or gpu.bandwidth_gb_s
    memory = memory_gb * GB if memory_gb else capacity_bytes(gpu)
    engine = Engine(n_gpus * peak_t * TB * mfu_prefill, n_gpus * bandwidth_g * GB * mbu_decode, weight_bytes, kv_bytes)
    tokens, held = prompt_tokens, prompt_tokens + output_tokens
    _refuse_too_large(shape, engine, batch, held, n_gpus * memory)

    w = Worked()
    two_bytes, sequences, prompt, cards = quantity(weight_bytes, "B"), quantity(batch), quantity(tokens), quantity(n_gpus)
    params = quantity(shape.matmul_params, "params")
    w.line("参与矩阵乘的参数", params, "params", 6)
    weights = w.line("占显存的权重", quantity(shape.total_params, "params") * two_bytes, "GB", 5)
    kv_at_end = w.line(f"最后的 KV，共 {held} token 一条", sequences * kv_bytes_line(w, shape, kv_bytes, held), "GB", 5)
    compute = w.line("实得算力", cards * quantity(peak_t, "TFLOPS") * quantity(mfu_prefill), "TFLOPS", 5)
    bandwidth = w.line("实得带宽", cards * quantity(bandwidth_g, "GB/s") * quantity(mbu_decode), "GB/s", 5)

    attention = attention_line(w, "提示的 attention", shape, prompt, 1.0, of_prompt=True)
    linear = w.line("提示过权重", prefill_flops(TWO, params, prompt, quantity(1)), "TFLOP", 5)
    prefill = w.line("prefill 的运算", sequences * (linear + attention), "TFLOP", 5)
    prefill_read = w.line("prefill 读权重", params_read_line(w, shape, batch * tokens) * two_bytes, "GB", 5)
    ttft = w.line("TTFT", larger(prefill / compute, prefill_read / bandwidth), "ms")

    kv = w.line("一步读 KV", sequences * kv_bytes_line(w, shape, kv_bytes, tokens), "GB", 5)
    step_weights = w.line("一步读权重", params_read_line(w, shape, batch) * two_bytes, "GB", 5)
    step_bytes = w.line("一步读的字节", step_weights + kv, "GB", 5)
    token_attention = attention_line(w, "一个 token 的 attention", shape, prompt, shape.absorbed, of_prompt=False)
    step_flops = w.line("一步的运算", decode_flops(params, sequences, TWO) + sequences * token_attention, "GFLOP")
    reading = w.line("读要", step_bytes / bandwidth, "ms")
    computing = w.line("算要", step_flops / compute, "ms")
    tpot = w.line("TPOT", larger(reading, computing), "ms")
    rate = w.line("吞吐", quantity(batch, "token") / tpot, "token/s")
    decode = quantity(decode_seconds(shape, engine, batch, tokens + 1, held - 1), "s", 5)
    w.say(f"之后 {output_tokens - 1} 步，上下文一步长一个 token → {decode.text}")
    whole = w.line("全程", ttft + decode, "s")
    share = w.line("decode 占", decode / whole, "%")
    ai_prefill = w.line("prefill 的算术强度", arithmetic_intensity(prefill, prefill_read + kv), "FLOP/B")
    ai_decode = w.line("decode 的算术强度", arithmetic_intensity(step_flops, step_bytes), "FLOP/B")
    decode_mfu = w.line("decode 的 MFU", step_flops / (tpot * (cards * quantity(peak_t, "TFLOPS"))), "%")
    ratio = w.line("每个 token，decode ÷ prefill", tpot / (ttft / prompt), "×")
    effective, mbu = _measured(w, batch, measured_tok_s, measured_size_gib, step_bytes, cards * quantity(bandwidth_g, "GB/s"))
    attention_share = attention / (linear + attention)
    largest = largest_true(lambda b: _need(shape, engine, b, held) <= n_gpus * memory, 1, LARGEST_BATCH)
    return Result(
        values={
            "ttft_ms": ttft, "tpot_ms": tpot, "e2e_s": whole, "decode_share_pct": share, "decode_tok_s": rate, "weights_gb": weights, "kv_gb": kv_at_end,
            "prefill_tflop": prefill, "step_memory_ms": reading, "step_compute_ms": computing, "step_gb": step_bytes, "ai_prefill": ai_prefill,
            "ai_decode": ai_decode, "decode_mfu_pct": decode_mfu, "decode_vs_prefill": ratio, "effective_bandwidth_gb_s": effective, "mbu_measured_pct": mbu,
            "largest_batch": largest, "attention_share_pct": attention_share,
        },
        lines=w.lines,
        verdict=_seen(effective, mbu) + _verdict(ttft, tpot, whole, share, output_tokens) + _advice(reading, computing, step_weights, kv, decode_mfu, batch, largest),
        resolved=_resolved(model, gpu, shape, n_layers, n_heads, n_kv_heads, head_dim, n_mat_params, n_total_params, peak_tflops, bandwidth_gb_s, memory_gb),
        notes=_notes(model, held, mbu, mbu_decode),
        trace=Trace(shape, engine, largest),
    )  # fmt: skip


def _need(shape: Shape, engine: Engine, batch: int, held: int) -> float:
    return shape.total_params * engine.weight_bytes + batch * kv_request(shape, engine.kv_bytes, held)


def _refuse_too_large(shape: Shape, engine: Engine, batch: int, held: int, memory: float) -> None:
    if _need(shape, engine, batch, held) <= memory:
        return
    weights, kv = shape.total_params * engine.weight_bytes, batch * kv_request(shape, engine.kv_bytes, held)
    sizes = f"权重 {format_number(weights / GB, digits=3)} GB + KV {format_number(kv / GB, digits=3)} GB > {format_number(memory / GB, digits=3)} GB"
    if weights >= memory:
        raise refuse("n_gpus", "装不下", sizes, "加卡，或换显存更大的卡")
    raise refuse("batch", "装不下", sizes, "减小 batch、上下文，或加卡")


def _measured(
    w: Worked, batch: int, tok_s: float, size_gib: float, step_bytes: Quantity, bandwidth: Quantity
) -> tuple[Quantity | None, Quantity | None]:  # fmt: skip
    if not tok_s:
        return None, None
    read = w.line("日志的大小换成 GB", quantity(size_gib, "GiB"), "GB", 5) if size_gib else step_bytes
    effective = w.line("实测折成带宽", read * quantity(tok_s) / quantity(batch) / quantity(1, "s"), "GB/s", 5)
    return effective, w.line("实测 MBU", effective / bandwidth, "%")


def _resolved(model: Model, gpu: Accelerator, shape: Shape, *typed: float | None) -> dict[str, float | int | bool | str]:
    names = ("n_layers", "n_heads", "n_kv_heads", "head_dim", "n_mat_params", "n_total_params", "peak_tflops", "bandwidth_gb_s", "memory_gb")
    taken = (
        model.layers, model.heads, model.kv_heads, model.head_dim, shape.matmul_params, shape.total_params, gpu.dense_tflops, gpu.bandwidth_gb_s,
        float(f"{capacity_bytes(gpu) / GB:.6g}"),
    )  # fmt: skip
    return {name: value for name, value, given in zip(names, taken, typed, strict=True) if given is None}


def _seen(effective: Quantity | None, mbu: Quantity | None) -> str:
    return f"实测折成 {effective.text}，MBU {mbu.text}。" if effective is not None and mbu is not None else ""


def _verdict(ttft: Quantity, tpot: Quantity, whole: Quantity, share: Quantity, output: int) -> str:
    if output == 1:
        return f"只出一个 token：{ttft.text} 全是 prefill。"
    return f"首字 {ttft.text}，之后每个 token {tpot.text} 起；全程 {whole.text}，{share.text} 花在 decode。"


def _advice(reading: Quantity, computing: Quantity, weights: Quantity, kv: Quantity, mfu: Quantity, batch: int, largest: int) -> str:
    if computing.value >= reading.value:
        return f"decode 已经卡在算力（算 {computing.text}，读 {reading.text}）：再加 batch 不添吞吐，只添延迟。"
    head = f"decode 卡在带宽：读要 {reading.text}，算只要 {computing.text}，MFU {mfu.text} 说明不了代码好坏，看 MBU。"
    if kv.value > weights.value:
        return head + f"读的字节里 KV（{kv.text}）比权重（{weights.text}）多：先压 KV（第 16 章）。"
    if batch < largest:
        room = "至少" if largest == LARGEST_BATCH else ""
        return head + f"权重读一遍服务 {batch} 条，显存放得下{room} {largest} 条：先加 batch。"
    if batch == LARGEST_BATCH:
        return head
    return head + "batch 已到显存上限：先省显存，或加卡。"


def _notes(model: Model, held: int, mbu: Quantity | None, assumed: float) -> tuple[str, ...]:
    notes = []
    if 0 < model.max_context < held:
        notes.append(f"{model.name} 最长只支持 {format_number(model.max_context)} token，这里按公式外推。")
    if mbu is not None and mbu.value > 1:
        notes.append("实测折出的带宽超过了这张卡的标称：核对卡型号、模型大小，和吞吐是不是含了 prefill。")
    elif mbu is not None:
        notes.append(f"时间仍按 MBU {format_number(100 * assumed)}% 算，不是你的实测。")
    return tuple(notes)
