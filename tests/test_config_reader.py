"""The reader of config.json: counts equal those of the library's own classes, everything else is refused with its reason."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calculators.catalog import Model, models
from calculators.catalog.architecture import counted, scores, window_kv_bytes_per_token
from calculators.catalog.choices import looks_pasted, model_input
from calculators.catalog.configs.identity import FAMILIES, OTHERS, SAME
from calculators.catalog.configs.reader import read_config
from calculators.catalog.configs.values import ALIASES
from calculators.core.errors import Refusal
from calculators.site.bundle import build_bundle

DATA = json.loads((Path(__file__).parent / "data" / "configs" / "counted.json").read_text(encoding="utf-8"))
COUNTED = {case["config"]["model_type"]: case for case in DATA["cases"]}
PLAIN = settings(max_examples=150, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))

LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 2, "intermediate_size": 80, "vocab_size": 101, "tie_word_embeddings": False, "max_position_embeddings": 64, "torch_dtype": "bfloat16",
}  # fmt: skip
LLAMA_TOTAL = 2 * 101 * 48 + 48 + 3 * (2 * 48 * 48 + 2 * 48 * 16 + 3 * 48 * 80 + 2 * 48)
"""Two tables, the last norm, and in each layer Q and O, K and V (2 of 6 heads), three feed-forward matrices, two norms."""
LLAMA_KV = 2 * 2 * 8 * 3 * 2


def read(config: object) -> Model:
    return read_config(json.dumps(config))


def refusal(text: str) -> str:
    with pytest.raises(Refusal) as caught:
        read_config(text)
    assert all(error.field == "model" for error in caught.value.errors)
    return str(caught.value)


# --- counts


@pytest.mark.parametrize("model", models().values(), ids=models().keys())
def test_presets_are_rebuilt_from_their_dimensions(model):
    """The catalog's totals were counted on the meta device; ours come from the dimensions alone."""
    ours = counted(model)
    assert dict(ours.breakdown) == dict(model.breakdown)
    for name in (
        "total_params", "active_params", "active_params_no_input_embedding", "embedding_and_head_params", "largest_module_params",
        "kv_elems_per_token_layer", "kv_bytes_per_token", "ffn_gated", "heads", "kv_heads", "head_dim", "tied", "moe", "mla", "max_context",
    ):  # fmt: skip
        assert getattr(ours, name) == getattr(model, name), name
    assert ours.basis == "exact"
    if not model.sliding_window:
        assert ours.scores == scores(model)


@pytest.mark.parametrize("kind", COUNTED)
def test_small_configs_have_the_library_s_count(kind):
    """Source: the file's own ``source``."""
    case = COUNTED[kind]
    model = read(case["config"])
    assert model.total_params == case["total"] == sum(model.breakdown.values())
    assert model.breakdown.get("routed_experts", 0) == case["routed"]
    if case["kv_values"] is not None:
        assert model.kv_bytes_per_token == 2 * case["kv_values"]
    if model.moe is not None:
        assert model.active_params == case["total"] - case["routed"] * (model.moe.experts - model.moe.top_k) // model.moe.experts
    else:
        assert model.active_params == model.total_params
    assert model.basis == "exact"


def test_the_table_covers_many_families():
    assert len(COUNTED) >= 60
    assert set(COUNTED) <= set(FAMILIES)


def llama_shape(h: int, n: int, kv: int, f: int, v: int, biases: int = 0) -> int:
    """Two tables, the last norm; a layer's Q and O, K and V, three feed-forward matrices, two norms, biases."""
    return 2 * v * h + h + n * (2 * h * h + 2 * h * kv + 3 * h * f + 2 * h + biases)


