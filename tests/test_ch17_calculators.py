"""Chapter 17: static-batch-waste, batching-sim, chunked-prefill, batch-tradeoff.  Expected values: the chapter's specification unless a row names its source."""

from __future__ import annotations

import heapq
import math
import time
from itertools import pairwise

import pytest
from asking import first_error as refusal
from asking import run, value
from hypothesis import given, settings
from hypothesis import strategies as st

from calculators.catalog import models
from calculators.core.charts import LineChart, Timeline
from calculators.core.errors import Refusal
from calculators.core.index import load
from calculators.formulas.batching import continuous_schedule, empirical_max, geometric_max, harmonic, last_step, static_schedule
from calculators.inference.batching_sim import lengths
from calculators.site.targets import resolve

EXACT = 0.0


# Rows: calculator, inputs that differ from the defaults, output, expected, relative tolerance.
DEFAULTS = [
    ("static-batch-waste", "", "harmonic", 4.0584952, 1e-7),
    ("static-batch-waste", "", "max_over_mean", 4.0584952, 1e-7),
    ("static-batch-waste", "", "util_pct", 24.6397, 2e-6),
    ("static-batch-waste", "", "waste_pct", 75.3603, 1e-6),
    ("batching-sim", "", "static_steps", 17615, EXACT),
    ("batching-sim", "", "continuous_steps", 4861, EXACT),
    ("batching-sim", "", "speedup", 3.6237, 1e-4),
    ("batching-sim", "", "static_util_pct", 25.34, 1e-3),
    ("batching-sim", "", "continuous_util_pct", 91.81, 1e-4),
    ("batching-sim", "", "total_tokens", 142810, EXACT),
    ("chunked-prefill", "", "decode_only_ms", 8.80589, 1e-6),
    ("chunked-prefill", "", "unchunked_stall_ms", 249.628, 1e-6),
    ("chunked-prefill", "", "stall_ratio", 28.3478, 2e-6),
    ("chunked-prefill", "", "chunk_step_ms", 16.5124, 4e-6),
    ("chunked-prefill", "", "chunk_ratio", 1.87515, 2e-6),
    ("chunked-prefill", "", "prompt_ms", 264.198, 2e-6),
    ("chunked-prefill", "", "prompt_overhead_pct", 5.8366, 1e-5),
    ("chunked-prefill", "", "n_chunks", 16, EXACT),
    ("chunked-prefill", "", "free_budget_tokens", 258, EXACT),
    ("batch-tradeoff", "", "b_max_kv", 445, EXACT),
    ("batch-tradeoff", "", "b_slo", 287, EXACT),
    ("batch-tradeoff", "", "tok_s_slo", 14368.7, 5e-6),
    ("batch-tradeoff", "", "tpot_slo_actual_ms", 19.9740, 2e-6),
    ("batch-tradeoff", "", "tpot_ms", 27.8868, 2e-6),
    ("batch-tradeoff", "", "tok_s", 15957.3, 5e-6),
    ("batch-tradeoff", "", "fits_pool", True, EXACT),
]

