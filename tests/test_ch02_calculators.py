"""Chapter 02: gpu-peak, little-law, coalescing, wave-quant, occupancy.  Expected values: the chapter's specification unless a row names its source."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from asking import refusal, run, value

from calculators.catalog import accelerator
from calculators.catalog.chips import chips, latencies, shared_memories
from calculators.catalog.references import references
from calculators.core.index import load
from calculators.formulas.chip import MOST_BLOCKS, MOST_WARPS, REGISTERS, peak_flops, registers_per_warp
from calculators.site.targets import resolve

PUBLISHED = json.loads((Path(__file__).parent / "data" / "ch02" / "published.json").read_text(encoding="utf-8"))
EXACT = 1e-12


# Rows: calculator, inputs that differ from the defaults, output, expected, relative tolerance.
DEFAULTS = [
    ("gpu-peak", "", "peak_tflops", 311.87, 1e-4),
    ("gpu-peak", "", "bandwidth_gb_s", 2039.04, 1e-4),
    ("gpu-peak", "", "ridge", 152.95, 1e-4),
    ("little-law", "", "latency_ns", 330.5, 1e-4),
    ("little-law", "", "inflight_kb", 673.9, 1e-3),
    ("little-law", "", "inflight_per_sm_b", 6239.7, 1e-4),
    ("little-law", "", "warps_needed", 48.75, 1e-3),
    ("little-law", "", "occupancy_pct", 76.17, 1e-3),
    ("coalescing", "", "sectors", 4, EXACT),
    ("coalescing", "", "bytes_moved", 128, EXACT),
    ("coalescing", "", "bytes_useful", 128, EXACT),
    ("coalescing", "", "efficiency", 1.0, EXACT),
    ("wave-quant", "", "tiles", 108, EXACT),
    ("wave-quant", "", "waves", 1, EXACT),
    ("wave-quant", "", "wave_eff", 1.0, EXACT),
    ("wave-quant", "", "tile_fill", 1.0, EXACT),
    ("wave-quant", "", "total_eff", 1.0, EXACT),
    ("occupancy", "", "blocks", 4, EXACT),
    ("occupancy", "", "warps", 32, EXACT),
    ("occupancy", "", "occupancy_pct", 50, EXACT),
    ("occupancy", "", "limiter", "registers", EXACT),
]

BINDINGS = [
    ("gpu-peak", "preset=h100-sxm", "peak_tflops", 989.43, 1e-4),
    ("gpu-peak", "preset=h100-sxm", "bandwidth_gb_s", 3349.8, 1e-4),
    ("gpu-peak", "preset=v100-sxm-32gb", "peak_tflops", 125.34, 1e-4),
    ("gpu-peak", "preset=v100-sxm-32gb", "bandwidth_gb_s", 898.0, 1e-4),
    ("gpu-peak", "preset=rtx-4090", "peak_tflops", 165.15, 1e-4),
    ("gpu-peak", "preset=rtx-4090", "bandwidth_gb_s", 1008.1, 1e-4),
    ("gpu-peak", "mem_clock_mhz=1215", "bandwidth_gb_s", 1555.2, 1e-4),
    ("gpu-peak", "units_per_sm=1 fma_per_unit_clk=64", "peak_tflops", 19.49, 1e-3),
    ("little-law", "bytes_per_thread_load=16", "warps_needed", 12.19, 1e-3),
    ("little-law", "bytes_per_thread_load=16", "occupancy_pct", 19.04, 1e-3),
    ("little-law", "gpu=h100-sxm", "inflight_kb", 914.3, 1e-3),
    ("little-law", "gpu=h100-sxm", "warps_needed", 54.12, 1e-3),
    ("little-law", "gpu=h100-sxm bytes_per_thread_load=16", "warps_needed", 13.5, 3e-3),
    ("little-law", "latency_cycles=550", "inflight_kb", 795, 1e-3),
    ("little-law", "latency_cycles=550", "warps_needed", 57.5, 1e-3),
    ("little-law", "gpu=h100-sxm latency_cycles=703", "inflight_kb", 1342, 1e-3),
    ("little-law", "gpu=h100-sxm latency_cycles=703", "warps_needed", 79.4, 1e-3),
    *[("coalescing", f"stride={s}", "efficiency", e, EXACT) for s, e in ((1, 1), (2, 0.5), (4, 0.25), (8, 0.125), (32, 0.125))],
    *[("coalescing", f"stride={s}", "sectors", n, EXACT) for s, n in ((1, 4), (2, 8), (4, 16), (8, 32), (32, 32))],
    ("coalescing", "offset_bytes=4", "sectors", 5, EXACT),
    ("coalescing", "offset_bytes=4", "efficiency", 0.8, EXACT),
    ("wave-quant", "M=2305", "tiles", 114, EXACT),
    ("wave-quant", "M=2305", "waves", 2, EXACT),
    ("wave-quant", "M=2305", "wave_eff", 0.5278, 1e-3),
    ("wave-quant", "M=2305", "tile_fill", 0.9478, 1e-3),
    ("wave-quant", "M=2305", "total_eff", 0.5002, 1e-3),
    ("wave-quant", "M=4096 N=4096", "tiles", 512, EXACT),
    ("wave-quant", "M=4096 N=4096", "waves", 5, EXACT),
    ("wave-quant", "M=4096 N=4096", "wave_eff", 0.9481, 1e-3),
    ("wave-quant", "M=4096 N=4096 n_sm=132", "wave_eff", 0.9697, 1e-3),
    ("wave-quant", "M=6912 N=2048", "wave_eff", 1.0, EXACT),
    ("wave-quant", "M=7040 N=2048", "wave_eff", 0.8148, 1e-3),
    ("wave-quant", "M=16 N=4096 n_sm=132", "tiles", 16, EXACT),
    ("wave-quant", "M=16 N=4096 n_sm=132", "wave_eff", 0.1212, 1e-3),
    ("wave-quant", "M=16 N=4096 n_sm=132", "tile_fill", 0.125, 1e-3),
    ("wave-quant", "M=16 N=4096 n_sm=132", "total_eff", 0.01515, 1e-3),
    ("occupancy", "regs=128", "occupancy_pct", 25, EXACT),
    *[("occupancy", f"threads=128 regs=64 smem_kb=80 gpu={gpu}", "blocks", 2, EXACT) for gpu in ("a100-80gb", "h100-sxm")],
    *[("occupancy", f"threads=128 regs=64 smem_kb=80 gpu={gpu}", "occupancy_pct", 12.5, EXACT) for gpu in ("a100-80gb", "h100-sxm")],
    *[("occupancy", f"threads=128 regs=64 smem_kb=80 gpu={gpu}", "limiter", "shared_memory", EXACT) for gpu in ("a100-80gb", "h100-sxm")],
]


@pytest.mark.parametrize(("id", "query", "output", "expected", "tolerance"), DEFAULTS + BINDINGS)
def test_value_of_the_specification(id, query, output, expected, tolerance):
    got = value(id, query, output)
    if isinstance(expected, str):
        assert got == expected
    else:
        assert got == pytest.approx(expected, rel=tolerance)


def test_default_inputs_of_the_specification():
    """Every input with its default; None: taken from the preset."""
    expected = {
        "gpu-peak": {
            "preset": "a100-80gb", "n_sm": None, "units_per_sm": None, "fma_per_unit_clk": None, "clock_ghz": None, "bus_bits": None, "mem_clock_mhz": None, "ddr": None,
        },
        "little-law": {"gpu": "a100-80gb", "latency_cycles": None, "clock_ghz": None, "bytes_per_thread_load": 4, "loads_in_flight": 1},
        "coalescing": {"stride": 1, "elem_bytes": 4, "offset_bytes": 0},
        "wave-quant": {"M": 2304, "N": 1536, "tile_m": 128, "tile_n": 256, "n_sm": 108},
        "occupancy": {"threads": 256, "regs": 64, "smem_kb": 0, "gpu": "a100-80gb"},
    }  # fmt: skip
    for id, defaults in expected.items():
        assert {i.name: i.default for i in load(id).inputs} == defaults


@pytest.mark.parametrize(
    ("id", "name", "low", "high"),
    [
        ("gpu-peak", "n_sm", 1, 400), ("gpu-peak", "units_per_sm", 1, 16), ("gpu-peak", "clock_ghz", 0.5, 3), ("gpu-peak", "bus_bits", 32, 16384),
        ("gpu-peak", "mem_clock_mhz", 100, 12000), ("gpu-peak", "ddr", 1, 8), ("little-law", "latency_cycles", 100, 2000), ("little-law", "clock_ghz", 0.5, 3),
        ("little-law", "loads_in_flight", 1, 8), ("coalescing", "stride", 1, 64), ("coalescing", "offset_bytes", 0, 127), ("wave-quant", "M", 1, 100_000),
        ("wave-quant", "N", 1, 100_000), ("wave-quant", "tile_m", 8, 512), ("wave-quant", "tile_n", 8, 512), ("wave-quant", "n_sm", 1, 400),
        ("occupancy", "threads", 32, 1024), ("occupancy", "regs", 16, 255), ("occupancy", "smem_kb", 0, 227),
    ],
)  # fmt: skip
def test_ranges_of_the_specification(id, name, low, high):
    item = load(id).input(name)
    assert (item.low, item.high) == (low, high)


@pytest.mark.parametrize(
    ("id", "name", "choices"),
    [
        ("gpu-peak", "preset", ("a100-80gb", "h100-sxm", "v100-sxm-32gb", "rtx-4090", "custom")),
        ("gpu-peak", "fma_per_unit_clk", (64, 128, 256, 512, 1024)),
        ("little-law", "gpu", ("a100-80gb", "h100-sxm")),
        ("little-law", "bytes_per_thread_load", (4, 8, 16)),
        ("coalescing", "elem_bytes", (2, 4, 8)),
        ("occupancy", "gpu", ("a100-80gb", "h100-sxm")),
    ],
)
def test_choices_of_the_specification(id, name, choices):
    assert set(load(id).input(name).choices) == set(choices)


class TestGpuPeak:
    @pytest.mark.parametrize("id", sorted(chips()))
    def test_derived_meets_the_data_sheet(self, id):
        """Within 0.3 %: the catalog's rounded figures, which every other chapter quotes."""
        v = run("gpu-peak", f"preset={id}").values
        assert v["peak_tflops"] == pytest.approx(accelerator(id).dense_tflops, rel=3e-3)
        assert v["bandwidth_gb_s"] == pytest.approx(accelerator(id).bandwidth_gb_s, rel=3e-3)

    def test_background_guide(self):
        """Reference point 1; TF32 runs at half the 16-bit rate."""
        guide = PUBLISHED["background_guide"]
        v = run("gpu-peak").values
        assert v["sms"] == guide["sms"]
        assert v["peak_tflops"] == pytest.approx(guide["fp16_tflops"], rel=1e-3)
        assert v["bandwidth_gb_s"] == pytest.approx(guide["bandwidth_gb_s"], rel=1e-4)
        assert value("gpu-peak", "fma_per_unit_clk=128", "peak_tflops") == pytest.approx(guide["tf32_tflops"], rel=1e-3)

    def test_h100_white_paper(self):
        """Reference point 2: 989.4 derived, 66.9 on CUDA cores at the highest boost, 16 896 cores."""
        paper = PUBLISHED["h100_whitepaper"]
        assert value("gpu-peak", "preset=h100-sxm", "peak_tflops") == pytest.approx(paper["tensor_tflops"], rel=1e-4)
        fp32 = value("gpu-peak", "preset=h100-sxm units_per_sm=1 fma_per_unit_clk=128 clock_ghz=1.98", "peak_tflops")
        assert fp32 == pytest.approx(paper["fp32_tflops"], rel=1e-3)
        assert chips()["h100-sxm"].sms * 128 == paper["cuda_cores"]
        assert chips()["h100-sxm"].boost_ghz * 1000 == paper["boost_mhz_of_the_peak"]

    def test_wrong_boost_clock_is_recognisable(self):
        """Errata 15: 1980 MHz instead of 1830 gives 1070.5; not yet twice, so no note, but above the data sheet."""
        r = run("gpu-peak", "preset=h100-sxm clock_ghz=1.98")
        assert r.values["peak_tflops"] == pytest.approx(PUBLISHED["wrong_boost"]["tflops"], rel=1e-3)
        assert r.values["over_dense_x"] == pytest.approx(1.98 / 1.83, rel=1e-3)
        assert r.notes == ()
        assert "先核对频率" in r.verdict

    def test_a_sparse_number_is_noted_not_refused(self):
        """Errata 1: 1979 on H100 is the 2:4-sparse figure."""
        for preset, fma in (("a100-80gb", 512), ("h100-sxm", 1024)):
            r = run("gpu-peak", f"preset={preset} fma_per_unit_clk={fma}")
            assert r.notes == ("可能用了稀疏(2:4)或 FP8 的数字，请除以 2。",)
            assert "多半是稀疏或更低精度的口径" in r.verdict
            assert r.values["over_dense_x"] == pytest.approx(2, rel=1e-3)
        assert value("gpu-peak", "preset=h100-sxm fma_per_unit_clk=1024", "peak_tflops") == pytest.approx(1979, rel=1e-3)
        assert run("gpu-peak").notes == ()

    def test_a100_has_no_fp8(self):
        """Errata 13: 624 is INT8, not FP8."""
        assert accelerator("a100-80gb").tflops.get("fp8") is None
        assert accelerator("a100-80gb").tflops["int8"] == 624

    def test_tensor_core_over_cuda_core(self):
        """16.0 × on A100 (311.87 ÷ 19.49), 14.8 × on H100 (989 ÷ 66.9)."""
        assert value("gpu-peak", "", "peak_tflops") / value("gpu-peak", "units_per_sm=1 fma_per_unit_clk=64", "peak_tflops") == pytest.approx(16.0, rel=1e-3)
        fp32 = value("gpu-peak", "preset=h100-sxm units_per_sm=1 fma_per_unit_clk=128 clock_ghz=1.98", "peak_tflops")
        assert accelerator("h100-sxm").dense_tflops / fp32 == pytest.approx(14.8, abs=0.05)
        assert "没进 Tensor Core" in run("gpu-peak", "units_per_sm=1 fma_per_unit_clk=64").verdict

    def test_flop_per_clock_of_an_sm(self):
        """2048 on A100 and 4096 on H100: what chapter 08 counts tiles with."""
        assert value("gpu-peak", "", "flop_per_clk_sm") == 2048
        assert value("gpu-peak", "preset=h100-sxm", "flop_per_clk_sm") == 4096

    def test_an_explicit_value_wins_over_the_preset(self):
        assert run("gpu-peak").resolved == {
            "n_sm": 108, "units_per_sm": 4, "fma_per_unit_clk": 256, "clock_ghz": 1.41, "bus_bits": 5120, "mem_clock_mhz": 1593, "ddr": 2,
        }  # fmt: skip
        assert "n_sm" not in run("gpu-peak", "n_sm=54").resolved
        assert value("gpu-peak", "n_sm=54", "peak_tflops") == pytest.approx(value("gpu-peak", "", "peak_tflops") / 2)

    def test_custom_needs_every_field(self):
        errors = refusal("gpu-peak", "preset=custom n_sm=108 ddr=2").errors
        assert [e.field for e in errors] == ["units_per_sm", "fma_per_unit_clk", "clock_ghz", "bus_bits", "mem_clock_mhz"]
        assert "必须填" in errors[0].message
        full = "preset=custom n_sm=108 units_per_sm=4 fma_per_unit_clk=256 clock_ghz=1.41 bus_bits=5120 mem_clock_mhz=1593 ddr=2"
        assert value("gpu-peak", full, "peak_tflops") == value("gpu-peak", "", "peak_tflops")
        assert value("gpu-peak", full, "over_dense_x") is None

    @pytest.mark.parametrize(
        ("query", "field"), [("fma_per_unit_clk=100", "fma_per_unit_clk"), ("n_sm=0", "n_sm"), ("clock_ghz=5", "clock_ghz"), ("preset=h20", "preset")]
    )
    def test_refusals(self, query, field):
        assert refusal("gpu-peak", query).errors[0].field == field

    def test_formula_takes_plain_numbers(self):
        assert peak_flops(108.0, 4.0, 256.0, 2.0, 1.41e9) == pytest.approx(311.87e12, rel=1e-4)


