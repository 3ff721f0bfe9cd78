"""How should layers be dealt to the stages of a pipeline when the last one also computes the output head?"""

from __future__ import annotations

from dataclasses import dataclass

from calculators.catalog import Accelerator, Model, gpu_input, model_input
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Bar, BarChart, Chart, LineChart, Part, Rule, Series
from calculators.core.errors import refuse
from calculators.core.inputs import flag, integer, log_stops, number, powers_of_two, text
from calculators.core.lists import read_integers
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.mfu import attention_core_of_width
from calculators.formulas.pipeline import best_split, even_split, stage_costs
from calculators.formulas.tensor import layer_flops, layer_seconds, message_bytes, shape_of

MOST_BARS = 24
SAME = 1 + 1e-9


@dataclass(frozen=True)
class Trace:
    """What the charts draw."""

    split: tuple[int, ...]
    best: tuple[int, ...]
    head: float


def _fits(m: Model) -> bool:
    plain = {"attention", "dense_ffn"} <= set(m.breakdown) and "recurrent" not in m.breakdown
    return m.is_dense and m.mla is None and m.heads > 0 and plain


def layer_params(m: Model) -> int:
    """One layer with its norms and biases: everything but the tables and the final norm (which a LayerNorm has twice over)."""
    final_norm = m.hidden if m.ffn_gated else 2 * m.hidden
    parts = sum(m.breakdown.get(part, 0) for part in ("attention", "dense_ffn", "norms", "biases"))
    return round((parts - final_norm) / m.layers)


def _chart(run: Run, **_: object) -> tuple[Chart, ...]:
    trace = run.result.trace
    assert isinstance(trace, Trace)
    named = [("现在的切法", trace.split), ("最匀的切法", trace.best)]
    return tuple(_drawn(name, split, trace.head) for name, split in (named if trace.split != trace.best else named[:1]))


def _drawn(name: str, split: tuple[int, ...], head: float) -> Chart:
    costs = stage_costs(split, head)
    mean = sum(costs) / len(costs)
    desc = "最长的那一段决定一步的时间，别的段陪它等。标着平均的那条线：切得越匀，越贴着它。"
    if len(split) > MOST_BARS:
        points = tuple((float(i), cost) for i, cost in enumerate(costs))
        return LineChart(name, desc, Axis("第几段"), Axis("折成层", low=0), (Series("每段的活", points, emphasis=True),), rules=(Rule("平均", y=mean),))
    bars = [Bar(f"段 {i}", (Part("", float(n)),), f"{n} 层") for i, n in enumerate(split[:-1])]
    bars.append(Bar(f"段 {len(split) - 1}", (Part("", float(split[-1])), Part("head", head)), f"{split[-1]} 层 + head", emphasis=True))
    return BarChart(name, desc, Axis("折成层"), tuple(bars), (Rule("平均", y=mean),))


