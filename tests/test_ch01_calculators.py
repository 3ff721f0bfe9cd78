"""Chapter 01: train-memory-quick, attention-ai, serving-bill, mfu-band.  Expected values come from the chapter's specification."""

from __future__ import annotations

import math

import pytest

from calculators.catalog import accelerators, model, models
from calculators.core.calculator import Run
from calculators.core.errors import Refusal
from calculators.core.index import load
from calculators.formulas.memory import STATE_RECIPES
from calculators.formulas.mfu import MFU_BANDS, attention_core, flops_per_token, hardware_flops_per_token, mfu_band
from calculators.site.targets import resolve


def run(id: str, /, **given: str) -> Run:
    return load(id).run(given)


def value(id: str, output: str, /, **given: str) -> float:
    got = run(id, **given).values[output]
    assert isinstance(got, int | float)
    return got


def refused(id: str, /, **given: str) -> tuple[str, str]:
    with pytest.raises(Refusal) as caught:
        run(id, **given)
    return caught.value.errors[0].field, str(caught.value)


DEFAULTS = [
    ("train-memory-quick", "weights_gb", 14), ("train-memory-quick", "grads_gb", 14), ("train-memory-quick", "adam_gb", 56),
    ("train-memory-quick", "master_gb", 0), ("train-memory-quick", "total_gb", 84), ("train-memory-quick", "bytes_per_param", 12),
    ("train-memory-quick", "total_gib", 78.23), ("train-memory-quick", "card_gib", 74.51),
    ("attention-ai", "gflop", 8.590), ("attention-ai", "n2_matrix_mb", 33.554), ("attention-ai", "naive_ai", 256), ("attention-ai", "unfused_mb", 138.412),
    ("attention-ai", "unfused_ai", 62.06), ("attention-ai", "fused_mb", 4.194), ("attention-ai", "fused_ai", 2048), ("attention-ai", "ridge", 153.02),
    ("attention-ai", "compute_us", 27.53), ("attention-ai", "unfused_mem_us", 67.88), ("attention-ai", "fused_mem_us", 2.057),
    ("attention-ai", "lower_bound_us", 67.88), ("attention-ai", "fused_speedup_x", 2.466),
    ("serving-bill", "cards_naive", 100), ("serving-bill", "cards_opt", 14), ("serving-bill", "cost_wan_naive", 200), ("serving-bill", "cost_wan_opt", 28),
    ("serving-bill", "ratio_x", 7.143), ("serving-bill", "free_gb_naive", 10.893), ("serving-bill", "free_gb_opt", 73.446),
    ("serving-bill", "batch_naive", 43), ("serving-bill", "batch_opt", 925), ("serving-bill", "step_ms_naive", 137.53), ("serving-bill", "step_ms_opt", 209.17),
    ("serving-bill", "prefill_s_naive", 7.293), ("serving-bill", "prefill_s_opt", 31.376), ("serving-bill", "rps_naive", 2.350),
    ("serving-bill", "rps_opt", 19.227), ("serving-bill", "floor_tokens_bf16", 143.3), ("serving-bill", "floor_tokens_opt", 286.6),
    ("mfu-band", "tokens_per_s", 91022), ("mfu-band", "mfu_pct", 24.95),
]  # fmt: skip


@pytest.mark.parametrize(("id", "output", "expected"), DEFAULTS)
def test_default_outputs_equal_the_specified_table(id: str, output: str, expected: float) -> None:
    """Spec 01, "Output identifiers": half a unit of the printed digit at most (2.5e-4 relative)."""
    assert value(id, output) == pytest.approx(expected, rel=2.5e-4)


def test_default_verdicts_of_the_specified_table() -> None:
    """Spec 01, "Output identifiers": the truth values, the list and the band."""
    assert run("train-memory-quick").values["fits"] is False
    assert run("attention-ai").values["memory_bound"] is True
    bill = run("serving-bill").values
    assert (bill["compute_bound_naive"], bill["compute_bound_opt"]) == (False, True)
    assert bill["waterfall_cards"] == [100, 54, 34, 26, 26, 14]
    assert run("mfu-band").values["band"] == "20-30"


