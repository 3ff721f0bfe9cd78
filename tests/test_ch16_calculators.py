"""Chapter 16: kv-size, kv-capacity, paged-sim, prefix-cache.  Expected values: the chapter's specification unless a row names its source."""

from __future__ import annotations

import json
import re
import time
from itertools import pairwise
from pathlib import Path

import pytest
from asking import refusal, run, value
from hypothesis import given, settings
from hypothesis import strategies as st

from calculators.catalog import accelerator, accelerators, model, models
from calculators.core.charts import BarChart, LineChart, Timeline
from calculators.core.index import load
from calculators.core.units import GIB
from calculators.formulas.inference import Engine, prefill_seconds, shape_of
from calculators.formulas.kv_shape import cache_shape
from calculators.formulas.paging import Buddy, Request, contiguous, paged, reserved_slots, up_to_power_of_two
from calculators.inference.paged_sim import draw

LOGS = Path(__file__).parent / "data" / "logs"
EXACT = 0.0
OPT_13B = "n_layers=40 n_heads=40 n_kv_heads=40 head_dim=128"
HYBRID = "n_layers=64 n_kv_heads=4 head_dim=256 kv_bytes=1 n_full_layers=16 window=0"
RTX_3090 = "model=llama-3.1-8b gpu_memory_gib=23.58 gpu_memory_utilization=0.9 weights_gib=17.06 other_gib=0.35 max_model_len=20000"


def pasted(id, config, query="", output="kv_bytes_per_token"):
    return load(id).run({"model": json.dumps(config), **dict(pair.split("=", 1) for pair in query.split())}).values[output]


DEFAULTS = [
    ("kv-size", "", "kv_elems_per_token", 65536, EXACT),
    ("kv-size", "", "kv_bytes_per_token", 131072, EXACT),
    ("kv-size", "", "kv_kib_per_token", 128, EXACT),
    ("kv-size", "", "kv_growth_bytes_per_token", 131072, EXACT),
    ("kv-size", "", "request_gib", 1.0, EXACT),
    ("kv-size", "", "total_gib", 1.0, EXACT),
    ("kv-size", "", "mha_ratio", 4.0, EXACT),
    ("kv-size", "", "equivalent_groups", 8.0, EXACT),
    ("kv-capacity", "", "weights_gib", 14.95753, 1e-6),
    ("kv-capacity", "", "kv_bytes_per_token_gpu", 131072, EXACT),
    ("kv-capacity", "", "pool_gib", 55.64247, 1e-6),
    ("kv-capacity", "", "blocks", 28488, EXACT),
    ("kv-capacity", "", "kv_tokens", 455808, EXACT),
    ("kv-capacity", "", "max_concurrency", 55.6406, 1e-6),
    ("kv-capacity", "", "starts", True, EXACT),
    ("prefix-cache", "", "hit_tokens", 1536, EXACT),
    ("prefix-cache", "", "ttft_cold_ms", 64.3876, 1e-6),
    ("prefix-cache", "", "ttft_hit_ms", 16.5138, 1e-5),
    ("prefix-cache", "", "ttft_saving_pct", 74.3525, 1e-6),
    ("prefix-cache", "", "kv_separate_gb", 16.384, 1e-9),
    ("prefix-cache", "", "kv_shared_gb", 3.53894, 1e-5),
    ("prefix-cache", "", "kv_saving_pct", 78.4, 1e-9),
]
SIZES = [
    ("gpt-3-175b", 4_718_592, 4608), ("llama-2-13b", 819_200, 800), ("llama-2-7b", 524_288, 512), ("llama-3-8b", 131_072, 128), ("qwen2.5-7b", 57_344, 56),
    ("llama-3-70b", 327_680, 320), ("qwen2.5-72b", 327_680, 320), ("llama-3.1-405b", 516_096, 504), ("qwen3-235b-a22b", 192_512, 188),
    ("deepseek-v3", 70_272, 68.625),
]  # fmt: skip
FIGURES = [
    ("kv-size", OPT_13B, "kv_bytes_per_token", 819_200, EXACT),  # PagedAttention §3: 800 KB, which is KiB
    ("kv-size", OPT_13B + " context_tokens=2048", "request_gib", 1.5625, EXACT),  # the same: "1.6 GB"
    ("kv-size", "context_tokens=131072", "request_gib", 16.0, EXACT),
    ("kv-size", "model=llama-3-70b context_tokens=131072", "request_gib", 40.0, EXACT),
    ("kv-size", "model=llama-3-70b", "request_gib", 2.5, EXACT),
    ("kv-size", "model=llama-3-70b attention=mha", "request_gib", 20.0, EXACT),
    ("kv-size", "model=llama-3-70b attention=mha", "kv_bytes_per_token", 2_621_440, EXACT),
    ("kv-size", "model=llama-3-70b", "mha_ratio", 8, EXACT),
    ("kv-size", "model=deepseek-v3", "mha_ratio", 56.9, 1e-3),
    ("kv-size", "model=deepseek-v3", "equivalent_groups", 2.25, EXACT),
    ("kv-size", "model=deepseek-v3 attention=mha", "kv_bytes_per_token", 3_997_696, EXACT),
    ("kv-size", HYBRID, "kv_growth_bytes_per_token", 32_768, EXACT),
    ("kv-size", "attention=mla n_layers=60", "kv_elems_per_token", 34_560, EXACT),  # DeepSeek-V2 report, Table 9: 34.6K
    ("kv-size", "kv_bytes=1", "kv_bytes_per_token", 65_536, EXACT),
    ("kv-size", "kv_bytes=0.5 kv_group=128", "kv_bytes_per_token", 33_792, EXACT),
    ("kv-size", "model=qwen2.5-32b kv_bytes=1 kv_group=32 context_tokens=32768", "request_gib", 4352 / 1024, EXACT),  # llama.cpp #11200: q8_0, 4352 MiB
    ("kv-size", "model=llama-3.1-405b context_tokens=1024", "request_gib", 0.4921875, EXACT),  # huggingface/blog #2345: not 0.984
    ("kv-size", "model=llama-3.1-405b context_tokens=128000", "request_gib", 61.5, 1e-3),
    ("kv-capacity", "gpu_memory_gib=79.6", "kv_tokens", 452_800, EXACT),
    ("kv-capacity", "gpu=h100-sxm", "kv_tokens", 452_800, EXACT),
    ("kv-capacity", "kv_bytes=1", "kv_tokens", 911_632, EXACT),
    ("kv-capacity", "kv_bytes=0.5 kv_group=128", "kv_tokens", 1_768_032, EXACT),
    ("kv-capacity", "model=llama-3-70b tp=2", "kv_tokens", 32_048, EXACT),
    ("kv-capacity", "model=llama-3-70b tp=2", "pool_gib", 4.89, 1e-3),
    ("kv-capacity", "model=llama-3-70b tp=2 max_model_len=32768", "max_concurrency", 0.98, 3e-3),
    ("kv-capacity", "model=llama-3-70b tp=2 max_model_len=32768", "starts", False, EXACT),
    ("kv-capacity", "model=llama-3-70b tp=4", "kv_tokens", 494_736, EXACT),
    ("kv-capacity", "model=llama-3-70b tp=8", "kv_tokens", 1_420_096, EXACT),
    ("kv-capacity", "kv_pool_gib=12 kv_bytes_per_token=819200 block_size=1", "kv_tokens", 15_728, EXACT),  # PagedAttention Table 1: 15.7K
    ("kv-capacity", RTX_3090, "pool_gib", 3.81, 1e-3),  # vLLM #10517
    ("kv-capacity", RTX_3090, "blocks", 1951, EXACT),
    ("kv-capacity", RTX_3090, "kv_tokens", 31_216, EXACT),
    ("kv-capacity", RTX_3090, "max_concurrency", 1.56, 1e-3),
    ("kv-capacity", "model=qwen2.5-32b tp=2", "weights_gib", 30.5137, 1e-5),  # vLLM #15815 logs 30.7098: 0.6 % above the even split
    ("prefix-cache", "cached_tokens=1024", "ttft_hit_ms", 32.75, 1e-3),
    ("prefix-cache", "cached_tokens=1984", "ttft_hit_ms", 5.70, 1e-3),
    ("prefix-cache", "cached_tokens=1984", "ttft_saving_pct", 91.2, 1e-3),
    ("prefix-cache", "cached_tokens=1550", "hit_tokens", 1536, EXACT),
]


