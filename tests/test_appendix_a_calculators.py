"""Appendix A: unit-convert, fermi, spec-compare.  Expected values: the appendix's specification unless a row names its source."""

from __future__ import annotations

from dataclasses import replace

import pytest
from asking import first_error as refusal
from asking import run

from calculators.catalog import accelerator, accelerators
from calculators.core.errors import Refusal
from calculators.core.index import load
from calculators.foundations.unit_convert import FACTORS, FAMILIES

H100_8B = "N=8030261248 decode_gpus=1"
B200 = "gpu_b=b200"

DEFAULTS = [
    ("unit-convert", "", "result", 50, 0),
    ("fermi", "", "weights_gb", 140, 1e-12),
    ("fermi", "", "states_gb", 1120, 1e-12),
    ("fermi", "", "min_gpus", 23, 0),
    ("fermi", "", "flops", 4.2e23, 1e-12),
    ("fermi", "", "days", 191.999, 3e-6),
    ("fermi", "", "gpu_hours", 294_910.7, 3e-7),
    ("fermi", "", "decode_ms", 5.2239, 1e-5),
    ("fermi", "", "allreduce_s", 5.5125, 1e-5),
    ("spec-compare", "", "peak_ratio", 1.0, 0),
    ("spec-compare", "", "bandwidth_ratio", 1.43284, 4e-6),
    ("spec-compare", "", "ridge_a_flop_per_byte", 295.22, 2e-5),
    ("spec-compare", "", "ridge_b_flop_per_byte", 206.04, 2e-5),
    ("spec-compare", "", "speed_ratio", 1.43284, 4e-6),
    ("spec-compare", "", "value_ratio", 1.43284, 4e-6),
    ("spec-compare", "", "cost_per_eflop_a", 0.70217, 1e-5),
    ("spec-compare", "", "cost_per_eflop_b", 0.70217, 1e-5),
    ("spec-compare", "", "cost_per_pb_a", 0.20730, 2e-5),
    ("spec-compare", "", "cost_per_pb_b", 0.14468, 4e-5),
]

FIGURES = [
    ("unit-convert", "value=80 from=GiB to=GB", "result", 85.899, 1e-5),
    ("unit-convert", "value=1 from=GiB to=GB", "result", 1.0737, 1e-4),
    ("unit-convert", "value=1 from=PFLOP/s-day to=FLOP", "result", 8.64e19, 1e-12),
    ("unit-convert", "value=15.6 from=万亿 to=个", "result", 1.56e13, 1e-12),
    ("unit-convert", "value=16.060522496 from=GB to=GiB", "result", 14.96, 4e-4),
    ("unit-convert", "value=-8 from=b to=B", "result", -1, 0),
    ("fermi", H100_8B, "weights_gb", 16.06, 1e-4),
    ("fermi", H100_8B, "decode_ms", 4.79, 1e-3),
    ("fermi", "n=1000000", "allreduce_s", 5.6, 1e-5),
    ("fermi", "", "days", 192.0, 1e-4),
    ("spec-compare", "workload=train", "speed_ratio", 1.0, 0),
    ("spec-compare", "gpu_a=a100-80gb gpu_b=b200", "ridge_a_flop_per_byte", 153.0, 1e-3),
    ("spec-compare", "gpu_a=a100-80gb gpu_b=b200", "ridge_b_flop_per_byte", 292.2, 1e-3),
    # ml-engineering: 2250 / 989, printed 2.28
    ("spec-compare", B200, "peak_ratio", 2.275, 1e-4),
    ("spec-compare", B200 + " workload=prefill", "speed_ratio", 2.275, 1e-4),
    # GPT-3: 6 × 174.6e9 × 300e9; the OPT logbook quotes 3.14e23
    ("fermi", "N=174.6e9 D=300e9", "flops", 3.14e23, 2e-3),
    # Chinchilla, 70B and 1.4T tokens; the paper says about 5.76e23 by its own count
    ("fermi", "D=1.4e12", "flops", 5.88e23, 1e-12),
]


@pytest.mark.parametrize(("id", "query", "output", "expected", "tolerance"), DEFAULTS + FIGURES)
def test_values(id, query, output, expected, tolerance):
    assert run(id, query).values[output] == pytest.approx(expected, rel=tolerance)


def test_chinchilla_reads_twenty_tokens_a_parameter():
    """Hoffmann et al. 2022: 1.4T tokens for 70B parameters."""
    inputs = run("fermi", "D=1.4e12").inputs

    assert inputs["D"] / inputs["N"] == 20


def test_dgx_b200_has_14_4_tb_s_of_nvlink():
    """MLPerf Inference v6.0 system file: 8 × 1.8 TB/s."""
    assert 8 * accelerator("b200").link_gb_s_bidir == 14_400


