"""Chapter 09: recompute, sqrt-checkpoint, finetune-memory, allocator-sim, offload.  Expected values: the chapter's specification unless a row names its source."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from asking import check, refusal, run, value
from hypothesis import given, settings
from hypothesis import strategies as st

from calculators.catalog import accelerator, models
from calculators.catalog.references import references
from calculators.core.charts import Timeline
from calculators.core.index import load
from calculators.formulas.activations import full_recompute_bytes
from calculators.formulas.allocator import MIB, Block, CachingAllocator, OutOfMemory, rounded_up, segment_size
from calculators.formulas.recompute import GPT_CUT, GPT_WHOLE, checkpoint_bytes, cut_layer_bytes
from calculators.single_gpu.finetune_memory import linear_params

DATA = json.loads((Path(__file__).parent / "data" / "ch09" / "activations.json").read_text(encoding="utf-8"))["rows"]
SHAPES = {"llama-2-7b": (4096, 32), "llama-3-8b": (4096, 32), "llama-3-70b": (8192, 64), "qwen2.5-7b": (3584, 28), "gpt-3-175b": (12288, 96)}
"""h and a, to be put into a GPT block."""
PAPER_PRESETS = {"megatron-22B": "megatron-22b", "gpt3-175B": "gpt-3-175b", "turing-530B": "mt-nlg-530b", "megatron-1T": "1t"}
EXACT = 0.0


def rows(metric):
    return [row for row in DATA if row["metric"] == metric]


# Rows: calculator, inputs that differ from the defaults, output, expected, relative tolerance.
DEFAULTS = [
    ("recompute", "", "activations_gb", 10.268, 1e-4),
    ("recompute", "", "baseline_gb", 55.566, 1e-4),
    ("recompute", "", "pct_of_tp_baseline", 18.478, 1e-4),
    ("recompute", "", "score_ratio", 80, EXACT),
    ("recompute", "", "score_share_pct", 70.18, 1e-4),
    ("recompute", "", "crossover_seq", 870.4, 1e-9),
    ("recompute", "", "forward_overhead_pct", 2.703, 1e-3),
    ("recompute", "", "step_overhead_pct", 0.9009, 1e-3),
    ("sqrt-checkpoint", "", "memory_gb", 3.288, 1e-3),
    ("sqrt-checkpoint", "", "no_checkpoint_gb", 36.507, 1e-4),
    ("sqrt-checkpoint", "", "k_opt", 23.32, 1e-3),
    ("sqrt-checkpoint", "", "bound_gb", 3.130, 1e-3),
    ("sqrt-checkpoint", "", "best_k", 32, EXACT),
    ("sqrt-checkpoint", "", "best_gb", 3.288, 1e-3),
    ("sqrt-checkpoint", "", "saving_x", 11.10, 1e-3),
    ("finetune-memory", "", "trainable_params", 41_943_040, EXACT),
    ("finetune-memory", "", "all_params", 8_072_204_288, EXACT),
    ("finetune-memory", "", "trainable_pct", 0.5196, 1e-4),
    ("finetune-memory", "", "base_gb", 16.061, 1e-4),
    ("finetune-memory", "", "trained_gb", 0.671, 1e-3),
    ("finetune-memory", "", "states_gb", 16.732, 1e-4),
    ("finetune-memory", "", "activations_gb", 0.822, 1e-3),
    ("finetune-memory", "", "logits_gb", 2.101, 1e-3),
    ("finetune-memory", "", "total_gb", 21.155, 1e-4),
    ("finetune-memory", "", "fits", True, EXACT),
    ("allocator-sim", "", "peak_live_gb", 17.79, 1e-3),
    ("allocator-sim", "", "reserved_peak_gb", 50.67, 1e-2),
    ("allocator-sim", "", "reserved_over_live_x", 2.848, 1e-2),
    ("allocator-sim", "", "pad_extra_pct", 0, EXACT),
    ("allocator-sim", "", "pad_share_pct", 0, EXACT),
    ("allocator-sim", "", "segments_allocated", 96, EXACT),
    ("allocator-sim", "", "segments_freed", 0, EXACT),
    ("allocator-sim", "", "oom", False, EXACT),
    ("offload", "", "transfer_s", 0.56, 1e-9),
    ("offload", "", "hidden_pct", 100, EXACT),
    ("offload", "", "exposed_s", 0, EXACT),
    ("offload", "", "tokens_to_hide", 5274.7, 1e-4),
]

BINDINGS = [
    ("recompute", "mode=none tp=1", "activations_gb", 275.41, 1e-4),
    ("recompute", "mode=none sp=false", "activations_gb", 55.57, 1e-3),
    ("recompute", "mode=none", "activations_gb", 34.43, 1e-3),
    ("recompute", "mode=none", "pct_of_tp_baseline", 62.0, 1e-3),
    ("recompute", "sp=false", "activations_gb", 31.41, 1e-3),
    ("recompute", "mode=full", "activations_gb", 4.832, 1e-3),
    ("recompute", "mode=full", "pct_of_tp_baseline", 8.7, 1e-3),
    ("recompute", "mode=full", "step_overhead_pct", 33.33, 1e-3),
    ("recompute", "mode=full", "forward_overhead_pct", 100, EXACT),
    ("recompute", "preset=megatron-22b", "activations_gb", 10.268, 1e-3),
    ("recompute", "preset=megatron-22b mode=none sp=false", "activations_gb", 63.62, 1e-3),
    ("recompute", "preset=megatron-22b mode=none", "activations_gb", 42.48, 1e-3),
    ("recompute", "preset=megatron-22b mode=full", "activations_gb", 4.832, 1e-3),
    ("recompute", "preset=megatron-22b", "pct_of_tp_baseline", 16.14, 1e-3),
    ("recompute", "preset=mt-nlg-530b", "pct_of_tp_baseline", 20.24, 1e-3),
    ("recompute", "preset=mt-nlg-530b mode=none sp=false", "activations_gb", 92.48, 1e-3),
    ("recompute", "preset=mt-nlg-530b mode=none", "activations_gb", 53.95, 1e-3),
    ("recompute", "preset=mt-nlg-530b", "activations_gb", 18.72, 1e-3),
    ("recompute", "preset=mt-nlg-530b mode=full", "activations_gb", 8.81, 1e-3),
    ("recompute", "preset=mt-nlg-530b", "step_overhead_pct", 0.5464, 1e-3),
    ("recompute", "preset=mt-nlg-530b", "forward_overhead_pct", 1.64, 1e-3),
    ("recompute", "preset=mt-nlg-530b", "score_ratio", 64, EXACT),
    ("recompute", "preset=mt-nlg-530b", "score_share_pct", 65.3, 1e-3),
    ("recompute", "preset=llama-3-8b tp=1 mode=none flash=true", "activations_gb", 36.507, 1e-4),
    ("recompute", "preset=llama-3-8b tp=1 mode=none flash=true", "crossover_seq", 870.4, 1e-9),
    ("recompute", "preset=llama-3-8b tp=1 mode=none flash=true", "score_share_pct", None, EXACT),
    ("recompute", "preset=llama-3-8b tp=1 mode=full", "activations_gb", 2.147, 1e-3),
    ("recompute", "h=6144 a=96", "crossover_seq", 435.2, 1e-9),  # head_dim 64
    ("sqrt-checkpoint", "k=1", "memory_gb", 36.6, 1e-3),
    ("sqrt-checkpoint", "k=2", "memory_gb", 18.4, 2e-3),
    ("sqrt-checkpoint", "k=4", "memory_gb", 9.395, 1e-3),
    ("sqrt-checkpoint", "k=8", "memory_gb", 5.10, 1e-3),
    ("sqrt-checkpoint", "k=16", "memory_gb", 3.36, 2e-3),
    ("sqrt-checkpoint", "k=23", "memory_gb", 3.825, 1e-3),
    ("finetune-memory", "model=llama-2-7b", "trainable_params", 39_976_960, EXACT),
    ("finetune-memory", "targets=qkvo", "trainable_params", 13_631_488, EXACT),
    ("finetune-memory", "targets=qv r=8", "trainable_params", 3_407_872, EXACT),
    ("finetune-memory", "method=qlora", "states_gb", 6.373, 1e-3),
    ("finetune-memory", "method=qlora", "base_gb", 5.70, 1e-3),
    ("finetune-memory", "method=qlora quant_scope=all", "states_gb", 4.814, 1e-3),
    ("finetune-memory", "method=qlora quant_scope=all", "base_gb", 4.14, 1e-3),
    ("finetune-memory", "method=qlora", "total_gb", 10.8, 1e-3),
    ("finetune-memory", "method=full", "states_gb", 128.48, 1e-3),
    ("finetune-memory", "method=full", "trainable_pct", 100, EXACT),
    ("finetune-memory", "method=full", "fits", False, EXACT),
    ("allocator-sim", "order=升序", "reserved_over_live_x", 12.24, 1e-2),
    ("allocator-sim", "order=升序", "reserved_peak_gb", 217.8, 1e-2),
    ("allocator-sim", "order=降序", "reserved_over_live_x", 1.003, 1e-2),
    ("allocator-sim", "order=降序", "reserved_peak_gb", 17.85, 1e-2),
    ("allocator-sim", "order=固定4096", "reserved_peak_gb", 18.25, 1e-2),
    ("allocator-sim", "order=固定4096", "reserved_over_live_x", 1.000, 1e-2),
    ("allocator-sim", "order=升序", "peak_live_gb", 17.79, 1e-3),
    ("allocator-sim", "order=降序", "peak_live_gb", 17.79, 1e-3),
    ("allocator-sim", "pad_to=1024", "reserved_peak_gb", 18.25, 1e-2),
    ("allocator-sim", "pad_to=1024", "pad_extra_pct", 19.76, 1e-2),
    ("allocator-sim", "pad_to=1024", "pad_share_pct", 16.50, 1e-2),
    ("allocator-sim", "pad_to=512", "reserved_peak_gb", 34.23, 1e-2),
    ("allocator-sim", "pad_to=512", "pad_extra_pct", 10.3, 1e-2),
    ("allocator-sim", "cap_gb=24", "reserved_peak_gb", 23.83, 1e-2),
    ("allocator-sim", "cap_gb=24", "segments_freed", 64, 1e-2),
    ("allocator-sim", "cap_gb=24", "segments_allocated", 96, 1e-2),
    ("allocator-sim", "expandable=true", "reserved_peak_gb", 17.79, 1e-3),
    ("allocator-sim", "seed=1", "reserved_peak_gb", 52.2, 1e-2),
    ("allocator-sim", "seed=2", "reserved_peak_gb", 33.9, 1e-2),
    ("allocator-sim", "seed=3", "reserved_peak_gb", 31.5, 1e-2),
    ("offload", "pcie_gbs=25", "transfer_s", 1.12, 1e-9),
    ("offload", "pcie_gbs=25", "hidden_pct", 89.3, 1e-3),
    ("offload", "pcie_gbs=25", "exposed_s", 0.12, 1e-9),
    ("offload", "bytes_gb=73", "transfer_s", 1.46, 1e-9),
]


@pytest.mark.parametrize(("id", "query", "output", "expected", "tolerance"), DEFAULTS + BINDINGS)
def test_values_of_the_specification(id, query, output, expected, tolerance):
    check(run(id, query).values[output], expected, tolerance)


class TestRecompute:
    """Korthikanti et al. 2022."""

    @pytest.mark.parametrize("row", [r for r in DATA if r["metric"].startswith("activation_per_layer")], ids=lambda row: row["id"])
    def test_one_layer_of_a_gpt_block(self, row):
        """Eq. 1, and sections 4 and 5: full keeps 2sbh, selective 34sbh."""
        h, a = SHAPES[row["model"]]
        mode = {"none": "none", "full": "full"}.get(row["inputs"]["checkpoint"], "selective")
        got = value("recompute", f"s={row['inputs']['s']} b={row['inputs']['b']} h={h} a={a} L=1 tp=1 mode={mode}", "activations_gb")
        assert got * 1e9 == pytest.approx(row["expected"], rel=1e-12)

    @pytest.mark.parametrize("row", rows("activation_relative_to_baseline"), ids=lambda row: row["id"])
    def test_figure_7(self, row):
        query = {"seq": "mode=none", "sel": "sp=false", "seqsel": "", "full": "mode=full"}[row["inputs"]["technique"]]
        got = value("recompute", f"preset={PAPER_PRESETS[row['model']]} {query}", "pct_of_tp_baseline")
        assert got == pytest.approx(row["expected"], rel=row["tolerance_rel"])

    def test_selective_alone_removes_70_and_65_percent(self):
        """The paper's abstract of section 5: the scores are 80/114 and 64/98 of a layer."""
        for preset, share in (("gpt-3-175b", 80 / 114), ("mt-nlg-530b", 64 / 98)):
            none, selective = (value("recompute", f"preset={preset} tp=1 mode={mode}", "activations_gb") for mode in ("none", "selective"))
            assert 1 - selective / none == pytest.approx(share)

    @pytest.mark.parametrize("preset", ["gpt-3-175b", "megatron-22b", "mt-nlg-530b", "1t"])
    def test_one_card_needs_no_sequence_parallelism(self, preset):
        """t = 1: with and without SP both are Eq. 1, sbh(34 + 5as/h)."""
        with_sp, without = (value("recompute", f"preset={preset} tp=1 mode=none sp={sp}", "activations_gb") for sp in ("true", "false"))
        assert with_sp == without

    @pytest.mark.parametrize("t", range(1, 18))
    def test_order_of_the_ways_up_to_17_cards(self, t):
        """full 2h unsharded, SP + selective 34h/t: equal at t = 17."""
        scores = 80.0
        tp = cut_layer_bytes(float(GPT_WHOLE), GPT_CUT + scores, float(t), False)
        tp_sp = cut_layer_bytes(float(GPT_WHOLE), GPT_CUT + scores, float(t), True)
        selective = cut_layer_bytes(float(GPT_WHOLE), float(GPT_CUT), float(t), True)
        assert 2 <= selective <= tp_sp <= tp
        assert (selective == 2) == (t == 17)

    @pytest.mark.parametrize("tp", [1, 2, 4, 8, 16])
    def test_order_of_the_ways_on_the_card(self, tp):
        full, selective, tp_sp, alone = (
            value("recompute", f"tp={tp} {q}", "activations_gb") for q in ("mode=full", "mode=selective", "mode=none", "mode=none sp=false")
        )
        assert full <= selective <= tp_sp <= alone

    def test_megatrons_own_estimate(self):
        """theoretical_memory_usage.py: (18 + 4·ffn/h)·sbh with SP and selective: 34 for ffn = 4h, 32 for Llama-3-8B, whose SwiGLU block really keeps 34."""
        gpt = value("recompute", "tp=1 L=1", "activations_gb") * 1e9 / (2048 * 12288)
        assert gpt == pytest.approx(18 + 4 * 4)
        m = models()["llama-3-8b"]
        llama = value("recompute", "preset=llama-3-8b tp=1 L=1", "activations_gb") * 1e9 / (8192 * m.hidden)
        assert 18 + 4 * m.ffn / m.hidden == 32
        assert llama == pytest.approx(34)

    def test_same_bytes_as_the_spelled_out_formula_for_llama(self):
        """8h stays whole without SP, (4h + 4·kv·hd + 6f)/t is cut: 12h + 4·kv·hd + 6f in all."""
        h, kv, hd, f = 4096, 8, 128, 14336
        for tp in (1, 2, 4, 8):
            per_token = 8 * h + (4 * h + 4 * kv * hd + 6 * f) / tp
            got = value("recompute", f"preset=llama-3-8b tp={tp} sp=false mode=selective", "activations_gb")
            assert got * 1e9 == pytest.approx(8192 * 32 * per_token)

    def test_selective_term_of_issue_523(self):
        """Megatron-LM issue 523 (errata 44): forward s/6h, recomputed s/18h of the step, 2s/9h together, not s/3h."""
        s, h = 2048, 12288
        base = 1 + s / (6 * h)
        extra = value("recompute", "", "step_overhead_pct") / 100
        assert extra == pytest.approx((s / (18 * h)) / base)
        assert base * (1 + extra) == pytest.approx(1 + 2 * s / (9 * h))

    def test_flash_repeats_nothing_of_its_own(self):
        """Its backward recomputes the scores anyway; full recomputation still repeats the forward pass."""
        assert value("recompute", "flash=true", "step_overhead_pct") == 0
        assert value("recompute", "flash=true mode=none", "activations_gb") == value("recompute", "", "activations_gb")
        assert value("recompute", "flash=true mode=full", "step_overhead_pct") == pytest.approx(100 / 3)

    def test_measured_iteration_times(self):
        """Table 5, full recomputation against SP + selective: +29.1, +31.9 (31.85), +29.7, +32.1 %."""
        for model, extra in (("megatron-22B", 29.1), ("gpt3-175B", 31.9), ("turing-530B", 29.7), ("megatron-1T", 32.1)):
            full, selective = (r["expected"] for r in rows("iteration_time") if r["model"] == model)
            assert 100 * (full / selective - 1) == pytest.approx(extra, abs=0.05)
            kept = references()["korthikanti-2022-full"].values
            key = PAPER_PRESETS[model].replace("gpt-3-", "").replace("megatron-", "").replace("mt-nlg-", "")
            assert (kept[f"full_{key}"].value, kept[f"selective_{key}"].value) == (full, selective)

    def test_mfu_of_the_abstract(self):
        """MT-NLG 530B on 2240 cards: MFU 42.1 → 54.2 % is 29 % faster."""
        kept = references()["korthikanti-2022-abstract"].values
        assert kept["mfu_after"].value / kept["mfu_before"].value - 1 == pytest.approx(0.29, abs=0.005)

    @pytest.mark.parametrize(
        ("query", "field", "words"),
        [
            ("a=100", "a", "隐藏维 h 必须能被头数 a 整除"),
            ("h=10000", "h", "隐藏维 h 必须能被头数 a 整除"),
            ("tp=7", "tp", "隐藏维 h 必须能被张量并行卡数 tp 整除"),
            ("tp=64", "tp", "头数 a 必须能被张量并行卡数 tp 整除"),
            ("s=2047", "tp", "序列长度 s 必须能被张量并行卡数 tp 整除"),
            ("tp=0", "tp", "张量并行"),
            ("preset=llama-3-8b h=8192", "h", "Llama-3-8B"),
            ("preset=llama-3-8b a=64", "a", "Llama-3-8B"),
            ("mode=some", "mode", "不在可选项"),
        ],
    )
    def test_refusals(self, query, field, words):
        error = refusal("recompute", query).errors[0]
        assert error.field == field
        assert words in error.message
        assert "整除" not in words or "可取" in error.message

    def test_verdicts_name_the_next_thing(self):
        assert "FlashAttention" in run("recompute", "mode=none").verdict
        assert "退回选择性" in run("recompute", "mode=full").verdict
        assert "退回只开 FlashAttention" in run("recompute", "mode=full flash=true").verdict
        assert "FlashAttention" in run("recompute", "preset=llama-3-8b tp=1").verdict
        assert "序列并行" in run("recompute", "sp=false").verdict


