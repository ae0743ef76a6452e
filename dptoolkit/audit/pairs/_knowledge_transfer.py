"""The worst pairs we know for knowledge transfer.

For the sound teachers all losses are straight (a Huber loss with labels far away), so the teacher is the mean row over
l2, and what one record does to it is exact. A record with entries of opposite sign moves one score up and another down
while every other row holds both up: the whole range of the choice; and it moves the chosen weight by all that the
answers hide. For the paper's own teacher: one record more on the first feature or on the second flips its support.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import log_softmax

from dptoolkit._validate import invalid
from dptoolkit.accounting import Composed, Gaussian, Laplace
from dptoolkit.adjacency import Adjacency
from dptoolkit.audit.pair import Counted, Pair, Score
from dptoolkit.audit.pairs._frank_wolfe import DELTA, check_plan
from dptoolkit.audit.pairs._ight import dp_ight
from dptoolkit.audit.theory.kept import measured_reach, share
from dptoolkit.audit.theory.odds import Outcome, outcomes_epsilon
from dptoolkit.audit.theory.replay import Later
from dptoolkit.losses import BINARY
from dptoolkit.solvers._knowledge_transfer_teachers import DP_IGHT, IGHT, RIDGE, SUPPORT
from dptoolkit.solvers.frame.plan import Plan
from dptoolkit.types import Array

if TYPE_CHECKING:
    from dptoolkit.solvers._knowledge_transfer import ResolvedTransfer

# The settings of the audit's preset.
PRESETS: dict[str, dict[str, Any]] = {
    "knowledge_transfer": {"n": 20, "d": 2, "loss": "huber", "l2": 1.0, "feature_bound": 1.0, "sparsity": 1, "m": 10}
}
# With these settings one record flips the support of the published teacher.
PUBLISHED_PRESETS: dict[str, dict[str, Any]] = {
    "knowledge_transfer": {
        "n": 101, "d": 2, "loss": "squared", "l2": 1.0, "row_norm": 1.0, "feature_bound": 1.0, "label_bound": 1.0,
        "sparsity": 1,
    },
}  # fmt: skip


def knowledge_transfer(plan: Plan) -> Pair:
    """The pair for the plan's teacher."""
    check_plan(plan, "knowledge_transfer")
    settings = plan.settings
    if settings.teacher == IGHT:
        return support_flip(plan)
    if settings.teacher == DP_IGHT:
        return _private_teacher(plan)
    if not settings.loss_row.saturates or settings.radius is not None:
        raise invalid("plan", f"loss={settings.loss}", "loss 'huber' without a radius for this pair")
    if settings.teacher == RIDGE:
        pair = _along_features(plan)
        return replace(pair, reach=Later(measured_reach, plan, pair, ("releases", "final")))
    if settings.sparsity != 1 or plan.d < 2:
        raise invalid("plan", f"sparsity={settings.sparsity}, d={plan.d}", "sparsity 1 and d >= 2 for this pair")
    return _two_features(plan)


def support_flip(plan: Plan) -> Pair:
    """k + 1 records on the first feature and k on the second, or the other way round: the paper's teacher follows."""
    settings = plan.settings
    if plan.d < 2 or plan.n < 3 or settings.sparsity != 1 or settings.loss_row.task == BINARY:
        raise invalid("plan", f"d={plan.d}, n={plan.n}, sparsity={settings.sparsity}, loss={settings.loss}",
                      "d >= 2, n >= 3, sparsity 1 and a regression for this pair")  # fmt: skip
    k = (plan.n - 1) // 2
    X = np.zeros((3, plan.d))
    X[0, 0] = X[1, 1] = min(settings.feature_bound, settings.row_norm)
    y = np.array([settings.label_bound or 1.0, settings.label_bound or 1.0, 0.0])
    rest = plan.n - 2 * k - 1
    first, second = (Counted(X, y, np.array(counts)) for counts in ((k + 1, k, rest), (k, k + 1, rest)))
    matrix = settings.matrix(plan.d)
    direction = np.asarray(matrix @ np.eye(plan.d)[0] - matrix @ np.eye(plan.d)[1]).ravel()

    def answers(features: Array) -> Array:
        return np.asarray(np.asarray(features)[:, 1 + settings.sparsity :] @ direction)

    def weights(features: Array) -> Array:
        return np.asarray(features)[:, 0] - np.asarray(features)[:, 1]

    scores: dict[str, Score] = {"final": weights, "releases": answers, "step": answers}
    return Pair(first, second, plan.adjacency, "one record flips the support of the teacher", scores)