class TestUnits:
    def test_the_names_are_the_specifications(self):
        data = ["b", "Kb", "Mb", "Gb", "Tb", "B", "KB", "MB", "GB", "TB", "PB", "KiB", "MiB", "GiB", "TiB", "PiB"]

        assert list(FAMILIES["data"]) == data
        assert list(FAMILIES["rate"]) == [f"{unit}/s" for unit in data]
        assert list(FAMILIES["FLOP"]) == ["FLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP", "ZFLOP", "PFLOP/s-day"]
        assert list(FAMILIES["count"]) == ["个", "万", "百万", "亿", "十亿", "万亿"]

    @pytest.mark.parametrize(
        ("unit", "factor"),
        [("Gb", 1e9 / 8), ("TB", 1e12), ("MiB", 2**20), ("PiB", 2**50), ("Kb/s", 125), ("ZFLOP", 1e21), ("PFLOP/s-day", 1e15 * 86_400), ("亿", 1e8)],
    )
    def test_factors(self, unit, factor):
        assert FACTORS[unit][1] == factor

    @pytest.mark.parametrize("family", FAMILIES)
    def test_there_and_back_is_where_it_began(self, family):
        for a in FAMILIES[family]:
            for b in FAMILIES[family]:
                there = run("unit-convert", f"value=3 from={a} to={b}").values["result"]
                assert there * FACTORS[b][1] / FACTORS[a][1] == pytest.approx(3, rel=1e-14)

    def test_the_family_is_told(self):
        assert run("unit-convert").values["family"] == "rate"
        assert run("unit-convert", "from=万亿 to=亿").values["family"] == "count"

    def test_case_is_not_guessed(self):
        error = refusal("unit-convert", "from=gb/s")

        assert error.field == "from"
        assert "Gb/s 还是 GB/s？差 8 倍" in error.message
        assert "GiB" in refusal("unit-convert", "from=GB to=gib").message

    @pytest.mark.parametrize("bare", ["M", "T", "G"])
    def test_a_bare_letter_is_no_unit(self, bare):
        assert refusal("unit-convert", f"from={bare}").field == "from"

    def test_families_do_not_mix(self):
        assert "字节和 FLOP 不能互换" in refusal("unit-convert", "from=GB to=FLOP").message
        assert refusal("unit-convert", "from=GB/s to=GB").field == "to"

    @pytest.mark.parametrize("value", ["NaN", "inf", "1e400"])
    def test_only_finite_numbers(self, value):
        assert refusal("unit-convert", f"value={value}").field == "value"

    def test_the_moral_fits_the_conversion(self):
        assert "差 8 倍" in run("unit-convert").verdict
        assert "7.4%" in run("unit-convert", "from=GiB to=GB").verdict
        assert "挪小数点" in run("unit-convert", "from=GB to=TB").verdict


class TestFermi:
    def test_too_few_cards_are_told_not_refused(self):
        assert "放不下：至少 23 张" in run("fermi", "n=22").verdict
        assert "放不下" not in run("fermi", "n=23").verdict

    def test_weights_that_no_card_holds_are_not_given_a_speed(self):
        assert "权重都放不下" in run("fermi", "decode_gpus=1").verdict
        assert "不会快过 5.224 ms" in run("fermi").verdict

    def test_a_card_cannot_give_more_than_it_has(self):
        over = run("fermi", "usable_gb=81")
        assert over.notes
        assert "改到 80 GB 以下" in over.verdict
        assert not run("fermi", "usable_gb=80").notes

    def test_one_card_has_nobody_to_talk_to(self):
        assert run("fermi", "n=1").values["allreduce_s"] == 0


class TestSpecCompare:
    def test_a_card_against_itself_is_even(self):
        values = run("spec-compare", "gpu_b=h100-sxm").values

        assert [values[name] for name in ("peak_ratio", "bandwidth_ratio", "speed_ratio", "value_ratio")] == [1, 1, 1, 1]
        assert "一样划算。" in run("spec-compare", "gpu_b=h100-sxm").verdict

    def test_money_decides_what_speed_does_not(self):
        assert run("spec-compare", "workload=train price_b=5").values["value_ratio"] == 0.5
        assert run("spec-compare", "workload=train price_b=5").verdict.endswith("选 NVIDIA H100 SXM5 80GB。")
        assert run("spec-compare").verdict.endswith("选 NVIDIA H200 SXM 141GB。")

    @pytest.mark.parametrize("id", ["b200", "ascend-910b"])
    def test_doubtful_cards_are_marked(self, id):
        calculator = load("spec-compare")

        assert calculator.cautions(calculator.run({"gpu_b": id}))

    def test_every_card_of_the_catalog_can_be_compared(self):
        for id in accelerators():
            assert run("spec-compare", f"gpu_b={id}").values["ridge_b_flop_per_byte"] > 0

    def test_a_card_without_a_peak_is_refused(self):
        bare = replace(accelerator("h200"), tflops={"int8": 1979})
        with pytest.raises(Refusal, match="这张卡没有公布稠密 BF16 峰值"):
            load("spec-compare").compute(gpu_a=accelerator("h100-sxm"), gpu_b=bare, price_a=1.0, price_b=1.0, workload="train")
