"""Chunked prefill: an iteration that decodes B sequences and works through p more tokens of a prompt.

Source: Agrawal et al. 2024 (Sarathi-Serve) §4.  Quantities of a request and a step as in formulas.inference.
"""

from __future__ import annotations

from dataclasses import dataclass

from calculators.core.worked import N, floor
from calculators.formulas.inference import Engine, Shape, kv_request, prompt_attention, token_attention, weights_read


@dataclass(frozen=True)
class Mix:
    """Who shares the iterations: ``batch`` sequences that decode at ``context`` tokens; ``attention``: count its FLOPs and the prefix."""

    shape: Shape
    engine: Engine
    batch: int
    context: int
    attention: bool


def mixed_flops(two: N, params: N, tokens: N) -> N:
    """The matrix products of all tokens of the iteration, prompt and decode alike."""
    return two * params * tokens


def free_budget(memory_s: N, flops_per_s: N, flops_per_token: N, batch: N) -> N:
    """Prompt tokens whose matrix products hide behind the reading of a decode step; below 0 the decodes alone are more than it hides."""
    return floor(memory_s * flops_per_s / flops_per_token - batch)


def memory_seconds(mix: Mix, tokens: float, prefix: float = 0.0) -> float:
    """Weights once, the KV cache of every decoding sequence, and with attention the prefix of the prompt."""
    read = weights_read(mix.shape, tokens + mix.batch) * mix.engine.weight_bytes + mix.batch * kv_request(mix.shape, mix.engine.kv_bytes, float(mix.context))
    if mix.attention:
        read += kv_request(mix.shape, mix.engine.kv_bytes, prefix)
    return read / mix.engine.bytes_per_s


def compute_seconds(mix: Mix, tokens: float, prefix: float = 0.0) -> float:
    """Matrix products; with attention also the chunk against its prefix and every decoded token against its context."""
    flops = mixed_flops(2.0, mix.shape.matmul_params, tokens + mix.batch)
    if mix.attention:
        flops += prompt_attention(mix.shape, prefix + tokens) - prompt_attention(mix.shape, prefix)
        flops += mix.batch * token_attention(mix.shape, float(mix.context))
    return flops / mix.engine.flops_per_s


def step(mix: Mix, tokens: float, prefix: float = 0.0) -> float:
    """One iteration: reading and computing overlap."""
    return max(memory_seconds(mix, tokens, prefix), compute_seconds(mix, tokens, prefix))


def chunks(prompt: int, size: int) -> int:
    """How many iterations a prompt takes."""
    return -(-prompt // size)


def chunk_steps(mix: Mix, prompt: int, size: int) -> tuple[float, float]:
    """(longest iteration, sum of all) of a prompt cut into chunks of ``size`` and a remainder."""
    whole, rest = divmod(prompt, size)
    if not mix.attention:  # all full chunks cost the same
        full, last = step(mix, size), step(mix, rest) if rest else 0.0
        return max(full, last), whole * full + last
    times = [step(mix, size, float(k * size)) for k in range(whole)]
    if rest:
        times.append(step(mix, rest, float(whole * size)))
    return max(times), sum(times)
