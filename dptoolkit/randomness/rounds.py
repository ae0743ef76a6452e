"""Random numbers of rounds, exact: geometric and logarithmic laws on 1, 2, ..., from secure words."""

from __future__ import annotations

from fractions import Fraction

from dptoolkit.randomness import exact
from dptoolkit.randomness.exact import Digits
from dptoolkit.randomness.largest import exact_gap
from dptoolkit.randomness.stream import SecureStream

# No draw is larger. For a chance of 1e-9 or more a larger one has a probability below 1e-470.
_MOST = 2**40


def geometric_rounds(stream: SecureStream, chance: Fraction) -> int:
    """k = 1, 2, ... with probability chance (1 - chance)^(k - 1).

    Parameters
    ----------
    stream : SecureStream
        Where the words come from.
    chance : Fraction
        The probability that a round is the last, in (0, 1).
    """
    return exact_gap(Digits(stream), exact.rational(chance), _MOST - 1) + 1


def logarithmic_rounds(stream: SecureStream, chance: Fraction) -> int:
    """k = 1, 2, ... with probability proportional to (1 - chance)^k / k.

    A geometric number k is kept with probability 1/k, and otherwise drawn anew. Both are exact, so the law is that of
    the product: (1 - chance)^(k - 1) / k, up to a factor.

    Parameters
    ----------
    stream : SecureStream
        Where the words come from.
    chance : Fraction
        As for ``geometric_rounds``.
    """
    while True:
        k = geometric_rounds(stream, chance)
        if stream.below(k) == 0:
            return k
