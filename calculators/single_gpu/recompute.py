"""How many activations does a card keep with none, selective or full recomputation, and what do the repeated FLOPs cost?"""

from __future__ import annotations

from dataclasses import dataclass

from calculators.catalog.models import model
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Bar, BarChart, Chart, LineChart, Mark, Part, Series
from calculators.core.errors import refuse
from calculators.core.inputs import choice, flag, integer, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.units import GB
from calculators.core.worked import Worked, quantity
from calculators.formulas.activations import SCORE_BYTES, layer_bytes, score_bytes, stack_bytes
from calculators.formulas.params import attention_params, gated_ffn_params
from calculators.formulas.recompute import GPT_CUT, GPT_WHOLE, attention_share, crossover_seq, cut_layer_bytes, share_of_step

LLAMA = "llama-3-8b"
PER_SCORE = SCORE_BYTES["unfused"]


@dataclass(frozen=True)
class Shape:
    """One run: ``whole`` and ``cut`` are the bytes per token and layer that TP leaves whole and cuts, scores not among them."""

    s: int
    b: int
    h: int
    a: int
    L: int
    width: int
    whole: int
    cut: int
    matrix_params: int


def _gpt(s: int, b: int, h: int, a: int, L: int) -> Shape:
    return Shape(s, b, h, a, L, h, GPT_WHOLE * h, GPT_CUT * h, 12 * h * h)


def _llama(s: int, b: int, L: int) -> Shape:
    """The block of chapter 03: the inputs and outputs of both norms (8h) stay whole."""
    m = model(LLAMA)
    h, a, kv, hd, f = (float(x) for x in (m.hidden, m.heads, m.kv_heads, m.head_dim, m.ffn))
    layer = round(layer_bytes(h, a, kv, hd, f))
    matrices = round(attention_params(h, a, kv, hd) + gated_ffn_params(h, f))
    return Shape(s, b, m.hidden, m.heads, L, m.heads * m.head_dim, 8 * m.hidden, layer - 8 * m.hidden, matrices)


PRESETS: dict[str, tuple[int, int, int, int, int]] = {
    # Korthikanti et al. 2022, Table 3 (s, b, h, a, L); dimensions and micro-batches checked against calculon's validation files
    "gpt-3-175b": (2048, 1, 12288, 96, 96),
    "megatron-22b": (2048, 4, 6144, 64, 48),
    "mt-nlg-530b": (2048, 1, 20480, 128, 105),
    "1t": (2048, 1, 25600, 160, 128),
    LLAMA: (8192, 1, 4096, 32, 32),
}
NAMES = {
    "gpt-3-175b": "GPT-3 175B",
    "megatron-22b": "Megatron 22B",
    "mt-nlg-530b": "MT-NLG 530B",
    "1t": "Megatron 1T",
    LLAMA: "Llama-3-8B（融合的 norm 与 SwiGLU）",
}
WAYS: dict[str, tuple[str, bool, bool]] = {
    # name: (mode, sequence parallelism, are scores kept)
    "TP": ("none", False, True),
    "TP + 选择性": ("none", False, False),
    "TP + SP": ("none", True, True),
    "TP + SP + 选择性": ("none", True, False),
    "全部重算": ("full", False, False),
}


def _kept(shape: Shape, tp: int, mode: str, sp: bool, with_scores: bool) -> float:
    """GB on one card."""
    scores = score_bytes(float(PER_SCORE), float(shape.a), float(shape.s)) if with_scores else 0.0
    layer = 2.0 * shape.h if mode == "full" else cut_layer_bytes(float(shape.whole), shape.cut + scores, float(tp), sp)
    return stack_bytes(float(shape.s * shape.b), float(shape.L), layer) / GB


def _chart(run: Run, *, tp: int, sp: bool, mode: str, flash: bool, **_: object) -> tuple[Chart, ...]:
    shape = run.result.trace
    assert isinstance(shape, Shape)
    base = _kept(shape, tp, "none", False, True)
    now = "全部重算" if mode == "full" else "TP" + (" + SP" if sp else "") + ("" if mode == "none" and not flash else " + 选择性")
    bars = []
    for name, (way, cut_all, scores) in WAYS.items():
        kept = _kept(shape, tp, way, cut_all, scores)
        label = name.replace("选择性", "FlashAttention") if flash else name
        bars.append(Bar(label, (Part("激活", 100 * kept / base),), f"{format_number(kept)} GB", emphasis=name == now))
    lengths = [2**k for k in range(9, 18)]
    longer = {s: Shape(s, shape.b, shape.h, shape.a, shape.L, shape.width, shape.whole, shape.cut, shape.matrix_params) for s in lengths}
    curves = tuple(
        Series(name, tuple((float(s), _kept(longer[s], tp, way, sp, scores)) for s in lengths), emphasis=(way, scores) == (mode, mode == "none" and not flash))
        for name, way, scores in (("不重算", "none", True), ("选择性或 FlashAttention", "none", False), ("全部重算", "full", False))
    )
    return (
        BarChart(
            "各留多少激活", "以只开张量并行、什么都不重算为 100%。选择性重算去掉分数那一块，序列并行把剩下的也切开。", Axis("占只开 TP 的", "%"), tuple(bars)
        ),
        LineChart(
            "序列变长时",
            "两轴都是对数。留着分数的那条最后翻倍就翻四倍，去掉分数就是直线。",
            Axis("序列长度", "token", log=True),
            Axis("每卡的激活", "GB", log=True),
            curves,
            marks=(Mark("现在", float(shape.s), float(run.values["activations_gb"]), emphasis=True),),  # type: ignore[arg-type]
        ),
    )