class TestLittleLaw:
    def test_by_hand(self):
        in_flight = 466 / 1.41 * 2039
        assert value("little-law", "", "inflight_kb") == pytest.approx(in_flight / 1e3)
        assert value("little-law", "", "warps_needed") == pytest.approx(in_flight / 108 / 128)

    @pytest.mark.parametrize("gpu", sorted(latencies()))
    def test_both_latencies_are_offered(self, gpu):
        """The empty field takes the published figure; the pointer chase stands in the note."""
        r = run("little-law", f"gpu={gpu}")
        assert r.resolved["latency_cycles"] == latencies()[gpu].cycles
        assert "未核实" in r.notes[0]
        assert str(PUBLISHED["pointer_chase_cycles"][gpu][2]) in r.notes[0]
        assert latencies()[gpu].chase_cycles == PUBLISHED["pointer_chase_cycles"][gpu][2]
        assert latencies()[gpu].chase_cycles in load("little-law").input("latency_cycles").stops

    def test_wider_loads_and_more_of_them_need_fewer_warps(self):
        base = value("little-law", "", "warps_needed")
        assert value("little-law", "bytes_per_thread_load=8", "warps_needed") == pytest.approx(base / 2)
        assert value("little-law", "bytes_per_thread_load=16", "warps_needed") == pytest.approx(base / 4)
        assert value("little-law", "loads_in_flight=4", "warps_needed") == pytest.approx(base / 4)

    def test_more_than_an_sm_holds_is_said(self):
        assert "占用率开满也喂不饱，换 16 字节加载或多发几条" in run("little-law", "gpu=h100-sxm latency_cycles=703").verdict
        assert "开满" not in run("little-law").verdict

    def test_advice_for_the_widest_loads_is_not_to_widen_them(self):
        verdict = run("little-law", "latency_cycles=2000 clock_ghz=0.5 bytes_per_thread_load=16").verdict
        assert "多发几条" in verdict
        assert "16 字节" not in verdict

    def test_the_curve_of_wide_loads_saturates_first(self):
        (chart,) = load("little-law").charts(run("little-law"))
        corner = [min(x for x, y in s.points if y == pytest.approx(2039)) for s in chart.series]
        assert corner == pytest.approx([76.17, 38.08, 19.04], rel=1e-3)

    @pytest.mark.parametrize(
        ("query", "field"), [("gpu=b200", "gpu"), ("latency_cycles=10", "latency_cycles"), ("bytes_per_thread_load=32", "bytes_per_thread_load")]
    )
    def test_refusals(self, query, field):
        assert refusal("little-law", query).errors[0].field == field


