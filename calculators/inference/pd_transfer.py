"""Prefill on one pool of cards, decoding on another: what does moving the KV cache cost, and how many of each are needed?"""

from __future__ import annotations

from dataclasses import dataclass

from calculators.catalog import Accelerator, Model, gpu_input, model_input
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Series
from calculators.core.errors import refuse
from calculators.core.inputs import integer, linear_stops, log_stops, number, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.units import GB, MB
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.inference import Engine, Shape, prefill_seconds, shape_of, step_parts

PROMPTS = tuple(128.0 * 2**k for k in range(11))


@dataclass(frozen=True)
class Trace:
    """What the chart samples; no shape: only the KV is priced."""

    shape: Shape | None
    engine: Engine
    kv_token: int


def _chart(run: Run, *, prompt_tokens: int, link_gbit_s: float, **_: object) -> tuple[Chart, ...]:
    t = run.result.trace
    assert isinstance(t, Trace)
    moved = float(run.values["transfer_ms"])  # type: ignore[arg-type]
    series = [Series("搬 KV", tuple((s, 1e3 * 8 * t.kv_token * s / (link_gbit_s * GB)) for s in PROMPTS), emphasis=True)]
    if t.shape is not None:
        shape = t.shape
        series.append(Series("prefill", tuple((s, 1e3 * prefill_seconds(shape, t.engine, 1.0, s)) for s in PROMPTS)))
    return (
        LineChart(
            "搬 KV 和 prefill，谁更慢",
            "两轴都是对数。两条线几乎平行：提示再长，比例也差不多，直到 attention 的平方项抬起 prefill。",
            Axis("提示长度", "token", log=True),
            Axis("时间", "ms", log=True),
            tuple(series),
            (Mark("现在", float(prompt_tokens), moved, emphasis=True),) if moved > 0 else (),
        ),
    )


