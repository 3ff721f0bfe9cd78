"""Chapter 10: allreduce-time, ddp-scaling, global-batch, ring-allreduce-lab.  Expected values: the chapter's specification unless a row names its source."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from asking import check, run, value
from hypothesis import given, settings
from hypothesis import strategies as st

from calculators.catalog import accelerator, model
from calculators.catalog.references import references
from calculators.core.charts import LineChart, Timeline
from calculators.core.errors import Refusal
from calculators.core.index import load
from calculators.distributed.ddp_scaling import _best_buckets
from calculators.formulas.data_parallel import bucket_schedule, data_factor, exposed_seconds, steps_factor

DATA = json.loads((Path(__file__).parent / "data" / "ch10" / "published.json").read_text(encoding="utf-8"))
EXACT = 0.0


def refusal(id, query):
    with pytest.raises(Refusal) as caught:
        run(id, query)
    return str(caught.value)


# Rows: calculator, inputs that differ from the defaults, output, expected, relative tolerance.
DEFAULTS = [
    ("allreduce-time", "", "grad_gb", 16.0605, 1e-5),
    ("allreduce-time", "", "sent_per_gpu_gb", 28.1059, 1e-5),
    ("allreduce-time", "", "time_ms", 78.072, 1e-5),
    ("allreduce-time", "", "latency_ms", 0, EXACT),
    ("allreduce-time", "", "steps", 14, EXACT),
    ("allreduce-time", "", "algbw_gb_s", 205.714, 1e-5),
    ("allreduce-time", "", "busbw_gb_s", 360, EXACT),
    ("allreduce-time", "", "busbw_factor", 1.75, EXACT),
    ("allreduce-time", "", "rs_ag_factor", 0.875, EXACT),
    ("allreduce-time", "", "inter_over_intra", 7.2, EXACT),
    ("ddp-scaling", "", "t_fwd_ms", 532.125, 1e-5),
    ("ddp-scaling", "", "t_bwd_ms", 1064.249, 1e-6),
    ("ddp-scaling", "", "t_comm_ms", 702.648, 1e-6),
    ("ddp-scaling", "", "t_step_ms", 1631.506, 1e-6),
    ("ddp-scaling", "", "exposed_ms", 35.132, 2e-5),
    ("ddp-scaling", "", "efficiency_pct", 97.847, 1e-5),
    ("ddp-scaling", "", "efficiency_no_overlap_pct", 69.437, 1e-5),
    ("ddp-scaling", "", "threshold_tokens", 10_817.19, 1e-6),
    ("ddp-scaling", "", "global_batch_tokens", 1_048_576, EXACT),
    ("ddp-scaling", "", "tok_s_per_gpu", 10_042.3, 1e-5),
    ("ddp-scaling", "", "bucket_mb", 803.026, 1e-6),
    ("ddp-scaling", "", "measured_weak_eff_pct", 97.275, 1e-5),
    ("global-batch", "", "batch_seqs", 64, EXACT),
    ("global-batch", "", "batch_tokens", 524_288, EXACT),
    ("global-batch", "", "steps", 1_907_349, EXACT),
    ("global-batch", "", "steps_factor", 8.62939, 1e-6),
    ("global-batch", "", "data_factor", 1.131072, EXACT),
    ("global-batch", "", "comm_per_token_vs_accum1", 1, EXACT),
    ("ring-allreduce-lab", "", "padded_elements", 1_000_000, EXACT),
    ("ring-allreduce-lab", "", "steps", 6, EXACT),
    ("ring-allreduce-lab", "", "sent_per_rank_elements", 1_500_000, EXACT),
    ("ring-allreduce-lab", "", "sent_per_rank_bytes", 6_000_000, EXACT),
    ("ring-allreduce-lab", "", "equals_sum", True, EXACT),
    ("ring-allreduce-lab", "", "mean_of_means", 2.0, EXACT),
    ("ring-allreduce-lab", "", "token_weighted", 1.2, EXACT),
    ("ring-allreduce-lab", "", "gap_pct", 66.667, 1e-5),
]

BINDINGS = [
    ("allreduce-time", "n_gpus=64 algorithm=hierarchical", "time_ms", 148.3, 5e-4),
    ("allreduce-time", "n_gpus=64", "time_ms", 632.4, 1e-4),
    ("allreduce-time", "gpus_per_node=1", "time_ms", 562.1, 1e-4),
    ("allreduce-time", "size_gb=0.001 n_gpus=64 alpha=5 bus_bw_inter=45", "time_ms", 0.674, 1e-3),
    ("allreduce-time", "size_gb=0.001 n_gpus=64 alpha=5 bus_bw_inter=45", "latency_ms", 0.630, EXACT),
    ("allreduce-time", "size_gb=0.025 n_gpus=64 alpha=5 bus_bw_inter=45", "time_ms", 1.724, 1e-3),
    ("allreduce-time", "size_gb=0.0262144 n_gpus=64 alpha=5 bus_bw_inter=45", "time_ms", 1.777, 1e-3),
    ("allreduce-time", "n_gpus=64 algorithm=hierarchical", "steps", 28, EXACT),
    ("allreduce-time", "bus_bw_intra=480", "algbw_gb_s", 274.3, 1e-3),
    ("ddp-scaling", "compute_eff=1 bus_bw=50", "threshold_tokens", 19_471, 1e-4),
    ("ddp-scaling", "compute_eff=1 n_gpus=8 bus_bw=450", "threshold_tokens", 1923, 1e-3),
    ("ddp-scaling", "tokens_per_gpu=8192", "efficiency_pct", 80.2, 1e-3),
    ("ddp-scaling", "tokens_per_gpu=4096", "efficiency_pct", 47, 1e-2),
    ("ddp-scaling", "tokens_per_gpu=2048", "efficiency_pct", 26, 2e-2),
    ("ddp-scaling", "n_gpus=16 tokens_per_gpu=32768", "efficiency_pct", 99.0, 1e-3),
    ("ddp-scaling", "n_gpus=256 tokens_per_gpu=2048", "efficiency_pct", 25.4, 2e-3),
    ("ddp-scaling", "n_gpus=1024 tokens_per_gpu=512", "efficiency_pct", 6.8, 5e-3),
    ("ddp-scaling", "n_gpus=1024 tokens_per_gpu=512", "t_step_ms", 730, 5e-3),
    ("ddp-scaling", "n_gpus=1", "efficiency_pct", 100, EXACT),
    ("ddp-scaling", "n_gpus=1", "t_comm_ms", 0, EXACT),
    ("ddp-scaling", "n_buckets=613", "bucket_mb", 26.2, 1e-3),
    ("global-batch", "micro_batch=2 accum=128 dp=8 seq=2048", "comm_per_token_vs_accum1", 1 / 128, EXACT),
    ("global-batch", "b_crit_tokens=524288", "steps_factor", 2, EXACT),
    ("global-batch", "b_crit_tokens=524288", "data_factor", 2, EXACT),
    ("global-batch", "b_crit_tokens=131072", "steps_factor", 1.25, EXACT),
    ("global-batch", "b_crit_tokens=131072", "data_factor", 5, EXACT),
    ("ring-allreduce-lab", "n=8 elements=8000", "sent_per_rank_elements", 14_000, EXACT),
    ("ring-allreduce-lab", "n=5 elements=16", "padded_elements", 20, EXACT),
]


@pytest.mark.parametrize(("id", "query", "output", "expected", "tolerance"), DEFAULTS + BINDINGS)
def test_values_of_the_specification(id, query, output, expected, tolerance):
    check(value(id, query, output), expected, tolerance)


@pytest.mark.parametrize("row", DATA, ids=lambda row: row["id"])
def test_reference_points(row):
    assert value(row["calculator"], row["inputs"], row["output"]) == pytest.approx(row["expected"], rel=row["tolerance_rel"])


class TestAllreduceTime:
    """One formula with chapter 05, in the words of data parallelism."""

    @pytest.mark.parametrize(("n", "factor"), [(2, 1.0), (4, 1.5), (8, 1.75), (64, 1.969), (512, 1.996)])
    def test_factor(self, n, factor):
        assert value("allreduce-time", f"n_gpus={n}", "busbw_factor") == pytest.approx(factor, abs=5e-4)

    @pytest.mark.parametrize("query", ["n_gpus=8", "n_gpus=64", "n_gpus=128 alpha=5"])
    def test_agrees_with_allreduce(self, query):
        """Chapter 05's card at the same size, bandwidths and α."""
        given = dict(pair.split("=") for pair in query.split())
        n, alpha = int(given["n_gpus"]), given.get("alpha", "0")
        for own, other in (("ring", "ring"), ("hierarchical", "hierarchical")):
            a = run("allreduce-time", f"{query} algorithm={own}").values
            theirs = f"size_gb={a['grad_gb']!r} algo={other} nodes={n // 8} nvlink_uni_gbs=360 nic_gbs=50 alpha_intra_us={alpha} alpha_inter_us={alpha}"
            b = run("allreduce", theirs).values
            assert a["time_ms"] == pytest.approx(b["time_ms"], rel=1e-12)
            assert a["sent_per_gpu_gb"] == pytest.approx(b["sent_gb_per_rank"], rel=1e-12)

    def test_mixture_of_experts_counts_every_expert(self):
        assert value("allreduce-time", "model=mixtral-8x7b", "grad_gb") == pytest.approx(2 * model("mixtral-8x7b").total_params / 1e9)

    def test_one_ring_waits_for_the_slowest_hop_wherever_it_is(self):
        """Cards on PCIe at 25 GB/s behind a NIC of 50: 2·63/64 · 16.0605 GB ÷ 25 GB/s."""
        slow = run("allreduce-time", "n_gpus=64 bus_bw_intra=25")
        assert slow.values["time_ms"] == pytest.approx(2 * 63 / 64 * 16.060522496 / 25 * 1e3)
        assert "机内" in slow.verdict
        assert value("allreduce-time", "n_gpus=64 bus_bw_intra=25 gpus_per_node=1", "time_ms") == pytest.approx(632.4, rel=1e-4)

    def test_typed_size_wins(self):
        assert value("allreduce-time", "size_gb=1 params_override=7e9", "grad_gb") == 1
        assert value("allreduce-time", "params_override=7e9", "grad_gb") == 14
        assert value("allreduce-time", "model=custom params_override=7e9 grad_bytes=4", "grad_gb") == 28

    def test_refusals(self):
        assert "至少 2 张卡才需要通信" in refusal("allreduce-time", "n_gpus=1")
        assert "分层算法要求总卡数是每机卡数的整数倍" in refusal("allreduce-time", "n_gpus=20 algorithm=hierarchical")
        assert "参数量" in refusal("allreduce-time", "model=custom")
        assert run("allreduce-time", "n_gpus=4 algorithm=hierarchical").values["steps"] == 6

    def test_warns_of_both_directions(self):
        assert run("allreduce-time").notes == ()
        assert run("allreduce-time", "bus_bw_intra=450").notes == ()
        assert "双向" in run("allreduce-time", "bus_bw_intra=900").notes[0]
        assert accelerator("h100-sxm").link_gb_s_per_dir == 450

    def test_chart_has_a_floor_and_a_slope(self):
        run_ = run("allreduce-time", "n_gpus=64 alpha=5 bus_bw_inter=45")
        (chart,) = load("allreduce-time").charts(run_)
        curve = next(s for s in chart.series if s.emphasis).points
        assert curve[0][1] == pytest.approx(0.63, rel=1e-2)
        assert curve[-1][1] / curve[-2][1] == pytest.approx(curve[-1][0] / curve[-2][0], rel=1e-2)


