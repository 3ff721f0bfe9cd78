"""A synchronous step waits for its slowest rank: how much does that cost?"""

from __future__ import annotations

from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Series
from calculators.core.errors import refuse
from calculators.core.inputs import integer, linear_stops, number, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.slowest import below, expected_slowest, shorthand

RANKS = tuple(2**k for k in range(0, 21, 2))
"""1 … 1,048,576."""
JITTERS = (0.01, 0.02, 0.05)
COARSE = 400
"""Steps of the integral for the chart."""


def _chart(run: Run, *, n_ranks: int, jitter_pct: float, slow_ranks: int, slow_pct: float) -> tuple[Chart, ...]:
    now = run.values["slowdown_pct"]
    assert isinstance(now, float | int)
    unit = {n: expected_slowest(n, 1.0, steps=COARSE) for n in RANKS}  # without slow ranks everything is proportional to σ
    sigma, slow = jitter_pct / 100, slow_pct / 100
    shown = sorted({*JITTERS, sigma} - {0.0})
    curves = tuple(
        Series(f"抖动 {format_number(100 * s)}%", tuple((float(n), 100 * s * unit[n]) for n in RANKS), emphasis=s == sigma, dashed=s != sigma) for s in shown
    )
    charts = [
        LineChart(
            "卡越多，越容易碰上慢的",
            "横轴是对数。没有坏卡，只有随机抖动：卡数乘一千，拖慢只多两三倍，线几乎是直的。点高出线的部分，是慢卡拖的。",
            Axis("一起走的卡", "card", log=True),
            Axis("每步拖慢", "%", low=0),
            curves,
            marks=(Mark("现在", float(n_ranks), float(now), emphasis=True),),
        )
    ]
    if sigma > 0:
        extra = slow if slow_ranks else 0.0
        low, high = -4 * sigma, extra + 6 * sigma
        xs = [low + (high - low) * i / 100 for i in range(101)]
        one = tuple((100 * x, 100 * below(x / sigma)) for x in xs)
        every = tuple((100 * x, 100 * below(x / sigma) ** (n_ranks - slow_ranks) * below((x - extra) / sigma) ** slow_ranks) for x in xs)
        charts.append(
            LineChart(
                "一张卡常常准时，所有卡都准时很难",
                "横轴是比平均慢多少，纵轴是到那时已经做完的机会。一张普通的卡在 0 附近就做完了；要所有卡都做完，得等到右边那条线。",
                Axis("比平均慢", "%"),
                Axis("做完的机会", "%", low=0, high=100),
                (Series("一张普通的卡", one, dashed=True), Series("所有的卡", every, emphasis=True)),
            )
        )
    return tuple(charts)


@calculator(
    title="最慢的卡拖慢多少",
    question="每张卡都有一点快慢，所有卡等最慢的那张，一步要慢多少？",
    chapter="21",
    inputs=(
        integer("n_ranks", "一起走的卡", 16384, "card", high=1_000_000, kind="count", stops=(*powers_of_two(1, 65536), 100_000, 1_000_000)),
        number("jitter_pct", "一张卡的抖动 σ", 2, "%", low=0, high=30, stops=(0, 0.5, 1, 2, 3, 5, 7.5, 10, 15, 20, 30), help="标准差，占一步平均时间"),
        integer("slow_ranks", "其中慢卡", 0, "card", low=0, high=1_000_000, stops=(0, 1, 2, 4, 8, 16, 32, 64), help="一台机器是 8 张"),
        number("slow_pct", "慢卡慢多少", 10, "%", low=0, high=100, stops=linear_stops(0, 20, 1)),
    ),
    outputs=(
        Output("slowdown_pct", "每步拖慢", "%", main=True),
        Output("shorthand_pct", "粗算 σ√(2 ln n)", "%", main=True),
        Output("noise_pct", "只有抖动时", "%", main=True),
    ),
    chart=_chart,
    formula=("一步 = 所有卡里最慢的", "拖慢 = E[n 个正态里最大的] − 1，数值积分（4000 格梯形）", "粗算 = σ × √(2 ln n)，是上界"),
    assumptions=("各卡独立，快慢服从正态，σ 一样", "每步都要等齐（同步训练）"),
    leaves_out="同一台机器的卡一起慢，独立的份数少一点，结果略小；真实的尾巴更重（垃圾回收、page cache），有时大得多；几个 micro-batch 凑一步，σ 按 1/√m 变小。",
    sources=("正态分布的次序统计量；本书计算", "MegaScale（arXiv 2402.15627）：有的机器慢约 10%"),
)  # fmt: skip
def straggler(*, n_ranks: int, jitter_pct: float, slow_ranks: int, slow_pct: float) -> Result:
    """Mean of the largest of n normal step times, some of them shifted."""
    if slow_ranks > n_ranks:
        raise refuse("slow_ranks", "慢卡不能比卡还多", f"{slow_ranks} > {n_ranks}", f"最多 {n_ranks}")
    w = Worked()
    sigma = quantity(jitter_pct, "%")
    rough = w.line("粗算（上界）", shorthand(sigma, quantity(n_ranks)), "%")
    noise = quantity(100 * expected_slowest(n_ranks, sigma.value), "%", 4)
    w.say(f"{format_number(n_ranks)} 个正态里最大的，数值积分 → 慢 {noise.text}")
    worst = noise
    if slow_ranks:
        worst = quantity(100 * expected_slowest(n_ranks, sigma.value, slow_ranks, slow_pct / 100), "%", 4)
        w.say(f"其中 {slow_ranks} 张慢 {format_number(slow_pct)}% → 慢 {worst.text}")
    return Result(
        values={"slowdown_pct": worst, "shorthand_pct": rough, "noise_pct": noise},
        lines=w.lines,
        verdict=_verdict(n_ranks, slow_ranks, slow_pct, worst, noise),
    )


def _verdict(n_ranks: int, slow_ranks: int, slow_pct: float, worst: Quantity, noise: Quantity) -> str:
    head = f"{format_number(n_ranks)} 张卡等最慢的一张，每步慢 {worst.text}"
    added = 100 * (worst.value - noise.value)
    if 2 * slow_ranks > n_ranks and slow_pct > 0:
        return head + "：大半都慢，那不是慢卡，是「平均」定错了。"
    if slow_ranks and added >= 0.5:
        share = format_number(100 * slow_ranks / n_ranks, digits=2)
        return head + f"：{slow_ranks} 张慢卡（{share}%）就多拖了 {format_number(added, digits=3)} 个百分点，换掉它们。"
    if slow_ranks and slow_pct > 0:
        return head + "：慢卡淹没在抖动里，先查抖动从哪来。"
    return head + ("。这点抖动不值得追。" if worst.value < 0.01 else "，全是随机抖动：先减抖动（垃圾回收、数据加载），再查慢机器。")