BINDINGS = [
    ("train-memory-quick", {"master_fp32": "true"}, {"total_gb": 112}, 1e-12),
    ("train-memory-quick", {"master_fp32": "true", "grad_bytes": "4"}, {"total_gb": 126}, 1e-12),
    ("train-memory-quick", {"preset": "llama-3-8b"}, {"total_gb": 96.363}, 1e-4),
    ("train-memory-quick", {"preset": "llama-3-8b", "master_fp32": "true"}, {"total_gb": 128.484}, 1e-4),
    ("train-memory-quick", {"preset": "llama-3-8b", "master_fp32": "true", "grad_bytes": "4"}, {"total_gb": 144.545}, 1e-4),
    ("attention-ai", {}, {"gflop": 8.5899, "n2_matrix_mb": 33.554, "naive_ai": 256}, 1e-4),
    ("attention-ai", {"extra_passes": "2"}, {"unfused_ai": 31.51}, 1e-3),
    ("attention-ai", {"gpu": "h100-sxm"}, {"ridge": 295.2}, 1e-3),
    ("serving-bill", {"peak_factor": "2"}, {"cards_naive": 198, "cards_opt": 26}, 0),
    ("serving-bill", {"prompt": "500", "output": "200"}, {"cards_naive": 586, "cards_opt": 38}, 0),
    ("serving-bill", {"prompt": "1000", "output": "300"}, {"cards_naive": 1626, "cards_opt": 74}, 0),
    ("serving-bill", {"prompt": "1000", "output": "300", "peak_factor": "3"}, {"cards_naive": 4878, "cards_opt": 218}, 0),
    ("mfu-band", {"step_s": "0.250"}, {"mfu_pct": 13.47}, 1e-3),
]  # fmt: skip


@pytest.mark.parametrize(("id", "given", "expected", "tolerance"), BINDINGS)
def test_bound_calls(id: str, given: dict[str, str], expected: dict[str, float], tolerance: float) -> None:
    """Spec 01, appendix B, with its relative tolerances (0 = exact)."""
    for output, number in expected.items():
        assert value(id, output, **given) == pytest.approx(number, rel=tolerance, abs=0)


def test_parameter_counts_of_the_presets() -> None:
    """Spec 01: catalog total_params; llama-3-8b is reference point 3 (8 030 261 248)."""
    for id, params_b in (("llama-3-8b", 8.030261248), ("llama-3-70b", 70.553706496), ("qwen2.5-7b", 7.615616512)):
        assert run("train-memory-quick", preset=id).resolved["params_b"] == params_b
    assert run("train-memory-quick").resolved["params_b"] == 7


def test_an_explicit_count_wins_over_the_preset() -> None:
    assert value("train-memory-quick", "total_gb", preset="llama-3-70b", params_b="7") == 84
    assert value("train-memory-quick", "total_gb", preset="llama-3-70b", params_b="7B") == 84


def test_states_by_hand() -> None:
    """Outside check: 13.5e9 × (4 + 4 + 2 + 4) B = 189 GB, 176.0 GiB; the master copy adds exactly 4·N bytes (invariant)."""
    given = {"params_b": "13.5", "weight_bytes": "4", "grad_bytes": "4", "opt_bytes": "2"}
    with_master = run("train-memory-quick", master_fp32="true", **given).values
    without = run("train-memory-quick", **given).values
    assert with_master["total_gb"] == pytest.approx(189)
    assert with_master["total_gib"] == pytest.approx(189e9 / 2**30)
    assert with_master["total_gb"] - without["total_gb"] == pytest.approx(54)  # type: ignore[operator]
    assert with_master["fits"] is False
    assert run("train-memory-quick", card_gb="189", master_fp32="true", **given).values["fits"] is True


