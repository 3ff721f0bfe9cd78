"""Into how many segments should the layers be cut, so that checkpoints and the segment being recomputed weigh least?"""

from __future__ import annotations

from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Rule, Series
from calculators.core.errors import refuse
from calculators.core.inputs import integer, log_stops, number, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.units import GB
from calculators.core.worked import Worked, quantity
from calculators.formulas.activations import stack_bytes
from calculators.formulas.recompute import best_segments, checkpoint_bound, checkpoint_bytes

MOST_POINTS = 160


def _gb(k: int, L: int, tokens: int, a_bytes: float, c_bytes: float) -> float:
    return checkpoint_bytes(float(tokens), float(k), float(L), a_bytes, c_bytes) / GB


def _chart(run: Run, *, L: int, tokens: int, a_bytes: float, c_bytes: float, k: int, **_: object) -> tuple[Chart, ...]:
    if L < 2:
        return ()
    ks = sorted({round(L ** (i / (MOST_POINTS - 1))) for i in range(MOST_POINTS)})
    points = tuple((float(n), _gb(n, L, tokens, a_bytes, c_bytes)) for n in ks)
    marks = [Mark(f"现在 k = {k}", float(k), _gb(k, L, tokens, a_bytes, c_bytes), emphasis=True)]
    best = run.values["best_k"]
    if isinstance(best, int) and best != k:
        marks.append(Mark(f"最省 k = {best}", float(best), _gb(best, L, tokens, a_bytes, c_bytes)))
    return (
        LineChart(
            "段数和显存",
            "两轴都是对数。左边段太长，一次要重算很多层；右边检查点太多。台阶来自层数除不尽。",
            Axis("段数 k", log=True),
            Axis("显存", "GB", log=True),
            (Series("k 段", points, emphasis=True),),
            marks=tuple(marks),
            rules=(Rule("下界", y=float(run.values["bound_gb"])),),  # type: ignore[arg-type]
        ),
    )


@calculator(
    title="检查点切几段",
    question="把层切成几段、每段只留一个输入，显存最省？",
    chapter="09",
    inputs=(
        integer("L", "层数 L", 32, "layer", low=1, high=10_000, stops=(8, 16, 24, 32, 48, 64, 80, 100, 126, 1000)),
        integer("k", "切几段 k", 32, low=1, high=10_000, stops=(1, 2, 4, 8, 16, 23, 32, 64, 128), help="等于层数就是每层一个检查点"),
        integer("tokens", "一批的 token", 8192, "token", low=1, high=1_000_000_000, kind="tokens", stops=powers_of_two(512, 131072)),
        number("a_bytes", "一层的全部激活 a", 139_264, "B", low=0, high=1e12, low_open=True, kind="bytes", stops=log_stops(1e4, 1e7, 5), help="每 token；Llama-3-8B 139,264"),
        number("c_bytes", "一个检查点 c", 8192, "B", low=0, high=1e12, low_open=True, kind="bytes", stops=log_stops(1e3, 1e6, 5), help="每 token；一层的输入 2h，Llama-3-8B 8192"),
    ),
    outputs=(
        Output("memory_gb", "切 k 段", "GB", main=True),
        Output("no_checkpoint_gb", "不设检查点", "GB", main=True),
        Output("saving_x", "缩小", "×", main=True),
        Output("best_k", "最省的段数", main=True),
        Output("best_gb", "那时的显存", "GB"),
        Output("k_opt", "连续的最优 k*"),
        Output("bound_gb", "下界", "GB"),
    ),
    chart=_chart,
    formula=("M(k) = (k × c + ⌈L ÷ k⌉ × a) × token 数", "k* = √(L × a ÷ c)", "下界 = 2√(L × a × c) × token 数"),
    assumptions=("各层一样大；反向时每段重算一次，运算多一遍前向",),
    leaves_out="不算状态、logits 和重算时的临时张量；段内不再分检查点。",
    sources=("Chen et al. 2016, arXiv 1604.06174：√n 检查点", "a、c：第 03 章的每 token 每层激活"),
)  # fmt: skip
def sqrt_checkpoint(*, L: int, k: int, tokens: int, a_bytes: float, c_bytes: float) -> Result:
    """k checkpoints plus the activations of the longest segment; the best whole k by search."""
    if k > L:
        raise refuse("k", "段数 k 不能超过层数 L", f"{k} > {L}", f"可取 1 到 {L}")
    w = Worked()
    batch, layers, layer, kept = quantity(tokens, "token"), quantity(L, "layer"), quantity(a_bytes, "B"), quantity(c_bytes, "B")
    memory = w.line(f"切 {k} 段", checkpoint_bytes(batch, quantity(k), quantity(L), layer, kept), "GB")
    plain = w.line("不设检查点", stack_bytes(batch, layers, layer), "GB")
    saving = w.line("缩小", plain / memory, "×")
    k_opt = w.line("连续的最优 k*", best_segments(quantity(L), layer, kept), "")
    bound = w.line("下界", checkpoint_bound(batch, quantity(L), layer, kept), "GB")
    best = min(range(1, L + 1), key=lambda n: _gb(n, L, tokens, a_bytes, c_bytes))
    best_gb = _gb(best, L, tokens, a_bytes, c_bytes)
    w.say(f"从 1 试到 {L} → 最省 k {best}，{format_number(best_gb)} GB")
    return Result(
        values={
            "memory_gb": memory, "no_checkpoint_gb": plain, "saving_x": saving, "best_k": best, "best_gb": best_gb, "k_opt": k_opt, "bound_gb": bound,
        },
        lines=w.lines,
        verdict=f"切 {k} 段要 {memory.text}，不设检查点要 {plain.text}。"
        + (_advice(k, best, best_gb, L, a_bytes, c_bytes, memory.value / GB) if best_gb < plain.value / GB else "切几段都不比不设省：别设。"),
    )  # fmt: skip


def _advice(k: int, best: int, best_gb: float, L: int, a_bytes: float, c_bytes: float, gb: float) -> str:
    if gb > best_gb * 1.001:
        return f"切成 {best} 段更省，{format_number(best_gb)} GB：" + ("现在的段太长。" if k < best else "现在的检查点太多。")
    if best == L and L > 1:
        return f"每层一个就最省：检查点只有一层激活的 {format_number(100 * c_bytes / a_bytes, digits=3)}%，多留几个不贵。"
    return "再多切、再少切都不会更省。"
