"""Disputed and wrong figures of public tutorials and calculators: ours give the right value, and not the wrong one.

One test (or row) per row of the collected errata, by its number; each names its public source.  ``docs/errata.md`` tells the
same in prose.  ROWS says where every number is tested, NOT_FIGURES which rows hold no figure of ours.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from calculators.catalog import accelerator, accelerators, model, models
from calculators.catalog.references import references
from calculators.catalog.tools import questions
from calculators.core.errors import Refusal
from calculators.core.index import load
from calculators.core.units import GB, GIB, HOUR, TB, unit_of
from calculators.formulas.chip import memory_bandwidth
from calculators.formulas.collectives import allreduce_factor, in_network_allreduce, one_pass_factor, ring_allreduce
from calculators.formulas.data_parallel import BACKWARD_FLOP, FORWARD_FLOP
from calculators.formulas.decode import kv_split
from calculators.formulas.kv import bytes_per_request, bytes_per_token, kv_elements, latent_elements
from calculators.formulas.memory import STATE_RECIPES, state_bytes
from calculators.formulas.mfu import attention_core_of_width
from calculators.formulas.params import attention_params, gated_ffn_params, llama_params
from calculators.formulas.recipes import sharded_bytes_per_param
from calculators.formulas.tensor import ALL_REDUCES
from calculators.formulas.training import implied_mfu, training_flops
from calculators.site.targets import BadTarget, resolve

NOT_FIGURES = {
    36: "jax-ml/scaling-book#35: a subscript in a notation that this book does not use",
    68: "datawhalechina/diy-llm PR#60: how to measure a peak on a GPU; nothing here measures one",
}
ROWS = (
    1, 3, 5, 6, 8, 9, 11, 12, 13, 14, 15, 17, 18, 19, 20, 21, 23, 25, 26, 28, 30, 31, 33, 35, 36, 37, 38, 39, 40, 42, 43, 44, 46, 47, 49, 51, 53, 54, 56, 57,
    58, 60, 63, 64, 65, 67, 68, 69, 71, 72, 74, 76, 78,
)  # fmt: skip
"""The rows that the collection has."""


def run(id: str, **given: object) -> dict[str, Any]:
    texts = {name: json.dumps(v) if isinstance(v, dict) else str(v).lower() if isinstance(v, bool) else str(v) for name, v in given.items()}
    return dict(load(id).run(texts).values)


def mfu(peak: float, tflops: float, **more: object) -> float:
    """MFU of a run that gets ``tflops`` per card: 6N, N = 1e9."""
    return run("mfu", preset="custom", tokens_per_s=tflops * 1e12 / 6e9, N=1e9, n_gpus=1, peak_tflops=peak, count_attention=False, **more)["mfu_pct"]


# --- A. peaks: dense or sparse, which card, which denominator


def test_rows_1_3_12_h100_dense_is_989():
    """stas00/ml-engineering#100, harvard-edge/cs249r_book#1825, modular/llm-inference-handbook (2026-08): 1,979 is sparse, 312 an A100; FP8 has 1,979 dense."""
    assert resolve("spec:h100-sxm#bf16_tflops").value == 989
    assert resolve("spec:h100-sxm#fp8_tflops").value == 1979
    assert resolve("spec:a100-80gb#bf16_tflops").value == 312
    assert run("roofline", gpu="h100-sxm")["ridge"] == pytest.approx(295.2, abs=0.05)
    assert run("roofline", gpu="h100-sxm", elem_bytes=1, m=65536, n=65536, k=65536)["attainable_tflops"] == 1979


def test_row_5_eight_h100_in_fp8():
    """Infrasys-AI/AIInfra#386: 1.979 PFLOPS a card, 15.8 for eight; not 200 and not 1.6."""
    assert 8 * accelerator("h100-sxm").tflops["fp8"] / 1000 == pytest.approx(15.8, abs=0.05)


def test_row_6_the_form_factor_has_its_own_peak():
    """rasbt/LLMs-from-scratch#482: an MFU needs the form factor; SXM 989, PCIe 756."""
    assert (accelerator("h100-sxm").dense_tflops, accelerator("h100-pcie").dense_tflops) == (989, 756)


