"""A sequence too long for one card: what each card keeps, receives and computes when the tokens are cut over c cards."""

from __future__ import annotations

from dataclasses import dataclass

from calculators.catalog import Accelerator, Model, gpu_input, model_input
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Bar, BarChart, Chart, Grid, LineChart, Part, Series
from calculators.core.errors import refuse
from calculators.core.inputs import choice, flag, integer, linear_stops, number, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.context import (
    attention_forward_flops,
    contiguous_efficiency,
    contiguous_imbalance,
    contiguous_work,
    exchanged_bytes,
    gathered_bytes,
    kv_bytes,
    paired_chunks,
)
from calculators.formulas.mfu import attention_core_of_width
from calculators.formulas.tensor import kv_heads_per_gpu, layer_seconds, near

METHODS = {"allgather": "all-gather：先收齐 K、V", "ring": "ring：K、V 绕一圈，边收边算", "ulysses": "Ulysses：换成按头切"}
ELEM_BYTES = 2
MOST_DRAWN = 16
"""Ranks whose part of the mask is drawn."""


@dataclass(frozen=True)
class Trace:
    paired: bool


def _chart(run: Run, *, cp: int, method: str, balanced: bool, **_: object) -> tuple[Chart, ...]:
    comm, compute = (float(run.values[name]) for name in ("comm_ms", "attn_compute_ms"))  # type: ignore[arg-type]
    times = BarChart(
        "一层前向：收 K、V 和算注意力" if method != "ulysses" else "一层前向：换头和算注意力",
        "ring 一边收一边算，短的藏在长的后面。all-gather 先收齐再算，要露出来，比注意力短得多就不碍事。Ulysses 先换完才能算，两段相加。",
        Axis("时间", "ms"),
        (
            Bar("通信", (Part("通信", comm),), f"{format_number(comm)} ms"),
            Bar("注意力", (Part("计算", compute),), f"{format_number(compute)} ms", emphasis=True),
        ),
    )
    if cp == 1 or method == "ulysses":
        return (times,)
    ranks = [float(r) for r in range(cp)]
    work = LineChart(
        "因果掩码下，谁干得多",
        "连续切：排在后面的要看前面所有的 K，最后一卡干将近两倍。首尾配对：人人一样。",
        Axis("第几卡"),
        Axis("是平均的几倍", "×", low=0),
        (
            Series("连续切", tuple((r, contiguous_work(r, float(cp))) for r in ranks), emphasis=not balanced, dashed=balanced),
            Series("首尾配对", tuple((r, 1.0) for r in ranks), emphasis=balanced, dashed=not balanced),
        ),
    )
    return (times, work, _mask(cp, balanced)) if cp <= MOST_DRAWN else (times, work)


def _mask(cp: int, balanced: bool) -> Grid:
    """The causal mask in 2c × 2c blocks; a row of blocks belongs to the card that holds those queries."""
    chunks = 2 * cp
    owner = [0] * chunks
    for rank in range(cp):
        for chunk in paired_chunks(rank, cp) if balanced else (2 * rank, 2 * rank + 1):
            owner[chunk] = rank
    cells = tuple(tuple(float(owner[i] + 1) if j <= i else None for j in range(chunks)) for i in range(chunks))
    names = tuple(f"卡 {owner[i]}" for i in range(chunks))
    desc = "一行是一段 query，一列是一段 key，空白被掩码挡掉。颜色是哪张卡。" + ("每张卡一短一长两行，加起来一样。" if balanced else "下面的卡两行都长。")
    return Grid("掩码的每一行归谁算", desc, names, ("",) * chunks, cells, low=0, high=float(cp))