class TestSqrtCheckpoint:
    """Chen et al. 2016."""

    def test_unit_cases(self):
        """n = 100: 20 units, 5 times less; n = 1000: the bound 63.2 (15.8 times), 64 with whole segments."""
        unit = "a_bytes=1 c_bytes=1 tokens=1000000000"
        hundred, thousand = run("sqrt-checkpoint", f"L=100 k=10 {unit}").values, run("sqrt-checkpoint", f"L=1000 k=32 {unit}").values
        assert hundred["memory_gb"] == hundred["best_gb"] == hundred["bound_gb"] == 20
        assert hundred["saving_x"] == 5
        assert thousand["bound_gb"] == pytest.approx(63.2, abs=0.05)
        assert thousand["no_checkpoint_gb"] / thousand["bound_gb"] == pytest.approx(15.8, abs=0.05)
        assert thousand["best_gb"] == 64

    @settings(max_examples=60, deadline=None, derandomize=True, database=None)
    @given(st.integers(1, 400), st.floats(1, 1e6), st.floats(1, 1e6), st.data())
    def test_no_k_gets_below_the_bound_nor_below_the_best(self, layers, a, c, data):
        k = data.draw(st.integers(1, layers))
        v = run("sqrt-checkpoint", f"L={layers} k={k} a_bytes={a} c_bytes={c}").values
        assert v["memory_gb"] >= v["bound_gb"] * (1 - 1e-12)
        assert v["best_gb"] <= v["memory_gb"]
        assert 1 <= v["best_k"] <= layers

    @pytest.mark.parametrize(("layers", "ratio", "k"), [(36, 4, 12), (100, 1, 10), (64, 4, 16), (32, 8, 16), (48, 3, 12)])
    def test_best_is_the_square_root_when_it_divides(self, layers, ratio, k):
        v = run("sqrt-checkpoint", f"L={layers} k=1 a_bytes={1000 * ratio} c_bytes=1000").values
        assert v["k_opt"] == pytest.approx(k)
        assert v["best_k"] == k

    def test_a_checkpoint_a_layer_is_what_frameworks_call_full(self):
        """k = L is chapter 03's recompute=full, and ``recompute`` without the layer in flight: 3.29 and 2.15 GB."""
        h, layer = 4096.0, 139_264.0
        assert checkpoint_bytes(8192.0, 32.0, 32.0, layer, 2 * h) == full_recompute_bytes(8192.0, 32.0, layer, h)
        assert value("sqrt-checkpoint", "", "memory_gb") == pytest.approx(value("train-memory", "recompute=full", "activations_gb"))
        in_flight = layer * 8192 / 1e9
        assert value("recompute", "preset=llama-3-8b tp=1 mode=full", "activations_gb") == pytest.approx(value("sqrt-checkpoint", "", "memory_gb") - in_flight)

    def test_refusals(self):
        assert "不能超过层数" in refusal("sqrt-checkpoint", "k=33").errors[0].message
        assert refusal("sqrt-checkpoint", "k=0").errors[0].field == "k"
        assert refusal("sqrt-checkpoint", "a_bytes=0").errors[0].field == "a_bytes"

    def test_verdict_says_which_way_to_go(self):
        assert "太长" in run("sqrt-checkpoint", "k=4").verdict
        assert "太多" in run("sqrt-checkpoint", "a_bytes=8192").verdict
        assert "每层一个" in run("sqrt-checkpoint").verdict
        assert "别设" in run("sqrt-checkpoint", "L=1 k=1").verdict


