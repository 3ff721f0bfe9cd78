"""How much of the time does tensor parallelism spend in all-reduces, on NVLink and across machines?"""

from __future__ import annotations

from calculators.catalog import Accelerator, Model, gpu_input
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Rule, Series, Span, Timeline
from calculators.core.errors import FieldError, Refusal
from calculators.core.inputs import flag, integer, linear_stops, number, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.units import GB
from calculators.core.worked import Worked, quantity
from calculators.distributed._models import CUSTOM, model_or
from calculators.formulas.mfu import attention_core_of_width
from calculators.formulas.tensor import (
    LARGEST_TP,
    NIC_BUS_GB_S,
    Layer,
    TensorShape,
    exposed,
    layer_allreduce,
    layer_flops,
    layer_seconds,
    layer_traffic,
    link_domain,
    llama_shape,
    message_bytes,
    near,
    shape_of,
    share,
    why_illegal,
)

ONLY_CUSTOM = ("model", (CUSTOM,))
NIC = "网卡"


def _layer(shape: TensorShape, micro_batch: int, seq: int, gpu: Accelerator, compute_eff: float, alpha: float, causal: bool, overlap: float) -> Layer:
    return Layer(shape, float(micro_batch * seq), float(seq), causal, gpu.dense_flops, compute_eff, alpha * 1e-6, overlap)


def _chart(run: Run, *, gpu: Accelerator, tp: int, bus_bw: float, budget_pct: float, **_: object) -> tuple[Chart, ...]:
    layer = run.result.trace
    assert isinstance(layer, Layer)
    counts = sorted({*layer.shape.legal, tp})
    links = ((f"填的链路，{format_number(bus_bw)} GB/s", bus_bw), (f"{NIC}，{format_number(NIC_BUS_GB_S)} GB/s", NIC_BUS_GB_S))
    domain = link_domain(gpu)
    rules = [Rule(f"能接受的 {format_number(budget_pct)}%", y=budget_pct)]
    if domain < counts[-1]:
        rules.append(Rule(f"出机器（{domain} 卡）", x=float(domain)))
    return (
        LineChart(
            "卡越多，通信占比越高",
            "每张卡算的少了，要搬的几乎不变。两条线只差带宽：出了机器就落到上面那条。",
            Axis("张量并行几张卡", "card", log=True),
            Axis("通信占的时间", "%", low=0, high=100),
            tuple(Series(name, tuple((float(t), 100 * layer.share(t, bw * GB)) for t in counts), emphasis=i == 0, dashed=i == 1) for i, (name, bw) in enumerate(links)),
            marks=(Mark("现在", float(tp), 100 * layer.share(tp, bus_bw * GB), emphasis=True),),
            rules=tuple(rules),
        ),
        _one_layer(layer, tp, links),
    )  # fmt: skip


def _one_layer(layer: Layer, tp: int, links: tuple[tuple[str, float], ...]) -> Timeline:
    """The four all-reduces where they stand; backward takes twice the forward."""
    attention = layer.flops - 6 * layer.tokens * layer.shape.matrix_params
    qkvo = 2.0 * layer.shape.hidden * layer.shape.head_dim * (layer.shape.heads + layer.shape.kv_heads)
    of_attention = (attention + 6 * layer.tokens * qkvo) / layer.flops
    total = layer.computation(tp) * 1e3
    attention_ms, ffn_ms = total / 3 * of_attention, total / 3 * (1 - of_attention)
    spans = []
    for lane, (_, bandwidth) in enumerate(links):
        wait = layer.communication(tp, bandwidth * GB) * 1e3 / 4
        now = 0.0
        for length, label, tone in (
            (attention_ms, "注意力", 0), (wait, "", 2), (ffn_ms, "FFN", 0), (wait, "", 2),
            (2 * ffn_ms, "FFN", 1), (wait, "", 2), (2 * attention_ms, "注意力", 1), (wait, "", 2),
        ):  # fmt: skip
            if length > 0:
                spans.append(Span(lane, now, now + length, label, tone))
            now += length
    return Timeline(
        "一层的前向和反向",
        "四段 all-reduce 夹在计算中间，谁也绕不过去：结果没加齐，下一个矩阵乘没法开始。" if tp > 1 else "一张卡不用通信。",
        Axis("时间", "ms"),
        tuple(name.partition("，")[0] for name, _ in links),
        tuple(spans),
        ("前向", "反向", "all-reduce"),
    )


