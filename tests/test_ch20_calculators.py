"""Chapter 20: queueing, cost-per-mtok, capacity-plan, goodput-sim, pd-transfer, day-bill.  Expected values: the chapter's specification unless a row names its source."""

from __future__ import annotations

import math
import time
from itertools import pairwise

import pytest
from asking import first_error as refusal
from asking import run, value

from calculators.formulas.queueing import erlang_c, stays_longer
from calculators.site.targets import resolve

# Rows: calculator, inputs that differ from the defaults, output, expected, relative tolerance.
DEFAULTS = [
    ("queueing", "", "rho", 0.9, 1e-12),
    ("queueing", "", "p_wait", 0.9, 1e-12),
    ("queueing", "", "wait_s", 9.0, 1e-9),
    ("queueing", "", "wait_over_service", 9.0, 1e-9),
    ("queueing", "", "sojourn_s", 10.0, 1e-9),
    ("queueing", "", "sojourn_over_service", 10.0, 1e-9),
    ("queueing", "", "p99_s", 46.05, 1e-4),
    ("queueing", "", "p99_over_service", 46.05, 1e-4),
    ("queueing", "", "in_system", 9.0, 1e-9),
    ("cost-per-mtok", "", "cost_out_full_per_mtok", 0.12507, 4e-5),
    ("cost-per-mtok", "", "cost_out_per_mtok", 0.31267, 2e-5),
    ("cost-per-mtok", "", "cost_in_per_mtok", 0.04368, 2e-4),
    ("cost-per-mtok", "", "blended_per_mtok", 0.09747, 1e-4),
    ("capacity-plan", "", "arrival_per_s", 115.74, 1e-4),
    ("capacity-plan", "", "batch_kv_max", 824, 0),
    ("capacity-plan", "", "batch", 446, 0),
    ("capacity-plan", "", "step_ms", 99.82, 1e-4),
    ("capacity-plan", "", "prefill_ms", 44.64, 1e-4),
    ("capacity-plan", "", "req_s_per_replica", 14.921, 4e-5),
    ("capacity-plan", "", "replicas", 8, 0),
    ("capacity-plan", "", "gpus", 16, 0),
    ("capacity-plan", "", "effective_tpot_ms", 298.9, 2e-4),
    ("capacity-plan", "", "cost_per_month", 320_026, 2e-6),
    ("capacity-plan", "", "cost_per_mtok_out", 10.668, 1e-4),
    ("pd-transfer", "", "kv_mb", 671.09, 1e-5),
    ("pd-transfer", "", "transfer_ms", 13.422, 4e-5),
    ("pd-transfer", "", "prefill_ms", 146.70, 1e-4),
    ("pd-transfer", "", "transfer_share_pct", 9.149, 1e-4),
    ("pd-transfer", "", "required_gbit_s", 53.687, 1e-5),
    ("pd-transfer", "", "prefill_req_s", 6.816, 1e-4),
    ("pd-transfer", "", "decode_req_s", 14.515, 1e-4),
    ("pd-transfer", "", "decode_step_ms", 17.224, 4e-5),
    ("pd-transfer", "", "prefill_decode_ratio", 2.129, 3e-4),
    ("day-bill", "", "cost_per_day", 87_072, 1e-12),
    ("day-bill", "", "revenue_per_day", 562_100, 1e-9),
    ("day-bill", "", "margin_pct", 545.56, 1e-5),
    ("day-bill", "", "hit_pct", 56.25, 1e-5),
    ("day-bill", "", "avg_input_price", 0.31938, 2e-5),
    ("day-bill", "", "input_saving_pct", 41.93, 2e-4),
    ("day-bill", "", "cost_per_mtok_out", 0.51829, 2e-5),
    ("day-bill", "", "cost_per_mtok_all", 0.11221, 4e-5),
    ("day-bill", "", "prefill_nodes", 95.48, 1e-4),
    ("day-bill", "", "decode_nodes", 131.38, 1e-4),
    ("day-bill", "", "total_nodes", 226.86, 1e-4),
    ("day-bill", "", "concurrency", 92_592.6, 1e-6),
    ("day-bill", "", "concurrency_per_node", 704.76, 1e-5),
    ("day-bill", "", "concurrency_per_gpu", 88.10, 1e-4),
    ("day-bill", "", "kv_gb_per_gpu", 30.885, 4e-5),
    ("day-bill", "", "out_tok_s_per_node_all", 8575.3, 1e-5),
]