def test_row_8_a_peak_too_high_reads_too_low():
    """karpathy/autoresearch#5 (its title has it the other way round; karpathy/nanochat PR#147): an A100 against 989 reads 312/989 of its MFU."""
    assert mfu(989, 150) / mfu(312, 150) == pytest.approx(312 / 989)
    assert mfu(312, 150) / mfu(989, 150) == pytest.approx(3.2, abs=0.05)


def test_row_9_a_dense_peak_is_not_halved_again():
    """allenai/OLMo-core PR#614: 312 is dense; 156 doubles the MFU."""
    assert accelerator("a100-80gb").dense_tflops == 312
    assert mfu(156, 150) / mfu(312, 150) == pytest.approx(2)


def test_row_11_h200_at_420_tflops():
    """NVIDIA/Megatron-LM#1565, #1276: 42.5 %, not 21."""
    assert mfu(accelerator("h200").dense_tflops, 420) == pytest.approx(42.5, abs=0.05)
    assert mfu(1979, 420) == pytest.approx(21.2, abs=0.05)


def test_row_13_a100_has_no_fp8():
    """stas00/ml-engineering, accelerator README of 2026-08-22: 624 is INT8."""
    assert "fp8" not in accelerator("a100-80gb").tflops
    assert accelerator("a100-80gb").tflops["int8"] == 624
    with pytest.raises(BadTarget):
        resolve("spec:a100-80gb#fp8_tflops")
    with pytest.raises(Refusal, match="没有 FP8"):
        run("roofline", gpu="a100-80gb", elem_bytes=1)


@pytest.mark.parametrize(("gpu", "right", "wrong"), [("tpu-v5e", 240.2, 243.2), ("h100-sxm", 295.2, 298.5)])
def test_row_14_one_file_of_constants(gpu, right, wrong):
    """jax-ml/scaling-book PR#106: two bandwidths and two peaks in one book."""
    ridge = run("roofline", gpu=gpu)["ridge"]
    assert ridge == pytest.approx(right, rel=2e-3)
    assert ridge != pytest.approx(wrong, rel=5e-3)


def test_row_15_the_clock_of_the_quoted_peak():
    """stas00/ml-engineering README, pytorch/pytorch PR#172523: 1,830 MHz gives 989.4; 1,980 MHz gives 1,070.5, which no sheet quotes."""
    assert run("gpu-peak", preset="h100-sxm")["peak_tflops"] == pytest.approx(989.4, abs=0.05)
    assert run("gpu-peak", preset="h100-sxm", clock_ghz=1.98)["peak_tflops"] == pytest.approx(1070.5, abs=0.05)
    assert accelerator("h100-sxm").dense_tflops == 989


def test_row_17_b200_has_148_sms():
    """caomaolufei/AIInfraGuide gpu-basics (160); jax-ml/scaling-book: 148 enabled."""
    assert references()["chip-b200"].values["sms"].value == 148


# --- B. capacity, bandwidth, units


def test_row_18_b200_capacity_is_several_facts():
    """stas00/ml-engineering fdc3a8c, 87d4885, fdfaa87 (192, 180, 168): sold as 180; 180 GB would be 167.6 GiB; 192 named beside it."""
    b200 = accelerator("b200")
    assert b200.memory_gb == 180
    assert run("train-memory-quick", card_gb=180)["card_gib"] == pytest.approx(167.6, abs=0.05)
    assert b200.is_unverified("memory_gb")
    assert "192" in b200.note


def test_row_19_bandwidths():
    """stas00/ml-engineering fdfaa87: A100 80 GB 2.0, v5p 2.76, v5e 0.82 TB/s; an HBM4 stack of 2,048 pins at 8.0 Gb/s 2,048 GB/s."""
    for id, tb_s in (("a100-80gb", 2.0), ("tpu-v5p", 2.76), ("tpu-v5e", 0.82)):
        assert accelerator(id).bandwidth_gb_s / 1000 == pytest.approx(tb_s, rel=0.02)
    assert memory_bandwidth(2048, 8, 4e9, 2) / GB == 2048
    assert memory_bandwidth(2048, 8, 3.2e9, 2) / GB == pytest.approx(1638.4)


def test_rows_20_21_b200_bandwidth_is_disputed():
    """ai-dynamo/aiconfigurator PR#1246 (8.0 → 7.7), jax-ml/scaling-book gpus.md (prose 9, table 8): 7.7 here, with 8 named beside it."""
    b200 = accelerator("b200")
    assert b200.bandwidth_gb_s == 7700
    assert "7.7 和 8 TB/s" in b200.contested
    assert "7.7 和 8 TB/s" in b200.caution


