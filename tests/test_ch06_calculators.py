"""Chapter 06: float-ruler, grad-underflow, lost-update, accum-precision, fp8-scaling, bytes-per-param, precision-speedup.

Expected values: the chapter's specification unless a row names its source.
"""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from asking import refusal, run, value

from calculators.catalog import accelerator
from calculators.catalog.references import references
from calculators.core.index import load
from calculators.formulas.amdahl import accelerated_share, overall_speedup
from calculators.formulas.memory import STATE_RECIPES
from calculators.formulas.number_formats import FORMATS
from calculators.formulas.recipes import RECIPES, sharded_bytes_per_param
from calculators.single_gpu._rounding import nearest
from calculators.single_gpu.accum_precision import running_sums
from calculators.single_gpu.fp8_scaling import GRANULARITIES
from calculators.single_gpu.grad_underflow import share_above, share_below, zero_exponent
from calculators.single_gpu.lost_update import walk

EXPERIMENTS = ("grad-underflow", "lost-update", "accum-precision", "fp8-scaling")
EXACT = 1e-12


# Rows: calculator, inputs that differ from the defaults, output, expected, absolute tolerance.
DEFAULTS = [
    ("grad-underflow", "", "zero_pct", 27.44, 0.3),
    ("grad-underflow", "", "subnormal_pct", 67.07, 0.4),
    ("grad-underflow", "", "inf_pct", 0, 0.001),
    ("grad-underflow", "", "zero_closed_form_pct", 27.425, 0.001),
    ("bytes-per-param", "", "bytes_per_param", 12, EXACT),
    ("bytes-per-param", "", "total_gb", 84, EXACT),
    ("bytes-per-param", "", "weights_gb", 14, EXACT),
    ("bytes-per-param", "", "grads_gb", 14, EXACT),
    ("bytes-per-param", "", "master_gb", 0, EXACT),
    ("bytes-per-param", "", "moments_gb", 56, EXACT),
    ("bytes-per-param", "", "transient_gb", 0, EXACT),
    ("bytes-per-param", "recipe=amp-autocast", "transient_gb", 14, EXACT),
    ("lost-update", "", "w_final", 1.0, EXACT),
    ("lost-update", "", "w_std", 0, EXACT),
    ("lost-update", "", "lost_pct", 100, EXACT),
    ("lost-update", "fmt=bf16-SR", "w_final", 2.0015, 0.02),
    ("lost-update", "fmt=bf16-SR", "w_std", 0.0825, 0.01),
    ("accum-precision", "", "err_fp16_pct", 9.457, 0.5),
    ("accum-precision", "", "err_chunked_pct", 0.0744, 0.01),
    ("accum-precision", "", "err_fp32_pct", 0.00022, 0.0005),
    ("fp8-scaling", "", "rel_rms_err_pct", 2.653, 0.05),
    ("fp8-scaling", "", "zero_pct", 0.037, 0.015),
    ("precision-speedup", "", "peak_ratio_x", 2.001, 5e-4),
    ("precision-speedup", "", "predicted_speedup_x", 1.588, 5e-4),
    ("precision-speedup", "", "measured_speedup_x", 1.306, 5e-4),
    ("precision-speedup", "", "implied_share_pct", 46.84, 5e-3),
]

