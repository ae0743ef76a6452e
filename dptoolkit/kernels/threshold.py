"""Hard thresholding on sparse rows: margins from the support's columns alone, X^T r in parts, the top-s of a vector."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True, error_model="numpy")
def support_margins(
    t_data: NDArray[Any], t_indices: NDArray[Any], t_indptr: NDArray[Any], support: NDArray[Any], values: NDArray[Any],
    margins: NDArray[Any],
) -> None:
    """margins = X w for a w with few non-zeros, from the rows of X^T that belong to its support."""
    margins[:] = 0.0
    for a in range(support.shape[0]):
        j = support[a]
        value = values[a]
        for b in range(t_indptr[j], t_indptr[j + 1]):
            margins[t_indices[b]] += value * t_data[b]


@njit(cache=True, nogil=True, error_model="numpy")
def feature_sums(
    t_data: NDArray[Any], t_indices: NDArray[Any], t_indptr: NDArray[Any], r: NDArray[Any], out: NDArray[Any],
    first: int, last: int,
) -> None:
    """out[j] = (X^T r)_j for first <= j < last. Four sums at a time hide the latency of the loads."""
    for j in range(first, last):
        low, high = t_indptr[j], t_indptr[j + 1]
        even = low + (high - low) // 4 * 4
        s0 = s1 = s2 = s3 = 0.0
        for b in range(low, even, 4):
            s0 += t_data[b] * r[t_indices[b]]
            s1 += t_data[b + 1] * r[t_indices[b + 1]]
            s2 += t_data[b + 2] * r[t_indices[b + 2]]
            s3 += t_data[b + 3] * r[t_indices[b + 3]]
        for b in range(even, high):
            s0 += t_data[b] * r[t_indices[b]]
        out[j] = (s0 + s1) + (s2 + s3)


def largest(values: NDArray[np.float64], count: int) -> NDArray[np.intp]:
    """Indices of the ``count`` largest |values|, in increasing order; ties at the border go to the smaller index.

    NumPy's partition outside Numba is faster than any compiled quickselect here.
    """
    if count >= len(values):
        return np.arange(len(values))
    size = np.abs(values)
    border = np.partition(size, len(size) - count)[len(size) - count]
    found = np.flatnonzero(size >= border)
    if len(found) == count:
        return found
    above = found[size[found] > border]
    level = found[size[found] == border][: count - len(above)]
    return np.sort(np.concatenate([above, level]))
