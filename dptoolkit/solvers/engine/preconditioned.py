"""Descent along a released matrix of second moments: many records are fitted in few passes, whatever their columns are.

    M = mean of x x^T + symmetric noise,   P = (curvature M + ridge)^-1 / SLACK
    w <- w - P (mean gradient + N(0, scale^2) on every entry)

Plain descent takes as many steps as the largest eigenvalue of M asks for, and the small ones decide for how long.
With P every direction has the step that is right for it. In a direction without curvature T steps amount to a time of
T / (SLACK ridge), which the ridge makes the time that the noise of a margin allows; elsewhere they amount to less. So
the noise of a margin is bounded as in plain descent. Rows are read in blocks, in doubles, one pass per step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit import losses, progress
from dptoolkit.adjacency import Adjacency
from dptoolkit.data import Rows
from dptoolkit.losses import Loss
from dptoolkit.mechanisms.randomness import Generators
from dptoolkit.solvers.engine.softmax import clipped_residuals
from dptoolkit.solvers.frame import rules
from dptoolkit.solvers.frame.run import Run, Trace, Trials, one_after_another
from dptoolkit.types import Array

# Entries that are read at a time: as doubles they fit into the cache of a processor.
_BLOCK = 1 << 17


def row_blocks(rows: Rows) -> Iterator[tuple[slice, Array]]:
    """(which rows, their entries as doubles), so many rows at a time that they stay in the cache."""
    n, width = rows.shape
    size = max(_BLOCK // width, 1)
    for start in range(0, n, size):
        some = slice(start, min(start + size, n))
        part = rows.matrix[some]
        yield some, np.asarray(part.toarray() if rows.is_sparse else part, dtype=np.float64)


def stored_blocks(rows: Rows) -> Iterator[tuple[slice, NDArray[Any]]]:
    """(which rows, their entries as they are stored), so many rows at a time as ``row_blocks`` has."""
    n, width = rows.shape
    size = max(_BLOCK // width, 1)
    for start in range(0, n, size):
        some = slice(start, min(start + size, n))
        yield some, rows.matrix[some]


def has_kernels(rows: Rows) -> bool:
    """Whether kernels read the rows as they are stored."""
    return not rows.is_sparse and bool(rows.matrix.flags.c_contiguous)


def margins_of(rows: Rows, weights: Array) -> Array:
    """The margins of all rows, added up in doubles; with an axis for the classes, of one where weights have none.

    Privacy
    -------
    NOT private. A record's margins are computed from its own row and the weights.
    """
    columns = weights[:, None] if weights.ndim == 1 else weights.T
    if weights.ndim > 1 or not has_kernels(rows):
        return np.concatenate([block @ columns for _, block in row_blocks(rows)])
    from dptoolkit.kernels import tables

    out = np.empty(rows.shape[0])
    tables.margins(rows.matrix, weights, out)
    return out[:, None]


def residual_sums(rows: Rows, weights: Array, residuals: Callable[[Array, slice], Array]) -> Array:
    """sum_i r_i x_i, added up in doubles in one pass over the rows; r = residuals(margins of some rows, which rows).

    Rows in single precision are read as they are, one weight vector at a time; for several classes BLAS is quicker,
    which needs a block in doubles.

    Privacy
    -------
    NOT private. A record's margin, and so its residual, is computed from its own row alone.
    """
    total = np.zeros(weights.shape)
    if weights.ndim > 1 or not has_kernels(rows):
        for some, block in row_blocks(rows):
            total += residuals(block @ weights.T, some).T @ block
        return total
    from dptoolkit.kernels import tables

    for some, block in stored_blocks(rows):
        margins = np.empty(len(block))
        tables.margins(block, weights, margins)
        tables.add_rows(block, residuals(margins, some), total)
    return total


# --- second moments -------------------------------------------------------------------------------------------


def moments_sensitivity(adjacency: Adjacency, n: int) -> float:
    """How far one record moves the packed second moments of rows of norm at most 1 in L2.

    The packed distance is the Frobenius distance, and |x x^T - z z^T|^2 = |x|^4 + |z|^4 - 2 <x, z>^2 <= 2; where a
    record is left out it is |x|^4 <= 1.
    """
    return math.sqrt(adjacency.contributions) / n


def second_moments(rows: Rows, share: Array) -> Array:
    """The upper triangle of sum_i share_i x_i x_i^T, row by row, with entries off the diagonal times sqrt(2).

    Privacy
    -------
    NOT private. One record moves it in L2 by at most ``moments_sensitivity`` if rows have norm at most 1.
    """
    width, roots = rows.shape[1], np.sqrt(share)
    total = np.zeros((width, width))
    for some, block in row_blocks(rows):
        part = block * roots[some, None]
        # NumPy computes half of a product of a matrix with itself.
        total += part.T @ part
    return _packed(total)


def _packed(matrix: Array) -> Array:
    upper = np.triu_indices(len(matrix))
    return np.asarray(matrix[upper] * np.where(upper[0] == upper[1], 1.0, math.sqrt(2)))


def unpacked(packed: Array, width: int) -> Array:
    """The symmetric matrix of packed second moments."""
    out = np.zeros((width, width))
    upper = np.triu_indices(width)
    out[upper] = packed * np.where(upper[0] == upper[1], 1.0, 1 / math.sqrt(2))
    return out + np.triu(out, 1).T


def preconditioner(packed: Array, width: int, curvature: float, ridge: float) -> Array:
    """(curvature M + ridge)^-1 / SLACK for released second moments M, whose negative eigenvalues count as 0.

    Privacy
    -------
    Follows from a release and public numbers.
    """
    values, vectors = np.linalg.eigh(unpacked(packed, width))
    return np.asarray((vectors / (rules.SLACK * (curvature * np.maximum(values, 0.0) + ridge))) @ vectors.T)


# --- the descent ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BoundedRecords:
    """Records whose residuals are clipped to ``caps``, one per record; labels of classes are one-hot."""

    rows: Rows
    y: Array
    loss: Loss
    caps: Array
    share: Array

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the weights."""
        width = self.rows.shape[1]
        return (self.y.shape[1], width) if self.loss.task == losses.MULTICLASS else (width,)

    def mean_gradient(self, weights: Array) -> Array:
        """sum_i share_i clip(residual_i) x_i, read in blocks and added up in doubles.

        Privacy
        -------
        NOT private. One record of share 1/n moves it by at most twice its cap times the norm of its row, over n.
        """
        shares = self._class_shares if self.loss.task == losses.MULTICLASS else self._shares
        return residual_sums(self.rows, weights, shares)

    def _shares(self, margins: Array, some: slice) -> Array:
        """Each record's share of its clipped residual."""
        from dptoolkit.kernels.threshold import mean_residuals

        r = np.empty(len(margins))
        # The kernel divides by the number of margins.
        mean_residuals(self.loss.id, margins, self.y[some], math.inf, self.caps[some], r)
        return r * (len(r) * self.share[some])

    def _class_shares(self, margins: Array, some: slice) -> Array:
        return clipped_residuals(margins, self.y[some], self.caps[some]) * self.share[some, None]


