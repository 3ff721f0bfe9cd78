"""Chapter 18: quant-size, quant-speed, quant-error, fp-grid.  Expected values: the chapter's specification unless a row names its source."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from asking import first_error as refusal
from asking import run, value
from hypothesis import given, settings
from hypothesis import strategies as st

from calculators.catalog import models
from calculators.core.charts import BarChart, LineChart
from calculators.core.index import load
from calculators.formulas.number_formats import FORMATS
from calculators.formulas.quantization import bits_per_weight
from calculators.inference._quantizers import WEIGHT_FORMATS, error_pct, gptq, integers
from calculators.inference.fp_grid import positive_values
from calculators.inference.quant_error import weights_part
from calculators.site.targets import resolve

EXACT = 1e-12
SETTINGS = settings(max_examples=25, deadline=None, derandomize=True, database=None)
NAMED = {
    "W4A16": "weight_bpw=4.125",
    "FP8": "weight_bpw=8 act_precision=fp8",
    "FP8-KV": "weight_bpw=8 act_precision=fp8 kv_bytes=1",
}


# Rows: calculator, inputs that differ from the defaults, output, expected, relative tolerance.
DEFAULTS = [
    ("quant-size", "", "bits_per_weight", 4.125, EXACT),
    ("quant-size", "", "n_lin_params", 6979588096, EXACT),
    ("quant-size", "", "size_gb", 5.70020, 1e-6),
    ("quant-size", "", "size_gib", 5.30872, 1e-6),
    ("quant-size", "", "average_bits", 5.67872, 1e-6),
    ("quant-size", "", "ratio_to_bf16", 2.81754, 2e-6),
    ("quant-speed", "", "base_step_ms", 5.65077, 1e-6),
    ("quant-speed", "", "step_ms", 1.78498, 3e-6),
    ("quant-speed", "", "speedup", 3.16574, 2e-6),
    ("quant-speed", "", "base_prefill_ms", 64.3876, 1e-6),
    ("quant-speed", "", "prefill_ms", 64.3876, 1e-6),
    ("quant-speed", "", "prefill_speedup", 1.0, EXACT),
    ("quant-speed", NAMED["FP8"], "prefill_ms", 33.2898, 2e-6),
    ("quant-speed", NAMED["FP8"], "prefill_speedup", 1.93415, 2e-6),
    ("quant-speed", "", "memory_bound", True, EXACT),
    ("fp-grid", "", "max_value", 448, EXACT),
    ("fp-grid", "", "min_subnormal", 0.001953125, EXACT),
    ("fp-grid", "", "min_normal", 0.015625, EXACT),
    ("fp-grid", "", "finite_count", 253, EXACT),
]

# "Reference points": llama.cpp tools/quantize/README.md; vLLM PR 12569 and issue 10517 (their "GB" is GiB).
REFERENCE = [
    ("quant-size", "model=llama-3.1-8b scheme=custom custom_bpw=4.8944 keep_embeddings_bf16=false", "size_gib", 4.58, 2e-3),
    ("quant-size", "model=llama-3.1-8b scheme=custom custom_bpw=16 keep_embeddings_bf16=false", "size_gib", 14.96, 1e-3),
    ("quant-size", "model=llama-3.1-8b scheme=custom custom_bpw=8.5008 keep_embeddings_bf16=false", "size_gib", 7.95, 1e-3),
    # other rows of the same two tables that the page does not print
    *[
        ("quant-size", f"model=llama-3.1-8b scheme=custom custom_bpw={bits} keep_embeddings_bf16=false", "size_gib", gib, 3e-3)
        for bits, gib in ((2.3824, 2.23), (3.6429, 3.41), (4.4597, 4.17), (5.7036, 5.33), (6.5633, 6.14))
    ],
    ("quant-size", "model=llama-3.1-405b scheme=custom custom_bpw=4.8944 keep_embeddings_bf16=false", "size_gb", 249.1, 5e-3),
    ("quant-size", "model=llama-3.1-70b scheme=int8", "size_gib", 67.7229, 2e-3),
    ("quant-size", "model=llama-3.1-70b scheme=int8", "size_gib", 67.67, 1e-4),
    ("quant-size", "model=llama-3.1-8b scheme=bf16", "size_gib", 14.9888, 3e-3),
    ("quant-size", "model=llama-3.1-8b scheme=bf16", "size_gib", 14.957, 1e-4),
    # section 一: published 70B Q4_K_M 43.1 GB, the 8B average predicts 43.2
    ("quant-size", "model=llama-3.1-70b scheme=custom custom_bpw=4.8944 keep_embeddings_bf16=false", "size_gb", 43.1, 3e-3),
]

# Sections, "Figures to quote": as printed, to half a last digit.
QUOTED = [
    *[
        ("quant-size", f"scheme={s}", "size_gb", gb)
        for s, gb in (
            ("bf16", "16.06"),
            ("int8", "9.08"),
            ("fp8", "9.08"),
            ("int4-g128-zp", "5.73"),
            ("int4-g32", "6.03"),
            ("mxfp4", "5.81"),
            ("nvfp4", "6.03"),
        )
    ],
    *[
        ("quant-size", f"model=llama-3-70b scheme={s}", "size_gb", gb)
        for s, gb in (("bf16", "141.11"), ("int8", "72.66"), ("int4-g128", "39.50"), ("int4-g128-zp", "39.77"), ("mxfp4", "40.57"), ("nvfp4", "42.71"))
    ],
    ("quant-size", "model=qwen2.5-7b", "size_gb", "5.54"),
    ("quant-size", "scheme=int4-g128-zp", "bits_per_weight", "4.156"),
    ("quant-size", "scheme=custom custom_zero_bits=16", "bits_per_weight", "4.25"),
    ("quant-size", "scheme=int4-g32", "bits_per_weight", "4.5"),
    ("quant-size", "scheme=mxfp4", "bits_per_weight", "4.25"),
    ("quant-size", "scheme=nvfp4", "bits_per_weight", "4.5"),
    ("quant-speed", "", "step_ms", "1.78"),
    ("quant-speed", "", "speedup", "3.17"),
    ("quant-speed", NAMED["FP8"], "step_ms", "3.05"),
    ("quant-speed", "act_precision=fp8 weight_bpw=8", "speedup", "1.85"),
    ("quant-speed", NAMED["FP8-KV"], "speedup", "1.87"),
    *[
        ("quant-speed", f"{NAMED[scheme]} batch={b}", "speedup", x)
        for scheme, row in {"W4A16": ("2.16", "1.47", "1.27"), "FP8": ("1.57", "1.28", "1.16"), "FP8-KV": ("1.90", "1.94", "1.96")}.items()
        for b, x in zip((32, 128, 256), row, strict=True)
    ],
    ("quant-speed", "", "base_prefill_ms", "64.4"),
    ("quant-speed", NAMED["FP8"], "prefill_ms", "33.3"),
    ("quant-speed", NAMED["FP8"], "prefill_speedup", "1.93"),
    *[
        ("fp-grid", query, output, shown)
        for query, row in {
            "": ("448", "253"),
            "exp_bits=5 man_bits=2 special=ieee": ("57344", "247"),
            "exp_bits=2 man_bits=1 special=none": ("6", "15"),
            "exp_bits=3 man_bits=2 special=none": ("28", "63"),
            "exp_bits=2 man_bits=3 special=none": ("7.5", "63"),
        }.items()
        for output, shown in zip(("max_value", "finite_count"), row, strict=True)
    ],
]

# quant-error at the default seeds, band ±10 % (random streams may change between numpy versions).
ERRORS = {
    "err_int8_tensor_pct": 1.079, "err_int8_row_pct": 0.700, "err_int4_tensor_pct": 19.52, "err_int4_row_pct": 12.76, "err_int4_g128_pct": 11.81,
    "err_int4_g32_pct": 9.787, "err_mxfp4_pct": 11.42, "err_nvfp4_pct": 9.497, "err_fp8_tensor_pct": 2.635, "outlier_err_int8_tensor_pct": 8.746,
    "outlier_err_int8_row_pct": 1.920, "outlier_err_int4_tensor_pct": 86.17, "outlier_err_int4_row_pct": 28.74, "outlier_err_int4_g128_pct": 21.47,
    "outlier_err_int4_g32_pct": 12.56, "outlier_err_mxfp4_pct": 13.85, "outlier_err_nvfp4_pct": 9.344, "outlier_err_fp8_tensor_pct": 2.555,
    "outlier_normal_err_int4_tensor_pct": 99.73, "act_normal_std_steps": 0.797, "act_err_tensor_pct": 7.399, "act_err_tensor_normal_pct": 37.29,
    "act_err_token_pct": 3.400, "act_err_channel_pct": 0.935, "act_clean_tensor_pct": 1.230, "act_clean_token_pct": 0.998, "act_err_split_pct": 0.198,
    "sq_err_a025_pct": 1.171, "sq_err_a050_pct": 0.659, "sq_err_a075_pct": 1.193, "sq_err_a100_pct": 3.073, "w4_rtn_outlier_pct": 12.05, "awq4_err_pct": 4.983,
    "w3_rtn_outlier_pct": 27.43, "awq3_err_pct": 11.82, "keep4_err_pct": 2.356, "keep3_err_pct": 5.458, "rtn4_err_pct": 11.76, "gptq4_err_pct": 4.367,
    "rtn3_err_pct": 27.57, "gptq3_err_pct": 10.24,
}  # fmt: skip


@pytest.mark.parametrize(("id", "query", "output", "expected", "tolerance"), DEFAULTS + REFERENCE)
def test_value(id, query, output, expected, tolerance):
    actual = value(id, query, output)
    if isinstance(expected, bool):
        assert actual is expected
    else:
        assert actual == pytest.approx(expected, rel=tolerance)


@pytest.mark.parametrize(("id", "query", "output", "printed"), QUOTED)
def test_quoted_figure(id, query, output, printed):
    half = 0.5 * 10 ** -len(printed.partition(".")[2])
    assert value(id, query, output) == pytest.approx(float(printed), abs=half * 1.0001)


def test_e5m2_smallest():
    assert value("fp-grid", "exp_bits=5 man_bits=2 special=ieee", "min_subnormal") == pytest.approx(1.526e-5, rel=1e-4)
    assert value("fp-grid", "exp_bits=2 man_bits=1 special=none", "first_values") == [0.5, 1, 1.5, 2, 3, 4, 6]


@pytest.mark.parametrize(("output", "expected"), ERRORS.items())
def test_error(output, expected):
    assert value("quant-error", "", output) == pytest.approx(expected, rel=0.1)


def test_error_orderings():
    v = run("quant-error").values
    order = ("int8_row", "int8_tensor", "fp8_tensor", "nvfp4", "int4_g32", "mxfp4", "int4_g128", "int4_row", "int4_tensor")
    errors = [v[f"err_{name}_pct"] for name in order]
    assert errors == sorted(errors)
    assert len(set(errors)) == len(errors)
    assert v["awq4_alpha"] == pytest.approx(0.3, abs=0.11)
    assert v["sq_err_a025_pct"] > v["sq_err_a050_pct"] < v["sq_err_a075_pct"] < v["sq_err_a100_pct"]


@pytest.mark.parametrize("seed", [3, 11, 2026])
def test_orderings_hold_for_other_seeds(seed):
    """Finer scales never lose; the cures beat one scale for the whole tensor."""
    v = run("quant-error", f"weight_seed={seed} act_seed={seed} gptq_seed={seed}").values
    for kind in ("err", "outlier_err"):
        rows = [v[f"{kind}_int4_{name}_pct"] for name in ("tensor", "row", "g128", "g32")]
        assert rows == sorted(rows, reverse=True)
    assert v["act_err_tensor_pct"] > v["act_err_token_pct"] > v["sq_err_a050_pct"] > v["act_err_split_pct"]
    assert v["gptq4_err_pct"] < 0.6 * v["rtn4_err_pct"]
    assert v["awq3_err_pct"] < v["w3_rtn_outlier_pct"]


@pytest.mark.parametrize("seed", range(5))
def test_picture_shows_one_group_lost_and_the_next_one_kept(seed):
    """The outlier's own group of 32 is rounded to zero, the group beside it is not; one scale for all loses both."""
    part = weights_part(seed, 20.0)
    original, tensor, _, _, g32, _ = part.neighbours
    own, other = (slice(0, 4), slice(4, 8)) if part.outlier_at < 4 else (slice(4, 8), slice(0, 4))
    assert abs(original[part.outlier_at]) == max(map(abs, original))
    assert [x for j, x in enumerate(tensor) if x and j != part.outlier_at] == []
    assert sum(x == 0 for x in g32[own]) >= sum(x == 0 for x in g32[other])
    assert any(g32[other])


