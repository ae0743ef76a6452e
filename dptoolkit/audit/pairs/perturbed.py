"""The worst pair we know for objective perturbation: a record whose slope is the same wherever the minimiser may be.

With a constant slope the minimiser is the noise plus a shift, so the pair is a Gaussian one of the whole sensitivity:
what the theory calls its floor. A Huber loss with a label far away has such a slope, of either sign. A logistic record
has one where its margin is far on the wrong side: the other records push it there. Its slope has one sign, so that
replacing it in one dimension moves the noise by half of what the theory allows for.
"""

from __future__ import annotations

import math

import numpy as np

from dptoolkit import losses
from dptoolkit.accounting import gaussian
from dptoolkit.adjacency import Adjacency
from dptoolkit.audit.pairs.pair import Array, Counted, Pair, Score
from dptoolkit.audit.pairs.selection import DELTA, check_plan
from dptoolkit.solvers.plan import GAUSSIAN_TERM, Plan


def objective_perturbation(plan: Plan) -> Pair:
    """One record along the first feature at the row bound, its label at the end.

    All others are zero rows, or for a binary loss rows of the other label along the same feature.
    """
    check_plan(plan, "objective_perturbation")
    binary = plan.settings.terms.task == losses.BINARY
    first, second = _binary(plan) if binary else _regression(plan)
    scores: dict[str, Score] = {"final": _along, "releases": _along, "step": _along}
    crowd = "the others of the other label push it far to the wrong side" if binary else "zero rows"
    return Pair(first, second, plan.adjacency, f"one record of constant slope; {crowd}", scores, _reach(plan))


def _along(features: Array) -> Array:
    """The first weight: the record pulls it up."""
    return np.asarray(features)[:, 0]


def _datasets(plan: Plan, label: float, other: tuple[float, float], crowd: tuple[float, float]) -> tuple[Counted, ...]:
    """With the record (row_norm, label), with (entry, label) ``other`` in its place; the rest are ``crowd``."""

    def with_record(entry: float, target: float) -> Counted:
        X = np.zeros((2, plan.d))
        X[:, 0] = entry, crowd[0]
        return Counted(X, np.array([target, crowd[1]]), np.array([1, plan.n - 1]))

    return with_record(plan.settings.row_norm, label), with_record(*other)


def _regression(plan: Plan) -> tuple[Counted, ...]:
    settings = plan.settings
    label = far_label(plan) if settings.label_bound is None else settings.label_bound
    replaced = plan.adjacency is Adjacency.REPLACE_ONE
    return _datasets(plan, label, (settings.row_norm, -label) if replaced else (0.0, 0.0), (0.0, 0.0))


def far_label(plan: Plan) -> float:
    """A label that no margin comes near: a million standard deviations."""
    sums = plan.settings.sums(plan.n)
    furthest = (sums.gradient + sums.up(plan.noise)) / sums.l2 * plan.settings.row_norm
    return 2.0 + 1e6 * furthest


def _binary(plan: Plan) -> tuple[Counted, ...]:
    bound = plan.settings.row_norm
    replaced = plan.adjacency is Adjacency.REPLACE_ONE
    return _datasets(plan, 1.0, (bound, 0.0) if replaced else (0.0, 0.0), (bound, 0.0))


def _reach(plan: Plan) -> dict[str, float]:
    """Of the exact attack: known where the pair is a Gaussian one, without a ball that cuts its tails off."""
    linear = plan.releases[0]
    if not plan.settings.terms.saturates or plan.settings.radius or linear.law != GAUSSIAN_TERM or linear.scale == 0:
        return {}
    claimed = plan.guarantee.epsilon(DELTA)
    attained = gaussian.epsilon(linear.sensitivity / linear.scale, DELTA)
    share = attained / claimed if 0 < claimed < math.inf else 1.0
    return {"final": share, "releases": share, "step": share}
