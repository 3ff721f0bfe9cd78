"""Chapter 19: spec-speedup, alpha-from-measurement, spec-montecarlo, spec-batch.  Expected values: the chapter's specification unless a row names its source."""

from __future__ import annotations

import math
import time

import pytest
from asking import first_error as refusal
from asking import half_of, run, value
from hypothesis import given, settings
from hypothesis import strategies as st

from calculators.catalog import model
from calculators.core.charts import BarChart, LineChart, Timeline
from calculators.core.index import load

EXACT = 1e-12
SETTINGS = settings(max_examples=25, deadline=None, derandomize=True, database=None)


# "Output identifiers": to half of the last digit.
DEFAULTS = [
    ("spec-speedup", "tokens_per_round", "3.3616"),
    ("spec-speedup", "speedup", "2.8013"),
    ("spec-speedup", "best_gamma", "8"),
    ("spec-speedup", "best_speedup", "3.0921"),
    ("spec-speedup", "ops_factor", "1.5469"),
    ("spec-speedup", "breakeven_tokens_per_round", "1.20"),
    ("spec-speedup", "tokens_per_round_limit", "5"),
    ("alpha-from-measurement", "tokens_per_round", "3.7173"),
    ("alpha-from-measurement", "alpha", "0.85118"),
    ("alpha-from-measurement", "speedup", "2.4607"),
    ("spec-montecarlo", "alpha", "0.77354"),
    ("spec-montecarlo", "tokens_per_round_mc", "3.2045"),
    ("spec-montecarlo", "tokens_per_round_closed", "3.1928"),
    ("spec-montecarlo", "tokens_per_round_se", "0.0114"),
    ("spec-montecarlo", "max_abs_deviation", "0.0028"),
    ("spec-batch", "target_step_ms", "12.998"),
    ("spec-batch", "draft_step_ms", "1.4127"),
    ("spec-batch", "verify_ms", "12.998"),
    ("spec-batch", "c", "0.10868"),
    ("spec-batch", "speedup", "2.3430"),
    ("spec-batch", "breakeven_batch", "125"),
    ("spec-batch", "verify_knee_batch", "39"),
    ("spec-batch", "b_max_memory", "278"),
]

# The sections, "Figures to quote", "Wrong intuitions" and "Checkpoint".
QUOTED = [
    ("spec-speedup", "alpha=0.6", "ops_factor", "2.26"),
    ("spec-speedup", "alpha=0.6 c=0.1 gamma=8", "speedup", "1.37"),
    ("spec-speedup", "alpha=0.85 gamma=1", "tokens_per_round", "1.85"),
    ("spec-speedup", "alpha=0.9 gamma=1", "tokens_per_round", "1.90"),
    ("alpha-from-measurement", "measured_ms=7.52", "tokens_per_round", "2.832"),
    ("alpha-from-measurement", "measured_ms=7.52", "alpha", "0.711"),
    ("alpha-from-measurement", "measured_ms=7", "tokens_per_round", "3.043"),
    ("alpha-from-measurement", "measured_ms=7", "alpha", "0.749"),
    *[("spec-batch", f"batch={b}", "speedup", s) for b, s in ((1, "2.34"), (16, "2.28"), (32, "2.22"), (64, "1.59"), (128, "0.99"), (256, "0.64"))],
    *[("spec-batch", f"draft=head batch={b}", "speedup", s) for b, s in ((1, "3.11"), (64, "2.09"), (128, "1.21"), (256, "0.76"))],
    ("spec-batch", "draft=head", "breakeven_batch", "166"),
    ("spec-batch", "draft=head", "verify_knee_batch", "39"),
    ("spec-batch", "draft=head", "b_max_memory", "427"),
    ("spec-batch", "", "draft_kv_pct", "40"),
    ("spec-batch", "draft=head", "draft_kv_pct", "1.25"),  # 1/80
]

# Section 三: best γ and its speed-up.
BEST = [
    (0.6, 0.02, 6, "2.17"),
    (0.6, 0.05, 4, "1.92"),
    (0.6, 0.1, 3, "1.67"),
    (0.6, 0.2, 2, "1.40"),
    (0.8, 0.02, 11, "3.82"),
    (0.8, 0.05, 8, "3.09"),
    (0.8, 0.1, 6, "2.47"),
    (0.8, 0.2, 4, "1.87"),
    (0.9, 0.02, 19, "6.37"),
    (0.9, 0.05, 13, "4.67"),
    (0.9, 0.1, 10, "3.43"),
    (0.9, 0.2, 7, "2.37"),
    (0.8, 0.5, 2, "1.22"),
]

