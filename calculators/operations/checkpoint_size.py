"""How large is a checkpoint, how much does each rank write, and how long does it take?"""

from __future__ import annotations

from dataclasses import replace

from calculators.catalog import Model, model_input
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Series
from calculators.core.errors import refuse
from calculators.core.inputs import Input, Scalar, choice, integer, log_stops, number, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.memory import state_bytes

CUSTOM = "custom"
KEPT = {2: "2：只存权重", 12: "12：无主权重", 14: "14：续训全套", 16: "16：加 BF16 梯度", 18: "18：加 FP32 梯度"}
WEIGHT_BYTES = 2
BANDWIDTHS = tuple(10 ** (k / 4) for k in range(-4, 17))
"""0.1 … 10,000 GB/s."""


def _model() -> Input:
    base = model_input("llama-3.1-405b")
    lookup, caution = base.lookup, base.caution
    assert lookup is not None
    assert caution is not None
    return replace(
        base,
        choices=(*base.choices, CUSTOM),
        choice_labels={**(base.choice_labels or {}), CUSTOM: "自己填参数量"},
        lookup=lambda text: None if text == CUSTOM else lookup(text),
        caution=lambda text: "" if text == CUSTOM else caution(text),
    )


def _chart(run: Run, *, bandwidth_gb_s: float, **_: object) -> tuple[Chart, ...]:
    total, now = run.values["total_tb"], run.values["write_s"]
    assert isinstance(total, float)
    assert isinstance(now, float)
    return (
        LineChart(
            "写一次要多久，看总带宽",
            "两轴都是对数。写的时间要是全让训练停着等，就是「多久存一次盘」里的 δ；异步写，停的只是拷到内存那几秒。",
            Axis("总写带宽", "GB/s", log=True),
            Axis("写一次", "s", log=True),
            (
                Series("整个检查点", tuple((b, 1e3 * total / b) for b in BANDWIDTHS), emphasis=True),
                Series("只写权重", tuple((b, float(run.values["weights_gb"]) / b) for b in BANDWIDTHS), dashed=True),  # type: ignore[arg-type]
            ),
            marks=(Mark("现在", bandwidth_gb_s, now, emphasis=True),),
        ),
    )


@calculator(
    title="一个检查点多大、写多久",
    question="一个检查点占多少字节，每张卡写多少，要写多久？",
    chapter="21",
    inputs=(
        _model(),
        choice("bytes_per_param", "每参数存几字节", 14, tuple(KEPT), "B", labels={str(k): v for k, v in KEPT.items()}),
        integer("writers", "几个进程一起写", 16384, high=1_000_000, kind="count", stops=powers_of_two(1, 131072)),
        number("bandwidth_gb_s", "总写带宽", 2000, "GB/s", low=0.01, high=1e4, stops=log_stops(0.1, 1e4, 4), help="所有进程加起来，存储那头能收多快"),
        number("N", "参数量 N", None, "params", low=1e6, high=1e13, more=True, stops=log_stops(1e8, 1e13, 4), help="留空用模型的总参数（MoE 也是全部专家）"),
        choice("unit", "单位", "GB", ("GB", "GiB"), more=True, help="只管怎么写：GB 是 10⁹ 字节，GiB 是 2³⁰"),
    ),
    outputs=(
        Output("total_tb", "一个检查点", "TB", main=True),
        Output("total_tib", "一个检查点（TiB）", "TiB", main=True),
        Output("per_writer_mb", "每个进程写", "MB", main=True),
        Output("per_writer_mib", "每个进程写（MiB）", "MiB"),
        Output("write_s", "写一次", "s", main=True),
        Output("weights_gb", "只存权重", "GB"),
        Output("weights_gib", "只存权重（GiB）", "GiB"),
    ),
    chart=_chart,
    formula=("检查点 = 参数量 × 每参数字节", "每个进程 = 检查点 ÷ 进程数", "写一次 = 检查点 ÷ 总写带宽", "1 GB 是 10⁹ 字节，1 GiB 是 2³⁰ 字节"),
    assumptions=("每个字节只写一份，各进程一样多", "14 字节：BF16 权重 2，FP32 主权重 4，Adam 的 m、v 各 4；梯度不存"),
    leaves_out="不算元数据和小张量（不到 0.1%）、切得不匀（最慢的进程定时间）；每个数据并行副本都写一份的话，再乘副本数。",
    sources=("状态字节：Rajbhandari et al. 2020（ZeRO）§3.1，去掉梯度", "参数量：模型目录；BLOOM 的 176.247B 见 bigscience 的 README"),
)  # fmt: skip
def checkpoint_size(*, model: Model | None, bytes_per_param: int, writers: int, bandwidth_gb_s: float, N: float | None, unit: str) -> Result:
    """Parameters × bytes per parameter over the writers' joint bandwidth; both accountings of a gigabyte side by side."""
    resolved: dict[str, Scalar] = {}
    if N is None:
        if model is None:
            raise refuse("N", "参数量要自己填", "空", "例如 176.247B，或选一个模型")
        N = resolved["N"] = float(model.total_params)
    if writers > N:
        raise refuse("writers", "进程数不能超过参数个数", f"{format_number(writers)} > {format_number(N)}", "改小进程数")
    large, small = ("TiB", "MiB") if unit == "GiB" else ("TB", "MB")
    w = Worked()
    params = quantity(N, "params", 12)
    total = w.line("一个检查点", state_bytes(params, quantity(bytes_per_param, "B")), large, 5)
    other = w.line("换个单位", total, "TB" if large == "TiB" else "TiB")
    each = w.line("每个进程", total / quantity(writers), small)
    weights = w.line("只存权重", state_bytes(params, quantity(WEIGHT_BYTES, "B")), unit)
    seconds = w.line("写一次", total / quantity(bandwidth_gb_s, "GB/s"), "s")
    return Result(
        values={
            "total_tb": total, "total_tib": total, "per_writer_mb": each, "per_writer_mib": each, "write_s": seconds, "weights_gb": weights,
            "weights_gib": weights,
        },
        lines=w.lines,
        verdict=_verdict(total, other, each, seconds, weights, bytes_per_param),
        resolved=resolved,
    )  # fmt: skip


def _verdict(total: Quantity, other: Quantity, each: Quantity, seconds: Quantity, weights: Quantity, bytes_per_param: int) -> str:
    size = (
        f"一个检查点 {total.text}（{other.text}），是权重的 {format_number(bytes_per_param / WEIGHT_BYTES)} 倍"
        if bytes_per_param > 2
        else f"只存权重，{weights.text}，续训不了"
    )
    took = seconds.value
    shown = quantity(took / 60, "min", 3).text if took >= 120 else seconds.text
    head = f"{size}；每个进程写 {each.text}，写一次 {shown}。"
    if took >= 60:
        return head + "全让训练停着等，太贵：异步写，或者多给写带宽。"
    return head + "停着等也不贵。" if took <= 10 else head + "停着等能接受，异步写更省。"
