"""「我的配置」 and the reader's own config.json: set once, offered by every card, returned by one click, never trusted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cards import cards, outputs, settle, status
from playwright.sync_api import FilePayload, Locator, Page, expect
from serving import SiteServer

from calculators.core.index import load

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 20, "num_attention_heads": 16,
    "num_key_value_heads": 4, "intermediate_size": 5632, "vocab_size": 32000, "tie_word_embeddings": False, "max_position_embeddings": 4096, "torch_dtype": "bfloat16",
}  # fmt: skip
TEXT = json.dumps(CONFIG)
HOSTILE = '{"model_type": "<img src=x onerror=window.hacked=1>", "hidden_size": 8}'


def json_file(text: str, name: str = "config.json") -> FilePayload:
    return {"name": name, "mimeType": "application/json", "buffer": text.encode()}


def card_of(page: Page, server: SiteServer, path: str, id: str) -> Locator:
    page.goto(server.url + path)
    cards(page)
    card = page.locator(f"calc-card[data-id={id}]").first
    card.evaluate("c => c.guess && c.guessed('skip', false)")
    return card


@pytest.fixture
def identity(page: Page, server: SiteServer) -> Locator:
    return card_of(page, server, "my-model.html", "model-card")


def paste(card: Locator, text: str) -> None:
    if not card.locator(".calc-paste").first.evaluate("d => d.open"):
        card.locator(".calc-paste > summary").first.click()
    card.locator("textarea[data-paste]").first.fill(text)


def said_beside_the_model(card: Locator) -> str:
    return card.locator("[data-field=model] .calc-msg").inner_text()


def test_a_pasted_config_gives_what_python_gives(identity: Locator) -> None:
    paste(identity, TEXT)
    settle(identity)

    assert outputs(identity) == load("model-card").run({"model": TEXT}).texts


def test_a_chosen_and_a_dropped_file_do_the_same(identity: Locator) -> None:
    expected = load("model-card").run({"model": TEXT}).texts
    identity.locator(".calc-paste > summary").first.click()
    identity.locator("input[data-file]").first.set_input_files(json_file(TEXT))
    expect(identity.locator("[data-output=total_params]")).to_have_attribute("data-text", expected["total_params"], timeout=60_000)
    identity.locator("[data-act=reset]").click()
    identity.evaluate(
        """(card, text) => {
          const data = new DataTransfer();
          data.items.add(new File([text], "config.json"));
          card.dispatchEvent(new DragEvent("drop", { bubbles: true, cancelable: true, dataTransfer: data }));
        }""",
        TEXT,
    )

    expect(identity.locator("[data-output=total_params]")).to_have_attribute("data-text", expected["total_params"], timeout=60_000)


@pytest.mark.parametrize(
    ("text", "words"),
    [("{not json", "JSON"), ("[1, 2]", "对象"), ('{"peft_type": "LORA", "r": 8, "base_model_name_or_path": "x"}', "LoRA"), (HOSTILE, "model_type")],
)
def test_what_is_no_model_is_refused_beside_the_field(identity: Locator, text: str, words: str) -> None:
    before = outputs(identity)
    identity.evaluate("(c, t) => { const s = c.querySelector('select[data-pastes]'); s.add(new Option('x', t)); s.value = t; c.changed(); }", text)
    settle(identity)

    assert words in said_beside_the_model(identity)
    assert outputs(identity) == before, "the last good answer stays"
    assert identity.page.evaluate("window.hacked") is None
    assert identity.locator("img").count() == 0


def test_a_huge_file_is_refused_before_it_is_read(identity: Locator) -> None:
    identity.locator(".calc-paste > summary").first.click()
    identity.locator("input[data-file]").first.set_input_files(json_file("{" + " " * 6_000_000 + "}", "model.safetensors"))

    expect(identity.locator("[data-role=status]")).to_contain_text("不会是 config.json")


def test_my_configuration_goes_through_the_book(identity: Locator, server: SiteServer) -> None:
    paste(identity, TEXT)
    settle(identity)
    identity.locator("[name=gpu]").select_option("a100-80gb")
    settle(identity)
    identity.locator("[data-act=mine-set]").click()
    assert "已记作我的配置" in status(identity)

    card = card_of(identity.page, server, "03-memory-wall.html", "decode-bound")
    printed = outputs(card)
    card.locator("[data-act=mine-use]").click()
    settle(card)
    expected = load("decode-bound").run({"model": TEXT, "gpu": "a100-80gb"}).texts
    assert outputs(card) == expected
    assert card.locator(".calc-field.is-changed").count() == 2, "a mark shows that the card is not on the text's values"

    card.page.reload()
    card = card.page.locator("calc-card[data-id=decode-bound]").first
    expect(card.locator("[data-output=tok_s]")).to_have_attribute("data-text", expected["tok_s"], timeout=60_000)
    card.locator("[data-act=reset]").click()
    assert outputs(card) == printed, "one click returns"


def test_a_card_says_when_it_does_not_take_my_model(identity: Locator, server: SiteServer) -> None:
    identity.locator("[name=model]").select_option("deepseek-v3")
    settle(identity)
    identity.locator("[data-act=mine-set]").click()
    card = card_of(identity.page, server, "03-memory-wall.html", "train-memory")
    card.locator("[data-act=mine-use]").click()

    expect(card.locator("[data-role=status]")).to_contain_text("不收 DeepSeek-V3")


def test_export_erase_and_import(identity: Locator, tmp_path: Path) -> None:
    panel = identity.page.locator("my-config")
    identity.locator("[name=model]").select_option("qwen2.5-7b")
    settle(identity)
    identity.locator("[data-act=mine-set]").click()
    with identity.page.expect_download() as download:
        panel.locator("[data-act=mine-export]").click()
    saved = tmp_path / "mine.json"
    download.value.save_as(saved)
    panel.locator("[data-act=mine-erase]").click()
    expect(panel).to_contain_text("还没有设置")
    panel.locator("input").set_input_files(saved)

    expect(panel).to_contain_text("已导入")
    expect(panel).to_contain_text("Qwen2.5 7B")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("not json", "不是 JSON"), ("[]", "JSON 对象"), ('{"schema": 99}', "版本是 99"), ('{"schema": 1, "model": "no-such-model"}', "no-such-model"),
        ('{"schema": 1, "gpu": 5}', "应当是文字"), ('{"schema": 1, "gpu": "<b>x</b>"}', "没有叫"),
    ],
)  # fmt: skip
def test_a_broken_or_old_file_is_refused_with_the_reason(identity: Locator, text: str, reason: str) -> None:
    panel = identity.page.locator("my-config")
    panel.locator("input").set_input_files(json_file(text))

    expect(panel.locator("[data-role=mine-status]")).to_contain_text(reason)
    assert panel.locator("b").count() == 0
    assert identity.page.evaluate("localStorage.getItem('aiinfra.v1.mine')") is None