def test_reported_capacity_stands_beside_the_label() -> None:
    """Spec 01, wrong intuitions: an 80 GB H100 reports 79.6 GiB = 85.5e9 B, a 24 GB RTX 4090 23.64 GiB = 25.4e9 B."""
    assert "79.6 GiB，合 85.47 GB" in run("train-memory-quick").notes[0]
    assert "23.64 GiB，合 25.38 GB" in run("train-memory-quick", card_gb="24").notes[0]
    assert run("train-memory-quick", card_gb="77").notes == ()


def test_recipes_add_up() -> None:
    """Spec 03: 12, 16, 18, 8 and 10 bytes per parameter; the name carries the sum."""
    assert {id: r.bytes_per_param for id, r in STATE_RECIPES.items()} == {"seed-12": 12, "zero-16": 16, "megatron-18": 18, "bf16-8": 8, "8bit-10": 10}


@pytest.mark.parametrize("elem_bytes", ["2", "4"])
@pytest.mark.parametrize("d", ["64", "128", "256"])
def test_unfused_intensity_never_reaches_d_over_b(d: str, elem_bytes: str) -> None:
    """Spec 01, invariant: unfused_ai < d / elem_bytes however long the sequence, and it rises with n."""
    readings = [value("attention-ai", "unfused_ai", n=str(n), d=d, elem_bytes=elem_bytes) for n in (128, 1024, 8192, 131072)]
    assert readings == sorted(readings)
    assert readings[-1] < int(d) / int(elem_bytes)
    assert readings[-1] == pytest.approx(int(d) / int(elem_bytes), rel=3e-3)


def test_attention_by_hand() -> None:
    """Outside check on an H100: n = 8192, d = 64, one extra pass."""
    n, d = 8192, 64
    flop, moved = 4 * n * n * d, (6 * n * n + 4 * n * d) * 2
    got = run("attention-ai", n="8192", d="64", extra_passes="1", gpu="h100-sxm").values
    assert got["unfused_ai"] == pytest.approx(flop / moved)
    assert got["lower_bound_us"] == pytest.approx(max(flop / 989e12, moved / 3.35e12) * 1e6)
    assert got["fused_speedup_x"] == pytest.approx(max(flop / 989e12, moved / 3.35e12) / max(flop / 989e12, 4 * n * d * 2 / 3.35e12))


def test_precision_chooses_the_peak() -> None:
    """Spec 01: FP8 for one byte, half of BF16 (TF32) for four."""
    assert value("attention-ai", "ridge", gpu="h100-sxm", elem_bytes="1") == pytest.approx(1979e12 / 3.35e12)
    assert value("attention-ai", "ridge", gpu="a100-80gb", elem_bytes="4") == pytest.approx(156e12 / 2.039e12)


def test_extra_passes_only_slow_the_unfused_form() -> None:
    times = [value("attention-ai", "unfused_mem_us", extra_passes=str(k)) for k in range(7)]
    assert times == sorted(times)
    assert len({value("attention-ai", "fused_mem_us", extra_passes=str(k)) for k in range(7)}) == 1


def plain_cards(
    rate_per_s: float, prompt: int, output: int, w: float, working: int, frac: float, util: float, e: float, peak: float, f: float, extra: float
) -> int:
    """Outside check: the serving model again, in plain arithmetic, two A100 80GB a replica and Llama-3-70B."""
    n, kv = 70.553706496e9, 327680
    batch = math.floor((2 * 80e9 * frac - n * w) * util / ((prompt + output) * kv))
    read = (n * w + batch * (prompt + output / 2) * kv) / (working * 2.039e12 * e)
    step = max(read, 2 * n * batch / (working * peak * f)) + extra
    prefill = 2 * n * prompt * batch / (working * peak * f)
    return math.ceil(rate_per_s / (batch / (prefill + output * step))) * 2