class TestDdpScaling:
    """The pipeline of buckets against its simulation, and the threshold."""

    @settings(max_examples=25, deadline=None, derandomize=True, database=None)
    @given(st.floats(0.01, 10), st.floats(0.01, 10), st.floats(0, 10), st.integers(1, 200))
    def test_closed_form_equals_the_schedule(self, forward, backward, comm, buckets):
        schedule = bucket_schedule(forward, backward, comm, buckets)
        assert len(schedule) == buckets
        assert all(b.start >= b.ready for b in schedule)
        step = forward + backward + exposed_seconds(backward, comm, float(buckets))
        assert schedule[-1].end == pytest.approx(step, rel=1e-9)
        assert step == pytest.approx(forward + max(backward + comm / buckets, backward / buckets + comm), rel=1e-9)

    @pytest.mark.parametrize("query", ["n_gpus=64", "n_gpus=8 bus_bw=450", "recompute=true", "grad_bytes=4", "model=qwen3-30b-a3b"])
    def test_at_the_threshold_the_all_reduce_lasts_as_long_as_the_backward_pass(self, query):
        tokens = round(value("ddp-scaling", query, "threshold_tokens"))
        at = run("ddp-scaling", f"{query} tokens_per_gpu={tokens}").values
        assert at["t_bwd_ms"] == pytest.approx(at["t_comm_ms"], rel=1e-3)

    def test_threshold_of_a_dense_model_is_compute_over_bandwidth(self):
        assert value("ddp-scaling", "", "threshold_tokens") == pytest.approx(63 / 64 * 0.5 * 989e12 / 45e9)
        for id in ("llama-3-70b", "llama-3.2-1b"):
            assert value("ddp-scaling", f"model={id}", "threshold_tokens") == pytest.approx(10_817.19, rel=1e-6)

    def test_threshold_is_chapter_05s(self):
        """hide-comm without α: an all-reduce inside one node, MFU in the place of compute_eff."""
        card = accelerator("h100-sxm")
        own = value("ddp-scaling", f"n_gpus=8 bus_bw={card.link_gb_s_per_dir} compute_eff=0.4", "threshold_tokens")
        assert value("hide-comm", "", "tokens_per_gpu") == pytest.approx(own, rel=2e-3)

    def test_experts_have_gradients_but_do_not_compute(self):
        m = model("qwen3-30b-a3b")
        dense = 63 / 64 * 0.5 * 989e12 / 45e9
        assert value("ddp-scaling", f"model={m.id}", "threshold_tokens") == pytest.approx(dense * m.total_params / m.active_params)

    def test_weak_scaling_is_flat_and_strong_scaling_has_a_knee(self):
        _, scaling = load("ddp-scaling").charts(run("ddp-scaling"))
        assert isinstance(scaling, LineChart)
        strong, weak = (dict(s.points) for s in scaling.series)
        assert all(weak[2**k] > 95 for k in range(17))
        assert strong[16] > 98
        assert strong[65536] < 1
        assert list(strong.values()) == sorted(strong.values(), reverse=True)

    def test_timeline_ends_with_the_step(self):
        finished = run("ddp-scaling", "tokens_per_gpu=8192")
        timeline, _ = load("ddp-scaling").charts(finished)
        assert isinstance(timeline, Timeline)
        assert max(s.end for s in timeline.spans) == pytest.approx(finished.values["t_step_ms"])
        sticking_out = sum(s.end - s.start for s in timeline.spans if s.tone == 3)
        assert sticking_out == pytest.approx(finished.values["exposed_ms"], rel=1e-9)

    def test_best_number_of_buckets(self):
        """Between one bucket that hides nothing and a thousand that pay latency."""
        finished = run("ddp-scaling", "alpha=5")
        best = finished.values["best_buckets"]
        exposed = [value("ddp-scaling", f"alpha=5 n_buckets={k}", "exposed_ms") for k in (1, best - 50, best, best + 50, 1000)]
        assert min(exposed) == exposed[2]
        assert str(best) in finished.verdict
        assert value("ddp-scaling", "", "best_buckets") is None
        assert _best_buckets(1.0, 0.5, 1.0) == 1

    def test_verdicts(self):
        assert "过了门槛" in run("ddp-scaling").verdict
        assert "不到门槛" in run("ddp-scaling", "tokens_per_gpu=8192").verdict
        assert "差一点" in run("ddp-scaling", "tokens_per_gpu=10500").verdict
        assert "延迟" in run("ddp-scaling", "alpha=20 n_buckets=613").verdict
        assert "分桶" in run("ddp-scaling", "n_buckets=1").verdict
        assert "基准" in run("ddp-scaling", "n_gpus=1").verdict
        assert "613 桶" in run("ddp-scaling").notes[0]

    def test_accumulation_spreads_what_sticks_out_and_hides_nothing(self):
        """Seven micro-batches without an all-reduce, then one that hides it behind its own backward pass only."""
        schedule = bucket_schedule(7 * 3.0 + 1.0, 2.0, 10.0, 20)
        assert schedule[-1].end - 8 * 3.0 == pytest.approx(exposed_seconds(2.0, 10.0, 20.0))
        assert "藏不住" in run("ddp-scaling", "tokens_per_gpu=2048").verdict

    def test_refuses_no_tokens(self):
        assert "每卡每步" in refusal("ddp-scaling", "tokens_per_gpu=0")


