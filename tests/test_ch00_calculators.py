"""Chapter 00: move-time, route-time, flash-io-quick.  Expected values come from the chapter's specification, tolerances too."""

from __future__ import annotations

import math

import pytest

from calculators.catalog import chapters, routes
from calculators.core.calculator import Run
from calculators.core.errors import Refusal
from calculators.core.index import load
from calculators.site.targets import resolve


def run(id: str, /, **given: str) -> Run:
    return load(id).run(given)


def value(id: str, output: str, /, **given: str) -> float:
    got = run(id, **given).values[output]
    assert isinstance(got, int | float)
    return got


def refused(id: str, /, **given: str) -> str:
    with pytest.raises(Refusal) as caught:
        run(id, **given)
    return str(caught.value)


DEFAULTS = [
    ("move-time", "hbm_ms", 4.667), ("move-time", "nvlink_ms", 15.556), ("move-time", "net_ms", 280.0), ("move-time", "nvlink_gb_s", 900),
    ("move-time", "net_gb_s", 50), ("move-time", "net_over_hbm_x", 60.0), ("move-time", "net_over_nvlink_x", 18.0), ("move-time", "nvlink_over_hbm_x", 3.333),
    ("route-time", "n_chapters", 9), ("route-time", "base_min", 316), ("route-time", "total_min", 379.2), ("route-time", "total_h", 6.32),
    ("route-time", "stated_min", 330), ("route-time", "gap_min", -14),
    ("flash-io-quick", "sram_elems", 98304), ("flash-io-quick", "ratio_n2_only_x", 24.0), ("flash-io-quick", "ratio_asymptotic_x", 97.5),
    ("flash-io-quick", "ratio_fa1_x", 7.285), ("flash-io-quick", "ratio_ideal_x", 65.0), ("flash-io-quick", "standard_mb", 136.315),
    ("flash-io-quick", "asymptotic_mb", 1.398), ("flash-io-quick", "fa1_mb", 18.711), ("flash-io-quick", "ideal_mb", 2.097),
]  # fmt: skip


@pytest.mark.parametrize(("id", "output", "expected"), DEFAULTS)
def test_default_outputs_equal_the_specified_table(id: str, output: str, expected: float) -> None:
    """Spec 00, "Output identifiers": printed to four figures or more."""
    assert value(id, output) == pytest.approx(expected, rel=3e-4)


BINDINGS = [
    ("move-time", {"nvlink_basis": "单向"}, {"nvlink_ms": 31.111, "nvlink_gb_s": 450, "net_over_nvlink_x": 9.0, "nvlink_over_hbm_x": 6.667}),
    ("move-time", {"preset": "70B 权重(BF16)"}, {"net_ms": 2800}),
    ("flash-io-quick", {"d": "128"}, {"ratio_n2_only_x": 6.0, "ratio_asymptotic_x": 24.75, "ratio_fa1_x": 1.922, "ratio_ideal_x": 33.0}),
]


@pytest.mark.parametrize(("id", "given", "expected"), BINDINGS)
def test_bound_calls(id: str, given: dict[str, str], expected: dict[str, float]) -> None:
    """Spec 00, appendix B, relative tolerance 1e-3."""
    for output, number in expected.items():
        assert value(id, output, **given) == pytest.approx(number, rel=1e-3)


ROUTES = [("只想知道钱花在哪", 120, 4), ("要部署推理服务", 316, 9), ("要训练/微调大模型", 180, 7), ("面试速通", 180, 6), ("完整打牢", 773, 27)]


@pytest.mark.parametrize(("route", "base", "chapters_in_it"), ROUTES)
def test_route_sums(route: str, base: int, chapters_in_it: int) -> None:
    """Spec 00, appendix B and figures to quote (exact); the fifth route promises no sum."""
    values = run("route-time", route=route).values
    assert values["base_min"] == base
    assert values["n_chapters"] == chapters_in_it
    assert values["within_15_min"] is (None if route == "完整打牢" else True)
    assert (values["stated_min"] is None) == (route == "完整打牢")


def test_route_minutes_are_the_catalog_s_own() -> None:
    """Outside check: the sums again, straight from the table of chapters."""
    for route in routes().values():
        assert value("route-time", "base_min", route=route.title) == sum(chapters()[id].minutes for id in route.chapters)


def test_pace_multiplies_and_calculators_add_a_fifth() -> None:
    assert value("route-time", "total_min", pace="2", include_calculators="false") == 632
    assert value("route-time", "total_min", pace="0.5") == pytest.approx(316 * 0.5 * 1.2)


def test_move_time_by_hand() -> None:
    """Outside check in plain arithmetic; 400 Gb/s is 50 GB/s exactly (reference point 1)."""
    assert value("move-time", "hbm_ms", bytes_gb="3.5", hbm_tbs="3.35") == pytest.approx(3.5 / 3.35)
    assert value("move-time", "net_ms", bytes_gb="3.5", net_gbps="100") == pytest.approx(3.5 / 12.5 * 1000)
    assert value("move-time", "net_gb_s") == 50


