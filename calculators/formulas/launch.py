"""Who sets the pace of a step, the CPU that launches kernels or the GPU that runs them?  And when does compiling pay?"""

from __future__ import annotations

from calculators.core.worked import N, larger


def launch_seconds(kernels: N, per_launch: N) -> N:
    """The CPU launches one kernel after the other."""
    return kernels * per_launch


def graph_seconds(kernels: N, graph_launch: N, per_node: N) -> N:
    """A recorded graph: one launch, and a little for each of its nodes."""
    return graph_launch + per_node * kernels


def step_seconds(cpu: N, gpu: N) -> N:
    """CPU and GPU work side by side; the slower one sets the pace."""
    return larger(cpu, gpu)


def breakeven_steps(cost: N, saved_per_step: N) -> N:
    """Steps after which the time spent on compiling has come back (not yet rounded up)."""
    return cost / saved_per_step
