"""How large may the batch become: what stops it, the KV pool or the latency that was promised?"""

from __future__ import annotations

from dataclasses import dataclass

from calculators.catalog import Accelerator, Model, gpu_input, model_input
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Rule, Series
from calculators.core.errors import refuse
from calculators.core.inputs import integer, linear_stops, log_stops, number, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.units import GB
from calculators.core.worked import Quantity, Worked, floor, larger, quantity
from calculators.formulas.decode import step_seconds
from calculators.formulas.inference import Engine, Shape, capacity_bytes, kv_request, largest_true, shape_of, step_parts, weights_read

MOST_BATCH = 100_000
SAMPLES = 80


@dataclass(frozen=True)
class Trace:
    """What the chart samples."""

    shape: Shape
    engine: Engine
    batch: int
    b_max: int
    b_slo: int


def _chart(run: Run, *, context_tokens: int, tpot_slo_ms: float, **_: object) -> tuple[Chart, ...]:
    t = run.result.trace
    assert isinstance(t, Trace)
    last = min(max(2 * t.b_max, t.batch, 8), 1_000_000_000)
    batches = sorted({max(1, round(float(last) ** (i / SAMPLES))) for i in range(SAMPLES + 1)} | {t.batch})
    points = [(float(b), max(step_parts(t.shape, t.engine, float(b), float(context_tokens)))) for b in batches]
    tpot, rate = run.values["tpot_ms"], run.values["tok_s"]
    assert isinstance(tpot, float)
    assert isinstance(rate, float)
    wall = Rule(f"KV 池到头：{format_number(t.b_max)}", x=float(t.b_max))
    here = float(t.batch)
    axis = Axis("batch", "request", log=True)
    return (
        LineChart(
            "吞吐：越大越高，越往后越不值",
            "横轴是对数。竖线右边放不下：到头的多半是 KV 池，不是 GPU。",
            axis,
            Axis("吞吐", "token/s", low=0),
            (Series("吞吐", tuple((b, b / s) for b, s in points), emphasis=True),),
            marks=(Mark("现在", here, rate, emphasis=True),),
            rules=(wall,),
        ),
        LineChart(
            "TPOT：每个人都在等",
            "横轴是对数。横线是答应过的 TPOT；曲线先碰到哪条线，batch 就到哪里。",
            axis,
            Axis("TPOT", "ms", low=0),
            (Series("TPOT", tuple((b, 1e3 * s) for b, s in points), emphasis=True),),
            marks=(Mark("现在", here, tpot, emphasis=True),),
            rules=(wall, Rule(f"TPOT 上限 {format_number(tpot_slo_ms)} ms", y=tpot_slo_ms)),
        ),
    )