FIGURES = [
    ("static-batch-waste", "batch=4", "util_pct", 48.0, 1e-3),
    ("static-batch-waste", "batch=8", "util_pct", 36.8, 1e-3),
    ("static-batch-waste", "batch=16", "util_pct", 29.6, 1e-3),
    ("static-batch-waste", "batch=64", "util_pct", 21.1, 2e-3),
    ("static-batch-waste", "length_dist=geometric", "util_pct", 24.676, 1e-5),
    ("static-batch-waste", "length_dist=uniform", "util_pct", 51.5625, 1e-12),
    ("static-batch-waste", "length_dist=constant", "util_pct", 100, EXACT),
    ("batching-sim", "length_dist=constant", "static_steps", 4096, EXACT),
    ("batching-sim", "length_dist=constant", "continuous_steps", 4096, EXACT),
    ("batching-sim", "length_dist=constant", "speedup", 1, EXACT),
    ("batching-sim", "length_dist=uniform", "static_steps", 8011, EXACT),
    ("batching-sim", "length_dist=uniform", "continuous_steps", 4552, EXACT),
    ("batching-sim", "length_dist=uniform", "speedup", 1.760, 1e-3),
    ("batching-sim", "length_dist=uniform", "static_util_pct", 53.3, 1e-3),
    ("batching-sim", "length_dist=uniform", "continuous_util_pct", 93.7, 1e-3),
    ("batching-sim", "length_dist=lognormal", "static_steps", 18227, EXACT),
    ("batching-sim", "length_dist=lognormal", "continuous_steps", 4386, EXACT),
    ("batching-sim", "length_dist=lognormal", "speedup", 4.156, 1e-4),
    ("batching-sim", "length_dist=lognormal", "static_util_pct", 21.5, 1e-3),
    ("batching-sim", "length_dist=lognormal", "continuous_util_pct", 89.3, 1e-3),
    ("chunked-prefill", "chunk_tokens=128", "chunk_step_ms", 8.81, 1e-3),
    ("chunked-prefill", "chunk_tokens=128", "prompt_ms", 563.6, 1e-4),
    ("chunked-prefill", "chunk_tokens=256", "chunk_step_ms", 8.81, 1e-3),
    ("chunked-prefill", "chunk_tokens=256", "prompt_ms", 281.8, 1e-4),
    ("chunked-prefill", "chunk_tokens=256", "prompt_overhead_pct", 12.9, 2e-3),
    ("chunked-prefill", "chunk_tokens=1024", "chunk_step_ms", 32.05, 2e-4),
    ("chunked-prefill", "chunk_tokens=1024", "prompt_ms", 256.4, 2e-4),
    ("chunked-prefill", "chunk_tokens=2048", "chunk_step_ms", 63.14, 1e-4),
    ("chunked-prefill", "chunk_tokens=2048", "prompt_ms", 252.5, 2e-4),
    ("chunked-prefill", "include_attention=true", "unchunked_stall_ms", 285.3, 1e-4),
    ("chunked-prefill", "include_attention=true", "stall_ratio", 32.4, 1e-3),
    ("chunked-prefill", "include_attention=true", "chunk_step_ms", 20.89, 1e-4),
    ("chunked-prefill", "include_attention=true", "prompt_ms", 300.9, 1e-4),
    *(
        ("batch-tradeoff", f"batch={b}", output, expected, 1e-3)
        for b, tpot, rate in ((1, 5.65, 177), (8, 6.00, 1333), (32, 7.20, 4442), (64, 8.81, 7268), (128, 12.01, 10657), (222, 16.72, 13279), (445, 27.89, 15957))
        for output, expected in (("tpot_ms", tpot), ("tok_s", rate))
    ),
    ("batch-tradeoff", "context_tokens=2048", "b_max_kv", 222, EXACT),
    ("batch-tradeoff", "context_tokens=2048", "tok_s", 7975, 1e-4),
    ("batch-tradeoff", "context_tokens=8192", "b_max_kv", 55, EXACT),
]  # fmt: skip


@pytest.mark.parametrize(("id", "query", "output", "expected", "tolerance"), DEFAULTS + FIGURES)
def test_values(id, query, output, expected, tolerance):
    actual = value(id, query, output)
    if isinstance(expected, bool):
        assert actual is expected
    else:
        assert actual == pytest.approx(expected, rel=tolerance or 1e-12)


