"""Chapter 15: infer-two-phases, critical-batch, kv-cache-saving, train-vs-serve.  Expected values: the chapter's specification unless a row names its source."""

from __future__ import annotations

import pytest
from asking import first_error as refusal
from asking import run, value
from hypothesis import given, settings
from hypothesis import strategies as st

from calculators.catalog import model, models
from calculators.core.charts import BarChart, LineChart
from calculators.core.index import load
from calculators.formulas.inference import (
    Engine,
    decode_seconds,
    intensity_limit,
    kv_request,
    largest_true,
    prompt_attention,
    shape_of,
    step_parts,
    token_attention,
    weights_read,
    with_attention,
)

EXACT = 1e-12
SETTINGS = settings(max_examples=25, deadline=None, derandomize=True, database=None)
BARE = "prompt_tokens=1 output_tokens=1 mfu_prefill=1 mbu_decode=1"
KIPPLY = f"{BARE} peak_tflops=312 bandwidth_gb_s=1500 memory_gb=40"
PALM = f"{BARE} n_mat_params=540e9 weight_bytes=1 n_gpus=64 memory_gb=32 bandwidth_gb_s=1200 peak_tflops=275 batch=64 n_layers=118 n_heads=48 n_kv_heads=1 head_dim=256"


# Rows: calculator, inputs that differ from the defaults, output, expected, relative tolerance.
DEFAULTS = [
    ("infer-two-phases", "", "weights_gb", 16.0605, 1e-5),
    ("infer-two-phases", "", "kv_gb", 0.33554, 2e-5),
    ("infer-two-phases", "", "prefill_tflop", 31.8397, 1e-5),
    ("infer-two-phases", "", "ttft_ms", 64.3876, 1e-5),
    ("infer-two-phases", "", "tpot_ms", 5.70085, 1e-5),
    ("infer-two-phases", "", "step_memory_ms", 5.70085, 1e-5),
    ("infer-two-phases", "", "step_compute_ms", 0.032525, 2e-5),
    ("infer-two-phases", "", "step_gb", 15.2783, 1e-5),
    ("infer-two-phases", "", "decode_tok_s", 175.412, 1e-5),
    ("infer-two-phases", "", "e2e_s", 2.98392, 1e-5),
    ("infer-two-phases", "", "decode_share_pct", 97.8422, 1e-5),
    ("infer-two-phases", "", "ai_prefill", 2083.98, 1e-5),
    ("infer-two-phases", "", "ai_decode", 1.05271, 1e-5),
    ("infer-two-phases", "", "decode_mfu_pct", 0.285264, 1e-5),
    ("infer-two-phases", "", "decode_vs_prefill", 181.329, 1e-5),
    ("infer-two-phases", "", "effective_bandwidth_gb_s", None, EXACT),
    ("infer-two-phases", "", "mbu_measured_pct", None, EXACT),
    ("infer-two-phases", "measured_size_gib=14.96 measured_tok_s=29.17", "effective_bandwidth_gb_s", 468.56, 1e-5),
    ("infer-two-phases", "measured_size_gib=14.96 measured_tok_s=29.17", "mbu_measured_pct", 13.99, 5e-4),
    ("critical-batch", "", "critical_batch", 295.224, 1e-5),
    ("critical-batch", "", "ridge_flop_per_byte", 295.224, 1e-5),
    ("critical-batch", "", "ai_limit", 59.9160, 1e-5),
    ("critical-batch", "", "ai_at_batch", 1.05271, 1e-5),
    ("critical-batch", "", "reachable", False, EXACT),
    ("critical-batch", "", "weight_read_ms", 4.48055, 1e-5),
    ("kv-cache-saving", "", "with_cache_tflop", 40.1268, 1e-5),
    ("kv-cache-saving", "", "without_cache_tflop", 18417.6, 1e-5),
    ("kv-cache-saving", "", "saving_ratio", 458.985, 1e-5),
    ("train-vs-serve", "", "train_flop", 7.227e23, EXACT),
    ("train-vs-serve", "", "breakeven_tokens", 4.5e13, EXACT),
    ("train-vs-serve", "", "breakeven_days", 45.0, EXACT),
    ("train-vs-serve", "", "breakeven_tokens_gpu", 1.125e13, EXACT),
    ("train-vs-serve", "", "breakeven_days_gpu", 11.25, EXACT),
]

