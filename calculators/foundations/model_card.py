"""What is this model: how many parameters, how heavy, how much KV cache a token, how much work a token?"""

from __future__ import annotations

import math
from dataclasses import replace

from calculators.catalog import Accelerator, Model, accelerators, gpu_input, model_input
from calculators.catalog.architecture import scores, window_kv_bytes_per_token
from calculators.core.calculator import Output, Result, Row, calculator
from calculators.core.inputs import choice, flag, integer, number, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.units import GB
from calculators.core.worked import Quantity, Worked, quantity, total

USABLE = 0.9
"""Share of the label capacity that an engine takes by default (vLLM's gpu_memory_utilization)."""
PARTS = {
    "input_table": "输入词表", "per_layer_table": "每层的输入表", "position_table": "位置表", "attention": "注意力", "attention_sinks": "注意力的 sink",
    "recurrent": "线性或状态层", "indexer": "稀疏注意力的索引器", "dense_ffn": "稠密 FFN", "routed_experts": "路由专家", "shared_experts": "共享专家", "router": "路由器",
    "norms": "归一化", "biases": "偏置", "projections": "词表投影", "adapters": "低秩适配器", "per_layer_input": "每层输入的投影", "altup": "AltUp", "laurel": "Laurel",
    "output_head": "输出头", "vision_tower": "图像塔",
}  # fmt: skip
"""Part of a breakdown → what the page calls it."""
BASIS = {"exact": "精确：按尺寸一个一个数", "text": "只含文字部分", "assumed": "带假设：见备注", "partial": "不能确定：见备注"}


def part_rows(model: Model) -> list[Row]:
    """The breakdown as a table, with shares."""
    everything = model.total_params
    return [{"part": PARTS.get(part, part), "params": count, "share": 100 * count / everything} for part, count in model.breakdown.items()]


def note_rows(model: Model) -> list[Row]:
    """One row for each value that was derived or assumed; presets say what nobody could check."""
    unchecked = ["这个预设的尺寸里有没核实的项（出处见目录）。"] if "unverified" in model.source else []
    return [{"note": note} for note in (*unchecked, *model.notes)]


def attention_flops(model: Model, context: int, mean: bool) -> float:
    """FLOP of QKᵀ and PV for one token over ``context`` tokens (their mean, half of it, when ``mean``); a window caps it."""
    seen = {window: min(context, window) if window else context for window in scores(model)}
    return sum(2.0 * score * seen[window] * (0.5 if mean else 1.0) for window, score in scores(model).items())


def smallest_card(bytes_needed: float) -> Accelerator | None:
    """The card with the least memory that holds that many bytes by itself."""
    fitting = [card for card in accelerators().values() if card.memory_bytes * USABLE >= bytes_needed]
    return min(fitting, key=lambda card: (card.memory_gb, card.bandwidth_gb_s), default=None)


def attention_kind(model: Model) -> str:
    """MHA, GQA, MQA, MLA, or none."""
    if model.kv_bytes_per_token == 0:
        return "没有 KV 缓存"
    if model.mla is not None:
        return "MLA"
    if not model.heads or model.kv_heads == model.heads:
        return "MHA"
    return "MQA" if model.kv_heads == 1 else f"GQA，{model.heads} 个头共用 {model.kv_heads} 组 KV"


