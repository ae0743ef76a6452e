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
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy import optimize
from scipy.special import kve, ndtri

from dptoolkit.accounting import Laplace, account, gaussian
from dptoolkit.adjacency import Adjacency
from dptoolkit.audit.pair import Counted, Pair, Score
from dptoolkit.audit.pairs._frank_wolfe import DELTA, check_plan
from dptoolkit.audit.theory.kept import measured_reach
from dptoolkit.audit.theory.likelihood import Projection
from dptoolkit.audit.theory.replay import Later
from dptoolkit.losses import BINARY, Loss
from dptoolkit.solvers.frame.plan import GAMMA_TERM, GAUSSIAN_TERM, Plan
from dptoolkit.types import Array

if TYPE_CHECKING:
    from dptoolkit.solvers._objective_perturbation import ResolvedPerturbed


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
    check_plan(plan, "objective_perturbation", intercept=True)
    sums, bound = plan.settings.sums(plan.n), plan.settings.row_norm
    if plan.settings.loss_row.task == BINARY:
        found = in_a_crowd(plan, sums.l2 / bound**2, bound * sums.up(plan.noise) / sums.l2)
    else:
        found = alone(plan, far_label(plan))
    gamma = plan.releases[0].law == GAMMA_TERM and found.share is not None and plan.noise > 0
    along: Score = GammaRatio(plan, found.first, found.second) if gamma else Projection(found.direction)
    scores: dict[str, Score] = {"final": along, "releases": along, "step": along}
    text = f"one record of constant slope; {found.others}"
    pair = Pair(found.first, found.second, plan.adjacency, text, scores, _reach(plan, found.share))
    gaussian_noise = plan.releases[0].law == GAUSSIAN_TERM
    return replace(pair, reach=Later(_measured, plan, pair)) if gaussian_noise and not pair.reach else pair


@dataclass(frozen=True)
class GammaRatio:
    """For gamma noise and a record of constant slope: the log-likelihood ratio of the linear terms that fit a model.

    At the minimiser b + l2 w is the sum of all records' pulls, which are the same at all weights. So the model shows b
    up to that sum, and the two sums differ by the whole sensitivity.
    """

    plan: Plan[ResolvedPerturbed]
    first: Counted
    second: Counted

    def __call__(self, outputs: Array) -> Array:
        l2, scale = self.plan.settings.l2, self.plan.releases[0].scale
        one, two = (np.linalg.norm(l2 * outputs - self._pull(data), axis=1) for data in (self.first, self.second))
        return np.asarray((two - one) / scale)

    def _pull(self, data: Counted) -> Array:
        """The sum of all records' pulls; each is along its row, with the sign of its label (no label is 0)."""
        settings = self.plan.settings
        slopes = data.counts * np.sign(data.y) * settings.loss_row.residual_bound
        rows = np.column_stack([data.X, np.ones(len(data.X))]) if settings.fit_intercept else data.X
        return np.asarray(settings.sums(self.plan.n).down(slopes @ rows))


def gamma_epsilon(shift: float, width: int, delta: float) -> float:
    """Epsilon of noise b, of density exp(-|b|) up to a factor, in ``width`` dimensions, moved by ``shift``: exact.

    The log ratio is shift * t, t = (the distance to one centre minus that to the other) / shift. In prolate spheroidal
    coordinates, with the centres as foci and t = sin(a), its law is e^(k t) cos(a)^(width - 2) (R - t^2) da for one
    centre, and that with -k for the other: k = shift/2 and R = 1 + (width - 1)/k K_(v+1)(k) / K_v(k), v = width/2 - 1.
    """
    if width == 1:
        return account(Laplace(1 / shift)).epsilon(delta)
    k, v = shift / 2, width / 2 - 1
    ratio = 1 + (width - 1) / k * float(kve(v + 1, k) / kve(v, k))
    nodes, weights = np.polynomial.legendre.leggauss(400)

    def integral(low: float, epsilon: float | None) -> float:
        """P(angle >= low) for one centre minus e^epsilon times that for the other."""
        half = (math.pi / 2 - low) / 2
        angles = low + half * (nodes + 1)
        t = np.sin(angles)
        gain = np.ones_like(t) if epsilon is None else -np.expm1(epsilon - 2 * k * t)
        return float(half * weights @ (np.exp(k * (t - 1)) * np.cos(angles) ** (width - 2) * (ratio - t * t) * gain))

    total = integral(-math.pi / 2, None)

    def excess(epsilon: float) -> float:
        return integral(math.asin(min(epsilon / shift, 1.0)), epsilon) / total - delta

    return float(optimize.brentq(excess, 0.0, shift)) if excess(0.0) > 0 else 0.0


