"""How large the Gaussian noise of a release is at public weights: one law for solvers, audits and tests.

At some weights one record can move a query by less than its bound. There the noise shrinks in the same proportion, so
that the event of the release, which depends only on the ratio of the two, stays as planned.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
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
        scales = self.scale * self.share(_norms(w))
        return float(scales) if np.ndim(scales) == 0 else scales

    def share(self, norm: Any) -> Any:
        """The share at |w|_2 = ``norm``."""
        last = len(self.shares) - 1
        # NaN fails either comparison and gets the last share.
        if np.ndim(norm) == 0:
            reach = float(norm) * self.places
            return self.shares[math.ceil(reach) if reach < last else last]
        with np.errstate(over="ignore"):
            place = np.ceil(np.asarray(norm) * self.places)
        return self.shares[np.where(place < last, place, last).astype(np.intp)]


def _norms(w: Any) -> Any:
    """|w|_2 of every row, also where its squares underflow: a margin bound may be as small as these weights."""
    w = np.asarray(w)
    norms = np.linalg.norm(w, axis=-1)
    if not (norms < 1e-140).any():
        return norms
    largest = np.abs(w).max(axis=-1, initial=0.0)
    units = np.where(largest > 0, largest, 1.0)
    with np.errstate(invalid="ignore"):
        return np.where(norms < 1e-140, units * np.linalg.norm(w / units[..., None], axis=-1), norms)


def constant(scale: float) -> NoiseLaw:
    """The same noise at all weights."""
    return NoiseLaw(scale, np.ones(1), 0.0)


def gradient_law(
    scale: float, loss: losses.Loss, row_norm: float, around_zero: bool, margin: float = math.inf,
    label: float = math.inf,
) -> NoiseLaw:
    """The noise of a mean gradient of records with |x|_2 <= row_norm, at public weights.

    ``around_zero`` says that a record may be left out, by Poisson sampling or by zeroing it, so that the ball around 0
    counts; otherwise one record is replaced by another and the diameter counts. ``margin`` and ``label`` are the public
    bounds of both; where margins are clipped, that bound is the unit of the table.
    """
    unit = margin if margin < math.inf else 1.0
    shares = _shares(loss.name, around_zero, margin / unit, label / unit)
    return NoiseLaw(scale, shares, _GRID * (row_norm / unit) * (1 + _ROUNDING))


@lru_cache
def _shares(name: str, around_zero: bool, margin: float, label: float) -> Array:
    """The sensitivity at each radius row_norm |w| of a grid, as a share of the largest at any w; the last one is 1."""
    loss = losses.get(name)
    largest = loss.residual_limit(margin, label)
    radii = [i / _GRID for i in range(_GRID * _FURTHEST + 1)]
    if around_zero or loss.diameter is None:
        reach = [loss.residual_limit(min(r, margin), label) / largest for r in radii]
    else:
        reach = [loss.diameter(r, margin, label) / (2 * largest) for r in radii]
    return np.append(np.maximum.accumulate(reach), 1.0)