@calculator(
    title="模型身份证",
    question="这个模型有多少参数、多重、每个 token 存多少 KV、算多少？",
    chapter="my-model",
    inputs=(
        replace(model_input(help="选一个预设，或粘贴 Hugging Face 的 config.json", partial=True), caution=None),  # the notes say it all
        number("weight_bytes", "每个参数的字节数", None, "B", low=0.25, high=8, stops=(0.5, 1, 2, 4), help="留空就按文件里的 torch_dtype 和量化配置；没写按 2"),
        choice("kv_bytes", "KV 每个值的字节数", 2, (2, 1), "B", help="BF16 是 2，FP8 是 1"),
        gpu_input(label="按哪种卡数"),
        integer("context_tokens", "上下文长度", 4096, "token", low=0, high=1e8, stops=powers_of_two(1024, 1 << 20), help="算注意力和 KV 用", more=True),
        flag("causal_mean", "按因果注意力的平均算", False, more=True, help="预填一段提示时，平均每个 token 只看到一半"),
    ),
    outputs=(
        Output("total_params", "总参数", "params", main=True),
        Output("active_params", "每 token 激活的参数", "params", main=True),
        Output("active_params_no_input_embedding", "激活参数（不含输入词表）", "params"),
        Output("embedding_params", "输入词表", "params"),
        Output("weights_gb", "权重", "GB", main=True),
        Output("bytes_per_param", "平均每个参数", "B"),
        Output("kv_bytes_per_token", "每 token 的 KV", "B", main=True),
        Output("kv_growth_bytes_per_token", "过了滑动窗口之后每 token 的 KV", "B"),
        Output("kv_context_gb", "这个上下文的 KV", "GB"),
        Output("flops_fwd_per_token", "前向每 token 的计算", "FLOP", main=True),
        Output("max_context", "最长上下文", "token", main=True),
        Output("cards", "至少要几张卡", "卡"),
        Output("basis", "参数量的依据"),
        Output("breakdown", "参数都在哪", columns=(("part", "部分", ""), ("params", "参数", ""), ("share", "占比", "%"))),
        Output("derived", "推出来和假设的", columns=(("note", "说明", ""),)),
    ),
    formula=(
        "总参数 = 每一层的注意力、FFN（或专家）、归一化、偏置之和 × 层数 + 词表 + 输出头（共享词表时只算一次）",
        "激活参数 = 总参数 − 没被选中的路由专家",
        "每 token 的 KV = Σ 每层（2 × KV 头数 × 每头维度，MLA 为 潜变量 + rope 维度）× 字节数",
        "前向 FLOP = 2 × 激活参数（不含输入词表和位置表）+ 2 × 头数 ×（K 维度 + V 维度）× 上下文 × 层数",
    ),
    assumptions=(
        "权重按十进制 GB；只有线性层被量化，词表、归一化、输出头保持原精度，除非文件另说",
        "卡数只看装不装得下权重和这个上下文的 KV，用标称容量的 90%",
    ),
    leaves_out="不含激活、框架和 CUDA 上下文（通常 1 到几 GB）；量化的缩放因子按每组一个计，误差约 1%；不认识的架构不给总数，或标明假设。",
    sources=(
        "参数量：与 torch 2.13.0 + transformers 5.24.0 在 meta 设备上数出的总数逐位相等（一百多种架构的默认和随机配置）",
        "KV：与同一库前向时缓存的增长逐位相等（一百多种架构）",
    ),
)
def model_card(*, model: Model, weight_bytes: float | None, kv_bytes: float, gpu: Accelerator, context_tokens: int, causal_mean: bool) -> Result:
    """The identity card of a model; every count that is not known is None, never a guess."""
    w = Worked()
    per_param = weight_bytes if weight_bytes is not None else model.weight_bytes_per_param or 2.0
    counted, activated = model.total_params > 0, model.active_params > 0
    kv = _kv(w, model, kv_bytes)
    weights = _totals(w, model, per_param) if counted else None
    flops = _flops(w, model, context_tokens, causal_mean) if activated else None
    kept = _context_kv(model, kv_bytes, context_tokens)
    need = weights.value + kept if weights is not None else None
    cards = _cards(w, need, kept, weights, gpu)
    window_kv = window_kv_bytes_per_token(model) * kv_bytes / 2
    return Result(
        values={
            "total_params": model.total_params if counted else None,
            "active_params": model.active_params if activated else None,
            "active_params_no_input_embedding": model.active_params_no_input_embedding if activated else None,
            "embedding_params": model.breakdown.get("input_table") if counted else None,
            "weights_gb": weights, "bytes_per_param": per_param, "kv_bytes_per_token": kv, "kv_growth_bytes_per_token": kv - int(window_kv),
            "kv_context_gb": kept / GB, "flops_fwd_per_token": flops, "max_context": model.max_context or None, "cards": cards,
            "basis": BASIS[model.basis], "breakdown": part_rows(model), "derived": note_rows(model),
        },
        lines=w.lines,
        verdict=_verdict(model, weights, kv, cards, gpu, need),
        resolved={"weight_bytes": per_param} if weight_bytes is None else {},
        notes=tuple(str(row["note"]) for row in note_rows(model)),
    )  # fmt: skip


