"""Chapter 23: mfu-from-log, train-cost, serve-cost, own-vs-rent, gpu-util-lab, bill-check.  Expected values: the chapter's specification unless a row names its source."""

from __future__ import annotations

import time

import pytest
from asking import first_error as refusal
from asking import run, value

from calculators.core.errors import Refusal
from calculators.core.index import load

LLAMA_405B = "model=custom N=405e9 tokens=15.6e12 known_gpu_hours=30.84e6"
DEEPSEEK_V3 = "model=custom N=37e9 tokens=14.8e12 known_gpu_hours=2.664e6 gpu=h800"
PALM = "model=custom tokens_per_s=238300 N=540.35e9 L=118 heads=48 head_dim=256 seq=2048 n_gpus=6144 peak_tflops=275"
MEGASCALE = "model=custom N=174732607488 L=96 heads=96 head_dim=128 seq=2048 n_gpus=12288 peak_tflops=312 total_tokens=300e9"
KORTHIKANTI = "model=custom tokens_per_s=9532.5 N=174575321088 L=96 heads=96 head_dim=128 seq=2048 n_gpus=64 peak_tflops=312"
NODE = f"gpus=8 gpu_price_per_h=2 out_tok_s=14800 in_tok_s=73700 in_per_out={608 / 168} utilisation=1"
DAY = f"rates=concurrent gpus=1814 gpu_price_per_h=2 in_tok_s={608e9 / 86400} out_tok_s={168e9 / 86400} utilisation=1"

# Rows: calculator, inputs that differ from the defaults, output, expected, relative tolerance.
DEFAULTS = [
    ("mfu-from-log", "", "mfu_pct", 33.741, 2e-5),
    ("mfu-from-log", "", "hfu_pct", 33.741, 2e-5),
    ("mfu-from-log", "", "gflop_per_token", 57.914, 1e-5),
    ("mfu-from-log", "", "tflops_per_gpu", 333.70, 2e-5),
    ("mfu-from-log", "", "tok_s_per_gpu", 5762, 0),
    ("mfu-from-log", "", "days", 251.09, 2e-5),
    ("train-cost", "", "flops", 6.34983e24, 1e-6),
    ("train-cost", "", "gpu_hours", 4_693_318, 1e-7),
    ("train-cost", "", "days", 95.486, 1e-5),
    ("train-cost", "", "cost", 11_733_294, 1e-7),
    ("train-cost", "", "energy_mwh", 5631.98, 1e-6),
    ("train-cost", "", "tokens_per_param", 212.60, 2e-5),
    ("serve-cost", "", "cost_per_m_out", 0.69444, 1e-5),
    ("serve-cost", "", "cost_per_m_in", 0.13889, 1e-5),
    ("serve-cost", "", "cost_per_m_blended", 0.25, 1e-12),
    ("serve-cost", "", "tok_s_per_gpu", 6944.4, 1e-5),
    ("serve-cost", "", "fleet_cost_per_day", 60, 1e-12),
    ("serve-cost", "", "gpus_needed", 20.833, 2e-5),
    ("own-vs-rent", "", "own_per_gpu_h", 1.64205, 1e-6),
    ("own-vs-rent", "", "capital_per_gpu_h", 1.14155, 4e-6),
    ("own-vs-rent", "", "power_per_gpu_h", 0.13520, 1e-9),
    ("own-vs-rent", "", "operations_per_gpu_h", 0.36530, 1e-5),
    ("own-vs-rent", "", "own_per_useful_gpu_h", 2.73675, 1e-6),
    ("own-vs-rent", "", "break_even_util_pct", 65.682, 1e-6),
    ("bill-check", "", "implied_price_per_gpu_h", 27.397, 1e-5),
    ("bill-check", "", "requests_per_s", 115.74, 1e-5),
    ("bill-check", "", "cost_per_1k_requests", 6.5753, 1e-5),
    ("bill-check", "", "repriced_monthly_bill", 730_000, 1e-12),
]

