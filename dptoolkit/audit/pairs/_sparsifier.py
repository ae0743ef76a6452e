"""The worst pair we know for the sparsifier: one record decides both the count and every selection.

Rows with one nonzero feature each make the exact path take a new feature at every step, as long as no other row prefers
a feature. A record that prefers one feature a little keeps the path at that feature. So one record moves the count
between its lower and its upper bound, and moves all selections as in the pair for Frank-Wolfe.

With an intercept zero rows of both labels hold it, as many as make up for the rows on single features.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from dptoolkit import losses
from dptoolkit._validate import invalid
from dptoolkit.adjacency import Adjacency
from dptoolkit.audit.pair import Counted, Pair, Score
from dptoolkit.audit.pairs._frank_wolfe import DELTA, check_plan, extreme_labels, log_ratio, vertex_scores
from dptoolkit.audit.theory.kept import check_zero_out
from dptoolkit.audit.theory.replay import FinalScore, Later, Replay, Walk, drawn_reach, exact_count
from dptoolkit.solvers.frame.plan import Plan
from dptoolkit.types import Array

if TYPE_CHECKING:
    from dptoolkit.solvers._sparsifier import ResolvedSparsifier

# As shares of the feature bound: the largest entries of the rows on single features, the lead of the preferred feature.
_SINGLE, _FAVOUR = 0.05, 0.02


def sparsifier(plan: Plan) -> Pair:
    """A record with all features near their bound, one of them a little larger, against the opposite record or none.

    The pair's ``description`` states the two exact counts. Without a private count only the selections differ.
    """
    check_plan(plan, "sparsifier", intercept=True)
    check_zero_out(plan)
    intercept = plan.settings.fit_intercept
    if intercept and plan.settings.law != "gumbel":
        raise invalid("law", plan.settings.law, "'gumbel' with an intercept", "No pair is known for another.")
    first, second = _datasets(plan)
    # An intercept's score moves by less than the features', so that they do not have two equal halves.
    replay = Replay(plan, first, second, halves=not intercept)
    scores = vertex_scores(replay)
    del scores["iterates"]
    if plan.settings.count != "geometric":
        description = "one record with all features near their bound, and rows on single features"
        return Pair(first, second, plan.adjacency, description, scores, Later(_of_selections, replay))
    counts = (exact_count(plan, first), exact_count(plan, second))
    law = CountLaw(plan, *counts)
    scores |= {"releases": _ReleaseScore(replay, law), "final": _SparseScore(replay, law)}
    description = f"one record moves the exact count from {counts[0]} to {counts[1]}, and every selection"
    return Pair(first, second, plan.adjacency, description, scores, Later(_reach, replay, law))


def _datasets(plan: Plan[ResolvedSparsifier]) -> tuple[Counted, Counted]:
    bound, (low, high) = plan.settings.feature_bound, extreme_labels(plan)
    ones, zero = np.full(plan.d, bound), np.zeros(plan.d)
    record = ones * (1 - _FAVOUR)
    record[0] = bound
    # The rows on single features pull in the other record's direction, so that after a step along one of them the
    # others are the best.
    single = min(plan.n - 1, plan.d)
    terms = plan.settings.loss_row
    rest = np.vstack([_single(plan, low) * bound * np.eye(plan.d)[:single], zero])
    # For the Huber loss labels are inside the quadratic part, where the residual changes with the margin.
    inside = min(high, terms.residual_bound / 2) if terms.task == losses.REGRESSION else high
    labels, counts = [inside] * single + [0.0], [1] * single + [plan.n - 1 - single]
    if plan.settings.fit_intercept:
        balanced = max((plan.n - 1 - 2 * single) // 2, 0)
        rest, labels = np.vstack([rest, zero]), [*labels[:-1], low, high]
        counts = [*counts[:-1], plan.n - 1 - single - balanced, balanced]
    other, label = (zero, 0.0) if plan.adjacency is Adjacency.ZERO_OUT else (ones, high)

    def with_record(x: Array, y: float) -> Counted:
        return Counted(np.vstack([x, rest]), np.array([y, *labels]), np.array([1, *counts]))

    return with_record(record, low), with_record(other, label)


def _single(plan: Plan[ResolvedSparsifier], label: float) -> float:
    """The entries of the rows on single features: so small that the record's preference wins at the end of the ball.

    There its residual is least, while the row on its feature pulls back more than the others, by its own curvature.
    """
    s = plan.settings
    furthest = s.l1_radius * s.feature_bound
    least = float(np.abs(s.loss_row.residual(np.array([-furthest]), np.array([label])))[0])
    return min(_SINGLE, least, math.sqrt(least * _FAVOUR / (2 * s.loss_row.smoothness * furthest * s.feature_bound)))


class CountLaw:
    """The law of the noisy count under both datasets: two-sided geometric, clipped to [lower, upper]."""

    def __init__(self, plan: Plan[ResolvedSparsifier], first: int, second: int) -> None:
        s = plan.settings
        self.lower, self.upper = s.span
        self.rho, self.d = s.rho, plan.d
        q = math.exp(-s.epsilons[0] / (self.upper - self.lower))
        self.first, self.second = (np.log(self._mass(min(max(c, self.lower), self.upper), q)) for c in (first, second))

    def _mass(self, centre: int, q: float) -> Array:
        values = np.arange(self.lower, self.upper + 1)
        mass = (1 - q) / (1 + q) * q ** np.abs(values - centre).astype(float)
        # The ends also have the mass that is clipped to them.
        mass[0], mass[-1] = mass[0] / (1 - q), mass[-1] / (1 - q)
        return np.asarray(mass)

    def numbers(self, log_mass: Array) -> Array:
        """The law of the number of weights to keep, 0, ..., d."""
        values = np.arange(self.lower, self.upper + 1)
        number = [round(min(self.rho * c, self.d)) for c in values.tolist()]
        return np.bincount(number, np.exp(log_mass), minlength=self.d + 1).astype(float)


class _ReleaseScore:
    """Log likelihood ratio of the vertices and of the count, which comes last."""

    def __init__(self, replay: Replay, law: CountLaw) -> None:
        self.replay, self.ratio, self.lower = replay, law.first - law.second, law.lower

    def __call__(self, features: Array) -> Array:
        whole = np.asarray(features).astype(np.int64)
        return self.replay.log_ratio(whole[:, :-1]) + self.ratio[whole[:, -1] - self.lower]


class _SparseScore:
    """A score of the final weights: the log likelihood ratio of their number, plus that of their values.

    Their number is the smaller of the number to keep and of the number of features ever chosen. The law of the latter
    is taken to be that of uniform choices, under both datasets.
    """

    def __init__(self, replay: Replay, law: CountLaw) -> None:
        self.values: Score = FinalScore(replay)
        self.d = replay.plan.d
        features_law = _different(replay.steps, replay.plan.d)
        at_least = np.cumsum(features_law[::-1])[::-1]
        logs = []
        for log_mass in (law.first, law.second):
            number_law = law.numbers(log_mass)
            more = 1 - np.cumsum(number_law)
            logs.append(np.log(np.maximum(number_law * at_least + features_law * more, 1e-300)))
        self.ratio = logs[0] - logs[1]

    def __call__(self, features: Array) -> Array:
        weights = np.asarray(features)
        # An intercept stays, and is not counted.
        return self.values(weights) + self.ratio[np.count_nonzero(weights[:, : self.d], axis=1)]


def _different(draws: int, among: int) -> Array:
    """The law, on 0, ..., among, of the number of distinct values in ``draws`` uniform draws from ``among``."""
    law = np.zeros(among + 1)
    law[0] = 1.0
    old = np.arange(among + 1) / among
    for _ in range(draws):
        law = law * old + np.append(0.0, (law * (1 - old))[:-1])
    return law


def _of_selections(replay: Replay) -> dict[str, float]:
    """The pair without a private count; which weights stay in the final model is not looked at."""
    runs = replay.affordable
    return drawn_reach(replay.plan, replay.walk, {"releases": log_ratio}, DELTA, runs) if runs else {}


def _reach(replay: Replay, law: CountLaw) -> dict[str, float]:
    if not replay.affordable:
        return {}

    def draw(runs: int, rng: np.random.Generator, tilt: float) -> Walk:
        walk = replay.walk(runs, rng, tilt)
        log_law = law.first + tilt * (law.first - law.second)
        mass = np.exp(log_law - log_law.max())
        place = rng.choice(len(mass), size=runs, p=mass / mass.sum())
        log_count = np.log(mass / mass.sum())[place]
        return Walk(
            np.column_stack([walk.vertices, place + law.lower]), walk.weights, walk.first + law.first[place],
            walk.second + law.second[place], walk.proposal + log_count,
        )  # fmt: skip

    final_score = _SparseScore(replay, law)

    def final(walk: Walk) -> Array:
        numbers = np.array([round(min(law.rho * c, law.d)) for c in range(law.upper + 1)])[walk.vertices[:, -1]]
        weights = walk.weights[:, 0].copy()
        free = weights[:, : law.d]
        rank = np.argsort(np.argsort(-np.abs(free), axis=1, kind="stable"), axis=1)
        free[rank >= numbers[:, None]] = 0.0
        return final_score(weights)

    return drawn_reach(replay.plan, draw, {"releases": log_ratio, "final": final}, DELTA, replay.affordable)
