"""The discrete Gaussian, drawn exactly: see randomness/counts.py."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from dptoolkit._validate import magnitude, whole
from dptoolkit.accounting.events import DiscreteGaussian
from dptoolkit.mechanisms.noise import integer_query
from dptoolkit.mechanisms.randomness import as_generator
from dptoolkit.randomness.counts import Bits, discrete_gaussian


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
        return count + discrete_gaussian(Bits(as_generator(rng, self)), Fraction(float(self.scale)))