# "Figures to quote", the sections and the text beside the calculators: as printed, to half a last digit.
QUOTED = [
    ("infer-two-phases", "gpu=a100-80gb", "ttft_ms", "204.1"),
    ("infer-two-phases", "gpu=a100-80gb", "tpot_ms", "9.366"),
    ("infer-two-phases", "gpu=a100-80gb", "e2e_s", "5.001"),
    ("infer-two-phases", "batch=32", "tpot_ms", "8.81"),
    ("infer-two-phases", "batch=128", "tpot_ms", "18.42"),
    ("infer-two-phases", "batch=32", "decode_tok_s", "3634"),
    ("infer-two-phases", "batch=128", "decode_tok_s", "6948"),
    ("infer-two-phases", "", "attention_share_pct", "3.5"),
    ("critical-batch", "weight_bytes=0.5", "critical_batch", "73.8"),
    *[
        ("critical-batch", f"gpu={gpu}", "critical_batch", b)
        for gpu, b in (("a100-80gb", "153"), ("h200", "206"), ("b200", "292"), ("h20", "37"), ("rtx-4090", "164"), ("mi300x", "247"))
    ],
    ("critical-batch", "gpu=b200 bandwidth_gb_s=8000", "critical_batch", "281"),
    ("critical-batch", "math_precision=fp8 weight_bytes=1", "critical_batch", "295"),
    *[("critical-batch", f"context_tokens={c}", "ai_limit", ai) for c, ai in ((512, "228"), (2048, "59.9"), (8192, "18.0"), (32768, "7.5"))],
    ("critical-batch", "model=llama-2-7b", "ai_limit", "13"),
    ("critical-batch", "gpu=a100-80gb", "weight_read_ms", "7.4"),
    ("critical-batch", "", "weight_read_ms", "4.5"),
    ("kv-cache-saving", "prompt_tokens=1024 output_tokens=1024", "saving_ratio", "762.2"),
    ("kv-cache-saving", "prompt_tokens=128 output_tokens=1024", "saving_ratio", "565.3"),
]

# "Reference points": kipply 2022 and Pope et al. 2022, with explicit sizes; llama.cpp tools/quantize/README.md.
REFERENCE = [
    ("critical-batch", "peak_tflops=312 bandwidth_gb_s=1500", "critical_batch", 208, EXACT),
    ("infer-two-phases", f"{KIPPLY} n_mat_params=51539607552 n_layers=64 n_heads=64 n_kv_heads=64 head_dim=128 n_gpus=4", "step_memory_ms", 17.2, 2e-2),
    ("infer-two-phases", f"{KIPPLY} n_mat_params=260e9 n_gpus=16", "step_memory_ms", 21.7, 2e-2),
    ("infer-two-phases", f"{KIPPLY} n_mat_params=12582912000 n_layers=40 n_heads=40 n_kv_heads=40 head_dim=128", "step_memory_ms", 16.8, 1e-2),
    ("infer-two-phases", PALM, "step_memory_ms", 7.03, 1e-3),
    ("infer-two-phases", "measured_tok_s=29.17 measured_size_gib=14.96", "effective_bandwidth_gb_s", 468.6, 5e-3),
]


@pytest.mark.parametrize(("id", "query", "output", "expected", "tolerance"), DEFAULTS + REFERENCE)
def test_value(id, query, output, expected, tolerance):
    actual = value(id, query, output)
    if expected is None or isinstance(expected, bool):
        assert actual is expected
    else:
        assert actual == pytest.approx(expected, rel=tolerance)


@pytest.mark.parametrize(("id", "query", "output", "printed"), QUOTED)
def test_quoted_figure(id, query, output, printed):
    half = 0.5 * 10 ** -len(printed.partition(".")[2])
    assert value(id, query, output) == pytest.approx(float(printed), abs=half * 1.0001)


def test_palm_decode_mfu():
    """Pope et al.: 29 ms a token at batch 64; 13.5 % of the peak, 24 % of the bandwidth bound."""
    run_ = run("infer-two-phases", PALM)
    assert run_.values["step_compute_ms"] / 29 == pytest.approx(0.135, rel=5e-2)
    assert run_.values["step_memory_ms"] / 29 == pytest.approx(0.24, rel=2e-2)


