"""How many tokens fit into the KV pool, and what will vLLM print when it starts?"""

from __future__ import annotations

from dataclasses import replace

from calculators.catalog import Accelerator, Model, accelerator, gpu_input, model_input
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Rule, Series
from calculators.core.errors import refuse
from calculators.core.inputs import Input, integer, linear_stops, number, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.units import GIB
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.decode import kv_split
from calculators.formulas.kv import block_count, bytes_per_token, cache_tokens, element_bytes, max_concurrency, pool_bytes
from calculators.formulas.kv_shape import cache_shape
from calculators.formulas.memory import state_bytes

BY_HAND = "custom"
SCALE_BYTES = 2


def _card_input() -> Input:
    """A card fills the memory that it really reports; by hand it is the number in the field."""
    cards = gpu_input(label="按哪张卡的显存")
    labels = {BY_HAND: "自己填显存", **(cards.choice_labels or {})}
    return replace(
        cards,
        default=BY_HAND,
        choices=(BY_HAND, *cards.choices),
        choice_labels=labels,
        lookup=lambda id: None if id == BY_HAND else accelerator(id),
        caution=lambda id: "" if id == BY_HAND else accelerator(id).caution + _reported_caution(accelerator(id)),
    )


def _reported_caution(card: Accelerator) -> str:
    if card.memory_gib_reported is None:
        return f"{card.name} 报告的显存没有数据：按标称 {format_number(card.memory_gb)} GB 换成 GiB。"
    return f"{card.name} 报告的显存没有可靠来源（未核实）。" if card.is_unverified("memory_gib_reported") else ""


def reported_gib(card: Accelerator) -> float:
    """What the driver reports, else the advertised decimal bytes."""
    return card.memory_gib_reported if card.memory_gib_reported is not None else card.memory_bytes / GIB


def _chart(
    run: Run, *, gpu: Accelerator | None, gpu_memory_gib: float, gpu_memory_utilization: float, other_gib: float, kv_pool_gib: float, block_size: int, max_model_len: int, **_: object
) -> tuple[Chart, ...]:  # fmt: skip
    tokens, per_token = run.values["kv_tokens"], run.values["kv_bytes_per_token_gpu"]
    weights, memory = run.values["weights_gib"], reported_gib(gpu) if gpu else gpu_memory_gib
    assert isinstance(tokens, int | float)
    assert isinstance(per_token, int | float)
    charts: list[Chart] = []
    if not kv_pool_gib and isinstance(weights, int | float):
        empty = (weights + other_gib) / memory

        def at(share: float) -> float:
            pool = max(0.0, pool_bytes(memory, share, float(weights), other_gib)) * GIB
            return cache_tokens(block_count(pool, float(block_size), float(per_token)), float(block_size))

        shares = sorted({*linear_stops(0.1, 0.98, 0.02), gpu_memory_utilization, min(0.98, max(0.1, empty))})
        charts.append(
            LineChart(
                "显存用到几成，装多少 token",
                "竖线左边连权重都放不下，启动就 OOM。过了它，每一点显存都给 KV：斜线越陡，调这个旋钮越值。横线是一条最长的请求。",
                Axis("gpu_memory_utilization", low=0.1, high=0.98),
                Axis("KV 池", "token", low=0),
                (Series("池里的 token", tuple((u, at(u)) for u in shares), emphasis=True),),
                marks=(Mark("现在", gpu_memory_utilization, float(tokens), emphasis=True),),
                rules=(Rule("左边 OOM", x=empty), Rule("一条最长的", y=float(max_model_len)))
                if 0.1 <= empty <= 0.98
                else (Rule("一条最长的", y=float(max_model_len)),),
            )
        )
    if tokens >= 1:
        lengths = sorted({*powers_of_two(128, 1_048_576), float(max_model_len)})
        charts.append(
            LineChart(
                "日志里的并发是最坏情况",
                "两轴都是对数。池子不变，平均上下文短一半，能同时跑的就多一倍。点是日志那一行：人人都占满 max_model_len。",
                Axis("平均上下文", "token", log=True),
                Axis("同时几条", "", log=True),
                (Series("池 ÷ 平均上下文", tuple((c, tokens / c) for c in lengths), emphasis=True),),
                marks=(Mark("日志里的", float(max_model_len), tokens / max_model_len, emphasis=True),),
                rules=(Rule("一条", y=1.0),),
            )
        )
    return tuple(charts)


