"""How much faster does a whole training step get at a lower precision, and what share of it got faster?"""

from __future__ import annotations

from calculators.catalog import Accelerator, gpu_input
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Rule, Series
from calculators.core.errors import refuse
from calculators.core.inputs import choice, linear_stops, number
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.amdahl import accelerated_share, overall_speedup

PRECISIONS = {"bf16": "BF16", "fp16": "FP16", "fp8": "FP8", "fp4": "FP4", "int8": "INT8"}
DEFAULT_TFLOPS, MEASURED_ON = (458.4, 598.7), ("h100-sxm", "bf16", "fp8")
"""llm-foundry, MPT-3B at 512 tokens: TFLOPS a card, and what they were measured on."""
ONE = quantity(1)


def _chart(run: Run, *, matmul_frac: float, **_: object) -> tuple[Chart, ...]:
    ratio = run.values["peak_ratio_x"]
    assert isinstance(ratio, float)
    curve = tuple((float(p), overall_speedup(p / 100, ratio, 1.0)) for p in range(101))
    marks = [Mark("按矩阵乘的份额", matmul_frac * 100, float(run.values["predicted_speedup_x"]), emphasis=True)]  # type: ignore[arg-type]
    share, measured = run.values["implied_share_pct"], run.values["measured_speedup_x"]
    if isinstance(share, float) and isinstance(measured, float):
        marks.append(Mark("实测", share, measured))
    return (
        LineChart(
            "只有一部分变快，整步快多少",
            "横轴是一步里跟着变快的份额，虚线是峰值之比。离右边差一点，加速就少一截：没变快的那部分说了算。",
            Axis("变快的份额", "%"),
            Axis("整步快几倍", "×"),
            (Series("整步", curve, emphasis=True),),
            marks=tuple(marks),
            rules=(Rule(f"峰值之比 {run.texts['peak_ratio_x']}", y=ratio),),
        ),
    )


@calculator(
    title="换精度能快多少",
    question="峰值翻倍，整个训练步能快几倍？实测的加速说明一步里有多少真的变快了？",
    chapter="06",
    inputs=(
        gpu_input(),
        choice("base", "原来的精度", "bf16", tuple(PRECISIONS), labels=PRECISIONS),
        choice("low", "换成", "fp8", tuple(PRECISIONS), labels=PRECISIONS),
        number("matmul_frac", "一步里 Tensor Core 矩阵乘的份额", 0.74, low=0, high=1, kind="fraction", stops=linear_stops(0, 1, 0.02), help="0.74：第 07 章融合之后的一层 8B"),
        number("measured_base_tflops", "实测：原来", DEFAULT_TFLOPS[0], "TFLOPS", low=0, high=20_000, help="两个都填 0 就是没测"),
        number("measured_low_tflops", "实测：换了之后", DEFAULT_TFLOPS[1], "TFLOPS", low=0, high=20_000),
    ),
    outputs=(
        Output("peak_ratio_x", "峰值之比", "×", main=True),
        Output("predicted_speedup_x", "整步能快（按矩阵乘的份额）", "×", main=True),
        Output("measured_speedup_x", "实测快了", "×", main=True),
        Output("implied_share_pct", "反推：真的变快的份额", "%", main=True),
    ),
    chart=_chart,
    formula=("整步快几倍 = 1 ÷ (1 − 份额 + 份额 ÷ 峰值之比)", "反推的份额 = (1 − 1 ÷ 实测) ÷ (1 − 1 ÷ 峰值之比)"),
    assumptions=("变快的那部分正好快「峰值之比」，其余一点不变", "两边的 TFLOPS 用同一个分子：模型该做的运算"),
    leaves_out="带宽受限的算子字节减半也会快，FP8 多出的转换和求 amax 的 kernel 会慢：两头都没算。",
    sources=("Amdahl, AFIPS 1967", "峰值：硬件目录（稠密）", "mosaicml/llm-foundry scripts/train/benchmarking：MPT-3B、512 token、H100，BF16 458.4、FP8 598.7 TFLOPS"),
)  # fmt: skip
def precision_speedup(*, gpu: Accelerator, base: str, low: str, matmul_frac: float, measured_base_tflops: float, measured_low_tflops: float) -> Result:
    """Amdahl's law forwards from the share of matrix products, and backwards from a measured speed-up."""
    w = Worked()
    ratio = w.line("峰值之比", _peak(gpu, low, "low") / _peak(gpu, base, "base"), "×")
    predicted = w.line("整步能快", overall_speedup(quantity(matmul_frac), ratio, ONE), "×")
    defaults = (measured_base_tflops, measured_low_tflops) == DEFAULT_TFLOPS
    foreign = defaults and (gpu.id, base, low) != MEASURED_ON
    possible = measured_low_tflops <= measured_base_tflops * max(1.0, ratio.value) * (1 + 1e-12)
    measured = _measured(w, measured_base_tflops, measured_low_tflops) if possible or not foreign else None
    if measured is not None and not possible:
        raise refuse("measured_low_tflops", "实测：换了之后快的倍数比峰值之比还大，分母用了稀疏峰值？", f"{measured.text} > {ratio.text}", "核对两次实测的口径")
    share = None
    if measured is not None and _explains(measured.value, ratio.value):
        share = w.line("反推真的变快的份额", accelerated_share(measured, ratio, ONE), "%")
    return Result(
        values={"peak_ratio_x": ratio.value, "predicted_speedup_x": predicted, "measured_speedup_x": measured, "implied_share_pct": share},
        lines=w.lines,
        verdict=_verdict(PRECISIONS[low], ratio, predicted, None if foreign else measured, None if foreign else share),
        notes=("实测的两个默认值是 H100 上 BF16 和 FP8 的：换了卡或精度，请填自己的，没测就都填 0。",) if foreign else (),
    )


