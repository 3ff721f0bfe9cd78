"""How many HBM accesses does FlashAttention save, and what has to be said before the number means anything?"""

from __future__ import annotations

from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Bar, BarChart, Chart, Part
from calculators.core.inputs import choice, integer, number, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.worked import Quantity, Worked, ceil, quantity
from calculators.formulas.attention import asymptotic_elements, flash1_elements, fused_elements, key_block, unfused_elements

ROUTES = (("标准实现", "standard_mb"), ("算法 1 照写", "fa1_mb"), ("渐近式 n²d²/M", "asymptotic_mb"), ("只搬 Q、K、V、O", "ideal_mb"))


def _chart(run: Run, **_: object) -> tuple[Chart, ...]:
    bars = tuple(Bar(name, (Part(name, float(run.values[key])),), run.texts[key]) for name, key in ROUTES)  # type: ignore[arg-type]
    desc = "一个头的 HBM 读写，横轴是对数。算法没变，数法变了，条长差出一两个数量级。"
    return (BarChart("同一个 attention，四种数法", desc, Axis("HBM 读写", "MB", log=True), bars),)


@calculator(
    title="省 20 倍，是怎么数出来的",
    question="FlashAttention 到底少读写多少 HBM？换个数法会差多少？",
    chapter="00",
    inputs=(
        integer("n", "序列长度 n", 4096, "token", low=128, high=1_048_576, kind="tokens", stops=powers_of_two(128, 1_048_576)),
        choice("d", "每头维度 d", 64, (64, 96, 128, 256)),
        number(
            "M_kb", "SRAM 大小 M", 192, "KB (1024 B)", low=16, high=512, stops=(16, 32, 48, 64, 100, 128, 164, 192, 228, 256, 512),
            help="A100 每个 SM 的 L1 与共享内存合计 192；其中最多 164 可作共享内存", range_remedy="M 小于 4d 个元素时 SRAM 放不下一行块",
        ),
        choice("elem_bytes", "每个元素", 2, (1, 2, 4), "B"),
    ),
    outputs=(
        Output("sram_elems", "SRAM 能放的元素", "element"),
        Output("ratio_n2_only_x", "n² 只数一遍，除以渐近式", "×", main=True),
        Output("ratio_asymptotic_x", "标准读写全数，除以渐近式", "×"),
        Output("ratio_fa1_x", "标准读写全数，除以算法 1", "×", main=True),
        Output("ratio_ideal_x", "标准读写全数，除以只搬一遍", "×", main=True),
        Output("standard_mb", "标准实现的读写", "MB"),
        Output("asymptotic_mb", "渐近式的读写", "MB"),
        Output("fa1_mb", "算法 1 的读写", "MB"),
        Output("ideal_mb", "只搬 Q、K、V、O", "MB"),
    ),
    chart=_chart,
    formula=(
        "标准：4n² + 4nd 个元素（S、P 各写一次读一次，加 Q、K、V、O）",
        "FlashAttention 的渐近式：n²d²/M 个元素，要求 d ≤ M ≤ nd",
        "算法 1 照写：2nd + ⌈n/B_c⌉ × (3nd + 4n)，B_c = ⌈M/4d⌉",
        "只搬一遍：4nd",
    ),
    assumptions=("一个头、一条序列、只算前向", "M 按元素数：字节除以元素大小"),
    leaves_out="不算 L2：K、V 的重复读大多命中 L2，真实 HBM 读写更接近「只搬一遍」；不算 mask 与 dropout。上下差 2 倍以内。",
    sources=("Dao et al. 2022（FlashAttention），算法 0、算法 1、定理 2", "NVIDIA A100 白皮书：每个 SM 192 KB 的 L1 与共享内存"),
)  # fmt: skip
def flash_io_quick(*, n: int, d: int, M_kb: float, elem_bytes: int) -> Result:
    """HBM traffic of one head counted four ways (MB = 1e6 B, KB = 1024 B)."""
    w = Worked()
    size = quantity(elem_bytes, "B")
    rows, width = quantity(n), quantity(d)
    sram = w.line("SRAM 能放 M", quantity(M_kb, "KB (1024 B)") / size, "element")
    standard = w.line("标准实现", unfused_elements(rows, rows, width) * size, "MB")
    asymptotic = w.line("渐近式", asymptotic_elements(rows, width, sram) * size, "MB")
    block = w.line("K、V 每块行数", key_block(sram, width))
    blocks = w.line("K、V 分成几块", ceil(rows / block))
    flash1 = w.line("算法 1", flash1_elements(rows, width, blocks) * size, "MB")
    ideal = w.line("只搬一遍", fused_elements(rows, rows, width) * size, "MB")
    n2_only = w.line("n² 数一遍 ÷ 渐近式（n 约掉）", sram / (width * width), "×")
    by_asymptotic = w.line("标准 ÷ 渐近式", standard / asymptotic, "×")
    by_flash1 = w.line("标准 ÷ 算法 1", standard / flash1, "×")
    by_ideal = w.line("标准 ÷ 只搬一遍", standard / ideal, "×")
    return Result(
        values={
            "sram_elems": sram, "ratio_n2_only_x": n2_only, "ratio_asymptotic_x": by_asymptotic, "ratio_fa1_x": by_flash1, "ratio_ideal_x": by_ideal,
            "standard_mb": standard, "asymptotic_mb": asymptotic, "fa1_mb": flash1, "ideal_mb": ideal,
        },
        lines=w.lines,
        verdict=_verdict(n2_only, by_flash1, by_ideal),
        notes=_notes(n, d, sram),
    )  # fmt: skip


def _verdict(n2_only: Quantity, by_flash1: Quantity, by_ideal: Quantity) -> str:
    if by_flash1.value < 1:
        return f"这组数里，算法 1 照写反而多搬（标准只有它的 {by_flash1.text}）：SRAM 放得下的块太小。只搬一遍的下限仍能省 {by_ideal.text}。"
    return (
        f"同一个 attention：n² 只数一遍是 {n2_only.text}，照算法 1 逐次数是 {by_flash1.text}，只搬 Q、K、V、O 是 {by_ideal.text}。"
        "说「省几倍」，先说 n、d、M、元素字节，再说数了哪几次读写。"
    )


def _notes(n: int, d: int, sram: Quantity) -> tuple[str, ...]:
    a100 = 192 * 1024 / 2
    once = format_number(a100 / (64 * 64))
    four_times = format_number(unfused_elements(4096, 4096, 128) / asymptotic_elements(4096, 128, a100))
    notes = [f"「约 20 倍」有两个来路（M 取 192 KB、16 位元素）：d 取 64、n² 只数一遍，{once} 倍；d 取 128、四遍都数，{four_times} 倍。"]
    if sram.value > n * d:
        notes.append("M 已经大于 n·d，整个 K 都放得进 SRAM：渐近式的前提不成立，看「算法 1」和「只搬一遍」。")
    return tuple(notes)
