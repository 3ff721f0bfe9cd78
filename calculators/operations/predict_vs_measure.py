"""How far is a measurement from its prediction, is it steady, and which input of the prediction is to be estimated anew?"""

from __future__ import annotations

from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Rule, Series
from calculators.core.errors import refuse
from calculators.core.inputs import choice, linear_stops, log_stops, number, text
from calculators.core.lists import read_numbers
from calculators.core.numbers import format_number
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.measurement import KINDS, STEADY, median, percentile, variation, worse_by

LEAST = 3
MOST = 1000
TINY, HUGE = 1e-30, 1e30
"""Beyond these a ratio of two of them is no finite number."""
SUSPECTS = {
    "unknown": ("还没想好", 0),
    "efficiency": ("效率（MFU、占峰值几成）", -1),
    "bandwidth": ("带宽", -1),
    "latency": ("延迟、每次的固定开销", 1),
    "amount": ("要搬的字节、要算的次数", 1),
}
"""input of the prediction → (name, +1 when the prediction grows worse with it, −1 when it grows better)"""
HINTS = {
    ("time", True): "先问哪个输入填乐观了：效率、带宽，还是漏了每次的固定开销",
    ("time", False): "比下界还快，说明下界的输入错了：峰值、带宽填低了，或者漏算了缓存；没同步就停表也会这样",
    ("throughput", True): "先问哪个输入填乐观了：效率、带宽，还是漏了等数据的时间",
    ("throughput", False): "比上界还快，说明上界的输入错了：峰值、带宽填低了，或者 token 数多算了",
    ("bytes", True): "找漏算的那块：分配器取整、没释放的激活、懒创建的优化器状态、运行时自己占的",
    ("bytes", False): "找多算的那块：已经释放的、和别人共用的、精度其实更低的",
}


def _chart(run: Run, *, predicted: float, measured: str, tolerance: float, **_: object) -> tuple[Chart, ...]:
    values = run.result.trace
    assert isinstance(values, tuple)
    rules = (Rule("预测", y=predicted), Rule("中位数", y=float(run.values["median"])))  # type: ignore[arg-type]
    return (
        LineChart(
            "一次一个点",
            "点散得开，先把测量做稳；点聚在一处却离预测远，才轮到找原因。一路往上或往下走，是降频或预热没做够。",
            Axis("第几次"),
            Axis("测得"),
            (Series("实测", tuple((float(i), v) for i, v in enumerate(values[:200], 1)), emphasis=True),),
            rules=rules,
        ),
    )