def test_measured_batch_1_lies_in_the_band():
    """kipply: FasterTransformer took 22.0 ms for the 16.8 ms bound."""
    bound = value("infer-two-phases", REFERENCE[3][1], "step_memory_ms")
    assert 0.6 <= bound / 22.0 <= 0.9


def test_batch_buys_throughput_for_latency():
    one, more, many = (run("infer-two-phases", f"batch={b}").values for b in (1, 32, 128))
    assert more["decode_tok_s"] / one["decode_tok_s"] == pytest.approx(20.7, abs=0.05)
    assert more["tpot_ms"] / one["tpot_ms"] == pytest.approx(1.54, abs=0.006)
    assert many["decode_tok_s"] / one["decode_tok_s"] == pytest.approx(39.6, abs=0.05)


def test_memory_ends_the_curve():
    error = refusal("infer-two-phases", "batch=256")
    assert error.field == "batch"
    assert error.message.startswith("装不下：权重 16.1 GB + KV 85.9 GB > 85.5 GB")
    largest = value("infer-two-phases", "", "largest_batch")
    run("infer-two-phases", f"batch={largest}")
    refusal("infer-two-phases", f"batch={largest + 1}")
    assert refusal("infer-two-phases", "model=llama-3-70b").field == "n_gpus"


def test_counting_the_input_table_costs_7_percent():
    """ "Reproduction note" of the specification."""
    whole = value("infer-two-phases", "n_mat_params=8030261248", "tpot_ms")
    assert whole / value("infer-two-phases", "", "tpot_ms") - 1 == pytest.approx(0.07, abs=0.005)


def test_attention_overtakes_the_weights_at_57k():
    shape = shape_of(model("llama-3-8b"))
    crossing = shape.matmul_params / (32 * 4096)
    assert crossing == pytest.approx(57_000, rel=1e-2)
    assert prompt_attention(shape, crossing) == pytest.approx(2 * shape.matmul_params * crossing, rel=1e-9)
    assert token_attention(shape, 32768) / (2 * shape.matmul_params) == pytest.approx(1.14, abs=0.005)


def test_decode_overtakes_prefill_after_a_dozen_tokens():
    assert value("infer-two-phases", "output_tokens=12", "decode_share_pct") < 50
    assert value("infer-two-phases", "output_tokens=13", "decode_share_pct") > 50


# --- architectures


def by_hand(id, context):
    """L_full, L_win, w, a (prefill), a (decode) of a preset, from its dimensions."""
    m = model(id)
    window = m.sliding_window or {"window": 0, "sliding_layers": 0, "full_layers": m.layers}
    if m.mla is None:
        widths = (m.heads * m.head_dim,) * 2
    else:
        k = m.mla
        widths = (m.heads * (k.qk_nope_head_dim + k.qk_rope_head_dim + k.v_head_dim) / 2, m.heads * (2 * k.kv_lora_rank + k.qk_rope_head_dim) / 2)
    full, sliding, w = window["full_layers"], window["sliding_layers"], window["window"]
    held = full * context + sliding * min(context, w)
    pairs = full * context**2 / 2 + sliding * (context**2 / 2 if context <= w else w * context - w**2 / 2)
    return widths, held, pairs


@pytest.mark.parametrize("context", [64, 2048, 40_000])
@pytest.mark.parametrize("id", ["llama-3-8b", "mistral-7b-v0.1", "gemma-3-27b-text", "gpt-oss-120b", "deepseek-v3", "mixtral-8x7b", "gpt2"])
def test_shared_quantities(id, context):
    (prefill_width, decode_width), held, pairs = by_hand(id, context)
    shape = shape_of(model(id))
    assert token_attention(shape, context) == pytest.approx(4 * decode_width * held, rel=EXACT)
    assert prompt_attention(shape, context) == pytest.approx(4 * prefill_width * pairs, rel=EXACT)
    assert kv_request(shape, 2, context) == pytest.approx(model(id).kv_elems_per_token_layer * 2 * held, rel=EXACT)
    assert shape.matmul_params == model(id).active_params_no_input_embedding


