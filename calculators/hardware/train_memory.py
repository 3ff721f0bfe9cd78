"""Does a training job fit on one card: states, activations, logits, and which of them breaks it?"""

from __future__ import annotations

from dataclasses import dataclass

from calculators.catalog import Accelerator, Model, gpu_input, model_input
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Bar, BarChart, Chart, LineChart, Mark, Part, Rule, Series
from calculators.core.errors import refuse
from calculators.core.inputs import Scalar, choice, flag, integer, linear_stops, number, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.units import GB, GIB
from calculators.core.worked import Quantity, Worked, quantity, smaller, total
from calculators.formulas.activations import SCORE_BYTES, full_recompute_bytes, layer_bytes, logits_bytes, plain_norm_bytes, score_bytes, stack_bytes
from calculators.formulas.memory import STATE_RECIPES, state_bytes
from calculators.formulas.params import attention_params, gated_ffn_params, norm_params, stack_params

LOGIT_BYTES = 8
"""BF16 logits 2, FP32 copy 4, BF16 gradient 2."""
ATTENTION_NAMES = {"flash": "FlashAttention", "unfused": "不融合，有 dropout", "unfused-no-dropout": "不融合，无 dropout"}
STATES_REMEDY = "换省字节的优化器（第 09 章），或用 ZeRO 切到多张卡（第 11 章）"
LENGTH_REMEDY = "缩短序列，或把一条序列切到多张卡（第 14 章）"


@dataclass(frozen=True)
class Dims:
    """The shape in use: the preset's, with the typed dimensions in place."""

    h: int
    L: int
    a: int
    kv: int
    f: int
    v: int
    hd: int
    tied: bool
    overridden: bool


@dataclass(frozen=True)
class Trace:
    """What the curve over the sequence length needs: the shape, and the bytes per token and layer without scores."""

    dims: Dims
    plain_bytes: float


def _dims(model: Model, h: int | None, L: int | None, a: int | None, kv: int | None, f: int | None, v: int | None, hd: int | None, tied: bool | None) -> Dims:
    """Typed values win; with any of them the others stay the preset's, the head size becomes h ÷ a and the tables untied."""
    sizes = any(x is not None for x in (h, L, a, kv, f, v, hd))
    h, L, a = h or model.hidden, L or model.layers, a or model.heads
    kv, f, v = kv or model.kv_heads, f or model.ffn, v or model.vocab
    if a % kv:
        raise refuse("kv", "头数必须能被 KV 头数整除", f"{a} / {kv}", f"可取 {_divisors(a, kv)}")
    if hd is None and not sizes:
        hd = model.head_dim
    if hd is None:
        if h % a:
            raise refuse("a", "隐藏维必须能被头数整除", f"{h} / {a}", f"可取 {_divisors(h, a)}，或另填每头维度")
        hd = h // a
    overridden = sizes or tied is not None
    return Dims(h, L, a, kv, f, v, hd, (False if sizes else model.tied) if tied is None else tied, overridden)


def _divisors(n: int, near: int) -> str:
    """The six divisors closest to what was typed."""
    divisors = (d for d in range(1, min(n, 4096) + 1) if n % d == 0)
    return "、".join(str(d) for d in sorted(sorted(divisors, key=lambda d: abs(d - near))[:6]))


def _chart(run: Run, *, gpu: Accelerator, micro_batch: int, seq: int, **_: object) -> tuple[Chart, ...]:
    trace = run.result.trace
    assert isinstance(trace, Trace)
    dims, plain = trace.dims, trace.plain_bytes
    blocks = {name: float(run.values[f"{key}_gb"]) for name, key in _BLOCKS}  # type: ignore[arg-type]
    bar = Bar("现在", tuple(Part(name, value) for name, value in blocks.items()), f"共 {run.texts['total_gb']}", emphasis=True)

    def kept(attention: str, tokens: int) -> float:
        layer = plain + score_bytes(float(SCORE_BYTES[attention]), float(dims.a), float(tokens))
        return stack_bytes(float(micro_batch * tokens), float(dims.L), layer) / GB

    lengths = [2**k for k in range(9, 18)]
    curves = tuple(
        Series(ATTENTION_NAMES[name], tuple((float(t), kept(name, t)) for t in lengths), emphasis=name == "flash")
        for name in ("flash", "unfused-no-dropout", "unfused")
    )
    card = Rule(f"标称 {_both_units(gpu.memory_gb)}", x=gpu.memory_gb)
    return (
        BarChart("显存花在哪", "每一段是一块显存，竖线是这张卡的容量；越过竖线就装不下。", Axis("显存", "GB"), (bar,), (card,)),
        LineChart(
            "激活随序列长度怎么涨（不重算）",
            "两轴都是对数。FlashAttention 是斜率 1 的直线：长度翻倍，激活翻倍；不融合的 attention 要留分数矩阵，最后变成翻倍就翻四倍。",
            Axis("序列长度", "token", log=True),
            Axis("激活", "GB", log=True),
            curves,
            marks=(Mark("现在", float(seq), float(run.values["activations_gb"]), emphasis=True),),  # type: ignore[arg-type]
            rules=(Rule(f"标称 {format_number(gpu.memory_gb)} GB", y=gpu.memory_gb),),
        ),
    )