class TestStaticWaste:
    def test_h_32(self):
        assert harmonic(32) == pytest.approx(4.0584952, abs=1e-6)  # closed form, Reference points

    @pytest.mark.parametrize("mean", [1.5, 3, 40, 256])
    @pytest.mark.parametrize("batch", [1, 2, 7, 32])
    def test_geometric_is_the_plain_sum(self, mean, batch):
        q = 1 - 1 / mean
        plain = sum(1 - (1 - q**k) ** batch for k in range(200_00))
        assert geometric_max(mean, batch) == pytest.approx(plain, rel=1e-9)

    @pytest.mark.parametrize("batch", [1, 2, 3, 32, 1024])
    def test_the_geometric_sum_and_its_limit_meet(self, batch):
        assert geometric_max(500, batch) / 500 == pytest.approx(geometric_max(500.000001, batch) / 500.000001, rel=1e-8)

    def test_a_certain_end_at_once(self):
        assert value("static-batch-waste", "length_dist=geometric mean_tokens=1", "util_pct") == 100

    def test_empirical_by_hand(self):
        """Two lengths, half and half: the longest of two is long three times in four."""
        assert empirical_max([(100, 1), (200, 1)], 2) == pytest.approx(0.25 * 100 + 0.75 * 200)
        assert value("static-batch-waste", "length_dist=empirical batch=2 histogram=100:1,200:1", "util_pct") == pytest.approx(100 * 150 / 175)

    def test_empirical_agrees_with_uniform_and_geometric(self):
        pairs = [(k, 1) for k in range(1, 512)]
        assert empirical_max(pairs, 32) / 256 == pytest.approx(2 * 32 / 33, rel=2e-3)
        q = 1 - 1 / 20
        assert empirical_max([(k, q ** (k - 1)) for k in range(1, 900)], 16) == pytest.approx(geometric_max(20, 16), rel=1e-9)

    @pytest.mark.parametrize("histogram", ["100:9, 2000:1", "100：9，2000：1", "2000:1 100:9", "100:4;100:5\n2000:1", "100:9, 2000:1, 300:0"])
    def test_every_way_of_writing_a_histogram(self, histogram):
        got = load("static-batch-waste").run({"length_dist": "empirical", "histogram": histogram}).values["max_over_mean"]
        never = 0.9**32
        assert got == pytest.approx((100 * never + 2000 * (1 - never)) / 290)

    @pytest.mark.parametrize("histogram", ["", "100", "100:0", "x:1", "0:3", "100:-1", "1e9:1", ":"])
    def test_what_is_no_histogram_is_refused(self, histogram):
        with pytest.raises(Refusal) as caught:
            load("static-batch-waste").run({"length_dist": "empirical", "histogram": histogram})
        assert caught.value.errors[0].field == "histogram"

    def test_batch_below_1_is_refused(self):
        assert refusal("static-batch-waste", "batch=0").field == "batch"

    def test_one_alone_wastes_nothing(self):
        for dist in ("exponential", "geometric", "uniform", "constant"):
            assert value("static-batch-waste", f"batch=1 length_dist={dist}", "util_pct") == pytest.approx(100)

    def test_the_chart_falls_with_the_batch(self):
        calculator = load("static-batch-waste")
        (chart,) = calculator.charts(calculator.run())
        assert isinstance(chart, LineChart)
        shown = dict(chart.series[-1].points)
        assert shown[64] == pytest.approx(21.1, abs=0.05)
        assert list(shown.values()) == sorted(shown.values(), reverse=True)


def reference_schedules(tokens, batch):
    """An independent pair: step by step, slot by slot."""
    static = sum(max(tokens[i : i + batch]) for i in range(0, len(tokens), batch))
    free = [0] * batch
    for n in tokens:
        heapq.heapreplace(free, free[0] + n)
    return static, max(free)


