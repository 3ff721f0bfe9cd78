"""One request in two phases: FLOPs and bytes of prefill and of a decode step, whatever the architecture.

Chapters 15 to 18 share these.  Dense model without a window: attention is 2·L·H·hd·S² FLOP for a causal prompt of S tokens and
4·L·H·hd·c for one token at context c.  Sources: kipply, "Transformer Inference Arithmetic"; Pope et al. 2211.05102 §2.
Weights are read as if routing were uniform and independent; reading and computing overlap perfectly, so a step is the longer of the two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from calculators.catalog.architecture import scores, window_kv_bytes_per_token
from calculators.catalog.hardware import Accelerator
from calculators.catalog.models import Model, MoeShape
from calculators.core.errors import refuse
from calculators.core.units import GIB
from calculators.core.worked import N, smaller
from calculators.formulas.decode import decode_flops, experts_touched, moe_params_read, step_seconds
from calculators.formulas.kv import bytes_per_request, kv_elements
from calculators.formulas.roofline import arithmetic_intensity
from calculators.formulas.serving import prefill_flops


@dataclass(frozen=True)
class Shape:
    """What a request costs.  ``scores``: multiply-adds per attended token over all layers, by window (0 = the whole context).

    ``absorbed``: how much wider the scores of one decoded token are (MLA works on the latent then); 1 for everything else.
    """

    matmul_params: float
    """Parameters that one token multiplies with: the input table is a look-up, a mixture of experts counts the active ones."""
    total_params: float
    moe: MoeShape | None
    elements: float
    """K and V elements per token and layer."""
    full_layers: float
    window_layers: float
    window: float
    scores: Mapping[int, float]
    absorbed: float = 1.0


@dataclass(frozen=True)
class Engine:
    """What all cards together really deliver (peak × MFU, bandwidth × MBU), and how wide numbers are stored."""

    flops_per_s: float
    bytes_per_s: float
    weight_bytes: float
    kv_bytes: float


def shape_of(model: Model) -> Shape:
    """A model of the catalog or of a pasted config.json."""
    elements, windowed = float(model.kv_elems_per_token_layer), window_kv_bytes_per_token(model) / 2
    held = model.kv_bytes_per_token / 2
    mla, absorbed = model.mla, 1.0
    if mla is not None:
        absorbed = (2 * mla.kv_lora_rank + mla.qk_rope_head_dim) / (mla.qk_nope_head_dim + mla.qk_rope_head_dim + mla.v_head_dim)
    return Shape(
        matmul_params=float(model.active_params_no_input_embedding),
        total_params=float(model.total_params),
        moe=model.moe,
        elements=elements,
        full_layers=(held - windowed) / elements if elements else 0.0,
        window_layers=windowed / elements if elements else 0.0,
        window=float(model.sliding_window["window"]) if model.sliding_window else 0.0,
        scores={window: float(count) for window, count in scores(model).items()},
        absorbed=absorbed,
    )


def with_attention(shape: Shape, layers: int, heads: int, kv_heads: int, head_dim: int) -> Shape:
    """The same parameters with plain grouped-query attention over the whole context in every layer."""
    plain = {0: 2.0 * layers * heads * head_dim}
    return replace(
        shape, elements=kv_elements(float(kv_heads), float(head_dim)), full_layers=float(layers), window_layers=0.0, window=0.0, scores=plain, absorbed=1.0
    )


def explicit_shape(
    model: Model, n_layers: int | None, n_heads: int | None, n_kv_heads: int | None, head_dim: int | None, n_mat: float | None, n_total: float | None
) -> Shape:
    """A preset whose typed sizes win; an empty field or 0 keeps the preset's.  Raises Refusal on sizes that contradict each other."""
    shape = shape_of(model)
    if n_layers or n_heads or n_kv_heads or head_dim:
        heads, kv_heads, width = n_heads or model.heads, n_kv_heads or model.kv_heads, head_dim or model.head_dim
        if not width:
            raise refuse("head_dim", "每头维度要填", f"{model.name} 没有单一的每头维度", "例如 128")
        if kv_heads > heads:
            raise refuse("n_kv_heads", "KV 头数不能多过 query 头数", f"{kv_heads} > {heads}", "两个都填上")
        shape = with_attention(shape, n_layers or model.layers, heads, kv_heads, width)
    if n_mat or n_total:
        mat = n_mat or shape.matmul_params
        total = n_total or mat
        if mat > total:
            raise refuse("n_mat_params", "参与矩阵乘的参数不能多过总参数", f"{mat:.4g} > {total:.4g}", "两个都填上，或把总参数留空")
        shape = replace(shape, matmul_params=mat, total_params=total, moe=None)
    return shape


def capacity_bytes(gpu: Accelerator) -> float:
    """Memory that a program sees: what the driver reports where the catalog has it, else the advertised size."""
    return gpu.memory_gib_reported * GIB if gpu.memory_gib_reported is not None else gpu.memory_bytes


# --- bytes


def weights_read(shape: Shape, tokens: float) -> float:
    """Parameters that a step of ``tokens`` tokens reads: the more tokens, the more distinct experts."""
    if shape.moe is None or tokens == 1:
        return shape.matmul_params
    top_k, experts = float(shape.moe.top_k), float(shape.moe.experts)
    return moe_params_read(shape.matmul_params, float(shape.moe.routed_params), top_k, experts, experts_touched(top_k, experts, tokens))


