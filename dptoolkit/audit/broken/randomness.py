"""Faults of where randomness comes from."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dptoolkit.audit import probes
from dptoolkit.audit.broken.fault import Broken
from dptoolkit.audit.broken.sums import ONE, noisy_sum
from dptoolkit.audit.claims import GaussianClaim
from dptoolkit.audit.probes import Probe

Array = NDArray[np.float64]
Rng = np.random.Generator


def _seeded_sum(data: Array, rng: Rng) -> float:
    return noisy_sum(data, np.random.default_rng(0), 1.0)


def _sum_seeded_by_data(data: Array, rng: Rng) -> float:
    return noisy_sum(data, np.random.default_rng(abs(int(1e6 * data.sum()))), 1.0)


def _sum_with_global_noise(data: Array, rng: Rng) -> float:
    return float(data.sum() + np.random.standard_normal())  # noqa: NPY002


class _Model:
    """A model that keeps its seed, and starts from it again in every fit."""

    def __init__(self, fresh: bool) -> None:
        self.fresh, self.rng = fresh, np.random.default_rng(7)

    def fit(self, data: Array) -> float:
        return noisy_sum(data, self.rng if self.fresh else np.random.default_rng(7), 1.0)


def _fit_again(model: _Model) -> Probe:
    return probes.fresh_fits(partial(model.fit, ONE.first))


def _noisy_sums(data: Array, rng: Rng, fresh: bool) -> Array:
    """Ten noisy sums for 1-GDP together; one draw serves all of them unless ``fresh``."""
    noise = rng.standard_normal((10, 1))
    return np.asarray(data.sum() + math.sqrt(10) * (noise if fresh else noise[:1] + np.zeros((10, 1))))


_own = partial(probes.given_generator, data=ONE.first)
RANDOMNESS = (
    Broken("fixed seed", "A seed inside the mechanism makes its noise a constant.",
           _seeded_sum, ONE, GaussianClaim(1.0), partial(noisy_sum, scale=1.0), probe=_own),
    Broken("seed from the data", "The seed is a function of the data, so the output is one too.",
           _sum_seeded_by_data, ONE, GaussianClaim(1.0), partial(noisy_sum, scale=1.0), probe=_own),
    Broken("global random state", "Noise comes from NumPy's global state, which other code may seed, not from the "
           "Generator that was given.",
           _sum_with_global_noise, ONE, GaussianClaim(1.0), partial(noisy_sum, scale=1.0), probe=_own),
    Broken("seed reused in every fit", "A model starts from its seed again in every fit: all fits share their noise.",
           _Model(fresh=False), ONE, GaussianClaim(1.0), _Model(fresh=True), probe=_fit_again),
    Broken("noise reused across steps", "The noise is drawn before the loop and added in every step.",
           partial(_noisy_sums, fresh=False), ONE, GaussianClaim(1.0), partial(_noisy_sums, fresh=True),
           probe=partial(probes.fresh_steps, data=np.zeros(4), scale=math.sqrt(10))),
)  # fmt: skip