@pytest.mark.parametrize(("id", "query", "output", "expected", "tolerance"), DEFAULTS + FIGURES)
def test_specified_values(id, query, output, expected, tolerance):
    found = value(id, query, output)
    assert found == expected if isinstance(expected, bool) else found == pytest.approx(expected, rel=tolerance or 1e-12)


@pytest.mark.parametrize(("name", "per_token", "kib"), SIZES)
def test_kv_of_a_token(name, per_token, kib):
    values = run("kv-size", f"model={name}").values
    assert (values["kv_bytes_per_token"], values["kv_kib_per_token"]) == (per_token, kib)


def test_declared_defaults_and_ranges():
    """The specification's input tables: names, defaults, ranges."""
    expected = {
        "kv-size": "model attention n_layers n_heads n_kv_heads head_dim kv_lora_rank rope_dim n_full_layers window kv_bytes kv_group context_tokens batch",
        "paged-sim": "seed n_requests prompt_mean output_mean sigma pool_tokens max_len block_size buddy",
        "prefix-cache": "model gpu prompt_tokens cached_tokens users shared_tokens own_tokens mfu mbu block_size weight_bytes kv_bytes",
        "kv-capacity": "model weight_bytes kv_bytes kv_group gpu_memory_gib gpu_memory_utilization weights_gib other_gib kv_bytes_per_token kv_pool_gib block_size"
        " max_model_len tp",
    }
    for id, names in expected.items():
        assert set(names.split()) <= {i.name for i in load(id).inputs}, id
    capacity = {i.name: (i.default, i.low, i.high) for i in load("kv-capacity").inputs}
    assert capacity["other_gib"] == (3.0, 0, 20)
    assert capacity["gpu_memory_utilization"] == (0.92, 0.1, 0.98)
    assert capacity["gpu_memory_gib"] == (80, 8, 300)
    sim = {i.name: (i.default, i.low, i.high) for i in load("paged-sim").inputs}
    assert sim["pool_tokens"] == (15728, 2048, 65536)
    assert sim["n_requests"] == (200, 10, 500)


