"""The worst pair we know for dp_pipeline: one record with its label flipped, on the one column that all rows have.

For several classes the record's row turns round instead: its gradient is r x^T, and no other class's r is opposite. All
entries but the small one of the intercept turn, and column means, which are of |x_j|, do not move.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dptoolkit import losses
from dptoolkit._validate import invalid
from dptoolkit.accounting import Gaussian, account
from dptoolkit.adjacency import Adjacency
from dptoolkit.audit.pair import Counted, Pair, Score
from dptoolkit.audit.pairs._pipeline_tables import table_pair
from dptoolkit.audit.theory.likelihood import Projection
from dptoolkit.audit.theory.replay import Later
from dptoolkit.solvers._pipeline import DESCENT, SCALE
from dptoolkit.solvers.engine.softmax import clipped_residuals
from dptoolkit.solvers.frame import rules
from dptoolkit.solvers.frame.plan import Plan
from dptoolkit.types import Array

if TYPE_CHECKING:
    from dptoolkit.solvers._pipeline import ResolvedPipeline

# The settings of the audit's preset.
# So few rows that the number of steps is the smallest there is, whatever the eigenvalue.
PRESETS: dict[str, dict[str, Any]] = {"dp_pipeline": {"n": 60, "d": 3}}

# The delta at which the reach of a pair is computed.
_DELTA = 1e-5
# Runs from which the reach for several classes is estimated.
_RUNS = 128


@dataclass(frozen=True)
class DescentRatio:
    """The log-likelihood ratio of the noisy gradients, for records that all have the same row.

    A record pulls the weights with its residual along that row. Those that pull both ways are as many, but for the
    canary, whose two residuals stay at their bounds while the margin is small.
    """

    plan: Plan[ResolvedPipeline]

    def __call__(self, outputs: Array) -> Array:
        plan, settings = self.plan, self.plan.settings
        width = plan.d + 1
        slopes = sum(release.count for release in plan.releases[SCALE:])
        path = outputs.reshape(len(outputs), -1, width)[:, 2:]
        along = path[:, : path.shape[1] - slopes] @ _prepared(plan)
        steps = along.shape[1]
        step = settings.margin_noise / (plan.releases[DESCENT].scale * steps) if plan.noise > 0 else 1.0
        margin = np.hstack([np.zeros((len(along), 1)), -step * np.cumsum(along, axis=1)[:, :-1]])
        cap, n = settings.grad_norm, plan.n
        residuals = (settings.loss_row.residual(margin, np.full_like(margin, y)) for y in _ends(plan))
        low, high = (np.clip(r, -cap, cap) / n for r in residuals)
        others = (n - 1 - (n - 1) // 2) * low + ((n - 1) // 2) * high
        first = others + low
        second = others + (0.0 if plan.adjacency is Adjacency.ZERO_OUT else high)
        return np.asarray(((first - second) * (along - (first + second) / 2)).sum(axis=1))


@dataclass(frozen=True)
class ClassDescentRatio:
    """``DescentRatio`` for several classes: the canary's row turns round, and the others are of all classes alike."""

    plan: Plan[ResolvedPipeline]

    def __call__(self, outputs: Array) -> Array:
        return self.parts(outputs)[0]

    def parts(self, outputs: Array) -> tuple[Array, Array]:
        """The ratio, and the sum over the steps of (difference of the means / noise)^2."""
        plan, settings = self.plan, self.plan.settings
        slopes, classes = sum(release.count for release in plan.releases[SCALE:]), settings.classes or 2
        path = outputs.reshape(len(outputs), -1, classes, plan.d + 1)[:, 2:][..., [0, plan.d]]
        path = path[:, : path.shape[1] - slopes]
        steps, scale = path.shape[1], plan.releases[DESCENT].scale
        step, noise = (settings.margin_noise / (scale * steps), scale * math.sqrt(steps)) if scale > 0 else (1.0, 1.0)
        weights, ratio, square = np.zeros_like(path[:, 0]), np.zeros(len(path)), np.zeros(len(path))
        for t in range(steps):
            one, two = self._means(weights)
            ratio += ((one - two) * (path[:, t] - (one + two) / 2)).sum(axis=(1, 2)) / noise**2
            square += ((one - two) ** 2).sum(axis=(1, 2)) / noise**2
            weights = weights - step * path[:, t]
        return ratio, square

    def _means(self, weights: Array) -> tuple[Array, Array]:
        """The mean gradients of both datasets at (trials, classes, 2) weights, of the column and of the intercept."""
        plan, classes = self.plan, self.plan.settings.classes or 2
        row = _prepared(plan)[[0, plan.d]]
        turned = row * [-1.0, 1.0]

        def gradient(x: Array, k: int) -> Array:
            labels = np.tile(np.eye(classes)[k], (len(weights), 1))
            r = clipped_residuals(weights @ x, labels, np.full(len(weights), plan.settings.grad_norm))
            return np.asarray(r[:, :, None] * x / plan.n)

        parts = [count * gradient(row, k) for k, count in enumerate(_alike(plan.n - 1, classes))]
        others = sum(parts, np.zeros_like(weights))
        return others + gradient(row, 0), others + gradient(turned, 0)


