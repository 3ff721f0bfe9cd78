"""How much faster does a quantised model decode and prefill, and from which batch does it stop paying?"""

from __future__ import annotations

from dataclasses import dataclass

from calculators.catalog import Accelerator, Model, gpu_input, model_input
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Series
from calculators.core.errors import refuse
from calculators.core.inputs import choice, integer, linear_stops, number, powers_of_two
from calculators.core.units import TB
from calculators.core.worked import Quantity, Worked, larger, quantity
from calculators.formulas.decode import decode_flops, step_seconds
from calculators.formulas.inference import Shape, kv_request, prompt_attention, shape_of, weights_read
from calculators.formulas.quantization import compute_seconds, step_weight_bytes
from calculators.formulas.serving import prefill_flops
from calculators.inference._step_lines import TWO, attention_line, kv_bytes_line, params_read_line

LARGEST_BATCH = 4096
PAYS = 1.2
"""Speed-up below which the card says that it no longer pays."""
NAMES = {"bf16": "BF16", "fp8": "FP8", "int8": "INT8", "fp4": "FP4"}


@dataclass(frozen=True)
class Stored:
    """How weights and KV are stored and in which precision the products run."""

    weight_bpw: float
    act: str = "bf16"
    kv_bytes: float = 2.0
    efficiency: float = 1.0


BF16 = Stored(16.0)
SCHEMES = {
    "W4A16": Stored(4.125),
    "FP8 W8A8": Stored(8, "fp8"),
    "FP8 + FP8 KV": Stored(8, "fp8", 1.0),
    "INT8 W8A8": Stored(8, "int8"),
    "NVFP4": Stored(4.5, "fp4"),
}


@dataclass(frozen=True)
class Machine:
    """A model on a card: what all schemes share."""

    shape: Shape
    head: float
    peaks: dict[str, float]
    """Usable FLOP/s by precision."""
    bytes_per_s: float

    def step(self, s: Stored, batch: float, context: float) -> float:
        """Seconds of one decode step."""
        weights = step_weight_bytes(weights_read(self.shape, batch), self.head, s.weight_bpw, 2.0)
        memory = step_seconds(weights, batch * kv_request(self.shape, s.kv_bytes, context), self.bytes_per_s)
        return max(memory, compute_seconds(decode_flops(self.shape.matmul_params, batch, 2.0), self.peaks[s.act], s.efficiency))

    def speedup(self, s: Stored, batch: float, context: float) -> float:
        return self.step(BF16, batch, context) / self.step(s, batch, context)


def _machine(model: Model, gpu: Accelerator, mfu: float, mbu: float) -> Machine:
    peaks = {act: gpu.tflops[act] * TB * mfu for act in NAMES if act in gpu.tflops}
    return Machine(shape_of(model), float(model.vocab * model.hidden), {**peaks, "bf16": gpu.dense_flops * mfu}, gpu.hbm_bytes_per_s * mbu)


def _chart(run: Run, *, batch: int, context_tokens: int, **_: object) -> tuple[Chart, ...]:
    trace = run.result.trace
    assert isinstance(trace, tuple)
    m, own = trace
    assert isinstance(m, Machine)
    assert isinstance(own, Stored)
    batches = [float(2**k) for k in range(13)]
    shown = [(name, s) for name, s in SCHEMES.items() if s.act in m.peaks and s != own and not (s.act == "int8" and "fp8" in m.peaks)]
    curves = [Series(name, tuple((b, m.speedup(s, b, context_tokens)) for b in batches), dashed=True) for name, s in shown]
    mine = Series("你的设置", tuple((b, m.speedup(own, b, context_tokens)) for b in sorted({*batches, float(batch)})), emphasis=True)
    return (
        LineChart(
            "batch 越大，省权重越不值",
            "横轴是 batch（对数），纵轴是一步比 BF16 快几倍。只压权重的线往下掉；KV 也压的线不掉。",
            Axis("batch", "", log=True),
            Axis("比 BF16 快", "×", low=0),
            (*curves, mine),
            marks=(Mark("现在", float(batch), m.speedup(own, batch, context_tokens), emphasis=True),),
        ),
    )


