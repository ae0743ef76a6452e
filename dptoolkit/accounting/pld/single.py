"""One release of one pair: its divergence is the answer, without a grid."""

from __future__ import annotations

import math

import numpy as np

from dptoolkit.accounting.pld.grid import REACHES
from dptoolkit.accounting.pld.trees import Node
from dptoolkit.accounting.profiles import DominatingPair

# Relative error of the divergences of pairs: the largest found against sums in 60 digits is 3e-12.
_ROUND_OFF = 1e-11
# Points of one look between two losses. Every look makes the interval this much narrower.
_POINTS = 33


def single(nodes: tuple[Node, ...]) -> DominatingPair | None:
    """The pair of a tree that consists of one release of it, else None."""
    only = nodes[0] if len(nodes) == 1 else None
    return only.pair if only is not None and only.count == 1 else None


def delta(pair: DominatingPair, epsilon: float) -> float:
    """The divergence at ``epsilon``, never 0: a divergence of Gaussian noise may underflow."""
    value = float(pair.above(np.array([epsilon]))[0])
    return min(max(value * (1 + _ROUND_OFF), math.ulp(0.0)), 1.0)


def epsilon(pair: DominatingPair, delta: float) -> float:
    """The smallest epsilon found whose divergence is at most ``delta``; infinite beyond the losses that are looked at.

    The divergence falls as epsilon grows, so ever narrower intervals enclose the answer. Their upper end is returned,
    at which the divergence itself has been looked at.
    """
    losses = np.append(0.0, REACHES)
    while True:
        kept = np.flatnonzero(pair.above(losses) * (1 + _ROUND_OFF) <= delta)
        if len(kept) == 0:
            return math.inf
        low, high = float(losses[max(kept[0] - 1, 0)]), float(losses[kept[0]])
        if high - low <= 2 * math.ulp(high):
            return high
        losses = np.append(np.linspace(low, high, _POINTS)[:-1], high)