@calculator(
    title="张量并行的通信税",
    question="一层 4 次 all-reduce，占掉多少时间？几张卡还划算？",
    chapter="12",
    inputs=(
        model_or(CUSTOM, "自己填尺寸", "llama-3-70b"),
        gpu_input(),
        integer("tp", "张量并行 t", 8, "card", low=1, high=LARGEST_TP, stops=powers_of_two(1, 64)),
        integer("seq", "序列长度 s", 8192, "token", low=128, high=1e6, kind="tokens", stops=powers_of_two(512, 131072)),
        number("bus_bw", "链路，每卡单向实得", 360, "GB/s", low=5, high=1000, stops=(5, 12, 22.5, 45, 90, 180, 360, 720, 1000),
               help="H100 的 NVLink 约 360；一张 400 Gb/s 网卡约 45", range_remedy="单位是 GB/s，400 Gb/s 的网卡填 45"),
        number("budget_pct", "能接受的占比", 20, "%", low=1, high=90, stops=linear_stops(5, 50, 5)),
        integer("micro_batch", "micro-batch b", 1, "sequence", low=1, high=64, more=True, stops=powers_of_two(1, 64)),
        number("compute_eff", "矩阵乘达到峰值的", 0.6, low=0.1, high=0.95, kind="fraction", more=True, stops=linear_stops(0.3, 0.9, 0.05)),
        number("alpha", "每一跳的延迟 α", 0, "µs", low=0, high=50, more=True, stops=(0, 1, 2, 5, 10, 20, 50)),
        flag("causal", "因果掩码：注意力只算一半", True, more=True),
        number("overlap", "被藏住的比例", 0, low=0, high=1, kind="fraction", more=True, stops=linear_stops(0, 1, 0.1), help="异步 TP 切块重叠，能藏住一部分"),
        integer("hidden", "隐藏维 h", 8192, low=1, high=1e6, more=True, only_if=ONLY_CUSTOM),
        integer("layers", "层数 L", 80, "layer", low=1, high=10_000, more=True, only_if=ONLY_CUSTOM),
        integer("heads", "注意力头 a", 64, low=1, high=10_000, more=True, only_if=ONLY_CUSTOM),
        integer("kv_heads", "KV 头", 8, low=1, high=10_000, more=True, only_if=ONLY_CUSTOM),
        integer("head_dim", "每头维度 d", 128, low=1, high=10_000, more=True, only_if=ONLY_CUSTOM),
        integer("ffn", "FFN 宽度", 28672, low=1, high=1e7, more=True, only_if=ONLY_CUSTOM),
    ),
    outputs=(
        Output("share_pct", "通信占的时间", "%", main=True),
        Output("share_nic_pct", "走 45 GB/s 的网卡", "%", main=True),
        Output("max_tp_in_budget", "不超过能接受的，最多", "card", main=True),
        Output("msg_mb", "一次 all-reduce 的消息", "MB"),
        Output("allreduce_ms", "一次 all-reduce", "ms", main=True),
        Output("comm_per_layer_ms", "每层通信", "ms"),
        Output("compute_per_layer_ms", "每层计算", "ms"),
        Output("traffic_per_layer_mb", "每卡每层发出", "MB"),
        Output("traffic_step_gb", "每卡每个 micro-batch 发出", "GB"),
    ),
    chart=_chart,
    formula=(
        "消息 = 2 字节 × b × s × h；每层前向 2 次、反向 2 次 all-reduce",
        "一次 = 2(t−1)/t × 消息 ÷ 单向带宽 + 2(t−1)α",
        "每层 FLOP = b × s × (6P + 12 × a × d × s × ½)；计算 = FLOP ÷ (t × 峰值 × 效率)",
        "占比 = 通信 ÷ (通信 + 计算)",
    ),
    assumptions=("BF16 激活；带宽一律是每张卡、单向；环形算法", "P 是一层的矩阵参数，不含 norm、词表", "每一层都是整段注意力；自己填的尺寸按门控 FFN（三个矩阵）"),
    leaves_out="不算：序列并行反向里多出的一次 all-gather（Megatron 和权重梯度重叠）、矩阵切薄后的效率损失（h/t < 1024 时可能比通信还贵）、NVLS（交换机里做加法，线上字节减半）。误差：占比的 ±30%。",
    sources=("Shoeybi et al. 2019（Megatron-LM）§3：每层 2 + 2 次 all-reduce", "Korthikanti et al. 2022 §4.2.2：序列并行的 reduce-scatter + all-gather 字节相同", "环形 all-reduce：第 05 章"),
)  # fmt: skip
def tp_comm(
    *, model: Model | None, gpu: Accelerator, tp: int, seq: int, bus_bw: float, budget_pct: float, micro_batch: int, compute_eff: float, alpha: float,
    causal: bool, overlap: float, hidden: int, layers: int, heads: int, kv_heads: int, head_dim: int, ffn: int,
) -> Result:  # fmt: skip
    """Four exposed all-reduces of 2·b·s·h bytes against the layer's FLOPs on t cards."""
    shape = shape_of(model) if model is not None else llama_shape(hidden, layers, heads, kv_heads, head_dim, ffn)
    _check(shape, tp)
    plain = _layer(shape, micro_batch, seq, gpu, compute_eff, alpha, causal, overlap)
    w = Worked()
    cards, width = quantity(tp), quantity(shape.hidden)
    tokens = w.line("token", quantity(micro_batch) * quantity(seq, "token"), "token", 6) if micro_batch > 1 else quantity(seq, "token")
    message = w.line("消息", message_bytes(tokens, width, quantity(2, "B")), "MB")
    cost = layer_allreduce(cards, message, quantity(bus_bw, "GB/s"), quantity(alpha, "µs"))
    wire = w.line("搬字节" if alpha else "一次 all-reduce", cost.wire, "ms")
    one = w.line("一次 all-reduce", wire + w.line("延迟", cost.latency, "ms"), "ms") if alpha else wire
    comm = w.line("每层通信，4 次", exposed(one, quantity(overlap)), "ms")
    matrices = w.line("每层的矩阵参数", quantity(shape.matrix_params, "params"), "params", 6)
    core = w.line("注意力 q", attention_core_of_width(quantity(1), quantity(shape.width), quantity(seq), causal), "", 6)
    flops = w.line("每层 FLOP", layer_flops(tokens, matrices, core), "FLOP")
    compute = w.line("每层计算", layer_seconds(flops, cards, quantity(gpu.dense_tflops, "TFLOPS"), quantity(compute_eff)), "ms")
    part = w.line("通信占比", share(comm, compute), "%")
    traffic = w.line("每卡每层发出", layer_traffic(cards, message), "MB")
    step = w.line("全部层", traffic * quantity(shape.layers), "GB")
    nic = 100 * plain.share(tp, NIC_BUS_GB_S * GB)
    largest = plain.largest_within(budget_pct / 100, bus_bw * GB)
    w.say(f"同样的式子，带宽换成 {format_number(NIC_BUS_GB_S)} GB/s → {format_number(nic)}%")
    w.say(f"合法的 t 逐个试，不超过 {format_number(budget_pct)}% 的最大一个 → {largest} 卡")
    percent = 100 * part.value
    return Result(
        values={
            "share_pct": part, "share_nic_pct": nic, "max_tp_in_budget": largest, "msg_mb": message, "allreduce_ms": one, "comm_per_layer_ms": comm,
            "compute_per_layer_ms": compute, "traffic_per_layer_mb": traffic, "traffic_step_gb": step,
        },
        lines=w.lines,
        verdict=_verdict(tp, percent, nic, budget_pct, largest, bus_bw),
        notes=_notes(model, gpu, tp, bus_bw, nic),
        trace=plain,
    )  # fmt: skip


