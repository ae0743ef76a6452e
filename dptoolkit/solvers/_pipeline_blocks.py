"""dp_pipeline on rows in blocks: every stage asks the blocks for an exact sum, and draws its noise here.

A block prepares its rows by what was released about the columns, and keeps them for all later stages.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dptoolkit import losses
from dptoolkit.data import Rows, product
from dptoolkit.data.blocks import CheckedBlocks, Summand
from dptoolkit.solvers._pipeline_stages import Preparation, column_means, eigenvalue_of, mean_slope, plane_moments
from dptoolkit.solvers.engine.blocked import (
    BlockedIhtRun,
    BlockedSoftmaxRun,
    mean_term,
    softmax_records,
    softmax_term,
)
from dptoolkit.solvers.engine.bounds import constant
from dptoolkit.solvers.engine.descent import IhtRun, Steps
from dptoolkit.solvers.engine.gradients import MeanGradient
from dptoolkit.solvers.engine.softmax import SoftmaxRun
from dptoolkit.solvers.frame.plan import Plan
from dptoolkit.types import Array

if TYPE_CHECKING:
    from dptoolkit.solvers._pipeline import ResolvedPipeline


@dataclass(frozen=True)
class MeansTerm(Summand):
    """The block's part of the column means of |x|, for rows of norm at most 1.

    Privacy
    -------
    NOT private: see ``column_means``.
    """

    settings: ResolvedPipeline
    n: int

    def prepared(self, rows: Rows, labels: Array) -> Rows:
        """See ``Summand``."""
        return self.settings.units.rows(rows)

    def term(self, prepared: Rows, *public: Any) -> Array:
        """See ``Summand``."""
        return column_means(prepared, np.full(prepared.shape[0], 1 / self.n))


class _Records(NamedTuple):
    """Prepared rows of a block, their labels, and what computes their gradient."""

    rows: Rows
    y: Array
    gradient: MeanGradient | SoftmaxRun


@dataclass(frozen=True)
class StageTerm(Summand):
    """What a block contributes to the stages after the column means; the first public argument names the stage.

    ``kept`` and ``weights`` are the bytes of the kept features and of their weights: what was released decides them.

    Privacy
    -------
    NOT private. Rows have norm at most 1 and gradients at most ``grad_norm``, each record on its own, so that totals
    are the queries of ``dp_pipeline``.
    """

    settings: ResolvedPipeline
    n: int
    d: int
    level: float
    kept: bytes
    weights: bytes

    def prepared(self, rows: Rows, labels: Array) -> _Records:
        """See ``Summand``."""
        settings, weights = self.settings, np.zeros(self.d)
        weights[np.frombuffer(self.kept, dtype=np.intp)] = np.frombuffer(self.weights)
        own = Preparation(weights, weights, self.level, settings.units)(settings.units.rows(rows))
        y, caps = settings.units.labels(labels), settings.residual_caps(own)
        if settings.loss_row.task == losses.MULTICLASS:
            return _Records(own, y, softmax_records(own, y, caps))
        return _Records(own, y, MeanGradient(own, y, settings.loss_row, math.inf, caps))

    def term(self, prepared: _Records, *public: Any) -> Array:
        """See ``Summand``."""
        stage, *arguments = public
        share: Array = np.full(prepared.rows.shape[0], 1 / self.n)
        if stage == "moments":
            (direction,) = arguments
            return plane_moments(prepared.rows, direction, share)
        if stage == "slope":
            columns, scale = arguments
            return mean_slope(product(prepared.rows.matrix, columns), prepared.y, scale, share, self.settings.classes)
        if isinstance(prepared.gradient, SoftmaxRun):
            return softmax_term(prepared.gradient, self.n, *arguments)
        return mean_term(prepared.gradient, self.n, *arguments)


class StageBlocks(NamedTuple):
    """Blocks at one stage, as the runs of blocks take them."""

    blocks: CheckedBlocks
    stage: str

    def total(self, summand: Summand, *public: Any) -> Any:
        """See ``CheckedBlocks``.

        Privacy
        -------
        NOT private: see there.
        """
        return self.blocks.total(summand, self.stage, *public)


class BlockedStages:
    """What ``PipelineRun`` does with rows, done by blocks.

    Privacy
    -------
    The queries are those of ``PipelineRun``, exact; the caller adds the noise.
    """

    plan: Plan[ResolvedPipeline]
    step_noise: Callable[[int], float]
    secure: Any

    def __init__(self, plan: Plan[ResolvedPipeline], blocks: CheckedBlocks) -> None:
        self.plan, self._blocks, self.secure = plan, blocks, None
        self.noise = [release.scale for release in plan.releases]

    def _exact_means(self) -> Array:
        """Asked for when a fit begins, not when it is bound."""
        total: Array = self._blocks.total(MeansTerm(self.plan.settings, self.plan.n))
        return total

    def at_once(self, trace: bool) -> bool:
        """See ``Run``."""
        return False

    def _rows_by(self, preparation: Preparation) -> StageTerm:
        kept = preparation.kept
        own = preparation.level, kept.astype(np.intp).tobytes(), preparation.weights[kept].tobytes()
        return StageTerm(self.plan.settings, self.plan.n, self.plan.d, *own)

    def _eigenvalue(self, rows: StageTerm, preparation: Preparation) -> Array:
        return eigenvalue_of(*self._blocks.total(rows, "moments", preparation.direction))

    def _descent(self, rows: Any, steps: int, step: float) -> IhtRun | SoftmaxRun:
        settings, noise = self.plan.settings, self.step_noise(steps)
        iteration = Steps(steps, step, settings.sparsity, True, accumulate=True)
        width = len(rows.weights) // 8 + 1
        gradients: Any = StageBlocks(self._blocks, "gradient")
        if settings.loss_row.task == losses.MULTICLASS:
            return BlockedSoftmaxRun(gradients, rows, (settings.classes or 0, width), iteration, noise)
        return BlockedIhtRun(gradients, rows, width, iteration, constant(noise))

    def _margins(self, rows: StageTerm, w: Array) -> Any:
        """The weights: blocks compute their margins at every slope."""
        return rows, w[..., None] if self.plan.settings.classes is None else w.swapaxes(-1, -2)

    def _slope(self, margins: Any, scale: Array) -> Array:
        rows, columns = margins
        total: Array = self._blocks.total(rows, "slope", columns, scale)
        return total