DENSE_GATED = [m.id for m in models().values() if m.ffn_gated and m.moe is None and m.mla is None]


class TestFinetuneMemory:
    """Counts of peft, bytes of the papers."""

    def test_what_peft_prints(self):
        """trainable params: 41,943,040 || all params: 8,072,204,288 || trainable%: 0.5196"""
        v = run("finetune-memory").values
        assert f"{v['trainable_params']:,} || {v['all_params']:,} || {v['trainable_pct']:.4f}" == "41,943,040 || 8,072,204,288 || 0.5196"

    def test_bits_of_nf4_with_double_quantisation(self):
        """Dettmers et al. 2023 §3: 4 bits, an 8-bit constant for 64 weights, an FP32 constant for 256 of these."""
        bits = load("finetune-memory").input("base_bits").default
        assert bits == pytest.approx(4 + 8 / 64 + 32 / (64 * 256), abs=5e-4)

    def test_qlora_leaves_the_tables_alone(self):
        """2 × 0.525 B × 2 B = 2.10 GB, 6.98 B × 0.516 B = 3.60 GB; the quoted 4.8 GB packs the tables as well."""
        m = models()["llama-3-8b"]
        rest = m.total_params - linear_params(m)
        assert rest == m.breakdown["input_table"] + m.breakdown["output_head"] + m.breakdown["norms"]
        assert 2 * rest / 1e9 == pytest.approx(2.10, abs=0.005)
        assert linear_params(m) * 4.127 / 8e9 == pytest.approx(3.60, abs=0.005)
        assert value("finetune-memory", "method=qlora quant_scope=all", "states_gb") == pytest.approx(4.14 + 0.67, abs=0.01)

    @pytest.mark.parametrize("model", DENSE_GATED)
    def test_linear_layers_of_the_catalog(self, model):
        m = models()[model]
        assert linear_params(m) == m.breakdown["attention"] + m.breakdown["dense_ffn"]

    @pytest.mark.parametrize("model", DENSE_GATED)
    @pytest.mark.parametrize(
        "query", ["method=full", "method=lora recompute=none", "method=qlora logits=chunked micro_batch=3", "method=qlora quant_scope=all targets=qv"]
    )
    def test_bars_and_lines_are_the_same_bill(self, model, query):
        found = run("finetune-memory", f"model={model} {query}")
        blocks = found.result.trace.blocks()
        for block in ("base", "trained", "activations", "logits"):
            assert blocks[block] / 1e9 == pytest.approx(found.values[f"{block}_gb"])
        assert found.result.trace.total() / 1e9 == pytest.approx(found.values["total_gb"])
        assert found.values["fits"] == (found.values["total_gb"] <= 24)

    @settings(max_examples=30, deadline=None, derandomize=True, database=None)
    @given(st.integers(1, 128), st.sampled_from(DENSE_GATED), st.sampled_from(["all-linear", "qkvo", "qv"]))
    def test_adapters_grow_with_the_rank(self, r, model, targets):
        one, many = (value("finetune-memory", f"model={model} targets={targets} r={n}", "trainable_params") for n in (1, r))
        assert many == r * one

    def test_activations_do_not_shrink_with_lora(self):
        """The third wrong intuition of the chapter."""
        full, lora, qlora = (value("finetune-memory", f"method={m}", "activations_gb") for m in ("full", "lora", "qlora"))
        assert full == lora == qlora

    def test_same_activations_as_chapter_03(self):
        for recompute in ("none", "full"):
            mine = value("finetune-memory", f"seq=8192 recompute={recompute}", "activations_gb")
            assert mine == pytest.approx(value("train-memory", f"recompute={recompute}", "activations_gb"))
        assert value("finetune-memory", "seq=8192 logits=chunked", "logits_gb") == pytest.approx(value("train-memory", "logits=chunked", "logits_gb"))
        assert value("finetune-memory", "method=full", "states_gb") == pytest.approx(value("train-memory", "recipe=zero-16", "states_gb"))

    @pytest.mark.parametrize(
        "query",
        ["method=full", "method=full gpu=h100-sxm", "seq=32768 recompute=none", "model=llama-3-70b gpu=a100-80gb micro_batch=4 recompute=none seq=8192"],
    )
    def test_remedies_lead_to_a_bill_that_fits(self, query):
        found = run("finetune-memory", query)
        totals = [row["total_gb"] for row in found.values["remedies"]]
        assert totals == sorted(totals, reverse=True)
        assert [row["fits"] for row in found.values["remedies"]] == [False] * (len(totals) - 1) + [True]
        assert all(row["remedy"] in found.verdict for row in found.values["remedies"])

    def test_remedies_follow_the_largest_block(self):
        first = {
            q: value("finetune-memory", q, "remedies")[0]["remedy"] for q in ("method=full", "seq=16384 recompute=none", "seq=16384 model=llama-3.2-1b gpu=t4")
        }
        assert first["method=full"] == "8-bit 优化器"
        assert first["seq=16384 recompute=none"] == "全部重算"
        assert first["seq=16384 model=llama-3.2-1b gpu=t4"] == "logits 分块"
        assert value("finetune-memory", "", "remedies") == []
        assert "多张卡" in run("finetune-memory", "model=llama-3.1-405b").verdict

    def test_verdict_names_the_biggest_block(self):
        assert "最大的一块是训练的状态（128.5 GB）" in run("finetune-memory", "method=full").verdict
        assert value("finetune-memory", "seq=32768 recompute=none", "largest") == "激活"

    @pytest.mark.parametrize(
        ("query", "field"),
        [
            ("r=0", "r"),
            ("method=full r=8", "r"),
            ("base_bits=4", "base_bits"),
            ("method=qlora base_bits=1", "base_bits"),
            ("overhead_gb=-1", "overhead_gb"),
            ("model=gpt2", "model"),
        ],
    )
    def test_refusals(self, query, field):
        assert refusal("finetune-memory", query).errors[0].field == field


