"""A live experiment: which operations of a graph share a kernel, which bytes never cross HBM, and what breaks it?"""

from __future__ import annotations

from dataclasses import dataclass

from calculators.catalog import Accelerator, gpu_input
from calculators.core.calculator import Output, Result, Row, Run, calculator
from calculators.core.charts import Axis, Chart, Span, Timeline
from calculators.core.errors import refuse
from calculators.core.inputs import choice, flag, integer, log_stops, number, powers_of_two, text
from calculators.core.numbers import format_number
from calculators.core.worked import Quantity, Worked, quantity, total
from calculators.formulas.op_graph import GRAPHS, Graph, Kernel, builtin, fuse, moved_bytes, read_graph, with_break

NAMES = {
    "rmsnorm": "RMSNorm（FP32 中间值）", "swiglu": "SwiGLU", "gelu8": "tanh-GELU，8 个算子", "gelu-mlp": "矩阵乘 + bias + GELU",
    "attention-block": "attention（一个元素是一个分数）", "custom": "自己写",
}  # fmt: skip
EXAMPLE = """in x:2
in res:2
add pointwise x,res -> s:2
square pointwise s -> sq:4
mean reduction sq -> ms:0
norm pointwise s,ms -> y:2
proj matmul y -> out:2"""
LONGEST = 4000
MOST_TERMS, MOST_KERNELS = 8, 6
"""Longer sums and more kernels than that are summed up in one line."""
TONES = 6


@dataclass(frozen=True)
class Trace:
    """What the charts draw."""

    graph: Graph
    kernels: tuple[Kernel, ...]
    s_per_byte: float
    """Seconds that one byte per element takes for the whole tensor."""
    launch_s: float


def _chart(run: Run, **_: object) -> tuple[Chart, ...]:
    trace = run.result.trace
    assert isinstance(trace, Trace)
    return _times(trace), _traffic(trace)


def _times(trace: Trace) -> Timeline:
    """Both ways to run the graph on one time axis; a colour is a kernel of the fused form."""
    spans: list[Span] = []
    clock = [0.0, 0.0]
    for i, kernel in enumerate(trace.kernels):
        pieces = [(0, trace.graph.eager_bytes(op), op.name) for op in kernel.ops] + [
            (1, moved_bytes(trace.graph, kernel), "＋".join(o.name for o in kernel.ops))
        ]
        for lane, size, name in pieces:
            end = clock[lane] + (size * trace.s_per_byte + trace.launch_s) * 1e6
            spans.append(Span(lane, clock[lane], end, name, i % TONES))
            clock[lane] = end
    before = sum(len(k.ops) for k in trace.kernels)
    return Timeline(
        "同一张图，两种跑法",
        "同色的算子融进了同一个 kernel。块的长短是搬字节加一次发射的时间。",
        Axis("时间", "µs", low=0),
        (f"逐个发：{before} 个", f"融合后：{len(trace.kernels)} 个"),
        tuple(spans),
    )


def _traffic(trace: Trace) -> Timeline:
    """Every operation with the tensors that it reads and writes; light where fusion keeps them on the chip."""
    lanes: list[str] = []
    spans: list[Span] = []
    owner = {op: i for i, kernel in enumerate(trace.kernels) for op in kernel.ops}
    seen: set[tuple[int, str]] = set()
    for lane, op in enumerate(trace.graph.ops):
        i = owner.get(op)
        if i is None:
            lanes.append(f"✂ {op.name}")
            continue
        lanes.append(f"{i + 1}  {op.name}")
        kernel, at = trace.kernels[i], 0.0
        for tensor, crosses in [*((t, t in kernel.reads and (i, t) not in seen) for t in op.reads), (op.writes, op.writes in kernel.writes)]:
            size = trace.graph.sizes[tensor]
            if size:
                spans.append(Span(lane, at, at + size, f"{'写' if tensor == op.writes else '读'} {tensor}", 0 if crosses else 1))
                at += size
            seen.add((i, tensor))
    return Timeline(
        "哪些字节不用搬了",
        "一行一个算子，前面的数字是它融进了第几个 kernel。长短是每个元素要搬的字节，浅色的融合后留在片上。",
        Axis("每个元素搬的字节", "B", low=0),
        tuple(lanes),
        tuple(spans),
        ("还要进出 HBM", "融合后留在片上"),
    )