def test_row_23_bits_are_divided_by_eight():
    """cfregly/ai-performance-engineering#11: 100T parameters in 16 bits are 200 TB = 181.9 TiB, not 182 TB by multiplying."""
    size = state_bytes(100e12, 16 / 8)
    assert size / TB == 200
    assert size / 2**40 == pytest.approx(181.9, abs=0.05)


@pytest.mark.parametrize("gpu", accelerators().values(), ids=accelerators().keys())
def test_row_25_one_unit_for_every_capacity(gpu):
    """harvard-edge/cs249r_book PR#1530: H200 decimal, all others binary."""
    assert gpu.memory_bytes == gpu.memory_gb * 1e9
    assert unit_of("GB").scale == 1e9
    assert unit_of("GiB").scale == 2**30


def test_row_26_gb200_is_marked():
    """kube-dojo PR#1386: 372 or 384 GB for the two GPUs.  Ours is half of 372, marked unverified; the driver reports 185 GiB of 192 each."""
    gb200 = accelerator("gb200")
    assert 2 * gb200.memory_gb == 372
    assert gb200.is_unverified("memory_gb")
    assert gb200.memory_gib_reported < 384 / 2


def test_row_28_a_memory_module_in_bytes():
    """d2l-zh, hardware chapter: "20–25 Gb/s" are GB/s: 64 bits × 2,666 to 3,200 MT/s."""
    assert memory_bandwidth(64, 8, 1.333e9, 2) / GB == pytest.approx(21.3, abs=0.05)
    assert memory_bandwidth(64, 8, 1.6e9, 2) / GB == pytest.approx(25.6)


# --- C. links and collectives


def test_row_30_one_direction():
    """stas00/ml-engineering PR#38: NVLink's 900 GB/s are both directions, a NIC's 400 Gb/s one; compare 450 with 50."""
    assert resolve("spec:h100-sxm#link_gb_s_per_dir").value == 450
    assert run("bandwidth-ladder")["link_over_nic_x"] == 9
    both, one = (run("move-time", nvlink_basis=basis)["nvlink_gb_s"] for basis in ("双向合计", "单向"))
    assert (both, one) == (900, 450)


def test_row_31_nominal_and_achieved():
    """deepseek-ai/DeepEP#16, DeepSeek-V3#479: H800 200 nominal, about 160 achieved; H20 450 nominal, 337 measured."""
    assert (accelerator("h800").link_gb_s_per_dir, accelerator("h20").link_gb_s_per_dir) == (200, 450)
    measured = references()["nvlink-measured-elsewhere"].values
    assert measured["h800"].value == 160
    assert measured["h20"].value == 337


def test_row_33_line_rate_is_no_promise():
    """NVIDIA/nccl#1264: 783 of 900; a maintainer counts on about 20 % of overhead (nccl-tests#212).  Ours calls ≥ 80 % healthy."""
    reading = run("busbw", time_ms=8 * 1.75 / 391.5 * 1000, size_gb=8)
    assert reading["busbw_gbs"] == pytest.approx(783 / 2)
    assert reading["line_rate_pct"] == pytest.approx(87, abs=0.1)
    assert not reading["over_line_rate"]


def test_row_35_every_step_shows_its_units():
    """jax-ml/scaling-book#85 asks where a 2 comes from: bytes of a BF16 number, not hops."""
    assert any("2 字节 × 8192 token × 8192" in line for line in load("tp-comm").run({}).lines)


def test_row_37_who_adds_up_is_a_choice():
    """jax-ml/scaling-book PR#76: SHARP assumed in silence.  A ring sends 2(n−1)/n of the buffer, a switch that adds sends it once."""
    n, size, speed = 8.0, 1e9, 450e9
    ratio = ring_allreduce(n, size, speed, 0.0).wire / in_network_allreduce(size, speed, 0.0).wire
    assert ratio == pytest.approx(1.75)
    algorithms = next(item for item in load("allreduce").inputs if item.name == "algo")
    assert algorithms.default == "ring"
    assert len(algorithms.choices) > 1


def test_row_38_a_slip_of_a_thousand():
    """jax-ml/scaling-book 008ff9c, dae67b3, a3ea5fb: 2·8·128·8192 = 1.7e7 B, not 1.7e10."""
    assert state_bytes(8 * 128 * 8192, 2) == 16_777_216