_BLOCKS = (("权重", "weights"), ("梯度", "grads"), ("优化器", "optimizer"), ("激活", "activations"), ("logits", "logits"), ("其他", "overhead"))


def _both_units(gb: float) -> str:
    return f"{format_number(gb)} GB = {format_number(gb * GB / GIB)} GiB"


@calculator(
    title="训练显存四大块",
    question="这个训练任务，一张卡装得下吗？哪一块最要命？",
    chapter="03",
    inputs=(
        model_input(where=lambda m: m.is_plain_gated, help="稠密、门控 FFN 的模型；改下面任何一个维度，参数量就按 Llama 的形状重算"),
        integer("seq", "序列长度", 8192, "token", low=1, high=1_048_576, kind="tokens", stops=powers_of_two(512, 131072)),
        choice("recipe", "每个参数的字节（口径）", "seed-12", tuple(STATE_RECIPES),
               labels={id: f"{id}：权重 {r.weight_bytes:g} + 梯度 {r.grad_bytes:g} + m、v {r.optimizer_bytes:g}" + (f" + 主权重 {r.master_bytes:g}" if r.master_bytes else "")
                       for id, r in STATE_RECIPES.items()}),
        choice("recompute", "激活重算", "none", ("none", "full"), labels={"none": "不重算", "full": "每层只留输入，反向时重算"}),
        gpu_input(),
        integer("micro_batch", "micro-batch", 1, "sequence", low=1, high=1024, more=True, stops=powers_of_two(1, 64)),
        choice("attention", "attention 实现", "flash", tuple(SCORE_BYTES), labels=ATTENTION_NAMES, more=True),
        flag("fused_act", "融合 SwiGLU", True, more=True, help="否：silu(gate) 也要留，多 2f 字节"),
        flag("fused_norm", "融合 RMSNorm", True, more=True, help="否：Hugging Face 原样的模块，每个 RMSNorm 多留一份 FP32 输入"),
        choice("logits", "logits 怎么算", "full", ("full", "chunked"), labels={"full": "一次算完", "chunked": "分块"}, more=True),
        integer("chunk", "每块 token", 1024, "token", low=1, high=1_048_576, more=True, stops=powers_of_two(128, 8192), only_if=("logits", ("chunked",))),
        number("overhead_gb", "CUDA 上下文等", 1.5, "GB", low=0, high=20, more=True, stops=linear_stops(0, 5, 0.5)),
        integer("h", "隐藏维 h", None, low=1, high=1_000_000, more=True, help="留空用模型的值"),
        integer("L", "层数 L", None, low=1, high=1000, more=True, help="留空用模型的值"),
        integer("a", "头数 a", None, low=1, high=1_000_000, more=True, help="留空用模型的值"),
        integer("kv", "KV 头数 kv", None, low=1, high=1_000_000, more=True, help="留空用模型的值"),
        integer("f", "FFN 宽度 f", None, low=1, high=1_000_000, more=True, help="留空用模型的值"),
        integer("v", "词表 v", None, low=1, high=1_000_000, more=True, help="留空用模型的值"),
        integer("hd", "每头维度 hd", None, low=1, high=1024, more=True, help="留空用模型的值；改了别的维度就取 h ÷ a"),
        flag("tied", "输入输出词表共用", None, more=True, help="留空用模型的值；改了别的维度就按不共用"),
    ),
    outputs=(
        Output("n_params", "参数量", "params", digits=6),
        Output("act_bytes_per_token_layer", "每 token 每层的激活", "B"),
        Output("act_over_h", "折成隐藏维", "× h"),
        Output("score_bytes_per_token_layer", "其中另加的注意力分数", "B"),
        Output("bytes_per_param", "每个参数", "B"),
        Output("weights_gb", "权重", "GB"),
        Output("grads_gb", "梯度", "GB"),
        Output("optimizer_gb", "优化器（含主权重）", "GB"),
        Output("states_gb", "状态合计", "GB", main=True),
        Output("activations_gb", "激活", "GB", main=True),
        Output("logits_gb", "logits", "GB"),
        Output("overhead_gb", "CUDA 上下文等", "GB"),
        Output("total_gb", "总共", "GB", main=True),
        Output("total_gib", "总共（GiB）", "GiB"),
        Output("fits", "装得下", main=True),
    ),
    chart=_chart,
    formula=(
        "每 token 每层的激活 = 8h + 4·a·hd + 4·kv·hd + 6f 字节；不融合的 attention 再加 5·a·seq",
        "激活 = token 数 × 层数 × 每 token 每层；全部重算时 = token 数 × (2h × 层数 + 一层)",
        "logits = token 数 × 词表 × 8 字节（BF16 2 + FP32 副本 4 + 梯度 2）",
    ),
    assumptions=("BF16、无 dropout；激活只算反向要用的张量", "装不装得下按标称容量（1 GB = 1e9 字节）比，比驱动报告的小，偏安全"),
    leaves_out="不算工作区、NCCL 缓冲、碎片（再多 5–20%）和优化器那一步的临时副本（foreach Adam 每参数最多再要 4–8 字节）；也不算多卡切分（第 10–14 章）。",
    sources=(
        "Rajbhandari et al. 2020（ZeRO）§3：每参数 16 字节",
        "Korthikanti et al. 2022，Eq. 1：分数项 5as/h；34h 是带 GeLU、dropout、MHA 的 GPT 块，Llama-3-8B 也等于 34h 是巧合",
        "Llama 3 论文 Table 3：维度；激活字节和 Hugging Face 一层 decoder 的 autograd 计数逐字节相等",
    ),
)  # fmt: skip
def train_memory(
    *, model: Model, seq: int, recipe: str, recompute: str, gpu: Accelerator, micro_batch: int, attention: str, fused_act: bool, fused_norm: bool,
    logits: str, chunk: int, overhead_gb: float, h: int | None, L: int | None, a: int | None, kv: int | None, f: int | None, v: int | None,
    hd: int | None, tied: bool | None,
) -> Result:  # fmt: skip
    """States + activations + logits + overhead against the advertised capacity of one card."""
    d = _dims(model, h, L, a, kv, f, v, hd, tied)
    w = Worked()
    params = _params(w, model, d)
    blocks = STATE_RECIPES[recipe]
    weights = w.line("权重", state_bytes(params, quantity(blocks.weight_bytes, "B")), "GB")
    grads = w.line("梯度", state_bytes(params, quantity(blocks.grad_bytes, "B")), "GB")
    optimizer_bytes = quantity(blocks.optimizer_bytes + blocks.master_bytes, "B")
    optimizer = w.line("优化器（m、v" + ("、主权重）" if blocks.master_bytes else "）"), state_bytes(params, optimizer_bytes), "GB")
    states = w.line("状态合计", weights + grads + optimizer, "GB")

    plain = _layer(w, d, fused_act, fused_norm)
    scores, layer = quantity(0, "B"), plain
    if SCORE_BYTES[attention]:
        scores = w.line("每 token 每层的分数", score_bytes(quantity(SCORE_BYTES[attention], "B"), quantity(d.a), quantity(seq)), "B")
        layer = w.line("加上分数", plain + scores, "B")
    tokens = quantity(seq, "token") if micro_batch == 1 else w.line("一批的 token", quantity(micro_batch) * quantity(seq, "token"), "token", 6)
    layers = quantity(d.L, "layer")
    kept = full_recompute_bytes(tokens, layers, layer, quantity(d.h)) if recompute == "full" else stack_bytes(tokens, layers, layer)
    activations = w.line("激活" if recompute == "none" else "激活（全部重算）", kept, "GB")

    at_once = tokens if logits == "full" else w.line("一块的 token", smaller(quantity(chunk, "token"), tokens), "token", 6)
    logit = w.line("logits", logits_bytes(at_once, quantity(d.v), quantity(LOGIT_BYTES, "B")), "GB")
    overhead = quantity(overhead_gb, "GB")
    whole = w.line("总共", total([states, activations, logit, overhead]), "GB")
    fits = whole.value <= gpu.memory_bytes
    resolved: dict[str, Scalar] = {"h": d.h, "L": d.L, "a": d.a, "kv": d.kv, "f": d.f, "v": d.v, "hd": d.hd, "tied": d.tied}
    return Result(
        values={
            "n_params": round(params.value), "act_bytes_per_token_layer": round(plain.value), "act_over_h": plain.value / d.h,
            "score_bytes_per_token_layer": round(scores.value), "bytes_per_param": blocks.bytes_per_param,
            "weights_gb": weights, "grads_gb": grads, "optimizer_gb": optimizer, "states_gb": states, "activations_gb": activations,
            "logits_gb": logit, "overhead_gb": overhead_gb, "total_gb": whole, "total_gib": whole.value / GIB, "fits": fits,
        },
        lines=w.lines,
        verdict=_verdict(gpu, whole, {"状态": states, "激活": activations, "logits": logit, "其他": overhead}, _levers(attention, recompute, micro_batch, logits)),
        resolved=resolved,
        notes=_reported(gpu),
        trace=Trace(d, plain.value),
    )  # fmt: skip


