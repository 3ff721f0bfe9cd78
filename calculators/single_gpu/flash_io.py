"""How many bytes does attention move, counted five ways, and which of them is the famous "about 20 times"?"""

from __future__ import annotations

from calculators.catalog import Accelerator, accelerators, gpu_input, references
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Bar, BarChart, Chart, LineChart, Mark, Part, Rule, Series
from calculators.core.inputs import choice, integer, linear_stops, number, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.worked import Quantity, Worked, ceil, larger, quantity, smaller
from calculators.formulas.attention import asymptotic_elements, attention_flops, flash1_elements, fused_elements, key_block, unfused_elements
from calculators.formulas.flash import flash2_elements
from calculators.formulas.roofline import arithmetic_intensity, ridge

CLAIM = 20
"""The round number that people quote."""
WAYS = (
    ("① 渐近式，n² 只数一遍", "n2_only", "asymptotic"),
    ("② 渐近式，标准读写全数", "asymptotic", "asymptotic"),
    ("③ 照 FA1 逐次数", "fa1", "fa1"),
    ("④ 照 FA2 逐次数，不算 L2", "fa2", "fa2"),
    ("⑤ Q、K、V、O 各搬一遍", "ideal", "ideal"),
)
"""Name of a way of counting, its ratio, the traffic it divides by."""


def _chart(run: Run, *, n: int, d: int, elem_bytes: int, extra_passes: int, gpu: Accelerator, **_: object) -> tuple[Chart, ...]:
    return (_ratios(run), _intensities(n, d, elem_bytes, extra_passes, gpu))


def _ratios(run: Run) -> BarChart:
    """Five ways, and what the paper measured at its own shape."""
    bars = []
    for name, ratio, traffic in WAYS:
        times = run.values[f"ratio_{ratio}_x"]
        assert isinstance(times, float)
        bars.append(Bar(name, (Part(name, times),), f"{run.texts[f'ratio_{ratio}_x']}（{run.texts[f'{traffic}_mb']}）"))
    measured = references()["dao-2022-fig2"].values
    before, after = (float(measured[name].value or 0) for name in ("hbm_before", "hbm_after"))
    bars.append(Bar("论文实测（前向加反向）", (Part("论文实测", before / after),), f"{format_number(before / after, digits=3)} 倍", emphasis=True))
    desc = (
        "横轴是标准实现的读写除以它，对数。竖线是人人都说的 20 倍；五种数法差出一个数量级。"
        f"最下面是论文量到的 {format_number(before)} → {format_number(after)} GB，形状固定（n = 1024，d = 64），不随输入变。"
    )
    widest = max(200.0, *(bar.parts[0].value for bar in bars))  # room at the right: the names of the bars stay clear of the line
    return BarChart("少读写几倍，看怎么数", desc, Axis("少读写", "×", log=True, high=widest), tuple(bars), (Rule(f"约 {CLAIM} 倍", x=CLAIM),))


def _intensities(n: int, d: int, elem_bytes: int, extra_passes: int, gpu: Accelerator) -> LineChart:
    def unfused(length: float) -> float:
        return arithmetic_intensity(attention_flops(length, length, d, 2.0), unfused_elements(length, length, d, extra_passes) * elem_bytes)

    lengths = tuple(powers_of_two(256, 1_048_576))
    limit = 4 * d / (4 + 2 * extra_passes) / elem_bytes
    cards = {card.id: card for card in (accelerators()["a100-80gb"], accelerators()["h100-sxm"], gpu)}
    ridges = tuple(
        Rule(f"{card.name.removeprefix('NVIDIA ')} 的拐点 {card.dense_tflops * 1e3 / card.bandwidth_gb_s:.4g}", y=card.dense_tflops * 1e3 / card.bandwidth_gb_s)
        for card in cards.values()
    )
    return LineChart(
        "序列再长，也到不了拐点",
        f"曲线是标准实现的算术强度。序列越长它越平，顶在 {format_number(limit)}；横线是拐点，够不着就一直卡在带宽。",
        Axis("序列长度 n", "token", log=True),
        Axis("算术强度", "FLOP/B"),
        (Series("标准实现", tuple((length, unfused(length)) for length in lengths), emphasis=True),),
        marks=(Mark("你的 n", n, unfused(n), emphasis=True),),
        rules=ridges,
    )


