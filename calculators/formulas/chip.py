"""Inside one GPU: peaks from its parts, bytes in flight, tiles and waves, blocks of an SM."""

from __future__ import annotations

from calculators.core.worked import N, ceil, floor

WARP = 32
"""Threads of a warp."""
MOST_WARPS = 64
"""Warps that an SM can hold; compute capability 8.0 and 9.0."""
MOST_BLOCKS = 32
"""Blocks that an SM can hold; compute capability 8.0 and 9.0."""
REGISTERS = 65_536
"""32-bit registers of an SM."""
REGISTER_STEP = 256
"""Registers are handed to a warp in pieces of this size."""
RESERVED_SMEM_KB = 1
"""Shared memory that the system keeps for itself in every block, KB of 1024 B."""
SECTOR_BYTES = 32
"""The least that a load moves; four sectors make a cache line."""
LINE_BYTES = 128


def peak_flops(sms: N, units_per_sm: N, fma_per_clk: N, two: N, clock_hz: N) -> N:
    """SMs × units × multiply-adds per clock × 2 FLOP × clock.  ``two`` = 2 FLOP per multiply-add."""
    return sms * units_per_sm * fma_per_clk * two * clock_hz


def memory_bandwidth(bus_bits: N, eight: N, clock_hz: N, transfers_per_clk: N) -> N:
    """Bytes per second over a memory bus: width ÷ 8 × clock × transfers per clock."""
    return bus_bits / eight * clock_hz * transfers_per_clk


def bytes_in_flight(latency_s: N, bytes_per_s: N) -> N:
    """Little's law: what must be under way at once so that the bus never waits."""
    return latency_s * bytes_per_s


def warp_bytes(lanes: N, bytes_per_load: N, loads_in_flight: N) -> N:
    """What one warp has under way when each of its threads has so many loads open."""
    return lanes * bytes_per_load * loads_in_flight


def tile_count(m: N, n: N, tile_m: N, tile_n: N) -> N:
    """Output tiles of an m×n product; those at the edge are computed whole."""
    return ceil(m / tile_m) * ceil(n / tile_n)


def wave_count(tiles: N, sms: N) -> N:
    """Rounds, one tile per SM at a time."""
    return ceil(tiles / sms)


def registers_per_warp(regs: N, lanes: N, step: N) -> N:
    """Registers that a warp takes: the need of its 32 threads, rounded up to whole pieces."""
    return ceil(regs * lanes / step) * step


def blocks_by_registers(registers: N, warps: N, per_warp: N) -> N:
    """Blocks of ``warps`` warps that the register file holds."""
    return floor(registers / (warps * per_warp))


def blocks_by_shared_memory(smem_kb: N, block_kb: N, reserved_kb: N) -> N:
    """Blocks that the shared memory holds, with the reserved piece of each."""
    return floor(smem_kb / (block_kb + reserved_kb))


def blocks_by_warps(most: N, warps: N) -> N:
    """Blocks of ``warps`` warps that the schedulers can keep."""
    return floor(most / warps)
