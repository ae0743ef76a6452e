"""The worst pair we know for dp_pipeline on a table with bounds: one record at all lower or at all upper bounds.

Such a record changes two bins of every histogram. Whatever the noise, its ranks are -1 or 1, so that its row turns
round: the mean row and the gradient move as far as they can, but for the small entry of the intercept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dptoolkit import losses
from dptoolkit._validate import invalid
from dptoolkit.accounting import Gaussian, account
from dptoolkit.adjacency import Adjacency
from dptoolkit.audit.pair import Counted, Pair, Score
from dptoolkit.solvers._pipeline import DESCENT, MEANS, SCALE
from dptoolkit.solvers._pipeline_stages import Preparation
from dptoolkit.solvers._pipeline_tables import HISTOGRAMS, MEAN_ROW, TableRun, centre, planned
from dptoolkit.solvers.frame import rules
from dptoolkit.solvers.frame.plan import Plan, Release
from dptoolkit.types import Array

if TYPE_CHECKING:
    from dptoolkit.solvers._pipeline import ResolvedPipeline

# The delta at which the reach of the pair is computed.
_DELTA = 1e-5


@dataclass(frozen=True)
class TableRatio:
    """The log-likelihood ratio of histograms, mean row and noisy gradients, all of which the pair moves.

    ``counts`` are those of the first dataset, by (upper, label): in the second, one record of label 0 is at the upper
    bounds instead of the lower ones. Column means, eigenvalue and slopes are used to follow the fit, not as evidence.
    """

    plan: Plan[ResolvedPipeline]
    counts: Array

    def __call__(self, outputs: Array) -> Array:
        width = self.plan.d + 1
        return np.array([self._one(output.reshape(-1, width)) for output in outputs])

    def _one(self, rows: Array) -> float:
        """The ratio of one fit, from its releases in their order."""
        plan = self.plan
        histograms, mean_row = _needed(plan, HISTOGRAMS), _needed(plan, MEAN_ROW)
        ratio, at = 0.0, 0
        for number in range(histograms.count):
            own, at = self._slots(rows, at, TableRun._slot(number))
            ratio += self._of_counts(own, histograms.scale)
        mean, at = rows[at, :-1], at + 1
        ratio += self._of_mean(mean, mean_row.scale)
        pair = self._prepared(rows[at, :-1], mean, mean_row.scale)
        slopes = plan.releases[SCALE].count
        return ratio + self._of_descent(rows[at + 2 : len(rows) - slopes], pair)

    def _slots(self, rows: Array, at: int, slot: int) -> tuple[Array, int]:
        """(counts of every column, padded with zeros; the row after them)."""
        columns = len(self.plan.settings.bounds.numeric)  # type: ignore[union-attr]
        stop = at + math.ceil(columns * slot / rows.shape[1])
        return rows[at:stop].ravel()[: columns * slot].reshape(columns, slot), stop

    def _of_counts(self, slots: Array, noise: float) -> float:
        """Lower values lie in the first bin of a column, upper ones in the last; noise is never exactly zero."""
        last = slots.shape[1] - 1 - np.argmax(slots[:, ::-1] != 0, axis=1)
        lower, upper = self.counts[0].sum(), self.counts[1].sum()
        first = slots[:, 0] - (lower - 0.5)
        other = slots[np.arange(len(slots)), last] - (upper + 0.5)
        return float((first - other).sum() / noise**2)

    def _rows(self) -> Array:
        """The rows at the lower and at the upper bounds, before centring."""
        bounds = self.plan.settings.bounds
        assert bounds is not None
        row = np.zeros(self.plan.d)
        row[list(bounds.numeric)] = 1 / math.sqrt(len(bounds.numeric))
        return np.array([-row, row])

    def _of_mean(self, mean: Array, noise: float) -> float:
        lower, upper = self._rows()
        first = (self.counts.sum(axis=1) @ np.array([lower, upper])) / self.plan.n
        second = first + (upper - lower) / self.plan.n
        return float((first - second) @ (mean - (first + second) / 2) / noise**2)

    def _prepared(self, means: Array, mean: Array, noise: float) -> Array:
        """The two rows as the descent reads them, the intercept last; None of it depends on the datasets."""
        rows, shift = self._rows(), centre(mean, noise, rules.CENTRED_FROM)
        if shift is not None:
            rows = rows - shift
            rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        how = Preparation.of(means, self.plan.releases[MEANS].scale)
        weighted = rows * how.weights
        norms = np.linalg.norm(weighted, axis=1, keepdims=True)
        weighted = np.divide(weighted, norms, out=np.zeros_like(weighted), where=norms > 0)
        return np.column_stack([how.length * weighted, np.full(2, how.level)])

    def _of_descent(self, path: Array, pair: Array) -> float:
        """The ratio of the noisy gradients, of which those before fix the weights."""
        plan, settings = self.plan, self.plan.settings
        steps, scale = len(path), plan.releases[DESCENT].scale
        step, noise = settings.margin_noise / (scale * steps), scale * math.sqrt(steps)
        weights, ratio = np.zeros(plan.d + 1), 0.0
        for gradient in path:
            margins = pair @ weights
            residuals = np.array([settings.loss_row.residual(margins, np.full(2, y)) for y in (0.0, 1.0)]).T
            clipped = np.clip(residuals, -settings.grad_norm, settings.grad_norm) / plan.n
            first = (self.counts * clipped).sum(axis=1) @ pair
            second = first + clipped[1, 0] * pair[1] - clipped[0, 0] * pair[0]
            ratio += float((first - second) @ (gradient - (first + second) / 2)) / noise**2
            weights = weights - step * gradient
        return ratio


def _needed(plan: Plan, query: str) -> Release:
    release = planned(plan, query)
    if release is None:
        raise invalid("plan", f"without the release {query!r}", "of all stages of a table", "Use more rows.")
    return release


def table_pair(plan: Plan[ResolvedPipeline]) -> Pair:
    """One record of label 0 at all lower, or at all upper, bounds of the numeric columns; the others at either end.

    The others have both labels alike, so that they hold the margin where it is. Scores: "releases" and "gradients", the
    likelihood ratio of histograms, mean row and descent, for plans so small that the number of steps is sure.
    """
    settings, n = plan.settings, plan.n
    if settings.loss_row.task != losses.BINARY or plan.adjacency is Adjacency.ZERO_OUT:
        repair = "A record that is left out still counts in a histogram of rows, and other losses have no pair yet."
        raise invalid("plan", str(settings.loss), "loss 'logistic', replace-one, for a table with bounds", repair)
    bounds = settings.bounds
    assert bounds is not None
    _needed(plan, HISTOGRAMS)
    _needed(plan, MEAN_ROW)
    middle = np.clip(0.0, bounds.lower, bounds.upper)
    lower, upper = middle.copy(), middle.copy()
    which = list(bounds.numeric)
    lower[which], upper[which] = np.array(bounds.lower)[which], np.array(bounds.upper)[which]
    rows, labels = np.array([lower, lower, upper, upper]), np.array([0.0, 1.0, 0.0, 1.0])
    others = np.array([(n - 1 + k) // 4 for k in range(4)])
    counts = [others + np.eye(4, dtype=np.int64)[k] for k in (0, 2)]
    first, second = (Counted(rows, labels, own) for own in counts)
    scores: dict[str, Score] = {}
    if settings.is_sure_of_steps(plan) and settings.sparsity is None and plan.noise > 0:
        scores = dict.fromkeys(("releases", "gradients"), TableRatio(plan, counts[0].reshape(2, 2)))
    text = f"one record of {n} at the lower or at the upper bounds of its columns, the others at both"
    return Pair(first, second, plan.adjacency, text, scores, _reach(plan) if scores else {})


def _reach(plan: Plan[ResolvedPipeline]) -> dict[str, float]:
    """From the three releases that move: the last as far as rows turn, which leaves the intercept where it is."""
    whole = plan.guarantee.epsilon(_DELTA)
    if not 0 < whole < math.inf:
        return {}
    turned = 1 - rules.LEVEL**2
    parts = [(_needed(plan, query), 1.0) for query in (HISTOGRAMS, MEAN_ROW)] + [(plan.releases[DESCENT], turned)]
    square = sum(part * release.count * (release.sensitivity / release.scale) ** 2 for release, part in parts)
    shown = account(Gaussian(1 / math.sqrt(square))).epsilon(_DELTA) / whole
    return dict.fromkeys(("releases", "gradients"), shown)
