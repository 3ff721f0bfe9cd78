"""Chapter 03: train-memory, decode-bound, growth, bandwidth-here.  Expected values: the chapter's specification unless a row names its source."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from asking import refusal, run

from calculators.catalog import accelerator, accelerators, model, models
from calculators.catalog.references import references
from calculators.core.errors import Refusal
from calculators.core.index import load
from calculators.formulas.activations import full_recompute_bytes, layer_bytes, plain_norm_bytes
from calculators.formulas.decode import kv_split, params_read, step_seconds
from calculators.formulas.params import llama_params

DATA = json.loads((Path(__file__).parent / "data" / "ch03_reference_values.json").read_text(encoding="utf-8"))
EXACT = 0.0


def check(actual, expected, tolerance):
    if isinstance(expected, bool) or expected is None or isinstance(expected, str):
        assert actual == expected
    elif tolerance == EXACT:
        assert actual == pytest.approx(expected, rel=1e-12)
    else:
        assert actual == pytest.approx(expected, rel=tolerance)


# Rows: calculator, inputs that differ from the defaults, output, expected, relative tolerance.
DEFAULTS = [
    ("train-memory", "", "n_params", 8_030_261_248, EXACT),
    ("train-memory", "", "act_bytes_per_token_layer", 139_264, EXACT),
    ("train-memory", "", "act_over_h", 34.0, EXACT),
    ("train-memory", "", "score_bytes_per_token_layer", 0, EXACT),
    ("train-memory", "attention=unfused", "score_bytes_per_token_layer", 1_310_720, EXACT),
    ("train-memory", "attention=unfused-no-dropout", "score_bytes_per_token_layer", 524_288, EXACT),
    ("train-memory", "", "bytes_per_param", 12, EXACT),
    ("train-memory", "", "weights_gb", 16.061, 1e-4),
    ("train-memory", "", "grads_gb", 16.061, 1e-4),
    ("train-memory", "", "optimizer_gb", 64.242, 1e-4),
    ("train-memory", "", "states_gb", 96.363, 1e-4),
    ("train-memory", "", "activations_gb", 36.507, 1e-4),
    ("train-memory", "", "logits_gb", 8.405, 1e-4),
    ("train-memory", "", "overhead_gb", 1.5, EXACT),
    ("train-memory", "", "total_gb", 142.776, 1e-4),
    ("train-memory", "", "total_gib", 132.970, 1e-4),
    ("train-memory", "", "fits", False, EXACT),
    ("decode-bound", "", "latency_ms", 4.794, 1e-3),
    ("decode-bound", "", "tok_s", 208.59, 1e-4),
    ("decode-bound", "", "tok_s_per_card", 208.59, 1e-4),
    ("decode-bound", "", "weight_read_gb", 16.061, 1e-4),
    ("decode-bound", "", "kv_read_gb", 0, EXACT),
    ("decode-bound", "", "kv_bytes_per_token", 131_072, EXACT),
    ("decode-bound", "", "need_gb", 16.061, 1e-4),
    ("decode-bound", "", "compute_ms", 0.01624, 1e-3),
    ("growth", "", "flops_x", 59_049, EXACT),
    ("growth", "", "bw_x", 109.95, 1e-4),
    ("growth", "", "link_x", 28.93, 1e-3),
    ("growth", "", "gap_x", 537.05, 1e-4),
    ("growth", "", "span_years", 20, EXACT),
    ("growth", "", "flops_rate_2y", 3.0, EXACT),
    ("growth", "", "bw_rate_2y", 1.6, EXACT),
    ("growth", "mode=cards", "link_x", None, EXACT),
    ("growth", "mode=cards", "span_years", 14, EXACT),
    ("growth", "mode=cards", "flops_rate_2y", 2.705, 1e-3),
    ("growth", "mode=cards", "bw_rate_2y", 1.646, 1e-3),
]

BINDINGS = [
    ("train-memory", "model=llama-3-70b", "n_params", 70_553_706_496, EXACT),
    ("train-memory", "model=llama-2-7b", "n_params", 6_738_415_616, EXACT),
    ("train-memory", "fused_act=false", "activations_gb", 44.023, 1e-4),
    ("train-memory", "fused_act=false", "act_over_h", 41, 1e-4),
    ("train-memory", "fused_act=false fused_norm=false", "act_bytes_per_token_layer", 200_840, EXACT),
    ("train-memory", "fused_act=false fused_norm=false", "activations_gb", 52.65, 1e-4),
    ("train-memory", "model=llama-2-7b fused_act=false fused_norm=false", "act_bytes_per_token_layer", 186_504, EXACT),
    ("train-memory", "recompute=full", "activations_gb", 3.288, 1e-3),
    ("train-memory", "recompute=full recipe=zero-16", "total_gb", 141.68, 1e-4),
    ("train-memory", "attention=unfused", "activations_gb", 380.10, 1e-4),
    ("train-memory", "attention=unfused-no-dropout", "activations_gb", 173.95, 1e-4),
    ("train-memory", "logits=chunked", "logits_gb", 1.0507, 1e-4),
    ("train-memory", "recipe=zero-16", "states_gb", 128.484, 1e-4),
    ("train-memory", "recipe=megatron-18", "states_gb", 144.545, 1e-4),
    ("train-memory", "h=12288 a=96 kv=96 seq=2048 attention=unfused", "score_bytes_per_token_layer", 983_040, EXACT),
    ("train-memory", "attention=unfused recompute=full", "activations_gb", 14.026, 1e-4),
    ("decode-bound", "count_input_embedding=false", "latency_ms", 4.481, 1e-3),
    ("decode-bound", "count_input_embedding=false", "tok_s", 223.19, 1e-3),
    ("decode-bound", "count_input_embedding=false", "weight_read_gb", 15.01, 1e-3),
    ("decode-bound", "gpu=a100-80gb", "tok_s", 126.96, 1e-3),
    ("decode-bound", "gpu=a100-80gb", "latency_ms", 7.88, 1e-3),
    ("decode-bound", "gpu=rtx-4090", "tok_s", 62.76, 1e-3),
    ("decode-bound", "gpu=rtx-4090", "latency_ms", 15.9, 5e-3),
    ("decode-bound", "gpu=h200", "tok_s", 298.87, 1e-3),
    ("decode-bound", "gpu=h200", "latency_ms", 3.35, 2e-3),
    ("decode-bound", "gpu=b200", "tok_s", 479.44, 1e-3),
    ("decode-bound", "gpu=b200", "latency_ms", 2.09, 3e-3),
    ("decode-bound", "model=llama-3-70b tp=8", "latency_ms", 5.265, 1e-3),
    ("decode-bound", "model=llama-3-70b tp=8", "kv_bytes_per_token", 327_680, EXACT),
    ("decode-bound", "model=qwen2.5-7b tp=8 ctx=4096 count_input_embedding=false", "tok_s", 1834.23, 1e-5),
    ("decode-bound", "model=llama-2-7b ctx=4096 count_input_embedding=false", "tok_s", 218.07, 1e-4),
    ("decode-bound", "model=qwen3-235b-a22b tp=8 ctx=4096 count_input_embedding=false", "tok_s", 599.37, 1e-4),
    ("decode-bound", "model=deepseek-v3 weight_bytes=1 tp=16 batch=64", "weight_read_gb", 585.31, 1e-3),
    ("decode-bound", "model=deepseek-v3 weight_bytes=1 tp=16 batch=64", "params_read", 585.3e9, 1e-4),
    ("decode-bound", "model=deepseek-v3 weight_bytes=1 tp=16 batch=8", "params_read", 163.8e9, 1e-3),
    ("decode-bound", "model=deepseek-v3 weight_bytes=1 tp=16", "params_read", 37.6e9, 2e-3),
    ("growth", "mode=cards", "flops_x", 1059.9, 1e-3),
    ("growth", "mode=cards", "bw_x", 32.71, 1e-3),
    ("growth", "mode=cards", "gap_x", 32.40, 1e-3),
    ("growth", "mode=cards card_from=C870 card_to=A100", "flops_x", 601.9, 1e-3),
    ("growth", "mode=cards card_from=C870 card_to=A100", "bw_x", 26.55, 1e-3),
]


@pytest.mark.parametrize(("id", "query", "output", "expected", "tolerance"), DEFAULTS + BINDINGS)
def test_values_of_the_specification(id, query, output, expected, tolerance):
    check(run(id, query).values[output], expected, tolerance)


class TestTrainMemory:
    """States, activations and logits, against counts from outside."""

    @pytest.mark.parametrize("row", DATA["hf_layer_activations"], ids=lambda row: row["id"])
    def test_counts_what_autograd_saves_in_a_hugging_face_layer(self, row):
        values = run("train-memory", f"model={row['model']} fused_act=false fused_norm=false").values
        assert values["act_bytes_per_token_layer"] * row["tokens"] == row["expected"]

    @pytest.mark.parametrize("row", DATA["train_states"], ids=lambda row: row["id"])
    def test_states_of_public_threads(self, row):
        values = run("train-memory", f"model={row['model']} recipe=zero-16").values
        assert values["bytes_per_param"] == row["bytes_per_param"]
        assert values["states_gb"] == pytest.approx(row["expected"], rel=row["tolerance_rel"])

    def test_gpt3_scores_are_80h(self):
        """Korthikanti et al. 2022, Eq. 1: 5as/h = 80 for GPT-3."""
        values = run("train-memory", "h=12288 a=96 kv=96 seq=2048 attention=unfused").values
        assert values["score_bytes_per_token_layer"] == 80 * 12288 == 5 * 96 * 2048

    def test_defaults_by_hand(self):
        h, layers, kv_width, f, v, tokens = 4096, 32, 8 * 128, 14336, 128256, 8192
        n = layers * (2 * h * h + 2 * h * kv_width + 3 * h * f + 2 * h) + h + 2 * v * h
        activations = tokens * layers * (12 * h + 4 * kv_width + 6 * f)
        total = 12 * n + activations + tokens * v * 8 + 1.5e9
        assert run("train-memory").values["total_gb"] == pytest.approx(total / 1e9, rel=1e-12)

    def test_unfused_attention_adds_what_the_text_says(self):
        """+343.6 GB with dropout, +137.4 GB without, 10.7 GB a layer."""
        base, dropout, plain = (run("train-memory", f"attention={name}").values["activations_gb"] for name in ("flash", "unfused", "unfused-no-dropout"))
        assert dropout - base == pytest.approx(343.6, rel=1e-4)
        assert plain - base == pytest.approx(137.4, rel=1e-3)
        assert (dropout - base) / 32 == pytest.approx(10.7, rel=5e-3)

    @pytest.mark.parametrize("id", [i for i, m in models().items() if m.family in ("llama", "mistral") and m.is_dense])
    def test_llama_shape_gives_the_catalog_count(self, id):
        m = model(id)
        shape = llama_params(m.hidden, m.layers, m.heads, m.kv_heads, m.head_dim, m.ffn, m.vocab, m.tied)
        assert shape == m.total_params

    @pytest.mark.parametrize("id", ["qwen2.5-7b", "qwen2.5-72b", "qwen3-8b", "qwen3-32b"])
    def test_llama_shape_misses_less_than_the_spec_allows(self, id):
        m = model(id)
        assert run("train-memory", f"model={id}").values["n_params"] == m.total_params
        shape = run("train-memory", f"model={id} hd={m.head_dim} tied={str(m.tied).lower()}").values["n_params"]
        assert 0 < 1 - shape / m.total_params < 2e-4

    def test_one_dimension_changes_head_size_and_tables(self):
        """The others stay the preset's, hd = h ÷ a, tables untied."""
        assert (model("llama-3.2-3b").heads, model("llama-3.2-3b").tied) == (24, True)
        resolved = run("train-memory", "model=llama-3.2-3b h=4608").resolved
        assert (resolved["a"], resolved["hd"], resolved["tied"]) == (24, 4608 // 24, False)

    def test_explicit_values_win(self):
        resolved = run("train-memory", "h=2048 hd=64 tied=true").resolved
        assert (resolved["h"], resolved["hd"], resolved["tied"], resolved["L"]) == (2048, 64, True, 32)
        untouched = run("train-memory", "model=qwen3-0.6b").resolved
        assert (untouched["hd"], untouched["tied"]) == (128, True)

    def test_tied_tables_are_counted_once(self):
        both, once = (run("train-memory", f"tied={word}").values["n_params"] for word in ("false", "true"))
        assert both - once == 128256 * 4096

    @pytest.mark.parametrize("recipe", ["seed-12", "zero-16", "megatron-18", "bf16-8", "8bit-10"])
    def test_states_are_linear_in_parameters(self, recipe):
        for id in ("llama-2-7b", "llama-3-8b", "llama-3-70b"):
            values = run("train-memory", f"model={id} recipe={recipe}").values
            assert values["states_gb"] == pytest.approx(int(recipe.split("-")[1]) * model(id).total_params / 1e9)

    def test_blocks_add_up(self):
        v = run("train-memory", "attention=unfused logits=chunked recipe=megatron-18 micro_batch=3").values
        assert v["states_gb"] == pytest.approx(v["weights_gb"] + v["grads_gb"] + v["optimizer_gb"])
        assert v["total_gb"] == pytest.approx(v["states_gb"] + v["activations_gb"] + v["logits_gb"] + v["overhead_gb"])

    def test_flash_is_linear_in_length_and_never_above_unfused(self):
        def kept(attention, seq):
            return float(run("train-memory", f"attention={attention} seq={seq}").values["activations_gb"])

        for seq in (1, 512, 8192, 65536):
            assert kept("flash", 2 * seq) == pytest.approx(2 * kept("flash", seq))
            assert kept("flash", seq) < kept("unfused-no-dropout", seq) < kept("unfused", seq)
        growth = kept("unfused", 131072) - kept("flash", 131072), kept("unfused", 65536) - kept("flash", 65536)
        assert growth[0] == pytest.approx(4 * growth[1])

    def test_recompute_keeps_inputs_and_one_layer(self):
        assert run("train-memory", "recompute=full").values["activations_gb"] == pytest.approx(8192 * (2 * 4096 * 32 + 139_264) / 1e9)
        assert full_recompute_bytes(1.0, 1.0, 10.0, 1.0) == 12.0

    def test_chunk_longer_than_the_batch_changes_nothing(self):
        assert run("train-memory", "logits=chunked chunk=1048576").values["logits_gb"] == run("train-memory").values["logits_gb"]

    def test_formula_in_closed_form(self):
        """With a·hd = h: 12h + 4·kv·hd + 6f; plain modules: 20h + 4·kv·hd + 8f + 4a + 8."""
        h, a, kv, hd, f = 5120.0, 40.0, 8.0, 128.0, 13824.0
        assert layer_bytes(h, a, kv, hd, f) == 12 * h + 4 * kv * hd + 6 * f
        assert layer_bytes(h, a, kv, hd, f, 8) + plain_norm_bytes(h, a) == 20 * h + 4 * kv * hd + 8 * f + 4 * a + 8

    def test_capacity_is_the_label_and_the_driver_is_named(self):
        """An H100 reports 79.6 GiB = 85.5e9 B; the test uses 80e9."""
        result = run("train-memory", "model=llama-3.2-1b seq=1024 recompute=full")
        assert result.values["fits"] is True
        assert "79.6 GiB" in result.notes[0]
        assert "85.47 GB" in result.notes[0]

    @pytest.mark.parametrize(
        ("query", "field", "words"),
        [
            ("a=7 kv=7", "a", "隐藏维必须能被头数整除：4096 / 7"),
            ("kv=5", "kv", "头数必须能被 KV 头数整除：32 / 5"),
            ("seq=0", "seq", "序列长度"),
            ("chunk=512", "chunk", "只在"),
            ("model=mixtral-8x7b", "model", "不在可选项"),
            ("model=gpt2", "model", "不在可选项"),
            ("model=deepseek-v3", "model", "不在可选项"),
            ("L=1001", "L", "1000"),
            ("overhead_gb=-1", "overhead_gb", "0 到 20"),
        ],
    )
    def test_refusals(self, query, field, words):
        error = refusal("train-memory", query).errors[0]
        assert error.field == field
        assert words in error.message

    def test_models_are_the_dense_gated_ones(self):
        item = load("train-memory").input("model")
        assert item is not None
        assert set(item.choices) == {id for id, m in models().items() if m.ffn_gated and m.moe is None and m.mla is None}

    def test_verdict_names_the_block_and_what_to_do(self):
        assert "装不下，还差 62.78 GB" in run("train-memory").verdict
        assert "第 11 章" in run("train-memory").verdict
        assert "重算" in run("train-memory", "gpu=h200").verdict
        assert "装得下" in run("train-memory", "gpu=h200 recompute=full").verdict

    def test_verdict_never_advises_what_is_already_on(self):
        squeezed = run("train-memory", "model=qwen2.5-7b recipe=8bit-10 recompute=full logits=chunked").verdict
        assert "装不下" in squeezed
        assert "重算" not in squeezed
        assert "第 11 章" in squeezed
        assert "FlashAttention" not in run("train-memory", "recipe=bf16-8").verdict
        assert "缩短序列" in run("train-memory", "model=llama-3.2-1b seq=1000000 recompute=full logits=chunked").verdict


class TestDecodeBound:
    """Reading time of weights and KV cache."""

    @pytest.mark.parametrize("row", DATA["decode"], ids=lambda row: row["id"])
    def test_reference_rows(self, row):
        """Every row, the ones that do not fit too: those below the refusal."""
        m, card = model(str(row["model"])), accelerator(str(row["gpu"]))
        tp, batch, context = int(row["tp"]), int(row["batch"]), int(row["context"])
        weights = params_read(m, batch, count_input_embedding=False) * 2 / tp
        seconds = step_seconds(weights, float(batch * context * m.kv_bytes_per_token) / kv_split(m, tp), card.hbm_bytes_per_s)
        assert batch / seconds == pytest.approx(row["expected"], rel=row["tolerance_rel"])
        query = f"model={m.id} gpu={card.id} tp={tp} batch={batch} ctx={context} count_input_embedding=false"
        if row["fits"]:
            assert run("decode-bound", query).values["tok_s"] == pytest.approx(row["expected"], rel=row["tolerance_rel"])
        else:
            assert refusal("decode-bound", query).errors[0].message.startswith("放不下：")

    def test_published_latency_is_above_both_bounds(self):
        """cloudai.pt: Llama-3.1-8B, H100: 8.4 ms eager, 5.1 ms with CUDA graphs; 94 % of the usual bound."""
        usual, strict = (run("decode-bound", f"count_input_embedding={word}").values["latency_ms"] for word in ("true", "false"))
        measured = references()["decode-8b-published"].values
        assert strict < usual < measured["graph"].value < measured["eager"].value
        assert usual / measured["graph"].value == pytest.approx(0.94, rel=1e-3)

    def test_defaults_by_hand(self):
        assert run("decode-bound").values["latency_ms"] == pytest.approx(8_030_261_248 * 2 / 3350e9 * 1e3)
        assert run("decode-bound").values["compute_ms"] == pytest.approx(2 * 8_030_261_248 / 989e12 * 1e3)

    def test_context_by_hand(self):
        v = run("decode-bound", "model=llama-3-70b tp=4 batch=8 ctx=4096 weight_bytes=1 bw_eff=0.8").values
        kv = 8 * 4096 * 327_680
        seconds = (70_553_706_496 / 4 + kv / 4) / (3350e9 * 0.8)
        assert v["latency_ms"] == pytest.approx(seconds * 1e3)
        assert v["tok_s"] == pytest.approx(8 / seconds)
        assert v["tok_s_per_card"] == pytest.approx(2 / seconds)
        assert v["need_gb"] == pytest.approx((70_553_706_496 + kv) / 1e9)

    def test_kv_splits_by_kv_heads_and_a_latent_not_at_all(self):
        assert [kv_split(model("llama-3-8b"), tp) for tp in (1, 4, 8, 16)] == [1, 4, 8, 8]
        assert kv_split(model("deepseek-v3"), 16) == 1

    def test_moe_reads_active_parameters_first_and_all_in_the_end(self):
        m = model("deepseek-v3")
        assert params_read(m, 1) == m.active_params
        reads = [params_read(m, tokens) for tokens in (1, 2, 8, 64, 512, 4096)]
        assert reads == sorted(reads)
        assert reads[-1] == pytest.approx(m.total_params, rel=1e-3)

    def test_position_table_is_looked_up_too(self):
        m = model("gpt2")
        assert params_read(m, 1, count_input_embedding=False) == m.total_params - 1024 * 768

    def test_bandwidth_alone_decides(self):
        """H100 over A100: 3.2 times the arithmetic, 1.64 times the bandwidth, 1.64 times the tokens; H200 +43 %."""
        a100, h100, h200 = (run("decode-bound", f"gpu={id}").values["tok_s"] for id in ("a100-80gb", "h100-sxm", "h200"))
        assert h100 / a100 == pytest.approx(3350 / 2039) == pytest.approx(1.64, rel=3e-3)
        assert h200 / h100 == pytest.approx(1.43, rel=3e-3)

    def test_monotonic(self):
        def ms(query):
            return float(run("decode-bound", query).values["latency_ms"])

        assert ms("weight_bytes=0.5") < ms("weight_bytes=1") < ms("weight_bytes=2")
        assert ms("ctx=0") < ms("ctx=1024") < ms("ctx=32768")
        assert ms("tp=8") < ms("tp=1")
        assert ms("bw_eff=1") < ms("bw_eff=0.5")
        assert ms("batch=64") == ms("batch=1")

    def test_what_does_not_fit_is_refused(self):
        error = refusal("decode-bound", "model=llama-3-70b").errors[0]
        assert error.message.startswith("放不下：141.1 GB > 1×80 GB")
        assert refusal("decode-bound", "ctx=1000000").errors[0].message.startswith("放不下：147.1 GB")

    @pytest.mark.parametrize("query", ["weight_bytes=4", "tp=65", "batch=0", "ctx=-1", "bw_eff=0.2"])
    def test_other_refusals(self, query):
        assert refusal("decode-bound", query).errors[0].field == query.split("=")[0]

    def test_verdict_follows_the_wall(self):
        assert "时间花在读" in run("decode-bound").verdict
        assert "撞上算力" in run("decode-bound", "batch=1024").verdict
        assert "实际最多 61,580 token/s" in run("decode-bound", "batch=1024").verdict  # 989e12 / (2 × 8 030 261 248)
        assert "先压 KV" in run("decode-bound", "batch=64 ctx=4096").verdict

    def test_longer_than_the_model_allows_is_said(self):
        assert run("decode-bound", "ctx=8192").notes == ()
        assert "8192" in run("decode-bound", "ctx=8193").notes[0]


class TestGrowth:
    def test_by_hand(self):
        v = run("growth", "years=10 flops_rate=2 bw_rate=1.5").values
        assert (v["flops_x"], v["bw_x"]) == (32, pytest.approx(1.5**5))
        assert v["gap_x"] == pytest.approx(32 / 1.5**5)

    def test_rate_of_two_cards_grows_back(self):
        v = run("growth", "mode=cards card_from=V100 card_to=B200").values
        assert v["flops_rate_2y"] ** (v["span_years"] / 2) == pytest.approx(v["flops_x"])
        assert v["flops_x"] == 2250 / 125
        assert v["bw_x"] == pytest.approx(7700 / 900)

    def test_equal_growth_is_no_reason_to_forget_the_wall(self):
        assert "原来那堵还在" in run("growth", "mode=cards card_from=H100 card_to=B200").verdict

    @pytest.mark.parametrize("query", ["mode=cards card_from=H100 card_to=A100", "mode=cards card_from=H100 card_to=H100"])
    def test_the_end_must_be_newer(self, query):
        error = refusal("growth", query).errors[0]
        assert error.field == "card_to"
        assert error.message.startswith("终点必须比起点新")

    @pytest.mark.parametrize("query", ["years=0", "years=-1", "years=41", "flops_rate=0.9", "card_to=A100", "mode=cards years=10"])
    def test_other_refusals(self, query):
        assert refusal("growth", query).errors[0].field == query.split()[-1].split("=")[0]


class TestBandwidthHere:
    """A measurement: formula and sign only, results against float64."""

    @pytest.fixture(scope="class")
    @staticmethod
    def small():
        return run("bandwidth-here", "n_elems=200000 mat_n=64 repeats=2")

    def test_intensities_are_exact(self):
        values = run("bandwidth-here", "n_elems=100000 repeats=1").values
        assert values["add_ai"] == pytest.approx(1 / 12, rel=1e-12) == pytest.approx(0.08333, rel=1e-4)
        assert values["matmul_ai"] == pytest.approx(256 / 6, rel=1e-12) == pytest.approx(42.667, rel=1e-4)

    def test_speeds_are_positive_and_consistent(self, small):
        v = small.values
        for name in ("add", "matmul"):
            assert v[f"{name}_gb_s"] > 0
            assert v[f"{name}_gb_s"] * v[f"{name}_ai"] == pytest.approx(v[f"{name}_gflop_s"])

    def test_results_equal_float64_within_the_band(self):
        v = run("bandwidth-here").values
        assert v["add_max_rel_err"] == pytest.approx(3.3e-8, rel=0.02)
        assert v["add_max_rel_err"] < 1e-6
        assert 1e-8 < v["matmul_max_rel_err"] < 1e-5

    def test_says_where_it_was_measured(self, small, monkeypatch):
        assert "在构建机" in small.verdict
        monkeypatch.setattr("sys.platform", "emscripten")
        assert "在你的浏览器里测得" in run("bandwidth-here", "n_elems=100000 mat_n=32 repeats=1").verdict

    def test_declares_what_depends_on_the_machine(self):
        kinds = {o.name: o.agreement for o in load("bandwidth-here").outputs}
        assert {name for name, kind in kinds.items() if kind == "machine"} == {"add_gb_s", "matmul_gb_s", "add_gflop_s", "matmul_gflop_s"}
        assert {name for name, kind in kinds.items() if kind == "band"} == {"add_max_rel_err", "matmul_max_rel_err"}

    @pytest.mark.parametrize("query", ["n_elems=99999", "mat_n=16", "repeats=0", "seed=-1"])
    def test_refusals(self, query):
        assert refusal("bandwidth-here", query).errors[0].field == query.split("=")[0]


CARDS = sorted(accelerators())


@pytest.mark.parametrize("id", CARDS)
def test_every_card_draws_its_charts(id):
    """A chart holds finite numbers, and on a logarithmic axis positive ones."""
    for query in (("train-memory", f"gpu={id}"), ("decode-bound", f"gpu={id} model=llama-3.2-1b ctx=2048")):
        calculator = load(query[0])
        for chart in calculator.charts(run(*query)):
            for series in getattr(chart, "series", ()):
                assert all(math.isfinite(x) and math.isfinite(y) and x > 0 and y > 0 for x, y in series.points)
                assert len(series.points) <= 200


class TestModelsOfOtherShapes:
    """A pasted config.json may have no KV at all, or recurrent layers beside attention."""

    MAMBA = '{"model_type": "mamba", "hidden_size": 768, "num_hidden_layers": 24, "vocab_size": 50280, "state_size": 16, "intermediate_size": 1536, "conv_kernel": 4, "expand": 2, "time_step_rank": 48}'

    def test_no_kv_is_nothing_to_read(self) -> None:
        run = load("decode-bound").run({"model": self.MAMBA, "ctx": "4096", "batch": "8"})

        assert run.values["kv_read_gb"] == 0
        assert load("decode-bound").charts(run)

    def test_activation_formulas_refuse_another_block(self) -> None:
        with pytest.raises(Refusal, match="模型"):
            load("train-memory").run({"model": self.MAMBA})
