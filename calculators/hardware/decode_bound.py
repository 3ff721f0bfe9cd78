"""How fast can decoding be at best, when every step must read the weights and the KV cache once?"""

from __future__ import annotations

from calculators.catalog import Accelerator, Model, gpu_input, model_input
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Rule, Series
from calculators.core.errors import refuse
from calculators.core.inputs import choice, flag, integer, linear_stops, number, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.units import GB
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.decode import decode_flops, experts_touched, kv_split, moe_params_read, params_per_token, params_read, step_seconds

BATCHES = tuple(2**k for k in range(13))
"""1 … 4096, the range of the input."""


def _chart(
    run: Run, *, model: Model, gpu: Accelerator, weight_bytes: float, tp: int, batch: int, ctx: int, bw_eff: float, count_input_embedding: bool
) -> tuple[Chart, ...]:
    bandwidth = gpu.hbm_bytes_per_s * bw_eff
    split = kv_split(model, tp)

    def per_card(sequences: int) -> float:
        weights = params_read(model, sequences, count_input_embedding) * weight_bytes / tp
        return sequences / step_seconds(weights, sequences * ctx * float(model.kv_bytes_per_token) / split, bandwidth) / tp

    ceiling = gpu.dense_flops / decode_flops(float(model.active_params), 1.0, 2.0)
    room = tp * gpu.memory_bytes - model.total_params * weight_bytes
    cache = ctx * model.kv_bytes_per_token
    largest = room // cache if cache else float("inf")
    rules = [Rule(f"算力天花板 {format_number(ceiling)} token/s", y=ceiling)]
    if largest <= BATCHES[-1]:
        rules.append(Rule(f"显存到头：batch {int(largest)}", x=max(1.0, float(largest))))
    return (
        LineChart(
            "每张卡每秒出多少 token",
            "两轴都是对数。斜线是带宽允许的上限，batch 翻倍它几乎也翻倍；碰到算力天花板就到头，KV cache 越长弯得越早。",
            Axis("batch", "sequence", log=True),
            Axis("每卡吞吐上限", "token/s", log=True),
            (Series("带宽上限", tuple((float(b), per_card(b)) for b in BATCHES), emphasis=True),),
            marks=(Mark("现在", float(batch), float(run.values["tok_s_per_card"]), emphasis=True),),  # type: ignore[arg-type]
            rules=tuple(rules),
        ),
    )


