"""Which layer holds what: full or windowed attention, a fixed state, a dense feed-forward or experts.

A file's own ``layer_types`` and ``mlp_layer_types`` come first; the rules here are what each class does without them.
"""

from __future__ import annotations

from collections.abc import Callable

from calculators.catalog.configs.values import Config, shown

Mixes = Callable[[Config, int], list[str]]
"""(config, number of layers) → ``full``, ``window``, … for each layer."""
Feeds = Callable[[Config, int], list[bool]]
"""(config, number of layers) → does the layer hold experts?"""

_WORDS = {
    "full_attention": "full", "attention": "full", "global": "full", "global_attention": "full", "indexed_attention": "full",
    "minimax_m3_sparse": "full", "deepseek_sparse_attention": "full", "sliding_attention": "window", "local": "window", "local_attention": "window",
    "chunked_attention": "chunk", "linear_attention": "linear", "mamba": "linear", "mamba2": "linear", "conv": "linear", "recurrent": "linear",
    "hybrid": "shared", "mlp": "mlp", "moe": "moe",
}  # fmt: skip
"""What files write → the names of ``parts.Layer.mix``."""
_FEEDS = {"dense": False, "sparse": True, "moe": True}


def named_mixes(c: Config, key: str, n: int, words: dict[str, str] = _WORDS) -> list[str] | None:
    """The file's own list of layer kinds, None when it has none.  Raises Refusal on an unknown kind or a wrong length."""
    kinds = c.items(key)
    if kinds is None:
        return None
    if len(kinds) < n:
        raise c.refuse(f"{key} 必须每层一项", f"{len(kinds)} 项，共 {n} 层", "核对 num_hidden_layers")
    unknown = [kind for kind in kinds if not isinstance(kind, str) or kind not in words]
    if unknown:
        raise c.refuse(f"{key} 里有不认识的层", shown(unknown[0]), f"认识的有 {'、'.join(words)}")
    return [words[str(kind)] for kind in kinds[:n]]


def full(c: Config, n: int) -> list[str]:
    """Full attention everywhere."""
    return ["full"] * n


def windowed(c: Config, n: int) -> list[str]:
    """One window for every layer, when the file sets one (Mistral, Phi-3)."""
    return ["window" if c.size("sliding_window") else "full"] * n


def every(period: int, key: str = "", *, first: bool = False, window: str = "window") -> Mixes:
    """Full attention in each ``period``-th layer (``first``: from layer 0 on), ``window`` in the others; ``key`` may change it."""

    def mixes(c: Config, n: int) -> list[str]:
        step = (c.count(key) if key and c.given(key)[1] is not None else None) or period
        return ["full" if (i % step == 0 if first else (i + 1) % step == 0) else window for i in range(n)]

    return mixes


def exaone_pattern(c: Config, n: int) -> list[str]:
    """EXAONE 4: a number, or a word such as LLLG; without a window every layer is full."""
    if not c.size("sliding_window"):
        return full(c, n)
    pattern = c.given("sliding_window_pattern")[1]
    if isinstance(pattern, str) and pattern and set(pattern) <= set("LG"):
        return ["full" if pattern[i % len(pattern)] == "G" or i == n - 1 else "window" for i in range(n)]
    return every(c.size("sliding_window_pattern") or 4)(c, n)


def qwen_window(c: Config, n: int) -> list[str]:
    """Qwen: layers from ``max_window_layers`` on are windowed, if ``use_sliding_window``."""
    if not (c.switch("use_sliding_window") and c.size("sliding_window")):
        return full(c, n)
    start = c.count("max_window_layers") or 0
    return ["window" if i >= start else "full" for i in range(n)]


def qwen2_moe_window(c: Config, n: int) -> list[str]:
    """Qwen2-MoE: every other of the first ``max_window_layers`` layers."""
    if not (c.switch("use_sliding_window") and c.size("sliding_window")):
        return full(c, n)
    stop = c.count("max_window_layers") or 0
    return ["window" if i % 2 == 0 and i < stop else "full" for i in range(n)]


def use_window(c: Config, n: int) -> list[str]:
    """One window for every layer, if ``use_sliding_window`` (Qwen3-MoE)."""
    return windowed(c, n) if c.switch("use_sliding_window") else full(c, n)


def late_window(c: Config, n: int) -> list[str]:
    """dots.llm1: layers from ``max_window_layers`` on are windowed when there is a window."""
    start = c.count("max_window_layers") or 0
    return ["window" if c.size("sliding_window") and i >= start else "full" for i in range(n)]


