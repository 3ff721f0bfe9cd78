"""Which is slower inside one attention tile: the matrix products or the exponentials?"""

from __future__ import annotations

from dataclasses import replace

from calculators.catalog import Accelerator, accelerators, gpu_input
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Bar, BarChart, Chart, Part, Rule
from calculators.core.errors import refuse
from calculators.core.inputs import integer, powers_of_two
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.flash import tile_exp_cycles, tile_matmul_cycles

TILE = 128
FLOP_PER_CYCLE = {"a100-80gb": 2048, "h100-sxm": 4096, "h200": 4096, "b200": 8192}
"""Dense BF16 FLOP per clock and SM: four tensor cores of 256, 512 and 1024 FMA (chapter 02; B200: FlashAttention-4)."""


def _ratio(id: str, d: int, mufu: int) -> float:
    return tile_exp_cycles(float(TILE), float(mufu)) / tile_matmul_cycles(float(TILE), float(d), float(FLOP_PER_CYCLE[id]))


def _chart(run: Run, *, gpu: Accelerator, d: int, mufu: int) -> tuple[Chart, ...]:
    bars = []
    for id, flop in FLOP_PER_CYCLE.items():
        name, matmul, exps = accelerators()[id].name.removeprefix("NVIDIA "), tile_matmul_cycles(TILE, d, flop), tile_exp_cycles(TILE, mufu)
        bars.append(Bar(f"{name}：矩阵乘", (Part("矩阵乘", float(matmul)),), emphasis=id == gpu.id))
        bars.append(Bar(f"{name}：exp", (Part("exp", float(exps)),), emphasis=id == gpu.id))
    ratios = tuple(
        Bar(accelerators()[id].name.removeprefix("NVIDIA "), (Part("exp ÷ 矩阵乘", _ratio(id, d, mufu)),), emphasis=id == gpu.id) for id in FLOP_PER_CYCLE
    )
    return (
        BarChart("一块 tile 要几拍", "矩阵乘的条一代比一代短，exp 的条一直没动。", Axis("周期", "cycle"), tuple(bars)),
        BarChart(
            "exp 用的时间是矩阵乘的几倍",
            "竖线右边：exp 比矩阵乘还慢，Tensor Core 只能干等。",
            Axis("exp ÷ 矩阵乘", "×", high=max(1.3, *(1.25 * bar.parts[0].value for bar in ratios))),
            ratios,
            (Rule("一样慢", x=1.0),),
        ),
    )


@calculator(
    title="exp 和矩阵乘，谁慢",
    question="在一个 SM 里算一块 128×128 的分数，exp 和矩阵乘谁先到顶？",
    chapter="08",
    inputs=(
        # other cards pass the field, so that the function can say why it declines them; no figure of the catalog is used
        replace(gpu_input(where=lambda a: a.id in FLOP_PER_CYCLE), accepts_text=lambda text: text in accelerators(), caution=None),
        integer("d", "每头维度 d", 128, low=16, high=512, stops=(32, 64, 96, 128, 192, 256)),
        integer(
            "mufu",
            "每 SM 每拍几个 exp",
            16,
            low=1,
            high=128,
            stops=powers_of_two(4, 128),
            help="A100 到 B200 都是 16；把一部分 exp 挪到 FMA 上用多项式算，等于把它调大",
        ),
    ),
    outputs=(
        Output("matmul_clk", "矩阵乘", "cycle", main=True),
        Output("exp_clk", "exp", "cycle", main=True),
        Output("exp_over_matmul_x", "exp ÷ 矩阵乘", "×", main=True),
    ),
    chart=_chart,
    formula=("矩阵乘 = 4 × 128² × d ÷ 每拍 FLOP（QKᵀ 与 PV）", "exp = 128² ÷ 每拍几个 exp", "每拍 FLOP：A100 2048，H100、H200 4096，B200 8192"),
    assumptions=("一个 SM，BF16 稠密，矩阵乘跑满；exp 全在 MUFU 上", "两样能重叠：慢的那个决定时间"),
    leaves_out="不算求最大值、求和与缩放的 FMA，不算共享内存的读写（B200 的反向先卡在它）；真实 kernel 里两者不能完全重叠。",
    sources=(
        "Shah et al. 2024（FlashAttention-3）§3.1：H100 矩阵乘 989 TFLOPS，exp 只有 3.9 TFLOPS；d = 128 时 exp 占矩阵乘时间的一半",
        "Zadouri et al. 2026（FlashAttention-4）：每 SM 每拍 16 个 exp、8192 FLOP",
        "CUDA C++ Programming Guide：算术指令吞吐表",
    ),
)
def exp_bottleneck(*, gpu: Accelerator, d: int, mufu: int) -> Result:
    """Cycles of one SM for a 128 × 128 tile: tensor cores against special function units."""
    if gpu.id not in FLOP_PER_CYCLE:
        raise refuse("gpu", "加速卡没有核实过每 SM 的吞吐", gpu.name, f"可取 {'、'.join(FLOP_PER_CYCLE)}")
    w = Worked()
    matmul = w.line("矩阵乘", tile_matmul_cycles(quantity(TILE), quantity(d), quantity(FLOP_PER_CYCLE[gpu.id])), "cycle")
    exps = w.line("exp", tile_exp_cycles(quantity(TILE), quantity(mufu)), "cycle")
    ratio = w.line("exp ÷ 矩阵乘", exps / matmul, "×")
    return Result(values={"matmul_clk": matmul, "exp_clk": exps, "exp_over_matmul_x": ratio}, lines=w.lines, verdict=_verdict(matmul, exps, ratio))


def _verdict(matmul: Quantity, exps: Quantity, ratio: Quantity) -> str:
    if ratio.value < 1:
        return f"矩阵乘 {matmul.text}，exp {exps.text}：exp 藏得进矩阵乘的影子里，前提是两样真的同时跑。藏不住，就多花 {ratio.text}的时间。"
    if ratio.value == 1:
        return f"矩阵乘和 exp 都要 {exps.text}：一样慢。不把 exp 分一部分给 FMA，Tensor Core 再快也白快。"
    return f"exp 要 {exps.text}，是矩阵乘的 {ratio.text}：它才是墙。加 Tensor Core 没用，要么把 exp 挪一部分给 FMA，要么把 d 做大。"