@calculator(
    title="batch、吞吐、延迟",
    question="batch 开到多大？是 KV 池先到头，还是延迟先到头？",
    chapter="17",
    inputs=(
        model_input(),
        gpu_input(),
        integer("context_tokens", "每条上下文", 1024, "token", low=1, high=1_000_000, kind="tokens", stops=powers_of_two(128, 131072)),
        integer("kv_pool_tokens", "KV 池", 455_808, "token", low=1, high=1_000_000_000, stops=log_stops(1000, 10_000_000, 5), help="第 16 章「KV 容量」算出的 token 数，或 vLLM 启动日志里的 GPU KV cache size"),
        number("tpot_slo_ms", "TPOT 上限", 20, "ms", low=0.1, high=10_000, stops=(5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 100)),
        integer("batch", "batch", 0, low=0, high=MOST_BATCH, stops=(0, *powers_of_two(1, 1024)), help="0：KV 池能放的最大"),
        number("mfu", "算力利用率", 0.5, low=0.05, high=1, more=True, kind="fraction", stops=linear_stops(0.05, 1, 0.05)),
        number("mbu", "带宽利用率", 0.8, low=0.05, high=1, more=True, kind="fraction", stops=linear_stops(0.05, 1, 0.05)),
        number("weight_bytes", "每参数字节", 2, "B", low=0.5, high=4, more=True, stops=(0.5, 1, 2, 4)),
        number("kv_bytes", "每 KV 元素字节", 2, "B", low=0.5, high=2, more=True, stops=(0.5, 1, 2)),
    ),
    outputs=(
        Output("b_max_kv", "KV 池放得下", "request", main=True, digits=6),
        Output("b_slo", "不超 TPOT 上限", "request", main=True, digits=6),
        Output("tok_s_slo", "守着上限的吞吐", "token/s", main=True, digits=5),
        Output("tpot_slo_actual_ms", "那时的 TPOT", "ms"),
        Output("tpot_ms", "这个 batch 的 TPOT", "ms", main=True),
        Output("tok_s", "这个 batch 的吞吐", "token/s", main=True, digits=5),
        Output("fits_pool", "这个 batch 放得下"),
        Output("batch_used", "算的是 batch", "request", digits=6),
        Output("read_ms", "一步里，读要", "ms"),
        Output("compute_ms", "一步里，算要", "ms"),
    ),
    chart=_chart,
    formula=(
        "KV 池放得下 = ⌊池的 token ÷ 每条上下文⌋",
        "TPOT = max((读的参数 × 字节 + B × 每条 KV) ÷ 有效带宽，B × 每 token 的计算 ÷ 有效算力)",
        "吞吐 = B ÷ TPOT",
    ),
    assumptions=("一张卡，每条都正好是这么长的上下文", "一个 token 的计算 = 2N + attention；N 不含输入 embedding", "改每 KV 元素字节不会改 KV 池的 token 数：池要自己重算（第 16 章）"),
    leaves_out="不算 prefill 打断、kernel 启动、调度和采样；真实的请求长短不一，池会先被长的占住。",
    sources=("步的时间：第 15 章的两阶段模型", "KV 池 455,808 token：vLLM 启动日志，Llama-3-8B、一张 H100（第 16 章）"),
)  # fmt: skip
def batch_tradeoff(
    *, model: Model, gpu: Accelerator, context_tokens: int, kv_pool_tokens: int, tpot_slo_ms: float, batch: int, mfu: float, mbu: float,
    weight_bytes: float, kv_bytes: float,
) -> Result:  # fmt: skip
    """B ÷ step(B), up to the wall of the pool and up to the promised latency."""
    if kv_pool_tokens < context_tokens:
        raise refuse("kv_pool_tokens", "KV 池连一条都放不下", f"{kv_pool_tokens} < {context_tokens} token", "缩短上下文，或给 KV 池更多显存")
    shape, engine = shape_of(model), Engine(gpu.dense_flops * mfu, gpu.hbm_bytes_per_s * mbu, weight_bytes, kv_bytes)

    def tpot(b: int) -> float:
        return max(step_parts(shape, engine, float(b), float(context_tokens)))

    w = Worked()
    pool = w.line("KV 池放得下", floor(quantity(kv_pool_tokens, digits=10) / quantity(context_tokens)))
    b_max = int(pool.value)
    used = batch or b_max
    slo = tpot_slo_ms / 1e3
    b_slo = largest_true(lambda b: tpot(b) <= slo, 1, b_max)

    count = quantity(used, digits=10)
    memory, compute = step_parts(shape, engine, float(used), float(context_tokens))
    bandwidth = w.line("有效带宽", quantity(gpu.bandwidth_gb_s, "GB/s") * quantity(mbu), "GB/s")
    weights = w.line("一步读权重", quantity(weights_read(shape, float(used)), "params") * quantity(weight_bytes, "B"), "GB")
    each = quantity(kv_request(shape, kv_bytes, float(context_tokens)) / 1e6, "MB", 6)
    w.say(f"一条的 KV → {each.text}")
    reading = w.line(f"读（batch {used}）", step_seconds(weights, w.line("一步读 KV", count * each, "GB"), bandwidth), "ms")
    w.say(f"算（batch {used}） → {quantity(1e3 * compute, 'ms', 4).text}")
    now = w.line("TPOT", larger(reading, Quantity(compute, quantity(1e3 * compute, "ms", 4).text)), "ms")
    rate = w.line("吞吐", quantity(used, "token", 10) / now, "token/s", 5)
    slo_tpot, slo_rate = (tpot(b_slo), b_slo / tpot(b_slo)) if b_slo else (None, 0.0)
    w.say(f"TPOT 不超过 {format_number(tpot_slo_ms)} ms 的最大 batch → {format_number(b_slo, digits=9)}")
    if b_slo and slo_tpot:
        w.line("守着上限的吞吐", quantity(b_slo, "token", 10) / quantity(1e3 * slo_tpot, "ms"), "token/s", 5)
    return Result(
        values={
            "b_max_kv": b_max, "b_slo": b_slo, "tok_s_slo": slo_rate, "tpot_slo_actual_ms": None if slo_tpot is None else 1e3 * slo_tpot, "tpot_ms": now,
            "tok_s": rate, "fits_pool": used <= b_max, "batch_used": used, "read_ms": 1e3 * memory, "compute_ms": 1e3 * compute,
        },
        lines=w.lines,
        verdict=_verdict(b_max, b_slo, slo_rate, used, now, rate, tpot(1), tpot_slo_ms, compute > memory),
        notes=_notes(model, gpu, weight_bytes, b_max * kv_request(shape, kv_bytes, float(context_tokens))),
        trace=Trace(shape, engine, used, b_max, b_slo),
    )  # fmt: skip


def _notes(model: Model, gpu: Accelerator, weight_bytes: float, pool_bytes: float) -> tuple[str, ...]:
    """The pool is typed, so nothing else says that weights and a full pool may not fit the card."""
    weights, room = model.total_params * weight_bytes, capacity_bytes(gpu)
    if weights + pool_bytes <= room:
        return ()
    need, have = format_number((weights + pool_bytes) / GB, digits=4), format_number(room / GB, digits=4)
    return (f"权重加放满的 KV 池要 {need} GB，这张卡只有 {have} GB：KV 池要按这个模型和卡重算（第 16 章），下面按装得下算。",)


def _verdict(b_max: int, b_slo: int, slo_rate: float, used: int, now: Quantity, rate: Quantity, alone: float, slo_ms: float, compute_bound: bool) -> str:
    promised = f"{format_number(slo_ms)} ms"
    if used > b_max:
        return f"batch {used} 放不下：KV 池只容 {b_max} 条。多出来的在队列里等，或者被抢占。"
    here = f"batch {used}：每个人 {now.text} 一个 token，合计 {rate.text}。"
    if b_slo == 0:
        return here + f"只跑一条也要 {quantity(1e3 * alone, 'ms', 4).text}，守不住 {promised}：换更快的卡、减权重字节，或放宽上限。"
    limit = "算力" if compute_bound else "带宽"
    if b_slo < b_max:
        return here + f"守 {promised} 只能开到 {b_slo}，{quantity(slo_rate, 'token/s', 5).text}：先到头的是延迟；这一步的时间花在{limit}上。"
    return here + f"放满 KV 池的 {b_max} 条也没超 {promised}：先到头的是 KV 池，不是 GPU。想再多，压 KV、加显存，或缩短上下文。"