class TestKvSize:
    @pytest.mark.parametrize("name", sorted(models()))
    def test_every_preset_agrees_with_the_catalog(self, name):
        values = run("kv-size", f"model={name}").values
        assert values["kv_bytes_per_token"] == models()[name].kv_bytes_per_token
        assert values["kv_elems_per_token"] * 2 == models()[name].kv_bytes_per_token

    @pytest.mark.parametrize("name", [n for n, m in models().items() if m.sliding_window])
    @pytest.mark.parametrize("context", [100, 1024, 5000, 131_072])
    def test_windows_by_hand(self, name, context):
        """2·n_kv·hd·bytes·(L_full·c + L_win·min(c, w))."""
        m = models()[name]
        w = m.sliding_window
        kept = w["full_layers"] * context + w["sliding_layers"] * min(context, w["window"])
        values = run("kv-size", f"model={name} context_tokens={context}").values
        assert values["request_gib"] == pytest.approx(2 * m.kv_heads * m.head_dim * 2 * kept / GIB)
        growing = m.layers if context <= w["window"] else w["full_layers"]
        assert values["kv_growth_bytes_per_token"] == 2 * m.kv_heads * m.head_dim * 2 * growing

    def test_mla_has_no_factor_two(self):
        """A common mistake doubles the latent: LMCache #688 had 2 × 512, later 124,928 B."""
        found = value("kv-size", "model=deepseek-v3", "kv_bytes_per_token")
        assert found == 61 * (512 + 64) * 2
        assert found != 124_928
        assert found != 2 * 61 * 576 * 2

    def test_six_bit_latent_explains_the_93_percent(self):
        """DeepSeek-V2: elements alone fall 82.2 %, with 6 bits 93.34 % (report §3.2)."""
        latent = "attention=mla n_layers=60"
        old = 194_560
        assert 1 - value("kv-size", latent, "kv_elems_per_token") / old == pytest.approx(0.822, abs=5e-4)
        assert 1 - value("kv-size", latent + " kv_bytes=0.75", "kv_bytes_per_token") / (old * 2) == pytest.approx(0.9334, abs=5e-5)

    def test_experts_change_nothing(self):
        """A mixture of 235B has a smaller cache than a dense 70B: layers and KV heads decide."""
        assert value("kv-size", "model=qwen3-235b-a22b", "kv_bytes_per_token") < value("kv-size", "model=llama-3-70b", "kv_bytes_per_token")

    def test_hidden_size_is_the_wrong_width(self):
        """vLLM #22291: hidden instead of KV heads, bits instead of bytes: 28 times too much."""
        assert 2 * 3584 * 28 * 8 / value("kv-size", "model=qwen2.5-7b", "kv_bytes_per_token") == 28
        assert 2 * 3584 * 28 * 8 == 1_605_632

    def test_pasted_hybrid(self):
        """Qwen3-Next: 12 of 48 layers keep K and V, 2 heads of 256."""
        config = {
            "model_type": "qwen3_next", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
            "intermediate_size": 5120, "vocab_size": 151936, "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512, "full_attention_interval": 4,
        }  # fmt: skip
        assert pasted("kv-size", config) == 12 * 2 * 2 * 256 * 2
        assert pasted("kv-size", config, "context_tokens=262144", "request_gib") == 12 * 2 * 2 * 256 * 2 * 262144 / GIB

    def test_pasted_mla(self):
        config = {
            "model_type": "deepseek_v3", "hidden_size": 4096, "num_hidden_layers": 40, "num_attention_heads": 64, "num_key_value_heads": 64,
            "intermediate_size": 11008, "vocab_size": 100000, "q_lora_rank": 1024, "kv_lora_rank": 256, "qk_nope_head_dim": 96, "qk_rope_head_dim": 32,
            "v_head_dim": 96, "n_routed_experts": 64, "n_shared_experts": 1, "num_experts_per_tok": 4, "moe_intermediate_size": 1024, "first_k_dense_replace": 1,
        }  # fmt: skip
        assert pasted("kv-size", config) == 40 * (256 + 32) * 2
        assert pasted("kv-capacity", config, "tp=8 gpu_memory_gib=80", "kv_bytes_per_token_gpu") == 40 * (256 + 32) * 2

    def test_pasted_layers_that_differ(self):
        """8 full layers of 4 KV heads, 40 windowed ones of 8, K 192 wide and V 128: no single MHA to compare with."""
        config = {
            "model_type": "mimo_v2_flash", "hidden_size": 4096, "intermediate_size": 16384, "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 192,
            "v_head_dim": 128, "num_hidden_layers": 48, "sliding_window": 128, "hybrid_layer_pattern": [0, 1, 1, 1, 1, 1] * 8, "swa_num_key_value_heads": 8,
            "vocab_size": 152576,
        }  # fmt: skip
        assert pasted("kv-size", config) == 2 * (8 * 4 + 40 * 8) * (192 + 128)
        assert pasted("kv-size", config, "", "mha_ratio") is None
        assert pasted("kv-size", config, "", "equivalent_groups") is None

    def test_pasted_window(self):
        config = {
            "model_type": "gemma2", "hidden_size": 2304, "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
            "intermediate_size": 9216, "vocab_size": 256000, "sliding_window": 512,
        }  # fmt: skip
        assert pasted("kv-size", config, "context_tokens=10000", "request_gib") == pytest.approx(2 * 4 * 256 * 2 * (13 * 10000 + 13 * 512) / GIB)

    def test_layers_of_different_size(self):
        """Per-layer KV heads: the sum, no product (DeciLM)."""
        config = {
            "model_type": "gemma3n_text", "hidden_size": 2048, "num_hidden_layers": 30, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256,
            "intermediate_size": 8192, "vocab_size": 262400, "sliding_window": 512,
        }  # fmt: skip
        m = load("kv-size").input("model").lookup(json.dumps(config))
        assert pasted("kv-size", config) == m.kv_bytes_per_token

    @given(st.integers(1, 100), st.integers(0, 5), st.integers(1, 8), st.sampled_from([64, 80, 96, 128, 256]), st.integers(1, 10**6), st.integers(0, 10**5))
    @settings(max_examples=25, deadline=None)
    def test_explicit_shapes(self, layers, doublings, kv, width, context, window):
        heads, full = kv * 2**doublings, layers // 3
        query = f"n_layers={layers} n_heads={heads} n_kv_heads={kv} head_dim={width} n_full_layers={full} window={window} context_tokens={context}"
        values = run("kv-size", query).values
        each = 2 * kv * width
        assert values["kv_bytes_per_token"] == layers * each * 2
        assert values["request_gib"] == pytest.approx(2 * each * (full * context + (layers - full) * min(context, window)) / GIB)
        assert values["kv_growth_bytes_per_token"] == 2 * each * (layers if context <= window else full)
        assert values["mha_ratio"] == pytest.approx(2**doublings)
        assert values["equivalent_groups"] == pytest.approx(kv)

    def test_batch_multiplies(self):
        assert value("kv-size", "batch=128 context_tokens=2048", "total_gib") == 128 * value("kv-size", "context_tokens=2048", "request_gib")

    @pytest.mark.parametrize(
        ("query", "field", "said"),
        [
            ("n_kv_heads=5", "n_kv_heads", "KV 头数必须整除注意力头数：32 / 5"),
            ("n_heads=20", "n_kv_heads", "KV 头数必须整除注意力头数：20 / 8"),
            ("n_full_layers=33", "n_full_layers", "存全长的层数不能超过层数：33 / 32"),
            ("n_full_layers=8", "window", "有滑窗层就要填窗口"),
            ("attention=mha n_kv_heads=8", "n_kv_heads", "MHA 的 KV 头数是 32：8"),
            ("kv_lora_rank=256", "kv_lora_rank", "MLA"),
            ("attention=mla kv_lora_rank=0", "kv_lora_rank", "必须在 1 到 10,000 之间"),
            ("kv_bytes=3", "kv_bytes", "不在可选项里"),
            ("context_tokens=0", "context_tokens", "必须在 1 到"),
        ],
    )
    def test_refusals(self, query, field, said):
        error = refusal("kv-size", query)
        assert error.errors[0].field == field
        assert said in str(error)

    def test_notes(self):
        assert any("外推" in n for n in run("kv-size", "context_tokens=100000").notes)
        assert any("窗口没有用上" in n for n in run("kv-size", "window=1024").notes)
        assert "只有 10 层还在涨" in run("kv-size", "model=gemma-3-27b-text context_tokens=32768").verdict
        assert "一层也不涨了" in run("kv-size", "model=gemma-3-27b-text n_full_layers=0").verdict
        assert any("MLA 没有算上" in n for n in run("kv-size", "model=deepseek-v3 n_layers=60").notes)
        assert not any("MLA 没有算上" in n for n in run("kv-size", "model=deepseek-v3 attention=mla n_layers=60").notes)
        assert any("滑窗没有算上" in n for n in run("kv-size", "model=gemma-3-27b-text n_layers=62").notes)
        assert run("kv-size", "model=gemma-3-27b-text").resolved == {"n_full_layers": 10, "window": 1024}

    def test_charts(self):
        kv = run("kv-size", "model=deepseek-v3")
        first, second = load("kv-size").charts(kv)
        assert isinstance(first, LineChart)
        assert {s.name for s in first.series} == {"现在这样", "MHA", "MQA"}  # its own latent is the third
        assert len(second.series) == 6
        low = {s.name: s.points[0][1] for s in second.series}
        assert low["Llama 3 8B"] == pytest.approx((16_060_522_496 + 1024 * 131_072) / GIB)


