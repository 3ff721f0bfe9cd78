"""Into which chunks should a long prompt be cut, so that those who are decoding do not stall?"""

from __future__ import annotations

from calculators.catalog import Accelerator, Model, gpu_input, model_input
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Rule, Series, Span, Timeline
from calculators.core.errors import refuse
from calculators.core.inputs import flag, integer, linear_stops, number, powers_of_two
from calculators.core.numbers import format_number, format_value
from calculators.core.units import GB
from calculators.core.worked import Quantity, Worked, larger, quantity
from calculators.formulas.chunked import Mix, chunk_steps, chunks, compute_seconds, free_budget, memory_seconds, mixed_flops, step
from calculators.formulas.decode import step_seconds
from calculators.formulas.inference import Engine, capacity_bytes, kv_request, shape_of, weights_read

MOST_CHUNKS = 200_000
"""Iterations that are added up one by one; without attention they are all alike and nothing limits them."""
DRAWN_CHUNKS = 2000
MOST_BLOCKS = 300
SMALLEST = 16


def _chart(
    run: Run, *, prompt_tokens: int, chunk_tokens: int, decode_batch: int, budget_includes_decodes: bool, tpot_slo_ms: float, **_: object
) -> tuple[Chart, ...]:
    mix = run.result.trace
    assert isinstance(mix, Mix)
    taken = decode_batch if budget_includes_decodes else 0
    sizes = sorted(
        {c for c in (*(2**k for k in range(4, 21)), *(3 * 2**k for k in range(4, 19)), chunk_tokens, prompt_tokens) if _fits(c, taken, mix, prompt_tokens)}
    )
    points = [(float(c), *chunk_steps(mix, prompt_tokens, c - taken)) for c in sizes]
    worst, prompt = run.values["chunk_step_ms"], run.values["prompt_ms"]
    assert isinstance(worst, float)
    assert isinstance(prompt, float)
    axis = Axis("一块的 token", log=True)
    return (
        _timeline(mix, prompt_tokens, chunk_tokens - taken),
        LineChart(
            "切得越大，别人的一步越长",
            "横轴是对数。左边平的那段，算 prefill 的时间藏在读权重和 KV 的后面；过了拐点一路往上。",
            axis,
            Axis("最长的一步", "ms", low=0),
            (Series("最长的一步", tuple((c, 1e3 * a) for c, a, _ in points), emphasis=True),),
            marks=(Mark("现在", float(chunk_tokens), worst, emphasis=True),),
            rules=(Rule(f"TPOT 上限 {format_number(tpot_slo_ms)} ms", y=tpot_slo_ms),),
        ),
        LineChart(
            "切得越小，自己的 prompt 越慢",
            "每一块都要把权重重读一遍。块小过上图的拐点以后，每减半，prompt 差不多慢一倍。",
            axis,
            Axis("整条 prompt", "ms", low=0),
            (Series("整条 prompt", tuple((c, 1e3 * b) for c, _, b in points), emphasis=True),),
            marks=(Mark("现在", float(chunk_tokens), prompt, emphasis=True),),
        ),
    )  # fmt: skip


def _fits(size: int, taken: int, mix: Mix, prompt: int) -> bool:
    return taken < size <= prompt and (not mix.attention or prompt / (size - taken) <= DRAWN_CHUNKS)


