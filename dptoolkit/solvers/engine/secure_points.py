"""Points that a search found to a certified distance, released on a public grid with rounded noise.

A point is within a certified distance of the exact answer on every data set, and that distance is part of the planned
sensitivity. Rounding the point to multiples of g_o moves it by at most g_o sqrt(d)/2 more, on each of two neighbouring
data sets: the sensitivity grows by g_o sqrt(d). The point in units of g_o is an integer vector, and integer noise
round(M Z) makes the release a public function, rounding, of the continuous Gaussian mechanism.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit._validate import invalid
from dptoolkit.randomness import SecureStream, rounded_normals
from dptoolkit.randomness.sampling import LARGEST_MULTIPLIER
from dptoolkit.solvers.frame.plan import Release
from dptoolkit.solvers.frame.secure import SecureRelease
from dptoolkit.types import Array

# Noise is so many binary digits coarser than the grid of points, and that of a linear term than its own grid.
_POINT_BITS, _TERM_BITS = 30, 40
# Sensitivities and scales are doubles that were computed with a few roundings.
_ROUNDINGS = 1 + Fraction(1, 2**40)
# Where a grid unit would overflow 64 bits, points are Python's integers.
_LARGEST_INTEGER = 2.0**61


def power_below(value: float, bits: int) -> float:
    """The largest power of two that is at most value / 2^bits."""
    return math.ldexp(1.0, math.frexp(value)[1] - 1 - bits)


def _multiplier(noise: Fraction, unit: float) -> int:
    """M: the noise in grid units, rounded up, with room for the roundings of the number itself."""
    made = math.ceil(noise * _ROUNDINGS / Fraction(unit))
    if made > LARGEST_MULTIPLIER:
        raise invalid("noise", float(noise), "at most 2^52 grid units", "Make a plan for this noise.")
    return made


@dataclass(frozen=True)
class PointNoise(SecureRelease):
    """The public facts of rounded noise on a point: the grid ``unit``, the noise ``scale``, both in the point's unit.

    ``planned`` is the sensitivity before rounding, from which the tolerance of a search follows.
    """

    unit: float
    scale: float
    planned: float
    growth: float

    def __post_init__(self) -> None:
        _multiplier(Fraction(self.scale), self.unit)

    def multiplier(self, share: float = 1.0) -> int:
        """M of the noise, or of a public share of it."""
        return _multiplier(Fraction(self.scale) * Fraction(share), self.unit)

    def noise(self, size: int, stream: SecureStream, share: float = 1.0) -> NDArray[np.int64]:
        """Noise for a point of ``size`` coordinates, in grid units."""
        return rounded_normals(stream, self.multiplier(share), size)

    def release(self, theta: Array, remainder: Array, noise: NDArray[np.int64]) -> Array:
        """The point theta + remainder, two doubles an entry, on the grid, plus the noise; in the point's unit.

        Privacy
        -------
        Everything after the sum of integers is post-processing. Rounding moves an entry by at most half a unit, times
        1 + 2^-20 for the rounding of doubles.
        """
        units, rest = theta / self.unit, remainder / self.unit
        nearest = np.rint(units)
        if float(np.abs(units).max(initial=0.0)) < _LARGEST_INTEGER:
            point = nearest.astype(np.int64) + np.rint((units - nearest) + rest).astype(np.int64)
            return np.asarray((point + noise).astype(float) * self.unit)
        whole = [round(Fraction(float(u)) + Fraction(float(r))) for u, r in zip(units, rest, strict=True)]
        return np.array([float(w + int(z)) for w, z in zip(whole, noise, strict=True)]) * self.unit

    def with_noise(self, scale: float) -> PointNoise:
        """See ``SecureRelease``."""
        return replace(self, scale=scale)

    def integers(self, values: Array) -> Array:
        """See ``SecureRelease``."""
        units = values / self.unit
        return np.where(np.rint(units) == units, units, np.nan)

    def to_dict(self) -> dict[str, Any]:
        """See ``SecureRelease``."""
        return {"grid": self.unit, "noise_units": self.multiplier(), "sensitivity_growth": self.growth}

    def __str__(self) -> str:
        return f"grid of the released vector {self.unit:.3g}; noise: {self.multiplier():,} grid units"


def charged_point(release: Release, size: int, besides: float = 0.0) -> tuple[Release, PointNoise]:
    """The release of a point of ``size`` coordinates with rounding charged, and its facts.

    ``besides`` is what else is added to the sensitivity.

    Privacy
    -------
    Sensitivity and scale grow by the same factor, so that the event is that of the plan. From public numbers alone.
    """
    unit = power_below(release.scale, _POINT_BITS)
    added = unit * math.sqrt(size) * (1 + 2.0**-20) + besides
    growth = (1 + added / release.sensitivity) * (1 + 2.0**-40)
    charged = replace(release, sensitivity=release.sensitivity * growth, scale=release.scale * growth)
    return charged, PointNoise(unit, charged.scale, release.sensitivity, growth)


@dataclass(frozen=True)
class TermNoise(SecureRelease):
    """The public facts of a Gaussian linear term s Z that is rounded to multiples of ``unit``, beside a SUM of losses.

    ``scale`` is its standard deviation beside the mean of ``n`` losses. s = M unit is at least n * scale, so that the
    rounded term is unit * round(M Z): exact in doubles, and within unit sqrt(d)/2 of the ideal one, surely.
    """

    unit: float
    scale: float
    n: int
    growth: float = 1.0

    def __post_init__(self) -> None:
        self.multiplier()

    def multiplier(self) -> int:
        """M, for which s = M unit."""
        return _multiplier(Fraction(self.scale) * self.n, self.unit)

    def draw(self, size: int, stream: SecureStream) -> Array:
        """The rounded term in the scaling of the sum."""
        return np.asarray(rounded_normals(stream, self.multiplier(), size) * self.unit)

    def with_noise(self, scale: float) -> TermNoise:
        """See ``SecureRelease``."""
        return replace(self, scale=scale)

    def to_dict(self) -> dict[str, Any]:
        """See ``SecureRelease``."""
        return {"grid": self.unit, "noise_units": self.multiplier(), "sensitivity_growth": self.growth}

    def __str__(self) -> str:
        return (
            f"grid of the linear term {self.unit:.3g}, beside a sum of losses; noise: {self.multiplier():,} grid units"
        )


def term_noise(release: Release, n: int) -> TermNoise:
    """The facts of a linear term; what its rounding moves the minimiser by is charged to the release of that."""
    return TermNoise(power_below(n * release.scale, _TERM_BITS), release.scale, n)
