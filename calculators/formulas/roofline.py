"""Roofline: how fast can an operation be, given its FLOPs and its bytes?  Williams, Waterman, Patterson, CACM 2009."""

from __future__ import annotations

from calculators.catalog.hardware import Accelerator
from calculators.core.errors import refuse
from calculators.core.units import TB
from calculators.core.worked import N, ceil, smaller


def arithmetic_intensity(flops: N, bytes_moved: N) -> N:
    """FLOP per byte moved between HBM and the chip."""
    return flops / bytes_moved


def ridge(peak_flops: N, bytes_per_s: N) -> N:
    """Intensity (FLOP/byte) from which the peak, not the bandwidth, is the limit: peak ÷ bandwidth."""
    return peak_flops / bytes_per_s


def attainable(peak_flops: N, intensity: N, bytes_per_s: N) -> N:
    """The roof: the lower of the peak and intensity × bandwidth."""
    return smaller(peak_flops, intensity * bytes_per_s)


def gemm_flops(m: N, n: N, k: N, two: N) -> N:
    """(m×k)(k×n): one multiply and one add per term (``two`` = 2 FLOP)."""
    return two * m * n * k


def gemm_elements(m: N, n: N, k: N) -> N:
    """Each matrix crosses HBM once: both operands read, the product written."""
    return m * k + k * n + m * n


def reaches_ridge(half: float, n: float, k: float) -> bool:
    """Does an (m×k)(k×n) product become compute-bound for any m?  ``half`` = ridge × bytes per element ÷ 2."""
    return n * k > half * (n + k)


def crossover_rows(half: N, n: N, k: N) -> N:
    """Smallest whole m with 2mnk / (b(mk + kn + mn)) ≥ ridge, solved for m; ``half`` as in ``reaches_ridge``."""
    return ceil(half * n * k / (n * k - half * (n + k)))


def dense_peak_tflops(gpu: Accelerator, elem_bytes: float, field: str = "elem_bytes") -> float:
    """Dense tensor-core peak for operands of that width, in TFLOPS.

    2 bytes: BF16 (FP16 on a card without BF16).  1 byte: FP8.  4 bytes: TF32, which runs at half the BF16 rate.
    Raises Refusal on a card without FP8.
    """
    if elem_bytes == 2:
        return gpu.dense_tflops
    if elem_bytes == 4:
        return gpu.dense_tflops / 2
    fp8 = gpu.tflops.get("fp8")
    if fp8 is None:
        raise refuse(field, f"{gpu.name} 没有 FP8 Tensor Core", "元素字节 1", "可取 2")
    return fp8


def dense_peak_flops(gpu: Accelerator, elem_bytes: float, field: str = "elem_bytes") -> float:
    """``dense_peak_tflops`` in FLOP/s."""
    return dense_peak_tflops(gpu, elem_bytes, field) * TB
