"""Exact log-likelihood ratios of what hard thresholding releases: the best scores there are.

A score takes the outputs of many trials, one per row, and is larger where the first dataset is more likely.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from scipy.special import logsumexp

from dptoolkit.accounting.events import POISSON
from dptoolkit.audit import layout
from dptoolkit.data import check_rows
from dptoolkit.solvers.frame.plan import Plan
from dptoolkit.types import Array


@dataclass(frozen=True)
class Projection:
    """The outputs along one direction."""

    direction: Array

    def __call__(self, outputs: Array) -> Array:
        return np.asarray(outputs @ self.direction)


@dataclass(frozen=True)
class Gradients:
    """Records of a plan, clipped as its solver clips them, and their gradients at many weights at once."""

    plan: Plan
    rows: Array
    y: Array
    caps: Array | None
    weights: Array

    def residuals(self, w: Array) -> Array:
        """The residual of every record at every trial's weights, (trials, records)."""
        settings = self.plan.settings
        return settings.loss_row.clipped_residual(w @ self.rows.T, self.y, settings.bounds.largest_margin, self.caps)

    def mean(self, w: Array) -> Array:
        """The mean gradient, (trials, width)."""
        return np.asarray((self.residuals(w) * self.weights) @ self.rows)

    def each(self, w: Array) -> list[Array]:
        """The gradient of every record, (trials, width) each."""
        return [r[:, None] * row[None, :] for r, row in zip(self.residuals(w).T, self.rows, strict=True)]


def gradients(plan: Plan, X: Any, y: Any, counts: Any = None) -> Gradients:
    """The gradients of the records (X, y), each ``counts`` times."""
    rows = check_rows(X.toarray() if sparse.issparse(X) else X)
    labels = plan.settings.labels(y, rows.shape[0])
    features, targets, caps = plan.settings.bounds.clip(rows, labels)
    times = np.ones(len(targets)) if counts is None else np.asarray(counts, dtype=float)
    return Gradients(plan, features.matrix, targets, caps, times / times.sum())


def _largest_kept(plan: Plan, w: Array) -> Array:
    """The rows of w with their largest entries only; the intercept always stays."""
    free, s = plan.d, plan.settings.sparsity
    if s is None or s >= free:
        return w
    out = np.zeros_like(w)
    keep = np.argpartition(-np.abs(w[:, :free]), s - 1, axis=1)[:, :s]
    np.put_along_axis(out, keep, np.take_along_axis(w, keep, axis=1), axis=1)
    out[:, free:] = w[:, free:]
    return out


class _Path(NamedTuple):
    """Many trials: what was seen of every step, (trials, steps, width), and the weights and log ratios at the start."""

    steps: Array
    start: Array
    total: Array


def _path(plan: Plan, outputs: Array) -> _Path:
    steps = outputs.reshape(len(outputs), -1, layout.width(plan))
    return _Path(steps, np.tile(layout.start(plan), (len(outputs), 1)), np.zeros(len(outputs)))


def _gaussian_ratio(value: Array, first: Array, second: Array, noise: Array) -> Array:
    """log N(value; first, noise^2) - log N(value; second, noise^2); without noise its numerator, the inner product."""
    inner = np.asarray(((first - second) * (value - (first + second) / 2)).sum(axis=1))
    return np.asarray(inner / np.where(noise > 0, noise, 1.0) ** 2)


@dataclass(frozen=True)
class GradientRatio:
    """The score of the noisy gradients of dp_ight and its like.

    Every step's mean is known for both datasets, at the iterate that the gradients before imply.
    """

    first: Gradients
    second: Gradients

    def __call__(self, outputs: Array) -> Array:
        plan = self.first.plan
        noise_at, (path, w, total) = plan.settings.noise_law(plan), _path(plan, outputs)
        start = w
        for t in range(path.shape[1]):
            total += _gaussian_ratio(path[:, t], self.first.mean(w), self.second.mean(w), noise_at(w))
            moved = start - plan.settings.step_size * path[:, t]
            w = _largest_kept(plan, moved)
            start = moved if plan.settings.iteration.accumulate else w
        return total


