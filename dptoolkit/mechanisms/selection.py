"""Private selection: the best of several candidates, by noisy scores.

``score_range`` is the largest amount by which the difference of two scores can move between neighbours: 2D when each
score moves by at most D in any direction, D when all move the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit._validate import invalid, magnitude, noise_scale, one_of, whole
from dptoolkit.accounting.events import Event, ExponentialMechanism, NoisyMax, Repeated
from dptoolkit.mechanisms.noise import exponential, laplace, query
from dptoolkit.mechanisms.rng import Generators, as_generator

Array = NDArray[np.float64]
# Up to this many scores sorting all is faster, for many runs at once, than looking for the largest of each run.
_FEW = 64


def gumbel(rng: np.random.Generator | Generators, scale: float, shape: tuple[int, ...]) -> Array:
    """iid Gumbel(scale): minus the log of an exponential."""
    return np.asarray(-scale * np.log(exponential(rng, shape)))


@dataclass(frozen=True)
class NoisyMaximum:
    """The index of the largest score after noise of ``scale`` on every score.

    noise "gumbel" is the exponential mechanism; "laplace" and "exponential" (permute-and-flip) are epsilon-DP only.

    Privacy
    -------
    One call of ``select`` is ``event``: ExponentialMechanism(score_range / scale), or NoisyMax with the same epsilon.
    Only the index is released. ``top`` releases s indices for s times that event.
    """

    scale: float
    score_range: float
    noise: str = "gumbel"

    def __post_init__(self) -> None:
        noise_scale("scale", self.scale)
        magnitude("score_range", self.score_range)
        one_of("noise", self.noise, ("gumbel", "laplace", "exponential"))

    @property
    def event(self) -> Event:
        """The event of one selection."""
        epsilon = self.score_range / self.scale if self.scale > 0 else float("inf")
        return ExponentialMechanism(epsilon) if self.noise == "gumbel" else NoisyMax(epsilon, self.noise)

    def noisy(self, scores: Array, rng: Any = None) -> Array:
        """The scores with fresh noise; not for release."""
        return np.asarray(self.noisy_rows(_vector(scores)[None], Generators(as_generator(rng, self)))[0])

    def noisy_rows(self, scores: Array, rng: Generators) -> Array:
        """``noisy`` for many runs at once, one a row, each with its own Generator."""
        if not np.isfinite(scores).all():
            raise _not_finite(scores[0])
        if self.scale == 0:
            return scores.copy()
        if self.noise == "gumbel":
            return np.asarray(scores + gumbel(rng, self.scale, scores.shape))
        if self.noise == "laplace":
            return np.asarray(scores + laplace(rng, self.scale, scores.shape))
        return np.asarray(scores + self.scale * exponential(rng, scores.shape))

    def select(self, scores: Array, rng: Any = None) -> int:
        """The index of the largest noisy score."""
        return int(np.argmax(self.noisy(scores, rng)))

    def select_rows(self, scores: Array, rng: Generators) -> NDArray[np.intp]:
        """``select`` for many runs at once, one a row, each with its own Generator."""
        return np.asarray(np.argmax(self.noisy_rows(scores, rng), axis=1))

    def top_event(self, count: int) -> Event:
        """The event of one call of ``top`` or ``peel``."""
        return Repeated(self.event, count)

    def top(self, scores: Array, count: int, rng: Any = None) -> NDArray[np.intp]:
        """The ``count`` largest noisy scores, with ONE draw of Gumbel noise: the law of ``count`` peelings."""
        self._check_one_shot()
        return _largest(self.noisy(scores, rng), count)

    def top_rows(self, scores: Array, count: int, rng: Generators) -> NDArray[np.intp]:
        """``top`` for many runs at once, one a row, each with its own Generator."""
        self._check_one_shot()
        noisy = self.noisy_rows(scores, rng)
        if scores.shape[1] <= _FEW:
            return np.asarray(np.argsort(-noisy, axis=1, kind="stable")[:, : _count(count, scores.shape[1])])
        return np.array([_largest(row, count) for row in noisy])

    def _check_one_shot(self) -> None:
        if self.noise != "gumbel":
            raise invalid("noise", self.noise, "'gumbel' for one-shot selection", "Use peel(), which draws anew.")

    def peel(self, scores: Array, count: int, rng: Any = None) -> NDArray[np.intp]:
        """``count`` selections one after the other, each with fresh noise among the remaining candidates."""
        scores = _vector(scores)
        count = _count(count, len(scores))
        generator = as_generator(rng, self)
        candidates = np.arange(len(scores))
        indices = np.empty(count, dtype=np.intp)
        for i in range(count):
            place = self.select(scores[candidates], generator)
            indices[i] = candidates[place]
            candidates = np.delete(candidates, place)
        return indices


def _largest(noisy: Array, count: int) -> NDArray[np.intp]:
    """The indices of the ``count`` largest, in falling order; of equal ones the smaller index comes first."""
    count = _count(count, len(noisy))
    # Only scores at or above the border are sorted. These include all ties at the border, of which the first count.
    border = np.partition(noisy, len(noisy) - count)[len(noisy) - count]
    candidates = np.flatnonzero(noisy >= border)
    return np.asarray(candidates[np.argsort(-noisy[candidates], kind="stable")[:count]])


def _vector(scores: Any) -> Array:
    scores = query(scores)
    if scores.ndim != 1 or len(scores) == 0:
        raise _not_finite(scores)
    return scores


def _not_finite(scores: Array) -> Exception:
    return invalid("scores", f"array of shape {scores.shape}", "a non-empty vector of finite numbers")


def _count(count: int, available: int) -> int:
    count = whole("count", count, low=1)
    if count > available:
        raise invalid("count", count, f"<= {available}, the number of candidates")
    return count
