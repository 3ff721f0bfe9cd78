"""Values from outside, through our own code: counted models, published tables, log lines of public issues.

``data/oracle/METRIC.json`` holds the rows; each names its source.  METRICS says which code answers a metric.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from calculators.catalog import accelerator, model, models
from calculators.catalog.references import references
from calculators.core.errors import Refusal
from calculators.core.index import ids, load
from calculators.core.units import GB, GIB, KIB
from calculators.formulas.decode import kv_split, params_read, step_seconds
from calculators.formulas.kv import (
    block_count,
    bytes_per_token,
    cache_tokens,
    element_bytes,
    kv_elements,
    latent_elements,
    max_concurrency,
    pool_bytes,
)
from calculators.formulas.memory import STATE_RECIPES, state_bytes
from calculators.formulas.recipes import sharded_bytes_per_param

MIB = KIB * KIB
FILES = sorted((Path(__file__).parent / "data" / "oracle").glob("*.json"))
ROWS = [row for path in FILES for row in json.loads(path.read_text(encoding="utf-8"))]
PENDING: dict[str, str] = {}
"""Metric → the chapter whose calculators will answer it.  Empty: every metric has its code."""

Row = dict[str, Any]


def run(id: str, **given: object) -> dict[str, Any]:
    return dict(
        load(id).run({name: json.dumps(v) if isinstance(v, dict) else str(v).lower() if isinstance(v, bool) else str(v) for name, v in given.items()}).values
    )


# --- counts


def _total_params(row: Row) -> object:
    counted = run("model-card", model=row["inputs"]["arch"])["total_params"]
    assert counted == models()[row["model"]].total_params, "the catalog says something else than its own dimensions"
    return counted


def _card(output: str) -> Callable[[Row], object]:
    return lambda row: run("model-card", model=row["model"])[output]


def _kv_bytes_per_token(row: Row) -> object:
    given = row["inputs"]
    if "layers" not in given:
        assert (given["dtype_bytes"], given["tp"]) == (2, 1)
        return run("model-card", model=row["model"])["kv_bytes_per_token"]
    latent = "kv_lora_rank" in given
    each = latent_elements(given["kv_lora_rank"], given["rope_dim"]) if latent else kv_elements(given["kv_heads"], given["head_dim"])
    return bytes_per_token(each, given["layers"], given["kv_bytes"])


def _flops(row: Row) -> object:
    mean = row["inputs"]["which"] == "causal_mean"
    return run("model-card", model=row["model"], context_tokens=row["inputs"]["s"], causal_mean=mean)["flops_fwd_per_token"]


def _decode(row: Row) -> object:
    """Where the weights do not fit, the card says so instead of a speed; the row's value is then the formula's alone."""
    given, shape, gpu = row["inputs"], models()[row["model"]], accelerator(row["inputs"]["gpu"])
    card = {"model": row["model"], "gpu": given["gpu"], "tp": given["gpus_tp"], "batch": given["batch"], "ctx": given["context"]}
    if given["fits_memory"]:
        return run("decode-bound", count_input_embedding=False, **card)["tok_s"]
    with pytest.raises(Refusal, match="放不下"):
        run("decode-bound", **card)
    weights = 2 * params_read(shape, given["batch"], count_input_embedding=False) / given["gpus_tp"]
    cache = given["batch"] * given["context"] * shape.kv_bytes_per_token / kv_split(shape, given["gpus_tp"])
    return given["batch"] / step_seconds(weights, cache, gpu.hbm_bytes_per_s)


# --- training


def _zero(row: Row) -> object:
    return run("zero-memory", model=row["model"], n_dp=row["inputs"]["gpus"])[f"stage{row['inputs']['stage']}_gb"]


def _gpt_layer(row: Row) -> object:
    """One GPT block of the model's width (Korthikanti et al. 2022); only ``h`` and ``a`` of the model count."""
    given, shape = row["inputs"], model(row["model"])
    mode = {"none": "none", "full": "full"}.get(given["checkpoint"], "selective")
    return run("recompute", s=given["s"], b=given["b"], h=shape.hidden, a=shape.heads, L=1, tp=given["tp"], mode=mode)["activations_gb"] * GB