FIGURES = [
    ("mfu-from-log", "count_embedding=all", "mfu_pct", 35.58, 1e-4),
    ("mfu-from-log", "count_embedding=all convention=6N", "mfu_pct", 28.07, 1e-4),
    ("mfu-from-log", "convention=6N+attn-causal", "mfu_pct", 29.99, 1e-4),
    ("mfu-from-log", "recompute=full", "hfu_pct", 44.99, 1e-4),
    ("mfu-from-log", "recompute=selective", "hfu_pct", 36.24, 2e-4),
    ("mfu-from-log", "tokens_per_s=53336", "mfu_pct", 39.04, 1e-4),  # torchtitan with compile: 6,667 a card
    ("train-cost", "model=custom N=7e9 tokens=1e12", "gpu_hours", 31_043, 2e-5),
    ("train-cost", "model=custom N=7e9 tokens=1e12", "cost", 78_000, 7e-3),
    ("train-cost", "model=custom N=8.03e9", "gpu_hours", 534_000, 1e-3),
    ("train-cost", "model=custom N=8.03e9", "cost", 1.34e6, 5e-3),
    ("train-cost", "", "gpu_hours", 4.69e6, 1e-3),
    ("train-cost", LLAMA_405B, "flops", 3.8e25, 1e-2),  # Llama 3 §3.2
    ("train-cost", LLAMA_405B, "implied_mfu_pct", 34.524, 2e-5),
    ("train-cost", "model=llama-3.1-405b tokens=15.6e12 known_gpu_hours=30.84e6", "implied_mfu_pct", 34.6, 1e-3),
    ("train-cost", DEEPSEEK_V3, "implied_mfu_pct", 34.6, 2e-3),
    ("train-cost", DEEPSEEK_V3 + " peak_tflops=1979", "implied_mfu_pct", 17.3, 1e-3),
    ("train-cost", "model=deepseek-v3 tokens=14.8e12 known_gpu_hours=2.664e6 gpu=h800", "implied_mfu_pct", 35.2, 2e-3),
    ("train-cost", "known_gpu_hours=180e3 tokens=1e11", "known_days", 3.662, 1e-4),
    *(
        ("train-cost", f"known_gpu_hours={hours} price=2 tokens=1e11", "known_cost", cost, 1e-12)  # DeepSeek-V3 Table 1
        for hours, cost in ((2.788e6, 5.576e6), (2.664e6, 5.328e6), (119e3, 0.238e6))
    ),
    ("train-cost", "known_gpu_hours=5e3 price=2 tokens=1e9", "known_cost", 0.01e6, 1e-12),
    ("serve-cost", "utilisation=1", "cost_per_m_out", 0.278, 1e-3),
    ("serve-cost", NODE, "cost_per_m_out", 0.300, 2e-3),
    ("serve-cost", NODE, "cost_per_m_in", 0.0603, 1e-3),
    ("serve-cost", NODE, "cost_per_m_blended", 0.1123, 4e-4),
    ("serve-cost", DAY, "fleet_cost_per_day", 87_072, 1e-12),
    ("serve-cost", DAY, "cost_per_m_blended", 0.1122, 1e-3),
    ("bill-check", "cards=15 monthly_bill=3e5", "implied_price_per_gpu_h", 27.40, 2e-4),
    ("bill-check", "cards=15 monthly_bill=3e5", "cost_per_1k_requests", 0.986, 5e-4),
    ("bill-check", "cards=15 monthly_bill=3e5", "repriced_monthly_bill", 109_500, 1e-12),
]

# Published training runs: what the paper prints, percentage points of tolerance.
PUBLISHED = [
    (PALM, "mfu_pct", 46.2, 0.1),  # PaLM §4, appendix B
    (PALM.replace("L=118 heads=48 head_dim=256", "convention=6N"), "mfu_pct", 45.7, 0.1),
    (MEGASCALE + " tokens_per_s=1466.8e3", "mfu_pct", 41.2, 0.2),  # MegaScale Table 2, Megatron-LM
    (MEGASCALE + " tokens_per_s=1466.8e3", "mfu_pct", 41.22, 0.005),  # the formula
    (MEGASCALE + " tokens_per_s=1984.0e3", "mfu_pct", 55.2, 1),  # printed: sliding windows, whose FLOPs they do not count
    (MEGASCALE + " tokens_per_s=1984.0e3", "mfu_pct", 55.75, 0.005),  # the formula
    (MEGASCALE + " tokens_per_s=1984.0e3", "days", 1.75, 0.01),
    (KORTHIKANTI, "mfu_pct", 51.4, 0.1),  # Korthikanti Table 5
    (KORTHIKANTI, "mfu_pct", 51.39, 0.005),
    ("", "mfu_pct", 33.7, 0.5),  # torchtitan 2024-12
    ("tokens_per_s=53336", "mfu_pct", 39.0, 0.5),
]