# "Reference points": Chen et al. 2023 Table 1; Leviathan et al. 2023 Table 2, Appendix A.5 (secondary), Corollary 3.9.
REFERENCE = [
    ("alpha-from-measurement", "measured_ms=7", "speedup", 2.01, 5e-3),
    ("alpha-from-measurement", "measured_ms=5.73", "speedup", 2.46, 5e-3),
    ("alpha-from-measurement", "measured_ms=7.52", "speedup", 1.92, 3e-2),  # the table contradicts itself: 14.1 ÷ 7.52 = 1.875
    ("spec-speedup", "alpha=0.75 gamma=7 c=0.02", "speedup", 3.16, 2e-3),
    ("spec-speedup", "alpha=0.75 gamma=7 c=0.02", "speedup", 3.4, 0.15),
    ("spec-speedup", "alpha=0.75 gamma=7 c=0.015", "speedup", 3.26, 2e-3),
    ("spec-speedup", "alpha=0.8 gamma=7 c=0.04", "speedup", 3.25, 2e-3),
    ("spec-speedup", "alpha=0.82 gamma=7 c=0.11", "speedup", 2.50, 2e-3),
    ("spec-speedup", "alpha=0.62 c=0.015", "best_speedup", 2.33, 2e-3),
    ("spec-speedup", "alpha=0.84 c=0.015", "best_speedup", 4.79, 2e-3),
    ("spec-speedup", "alpha=0.62 c=0.015", "best_speedup", 2.5, 0.08),
    ("spec-speedup", "alpha=0.84 c=0.015", "best_speedup", 5.0, 0.08),
    ("spec-speedup", "gamma=1", "speedup", 1.8 / 1.05, EXACT),
    ("spec-speedup", "alpha=0.2 gamma=3 c=0", "speedup", 1.248, EXACT),
    ("spec-speedup", "alpha=0.2 gamma=3 c=0", "speedup", 1.25, 5e-3),
]


@pytest.mark.parametrize(("id", "output", "printed"), DEFAULTS)
def test_default(id, output, printed):
    assert value(id, "", output) == pytest.approx(float(printed), abs=half_of(printed))


@pytest.mark.parametrize(("id", "query", "output", "printed"), QUOTED)
def test_quoted_figure(id, query, output, printed):
    assert value(id, query, output) == pytest.approx(float(printed), abs=half_of(printed))


@pytest.mark.parametrize(("alpha", "c", "gamma", "speed"), BEST)
def test_best_gamma(alpha, c, gamma, speed):
    values = run("spec-speedup", f"alpha={alpha} c={c}").values
    assert values["best_gamma"] == gamma
    assert values["best_speedup"] == pytest.approx(float(speed), abs=half_of(speed))


@pytest.mark.parametrize(("id", "query", "output", "expected", "tolerance"), REFERENCE)
def test_reference(id, query, output, expected, tolerance):
    assert value(id, query, output) == pytest.approx(expected, rel=tolerance)


def test_measured_over_predicted():
    """Leviathan Table 2: base 0.86, large 0.68 of the prediction."""
    assert 2.8 / value("spec-speedup", "alpha=0.8 gamma=7 c=0.04", "speedup") == pytest.approx(0.86, abs=0.005)
    assert 1.7 / value("spec-speedup", "alpha=0.82 gamma=7 c=0.11", "speedup") == pytest.approx(0.68, abs=0.005)


def test_mtp_overhead():
    """DeepSeek-V3: 1.8 times the tokens per second from 1.85 to 1.90 tokens a round leaves 3 to 6 % for overhead."""
    low, high = (value("spec-speedup", f"alpha={a} gamma=1", "tokens_per_round") for a in (0.85, 0.9))
    assert 0.025 <= low / 1.8 - 1 <= high / 1.8 - 1 <= 0.06


# --- the closed form


@SETTINGS
@given(st.floats(0, 1), st.integers(0, 31), st.floats(0, 2))
def test_expected_tokens(alpha, gamma, c):
    values = run("spec-speedup", f"alpha={alpha!r} gamma={gamma} c={c!r}").values
    expected = math.fsum(alpha**i for i in range(gamma + 1))
    assert values["tokens_per_round"] == pytest.approx(expected, rel=EXACT)
    assert values["speedup"] == pytest.approx(expected / (1 + gamma * c), rel=EXACT)
    assert values["tokens_per_round"] <= value("spec-speedup", f"alpha={alpha!r} gamma={gamma + 1}", "tokens_per_round")
    assert values["tokens_per_round"] <= value("spec-speedup", f"alpha={min(1.0, alpha + 0.01)!r} gamma={gamma}", "tokens_per_round")
    if alpha < 1:
        assert values["tokens_per_round"] <= 1 / (1 - alpha) * (1 + 1e-9)


