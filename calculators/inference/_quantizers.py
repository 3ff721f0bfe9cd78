"""Quantise a matrix and give it back: integers, FP8, MXFP4, NVFP4, GPTQ.  Groups run along the input dimension (axis 1)."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

from calculators.formulas.number_formats import FORMATS
from calculators.inference.fp_grid import positive_values

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Matrix = NDArray[np.float64]

E4M3, E2M1 = FORMATS["e4m3"], FORMATS["e2m1"]


def _amax(X: Matrix) -> Matrix:
    """Largest magnitude of each block; an empty block counts as 1, so that nothing is divided by zero."""
    import numpy as np

    largest: Matrix = np.abs(X).max(axis=-1, keepdims=True)
    return np.where(largest > 0, largest, 1.0)


def integers(X: Matrix, bits: int, block: int) -> Matrix:
    """Symmetric absmax: round half to even, one scale for every ``block`` values in a row of memory."""
    import numpy as np

    top = 2.0 ** (bits - 1) - 1
    blocks = X.reshape(-1, block)
    scale = _amax(blocks) / top
    restored: Matrix = np.clip(np.rint(blocks / scale), -top, top) * scale
    return restored.reshape(X.shape)


@lru_cache(maxsize=2)
def _grid(id: str) -> tuple[Matrix, Matrix]:
    """A format's numbers from 0 up, and the midpoints between them."""
    import numpy as np

    f = FORMATS[id]
    values = np.array([0.0, *positive_values(f.exp_bits, f.man_bits, f.bias, f.special)])
    return values, (values[1:] + values[:-1]) / 2


def _nearest(X: Matrix, id: str) -> Matrix:
    """The closest number of the format; the largest one for everything beyond it."""
    import numpy as np

    values, midpoints = _grid(id)
    found: Matrix = np.copysign(values[np.searchsorted(midpoints, np.abs(X))], X)
    return found


def fp8(X: Matrix) -> Matrix:
    """E4M3, one scale for the whole matrix."""
    import numpy as np

    scale = float(np.abs(X).max()) / E4M3.largest
    return _nearest(X / scale, "e4m3") * scale


def mxfp4(X: Matrix) -> Matrix:
    """32 values share a power of two, 2^(⌊log2 amax⌋ − 2): E2M1's largest power of two is 4."""
    import numpy as np

    blocks = X.reshape(-1, 32)
    scale: Matrix = np.exp2(np.floor(np.log2(_amax(blocks))) - 2)
    return (_nearest(blocks / scale, "e2m1") * scale).reshape(X.shape)


def nvfp4(X: Matrix) -> Matrix:
    """16 values share an E4M3 scale, the tensor one FP32 scale that brings those scales into E4M3's reach."""
    import numpy as np

    blocks = X.reshape(-1, 16)
    tensor = float(np.abs(X).max()) / (E2M1.largest * E4M3.largest)
    scale = _nearest(np.maximum(_amax(blocks) / E2M1.largest / tensor, E4M3.min_subnormal), "e4m3") * tensor
    return (_nearest(blocks / scale, "e2m1") * scale).reshape(X.shape)


WEIGHT_FORMATS: dict[str, Callable[[Matrix], Matrix]] = {
    "int8_tensor": lambda W: integers(W, 8, W.size),
    "int8_row": lambda W: integers(W, 8, W.shape[1]),
    "int4_tensor": lambda W: integers(W, 4, W.size),
    "int4_row": lambda W: integers(W, 4, W.shape[1]),
    "int4_g128": lambda W: integers(W, 4, 128),
    "int4_g32": lambda W: integers(W, 4, 32),
    "mxfp4": mxfp4,
    "nvfp4": nvfp4,
    "fp8_tensor": fp8,
}


def error_pct(reference: Matrix, found: Matrix, against: Matrix | None = None) -> float:
    """‖reference − found‖ ÷ ‖against‖ (the reference unless said), in %."""
    import numpy as np

    return 100 * float(np.linalg.norm(reference - found) / np.linalg.norm(reference if against is None else against))


def product(X: Matrix, W: Matrix) -> Matrix:
    """X·Wᵀ.  A browser has no BLAS: there this is several times as fast as the operator ``@``."""
    import numpy as np

    found: Matrix = np.einsum("ik,jk->ij", X, W)
    return found


def smooth(X: Matrix, W: Matrix, alpha: float) -> Matrix:
    """SmoothQuant: divide each channel of X by s and multiply W's column by it, then A8 per token, W8 per row; the product."""
    import numpy as np

    s = np.abs(X).max(axis=0) ** alpha / np.abs(W).max(axis=0) ** (1 - alpha)
    return product(integers(X / s, 8, X.shape[1]), integers(W * s, 8, W.shape[1]))


def awq(X: Matrix, W: Matrix, bits: int, alpha: float) -> Matrix:
    """AWQ: enlarge the columns that meet large inputs before rounding, shrink them afterwards; the restored weights."""
    import numpy as np

    s = np.abs(X).mean(axis=0) ** alpha
    restored: Matrix = integers(W * s, bits, 128) / s
    return restored


def gptq(W: Matrix, X: Matrix, bits: int) -> Matrix:
    """Column by column, each rounding error pushed onto the columns to come.  Scales per row, fixed before the first column."""
    import numpy as np

    H = 2 * product(np.ascontiguousarray(X.T), np.ascontiguousarray(X.T))
    H += 0.01 * float(np.mean(np.diag(H))) * np.eye(len(H))
    U = np.linalg.cholesky(np.linalg.inv(H)).T
    top = 2.0 ** (bits - 1) - 1
    scale = _amax(W)[:, 0] / top
    left, restored = W.copy(), np.empty_like(W)
    for j in range(W.shape[1]):
        restored[:, j] = np.clip(np.rint(left[:, j] / scale), -top, top) * scale
        error = (left[:, j] - restored[:, j]) / U[j, j]
        left[:, j + 1 :] -= np.outer(error, U[j, j + 1 :])
    return restored