BINDINGS = [
    ("grad-underflow", "log2_scale=3", "zero_pct", 11.5, 0.3),
    ("grad-underflow", "log2_scale=3", "subnormal_pct", 72.6, 0.4),
    ("grad-underflow", "log2_scale=10", "zero_pct", 0.49, 0.1),
    ("grad-underflow", "log2_scale=10", "subnormal_pct", 34.0, 0.4),
    ("grad-underflow", "log2_scale=15", "zero_pct", 0.015, 0.01),
    ("grad-underflow", "log2_scale=15", "subnormal_pct", 8.1, 0.3),
    ("grad-underflow", "log2_scale=15", "inf_pct", 0.0005, 0.001),
    ("grad-underflow", "log2_scale=16", "zero_pct", 0.008, 0.01),
    ("grad-underflow", "log2_scale=16", "subnormal_pct", 5.5, 0.3),
    ("grad-underflow", "log2_scale=24", "subnormal_pct", 0.07, 0.03),
    ("grad-underflow", "log2_scale=24", "inf_pct", 0.25, 0.05),
    ("grad-underflow", "log2_scale=30", "inf_pct", 5.5, 0.3),
    ("grad-underflow", "fmt=bf16", "zero_pct", 0, EXACT),
    ("grad-underflow", "fmt=bf16", "subnormal_pct", 0, EXACT),
    ("grad-underflow", "fmt=bf16", "inf_pct", 0, EXACT),
    ("grad-underflow", "fmt=e5m2", "zero_pct", 84.14, 0.3),
    ("grad-underflow", "fmt=e5m2", "subnormal_pct", 9.9, 0.3),
    ("grad-underflow", "log2_scale=3", "zero_closed_form_pct", 11.51, 0.005),
    ("grad-underflow", "log2_scale=15", "zero_closed_form_pct", 0.016, 0.0005),
    ("grad-underflow", "log2_scale=30", "inf_closed_form_pct", 5.48, 0.005),
    ("bytes-per-param", "recipe=fp32", "total_gb", 112, EXACT),
    ("bytes-per-param", "recipe=amp-autocast", "total_gb", 112, EXACT),
    ("bytes-per-param", "recipe=zero-16", "total_gb", 112, EXACT),
    ("bytes-per-param", "recipe=megatron-18", "total_gb", 126, EXACT),
    ("bytes-per-param", "recipe=bf16-8", "total_gb", 56, EXACT),
    ("bytes-per-param", "recipe=bf16mv-12", "total_gb", 84, EXACT),
    ("bytes-per-param", "recipe=8bit-10", "total_gb", 70, EXACT),
    ("bytes-per-param", "recipe=fp8-13", "total_gb", 91, EXACT),
    ("lost-update", "fmt=fp16", "w_final", 1.9765625, EXACT),
    ("lost-update", "fmt=fp32", "w_final", 2.00005, 5e-6),
    ("lost-update", "update=3e-4", "w_final", 1.0, EXACT),
    ("lost-update", "update=3e-4 fmt=fp16", "w_final", 1.0, EXACT),
    ("lost-update", "update=3e-4 fmt=fp32", "w_final", 1.30005, 1e-5),
    ("lost-update", "w0=0 update=1 steps=10000", "w_final", 256, EXACT),
    ("lost-update", "w0=0 update=1 steps=10000 fmt=fp16", "w_final", 2048, EXACT),
    ("lost-update", "w0=0 update=1 steps=10000 fmt=fp32", "w_final", 10_000, EXACT),
    ("lost-update", "", "min_update", 2.0**-8, EXACT),
    ("lost-update", "update=3e-4 fmt=fp16", "min_update", 2.0**-11, EXACT),
    ("fp8-scaling", "fmt=int8", "rel_rms_err_pct", 48.79, 0.9),
    ("fp8-scaling", "fmt=int8", "zero_pct", 60, 1),
    ("fp8-scaling", "outlier_mult=10000", "zero_pct", 3.7, 0.2),
    ("fp8-scaling", "granularity=mx32", "rel_rms_err_pct", 2.65, 0.05),
    ("fp8-scaling", "fmt=int8 granularity=mx32", "rel_rms_err_pct", 3.2, 0.1),
]

# Rows: format, outlier, then per-tensor / per-row / 1×128 in percent.
SCALING = [
    ("e4m3", "1", (2.64, 2.66, 2.58)),
    ("int8", "1", (1.08, 0.88, 0.65)),
    ("e4m3", "100", (2.65, 2.65, 2.58)),
    ("int8", "100", (48.8, 25.6, 4.4)),
    ("e4m3", "10000", (3.24, 2.79, 2.58)),
    ("int8", "10000", (100, 98.3, 17.2)),
]


@pytest.mark.parametrize(("id", "query", "output", "expected", "tolerance"), DEFAULTS + BINDINGS)
def test_values_of_the_specification(id, query, output, expected, tolerance):
    assert value(id, query, output) == pytest.approx(expected, rel=1e-12, abs=tolerance)


@pytest.mark.parametrize("id", EXPERIMENTS)
def test_experiments_return_plain_python_numbers(id):
    for name, result in run(id).values.items():
        cells = [cell for row in result for cell in row.values()] if isinstance(result, list) else [result]
        assert all(type(cell) in (int, float, bool, str, type(None)) for cell in cells), name


