"""The discrete Gaussian, drawn exactly: whole numbers and coin flips of rational bias, no floating point.

Canonne, Kamath and Steinke 2020, arXiv:2004.00010, Algorithms 1 to 3: discrete Laplace noise, kept with a probability
that turns its law into the Gaussian one. The time of a draw depends on its value, as in every rejection sampler.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from dptoolkit._validate import magnitude, whole
from dptoolkit.accounting.events import DiscreteGaussian
from dptoolkit.mechanisms.noise import integer_query
from dptoolkit.mechanisms.randomness import as_generator

# Bytes that are taken from the Generator at once, and bits of a coin that are compared at once.
_HANDFUL, _DIGIT = 32, 16


@dataclass(frozen=True)
class DiscreteGaussianNoise:
    """Adds X with P(X = k) proportional to exp(-k^2 / (2 scale^2)) to an INTEGER query.

    Privacy
    -------
    One call is ``event`` = DiscreteGaussian(scale, sensitivity), under the adjacency of the sensitivity. The law is
    exact, so nothing is idealised but the random bits. A query that is not an integer is refused: its fractional part
    would pass through untouched.
    """

    scale: float
    sensitivity: int

    def __post_init__(self) -> None:
        magnitude("scale", self.scale)
        whole("sensitivity", self.sensitivity, low=1)

    @property
    def event(self) -> DiscreteGaussian:
        """What one call releases."""
        return DiscreteGaussian(self.scale, self.sensitivity)

    def release(self, value: int, rng: Any = None) -> int:
        """value + noise, an integer."""
        count = integer_query(value)
        return count + discrete_gaussian(_Bits(as_generator(rng, self)), Fraction(float(self.scale)))


class _Bits:
    """Random bits of a Generator, taken many at a time: a coin needs few bits, and a call of the Generator is slow."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng, self._pool, self._left = rng, 0, 0

    def take(self, count: int) -> int:
        """A whole number of ``count`` bits."""
        while self._left < count:
            self._pool |= int.from_bytes(self._rng.bytes(_HANDFUL), "little") << self._left
            self._left += 8 * _HANDFUL
        bits = self._pool & ((1 << count) - 1)
        self._pool, self._left = self._pool >> count, self._left - count
        return bits


def discrete_gaussian(bits: _Bits, scale: Fraction) -> int:
    """One draw with P(k) proportional to exp(-k^2 / (2 scale^2))."""
    a, b = scale.numerator, scale.denominator
    width = a // b + 1
    while True:
        draw = discrete_laplace(bits, width)
        # Kept with probability exp(-(|draw| - scale^2/width)^2 / (2 scale^2)).
        if _exponential_coin(bits, (abs(draw) * width * b * b - a * a) ** 2, 2 * (a * b * width) ** 2):
            return draw


def discrete_laplace(bits: _Bits, width: int) -> int:
    """One draw with P(k) proportional to exp(-|k| / width)."""
    while True:
        low = _uniform(bits, width)
        if not _exponential_coin(bits, low, width):
            continue
        high = 0
        while _exponential_coin(bits, 1, 1):
            high += 1
        negative = _coin(bits, 1, 2)
        size = low + width * high
        # Otherwise 0 would come twice as often as it should.
        if size or not negative:
            return -size if negative else size


def _exponential_coin(bits: _Bits, numerator: int, denominator: int) -> bool:
    """True with probability exp(-numerator / denominator)."""
    ones, rest = divmod(numerator, denominator)
    for _ in range(ones):
        if not _small_exponential_coin(bits, 1, 1):
            return False
    return _small_exponential_coin(bits, rest, denominator)


def _small_exponential_coin(bits: _Bits, numerator: int, denominator: int) -> bool:
    """True with probability exp(-g), g = numerator/denominator <= 1, by its series: flips of bias g/1, g/2, ..."""
    k = 1
    while _coin(bits, numerator, denominator * k):
        k += 1
    return k % 2 == 1


def _coin(bits: _Bits, numerator: int, denominator: int) -> bool:
    """True with probability numerator / denominator: is a uniform number below it? Its digits are drawn as needed."""
    while True:
        digit, rest = divmod(numerator << _DIGIT, denominator)
        draw = bits.take(_DIGIT)
        if draw != digit:
            return draw < digit
        numerator = rest


def _uniform(bits: _Bits, end: int) -> int:
    """A whole number from 0 to end - 1, of any size."""
    length = (end - 1).bit_length()
    while (draw := bits.take(length)) >= end:
        pass
    return draw
