"""How many bytes of activations does a layer keep on one card under TP, sequence parallelism and recomputation?"""

from __future__ import annotations

from dataclasses import dataclass

from calculators.catalog import Model
from calculators.catalog.models import models
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Bar, BarChart, Chart, Part
from calculators.core.errors import FieldError, Refusal, refuse
from calculators.core.inputs import choice, flag, integer, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.units import GB
from calculators.core.worked import Quantity, Worked, quantity
from calculators.distributed._models import model_or
from calculators.formulas.activations import SCORE_BYTES, layer_bytes, logits_bytes, score_bytes
from calculators.formulas.recompute import GPT_CUT, GPT_WHOLE, attention_share, cut_layer_bytes, share_of_step
from calculators.formulas.tensor import LARGEST_TP, near

CUSTOM_GPT = "custom-gpt"
FULL = "full"


@dataclass(frozen=True)
class Mode:
    """One row of Table 2: is the layer cut at all, are norms and dropout cut too, are the scores kept?"""

    label: str
    cut: bool
    sp: bool
    scores: bool


MODES = {
    "none": Mode("什么都不开", False, False, True),
    "tp": Mode("TP", True, False, True),
    "tp+sp": Mode("TP + SP", True, True, True),
    "tp+sel": Mode("TP + 选择性重算", True, False, False),
    "tp+sp+sel": Mode("TP + SP + 选择性重算", True, True, False),
    FULL: Mode("全部重算", False, False, False),
}
FOR_PRESETS = ("none", "tp+sp+sel", FULL)
FULL_COEF = 2
"""The layer's input, 16 bits, whole on every card."""


def _dense_gated(m: Model) -> bool:
    return m.moe is None and m.mla is None and m.ffn_gated and m.ffn > 0 and m.heads > 0 and "recurrent" not in m.breakdown


PRESETS = tuple(id for id, m in models().items() if _dense_gated(m))


@dataclass(frozen=True)
class Coefficients:
    """Bytes per s·b·h, scores apart; ``whole`` 0 for a Llama block, whose rows without SP the paper does not give."""

    whole: float
    cut: float
    scores: float

    def of(self, mode: Mode, t: float) -> tuple[float, float, float]:
        """(left whole, cut, scores) on one card."""
        if mode is MODES[FULL]:
            return (float(FULL_COEF), 0.0, 0.0)
        divisor = t if mode.cut else 1.0
        scores = self.scores / divisor if mode.scores else 0.0
        return (self.whole / (divisor if mode.sp else 1.0), self.cut / divisor, scores)


def _chart(run: Run, *, t: int, mode: str, **_: object) -> tuple[Chart, ...]:
    trace = run.result.trace
    assert isinstance(trace, tuple)
    coefficients, unit, gpt, logits = trace
    bars = []
    for name, row in MODES.items():
        if not gpt and name not in FOR_PRESETS:
            continue
        whole, cut, scores = (part * unit for part in coefficients.of(row, float(t)))
        parts = ((Part("norm 与 dropout", whole),) if gpt else ()) + (Part("矩阵乘的输入", cut), Part("注意力分数", scores))
        label = row.label if gpt else row.label.replace("选择性重算", "FlashAttention")
        if name == FULL:
            parts = (Part("层输入", whole),)
        bars.append(Bar(label, parts, f"{format_number(whole + cut + scores)} GB", emphasis=name == mode))
    bars.append(Bar("logits，只有一份", (Part("logits", logits),), f"{format_number(logits)} GB"))
    return (
        BarChart(
            "一层在每张卡上留多少",
            "TP 只切矩阵乘那一块，norm 与 dropout 人人一份；SP 把它也切开；选择性重算或 FlashAttention 去掉分数。",
            Axis("每层每卡", "GB", low=0),
            tuple(bars),
        ),
    )


