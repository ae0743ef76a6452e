"""Dual averaging of the softmax loss: one weight for every class and feature, one record's gradients clipped together.

    Z <- Z - step_size * (mean of r_i x_i^T + N(0, scale^2) on every entry),   W = H_s(Z)

r_i = softmax(W x_i) - e_y has K entries. A record's gradient is r_i x_i^T, of norm |r_i| |x_i|: it is scaled down as a
whole, so that one record moves the mean by as little as with two classes, however many there are. H_s keeps the s
features whose K sums together are longest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit import losses, progress
from dptoolkit.data import Rows, product
from dptoolkit.mechanisms.randomness import Generators
from dptoolkit.solvers.engine.descent import Steps
from dptoolkit.solvers.frame.run import Run, Trials
from dptoolkit.types import Array

LOSS = losses.get("softmax")


def clipped_residuals(margins: Array, labels: Array, caps: Array | None) -> Array:
    """softmax - one-hot of every record, each scaled down to a norm of at most caps[i].

    A record whose margins overflow counts as zero, so that it cannot spoil the whole gradient.
    """
    with np.errstate(all="ignore"):
        r = LOSS.residual(margins, labels)
        r[~np.isfinite(r).all(axis=-1)] = 0.0
        if caps is None:
            return r
        norms = np.sqrt(np.einsum("...k,...k->...", r, r))
        # A part in 1e13 less, so that rounding cannot leave a record above its cap.
        return np.asarray(r * np.where(norms > caps, caps / norms * (1 - 1e-13), 1.0)[..., None])


class SoftmaxRun(Run):
    """Dual averaging on bounded rows and one-hot labels; ``caps`` bound the norm of each record's residuals.

    Many fits at once are on the same rows or, where these are a stack of matrices, each on its own.

    Privacy
    -------
    A call releases the mean gradient ``steps`` times, with Gaussian noise of scale ``noise`` on each of its
    K * width entries.
    """

    def __init__(
        self, rows: Rows, labels: Array, caps: Array | None, iteration: Steps, noise: float,
        counts: NDArray[np.int64] | None = None,
    ) -> None:  # fmt: skip
        self.rows, self.labels, self.caps, self.iteration, self.noise = rows, labels, caps, iteration, noise
        self.counts = np.ones(len(labels), dtype=np.int64) if counts is None else counts
        self.share = self.counts / self.counts.sum()
        self.shape = labels.shape[1], rows.shape[1]
        self._transposed = rows.transpose()
        # Of one fit: margins and residuals of every record, and what a trace keeps of every step.
        self.size = 8 * labels.size + (8 + 3 * iteration.steps) * math.prod(self.shape)

    def mean_gradient(self, weights: Array) -> Array:
        """The mean of the clipped gradients, (classes, width); with an axis in front, of many weights, one each."""
        r = clipped_residuals(product(self.rows.matrix, weights.swapaxes(-1, -2)), self.labels, self.caps)
        return product(self._transposed, r * self.share[:, None]).swapaxes(-1, -2)

    def thresholded(self, total: Array) -> Array:
        """The features with the longest columns; an intercept is kept besides."""
        free = self.shape[1] - (1 if self.iteration.fit_intercept else 0)
        sparsity = self.iteration.sparsity
        if sparsity is None or sparsity >= free:
            return total
        lengths = np.einsum("...kj,...kj->...j", total[..., :free], total[..., :free])
        stays = np.zeros((*total.shape[:-2], self.shape[1]), dtype=bool)
        top = np.argpartition(-lengths, sparsity - 1, axis=-1)[..., :sparsity]
        np.put_along_axis(stays, top, True, axis=-1)
        stays[..., free:] = True
        return np.where(stays[..., None, :], total, 0.0)

    def fits(self, streams: Generators, trace: bool = False) -> Trials:
        """See ``Run``; releases and iterates are flattened, one row per step."""

        def noisy(weights: Array) -> Array:
            gradient = self.mean_gradient(weights)
            if self.noise > 0:
                gradient += self.noise * streams.standard_normal(gradient.shape)
            return gradient

        return self.iterated((len(streams),), noisy, trace)

    def iterated(self, fits: tuple[int, ...], noisy: Callable[[Array], Array], trace: bool) -> Trials:
        """The iteration from noisy gradients at the weights that it is at; the first axis is the fit."""
        iteration, releases, iterates = self.iteration, list[Array](), list[Array]()
        total: Array = np.zeros((*fits, *self.shape))
        for _ in progress.steps(iteration.steps):
            gradient = noisy(self.thresholded(total))
            # A new array: what a threshold that keeps all returns may be this one.
            total = total - iteration.step_size * gradient
            if trace:
                releases.append(gradient)
                iterates.append(self.thresholded(total))
        kept = (_flat(releases), _flat(iterates)) if trace else (None, None)
        return Trials(self.thresholded(total), *kept, history=self._history)

    def _history(self, i: int) -> dict[str, Any]:
        return {"noise_scale": [self.noise] * self.iteration.steps}

    def diagnose(self, weights: Array, history: Mapping[str, Any]) -> dict[str, Any]:
        """The objective of the bounded records; NOT private."""
        return self.objective_of(np.asarray(self.rows.matrix @ weights.T))

    def objective_of(self, margins: Array) -> dict[str, Any]:
        """The objective at these margins of the records; NOT private."""
        each = np.repeat(np.arange(len(self.counts)), self.counts)
        return {"objective": LOSS.objective(margins[each], self.labels[each])}


def _flat(steps: Sequence[Array]) -> Array:
    """(..., steps, classes * width) of one array (..., classes, width) a step."""
    together = np.stack(steps, axis=-3)
    return together.reshape(*together.shape[:-2], -1)