class TestFormats:
    """Table of the specification: exponent and fraction bits, largest, smallest, spacing, bytes."""

    @pytest.mark.parametrize(
        ("id", "bits", "largest", "min_normal", "min_subnormal", "eps", "bytes"),
        [
            ("fp32", (8, 23), 3.40e38, 1.18e-38, 1.4e-45, 1.19e-7, 4),
            ("tf32", (8, 10), 3.40e38, 1.18e-38, None, 9.77e-4, 4),
            ("fp16", (5, 10), 65504, 6.10e-5, 5.96e-8, 9.77e-4, 2),
            ("bf16", (8, 7), 3.39e38, 1.18e-38, 9.2e-41, 7.81e-3, 2),
            ("e4m3", (4, 3), 448, 0.0156, 0.00195, 0.125, 1),
            ("e5m2", (5, 2), 57344, 6.10e-5, 1.53e-5, 0.25, 1),
            ("e2m1", (2, 1), 6, 1, 0.5, 0.5, 0.5),
        ],
    )
    def test_table(self, id, bits, largest, min_normal, min_subnormal, eps, bytes):
        values = run("float-ruler", f"fmt={id}").values
        assert (FORMATS[id].exp_bits, FORMATS[id].man_bits) == bits
        assert values["largest"] == pytest.approx(largest, rel=2e-3)
        assert values["min_normal"] == pytest.approx(min_normal, rel=5e-3)
        assert values["min_subnormal"] == (None if min_subnormal is None else pytest.approx(min_subnormal, rel=5e-3))
        assert values["eps"] == pytest.approx(eps, rel=2e-3)
        assert values["bytes"] == bytes
        assert (values["exp_bits"], values["man_bits"], values["bits"]) == (*bits, 1 + sum(bits))

    def test_numpy_agrees_about_its_own_formats(self):
        for id, kind in (("fp16", np.float16), ("fp32", np.float32)):
            info, f = np.finfo(kind), FORMATS[id]
            assert (f.largest, f.min_normal, f.min_subnormal, f.eps) == (info.max, info.smallest_normal, info.smallest_subnormal, info.eps)

    def test_e2m1_holds_eight_magnitudes(self):
        """OCP Microscaling v1.0; also chapter 18: {0, .5, 1, 1.5, 2, 3, 4, 6}."""
        stored = {FORMATS["e2m1"].nearest(x / 64) for x in range(385)}
        assert stored == {0, 0.5, 1, 1.5, 2, 3, 4, 6}

    def test_e4m3_and_e5m2_have_as_many_values_as_their_codes(self):
        """253 and 247 finite values (chapter 18), that is 126 and 123 positive ones."""
        for id, positive in (("e4m3", 126), ("e5m2", 123)):
            f, count, x = FORMATS[id], 0, 0.0
            while x < f.largest:
                x += f.spacing(x) if x else f.min_subnormal
                count += 1
                assert f.nearest(x) == x
            assert (x, count) == (f.largest, positive)

    def test_rounding_is_numpys_float16(self):
        rng = np.random.default_rng(7)
        x = np.concatenate([rng.standard_normal(4000) * 2.0 ** rng.integers(-30, 18, 4000), [65519.9, 65520.0, 2.0**-25, 1.5 * 2.0**-25, 0.0, -1e-9]])
        with np.errstate(over="ignore"):
            expected = x.astype(np.float16).astype(float)
        assert np.array_equal(nearest(x, FORMATS["fp16"]), expected)
        assert [FORMATS["fp16"].nearest(float(v)) for v in x] == expected.tolist()

    @pytest.mark.parametrize("id", list(FORMATS))
    def test_array_and_scalar_rounding_agree(self, id):
        x = np.random.default_rng(3).standard_normal(500) * 2.0 ** np.arange(-40, 10, 0.1)
        assert nearest(x, FORMATS[id]).tolist() == [FORMATS[id].nearest(float(v)) for v in x]

    def test_e5m2_overflows_above_61440(self):
        """IEEE-like: the step at the top is 8192, so 61 440 is the tie that rounds to infinity."""
        assert FORMATS["e5m2"].nearest(61439.0) == 57344
        assert math.isinf(FORMATS["e5m2"].nearest(61441.0))

    @pytest.mark.parametrize(
        ("query", "kind", "stored"),
        [
            ("", "溢出", None),
            ("fmt=bf16", "正常", 70144),
            ("x=65504", "正常", 65504),
            ("x=3e-8", "次正规", 2.0**-24),
            ("x=2e-8", "归零", 0),
            ("x=-1e-5", "次正规", -168 * 2.0**-24),
            ("x=0", "正常", 0),
            ("x=449 fmt=e4m3", "正常", 448),
            ("x=465 fmt=e4m3", "溢出", None),
            ("x=1.001 fmt=bf16", "正常", 1.0),
        ],
    )
    def test_ruler(self, query, kind, stored):
        values = run("float-ruler", query).values
        assert (values["kind"], values["stored"]) == (kind, stored)

    def test_bf16_is_eight_times_coarser_than_fp16(self):
        assert FORMATS["bf16"].eps / FORMATS["fp16"].eps == 8
        assert (value("float-ruler", "fmt=bf16", "significand_bits"), value("float-ruler", "fmt=fp16", "significand_bits")) == (8, 11)

    def test_bf16_reaches_as_far_as_fp32(self):
        assert FORMATS["bf16"].min_normal == FORMATS["fp32"].min_normal
        assert FORMATS["bf16"].max_exponent == FORMATS["fp32"].max_exponent