def _check(shape: TensorShape, tp: int) -> None:
    """Raises Refusal."""
    reason = f"{shape.heads} 个头不能平均分给 {tp} 张卡" if shape.heads % tp else why_illegal(shape.heads, shape.kv_heads, shape.ffn, tp)
    if reason:
        raise Refusal((FieldError("tp", f"{reason}，可取 {near(shape.legal, tp)}"),))


def _verdict(tp: int, percent: float, nic: float, budget: float, largest: int, bus_bw: float) -> str:
    if tp == 1:
        return f"一张卡不用通信。按这条链路，占比不超过 {format_number(budget)}% 最多开到 {largest} 张卡。"
    said = f"{tp} 张卡，{format_number(percent, digits=3)}% 的时间在等 all-reduce"
    across = f"换成 {format_number(NIC_BUS_GB_S)} GB/s 的网卡是 {format_number(nic, digits=3)}%" if bus_bw != NIC_BUS_GB_S else "这就是出机器的价钱"
    if percent <= budget:
        room = "，再多就超了" if largest == tp else f"，最多能到 {largest} 张"
        return f"{said}，在能接受的 {format_number(budget)}% 以内{room}。{across}。"
    back = "这条链路上别开张量并行" if largest == 1 else f"要守住就退到 {largest} 张卡"
    return f"{said}，超过能接受的 {format_number(budget)}%：{back}。{across}。"


def _notes(model: Model | None, gpu: Accelerator, tp: int, bus_bw: float, nic: float) -> tuple[str, ...]:
    notes = []
    if tp > link_domain(gpu):
        notes.append(
            f"{gpu.name} 的高速互联按 {link_domain(gpu)} 张卡一台算，{tp} 张要出机器：该看 {format_number(NIC_BUS_GB_S)} GB/s 那一栏，{format_number(nic)}%。"
        )
    if bus_bw > gpu.link_gb_s_per_dir:
        notes.append(f"{gpu.name} 的互联单向只有 {format_number(gpu.link_gb_s_per_dir)} GB/s，{format_number(bus_bw)} 到不了：是不是填了双向的和？")
    if model is not None and model.sliding_window is not None:
        notes.append(f"{model.name} 有滑动窗口的层，长序列上注意力比这里算的少，通信占比更高。")
    return tuple(notes)
