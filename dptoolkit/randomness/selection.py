"""Private selection among whole-number scores: the exponential mechanism, exactly.

P(j) is proportional to exp(unit * T_j), or, two-sided, that of candidate j and its sign s to exp(unit * s * T_j), where
``unit`` is a double that stands for exactly the fraction that it is. If scores of neighbours move so that no difference
of two of them changes by more than R, whole numbers, then P changes by at most a factor exp(unit * R), for every j: the
range of the privacy loss is unit * R, without a rounding error, as T and R are integers.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit._validate import invalid, positive, whole
from dptoolkit.randomness import exact
from dptoolkit.randomness.exact import Bounds, Digits
from dptoolkit.randomness.stream import SecureStream

# Scores whose sums and differences fit in 64 bits.
LARGEST_SCORE = 2**61
# Weights leave this many nats for scores that grow, before all of them are computed anew.
_HEADROOM = 4.0
# Words of a block of tries, and blocks in vain after which weights that are far too large are made anew.
_WORDS, _BLOCKS = 24, 5


def unit_for(epsilon: float, integer_range: int) -> float:
    """The largest double ``unit`` with unit * integer_range <= epsilon, compared as fractions.

    Parameters
    ----------
    epsilon : float
        The epsilon of one selection.
    integer_range : int
        The largest change of the difference of two scores between neighbours.

    Privacy
    -------
    A selection with it is ExponentialMechanism(epsilon) for integer scores whose differences move by at most
    ``integer_range`` between neighbours.
    """
    budget, width = Fraction(positive("epsilon", epsilon)), whole("integer_range", integer_range, low=1)
    unit = float(budget / width)
    while Fraction(unit) * width > budget:
        unit = math.nextafter(unit, 0.0)
    return unit


class IntegerSelection:
    """Draws candidates by the exponential mechanism; scores may change one by one between draws.

    Parameters
    ----------
    scores : array-like of int
        One score per candidate, at most 2^61 in size.
    unit : float
        The exponent is unit times the score; see ``unit_for``.
    two_sided : bool, default True
        Every candidate also stands for its negative, whose score is minus its own.

    Privacy
    -------
    One ``select`` is ExponentialMechanism(unit * R), R the most by which a difference of two scores moves between
    neighbours; two-sided, of two of all 2d scores. ``top`` with k candidates is k of them. Not for release: the scores.
    """

    def __init__(self, scores: Any, unit: float, two_sided: bool = True) -> None:
        self._scores = _integers(scores)
        self.unit, self.two_sided = positive("unit", unit), bool(two_sided)
        d = len(self._scores)
        # All weights together stay below 2^62: each is at most 2 * 2^digits and 2.
        self._digits = 60 - (2 * d + 2).bit_length()
        self._width = max(math.isqrt(d), 1)
        self._weights: NDArray[np.uint64] = np.ones(d, np.uint64)
        self._groups: NDArray[np.uint64] = np.zeros(-(-d // self._width), np.uint64)
        self._weigh_all()

    @property
    def _scale(self) -> float:
        return math.ldexp(1.0, self._digits)

    def _sizes(self) -> NDArray[np.int64]:
        return np.abs(self._scores) if self.two_sided else self._scores

    def _weigh_all(self) -> None:
        from dptoolkit.kernels.selection import weigh_all

        free = self._sizes()[self._weights > 0]
        if len(free) == 0:
            raise invalid("selection", "used up", "made of more candidates", "All of them have been chosen.")
        # Where a unit is tiny any score is as good as another, and 2^61 of headroom is as good as more.
        self._top = int(free.max()) + int(min(_HEADROOM / self.unit, LARGEST_SCORE))
        weigh_all(
            self._scores, self._top, self.unit, self.two_sided, self._scale, self._weights, self._groups, self._width
        )

    def update(self, index: int, score: int) -> None:
        """Change one score.

        Parameters
        ----------
        index : int
            Which candidate.
        score : int
            Its new score.
        """
        from dptoolkit.kernels.selection import weigh

        if abs(score) > LARGEST_SCORE:
            raise invalid("score", "an integer", "at most 2^61 in size", "Use a coarser grid.")
        self._scores[index] = score
        if self._weights[index] == 0:
            return
        if (abs(score) if self.two_sided else score) > self._top:
            self._weigh_all()
            return
        weight, group = int(weigh(score, self._top, self.unit, self.two_sided, self._scale)), index // self._width
        self._groups[group] = int(self._groups[group]) + weight - int(self._weights[index])
        self._weights[index] = weight

    def select(self, stream: SecureStream) -> tuple[int, int]:
        """(index, sign) of one candidate; the sign is 1 where ``two_sided`` is False.

        Parameters
        ----------
        stream : SecureStream
            Where the words come from.
        """
        from dptoolkit.kernels import selection as kernel

        for block in itertools.count(1):
            if block % _BLOCKS == 0:
                self._weigh_all()
            words, start = stream.words(_WORDS), 0
            while True:
                how, index, against, used = kernel.select(
                    words[start:], self._scores, self._top, self.unit, self.two_sided, self._scale, self._weights,
                    self._groups, self._width,
                )  # fmt: skip
                start += used
                if how == kernel.CHOSEN:
                    return self._signed(index, against)
                if how == kernel.WORDS_USED_UP:
                    break
                outcome = self.decide(int(index), words[start + 1 : start + 3], stream)
                if outcome is not None:
                    return outcome
                start += kernel.PER_TRY
        raise AssertionError("unreachable")

    def decide(self, index: int, words: NDArray[np.uint64], stream: SecureStream) -> tuple[int, int] | None:
        """A try that came to ``index``, decided exactly; None if it is not kept. The specification of the kernel.

        Parameters
        ----------
        index : int
            The candidate of the try.
        words : ndarray
            The words that decide the try.
        stream : SecureStream
            Where further words come from.
        """
        size = abs(int(self._scores[index])) if self.two_sided else int(self._scores[index])
        factor, unit = Fraction(1 << self._digits, int(self._weights[index])), Fraction(self.unit)
        below, above = unit * (self._top - size), unit * (self._top + size)
        against = decided(factor, below, above if self.two_sided else None, words, stream)
        return None if against is None else self._signed(index, against)

    def _signed(self, index: int, against: bool) -> tuple[int, int]:
        if not self.two_sided:
            return int(index), 1
        favoured = 1 if self._scores[index] >= 0 else -1
        return int(index), -favoured if against else favoured

    def top(self, stream: SecureStream, count: int) -> list[int]:
        """``count`` different candidates, one after the other: the law of the largest scores after Gumbel noise.

        Those that are chosen cannot be chosen again by this object.

        Parameters
        ----------
        stream : SecureStream
            Where the words come from.
        count : int
            How many candidates.
        """
        if self.two_sided:
            raise invalid("two_sided", True, "False for top", "A candidate and its negative are not independent.")
        if whole("count", count, low=1) > int((self._weights > 0).sum()):
            left = int((self._weights > 0).sum())
            raise invalid("count", count, f"<= {left}, the number of candidates that are left")
        from dptoolkit.kernels import selection as kernel

        chosen, filled, vain = np.empty(count, np.int64), 0, 0
        while filled < count:
            # Few words after a block in vain, where weights are likely to be made anew.
            words = stream.words(_WORDS if vain else _WORDS + 2 * kernel.PER_TRY * (count - filled))
            start, before = 0, filled
            how = kernel.HARD
            while how == kernel.HARD and filled < count:
                how, index, used, filled = kernel.take(
                    words[start:], self._scores, self._top, self.unit, self._scale, self._weights, self._groups,
                    self._width, chosen, filled,
                )  # fmt: skip
                start += used
                if how == kernel.HARD:
                    if self.decide(int(index), words[start + 1 : start + 3], stream) is not None:
                        kernel.remove(index, self._weights, self._groups, self._width)
                        chosen[filled] = index
                        filled += 1
                    start += kernel.PER_TRY
            vain = 0 if filled > before else vain + 1
            if vain == _BLOCKS - 1:
                self._weigh_all()
        return chosen.tolist()


def decided(
    factor: Fraction, below: Fraction, above: Fraction | None, words: NDArray[np.uint64], stream: SecureStream
) -> bool | None:
    """A try of chance factor (exp(-below) + exp(-above)), decided exactly by its words and as many more as it takes.

    Parameters
    ----------
    factor : Fraction
        The unit of weights over the weight that is kept.
    below, above : Fraction
        The exponents of the candidate and of its negative; None for the second where it has none.
    words : ndarray
        The two words of the try: the first decides whether it is kept, the second whether the negative is chosen.
    stream : SecureStream
        Where further words come from.

    Returns
    -------
    bool or None
        None if the try is not kept; otherwise whether the negative is chosen.
    """
    chance = _exp(factor, below)
    if above is not None:
        chance = exact.total(chance, _exp(factor, above))
    if not exact.below(Digits(stream, int(words[0]), 64), chance):
        return None
    if above is None:
        return False
    return exact.below(Digits(stream, int(words[1]), 64), _negative(_exp(Fraction(1), above - below)))


def _exp(factor: Fraction, exponent: Fraction) -> Bounds:
    return exact.scaled_exp(factor, lambda _: (exponent, exponent))


def _negative(e: Bounds) -> Bounds:
    """Bounds of e / (1 + e): the chance of a candidate's negative, whose weight is e times that of the candidate."""

    def bounds(precision: int) -> exact.Interval:
        bits = precision + 4
        (low, high), one = e(bits), 1 << bits
        return (low << precision) // (one + low), -(-(high << precision) // (one + high))

    return bounds


def _integers(scores: Any) -> NDArray[np.int64]:
    """The scores as 64-bit integers; an error names their type alone, as they are private."""
    array = np.array(scores)
    if array.ndim != 1 or len(array) == 0 or array.dtype.kind not in "iu":
        bound = "a non-empty vector of integers"
        raise invalid("scores", f"{array.dtype} array of shape {array.shape}", bound, "Put them on a grid first.")
    if int(array.max()) > LARGEST_SCORE or int(array.min()) < -LARGEST_SCORE:
        raise invalid("scores", "a vector of integers", "at most 2^61 in size", "Use a coarser grid.")
    return array.astype(np.int64)
