"""Chapter 13: pp-bubble, pp-gantt, pp-memory, pp-balance.  Expected values: the chapter's specification unless a row names its source."""

from __future__ import annotations

import math
import random
from itertools import pairwise, product

import pytest
from asking import first_error as refusal
from asking import run, value
from hypothesis import given, settings
from hypothesis import strategies as st

from calculators.catalog import models
from calculators.core.charts import BarChart, Grid, LineChart, Timeline
from calculators.core.errors import Refusal
from calculators.core.index import load
from calculators.core.lists import read_integers, read_numbers
from calculators.distributed.pp_balance import layer_params
from calculators.formulas.pipeline import best_split, idle_time, in_flight, stage_costs
from calculators.formulas.schedules import CHUNKS, ORDERS, SPLIT, held, lengths, peak, simulate, stage_of, step_time

EXACT = 0.0


def check(actual, expected, tolerance):
    if isinstance(expected, list | bool) or expected is None:
        assert actual == expected
    else:
        assert actual == pytest.approx(expected, rel=tolerance or 1e-12)


# Rows: calculator, inputs that differ from the defaults, output, expected, relative tolerance.
DEFAULTS = [
    ("pp-bubble", "", "idle_units", 21, EXACT),
    ("pp-bubble", "", "idle_vs_1f1b", 1, EXACT),
    ("pp-bubble", "", "bubble_ratio_pct", 21.875, EXACT),
    ("pp-bubble", "", "bubble_fraction_pct", 17.9487, 1e-5),
    ("pp-bubble", "", "makespan_units", 117, EXACT),
    ("pp-bubble", "", "min_microbatches", 133, EXACT),
    ("pp-gantt", "", "makespan_units", 117, EXACT),
    ("pp-gantt", "", "bubble_fraction_pct", 17.9487, 1e-5),
    ("pp-gantt", "", "peak_in_flight", [8, 7, 6, 5, 4, 3, 2, 1], EXACT),
    ("pp-gantt", "", "peak_first_stage", 8, EXACT),
    ("pp-memory", "", "in_flight", 8, EXACT),
    ("pp-memory", "", "in_flight_factor", 1, EXACT),
    ("pp-memory", "", "act_total_gb", 10.2672, 1e-9),
    ("pp-memory", "", "param_copies", 1, EXACT),
    ("pp-balance", "", "head_layers", 2.40856, 1e-5),
    ("pp-balance", "", "layer_list", [4] * 8, EXACT),
    ("pp-balance", "", "slowdown", 1.48999, 1e-5),
    ("pp-balance", "", "slowdown_even", 1.48999, 1e-5),
    ("pp-balance", "", "lost_pct", 32.8856, 1e-5),
    ("pp-balance", "", "best_slowdown", 1.16250, 1e-5),
    ("pp-balance", "", "best_split", [5, 5, 4, 4, 4, 4, 4, 2], EXACT),
    ("pp-balance", "", "first_stage_weights_gb", 2.79557, 1e-5),
    ("pp-balance", "", "last_stage_weights_gb", 2.79557, 1e-5),
    ("pp-balance", "", "p2p_mb", 67.1089, 1e-6),
    ("pp-balance", "", "p2p_ms", 1.34218, 1e-5),
    ("pp-balance", "", "p2p_scatter_ms", 0.167772, 1e-5),
    ("pp-balance", "", "stage_fwd_ms", 3.47419, 1e-5),
]