FIGURES = [
    *(("queueing", f"arrival_per_s={rho}", "sojourn_over_service", w, 2e-3) for rho, w in ((0.5, 2), (0.7, 3.33), (0.8, 5), (0.95, 20), (0.99, 100))),
    ("queueing", "queue_model=md1", "wait_s", 4.5, 1e-9),
    ("queueing", "servers=4 arrival_per_s=3.6", "wait_over_service", 1.97, 3e-3),
    ("queueing", "servers=8 arrival_per_s=7.2", "p_wait", 0.7015, 1e-4),
    ("queueing", "servers=8 arrival_per_s=7.2", "wait_s", 0.8769, 1e-4),
    ("queueing", "servers=8 arrival_per_s=7.2", "sojourn_s", 1.877, 3e-4),
    ("queueing", "servers=8 arrival_per_s=7.2", "p99_s", 7.09, 1e-3),
    ("queueing", "servers=16 arrival_per_s=14.4", "wait_over_service", 0.370, 2e-3),
    ("queueing", "servers=64 arrival_per_s=57.6", "wait_over_service", 0.0485, 1e-3),
    ("queueing", "servers=64 arrival_per_s=57.6", "p99_s", 4.66, 1e-3),
    *(
        ("cost-per-mtok", f"output_tok_s={rate}", "cost_out_full_per_mtok", cost, 2e-3)
        for rate, cost in ((175.4, 3.167), (1250, 0.444), (3634, 0.153), (7975, 0.0697))
    ),
    ("cost-per-mtok", "n_gpus=8 output_tok_s=22300 utilisation=1", "cost_out_per_mtok", 0.199, 3e-3),
    ("capacity-plan", "preset=naive", "req_s_per_replica", 4.48, 1e-3),
    ("capacity-plan", "preset=naive", "replicas", 26, 0),
    ("capacity-plan", "preset=naive", "gpus", 104, 0),
    ("capacity-plan", "preset=naive", "cost_per_month", 2.08e6, 1e-3),
    ("capacity-plan", "preset=naive", "cost_per_mtok_out", 69.3, 1e-3),
    ("capacity-plan", "preset=w8a16", "gpus", 32, 0),
    ("capacity-plan", "preset=hf-device-map", "gpus", 410, 0),
    ("capacity-plan", "prompt_tokens=500 output_tokens=200", "gpus", 38, 0),
    ("capacity-plan", "prompt_tokens=500 output_tokens=200 preset=w8a16", "gpus", 74, 0),
    ("capacity-plan", "", "batch_shared", 149, 0),
    ("capacity-plan", "batch_cap=149", "gpus", 16, 0),
    ("pd-transfer", "link_gbit_s=3600", "transfer_ms", 1.5, 0.01),
    ("pd-transfer", "model=deepseek-v3", "kv_mb", 143.9, 1e-3),
    ("pd-transfer", "model=deepseek-v3", "transfer_ms", 2.88, 1e-3),
    ("pd-transfer", "prompt_tokens=512 kv_bytes_per_token=2207031", "required_gbit_s", 90.4, 1e-2),  # DistServe §3.3: 1.13 GB a request
]


@pytest.mark.parametrize(("id", "query", "output", "expected", "tolerance"), DEFAULTS + FIGURES)
def test_values(id, query, output, expected, tolerance):
    assert value(id, query, output) == pytest.approx(expected, rel=tolerance)


class TestQueueing:
    def test_erlang_c_of_one_server_is_the_load(self):
        for rho in (0.1, 0.5, 0.9, 0.999):
            assert erlang_c(rho, 1) == pytest.approx(rho, rel=1e-12)

    @pytest.mark.parametrize(("servers", "arrival"), [(2, 1.9), (2, 1.0), (8, 7.0), (8, 7.2), (64, 63)])
    def test_the_p99_is_what_one_in_a_hundred_exceeds(self, servers, arrival):
        """δ = µ at (2, 1) and (8, 7): the limit formula."""
        t = value("queueing", f"servers={servers} arrival_per_s={arrival}", "p99_over_service")
        assert stays_longer(t, erlang_c(arrival, servers), servers, 1 - arrival / servers) == pytest.approx(0.01, rel=1e-6)

    def test_m_d_1_halves_the_wait_and_gives_no_p99(self):
        fixed = run("queueing", "queue_model=md1").values
        assert fixed["wait_s"] == pytest.approx(value("queueing", "", "wait_s") / 2)
        assert fixed["p99_s"] is None
        assert fixed["p99_over_service"] is None

    def test_the_p99_of_one_server_is_ln_100_times_the_mean(self):
        result = run("queueing", "arrival_per_s=0.3").values
        assert result["p99_s"] / result["sojourn_s"] == pytest.approx(math.log(100))

    def test_overload_and_two_fixed_servers_are_refused(self):
        assert refusal("queueing", "arrival_per_s=1").message.startswith("到达率超过服务能力，队列无限增长")
        assert refusal("queueing", "queue_model=md1 servers=2").field == "servers"


