"""Money and energy of running cards: what a fleet draws, what owning costs, what a bill implies."""

from __future__ import annotations

from calculators.core.worked import N


def facility_energy(card_time: N, power_per_card: N, pue: N) -> N:
    """Energy from the wall: the card with its share of the server, times the facility's overhead (PUE)."""
    return card_time * power_per_card * pue


def seconds_per_output(out_rate: N, in_rate: N, ratio: N, miss: N) -> N:
    """Machine time that one output token takes with the ``ratio`` input tokens before it; cached input takes none."""
    return 1 / out_rate + ratio * miss / in_rate


def cards_for(cards: N, tokens_per_day: N, seconds: N, day: N, utilisation: N) -> N:
    """Cards for a day's output when a group of ``cards`` takes ``seconds`` a token; a part of a card stays a part."""
    return cards * tokens_per_day * seconds / (day * utilisation)


def capital_per_hour(capex: N, years: N, hours_per_year: N) -> N:
    """Straight-line depreciation to nothing."""
    return capex / (years * hours_per_year)


def power_per_hour(kw: N, pue: N, price_per_kwh: N) -> N:
    """An hour at ``kw``, paid at the meter."""
    return kw * pue * price_per_kwh


def operations_per_hour(capex: N, share_per_year: N, hours_per_year: N) -> N:
    """Room, people, spares, network: a share of the purchase price a year."""
    return capex * share_per_year / hours_per_year


def implied_price(bill: N, cards: N, hours: N) -> N:
    """Per card and hour, when every card of the month is paid for."""
    return bill / (cards * hours)


def per_thousand(bill: N, requests_per_day: N, days: N, thousand: N) -> N:
    """Money for a thousand requests."""
    return bill / (requests_per_day * days) * thousand