FIGURES = [
    ("pp-bubble", "microbatches=8", "bubble_ratio_pct", 87.5, EXACT),
    ("pp-bubble", "microbatches=8", "bubble_fraction_pct", 46.7, 1e-3),
    ("pp-bubble", "microbatches=128", "bubble_ratio_pct", 5.5, 1e-2),
    ("pp-bubble", "microbatches=128", "bubble_fraction_pct", 5.2, 1e-2),
    ("pp-bubble", "schedule=interleaved virtual_stages=4", "bubble_ratio_pct", 5.47, 1e-3),
    ("pp-bubble", "schedule=interleaved virtual_stages=4", "bubble_fraction_pct", 5.19, 1e-3),
    ("pp-bubble", "schedule=zb1p", "bubble_ratio_pct", 7.29, 1e-3),
    ("pp-bubble", "schedule=zb1p", "bubble_fraction_pct", 6.80, 1e-3),
    ("pp-bubble", "pp=16", "idle_units", 45, EXACT),
    ("pp-bubble", "pp=16 schedule=zb1p", "idle_units", 15, EXACT),
    ("pp-bubble", "pp=16 schedule=dualpipe", "idle_units", 14, EXACT),
    ("pp-bubble", "pp=16", "bubble_ratio_pct", 46.875, EXACT),
    ("pp-bubble", "pp=16 microbatches=16", "bubble_ratio_pct", 93.75, EXACT),
    ("pp-bubble", "pp=16 schedule=interleaved virtual_stages=8", "bubble_ratio_pct", 5.859375, EXACT),
    ("pp-bubble", "pp=16 microbatches=16 schedule=interleaved virtual_stages=8", "bubble_ratio_pct", 11.71875, EXACT),
    ("pp-bubble", "pp=64 microbatches=512", "bubble_ratio_pct", 12.3, 1e-3),  # Narayanan et al. 2021, Table 1: 3072 / 6
    ("pp-bubble", "schedule=zb2p", "bubble_fraction_pct", 0, EXACT),  # Zero Bubble README
    ("pp-bubble", "schedule=zbv", "bubble_fraction_pct", 0, EXACT),
    ("pp-gantt", "schedule=interleaved virtual_stages=4", "bubble_fraction_pct", 5.19, 1e-3),
    ("pp-gantt", "schedule=interleaved virtual_stages=4", "peak_first_stage", 9.75, EXACT),
    ("pp-gantt", "schedule=gpipe", "makespan_units", 117, EXACT),
    ("pp-gantt", "schedule=gpipe", "peak_first_stage", 32, EXACT),
    ("pp-memory", "schedule=gpipe", "act_total_gb", 41.07, 1e-3),
    ("pp-memory", "schedule=interleaved v=4", "act_total_gb", 12.51, 1e-3),
    ("pp-memory", "schedule=interleaved v=4", "in_flight_factor", 1.219, 1e-3),
    ("pp-memory", "schedule=zb2p", "act_total_gb", 20.53, 1e-3),
    ("pp-memory", "schedule=dualpipe", "act_total_gb", 11.55, 1e-3),
    ("pp-memory", "schedule=dualpipe", "param_copies", 2, EXACT),
    ("pp-memory", "pp=16", "act_total_gb", 10.2672, 1e-9),  # the first 1F1B stage holds L layers whatever p is
    ("pp-memory", "pp=32", "act_total_gb", 10.2672, 1e-9),
    ("pp-balance", "layer_list=5,5,4,4,4,4,4,2", "slowdown", 1.163, 1e-3),
    ("pp-balance", "model=llama-3.1-405b pp=16", "slowdown", 1.0106, 1e-4),
    ("pp-balance", "model=llama-3.1-405b pp=16 layers=128", "slowdown", 1.0769, 1e-4),
    ("pp-balance", "model=llama-3-70b", "p2p_mb", 134.2, 1e-3),
    ("pp-balance", "model=llama-3-70b", "p2p_ms", 2.68, 2e-3),
    ("pp-balance", "model=llama-3-70b", "p2p_scatter_ms", 0.34, 2e-2),
    ("pp-balance", "model=llama-3-70b", "stage_fwd_ms", 31.8, 2e-3),
]


@pytest.mark.parametrize(("id", "query", "output", "expected", "tolerance"), DEFAULTS + FIGURES)
def test_values(id, query, output, expected, tolerance):
    check(value(id, query, output), expected, tolerance)