def test_row_39_what_zero_sends():
    """stas00/ml-engineering#122, AIInfraGuide#38, #39: ZeRO-1/2 reduce-scatter and all-gather, as much as an all-reduce; ZeRO-3 three passes."""
    n = 64
    assert 2 * one_pass_factor(n) == pytest.approx(allreduce_factor(n))
    assert [run("zero-comm", stage=stage)["volume_vs_ddp"] for stage in (0, 1, 2, 3)] == [1, 1, 1, 1.5]


def test_row_40_what_each_stage_cuts():
    """jax-ml/scaling-book d2863b7 had the order reversed: 1 optimizer, 2 + gradients, 3 + weights: 31.4, 16.6, 1.9 GB for 7.5e9 on 64."""
    card = run("zero-memory", params=7.5e9, n_dp=64)
    assert [card[f"stage{n}_gb"] for n in (1, 2, 3)] == pytest.approx([31.4, 16.6, 1.9], abs=0.05)


def test_row_42_four_all_reduces_a_layer():
    """mlsysim changelog: two forward and two backward, not two in all."""
    card = run("tp-comm", tp=8)
    assert ALL_REDUCES == 4
    assert card["traffic_per_layer_mb"] == pytest.approx(4 * allreduce_factor(8) * card["msg_mb"])
    assert card["comm_per_layer_ms"] == pytest.approx(4 * card["allreduce_ms"])


# --- D. FLOPs, parameters, MFU, roofline


def test_row_43_deepseek_v3_from_its_hours():
    """jax-ml/scaling-book a3ea5fb: training is 6ND: 21.6 %, not the 7.2 % of 2ND."""
    flops = training_flops(37e9, 14.8e12, 6.0)
    assert flops == pytest.approx(3.29e24, rel=2e-3)
    assert implied_mfu(flops, 2.79e6 * HOUR, 1.513e15) == pytest.approx(0.216, abs=5e-4)
    assert implied_mfu(training_flops(37e9, 14.8e12, 2.0), 2.79e6 * HOUR, 1.513e15) == pytest.approx(0.072, abs=5e-4)
    assert run("train-time", model="deepseek-v3", tokens=14.8e12, N=37e9)["flops"] == pytest.approx(flops)


def test_row_44_selective_recomputation():
    """NVIDIA/Megatron-LM#523: forward and repeated attention are s/6h + s/18h = 2s/9h, not s/3h."""
    s, h = 2048, 12288
    base = 1 + s / (6 * h)
    step = base * (1 + run("recompute")["step_overhead_pct"] / 100)
    assert step == pytest.approx(1 + 2 * s / (9 * h))
    assert step != pytest.approx(1 + s / (3 * h), rel=1e-3)


def test_row_46_the_output_head_counts():
    """EleutherAI/gpt-neox PR#1094: a parenthesis closed early and the logits fell out."""
    shape = models()["llama-3-8b"]
    flops = run("model-card", model="llama-3-8b", context_tokens=0)["flops_fwd_per_token"]
    layers = shape.breakdown["attention"] + shape.breakdown["dense_ffn"] + shape.breakdown["norms"]
    assert flops == 2 * (layers + shape.hidden * shape.vocab)


def test_row_47_gpt2_to_the_last_digit():
    """EleutherAI/cookbook c5f3aad (#48): 13Lh = 9Lh biases + 4Lh norms is right; its later 8Lh + 2h gives 124,393,728."""
    layers, h = 12, 768
    assert run("model-card", model="gpt2")["total_params"] == 124_439_808
    assert 12 * layers * h * h + (50_257 + 1024) * h + 13 * layers * h + 2 * h == 124_439_808
    assert 12 * layers * h * h + (50_257 + 1024) * h + 8 * layers * h + 2 * h == 124_393_728


def test_row_49_the_head_is_trained_too():
    """EleutherAI/cookbook: the head costs 6hV in training, not 2hV: 21 % of 6N in a 1B model, 0.35 % in GPT-3."""
    for id, share in (("llama-3.2-1b", 0.21), ("gpt-3-175b", 0.0035)):
        shape = models()[id]
        head = 6 * shape.hidden * shape.vocab / (6 * shape.total_params)
        assert head == pytest.approx(share, rel=0.02)
        assert head / 3 != pytest.approx(share, rel=0.3)
    assert pytest.approx(1.1e21, rel=0.02) == 6 * 12288 * 50_257 * 300e9


