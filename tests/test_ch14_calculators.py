"""Chapter 14: parallel-plan, plan-search, moe-ep, context-parallel, moe-balance-lab, gpt-run, ppo-memory, rank-map.

Expected values: the chapter's specification unless a row names its source.
"""

from __future__ import annotations

import math
from itertools import product

import pytest
from asking import first_error as refusal
from asking import run, value
from hypothesis import given, settings
from hypothesis import strategies as st

from calculators.catalog import model, models
from calculators.core.charts import BarChart, Grid, LineChart
from calculators.core.index import load
from calculators.formulas.layout import Layout, Machine, bubble_ratio, coordinates, estimate, group, job_of

EXACT = 0.0
SIX = 1e-5
"""Six printed figures."""

ROW_1 = "n_gpus=8192"
ROW_3 = "cp=16 seq=131072 global_batch=128"
LONG = "model=llama-3-70b n_gpus=64 virtual_stages=1 zero_stage=1 global_batch=64 compute_eff=0.65"
TRILLION = "layers=128 hidden=25600 batch=3072 n_gpus=3072 tp=8 pp=64 tflops_per_gpu=163"
M310B = "layers=96 hidden=16384 batch=2160 n_gpus=1920 tp=8 pp=16 tflops_per_gpu=155"


def check(actual, expected, tolerance):
    if isinstance(expected, bool | str) or expected is None:
        assert actual == expected
    else:
        assert actual == pytest.approx(expected, rel=tolerance or 1e-12, abs=1e-12)


# Rows: calculator, inputs that differ from the defaults, output, expected, relative tolerance.
DEFAULTS = [
    ("parallel-plan", "", "dp", 128, EXACT),
    ("parallel-plan", "", "microbatches", 16, EXACT),
    ("parallel-plan", "", "params_per_gpu_b", 3.17073, SIX),
    ("parallel-plan", "", "states_gb", 6.68826, SIX),
    ("parallel-plan", "", "act_gb", 67.1173, SIX),
    ("parallel-plan", "", "total_gb", 73.8055, SIX),
    ("parallel-plan", "", "capacity_gb", 80, EXACT),
    ("parallel-plan", "", "fits", True, EXACT),
    ("parallel-plan", "", "act_coef", 31.75, EXACT),
    ("parallel-plan", "", "compute_ms", 315.918, SIX),
    ("parallel-plan", "", "tp_ms", 41.1042, SIX),
    ("parallel-plan", "", "cp_ms", 0, EXACT),
    ("parallel-plan", "", "bubble_ratio_pct", 11.71875, EXACT),
    ("parallel-plan", "", "dp_comm_s", 0.279641, SIX),
    ("parallel-plan", "", "dp_exposed_s", 0, EXACT),
    ("parallel-plan", "", "step_s", 6.38178, SIX),
    ("parallel-plan", "", "tok_s_per_gpu", 160.457, SIX),
    ("parallel-plan", "", "tflops_per_gpu", 407.013, SIX),
    ("parallel-plan", "", "mfu_pct", 41.154, SIX),
    ("parallel-plan", "", "global_batch_tokens", 16_777_216, EXACT),
    ("plan-search", "", "n_candidates", 76, EXACT),
    ("plan-search", "", "n_legal", 47, EXACT),
    ("plan-search", "", "n_legal_no_recompute", 15, EXACT),
    ("plan-search", "", "rejected_batch", 0, EXACT),
    ("plan-search", "", "rejected_shape", 0, EXACT),
    ("plan-search", "", "rejected_memory", 29, EXACT),
    ("plan-search", "", "best_tp", 8, EXACT),
    ("plan-search", "", "best_pp", 1, EXACT),
    ("plan-search", "", "best_cp", 1, EXACT),
    ("plan-search", "", "best_dp", 8, EXACT),
    ("plan-search", "", "best_zero", 1, EXACT),
    ("plan-search", "", "best_recompute", "none", EXACT),
    ("plan-search", "", "best_step_s", 7.39482, SIX),
    ("plan-search", "", "best_tok_s_per_gpu", 1107.80, SIX),
    ("plan-search", "", "best_mfu_pct", 51.025, SIX),
    ("plan-search", "", "best_total_gb", 70.9871, SIX),
    ("moe-ep", "", "bytes_per_token", 86_016, EXACT),
    ("moe-ep", "", "bytes_unlimited", 150_528, EXACT),
    ("moe-ep", "", "dispatch_unlimited_kib", 56, EXACT),
    ("moe-ep", "", "combine_unlimited_kib", 112, EXACT),
    ("moe-ep", "", "comm_us", 1.72032, EXACT),
    ("moe-ep", "", "compute_us", 1.17932, SIX),
    ("moe-ep", "", "comm_over_compute", 1.45874, SIX),
    ("moe-ep", "", "slowdown_no_overlap", 2.45874, SIX),
    ("moe-ep", "", "experts_same_ib_cost", 13, EXACT),
    ("moe-ep", "", "routed_params_b", 653.909, SIX),
    ("moe-ep", "", "expert_params_per_gpu_b", 0.638583, SIX),
    ("context-parallel", "", "tokens_per_gpu", 8192, EXACT),
    ("context-parallel", "", "kv_layer_mb", 67.1089, SIX),
    ("context-parallel", "", "traffic_layer_mb", 62.9146, SIX),
    ("context-parallel", "", "comm_ms", 1.39810, SIX),
    ("context-parallel", "", "attn_compute_ms", 7.41161, SIX),
    ("context-parallel", "", "hidden", True, EXACT),
    ("context-parallel", "", "imbalance", 1, EXACT),
    ("context-parallel", "", "imbalance_contiguous", 1.9375, EXACT),
    ("context-parallel", "", "efficiency_contiguous_pct", 51.6129, SIX),
    ("context-parallel", "", "attn_share_of_6n_pct", 66.6701, SIX),
    ("moe-balance-lab", "", "idle_experts", 0, EXACT),
    ("gpt-run", "", "params_b", 145.622, SIX),
    ("gpt-run", "", "dp", 24, EXACT),
    ("gpt-run", "", "microbatches", 96, EXACT),
    ("gpt-run", "", "iteration_s", 24.8174, SIX),
    ("gpt-run", "", "days", 18.2621, SIX),
    ("gpt-run", "", "hfu_pct", 47.4359, SIX),
    ("gpt-run", "", "mfu_pct", 35.6144, SIX),
    ("ppo-memory", "", "total_gb", 252, EXACT),
    ("ppo-memory", "", "sft_gb", 112, EXACT),
    ("ppo-memory", "", "ratio_to_sft", 2.25, EXACT),
    ("ppo-memory", "", "bytes_per_actor_param", 36, EXACT),
]