@pytest.mark.parametrize(("id", "query", "output", "expected", "tolerance"), DEFAULTS + FIGURES)
def test_values(id, query, output, expected, tolerance):
    assert value(id, query, output) == pytest.approx(expected, rel=tolerance)


@pytest.mark.parametrize(("query", "output", "expected", "tolerance"), PUBLISHED)
def test_published_runs(query, output, expected, tolerance):
    assert value("mfu-from-log", query, output) == pytest.approx(expected, abs=tolerance)


TORCHTITAN = "step: 100  loss: 3.92  memory: 45.90GiB(48.30%)  tps: 5,762  tflops: 333.70  mfu: 33.74%"
MEGATRON = (
    " iteration      100/  500 | consumed samples: 6400 | elapsed time per iteration (ms): 13750.0 | "
    "throughput per GPU (TFLOP/s/GPU): 160.3 | learning rate: 1.0E-04 | global batch size:    64 | lm loss: 2.1E+00 |"
)


class TestPastedLog:
    def pasted(self, log, **given):
        return load("mfu-from-log").run({"log": log, **given})

    @pytest.mark.parametrize(
        ("line", "total"),
        [
            (TORCHTITAN, 46_096),
            ("\x1b[31mstep: 100  \x1b[34mtps: 5,762  \x1b[35mmfu: 33.74%\x1b[39m", 46_096),
            ("tps: 46,096  per_device_tps: 5,762", 46_096),
            ("tokens/s/gpu: 5762", 46_096),
            ("tokens per GPU (tokens/s/GPU): 5762.0", 46_096),
            ("Tokens per second per GPU (Tok/s/GPU): 5762", 46_096),
            ("{'train_runtime': 60.0, 'train_tokens_per_second': 46096.0}", 46_096),
            ("throughput 46,096 tokens/s | lr 1e-4", 46_096),
            ("5,762 tok/s/gpu, mfu=33.7", 46_096),
            ("compute per GPU (TFLOP/s/GPU): 496.3 | tokens/s/GPU inst/harmonic mean: 5762.0/5760.1", 46_096),
            ("tokens/s: 46.096k", 46_096),
            (MEGATRON, 64 * 8192 / 13.75),
        ],
    )
    def test_formats(self, line, total):
        assert self.pasted(line).values["tok_s_per_gpu"] * 8 == pytest.approx(total)

    def test_a_pasted_line_answers_as_typed_numbers_do(self):
        assert self.pasted(TORCHTITAN).values["mfu_pct"] == value("mfu-from-log", "", "mfu_pct")

    def test_megatron_reproduces_table_5(self):
        """Korthikanti Table 5: 64 sequences of 2048, 13.75 s, 51.4 %."""
        given = dict(pair.split("=") for pair in KORTHIKANTI.split() if not pair.startswith("tokens_per_s"))
        assert self.pasted(MEGATRON, **given).values["mfu_pct"] == pytest.approx(51.39, abs=0.005)

    def test_the_median_ignores_the_warm_up(self):
        lines = "\n".join(f"step: {i} tps: {tps}" for i, tps in enumerate((31, 5760, 5762, 5764, 5763), 1))
        assert self.pasted(lines).values["tok_s_per_gpu"] == 5762

    def test_it_finds_the_convention_of_what_the_log_printed(self):
        assert self.pasted(TORCHTITAN).values["closest"] == "6N + attention 全额，不数输入词表"
        assert self.pasted(TORCHTITAN.replace("33.74%", "28.1%")).values["closest"] == "只数 6N，全部参数"
        assert "稀疏" in str(self.pasted(TORCHTITAN.replace("33.74%", "16.9%")).values["closest"])
        assert self.pasted(TORCHTITAN.replace("33.74%", "61%")).values["closest"] == "都对不上"

    def test_few_digits_cannot_tell_near_conventions_apart(self):
        """PaLM: 45.73, 45.98 and 46.23 %; "46 %" is within 0.3 of all three, 33.74 % within 0.3 of one."""
        assert "另外 2 种" in run("mfu-from-log", f"{PALM} reported_mfu=46").verdict
        assert "分不开" not in run("mfu-from-log", "reported_mfu=33.74").verdict

    def test_one_cards_rate_typed_for_the_job(self):
        assert "只填了一张卡" in run("mfu-from-log", "tokens_per_s=5762").verdict
        assert "只填了一张卡" not in self.pasted(TORCHTITAN.replace("5,762", "800")).verdict  # the log says whose rate it is
        assert "只填了一张卡" not in run("mfu-from-log").verdict

    def test_a_share_without_a_percent_sign(self):
        assert self.pasted("tps: 5762 mfu: 0.3374").values["reported_pct"] == pytest.approx(33.74)

    @pytest.mark.parametrize("log", ["loss: 3.2", "https://example.org/1", "tps: none", "step 1 | 吞吐很高", "tps: 0", "tps: 1e305"])
    def test_nothing_to_read(self, log):
        with pytest.raises(Refusal) as caught:
            self.pasted(log)
        assert caught.value.errors[0].field == "log"

    @pytest.mark.parametrize(("reported", "name"), [("45.7", "只数 6N"), ("46.2", "6N + attention 全额")])
    def test_palm_by_its_printed_share(self, reported, name):
        assert value("mfu-from-log", f"{PALM} reported_mfu={reported}", "closest") == name