class TestLists:
    def test_every_way_of_writing_one(self):
        for typed in ("5,5,4", "5, 5, 4", "[5, 5, 4]", "5 5 4", "5、5、4", "５，５，４", "5;5;4\n"):
            assert read_integers("layer_list", "每段几层", typed, low=0) == (5, 5, 4)
        assert read_numbers("x", "数", "1, 1.5", low=0) == (1.0, 1.5)

    @pytest.mark.parametrize("typed", ["", ",", "1,x", "1,-1", "1,1e9", "[]"])
    def test_what_is_no_list_is_refused(self, typed):
        with pytest.raises(Refusal):
            read_numbers("x", "数", typed, low=0, high=1e6)

    def test_a_fraction_is_no_integer(self):
        with pytest.raises(Refusal):
            read_integers("x", "数", "1,1.5", low=0)


class TestBubble:
    """Reference points: Narayanan et al. 2021, the Zero Bubble README, the DualPipe README, GPipe."""

    @pytest.mark.parametrize(("p", "m"), [(2, 1), (4, 8), (8, 32), (16, 64), (64, 512)])
    def test_closed_forms(self, p, m):
        ratio = lambda query: value("pp-bubble", f"pp={p} microbatches={m} {query}", "bubble_ratio_pct") / 100  # noqa: E731
        assert ratio("") == pytest.approx((p - 1) / m)
        assert ratio("schedule=zb1p") == pytest.approx((p - 1) / (3 * m))
        assert value("pp-bubble", f"pp={p} microbatches={m}", "bubble_fraction_pct") / 100 == pytest.approx((p - 1) / (m + p - 1))

    def test_dualpipe_table(self):
        """(PP−1)(F+B), (PP−1)(F+B−2W), (PP/2−1)(F&B+B−3W) with B the full backward."""
        p, f, b, w, fb = 16, 1.0, 2.5, 1.2, 3.1
        query = f"pp={p} t_f={f} t_b={b - w} t_w={w}"
        assert value("pp-bubble", query, "idle_units") == pytest.approx((p - 1) * (f + b))
        assert value("pp-bubble", query + " schedule=zb1p", "idle_units") == pytest.approx((p - 1) * (f + b - 2 * w))
        assert value("pp-bubble", f"{query} schedule=dualpipe t_fb_overlap={fb}", "idle_units") == pytest.approx((p / 2 - 1) * (fb + b - 3 * w))

    def test_gpipe_rule(self):
        """m ≥ 4p is called negligible; at p = 8 it is 17.9 % of the step (GPipe §2.3)."""
        assert value("pp-bubble", "schedule=gpipe microbatches=32", "bubble_fraction_pct") == pytest.approx(17.9, abs=0.05)

    @settings(max_examples=25, deadline=None, derandomize=True, database=None)
    @given(st.sampled_from(["1f1b", "interleaved", "zb1p"]), st.integers(2, 64), st.integers(1, 16), st.floats(0.5, 60))
    def test_the_smallest_m_is_the_smallest(self, schedule, p, v, target):
        v = v if schedule == "interleaved" else 1
        m = value("pp-bubble", f"schedule={schedule} pp={p} microbatches={p} virtual_stages={v} target_pct={target}", "min_microbatches")
        step = p if schedule == "interleaved" else 1
        idle = idle_time(schedule, float(p), float(v), 1.0, 1.0, 1.0, 3.0)
        fraction = lambda n: idle / (idle + 3 * n)  # noqa: E731
        assert fraction(m) <= target / 100 * (1 + 1e-9)
        assert m % step == 0
        assert m - step <= 0 or fraction(m - step) > target / 100 * (1 - 1e-9)

    def test_an_impossible_formula_says_so(self):
        found = run("pp-bubble", "schedule=zb1p t_w=3")
        assert found.values["idle_units"] == 0
        assert "负数" in found.notes[0]
        assert "下限" in run("pp-bubble", "schedule=zb1p microbatches=4").notes[0]
        assert run("pp-bubble", "schedule=zb1p").notes == ()

    def test_refusals(self):
        assert "交错调度要求微批数是流水段数的整数倍" in refusal("pp-bubble", "schedule=interleaved microbatches=30").message
        assert "24 或 32" in refusal("pp-bubble", "schedule=interleaved microbatches=30").message
        assert "DualPipe 需要偶数段" in refusal("pp-bubble", "schedule=dualpipe pp=7").message
        assert refusal("pp-bubble", "virtual_stages=2").field == "virtual_stages"
        assert refusal("pp-bubble", "t_fb_overlap=2").field == "t_fb_overlap"
        assert refusal("pp-bubble", "pp=257").field == "pp"

    def test_one_stage_waits_for_nobody(self):
        found = run("pp-bubble", "pp=1")
        assert (found.values["idle_units"], found.values["idle_vs_1f1b"], found.values["min_microbatches"]) == (0, None, 1)
        assert load("pp-bubble").charts(found) == ()

    def test_overlap_is_the_sum_unless_given(self):
        assert run("pp-bubble", "schedule=dualpipe").resolved == {"t_fb_overlap": 3.0}
        assert value("pp-bubble", "schedule=dualpipe t_fb_overlap=2.5", "idle_units") < value("pp-bubble", "schedule=dualpipe", "idle_units")


