"""Dual averaging of the softmax loss: one weight for every class and feature, one record's gradients clipped together.

    Z <- Z - step_size * (mean of r_i x_i^T + N(0, scale^2) on every entry),   W = H_s(Z)

r_i = softmax(W x_i) - e_y has K entries. A record's gradient is r_i x_i^T, of norm |r_i| |x_i|: it is scaled down as a
whole, so that one record moves the mean by as little as with two classes, however many there are. H_s keeps the s
features whose K sums together are longest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit import losses
from dptoolkit.data import Rows
from dptoolkit.solvers.base import Array, Trace
from dptoolkit.solvers.gradient_iht import Steps

LOSS = losses.get("softmax")


def clipped_residuals(margins: Array, labels: Array, caps: Array | None) -> Array:
    """softmax - one-hot of every record, each scaled down to a norm of at most caps[i].

    A record whose margins overflow counts as zero, so that it cannot spoil the whole gradient.
    """
    with np.errstate(all="ignore"):
        r = LOSS.residual(margins, labels)
        r[~np.isfinite(r).all(axis=1)] = 0.0
        if caps is None:
            return r
        norms = np.sqrt(np.einsum("ik,ik->i", r, r))
        # A part in 1e13 less, so that rounding cannot leave a record above its cap.
        return np.asarray(r * np.where(norms > caps, caps / norms * (1 - 1e-13), 1.0)[:, None])


class SoftmaxRun:
    """Dual averaging on bounded rows and one-hot labels; ``caps`` bound the norm of each record's residuals.

    Privacy
    -------
    A call releases the mean gradient ``steps`` times, with Gaussian noise of scale ``noise`` on each of its
    K * width entries.
    """

    def __init__(
        self, rows: Rows, labels: Array, caps: Array | None, steps: Steps, noise: float,
        counts: NDArray[np.int64] | None = None,
    ) -> None:  # fmt: skip
        self.rows, self.labels, self.caps, self.steps, self.noise = rows, labels, caps, steps, noise
        self.counts = np.ones(len(labels), dtype=np.int64) if counts is None else counts
        self.share = self.counts / self.counts.sum()
        self.shape = labels.shape[1], rows.shape[1]
        self._transposed = rows.transpose()

    def mean_gradient(self, weights: Array) -> Array:
        """The mean of the clipped gradients, (classes, width)."""
        r = clipped_residuals(np.asarray(self.rows.matrix @ weights.T), self.labels, self.caps)
        return np.asarray(self._transposed @ (r * self.share[:, None])).T

    def thresholded(self, total: Array) -> Array:
        """The features with the longest columns; an intercept is kept besides."""
        free = self.shape[1] - (1 if self.steps.fit_intercept else 0)
        sparsity = self.steps.sparsity
        if sparsity is None or sparsity >= free:
            return total
        lengths = np.einsum("kj,kj->j", total[:, :free], total[:, :free])
        out = np.zeros_like(total)
        top = np.append(np.argpartition(-lengths, sparsity - 1)[:sparsity], np.arange(free, self.shape[1]))
        out[:, top] = total[:, top]
        return out

    def __call__(self, rng: np.random.Generator, trace: bool = False) -> Trace:
        """One fit; releases and iterates are flattened, one row a step."""
        how, releases, iterates = self.steps, [], []
        total: Array = np.zeros(self.shape)
        for _ in range(how.steps):
            gradient = self.mean_gradient(self.thresholded(total))
            if self.noise > 0:
                gradient += self.noise * rng.standard_normal(self.shape)
            # A new array: what a threshold that keeps all returns may be this one.
            total = total - how.step_size * gradient
            if trace:
                releases.append(gradient.ravel())
                iterates.append(self.thresholded(total).ravel())
        history: dict[str, Any] = {"noise_scale": [self.noise] * how.steps}
        weights = self.thresholded(total)
        return Trace(weights, history, np.array(releases), np.array(iterates)) if trace else Trace(weights, history)

    def fit(self, rng: np.random.Generator, every: int = 0) -> tuple[Array, dict[str, Any]]:
        """(weights, history); iterates are of the flattened weights."""
        return self(rng, trace=every > 0).fit(every)

    def diagnose(self, weights: Array, history: Mapping[str, Any]) -> dict[str, Any]:
        """The objective of the bounded records; NOT private."""
        each = np.repeat(np.arange(len(self.counts)), self.counts)
        return {"objective": LOSS.objective(np.asarray(self.rows.matrix @ weights.T)[each], self.labels[each])}
