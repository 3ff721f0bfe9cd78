"""Rounding whole arrays to a floating-point format: what the experiments of chapter 06 share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calculators.formulas.number_formats import FloatFormat

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def nearest(x: NDArray[np.float64], fmt: FloatFormat) -> NDArray[np.float64]:
    """``FloatFormat.nearest`` on an array: ties to even, subnormals kept, infinite beyond the largest number."""
    import numpy as np

    exponent = np.maximum(np.frexp(x)[1] - 1, fmt.min_exponent)
    step = np.ldexp(1.0, exponent - fmt.man_bits)
    rounded: NDArray[np.float64] = np.rint(x / step) * step
    rounded[np.abs(rounded) > fmt.largest] *= np.inf
    return rounded
