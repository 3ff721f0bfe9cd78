"""Vision towers and projectors of multimodal models: how many parameters stand beside the text part.

Only the towers described here are counted; a model with any other tower is counted without it, and says so.
"""

from __future__ import annotations

from collections.abc import Callable

from calculators.catalog.configs.values import Config

Tower = Callable[[Config, Config, int], int]
"""(whole config, vision section, hidden size of the text part) → parameters of tower and projector."""


def _layer(h: int, f: int, *, bias: bool = True, gated: bool = False, norms: int = 4) -> int:
    """One encoder layer: four h × h projections, a feed-forward, ``norms`` vectors of h."""
    wide = 2 if gated else 1
    return 4 * h * h + (wide + 1) * h * f + (4 * h + wide * f + h) * bias + norms * h


def _linear(inputs: int, outputs: int, bias: bool = True) -> int:
    return inputs * outputs + outputs * bias


def _patches(v: Config) -> int:
    side = v.need("image_size") // v.need("patch_size")
    return side * side


def _patch_weights(v: Config) -> int:
    return (v.size("num_channels") or v.size("in_channels") or 3) * v.need("patch_size") * v.need("patch_size")


def siglip(v: Config) -> int:
    """SigLIP: learned positions, LayerNorm, an optional attention-pooling head."""
    h, f = v.need("hidden"), v.need("ffn")
    head = h + _layer(h, f, norms=2) if v.switch("vision_use_head") else 0
    return _linear(_patch_weights(v), h) + _patches(v) * h + v.need("layers") * _layer(h, f) + 2 * h + head


def clip(v: Config) -> int:
    """CLIP: a class token, no patch bias, a norm before and after."""
    h = v.need("hidden")
    return h + _patch_weights(v) * h + (_patches(v) + 1) * h + v.need("layers") * _layer(h, v.need("ffn")) + 4 * h


def pixtral(v: Config) -> int:
    """Pixtral: rotary positions, RMSNorm, gated feed-forward, no biases."""
    h = v.need("hidden")
    return _patch_weights(v) * h + h + v.need("layers") * _layer(h, v.need("ffn"), bias=False, gated=True, norms=2)


ENCODERS: dict[str, Callable[[Config], int]] = {"siglip_vision_model": siglip, "clip_vision_model": clip, "pixtral": pixtral}


def encoder(v: Config) -> int | None:
    """The encoder of that model_type, None when it is not described here."""
    count = ENCODERS.get(v.model_type)
    return count(v) if count else None


def _taps(c: Config) -> int:
    """How many layers' features the projector joins."""
    listed = c.raw.get("vision_feature_layer")
    return len(listed) if isinstance(listed, list) and listed else 1


def llava(c: Config, v: Config, text: int) -> int:
    """Two linear maps."""
    bias = c.raw.get("multimodal_projector_bias") is not False
    return _known(v) + _linear(v.need("hidden") * _taps(c), text, bias) + _linear(text, text, bias)


def llava_newline(c: Config, v: Config, text: int) -> int:
    """The same, and one vector for the end of an image row."""
    return llava(c, v, text) + text


def vipllava(c: Config, v: Config, text: int) -> int:
    """Features of several layers, normalised together."""
    listed = c.items("vision_feature_layers")
    h, bias = v.need("hidden") * (len(listed) if listed else 5), c.raw.get("multimodal_projector_bias") is not False
    return _known(v) + 2 * h + _linear(h, text, bias) + _linear(text, text, bias)


def mistral3(c: Config, v: Config, text: int) -> int:
    """A norm, a merger of neighbouring patches, two linear maps."""
    h, s, bias = v.need("hidden"), c.size("spatial_merge_size") or 2, c.raw.get("multimodal_projector_bias") is True
    return _known(v) + h + h * s * s * h + _linear(h * _taps(c), text, bias) + _linear(text, text, bias)


def gemma3(c: Config, v: Config, text: int) -> int:
    """One matrix and a norm."""
    return _known(v) + v.need("hidden") * text + v.need("hidden")