@pytest.mark.parametrize(("prompt", "output", "peak_factor"), [(150, 80, 1.0), (150, 80, 2.0), (400, 60, 1.5), (60, 500, 1.0)])
def test_bill_by_hand(prompt: int, output: int, peak_factor: float) -> None:
    rate = 1e7 / 86400 * peak_factor
    got = run("serving-bill", prompt=str(prompt), output=str(output), peak_factor=str(peak_factor)).values
    assert got["cards_naive"] == plain_cards(rate, prompt, output, 2, 1, 0.95, 0.30, 0.60, 312e12, 0.40, 0.020)
    assert got["cards_opt"] == plain_cards(rate, prompt, output, 1, 2, 0.90, 0.95, 0.70, 624e12, 0.50, 0.0)


def test_cards_come_in_whole_replicas_and_price_is_linear() -> None:
    """Spec 01, invariants."""
    for cards in ("2", "4", "8"):
        got = run("serving-bill", cards_per_replica_naive=cards, cards_per_replica_opt=cards).values
        assert got["cards_naive"] % int(cards) == 0  # type: ignore[operator]
        assert got["cards_opt"] % int(cards) == 0  # type: ignore[operator]
    for side in ("naive", "opt"):
        assert value("serving-bill", f"cost_wan_{side}", price="40000") == 2 * value("serving-bill", f"cost_wan_{side}")
    assert value("serving-bill", "cost_wan_opt", price="0") == 0


def test_more_load_never_needs_fewer_cards() -> None:
    for side in ("naive", "opt"):
        by_rate = [value("serving-bill", f"cards_{side}", requests_per_day=r) for r in ("1e5", "1e6", "1e7", "1e8")]
        by_prompt = [value("serving-bill", f"cards_{side}", prompt=p) for p in ("50", "150", "500", "1000", "4000")]
        assert by_rate == sorted(by_rate)
        assert by_prompt == sorted(by_prompt)


def test_memory_fraction_would_cost_cards_before_the_weights_shrink() -> None:
    """Spec 01: at 2 bytes a fraction of 0.90 leaves only 2.9 GB for KV; the fourth bar would be 42."""
    fourth = {"layer_sequential_naive": "false", "kv_util_naive": "0.95", "overhead_ms_naive": "0", "bw_eff_naive": "0.70", "flop_eff_naive": "0.50"}
    assert value("serving-bill", "cards_naive", **fourth) == 26
    tight = run("serving-bill", mem_frac_naive="0.90", **fourth).values
    assert tight["free_gb_naive"] == pytest.approx(2.9, abs=0.05)
    assert tight["cards_naive"] == 42


def test_a_step_that_changes_nothing_is_not_blamed() -> None:
    """With the same peak on both sides the last bar saves nothing, but not because something else was the limit."""
    assert "矩阵乘" not in run("serving-bill", peak_tflops_opt="312").verdict
    assert "「权重变小（只有权重）」一张没省" in run("serving-bill").verdict


def test_waterfall_ends_at_the_two_sides() -> None:
    for given in ({}, {"model": "llama-3-8b", "gpu": "h100-sxm"}, {"cards_per_replica_naive": "8", "cards_per_replica_opt": "4"}):
        got = run("serving-bill", **given).values
        assert got["waterfall_cards"][0] == got["cards_naive"]  # type: ignore[index]
        assert got["waterfall_cards"][-1] == got["cards_opt"]  # type: ignore[index]


def test_a_waterfall_step_that_does_not_fit_leaves_the_answer_standing() -> None:
    """One huge request fits both sides, but not with the optimised side's KV share in the naive side's memory."""
    got = run("serving-bill", prompt="9000", output="500", kv_util_opt="0.25")
    assert got.values["waterfall_cards"] is None
    assert got.values["cards_opt"] is not None
    assert load("serving-bill").charts(got) == ()


def test_floor_tokens_by_hand() -> None:
    """Outside check: 15 × 312e12 × 0.5 / (115.74 × 2 × 70.55e9)."""
    assert value("serving-bill", "floor_tokens_bf16") == pytest.approx(15 * 312e12 * 0.5 / (1e7 / 86400 * 2 * 70.553706496e9))


