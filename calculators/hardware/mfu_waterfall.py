"""Why does the best training run stop near 60 % of the peak?"""

from __future__ import annotations

from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, Waterfall
from calculators.core.inputs import Input, linear_stops, number
from calculators.core.worked import Worked, quantity

FACTORS: dict[str, tuple[str, float, str, str]] = {
    "f_clock": ("功耗墙下的频率", 0.80, "功耗墙降频", "满载时功耗到顶，时钟降下来：查 nvidia-smi -q -d CLOCK，先把功耗和散热配够"),
    "f_gemm": ("GEMM 效率", 0.95, "GEMM 填不满", "tile 和形状填不满：把维度取成 128 的倍数，加大每卡的行数"),
    "f_matmul": ("时间里做矩阵乘的份额", 0.91, "矩阵乘之外的时间", "归一化、激活、优化器占时间：融合和编译（第 07 章）"),
    "f_comm": ("没露出来的通信", 0.93, "露出来的通信", "通信没藏住：重叠、换切法（第 10–14 章）"),
    "f_bubble": ("没有气泡的时间", 0.94, "流水线气泡", "流水线在等：加 micro-batch 或交错调度（第 13 章）"),
    "f_uptime": ("没有故障的时间", 0.97, "故障和重启", "故障和重启：检查点与热备（第 21 章）"),
}
"""Factor: (label, assumed kept fraction, name of the loss, what to do about it)."""


def _factor(name: str) -> Input:
    label, kept, _, remedy = FACTORS[name]
    return number(name, label, kept, low=0, high=1, low_open=True, kind="fraction", help=remedy, stops=linear_stops(0.5, 1, 0.01), more=name == "f_uptime")


def _chart(run: Run, **_: object) -> tuple[Chart, ...]:
    levels = run.values["steps_pct"]
    assert isinstance(levels, list)
    names = [label for label, *_ in FACTORS.values()]
    steps = (("峰值", 100.0), *((name, float(level)) for name, level in zip(names, levels, strict=True)))  # type: ignore[arg-type]
    return (Waterfall("60% 是怎么没的（示意）", "从 100% 起，每一项乘上留下的比例；台阶最高的那一项最值得先修。", Axis("还剩", "%"), steps),)


@calculator(
    title="60% 是怎么没的",
    question="从 100% 的峰值到真实的 MFU，中间丢在哪几步？",
    chapter="04",
    inputs=tuple(_factor(name) for name in FACTORS),
    outputs=(
        Output("mfu_pct", "剩下的 MFU", "%", main=True),
        Output("steps_pct", "每一步之后还剩", "%"),
        Output("largest_loss", "丢得最多的一项（变量名）"),
        Output("largest_loss_name", "丢得最多的一项", main=True),
    ),
    chart=_chart,
    formula=("MFU = 六个留存比例连乘",),
    assumptions=("示意：六个默认值都是本书的假设，没有来源；乘起来恰好落在公开最好成绩的 55–60%",),
    leaves_out="各项按互不影响连乘；真实系统里它们会互相掩盖（通信可以藏在计算里）。误差要用自己的 profile 去量。",
    sources=("无：示意用的假设",),
)
def mfu_waterfall(*, f_clock: float, f_gemm: float, f_matmul: float, f_comm: float, f_bubble: float, f_uptime: float) -> Result:
    """The product of six kept fractions; the smallest fraction is the largest loss."""
    kept = {"f_clock": f_clock, "f_gemm": f_gemm, "f_matmul": f_matmul, "f_comm": f_comm, "f_bubble": f_bubble, "f_uptime": f_uptime}
    w = Worked()
    level = quantity(100, "%")
    steps = []
    for name, fraction in kept.items():
        level = w.line(FACTORS[name][0], level * quantity(fraction), "%")
        steps.append(level.value * 100)
    worst = min(kept, key=lambda name: kept[name])
    lossless = kept[worst] == 1
    _, _, loss, remedy = FACTORS[worst]
    lost = quantity((1 - kept[worst]) * 100, "%", 4)
    verdict = "六项都没有损失，这样的机器不存在：先去量一遍。" if lossless else f"剩 {level.text}。丢得最多的是{loss}，{lost.text}。{remedy}。"
    named: dict[str, str | None] = {"largest_loss": None if lossless else worst, "largest_loss_name": None if lossless else loss}
    return Result(values={"mfu_pct": level, "steps_pct": steps, **named}, lines=w.lines, verdict=verdict)