@pytest.mark.parametrize(
    ("config", "total", "kv"),
    [
        (
            {"model_type": "chatglm", "num_layers": 28, "num_attention_heads": 32, "kv_channels": 128, "multi_query_group_num": 2, "hidden_size": 4096,
             "multi_query_attention": True, "ffn_hidden_size": 13696, "vocab_size": 65024, "add_bias_linear": False, "add_qkv_bias": True},
            llama_shape(4096, 28, 2 * 128, 13696, 65024, 4096 + 2 * 2 * 128), 2 * 2 * 128 * 28 * 2,
        ),
        (
            {"model_type": "internlm2", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
             "intermediate_size": 14336, "vocab_size": 92544, "bias": False, "tie_word_embeddings": False},
            llama_shape(4096, 32, 8 * 128, 14336, 92544), 2 * 8 * 128 * 32 * 2,
        ),
        (
            {"model_type": "baichuan", "hidden_size": 5120, "num_hidden_layers": 40, "num_attention_heads": 40, "intermediate_size": 13696, "vocab_size": 64000},
            llama_shape(5120, 40, 5120, 13696, 64000), 2 * 5120 * 40 * 2,
        ),
        (
            {"model_type": "qwen", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "intermediate_size": 22016, "vocab_size": 151936},
            llama_shape(4096, 32, 4096, 22016 // 2, 151936, 3 * 4096), 2 * 4096 * 32 * 2,
        ),
        (
            {"model_type": "minicpm", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 96,
             "vocab_size": 200, "num_experts": 8, "num_experts_per_tok": 2},
            llama_shape(64, 2, 64, 8 * 96, 200, 8 * 64) - 200 * 64, 2 * 64 * 2 * 2,
        ),
    ],
    ids=["chatglm", "internlm2", "baichuan", "qwen", "minicpm-moe"],
)  # fmt: skip
def test_models_without_a_library_class(config, total, kv):
    """Source: closed form over the tensors that their own code builds."""
    model = read(config)
    assert (model.total_params, model.kv_bytes_per_token, model.basis) == (total, kv, "exact")


def test_multimodal_counts_text_and_tower():
    """qwen3_vl of transformers 5.24.0 built from its class defaults on the meta device: 12,616,410,352 parameters, 12,049,461,248 of them text."""
    config = {
        "model_type": "qwen3_vl",
        "text_config": {"model_type": "qwen3_vl_text"},
        "vision_config": {"model_type": "qwen3_vl_vision"},
        "tie_word_embeddings": False,
    }
    model = read(config)
    assert model.total_params == 12_616_410_352
    assert model.total_params - model.breakdown["vision_tower"] == 12_049_461_248
    assert model.active_params_no_input_embedding == 12_049_461_248 - 151936 * 4096
    assert any("类的默认值" in note for note in model.notes)


def test_unknown_tower_leaves_the_text_part_and_says_so():
    model = read({"model_type": "some_vl", "text_config": LLAMA, "vision_config": {"hidden_size": 32}})
    assert (model.total_params, model.basis) == (LLAMA_TOTAL, "text")
    assert any("只算文字部分" in note for note in model.notes)


# --- how files differ


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_size": 48.0, "num_hidden_layers": 3.0},
        {"head_dim": None, "rope_scaling": None},
        {"head_dim": 8},
        {"time_step_limit": [0.0, float("inf")], "attention_dropout": float("nan")},
        {"n_layer": 3},
        {"model_type": None},
        {"tokenizer_class": "LlamaTokenizer", "temperature": 0.6},
    ],
    ids=["integral floats", "nulls", "explicit head_dim", "Infinity and NaN elsewhere", "equal alias", "no model_type", "keys of other files"],
)
def test_spellings_of_one_model(change):
    model = read({**LLAMA, **change})
    assert (model.total_params, model.kv_bytes_per_token) == (LLAMA_TOTAL, LLAMA_KV)


def test_byte_order_mark_and_blanks():
    assert read_config("\ufeff \n" + json.dumps(LLAMA)).total_params == LLAMA_TOTAL


def test_other_key_names():
    """GPT-2's names: 2 tables (one learned), 12·h² + 13·h a layer, the last norm."""
    h, n, v, p = 32, 2, 77, 16
    model = read({"model_type": "gpt2", "n_embd": h, "n_layer": n, "n_head": 4, "n_inner": None, "vocab_size": v, "n_positions": p})
    assert model.total_params == v * h + p * h + n * (12 * h * h + 13 * h) + 2 * h
    assert model.active_params_no_input_embedding == model.total_params


def test_tied_head_is_counted_once():
    assert read({**LLAMA, "tie_word_embeddings": True}).total_params == LLAMA_TOTAL - 101 * 48


