"""Mixtures of Gaussians against one Gaussian: shifts that are drawn at random and kept secret."""

from __future__ import annotations

import math

import numpy as np

from dptoolkit.accounting.profiles import DominatingPair, identical, non_private
from dptoolkit.accounting.profiles import gaussian as gaussian_pair
from dptoolkit.accounting.sampling import poisson_zero_out, shifted, shifted_rdp
from dptoolkit.types import Array


def gaussian_mixture(shifts: Array, probabilities: Array) -> DominatingPair:
    """(sum_i p_i N(c_i), N(0)) of shifts c_i >= 0, unit variance: both orders of the pair, exactly."""
    shifts, weights, none = _merged_shifts(shifts, probabilities)
    some = _share_above(weights, none)
    if len(shifts) == 0:
        return identical()
    if len(shifts) == 1:
        return poisson_zero_out(gaussian_pair(float(shifts[0])), some)
    if math.isinf(float(shifts[-1]) ** 2):
        return non_private(some)
    log_w = np.log(weights)
    error = 1e-15 * (2 + np.abs(log_w))
    # The logarithm of 0 is a number here, so that 0 times it is 0.
    return shifted(shifts, log_w + error, log_w - error, some, math.log(none) if none > 0 else -1e300)


def _merged_shifts(shifts: Array, probabilities: Array) -> tuple[Array, Array, float]:
    """Different positive shifts in order with their probabilities, and the probability of shift 0."""
    different, place = np.unique(shifts, return_inverse=True)
    weights = np.array([math.fsum(probabilities[place == i]) for i in range(len(different))])
    used = (different > 0) & (weights > 0)
    return different[used], weights[used], math.fsum(weights[different == 0])


def _share_above(weights: Array, none: float) -> float:
    """The probability of a positive shift, from the side that does not cancel."""
    return 1.0 if none == 0 else min(math.fsum(weights), 1.0)


def mixture_rdp(shifts: Array, probabilities: Array, orders: Array) -> Array:
    """Renyi divergence of a bound on ``gaussian_mixture``; see ``shifted_rdp``."""
    a = np.atleast_1d(np.asarray(orders, dtype=float))
    shifts, weights, _ = _merged_shifts(shifts, probabilities)
    return shifted_rdp(shifts, np.log(weights) + 1e-15 * (2 + np.abs(np.log(weights))), a) if len(shifts) else 0 * a