def paligemma(c: Config, v: Config, text: int) -> int:
    """One linear map."""
    return _known(v) + _linear(v.need("hidden"), text)


def idefics3(c: Config, v: Config, text: int) -> int:
    """Neighbouring patches are joined, then one matrix."""
    s = c.size("scale_factor") or 2
    return siglip(v) + v.need("hidden") * s * s * text


def _merger(width: int, out: int) -> int:
    return _linear(width, width) + _linear(width, out)


def qwen2_vl(c: Config, v: Config, text: int) -> int:
    """``embed_dim`` is the tower's width, ``hidden_size`` the text's."""
    e, s = v.need("embed_dim"), v.size("spatial_merge_size") or 2
    patch = _patch_weights(v) * (v.size("temporal_patch_size") or 2) * e
    return patch + v.need("depth") * _layer(e, int((v.number("mlp_ratio") or 4) * e)) + 2 * e + _merger(e * s * s, v.size("hidden") or text)


def qwen25_vl(c: Config, v: Config, text: int) -> int:
    """RMSNorm and a gated feed-forward with biases."""
    e, s = v.need("hidden"), v.size("spatial_merge_size") or 2
    patch = _patch_weights(v) * (v.size("temporal_patch_size") or 2) * e
    return patch + v.need("depth") * _layer(e, v.need("ffn"), gated=True, norms=2) + e + _merger(e * s * s, v.size("out_hidden_size") or text)


def qwen3_vl(c: Config, v: Config, text: int) -> int:
    """Learned positions; a merger after the last layer and one for each deep-stack layer."""
    e, s, out = v.need("hidden"), v.size("spatial_merge_size") or 2, v.size("out_hidden_size") or text
    stacked = len(v.items("deepstack_visual_indexes") or []) if "deepstack_visual_indexes" in v.raw else 3 * v.model_type.startswith("qwen3_vl")
    wide = e * s * s
    patch = _linear(_patch_weights(v) * (v.size("temporal_patch_size") or 2), e)
    tower = patch + v.need("num_position_embeddings") * e + v.need("depth") * _layer(e, v.need("ffn"))
    return tower + 2 * e + _merger(wide, out) + stacked * (2 * wide + _merger(wide, out))


def kimi(c: Config, v: Config, text: int) -> int:
    """MoonViT: a grid of learned positions; the file writes ``vt_`` before every size."""
    h = v.size("vt_hidden_size") or v.need("hidden")
    f, n = v.size("vt_intermediate_size") or v.need("ffn"), v.size("vt_num_hidden_layers") or v.need("layers")
    joined = c.size("projection_hidden_size") or v.size("mm_hidden_size") or h
    rows, columns = (v.size(f"init_pos_emb_{side}") or v.need(f"pos_emb_{side}") for side in ("height", "width"))
    return _linear(3 * v.need("patch_size") * v.need("patch_size"), h) + rows * columns * h + n * _layer(h, f) + 2 * h + 2 * joined + _merger(4 * h, text)


def gemma4(c: Config, v: Config, text: int) -> int:
    """Two position tables, q/k norms, four norms a layer, no biases."""
    h, d = v.need("hidden"), v.need("head_dim")
    heads, kv = v.need("heads"), v.need("kv_heads")
    attention = 2 * h * (heads + kv) * d + 2 * d + ((heads + 2 * kv) * d + h) * v.switch("attention_bias")
    layer = attention + 3 * h * v.need("ffn") + 4 * h
    return 2 * v.need("position_embedding_size") * h + 3 * v.need("patch_size") * v.need("patch_size") * h + v.need("layers") * layer + h * text


def llama4(c: Config, v: Config, text: int) -> int:
    """A class token, pixel shuffle with its own two maps, one matrix to the text width."""
    h, f = v.need("hidden"), v.need("ffn")
    middle, out = v.need("projector_input_dim"), v.need("projector_output_dim")
    tower = h + (_patches(v) + 1) * h + _patch_weights(v) * h + 4 * h + v.need("layers") * _layer(h, f)
    return tower + f * middle + out * out + v.need("vision_output_dim") * text


