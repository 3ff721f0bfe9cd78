"""How long does moving states or activations to the host take, and from how many tokens a step is it free?"""

from __future__ import annotations

from calculators.catalog import Accelerator, gpu_input
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, Span, Timeline
from calculators.core.inputs import linear_stops, log_stops, number
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.offload import exposed_seconds, hidden_share, tokens_to_hide, transfer_seconds


def _chart(run: Run, *, step_s: float, **_: object) -> tuple[Chart, ...]:
    transfer = float(run.values["transfer_s"])  # type: ignore[arg-type]
    hidden = min(step_s, transfer)
    spans = [Span(0, 0.0, step_s, tone=0), Span(1, 0.0, hidden, "藏住", tone=1)]
    if transfer > step_s:
        spans.append(Span(1, step_s, transfer, "干等", tone=2))
    return (
        Timeline("一步里谁在等谁", "上面是卡在算，下面是链路在搬。下面比上面长出来的那一截，卡在干等。", Axis("时间", "s"), ("算", "搬"), tuple(spans), ("算这一步", "搬，藏在计算后面", "搬，卡在干等")),
    )  # fmt: skip


@calculator(
    title="搬出去要多久",
    question="把优化器或激活搬到主机内存，一步要多等多久？",
    chapter="09",
    inputs=(
        number("bytes_gb", "每步搬的字节", 28, "GB", low=0, low_open=True, kind="bytes", stops=log_stops(1, 1000), help="来回合计；7B 的梯度下去、参数上来是 28"),
        number("pcie_gbs", "链路的有效带宽", 50, "GB/s", low=0, low_open=True, stops=(12, 25, 50, 100, 200, 450), help="PCIe 5 ×16 约 50，PCIe 4 约 25"),
        number("step_s", "一步的计算时间", 1.0, "s", low=0, low_open=True, kind="seconds", stops=log_stops(0.1, 100, 5)),
        gpu_input(help="只用来算「多少 token 就藏得住」"),
        number("mfu", "MFU", 0.40, low=0.01, high=1, kind="fraction", stops=linear_stops(0.05, 0.7, 0.05)),
        number("bytes_per_param", "每参数搬几字节", 4, "B", low=0.5, high=32, more=True, stops=(2, 4, 6, 8, 12, 16), help="梯度下去 2、参数上来 2；只用来算门槛"),
    ),
    outputs=(
        Output("transfer_s", "搬一趟", "s", main=True),
        Output("hidden_pct", "藏住", "%", main=True),
        Output("exposed_s", "干等", "s", main=True),
        Output("tokens_to_hide", "每步多少 token 才全藏住", "token", main=True),
    ),
    chart=_chart,
    formula=("搬 = 字节 ÷ 带宽；藏住 = min(1, 一步 ÷ 搬)；干等 = max(0, 搬 − 一步)", "门槛 = 每参数字节 × 峰值 × MFU ÷ (6 × 带宽)：参数量约掉了"),
    assumptions=("计算和搬运完全重叠，搬运均匀铺在一步里",),
    leaves_out="不算 CPU 上那一步 Adam，也不算 8 张卡抢一台主机的内存带宽：真实的至少慢一倍。",
    sources=("一步 6ND：第 04 章", "Rajbhandari et al. 2021（ZeRO-Infinity）：按算术强度判断藏不藏得住"),
)  # fmt: skip
def offload(*, bytes_gb: float, pcie_gbs: float, step_s: float, gpu: Accelerator, mfu: float, bytes_per_param: float) -> Result:
    """Bytes over the link against the step that is to hide them."""
    w = Worked()
    link, step = quantity(pcie_gbs, "GB/s"), quantity(step_s, "s")
    transfer = w.line("搬一趟", transfer_seconds(quantity(bytes_gb, "GB"), link), "s")
    hidden = w.line("藏住", hidden_share(step, transfer, quantity(1)), "%")
    exposed = w.line("干等", exposed_seconds(step, transfer, quantity(0, "s")), "s")
    per_param, peak = quantity(bytes_per_param, "B"), quantity(gpu.dense_tflops, "TFLOPS")
    tokens = w.line("每步多少 token 才全藏住", tokens_to_hide(per_param, peak, quantity(mfu), link, quantity(6, "FLOP")), "token")
    return Result(
        values={"transfer_s": transfer, "hidden_pct": hidden, "exposed_s": exposed, "tokens_to_hide": tokens},
        lines=w.lines,
        verdict=_verdict(gpu, per_param, transfer, hidden, exposed, step, tokens),
    )


def _verdict(gpu: Accelerator, per_param: Quantity, transfer: Quantity, hidden: Quantity, exposed: Quantity, step: Quantity, tokens: Quantity) -> str:
    rule = f"一般地，{gpu.name} 上每参数搬 {per_param.text}，每步 {tokens.text} 以上就全藏得住"
    if exposed.value == 0:
        return f"搬一趟 {transfer.text}，藏在 {step.text}的计算后面，不用等；前提是主机内存跟得上。{rule}。"
    return f"搬一趟 {transfer.text}，只藏住 {hidden.text}，每步干等 {exposed.text}。{rule}：不够就用梯度累积凑，或换更快的链路。"
