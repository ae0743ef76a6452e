"""Hard thresholding on sparse rows: margins from the support's columns alone, residuals, X^T r in parts, the top-s."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

SQUARED, LOGISTIC, HUBER = 0, 1, 2


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
def mean_residuals(
    loss: int, margins: NDArray[Any], y: NDArray[Any], margin_bound: float, caps: NDArray[Any], out: NDArray[Any]
) -> None:
    """out = reference.clipped_residual / n in one pass; empty ``caps`` for none."""
    n = margins.shape[0]
    for i in range(n):
        m = margins[i]
        # Comparisons are false for NaN, which so passes through to the end.
        if m > margin_bound:
            m = margin_bound
        elif m < -margin_bound:
            m = -margin_bound
        if loss == LOGISTIC:
            e = math.exp(-abs(m))
            r = (1.0 if m >= 0 else e) / (1.0 + e) - y[i]
        else:
            r = m - y[i]
        cap = 1.0 if loss == HUBER else math.inf
        if caps.shape[0] > 0 and caps[i] < cap:
            cap = caps[i]
        if r > cap:
            r = cap
        elif r < -cap:
            r = -cap
        elif r != r:
            r = 0.0
        out[i] = r / n


@njit(cache=True, nogil=True, error_model="numpy")
def feature_sums(
    t_data: NDArray[Any], t_indices: NDArray[Any], t_indptr: NDArray[Any], r: NDArray[Any], out: NDArray[Any],
    first: int, last: int,
) -> None:
    """out[j] = (X^T r)_j for first <= j < last. Two sums at a time hide the latency of the additions."""
    # An unsigned plus a signed integer would be a float.
    one, two = np.uint64(1), np.uint64(2)
    for j in range(first, last):
        b, high = t_indptr[j], t_indptr[j + 1]
        even = odd = 0.0
        while b + one < high:
            even += t_data[b] * r[t_indices[b]]
            odd += t_data[b + one] * r[t_indices[b + one]]
            b += two
        if b < high:
            even += t_data[b] * r[t_indices[b]]
        out[j] = even + odd


def largest(values: NDArray[np.float64], count: int, guess: float = math.inf) -> NDArray[np.intp]:
    """Indices of the ``count`` largest |values|, in increasing order; ties at the border go to the smaller index.

    NumPy's partition outside Numba is faster than any compiled quickselect here. ``guess`` changes nothing but the
    time: if at least ``count`` values reach it, only those are compared.
    """
    if count >= len(values):
        return np.arange(len(values))
    size = np.abs(values)
    candidates = np.flatnonzero(size >= guess)
    if len(candidates) < count:
        return _largest(size, count)
    return np.asarray(candidates[_largest(size[candidates], count)])


def _largest(size: NDArray[np.float64], count: int) -> NDArray[np.intp]:
    border = np.partition(size, len(size) - count)[len(size) - count]
    found = np.flatnonzero(size >= border)
    if len(found) == count:
        return found
    above = found[size[found] > border]
    level = found[size[found] == border][: count - len(above)]
    return np.sort(np.concatenate([above, level]))
