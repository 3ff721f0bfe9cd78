"""Which share of the peak does a training run get, counted as model FLOPs (MFU) and as hardware FLOPs (HFU)?"""

from __future__ import annotations

import math
from dataclasses import dataclass

from calculators.catalog.runs import TrainingRun, training_runs
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Bar, BarChart, Chart, Part
from calculators.core.errors import Refusal, refuse
from calculators.core.inputs import Scalar, choice, flag, integer, log_stops, number, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.units import TB
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.mfu import Recompute, above_peak, attention_core, flop, flops_per_token, hardware_flops_per_token, mfu_band
from calculators.formulas.mfu import mfu as mfu_share

CUSTOM = "custom"
LABELS = {
    "tokens_per_s": "全部卡的 token/s",
    "N": "参数量 N",
    "L": "层数 L",
    "heads": "query 头数",
    "head_dim": "每头维度",
    "seq": "序列长度",
    "n_gpus": "卡数",
    "peak_tflops": "每卡峰值",
}
ATTENTION_FIELDS = ("L", "heads", "head_dim", "seq")
EXAMPLES = {"tokens_per_s": "40000", "N": "8.03e9", "L": "32", "heads": "32", "head_dim": "128", "seq": "8192", "n_gpus": "8", "peak_tflops": "989"}


@dataclass(frozen=True)
class Job:
    """What the formula needs, all fields filled."""

    tokens_per_s: float
    N: float
    L: float
    heads: float
    head_dim: float
    seq: float
    n_gpus: float
    peak_tflops: float


def _of_run(run: TrainingRun) -> Job:
    return Job(run.tokens_per_s, run.params, run.layers, run.heads, run.head_dim, run.seq, run.n_gpus, run.peak_tflops)


def _job(preset: str, given: dict[str, float | int | None], count_attention: bool) -> tuple[Job, dict[str, Scalar]]:
    """Typed fields over the preset's; also what the empty ones were taken to be.  ``custom`` has none to fall back on."""
    base = None if preset == CUSTOM else _of_run(training_runs()[preset])
    filled: dict[str, float] = {}
    resolved: dict[str, Scalar] = {}
    missing = []
    for name, value in given.items():
        if value is not None:
            filled[name] = value
        elif base is not None:
            filled[name] = resolved[name] = getattr(base, name)
        elif name in ATTENTION_FIELDS and not count_attention:
            filled[name] = 1  # never read
        else:
            missing.append(name)
    if missing:
        refusals = [refuse(name, f"「{LABELS[name]}」必须填，custom 没有预设可用", "空", f"例如 {EXAMPLES[name]}") for name in missing]
        raise Refusal(tuple(error for refusal in refusals for error in refusal.errors))
    return Job(**filled), resolved


def _share_of(job: Job) -> float:
    per_token = flops_per_token(float(job.N), attention_core(float(job.L), float(job.heads), float(job.head_dim), float(job.seq)))
    return mfu_share(float(job.tokens_per_s), per_token, float(job.n_gpus), job.peak_tflops * TB)


def _chart(run: Run, **_: object) -> tuple[Chart, ...]:
    same = run.inputs["count_attention"] and not run.inputs["causal_half"]
    published = [(r.name, 100 * _share_of(_of_run(r))) for r in training_runs().values()]
    rows = [*published, ("你的设定", float(run.values["mfu_pct"]))]  # type: ignore[arg-type]
    bars = tuple(
        Bar(name, (Part("MFU", share),), f"{format_number(share, digits=3)} %", emphasis=name == "你的设定")
        for name, share in sorted(rows, key=lambda r: -r[1])
    )
    return (
        BarChart(
            "和公开的训练比",
            "每条是一次公开训练的 MFU，attention 全额计入；亮的一条是现在的输入" + ("。" if same else "，口径和别的不同，别直接比。"),
            Axis("MFU", "%", low=0),
            bars,
        ),
    )