class TestKvCapacity:
    def test_replays_a_log(self):
        """vLLM #10517: 1952 blocks; one fewer here, because the log rounds its GiB to two places."""
        log = (LOGS / "vllm-10517-20k.txt").read_text(encoding="utf-8")
        assert "1952" in log
        values = run("kv-capacity", RTX_3090).values
        assert abs(values["blocks"] - 1952) <= 1
        assert f"{values['max_concurrency']:.2f}" == "1.56"

    def test_other_logs(self):
        assert f"{2_042_016 / 2048:.2f}" == "997.08"  # vLLM PR 13596
        assert value("kv-capacity", "kv_pool_gib=10.53 kv_bytes_per_token=163840", "blocks") == pytest.approx(4314, rel=2e-3)  # dphnAI/sonar PR 1320
        assert value("kv-capacity", "model=qwen3-30b-a3b kv_pool_gib=3.18", "kv_tokens") == pytest.approx(34_736, rel=2e-3)  # vLLM #34076
        seven = value("kv-capacity", "model=llama-2-7b gpu_memory_utilization=0.9 other_gib=2", "blocks")
        assert seven == pytest.approx(7351, rel=5e-3)  # vLLM PR 2031

    def test_below_one_does_not_start(self):
        """vLLM #10517 at 29,000: 0.82."""
        found = run("kv-capacity", "model=llama-3.1-8b kv_pool_gib=2.89 max_model_len=29000")
        assert found.values["max_concurrency"] == pytest.approx(0.82, rel=1e-2)
        assert found.values["starts"] is False
        assert "is larger than the maximum number of tokens that can be stored in KV cache" in found.verdict
        log = (LOGS / "vllm-10517-29k.txt").read_text(encoding="utf-8")
        assert "is larger than the maximum number of tokens that can be stored in KV cache" in log

    def test_a_latent_does_not_divide(self):
        each = [value("kv-capacity", f"model=deepseek-v3 gpu_memory_gib=300 weight_bytes=1 tp={tp}", "kv_bytes_per_token_gpu") for tp in (4, 8, 16, 64)]
        assert each == [70_272] * 4
        assert any("每张卡" not in n and "各存一份" in n for n in run("kv-capacity", "model=deepseek-v3 weight_bytes=1 gpu_memory_gib=141 tp=8").notes)

    def test_more_cards_than_heads(self):
        each = [value("kv-capacity", f"model=qwen2.5-7b tp={tp}", "kv_bytes_per_token_gpu") for tp in (1, 2, 4, 8, 16)]
        assert each == [57_344, 28_672, 14_336, 14_336, 14_336]
        assert any("每个头存 2 份" in n for n in run("kv-capacity", "model=qwen2.5-7b tp=8").notes)

    @pytest.mark.parametrize(
        ("query", "legal"),
        [
            ("model=qwen2.5-7b tp=8", "28 个注意力头不能均分给 8 张卡，vLLM 起不来：张量并行可取 1、2、4、28。"),  # 4 KV heads: 7 and 14 do not fit them
            ("model=deepseek-v3 tp=12 weight_bytes=1 gpu_memory_gib=141", "可取 1、2、4、8、16、32、64。"),
        ],
    )
    def test_heads_that_do_not_divide_do_not_start(self, query, legal):
        found = run("kv-capacity", query)
        assert found.values["starts"] is False
        assert legal in found.verdict

    def test_replicated_heads_start(self):
        """32 query heads over 8 cards, 4 KV heads twice each: 2 × 48 layers × 128 × 2 B × 4 / 4."""
        four, eight = (run("kv-capacity", f"model=qwen3-30b-a3b tp={tp}").values for tp in (4, 8))
        assert four["kv_bytes_per_token_gpu"] == eight["kv_bytes_per_token_gpu"] == 2 * 48 * 128 * 2
        assert eight["starts"] is True

    def test_windows_are_not_called_too_long(self):
        """Gemma 3 27B at 131,072: 10 full layers and 52 × 1024 tokens, 8192 B a layer and token: 10.41 GiB."""
        found = run("kv-capacity", "model=gemma-3-27b-text max_model_len=131072")
        assert found.values["starts"] is None
        assert "只占 10.41 GiB" in found.verdict
        by_hand = 8192 * (10 * 131_072 + 52 * 1024) / GIB
        assert by_hand == pytest.approx(10.41, abs=5e-3)
        assert run("kv-capacity", "model=gemma-3-27b-text max_model_len=1000000").values["starts"] is False
        assert run("kv-capacity", "model=gemma-3-27b-text").values["starts"] is True

    def test_twice_the_cards_fifteen_times_the_pool(self):
        two, four = (value("kv-capacity", f"model=llama-3-70b tp={tp}", "kv_tokens") for tp in (2, 4))
        assert four / two == pytest.approx(15, rel=0.04)

    @given(st.floats(20, 300), st.floats(0.3, 0.98), st.integers(1, 256), st.integers(1, 10**6))
    @settings(max_examples=25, deadline=None)
    def test_blocks_are_whole_and_as_many_as_fit(self, memory, share, block, longest):
        query = f"model=llama-3.2-1b gpu_memory_gib={memory} gpu_memory_utilization={share} block_size={block} max_model_len={longest}"
        found = run("kv-capacity", query).values
        pool, each = found["pool_gib"] * GIB, found["kv_bytes_per_token_gpu"]
        assert found["kv_tokens"] == found["blocks"] * block
        assert found["blocks"] * block * each <= pool * (1 + 1e-9) < (found["blocks"] + 1) * block * each * (1 + 1e-9)
        assert found["starts"] == (found["kv_tokens"] >= longest)

    @pytest.mark.parametrize(
        ("query", "field", "said"),
        [
            ("model=llama-3-70b", "tp", "权重已占满"),
            ("tp=3", "tp", "KV 头数必须能被 tp 整除：8 / 3，可取 1、2、4、8，或大于 8"),
            ("gpu=h100-sxm gpu_memory_gib=40", "gpu_memory_gib", "只在"),
            ("gpu_memory_utilization=0.99", "gpu_memory_utilization", "0.1 到 0.98"),
            ("block_size=0", "block_size", "1 到 256"),
        ],
    )
    def test_refusals(self, query, field, said):
        error = refusal("kv-capacity", query)
        assert error.errors[0].field == field
        assert said in str(error)

    def test_charts(self):
        found = run("kv-capacity")
        first, second = load("kv-capacity").charts(found)
        assert first.rules[0].x == pytest.approx((14.95753 + 3) / 80, rel=1e-6)
        assert max(y for _, y in first.series[0].points) > 455_808
        assert min(y for _, y in first.series[0].points) == 0
        assert second.marks[0].y == pytest.approx(55.64, rel=1e-3)
        assert len(load("kv-capacity").charts(run("kv-capacity", "kv_pool_gib=12"))) == 1

    def test_card_without_a_reported_size(self):
        bare = next(name for name, card in accelerators().items() if card.memory_gib_reported is None and card.memory_gb >= 32)
        assert value("kv-capacity", f"gpu={bare}", "pool_gib") == pytest.approx(accelerator(bare).memory_gb * 1e9 / GIB * 0.92 - 14.95753 - 3, rel=1e-6)


