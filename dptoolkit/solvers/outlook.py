"""What a plan can hope for, from public numbers alone: said, and warned of, before any budget is spent."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

from scipy.special import ndtr, ndtri

# How well rows are separated: |mean of +-x|^2 over row norm^2, the sign being the label's. On fourteen real sets of
# rows of norm 1 it is 0.002 to 0.08, so that more than this is not to be hoped for.
SEPARATION = 0.1
# Beyond such a margin a record counts as right and hardly pulls any more.
USEFUL_MARGIN = 4.0
# The error above which a plan is called hopeless, even with rows that are separated so well; a coin's is 0.5.
SURVIVABLE = 0.25


class HopelessPlanWarning(UserWarning):
    """The noise of a plan drowns what any data of this size could show."""


@dataclass(frozen=True)
class Outlook:
    """The noise of a prediction beside the largest signal that data of this size may have.

    ``noise`` is the standard deviation of a margin's noise for a row at the bound, ``signal`` the margin of such a row
    where rows are separated as well as ever seen, ``feature`` the mean of +-x_j, over the row norm, at which a feature
    is two standard deviations out of the noise. ``unit`` is what margins are useful up to.
    """

    noise: float
    signal: float
    feature: float
    unit: float
    binary: bool

    @property
    def error(self) -> float:
        """The error of a classifier with that signal and that noise; that of a coin is 0.5."""
        return float(ndtr(-self.signal / self.noise)) if self.noise > 0 else 0.0

    @property
    def is_hopeless(self) -> bool:
        """Whether even well separated rows would drown."""
        return self.error > SURVIVABLE

    @property
    def is_too_long(self) -> bool:
        """Whether the noise has added up for longer than margins are useful: then fewer or shorter steps help."""
        return self.noise * float(ndtri(1 - SURVIVABLE)) > self.unit

    def __str__(self) -> str:
        lines = [
            f"noise of a prediction: standard deviation up to {self.noise:.3g}, where {self.unit:.3g} is a large one",
            f"a feature stands out if its mean, with the label's sign, is over {self.feature:.3g} of a row's norm",
        ]
        if self.binary:
            best = f"{self.error:.2f}; a coin: 0.5" if self.error >= 0.01 else "below 0.01"
            lines.append(f"error of noise alone, were rows as well separated as ever seen: {best}")
        return "Outlook, from public numbers alone\n" + "\n".join(f"- {line}" for line in lines)


def descent(
    *, time: float, weight_noise: float, gradient: float, row_norm: float, unit: float, binary: bool
) -> Outlook:
    """The outlook of a noisy descent: ``weight_noise`` is the standard deviation of a weight's noise at its end."""
    signal = min(time * gradient * row_norm * SEPARATION, unit)
    reached = time * gradient
    feature = 2 * weight_noise / reached if reached > 0 else math.inf
    return Outlook(row_norm * weight_noise, signal, feature, unit, binary)


def warn(solver: str, n: int, outlook: Outlook | None) -> None:
    """Warn of a hopeless plan, and say what would help."""
    if outlook is None or not outlook.is_hopeless:
        return
    if outlook.is_too_long:
        help_ = "Fewer or shorter steps help: leave steps and step_size out for the rule's."
    else:
        factor = float(ndtri(1 - SURVIVABLE)) * outlook.noise / outlook.signal
        help_ = (
            f"What helps: {math.ceil(factor * n):,} rows instead of {n:,}, about {factor:.1f} times the epsilon, or "
            "tighter bounds on each record. Fewer features do not."
        )
    rival = "a coin" if outlook.binary else "predicting 0"
    warnings.warn(
        f"{solver}: a prediction carries noise of {outlook.noise:.3g}, against a signal of at most "
        f"{outlook.signal:.3g}: hardly better than {rival}. {help_}",
        HopelessPlanWarning,
        stacklevel=4,
    )
