"""The likelihood of a run's chosen vertices under each of two datasets, which gives the best test between them.

A Frank-Wolfe run is a function of its vertices. So its whole path, and with it every selection's probabilities under
both datasets, can be computed again from the vertices, for many runs at once. The same code also draws runs from a law
tilted towards one dataset, which shows what the best test attains where composition has no closed form.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_expit, logsumexp

from dptoolkit.audit.pair import Counted
from dptoolkit.audit.theory.odds import LogOdds, threshold_epsilon
from dptoolkit.data import check_rows
from dptoolkit.solvers import Plan
from dptoolkit.solvers.engine.vertices import BallSettings, frank_wolfe_path
from dptoolkit.types import Array

Vertices = NDArray[np.int64]
# Runs are replayed in parts, so that the weights of a part have at most this many entries.
_LARGEST_PART = 2_000_000
# Runs that are drawn to compute what a test attains: fewer, down to a least number, where runs are large, and none
# where they are larger still.
_DRAWN_RUNS, _LEAST_RUNS, _LARGEST_WALK = 10_000, 3_000, 8_000_000
# Runs are drawn such that their mean log ratio is these shares of epsilon. The share 1 is best for independent rounds;
# where rounds depend on one another, it may give runs that never happen.
_TILTS = (1.0, 0.4)


class Walk(NamedTuple):
    """Runs, and the log probability of each under the first dataset, the second, and the law it was drawn from."""

    vertices: Vertices
    weights: Array
    first: Array
    second: Array
    proposal: Array


# draw(runs, rng, tilt)
Draw = Callable[[int, np.random.Generator, float], Walk]


class Replay:
    """Runs of ``dp_frank_wolfe`` or ``dp_multinomial_frank_wolfe`` on two datasets.

    Weights are kept as (runs, groups, size): one selection a group and step, among the 2 size vertices of a group.
    With ``halves`` a group's vertices are split into those that the first dataset favours and the rest, and only the
    half of a chosen vertex is used. That is faster, and loses nothing if the scores within each half are equal. Without
    it the likelihood is exact for Gumbel noise; Laplace noise always uses halves.
    """

    def __init__(self, plan: Plan, first: Counted, second: Counted, halves: bool = False) -> None:
        self.plan, self.data = plan, tuple(_Rows(plan, data) for data in (first, second))
        s = plan.settings
        self.steps, self.radius, self.classes = int(s.steps), float(s.l1_radius), s.class_count or 0
        columns = self.classes > 0 and s.selection == "columns"
        self.groups = s.width(plan.d) if columns else 1
        width = s.width(plan.d)
        self.size = self.classes if columns else width * max(self.classes, 1)
        gradients = [rows.gradient(np.zeros((1, self.groups, self.size))) for rows in self.data]
        # +1 where the first dataset favours the positive vertex, 0 where it favours none.
        self.sign = np.sign(gradients[1] - gradients[0])[0]
        self._favour = self.sign / np.maximum(np.abs(self.sign).sum(axis=1, keepdims=True), 1.0)
        self._odds = LogOdds(s.law, self.size) if halves or s.law != "gumbel" else None

    @property
    def affordable(self) -> int:
        """How many runs can be drawn to compute what a test attains, 0 if too few."""
        return affordable(self.steps * self.groups * self.size)

    def walk(self, runs: int, rng: np.random.Generator, tilt: float) -> Walk:
        """Draw runs; log odds are the first dataset's plus ``tilt`` times their difference to the second's."""
        return self._walk(runs, None, rng, tilt)

    def walk_of(self, vertices: Vertices) -> Walk:
        """The runs that took the given (runs, steps * groups) vertices."""
        return self._walk(len(vertices), vertices.reshape(len(vertices), -1, self.groups), None, 0.0)

    def log_ratio(self, vertices: Vertices) -> Array:
        """log P(vertices | first) - log P(vertices | second), in parts."""
        part = max(1, _LARGEST_PART // (self.groups * self.size))
        walks = [self.walk_of(vertices[i : i + part]) for i in range(0, len(vertices), part)]
        return np.concatenate([w.first - w.second for w in walks] or [np.zeros(0)])

    def _walk(self, runs: int, vertices: Vertices | None, rng: np.random.Generator | None, tilt: float) -> Walk:
        weights = np.zeros((runs, self.groups, self.size))
        first, second, proposal = (np.zeros(runs) for _ in range(3))
        steps = self.steps if vertices is None else vertices.shape[1]
        choices = np.empty((runs, steps, self.groups), dtype=np.int64)
        for t in range(steps):
            one, two = self.scores_at(weights)
            law = one + tilt * (one - two)
            if vertices is None:
                assert rng is not None
                choices[:, t] = self._draw(law, rng)
            else:
                choices[:, t] = vertices[:, t]
            for total, scores in ((first, one), (second, two), (proposal, law)):
                total += self._log_probability(scores, choices[:, t])
            self._move(weights, choices[:, t], t + 1)
        return Walk(choices.reshape(runs, -1), weights, first, second, proposal)

    def raw_scores(self, weights: Array) -> Iterator[Array]:
        """For each dataset the scores of positive vertices over the noise scale; negative vertices have minus that."""
        scale = noise_scale(self.plan, weights)
        for rows in self.data:
            yield -rows.gradient(weights) / scale

    def scores_at(self, weights: Array) -> Iterator[Array]:
        """For each dataset the raw scores or, by halves, the log odds of the favoured vertices, one number a group."""
        for scores in self.raw_scores(weights):
            if self._odds is None:
                yield scores
            else:
                yield self._odds(2 * np.einsum("ngs,gs->ng", scores, self._favour)[:, :, None])

    def first_odds(self) -> tuple[float, float]:
        """For each dataset the log odds that the first selection takes a vertex which the first dataset favours."""
        one, two = (scores[0] for scores in self.scores_at(np.zeros((1, self.groups, self.size))))
        if self._odds is not None:
            return float(one[0, 0]), float(two[0, 0])
        affected = self.sign != 0
        return float(2 * np.mean((one * self.sign)[affected])), float(2 * np.mean((two * self.sign)[affected]))

    def first_spread(self) -> float:
        """The variance of the first step's log ratio under the first dataset: for small losses, what a round leaks."""
        one, two = (self._log_law(scores) for scores in self.scores_at(np.zeros((1, self.groups, self.size))))
        mean = np.sum(np.exp(one) * (one - two), axis=1, keepdims=True)
        return float(np.sum(np.exp(one) * (one - two - mean) ** 2))

    def _log_law(self, scores: Array) -> Array:
        """Log probabilities (groups, outcomes) of one step at the first of the given scores."""
        both = np.concatenate([scores[0], -scores[0]], axis=1)
        return np.asarray(log_expit(both) if self._odds is not None else both - logsumexp(both, axis=1, keepdims=True))

    def _log_probability(self, scores: Array, vertices: Vertices) -> Array:
        if self._odds is not None:
            odds = scores[:, :, 0]
            return np.sum(log_expit(np.where(self._favoured(vertices), odds, -odds)), axis=1)
        place = (vertices % self.size)[:, :, None]
        score = np.take_along_axis(scores, place, axis=2)[:, :, 0]
        score = np.where(vertices < self.size, score, -score)
        return np.sum(score - _log_total(scores), axis=1)

    def _favoured(self, vertices: Vertices) -> NDArray[np.bool_]:
        sign = np.concatenate([self.sign, -self.sign], axis=1)
        return sign[np.arange(self.groups), vertices] > 0

    def _draw(self, scores: Array, rng: np.random.Generator) -> Vertices:
        if self._odds is None:
            both = np.concatenate([scores, -scores], axis=2)
            return np.argmax(both + rng.gumbel(size=both.shape), axis=2)
        up = rng.random(scores.shape[:2]) < expit(scores[:, :, 0])
        place = rng.integers(0, self.size, up.shape)
        positive = (self.sign[np.arange(self.groups), place] > 0) == up
        return np.where(positive, place, place + self.size)

    def _move(self, weights: Array, vertices: Vertices, t: int) -> None:
        mu = 2 / (t + 2)
        weights *= 1 - mu
        push = np.where(vertices < self.size, mu * self.radius, -mu * self.radius)[:, :, None]
        place = (vertices % self.size)[:, :, None]
        np.put_along_axis(weights, place, np.take_along_axis(weights, place, axis=2) + push, axis=2)