def test_verdict_names_the_one_way_time_and_does_not_rank_nonsense() -> None:
    """One transfer uses one direction: 14 GB ÷ 450 GB/s = 31.11 ms stands beside the sum of both.  NVLink above HBM is no ranking."""
    assert "31.11 ms" in run("move-time").verdict
    assert "双向合计" not in run("move-time", nvlink_basis="单向").verdict
    assert "先核对" in run("move-time", hbm_tbs="0.9", nvlink_gbs="1800").verdict


def test_flash_traffic_by_hand() -> None:
    """Outside check: Algorithm 1 counted term by term, n = 1000, d = 64, 100 KB of two-byte elements."""
    n, d, m = 1000, 64, 100 * 1024 // 2
    block = math.ceil(m / (4 * d))
    blocks = math.ceil(n / block)
    standard = 4 * n * n + 4 * n * d
    flash = 2 * n * d + blocks * (3 * n * d + 4 * n)
    assert value("flash-io-quick", "fa1_mb", n="1000", M_kb="100") == pytest.approx(flash * 2 / 1e6)
    assert value("flash-io-quick", "ratio_fa1_x", n="1000", M_kb="100") == pytest.approx(standard / flash)
    assert value("flash-io-quick", "ratio_n2_only_x", n="1000", M_kb="100") == pytest.approx(m / (d * d))


def test_twenty_times_has_two_ways() -> None:
    """Spec 00 §3: 24 at d = 64 with n² counted once, 24.75 at d = 128 with all four passes; both stand on the card."""
    assert any("24 倍" in note and "24.75 倍" in note for note in run("flash-io-quick").notes)


def test_flash_monotonicity() -> None:
    """More SRAM never costs traffic; the compulsory minimum is never beaten; ratios do not depend on the unit of n."""
    traffic = [value("flash-io-quick", "fa1_mb", M_kb=str(kb)) for kb in (16, 32, 64, 128, 192, 256, 512)]
    assert traffic == sorted(traffic, reverse=True)
    for d in ("64", "96", "128", "256"):
        for n in ("128", "4096", "1048576"):
            values = run("flash-io-quick", d=d, n=n).values
            assert values["ideal_mb"] <= values["fa1_mb"]  # type: ignore[operator]
            assert values["ratio_n2_only_x"] == pytest.approx(value("flash-io-quick", "ratio_n2_only_x", d=d))


def test_flash_says_when_it_moves_more_and_when_the_theorem_does_not_hold() -> None:
    """Algorithm 1 with tiny SRAM moves more than the standard form; n²d²/M needs M ≤ n·d."""
    assert "反而多搬" in run("flash-io-quick", d="256", elem_bytes="4", M_kb="16").verdict
    assert any("前提不成立" in note for note in run("flash-io-quick", n="128", M_kb="512").notes)


@pytest.mark.parametrize(
    ("id", "given", "words"),
    [
        ("move-time", {"bytes_gb": "0"}, ("数据量",)),
        ("move-time", {"hbm_tbs": "0"}, ("HBM 带宽",)),
        ("move-time", {"net_gbps": "400000"}, ("跨机带宽", "除以 1000")),
        ("move-time", {"preset": "自定义"}, ("数据量", "例如")),
        ("route-time", {"pace": "0.4"}, ("时间倍数", "0.5 到 3")),
        ("route-time", {"pace": "3.1"}, ("时间倍数", "0.5 到 3")),
        ("route-time", {"route": "随便看看"}, ("读法", "可取")),
        ("flash-io-quick", {"M_kb": "0.5"}, ("SRAM", "放不下一行块")),
        ("flash-io-quick", {"n": "100"}, ("序列长度", "128")),
        ("flash-io-quick", {"d": "80"}, ("每头维度", "可取 64、96、128、256")),
    ],
)
def test_refusals_name_the_field_and_the_remedy(id: str, given: dict[str, str], words: tuple[str, ...]) -> None:
    message = refused(id, **given)
    for word in words:
        assert word in message


def test_gb_per_s_typed_as_gb_is_noted_not_refused() -> None:
    """Spec 00 §1: 50 and 12.5 are the usual slip."""
    assert any("填成 400 Gb/s" in note for note in run("move-time", net_gbps="50").notes)
    assert any("填成 100 Gb/s" in note for note in run("move-time", net_gbps="12.5").notes)
    assert run("move-time").notes == ()


DERIVED = [
    ("ref:dao-2022-fig2-ratios#hbm_x", 9.16), ("ref:dao-2022-fig2-ratios#time_x", 5.71), ("ref:dao-2022-fig2-ratios#flops_up", 12.9),
    ("ref:full-recompute#flops_up", 33.3), ("ref:bf16-gain#peak_x", 16), ("ref:nvlink-efficiency#share", 83), ("ref:book-size#chapters", 27),
]  # fmt: skip


@pytest.mark.parametrize(("target", "expected"), DERIVED)
def test_derived_figures(target: str, expected: float) -> None:
    """Spec 00 (trade table, wrong intuitions) and spec 08 (FlashAttention Fig. 2: 9.16×, 5.71×, +12.9 %)."""
    assert resolve(target).value == pytest.approx(expected, rel=4e-3)
