"""Floating-point formats: how far they reach, how fine they are, and what becomes of a number stored in one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Special = Literal["ieee", "fn", "none"]
"""The top exponent holds inf and NaN (``ieee``), only the all-ones code is NaN (``fn``), or every code is a number (``none``)."""


@dataclass(frozen=True)
class FloatFormat:
    """Sign, exponent and fraction.  ``bytes`` is what one number takes in memory, which for TF32 is more than its bits."""

    name: str
    exp_bits: int
    man_bits: int
    bytes: float
    special: Special = "ieee"

    @property
    def bias(self) -> int:
        return int(2 ** (self.exp_bits - 1) - 1)

    @property
    def min_exponent(self) -> int:
        """Exponent of the smallest normal number; below it the spacing stays."""
        return 1 - self.bias

    @property
    def max_exponent(self) -> int:
        return int(2**self.exp_bits) - (2 if self.special == "ieee" else 1) - self.bias

    @property
    def largest(self) -> float:
        """All fraction bits set; in an ``fn`` format that code is NaN and the one before it is the largest."""
        steps_below_two = 2 if self.special == "fn" else 1
        return math.ldexp(2 - steps_below_two * self.eps, self.max_exponent)

    @property
    def min_normal(self) -> float:
        return math.ldexp(1.0, self.min_exponent)

    @property
    def min_subnormal(self) -> float:
        return math.ldexp(1.0, self.min_exponent - self.man_bits)

    @property
    def eps(self) -> float:
        """Spacing at 1.0.  (The unit roundoff, half of it, is also called eps elsewhere.)"""
        return math.ldexp(1.0, -self.man_bits)

    def spacing_exponent(self, x: float) -> int:
        """k when the numbers around ``x`` are 2**k apart."""
        exponent = math.frexp(x)[1] - 1 if x else self.min_exponent
        return max(exponent, self.min_exponent) - self.man_bits

    def spacing(self, x: float) -> float:
        """Distance of neighbouring numbers around ``x``, upwards."""
        return math.ldexp(1.0, self.spacing_exponent(x))

    def nearest(self, x: float) -> float:
        """Round to nearest, ties to even; infinite beyond the largest number."""
        step = self.spacing(x)
        rounded = round(x / step) * step
        return math.copysign(math.inf, x) if abs(rounded) > self.largest else rounded


FORMATS: dict[str, FloatFormat] = {
    # IEEE 754-2008 binary32 and binary16
    "fp32": FloatFormat("FP32", 8, 23, 4),
    # NVIDIA A100 whitepaper: FP32's exponent, FP16's fraction; kept in 32-bit words
    "tf32": FloatFormat("TF32", 8, 10, 4),
    "fp16": FloatFormat("FP16", 5, 10, 2),
    # the upper half of an FP32 number
    "bf16": FloatFormat("BF16", 8, 7, 2),
    # Micikevicius et al. 2022 (FP8 Formats for Deep Learning), OCP OFP8: E4M3 gives up inf, E5M2 keeps it
    "e4m3": FloatFormat("E4M3", 4, 3, 1, "fn"),
    "e5m2": FloatFormat("E5M2", 5, 2, 1),
    # OCP Microscaling v1.0
    "e2m1": FloatFormat("E2M1", 2, 1, 0.5, "none"),
}
"""The formats of chapter 06; chapter 18 quantises with them."""
