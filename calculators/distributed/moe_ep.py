"""Expert parallelism: what the all-to-all carries per token and layer, and whether the arithmetic can hide it."""

from __future__ import annotations

from dataclasses import dataclass

from calculators.catalog import Model
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Bar, BarChart, Chart, LineChart, Mark, Part, Series
from calculators.core.errors import refuse
from calculators.core.inputs import choice, integer, linear_stops, number, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.units import GB
from calculators.core.worked import Quantity, Worked, quantity
from calculators.distributed._models import CUSTOM, model_or
from calculators.formulas.experts import layer_flops, leaving_share, routed_params, same_cost_experts, token_bytes

ELEMENTS = {"1": "1：FP8", "2": "2：BF16"}
DEFAULTS = {"h": 7168, "moe_ffn": 2048, "top_k": 8, "n_shared": 1, "n_experts": 256, "layers_moe": 58, "attn_flops": 374210560.0}
"""DeepSeek-V3's, taken for a field that stays empty when there is no model."""


@dataclass(frozen=True)
class Dims:
    """The layer in use: the model's, with the typed values in place."""

    h: int
    moe_ffn: int
    top_k: int
    n_shared: int
    n_experts: int
    layers_moe: int
    attn_flops: float


def _of(model: Model | None) -> dict[str, int | float]:
    if model is None:
        return dict(DEFAULTS)
    moe = model.moe
    if moe is None:
        raise refuse("model", "模型要有专家", model.name, "稠密模型用 parallel-plan")
    attention = 2 * model.breakdown["attention"] / model.layers
    return {
        "h": model.hidden, "moe_ffn": moe.ffn, "top_k": moe.top_k, "n_shared": moe.shared, "n_experts": moe.experts,
        "layers_moe": model.layers - moe.dense_layers, "attn_flops": attention,
    }  # fmt: skip


@dataclass(frozen=True)
class Trace:
    """Bytes over InfiniBand and arithmetic, per token and layer."""

    dims: Dims
    flops: float
    nodes: int
    bytes_each: float
    """One copy out and back: h × (dispatch + combine)."""


def _chart(run: Run, *, inter_bw: float, node_limit: int, peak: float, eff: float, **_: object) -> tuple[Chart, ...]:
    trace = run.result.trace
    assert isinstance(trace, Trace)
    comm, compute = (float(run.values[name]) for name in ("comm_us", "compute_us"))  # type: ignore[arg-type]
    overlapped = max(comm, compute)
    bars = (
        Bar("先搬再算", (Part("计算", compute), Part("all-to-all", comm)), f"{format_number(comm + compute)} µs"),
        Bar("叠着跑，最好的情况", (Part("计算", compute), Part("藏不住的", overlapped - compute)), f"{format_number(overlapped)} µs", emphasis=True),
    )
    charts: list[Chart] = [BarChart("一个 token、一层", "叠得再好，也快不过两者里慢的那个。", Axis("时间", "µs"), bars)]
    if trace.nodes > 1:
        limits = range(1, trace.nodes + 1)
        curve = tuple((float(m), m * trace.bytes_each / (inter_bw * GB) * 1e6) for m in limits)
        marks = (Mark("现在", float(min(node_limit, trace.nodes)), comm, emphasis=True),) if node_limit else ()
        level = tuple((float(m), compute) for m in limits)
        charts.append(
            LineChart(
                "一个 token 最多去几台机器",
                "每台只收一份，到了再走 NVLink 分给专家：去的机器越少，搬的越少。降到计算那条线以下才藏得住。",
                Axis("机器", "台", low=0), Axis("时间", "µs", low=0),
                (Series("all-to-all", curve, emphasis=True), Series("计算", level, dashed=True)),
                marks=marks,
            )
        )  # fmt: skip
    return tuple(charts)


