"""Every layout of a dense model on so many cards: which fit, which is fastest, and why the others were thrown out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from calculators.catalog import Accelerator, Model, gpu_input, model_input
from calculators.core.calculator import Output, Result, Row, Run, calculator
from calculators.core.charts import Axis, Bar, BarChart, Chart, Grid, Part
from calculators.core.errors import Refusal, refuse
from calculators.core.inputs import choice, flag, integer, linear_stops, number, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.units import GB
from calculators.core.worked import Worked, quantity
from calculators.formulas.layout import Estimate, Job, Layout, Machine, estimate, job_of, layers_short, micro_batches, model_flops_per_token, wrong_shape

TPS = (1, 2, 4, 8)
CPS = (1, 2, 4, 8, 16)
ZEROS = (1, 3)
MOST_SHORT = 2
"""Layers that may be missing for all stages to be equal: Llama 3 has 126 = 16·8 − 2."""
SHOWN = 10
BARS = 5
REASONS = {"batch": "batch 分不匀", "shape": "头数或 FFN 切不开", "memory": "装不下"}


@dataclass(frozen=True)
class Plan:
    """A candidate; ``reason`` (a key of REASONS) and ``why`` say what threw it out."""

    layout: Layout
    numbers: Estimate | None
    reason: str = ""
    why: str = ""

    @property
    def step(self) -> float:
        assert self.numbers is not None
        return self.numbers.step

    @property
    def total(self) -> float:
        assert self.numbers is not None
        return self.numbers.total

    @property
    def name(self) -> str:
        lay = self.layout
        degrees = (("TP", lay.tp), ("CP", lay.cp), ("PP", lay.pp), ("DP", lay.dp))
        split = "·".join(f"{what}{n}" for what, n in degrees if n > 1 or what in ("TP", "DP"))
        return f"{split}，ZeRO-{lay.zero}{'，重算' if lay.recompute else ''}"


def candidates(layers: int, seq: int, n_gpus: int, max_tp: int, max_cp: int, recomputes: tuple[bool, ...]) -> Iterator[Layout]:
    """All layouts whose degrees multiply to n_gpus; v = 1, micro-batch 1."""
    for tp in (t for t in TPS if t <= max_tp):
        for cp in (c for c in CPS if c <= max_cp and (c == 1 or seq % (2 * c) == 0)):
            for pp in range(1, layers + 1):
                if layers_short(layers, pp) <= MOST_SHORT and n_gpus % (tp * cp * pp) == 0:
                    for zero in ZEROS:
                        for recompute in recomputes:
                            yield Layout(tp, cp, pp, n_gpus // (tp * cp * pp), zero, recompute)


def judge(job: Job, layout: Layout, machine: Machine, capacity: float, margin: float) -> Plan:
    """Batch, then shape, then memory."""
    if not micro_batches(job.global_batch, layout.dp, layout.micro_batch):
        return Plan(layout, None, "batch", f"batch {job.global_batch} 不能被 dp {layout.dp} 整除")
    if why := wrong_shape(job.shape, layout.tp):
        return Plan(layout, None, "shape", why)
    e = estimate(job, layout, machine)
    over = e.total + margin - capacity
    if over > 0:
        largest = "激活" if e.activations > e.states else "状态"
        size = max(e.activations, e.states) / GB
        return Plan(layout, e, "memory", f"差 {format_number(over / GB, digits=3)} GB，{largest} {format_number(size, digits=3)} GB 最大")
    return Plan(layout, e)


@dataclass(frozen=True)
class Trace:
    legal: list[Plan]
    rejected: list[Plan]


def _chart(run: Run, **_: object) -> tuple[Chart, ...]:
    trace = run.result.trace
    assert isinstance(trace, Trace)
    best = trace.legal[:BARS]
    bars = tuple(
        Bar(plan.name, tuple(Part(n, s) for n, s in plan.numbers.seconds_of_step().items() if s > 0), f"{format_number(plan.step, digits=3)} 秒", i == 0)
        for i, plan in enumerate(best)
        if plan.numbers is not None
    )
    return (
        _map(trace),
        BarChart(f"最快的 {len(bars)} 套，一步花在哪", "计算之外的每一段都是切模型的代价。", Axis("时间", "s"), bars),
    )  # fmt: skip


def _map(trace: Trace) -> Grid:
    """The best of each tp × pp: seconds of a step, or how it fails."""
    plans = [*trace.legal, *trace.rejected]
    tps, pps = sorted({p.layout.tp for p in plans}), sorted({p.layout.pp for p in plans})
    quickest, slowest = trace.legal[0].step, trace.legal[-1].step
    values: list[tuple[float | None, ...]] = []
    texts: list[tuple[str, ...]] = []
    for tp in tps:
        cells = [_cell(trace, tp, pp) for pp in pps]
        values.append(tuple(step for step, _ in cells))
        texts.append(tuple(text for _, text in cells))
    return Grid(
        "每种 tp × pp，最快的一套要几秒",
        "格子里是一步的秒数，颜色越深越慢。「超」是怎么开 ZeRO 和重算都装不下，「不匀」是 batch 分不到整数，「切不开」是头数或 FFN 除不尽，空格是乘不出这么多卡。",
        tuple(f"TP{tp}" for tp in tps),
        tuple(f"PP{pp}" for pp in pps),
        tuple(values),
        tuple(texts),
        low=min(quickest, 0.999 * slowest) * 0.9,
        high=slowest,
    )


def _cell(trace: Trace, tp: int, pp: int) -> tuple[float | None, str]:
    here = [p for p in trace.legal if (p.layout.tp, p.layout.pp) == (tp, pp)]
    if here:
        return here[0].step, format_number(here[0].step, digits=3)
    reasons = {p.reason for p in trace.rejected if (p.layout.tp, p.layout.pp) == (tp, pp)}
    return None, next((text for reason, text in (("memory", "超"), ("shape", "切不开"), ("batch", "不匀")) if reason in reasons), "")


@calculator(
    title="帮我搜一套",
    question="这么多卡，TP、CP、PP、DP、ZeRO、重算怎么配最快，又装得下？",
    chapter="14",
    inputs=(
        model_input("llama-3-70b", help="稠密模型；MoE 用 moe-ep"),
        integer("n_gpus", "一共几张卡", 64, "card", low=1, high=16_384, stops=powers_of_two(8, 16_384)),
        integer("seq", "序列长度", 8192, "token", low=128, high=4_000_000, kind="tokens", stops=powers_of_two(1024, 1_048_576)),
        integer("global_batch", "全局 batch", 64, "sequence", low=1, high=1_000_000, stops=powers_of_two(1, 16_384)),
        flag("allow_recompute", "允许全部重算", True),
        choice("max_tp", "tp 最多", 8, TPS, help="一台 NVLink 连着几张卡"),
        choice("max_cp", "cp 最多", 1, CPS, more=True, help="序列长了再打开"),
        gpu_input(more=True, help="只取峰值；容量在下面填"),
        number("capacity", "每卡容量", 80, "GB", low=1, high=1000, more=True, stops=(24, 32, 40, 48, 64, 80, 96, 141, 180, 192, 288)),
        number("margin", "留给缓冲和碎片", 8, "GB", low=0, high=100, more=True, stops=linear_stops(0, 20, 2)),
        number("compute_eff", "算力用上几成", 0.65, low=0.2, high=0.8, kind="fraction", more=True, stops=linear_stops(0.2, 0.8, 0.05), help="用一次实测校准"),
        number("bw_intra", "机内，每卡单向", 360, "GB/s", low=1, high=1000, more=True, stops=(45, 90, 160, 180, 360, 720, 1000)),
        number("bw_inter", "跨机，每卡单向", 45, "GB/s", low=1, high=1000, more=True, stops=(5, 12, 22.5, 45, 50, 90, 180, 360)),
    ),
    outputs=(
        Output("n_candidates", "候选"),
        Output("n_legal", "装得下的", main=True),
        Output("n_legal_no_recompute", "其中不重算的"),
        Output("rejected_batch", "淘汰：batch 分不匀"),
        Output("rejected_shape", "淘汰：头数或 FFN 切不开"),
        Output("rejected_memory", "淘汰：装不下", main=True),
        Output("best_tp", "最快的 TP"),
        Output("best_pp", "最快的 PP"),
        Output("best_cp", "最快的 CP"),
        Output("best_dp", "最快的 DP"),
        Output("best_zero", "最快的 ZeRO"),
        Output("best_recompute", "最快的重算"),
        Output("best_step_s", "最快的一步", "s", main=True),
        Output("best_tok_s_per_gpu", "每卡吞吐", "token/s", main=True),
        Output("best_mfu_pct", "MFU", "%", main=True),
        Output("best_total_gb", "每卡共", "GB"),
        Output("best", "最快的十套", main=True, digits=3, columns=(("plan", "怎么切", ""), ("step_s", "一步", "s"), ("total_gb", "每卡", "GB"))),
        Output("top", "最快的十套，全部数字", digits=3, columns=(
            ("tp", "TP", ""), ("pp", "PP", ""), ("cp", "CP", ""), ("dp", "DP", ""), ("zero", "ZeRO", ""), ("recompute", "重算", ""), ("step_s", "一步", "s"),
            ("states_gb", "状态", "GB"), ("act_gb", "激活", "GB"), ("mfu_pct", "MFU", "%"), ("tok_s_per_gpu", "每卡", "token/s"),
        )),
        Output("rejected", "被淘汰的，和原因", digits=3, columns=(("plan", "怎么切", ""), ("why", "原因", ""), ("total_gb", "每卡", "GB"), ("step_s", "不然一步", "s"))),
    ),
    chart=_chart,
    formula=(
        "候选：tp ∈ {1, 2, 4, 8}，cp ∈ {1, 2, 4, 8, 16}，pp 不超过层数、至多差 2 层分匀，dp = 卡数 ÷ (tp·cp·pp)；ZeRO-1 或 3；重算或不重算",
        "依次淘汰：batch 不能被 dp 整除；头数、FFN、KV 头切不开；状态 + 激活 + 余量 > 容量",
        "剩下的按一步的秒数排，再按显存排；每一套的数和 parallel-plan 一样",
    ),
    assumptions=("v = 1，micro-batch 1；tp 一律在机内，CP、DP 走跨机的网",),
    leaves_out="和 parallel-plan 一样：不算切得不匀、TP 的重叠、小块变慢。所以 cp 在这里偏便宜。名次相差 ±10% 以内的，当作一样快，拿去实测。",
    sources=("第 10–13 章的公式", "Llama 3 报告 §3.3.2"),
)  # fmt: skip
def plan_search(
    *, model: Model, gpu: Accelerator, n_gpus: int, seq: int, global_batch: int, capacity: float, margin: float, compute_eff: float, allow_recompute: bool,
    max_tp: int, max_cp: int, bw_intra: float, bw_inter: float,
) -> Result:  # fmt: skip
    """Enumerate, reject, rank."""
    if model.moe is not None:
        raise refuse("model", "MoE 请用 moe-ep 单独算", model.name, "换一个稠密模型")
    job = job_of(model, seq, global_batch)
    machine = Machine(gpu.dense_flops, compute_eff, bw_intra * GB, bw_inter * GB, max_tp)
    recomputes = (False, True) if allow_recompute else (False,)
    plans = [judge(job, layout, machine, capacity * GB, margin * GB) for layout in candidates(job.shape.layers, seq, n_gpus, max_tp, max_cp, recomputes)]
    legal = sorted((p for p in plans if not p.reason), key=lambda p: (p.step, p.total))
    rejected = sorted((p for p in plans if p.reason), key=lambda p: (list(REASONS)[::-1].index(p.reason), p.numbers.total if p.numbers else 0.0))
    counts = Counter(p.reason for p in rejected)
    if not legal:
        raise _nothing(rejected, counts, capacity, margin, allow_recompute)

    batch, per_token = global_batch * seq, model_flops_per_token(job.params, float(job.shape.layers), float(job.shape.width), float(seq))

    def numbers(plan: Plan) -> Row:
        e = plan.numbers
        assert e is not None
        speed = batch / (e.step * n_gpus)
        useful = {"mfu_pct": 100 * speed * per_token / gpu.dense_flops, "tok_s_per_gpu": speed}
        lay, recompute = plan.layout, "full" if plan.layout.recompute else "none"
        degrees: Row = {"tp": lay.tp, "pp": lay.pp, "cp": lay.cp, "dp": lay.dp, "zero": lay.zero, "recompute": recompute}
        return {**degrees, "step_s": e.step, "states_gb": e.states / GB, "act_gb": e.activations / GB, **useful}

    top = [numbers(p) for p in legal[:SHOWN]]
    shown: list[Row] = [{"plan": p.name, "step_s": p.step, "total_gb": p.total / GB} for p in legal[:SHOWN]]
    thrown_out: list[Row] = [
        {"plan": p.name, "why": p.why, "total_gb": p.total / GB if p.numbers else None, "step_s": p.step if p.numbers else None} for p in rejected
    ]
    best, without = legal[0], [p for p in legal if not p.layout.recompute]
    w = Worked()
    w.say(f"逐个配 tp、cp、pp、ZeRO、重算 → {len(plans)} 个候选")
    gone = quantity(counts["batch"]) + quantity(counts["shape"]) + quantity(counts["memory"])
    left = w.line("装得下的：候选 − batch 分不匀 − 切不开 − 装不下", quantity(len(plans)) - gone)
    w.say(f"{left.text} 套按一步的秒数排 → {best.name}")
    step = quantity(best.step, "s")
    w.say(f"最快的一步，parallel-plan 的算法 → {step.text}")
    speed = w.line("每卡吞吐", quantity(global_batch) * quantity(seq, "token") / (step * quantity(n_gpus)), "token/s")
    mfu = w.line("MFU", speed * quantity(per_token / 1e9, "GFLOP") / quantity(gpu.dense_tflops, "TFLOPS"), "%")
    return Result(
        values={
            "n_candidates": len(plans), "n_legal": len(legal), "n_legal_no_recompute": len(without),
            "rejected_batch": counts["batch"], "rejected_shape": counts["shape"], "rejected_memory": counts["memory"],
            "best_tp": best.layout.tp, "best_pp": best.layout.pp, "best_cp": best.layout.cp, "best_dp": best.layout.dp, "best_zero": best.layout.zero,
            "best_recompute": top[0]["recompute"], "best_step_s": best.step, "best_tok_s_per_gpu": speed, "best_mfu_pct": mfu, "best_total_gb": best.total / GB,
            "top": top,
            "best": shown, "rejected": thrown_out,
        },
        lines=w.lines,
        verdict=_verdict(legal, rejected, n_gpus),
        notes=_notes(gpu, capacity, best),
        trace=Trace(legal, rejected),
    )  # fmt: skip


def _nothing(rejected: list[Plan], counts: Counter[str], capacity: float, margin: float, allow_recompute: bool) -> Refusal:
    sized = [p for p in rejected if p.numbers is not None]
    if not sized:
        return refuse(
            "global_batch",
            "没有装得下的方案：没有一种 dp 能把 batch 分匀、又切得开模型",
            f"{counts['batch']} 套分不匀，{counts['shape']} 套切不开",
            "换卡数或全局 batch",
        )
    least = min(sized, key=lambda p: p.total)
    recompute = "" if allow_recompute else "、开重算"
    return refuse(
        "n_gpus", f"没有装得下的方案：加卡{recompute}或缩短序列",
        f"最省的 {least.name} 也要 {format_number(least.total / GB)} GB，留 {format_number(margin)} GB 后超过 {format_number(capacity)} GB",
    )  # fmt: skip


def _verdict(legal: list[Plan], rejected: list[Plan], n_gpus: int) -> str:
    best = legal[0]
    said = f"{n_gpus} 张卡最快的是 {best.name}：一步 {format_number(best.step, digits=3)} 秒，每卡 {format_number(best.total / GB, digits=3)} GB。"
    faster = [p for p in rejected if p.numbers is not None and p.step < best.step]
    if faster:
        tempting = min(faster, key=lambda p: p.step)
        said += f"有 {len(faster)} 套算下来更快，可装不下：最快的 {tempting.name} 是 {format_number(tempting.step, digits=3)} 秒，{tempting.why}。"
    close = [p for p in legal[1:] if p.step <= 1.1 * best.step]
    if close:
        said += f"还有 {len(close)} 套慢不到 10%，在误差之内，一起拿去实测。"
    return said


def _notes(gpu: Accelerator, capacity: float, best: Plan) -> tuple[str, ...]:
    notes = []
    if capacity != gpu.memory_gb:
        notes.append(f"{gpu.name} 标称 {format_number(gpu.memory_gb)} GB，这里按填的 {format_number(capacity)} GB 比。")
    if best.layout.cp > 1:
        notes.append("第一名开了 cp：GQA 的 K、V 小，收齐比 TP 的 all-reduce 便宜；可这里没算块切小以后 kernel 变慢，短序列上别当真。")
    return tuple(notes)