@calculator(
    title="PD 分离划不划算",
    question="prefill 和解码分开放：KV 搬一趟多久，要多宽的网，两边各配几份？",
    chapter="20",
    inputs=(
        model_input("llama-3-70b"),
        integer("prompt_tokens", "提示长度", 2048, "token", low=1, high=1_000_000, kind="tokens", stops=powers_of_two(128, 131072)),
        integer("output_tokens", "输出长度", 256, "token", low=1, high=100_000, kind="tokens", more=True, stops=powers_of_two(16, 8192)),
        integer("batch", "解码 batch", 64, low=1, high=4096, more=True, stops=powers_of_two(1, 1024)),
        integer("n_gpu_per_side", "每侧每份几张卡", 4, "卡", low=1, high=64, more=True, stops=powers_of_two(1, 64)),
        gpu_input(),
        number("link_gbit_s", "链路带宽", 400, "Gb/s", low=1, high=1e5, stops=(10, 25, 50, 100, 200, 400, 800, 1600, 3600), help="NVLink 450 GB/s 单向填 3600"),
        number("rate_per_s", "请求率", 10, "request/s", low=0.01, high=1e5, stops=log_stops(1, 1000, 4)),
        number("mfu", "算力利用率", 0.5, low=0.05, high=1, kind="fraction", more=True, stops=linear_stops(0.05, 1, 0.05)),
        number("mbu", "带宽利用率", 0.8, low=0.05, high=1, kind="fraction", more=True, stops=linear_stops(0.05, 1, 0.05)),
        integer("kv_bytes_per_token", "每 token 的 KV", 0, "B", low=0, high=100_000_000, more=True, help="0：按模型算（16 位）"),
    ),
    outputs=(
        Output("kv_mb", "要搬的 KV", "MB", main=True),
        Output("transfer_ms", "搬一趟", "ms", main=True),
        Output("prefill_ms", "prefill", "ms"),
        Output("transfer_share_pct", "搬运 ÷ prefill", "%", main=True),
        Output("required_gbit_s", "要的带宽", "Gb/s", main=True),
        Output("prefill_req_s", "一份 prefill 的速率", "request/s"),
        Output("decode_req_s", "一份解码的速率", "request/s"),
        Output("decode_step_ms", "解码一步", "ms"),
        Output("prefill_decode_ratio", "每份解码配几份 prefill", "×", main=True),
    ),
    chart=_chart,
    formula=("要搬的 KV = 每 token 的 KV × 提示长度；搬一趟 = 8 × KV ÷ 链路", "要的带宽 = 8 × KV × 请求率", "prefill 速率 = 1 ÷ prefill；解码速率 = batch ÷ (输出 × 一步)", "配比 = 解码速率 ÷ prefill 速率"),
    assumptions=("prefill 一次一条；解码的一步按输出过半时的上下文算", "每份的卡合起来用：算力、带宽都乘卡数"),
    leaves_out="不算逐层重叠（能藏掉大半搬运），也不算 RDMA 里一页页的碎片。",
    sources=("两阶段的时间：第 15 章", "Zhong et al. 2024（DistServe）§3.3：KV 的带宽账"),
)  # fmt: skip
def pd_transfer(
    *, model: Model, prompt_tokens: int, output_tokens: int, batch: int, n_gpu_per_side: int, gpu: Accelerator, link_gbit_s: float, rate_per_s: float,
    mfu: float, mbu: float, kv_bytes_per_token: int,
) -> Result:  # fmt: skip
    """Bytes over the link; prefill and decode rates of one instance each."""
    kv_token = kv_bytes_per_token or model.kv_bytes_per_token
    if not kv_token:
        raise refuse("kv_bytes_per_token", "这个模型没有按 token 增长的 KV", model.name, "手填每 token 的字节，或换模型")
    w = Worked()
    kv = w.line("要搬的 KV", quantity(kv_token, "B", 12) * quantity(prompt_tokens, "", 12), "MB", 6)
    bits = quantity(8 * kv.value / GB, "", 6)
    w.say(f"折成比特（× 8） → {bits.text} Gb")
    transfer = quantity(8 * kv.value / (link_gbit_s * GB) * 1e3, "ms", 5)
    required = quantity(8 * kv.value * rate_per_s / GB, "Gb/s", 5)
    w.say(f"搬一趟：{bits.text} Gb ÷ {format_number(link_gbit_s)} Gb/s → {transfer.text}")
    w.say(f"要的带宽：{bits.text} Gb × {format_number(rate_per_s)}/s → {required.text}")
    engine = Engine(n_gpu_per_side * gpu.dense_flops * mfu, n_gpu_per_side * gpu.hbm_bytes_per_s * mbu, 2.0, 2.0)
    values: dict[str, float | Quantity | None] = {"kv_mb": kv.value / MB, "transfer_ms": transfer, "required_gbit_s": required}
    names = ("prefill_ms", "transfer_share_pct", "prefill_req_s", "decode_req_s", "decode_step_ms", "prefill_decode_ratio")
    if not model.is_dense or model.mla is not None:
        verdict = _kv_verdict(kv, transfer, required, link_gbit_s)
        notes: tuple[str, ...] = ("MoE/MLA 的算力账不在这里：只算 KV。",)
        return Result({**values, **dict.fromkeys(names)}, w.lines, verdict, notes=notes, trace=Trace(None, engine, kv_token))
    shape = shape_of(model)
    context = prompt_tokens + output_tokens / 2
    prefill = quantity(1e3 * prefill_seconds(shape, engine, 1.0, float(prompt_tokens)), "ms", 6)
    step = quantity(1e3 * max(step_parts(shape, engine, float(batch), context)), "ms", 6)
    w.say(f"prefill（{n_gpu_per_side} 张卡） → {prefill.text}")
    w.say(f"解码一步（batch {batch}，上下文 {format_number(context)}） → {step.text}")
    share = w.line("搬运 ÷ prefill", transfer / prefill, "%")
    prefill_rate = w.line("一份 prefill", quantity(1, "request") / prefill, "request/s")
    decode_rate = w.line("一份解码", quantity(batch, "request") / (quantity(output_tokens) * step), "request/s")
    ratio = w.line("配比", decode_rate / prefill_rate, "×")
    values |= dict(zip(names, (prefill, share.value * 100, prefill_rate, decode_rate, step, ratio), strict=True))
    verdict = (
        _kv_verdict(kv, transfer, required, link_gbit_s) + f"搬运是 prefill 的 {share.text}；每份解码配 {format_number(ratio.value, digits=4)} 份 prefill。"
    )
    return Result(
        values,
        w.lines,
        verdict,
        notes=_crowded(model, gpu, n_gpu_per_side, batch * kv_token * (prompt_tokens + output_tokens)),
        trace=Trace(shape, engine, kv_token),
    )


def _crowded(model: Model, gpu: Accelerator, cards: int, kv_bytes: float) -> tuple[str, ...]:
    """The rates assume that weights and the batch's KV fit; say so when they do not."""
    need, have = model.total_params * 2 + kv_bytes, cards * gpu.memory_bytes
    if need <= have:
        return ()
    return (
        f"解码那一侧放不下：权重加这个 batch 的 KV 要 {format_number(need / GB, digits=4)} GB，{cards} 张卡只有 {format_number(have / GB)} GB。加卡，或减 batch。",
    )


def _kv_verdict(kv: Quantity, transfer: Quantity, required: Quantity, link: float) -> str:
    head = f"一条请求搬 {kv.text}，要 {transfer.text}；"
    if required.value > link * GB:
        return head + f"合计要 {required.text}，超过链路的 {format_number(link)} Gb/s：加链路、减 KV，或别分。"
    return head + f"合计要 {required.text}，链路够。"