def _hf_layer(row: Row) -> object:
    given = row["inputs"]
    per_token = run("train-memory", model=row["model"], fused_act=False, fused_norm=False)["act_bytes_per_token_layer"]
    return per_token * given["s"] * given["b"]


def _figure_7(row: Row) -> object:
    more = {"seq": {"mode": "none"}, "sel": {"sp": False}, "seqsel": {}, "full": {"mode": "full"}}[row["inputs"]["technique"]]
    preset = {"megatron-22B": "megatron-22b", "gpt3-175B": "gpt-3-175b"}[row["model"]]
    return run("recompute", preset=preset, tp=row["inputs"]["tp"], **more)["pct_of_tp_baseline"]


def _table_5(row: Row) -> object:
    """A measurement: nothing of ours predicts it, the text quotes it."""
    size = {"megatron-22B": "22b", "gpt3-175B": "175b", "turing-530B": "530b", "megatron-1T": "1t"}[row["model"]]
    way = "full" if row["inputs"]["recompute"] == "full" else "selective"
    return references()["korthikanti-2022-full"].values[f"{way}_{size}"].value


def _states(row: Row) -> object:
    given = row["inputs"]
    more = {16: {"master_fp32": True}, 18: {"master_fp32": True, "grad_bytes": 4}}[given["bytes"]]
    return run("train-memory-quick", params_b=given["params"] / 1e9, **more)["total_gb"]


def _megatron_shard(row: Row) -> object:
    """The distributed optimizer: weights 2 and FP32 gradients 4 stay whole, 12 bytes are divided (here by dp = 2)."""
    return state_bytes(row["inputs"]["shard_params"], sharded_bytes_per_param(2, 4, 12, 2)) / MIB


def _deepspeed_stage_2(row: Row) -> object:
    """2P + 18P/N: FP16 weights whole; FP16 and FP32 gradients and 12 bytes of optimizer divided."""
    return state_bytes(row["inputs"]["P"], sharded_bytes_per_param(2, 0, 18, row["inputs"]["gpus"])) / GB


def _deepspeed_cpu(row: Row) -> object:
    """Everything on the host, with the estimator's buffer factor 1.5."""
    more = {"offload_param": True, "offload_optimizer": True, "zero_init": True}
    return run("deepspeed-estimator", total_params=row["inputs"]["total_params"], stage=3, **more)["cpu_gib"]


# --- serving


def _tokens(pool: float, row: Row) -> float:
    given = row["inputs"]
    return cache_tokens(_blocks(pool, row), given["block"])


def _blocks(pool: float, row: Row) -> float:
    given = row["inputs"]
    per_token = given.get("kv_bytes_per_token") or _kv_bytes_per_token(row)
    return block_count(pool, given["block"], per_token)


def _gpu_blocks(row: Row) -> object:
    given = row["inputs"]
    pool = given["kv_cache_gib"] * GIB if "kv_cache_gib" in given else pool_bytes(given["total_gib"] * GIB, given["utilization"], 2 * given["params"], 0)
    return _blocks(pool, row)


def _kv_needed(row: Row) -> object:
    given = row["inputs"]
    per_token = given.get("bytes_per_token") or _kv_bytes_per_token(row)
    return per_token * given["tokens"] / given.get("tp", 1) / GIB


def _kv_pool(row: Row) -> object:
    """SGLang logs K and V apart, each card its own heads."""
    given = row["inputs"]
    return bytes_per_token(kv_elements(given["kv_heads_per_gpu"], given["head_dim"]) / 2, given["layers"], given["kv_bytes"]) * given["tokens"] / GIB


def _kv_q8(row: Row) -> object:
    given = row["inputs"]
    return bytes_per_token(kv_elements(1, given["kv_dim"]), given["layers"], element_bytes(1, 32, 2)) * given["n_ctx"] / MIB


def _kv_cache(row: Row) -> object:
    given = row["inputs"]
    return pool_bytes(given["total_gib"], given["utilization"], given["peak_torch_gib"], given["non_torch_gib"])


