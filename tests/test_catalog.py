"""The catalog's facts are consistent with themselves and lie within what such devices and models can be."""

from __future__ import annotations

import re

import pytest

from calculators.catalog import accelerators, chapters, models, routes
from calculators.catalog.references import KINDS, references

every_model = pytest.mark.parametrize("model", models().values(), ids=models().keys())
every_accelerator = pytest.mark.parametrize("gpu", accelerators().values(), ids=accelerators().keys())

PLAIN_FAMILIES = ("llama", "mistral", "phi3")
"""Dense, gated feed-forward, no biases, two norms a layer and one at the end: rebuilt from the dimensions alone."""

BF16 = 2
SPARSE_FP16, SPARSE_FP8 = {624, 1979, 1513, 4500, 5000}, {3958, 3026}
"""Figures of A100, H100, H100 PCIe, B200 and GB200 that hold with 2:4 sparsity only, and are often quoted as dense."""
DATE = re.compile(r"20\d\d-[01]\d-[0-3]\d")


@every_model
def test_breakdown_adds_up(model):
    assert sum(model.breakdown.values()) == model.total_params
    assert all(v > 0 for v in model.breakdown.values())


@every_model
def test_active_parameters_are_a_part_of_all(model):
    assert 0 < model.active_params_no_input_embedding <= model.active_params <= model.total_params
    if model.is_dense:
        assert model.active_params == model.total_params
    else:
        assert model.active_params < model.total_params
        assert model.breakdown["routed_experts"] == model.moe.routed_params


@every_model
def test_embeddings_are_counted_once_when_tied(model):
    table = model.hidden * model.vocab
    assert model.breakdown["input_table"] == table
    assert ("output_head" in model.breakdown) is not model.tied
    if not model.tied:
        assert model.active_params - model.active_params_no_input_embedding == table


@every_model
def test_kv_bytes_follow_from_the_shape(model):
    assert model.kv_bytes_per_token == BF16 * model.kv_elems_per_token_layer * model.layers
    if model.mla is None:
        assert model.kv_elems_per_token_layer == 2 * model.kv_heads * model.head_dim
    else:
        assert model.kv_elems_per_token_layer == model.mla.kv_lora_rank + model.mla.qk_rope_head_dim
    assert model.heads % model.kv_heads == 0


@pytest.mark.parametrize("model", [m for m in models().values() if m.family in PLAIN_FAMILIES], ids=lambda m: m.id)
def test_total_is_rebuilt_from_the_dimensions(model):
    """Vaswani et al. 2017 blocks with gated feed-forward: Wq, Wo, Wk, Wv, three feed-forward matrices, RMSNorm gains."""
    heads, kv_heads = model.heads * model.head_dim, model.kv_heads * model.head_dim
    attention = 2 * model.hidden * heads + 2 * model.hidden * kv_heads
    layer = attention + 3 * model.hidden * model.ffn + 2 * model.hidden
    embeddings = model.hidden * model.vocab * (1 if model.tied else 2)
    assert model.is_dense
    assert model.layers * layer + model.hidden + embeddings == model.total_params


@every_model
def test_experts_are_rebuilt_from_their_shape(model):
    if model.moe is None:
        return
    layers = model.layers - model.moe.dense_layers
    bias = (2 * model.moe.ffn + model.hidden) if model.family == "gpt_oss" else 0
    assert model.moe.routed_params == layers * model.moe.experts * (3 * model.hidden * model.moe.ffn + bias)
    assert 1 <= model.moe.top_k < model.moe.experts


@every_model
def test_models_name_their_source(model):
    assert model.source.strip()
    assert DATE.fullmatch(model.checked)


@every_accelerator
def test_accelerators_lie_within_what_is_built(gpu):
    assert 100 <= gpu.bandwidth_gb_s <= 20_000
    assert 8 <= gpu.memory_gb <= 1000
    assert all(20 <= t <= 20_000 for t in gpu.tflops.values())
    assert 0 < gpu.link_gb_s_per_dir <= gpu.link_gb_s_bidir
    assert gpu.link_gb_s_bidir / gpu.link_gb_s_per_dir == pytest.approx(2, rel=0.01)
    assert gpu.tdp_w is None or 50 <= gpu.tdp_w <= 2000
    assert 2015 <= gpu.year <= 2030