@calculator(
    title="长上下文怎么切",
    question="一条长序列切到 c 张卡：每卡多少 token，K、V 搬多少，藏得住吗，切匀了吗？",
    chapter="14",
    inputs=(
        model_input("llama-3.1-405b"),
        integer("seq", "序列长度", 131_072, "token", low=128, high=4_000_000, kind="tokens", stops=powers_of_two(2048, 2_097_152)),
        integer("cp", "上下文并行 c", 16, "card", low=1, high=64, stops=powers_of_two(1, 64)),
        choice("method", "怎么搬", "allgather", tuple(METHODS), labels=METHODS),
        flag("balanced", "首尾配对", True, help="切 2c 段，第 i 卡拿第 i 段和倒数第 i 段"),
        integer("tp", "张量并行 tp", 8, "card", low=1, high=72, more=True, stops=powers_of_two(1, 64)),
        number("bus_bw", "链路，每卡单向实得", 45, "GB/s", low=1, high=1000, stops=(5, 12, 22.5, 45, 50, 90, 180, 360), help="cp 跨机走网卡；留在机内填 NVLink 的 360"),
        gpu_input(more=True),
        number("compute_eff", "算力用上几成", 0.6, low=0.05, high=1, kind="fraction", more=True, stops=linear_stops(0.1, 1, 0.1)),
    ),
    outputs=(
        Output("tokens_per_gpu", "每卡 token", "token"),
        Output("kv_layer_mb", "一层的 K、V，整条序列", "MB"),
        Output("traffic_layer_mb", "每卡每层收到", "MB", main=True),
        Output("comm_ms", "收完要", "ms", main=True),
        Output("attn_compute_ms", "一层的注意力", "ms", main=True),
        Output("hidden", "比注意力短，叠得住", main=True),
        Output("imbalance", "最忙的一卡，是平均的", "×", main=True),
        Output("imbalance_contiguous", "连续切的话", "×"),
        Output("efficiency_contiguous_pct", "连续切的效率", "%"),
        Output("attn_share_of_6n_pct", "注意力，在 6N 之外再加", "%"),
    ),
    chart=_chart,
    formula=(
        "K、V = 4 字节 × s × d × 每卡 KV 头；收到其中的 (c − 1)/c",
        "Ulysses 收到 2 字节 × s × d × (2·a + 2·kv)/(tp·c) × (c − 1)/c：Q、输出、K、V 各换一次，KV 头不足一个就复制",
        "注意力 = 4 × (s/c) × s × a·d × ½ ÷ (tp × 峰值 × 几成)",
        "因果、连续切：最后一卡干 (2c − 1)/c 倍，效率 c/(2c − 1)",
    ),
    assumptions=("BF16，一层的一次前向；因果掩码，注意力只算一半", "叠得住 = 收得比算得快；all-gather 常常先收后算（Llama 3），那就不叠", "KV 头比 tp 少就复制，每卡至少一个"),
    leaves_out="不算反向再收一遍、块切小以后 kernel 变慢、每一步的延迟。藏不藏得住差 ±30%。",
    sources=("Llama 3 报告 §3.3.2：all-gather K、V，2c 段首尾配对", "Jacobs et al. 2023（DeepSpeed-Ulysses）、Liu et al. 2023（ring attention）：凭记忆，没有对过原文"),
)  # fmt: skip
def context_parallel(*, model: Model, gpu: Accelerator, seq: int, cp: int, tp: int, bus_bw: float, method: str, balanced: bool, compute_eff: float) -> Result:
    """Bytes of K and V (or of four all-to-alls) against the causal attention of one layer."""
    _check(model, seq, cp, tp, method, balanced)
    w = Worked()
    cards, split = quantity(cp), quantity(tp)
    length, head = quantity(seq, "token"), quantity(model.head_dim)
    mine = w.line("每卡 token", length / cards, "token", 6)
    heads = quantity(kv_heads_per_gpu(model.kv_heads, tp))
    kv = w.line("一层的 K、V，整条序列", kv_bytes(length, head, heads, quantity(ELEM_BYTES, "B")), "MB")
    arrives = gathered_bytes(cards, kv)
    if method == "ulysses":
        queries = quantity(model.heads / (tp * cp))
        kept = quantity(max(1.0, model.kv_heads / (tp * cp)))
        w.say(f"换过之后，每卡 query 头 → {queries.text}，KV 头 → {kept.text}")
        arrives = exchanged_bytes(cards, length, head, queries, kept, quantity(ELEM_BYTES, "B"))
    traffic = w.line("每卡每层收到", arrives, "MB")
    comm = w.line("收完要", traffic / quantity(bus_bw, "GB/s"), "ms")
    q = w.line("每 token 每层的注意力 q", attention_core_of_width(quantity(1), quantity(model.heads * model.head_dim), quantity(seq), causal_half=True), "", 6)
    flops = w.line("每卡组的一层注意力", attention_forward_flops(mine, q, quantity(4, "FLOP")), "TFLOP")
    compute = w.line("一层的注意力", layer_seconds(flops, split, quantity(gpu.dense_tflops, "TFLOPS"), quantity(compute_eff)), "ms")
    contiguous = w.line("因果、连续切，最忙的一卡", contiguous_imbalance(cards), "×")
    efficiency = w.line("连续切的效率", contiguous_efficiency(cards), "%")
    layers = quantity(model.kv_layers or model.layers)
    core = w.line("各层的 q", layers * q, "", 6)
    share = w.line("注意力，在 6N 之外再加", quantity(12, "FLOP") * core / (quantity(6, "FLOP") * quantity(model.active_params, "params")), "%")
    even = balanced or cp == 1 or method == "ulysses"
    imbalance = quantity(1, "×") if even else contiguous
    hidden = method != "ulysses" and comm.value <= compute.value
    return Result(
        values={
            "tokens_per_gpu": seq // cp, "kv_layer_mb": kv, "traffic_layer_mb": traffic, "comm_ms": comm, "attn_compute_ms": compute, "hidden": hidden,
            "imbalance": imbalance, "imbalance_contiguous": contiguous, "efficiency_contiguous_pct": efficiency, "attn_share_of_6n_pct": share,
        },
        lines=w.lines,
        verdict=_verdict(cp, method, mine, traffic, comm, compute, hidden) + _evenness(cp, method, even, contiguous, efficiency),
        notes=_notes(model, seq, gpu, bus_bw),
        trace=Trace(even),
    )  # fmt: skip


