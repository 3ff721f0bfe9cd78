"""Chapter 08: flash-io, online-softmax, tiled-attention, attention-cost, exp-bottleneck.  Expected values: the chapter's specification unless a row names its source."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from asking import ref, refusal, run
from hypothesis import given, settings
from hypothesis import strategies as st

from calculators.catalog import accelerator, accelerators, model, models
from calculators.core.charts import BarChart, Grid, LineChart
from calculators.core.index import load
from calculators.formulas.attention import attention_flops, flash1_elements, fused_elements, unfused_elements
from calculators.formulas.flash import flash2_elements, log_sum_exp_bytes, score_bytes
from calculators.formulas.params import attention_params, gated_ffn_params
from calculators.single_gpu.exp_bottleneck import FLOP_PER_CYCLE
from calculators.single_gpu.online_softmax import FP16_LARGEST_SCORE, absorb
from calculators.single_gpu.tiled_attention import traffic, visits
from calculators.site.literals import agrees
from calculators.site.targets import resolve

DATA = json.loads((Path(__file__).parent / "data" / "ch08" / "reference_flops.json").read_text(encoding="utf-8"))
EXACT = 0.0
FEW = settings(max_examples=40, deadline=None, derandomize=True, database=None)


# Rows: calculator, inputs that differ from the defaults, output, expected, relative tolerance.
VALUES = [
    # Output identifiers
    ("flash-io", "", "standard_mb", 138.412, 1e-5),
    ("flash-io", "", "asymptotic_mb", 5.592, 1e-4),
    ("flash-io", "", "fa1_mb", 72.024, 1e-4),
    ("flash-io", "", "fa2_mb", 69.214, 1e-4),
    ("flash-io", "", "ideal_mb", 4.1943, 1e-4),
    ("flash-io", "", "ratio_asymptotic_x", 24.75, 1e-4),
    ("flash-io", "", "ratio_n2_only_x", 6.0, 1e-4),
    ("flash-io", "", "ratio_fa1_x", 1.9217, 1e-4),
    ("flash-io", "", "ratio_fa2_x", 1.9998, 1e-4),
    ("flash-io", "", "ratio_ideal_x", 33.0, 1e-4),
    ("flash-io", "", "standard_us", 67.88, 1e-3),
    ("flash-io", "", "fa2_us", 33.95, 1e-3),
    ("flash-io", "", "ideal_us", 27.53, 1e-3),
    ("flash-io", "", "compute_us", 27.53, 1e-3),
    ("flash-io", "", "bound_gap_x", 2.466, 1e-3),
    ("flash-io", "", "ai_unfused", 62.06, 1e-3),
    ("flash-io", "", "ai_ideal", 2048, EXACT),
    ("flash-io", "", "ai_seed", 256, EXACT),
    ("tiled-attention", "", "tiles_visited", 64, EXACT),
    ("tiled-attention", "", "tiles_total", 64, EXACT),
    ("tiled-attention", "", "visited_pct", 100, EXACT),
    ("online-softmax", "", "max_updates", 3, EXACT),
    ("online-softmax", "", "final_max", 13.0287963, 1e-6),
    ("online-softmax", "", "final_sum", 5.63543217, 1e-6),
    ("online-softmax", "", "overflow_count", 0, EXACT),
    ("online-softmax", "", "is_nan", False, EXACT),
    ("attention-cost", "", "layer_tflop", 0.5498, 1e-3),
    ("attention-cost", "", "model_tflop", 17.59, 1e-3),
    ("attention-cost", "", "time_ms_per_layer", 1.1117, 1e-4),
    ("attention-cost", "", "score_gb_per_layer", 4.295, 1e-4),
    ("attention-cost", "", "lse_mb_per_layer", 1.0486, 1e-4),
    ("attention-cost", "", "measured_util_pct", None, EXACT),
    ("exp-bottleneck", "", "matmul_clk", 2048, EXACT),
    ("exp-bottleneck", "", "exp_clk", 1024, EXACT),
    ("exp-bottleneck", "", "exp_over_matmul_x", 0.50, EXACT),
    # Appendix B and figures to quote
    ("flash-io", "d=64", "standard_mb", 136.31, 1e-4),
    ("flash-io", "d=64", "ratio_n2_only_x", 24.0, 1e-3),
    ("flash-io", "d=64", "ratio_asymptotic_x", 97.5, 1e-3),
    ("flash-io", "d=64", "ratio_fa1_x", 7.285, 1e-3),
    ("flash-io", "d=64", "ratio_fa2_x", 3.938, 1e-3),
    ("flash-io", "d=64", "ratio_ideal_x", 65.0, 1e-3),
    ("flash-io", "extra_passes=2", "standard_us", 133.7, 1e-3),
    ("flash-io", "n=1024 d=64 heads=16 batch=64", "standard_mb", 9126.8, 1e-4),
    ("flash-io", "n=1024 d=64 heads=16 batch=64", "fa1_mb", 1501.6, 1e-4),
    ("flash-io", "n=1024", "ai_unfused", 56.89, 1e-3),
    ("flash-io", "n=131072", "ai_unfused", 63.94, 1e-3),
    ("online-softmax", "subtract_max=false", "is_nan", True, EXACT),
    ("online-softmax", "subtract_max=false", "overflow_count", 6, EXACT),
    ("tiled-attention", "causal=true", "tiles_visited", 36, EXACT),
    ("tiled-attention", "causal=true", "tiles_total", 64, EXACT),
    ("tiled-attention", "causal=true", "visited_pct", 56.25, EXACT),
    ("tiled-attention", "n=1024 block=32 causal=true", "visited_pct", 51.5625, EXACT),
    ("attention-cost", "n=131072", "score_gb_per_layer", 1099.5, 1e-4),
    ("attention-cost", "gpu=a100-80gb measured_tflops=230", "measured_util_pct", 73.72, 1e-3),
    ("attention-cost", "measured_tflops=740", "measured_util_pct", 74.8, 1e-3),
    ("attention-cost", "gpu=b200 measured_tflops=1605", "measured_util_pct", 71.33, 1e-3),
    ("attention-cost", "gpu=b200 measured_tflops=1613", "measured_util_pct", 71.7, 1e-3),
    ("attention-cost", "measured_tflops=346", "measured_util_pct", 35.0, 1e-3),
    ("exp-bottleneck", "gpu=a100-80gb", "matmul_clk", 4096, EXACT),
    ("exp-bottleneck", "gpu=a100-80gb", "exp_over_matmul_x", 0.25, EXACT),
    ("exp-bottleneck", "gpu=h200", "exp_over_matmul_x", 0.50, EXACT),
    ("exp-bottleneck", "gpu=b200", "matmul_clk", 1024, EXACT),
    ("exp-bottleneck", "gpu=b200", "exp_over_matmul_x", 1.00, EXACT),
    ("exp-bottleneck", "gpu=b200 d=64", "exp_over_matmul_x", 2.0, EXACT),
]


@pytest.mark.parametrize(("id", "query", "output", "expected", "tolerance"), VALUES)
def test_values_of_the_specification(id, query, output, expected, tolerance):
    actual = run(id, query).values[output]
    if expected is None or isinstance(expected, bool):
        assert actual is expected
    else:
        assert actual == pytest.approx(expected, rel=tolerance or 1e-12)


def test_a_residual_is_bound_by_the_text_that_the_card_prints():
    target = resolve("calc:online-softmax#max_abs_diff")
    assert target.text == "< 1e-14"
    assert agrees("< 1e-14", target)
    assert not agrees("< 1e-12", target)


class TestFlashIo:
    """Five ways of counting, and what none of them may do."""

    @pytest.mark.parametrize("query", ["n=4096 d=64", "n=4096 d=128", "n=1024 d=256 M_kb=100", "n=65536 d=96 elem_bytes=1"])
    def test_agrees_with_chapter_00(self, query):
        here, there = run("flash-io", query).values, run("flash-io-quick", query).values
        for name in set(here) & set(there):
            assert here[name] == there[name]
        assert len(set(here) & set(there)) == 8

    @pytest.mark.parametrize("query", ["", "n=16384 d=64 extra_passes=2"])
    def test_agrees_with_chapters_01_and_04(self, query):
        here, there = run("flash-io", query).values, run("attention-ai", query).values
        assert (here["ai_seed"], here["ai_unfused"], here["ai_ideal"]) == (there["naive_ai"], there["unfused_ai"], there["fused_ai"])
        assert (here["standard_us"], here["compute_us"], here["bound_gap_x"]) == (there["unfused_mem_us"], there["compute_us"], there["fused_speedup_x"])
        roof = run("roofline", "gpu=a100-80gb op=attention-unfused").values
        assert run("flash-io").values["standard_us"] == pytest.approx(roof["time_us"], rel=1e-12)

    def test_about_twenty_has_two_origins_and_neither_counts_what_is_moved(self):
        """M/d² at d = 64, or all passes over n²d²/M at d = 128; M = 164 KB gives 20.5."""
        narrow, wide, shared = (run("flash-io", q).values for q in ("d=64", "d=128", "d=64 M_kb=164"))
        assert narrow["ratio_n2_only_x"] == 24
        assert wide["ratio_asymptotic_x"] == 24.75
        assert shared["ratio_n2_only_x"] == 20.5
        for values in (narrow, wide):
            assert values["ratio_fa1_x"] < 10
            assert values["ratio_fa2_x"] < 10

    def test_the_paper_measured_between_algorithm_1_and_the_ideal(self):
        """Fig. 2 left: 40.3 → 4.4 GB forward and backward; our forward models at its shape give 6.1 and 17."""
        values = run("flash-io", "n=1024 d=64 heads=16 batch=64").values
        assert ref("dao-2022-fig2-ratios#hbm_x") == pytest.approx(9.16, abs=5e-3)
        assert ref("dao-2022-fig2-ratios#time_x") == pytest.approx(5.71, abs=5e-3)
        assert ref("dao-2022-fig2-ratios#flops_up") == pytest.approx(12.9, abs=0.05)
        assert values["ratio_fa1_x"] < ref("dao-2022-fig2-ratios#hbm_x") < values["ratio_ideal_x"]

    def test_passes_over_the_papers_matrices(self):
        """One n² pass 2.147 GB: 40.3 GB are 18.8 of them; one nd pass 0.134 GB: 4.4 GB are 32.8."""
        copies, n, d = 16 * 64, 1024, 64
        assert copies * n * n * 2 == pytest.approx(2.147e9, rel=1e-3)
        assert 40.3e9 / (copies * n * n * 2) == pytest.approx(18.8, abs=0.05)
        assert 4.4e9 / (copies * n * d * 2) == pytest.approx(32.8, abs=0.05)
        assert ref("dao-2022-passes#n2_before") == pytest.approx(18.8, abs=0.05)
        assert ref("dao-2022-passes#nd_after") == pytest.approx(32.8, abs=0.05)

    @FEW
    @given(n=st.integers(8, 20).map(lambda k: 2**k), d=st.sampled_from([64, 96, 128, 256]), block=st.sampled_from([64, 128, 256]))
    def test_order_of_the_models(self, n, d, block):
        v = run("flash-io", f"n={n} d={d} block_q={block}").values
        assert v["ideal_mb"] <= v["fa2_mb"]
        assert v["ratio_ideal_x"] == pytest.approx(1 + n / d)
        assert v["ai_unfused"] < d / 2
        if block >= d / 2:
            assert v["fa2_mb"] <= v["standard_mb"]

    def test_small_query_blocks_move_more_than_the_standard_form(self):
        result = run("flash-io", "block_q=64 d=256")
        assert result.values["ratio_fa2_x"] < 1
        assert any("Q 块太小" in note for note in result.notes)

    @FEW
    @given(copies=st.integers(1, 1024), n=st.integers(256, 10**6))
    def test_traffic_is_proportional_to_heads_and_ratios_are_not_affected(self, copies, n):
        one, many = run("flash-io", f"n={n}").values, run("flash-io", f"n={n} heads={copies} batch=2").values
        assert many["standard_mb"] == pytest.approx(2 * copies * one["standard_mb"])
        assert many["fa1_mb"] == pytest.approx(2 * copies * one["fa1_mb"])
        assert many["ratio_fa2_x"] == pytest.approx(one["ratio_fa2_x"])
        assert many["bound_gap_x"] == pytest.approx(one["bound_gap_x"])

    def test_by_hand(self):
        n, d, m = 4096, 128, 98_304
        key_blocks = math.ceil(n / math.ceil(m / (4 * d)))
        v = run("flash-io").values
        assert v["fa1_mb"] == pytest.approx(2 * (2 * n * d + key_blocks * (3 * n * d + 4 * n)) / 1e6)
        assert v["fa2_mb"] == pytest.approx(2 * (2 * n * d + 2 * n * d * 32 + n) / 1e6)
        assert v["fa1_key_block"] == 192
        assert run("flash-io", "n=4097").values["fa2_mb"] == pytest.approx(2 * (2 * 4097 * d + 2 * 4097 * d * 33 + 4097) / 1e6)

    def test_keys_of_one_head_fit_the_l2(self):
        """Why the true traffic is near the ideal: 2 MB of K and V against 40 MB of L2 on an A100."""
        assert ref("l2-holds-kv#kv_mb") == pytest.approx(2.097, rel=1e-3)
        assert ref("l2-holds-kv#kv_mb") < ref("on-chip-a100#l2")

    def test_the_verdict_names_the_wall(self):
        assert "换算力当墙" in run("flash-io").verdict
        assert "已经卡在算力" in run("flash-io", "gpu=h20").verdict
        assert any("自己也要算" in note for note in run("flash-io", "gpu=h20").notes)
        assert not run("flash-io").notes
        assert "也还卡在带宽" in run("flash-io", "n=256 d=64").verdict

    @pytest.mark.parametrize(
        ("query", "field"), [("d=80", "d"), ("M_kb=8", "M_kb"), ("n=128", "n"), ("block_q=32", "block_q"), ("extra_passes=7", "extra_passes")]
    )
    def test_refusals(self, query, field):
        assert refusal("flash-io", query).errors[0].field == field
        if field == "M_kb":
            assert "SRAM 放不下一行块" in str(refusal("flash-io", query))


def naive(scores, values):
    weights = np.exp(scores - scores.max())
    return weights @ values / weights.sum()


class TestOnlineSoftmax:
    """The recurrence is exact; what is broken on purpose is broken."""

    def test_the_example_on_paper(self):
        """Scores [1, 3 | 2, 5], V = [1, 2 | 3, 4]."""
        state = np.full(1, -np.inf), np.zeros(1), np.zeros((1, 1))
        m, total, out, _ = absorb(*state, np.array([[1.0, 3.0]]), np.array([[1.0], [2.0]]))
        assert (m[0], total[0], out[0, 0]) == (3, pytest.approx(1.1353, abs=5e-5), pytest.approx(2.1353, abs=5e-5))
        m, total, out, factor = absorb(m, total, out, np.array([[2.0, 5.0]]), np.array([[3.0], [4.0]]))
        assert (m[0], factor[0]) == (5, pytest.approx(0.1353, abs=5e-5))
        assert (total[0], out[0, 0]) == (pytest.approx(1.2034, abs=5e-5), pytest.approx(4.4384, abs=1e-4))
        assert out[0, 0] / total[0] == pytest.approx(3.6881, abs=5e-5)
        assert out[0, 0] / total[0] == pytest.approx(naive(np.array([1.0, 3.0, 2.0, 5.0]), np.array([1.0, 2.0, 3.0, 4.0])), rel=1e-15)

    def test_difference_at_the_defaults(self):
        assert 0 < run("online-softmax").values["max_abs_diff"] < 1e-14

    @FEW
    @given(
        n=st.integers(2, 700), share=st.floats(0, 1), std=st.floats(0.1, 50), seed=st.integers(0, 999), order=st.sampled_from(["given", "rising", "falling"])
    )
    def test_online_equals_naive_for_every_block_size(self, n, share, std, seed, order):
        """A last partial block, every order, every spread."""
        block = 1 + round(share * (n - 1))
        v = run("online-softmax", f"n={n} block={block} score_std={std} seed={seed} order={order} d=8").values
        assert v["max_abs_diff"] < 1e-12
        assert v["blocks"] == -(-n // block)
        assert 1 <= v["max_updates"] <= v["blocks"]
        assert v["is_nan"] is False

    def test_final_state_does_not_depend_on_the_blocks(self):
        for query in ("block=1", "block=7", "block=4096", "order=rising", "order=falling"):
            v = run("online-softmax", query).values
            assert v["final_max"] == pytest.approx(13.0287963, rel=1e-8)
            assert v["final_sum"] == pytest.approx(5.63543217, rel=1e-8)

    def test_the_number_of_blocks_is_bounded(self):
        """A Python loop in a browser: 65,536 turns took seconds."""
        assert "每块取 8 以上" in str(refusal("online-softmax", "n=65536 block=1"))
        v = run("online-softmax", "n=65536 block=8").values
        assert (v["blocks"], v["max_abs_diff"] < 1e-12) == (8192, True)
        assert run("online-softmax", "n=8192 block=1").values["blocks"] == 8192

    def test_order_decides_how_often_the_old_account_is_discounted(self):
        assert run("online-softmax", "order=rising").values["max_updates"] == 32
        assert run("online-softmax", "order=falling").values["max_updates"] == 1

    def test_conditional_rescaling_is_exact_too(self):
        """FA4: a stale maximum is a valid reference, as long as e^(s−m) does not overflow."""
        for threshold in (1, 4, 8, 10):
            v = run("online-softmax", f"order=rising threshold={threshold}").values
            assert v["max_abs_diff"] < 1e-12
            assert v["max_updates"] < 32

    def test_without_the_discount_it_is_silently_wrong(self):
        v = run("online-softmax", "rescale=false").values
        assert v["max_abs_diff"] > 0.1
        assert (v["is_nan"], v["overflow_count"]) == (False, 0)
        assert "没露馅" in run("online-softmax", "rescale=false order=falling").verdict

    def test_overflows_are_the_scores_above_ln_65504(self):
        assert pytest.approx(math.log(65504), abs=5e-5) == FP16_LARGEST_SCORE
        scores = np.random.default_rng(0).standard_normal(4096) * 4
        assert int((scores > math.log(65504)).sum()) == 6
        assert run("online-softmax", "subtract_max=false").values["overflow_count"] == 6

    def test_an_overflowing_sum_makes_zeros_without_a_nan(self):
        result = run("online-softmax", "subtract_max=false score_std=2.5")
        v = result.values
        assert (v["is_nan"], v["overflow_count"], v["final_sum"]) == (False, 0, None)
        assert v["max_abs_diff"] > 0.1
        assert "全成了 0" in result.verdict

    def test_small_scores_only_lose_precision(self):
        v = run("online-softmax", "subtract_max=false score_std=1").values
        assert (v["is_nan"], v["overflow_count"]) == (False, 0)
        assert 1e-6 < v["max_abs_diff"] < 1e-2

    def test_the_missing_discount_is_drawn_beside_the_right_sum(self):
        calculator = load("online-softmax")
        _, sums = calculator.charts(run("online-softmax", "rescale=false"))
        wrong, right = sums.series
        assert right.points[-1][1] == pytest.approx(5.63543217, rel=1e-8)
        assert wrong.points[-1][1] > 2 * right.points[-1][1]

    def test_charts_follow(self):
        calculator = load("online-softmax")
        assert [c.title for c in calculator.charts(run("online-softmax"))] != [c.title for c in calculator.charts(run("online-softmax", "subtract_max=false"))]
        for chart in calculator.charts(run("online-softmax", "n=65536 block=16")):
            assert isinstance(chart, LineChart)
            assert all(len(s.points) <= 200 for s in chart.series)

    @pytest.mark.parametrize(
        ("query", "field"),
        [
            ("block=4097", "block"),
            ("block=0", "block"),
            ("n=65536 block=7", "block"),
            ("n=1", "n"),
            ("score_std=51", "score_std"),
            ("seed=1000", "seed"),
            ("subtract_max=false order=rising", "order"),
        ],
    )
    def test_refusals(self, query, field):
        assert refusal("online-softmax", query).errors[0].field == field


class TestTiledAttention:
    """Exact over tiles, causal, and its traffic is what the formulas of chapter 08 say."""

    @pytest.mark.parametrize(
        "query", ["", "causal=true", "loop=kv-outer", "loop=kv-outer causal=true", "n=500 block=37 causal=true", "n=77 block=77", "score_scale=50"]
    )
    def test_equals_the_whole_matrix(self, query):
        v = run("tiled-attention", query).values
        assert v["max_abs_diff"] < 1e-13
        assert v["wrong_rows"] == 0

    @FEW
    @given(n=st.integers(8, 200), share=st.floats(0, 1), causal=st.sampled_from(["true", "false"]), seed=st.integers(0, 999))
    def test_equals_the_whole_matrix_for_every_block_size(self, n, share, causal, seed):
        block = 8 + round(share * (n - 8))
        v = run("tiled-attention", f"n={n} block={block} d=16 causal={causal} seed={seed}").values
        tiles = -(-n // block)
        assert v["max_abs_diff"] < 1e-13
        assert v["tiles_total"] == tiles * tiles
        assert v["tiles_visited"] == (tiles * (tiles + 1) // 2 if causal == "true" else tiles * tiles)

    def test_causal_share_is_half_and_a_bit(self):
        """(T + 1) / 2T: 56.25 % with 8 tiles, 51.56 % with 32, ½ in the limit."""
        for tiles in (1, 2, 8, 32, 64):
            share = run("tiled-attention", f"n={tiles * 8} block=8 causal=true").values["visited_pct"]
            assert share == pytest.approx(100 * (tiles + 1) / (2 * tiles))

    def test_row_i_does_not_see_later_keys(self):
        """Change the keys and values after row i: the causal output of the rows up to i stays as it was."""
        rng = np.random.default_rng(3)
        q, k, v = (rng.standard_normal((64, 16)) for _ in range(3))
        changed_k, changed_v = k.copy(), v.copy()
        changed_k[40:], changed_v[40:] = rng.standard_normal((24, 16)), rng.standard_normal((24, 16))
        before, after = causal_by_tiles(q, k, v, 16), causal_by_tiles(q, changed_k, changed_v, 16)
        assert (before[:40] == after[:40]).all()
        assert not np.allclose(before[40:], after[40:])

    @pytest.mark.parametrize("tiles", [1, 4, 8])
    def test_counted_traffic_equals_the_formulas(self, tiles):
        n, d, sizes = 512, 64, [512 // tiles] * tiles
        assert sum(traffic(visits(tiles, False, "q-outer"), sizes, d, "q-outer").values()) == flash2_elements(n, d, tiles)
        assert sum(traffic(visits(tiles, False, "kv-outer"), sizes, d, "kv-outer").values()) == flash1_elements(n, d, tiles)
        assert run("tiled-attention", f"block={512 // tiles}").values["moved_elems"] == flash2_elements(n, d, tiles)

    def test_partial_blocks_are_counted_by_their_rows(self):
        sizes = [16, 16, 5]
        assert sum(traffic(visits(3, False, "q-outer"), sizes, 8, "q-outer").values()) == flash2_elements(37, 8, 3)
        assert sum(traffic(visits(3, False, "kv-outer"), sizes, 8, "kv-outer").values()) == flash1_elements(37, 8, 3)

    def test_order_and_block_size_change_the_traffic_and_not_the_result(self):
        good, other, tiny = (run("tiled-attention", q) for q in ("", "loop=kv-outer", "block=8"))
        assert good.values["moved_elems"] < other.values["moved_elems"] < good.values["standard_elems"] < tiny.values["moved_elems"]
        assert good.values["standard_elems"] == unfused_elements(512, 512, 64)
        assert "块太小" in tiny.verdict
        one_tile = run("tiled-attention", "block=512").values["moved_elems"]
        assert one_tile == fused_elements(512, 512, 64) + 512

    @pytest.mark.parametrize("query", ["mistake=no-rescale", "mistake=no-max score_scale=4", "causal=true mistake=no-diagonal-mask"])
    def test_what_is_broken_on_purpose_is_broken(self, query):
        result = run("tiled-attention", query)
        assert result.values["wrong_rows"] > 100
        assert "错了" in result.verdict
        grids = [c for c in load("tiled-attention").charts(result) if isinstance(c, Grid)]
        assert len(grids) == 2

    def test_overflow_gives_no_number_and_small_scores_hide_it(self):
        assert run("tiled-attention", "mistake=no-max score_scale=4").values["max_abs_diff"] is None
        assert run("tiled-attention", "mistake=no-max").values["wrong_rows"] == 0
        assert "分数太小" in run("tiled-attention", "mistake=no-max").verdict

    def test_the_map_shows_the_walk(self):
        def first_row(query):
            grid = load("tiled-attention").charts(run("tiled-attention", query))[0]
            assert isinstance(grid, Grid)
            return grid

        assert first_row("n=32 block=8").texts[0] == ("1", "2", "3", "4")
        assert first_row("n=32 block=8 loop=kv-outer").texts[0] == ("1", "5", "9", "13")
        assert first_row("n=32 block=8 causal=true").cells[0] == (0.45, None, None, None)

    @pytest.mark.parametrize(
        ("query", "field"), [("block=513", "block"), ("block=4", "block"), ("n=1025", "n"), ("d=257", "d"), ("mistake=no-diagonal-mask", "mistake")]
    )
    def test_refusals(self, query, field):
        assert refusal("tiled-attention", query).errors[0].field == field


def causal_by_tiles(q, k, v, block):
    m, total, out = np.full(len(q), -np.inf), np.zeros(len(q)), np.zeros_like(q)
    for i, j in visits(len(q) // block, True, "q-outer"):
        rows, keys = slice(i * block, (i + 1) * block), slice(j * block, (j + 1) * block)
        scores = q[rows] @ k[keys].T / math.sqrt(q.shape[1])
        if i == j:
            scores = np.where(np.tri(block, dtype=bool), scores, -np.inf)
        m[rows], total[rows], out[rows], _ = absorb(m[rows], total[rows], out[rows], scores, v[keys])
    return out / total[:, None]


class TestAttentionCost:
    """FLOPs as the FlashAttention benchmarks count them."""

    @pytest.mark.parametrize("id", sorted({row["model"] for row in DATA["flops_forward_per_token"]}))
    def test_reference_flops_of_a_token(self, id):
        """The oracle's forward FLOPs with 4096 and 2048 keys in sight differ by attention over 2048 keys."""
        full, half = (
            next(r["expected"] for r in DATA["flops_forward_per_token"] if r["model"] == id and r["attended_context"] == keys) for keys in (4096, 2048)
        )
        per_token = run("attention-cost", f"model={id} n=4096 causal=false").values["model_tflop"] * 1e12 / 4096
        assert per_token == pytest.approx(2 * (full - half), rel=1e-12)
        halved = run("attention-cost", f"model={id} n=4096").values["model_tflop"] * 1e12 / 4096
        assert halved == pytest.approx(full - half, rel=1e-12)

    def test_passes(self):
        forward, backward, both = (run("attention-cost", f"pass={name}").values["layer_tflop"] for name in ("fwd", "bwd", "fwd+bwd"))
        assert (backward / forward, both / forward) == (pytest.approx(2.5), pytest.approx(3.5))
        assert any("重算分数" in note for note in run("attention-cost", "pass=bwd").notes)

    def test_recomputing_the_scores_is_one_matrix_product_of_six(self):
        """7 against 6 products: +16.7 %; the paper's table says +12.9 %."""
        assert ref("flash-extra-matmul#flops_up") == pytest.approx(16.7, abs=0.05)

    def test_scores_equal_what_chapter_03_adds_for_unfused_attention(self):
        kept, none = (run("train-memory", f"attention={name}").values["activations_gb"] for name in ("unfused-no-dropout", "flash"))
        assert run("attention-cost").values["score_gb_per_layer"] == pytest.approx((kept - none) / 32)

    @FEW
    @given(n=st.integers(1, 500_000), batch=st.integers(1, 64))
    def test_scores_are_quadratic_and_the_log_sum_exp_is_linear(self, n, batch):
        one, two = (run("attention-cost", f"n={k} batch={batch}").values for k in (n, 2 * n))
        assert two["score_gb_per_layer"] == pytest.approx(4 * one["score_gb_per_layer"])
        assert two["lse_mb_per_layer"] == pytest.approx(2 * one["lse_mb_per_layer"])
        assert one["score_gb_per_layer"] * 1e9 == pytest.approx(score_bytes(n, 32 * batch, 2))
        assert one["lse_mb_per_layer"] * 1e6 == pytest.approx(log_sum_exp_bytes(n, 32 * batch, 4))

    def test_query_heads_count_and_explicit_sizes_win(self):
        gqa, mha = (run("attention-cost", f"model={id}").values["layer_tflop"] for id in ("llama-3-8b", "llama-2-7b"))
        assert gqa == mha
        assert run("attention-cost", "heads=64").values["layer_tflop"] == pytest.approx(2 * gqa)
        assert run("attention-cost", "head_dim=64").values["layer_tflop"] == pytest.approx(gqa / 2)

    def test_fp8_only_changes_the_peak(self):
        bf16, fp8 = (run("attention-cost", f"dtype={name}").values for name in ("bf16", "fp8"))
        assert bf16["time_ms_per_layer"] / fp8["time_ms_per_layer"] == pytest.approx(1979 / 989)
        assert bf16["score_gb_per_layer"] == fp8["score_gb_per_layer"]

    def test_published_utilisations(self):
        """FA2: 73 % of an A100 (paper's abstract: 50–73 %); FA3: 75 % and FA2 35 % on an H100; FA4: 71 % of a B200."""
        assert round(ref("fa2-a100#tflops") / accelerator("a100-80gb").dense_tflops * 100) == pytest.approx(74, abs=1)
        assert round(ref("fa3-h100#tflops") / accelerator("h100-sxm").dense_tflops * 100) == 75
        assert int(ref("fa4-b200#paper_tflops") / accelerator("b200").dense_tflops * 100) == 71
        assert int(ref("fa4-b200#blog_tflops") / accelerator("b200").dense_tflops * 100) == 71
        assert ref("fa2-on-h100#tflops") == pytest.approx(346, rel=1e-3)

    def test_attention_equals_the_linear_layers_at_eight_times_the_width(self):
        """jax-ml/scaling-book PR 109 (errata row 53): D = 4608 is 36,864, not "32k"; F = 4D, full attention."""
        width, head_dim = 4608.0, 128.0
        heads, length = width / head_dim, 8 * width
        assert length == 36_864
        linear = 2 * length * (attention_params(width, heads, heads, head_dim) + gated_ffn_params(width, 4 * width))
        assert heads * attention_flops(length, length, head_dim, 2.0) == pytest.approx(linear, rel=1e-12)

    def test_models_have_one_head_size(self):
        item = load("attention-cost").input("model")
        assert set(item.choices) == {id for id, m in models().items() if m.mla is None}
        assert all(model(str(id)).head_dim > 0 for id in item.choices)

    def test_sliding_windows_are_said(self):
        assert any("滑动窗口" in note for note in run("attention-cost", "model=gemma-3-27b-text").notes)
        assert not run("attention-cost", "model=llama-3-8b").notes

    def test_more_than_the_peak_is_refused(self):
        error = refusal("attention-cost", "measured_tflops=1200").errors[0]
        assert error.field == "measured_tflops"
        assert "超过稠密峰值" in error.message
        assert "因果掩码的一半" in error.message

    @pytest.mark.parametrize(
        ("query", "field"),
        [("dtype=fp8 gpu=a100-80gb", "dtype"), ("gpu=v100-sxm-32gb", "dtype"), ("pass=both", "pass"), ("util=0", "util"), ("model=deepseek-v3", "model")],
    )
    def test_refusals(self, query, field):
        assert refusal("attention-cost", query).errors[0].field == field