class TestGradUnderflow:
    """The simulation against the normal distribution, and what scaling can and cannot change."""

    def test_zero_begins_at_half_the_smallest_subnormal(self):
        assert (zero_exponent(FORMATS["fp16"]), zero_exponent(FORMATS["e5m2"])) == (-25, -17)

    @pytest.mark.parametrize("scale", [0, 3, 10, 15, 16, 24, 30])
    @pytest.mark.parametrize("fmt", ["fp16", "e5m2"])
    def test_simulation_follows_the_closed_form(self, fmt, scale):
        values = run("grad-underflow", f"fmt={fmt} log2_scale={scale}").values
        assert values["zero_pct"] == pytest.approx(values["zero_closed_form_pct"], abs=0.3)
        assert values["inf_pct"] == pytest.approx(values["inf_closed_form_pct"], abs=0.3)

    @pytest.mark.parametrize("scale", [0, 8, 15, 30])
    def test_closed_form_is_the_normal_distribution(self, scale):
        exponent = statistics.NormalDist(-22 + scale, 5)
        values = run("grad-underflow", f"log2_scale={scale}").values
        assert values["zero_closed_form_pct"] == pytest.approx(100 * exponent.cdf(-25), rel=1e-6)
        assert values["inf_closed_form_pct"] == pytest.approx(100 * (1 - exponent.cdf(16)), rel=1e-3, abs=1e-9)

    def test_no_spread_is_a_step(self):
        assert [share_below(-25, m, 0) for m in (-26.0, -25.0, -24.0)] == [1, 1, 0]
        assert [share_above(16, m, 0) for m in (15.0, 16.0, 17.0)] == [0, 1, 1]
        assert value("grad-underflow", "log2_mean=-30 log2_std=0", "zero_pct") == 100

    @pytest.mark.parametrize("fmt", ["fp16", "bf16"])
    def test_a_power_of_two_changes_nothing_but_under_and_overflow(self, fmt):
        """Normal results divided by the scale are those without a scale."""
        g = np.exp2(np.random.default_rng(0).uniform(-10, -2, 2000))
        for scale in (2.0**3, 2.0**10):
            assert np.array_equal(nearest(g * scale, FORMATS[fmt]) / scale, nearest(g, FORMATS[fmt]))

    def test_shares_add_up_and_scaling_trades_one_end_for_the_other(self):
        zeros, infs = zip(
            *((value("grad-underflow", f"log2_scale={s}", "zero_pct"), value("grad-underflow", f"log2_scale={s}", "inf_pct")) for s in range(0, 31, 5)),
            strict=True,
        )
        assert list(zeros) == sorted(zeros, reverse=True)
        assert list(infs) == sorted(infs)
        v = run("grad-underflow").values
        assert v["zero_pct"] + v["subnormal_pct"] + v["inf_pct"] < 100

    def test_one_infinity_skips_the_step(self):
        """At 2^14 nothing overflows, at 2^15 one of 200 000 gradients does."""
        safe = value("grad-underflow", "", "largest_safe_log2_scale")
        below, above = (run("grad-underflow", f"log2_scale={safe + more}").values for more in (0, 1))
        assert (below["inf_pct"], below["step_skipped"]) == (0, False)
        assert above["step_skipped"] is True
        assert above["inf_pct"] == pytest.approx(0.0005)

    def test_verdict_names_the_way_out(self):
        assert "scale 最大可以到 2 的 14 次方" in run("grad-underflow").verdict
        assert "整个跳过" in run("grad-underflow", "log2_scale=30").verdict
        assert "不用放大" in run("grad-underflow", "fmt=bf16").verdict
        assert "合用" in run("grad-underflow", "log2_scale=14").verdict
        assert "不用放大" in run("grad-underflow", "fmt=bf16 log2_scale=30").verdict
        assert "窗口装不下" in run("grad-underflow", "fmt=e5m2 log2_scale=14").verdict

    @pytest.mark.parametrize(
        ("query", "field"), [("log2_std=-1", "log2_std"), ("n=500001", "n"), ("n=10", "n"), ("log2_scale=31", "log2_scale"), ("fmt=fp8", "fmt")]
    )
    def test_refusals(self, query, field):
        assert refusal("grad-underflow", query).errors[0].field == field