class TestBatchingSim:
    @pytest.mark.parametrize("seed", range(5))
    def test_speedup_band(self, seed):
        expected = {0: 3.62, 1: 3.56, 2: 3.40, 3: 3.34, 4: 3.59}
        speedup = value("batching-sim", f"seed={seed}", "speedup")
        assert 3.2 <= speedup <= 3.8
        assert speedup == pytest.approx(expected[seed], abs=0.006)

    def test_static_utilisation_is_near_the_closed_form(self):
        assert value("batching-sim", "", "static_util_pct") == pytest.approx(100 / harmonic(32), abs=2)

    def test_bands(self):
        assert value("batching-sim", "", "static_util_pct") == pytest.approx(25.34, abs=2)
        assert value("batching-sim", "", "continuous_util_pct") == pytest.approx(91.81, abs=4)

    @settings(max_examples=25, deadline=None)
    @given(st.lists(st.integers(1, 60), min_size=1, max_size=80), st.integers(1, 20))
    def test_schedules(self, tokens, batch):
        static, continuous = static_schedule(tokens, batch), continuous_schedule(tokens, batch)
        assert (last_step(static), last_step(continuous)) == reference_schedules(tokens, batch)
        assert last_step(continuous) <= last_step(static)
        assert last_step(continuous) >= math.ceil(sum(tokens) / batch)
        for stays in (static, continuous):
            assert [s.end - s.start for s in stays] == tokens, "every token is made, in both schedules"
            by_slot = sorted((s.slot, s.start, s.end) for s in stays)
            for (slot, _, end), (other, start, _) in pairwise(by_slot):
                assert slot != other or end <= start, "one request at a time in a slot"

    def test_lengths_follow_the_reproduction_notes(self):
        import numpy as np

        exponential = np.clip(np.ceil(np.random.default_rng(0).exponential(256, 512)), 1, 2048).astype(int).tolist()
        assert lengths("exponential", 512, 256, 2048, 0) == exponential
        assert lengths("uniform", 512, 256, 2048, 3) == np.random.default_rng(3).integers(1, 512, 512).tolist()
        assert max(lengths("uniform", 512, 256, 300, 3)) == 300
        assert set(lengths("constant", 9, 256, 100, 0)) == {100}

    @pytest.mark.parametrize("at", [1, 300, 4861, 10_000, 10**8])
    def test_a_step_shows_everyone_somewhere(self, at):
        for row in value("batching-sim", f"at_step={at}", "at"):
            assert row["busy"] + row["waiting"] + row["done"] == 512
            assert row["busy"] + row["idle"] == 32
        static, continuous = value("batching-sim", "at_step=300", "at")
        assert continuous["busy"] == 32
        assert static["waiting"] == 480

    @pytest.mark.parametrize("query", ["", "at_step=300", "n_requests=5000 batch=512", "n_requests=5000 batch=1", "n_requests=3"])
    def test_timelines(self, query):
        calculator = load("batching-sim")
        result = run("batching-sim", query)
        static, continuous, curve = calculator.charts(result)
        assert isinstance(static, Timeline)
        assert isinstance(continuous, Timeline)
        assert static.time == continuous.time
        assert len(static.spans) <= 1200
        assert all(0 <= s.start < s.end <= static.time.high for s in (*static.spans, *continuous.spans))
        assert all(len(s.points) <= 200 for s in curve.series)

    def test_verdicts_say_why_nothing_is_gained(self):
        assert "压测" in run("batching-sim", "length_dist=constant").verdict
        assert "没有人排队" in run("batching-sim", "n_requests=8").verdict
        assert "收尾" in run("batching-sim").verdict

    def test_it_is_quick(self):
        run("batching-sim")
        start = time.process_time()
        run("batching-sim")
        assert time.process_time() - start < 0.3
        start = time.process_time()
        calculator = load("batching-sim")
        calculator.charts(run("batching-sim", "n_requests=5000 batch=512 mean_tokens=4096 max_tokens=32768"))
        assert time.process_time() - start < 1


