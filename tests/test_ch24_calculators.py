"""Chapter 24: predict-vs-measure, fit-alpha-beta, roofline-from-samples, project-report.  Expected values: the chapter's specification unless a row names its source."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calculators.core.charts import BarChart, LineChart
from calculators.core.errors import Refusal
from calculators.core.index import load
from calculators.formulas.measurement import fit_alpha_beta, median, percentile, variation
from calculators.operations._projects import LEVERS, PROJECTS
from calculators.operations.roofline_from_samples import DEFAULT

SETTINGS = settings(max_examples=25, deadline=None, derandomize=True, database=None)


def run(id, **inputs):
    return load(id).run({name: str(value) for name, value in inputs.items()})


def refusal(id, **inputs):
    with pytest.raises(Refusal) as caught:
        run(id, **inputs)
    return caught.value.errors[0]


# "Output identifiers": to half of the last digit.
DEFAULTS = [
    ("predict-vs-measure", "median", 129, 0),
    ("predict-vs-measure", "p10", 127.4, 1e-9),
    ("predict-vs-measure", "p90", 130.6, 1e-9),
    ("predict-vs-measure", "cv_pct", 1.2257, 5e-5),
    ("predict-vs-measure", "ratio", 1.29, 1e-12),
    ("fit-alpha-beta", "alpha_fit_us", 8.13, 5e-3),
    ("fit-alpha-beta", "b_fit_gb_s", 375.3, 5e-2),
    ("fit-alpha-beta", "max_rel_error_pct", 5.41, 5e-3),
    ("roofline-from-samples", "max_gflop_s", 35.205, 5e-4),
    ("roofline-from-samples", "max_gb_s", 8.9033, 5e-5),
    ("roofline-from-samples", "ridge_flop_per_byte", 3.9541, 5e-5),
    ("roofline-from-samples", "per_flop_x", 11.7, 5e-2),
]
LISTS = [
    ("gflop_s", [18.513, 35.205, 3.0, 0], 5e-4),
    ("gb_s", [0.10847, 0.10314, 5.9999, 8.9033], 5e-5),
    ("intensity_flop_per_byte", [170.67, 341.33, 0.5, 0], 5e-3),
]


@pytest.mark.parametrize(("id", "output", "expected", "half"), DEFAULTS)
def test_values_at_the_defaults(id, output, expected, half):
    assert run(id).values[output] == pytest.approx(expected, rel=0, abs=half * 1.001 or 1e-12)


@pytest.mark.parametrize(("output", "expected", "half"), LISTS)
def test_every_sample_of_the_default_roofline(output, expected, half):
    assert run("roofline-from-samples").values[output] == pytest.approx(expected, rel=0, abs=half * 1.001)


def test_truths_at_the_defaults():
    found = run("predict-vs-measure")

    assert found.values["within"] is False
    assert found.values["stable"] is True
    assert found.values["reestimated"] is None


class TestPredictVsMeasure:
    @pytest.mark.parametrize(("kind", "expected"), [("time", 1.25), ("bytes", 1.25), ("throughput", 0.8)])
    def test_above_one_always_means_worse(self, kind, expected):
        assert run("predict-vs-measure", kind=kind, measured="125 125 125").values["ratio"] == pytest.approx(expected)

    def test_the_edge_of_the_tolerance_is_inside(self):
        assert run("predict-vs-measure", measured="115 115 115").values["within"] is True
        assert run("predict-vs-measure", measured="115.1 115.1 115.1").values["within"] is False

    def test_a_spread_above_a_tenth_comes_first(self):
        found = run("predict-vs-measure", measured="60 100 140")

        assert found.values["stable"] is False
        assert "先把测量做稳" in found.verdict

    @pytest.mark.parametrize(("suspect", "expected"), [("efficiency", 0.4 / 1.29), ("bandwidth", 0.4 / 1.29), ("latency", 0.4 * 1.29), ("amount", 0.4 * 1.29)])
    def test_the_reestimated_input_would_have_been_right(self, suspect, expected):
        found = run("predict-vs-measure", suspect=suspect, assumed=0.4)

        assert found.values["reestimated"] == pytest.approx(expected)
        assert found.texts["reestimated"] in found.verdict

    @pytest.mark.parametrize("measured", ["", "1,2", "1,0,2", "1,-2,3", "1,x,3", ",".join(["7"] * 1001)])
    def test_declines(self, measured):
        if not measured:  # an empty field is the default
            assert run("predict-vs-measure", measured=measured).values["median"] == 129
        else:
            assert refusal("predict-vs-measure", measured=measured).field == "measured"

    def test_bytes_have_no_bandwidth(self):
        assert refusal("predict-vs-measure", kind="bytes", suspect="bandwidth").field == "suspect"

    @SETTINGS
    @given(st.lists(st.floats(1e-3, 1e6), min_size=3, max_size=40))
    def test_percentiles_agree_with_numpy(self, values):
        import numpy as np

        for share in (0.1, 0.5, 0.9):
            assert percentile(values, share) == pytest.approx(float(np.percentile(values, 100 * share)), rel=1e-9)
        assert median(values) == pytest.approx(float(np.median(values)))
        assert variation(values) == pytest.approx(float(np.std(values, ddof=1) / np.mean(values)), rel=1e-7, abs=1e-12)

    def test_shows_every_sample(self):
        (chart,) = load("predict-vs-measure").charts(run("predict-vs-measure"))

        assert isinstance(chart, LineChart)
        assert [y for _, y in chart.series[0].points] == [128, 131, 127, 130, 129]


class TestFitAlphaBeta:
    def test_without_noise_the_truth_comes_back(self):
        found = run("fit-alpha-beta", noise=0)

        assert found.values["alpha_fit_us"] == pytest.approx(8, rel=1e-9)
        assert found.values["b_fit_gb_s"] == pytest.approx(360, rel=1e-9)

    @pytest.mark.parametrize("seed", range(10))
    def test_ten_seeds_stay_within_a_tenth(self, seed):
        found = run("fit-alpha-beta", seed=seed).values

        assert found["alpha_fit_us"] == pytest.approx(8, rel=0.10)
        assert found["b_fit_gb_s"] == pytest.approx(360, rel=0.10)
        assert 5 <= found["max_rel_error_pct"] <= 17

    def test_another_cluster(self):
        found = run("fit-alpha-beta", n=64, alpha_us=20, b_gb_s=45, seed=1).values

        assert found["alpha_fit_us"] == pytest.approx(20.1, abs=0.06)
        assert found["b_fit_gb_s"] == pytest.approx(44.5, abs=0.06)

    def test_the_fit_is_the_minimum_of_the_weighted_squares(self):
        import numpy as np

        latency, wire, t = [2.0] * 5, [1.0, 10.0, 1e2, 1e3, 1e4], [3.1, 4.4, 13.0, 110.0, 1000.0]
        alpha, inverse = fit_alpha_beta(latency, wire, t)
        want, *_ = np.linalg.lstsq(np.array([latency, wire]).T / np.array(t)[:, None], np.ones(5), rcond=None)

        assert (alpha, inverse) == pytest.approx(tuple(want.tolist()), rel=1e-9)

    def test_reads_what_the_ring_of_chapter_10_says(self):
        """Samples made with allreduce-time give its α and B back."""
        sizes = (1e-6, 1e-4, 1e-2, 1.0)
        rows = [f"{gb * 1e9},{run('allreduce-time', size_gb=gb, alpha=8).values['time_ms'] * 1e-3}" for gb in sizes]
        found = run("fit-alpha-beta", n=8, samples="; ".join(rows)).values

        assert found["max_rel_error_pct"] < 1e-6
        assert found["b_fit_gb_s"] == pytest.approx(360)
        assert found["alpha_fit_us"] == pytest.approx(8)

    def test_the_remark_about_n_wins_and_is_said(self):
        found = run("fit-alpha-beta", n=8, samples="# n=4\nbytes,seconds\n1000,0.0006\n1e9,1.5")

        assert found.values["alpha_fit_us"] == pytest.approx(100, rel=0.01)  # 6 steps of α
        assert found.values["b_fit_gb_s"] == pytest.approx(1, rel=0.01)
        assert "n=4" in found.notes[0]

    @pytest.mark.parametrize(
        ("samples", "rule"),
        [
            ("1000,1; 2000,1", "没有带宽段"),
            ("1e6,1; 1e9,0.5", "没有带宽段"),
            ("1e6,1e-3; 2e6,3e-3", "没有延迟段"),
            ("1000,1", "两种大小"),
            ("1000,1; 1000,2", "两种大小"),
            ("1000,0; 2000,1", "seconds"),
            ("0,1; 2000,1", "bytes"),
            ("1e3,1e-300; 1e9,1e-299", "seconds"),
            ("1000; 2000,1", "2 个数"),
            ("a,b; c,d", "必须是数字"),
            ("flops,bytes,seconds; 1,2,3", "从实测点画 Roofline"),
            ("1e3,1e-12; 1e9,1e6", "跨度"),
            ("; ".join(f"{k},{k}" for k in range(1, 203)), "最多 200 行"),
        ],
    )
    def test_declines(self, samples, rule):
        found = refusal("fit-alpha-beta", samples=samples)

        assert found.field == "samples"
        assert rule in found.message

    def test_the_prediction_is_judged(self):
        good = run("fit-alpha-beta", n=2, samples="1e3,1.6e-5; 1e6,1.0e-3; 1e9,1.0", alpha_us=8, b_gb_s=1)
        off = run("fit-alpha-beta", n=2, samples="1e3,1.6e-5; 1e6,1.0e-3; 1e9,1.0")

        assert "对得上" in good.verdict
        assert "B 该重估" in off.verdict


class TestRooflineFromSamples:
    def test_the_shares_of_a_spec_sheet(self):
        found = run("roofline-from-samples", peak_gflop_s=50, peak_gb_s=10)

        assert found.values["peak_pct"] == pytest.approx(70.41, abs=0.01)
        assert found.values["bandwidth_pct"] == pytest.approx(89.03, abs=0.01)
        assert found.values["ridge_off_pct"] == pytest.approx(100 * (3.9541 / 5 - 1), abs=0.01)
        assert "过了线" in found.verdict

    @pytest.mark.parametrize(
        ("peaks", "rule"),
        [
            ({"peak_gflop_s": 100}, "重估效率"),
            ({"peak_gb_s": 20}, "重估带宽"),
            ({"peak_gflop_s": 20}, "超过了你填的峰值"),
            ({"peak_gflop_s": 36, "peak_gb_s": 11.8}, "拐点却偏了"),
        ],
    )
    def test_says_which_input_to_estimate_anew(self, peaks, rule):
        assert rule in run("roofline-from-samples", **peaks).verdict

    @pytest.mark.parametrize(
        ("samples", "rule"),
        [
            ("1,1,0", "seconds"),
            ("1,1,-1", "不能小于|必须大于"),
            ("0,1,1; 0,2,1", "没有一个做了运算"),
            ("0,0,1", "不能都是 0"),
            ("1,0,1", "有运算没有字节"),
            ("1,1e-300,1", "不小于 1"),
            ("1,1,1e-300", "seconds"),
            ("1,1", "3 个数"),
            ("bytes,seconds; 1,2", "从测量拟合 α–β"),
            ("#", "没有一行数"),
        ],
    )
    def test_declines(self, samples, rule):
        import re

        assert re.search(rule, refusal("roofline-from-samples", samples=samples).message)

    def test_new_lines_and_semicolons_part_rows(self):
        assert run("roofline-from-samples", samples=DEFAULT.replace("; ", "\n")).values == run("roofline-from-samples").values

    def test_the_roof_covers_every_dot(self):
        (chart,) = load("roofline-from-samples").charts(run("roofline-from-samples"))

        assert isinstance(chart, LineChart)
        assert len(chart.marks) == 3  # the copy computes nothing
        assert all(m.y <= min(35.21, m.x * 8.91) for m in chart.marks)


class TestProjectReport:
    ROW = "P6,batch 1,time,ms,0.3,gb_s=8.9"

    def test_the_example_passes(self):
        found = run("project-report")

        assert found.values["passed"] == found.values["items"] == 6
        assert found.values["all_within"] is True
        assert "过了" in found.verdict

    def test_names_the_input_and_its_new_value(self):
        found = run("project-report", csv=f"{self.ROW},10,16,16,16")

        assert found.values["worst_ratio"] == pytest.approx(1.6)
        assert found.values["reestimate"] == "带宽"
        assert found.values["reestimated"] == "5.563 GB/s"  # 8.9 ÷ 1.6
        assert "8.9 GB/s 改成 5.563 GB/s" in found.verdict

    def test_a_time_like_input_grows(self):
        assert run("project-report", csv="P5,x,time,s,0.1,stage_s=0.06,1,1.5,1.5,1.5").values["reestimated"] == "0.09 s"

    def test_of_a_whole_terminal_only_the_block_is_read(self):
        text = f"噪声，随便什么\n# CSV 开始：贴进……\nproject,item,kind,unit,tolerance,input,predicted,measured\n{self.ROW},10,10,10,11\n# CSV 结束\n$ "

        assert run("project-report", csv=text).values["passed"] == 1

    def test_the_worst_row_is_measured_in_tolerances(self):
        found = run("project-report", csv="P2,a,bytes,MB,0.05,,100,112; P2,b,bytes,MB,0.15,,100,118")

        assert found.values["worst_item"] == "a"

    @pytest.mark.parametrize(
        ("csv", "rule"),
        [
            ("P6,batch 1,time,ms,0.3,gb_s=8.9,10", "8 格以上"),
            ("P9,x,time,s,0.1,,1,1,1,1", "project 不认识"),
            ("P6,x,speed,s,0.1,,1,1,1,1", "kind 不认识"),
            ("P6,x,time,s,0.1,foo=1,1,1,1,1", "input 不认识"),
            ("P6,x,time,s,0.1,gb_s,1,1,1,1", "gb_s"),
            ("P6,x,time,s,3,,1,1,1,1", "tolerance"),
            ("P6,x,time,s,0.1,,0,1,1,1", "predicted"),
            ("P6,x,time,s,0.1,,1,1,1", "至少要 3 次"),
            ("P6,x,time,s,0.1,,1,1,nan,1", "measured"),
            ("P6,,time,s,0.1,,1,1,1,1", "item"),
            ("P6,x,time,s,0.1,,1e-300,1,1,1", "predicted"),
            ("P6,x,time,1234567890123,0.1,,1,1,1,1", "unit"),
            ("bytes,seconds; 1,2", "从测量拟合 α–β"),
            ("flops,bytes,seconds; 1,2,3", "从实测点画 Roofline"),
        ],
    )
    def test_declines(self, csv, rule):
        found = refusal("project-report", csv=csv)

        assert found.field == "csv"
        assert rule in found.message

    def test_counted_and_recomputed_values_need_no_repetition(self):
        assert run("project-report", csv="P2,a,bytes,MB,0.05,,100,101").values["passed"] == 1
        assert run("project-report", csv="C1,a,time,天,0.05,,100,101").values["passed"] == 1

    @SETTINGS
    @given(st.floats(1e-20, 1e20), st.lists(st.floats(1e-20, 1e20), min_size=3, max_size=6), st.floats(0, 2), st.sampled_from(["time", "throughput", "bytes"]))
    def test_any_numbers_give_a_verdict_and_a_chart(self, predicted, measured, tolerance, kind):
        row = f"P6,x,{kind},s,{tolerance!r},gb_s=1e-20,{predicted!r}," + ",".join(map(repr, measured))
        found = run("project-report", csv=row)

        assert found.verdict
        assert load("project-report").charts(found)

    @pytest.mark.parametrize("project", PROJECTS)
    @pytest.mark.parametrize("worse", [True, False])
    def test_every_project_says_where_to_look(self, project, worse):
        found = run("project-report", csv=f"{project},x,time,s,0.1,,1," + ",".join(["2" if worse else "0.5"] * 3))

        assert (PROJECTS[project].worse if worse else PROJECTS[project].better) in found.verdict

    def test_the_chart_marks_one(self):
        (chart,) = load("project-report").charts(run("project-report"))

        assert isinstance(chart, BarChart)
        assert chart.limits[0].x == 1
        assert set(LEVERS)


def test_figures_to_quote():
    """The chapter's "Figures to quote": the small GPT, the example CPU, the lower bound of C1."""
    body = 12 * 8 * 512**2 + 8192 * 512
    each = run("mfu-from-log", model="custom", N=body, L=8, heads=8, head_dim=64, seq=512).values["gflop_per_token"]

    assert body + 8192 * 512 == 33_554_432
    assert body == 29_360_128
    assert each == pytest.approx(0.201, abs=5e-4)
    assert 0.3 * 989e3 / each == pytest.approx(1.47e6, rel=5e-3)
    assert 0.3 * run("roofline-from-samples").values["max_gflop_s"] / each == pytest.approx(52, abs=0.5)
    assert run("train-cost", model="llama-3-70b", tokens=1e12, n_gpus=64, mfu=0.5, goodput=1).values["days"] == pytest.approx(154.8, abs=0.05)
    assert run("pp-gantt", pp=4, microbatches=8, t_f=20, t_b=40).values["makespan_units"] == 660
    for workers, share in ((2, 38), (4, 70), (6, 94), (8, 99)):
        assert run("dataloader-lab", t_batch=0.1, t_step=0.02, workers=workers).values["gpu_util_pct"] == pytest.approx(share, abs=1)


def test_the_experiment_is_quick():
    run("fit-alpha-beta")
    start = time.perf_counter()
    run("fit-alpha-beta", seed=1)

    assert time.perf_counter() - start < 0.3
