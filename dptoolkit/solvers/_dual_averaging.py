"""Dual averaging with a hard threshold (dp_dual_averaging): noisy gradients add up, the largest sums are the model.

    z <- z - step_size * (mean gradient at w + N(0, scale^2 I)),   w = H_s(z), or w = z without a sparsity

Thresholding inside the loop (dp_ight) forgets what it has learnt about every coordinate that it drops. Here a dropped
coordinate keeps its sum, so that small steps in one direction count in the end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from dptoolkit import losses
from dptoolkit._validate import invalid
from dptoolkit.adjacency import Adjacency
from dptoolkit.data import Rows
from dptoolkit.data.blocks import CheckedBlocks
from dptoolkit.losses import Loss
from dptoolkit.solvers._ight import DpIght, ResolvedIght
from dptoolkit.solvers.engine.blocked import BlockedSoftmaxRun, SoftmaxTerm
from dptoolkit.solvers.engine.descent import Steps
from dptoolkit.solvers.engine.secure_softmax import SecureSoftmaxRun
from dptoolkit.solvers.engine.softmax import SoftmaxRun
from dptoolkit.solvers.frame import rules
from dptoolkit.solvers.frame.fit import private_solver
from dptoolkit.solvers.frame.plan import Plan
from dptoolkit.solvers.frame.run import Run
from dptoolkit.solvers.frame.settings import (
    PUBLISHED,
    TIGHT,
    check_classes_setting,
    check_sparsity,
    class_labels,
    setting,
)
from dptoolkit.types import Array

LOSSES = tuple(losses.LOSSES)


@dataclass(frozen=True, kw_only=True)
class DpDualAveraging(DpIght):
    """Private sparse linear or logistic regression by sums of noisy gradients, of which the largest are the model.

    Privacy
    -------
    Query: the mean of per-record gradients, each at most G in L2 by clipping. Sensitivity 2 G/n (replace-one) or G/n
    (zero-out). Event: Repeated(Gaussian(scale/sensitivity), steps): the releases are those of ``dp_ight``, at other
    public weights; sums and thresholds of what was released cost nothing. For softmax a record's gradient is a matrix,
    and G bounds the norm of all its entries together. Public: n, d, classes, all arguments, all sums.
    """

    solver: ClassVar[str] = "dp_dual_averaging"

    loss: str = setting(f"{losses.described(LOSSES)}; softmax has labels 0, ..., classes-1.")
    classes: int | None = setting("Public number of classes, for softmax; ``coef`` is (classes, d).", default=None)
    sparsity: int | None = setting(  # type: ignore[assignment]
        "Number of features that are kept, not counting an intercept; None keeps all.", default=None
    )
    step_size: float | None = setting(
        "Length of a step; by default it follows from n, the bounds, the budget and the steps (docs/rules.md).",
        default=None,
    )
    grad_norm: float | None = setting(
        "Public L2 bound to which each record's gradient is clipped. By default a quarter of the largest norm for "
        "classification; the squared loss needs it, or both label_bound and margin_bound.",
        default=None,
    )

    @property
    def loss_row(self) -> Loss:
        """The row of the loss table."""
        return losses.get(self.loss, LOSSES)

    @property
    def is_multiclass(self) -> bool:
        """Whether there is a weight for every class."""
        return self.loss_row.task == losses.MULTICLASS

    @property
    def reads_single(self) -> bool:
        """See ``Settings``; softmax makes its products with SciPy."""
        return not self.is_multiclass

    @property
    def class_count(self) -> int | None:
        """See ``Settings``."""
        return self.classes

    def resolved(self, n: int, d: int) -> ResolvedDualAveraging:
        """See ``Settings``."""
        check_classes_setting(self.loss_row, self.classes)
        if self.calibration != TIGHT:
            raise invalid("calibration", PUBLISHED, f"'tight' for {self.solver}", "No published constant is known.")
        self._check_sparsity(d)
        self.bounds.check()
        own = replace(self, **rules.filled(self, self.steps, Adjacency.parse(self.adjacency), n))
        return own.settled(ResolvedDualAveraging, **own._checked(d))

    def _check_sparsity(self, d: int) -> None:
        if self.sparsity is not None:
            check_sparsity(self.sparsity, d)

    def labels(self, y: Any, n: int, label_values: Any = None) -> Array:
        """See ``Settings``; one-hot for softmax."""
        return (
            class_labels(y, n, self.classes, label_values) if self.is_multiclass else super().labels(y, n, label_values)
        )


@dataclass(frozen=True, kw_only=True)
class ResolvedDualAveraging(ResolvedIght, DpDualAveraging):
    """The settings of ``dp_dual_averaging`` in a plan; a sparsity of None keeps all features."""

    sparsity: int | None  # type: ignore[assignment]

    @property
    def iteration(self) -> Steps:
        """See ``ResolvedIght``."""
        return replace(super().iteration, accumulate=True)

    def bind(self, plan: Plan, rows: Rows, y: Array, counts: Any = None) -> Run:
        """See ``Resolved``."""
        if not self.is_multiclass:
            return super().bind(plan, rows, y, counts)
        bounded, _, caps = self.bounds.clip(rows, np.zeros(0))
        if plan.secure is not None:
            return SecureSoftmaxRun(bounded, y, caps, self.iteration, plan.secure.first, counts)
        return SoftmaxRun(bounded, y, caps, self.iteration, plan.noise, counts)

    def bind_blocks(self, plan: Plan, blocks: CheckedBlocks) -> Run:
        """See ``Resolved``."""
        if not self.is_multiclass:
            return super().bind_blocks(plan, blocks)
        shape = self.classes or 0, self.width(plan.d)
        return BlockedSoftmaxRun(blocks, SoftmaxTerm(self, plan.n), shape, self.iteration, plan.noise)

    def model(self, weights: Array) -> tuple[Array, float | Array]:
        """See ``Resolved``; of every class for softmax."""
        if not self.is_multiclass:
            return super().model(weights)
        return (weights[:, :-1], weights[:, -1]) if self.fit_intercept else (weights, np.zeros(len(weights)))


dp_dual_averaging = private_solver(DpDualAveraging)