@calculator(
    title="怎么切层才匀",
    question="层分给 p 段，最后一段还要算 LM head：谁最慢，慢多少，怎么切最匀？",
    chapter="13",
    inputs=(
        model_input(where=_fits, help="稠密模型"),
        integer("pp", "流水段数 p", 8, low=1, high=1000, stops=(1, 2, 4, 8, 16, 32)),
        integer("layers", "层数 L", None, "layer", low=1, high=1000, stops=(16, 32, 64, 80, 96, 126, 128), help="空着：用模型的"),
        text("layer_list", "每段几层", longest=4000, placeholder="5, 5, 4, 4, 4, 4, 4, 2", help="空着：均分。几段写几个，加起来等于层数"),
        number("nic_gb_s", "每卡网卡", 50, "GB/s", low=0.1, high=1000, stops=log_stops(1, 1000, 6), help="单向，字节"),
        integer("tp", "张量并行卡数", 8, "card", low=1, high=72, stops=powers_of_two(1, 64)),
        integer("seq", "序列长度", 8192, "token", low=128, high=1e6, kind="tokens", more=True, stops=powers_of_two(1024, 131072)),
        integer("micro_batch", "micro-batch", 1, "sequence", low=1, high=64, more=True, stops=powers_of_two(1, 16)),
        gpu_input(more=True),
        number("compute_eff", "算力用上几成", 0.6, low=0.05, high=1, more=True, stops=(0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)),
        flag("tied_embeddings", "共享词表", None, more=True, help="末段存一份输入词表的拷贝，大小和 LM head 一样"),
    ),
    outputs=(
        Output("slowdown", "最慢的段 ÷ 平均", "×", main=True),
        Output("lost_pct", "浪费的时间", "%", main=True),
        Output("best_slowdown", "最匀的切法", "×", main=True),
        Output("best_split", "最匀：每段几层", main=True),
        Output("p2p_ms", "传一次激活", "ms", main=True),
        Output("stage_fwd_ms", "一段的前向", "ms", main=True),
        Output("p2p_scatter_ms", "切成 tp 份一起传", "ms"),
        Output("p2p_mb", "每微批每道边界", "MB"),
        Output("head_layers", "LM head 折成", "layer"),
        Output("layer_list", "现在：每段几层"),
        Output("slowdown_even", "均分的话", "×"),
        Output("first_stage_weights_gb", "首段的权重", "GB"),
        Output("last_stage_weights_gb", "末段的权重", "GB"),
    ),
    chart=_chart,
    formula=(
        "每段的活 = 层数；末段再加 head = 词表 × h ÷ 一层的参数；embedding 是查表，不算",
        "慢几倍 = 最慢的段 ÷ 平均；浪费 = 1 − 平均 ÷ 最慢的段",
        "边界：2 × b × s × h 字节，前向反向各一次；张量并行时各卡传自己那一份",
        "一段的前向 = (L ÷ p) × bs × (2P + 4 × 头数 × 每头维度 × s ÷ 2) ÷ (tp × 峰值 × 用上几成)，P 是一层的矩阵，因果 attention",
    ),
    assumptions=("一层的时间和它的参数成正比；首段、末段的权重按 BF16", "一段的前向用 L ÷ p 层，不随切法变"),
    leaves_out="按参数折算，没算 attention 的 s²：序列很长时 head 占得少。不算 MTP 头、loss 本身和 logits 的显存；传输不算延迟，也不算和计算抢带宽。",
    sources=("Llama 3 技术报告 §3.3.2：126 层，首段、末段各少一层", "BigScience：BLOOM 的切法", "Narayanan et al. 2021 §4.1：scatter/gather"),
)  # fmt: skip
def pp_balance(
    *, model: Model, pp: int, layers: int | None, layer_list: str, tied_embeddings: bool | None, seq: int, micro_batch: int, nic_gb_s: float, tp: int,
    gpu: Accelerator, compute_eff: float,
) -> Result:  # fmt: skip
    """The slowest stage against the mean, the best split by search, and the bytes over a boundary."""
    L = layers or model.layers
    tied = model.tied if tied_embeddings is None else tied_embeddings
    split = _split(layer_list, L, pp)
    w = Worked()
    layer = quantity(layer_params(model), "params", 9)
    table = w.line("词表 × h", quantity(model.vocab) * quantity(model.hidden, "params"), "params", 6)
    head = w.line("LM head 折成", table / layer, "layer")
    mean = w.line("平均每段", (quantity(L, "layer") + head) / quantity(pp), "layer")
    slowdown, costs = _against_mean(w, "现在", split, head, mean)
    even, best = even_split(L, pp), best_split(L, pp, head.value)
    slowdown_even = max(stage_costs(even, head.value)) / mean.value
    best_slowdown, _ = _against_mean(w, "最匀的切法", best, head, mean)
    lost = w.line("浪费", quantity(1) - quantity(1) / slowdown, "%")
    first, last = _weights(w, split, layer, table, tied)
    p2p = w.line("一道边界", message_bytes(quantity(micro_batch) * quantity(seq), quantity(model.hidden), quantity(2, "B")), "MB")
    p2p_s = w.line("传一次", p2p / quantity(nic_gb_s, "GB/s"), "ms")
    scattered = w.line("切成 tp 份一起传", p2p_s / quantity(tp), "ms")
    forward = _stage_forward(w, model, L, pp, tp, seq, micro_batch, gpu, compute_eff)
    return Result(
        values={
            "head_layers": head, "layer_list": list(split), "slowdown": slowdown, "slowdown_even": slowdown_even, "lost_pct": lost, "best_slowdown": best_slowdown,
            "best_split": list(best), "first_stage_weights_gb": first, "last_stage_weights_gb": last, "p2p_mb": p2p, "p2p_ms": p2p_s, "p2p_scatter_ms": scattered,
            "stage_fwd_ms": forward,
        },
        lines=w.lines,
        verdict=_verdict(pp, costs, slowdown, best_slowdown, lost, best) + _link(pp, tp, p2p_s, scattered, forward),
        resolved={**({"layers": L} if layers is None else {}), **({"tied_embeddings": tied} if tied_embeddings is None else {})},
        trace=Trace(split, best, head.value),
    )  # fmt: skip