@calculator(
    title="激活与重算",
    question="不重算、选择性重算、全部重算，一张卡各留多少激活，各多花多少运算？",
    chapter="09",
    inputs=(
        choice("preset", "模型", "gpt-3-175b", tuple(PRESETS), labels=NAMES),
        choice("mode", "重算", "selective", ("none", "selective", "full"), labels={"none": "不重算", "selective": "选择性：只重算 attention 的分数", "full": "全部：每层只留输入"}),
        integer("tp", "张量并行几张卡", 8, "card", low=1, high=64, stops=powers_of_two(1, 64)),
        flag("sp", "序列并行", True, help="norm 和 dropout 那一段也按序列切开（第 12 章）"),
        flag("flash", "FlashAttention", False, help="分数从不落显存，反向在 kernel 里重算"),
        integer("s", "序列长度 s", 0, "token", low=0, high=1e7, kind="tokens", more=True, help="0：用预设的值"),
        integer("b", "micro-batch b", 0, low=0, high=1e7, more=True, help="0：用预设的值"),
        integer("h", "隐藏维 h", 0, low=0, high=1e7, more=True, help="0：用预设的值"),
        integer("a", "头数 a", 0, low=0, high=1e7, more=True, help="0：用预设的值"),
        integer("L", "层数 L", 0, low=0, high=1e7, more=True, help="0：用预设的值"),
    ),
    outputs=(
        Output("activations_gb", "每卡的激活", "GB", main=True),
        Output("pct_of_tp_baseline", "是只开 TP 时的", "%", main=True),
        Output("step_overhead_pct", "一步多花的运算", "%", main=True),
        Output("baseline_gb", "只开 TP、不重算", "GB"),
        Output("forward_overhead_pct", "重算的部分占前向", "%"),
        Output("score_ratio", "分数折成隐藏维：5as/h"),
        Output("score_share_pct", "分数占一层的", "%"),
        Output("crossover_seq", "分数和其余一样多的长度", "token"),
    ),
    chart=_chart,
    formula=(
        "GPT 块每 token 每层 = 10h + (24h + 5as) ÷ tp；开序列并行 = (34h + 5as) ÷ tp",
        "选择性重算或 FlashAttention 去掉 5as；全部重算只留 2h",
        "选择性重算占前向 = s ÷ (6h + s)；占一步再除以 3",
    ),
    assumptions=("16 位激活；GPT 块带 GeLU 和 dropout，Llama-3-8B 按第 03 章的融合口径", "没开序列并行时，全部重算的层输入每张卡都存整份"),
    leaves_out="只算存下来的：全部重算时正在重算的那一层另加（切几段那张卡片算进去了）。不算词表、logits、dropout 前的 embedding（sbh·p），也不算流水线第一级要留的 p 份。",
    sources=("Korthikanti et al. 2022，Eq. 1、Table 2、Table 3；开销 Appendix A", "NVIDIA/Megatron-LM issue 523：选择性重算是 s/18h，不是 s/6h 的两倍", "Llama-3-8B：第 03 章，和 autograd 逐字节相等"),
)  # fmt: skip
def recompute(*, preset: str, mode: str, tp: int, sp: bool, flash: bool, s: int, b: int, h: int, a: int, L: int) -> Result:
    """Bytes per token and layer × tokens × layers on one card, against tensor parallelism alone."""
    shape = _shape(preset, tp, sp, s, b, h, a, L)
    w = Worked()
    heads, seq, width, cards = quantity(shape.a), quantity(shape.s), quantity(shape.h), quantity(tp)
    tokens = w.line("token", quantity(shape.s) * quantity(shape.b), "token", 6) if shape.b > 1 else quantity(shape.s, "token")
    layers = quantity(shape.L, "layer")
    whole, cut = quantity(shape.whole, "B"), quantity(shape.cut, "B")
    scores = w.line("每 token 每层的分数", score_bytes(quantity(PER_SCORE, "B"), heads, seq), "B", 6)
    linear = w.line("其余的激活", whole + cut, "B", 6)
    crossover = w.line("分数追上其余的长度", crossover_seq(linear, heads, quantity(PER_SCORE, "B")), "token")

    keeps_scores = mode == "none" and not flash
    parted = cut + scores if keeps_scores else cut
    per_token = quantity(2, "B") * width if mode == "full" else cut_layer_bytes(whole, parted, cards, sp)
    layer = w.line("这张卡每 token 每层", per_token, "B", 6)
    activations = w.line("这张卡的激活", stack_bytes(tokens, layers, layer), "GB")
    plain = w.line("只开 TP，每 token 每层", cut_layer_bytes(whole, cut + scores, cards, False), "B", 6)
    baseline = w.line("只开 TP 的激活", stack_bytes(tokens, layers, plain), "GB")
    share = w.line("剩下", activations / baseline, "%")

    of_forward = quantity(0, "%")
    if mode == "full":
        of_forward = quantity(100, "%")
    elif mode == "selective" and not flash:
        attention = w.line("attention 每 token", quantity(4, "FLOP") * seq * quantity(shape.width), "FLOP")
        matrices = w.line("矩阵乘每 token", quantity(2, "FLOP") * quantity(shape.matrix_params), "FLOP")
        of_forward = w.line("重算的占前向", attention_share(attention, matrices), "%")
    of_step = w.line("占一步（前向 1 + 反向 2）", share_of_step(of_forward), "%")
    score_share = scores.value / (linear.value + scores.value)
    return Result(
        values={
            "activations_gb": activations, "pct_of_tp_baseline": share, "step_overhead_pct": of_step, "baseline_gb": baseline,
            "forward_overhead_pct": of_forward, "score_ratio": scores.value / shape.h,
            "score_share_pct": None if preset == LLAMA else 100 * score_share, "crossover_seq": crossover,
        },
        lines=w.lines,
        verdict=f"每张卡留 {activations.text} 激活，只开 TP 时是 {baseline.text}。" + _advice(mode, flash, sp, tp, score_share, of_step.text),
        trace=shape,
    )  # fmt: skip