FIGURES = [
    ("parallel-plan", "zero_stage=1", "states_gb", 12.98, 1e-3),
    ("parallel-plan", "zero_stage=1", "total_gb", 80.1, 1e-3),
    ("parallel-plan", "zero_stage=1", "fits", False, EXACT),
    ("parallel-plan", "pp=8", "total_gb", 80.1, 1e-3),
    ("parallel-plan", "pp=8 zero_stage=1", "total_gb", 92.8, 1e-3),
    ("parallel-plan", ROW_1, "microbatches", 32, EXACT),
    ("parallel-plan", ROW_1, "total_gb", 82.0, 1e-3),
    ("parallel-plan", ROW_1, "tflops_per_gpu", 429.5, 2e-4),
    ("parallel-plan", f"{ROW_1} compute_eff=0.5176", "tflops_per_gpu", 430, 2e-4),
    ("parallel-plan", ROW_1, "bubble_ratio_pct", 5.9, 1e-2),
    ("parallel-plan", ROW_3, "tflops_per_gpu", 408, 1e-3),
    ("parallel-plan", ROW_3, "global_batch_tokens", 16_777_216, EXACT),
    # 70B on 64 cards: the fastest that fits is not the fastest
    ("parallel-plan", f"{LONG} tp=8 pp=1", "mfu_pct", 51, 1e-2),
    ("parallel-plan", f"{LONG} tp=8 pp=1", "states_gb", 49, 2e-2),
    ("parallel-plan", f"{LONG} tp=8 pp=1", "act_gb", 22, 3e-2),
    ("parallel-plan", f"{LONG} tp=4 pp=2", "mfu_pct", 52, 1e-2),
    ("parallel-plan", f"{LONG} tp=4 pp=2", "states_gb", 49, 2e-2),
    ("parallel-plan", f"{LONG} tp=4 pp=2", "act_gb", 45, 1e-2),
    ("parallel-plan", f"{LONG} tp=4 pp=1", "mfu_pct", 59, 1e-2),
    ("parallel-plan", f"{LONG} tp=4 pp=1", "states_gb", 84, 1e-2),
    ("parallel-plan", f"{LONG} tp=2 pp=1", "act_gb", 90, 1e-2),
    ("parallel-plan", f"{LONG} tp=1 pp=1", "act_gb", 180, 1e-2),
    ("parallel-plan", f"{LONG} tp=8 pp=4", "mfu_pct", 47, 1e-2),
    ("parallel-plan", f"{LONG} tp=8 pp=4", "states_gb", 22, 1e-2),
    ("plan-search", "max_cp=16", "n_candidates", 264, EXACT),
    ("plan-search", "max_cp=16", "n_legal", 176, EXACT),
    ("plan-search", "max_cp=16", "best_tp", 2, EXACT),
    ("plan-search", "max_cp=16", "best_cp", 4, EXACT),
    ("plan-search", "max_cp=16", "best_pp", 4, EXACT),
    ("plan-search", "max_cp=16", "best_dp", 2, EXACT),
    ("plan-search", "max_cp=16", "best_step_s", 6.91, 1e-3),
    ("moe-ep", "peak=989", "comm_over_compute", 0.73, 5e-3),
    ("context-parallel", "method=ulysses", "traffic_layer_mb", 125.8, 1e-3),
    ("context-parallel", "method=ulysses", "hidden", False, EXACT),
    ("context-parallel", "method=ulysses balanced=false", "imbalance", 1, EXACT),
    ("context-parallel", "balanced=false", "imbalance", 1.9375, EXACT),
    ("gpt-run", TRILLION, "dp", 6, EXACT),
    ("gpt-run", TRILLION, "microbatches", 512, EXACT),
    ("gpt-run", TRILLION, "hfu_pct", 52.2, 1e-3),
    ("gpt-run", TRILLION, "mfu_pct", 39.2, 1e-3),
    ("gpt-run", M310B, "dp", 15, EXACT),  # Narayanan et al. 2021, Table 1
    ("gpt-run", M310B, "microbatches", 144, EXACT),
    ("gpt-run", M310B, "iteration_s", 37.6, 1e-2),  # the same, by eq. 3
    ("ppo-memory", "train_bytes=12", "ratio_to_sft", 2.33, 2e-3),
]


