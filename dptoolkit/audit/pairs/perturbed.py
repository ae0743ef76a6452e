"""The worst pairs we know for solvers that minimise: a record whose slope is the same wherever the minimiser may be.

With a constant slope the minimiser is the noise plus a shift, so the pair is a Gaussian one of the whole sensitivity:
what the theory calls its floor. A Huber loss with a label far away has such a slope, of either sign. A record of a
binary loss has one where its margin is far on the wrong side: the other records push it there. Its slope has one sign,
so that replacing its label moves the noise by half of what the theory allows for. Two records that stand on either side
of the crowd's direction, nearly across it, move it by nearly all of that: both are on the wrong side, each pulls its
own way, and the crowd does not hold the weights across its direction.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy import optimize
from scipy.special import ndtri

from dptoolkit.accounting import gaussian
from dptoolkit.adjacency import Adjacency
from dptoolkit.audit.pairs.likelihood import Projection
from dptoolkit.audit.pairs.pair import Array, Counted, Pair, Score
from dptoolkit.audit.pairs.selection import DELTA, check_plan
from dptoolkit.losses import BINARY, Loss
from dptoolkit.solvers.plan import GAUSSIAN_TERM, Plan


class Canary(NamedTuple):
    """Two neighbouring datasets, the direction in which they pull the weights apart, and a word on the other records.

    ``share`` is how far they pull them apart, of the whole sensitivity, where that is the same at all weights; else
    None.
    """

    first: Counted
    second: Counted
    direction: Array
    others: str
    share: float | None


def objective_perturbation(plan: Plan) -> Pair:
    """One record at the row bound: its label far away, the others zero rows; for a binary loss among a crowd."""
    check_plan(plan, "objective_perturbation")
    sums, bound = plan.settings.sums(plan.n), plan.settings.row_norm
    if plan.settings.terms.task == BINARY:
        found = in_a_crowd(plan, sums.l2 / bound**2, bound * sums.up(plan.noise) / sums.l2)
    else:
        found = alone(plan, far_label(plan))
    along = Projection(found.direction)
    scores: dict[str, Score] = {"final": along, "releases": along, "step": along}
    text = f"one record of constant slope; {found.others}"
    return Pair(found.first, found.second, plan.adjacency, text, scores, _reach(plan, found.share))


def far_label(plan: Plan) -> float:
    """The bound of the labels, or a label that no margin comes near: a million standard deviations."""
    if plan.settings.label_bound is not None:
        return float(plan.settings.label_bound)
    sums = plan.settings.sums(plan.n)
    furthest = (sums.gradient + sums.up(plan.noise)) / sums.l2 * plan.settings.row_norm
    return float(2.0 + 1e6 * furthest)


def alone(plan: Plan, label: float) -> Canary:
    """A record along the first feature with this label against its opposite, or a zero row; others are zero rows."""
    bound, replaced = plan.settings.row_norm, plan.adjacency is Adjacency.REPLACE_ONE
    along = np.eye(1, plan.d)[0]
    nothing = np.zeros(plan.d)
    first = _dataset(plan, bound * along, label, nothing, 0.0)
    second = _dataset(plan, bound * along if replaced else nothing, -label if replaced else 0.0, nothing, 0.0)
    constant = plan.settings.loss == "huber" and plan.settings.radius is None
    return Canary(first, second, along, "zero rows", 1.0 if constant else None)


def in_a_crowd(plan: Plan, hold: float, spread: float) -> Canary:
    """A record of label 1 among records of label 0 along the first feature, nearly across it where there is a second.

    ``hold`` is the regulariser's weight beside the sum of losses, over row_norm^2: what holds the crowd's margin back.
    ``spread`` is about how far noise moves a margin.
    """
    bound, replaced = plan.settings.row_norm, plan.adjacency is Adjacency.REPLACE_ONE
    across = np.zeros(plan.d)
    others = bound * np.eye(1, plan.d)[0]
    if plan.d == 1:
        first = _dataset(plan, others, 1.0, others, 0.0)
        second = _dataset(plan, others if replaced else across, 0.0, others, 0.0)
        return Canary(first, second, np.ones(1), "the others of the other label push it to the wrong side", None)
    cosine = _tilt(plan.settings.terms, _pushed(plan.settings.terms, plan.n - 1, hold), spread)
    across[1] = bound * math.sqrt(1 - cosine * cosine)
    first = _dataset(plan, cosine * others + across, 1.0, others, 0.0)
    second = _dataset(plan, cosine * others - across if replaced else np.zeros(plan.d), 1.0, others, 0.0)
    return Canary(first, second, across / bound, "it stands nearly across the others, on their wrong side", None)


def _dataset(plan: Plan, row: Array, label: float, others: Array, other_label: float) -> Counted:
    return Counted(np.array([row, others]), np.array([label, other_label]), np.array([1, plan.n - 1]))


def _pushed(terms: Loss, number: int, hold: float) -> float:
    """The margin, with its sign turned, to which so many records of label 0 push themselves."""

    def excess(margin: float) -> float:
        return number * float(terms.residual(np.array([-margin]), np.zeros(1))[0]) - hold * margin

    return float(optimize.brentq(excess, 0.0, (number + 1) / hold + 1)) if number else 0.0


def _tilt(terms: Loss, pushed: float, spread: float) -> float:
    """The cosine between record and crowd for which the record pulls most across the crowd's direction."""
    cosines = np.linspace(0.0, 0.98, 99)[:, None]
    sines = np.sqrt(1 - cosines**2)
    noise = spread * ndtri(np.linspace(0.02, 0.98, 49))
    slopes = np.abs(terms.residual(-pushed * cosines + sines * noise, np.ones((1, 1))))
    return float(cosines[np.argmax(sines[:, 0] * slopes.mean(axis=1)), 0])


def _reach(plan: Plan, share: float | None) -> dict[str, float]:
    """Of the exact attack: known where the pair is a Gaussian one."""
    linear = plan.releases[0]
    if share is None or linear.law != GAUSSIAN_TERM or linear.scale == 0:
        return {}
    claimed = plan.guarantee.epsilon(DELTA)
    attained = gaussian.epsilon(share * linear.sensitivity / linear.scale, DELTA)
    share = attained / claimed if 0 < claimed < math.inf else 1.0
    return {"final": share, "releases": share, "step": share}
