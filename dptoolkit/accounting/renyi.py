"""Renyi divergences of single mechanisms at given orders > 1: formulas, with nothing of events or counts.

Mironov 2017, arXiv:1702.07476. The accountant that composes and converts them is ``rdp``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dptoolkit._validate import invalid, nonnegative
from dptoolkit.accounting import selection, zcdp
from dptoolkit.accounting._numeric import log_sum_exp
from dptoolkit.types import Array


def gaussian(noise_multiplier: float, orders: Array) -> Array:
    """order / (2 noise_multiplier^2)."""
    return order_array(orders) * zcdp.gaussian(noise_multiplier)


def laplace(noise_multiplier: float, orders: Array) -> Array:
    """Laplace noise of scale noise_multiplier per L1 sensitivity, exactly (Mironov 2017, Table II)."""
    a, z = order_array(orders), nonnegative("noise_multiplier", noise_multiplier)
    if z == 0 or math.isinf(z):
        return np.full_like(a, math.inf if z == 0 else 0.0)
    e = 1 / z
    terms = np.stack([np.log(a / (2 * a - 1)) + (a - 1) * e, np.log((a - 1) / (2 * a - 1)) - a * e])
    return _at_most(np.logaddexp(terms[0], terms[1]) / (a - 1), e, a)


def two_sided_geometric(epsilon: float, sensitivity: int, orders: Array) -> Array:
    """Integer two-sided geometric noise: exact sum over the outcomes between the two centres."""
    a, e = order_array(orders), nonnegative("epsilon", epsilon)
    if e == 0 or math.isinf(e):
        return np.full_like(a, e)
    step = e / sensitivity
    log_p_zero = -math.log1p(math.exp(-step))
    ends = np.logaddexp(log_p_zero + (a - 1) * e, log_p_zero - a * e)
    if sensitivity == 1:
        return _at_most(ends / (a - 1), e, a)
    # Between the centres, k = 1 .. D-1: mass c q^k, loss e - 2 k step; a geometric series in k.
    log_c = math.log(math.tanh(step / 2))
    slope = -step * (1 + 2 * (a - 1))
    log_series = slope + np.log(np.expm1((sensitivity - 1) * slope) / np.expm1(slope))
    return _at_most(np.logaddexp(ends, log_c + (a - 1) * e + log_series) / (a - 1), e, a)


# From this sigma on the sum over a shifted lattice differs from the unshifted one by less than exp(-1000).
_SMOOTH_SIGMA = 10.0


def discrete_gaussian(sigma: float, sensitivity: int, orders: Array) -> Array:
    """Integer Gaussian noise, exactly: that of the Gaussian, or less where order * sensitivity is no integer.

    Completing the square, the moment is exp(a (a-1) rho) times the sum of exp(-(k+c)^2/(2 sigma^2)) over the one with
    c = 0, c the distance of a * sensitivity from the integers; that ratio is at most 1 (Canonne, Kamath and Steinke
    2020, arXiv:2004.00010, Fact 19).
    """
    a, rho = order_array(orders), zcdp.discrete_gaussian(sigma, sensitivity)
    if sigma >= _SMOOTH_SIGMA or math.isinf(rho):
        return a * rho
    # Closer to the integers by what rounding may have added: a larger moment.
    product = a * sensitivity
    distance = np.maximum(np.abs(product - np.round(product)) - 4e-16 * product, 0.0)
    k = np.arange(-math.ceil(39 * sigma) - 1, math.ceil(39 * sigma) + 2, dtype=float)
    logs = [log_sum_exp(-0.5 * ((k + c[:, None]) / sigma) ** 2, axis=1) for c in (distance, np.zeros(1))]
    log_ratio = (logs[0] - logs[1] + 4e-16 * (2 + np.abs(logs[0]))) / (a - 1)
    return np.maximum(a * rho + np.minimum(log_ratio, 0.0), np.finfo(float).tiny)


def randomized_response(epsilon: float, orders: Array, categories: int = 2) -> Array:
    """Randomised response among ``categories`` answers; two answers are the worst epsilon-DP mechanism."""
    a, e = order_array(orders), nonnegative("epsilon", epsilon)
    if e == 0 or math.isinf(e):
        return np.full_like(a, e)
    rest = categories - 2
    terms = [a * e, (1 - a) * e] + ([np.full_like(a, math.log(rest))] if rest else [])
    log_total = e + math.log1p((1 + rest) * math.exp(-e))
    total = terms[0]
    for term in terms[1:]:
        total = np.logaddexp(total, term)
    return _at_most((total - log_total) / (a - 1), e, a)


def exponential_mechanism(epsilon: float, orders: Array) -> Array:
    """The exponential mechanism (Gumbel noisy-max), as a bounded-range mechanism: at most order epsilon^2/8."""
    return selection.bounded_range_rdp(nonnegative("epsilon", epsilon), order_array(orders))


def order_array(orders: Any) -> Array:
    """Renyi orders as an array; all must be above 1."""
    a = np.atleast_1d(np.asarray(orders, dtype=float))
    if not np.all(a > 1):
        raise invalid(
            "orders",
            np.asarray(orders).tolist(),
            "> 1",
            "For the KL divergence, which has order 1, use 1 + 1e-6.",
        )
    return a


def _at_most(value: Array, epsilon: float, orders: Array) -> Array:
    """Bounds that hold for every epsilon-DP mechanism: they also absorb round-off where terms cancel."""
    floor = np.maximum(value + 4e-16 / (orders - 1), 0.0)
    with np.errstate(over="ignore"):
        least = np.minimum(np.minimum(floor, epsilon), orders * zcdp.pure(epsilon))
    # Not 0 where it underflows, since 0 would mean that the two distributions are equal.
    return np.maximum(least, np.finfo(float).tiny)
