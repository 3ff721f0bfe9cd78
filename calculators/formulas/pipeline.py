"""Pipeline parallelism in closed form: idle time, micro-batches in flight, how the layers are dealt to the stages.

p stages (or ranks), m micro-batches, v chunks of layers on each rank.  Per micro-batch and rank: f forward, b gradient of
the inputs, w gradient of the weights; f + b + w is the work of one micro-batch.

Sources: Huang et al. 2019 (GPipe) §2.3; Narayanan et al. 2021 §2.2; Qi et al. 2023 (Zero Bubble) and its repository's
README; deepseek-ai/DualPipe README, whose B is the full backward (b + w here).  p2p time and imbalance are left out.
"""

from __future__ import annotations

from calculators.core.errors import Refusal, refuse
from calculators.core.worked import N, floor, smaller

SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "交错 1F1B",
    "zb1p": "ZB1P",
    "zb2p": "ZB2P",
    "zbv": "ZBV",
    "dualpipe": "DualPipe",
}
SPLITS_BACKWARD = ("zb1p", "zb2p", "zbv", "dualpipe")
"""They run the gradient of the weights on its own, where it fills a gap."""
NO_BUBBLE = ("zb2p", "zbv")


def idle_time(schedule: str, p: N, v: N, f: N, b: N, w: N, fb: N) -> N:
    """What a rank waits in one step; ``fb`` is a forward and a backward that overlap (DualPipe)."""
    once = (p - 1) * (f + b + w)
    return {
        "gpipe": once,
        "1f1b": once,
        "interleaved": once / v,
        "zb1p": (p - 1) * (f + b - w),
        "zb2p": 0 * f,
        "zbv": 0 * f,
        "dualpipe": (p / 2 - 1) * (fb + (b + w) - 3 * w),
    }[schedule]


def bubble_fraction(idle: N, work: N) -> N:
    """Share of the whole step; idle ÷ work is the other definition, share of the ideal step."""
    return idle / (idle + work)


def in_flight(schedule: str, p: N, i: N, m: N, v: N) -> N:
    """Micro-batches whose activations rank i holds at once; for zb1p and zbv the largest of any rank."""
    return {
        "gpipe": m,
        "1f1b": smaller(p - i, m),
        "interleaved": smaller((2 * (p - i - 1) + (v - 1) * p + 1) / v, m),
        "zb1p": smaller(p, m),
        "zb2p": smaller(2 * p, m),
        "zbv": smaller(p, m),
        "dualpipe": smaller(p + 1, m),
    }[schedule]


def check_schedule(schedule: str, p: int, m: int, field: str = "microbatches") -> None:
    """What a schedule asks of p and m.  Raises Refusal."""
    if schedule == "interleaved" and m % p:
        raise interleaved_refusal(p, m, field)
    if schedule == "dualpipe" and p % 2:
        raise refuse("pp", "DualPipe 需要偶数段", p, f"可取 {p - 1} 或 {p + 1}" if p > 1 else "可取 2")


def interleaved_refusal(p: int, m: int, field: str) -> Refusal:
    """Megatron's rule."""
    lower = m // p * p
    return refuse(field, "交错调度要求微批数是流水段数的整数倍", f"{m} / {p}", f"可取 {f'{lower} 或 ' if lower else ''}{lower + p}")


def even_split(layers: int, p: int) -> tuple[int, ...]:
    """L ÷ p each, the remainder one each to the first stages."""
    return tuple(layers // p + (i < layers % p) for i in range(p))


def stage_costs(split: tuple[int, ...], head: float) -> list[float]:
    """Each stage in layers; the last one also computes the head, worth ``head`` layers.  The embedding is a look-up: 0."""
    return [float(n) for n in split[:-1]] + [split[-1] + head]


def best_split(layers: int, p: int, head: float) -> tuple[int, ...]:
    """The split whose slowest stage is least: the smallest T among k and k + head that has room for all layers."""
    ceiling = sorted({float(k) for k in range(1, layers + 1)} | {k + head for k in range(layers + 1)})
    for slowest in ceiling:
        on_last = round(floor(slowest - head)) if slowest >= head else -1
        if on_last >= 0 and (p - 1) * round(floor(slowest)) + on_last >= layers:
            last = min(on_last, layers - p + 1)
            return (*even_split(layers - last, p - 1), last) if p > 1 else (last,)
    return even_split(layers, p)
