"""The worst pair we know for peeling: many ties at the s-th place, half raised and half lowered by one record.

Records of alternating signs make the entries of the gradient step alternate in sign and equal in size. A record with
all features at their bound moves all entries in the same direction, so half of the sizes rise and half fall by the
whole sensitivity, and all released values shift by it. That is so at w = 0. Elsewhere the noise is for records at full
margin too, so that the others hold the weights near 0: rows of all signs, with labels 0, pull each weight back alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import hadamard

from dptoolkit.adjacency import Adjacency
from dptoolkit.audit.pair import Counted, Pair, Score
from dptoolkit.audit.pairs._frank_wolfe import DELTA, check_plan, log_ratio
from dptoolkit.audit.theory.replay import Later, Walk, affordable, drawn_reach
from dptoolkit.solvers.frame.plan import GAUSSIAN, GUMBEL_MAXIMUM, Plan
from dptoolkit.types import Array

if TYPE_CHECKING:
    from dptoolkit.solvers._peeling import ResolvedPeeling

_NODES, _WEIGHTS = np.polynomial.laguerre.laggauss(24)
_LARGEST_PART = 500_000
# Runs by which pairs are compared.
_COMPARED = 1000


def peeling_iht(plan: Plan) -> Pair:
    """A record with all features and its label at their bounds, against the opposite label or a zero row.

    One more record of alternating signs makes the ties (two for zero-out, so that no size crosses zero). All other rows
    have labels 0 and orthogonal columns, or are zero, whichever shows more. With split data these records are in the
    first block, and only the first step depends on them.
    """
    check_plan(plan, "peeling_iht")
    number = _holding(plan)
    replays = [_Replay(plan, *_datasets(plan, rows)) for rows in ((0, number) if number else (0,))]
    replay = max(replays, key=_quick) if len(replays) > 1 else replays[0]
    first, second = replay.datasets
    scores: dict[str, Score] = {"releases": replay.log_ratio, "step": replay.log_ratio, "final": replay.final}
    if plan.settings.data == "split":
        del scores["final"]
    others = "zero rows" if replay is replays[0] else "rows that hold the weights near 0"
    description = f"one record with all features at their bound; records of alternating signs make ties; {others}"
    return Pair(first, second, plan.adjacency, description, scores, Later(_reach, replay))


def _reach(replay: _Replay) -> dict[str, float]:
    runs = affordable(replay.steps * replay.plan.d * 4)
    # No closed form for the chosen set under Laplace noise.
    if not replay.gumbel or not runs:
        return {}
    return drawn_reach(replay.plan, replay.walk, {"releases": log_ratio}, DELTA, runs)


def _quick(replay: _Replay) -> float:
    """The share of the guarantee that all releases show, estimated from few runs."""
    return drawn_reach(replay.plan, replay.walk, {"releases": log_ratio}, DELTA, _COMPARED)["releases"]


def _ties(plan: Plan[ResolvedPeeling]) -> int:
    wanted = 1 if plan.adjacency is Adjacency.REPLACE_ONE else 2
    return min(wanted, plan.settings.block(plan.n) - 1)


def _holding(plan: Plan[ResolvedPeeling]) -> int:
    """How often each row of signs occurs that holds the weights: enough for a step to take them to 0, if there is room.

    0 where they would not fit, and where only the first step counts.
    """
    s, signs = plan.settings, _signs(plan)
    if s.data == "split" or s.steps < 2 or plan.releases[0].law != GUMBEL_MAXIMUM:
        return 0
    wanted = plan.n / (s.step_size * s.feature_bound**2)
    return int(min(wanted, plan.n - 1 - _ties(plan)) // len(signs))


def _signs(plan: Plan[ResolvedPeeling]) -> Array:
    """Rows of +-1 whose columns are orthogonal, as many as the next power of two."""
    size = 1 << (plan.d - 1).bit_length()
    return np.asarray(hadamard(size)[:, : plan.d], dtype=float)


def _datasets(plan: Plan[ResolvedPeeling], holding: int) -> tuple[Counted, Counted]:
    s = plan.settings
    ones, zero = np.full(plan.d, s.feature_bound), np.zeros(plan.d)
    alternating = np.where(np.arange(plan.d) % 2 == 0, ones, -ones)
    replace, ties = plan.adjacency is Adjacency.REPLACE_ONE, _ties(plan)
    signs = s.feature_bound * _signs(plan) if holding else np.zeros((0, plan.d))
    rest = plan.n - 1 - ties - holding * len(signs)
    counts = np.array([1, ties, rest, *[holding] * len(signs)])

    def with_record(x: Array, label: float) -> Counted:
        labels = np.array([label, s.label_bound, 0.0, *[0.0] * len(signs)])
        return Counted(np.vstack([x, alternating, zero, signs]), labels, counts)

    other = with_record(ones, -s.label_bound) if replace else with_record(zero, 0.0)
    return with_record(ones, s.label_bound), other


class _Replay:
    """Runs of ``peeling_iht`` on two datasets, from the peeled vectors.

    Exact for the tight plan: Gumbel noise chooses a SET, whose order is not released, and values get Gaussian noise.
    With Laplace noise the chosen set's likelihood is taken as if the noise were Gumbel.
    """

    def __init__(self, plan: Plan[ResolvedPeeling], first: Counted, second: Counted) -> None:
        self.plan, self.datasets = plan, (first, second)
        self.data = _Moments(plan, first), _Moments(plan, second)
        self.support, self.values = plan.releases
        self.gumbel = self.support.law == GUMBEL_MAXIMUM
        # With split data later blocks are the same in both datasets.
        self.steps = 1 if plan.settings.data == "split" else int(plan.settings.steps)

    def log_ratio(self, features: Array) -> Array:
        """The log likelihood ratio of (runs, steps * d) peeled vectors."""
        peeled = np.asarray(features).reshape(len(features), -1, self.plan.d)[:, : self.steps]
        part = max(1, _LARGEST_PART // (self.plan.d * len(_NODES)))
        parts = (peeled[i : i + part] for i in range(0, len(peeled), part))
        walks = [self._walk(len(p), p, None, 0.0) for p in parts]
        return np.concatenate([w.first - w.second for w in walks] or [np.zeros(0)])

    def final(self, features: Array) -> Array:
        """A score of the final weights, taken for one step from zero and scaled back up if they were projected."""
        weights = np.asarray(features)
        norm = np.linalg.norm(weights, axis=1, keepdims=True)
        usual = self.values.scale * np.sqrt(self.plan.settings.sparsity)
        projected = norm >= self.plan.settings.radius * (1 - 1e-9)
        stretched = np.where(projected, weights * np.maximum(usual / np.maximum(norm, 1e-300), 1.0), weights)
        return self.log_ratio(stretched)

    def walk(self, runs: int, rng: np.random.Generator, tilt: float) -> Walk:
        """Draw runs; means are the first dataset's plus ``tilt`` times their difference to the second's."""
        return self._walk(runs, None, rng, tilt)

    def _walk(self, runs: int, vectors: Array | None, rng: np.random.Generator | None, tilt: float) -> Walk:
        w = np.zeros((runs, self.plan.d))
        first, second, proposal = (np.zeros(runs) for _ in range(3))
        steps = self.steps if vectors is None else vectors.shape[1]
        for t in range(steps):
            one, two = (moments.step(w) for moments in self.data)
            shares = self.plan.settings.noise_shares(self.plan.n, w)[:, None]
            law = (one[0] + tilt * (one[0] - two[0]), one[1] + tilt * (one[1] - two[1]))
            if vectors is None:
                assert rng is not None
                peeled = self._draw(law, shares, rng)
            else:
                peeled = vectors[:, t]
            for total, (values, sizes) in ((first, one), (second, two), (proposal, law)):
                total += self._log_density(values, sizes, shares, peeled)
            norm = np.linalg.norm(peeled, axis=1, keepdims=True)
            w = peeled * np.minimum(1.0, self.plan.settings.radius / np.maximum(norm, 1e-300))
        return Walk(np.zeros((runs, 0), dtype=np.int64), w, first, second, proposal)

    def _draw(self, law: tuple[Array, Array], shares: Array, rng: np.random.Generator) -> Array:
        values, sizes = law
        noisy = sizes / (shares * self.support.scale) + rng.gumbel(size=sizes.shape)
        s = self.plan.settings.sparsity
        choice = np.argpartition(-noisy, s - 1, axis=1)[:, :s]
        out = np.zeros_like(values)
        blur = shares * self.values.scale * rng.standard_normal(choice.shape)
        np.put_along_axis(out, choice, np.take_along_axis(values, choice, axis=1) + blur, axis=1)
        return out

    def _log_density(self, values: Array, sizes: Array, shares: Array, peeled: Array) -> Array:
        """The log density of peeled vectors, up to terms that are the same under both datasets."""
        support = peeled != 0
        off = np.where(support, peeled - values, 0.0) / (shares * self.values.scale)
        blur = -np.sum(off**2, axis=1) / 2 if self.values.law == GAUSSIAN else -np.sum(np.abs(off), axis=1)
        return np.asarray(blur + log_top(sizes / (shares * self.support.scale), support))


class _Moments:
    """The gradient step v = w - step_size gradient of one dataset at many weights, and the sizes |v|."""

    def __init__(self, plan: Plan[ResolvedPeeling], data: Counted) -> None:
        s = plan.settings
        nonzero = (data.counts > 0) & data.X.any(axis=1)
        X, counts = data.X[nonzero], data.counts[nonzero] * (s.step_size / s.block(plan.n))
        self.matrix, self.target = (X.T * counts) @ X, (X.T * counts) @ data.y[nonzero]

    def step(self, w: Array) -> tuple[Array, Array]:
        v = w - w @ self.matrix + self.target
        return v, np.abs(v)


def log_top(scores: Array, support: NDArray[np.bool_]) -> Array:
    """Log probability that the entries of ``support`` are the largest after standard Gumbel noise.

    The largest of the other entries is below x with probability exp(-R e^-x), where R is the sum of their weights
    e^score. With y = R e^-x, which is exponential, an entry of the support is above it with probability
    1 - exp(-y e^score / R). The result is the integral of e^-y times the product of these, by Gauss-Laguerre.
    """
    count = int(support[0].sum())
    if count == support.shape[1]:
        return np.zeros(len(scores))
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    rest = np.sum(weights, axis=1, where=~support)
    ratio = np.where(support, weights, 0.0)
    # Every row has the same number of entries in the support: gather them at the front.
    ratio = np.take_along_axis(ratio, np.argsort(~support, axis=1, kind="stable")[:, :count], axis=1) / rest[:, None]
    product = np.ones((len(scores), len(_NODES)))
    for place in range(count):
        product *= -np.expm1(-ratio[:, place, None] * _NODES)
    return np.asarray(np.log(product @ _WEIGHTS))
