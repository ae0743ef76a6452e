"""Rounded normal and Laplace noise: whole numbers whose law is exact, for sums that are whole numbers.

For integers S and an exact real Z, round(S + M Z) = S + round(M Z) almost surely: S + noise is a public function,
rounding, of the continuous mechanism S + M Z. So every bound of the continuous mechanism holds for it unchanged: its
profile, composition, subsampling, groups. Its event is Gaussian(M / Delta), or Laplace(M / Delta), Delta the
sensitivity of S in units of the grid. Nothing is added to delta.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit._validate import invalid, whole
from dptoolkit.randomness import cells
from dptoolkit.randomness.cells import EXPONENTIAL, NORMAL, REJECTED, TAIL, Decision, Table, one_try
from dptoolkit.randomness.stream import SecureStream

Integers = NDArray[np.int64]

# The largest multiplier: beyond it too many roundings need further digits.
LARGEST_MULTIPLIER = 2**52
# Up to so many numbers every try takes the same time: how long the noise took then tells nothing about it. Of a long
# vector the time of one number is not seen.
CONSTANT_TIME = 4096
# Words that are drawn at a time, which bounds the memory for them; they fit into the cache.
_BLOCK = 1 << 14


def rounded_normals(stream: SecureStream, multiplier: int, count: int) -> Integers:
    """``count`` independent round(multiplier * Z), Z a standard normal with all its digits.

    Parameters
    ----------
    stream : SecureStream
        Where the words come from.
    multiplier : int
        The public M >= 0, at most 2^52: the standard deviation in units of the grid. 0 gives zeros.
    count : int
        Number of values.

    Returns
    -------
    ndarray
        The noise.

    Privacy
    -------
    Added to integers of L2 sensitivity Delta it is Gaussian(multiplier / Delta), exactly. Public: M and the count.
    """
    return _draw(stream, multiplier, count, NORMAL)


def rounded_laplace(stream: SecureStream, multiplier: int, count: int) -> Integers:
    """``count`` independent round(multiplier * E) with a fair sign, E a standard exponential with all its digits.

    Parameters
    ----------
    stream : SecureStream
        Where the words come from.
    multiplier : int
        The public M >= 0, at most 2^52: the scale in units of the grid. 0 gives zeros.
    count : int
        Number of values.

    Returns
    -------
    ndarray
        The noise.

    Privacy
    -------
    Added to integers of L1 sensitivity Delta it is Laplace(multiplier / Delta), exactly. Public: M and the count.
    """
    return _draw(stream, multiplier, count, EXPONENTIAL)


def check_multiplier(multiplier: int) -> int:
    """A multiplier of noise: a whole number from 0 to 2^52.

    Parameters
    ----------
    multiplier : int
        What is checked.
    """
    if whole("multiplier", multiplier) > LARGEST_MULTIPLIER:
        raise invalid("multiplier", multiplier, "<= 2^52", "Use a coarser grid.")
    return int(multiplier)


def _draw(
    stream: SecureStream,
    multiplier: int,
    count: int,
    law: int,
    margin: float = cells.MARGIN,
    decide: Decision = one_try,
) -> Integers:
    """The numbers; ``margin`` and ``decide`` are others in tests alone."""
    check_multiplier(multiplier)
    out = np.zeros(whole("count", count), np.int64)
    if multiplier == 0 or count == 0:
        return out
    from dptoolkit.kernels.rounded import rounded

    table = cells.table(law)
    quick = table.quick if count > CONSTANT_TIME else table.constant
    each = 2 if count > CONSTANT_TIME else 3
    arguments = table.keep, table.alias, quick, table.logs, table.tail, law, margin
    carry, place = np.zeros(1, np.int64), 0
    while place < count:
        # Words that are left at the end of a block were looked at by nobody.
        words = stream.words(min(each * (count - place) + 16, _BLOCK))
        place = _from_words(words, out, place, multiplier, rounded, arguments, carry, table, stream, decide)
        words[:] = 0
    return out


def _from_words(
    words: Any,
    out: Integers,
    place: int,
    multiplier: int,
    rounded: Any,
    arguments: Any,
    carry: Integers,
    table: Table,
    stream: SecureStream,
    decide: Decision,
) -> int:
    """Use up the words; returns how many places are filled."""
    start = 0
    while True:
        place, used, is_hard = rounded(words[start:], out, place, multiplier, *arguments, carry)
        start += used
        if not is_hard:
            return place
        a, b, c = (int(word) for word in words[start : start + 3])
        outcome = decide(table, (a, b, c), int(carry[0]), stream)
        start += 3
        if outcome == TAIL:
            carry[0] += cells.LAST
        elif outcome != REJECTED:
            assert isinstance(outcome, cells.Kept)
            out[place] = outcome.rounded(multiplier)
            carry[0] = 0
            place += 1
