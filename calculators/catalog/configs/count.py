"""Counts a config part by part; what cannot be counted leaves a doubt instead of a number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from calculators.catalog.configs import family as families
from calculators.catalog.configs.family import Family
from calculators.catalog.configs.feedforward import Ffn
from calculators.catalog.configs.parts import Block, Layer, idle, total
from calculators.catalog.configs.towers import TOWERS, UnknownTower
from calculators.catalog.configs.values import Config, MissingKey
from calculators.catalog.store import read

TOWER = "vision_tower"
_SECTIONS = ("vision_config", "audio_config", "vision_tower_config", "speech_config", "vq_config", "visual", "vision_cfg")
_ORDER = (
    "input_table",
    "per_layer_table",
    "position_table",
    "attention",
    "recurrent",
    "dense_ffn",
    "routed_experts",
    "shared_experts",
    "router",
    "norms",
    "biases",
)
_LIFTS_TEXT_TIE = frozenset(("llava", "llava_onevision", "vipllava", "qwen2_vl", "qwen2_5_vl", "glm4v", "glm4v_moe", "llama4", "minimax_m3_vl"))
"""Whole models that also tie when only their text section says so."""


@dataclass
class Tally:
    """What could be counted.  ``doubts`` say why a total is missing, ``text_only`` that a tower is left out, ``assumed`` that
    something about the count is a guess, ``gated`` whether the feed-forward has a gate.
    """

    layers: list[Layer]
    mixers: list[Block]
    feeds: list[Block] = field(default_factory=list)
    params: dict[str, int] = field(default_factory=dict)
    idle: int | None = 0
    doubts: list[str] = field(default_factory=list)
    text_only: bool = False
    assumed: bool = False
    gated: bool = True


def count(c: Config, outer: Config, family: Family) -> Tally:
    """Every part of the model.  Raises Refusal when not even the layers can be laid out."""
    try:
        layers = families.layer_plan(c, family)
        tally = Tally(layers, [families.mixer(c, family, layer) for layer in layers])
    except MissingKey as missing:
        raise c.refuse("config.json 缺了一个非有不可的尺寸", f"没有 {missing.key}", "找完整的 config.json；这个数不能用默认值代替") from None
    tally.gated = not isinstance(family.ffn, Ffn) or family.ffn.gated
    around = [families.norms(c, family)] * len(layers)
    _attempt(tally, lambda: tally.feeds.extend(families.feed(c, family, layer) for layer in layers))
    _attempt(tally, lambda: around.append(family.extra(c, layers) if family.extra else Block()))
    _attempt(tally, lambda: around.append(families.tables(c, family, tied(c, outer) if family.tied is None else family.tied)))
    _attempt(tally, lambda: around.append(_tower(tally, c, outer)))
    tally.doubts += [family.doubt] if family.doubt else []
    if family.unchecked:
        tally.assumed = True
        c.note(f"{family.name} 按公开代码描述，没有和库里的类核对过。")
    if outer.model_type == "mistral3" and not _states_tie(outer, c):
        tally.assumed = True
        c.note("文件没写 tie_word_embeddings：按 mistral3 类的默认值 true 算；Mistral 发布的权重另存了一份输出头，那样要多一张词表。")
    tally.doubts += [f"{key.lstrip('!')} 的这个取值会改变结构，这里没有跟" for key in family.refuses if _is_set(c, key)]
    blocks = [*around, *tally.mixers, *tally.feeds]
    tally.params = _ordered(total(blocks))
    tally.idle = idle(blocks)
    return tally


def _attempt(tally: Tally, step: Callable[[], object]) -> None:
    try:
        step()
    except MissingKey as missing:
        tally.doubts.append(f"文件没写 {missing.key}")


def _is_set(c: Config, key: str) -> bool:
    return c.raw.get(key[1:]) is False if key.startswith("!") else bool(c.raw.get(key))


def _ordered(params: dict[str, int]) -> dict[str, int]:
    """Tables first, the head and the tower last."""
    place = {part: i for i, part in enumerate(_ORDER)} | {"output_head": 98, TOWER: 99}
    return dict(sorted(params.items(), key=lambda item: place.get(item[0], 50)))


def tied(c: Config, outer: Config) -> bool:
    """Does the output head share the input table?  The whole model's statement or class decides, for some the text section too."""
    if not c.nested:
        key = "tie_embedding" if c.raw.get("tie_word_embeddings") is None and c.raw.get("tie_embedding") is not None else "tie_word_embeddings"
        return c.switch(key)
    inner = c.raw.get("tie_word_embeddings")
    if outer.model_type == "llama4":
        return inner is True
    if outer.raw.get("tie_word_embeddings") is None and outer.model_type not in TOWERS and not outer.defaults:
        return c.switch("tie_word_embeddings")
    return outer.switch("tie_word_embeddings") or (inner is True and outer.model_type in _LIFTS_TEXT_TIE)


def _states_tie(*configs: Config) -> bool:
    return any(config.raw.get("tie_word_embeddings") is not None for config in configs)


def _tower(tally: Tally, c: Config, outer: Config) -> Block:
    """The vision tower, where it is described here; else the tally holds the text part only."""
    sections = [key for key in _SECTIONS if isinstance(outer.raw.get(key), dict) and outer.raw[key]]
    if not sections:
        tally.text_only = c.nested
        if c.nested:
            c.note("文件里没有图像或语音塔的尺寸：只算文字部分。")
        return Block()
    described = TOWERS.get(outer.model_type)
    if sections != ["vision_config"] or described is None:
        return _text_only(tally, c, outer)
    tower, usual_type = described
    raw = outer.raw["vision_config"]
    assert isinstance(raw, dict)
    stated = raw.get("model_type")
    model_type = stated if isinstance(stated, str) and read("configs").get(stated) else usual_type
    v = Config(raw, read("configs").get(model_type, {}), model_type=model_type, nested=True, field=c.field)
    try:
        params = tower(outer, v, c.need("hidden"))
    except (UnknownTower, MissingKey):
        return _text_only(tally, c, outer)
    c.note(f"图像塔和投影层也算在内：{params} 个参数；每 token 的计算量不含它。")
    return Block({TOWER: params})


def _text_only(tally: Tally, c: Config, outer: Config) -> Block:
    tally.text_only = True
    c.note(f"多模态模型（{outer.model_type or '没写 model_type'}）：这里只算文字部分，图像、语音的塔不算在内。")
    return Block()