@calculator(
    title="HBM 读写，五种数法",
    question="同一个 attention，FlashAttention 到底少读写几倍？换个数法差多少？",
    chapter="08",
    inputs=(
        integer("n", "序列长度 n", 4096, "token", low=256, high=1_048_576, kind="tokens", stops=powers_of_two(256, 1_048_576)),
        choice("d", "每头维度 d", 128, (64, 96, 128, 256)),
        number(
            "M_kb", "SRAM 大小 M", 192, "KB (1024 B)", low=16, high=512, stops=(16, 32, 48, 64, 100, 128, 164, 192, 228, 256, 512),
            help="A100 每个 SM 的 L1 加共享内存 192，其中最多 164 能作共享内存", range_remedy="M 小于 4d 个元素时，SRAM 放不下一行块",
        ),
        choice("block_q", "FA2 的 Q 块行数", 128, (64, 128, 256)),
        integer("extra_passes", "标准实现多出来的遍数", 0, low=0, high=6, stops=linear_stops(0, 6, 1), help="缩放、掩码各自成一个 kernel，就各多一读一写"),
        choice("elem_bytes", "每个元素", 2, (1, 2, 4), "B", more=True),
        integer("heads", "头数", 1, low=1, high=1024, more=True, stops=powers_of_two(1, 128)),
        integer("batch", "batch", 1, low=1, high=1024, more=True, stops=powers_of_two(1, 256)),
        gpu_input("a100-80gb", more=True),
    ),
    outputs=(
        Output("standard_mb", "标准实现的读写", "MB"),
        Output("asymptotic_mb", "渐近式 n²d²/M", "MB"),
        Output("fa1_mb", "FA1 的读写", "MB"),
        Output("fa2_mb", "FA2 的读写，不算 L2", "MB"),
        Output("ideal_mb", "Q、K、V、O 各搬一遍", "MB"),
        Output("ratio_n2_only_x", "① 渐近式，n² 只数一遍", "×", main=True),
        Output("ratio_asymptotic_x", "② 渐近式，标准读写全数", "×", main=True),
        Output("ratio_fa1_x", "③ 照 FA1 逐次数", "×", main=True),
        Output("ratio_fa2_x", "④ 照 FA2 逐次数，不算 L2", "×", main=True),
        Output("ratio_ideal_x", "⑤ 各搬一遍", "×", main=True),
        Output("standard_us", "标准实现，搬完要", "µs"),
        Output("fa2_us", "FA2 不算 L2，搬完要", "µs"),
        Output("ideal_us", "各搬一遍，最快要", "µs"),
        Output("compute_us", "算完要", "µs"),
        Output("bound_gap_x", "标准实现慢几倍", "×", main=True),
        Output("ai_unfused", "强度：标准实现", "FLOP/B"),
        Output("ai_ideal", "强度：各搬一遍", "FLOP/B"),
        Output("ai_seed", "强度：n² 只数一遍", "FLOP/B"),
        Output("fa1_key_block", "FA1 的 K、V 块行数"),
    ),
    chart=_chart,
    formula=(
        "标准：(4 + 2 × 多出来的遍数) × n² + 4nd 个元素（S、P 各写一次读一次，加 Q、K、V、O）",
        "渐近式：n²d²/M，没有常数，要求 d ≤ M ≤ nd；n² 只数一遍时，比值是 M/d²",
        "FA1：2nd + ⌈n/B_c⌉ × (3nd + 4n)，B_c = ⌈M/4d⌉：每换一块 K、V，Q 读一遍，O 读写各一遍，ℓ、m 读写各一遍",
        "FA2：2nd + 2nd × ⌈n/块行数⌉ + n：每块 Q 把 K、V 读一遍，O 只写一次",
        "各搬一遍：4nd",
        "最快 = max(字节 ÷ 带宽, 4n²d ÷ 峰值)",
    ),
    assumptions=("前向，不带因果掩码", "M 按元素数：字节除以元素大小", "算力取 BF16 稠密峰值，不随元素字节变"),
    leaves_out="不算 L2：一个头的 K、V 只有几 MB，重读大多命中 L2，真实的 HBM 读写更靠近 ⑤；不算 mask、dropout 的字节和 FA1 的 log-sum-exp。上下差 2 倍以内。",
    sources=(
        "Dao et al. 2022（FlashAttention），算法 0、算法 1、定理 2、图 2",
        "Dao 2023（FlashAttention-2），算法 1",
        "NVIDIA A100 白皮书：每个 SM 192 KB 的 L1 与共享内存",
    ),
)  # fmt: skip
def flash_io(*, n: int, d: int, M_kb: float, elem_bytes: int, heads: int, batch: int, block_q: int, extra_passes: int, gpu: Accelerator) -> Result:
    """HBM traffic of the forward pass counted five ways (MB = 1e6 B, KB = 1024 B)."""
    w = Worked()
    rows, width, one = quantity(n), quantity(d), quantity(elem_bytes, "B")
    copies = quantity(heads) * quantity(batch) if heads * batch > 1 else None
    size = one if copies is None else w.line("头 × batch × 元素字节", copies * one, "B")
    sram = w.line("SRAM 能放 M", quantity(M_kb, "KB (1024 B)") / one, "element")
    standard = w.line("标准实现", unfused_elements(rows, rows, width, extra_passes) * size, "MB")
    asymptotic = w.line("渐近式", asymptotic_elements(rows, width, sram) * size, "MB")
    key_rows = w.line("FA1 的 K、V 块 B_c", key_block(sram, width))
    w.line("FA1 的 Q 块 B_r", smaller(key_rows, width))
    key_blocks = w.line("FA1 的 K、V 分几块", ceil(rows / key_rows))
    flash1 = w.line("FA1", flash1_elements(rows, width, key_blocks) * size, "MB")
    query_blocks = w.line("FA2 的 Q 分几块", ceil(rows / quantity(block_q)))
    flash2 = w.line("FA2，不算 L2", flash2_elements(rows, width, query_blocks) * size, "MB")
    ideal = w.line("各搬一遍", fused_elements(rows, rows, width) * size, "MB")
    ratios = {
        "n2_only": w.line("① M ÷ d²（n² 约掉）", sram / (width * width), "×"),
        "asymptotic": w.line("② 标准 ÷ 渐近式", standard / asymptotic, "×"),
        "fa1": w.line("③ 标准 ÷ FA1", standard / flash1, "×"),
        "fa2": w.line("④ 标准 ÷ FA2", standard / flash2, "×"),
        "ideal": w.line("⑤ 标准 ÷ 各搬一遍", standard / ideal, "×"),
    }
    peak, bandwidth = quantity(gpu.dense_tflops, "TFLOPS"), quantity(gpu.bandwidth_gb_s, "GB/s")
    per_head = attention_flops(rows, rows, width, quantity(2, "FLOP"))
    flops = w.line("浮点运算", per_head if copies is None else copies * per_head, "GFLOP")
    compute = w.line("算完", flops / peak, "µs")
    standard_time = w.line("标准搬完", standard / bandwidth, "µs")
    flash2_time = w.line("FA2 搬完", flash2 / bandwidth, "µs")
    ideal_time = w.line("最快", larger(ideal / bandwidth, compute), "µs")
    gap = w.line("标准搬完 ÷ 最快", standard_time / ideal_time, "×")
    ai_unfused = w.line("强度，标准", arithmetic_intensity(flops, standard), "FLOP/B")
    ai_ideal = w.line("强度，各搬一遍", arithmetic_intensity(flops, ideal), "FLOP/B")
    ai_seed = w.line("强度，n² 只数一遍", arithmetic_intensity(flops, rows * rows * size), "FLOP/B")
    knee = w.line("拐点", ridge(peak, bandwidth), "FLOP/B")
    return Result(
        values={
            "standard_mb": standard, "asymptotic_mb": asymptotic, "fa1_mb": flash1, "fa2_mb": flash2, "ideal_mb": ideal,
            **{f"ratio_{name}_x": ratio for name, ratio in ratios.items()},
            "standard_us": standard_time, "fa2_us": flash2_time, "ideal_us": ideal_time, "compute_us": compute, "bound_gap_x": gap,
            "ai_unfused": ai_unfused, "ai_ideal": ai_ideal, "ai_seed": ai_seed, "fa1_key_block": round(key_rows.value),
        },
        lines=w.lines,
        verdict=_verdict(ratios, ai_unfused.value < knee.value, ai_ideal.value < knee.value, gap),
        notes=_notes(n, d, sram, ratios, standard_time, compute),
    )  # fmt: skip