class PreconditionedRun(Run):
    """Descent with a public matrix in front of every step.

    Privacy
    -------
    A call releases the mean gradient ``steps`` times, with Gaussian noise of scale ``noise`` on every entry. The matrix
    must be public, or follow from releases that are charged.
    """

    def __init__(self, records: BoundedRecords, matrix: Array, steps: int, noise: float) -> None:
        self.records, self.matrix, self.steps, self.noise = records, matrix, steps, noise
        self.size = 16 * math.prod(records.shape) * (steps + 1)

    def one(self, rng: np.random.Generator, trace: bool) -> Trace:
        """See ``Run``; releases and iterates are flattened, one row per step."""
        weights = np.zeros(self.records.shape)
        releases, iterates = list[Array](), list[Array]()
        for _ in progress.steps(self.steps):
            gradient = self.noisy(weights, rng)
            weights = weights - gradient @ self.matrix
            if trace:
                releases.append(gradient.ravel())
                iterates.append(weights.ravel())
        history: dict[str, Any] = {"noise_scale": [self.noise] * self.steps}
        return Trace(weights, history, *((np.array(releases), np.array(iterates)) if trace else ()))

    def noisy(self, weights: Array, rng: Any) -> Array:
        """The noisy mean gradient."""
        gradient = self.records.mean_gradient(weights)
        return gradient + self.noise * rng.standard_normal(gradient.shape) if self.noise > 0 else gradient

    def at_once(self, trace: bool) -> bool:
        """See ``Run``; every fit has a matrix of its own."""
        return False

    def fits(self, streams: Generators, trace: bool = False) -> Trials:
        """See ``Run``; one after another."""
        return one_after_another(self, streams, trace)