@calculator(
    title="MFU / HFU",
    question="这次训练用上了峰值的几成？",
    chapter="04",
    inputs=(
        choice("preset", "哪一次训练", "palm-540b", (*training_runs(), CUSTOM), labels={**{id: r.name for id, r in training_runs().items()}, CUSTOM: "自己填"}, help="下面留空的格子用它的值"),
        number("tokens_per_s", LABELS["tokens_per_s"], None, "token/s", low=0, low_open=True, stops=log_stops(1000, 10_000_000, 6), help="整个作业的，不是单卡的"),
        number("N", LABELS["N"], None, "params", low=0, low_open=True, stops=log_stops(1e8, 1e12, 6), help="MoE 填激活参数"),
        integer("n_gpus", LABELS["n_gpus"], None, "card", low=1, stops=powers_of_two(1, 16384)),
        number("peak_tflops", LABELS["peak_tflops"], None, "TFLOPS", low=0, low_open=True, stops=(125, 275, 312, 989, 2250), help="稠密峰值；填稀疏的数，MFU 会凭空少一半"),
        integer("L", LABELS["L"], None, low=1, more=True, only_if=("count_attention", ("true",))),
        integer("heads", LABELS["heads"], None, low=1, more=True, only_if=("count_attention", ("true",)), help="query 头；GQA 不改变这个数"),
        integer("head_dim", LABELS["head_dim"], None, low=1, more=True, only_if=("count_attention", ("true",))),
        integer("seq", LABELS["seq"], None, "token", low=1, kind="tokens", more=True, stops=powers_of_two(512, 131072), only_if=("count_attention", ("true",))),
        flag("count_attention", "算上 attention（口径）", True, more=True, help="否：只算 6N"),
        flag("causal_half", "因果掩码只算一半（口径）", False, more=True, only_if=("count_attention", ("true",)), help="PaLM 和 Megatron 都按全额算，很多统计脚本按一半"),
        choice("recompute", "激活重算", "none", ("none", "selective", "full"), labels={"none": "不重算", "selective": "只重算 attention 核心", "full": "前向全部重算"}, more=True),
    ),
    outputs=(
        Output("gflop_per_token", "每 token 运算量", "GFLOP", digits=6),
        Output("mfu_pct", "MFU", "%", main=True),
        Output("hfu_pct", "HFU", "%", main=True),
        Output("tflops_per_gpu", "每卡有效算力", "TFLOPS", main=True, digits=5),
        Output("attn_over_6n_pct", "attention ÷ 6N", "%"),
        Output("attn_share_pct", "attention 占总运算", "%"),
        Output("gflop_6n", "其中 6N", "GFLOP"),
        Output("gflop_attention", "其中 attention", "GFLOP"),
    ),
    chart=_chart,
    formula=(
        "q = 层数 × 头数 × 每头维度 × 序列长度（因果减半时 ÷ 2）",
        "每 token 运算量 F = 6N + 12q",
        "MFU = token/s × F ÷ (卡数 × 峰值)",
        "HFU 的分子：选择性重算 F + 4q，全部重算 8N + 16q",
    ),
    assumptions=("峰值是稠密峰值；复现论文的数，要用作者自己除的那个峰值", "重算改变 HFU，不改变 MFU：重做的运算不算模型的功劳"),
    leaves_out="不算归一化、激活函数和优化器的运算（合计不到 1%）；MFU 不含停机，乘上 goodput 才是花出去的钱的利用率。",
    sources=(
        "Chowdhery et al. 2022（PaLM）§4.1 与附录 B",
        "Korthikanti et al. 2022 §5 与附录 A；其硬件 FLOPs 的 s/3h 项是承认过的笔误，应为 2s/9h（Megatron-LM issue 523）",
        "各次训练的数：训练目录 runs.toml，逐条写明出处",
    ),
)  # fmt: skip
def mfu(
    *, preset: str, tokens_per_s: float | None, N: float | None, n_gpus: int | None, peak_tflops: float | None, L: int | None, heads: int | None,
    head_dim: int | None, seq: int | None, count_attention: bool, causal_half: bool, recompute: Recompute,
) -> Result:  # fmt: skip
    """tokens/s × (6N + 12q) ÷ (cards × dense peak), q = L × heads × head_dim × seq, full attention unless halved."""
    given: dict[str, float | int | None] = {
        "tokens_per_s": tokens_per_s, "N": N, "L": L, "heads": heads, "head_dim": head_dim, "seq": seq, "n_gpus": n_gpus, "peak_tflops": peak_tflops,
    }  # fmt: skip
    job, resolved = _job(preset, given, count_attention)
    w = Worked()
    params = quantity(job.N, "params")
    linear = w.line("6N", flop(6, params) * params, "GFLOP")
    q = quantity(0)
    attention = quantity(0, "GFLOP")
    if count_attention:
        q = w.line("q", attention_core(quantity(job.L), quantity(job.heads), quantity(job.head_dim), quantity(job.seq), causal_half))
        attention = w.line("12q", flop(12, q) * q, "GFLOP")
    model = w.line("每 token 运算量 F", linear + attention, "GFLOP", 6) if count_attention else linear
    rate, cards, peak = quantity(job.tokens_per_s, "token/s"), quantity(job.n_gpus, "card"), quantity(job.peak_tflops, "TFLOPS")
    share = w.line("MFU", _below_peak(mfu_share(rate, model, cards, peak)), "%")
    hardware_share = share
    if recompute != "none":
        hardware = w.line("连重算在内，每 token", hardware_flops_per_token(params, q, recompute), "GFLOP", 6)
        hardware_share = w.line("HFU", _below_peak(mfu_share(rate, hardware, cards, peak)), "%")
    each = w.line("每卡有效算力", rate * model / cards, "TFLOPS", 5)
    return Result(
        values={
            "gflop_per_token": model, "mfu_pct": share, "hfu_pct": hardware_share, "tflops_per_gpu": each,
            "attn_over_6n_pct": attention / linear, "attn_share_pct": attention / model, "gflop_6n": linear, "gflop_attention": attention,
        },
        lines=w.lines,
        verdict=_verdict(share, hardware_share, each),
        resolved=resolved,
    )  # fmt: skip


def _below_peak(share: Quantity) -> Quantity:
    if 1 < share.value < math.inf:
        raise above_peak("tokens_per_s", share.value)
    return share


ADVICE = {
    "<10": "先查卡是不是在等：数据、同步、kernel 启动",
    "10-20": "先开 torch.compile、FlashAttention 和 BF16",
    "20-30": "按诊断树查：没喂饱、通信、带宽，哪个占时间多",
    "30-40": "框架默认就到这里；看通信有没有藏住、micro-batch 能不能加大",
    "40-45": "剩下的多半是露出来的通信和气泡",
    "45-55": "已经是精心优化的水平；再调先算值不值",
    "55-60": "到顶了，停手去做别的",
    ">60": "高得可疑，先查口径：峰值、卡数、重算有没有混进来",
}
"""What to do next, by band."""


def _verdict(share: Quantity, hardware: Quantity, each: Quantity) -> str:
    band = mfu_band(share.value * 100)
    rework = f"HFU 有 {hardware.text}，多出来的是重做的运算，不算进度。" if hardware.value > share.value else ""
    return f"MFU {share.text}（{band.meaning}），每卡真正在算 {each.text}。{rework}{ADVICE[band.name]}。"
