"""Composition of mechanisms known only by their (epsilon, delta): basic, advanced and optimal.

Basic and advanced are Dwork, Rothblum and Vadhan 2010; optimal is Kairouz, Oh and Viswanath 2015
(arXiv:1311.0776): ``count`` mechanisms that are each (epsilon0, delta0)-DP are exactly as leaky, at worst, as
``count`` randomised responses, and the privacy profile of those is a binomial sum.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import gammaln

from dptoolkit._validate import delta_value, nonnegative, whole
from dptoolkit.accounting._numeric import crossing, sum_up
from dptoolkit.types import Array

# All outcomes further than this many standard deviations from the mean together have probability below 1e-300.
_STANDARD_DEVIATIONS = 40.0
# The most outcomes that are summed one by one; more are summed in blocks.
_MOST_OUTCOMES = 2**20


def basic(epsilon0: float, count: int, delta0: float = 0.0) -> tuple[float, float]:
    """(count * epsilon0, count * delta0): epsilons and deltas add."""
    epsilon0, count = nonnegative("epsilon0", epsilon0), whole("count", count)
    total = sum_up([(count, delta_value(delta0, "delta0"))])
    return sum_up([(count, epsilon0)]), min(total, 1.0)


def advanced(epsilon0: float, count: int, delta: float, delta0: float = 0.0) -> float:
    """Epsilon of ``count`` mechanisms by advanced composition; the total delta is ``delta``.

    epsilon = sqrt(2 count log(1/slack)) epsilon0 + count epsilon0 (exp(epsilon0) - 1), with slack = delta -
    count delta0 > 0.
    """
    epsilon0, count, slack = _parts(epsilon0, count, delta, delta0)
    if count == 0 or epsilon0 == 0:
        return 0.0
    if slack <= 0 or epsilon0 > 700:
        return math.inf
    return math.sqrt(2 * count * math.log(1 / slack)) * epsilon0 + count * epsilon0 * math.expm1(epsilon0)


def optimal(epsilon0: float, count: int, delta: float, delta0: float = 0.0) -> float:
    """The smallest epsilon that holds for every ``count`` mechanisms that are (epsilon0, delta0)-DP.

    With delta0 > 0 the total delta is 1 - (1 - delta0)^count (1 - d), where d is the delta of the pure parts.
    """
    epsilon0, count = nonnegative("epsilon0", epsilon0), whole("count", count)
    delta, delta0 = delta_value(delta), delta_value(delta0, "delta0")
    if count == 0 or epsilon0 == 0 and delta0 == 0:
        return 0.0
    log_success = math.log1p(-delta) - count * math.log1p(-delta0)
    if log_success > 0:
        return math.inf
    pure_delta = -math.expm1(log_success)
    largest = sum_up([(count, epsilon0)])
    if pure_delta == 0 or math.isinf(largest):
        return largest
    losses, log_mass = _response_losses(epsilon0, count)
    if _pure_delta(losses, log_mass, 0.0) <= pure_delta:
        return 0.0
    return crossing(lambda e: _pure_delta(losses, log_mass, e) - pure_delta, 0.0, largest, relative=1e-13)[1]


def optimal_delta(epsilon0: float, count: int, epsilon: float, delta0: float = 0.0) -> float:
    """The delta of ``optimal`` at ``epsilon``."""
    epsilon0, count = nonnegative("epsilon0", epsilon0), whole("count", count)
    epsilon, delta0 = nonnegative("epsilon", epsilon), delta_value(delta0, "delta0")
    if count == 0:
        return 0.0
    if epsilon >= sum_up([(count, epsilon0)]):
        pure = 0.0
    elif math.isinf(epsilon0):
        return 1.0
    else:
        # Not 0 where it underflows: below the largest loss delta is positive.
        pure = max(_pure_delta(*_response_losses(epsilon0, count), epsilon), math.ulp(0.0))
    return -math.expm1(count * math.log1p(-delta0) + math.log1p(-pure)) if pure < 1 else 1.0


def _parts(epsilon0: float, count: int, delta: float, delta0: float) -> tuple[float, int, float]:
    epsilon0, count = nonnegative("epsilon0", epsilon0), whole("count", count)
    return epsilon0, count, delta_value(delta) - sum_up([(count, delta_value(delta0, "delta0"))])


def _response_losses(epsilon0: float, count: int) -> tuple[Array, Array]:
    """Losses and log masses that are never less than those of ``count`` randomised responses with epsilon0.

    Up to _MOST_OUTCOMES outcomes are listed one by one. More are put into blocks, each with the largest loss of its
    outcomes and with their number times their largest mass, so that 10^16 responses take no more memory than 10^8.
    Masses and losses are rounded upwards.
    """
    odds = math.exp(-epsilon0)
    lie, truth = odds / (1 + odds), 1 / (1 + odds)
    mean = count * lie
    spread = _STANDARD_DEVIATIONS * (math.sqrt(mean * truth) + 1.0) + _STANDARD_DEVIATIONS**2
    low, high = max(0, int(mean - spread)), min(count, int(mean + spread))
    block = (high - low) // _MOST_OUTCOMES + 1
    # Numbers of lies are counted from the mean, which keeps them exact: above 2^53 not every whole number is a float.
    centre = int(mean)
    starts: Array = float(block) * np.arange((high - low) // block + 1, dtype=float) + float(low - centre)
    ends = np.minimum(starts + float(block - 1), float(high - centre))
    # The mass rises up to the mode, which lies within one of the mean, and falls from there.
    heaviest: Array = np.maximum(starts, np.minimum(ends, 0.0))
    log_mass = _log_binomial_mass(count, centre, heaviest, lie, truth)
    if block > 1:
        log_mass = log_mass + (math.log(block) + 2.0 / (mean * truth))
    # Scaling up is the safe direction for losses above 0 only; no others are read, as epsilon is at least 0.
    return (float(count - 2 * centre) - 2 * starts) * (epsilon0 * (1 + 1e-15)), log_mass


def _log_binomial_mass(count: int, centre: int, offset: Array, lie: float, truth: float) -> Array:
    """log P(centre + offset lies among count), by Loader's saddle point: no difference of huge logarithms.

    log C(count, k) by gammaln has an error of log(count!) 2^-53, which is 2e-4 at 10^11. Here the error is a few
    units in the last place of the result and of the distance from the mean; a bound on it is added as a margin.
    """
    mean_lies, mean_truths = count * lie, count * truth
    lies, truths = float(centre) + offset, float(count - centre) - offset
    # The distance from the mean; the margin below includes the error of rounding it.
    away = offset + (centre - mean_lies)
    with np.errstate(divide="ignore", invalid="ignore"):
        exponent = _deviance(lies, mean_lies, away) + _deviance(truths, mean_truths, -away)
        shape = 0.5 * (math.log(count) - np.log(lies) - np.log(truths) - math.log(2 * math.pi))
        shape = shape + (_stirling(np.asarray(float(count))) - _stirling(lies) - _stirling(truths))
    inside = (lies > 0) & (truths > 0)
    log_mass = np.where(inside, shape, 0.0) - exponent
    far = np.abs(away)
    margin = 1e-14 + 4e-16 * np.minimum(exponent, 1e6) + 2e-15 * far * (1 + far / max(mean_lies, 1.0))
    return np.asarray(log_mass + margin)


def _deviance(x: Array, mean: float, away: Array) -> Array:
    """x log(x / mean) - (x - mean) for away = x - mean, without cancellation where x is close to the mean."""
    v = away / (x + mean)
    square, term = v * v, 2 * x * v
    series = away * v
    for k in range(3, 25, 2):
        term = term * square
        series = series + term / k
    with np.errstate(divide="ignore", invalid="ignore"):
        # A quotient keeps its digits near the mean; with a subnormal mean it overflows.
        logs = np.log(x / mean) if mean > 1e-290 else np.log(x) - np.log(mean)
        direct = np.where(x > 0, x * logs, 0.0) - away
    return np.asarray(np.where(np.abs(v) < 0.1, series, direct))


def _stirling(n: Array) -> Array:
    """log n! - log(sqrt(2 pi n) (n/e)^n) for n >= 1."""
    small = np.clip(n, 1.0, 16.0)
    direct = gammaln(small + 1) - (small + 0.5) * np.log(small) + small - 0.5 * math.log(2 * math.pi)
    large = np.maximum(n, 16.0)
    square = large * large
    series = (1 / 12 - (1 / 360 - (1 / 1260 - (1 / 1680 - 1 / 1188 / square) / square) / square) / square) / large
    return np.asarray(np.where(n < 16, direct, series))


def _pure_delta(losses: Array, log_mass: Array, epsilon: float) -> float:
    above = losses > epsilon
    return min(float(np.sum(np.exp(log_mass[above]) * -np.expm1(epsilon - losses[above]))) * (1 + 1e-14), 1.0)