@calculator(
    title="差距从哪来",
    question="测出来和算出来差多少？测得稳不稳？先重估哪个输入？",
    chapter="24",
    inputs=(
        number("predicted", "预测", 100, low=TINY, high=HUGE, range_remedy="要大于 0", stops=log_stops(10, 1000, 12)),
        text("measured", "实测（同一单位）", "128,131,127,130,129", longest=12_000, placeholder="101, 103, 99, 102, 100", help="至少 3 次，逗号或空格隔开；一次一个，不要先平均"),
        choice("kind", "量的是", "time", tuple(KINDS), labels=KINDS),
        number("tolerance", "容差", 0.15, low=0, high=1, stops=(0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.5, 1)),
        choice("suspect", "预测里最没把握的", "unknown", tuple(SUSPECTS), labels={k: v[0] for k, v in SUSPECTS.items()}),
        number("assumed", "它当时填了", None, low=TINY, high=HUGE, range_remedy="要大于 0", stops=linear_stops(0.1, 1, 0.1), help="填了就倒推它该是多少；预测要和它成正比或反比", only_if=("suspect", ("efficiency", "bandwidth", "latency", "amount"))),
    ),
    outputs=(
        Output("median", "中位数", main=True),
        Output("p10", "p10"),
        Output("p90", "p90"),
        Output("cv_pct", "变异系数", "%"),
        Output("ratio", "比预测差到", "×", main=True),
        Output("within", "在容差里", main=True),
        Output("stable", "测得稳"),
        Output("reestimated", "重估之后"),
        Output("samples", "几次"),
    ),
    chart=_chart,
    formula=(
        "中位数、p10、p90：排序后线性插值",
        "变异系数 = 样本标准差（除以 n−1） ÷ 平均",
        "差到几倍：时间、字节是 实测 ÷ 预测，吞吐是 预测 ÷ 实测；大于 1 一律是比预测差",
        "重估：效率、带宽除以这个倍数；延迟、字节数乘上它",
    ),
    assumptions=("变异系数不超过 10% 算稳（本书的线）", "重估只在预测和那个输入成正比或反比时成立"),
    leaves_out="不看趋势：一路变慢（降频、内存泄漏）和来回抖，变异系数可以一样大，看图分辨。",
    sources=("次序统计量与样本标准差，标准定义", "本书：预测、测量、归因三步"),
)  # fmt: skip
def predict_vs_measure(*, predicted: float, measured: str, kind: str, tolerance: float, suspect: str, assumed: float | None) -> Result:
    """Median against the prediction, the spread, and the value of one input that would have predicted the median."""
    values = read_numbers("measured", "实测", measured, low=0, high=HUGE)
    if len(values) < LEAST:
        raise refuse("measured", f"实测至少要 {LEAST} 次", f"{len(values)} 次", "多测几次，冷启动那次不算")
    if len(values) > MOST:
        raise refuse("measured", f"实测最多 {MOST} 次", f"{len(values)} 次")
    if min(values) < TINY:
        raise refuse("measured", "实测必须都大于 0", format_number(min(values)), "删掉失败的那几次")
    if kind == "bytes" and suspect in ("efficiency", "bandwidth", "latency"):
        raise refuse("suspect", "字节数和效率、带宽、延迟无关", SUSPECTS[suspect][0], "改选「要搬的字节、要算的次数」或「还没想好」")
    w = Worked()
    middle, spread = quantity(median(values)), variation(values)
    w.say(f"{len(values)} 次排序，取中位数 → {middle.text}")
    p10, p90 = percentile(values, 0.1), percentile(values, 0.9)
    w.say(f"p10、p90：线性插值 → {format_number(p10)}、{format_number(p90)}")
    w.say(f"标准差 ÷ 平均 → {quantity(100 * spread, '%', 4).text}")
    ratio = w.line("比预测差到", worse_by(kind, quantity(predicted), middle), "×")
    within, stable = abs(ratio.value - 1) <= tolerance * (1 + 1e-12), spread <= STEADY
    again = None
    if assumed is not None and suspect != "unknown":
        again = w.line("重估之后", quantity(assumed) * ratio if SUSPECTS[suspect][1] > 0 else quantity(assumed) / ratio)
    return Result(
        values={
            "median": middle.value, "p10": p10, "p90": p90, "cv_pct": 100 * spread, "ratio": ratio, "within": within, "stable": stable,
            "reestimated": again.value if again else None, "samples": len(values),
        },
        lines=w.lines,
        verdict=_verdict(kind, ratio.value, tolerance, spread, suspect, assumed, again),
        trace=values,
    )  # fmt: skip


def gap(kind: str, ratio: float, told: str = "预测") -> str:
    """How the measurement stands to the prediction, in words."""
    if abs(ratio - 1) < 5e-4:
        return f"和{told}一样"
    if kind == "throughput":
        return f"是{told}的 {quantity(100 / ratio, '%', 3).text}"
    if ratio >= 2:
        return f"是{told}的 {quantity(ratio, '×', 3).text}"
    more, less = ("慢", "快") if kind == "time" else ("多", "少")
    return f"比{told}{more if ratio > 1 else less} {quantity(100 * abs(ratio - 1), '%', 3).text}"


def _verdict(kind: str, ratio: float, tolerance: float, spread: float, suspect: str, assumed: float | None, again: Quantity | None) -> str:
    if spread > STEADY:
        return f"先把测量做稳：变异系数 {quantity(100 * spread, '%', 3).text}，过了 10%。预热够不够、别的程序关没关、频率锁没锁，弄好再谈差距。"
    if abs(ratio - 1) <= tolerance * (1 + 1e-12):
        return f"实测{gap(kind, ratio)}，在容差里，也测得稳：这个预测可以拿去用。"
    told = f"实测{gap(kind, ratio)}，超出容差 {quantity(100 * tolerance, '%', 3).text}，测得是稳的。"
    if again is not None and assumed is not None:
        return f"{told}把「{SUSPECTS[suspect][0]}」从 {format_number(assumed, digits=6)} 重估成 {again.text}，预测就对上了；再去找它为什么是这个数。"
    if suspect != "unknown":
        factor = ratio if SUSPECTS[suspect][1] > 0 else 1 / ratio
        return f"{told}「{SUSPECTS[suspect][0]}」要乘 {format_number(factor, digits=3)} 预测才对得上：这个数合理吗，不合理就换一个输入重估。"
    return f"{told}{HINTS[kind, ratio > 1]}。"