def far_label(plan: Plan) -> float:
    """The bound of the labels, or a label that no margin comes near: a million standard deviations."""
    if plan.settings.label_bound is not None:
        return float(plan.settings.label_bound)
    sums = plan.settings.sums(plan.n)
    furthest = (sums.gradient + sums.up(plan.noise)) / sums.l2 * plan.settings.row_norm
    return float(2.0 + 1e6 * furthest)


def alone(plan: Plan, label: float) -> Canary:
    """A record along the first feature with this label against its opposite, or a zero row; others are zero rows.

    Zero rows pull the intercept: half of them each way, with the same constant slope.
    """
    bound, replaced = plan.settings.row_norm, plan.adjacency is Adjacency.REPLACE_ONE
    row, nothing = bound * np.eye(1, plan.d)[0], np.zeros(plan.d)
    half = (plan.n - 1) // 2
    others = [(nothing, label, half), (nothing, -label, plan.n - 1 - half)]
    first = _dataset((row, label, 1), *others)
    second = _dataset((row, -label, 1) if replaced else (nothing, 0.0, 1), *others)
    constant = plan.settings.loss_row.saturates and plan.settings.radius is None
    joint = _weights(plan, row, 1.0)
    return Canary(first, second, joint / np.linalg.norm(joint), "zero rows", 1.0 if constant else None)


def in_a_crowd(plan: Plan, hold: float, spread: float) -> Canary:
    """A record of label 1 among records of label 0 along the first feature, nearly across it where there is a second.

    ``hold`` is the regulariser's weight beside the sum of losses, over row_norm^2: what holds the crowd's margin back.
    ``spread`` is about how far noise moves a margin.
    """
    bound, replaced = plan.settings.row_norm, plan.adjacency is Adjacency.REPLACE_ONE
    crowd = bound * np.eye(1, plan.d)[0]
    others, nothing = (crowd, 0.0, plan.n - 1), (np.zeros(plan.d), 1.0, 1)
    if plan.d == 1:
        first = _dataset((crowd, 1.0, 1), others)
        second = _dataset((crowd, 0.0, 1) if replaced else nothing, others)
        return Canary(first, second, _weights(plan, crowd / bound, 0.0), "the others push it to the wrong side", None)
    cosine = _tilt(plan.settings.loss_row, _pushed(plan.settings.loss_row, plan.n - 1, hold), spread)
    along, across = cosine * crowd, np.zeros(plan.d)
    across[1] = bound * math.sqrt(1 - cosine * cosine)
    first = _dataset((along + across, 1.0, 1), others)
    second = _dataset((along - across, 1.0, 1) if replaced else nothing, others)
    where = "it stands nearly across the others, on their wrong side"
    return Canary(first, second, _weights(plan, across / np.linalg.norm(across), 0.0), where, None)


def _dataset(*records: tuple[Array, float, int]) -> Counted:
    rows, labels, counts = zip(*records, strict=True)
    return Counted(np.array(rows), np.array(labels), np.array(counts))


def _weights(plan: Plan[ResolvedPerturbed], features: Array, intercept: float) -> Array:
    return np.append(features, intercept) if plan.settings.fit_intercept else features


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


def _measured(plan: Plan[ResolvedPerturbed], pair: Pair) -> dict[str, float]:
    """The final model is all there is."""
    final = measured_reach(plan, pair, ("final",))["final"]
    return {"final": final, "releases": final, "step": final}


def _reach(plan: Plan[ResolvedPerturbed], share: float | None) -> dict[str, float]:
    """The reach of the exact attack, which is known where the linear term is moved by the same at all weights."""
    linear = plan.releases[0]
    if share is None or linear.scale == 0:
        return {}
    claimed, shift = plan.guarantee.epsilon(DELTA), share * linear.sensitivity / linear.scale
    gamma = linear.law == GAMMA_TERM
    attained = gamma_epsilon(shift, plan.settings.width(plan.d), DELTA) if gamma else gaussian.epsilon(shift, DELTA)
    share = attained / claimed if 0 < claimed < math.inf else 1.0
    return {"final": share, "releases": share, "step": share}
