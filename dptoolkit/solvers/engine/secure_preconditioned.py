"""Descent along released second moments with secure noise: whole numbers in blocks, added up exactly.

Privacy
-------
Rows and residuals are whole numbers on public grids. A record's residual is clipped such that its gradient is at most
``grad_norm`` in whole numbers: by floor(grad_norm / g_r) where rows have norm 1, and for shorter rows by the norm of
the rounded row. Second moments are sums of products of rows on a grid of their own, whose norm is checked in whole
numbers, so the Frobenius distance of two records stays at most sqrt(2). Their noise is that of the packed vector: an
entry off the diagonal counts twice, and gets noise that is smaller by sqrt(2), rounded up.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit import losses
from dptoolkit.data import Rows
from dptoolkit.data.grids import Grids, released_mean, rows_on_grid
from dptoolkit.randomness import SecureStream, rounded_normals
from dptoolkit.solvers.engine.preconditioned import BoundedRecords, PreconditionedRun, residual_sums, row_blocks
from dptoolkit.solvers.engine.secure import SecureNoise
from dptoolkit.solvers.engine.softmax import clipped_residuals
from dptoolkit.types import Array

_SUM_BITS = 52


def moment_bits(n: int) -> int:
    """The digits of an entry of a row in second moments: products over n records stay below 2^52."""
    return (_SUM_BITS - math.ceil(math.log2(n + 1))) // 2


def moment_sums(rows: Rows, counts: Array, n: int) -> NDArray[np.int64]:
    """The upper triangle of the sum of x x^T, row by row, in units of 4^-moment_bits(n); NOT private."""
    width = rows.shape[1]
    total, grids = np.zeros((width, width)), Grids(n, 1.0, 1.0, moment_bits(n), 0)
    is_once = bool((counts == 1).all())
    for some, block in row_blocks(rows):
        whole = rows_on_grid(Rows(block, False), grids, True).matrix
        # Exact either way; NumPy computes half of a product of a matrix with itself.
        total += whole.T @ (whole if is_once else whole * counts[some, None])
    return np.asarray(total[np.triu_indices(width)]).astype(np.int64)


def noisy_moments(sums: NDArray[np.int64], width: int, units: int, stream: SecureStream) -> Array:
    """The packed sums with noise of ``units`` grid units on the diagonal, and with 1/sqrt(2) of it elsewhere.

    Privacy
    -------
    In the packed vector entries off the diagonal are times sqrt(2), so noise of ``units`` on each of its entries is at
    least what is drawn here: 2 m^2 >= units^2.
    """
    smaller = math.isqrt(units * units // 2)
    smaller += int(2 * smaller * smaller < units * units)
    first, second = np.triu_indices(width)
    is_square = first == second
    noise = np.empty(len(sums), np.int64)
    noise[is_square] = rounded_normals(stream, units, width)
    noise[~is_square] = rounded_normals(stream, smaller, len(sums) - width)
    return np.asarray((sums + noise) * np.where(is_square, 1.0, math.sqrt(2)))


def rounded_rows(rows: Rows, grids: Grids, over: bool = False) -> Rows:
    """Dense rows rounded to multiples of the grid's unit, in their own precision; ``over`` writes them over the rows.

    Entries have at most 24 bits (data/grids.py), so that single precision holds them exactly. Block by block, so that
    no copy of the table is made.

    Privacy
    -------
    See ``rows_on_grid``: each row is changed on its own, and its norm is checked in whole numbers.
    """
    out = rows.matrix if over else np.empty_like(rows.matrix)
    for some, block in row_blocks(rows):
        out[some] = rows_on_grid(Rows(block, False), grids, True).matrix * grids.row_unit
    return Rows(out, False, rows.is_marked)


class SecurePreconditionedRun(PreconditionedRun):
    """``PreconditionedRun`` with secure noise; ``over`` rounds the rows where they are, and makes no copy of them.

    Privacy
    -------
    See the module. ``noise`` is the noise of one step; its grids are those of rows of norm at most 1.
    """

    def __init__(
        self,
        records: BoundedRecords,
        matrix: Array,
        steps: int,
        noise: SecureNoise,
        counts: Array,
        is_unit: bool,
        over: bool = False,
    ) -> None:
        super().__init__(records, matrix, steps, noise.law.scale)
        self._secure, grids = noise, noise.grids
        self._units, cap = noise.at(noise.law.scale)
        self._counts = counts
        self._rows = rounded_rows(records.rows, grids, over)
        self._square = math.floor((Fraction(grids.limit) / Fraction(grids.residual_unit)) ** 2)
        self._caps: Array = np.full(len(counts), cap)
        if not is_unit:
            for some, block in row_blocks(self._rows):
                norms = np.sqrt((block * block).sum(axis=1))
                with np.errstate(divide="ignore"):
                    self._caps[some] = np.floor(grids.limit / grids.residual_unit / norms * (1 - 2.0**-40))
            # The residual of a row of zeros adds nothing.
            self._caps[~np.isfinite(self._caps)] = 0.0

    def residuals(self, margins: Array, some: slice) -> Array:
        """The residuals of some records in grid units, times their counts: whole numbers, each record's on its own."""
        grids, records = self._secure.grids, self.records
        if records.loss.task != losses.MULTICLASS:
            from dptoolkit.kernels.threshold import grid_residuals

            whole = np.empty(len(margins))
            inverse = 1.0 / grids.residual_unit
            grid_residuals(
                records.loss.id, margins, records.y[some], inverse, self._caps[some], self._counts[some], whole
            )
            return whole
        from dptoolkit.kernels.grids import rows_on_grid as on_grid

        r = clipped_residuals(margins, records.y[some], np.full(len(margins), grids.limit))
        out, classes = np.empty(r.size), r.shape[1]
        starts = np.arange(0, r.size + 1, classes, dtype=np.uint64)
        on_grid(np.ascontiguousarray(r).reshape(-1), starts, 1.0 / grids.residual_unit, self._square, 0, out)
        return np.asarray(out.reshape(r.shape) * self._counts[some, None])

    def sums(self, weights: Array) -> NDArray[np.int64]:
        """The sum of all gradients in grid units; NOT private.

        Products are whole numbers times the unit of rows, a power of two, so that sums are as exact as without it.
        """
        total = residual_sums(self._rows, weights, self.residuals)
        return np.asarray(total / self._secure.grids.row_unit).astype(np.int64)

    def noisy(self, weights: Array, rng: Any) -> Array:
        """See ``PreconditionedRun``.

        Privacy
        -------
        Gaussian(M / sensitivity) in grid units, at most a step's part of the plan's event.
        """
        sums = self.sums(weights)
        noise = rounded_normals(rng, self._units, sums.size).reshape(sums.shape)
        return released_mean(sums + noise, self._secure.grids, self._secure.size)
