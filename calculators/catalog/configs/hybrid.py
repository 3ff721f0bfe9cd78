"""Families in which some or all layers keep a fixed state instead of K and V."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from calculators.catalog.configs import plans
from calculators.catalog.configs.attention import Gqa, Mla
from calculators.catalog.configs.family import Family
from calculators.catalog.configs.feedforward import Ffn, LatentMoe, Moe, Rwkv4Ffn, shared_multiples, shared_width, stated_width
from calculators.catalog.configs.moe import granite_shared
from calculators.catalog.configs.parts import Block, Layer
from calculators.catalog.configs.recurrent import DeltaNet, Kda, Lightning, Mamba1, Mamba2, RgLru, Rwkv4, ShortConv
from calculators.catalog.configs.values import Config, MissingKey, shown

_BOTH = Gqa(qkv_bias="attention_bias", out_bias="attention_bias")
_GATED_Q = replace(_BOTH, qk_norm="head", gate="query")
_QWEN_MOE = Moe(shared=shared_width, shared_gate=True)
_PURE_MAMBA = Mamba1("state_size", "conv_kernel", "expand", "time_step_rank", "use_conv_bias", "use_bias", width="intermediate_size")


def state_only(c: Config) -> list[Layer]:
    """Every layer is a state block without a feed-forward (Mamba)."""
    return [Layer(i, "linear", "none") for i in range(c.need("layers"))]


_NEMOTRON = {"M": ("linear", "none"), "*": ("full", "none"), "-": ("none", "dense"), "E": ("none", "moe")}
_NEMOTRON_WORDS = {
    "linear_attention": "M", "mamba": "M", "full_attention": "*", "attention": "*", "mlp": "-", "moe": "E",
}  # fmt: skip


def nemotron_layers(c: Config) -> list[Layer]:
    """Nemotron-H: each layer is one thing only; a pattern such as ``M-M*-E`` or a list of words says which."""
    pattern = c.word("hybrid_override_pattern")
    if pattern is None:
        words = c.items("layers_block_type") or c.items("layer_types")
        if words is None:
            raise MissingKey("hybrid_override_pattern")
        pattern = "".join(_NEMOTRON_WORDS.get(str(word), "?") for word in words)
    if not pattern or set(pattern) - set(_NEMOTRON) or len(pattern) > 10_000:
        raise c.refuse("hybrid_override_pattern 只能由 M、*、-、E 组成", shown(pattern))
    stated = c.size("layers")
    if stated is not None and stated != len(pattern):
        raise c.refuse("hybrid_override_pattern 必须每层一个字符", f"{len(pattern)} 个，num_hidden_layers 是 {stated}")
    return [Layer(i, *_NEMOTRON[kind]) for i, kind in enumerate(pattern)]


def olmo_hybrid_mixes(c: Config, n: int) -> list[str]:
    """Every fourth layer attends."""
    mixes = ["full" if i % 4 == 3 else "linear" for i in range(n)]
    return mixes if "full" in mixes else [*mixes[:-1], "full"]


def lara_mixes(c: Config, n: int) -> list[str]:
    """A period of five."""
    period = ("linear", "window", "linear", "full", "window")
    return [period[i % 5] for i in range(n)]


def lfm3_mixes(c: Config, n: int) -> list[str]:
    """Convolutions, with full and windowed attention in turn."""
    return ["full" if i % 4 == 2 else "window" if i % 4 == 0 and i > 0 else "linear" for i in range(n)]


def ling_mixes(c: Config, n: int) -> list[str]:
    """Ling 2.5: one full layer at the end of each group."""
    return plans.every(c.size("layer_group_size") or 6, window="linear")(c, n)


def _sandwich(c: Config) -> int:
    return 4 if c.switch("use_sandwich_norm") else 2


def lfm2_width(c: Config, layer: Layer) -> int:
    """Two thirds of the stated width, rounded up to a multiple, when ``block_auto_adjust_ff_dim``."""
    width = c.size("block_ff_dim") or c.need("ffn")
    if not c.switch("block_auto_adjust_ff_dim"):
        return width
    multiple = c.size("block_multiple_of") or 256
    scaled = int((c.number("block_ffn_dim_multiplier") or 1.0) * int(2 * width / 3))
    return multiple * -(-scaled // multiple)


def half_width(c: Config, layer: Layer) -> int:
    """RecurrentGemma states the width of gate and up projection together."""
    return c.need("ffn") // 2


def hybrid_types(c: Config, n: int) -> list[str]:
    """Granite 4: without a list every layer is a state block."""
    return ["linear"] * n


class GraniteMoe:
    """Granite 4: routed experts (none in its dense sizes) beside one shared feed-forward."""

    def count(self, c: Config, layer: Layer) -> Block:
        shared = 3 * c.need("hidden") * granite_shared(c, layer)
        if not c.count("experts"):
            return Block({"dense_ffn": shared})
        return Moe(expert=stated_width, shared=granite_shared).count(c, layer)


def zamba2_layers(c: Config) -> list[Layer]:
    """Zamba 2: hybrid layers use one of the shared blocks, then a Mamba block."""
    n = c.need("layers")
    mixes = plans.named_mixes(c, "layers_block_type", n)
    if mixes is None:
        raise MissingKey("layers_block_type")
    return [Layer(i, mix, "none") for i, mix in enumerate(mixes)]


class ZambaAttention:
    """One use of a shared block: its own linear map and Mamba block, and its own K and V; the shared weights stand in ``zamba2_shared``."""

    def count(self, c: Config, layer: Layer) -> Block:
        h, a = c.need("hidden"), c.need("heads")
        kv, d = c.size("kv_heads") or a, 2 * h // a
        inner = ZAMBA2_MAMBA.count(c, layer)
        return Block({"attention": h * h, **inner.params}, kv=2 * kv * d, score=2 * a * d)


class ZambaMamba:
    """Zamba 2's Mamba-2 under the names of both its releases."""

    def count(self, c: Config, layer: Layer) -> Block:
        h = c.need("hidden")
        w = int((c.number("mamba_expand") or c.number("expansion_factor") or 2) * h)
        heads = c.size("n_mamba_heads") if c.given("mamba_headdim")[1] is None or c.given("n_mamba_heads")[1] is not None else w // c.need("mamba_headdim")
        if heads is None:
            raise MissingKey("n_mamba_heads")
        state = c.need_any("state_size", "mamba_d_state")
        kernel = c.need_any("conv_dimension", "mamba_d_conv")
        conv = w + 2 * c.need("mamba_ngroups") * state
        bias = (w + conv + heads + h) * c.switch("add_bias_linear")
        return Block({"recurrent": h * (w + conv + heads) + w * h + 3 * heads + conv * (kernel + 1) + bias, "norms": w})