class TestMfuFromLog:
    def test_it_is_chapter_4s_formula(self):
        for recompute in ("none", "selective", "full"):
            here = run("mfu-from-log", f"{PALM} recompute={recompute}").values
            there = run("mfu", f"preset=palm-540b recompute={recompute}").values
            assert here["mfu_pct"] == pytest.approx(there["mfu_pct"], rel=1e-12)
            assert here["hfu_pct"] == pytest.approx(there["hfu_pct"], rel=1e-12)

    def test_full_recompute_is_four_thirds(self):
        for convention in ("6N", "6N+attn-full", "6N+attn-causal"):
            values = run("mfu-from-log", f"recompute=full convention={convention}").values
            assert values["hfu_pct"] / values["mfu_pct"] == pytest.approx(4 / 3)

    def test_six_rows_one_chosen(self):
        rows = value("mfu-from-log", "", "conventions")
        assert len(rows) == 6
        assert [row["mfu"] for row in rows if row["chosen"]] == [pytest.approx(33.741, rel=2e-5)]

    def test_a_given_n_ignores_the_embedding(self):
        assert value("mfu-from-log", "N=7504924672", "mfu_pct") == value("mfu-from-log", "N=7504924672 count_embedding=all", "mfu_pct")

    def test_a_tied_table_has_nothing_to_leave_out(self):
        query = "model=llama-3.2-1b tokens_per_s=100000"
        assert value("mfu-from-log", query, "mfu_pct") == value("mfu-from-log", query + " count_embedding=all", "mfu_pct")
        assert len(value("mfu-from-log", query, "conventions")) == 3

    def test_mixtures_use_active_parameters(self):
        assert run("mfu-from-log", "model=deepseek-v3 count_embedding=all tokens_per_s=10000").resolved["N"] == 37_552_282_624

    def test_more_than_the_peak_is_refused(self):
        error = refusal("mfu-from-log", "tokens_per_s=368768")  # 5,762 × 8 × 8
        assert error.field == "tokens_per_s"
        assert "超过 100%" in error.message
        assert "多半是把稀疏峰值、双精度口径或 token 数算错了" in error.message

    def test_custom_needs_its_sizes(self):
        assert refusal("mfu-from-log", "model=custom").field == "N"
        assert refusal("mfu-from-log", "model=custom N=8e9").field == "L"
        assert value("mfu-from-log", "model=custom N=8e9 convention=6N", "gflop_per_token") == 48


