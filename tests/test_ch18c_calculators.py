"""Chapter 18c: sparse-storage, sparse-speedup, prune-compare, structured-prune.  Expected values: the chapter's specification."""

from __future__ import annotations

import sys

import pytest
from asking import refusal, run, value
from hypothesis import given, settings
from hypothesis import strategies as st

from calculators.catalog import models
from calculators.core.index import load
from calculators.formulas.pruned import dims_of, pruned_params

EXACT = 1e-12


def experiment():
    """The module of prune-compare: the package exports the calculator under that name."""
    load("prune-compare")
    return sys.modules["calculators.inference.prune_compare"]


# Rows: calculator, inputs that differ from the defaults, output, expected, relative tolerance.
DEFAULTS = [
    ("sparse-storage", "", "bits_per_element", 9.0, EXACT),
    ("sparse-storage", "", "ratio", 0.5625, EXACT),
    ("sparse-storage", "", "model_gb", 9.9534, 1e-5),
    ("sparse-storage", "", "dense_model_gb", 16.0605, 1e-5),
    ("sparse-storage", "", "breakeven_bitmask_pct", 6.25, EXACT),
    ("sparse-storage", "", "breakeven_csr16_pct", 50.0, EXACT),
    ("sparse-speedup", "", "speedup", 1.6659, 1e-4),
    ("sparse-speedup", "", "prefill_speedup", 1.3636, 1e-4),
    ("sparse-speedup", "", "decode_speedup", 1.6659, 1e-4),
    ("sparse-speedup", "", "w4a16_decode_speedup", 3.1066, 1e-4),
    ("sparse-speedup", "", "dense_read_gb", 15.278, 1e-4),
    ("sparse-speedup", "", "sparse_read_gb", 9.171, 1e-4),
    ("structured-prune", "", "params", 4_512_746_496, EXACT),
    ("structured-prune", "", "params_ratio_pct", 56.197, 1e-4),
    ("structured-prune", "", "bf16_gb", 9.0255, 1e-4),
    ("structured-prune", "", "kv_bytes_per_token", 131_072, EXACT),
    ("structured-prune", "", "step_ms", 3.1739, 1e-4),
    ("structured-prune", "", "base_step_ms", 5.7009, 1e-4),
    ("structured-prune", "", "decode_speedup", 1.7962, 1e-4),
]
DEPTH, MIDDLE = "new_layers=16 new_hidden=4096 new_ffn=14336", "new_layers=24 new_hidden=4096 new_ffn=14336"
SECTIONS = [
    ("sparse-storage", "format=bitmask", "bits_per_element", 9.0, EXACT),
    ("sparse-storage", "format=csr16", "bits_per_element", 16.0, EXACT),
    ("sparse-storage", "format=bitmask sparsity=0.9", "ratio", 0.1625, 1e-9),
    ("sparse-storage", "format=csr16 sparsity=0.9", "ratio", 0.20, 1e-9),
    ("sparse-storage", "bits=8", "ratio", 0.625, EXACT),
    ("sparse-storage", "bits=4", "ratio", 0.75, EXACT),
    ("sparse-storage", "bits=4", "model_gb", 4.72, 1e-3),
    ("sparse-speedup", "kernel_speedup=2 phase=prefill", "speedup", 1.667, 1e-3),
    ("sparse-speedup", "batch=32", "decode_speedup", 1.349, 1e-3),
    ("sparse-speedup", "batch=128", "decode_speedup", 1.141, 1e-3),
    ("sparse-speedup", "bits=8", "decode_speedup", 1.461, 1e-3),
    ("sparse-speedup", "bits=4", "decode_speedup", 1.222, 1e-3),
    ("sparse-speedup", "context_tokens=1024", "w4a16_decode_speedup", 3.17, 2e-3),
    ("sparse-speedup", "context_tokens=1024", "decode_speedup", 1.68, 3e-3),
    ("structured-prune", DEPTH, "params", 4_540_469_248, EXACT),
    ("structured-prune", DEPTH, "params_ratio_pct", 56.5, 1e-3),
    ("structured-prune", DEPTH, "kv_bytes_per_token", 65_536, EXACT),
    ("structured-prune", DEPTH, "step_ms", 3.046, 1e-3),
    ("structured-prune", DEPTH, "decode_speedup", 1.871, 1e-3),
    ("structured-prune", MIDDLE, "params", 6_285_365_248, EXACT),
    ("structured-prune", MIDDLE, "params_ratio_pct", 78.3, 1e-3),
    ("structured-prune", MIDDLE, "bf16_gb", 12.57, 1e-3),
    ("structured-prune", MIDDLE, "kv_bytes_per_token", 98_304, EXACT),
    ("structured-prune", MIDDLE, "step_ms", 4.374, 1e-3),
    ("structured-prune", MIDDLE, "decode_speedup", 1.303, 1e-3),
    ("structured-prune", "batch=32", "base_step_ms", 8.81, 1e-3),
    ("structured-prune", "batch=32", "step_ms", 6.28, 1e-3),
    ("structured-prune", "batch=32", "decode_speedup", 1.40, 3e-3),
    ("structured-prune", f"batch=32 {DEPTH}", "step_ms", 4.60, 1e-3),
    ("structured-prune", f"batch=32 {DEPTH}", "decode_speedup", 1.91, 3e-3),
]
EXPERIMENT = [
    *[
        ("", f"err_{name}_pct", expected)
        for name, expected in (
            ("magnitude", 23.88), ("wanda", 6.72), ("sparsegpt", 5.64), ("structured", 12.69), ("magnitude_24", 32.52), ("wanda_24", 12.15), ("sparsegpt_24", 9.82),
        )
    ],
    *[(f"sparsity={s}", "err_wanda_pct", expected) for s, expected in ((0.3, 2.8), (0.7, 13.7), (0.9, 31.2))],
    *[("seed=1", f"err_{name}_pct", expected) for name, expected in (("sparsegpt", 8.71), ("wanda", 11.03), ("magnitude", 27.4))],
    *[("seed=2", f"err_{name}_pct", expected) for name, expected in (("sparsegpt", 3.23), ("wanda", 3.42), ("magnitude", 26.2))],
]  # fmt: skip


