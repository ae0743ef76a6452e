"""The exponential mechanism on whole-number scores, with whole-number weights: no rounding adds up, nothing drifts.

A weight is any whole number that is at least the true weight 2^digits e_j, e_j = exp(-unit (top - |T_j|)), plus
exp(-unit (top + |T_j|)) where a candidate and its negative are weighed together. A try takes j with probability
W_j / total and keeps it with chance 2^digits e_j / W_j: the product is the true weight times the same factor for all j,
so weights that are too large only cost tries. Decisions in double have a margin; closer ones are hard and left to
randomness/selection.py, which decides them with the same words.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

# What a call of ``select`` ended with.
WORDS_USED_UP, CHOSEN, HARD = 0, 1, 2
PER_TRY = 3
_SLACK, _RELATIVE, _ABSOLUTE, _SIGN_MARGIN = 1.0 + 2.0**-36, 2.0**-36, 2.0**-50, 2.0**-40
_TO_DOUBLE, _UNIT = np.uint64(11), 2.0**-53
_NONE, _FAR, _APART = np.uint64(0), 80.0, 20.0


@njit(cache=True, nogil=True, error_model="numpy")
def true_weight(score: int, top: int, unit: float, two_sided: bool) -> float:
    """e_j in double, to 2^-44 of itself or to 2^-115.

    The exponent is computed from the difference of whole numbers: unit * score alone would lose the digits that count.
    """
    size = abs(score) if two_sided else score
    exponent = unit * float(top - size)
    # The true weight is then below 2^-115 and, times scale <= 2^57, below every margin.
    if exponent > _FAR:
        return 0.0
    e = math.exp(-exponent)
    # Where it is not computed, the negative's weight is less than 2^-50 of the candidate's.
    return e + math.exp(-unit * float(top + size)) if two_sided and unit * float(size) < _APART else e


@njit(cache=True, nogil=True, error_model="numpy")
def weigh(score: int, top: int, unit: float, two_sided: bool, scale: float) -> Any:
    """A whole number that is at least scale * e_j: one more than what doubles give with a slack of 2^-36."""
    return np.uint64(1) + np.uint64(_SLACK * scale * true_weight(score, top, unit, two_sided))


@njit(cache=True, nogil=True, error_model="numpy")
def weigh_all(
    scores: NDArray[Any],
    top: int,
    unit: float,
    two_sided: bool,
    scale: float,
    weights: NDArray[Any],
    groups: NDArray[Any],
    width: int,
) -> None:
    """All weights, and their sums over groups of ``width``; a weight of 0 stays 0: that candidate is taken."""
    for g in range(groups.shape[0]):
        groups[g] = 0
    for j in range(scores.shape[0]):
        if weights[j] > _NONE:
            weights[j] = weigh(scores[j], top, unit, two_sided, scale)
            groups[j // width] += weights[j]


@njit(cache=True, nogil=True, error_model="numpy")
def select(
    words: NDArray[Any],
    scores: NDArray[Any],
    top: int,
    unit: float,
    two_sided: bool,
    scale: float,
    weights: NDArray[Any],
    groups: NDArray[Any],
    width: int,
) -> tuple[int, int, bool, int]:
    """(how it ended, index, whether its negative is chosen, words consumed); a try takes three words."""
    total = np.uint64(0)
    for g in range(groups.shape[0]):
        total += groups[g]
    # All digits of the largest number below the total.
    mask = total - np.uint64(1)
    for shift in (1, 2, 4, 8, 16, 32):
        mask |= mask >> np.uint64(shift)
    used = 0
    while used + PER_TRY <= words.shape[0]:
        t = words[used] & mask
        if t >= total:
            used += PER_TRY
            continue
        j = find(t, weights, groups, width)
        e = true_weight(scores[j], top, unit, two_sided)
        chance = scale * e / float(weights[j])
        uniform = float(np.int64(words[used + 1] >> _TO_DOUBLE)) * _UNIT
        if abs(uniform - chance) <= _RELATIVE * chance + _ABSOLUTE:
            return HARD, j, False, used
        if uniform < chance:
            if not two_sided:
                return CHOSEN, j, False, used + PER_TRY
            against = math.exp(-2.0 * unit * float(abs(scores[j])))
            gap = float(np.int64(words[used + 2] >> _TO_DOUBLE)) * _UNIT - against / (1.0 + against)
            if abs(gap) <= _SIGN_MARGIN:
                return HARD, j, False, used
            return CHOSEN, j, gap < 0.0, used + PER_TRY
        used += PER_TRY
    return WORDS_USED_UP, 0, False, used


@njit(cache=True, nogil=True, error_model="numpy")
def take(
    words: NDArray[Any],
    scores: NDArray[Any],
    top: int,
    unit: float,
    scale: float,
    weights: NDArray[Any],
    groups: NDArray[Any],
    width: int,
    chosen: NDArray[Any],
    filled: int,
) -> tuple[int, int, int, int]:
    """One-sided selections without return into ``chosen`` from place ``filled`` on; each is a ``select``.

    Returns (how the last one ended, its index, words consumed, places filled).
    """
    used = 0
    while filled < chosen.shape[0]:
        how, j, _, more = select(words[used:], scores, top, unit, False, scale, weights, groups, width)
        used += more
        if how != CHOSEN:
            return how, j, used, filled
        remove(j, weights, groups, width)
        chosen[filled] = j
        filled += 1
    return CHOSEN, 0, used, filled


@njit(cache=True, nogil=True, error_model="numpy")
def remove(j: int, weights: NDArray[Any], groups: NDArray[Any], width: int) -> None:
    """Candidate j cannot be chosen again."""
    groups[j // width] -= weights[j]
    weights[j] = _NONE


@njit(cache=True, nogil=True, error_model="numpy")
def find(t: int, weights: NDArray[Any], groups: NDArray[Any], width: int) -> int:
    """The j with W_0 + ... + W_(j-1) <= t < W_0 + ... + W_j."""
    left, g = t, 0
    while left >= groups[g]:
        left -= groups[g]
        g += 1
    j = g * width
    while left >= weights[j]:
        left -= weights[j]
        j += 1
    return j
