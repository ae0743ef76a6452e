"""The worst pair we know for dp_admm: a record whose slope is the same wherever the minimisers may be.

Every update's minimiser then moves by the whole sensitivity, but for the tolerance of the solve, and the centre of an
update is known from the releases before it: all updates together are a Gaussian pair.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from dptoolkit.accounting import gaussian
from dptoolkit.audit.pair import Pair, Score
from dptoolkit.audit.pairs._frank_wolfe import DELTA, check_plan
from dptoolkit.audit.pairs._objective_perturbation import alone, in_a_crowd
from dptoolkit.audit.theory.kept import measured_reach
from dptoolkit.audit.theory.likelihood import Projection
from dptoolkit.audit.theory.replay import Later
from dptoolkit.losses import BINARY
from dptoolkit.solvers.frame.plan import Plan
from dptoolkit.types import Array

if TYPE_CHECKING:
    from dptoolkit.solvers._admm import ResolvedAdmm


def dp_admm(plan: Plan) -> Pair:
    """One record at the row bound, its label far away, against its opposite or a zero row; the others are zero rows.

    For the binary losses the others push the weights to where the record's slope is largest.
    """
    check_plan(plan, "dp_admm", intercept=True)
    settings = plan.settings
    if settings.loss_row.task == BINARY:
        # All updates together go where one would go with this much less to hold it.
        hold = settings.sums(plan.n).l2 / settings.row_norm**2 / settings.steps
        found = in_a_crowd(plan, hold, math.sqrt(settings.steps) * settings.row_norm * plan.noise)
    else:
        found = alone(plan, _far_label(plan))
    along = Projection(found.direction)
    scores: dict[str, Score] = {"final": along, "releases": MovedUpdates(plan, found.direction), "step": along}
    text = f"one record of constant slope; {found.others}"
    pair = Pair(found.first, found.second, plan.adjacency, text, scores, _reach(plan, found.share))
    return pair if pair.reach else replace(pair, reach=Later(measured_reach, plan, pair, ("releases", "final")))


@dataclass(frozen=True)
class MovedUpdates:
    """How far all updates lie from their centres in one direction: for constant slopes the likelihood ratio."""

    plan: Plan[ResolvedAdmm]
    direction: Array

    def __call__(self, outputs: Array) -> Array:
        width = self.plan.settings.width(self.plan.d)
        path = outputs.reshape(len(outputs), -1, width)
        how = self.plan.settings.splitting(self.plan.d)
        centre, u = np.zeros((2, len(path), width))
        total = np.zeros(len(path))
        for t in range(path.shape[1]):
            total += (path[:, t] - centre) @ self.direction
            z, u = how.following(path[:, t], u)
            centre = z - u
        return total


def _far_label(plan: Plan[ResolvedAdmm]) -> float:
    """The bound, or a label that no margin comes near: a million times what all updates may add up to."""
    settings = plan.settings
    if settings.label_bound is not None:
        return float(settings.label_bound)
    furthest = settings.steps * (settings.sums(plan.n).gradient / settings.rho + plan.noise)
    return float(2.0 + 1e6 * settings.row_norm * furthest)


def _reach(plan: Plan[ResolvedAdmm], share: float | None) -> dict[str, float]:
    """The reach of the exact attack, where slopes are constant: all but what the tolerance adds to the sensitivity."""
    claimed = plan.guarantee.epsilon(DELTA)
    if share is None or not 0 < claimed < math.inf:
        return {}
    sums = plan.settings.sums(plan.n)
    moved = share * plan.adjacency.contributions * sums.gradient / sums.l2 / plan.noise
    steps = {"releases": plan.settings.steps, "step": 1}
    return {name: gaussian.epsilon(math.sqrt(t) * moved, DELTA) / claimed for name, t in steps.items()}
