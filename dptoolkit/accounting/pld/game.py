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

Round-off of the transforms. Let u = 2^-53, to first order in u, and let the length L have the factors 2, 3 and 5
alone. A transform is a sequence of passes of radix r = 2, 3, 4 or 5: DFTs of length r, each an orthogonal matrix times
sqrt(r), and products with twiddle factors. Errors relative to the norm add up over the passes.

    A twiddle factor is a product of two table entries, each within u/sqrt(2), and a complex product errs by at most
    sqrt(5) u (Brent, Percival and Zimmermann 2007): the factor errs by 3.7 u, and the product with it by 5.9 u in all.
    Radix 2: one sum, 1 u. Radix 4: two sums, 2 u; products with i are exact.
    Radix 3: with t = x1 + x2, s = x1 - x2 the outputs are x0 + t and (x0 - t/2) +- i (3/4)^(1/2) s. The errors are at
    most u times |t| for the first and |x0| + |t| + 2.6 |s| for each of the others, besides u times the output. As
    |t|^2 + |s|^2 = 2 (|x1|^2 + |x2|^2), the norm of all is at most (5.9 / sqrt(3) + 1) u = 4.5 u of the output's.
    Radix 5: in the same way each of four outputs errs by at most u (2 |x0| + 1.6 |t1| + 3.3 |t2| + 3.9 |s1| + 2.4
    |s2|), where the squares of the four sums and differences add up to 2 (|x1|^2 + ... + |x4|^2): 8.7 u in all.

Per factor of 2 of the length this is 6.9 u for radix 2, 4 u for radix 4, (4.5 + 5.9) u / log2(3) = 6.6 u for radix 3
and (8.7 + 5.9) u / log2(5) = 6.3 u for radix 5. So a transform errs by at most 7 u log2 L of its norm. A real transform
has the same sums and products, less those that symmetry makes equal. Fused multiply-adds only leave out roundings.
A product of two transforms errs by (14 log2 L + 4) u |p| |g| L in the sum of all sizes, hence by that over L at every
point of the result. The transform back errs by 7 u log2 L of the result's norm, which is at most sum(p) |g|. This bound
is added at every point and every step, or taken off. The errors seen are more than ten times smaller.
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
    size = _fast_length(end + 1 + 2 * reach)
    transforms = fft.rfft(masses, size, axis=1)
    floor = sign * _round_off(masses, heaviest, size)
    down, to_left = np.exp(-tilt * losses), np.exp(-(1 + tilt) * away[::-1])
    to_right = np.exp(tilt * (losses[-1] + away))
    places = np.arange(reach, 0, -1)
    if lower:
        to_left[places > end] = 0.0
    places = np.minimum(places, end)
    chunks = [slice(i, i + _CHUNK) for i in range(0, len(curves), _CHUNK)]
    tilted = np.maximum.reduce(curves, axis=0)
    around = np.zeros(size)
    left, middle, right = np.split(around[: end + 1 + 2 * reach], [reach, reach + end + 1])
    yield 1, tilted * down * rounding
    for k in range(2, count + 1):
        # In place, because allocating takes as long as computing here.
        last = float(tilted[-1] * down[-1])
        np.multiply(to_left, (tilted * down)[places], out=left)
        middle[:] = tilted
        if not lower:
            power = _power_up(heaviest, k)
            np.minimum(last * to_right, k * laws.infinite * to_right + power, out=right)
        transform = fft.rfft(around, size)
        tilted.fill(0.0)
        for rows in chunks:
            product = transform * transforms[rows]
            sums = fft.irfft(product, size, axis=1, overwrite_x=True)[:, 2 * reach : 2 * reach + end + 1]
            sums += curves[rows]
            np.maximum(tilted, np.maximum.reduce(sums, axis=0), out=tilted)
        tilted += floor * math.sqrt(float(np.add.reduce(around * around)))
        np.maximum(tilted, 0.0, out=tilted)
        yield k, tilted * down * rounding


def _fast_length(points: int) -> int:
    """A length of transforms of at least so many points, whose only factors are 2, 3 and 5."""
    from scipy import fft

    # A power of 2 is as fast as a somewhat smaller length of several factors.
    power = 1 << (points - 1).bit_length()
    return power if power <= 1.15 * points else int(fft.next_fast_len(points, real=True))


def _round_off(masses: Array, heaviest: float, size: int) -> float:
    """A bound on the round-off of one step, relative to the norm of the array."""
    norm = math.sqrt(float(np.max(np.sum(masses**2, axis=1))))
    return UNIT * ((14 * math.log2(size) + 4) * norm + 7 * math.log2(size) * heaviest)


def _power_up(base: float, exponent: int) -> float:
    """base^exponent for a base of at least 1, rounded up; infinite where it is of no use."""
    log_power = exponent * math.log(base)
    return math.exp(log_power) * (1 + 1e-9) if log_power < 600 else math.inf