@calculator(
    title="解码的带宽下界",
    question="生成一个 token，最快要多久？",
    chapter="03",
    inputs=(
        model_input(),
        gpu_input(),
        choice("weight_bytes", "每个权重的字节", 2, (0.5, 1, 2), "B", help="BF16 是 2，FP8、INT8 是 1，4 bit 是 0.5"),
        integer("batch", "batch（同时生成几条）", 1, "sequence", low=1, high=4096, stops=powers_of_two(1, 4096)),
        integer("ctx", "每条已缓存的 token", 0, "token", low=0, high=1_000_000, kind="tokens", stops=(0, *powers_of_two(512, 131072))),
        integer("tp", "张量并行卡数", 1, "card", low=1, high=64, more=True, stops=powers_of_two(1, 64)),
        number("bw_eff", "带宽利用率", 1.0, low=0.3, high=1, kind="fraction", more=True, stops=linear_stops(0.3, 1, 0.05)),
        flag("count_input_embedding", "算上输入词表", True, more=True, help="口径：是 = 全部权重，正文的算法；否 = 严格下界，词表和位置表只查一行，不用整张读"),
    ),
    outputs=(
        Output("latency_ms", "每步至少", "ms", main=True),
        Output("tok_s", "吞吐上限", "token/s", main=True, digits=5),
        Output("tok_s_per_card", "每卡吞吐上限", "token/s", digits=5),
        Output("weight_read_gb", "每步读权重", "GB", main=True, digits=5),
        Output("kv_read_gb", "每步读 KV cache", "GB"),
        Output("kv_bytes_per_token", "每 token 的 KV", "B"),
        Output("need_gb", "要占的显存", "GB", digits=5),
        Output("compute_ms", "同一步的计算要", "ms"),
        Output("params_read", "每步读到的参数", "params"),
    ),
    chart=_chart,
    formula=("每步 ≥ (权重字节 ÷ 卡数 + KV 字节 ÷ KV 能切的份数) ÷ 带宽", "token/s = batch ÷ 每步时间", "MoE：读到的专家比例 = 1 − (1 − k ÷ E)^batch"),
    assumptions=("KV cache 是 BF16，滑动窗口不计", "同一步的计算按稠密 BF16 峰值算", "KV 按 KV 头切给各卡；MLA 的潜变量每卡一份", "MoE 的路由均匀、互相独立"),
    leaves_out="不算 kernel 启动（每步 0.3–3.6 ms）、张量并行的通信（每层 2 次 all-reduce）和 attention 的计算；实测只会更慢。",
    sources=("Llama-3.1-8B 在 H100 上实测 8.4 ms，用 CUDA graph 后 5.1 ms：都在下界之上", "权重、KV 与激活参数：模型目录", "带宽：硬件目录"),
)
def decode_bound(*, model: Model, gpu: Accelerator, weight_bytes: float, batch: int, ctx: int, tp: int, bw_eff: float, count_input_embedding: bool) -> Result:
    """(weights ÷ tp + batch × ctx × KV ÷ split) ÷ bandwidth: no measurement can be below the form without look-up tables."""
    need = model.total_params * weight_bytes + batch * ctx * model.kv_bytes_per_token
    if need > tp * gpu.memory_bytes:
        size, card = format_number(need / GB), format_number(gpu.memory_gb)
        raise refuse("tp", "放不下", f"{size} GB > {tp}×{card} GB", "加卡、换显存更大的卡、减小 batch 或上下文，或用更少字节的权重")
    w = Worked()
    sequences = quantity(batch, "sequence")
    params = _params_read(w, model, batch, count_input_embedding)
    weights = w.line("每步读权重", params * quantity(weight_bytes, "B"), "GB", 5)
    kv_token = quantity(model.kv_bytes_per_token, "B")
    kv = quantity(0, "GB")
    if ctx:
        kv = w.line("每步读 KV cache", sequences * quantity(ctx, "token") * kv_token, "GB")
    split = kv_split(model, tp)
    weights_per_card = weights if tp == 1 else w.line("每张卡读权重", weights / quantity(tp, "card"), "GB")
    kv_per_card = kv if split == 1 or not ctx else w.line("每张卡读 KV", kv / quantity(split), "GB")
    bandwidth = quantity(gpu.bandwidth_gb_s, "GB/s")
    if bw_eff != 1:
        bandwidth = w.line("可用带宽", bandwidth * quantity(bw_eff), "GB/s")
    seconds = w.line("每步至少", step_seconds(weights_per_card, kv_per_card, bandwidth) if ctx else weights_per_card / bandwidth, "ms")
    rate = w.line("吞吐上限", quantity(batch, "token") / seconds, "token/s")
    per_card = rate if tp == 1 else w.line("每卡", rate / quantity(tp, "card"), "token/s")
    compute = w.line(
        "同一步的计算",
        decode_flops(quantity(model.active_params, "params"), quantity(batch), quantity(2, "FLOP")) / (quantity(tp) * quantity(gpu.dense_tflops, "TFLOPS")),
        "ms",
    )
    notes = () if ctx <= model.max_context else (f"{model.name} 最长只支持 {format_number(model.max_context)} token，这里按公式外推。",)
    return Result(
        values={
            "latency_ms": seconds, "tok_s": rate, "tok_s_per_card": per_card, "weight_read_gb": weights, "kv_read_gb": kv,
            "kv_bytes_per_token": model.kv_bytes_per_token, "need_gb": need / GB, "compute_ms": compute, "params_read": params,
        },
        lines=w.lines,
        verdict=_verdict(seconds, compute, rate, weights, kv),
        notes=notes,
    )  # fmt: skip


def _params_read(w: Worked, model: Model, batch: int, count_input_embedding: bool) -> Quantity:
    per_token = quantity(params_per_token(model, count_input_embedding), "params")
    w.line("一个 token 用到的参数" if count_input_embedding else "去掉查表的参数后", per_token, "params", 6)
    if model.moe is None or batch == 1:
        return per_token
    top_k, experts, routed = quantity(model.moe.top_k), quantity(model.moe.experts), quantity(model.moe.routed_params, "params")
    touched = w.line("被点到的专家比例", experts_touched(top_k, experts, quantity(batch)))
    return w.line("一步读到的参数", moe_params_read(per_token, routed, top_k, experts, touched), "params", 6)


def _verdict(seconds: Quantity, compute: Quantity, rate: Quantity, weights: Quantity, kv: Quantity) -> str:
    if compute.value > seconds.value:
        ceiling = quantity(rate.value * seconds.value / compute.value, "token/s", 4)
        return f"这个 batch 已经撞上算力：光计算就要 {compute.text}，比读数据的 {seconds.text} 还长，实际最多 {ceiling.text}。再加 batch 只添延迟，不添吞吐。"
    bound = f"一步至少 {seconds.text}，最多 {rate.text}；计算只要 {compute.text}，时间花在读 {weights.text} 权重上。"
    if kv.value > weights.value:
        return f"一步至少 {seconds.text}，最多 {rate.text}。KV cache（{kv.text}）比权重（{weights.text}）还多：先压 KV（第 16、18 章），再谈加 batch。"
    return bound + "想更快：换带宽更高的卡、减权重字节（第 18 章），或加大 batch 让大家分摊。"