class TestLostUpdate:
    """Rounding loops against other ways to write them."""

    def test_bf16_bits_agree_with_the_format(self):
        taken = walk("bf16", 1.0, 5e-3, 300, 0)
        w = 1.0
        for _ in range(300):
            w = FORMATS["bf16"].nearest(float(np.float32(w) + np.float32(5e-3)))
        assert taken.end == w

    def test_fp16_agrees_with_the_format(self):
        w = 1.0
        for _ in range(1000):
            w = FORMATS["fp16"].nearest(w + float(np.float16(1e-3)))
        assert value("lost-update", "fmt=fp16", "w_final") == w

    @pytest.mark.parametrize(("fmt", "threshold"), [("bf16", 2.0**-8), ("fp16", 2.0**-11), ("fp32", 2.0**-24)])
    def test_half_a_step_is_lost_and_a_little_more_is_not(self, fmt, threshold):
        """At 1.0, whose fraction is even, the tie goes back to 1.0."""
        assert value("lost-update", f"fmt={fmt} update={threshold!r}", "stalled_at") == 0
        assert value("lost-update", f"fmt={fmt} update={threshold * 1.01!r} steps=1", "w_final") > 1

    def test_spacing_below_a_power_of_two_is_half(self):
        assert value("lost-update", "update=-1e-3", "min_update") == 2.0**-9

    def test_stochastic_rounding_has_no_threshold(self):
        result = run("lost-update", "fmt=bf16-SR")
        assert result.values["min_update"] is None
        assert not any("舍掉" in line for line in result.lines)

    def test_sums_of_ones_stop(self):
        assert value("lost-update", "w0=0 update=1 steps=10000", "stalled_at") == 256
        assert value("lost-update", "w0=0 update=1 steps=10000 fmt=fp16", "stalled_at") == 2048
        assert value("lost-update", "w0=0 update=1 steps=2048 fmt=fp16", "stalled_at") is None

    def test_stochastic_rounding_is_unbiased(self):
        """Mean over seeds: 1000 weights × 8 seeds, standard error 0.0825 / √8000 ≈ 0.0009."""
        means = [value("lost-update", f"fmt=bf16-SR seed={seed}", "w_final") for seed in range(8)]
        assert statistics.mean(means) == pytest.approx(2.0, abs=0.004)

    def test_stochastic_rounding_never_leaves_the_grid(self):
        """Without an update nothing moves."""
        assert value("lost-update", "fmt=bf16-SR update=0", "w_final") == 1.0
        assert value("lost-update", "fmt=bf16-SR update=0", "lost_pct") is None

    def test_chart_draws_four_lines(self):
        (chart,) = load("lost-update").charts(run("lost-update"))
        assert [s.name for s in chart.series] == ["BF16", "FP16", "FP32", "BF16 随机舍入"]

    @pytest.mark.parametrize(
        ("query", "field", "words"),
        [
            ("steps=0", "steps", "1 到"),
            ("steps=20001", "steps", "20,000"),
            ("w0=65600 fmt=fp16", "w0", "65,504"),
            ("update=1e6 fmt=fp16", "update", "65,504"),
            ("update=1e39", "update", "BF16"),
            ("w0=60000 update=100 fmt=fp16", "steps", "溢出"),
            ("update=nan", "update", "数字"),
            ("w0=1e999", "w0", "有限"),
        ],
    )
    def test_refusals(self, query, field, words):
        error = refusal("lost-update", query).errors[0]
        assert error.field == field
        assert words in error.message