class TestChunkedPrefill:
    def test_one_chunk_is_the_whole(self):
        result = run("chunked-prefill", "chunk_tokens=8192").values
        assert result["chunk_step_ms"] == pytest.approx(result["unchunked_stall_ms"])
        assert result["prompt_overhead_pct"] == pytest.approx(0, abs=1e-9)

    def test_attention_of_the_chunks_adds_up_to_that_of_the_prompt(self):
        """Compute-bound throughout: the chunks differ from the whole only by the decodes that each carries along."""
        query = "include_attention=true prompt_tokens=65536 decode_batch=0 chunk_tokens="
        assert value("chunked-prefill", query + "1024", "prompt_ms") == pytest.approx(value("chunked-prefill", query + "65536", "prompt_ms"), rel=1e-9)

    def test_attention_term_is_14_percent_of_8192(self):
        with_, without = (value("chunked-prefill", f"include_attention={x} decode_batch=0", "unchunked_stall_ms") for x in ("true", "false"))
        assert with_ / without - 1 == pytest.approx(0.143, abs=5e-4)
        short = [value("chunked-prefill", f"include_attention={x} decode_batch=0 prompt_tokens=2048", "unchunked_stall_ms") for x in ("true", "false")]
        assert short[0] / short[1] - 1 == pytest.approx(0.035, abs=1e-3)

    def test_two_phases_give_the_same_prompt(self):
        """284.2 ms for the same prompt alone, attention included."""
        alone = value("chunked-prefill", "include_attention=true decode_batch=0", "unchunked_stall_ms")
        assert alone == pytest.approx(284.2, abs=0.1)
        assert alone == pytest.approx(value("infer-two-phases", "prompt_tokens=8192", "ttft_ms"))

    @pytest.mark.parametrize("batch", [1, 8, 100])
    def test_a_step_is_that_of_two_phases(self, batch):
        assert value("batch-tradeoff", f"batch={batch}", "tpot_ms") == pytest.approx(value("infer-two-phases", f"prompt_tokens=1024 batch={batch}", "tpot_ms"))

    def test_the_remainder_is_a_chunk(self):
        result = run("chunked-prefill", "prompt_tokens=1000 chunk_tokens=300").values
        assert result["n_chunks"] == 4
        by_hand = [value("chunked-prefill", f"prompt_tokens={p} chunk_tokens={p}", "chunk_step_ms") for p in (300, 300, 300, 100)]
        assert result["prompt_ms"] == pytest.approx(sum(by_hand))
        assert result["chunk_step_ms"] == pytest.approx(max(by_hand))

    def test_a_budget_with_decodes_leaves_less_for_the_prompt(self):
        inside = run("chunked-prefill", "budget_includes_decodes=true chunk_tokens=512").values
        outside = run("chunked-prefill", "chunk_tokens=480").values
        assert inside["prompt_ms"] == outside["prompt_ms"]
        assert inside["n_chunks"] == 18

    def test_the_free_budget_costs_nobody_anything(self):
        at, beyond = (run("chunked-prefill", f"chunk_tokens={c}").values for c in (258, 264))
        assert at["chunk_step_ms"] == pytest.approx(at["decode_only_ms"], rel=1e-12)
        assert beyond["chunk_step_ms"] > 1.005 * beyond["decode_only_ms"]

    def test_no_budget_is_left_in_a_large_batch_of_short_contexts(self):
        assert value("chunked-prefill", "decode_batch=1024 context_tokens=1", "free_budget_tokens") == 0

    @pytest.mark.parametrize(
        ("query", "field", "says"),
        [
            ("chunk_tokens=9000", "chunk_tokens", "9000"),
            ("chunk_tokens=32 budget_includes_decodes=true", "chunk_tokens", "decode 都装不下"),
            ("prompt_tokens=8", "prompt_tokens", "16"),
            ("chunk_tokens=8", "chunk_tokens", "16"),
        ],
    )
    def test_refusals(self, query, field, says):
        error = refusal("chunked-prefill", query)
        assert error.field == field
        assert says in error.message

    @pytest.mark.parametrize("model", ["mixtral-8x7b", "deepseek-v3", "gemma-3-27b-text", "gemma-2-9b"])
    def test_other_architectures(self, model):
        if model not in models():
            pytest.skip("no such preset")
        for attention in ("true", "false"):
            result = run("chunked-prefill", f"model={model} include_attention={attention}").values
            assert result["unchunked_stall_ms"] > result["chunk_step_ms"] >= result["decode_only_ms"] > 0

    @pytest.mark.parametrize("attention", ["true", "false"])
    def test_the_smallest_chunks_are_in_time(self, attention):
        start = time.process_time()
        result = run("chunked-prefill", f"prompt_tokens=1000000 chunk_tokens=16 include_attention={attention}")
        load("chunked-prefill").charts(result)
        assert result.values["n_chunks"] == 62_500
        assert time.process_time() - start < 2

    def test_the_timeline_holds_one_lane_each(self):
        calculator = load("chunked-prefill")
        timeline, longest, prompt = calculator.charts(calculator.run())
        assert timeline.lanes == ("不切", "切块")
        assert len([s for s in timeline.spans if s.lane == 1 and s.tone == 0]) == 16
        assert longest.rules[0].y == 20
        assert len(prompt.series[0].points) <= 200