def test_row_51_recomputation_makes_hfu():
    """stas00/ml-engineering ee6860e, PR#47: 400 TFLOPS with recomputation in them are HFU."""
    plain = run("mfu", preset="custom", tokens_per_s=5e4, N=1e9, n_gpus=1, peak_tflops=989, count_attention=False, recompute="full")
    assert plain["hfu_pct"] / plain["mfu_pct"] == pytest.approx(8 / 6)


def test_row_53_when_attention_dominates():
    """jax-ml/scaling-book PR#109, #89: for D = 4608 not at 32k but at 8D = 36,864 (gated FFN of 4D, multi-head, unmasked)."""
    d = 4608.0
    matrices = 2 * (attention_params(d, 36.0, 36.0, 128.0) + gated_ffn_params(d, 4 * d))
    assert 4 * attention_core_of_width(1.0, d, 8 * d) == pytest.approx(matrices)
    assert 8 * d == 36_864
    assert 4 * attention_core_of_width(1.0, d, 32_768.0) < matrices


def test_row_54_the_vocabulary_stands_once():
    """jax-ml/scaling-book PR#34: 18,385,207,296; with the table inside the layer product it was 26.7e9."""
    h, layers, a, kv, hd, f, v = 4096, 64, 32, 8, 256, 16384, 32_128
    norms = (2 * layers + 1) * h  # the book leaves them out
    assert llama_params(h, layers, a, kv, hd, f, v, True) - norms == 18_385_207_296
    assert 18_385_207_296 + (layers - 1) * h * v == pytest.approx(26.7e9, rel=2e-3)
    config = {"model_type": "llama", "hidden_size": h, "num_hidden_layers": layers, "num_attention_heads": a, "num_key_value_heads": kv, "head_dim": hd,
              "intermediate_size": f, "vocab_size": v, "tie_word_embeddings": True, "max_position_embeddings": 8192}  # fmt: skip
    assert run("model-card", model=config)["total_params"] - norms == 18_385_207_296


def test_rows_56_60_above_the_ridge_is_compute_bound():
    """jax-ml/scaling-book a69d84a (#17), AIInfraGuide PR#16, zero-to-sglang PR#50, #63: not below it, and not at half of it."""
    first = int(run("roofline", op="gemm", m=1)["crossover_batch"])
    above, below = (run("roofline", op="gemm", m=m) for m in (first, first - 1))
    assert above["compute_bound"]
    assert above["ai"] >= above["ridge"]
    assert not below["compute_bound"]
    assert below["ai"] < below["ridge"]
    assert first > above["ridge"], "a square matrix product needs more rows than the ridge says, never half"


def test_row_57_intensity_is_per_byte():
    """jax-ml/scaling-book PR#38: GB in one place, bytes in the other."""
    card = run("roofline", op="gemm", m=128)
    assert card["ai"] == pytest.approx(card["gflop"] * 1e9 / (card["traffic_mb"] * 1e6))
    assert card["ridge"] == pytest.approx(989e12 / 3350e9)


def test_row_58_each_of_two_backward_products_costs_a_forward():
    """datawhalechina/diy-llm#70: the weight gradient is 2BD² like the forward pass, the whole backward 4BD²."""
    assert (FORWARD_FLOP, BACKWARD_FLOP) == (2, 4)
    assert run("mfu", preset="custom", tokens_per_s=1, N=1e9, n_gpus=1, peak_tflops=1, count_attention=False)["gflop_per_token"] == FORWARD_FLOP + BACKWARD_FLOP


# --- E. training memory


@pytest.mark.parametrize(
    ("recipe", "total"),
    [("seed-12", 12), ("zero-16", 16), ("megatron-18", 18)],
)
def test_row_63_bytes_per_parameter_have_names(recipe, total):
    """stas00/ml-engineering#23, stanford-cs336 lectures#3, Azure/MS-AMP#173, Megatron-LM#654, accelerate#2659, DeepSpeed#1137 and PR#5099."""
    assert STATE_RECIPES[recipe].bytes_per_param == total
    assert run("bytes-per-param", recipe=recipe, N=7e9)["total_gb"] == pytest.approx(7 * total)


def test_row_63_both_gradient_copies_make_20():
    """deepspeedai/DeepSpeed PR#5099: FP16 weights 2, FP16 and FP32 gradients 6, master and moments 12."""
    assert sharded_bytes_per_param(2, 0, 18, 1) == 20


