"""Privacy amplification by subsampling: what a secret random batch adds to a mechanism's privacy.

Poisson sampling under zero-out: with the record the output is (1-q) Q + q P, without it Q, so
H_{a'}(mixture||Q) = q H_a(P||Q) with a' = 1 + q(a-1), exactly (Balle, Barthe and Gaboardi 2018, arXiv:1807.01647).

Sampling without replacement under replace-one: H_{a'} <= q H_a with the same a', for every ordered pair of neighbours
and a' >= 1, by advanced joint convexity; for a' < 1 the curve follows from H_a(P||Q) = 1 - a + a H_{1/a}(Q||P). The
joined curve is convex: at a' = 1 its left slope is q TV - 1 + Q(L > 0), its right slope -Q(L > 0), and for a symmetric
pair 1 - 2 Q(L > 0) = TV + P(L = 0) >= q TV. So it is a dominating pair, and it composes. No library offers it.

Poisson sampling under replace-one, Gaussian noise: with contributions v, v' in the ball of radius r, the pair
((1-q) N(0) + q N(v), (1-q) N(0) + q N(v')) is dominated by v = r e, v' = -r e. Proof: for a >= 1 the best event A is
{a' exp<x, v'-v> + c exp(-<x, v>) < const}, an up-set of the cone K = {u: <u, v-v'> >= 0, <u, v> >= 0}. So H_a grows
when v moves along K or v' along -K (the event may stay fixed). Move v along a fixed w orthogonal to it with
<w, v'> <= 0 (there is room: add a dimension): w stays in K all along, until |v| = r. Then move v' straight to -v: with
u the opposite of that direction, <u, v> >= 0, and <u, v-v'> >= 0 because |v'| <= r = |v|. For a < 1 exchange the roles.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtr

from dptoolkit.accounting._numeric import Array, log_binomial, log_sum_exp
from dptoolkit.accounting.profiles import Curve, Pair, Tails


def poisson_zero_out(pair: Pair, rate: float) -> Pair:
    """((1-rate) Q + rate P, Q): Poisson sampling, with the record against without it."""
    if rate >= 1:
        return pair

    def above(x: Array) -> Array:
        return rate * pair.above(_inner_loss(x, rate))

    def below(x: Array) -> Array:
        y = _inner_loss_backwards(x, rate)
        inside = np.isfinite(y)
        value = rate * np.exp(x - np.where(inside, y, x)) * pair.below(np.where(inside, y, 0.0))
        return np.where(inside, value, 0.0)

    inner_tails = pair.tails

    def tails(x: Array) -> Tails:
        assert inner_tails is not None
        with np.errstate(divide="ignore", invalid="ignore"):
            shifted = np.expm1(x) / rate
            y = np.where(shifted > -1, np.log1p(np.maximum(shifted, -1.0)), -np.inf)
            y = np.where(x > 1, _inner_loss(np.maximum(x, 0.0), rate), y)
        t = inner_tails(y)
        return Tails(
            (1 - rate) * t.q_above + rate * t.p_above, t.q_above,
            (1 - rate) * t.q_below + rate * t.p_below, t.q_below,
        )

    return Pair(
        above, below, None if inner_tails is None else tails,
        infinite_mass=rate * pair.infinite_mass, symmetric=False,
    )


def replace_one(pair: Pair, rate: float) -> Pair:
    """The symmetric pair that dominates a batch without replacement (or Poisson) under replace-one."""
    if rate >= 1:
        return pair

    def curve(x: Array) -> Array:
        y = _inner_loss(x, rate)
        return rate * np.maximum(pair.above(y), pair.below(y))

    return Pair(curve, curve, infinite_mass=rate * pair.infinite_mass)


def poisson_replace_one_gaussian(mu: float, rate: float) -> Pair:
    """((1-q) N(0) + q N(mu/2), (1-q) N(0) + q N(-mu/2)), unit variance: exact for Poisson, replace-one, Gaussian."""
    r = mu / 2
    log_k = math.log(rate) - r * r / 2

    def threshold(x: Array) -> Array:
        # Where the likelihood ratio equals e^x: k u^2 - (1-q)(e^x - 1) u - e^x k = 0 for u = exp(r * point).
        half = 0.5 * (1 - rate) * np.expm1(x) * math.exp(-log_k)
        magnitude = np.log(np.abs(half) + np.hypot(half, np.exp(x / 2)))
        return np.where(x >= 0, magnitude, x - magnitude) / r

    def tails(x: Array) -> Tails:
        t = threshold(np.clip(x, -700.0, 700.0))
        zero, plus, minus = ndtr(-t), ndtr(r - t), ndtr(-r - t)
        zero_c, plus_c, minus_c = ndtr(t), ndtr(t - r), ndtr(t + r)
        return Tails(
            (1 - rate) * zero + rate * plus, (1 - rate) * zero + rate * minus,
            (1 - rate) * zero_c + rate * plus_c, (1 - rate) * zero_c + rate * minus_c,
        )

    def curve(x: Array) -> Array:
        x = np.minimum(x, 700.0)
        t = tails(x)
        return np.maximum(t.p_above - np.exp(x) * t.q_above, 0.0)

    return Pair(curve, curve, tails)


def _inner_loss(x: Array, rate: float) -> Array:
    """log(1 + (e^x - 1)/rate) for x >= 0, without overflow."""
    return x - math.log(rate) + np.log1p(-(1 - rate) * np.exp(-x))


def _inner_loss_backwards(x: Array, rate: float) -> Array:
    """-log(1 - (1 - e^-x)/rate) for x >= 0, infinite from -log(1-rate) on."""
    inside = np.expm1(-x) / rate
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(inside > -1, -np.log1p(np.maximum(inside, -1.0)), np.inf)


def poisson_gaussian_rdp(noise_multiplier: float, rate: float, orders: Array) -> Array:
    """Renyi divergence of the Poisson-subsampled Gaussian under zero-out, at any orders > 1.

    Mironov, Talwar and Zhang 2019, arXiv:1908.10530: the direction with the record in the first place is the larger.
    Integer orders by the binomial sum, the others by quadrature of the same integral.
    """
    return np.array([_poisson_order(noise_multiplier, rate, float(a)) for a in np.atleast_1d(orders)])


# Binomial sums longer than this cost more than the quadrature that gives the same number.
_LONGEST_SUM = 4096


def _poisson_order(z: float, rate: float, order: float) -> float:
    if order == math.floor(order) and order <= _LONGEST_SUM:
        k = np.arange(order + 1)
        with np.errstate(divide="ignore"):
            log_rest = (order - k) * math.log1p(-rate) if rate < 1 else np.where(k == order, 0.0, -np.inf)
        terms = log_binomial(order, k) + k * math.log(rate) + log_rest + k * (k - 1) / (2 * z * z)
        return max(float(log_sum_exp(terms)), 0.0) / (order - 1)
    return _two_mixtures(z, order, (1 - rate, rate), (0.0, 1.0), (0.0, 0.0))


def poisson_replace_one_gaussian_rdp(noise_multiplier: float, rate: float, orders: Array) -> Array:
    """Renyi divergence of the exact pair of ``poisson_replace_one_gaussian``."""
    weights = (1 - rate, rate)
    return np.array([
        _two_mixtures(noise_multiplier, float(a), weights, (0.0, 0.5), (0.0, -0.5)) for a in np.atleast_1d(orders)
    ])


def _two_mixtures(
    z: float, order: float, weights: tuple[float, float], p_means: tuple[float, float], q_means: tuple[float, float]
) -> float:
    """(1/(order-1)) log of the integral of P^order Q^(1-order), by the trapezoid rule.

    The integrand is analytic in a strip of half-width about pi z^2 (in the units of the means), where the rule
    converges like exp(-2 pi * strip / step): the step below leaves far less than 1e-12.
    """
    step = min(0.05 * z, 0.2 * z * z)
    points = np.arange(-14 * z - 2, order + 14 * z + 2, step)
    p, q = _log_mixture(points, z, weights, p_means), _log_mixture(points, z, weights, q_means)
    log_integral = float(log_sum_exp(order * p + (1 - order) * q)) + math.log(step)
    return max(log_integral, 0.0) / (order - 1)


def _log_mixture(x: Array, z: float, weights: tuple[float, float], means: tuple[float, float]) -> Array:
    with np.errstate(divide="ignore"):
        parts = [math.log(w) - (x - m) ** 2 / (2 * z * z) if w > 0 else np.full_like(x, -np.inf)
                 for w, m in zip(weights, means, strict=True)]
    return np.logaddexp(*parts) - math.log(z * math.sqrt(2 * math.pi))


def without_replacement_rdp(inner_rdp: Curve, pure_epsilon: float, rate: float, orders: Array) -> Array:
    """Renyi divergence of a mechanism on a batch without replacement, under replace-one.

    Wang, Balle and Kasiviswanathan 2019, arXiv:1808.00087, Theorem 9, for integer orders; between integers
    (order - 1) times the divergence is convex, so the chord is a bound. ``inner_rdp`` gives the mechanism's own
    divergence at an array of orders, ``pure_epsilon`` its epsilon at delta 0 (infinite for Gaussian noise).
    """
    orders = np.atleast_1d(orders).astype(float)
    floors, ceilings = np.floor(orders), np.ceil(orders)
    wanted = np.unique(np.concatenate([floors, ceilings]))
    log_moments = {1.0: 0.0}
    if wanted[-1] > 1:
        log_terms = _without_replacement_terms(inner_rdp, pure_epsilon, rate, int(min(wanted[-1], _LONGEST_SUM)))
        for a in wanted[wanted > 1]:
            log_moments[float(a)] = _without_replacement_order(log_terms, a)
    low = np.array([log_moments[float(a)] for a in floors])
    high = np.array([log_moments[float(a)] for a in ceilings])
    share = orders - floors
    with np.errstate(invalid="ignore"):
        between = np.where(share > 0, (1 - share) * low + share * high, low)
    return between / (orders - 1)


def _without_replacement_terms(inner_rdp: Curve, pure: float, rate: float, longest: int) -> Array:
    """log of the factor of C(a, j) in the theorem's sum, for j = 2, ..., longest."""
    j = np.arange(2, longest + 1, dtype=float)
    divergence = inner_rdp(j)
    log_odds = math.log(math.expm1(pure)) if 0 < pure < 700 else (math.inf if pure > 0 else -math.inf)
    terms = j * math.log(rate) + (j - 1) * divergence + np.minimum(math.log(2), j * log_odds)
    if divergence[0] > 0:
        smooth = math.log(4) + float(np.log(-np.expm1(-divergence[0]))) + divergence[0]
        terms[0] = 2 * math.log(rate) + min(smooth, terms[0] - 2 * math.log(rate))
    return np.asarray(terms)


def _without_replacement_order(log_terms: Array, order: float) -> float:
    if order > len(log_terms) + 1:
        return math.inf
    j = np.arange(2, order + 1)
    total = log_binomial(order, j) + log_terms[: len(j)]
    return float(log_sum_exp(np.append(total, 0.0)))
