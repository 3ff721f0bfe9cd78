"""What does a prefix cache save: time to the first token, and memory when many users share a system prompt?"""

from __future__ import annotations

from calculators.catalog import Accelerator, Model, gpu_input, model_input
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Bar, BarChart, Chart, LineChart, Mark, Part, Rule, Series
from calculators.core.errors import refuse
from calculators.core.inputs import integer, linear_stops, number, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.units import GB, TB
from calculators.core.worked import Quantity, Worked, larger, quantity
from calculators.formulas.inference import Engine, Shape, attended_by_prompt, forward_flops, kv_request, prompt_attention, score_flops, shape_of, weights_read
from calculators.formulas.kv_shape import cache_shape
from calculators.formulas.memory import state_bytes
from calculators.formulas.paging import whole_blocks
from calculators.formulas.serving import prefill_flops

MS = 1e3
LEAST_SAVING = 0.005
"""A smaller saving is none: both runs read the weights."""


def _seconds(shape: Shape, engine: Engine, prompt: int, cached: int) -> tuple[float, float]:
    """Arithmetic and reading of a prefill that starts at ``cached``."""
    flops = forward_flops(shape, float(prompt)) - forward_flops(shape, float(cached))
    read = weights_read(shape, float(prompt - cached)) * engine.weight_bytes + kv_request(shape, engine.kv_bytes, float(cached))
    return flops / engine.flops_per_s, read / engine.bytes_per_s


def _chart(
    run: Run, *, model: Model, gpu: Accelerator, prompt_tokens: int, block_size: int, mfu: float, mbu: float, weight_bytes: float, kv_bytes: float, **_: object
) -> tuple[Chart, ...]:  # fmt: skip
    shape, engine = shape_of(model), Engine(gpu.dense_flops * mfu, gpu.hbm_bytes_per_s * mbu, weight_bytes, kv_bytes)
    hit, ttft, floor = run.values["hit_tokens"], run.values["ttft_hit_ms"], run.result.trace
    separate, shared = run.values["kv_separate_gb"], run.values["kv_shared_gb"]
    assert isinstance(hit, int)
    assert isinstance(ttft, float)
    assert isinstance(floor, float)
    assert isinstance(separate, int | float)
    assert isinstance(shared, int | float)
    cuts = sorted({whole_blocks(round(i / 100 * (prompt_tokens - 1)), block_size) for i in range(101)} | {hit})

    def at(cached: int) -> float:
        return MS * max(_seconds(shape, engine, prompt_tokens, cached))

    return (
        LineChart(
            "命中越多，第一个字越快",
            "右端不会到零：剩下的 token 再少，也要把权重读一遍。那条横线就是读权重的时间。",
            Axis("命中的 token 占提示", "%", low=0, high=100),
            Axis("TTFT", "ms", low=0),
            (Series("TTFT", tuple((100 * c / prompt_tokens, at(c)) for c in cuts), emphasis=True),),
            marks=(Mark("现在", 100 * hit / prompt_tokens, ttft, emphasis=True),),
            rules=(Rule("读一遍权重", y=floor),),
        ),
        BarChart(
            "同一段系统提示，存几份",
            "上面每个用户各存一份，下面整块共享。差的就是重复。",
            Axis("KV cache", "GB", low=0),
            (Bar("各存各的", (Part("KV", separate),)), Bar("共享前缀", (Part("KV", shared),), emphasis=True)),
        ),
    )


