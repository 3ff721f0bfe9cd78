"""How a chip is built inside: SMs, Tensor Cores, clocks, memory bus, shared memory and measured latency."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from calculators.catalog.store import entries


@dataclass(frozen=True)
class Chip:
    """What a card's headline figures are made of; fields as in the header of ``chips.toml``."""

    sms: int
    tensor_cores_per_sm: int
    fma_per_clk: int
    boost_ghz: float
    bus_bits: int
    mem_clock_mhz: float
    transfers_per_clk: int
    source: str


@dataclass(frozen=True)
class SharedMemory:
    """Of one SM, in KB of 1024 B."""

    per_sm_kb: int
    per_block_kb: int


@dataclass(frozen=True)
class Latency:
    """Of one load from HBM, in cycles: as published, and by pointer chase."""

    cycles: float
    clock_ghz: float
    chase_cycles: float


_OTHER_TABLES = ("shared_memory", "latency")


@lru_cache(maxsize=1)
def chips() -> dict[str, Chip]:
    """Every chip by its accelerator's id, in file order."""
    return {id: Chip(**{name: value for name, value in raw.items() if name not in _OTHER_TABLES}) for id, raw in entries("chips").items()}


@lru_cache(maxsize=1)
def shared_memories() -> dict[str, SharedMemory]:
    """Shared memory of the chips for which it is known."""
    return {id: SharedMemory(**raw["shared_memory"]) for id, raw in entries("chips").items() if "shared_memory" in raw}


@lru_cache(maxsize=1)
def latencies() -> dict[str, Latency]:
    """Memory latency of the chips for which it is known."""
    return {id: Latency(**raw["latency"]) for id, raw in entries("chips").items() if "latency" in raw}
