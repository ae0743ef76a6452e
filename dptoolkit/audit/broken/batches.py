"""Faults of batches and budgets."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dptoolkit.accounting import Gaussian, Repeated, Subsampled, gaussian
from dptoolkit.accounting.events import POISSON
from dptoolkit.adjacency import Adjacency
from dptoolkit.audit.broken.fault import Broken
from dptoolkit.audit.broken.sums import ONE, noisy_sum
from dptoolkit.audit.claims import ApproxClaim
from dptoolkit.audit.pairs.pair import Pair
from dptoolkit.audit.probes import Probe

Array = NDArray[np.float64]
Rng = np.random.Generator


def _batch_sums(data: Array, rng: Rng, shuffled: bool) -> Array:
    """One epoch of ten batches at rate 1/10, each sum with noise 0.5."""
    where = rng.permutation(len(data)) % 10
    inside = where == np.arange(10)[:, None] if shuffled else rng.random((10, len(data))) < 0.1
    return np.asarray(inside @ data + 0.5 * rng.standard_normal(10))


def _batch_ratio(outputs: Array) -> Array:
    """The log-likelihood ratio of Poisson batches with and without a record of 1."""
    return np.asarray(np.log(0.9 + 0.1 * np.exp((outputs - 0.5) / 0.25)).sum(axis=1))


def _batch_mean(data: Array, rng: Rng, realised: bool) -> float:
    """The mean of a Poisson batch at rate 1/2 of about eight records; noise for the expected size 4."""
    batch = data[rng.random(len(data)) < 0.5]
    return float(batch.sum() / (max(len(batch), 1) if realised else 4) + rng.standard_normal() / 4)


@dataclass(frozen=True)
class Leaky:
    """The Gaussian mechanism, but with probability ``failure`` the data themselves: a stability test that fails."""

    mu: float
    failure: float

    def __call__(self, data: Array, rng: Rng) -> float:
        return float(data.sum()) if rng.random() < self.failure else noisy_sum(data, rng, 1 / self.mu)

    def exact(self) -> Probe:
        """The exact delta at epsilon 1 against what is claimed there."""
        delta = self.failure + (1 - self.failure) * float(gaussian.delta(self.mu, 1.0))
        text = f"The exact delta at epsilon 1 is {delta:.4g}, claimed 1e-05."
        return Probe("exact delta", delta <= 1e-5, text)


BATCHES = (
    Broken("shuffled batches as Poisson", "Batches of a shuffled epoch, which hold every record once, are accounted "
           "for as Poisson samples.",
           partial(_batch_sums, shuffled=True), Pair(np.eye(1, 10)[0], np.zeros(10), Adjacency.ZERO_OUT),
           Repeated(Subsampled(Gaussian(0.5), POISSON, 0.1), 10), partial(_batch_sums, shuffled=False),
           arguments={"attack": _batch_ratio, "trials": 16_000, "power": None}),
    Broken("realised batch size", "The sum of a Poisson batch is divided by its realised size, the noise by the "
           "expected one.",
           partial(_batch_mean, realised=True), Pair(np.array([1.0, *-np.ones(7)]), -np.ones(7)),
           Subsampled(Gaussian(1.0), POISSON, 0.5), partial(_batch_mean, realised=False),
           arguments={"trials": 10_000, "power": None}),
    Broken("delta spent twice", "All of delta calibrates the noise, and a test that may fail spends it again.",
           Leaky(gaussian.mu(1.0, 1e-5), 1e-5), ONE, ApproxClaim(1.0, 1e-5), Leaky(gaussian.mu(1.0, 5e-6), 5e-6),
           probe=Leaky.exact),
)  # fmt: skip