class TestCostPerMtok:
    def test_hits_are_free_and_idle_time_is_not(self):
        assert value("cost-per-mtok", "cache_hit=1", "blended_per_mtok") == pytest.approx(value("cost-per-mtok", "", "cost_out_per_mtok") / 5)
        assert value("cost-per-mtok", "utilisation=1", "cost_out_per_mtok") == pytest.approx(0.4 * value("cost-per-mtok", "", "cost_out_per_mtok"))

    def test_currency_and_date_are_the_readers(self):
        verdict = run("cost-per-mtok", "currency=cny gpu_price_per_h=20 price_year=2027 price_month=3").verdict
        assert "2027 年 3 月" in verdict
        assert "元/百万 token" in verdict
        assert "$" not in verdict

    def test_no_utilisation_is_refused(self):
        assert refusal("cost-per-mtok", "utilisation=0").field == "utilisation"


class TestCapacityPlan:
    def test_batch_beyond_the_knee_buys_nothing(self):
        """Compute-bound: the replica time per request (67.0 ms) no longer depends on the batch."""
        for cap in (149, 300, 446):
            assert 1e3 / value("capacity-plan", f"batch_cap={cap}", "req_s_per_replica") == pytest.approx(67.0, abs=0.05)

    def test_149_is_the_largest_that_keeps_the_tpot_on_shared_cards(self):
        assert value("capacity-plan", "batch_cap=149", "effective_tpot_ms") <= 100 < value("capacity-plan", "batch_cap=150", "effective_tpot_ms")

    def test_446_is_the_largest_that_keeps_the_bare_step(self):
        assert value("capacity-plan", "batch_cap=447 tpot_slo_s=0", "step_ms") > 100 >= value("capacity-plan", "", "step_ms")

    def test_presets_are_only_defaults(self):
        typed = "n_gpu_per_replica=4 weight_bytes=2 math_factor=1 scheduling=static batch_cap=12 length_dist=equal"
        assert run("capacity-plan", typed).values == run("capacity-plan", "preset=naive").values
        assert run("capacity-plan", "preset=naive").resolved["batch_cap"] == 12

    def test_static_batches_of_unequal_lengths_pay_the_harmonic_number(self):
        equal, unequal = (value("capacity-plan", f"preset=naive length_dist={d}", "req_s_per_replica") for d in ("equal", "exponential"))
        h = sum(1 / k for k in range(1, 13))
        assert 1e3 / unequal - 44.637 == pytest.approx(h * (1e3 / equal - 44.637), rel=1e-4)

    def test_twice_the_traffic_about_twice_the_cards(self):
        assert value("capacity-plan", "peak_factor=2", "gpus") == value("capacity-plan", "requests_per_day=2e7", "gpus") == 32

    def test_headroom_is_a_division(self):
        """Ceil(7.757 / 0.65) = 12 replicas of two cards."""
        assert value("capacity-plan", "", "gpus_headroom") == 24
        assert value("capacity-plan", "target_util=1", "gpus_headroom") == 16

    def test_little_agrees_with_the_replicas(self):
        """λ × T × TPOT = busy replicas × batch, when prefills share the cards."""
        v = run("capacity-plan").values
        inside = v["arrival_per_s"] * 100 * v["effective_tpot_ms"] / 1e3
        assert inside == pytest.approx(v["arrival_per_s"] / v["req_s_per_replica"] * v["batch"], rel=1e-3)

    @pytest.mark.parametrize(
        ("query", "field"),
        [
            ("preset=naive n_gpu_per_replica=1", "n_gpu_per_replica"),
            ("prompt_tokens=1000000", "prompt_tokens"),
            ("tpot_slo_s=0.001", "tpot_slo_s"),
            ("active_gpus=3", "active_gpus"),
        ],
    )
    def test_refusals(self, query, field):
        assert refusal("capacity-plan", query).field == field


