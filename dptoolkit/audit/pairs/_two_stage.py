"""The worst pair we know for two_stage: one record decides which features get its block's votes, and pulls all of them.

Its row has entries of one sign on half of the candidate features and of the other sign on the rest; whichever half has
the larger entries gets the votes. All entries are beyond the row bound, so that on any support the clipped row is as
long as the bound. In the second dataset the other half has the larger entries, and the label is the opposite: every
weight is pulled the other way. Two more records in the same block, common to both datasets, pull against each other and
make the columns' lengths comparable, as the LASSO of a block normalises them. Labels are far away: all slopes are
constant, so that the second stage is a pair of Gaussians on every support.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dptoolkit._validate import invalid
from dptoolkit.adjacency import Adjacency
from dptoolkit.audit.pair import Counted, Pair, Score
from dptoolkit.audit.pairs._frank_wolfe import DELTA, check_plan
from dptoolkit.audit.pairs._objective_perturbation import far_label
from dptoolkit.audit.pairs._peeling import log_top
from dptoolkit.audit.theory.kept import check_zero_out
from dptoolkit.audit.theory.odds import Outcome, outcomes_epsilon
from dptoolkit.audit.theory.replay import Later
from dptoolkit.data import check_rows, clip_rows
from dptoolkit.solvers._two_stage import count_votes
from dptoolkit.solvers.frame.plan import GAUSSIAN_TERM, Plan
from dptoolkit.types import Array

if TYPE_CHECKING:
    from dptoolkit.solvers._two_stage import ResolvedTwoStage

# Entries over the row bound: of the half that gets the votes, of the other, and of the common records.
_LARGER, _SMALLER, _COMMON = 1.5, 1.0, 2.0


def two_stage(plan: Plan) -> Pair:
    """A record that raises half of the candidate features and lowers the rest, against its opposite or a zero row."""
    check_plan(plan, "two_stage", intercept=True)
    check_zero_out(plan)
    s = plan.settings
    room = plan.d >= 2 * s.sparsity and plan.n > 2 * s.blocks
    if not room or not s.loss_row.saturates or s.radius is not None:
        found = f"n={plan.n}, d={plan.d}, blocks={s.blocks}, sparsity={s.sparsity}, loss={s.loss}, radius={s.radius}"
        wanted = "d >= 2 sparsity, n > 2 blocks, loss 'huber' and no radius for this pair"
        raise invalid("plan", found, wanted)
    worlds = _Worlds(plan, *_datasets(plan))
    scores: dict[str, Score] = {"final": worlds, "releases": worlds}
    description = "one record decides its block's votes and pulls every weight; two common records; zero rows"
    return Pair(worlds.first, worlds.second, plan.adjacency, description, scores, Later(_reach, worlds))


def _datasets(plan: Plan[ResolvedTwoStage]) -> tuple[Counted, Counted]:
    settings, label = plan.settings, far_label(plan)
    half, bound, zero = settings.sparsity, settings.row_norm, np.zeros(plan.d)
    leading, trailing, common = zero.copy(), zero.copy(), zero.copy()
    leading[: 2 * half] = bound * np.repeat([_LARGER, -_SMALLER], half)
    trailing[: 2 * half] = bound * np.repeat([_SMALLER, -_LARGER], half)
    common[: 2 * half] = bound * np.repeat([_COMMON, -_COMMON], half)
    other = (trailing, -label)
    if plan.adjacency is Adjacency.ZERO_OUT:
        # Nothing to compare with: the record alone has features.
        common, other = zero, (zero, 0.0)
    # Record i is in block i mod blocks. Zero rows pull an intercept, so half of them pull it each way.
    between, rest = settings.blocks - 1, plan.n - 1 - 2 * settings.blocks
    counts = np.array([1, between, 1, between, 1, rest // 2, rest - rest // 2])

    def dataset(row: Array, y: float) -> Counted:
        labels = np.array([y, label, label, -label, -label, label, -label])
        return Counted(np.array([row, zero, common, zero, common, zero, zero]), labels, counts)

    return dataset(leading, label), dataset(*other)


@dataclass(frozen=True)
class _Worlds:
    """Both datasets; as a score, the exact log likelihood ratio of a support and the weights on it."""

    plan: Plan[ResolvedTwoStage]
    first: Counted
    second: Counted

    def __call__(self, outputs: Array) -> Array:
        weights = np.asarray(outputs)
        supports, member = np.unique(weights[:, : self.plan.d] != 0, axis=0, return_inverse=True)
        total = np.zeros(len(weights))
        for i, support in enumerate(supports):
            mine = member.ravel() == i
            if support.sum() != self.plan.settings.sparsity:
                continue
            one, two = self.chances(support)
            columns = np.append(np.flatnonzero(support), np.arange(self.plan.d, weights.shape[1]))
            total[mine] = one - two + self._pulled(weights[mine][:, columns], support)
        return total

    def _pulled(self, weights: Array, support: NDArray[np.bool_]) -> Array:
        """The log-likelihood ratio of the weights, which are minus the mean slope over l2, plus noise."""
        seen = weights * self.plan.settings.l2
        one, two = self.pulls(support)
        squares = self.plan.releases[0].scale ** 2
        return np.asarray((seen - (one + two) / 2) @ (one - two) / squares)

    def pulls(self, support: NDArray[np.bool_]) -> tuple[Array, Array]:
        """Minus the mean gradient of each dataset on a support, the intercept's last; the same at all weights."""
        return self._pull(self.first, support), self._pull(self.second, support)

    def _pull(self, data: Counted, support: NDArray[np.bool_]) -> Array:
        settings = self.plan.settings
        rows = clip_rows(check_rows(data.X[:, support]), settings.row_norm).matrix
        if settings.fit_intercept:
            rows = np.column_stack([rows, np.ones(len(rows))])
        slopes = settings.loss_row.residual(np.zeros(len(data.y)), data.y)
        return np.asarray(-(slopes * data.counts) @ rows / self.plan.n)

    def chances(self, support: NDArray[np.bool_]) -> tuple[float, float]:
        """The log probability of a support on each dataset."""
        scale = self.plan.releases[2].scale
        one, two = (float(log_top(votes[None] / scale, support[None])[0]) for votes in self.votes)
        return one, two

    @cached_property
    def votes(self) -> tuple[Array, Array]:
        """The exact votes of each dataset; they are private, and counted here for audits only."""
        s = self.plan.settings
        one, two = (
            count_votes(check_rows(X), y, s.loss_row, s.sparsity, s.blocks)
            for X, y in (self.first.expand(), self.second.expand())
        )
        return one, two

    def kinds(self) -> Iterator[Outcome]:
        """All supports, by how many of their features are in each half of the candidates."""
        half, d = self.plan.settings.sparsity, self.plan.d
        for a in range(half + 1):
            for b in range(half + 1 - a):
                rest = half - a - b
                number = math.comb(half, a) * math.comb(half, b) * math.comb(d - 2 * half, rest)
                if not number:
                    continue
                support = np.zeros(d, dtype=bool)
                support[:a] = support[half : half + b] = support[2 * half : 2 * half + rest] = True
                one, two = self.pulls(support)
                distance = float(np.linalg.norm(one - two)) / self.plan.releases[0].scale
                yield Outcome(number, *self.chances(support), distance)


def _reach(worlds: _Worlds) -> dict[str, float]:
    """Exact, but for the output noise: of every kind of support the chances, and two Gaussians at their distance."""
    plan = worlds.plan
    claimed = plan.guarantee.epsilon(DELTA)
    if plan.releases[0].law != GAUSSIAN_TERM or not 0 < claimed < math.inf:
        return {}
    attained = outcomes_epsilon(list(worlds.kinds()), DELTA)
    return dict.fromkeys(("final", "releases"), attained / claimed)