class TestAccumPrecision:
    """Vectorised running sums against the loop of the specification."""

    def test_the_k_loop(self):
        """Product and sum in FP16, term by term."""
        rng = np.random.default_rng(1)
        A, b = rng.random((64, 4096)).astype(np.float16), rng.random(4096).astype(np.float16)
        exact = A.astype(float) @ b.astype(float)
        whole, chunk, total = np.zeros(64, np.float16), np.zeros(64, np.float16), np.zeros(64, np.float32)
        for k in range(4096):
            product = A[:, k] * b[k]
            whole, chunk = whole + product, chunk + product
            if (k + 1) % 128 == 0:
                total, chunk = total + chunk.astype(np.float32), np.zeros(64, np.float16)
        for output, got in (("err_fp16_pct", whole), ("err_chunked_pct", total)):
            assert value("accum-precision", "", output) == pytest.approx(100 * float(np.max(np.abs(got.astype(float) - exact) / exact)), rel=1e-9)

    def test_uneven_last_chunk(self):
        products = np.random.default_rng(0).random((2, 10)).astype(np.float16)
        expected = [float(np.float32(sum_of(row[:4])) + np.float32(sum_of(row[4:8])) + np.float32(sum_of(row[8:]))) for row in products]
        assert running_sums(products, 4)[:, -1].tolist() == pytest.approx(expected, rel=1e-7)

    def test_one_chunk_is_plain_fp16(self):
        v = run("accum-precision", "chunk=4096").values
        assert v["err_chunked_pct"] == v["err_fp16_pct"]

    def test_longer_is_worse_and_smaller_chunks_are_better(self):
        errors = [value("accum-precision", f"K={k}", "err_fp16_pct") for k in (256, 1024, 4096, 8192)]
        assert errors == sorted(errors)
        chunked = [value("accum-precision", f"chunk={c}", "err_chunked_pct") for c in (16, 128, 1024, 4096)]
        assert chunked == sorted(chunked)

    @pytest.mark.parametrize(("query", "field"), [("chunk=0", "chunk"), ("K=64", "chunk"), ("K=64 chunk=65", "chunk"), ("K=8", "K"), ("rows=257", "rows")])
    def test_refusals(self, query, field):
        assert refusal("accum-precision", query).errors[0].field == field


def sum_of(row):
    total = np.float16(0)
    for x in row:
        total = np.float16(total + x)
    return total


class TestFp8Scaling:
    """Errors by format, outlier and granularity."""

    @pytest.mark.parametrize(("fmt", "mult", "expected"), SCALING)
    def test_table_of_the_specification(self, fmt, mult, expected):
        found = [value("fp8-scaling", f"fmt={fmt} outlier_mult={mult} granularity={g}", "rel_rms_err_pct") for g in ("per-tensor", "per-row", "1×128")]
        assert found == pytest.approx(expected, rel=0.02)

    @pytest.mark.parametrize("mult", ["1", "100", "10000"])
    @pytest.mark.parametrize("granularity", list(GRANULARITIES))
    def test_e5m2_is_never_limited_by_range(self, mult, granularity):
        assert 5.1 <= value("fp8-scaling", f"fmt=e5m2 outlier_mult={mult} granularity={granularity}", "rel_rms_err_pct") <= 5.3

    @pytest.mark.parametrize("mult", ["1", "10", "100", "1000"])
    def test_finer_blocks_never_hurt_int8(self, mult):
        errors = [value("fp8-scaling", f"fmt=int8 outlier_mult={mult} granularity={g}", "rel_rms_err_pct") for g in ("per-tensor", "per-row", "1×128")]
        assert errors == sorted(errors, reverse=True)

    def test_by_hand(self):
        """INT8, one scale for everything, written out."""
        X = np.random.default_rng(0).standard_normal((32, 4096))
        X[:, 7] *= 100
        s = np.abs(X).max() / 127
        Y = np.rint(X / s) * s
        keep = [j for j in range(4096) if j != 7]
        error = np.sqrt(np.mean((Y - X)[:, keep] ** 2) / np.mean(X[:, keep] ** 2))
        v = run("fp8-scaling", "fmt=int8").values
        assert v["rel_rms_err_pct"] == pytest.approx(100 * float(error), rel=1e-9)
        assert v["zero_pct"] == pytest.approx(100 * float((Y[:, keep] == 0).mean()), rel=1e-9)
        assert v["scale"] == pytest.approx(float(s))

    def test_mx_scales_are_powers_of_two_that_never_saturate(self):
        v = run("fp8-scaling", "granularity=mx32").values
        assert math.log2(v["scale"]) == round(math.log2(v["scale"]))
        assert v["amax"] / v["scale"] <= 448

    def test_verdict_names_what_saved_the_integers(self):
        assert "自己那一块" in run("fp8-scaling", "fmt=int8 granularity=1×128").verdict
        assert "自己那一块" not in run("fp8-scaling", "fmt=int8 outlier_mult=1").verdict

    def test_scales_are_counted(self):
        counts = {g: value("fp8-scaling", f"granularity={g}", "n_scales") for g in GRANULARITIES}
        assert counts == {"per-tensor": 1, "per-row": 32, "1×128": 1024, "mx32": 4096}

    def test_pictures_change_with_the_format(self):
        def picture(fmt):
            values, _ = load("fp8-scaling").charts(run("fp8-scaling", f"fmt={fmt}"))
            return values.texts[1]

        assert picture("int8") != picture("e4m3")
        assert "0" in picture("int8")
        assert "0" not in picture("e4m3")

    @pytest.mark.parametrize(("query", "field"), [("cols=1000", "cols"), ("cols=256", "cols"), ("outlier_mult=0.5", "outlier_mult"), ("rows=7", "rows")])
    def test_refusals(self, query, field):
        assert refusal("fp8-scaling", query).errors[0].field == field


