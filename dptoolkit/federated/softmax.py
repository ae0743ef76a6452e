"""A client's steps with the softmax loss: a weight for every feature and class, a record's gradients clipped together.

    W <- H_tau(W - step_size * ((1/b) sum over the batch of x_i r_i^T + N(0, scale^2) on every entry))

r_i = softmax(x_i W) - e_y has one entry for every class. H_tau keeps the tau weights that are largest, of all features
and classes together; intercepts are kept besides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit.data import Rows
from dptoolkit.mechanisms.randomness import Generators
from dptoolkit.solvers._sgd import Batches
from dptoolkit.solvers.engine.batches import batch_sizes
from dptoolkit.solvers.engine.initial import NOTHING, Start
from dptoolkit.solvers.engine.softmax import LOSS, clipped_residuals
from dptoolkit.solvers.frame.run import Run, Trace, Trials, one_after_another
from dptoolkit.types import Array


class SoftmaxSteps(Run):
    """Hard thresholding on bounded rows, dense or CSR, and one-hot labels; ``caps`` bound each record's residuals.

    Weights are flat: those of feature 0, one for every class, then those of feature 1, and so on; intercepts last. A
    batch size that is NaN stands for all records.

    Privacy
    -------
    A step releases the mean gradient of a fresh batch, or of all records, with Gaussian noise of scale ``noise`` on
    every entry; noise and gradient are added before anything else is.
    """

    def __init__(
        self, rows: Rows, labels: Array, caps: Array | None, iteration: Batches, noise: float, start: Start = NOTHING
    ) -> None:
        self.rows, self.labels, self.caps, self.start = rows, labels, caps, start
        self.iteration, self.noise = iteration, noise
        self.shape = rows.shape[1], labels.shape[1]
        self.free = (self.shape[0] - (1 if iteration.fit_intercept else 0)) * self.shape[1]

    def advance(self, rng: np.random.Generator, start: Start, steps: int) -> Start:
        """The weights after ``steps`` steps from ``start``, both as (support, values).

        Privacy
        -------
        ``steps`` of the plan's releases. ``start`` must be public, or follow from releases that are charged.
        """
        end = self._steps(rng, start, steps, None, None)
        support = np.flatnonzero(end)
        return support, end[support]

    def mean_gradient(self, weights: Array, batch: NDArray[np.int64] | None) -> Array:
        """The sum of the clipped gradients of a batch, over its expected size; of all records for None.

        Privacy
        -------
        NOT private: noise is added in ``_steps``. One record moves it by at most 2 grad_norm / expected size.
        """
        X, y, caps = self.rows.matrix, self.labels, self.caps
        if batch is not None:
            X, y, caps = X[batch], y[batch], None if caps is None else caps[batch]
        size = len(y) if batch is None else self.iteration.batch_size
        r = clipped_residuals(np.asarray(X @ weights.reshape(self.shape)), y, caps)
        return np.asarray(X.T @ r).ravel() / size

    def _batches(self, rng: np.random.Generator, steps: int) -> list[NDArray[np.int64] | None]:
        """The records of fresh batches."""
        if math.isnan(self.iteration.batch_size):
            return [None] * steps
        n = len(self.labels)
        sizes = batch_sizes(rng, self.iteration.sampling, n, self.iteration.batch_size, steps)
        return [rng.choice(n, size, replace=False, shuffle=False) for size in sizes.tolist()]

    def _noisy_gradients(self, rng: Any, steps: int) -> list[Callable[[Array], Array]]:
        """One function a step, from weights to their noisy mean gradient on a fresh batch."""

        def noisy(batch: NDArray[np.int64] | None, weights: Array) -> Array:
            gradient = self.mean_gradient(weights, batch)
            if self.noise > 0:
                gradient += self.noise * rng.standard_normal(len(gradient))
            return gradient

        return [partial(noisy, batch) for batch in self._batches(rng, steps)]

    def _steps(
        self, rng: np.random.Generator, start: Start, steps: int, releases: Array | None, iterates: Array | None
    ) -> Array:
        from dptoolkit.kernels.threshold import largest

        w = np.zeros(math.prod(self.shape))
        w[start[0]] = start[1]
        for t, noisy_gradient in enumerate(self._noisy_gradients(rng, steps)):
            noisy = noisy_gradient(w)
            w = w - self.iteration.step_size * noisy
            kept = largest(w[: self.free], self.iteration.sparsity)
            if len(kept) < self.free:
                top = w[kept]
                w[: self.free] = 0.0
                w[kept] = top
            if releases is not None and iterates is not None:
                releases[t], iterates[t] = noisy, w
        return w

    def at_once(self, trace: bool) -> bool:
        """See ``Run``; every fit has its own batches."""
        return False

    def fits(self, streams: Generators, trace: bool = False) -> Trials:
        """See ``Run``."""
        return one_after_another(self, streams, trace)

    def one(self, rng: np.random.Generator, trace: bool) -> Trace:
        """All steps of the plan from its initial model, as one client sees them whose own messages are sent back."""
        steps, width = self.iteration.steps, math.prod(self.shape)
        releases, iterates = (np.empty((steps, width)), np.empty((steps, width))) if trace else (None, None)
        w = self._steps(rng, self.start, steps, releases, iterates)
        return Trace(w, {"thresholdings": steps}, releases, iterates)

    def diagnose(self, weights: Array, history: Mapping[str, Any]) -> dict[str, Any]:
        """The objective of the bounded records; NOT private."""
        return {"objective": LOSS.objective(np.asarray(self.rows.matrix @ weights.reshape(self.shape)), self.labels)}