def _log_total(scores: Array) -> Array:
    """The log of the sum, over the last axis, of exp(score) and exp(-score)."""
    sizes = np.abs(scores)
    largest = sizes.max(axis=-1, keepdims=True)
    total = np.exp(sizes - largest).sum(axis=-1) + np.exp(-sizes - largest).sum(axis=-1)
    return np.asarray(largest[..., 0] + np.log(total))


class _Rows:
    """The gradient of one dataset, times the radius, at many weights."""

    def __init__(self, plan: Plan, data: Counted) -> None:
        X = data.X
        if plan.settings.fit_intercept:
            X = np.column_stack([X, np.full(len(X), plan.settings.bounds.level)])
        nonzero = (data.counts > 0) & X.any(axis=1)
        self.X, self.classes = X[nonzero], plan.settings.class_count or 0
        self.y = np.eye(self.classes)[data.y[nonzero].astype(int)] if self.classes else data.y[nonzero]
        self.share = data.counts[nonzero] * (plan.settings.l1_radius / plan.n)
        self.columns = self.classes > 0 and plan.settings.selection == "columns"
        self.loss = plan.settings.loss_row

    def gradient(self, weights: Array) -> Array:
        """The gradients at many weights, of shape (runs, groups, size)."""
        if not self.classes:
            margins = weights[:, 0] @ self.X.T
            return np.asarray((self.loss.residual(margins, self.y) * self.share) @ self.X)[:, None, :]
        margins = np.einsum("nkd,md->nmk", _matrices(weights, self.classes), self.X)
        flat = self.loss.residual(margins.reshape(-1, self.classes), np.tile(self.y, (len(weights), 1)))
        r = flat.reshape(margins.shape) * self.share[:, None]
        gradient = np.einsum("nmk,md->nkd", r, self.X)
        return np.asarray(gradient.transpose(0, 2, 1) if self.columns else gradient.reshape(len(weights), 1, -1))