@pytest.mark.parametrize(("id", "query", "output", "expected", "tolerance"), DEFAULTS + FIGURES)
def test_values(id, query, output, expected, tolerance):
    check(value(id, query, output), expected, tolerance)


class TestParallelPlan:
    """Llama 3 report, Table 4: calibrated on the first row alone."""

    def test_predicts_the_other_rows(self):
        assert value("parallel-plan", "", "tflops_per_gpu") == pytest.approx(400, rel=0.05)
        assert value("parallel-plan", ROW_3, "tflops_per_gpu") == pytest.approx(380, rel=0.10)
        assert value("parallel-plan", "", "tflops_per_gpu") / 400 - 1 == pytest.approx(0.018, abs=5e-4)
        assert value("parallel-plan", ROW_3, "tflops_per_gpu") / 380 - 1 == pytest.approx(0.074, abs=5e-4)

    def test_mfu_is_tflops_over_the_dense_peak(self):
        for query, printed in ((ROW_1, 43), ("", 41)):
            assert value("parallel-plan", query, "mfu_pct") == pytest.approx(printed, abs=1)

    def test_degrees_multiply_to_the_cards(self):
        assert 8 * 1 * 16 * 128 == 8 * 16 * 16 * 8 == 16_384
        assert value("parallel-plan", ROW_3, "dp") == 8

    @pytest.mark.parametrize("stage", range(4))
    def test_states_by_zero_stage(self, stage):
        """Rajbhandari et al. 2020 §3 on N/(tp·pp) parameters and dp·cp ranks; stage 3 also gathers two layers."""
        m = model("llama-3.1-405b")
        here, n = m.total_params / 128, 128
        layer = (m.breakdown["attention"] + m.breakdown["dense_ffn"]) / m.layers
        expected = [16 * here, (4 + 12 / n) * here, (2 + 14 / n) * here, 16 * here / n + 6 * layer / 8][stage]
        assert value("parallel-plan", f"zero_stage={stage}", "states_gb") == pytest.approx(expected / 1e9)

    def test_cp_shares_the_states_too(self):
        wide, deep = value("parallel-plan", "", "states_gb"), value("parallel-plan", "cp=2 global_batch=1024", "states_gb")
        assert wide == pytest.approx(deep)

    @pytest.mark.parametrize(("p", "m", "v"), [(8, 32, 1), (16, 16, 8), (16, 32, 8), (4, 64, 2)])
    def test_bubble_is_that_of_chapter_13(self, p, m, v):
        schedule = f"schedule=interleaved virtual_stages={v}" if v > 1 else ""
        expected = value("pp-bubble", f"pp={p} microbatches={m} {schedule}", "bubble_ratio_pct")
        assert 100 * bubble_ratio(float(p), float(v), float(m)) == pytest.approx(expected)

    @pytest.mark.parametrize(("p", "m", "v"), [(8, 32, 1), (8, 4, 1), (8, 32, 4), (16, 16, 8)])
    def test_activations_in_flight_are_those_of_chapter_13(self, p, m, v):
        schedule = f"schedule=interleaved v={v}" if v > 1 else ""
        layers = p * v * 2
        held = value("pp-memory", f"pp={p} m={m} layers={layers} {schedule}", "in_flight")
        query = f"model=llama-3-70b seq=8192 tp=8 pp={p} virtual_stages={v} n_gpus={8 * p} global_batch={m}"
        per_token_layer = 8 * 8192 + 4 * 8192 + 4 * 1024 + 6 * 28672
        expected = 8192 * per_token_layer / 8 * 80 / p * held
        assert value("parallel-plan", query, "act_gb") == pytest.approx(expected / 1e9)

    @pytest.mark.parametrize("tp", [2, 4, 8])
    def test_tp_is_that_of_chapter_12(self, tp):
        comm = value("tp-comm", f"model=llama-3-70b tp={tp}", "comm_per_layer_ms")
        query = f"model=llama-3-70b tp={tp} pp=1 n_gpus={tp} global_batch=8 virtual_stages=1"
        assert value("parallel-plan", query, "tp_ms") == pytest.approx(80 * comm)
        assert value("parallel-plan", f"{query} recompute=full", "tp_ms") == pytest.approx(1.5 * 80 * comm)

    def test_cp_is_that_of_context_parallel(self):
        one = value("context-parallel", "", "comm_ms")
        assert value("parallel-plan", ROW_3, "cp_ms") == pytest.approx(2 * 126 / 16 * one)
        assert value("parallel-plan", f"{ROW_3} recompute=full", "cp_ms") == pytest.approx(3 * 126 / 16 * one)

    def test_full_recompute_repeats_the_layers_alone(self):
        m = model("llama-3.1-405b")
        plain, again = (value("parallel-plan", query, "compute_ms") for query in ("", "recompute=full"))
        head = 6 * 8192 * m.vocab * m.hidden / 16 / (8 * 989e12 * 0.517) * 1e3
        assert again == pytest.approx((plain - head) * 4 / 3 + head)
        assert value("parallel-plan", "recompute=full", "act_coef") == 2

    def test_zero_3_gathers_twice_a_micro_batch(self):
        assert value("parallel-plan", "zero_stage=3", "dp_comm_s") / value("parallel-plan", "", "dp_comm_s") == pytest.approx((2 * 16 + 1) / 2)

    def test_dp_hides_behind_half_the_backward(self):
        """8B on 8 cards with one short sequence each: two thirds of a third of the computation is not enough."""
        query = "model=llama-3-8b n_gpus=8 tp=1 pp=1 virtual_stages=1 global_batch=8 seq=1024"
        r = run("parallel-plan", query).values
        assert r["dp_exposed_s"] == pytest.approx(r["dp_comm_s"] - r["compute_ms"] / 3e3)
        assert r["step_s"] == pytest.approx(r["compute_ms"] / 1e3 + r["dp_exposed_s"])

    def test_tp_beyond_the_node_takes_the_slow_link(self):
        query = "model=llama-3-70b n_gpus=64 tp=16 pp=1 global_batch=64 virtual_stages=1"
        assert value("parallel-plan", f"{query} gpus_per_node=72", "tp_ms") * 8 == pytest.approx(value("parallel-plan", query, "tp_ms"))
        assert any("16 超出一台 8 张卡" in note for note in run("parallel-plan", query).notes)

    def test_an_ungated_feed_forward_keeps_four_copies(self):
        """Korthikanti et al. 2022: GELU keeps its input, the second matrix keeps its own; no gate."""
        query = "model=gpt-3-175b seq=2048 tp=8 pp=8 virtual_stages=1 n_gpus=64 global_batch=8"
        assert value("parallel-plan", query, "act_coef") == pytest.approx(8 + 4 + 4 + 4 * 4)

    @pytest.mark.parametrize(("query", "field", "message"), [
        ("model=deepseek-v3", "model", "MoE 请用 moe-ep 单独算"),
        ("tp=6", "n_gpus", "16384 不能被 tp·cp·pp=96 整除"),
        ("global_batch=1000", "global_batch", "每个 DP 组分不到整数个微批"),
        ("n_gpus=16320 tp=6", "tp", "128 个注意力头不能被 6 整除"),
        ("n_gpus=8192 global_batch=1600 tp=8 pp=16 virtual_stages=2", "virtual_stages", "交错调度要求微批数是流水段数的整数倍"),
        ("pp=128 n_gpus=16384 virtual_stages=1", "pp", "流水段数 pp 不能超过层数"),
        ("cp=16 seq=1000 global_batch=128", "cp", "序列长度必须能被 2·cp 整除"),
    ])  # fmt: skip
    def test_refusals(self, query, field, message):
        error = refusal("parallel-plan", query)
        assert error.field == field
        assert message in error.message

    def test_notes(self):
        assert any("126 层分 16 × 8 块，有 2 块没有层" in note for note in run("parallel-plan").notes)
        assert any("126 层分 16 段，有 2 段少一层" in note for note in run("parallel-plan", "virtual_stages=1").notes)
        assert any("碎片" in note for note in run("parallel-plan", "seq=8704").notes)

    def test_zero_2_says_what_it_counts_once(self):
        """17 passes of 2·N/128 bytes at 45 GB/s against half of the backward pass; whole gradients are ZeRO-1's 12.98 − 6.69 GB."""
        here = models()["llama-3.1-405b"].total_params / 128
        slower = 17 * 127 / 128 * 2 * here / 45e9 - 16 * value("parallel-plan", "", "compute_ms") / 3e3
        note = next(note for note in run("parallel-plan").notes if "ZeRO-2" in note)
        for said in ("17 遍", f"再慢 {slower:.3g} 秒", "再加 6.29 GB"):
            assert said in note
        whole = value("parallel-plan", "zero_stage=1", "states_gb") - value("parallel-plan", "", "states_gb")
        assert whole == pytest.approx(6.29, abs=5e-3)

    @pytest.mark.parametrize("query", ["zero_stage=1", "zero_stage=3", "n_gpus=128 global_batch=1 virtual_stages=1", "virtual_stages=1 global_batch=128"])
    def test_zero_2_says_nothing_where_it_costs_nothing(self, query):
        assert not any("ZeRO-2" in note for note in run("parallel-plan", query).notes)

    def test_advice_when_it_does_not_fit_is_tried_out(self):
        said = run("parallel-plan", "zero_stage=1").verdict
        assert "换 ZeRO-2：73.81 GB" in said
        assert value("parallel-plan", "zero_stage=2", "total_gb") == pytest.approx(73.81, abs=5e-3)
        assert "开全部重算：17.26 GB" in run("parallel-plan", "pp=8").verdict
        assert value("parallel-plan", "pp=8 recompute=full", "total_gb") == pytest.approx(17.26, abs=5e-3)

    def test_advice_is_never_what_is_on_already(self):
        said = run("parallel-plan", f"{LONG} tp=1 pp=1 recompute=full").verdict
        assert "装不下" in said
        assert "开全部重算" not in said
        assert "换 ZeRO-1" not in said

    def test_charts(self):
        run_ = run("parallel-plan")
        step, memory = load("parallel-plan").charts(run_)
        assert isinstance(step, BarChart)
        assert sum(p.value for p in step.bars[0].parts) == pytest.approx(run_.values["step_s"])
        now = next(bar for bar in memory.bars if bar.emphasis)
        assert sum(p.value for p in now.parts) == pytest.approx(run_.values["total_gb"])


