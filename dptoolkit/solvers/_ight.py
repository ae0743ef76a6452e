"""Iterative gradient hard thresholding, plain (ight) and private by gradient noise (dp_ight).

    w <- H_s(w - step_size * (mean gradient + N(0, scale^2 I)))

Wang and Gu 2019 (DP-IGHT), also Algorithm 4 of Wang's lecture 16. The noisy gradients are what is released;
thresholding is post-processing, so the whole run is ``steps`` Gaussian releases and composes exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dptoolkit import losses
from dptoolkit._validate import flag, positive, whole
from dptoolkit.adjacency import Adjacency
from dptoolkit.data import Rows, check_labels, check_rows, with_intercept
from dptoolkit.data.blocks import CheckedBlocks
from dptoolkit.solvers.engine.blocked import BlockedIhtRun, GradientTerm
from dptoolkit.solvers.engine.bounds import NoiseLaw, constant
from dptoolkit.solvers.engine.descent import ClippedRecords, IhtRun, ResolvedThresholding, Steps, ThresholdingSettings
from dptoolkit.solvers.engine.secure import SecureIhtRun, secured
from dptoolkit.solvers.frame import rules
from dptoolkit.solvers.frame.fit import FitResult, plain_result, private_solver, without_privacy
from dptoolkit.solvers.frame.outlook import Outlook
from dptoolkit.solvers.frame.plan import GAUSSIAN, Plan, Release, gaussian_multiplier
from dptoolkit.solvers.frame.run import Run, trace_interval
from dptoolkit.solvers.frame.settings import check_sparsity, setting
from dptoolkit.types import Array

if TYPE_CHECKING:
    from dptoolkit.published import Published


@dataclass(frozen=True, kw_only=True)
class DpIght(ThresholdingSettings):
    """Private sparse linear or logistic regression by noisy gradients and hard thresholding.

    Privacy
    -------
    Query: the mean of per-record gradients, each at most G in L2 by clipping. Sensitivity 2 G/n (replace-one) or G/n
    (zero-out). Event: Repeated(Gaussian(scale/sensitivity), steps). For the logistic loss, and for the squared loss
    with bounded labels and margins, less is enough at a public iterate w near 0: the sensitivity there is row_norm/n
    times the loss's diameter at row_norm |w| (replace-one), or times the largest |residual| at margins of that size
    (zero-out). The noise shrinks with it (``adaptive``), so the event stays the same. Public: n, d, all arguments, all
    iterates.
    """

    solver: ClassVar[str] = "dp_ight"
    takes_blocks: ClassVar[bool] = True

    steps: int | None = setting(
        "Number of iterations. If omitted, it follows from n, the bounds and the budget, and so do a step_size and, "
        "for binary losses, a grad_norm that are not given (docs/rules.md).",
        default=None,
    )

    def resolved(self, n: int, d: int) -> ResolvedIght:
        """See ``Settings``."""
        self._check_sparsity(d)
        self.bounds.check()
        if self.steps is not None:
            whole("steps", self.steps, low=1)
            return self.settled(ResolvedIght, **self._checked(d))
        own = replace(self, **rules.filled(self, self.steps, Adjacency.parse(self.adjacency), n))
        return own.settled(ResolvedIght, **own._checked(d))

    @property
    def reads_single(self) -> bool:
        """See ``Settings``."""
        return True


@dataclass(frozen=True, kw_only=True)
class ResolvedIght(ResolvedThresholding, DpIght):
    """The settings of ``dp_ight`` in a plan."""

    steps: int

    @property
    def iterations(self) -> int:
        """See ``Resolved``."""
        return self.steps

    def releases(self, n: int, d: int, paper: Published | None) -> tuple[Release, ...]:
        """The mean gradient, once a step."""
        sensitivity = self.bounds.sensitivity(self.adjacency, n)
        tight = sensitivity * gaussian_multiplier(self.steps, self.epsilon, self.delta)
        scale = tight if paper is None else paper.scales["gradient"]
        return (Release("mean gradient", GAUSSIAN, sensitivity, scale, self.steps),)

    def published(self, n: int, d: int) -> Published:
        """Corollary 5.8 where it applies, else Remark 5.3 with the clipped gradient bound."""
        from dptoolkit import published

        claim = _CLAIMS.get(self.loss, "ight_remark_5_3")
        model = n, self.steps, self.bounds.gradient, self.epsilon, self.delta, self.adjacency
        return getattr(published, claim)(*model)

    def outlook(self, plan: Plan) -> Outlook | None:
        """See ``Resolved``."""
        return self.descent_outlook(plan, self.steps)

    def noise_law(self, plan: Plan) -> NoiseLaw:
        """The noise of a step at its public iterate."""
        return self.gradient_law(plan.noise, plan.adjacency is Adjacency.ZERO_OUT)

    def secured(self, plan: Plan) -> Plan:
        """See ``Resolved``; other solvers, which inherit these settings, run in their own way and are refused."""
        if self.solver not in _SECURE:
            return super().secured(plan)
        return secured(plan, self, self.noise_law(plan))

    def bind(self, plan: Plan, rows: Rows, y: Array, counts: Any = None) -> Run:
        """See ``Resolved``."""
        bounded, labels, caps = self.bounds.clip(rows, y)
        data = ClippedRecords(bounded, labels, self.loss_row, self.bounds.largest_margin, caps, counts)
        if plan.secure is not None:
            return SecureIhtRun(data, self.iteration, plan.secure.first)
        return IhtRun(data, self.iteration, self.noise_law(plan))

    def bind_blocks(self, plan: Plan, blocks: CheckedBlocks) -> Run:
        """See ``Resolved``."""
        law, summand = self.noise_law(plan), GradientTerm(self, plan.n)
        return BlockedIhtRun(blocks, summand, self.width(plan.d), self.iteration, law)

    @property
    def iteration(self) -> Steps:
        """The steps that are made with the noisy gradients."""
        return Steps(self.steps, self.step_size, self.sparsity, self.fit_intercept)


# The solvers whose runs are those of this module, and of dp_dual_averaging.
_SECURE = ("dp_ight", "dp_dual_averaging")
# Losses for which the paper states its noise in a corollary of its own.
_CLAIMS = {"logistic": "ight_corollary_5_8"}

dp_ight = private_solver(DpIght)


@without_privacy(diagnostics='Add the objective at the result and at every iterate to history["not_private"].')
def ight(
    X: Any,
    y: Any,
    *,
    loss: str,
    sparsity: int,
    steps: int,
    step_size: float,
    fit_intercept: bool = False,
    diagnostics: bool = False,
    trace: bool | int = False,
    label_values: tuple[float, float] | None = None,
) -> FitResult:
    """Iterative gradient hard thresholding without privacy: ``dp_ight`` without clipping and without noise."""
    rows = check_rows(X)
    n, d = rows.shape
    table_loss = losses.get(loss, losses.SCALAR)
    labels = check_labels(y, n, table_loss, label_values)
    flag("diagnostics", diagnostics)
    iteration = Steps(
        whole("steps", steps, low=1),
        positive("step_size", step_size),
        check_sparsity(sparsity, d),
        flag("fit_intercept", fit_intercept),
    )
    data = with_intercept(rows, 1.0) if fit_intercept else rows
    run = IhtRun(ClippedRecords(data, labels, table_loss), iteration, constant(0.0))
    w, history = run.fit(np.random.default_rng(0), trace_interval(trace) or int(diagnostics))
    if diagnostics:
        history["not_private"] = run.diagnose(w, history)
    return plain_result(w, history, fit_intercept)