class TestBytesPerParam:
    """Recipes, and what a distributed optimizer divides."""

    @pytest.mark.parametrize("id", [id for id in RECIPES if "-" in id and id.split("-")[1].isdigit()])
    def test_the_name_is_the_number(self, id):
        assert value("bytes-per-param", f"recipe={id}", "bytes_per_param") == int(id.split("-")[1])

    @pytest.mark.parametrize("id", list(STATE_RECIPES))
    def test_shared_recipes_are_those_of_chapter_03(self, id):
        assert value("bytes-per-param", f"recipe={id}", "bytes_per_param") == STATE_RECIPES[id].bytes_per_param
        train = run("train-memory", f"recipe={id}").values
        n = train["n_params"]
        assert value("bytes-per-param", f"recipe={id} N={n}", "total_gb") == pytest.approx(train["states_gb"], rel=1e-12)

    @pytest.mark.parametrize("dp", [1, 2, 8, 64])
    def test_megatron_with_a_distributed_optimizer(self, dp):
        """Megatron-LM theoretical_memory_usage.py and issue 654: 18, or 6 + 12/dp."""
        assert value("bytes-per-param", f"recipe=megatron-18 dp={dp}", "bytes_per_param") == pytest.approx(6 + 12 / dp)
        assert sharded_bytes_per_param(2.0, 4.0, 12.0, dp) == pytest.approx(6 + 12 / dp)

    def test_amp_saves_no_states(self):
        plain, amp = run("bytes-per-param", "recipe=fp32").values, run("bytes-per-param", "recipe=amp-autocast").values
        assert plain["total_gb"] == amp["total_gb"] == 112
        assert amp["total_gb"] + amp["transient_gb"] == 126

    def test_verdict_says_what_cards_would_save(self):
        assert "切到 8 张卡，每个参数只剩 5.5 字节" in run("bytes-per-param", "recipe=zero-16").verdict  # 4 + 12/8
        assert "已经切开" in run("bytes-per-param", "recipe=megatron-18 dp=8").verdict

    def test_custom_is_the_sum(self):
        v = run("bytes-per-param", "recipe=custom w_bytes=2 g_bytes=2 master_bytes=0 m_bytes=1 v_bytes=1").values
        assert (v["bytes_per_param"], v["total_gb"]) == (6, 42)  # chapter 09: custom 2+2+0+1+1 is 42 GB

    def test_parts_add_up(self):
        for recipe in RECIPES:
            v = run("bytes-per-param", f"recipe={recipe} dp=4").values
            assert v["total_gb"] == pytest.approx(v["weights_gb"] + v["grads_gb"] + v["master_gb"] + v["moments_gb"])

    @pytest.mark.parametrize(
        ("query", "field"),
        [("N=0", "N"), ("recipe=custom w_bytes=3", "w_bytes"), ("w_bytes=4", "w_bytes"), ("dp=0", "dp"), ("recipe=zero-20", "recipe")],
    )
    def test_refusals(self, query, field):
        assert refusal("bytes-per-param", query).errors[0].field == field