def test_ends_of_the_formula():
    for gamma in (0, 1, 7, 32):
        assert value("spec-speedup", f"alpha=1 gamma={gamma}", "tokens_per_round") == gamma + 1
        assert value("spec-speedup", f"alpha=1 gamma={gamma}", "tokens_per_round_limit") == gamma + 1
    for alpha in (0, 0.5, 1):
        assert value("spec-speedup", f"alpha={alpha} gamma=0", "tokens_per_round") == 1
        assert value("spec-speedup", f"alpha={alpha} gamma=0 c=2", "speedup") == 1
    assert value("spec-speedup", "alpha=1 c=0", "best_gamma") == 32


@SETTINGS
@given(st.floats(0, 1), st.floats(0, 1))
def test_no_draft_pays_when_alpha_is_at_most_c(alpha, c):
    values = run("spec-speedup", f"alpha={alpha!r} c={c!r}").values
    if alpha <= c:
        assert values["best_gamma"] == 0
        assert values["best_speedup"] == 1
    elif alpha - c > 1e-9:
        assert values["best_speedup"] >= (1 + alpha) / (1 + c) * (1 - EXACT)
        assert values["best_gamma"] >= 1


@pytest.mark.parametrize("both", [0.1, 0.25, 0.5, 0.8, 1])
def test_a_tie_gives_no_speculation(both):
    assert value("spec-speedup", f"alpha={both} c={both}", "best_gamma") == 0


@SETTINGS
@given(st.floats(0, 1), st.integers(1, 32))
def test_alpha_comes_back(alpha, gamma):
    tokens = value("spec-speedup", f"alpha={alpha!r} gamma={gamma}", "tokens_per_round")
    tokens = min(max(tokens, 1.0), gamma + 1.0)
    assert value("alpha-from-measurement", f"mode=tokens measured_tokens_per_round={tokens!r} gamma={gamma}", "alpha") == pytest.approx(alpha, abs=1e-6)


@pytest.mark.parametrize(
    ("id", "query", "field"),
    [
        ("spec-speedup", "alpha=1.1", "alpha"),
        ("spec-speedup", "alpha=-0.1", "alpha"),
        ("spec-speedup", "gamma=-1", "gamma"),
        ("alpha-from-measurement", "measured_ms=4.2", "measured_ms"),
        ("alpha-from-measurement", "measured_ms=22", "measured_ms"),
        ("alpha-from-measurement", "mode=tokens measured_tokens_per_round=5.1", "measured_tokens_per_round"),
        ("spec-batch", "batch=279", "batch"),
        ("spec-batch", "n_gpus=2", "n_gpus"),
        ("spec-batch", "target=mixtral-8x7b", "target"),
        ("spec-batch", "draft=mixtral-8x7b", "draft"),
    ],
)
def test_refuses(id, query, field):
    assert refusal(id, query).field == field


def test_refusals_say_what_to_do():
    assert "测量值不可能，检查计时" in refusal("alpha-from-measurement", "measured_ms=4.2").message
    assert "装不下：最多 B = 278" in refusal("spec-batch", "batch=300").message
    run("spec-batch", "batch=278")


# --- the experiment


def by_hand(seed=0, vocab=8):
    """p and q of the specification's reproduction notes."""
    np = pytest.importorskip("numpy")
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(vocab))
    return p, 0.5 * p + 0.5 * rng.dirichlet(np.ones(vocab))


def test_distributions_at_seed_0():
    p, q = by_hand()
    assert p == pytest.approx([0.1275, 0.1913, 0.0037, 0.0004, 0.1032, 0.3058, 0.1264, 0.1417], abs=5e-5)
    assert q == pytest.approx([0.1495, 0.2801, 0.1019, 0.0003, 0.1207, 0.1551, 0.0957, 0.0967], abs=5e-5)
    trace = run("spec-montecarlo").result.trace
    assert trace.p == pytest.approx(p, rel=EXACT)
    assert trace.q == pytest.approx(q, rel=EXACT)


@pytest.mark.parametrize("seed", range(10))
def test_the_distribution_is_unchanged(seed):
    values = run("spec-montecarlo", f"seed={seed}").values
    assert values["max_abs_deviation"] < 0.012
    assert values["expected_deviation"] < EXACT
    assert abs(values["tokens_per_round_mc"] - values["tokens_per_round_closed"]) < 4 * values["tokens_per_round_se"]


