"""Faults of noise on a sum of records in [-1, 1]."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dptoolkit.adjacency import Adjacency
from dptoolkit.audit import probes
from dptoolkit.audit.broken.fault import Broken
from dptoolkit.audit.claims import GaussianClaim, PureClaim
from dptoolkit.audit.pairs.pair import Pair

Array = NDArray[np.float64]
Rng = np.random.Generator


ONE = Pair(np.array([1.0, 0.0, 0.0, 0.0]), np.zeros(4), Adjacency.ZERO_OUT, "a record of 1, or 0")
_BOTH = Pair(np.array([1.0, 0.0, 0.0, 0.0]), np.array([-1.0, 0.0, 0.0, 0.0]), Adjacency.REPLACE_ONE, "1, or -1")
_LARGE = Pair(np.array([50.0, *np.zeros(9)]), np.zeros(10), Adjacency.ZERO_OUT, "a record of 50, or 0")
_SMALL = np.tile([0.1, -0.1], 10)
_OUTLIER = Pair(np.array([1.0, *_SMALL]), np.array([0.0, *_SMALL]), Adjacency.ZERO_OUT, "1, or 0, among small ones")
_SKEWED = Pair(np.array([1.0, *abs(_SMALL)]), np.array([0.0, *abs(_SMALL)]), Adjacency.ZERO_OUT, "1, or 0, among 0.1s")


def noisy_sum(data: Array, rng: Rng, scale: float) -> float:
    """The sum of the records plus Gaussian noise."""
    return float(data.sum() + scale * rng.standard_normal())


def _clipped_sum(data: Array, rng: Rng, scale: float) -> float:
    return noisy_sum(np.clip(data, -1, 1), rng, scale)


def _sum_with_location(data: Array, rng: Rng) -> float:
    return float(data.sum() + rng.normal(4.0))


def _laplace_sum(data: Array, rng: Rng, scale: float) -> float:
    return float(data.sum() + rng.laplace(0.0, scale))


def _mean(data: Array, rng: Rng, scale: float) -> float:
    return float(data.mean() + scale / len(data) * rng.standard_normal())


def _mean_of_noisy_sum(data: Array, rng: Rng, scale: float) -> float:
    return float((data.sum() + scale / len(data) * rng.standard_normal()) / len(data))


def _mean_then_clip(data: Array, rng: Rng, scale: float) -> float:
    return float(np.clip(data.mean(), -1, 1) + scale / len(data) * rng.standard_normal())


def _clip_then_mean(data: Array, rng: Rng, scale: float) -> float:
    return _mean(np.clip(data, -1, 1), rng, scale)


def _normalised_sum(data: Array, rng: Rng, scale: float) -> float:
    return noisy_sum(data / np.abs(data).max(), rng, scale)


def _sum_with_own_bound(data: Array, rng: Rng, scale: float) -> float:
    return noisy_sum(data, rng, scale * float(np.abs(data).max()))


def _count(count: int, rng: Rng, low: float, high: float) -> float:
    """The count, clipped, plus integer noise: private for integer bounds only."""
    p = -math.expm1(-1.0 / (high - low))
    return float(np.clip(count, low, high) + rng.geometric(p) - rng.geometric(p))


def _sum_in(data: Array, rng: Rng, kind: type) -> float:
    return float(kind(data.sum()) + kind(rng.standard_normal()))


_MANY = Pair(np.array([2.0**26, 4.0, 1.0]), np.array([2.0**26, 4.0, 0.0]), Adjacency.ZERO_OUT, "large, and 1 more")
SUMS = (
    Broken("half the noise", "The noise has half of the scale that the claim needs.",
           partial(noisy_sum, scale=0.5), ONE, GaussianClaim(1.0), partial(noisy_sum, scale=1.0)),
    Broken("variance for scale", "The variance is passed where the sampler takes the standard deviation.",
           partial(noisy_sum, scale=0.5**2), ONE, GaussianClaim(2.0), partial(noisy_sum, scale=0.5)),
    Broken("scale as location", "In normal(scale) the scale is taken for the location: the real scale is 1.",
           _sum_with_location, ONE, GaussianClaim(0.25), partial(noisy_sum, scale=4.0)),
    Broken("Laplace without sensitivity", "The Laplace scale is 1/epsilon instead of sensitivity/epsilon.",
           partial(_laplace_sum, scale=1.0), _BOTH, PureClaim(1.0), partial(_laplace_sum, scale=2.0),
           arguments={"trials": 6000, "power": None}),
    Broken("forgotten clip", "Records are assumed to obey a bound that nothing enforces.",
           partial(noisy_sum, scale=1.0), _LARGE, GaussianClaim(1.0), partial(_clipped_sum, scale=1.0)),
    Broken("divided by n twice", "Noise made for a mean is added to the sum, then everything is divided by n.",
           partial(_mean_of_noisy_sum, scale=1.0), ONE, GaussianClaim(1.0), partial(_mean, scale=1.0)),
    Broken("clip after averaging", "The mean is clipped instead of every record.",
           partial(_mean_then_clip, scale=1.0), _LARGE, GaussianClaim(1.0), partial(_clip_then_mean, scale=1.0)),
    Broken("normalised by the maximum", "Records are divided by the data's own maximum, so one record moves them all.",
           partial(_normalised_sum, scale=1.0), _SKEWED, GaussianClaim(1.0), partial(noisy_sum, scale=1.0)),
    Broken("bound from the data", "The bound that the noise is for is learned from the data: the noise names it.",
           partial(_sum_with_own_bound, scale=1.0), _OUTLIER, GaussianClaim(1.0), partial(noisy_sum, scale=1.0)),
    Broken("integer noise on fractions", "Geometric noise on a count clipped to fractional bounds, as in Theorem 3 of "
           "the sparse private LASSO: the fraction passes through.",
           partial(_count, low=6.4, high=12.8), Pair(6, 7), PureClaim(1.0), partial(_count, low=7, high=12),
           probe=partial(probes.output_grid, pair=(6, 8))),
    Broken("noise rounded away", "In single precision the noise next to a large sum rounds to 0.",
           partial(_sum_in, kind=np.float32), _MANY, GaussianClaim(1.0), partial(_sum_in, kind=np.float64)),
)  # fmt: skip