def _private_teacher(plan: Plan[ResolvedTransfer]) -> Pair:
    """The pair of the private teacher; the student has its weights, if enough public rows tell them."""
    inner = dp_ight(Plan(plan.settings.private_teacher(), plan.n, plan.d, plan.releases))
    scores = {name: score for name, score in inner.scores.items() if name == "final"}
    pair = Pair(inner.first, inner.second, inner.adjacency, inner.description, scores)
    return replace(pair, reach=Later(measured_reach, plan, pair, ("final",)))


@dataclass(frozen=True)
class _World:
    """One of the two data sets: its record, with which all other rows, ``crowd``, make straight losses."""

    record: Array
    label: float
    crowd: Array

    def data(self, n: int, far: float) -> Counted:
        X = np.stack([self.record, self.crowd])
        return Counted(X, far * np.array([self.label, 1.0]), np.array([1, n - 1]))

    def pull(self, n: int) -> Array:
        """Minus the mean gradient, whatever the weights."""
        return (self.label * self.record + (n - 1) * self.crowd) / n


def _far(plan: Plan[ResolvedTransfer]) -> float:
    """A label that no margin comes near."""
    settings = plan.settings
    return 10 + 10 * settings.row_norm**2 / settings.penalty


def _along_features(plan: Plan[ResolvedTransfer]) -> Pair:
    """A record whose answers to the public features are longest, its label far up or far down."""
    settings, replaced = plan.settings, plan.adjacency is Adjacency.REPLACE_ONE
    matrix = settings.matrix(plan.d)
    dense = np.asarray(matrix.todense() if hasattr(matrix, "todense") else matrix)
    row, zero = _stretched_row(plan, dense), np.zeros(plan.d)
    one = _World(row, 1.0, zero)
    two = _World(row if replaced else zero, -1.0, zero)
    first, second = (world.data(plan.n, _far(plan)) for world in (one, two))
    answers = dense @ row

    def along(features: Array) -> Array:
        return np.asarray(np.asarray(features) @ (dense.T @ answers))

    def answered(features: Array) -> Array:
        return np.asarray(np.asarray(features)[:, 1 + settings.sparsity :] @ answers)

    scores: dict[str, Score] = {"final": along, "releases": answered, "step": answered}
    return Pair(first, second, plan.adjacency, "one record along the features' longest direction", scores)


def _stretched_row(plan: Plan[ResolvedTransfer], features: Array) -> Array:
    """The longest singular direction; where features are bounded the corner of their cube to which it leads."""
    settings = plan.settings
    v = np.linalg.svd(features)[2][0]
    if settings.feature_bound is None:
        return np.asarray(settings.row_norm * v)
    corner = np.where(v < 0, -1.0, 1.0)
    for _ in range(plan.d):
        # The length of the answers is convex in the row, so that each of these corners is at least as good.
        corner = np.where(features.T @ (features @ corner) < 0, -1.0, 1.0)
    row = settings.feature_bound * corner
    return np.asarray(row * min(1.0, settings.row_norm / float(np.linalg.norm(row))))


def _two_features(plan: Plan[ResolvedTransfer]) -> Pair:
    """A record that raises one of two features and lowers the other.

    All other rows have both features alike; or for a tested support the second one half, so that the test is passed.
    """
    settings, replaced = plan.settings, plan.adjacency is Adjacency.REPLACE_ONE
    size = settings.row_norm / math.sqrt(2) if settings.feature_bound is None else settings.feature_bound
    record, crowd = np.zeros(plan.d), np.zeros(plan.d)
    record[:2] = size, -size
    crowd[:2] = size, size if settings.teacher == SUPPORT else size / 2
    one = _World(record, 1.0, crowd)
    two = _World(record if replaced else 0 * record, -1.0, crowd)
    ratio = _Ratio(plan, one.pull(plan.n), two.pull(plan.n))
    scores: dict[str, Score] = {"final": ratio.of_weights, "releases": ratio.of_releases, "step": ratio.of_releases}
    first, second = (world.data(plan.n, _far(plan)) for world in (one, two))
    text = "one record raises a feature and lowers another"
    return Pair(first, second, plan.adjacency, text, scores, Later(_reach, ratio))