def _params(w: Worked, model: Model, d: Dims) -> Quantity:
    if not d.overridden:
        return w.line(f"{model.name} 的参数量", quantity(model.total_params, "params"), "params", 6)
    h, a, kv, hd, f = quantity(d.h), quantity(d.a), quantity(d.kv), quantity(d.hd), quantity(d.f)
    attention = w.line("每层 attention", attention_params(h, a, kv, hd), "params", 6)
    ffn = w.line("每层 FFN", gated_ffn_params(h, f), "params", 6)
    layer = w.line("每层", attention + ffn + norm_params(h), "params", 6)
    table = w.line("一张词表", quantity(d.v) * h, "params", 6)
    return w.line("参数量", stack_params(quantity(d.L), layer, h, table, quantity(1 if d.tied else 2)), "params", 6)


def _layer(w: Worked, d: Dims, fused_act: bool, fused_norm: bool) -> Quantity:
    h, a = quantity(d.h), quantity(d.a)
    fused = layer_bytes(h, a, quantity(d.kv), quantity(d.hd), quantity(d.f), 6 if fused_act else 8)
    layer = w.line("每 token 每层的激活", fused, "B")
    if fused_norm:
        return layer
    extra = w.line("RMSNorm 多留的", plain_norm_bytes(h, a), "B")
    return w.line("每 token 每层共", layer + extra, "B")