@calculator(
    title="预测 vLLM 的两行日志",
    question="KV 池装多少 token，同时能跑几条？",
    chapter="16",
    inputs=(
        model_input(help="预设，或粘贴 config.json", partial=True),
        number("gpu_memory_gib", "每张卡的显存", 80, "GiB", low=8, high=300, stops=(16, 23.58, 24, 40, 48, 79.6, 80, 96, 141, 180), help="选了卡就用它报告的", only_if=("gpu", (BY_HAND,))),
        number("gpu_memory_utilization", "显存用到几成", 0.92, low=0.1, high=0.98, kind="fraction", stops=linear_stops(0.1, 0.98, 0.02)),
        integer("max_model_len", "一条最长", 8192, "token", low=1, high=1e7, kind="tokens", stops=powers_of_two(1024, 1_048_576)),
        integer("tp", "张量并行几张卡", 1, "card", low=1, high=64, stops=powers_of_two(1, 64)),
        _card_input(),
        number("weight_bytes", "每个权重的字节", 2, "B", low=0.5, high=4, more=True, stops=(0.5, 1, 2, 4)),
        number("kv_bytes", "KV 每个值的字节", 2, "B", low=0.5, high=2, more=True, stops=(0.5, 1, 2)),
        number("other_gib", "激活峰值加其他", 3.0, "GiB", low=0, high=20, more=True, stops=linear_stops(0, 20, 0.5), help="激活峰值、CUDA 上下文、NCCL；看自己的日志填"),
        integer("kv_group", "几个值共用一个缩放", 0, "element", low=0, high=1024, more=True, help="每组多 2 字节；0 是没有"),
        integer("block_size", "一块几个 token", 16, "token", low=1, high=256, more=True, stops=(1, 8, 16, 32, 64, 128, 256)),
        number("weights_gib", "每张卡的权重", 0, "GiB", low=0, high=1000, more=True, help="0 按模型算；日志里有就抄日志"),
        number("kv_bytes_per_token", "每张卡每 token 的 KV", 0, "B", low=0, high=1e8, more=True, help="0 按模型算"),
        number("kv_pool_gib", "每张卡的 KV 池", 0, "GiB", low=0, high=1000, more=True, help="日志里的 Available KV cache memory；0 是没有，自己算"),
    ),
    outputs=(
        Output("pool_gib", "KV 池，每张卡", "GiB", main=True),
        Output("kv_tokens", "GPU KV cache size", "token", main=True, digits=7),
        Output("max_concurrency", "Maximum concurrency", "×", main=True),
        Output("starts", "能启动", main=True),
        Output("blocks", "块数", "block"),
        Output("weights_gib", "权重，每张卡", "GiB"),
        Output("kv_bytes_per_token_gpu", "每 token 的 KV，每张卡", "B", digits=6),
    ),
    chart=_chart,
    formula=(
        "KV 池 = 显存 × gpu_memory_utilization − 权重 − 激活峰值和其他",
        "块数 = ⌊KV 池 ÷ (块长 × 每 token 的 KV)⌋，token 数 = 块数 × 块长",
        "Maximum concurrency = token 数 ÷ max_model_len",
        "张量并行：KV 除以 min(tp, KV 头数)；MLA 的潜变量每张卡一份，不除",
    ),
    assumptions=("权重在 tp 张卡上均分", "每一层都按全长算；激活峰值是输入，随 max_num_batched_tokens 和 max_model_len 变", "0.92 和 16 是 vLLM 现在的默认值；旧版是 0.9"),
    leaves_out="滑窗和混合模型装的 token 比这里多（vLLM 按组分配）。不算 CUDA graph。填对 other_gib，误差 1–2%。",
    sources=("vllm v1/core/kv_cache_utils.py（PR 13596、12569）", "vllm config/cache.py：块 16，利用率 0.92，前缀缓存默认开"),
)  # fmt: skip
def kv_capacity(
    *, model: Model, gpu: Accelerator | None, weight_bytes: float, kv_bytes: float, kv_group: int, gpu_memory_gib: float, gpu_memory_utilization: float,
    weights_gib: float, other_gib: float, kv_bytes_per_token: float, kv_pool_gib: float, block_size: int, max_model_len: int, tp: int,
) -> Result:  # fmt: skip
    """Memory × utilisation − weights − the rest, cut into blocks."""
    w = Worked()
    weights = _weights(w, model, weight_bytes, weights_gib, tp, needed=not kv_pool_gib)
    if kv_pool_gib:
        pool = quantity(kv_pool_gib, "GiB")
    else:
        memory = quantity(reported_gib(gpu) if gpu else gpu_memory_gib, "GiB")
        assert weights is not None
        pool = pool_bytes(memory, quantity(gpu_memory_utilization), weights, quantity(other_gib, "GiB"))
        if pool.value <= 0:
            used = f"{format_number(memory.value / GIB * gpu_memory_utilization)} GiB 里权重 {weights.text}、其他 {format_number(other_gib)} GiB"
            raise refuse("tp", "权重已占满，KV 池要大于 0", used, "需要更大显存、更高 TP 或量化")
        pool = w.line("KV 池，每张卡", pool, "GiB")
    each = quantity(kv_bytes_per_token, "B", 9) if kv_bytes_per_token else _per_token(w, model, kv_bytes, kv_group, tp)
    block = quantity(block_size, "token")
    blocks = w.line("块数", block_count(pool, block, each), "block", 9)
    tokens = w.line("GPU KV cache size", cache_tokens(blocks, quantity(block_size)), "token", 9)
    tokens = Quantity(tokens.value, quantity(tokens.value, "", 15).text + " token")
    times = w.line("Maximum concurrency", max_concurrency(tokens, quantity(max_model_len, "token", 9)), "×")
    uneven = _uneven(model, tp)
    starts: bool | None = tokens.value >= max_model_len and not uneven
    windowed = "" if starts or uneven or kv_bytes_per_token else _windowed(model, each.value, pool.value, max_model_len)
    if windowed:
        starts = None
    return Result(
        values={
            "weights_gib": weights, "kv_bytes_per_token_gpu": each, "pool_gib": pool, "blocks": int(blocks.value), "kv_tokens": int(tokens.value),
            "max_concurrency": times, "starts": starts,
        },
        lines=w.lines,
        verdict=uneven or windowed or _verdict(tokens, times, max_model_len, bool(starts)),
        notes=_notes(model, tp, weight_bytes, weights_gib, bool(kv_bytes_per_token)),
    )  # fmt: skip