def test_windows_are_stated():
    model = read({**LLAMA, "model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 16})
    assert model.sliding_window == {"window": 16, "sliding_layers": 3, "full_layers": 0}
    assert window_kv_bytes_per_token(model) == model.kv_bytes_per_token == LLAMA_KV
    half = read({**LLAMA, "model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "head_dim": 8, "sliding_window": 16})
    assert half.sliding_window == {"window": 16, "sliding_layers": 2, "full_layers": 1}
    assert window_kv_bytes_per_token(half) == half.kv_bytes_per_token * 2 // 3


def test_state_layers_keep_no_kv():
    case = COUNTED["qwen3_next"]["config"]
    model = read(case)
    assert 0 < model.kv_layers < model.layers
    assert any("存 K、V" in note for note in model.notes)
    assert read(COUNTED["mamba"]["config"]).kv_bytes_per_token == 0


def test_missing_low_rank_is_said():
    config = {**COUNTED["deepseek_v2"]["config"]}
    config.pop("q_lora_rank")
    model = read(config)
    assert any("q_lora_rank" in note for note in model.notes)


# --- honest about what is missing


def test_missing_vocabulary_gives_kv_and_no_total():
    model = read({key: value for key, value in LLAMA.items() if key != "vocab_size"})
    assert (model.basis, model.total_params, model.kv_bytes_per_token) == ("partial", 0, LLAMA_KV)
    assert any("vocab_size" in note for note in model.notes)


def test_a_type_that_was_used_twice():
    """MiniMax-M2's own file says ``minimax``; its class tells it from MiniMax-01."""
    case = COUNTED["minimax_m2"]
    model = read({**case["config"], "model_type": "minimax", "architectures": ["MiniMaxM2ForCausalLM"]})
    assert (model.total_params, model.basis) == (case["total"], "exact")


def test_disagreement_is_never_exact():
    model = read({**LLAMA, "model_type": "qwen3", "head_dim": 8})
    assert model.basis == "assumed"
    assert any("不一致" in note for note in model.notes)


def test_conflicting_names_are_said_and_no_experts_invented():
    model = read({**LLAMA, "model_type": "mixtral"})
    assert (model.basis, model.total_params) == ("partial", 0)
    assert any("不一致" in note for note in model.notes)
    assert any("num_experts" in note for note in model.notes)


def test_unknown_dense_architecture_is_an_assumption():
    model = read({**LLAMA, "model_type": "llama_turbo_x", "architectures": ["LlamaTurboXForCausalLM"]})
    assert (model.basis, model.total_params) == ("assumed", LLAMA_TOTAL)
    assert any("不认识的架构" in note and "hidden_size" in note for note in model.notes)


@pytest.mark.parametrize("key", ["num_experts", "n_routed_experts", "moe_num_experts", "num_local_experts", "expert_count_x", "my_moe_layers"])
def test_experts_are_never_silently_dense(key):
    for kind in ("llama", "qwen2", "llama_turbo_x", "gpt2"):
        model = read({**LLAMA, "model_type": kind, key: 8})
        if kind == "llama_turbo_x" or key in ALIASES["experts"]:
            assert (model.basis, model.total_params) == ("partial", 0), kind
        else:
            assert model.basis == "assumed", kind


@pytest.mark.parametrize("extra", [{"mamba_d_state": 16}, {"kv_lora_rank": 512}, {"layers_block_type": ["mamba"]}, {"linear_attn_config": {"a": 1}}])
def test_unknown_attention_is_refused(extra):
    assert "不认识的架构" in refusal(json.dumps({**LLAMA, "model_type": "brand_new", **extra}))


def test_unknown_architecture_needs_its_kv_heads():
    config = {key: value for key, value in LLAMA.items() if key not in ("num_key_value_heads", "model_type")}
    assert "num_key_value_heads" in refusal(json.dumps({**config, "architectures": ["RWForCausalLM"]}))


def test_top_k_missing_leaves_active_unknown():
    config = {**COUNTED["qwen3_moe"]["config"]}
    config.pop("num_experts_per_tok")
    model = read(config)
    assert (model.total_params, model.active_params, model.basis) == (COUNTED["qwen3_moe"]["total"], 0, "partial")


# --- weights


def weights_of(quantization: object, base: str = "llama", **more: object) -> Model:
    return read({**LLAMA, "model_type": base, **more, "quantization_config": quantization})


LINEAR = 3 * (2 * 48 * 48 + 2 * 48 * 16 + 3 * 48 * 80)
REST = LLAMA_TOTAL - LINEAR


@pytest.mark.parametrize(
    ("quantization", "bytes_of_linear"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 1 + 4 / 128**2),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, 0.5 + (2 + 0.5) / 128),
        ({"quant_method": "awq", "bits": 4, "group_size": 64}, 0.5 + (2 + 0.5) / 64),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 1.0),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 0.5 + 4 / 64),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 0.5 + 1 / 16),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}}}, 1.0),
    ],
    ids=["fp8", "gptq", "awq", "int8", "nf4", "nvfp4", "compressed"],
)
def test_only_linear_layers_are_quantised(quantization, bytes_of_linear):
    """Tables, head and norms keep BF16; a scale (and zero point) a group is counted."""
    model = weights_of(quantization)
    assert model.weight_bytes_per_param == pytest.approx((LINEAR * bytes_of_linear + REST * 2) / LLAMA_TOTAL)
    assert model.weights_stored