@calculator(
    title="TP、SP、重算后的激活",
    question="一层的激活，切开之后每张卡还留多少？",
    chapter="12",
    inputs=(
        model_or(CUSTOM_GPT, "GPT 块，自己填（默认 GPT-3 175B）", CUSTOM_GPT, where=_dense_gated, help="稠密、门控 FFN 的模型，按 Llama 块加 FlashAttention 算"),
        choice("mode", "做法", "tp+sp+sel", tuple(MODES), labels={name: row.label for name, row in MODES.items()}),
        integer("t", "张量并行 t", 8, "card", low=1, high=LARGEST_TP, stops=powers_of_two(1, 64)),
        integer("s", "序列长度 s", 2048, "token", low=128, high=1e6, kind="tokens", stops=powers_of_two(512, 131072)),
        flag("flash", "FlashAttention", False, help="分数不落显存，和选择性重算去掉的是同一项"),
        integer("b", "micro-batch b", 1, "sequence", low=1, high=64, more=True, stops=powers_of_two(1, 64)),
        integer("h", "隐藏维 h", 12288, low=1, high=1e6, more=True, only_if=("model", (CUSTOM_GPT,))),
        integer("a", "注意力头 a", 96, low=1, high=10_000, more=True, only_if=("model", (CUSTOM_GPT,))),
        integer("L", "层数 L", 96, "layer", low=1, high=10_000, more=True, only_if=("model", (CUSTOM_GPT,))),
        integer("vocab", "词表 V", 50257, "token", low=1, high=1e7, more=True, only_if=("model", (CUSTOM_GPT,))),
        flag("fused_swiglu", "融合的 SwiGLU", True, more=True, only_if=("model", PRESETS), help="不融合时，silu(gate) 也要存一份"),
    ),
    outputs=(
        Output("per_layer_gb", "每层每卡", "GB", main=True),
        Output("all_layers_gb", "全部层", "GB", main=True),
        Output("ratio_to_tp_pct", "是只开 TP 的", "%", main=True),
        Output("coef", "每个 s·b·h 的字节"),
        Output("coef_unsharded", "不切不重算时"),
        Output("attn_term", "分数那一项 5as/h"),
        Output("tp_baseline_gb", "只开 TP，每层", "GB"),
        Output("selective_saved_pct", "选择性重算去掉一层的", "%"),
        Output("selective_vs_forward_pct", "重算的占前向", "%"),
        Output("hfu_over_mfu_paper", "HFU ÷ MFU，论文的口径：1 + s/6h", digits=6),
        Output("hfu_over_mfu_exact", "HFU ÷ MFU，按一步算", digits=6),
        Output("logits_gb", "另有 logits（FP32）", "GB", main=True),
    ),
    chart=_chart,
    formula=(
        "GPT 块，每层 = s·b·h × 系数；不切 34 + 5as/h，TP 10 + (24 + 5as/h)/t，再开 SP 全部 ÷ t",
        "选择性重算或 FlashAttention 去掉 5as/h；全部重算只留 2",
        "Llama 块：8 + 4·a·d/h + 4·kv·d/h + 6·ffn/h，不融合的 SwiGLU 是 8·ffn/h",
        "选择性重算占前向 = s ÷ (6h + s)；logits = 4·s·b·V ÷ t",
    ),
    assumptions=("16 位激活，dropout 掩码 1 字节；34 那一套只对 GELU、MHA、带 dropout 的 GPT 块成立", "预设按 FlashAttention 算，没有 5as/h；logits 是 FP32"),
    leaves_out="Llama 块的系数是这里推导的，没有发表，拿 memory snapshot 核对。KV 头少于 t 时 K、V 要复制，这里仍按 ÷ t。流水线 1F1B 的第一级要留 L 层份（第 13 章）。不算 embedding 的 dropout。",
    sources=("Korthikanti et al. 2022（Reducing Activation Recomputation），Eq. 1–6、Table 2", "Llama 块：第 03 章，和 autograd 逐字节相等", "HFU 的口径：同一篇论文的 HFU 一列"),
)  # fmt: skip
def tp_activation(
    *, model: Model | None, mode: str, t: int, s: int, flash: bool, b: int, h: int, a: int, L: int, vocab: int, fused_swiglu: bool
) -> Result:  # fmt: skip
    """Bytes per s·b·h of the chosen row × s·b·h, and the same for the row of plain TP."""
    if model is not None:
        h, a, L, vocab = model.hidden, model.heads, model.layers, model.vocab
    _check(model, MODES[mode], mode, t, s, h, a)
    w = Worked()
    width, cards = quantity(h), quantity(t)
    score_coef = float(SCORE_BYTES["unfused"]) * a * s / h
    if model is None:
        coefficients = Coefficients(float(GPT_WHOLE), float(GPT_CUT), 0.0 if flash else score_coef)
        term = w.line("分数那一项 5as/h", score_bytes(quantity(SCORE_BYTES["unfused"]), quantity(a), quantity(s)) / width)
        coef, unsharded, plain = _gpt_rows(w, MODES[mode], mode, term, cards, flash)
    else:
        each = layer_bytes(width, quantity(a), quantity(model.kv_heads), quantity(model.head_dim), quantity(model.ffn), 6 if fused_swiglu else 8)
        unsharded = w.line("Llama 块的系数", each / width, "B", 6)
        coefficients = Coefficients(0.0, unsharded.value, 0.0)
        coef, plain = _llama_row(w, mode, unsharded, cards), None
    volume = w.line("s·b·h", quantity(s) * quantity(b) * width, "", 6)
    layer = w.line("每层每卡", volume * coef, "GB")
    every = w.line("全部层", quantity(L, "layer") * layer, "GB")
    logits = w.line("logits", logits_bytes(quantity(s) * quantity(b), quantity(vocab), quantity(4, "B")) / cards, "GB")
    values: dict[str, Quantity | float | None] = {
        "per_layer_gb": layer, "all_layers_gb": every, "coef": coef.value, "coef_unsharded": unsharded.value, "logits_gb": logits,
        "attn_term": score_coef if model is None else 0.0,
        **dict.fromkeys(("tp_baseline_gb", "ratio_to_tp_pct", "selective_saved_pct", "selective_vs_forward_pct", "hfu_over_mfu_paper", "hfu_over_mfu_exact")),
    }  # fmt: skip
    if plain is not None:
        repeated = w.line("选择性重算占前向", attention_share(quantity(s), 6 * width), "%")
        values |= {
            "tp_baseline_gb": w.line("只开 TP，每层", volume * plain, "GB"),
            "ratio_to_tp_pct": w.line("是只开 TP 的", coef / plain, "%"),
            "selective_saved_pct": 100 * score_coef / (GPT_WHOLE + GPT_CUT + score_coef),
            "selective_vs_forward_pct": repeated,
            "hfu_over_mfu_paper": w.line("论文的 HFU ÷ MFU", 1 + quantity(s) / (6 * width), "", 6).value,
            "hfu_over_mfu_exact": w.line("按一步算", 1 + share_of_step(repeated), "", 6).value,
        }
    return Result(
        values=values,
        lines=w.lines,
        verdict=_verdict(model, mode, t, flash, layer, every, values["ratio_to_tp_pct"], logits),
        trace=(coefficients, volume.value / GB, model is None, logits.value / GB),
    )  # fmt: skip


