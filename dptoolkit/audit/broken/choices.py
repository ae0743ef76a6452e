"""Faults where a choice depends on the data and is not accounted for."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dptoolkit.adjacency import Adjacency
from dptoolkit.audit.broken.fault import Broken
from dptoolkit.audit.broken.sums import ONE, noisy_sum
from dptoolkit.audit.claims import GaussianClaim
from dptoolkit.audit.pairs.pair import Pair

Array = NDArray[np.float64]
Rng = np.random.Generator


def _descend(data: Array, rng: Rng, stop: bool) -> tuple[float, int]:
    """Ten noisy steps towards the mean, 1-GDP together; with ``stop`` fewer, once the true loss is small."""
    w, steps = 0.0, 0
    while steps < 10 and not (stop and float(np.mean((data - w) ** 2)) < 0.1):
        w -= 0.5 * (w - float(data.mean()) + math.sqrt(10) / len(data) * rng.standard_normal())
        steps += 1
    return w, steps


def _best_run(data: Array, rng: Rng, runs: int) -> float:
    """The best by the true score of several runs, each 1-GDP."""
    values = [noisy_sum(data, rng, 1.0) for _ in range(runs)]
    return min(values, key=lambda value: abs(value - data.sum()))


def _iterates(data: Array, rng: Rng, best: bool) -> float:
    """Twenty releases, 1-GDP together; returns their mean, or the one that the data like best."""
    values = data.sum() + math.sqrt(20) * rng.standard_normal(20)
    return float(values[np.argmin(np.abs(values - data.sum()))] if best else values.mean())


def _thresholded(data: Array, rng: Rng, everywhere: bool) -> Array:
    """The largest entry of the columns' sums; noise on all of them before the choice, or on the chosen one only."""
    noise = math.sqrt(2) * rng.standard_normal((data.shape[1],))
    total: Array = data.sum(axis=0) + float(everywhere) * noise
    out = np.zeros(data.shape[1])
    j = int(np.argmax(np.abs(total)))
    out[j] = total[j] + (0.0 if everywhere else noise[j])
    return out


def rows(*columns: int) -> Array:
    """One-hot rows of four columns."""
    return np.asarray(np.eye(4)[list(columns)])


CHOICES = (
    Broken("early stopping on the data", "Training stops when the true loss is small: the number of steps tells.",
           partial(_descend, stop=True), Pair(np.array([1.0, *np.zeros(4)]), np.zeros(5), Adjacency.ZERO_OUT),
           GaussianClaim(1.0), partial(_descend, stop=False)),
    Broken("uncharged tuning", "The best of 20 runs by its true score is published, and one run is charged.",
           partial(_best_run, runs=20), ONE, GaussianClaim(1.0), partial(_best_run, runs=1)),
    Broken("best iterate by true loss", "All iterates are charged, but the data choose the one that is returned.",
           partial(_iterates, best=True), ONE, GaussianClaim(1.0), partial(_iterates, best=False)),
    Broken("noise on the support only", "Coordinates are chosen by exact values, and only those get noise.",
           partial(_thresholded, everywhere=False), Pair(rows(0, 1, 0), rows(0, 1, 1), Adjacency.REPLACE_ONE),
           GaussianClaim(1.0), partial(_thresholded, everywhere=True)),
)  # fmt: skip
