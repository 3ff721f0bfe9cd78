"""Chapter 04: roofline, mfu, train-time, mfu-waterfall.  Expected values: the chapter's specification unless a row names its source."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from asking import refusal, run, value

from calculators.catalog import accelerator, accelerators, model
from calculators.catalog.references import references
from calculators.catalog.runs import training_runs
from calculators.core.index import load
from calculators.formulas.mfu import attention_core, flops_per_token
from calculators.formulas.roofline import crossover_rows, gemm_elements, gemm_flops, reaches_ridge

DATA = json.loads((Path(__file__).parent / "data" / "ch04_reference_values.json").read_text(encoding="utf-8"))
LLAMA_8B = "N=8030261248 L=32 heads=32 head_dim=128 seq=8192"
EXACT = 1e-12


# Rows: calculator, inputs that differ from the defaults, output, expected, relative tolerance.
DEFAULTS = [
    ("roofline", "", "gflop", 137.439, 1e-5),
    ("roofline", "", "traffic_mb", 100.663, 1e-5),
    ("roofline", "", "ai", 1365.33, 1e-5),
    ("roofline", "", "ridge", 295.22, 1e-4),
    ("roofline", "", "attainable_tflops", 989, EXACT),
    ("roofline", "", "share_of_peak_pct", 100, EXACT),
    ("roofline", "", "time_us", 138.97, 1e-4),
    ("roofline", "", "compute_bound", True, EXACT),
    ("roofline", "", "crossover_batch", 345, EXACT),
    ("mfu", "", "gflop_per_token", 3277.73, 1e-5),
    ("mfu", "", "mfu_pct", 46.23, 1e-4),
    ("mfu", "", "hfu_pct", 46.23, 1e-4),
    ("mfu", "", "tflops_per_gpu", 127.13, 1e-4),
    ("mfu", "", "attn_over_6n_pct", 1.099, 1e-3),
    ("mfu", "", "attn_share_pct", 1.087, 1e-3),
    ("train-time", "", "flops", 7.22724e23, 1e-5),
    ("train-time", "", "gpu_hours_ideal", 507_474, 1e-5),
    ("train-time", "", "gpu_hours", 534_183, 1e-5),
    ("train-time", "", "days_ideal", 20.65, 1e-3),
    ("train-time", "", "days", 21.74, 1e-3),
    ("train-time", "", "cost_wan", 1068.4, 1e-3),
    ("train-time", "", "implied_mfu_pct", None, EXACT),
    ("mfu-waterfall", "", "mfu_pct", 58.65, 1e-3),
    ("mfu-waterfall", "", "steps_pct", [80, 76, 69.16, 64.32, 60.46, 58.65], 1e-3),
    ("mfu-waterfall", "", "largest_loss", "f_clock", EXACT),
]

BINDINGS = [
    ("roofline", "m=1", "ai", 0.9995, 1e-3),
    ("roofline", "m=1", "time_us", 10.02, 1e-3),
    ("roofline", "m=1", "attainable_tflops", 3.348, 1e-3),
    ("roofline", "m=1", "share_of_peak_pct", 0.3386, 1e-3),
    *[("roofline", f"m={m}", "ai", ai, 1e-3) for m, ai in ((16, 15.876), (64, 62.06), (128, 120.47), (256, 227.56), (512, 409.6))],
    *[("roofline", f"gpu={gpu}", "crossover_batch", rows, EXACT) for gpu, rows in (("a100-80gb", 166), ("h200", 230), ("b200", 341), ("h100-sxm", 345))],
    ("roofline", "peak_tflops=989.4", "crossover_batch", 346, EXACT),
    *[
        ("roofline", f"gpu={gpu}", "ridge", ridge, 1e-3)
        for gpu, ridge in (
            ("a100-80gb", 153.0), ("h100-sxm", 295.2), ("h200", 206.0), ("b200", 292.2), ("rtx-4090", 163.9), ("mi300x", 246.7), ("h20", 37.0), ("v100-sxm-32gb", 138.9),
        )
    ],
    ("roofline", "op=custom flops=1 bytes=1 peak_tflops=0.0176 bw_gbs=15", "ridge", 1.1733, 1e-3),
    ("roofline", "op=attention-unfused gpu=a100-80gb", "ai", 62.06, 1e-3),
    ("roofline", "op=attention-unfused gpu=a100-80gb", "time_us", 67.88, 1e-3),
    ("roofline", "op=attention-flash gpu=a100-80gb", "ai", 2048, 1e-3),
    ("roofline", "op=attention-flash gpu=a100-80gb", "time_us", 27.53, 1e-3),
    ("roofline", "op=elementwise gpu=a100-80gb", "ai", 0.1667, 1e-3),
    ("roofline", "op=elementwise gpu=a100-80gb", "attainable_tflops", 0.3398, 1e-3),
    ("roofline", "op=elementwise gpu=a100-80gb", "share_of_peak_pct", 0.11, 1e-2),
    ("roofline", "op=custom flops=1 bytes=4 gpu=a100-80gb", "attainable_tflops", 0.51, 1e-3),  # ReLU, chapter 03
    ("roofline", "op=custom flops=1 bytes=4 gpu=a100-80gb", "share_of_peak_pct", 0.16, 3e-2),
    ("mfu", "count_attention=false", "mfu_pct", 45.73, 1e-3),
    ("mfu", "N=540e9", "mfu_pct", 46.20, 1e-3),
    ("mfu", "preset=mt-nlg-530b", "mfu_pct", 30.27, 1e-3),
    ("mfu", "preset=mt-nlg-530b count_attention=false", "mfu_pct", 29.77, 1e-3),
    ("mfu", "preset=megatron-175b recompute=selective", "mfu_pct", 51.39, 1e-3),
    ("mfu", "preset=megatron-175b recompute=selective", "hfu_pct", 51.85, 1e-3),
    ("mfu", "preset=megatron-530b recompute=selective", "mfu_pct", 56.05, 1e-3),
    ("mfu", "preset=megatron-530b recompute=selective", "hfu_pct", 56.35, 1e-3),
    ("mfu", "preset=mpt-7b", "mfu_pct", 46.44, 5e-4),
    ("mfu", "preset=mpt-13b", "mfu_pct", 39.79, 5e-4),
    ("mfu", "preset=mpt-70b recompute=full", "mfu_pct", 42.57, 5e-4),
    ("mfu", "preset=mpt-70b recompute=full", "hfu_pct", 56.76, 5e-4),
    ("mfu", "preset=llama-65b", "mfu_pct", 49.61, 1e-3),
    ("mfu", "preset=llama-65b count_attention=false", "mfu_pct", 47.65, 1e-3),
    ("mfu", "preset=nanogpt-compiled", "mfu_pct", 24.95, 1e-3),
    ("mfu", "preset=nanogpt-eager", "mfu_pct", 13.47, 1e-3),
    ("mfu", f"{LLAMA_8B} tokens_per_s=40000 n_gpus=8 peak_tflops=989", "mfu_pct", 30.87, 1e-3),
    ("mfu", f"{LLAMA_8B} tokens_per_s=40000 n_gpus=8 peak_tflops=989", "attn_over_6n_pct", 26.74, 1e-3),
    ("mfu", f"{LLAMA_8B} tokens_per_s=40000 n_gpus=8 peak_tflops=989", "attn_share_pct", 21.10, 1e-3),
    ("mfu", f"{LLAMA_8B} tokens_per_s=40000 n_gpus=8 peak_tflops=989", "gflop_per_token", 61.07, 1e-3),
    ("mfu", LLAMA_8B, "gflop_6n", 48.18, 1e-3),
    ("mfu", LLAMA_8B, "gflop_attention", 12.88, 1e-3),
    ("mfu", f"{LLAMA_8B} causal_half=true", "attn_over_6n_pct", 13.37, 1e-3),
    ("train-time", "goodput=1", "days", 20.65, 1e-3),
    ("train-time", "goodput=1", "cost_wan", 1014.9, 1e-3),
    ("train-time", "known_gpu_hours=1.3e6", "implied_mfu_pct", 15.61, 1e-3),
    ("train-time", "model=llama-3-70b known_gpu_hours=6.4e6", "implied_mfu_pct", 27.87, 1e-3),
    ("train-time", "model=llama-3.1-405b N=405e9 tokens=15.6e12 known_gpu_hours=30.84e6", "flops", 3.7908e25, 1e-3),
    ("train-time", "model=llama-3.1-405b N=405e9 tokens=15.6e12 known_gpu_hours=30.84e6", "implied_mfu_pct", 34.52, 1e-3),
    ("train-time", "model=gpt-3-175b tokens=300e9 gpu=v100-sxm-32gb", "flops", 3.1429e23, 1e-3),
    ("train-time", "model=deepseek-v3 N=37e9 tokens=14.8e12 gpu=h800 known_gpu_hours=2.664e6", "implied_mfu_pct", 34.64, 1e-3),
    ("train-time", "N=65.2e9 tokens=1.4e12 gpu=a100-80gb n_gpus=2048 mfu=0.4765 goodput=1", "days", 20.82, 1e-3),
]  # fmt: skip


@pytest.mark.parametrize(("id", "query", "output", "expected", "tolerance"), DEFAULTS + BINDINGS)
def test_values_of_the_specification(id, query, output, expected, tolerance):
    actual = value(id, query, output)
    if expected is None or isinstance(expected, bool | str):
        assert actual == expected
    else:
        assert actual == pytest.approx(expected, rel=tolerance)


class TestRoofline:
    def test_defaults_by_hand(self):
        v = run("roofline").values
        assert v["gflop"] == pytest.approx(2 * 4096**3 / 1e9)
        assert v["traffic_mb"] == pytest.approx(2 * 3 * 4096**2 / 1e6)
        assert v["time_us"] == pytest.approx(2 * 4096**3 / 989e12 * 1e6)

    def test_decode_intensity_is_about_the_batch(self):
        for m in (1, 2, 8, 16):
            assert value("roofline", f"m={m}", "ai") == pytest.approx(m, rel=0.01)

    @pytest.mark.parametrize("gpu", ["a100-80gb", "h100-sxm", "h200", "b200", "h20"])
    @pytest.mark.parametrize(("n", "k", "b"), [(4096, 4096, 2), (14336, 4096, 2), (1000, 3000, 4), (8192, 8192, 4)])
    def test_crossover_is_the_first_compute_bound_batch(self, gpu, n, k, b):
        query = f"gpu={gpu} n={n} k={k} elem_bytes={b}"
        first = value("roofline", query, "crossover_batch")
        if first is None:
            assert value("roofline", f"{query} m=1000000", "compute_bound") is False
        else:
            assert value("roofline", f"{query} m={first}", "compute_bound") is True
            assert value("roofline", f"{query} m={first - 1}", "compute_bound") is False

    def test_a_thin_matrix_never_becomes_compute_bound(self):
        assert value("roofline", "k=64", "crossover_batch") is None
        assert "再多行也到不了" in run("roofline", "k=64").verdict
        assert not reaches_ridge(2048.0, 4096, 4096)

    @pytest.mark.parametrize(
        "query", ["", "m=1", "op=attention-unfused", "op=attention-flash m=8", "op=elementwise", "op=custom", "elem_bytes=4", "elem_bytes=1"]
    )
    def test_attainable_is_below_both_roofs(self, query):
        v = run("roofline", f"{query} bw_eff=0.8 peak_eff=0.9").values
        r = run("roofline", f"{query} bw_eff=0.8 peak_eff=0.9").resolved
        peak, slope = r["peak_tflops"] * 0.9, r["bw_gbs"] * 0.8 / 1e3
        assert v["attainable_tflops"] == pytest.approx(min(peak, v["ai"] * slope))
        assert v["compute_bound"] == (v["ai"] >= v["ridge"])
        assert v["time_us"] == pytest.approx(max(v["gflop"] / peak, v["traffic_mb"] / slope * 1e-3) * 1e-3 * 1e6, rel=1e-9)

    def test_precision_chooses_the_peak(self):
        """FP8 doubles it, TF32 halves it; V100 has FP16 only."""
        peaks = [run("roofline", f"elem_bytes={b}").resolved["peak_tflops"] for b in (1, 2, 4)]
        assert peaks == [1979, 989, 494.5]
        assert run("roofline", "gpu=v100-sxm-32gb").resolved["peak_tflops"] == 125

    def test_own_machine_wins_over_the_card(self):
        assert run("roofline", "peak_tflops=100 bw_gbs=1000").resolved == {}
        assert value("roofline", "peak_tflops=100 bw_gbs=1000", "ridge") == 100
        assert run("roofline", "gpu=a100-80gb elem_bytes=1 peak_tflops=624").values["ridge"] == pytest.approx(624e3 / 2039)

    def test_unfused_attention_is_stuck_at_half_the_head_size(self):
        """However long the sequence: 4n²d ÷ (2·(4n² + 4nd)) → d/2."""
        assert value("roofline", "op=attention-unfused m=1000000 n=1000000", "ai") == pytest.approx(64, rel=1e-3)

    @pytest.mark.parametrize(
        ("query", "field", "words"),
        [
            ("gpu=a100-80gb elem_bytes=1", "elem_bytes", "没有 FP8 Tensor Core"),
            ("m=0", "m", "m"),
            ("op=custom bytes=0", "bytes", "字节必须大于 0"),
            ("op=custom flops=-1", "flops", "FLOP"),
            ("op=elementwise k=8", "k", "只在"),
            ("flops=1e9", "flops", "只在"),
            ("head_dim=64", "head_dim", "只在"),
            ("bw_eff=1.5", "bw_eff", "0.1 到 1"),
            ("op=conv", "op", "不在可选项"),
        ],
    )
    def test_refusals(self, query, field, words):
        error = refusal("roofline", query).errors[0]
        assert error.field == field
        assert words in error.message

    def test_verdict_says_which_wall_and_what_helps(self):
        assert "算力瓶颈" in run("roofline").verdict
        assert "m 到 345 行" in run("roofline", "m=1").verdict
        assert "FlashAttention" in run("roofline", "op=attention-unfused").verdict
        assert "融合" in run("roofline", "op=elementwise").verdict

    def test_formulas_take_plain_numbers(self):
        assert gemm_flops(2.0, 3.0, 5.0, 2.0) == 60
        assert gemm_elements(2.0, 3.0, 5.0) == 10 + 15 + 6
        assert crossover_rows(153.016, 4096.0, 4096.0) == 166


class TestMfu:
    @pytest.mark.parametrize(
        ("preset", "published", "tolerance_pt"),
        [
            ("palm-540b", ("palm-2022", "mfu"), 0.1),
            ("mt-nlg-530b", ("palm-2022", "mt_nlg_mfu"), 0.1),
            ("megatron-175b", ("korthikanti-2022-table5", "mfu_175b"), 0.2),
            ("megatron-530b", ("korthikanti-2022-table5", "mfu_530b"), 0.2),
            ("mpt-7b", ("llm-foundry-mpt", "mpt_7b"), 0.02),
            ("mpt-13b", ("llm-foundry-mpt", "mpt_13b"), 0.02),
            ("mpt-70b", ("llm-foundry-mpt", "mpt_70b"), 0.02),
        ],
    )
    def test_published_figures_are_reproduced(self, preset, published, tolerance_pt):
        id, name = published
        assert value("mfu", f"preset={preset}", "mfu_pct") == pytest.approx(references()[id].values[name].value, abs=tolerance_pt)

    def test_published_figures_without_attention(self):
        """PaLM §4.1: 45.7 %; MT-NLG 29.7 %."""
        assert value("mfu", "count_attention=false", "mfu_pct") == pytest.approx(45.7, abs=0.1)
        assert value("mfu", "preset=mt-nlg-530b count_attention=false", "mfu_pct") == pytest.approx(29.7, abs=0.1)

    @pytest.mark.parametrize(("preset", "step_s"), [("megatron-175b", 13.75), ("megatron-530b", 37.83)])
    def test_megatron_step_formula_is_the_same_count(self, preset, step_s):
        """72BsLh²(1 + s/6h + v/12hL) over the measured step: Korthikanti et al. 2022, appendix A."""
        r = training_runs()[preset]
        h, s, v = r.heads * r.head_dim, r.seq, 51_200
        batch_tokens = r.tokens_per_s * step_s
        step_flops = 72 * batch_tokens * r.layers * h * h * (1 + s / (6 * h) + v / (12 * h * r.layers))
        assert value("mfu", f"preset={preset}", "mfu_pct") == pytest.approx(100 * step_flops / step_s / (r.n_gpus * 312e12))
        assert r.params == 12 * r.layers * h * h + v * h

    @pytest.mark.parametrize("row", DATA["flops_forward_per_token"], ids=lambda row: row["id"])
    def test_forward_flops_of_one_token(self, row):
        """A third of forward and backward; with MLA the head is the mean of its key and value sizes."""
        m = model(row["model"])
        head = m.head_dim if m.mla is None else (m.mla.qk_nope_head_dim + m.mla.qk_rope_head_dim + m.mla.v_head_dim) / 2
        q = attention_core(float(m.layers), float(m.heads), float(head), float(row["attended_context"]))
        assert flops_per_token(float(m.active_params_no_input_embedding), q) / 3 == pytest.approx(row["expected"], rel=row["tolerance_rel"])

    def test_palm_by_hand(self):
        per_token = 6 * 540.35e9 + 12 * 118 * 48 * 256 * 2048
        assert value("mfu", "", "mfu_pct") == pytest.approx(100 * 238_300 * per_token / (6144 * 275e12))

    def test_llama_405b_from_tflops(self):
        """430 / 400 / 380 TFLOPS of 989 are 43.5 / 40.4 / 38.4 %."""
        for tflops, share in ((430, 43.5), (400, 40.4), (380, 38.4)):
            assert 100 * tflops / accelerator("h100-sxm").dense_tflops == pytest.approx(share, abs=0.05)

    def test_nanogpt_four_days(self):
        """600 000 × 491 520 tokens in 4 days on 8 A100: 29.2 % (the time is an assumption)."""
        rate = 600_000 * 491_520 / (4 * 86_400)
        assert value("mfu", f"preset=nanogpt-compiled tokens_per_s={rate} n_gpus=8", "mfu_pct") == pytest.approx(29.2, abs=0.05)

    @pytest.mark.parametrize("preset", list(training_runs()))
    def test_recompute_changes_hfu_only(self, preset):
        none, selective, full = (run("mfu", f"preset={preset} recompute={mode}").values for mode in ("none", "selective", "full"))
        assert none["mfu_pct"] == selective["mfu_pct"] == full["mfu_pct"] == none["hfu_pct"]
        assert none["hfu_pct"] < selective["hfu_pct"] < full["hfu_pct"]
        assert full["hfu_pct"] == pytest.approx(none["hfu_pct"] * 4 / 3)

    def test_selective_recompute_of_the_whole_step(self):
        """0.9 % for 175B, 0.55 % for 530B; relative to forward 2.7 % and 1.6 %."""
        for preset, of_step, of_forward in (("megatron-175b", 0.90, 2.70), ("megatron-530b", 0.55, 1.64)):
            v = run("mfu", f"preset={preset} recompute=selective").values
            extra = v["hfu_pct"] / v["mfu_pct"] - 1
            assert 100 * extra == pytest.approx(of_step, abs=0.005)
            assert 300 * extra == pytest.approx(of_forward, abs=0.01)

    def test_empty_fields_take_the_presets_values(self):
        assert run("mfu").resolved == {
            "tokens_per_s": 238300, "N": 540.35e9, "L": 118, "heads": 48, "head_dim": 256, "seq": 2048, "n_gpus": 6144, "peak_tflops": 275,
        }  # fmt: skip
        assert "N" not in run("mfu", "N=540e9").resolved
        assert training_runs()["megatron-175b"].tokens_per_s == pytest.approx(9532.51, rel=1e-6)
        assert training_runs()["megatron-530b"].tokens_per_s == pytest.approx(15158.34, rel=1e-6)
        assert training_runs()["llama-65b"].tokens_per_s == 778_240
        assert training_runs()["nanogpt-compiled"].tokens_per_s == pytest.approx(91022.2, rel=1e-6)

    def test_custom_refuses_every_missing_field_by_name(self):
        errors = refusal("mfu", "preset=custom N=8e9 seq=8192").errors
        assert [e.field for e in errors] == ["tokens_per_s", "L", "heads", "head_dim", "n_gpus", "peak_tflops"]
        assert "「卡数」必须填" in errors[4].message

    def test_custom_without_attention_needs_no_shape(self):
        query = "preset=custom count_attention=false tokens_per_s=40000 N=8030261248 n_gpus=8 peak_tflops=989"
        assert value("mfu", query, "mfu_pct") == pytest.approx(100 * 40000 * 6 * 8_030_261_248 / (8 * 989e12))

    @pytest.mark.parametrize(
        ("query", "field", "words"),
        [
            ("n_gpus=64", "tokens_per_s", "MFU 不能超过 100 %"),
            ("preset=megatron-530b recompute=full peak_tflops=200", "tokens_per_s", "100 %"),
            ("n_gpus=0", "n_gpus", "卡数"),
            ("N=0", "N", "参数量"),
            ("count_attention=false seq=4096", "seq", "只在"),
            ("preset=gpt-5", "preset", "不在可选项"),
        ],
    )
    def test_refusals(self, query, field, words):
        error = refusal("mfu", query).errors[0]
        assert error.field == field
        assert words in error.message

    def test_wrong_denominators(self):
        """Public slips: the sparse peak halves MFU; an H100 peak on an A100 reads 3.2 times too low (karpathy/autoresearch#5); H200 at 420 TFLOPS is 42.5 %."""
        dense, sparse = (value("mfu", f"{LLAMA_8B} tokens_per_s=40000 n_gpus=8 peak_tflops={peak}", "mfu_pct") for peak in (989, 1978))
        assert dense == pytest.approx(2 * sparse)
        right, wrong = (value("mfu", f"preset=nanogpt-compiled peak_tflops={peak}", "mfu_pct") for peak in (312, 989.5))
        assert right / wrong == pytest.approx(3.2, abs=0.05)
        assert 100 * 420 / accelerator("h200").dense_tflops == pytest.approx(42.5, abs=0.05)

    def test_every_run_names_its_source(self):
        assert all(len(r.source) > 20 for r in training_runs().values())

    def test_verdict_fits_the_band(self):
        assert "精心优化" in run("mfu").verdict
        assert "torch.compile" in run("mfu", "preset=nanogpt-eager").verdict
        assert "重做的运算" in run("mfu", "preset=mpt-70b recompute=full").verdict


class TestTrainTime:
    def test_defaults_by_hand(self):
        flops = 6 * 8_030_261_248 * 15e12
        hours = flops / (989e12 * 0.4 * 3600)
        v = run("train-time").values
        assert v["gpu_hours_ideal"] == pytest.approx(hours)
        assert v["days"] == pytest.approx(hours / 0.95 / 1024 / 24)
        assert v["cost_wan"] == pytest.approx(hours / 0.95 * 20 / 1e4)

    def test_llama_65b_took_about_21_days(self):
        """Touvron et al. 2023 §2.3: 1.4T tokens at 380 tokens/s on each of 2048 cards."""
        days = value("train-time", "N=65.2e9 tokens=1.4e12 gpu=a100-80gb n_gpus=2048 mfu=0.4765 goodput=1", "days")
        assert days == pytest.approx(1.4e12 / (380 * 2048) / 86_400, rel=1e-3)
        assert round(days) == 21

    def test_published_hours_and_their_sources(self):
        cards = references()
        assert cards["llama-3-model-card"].values["hours_8b"].value == 1.3e6
        assert cards["llama-3-model-card"].values["hours_70b"].value == 6.4e6
        assert cards["llama-3-1-405b-card"].values["hours"].value == 30.84e6
        assert cards["deepseek-v3-report"].values["hours"].value == 2.664e6

    def test_days_fall_with_cards_and_mfu(self):
        base = value("train-time", "", "days")
        assert value("train-time", "n_gpus=2048", "days") == pytest.approx(base / 2)
        assert value("train-time", "mfu=0.8", "days") == pytest.approx(base / 2)
        assert value("train-time", "n_gpus=2048", "cost_wan") == pytest.approx(value("train-time", "", "cost_wan"))

    def test_moe_counts_active_parameters(self):
        assert run("train-time", "model=deepseek-v3").resolved["N"] == model("deepseek-v3").active_params

    @pytest.mark.parametrize(
        "query", ["mfu=0", "mfu=1.01", "goodput=0", "goodput=1.1", "tokens=0", "n_gpus=0", "N=1e5", "known_gpu_hours=0", "gpu_price_per_h=-1"]
    )
    def test_refusals(self, query):
        assert refusal("train-time", query).errors[0].field == query.split("=")[0]

    def test_impossible_hours_are_remarked(self):
        assert "超过 100%" in run("train-time", "known_gpu_hours=1000").notes[0]
        assert run("train-time", "known_gpu_hours=1.3e6").notes == ()

    def test_verdict_says_what_a_better_mfu_saves(self):
        assert "21.74 天" in run("train-time").verdict
        assert "省 291 万元" in run("train-time").verdict
        assert "到顶" in run("train-time", "mfu=0.6").verdict

    def test_verdict_reads_published_hours(self):
        assert "折合 MFU 15.61%" in run("train-time", "known_gpu_hours=1.3e6").verdict
        assert "折合" not in run("train-time").verdict


class TestMfuWaterfall:
    def test_by_hand(self):
        assert value("mfu-waterfall", "", "mfu_pct") == pytest.approx(100 * 0.80 * 0.95 * 0.91 * 0.93 * 0.94 * 0.97)

    def test_the_smallest_factor_is_the_largest_loss(self):
        assert value("mfu-waterfall", "f_bubble=0.5", "largest_loss") == "f_bubble"
        assert value("mfu-waterfall", "f_bubble=0.5", "largest_loss_name") == "流水线气泡"
        assert value("mfu-waterfall", "f_clock=1 f_gemm=1 f_matmul=1 f_comm=1 f_bubble=1 f_uptime=1", "largest_loss") is None

    def test_order_does_not_change_the_product(self):
        assert value("mfu-waterfall", "f_clock=0.97 f_uptime=0.8", "mfu_pct") == pytest.approx(value("mfu-waterfall", "", "mfu_pct"))

    @pytest.mark.parametrize("query", ["f_clock=0", "f_gemm=1.01", "f_comm=-0.1"])
    def test_refusals(self, query):
        assert refusal("mfu-waterfall", query).errors[0].field == query.split("=")[0]


@pytest.mark.parametrize("id", sorted(accelerators()))
def test_every_card_has_a_roof(id):
    run = load("roofline").run({"gpu": id})
    (chart,) = load("roofline").charts(run)
    assert chart.series[0].emphasis
    assert max(y for _, y in chart.series[0].points) == pytest.approx(accelerator(id).dense_tflops)
