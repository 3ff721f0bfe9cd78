"""What does it cost to distil a small model from a large one, and what must be stored?"""

from __future__ import annotations

from calculators.catalog import Accelerator, gpu_input
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Rule, Series
from calculators.core.errors import refuse
from calculators.core.inputs import choice, integer, linear_stops, log_stops, number, powers_of_two
from calculators.core.units import HOUR
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.distillation import KEPT_LOGIT_BYTES, logit_bytes, teacher_flops
from calculators.formulas.training import card_seconds, training_flops

MODES = ("online", "offline-topk", "text")
LABELS = {"online": "在线 logits", "offline-topk": "离线 top-k", "text": "只用文本"}
BF16, TOKEN_ID = 2, 4


def _passes(mode: str, epochs: int) -> int:
    """How often the teacher runs over the tokens on the training cards."""
    return {"online": epochs, "offline-topk": 1, "text": 0}[mode]


def _chart(
    run: Run, *, student_params: float, teacher_params: float, tokens: float, epochs: int, mode: str, mfu: float, gpu: Accelerator, gpu_price_per_h: float,
    teacher_gen_usd_per_mtok: float, scratch_tokens: float, **_: object,
) -> tuple[Chart, ...]:  # fmt: skip
    def usd(flops: float) -> float:
        return card_seconds(flops, gpu.dense_flops, mfu) / HOUR * gpu_price_per_h

    def student(d: float) -> float:
        return usd(training_flops(student_params, d * epochs, 6.0))

    def teacher(d: float) -> float:
        return d / 1e6 * teacher_gen_usd_per_mtok if mode == "text" else usd(teacher_flops(2.0, teacher_params, d * _passes(mode, epochs)))

    low, high = tokens / 100, tokens * 100
    counts = [low * (high / low) ** (i / 20) for i in range(21)]
    curves = (
        Series("只算学生训练", tuple((d, student(d)) for d in counts), dashed=True),
        Series("学生 + 老师", tuple((d, student(d) + teacher(d)) for d in counts), emphasis=True),
    )
    total = float(run.values["cost_usd"])  # type: ignore[arg-type]
    return (
        LineChart(
            "蒸馏的 token 和钱",
            "两轴都是对数。实线高出虚线的那一截是老师的；横线是同样大的学生从头训的钱。",
            Axis("蒸馏的 token 数", "token", log=True),
            Axis("花费", "$", log=True),
            curves,
            (Mark("现在", tokens, total, emphasis=True),),
            (Rule("从头训", y=usd(training_flops(student_params, scratch_tokens, 6.0))),),
        ),
    )