def test_larger_outliers_break_the_coarse_scale_only():
    mild, wild = run("quant-error", "weight_outlier_scale=1").values, run("quant-error", "weight_outlier_scale=100").values
    assert wild["outlier_err_int4_g32_pct"] < 16
    assert mild["outlier_err_int4_tensor_pct"] == pytest.approx(mild["err_int4_tensor_pct"], rel=1e-9)
    assert wild["outlier_normal_err_int4_tensor_pct"] == pytest.approx(100, abs=0.01)


def test_each_bit_is_about_6_db():
    """12.76 % / 0.700 % over 4 bits of the integer grid: within 0.4 dB of 20·log10(2) a bit (the grid has 2^b − 2 steps)."""
    rng = np.random.default_rng(9)
    X = rng.standard_normal((64, 256))
    errors = [error_pct(X, integers(X, b, X.size)) for b in (6, 7, 8, 9, 10)]
    steps = [20 * np.log10(a / b) for a, b in pairwise(errors)]
    assert steps == pytest.approx([6.02] * 4, abs=0.2)


def test_formats_are_idempotent():
    """Quantising what was quantised changes nothing (integers and FP8: the largest value stays on the grid)."""
    W = np.random.default_rng(4).standard_normal((32, 256))
    for name in ("int8_tensor", "int8_row", "int4_row", "int4_g128", "int4_g32", "fp8_tensor"):
        once = WEIGHT_FORMATS[name](W)
        assert np.allclose(WEIGHT_FORMATS[name](once), once, rtol=1e-9)


