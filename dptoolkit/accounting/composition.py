"""Composition of mechanisms known only by their (epsilon, delta): basic, advanced and optimal.

Basic and advanced are Dwork, Rothblum and Vadhan 2010; optimal is Kairouz, Oh and Viswanath 2015
(arXiv:1311.0776): ``count`` mechanisms that are each (epsilon0, delta0)-DP are exactly as leaky, at worst, as
``count`` randomised responses, and the privacy profile of those is a binomial sum.
"""

from __future__ import annotations

import math

import numpy as np

from dptoolkit._validate import delta_value, nonnegative, whole
from dptoolkit.accounting._numeric import Array, crossing, log_binomial
from dptoolkit.errors import UnsupportedEvent

# Outcomes further than this many standard deviations from the mean weigh less than 1e-300 together.
_STANDARD_DEVIATIONS = 40.0
# Values of the loss that are kept in memory at once, some hundred megabytes.
_MOST_LOSSES = 2**24


def basic(epsilon0: float, count: int, delta0: float = 0.0) -> tuple[float, float]:
    """(count * epsilon0, count * delta0): epsilons and deltas add."""
    epsilon0, count = nonnegative("epsilon0", epsilon0), whole("count", count)
    total = count * delta_value(delta0, "delta0")
    return (count * epsilon0 if count else 0.0), min(total, 1.0)


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
    return (
        math.sqrt(2 * count * math.log(1 / slack)) * epsilon0
        + count * epsilon0 * math.expm1(epsilon0)
    )


def optimal(epsilon0: float, count: int, delta: float, delta0: float = 0.0) -> float:
    """The smallest epsilon that holds for every ``count`` mechanisms that are (epsilon0, delta0)-DP.

    With delta0 > 0 the total delta is 1 - (1 - delta0)^count (1 - d), where d is the delta of the pure parts.
    """
    epsilon0, count = nonnegative("epsilon0", epsilon0), whole("count", count)
    delta, delta0 = delta_value(delta), delta_value(delta0, "delta0")
    if count == 0 or epsilon0 == 0 and delta0 == 0:
        return 0.0
    log_kept = math.log1p(-delta) - count * math.log1p(-delta0)
    if log_kept > 0:
        return math.inf
    pure_delta = -math.expm1(log_kept)
    largest = count * epsilon0
    if pure_delta == 0 or math.isinf(largest):
        return largest
    losses, log_mass = _response_losses(epsilon0, count)
    if _pure_delta(losses, log_mass, 0.0) <= pure_delta:
        return 0.0
    return crossing(
        lambda e: _pure_delta(losses, log_mass, e) - pure_delta, 0.0, largest, relative=1e-13
    )[1]


def optimal_delta(epsilon0: float, count: int, epsilon: float, delta0: float = 0.0) -> float:
    """The delta of ``optimal`` at ``epsilon``."""
    epsilon0, count = nonnegative("epsilon0", epsilon0), whole("count", count)
    epsilon, delta0 = nonnegative("epsilon", epsilon), delta_value(delta0, "delta0")
    if count == 0:
        return 0.0
    if epsilon >= count * epsilon0:
        pure = 0.0
    elif math.isinf(epsilon0):
        return 1.0
    else:
        pure = _pure_delta(*_response_losses(epsilon0, count), epsilon)
    return -math.expm1(count * math.log1p(-delta0) + math.log1p(-pure)) if pure < 1 else 1.0


def _parts(
    epsilon0: float, count: int, delta: float, delta0: float
) -> tuple[float, int, float]:
    epsilon0, count = nonnegative("epsilon0", epsilon0), whole("count", count)
    return epsilon0, count, delta_value(delta) - count * delta_value(delta0, "delta0")


def _response_losses(epsilon0: float, count: int) -> tuple[Array, Array]:
    """Loss values and log probabilities of ``count`` randomised responses with parameter epsilon0."""
    log_truth = -math.log1p(math.exp(-epsilon0)) if epsilon0 < 700 else 0.0
    log_lie = log_truth - epsilon0
    lie = math.exp(log_lie)
    mean = count * lie
    spread = _STANDARD_DEVIATIONS * (math.sqrt(count * lie * (1 - lie)) + 1.0) + _STANDARD_DEVIATIONS**2
    first, last = max(0, int(mean - spread)), min(count, int(mean + spread))
    if last - first > _MOST_LOSSES:
        raise UnsupportedEvent(
            f"count={count}: must be small enough for method 'optimal', which needs {last - first:,} values here and "
            f"takes at most {_MOST_LOSSES:,}. Choose another method, for example 'zcdp'."
        )
    lies = np.arange(first, last + 1, dtype=float)
    log_mass = log_binomial(count, lies) + lies * log_lie + (count - lies) * log_truth
    return (count - 2 * lies) * epsilon0, log_mass


def _pure_delta(losses: Array, log_mass: Array, epsilon: float) -> float:
    above = losses > epsilon
    return float(np.sum(np.exp(log_mass[above]) * -np.expm1(epsilon - losses[above])))
