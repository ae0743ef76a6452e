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
from dptoolkit.accounting.events import Event, ExponentialMechanism, NoisyMax, Repeated, ZCdp
from dptoolkit.accounting.selection import bounded_range_rho
from dptoolkit.mechanisms.noise import exponential, laplace, query
from dptoolkit.mechanisms.randomness import Generators, as_generator
from dptoolkit.types import Array

# Up to this many scores sorting all is faster, for many runs at once, than looking for the largest of each run.
_FEW = 64


def gumbel(rng: np.random.Generator | Generators, scale: float, shape: tuple[int, ...]) -> Array:
    """iid Gumbel(scale): minus the log of an exponential.

    Parameters
    ----------
    rng : numpy.random.Generator or Generators
        Where the noise is drawn from.
    scale : float
        Scale of the law.
    shape : tuple of int
        Shape of the result.
    """
    return np.asarray(-scale * np.log(exponential(rng, shape)))


@dataclass(frozen=True)
class NoisyMaximum:
    """The index of the largest score after noise of ``scale`` on every score.

    noise "gumbel" is the exponential mechanism; "laplace" and "exponential" (permute-and-flip) are epsilon-DP only.

    Parameters
    ----------
    scale : float
        Scale of the noise on every score.
    score_range : float
        The largest change of the difference of two scores between neighbours; see the top of this module.
    noise : {"gumbel", "laplace", "exponential"}, default "gumbel"
        The law of the noise. "gumbel" is the exponential mechanism; "laplace" and "exponential" (permute-and-flip) are
        epsilon-DP only.

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
        """The scores with fresh noise; not for release.

        Parameters
        ----------
        scores : array-like of shape (k,)
            One score per candidate.
        rng : int, numpy.random.Generator or None, default None
            A seed, a Generator, or None for fresh entropy.
        """
        return np.asarray(self.noisy_rows(_vector(scores)[None], Generators(as_generator(rng, self)))[0])

    def noisy_rows(self, scores: Array, rng: Generators, shares: Array | None = None) -> Array:
        """``noisy`` for many runs at once, one per row, each with its own Generator.

        With ``shares`` run i gets shares[i] times the noise: for scores whose range is that part of ``score_range``.

        Parameters
        ----------
        scores : array of shape (runs, k)
            One row of scores per run.
        rng : Generators
            One Generator per run.
        shares : array of shape (runs,) or None, default None
            The noise of run i is multiplied by shares[i], for scores whose range is that part of ``score_range``.
        """
        if not np.isfinite(scores).all():
            raise _not_finite(scores[0])
        if self.scale == 0:
            return scores.copy()
        noise = self._draw(rng, scores.shape)
        return np.asarray(scores + (noise if shares is None else shares[:, None] * noise))

    def _draw(self, rng: Generators, shape: tuple[int, ...]) -> Array:
        if self.noise == "gumbel":
            return gumbel(rng, self.scale, shape)
        if self.noise == "laplace":
            return laplace(rng, self.scale, shape)
        return np.asarray(self.scale * exponential(rng, shape))

    def select(self, scores: Array, rng: Any = None) -> int:
        """The index of the largest noisy score.

        Parameters
        ----------
        scores : array-like of shape (k,)
            One score per candidate.
        rng : int, numpy.random.Generator or None, default None
            A seed, a Generator, or None for fresh entropy.
        """
        return int(np.argmax(self.noisy(scores, rng)))

    def select_rows(self, scores: Array, rng: Generators, shares: Array | None = None) -> NDArray[np.intp]:
        """``select`` for many runs at once, one per row, each with its own Generator; for shares see ``noisy_rows``.

        Parameters
        ----------
        scores : array of shape (runs, k)
            One row of scores per run.
        rng : Generators
            One Generator per run.
        shares : array of shape (runs,) or None, default None
            As for ``noisy_rows``.
        """
        return np.asarray(np.argmax(self.noisy_rows(scores, rng, shares), axis=1))

    def top_event(self, count: int) -> Event:
        """The event of one call of ``top`` or ``peel``.

        Parameters
        ----------
        count : int
            Number of candidates that are selected.
        """
        return Repeated(self.event, count)

    def top(self, scores: Array, count: int, rng: Any = None) -> NDArray[np.intp]:
        """The ``count`` largest noisy scores, with ONE draw of Gumbel noise: the law of ``count`` peelings.

        Parameters
        ----------
        scores : array-like of shape (k,)
            One score per candidate.
        count : int
            Number of candidates to select.
        rng : int, numpy.random.Generator or None, default None
            A seed, a Generator, or None for fresh entropy.
        """
        self._check_one_shot()
        return _largest(self.noisy(scores, rng), count)

    def top_rows(self, scores: Array, count: int, rng: Generators, shares: Array | None = None) -> NDArray[np.intp]:
        """``top`` for many runs at once, one per row, each with its own Generator; for shares see ``noisy_rows``.

        Parameters
        ----------
        scores : array of shape (runs, k)
            One row of scores per run.
        count : int
            Number of candidates to select per run.
        rng : Generators
            One Generator per run.
        shares : array of shape (runs,) or None, default None
            As for ``noisy_rows``.
        """
        self._check_one_shot()
        noisy = self.noisy_rows(scores, rng, shares)
        if scores.shape[1] <= _FEW:
            return np.asarray(np.argsort(-noisy, axis=1, kind="stable")[:, : _count(count, scores.shape[1])])
        return np.array([_largest(row, count) for row in noisy])

    def _check_one_shot(self) -> None:
        if self.noise != "gumbel":
            repair = "Use peel(), which draws fresh noise for every selection."
            raise invalid("noise", self.noise, "'gumbel' for one-shot selection", repair)

    def peel(self, scores: Array, count: int, rng: Any = None) -> NDArray[np.intp]:
        """``count`` selections one after the other, each with fresh noise among the remaining candidates.

        Parameters
        ----------
        scores : array-like of shape (k,)
            One score per candidate.
        count : int
            Number of candidates to select.
        rng : int, numpy.random.Generator or None, default None
            A seed, a Generator, or None for fresh entropy.
        """
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


@dataclass(frozen=True)
class SymmetricMaximum(NoisyMaximum):
    """Gumbel noisy maximum among K candidates and their negatives, whose scores are minus theirs.

    ``score_range`` bounds the sum of the two largest |changes| among the K scores, whose changes must add up to 0. An
    ordinary noisy maximum would be charged for twice the largest change, which is more.

    Parameters
    ----------
    scale : float
        Scale of the Gumbel noise on every score.
    score_range : float
        A bound on the sum of the two largest |changes| among the K scores.
    noise : {"gumbel"}, default "gumbel"
        The law of the noise; no other is known to be safe here.

    Privacy
    -------
    One selection is ``event``: rho-zCDP with rho = (score_range / scale)^2 / 8, as if score_range were the range.

    Proof. In noise scales let g be the 2K scores, c = (v, -v) their changes, the v_k adding up to 0, and M >= u the two
    largest |v_k|. Both laws belong to the family p_t proportional to exp(g + t c), at t = 0 and 1. With its log
    partition function A, A(0) = 0, the Renyi divergence of order s > 1 is (A(s) - s A(1)) / (s - 1) <= (s/2) sup A'',
    as A(t) - t A(1) is 0 at 0 and 1. A''(t) is the variance of c under p_t. So rho = V/2, where V is the largest
    variance at any antisymmetric g, and it is left to show that V <= ((M + u)/2)^2.

    A candidate k and its negative have probabilities whose sum is a_k, and whose product h^2/4 is the same for all k.
    So their difference is sqrt(a_k^2 - h^2) in size, which is concave in (a_k, h). Let k = 0 be the one of M, m = K - 1
    and q = u/M. The mean square of c is at most a_0 M^2 + (1 - a_0) u^2, and its mean is in size at least
    M sqrt(a_0^2 - h^2) - u sqrt((1 - a_0)^2 - (m h)^2). Write a_0 = h cosh(a), 1 - a_0 = m h cosh(b) and n = m q; then
    n >= 1, as the other changes add up to M. If sinh(a) < n sinh(b), then cosh(a) <= n cosh(b) and a_0 <= q/(1 + q), so
    that the mean square is at most q M^2 <= (M + u)^2/4. Otherwise a >= b; let d = a - b and X = cosh(d). By how much
    the variance is less than (M + u)^2/4 is then, times (cosh(a) + m cosh(b))^2 / M^2, at least

        2 n X - 1 - n^2 + (1 + q)^2 (m cosh(b) - cosh(a))^2 / 4.

    That is >= 0 if 2 n X >= 1 + n^2. If not, e^d < n <= m, and m cosh(b) - cosh(a) = (m - X) cosh(b) - sinh(d) sinh(b)
    is at least sqrt(m^2 + 1 - 2 m X). What remains, (1 + q)^2 (m^2 + 1 - 2 m X)/4 >= 1 + n^2 - 2 n X, is linear in X
    and holds at both ends: at X = 1 as (1 + q)(m - 1)/2 >= n - 1 for q <= 1, and at 2 n X = 1 + n^2 as there
    m^2 + 1 - 2 m X = (1 - q)(m^2 - 1/q) >= 0. It is attained for K >= 5, by two candidates far ahead of all others.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("noise", self.noise, ("gumbel",))

    @property
    def event(self) -> Event:
        """The event of one selection."""
        return ZCdp(bounded_range_rho(self.score_range / self.scale) if self.scale > 0 else float("inf"))

    def top_event(self, count: int) -> Event:
        """None is known: what is left after a choice is not symmetric."""
        raise invalid("count", count, "left out: candidates and negatives are chosen one at a time, by select",
                      "Use NoisyMaximum.")  # fmt: skip

    def _check_one_shot(self) -> None:
        self.top_event(2)

    def peel(self, scores: Array, count: int, rng: Any = None) -> NDArray[np.intp]:
        """Refused, as ``top_event`` is."""
        self.top_event(count)
        return super().peel(scores, count, rng)


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
