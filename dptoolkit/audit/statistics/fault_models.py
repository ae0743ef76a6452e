"""Planted faults: the distributions of an attacker's score on the two datasets if a mechanism's noise is too small.

The power of a test is computed against them, so it needs no mechanism and no data.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from dptoolkit.types import Array

Bits = NDArray[np.int8]
# The epsilons at which a profile is evaluated to make two laws of it, in units of its largest epsilon.
_POINTS = np.linspace(0.0, 1.0, 17)


class Worlds(Protocol):
    """The laws of a score in the second world (bit 0) and in the first (bit 1), where it tends to be larger."""

    def draw(self, bits: Bits, rng: np.random.Generator) -> Array:
        """Scores of trials with these secret bits."""

    def below(self, edges: Array) -> Array:
        """(2, edges): P(score < edge) in the second world and in the first."""


@dataclass(frozen=True)
class GaussianWorlds:
    """N(0, 1) and N(mu, 1)."""

    mu: float

    def draw(self, bits: Bits, rng: np.random.Generator) -> Array:
        return np.asarray(self.mu * bits + rng.standard_normal(len(bits)))

    def below(self, edges: Array) -> Array:
        return np.stack([ndtr(edges), ndtr(edges - self.mu)])


@dataclass(frozen=True)
class LaplaceWorlds:
    """Laplace noise of scale 1/epsilon around 0 and around 1."""

    epsilon: float

    def draw(self, bits: Bits, rng: np.random.Generator) -> Array:
        return np.asarray(bits + rng.laplace(scale=1 / self.epsilon, size=len(bits)))

    def below(self, edges: Array) -> Array:
        return np.stack([self._below(edges), self._below(edges - 1)])

    def _below(self, x: Array) -> Array:
        half = 0.5 * np.exp(-self.epsilon * np.abs(x))
        return np.where(x < 0, half, 1 - half)


@dataclass(frozen=True)
class DiscreteWorlds:
    """Scores 0, 1, ... with probabilities ``second`` and ``first``; the ratio first / second grows with the score."""

    second: Array
    first: Array

    def draw(self, bits: Bits, rng: np.random.Generator) -> Array:
        uniform = rng.random(len(bits))
        draws = [np.searchsorted(np.cumsum(law)[:-1], uniform, side="right") for law in (self.second, self.first)]
        return np.where(bits == 1, draws[1], draws[0]).astype(float)

    def below(self, edges: Array) -> Array:
        count = np.clip(np.ceil(edges), 0, len(self.first)).astype(int)
        return np.stack([np.concatenate([[0.0], np.cumsum(law)])[count] for law in (self.second, self.first)])


def response(epsilon: float) -> DiscreteWorlds:
    """Randomised response: the most that epsilon-DP allows."""
    right = 1 / (1 + math.exp(-epsilon))
    return DiscreteWorlds(np.array([right, 1 - right]), np.array([1 - right, right]))


def from_profile(forward: Callable[[float], float], backward: Callable[[float], float], top: float) -> DiscreteWorlds:
    """Two laws with these hockey-stick divergences at some epsilons up to ``top``; "backward" swaps the worlds.

    The trade-off between the worlds is the largest of the straight lines that the divergences give it, one for each
    epsilon; every piece of it is a value of the score.
    """
    epsilons = top * _POINTS
    ahead, back = np.array([forward(e) for e in epsilons]), np.array([backward(e) for e in epsilons])
    # P(A) - e^eps Q(A) <= delta for both orders: as lines, first(A) <= slope * second(A) + height.
    slopes = np.concatenate([np.exp(-epsilons[:0:-1]), np.exp(epsilons)])
    heights = np.concatenate([(1 - (1 - back[:0:-1]) * np.exp(-epsilons[:0:-1])), ahead])
    return _pieces(slopes, heights)


def _pieces(slopes: Array, heights: Array) -> DiscreteWorlds:
    """The laws whose most powerful tests have the least of the lines, and of 1, as their power."""
    lines = [(float(s), float(h)) for s, h in zip(slopes, heights, strict=True)]
    corners = {0.0, 1.0}
    for i, (a, b) in enumerate([*lines, (0.0, 1.0)]):
        corners |= {(d - b) / (a - c) for c, d in [*lines, (0.0, 1.0)][:i] if a != c}
    size = np.array(sorted(x for x in corners if 0 <= x <= 1))
    power = np.minimum(np.min(np.multiply.outer(slopes, size) + heights[:, None], axis=0), 1.0)
    # The most powerful test takes the largest ratios first, beginning with what is possible in the first world only.
    second, first = np.concatenate([[0.0], np.diff(size)]), np.concatenate([[power[0]], np.diff(power)])
    return DiscreteWorlds(second[::-1] / second.sum(), np.maximum(first[::-1], 0.0) / np.maximum(first, 0.0).sum())