def _check(model: Model, seq: int, cp: int, tp: int, method: str, balanced: bool) -> None:
    """Raises Refusal."""
    if model.mla is not None or not model.heads or not model.head_dim:
        raise refuse("model", "K、V 要按头分", f"{model.name} 把它们压成一份", "换一个 GQA 或 MHA 的模型")
    if model.heads % tp or (model.kv_heads % tp and tp % model.kv_heads):
        legal = [t for t in range(1, min(model.heads, 72) + 1) if model.heads % t == 0 and (model.kv_heads % t == 0 or t % model.kv_heads == 0)]
        raise refuse("tp", "注意力头和 KV 头都要能按 tp 分", f"{model.heads} 个头、{model.kv_heads} 个 KV 头，tp 是 {tp}", f"可取 {near(legal, tp)}")
    pieces = 2 * cp if balanced and method != "ulysses" else cp
    if seq % pieces:
        what = "2·cp 整除（首尾配对）" if pieces != cp else "cp 整除"
        raise refuse("seq", f"序列长度必须能被 {what}", f"{seq} / {pieces}", f"可取 {-(-seq // pieces) * pieces}")
    if method == "ulysses" and cp > model.heads // tp:
        raise refuse("cp", "Ulysses 的并行度不能超过每卡头数", f"{cp} > {model.heads} / {tp}", f"最多 {model.heads // tp}")
    if method == "ulysses" and (model.heads // tp) % cp:
        fits = [c for c in range(1, model.heads // tp + 1) if (model.heads // tp) % c == 0]
        raise refuse("cp", "Ulysses 要把每卡的头分匀", f"{model.heads // tp} / {cp}", f"可取 {near(fits, cp)}")


def _verdict(cp: int, method: str, mine: Quantity, traffic: Quantity, comm: Quantity, compute: Quantity, hidden: bool) -> str:
    if cp == 1:
        return f"没切：{mine.text} 全在一卡上，一层的注意力 {compute.text}。"
    said = f"每卡 {mine.text}。每层收 {traffic.text}，{comm.text}；一层的注意力 {compute.text}。"
    if method == "ulysses":
        return said + "Ulysses 换完头才能算，这段时间藏不住。"
    if hidden and method == "allgather":
        share = format_number(100 * comm.value / compute.value, digits=2)
        return said + f"收得比算得快：分块边收边算就藏得住，先收齐再算要露出来，是注意力的 {share}%。"
    if hidden:
        return said + "藏得住。"
    whole = "，先收齐再算就全露出来" if method == "allgather" else ""
    left = format_number((comm.value - compute.value) * 1e3, digits=3)
    return said + f"藏不住，边收边算每层也要露出 {left} ms{whole}：每卡的 token 多了才藏得住，序列不长就少开几路 cp。"


def _evenness(cp: int, method: str, even: bool, contiguous: Quantity, efficiency: Quantity) -> str:
    if cp == 1:
        return ""
    if method == "ulysses":
        return "按头切，人人看整条序列，天生是匀的。"
    if even:
        return f"首尾配对，人人一样忙；连续切的话最后一卡要干 {contiguous.text}，效率只有 {efficiency.text}。"
    return f"可连续切，最后一卡干 {contiguous.text} 的活，别人等它，效率只有 {efficiency.text}：改首尾配对。"


def _notes(model: Model, seq: int, gpu: Accelerator, bus_bw: float) -> tuple[str, ...]:
    notes = []
    if model.sliding_window is not None:
        notes.append(f"{model.name} 有滑动窗口的层，那些层的注意力比这里算的少，更难藏。")
    if seq > model.max_context:
        notes.append(f"{model.name} 的上下文只到 {format_number(model.max_context)} token，这里照填的算。")
    if bus_bw > gpu.link_gb_s_per_dir:
        notes.append(f"{gpu.name} 的互联单向只有 {format_number(gpu.link_gb_s_per_dir)} GB/s，{format_number(bus_bw)} 到不了：是不是填了双向的和？")
    return tuple(notes)