def _concurrency_line(row: Row) -> object:
    given = row["inputs"]
    tokens = given["tokens"] if "tokens" in given else cache_tokens(given["blocks"], given["block"])
    return max_concurrency(tokens, given["max_model_len"])


def _concurrency(row: Row) -> object:
    """Requests of 4096 tokens; with tensor parallelism every card holds its share of the weights and of the KV heads."""
    given, shape = row["inputs"], models()[row["model"]]
    tp = given["gpus_tp"]
    pool = pool_bytes(
        given["gpu_memory_gib"] * GIB, given["gpu_memory_utilization"], 2 * shape.total_params / tp, given["activation_and_graph_overhead_gib"] * GIB
    )
    if pool <= 0:
        return 0
    per_token = shape.kv_bytes_per_token / kv_split(shape, tp)
    tokens = cache_tokens(block_count(pool, given["block_size"], per_token), given["block_size"])
    return round(max_concurrency(tokens, 4096), 4)  # the row is printed to four decimals


METRICS: dict[str, Callable[[Row], object]] = {
    "param_count": _total_params,
    "active_params": _card("active_params"),
    "kv_bytes_per_token": _kv_bytes_per_token,
    "flops_fwd_per_token": _flops,
    "decode_tokens_per_s_bound": _decode,
    "zero_model_states": _zero,
    "activation_per_layer": _gpt_layer,
    "activation_per_layer_full": _gpt_layer,
    "activation_per_layer_selective": _gpt_layer,
    "activation_per_layer_hf_llama": _hf_layer,
    "activation_relative_to_baseline": _figure_7,
    "iteration_time": _table_5,
    "train_states_gb": _states,
    "megatron_bytes_per_param": lambda row: STATE_RECIPES["megatron-18"].bytes_per_param,
    "weight_optimizer_mib": _megatron_shard,
    "deepspeed_formula": _deepspeed_stage_2,
    "deepspeed_print": _deepspeed_cpu,
    "weights_gb": lambda row: state_bytes(row["inputs"]["total_params"], row["inputs"]["bytes_per_param"]) / GB,
    "weights_gib": lambda row: state_bytes(row["inputs"]["params"], row["inputs"]["bytes"]) / row["inputs"].get("tp", 1) / GIB,
    "gpu_blocks": _gpu_blocks,
    "kv_needed_gib": _kv_needed,
    "kv_pool_gib": _kv_pool,
    "kv_mib": _kv_q8,
    "kv_cache_gib": _kv_cache,
    "kv_tokens": lambda row: _tokens(row["inputs"]["pool_mib"] * MIB, row),
    "max_model_len": lambda row: _tokens(row["inputs"]["available_gib"] * GIB, row),
    "max_concurrency_log": _concurrency_line,
    "max_concurrency": _concurrency,
}


@pytest.mark.parametrize("row", [row for row in ROWS if row["metric"] not in PENDING], ids=lambda row: row["id"])
def test_a_value_from_outside(row):
    """Source: the row's own ``source``; tolerance 0 = exact."""
    value = METRICS[row["metric"]](row)
    if row["tolerance"] == 0:
        assert value == pytest.approx(row["expected"], rel=1e-12)
        assert not isinstance(row["expected"], int) or float(value).is_integer()
    else:
        assert value == pytest.approx(row["expected"], rel=row["tolerance"])


def test_every_metric_is_answered_or_waits_by_name():
    metrics = {row["metric"] for row in ROWS}
    assert metrics == METRICS.keys() | PENDING.keys()
    assert not METRICS.keys() & PENDING.keys()
    assert {path.stem for path in FILES} == metrics
    assert len({row["id"] for row in ROWS}) == len(ROWS) >= 215


def test_nothing_waits_for_a_chapter_that_has_its_calculators():
    """A metric of a chapter that exists by now is to be tested, not to wait."""
    there = {load(id).chapter for id in ids()}
    assert not {metric: chapter for metric, chapter in PENDING.items() if chapter in there}


def test_rows_name_their_source():
    assert all(re.search(r"\w{3}", row["source"]) for row in ROWS)
