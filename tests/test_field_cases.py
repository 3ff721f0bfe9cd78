"""Cases from the field: log lines that our arithmetic must replay, and threads whose gap a chapter explains.

``data/logs/NAME.txt``: first line ``# source, date``, then the lines as they were printed.  Most engines print GB and mean GiB.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from calculators.catalog import models
from calculators.core.index import load
from calculators.core.units import GIB, KIB
from calculators.formulas.decode import kv_split
from calculators.formulas.kv import block_count, bytes_per_request, bytes_per_token, cache_tokens, kv_elements, max_concurrency, pool_bytes
from calculators.formulas.memory import state_bytes
from calculators.formulas.recipes import sharded_bytes_per_param

DATA = Path(__file__).parent / "data"
LOGS = DATA / "logs"
CASES = json.loads((DATA / "field_cases.json").read_text(encoding="utf-8"))
ORACLE = {row["id"]: row for path in (DATA / "oracle").glob("*.json") for row in json.loads(path.read_text(encoding="utf-8"))}
BLOCK = 16
MIB = KIB * KIB

NEEDED = re.compile(r"max seq len \((\d+)\), \(?([\d.]+) GiB KV cache is needed.*memory \(([\d.]+) GiB\).*model length is (\d+)")
PROFILE = re.compile(
    r"total_gpu_memory=([\d.]+)GiB .*peak_torch_memory=([\d.]+)GiB .*non_torch_memory=([\d.]+)GiB kv_cache_size=([\d.]+)GiB .*utilization=([\d.]+)"
)
CONCURRENCY = re.compile(r"Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x")


def log(name: str) -> str:
    return (LOGS / f"{name}.txt").read_text(encoding="utf-8").partition("\n")[2]


def number(text: str, pattern: str) -> float:
    found = re.search(pattern, text)
    assert found, pattern
    return float(found[1].replace(",", ""))


def half_unit(printed: str) -> float:
    """How far the logged number may be from the unrounded one."""
    return 0.5 * 10.0 ** -len(printed.partition(".")[2])


def per_token(layers: int, kv_heads: int, head_dim: int, kv_bytes: float = 2) -> float:
    return bytes_per_token(kv_elements(kv_heads, head_dim), layers, kv_bytes)


def tokens_of(pool_gib: float, each: float) -> float:
    return cache_tokens(block_count(pool_gib * GIB, BLOCK, each), BLOCK)


# --- the lines of vLLM

LLAMA_8B = 131_072
"""models()["llama-3.1-8b"].kv_bytes_per_token; tests/test_oracle.py holds its source."""


@pytest.mark.parametrize("name", ["vllm-10517-20k", "vllm-10517-29k"])
def test_a_profile_line_gives_pool_and_blocks(name):
    """vllm #10517: total × utilization − peak − non-torch = KV pool; pool ÷ (16 × 128 KiB) = blocks, to the rounding of the log."""
    text = log(name)
    total, peak, other, pool, utilization = (float(g) for g in PROFILE.search(text).groups())
    assert pool_bytes(total, utilization, peak, other) == pytest.approx(pool, abs=4 * 0.005)
    assert models()["llama-3.1-8b"].kv_bytes_per_token == LLAMA_8B
    slack = 0.005 * GIB / (BLOCK * LLAMA_8B) + 1
    assert block_count(pool * GIB, BLOCK, LLAMA_8B) == pytest.approx(number(text, r"# GPU blocks: (\d+)"), abs=slack)


@pytest.mark.parametrize("name", ["vllm-10517-20k", "vllm-10517-29k"])
def test_weights_are_logged_in_gib(name):
    """vllm #10517 prints "GB": 14.9888 is 2 bytes × 8,030,261,248 in GiB plus 0.2 % of buffers; in GB it would be 16.06."""
    shown = number(log(name), r"weights took ([\d.]+) GB")
    card = load("model-card").run({"model": "llama-3.1-8b"}).values
    assert card["weights_gb"] * 1e9 / GIB == pytest.approx(shown, rel=0.003)
    assert card["weights_gb"] != pytest.approx(shown, rel=0.05)


