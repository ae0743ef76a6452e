"""The worst pair we know for dual averaging of the softmax loss: a record of class 0 turns round, or changes class.

A record's gradient is r x^T with r = softmax - one-hot, scaled down as a whole to its bound. At small weights it is at
the bound. A row and its negative, both of class 0, have opposite gradients there, so that the mean moves by the whole
sensitivity. An intercept's entry does not turn round with the row; there the class changes, if that moves the gradients
further apart. All other rows are zero, as many of each class, which hold an intercept where it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from dptoolkit.accounting import Gaussian
from dptoolkit.adjacency import Adjacency
from dptoolkit.audit.pair import Counted, Pair, Score
from dptoolkit.audit.theory import kept
from dptoolkit.audit.theory.likelihood import Projection
from dptoolkit.audit.theory.replay import Later
from dptoolkit.data import check_rows
from dptoolkit.solvers.engine.softmax import clipped_residuals
from dptoolkit.solvers.frame.plan import Plan
from dptoolkit.types import Array

if TYPE_CHECKING:
    from dptoolkit.solvers._dual_averaging import ResolvedDualAveraging

# Runs from which the reach of all releases is estimated.
_RUNS = 256


def softmax_pair(plan: Plan) -> Pair:
    """For ``dp_dual_averaging`` with loss "softmax".

    Scores: for "gradients", "releases" and "step" the exact likelihood ratio; for "final" the direction of the change.
    """
    kept.check_zero_out(plan)
    found = [_datasets(plan, kind) for kind in ("sign", "class")]
    (first, second), text = max(found, key=lambda one: _apart(plan, *one[0]))
    both = [_Matrices(plan, data) for data in (first, second)]
    every = SoftmaxRatio(*both)
    start = np.zeros((1, *both[0].shape))
    change = (both[1].mean(start) - both[0].mean(start))[0].ravel()
    size = float(np.linalg.norm(change))
    along = Projection(change / size if size > 0 else change)
    scores: dict[str, Score] = {"final": along, "gradients": every, "releases": every, "step": every}
    pair = Pair(first, second, plan.adjacency, f"{text}; zero rows of all classes", scores)
    return replace(pair, reach=Later(_reach, plan, pair)) if plan.noise > 0 else pair


def _datasets(plan: Plan[ResolvedDualAveraging], kind: str) -> tuple[tuple[Counted, Counted], str]:
    settings, classes = plan.settings, plan.settings.classes or 2
    row = (settings.row_norm or 1.0) * np.eye(1, plan.d)[0]
    other, label, text = (-row, 0.0, "a record or its negative, of class 0")
    if kind == "class":
        other, label, text = row, 1.0, "a record of class 0 or 1"
    if plan.adjacency is Adjacency.ZERO_OUT:
        other, label, text = 0 * row, 0.0, "a record of class 0 or a zero row"
    rest = [(plan.n - 1 + k) // classes for k in range(classes)]

    def with_record(x: Array, y: float) -> Counted:
        rows = np.vstack([x, np.zeros((classes, plan.d))])
        return Counted(rows, np.array([y, *range(classes)], dtype=float), np.array([1, *rest]))

    return (with_record(row, 0.0), with_record(other, label)), text


class _Matrices:
    """The mean gradient of one dataset at many (classes, width) weights, clipped as the solver clips it."""

    def __init__(self, plan: Plan[ResolvedDualAveraging], data: Counted) -> None:
        rows, _, caps = plan.settings.bounds.clip(check_rows(data.X), np.zeros(0))
        self.plan, self.rows, self.caps = plan, np.asarray(rows.matrix), caps
        self.labels = np.eye(plan.settings.classes or 2)[data.y.astype(int)]
        self.share = data.counts / data.counts.sum()
        self.shape = self.labels.shape[1], self.rows.shape[1]

    def mean(self, weights: Array) -> Array:
        """(trials, classes, width)."""
        margins = np.einsum("tkj,ij->tik", weights, self.rows)
        trials, records, classes = margins.shape
        caps = None if self.caps is None else np.tile(self.caps, trials)
        r = clipped_residuals(margins.reshape(-1, classes), np.tile(self.labels, (trials, 1)), caps)
        return np.einsum("tik,ij->tkj", r.reshape(trials, records, classes) * self.share[:, None], self.rows)

    def thresholded(self, total: Array) -> Array:
        """As ``SoftmaxRun.thresholded``, of every trial."""
        free, sparsity = self.plan.d, self.plan.settings.sparsity
        if sparsity is None or sparsity >= free:
            return total
        lengths = (total[:, :, :free] ** 2).sum(axis=1)
        stay = np.zeros((len(total), self.shape[1]), dtype=bool)
        np.put_along_axis(stay, np.argpartition(-lengths, sparsity - 1, axis=1)[:, :sparsity], True, axis=1)
        stay[:, free:] = True
        return np.where(stay[:, None, :], total, 0.0)


@dataclass(frozen=True)
class SoftmaxRatio:
    """The log-likelihood ratio of the noisy gradients: their means are known at the weights that those before imply."""

    first: _Matrices
    second: _Matrices

    def __call__(self, outputs: Array) -> Array:
        return self.parts(outputs)[0]

    def parts(self, outputs: Array) -> tuple[Array, Array]:
        """The ratio, and the sum over the steps of (difference of the means / noise)^2."""
        plan = self.first.plan
        path = outputs.reshape(len(outputs), -1, *self.first.shape)
        total, ratio, square = np.zeros((len(path), *self.first.shape)), np.zeros(len(path)), np.zeros(len(path))
        noise = plan.noise if plan.noise > 0 else 1.0
        for t in range(path.shape[1]):
            weights = self.first.thresholded(total)
            one, two = self.first.mean(weights), self.second.mean(weights)
            ratio += ((one - two) * (path[:, t] - (one + two) / 2)).sum(axis=(1, 2)) / noise**2
            square += ((one - two) ** 2).sum(axis=(1, 2)) / noise**2
            total -= plan.settings.step_size * path[:, t]
        return ratio, square


def _apart(plan: Plan[ResolvedDualAveraging], first: Counted, second: Counted) -> float:
    """How far the two mean gradients are apart at zero weights."""
    one, two = (_Matrices(plan, data) for data in (first, second))
    start = np.zeros((1, *one.shape))
    return float(np.linalg.norm(one.mean(start) - two.mean(start)))


def _reach(plan: Plan[ResolvedDualAveraging], pair: Pair) -> dict[str, float]:
    """All releases: mu^2 is the expected sum of (difference / noise)^2. The final model's is measured by runs."""
    from dptoolkit.audit.streams import Streams
    from dptoolkit.audit.targets import PlanTarget

    target, every = PlanTarget(plan, pair, "releases"), pair.scores["releases"]
    assert isinstance(every, SoftmaxRatio)
    bits = np.arange(_RUNS, dtype=np.int8) % 2
    mu = math.sqrt(float(every.parts(target.run(bits, 0, Streams(0, "pairs")))[1].mean()))
    shown = kept.share(Gaussian(1 / mu), plan) if mu > 0 else 0.0
    final = min(kept.measured_reach(plan, pair, ("final",))["final"], shown)
    return {"releases": shown, "gradients": shown, "final": final}