def kv_request(shape: Shape, kv_bytes: float, context: float) -> float:
    """KV bytes of one sequence."""
    return bytes_per_request(shape.elements, kv_bytes, shape.full_layers, shape.window_layers, context, shape.window)


# --- FLOPs


def attended(context: N, window: N | None) -> N:
    """Tokens that one new token looks at in one layer; no window: all of them."""
    return context if window is None else smaller(context, window)


def attended_by_prompt(tokens: N, window: N | None) -> N:
    """Pairs of a causal prompt in one layer: S²/2, or w·S − w²/2 once the window is full."""
    reach = attended(tokens, window)
    return reach * tokens - reach * reach / 2


def score_flops(two: N, multiply_adds: N, pairs: N) -> N:
    """QKᵀ and PV of so many pairs; ``multiply_adds`` per pair over all heads and layers."""
    return two * multiply_adds * pairs


def token_attention(shape: Shape, context: float) -> float:
    """Attention FLOP of one decoded token."""
    return sum(score_flops(2.0, shape.absorbed * count, attended(context, float(window) or None)) for window, count in shape.scores.items())


def prompt_attention(shape: Shape, tokens: float) -> float:
    """Attention FLOP of one causal prompt."""
    return sum(score_flops(2.0, count, attended_by_prompt(tokens, float(window) or None)) for window, count in shape.scores.items())


def forward_flops(shape: Shape, tokens: float) -> float:
    """One causal pass over ``tokens`` tokens."""
    return prefill_flops(2.0, shape.matmul_params, tokens, 1.0) + prompt_attention(shape, tokens)


def batch_flops(shape: Shape, batch: float, context: float) -> float:
    """One new token for every sequence of the batch."""
    return decode_flops(shape.matmul_params, batch, 2.0) + batch * token_attention(shape, context)


# --- intensity


def critical_batch(ridge: N, weight_bytes: N, two: N) -> N:
    """Batch at which the weights alone reach the ridge: 2·N·B FLOP for N·bytes read."""
    return ridge * weight_bytes / two


def batch_intensity(shape: Shape, weight_bytes: float, kv_bytes: float, batch: float, context: float) -> float:
    """FLOP per byte of a decode step."""
    read = weights_read(shape, batch) * weight_bytes + batch * kv_request(shape, kv_bytes, context)
    return arithmetic_intensity(batch_flops(shape, batch, context), read)


def intensity_limit(shape: Shape, kv_bytes: float, context: float) -> float | None:
    """What the intensity tends to as the batch grows: the weights vanish, the KV cache stays.  None without KV."""
    held = kv_request(shape, kv_bytes, context)
    return arithmetic_intensity(batch_flops(shape, 1.0, context), held) if held else None


# --- time


def step_parts(shape: Shape, engine: Engine, batch: float, context: float) -> tuple[float, float]:
    """Seconds of one decode step: for reading, for computing.  The step takes the longer."""
    weights = weights_read(shape, batch) * engine.weight_bytes
    memory = step_seconds(weights, batch * kv_request(shape, engine.kv_bytes, context), engine.bytes_per_s)
    return memory, batch_flops(shape, batch, context) / engine.flops_per_s


def prefill_seconds(shape: Shape, engine: Engine, batch: float, prompt: float) -> float:
    """All prompts of the batch in one pass."""
    read = weights_read(shape, batch * prompt) * engine.weight_bytes
    return max(batch * forward_flops(shape, prompt) / engine.flops_per_s, read / engine.bytes_per_s)


def decode_seconds(shape: Shape, engine: Engine, batch: float, first: int, last: int) -> float:
    """Steps at contexts first … last, added up.  Between two windows both parts of a step grow linearly."""

    def parts(context: int) -> tuple[float, float]:
        return step_parts(shape, engine, batch, float(context))

    corners = sorted({int(w) for w in (*shape.scores, shape.window) if first <= w < last})
    ends = [first - 1, *corners, last]
    return sum(_sum_of_larger(parts, a + 1, b) for a, b in pairwise(ends))


def _sum_of_larger(parts: Callable[[int], tuple[float, float]], first: int, last: int) -> float:
    """Σ of the larger of two linear functions: halve the range until the same one is larger at both ends."""
    if last < first:
        return 0.0
    a, b = parts(first), parts(last)
    if (a[0] >= a[1]) == (b[0] >= b[1]) or last - first < 2:
        return max(a) if first == last else (last - first + 1) * (max(a) + max(b)) / 2
    middle = (first + last) // 2
    return _sum_of_larger(parts, first, middle) + _sum_of_larger(parts, middle + 1, last)


def without_cache_tokens(prompt: N, output: N) -> N:
    """Tokens put through the model when every step starts over: S + (S + 1) + … + (S + T − 1)."""
    return output * prompt + output * (output - 1) / 2


def largest_true(good: Callable[[int], bool], low: int, high: int) -> int:
    """Largest n in low … high with ``good(n)``, for a predicate that turns false once; low − 1 when none is good."""
    low -= 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if good(middle) else (low, middle - 1)
    return low