def test_the_stream_matters_little():
    """Correct rule: 0.002 to 0.0065 over ten streams at the distributions of seed 0."""
    from calculators.inference.spec_montecarlo import _play

    p, q = by_hand()
    deviations = [abs(_play(p, q, seed, 20_000, 4, "none").emitted - p).max() for seed in range(10)]
    assert min(deviations) > 0.0015
    assert max(deviations) < 0.0065


@pytest.mark.parametrize(("bug", "deviation", "exact"), [("accept-p", 0.303, 0.3014), ("resample-p", 0.083, 0.0814)])
def test_both_bugs_are_caught(bug, deviation, exact):
    r = run("spec-montecarlo", f"bug={bug}")
    assert r.values["max_abs_deviation"] == pytest.approx(deviation, abs=5e-4)
    assert r.values["expected_deviation"] == pytest.approx(exact, abs=5e-5)
    assert r.values["max_abs_deviation"] > 0.012
    assert "分布走样了" in r.verdict


def test_exact_distribution_of_the_bugs():
    p, q = by_hand()
    more = [max(0.0, a - b) for a, b in zip(p, q, strict=True)]
    alpha = sum(min(a, b) for a, b in zip(p, q, strict=True))
    kept = sum(a * b for a, b in zip(p, q, strict=True))
    accept = [a * b + (1 - kept) * m / sum(more) for a, b, m in zip(p, q, more, strict=True)]
    resample = [min(a, b) + (1 - alpha) * a for a, b in zip(p, q, strict=True)]
    for bug, emitted in (("accept-p", accept), ("resample-p", resample)):
        expected = max(abs(e - a) for e, a in zip(emitted, p, strict=True))
        assert value("spec-montecarlo", f"bug={bug}", "expected_deviation") == pytest.approx(expected, rel=1e-9)


def test_resampling_from_p_keeps_the_count():
    """The number of tokens alone does not show this bug."""
    right, wrong = (run("spec-montecarlo", f"bug={bug}") for bug in ("none", "resample-p"))
    assert right.values["tokens_per_round_mc"] == wrong.values["tokens_per_round_mc"]
    assert "只看速度发现不了" in wrong.verdict


def test_greedy_decoding_shows_neither_bug():
    """At temperature 0 the target has one word left, so both wrong rules emit it: only a distribution shows them."""
    np = pytest.importorskip("numpy")
    from calculators.inference.spec_montecarlo import _expected

    p, q = np.array([0.0, 1.0, 0.0]), np.array([0.2, 0.5, 0.3])
    for bug in ("none", "accept-p", "resample-p"):
        assert _expected(p, q, bug).tolist() == pytest.approx(p.tolist(), abs=EXACT)


def test_worked_residual():
    """Section 二: p = (0.5, 0.3, 0.2), q = (0.2, 0.5, 0.3)."""
    np = pytest.importorskip("numpy")
    from calculators.inference.spec_montecarlo import _expected, _residual

    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.5, 0.3])
    assert np.minimum(p, q).sum() == pytest.approx(0.7, rel=EXACT)
    assert _residual(p, q).tolist() == pytest.approx([1, 0, 0], abs=EXACT)
    assert _expected(p, q, "none").tolist() == pytest.approx(p.tolist(), rel=EXACT)


def test_alpha_is_one_minus_the_distance():
    p, q = by_hand(3, 16)
    assert value("spec-montecarlo", "seed=3 vocab=16", "alpha") == pytest.approx(1 - abs(p - q).sum() / 2, rel=1e-9)


def test_experiment_is_quick():
    run("spec-montecarlo")  # numpy is imported once
    started = time.process_time()
    run("spec-montecarlo", "seed=1")
    assert time.process_time() - started < 0.3


# --- batch


def test_step_by_hand():
    """The formula of the specification with the model's own sizes."""
    m, batch, context, cards = model("llama-3-70b"), 64, 4096, 8
    values = run("spec-batch", f"batch={batch} context_tokens={context} n_gpus={cards} gamma=6").values
    n = m.active_params_no_input_embedding
    read = (2 * n + m.kv_bytes_per_token * context * batch) / (cards * 3350e9 * 0.8)
    each = (2 * n + 4 * m.layers * m.heads * m.head_dim * context) / (cards * 989e12 * 0.5)
    assert values["target_step_ms"] == pytest.approx(1e3 * max(read, batch * each), rel=EXACT)
    assert values["verify_ms"] == pytest.approx(1e3 * max(read, batch * 7 * each), rel=EXACT)


