"""Products with the Hessian of a sum of losses in one pass over sparse rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True, error_model="numpy")
def curvature_product(
    data: NDArray[Any],
    indices: NDArray[Any],
    indptr: NDArray[Any],
    weights: NDArray[Any],
    v: NDArray[Any],
    out: NDArray[Any],
) -> None:
    """out = X^T diag(weights) X v: a row is read for its margin, and once more while it is still in the cache."""
    one, two = np.uint64(1), np.uint64(2)
    for j in range(out.shape[0]):
        out[j] = 0.0
    for i in range(weights.shape[0]):
        first, last = indptr[i], indptr[i + 1]
        # Two sums at a time hide the latency of the additions.
        even, odd, b = 0.0, 0.0, first
        while b + one < last:
            even += data[b] * v[indices[b]]
            odd += data[b + one] * v[indices[b + one]]
            b += two
        if b < last:
            even += data[b] * v[indices[b]]
        product = weights[i] * (even + odd)
        for b in range(first, last):
            out[indices[b]] += product * data[b]