@calculator(
    title="量化后多快",
    question="少搬了字节，decode 和 prefill 各快几倍？batch 多大就不值了？",
    chapter="18",
    inputs=(
        model_input(),
        gpu_input(),
        integer("batch", "batch", 1, low=1, high=LARGEST_BATCH, stops=powers_of_two(1, LARGEST_BATCH)),
        number("weight_bpw", "每权重位数", 4.125, "bit", low=1, high=16, stops=(2, 3, 4, 4.125, 4.25, 4.5, 4.8944, 6, 8, 16)),
        choice("act_precision", "用什么精度乘", "bf16", tuple(NAMES), labels=NAMES, help="只压权重（W4A16）是 BF16：乘之前先还原"),
        number("kv_bytes", "KV 每个数", 2, "B", low=0.5, high=2, stops=(0.5, 1, 2)),
        integer("context_tokens", "上下文", 1024, "token", low=1, high=1_000_000, kind="tokens", more=True, stops=powers_of_two(128, 131072)),
        integer("prompt_tokens", "提示长度", 2048, "token", low=1, high=1_000_000, kind="tokens", more=True, stops=powers_of_two(128, 131072)),
        number("dequant_eff", "还原后剩几成算力", 1.0, low=0.5, high=1, kind="fraction", more=True, stops=linear_stops(0.5, 1, 0.05)),
        number("mfu", "算力利用率", 0.5, low=0.05, high=1, kind="fraction", more=True, stops=linear_stops(0.05, 1, 0.05)),
        number("mbu", "带宽利用率", 0.8, low=0.05, high=1, kind="fraction", more=True, stops=linear_stops(0.05, 1, 0.05)),
    ),
    outputs=(
        Output("speedup", "decode 快", "×", main=True),
        Output("step_ms", "一步", "ms", main=True),
        Output("base_step_ms", "BF16 的一步", "ms", main=True),
        Output("prefill_speedup", "prefill 快", "×", main=True),
        Output("prefill_ms", "prefill", "ms"),
        Output("base_prefill_ms", "BF16 的 prefill", "ms"),
        Output("memory_bound", "还卡在搬字节"),
        Output("byte_ratio", "BF16 一步搬的字节是它的", "×"),
        Output("pays_until_batch", f"快 {PAYS} 倍以上，batch 到", digits=5),
    ),
    chart=_chart,
    formula=(
        "读 = ((读的参数 − 词表头) × 每权重位数 ÷ 8 + 词表头 × 2 + B × KV) ÷ 有效带宽",
        "算 = 2 × 参数 × B ÷ (这个精度的有效算力 × 还原效率)",
        "一步 = 两者里长的；prefill = 线性层用这个精度算 + attention 用 BF16 算",
    ),
    assumptions=("词表头（lm_head）每步按 BF16 读；输入词表只查一行，不读", "读和算完全重叠；decode 的 attention 运算不计（上下文 1024 时是一步运算的 3.6%）", "BF16 的一步用同样的利用率"),
    leaves_out="真实的还原 kernel 在 batch 32 以上会掉效率；公开实测多在这里预测的七成到九成半。装不装得下不查：看「量化后多大」和「KV 容量」。",
    sources=("步的时间：第 15 章的两阶段模型", "各精度的稠密峰值：硬件目录"),
)  # fmt: skip
def quant_speed(
    *, model: Model, gpu: Accelerator, batch: int, context_tokens: int, prompt_tokens: int, weight_bpw: float, act_precision: str, kv_bytes: float,
    dequant_eff: float, mfu: float, mbu: float,
) -> Result:  # fmt: skip
    """A step takes the longer of reading and computing; the baseline is the same with BF16 everywhere."""
    machine = _machine(model, gpu, mfu, mbu)
    if act_precision not in machine.peaks:
        known = "、".join(NAMES[p] for p in NAMES if p in machine.peaks)
        raise refuse("act_precision", f"{gpu.name} 没有 {NAMES[act_precision]} 的矩阵乘（目录里没有它的峰值）", NAMES[act_precision], f"可取 {known}")
    shape, own = machine.shape, Stored(weight_bpw, act_precision, kv_bytes, dequant_eff)
    w = Worked()
    two, count = quantity(2, "B"), quantity(batch)
    bandwidth = w.line("有效带宽", quantity(gpu.bandwidth_gb_s, "GB/s") * quantity(mbu), "GB/s")
    read = params_read_line(w, shape, batch)
    head = quantity(machine.head, "params")

    def reading(label: str, s: Stored) -> tuple[Quantity, Quantity]:
        weights = w.line(f"{label}，读权重", step_weight_bytes(read, head, quantity(s.weight_bpw, "bit"), two), "GB")
        kv = w.line(f"{label}，读 KV", count * kv_bytes_line(w, shape, s.kv_bytes, context_tokens), "GB")
        return w.line(f"{label}，一共读", weights + kv, "GB", 5), w.line(f"{label}，读要", step_seconds(weights, kv, bandwidth), "ms")

    def computing(label: str, act: str, efficiency: float) -> Quantity:
        return w.line(
            f"{label}，算要", compute_seconds(decode_flops(quantity(shape.matmul_params, "params"), count, TWO), peak[act], quantity(efficiency)), "ms"
        )

    peak = {"bf16": w.line("BF16 有效算力", quantity(gpu.dense_tflops, "TFLOPS") * quantity(mfu), "TFLOPS")}
    if act_precision != "bf16":
        peak[act_precision] = w.line(f"{NAMES[act_precision]} 有效算力", quantity(gpu.tflops[act_precision], "TFLOPS") * quantity(mfu), "TFLOPS")
    base_bytes, base_read = reading("BF16", BF16)
    base = w.line("BF16 的一步", larger(base_read, computing("BF16", "bf16", 1.0)), "ms")
    own_bytes, own_read = reading("量化", own)
    own_compute = computing("量化", act_precision, dequant_eff)
    step = w.line("量化后的一步", larger(own_read, own_compute), "ms")
    speedup = w.line("decode 快", base / step, "×")

    prompt = quantity(prompt_tokens)
    linear = w.line("prefill 的线性层", prefill_flops(TWO, quantity(shape.matmul_params, "params"), prompt, quantity(1)), "TFLOP")
    attention = attention_line(w, "prefill 的 attention", shape, prompt, 1.0, of_prompt=True) if prompt_attention(shape, 1.0) else quantity(0, "TFLOP")
    base_prefill = w.line("BF16 的 prefill", (linear + attention) / peak["bf16"], "ms")
    low = w.line("量化，prefill 的线性层", compute_seconds(linear, peak[act_precision], quantity(dequant_eff)), "ms")
    prefill = w.line("量化的 prefill", low + attention / peak["bf16"], "ms")
    prefill_speedup = w.line("prefill 快", base_prefill / prefill, "×")
    memory_bound = own_read.value >= own_compute.value
    pays = max((b for b in range(1, LARGEST_BATCH + 1) if machine.speedup(own, b, context_tokens) >= PAYS), default=None)
    return Result(
        values={
            "base_step_ms": base, "step_ms": step, "speedup": speedup, "base_prefill_ms": base_prefill, "prefill_ms": prefill,
            "prefill_speedup": prefill_speedup, "memory_bound": memory_bound, "byte_ratio": base_bytes.value / own_bytes.value, "pays_until_batch": pays,
        },
        lines=w.lines,
        verdict=_verdict(base, step, speedup, prefill_speedup, memory_bound, act_precision, pays),
        trace=(machine, own),
    )  # fmt: skip


def _verdict(base: Quantity, step: Quantity, speedup: Quantity, prefill: Quantity, memory_bound: bool, act: str, pays: int | None) -> str:
    decode = f"decode 一步 {base.text} → {step.text}，速度是 BF16 的 {speedup.text}。"
    why = "这一步卡在搬字节，少搬多少就快多少。" if memory_bound else "这一步卡在算，再少搬字节也不快。"
    if prefill.value > 1.005:
        first = f"prefill 快到 {prefill.text}：{NAMES[act]} 的矩阵乘更快。"
    elif prefill.value < 0.995:
        first = f"prefill 的速度反而只有 BF16 的 {prefill.text}：还原要时间，乘法没有变快。"
    else:
        first = "prefill 没变快：乘法的速度没有变。"
    if pays is None:
        return decode + why + first + f"任何 batch 都快不到 {PAYS} 倍。"
    if pays >= LARGEST_BATCH:
        return decode + why + first + f"batch 到 {LARGEST_BATCH} 仍快 {PAYS} 倍以上。"
    return decode + why + first + f"batch 超过 {pays}，就快不到 {PAYS} 倍了。"