def _verdict(ratios: dict[str, Quantity], memory_bound: bool, still_bound: bool, gap: Quantity) -> str:
    low, high = (pick(ratios.values(), key=lambda r: r.value).text for pick in (min, max))
    said = f"同一个 attention，五种数法从 {low}到 {high}：说「省几倍」，先说数的是哪几次读写。"
    if not memory_bound:
        return said + "这张卡的拐点低，按总量算标准实现已经卡在算力：融合主要省显存，只快在 softmax 那一趟不用再搬。"
    then = "序列太短，各搬一遍也还卡在带宽。" if still_bound else "字节省下来以后，换算力当墙。"
    return said + f"时间上标准实现只慢 {gap.text}：{then}"


def _notes(n: int, d: int, sram: Quantity, ratios: dict[str, Quantity], standard: Quantity, compute: Quantity) -> tuple[str, ...]:
    notes = []
    if standard.value < compute.value:
        notes.append(f"「标准实现慢几倍」只比搬的时间：标准实现自己也要算 {compute.text}，不会比最快的还快。")
    if sram.value > n * d:
        notes.append("M 已经大于 nd，整个 K 都放得进 SRAM：渐近式的前提不成立，①② 别当真。")
    if ratios["fa2"].value < 1:
        notes.append("④ 不到 1 倍：Q 块太小，K、V 重读的次数比写 n² 还贵。块要大，或者靠 L2 接住重读。")
    if ratios["fa1"].value < 1:
        notes.append("③ 不到 1 倍：SRAM 放得下的 K、V 块太小，O 来回搬的次数比写 n² 还贵。")
    return tuple(notes)