ZAMBA2_MAMBA = ZambaMamba()


def zamba2_shared(c: Config, layers: Sequence[Layer]) -> Block:
    """The shared blocks once each, and the low-rank adapters of every place that uses one."""
    h, a, f, places = c.need("hidden"), c.need("heads"), c.size("ffn") or 4 * c.need("hidden"), sum(layer.mix == "shared" for layer in layers)
    blocks = min(c.size("num_mem_blocks") or 1, places)
    kv, d = c.size("kv_heads") or a, 2 * h // a
    rank = c.need_any("lora_rank", "adapter_rank")
    attention = 2 * h * (a + 2 * kv) * d + a * d * h
    adapters = places * rank * (h + 2 * f + (3 * 4 * h if c.switch("use_shared_attention_adapter") else 0))
    bias = (2 * f + h) * c.switch("add_bias_linear")
    return Block(
        {"attention": blocks * attention, "dense_ffn": blocks * (3 * h * f + bias), "norms": blocks * 3 * h, "adapters": adapters},
    )


def dense_feeds(c: Config, n: int) -> list[bool]:
    """Qwen3-Next without experts is dense."""
    return plans.sparse_step(c, n) if c.count("experts") else [False] * n


QWEN3_NEXT = Family("Qwen3-Next", _GATED_Q, Ffn(), _QWEN_MOE, DeltaNet(), mixes=plans.every(4, "full_attention_interval", window="linear"), sparse=dense_feeds)
QWEN35 = Family("Qwen3.5", _GATED_Q, Ffn(), None, DeltaNet(), mixes=plans.every(4, "full_attention_interval", window="linear"))