def test_ignored_modules_stay_wide():
    attention = 3 * (2 * 48 * 48 + 2 * 48 * 16)
    groups = {"group_0": {"weights": {"num_bits": 8, "type": "float"}}}
    whole = weights_of({"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ["lm_head", "re:.*self_attn.*"]})
    assert whole.weight_bytes_per_param == pytest.approx((LINEAR - attention + (REST + attention) * 2) / LLAMA_TOTAL)
    one = weights_of({"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ["model.layers.0.self_attn*"]})
    assert one.weight_bytes_per_param == pytest.approx((LINEAR - attention / 3 + (REST + attention / 3) * 2) / LLAMA_TOTAL)


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("torch.float16", 2), ("bfloat16", 2), (None, None), ("<b>", None)])
def test_dtype(dtype, size):
    model = read({**LLAMA, "torch_dtype": dtype})
    assert model.weight_bytes_per_param == size
    assert not any("<" in note for note in model.notes)


def test_unknown_quantisation_is_said():
    assert any("方法不认识" in note for note in weights_of({"quant_method": "brand_new"}).notes)


# --- refusals: what it seems to be, and what to look for


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "空的"),
        ("not json at all", "JSON"),
        ('{"hidden_size": 4096,', "没复制全"),
        ("8030261248", "一个数"),
        ('["hidden_size"]', "一个列表"),
        ('"text"', "一段文字"),
        ("null", "null"),
        ("<!doctype html><html></html>", "网页"),
        ("version https://git-lfs.github.com/spec/v1", "LFS"),
        (str(LLAMA), "Python"),
        ('// my model\n{"hidden_size": 4096}', "注释"),
        ('{"hidden_size": ' + "9" * 5000 + "}", "离谱"),
        ("[" * 100_000, "JSON"),
        ('{"hidden_size": 48, "hidden_size": 64}', "一次"),
        (json.dumps({"peft_type": "LORA", "r": 8, "lora_alpha": 16, "base_model_name_or_path": "x"}), "LoRA"),
        (json.dumps({"tokenizer_class": "LlamaTokenizer", "model_max_length": 4096}), "tokenizer_config"),
        (json.dumps({"added_tokens": [], "model": {"type": "BPE", "vocab": {}}}), "tokenizer.json"),
        (json.dumps({"_from_model_config": True, "eos_token_id": 2, "transformers_version": "4.30.2"}), "generation_config"),
        (json.dumps({"_class_name": "UNet2DConditionModel", "sample_size": 96}), "diffusers"),
        (json.dumps({"_class_name": "StableDiffusionPipeline", "unet": ["diffusers", "x"]}), "diffusers"),
        (json.dumps({"metadata": {"total_size": 16060522496}, "weight_map": {}}), "权重索引"),
        (json.dumps({"bits": 4, "group_size": 128, "desc_act": True}), "quantize_config"),
        (json.dumps({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}), "hf_quant_config"),
        (json.dumps({"dim": 4096, "n_layers": 32, "n_heads": 32, "vocab_size": -1}), "params.json"),
        (json.dumps({"dim": 7168, "n_layers": 61, "n_heads": 128, "inter_dim": 18432}), "DeepSeek"),
        (json.dumps({"zero_optimization": {"stage": 3}, "train_batch_size": 8}), "DeepSpeed"),
        (json.dumps({"image_processor_type": "CLIPImageProcessor", "image_mean": [0.5]}), "preprocessor"),
        (json.dumps({"bos_token": "<s>", "eos_token": "</s>"}), "special_tokens_map"),
        (json.dumps({f"token{i}": i for i in range(300)}), "vocab.json"),
        (json.dumps({"model_type": "t5", "d_model": 512, "num_layers": 6, "is_encoder_decoder": True}), "解码器"),
        (json.dumps({**LLAMA, "model_type": "bert"}), "编码器"),
        (json.dumps({**LLAMA, "model_type": "vit"}), "图像"),
        (json.dumps({**LLAMA, "model_type": "mystery", "is_encoder_decoder": True}), "编码器"),
        ("{}", "没写"),
    ],
)  # fmt: skip
def test_near_misses(text, says):
    assert says in refusal(text)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"hidden_size": "4096"}, "hidden_size 必须是"),
        ({"hidden_size": True}, "hidden_size 必须是"),
        ({"hidden_size": -4096}, "hidden_size 必须是"),
        ({"hidden_size": 0}, "hidden_size 必须大于 0"),
        ({"hidden_size": 48.5}, "hidden_size 必须是"),
        ({"hidden_size": float("nan")}, "hidden_size 必须是"),
        ({"hidden_size": float("inf")}, "hidden_size 必须是"),
        ({"hidden_size": {"a": 1}}, "hidden_size 必须是"),
        ({"hidden_size": [48]}, "hidden_size"),
        ({"hidden_size": None}, "没有 hidden_size"),
        ({"num_hidden_layers": 10**30}, "num_hidden_layers 必须是"),
        ({"num_key_value_heads": 4}, "必须能被 num_key_value_heads 整除"),
        ({"num_attention_heads": 7}, "必须能被 num_attention_heads 整除"),
        ({"vocab_size": -1}, "vocab_size 必须是"),
        ({"intermediate_size": 10**12}, "intermediate_size 必须是"),
        ({"attention_bias": "yes"}, "attention_bias 必须是 true 或 false"),
        ({"n_layer": 4}, "必须相同"),
        ({"layer_types": ["full_attention"]}, "layer_types 必须每层一项"),
        ({"layer_types": ["full_attention", "<b>", "full_attention"]}, "不认识的层"),
        ({"quantization_config": 8}, "") ,
        ({"model_type": 'llama"><script>alert(1)</script>'}, "model_type 必须是一个普通的名字"),
        ({"model_type": 7}, "model_type 必须是一个普通的名字"),
        ({"hidden_size": 2**20, "num_attention_heads": 2**10, "num_hidden_layers": 10_000, "num_key_value_heads": 2**10, "intermediate_size": 2**24}, "1000 万亿"),
    ],
)  # fmt: skip
def test_bad_values(change, says):
    if not says:
        assert read({**LLAMA, **change}).total_params == LLAMA_TOTAL
        return
    message = refusal(json.dumps({**LLAMA, **change}))
    assert says in message
    assert "<" not in message
    assert len(message) < 300