def test_experts_read():
    m = model("mixtral-8x7b")
    shape = shape_of(m)
    assert weights_read(shape, 1) == m.active_params_no_input_embedding
    assert weights_read(shape, 10_000) == pytest.approx(m.active_params_no_input_embedding + m.moe.routed_params * (1 - 2 / 8), rel=EXACT)


def test_mla_at_decode():
    values = run("infer-two-phases", "model=deepseek-v3 n_gpus=16 weight_bytes=1").values
    assert values["step_compute_ms"] == pytest.approx(1e3 * (2 * 36625603584 + 4 * 128 * (2 * 512 + 64) / 2 * 61 * 2048) / (16 * 989e12 * 0.5), rel=1e-9)


def test_typed_shape_is_plain_attention():
    windowed = run("infer-two-phases", "model=gemma-3-4b-text prompt_tokens=20000 n_layers=34").values
    assert windowed["kv_gb"] == pytest.approx(2 * 4 * 256 * 2 * 34 * 20512 / 1e9, rel=EXACT)
    assert windowed["kv_gb"] > value("infer-two-phases", "model=gemma-3-4b-text prompt_tokens=20000", "kv_gb")
    for name in ("n_layers", "n_heads", "n_kv_heads", "head_dim", "n_mat_params", "n_total_params", "peak_tflops", "bandwidth_gb_s", "memory_gb"):
        assert value("infer-two-phases", f"{name}=0", "e2e_s") == value("infer-two-phases", "", "e2e_s")
    same = "n_mat_params=7504924672 n_total_params=8030261248 n_layers=32 n_heads=32 n_kv_heads=8 head_dim=128"
    assert value("infer-two-phases", same, "e2e_s") == value("infer-two-phases", "", "e2e_s")


@pytest.mark.parametrize(
    ("id", "query", "field"),
    [
        ("infer-two-phases", "n_mat_params=9e9 n_total_params=8e9", "n_mat_params"),
        ("infer-two-phases", "n_kv_heads=64", "n_kv_heads"),
        ("infer-two-phases", "model=deepseek-v3 n_layers=10", "head_dim"),
        ("infer-two-phases", "prompt_tokens=0", "prompt_tokens"),
        ("infer-two-phases", "output_tokens=0", "output_tokens"),
        ("infer-two-phases", "batch=0", "batch"),
        ("infer-two-phases", "mfu_prefill=1.1", "mfu_prefill"),
        ("infer-two-phases", "mbu_decode=0", "mbu_decode"),
        ("critical-batch", "gpu=a100-80gb math_precision=fp8", "math_precision"),
        ("kv-cache-saving", "prompt_tokens=0", "prompt_tokens"),
        ("train-vs-serve", "util_serve=0", "util_serve"),
    ],
)
def test_refuses(id, query, field):
    assert refusal(id, query).field == field


def test_a100_has_no_fp8():
    assert "没有 FP8 张量核" in refusal("critical-batch", "gpu=a100-80gb math_precision=fp8").message
    assert value("critical-batch", "gpu=t4", "ridge_flop_per_byte") == pytest.approx(65e12 / 320e9)


# --- invariants


@SETTINGS
@given(st.sampled_from(sorted(models())), st.integers(1, 20_000), st.integers(1, 400), st.integers(1, 2048), st.sampled_from([0.05, 0.5, 1.0]))
def test_time_of_all_steps_is_their_sum(id, prompt, steps, batch, share):
    """The closed sum against one step after the other, across windows and across the change from reading to computing."""
    shape = shape_of(models()[id])
    engine = Engine(989e12 * share, 3.35e12 / share, 2, 2)
    one_by_one = sum(max(step_parts(shape, engine, batch, c)) for c in range(prompt + 1, prompt + steps + 1))
    assert decode_seconds(shape, engine, batch, prompt + 1, prompt + steps) == pytest.approx(one_by_one, rel=1e-9)


def test_sum_across_the_change_of_bottleneck():
    """Plain attention on a card whose FLOP per byte lies between those of the weights and of the KV cache."""
    shape = with_attention(shape_of(model("llama-3-8b")), 32, 32, 8, 128)
    engine = Engine(20e12, 1e12, 2, 2)
    parts = [step_parts(shape, engine, 32, c) for c in (1, 100_000)]
    assert parts[0][0] < parts[0][1]
    assert parts[1][0] > parts[1][1]
    expected = sum(max(step_parts(shape, engine, 32, c)) for c in range(1, 100_001))
    assert decode_seconds(shape, engine, 32, 1, 100_000) == pytest.approx(expected, rel=1e-9)


