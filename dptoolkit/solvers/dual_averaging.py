"""Dual averaging with a hard threshold (dp_dual_averaging): noisy gradients add up, and the model is what leads.

    z <- z - step_size * (mean gradient at w + N(0, scale^2 I)),   w = H_s(z), or w = z without a sparsity

Thresholding inside the loop (dp_ight) forgets what it has learnt about every coordinate that it drops. Here a dropped
coordinate keeps its sum, so that small steps in one direction count in the end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from dptoolkit._validate import invalid
from dptoolkit.solvers import rules
from dptoolkit.solvers.base import private_solver
from dptoolkit.solvers.gradient_iht import DpIght, Steps
from dptoolkit.solvers.settings import PUBLISHED, TIGHT, check_sparsity, setting


@dataclass(frozen=True, kw_only=True)
class DpDualAveraging(DpIght):
    """Private sparse linear or logistic regression by sums of noisy gradients, of which the largest are the model.

    Privacy
    -------
    Query: the mean of per-record gradients, each at most G in L2 by clipping. Sensitivity 2 G/n (replace-one) or G/n
    (zero-out). Event: Repeated(Gaussian(scale/sensitivity), steps): the releases are those of ``dp_ight``, at other
    public weights; sums and thresholds of what was released cost nothing. Public: n, d, all arguments, all sums.
    """

    solver: ClassVar[str] = "dp_dual_averaging"

    sparsity: int | None = setting(  # type: ignore[assignment]
        "Number of features that are kept; an intercept is kept besides. None keeps all.", default=None
    )
    step_size: float | None = setting(
        "Length of a step; by default it follows from n, the bounds, the budget and the steps (docs/rules.md).",
        default=None,
    )
    grad_norm: float | None = setting(
        "Public L2 bound to which each record's gradient is clipped. By default a quarter of the largest for a binary "
        "loss; the squared loss needs it, or the next two.",
        default=None,
    )

    def checked(self, n: int, d: int) -> DpDualAveraging:
        """See ``Settings``."""
        if self.calibration != TIGHT:
            raise invalid("calibration", PUBLISHED, f"'tight' for {self.solver}", "No published constant is known.")
        self._check_sparsity(d)
        self.bounds.check()
        return rules.filled(self, n)._checked(d)

    def _check_sparsity(self, d: int) -> None:
        if self.sparsity is not None:
            check_sparsity(self.sparsity, d)

    @property
    def iteration(self) -> Steps:
        """See ``DpIght``."""
        return replace(super().iteration, accumulate=True)


dp_dual_averaging = private_solver(DpDualAveraging)
