"""Up to which batch does speculation pay on this model and these cards?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from calculators.catalog import Accelerator, Model, gpu_input, model_input, models
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Rule, Series
from calculators.core.errors import refuse
from calculators.core.inputs import choice, integer, linear_stops, number, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.worked import Quantity, Worked, floor, quantity
from calculators.formulas.inference import Shape, batch_flops, kv_request, largest_true, shape_of
from calculators.formulas.speculation import breakeven_tokens, compute_seconds, most_batch, read_seconds, round_speedup, step, tokens_per_round

BYTES = 2
"""Of a weight and of a KV element: BF16."""
MOST_BATCH = 4096
"""Where the search for the break-even batch ends."""
HEAD = "head"
DENSE = {id: m for id, m in models().items() if m.is_dense}
CURVE = tuple(round(2 ** (k / 4)) for k in range(41))
"""1 … 1024, four points a doubling."""


@dataclass(frozen=True)
class Load:
    """What a model reads and computes: weights once a step, KV and FLOPs for every sequence."""

    weights: float
    kv_each: float
    flops_each: float


@dataclass(frozen=True)
class Pair:
    """Target, draft (None = a head whose step is ``head_c`` target steps), the cards' effective rates, and γ with its E."""

    target: Load
    draft: Load | None
    head_c: float
    bytes_per_s: float
    flops_per_s: float
    gamma: int
    tokens: float

    def one(self, load: Load, batch: float, positions: float) -> float:
        """Seconds of a step."""
        return step(load.weights, load.kv_each, load.flops_each, batch, positions, self.bytes_per_s, self.flops_per_s)

    def draft_step(self, batch: float) -> float:
        return self.head_c * self.one(self.target, batch, 1.0) if self.draft is None else self.one(self.draft, batch, 1.0)

    def verify(self, batch: float) -> float:
        return self.one(self.target, batch, self.gamma + 1.0)

    def speedup(self, batch: float) -> float:
        return round_speedup(self.tokens, self.one(self.target, batch, 1.0), float(self.gamma), self.draft_step(batch), self.verify(batch))

    def breakeven(self) -> int:
        """Largest batch up to 4096 at which speculation is no slower; 0 if there is none."""
        return next((b for b in range(MOST_BATCH, 0, -1) if self.speedup(b) >= 1), 0)

    def knee(self) -> int | None:
        """Largest batch at which checking still waits for memory; None when the KV cache keeps it there for ever."""
        if not self._reads(MOST_BATCH * MOST_BATCH):
            return largest_true(self._reads, 1, MOST_BATCH * MOST_BATCH)
        return None

    def _reads(self, batch: int) -> bool:
        load = self.target
        reading = read_seconds(load.weights, load.kv_each, float(batch), self.bytes_per_s)
        return compute_seconds(float(batch), self.gamma + 1.0, load.flops_each, self.flops_per_s) <= reading


def _load(shape: Shape, context: int) -> Load:
    return Load(BYTES * shape.matmul_params, kv_request(shape, BYTES, context), batch_flops(shape, 1, context))


def _pair(target: Model, draft: str, head_c: float, gpu: Accelerator, n_gpus: int, context: int, alpha: float, gamma: int, mfu: float, mbu: float) -> Pair:
    drafting = None if draft == HEAD else _load(shape_of(DENSE[draft]), context)
    load = _load(shape_of(target), context)
    return Pair(load, drafting, head_c, n_gpus * gpu.hbm_bytes_per_s * mbu, n_gpus * gpu.dense_flops * mfu, gamma, tokens_per_round(alpha, gamma))


def _chart(
    run: Run, *, target: Model, draft: str, head_c: float, gpu: Accelerator, n_gpus: int, context_tokens: int, batch: int, alpha: float, gamma: int,
    mfu: float, mbu: float, **_: object,
) -> tuple[Chart, ...]:  # fmt: skip
    make = partial(_pair, head_c=head_c, gpu=gpu, n_gpus=n_gpus, context=context_tokens, alpha=alpha, gamma=gamma, mfu=mfu, mbu=mbu)
    pair = make(target, draft)
    most = int(run.values["b_max_memory"])  # type: ignore[arg-type]
    fits = sorted({b for b in CURVE if b <= most} | ({most} if most <= CURVE[-1] else set()))
    beyond = [b for b in CURVE if b >= fits[-1]]
    series = [Series("装得下", tuple((float(b), pair.speedup(b)) for b in fits), emphasis=True)]
    if len(beyond) > 1:
        series.append(Series("装不下了", tuple((float(b), pair.speedup(b)) for b in sorted({fits[-1], *beyond})), dashed=True))
    return (
        LineChart(
            "batch 越大，投机越不值",
            "平的那段，验证搭的是闲着的算力；弯下去之后，每多验一个位置都要排队算。掉到横线以下就是变慢。",
            Axis("batch", "sequence", log=True),
            Axis("加速", "×", low=0),
            tuple(series),
            marks=(Mark("现在", float(batch), pair.speedup(batch), emphasis=True),),
            rules=(Rule("不快不慢", y=1.0),),
        ),
    )


