"""Exact probabilities of noisy selections between two groups of equal candidates, and the epsilon that they attain.

No sampling is needed for one selection, for independent rounds of it, or for one that decides where Gaussian noise is
seen. Pairs are chosen by these numbers, and their ``reach`` and their tests are computed from them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.special import expit, log_expit

from dptoolkit.accounting import gaussian
from dptoolkit.types import Array

# A larger group is treated as one of this size: the odds have converged, and the quadrature would get expensive.
_LARGEST_GROUP = 400


@lru_cache
def _quadrature(count: int) -> tuple[Array, Array]:
    """Gauss-Legendre on [0, 1], exact for the powers that ``count`` candidates make."""
    nodes, weights = np.polynomial.legendre.leggauss(count // 2 + 40)
    return (nodes + 1) / 2, weights / 2


def favoured_wins(noise: str, gap: float, favoured: int, others: int) -> float:
    """P(the noisy maximum is one of ``favoured`` equal candidates that lie ``gap`` noise scales above ``others``).

    With F the noise's distribution function, the largest noise among the favoured is below F^-1(v) with probability
    v^favoured, and wins from there with probability F(F^-1(v) + gap)^others, which has kinks where either argument of F
    is 0.
    """
    if noise == "gumbel":
        return float(expit(gap + math.log(favoured / others)))
    kinks = sorted([0.0, _below(noise, 0.0), _below(noise, -gap), 1.0])
    total, (nodes, weights) = 0.0, _quadrature(favoured + others)
    for low, high in zip(kinks[:-1], kinks[1:], strict=True):
        v = low + (high - low) * nodes
        integrand = favoured * v ** (favoured - 1) * _distribution(noise, _quantile(noise, v) + gap) ** others
        total += (high - low) * float(weights @ integrand)
    return total


def _distribution(noise: str, x: Array) -> Array:
    if noise == "exponential":
        return np.asarray(-np.expm1(-np.maximum(x, 0.0)))
    tail = np.exp(-np.abs(x)) / 2
    return np.where(x < 0, tail, 1 - tail)


def _below(noise: str, x: float) -> float:
    return float(_distribution(noise, np.array(x)))


def _quantile(noise: str, p: Array) -> Array:
    if noise == "exponential":
        return np.asarray(-np.log1p(-p))
    return np.where(p < 0.5, np.log(2 * np.minimum(p, 0.5)), -np.log(2 * np.minimum(1 - p, 0.5)))


class LogOdds:
    """gap -> log odds that the first of two groups of ``size`` candidates wins, for arrays of gaps.

    It is exact for Gumbel noise. For other noise it is read from a table and continued linearly beyond its ends, where
    the odds are exponential.
    """

    def __init__(self, noise: str, size: int) -> None:
        self._table: tuple[Array, Array] | None = None
        if noise != "gumbel":
            size = min(size, _LARGEST_GROUP)
            gaps = np.linspace(0.0, 12.0, 481, dtype=np.float64)
            lose = np.array([favoured_wins(noise, -gap, size, size) for gap in gaps])
            self._table = gaps, np.log1p(-lose) - np.log(lose)

    def __call__(self, gap: Array) -> Array:
        if self._table is None:
            return gap
        gaps, odds = self._table
        size = np.abs(gap)
        beyond = np.maximum(size - gaps[-1], 0.0)
        return np.asarray(np.sign(gap) * (np.interp(size, gaps, odds) + beyond))


def rounds_epsilon(first: float, second: float, count: int, delta: float) -> float:
    """Epsilon at ``delta`` of ``count`` independent rounds with log odds ``first`` or ``second``: exact."""
    return max(_epsilon(first, second, count, delta), _epsilon(second, first, count, delta))


def _epsilon(first: float, second: float, count: int, delta: float) -> float:
    from scipy import optimize

    log_p, log_q = (_log_binomial(odds, count) for odds in (first, second))
    loss = log_p - log_q

    def excess(epsilon: float) -> float:
        over = loss > epsilon
        return float(np.sum(np.exp(log_p[over]) * -np.expm1(epsilon - loss[over]))) - delta

    return float(optimize.brentq(excess, 0.0, loss.max())) if excess(0.0) > 0 else 0.0


def rounds_advantage(first: float, second: float, count: int) -> float:
    """Total variation between ``count`` rounds with log odds ``first`` and ``second``."""
    return float(np.abs(np.exp(_log_binomial(first, count)) - np.exp(_log_binomial(second, count))).sum() / 2)


def _log_binomial(odds: float, count: int) -> Array:
    from scipy import stats

    k = np.arange(count + 1)
    choose = stats.binom.logpmf(k, count, 0.5) + count * math.log(2)
    return np.asarray(choose + k * log_expit(odds) + (count - k) * log_expit(-odds))


class Outcome(NamedTuple):
    """Equal outcomes of a choice: how many, the log probability of one on each dataset, and what is seen after it.

    That is a Gaussian with means at this ``distance``, in standard deviations.
    """

    number: int
    first: float
    second: float
    distance: float


def outcomes_epsilon(outcomes: Sequence[Outcome], delta: float) -> float:
    """Epsilon at ``delta`` of a choice and of the Gaussian that follows it, in both directions: exact."""
    swapped = [Outcome(k.number, k.second, k.first, k.distance) for k in outcomes]
    return max(_outcomes_epsilon(outcomes, delta), _outcomes_epsilon(swapped, delta))


def _outcomes_epsilon(outcomes: Sequence[Outcome], delta: float) -> float:
    from scipy import optimize

    def excess(epsilon: float) -> float:
        shown = (k.number * math.exp(k.first) * _above(epsilon - k.first + k.second, k.distance) for k in outcomes)
        return sum(shown) - delta

    if excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        high *= 2
    return float(optimize.brentq(excess, 0.0, high))


def _above(epsilon: float, distance: float) -> float:
    """The delta at ``epsilon`` of two Gaussians at a distance, also for an epsilon below 0."""
    if distance == 0:
        return max(-math.expm1(epsilon), 0.0)
    # delta(-e) = 1 - exp(-e) + exp(-e) delta(e).
    if epsilon < 0:
        return -math.expm1(epsilon) + math.exp(epsilon) * gaussian.delta(distance, -epsilon)
    return gaussian.delta(distance, epsilon)


def threshold_epsilon(scores: Array, log_first: Array, log_second: Array, delta: float, least: int) -> float:
    """Epsilon at ``delta`` of the best test "score above a threshold", from weighted draws of the scores.

    ``log_first`` and ``log_second`` are log (probability in that world / probability with which it was drawn).
    At least ``least`` draws lie above a threshold, so that its estimate can be trusted.
    """
    order = np.argsort(-scores, kind="stable")
    above_first = np.cumsum(np.exp(log_first[order])) / len(scores)
    above_second = np.cumsum(np.exp(log_second[order])) / len(scores)
    # Equal scores must all lie on the same side of a threshold.
    ends = np.flatnonzero(np.append(np.diff(scores[order]) != 0, True))
    ends = ends[ends >= least - 1]
    gain = above_first[ends] - delta
    with np.errstate(divide="ignore", invalid="ignore"):
        epsilons = np.where(gain > 0, np.log(gain / above_second[ends]), 0.0)
    return float(max(epsilons.max(initial=0.0), 0.0))
