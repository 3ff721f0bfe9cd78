"""How many FLOPs does the KV cache save over putting the whole sequence through the model again for every token?"""

from __future__ import annotations

from itertools import accumulate

from calculators.catalog import Model, model_input
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Series
from calculators.core.inputs import integer, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.units import TB
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.inference import Shape, forward_flops, prompt_attention, shape_of, without_cache_tokens
from calculators.formulas.serving import prefill_flops

MOST_POINTS = 120


def _chart(run: Run, *, model: Model, prompt_tokens: int, output_tokens: int) -> tuple[Chart, ...]:
    shape, longest = shape_of(model), max(1024, output_tokens)
    redone = tuple(accumulate(forward_flops(shape, prompt_tokens + i) for i in range(longest)))
    wanted = sorted({round(longest ** (k / MOST_POINTS)) for k in range(MOST_POINTS + 1)} | {output_tokens})
    points = tuple((float(t), redone[t - 1] / forward_flops(shape, prompt_tokens + t - 1)) for t in wanted)
    return (
        LineChart(
            "输出越长，省得越多",
            "纵轴是不留 KV 的运算量除以留 KV 的；只出一个 token 时是 1，之后每多吐一个 token，就多重算一遍前面的全部。",
            Axis("输出长度", "token", log=True),
            Axis("省下", "×", log=True),
            (Series("没有 KV cache ÷ 有", points, emphasis=True),),
            marks=(Mark("现在", float(output_tokens), float(run.values["saving_ratio"]), emphasis=True),),  # type: ignore[arg-type]
        ),
    )


@calculator(
    title="没有 KV cache 会怎样",
    question="每吐一个 token 都把前面重算一遍，要多做多少运算？",
    chapter="15",
    inputs=(
        model_input(),
        integer("prompt_tokens", "提示长度", 2048, "token", high=1_000_000, kind="tokens", stops=powers_of_two(1, 131072)),
        integer("output_tokens", "输出长度", 512, "token", high=100_000, kind="tokens", stops=powers_of_two(1, 8192)),
    ),
    outputs=(
        Output("with_cache_tflop", "有 KV cache", "TFLOP", main=True, digits=5),
        Output("without_cache_tflop", "没有", "TFLOP", main=True, digits=5),
        Output("saving_ratio", "差", "×", main=True),
        Output("tokens_with", "过模型的 token：有", "token"),
        Output("tokens_without", "过模型的 token：没有", "token"),
    ),
    chart=_chart,
    formula=("g(n) = 2·N·n + attention(n)：n 个 token 过一遍模型", "有 cache：g(S + T − 1)；没有：g(S) + g(S + 1) + … + g(S + T − 1)"),
    assumptions=("N 不算输入词表，MoE 按激活的专家", "attention 按因果算，滑动窗口只数窗口里的"),
    leaves_out="省的是运算，不是时间：有了 cache，decode 卡在带宽，快不了这么多倍。cache 自己要占显存（第 16 章）。",
    sources=("kipply, Transformer Inference Arithmetic（kv cache 一节）",),
)
def kv_cache_saving(*, model: Model, prompt_tokens: int, output_tokens: int) -> Result:
    """One causal pass over everything against one pass a token."""
    shape = shape_of(model)
    w = Worked()
    two, params = quantity(2, "FLOP"), quantity(shape.matmul_params, "params")
    prompt, output = quantity(prompt_tokens), quantity(output_tokens)
    last = prompt_tokens + output_tokens - 1
    once = w.line("有 cache · token", prompt + output - 1, "token", 9)
    again = w.line("没有 cache · token", without_cache_tokens(prompt, output), "token", 9)
    kept = _work(w, "有 cache", two, params, once, prompt_attention(shape, last))
    redone = _work(w, "没有 cache", two, params, again, _redone_attention(shape, prompt_tokens, last))
    ratio = w.line("差", redone / kept, "×")
    return Result(
        values={
            "with_cache_tflop": kept, "without_cache_tflop": redone, "saving_ratio": ratio, "tokens_with": round(once.value), "tokens_without": round(again.value),
        },
        lines=w.lines,
        verdict=_verdict(kept, redone, ratio, output_tokens),
    )  # fmt: skip


def _redone_attention(shape: Shape, first: int, last: int) -> float:
    return sum(prompt_attention(shape, n) for n in range(first, last + 1))


def _work(w: Worked, name: str, two: Quantity, params: Quantity, tokens: Quantity, attention: float) -> Quantity:
    linear = w.line(f"{name} · 过权重", prefill_flops(two, params, tokens, quantity(1)), "TFLOP", 6)
    w.say(f"{name} · attention → {format_number(attention / TB, digits=6)} TFLOP")
    return w.line(f"{name} · 合计", linear + quantity(attention / TB, "TFLOP"), "TFLOP", 5)


def _verdict(kept: Quantity, redone: Quantity, ratio: Quantity, output: int) -> str:
    if output == 1:
        return f"只出一个 token，留不留 KV 都是 {kept.text}。"
    return f"留着 KV 是 {kept.text}，每步重算是 {redone.text}，差 {ratio.text}。代价是 KV 占着显存，而且每步都要读一遍。"