def noise_scale(plan: Plan, weights: Array) -> Array:
    """The noise scale of a selection at each of many weights (the solver's own law)."""
    s = plan.settings
    many = weights.reshape(len(weights), -1) if isinstance(s, BallSettings) else _matrices(weights, s.classes)
    return np.asarray(s.noise_law(plan)(many))[:, None, None]


def _matrices(weights: Array, classes: int) -> Array:
    """(runs, groups, size) weights as (runs, classes, features): groups are columns, or there is one group of all."""
    return weights.transpose(0, 2, 1) if weights.shape[1] > 1 else weights.reshape(len(weights), classes, -1)


@dataclass(frozen=True)
class VertexScore:
    """The exact log likelihood ratio of the chosen vertices: of all of them, or of the first step's."""

    replay: Replay

    def __call__(self, features: Array) -> Array:
        return self.replay.log_ratio(np.asarray(features).astype(np.int64))


@dataclass(frozen=True)
class IterateScore:
    """The same ratio from the weights after every step, which show the vertex that each step added."""

    replay: Replay

    def __call__(self, features: Array) -> Array:
        replay = self.replay
        path = np.asarray(features).reshape(len(features), replay.steps, -1)
        factors = 1 - 2 / (np.arange(2, replay.steps + 1) + 2.0)
        additions = path.copy()
        additions[:, 1:] -= factors[:, None] * path[:, :-1]
        place = np.argmax(np.abs(additions), axis=2)
        up = np.take_along_axis(additions, place[:, :, None], axis=2)[:, :, 0] > 0
        return replay.log_ratio(np.where(up, place, place + path.shape[2]))


