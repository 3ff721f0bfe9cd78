"""Which band of the MFU scale is a training run in?"""

from __future__ import annotations

from calculators.catalog import reference
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Bar, BarChart, Chart, Part, Rule
from calculators.core.inputs import integer, log_stops, number, powers_of_two
from calculators.core.worked import Worked, quantity
from calculators.formulas.mfu import MFU_BANDS, Band, above_peak, attention_core_of_width, flops_per_token, mfu
from calculators.formulas.mfu import mfu_band as band_of

NEXT_STEP = {
    "<10": "卡大半时间在等。先看数据供不供得上、kernel 是不是一个个在排队启动",
    "10-20": "先做便宜的：混合精度、torch.compile、把 batch 加大",
    "20-30": "编译和融合已经在起作用，接着查谁还在搬来搬去",
    "30-40": "框架默认就能到这里。再往上要看通信有没有藏住",
    "40-45": "接近精心优化。先量，再决定动哪一块",
    "45-55": "剩下的每一个点都要拿工时换",
    "55-60": "再往上是物理开销，可以停手了",
    ">60": "先核对口径：是不是把重算也数进去了，峰值是不是填小了",
}
"""What to do next, by band."""
PUBLISHED = (("Megatron 530B，重算全开", "mfu_before"), ("Megatron 530B，选择性重算", "mfu_after"))


def _chart(run: Run, **_: object) -> tuple[Chart, ...]:
    source = reference("korthikanti-2022-530b")
    published = tuple(Bar(name, (Part("MFU", float(source.values[key].value or 0)),), f"{source.values[key].value} %") for name, key in PUBLISHED)
    mine = Bar("你的", (Part("MFU", float(run.values["mfu_pct"])),), run.texts["mfu_pct"], emphasis=True)  # type: ignore[arg-type]
    edges = tuple(Rule(f"{band.low:g}", x=band.low) for band in MFU_BANDS if band.low > 0)
    return (
        BarChart(
            "你在 MFU 的哪一档",
            "竖线是各档的下沿：10、20 未经优化，30 框架默认，45 精心优化，55 顶尖，60 以上先查口径。",
            Axis("MFU", "%", low=0, high=100),
            (mine, *published),
            edges,
        ),
    )


@calculator(
    title="你的 MFU 在哪一档",
    question="从一行训练日志（多少 token、几秒一步），看你的卡发挥了几成。",
    chapter="01",
    inputs=(
        integer("tokens_per_step", "每步 token 数", 12_288, "token", high=1e12, kind="tokens", stops=log_stops(1024, 16e6, 4), help="所有卡合计：batch × 序列长度 × 梯度累积"),
        number("step_s", "一步用时", 0.135, "s", low=0, low_open=True, high=1e7, kind="seconds", stops=log_stops(0.01, 100, 5)),
        number("N", "参数量 N", 123.65e6, "params", low=0, low_open=True, high=1e16, kind="count", help="MoE 填激活参数"),
        integer("n_gpus", "卡数", 1, "卡", high=10_000_000, kind="count", stops=powers_of_two(1, 16_384)),
        number("peak_tflops", "每卡峰值", 312, "TFLOPS", low=0, low_open=True, high=1e6, stops=(125, 148, 312, 756, 989, 1307.4, 2250), help="稠密，所用精度"),
        integer("L", "层数 L", 12, high=100_000, more=True),
        integer("h", "宽度 h", 768, high=10_000_000, more=True, help="头数 × 每头维度"),
        integer("seq", "序列长度", 1024, "token", high=100_000_000, kind="tokens", more=True),
    ),
    outputs=(
        Output("tokens_per_s", "吞吐", "token/s"),
        Output("mfu_pct", "MFU", "%", main=True),
        Output("band", "档位", main=True),
    ),
    chart=_chart,
    formula=("每个 token 的运算 = 6N + 12 × L × h × 序列长度（完整注意力，不按因果减半）", "MFU = 每秒 token × 每 token 运算 ÷（卡数 × 峰值）"),
    assumptions=("档位是经验：未经优化 10–20%，框架默认 30–40%，精心优化 45–55%，顶尖 55–60%",),
    leaves_out="不算重算（那是 HFU）和词表之外的小运算；档位只看训练，不看 MFU 换来了什么。",
    sources=("Chowdhery et al. 2022（PaLM）§4.1、附录 B", "nanoGPT README：1 张 A100，250 ms → 135 ms 一步", "Korthikanti et al. 2022 摘要：530B，42.1% → 54.2%"),
)  # fmt: skip
def mfu_band(*, tokens_per_step: int, step_s: float, N: float, L: int, h: int, seq: int, n_gpus: int, peak_tflops: float) -> Result:
    """MFU from a step time, and the band it falls into."""
    w = Worked()
    rate = w.line("吞吐", quantity(tokens_per_step, "token") / quantity(step_s, "s"), "token/s")
    core = w.line("注意力的 L × h × 序列长度", attention_core_of_width(quantity(L), quantity(h), quantity(seq)))
    per_token = w.line("每个 token 的运算", flops_per_token(quantity(N, "params"), core), "GFLOP")
    share = mfu(rate, per_token, quantity(n_gpus), quantity(peak_tflops, "TFLOPS"))
    if share.value > 1:
        raise above_peak("step_s", share.value)
    share = w.line("MFU", share, "%")
    band = band_of(share.value * 100)
    w.say(f"查档位表 → {band.name}（{band.meaning}）")
    return Result(
        values={"tokens_per_s": rate, "mfu_pct": share, "band": band.name},
        lines=w.lines,
        verdict=_verdict(share.text, band, 1 - share.value),
    )


def _verdict(share: str, band: Band, idle: float) -> str:
    return f"MFU {share}，在 {band.name} 这一档（{band.meaning}）：买来的算力 {quantity(idle * 100, '%', digits=3).text} 没用上。{NEXT_STEP[band.name]}。"