@pytest.mark.parametrize(("id", "query", "output", "expected", "tolerance"), DEFAULTS + SECTIONS)
def test_value(id, query, output, expected, tolerance):
    assert value(id, query, output) == pytest.approx(expected, rel=tolerance)


@pytest.mark.parametrize(("query", "output", "expected"), EXPERIMENT)
def test_experiment_within_its_band(query, output, expected):
    assert value("prune-compare", query, output) == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize(("bits", "bitmask", "csr"), [(16, 6.25, 50.0), (8, 12.5, 200 / 3), (4, 25.0, 80.0)])
def test_formats_break_even_where_they_say(bits, bitmask, csr):
    for fmt, pct in (("bitmask", bitmask), ("csr16", csr)):
        assert value("sparse-storage", f"bits={bits}", f"breakeven_{fmt}_pct") == pytest.approx(pct, rel=1e-9)
        assert value("sparse-storage", f"bits={bits} format={fmt} sparsity={pct / 100!r}", "ratio") == pytest.approx(1, rel=1e-9)


def test_int4_with_two_four_against_plain_int4():
    """Scales left out 4.72 GB; 0.125 bit an element more is 4.83 GB; plain INT4-g128 is 5.70 GB (chapter 18)."""
    linear, tables = 6_979_588_096, 1_050_673_152

    assert (linear * 3.125 / 8 + tables * 2) / 1e9 == pytest.approx(4.83, rel=1e-3)
    assert (linear * 4.125 / 8 + tables * 2) / 1e9 == pytest.approx(5.70, rel=1e-3)


def test_without_dense_tables_the_ratio_is_the_ratio():
    result = run("sparse-storage", "linear_only=false").values

    assert result["model_gb"] / result["dense_model_gb"] == pytest.approx(result["ratio"], rel=1e-12)


@settings(max_examples=25, deadline=None)
@given(f=st.floats(0, 0.99), k=st.floats(1, 2), batch=st.integers(1, 2048), context=st.integers(1, 500_000))
def test_speedup_laws(f, k, batch, context):
    now = run("sparse-speedup", f"gemm_share={f!r} kernel_speedup={k!r} batch={batch} context_tokens={context}").values
    fuller = run("sparse-speedup", f"batch={batch + 1} context_tokens={context}").values
    longer = run("sparse-speedup", f"batch={batch} context_tokens={context + 1}").values

    assert now["prefill_speedup"] <= min(k, 1 / (1 - f)) * (1 + 1e-12)
    assert 1 < fuller["decode_speedup"] < now["decode_speedup"] < 1.6861
    assert longer["decode_speedup"] < now["decode_speedup"]


def test_decode_speedup_without_kv_is_the_ratio_of_weights():
    assert value("sparse-speedup", "context_tokens=1", "decode_speedup") == pytest.approx(1.686, rel=5e-4)


@pytest.mark.parametrize("seed", range(4))
def test_experiment_order(seed):
    errors = run("prune-compare", f"seed={seed}").values

    assert errors["err_sparsegpt_pct"] < errors["err_wanda_pct"] < errors["err_magnitude_pct"]
    assert errors["err_sparsegpt_24_pct"] < errors["err_wanda_24_pct"] < errors["err_magnitude_24_pct"]


