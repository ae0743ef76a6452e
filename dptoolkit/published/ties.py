"""Laplace noisy-max on tied scores, exactly: the pair of neighbours behind the lower bounds for selections.

Two groups of ``tied`` candidates have equal scores up to a gap; the data set decides which group is ahead.
Every round then reports the favoured group with the same probability, so rounds are independent randomised
responses, and their composition is a binomial sum. Where candidates are left that no record moves, a round may also
say nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dptoolkit._validate import nonnegative, whole
from dptoolkit.accounting._numeric import crossing
from dptoolkit.accounting.events import Event, RandomizedResponse
from dptoolkit.types import Array

# Nodes of the Gauss-Legendre quadrature on every piece.
_NODES = 64
# The probability of Laplace noise beyond this many scales is negligible.
_FAR = 40.0
# An upper bound on the error of the FFT, subtracted so that a lower bound stays one.
_TRANSFORM_ERROR = 1e-12


def favoured(tied: int, gap: float) -> float:
    """P(the group ahead by ``gap`` noise scales wins), ``tied`` candidates a group, Laplace noise.

    The density of the largest of the group ahead times the distribution of the largest of the other,
    integrated over the three pieces on which both are products of exponentials. Gauss-Legendre is exact on
    the first for tied <= 64.
    """
    tied, gap = whole("tied", tied, low=1), nonnegative("gap", gap)
    node, width = np.polynomial.legendre.leggauss(_NODES)
    unit, weight = (node + 1) / 2, width / 2
    u, behind = unit, math.exp(-gap) / 2
    outer = tied / 2 * np.sum(weight * (1 - u / 2) ** (tied - 1) * (1 - behind * u) ** tied)
    x = gap * unit
    middle = gap * tied * np.sum(weight * (np.exp(-x) / 2) ** tied * (1 - np.exp(x - gap) / 2) ** tied)
    return float(outer + middle + 0.5 * 4.0**-tied * math.exp(-tied * gap))


def tie_pair(tied: int, epsilon: float) -> RandomizedResponse:
    """The event of one report-noisy-max with Laplace noise on the tie pair, for epsilon = range / scale.

    One data set puts a group ahead by half the range and its neighbour puts the other group ahead by as much.
    """
    if math.isinf(nonnegative("epsilon", epsilon)):
        return RandomizedResponse(math.inf)
    ahead = favoured(tied, epsilon / 2)
    return RandomizedResponse(math.log(ahead / (1 - ahead)) if ahead < 1 else math.inf)


@dataclass(frozen=True)
class PartialResponse(Event):
    """Randomised response of two answers that is given with probability ``answered``, else nothing is said.

    It describes an explicit pair, where some candidates do not depend on the record: it is for lower bounds, and no
    accountant takes it.
    """

    epsilon: float
    answered: float


def partial_epsilon(event: PartialResponse, count: int, delta: float) -> float:
    """Epsilon at ``delta`` of ``count`` such responses: the law of (answers for) - (answers against), exactly."""
    log_odds = event.epsilon
    if math.isinf(log_odds) or delta == 0:
        return count * log_odds
    truth = event.answered / (1 + math.exp(-log_odds))
    size = 1 << (2 * count + 1).bit_length()
    steps = np.zeros(size)
    steps[[0, 1, -1]] = 1 - event.answered, truth, event.answered - truth
    mass = np.fft.irfft(np.fft.rfft(steps) ** count, size)[: count + 1]
    losses = log_odds * np.arange(count + 1)

    def excess(epsilon: float) -> float:
        above = losses > epsilon
        # Reduced by a bound on the error of the transform.
        return float(np.sum(mass[above] * -np.expm1(epsilon - losses[above]))) - _TRANSFORM_ERROR - delta

    if excess(0.0) <= 0:
        return 0.0
    return crossing(excess, 0.0, float(losses[-1]), relative=1e-12)[0]


def winners(scores: Array, times: Array) -> Array:
    """P(one candidate of each group has the largest score + Laplace(1) noise), groups of ``times`` equal scores."""
    node, weight = np.polynomial.legendre.leggauss(_NODES)
    ends = np.unique(np.concatenate([scores, scores.min() - _FAR * np.array([1, 0.5, 0.25]), scores.max() + _FAR * (
        np.arange(1, 9) / 8)]))  # fmt: skip
    half = np.diff(ends)[:, None] / 2
    x = (ends[:-1, None] + half * (1 + node)).ravel()[:, None] - scores
    falling = 0.5 * np.exp(-np.abs(x))
    below = np.where(x < 0, falling, 1 - falling)
    density = falling / below * np.prod(below**times, axis=1, keepdims=True)
    return np.asarray((half * weight).ravel() @ density)


def column_pair(classes: int, epsilon: float, others: float) -> PartialResponse:
    """The best tie pair known for one column of a cross-entropy gradient, epsilon = range / scale.

    The entries of a column sum to zero, over the classes, for every record. The record moves classes 1 and 2 against
    each other by half the range; other records, worth up to ``others`` noise scales, may put both ahead of the rest.
    The remaining classes then lie the other way, 2 / (classes - 2) as far, and their opposite vertices come forward:
    with fewer than five classes that does not help, and it needs many records.
    """
    whole("classes", classes, low=3)
    if math.isinf(epsilon):
        return PartialResponse(math.inf, 1.0)
    pairs = [_column(classes, epsilon, ahead) for ahead in np.linspace(0.0, min(others, _FAR / 2), 9)]
    return max(pairs, key=lambda pair: pair.answered * math.tanh(pair.epsilon / 2) ** 2)


def _column(classes: int, epsilon: float, ahead: float) -> PartialResponse:
    shift, rest = epsilon / 4, 2 * ahead / (classes - 2)
    scores = np.array([ahead + shift, shift - ahead, ahead - shift, -ahead - shift, rest, -rest])
    chances = winners(scores, np.array([1, 1, 1, 1, classes - 2, classes - 2]))
    truth, lie = float(chances[0] + chances[1]), float(chances[2] + chances[3])
    return PartialResponse(math.log(truth / lie), truth + lie)
