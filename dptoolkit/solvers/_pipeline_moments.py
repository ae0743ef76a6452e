"""dp_pipeline on large tables: descent along the released second moments, on rows in single precision.

Where a table has many records for its columns and budget, plain descent takes more than a thousand passes. Then the
matrix of second moments of the prepared rows is released in place of its largest eigenvalue, and some forty passes are
enough (engine/preconditioned.py). The rule is ``rules.is_preconditioned``, which sees public numbers alone. Prepared
rows are the only copy of the table: one array of single precision, read in blocks and added up in doubles.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit import losses
from dptoolkit.data import Rows, stored
from dptoolkit.solvers._pipeline_secure import SecureStages
from dptoolkit.solvers._pipeline_stages import (
    COLUMN_MEANS,
    DESCENT,
    EIGENVALUE,
    MEANS,
    MOMENTS,
    Preparation,
    column_means,
)
from dptoolkit.solvers._pipeline_tables import TableMap, in_rows
from dptoolkit.solvers.engine.preconditioned import (
    BoundedRecords,
    PreconditionedRun,
    margins_of,
    preconditioner,
    row_blocks,
    second_moments,
)
from dptoolkit.solvers.frame import rules
from dptoolkit.solvers.frame.plan import Plan
from dptoolkit.solvers.frame.run import Run, Trace
from dptoolkit.types import Array

# What entries are multiplied by before they are rounded to single precision, so that no row becomes longer than 1:
# it is more than an entry can grow by, but for those below 1e-38, which grow by less than 1e-44.
_DOWN = 1 - 2.0**-22


class MomentsStages(Run):
    """What ``MomentsRun`` does in its own way; the rest is that of ``PipelineRun``.

    Privacy
    -------
    A call releases what the plan of ``dp_pipeline`` lists, each with the planned noise; the second moments in place of
    the eigenvalue. Rounding to single precision changes each record on its own. Rows are made a little shorter before,
    so that their norm stays at most 1. Sums are taken in doubles.
    """

    # Methods of ``PipelineRun``.
    _noisy_means: Callable[..., Array]
    _scaled: Callable[..., tuple[Array, Array]]
    _unfold: Callable[..., Array]

    def __init__(self, plan: Plan[Any], table: TableMap, rows: Rows, y: Array, counts: Any = None) -> None:
        self.plan, self.table, self.raw, self.y, self.counts = plan, table, rows, y, counts
        times = np.ones(rows.shape[0]) if counts is None else np.asarray(counts, dtype=float)
        self.share, self._times = times / plan.n, times
        self.secure = None if plan.secure is None else SecureStages(plan)
        self.noise = [release.scale for release in plan.releases]
        self.width = (plan.settings.classes or 1) * (plan.d + 1)
        self.size = 4 * rows.shape[0] * (plan.d + 1) + 8 * plan.settings.moments_schedule(plan)[0] * self.width

    @property
    def rows(self) -> Rows:
        """The rows that the table's map makes, in doubles; for diagnostics, as a fit keeps none."""
        return self.table(self.raw)

    def _one(self, rng: Any, trace: bool) -> Trace:
        settings, (steps, ridge) = self.plan.settings, self.plan.settings.moments_schedule(self.plan)
        mapped = self._mapped()
        means = self._noisy_column_means(mapped, rng)
        preparation = Preparation.of(means, self.noise[MEANS], settings.units)
        rows = self._written_over(mapped, preparation)
        moments = self._noisy_moments(rows, rng)
        curvature = rules.residual_curvature(settings.loss_row, settings.grad_norm)
        matrix = preconditioner(moments, rows.shape[1], curvature, ridge)
        descent = self._run(rows, matrix, steps)(rng, trace)
        slopes, scale = self._scaled(rows, descent.weights, rng)
        history = descent.history | {
            "preparation": preparation, "steps": steps, "ridge": ridge,
            "slopes": slopes.tolist(), "scale": float(scale),
        }  # fmt: skip
        weights = preparation.model(descent.weights) * scale
        if not trace:
            return Trace(weights, history)
        kept = [in_rows(part, self.width) for part in (means, moments)]
        path = self._unfold(preparation, descent.releases), in_rows(slopes, 1) * np.eye(1, self.width)
        return Trace(weights, history, np.concatenate([*kept, *path]), self._unfold(preparation, descent.iterates))

    def at_once(self, trace: bool) -> bool:
        """See ``Run``; rows are large."""
        return False

    def _mapped(self) -> NDArray[np.float32]:
        """The rows that the table's map makes, in single precision, with room for the intercept's column."""
        out = np.empty((self.raw.shape[0], self.plan.d + 1), np.float32)
        for some, part in self.table.blocks(self.raw):
            out[some, :-1] = part * _DOWN
        return out

    def _noisy_column_means(self, mapped: NDArray[np.float32], rng: Any) -> Array:
        if self.secure is not None:
            blocks = row_blocks(Rows(mapped[:, :-1], False))
            sized = ((Rows(np.abs(block), False), self._times[some]) for some, block in blocks)
            return self.secure.row_sum(COLUMN_MEANS, sized, rng)
        self.means = self._column_means(mapped)
        return self._noisy_means(rng, ())

    def _noisy_moments(self, rows: Rows, rng: Any) -> Array:
        if self.secure is not None:
            return self.secure.moments(MOMENTS, rows, self._times, rng)
        moments = second_moments(rows, self.share)
        return np.asarray(moments + self.noise[EIGENVALUE] * rng.standard_normal(moments.shape))

    def _run(self, rows: Rows, matrix: Array, steps: int) -> PreconditionedRun:
        if self.secure is not None:
            return self.secure.preconditioned(self._records(rows), matrix, steps, self._times)
        return PreconditionedRun(self._records(rows), matrix, steps, self.noise[DESCENT] * math.sqrt(steps))

    def _column_means(self, mapped: NDArray[np.float32]) -> Array:
        total = np.zeros(self.plan.d)
        for some, block in row_blocks(Rows(mapped[:, :-1], False)):
            total += column_means(Rows(block, False), self.share[some])
        return total

    def _written_over(self, mapped: NDArray[np.float32], preparation: Preparation) -> Rows:
        """Prepared rows, written over the mapped ones: kept features, then the intercept.

        Where features are left out, rows move together: what is written never reaches a row that was not read.
        """
        kept = preparation.kept
        rows = mapped.reshape(-1)[: len(mapped) * (len(kept) + 1)].reshape(len(mapped), -1)
        level = stored(preparation.level, np.float32)
        for some, block in row_blocks(Rows(mapped[:, :-1], False)):
            rows[some, :-1] = self._features(block, preparation, kept) * _DOWN
            rows[some, -1] = level
        return Rows(rows, False)

    @staticmethod
    def _features(block: Array, preparation: Preparation, kept: NDArray[np.intp]) -> Array:
        """``Preparation.features`` of a block of doubles."""
        from dptoolkit.kernels.tables import bound

        if preparation.units.row_norm is not None:
            return np.asarray(preparation.features(Rows(block, False)).matrix)
        values = np.ascontiguousarray(block[:, kept] if len(kept) < block.shape[1] else block)
        values *= preparation.weights[kept]
        bound(values, preparation.length, False)
        return values

    def _records(self, rows: Rows) -> BoundedRecords:
        """The records of the descent; for regression a row may be short, and its residual is clipped accordingly."""
        settings = self.plan.settings
        caps: Array = np.full(rows.shape[0], settings.grad_norm)
        if settings.loss_row.task == losses.REGRESSION:
            for some, block in row_blocks(rows):
                caps[some] = settings.residual_caps(Rows(block, False))
        return BoundedRecords(rows, self.y, settings.loss_row, caps, self.share)

    def _margins(self, rows: Rows, w: Array) -> Array:
        return margins_of(rows, w)
