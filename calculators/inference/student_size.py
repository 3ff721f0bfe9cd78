"""How many parameters does a BERT-shaped student have, and how much smaller is it?"""

from __future__ import annotations

from calculators.core.calculator import Output, Result, calculator
from calculators.core.inputs import flag, integer, linear_stops, powers_of_two
from calculators.core.worked import Worked, quantity
from calculators.formulas.distillation import encoder_embedding, encoder_layer, encoder_pooler


@calculator(
    title="学生有多大",
    question="编码器砍到这么多层、这么宽，参数还剩多少？",
    chapter="18b",
    inputs=(
        integer("layers", "层数", 6, "layer", low=1, high=100, stops=linear_stops(1, 24, 1)),
        integer("hidden", "隐藏维 d", 768, low=16, high=16384, stops=(128, 256, 312, 384, 512, 768, 1024)),
        integer("ffn", "FFN 宽", 3072, low=16, high=65536, stops=powers_of_two(512, 8192)),
        integer("vocab", "词表", 30522, low=1, high=1_000_000, more=True, stops=(21128, 30522, 50265, 119547, 250002)),
        integer("positions", "位置数", 512, low=1, high=1_000_000, more=True, stops=powers_of_two(128, 8192)),
        integer("token_types", "句段种类", 0, low=0, high=10, more=True, stops=(0, 1, 2), help="DistilBERT 去掉了句段表"),
        flag("pooler", "有 pooler", False, more=True),
        integer("ref_params", "和谁比（参数量）", 109_482_240, "params", low=1, high=10**13, more=True, help="默认是 BERT-base"),
    ),
    outputs=(Output("params", "参数量", "params", main=True, digits=9), Output("change_pct", "比老师", "%", main=True, digits=5)),
    formula=(
        "词表 = (词表 + 位置 + 句段) × d + 2d",
        "每层 = 4(d² + d) + 2·d·FFN + FFN + d + 4d",
        "参数 = 词表 + 层数 × 每层 + pooler (d² + d)",
    ),
    assumptions=("BERT 家族的编码器：带偏置，每层两个 LayerNorm；解码器看第 18c 章的 structured-prune",),
    leaves_out="不算任务头：二分类的头是 d² + d + 2d + 2 个参数。",
    sources=("Devlin et al. 2018（BERT-base：12 层、768、3072、词表 30522、512 个位置、2 种句段）", "Sanh et al. 2019（DistilBERT：6 层，无句段表、无 pooler）"),
)  # fmt: skip
def student_size(*, layers: int, hidden: int, ffn: int, vocab: int, positions: int, token_types: int, pooler: bool, ref_params: int) -> Result:
    """Every matrix, bias and LayerNorm counted."""
    w = Worked()
    d = quantity(hidden, digits=9)
    tables = w.line("词表", encoder_embedding(quantity(vocab, digits=9), quantity(positions, digits=9), quantity(token_types), d), "", 15)
    layer = w.line("每层", encoder_layer(d, quantity(ffn, digits=9)), "", 15)
    total = w.line("层数 × 每层 + 词表", quantity(layers) * layer + tables, "", 15)
    if pooler:
        total = w.line("加上 pooler", total + encoder_pooler(d), "", 15)
    change = w.line("比老师", total / quantity(ref_params, digits=15) - quantity(1), "%", 5)
    share = w.line("词表占", tables / total, "%")
    return Result(
        values={"params": round(total.value), "change_pct": change}, lines=w.lines, verdict=_verdict(round(total.value), change.value, share.value, share.text)
    )


def _verdict(params: int, change: float, share: float, share_text: str) -> str:
    size = quantity(params, "params", 4).text
    word = "少" if change < 0 else "多"
    head = f"{size}，比老师{word} {quantity(abs(change) * 100, '%', 3).text}。" if change else f"{size}，和老师一样大。"
    return head + (f"词表占了 {share_text}：再砍层也省不下它。" if share > 0.3 else f"词表占 {share_text}，其余都在层里。")