def test_only_dense_models_are_offered() -> None:
    offered = load("serving-bill").input("model").choices  # type: ignore[union-attr]
    assert set(offered) == {id for id, m in models().items() if m.is_dense}


def test_mfu_by_hand() -> None:
    """Outside check: MPT-7B on 8 H100 (public benchmark table, 46.44 % at its peak of 989.5): the count of chapter 04."""
    got = value("mfu-band", "mfu_pct", tokens_per_step="85144", step_s="1", N="6658859008", L="32", h="4096", seq="2048", n_gpus="8", peak_tflops="989.5")
    assert got == pytest.approx(46.44, rel=5e-4)
    q = attention_core(32.0, 32.0, 128.0, 2048.0)
    assert flops_per_token(6658859008.0, q) == 6 * 6658859008 + 12 * 32 * 4096 * 2048
    assert attention_core(32.0, 32.0, 128.0, 2048.0, causal_half=True) == q / 2


def test_recompute_counts() -> None:
    """Spec 04: selective +4q, full 8N + 16q, i.e. 4/3 of the model's own."""
    n, q = 7e9, 2e8
    assert hardware_flops_per_token(n, q, "none") == flops_per_token(n, q)
    assert hardware_flops_per_token(n, q, "selective") == flops_per_token(n, q) + 4 * q
    assert hardware_flops_per_token(n, q, "full") == pytest.approx(flops_per_token(n, q) * 4 / 3)


@pytest.mark.parametrize(
    ("mfu_pct", "band"),
    [
        (0, "<10"),
        (9.99, "<10"),
        (10, "10-20"),
        (20, "20-30"),
        (30, "30-40"),
        (40, "40-45"),
        (45, "45-55"),
        (55, "55-60"),
        (59.99, "55-60"),
        (60, ">60"),
        (99, ">60"),
    ],
)
def test_band_edges_belong_to_the_upper_band(mfu_pct: float, band: str) -> None:
    """Spec 01 §4: lower edge included."""
    assert mfu_band(mfu_pct).name == band
    assert [b.low for b in MFU_BANDS] == sorted(b.low for b in MFU_BANDS)


def test_mfu_falls_with_step_time_and_cards() -> None:
    steps = [value("mfu-band", "mfu_pct", step_s=s) for s in ("0.05", "0.1", "0.2", "1", "100")]
    assert steps == sorted(steps, reverse=True)
    assert value("mfu-band", "mfu_pct", n_gpus="4") == pytest.approx(value("mfu-band", "mfu_pct") / 4)


REFUSALS = [
    ("train-memory-quick", {"params_b": "0"}, "params_b", ("参数量", "0.01 到 2000")),
    ("train-memory-quick", {"params_b": "7000000000"}, "params_b", ("参数量", "7B")),
    ("train-memory-quick", {"opt_bytes": "3"}, "opt_bytes", ("Adam", "可取 2、4、8")),
    ("train-memory-quick", {"preset": "gpt-9"}, "preset", ("模型", "可取")),
    ("attention-ai", {"n": "64"}, "n", ("序列长度", "128")),
    ("attention-ai", {"elem_bytes": "1"}, "elem_bytes", ("没有 FP8", "可取 2")),
    ("serving-bill", {"cards_per_replica_naive": "1"}, "cards_per_replica_naive", ("权重 141.1 GB 装不进 1×80 GB", "至少 2 张卡")),
    ("serving-bill", {"kv_util_opt": "1.2"}, "kv_util_opt", ("KV 显存的利用率", "0.05 到 1")),
    ("serving-bill", {"prompt": "100000"}, "prompt", ("放不下", "不超过")),
    ("serving-bill", {"gpu": "v100-sxm-32gb", "cards_per_replica_naive": "8"}, "peak_tflops_naive", ("峰值算力", "没有 BF16", "手填")),
    ("serving-bill", {"gpu": "tpu7x"}, "peak_tflops_opt", ("峰值算力", "没有 INT8", "手填")),
    ("serving-bill", {"model": "deepseek-v3"}, "model", ("模型", "可取")),
    ("mfu-band", {"step_s": "0.02"}, "step_s", ("MFU", "超过 100 %", "峰值填错口径")),
    ("mfu-band", {"step_s": "1e-300"}, "step_s", ("MFU", "超过 100 %")),
    ("mfu-band", {"step_s": "0"}, "step_s", ("一步用时", "大于 0")),
]  # fmt: skip