@calculator(
    title="融合规划器",
    question="这几个算子能合成几个 kernel，少搬哪些字节？中间插一句 .item() 呢？",
    chapter="07",
    inputs=(
        choice("graph", "算子图", "rmsnorm", tuple(NAMES), labels=NAMES),
        flag("insert_break", "在正中间插一句 .item()", False, help="Python 要等一个数，图在这里断开"),
        integer("rows", "行数（token）", 8192, low=1, high=10**6, stops=powers_of_two(1, 65_536)),
        integer("cols", "列数（宽度）", 4096, low=1, high=10**6, stops=(128, 1024, 2048, 4096, 8192, 14_336, 16_384, 28_672, 65_536), help="SwiGLU 和 GELU 取 14336"),
        gpu_input(),
        number("launch_us", "每次发射", 3, "µs", low=0.5, high=50, more=True, stops=log_stops(0.5, 50, 5)),
        text("custom_ops", "自己的算子图", longest=LONGEST, placeholder=EXAMPLE, only_if=("graph", ("custom",)),
             help="一行一个：名字 种类 输入,输入 -> 输出:每元素字节。种类：pointwise、reduction、matmul、opaque；reduction:列 换一根轴。凭空来的张量写 in 名字:字节"),
    ),
    outputs=(
        Output("kernels_before", "逐个发，几个 kernel"),
        Output("kernels_after", "融合后，几个 kernel", main=True),
        Output("bytes_per_elem_before", "每元素，逐个发", "B", main=True),
        Output("bytes_per_elem_after", "每元素，融合后", "B", main=True),
        Output("eager_us", "逐个发", "µs", digits=5),
        Output("fused_us", "融合后", "µs"),
        Output("speedup_x", "快", "×", main=True),
        Output("saved_mb", "一共少搬", "MB"),
        Output("groups", "谁和谁在一起"),
        Output("plan", "每个 kernel 读写什么", columns=(("kernel", "序号", ""), ("ops", "算子", ""), ("reads", "读", ""), ("writes", "写", ""), ("bytes", "每元素", "B"))),
    ),
    chart=_chart,
    formula=(
        "逐个发：每个算子读全部输入、写一个输出，各发射一次",
        "融合：顺着往下并。矩阵乘另起一个；逐元素的并进来；归约也并，除非开头是矩阵乘，或已经沿另一根轴归约过；opaque 断开",
        "一个 kernel 搬的 = 从外面读的（每个张量一次）+ 后面还要用的输出；时间 = 元素 × 字节 ÷ 带宽 + kernel 数 × 发射",
    ),
    assumptions=("每行一个数的张量（均值、最大值）和权重记 0 字节", "opaque（.item()、print、认不得的扩展）自己不算 kernel，但它要读的张量得写回去"),
    leaves_out="不算矩阵乘自己的运算和操作数、L2 命中、寄存器不够时的溢出；真的编译器还会换算子的次序、重算便宜的中间值，通常比这个贪心更好一点。",
    sources=("PyTorch 2（Ansel et al., ASPLOS 2024）§4：Inductor 的融合", "NVIDIA Optimizing Memory-Limited Layers", "带宽：硬件目录"),
)  # fmt: skip
def fusion_planner(*, graph: str, insert_break: bool, rows: int, cols: int, gpu: Accelerator, launch_us: float, custom_ops: str) -> Result:
    """Greedy grouping of the operations, then bytes and launches of both forms."""
    whole = _graph(graph, custom_ops)
    cut = with_break(whole) if insert_break else whole
    kernels = fuse(cut)
    if not kernels:
        raise refuse("custom_ops", "自己的算子图至少要有一个会发射的算子", "一个也没有", "加一行 pointwise、reduction 或 matmul")
    ops = [op for kernel in kernels for op in kernel.ops]
    w = Worked()
    elements = w.line("元素", quantity(rows) * quantity(cols), "element")
    before = _sum(w, "每元素，逐个发", [cut.eager_bytes(op) for op in ops])
    after = _after(w, cut, kernels)
    bandwidth, launch = quantity(gpu.bandwidth_gb_s, "GB/s"), quantity(launch_us, "µs")
    moved_before = w.line("逐个发搬", elements * before, "MB")
    moved_after = w.line("融合后搬", elements * after, "MB")
    saved = w.line("少搬", moved_before - moved_after, "MB")
    eager = w.line("逐个发", moved_before / bandwidth + quantity(len(ops)) * launch, "µs", 5)
    fused = w.line("融合后", moved_after / bandwidth + quantity(len(kernels)) * launch, "µs")
    speedup = w.line("快", eager / fused, "×")
    rows_of_plan: list[Row] = [
        {
            "kernel": i,
            "ops": "、".join(o.name for o in k.ops),
            "reads": "、".join(k.reads) or "—",
            "writes": "、".join(k.writes) or "—",
            "bytes": moved_bytes(cut, k),
        }
        for i, k in enumerate(kernels, 1)
    ]
    return Result(
        values={
            "kernels_before": len(ops), "kernels_after": len(kernels), "bytes_per_elem_before": before, "bytes_per_elem_after": after,
            "eager_us": eager, "fused_us": fused, "speedup_x": speedup, "saved_mb": saved,
            "groups": [[op.name for op in k.ops] for k in kernels], "plan": rows_of_plan,
        },
        lines=w.lines,
        verdict=_verdict(whole, cut, kernels, eager, fused, speedup),
        notes=("自己的算子图还空着：算的是框里灰字的例子。",) if graph == "custom" and not custom_ops else (),
        trace=Trace(cut, kernels, elements.value / bandwidth.value, launch.value),
    )  # fmt: skip


