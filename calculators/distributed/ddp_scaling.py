"""How close to linear does data parallelism come, and how many tokens per GPU does it need?"""

from __future__ import annotations

from calculators.catalog import Accelerator, Model, gpu_input, model_input
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Rule, Series, Span, Timeline
from calculators.core.inputs import choice, flag, integer, linear_stops, log_stops, number, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.units import GB
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.collectives import ring_allreduce, tokens_to_hide
from calculators.formulas.data_parallel import BACKWARD_FLOP, FORWARD_FLOP, RECOMPUTE_FLOP, bucket_schedule, exposed_seconds, pass_seconds

COUNTS = tuple(2**k for k in range(17))
DDP_BUCKET_BYTES = 25 * 2**20
"""PyTorch DDP's default, bucket_cap_mb = 25 (MiB)."""
MOST_BUCKETS = 1000
WORTH_IT_PCT = 90
"""Below this share of linear the verdict advises more tokens per GPU (a rule of ours)."""


def _chart(
    run: Run, *, model: Model, gpu: Accelerator, compute_eff: float, n_gpus: int, tokens_per_gpu: int, bus_bw: float, grad_bytes: int, n_buckets: int,
    recompute: bool, alpha: float, **_: object,
) -> tuple[Chart, ...]:  # fmt: skip
    speed, size, link = gpu.dense_flops * compute_eff, float(model.total_params * grad_bytes), bus_bw * GB
    backward_flop = float(BACKWARD_FLOP + recompute * RECOMPUTE_FLOP)

    def parts(n: float, tokens: float) -> tuple[float, float, float]:
        forward, backward = (pass_seconds(flop, float(model.active_params), tokens, speed) for flop in (float(FORWARD_FLOP), backward_flop))
        return forward, backward, ring_allreduce(n, size, link, n_buckets * alpha * 1e-6).seconds

    def efficiency(n: float, tokens: float) -> float:
        forward, backward, comm = parts(n, tokens)
        return 100 * (forward + backward) / (forward + backward + exposed_seconds(backward, comm, float(n_buckets)))

    whole = float(n_gpus * tokens_per_gpu)
    counts = sorted({*COUNTS, n_gpus})
    now = float(run.values["efficiency_pct"])  # type: ignore[arg-type]
    scaling = LineChart(
        "加卡，效率怎么掉",
        "横轴是卡数，对数。强扩展：总 batch 不变，卡越多每卡 token 越少，到某处一头栽下去。弱扩展：每卡 token 不变；α 是 0 时几乎是平的，填了 α，环越长也会掉。",
        Axis("卡数", "卡", log=True),
        Axis("效率", "%", low=0, high=105),
        (
            Series("强扩展：总 batch 不变", tuple((float(n), efficiency(float(n), whole / n)) for n in counts), emphasis=True),
            Series("弱扩展：每卡 token 不变", tuple((float(n), efficiency(float(n), float(tokens_per_gpu))) for n in counts), dashed=True),
        ),
        marks=(Mark("现在", float(n_gpus), now, emphasis=True),),
        rules=(Rule("一半", y=50.0),),
    )
    return (_timeline(*parts(float(n_gpus), float(tokens_per_gpu)), n_buckets), scaling) if n_gpus > 1 else (scaling,)


def _timeline(forward: float, backward: float, comm: float, buckets: int) -> Timeline:
    """What sticks out of the backward pass has its own tone."""
    done, ms = forward + backward, 1e3
    spans = [Span(0, 0.0, forward * ms, "前向", 0)]
    for i, bucket in enumerate(bucket_schedule(forward, backward, comm, buckets)):
        spans.append(Span(0, (forward + backward * i / buckets) * ms, bucket.ready * ms, "", 1))
        hidden = min(max(done, bucket.start), bucket.end)
        if bucket.start < hidden:
            spans.append(Span(1, bucket.start * ms, hidden * ms, "", 2))
        if hidden < bucket.end:
            spans.append(Span(1, hidden * ms, bucket.end * ms, "", 3))
    return Timeline(
        "一步之内：反向算完一段，就把那一桶梯度发出去",
        "上面一行在算，下面一行在传。传的那一行有多少伸到反向结束之后，这一步就多等多少。",
        Axis("时间", "ms"), ("计算", "通信"), tuple(spans), ("前向", "反向", "all-reduce，藏住了", "all-reduce，露在外面"),
    )  # fmt: skip


