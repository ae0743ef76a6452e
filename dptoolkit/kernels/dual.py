"""Sweeps over sparse rows that set one residual after the other to what it would be at the minimum."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

SQUARED, LOGISTIC, HUBER, HINGE = 0, 1, 2, 4
# The smoothed hinge is rounded over this much of its margin (losses.HINGE_WIDTH).
_WIDTH = 0.5


@njit(cache=True, nogil=True, error_model="numpy")
def clipped(value: float, low: float, high: float) -> float:
    """The value, or the end of the range that it exceeds. NaN stays NaN, which min and max do not promise."""
    if value < low:
        return low
    return high if value > high else value


@njit(cache=True, nogil=True, error_model="numpy")
def residual(loss: int, margin: float, y: float) -> float:
    """d loss / d margin of one row, as in losses.py; NaN for a loss that has no branch here."""
    if loss == LOGISTIC:
        e = math.exp(-abs(margin))
        return (1.0 if margin >= 0 else e) / (1.0 + e) - y
    if loss == HINGE:
        sign = 2.0 * y - 1.0
        return -sign * clipped((1.0 - sign * margin) / _WIDTH, 0.0, 1.0)
    if loss == HUBER:
        return clipped(margin - y, -1.0, 1.0)
    return margin - y if loss == SQUARED else math.nan


@njit(cache=True, nogil=True, error_model="numpy")
def bend(loss: int, r: float) -> float:
    """The second derivative where the residual is r, but for the corners; NaN for a loss that has no branch here."""
    size = abs(r)
    if loss == LOGISTIC:
        return size * (1.0 - size)
    if loss == HINGE:
        return 1.0 / _WIDTH if 0.0 < size < 1.0 else 0.0
    if loss == HUBER:
        return 1.0 if size < 1.0 else 0.0
    return 1.0 if loss == SQUARED else math.nan


@njit(cache=True, nogil=True, error_model="numpy")
def row_squares(data: NDArray[Any], indptr: NDArray[Any], out: NDArray[Any]) -> None:
    """The squared norm of each row."""
    one, two = np.uint64(1), np.uint64(2)
    for i in range(out.shape[0]):
        even, odd, b, last = 0.0, 0.0, indptr[i], indptr[i + 1]
        while b + one < last:
            even += data[b] * data[b]
            odd += data[b + one] * data[b + one]
            b += two
        out[i] = even + odd + (data[b] * data[b] if b < last else 0.0)


@njit(cache=True, nogil=True, error_model="numpy")
def sweep(
    loss: int,
    data: NDArray[Any],
    indices: NDArray[Any],
    indptr: NDArray[Any],
    squares: NDArray[Any],
    y: NDArray[Any],
    l2: float,
    order: NDArray[Any],
    block: int,
    shares: NDArray[Any],
    w: NDArray[Any],
) -> None:
    """One step for each row, ``block`` rows at a time in the order given: w = -(linear + X^T shares)/l2 stays true.

    The step of row i is Newton's for shares[i] = the residual at the margin that w has when shares[i] is that.
    """
    one, two = np.uint64(1), np.uint64(2)
    for k in range(order.shape[0]):
        start = order[k] * block
        for i in range(start, min(start + block, y.shape[0])):
            first, last = indptr[i], indptr[i + 1]
            # Two sums at a time hide the latency of the additions.
            even, odd, b = 0.0, 0.0, first
            while b + one < last:
                even += data[b] * w[indices[b]]
                odd += data[b + one] * w[indices[b + one]]
                b += two
            if b < last:
                even += data[b] * w[indices[b]]
            r = residual(loss, even + odd, y[i])
            change = (r - shares[i]) / (1.0 + bend(loss, r) * squares[i] / l2)
            shares[i] += change
            move = change / l2
            for b in range(first, last):
                w[indices[b]] -= move * data[b]
