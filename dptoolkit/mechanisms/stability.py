"""Propose, test, release: a choice is published exactly if a noisy test says that no neighbour would choose otherwise.

After Dwork and Lei 2009. The test's number is the gap between the worst of the chosen scores and the best of the
others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit._validate import magnitude, noise_scale, real
from dptoolkit.accounting.events import ApproxDp, Composed, Event, Laplace
from dptoolkit.mechanisms.noise import LaplaceNoise


@dataclass(frozen=True)
class StabilityTest:
    """The noisy gap of a choice; the choice itself is published where the noisy gap exceeds ``threshold``.

    Privacy
    -------
    ``sensitivity`` is the range of the scores: the most by which the difference of two scores moves between
    neighbours. The gap is the largest, over all sets of that many candidates, of the smallest difference between a
    score inside and one outside; every difference moves by at most the sensitivity, so the gap does. Where the gap is
    above the sensitivity, all neighbours make the same choice. So for neighbours D and D' there are two cases. If they
    make the same choice, publishing it adds nothing to the noisy gap: Laplace(scale/sensitivity). If not, both gaps
    are at most the sensitivity, and the test is passed with probability at most delta = P(noise > threshold -
    sensitivity); where it is not passed, only the noisy gap is published. ``event`` covers both: Laplace, composed
    with a failure of probability delta. What is released after the test must be private for a fixed choice.
    """

    scale: float
    sensitivity: float
    threshold: float

    def __post_init__(self) -> None:
        noise_scale("scale", self.scale)
        magnitude("sensitivity", self.sensitivity)
        real("threshold", self.threshold, low=0.0, open_high=True)

    @property
    def failure(self) -> float:
        """The probability of passing the test where a neighbour chooses otherwise; rounded up."""
        if self.scale == 0:
            return 0.0 if self.threshold >= self.sensitivity else 1.0
        tail = (self.threshold - self.sensitivity) / self.scale
        chance = math.exp(-tail) / 2 if tail >= 0 else 1 - math.exp(tail) / 2
        return min(chance * (1 + 1e-12), 1.0)

    @property
    def event(self) -> Event:
        """The event of one test and of the choice that is published if it is passed."""
        multiplier = self.scale / self.sensitivity
        # A failure of probability 1 is a release of everything; ApproxDp does not take a delta of 1.
        if self.failure >= 1:
            return Laplace(0.0)
        return Composed(Laplace(multiplier), ApproxDp(0.0, self.failure))

    def test(self, gap: float, rng: Any = None) -> tuple[bool, float]:
        """(whether the choice may be published, the noisy gap)."""
        noisy = float(LaplaceNoise(self.scale, self.sensitivity).release(np.array([gap]), rng)[0])
        return noisy > self.threshold, noisy


def top_with_gap(scores: NDArray[np.float64], count: int) -> tuple[NDArray[np.intp], float]:
    """(the ``count`` largest scores' indices in ascending order, the gap to the next); ties fall to the first.

    Privacy
    -------
    NOT private: both are for ``StabilityTest.test``, and the indices are published only where it is passed.
    """
    order = np.argsort(-scores, kind="stable")
    gap = float(scores[order[count - 1]] - scores[order[count]]) if count < len(scores) else math.inf
    return np.sort(order[:count]), gap


def threshold(sensitivity: float, scale: float, failure: float) -> float:
    """The threshold of a test that is passed wrongly with probability at most ``failure``."""
    return sensitivity + scale * max(math.log(1 / (2 * failure)), 0.0) * (1 + 1e-12)
