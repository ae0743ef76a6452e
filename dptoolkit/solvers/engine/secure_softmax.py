"""Softmax dual averaging whose releases an attacker cannot undo: integer sums of one vector per class, rounded noise.

Privacy
-------
A record's gradient is r x^T, with K residuals r and a row x, both whole numbers on public grids. Their squares add up
to at most floor((limit / g_r)^2) and floor((R / g_x)^2), which is checked in whole numbers. So its norm is at most
limit R, exactly, and rounding costs nothing (data/grids.py). Every entry of the sum over records is exact.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit.data import Rows, product
from dptoolkit.data.grids import Grids, directions_on_grid, released_mean, rows_on_grid
from dptoolkit.mechanisms.randomness import Generators
from dptoolkit.randomness import SecureStream, rounded_normals
from dptoolkit.solvers.engine.descent import Steps
from dptoolkit.solvers.engine.secure import SecureNoise
from dptoolkit.solvers.engine.softmax import SoftmaxRun, clipped_residuals
from dptoolkit.solvers.frame.run import Trace, Trials, one_after_another
from dptoolkit.solvers.frame.secure import secure_stream
from dptoolkit.types import Array


def residuals_on_grid(margins: Array, labels: Array, lengths: Array | None, grids: Grids) -> Array:
    """The residuals of records in grid units: whole numbers, whose squares add up to at most those of the limit.

    ``margins`` are those of the rows or, with ``lengths``, of their directions; residuals are multiplied by the length.

    Privacy
    -------
    Each record's residuals are computed on their own, and bounded exactly.
    """
    from dptoolkit.kernels.grids import rows_on_grid as on_grid

    with np.errstate(all="ignore"):
        if lengths is None:
            r = clipped_residuals(margins, labels, None)
        else:
            r = clipped_residuals(margins * lengths[:, None], labels, None) * lengths[:, None]
        norms = np.sqrt(np.einsum("ik,ik->i", r, r))
        r *= np.where(norms > grids.limit, grids.limit / norms * (1 - 1e-13), 1.0)[:, None]
    n, classes = r.shape
    cap = math.floor((Fraction(grids.limit) / Fraction(grids.residual_unit)) ** 2)
    out, starts = np.empty(n * classes), np.arange(0, (n + 1) * classes, classes, dtype=np.uint64)
    on_grid(np.ascontiguousarray(r).reshape(-1), starts, 1.0 / grids.residual_unit, cap, 0, out)
    return out.reshape(n, classes)


class SecureSoftmaxRun(SoftmaxRun):
    """``SoftmaxRun`` with secure noise: every fit draws from a stream of its own, unless it is given one.

    Privacy
    -------
    The event of a fit is that of the secured plan. Each record's integers depend on that record, its place and public
    weights alone: margins are products of one row each, in an order that the public shapes decide.
    """

    def __init__(
        self, rows: Rows, labels: Array, caps: Array | None, iteration: Steps, noise: SecureNoise,
        counts: NDArray[np.int64] | None = None,
    ) -> None:  # fmt: skip
        grids, self._lengths = noise.grids, None
        if caps is None:
            whole = rows_on_grid(rows, grids, iteration.fit_intercept)
        else:
            whole, self._lengths = directions_on_grid(rows, grids)
        super().__init__(whole, labels, None, iteration, noise.law.scale, counts)
        self._secure, (self._units, _) = noise, noise.at(noise.law.scale)

    def residuals(self, weights: Array) -> Array:
        """The residuals of every record at these weights, times the length of its row, in grid units: whole numbers."""
        grids = self._secure.grids
        margins = product(self.rows.matrix, weights.T * grids.row_unit)
        return residuals_on_grid(margins, self.labels, self._lengths, grids)

    def sums(self, weights: Array) -> NDArray[np.int64]:
        """The sum of all gradients, (classes, width), in grid units; NOT private."""
        whole = self.residuals(weights) * self.counts[:, None]
        return np.asarray(product(self._transposed, whole)).T.astype(np.int64)

    def noisy(self, weights: Array, stream: SecureStream) -> Array:
        """The mean gradient plus rounded noise on every entry.

        Privacy
        -------
        Gaussian(M / sensitivity) in grid units, at most the plan's event.
        """
        noise = rounded_normals(stream, self._units, math.prod(self.shape)).reshape(self.shape)
        return released_mean(self.sums(weights) + noise, self._secure.grids, int(self.counts.sum()))

    def one(self, rng: Any, trace: bool) -> Trace:
        """See ``Run``; a SecureStream, for tests and audits, is used as it is."""
        with secure_stream(rng) as stream:
            return self.iterated((1,), lambda w: self.noisy(w[0], stream)[None], trace).one(0)

    def fits(self, streams: Generators, trace: bool = False) -> Trials:
        """See ``Run``."""
        return one_after_another(self, streams, trace)

    def at_once(self, trace: bool) -> bool:
        """See ``Run``."""
        return False

    def diagnose(self, weights: Array, history: Any) -> dict[str, Any]:
        """The objective of the bounded records on the grid; NOT private."""
        unit = self._secure.grids.row_unit
        lengths = np.full(len(self.labels), unit) if self._lengths is None else self._lengths * unit
        return self.objective_of(np.asarray(self.rows.matrix @ weights.T) * lengths[:, None])