def test_row_64_adam_holds_two_moments():
    """harvard-edge/cs249r_book lab 08, PR#1681: m and v in FP32 are 8 bytes: 84 GB for 7B, not 56; 1,400 GB of moments for 175B, not 700."""
    assert run("train-memory-quick")["total_gb"] == 84
    assert run("train-memory-quick")["adam_gb"] == 56
    assert run("train-memory-quick", params_b=175)["adam_gb"] == 1400


@pytest.mark.parametrize(
    ("id", "right", "wrong"), [("llama-3.2-1b", 1.236, 1.068), ("llama-3.2-3b", 3.213, 3.566), ("llama-3-8b", 8.03, 6.97), ("llama-3-70b", 70.6, 65.5)]
)
def test_row_65_a_llama_is_no_gpt2(id, right, wrong):
    """The ultrascale playbook's widget (zh-TW, chapter 1): hv + L(12h² + 13h) + 2h is GPT-2's; on Llama it is 14 % low to 11 % high."""
    shape = model(id)
    gpt2 = shape.hidden * shape.vocab + shape.layers * (12 * shape.hidden**2 + 13 * shape.hidden) + 2 * shape.hidden
    assert gpt2 / 1e9 == pytest.approx(wrong, rel=2e-3)
    assert run("model-card", model=id)["total_params"] / 1e9 == pytest.approx(right, rel=2e-3)


def test_row_67_no_kv_cache_in_training():
    """manuelescobar-dev/LLM-Tools PR#6, EleutherAI/cookbook f510acd: K and V are activations here; nothing else is added."""
    card = run("train-memory")
    parts = card["states_gb"] + card["activations_gb"] + card["logits_gb"] + card["overhead_gb"]
    assert card["total_gb"] == pytest.approx(parts)
    assert not any("kv" in output.name for output in load("train-memory").outputs)


# --- F. KV cache, quantisation, serving

QWEN3_4B = {
    "model_type": "qwen3", "hidden_size": 2560, "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": 9728, "vocab_size": 151936, "tie_word_embeddings": True, "max_position_embeddings": 40960, "attention_bias": False,
}  # fmt: skip