def brute_force(m, n_gpus, seq, batch, capacity, margin, eff, recomputes, max_tp, max_cp, intra=360e9, inter=45e9, peak=989e12):
    """The specification's formulas, written out again in one place."""
    N, L, h, a, kv, d, f = m.total_params, m.layers, m.hidden, m.heads, m.kv_heads, m.head_dim, m.ffn
    P, head = (m.breakdown["attention"] + m.breakdown["dense_ffn"]) / L, m.vocab * m.hidden
    counts, legal = {"batch": 0, "shape": 0, "memory": 0}, []
    for tp, cp, pp, zero, full in product((1, 2, 4, 8), (1, 2, 4, 8, 16), range(1, L + 1), (1, 3), recomputes):
        if tp > max_tp or cp > max_cp or (cp > 1 and seq % (2 * cp)) or n_gpus % (tp * cp * pp) or math.ceil(L / pp) * pp - L > 2:
            continue
        dp = n_gpus // (tp * cp * pp)
        if batch % dp:
            counts["batch"] += 1
            continue
        if a % tp or f % tp or (kv % tp and tp % kv):
            counts["shape"] += 1
            continue
        mb, nd, here = batch // dp, dp * cp, N / (tp * pp)
        states = (4 + 12 / nd) * here if zero == 1 else 16 * here / nd + 6 * P / tp
        coef = 2 if full else 8 + 4 * a * d / h + 4 * kv * d / h + 6 * f / h
        act = coef * (seq / cp) * h / tp * (L / pp) * min(mb, pp)
        of_layers, of_head = (2 * (seq / cp) * P + 4 * (seq / cp) * seq * a * d / 2) * L / pp, 2 * (seq / cp) * head / pp
        F = of_layers + of_head
        compute = (3 * F + (of_layers if full else 0)) / (tp * peak * eff)
        t_tp = (6 if full else 4) * (L / pp) * 2 * (tp - 1) / tp * 2 * (seq / cp) * h / intra
        t_cp = (3 if full else 2) * (L / pp) * 4 * kv * d * seq / min(tp, kv) * (cp - 1) / cp / inter
        comm = (2 * mb + 1 if zero == 3 else 2) * (nd - 1) / nd * 2 * here / inter
        window = mb * compute / 2 if zero == 3 else mb * F / (tp * peak * eff)
        step = mb * (compute + t_tp + t_cp) * (1 + (pp - 1) / mb) + max(0, comm - window)
        if states + act + margin > capacity:
            counts["memory"] += 1
        else:
            legal.append((step, states + act, (tp, pp, cp, dp, zero, "full" if full else "none")))
    return counts, sorted(legal)


