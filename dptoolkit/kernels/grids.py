"""Rows and residuals on grids: whole numbers, held in doubles, whose sums of products are exact.

Every row, and every residual, is computed from its own record alone, in the order of its entries. See data/grids.py.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

# How a row is put on the grid: to the nearest, towards zero, towards zero after being shortened a little.
_NEAREST, _TOWARDS_ZERO, _SHORTENED, _ATTEMPTS = 0, 1, 2, 3
_SHORTER = 1.0 - 2.0**-20


@njit(cache=True, nogil=True, error_model="numpy")
def rows_on_grid(
    values: NDArray[Any], starts: NDArray[Any], inverse: float, cap: int, fixed: int, out: NDArray[Any]
) -> None:
    """out = values * inverse as whole numbers, such that the squares of every row add up to at most ``cap``.

    Row i has the entries starts[i] <= b < starts[i + 1]. The first attempt that keeps the cap is taken; if none does
    the row becomes zeros. The last ``fixed`` entries of a row, an intercept's, are not shortened.
    """
    for i in range(starts.shape[0] - 1):
        first, last = np.int64(starts[i]), np.int64(starts[i + 1])
        for attempt in range(_ATTEMPTS + 1):
            if attempt == _ATTEMPTS:
                for b in range(first, last):
                    out[b] = 0.0
                break
            if fits(values, first, last, inverse, cap, fixed, attempt, out):
                break


@njit(cache=True, nogil=True, error_model="numpy")
def fits(
    values: NDArray[Any], first: int, last: int, inverse: float, cap: int, fixed: int, attempt: int, out: NDArray[Any]
) -> bool:
    """Write one row; False as soon as its squares exceed the cap, so that their sum never overflows."""
    square, limit = np.int64(0), math.sqrt(float(cap)) + 1.0
    for b in range(first, last):
        x = float(values[b]) * inverse
        if attempt == _NEAREST:
            q = np.rint(x)
        else:
            q = np.trunc(x * _SHORTER if attempt == _SHORTENED and b < last - fixed else x)
        # Written so that NaN fails.
        if not abs(q) <= limit:
            return False
        square += np.int64(q) * np.int64(q)
        if square > cap:
            return False
        # Adding 0 turns -0 into 0.
        out[b] = q + 0.0
    return True


@njit(cache=True, nogil=True, error_model="numpy")
def directions(values: NDArray[Any], starts: NDArray[Any], out: NDArray[Any], lengths: NDArray[Any]) -> None:
    """out = every row over its L2 norm, which goes to ``lengths``; rows of zeros stay so, and have length 0."""
    for i in range(starts.shape[0] - 1):
        first, last, largest, square = np.int64(starts[i]), np.int64(starts[i + 1]), 0.0, 0.0
        for b in range(first, last):
            if abs(float(values[b])) > largest:
                largest = abs(float(values[b]))
        unit = largest if largest > 0.0 else 1.0
        for b in range(first, last):
            ratio = float(values[b]) / unit
            square += ratio * ratio
        root = math.sqrt(square) if square > 0.0 else 1.0
        lengths[i] = largest * math.sqrt(square)
        for b in range(first, last):
            out[b] = float(values[b]) / unit / root


@njit(cache=True, nogil=True, error_model="numpy")
def residuals_on_grid(
    r: NDArray[Any], lengths: NDArray[Any], theta: NDArray[Any], inverse: float, cap: float, out: NDArray[Any]
) -> None:
    """out = r, times the length of its row if there are lengths, in units of 1/inverse: whole, at most ``cap`` in size.

    To the nearest, or, if there are thetas in [0, 1), one for every place, down after adding them. NaN becomes 0.
    """
    for i in range(r.shape[0]):
        x = (r[i] * lengths[i] if lengths.shape[0] > 0 else r[i]) * inverse
        q = math.floor(x + theta[i]) if theta.shape[0] > 0 and abs(x) < 2.0**52 else np.rint(x)
        if math.isnan(x):
            q = 0.0
        elif q > cap:
            q = cap
        elif q < -cap:
            q = -cap
        out[i] = float(q) + 0.0
