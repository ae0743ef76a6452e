"""Only the largest of very many noises: those below a level are never drawn.

A step that keeps few of millions of coordinates needs the noise of those that could be kept. Whether |Z| of a
coordinate reaches a public level c/32 is an event of probability p = P(|Z| >= c/32), independent of the others: where
these events happen is found by skipping from one to the next, and each gets a value of the law given that it happened.
That is the law of drawing all noises and hiding those below the level. If too few are large enough, the level is
lowered, and the coordinates that stayed below the last one are looked at again, with the chance that is left,
(p' - p) / (1 - p), and values between the two levels.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit._validate import invalid, whole
from dptoolkit.randomness import cells, exact
from dptoolkit.randomness.cells import LAST, REJECTED, Table
from dptoolkit.randomness.exact import Bounds, Digits
from dptoolkit.randomness.sampling import Integers, check_multiplier, rounded_normals
from dptoolkit.randomness.stream import SecureStream

# The first level is reached by about so many coordinates for each that is wanted, the next ones by so many times more.
_SPARE, _NEXT = 4, 8
# Digits of a chance for its logarithm in double, and the largest chance for which skips are drawn.
_DIGITS, _MOST = 160, 0.5
_BLOCK = 1 << 12


class LargestNoises:
    """The noises round(multiplier * Z) of ``size`` coordinates, the largest first, level by level.

    ``descend`` returns the places and noises of the next level, until ``done``. No coordinate that was not returned yet
    has a noise of more than ``bound`` in size, but it may have one of exactly that: stop where enough noises, as they
    are compared, are STRICTLY larger, and go on otherwise.

    Parameters
    ----------
    stream : SecureStream
        Where the words come from.
    multiplier : int
        The public M: the standard deviation in units of the grid.
    size : int
        Number of coordinates.
    wanted : int
        Public number of the largest that will be needed; it sets the first level.

    Privacy
    -------
    The law of the noises is that of ``rounded_normals(stream, multiplier, size)``. The levels are public. How many
    levels were needed is a function of the released sums only if the caller's rule is; it shows in the run time alone.
    """

    def __init__(self, stream: SecureStream, multiplier: int, size: int, wanted: int) -> None:
        self._stream, self._multiplier = stream, check_multiplier(multiplier)
        self._size, self._found = whole("size", size), np.zeros(0, np.int64)
        self._levels = levels(size, whole("wanted", wanted, low=1))
        self._level = LAST + 1

    @property
    def done(self) -> bool:
        """Whether every coordinate has its noise."""
        return self._level == 0

    @property
    def bound(self) -> int:
        """The largest |noise| that a coordinate without one can have, as |Z| < c/32 rounds to floor(M c/32 + 1/2)."""
        return math.floor(Fraction(self._multiplier * self._level, 32) + Fraction(1, 2))

    def descend(self) -> tuple[Integers, Integers]:
        """(places in increasing order, their noises) of the coordinates between the next level and the last one."""
        level = self._levels.pop(0)
        above, self._level = self._level, level
        left = self._size - len(self._found)
        if above > LAST and level == 0:
            places, noises = np.arange(left), rounded_normals(self._stream, self._multiplier, left)
        else:
            places = np.arange(left) if level == 0 else _events(self._stream, _chance(level, above), left)
            noises = values_between(self._stream, self._multiplier, level, above, len(places))
        # Places count the coordinates that were not found before.
        own = places + np.searchsorted(self._found - np.arange(len(self._found)), places, side="right")
        self._found = np.sort(np.concatenate([self._found, own]))
        return own, noises


def largest_noises(stream: SecureStream, multiplier: int, size: int, count: int) -> tuple[Integers, Integers]:
    """(places in increasing order, noises) of the ``count`` largest |round(multiplier * Z)| of ``size`` coordinates.

    Ties go to the smaller place. Only as many noises are drawn as can be among the largest.

    Parameters
    ----------
    stream : SecureStream
        Where the words come from.
    multiplier : int
        The standard deviation in units of the grid.
    size : int
        The number of coordinates.
    count : int
        How many of the largest are returned.

    Privacy
    -------
    The law is that of drawing all noises and keeping the largest. Public: all arguments.
    """
    if whole("count", count, low=1) > size:
        raise invalid("count", count, f"<= {size}, the number of coordinates")
    noises = LargestNoises(stream, multiplier, size, count)
    places, values = noises.descend()
    # A coordinate below the level may round to exactly the bound, and would win a tie by a smaller place.
    while not noises.done and int((np.abs(values) > noises.bound).sum()) < count:
        more = noises.descend()
        places, values = np.concatenate([places, more[0]]), np.concatenate([values, more[1]])
    best = np.sort(np.lexsort((places, -np.abs(values)))[:count])
    order = best[np.argsort(places[best])]
    return places[order], values[order]


def levels(size: int, wanted: int) -> list[int]:
    """The public levels c, in units of 1/32, for so many coordinates: falling, the last one is 0.

    Parameters
    ----------
    size : int
        The number of coordinates.
    wanted : int
        How many of the largest noises are wanted.
    """
    found, share = [], _SPARE * wanted / max(size, 1)
    while share < _MOST / _NEXT:
        # Any whole number would do: its chance is computed exactly.
        level = max(c for c in range(LAST + 1) if math.erfc(c / 32 / math.sqrt(2)) >= share)
        if level == 0:
            break
        if level not in found:
            found.append(level)
        share *= _NEXT
    return [*found, 0]


def _chance(level: int, above: int) -> Bounds:
    """Bounds of the chance that |Z| >= level/32 for a coordinate that is below the level above."""
    tail = partial(exact.normal_tail, level)
    return tail if above > LAST else exact.conditional(tail, partial(exact.normal_tail, above))


def events(stream: SecureStream, chance: Fraction, size: int) -> Integers:
    """Places of independent events of the same chance among ``size``: a Poisson batch of records, for example.

    Parameters
    ----------
    stream : SecureStream
        Where the words come from.
    chance : Fraction
        The probability of each event.
    size : int
        The number of places.

    Privacy
    -------
    Each place is in it with probability ``chance``, exactly, independent of the others.
    """
    if chance <= _MOST:
        return _events(stream, exact.rational(chance), size) if chance > 0 else np.zeros(0, np.int64)
    is_out = np.zeros(size, dtype=bool)
    if chance < 1:
        is_out[_events(stream, exact.rational(1 - chance), size)] = True
    return np.flatnonzero(~is_out).astype(np.int64)


def _events(stream: SecureStream, chance: Bounds, size: int) -> Integers:
    """The places, by skips; see ``kernels.rounded.skips``."""
    from dptoolkit.kernels.rounded import skips

    rate = math.log1p(-Fraction(sum(chance(_DIGITS)), 2 << _DIGITS))
    found: list[Any] = []
    position = 0
    while position < size:
        expected = -math.expm1(rate) * (size - position)
        words, start = stream.words(min(int(expected + 4 * math.sqrt(expected)) + 8, _BLOCK)), 0
        while position < size and start < len(words):
            out = np.empty(len(words) - start, np.int64)
            count, used, position, is_hard = skips(words[start:], rate, position, size, out, 0)
            found.append(out[:count])
            start += used
            if is_hard:
                gap = exact_gap(Digits(stream, int(words[start]), 64), chance, size - position)
                position, start = position + gap, start + 1
                if position < size:
                    found.append(np.array([position], np.int64))
                    position += 1
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def exact_gap(uniform: Digits, chance: Bounds, most: int) -> int:
    """floor(log U / log(1 - chance)), or ``most`` if it is at least that: the largest k with U < (1 - chance)^k.

    Parameters
    ----------
    uniform : Digits
        The uniform number U, digit by digit.
    chance : Bounds
        Bounds on the probability of an event.
    most : int
        The largest answer that is needed.
    """
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if exact.below(uniform, exact.complement_power(chance, middle)):
            low = middle
        else:
            high = middle - 1
    return low


def values_between(stream: SecureStream, multiplier: int, level: int, above: int, count: int) -> Integers:
    """Noises of normals with level/32 <= |Z| < above/32; above = 256 for no upper limit.

    Parameters
    ----------
    stream : SecureStream
        Where the words come from.
    multiplier : int
        The standard deviation in units of the grid.
    level, above : int
        The first cell, and the one behind the last.
    count : int
        The number of values.
    """
    out = np.zeros(count, np.int64)
    if multiplier == 0 or count == 0:
        return out
    from dptoolkit.kernels.rounded import rounded_in_cells

    table = cells.table(cells.NORMAL)
    sums = np.cumsum(np.array(table.weights[level:above], np.uint64), dtype=np.uint64)
    mask = np.uint64((1 << (int(sums[-1]) - 1).bit_length()) - 1)
    arguments = multiplier, level, sums, mask, table.logs, cells.MARGIN
    place = 0
    while place < count:
        words, start, is_hard = stream.words(min(5 * (count - place) + 30, _BLOCK)), 0, True
        while is_hard:
            place, used, is_hard = rounded_in_cells(words[start:], out, place, *arguments)
            start += used
            if is_hard:
                outcome = _one_value(table, level, sums, mask, words[start : start + 3], stream)
                start += 3
                if isinstance(outcome, cells.Kept):
                    out[place] = outcome.rounded(multiplier)
                    place += 1
    return out


def _one_value(
    table: Table, level: int, sums: NDArray[np.uint64], mask: Any, words: NDArray[np.uint64], stream: SecureStream
) -> cells.Kept | str:
    """A try of ``rounded_in_cells`` with these words, whatever digits it needs: the specification of the kernel."""
    t, b, c = (int(word) for word in words)
    t &= int(mask)
    if t >= int(sums[-1]):
        return REJECTED
    cell = level + int(np.searchsorted(sums, np.uint64(t), side="right"))
    uniform, place = Digits(stream, c, 64), Digits(stream, b & (2**55 - 1), 55)
    return cells.in_cell(table, cell, uniform, place, bool(b >> 63), 0, stream)