class TestCoalescing:
    @pytest.mark.parametrize("elem", [2, 4, 8])
    @pytest.mark.parametrize("stride", [1, 2, 3, 5, 7, 8, 16, 31, 64])
    @pytest.mark.parametrize("offset", [0, 8, 24, 120])
    def test_against_counting_every_byte(self, stride, elem, offset):
        """An independent count: the set of sectors of every single byte."""
        v = run("coalescing", f"stride={stride} elem_bytes={elem} offset_bytes={offset}").values
        asked = {offset + lane * stride * elem + i for lane in range(32) for i in range(elem)}
        assert v["sectors"] == len({byte // 32 for byte in asked})
        assert v["cache_lines"] == len({byte // 128 for byte in asked})
        assert v["efficiency"] == 32 * elem / (32 * v["sectors"])
        assert 0 < v["efficiency"] <= 1
        assert v["sectors"] >= math.ceil(32 * elem / 32)

    def test_strided_access_wastes_seven_eighths(self):
        assert value("coalescing", "stride=8", "wasted_pct") == 87.5
        assert value("coalescing", "stride=8", "efficiency_pct") == 12.5

    @pytest.mark.parametrize("query", ["", "stride=3", "stride=8", "stride=64 elem_bytes=8", "offset_bytes=4"])
    def test_the_picture_and_the_table_show_the_same_bytes(self, query):
        r = run("coalescing", query)
        picture = load("coalescing").charts(r)[0]
        size = {tone: sum(round(32 * (s.end - s.start)) for s in picture.spans if s.tone == tone) for tone in (0, 1)}
        assert size[0] == r.values["bytes_useful"] == sum(row["useful_b"] for row in r.values["lines"])
        assert size[0] + size[1] == r.values["bytes_moved"] == sum(row["moved_b"] for row in r.values["lines"])
        assert len(picture.lanes) == r.values["cache_lines"] == len(r.values["lines"])
        assert all(0 <= s.start < s.end <= 4 for s in picture.spans)

    def test_no_numpy_types_leave(self):
        v = run("coalescing", "stride=3").values
        assert all(type(x) in (int, float, list) for x in v.values())
        assert all(type(cell) in (int, str) for row in v["lines"] for cell in row.values())

    @pytest.mark.parametrize(
        ("query", "field", "words"),
        [
            ("offset_bytes=3", "offset_bytes", "地址必须按元素大小对齐：3 / 4"),
            ("offset_bytes=4 elem_bytes=8", "offset_bytes", "地址必须按元素大小对齐：4 / 8"),
            ("stride=0", "stride", "广播"),
            ("stride=65", "stride", "1 到 64"),
            ("elem_bytes=16", "elem_bytes", "可取 2、4、8"),
        ],
    )
    def test_refusals(self, query, field, words):
        error = refusal("coalescing", query).errors[0]
        assert error.field == field
        assert words in error.message

    def test_verdict_names_the_cause(self):
        assert "全用上" in run("coalescing").verdict
        assert "起点偏了" in run("coalescing", "offset_bytes=4").verdict
        assert "独占一个扇区" in run("coalescing", "stride=8").verdict
        assert "隔着 2 个元素" in run("coalescing", "stride=2").verdict


class TestWaveQuant:
    @pytest.mark.parametrize("sms", [1, 78, 108, 132, 400])
    @pytest.mark.parametrize("full", [1, 2, 7])
    def test_no_slot_is_idle_when_tiles_are_a_multiple(self, sms, full):
        assert value("wave-quant", f"M={128 * sms * full} N=256 n_sm={sms}" if 128 * sms * full <= 100_000 else "M=128 N=256 n_sm=1", "wave_eff") == 1

    @pytest.mark.parametrize("query", ["M=1 N=1", "M=2305", "M=100000 N=100000 tile_m=8 tile_n=8", "M=777 N=4321 n_sm=132 tile_n=64"])
    def test_efficiencies_are_shares_and_multiply(self, query):
        v = run("wave-quant", query).values
        assert 0 < v["wave_eff"] <= 1
        assert 0 < v["tile_fill"] <= 1
        assert v["total_eff"] == pytest.approx(v["wave_eff"] * v["tile_fill"])
        assert v["total_eff_pct"] == pytest.approx(100 * v["total_eff"])
        assert v["last_wave_tiles"] >= 1

    def test_one_row_more_costs_a_wave(self):
        assert value("wave-quant", "M=2305", "wave_eff_pct") == pytest.approx(52.8, abs=0.05)
        assert value("wave-quant", "M=2305", "total_eff_pct") == pytest.approx(50.0, abs=0.05)
        assert value("wave-quant", "M=2305", "last_wave_tiles") == 6
        assert "M 减到 2304" in run("wave-quant", "M=2305").verdict

    def test_decode_leaves_the_card_empty(self):
        assert value("wave-quant", "M=16 N=4096 n_sm=132", "total_eff_pct") == pytest.approx(1.5, abs=0.05)
        assert "116 个 SM 没有活" in run("wave-quant", "M=16 N=4096 n_sm=132").verdict

    @pytest.mark.parametrize(
        "query", ["", "M=2305", "N=100000 tile_n=8 n_sm=1", "M=8192 N=8192 tile_m=8 tile_n=8", "M=100000 n_sm=400 N=8 tile_n=512 tile_m=512"]
    )
    def test_the_saw_goes_through_its_mark(self, query):
        r = run("wave-quant", query)
        saw, _ = load("wave-quant").charts(r)
        points = saw.series[0].points
        assert len(points) <= 200
        assert [x for x, _ in points] == sorted({x for x, _ in points})
        (mark,) = saw.marks
        below = max(p for p in points if p[0] <= mark.x)
        above = min(p for p in points if p[0] >= mark.x)
        if len(points) < 190:  # drawn corner by corner
            share = (mark.x - below[0]) / ((above[0] - below[0]) or 1)
            assert mark.y == pytest.approx(below[1] + share * (above[1] - below[1]), rel=1e-9)

    @pytest.mark.parametrize(("query", "field"), [("M=0", "M"), ("tile_m=4", "tile_m"), ("n_sm=401", "n_sm"), ("N=1.5", "N")])
    def test_refusals(self, query, field):
        assert refusal("wave-quant", query).errors[0].field == field


class TestOccupancy:
    @pytest.mark.parametrize(("gpu", "capability"), [("a100-80gb", "8.0"), ("h100-sxm", "9.0")])
    def test_limits_of_the_programming_guide(self, gpu, capability):
        """Reference point 4."""
        table = PUBLISHED["compute_capability"][capability]
        room = shared_memories()[gpu]
        assert (room.per_sm_kb, room.per_block_kb) == (table["shared_kb_per_sm"], table["shared_kb_per_block"])
        assert (table["warps_per_sm"], table["blocks_per_sm"], table["registers_per_sm"]) == (MOST_WARPS, MOST_BLOCKS, REGISTERS)
        assert value("occupancy", f"gpu={gpu}", "smem_per_sm_kb") == table["shared_kb_per_sm"]

    def test_registers_are_handed_out_per_warp(self):
        """65 registers round up to 72; 64 stay 64."""
        assert registers_per_warp(65.0, 32.0, 256.0) / 32 == 72
        assert registers_per_warp(64.0, 32.0, 256.0) / 32 == 64
        assert value("occupancy", "regs=65", "regs_allocated") == 72
        assert "实发 72 个" in run("occupancy", "regs=65").notes[0]

    def test_too_many_registers_are_refused_with_the_product(self):
        error = refusal("occupancy", "threads=1024 regs=65").errors[0]
        assert error.field == "regs"
        assert "寄存器不够：1024×72 > 65536" in error.message
        assert "最多 64" in error.message
        assert value("occupancy", "threads=1024 regs=64", "blocks") == 1

    @pytest.mark.parametrize(("gpu", "limit"), [("a100-80gb", 163), ("h100-sxm", 227)])
    def test_shared_memory_above_the_limit_of_a_block(self, gpu, limit):
        assert value("occupancy", f"gpu={gpu} smem_kb={limit}", "blocks") == 1
        if limit < 227:
            error = refusal("occupancy", f"gpu={gpu} smem_kb={limit + 1}").errors[0]
            assert error.field == "smem_kb"
            assert f"最多 {limit} KiB" in error.message

    @pytest.mark.parametrize(
        ("query", "limiter"),
        [
            ("", "registers"),
            ("threads=1024 regs=32", "registers"),  # 2 blocks by registers and by warps: registers are named first
            ("threads=1024 regs=16", "warps"),
            ("threads=32 regs=16", "blocks"),
            ("threads=64 regs=32 smem_kb=4.125", "registers"),  # 32 by registers, shared memory 32, warps 32, blocks 32
            ("smem_kb=48", "shared_memory"),
        ],
    )
    def test_the_smallest_limit_is_named_and_ties_go_in_order(self, query, limiter):
        v = run("occupancy", query).values
        assert v["limiter"] == limiter
        assert v["blocks"] == min(v["by_registers"], v["by_shared_memory"], v["by_warps"], v["by_blocks"])
        assert v["blocks"] == v[f"by_{limiter}"]

    @pytest.mark.parametrize(
        ("query", "words"),
        [
            ("", "寄存器先用完"),
            ("threads=1024 regs=32", "住满了"),  # registers and warps end together at 64 warps: nothing to gain
            ("threads=768 regs=32", "除不尽 64"),
            ("threads=96 regs=16", "除不尽 64"),
            ("threads=32 regs=64", "寄存器、块名额同时到顶"),
            ("threads=32 regs=16", "把块加大"),
            ("gpu=h100-sxm smem_kb=227 threads=384 regs=168", "寄存器、共享内存同时到顶"),
        ],
    )
    def test_advice_never_names_a_limit_that_would_not_help_alone(self, query, words):
        assert words in run("occupancy", query).verdict

    def test_more_of_anything_never_lets_more_blocks_in(self):
        for name, values in (("regs", range(16, 129, 8)), ("smem_kb", range(0, 160, 10))):
            blocks = [value("occupancy", f"{name}={x}", "blocks") for x in values]
            assert blocks == sorted(blocks, reverse=True)

    def test_the_stairs_go_through_the_mark(self):
        for regs in (16, 64, 65, 128, 255):
            r = run("occupancy", f"regs={regs}")
            stairs = dict(load("occupancy").charts(r)[1].series[0].points)
            step = min(x for x in stairs if x >= regs)
            assert stairs[step] == r.values["occupancy_pct"]


def test_no_input_of_the_chapter_overflows_the_axes():
    """The largest of everything still draws."""
    for id in ("gpu-peak", "little-law", "coalescing", "wave-quant", "occupancy"):
        calculator = load(id)
        largest = {i.name: i.text(i.high) for i in calculator.inputs if i.type in ("int", "float") and i.name not in ("regs", "smem_kb", "offset_bytes")}
        assert calculator.charts(calculator.run(largest))


def test_references_agree_with_the_chips():
    """SM counts and caches stand once more among the references of chapters 02 and 03: they must be the same."""
    for entry, id in (("on-chip-a100", "a100-80gb"), ("on-chip-h100", "h100-sxm")):
        if entry in references():
            assert references()[entry].values["sms"].value == chips()[id].sms
    for id, (l1, l2, hbm) in ((k, v) for k, v in PUBLISHED["pointer_chase_cycles"].items() if k != "source"):
        values = references()["pointer-chase"].values
        stem = id.split("-")[0]
        assert [values[f"{stem}_{level}"].value for level in ("l1", "l2", "hbm")] == [l1, l2, hbm]


@pytest.mark.parametrize(
    ("target", "expected", "tolerance"),
    [
        ("calc:gpu-peak#peak_tflops", 311.9, 1e-3),
        ("calc:gpu-peak?preset=h100-sxm#peak_tflops", 989.4, 1e-3),
        ("ref:tensor-over-cuda#a100", 16.0, 1e-2),
        ("ref:tensor-over-cuda#h100", 14.8, 1e-2),
        ("calc:little-law#inflight_kb", 674, 1e-3),
        ("calc:coalescing?stride=8#efficiency_pct", 12.5, EXACT),
        ("calc:wave-quant?M=2305#wave_eff_pct", 52.8, 1e-3),
        ("calc:little-law?bytes_per_thread_load=16#occupancy_pct", 19, 5e-3),
        *[  # the preset table's ridges: catalog BF16 (V100: FP16) ÷ bandwidth
            (f"calc:roofline?gpu={gpu}#ridge", ridge, 1e-3)
            for gpu, ridge in (
                ("v100-sxm-32gb", 138.9),
                ("a100-80gb", 153.0),
                ("h100-sxm", 295.2),
                ("h200", 206.0),
                ("h20", 37.0),
                ("b200", 292.2),
                ("b300", 290.3),
                ("rtx-4090", 163.9),
                ("mi300x", 246.7),
            )
        ],
        ("ref:pointer-chase#gh200_l1", 40, EXACT),
        ("ref:pointer-chase#gh200_l2", 281, EXACT),
        ("ref:pointer-chase#gh200_hbm", 690, EXACT),
        ("spec:mi300x#bf16_tflops", 1307.4, EXACT),  # reference point 5
        ("spec:mi300x#bandwidth_gb_s", 5300, EXACT),
        ("spec:b200#bf16_tflops", 2250, EXACT),  # reference point 6
    ],
)
def test_figures_to_quote(target, expected, tolerance):
    assert resolve(target).value == pytest.approx(expected, rel=tolerance)
