"""The noise of a release at public weights: one law for solvers, audits and tests.

At some weights one record can move a query by less than its bound. There the noise shrinks in the same proportion, so
that the event of the release, which depends only on the ratio of the two, stays as planned.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit import losses

Array = NDArray[np.float64]
# Radii at which shares are tabulated: this many a unit, up to the last; beyond it the share is 1.
_GRID, _FURTHEST = 16, 40
# The radius is enlarged by this part before the lookup, so that a rounding error of |w| cannot select a smaller entry.
_ROUNDING = 1e-10


@dataclass(frozen=True)
class NoiseLaw:
    """Gaussian noise of standard deviation ``scale`` times a share that depends on |w|_2.

    The share at |w| is shares[ceil(places |w|)]; beyond the table, and where |w| is NaN, it is the last share, which is
    1. Kernels receive ``arguments`` and look it up in the same way.
    """

    scale: float
    shares: Array
    places: float

    @property
    def arguments(self) -> tuple[float, Array, float]:
        """(scale, shares, places), as kernels take them."""
        return self.scale, self.shares, self.places

    def at(self, w: Any) -> Any:
        """The standard deviation at public weights, or at many of them, one a row."""
        scales = self.scale * self.share(np.linalg.norm(w, axis=-1))
        return float(scales) if np.ndim(scales) == 0 else scales

    def share(self, norm: Any) -> Any:
        """The share at |w|_2 = ``norm``."""
        last = len(self.shares) - 1
        with np.errstate(over="ignore"):
            place = np.ceil(np.asarray(norm) * self.places)
        # NaN fails the comparison and gets the last share.
        return self.shares[np.where(place < last, place, last).astype(np.intp)]


def constant(scale: float) -> NoiseLaw:
    """The same noise at all weights."""
    return NoiseLaw(scale, np.ones(1), 0.0)


def gradient_law(scale: float, loss: losses.Loss, row_norm: float, around_zero: bool) -> NoiseLaw:
    """The noise of a mean gradient of records with |x|_2 <= row_norm, at public weights.

    ``around_zero`` says that a record may be left out, by Poisson sampling or by zeroing it, so that the ball around 0
    counts; otherwise one record is replaced by another and the diameter counts.
    """
    return NoiseLaw(scale, _shares(loss.name, around_zero), _GRID * row_norm * (1 + _ROUNDING))


@cache
def _shares(name: str, around_zero: bool) -> Array:
    """The sensitivity at each radius row_norm |w| of a grid, as a share of the largest at any w; last of all, 1."""
    loss = losses.get(name)
    radii = [i / _GRID for i in range(_GRID * _FURTHEST + 1)]
    if around_zero or loss.diameter is None:
        reach = [loss.residual_limit(r, math.inf) / loss.residual_bound for r in radii]
    else:
        reach = [loss.diameter(r) / (2 * loss.residual_bound) for r in radii]
    return np.append(np.maximum.accumulate(reach), 1.0)
