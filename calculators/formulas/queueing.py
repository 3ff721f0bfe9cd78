"""Waiting lines: M/M/c (Erlang C) and M/D/1, first come first served.  Source: standard queueing theory.

Poisson arrivals at ``arrival`` per second, ``servers`` equal servers, mean service time ``service`` seconds; the load ρ is below 1.
"""

from __future__ import annotations

import math

from calculators.core.worked import N

TAIL = 0.01
"""P99: one in a hundred stays longer."""


def load_of(arrival: N, service: N, servers: N) -> N:
    """ρ: the share of time that a server works."""
    return arrival * service / servers


def in_system(arrival: N, stay: N) -> N:
    """Little's law: L = λ·W, whatever the queue."""
    return arrival * stay


def erlang_c(offered: float, servers: int) -> float:
    """Chance that an arrival finds every server busy; ``offered`` = λ·S, below ``servers``."""
    blocked = 1.0
    for k in range(1, servers + 1):
        blocked = offered * blocked / (k + offered * blocked)
    return blocked / (1 - offered / servers * (1 - blocked))


def mmc_wait(p_wait: N, service: N, servers: N, idle: N) -> N:
    """Mean wait before service; ``idle`` = 1 − ρ."""
    return p_wait * service / (servers * idle)


def md1_wait(load: N, service: N, idle: N) -> N:
    """One server, every service equally long: half of M/M/1's wait."""
    return load * service / (2 * idle)


def stays_longer(t: float, p_wait: float, servers: int, idle: float) -> float:
    """P(stay > t) in M/M/c, t in service times: a wait that is exponential at rate δ with chance ``p_wait``, then the service."""
    drain = servers * idle
    gap = drain - 1
    if abs(gap) < 1e-9:
        return math.exp(-t) * (1 + p_wait * t)
    return (1 - p_wait) * math.exp(-t) + p_wait * (drain * math.exp(-t) - math.exp(-drain * t)) / gap


def p99_over_service(p_wait: float, servers: int, idle: float) -> float:
    """P99 of the stay in service times: closed form for one server, bisection for more."""
    if servers == 1:
        return -math.log(TAIL) / idle
    low, high = 0.0, 1.0
    while stays_longer(high, p_wait, servers, idle) > TAIL:
        low, high = high, 2 * high
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if stays_longer(middle, p_wait, servers, idle) > TAIL else (low, middle)
    return high
