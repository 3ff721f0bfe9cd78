"""How many slots of a static batch work, when everybody waits for the longest request?"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable

from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Series
from calculators.core.errors import refuse
from calculators.core.inputs import choice, integer, number, powers_of_two, text
from calculators.core.numbers import NotANumber, format_number, parse_number
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.batching import constant_max, empirical_max, empirical_mean, exponential_max, geometric_max, harmonic, uniform_max

LONGEST: dict[str, Callable[[float, int], float]] = {
    "exponential": exponential_max,
    "geometric": geometric_max,
    "constant": constant_max,
    "uniform": uniform_max,
}
EMPIRICAL = "empirical"
NAMES = {"exponential": "指数", "geometric": "几何", "constant": "一样长", "uniform": "均匀", EMPIRICAL: "自己的直方图"}
WHY = {
    "exponential": "平均 × (1 + 1/2 + … + 1/B)",
    "geometric": "对 k 求和 1 − (1 − q^k)^B，q 是 1 减平均的倒数",
    "constant": "就是平均",
    "uniform": "平均 × 2B ÷ (B + 1)",
    EMPIRICAL: "对长度 k 求和 k × (F(k)^B − F(k−1)^B)",
}
BATCHES = tuple(2**k for k in range(11))
MOST_LENGTHS = 500
_SEPARATORS = re.compile(r"[\s,，、;；]+")
Histogram = tuple[tuple[float, float], ...]


def _chart(run: Run, *, batch: int, length_dist: str, mean_tokens: float, **_: object) -> tuple[Chart, ...]:
    lengths = run.result.trace
    assert isinstance(lengths, tuple)
    shown = [name for name in ("constant", "uniform", "exponential") if name != length_dist]
    curves = [Series(NAMES[name], tuple((float(b), 100 * mean_tokens / LONGEST[name](mean_tokens, b)) for b in BATCHES)) for name in shown]

    def chosen(b: int) -> float:
        if length_dist == EMPIRICAL:
            return 100 * empirical_mean(lengths) / empirical_max(lengths, b)
        return 100 * mean_tokens / LONGEST[length_dist](mean_tokens, b)

    curves.append(Series(NAMES[length_dist], tuple((float(b), chosen(b)) for b in BATCHES), emphasis=True))
    return (
        LineChart(
            "batch 越大，静态批处理的槽位越闲",
            "横轴是对数。输出一样长，永远是满的；长短差得越多，掉得越快。",
            Axis("batch", log=True),
            Axis("在出 token 的槽位", "%", low=0, high=100),
            tuple(curves),
            marks=(Mark("现在", float(batch), float(run.values["util_pct"]), emphasis=True),),  # type: ignore[arg-type]
        ),
    )


@calculator(
    title="静态批处理利用率",
    question="一批请求等最长的那条，槽位平均有多少在干活？",
    chapter="17",
    inputs=(
        integer("batch", "batch", 32, low=1, high=1024, stops=powers_of_two(1, 1024)),
        choice("length_dist", "输出长度", "exponential", (*LONGEST, EMPIRICAL), labels=NAMES, help="几何：整数的指数分布，每个 token 有同样的机会结束"),
        number("mean_tokens", "平均输出", 256, "token", low=1, high=1e6, kind="tokens", only_if=("length_dist", tuple(LONGEST)), stops=powers_of_two(1, 8192)),
        text("histogram", "长度直方图", longest=6000, placeholder="100:9, 2000:1", only_if=("length_dist", (EMPIRICAL,)), help="长度:条数，逗号隔开"),
    ),
    outputs=(
        Output("util_pct", "在干活的槽位", "%", main=True),
        Output("waste_pct", "空等的槽位", "%", main=True),
        Output("max_over_mean", "最长的是平均的", "×", main=True),
        Output("longest_tokens", "一批要走的步数，平均", "step"),
        Output("harmonic", "调和数 H_B"),
    ),
    chart=_chart,
    formula=(
        "利用率 = 平均长度 ÷ 一批里最长的平均",
        "最长的平均：指数 m·H_B；几何 Σ[1 − (1 − q^k)^B]，q = 1 − 1/m；均匀（0 到 2m）2mB/(B + 1)；一样长 m",
        "直方图：Σ k·(F(k)^B − F(k−1)^B)，F 是累计占比（有放回地抽）",
    ),
    assumptions=("每条的长度互相独立，进批之前不知道", "一步里各槽位都出一个 token，出完的空等到整批结束"),
    leaves_out="不算最大长度的截断（截了，最长的那条没那么长，浪费略少）、prompt 的补齐（长短不齐时 prefill 也照样浪费），和新请求等整批结束的排队。",
    sources=("次序统计量：B 个独立同分布的最大值", "Yu et al. 2022（Orca，OSDI）§2–3：按请求批处理为什么浪费"),
)
def static_batch_waste(*, batch: int, length_dist: str, mean_tokens: float, histogram: str) -> Result:
    """Mean length over the expected longest of B."""
    lengths: Histogram = ()
    mean, w = mean_tokens, Worked()
    if length_dist == EMPIRICAL:
        lengths = _read(histogram)
        mean, longest = empirical_mean(lengths), empirical_max(lengths, batch)
        w.say(f"{len(lengths)} 种长度，平均 → {quantity(mean, 'token', 4).text}")
    else:
        longest = LONGEST[length_dist](mean_tokens, batch)
    h_b = harmonic(batch)
    if length_dist == "exponential":
        w.say(f"1 + 1/2 + … + 1/{batch} → {quantity(h_b, '', 6).text}")
        steps = w.line("最长的平均", quantity(mean) * quantity(h_b))
    else:
        w.say(f"最长的平均：{WHY[length_dist]} → {quantity(longest, '', 6).text}")
        steps = quantity(longest)
    ratio = w.line("最长的是平均的", steps / quantity(mean), "×")
    util = w.line("在干活的槽位", quantity(mean) / steps, "%")
    waste = w.line("空等的槽位", quantity(1) - util, "%")
    return Result(
        values={"util_pct": util, "waste_pct": waste, "max_over_mean": ratio, "longest_tokens": longest, "harmonic": h_b},
        lines=w.lines,
        verdict=_verdict(batch, longest / mean, util, waste),
        trace=lengths,
    )


def _read(typed: str) -> Histogram:
    """``100:9, 2000:1`` as (length, count); equal lengths are added up.  Raises Refusal."""
    counts: dict[float, float] = defaultdict(float)
    for item in filter(None, _SEPARATORS.split(typed.replace("：", ":"))):
        length, colon, count = item.partition(":")
        if not colon:
            raise refuse("histogram", "长度直方图要写成 长度:条数", f"「{item[:40]}」", "例如 100:9, 2000:1")
        counts[_number(length, item, 1, 1e6)] += _number(count, item, 0, 1e9)
    found = tuple(sorted((length, count) for length, count in counts.items() if count > 0))
    if not found:
        raise refuse("histogram", "长度直方图不能是空的", "没有一条请求", "例如 100:9, 2000:1")
    if len(found) > MOST_LENGTHS:
        raise refuse("histogram", f"长度直方图最多 {MOST_LENGTHS} 种长度", f"{len(found)} 种", "把相近的长度并成一档")
    return found


def _number(typed: str, item: str, low: float, high: float) -> float:
    try:
        value = parse_number(typed)
    except NotANumber as error:
        raise refuse("histogram", f"长度直方图{error}", f"「{item[:40]}」", "例如 100:9, 2000:1") from None
    if not low <= value <= high:
        what = "长度" if low else "条数"
        raise refuse("histogram", f"长度直方图的{what}必须在 {format_number(low)} 到 {format_number(high)} 之间", f"「{item[:40]}」")
    return value


def _verdict(batch: int, ratio: float, util: Quantity, waste: Quantity) -> str:
    if batch == 1:
        return "一次只跑一条，没有人等谁；代价是每读一遍权重只出一个 token。"
    if ratio < 1.0005:
        return f"{batch} 路全满：输出一样长，谁也不等谁。用固定输出长度压测，看不见静态批处理的浪费。"
    return f"{batch} 路里平均只有 {util.text} 的槽位在出 token：最长的一条是平均的 {quantity(ratio, '×', 4).text}，别的出完了空等，{waste.text} 白占。出完就换人，才填得上。"
