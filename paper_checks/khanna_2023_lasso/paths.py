"""Private LASSO for many trials at once: each trial has rows of its own, and all share the passes over the data.

The iteration is Algorithm 1 of Khanna, Lu and Raff 2023 with its step 2/(t + 2), in single precision with noise and in
double precision without. Margins follow the chosen vertices, so that a step reads the data once.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
LAPLACE, GUMBEL = "Laplace", "Gumbel"


class Path(NamedTuple):
    """The weights of every trial after some numbers of selections, and the mean number of nonzeros after each."""

    weights: dict[int, Array]
    nonzeros: Array


def frank_wolfe(
    X: Array, y: Array, inside: Array, radius: float | Array, scales: Array, selections: int, rng: np.random.Generator,
    law: str = LAPLACE, keep: Collection[int] = (),
) -> Path:  # fmt: skip
    """One path per row of ``inside``, which marks the rows of X that the trial trains on.

    ``scales`` has the scale of the noise on a vertex score for every trial, and ``radius`` one for all or one for each
    of the L1 ball. Weights are kept after the selections of
    ``keep`` and after the last one.
    """
    kind = X.dtype
    columns, trials = np.ascontiguousarray(X.T), np.arange(len(inside))
    share = (inside / inside.sum(axis=1, keepdims=True)).astype(kind)
    margins, weights = np.zeros((len(inside), len(y)), kind), np.zeros((len(inside), X.shape[1]), kind)
    # Scores over the radius: the noise is divided by it as well.
    radii = np.broadcast_to(np.asarray(radius, kind), scales.shape)
    spread = (scales / radii).astype(kind)[:, None]
    kept, nonzeros = {}, []
    labels = y.astype(kind)
    for t in range(1, selections + 1):
        gradient = ((_sigmoid(margins) - labels) * share) @ X
        # The smallest score of a vertex +-s is the largest of its negative.
        up, down = -gradient, gradient.copy()
        if spread.any():
            up += spread * _noise(rng, law, up.shape, kind)
            down += spread * _noise(rng, law, up.shape, kind)
        best, sign = _largest(up, down)
        step = kind.type(2 / (t + 2))
        move = (step * radii * sign).astype(kind)
        weights *= 1 - step
        weights[trials, best] += move
        margins *= 1 - step
        margins += move[:, None] * columns[best]
        nonzeros.append(np.count_nonzero(weights, axis=1).mean())
        if t in keep or t == selections:
            kept[t] = weights.copy()
    return Path(kept, np.array(nonzeros))


def _sigmoid(margins: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-np.clip(margins, -80, 80))))


def _largest(up: Array, down: Array) -> tuple[Array, Array]:
    """The best feature of every trial and its sign; the first one if several are as good."""
    rows = np.arange(len(up))
    first, second = up.argmax(axis=1), down.argmax(axis=1)
    positive = up[rows, first] >= down[rows, second]
    return np.where(positive, first, second), np.where(positive, 1.0, -1.0)


def _noise(rng: np.random.Generator, law: str, shape: tuple[int, ...], kind: Any) -> Array:
    """Standard Laplace noise, the difference of two exponential variables, or standard Gumbel noise."""
    first = rng.standard_exponential(shape, kind)
    if law == GUMBEL:
        # In single precision about one draw in ten million is 0, which would be infinite noise.
        return np.asarray(-np.log(np.maximum(first, kind.type(1e-8))))
    return np.asarray(first - rng.standard_exponential(shape, kind))


def hard_thresholding(
    X: Array, y: Array, row_norm: float, lengths: Array, kept: Array, scales: Array, steps: int,
    rng: np.random.Generator,
) -> Array:  # fmt: skip
    """Private IGHT for logistic regression; every trial has its step length, number of kept weights and noise scale."""
    rows = X * np.minimum(1, row_norm / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-12))
    rows, kind = rows.astype(np.float32), np.dtype(np.float32)
    across, labels = np.ascontiguousarray(rows.T), y.astype(kind)
    weights = np.zeros((len(scales), X.shape[1]), kind)
    length, scale = lengths.astype(kind)[:, None], scales.astype(kind)[:, None]
    for _ in range(steps):
        gradient = (_sigmoid(weights @ across) - labels) @ rows / kind.type(len(y))
        weights -= length * (gradient + scale * rng.standard_normal(weights.shape, kind))
        # What is kept is at least the k-th largest of its row.
        sizes = np.abs(weights)
        least = np.take_along_axis(-np.sort(-sizes, axis=1), kept[:, None] - 1, axis=1)
        weights[sizes < least] = 0.0
    return weights
