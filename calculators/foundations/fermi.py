"""Three numbers, parameters, tokens and cards: how much memory, how many days, how fast can it answer?"""

from __future__ import annotations

from calculators.catalog import Accelerator, gpu_input
from calculators.core.calculator import Output, Result, calculator
from calculators.core.inputs import integer, linear_stops, log_stops, number, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.worked import Quantity, Worked, ceil, quantity
from calculators.formulas.collectives import allreduce_factor
from calculators.formulas.memory import STATE_RECIPES, state_bytes
from calculators.formulas.training import card_seconds, training_flops

STATES = STATE_RECIPES["zero-16"].bytes_per_param
BF16_BYTES = 2


@calculator(
    title="三个数估一切",
    question="参数、token、卡数：要多少显存，训几天，答一个 token 最快多久？",
    chapter="A",
    inputs=(
        number("N", "参数量 N", 70e9, "params", low=1e6, high=2e13, stops=log_stops(1e9, 1e12, 6), help="MoE：运算和解码填激活参数，显存填总参数"),
        number("D", "训练 token 数 D", 1e12, "token", low=1e6, high=1e15, kind="tokens", stops=log_stops(1e9, 1e14, 5)),
        gpu_input(),
        integer("n", "卡数", 64, "card", low=1, high=1_000_000, stops=powers_of_two(1, 65_536)),
        number("mfu", "MFU", 0.4, low=0.01, high=1, kind="fraction", stops=linear_stops(0.05, 0.7, 0.05)),
        number("usable_gb", "每卡留给状态", 50, "GB", low=1, high=1000, kind="bytes", more=True, stops=linear_stops(10, 200, 10), help="剩下的给激活和框架"),
        integer("decode_gpus", "推理用几张卡", 8, "card", low=1, high=1024, more=True, stops=powers_of_two(1, 64)),
        number("link_gb_s", "卡间带宽（每卡、单向）", 50, "GB/s", low=0.1, high=10_000, more=True, stops=(12.5, 25, 50, 100, 200, 300, 450, 900), help="跨机 400 Gb/s 的网卡是 50"),
    ),
    outputs=(
        Output("weights_gb", "权重（BF16）", "GB", main=True),
        Output("states_gb", "模型状态（16 字节/参数）", "GB"),
        Output("min_gpus", "至少几张卡", "card", main=True),
        Output("flops", "训练运算量", "FLOP"),
        Output("days", "训练天数", "day", main=True),
        Output("gpu_hours", "卡时", "GPU·h", digits=6),
        Output("decode_ms", "每个 token 最快", "ms", main=True),
        Output("allreduce_s", "同步一次梯度", "s"),
    ),
    formula=(
        "权重 = 2N 字节；模型状态 = 16N 字节；至少几张 = ⌈16N ÷ 每卡留给状态的⌉",
        "训练运算量 = 6ND；天数 = 6ND ÷ (卡数 × 峰值 × MFU)",
        "每个 token 最快 = 2N 字节 ÷ (卡数 × 带宽)",
        "同步一次梯度 = 2(n−1)/n × 2N 字节 ÷ 卡间带宽",
    ),
    assumptions=("状态按 ZeRO-3 匀到每张卡", "权重、梯度用 BF16；batch 1，KV 是空的", "同步只算传输，不算延迟"),
    leaves_out="别的都没算：激活、KV cache、attention 的运算、重启、延迟。当成 ±2 倍的估计。",
    sources=("6ND：Kaplan et al. 2020；Hoffmann et al. 2022", "16 字节/参数：Rajbhandari et al. 2020（ZeRO）§3.1", "峰值与带宽：硬件目录"),
)  # fmt: skip
def fermi(*, N: float, D: float, gpu: Accelerator, n: int, mfu: float, usable_gb: float, decode_gpus: int, link_gb_s: float) -> Result:
    """Every line is a product of the inputs and a number of the catalog; ±2×."""
    w = Worked()
    params, cards, peak = quantity(N, "params"), quantity(n), quantity(gpu.dense_tflops, "TFLOPS")
    weights = w.line("权重", state_bytes(params, quantity(BF16_BYTES, "B")), "GB")
    states = w.line("模型状态", state_bytes(params, quantity(STATES, "B")), "GB")
    fewest = w.line("至少几张卡", ceil(states / quantity(usable_gb, "GB")), "card")
    flops = w.line("训练运算量", training_flops(params, quantity(D, "token"), quantity(6, "FLOP")), "FLOP", 6)
    busy = w.line("卡时", card_seconds(flops, peak, quantity(mfu)), "GPU·h", 6)
    days = w.line("天数", busy / cards, "day")
    decode = w.line("每个 token", weights / (quantity(decode_gpus) * quantity(gpu.bandwidth_gb_s, "GB/s")), "ms")
    sent = w.line("每卡发的梯度", allreduce_factor(cards) * weights, "GB")
    sync = w.line("同步一次", sent / quantity(link_gb_s, "GB/s"), "s")
    notes = (
        (f"每卡留给状态的 {quantity(usable_gb, 'GB').text} 比 {gpu.name} 的 {quantity(gpu.memory_gb, 'GB').text} 还多。",) if usable_gb > gpu.memory_gb else ()
    )
    return Result(
        values={
            "weights_gb": weights, "states_gb": states, "min_gpus": round(fewest.value), "flops": flops, "days": days, "gpu_hours": busy, "decode_ms": decode,
            "allreduce_s": sync,
        },
        lines=w.lines,
        verdict=_training(gpu, n, usable_gb, fewest, days) + _answering(gpu, decode_gpus, weights, decode),
        notes=notes,
    )  # fmt: skip


def _training(gpu: Accelerator, n: int, usable_gb: float, fewest: Quantity, days: Quantity) -> str:
    needed = format_number(fewest.value)
    if usable_gb > gpu.memory_gb:
        return f"先把「每卡留给状态」改到 {quantity(gpu.memory_gb, 'GB').text} 以下：{gpu.name} 没有那么多显存，算出的 {needed} 张不作数。"
    if n < fewest.value:
        return f"放不下：至少 {needed} 张才装得了训练状态，你有 {format_number(n)} 张。"
    return f"{format_number(n)} 张 {gpu.name} 装得下训练状态（至少 {needed} 张），要训 {days.text}。"


def _answering(gpu: Accelerator, cards: int, weights: Quantity, decode: Quantity) -> str:
    if weights.value > cards * gpu.memory_bytes:
        return f"{format_number(cards)} 张卡推理，连 {weights.text} 权重都放不下。"
    return f"{format_number(cards)} 张卡推理，每个 token 不会快过 {decode.text}。"
