"""The worst pair we know for dp_pipeline: one record with its label flipped, on the one column that all rows have."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dptoolkit import losses
from dptoolkit._validate import invalid
from dptoolkit.accounting import Gaussian, account
from dptoolkit.adjacency import Adjacency
from dptoolkit.audit.pairs.likelihood import Projection
from dptoolkit.audit.pairs.pair import Counted, Pair, Score
from dptoolkit.solvers import rules
from dptoolkit.solvers.pipeline import DESCENT, SCALE
from dptoolkit.solvers.plan import Plan

Array = NDArray[np.float64]
_DELTA = 1e-5


@dataclass(frozen=True)
class DescentRatio:
    """The log-likelihood ratio of the noisy gradients, for records that all have the same row.

    A record pulls the weights with its residual along that row. Those that pull both ways are as many, but for the
    canary, whose two residuals stay at their bounds while the margin is small.
    """

    plan: Plan

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
        residuals = (settings.terms.residual(margin, np.full_like(margin, y)) for y in _ends(plan))
        low, high = (np.clip(r, -cap, cap) / n for r in residuals)
        others = (n - 1 - (n - 1) // 2) * low + ((n - 1) // 2) * high
        first = others + low
        second = others + (0.0 if plan.adjacency is Adjacency.ZERO_OUT else high)
        return np.asarray(((first - second) * (along - (first + second) / 2)).sum(axis=1))


def dp_pipeline(plan: Plan) -> Pair:
    """A canary among records with the same row, of either label alike, so that they hold the margin where it is.

    The column means and the eigenvalue do not move; the descent's share of the budget is what can be shown. Scores:
    "final", the margin of the row; "releases" and "gradients", the likelihood ratio of the descent, for plans so small
    that the number of steps is sure: elsewhere runs have different numbers of releases, and these two are left out.
    """
    if plan.solver != "dp_pipeline":
        raise invalid("plan.solver", plan.solver, "'dp_pipeline'")
    if plan.settings.terms.task == losses.MULTICLASS:
        raise invalid("plan.settings.loss", plan.settings.loss, "'logistic' or 'squared'", "No pair is known yet.")
    if plan.adjacency is Adjacency.ZERO_OUT:
        raise invalid("adjacency", plan.adjacency, "replace-one", "A zero row still moves the intercept.")
    length, bound = plan.settings.row_norm or 1.0, plan.settings.label_bound or 1.0
    row, n = length * np.eye(1, plan.d)[0], plan.n
    rows, labels = np.array([row, row]), bound * np.array(_ends(plan))
    negative, positive = n - 1 - (n - 1) // 2, (n - 1) // 2
    first = Counted(rows, labels, np.array([negative + 1, positive]))
    second = Counted(rows, labels, np.array([negative, positive + 1]))
    scores: dict[str, Score] = {"final": Projection(-_of_the_model(plan, row))}
    sure = plan.settings.schedule(plan, 1.0)[0] == rules.FEWEST
    if sure:
        scores |= dict.fromkeys(("releases", "gradients"), DescentRatio(plan))
    text = f"label of one record of {n} with the same row, both labels alike"
    return Pair(first, second, plan.adjacency, text, scores, _reach(plan) if sure else {})


def _ends(plan: Plan) -> tuple[float, float]:
    """The labels that pull either way, in units of their bound."""
    return (0.0, 1.0) if plan.settings.terms.task == losses.BINARY else (-1.0, 1.0)


def _prepared(plan: Plan) -> Array:
    """The one row after preparation, the intercept last."""
    level = rules.LEVEL if plan.settings.terms.task == losses.BINARY else rules.NUMBER_LEVEL
    row = np.zeros(plan.d + 1)
    row[0], row[-1] = math.sqrt(1 - level**2), level
    return row


def _of_the_model(plan: Plan, row: Array) -> Array:
    """What the stored weights are multiplied with for the margin of the row."""
    if plan.settings.terms.task == losses.BINARY:
        return np.append(_prepared(plan)[:-1], 1.0)
    return np.append(row, 1.0)


def _reach(plan: Plan) -> dict[str, float]:
    whole = plan.guarantee.epsilon(_DELTA)
    if not 0 < whole < math.inf:
        return {}
    main = plan.releases[DESCENT]
    shown = account(Gaussian(main.scale / main.sensitivity)).epsilon(_DELTA) / whole
    return dict.fromkeys(("releases", "gradients"), shown)