class TestOffload:
    def test_model_size_cancels(self):
        """Transfer and step both grow with N: the threshold holds for any model."""
        tokens = value("offload", "", "tokens_to_hide")
        for n in (7e9, 70e9):
            step = 6 * n * tokens / (989e12 * 0.4)
            assert n * 4 / 50e9 == pytest.approx(step)

    def test_a_step_of_8192_tokens(self):
        """Llama-3-8B at 40 % of an H100: 1.0 s, the default of ``step_s``."""
        step = 6 * models()["llama-3-8b"].total_params * 8192 / (989e12 * 0.4)
        assert step == pytest.approx(load("offload").input("step_s").default, rel=0.005)

    @settings(max_examples=50, deadline=None, derandomize=True, database=None)
    @given(st.floats(0.01, 1e4), st.floats(0.1, 1e3), st.floats(1e-3, 1e3))
    def test_hidden_and_exposed_make_the_transfer(self, size, link, step):
        v = run("offload", f"bytes_gb={size!r} pcie_gbs={link!r} step_s={step!r}").values
        assert v["transfer_s"] * v["hidden_pct"] / 100 + v["exposed_s"] == pytest.approx(v["transfer_s"])
        assert 0 < v["hidden_pct"] <= 100

    @pytest.mark.parametrize("query", ["bytes_gb=0", "pcie_gbs=0", "step_s=0", "pcie_gbs=-1", "mfu=0", "bytes_per_param=0.1"])
    def test_refusals(self, query):
        assert refusal("offload", query).errors[0].field == query.split("=")[0]

    def test_peak_is_the_catalogs(self):
        assert value("offload", "gpu=a100-80gb", "tokens_to_hide") == pytest.approx(4 * accelerator("a100-80gb").dense_flops * 0.4 / (6 * 50e9))