def test_row_69_head_size_is_its_own_field():
    """LMCache/LMCache#688, PR#694: hidden ÷ heads is 80 for Qwen3-4B, its head_dim 128."""
    assert run("model-card", model=QWEN3_4B)["kv_bytes_per_token"] == 147_456
    assert bytes_per_token(kv_elements(8, 2560 // 32), 36, 2) == 92_160


def test_row_69_one_latent_serves_k_and_v():
    """LMCache/LMCache#2132: 61 × (512 + 64) × 2, not 61 × 2 × 512 × 2 and not a hundred times more."""
    assert run("model-card", model="deepseek-v3")["kv_bytes_per_token"] == bytes_per_token(latent_elements(512, 64), 61, 2) == 70_272
    assert bytes_per_token(2 * 512, 61, 2) == 124_928


@pytest.mark.parametrize(("id", "gib"), [("llama-3.1-405b", 61.5), ("llama-3-8b", 15.6), ("llama-3-70b", 39.06)])
def test_row_71_a_128k_request(id, gib):
    """huggingface/blog#2345: the 405B row of the table is twice the right 61.5 GiB; 8B and 70B are right.  128,000 tokens."""
    got = run("model-card", model=id, context_tokens=128_000)["kv_context_gb"] * GB / GIB
    assert got == pytest.approx(gib, rel=2e-3)
    assert got != pytest.approx(123.05, rel=0.02)


def test_row_72_the_text_and_its_calculator_agree():
    """modular/llm-inference-handbook: 8B at 8K is 1.0 GiB with 8 KV heads; a calculator without that field says 4.0."""
    assert run("model-card", model="llama-3-8b", context_tokens=8192)["kv_context_gb"] * GB / GIB == 1.0
    assert bytes_per_token(kv_elements(32, 128), 32, 2) * 8192 / GIB == 4.0


def test_row_74_windows_and_formats_of_the_cache():
    """gpustack#2101 (Gemma 3 at 128k: 139 GB), ollama PR#17201, #10128, Osmantic/ODS#3324: windows, cache format and heads are inputs."""
    card = run("model-card", model="gemma-3-27b-text", context_tokens=131_072)
    shape = models()["gemma-3-27b-text"]
    assert card["kv_context_gb"] * 1e9 == bytes_per_request(2 * 16 * 128, 2, 10, 52, 131_072, 1024)
    assert card["kv_context_gb"] < 12 < shape.kv_bytes_per_token * 131_072 / GB
    assert run("model-card", model="gemma-3-27b-text", kv_bytes=1)["kv_bytes_per_token"] == shape.kv_bytes_per_token / 2


def test_row_76_int4_is_four_times_and_only_while_memory_is_the_limit():
    """mlsysim changelog, datawhalechina/llm-algo-leetcode#133: 4× against BF16, not 8; no gain left once the step is compute-bound."""

    def step(weight_bytes: float, batch: int) -> float:
        card = run("decode-bound", weight_bytes=weight_bytes, batch=batch)
        return max(card["latency_ms"], card["compute_ms"])

    assert step(2, 1) / step(0.5, 1) == pytest.approx(4, rel=1e-3)
    assert step(2, 4096) / step(0.5, 4096) == pytest.approx(1)


def test_row_76_a_contiguous_cache_is_mostly_reserved():
    """mlsysim changelog (60 % hard-coded); Kwon et al. 2023, Fig. 2: 20.4 % with the longest length reserved, 38.2 with the true one, 96.3 paged."""
    card = run("paged-sim")
    assert card["util_max_pct"] == pytest.approx(20.4, abs=4)
    assert card["util_oracle_pct"] == pytest.approx(38.2, abs=4)
    assert card["util_paged_pct"] == pytest.approx(96.3, abs=4)


def test_row_78_what_b_means():
    """deepseek-ai/DeepSeek-V3#724: F + B − 2W with B the whole backward pass is F + B − W with B the input gradient alone."""
    f, b, w, p = 1, 2, 3, 8
    idle = run("pp-bubble", schedule="zb1p", pp=p, microbatches=32, t_f=f, t_b=b, t_w=w)["idle_units"]
    assert idle == (p - 1) * (f + b - w) == (p - 1) * (f + (b + w) - 2 * w)


# --- MLA under tensor parallelism (vllm-project/vllm #51454)


def test_a_latent_is_copied_to_every_card():
    """Grouped-query heads divide over the cards, one latent does not."""
    assert kv_split(models()["deepseek-v3"], 8) == 1
    assert kv_split(models()["llama-3-70b"], 8) == 8
    assert kv_split(models()["llama-3-70b"], 16) == 8


# --- the list itself


def _tested() -> set[int]:
    """Row numbers in the names of this file's tests."""
    names = (name for name in globals() if name.startswith(("test_row_", "test_rows_")))
    return {int(n) for name in names for n in re.findall(r"(?<=_)\d+(?=_)", re.match(r"test_rows?_(?:\d+_)+", name)[0])}


def test_every_row_is_accounted_for():
    assert _tested() | NOT_FIGURES.keys() == set(ROWS)


def test_each_test_names_its_source():
    """In its docstring, or in the row that it is given."""
    text = Path(__file__).read_text(encoding="utf-8")
    for block in re.split(r"\n(?=@pytest|def test_row)", text):
        if "def test_row" in block:
            assert re.search(r"[\w.-]+/[\w.-]+|changelog|playbook|d2l-zh|kube-dojo|AIInfraGuide|gpustack|README", block), block.splitlines()[0]


# --- the page

PAGE = Path(__file__).parents[1] / "docs" / "errata.md"


def test_the_page_names_tests_that_exist():
    """A list item is a test of this file, or FILE::test of another."""
    named = re.findall(r"^ +- `(?:(tests/\w+\.py)::)?(test_\w+)`$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(named) > 30
    for file, name in named:
        source = (PAGE.parents[1] / (file or "tests/test_errata.py")).read_text(encoding="utf-8")
        assert re.search(rf"^def {name}\(", source, re.MULTILINE), name


def test_the_page_quotes_every_disputed_figure():
    """Each heading of the issue has its section, and the collected answers stand on the page."""
    text = PAGE.read_text(encoding="utf-8")
    for words in ("稠密", "MFU 还是 HFU", "激活", "每个参数几个字节", "GB 和 GiB", "单向", "MLA 加张量并行", "滑动窗口", "最大并发", "因果"):
        assert words in text, words
    assert all(f'calc-table tools="{name}"' in text for name in ("about", *questions()))