HYBRID: dict[str, Family] = {
    "mamba": Family("Mamba", linear=_PURE_MAMBA, layers=state_only, norms=1),
    "falcon_mamba": Family("Falcon Mamba", linear=_PURE_MAMBA, layers=state_only, norms=1),
    "mamba2": Family(
        "Mamba-2", linear=Mamba2("num_heads", "", "state_size", "n_groups", "conv_kernel", "expand", "", "use_conv_bias", "use_bias", "use_bias"),
        layers=state_only, norms=1,
    ),
    "falcon_h1": Family(
        "Falcon-H1", _BOTH, Ffn(bias="mlp_bias"),
        linear=Mamba2(width="mamba_d_ssm", out_bias="projectors_bias", norm="mamba_rms_norm"), mixes=plans.always("both"),
    ),
    "bamba": Family("Bamba", _BOTH, Ffn(bias="mlp_bias"), linear=Mamba2(), mixes=plans.listed_layers("attn_layer_indices"), types_key="layers_block_type"),
    "granitemoehybrid": Family("Granite 4", _BOTH, moe=GraniteMoe(), linear=Mamba2(), mixes=hybrid_types),
    "jamba": Family("Jamba", Gqa(), Ffn(), Moe(expert=stated_width), Mamba1(norms=True), mixes=plans.periodic, sparse=plans.expert_period),
    "nemotron_h": Family(
        "Nemotron-H", Gqa(), Ffn(gated=False, bias="mlp_bias"), LatentMoe(),
        Mamba2("mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups", "conv_kernel", "expand", "", "use_conv_bias", "use_bias", "use_bias"),
        layers=nemotron_layers, norms=1, tied=False,
    ),
    "zamba2": Family("Zamba 2", ZambaAttention(), linear=ZAMBA2_MAMBA, layers=zamba2_layers, norms=1, extra=zamba2_shared, refuses=("!tie_word_embeddings",)),
    "qwen3_next": QWEN3_NEXT,
    "qwen3_5_text": QWEN35,
    "qwen3_5_moe_text": replace(QWEN3_NEXT, name="Qwen3.5-MoE", sparse=plans.all_sparse),
    "lara_mini": Family("Lara mini", replace(_BOTH, qk_norm="head"), moe=Moe(shared=shared_width), linear=DeltaNet(), mixes=lara_mixes),
    "olmo_hybrid": Family("OLMo hybrid", replace(_BOTH, qk_norm="full"), linear=DeltaNet(), mixes=olmo_hybrid_mixes),
    "bailing_hybrid": Family(
        "Ling 2.5", Mla(gate="head"), Ffn(), Moe(shared=shared_multiples), Kda(False, "num_attention_heads", "head_dim", "short_conv_kernel_size"), mixes=ling_mixes, sparse=plans.after_dense(), tied=False,
    ),
    "kimi_linear": Family(
        "Kimi Linear", Mla(), Ffn(), Moe(shared=shared_multiples), Kda(), mixes=plans.one_based_lists, sparse=plans.after_dense(default=1),
        tied=False, refuses=("routed_expert_hidden_size", "mla_use_output_gate", "attn_res_block_size", "latent_moe_use_norm"),
    ),
    "minimax": Family("MiniMax-01", Gqa(), moe=Moe(expert=stated_width), linear=Lightning(), mixes=plans.minimax_mixes),
    "lfm2": Family("LFM2", Gqa(qk_norm="head"), Ffn(width=lfm2_width), linear=ShortConv(), mixes=plans.listed_layers("full_attn_idxs")),
    "lfm3": Family(
        "LFM3", replace(_BOTH, qk_norm="head", gate="head", gate_if="use_attention_gate"), Ffn(), linear=ShortConv(), mixes=lfm3_mixes, norms=_sandwich,
    ),
    "lfm2_moe": Family(
        "LFM2-MoE", Gqa(qk_norm="head"), Ffn(), Moe(), ShortConv(), mixes=plans.listed_layers("full_attn_idxs"), sparse=plans.after_dense("num_dense_layers")
    ),
    "recurrent_gemma": Family("RecurrentGemma", Gqa(qkv_bias="attention_bias", out_bias=True), Ffn(bias=True, width=half_width), linear=RgLru(), mixes=plans.griffin),
    "rwkv": Family("RWKV-4", ffn=Rwkv4Ffn(), linear=Rwkv4(), mixes=plans.always("linear"), norm_bias=True),
}  # fmt: skip
"""model_type → family."""
