"""A live experiment: send tokens to experts and see who drowns, who idles, and how many tokens fall over the edge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, Grid, LineChart, Rule, Series
from calculators.core.errors import refuse
from calculators.core.inputs import integer, linear_stops, number, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.worked import Worked, ceil, quantity

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Counts = NDArray[np.int64]

MOST_POINTS = 129
COLUMNS = 8
PRACTICE_TOKENS = 256
"""What a step of tuning the biases looks at: a small batch, or the browser would take too long."""
MOST_STEPS = 30
UNEVEN = 1.5
"""From here on the verdict calls the cards uneven (a rule of ours)."""
FIRST_STEP = 0.3
"""Of the bias, in nats; it falls to nothing over the steps."""


@dataclass(frozen=True)
class Trace:
    """Loads as multiples of the mean, experts from the busiest on."""

    experts: tuple[float, ...]
    gpus: tuple[float, ...]
    capacity: float


def _routed(rng: np.random.Generator, tokens: int, hardness: Floats, top_k: int) -> Counts:
    """How often each expert is chosen: the top_k smallest keys, which is Gumbel top-k over the log-popularity."""
    import numpy as np

    experts = hardness.size
    keys = rng.standard_exponential((tokens, experts), np.float32) * hardness
    chosen = np.argpartition(keys, top_k - 1, axis=1)[:, :top_k] if top_k < experts else np.tile(np.arange(experts), (tokens, 1))
    return np.bincount(chosen.ravel(), minlength=experts)


def _tuned(hardness: Floats, top_k: int, steps: int, seed: int) -> Floats:
    """Biases without an auxiliary loss: after each batch the busy experts are held back a little and the idle ones pushed."""
    import numpy as np

    rng = np.random.default_rng(seed + 1_000_003)
    bias = np.zeros(hardness.size, np.float32)
    mean = PRACTICE_TOKENS * top_k / hardness.size
    for step in range(steps):
        counts = _routed(rng, PRACTICE_TOKENS, hardness * np.exp(bias), top_k)
        bias += np.float32(FIRST_STEP * (1 - step / steps)) * np.sign(counts - mean).astype(np.float32)
    tuned: Floats = hardness * np.exp(bias)
    return tuned


def _chart(run: Run, *, capacity_factor: float, **_: object) -> tuple[Chart, ...]:
    trace = run.result.trace
    assert isinstance(trace, Trace)
    n = len(trace.experts)
    shown = sorted({round(i * (n - 1) / (min(n, MOST_POINTS) - 1)) for i in range(min(n, MOST_POINTS))})
    wide = min(COLUMNS, len(trace.gpus))
    rows = [trace.gpus[i : i + wide] for i in range(0, len(trace.gpus), wide)]
    return (
        LineChart(
            "专家从最忙排到最闲",
            "高出容量线的那一截，token 被丢掉；低于容量线的那一截，给专家留的位子空着。越平越好。",
            Axis("第几忙的专家"),
            Axis("收到的 token，是平均的几倍", "×", low=0),
            (Series("收到的 token", tuple((float(i + 1), trace.experts[i]) for i in shown), emphasis=True),),
            rules=(Rule(f"容量 {format_number(trace.capacity, digits=3)}", y=trace.capacity),),
        ),
        Grid(
            "每张卡的活，是平均的几倍",
            "几个专家住一张卡，忙闲抵掉一些。最深的那张卡没算完，all-to-all 就收不回来，别的卡都等它。",
            tuple(f"卡 {i}" for i in range(0, len(trace.gpus), wide)),
            ("",) * wide,
            tuple(rows),
            tuple(tuple(format_number(round(x, 2), digits=3) for x in row) for row in rows),
            low=0,
            high=max(2.0, max(trace.gpus)),
        ),
    )  # fmt: skip


@calculator(
    title="路由不均衡",
    question="token 自己选专家，最忙的那个要多干多少？容量留多少才不丢 token？",
    chapter="14",
    inputs=(
        integer("tokens", "token 数", 4096, "token", low=64, high=8192, kind="tokens", stops=powers_of_two(64, 8192)),
        number("alpha", "偏心 α", 0, low=0, high=2, stops=linear_stops(0, 2, 0.1), help="第 i 个专家的人气正比于 1/i^α；0 是一视同仁"),
        number("capacity_factor", "容量系数", 1.0, low=0.5, high=4, stops=(0.5, 0.75, 1, 1.25, 1.5, 2, 3, 4), help="每个专家最多收平均的几倍，多的丢掉"),
        integer("bias_steps", "偏置调几步", 0, low=0, high=MOST_STEPS, stops=linear_stops(0, MOST_STEPS, 5), help="忙的压一点，闲的抬一点；0 是不调"),
        integer("gpus", "几张卡", 64, "card", low=1, high=512, stops=powers_of_two(1, 512), help="专家按顺序住，一卡几个"),
        integer("experts", "专家", 256, low=8, high=512, more=True, stops=powers_of_two(8, 512)),
        integer("top_k", "每 token 选几个", 8, low=1, high=16, more=True, stops=(1, 2, 4, 6, 8, 16)),
        integer("seed", "随机种子", 0, low=0, high=1000, more=True, stops=linear_stops(0, 30, 1)),
    ),
    outputs=(
        Output("max_over_mean_expert", "最忙的专家，是平均的", "×", main=True, agreement="band"),
        Output("max_over_mean_gpu", "最忙的卡，是平均的", "×", main=True, agreement="band"),
        Output("drop_pct", "丢掉的 token 份数", "%", main=True, agreement="band"),
        Output("padding_pct", "空着的位子", "%", main=True, agreement="band"),
        Output("idle_experts", "一个 token 都没有的专家", agreement="band"),
        Output("mean_load", "平均每个专家收到"),
        Output("capacity", "每个专家的容量"),
    ),
    chart=_chart,
    needs=("numpy",),
    formula=(
        "平均 = token × 每 token 选几个 ÷ 专家；容量 = ⌈容量系数 × 平均⌉",
        "丢掉 = Σ max(收到 − 容量, 0) ÷ (token × 每 token 选几个)",
        "每 token 给专家 i 一个键：标准指数随机数 × i^α，取最小的几个",
        "调偏置：每步看 256 个新 token，比平均忙的压低，比平均闲的抬高，步子越来越小",
    ),
    assumptions=("token 之间互不相关；真实的一批里常有成片相似的 token，更不均",),
    leaves_out="不算节点限制、共享专家和训练中人气的变化；偏置的步长是本书取的，不是论文的。换个种子，最忙的专家在 1.19 到 1.38 倍之间（默认尺寸）。",
    sources=("Fedus et al. 2021（Switch Transformer）：容量系数", "Wang et al. 2024（Auxiliary-Loss-Free Load Balancing）、DeepSeek-V3 报告 §2.1.2：只调偏置；凭记忆，没有对过原文"),
)  # fmt: skip
def moe_balance_lab(*, tokens: int, experts: int, top_k: int, alpha: float, capacity_factor: float, gpus: int, seed: int, bias_steps: int) -> Result:
    """Route once, count per expert and per card."""
    import numpy as np

    _check(experts, top_k, gpus)
    hardness = (np.arange(1, experts + 1, dtype=np.float64) ** alpha).astype(np.float32)
    if bias_steps:
        hardness = _tuned(hardness, top_k, bias_steps, seed)
    counts = _routed(np.random.default_rng(seed), tokens, hardness, top_k)
    on_gpus = counts.reshape(gpus, -1).sum(axis=1)

    w = Worked()
    asked = w.line("一共要送", quantity(tokens) * quantity(top_k), "", 6)
    mean = w.line("平均每个专家", asked / quantity(experts))
    capacity = w.line("每个专家的容量", ceil(quantity(capacity_factor) * mean))
    w.say(f"抽签送出去，最忙的专家 → {int(counts.max())}")
    busiest = w.line("是平均的", quantity(int(counts.max())) / mean, "×")
    w.say(f"每卡 {experts // gpus} 个专家加起来，最忙的卡 → {int(on_gpus.max())}")
    gpu = w.line("是平均的", quantity(int(on_gpus.max())) / (asked / quantity(gpus)), "×")
    over = int(np.maximum(counts - int(capacity.value), 0).sum())
    w.say(f"超出容量的加起来 → {over}")
    drop = w.line("丢掉", quantity(over) / asked, "%")
    padding = w.line("空着的位子", 1 - (asked - quantity(over)) / (quantity(experts) * capacity), "%")
    idle = int((counts == 0).sum())
    loads = np.sort(counts)[::-1] / mean.value
    return Result(
        values={
            "max_over_mean_expert": busiest, "max_over_mean_gpu": gpu, "drop_pct": drop, "padding_pct": padding, "idle_experts": idle,
            "mean_load": mean, "capacity": round(capacity.value),
        },
        lines=w.lines,
        verdict=_verdict(busiest.value, gpu.value, drop.value, padding.value, idle, alpha, bias_steps, gpus),
        trace=Trace(tuple(loads.tolist()), tuple((on_gpus / (asked.value / gpus)).tolist()), capacity.value / mean.value),
    )  # fmt: skip


def _check(experts: int, top_k: int, gpus: int) -> None:
    if top_k > experts:
        raise refuse("top_k", "每 token 选的不能比专家还多", f"{top_k} > {experts}", f"最多 {experts}")
    if experts % gpus:
        fits = [g for g in range(1, experts + 1) if experts % g == 0]
        nearest = sorted(sorted(fits, key=lambda g: abs(g - gpus))[:4])
        raise refuse("gpus", "专家要平均住进每张卡", f"{experts} / {gpus}", f"可取 {'、'.join(map(str, nearest))}")


def _verdict(expert: float, gpu: float, drop: float, padding: float, idle: int, alpha: float, bias_steps: int, gpus: int) -> str:
    said = f"最忙的专家是平均的 {format_number(expert, digits=3)} 倍，"
    if gpus == 1:
        said += "都住一张卡，没有谁等谁。"
    else:
        said += f"最忙的卡 {format_number(gpu, digits=3)} 倍：各卡平均有 {format_number(100 * (1 - 1 / gpu), digits=2)}% 的时间在等它。"
    empty = f"位子空 {format_number(100 * padding, digits=3)}%。"
    said += f"丢 {format_number(100 * drop, digits=3)}%，{empty}" if drop else f"一个没丢，{empty}"
    if idle:
        said += f"有 {idle} 个专家一个 token 都没收到。"
    if not alpha:
        return said + ("本来就没有偏心，偏置只是在追噪声。" if bias_steps else "没有谁偏心，纯是随机：每个专家的 token 越多越平。")
    if gpu <= UNEVEN:
        return said + ("偏置把人气抵掉了，剩下的是随机。" if bias_steps else "")
    if bias_steps == MOST_STEPS:
        return said + "偏置调满了步数也没压平：人气差得太远。"
    return said + ("偏置还没调平，多调几步。" if bias_steps else "加容量只能少丢，卡还是要等；得让路由自己变匀：把偏置打开。")