def _levers(attention: str, recompute: str, micro_batch: int, logits: str) -> dict[str, str]:
    """What can still be switched on for a block; a block with nothing left is absent."""
    activations = [
        lever
        for lever, left in (
            ("换 FlashAttention（第 08 章）", attention != "flash"), ("开重算（第 09 章）", recompute == "none"), ("减小 micro-batch", micro_batch > 1),
        ) if left
    ]  # fmt: skip
    levers = {"激活": "、".join(activations), "logits": "分块算 logits，或换融合的交叉熵" if logits == "full" else ""}
    return {block: lever for block, lever in levers.items() if lever}


def _remedy(gpu: Accelerator, blocks: dict[str, Quantity], levers: dict[str, str]) -> str:
    """States that fit by themselves are not the obstacle: first the largest block that can still shrink."""
    if blocks["状态"].value > gpu.memory_bytes:
        return f"光状态就放不下，重算救不了它：{STATES_REMEDY}"
    if not levers:
        longest = blocks["激活"].value > blocks["状态"].value
        return f"激活和 logits 已经压到底：{LENGTH_REMEDY if longest else STATES_REMEDY}"
    return f"还能压的：{levers[max(levers, key=lambda name: blocks[name].value)]}"


def _verdict(gpu: Accelerator, whole: Quantity, blocks: dict[str, Quantity], levers: dict[str, str]) -> str:
    largest = max(blocks, key=lambda name: blocks[name].value)
    room = gpu.memory_bytes - whole.value
    if room >= 0:
        return (
            f"要 {whole.text}，一张 {gpu.name} 装得下，还剩 {format_number(room / GB)} GB 留给碎片和临时张量。最大的一块是{largest}（{blocks[largest].text}）。"
        )
    return (
        f"要 {whole.text}，一张 {gpu.name} 装不下，还差 {format_number(-room / GB)} GB。"
        f"最大的一块是{largest}（{blocks[largest].text}）。{_remedy(gpu, blocks, levers)}。"
    )


def _reported(gpu: Accelerator) -> tuple[str, ...]:
    if gpu.memory_gib_reported is None:
        return ()
    mark = "（未核实）" if gpu.is_unverified("memory_gib_reported") else ""
    reported = gpu.memory_gib_reported * GIB / GB
    return (
        f"标称 {format_number(gpu.memory_gb)} GB；驱动报告 {format_number(gpu.memory_gib_reported)} GiB{mark}，合 {format_number(reported)} GB。这里按标称的 1e9 字节比。",
    )