@calculator(
    title="batch 多大就不划算",
    question="在你的模型和卡上，batch 加到多少，投机解码开始帮倒忙？",
    chapter="19",
    inputs=(
        model_input("llama-3-70b", name="target", label="目标模型", where=lambda m: m.is_dense, help="稠密模型"),
        choice("draft", "草稿", "llama-3-8b", (*DENSE, HEAD), labels={**{id: m.name for id, m in DENSE.items()}, HEAD: "目标上加一层（头）"}),
        integer("batch", "batch", 1, "sequence", low=1, high=512, stops=(1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512)),
        integer("context_tokens", "每条的上下文", 1024, "token", low=1, high=1_000_000, kind="tokens", stops=powers_of_two(256, 131072)),
        number("alpha", "接受率 α", 0.8, low=0, high=1, stops=linear_stops(0, 1, 0.05)),
        integer("gamma", "每轮猜几个 γ", 4, "token", low=0, high=32, stops=(*linear_stops(0, 16, 1), 20, 24, 28, 32)),
        gpu_input(more=True),
        integer("n_gpus", "几张卡", 4, "卡", low=1, high=64, more=True, kind="cards", stops=powers_of_two(1, 64)),
        number("head_c", "头的时间比", 0.02, low=0, high=1, more=True, only_if=("draft", (HEAD,)), stops=(0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1), help="一个头一步 ÷ 目标一步"),
        number("mfu", "算力利用率", 0.5, low=0.05, high=1, more=True, kind="fraction", stops=linear_stops(0.05, 1, 0.05)),
        number("mbu", "带宽利用率", 0.8, low=0.05, high=1, more=True, kind="fraction", stops=linear_stops(0.05, 1, 0.05)),
        number("mem_fraction", "显存用到", 0.9, low=0.1, high=1, more=True, kind="fraction", stops=linear_stops(0.1, 1, 0.05)),
    ),
    outputs=(
        Output("speedup", "加速 S", "×", main=True),
        Output("breakeven_batch", "最后一个不亏的 batch", main=True),
        Output("verify_knee_batch", "验证还免费的最大 batch", main=True),
        Output("b_max_memory", "显存装得下的 batch", main=True),
        Output("breakeven_tokens_per_round", "每轮至少几个才不亏", "token"),
        Output("target_step_ms", "目标一步", "ms", digits=5),
        Output("draft_step_ms", "草稿一步", "ms", digits=5),
        Output("verify_ms", "验一次", "ms", digits=5),
        Output("c", "时间比 c", digits=5),
        Output("draft_kv_pct", "KV 每 token 多占", "%"),
    ),
    chart=_chart,
    formula=(
        "一步 = max((2·N + B·KV) ÷ 有效带宽，B·位置数·(2·N + attention) ÷ 有效算力)；验一次是 γ + 1 个位置",
        "S = E × 目标一步 ÷ (γ × 草稿一步 + 验一次)；不亏的每轮 token 数 = (γ × 草稿一步 + 验一次) ÷ 目标一步",
        "装得下的 batch = ⌊(显存 × 用到的份数 − 两份权重) ÷ (两份 KV)⌋；一个头按目标的一层算",
    ),
    assumptions=("权重和 KV 都是 BF16，草稿和目标用同一批卡", "读和算完全重叠；N 不算输入词表", "不亏的 batch 从 4096 往下找"),
    leaves_out="小草稿切到多张卡的通信：8B 用 TP4 时真实的 c 比这里大。草稿的 KV 挤掉的并发在「装得下的 batch」里，没有折成钱。",
    sources=("Leviathan et al. 2023（2211.17192）", "一步的时间：第 15 章的两阶段模型", "峰值与带宽：硬件目录（稠密）"),
)  # fmt: skip
def spec_batch(
    *, target: Model, draft: str, head_c: float, gpu: Accelerator, n_gpus: int, context_tokens: int, batch: int, alpha: float, gamma: int,
    mfu: float, mbu: float, mem_fraction: float,
) -> Result:  # fmt: skip
    """A round's length at a batch, from the two walls of chapter 15."""
    pair = _pair(target, draft, head_c, gpu, n_gpus, context_tokens, alpha, gamma, mfu, mbu)
    w = Worked()
    most = _fits(w, pair, target, draft, gpu, n_gpus, mem_fraction, batch)
    bandwidth = w.line("有效带宽", quantity(n_gpus) * quantity(gpu.bandwidth_gb_s, "GB/s") * quantity(mbu), "GB/s")
    compute = w.line("有效算力", quantity(n_gpus) * quantity(gpu.dense_tflops, "TFLOPS") * quantity(mfu), "TFLOPS")

    def timed(label: str, load: Load, positions: int) -> Quantity:
        each = quantity(load.weights / 1e9, "GB"), quantity(load.kv_each / 1e6, "MB"), quantity(load.flops_each / 1e9, "GFLOP")
        reading = w.line(f"{label}：读", read_seconds(each[0], each[1], quantity(batch), bandwidth), "ms")
        computing = w.line(f"{label}：算", compute_seconds(quantity(batch), quantity(positions), each[2], compute), "ms")
        return reading if reading.value >= computing.value else computing

    once, check = timed("目标一步", pair.target, 1), timed(f"验 {gamma + 1} 个位置", pair.target, gamma + 1)
    drafting = w.line("草稿一步", quantity(head_c) * once, "ms") if pair.draft is None else timed("草稿一步", pair.draft, 1)
    ratio = w.line("时间比 c", drafting / once)
    need = w.line("不亏要每轮", breakeven_tokens(once, quantity(gamma), drafting, check), "token")
    w.say(f"接受率 {format_number(alpha)}，猜 {gamma} 个：每轮 → {quantity(pair.tokens, 'token').text}")
    speed = w.line("加速", round_speedup(quantity(pair.tokens), once, quantity(gamma), drafting, check), "×")
    even, knee = pair.breakeven(), pair.knee()
    w.say(f"batch 从 {MOST_BATCH} 往下试，最后一个不亏的 → {even}")
    w.say(f"验证还在等显存的最大 batch → {'没有上限' if knee is None else format_number(knee)}")
    return Result(
        values={
            "speedup": pair.speedup(batch), "breakeven_batch": even, "verify_knee_batch": knee, "b_max_memory": most, "breakeven_tokens_per_round": need,
            "target_step_ms": once, "draft_step_ms": drafting, "verify_ms": check, "c": ratio.value, "draft_kv_pct": 100 * _draft_kv(pair, target) / pair.target.kv_each,
        },
        lines=w.lines,
        verdict=_verdict(batch, gamma, speed, even, most, f"每轮吐 {format_number(pair.tokens)} 个，要 {format_number(need.value)} 个才够本"),
    )  # fmt: skip


