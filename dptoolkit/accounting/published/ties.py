"""Laplace noisy-max on tied scores, exactly: the pair of neighbours behind the lower bounds for selections.

Two groups of ``tied`` candidates have equal scores up to a gap; the data set decides which group is ahead.
Every round then reports the favoured group with the same probability, so rounds are independent randomised
responses, and their composition is a binomial sum.
"""

from __future__ import annotations

import math

import numpy as np

from dptoolkit._validate import nonnegative, whole
from dptoolkit.accounting.events import RandomizedResponse

_NODES = 64


def favoured(tied: int, gap: float) -> float:
    """P(the group ahead by ``gap`` noise scales wins), ``tied`` candidates a group, Laplace noise.

    The density of the largest of the group ahead times the distribution of the largest of the other,
    integrated over the three pieces on which both are products of exponentials. Gauss-Legendre is exact on
    the first for tied <= 64.
    """
    tied, gap = whole("tied", tied, low=1), nonnegative("gap", gap)
    node, weight = np.polynomial.legendre.leggauss(_NODES)
    unit, weight = (node + 1) / 2, weight / 2
    u, behind = unit, math.exp(-gap) / 2
    outer = tied / 2 * np.sum(weight * (1 - u / 2) ** (tied - 1) * (1 - behind * u) ** tied)
    x = gap * unit
    middle = gap * tied * np.sum(weight * (np.exp(-x) / 2) ** tied * (1 - np.exp(x - gap) / 2) ** tied)
    return float(outer + middle + 0.5 * 4.0**-tied * math.exp(-tied * gap))


def tie_pair(tied: int, epsilon: float) -> RandomizedResponse:
    """What one report-noisy-max with Laplace noise gives away on the tie pair, epsilon = range / scale.

    One data set puts a group ahead by half the range and its neighbour puts the other group ahead by as much.
    """
    if math.isinf(nonnegative("epsilon", epsilon)):
        return RandomizedResponse(math.inf)
    ahead = favoured(tied, epsilon / 2)
    return RandomizedResponse(math.log(ahead / (1 - ahead)) if ahead < 1 else math.inf)
