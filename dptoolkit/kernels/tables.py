"""Rows of a table: clipped, ranked and scaled in one pass over a block, counted in bins, and added up.

Blocks are C-contiguous arrays of doubles that stay in the cache, and are changed where they are. Every row is changed
by its own entries and public or released numbers alone, in the order of its entries; no branch looks at another row.
Numbers are added up in doubles. What these compute is in reference.py, in plain NumPy.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

# Below it, squares of entries may have lost digits to underflow, and a row is divided by its largest entry first.
_LEAST_SQUARE = 1e-200
# What a bounded row is multiplied with besides: a part in 1e13 less, and what a sum of so many squares may round.
_SHORTER, _ROUNDING = 1.0 - 1e-13, 2.0**-53


# --- validation -----------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True, error_model="numpy")
def count_outside(block: NDArray[Any], low: NDArray[Any], high: NDArray[Any], counts: NDArray[Any]) -> None:
    """Add to ``counts`` how many values of each column of the block lie outside its bounds."""
    for i in range(block.shape[0]):
        for j in range(block.shape[1]):
            counts[j] += (block[i, j] < low[j]) | (block[i, j] > high[j])


# --- the map --------------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True, error_model="numpy")
def places(block: NDArray[Any], column: int, borders: NDArray[Any], values: NDArray[Any], out: NDArray[Any]) -> None:
    """values = a column of the block, and out = the place k of its bins with borders[k] <= value < borders[k + 1].

    Values beyond the borders are in the first or in the last bin, and NaN is in the first. Every value is compared
    with every border: that is a loop without jumps over the rows of a block, which is compiled to vectors.
    """
    n = block.shape[0]
    for i in range(n):
        values[i] = block[i, column]
        out[i] = 0
    for k in range(1, borders.shape[0] - 1):
        border = borders[k]
        for i in range(n):
            out[i] += 1 if values[i] >= border else 0


@njit(cache=True, nogil=True, error_model="numpy")
def scale(block: NDArray[Any], low: NDArray[Any], high: NDArray[Any], zero: NDArray[Any], size: NDArray[Any]) -> bool:
    """Clip every column to its bounds, then (value - zero) / size; returns whether all values were numbers, not NaN."""
    gaps = 0
    for i in range(block.shape[0]):
        for j in range(block.shape[1]):
            v = block[i, j]
            gaps += v != v
            v = low[j] if v < low[j] else v
            v = high[j] if v > high[j] else v
            block[i, j] = (v - zero[j]) / size[j]
    return gaps == 0


@njit(cache=True, nogil=True, error_model="numpy")
def rank(
    block: NDArray[Any],
    columns: NDArray[Any],
    starts: NDArray[Any],
    borders: NDArray[Any],
    below: NDArray[Any],
    slopes: NDArray[Any],
) -> None:
    """Turn these columns into 2 f(value) - 1, f the straight lines through (borders, below), constant beyond them.

    Column columns[k] has the borders from starts[k] to before starts[k + 1]; ``slopes`` are those after each border.
    """
    n = block.shape[0]
    values, at = np.empty(n), np.empty(n, np.int64)
    for k in range(columns.shape[0]):
        own = slice(starts[k], starts[k + 1])
        b, f, s = borders[own], below[own], slopes[own]
        last = b.shape[0] - 1
        places(block, columns[k], b, values, at)
        for i in range(n):
            v = values[i]
            share = s[at[i]] * (v - b[at[i]]) + f[at[i]]
            # Neither rounding nor a steep line leads beyond the ends.
            share = f[0] if v <= b[0] or share < f[0] else share
            share = f[last] if v >= b[last] or share > f[last] else share
            block[i, columns[k]] = 2.0 * share - 1.0


@njit(cache=True, nogil=True, error_model="numpy")
def bound(block: NDArray[Any], norm: float, is_clip: bool) -> None:
    """Scale every row to L2 norm ``norm``, never above it; rows of zeros stay so. ``is_clip``: only longer rows.

    Squares of ordinary entries are added up as they are. A row whose squares could lose digits, or overflow, is divided
    by its largest entry first. Where it is not sure that a row is short enough, it counts as longer.
    """
    width = block.shape[1]
    shorter = _SHORTER - width * _ROUNDING
    for i in range(block.shape[0]):
        square, divisor = 0.0, 1.0
        for j in range(width):
            square += block[i, j] * block[i, j]
        # Written so that NaN takes the careful way.
        if not _LEAST_SQUARE <= square <= 1.0 / _LEAST_SQUARE:
            largest, square = 0.0, 0.0
            for j in range(width):
                largest = max(largest, abs(block[i, j]))
            divisor = largest if largest > 0.0 else 1.0
            for j in range(width):
                ratio = block[i, j] / divisor
                square += ratio * ratio
        length = math.sqrt(square)
        if length > 0.0 and not (is_clip and length * divisor <= norm * shorter):
            factor = norm / length * shorter
            for j in range(width):
                block[i, j] = block[i, j] / divisor * factor


# --- histograms -----------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True, error_model="numpy")
def count_bins(
    block: NDArray[Any],
    times: NDArray[Any],
    starts: NDArray[Any],
    borders: NDArray[Any],
    counts: NDArray[Any],
) -> None:
    """Add the rows of a block to the bins of its columns, each ``times`` as often; ``counts`` has a place per border.

    Column k has the borders from starts[k] to before starts[k + 1]. A value on a border is in the bin above it, and
    values beyond the borders are in the first or in the last bin.
    """
    n = block.shape[0]
    values, at = np.empty(n), np.empty(n, np.int64)
    for k in range(starts.shape[0] - 1):
        places(block, k, borders[starts[k] : starts[k + 1]], values, at)
        first = starts[k]
        for i in range(n):
            counts[first + at[i]] += times[i]


# --- passes ---------------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract"})
def margins(rows: NDArray[Any], weights: NDArray[Any], out: NDArray[Any]) -> None:
    """out = rows @ weights, added up in doubles, in an order that depends on the number of columns alone.

    The order is the compiler's, which is how a row is added up in vectors. No check, clip or bound is computed here,
    and NaN and infinity stay what they are: these two flags allow another order, and a product that is not rounded.
    """
    for i in range(rows.shape[0]):
        total = 0.0
        for j in range(rows.shape[1]):
            total += rows[i, j] * weights[j]
        out[i] = total


@njit(cache=True, nogil=True, error_model="numpy")
def add_rows(rows: NDArray[Any], r: NDArray[Any], total: NDArray[Any]) -> None:
    """total += sum of r_i x_i, row by row, in doubles."""
    for i in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            total[j] += r[i] * rows[i, j]