SWEEP = {
    "prefill-first": (99.9, 99.7, 99.3, 98.6, 96.6, 90.1, 75.1, 42.7, 17.3, 7.1, 2.9, 1.6, 1.1),
    "chunked": (100, 100, 100, 100, 100, 99.6, 99.0, 96.2, 89.0, 79.8, 58.3, 25.5, 23.3),
}
CHUNKED_TPOT_P99_MS = (10.8, 12.4, 13.8, 15.6, 15.6, 15.6, 15.6, 15.6, 15.6, 15.6, 15.7, 15.7, 15.7)
PREFILL_FIRST_TPOT_P50_MS = (7.4, 8.3, 9.5, 11.1, 13.5, 16.8, 22.1, 32.0, 52.1, 69.9, 72.9, 73.6, 74.6)
RATES = range(6, 31, 2)


class TestGoodputSim:
    def test_defaults(self):
        values = run("goodput-sim").values
        assert values["attainment_pct"] == pytest.approx(96.2, abs=2)
        assert values["ttft_p99_s"] == pytest.approx(0.68, rel=0.1)
        assert values["tpot_p50_ms"] == pytest.approx(11.91, rel=0.05)
        assert values["tpot_p99_ms"] == pytest.approx(15.64, rel=0.05)
        assert values["output_tok_s"] == pytest.approx(3672, rel=0.02)
        assert values["goodput_90_req_s"] is None

    @pytest.mark.parametrize(("policy", "at_90", "at_99"), [("prefill-first", 16.0, 10.8), ("chunked", 21.7, 17.8)])
    def test_sweep(self, policy, at_90, at_99):
        values = run("goodput-sim", f"sweep=true policy={policy}").values
        assert values["attainment_sweep_pct"] == pytest.approx(SWEEP[policy], abs=2)
        assert all(b <= a + 1 for a, b in pairwise(values["attainment_sweep_pct"]))
        assert values["goodput_90_req_s"] == pytest.approx(at_90, abs=1)
        assert values["goodput_99_req_s"] == pytest.approx(at_99, abs=1)

    def test_a_tighter_tpot_hits_prefill_first_only(self):
        got = {p: value("goodput-sim", f"sweep=true slo_tpot_ms=20 policy={p}", "goodput_90_req_s") for p in SWEEP}
        assert got == pytest.approx({"prefill-first": 13.0, "chunked": 21.7}, abs=1)

    @pytest.mark.parametrize("seed", range(10))
    def test_chunked_wins_at_every_seed(self, seed):
        first, chunked = (run("goodput-sim", f"sweep=true seed={seed} policy={p}").values for p in SWEEP)
        for target in ("goodput_90_req_s", "goodput_99_req_s"):
            assert chunked[target] > first[target]
        assert 16.6 - 0.5 <= chunked["goodput_99_req_s"] <= 20.7 + 0.5  # the range that the chapter gives for these ten seeds

    def test_tpot_over_the_rates(self):
        p99 = [value("goodput-sim", f"rate_per_s={r}", "tpot_p99_ms") for r in RATES]
        assert p99 == pytest.approx(CHUNKED_TPOT_P99_MS, rel=0.05)
        p50 = [value("goodput-sim", f"rate_per_s={r} policy=prefill-first", "tpot_p50_ms") for r in RATES]
        assert p50 == pytest.approx(PREFILL_FIRST_TPOT_P50_MS, rel=0.05)

    @pytest.mark.parametrize(
        ("policy", "rates"),
        [("prefill-first", (2609, 2945, 3258, 3547, 3876, 3976)), ("chunked", (2634, 2987, 3334, 3672, 4291, 4837))],
    )
    def test_throughput_goes_on_rising(self, policy, rates):
        got = [value("goodput-sim", f"rate_per_s={r} policy={policy}", "output_tok_s") for r in (14, 16, 18, 20, 24, 30)]
        assert got == pytest.approx(rates, rel=0.02)

    @pytest.mark.parametrize(("policy", "short", "long"), [("chunked", 99.0, 25.5), ("prefill-first", 62.0, 1.6)])
    def test_a_short_run_lies(self, policy, short, long):
        result = run("goodput-sim", f"rate_per_s=28 n_requests=200 policy={policy}")
        assert result.values["attainment_pct"] == pytest.approx(short, abs=2)
        assert "跑得太短，看不到排队" in result.verdict
        assert value("goodput-sim", f"rate_per_s=28 policy={policy}", "attainment_pct") == pytest.approx(long, abs=2)

    def test_the_slowest_runs_stay_within_a_second(self):
        start = time.process_time()
        run("goodput-sim", "rate_per_s=0.5 n_requests=5000")
        assert time.process_time() - start < 2  # the limit is 1 s on an idle machine

    def test_the_token_budget_sets_a_ceiling(self):
        """32.8k token/s over (1,027 + 195) tokens a request: 26.9 req/s.  Ours leaves attention out of the step: an upper bound, 27.0."""
        values = run("goodput-sim", "rate_per_s=28").values
        assert values["mean_prompt_tokens"] == pytest.approx(1027, abs=1)
        assert values["mean_output_tokens"] == pytest.approx(195, abs=1)
        assert values["full_step_ms"] == pytest.approx(15.6, rel=0.01)
        assert values["ceiling_req_s"] == pytest.approx(26.9, abs=0.1)
        assert "超过天花板" in run("goodput-sim", "rate_per_s=28").verdict
        assert "超过天花板" not in run("goodput-sim", "rate_per_s=26").verdict
        assert value("goodput-sim", "policy=prefill-first", "ceiling_req_s") is None

    def test_the_price_of_chunking_is_in_the_ttft(self):
        got = [value("goodput-sim", f"rate_per_s={r} policy={p}", "ttft_p99_s") for r in (20, 14) for p in SWEEP]
        assert got == pytest.approx([0.63, 0.68, 0.35, 0.31], rel=0.1)

    def test_the_sweep_is_told_in_words(self):
        assert "守住 90% 最多 21.7 请求/s" in run("goodput-sim", "sweep=true").verdict
        assert "守住 90%：6 请求/s 也接不住" in run("goodput-sim", "sweep=true slo_tpot_ms=5").verdict
        assert "守住 99% 至少 30 请求/s" in run("goodput-sim", "sweep=true slo_ttft_s=100 slo_tpot_ms=1000").verdict

    def test_no_rate_and_a_pool_below_the_longest_request_are_refused(self):
        assert refusal("goodput-sim", "rate_per_s=0").field == "rate_per_s"
        assert refusal("goodput-sim", "kv_pool_tokens=10000").field == "kv_pool_tokens"