def _draft_kv(pair: Pair, target: Model) -> float:
    """Bytes of KV that the draft adds to a sequence: its own cache, or that of one target layer."""
    return pair.target.kv_each / target.layers if pair.draft is None else pair.draft.kv_each


def _fits(w: Worked, pair: Pair, target: Model, draft: str, gpu: Accelerator, n_gpus: int, mem_fraction: float, batch: int) -> int:
    """The batch that memory allows.  Raises Refusal when the chosen one is larger."""
    extra = (target.total_params - target.embedding_and_head_params) / target.layers if pair.draft is None else DENSE[draft].total_params
    big, small = quantity(BYTES * target.total_params / 1e9, "GB"), quantity(BYTES * extra / 1e9, "GB")
    room = quantity(n_gpus) * quantity(gpu.memory_gb, "GB") * quantity(mem_fraction) - big - small
    if room.value <= 0:
        need = format_number((big.value + small.value) / 1e9)
        raise refuse(
            "n_gpus",
            f"装不下：两份权重就要 {need} GB",
            f"{n_gpus} 张卡能用 {format_number(n_gpus * gpu.memory_gb * mem_fraction)} GB",
            "加卡，或换小一点的草稿",
        )
    left = w.line("权重之外", room, "GB")
    per_target, per_draft = quantity(pair.target.kv_each / 1e6, "MB"), quantity(_draft_kv(pair, target) / 1e6, "MB")
    most = round(w.line("装得下的 batch", floor(most_batch(left, per_target, per_draft))).value)
    if batch > most:
        raise refuse("batch", f"装不下：最多 B = {most}", f"batch 是 {batch}", "把 batch 或上下文调小，或加卡")
    return most


def _verdict(batch: int, gamma: int, speed: Quantity, even: int, most: int, why: str) -> str:
    if gamma == 0:
        return "γ 是 0，没有投机，也就没有加速。"
    if speed.value < 1:
        start = f"batch {batch} 会变慢，只有 {speed.text}：{why}"
        if even == 0:
            return f"{start}；到 {MOST_BATCH} 为止没有不亏的 batch，草稿太贵，或者猜得不准：别开。"
        if even > batch:
            return f"{start}。关掉；更大的 batch 里有不亏的，看图。"
        return f"{start}。关掉，或随负载调小 γ；最后一个不亏的 batch 是 {even}。"
    reach = f"加到 {MOST_BATCH} 也不亏" if even == MOST_BATCH else f"最后一个不亏的 batch 是 {even}"
    end = f"显存只装得下 {most}，先到头" if most <= even else "再大就变慢，高峰时要能关掉"
    return f"batch {batch} 快到 {speed.text}；{reach}，{end}。"
