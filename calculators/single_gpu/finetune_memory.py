"""Does fine-tuning fit on this card, in full, with LoRA or with QLoRA, and what helps when it does not?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from calculators.catalog import Accelerator, Model, gpu_input, model_input
from calculators.core.calculator import Output, Result, Row, Run, calculator
from calculators.core.charts import Axis, Bar, BarChart, Chart, Part, Rule
from calculators.core.inputs import choice, integer, linear_stops, number, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.units import BITS_PER_BYTE, GB, GIB
from calculators.core.worked import Quantity, Worked, quantity, smaller
from calculators.formulas.activations import full_recompute_bytes, layer_bytes, logits_bytes, stack_bytes
from calculators.formulas.finetune import adapter_params, attention_ends, ffn_ends, quantised_bytes
from calculators.formulas.memory import STATE_RECIPES, state_bytes
from calculators.formulas.params import attention_params, gated_ffn_params

OPTIMIZERS = {"adamw-12": "seed-12", "adamw-16": "zero-16", "8bit-10": "8bit-10"}
"""Input choice → the way of counting of chapter 03."""
TARGETS = {"all-linear": (2, 2, True), "qkvo": (2, 2, False), "qv": (1, 1, False)}
"""Adapted matrices: how many of Q and output, how many of K and V, and whether the feed-forward is adapted too."""
METHODS = {"full": "全量微调", "lora": "LoRA", "qlora": "QLoRA"}
BLOCK_NAMES = {"base": "冻住的底座", "trained": "训练的状态", "activations": "激活", "logits": "logits", "overhead": "其他"}
SPACED = {"logits": " logits"}
"""After a Chinese word, a Latin one needs a space."""
CHUNK = 1024
LOGIT_BYTES = 8


@dataclass(frozen=True)
class Job:
    """Everything but the card; ``blocks`` says how many bytes each part takes."""

    model: Model
    method: str
    optimizer: str
    r: int
    targets: str
    base_bits: float
    quant_scope: str
    seq: int
    micro_batch: int
    recompute: str
    logits: str
    overhead_gb: float

    def blocks(self) -> dict[str, float]:
        """The same formulas as the worked lines, for the bars and for trying remedies."""
        m = self.model
        h, a, kv, hd, f, L, n = (float(x) for x in (m.hidden, m.heads, m.kv_heads, m.head_dim, m.ffn, m.layers, m.total_params))
        wide, narrow, has_ffn = TARGETS[self.targets]
        ends = attention_ends(h, a, kv, hd, float(wide), float(narrow)) + (ffn_ends(h, f) if has_ffn else 0.0)
        quantised = n if self.quant_scope == "all" else float(linear_params(m))
        packed = quantised_bytes(quantised, self.base_bits, BITS_PER_BYTE) + state_bytes(n - quantised, 2.0)
        trained = n if self.method == "full" else adapter_params(float(self.r), L, ends)
        tokens, layer = float(self.seq * self.micro_batch), layer_bytes(h, a, kv, hd, f)
        return {
            "base": {"full": 0.0, "lora": state_bytes(n, 2.0), "qlora": packed}[self.method],
            "trained": state_bytes(trained, STATE_RECIPES[OPTIMIZERS[self.optimizer]].bytes_per_param),
            "activations": full_recompute_bytes(tokens, L, layer, h) if self.recompute == "full" else stack_bytes(tokens, L, layer),
            "logits": logits_bytes(min(tokens, float(CHUNK)) if self.logits == "chunked" else tokens, float(m.vocab), float(LOGIT_BYTES)),
            "overhead": self.overhead_gb * GB,
        }

    def total(self) -> float:
        return sum(self.blocks().values())


def linear_params(m: Model) -> int:
    """Attention and feed-forward matrices: what 4-bit loading replaces by default; tables, head and norms stay in 16 bits."""
    h, a, kv, hd, f = (float(x) for x in (m.hidden, m.heads, m.kv_heads, m.head_dim, m.ffn))
    return min(m.total_params, round(m.layers * (attention_params(h, a, kv, hd) + gated_ffn_params(h, f))))


@dataclass(frozen=True)
class Remedy:
    """What to change, what it costs, and for which methods it is one."""

    name: str
    cost: str
    change: Callable[[Job], Job]
    methods: tuple[str, ...] = tuple(METHODS)


REMEDIES: dict[str, tuple[Remedy, ...]] = {
    "states": (
        Remedy("8-bit 优化器", "量化误差", lambda job: replace(job, optimizer="8bit-10"), ("full",)),
        Remedy("改 LoRA", "只训低秩的一小块", lambda job: replace(job, method="lora"), ("full",)),
        Remedy("改 QLoRA", "底座 4 位，每层先解压再算", lambda job: replace(job, method="qlora"), ("lora",)),
    ),
    "activations": (
        Remedy("全部重算", "多一遍前向，运算 +33%", lambda job: replace(job, recompute="full")),
        Remedy("micro-batch 降到 1，用梯度累积", "MFU 掉一些", lambda job: replace(job, micro_batch=1)),
    ),
    "logits": (Remedy("logits 分块", "稍慢，要换损失函数的实现", lambda job: replace(job, logits="chunked")),),
}
"""The remedy follows the bill: each block has its own list, the mildest first."""


def remedies(job: Job, capacity: float) -> list[Row]:
    """One remedy after the other, each for what is largest by then, until the card is large enough."""
    rows: list[Row] = []
    while job.total() > capacity:
        found = _next_remedy(job)
        if found is None:
            break
        remedy, job = found
        rows.append({"remedy": remedy.name, "cost": remedy.cost, "total_gb": job.total() / GB, "fits": job.total() <= capacity})
    return rows


def _next_remedy(job: Job) -> tuple[Remedy, Job] | None:
    blocks = job.blocks()
    sizes = {"states": blocks["base"] + blocks["trained"], "activations": blocks["activations"], "logits": blocks["logits"]}
    for block in sorted(sizes, key=lambda name: -sizes[name]):
        for remedy in REMEDIES[block]:
            changed = remedy.change(job)
            if job.method in remedy.methods and changed.total() < job.total():
                return remedy, changed
    return None


def _chart(run: Run, *, gpu: Accelerator, method: str, **_: object) -> tuple[Chart, ...]:
    job = run.result.trace
    assert isinstance(job, Job)
    bars = []
    for id, name in METHODS.items():
        other = replace(job, method=id)
        parts = tuple(Part(BLOCK_NAMES[block], size / GB) for block, size in other.blocks().items())
        bars.append(Bar(name, parts, f"{format_number(other.total() / GB)} GB", emphasis=id == method))
    card = Rule(f"这张卡 {format_number(gpu.memory_gb)} GB", x=gpu.memory_gb)
    return (
        BarChart(
            "三种微调各要多少",
            "越过竖线就装不下。LoRA 去掉的是训练的状态，QLoRA 再压底座；激活和 logits 三种一样多。",
            Axis("显存", "GB"),
            tuple(bars),
            (card,),
        ),
    )


@calculator(
    title="微调装得下吗",
    question="全量、LoRA、QLoRA，这张卡装得下哪一种？装不下先动哪一块？",
    chapter="09",
    inputs=(
        model_input(where=lambda m: m.is_plain_gated, help="稠密、门控 FFN 的模型"),
        choice("method", "怎么训", "lora", tuple(METHODS), labels=METHODS),
        gpu_input("rtx-4090"),
        integer("seq", "序列长度", 2048, "token", low=1, high=1_048_576, kind="tokens", stops=powers_of_two(256, 131072)),
        integer("micro_batch", "micro-batch", 1, low=1, high=1024, stops=powers_of_two(1, 64)),
        choice("recompute", "激活重算", "full", ("none", "full"), labels={"none": "不重算", "full": "全部重算"}),
        choice("logits", "logits", "full", ("full", "chunked"), labels={"full": "一次算完", "chunked": f"分块，一块 {CHUNK} token"}, more=True),
        choice("optimizer", "优化器", "adamw-16", tuple(OPTIMIZERS), labels={"adamw-12": "AdamW，没有主权重：12 字节", "adamw-16": "AdamW，有主权重：16 字节", "8bit-10": "8-bit Adam，有主权重：10 字节"}, more=True),
        integer("r", "LoRA 的秩 r", 16, low=1, high=1024, more=True, stops=powers_of_two(1, 256), only_if=("method", ("lora", "qlora"))),
        choice("targets", "LoRA 加在哪", "all-linear", tuple(TARGETS), labels={"all-linear": "全部线性层", "qkvo": "attention 四个矩阵", "qv": "只有 q、v"}, more=True, only_if=("method", ("lora", "qlora"))),
        number("base_bits", "底座每参数", 4.127, "bit", low=2, high=16, more=True, stops=(2, 3, 4.127, 4.5, 8.5, 16), only_if=("method", ("qlora",)), help="NF4 加双重量化：4 + 0.127"),
        choice("quant_scope", "量化哪些", "linear-only", ("linear-only", "all"), labels={"linear-only": "只量化线性层，词表留 16 位", "all": "全部（词表也压，常见的算法）"}, more=True, only_if=("method", ("qlora",))),
        number("overhead_gb", "CUDA 上下文等", 1.5, "GB", low=0, high=20, more=True, stops=linear_stops(0, 5, 0.5)),
    ),
    outputs=(
        Output("total_gb", "总共", "GB", main=True),
        Output("fits", "装得下", main=True),
        Output("states_gb", "状态（底座 + 训练的）", "GB", main=True),
        Output("trainable_params", "训练的参数", "params", digits=10, main=True),
        Output("trainable_pct", "占全部", "%"),
        Output("all_params", "全部参数", "params", digits=10),
        Output("base_gb", "冻住的底座", "GB"),
        Output("trained_gb", "训练的状态", "GB"),
        Output("activations_gb", "激活", "GB"),
        Output("logits_gb", "logits", "GB"),
        Output("largest", "最大的一块"),
        Output("remedies", "装不下时依次吃药", columns=(("remedy", "做法", ""), ("cost", "代价", ""), ("total_gb", "做完要", "GB"), ("fits", "装得下", ""))),
    ),
    chart=_chart,
    formula=(
        "LoRA 参数 = 秩 × 层数 × Σ(输入 + 输出)；训练的状态 = 每参数字节 × 训练的参数",
        "底座：LoRA 2 字节/参数；QLoRA 线性层按位数，其余 2 字节；全量 0",
        "激活：不重算 = T × 层数 × A；全部重算 = T × (2h × 层数 + A)，A 是第 03 章的每 token 每层",
        "logits = T × 词表 × 8 字节；分块时 T 最多一块",
    ),
    assumptions=("FlashAttention、融合的 norm 与 SwiGLU、无 dropout", "装不装得下按标称容量（1 GB = 1e9 字节）比"),
    leaves_out="不算解压缓冲、LoRA 自己的小激活、优化器分页和碎片（第 03 章：再多 5–20%）。LoRA 没加到的矩阵是冻住的，不用留输入：只加 q、v 时激活会再少一些（8B 最多三成），这里没减。Phi-3、Baichuan2 把 QKV 合成一个矩阵，peft 数出来的参数略少。",
    sources=(
        "Hu et al. 2021（LoRA）；Dettmers et al. 2023（QLoRA）：NF4 加双重量化 4.127 位",
        "peft 日志：Llama-3-8B，r 16，全部线性层，trainable params: 41,943,040 || all params: 8,072,204,288",
        "每参数字节：ZeRO 论文 16，8-bit Optimizers 10（第 03 章）",
    ),
)  # fmt: skip
def finetune_memory(
    *, model: Model, method: str, gpu: Accelerator, seq: int, micro_batch: int, recompute: str, logits: str, optimizer: str, r: int, targets: str,
    base_bits: float, quant_scope: str, overhead_gb: float,
) -> Result:  # fmt: skip
    """Frozen base + trained states + activations + logits + overhead against the advertised capacity."""
    w = Worked()
    h, a, kv, hd, f = (quantity(x) for x in (model.hidden, model.heads, model.kv_heads, model.head_dim, model.ffn))
    layers, n = quantity(model.layers, "layer"), quantity(model.total_params, "params", 10)
    trained_params, all_params = n, model.total_params
    if method != "full":
        wide, narrow, has_ffn = TARGETS[targets]
        ends = w.line("attention 矩阵的 入 + 出", attention_ends(h, a, kv, hd, quantity(wide), quantity(narrow)), "", 8)
        if has_ffn:
            ends = ends + w.line("FFN 三个矩阵的 入 + 出", ffn_ends(h, f), "", 8)
        trained_params = w.line("训练的参数", adapter_params(quantity(r), layers, ends), "params", 10)
        all_params += round(trained_params.value)

    base = quantity(0, "B")
    if method == "lora":
        base = w.line("冻住的底座", state_bytes(n, quantity(2, "B")), "GB")
    elif method == "qlora":
        base = _quantised(w, model.total_params, model.total_params if quant_scope == "all" else linear_params(model), base_bits)
    per_param = quantity(STATE_RECIPES[OPTIMIZERS[optimizer]].bytes_per_param, "B")
    trained = w.line("训练的状态", state_bytes(trained_params, per_param), "GB")
    states = trained if method == "full" else w.line("状态合计", base + trained, "GB")

    tokens = quantity(seq, "token") if micro_batch == 1 else w.line("一批的 token", quantity(micro_batch) * quantity(seq, "token"), "token", 8)
    layer = w.line("每 token 每层的激活", layer_bytes(h, a, kv, hd, f), "B", 8)
    kept = full_recompute_bytes(tokens, layers, layer, h) if recompute == "full" else stack_bytes(tokens, layers, layer)
    activations = w.line("激活" if recompute == "none" else "激活（全部重算）", kept, "GB")
    at_once = tokens if logits == "full" else w.line("一块的 token", smaller(quantity(CHUNK, "token"), tokens), "token", 8)
    logit = w.line("logits", logits_bytes(at_once, quantity(model.vocab), quantity(LOGIT_BYTES, "B")), "GB")
    overhead = quantity(overhead_gb, "GB")
    whole = w.line("总共", states + activations + logit + overhead, "GB")

    job = Job(model, method, optimizer, r, targets, base_bits, quant_scope, seq, micro_batch, recompute, logits, overhead_gb)
    sizes = {"base": base, "trained": trained, "activations": activations, "logits": logit, "overhead": overhead}
    largest = max(sizes, key=lambda name: sizes[name].value)
    plan = remedies(job, gpu.memory_bytes)
    return Result(
        values={
            "total_gb": whole, "fits": whole.value <= gpu.memory_bytes, "states_gb": states, "trainable_params": round(trained_params.value),
            "trainable_pct": 100 * trained_params.value / all_params, "all_params": all_params, "base_gb": base, "trained_gb": trained,
            "activations_gb": activations, "logits_gb": logit, "largest": BLOCK_NAMES[largest], "remedies": plan,
        },
        lines=w.lines,
        verdict=_verdict(gpu, whole, BLOCK_NAMES[largest], sizes[largest], plan),
        notes=_reported(gpu),
        trace=job,
    )  # fmt: skip


def _quantised(w: Worked, total: int, quantised: int, bits: float) -> Quantity:
    packed = w.line("量化的底座", quantised_bytes(quantity(quantised, "params", 10), quantity(bits, "bit"), quantity(BITS_PER_BYTE)), "GB")
    if quantised == total:
        return packed
    rest = w.line("留 16 位的（词表、norm）", state_bytes(quantity(total - quantised, "params", 10), quantity(2, "B")), "GB")
    return w.line("冻住的底座", packed + rest, "GB")


def _verdict(gpu: Accelerator, whole: Quantity, largest: str, size: Quantity, plan: list[Row]) -> str:
    room, largest = gpu.memory_bytes - whole.value, SPACED.get(largest, largest)
    if room >= 0:
        return f"要 {whole.text}，一张 {gpu.name} 装得下，还剩 {format_number(room / GB)} GB。最大的一块是{largest}（{size.text}）。"
    head = f"要 {whole.text}，一张 {gpu.name} 装不下，还差 {format_number(-room / GB)} GB。最大的一块是{largest}（{size.text}）。"
    if not plan:
        return head + "单卡的药都吃过了：缩短序列，换大卡，或切到多张卡（第 11 章）。"
    steps = " → ".join(f"{row['remedy']}（{format_number(float(row['total_gb'] or 0))} GB）" for row in plan)
    end = "就装得下。" if plan[-1]["fits"] else "还是不够：换大卡，或切到多张卡（第 11 章）。"
    insists = "非全量不可，就切到多张卡（第 11 章）。" if any(row["remedy"] == "改 LoRA" for row in plan) else ""
    return f"{head}依次：{steps}，{end}{insists}"


def _reported(gpu: Accelerator) -> tuple[str, ...]:
    if gpu.memory_gib_reported is None:
        return ()
    mark = "（未核实）" if gpu.is_unverified("memory_gib_reported") else ""
    return (
        f"标称 {format_number(gpu.memory_gb)} GB；驱动报告 {format_number(gpu.memory_gib_reported)} GiB{mark}，合 {format_number(gpu.memory_gib_reported * GIB / GB)} GB。",
    )