@calculator(
    title="专家并行的 all-to-all",
    question="一个 token 在一层里要搬多少字节去找专家？计算藏得住吗？",
    chapter="14",
    inputs=(
        model_or(CUSTOM, "自己填", "deepseek-v3", where=lambda m: m.moe is not None, help="有专家的模型"),
        integer("node_limit", "最多去几台", 4, "台", low=0, high=64, stops=(0, 1, 2, 3, 4, 6, 8, 16), help="0：不限，每个专家各发一份"),
        choice("dispatch_bytes", "派发，每个元素", 1, (1, 2), "B", labels=ELEMENTS),
        choice("combine_bytes", "收回，每个元素", 2, (1, 2), "B", labels=ELEMENTS),
        number("inter_bw", "网卡，每卡单向", 50, "GB/s", low=1, high=200, stops=(12.5, 25, 40, 45, 50, 80, 100, 200)),
        number("peak", "峰值，稠密", 1979, "TFLOPS", low=10, high=20_000, stops=(148, 296, 312, 989, 1979, 2250, 4500), help="专家用 FP8 算就填 FP8 的"),
        number("eff", "算力用上几成", 0.5, low=0.05, high=1, kind="fraction", more=True, stops=linear_stops(0.1, 1, 0.1)),
        number("intra_bw", "NVLink，每卡单向", 160, "GB/s", low=1, high=1000, more=True, stops=(80, 160, 180, 360, 450, 720, 900), help="H800 实际能用的"),
        integer("gpus_per_node", "一台几卡", 8, "card", low=1, high=72, more=True, stops=(1, 2, 4, 8, 16, 32, 64, 72)),
        integer("ep", "专家并行 ep", 64, "card", low=1, high=4096, more=True, stops=powers_of_two(1, 256)),
        integer("pp", "流水段数 pp", 16, low=1, high=256, more=True, stops=powers_of_two(1, 64)),
        integer("h", "隐藏维 h", None, low=128, high=65_536, more=True, help="留空用模型的"),
        integer("moe_ffn", "专家的 FFN 宽度", None, low=128, high=65_536, more=True, help="留空用模型的"),
        integer("top_k", "每 token 选几个", None, low=1, high=1024, more=True, help="留空用模型的"),
        integer("n_shared", "共享专家", None, low=0, high=64, more=True, help="留空用模型的"),
        integer("n_experts", "路由专家", None, low=1, high=4096, more=True, help="留空用模型的"),
        integer("layers_moe", "几层有专家", None, "layer", low=1, high=1000, more=True, help="留空用模型的"),
        number("attn_flops", "注意力的投影，每 token 每层", None, "FLOP", low=0, high=1e12, more=True, help="留空：2 × 每层的 attention 参数"),
    ),
    outputs=(
        Output("bytes_per_token", "走网卡，每 token 每层", "B", main=True),
        Output("bytes_unlimited", "不限去几台的话", "B"),
        Output("dispatch_unlimited_kib", "派发，每个专家一份", "KiB"),
        Output("combine_unlimited_kib", "收回，每个专家一份", "KiB"),
        Output("comm_us", "all-to-all", "µs", main=True),
        Output("compute_us", "计算", "µs", main=True),
        Output("comm_over_compute", "通信 ÷ 计算", "×", main=True),
        Output("slowdown_no_overlap", "不重叠，要几倍的时间", "×", main=True),
        Output("experts_same_ib_cost", "同样的网卡流量，最多选几个专家"),
        Output("routed_params_b", "路由专家，一共", "1e9"),
        Output("expert_params_per_gpu_b", "路由专家，每卡", "1e9"),
    ),
    chart=_chart,
    formula=(
        "限 M 台：字节 = M × h × (派发 + 收回)；每台只发一份，到了再走 NVLink 分",
        "不限：字节 = top_k × h × (派发 + 收回) × (1 − 1/机器数)；机器数 = ⌈ep ÷ 一台几卡⌉",
        "计算 = [2 × (top_k + 共享) × 3·h·ffn + 注意力投影] ÷ (峰值 × 几成)",
        "同样的网卡流量能选的专家 = ⌈M × NVLink ÷ 网卡⌉",
    ),
    assumptions=("前向；token 均匀地散到各台；限 M 台时 M 台都算远程，是上限", "专家是门控 FFN，三个矩阵"),
    leaves_out="不算注意力的核心（长序列上计算会更多，更好藏）、NVLink 那一跳、每条消息的延迟、路由不均（见 moe-balance-lab）。误差：±30%。",
    sources=("DeepSeek-V3 技术报告 §3.2.2：每 token 最多 4 台，派发 FP8、收回 BF16；NVLink 160、IB 50 GB/s",),
)  # fmt: skip
def moe_ep(
    *, model: Model | None, h: int | None, moe_ffn: int | None, top_k: int | None, n_shared: int | None, n_experts: int | None, dispatch_bytes: int,
    combine_bytes: int, node_limit: int, inter_bw: float, intra_bw: float, peak: float, eff: float, attn_flops: float | None, gpus_per_node: int, ep: int,
    pp: int, layers_moe: int | None,
) -> Result:  # fmt: skip
    """Bytes over InfiniBand against the forward FLOP of one token in one MoE layer."""
    given = {"h": h, "moe_ffn": moe_ffn, "top_k": top_k, "n_shared": n_shared, "n_experts": n_experts, "layers_moe": layers_moe, "attn_flops": attn_flops}
    taken = {**_of(model), **{name: value for name, value in given.items() if value is not None}}
    d = Dims(**taken)  # type: ignore[arg-type]
    _check(d, ep)
    nodes = -(-ep // gpus_per_node)
    w = Worked()
    w.say(f"{ep} 路专家并行，一台 {gpus_per_node} 卡 → {nodes} 台")
    width, copies = quantity(d.h), quantity(d.top_k)
    each = quantity(dispatch_bytes, "B") + quantity(combine_bytes, "B")
    dispatch = w.line("派发，每个专家一份", token_bytes(copies, width, quantity(dispatch_bytes, "B")), "B", 6)
    combine = w.line("收回，每个专家一份", token_bytes(copies, width, quantity(combine_bytes, "B")), "B", 6)
    unlimited = w.line("其中走网卡的", (dispatch + combine) * leaving_share(quantity(nodes)), "B", 6)
    places = min(node_limit, nodes) if nodes > 1 else 0
    sent = w.line("限了台数，走网卡的", token_bytes(quantity(places), width, each), "B", 6) if node_limit else unlimited
    comm = w.line("all-to-all", sent / quantity(inter_bw, "GB/s"), "µs")
    flops = w.line(
        "一个 token 一层",
        layer_flops(quantity(2, "FLOP"), copies + quantity(d.n_shared), width, quantity(d.moe_ffn), quantity(d.attn_flops / 1e6, "MFLOP")), "GFLOP",
    )  # fmt: skip
    compute = w.line("计算", flops / (quantity(peak, "TFLOPS") * quantity(eff)), "µs")
    ratio = w.line("通信 ÷ 计算", comm / compute, "×")
    slow = w.line("不重叠，要几倍的时间", 1 + ratio, "×")
    same = (
        w.line("同样的网卡流量，最多选", same_cost_experts(quantity(node_limit), quantity(intra_bw, "GB/s"), quantity(inter_bw, "GB/s")))
        if node_limit
        else None
    )
    routed = w.line("路由专家的参数", routed_params(quantity(d.layers_moe), quantity(d.n_experts), width, quantity(d.moe_ffn)), "params")
    mine = w.line("每卡", routed / (quantity(ep) * quantity(pp)), "params")
    return Result(
        values={
            "bytes_per_token": round(sent.value), "bytes_unlimited": unlimited, "dispatch_unlimited_kib": dispatch.value / 1024, "combine_unlimited_kib": combine.value / 1024,
            "comm_us": comm, "compute_us": compute, "comm_over_compute": ratio, "slowdown_no_overlap": slow,
            "experts_same_ib_cost": None if same is None else round(same.value), "routed_params_b": routed.value / 1e9, "expert_params_per_gpu_b": mine.value / 1e9,
        },
        lines=w.lines,
        verdict=_verdict(ratio, comm, compute, sent, unlimited, nodes, node_limit),
        notes=_notes(node_limit, nodes, d),
        resolved={name: value for name, value in taken.items() if given[name] is None},
        trace=Trace(d, flops.value, nodes, each.value * d.h),
    )  # fmt: skip


def _check(d: Dims, ep: int) -> None:
    if d.top_k > d.n_experts:
        raise refuse("top_k", "每 token 选的专家不能比专家还多", f"{d.top_k} > {d.n_experts}", f"最多 {d.n_experts}")
    if d.n_experts % ep:
        fits = [k for k in range(1, min(d.n_experts, 4096) + 1) if d.n_experts % k == 0]
        nearest = sorted(sorted(fits, key=lambda k: abs(k - ep))[:4])
        raise refuse("ep", "专家数不能被 EP 整除", f"{d.n_experts} / {ep}", f"可取 {'、'.join(map(str, nearest))}")


def _verdict(ratio: Quantity, comm: Quantity, compute: Quantity, sent: Quantity, unlimited: Quantity, nodes: int, node_limit: int) -> str:
    if nodes == 1:
        return f"专家都在一台机器里，不走网卡：一层只要算 {compute.text}，all-to-all 走 NVLink。"
    said = f"每 token 每层走网卡 {sent.text}，{comm.text}；计算 {compute.text}。"
    saved = f"不限台数是 {unlimited.text}。" if node_limit and unlimited.value > sent.value else ""
    if ratio.value > 1:
        left = format_number(100 * (1 - compute.value / comm.value), digits=2)
        return said + f"通信是计算的 {ratio.text}：不重叠要慢到 {format_number(1 + ratio.value, digits=3)} 倍，全叠上也有 {left}% 的时间在等。" + saved
    return said + f"通信是计算的 {ratio.text}：叠得好就全藏住，不重叠要慢到 {format_number(1 + ratio.value, digits=3)} 倍。" + saved


def _notes(node_limit: int, nodes: int, d: Dims) -> tuple[str, ...]:
    if node_limit > nodes > 1:
        return (f"一共 {nodes} 台，限 {node_limit} 台等于没限：按 {nodes} 台都要收一份算，是上限。",)
    if d.top_k < node_limit <= nodes:
        return (f"每 token 只选 {d.top_k} 个专家，到不了 {node_limit} 台：这里按上限算。",)
    return ()