@pytest.mark.parametrize(("id", "given", "field", "words"), REFUSALS)
def test_refusals_name_the_field_and_the_remedy(id: str, given: dict[str, str], field: str, words: tuple[str, ...]) -> None:
    at, message = refused(id, **given)
    assert at == field
    for word in words:
        assert word in message


def test_peaks_left_empty_are_the_card_s_own() -> None:
    """Spec 01: 312 and 624 on an A100; an explicit peak also serves a card without the precision."""
    assert run("serving-bill").resolved == {"peak_tflops_naive": 312, "peak_tflops_opt": 624}
    given = {"gpu": "v100-sxm-32gb", "cards_per_replica_naive": "8", "cards_per_replica_opt": "4", "peak_tflops_naive": "125", "peak_tflops_opt": "125"}
    got = run("serving-bill", **given)
    assert got.values["floor_tokens_bf16"] is None
    assert got.values["cards_naive"] is not None


EXTREMES = [
    ("flash-io-quick", {"n": "128", "d": "256", "M_kb": "16", "elem_bytes": "4"}), ("flash-io-quick", {"n": "1048576", "d": "64", "M_kb": "512", "elem_bytes": "1"}),
    ("route-time", {"pace": "3", "route": "完整打牢"}),
    ("train-memory-quick", {"params_b": "0.01", "card_gb": "1000"}), ("train-memory-quick", {"params_b": "2000", "card_gb": "8", "master_fp32": "true"}),
    ("attention-ai", {"n": "128", "d": "256", "extra_passes": "0"}), ("attention-ai", {"n": "131072", "d": "64", "extra_passes": "6", "elem_bytes": "4"}),
    ("serving-bill", {"requests_per_day": "1e3"}), ("serving-bill", {"requests_per_day": "1e10", "peak_factor": "10"}), ("serving-bill", {"prompt": "1", "output": "1"}),
    ("serving-bill", {"kv_util_naive": "0.05", "kv_util_opt": "0.05", "price": "200000", "floor_cards": "100000"}),
    ("serving-bill", {"cards_per_replica_naive": "64", "cards_per_replica_opt": "64", "overhead_ms_naive": "1000", "overhead_ms_opt": "1000"}),
    ("serving-bill", {"weight_bytes_naive": "4", "cards_per_replica_naive": "4", "weight_bytes_opt": "0.5", "peak_tflops_naive": "1", "peak_tflops_opt": "20000"}),
    ("mfu-band", {"step_s": "1e7", "N": "1e-9", "L": "1", "h": "1", "seq": "1", "tokens_per_step": "1", "n_gpus": "10000000", "peak_tflops": "1000000"}),
]  # fmt: skip


@pytest.mark.parametrize(("id", "given"), EXTREMES)
def test_extreme_inputs_print_finite_numbers(id: str, given: dict[str, str]) -> None:
    got = run(id, **given)
    numbers = [v for v in got.values.values() if isinstance(v, int | float)]
    assert all(math.isfinite(v) for v in numbers)
    assert all("nan" not in line and "inf" not in line for line in (*got.lines, got.verdict))
    load(id).charts(got)


@pytest.mark.parametrize("card", accelerators())
@pytest.mark.parametrize(
    ("id", "given"),
    [("attention-ai", {"elem_bytes": "1"}), ("attention-ai", {}), ("serving-bill", {"cards_per_replica_naive": "64", "cards_per_replica_opt": "64"})],
)
def test_every_card_of_the_catalog_answers_or_says_what_it_lacks(card: str, id: str, given: dict[str, str]) -> None:
    try:
        message = run(id, gpu=card, **given).verdict
    except Refusal as refusal:
        message = str(refusal)
        lacks = {"fp8": "没有 FP8", "bf16": "没有 BF16", "int8": "没有 INT8"}
        message = message if any(words in message and name not in accelerators()[card].tflops for name, words in lacks.items()) else ""
    assert message


