"""The identity card of a model: presets and pasted files against values from outside, and honest blanks."""

from __future__ import annotations

import html
import json
import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from worked_line import check_lines

from calculators.catalog import models
from calculators.core.calculator import Run
from calculators.core.errors import Refusal
from calculators.core.index import load
from calculators.render.card import result
from calculators.site.cli import main

HERE = Path(__file__).parent / "data"
TRUTH = json.loads((HERE / "models_truth.json").read_text(encoding="utf-8"))
COUNTED = {case["config"]["model_type"]: case for case in json.loads((HERE / "configs" / "counted.json").read_text(encoding="utf-8"))["cases"]}
CARD = load("model-card")
OUTPUT = {
    "param_count": "total_params",
    "active_params": "active_params",
    "kv_bytes_per_token": "kv_bytes_per_token",
    "flops_fwd_per_token": "flops_fwd_per_token",
}
PLAIN = settings(max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))


def run(model: object = "llama-3-8b", **more: str) -> Run:
    return CARD.run({"model": model if isinstance(model, str) else json.dumps(model), **more})


@pytest.mark.parametrize("row", TRUTH, ids=[f"{row['metric']}-{row['model']}-{i}" for i, row in enumerate(TRUTH)])
def test_values_from_outside(row):
    """Source: each row's own ``source``."""
    more = {"context_tokens": str(row["context_tokens"]), "causal_mean": str(row["causal_mean"]).lower()} if "context_tokens" in row else {}
    value = run(row["model"], **more).values[OUTPUT[row["metric"]]]
    if row["tolerance"] == 0:
        assert value == row["expected"]
        assert isinstance(value, int)
    else:
        assert value == pytest.approx(row["expected"], rel=row["tolerance"])


@pytest.mark.parametrize("row", [row for row in TRUTH if "config" in row], ids=[row["model"] for row in TRUTH if "config" in row])
def test_values_from_outside_read_from_a_config(row):
    """The same totals from the dimensions as a config.json states them."""
    assert run(row["config"]).values["total_params"] == row["expected"]


def test_card_of_the_usual_model():
    """meta-llama/Meta-Llama-3-8B: 8,030,261,248 parameters, 16,060,522,496 bytes in BF16 (the index of its weights), 128 KiB of KV a token."""
    card = run()
    assert card.values["total_params"] == card.values["active_params"] == 8_030_261_248
    assert card.values["active_params_no_input_embedding"] == 7_504_924_672
    assert card.values["embedding_params"] == 525_336_576
    assert card.values["weights_gb"] == pytest.approx(16.060522496, rel=1e-12)
    assert card.values["kv_bytes_per_token"] == 131_072
    assert card.values["max_context"] == 8192
    assert card.values["cards"] == 1
    assert sum(row["params"] for row in card.values["breakdown"]) == 8_030_261_248
    assert sum(row["share"] for row in card.values["breakdown"]) == pytest.approx(100)
    for words in ("8.03B", "GQA", "128 KiB", "16.06 GB", "24 GB"):
        assert words in card.verdict
    assert card.resolved == {"weight_bytes": 2.0}


@pytest.mark.parametrize("id", models())
def test_lines_of_every_preset_can_be_checked(id):
    card = run(id)
    assert card.lines
    check_lines(card.lines)
    assert all(value is not None for value in card.values.values())


@pytest.mark.parametrize("kind", COUNTED)
def test_lines_of_pasted_models_can_be_checked(kind):
    card = run(COUNTED[kind]["config"])
    check_lines(card.lines)
    assert card.values["total_params"] == COUNTED[kind]["total"]
    assert card.values["basis"].startswith("精确")
    assert [row["note"] for row in card.values["derived"]] == list(card.notes)