class TestPlanSearch:
    @pytest.mark.parametrize(("id", "query"), [
        ("llama-3-70b", {}),
        ("llama-3-70b", {"max_cp": 16}),
        ("llama-3-70b", {"allow_recompute": "false"}),
        ("llama-3-8b", {"n_gpus": 8, "global_batch": 24}),
        ("llama-3.1-405b", {"n_gpus": 1024, "global_batch": 512, "max_cp": 4}),
        ("llama-3.1-405b", {"n_gpus": 16384, "global_batch": 2048, "max_cp": 16, "seq": 131072}),
        ("qwen2.5-7b", {"n_gpus": 96, "global_batch": 240, "seq": 4096}),
        ("qwen2.5-32b", {"n_gpus": 60, "global_batch": 120, "max_tp": 4}),
        ("llama-2-13b", {"n_gpus": 48, "global_batch": 100, "capacity": 40, "margin": 2}),
    ])  # fmt: skip
    def test_equals_a_brute_force_search(self, id, query):
        r = run("plan-search", " ".join([f"model={id}", *(f"{k}={v}" for k, v in query.items())])).values
        recomputes = (False,) if query.get("allow_recompute") == "false" else (False, True)
        counts, legal = brute_force(
            model(id), query.get("n_gpus", 64), query.get("seq", 8192), query.get("global_batch", 64), query.get("capacity", 80) * 1e9,
            query.get("margin", 8) * 1e9, 0.65, recomputes, query.get("max_tp", 8), query.get("max_cp", 1),
        )  # fmt: skip
        assert r["n_legal"] == len(legal)
        assert r["n_candidates"] == len(legal) + sum(counts.values())
        assert (r["rejected_batch"], r["rejected_shape"], r["rejected_memory"]) == tuple(counts.values())
        assert r["n_legal_no_recompute"] == sum(plan[5] == "none" for _, _, plan in legal)
        assert [row["step_s"] for row in r["top"]] == pytest.approx([step for step, _, _ in legal[:10]])
        first = r["top"][0]
        assert tuple(first[k] for k in ("tp", "pp", "cp", "dp", "zero", "recompute")) == legal[0][2]
        assert r["best_total_gb"] == pytest.approx(legal[0][1] / 1e9)

    def test_second_best(self):
        second = run("plan-search").values["top"][1]
        assert (second["tp"], second["pp"], second["dp"]) == (4, 8, 2)
        assert second["step_s"] == pytest.approx(7.85, rel=1e-3)

    def test_every_rejected_plan_says_why(self):
        r = run("plan-search").values
        assert len(r["rejected"]) == 29
        assert all(row["why"] for row in r["rejected"])
        plain = next(row for row in r["rejected"] if row["plan"] == "TP1·DP64，ZeRO-3")
        assert "激活 180 GB 最大" in plain["why"]
        uneven = run("plan-search", "n_gpus=96 global_batch=64").values["rejected"]
        assert any("batch 64 不能被 dp 96 整除" in row["why"] for row in uneven)
        assert any("头不能被" in row["why"] for row in run("plan-search", "model=qwen2.5-7b n_gpus=64").values["rejected"])

    def test_same_numbers_as_parallel_plan(self):
        best = run("plan-search").values
        plan = run("parallel-plan", f"{LONG} tp=8 pp=1").values
        assert best["best_step_s"] == pytest.approx(plan["step_s"], rel=1e-12)
        assert best["best_total_gb"] == pytest.approx(plan["total_gb"], rel=1e-12)
        assert best["best_mfu_pct"] == pytest.approx(plan["mfu_pct"], rel=1e-12)

    def test_nothing_fits(self):
        error = refusal("plan-search", "model=llama-3.1-405b n_gpus=8 global_batch=8")
        assert "没有装得下的方案：加卡或缩短序列" in error.message
        assert "也要" in error.message
        assert "开重算" in refusal("plan-search", "model=llama-3.1-405b n_gpus=8 global_batch=8 allow_recompute=false").message
        assert "分匀" in refusal("plan-search", "n_gpus=61 global_batch=64").message
        assert "MoE 请用 moe-ep" in refusal("plan-search", "model=deepseek-v3").message

    def test_charts(self):
        r = run("plan-search")
        where, best = load("plan-search").charts(r)
        assert isinstance(where, Grid)
        assert where.rows == ("TP1", "TP2", "TP4", "TP8")
        assert where.texts[3][0] == "7.39"
        assert isinstance(best, BarChart)
        assert sum(p.value for p in best.bars[0].parts) == pytest.approx(r.values["best_step_s"])


