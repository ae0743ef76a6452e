"""The Gaussian mechanism, exactly: (epsilon, delta) and the shift mu determine each other.

A release with Gaussian noise of ``noise_multiplier`` standard deviations per sensitivity is mu-GDP with
mu = 1/noise_multiplier, and its privacy profile is

    delta(epsilon) = Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 - epsilon/mu)

(Balle and Wang 2018, arXiv:1805.06530, Theorem 8). T such releases are exactly one with
mu = sqrt(mu_1^2 + ... + mu_T^2) (Dong, Roth and Su 2019, arXiv:1905.02383, Corollary 3.3), so no numerical
composition is needed where everything is Gaussian.
"""

from __future__ import annotations

import math
from typing import overload

import numpy as np
from scipy.special import erfcx, ndtr

from dptoolkit._validate import delta_value, nonnegative
from dptoolkit.accounting._numeric import crossing, expand
from dptoolkit.types import Array

_HALF_ROOT_PI = math.sqrt(math.pi / 2)
_ROOT_2 = math.sqrt(2.0)
# Below this mu a difference of two Mills ratios would cancel, and a Taylor series takes its place.
_TINY_MU = 1e-3
# The largest mu that a search for noise considers.
_LARGEST_MU = 1e8
# The squares of smaller mu may underflow and lose digits.
_TINY_SQUARE = 1e-140


def compose(mus: list[tuple[float, float]]) -> float:
    """The mu of independent Gaussian releases given as (mu, count) pairs."""
    largest = max((mu for mu, count in mus if count), default=0.0)
    # Where squares underflow, they are taken relative to the largest mu: a mu of 0 would promise perfect privacy, which
    # no Gaussian noise has.
    unit = largest if 0 < largest < _TINY_SQUARE else 1.0
    return unit * math.sqrt(math.fsum(count * (mu / unit) * (mu / unit) for mu, count in mus))


@overload
def delta(mu: float, epsilon: float) -> float: ...
@overload
def delta(mu: float, epsilon: Array) -> Array: ...
def delta(mu: float, epsilon: float | Array) -> float | Array:
    """The exact delta at ``epsilon`` (a number or an array, any sign) of a mu-GDP Gaussian release.

    Where it underflows, the smallest float is returned: a delta of 0 would be a promise that Gaussian noise cannot
    keep.
    """
    eps = np.asarray(epsilon, dtype=float)
    out = curve(mu, eps)
    if mu > 0:
        out = np.where(eps < math.inf, np.maximum(out, math.ulp(0.0)), out)
    return float(out) if out.ndim == 0 else out


def curve(mu: float, epsilon: Array) -> Array:
    """``delta`` for grids of losses; here a value that underflows is 0, as it does not matter in a sum over a grid."""
    return _profile(nonnegative("mu", mu), epsilon)


def _profile(mu: float, eps: Array) -> Array:
    if mu == 0:
        return np.asarray(0.0 - np.expm1(np.minimum(eps, 0.0)))
    if math.isinf(mu):
        return np.ones_like(eps)
    magnitude = np.abs(eps)
    upper = _delta_nonnegative(mu, magnitude)
    if np.all(eps >= 0):
        return upper
    # H_a(P||Q) = 1 - a + a H_{1/a}(Q||P), and the pair is symmetric: no cancellation below zero.
    return np.where(eps >= 0, upper, -np.expm1(-magnitude) + np.exp(-magnitude) * upper)


def _delta_nonnegative(mu: float, eps: Array) -> Array:
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        x = eps / mu - mu / 2
        density = np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
        # exp(eps) Phi(-x-mu) = density * mills(x+mu): one factor carries the tail, none overflows.
        # For a tiny mu, x >= -mu/2 is as good as positive, and ndtr - ... would cancel.
        far = x > (0.0 if mu >= _TINY_MU else -1.0)
        if np.all(far):
            out = np.asarray(density * _mills_drop(np.maximum(x, -_TINY_MU), mu))
        else:
            out, near = np.empty_like(x), ~far
            out[far] = density[far] * _mills_drop(np.maximum(x[far], -_TINY_MU), mu)
            out[near] = ndtr(-x[near]) - density[near] * _mills(x[near] + mu)
    # Where the density underflows, delta is 0, even if the other factor of the product overflowed.
    out[np.isposinf(eps) | ((density == 0) & (x > 0))] = 0.0
    return np.clip(out, 0.0, 1.0)


def _mills(x: Array) -> Array:
    return np.asarray(_HALF_ROOT_PI * erfcx(x / _ROOT_2))


def _mills_drop(x: Array, mu: float) -> Array:
    """mills(x) - mills(x + mu) for x >= -_TINY_MU; by Taylor where the difference would cancel."""
    first = _mills(x)
    if mu >= _TINY_MU:
        return first - _mills(x + mu)
    d1 = x * first - 1.0
    d2 = first + x * d1
    d3 = 2 * d1 + x * d2
    d4 = 3 * d2 + x * d3
    return -mu * (d1 + mu / 2 * (d2 + mu / 3 * (d3 + mu / 4 * d4)))


def epsilon(mu: float, delta: float) -> float:
    """The smallest epsilon >= 0 with delta(mu, epsilon) <= ``delta``, from the private side."""
    mu = nonnegative("mu", mu)
    target = delta_value(delta)
    if mu == 0:
        return 0.0
    if target == 0 or math.isinf(mu):
        return math.inf
    if _log_excess(mu, 0.0, target) <= 0:
        return 0.0
    top = expand(lambda e: _log_excess(mu, e, target), mu * mu / 2 + mu, 2.0, math.inf)
    assert top is not None
    return crossing(lambda e: _log_excess(mu, e, target), 0.0, top, relative=1e-13)[1]


def mu(epsilon: float, delta: float) -> float:
    """The largest mu whose Gaussian release is (epsilon, delta)-DP, from the private side."""
    eps = nonnegative("epsilon", epsilon)
    target = delta_value(delta)
    if math.isinf(eps):
        return math.inf
    if target == 0:
        return 0.0
    # The search is over 1/mu, in which the excess is decreasing: crossing() then ends on the private side.
    low = 1 / _LARGEST_MU
    if _log_excess(1 / low, eps, target) <= 0:
        return 1 / low
    high = expand(lambda z: _log_excess(1 / z, eps, target), 1e-3, 4.0, 1e300)
    assert high is not None
    return 1 / crossing(lambda z: _log_excess(1 / z, eps, target), low, high, relative=1e-13)[1]


def _log_excess(mu: float, eps: float, target: float) -> float:
    value = float(_profile(mu, np.asarray(eps)))
    if value <= 0:
        return -math.inf
    # The quotient of two neighbouring floats may round to 1, so the sign comes from comparing them directly.
    log_ratio = math.log(value / target)
    return max(log_ratio, math.ulp(0.0)) if value > target else min(log_ratio, 0.0)