POLICIES = ("max", "pow2", "oracle", "paged")
PAPER = {"max": (20.4, 7.00), "pow2": (26.8, 9.81), "oracle": (38.2, 13.62), "paged": (96.3, 30.42)}
"""Kwon et al. 2023, Fig. 2 (share of the pool, %) and Fig. 13 (mean batch)."""


class TestPagedSim:
    @pytest.mark.parametrize(
        ("policy", "seeds"), [("max", (18.1, 16.6, 19.0)), ("pow2", (27.7, 27.0, 27.4)), ("oracle", (36.5, 34.5, 37.6)), ("paged", (97.3, 97.2, 97.3))]
    )
    def test_shares_by_seed(self, policy, seeds):
        for seed, expected in enumerate(seeds):
            assert value("paged-sim", f"seed={seed}", f"util_{policy}_pct") == pytest.approx(expected, abs=0.06)

    def test_batches_and_preemptions(self):
        values = run("paged-sim").values
        assert values["batch_max"] == 7
        assert values["batch_pow2"] == pytest.approx(10.74, abs=0.01)
        assert values["batch_oracle"] == pytest.approx(14.22, abs=0.01)
        assert values["batch_paged"] == pytest.approx(37.74, abs=0.01)
        assert [value("paged-sim", f"seed={seed}", "preemptions") for seed in (0, 1, 2)] == [216, 310, 284]

    def test_bands_and_order_over_seeds(self):
        """Within 4 points of the paper at seed 0; the order at every seed."""
        for seed in range(6):
            values = run("paged-sim", f"seed={seed}").values
            shares = [values[f"util_{p}_pct"] for p in POLICIES]
            assert all(a < b for a, b in pairwise(shares))
            if seed == 0:
                assert all(abs(share - PAPER[p][0]) <= 4 for share, p in zip(shares, POLICIES, strict=True))

    def test_max_runs_exactly_as_many_as_fit(self):
        assert value("paged-sim", "", "batch_max") == 15_728 // 2048 == PAPER["max"][1]

    def test_without_the_buddy_the_oracle_has_no_holes(self):
        found = [value("paged-sim", f"buddy=false seed={seed}", "util_oracle_pct") for seed in (0, 1, 2)]
        assert found == pytest.approx([57.8, 57.9, 58.6], abs=0.06)

    def test_shares_add_up(self):
        for film in run("paged-sim").result.trace.by_policy.values():
            assert sum(film.shares) == pytest.approx(1)
            assert all(share >= -1e-12 for share in film.shares)

    def test_nobody_waits(self):
        """Alpaca-like lengths, n = 200: paged never queues, so there is nothing to average."""
        found = run("paged-sim", "prompt_mean=19 output_mean=58")
        assert found.values["util_paged_pct"] is None
        assert found.values["batch_paged"] is None
        assert "没有人排队" in found.verdict
        assert load("paged-sim").charts(found)
        nothing = run("paged-sim", "n_requests=10 pool_tokens=65536")
        assert nothing.values["util_max_pct"] is None
        assert load("paged-sim").charts(nothing) == ()

    def test_larger_blocks_waste_more(self):
        shares = [value("paged-sim", f"block_size={b}", "util_paged_pct") for b in (1, 16, 64, 256)]
        assert all(a > b for a, b in pairwise(shares))

    def test_waste_of_a_page_is_below_a_block(self):
        film = paged(draw(0, 200, 161, 338, 1.0, 1024), 15_728, 16)
        for _, holds in film.frames:
            held = holds()
            assert all(0 < h.useful <= h.asked == 16 for h in held)
            assert len({h.at for h in held}) == len(held)
            assert max(h.at for h in held) < 15_728

    def test_reservations(self):
        request = Request(100, 33)
        assert [reserved_slots(p, request, 2048) for p in ("max", "pow2", "oracle")] == [2048, 164, 133]
        assert reserved_slots("pow2", Request(1024, 1024), 2048) == 2048
        assert [up_to_power_of_two(n) for n in (1, 2, 3, 16, 17)] == [1, 2, 4, 16, 32]

    def test_the_pool_is_carved_as_specified(self):
        """7 × 2048 + 1024 + 256 + 64 + 32 + 16."""
        assert [size for _, size in Buddy(15_728, 2048).roots] == [2048] * 7 + [1024, 256, 64, 32, 16]

    @given(st.lists(st.integers(1, 2048), min_size=1, max_size=60), st.randoms(use_true_random=False))
    @settings(max_examples=25, deadline=None)
    def test_buddies_never_overlap_and_merge_back(self, sizes, rng):
        buddy = Buddy(15_728, 2048)
        before = {size: sorted(free) for size, free in buddy.free.items() if free}
        held = []
        for size in sizes:
            chunk = buddy.take(size)
            if chunk is not None:
                assert chunk[1] >= size
                held.append(chunk)
            if held and rng.random() < 0.4:
                buddy.give(*held.pop(rng.randrange(len(held))))
            spans = sorted(held)
            assert all(a + s <= b for (a, s), (b, _) in pairwise(spans))
        for chunk in held:
            buddy.give(*chunk)
        assert {size: sorted(free) for size, free in buddy.free.items() if free} == before

    def test_draw(self):
        requests = draw(0, 200, 161, 338, 1.0, 1024)
        assert len(requests) == 200
        assert all(1 <= r.prompt <= 1024 and 1 <= r.output <= 1024 for r in requests)
        assert requests == draw(0, 200, 161, 338, 1.0, 1024)
        assert requests != draw(1, 200, 161, 338, 1.0, 1024)

    def test_two_requests_by_hand(self):
        """A pool for one reservation: the second waits 10 steps, while the first grows from 6 to 16 useful slots of 32."""
        film = contiguous([Request(6, 10), Request(6, 10)], "max", 32, 32, True)
        assert film.batch == 1
        assert film.shares == pytest.approx((11 / 32, 5 / 32, 16 / 32, 0))

    def test_map_follows_the_moment(self):
        maps = []
        for moment in (0, 50, 100):
            bars, film, batch = load("paged-sim").charts(run("paged-sim", f"moment_pct={moment}"))
            assert isinstance(bars, BarChart)
            assert isinstance(film, Timeline)
            assert isinstance(batch, LineChart)
            assert len(film.lanes) == 4
            assert all(0 <= s.start < s.end <= 15_728 for s in film.spans)
            assert all(len(s.points) <= 200 for s in batch.series)
            for lane in range(4):
                mine = [s for s in film.spans if s.lane == lane]
                assert mine[0].start == 0
                assert mine[-1].end == pytest.approx(15_728)
                assert all(a.end == b.start for a, b in pairwise(mine))
            useful = [sum(s.end - s.start for s in film.spans if s.lane == lane and s.tone == 0) / 15_728 for lane in (0, 3)]
            assert useful[0] < 0.4
            assert useful[1] > 0.9
            maps.append(film.spans)
        assert maps[0] != maps[1] != maps[2]

    def test_refuses_a_pool_below_one_request(self):
        error = refusal("paged-sim", "pool_tokens=2048 max_len=4096")
        assert error.errors[0].field == "max_len"
        assert refusal("paged-sim", "pool_tokens=2048 block_size=255").errors[0].field == "max_len"

    def test_fast_enough_at_the_edges(self):
        heaviest = "n_requests=500 pool_tokens=65536 block_size=1 output_mean=1024 prompt_mean=1 max_len=8192"
        thrashing = "n_requests=500 pool_tokens=2048 block_size=1 output_mean=1024 prompt_mean=1 sigma=0.1"
        for query in (heaviest, thrashing):
            start = time.process_time()
            run("paged-sim", query)
            assert time.process_time() - start < 3  # about 0.2 s alone; this machine is shared


