"""A small solver for the tests of the table of solvers: the example of docs/add-a-solver.md, and its row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dptoolkit import losses
from dptoolkit.data import clip_rows
from dptoolkit.solvers.frame.fit import private_solver
from dptoolkit.solvers.frame.plan import GAUSSIAN, Release, gaussian_multiplier
from dptoolkit.solvers.frame.run import Trace, written_out
from dptoolkit.solvers.frame.settings import Settings, public_bound, setting
from dptoolkit.solvers.registry import CLASSIFICATION, Solver

ROW = Solver(
    name="dp_means", module=__name__, settings="DpMeans", tasks={CLASSIFICATION: {}}, pair="tests.audit.pairs.toy",
    page="dp_means", classes=False, blocks=False,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class DpMeans(Settings):
    """Private linear classifier along the difference of the two classes' sums.

    Privacy
    -------
    Query: (1/n) sum of s_i x_i with signs s_i and rows of norm at most row_norm. Sensitivity 2 row_norm/n
    (replace-one) or row_norm/n (zero-out). Event: Gaussian(scale/sensitivity). Public: n, d, all arguments.
    """

    solver: ClassVar[str] = "dp_means"
    row_norm: float = setting("Public L2 bound of a row; longer rows are scaled down.")

    @property
    def loss_row(self):
        return losses.get("logistic")

    def resolved(self, n, d):
        public_bound("row_norm", self.row_norm, "the largest L2 norm of a row")
        return self

    def releases(self, n, d, paper):
        sensitivity = self.relation.contributions * self.row_norm / n
        scale = sensitivity * gaussian_multiplier(1, self.epsilon, self.delta)
        return (Release("difference of sums", GAUSSIAN, sensitivity, scale, 1),)

    def bind(self, plan, rows, y, counts=None):
        rows, y = written_out(rows, y, counts)
        return MeansRun(plan, clip_rows(rows, self.row_norm).matrix, y)


class MeansRun:
    def __init__(self, plan, matrix, y):
        self.plan, self.difference = plan, np.asarray(matrix.T @ (2 * y - 1)) / plan.n

    def __call__(self, rng, trace=False):
        w = self.plan.releases[0].mechanism.release(self.difference, rng)
        return Trace(w, {}, w[None] if trace else None, w[None] if trace else None)

    def fit(self, rng, every=0):
        return self(rng, trace=every > 0).fit(every)

    def diagnose(self, weights, history):
        return {}


dp_means = private_solver(DpMeans)