class TestBatchTradeoff:
    def test_twice_the_context_half_the_ceiling(self):
        short, long = value("batch-tradeoff", "", "tok_s"), value("batch-tradeoff", "context_tokens=2048", "tok_s")
        assert long / short == pytest.approx(0.5, abs=0.01)

    def test_trade_of_the_seed(self):
        """1 → 445: throughput × 90, TPOT × 4.9."""
        one, all_ = run("batch-tradeoff", "batch=1").values, run("batch-tradeoff").values
        assert all_["tok_s"] / one["tok_s"] == pytest.approx(90, rel=5e-3)
        assert all_["tpot_ms"] / one["tpot_ms"] == pytest.approx(4.9, rel=1e-2)

    @pytest.mark.parametrize("slo", [5.66, 8, 20, 27])
    def test_the_slo_batch_is_the_largest(self, slo):
        best = value("batch-tradeoff", f"tpot_slo_ms={slo}", "b_slo")
        assert value("batch-tradeoff", f"batch={best}", "tpot_ms") <= slo
        assert value("batch-tradeoff", f"batch={best + 1}", "tpot_ms") > slo

    def test_an_slo_that_nothing_meets(self):
        result = run("batch-tradeoff", "tpot_slo_ms=5").values
        assert (result["b_slo"], result["tok_s_slo"], result["tpot_slo_actual_ms"]) == (0, 0, None)

    def test_a_loose_slo_ends_at_the_pool(self):
        assert value("batch-tradeoff", "tpot_slo_ms=1000", "b_slo") == 445
        assert "先到头的是 KV 池" in run("batch-tradeoff", "tpot_slo_ms=1000").verdict

    def test_too_many_do_not_fit(self):
        assert value("batch-tradeoff", "batch=446", "fits_pool") is False
        assert "放不下" in run("batch-tradeoff", "batch=446").verdict

    def test_a_model_that_does_not_fit_the_card_is_said(self):
        # 70.6e9 parameters × 2 B = 141 GB on a card of 79.6 GiB; the default 16 GB + 455,808 × 131,072 B = 75.8 GB fit
        assert not run("batch-tradeoff").notes
        assert "权重加放满的 KV 池" in run("batch-tradeoff", "model=llama-3-70b").notes[0]

    def test_a_pool_below_one_request_is_refused(self):
        assert refusal("batch-tradeoff", "kv_pool_tokens=1000").field == "kv_pool_tokens"

    def test_decode_only_step_of_chunked_prefill_is_the_same(self):
        assert value("batch-tradeoff", "batch=32 context_tokens=2048", "tpot_ms") == pytest.approx(value("chunked-prefill", "", "decode_only_ms"))


class TestPublished:
    """Reference points that are constants or one division."""

    def test_orca_speedup_from_its_own_rates(self):
        """Orca OSDI'22 §6.2: 6.81 / 0.185 req/s; the abstract says 36.9×."""
        assert resolve("ref:orca-ratio#ratio").value == pytest.approx(resolve("ref:orca-2022#gain").value, rel=5e-3)
        assert resolve("ref:orca-2022#gain").value == 36.9

    def test_orca_max_of_the_paged_attention_paper(self):
        """PagedAttention Fig. 13: 7 = floor(15,728 / 2048)."""
        assert value("batch-tradeoff", "kv_pool_tokens=15728 context_tokens=2048", "b_max_kv") == resolve("ref:paged-attention-batching#orca_max").value == 7