def _shape(preset: str, tp: int, sp: bool, s: int, b: int, h: int, a: int, L: int) -> Shape:
    preset_s, preset_b, preset_h, preset_a, preset_L = PRESETS[preset]
    s, b, L = s or preset_s, b or preset_b, L or preset_L
    if preset == LLAMA:
        for field, label, value in (("h", "隐藏维 h", h), ("a", "头数 a", a)):
            if value:
                raise refuse(field, f"{label} 对 Llama-3-8B 不能改", value, "换一个 GPT 预设，或用第 03 章的训练显存")
    typed_h, h, a = h, h or preset_h, a or preset_a
    for field, label, whole, part_label, part in (
        ("h" if typed_h else "a", "隐藏维 h ", h, "头数 a", a),
        ("tp", "隐藏维 h ", h, "张量并行卡数 tp", tp),
        ("tp", "头数 a ", a, "张量并行卡数 tp", tp),
        *((("tp", "开序列并行时，序列长度 s ", s, "张量并行卡数 tp", tp),) if sp else ()),
    ):
        if whole % part:
            raise refuse(field, f"{label}必须能被{part_label} 整除", f"{whole} / {part}", f"{part_label} 可取 {_divisors(whole, part)}")
    return _llama(s, b, L) if preset == LLAMA else _gpt(s, b, h, a, L)


def _divisors(n: int, near: int) -> str:
    """The divisors closest to what was typed."""
    found = sorted((d for d in range(1, min(n, 4096) + 1) if n % d == 0), key=lambda d: abs(d - near))[:6]
    return "、".join(str(d) for d in sorted(found))


def _advice(mode: str, flash: bool, sp: bool, tp: int, score_share: float, step: str) -> str:
    if mode == "full":
        return f"一步多花 {step} 的运算，每层的前向都再做一遍。还放得下的话，先退回{'只开 FlashAttention' if flash else '选择性重算'}。"
    if mode == "none" and not flash:
        return f"其中 {format_number(100 * score_share, digits=3)}% 是注意力分数：换 FlashAttention，这一块就不用存；kernel 用不上，再选择性重算。"
    cost = "分数不落显存，重算在 kernel 里做" if flash else f"一步多花 {step} 的运算；FlashAttention 去掉的是同一块，不必多算"
    return f"{cost}。" + ("再省就开序列并行。" if tp > 1 and not sp else "还不够，再开全部重算。")