class TestTrainCost:
    def test_it_is_chapter_4s_formula(self):
        here, there = run("train-cost").values, run("train-time", "model=llama-3-70b tokens=15e12 n_gpus=2048").values
        for name in ("flops", "gpu_hours", "days"):
            assert here[name] == pytest.approx(there[name], rel=1e-12)

    def test_no_published_hours_no_inverse(self):
        assert [value("train-cost", "", name) for name in ("implied_mfu_pct", "known_cost", "known_days")] == [None] * 3

    def test_inverse_of_the_forward_question(self):
        values = run("train-cost").values
        again = run("train-cost", f"known_gpu_hours={values['gpu_hours']}").values
        assert again["implied_mfu_pct"] == pytest.approx(40 * 0.95)
        assert again["known_cost"] == pytest.approx(values["cost"])

    def test_published_utilisation_counts_no_recompute(self):
        assert value("train-cost", LLAMA_405B + " flops_factor=8", "implied_mfu_pct") == value("train-cost", LLAMA_405B, "implied_mfu_pct")

    def test_hours_and_money_add_up(self):
        """DeepSeek-V3 Table 1: 2664K + 119K + 5K = 2788K; $5.328M + $0.238M + $0.01M = $5.576M."""
        parts = [value("train-cost", f"known_gpu_hours={h} price=2 tokens=1e9", "known_cost") for h in (2.664e6, 119e3, 5e3)]
        assert sum(parts) == pytest.approx(5.576e6)

    @pytest.mark.parametrize("query", ["mfu=0", "mfu=1.1", "goodput=0", "goodput=1.01", "N=1e5"])
    def test_shares_stay_shares(self, query):
        assert refusal("train-cost", query).field == query.partition("=")[0]

    def test_impossible_hours(self):
        error = refusal("train-cost", "known_gpu_hours=1e5")
        assert error.field == "known_gpu_hours"
        assert "检查参数量（MoE 用激活参数）、token 数和峰值口径" in error.message

    def test_published_hours_are_answered_first(self):
        verdict = run("train-cost", "model=deepseek-v3 tokens=14.8e12 gpu=h800 price=2 known_gpu_hours=2788000").verdict
        assert verdict.index("557.6 万美元") < verdict.index("照你填的")

    def test_no_advice_to_a_chinchilla_run(self):
        assert not run("train-cost").notes
        assert "Chinchilla" in run("train-cost", "tokens=1e12").notes[0]

    def test_currency_is_the_readers(self):
        verdict = run("train-cost", "currency=cny price=20 price_year=2027 price_month=3").verdict
        assert "2027 年 3 月" in verdict
        assert "元" in verdict
        assert "美元" not in verdict


class TestServeCost:
    def test_the_same_price_as_chapter_20(self):
        chapter_20 = run("cost-per-mtok", "gpu_price_per_h=2.5 output_tok_s=2500 input_tok_s=12500").values
        here = run("serve-cost").values
        for mine, theirs in (("cost_per_m_out", "cost_out_per_mtok"), ("cost_per_m_in", "cost_in_per_mtok"), ("cost_per_m_blended", "blended_per_mtok")):
            assert here[mine] == pytest.approx(chapter_20[theirs], rel=1e-12)

    def test_the_same_day_as_chapter_20(self):
        day = run("day-bill").values
        assert value("serve-cost", DAY, "fleet_cost_per_day") == pytest.approx(day["cost_per_day"])
        assert value("serve-cost", DAY, "cost_per_m_out") == pytest.approx(day["cost_per_mtok_out"])
        assert value("serve-cost", DAY, "cost_per_m_blended") == pytest.approx(day["cost_per_mtok_all"])

    def test_the_published_margin(self):
        """open-infra-index day 6: revenue $562,027, cost $87,072, 545 %."""
        assert 562_027 / value("serve-cost", DAY, "fleet_cost_per_day") - 1 == pytest.approx(5.45, abs=0.01)

    def test_utilisation_is_the_price(self):
        assert value("serve-cost", "utilisation=0.2", "cost_per_m_out") == pytest.approx(2 * value("serve-cost", "", "cost_per_m_out"))

    def test_cached_input_is_free(self):
        assert value("serve-cost", "cache_hit=1", "cost_per_m_blended") == pytest.approx(value("serve-cost", "", "cost_per_m_out") / 5)

    def test_a_fleet_of_that_size_costs_the_blended_price(self):
        """Cards for a day × their rent = tokens of the day × price of a token."""
        values = run("serve-cost").values
        tokens = 1e9 * (1 + 4) / 1e6
        assert values["gpus_needed"] * 24 * 2.5 == pytest.approx(tokens * values["cost_per_m_blended"])

    def test_side_by_side_reads_no_ratio(self):
        assert refusal("serve-cost", "rates=concurrent in_per_out=2").field == "in_per_out"

    @pytest.mark.parametrize("query", ["utilisation=0", "cache_hit=1.1", "out_tok_s=0"])
    def test_refusals(self, query):
        assert refusal("serve-cost", query).field == query.partition("=")[0]


