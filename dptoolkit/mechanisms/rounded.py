"""Noise on integer sums that an attacker cannot undo: sampler and event in one object, as in noise.py.

S + round(M Z) = round(S + M Z) for integers S: a release is a public function, rounding, of the continuous mechanism,
so its event is that of the continuous one. The noise comes from a ``SecureStream``, exact in every digit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit._validate import invalid, magnitude
from dptoolkit.accounting.events import Gaussian, Laplace
from dptoolkit.randomness.sampling import check_multiplier, rounded_laplace, rounded_normals
from dptoolkit.randomness.stream import SecureStream

# With noise of at most 64 times 2^52, sums stay within 64 bits.
_LARGEST = 2**60


@dataclass(frozen=True)
class _RoundedNoise:
    """Independent rounded noise on every entry of an integer query.

    ``multiplier`` is the scale and ``sensitivity`` the sensitivity of the query, both in units of its grid.
    """

    multiplier: int
    sensitivity: float

    def __post_init__(self) -> None:
        check_multiplier(self.multiplier)
        magnitude("sensitivity", self.sensitivity)

    def release(self, value: Any, stream: SecureStream | None = None) -> NDArray[np.int64]:
        """value + noise, integers; ``stream`` None draws from a new stream, which is closed afterwards."""
        query = _integers(value)
        if stream is not None:
            return query + self._draw(stream, query.size).reshape(query.shape)
        with SecureStream() as fresh:
            return query + self._draw(fresh, query.size).reshape(query.shape)

    def _draw(self, stream: SecureStream, count: int) -> NDArray[np.int64]:
        raise NotImplementedError


@dataclass(frozen=True)
class RoundedGaussianNoise(_RoundedNoise):
    """Adds iid round(multiplier * Z) to integers of L2 sensitivity ``sensitivity``.

    Parameters
    ----------
    multiplier : int
        Standard deviation of the noise, in units of the integers.
    sensitivity : float
        L2 sensitivity of the query, in the same units.

    Privacy
    -------
    One call is ``event`` = Gaussian(multiplier / sensitivity), under the adjacency of the sensitivity, exactly: no
    rounding error is left out. A query that is not of integers is refused. Public: the shape.
    """

    @property
    def event(self) -> Gaussian:
        """The event of one call."""
        return Gaussian(self.multiplier / self.sensitivity)

    def _draw(self, stream: SecureStream, count: int) -> NDArray[np.int64]:
        return rounded_normals(stream, self.multiplier, count)


@dataclass(frozen=True)
class RoundedLaplaceNoise(_RoundedNoise):
    """Adds iid round(multiplier * E) with fair signs, E exponential, to integers of L1 sensitivity ``sensitivity``.

    Parameters
    ----------
    multiplier : int
        Scale of the noise, in units of the integers.
    sensitivity : float
        L1 sensitivity of the query, in the same units.

    Privacy
    -------
    One call is ``event`` = Laplace(multiplier / sensitivity), under the adjacency of the sensitivity, exactly: no
    rounding error is left out. A query that is not of integers is refused. Public: the shape.
    """

    @property
    def event(self) -> Laplace:
        """The event of one call."""
        return Laplace(self.multiplier / self.sensitivity)

    def _draw(self, stream: SecureStream, count: int) -> NDArray[np.int64]:
        return rounded_laplace(stream, self.multiplier, count)


def _integers(value: Any) -> NDArray[np.int64]:
    """A private answer as 64-bit integers; an error names its type alone."""
    array = np.asarray(value)
    if array.dtype.kind not in "iu":
        raise invalid("value", f"{array.dtype} array", "of integers", "Put it on a grid first: dptoolkit.data.grids.")
    if array.size and (int(array.max()) > _LARGEST or int(array.min()) < -_LARGEST):
        raise invalid("value", f"{array.dtype} array", "at most 2^60 in size", "Use a coarser grid.")
    return array.astype(np.int64)