@calculator(
    title="DDP 的扩展效率",
    question="再加卡还会变快吗？每张卡每步至少要算多少 token，通信才藏得住？",
    chapter="10",
    inputs=(
        model_input(),
        integer("n_gpus", "几张卡", 64, "卡", low=1, high=65_536, stops=powers_of_two(1, 65_536)),
        integer("tokens_per_gpu", "每卡每步", 16_384, "token", low=1, high=1_000_000, kind="tokens", stops=powers_of_two(256, 524_288)),
        number("bus_bw", "互联，每卡单向", 45, "GB/s", low=0.1, high=1000, stops=(3.125, 6.25, 12.5, 22.5, 45, 50, 90, 180, 360, 450), help="填有效值：400 Gb/s 网卡取九成是 45"),
        integer("n_buckets", "分几桶", 20, low=1, high=MOST_BUCKETS, stops=(1, 2, 5, 10, 20, 50, 100, 200, 613, 1000), help="DDP 默认 25 MiB 一桶，8B 是 613 桶"),
        gpu_input(),
        number("compute_eff", "算力用上几成", 0.5, low=0.05, high=1, kind="fraction", more=True, stops=linear_stops(0.1, 1, 0.05), help="稠密 BF16 峰值的几成"),
        choice("grad_bytes", "每个梯度", 2, (2, 4), "B", more=True, help="FP32 归约是 4"),
        flag("recompute", "全部重算", False, more=True, help="反向时再做一遍前向：6 FLOP，不是 4"),
        number("alpha", "环上每一步的延迟 α", 0, "µs", low=0, high=100, more=True, stops=(0, 1, 2, 3, 5, 10, 20, 50), help="每一桶都要付 2(n−1) 次"),
        number("measured_tps_small", "日志：卡少时", 5762, "token/s/card", low=0, low_open=True, more=True, stops=log_stops(100, 100_000, 4)),
        number("measured_tps_large", "日志：卡多时", 5605, "token/s/card", low=0, low_open=True, more=True, stops=log_stops(100, 100_000, 4), help="同一个作业，每卡 token 不变"),
    ),
    outputs=(
        Output("t_fwd_ms", "前向", "ms"),
        Output("t_bwd_ms", "反向", "ms"),
        Output("t_comm_ms", "梯度 all-reduce", "ms", main=True),
        Output("t_step_ms", "一步", "ms"),
        Output("exposed_ms", "露在外面", "ms", main=True),
        Output("efficiency_pct", "效率", "%", main=True),
        Output("efficiency_no_overlap_pct", "不重叠的话", "%"),
        Output("threshold_tokens", "门槛：每卡每步", "token", main=True),
        Output("global_batch_tokens", "全局 batch", "token"),
        Output("tok_s_per_gpu", "每卡吞吐", "token/s"),
        Output("bucket_mb", "一桶", "MB"),
        Output("best_buckets", "分几桶露得最少"),
        Output("measured_weak_eff_pct", "日志里的弱扩展效率", "%"),
    ),
    chart=_chart,
    formula=(
        "前向 = 2N·tok ÷ (峰值 × 几成)，反向 = 4N·tok ÷ 同（重算 6N）",
        "all-reduce = 2(n−1)/n · N·字节 ÷ 带宽 + 桶数 · 2(n−1)·α",
        "一步 = 前向 + max(反向 + all-reduce ÷ 桶数, 反向 ÷ 桶数 + all-reduce)",
        "门槛：反向和 all-reduce 一样久的 token 数；BF16 稠密、不重算时是 (n−1)/n · 实得算力 ÷ 带宽",
    ),
    assumptions=("桶一样大，一条平铺的环；带宽是每卡、单向、有效值", "运算按激活参数，梯度按全部参数（稠密模型两者相同）", "不累积；累积时能挡住通信的只有最后一个微批，门槛按一个微批看"),
    leaves_out="不算 attention 的运算（8K 长度下 8B 多 13%，70B 多 8%，所以真实效率比这里高一点）、慢节点（第 21 章）、网卡共用和优化器那一步：效率误差约 ±5 个百分点。",
    sources=("JAX「How to Scale Your Model」训练一章：同一个条件 B/X > C/W", "重叠的模型是本书的", "默认的日志数：torchtitan 2024-12，Llama-3.1-8B，FSDP，8 → 128 张 H100"),
)  # fmt: skip
def ddp_scaling(
    *, model: Model, gpu: Accelerator, compute_eff: float, n_gpus: int, tokens_per_gpu: int, bus_bw: float, grad_bytes: int, n_buckets: int, recompute: bool,
    alpha: float, measured_tps_small: float, measured_tps_large: float,
) -> Result:  # fmt: skip
    """Forward, backward and the all-reduce as a pipeline of buckets."""
    w = Worked()
    tokens, n, buckets, link = quantity(tokens_per_gpu, "token"), quantity(n_gpus), quantity(n_buckets), quantity(bus_bw, "GB/s")
    active, params = quantity(model.active_params, "params"), quantity(model.total_params, "params")
    speed = w.line("每卡实得算力", quantity(gpu.dense_tflops, "TFLOPS") * quantity(compute_eff), "TFLOPS")
    backward_flop = quantity(BACKWARD_FLOP + recompute * RECOMPUTE_FLOP, "FLOP")
    forward = w.line("前向", pass_seconds(quantity(FORWARD_FLOP, "FLOP"), active, tokens, speed), "ms")
    backward = w.line("反向", pass_seconds(backward_flop, active, tokens, speed), "ms")
    size = w.line("梯度", params * quantity(grad_bytes, "B"), "GB")
    bucket = w.line("一桶", size / buckets, "MB")
    cost = ring_allreduce(n, size, link, buckets * quantity(alpha, "µs"))
    comm = wire = w.line("搬字节" if alpha else "all-reduce", cost.wire, "ms")
    if alpha:
        comm = w.line("all-reduce", wire + w.line("各桶的延迟", cost.latency, "ms"), "ms")
    computing = w.line("在算", forward + backward, "ms")
    exposed = w.line("露在外面", exposed_seconds(backward, comm, buckets), "ms")
    step = w.line("一步", computing + exposed, "ms")
    efficiency = w.line("效率", computing / step, "%")
    alone = w.line("不重叠的话", computing / (computing + comm), "%")
    per_token = w.line("反向每个 token", backward_flop * active, "GFLOP")
    threshold = w.line("门槛：每卡每步", tokens_to_hide(wire, speed, per_token), "token", 5)
    best = _best_buckets(backward.value, wire.value, cost.latency.value / n_buckets) if alpha and n_gpus > 1 else None
    if best:
        w.say(f"逐个试 1–{MOST_BUCKETS} 桶，露得最少 → {best} 桶")
    measured = w.line("日志里的弱扩展", quantity(measured_tps_large, "token/s/card") / quantity(measured_tps_small, "token/s/card"), "%")
    return Result(
        values={
            "t_fwd_ms": forward, "t_bwd_ms": backward, "t_comm_ms": comm, "t_step_ms": step, "exposed_ms": exposed,
            "efficiency_pct": efficiency, "efficiency_no_overlap_pct": alone, "threshold_tokens": threshold,
            "global_batch_tokens": n_gpus * tokens_per_gpu, "tok_s_per_gpu": tokens_per_gpu / step.value, "bucket_mb": bucket, "best_buckets": best, "measured_weak_eff_pct": measured,
        },
        lines=w.lines,
        verdict=_verdict(n_gpus, tokens_per_gpu, n_buckets, backward, comm, exposed, efficiency, threshold, best),
        notes=_notes(size.value, alpha, n_gpus),
    )  # fmt: skip