@calculator(
    title="前缀缓存省多少",
    question="提示的前一段已经算过，TTFT 和显存各省多少？",
    chapter="16",
    inputs=(
        model_input(where=lambda m: m.kv_bytes_per_token > 0 and m.active_params > 0, help="要有 KV cache"),
        gpu_input(),
        integer("prompt_tokens", "提示", 2048, "token", low=1, high=1_000_000, kind="tokens", stops=powers_of_two(256, 262_144)),
        integer("cached_tokens", "其中缓存里有的", 1536, "token", low=0, high=1_000_000, kind="tokens", stops=(0, 256, 512, 1024, 1536, 1984, 2032)),
        integer("users", "用户数", 50, low=1, high=1e5, kind="count", stops=(1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)),
        integer("shared_tokens", "共同的前缀", 2000, "token", low=0, high=1_000_000, kind="tokens", more=True, stops=(0, 500, 1000, 2000, 4000, 8000, 32000)),
        integer("own_tokens", "每人自己的", 500, "token", low=0, high=1_000_000, kind="tokens", more=True, stops=(0, 100, 200, 500, 1000, 2000, 8000)),
        number("mfu", "prefill 的算力利用率", 0.5, low=0.05, high=1, kind="fraction", more=True, stops=linear_stops(0.05, 1, 0.05)),
        number("mbu", "带宽利用率", 0.8, low=0.05, high=1, kind="fraction", more=True, stops=linear_stops(0.05, 1, 0.05)),
        integer("block_size", "一块几个 token", 16, "token", low=1, high=256, more=True, stops=(1, 8, 16, 32, 64, 128, 256), help="只有整块能复用"),
        number("weight_bytes", "每个权重的字节", 2, "B", low=0.5, high=4, more=True, stops=(0.5, 1, 2, 4)),
        number("kv_bytes", "KV 每个值的字节", 2, "B", low=0.5, high=2, more=True, stops=(0.5, 1, 2)),
    ),
    outputs=(
        Output("ttft_cold_ms", "没有缓存的 TTFT", "ms", main=True),
        Output("ttft_hit_ms", "命中后的 TTFT", "ms", main=True),
        Output("ttft_saving_pct", "TTFT 省", "%", main=True),
        Output("kv_saving_pct", "KV 显存省", "%", main=True),
        Output("hit_tokens", "命中的整块", "token"),
        Output("kv_separate_gb", "各存各的", "GB"),
        Output("kv_shared_gb", "共享前缀", "GB"),
    ),
    chart=_chart,
    formula=(
        "命中 h = ⌊缓存的 token ÷ 块长⌋ × 块长",
        "TTFT = max(剩下的运算 ÷ (峰值 × 利用率), (读一遍权重 + 读 h 的 KV) ÷ (带宽 × 利用率))",
        "剩下的运算 = 2 × 矩阵参数 × (S − h) + attention：每个新 token 看它之前的所有 token",
        "显存：人数 × (共同 + 自己) 对 共同的整块 + 人数 × 剩下的",
    ),
    assumptions=("没有排队；输入词表只查表，不算", "MoE 的路由均匀独立", "每 token 的 KV 按每层都全长算显存"),
    leaves_out="不算淘汰、哈希和跨租户隔离；多轮对话要求请求回到同一台机器。TPOT 不变：每步照样读全部 KV。",
    sources=("vLLM automatic prefix caching：按整块哈希", "每 token 2N FLOP 和因果 attention：第 15 章"),
)  # fmt: skip
def prefix_cache(
    *, model: Model, gpu: Accelerator, prompt_tokens: int, cached_tokens: int, users: int, shared_tokens: int, own_tokens: int, mfu: float, mbu: float,
    block_size: int, weight_bytes: float, kv_bytes: float,
) -> Result:  # fmt: skip
    """Prefill from the cached blocks on; memory with and without a common prefix."""
    if cached_tokens > prompt_tokens - 1:
        raise refuse("cached_tokens", "缓存里有的至少比提示少 1 个（最后一个 token 要算）", f"{cached_tokens} / {prompt_tokens}", f"不超过 {prompt_tokens - 1}")
    if not shared_tokens + own_tokens:
        raise refuse("own_tokens", "共同的前缀和自己的不能都是 0", "0 + 0")
    shape = shape_of(model)
    w = Worked()
    hit = whole_blocks(cached_tokens, block_size)
    w.say(f"命中的整块：{format_number(cached_tokens)} 按 {block_size} 取整 → {format_number(hit)} token")
    speed = w.line("实得算力", quantity(gpu.dense_tflops, "TFLOPS") * quantity(mfu), "TFLOPS")
    bandwidth = w.line("实得带宽", quantity(gpu.bandwidth_gb_s, "GB/s") * quantity(mbu), "GB/s")
    cold = _ttft(w, "没缓存", shape, prompt_tokens, 0, speed, bandwidth, weight_bytes, kv_bytes)
    warm = _ttft(w, "命中", shape, prompt_tokens, hit, speed, bandwidth, weight_bytes, kv_bytes) if hit else cold
    saving = w.line("TTFT 省", 1 - warm / cold, "%")
    token = w.line("每 token 的 KV", quantity(cache_shape(model).elements, "element", 15) * quantity(kv_bytes, "B"), "B", 6)
    common = whole_blocks(shared_tokens, block_size)
    separate = w.line("各存各的", quantity(users) * quantity(shared_tokens + own_tokens, "token") * token, "GB")
    rest = w.line("每人不能共享的", quantity(shared_tokens + own_tokens, "token") - quantity(common, "token"), "token", 6)
    together = w.line("共享前缀", (quantity(common, "token") + quantity(users) * rest) * token, "GB")
    kv_saving = w.line("KV 省", 1 - together / separate, "%")
    floor = weights_read(shape, 1.0) * weight_bytes / bandwidth.value * MS
    return Result(
        values={
            "hit_tokens": hit, "ttft_cold_ms": cold, "ttft_hit_ms": warm, "ttft_saving_pct": saving, "kv_separate_gb": separate, "kv_shared_gb": together,
            "kv_saving_pct": kv_saving,
        },
        lines=w.lines,
        verdict=_verdict(cold, warm, saving, separate, together, kv_saving, hit, cached_tokens, users, block_size),
        notes=_notes(model, gpu, prompt_tokens, weight_bytes),
        trace=floor,
    )  # fmt: skip