def _graph(name: str, custom_ops: str) -> Graph:
    if name in GRAPHS:
        return builtin(name)
    return read_graph(custom_ops or EXAMPLE, "custom_ops")


def _sum(w: Worked, label: str, sizes: list[float]) -> Quantity:
    """A sum of bytes, shown term by term while that fits on a line."""
    if len(sizes) <= MOST_TERMS:
        return w.line(label, total([quantity(size, "B") for size in sizes]), "B")
    result = quantity(sum(sizes), "B")
    w.say(f"{label}，{len(sizes)} 项相加 → {result.text}")
    return result


def _after(w: Worked, graph: Graph, kernels: tuple[Kernel, ...]) -> Quantity:
    sizes = [moved_bytes(graph, k) for k in kernels]
    if len(kernels) > MOST_KERNELS:
        return _sum(w, "每元素，融合后", sizes)
    for i, kernel in enumerate(kernels, 1):
        shown = [*(f"读 {t}" for t in kernel.reads if graph.sizes[t]), *(f"写 {t}" for t in kernel.writes if graph.sizes[t])]
        w.say(f"kernel {i}（{len(kernel.ops)} 个算子）：{'、'.join(shown[:6]) or '不搬'}{'……' if len(shown) > 6 else ''} → {quantity(sizes[i - 1], 'B').text}")
    return w.line("每元素，融合后", total([quantity(size, "B") for size in sizes]), "B")


def _verdict(whole: Graph, cut: Graph, kernels: tuple[Kernel, ...], eager: Quantity, fused: Quantity, speedup: Quantity) -> str:
    count = sum(len(k.ops) for k in kernels)
    before, after = (format_number(x) for x in (sum(cut.eager_bytes(op) for k in kernels for op in k.ops), sum(moved_bytes(cut, k) for k in kernels)))
    if len(kernels) == count:
        return f"{count} 个算子一个也没融成：{_why_not(whole, cut)}每元素还是 {after} 字节，{fused.text}。"
    said = f"{count} 个算子融成 {len(kernels)} 个 kernel，每元素 {before} → {after} 字节，{eager.text} → {fused.text}，快 {speedup.text}。"
    return said + _price_of_break(whole, cut, kernels)


def _why_not(whole: Graph, cut: Graph) -> str:
    if len(fuse(whole)) < len(fuse(cut)):
        return ".item() 正好切在它们之间，"
    return "每个都得另起一个 kernel（矩阵乘、换了轴的归约，或被 opaque 切开），"


def _price_of_break(whole: Graph, cut: Graph, kernels: tuple[Kernel, ...]) -> str:
    if cut is whole:
        return ""
    uncut = fuse(whole)
    more = sum(moved_bytes(cut, k) for k in kernels) - sum(moved_bytes(whole, k) for k in uncut)
    if len(kernels) == len(uncut) and not more:
        return "这句 .item() 正好落在本来就要断的地方，没有添 kernel；它让 CPU 停下来等，那份时间另算。"
    if more < 0:
        return f"这一刀反而少搬 {format_number(-more)} 字节：贪心只往下并，不会回头挑更窄的断口，真的编译器会挑。"
    return f"没有那句 .item()，只要 {len(uncut)} 个 kernel，每元素少搬 {format_number(more)} 字节：断口两边的张量得写回去再读出来。"