@SETTINGS
@given(st.integers(1, 4095), st.sampled_from([128, 2048, 32768]))
def test_intensity_grows_with_the_batch_and_stays_below_its_limit(batch, context):
    one, more = (value("critical-batch", f"batch={b} context_tokens={context}", "ai_at_batch") for b in (batch, batch + 1))
    assert one < more < intensity_limit(shape_of(model("llama-3-8b")), 2, context)


@pytest.mark.parametrize(("query", "needed"), [("gpu=h20 context_tokens=512", True), ("gpu=h20", True), ("gpu=h20 context_tokens=8192", False)])
def test_batch_to_ridge(query, needed):
    values = run("critical-batch", query).values
    assert values["reachable"] is needed
    batch = values["batch_to_ridge"]
    if not needed:
        assert batch is None
        return
    assert value("critical-batch", f"{query} batch={batch}", "ai_at_batch") >= values["ridge_flop_per_byte"]
    assert value("critical-batch", f"{query} batch={batch - 1}", "ai_at_batch") < values["ridge_flop_per_byte"]
    assert batch > values["critical_batch"]


def test_largest_true():
    assert [largest_true(lambda n, top=top: n <= top, 1, 10) for top in (0, 1, 7, 10, 99)] == [0, 1, 7, 10, 10]


@SETTINGS
@given(st.floats(1e6, 1e13), st.floats(0.001, 1))
def test_breakeven_does_not_depend_on_the_parameters(params, util):
    values = run("train-vs-serve", f"n_params={params!r} util_train={util!r} util_serve={util!r}").values
    assert values["breakeven_tokens"] == pytest.approx(3 * 15e12, rel=1e-9)
    assert values["breakeven_tokens_gpu"] == pytest.approx(values["breakeven_tokens"], rel=1e-9)


def test_one_token_needs_no_cache():
    assert value("kv-cache-saving", "output_tokens=1", "saving_ratio") == 1


# --- charts and verdicts


def test_charts_change_with_the_inputs():
    calculator = load("infer-two-phases")
    bars, curve = calculator.charts(run("infer-two-phases"))
    assert isinstance(bars, BarChart)
    assert all(sum(part.value for part in bar.parts) == pytest.approx(100) for bar in bars.bars)
    assert next(bar.name for bar in bars.bars if bar.parts[1].value > 50) == "16 token"
    assert isinstance(curve, LineChart)
    assert curve.rules[0].x == value("infer-two-phases", "", "largest_batch")
    crossing = load("critical-batch").charts(run("critical-batch"))[0]
    level = crossing.rules[0].y
    assert [series.name for series in crossing.series if series.points[-1][1] > level] == ["只算权重"]


@pytest.mark.parametrize(
    ("id", "query", "said"),
    [
        ("infer-two-phases", "", "先加 batch"),
        ("infer-two-phases", "gpu=rtx-4090 batch=27", "batch 已到显存上限"),
        ("infer-two-phases", "batch=64 prompt_tokens=4096", "先压 KV"),
        ("infer-two-phases", "gpu=h20 batch=200 prompt_tokens=64 output_tokens=64", "卡在算力"),
        ("infer-two-phases", "output_tokens=1", "全是 prefill"),
        ("infer-two-phases", "measured_size_gib=14.96 measured_tok_s=29.17", "实测折成 468.56 GB/s，MBU 13.99%"),
        ("critical-batch", "", "够不着拐点"),
        ("critical-batch", "gpu=h20 context_tokens=512 batch=4096", "已经过了"),
        ("critical-batch", "gpu=h20 context_tokens=512", "还在带宽那边"),
        ("critical-batch", "model=deepseek-v3 gpu=h20", "MoE 要更大"),
        ("train-vs-serve", "util_serve=0.4", "利用率一样"),
        ("kv-cache-saving", "output_tokens=1", "留不留"),
    ],
)
def test_verdict(id, query, said):
    assert said in run(id, query).verdict