@pytest.mark.parametrize("name", sorted(p.stem for p in LOGS.glob("*.txt") if CONCURRENCY.search(p.read_text(encoding="utf-8"))))
def test_maximum_concurrency_is_tokens_over_length(name):
    """Every pair of lines: blocks × 16, or the tokens, divided by the length, rounds to what is printed."""
    text = log(name)
    pairs = CONCURRENCY.findall(text)
    sizes = [float(b) * BLOCK for b in re.findall(r"# GPU blocks: (\d+)", text)] + [
        float(t.replace(",", "")) for t in re.findall(r"cache size: ([\d,]+) tokens", text)
    ]
    assert len(sizes) == len(pairs)
    for tokens, (length, shown) in zip(sizes, pairs, strict=True):
        assert max_concurrency(tokens, float(length.replace(",", ""))) == pytest.approx(float(shown), abs=half_unit(shown) * 1.01)


def test_blocks_and_tokens_are_the_same_line():
    """vllm PR 13596: 127,626 blocks became 2,042,016 tokens."""
    text = log("vllm-13596")
    assert cache_tokens(number(text, r"# GPU blocks: (\d+)"), BLOCK) == number(text, r"cache size: ([\d,]+) tokens")


def test_below_one_the_engine_refuses():
    """vllm #10517: 23,648 tokens of cache for a length of 29,000."""
    text = log("vllm-10517-29k")
    tokens = cache_tokens(number(text, r"# GPU blocks: (\d+)"), BLOCK)
    assert tokens == number(text, r"stored in KV cache \((\d+)\)")
    assert max_concurrency(tokens, 29_000) < 1


SHAPES = {
    # name: (bytes per token and card), from the config.json of the model
    "vllm-recipes-12": per_token(62, 8, 128),
    "spark-vllm-docker-396": per_token(62, 8, 128) / 2,
    "vllm-25350": per_token(48, 4, 128, 1),  # the shape is not in the thread: 48 KiB per token fits all three of its lines
}


@pytest.mark.parametrize("name", SHAPES)
def test_what_a_refusal_says_is_needed_and_what_would_fit(name):
    """Needed = tokens × bytes per token; the longest length = whole blocks of the available memory."""
    lines = NEEDED.findall(log(name))
    assert lines
    for length, needed, available, longest in lines:
        assert int(length) * SHAPES[name] / GIB == pytest.approx(float(needed), abs=half_unit(needed) * 1.01)
        slack = half_unit(available) * GIB / SHAPES[name] + BLOCK
        assert tokens_of(float(available), SHAPES[name]) == pytest.approx(int(longest), abs=slack)


def test_an_fp8_cache_is_counted():
    """vllm #25350: 10.55 GiB hold 230,528 tokens, 48 KiB each; the pool shrank, not the accounting."""
    text = log("vllm-25350")
    assert number(text, r"KV cache memory: ([\d.]+) GiB") * GIB / number(text, r"cache size: ([\d,]+) tokens") == pytest.approx(48 * KIB, rel=0.002)


# --- other engines


def test_sglang_logs_k_and_v_apart_and_in_gib():
    """vllm #21348: four cards share four KV heads; 367,404 tokens of K alone are 8.23 GiB on each card, printed as GB."""
    text = log("vllm-21348")
    model = models()["qwen3-235b-a22b"]
    each = model.kv_bytes_per_token / kv_split(model, 4) / 2
    assert number(text, r"#tokens: (\d+)") * each / GIB == pytest.approx(number(text, r"K size: ([\d.]+) GB"), abs=0.005)


def test_llama_cpp_binding_kept_f32():
    """llama-cpp-python #66: 1560 MB is the cache in F32; in F16 it is 780."""
    text = log("llama-cpp-python-66")
    layers, width, context = (int(number(text, rf"{key}\s+= (\d+)")) for key in ("n_layer", "n_embd", "n_ctx"))
    assert per_token(layers, 1, width, 4) * context / MIB == number(text, r"kv self size\s+= ([\d.]+)")
    assert per_token(layers, 1, width, 2) * context / MIB == 780


def test_deepspeed_estimator_of_2021():
    """DeepSpeed PR 1536 prints GB and means GiB: 2P, then 4P + 16P/8 (since PR 5099 2P + 18P/8), and 18P × 1.5 on the host."""
    text = log("deepspeed-1536")
    params = number(text, r"with (\d+)M total") * 1e6
    gpu_only, offloaded = (
        number(text, r"([\d.]+)GB \| \{'offload_optimizer': \{'device': 'none'"),
        number(text, r"([\d.]+)GB \| \{'offload_optimizer': \{'device': 'cpu'"),
    )
    assert state_bytes(params, 2) / GIB == pytest.approx(offloaded, abs=0.006)
    assert state_bytes(params, sharded_bytes_per_param(4, 0, 16, 8)) / GIB == pytest.approx(gpu_only, abs=0.006)
    assert state_bytes(params, 18 * 1.5) / GIB == pytest.approx(number(text, r"([\d.]+)GB \|\s+0.12GB"), abs=0.03)