def test_gptq_without_correlation_is_rounding():
    """Orthogonal inputs: nothing can be pushed onto another column."""
    X = np.linalg.qr(np.random.default_rng(6).standard_normal((64, 64)))[0]
    W = np.random.default_rng(7).standard_normal((16, 64))
    assert np.allclose(gptq(W, X, 4), integers(W, 4, 64))


@pytest.mark.parametrize("name", ["e4m3", "e5m2", "e2m1", "fp16"])
def test_fp_grid_agrees_with_the_formats_of_chapter_06(name):
    f = FORMATS[name]
    values = positive_values(f.exp_bits, f.man_bits, f.bias, f.special)
    assert (values[-1], values[0]) == (f.largest, f.min_subnormal)
    assert values == sorted(set(values))
    assert all(f.nearest(x) == x for x in values[:: max(1, len(values) // 100)])


@given(st.integers(1, 8), st.integers(0, 7), st.sampled_from(["ieee", "fn", "none"]))
@SETTINGS
def test_grid_counts(exp_bits, man_bits, special):
    """2^(e+m) codes a side, without zero and without the special ones."""
    taken = {"ieee": 2**man_bits, "fn": 1, "none": 0}[special]
    assert len(positive_values(exp_bits, man_bits, 3, special)) == max(2 ** (exp_bits + man_bits) - 1 - taken, 0)


@given(st.integers(1, 16), st.integers(0, 32), st.integers(0, 32), st.integers(1, 4096))
@SETTINGS
def test_overhead_shrinks_with_the_group(bits, scale, zero, group):
    assert bits <= bits_per_weight(bits, scale, zero, 2 * group) <= bits_per_weight(bits, scale, zero, group)


def test_size_is_the_sum_of_its_parts_for_every_model():
    for id in models():
        v = run("quant-size", f"model={id} scheme=int8").values
        assert v["size_gb"] == pytest.approx(v["linear_gb"] + v["scales_gb"] + v["tables_gb"])


def test_weight_only_never_speeds_up_prefill():
    for model in ("llama-3-8b", "mixtral-8x7b", "deepseek-v3"):
        assert value("quant-speed", f"model={model} gpu=a100-80gb", "prefill_speedup") == pytest.approx(1)
    assert value("quant-speed", "dequant_eff=0.7", "prefill_speedup") < 0.75


def test_weight_only_gain_vanishes_when_compute_bound():
    v = run("quant-speed", "batch=4096 context_tokens=1").values
    assert v["memory_bound"] is False
    assert v["speedup"] == pytest.approx(1)
    gains = [value("quant-speed", f"batch={b}", "speedup") for b in (1, 8, 64, 512, 4096)]
    assert gains == sorted(gains, reverse=True)
    # sections 二 and 六: a short context fills the arithmetic first; a 70B does so at 1024 tokens
    assert run("quant-speed", "batch=512 context_tokens=128").values["memory_bound"] is False
    assert value("quant-speed", "batch=512 context_tokens=128", "speedup") == pytest.approx(1)
    assert run("quant-speed", "model=llama-3-70b batch=256").values["memory_bound"] is False


def test_pays_until_batch():
    last = value("quant-speed", "", "pays_until_batch")
    assert value("quant-speed", f"batch={last}", "speedup") >= 1.2 > value("quant-speed", f"batch={last + 1}", "speedup")
    assert value("quant-speed", "weight_bpw=16", "pays_until_batch") is None


def test_tinychat_measured_lies_below_the_prediction():
    """llm-awq tinychat README, RTX 4090: 17.07 → 6.66 ms = 2.56×, below the byte ratio's 3.17×."""
    predicted = value("quant-speed", "gpu=rtx-4090", "speedup")
    assert 0.7 * predicted <= 17.07 / 6.66 <= 0.95 * predicted
    read = value("quant-speed", "gpu=rtx-4090 context_tokens=1 mbu=1", "base_step_ms")
    assert read == pytest.approx(14.9, abs=0.05)
    assert read / 17.07 == pytest.approx(0.87, abs=0.005)


@pytest.mark.parametrize(
    ("target", "printed"),
    [
        # IST-DASLab/gptq and mit-han-lab/smoothquant READMEs, llama.cpp tools/quantize/README.md: the section's ratios
        ("ref:gptq-llama-ratios#gptq4_7b", 0.072),
        ("ref:gptq-llama-ratios#gptq4_65b", 0.088),
        ("ref:smoothquant-ratios#llama2_7b", 0.007),
        ("ref:smoothquant-ratios#llama3_8b", 0.020),
        ("ref:smoothquant-ratios#llama3_70b", 0.044),
        ("ref:gptq-llama-ratios#rtn3_7b", 4.50),
        ("ref:llama-cpp-ratios#speed_x", 2.47),
        ("ref:llama-cpp-ratios#bytes_x", 3.27),
        ("ref:llama-cpp-prefill-loss#slower", 0.110),
        ("ref:int8-saves#less", 0.485),
        ("ref:naive-4bit#g128", 0.12),
        ("ref:naive-4bit#q4km", 0.22),
        ("ref:bits-and-error#step_in_sigma", 1.25),
    ],
)
def test_ratio(target, printed):
    found = resolve(target)
    share = found.text.endswith("%")
    half = 0.5 * 10 ** -(2 if printed > 1 or printed in (0.12, 0.22) else 3)
    assert found.value / (100 if share else 1) == pytest.approx(printed, abs=half * 1.001)


@pytest.mark.parametrize(
    ("id", "query", "field", "part"),
    [
        ("quant-size", "model=gpt-oss-20b", "scheme", "2880 / 128"),
        ("quant-size", "scheme=custom custom_group=4097", "custom_group", "4096 / 4097"),
        ("quant-size", "scheme=custom custom_bpw=0.5", "custom_bpw", "1 到 16"),
        ("quant-size", "scheme=custom custom_bits=17", "custom_bits", "16"),
        ("quant-speed", "gpu=a100-80gb act_precision=fp8", "act_precision", "FP8"),
        ("quant-speed", "gpu=rtx-3090 act_precision=fp8", "act_precision", "FP8"),
        ("quant-speed", "gpu=ascend-910b act_precision=fp8", "act_precision", "FP8"),
        ("quant-speed", "gpu=h100-sxm act_precision=fp4", "act_precision", "FP4"),
        ("fp-grid", "exp_bits=8 man_bits=8", "man_bits", "15"),
        ("fp-grid", "exp_bits=1 man_bits=0", "special", "0"),
    ],
)
def test_refusals(id, query, field, part):
    error = refusal(id, query)
    assert error.field == field
    assert part in error.message


def test_the_4090_has_fp8_and_blackwell_fp4():
    assert value("quant-speed", "gpu=rtx-4090 act_precision=fp8 weight_bpw=8", "prefill_speedup") > 1.8
    assert value("quant-speed", "gpu=b200 act_precision=fp4 weight_bpw=4.5", "prefill_speedup") > 2
    assert value("quant-size", "model=gpt-oss-20b scheme=mxfp4", "bits_per_weight") == 4.25


def test_charts():
    (bars,) = load("quant-size").charts(run("quant-size"))
    assert isinstance(bars, BarChart)
    assert sum(p.value for p in next(b for b in bars.bars if b.emphasis).parts) == pytest.approx(5.70020, rel=1e-6)
    (line,) = load("quant-speed").charts(run("quant-speed"))
    assert isinstance(line, LineChart)
    assert len(line.series) >= 3