class TestMoeEp:
    def test_a_preset_fills_the_layer(self):
        r = run("moe-ep", "model=qwen3-235b-a22b")
        taken = {name: r.resolved[name] for name in ("h", "moe_ffn", "top_k", "n_shared", "n_experts", "layers_moe")}
        assert taken == {"h": 4096, "moe_ffn": 1536, "top_k": 8, "n_shared": 0, "n_experts": 128, "layers_moe": 94}
        assert load("moe-ep").run().resolved["attn_flops"] == 374_210_560

    def test_attention_is_two_flop_a_parameter(self):
        """The specification prints 285 212 672 for Qwen3; 2 × (q 4096·8192 + k, v 2·4096·512 + o 8192·4096) is half of that."""
        projections = 2 * (2 * 4096 * 64 * 128 + 2 * 4096 * 4 * 128)
        assert projections == 142_606_336
        assert run("moe-ep", "model=qwen3-235b-a22b").resolved["attn_flops"] == projections

    def test_typed_values_win(self):
        assert value("moe-ep", "top_k=4 node_limit=0", "bytes_unlimited") == 150_528 / 2
        assert value("moe-ep", "model=custom h=4096", "bytes_per_token") == 4 * 4096 * 3

    def test_fp8_both_ways_halves_the_return(self):
        assert value("moe-ep", "combine_bytes=1", "bytes_per_token") == 4 * 7168 * 2
        assert value("moe-ep", "dispatch_bytes=2", "bytes_per_token") == 4 * 7168 * 4

    def test_inside_one_server_nothing_leaves(self):
        assert value("moe-ep", "ep=8", "comm_us") == 0
        assert value("moe-ep", "ep=8 node_limit=0", "comm_us") == 0
        assert "不走网卡" in run("moe-ep", "ep=8").verdict

    def test_a_limit_above_the_nodes_is_the_number_of_nodes(self):
        assert value("moe-ep", "node_limit=16", "bytes_per_token") == 8 * 7168 * 3
        assert any("等于没限" in note for note in run("moe-ep", "node_limit=16").notes)

    @pytest.mark.parametrize(("query", "field"), [("ep=48", "ep"), ("top_k=300", "top_k"), ("model=llama-3-8b", "model")])
    def test_refusals(self, query, field):
        assert refusal("moe-ep", query).field == field

    def test_a_dense_model_has_no_experts(self):
        assert "专家数不能被 EP 整除" in refusal("moe-ep", "ep=48").message

    def test_routed_parameters_are_the_catalogs(self):
        for id, m in models().items():
            if m.moe is not None and id not in ("gpt-oss-20b", "gpt-oss-120b"):  # those have biases
                ep = m.moe.experts
                assert value("moe-ep", f"model={id} ep={ep}", "routed_params_b") * 1e9 == pytest.approx(m.moe.routed_params)


