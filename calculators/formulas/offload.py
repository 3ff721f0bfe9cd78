"""Moving states or activations to the host and back: does the step hide the transfer?"""

from __future__ import annotations

from calculators.core.worked import N, larger, smaller


def transfer_seconds(moved: N, link_bytes_per_s: N) -> N:
    """Bytes both ways together over the effective bandwidth of the link."""
    return moved / link_bytes_per_s


def hidden_share(step: N, transfer: N, whole: N) -> N:
    """The part of the transfer that perfect overlap hides; ``whole`` = 1."""
    return smaller(whole, step / transfer)


def exposed_seconds(step: N, transfer: N, nothing: N) -> N:
    """What the step waits; ``nothing`` = 0 s."""
    return larger(nothing, transfer - step)


def tokens_to_hide(bytes_per_param: N, peak_flops: N, mfu: N, link_bytes_per_s: N, flops_per_param: N) -> N:
    """Tokens per step from which the step outlasts the transfer: 6·N·tokens ÷ (peak·MFU) ≥ N·bytes ÷ link; N cancels."""
    return bytes_per_param * peak_flops * mfu / (flops_per_param * link_bytes_per_s)