def _kv(w: Worked, model: Model, kv_bytes: float) -> int:
    """KV bytes a token, all layers; the line shows the product where every layer is alike."""
    layers, each = model.layers if model.kv_layers is None else model.kv_layers, model.kv_elems_per_token_layer
    exact = int(model.kv_bytes_per_token * kv_bytes / 2)
    size = quantity(kv_bytes, "B")
    if exact == 0:
        w.say("KV：没有一层存 K、V → 0")
    elif each * layers * 2 != model.kv_bytes_per_token:
        w.say(f"KV：各层的大小不同，一层一层加 → {format_number(exact)} B")
    elif model.mla is not None:
        latent, rope = quantity(model.mla.kv_lora_rank), quantity(model.mla.qk_rope_head_dim)
        w.line("每 token 的 KV（潜变量 + rope，每层）", (latent + rope) * quantity(layers) * size, "B")
    elif each == 2 * model.kv_heads * model.head_dim:
        w.line("每 token 的 KV（K 和 V，KV 头，维度，层）", 2 * quantity(model.kv_heads) * quantity(model.head_dim) * quantity(layers) * size, "B")
    else:
        w.line("每 token 的 KV（每层的值，层）", quantity(each) * quantity(layers) * size, "B")
    return exact


def _totals(w: Worked, model: Model, per_param: float) -> Quantity:
    """Lines for the total, the active part and the weights."""
    parts = [quantity(count, "params") for count in model.breakdown.values()]
    everything = w.line("总参数", total(parts), "params") if len(parts) > 1 else parts[0]
    w.say(f"总参数，精确到个位 → {model.total_params:,} 个")
    if model.moe is not None and model.active_params:
        idle = model.total_params - model.active_params
        routed = quantity(model.moe.routed_params, "params")
        if round(model.moe.routed_params * (1 - model.moe.top_k / model.moe.experts)) == idle:
            asleep = w.line("没被选中的专家", routed * (1 - quantity(model.moe.top_k) / quantity(model.moe.experts)), "params")
        else:
            asleep = quantity(idle, "params")
        w.line("每 token 激活", quantity(model.total_params, "params") - asleep, "params")
    return w.line("权重", everything * quantity(per_param, "B"), "GB")


def _flops(w: Worked, model: Model, context: int, mean: bool) -> Quantity:
    """Forward work of one token: two FLOP a weight, and attention over the context."""
    matrix = model.active_params_no_input_embedding - model.breakdown.get("position_table", 0)
    attention = attention_flops(model, context, mean)
    w.say(f"注意力：看 {format_number(context)} 个 token{'（平均一半）' if mean else ''} → {format_number(attention, 'sci')} FLOP")
    return w.line("前向每 token", quantity(2, "FLOP") * quantity(matrix, "params") + quantity(attention, "FLOP"), "FLOP")


def _context_kv(model: Model, kv_bytes: float, context: int) -> float:
    """Bytes of one sequence's cache: windowed layers stop at their window."""
    windowed = window_kv_bytes_per_token(model)
    window = (model.sliding_window or {}).get("window", 0)
    return kv_bytes / 2 * ((model.kv_bytes_per_token - windowed) * context + windowed * min(context, window or context))


def _cards(w: Worked, need: float | None, kept: float, weights: Quantity | None, gpu: Accelerator) -> int | None:
    if need is None or weights is None:
        return None
    room = quantity(gpu.memory_gb, "GB") * USABLE
    cards = max(1, math.ceil(need / (gpu.memory_bytes * USABLE)))
    w.say(f"{gpu.name} 的九成是 {format_number(room.value / GB)} GB，权重加这个上下文的 KV 是 {format_number(need / GB)} GB → {cards} 张")
    return cards


def _verdict(model: Model, weights: Quantity | None, kv: int, cards: int | None, gpu: Accelerator, need: float | None) -> str:
    cache = f"{attention_kind(model)}，每 token 的 KV {format_number(kv / 1024)} KiB" if kv else attention_kind(model)
    if weights is None or need is None:
        return f"{model.name}：参数量不能确定，所以权重和计算量都不给数；{cache}。原因见备注。"
    lead = {"assumed": "按假设估算，没有核对过：", "text": "只含文字部分：", "partial": "激活参数不能确定："}.get(model.basis, "")
    size = f"{format_number(model.total_params, 'short', 3)} 参数"
    active = f"，每 token 激活 {format_number(model.active_params, 'short', 3)}" if 0 < model.active_params < model.total_params else ""
    alone = smallest_card(need)
    where = f"装得下的最小单卡是 {alone.name}（{format_number(alone.memory_gb)} GB）" if alone else f"没有一张卡装得下，{gpu.name} 要 {cards} 张"
    return f"{lead}{model.name.partition('（')[0]}：{size}{active}；{cache}；权重 {weights.text}，{where}。"