class TestContextParallel:
    @settings(max_examples=25, deadline=None, derandomize=True, database=None)
    @given(st.integers(1, 12))
    def test_imbalance_by_counting_the_mask(self, c):
        """Causal pairs of 2c blocks, counted: query block i sees i whole key blocks and half of its own."""
        work = [i + 0.5 for i in range(2 * c)]
        contiguous = [work[2 * r] + work[2 * r + 1] for r in range(c)]
        paired = [work[r] + work[2 * c - 1 - r] for r in range(c)]
        mean = sum(work) / c
        assert max(contiguous) / mean == pytest.approx((2 * c - 1) / c)
        assert max(paired) == pytest.approx(mean) == pytest.approx(min(paired))

    def test_kv_heads_are_copied_below_one_a_card(self):
        whole = value("context-parallel", "model=llama-3-70b tp=8", "kv_layer_mb")
        assert value("context-parallel", "model=llama-3-70b tp=16", "kv_layer_mb") == whole
        assert value("context-parallel", "model=llama-3-70b tp=4", "kv_layer_mb") == 2 * whole

    def test_ring_receives_what_allgather_receives(self):
        for output in ("traffic_layer_mb", "comm_ms", "hidden"):
            assert value("context-parallel", "method=ring", output) == value("context-parallel", "", output)

    def test_short_sequences_do_not_hide(self):
        assert value("context-parallel", "seq=4096", "hidden") is False
        assert "藏不住" in run("context-parallel", "seq=4096").verdict

    def test_allgather_is_exposed_ring_is_not(self):
        """Llama 3 report §3.3.2: gathered first, exposed, but small: 1.398 of 7.412 ms."""
        assert "先收齐再算要露出来，是注意力的 19%" in run("context-parallel").verdict
        assert "露出来" not in run("context-parallel", "method=ring").verdict

    def test_attention_share_does_not_depend_on_cp(self):
        assert value("context-parallel", "cp=4", "attn_share_of_6n_pct") == pytest.approx(value("context-parallel", "", "attn_share_of_6n_pct"))

    def test_causal_convention_changes_mfu_by_forty_percent(self):
        """1 + 2·0.667 over 1 + 0.667: counting the whole mask at 128K."""
        share = value("context-parallel", "", "attn_share_of_6n_pct") / 100
        assert (1 + 2 * share) / (1 + share) == pytest.approx(1.40, abs=5e-3)

    @pytest.mark.parametrize(("query", "field", "message"), [
        ("method=ulysses cp=32", "cp", "Ulysses 的并行度不能超过每卡头数"),
        ("method=ulysses cp=3 seq=131070", "cp", "分匀"),
        ("seq=131000", "seq", "2·cp 整除"),
        ("seq=131000 balanced=false", "seq", "cp 整除"),
        ("model=deepseek-v3", "model", "按头分"),
        ("tp=5", "tp", "KV 头"),
    ])  # fmt: skip
    def test_refusals(self, query, field, message):
        error = refusal("context-parallel", query)
        assert error.field == field
        assert message in error.message

    def test_charts(self):
        c = load("context-parallel")
        assert [type(x) for x in c.charts(c.run())] == [BarChart, LineChart, Grid]
        assert [type(x) for x in c.charts(c.run({"cp": "32"}))] == [BarChart, LineChart]
        grid = c.charts(c.run({"cp": "2", "seq": "4096"}))[2]
        assert grid.rows == ("卡 0", "卡 1", "卡 1", "卡 0")


class TestMoeBalance:
    """Bands over 30 seeds: the specification's."""

    @pytest.mark.parametrize("seed", range(6))
    def test_uniform(self, seed):
        r = run("moe-balance-lab", f"seed={seed}").values
        assert 1.17 <= r["max_over_mean_expert"] <= 1.40
        assert 1.06 <= r["max_over_mean_gpu"] <= 1.16
        assert 3.0 <= r["drop_pct"] <= 4.0

    @pytest.mark.parametrize("seed", range(3))
    def test_few_tokens_and_a_skewed_router(self, seed):
        assert 1.56 <= value("moe-balance-lab", f"tokens=512 seed={seed}", "max_over_mean_expert") <= 2.25
        assert 10.0 <= value("moe-balance-lab", f"alpha=0.6 seed={seed}", "max_over_mean_expert") <= 10.7

    def test_seed_0(self):
        assert value("moe-balance-lab", "", "max_over_mean_expert") == pytest.approx(1.273, abs=5e-4)
        assert value("moe-balance-lab", "", "max_over_mean_gpu") == pytest.approx(1.109, abs=5e-4)
        assert value("moe-balance-lab", "", "drop_pct") == pytest.approx(3.69, abs=5e-3)
        assert value("moe-balance-lab", "capacity_factor=1.25", "drop_pct") == pytest.approx(0.02, abs=5e-3)
        assert value("moe-balance-lab", "alpha=0.6", "drop_pct") == pytest.approx(28.0, abs=0.05)
        assert value("moe-balance-lab", "tokens=512", "max_over_mean_expert") == pytest.approx(1.688, abs=5e-4)

    def test_every_token_goes_to_different_experts(self):
        """top_k = experts: everyone gets every token."""
        r = run("moe-balance-lab", "experts=8 top_k=8 gpus=8 alpha=1").values
        assert r["max_over_mean_expert"] == 1
        assert r["drop_pct"] == 0

    def test_popularity_is_a_power_law(self):
        """With top_k = 1 the share of expert i is i^−α ÷ Σ."""
        r = run("moe-balance-lab", "tokens=8192 experts=8 top_k=1 gpus=8 alpha=1")
        expected = 8 / sum(1 / i for i in range(1, 9))
        assert r.values["max_over_mean_expert"] == pytest.approx(expected, rel=0.05)

    def test_biases_flatten_a_skewed_router(self):
        before, after = (value("moe-balance-lab", f"alpha=0.6 bias_steps={n}", "max_over_mean_expert") for n in (0, 30))
        assert before > 10
        assert after < 2

    def test_padding_and_drop_balance(self):
        r = run("moe-balance-lab", "capacity_factor=1.25").values
        assert r["capacity"] == 160
        assert (1 - r["drop_pct"] / 100) * r["mean_load"] == pytest.approx((1 - r["padding_pct"] / 100) * r["capacity"])

    def test_refusals(self):
        assert refusal("moe-balance-lab", "gpus=48").field == "gpus"
        assert refusal("moe-balance-lab", "experts=8 top_k=16 gpus=8").field == "top_k"