@dataclass(frozen=True)
class IterateRatio:
    """The score of the iterates of dp_ight: on coordinates that a step kept, two iterates differ by the noisy gradient.

    Where steps accumulate, this holds on coordinates that were kept before the step too. Any other coordinate, when it
    enters the iterate, shows the sum of all its gradients since it was last seen, so only the sum of their means is
    known.
    """

    first: Gradients
    second: Gradients

    def __call__(self, outputs: Array) -> Array:
        plan = self.first.plan
        noise_at, (path, w, total) = plan.settings.noise_law(plan), _path(plan, outputs)
        sums = _Sums(plan, w)
        for t in range(path.shape[1]):
            kept = path[:, t] != 0
            total += sums.ratio(path[:, t], kept, self.first.mean(w), self.second.mean(w), noise_at(w))
            w = path[:, t]
        return total


class _Sums:
    """What the iterates of many trials have shown, by coordinate, and what has happened since."""

    def __init__(self, plan: Plan, start: Array) -> None:
        self.step, self.accumulate = plan.settings.step_size, plan.settings.iteration.accumulate
        self.shown, self.variance = start.copy(), np.zeros_like(start)
        self.first, self.second = np.zeros_like(start), np.zeros_like(start)

    def ratio(self, path: Array, kept: Array, first: Array, second: Array, noise: Array) -> Array:
        """The log-likelihood ratio of the coordinates that are kept, given all that was shown of them before."""
        self.first += first
        self.second += second
        self.variance += noise[:, None] ** 2
        seen = (self.shown - path) / self.step
        inner = (self.first - self.second) * (seen - (self.first + self.second) / 2)
        found = (kept * inner / np.where(self.variance > 0, self.variance, 1.0)).sum(axis=1)
        # dp_ight starts a dropped coordinate again at 0, and forgets.
        done = kept if self.accumulate else np.ones_like(kept)
        self.shown = np.where(done, path, self.shown)
        for sums in (self.first, self.second, self.variance):
            sums[done] = 0.0
        return np.asarray(found)


# --- batches -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Batch:
    """Batches of ``size`` from n rows: a canary, and n - 1 others that are all alike."""

    size: float
    rate: float
    n: int
    poisson: bool

    def log_ratio(self, mean: Array, kinds: list[Array], noise: Array) -> Array:
        """log of the ratio of the two laws of a noisy batch ``mean``, each a mixture: with the canary and without it.

        ``kinds`` are the gradients of the first canary, the second and one of the others, where the mean is seen. The
        number of others in a Poisson batch is random too, and its spread is counted as more noise.
        """
        other = kinds[2]
        base = other * (self.n - 1) / self.n if self.poisson else other
        without = 0.0 if self.poisson else other
        variance = self._variance(other, noise)
        here = [self._mixture(mean - base, (kind - without) / self.size, variance) for kind in kinds[:2]]
        return np.where(variance > 0, here[0] - here[1], 0.0)

    def signal(self, kinds: list[Array], noise: Array) -> Array:
        """(difference of the two canaries' gradients / noise)^2 for a batch that holds them."""
        difference = (kinds[0] - kinds[1]) / self.size
        return np.asarray((difference**2).sum(axis=1) / self._variance(kinds[2], noise))

    def _variance(self, other: Array, noise: Array) -> Array:
        if not self.poisson:
            return noise**2
        number = (self.n - 1) * self.rate * (1 - self.rate)
        return np.asarray(noise**2 + number * (other**2).sum(axis=1) / self.size**2)

    def _mixture(self, mean: Array, shift: Array, variance: Array) -> Array:
        inner = ((mean - shift / 2) * shift).sum(axis=1) / np.where(variance > 0, variance, 1.0)
        if self.rate >= 1:
            return np.asarray(inner)
        return np.logaddexp(np.log1p(-self.rate), np.log(self.rate) + inner)


