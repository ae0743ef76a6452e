"""Zero-concentrated differential privacy: rho, and its conversions to (epsilon, delta).

A mechanism is rho-zCDP if its Renyi divergence of every order a > 1 is at most rho * a (Bun and Steinke 2016,
arXiv:1605.02065). The tight conversion is Canonne, Kamath and Steinke 2020, arXiv:2004.00010, Corollary 13:

    delta = min over a > 1 of  exp((a-1)(a rho - epsilon)) (1 - 1/a)^a / (a-1).
"""

from __future__ import annotations

import math

import numpy as np

from dptoolkit._validate import delta_value, nonnegative
from dptoolkit.accounting._numeric import crossing, expand, zoom_minimum
from dptoolkit.types import Array

# log(order - 1): far enough on both sides for epsilon from 1e-8 to 1e8.
_LOW, _HIGH = -25.0, 45.0


def gaussian(noise_multiplier: float) -> float:
    """rho of one Gaussian release: 1 / (2 noise_multiplier^2)."""
    z = nonnegative("noise_multiplier", noise_multiplier)
    return math.inf if z == 0 else _half_square(1 / z)


def discrete_gaussian(sigma: float, sensitivity: int) -> float:
    """rho of integer noise: sensitivity^2 / (2 sigma^2) (Canonne, Kamath and Steinke 2020, Theorem 4)."""
    return 0.0 if math.isinf(sigma) else max(gaussian(sigma / sensitivity), math.ulp(0.0))


def pure(epsilon: float) -> float:
    """rho of an epsilon-DP mechanism: epsilon^2 / 2 (Bun and Steinke 2016, Proposition 1.4)."""
    return _half_square(nonnegative("epsilon", epsilon))


def _half_square(value: float) -> float:
    """value^2 / 2, infinite where it overflows and positive where it underflows: 0 is for equal distributions."""
    return 0.0 if value == 0 else max(0.5 * value * value, math.ulp(0.0))


def log_delta_at(order_rdp: Array, order_minus_1: Array, epsilon: float) -> Array:
    """log of the delta that a Renyi divergence at each order proves at ``epsilon``."""
    m = order_minus_1
    return m * (order_rdp - epsilon) + (m + 1) * (np.log(m) - np.log1p(m)) - np.log(m)


def epsilon_at(order_rdp: Array, order_minus_1: Array, delta: float) -> Array:
    """The epsilon that a Renyi divergence at each order proves at ``delta``."""
    m = order_minus_1
    with np.errstate(over="ignore", invalid="ignore"):
        return order_rdp - (math.log(delta) + np.log1p(m)) / m + np.log(m) - np.log1p(m)


def to_epsilon(rho: float, delta: float) -> float:
    """The smallest epsilon that rho-zCDP proves at ``delta``, by the tight conversion."""
    rho, delta = nonnegative("rho", rho), delta_value(delta)
    if rho == 0:
        return 0.0
    if delta == 0 or math.isinf(rho):
        return math.inf

    def bound(log_minus_1: Array) -> Array:
        m = np.exp(log_minus_1)
        return epsilon_at(rho * (m + 1), m, delta)

    return max(zoom_minimum(bound, _LOW, _HIGH, points=129)[1], 0.0)


def to_delta(rho: float, epsilon: float) -> float:
    """The smallest delta that rho-zCDP proves at ``epsilon``, by the tight conversion."""
    rho, epsilon = nonnegative("rho", rho), nonnegative("epsilon", epsilon)
    if rho == 0 or math.isinf(epsilon):
        return 0.0
    if math.isinf(rho):
        return 1.0

    def bound(log_minus_1: Array) -> Array:
        m = np.exp(log_minus_1)
        return log_delta_at(rho * (m + 1), m, epsilon)

    # Not 0 where it underflows: no rho above 0 proves that.
    return max(math.exp(min(zoom_minimum(bound, _LOW, _HIGH, points=129)[1], 0.0)), math.ulp(0.0))


def from_epsilon(epsilon: float, delta: float) -> float:
    """The largest rho for which rho-zCDP proves (epsilon, delta), from the private side."""
    epsilon, delta = nonnegative("epsilon", epsilon), delta_value(delta)
    if math.isinf(epsilon):
        return math.inf
    if delta == 0:
        return 0.0

    def excess(inverse: float) -> float:
        return to_epsilon(1 / inverse, delta) - epsilon

    low = 1e-12
    if excess(low) <= 0:
        return 1 / low
    high = expand(excess, 1e-3, 4.0, 1e300)
    return 0.0 if high is None else 1 / crossing(excess, low, high, relative=1e-12)[1]


def from_epsilon_loose(epsilon: float, delta: float) -> float:
    """The rho that Bun and Steinke's conversion maps to (epsilon, delta); for comparison."""
    epsilon, delta = nonnegative("epsilon", epsilon), delta_value(delta)
    if delta == 0:
        return 0.0
    log_inverse = math.log(1 / delta)
    return (math.sqrt(log_inverse + epsilon) - math.sqrt(log_inverse)) ** 2
