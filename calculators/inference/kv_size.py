"""How large is the KV cache of a token, of a request, of a batch, whatever the attention: MHA, GQA, MQA, MLA, windows, hybrids?"""

from __future__ import annotations

from dataclasses import replace

from calculators.catalog import Model, model_input, models
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Rule, Series
from calculators.core.errors import refuse
from calculators.core.inputs import choice, integer, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.units import GIB
from calculators.core.worked import Quantity, Worked, quantity, smaller
from calculators.formulas.kv import element_bytes, kv_elements, latent_elements
from calculators.formulas.kv_shape import CacheShape, cache_shape, uniform
from calculators.formulas.memory import state_bytes

SHOWN = ("llama-2-7b", "llama-3-8b", "llama-3-70b", "qwen2.5-7b", "qwen3-235b-a22b", "deepseek-v3")
CONTEXTS = powers_of_two(1024, 1_048_576)
SCALE_BYTES = 2
KINDS = {"mha": "MHA", "gqa": "GQA", "mqa": "MQA", "mla": "MLA"}


def _chart(run: Run, *, model: Model, batch: int, context_tokens: int, kv_bytes: float, kv_group: int, **_: object) -> tuple[Chart, ...]:
    shape = run.result.trace
    assert isinstance(shape, CacheShape)
    each = _element_bytes(kv_bytes, kv_group)
    lengths = sorted({*CONTEXTS, float(context_tokens)})

    def curve(s: CacheShape, floor: float = 0.0, copies: int = 1) -> tuple[tuple[float, float], ...]:
        return tuple((c, (floor + copies * s.kept(c) * each) / GIB) for c in lengths)

    variants = [Series("现在这样", curve(shape, copies=batch), emphasis=True)]
    if shape.comparable:
        others = {"MHA": shape.mha_elements // shape.layers, "MQA": 2 * shape.head_dim, "MLA 512 + 64": 576}
        for name, elements in others.items():
            if elements != shape.each:
                variants.append(Series(name, curve(replace(shape, full=elements * shape.full_layers, windowed=elements * shape.window_layers), copies=batch)))
    weights = state_bytes(float(model.total_params), 2.0)
    rules = (Rule(f"BF16 权重 {format_number(weights / GIB, digits=3)} GiB", y=weights / GIB),) if weights else ()
    here = batch * shape.kept(context_tokens) * each / GIB
    marks = (Mark("现在", float(context_tokens), here, emphasis=True),) if here else ()
    total = tuple(Series(m.name, curve(cache_shape(m), state_bytes(float(m.total_params), 2.0), batch)) for m in map(models().__getitem__, SHOWN))
    drawn = tuple(s for s in variants if all(y > 0 for _, y in s.points))
    charts: list[Chart] = []
    if drawn:
        charts.append(
            LineChart(
                "KV 多长的时候赶上权重",
                "两轴都是对数。横线是权重；斜线是这批请求的 KV，同样的层数换一种 attention 就平移一截。过了交点，显存多半是 KV。",
                Axis("上下文", "token", log=True),
                Axis("KV cache", "GiB", log=True),
                drawn,
                marks=marks,
                rules=rules,
            )
        )
    charts.append(
        LineChart(
            "六个模型：权重加 KV",
            "两轴都是对数。左边平的一段是权重垫底，往右翘起来的是 KV。翘得早的，每 token 的 KV 相对权重更大。",
            Axis("上下文", "token", log=True),
            Axis("权重 + KV", "GiB", log=True),
            total,
        )
    )
    return tuple(charts)


@calculator(
    title="KV cache 有多大",
    question="每个 token 存多少字节，一个请求占多少显存？",
    chapter="16",
    inputs=(
        model_input(help="预设，或粘贴 config.json", partial=True),
        choice("attention", "attention 的种类", "preset", ("preset", *KINDS), labels={"preset": "模型自己的", **KINDS}),
        integer("context_tokens", "上下文长度", 8192, "token", low=1, high=1e7, kind="tokens", stops=powers_of_two(256, 1_048_576)),
        choice(
            "kv_bytes",
            "KV 每个值的字节",
            2,
            (2, 1, 0.75, 0.5),
            "B",
            labels={"2": "2（BF16）", "1": "1（FP8、INT8）", "0.75": "0.75（6 bit）", "0.5": "0.5（4 bit）"},
        ),
        integer("batch", "同时几条", 1, low=1, high=1e5, kind="count", stops=powers_of_two(1, 1024)),
        integer("n_layers", "层数", 0, "layer", low=0, high=1e4, more=True, help="0 用预设；填了就按每层都存全长的 GQA 算"),
        integer("n_heads", "注意力头数", 0, low=0, high=1e4, more=True, help="0 用预设"),
        integer("n_kv_heads", "KV 头数", 0, low=0, high=1e4, more=True, help="0 用预设"),
        integer("head_dim", "每头维度", 0, low=0, high=1e4, more=True, help="0 用预设；别拿 hidden ÷ 头数代替"),
        integer("n_full_layers", "存全长的层数", None, "layer", low=0, high=1e4, more=True, help="留空用预设；其余是滑窗层或线性层"),
        integer("window", "滑动窗口", None, "token", low=0, high=1e6, more=True, help="留空用预设；0 是不存 K、V 的线性层"),
        integer("kv_lora_rank", "MLA 潜变量维度", 512, "element", low=1, high=1e4, more=True, only_if=("attention", ("mla",))),
        integer("rope_dim", "MLA 的 RoPE 键维度", 64, "element", low=1, high=1e4, more=True, only_if=("attention", ("mla",))),
        integer(
            "kv_group", "几个值共用一个缩放", 0, "element", low=0, high=1024, more=True, help="每组多 2 字节（FP16 缩放）；0 是没有。q8_0：1 字节、32 个一组"
        ),
    ),
    outputs=(
        Output("kv_bytes_per_token", "每 token 的 KV", "B", main=True, digits=6),
        Output("kv_kib_per_token", "每 token 的 KV", "KiB", main=True),
        Output("request_gib", "一个请求", "GiB", main=True),
        Output("total_gib", "这一批", "GiB", main=True),
        Output("mha_ratio", "换成 MHA 是几倍", "×", main=True),
        Output("equivalent_groups", "相当于几组 GQA", "group"),
        Output("kv_elems_per_token", "每 token 的值", "element"),
        Output("kv_growth_bytes_per_token", "到这个长度，再多一个 token 多", "B", digits=6),
    ),
    chart=_chart,
    formula=(
        "每 token 每层：MHA、GQA、MQA 是 2 × KV 头数 × 每头维度；MLA 是潜变量 + RoPE 键，没有 2",
        "每 token = 层数 × 每层的值 × 字节；一个值的字节 = kv_bytes + 2 ÷ 组长",
        "一个请求 = 全长层 × 上下文 + 滑窗层 × min(上下文, 窗口)，再乘每层的值和字节",
    ),
    assumptions=("K 和 V 一样宽；缩放是 FP16", "「每 token」按所有层都没到窗口算；「再多一个」只算还在长的层"),
    leaves_out="不算末块取整（每条最多 15 token）、对齐填充、CUDA graph 占的池，也不算线性层的固定状态和稀疏 attention 的索引。",
    sources=(
        "Kwon et al. 2023（PagedAttention）§3：OPT-13B 每 token 800 KiB",
        "DeepSeek-V2 报告 Table 1：MLA 每 token 存 d_c + d_h^R",
        "滑窗和混合层：模型目录",
    ),
)
def kv_size(
    *, model: Model, attention: str, n_layers: int, n_heads: int, n_kv_heads: int, head_dim: int, kv_lora_rank: int, rope_dim: int,
    n_full_layers: int | None, window: int | None, kv_bytes: float, kv_group: int, context_tokens: int, batch: int,
) -> Result:  # fmt: skip
    """Elements a layer × layers × bytes; windowed layers stop at their window."""
    own = cache_shape(model)
    w = Worked()
    explicit = bool(n_layers or n_heads or n_kv_heads or head_dim)
    shape = own if attention == "preset" and not explicit else _chosen(own, model, attention, n_layers, n_heads, n_kv_heads, head_dim, kv_lora_rank, rope_dim)
    shape = _layout(shape, n_full_layers, window)
    elements = _elements(w, shape, model)
    size = quantity(kv_bytes, "B")
    if kv_group:
        size = w.line("一个值，带上缩放", element_bytes(size, quantity(kv_group), quantity(SCALE_BYTES, "B")), "B", 6)
    per_token = w.line("每 token 的 KV", elements * size, "B", 6)
    kib = w.line("换成 KiB", per_token, "KiB", 6)
    context = quantity(context_tokens, "token")
    if shape.window_layers and shape.windowed:
        kept = w.line("滑窗层留下的", smaller(context, quantity(shape.window, "token")), "token")
        full = w.line("全长层", quantity(shape.full, "element") * size * context, "GiB")
        request = w.line("一个请求", full + quantity(shape.windowed, "element") * size * kept, "GiB")
    else:
        request = w.line("一个请求", per_token * context, "GiB")
    total = request if batch == 1 else w.line("这一批", quantity(batch) * request, "GiB")
    ratio = groups = None
    if shape.comparable:
        mha = w.line("换成 MHA，每 token", kv_elements(quantity(shape.heads), quantity(shape.head_dim)) * quantity(shape.layers), "element")
        ratio = w.line("MHA ÷ 现在", mha / elements, "×")
        groups = w.line("相当于 GQA", elements / (2 * quantity(shape.head_dim) * quantity(shape.layers)), "group")
    return Result(
        values={
            "kv_elems_per_token": shape.elements, "kv_bytes_per_token": per_token, "kv_kib_per_token": kib, "request_gib": request, "total_gib": total,
            "kv_growth_bytes_per_token": shape.growth(context_tokens) * _element_bytes(kv_bytes, kv_group), "mha_ratio": ratio, "equivalent_groups": groups,
        },
        lines=w.lines,
        verdict=_verdict(model, shape, shape != own, per_token, kib, request, total, ratio, context_tokens, batch),
        resolved=_resolved(shape, n_full_layers, window),
        notes=_notes(model, own, shape, attention, explicit, context_tokens, n_kv_heads, window),
        trace=shape,
    )  # fmt: skip


def _element_bytes(kv_bytes: float, group: int) -> float:
    return element_bytes(float(kv_bytes), float(group), float(SCALE_BYTES)) if group else float(kv_bytes)


def _chosen(own: CacheShape, model: Model, attention: str, n_layers: int, n_heads: int, n_kv_heads: int, head_dim: int, rank: int, rope: int) -> CacheShape:
    """A shape put together from explicit sizes and an attention; what is 0 comes from the model.  Raises Refusal."""
    sizes = bool(n_layers or n_heads or n_kv_heads or head_dim)
    heads, width = n_heads or own.heads, head_dim or own.head_dim
    full, sliding, span = (n_layers or own.layers, 0, 0) if sizes else (own.full_layers, own.window_layers, own.window)
    if attention == "mla":
        return uniform("mla", int(latent_elements(float(rank), float(rope))), full, sliding, span, heads, heads, width)
    if not heads or not width:
        raise refuse("model", "模型要有注意力头和每头维度", f"{model.name} 没有单一的值", "在更多参数里填注意力头数和每头维度")
    kv = {"mha": heads, "mqa": 1}.get(attention) or n_kv_heads or own.kv_heads
    if attention in ("mha", "mqa") and n_kv_heads not in (0, kv):
        raise refuse("n_kv_heads", f"{KINDS[attention]} 的 KV 头数是 {kv}", n_kv_heads, "清空它，或把 attention 改成 GQA")
    if kv == 0 or heads % kv:
        near = [d for d in range(1, heads + 1) if heads % d == 0]
        raise refuse("n_kv_heads", "KV 头数必须整除注意力头数", f"{heads} / {kv}", f"可取 {'、'.join(map(str, near[:12]))}")
    kind = "mqa" if kv == 1 < heads else "mha" if kv == heads else "gqa"
    return uniform(kind, int(kv_elements(float(kv), float(width))), full, sliding, span, heads, kv, width)


def _layout(shape: CacheShape, n_full_layers: int | None, window: int | None) -> CacheShape:
    """Which layers keep everything, and how long the others keep it.  Raises Refusal."""
    if n_full_layers is not None:
        if n_full_layers > shape.layers:
            raise refuse("n_full_layers", "存全长的层数不能超过层数", f"{n_full_layers} / {shape.layers}", f"可取 0 到 {shape.layers}")
        if not shape.each and shape.elements:
            raise refuse("n_full_layers", "存全长的层数只能改各层一样的模型", "这个模型各层的 KV 不一样大", "清空它")
        sliding = shape.layers - n_full_layers
        shape = replace(shape, full=shape.each * n_full_layers, windowed=shape.each * sliding, full_layers=n_full_layers, window_layers=sliding)
        if sliding and window is None and not shape.window:
            raise refuse("window", "有滑窗层就要填窗口", "空", f"其余 {sliding} 层存多少个 token；线性层填 0")
    return shape if window is None else replace(shape, window=window)


def _elements(w: Worked, shape: CacheShape, model: Model) -> Quantity:
    if not shape.elements:
        w.say("没有一层存 K、V → 0")
    elif not shape.each:
        w.say(f"各层的 KV 不一样大，一层一层加 → {format_number(shape.elements)} 个元素")
    else:
        two = shape.kind != "mla" and shape.each == 2 * shape.kv_heads * shape.head_dim
        each = w.line("每层：K 和 V，KV 头，每头维度", kv_elements(quantity(shape.kv_heads), quantity(shape.head_dim)), "element") if two else None
        if shape.kind == "mla" and model.mla and shape.each == model.mla.kv_lora_rank + model.mla.qk_rope_head_dim:
            each = w.line("每层：潜变量 + RoPE 键", latent_elements(quantity(model.mla.kv_lora_rank), quantity(model.mla.qk_rope_head_dim)), "element")
        return w.line("每 token", (each or quantity(shape.each, "element")) * quantity(shape.layers, "layer"), "element", 6)
    return quantity(shape.elements, "element", 15)


def _resolved(shape: CacheShape, n_full_layers: int | None, window: int | None) -> dict[str, int]:
    found = {"n_full_layers": shape.full_layers} if n_full_layers is None else {}
    return found | ({"window": shape.window} if window is None and shape.window_layers else {})


def _notes(
    model: Model, own: CacheShape, shape: CacheShape, attention: str, explicit: bool, context: int, n_kv_heads: int, window: int | None
) -> tuple[str, ...]:  # fmt: skip
    found = list(model.notes)
    if explicit and attention == "preset" and own.kind == "mla":
        found.append("填了尺寸就按普通的 K、V 算，MLA 没有算上：要 MLA，把 attention 选成 MLA。")
    if explicit and own.window_layers and not shape.window_layers:
        found.append("填了尺寸就按每层都存全长算，滑窗没有算上：要滑窗，填「存全长的层数」和「滑动窗口」。")
    if model.max_context and context > model.max_context:
        found.append(f"{model.name} 最长支持 {format_number(model.max_context)} token，这里按公式外推。")
    if attention == "mla" and own.kind == "mla" and own.each != shape.each:
        found.append(f"按填的 {shape.each} 个值算；这个模型自己每层存 {own.each} 个，选「模型自己的」就用它。")
    if shape.elements and not shape.comparable:
        found.append("各层不一样大，或者 K 和 V 不一样宽：没有单一的「换成 MHA」和「相当于几组」。")
    if attention == "mla" and n_kv_heads:
        found.append("MLA 的潜变量不分头：KV 头数没有用上。")
    if window is not None and not shape.window_layers:
        found.append("每一层都存全长，窗口没有用上：先把「存全长的层数」改小。")
    return tuple(found)


def _verdict(
    model: Model, shape: CacheShape, changed: bool, per_token: Quantity, kib: Quantity, request: Quantity, total: Quantity, ratio: Quantity | None, context: int, batch: int
) -> str:  # fmt: skip
    if not shape.elements:
        return "没有一层存 K、V：不管上下文多长，KV cache 都是 0，只有固定大小的状态。"
    name = "这组尺寸" if changed else model.name
    said = f"{name}：每 token {kib.text}，一个 {format_number(context)} token 的请求 {request.text}"
    said += f"，{batch} 条一共 {total.text}。" if batch > 1 else "。"
    weights = state_bytes(float(model.total_params), 2.0)
    if not changed and weights and request.value:
        count = weights / request.value
        fits = (
            f"{format_number(count, digits=3)} 条这样的请求" if count >= 1 else "一条这样的请求就超过权重；折算下来 " + format_number(count, digits=2) + " 条"
        )
        said += f"{fits}和 BF16 权重（{format_number(weights / GIB, digits=4)} GiB）一样大。"
    if shape.window_layers:
        grown = shape.growth(context) / shape.elements
        still = f"只有 {shape.full_layers} 层还在涨" if shape.full_layers else "一层也不涨了，一个请求到此封顶"
        said += f"上下文再长，{still}。" if grown < 1 else f"还没超过窗口 {format_number(shape.window)}，每一层都在涨。"
    elif ratio is not None and ratio.value > 1.001:
        said += f"同样的头数不共享 K、V（MHA），要 {ratio.text}。"
    elif ratio is not None and shape.kind == "mha":
        said += "每个头都自存一份：换成 GQA 要在训练时定，现在能改的是 KV 的字节数。"
    return said