def _weights(w: Worked, model: Model, weight_bytes: float, stated: float, tp: int, needed: bool) -> Quantity | None:
    """Per card; None when neither stated nor countable nor needed.  Raises Refusal."""
    if stated:
        return quantity(stated, "GiB")
    if not model.total_params:
        if needed:
            raise refuse("weights_gib", "参数量不能确定的模型，要自己填权重", model.name, "抄日志里的权重大小")
        return None
    whole = state_bytes(quantity(model.total_params, "params"), quantity(weight_bytes, "B"))
    return w.line("权重，每张卡", whole if tp == 1 else whole / quantity(tp), "GiB")


def _per_token(w: Worked, model: Model, kv_bytes: float, group: int, tp: int) -> Quantity:
    """Bytes a token on one card.  Raises Refusal when the KV heads do not divide."""
    shape = cache_shape(model)
    if not shape.elements:
        raise refuse("model", "要有存 K、V 的层才有 KV 池可算", model.name, "换一个模型，或填每张卡每 token 的 KV")
    split = kv_split(model, tp)
    if model.mla is None and tp <= model.kv_heads and model.kv_heads % tp:
        legal = [d for d in range(1, model.kv_heads + 1) if model.kv_heads % d == 0]
        raise refuse("tp", "KV 头数必须能被 tp 整除", f"{model.kv_heads} / {tp}", f"可取 {'、'.join(map(str, legal))}，或大于 {model.kv_heads}")
    size = quantity(kv_bytes, "B")
    if group:
        size = w.line("一个值，带上缩放", element_bytes(size, quantity(group), quantity(SCALE_BYTES, "B")), "B", 6)
    one = (
        bytes_per_token(quantity(shape.each, "element"), quantity(shape.layers, "layer"), size)
        if shape.each
        else quantity(shape.elements, "element", 15) * size
    )
    whole = w.line("每 token 的 KV", one, "B", 9)
    return whole if split == 1 else w.line("落到每张卡", whole / quantity(split), "B", 9)