def _peak(gpu: Accelerator, precision: str, field: str) -> Quantity:
    peak = gpu.tflops.get(precision)
    if peak is None:
        label = "原来的精度" if field == "base" else "换成"
        has = "、".join(name for id, name in PRECISIONS.items() if id in gpu.tflops)
        raise refuse(field, f"{label}：{gpu.name} 没有 {PRECISIONS[precision]} Tensor Core", precision, f"这张卡有 {has}")
    return quantity(peak, "TOPS" if precision == "int8" else "TFLOPS")


def _measured(w: Worked, before: float, after: float) -> Quantity | None:
    if before == after == 0:
        return None
    for field, label, value in (("measured_base_tflops", "实测：原来", before), ("measured_low_tflops", "实测：换了之后", after)):
        if value == 0:
            raise refuse(field, f"{label}：两个实测要么都填，要么都填 0", "只有一个是 0", "补上另一个")
    return w.line("实测快了", quantity(after, "TFLOPS") / quantity(before, "TFLOPS"), "×")


def _explains(measured: float, ratio: float) -> bool:
    """Can some share between 0 and 1, made ``ratio`` times faster, give the measured speed-up?"""
    return ratio != 1 and min(1.0, ratio) <= measured <= max(1.0, ratio)


def _verdict(low: str, ratio: Quantity, predicted: Quantity, measured: Quantity | None, share: Quantity | None) -> str:
    head = "两种精度的峰值一样：换了只省字节，矩阵乘不会变快。"
    if ratio.value > 1:
        head = f"峰值是 {ratio.text}，矩阵乘之外的部分不变，整步只能快到 {predicted.text}。"
    elif ratio.value < 1:
        head = f"峰值只有原来的 {ratio.text}：整步是原来的 {predicted.text}，变慢了。"
    if measured is None:
        return head + "填上自己的实测，就能反推一步里多少真的变快了。"
    if measured.value < 1:
        return head + f"实测反而慢了（{measured.text}）：转换和求 amax 的开销超过了省下的。"
    if share is None:
        return head + f"实测快了 {measured.text}，峰值解释不了：两次的设置不一样，或者快在省下的字节上。"
    if measured.value > predicted.value * 1.03:
        return head + f"实测 {measured.text}，要有 {share.text} 的时间变快才解释得了：比填的份额多，份额填小了，或者省下的字节也算数。"
    less = "和按矩阵乘算的差不多。" if measured.value >= predicted.value * 0.97 else f"没到 {predicted.text}：有些矩阵乘没换成 {low}，还多了转换和求 amax。"
    return head + f"实测 {measured.text}，等于只有 {share.text} 的时间真的变快；{less}"
