"""A live experiment: a long dot product, added up in FP16, in FP16 chunks promoted to FP32, and in FP32."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Series
from calculators.core.errors import refuse
from calculators.core.inputs import integer, powers_of_two
from calculators.core.worked import Quantity, Worked, quantity

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SAMPLES = 80
NAMES = {"fp16": "FP16 一路加", "chunked": "FP16 分块，块间 FP32", "fp32": "FP32 一路加"}

Curves = dict[str, list[tuple[float, float]]]


def running_sums(products: NDArray[np.float16], chunk: int) -> NDArray[np.float32]:
    """FP16 within a chunk, chunk sums added in FP32: the total after every term."""
    import numpy as np

    rows, length = products.shape
    padded = np.zeros((rows, -(-length // chunk) * chunk), np.float16)
    padded[:, :length] = products
    inside = np.add.accumulate(padded.reshape(rows, -1, chunk), axis=2)  # rounds to FP16 after every addition
    done = np.add.accumulate(inside[:, :, -1].astype(np.float32), axis=1)
    before = np.concatenate([np.zeros((rows, 1), np.float32), done[:, :-1]], axis=1)
    total: NDArray[np.float32] = before[:, :, None] + inside.astype(np.float32)
    return total.reshape(rows, -1)[:, :length]


def _chart(run: Run, **_: object) -> tuple[Chart, ...]:
    curves = run.result.trace
    assert isinstance(curves, dict)
    return (
        LineChart(
            "误差随长度怎么涨",
            "纵轴是各行里最大的相对误差，对数。FP16 一路加，和越大格子越稀，后面的小数一个个被舍掉；分了块，每块的和都不大。",
            Axis("已经加了多少项"),
            Axis("最大相对误差", "%", log=True),
            tuple(Series(NAMES[name], tuple(p for p in points if p[1] > 0), emphasis=name == "chunked") for name, points in curves.items()),
        ),
    )


@calculator(
    title="点积的累加精度",
    question="几千项的点积，用什么精度累加？分块能救回多少？",
    chapter="06",
    inputs=(
        integer("K", "点积的长度 K", 4096, low=16, high=8192, stops=powers_of_two(16, 8192)),
        integer("chunk", "每多少项转存一次 FP32", 128, low=1, high=8192, stops=powers_of_two(1, 8192), help="不能超过 K；等于 K 就是一路用 FP16"),
        integer("rows", "算几行", 64, low=1, high=256, more=True, stops=powers_of_two(1, 256)),
        integer("seed", "随机种子", 1, low=0, high=999, more=True),
    ),
    outputs=(
        Output("err_fp16_pct", "FP16 一路加，最大误差", "%", main=True, agreement="band"),
        Output("err_chunked_pct", "分块再转 FP32，最大误差", "%", main=True, agreement="band"),
        Output("err_fp32_pct", "FP32 一路加，最大误差", "%", main=True, agreement="band"),
    ),
    chart=_chart,
    needs=("numpy",),
    formula=("误差 = max over 行 |算出的 − 参考| ÷ 参考", "参考：同一批 FP16 数，用 float64 算", "分块：块内乘、加都用 FP16，块与块之间用 FP32 加"),
    assumptions=("A、b 的元素在 [0, 1) 上均匀，先存成 FP16：全是正数，和一路变大", "顺序相加，一项一项来"),
    leaves_out="真实的权重有正有负，和涨得慢，误差小些；硬件一次加一小组，不是一项一项。趋势相同。",
    sources=("DeepSeek-V3 报告 §3.3：每 128 项把部分和提升到 FP32", "numpy.random.default_rng(seed).random；numpy 的 float16 加法"),
)
def accum_precision(*, K: int, chunk: int, rows: int, seed: int) -> Result:
    """Largest relative error over the rows of A·b, for three ways to accumulate."""
    import numpy as np

    if chunk > K:
        raise refuse("chunk", "每多少项转存一次 FP32：不能超过点积的长度 K", f"{chunk} > {K}", f"可取 1 到 {K}")
    rng = np.random.default_rng(seed)
    A = rng.random((rows, K)).astype(np.float16)
    b = rng.random(K).astype(np.float16)
    exact = np.cumsum(A.astype(np.float64) * b.astype(np.float64), axis=1)
    products = A * b
    sums = {
        "fp16": np.add.accumulate(products, axis=1),
        "chunked": running_sums(products, chunk),
        "fp32": np.add.accumulate(A.astype(np.float32) * b.astype(np.float32), axis=1),
    }
    at = np.unique(np.linspace(1, K, min(K, SAMPLES)).round().astype(int)) - 1
    reference = exact[:, at]
    errors = {name: np.abs(s[:, at] - reference) / reference for name, s in sums.items()}  # float64
    curves: Curves = {name: [(float(k + 1), float(e)) for k, e in zip(at, 100 * error.max(axis=0), strict=True)] for name, error in errors.items()}

    w = Worked()
    blocks = w.line("每行分几块", quantity(K) / quantity(chunk)) if K % chunk == 0 else None
    if blocks is None:
        w.say(f"每行分几块 → {-(-K // chunk)} 块，最后一块不满")
    row = int(errors["fp16"][:, -1].argmax())
    truth = quantity(float(exact[row, -1]))
    w.say(f"最差的一行，准确的和 → {truth.text}")
    w.say(f"同一行，FP16 一路加 → {quantity(float(sums['fp16'][row, -1])).text}")
    found = {name: quantity(points[-1][1], "%", 4) for name, points in curves.items()}
    for name, error in found.items():
        w.say(f"{NAMES[name]}，{rows} 行里最大的误差 → {error.text}")
    return Result(
        values={"err_fp16_pct": found["fp16"], "err_chunked_pct": found["chunked"], "err_fp32_pct": found["fp32"]},
        lines=w.lines,
        verdict=_verdict(found, K, chunk),
        trace=curves,
    )


def _verdict(found: dict[str, Quantity], K: int, chunk: int) -> str:
    whole, chunked, fp32 = found["fp16"], found["chunked"], found["fp32"]
    if chunk == K:
        return f"只有一块，等于一路用 FP16 加：误差 {whole.text}。把块改小，让和别长大。"
    if chunked.value == 0:
        return f"FP16 一路加差 {whole.text}，分块之后一点不差。"
    gain = whole.value / chunked.value
    head = f"FP16 一路加差 {whole.text}，每 {chunk} 项转一次 FP32 只差 {chunked.text}"
    return head + (f"，小 {quantity(gain, '×', 2).text}；全用 FP32 是 {fp32.text}。" if gain > 1.05 else "：没有变好，块太大了。")