class TestPrefixCache:
    def test_cold_is_chapter_15s_prefill(self):
        for name in ("llama-3-8b", "qwen3-235b-a22b", "gemma-2-9b", "deepseek-v3"):
            m = model(name)
            engine = Engine(989e12 * 0.5, 3350e9 * 0.8, 2, 2)
            assert value("prefix-cache", f"model={name}", "ttft_cold_ms") == pytest.approx(1e3 * prefill_seconds(shape_of(m), engine, 1, 2048))

    def test_a_hit_that_saves_no_time(self):
        """DeepSeek-V3, 2048 tokens: 671 B × 2 B / 2.68 TB/s = 500 ms with or without the hit."""
        found = run("prefix-cache", "model=deepseek-v3")
        assert found.values["ttft_hit_ms"] == pytest.approx(671.03e9 * 2 / (3350e9 * 0.8) * 1e3, rel=5e-3)
        assert "时间花在读权重" in found.verdict
        assert "省 −" not in found.verdict
        assert any("放不下" in n for n in found.notes)
        assert not run("prefix-cache", "").notes

    def test_by_hand(self):
        """2·N_mat·(S − h) + 2·L·H·hd·(S² − h²) over half the peak."""
        s, h = 2048, 1024
        flops = 2 * 7_504_924_672 * (s - h) + 2 * 32 * 32 * 128 * (s * s - h * h)
        assert value("prefix-cache", f"cached_tokens={h}", "ttft_hit_ms") == pytest.approx(1e3 * flops / (989e12 * 0.5))

    def test_a_floor_remains(self):
        """64 tokens no longer hide the reading of the weights: 2.08 ms of arithmetic, 5.70 ms of reading."""
        read = (7_504_924_672 * 2 + 1984 * 131_072) / (3350e9 * 0.8)
        assert value("prefix-cache", "cached_tokens=1984", "ttft_hit_ms") == pytest.approx(1e3 * read)
        flops = 2 * 7_504_924_672 * 64 + 2 * 32 * 32 * 128 * (2048 * 2048 - 1984 * 1984)
        assert 1e3 * flops / (989e12 * 0.5) == pytest.approx(2.08, abs=0.01)

    def test_windowed_attention(self):
        """Gemma 2: 21 of 42 layers see 4096 tokens; 16 heads of 256."""
        s, h, w, per_layer = 16_384, 8192, 4096, 4 * 16 * 256
        full, sliding = (s * s - h * h) / 2, (w * s - w * w / 2) - (w * h - w * w / 2)
        flops = 2 * model("gemma-2-9b").active_params_no_input_embedding * (s - h) + 21 * per_layer * (full + sliding)
        assert value("prefix-cache", f"model=gemma-2-9b prompt_tokens={s} cached_tokens={h}", "ttft_hit_ms") == pytest.approx(1e3 * flops / (989e12 * 0.5))

    def test_more_hits_are_never_slower(self):
        times = [value("prefix-cache", f"cached_tokens={h}", "ttft_hit_ms") for h in range(0, 1900, 128)]
        assert all(a > b for a, b in pairwise(times))

    @given(st.integers(1, 1000), st.integers(0, 50_000), st.integers(1, 50_000), st.integers(1, 256))
    @settings(max_examples=25, deadline=None)
    def test_shared_memory(self, users, shared, own, block):
        values = run("prefix-cache", f"users={users} shared_tokens={shared} own_tokens={own} block_size={block}").values
        common = shared // block * block
        assert values["kv_separate_gb"] == pytest.approx(users * (shared + own) * 131_072 / 1e9)
        assert values["kv_shared_gb"] == pytest.approx((common + users * (shared - common + own)) * 131_072 / 1e9)
        assert -1e-9 <= values["kv_saving_pct"] < 100

    def test_refuses_a_whole_hit(self):
        assert "至少比提示少 1 个" in str(refusal("prefix-cache", "prompt_tokens=1024 cached_tokens=1024"))
        assert refusal("prefix-cache", "shared_tokens=0 own_tokens=0").errors[0].field == "own_tokens"

    def test_verdicts_hold_at_the_edges(self):
        assert "没有命中" in run("prefix-cache", "cached_tokens=0").verdict
        assert "不满一块" in run("prefix-cache", "cached_tokens=15").verdict
        assert "只有一个用户" in run("prefix-cache", "users=1").verdict
        assert "不满一块，显存不省" in run("prefix-cache", "shared_tokens=10").verdict

    def test_charts(self):
        curve, bars = load("prefix-cache").charts(run("prefix-cache"))
        assert curve.series[0].points[0] == pytest.approx((0, 64.3876), rel=1e-5)
        assert curve.rules[0].y == pytest.approx(5.6, rel=1e-3)
        assert isinstance(bars, BarChart)


def test_offload_against_recompute():
    """2048 tokens of Llama-3-8B are 268 MB: 4.9 ms over 55 GB/s, against 64.4 ms of prefill."""
    size = 2048 * 131_072
    assert size / 1e6 == pytest.approx(268.4, abs=0.1)
    assert size / 55e9 * 1e3 == pytest.approx(4.88, abs=0.01)


def test_decode_reads_the_cache_every_step():
    """Batch 128 at 2048 tokens: 34.4 GB of KV beside 15.0 GB of weights."""
    assert value("kv-size", "batch=128 context_tokens=2048", "total_gib") * GIB / 1e9 == pytest.approx(34.4, abs=0.05)
    assert model("llama-3-8b").active_params_no_input_embedding * 2 / 1e9 == pytest.approx(15.0, abs=0.05)


def test_shape_of_every_preset_is_whole():
    for name, m in models().items():
        shape = cache_shape(m)
        assert shape.elements * 2 == m.kv_bytes_per_token, name
        assert shape.kept(1) == shape.elements, name
        assert re.fullmatch("mha|gqa|mqa|mla", shape.kind)
