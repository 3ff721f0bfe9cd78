"""Speculative decoding: tokens per round, speed-up, arithmetic, and the acceptance rate behind a measurement.

One round: a draft model guesses γ tokens, the target checks γ + 1 positions in one pass and always yields one token of its own.
α: chance that a guess is accepted, the same at every position and independent (Leviathan et al. 2023, Eq. 1, Theorems 3.8, 3.11;
the numbers of the theorems follow a secondary source).
"""

from __future__ import annotations

from calculators.core.worked import N, larger, power
from calculators.formulas.decode import step_seconds

MOST_GAMMA = 32
TIE = 1e-12


def tokens_per_round(alpha: float, gamma: int) -> float:
    """1 + α + … + α^γ: exact at α = 1, where the closed form is 0/0."""
    total = 1.0
    for _ in range(gamma):
        total = 1.0 + alpha * total
    return total


def tokens_closed(alpha: N, gamma: N) -> N:
    """The same sum in closed form, for α < 1."""
    return (1 - power(alpha, gamma + 1)) / (1 - alpha)


def round_cost(gamma: N, c: N) -> N:
    """A round in target steps: γ draft steps and one check.  Also the tokens a round must yield to break even."""
    return 1 + gamma * c


def speedup(tokens: N, cost: N) -> N:
    """Against one token a target step."""
    return tokens / cost


def ops_factor(gamma: N, c_hat: N, tokens: N) -> N:
    """FLOPs per emitted token, in those of plain decoding: γ draft tokens and γ + 1 checked positions for E tokens."""
    return (gamma * c_hat + gamma + 1) / tokens


def best_gamma(alpha: float, c: float) -> int:
    """γ of 0 … 32 with the largest speed-up, the smallest on ties."""
    values = [speedup(tokens_per_round(alpha, g), round_cost(float(g), c)) for g in range(MOST_GAMMA + 1)]
    top = max(values) * (1 - TIE)
    return next(g for g, value in enumerate(values) if value >= top)


def measured_tokens(target: N, draft: N, gamma: N, measured: N) -> N:
    """Tokens per round behind a measured time per token: length of a round ÷ time per token."""
    return (target + gamma * draft) / measured


def alpha_for(tokens: float, gamma: int) -> float:
    """The α that yields so many tokens a round: bisection, since the sum only grows with α.  Needs 1 ≤ tokens ≤ γ + 1."""
    if tokens >= gamma + 1:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if tokens_per_round(middle, gamma) < tokens:
            low = middle
        else:
            high = middle
    return high if tokens > 1 else 0.0


def read_seconds(weights: N, kv_each: N, batch: N, bytes_per_s: N) -> N:
    """One read of the weights and of every sequence's KV serves all positions of the step."""
    return step_seconds(weights, kv_each * batch, bytes_per_s)


def compute_seconds(batch: N, positions: N, flops_each: N, flops_per_s: N) -> N:
    """Every position of every sequence is computed."""
    return batch * positions * flops_each / flops_per_s


def step(weights: N, kv_each: N, flops_each: N, batch: N, positions: N, bytes_per_s: N, flops_per_s: N) -> N:
    """The longer of reading and computing."""
    return larger(read_seconds(weights, kv_each, batch, bytes_per_s), compute_seconds(batch, positions, flops_each, flops_per_s))


def round_speedup(tokens: N, target: N, gamma: N, draft: N, verify: N) -> N:
    """E target steps' worth of tokens in γ draft steps and one check."""
    return tokens * target / (gamma * draft + verify)


def breakeven_tokens(target: N, gamma: N, draft: N, verify: N) -> N:
    """A round in target steps when checking may take longer than one: the tokens it must yield."""
    return (gamma * draft + verify) / target


def most_batch(room: N, kv_target: N, kv_draft: N) -> N:
    """Sequences (not yet whole) whose two caches fit."""
    return room / (kv_target + kv_draft)