def _gpt_rows(w: Worked, row: Mode, mode: str, term: Quantity, cards: Quantity, flash: bool) -> tuple[Quantity, Quantity, Quantity]:
    """Coefficients of the chosen mode, of nothing at all, and of plain TP."""
    whole, cut = quantity(GPT_WHOLE), quantity(GPT_CUT)
    unsharded = w.line("不切的系数", whole + cut if flash else whole + cut + term, "B", 6)
    plain = w.line("只开 TP 的系数", cut_layer_bytes(whole, cut if flash else cut + term, cards, False), "B", 6)
    if mode == FULL:
        return quantity(FULL_COEF, "B"), unsharded, plain
    if not row.cut:
        return unsharded, unsharded, plain
    kept = cut + term if row.scores and not flash else cut
    return w.line("这种做法的系数", cut_layer_bytes(whole, kept, cards, row.sp), "B", 6), unsharded, plain


def _llama_row(w: Worked, mode: str, unsharded: Quantity, cards: Quantity) -> Quantity:
    if mode == FULL:
        return quantity(FULL_COEF, "B")
    return w.line("每张卡的系数", unsharded / cards, "B", 6) if MODES[mode].cut else unsharded


def _check(model: Model | None, row: Mode, mode: str, t: int, s: int, h: int, a: int) -> None:
    """Raises Refusal."""
    if model is not None and mode not in FOR_PRESETS:
        raise Refusal((FieldError("mode", f"这几行公式只对 GPT 结构成立：{model.name}，可取 {'、'.join(FOR_PRESETS)}"),))
    if model is None and h % a:
        raise refuse("a", "隐藏维 h 必须能被注意力头 a 整除", f"{h} / {a}", f"a 可取 {near(_divisors(h), a)}")
    if a % t:
        raise refuse("t", "注意力头必须能被张量并行 t 整除", f"{a} / {t}", f"可取 {near([d for d in _divisors(a) if d <= LARGEST_TP], t)}")
    if row.sp and s % t:
        raise refuse("t", "开 SP 时，序列长度 s 必须能被张量并行 t 整除", f"{s} / {t}", f"可取 {near([d for d in _divisors(s) if a % d == 0], t)}")


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, min(n, 10_000) + 1) if n % d == 0]


def _verdict(model: Model | None, mode: str, t: int, flash: bool, layer: Quantity, every: Quantity, ratio: Quantity | float | None, logits: Quantity) -> str:
    head = f"每层每卡 {layer.text}，全部层 {every.text}"
    if isinstance(ratio, Quantity) and mode != "tp":
        head += f"，是只开 TP 的 {ratio.text}"
    return f"{head}。{_advice(model is None, mode, t, flash)}" + (f"logits 另有 {logits.text}，比一层还大。" if logits.value > layer.value else "")


def _advice(gpt: bool, mode: str, t: int, flash: bool) -> str:
    """The next thing to do; never what is on already."""
    if mode == FULL:
        return "每层只剩输入，t 再大也不变；代价是反向前整层前向再跑一遍。"
    if t == 1:
        return "一张卡，TP 和 SP 都无从切起。"
    if not gpt:
        return "一张卡存整份，没有切。" if mode == "none" else "分数不落显存，norm 也切开了：还不够，就全部重算。"
    return {
        "none": "一个字节也没切。",
        "tp": "没切的是 norm 与 dropout 那一段：打开 SP，通信的字节不变。",
        "tp+sp": "能切的都切了，分数也不落显存：还不够，就全部重算。" if flash else "剩下的大头是注意力分数：用 FlashAttention，或选择性重算。",
        "tp+sel": "分数没了，没切的是 norm 与 dropout 那一段：打开 SP，通信的字节不变。",
        "tp+sp+sel": "能切的都切了，分数也没了：还不够，就全部重算。",
    }[mode]