@pytest.mark.parametrize("seed", range(4))
def test_every_mask_is_exactly_half_zeros(seed):
    module = experiment()
    pruned = module.prune_all(module.layer(seed, 128, 128, 256), 0.5)

    for name, matrix in pruned.items():
        assert int((matrix == 0).sum()) == 128 * 64, name
        if name.endswith("_24"):
            assert ((matrix.reshape(128, 32, 4) == 0).sum(axis=2) == 2).all(), name


def test_the_picture_shows_what_sparsegpt_makes_up_for():
    """Last weights of the first neuron: Wanda leaves the kept ones as they are, SparseGPT changes them."""
    first = run("prune-compare").result.trace.first
    columns = load("prune-compare").charts(run("prune-compare"))[1].columns
    kept = {name: [(now, was) for now, was in zip(first[name], first["原来"], strict=True) if now] for name in ("Wanda", "SparseGPT")}

    assert columns == tuple(str(j) for j in range(120, 128))
    assert all(now == was for now, was in kept["Wanda"])
    assert max(abs(now - was) for now, was in kept["SparseGPT"]) > 0.1


def test_two_four_int4_with_its_scales():
    """Specification: 4.83 GB."""
    from calculators.site.targets import resolve

    assert resolve("ref:two-four-int4#gb").value == pytest.approx(4.83, rel=1e-3)


def test_error_from_the_gram_matrix_is_the_error_of_the_outputs():
    import numpy as np

    module = experiment()
    x = module.layer(0, 128, 128, 256)
    rng = np.random.default_rng(0)
    W, s = rng.standard_normal((128, 128)), np.exp(rng.standard_normal(128))
    X = (rng.standard_normal((256, 16)) @ rng.standard_normal((16, 128)) * 0.25 + rng.standard_normal((256, 128))) * s
    pruned = module.wanda(x, 0.5)

    direct = 100 * np.linalg.norm(X @ (W - pruned).T) / np.linalg.norm(X @ W.T)
    assert x.error_pct(pruned) == pytest.approx(direct, rel=1e-9)


@pytest.mark.parametrize("model", [m for m in models().values() if m.family in ("llama", "qwen2")], ids=lambda m: m.id)
def test_unpruned_dimensions_give_the_catalogs_total(model):
    assert pruned_params(model, dims_of(model)) == model.total_params
    result = run(
        "structured-prune",
        f"model={model.id} new_layers={model.layers} new_hidden={model.hidden} new_ffn={model.ffn} new_heads={model.heads} new_kv_heads={model.kv_heads}",
    )
    assert result.values["params"] == model.total_params
    assert result.values["kv_bytes_per_token"] == model.kv_bytes_per_token
    assert result.values["decode_speedup"] == pytest.approx(1, rel=1e-12)
    assert not result.notes


@pytest.mark.parametrize(("model", "total"), [("llama-3.1-8b", 8_030_261_248), ("qwen2.5-7b", 7_615_616_512)])
def test_known_totals(model, total):
    assert pruned_params(models()[model], dims_of(models()[model])) == total


REFUSALS = [
    ("sparse-storage", "sparsity=0.6", "sparsity", "2:4 的稀疏度固定为 50%"),
    ("sparse-storage", "format=bitmask sparsity=1", "sparsity", "小于 1"),
    ("sparse-storage", "format=csr16 sparsity=-0.1", "sparsity", "之间"),
    ("sparse-speedup", "kernel_speedup=2.1", "kernel_speedup", "硬件上限 2×"),
    ("sparse-speedup", "model=mixtral-8x7b", "model", "可选项"),
    ("prune-compare", "n_in=130", "n_in", "4 的倍数"),
    ("structured-prune", "new_hidden=3000", "new_hidden", "128 的倍数"),
    ("structured-prune", "new_ffn=9000", "new_ffn", "128 的倍数"),
    ("structured-prune", "new_kv_heads=5", "new_kv_heads", "倍数"),
    ("structured-prune", "new_layers=0", "new_layers", "1"),
    ("structured-prune", "model=deepseek-v3", "model", "可选项"),
]


@pytest.mark.parametrize(("id", "query", "field", "text"), REFUSALS)
def test_refusals(id, query, field, text):
    error = refusal(id, query).errors[0]

    assert error.field == field
    assert text in error.message


def test_a_larger_dimension_is_a_warning():
    assert any("还大" in note for note in run("structured-prune", "model=llama-3.2-1b").notes)