class TestGlobalBatch:
    """The curve of equal loss."""

    @settings(max_examples=25, deadline=None, derandomize=True, database=None)
    @given(st.floats(1e-4, 1e4))
    def test_hyperbola(self, ratio):
        assert (steps_factor(ratio, 1.0) - 1) * (data_factor(ratio, 1.0) - 1) == pytest.approx(1, rel=1e-6)

    def test_refusals(self):
        assert "一共训多少" in refusal("global-batch", "tokens_total=1e6 dp=1024")
        assert "临界批" in refusal("global-batch", "b_crit_tokens=0")

    @pytest.mark.parametrize(("query", "word"), [("", "还小"), ("dp=512", "拐弯处"), ("dp=4096", "过头了")])
    def test_verdicts(self, query, word):
        assert word in run("global-batch", query).verdict

    def test_the_verdicts_percentages(self):
        """Doubling the default batch: steps and data by the factors themselves."""
        before, after = (run("global-batch", q).values for q in ("", "dp=128"))
        fewer = 100 * (1 - after["steps_factor"] / before["steps_factor"])
        more = 100 * (after["data_factor"] / before["data_factor"] - 1)
        assert f"步数少 {fewer:.2g}%，数据只多 {more:.2g}%" in run("global-batch").verdict


class TestRingAllreduceLab:
    """Integers: equal means equal."""

    @pytest.mark.parametrize("n", range(2, 17))
    def test_every_rank_holds_the_sum_and_sends_the_fewest_bytes(self, n):
        values = run("ring-allreduce-lab", f"n={n} elements=997").values
        assert values["equals_sum"] is True
        assert values["wrong_pct"] == 0
        assert values["padded_elements"] % n == 0
        assert 0 <= values["padded_elements"] - 997 < n
        assert values["sent_per_rank_elements"] * n == 2 * (n - 1) * values["padded_elements"]
        assert values["sent_per_rank_bytes"] == 4 * values["sent_per_rank_elements"]
        assert values["steps"] == len(values["moves"]) == 2 * (n - 1)

    @pytest.mark.parametrize("mistake", ["forget-add", "same-chunk", "short-reduce", "short-gather"])
    def test_mistakes_show(self, mistake):
        finished = run("ring-allreduce-lab", f"mistake={mistake} elements=1000")
        assert finished.values["equals_sum"] is False
        assert finished.values["wrong_pct"] > 20
        assert "错了" in finished.verdict

    def test_every_rank_sends_another_chunk_in_every_step(self):
        for row in run("ring-allreduce-lab", "n=8 elements=80").values["moves"]:
            assert sorted(row["sends"].split("、")) == list("ABCDEFGH")

    def test_averages(self):
        assert value("ring-allreduce-lab", "elements=16 tokens_a=500 tokens_b=500", "gap_pct") == 0
        assert "一样长" in run("ring-allreduce-lab", "elements=16 tokens_a=500 tokens_b=500").verdict
        assert "loss 一样" in run("ring-allreduce-lab", "elements=16 loss_a=1").verdict
        assert "偏低" in run("ring-allreduce-lab", "elements=16 tokens_a=900 tokens_b=100").verdict

    def test_padding_is_said(self):
        assert "补了 4 个零" in run("ring-allreduce-lab", "n=5 elements=16").notes[0]
        assert run("ring-allreduce-lab", "elements=16").notes == ()


def test_references_stand_where_the_page_finds_them():
    """Published figures that the chapter quotes."""
    table = references()
    assert table["megatron-strong-scaling"].values["mfu_after"].value / table["megatron-strong-scaling"].values["mfu_before"].value == pytest.approx(
        0.894, abs=1e-3
    )
    for row in DATA:
        assert row["source"]