def _notes(size: float, alpha: float, n_gpus: int) -> tuple[str, ...]:
    if n_gpus == 1 or alpha:
        return ()
    buckets = format_number(-(-size // DDP_BUCKET_BYTES))
    return (f"桶数是粗略的时间线：DDP 默认 25 MiB 一桶，这里要 {buckets} 桶。α 是 0，所以桶越碎看着越好；把 α 填上再看。",)


def _best_buckets(backward: float, wire: float, latency: float) -> int:
    """``latency``: seconds that one more bucket adds."""
    return min(range(1, MOST_BUCKETS + 1), key=lambda k: exposed_seconds(backward, wire + k * latency, float(k)))


def _verdict(
    n: int, tokens: int, buckets: int, backward: Quantity, comm: Quantity, exposed: Quantity, efficiency: Quantity, threshold: Quantity, best: int | None
) -> str:
    if n == 1:
        return "一张卡没有通信，效率就是 100%：这是别的卡数要比的基准。"
    head = f"{n} 张卡，每卡 {format_number(tokens)} token，效率 {efficiency.text}。"
    least = format_number(round(threshold.value))
    regroup = f"分 {best} 桶露得最少。" if best and best != buckets else ""
    if comm.value <= backward.value:
        rest = f"只露出最后一桶，{exposed.text}。" if buckets > 1 else f"可只分一桶，反向算完才开始传，露出 {exposed.text}：分桶。"
        return head + f"过了门槛 {least} token，all-reduce 藏在反向后面，" + rest + regroup
    if tokens >= threshold.value:
        return head + f"字节藏得住（门槛 {least} token），可各桶的延迟加起来，还露出 {exposed.text}。" + regroup
    if 100 * efficiency.value >= WORTH_IT_PCT:
        return head + f"离门槛 {least} token 差一点，露出 {exposed.text}。再加卡就该加每卡的 token 了。"
    waits = f"不到门槛 {least} token，在等通信，露出 {exposed.text}。总 batch 不变，再加卡只会更等："
    return head + waits + "加每卡的 token，或换更宽的网；梯度累积能摊薄，藏不住。" + regroup