class TestPdTransfer:
    def test_only_the_kv_of_a_mixture_is_priced(self):
        values = run("pd-transfer", "model=deepseek-v3").values
        assert values["prefill_ms"] is None
        assert values["prefill_decode_ratio"] is None

    def test_an_instance_that_does_not_hold_the_model_is_called_out(self):
        assert "放不下" in run("pd-transfer", "n_gpu_per_side=1").notes[0]
        assert run("pd-transfer").notes == ()

    def test_a_narrow_link_is_called_out(self):
        assert "超过链路" in run("pd-transfer", "link_gbit_s=50").verdict
        assert refusal("pd-transfer", "link_gbit_s=0").field == "link_gbit_s"


class TestDayBill:
    def test_more_hits_than_input_are_refused(self):
        assert refusal("day-bill", "hit_tokens=609e9").field == "hit_tokens"

    def test_published_column(self):
        rows = run("day-bill").values["reconcile"]
        assert [row["published"] for row in rows] == [87_072, 562_027, 545, 56.3, 226.75]
        for row in rows:
            assert row["computed"] == pytest.approx(row["published"], rel=2e-3)

    def test_a_day_without_traffic(self):
        values = run("day-bill", "input_tokens=0 hit_tokens=0 output_tokens=0").values
        assert values["cost_per_mtok_out"] is None
        assert values["margin_pct"] == -100


DERIVED = [
    ("ref:sglang-price#gpu_hour", 2.007, 1e-2),  # LMSYS, 2025-05-05: 22.3k token/s a node of 8 at $0.20/M
    ("ref:seed-cut#x", 6.5, 1e-3),
    ("ref:batch-price-cut#x", 45, 2e-2),
    ("ref:throughput-after-goodput#gain", 12, 5e-2),
    ("ref:mlperf-as-speed#slow", 5, 1e-9),
    ("ref:mlperf-as-speed#fast", 25, 1e-9),
    ("ref:mlperf-as-speed#r1", 67, 1e-2),
    ("ref:goodput-gain#at_90", 1.36, 5e-2),
    ("ref:goodput-gain#at_99", 1.66, 5e-2),
    ("ref:budget-per-second#tokens", 32_800, 1e-2),
    ("ref:p99-over-mean#x", 4.6, 2e-3),
    ("ref:fewer-per-card#x", 0.95 / 0.7, 1e-9),
    ("ref:little-answer#stay", 4.5, 1e-9),
    ("ref:little-answer#inside", 45, 1e-9),
    ("ref:idle-x#x", 2.5, 1e-9),
    ("ref:output-price#miss", 4, 1e-2),
    ("ref:output-price#hit", 15.6, 5e-3),
    ("ref:break-even-load#sglang", 9.13, 1e-3),
    ("ref:rent-of-the-bill#per_hour", 27.8, 2e-3),
    ("ref:bill-unit-price#per_hour", 27.4, 2e-3),
    ("ref:request-on-replica#most", 67.0, 1e-3),
    ("ref:request-on-replica#kept", 67.0, 1e-3),
    ("ref:opt-66b-kv#request", 1.125, 1e-9),  # DistServe §3.3 prints it as 1.13 GB
    ("ref:cut-elsewhere#chapter_01", 84 / 12, 1e-9),
    ("ref:cut-elsewhere#longer", 152 / 34, 1e-9),
]