class TestOwnVsRent:
    def test_defaults_say_rent(self):
        assert value("own-vs-rent", "", "own_is_cheaper") is False
        assert "租" in run("own-vs-rent").verdict

    def test_the_two_meet_at_break_even(self):
        even = value("own-vs-rent", "", "break_even_util_pct") / 100
        assert value("own-vs-rent", f"utilisation={even}", "own_per_useful_gpu_h") == pytest.approx(2.5)
        assert value("own-vs-rent", f"utilisation={even + 0.01}", "own_is_cheaper") is True

    def test_full_load_may_still_cost_more(self):
        assert "满载也要" in run("own-vs-rent", "rent=1").verdict
        assert "满载也要" in run("own-vs-rent", "rent=1 utilisation=1").verdict

    def test_dear_power_is_named_once(self):
        assert run("own-vs-rent", "elec=1 kw=3 pue=2").notes[0].count("电") == 1

    def test_free_cards(self):
        assert value("own-vs-rent", "rent=0", "break_even_util_pct") is None


class TestGpuUtilLab:
    def test_defaults(self):
        values = run("gpu-util-lab").values
        assert values["gpu_util_pct"] == pytest.approx(96.1, abs=1)
        assert values["sm_active_pct"] == pytest.approx(24.0, abs=0.3)

    def test_a_starved_card(self):
        values = run("gpu-util-lab", "gap_us=50").values
        assert values["gpu_util_pct"] == pytest.approx(49.7, abs=1)
        assert values["sm_active_pct"] == pytest.approx(12.4, abs=0.3)

    @pytest.mark.parametrize("seed", range(5))
    def test_the_closed_form(self, seed):
        values = run("gpu-util-lab", f"seed={seed}").values
        assert values["expected_util_pct"] == pytest.approx(100 * 50 / 52)
        assert values["gpu_util_pct"] == pytest.approx(100 * 50 / 52, abs=1)

    def test_no_gaps_is_a_full_bar_whatever_the_sms_do(self):
        values = run("gpu-util-lab", "gap_us=0 sm_share=0.01").values
        assert values["gpu_util_pct"] == 100
        assert values["sm_active_pct"] == pytest.approx(1)

    def test_verdicts_tell_the_cases_apart(self):
        said = {q: run("gpu-util-lab", q).verdict for q in ("", "sm_share=1", "gap_us=50 sm_share=1", "gap_us=50")}
        assert "满格是假的" in said[""]
        assert "Tensor Core" in said["sm_share=1"]
        assert "间隙太长" in said["gap_us=50 sm_share=1"]
        assert "又在等，又没铺满" in said["gap_us=50"]

    def test_it_is_quick(self):
        start = time.perf_counter()
        run("gpu-util-lab", "n_kernels=200000")
        assert time.perf_counter() - start < 1


class TestBillCheck:
    def test_both_bills_of_chapter_1_hide_one_price(self):
        many, few = value("bill-check", "", "implied_price_per_gpu_h"), value("bill-check", "cards=15 monthly_bill=3e5", "implied_price_per_gpu_h")
        assert many == pytest.approx(few)

    def test_the_ratio_survives_a_new_price(self):
        many, few = value("bill-check", "", "repriced_monthly_bill"), value("bill-check", "cards=15 monthly_bill=3e5", "repriced_monthly_bill")
        assert many / few == pytest.approx(6.7, abs=0.05)

    def test_no_bill(self):
        assert refusal("bill-check", "monthly_bill=0").field == "monthly_bill"