class Naive:
    """An allocator written a second time, with plain lists: [segment, offset, size, is used]."""

    def __init__(self, cap=0):
        self.cap, self.blocks, self.count, self.freed = cap, [], 0, 0

    def reserved(self):
        return sum(b[2] for b in self.blocks)

    def malloc(self, size):
        size = -(-size // 512) * 512
        fitting = sorted((b for b in self.blocks if not b[3] and b[2] >= size), key=lambda b: (b[2], b[0], b[1]))
        if not fitting:
            new = 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
            if self.cap and self.reserved() + new > self.cap:
                whole = [b for b in self.blocks if not b[3] and sum(c[0] == b[0] for c in self.blocks) == 1]
                self.freed += len(whole)
                self.blocks = [b for b in self.blocks if b not in whole]
                if self.reserved() + new > self.cap:
                    raise OutOfMemory
            fitting = [[self.count, 0, new, False]]
            self.blocks.append(fitting[0])
            self.count += 1
        block = fitting[0]
        if block[2] - size > MIB:
            self.blocks.append([block[0], block[1] + size, block[2] - size, False])
            block[2] = size
        block[3] = True
        return block

    def free(self, block):
        block[3] = False
        for _ in range(2):
            for other in [b for b in self.blocks if b is not block and b[0] == block[0] and not b[3]]:
                if other[1] + other[2] == block[1] or block[1] + block[2] == other[1]:
                    self.blocks.remove(other)
                    block[1], block[2] = min(block[1], other[1]), block[2] + other[2]


class TestAllocator:
    """c10/cuda/CUDACachingAllocator.cpp, the large pool."""

    @pytest.mark.parametrize(("size", "segment"), [(1, 20), (9 * MIB, 20), (10 * MIB, 10), (10 * MIB + 1, 12), (555_941_888, 532)])
    def test_segment_sizes(self, size, segment):
        assert segment_size(size) == segment * MIB

    def test_remainder_is_split_only_above_one_mebibyte(self):
        allocator = CachingAllocator()
        allocator.free(allocator.malloc(20 * MIB))
        kept = allocator.malloc(19 * MIB)
        assert kept.size == 20 * MIB
        allocator.free(kept)
        assert allocator.malloc(19 * MIB - 512).size == 19 * MIB - 512
        assert allocator.segments_allocated == 1

    def test_best_fit_takes_the_smallest_hole(self):
        allocator = CachingAllocator()
        large, small = allocator.malloc(64 * MIB), allocator.malloc(32 * MIB)
        allocator.free(large)
        allocator.free(small)
        assert allocator.malloc(30 * MIB).segment == small.segment

    def test_neighbours_merge_inside_a_segment_and_never_across(self):
        allocator = CachingAllocator()
        allocator.free(allocator.malloc(64 * MIB))
        parts = [allocator.malloc(16 * MIB) for _ in range(4)]
        assert allocator.segments_allocated == 1
        for block in parts:
            allocator.free(block)
        assert [size for size, _, _ in allocator.free_keys] == [64 * MIB]
        other = allocator.malloc(100 * MIB)
        allocator.free(other)
        assert allocator.malloc(120 * MIB).segment == 2, "64 + 100 MiB lie in two segments"

    def test_a_cap_returns_whole_segments_only(self):
        allocator = CachingAllocator(cap=100 * MIB)
        allocator.free(allocator.malloc(40 * MIB))
        split = allocator.malloc(12 * MIB)
        allocator.free(allocator.malloc(50 * MIB))
        with pytest.raises(OutOfMemory):
            allocator.malloc(80 * MIB)
        assert (allocator.segments_freed, allocator.reserved) == (1, 40 * MIB)
        allocator.free(split)
        allocator.malloc(80 * MIB)
        assert (allocator.segments_freed, allocator.reserved) == (2, 80 * MIB)

    @settings(max_examples=80, deadline=None, derandomize=True, database=None)
    @given(st.lists(st.one_of(st.integers(1, 80 * MIB), st.integers(-20, -1)), max_size=60), st.sampled_from([0, 150 * MIB, 400 * MIB]))
    def test_agrees_with_a_second_implementation(self, script, cap):
        """Positive: allocate so many bytes; negative: free one of the blocks held."""
        mine, naive = CachingAllocator(cap), Naive(cap)
        held: list[tuple[Block, list[object]]] = []
        for item in script:
            if item > 0:
                try:
                    block = mine.malloc(item)
                except OutOfMemory:
                    with pytest.raises(OutOfMemory):
                        naive.malloc(item)
                    continue
                held.append((block, naive.malloc(item)))
                assert (block.segment, block.offset, block.size) == tuple(held[-1][1][:3])
            elif held:
                block, other = held.pop(item % len(held))
                mine.free(block)
                naive.free(other)
            assert mine.reserved == naive.reserved() == sum(end - start for start, end, _ in mine.stretches())
            assert mine.live == sum(rounded_up(b.used, 1) for b, _ in held) <= mine.reserved
            assert (mine.segments_allocated, mine.segments_freed) == (naive.count, naive.freed)

    @settings(max_examples=60, deadline=None, derandomize=True, database=None)
    @given(st.lists(st.one_of(st.integers(1, 80 * MIB), st.integers(-20, -1)), max_size=60))
    def test_expandable_is_one_segment_without_gaps(self, script):
        allocator, held = CachingAllocator(expandable=True), []
        for item in script:
            if item > 0:
                held.append(allocator.malloc(item))
            elif held:
                allocator.free(held.pop(item % len(held)))
            stretches = allocator.stretches()
            assert [s for s, _, _ in stretches[1:]] == [e for _, e, _ in stretches[:-1]]
            assert allocator.reserved == (stretches[-1][1] if stretches else 0)
            assert allocator.live <= allocator.reserved
        for block in held:
            allocator.free(block)
        assert len(allocator.free_keys) <= 1
        assert allocator.segments_allocated <= 1


class TestAllocatorSim:
    @pytest.mark.parametrize("seed", range(12))
    def test_orders_compared(self, seed):
        """Ascending is the worst, descending nearly perfect, whatever the draw."""
        up, drawn, down = (run("allocator-sim", f"order={order} seed={seed}").values for order in ("升序", "随机", "降序"))
        assert up["reserved_peak_gb"] >= drawn["reserved_peak_gb"] >= down["reserved_peak_gb"] >= down["peak_live_gb"]
        assert up["peak_live_gb"] == drawn["peak_live_gb"] == down["peak_live_gb"]
        assert down["reserved_over_live_x"] < 1.01

    @pytest.mark.parametrize("query", ["", "order=升序", "pad_to=512", "cap_gb=24", "expandable=true", "cap_gb=17", "seed=7 cap_gb=20"])
    def test_reserved_is_never_below_live(self, query):
        found = run("allocator-sim", query)
        assert found.values["reserved_peak_gb"] >= found.values["peak_live_gb"]
        film = found.result.trace
        assert all(r >= a for r, a in zip(film.reserved, film.live, strict=True))

    def test_expandable_holds_what_is_in_use(self):
        for seed in range(6):
            v = run("allocator-sim", f"expandable=true seed={seed}").values
            assert v["reserved_peak_gb"] == pytest.approx(v["peak_live_gb"], rel=1e-3)
            assert v["segments_allocated"] == 1

    def test_a_cap_below_what_is_in_use_breaks_it(self):
        found = run("allocator-sim", "cap_gb=17")
        assert found.values["oom"] is True
        assert "OOM" in found.verdict
        assert found.values["reserved_peak_gb"] <= 17
        assert len(found.result.trace.tokens) < 20
        assert run("allocator-sim", "cap_gb=17 order=降序").values["oom"] is True

    def test_oom_tells_what_was_in_use_then(self):
        """Step 12 of seed 0 under 16 GB: 30 blocks of 3784 tokens are in use, not the 15.87 GB of step 1."""
        found = run("allocator-sim", "cap_gb=16")
        assert f"在用 {30 * 3784 * 139_264 / 1e9:.2f} GB" in found.verdict
        assert "不是碎片" in found.verdict

    @pytest.mark.parametrize("query", ["seed=4 cap_gb=17.9", "seed=0 cap_gb=17.8 order=升序", "seed=27 cap_gb=18"])
    def test_an_oom_that_pages_would_cure_says_so(self, query):
        """In use plus the next block is below the cap: what is missing sits in the remainders of segments."""
        assert "expandable_segments" in run("allocator-sim", query).verdict
        assert run("allocator-sim", f"{query} expandable=true").values["oom"] is False

    def test_the_map_shows_what_the_numbers_say(self):
        """The widest row of the map is the reserved peak; a good order leaves no light stretches to speak of."""
        for query in ("", "order=升序", "order=降序", "cap_gb=24"):
            found = run("allocator-sim", query)
            chart = next(c for c in load("allocator-sim").charts(found) if isinstance(c, Timeline))
            film = found.result.trace
            assert [max(s.end for s in chart.spans if s.lane == i) * 1e9 for i in range(20)] == pytest.approx([m[-1][1] for m in film.maps])
            assert max(film.reserved) / 1e9 == pytest.approx(found.values["reserved_peak_gb"])
            assert len(chart.lanes) == 20

    def test_refusals(self):
        assert "至少 1 GB" in refusal("allocator-sim", "cap_gb=0.5").errors[0].message
        assert refusal("allocator-sim", "order=乱序").errors[0].field == "order"
        assert refusal("allocator-sim", "pad_to=100").errors[0].field == "pad_to"
        assert refusal("allocator-sim", "seed=1000").errors[0].field == "seed"

    def test_verdicts(self):
        assert "先跑最长的样本" in run("allocator-sim").verdict
        assert "几乎没有碎片" in run("allocator-sim", "order=降序").verdict
        assert "退了 64 段" in run("allocator-sim", "cap_gb=24").verdict
        assert "19.8%" in run("allocator-sim", "pad_to=1024").verdict
