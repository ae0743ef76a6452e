"""Private Frank-Wolfe on rows in blocks: the textbook iteration, with the scores of all vertices at every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dptoolkit.data import Rows
from dptoolkit.data.blocks import CheckedBlocks, Summand
from dptoolkit.losses import Loss
from dptoolkit.solvers.engine.vertex_paths import textbook_path
from dptoolkit.solvers.engine.vertices import ResolvedBall, VertexRun
from dptoolkit.solvers.frame.plan import Plan
from dptoolkit.types import Array


class Records(NamedTuple):
    """A block's clipped rows, both ways, and labels."""

    rows: Any
    columns: Any
    y: Array
    loss: Loss


@dataclass(frozen=True)
class ScoreTerm(Summand):
    """The sum over the block of residual_i x_i, at sparse weights.

    Privacy
    -------
    NOT private. Each record is clipped by the settings' public bounds alone, so that the total over all blocks gives
    the scores of ``dp_frank_wolfe``, with their range.
    """

    settings: ResolvedBall

    def prepared(self, rows: Rows, labels: Array) -> Records:
        """See ``Summand``."""
        clipped, y = self.settings.bounds.clip(rows, labels)
        return Records(clipped.matrix, clipped.transpose(), y, self.settings.loss_row)

    def term(self, prepared: Records, *public: Any) -> Array:
        """See ``Summand``; ``public`` is (support, values)."""
        support, values = public
        w = np.zeros(prepared.rows.shape[1])
        w[support] = values
        return np.asarray(prepared.columns @ prepared.loss.residual(np.asarray(prepared.rows @ w), prepared.y))


class BlockedGradients(NamedTuple):
    """Gradients along a path from the blocks, which compute their margins from the weights; see ``Residuals``."""

    blocks: CheckedBlocks
    summand: ScoreTerm

    def gradient(self, w: Array) -> Array:
        """See ``Residuals``.

        Privacy
        -------
        NOT private: exact.
        """
        support = np.flatnonzero(w)
        total: Array = self.blocks.total(self.summand, support, w[support])
        return total

    def move(self, shrink: float, j: int, weight: float) -> None:
        """Nothing is kept from step to step."""


class BlockedVertexRun(VertexRun):
    """``VertexRun`` on blocks, which are asked for all scores at every step.

    Privacy
    -------
    The releases are those of ``VertexRun``.
    """

    def __init__(self, plan: Plan[ResolvedBall], blocks: CheckedBlocks) -> None:
        self.plan, self.settings, self.width = plan, plan.settings, plan.settings.width(plan.d)
        self._path = textbook_path(plan, self.width, lambda: BlockedGradients(blocks, ScoreTerm(plan.settings)))

    @property
    def threads(self) -> bool:
        """No records are here that fits could share."""
        return False