class TestExpBottleneck:
    """Cycles of one SM."""

    def test_h100_as_flash_attention_3_counts(self):
        """§3.1: 989 TFLOPS of matmul, 3.9 TFLOPS of exp (16 × 132 SM × 1.83 GHz); at d = 128 exp takes 50 % of the matmul's time."""
        assert pytest.approx(3.9, abs=0.05) == 16 * 132 * 1.83e9 / 1e12
        assert FLOP_PER_CYCLE["h100-sxm"] * 132 * 1.83e9 / 1e12 == pytest.approx(989, rel=1e-3)
        flops_per_exp = 4 * 128
        assert flops_per_exp == 512
        assert run("exp-bottleneck").values["exp_over_matmul_x"] == 0.5

    def test_flop_per_cycle_gives_the_peaks_of_chapter_02(self):
        """NVIDIA: A100 108 SM × 1.41 GHz, H100 132 SM × 1.83 GHz."""
        for id, sms, ghz in (("a100-80gb", 108, 1.41), ("h100-sxm", 132, 1.83)):
            assert FLOP_PER_CYCLE[id] * sms * ghz / 1e3 == pytest.approx(accelerator(id).dense_tflops, rel=3e-3)

    def test_the_exponential_has_not_become_faster(self):
        assert {run("exp-bottleneck", f"gpu={id}").values["exp_clk"] for id in FLOP_PER_CYCLE} == {1024}
        clocks = [run("exp-bottleneck", f"gpu={id}").values["matmul_clk"] for id in ("a100-80gb", "h100-sxm", "b200")]
        assert clocks == [4096, 2048, 1024]

    def test_more_exponentials_or_wider_heads_move_the_wall(self):
        assert run("exp-bottleneck", "gpu=b200 mufu=32").values["exp_over_matmul_x"] == 0.5
        assert run("exp-bottleneck", "gpu=b200 d=256").values["exp_over_matmul_x"] == 0.5
        assert "才是墙" in run("exp-bottleneck", "gpu=b200 d=64").verdict

    @pytest.mark.parametrize("id", ["rtx-4090", "mi300x", "h20"])
    def test_other_cards_are_declined_with_the_reason(self, id):
        error = refusal("exp-bottleneck", f"gpu={id}").errors[0]
        assert error.field == "gpu"
        assert "没有核实过每 SM 的吞吐" in error.message
        assert id in accelerators()

    def test_unknown_cards_are_refused_as_choices(self):
        assert "不在可选项" in str(refusal("exp-bottleneck", "gpu=h101"))
        assert load("exp-bottleneck").input("gpu").choices == ("a100-80gb", "h100-sxm", "h200", "b200") or set(
            load("exp-bottleneck").input("gpu").choices
        ) == set(FLOP_PER_CYCLE)

    def test_every_generation_stands_in_the_chart(self):
        chart = load("exp-bottleneck").charts(run("exp-bottleneck"))[0]
        assert isinstance(chart, BarChart)
        assert len(chart.bars) == 8