class TestGptRun:
    @pytest.mark.parametrize(("layers", "hidden", "billions"), [
        (24, 2304, 1.7), (30, 3072, 3.6), (36, 4096, 7.5), (40, 6144, 18.4), (48, 8192, 39.1), (60, 10240, 76.1),
        (80, 12288, 145.6), (96, 16384, 310.1), (105, 20480, 529.6), (128, 25600, 1008.0),
    ])  # fmt: skip
    def test_parameters_of_table_1(self, layers, hidden, billions):
        """Narayanan et al. 2021, Table 1 (from memory) and eq. 2."""
        assert value("gpt-run", f"layers={layers} hidden={hidden}", "params_b") == pytest.approx(billions, abs=0.06)

    def test_hardware_and_model_flops_differ_by_the_repetition(self):
        r = run("gpt-run").values
        assert 0.72 < r["mfu_pct"] / r["hfu_pct"] < 0.76

    @pytest.mark.parametrize(("query", "field"), [("n_gpus=100", "n_gpus"), ("batch=100", "batch"), ("tflops_per_gpu=400", "tflops_per_gpu")])
    def test_refusals(self, query, field):
        assert refusal("gpt-run", query).field == field


class TestPpo:
    def test_grpo_has_no_critic(self):
        assert value("ppo-memory", "critic_params=0", "ratio_to_sft") == 1.25
        assert value("ppo-memory", "critic_params=0 ref_params=0 reward_params=0", "ratio_to_sft") == 1
        assert refusal("ppo-memory", "actor_params=0").field == "actor_params"


class TestRankMap:
    def test_formula(self):
        """Llama 3 report §3.3.2: [TP, CP, PP, DP], the innermost first."""
        sizes = (8, 2, 4, 3)
        for rank in range(8 * 2 * 4 * 3):
            t, c, p, d = coordinates(rank, sizes)
            assert t + 8 * (c + 2 * (p + 4 * d)) == rank

    def test_groups_cut_the_ranks(self):
        sizes = (4, 1, 2, 3)
        for which in range(4):
            groups = {tuple(group(rank, sizes, which)) for rank in range(24)}
            assert sorted(r for g in groups for r in g) == list(range(24))
            assert all(len(g) == sizes[which] for g in groups)

    def test_traffic_is_that_of_parallel_plan(self):
        rows = {row["kind"]: row for row in run("rank-map").values["traffic"]}
        plan = run("parallel-plan", f"{LONG} tp=8 pp=4").values
        assert rows["TP"]["seconds"] == pytest.approx(plan["microbatches"] * plan["tp_ms"] / 1e3)
        assert rows["DP"]["seconds"] == pytest.approx(plan["dp_comm_s"])
        assert rows["PP"]["gb"] == pytest.approx(2 * 32 * value("pp-balance", "model=llama-3-70b", "p2p_mb") / 1e3)

    def test_turned_around_tp_leaves_the_server(self):
        usual, turned = run("rank-map").values, run("rank-map", "order=dp-pp-cp-tp").values
        assert turned["llama3_order_s"] == pytest.approx(usual["seconds"])
        assert turned["seconds"] > 5 * usual["seconds"]
        assert {row["kind"]: row["nodes"] for row in turned["traffic"]}["TP"] == 8

    def test_refusals(self):
        assert refusal("rank-map", "n_gpus=60").field == "n_gpus"
        assert refusal("rank-map", "rank=64").field == "rank"
        assert refusal("rank-map", "global_batch=63").field == "global_batch"


@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(
    st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4, 8, 16]), st.sampled_from([1, 2, 8]),
    st.sampled_from([0, 1, 2, 3]), st.booleans(),
)  # fmt: skip
def test_invariants_of_an_estimate(tp, cp, pp, dp, zero, recompute):
    """More sharding never holds more states, recomputing never keeps more and never computes less, the parts make the step."""
    job, machine = job_of(model("llama-3-70b"), 8192, 64), Machine(989e12, 0.6, 360e9, 45e9, 8)
    e = estimate(job, Layout(tp, cp, pp, dp, zero, recompute), machine)
    assert sum(e.seconds_of_step().values()) == pytest.approx(e.step)
    assert e.total == pytest.approx(e.states + e.activations)
    other = estimate(job, Layout(tp, cp, pp, dp, zero, not recompute), machine)
    less, more = (e, other) if recompute else (other, e)
    assert less.activations < more.activations
    assert less.compute > more.compute
    if 0 < zero < 3:
        assert e.states <= estimate(job, Layout(tp, cp, pp, dp, zero - 1, recompute), machine).states
