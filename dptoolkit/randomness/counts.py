"""Noise for counts, drawn exactly: whole numbers and coin flips of rational bias, no floating point.

Canonne, Kamath and Steinke 2020, arXiv:2004.00010, Algorithms 1 to 3: discrete Laplace noise, and its draws kept with a
probability that turns the law into the discrete Gaussian. The time of a draw depends on its value, which is NOT
protected: see docs/secure-noise.md.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Protocol

from dptoolkit._validate import positive, whole
from dptoolkit.randomness.stream import SecureStream

# Bytes that are taken from the source at once, and bits of a coin that are compared at once.
_HANDFUL, _DIGIT = 32, 16


class BytesSource(Protocol):
    """A numpy Generator or a SecureStream."""

    def bytes(self, count: int, /) -> bytes: ...


def geometric_noise(stream: SecureStream, epsilon: float, sensitivity: int) -> int:
    """X with P(X = k) proportional to exp(-|k| epsilon / sensitivity), epsilon the fraction that the double is.

    Parameters
    ----------
    stream : SecureStream
        Where the words come from.
    epsilon : float
        The epsilon of one release.
    sensitivity : int
        The largest change of the query between neighbours.

    Privacy
    -------
    Added to an integer of that sensitivity it is TwoSidedGeometric(epsilon, sensitivity), exactly. Public: both.
    """
    rate = Fraction(positive("epsilon", epsilon)) / whole("sensitivity", sensitivity, low=1)
    return discrete_laplace(Bits(stream), rate.denominator, rate.numerator)


def discrete_gaussian_noise(stream: SecureStream, scale: float) -> int:
    """X with P(X = k) proportional to exp(-k^2 / (2 scale^2)), scale the fraction that the double is.

    Parameters
    ----------
    stream : SecureStream
        Where the words come from.
    scale : float
        The sigma of the formula.

    Privacy
    -------
    Added to an integer it is DiscreteGaussian(scale, sensitivity), exactly. Public: the scale.
    """
    return discrete_gaussian(Bits(stream), Fraction(positive("scale", scale)))


class Bits:
    """Random bits of a Generator or a SecureStream, taken many at a time: a coin needs few, and a call is slow.

    Parameters
    ----------
    rng : BytesSource
        Where the bits come from.
    """

    def __init__(self, rng: BytesSource) -> None:
        self._rng, self._pool, self._left = rng, 0, 0

    def take(self, count: int) -> int:
        """A whole number of ``count`` bits.

        Parameters
        ----------
        count : int
            The number of bits.
        """
        while self._left < count:
            self._pool |= int.from_bytes(self._rng.bytes(_HANDFUL), "little") << self._left
            self._left += 8 * _HANDFUL
        bits = self._pool & ((1 << count) - 1)
        self._pool, self._left = self._pool >> count, self._left - count
        return bits


def discrete_gaussian(bits: Bits, scale: Fraction) -> int:
    """One draw with P(k) proportional to exp(-k^2 / (2 scale^2)).

    Parameters
    ----------
    bits : Bits
        Where the bits come from.
    scale : Fraction
        The sigma of the formula.
    """
    a, b = scale.numerator, scale.denominator
    width = a // b + 1
    while True:
        draw = discrete_laplace(bits, width)
        # Kept with probability exp(-(|draw| - scale^2/width)^2 / (2 scale^2)).
        if _exponential_coin(bits, (abs(draw) * width * b * b - a * a) ** 2, 2 * (a * b * width) ** 2):
            return draw


def discrete_laplace(bits: Bits, width: int, step: int = 1) -> int:
    """One draw with P(k) proportional to exp(-|k| step / width).

    low + width * high is at least x with probability exp(-x / width), so its quotient by ``step`` is at least k with
    probability exp(-k step / width).

    Parameters
    ----------
    bits : Bits
        Where the bits come from.
    width : int
        The scale, in units of ``step``.
    step : int, default 1
        The divisor of the scale.
    """
    while True:
        low = _uniform(bits, width)
        if not _exponential_coin(bits, low, width):
            continue
        high = 0
        while _exponential_coin(bits, 1, 1):
            high += 1
        negative = _coin(bits, 1, 2)
        size = (low + width * high) // step
        # Otherwise 0 would come twice as often as it should.
        if size or not negative:
            return -size if negative else size


def _exponential_coin(bits: Bits, numerator: int, denominator: int) -> bool:
    """True with probability exp(-numerator / denominator)."""
    ones, rest = divmod(numerator, denominator)
    for _ in range(ones):
        if not _small_exponential_coin(bits, 1, 1):
            return False
    return _small_exponential_coin(bits, rest, denominator)


def _small_exponential_coin(bits: Bits, numerator: int, denominator: int) -> bool:
    """True with probability exp(-g), g = numerator/denominator <= 1, by its series: flips of bias g/1, g/2, ..."""
    k = 1
    while _coin(bits, numerator, denominator * k):
        k += 1
    return k % 2 == 1


def _coin(bits: Bits, numerator: int, denominator: int) -> bool:
    """True with probability numerator / denominator: is a uniform number below it? Its digits are drawn as needed."""
    while True:
        digit, rest = divmod(numerator << _DIGIT, denominator)
        draw = bits.take(_DIGIT)
        if draw != digit:
            return draw < digit
        numerator = rest


def _uniform(bits: Bits, end: int) -> int:
    """A whole number from 0 to end - 1, of any size."""
    length = (end - 1).bit_length()
    while (draw := bits.take(length)) >= end:
        pass
    return draw