def _uneven(model: Model, tp: int) -> str:
    """vLLM wants the attention heads to divide by tp, and the KV heads to divide by tp or tp by them; empty when they do."""
    heads, kv = model.heads, model.kv_heads

    def even(cards: int) -> bool:
        return heads % cards == 0 and (model.mla is not None or kv % cards == 0 or cards % kv == 0)

    if not heads or not kv or even(tp):
        return ""
    legal = [cards for cards in range(1, 65) if even(cards)]
    return f"{heads} 个注意力头不能均分给 {tp} 张卡，vLLM 起不来：张量并行可取 {'、'.join(map(str, legal))}。"


def _windowed(model: Model, each: float, pool: float, longest: int) -> str:
    """The longest request fits once the windows are counted, which this pool of full-length layers cannot see; empty when it does not."""
    shape = cache_shape(model)
    lone = each * shape.kept(longest) / shape.elements if shape.elements else 0.0
    if not shape.window_layers or not lone or lone > pool:
        return ""
    return (
        f"这里判不了能不能启动：每层都按全长算，放不下一条 {format_number(longest)}。"
        f"可 {shape.window_layers} 层只留最近 {format_number(shape.window)} 个，这一条在每张卡上只占 {format_number(lone / GIB)} GiB，"
        f"池子有 {format_number(pool / GIB)} GiB：vLLM 按组分配多半放得下，以启动日志为准。"
    )


def _notes(model: Model, tp: int, weight_bytes: float, stated_weights: float, stated_kv: bool) -> tuple[str, ...]:
    found = []
    stored = model.weight_bytes_per_param
    if stored and not stated_weights and abs(stored - weight_bytes) > 0.02 * stored:
        found.append(f"文件里的权重平均每个 {format_number(stored, digits=3)} 字节，这里按 {format_number(weight_bytes)} 字节算：照文件改 weight_bytes。")
    if tp > 1 and not stated_kv:
        split = kv_split(model, tp)
        if model.mla is not None:
            found.append(f"MLA 只有一份潜变量，{tp} 张卡各存一份：TP 省权重，不省 KV。数据并行 attention 才省。")
        elif split < tp:
            found.append(f"只有 {split} 个 KV 头，{tp} 张卡里每个头存 {format_number(tp / split)} 份：超过 {split} 张，KV 不再变小。")
    shape = cache_shape(model)
    if shape.window_layers and not stated_kv:
        found.append(f"{shape.window_layers} 层是滑窗，这里也按全长算：同样大的池子，vLLM 按组分配能装更多 token，见「KV cache 有多大」。")
    return tuple(found)


def _verdict(tokens: Quantity, times: Quantity, longest: int, starts: bool) -> str:
    if not starts:
        error = f"The model's max seq len ({longest}) is larger than the maximum number of tokens that can be stored in KV cache ({int(tokens.value)})"
        most = int(tokens.value)
        way = f"把 max_model_len 降到 {format_number(most)} 以内，或腾显存、加卡。" if most else "腾显存、加卡，或量化。"
        return f"起不来，vLLM 会报 {error}。{way}"
    return f"池里 {tokens.text}。人人都用满 {format_number(longest)} 时同时 {times.text}；平均只用一半，就能跑两倍的请求。"
