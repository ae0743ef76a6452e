"""Constraint sets: gauge and dual norm, projection, Gaussian width, and the error bound that follows from it.

Three balls: L2, L1 and group-L1 (the sum of the L2 norms of consecutive blocks of coordinates). They are one family,
the group-L1 ball with one block, with blocks of one coordinate, and with blocks in between: the projection of a vector
is the projection of its block norms on an L1 ball. The Gaussian width G = E sup over w in C of <z, w> is the effective
dimension of a set: with objective perturbation the error grows with it, not with the square root of d (Talwar, Thakurta
and Zhang 2014, arXiv:1411.5417; lecture 16, section 16.3). All of this is public: no data in here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.special import gammaln

from dptoolkit._validate import invalid, nonnegative, positive, real, whole
from dptoolkit.types import Array


class Interval(NamedTuple):
    """An estimate between two bounds that hold with the confidence asked for."""

    low: float
    estimate: float
    high: float


@dataclass(frozen=True)
class Ball:
    """A ball of a norm that adds up the L2 norms of blocks.

    It is {w : sum over blocks of |w_block|_2 <= radius}, with blocks of ``block`` consecutive coordinates, the last one
    perhaps shorter; block None is one block of everything. Use the makers l2_ball, l1_ball, group_l1_ball.
    """

    radius: float
    block: int | None

    def __post_init__(self) -> None:
        positive("radius", self.radius)
        if self.block is not None:
            whole("block", self.block, low=1)

    def block_norms(self, v: Any) -> Any:
        """The L2 norm of each block; the type of the entries (also long double) is kept."""
        largest = np.max(np.abs(v), initial=0.0)
        if not largest > 0 or not np.isfinite(largest):
            scale = v.dtype.type(1)
        else:
            # A power of two: dividing by it is exact, and squares neither overflow nor vanish.
            scale = np.ldexp(v.dtype.type(1), int(np.frexp(largest)[1]))
        if self.block == 1:
            return np.abs(v)
        unit = v / scale
        if self.block is None:
            return scale * np.sqrt(_sum_of_squares(unit))[None]
        starts = np.arange(0, len(v), self.block)
        return scale * np.sqrt(np.add.reduceat(unit * unit, starts))

    def gauge(self, v: Array) -> float:
        """The Minkowski norm: the smallest r with v in r C."""
        return float(_sum(self.block_norms(_vector(v)))) / self.radius

    def dual_norm(self, v: Array) -> float:
        """The largest <v, w> over w in C."""
        return float(np.max(self.block_norms(_vector(v)), initial=0.0)) * self.radius

    def project(self, v: Any) -> Any:
        """The point of C nearest to v."""
        return self.projection(v)[0]

    def projection(self, v: Any) -> tuple[Any, float]:
        """(nearest point, bound on its rounding error in L2).

        Soft-thresholding the norms at ANY level t is the exact projection on the ball whose radius is the sum that is
        left; two such points differ in L1, so in L2, by the difference of the radii. So the error is at most what the
        sum misses the radius by, plus the rounding of the norms (the projection does not stretch) and of the scaling.
        """
        norms = self.block_norms(v)
        unit = float(np.finfo(norms.dtype).eps) / 2
        size = min(self.block, len(v)) if self.block else _summands(len(v), norms.dtype)
        total = _sum(norms)
        if total <= norms.dtype.type(self.radius) * (1 - 4 * (size + 2) * unit):
            return v.copy(), 0.0
        parts, share = _threshold(norms, norms.dtype.type(self.radius))
        radius_error = abs(float(_sum(parts) - norms.dtype.type(self.radius)))
        with np.errstate(divide="ignore", invalid="ignore"):
            factor = np.where(parts > 0, parts / norms, norms.dtype.type(0))
        point = self._spread(factor, len(v)) * v
        with np.errstate(over="ignore"):
            length = math.sqrt(float(_sum_of_squares(norms)))
        of_norms = 0.0 if self.block == 1 else (size + 4) * (length + self.radius)
        of_sums = (8 + _summands(len(norms), norms.dtype)) * self.radius + 3 * int((parts > 0).sum()) * float(share)
        return point, radius_error + unit * (of_norms + of_sums)

    def _spread(self, per_block: Any, d: int) -> Any:
        if self.block == 1:
            return per_block
        return np.repeat(per_block, self.block or d)[:d]

    def blocks(self, d: int) -> int:
        """The number of blocks in dimension d."""
        return 1 if self.block is None else -(-d // self.block)

    def width_bound(self, d: int) -> float:
        """A closed-form upper bound on the Gaussian width in dimension d; exact for one block.

        The width is radius * E max over blocks of |z_block|. One block: sqrt(2) Gamma((k+1)/2) / Gamma(k/2). Otherwise
        the smallest of: sqrt(2 log(2 d)) for single coordinates, E|z_block| + sqrt(2 log blocks), as a norm is a
        1-Lipschitz function, and sqrt(k + 2 sqrt(k log blocks) + 2 log blocks), from the moments of chi-squared.
        """
        d = whole("d", d, low=1)
        count, size = self.blocks(d), min(self.block or d, d)
        mean = math.sqrt(2) * math.exp(float(gammaln((size + 1) / 2) - gammaln(size / 2)))
        if count == 1:
            return self.radius * mean
        log_count = math.log(count)
        bounds = [mean + math.sqrt(2 * log_count), math.sqrt(size + 2 * math.sqrt(size * log_count) + 2 * log_count)]
        if size == 1:
            bounds.append(math.sqrt(2 * math.log(2 * d)))
        return self.radius * min(bounds)

    def width(
        self, d: int, *, samples: int = 10_000, confidence: float = 1 - 1e-6, rng: int | np.random.Generator = 0
    ) -> Interval:
        """The Gaussian width by Monte Carlo, with a confidence interval that holds for every number of samples.

        The dual norm is a radius-Lipschitz function of a Gaussian vector, so the mean of N values is sub-Gaussian with
        standard deviation at most radius/sqrt(N) (Boucheron, Lugosi and Massart 2013, Theorem 5.6).
        """
        d, samples = whole("d", d, low=1), whole("samples", samples, low=1)
        level = real("confidence", confidence, low=0.0, high=1.0, open_low=True, open_high=True)
        generator = np.random.default_rng(rng)
        rows = max(1, _ENTRIES // d)
        total = 0.0
        for first in range(0, samples, rows):
            z = generator.standard_normal((min(rows, samples - first), d))
            total += float(self._largest_norms(z).sum())
        half = self.radius * math.sqrt(2 * math.log(2 / (1 - level)) / samples)
        mean = self.radius * total / samples
        return Interval(max(mean - half, 0.0), mean, mean + half)

    def _largest_norms(self, z: Array) -> Array:
        if self.block == 1:
            return np.asarray(np.abs(z).max(axis=1))
        starts = np.arange(0, z.shape[1], self.block or z.shape[1])
        return np.asarray(np.sqrt(np.add.reduceat(z * z, starts, axis=1).max(axis=1)))


# Entries of Gaussian vectors that are drawn at a time: 8 MB.
_ENTRIES = 1 << 20


def l2_ball(radius: float) -> Ball:
    """{w : |w|_2 <= radius}."""
    return Ball(positive("radius", radius), None)


def l1_ball(radius: float) -> Ball:
    """{w : |w|_1 <= radius}."""
    return Ball(positive("radius", radius), 1)


def group_l1_ball(radius: float, block: int) -> Ball:
    """{w : sum of the L2 norms of blocks of ``block`` consecutive coordinates <= radius}."""
    return Ball(positive("radius", radius), whole("block", block, low=1))


def _vector(v: Any) -> Array:
    array = np.asarray(v, dtype=float)
    if array.ndim != 1 or np.isnan(array).any():
        raise invalid("v", f"an array of shape {array.shape}", "a vector without NaN")
    return array


def _sum(values: Any) -> Any:
    """Correctly rounded for doubles; plain for wider types, whose sums are good enough."""
    return np.float64(math.fsum(values)) if values.dtype == np.float64 and np.isfinite(values).all() else values.sum()


def _sum_of_squares(values: Any) -> Any:
    return _sum(values * values)


def _summands(count: int, dtype: Any) -> int:
    """How many roundings a sum of that many terms may have here."""
    return 2 if dtype == np.float64 else count


def _threshold(norms: Any, radius: Any) -> tuple[Any, Any]:
    """(what is left of the norms, their sum being ``radius``; what is left of the largest).

    In gaps to the largest norm, so that nothing cancels however large the norms are: (s - gap)+ must sum to the radius,
    and s is at most the radius.
    """
    gaps = np.minimum(np.max(norms) - norms, 2 * radius)
    sorted_gaps = np.sort(gaps)
    shares = (radius + np.cumsum(sorted_gaps)) / np.arange(1, len(norms) + 1)
    count = int(np.flatnonzero(sorted_gaps < shares)[-1]) + 1
    share = (radius + _sum(sorted_gaps[:count])) / count
    # One correction for the rounding of long sums: the excess of the sum is taken from all positive entries alike.
    remainders = np.maximum(share - gaps, 0)
    share = share - (_sum(remainders) - radius) / max(int((remainders > 0).sum()), 1)
    # Never more than the norm itself: the correction above must not lengthen a point that is hardly outside the ball.
    return np.minimum(np.maximum(share - gaps, 0), norms), share


# --- utility --------------------------------------------------------------------------------------


def excess_risk_bound(*, width: float, noise: float, l2: float, radius: float, n: int) -> float:
    """Theorem 16.9 with its constants: the expected excess of the MEAN loss over the best in C is at most this.

    (noise * width + l2 * radius^2 / 2) / n, with noise and l2 in the scaling of the SUM. Proof, after the lecture: let
    w be the private minimiser and v the minimiser without noise. Optimality gives F(w) - F(v) <= <b, v - w>/n; v does
    not depend on b, so E<b, v> = 0, and E<b, -w> <= noise * width. The regulariser costs l2 |w*|^2/(2n) at most, and
    |w*| <= radius, the largest L2 norm in C (for all three balls their radius). For an exact minimiser.
    """
    parts = [nonnegative(name, v) for name, v in (("width", width), ("noise", noise), ("l2", l2), ("radius", radius))]
    return (parts[1] * parts[0] + parts[2] * parts[3] ** 2 / 2) / whole("n", n, low=1)


def published_rate(
    *, gradient_bound: float, width: float, curvature: float, radius: float, epsilon: float, delta: float, n: int
) -> float:
    """The rate (16.5) as printed, with constant 1: (L G sqrt(log 1/delta) + beta radius^2) / (epsilon n).

    A rate, not a bound: the lecture's noise L sqrt(10 log 1/delta)/epsilon alone brings a factor sqrt(10).
    """
    root = math.sqrt(math.log(1 / real("delta", delta, low=0.0, high=1.0, open_low=True, open_high=True)))
    top = nonnegative("gradient_bound", gradient_bound) * nonnegative("width", width) * root
    return (top + nonnegative("curvature", curvature) * nonnegative("radius", radius) ** 2) / (
        positive("epsilon", epsilon) * whole("n", n, low=1)
    )
