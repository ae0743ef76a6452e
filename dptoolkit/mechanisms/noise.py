"""Noise on numbers: sampler and event in one object, so that what is charged is what is drawn."""

from __future__ import annotations

import functools
import math
import numbers
from dataclasses import dataclass
from typing import Any

import numpy as np

from dptoolkit._validate import invalid, magnitude, noise_scale, positive, whole
from dptoolkit.accounting.events import Gaussian, Laplace, TwoSidedGeometric
from dptoolkit.mechanisms.randomness import Generators, as_generator
from dptoolkit.types import Array

# A draw with a smaller success probability may not fit in 64 bits: NumPy then returns the largest integer, and the
# difference of two such draws is no noise at all.
_SMALLEST_SUCCESS = 1e-16


def query(value: Any) -> Array:
    """A private answer as an array of floats; an error names its type only, as the value is private.

    Parameters
    ----------
    value : array-like
        The answer of a query, before noise.
    """
    try:
        return np.asarray(value, dtype=float)
    except (TypeError, ValueError, OverflowError):
        raise invalid("value", type(value).__name__, "an array of real numbers") from None


def integer_query(value: Any) -> int:
    """A private answer as an integer; an error says its type alone.

    Parameters
    ----------
    value : int
        The answer of a query, before noise.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or abs(int(value)) > 2**62:
        bound = "an integer, its size at most 2^62"
        raise invalid("value", type(value).__name__, bound, "Integer noise protects only integers: round first.")
    return int(value)


@dataclass(frozen=True)
class _AdditiveNoise:
    """Independent noise of one scale on every entry of a query."""

    scale: float
    sensitivity: float

    def __post_init__(self) -> None:
        noise_scale("scale", self.scale)
        magnitude("sensitivity", self.sensitivity)

    def release(self, value: Array, rng: Any = None) -> Array:
        """value + noise; exactly value for scale 0.

        Parameters
        ----------
        value : array-like
            The answer of the query.
        rng : int, numpy.random.Generator or None, default None
            A seed, a Generator, or None for fresh entropy. A seeded release is reproducible, so it is not private.
        """
        value = query(value)
        if self.scale == 0:
            return value.copy()
        return np.asarray(value + self._draw(as_generator(rng, self), value.shape))

    def _draw(self, rng: np.random.Generator | Generators, shape: tuple[int, ...]) -> Array:
        raise NotImplementedError


@dataclass(frozen=True)
class GaussianNoise(_AdditiveNoise):
    """Adds iid N(0, scale^2) to a query of L2 sensitivity ``sensitivity``.

    Parameters
    ----------
    scale : float
        Standard deviation of the noise.
    sensitivity : float
        L2 sensitivity of the query.

    Privacy
    -------
    One call is ``event`` = Gaussian(scale / sensitivity), under the adjacency of the sensitivity. Public: the shape.
    """

    @property
    def event(self) -> Gaussian:
        """The event of one call."""
        return Gaussian(self.scale / self.sensitivity)

    def _draw(self, rng: np.random.Generator | Generators, shape: tuple[int, ...]) -> Array:
        return np.asarray(self.scale * rng.standard_normal(shape))


@dataclass(frozen=True)
class LaplaceNoise(_AdditiveNoise):
    """Adds iid Laplace(scale) to a query of L1 sensitivity ``sensitivity``.

    Parameters
    ----------
    scale : float
        Scale of the noise, whose standard deviation is sqrt(2) times as large.
    sensitivity : float
        L1 sensitivity of the query.

    Privacy
    -------
    One call is ``event`` = Laplace(scale / sensitivity), under the adjacency of the sensitivity. Public: the shape.
    """

    @property
    def event(self) -> Laplace:
        """The event of one call."""
        return Laplace(self.scale / self.sensitivity)

    def _draw(self, rng: np.random.Generator | Generators, shape: tuple[int, ...]) -> Array:
        return laplace(rng, self.scale, shape)


def laplace(rng: np.random.Generator | Generators, scale: float, shape: tuple[int, ...]) -> Array:
    """iid Laplace(scale) as a difference of two exponentials: faster than Generator.laplace, same law.

    Parameters
    ----------
    rng : numpy.random.Generator or Generators
        Where the noise is drawn from.
    scale : float
        Scale of the law.
    shape : tuple of int
        Shape of the result.
    """
    return np.asarray(scale * (exponential(rng, shape) - exponential(rng, shape)))


# Standard exponentials outside this range, about one in a million, are drawn again on their own scale.
_SHORT, _LONG = 2.0**-20, 16.0


def exponential(rng: np.random.Generator | Generators, shape: tuple[int, ...]) -> Array:
    """iid standard exponentials with complete tails on both sides.

    NumPy's exponentials end at 44 and are multiples of about 1e-16, so rarer outcomes could never occur, but for a
    guarantee without a delta they must be possible. A long draw becomes _LONG plus a fresh one; a short draw gets new
    bits.

    Parameters
    ----------
    rng : numpy.random.Generator or Generators
        Where the draws are made from.
    shape : tuple of int
        Shape of the result.
    """
    if not isinstance(rng, Generators):
        return np.asarray(exponential(Generators(rng), (1, *shape))[0])
    draws = rng.standard_exponential(shape)
    rows = draws.reshape(len(rng), -1)
    far = (rows < _SHORT) | (rows > _LONG)
    # Nearly always there are none, and ``any`` shows that quickly; argwhere takes longer than the draws of a small fit.
    for i, j in np.argwhere(far) if far.any() else ():
        rows[i, j] = rng.of(i, functools.partial(_far, draw=float(rows[i, j])))
    return draws


def _far(rng: np.random.Generator, draw: float) -> float:
    """A draw from the law of ``draw`` given that it is short, or long."""
    if draw > _LONG:
        start = 0.0
        while draw > _LONG:
            start, draw = start + _LONG, float(rng.standard_exponential())
        return start + draw
    scale, u = 1.0, float(rng.random())
    while u < _SHORT and scale > 1e-290:
        scale, u = scale * _SHORT, float(rng.random())
    return -math.log1p(max(scale * u, 1e-300) * math.expm1(-_SHORT))


@dataclass(frozen=True)
class GeometricNoise:
    """Adds X with P(X = k) = (1-q)/(1+q) q^|k|, q = exp(-epsilon/sensitivity), to an INTEGER query.

    Parameters
    ----------
    epsilon : float
        The epsilon of one call.
    sensitivity : int
        The largest change of the query between neighbours.

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
        """The event of one call."""
        return TwoSidedGeometric(self.epsilon, self.sensitivity)

    def release(self, value: int, rng: Any = None) -> int:
        """value + noise, an integer.

        Parameters
        ----------
        value : int
            The answer of the query.
        rng : int, numpy.random.Generator or None, default None
            A seed, a Generator, or None for fresh entropy. A seeded release is reproducible, so it is not private.
        """
        count = integer_query(value)
        generator = as_generator(rng, self)
        # Each is geometric on 1, 2, ...; the difference is two-sided geometric on the integers.
        return count + int(generator.geometric(self._success)) - int(generator.geometric(self._success))