def unit_film(schedule, p, m, v=1):
    return simulate(schedule, p, m, v, lengths(schedule, 1.0, 2.0, 1.0), (1.0,) * p, 0.0)


class TestSimulator:
    @pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
    @pytest.mark.parametrize(("p", "m"), [(4, 4), (4, 8), (8, 8), (8, 32), (8, 128), (16, 64), (16, 128)])
    def test_equals_the_closed_form(self, schedule, p, m):
        assert step_time(unit_film(schedule, p, m)) == 3 * (m + p - 1)

    @pytest.mark.parametrize(("p", "m", "v"), [(4, 8, 2), (8, 32, 2), (8, 32, 4), (16, 64, 4), (8, 8, 2)])
    def test_interleaved_equals_the_closed_form(self, p, m, v):
        makespan = step_time(unit_film("interleaved", p, m, v))
        assert makespan == pytest.approx(3 * (m + (p - 1) / v))
        assert (makespan - 3 * m) / makespan == pytest.approx((p - 1) / (v * m + p - 1))

    @pytest.mark.parametrize(("p", "m"), [(2, 2), (4, 4), (4, 9), (8, 32), (16, 64)])
    def test_zb1p_equals_the_closed_form_in_the_memory_of_1f1b(self, p, m):
        film = unit_film("zb1p", p, m)
        assert step_time(film) == 3 * m + (p - 1)
        assert [peak("zb1p", done, 1) for done in film] == [p] * p

    def test_zb1p_whenever_w_is_the_shortest(self):
        draw = random.Random(13)
        for _ in range(200):
            p = draw.randint(2, 12)
            m = draw.randint(p, 48)
            f, b = draw.uniform(0.1, 3), draw.uniform(0.1, 3)
            w = draw.uniform(0.05, min(f, b))
            film = simulate("zb1p", p, m, 1, {"F": f, "B": b, "W": w}, (1.0,) * p, 0.0)
            assert step_time(film) == pytest.approx(m * (f + b + w) + (p - 1) * (f + b - w))

    @pytest.mark.parametrize(("schedule", "most"), [("zb2p", 2), ("zbv", 1)])
    @pytest.mark.parametrize(("p", "m"), [(2, 3), (4, 7), (8, 15), (8, 32), (16, 64)])
    def test_zero_bubble(self, schedule, most, p, m):
        """README table: bubble 0; activations 2× (zb2p) and 1× (zbv) of 1F1B's p."""
        film = unit_film(schedule, p, m)
        assert step_time(film) == 3 * m
        assert max(peak(schedule, done, CHUNKS.get(schedule, 1)) for done in film) <= most * p
        for done in film:
            assert all(a.end == pytest.approx(b.start) for a, b in pairwise(done)), "no gap between two operations"

    @pytest.mark.parametrize("schedule", ORDERS)
    @pytest.mark.parametrize(
        ("p", "m", "v", "scaled", "p2p"), [(2, 1, 1, False, 0), (3, 6, 2, True, 0.4), (8, 5, 1, True, 1), (5, 20, 3, False, 0.25), (16, 16, 4, True, 0)]
    )
    def test_every_operation_is_done_once_and_as_soon_as_it_can(self, schedule, p, m, v, scaled, p2p):
        """Checked from the finished film alone, by the rules of the specification: free rank, dependency ended, p2p across ranks."""
        if schedule == "interleaved":
            m = -(-m // p) * p
        v = CHUNKS.get(schedule, v if schedule == "interleaved" else 1)
        scale = tuple(1 + 0.1 * i for i in range(p)) if scaled else (1.0,) * p
        film = simulate(schedule, p, m, v, lengths(schedule, 1.0, 2.0, 0.7), scale, p2p)
        when = {(op.kind, stage_of(schedule, p, rank, op.chunk), op.micro_batch): (rank, op.end) for rank, done in enumerate(film) for op in done}
        kinds = "FBW" if schedule in SPLIT else "FB"
        assert set(when) == set(product(kinds, range(p * v), range(m)))
        assert sum(map(len, film)) == len(when)
        for rank, done in enumerate(film):
            free = 0.0
            for op in done:
                stage, k = stage_of(schedule, p, rank, op.chunk), op.micro_batch
                source = {"F": ("F", stage - 1, k), "B": ("B", stage + 1, k) if stage < p * v - 1 else ("F", stage, k), "W": ("B", stage, k)}[op.kind]
                other, ended = when.get(source, (rank, 0.0))
                assert op.start == pytest.approx(max(free, ended + (p2p if other != rank else 0)))
                length = {"F": 1.0, "B": 1.3 if schedule in SPLIT else 2.0, "W": 0.7}[op.kind]
                assert op.end - op.start == pytest.approx(length * scale[rank] / v)
                free = op.end

    @pytest.mark.parametrize(("p", "m", "v"), [(2, 2, 1), (4, 8, 1), (4, 8, 2), (8, 32, 4), (8, 8, 2), (16, 32, 3)])
    def test_in_flight_equals_the_closed_form(self, p, m, v):
        for schedule in ("gpipe", "1f1b", "interleaved"):
            chunks = v if schedule == "interleaved" else 1
            film = unit_film(schedule, p, m, chunks)
            expected = [in_flight(schedule, float(p), float(i), float(m), float(chunks)) for i in range(p)]
            assert [peak(schedule, done, chunks) for done in film] == pytest.approx(expected)
        for schedule in ("zb1p", "zb2p", "zbv"):
            most = max(peak(schedule, done, 1) for done in unit_film(schedule, p, m))
            assert most <= in_flight(schedule, float(p), 0.0, float(m), 1.0)

    def test_activations_are_all_given_back(self):
        for schedule in ORDERS:
            for done in unit_film(schedule, 4, 8, 2 if schedule == "interleaved" else 1):
                assert held(schedule, done, 2 if schedule == "interleaved" else 1)[-1][1] == 0


class TestGantt:
    def test_the_chart_is_what_the_numbers_say(self):
        for query in ("", "schedule=gpipe pp=4 microbatches=6", "schedule=zbv pp=4", "schedule=interleaved virtual_stages=2 pp=4 microbatches=8"):
            found = run("pp-gantt", query)
            gantt, heat = load("pp-gantt").charts(found)
            assert isinstance(gantt, Timeline)
            assert isinstance(heat, Grid)
            p, m = found.inputs["pp"], found.inputs["microbatches"]
            assert len(gantt.lanes) == p == len(heat.rows)
            assert max(s.end for s in gantt.spans) == pytest.approx(found.values["with_sync_units"])
            busy = sum(s.end - s.start for s in gantt.spans)
            assert busy == pytest.approx(p * m * 3)
            assert [max(x or 0 for x in row) for row in heat.cells] == pytest.approx([float(x) for x in found.values["peak_in_flight"]])
            assert heat.high == min(m, 4 * p)

    def test_many_blocks_melt_into_stretches(self):
        gantt, _ = load("pp-gantt").charts(run("pp-gantt", "schedule=interleaved virtual_stages=4 microbatches=128"))
        assert len(gantt.spans) < 200
        assert sum(s.end - s.start for s in gantt.spans) == pytest.approx(8 * 128 * 3)

    def test_1f1b_is_not_faster_than_gpipe_only_smaller(self):
        for m in (8, 32, 128):
            found = run("pp-gantt", f"microbatches={m}")
            assert found.values["makespan_units"] == found.values["gpipe_units"] == found.values["closed_form_units"]
            assert found.values["peak_first_stage"] == 8

    def test_one_slow_stage_slows_the_whole_pipeline(self):
        """One stage at half speed: its own work, and the way of the first micro-batch to it and back."""
        found = run("pp-gantt", "stage_scale=1,1,1,1,1,1,1,2")
        assert found.values["makespan_units"] == 32 * 3 * 2 + 7 * 3
        assert found.values["closed_form_units"] is None
        assert "卡 7 最慢" in found.verdict
        assert value("pp-gantt", "stage_scale=2,2,2,2,2,2,2,2", "makespan_units") == 2 * 117

    def test_p2p_adds_to_the_first_way_there_and_back(self):
        """GPipe overlaps nothing but the first way down and the last way up: 2(p−1) transfers."""
        assert value("pp-gantt", "schedule=gpipe p2p=0.5", "makespan_units") == pytest.approx(117 + 2 * 7 * 0.5)
        assert value("pp-gantt", "p2p=0.5", "makespan_units") > 117 + 2 * 7 * 0.5

    def test_waiting_for_everybody_costs_the_zero(self):
        found = run("pp-gantt", "schedule=zb2p")
        assert (found.values["makespan_units"], found.values["with_sync_units"], found.values["bubble_fraction_pct"]) == (96, 103, 0)
        assert "要是等全体" in found.verdict

    def test_too_few_micro_batches_for_the_formula(self):
        found = run("pp-gantt", "schedule=zb1p microbatches=4")
        assert found.values["makespan_units"] > found.values["closed_form_units"]
        assert "到不了" in found.verdict

    def test_refusals(self):
        assert "整数倍" in refusal("pp-gantt", "schedule=interleaved microbatches=30").message
        assert refusal("pp-gantt", "stage_scale=1,2").field == "stage_scale"
        assert refusal("pp-gantt", "stage_scale=1,2,3,4,5,6,7,0").field == "stage_scale"
        assert refusal("pp-gantt", "schedule=zb1p t_w=2").field == "t_w"
        assert refusal("pp-gantt", "virtual_stages=2").field == "virtual_stages"
        assert refusal("pp-gantt", "t_w=1").field == "t_w"


class TestMemory:
    def test_first_stage_of_1f1b_is_all_layers_whatever_p_is(self):
        assert len({round(value("pp-memory", f"pp={p} m=64", "act_total_gb"), 9) for p in (1, 2, 4, 8, 16, 32)}) == 1

    def test_interleaved_on_the_first_stage(self):
        """Korthikanti et al. 2022: p·(1 + (p−1)/(pv))."""
        for p, v in ((4, 2), (8, 4), (16, 2)):
            assert value("pp-memory", f"pp={p} m=64 schedule=interleaved v={v} layers=128", "in_flight_factor") == pytest.approx(1 + (p - 1) / (p * v))

    def test_capped_by_the_micro_batches(self):
        for schedule in ("gpipe", "1f1b", "zb1p", "zb2p", "zbv", "dualpipe"):
            assert value("pp-memory", f"schedule={schedule} m=4", "in_flight") == 4

    def test_refusals(self):
        assert "整除" in refusal("pp-memory", "layers=30").message
        assert refusal("pp-memory", "schedule=interleaved v=5").field == "layers"
        assert refusal("pp-memory", "stage=8").field == "stage"
        assert refusal("pp-memory", "schedule=interleaved m=30").field == "m"
        assert refusal("pp-memory", "schedule=dualpipe pp=3").field == "pp"

    def test_chart(self):
        bars, slope = load("pp-memory").charts(run("pp-memory"))
        assert isinstance(bars, BarChart)
        assert isinstance(slope, LineChart)
        assert [y for _, y in slope.series[0].points] == pytest.approx([10.2672 * (8 - i) / 8 for i in range(8)])


class TestBalance:
    def test_layer_parameters(self):
        """Counted by hand: attention 41,943,040, FFN 176,160,768, two norms 8192 (chapter 03)."""
        assert layer_params(models()["llama-3-8b"]) == 218_112_000
        for m in models().values():
            if m.is_dense and m.mla is None:
                whole = layer_params(m) * m.layers + m.embedding_and_head_params
                assert whole == pytest.approx(m.total_params, rel=1e-4)

    @settings(max_examples=25, deadline=None, derandomize=True, database=None)
    @given(st.integers(1, 12), st.integers(0, 20), st.floats(0, 9))
    def test_the_best_split_is_the_best(self, p, more, head):
        """Against every possible size of the last stage with the rest dealt evenly, which no other deal beats."""
        layers = p + more
        split = best_split(layers, p, head)
        assert sum(split) == layers
        assert len(split) == p
        assert all(n >= 1 for n in split[:-1])
        every = [layers + head] if p == 1 else [max(math.ceil((layers - last) / (p - 1)), last + head) for last in range(layers - p + 2)]
        assert max(stage_costs(split, head)) == pytest.approx(min(every))

    def test_405b_has_126_layers_for_this_reason(self):
        assert value("pp-balance", "model=llama-3.1-405b pp=16", "lost_pct") < value("pp-balance", "model=llama-3.1-405b pp=16 layers=128", "lost_pct")

    def test_stage_forward_by_hand(self):
        """80/8 layers of 2·bs·P + 4·bs·s·a·d/2 FLOP on 8 cards at 60 % of 989 TFLOPS."""
        flops = 2 * 8192 * 855_638_016 + 4 * 8192 * 8192 * 8192 / 2
        assert value("pp-balance", "model=llama-3-70b", "stage_fwd_ms") == pytest.approx(10 * flops / (8 * 989e12 * 0.6) * 1e3)

    def test_tables_of_a_single_stage(self):
        both = value("pp-balance", "pp=1", "first_stage_weights_gb")
        assert both == pytest.approx(2 * (models()["llama-3-8b"].total_params - 4096) / 1e9)
        assert value("pp-balance", "pp=1 tied_embeddings=true", "last_stage_weights_gb") == pytest.approx(both - 2 * 128256 * 4096 / 1e9)

    def test_refusals(self):
        assert "段数不能多于层数" in refusal("pp-balance", "pp=33").message
        assert refusal("pp-balance", "layer_list=4,4").field == "layer_list"
        assert "少了 1 层" in refusal("pp-balance", "layer_list=4,4,4,4,4,4,4,3").message
        assert refusal("pp-balance", "layer_list=0,5,5,5,5,4,4,4").field == "layer_list"
        assert value("pp-balance", "layer_list=5,5,5,5,4,4,4,0", "layer_list")[-1] == 0
        assert refusal("pp-balance", "model=deepseek-v3").field == "model"

    def test_verdicts(self):
        assert "末段带着 LM head" in run("pp-balance").verdict
        assert "没有更匀的了" in run("pp-balance", "layer_list=5,5,4,4,4,4,4,2").verdict
        assert "要等网" in run("pp-balance", "nic_gb_s=1").verdict
        assert run("pp-balance").resolved == {"layers": 32, "tied_embeddings": False}

    def test_charts_with_many_stages(self):
        for query in ("pp=32", "pp=24", "pp=1"):
            assert load("pp-balance").charts(run("pp-balance", query))
