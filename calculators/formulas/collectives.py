"""Collective communication on the α–β model: a step costs α seconds, and bytes cost bytes ÷ bandwidth.

Every bandwidth is that of ONE GPU in ONE direction (bytes per second); ``size`` is the whole buffer on one rank, as nccl-tests
counts it.  n ranks in all: g in each of k nodes.  Times come as a ``Cost``: the α terms apart from the time on the wire.

Sources: NVIDIA/nccl-tests doc/PERFORMANCE.md (factors, algbw and busbw); Patarasuk & Yuan 2009 (the ring moves the fewest
bytes; from memory).  Protocol overhead, congestion and overlap are left out: ±25 %.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

from calculators.core.worked import N, smaller

ONE_PASS = ("reduce-scatter", "all-gather", "all-to-all")
"""Each rank keeps one nth of the buffer and sends the rest once."""
ONE_ROOT = ("broadcast", "reduce")
"""The whole buffer leaves or reaches one rank; down a ring every rank passes it on once."""
OPS = ("all-reduce", *ONE_PASS, *ONE_ROOT)


@dataclass(frozen=True)
class Cost(Generic[N]):
    """Seconds of a collective: ``latency`` (steps × α) and ``wire`` (bytes ÷ bandwidth)."""

    latency: N
    wire: N

    @property
    def seconds(self) -> N:
        return self.latency + self.wire


def one_pass_factor(n: N) -> N:
    """Bytes that each rank sends ÷ size for reduce-scatter, all-gather and all-to-all: (n−1)/n."""
    return (n - 1) / n


def allreduce_factor(n: N) -> N:
    """Bytes that each rank sends ÷ size for a ring all-reduce, a reduce-scatter and then an all-gather: 2(n−1)/n."""
    return 2 * (n - 1) / n


def bus_factor(op: str, n: N, one: N) -> N:
    """busbw ÷ algbw, as nccl-tests prints it (``one`` = 1, for broadcast and reduce)."""
    if op == "all-reduce":
        return allreduce_factor(n)
    return one_pass_factor(n) if op in ONE_PASS else one


def in_network_factor(n: N) -> N:
    """(n−1)/(n+1): what nccl-tests' newer notes list for an all-reduce that the switch adds up (NVLS)."""
    return (n - 1) / (n + 1)


def one_pass(n: N, size: N, bytes_per_s: N, alpha: N) -> Cost[N]:
    """Reduce-scatter, all-gather or all-to-all over one ring."""
    return Cost((n - 1) * alpha, one_pass_factor(n) * size / bytes_per_s)


def one_root(n: N, size: N, bytes_per_s: N, alpha: N) -> Cost[N]:
    """Broadcast or reduce down a ring, in a pipeline."""
    return Cost((n - 1) * alpha, size / bytes_per_s)


def ring_allreduce(n: N, size: N, bytes_per_s: N, alpha: N) -> Cost[N]:
    """2(n−1) steps of one nth each; exactly a reduce-scatter and an all-gather."""
    return Cost(2 * (n - 1) * alpha, allreduce_factor(n) * size / bytes_per_s)


def tree_depth(n: int) -> int:
    """⌈log₂ n⌉."""
    return (n - 1).bit_length()


def tree_allreduce(depth: N, size: N, bytes_per_s: N, alpha: N) -> Cost[N]:
    """Up the tree and down again, in a pipeline: few steps, but an inner node sends the whole buffer twice."""
    return Cost(2 * depth * alpha, 2 * size / bytes_per_s)


def in_network_allreduce(size: N, bytes_per_s: N, alpha: N) -> Cost[N]:
    """The switch adds (NVLS, SHARP): each rank sends the buffer once.  An ideal bound."""
    return Cost(2 * alpha, size / bytes_per_s)


def hierarchical_phases(g: N, k: N, size: N, bytes_per_s_intra: N, bytes_per_s_inter: N, alpha_intra: N, alpha_inter: N) -> tuple[Cost[N], Cost[N]]:
    """Inside the nodes (reduce-scatter first, all-gather last) and, between them, an all-reduce of the gth that each GPU holds.

    The phases do not overlap: their seconds add up.
    """
    return ring_allreduce(g, size, bytes_per_s_intra, alpha_intra), ring_allreduce(k, size / g, bytes_per_s_inter, alpha_inter)


def multi_ring_allreduce(n: N, g: N, size: N, bytes_per_s_intra: N, bytes_per_s_inter: N, alpha: N) -> Cost[N]:
    """g rings at once, each with a gth of the buffer and a rail of its own: a node's g NICs work together."""
    return Cost(2 * (n - 1) * alpha, allreduce_factor(n) * size / smaller(bytes_per_s_intra, g * bytes_per_s_inter))


def half_speed_bytes(n: N, alpha: N, bytes_per_s: N) -> N:
    """n½, the size at which a ring spends as long on latency as on the wire: n·α·B (n−1 in place of n for broadcast and reduce)."""
    return n * alpha * bytes_per_s


def tokens_to_hide(seconds: N, flops_per_s: N, flops_per_token: N) -> N:
    """Tokens per GPU whose computation lasts as long as the communication."""
    return seconds * flops_per_s / flops_per_token
