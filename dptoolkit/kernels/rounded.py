"""Rounded normal and Laplace noise from random words: integers whose law is exact, with doubles where they suffice.

``rounded`` makes numbers of words as long as every decision is certain, and stops where one is not ("hard"), so that
the caller decides it with further digits and the SAME words (randomness/sampling.py). The table of cells, and why the
law is exact, are in randomness/cells.py.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

NORMAL, EXPONENTIAL = 0, 1
# Words of a try: two, and a third where the first digits of the uniform number do not decide.
PER_TRY = 3
# In Numba an unsigned plus a signed integer is a float, so that constants are unsigned.
_COLUMN, _LAST, _ONE = np.uint64(255), np.uint64(255), np.uint64(1)
_TO_DIGITS, _DIGITS, _TO_SPARE, _SPARE, _BYTE = (np.uint64(k) for k in (8, 2**24 - 1, 55, 255, 8))
_TO_TOP, _REST = np.uint64(24), np.uint64(2**24 - 1)
_TO_U, _TO_LOW, _MORE_U = np.uint64(32), np.uint64(43), np.uint64(21)
_PLACE, _TO_SIGN = np.uint64(2**55 - 1), np.uint64(63)
_CELL_BITS, _CELL_HIGH, _HALF, _UNIT = np.uint64(55), np.uint64(9), np.uint64(2**59), np.uint64(2**60)
_TO_INTEGER, _HIGH = np.uint64(60), np.uint64(4)
# Beyond so many cells a product with a multiplier of up to 2^52 could exceed 64 bits.
_MOST_CELLS = np.uint64(2**11)
_U_UNIT, _PLACE_UNIT, _WORD_UNIT, _TO_DOUBLE = 2.0**-53, 2.0**-55, 2.0**-64, np.uint64(11)
# Below it, a uniform word has too few digits for its logarithm.
_SMALL = np.uint64(2**24)


@intrinsic
def high_product(typing, a, b):  # type: ignore[no-untyped-def]
    """The upper 64 of the 128 bits of a * b."""

    def build(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        wide = ir.IntType(128)
        one, two = (builder.zext(value, wide) for value in arguments)
        shifted = builder.lshr(builder.mul(one, two), ir.Constant(wide, 64))
        return builder.trunc(shifted, ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), build


@njit(cache=True, nogil=True, error_model="numpy")
def nearest(m: Any, cells: Any, p: Any) -> Any:
    """round(m (2^55 cells + p + theta) / 2^60) if it is the same for every theta in [0, 1), unseen digits; else -1."""
    if cells >= _MOST_CELLS:
        return -1
    steps = m * cells
    low, high = m * p, high_product(m, p)
    total = low + (steps << _CELL_BITS)
    high += (steps >> _CELL_HIGH) + (_ONE if total < low else np.uint64(0))
    low = total + _HALF
    high += _ONE if low < total else np.uint64(0)
    if (low & (_UNIT - _ONE)) + m > _UNIT:
        return -1
    return np.int64((high << _HIGH) | (low >> _TO_INTEGER))


@njit(cache=True, nogil=True, error_model="numpy")
def rounded(
    words: NDArray[Any],
    out: NDArray[Any],
    first: int,
    multiplier: int,
    keep: NDArray[Any],
    alias: NDArray[Any],
    quick: NDArray[Any],
    logs: NDArray[Any],
    tail: int,
    law: int,
    margin: float,
    carry: NDArray[Any],
) -> tuple[int, int, bool]:
    """Fill ``out`` from place ``first`` on with round(multiplier * X), X normal, or exponential with a fair sign.

    Returns (places filled in all, words consumed, whether the try that begins with the next word is hard). It stops
    where out is full, where fewer than PER_TRY words are left, and at a hard try. ``carry`` holds the cells that an
    exponential number already is away from 0. ``quick`` of zeros makes every try take the same time. ``tail`` is the
    chance, in units of 2^-32, that a number of the last column is in the tail; -1 makes such a try hard.
    """
    place, used, count, m = first, 0, words.shape[0], np.uint64(multiplier)
    while place < out.shape[0] and used + PER_TRY <= count:
        a, b = words[used], words[used + 1]
        # A column of the table, and 32 digits that choose between the two cells in it.
        column = a & _COLUMN
        digits = (((a >> _TO_DIGITS) & _DIGITS) << _BYTE) | ((b >> _TO_SPARE) & _SPARE)
        top = keep[column] >> _TO_TOP
        if digits < top:
            cell = column
        elif digits > top or keep[column] & _REST == np.uint64(0):
            cell = np.uint64(alias[column])
        else:
            return place, used, True
        u, p = a >> _TO_U, b & _PLACE
        if cell == _LAST:
            if np.int64(u) < tail:
                carry[0] += 255
                used += 2
                continue
            if tail >= 0 and np.int64(u) > tail:
                used += 2
                continue
            return place, used, True
        after = used + 2
        if u >= quick[cell]:
            x = (float(np.int64(cell)) + float(np.int64(p)) * _PLACE_UNIT) / 32.0
            chance = math.exp(logs[cell] - (0.5 * x * x if law == NORMAL else x))
            uniform = float(np.int64((u << _MORE_U) | (words[used + 2] >> _TO_LOW))) * _U_UNIT
            if abs(uniform - chance) <= margin:
                return place, used, True
            after = used + 3
            if uniform > chance:
                used = after
                continue
        size = nearest(m, cell + np.uint64(carry[0]), p)
        if size < 0:
            return place, used, True
        out[place] = -size if b >> _TO_SIGN else size
        carry[0] = 0
        place += 1
        used = after
    return place, used, False


# --- the largest of very many noises ---------------------------------------------------------------------------


@njit(cache=True, nogil=True, error_model="numpy")
def rounded_in_cells(
    words: NDArray[Any],
    out: NDArray[Any],
    first: int,
    multiplier: int,
    lowest: int,
    sums: NDArray[Any],
    mask: int,
    logs: NDArray[Any],
    margin: float,
) -> tuple[int, int, bool]:
    """As ``rounded`` for normals whose size is in the cells ``lowest``, ``lowest`` + 1, ...; every try takes 3 words.

    ``sums`` are the sums of the cells' weights up to each, and ``mask`` has the digits of the last. A word that is
    beyond the last sum is another try. The last column, 255, is hard.
    """
    place, used, count, m = first, 0, words.shape[0], np.uint64(multiplier)
    while place < out.shape[0] and used + PER_TRY <= count:
        t, b, c = words[used] & np.uint64(mask), words[used + 1], words[used + 2]
        if t >= sums[-1]:
            used += PER_TRY
            continue
        low, high = 0, sums.shape[0] - 1
        while low < high:
            middle = (low + high) // 2
            if t < sums[middle]:
                high = middle
            else:
                low = middle + 1
        cell, p = np.uint64(lowest + low), b & _PLACE
        if cell == _LAST:
            return place, used, True
        x = (float(np.int64(cell)) + float(np.int64(p)) * _PLACE_UNIT) / 32.0
        gap = float(np.int64(c >> _TO_DOUBLE)) * _U_UNIT - math.exp(logs[cell] - 0.5 * x * x)
        if abs(gap) <= margin:
            return place, used, True
        if gap < 0.0:
            size = nearest(m, cell, p)
            if size < 0:
                return place, used, True
            out[place] = -size if b >> _TO_SIGN else size
            place += 1
        used += PER_TRY
    return place, used, False


@njit(cache=True, nogil=True, error_model="numpy")
def skips(
    words: NDArray[Any], rate: float, position: int, end: int, out: NDArray[Any], first: int
) -> tuple[int, int, int, bool]:
    """Places of independent events among position, ..., end - 1; log(1 - chance) is ``rate``, to 2^-51 of itself.

    A gap is floor(log U / rate), U uniform. Returns (places found in all, words consumed, the next place that was not
    looked at, whether the next word is hard). It stops where ``out`` is full, the words or the places are used up, and
    where a gap is hard: more digits of U, or of the chance, could change it.
    """
    found, used = first, 0
    while position < end and found < out.shape[0] and used < words.shape[0]:
        w = words[used]
        if w < _SMALL:
            return found, used, position, True
        size = float(np.int64(w >> _ONE)) * 2.0
        log = math.log((size + 1.0) * _WORD_UNIT)
        gap = log / rate
        error = (2.0**-48 * (1.0 - log) + 2.0 / size) / -rate
        if gap - error >= end - position:
            position = end
        elif math.floor(gap - error) != math.floor(gap + error):
            return found, used, position, True
        else:
            position += int(math.floor(gap))
            if position < end:
                out[found] = position
                found += 1
                position += 1
        used += 1
    return found, used, position, False