def _alike(number: int, classes: int) -> list[int]:
    """``number`` records, divided evenly among the classes."""
    return [(number + k) // classes for k in range(classes)]


def _several_classes(plan: Plan[ResolvedPipeline]) -> Pair:
    settings, n = plan.settings, plan.n
    classes = settings.classes or 2
    row = np.eye(1, plan.d)[0]
    labels = np.array([0.0, *range(classes)])
    counts = np.array([1, *_alike(n - 1, classes)])
    first, second = (Counted(np.vstack([x, np.tile(row, (classes, 1))]), labels, counts) for x in (row, -row))
    # The first dataset pulls class 0 along the row, and all others away from it.
    towards = np.outer(np.eye(classes)[0] - 1 / classes, np.append(row, 0.0)).ravel()
    scores: dict[str, Score] = {"final": Projection(towards)}
    sure = settings.is_sure_of_steps(plan) and settings.sparsity is None
    ratio = ClassDescentRatio(plan)
    if sure:
        scores |= dict.fromkeys(("releases", "gradients"), ratio)
    text = f"one record of {n} or its negative, of class 0; the others have its row, in all classes alike"
    pair = Pair(first, second, plan.adjacency, text, scores)
    return replace(pair, reach=Later(_measured, plan, pair, ratio)) if sure and plan.noise > 0 else pair


def _measured(plan: Plan[ResolvedPipeline], pair: Pair, ratio: ClassDescentRatio) -> dict[str, float]:
    """Noisy gradients are Gaussian, so mu^2 is the expected sum of (difference / noise)^2, from a few runs."""
    from dptoolkit.audit.streams import Streams
    from dptoolkit.audit.targets import PlanTarget

    bits = np.arange(_RUNS, dtype=np.int8) % 2
    runs = PlanTarget(plan, pair, "releases").run(bits, 0, Streams(0, "pairs"))
    mu = math.sqrt(float(ratio.parts(runs)[1].mean()))
    whole = plan.guarantee.epsilon(_DELTA)
    shown = account(Gaussian(1 / mu)).epsilon(_DELTA) / whole if mu > 0 and 0 < whole < math.inf else 0.0
    return dict.fromkeys(("releases", "gradients"), shown)


def dp_pipeline(plan: Plan) -> Pair:
    """A canary among records with the same row, of either label alike, so that they hold the margin where it is.

    The column means and the eigenvalue do not move; the descent's share of the budget is what can be shown. Scores:
    "final", the margin of the row; "releases" and "gradients", the likelihood ratio of the descent, for plans so small
    that the number of steps is sure: elsewhere runs have different numbers of releases, and these two are left out. For
    a table with bounds see ``table_pair``.
    """
    if plan.solver != "dp_pipeline":
        raise invalid("plan.solver", plan.solver, "'dp_pipeline'")
    if plan.settings.bounds is not None:
        return table_pair(plan)
    if plan.adjacency is Adjacency.ZERO_OUT:
        raise invalid("adjacency", plan.adjacency, "replace-one", "A zero row still moves the intercept.")
    if plan.settings.loss_row.task == losses.MULTICLASS:
        return _several_classes(plan)
    length, bound = plan.settings.row_norm or 1.0, plan.settings.label_bound or 1.0
    row, n = length * np.eye(1, plan.d)[0], plan.n
    rows, labels = np.array([row, row]), bound * np.array(_ends(plan))
    negative, positive = n - 1 - (n - 1) // 2, (n - 1) // 2
    first = Counted(rows, labels, np.array([negative + 1, positive]))
    second = Counted(rows, labels, np.array([negative, positive + 1]))
    scores: dict[str, Score] = {"final": Projection(-_of_the_model(plan, row))}
    sure = plan.settings.is_sure_of_steps(plan)
    if sure:
        scores |= dict.fromkeys(("releases", "gradients"), DescentRatio(plan))
    text = f"label of one record of {n} with the same row, both labels alike"
    return Pair(first, second, plan.adjacency, text, scores, _reach(plan) if sure else {})


def _ends(plan: Plan[ResolvedPipeline]) -> tuple[float, float]:
    """The labels that pull either way, in units of their bound."""
    return (0.0, 1.0) if plan.settings.loss_row.task == losses.BINARY else (-1.0, 1.0)


def _prepared(plan: Plan[ResolvedPipeline]) -> Array:
    """The one row after preparation, the intercept last."""
    level = rules.NUMBER_LEVEL if plan.settings.loss_row.task == losses.REGRESSION else rules.LEVEL
    row = np.zeros(plan.d + 1)
    row[0], row[-1] = math.sqrt(1 - level**2), level
    return row


def _of_the_model(plan: Plan[ResolvedPipeline], row: Array) -> Array:
    """The vector whose product with the stored weights is the margin of the row."""
    if plan.settings.loss_row.task == losses.BINARY:
        return np.append(_prepared(plan)[:-1], 1.0)
    return np.append(row, 1.0)


def _reach(plan: Plan[ResolvedPipeline]) -> dict[str, float]:
    whole = plan.guarantee.epsilon(_DELTA)
    if not 0 < whole < math.inf:
        return {}
    main = plan.releases[DESCENT]
    shown = account(Gaussian(main.scale / main.sensitivity)).epsilon(_DELTA) / whole
    return dict.fromkeys(("releases", "gradients"), shown)