@calculator(
    title="蒸馏要花多少",
    question="教出一个小模型，老师花多少，学生花多少，要存多少？",
    chapter="18b",
    inputs=(
        number("student_params", "学生参数", 8.03e9, "params", low=1e7, high=1e12, stops=log_stops(1e8, 1e11, 10)),
        number("teacher_params", "老师参数", 70.55e9, "params", low=1e8, high=2e12, stops=log_stops(1e9, 1e12, 10), help="MoE 填激活参数"),
        number("tokens", "蒸馏的 token", 1e10, "token", low=1e6, high=2e13, kind="tokens", stops=log_stops(1e8, 1e12, 5), help="不重复的 token"),
        choice("mode", "形态", "online", MODES, labels=LABELS),
        integer("epochs", "遍数", 1, low=1, high=10, stops=linear_stops(1, 5, 1)),
        integer("top_k", "每 token 存几个", 64, low=1, high=1_000_000, more=True, stops=powers_of_two(1, 1024)),
        integer("vocab", "词表", 128256, low=1000, high=1_000_000, more=True, stops=(32000, 50257, 128256, 151936, 262144)),
        number("mfu", "MFU", 0.40, low=0.05, high=1, kind="fraction", more=True, stops=linear_stops(0.05, 0.7, 0.05)),
        gpu_input(more=True),
        number("gpu_price_per_h", "每卡时", 2.0, "$/h", low=0.1, high=50, kind="money", more=True, stops=linear_stops(0.5, 10, 0.5), help="假设的租价，按你的合同改"),
        number("teacher_gen_usd_per_mtok", "老师生成，每百万 token", 0.520, "$", low=0, high=100, kind="money", more=True, stops=linear_stops(0, 10, 0.1), only_if=("mode", ("text",)), help="按服务价算：解码卡在带宽，按训练的 MFU 算就太便宜了"),
        number("scratch_tokens", "从头训要的 token", 15e12, "token", low=1e9, high=1e14, more=True, stops=log_stops(1e11, 1e14, 5)),
    ),
    outputs=(
        Output("student_flop", "学生训练", "FLOP"),
        Output("teacher_flop", "老师前向", "FLOP"),
        Output("total_flop", "总运算量", "FLOP", digits=5),
        Output("gpu_hours", "卡时", "GPU·h", main=True, digits=6),
        Output("cost_usd", "花费", "$", main=True, digits=6),
        Output("teacher_share_pct", "老师占", "%", main=True, digits=5),
        Output("storage_full_tb", "存全部 logits", "TB", digits=6),
        Output("storage_topk_tb", "存 top-k", "TB"),
        Output("storage_text_tb", "存文本", "TB"),
        Output("scratch_ratio", "从头训是它的", "×", main=True),
    ),
    chart=_chart,
    formula=(
        "学生 = 6 × N 学生 × D × 遍数",
        "老师 = 2 × N 老师 × D × 遍数（在线）；只一遍（离线）；按服务价买文本（文本）",
        "卡时 = 运算量 ÷ (峰值 × MFU)",
        "存储：全部 D × 词表 × 2 B；top-k D × k × 6 B；文本 D × 4 B",
    ),
    assumptions=("老师前向和学生训练用同样的卡、同样的 MFU", "top-k 每个数 2 B 值加 4 B 序号；文本每 token 一个 int32"),
    leaves_out="不算整理数据、失败的尝试和评测：真做一次常是 2–3 倍（经验判断，未核实）；不算 attention 的运算（2–8k 长度多 3–15%）。",
    sources=("6ND、2ND：第 04 章", "峰值：硬件目录（稠密 BF16）", "存储：直接相乘"),
)  # fmt: skip
def distill_cost(
    *, student_params: float, teacher_params: float, tokens: float, mode: str, epochs: int, top_k: int, vocab: int, mfu: float, gpu: Accelerator,
    gpu_price_per_h: float, teacher_gen_usd_per_mtok: float, scratch_tokens: float,
) -> Result:  # fmt: skip
    """6·N_s·D·epochs for the student; the teacher forward each epoch, once, or bought as text."""
    if top_k > vocab:
        raise refuse("top_k", "top_k 不能超过词表", f"{top_k} > {vocab}", f"可取 1 到 {vocab}")
    w = Worked()
    passes = _passes(mode, epochs)
    n_s, n_t, distinct = quantity(student_params, "params"), quantity(teacher_params, "params"), quantity(tokens, "token")
    seen = distinct if epochs == 1 else w.line("学生看的 token", distinct * quantity(epochs), "token", 6)
    price, peak = quantity(gpu_price_per_h, "$/h"), quantity(gpu.dense_tflops, "TFLOPS")
    student = w.line("学生训练", training_flops(n_s, seen, quantity(6, "FLOP")), "FLOP", 6)
    if passes:
        shown = seen if passes == epochs else distinct
        teacher = w.line("老师前向", teacher_flops(quantity(2, "FLOP"), n_t, shown), "FLOP", 6)
        total = w.line("总运算量", student + teacher, "FLOP", 6)
    else:
        teacher, total = quantity(0, "FLOP"), student
    busy = w.line("卡时", card_seconds(total, peak, quantity(mfu)), "GPU·h", 6)
    cost = w.line("卡时 × 单价", quantity(busy.value / HOUR) * price, "$", 6)
    if passes:
        share = w.line("老师占", teacher / total, "%", 5)
    else:
        bought = w.line("买老师的文本", distinct / quantity(1e6, "token") * quantity(teacher_gen_usd_per_mtok, "$/Mtok"), "$", 6)
        cost = w.line("合计", cost + bought, "$", 6)
        share = w.line("老师占", bought / cost, "%", 5)
    full = w.line("存全部 logits", logit_bytes(distinct, quantity(vocab), quantity(BF16, "B")), "TB", 6)
    kept = w.line("存 top-k", logit_bytes(distinct, quantity(top_k), quantity(KEPT_LOGIT_BYTES, "B")), "TB", 6)
    written = w.line("存文本", distinct * quantity(TOKEN_ID, "B"), "TB", 6)
    scratch = w.line("从头训", training_flops(n_s, quantity(scratch_tokens, "token"), quantity(6, "FLOP")), "FLOP", 6)
    ratio = w.line("从头训是它的", scratch / total, "×")
    return Result(
        values={
            "student_flop": student, "teacher_flop": teacher, "total_flop": total, "gpu_hours": busy, "cost_usd": cost, "teacher_share_pct": share,
            "storage_full_tb": full, "storage_topk_tb": kept, "storage_text_tb": written, "scratch_ratio": ratio,
        },
        lines=w.lines,
        verdict=_verdict(busy, cost, share, ratio) + _storage(mode, kept, written, full) + ("学生不比老师小，省不下推理的钱。" if student_params >= teacher_params else ""),
    )  # fmt: skip


def _verdict(busy: Quantity, cost: Quantity, share: Quantity, ratio: Quantity) -> str:
    head = f"要 {quantity(busy.value / HOUR, 'GPU·h', 4).text}、{quantity(cost.value, '$', 4).text}，老师占 {quantity(share.value * 100, '%', 3).text}。"
    if ratio.value > 1:
        return head + f"从头训这个学生，运算是它的 {ratio.text}。"
    return head + "运算不比从头训少：这么多 token，不如直接训。"


def _storage(mode: str, kept: Quantity, written: Quantity, full: Quantity) -> str:
    if mode == "offline-topk" and kept.value > full.value:
        return f"top-k 要 {kept.text}，比存全部的 {full.text} 还多：每个都带序号，k 太大就白存了。"
    return {
        "online": "老师边跑边教，一个字节也不用存。",
        "offline-topk": f"老师只跑一遍，存 {kept.text}，学生看几遍都行。",
        "text": f"只存 {written.text} 文本，换词表也能用。",
    }[mode]