class FinalScore:
    """A score of the final weights: the sum of the log likelihood ratios of their entries, each by itself.

    Step t adds +-2(t+1) radius / ((T+1)(T+2)) to one entry of the final weights. So an entry, in units of 2 radius /
    ((T+1)(T+2)), is a signed sum of some of 2, ..., T+1. Its law under both datasets is computed as if every round had
    the first round's odds.
    """

    _LARGEST_TABLE_STEPS = 300

    def __init__(self, replay: Replay) -> None:
        self.sign, self.steps = replay.sign, replay.steps
        self.unit = 2 * replay.radius / ((self.steps + 1) * (self.steps + 2))
        self._tables: dict[float, Array] = {}
        if self.steps <= self._LARGEST_TABLE_STEPS:
            first, second = (self._log_law(float(expit(odds)), replay.size) for odds in replay.first_odds())
            table = first - second
            self._tables = {1.0: table, -1.0: table[::-1], 0.0: np.zeros_like(table)}

    def _log_law(self, up: float, size: int) -> Array:
        """Log law of an entry whose positive vertices are favoured, in units, from the smallest sum to the largest."""
        largest = self.steps * (self.steps + 3) // 2
        law: Array = np.zeros(2 * largest + 1)
        law[largest] = 1.0
        for t in range(1, self.steps + 1):
            next_law = law * (1 - 1 / size)
            next_law[t + 1 :] += law[: -t - 1] * (up / size)
            next_law[: -t - 1] += law[t + 1 :] * ((1 - up) / size)
            law = next_law
        # Impossible sums get a tiny mass, the same under both datasets, so that their log ratio is 0.
        return np.log(law + 1e-300)

    def __call__(self, features: Array) -> Array:
        weights = np.asarray(features).reshape(len(features), -1)
        sign = self._in_order(weights.shape[1])
        if not self._tables:
            return np.asarray(weights @ sign)
        sums = np.rint(weights / self.unit).astype(np.int64) + len(self._tables[1.0]) // 2
        sums = np.clip(sums, 0, len(self._tables[1.0]) - 1)
        total = np.zeros(len(weights))
        for value, table in self._tables.items():
            total += table[sums[:, sign == value]].sum(axis=1)
        return total

    def _in_order(self, width: int) -> Array:
        """The signs in the order of the weights that a solver returns: classes first."""
        sign = self.sign.T if self.sign.shape[0] > 1 else self.sign
        return np.asarray(sign.reshape(-1)[:width])


class Later(Mapping[str, float]):
    """The mapping that ``compute(*arguments)`` returns, computed on first use, since drawing runs takes seconds."""

    def __init__(self, compute: Callable[..., dict[str, float]], *arguments: Any) -> None:
        self._compute, self._arguments = compute, arguments
        self._values: dict[str, float] | None = None

    def _computed(self) -> dict[str, float]:
        if self._values is None:
            self._values = self._compute(*self._arguments)
        return self._values

    def __getitem__(self, key: str) -> float:
        return self._computed()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._computed())

    def __len__(self) -> int:
        return len(self._computed())


def affordable(entries: int) -> int:
    """How many runs of so many entries can be drawn, 0 if too few."""
    runs = min(_DRAWN_RUNS, _LARGEST_WALK // entries)
    return runs if runs >= _LEAST_RUNS else 0


def drawn_reach(
    plan: Plan, draw: Draw, scores: Mapping[str, Callable[[Walk], Array]], delta: float, runs: int
) -> dict[str, float]:
    """Share of the plan's epsilon at ``delta`` that the best threshold of each score attains, from drawn runs.

    Runs are drawn from a law that is tilted until the mean log ratio is near the plan's epsilon, where the runs that
    decide lie. The weights first/proposal and second/proposal turn their frequencies into probabilities under either
    dataset.
    """
    epsilon = plan.guarantee.epsilon(delta)
    shares = dict.fromkeys(scores, 0.0)
    pilot = draw(min(runs, 1000), np.random.default_rng(1), 0.0)
    variance = float(np.var(pilot.first - pilot.second))
    for towards_first, part in itertools.product((True, False), _TILTS):
        walk = draw(runs, np.random.default_rng(0), _tilt(variance, part * epsilon, towards_first))
        first, second = walk.first - walk.proposal, walk.second - walk.proposal
        for name, score in scores.items():
            values = score(walk)
            one = (values, first, second) if towards_first else (-values, second, first)
            shares[name] = max(shares[name], threshold_epsilon(*one, delta, runs // 40) / epsilon)
    return shares


def _tilt(variance: float, epsilon: float, towards_first: bool) -> float:
    """If the log ratio is N(v/2, v) under the first dataset, tilt k makes its mean (1/2 + k) v, also for k = -1."""
    beyond = max(epsilon / max(variance, 1e-12) - 0.5, 0.0)
    return beyond if towards_first else -1 - beyond


def exact_count(plan: Plan, data: Counted) -> int:
    """The number of nonzeros that the sparsifier counts; it is private, and computed here for audits only."""
    s = plan.settings
    X, y = data.expand()
    rows, labels = s.bounds.clip(check_rows(X), y)
    w, _ = frank_wolfe_path(rows, labels, s.loss_row, s.l1_radius, s.count_steps)
    return int(np.count_nonzero(w[: plan.d]))