def gpt_neo_mixes(c: Config, n: int) -> list[str]:
    """GPT-Neo: ``attention_types`` is a list of [kinds, repetitions]."""
    kinds: list[str] = []
    for item in c.items("attention_types") or [[["global", "local"], n]]:
        if not (isinstance(item, list) and len(item) == 2 and isinstance(item[0], list) and isinstance(item[1], int) and 0 < item[1] <= n):
            raise c.refuse("attention_types 必须是 [[层名], 次数] 的列表", shown(item))
        named = [_WORDS.get(str(kind), "full") for kind in item[0][:n]]
        kinds += named * min(item[1], n // len(named) + 1 if named else 0)
    return (kinds + ["full"] * n)[:n]


def rope_chunks(c: Config, n: int) -> list[str]:
    """Llama 4: layers with rotary positions see one chunk, every fourth layer sees all."""
    step = c.size("no_rope_layer_interval") or 4
    listed = c.items("no_rope_layers") or [int((i + 1) % step != 0) for i in range(n)]
    return ["chunk" if rope and c.size("attention_chunk_size") else "full" for rope in (listed + [0] * n)[:n]]


def one_based_lists(c: Config, n: int) -> list[str]:
    """Kimi Linear: ``linear_attn_config`` lists its full-attention layers, counted from 1; else every fourth from layer 4."""
    listed = c.section("linear_attn_config").items("full_attn_layers")
    if listed is None:
        return ["full" if i and i % 4 == 0 else "linear" for i in range(n)]
    return ["full" if i + 1 in listed else "linear" for i in range(n)]


def minimax_mixes(c: Config, n: int) -> list[str]:
    """MiniMax-01: ``attn_type_list`` holds 1 for full attention, else they alternate."""
    listed = c.items("attn_type_list")
    if listed is not None and len(listed) >= n:
        return ["full" if kind == 1 else "linear" for kind in listed[:n]]
    return ["full" if i % 2 == 0 else "linear" for i in range(n)]


def listed_layers(key: str) -> Mixes:
    """``key`` lists the attention layers; None means all (LFM2) where the class says so."""

    def mixes(c: Config, n: int) -> list[str]:
        listed = c.items(key)
        if listed is None:
            return ["full" if key == "full_attn_idxs" else "linear"] * n
        return ["full" if i in listed else "linear" for i in range(n)]

    return mixes


def periodic(c: Config, n: int) -> list[str]:
    """Jamba: attention every ``attn_layer_period`` layers from ``attn_layer_offset`` on."""
    period, offset = c.need("attn_layer_period"), c.count("attn_layer_offset") or 0
    return ["full" if i % period == offset else "linear" for i in range(n)]


def griffin(c: Config, n: int) -> list[str]:
    """RecurrentGemma: ``block_types`` repeats; its attention is always local."""
    kinds = named_mixes(c, "block_types", 1) and [str(kind) for kind in c.items("block_types") or []]
    cycle = ["linear" if kind == "recurrent" else "window" for kind in kinds or ("recurrent", "recurrent", "attention")]
    return [cycle[i % len(cycle)] for i in range(n)]


def always(mix: str) -> Mixes:
    """The same in every layer."""
    return lambda c, n: [mix] * n


def mimo(c: Config, n: int) -> list[str]:
    """MiMo-V2: full attention in the first and each sixth layer, ``hybrid_layer_pattern`` (1 = windowed) where written."""
    listed = c.items("hybrid_layer_pattern")
    if listed is not None and len(listed) >= n:
        return ["window" if kind == 1 else "full" for kind in listed[:n]]
    return ["full" if i == 0 or (i + 1) % 6 == 0 else "window" for i in range(n)]


# --- which layers hold experts


def all_sparse(c: Config, n: int) -> list[bool]:
    """Experts in every layer."""
    return [True] * n


def after_dense(key: str = "first_k_dense_replace", default: int = 0) -> Feeds:
    """The first layers are dense; ``moe_layer_freq`` may thin the others out, or list every layer."""

    def feeds(c: Config, n: int) -> list[bool]:
        pattern = c.given("moe_layer_freq")[1]
        if isinstance(pattern, list):
            return [bool(flag) for flag in (pattern + [1] * n)[:n]]
        dense, step = c.count(key), c.size("moe_layer_freq") or 1
        first = default if dense is None else dense
        return [i >= first and i % step == 0 for i in range(n)]

    return feeds


def sparse_step(c: Config, n: int) -> list[bool]:
    """Qwen: every ``decoder_sparse_step``-th layer, ``mlp_only_layers`` excepted."""
    step = c.size("decoder_sparse_step") or 1
    dense = c.items("mlp_only_layers") or []
    return [i not in dense and (i + 1) % step == 0 for i in range(n)]


def first_two_dense(c: Config, n: int) -> list[bool]:
    """Flint: ``mlp_only_layers``, the first two unless stated."""
    sparse = sparse_step(c, n)
    return sparse if c.items("mlp_only_layers") is not None else [False] * min(2, n) + sparse[2:]


def interleaved(c: Config, n: int) -> list[bool]:
    """Llama 4: every ``interleave_moe_layer_step``-th layer, or the list ``moe_layers``."""
    listed, step = c.items("moe_layers"), c.size("interleave_moe_layer_step") or 1
    return [i in listed if listed is not None else (i + 1) % step == 0 for i in range(n)]


def ernie_sparse(c: Config, n: int) -> list[bool]:
    """ERNIE 4.5: from a start to an end index, at an interval."""
    start, step = c.count("moe_layer_start_index") or 0, c.size("moe_layer_interval") or 1
    last = c.given("moe_layer_end_index")[1]
    stop = n - 1 if last in (None, -1) else c.count("moe_layer_end_index") or 0
    return [(i + 1) % step == 0 and start <= i <= stop for i in range(n)]


def expert_period(c: Config, n: int) -> list[bool]:
    """Jamba: experts every ``expert_layer_period`` layers."""
    period, offset = c.size("expert_layer_period") or 1, c.count("expert_layer_offset") or 0
    return [(c.count("experts") or 0) > 1 and i % period == offset for i in range(n)]


def named_feeds(c: Config, n: int) -> list[bool] | None:
    """The file's own ``mlp_layer_types``, None when it has none."""
    kinds = c.items("mlp_layer_types")
    if kinds is None:
        return None
    if len(kinds) < n or any(kind not in _FEEDS for kind in kinds if isinstance(kind, str)) or not all(isinstance(kind, str) for kind in kinds):
        raise c.refuse("mlp_layer_types 必须每层一项，取 dense 或 sparse", f"{len(kinds)} 项，共 {n} 层")
    return [_FEEDS[str(kind)] for kind in kinds[:n]]