@pytest.mark.parametrize("query", ["", "draft=head", "gpu=h200 target=qwen2.5-72b draft=qwen2.5-7b", "context_tokens=4096"])
def test_agrees_with_spec_speedup_at_batch_1(query):
    values = run("spec-batch", query).values
    assert values["speedup"] == pytest.approx(value("spec-speedup", f"c={values['c']!r}", "speedup"), rel=1e-9)


@pytest.mark.parametrize("query", ["", "draft=head"])
def test_speedup_falls_once_verification_is_compute_bound(query):
    knee = value("spec-batch", query, "verify_knee_batch")
    speeds = [value("spec-batch", f"{query} batch={b}", "speedup") for b in range(knee + 1, 270, 20)]
    assert speeds == sorted(speeds, reverse=True)


@pytest.mark.parametrize("query", ["", "draft=head", "gpu=h20 target=llama-3-8b draft=llama-3.2-1b n_gpus=1"])
def test_break_even_and_knee_are_the_last_ones(query):
    values = run("spec-batch", query).values
    even, knee = values["breakeven_batch"], values["verify_knee_batch"]
    assert value("spec-batch", f"{query} batch={even}", "speedup") >= 1 > value("spec-batch", f"{query} batch={even + 1}", "speedup")
    at, beyond = (run("spec-batch", f"{query} batch={b} gamma=4").values for b in (knee, knee + 1))
    assert at["verify_ms"] == at["target_step_ms"]
    assert beyond["verify_ms"] > beyond["target_step_ms"]


@pytest.mark.parametrize("query", ["", "batch=128", "draft=head batch=166", "draft=head batch=167", "gamma=1 batch=220", "gamma=0"])
def test_a_round_must_yield_what_it_costs(query):
    """S = tokens per round ÷ the tokens that a round must yield; while checking is free the latter is 1 + γ·c."""
    values = run("spec-batch", query).values
    gamma = int(dict(pair.split("=") for pair in query.split()).get("gamma", 4))
    tokens = sum(0.8**i for i in range(gamma + 1))
    assert tokens / values["breakeven_tokens_per_round"] == pytest.approx(values["speedup"], rel=1e-9)
    if values["verify_ms"] == values["target_step_ms"]:
        assert values["breakeven_tokens_per_round"] == pytest.approx(1 + gamma * values["c"], rel=1e-9)


def test_long_context_pays_at_a_large_batch():
    values = run("spec-batch", "context_tokens=32768 n_gpus=16 batch=64").values
    assert values["verify_ms"] == values["target_step_ms"]
    assert values["speedup"] > 1
    assert values["verify_knee_batch"] is None


def test_a_draft_as_large_as_the_target_never_pays():
    assert value("spec-batch", "target=llama-3-8b draft=llama-3-8b alpha=0.5", "breakeven_batch") == 0


# --- charts and verdicts


def test_charts_change_with_the_inputs():
    words, ranks, rounds = load("spec-montecarlo").charts(run("spec-montecarlo", "bug=accept-p gamma=7"))
    assert isinstance(words, BarChart)
    assert isinstance(ranks, LineChart)
    assert isinstance(rounds, Timeline)
    assert max(span.end for span in rounds.spans) in (7, 8)
    curve = load("spec-batch").charts(run("spec-batch"))[0]
    assert [s.dashed for s in curve.series] == [False, True]
    assert curve.series[0].points[-1][0] == 278


@pytest.mark.parametrize(
    ("id", "query", "said"),
    [
        ("spec-speedup", "alpha=0.3 c=0.5", "会变慢"),
        ("spec-speedup", "alpha=0.5 c=0.1 gamma=32", "会变慢"),
        ("spec-speedup", "gamma=8", "已经最快"),
        ("spec-speedup", "alpha=1 c=0", "只搜到 32"),
        ("spec-speedup", "gamma=0", "没有投机"),
        ("alpha-from-measurement", "mode=tokens", "还要看草稿的时间"),
        ("alpha-from-measurement", "measured_ms=15", "比不开还慢"),
        ("spec-montecarlo", "", "分布没变"),
        ("spec-montecarlo", "bug=resample-p rounds=1000 vocab=64", "这一次看不出来"),
        ("spec-batch", "", "125"),
        ("spec-batch", "batch=128", "要 3.409 个才够本"),
        ("spec-batch", "gamma=0", "没有投机"),
        ("spec-batch", "context_tokens=32768 n_gpus=16", "先到头"),
        ("spec-batch", "target=llama-3-8b draft=llama-3-8b alpha=0.5", "别开"),
    ],
)
def test_verdict(id, query, said):
    assert said in run(id, query).verdict