DERIVED = [
    ("ref:gholami-2024-20y#flops_x", 59049, 1e-9), ("ref:gholami-2024-20y#bandwidth_x", 110, 1e-3), ("ref:gholami-2024-20y#link_x", 28.9, 2e-3),
    ("ref:card-to-card#c1060_h100_flops_x", 1060, 1e-3), ("ref:card-to-card#c1060_h100_bandwidth_x", 32.7, 1e-3), ("ref:card-to-card#c1060_h100_years", 14, 1e-9),
    ("ref:card-to-card#c870_a100_flops_x", 602, 1e-3), ("ref:card-to-card#c870_a100_bandwidth_x", 26.55, 1e-3),
    ("ref:distance-a100#fma_per_number", 153, 1e-3), ("ref:distance-a100#hbm_over_nvlink_x", 6.8, 1e-3), ("ref:distance-a100#hbm_over_nvlink_headline_x", 3.4, 1e-3),
    ("ref:distance-a100#nvlink_over_400g_x", 6, 1e-9), ("ref:distance-a100#nvlink_over_200g_x", 12, 1e-9),
    ("ref:a100-to-h100#flops_x", 3.17, 1e-3), ("ref:a100-to-h100#bandwidth_x", 1.64, 2e-3),
    ("ref:allreduce-7b#one_node", 54.4, 1e-3), ("ref:allreduce-7b#between_nodes", 65.6, 1e-3), ("ref:allreduce-7b#sixteen_nodes", 120, 1e-3),
    ("ref:memory-labels#h100_gb", 85.5, 1e-3), ("ref:memory-labels#rtx_4090_gb", 25.4, 1e-3), ("ref:memory-labels#b300_gb", 288.4, 1e-3),
    ("ref:serve-break-even#over_d_x", 3, 1e-9), ("ref:serve-break-even#llama_3_tokens", 45e12, 1e-9), ("ref:serve-break-even#money_earlier_x", 8, 1e-9),
    ("ref:bill-unit-price#before", 2, 1e-9), ("ref:bill-unit-price#after", 2, 1e-9), ("ref:bill-unit-price#per_hour", 27.4, 1e-3),
]  # fmt: skip


@pytest.mark.parametrize(("target", "expected", "tolerance"), DERIVED)
def test_derived_figures(target: str, expected: float, tolerance: float) -> None:
    """Spec 01: growth table, ratios of distance, wrong intuitions, break-even, price check."""
    assert resolve(target).value == pytest.approx(expected, rel=tolerance)


def test_claims_differ_from_the_truth() -> None:
    """A wrong figure of the text must differ from the one it is contrasted with."""
    for url in (
        "ref:growth-without-a-pair#flops_x",
        "ref:growth-without-a-pair#bandwidth_x",
        "ref:sparse-peaks#a100_bf16",
        "ref:sparse-peaks#h100_bf16",
        "ref:memory-label-taken-literally#h100",
    ):
        claim = resolve(url)
        assert claim.value != pytest.approx(resolve(claim.differs_from).value, rel=0.02)


def test_a100_bandwidth_from_its_bus() -> None:
    """Reference point 6: 5120 bit × 1593 MHz × 2 transfers = 2039 GB/s."""
    assert accelerators()["a100-80gb"].bandwidth_gb_s == pytest.approx(5120 / 8 * 1593e6 * 2 / 1e9, rel=1e-4)


def test_model_of_the_bill() -> None:
    """Spec 01: N and KV per token of Llama-3-70B."""
    assert model("llama-3-70b").total_params == 70_553_706_496
    assert model("llama-3-70b").kv_bytes_per_token == 327_680
