"""Fast draws of much noise: standard normals from 64-bit words, and the largest of many scores after Gumbel noise.

The normals are number for number those of NumPy, in less than half its time: it decides the sign by a branch that is
guessed wrong half of the time, here the sign is a bit. The tables of the ziggurat are those that Numba keeps for its
own copy of NumPy's generators.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numba.np.random import _constants as tables
from numpy.typing import NDArray

_WIDTHS, _LIMITS, _HEIGHTS = tables.wi_double, tables.ki_double, tables.fi_double
_TAIL, _TAIL_INVERSE = tables.ziggurat_nor_r, tables.ziggurat_nor_inv_r
# In Numba an unsigned plus a signed integer is a float, so that constants are unsigned.
_LAYERS, _FRACTION, _SIGN = np.uint64(0xFF), np.uint64(2**52 - 1), np.uint64(2**63)
_BYTE, _NEXT, _TO_SIGN, _TO_DOUBLE = np.uint64(8), np.uint64(9), np.uint64(55), np.uint64(11)


@njit(cache=True, nogil=True, error_model="numpy")
def uniform(word: int) -> float:
    """The word as a number in [0, 1), as Generator.random makes it."""
    return float(np.int64(word >> _TO_DOUBLE)) * (1.0 / 9007199254740992.0)


@njit(cache=True, nogil=True, error_model="numpy")
def normals(words: NDArray[Any], out: NDArray[Any], first: int) -> tuple[int, int]:
    """Fill ``out`` from place ``first`` on, as far as the words go: (places filled in all, words consumed).

    Where the words do not suffice for the next number, it is not drawn, and its words count as not used. It needs at
    least one more word, so a caller who adds one word for every empty place never has words left over.
    """
    place, word_count, count = first, 0, words.shape[0]
    while place < out.shape[0] and word_count < count:
        word = words[word_count]
        layer, fraction = word & _LAYERS, (word >> _NEXT) & _FRACTION
        x = float(np.int64(fraction)) * _WIDTHS[layer]
        signed = np.uint64(np.float64(x).view(np.uint64) ^ ((word << _TO_SIGN) & _SIGN)).view(np.float64)
        after = word_count + 1
        if fraction < _LIMITS[layer]:
            out[place] = signed
            place += 1
        elif layer == 0:
            # Beyond the last layer: a pair of exponentials, until one is accepted.
            excess, other = 0.0, -1.0
            while not other + other > excess * excess:
                if after + 1 >= count:
                    return place, word_count
                excess = -_TAIL_INVERSE * math.log1p(-uniform(words[after]))
                other = -math.log1p(-uniform(words[after + 1]))
                after += 2
            out[place] = -(_TAIL + excess) if (fraction >> _BYTE) & np.uint64(1) else _TAIL + excess
            place += 1
        else:
            if after >= count:
                return place, word_count
            low, high = _HEIGHTS[layer], _HEIGHTS[layer - np.uint64(1)]
            if (high - low) * uniform(words[after]) + low < math.exp(-0.5 * x * x):
                out[place] = signed
                place += 1
            after += 1
        word_count = after
    return place, word_count


@njit(cache=True, nogil=True, error_model="numpy")
def largest_after_gumbel(
    scores: NDArray[Any], exponentials: NDArray[Any], scale: float, places: NDArray[Any], sums: NDArray[Any]
) -> bool:
    """Put the places of the largest scores - scale * log(exponentials), as many as there is room, into ``places``.

    Returns whether all scores are finite. ``sums`` gets the noisy scores. Both arrays are a heap with the smallest in
    front; among equal scores the later place is removed first. Most logarithms are not computed: that of the next lower
    power of two, which is a lower bound, is enough to discard a score.
    """
    count, size = places.shape[0], 0
    for j in range(scores.shape[0]):
        if not math.isfinite(scores[j]):
            return False
        power = np.int64((np.float64(exponentials[j]).view(np.int64) >> 52) & 2047) - 1023
        if size == count and scores[j] - scale * (0.6931471805599453 * power) <= sums[0]:
            continue
        total = scores[j] - scale * math.log(exponentials[j])
        if size < count:
            i = size
            size += 1
            while i > 0 and sums[(i - 1) // 2] >= total:
                sums[i], places[i] = sums[(i - 1) // 2], places[(i - 1) // 2]
                i = (i - 1) // 2
        elif total > sums[0]:
            i = 0
            while 2 * i + 1 < count:
                child = 2 * i + 1
                other = child + 1 if child + 1 < count else child
                if sums[other] < sums[child] or (sums[other] == sums[child] and places[other] > places[child]):
                    child = other
                if total <= sums[child]:
                    break
                sums[i], places[i] = sums[child], places[child]
                i = child
        else:
            continue
        sums[i], places[i] = total, j
    return True