def _split(typed: str, L: int, p: int) -> tuple[int, ...]:
    if p > L:
        raise refuse("pp", "段数不能多于层数", f"{p} 段，{L} 层", f"可取 1 到 {L}")
    if not typed:
        return even_split(L, p)
    split = read_integers("layer_list", "每段几层", typed, low=0, high=1000)
    if len(split) != p:
        raise refuse("layer_list", "每段几层必须一段一个数", f"{len(split)} 个数，{p} 段", f"写 {p} 个，用逗号隔开，或清空")
    if sum(split) != L:
        raise refuse("layer_list", "每段几层加起来必须等于层数", f"{sum(split)}，层数 {L}", f"{'多了' if sum(split) > L else '少了'} {abs(sum(split) - L)} 层")
    if 0 in split[:-1]:
        raise refuse("layer_list", "每段几层里只有末段可以是 0", f"段 {split.index(0)} 是 0", "至少 1 层")
    return split


def _against_mean(w: Worked, label: str, split: tuple[int, ...], head: Quantity, mean: Quantity) -> tuple[Quantity, list[float]]:
    """The slowest stage ÷ the mean, printed with the stage it comes from."""
    costs = stage_costs(split, head.value)
    at = costs.index(max(costs))
    slowest = quantity(split[at], "layer") + head if at == len(split) - 1 else quantity(split[at], "layer")
    return w.line(f"{label}，最慢的是段 {at}", slowest / mean, "×"), costs


def _weights(w: Worked, split: tuple[int, ...], layer: Quantity, table: Quantity, tied: bool) -> tuple[Quantity, Quantity]:
    """16-bit weights of the first and the last stage; a single stage holds both tables, or the one that is shared."""
    two = quantity(2, "B")
    if len(split) == 1:
        whole = w.line("唯一一段的权重", two * (quantity(split[0]) * layer + (table if tied else quantity(2) * table)), "GB")
        return whole, whole
    first = w.line("首段的权重", two * (quantity(split[0]) * layer + table), "GB")
    return first, w.line("末段的权重", two * (quantity(split[-1]) * layer + table), "GB")


def _stage_forward(w: Worked, m: Model, L: int, p: int, tp: int, seq: int, micro_batch: int, gpu: Accelerator, eff: float) -> Quantity:
    """A third of the layer's forward and backward of chapter 12, on the tp cards of a stage."""
    shape = shape_of(m)
    tokens = w.line("一个微批", quantity(micro_batch, "sequence") * quantity(seq), "token", 6) if micro_batch > 1 else quantity(seq, "token")
    core = w.line("attention 每 token", attention_core_of_width(quantity(1), quantity(shape.width), quantity(seq), causal_half=True))
    flops = w.line("一层的前向加反向", layer_flops(tokens, quantity(shape.matrix_params, "params", 9), core), "TFLOP")
    forward = layer_seconds(flops / quantity(3), quantity(tp), quantity(gpu.dense_tflops, "TFLOPS"), quantity(eff))
    return w.line("一段的前向", quantity(L) / quantity(p) * forward, "ms")


def _verdict(p: int, costs: list[float], slowdown: Quantity, best: Quantity, lost: Quantity, best_split: tuple[int, ...]) -> str:
    if p == 1:
        return "只有一段，没有谁等谁。"
    at = costs.index(max(costs))
    where = "末段带着 LM head" if at == p - 1 else f"段 {at} 层最多"
    said = f"{where}，最慢，是平均的 {slowdown.text}，各段平均 {lost.text} 的时间在等它。"
    if slowdown.value <= best.value * SAME:
        return said + "按整层切，没有更匀的了。"
    return said + f"末段只放 {best_split[-1]} 层，能压到 {best.text}。"


def _link(p: int, tp: int, p2p: Quantity, scattered: Quantity, forward: Quantity) -> str:
    if p == 1:
        return ""
    said = f"边界上传一次 {p2p.text}，一段前向 {forward.text}"
    said += f"；切成 {tp} 份一起传，{scattered.text}。" if tp > 1 else "。"
    return said + ("传比算还久，流水线要等网。" if scattered.value > forward.value else "")