@dataclass(frozen=True)
class _Ratio:
    """The log likelihood ratio of what is released, from the pulls of both data sets."""

    plan: Plan[ResolvedTransfer]
    one: Array
    two: Array

    @property
    def column(self) -> Array:
        """The public features of the one chosen feature."""
        matrix: Any = self.plan.settings.matrix(self.plan.d, np.array([0]))
        return np.asarray(matrix.toarray() if hasattr(matrix, "toarray") else matrix).ravel()

    def of_weights(self, outputs: Array) -> Array:
        """The score of the student: of the feature that it has, and of its weight."""
        weights = np.asarray(outputs)
        chosen = np.argmax(weights != 0, axis=1)
        w = weights[np.arange(len(weights)), chosen]
        return np.where(w != 0, self._choice(chosen) + self._weight(chosen, w), 0.0)

    def of_releases(self, outputs: Array) -> Array:
        """The score of all releases: a test's noisy gap, the support and the answers."""
        seen = np.asarray(outputs)
        chosen, answers = seen[:, 1].astype(int), seen[:, 2:]
        w = answers @ self.column / float(self.column @ self.column)
        taught = answers.any(axis=1)
        return self._gap(seen[:, 0]) + np.where(taught, self._choice(chosen) + self._weight(chosen, w), 0.0)

    def _choice(self, chosen: Any) -> Array:
        if self.plan.settings.teacher != SUPPORT:
            return np.zeros(len(chosen))
        scale = self.plan.releases[1].scale
        first, second = (log_softmax(np.abs(pull) / scale)[chosen] for pull in (self.one, self.two))
        return np.asarray(first - second)

    @property
    def spread(self) -> float:
        """The noise of the chosen weight, as the answers tell it."""
        return self.plan.releases[0].scale / float(np.linalg.norm(self.column))

    def _weight(self, chosen: Any, w: Array) -> Array:
        l2 = self.plan.settings.l2
        far, near = (((w - pull[chosen] / l2) / self.spread) ** 2 for pull in (self.two, self.one))
        return np.asarray(far - near) / 2

    def _gap(self, seen: Array) -> Array:
        if self.plan.settings.teacher == SUPPORT:
            return np.zeros(len(seen))
        first, second = self.gaps
        return np.asarray(np.abs(seen - second) - np.abs(seen - first)) / self.plan.releases[1].scale

    @property
    def gaps(self) -> tuple[float, float]:
        """How far the first feature is ahead, on each dataset."""
        first, second = (float(np.abs(pull[0]) - np.abs(pull[1])) for pull in (self.one, self.two))
        return first, second

    def distances(self) -> Array:
        """For every feature, how far apart its weight is on both datasets, in standard deviations."""
        return np.asarray(np.abs(self.one - self.two) / (self.plan.settings.penalty * self.spread))

    def outcomes(self) -> list[Outcome]:
        """Every feature that may be chosen."""
        scale = self.plan.releases[1].scale
        chances = (log_softmax(np.abs(pull) / scale).tolist() for pull in (self.one, self.two))
        return [Outcome(1, *each) for each in zip(*chances, self.distances().tolist(), strict=True)]


def _reach(ratio: _Ratio) -> dict[str, float]:
    """Exact for a chosen support; for a tested one, which is always passed here, its gap and the first weight."""
    plan, distances = ratio.plan, ratio.distances()
    claimed = plan.guarantee.epsilon(DELTA)
    if not 0 < claimed < math.inf:
        # A test that may fail with a larger delta promises nothing here.
        return {}
    if plan.settings.teacher == SUPPORT:
        return {"releases": outcomes_epsilon(ratio.outcomes(), DELTA) / claimed}
    moved = abs(ratio.gaps[0] - ratio.gaps[1])
    seen = [Laplace(plan.releases[1].scale / moved)] if moved > 0 else []
    return {"releases": share(Composed(*seen, Gaussian(1 / float(distances[0]))), plan)}
