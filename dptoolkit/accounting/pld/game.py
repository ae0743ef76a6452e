"""The game of equal steps on fresh batches: an adversary picks a pair in every step, and its value is a divergence.

Write W_k(a) for the largest divergence of order a that k steps can show. By the first output, with (P, Q) the pair of
the first step,
    W_k(a) = max over pairs E_P[W_(k-1)(a Q/P)],  W_0(a) = (1 - a)+,
because the later steps draw fresh batches and may depend on that output. ``blocks`` bounds the value from above, by
cells that dominate all pairs, ``adversary`` from below, by three pairs; here is what they share: arrays of W_k at the
losses 0, h, 2h, ....

On a grid. The losses of the pairs are multiples of h, so W_k at a grid point is an expectation over grid points. An
array that is at least W_(k-1) gives one that is at least W_k, and likewise from below; it need not be convex, so that
anything may be added to it, or taken off.

Without cancellation. The pairs are closed under exchanging the datasets, so W_k(a) = 1 - a + a W_k(1/a). With g(s) =
W(e^s) - (1 - e^s)+ the expectation is H_{e^s}(P||Q) + E_P[g(s - L)], L the loss; g(s) = W(e^s) and g(-s) = e^-s
W(e^s) for s >= 0. All terms are positive, and errors at s > 0 shrink when they are reflected. All arrays are
multiplied by e^(t s), t the tilt, so that round-off is relative to what counts at the end of the grid.

Beyond the end of the array. From above W is at most its last value there, and at most k p_inf + G^k e^(-t s) by
Markov's inequality, G the largest sum of tilted masses; from below it is at least 0.

Round-off of the transforms. Let u = 2^-53 and let the length L have the factors 2, 3 and 5 alone. A pass of radix r
multiplies by twiddle factors (relative error at most 2 sqrt(2) u, and u for the factor itself) and adds up to five
terms, which is at most 7 u for every factor 2 of the length, relative to the norm. So a transform has a relative
error of at most 7 u log2 L; Higham (2002, Theorem 24.2) has 6.7 u log2 L for radix 2. A product of two transforms
errs by (14 log2 L + 4) u |p| |g| L in the sum of all sizes, hence by that over L at every point of the result. The
transform back errs by 7 u log2 L of the result's norm, which is at most sum(p) |g|. This bound is added at every
point and every step, or taken off. The errors seen are more than ten times smaller.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from dptoolkit.accounting import gaussian, profiles, sampling
from dptoolkit.accounting.pld.trees import Batch
from dptoolkit.accounting.profiles import DominatingPair
from dptoolkit.types import Array

# The sensitivities for which the game is played: those for which the quadrature of ``triangles`` was measured.
LEAST_MU, LARGEST_MU = 1e-3, 20.0
# The largest epsilon for which the game is played: exponentials of losses must not overflow.
LARGEST_LOSS = 150.0
# The rate above which the step of a grid does not grow any more.
_LARGEST_RATE = 0.18
# Pairs that are transformed back at once: larger arrays would leave the cache.
_CHUNK = 8
UNIT = 2.0**-53
# Relative errors of values, which exponentials of up to a few hundred have.
PAD = 1e-11


class Steps(NamedTuple):
    """Equal steps on batches, and a grid of losses for them, with so many points per rate (or per rate times mu)."""

    batch: Batch
    points: int

    @property
    def h(self) -> float:
        """The step of the grid."""
        mu, rate = self.batch
        return min(rate, _LARGEST_RATE) / self.points * min(1.0, mu)

    @property
    def joined(self) -> DominatingPair:
        """The pair that dominates one step."""
        return sampling.replace_one(profiles.gaussian(self.batch.mu), self.batch.rate)

    def reach(self, tail: float) -> int:
        """Grid points of one step, such that less than ``tail`` is beyond them."""
        mu, rate = self.batch
        end = gaussian.epsilon(mu, min(tail / rate, 0.5))
        return max(math.ceil(math.log1p(rate * math.expm1(min(end, 700.0))) / self.h), 1)


class Window(NamedTuple):
    """The grid: its step, the points of one pair on each side of 0, the last point of the array, and the tilt."""

    h: float
    reach: int
    end: int
    tilt: float

    @property
    def losses(self) -> Array:
        """The losses of the array."""
        return np.asarray(self.h * np.arange(self.end + 1, dtype=float))


class Laws(NamedTuple):
    """The pairs of a step: P's masses at the losses -reach, ..., reach, and the curves on the array, both [pair, loss].

    ``infinite`` is the largest infinite mass.
    """

    masses: Array
    curves: Array
    infinite: float


def values(laws: Laws, window: Window, count: int, *, lower: bool) -> Iterator[tuple[int, Array]]:
    """(k, W_k at the window's losses) for k = 1, ..., count: upper bounds, or lower ones."""
    from scipy import fft

    h, reach, end, tilt = window
    sign = -1.0 if lower else 1.0
    rounding = 1 + sign * PAD
    losses, away = window.losses, h * np.arange(1, reach + 1)
    curves = laws.curves * np.exp(tilt * losses) * rounding
    masses = laws.masses * np.exp(tilt * h * np.arange(-reach, reach + 1)) * (1 + sign * 1e-13)
    heaviest = max(float(np.max(np.sum(masses, axis=1))) * (1 + PAD), 1.0)
    size = fft.next_fast_len(end + 1 + 2 * reach, real=True)
    transforms = fft.rfft(masses, size, axis=1)
    floor = sign * _round_off(masses, heaviest, size)
    down, to_left = np.exp(-tilt * losses), np.exp(-(1 + tilt) * away[::-1])
    to_right = np.exp(tilt * (losses[-1] + away))
    places = np.arange(reach, 0, -1)
    if lower:
        to_left[places > end] = 0.0
    places = np.minimum(places, end)
    chunks = [slice(i, i + _CHUNK) for i in range(0, len(curves), _CHUNK)]
    tilted = np.max(curves, axis=0)
    yield 1, tilted * down * rounding
    for k in range(2, count + 1):
        plain = tilted * down
        beyond = np.minimum(plain[-1] * to_right, k * laws.infinite * to_right + _power_up(heaviest, k))
        around = np.concatenate([to_left * plain[places], tilted, 0.0 * beyond if lower else beyond])
        transform, tilted = fft.rfft(around, size), np.zeros(end + 1)
        for rows in chunks:
            sums = fft.irfft(transform * transforms[rows], size, axis=1)[:, 2 * reach : 2 * reach + end + 1]
            tilted = np.maximum(tilted, np.max(sums + curves[rows], axis=0))
        tilted = np.maximum(tilted + floor * math.sqrt(float(np.sum(around * around))), 0.0)
        yield k, tilted * down * rounding


def _round_off(masses: Array, heaviest: float, size: int) -> float:
    """A bound on the round-off of one step, relative to the norm of the array."""
    norm = math.sqrt(float(np.max(np.sum(masses**2, axis=1))))
    return UNIT * ((14 * math.log2(size) + 4) * norm + 7 * math.log2(size) * heaviest)


def _power_up(base: float, exponent: int) -> float:
    """base^exponent for a base of at least 1, rounded up; infinite where it is of no use."""
    log_power = exponent * math.log(base)
    return math.exp(log_power) * (1 + 1e-9) if log_power < 600 else math.inf