def test_flagscale_is_megatron_with_a_distributed_optimizer():
    """FlagScale PR 454: 6 + 12/2 bytes for 4.1055e9 parameters, printed as MB and meant as MiB."""
    text = log("flagscale-454")
    shard = number(text, r"in billions: ([\d.]+)") * 1e9
    assert state_bytes(shard, sharded_bytes_per_param(2, 4, 12, 2)) / MIB == pytest.approx(number(text, r"optimizer=([\d.]+) MB"), rel=1e-4)


# --- the table of cases


@pytest.mark.parametrize("case", CASES["also"], ids=lambda case: f"{case['case']}-{case['tokens']}")
def test_further_numbers_of_a_thread(case):
    each = bytes_per_token(case["elements"], case["layers"], 2) / case["tp"]
    assert tokens_of(case["pool_gib"], each) == pytest.approx(case["tokens"], rel=case["tolerance"])


def _explained(case: str) -> float:
    """What the plain formula gives."""
    deepseek = models()["deepseek-v3"]
    return {
        "F18": lambda: models()["llama-3.1-405b"].total_params / 8 / GIB,
        "F21": lambda: block_count(pool_bytes(79.1, 0.98, 67.7229, 0) * GIB, BLOCK, 327_680),
        "F29": lambda: per_token(60, 1, 6656) * 512 / MIB,
        "F43": lambda: (state_bytes(114_661_785_600, 4.25 / 8) + state_bytes(2_167_371_072, 2)) / GIB,
        "F46": lambda: 8 / kv_split(deepseek, 8),
    }[case]()


@pytest.mark.parametrize("case", [c for c in CASES["explain"] if c["case"] not in ("F47", "F48")], ids=lambda case: case["case"])
def test_the_gap_that_a_chapter_explains(case):
    """The formula's own value; the log's differs for the reason that the chapter gives."""
    assert _explained(case["case"]) == pytest.approx(case["formula"], rel=1e-4)
    assert case["formula"] != pytest.approx(case["shown"], rel=0.03)


def test_the_derived_size_of_a_hybrid_model_is_no_cost_per_token():
    """F47, vllm #51041: the line is concurrency × length; a window's fixed part makes bytes ÷ tokens fall with the length."""
    full, windowed, window = 10, 50, 1024
    sizes = {c: bytes_per_request(2048, 2, full, windowed, c, window) / c for c in (1024, 8192, 131_072)}
    assert sizes[1024] > 3 * sizes[8192] > 3 * sizes[131_072]


def test_windows_save_at_most_the_share_of_windowed_layers():
    """F48, vllm #43308: 60 layers, 10 of them full: equal layers save at most 6 times; the 9.5 of the log needs cheaper full layers."""
    blind, aware = bytes_per_request(1, 1, 60, 0, 525_000, 0), bytes_per_request(1, 1, 10, 50, 525_000, 1024)
    case = next(c for c in CASES["explain"] if c["case"] == "F48")
    assert 5.9 < blind / aware < 6 < case["shown"]


def test_every_case_has_its_test():
    """The 30 cases with a tolerance are rows of tests/test_oracle.py, the 7 without are here."""
    assert len(CASES["oracle"]) == 30
    assert set(CASES["oracle"].values()) <= ORACLE.keys()
    assert len(set(CASES["oracle"].values())) == 30
    assert {case["case"] for case in CASES["explain"]} == {"F18", "F21", "F29", "F43", "F46", "F47", "F48"}


@pytest.mark.parametrize("path", sorted(LOGS.glob("*.txt")), ids=lambda path: path.stem)
def test_a_log_names_its_source(path):
    """An issue or pull request with its date, or the title of what was printed."""
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    assert re.fullmatch(r"# \S.{12,}", first)
    if re.search(r" (issue|pull request) \d+", first):
        assert re.fullmatch(r"# \S+/\S+ (issue|pull request) \d+, .*20\d\d-\d\d-\d\d", first)
