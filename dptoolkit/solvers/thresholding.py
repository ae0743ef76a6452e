"""The settings that the hard-thresholding solvers share, with the bounds and the noise of their gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TypeVar

from dptoolkit import losses
from dptoolkit._validate import LARGEST, SMALLEST, flag, invalid, magnitude
from dptoolkit.losses import Loss
from dptoolkit.solvers import outlook
from dptoolkit.solvers.bounds import GradientBounds
from dptoolkit.solvers.noise import NoiseLaw, constant, gradient_law
from dptoolkit.solvers.outlook import Outlook
from dptoolkit.solvers.plan import Plan
from dptoolkit.solvers.settings import TIGHT, Settings, check_sparsity, setting

Self = TypeVar("Self", bound="ThresholdingSettings")


@dataclass(frozen=True, kw_only=True)
class ThresholdingSettings(Settings):
    """Settings of gradient hard thresholding."""

    loss: str = setting(f"{losses.described(losses.SCALAR)}.")
    sparsity: int = setting("Number of features that are kept; an intercept is kept besides.")
    step_size: float | None = setting(
        "Length of a step; the default is 1 / smoothness, with l2 where there is one.", default=None
    )
    row_norm: float | None = setting("Public L2 bound of a row; longer rows are scaled down.", default=None)
    grad_norm: float | None = setting(
        "Public L2 bound to which each record's gradient is clipped; for the squared loss instead of the next two.",
        default=None,
    )
    label_bound: float | None = setting("Public bound to which labels are clipped (squared loss).", default=None)
    margin_bound: float | None = setting("Public bound to which predictions are clipped (squared loss).", default=None)
    fit_intercept: bool = setting("Add a column of ones, bounded and charged like any other.", default=False)
    adaptive: bool | None = setting(
        "Scale the noise with the sensitivity at the current, public iterate; by default wherever that is known.",
        default=None,
    )

    @property
    def terms(self) -> Loss:
        """The row of the loss table."""
        return losses.get(self.loss, losses.SCALAR)

    @property
    def bounds(self) -> GradientBounds:
        """The public bounds of one record's gradient."""
        return GradientBounds(
            self.terms, self.row_norm, self.grad_norm, self.label_bound, self.margin_bound, self.fit_intercept
        )

    @property
    def penalty(self) -> float:
        """The weight of an l2 term; 0 where a solver has none."""
        return 0.0

    def _checked(self: Self, d: int) -> Self:
        """The shared settings checked, with their defaults filled in."""
        self._check_sparsity(d)
        self.bounds.check()
        return replace(self, step_size=self._step(), adaptive=self._adapts())

    def _check_sparsity(self, d: int) -> None:
        check_sparsity(self.sparsity, d)

    def _step(self) -> float:
        """The step asked for; by default 1 / (smoothness + l2), from the public bounds, as longer steps may diverge."""
        if self.step_size is not None:
            return magnitude("step_size", self.step_size)
        smoothness = self.bounds.smoothness
        if smoothness is None or not SMALLEST <= smoothness + self.penalty <= LARGEST:
            raise invalid("step_size", None, "given", "Without row_norm, or where it is extreme, no default is known.")
        return 1 / (smoothness + self.penalty)

    def outlook(self, plan: Plan) -> Outlook | None:
        """See ``Settings``; it is for the noise of a weight that is kept in all steps."""
        norm, steps = self.bounds.joint_norm, getattr(self, "steps", None)
        if norm is None or steps is None or self.step_size is None:
            return None
        classes = None if self.terms.task == losses.REGRESSION else getattr(self, "classes", None) or 2
        return outlook.descent(
            time=steps * self.step_size, weight_noise=self.step_size * math.sqrt(steps) * plan.noise,
            gradient=self.bounds.gradient, row_norm=norm, classes=classes, label_bound=self.bounds.label_bound,
            remedy="Fewer or shorter steps help: leave steps and step_size out for the rule's.",
        )  # fmt: skip

    @property
    def can_adapt(self) -> bool:
        """Whether the solver can scale some of its noise with the iterate."""
        return self.terms.diameter is not None and self.grad_norm is None and self.calibration == TIGHT

    def _adapts(self) -> bool:
        if self.adaptive is not None:
            flag("adaptive", self.adaptive)
        if self.adaptive and not self.can_adapt:
            repair = "It needs tight calibration and a loss whose gradients are known to be smaller near w = 0."
            raise invalid("adaptive", self.adaptive, f"None or False for these settings of {self.solver}", repair)
        return self.can_adapt if self.adaptive is None else bool(self.adaptive)

    def gradient_law(self, scale: float, around_zero: bool) -> NoiseLaw:
        """The noise of a mean gradient at public weights; see noise.gradient_law for ``around_zero``."""
        applies = self.terms.diameter is not None and self.grad_norm is None
        if not (self.adaptive and applies):
            return constant(scale)
        norm, label = self.bounds.joint_norm, self.bounds.label_bound
        assert norm is not None
        limits = self.bounds.largest_margin, math.inf if label is None else label
        return gradient_law(scale, self.terms, norm, around_zero, *limits)