def glm4v(c: Config, v: Config, text: int) -> int:
    """Gated blocks, a strided convolution, and a gated merger."""
    h, out, f, s = v.need("hidden"), v.size("out_hidden_size") or text, v.need("ffn"), v.size("spatial_merge_size") or 2
    block = 4 * h * h + 3 * h * out + 2 * h + 4 * h * v.switch("attention_bias")
    patch = _linear(_patch_weights(v) * (v.size("temporal_patch_size") or 2), h)
    return _patches(v) * h + patch + v.need("depth") * block + 2 * h + _linear(h * s * s, out) + out * out + 2 * out + 3 * out * f


def internvl(c: Config, v: Config, text: int) -> int:
    """InternViT: a class token, layer scales; a quarter of the patches, each four times as wide, through two maps."""
    h, f, n = v.need("hidden"), v.need("ffn"), v.need("layers")
    image, patch = (_side(v, key) for key in ("image_size", "patch_size"))
    ratio = c.number("downsample_ratio") or 0.5
    wide = int(h * int(1 / ratio) ** 2)
    norms = 2 * h if v.word("norm_type") == "rms_norm" else 4 * h
    layer = 4 * h * h + h + 3 * h * v.switch("attention_bias") + 2 * h * f + f + h + 2 * h + norms + 2 * h * v.switch("use_qk_norm")
    return h + ((image // patch) ** 2 + 1) * h + _linear(3 * patch * patch, h) + n * layer + 2 * wide + _linear(wide, text) + _linear(text, text)


def _side(v: Config, key: str) -> int:
    """A size that files write as one number or as [height, width]."""
    listed = v.raw.get(key)
    return v.need(key, 0) if isinstance(listed, list) else v.need(key)


class UnknownTower(Exception):
    """The vision section's model_type is not among those described here."""


def _known(v: Config) -> int:
    count = encoder(v)
    if count is None:
        raise UnknownTower(v.model_type)
    return count


TOWERS: dict[str, tuple[Tower, str]] = {
    "llava": (llava, "clip_vision_model"), "vipllava": (vipllava, "clip_vision_model"), "llava_next": (llava_newline, "clip_vision_model"),
    "llava_next_video": (llava_newline, "clip_vision_model"), "llava_onevision": (llava_newline, "siglip_vision_model"), "mistral3": (mistral3, "pixtral"),
    "gemma3": (gemma3, "siglip_vision_model"), "shieldgemma2": (gemma3, "siglip_vision_model"), "paligemma": (paligemma, "siglip_vision_model"),
    "idefics3": (idefics3, "idefics3_vision"), "smolvlm": (idefics3, "smolvlm_vision"), "qwen2_vl": (qwen2_vl, "qwen2_vl_vision"),
    "qwen2_5_vl": (qwen25_vl, "qwen2_5_vl_vision"), "qwen3_vl": (qwen3_vl, "qwen3_vl_vision"), "qwen3_vl_moe": (qwen3_vl, "qwen3_vl_moe_vision"),
    "qwen3_5": (qwen3_vl, "qwen3_5_vision"), "qwen3_5_moe": (qwen3_vl, "qwen3_5_moe_vision"), "kimi_k25": (kimi, "kimi_k25_vision"), "gemma4": (gemma4, "gemma4_vision"),
    "llama4": (llama4, "llama4_vision_model"), "glm4v": (glm4v, "glm4v_vision"), "glm46v": (glm4v, "glm4v_vision"), "glmga": (glm4v, "glm4v_vision"), "glm4v_moe": (glm4v, "glm4v_moe_vision"), "internvl": (internvl, "internvl_vision"),
}  # fmt: skip
"""model_type of the whole model → its tower, and the vision section's model_type where the file leaves it out."""