def test_fifty_megabytes_are_refused_at_once():
    text = '{"a": "' + "x" * 50_000_000 + '"}'
    started = time.perf_counter()
    assert "5 MB" in refusal(text)
    assert time.perf_counter() - started < 1


def test_ten_thousand_layers_do_not_hang():
    started = time.perf_counter()
    assert read({**LLAMA, "num_hidden_layers": 10_000}).layers == 10_000
    assert time.perf_counter() - started < 5


def test_hostile_patterns_do_not_hang():
    groups = {"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 32}}}
    ignore = ["re:(a+)+$" + "a" * 5000 + "self_attn"] * 200 + ["re:" + ".*" * 2000] * 200
    started = time.perf_counter()
    weights_of({"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ignore})
    assert time.perf_counter() - started < 2


@pytest.mark.parametrize("kind", OTHERS)
def test_models_that_are_no_decoders(kind):
    assert "纯解码器" in refusal(json.dumps({**LLAMA, "model_type": kind}))


def test_names_point_somewhere():
    assert set(SAME.values()) <= set(FAMILIES)
    assert not set(FAMILIES) & set(OTHERS)


# --- as an input of a calculator


def test_pasted_text_is_told_from_a_name():
    assert looks_pasted(json.dumps(LLAMA))
    assert looks_pasted("\ufeff{}")
    assert looks_pasted("<html>")
    assert not looks_pasted("llama-3-8b")
    assert not looks_pasted("42")


def test_an_input_takes_a_preset_or_a_file():
    item = model_input()
    assert item.lookup("llama-3-8b").name == "Llama 3 8B"
    text = json.dumps(LLAMA)
    assert item.parse(text) == text
    assert item.lookup(text).total_params == LLAMA_TOTAL
    with pytest.raises(Refusal):
        item.parse("llama-9-900b")


def test_conditions_hold_for_pasted_models_too():
    item = model_input(name="m", where=lambda m: m.is_dense, help="只算稠密模型")
    with pytest.raises(Refusal) as caught:
        item.lookup(json.dumps(COUNTED["qwen3_moe"]["config"]))
    assert caught.value.errors[0].field == "m"
    assert "只算稠密模型" in str(caught.value)
    assert item.lookup(json.dumps(LLAMA)).is_dense


def test_uncounted_models_are_refused_unless_asked_for():
    text = json.dumps({key: value for key, value in LLAMA.items() if key != "vocab_size"})
    with pytest.raises(Refusal) as caught:
        model_input().lookup(text)
    assert "vocab_size" in str(caught.value)
    assert model_input(partial=True).lookup(text).kv_bytes_per_token == LLAMA_KV


def test_the_reader_is_imported_only_when_somebody_pastes():
    code = "import sys, calculators.foundations.model_card; print([m for m in sys.modules if m.startswith('calculators.catalog.configs')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1])
    assert done.stdout.strip() == "[]"


def test_the_bundle_for_browsers_reads_configs_too(tmp_path):
    zipfile.ZipFile(io.BytesIO(build_bundle())).extractall(tmp_path)
    code = f"from calculators.catalog.choices import pasted_model; print(pasted_model({json.dumps(LLAMA)!r}).total_params)"
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(LLAMA_TOTAL)


# --- any JSON at all

KEYS = sorted(
    {key for keys in ALIASES.values() for key in keys}
    | {key for case in DATA["cases"] for key in case["config"]}
    | {"text_config", "vision_config", "quantization_config", "architectures", "layer_types", "mlp_layer_types", "torch_dtype", "is_encoder_decoder", "dim"}
)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**20), 10**20), st.integers(0, 300), st.floats(), st.text(max_size=12), st.just("<script>alert(1)</script>")
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=6), inner, max_size=5), max_leaves=8
)


def said(text: str) -> tuple[Model | None, str]:
    """The model, if there is one, and everything that the reader would show a person."""
    try:
        model = read_config(text)
    except Refusal as refused:
        return None, str(refused)
    return model, "".join((model.name, *model.notes, model.weights_stored))


def read_or_refuse(config: object) -> None:
    model, message = said(json.dumps(config))
    assert "<" not in message
    if model is None:
        assert 0 < len(message) < 600
        return
    assert model.kv_bytes_per_token >= 0
    assert model.basis != "exact" or model.total_params == sum(model.breakdown.values()) > 0


@PLAIN
@given(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=12), st.sampled_from([*FAMILIES, "mystery", ""]))
def test_any_object_is_read_or_refused(config, kind):
    read_or_refuse({**config, "model_type": kind})


@PLAIN
@given(st.sampled_from(sorted(COUNTED)), st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1, max_size=3), st.booleans())
def test_damaged_configs_are_read_or_refused(kind, damage, nested):
    config = {**COUNTED[kind]["config"], **damage}
    read_or_refuse({"model_type": "llava", "text_config": config, "vision_config": damage} if nested else config)


@PLAIN
@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text):
    assert "<" not in said(text)[1]
