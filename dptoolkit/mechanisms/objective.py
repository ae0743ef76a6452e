"""The random linear term of objective perturbation: sampler and event in one object.

The noise is not added to an answer but to the objective that is minimised. So the event depends on more than scale and
sensitivity: on how much one record squeezes volume, and on whether its slope keeps its sign.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dptoolkit._validate import magnitude, noise_scale, nonnegative
from dptoolkit.accounting.events import ObjectivePerturbation, PureDp
from dptoolkit.adjacency import Adjacency
from dptoolkit.mechanisms.noise import exponential
from dptoolkit.mechanisms.randomness import Generators, as_generator
from dptoolkit.types import Array


@dataclass(frozen=True)
class Squeeze:
    """What one record does to the map from noise to minimiser: see ``accounting.objective``."""

    jacobian: float
    signed: bool
    adjacency: Adjacency


@dataclass(frozen=True)
class _LinearTerm:
    scale: float
    sensitivity: float
    squeeze: Squeeze

    def __post_init__(self) -> None:
        noise_scale("scale", self.scale)
        magnitude("sensitivity", self.sensitivity)
        nonnegative("jacobian", self.squeeze.jacobian)

    def draw(self, size: int, rng: Any = None) -> Array:
        """b, with ``size`` coordinates."""
        return np.asarray(self.draw_rows(size, Generators(as_generator(rng, self)))[0])

    def draw_rows(self, size: int, rng: Generators) -> Array:
        """b for many runs at once, one per row, each with its own Generator."""
        raise NotImplementedError


@dataclass(frozen=True)
class GaussianTerm(_LinearTerm):
    """b ~ N(0, scale^2 I), where one record moves the gradient by at most ``sensitivity``.

    Privacy
    -------
    The exact minimiser of the objective plus <b, w> is ``event``; b itself is never released, nor used twice.
    """

    @property
    def event(self) -> ObjectivePerturbation:
        """What the minimiser releases."""
        squeeze = self.squeeze
        multiplier = self.scale / self.sensitivity
        return ObjectivePerturbation(multiplier, squeeze.jacobian, squeeze.signed, squeeze.adjacency)

    def draw_rows(self, size: int, rng: Generators) -> Array:
        """See ``_LinearTerm``."""
        return np.asarray(self.scale * rng.standard_normal((len(rng), size)))


@dataclass(frozen=True)
class GammaTerm(_LinearTerm):
    """b of density proportional to exp(-|b|_2/scale): |b| is Gamma(size, scale), its direction uniform.

    Privacy
    -------
    The exact minimiser of the objective plus <b, w> is ``event`` = PureDp(sensitivity/scale + jacobian).
    """

    @property
    def event(self) -> PureDp:
        """What the minimiser releases; rounded up."""
        if self.scale == 0:
            return PureDp(np.inf)
        return PureDp(self.sensitivity / self.scale * (1 + 2.0**-51) + self.squeeze.jacobian)

    def draw_rows(self, size: int, rng: Generators) -> Array:
        """See ``_LinearTerm``; the length is a sum of exponentials that are drawn with complete tails."""
        lengths = self.scale * exponential(rng, (len(rng), size)).sum(axis=1, keepdims=True)
        directions = rng.standard_normal((len(rng), size))
        return np.asarray(directions * (lengths / np.linalg.norm(directions, axis=1, keepdims=True)))