@pytest.mark.parametrize(("target", "expected", "tolerance"), DERIVED)
def test_derived_figures(target, expected, tolerance):
    assert resolve(target).value == pytest.approx(expected, rel=tolerance)


def test_distserve_link_from_its_own_kv():
    """§3.3: 1.13 GB a request at 10 requests a second is 90 Gb/s; the same KV counted in bytes, 1.125 GiB, is 96.6."""
    facts = {name: resolve(f"ref:distserve-2024#{name}").value for name in ("opt_kv", "opt_link", "requests_x", "slo_x")}
    assert 8 * facts["opt_kv"] * 10 == pytest.approx(facts["opt_link"], rel=1e-2)
    assert (facts["requests_x"], facts["slo_x"]) == (7.4, 12.6)  # OSDI; the first version says 4.48 and 10.2
    assert value("pd-transfer", f"prompt_tokens=512 kv_bytes_per_token={2 * 2 * 64 * 9216}", "required_gbit_s") == pytest.approx(96.64, rel=1e-4)


MLPERF_MS = {
    "llama2": (2000, 200, 450, 40),
    "llama8": (2000, 100, 500, 30),
    "llama405": (6000, 175, 4500, 80),
    "r1": (2000, 80, 1500, 15),
    "oss": (3000, 80, 2000, 20),
}


@pytest.mark.parametrize(("model", "limits"), MLPERF_MS.items())
def test_mlperf_limits(model, limits):
    """Inference rules of mlcommons/inference_policies, 2026-07: TTFT and TPOT, then the interactive ones."""
    names = ("ttft", "tpot", "fast_ttft", "fast_tpot")
    assert tuple(resolve(f"ref:mlperf-slo#{model}_{name}").value for name in names) == limits


@pytest.mark.parametrize(
    ("query", "naive", "w8a8"),
    [
        ("", 104, 16),
        ("prompt_tokens=500 output_tokens=200", 220, 38),
        ("prompt_tokens=150 output_tokens=80", 84, 12),
        ("requests_per_day=3e6 prompt_tokens=1500 output_tokens=400", 152, 34),
    ],
)
def test_the_bill_of_chapter_01_for_other_traffic(query, naive, w8a8):
    """Recomputed without our formulas: 70B on A100s, weights and KV read at 80 %, arithmetic at half the peak."""
    given = {"requests_per_day": 1e7, "prompt_tokens": 200, "output_tokens": 100, **{k: float(v) for k, v in (p.split("=") for p in query.split())}}
    s, t, arrival = given["prompt_tokens"], given["output_tokens"], given["requests_per_day"] / 86_400
    matmul, total, kv, layers, width = 69_503_033_344, 70_553_706_496, 327_680, 80, 8192
    for preset, cards, weight, peak, cap, expected in (("naive", 4, 2, 312e12, 12, naive), ("w8a8", 2, 1, 624e12, 10**9, w8a8)):
        flops, bandwidth, context = cards * peak / 2, cards * 2.039e12 * 0.8, s + t / 2
        pool = cards * (80 * 0.92 - 3) * 2**30 - total * weight

        def step(b, flops=flops, bandwidth=bandwidth, weight=weight, context=context):
            return max((matmul * weight + kv * context * b) / bandwidth, b * (2 * matmul + 4 * layers * width * context) / flops)

        batch = min(cap, int(pool // (kv * (s + t))))
        while step(batch) > 0.1:
            batch -= 1
        per = (2 * matmul * s + 2 * layers * width * s * s) / flops + t * step(batch) / batch
        assert math.ceil(arrival * per) * cards == expected
        assert value("capacity-plan", f"preset={preset} {query}", "gpus") == expected