@every_accelerator
def test_narrower_formats_are_not_slower(gpu):
    """INT8 is left out: Blackwell Ultra cut it below BF16."""
    peaks = [gpu.tflops[f] for f in ("bf16", "fp8", "fp4") if f in gpu.tflops]
    assert peaks == sorted(peaks)
    if "bf16" in gpu.tflops and "fp16" in gpu.tflops:
        assert gpu.tflops["bf16"] == gpu.tflops["fp16"]


@every_accelerator
def test_reported_memory_is_near_the_label(gpu):
    """The label counts 1e9 bytes, the driver 2**30: what it reports is at most the label read as GiB."""
    if gpu.memory_gib_reported is not None:
        assert 0.9 * gpu.memory_gb <= gpu.memory_gib_reported * 2**30 / 1e9 <= 1.08 * gpu.memory_gb


@every_accelerator
def test_sparse_peaks_never_stand_as_dense(gpu):
    assert gpu.tflops.get("bf16") not in SPARSE_FP16
    assert gpu.tflops.get("fp16") not in SPARSE_FP16
    assert gpu.tflops.get("fp8") not in SPARSE_FP8


@pytest.mark.parametrize(
    ("id", "bf16", "fp8"), [("a100-80gb", 312, None), ("h100-sxm", 989, 1979), ("h100-pcie", 756, 1513), ("h200", 989, 1979), ("b200", 2250, 4500)]
)
def test_dense_peaks_of_the_usual_cards(id, bf16, fp8):
    """NVIDIA data sheets, halved where they print the sparse figure."""
    gpu = accelerators()[id]
    assert (gpu.dense_tflops, gpu.tflops.get("fp8")) == (bf16, fp8)


@every_accelerator
def test_accelerators_name_their_source(gpu):
    assert gpu.source.strip()
    assert DATE.fullmatch(gpu.checked)
    for mark in gpu.unverified:
        family = mark.split(".")[0]
        assert family in ("all", "link", "tflops") or hasattr(gpu, mark), mark


def test_chapters_are_complete():
    table = chapters()
    assert list(table) == [*(f"{i:02}" for i in range(19)), "18b", "18c", *(f"{i:02}" for i in range(19, 25)), "A"]
    assert len({c.slug for c in table.values()}) == 28
    for chapter in table.values():
        assert re.fullmatch(r"(\d\d[a-z]?|appendix-a)-[a-z0-9-]+", chapter.slug)
        assert chapter.slug.startswith("appendix-a-" if chapter.id == "A" else f"{chapter.id}-")
        assert chapter.title
        assert chapter.part


def test_minutes_add_up():
    """The authoritative table of reading minutes: 27 chapters, 773 minutes."""
    minutes = [c.minutes for c in chapters().values() if c.id != "A"]
    assert len(minutes) == 27
    assert sum(minutes) == 773
    assert chapters()["A"].minutes == 0


@pytest.mark.parametrize(("id", "minutes"), [("money", 120), ("serve", 316), ("train", 180), ("interview", 180)])
def test_routes_keep_their_promise(id, minutes):
    route = routes()[id]
    total = sum(chapters()[c].minutes for c in route.chapters)
    assert total == minutes
    assert abs(total - route.stated_min) <= 15


def test_routes_name_chapters_in_book_order():
    order = list(chapters())
    for route in routes().values():
        assert [order.index(c) for c in route.chapters] == sorted(order.index(c) for c in route.chapters)
    assert routes()["all"].chapters == tuple(c for c in order if c != "A")
    assert routes()["all"].stated_min is None


@pytest.mark.parametrize("id", references().keys())
def test_references_are_complete(id):
    entry = references()[id]
    assert entry.kind in KINDS
    assert entry.title
    assert entry.values
    if entry.kind == "fact":
        assert entry.source
    for name, figure in entry.values.items():
        assert re.fullmatch(r"[A-Za-z0-9_.\-]+", name)
        if entry.kind == "claim":
            assert figure.differs_from, f"{id}#{name} names nothing that refutes it"
        if entry.kind == "derived":
            assert figure.expr, f"{id}#{name} has no expression"
        else:
            assert figure.value is not None, f"{id}#{name} has no value"
