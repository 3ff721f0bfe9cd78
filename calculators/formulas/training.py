"""What a training run costs: FLOPs, card-hours, days."""

from __future__ import annotations

from calculators.core.worked import N


def training_flops(params: N, tokens: N, six: N) -> N:
    """6ND: forward 2, backward 4 FLOP per parameter and token (``six`` = 6 FLOP).  Attention is left out."""
    return six * params * tokens


def card_seconds(flops: N, peak_flops: N, mfu: N) -> N:
    """Busy time of one card that did all the work."""
    return flops / (peak_flops * mfu)


def implied_mfu(flops: N, known_card_seconds: N, peak_flops: N) -> N:
    """The MFU that published card-hours amount to."""
    return flops / (known_card_seconds * peak_flops)
