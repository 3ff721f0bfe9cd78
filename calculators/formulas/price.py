"""What a million tokens cost: the rent of an hour over the tokens of an hour.  People, network, storage and egress are left out."""

from __future__ import annotations

from calculators.core.worked import N


def mtok_per_h(rate: N, hour: N, million: N) -> N:
    """Million tokens an hour at ``rate`` token/s."""
    return rate * hour / million


def cost_per_mtok(price_per_h: N, cards: N, mtok: N) -> N:
    """Rent of an hour over the million tokens of that hour."""
    return price_per_h * cards / mtok


def blended(ratio: N, miss: N, cost_in: N, cost_out: N) -> N:
    """Per million tokens of input and output together, ``ratio`` input tokens an output token; only the missed share of input is charged."""
    return (ratio * miss * cost_in + cost_out) / (ratio + 1)


def day_cost(nodes: N, cards: N, hours: N, price_per_h: N) -> N:
    """Rent of a day."""
    return nodes * cards * hours * price_per_h


def input_price(hit: N, price_hit: N, price_miss: N) -> N:
    """Average price of input tokens of which the share ``hit`` comes from the cache."""
    return hit * price_hit + (1 - hit) * price_miss
