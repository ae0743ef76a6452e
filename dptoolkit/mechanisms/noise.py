"""Noise on numbers: sampler and event in one object, so that what is charged is what is drawn."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit._validate import invalid, magnitude, noise_scale, positive, whole
from dptoolkit.accounting.events import Gaussian, Laplace, TwoSidedGeometric
from dptoolkit.mechanisms.rng import as_generator

Array = NDArray[np.float64]
# A draw with a smaller success probability may not fit in 64 bits: NumPy then returns the largest integer, and the
# difference of two such draws is no noise at all.
_SMALLEST_SUCCESS = 1e-16


@dataclass(frozen=True)
class GaussianNoise:
    """Adds iid N(0, scale^2) to a query of L2 sensitivity ``sensitivity``.

    Privacy
    -------
    One call is ``event`` = Gaussian(scale / sensitivity), under the adjacency of the sensitivity. Public: the shape.
    """

    scale: float
    sensitivity: float

    def __post_init__(self) -> None:
        noise_scale("scale", self.scale)
        magnitude("sensitivity", self.sensitivity)

    @property
    def event(self) -> Gaussian:
        """What one call releases."""
        return Gaussian(self.scale / self.sensitivity)

    def release(self, value: Array, rng: Any = None) -> Array:
        """value + noise; exactly value for scale 0."""
        value = np.asarray(value, dtype=float)
        if self.scale == 0:
            return value.copy()
        return np.asarray(value + self.scale * as_generator(rng).standard_normal(value.shape))


@dataclass(frozen=True)
class LaplaceNoise:
    """Adds iid Laplace(scale) to a query of L1 sensitivity ``sensitivity``.

    Privacy
    -------
    One call is ``event`` = Laplace(scale / sensitivity), under the adjacency of the sensitivity. Public: the shape.
    """

    scale: float
    sensitivity: float

    def __post_init__(self) -> None:
        noise_scale("scale", self.scale)
        magnitude("sensitivity", self.sensitivity)

    @property
    def event(self) -> Laplace:
        """What one call releases."""
        return Laplace(self.scale / self.sensitivity)

    def release(self, value: Array, rng: Any = None) -> Array:
        """value + noise; exactly value for scale 0."""
        value = np.asarray(value, dtype=float)
        if self.scale == 0:
            return value.copy()
        return np.asarray(value + laplace(as_generator(rng), self.scale, value.shape))


def laplace(rng: np.random.Generator, scale: float, shape: tuple[int, ...]) -> Array:
    """iid Laplace(scale) as a difference of two exponentials: faster than Generator.laplace, same law."""
    return np.asarray(scale * (rng.standard_exponential(shape) - rng.standard_exponential(shape)))


@dataclass(frozen=True)
class GeometricNoise:
    """Adds X with P(X = k) = (1-q)/(1+q) q^|k|, q = exp(-epsilon/sensitivity), to an INTEGER query.

    Privacy
    -------
    One call is ``event`` = TwoSidedGeometric(epsilon, sensitivity), under the adjacency of the sensitivity. A query
    that is not an integer is refused: its fractional part would pass through untouched.
    """

    epsilon: float
    sensitivity: int

    def __post_init__(self) -> None:
        positive("epsilon", self.epsilon)
        whole("sensitivity", self.sensitivity, low=1)
        if self._success < _SMALLEST_SUCCESS:
            raise invalid("epsilon", self.epsilon, f">= {self.sensitivity * _SMALLEST_SUCCESS:g} for this sensitivity")

    @property
    def _success(self) -> float:
        return -math.expm1(-self.epsilon / self.sensitivity)

    @property
    def event(self) -> TwoSidedGeometric:
        """What one call releases."""
        return TwoSidedGeometric(self.epsilon, self.sensitivity)

    def release(self, value: int, rng: Any = None) -> int:
        """value + noise, an integer."""
        count = whole("value", value, low=-(2**62), repair="Integer noise hides integers only: round first.")
        generator = as_generator(rng)
        # Each is geometric on 1, 2, ...; the difference is two-sided geometric on the integers.
        return count + int(generator.geometric(self._success)) - int(generator.geometric(self._success))