@dataclass(frozen=True)
class _Batches:
    """``kinds``: the first canary, the second, and the others, in these ``shares``.

    ``along``: the one direction that is used.
    """

    kinds: Gradients
    along: Array | None = None
    shares: tuple[float, ...] = (1.0,)

    def each(self, w: Array) -> list[Array]:
        """The gradients of the first canary, of the second, and of the others on average."""
        first, second, *others = self.kinds.each(w)
        return [first, second, np.asarray(sum(k * other for k, other in zip(self.shares, others, strict=True)))]

    def batch(self, size: float) -> Batch:
        """Batches of that size."""
        n = self.kinds.plan.n
        return Batch(size, size / n, n, self.kinds.plan.settings.sampling == POISSON and size < n)

    def shown(self, vectors: Array, support: Array) -> Array:
        """What the score uses of vectors, one per row, that are seen where ``support`` is 1."""
        if self.along is None:
            return np.asarray(support * vectors)
        # A direction is seen where all its coordinates are.
        seen = support[:, self.along != 0].all(axis=1)
        return np.asarray(np.outer(seen * (vectors @ self.along), self.along))


class BatchRatio(_Batches):
    """The score of the iterates of dp_sgd_ht."""

    def __call__(self, outputs: Array) -> Array:
        plan = self.kinds.plan
        noise_at, (path, w, total) = plan.settings.noise_law(plan), _path(plan, outputs)
        batch, step = self.batch(plan.settings.batch_size), plan.settings.step_size
        for t in range(path.shape[1]):
            support = path[:, t] != 0
            gradient = self.shown(((1 - step * plan.settings.l2) * w - path[:, t]) / step, support)
            total += batch.log_ratio(gradient, [self.shown(kind, support) for kind in self.each(w)], noise_at(w))
            w = path[:, t]
        return total


class EpochRatio(_Batches):
    """The score of the snapshot gradients and iterates of dp_scsg_ht."""

    def __call__(self, outputs: Array) -> Array:
        plan = self.kinds.plan
        noise_at = plan.settings.noise_law(plan)
        counts, snapshots, iterates = layout.read_epochs(plan, outputs)
        total = np.zeros(len(outputs))
        w: Array = np.zeros((len(outputs), layout.width(plan)))
        for epoch in range(snapshots.shape[1]):
            batch = self.batch(plan.settings.shape(plan.n).snapshot)
            noise = noise_at(w)
            kinds = [self.shown(kind, np.ones_like(w)) for kind in self.each(w)]
            total += batch.log_ratio(self.shown(snapshots[:, epoch], np.ones_like(w)), kinds, noise)
            total += self._inner(w, snapshots[:, epoch], iterates[:, epoch], counts[:, epoch])
            w = iterates[:, epoch, -1]
        return total

    def inner_noise(self, w: Array, start: Array) -> Array:
        """The noise of an inner step at w, one row per trial, after a snapshot at ``start``."""
        plan = self.kinds.plan
        share = np.minimum(1.0, _times(plan.settings.slope, np.linalg.norm(w - start, axis=1)))
        return np.asarray(plan.noise * share)

    def _inner(self, start: Array, snapshot: Array, path: Array, counts: Array) -> Array:
        plan, total, w = self.kinds.plan, np.zeros(len(start)), start
        batch, step = self.batch(plan.settings.batch_size), plan.settings.step_size
        before = self.each(start)
        for t in range(path.shape[1]):
            support = path[:, t] != 0
            gradient = self.shown(((1 - step * plan.settings.l2) * w - path[:, t]) / step - snapshot, support)
            kinds = [self.shown(now - then, support) for now, then in zip(self.each(w), before, strict=True)]
            ratio = batch.log_ratio(gradient, kinds, self.inner_noise(w, start))
            total += np.where(t < counts, ratio, 0.0)
            w = path[:, t]
        return total


@dataclass(frozen=True)
class SumRatio:
    """The score of a weight that is normal plus a random shift on one dataset, and normal minus it on the other.

    The shift is one of several. The score is the log-likelihood ratio of the two mixtures, larger for plus.
    """

    coordinate: int
    center: float
    deviation: float
    shifts: Array
    weights: Array

    def __call__(self, outputs: Array) -> Array:
        away = (outputs[:, self.coordinate] - self.center)[:, None] / self.deviation
        shifts, weights = self.shifts / self.deviation, self.weights[None, :]
        plus, minus = (logsumexp(sign * away * shifts - shifts**2 / 2, axis=1, b=weights) for sign in (1.0, -1.0))
        return np.asarray(plus - minus)


def _times(slope: float, distance: Array) -> Array:
    """slope * distance; infinite for an infinite slope even at distance 0, where it means the full noise always."""
    return np.full_like(distance, np.inf) if np.isinf(slope) else slope * distance