def _timeline(mix: Mix, prompt: int, size: int) -> Timeline:
    """The prompt whole, and in chunks: every block is one iteration, one token for everybody who decodes."""
    whole, plain = step(mix, prompt), step(mix, 0)
    first = min(chunks(prompt, size), MOST_BLOCKS // 2)
    cut = [step(mix, min(size, prompt - k * size), float(k * size)) for k in range(first)]
    until = max(whole, sum(cut))
    lanes = []
    for lane, times in enumerate(([whole], cut)):
        now = 0.0
        blocks: list[Span] = []
        for duration in times:
            blocks.append(Span(lane, 1e3 * now, 1e3 * (now + duration), tone=0))
            now += duration
        while now < until - plain / 2 and len(blocks) < MOST_BLOCKS:
            blocks.append(Span(lane, 1e3 * now, 1e3 * min(now + plain, until), tone=1))
            now += plain
        lanes += blocks
    cut_off = "（块太多，只画前面一段）" if first < chunks(prompt, size) else ""
    return Timeline(
        "一块是一步，正在解码的人每步得一个 token",
        f"不切：整条 prefill 是一大步，所有人停着等。切开：每一步都长一点，没有人断流。{cut_off}",
        Axis("时间", "ms"),
        ("不切", "切块"),
        tuple(lanes),
        ("带着 prefill 的一步", "只解码的一步"),
    )


@calculator(
    title="chunked prefill 该切多大",
    question="来了一条长 prompt，切成多大的块，正在生成的人才不卡？",
    chapter="17",
    inputs=(
        model_input(),
        gpu_input(),
        integer("prompt_tokens", "新来的 prompt", 8192, "token", low=1, high=1_000_000, kind="tokens", stops=powers_of_two(512, 131072)),
        integer("chunk_tokens", "一块", 512, "token", low=SMALLEST, high=1_000_000, stops=(16, 32, 64, 128, 192, 256, 290, 384, 512, 768, 1024, 2048, 4096, 8192), range_remedy="也不能超过 prompt"),
        integer("decode_batch", "正在解码的", 32, "request", low=0, high=1024, stops=(0, *powers_of_two(1, 1024))),
        flag("include_attention", "算上 attention", False, help="口径：否 = 只算线性层；是 = 加上 attention 和重读前面的 KV"),
        integer("context_tokens", "它们的上下文", 2048, "token", low=1, high=1_000_000, kind="tokens", more=True, stops=powers_of_two(128, 131072)),
        flag("budget_includes_decodes", "预算里含解码", False, more=True, help="是 = 一块里先放每个解码请求的一个 token，剩下的才给 prompt"),
        number("tpot_slo_ms", "TPOT 上限", 20, "ms", low=0.1, high=10_000, more=True, stops=(5, 10, 15, 20, 25, 30, 40, 50, 75, 100, 200)),
        number("mfu", "算力利用率", 0.5, low=0.05, high=1, more=True, kind="fraction", stops=linear_stops(0.05, 1, 0.05)),
        number("mbu", "带宽利用率", 0.8, low=0.05, high=1, more=True, kind="fraction", stops=linear_stops(0.05, 1, 0.05)),
        number("weight_bytes", "每参数字节", 2, "B", low=0.5, high=4, more=True, stops=(0.5, 1, 2, 4)),
        number("kv_bytes", "每 KV 元素字节", 2, "B", low=0.5, high=2, more=True, stops=(0.5, 1, 2)),
    ),
    outputs=(
        Output("chunk_step_ms", "切块后，最长的一步", "ms", main=True),
        Output("unchunked_stall_ms", "不切，一步卡住", "ms", main=True),
        Output("decode_only_ms", "只解码的一步", "ms", main=True),
        Output("prompt_ms", "整条 prompt 要", "ms", main=True),
        Output("free_budget_tokens", "免费捎带的 prefill", "token", main=True, digits=6),
        Output("stall_ratio", "不切 ÷ 只解码", "×"),
        Output("chunk_ratio", "切块 ÷ 只解码", "×"),
        Output("prompt_overhead_pct", "prompt 慢了", "%"),
        Output("n_chunks", "几块（读几遍权重）", digits=6),
    ),
    chart=_chart,
    formula=(
        "一步 = max((读的参数 × 字节 + B × 每条 KV) ÷ 有效带宽，2N(p + B) ÷ 有效算力)，p 是这一步的 prompt token",
        "整条 prompt = 各块之和；最后一块是零头",
        "免费捎带的 prefill = ⌊只解码时读的时间 × 有效算力 ÷ 2N⌋ − B",
        "算上 attention：再加这一块对前文的 4·a·(Λ2(r + p) − Λ2(r))、解码的 B·4·a·Λ(c)，字节再加前文的 KV",
    ),
    assumptions=("读和算完全重叠，一步取长的那个", "N：参与矩阵乘的激活参数，不含输入 embedding；MoE 按均匀、独立的路由读专家", "prefill 期间解码的请求数和上下文不变"),
    leaves_out="默认不算 attention 和重读前文的 KV：8192 token 时 prefill 因此乐观一成多，可用「算上 attention」补上。不算 kernel 启动、调度和采样的时间。",
    sources=("Agrawal et al. 2024（Sarathi-Serve，OSDI）§4：不断流的批处理", "步的时间：第 15 章的两阶段模型"),
)  # fmt: skip
def chunked_prefill(
    *, model: Model, gpu: Accelerator, prompt_tokens: int, chunk_tokens: int, decode_batch: int, include_attention: bool, context_tokens: int,
    budget_includes_decodes: bool, tpot_slo_ms: float, mfu: float, mbu: float, weight_bytes: float, kv_bytes: float,
) -> Result:  # fmt: skip
    """max(read, compute) of an iteration: without a prompt, with the whole prompt, with one chunk after another."""
    size = _chunk(prompt_tokens, chunk_tokens, decode_batch, budget_includes_decodes)
    shape = shape_of(model)
    mix = Mix(shape, Engine(gpu.dense_flops * mfu, gpu.hbm_bytes_per_s * mbu, weight_bytes, kv_bytes), decode_batch, context_tokens, include_attention)
    count = chunks(prompt_tokens, size)
    if include_attention and count > MOST_CHUNKS:
        least = -(-prompt_tokens // MOST_CHUNKS) + chunk_tokens - size
        raise refuse("chunk_tokens", f"一块太小：算上 attention 时最多 {MOST_CHUNKS} 块", f"{count} 块", f"一块至少 {least} token")
    smallest = max(1, SMALLEST - (chunk_tokens - size))
    longest, prompt_s = chunk_steps(mix, prompt_tokens, size)
    plain_compute = compute_seconds(mix, 0)
    whole_memory, whole_compute = memory_seconds(mix, prompt_tokens), compute_seconds(mix, prompt_tokens)

    w = Worked()
    batch, two = quantity(decode_batch), quantity(2, "FLOP")
    params = quantity(shape.matmul_params, "params")
    bandwidth = w.line("有效带宽", quantity(gpu.bandwidth_gb_s, "GB/s") * quantity(mbu), "GB/s")
    flops_per_s = w.line("有效算力", quantity(gpu.dense_tflops, "TFLOPS") * quantity(mfu), "TFLOPS")
    weights = w.line("解码一步读权重", quantity(weights_read(shape, decode_batch), "params") * quantity(weight_bytes, "B"), "GB")
    kv_each = kv_request(shape, kv_bytes, float(context_tokens))
    w.say(f"一条 {format_value(context_tokens, 'token')} 的 KV → {quantity(kv_each / 1e6, 'MB', 5).text}")
    kv = w.line("解码一步读 KV", batch * quantity(kv_each / 1e6, "MB", 5), "GB")
    reading = w.line("只解码：读", step_seconds(weights, kv, bandwidth), "ms")
    plain = larger(reading, quantity(1e3 * plain_compute, "ms", 4))
    if include_attention:
        w.say(f"只解码：算（含 attention） → {quantity(1e3 * plain_compute, 'ms', 4).text}")
    else:
        plain = larger(reading, w.line("只解码：算", mixed_flops(two, params, batch) / flops_per_s, "ms"))
    plain = w.line("只解码的一步", plain, "ms")
    stall = Quantity(max(whole_memory, whole_compute), quantity(1e3 * max(whole_memory, whole_compute), "ms", 4).text)
    if include_attention or whole_memory > whole_compute:
        w.say(f"不切，一步 → {stall.text}")
    else:
        stall = w.line("不切，一步", mixed_flops(two, params, quantity(prompt_tokens) + batch) / flops_per_s, "ms")
    w.say(f"每块 {size} token，{count} 块 → 最长一步 {_ms(longest).text}，合计 {_ms(prompt_s).text}")
    stall_ratio = w.line("不切 ÷ 只解码", stall / plain, "×")
    chunk_ratio = w.line("切块 ÷ 只解码", _ms(longest) / plain, "×")
    overhead = w.line("prompt 慢了", _ms(prompt_s, 6) / _ms(stall.value, 6) - quantity(1), "%")
    per_token = w.line("一个 token 的线性层", mixed_flops(two, params, quantity(1)), "GFLOP")
    free = w.line("免费捎带的 prefill", free_budget(reading, flops_per_s, per_token, batch))
    if free.value < 0:
        free = quantity(0)
        w.say("解码自己的计算已经盖不住 → 免费捎带 0 token")
    return Result(
        values={
            "chunk_step_ms": 1e3 * longest, "unchunked_stall_ms": stall, "decode_only_ms": plain, "prompt_ms": 1e3 * prompt_s, "free_budget_tokens": int(free.value),
            "stall_ratio": stall_ratio, "chunk_ratio": chunk_ratio, "prompt_overhead_pct": overhead, "n_chunks": count,
        },
        lines=w.lines,
        verdict=_verdict(mix, size, longest, prompt_s, stall, plain, tpot_slo_ms / 1e3, step(mix, smallest, prompt_tokens - smallest)),
        notes=_notes(model, gpu, weight_bytes, decode_batch * kv_each + kv_request(shape, kv_bytes, float(prompt_tokens))),
        trace=mix,
    )  # fmt: skip


def _ms(seconds: float, digits: int = 4) -> Quantity:
    return Quantity(seconds, quantity(1e3 * seconds, "ms", digits).text)


def _chunk(prompt: int, chunk: int, batch: int, includes_decodes: bool) -> int:
    """Prompt tokens of an iteration.  Raises Refusal."""
    if prompt < SMALLEST:
        raise refuse("prompt_tokens", f"新来的 prompt 太短，一块都切不出：至少 {SMALLEST} token", prompt, "这么短不用切")
    if chunk > prompt:
        raise refuse("chunk_tokens", "一块不能比 prompt 还长", f"{chunk} > {prompt}", f"最多 {prompt}，等于不切")
    if not includes_decodes:
        return chunk
    if chunk <= batch:
        raise refuse("chunk_tokens", "一块的 token budget 连 decode 都装不下", f"{chunk} ≤ {batch}", f"至少 {batch + 1}，或少放几个解码请求")
    return chunk - batch


def _notes(model: Model, gpu: Accelerator, weight_bytes: float, kv: float) -> tuple[str, ...]:
    need, room = model.total_params * weight_bytes + kv, capacity_bytes(gpu)
    if need <= room:
        return ()
    return (f"权重加 KV 要 {format_number(need / GB)} GB，这张卡只有 {format_number(room / GB)} GB：时间按装得下算。",)


def _verdict(mix: Mix, size: int, longest: float, prompt_s: float, stall: Quantity, plain: Quantity, slo: float, least: float) -> str:
    """``least``: the last iteration with the smallest chunk."""
    if mix.batch == 0:
        return f"现在没有人在解码，切不切都不卡谁：整条一步 {stall.text}，切成 {size} 一块是 {_ms(prompt_s).text}。"
    if stall.value <= plain.value * 1.005:
        return f"这条 prompt 短，整条塞进一步也只要 {stall.text}，和只解码差不多：不用切。"
    said = f"不切，{mix.batch} 个正在生成的人一步卡 {stall.text}，平时 {plain.text}；每步 {size} token，最长一步 {_ms(longest).text}，整条 prompt {_ms(prompt_s).text}。"
    limit = f"{format_number(1e3 * slo)} ms"
    if longest <= slo:
        free = "别人一点没慢；再切小，只会让 prompt 更慢。" if longest <= 1.001 * plain.value else ""
        return said + f"在 {limit} 的上限之内。" + free
    if plain.value > slo:
        return said + f"只解码就超过 {limit} 了，切块救不了：先减 batch、上下文或权重字节。"
    if least > slo:
        return said + f"切到最小，一步也超过 {limit}：先减 batch 或上下文。"
    return said + f"超过 {limit} 的上限：切小一点。"