def _notes(model: Model, gpu: Accelerator, prompt: int, weight_bytes: float) -> tuple[str, ...]:
    found = []
    whole = state_bytes(float(model.total_params), weight_bytes)
    if whole > gpu.memory_bytes:
        found.append(f"权重 {format_number(whole / GB, digits=4)} GB，一张 {gpu.name} 放不下：毫秒是按一张卡的算力和带宽折算的，只看比例。")
    if model.max_context and prompt > model.max_context:
        found.append(f"{model.name} 最长支持 {format_number(model.max_context)} token，这里按公式外推。")
    return tuple(found)


def _ttft(
    w: Worked, name: str, shape: Shape, prompt: int, cached: int, speed: Quantity, bandwidth: Quantity, weight_bytes: float, kv_bytes: float
) -> Quantity:  # fmt: skip
    """The larger of arithmetic and reading, with its lines."""
    new = quantity(prompt - cached, "token") if not cached else w.line(f"{name}：要算的", quantity(prompt, "token") - quantity(cached, "token"), "token", 6)
    matrix = w.line(f"{name}：矩阵", prefill_flops(quantity(2, "FLOP"), quantity(shape.matmul_params, "params"), new, quantity(1)), "TFLOP")
    if set(shape.scores) <= {0}:
        s, h = quantity(prompt), quantity(cached)
        seen = attended_by_prompt(s, None) - attended_by_prompt(h, None) if cached else attended_by_prompt(s, None)
        attention = w.line(f"{name}：attention", score_flops(quantity(2, "FLOP"), quantity(shape.scores.get(0, 0.0), "", 9), seen), "TFLOP")
    else:
        amount = prompt_attention(shape, float(prompt)) - prompt_attention(shape, float(cached))
        attention = quantity(amount / TB, "TFLOP", 4)
        w.say(f"{name}：attention，有滑窗，一层一层加 → {attention.text}")
    compute = w.line(f"{name}：算", (matrix + attention) / speed, "ms")
    weights = w.line(f"{name}：读权重", state_bytes(quantity(weights_read(shape, float(prompt - cached)), "params"), quantity(weight_bytes, "B")), "GB")
    kept = kv_request(shape, kv_bytes, float(cached))
    reading = weights + quantity(kept / GB, "GB", 4) if kept else weights
    read = w.line(f"{name}：读", reading / bandwidth, "ms")
    return w.line(f"{name}：TTFT", larger(compute, read), "ms")


def _verdict(
    cold: Quantity, warm: Quantity, saving: Quantity, separate: Quantity, together: Quantity, kv_saving: Quantity, hit: int, cached: int, users: int, block: int
) -> str:  # fmt: skip
    if not hit:
        said = f"没有命中，TTFT 还是 {cold.text}。" if not cached else f"缓存的 {cached} 个 token 不满一块（{block}），等于没有命中，TTFT 还是 {cold.text}。"
    else:
        said = f"命中 {format_number(hit)} 个 token，TTFT 还是 {warm.text}：时间花在读权重，少算也不快，提示长到卡在算力才省。"
        if saving.value >= LEAST_SAVING:
            said = f"命中 {format_number(hit)} 个 token，TTFT {cold.text} → {warm.text}，省 {saving.text}；TPOT 不变。"
    if together.value >= separate.value:
        why = "只有一个用户" if users == 1 else "共同的前缀不满一块"
        return said + f"{why}，显存不省：{separate.text}。"
    return said + f"{users} 个人共享前缀，KV {separate.text} → {together.text}，省 {kv_saving.text}。"