class TestPrecisionSpeedup:
    """Amdahl, forwards and backwards."""

    def test_inverse(self):
        for share in (0.1, 0.4684, 0.74, 1.0):
            assert accelerated_share(overall_speedup(share, 2.0, 1.0), 2.0, 1.0) == pytest.approx(share)
        assert overall_speedup(0.0, 2.0, 1.0) == 1
        assert overall_speedup(1.0, 2.0, 1.0) == 2

    def test_a100_has_no_fp8(self):
        """Errata 13: the 624 of a public table is INT8."""
        assert "A100 SXM4 80GB 没有 FP8 Tensor Core" in str(refusal("precision-speedup", "gpu=a100-80gb"))
        assert value("precision-speedup", "gpu=a100-80gb low=int8", "peak_ratio_x") == 2

    def test_faster_than_the_peak_is_refused(self):
        error = refusal("precision-speedup", "measured_low_tflops=1000").errors[0]
        assert (error.field, "稀疏峰值" in error.message) == ("measured_low_tflops", True)

    def test_one_measurement_is_refused_and_none_is_fine(self):
        assert refusal("precision-speedup", "measured_base_tflops=0").errors[0].field == "measured_base_tflops"
        v = run("precision-speedup", "measured_base_tflops=0 measured_low_tflops=0").values
        assert (v["measured_speedup_x"], v["implied_share_pct"]) == (None, None)

    def test_default_measurements_belong_to_their_card(self):
        result = run("precision-speedup", "low=fp16")
        assert (result.values["peak_ratio_x"], result.values["measured_speedup_x"]) == (1, None)
        assert "H100" in result.notes[0]
        other = run("precision-speedup", "gpu=b200")
        assert "H100" in other.notes[0]
        assert "实测 1.306" not in other.verdict
        assert run("precision-speedup").notes == ()

    def test_slower_is_said(self):
        result = run("precision-speedup", "measured_low_tflops=400")
        assert result.values["implied_share_pct"] is None
        assert "反而慢" in result.verdict
        assert "变慢" in run("precision-speedup", "base=fp8 low=bf16").verdict

    def test_faster_than_predicted_is_not_called_the_same(self):
        assert "差不多" not in run("precision-speedup", "matmul_frac=0.2").verdict
        assert "差不多" in run("precision-speedup", "matmul_frac=0.4684").verdict

    def test_more_matmul_is_faster_up_to_the_peaks(self):
        speedups = [value("precision-speedup", f"matmul_frac={p}", "predicted_speedup_x") for p in (0, 0.25, 0.5, 0.74, 1)]
        assert speedups == sorted(speedups)
        assert speedups[-1] == pytest.approx(1979 / 989)


class TestReferencePoints:
    """What the text quotes from outside."""

    def test_gradients_below_2_to_the_minus_24(self):
        """Micikevicius et al. 2018 §3.2: smaller magnitudes become zero (to nearest: below half of it)."""
        assert FORMATS["fp16"].min_subnormal == 2.0**-24
        assert FORMATS["fp16"].nearest(2.0**-25) == 0
        assert FORMATS["fp16"].nearest(1.01 * 2.0**-25) == 2.0**-24

    @pytest.mark.parametrize(
        ("id", "name", "expected"),
        [
            ("gradscaler-defaults", "init", 65536),
            ("gradscaler-defaults", "growth", 2),
            ("gradscaler-defaults", "backoff", 0.5),
            ("gradscaler-defaults", "interval", 2000),
            ("te-delayed-scaling", "history", 1024),
            ("mx-block", "elements", 32),
            ("nvfp4-block", "elements", 16),
            ("deepseek-v3-fp8", "activation_block", 128),
            ("deepseek-v3-fp8", "promotion", 128),
            ("deepseek-v3-fp8", "loss_deviation", 0.25),
            ("deepseek-v3-fp8", "accumulator_bits", 14),
            ("a100-tf32", "tflops", 156),
            ("llm-foundry-fp8", "fp8_tflops", 598.7),
            ("llm-foundry-fp8", "bf16_tflops", 458.4),
        ],
    )
    def test_sources(self, id, name, expected):
        assert references()[id].values[name].value == expected

    def test_fp8_formats_of_the_primer(self):
        """Transformer Engine FP8 primer: E4M3 ±448, E5M2 ±57344."""
        assert (FORMATS["e4m3"].largest, FORMATS["e5m2"].largest) == (448, 57344)

    def test_ieee_style_e4m3_would_stop_at_240(self):
        """The spec's pitfall, and MI300's FNUZ."""
        from dataclasses import replace

        assert replace(FORMATS["e4m3"], special="ieee").largest == 240

    def test_peaks(self):
        """A100 BF16 is 16 × FP32 and 2 × TF32; H100 dense FP8 is 1979, so eight of them 15.8 PFLOPS (errata 5)."""
        a100, h100 = accelerator("a100-80gb"), accelerator("h100-sxm")
        assert a100.tflops["bf16"] / 19.5 == 16
        assert a100.tflops["bf16"] / 156 == 2
        assert (h100.tflops["bf16"], h100.tflops["fp8"]) == (989, 1979)
        assert 8 * h100.tflops["fp8"] / 1000 == pytest.approx(15.8, abs=0.05)