def test_weights_follow_the_typed_bytes_the_file_and_the_usual_two():
    config = {**COUNTED["llama"]["config"], "torch_dtype": "float32"}
    total = COUNTED["llama"]["total"]
    assert run(config).values["weights_gb"] == pytest.approx(4 * total / 1e9)
    assert run(config, weight_bytes="1").values["weights_gb"] == pytest.approx(total / 1e9)
    assert run(COUNTED["llama"]["config"]).values["weights_gb"] == pytest.approx(2 * total / 1e9)


def test_kv_bytes_halve():
    assert run(kv_bytes="1").values["kv_bytes_per_token"] == 65_536


def test_growth_stops_at_the_window():
    """Gemma 3 27B: 10 of 62 layers see all; the others stop at 1024 tokens."""
    card = run("gemma-3-27b-text", context_tokens="8192")
    assert card.values["kv_bytes_per_token"] == 507_904
    assert card.values["kv_growth_bytes_per_token"] == 507_904 * 10 // 62
    assert card.values["kv_context_gb"] == pytest.approx((507_904 * 10 // 62 * 8192 + 507_904 * 52 // 62 * 1024) / 1e9)


def test_what_cannot_be_counted_is_blank():
    config = {key: value for key, value in COUNTED["llama"]["config"].items() if key != "vocab_size"}
    card = run(config)
    blank = ("total_params", "active_params", "active_params_no_input_embedding", "embedding_params", "weights_gb", "flops_fwd_per_token", "cards")
    assert all(card.values[name] is None for name in blank)
    assert card.texts["total_params"] == "—"
    assert card.values["kv_bytes_per_token"] == 2 * COUNTED["llama"]["kv_values"]
    assert "不能确定" in card.verdict
    assert any("vocab_size" in note for note in card.notes)


def test_assumptions_lead_the_verdict():
    config = {**COUNTED["llama"]["config"], "model_type": "llama_turbo_x", "attention_bias": False, "mlp_bias": False, "num_key_value_heads": 8}
    card = run(config)
    assert card.verdict.startswith("按假设估算")
    assert card.values["basis"].startswith("带假设")


def test_a_file_on_the_command_line(tmp_path, capsys):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(COUNTED["qwen3_moe"]["config"]), encoding="utf-8")
    assert main(["run", "model-card", f"model=@{path}", "--json"]) == 0
    outputs = json.loads(capsys.readouterr().out)["outputs"]
    assert outputs["total_params"]["value"] == COUNTED["qwen3_moe"]["total"]
    path.write_text('{"peft_type": "LORA"}', encoding="utf-8")
    assert main(["run", "model-card", f"model=@{path}", "--json"]) == 2
    errors = json.loads(capsys.readouterr().err)["errors"]
    assert errors[0]["field"] == "model"
    assert "LoRA" in errors[0]["message"]


def test_it_has_a_place_in_the_list(capsys):
    assert main(["list"]) == 0
    assert "model-card" in capsys.readouterr().out


def test_nothing_of_a_file_reaches_the_page_unescaped():
    mark = "<img src=x onerror=alert(1)>"
    config = {
        **COUNTED["llama"]["config"],
        "_name_or_path": mark,
        "torch_dtype": mark,
        "architectures": [mark],
        "quantization_config": {"quant_method": mark},
        mark: 5,
    }
    card = run(config)
    page = str(result(CARD, card, "model-card"))
    assert mark not in page
    assert html.escape(mark) not in page


SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-5, 10**9), st.floats(), st.text(max_size=8))


@PLAIN
@given(st.sampled_from(sorted(COUNTED)), st.data())
def test_any_damaged_file_gives_a_card_or_a_refusal(kind, data):
    config = dict(COUNTED[kind]["config"])
    for key in data.draw(st.lists(st.sampled_from(sorted(config)), max_size=3)):
        config[key] = data.draw(SCALARS)
    try:
        card = run(config)
    except Refusal:
        return
    for value in card.values.values():
        assert not isinstance(value, float) or math.isfinite(value)
    for text in (*card.texts.values(), *card.lines, card.verdict, *card.notes):
        assert "nan" not in text.lower()
        assert "<" not in text
    check_lines(card.lines)
