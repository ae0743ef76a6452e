"""How well a plan can learn at best, from public numbers alone; a hopeless one is warned of before budget is spent."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass

from scipy.special import ndtr, ndtri

# The best separation of rows that is expected: |mean of +-x|^2 over row norm^2, the sign being the label's. On fourteen
# real sets of rows of norm 1 it is 0.002 to 0.08.
SEPARATION = 0.1
# Beyond such a margin a record counts as right and hardly pulls any more.
USEFUL_MARGIN = 4.0
# The largest mean of +-x_j over the largest entry, on nineteen real sets: 0.015 to 0.04 for words, at most 0.53.
BEST_FEATURE = 0.5
# A plan is called hopeless if its error is above this even for rows that are separated that well. Guessing by a coin
# has an error of 0.5.
SURVIVABLE = 0.25


class HopelessPlanWarning(UserWarning):
    """The noise of a plan is larger than the signal that any data of this size could have."""


class Outlook(ABC):
    """How well a plan can learn at best; it is printed with the plan."""

    @property
    @abstractmethod
    def is_hopeless(self) -> bool:
        """Whether the noise is too large even for the best data."""

    @abstractmethod
    def complaint(self, n: int) -> str:
        """What is wrong with a hopeless plan for n rows, and what would help."""

    @abstractmethod
    def lines(self) -> list[str]:
        """What is printed."""

    def __str__(self) -> str:
        return "Outlook, from public numbers alone\n" + "\n".join(f"- {line}" for line in self.lines())


@dataclass(frozen=True)
class Predictions(Outlook):
    """The noise of a prediction beside the largest signal that data of this size may have.

    ``noise`` is the standard deviation of a margin's noise for a row at the bound. ``signal`` is the margin of such a
    row if rows are separated as well as on the best real data (SEPARATION). ``feature`` is the mean of +-x_j, over the
    row norm, at which a feature's weight is two standard deviations of its noise. Margins beyond ``unit`` are of no
    more use.
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
        """Whether the noise is too large even for well separated rows."""
        return self.error > SURVIVABLE

    @property
    def is_too_long(self) -> bool:
        """Whether the noise alone exceeds the margins that are of use: then fewer or shorter steps help."""
        return self.noise * float(ndtri(1 - SURVIVABLE)) > self.unit

    def lines(self) -> list[str]:
        """See ``Outlook``."""
        lines = [
            f"noise of a prediction: standard deviation up to {self.noise:.3g}, where {self.unit:.3g} is a large one",
            f"a feature stands out if its mean, with the label's sign, is over {self.feature:.3g} of a row's norm",
        ]
        if self.binary:
            best = f"{self.error:.2f}; a coin: 0.5" if self.error >= 0.01 else "below 0.01"
            lines.append(f"error of noise alone, were rows as well separated as ever seen: {best}")
        return lines

    def complaint(self, n: int) -> str:
        """See ``Outlook``."""
        if self.is_too_long:
            help_ = "Fewer or shorter steps help: leave steps and step_size out for the rule's."
        else:
            factor = float(ndtri(1 - SURVIVABLE)) * self.noise / self.signal
            help_ = (
                f"What helps: {math.ceil(factor * n):,} rows instead of {n:,}, about {factor:.1f} times the epsilon, "
                "or tighter bounds on each record. Fewer features do not."
            )
        rival = "a coin" if self.binary else "predicting 0"
        return (
            f"a prediction carries noise of {self.noise:.3g}, against a signal of at most {self.signal:.3g}: hardly "
            f"better than {rival}. {help_}"
        )


@dataclass(frozen=True)
class Selections(Outlook):
    """The noise of a selection among vertices beside the largest signal that a feature may have.

    ``noise`` is the scale of a score's noise in units of the largest score that any record allows, so that a vertex
    whose mean of +-x_j is m of ``feature_bound``, where all others have none, is exp(m/noise) times as likely as each
    of them.
    """

    noise: float
    vertices: int

    @property
    def feature(self) -> float:
        """The mean of +-x_j, over the bound of x_j, at which a lone feature is chosen once in two selections."""
        return self.noise * math.log(max(self.vertices - 1, 1))

    @property
    def is_hopeless(self) -> bool:
        """Whether even the best feature of all real sets would mostly be missed."""
        return self.feature > BEST_FEATURE

    def lines(self) -> list[str]:
        """See ``Outlook``."""
        return [
            f"a selection finds a lone feature more often than not if its mean, with the label's sign, is over "
            f"{self.feature:.3g} of feature_bound",
            f"the best features of real data: 0.015 to 0.04 for words in rows of norm 1, at most {BEST_FEATURE:g} for "
            "others",
        ]

    def complaint(self, n: int) -> str:
        """See ``Outlook``."""
        factor = self.feature / BEST_FEATURE
        return (
            f"a selection mostly misses features whose mean, with the label's sign, is below {self.feature:.3g} of "
            f"feature_bound, and {BEST_FEATURE:g} is the best ever seen: hardly better than a coin. What helps: "
            f"{math.ceil(factor * n):,} rows instead of {n:,}, about {factor:.1f} times the epsilon, fewer steps, or a "
            "tighter feature_bound."
        )


def descent(
    *, time: float, weight_noise: float, gradient: float, row_norm: float, unit: float, binary: bool
) -> Predictions:
    """The outlook of a noisy descent: ``weight_noise`` is the standard deviation of a weight's noise at its end."""
    signal = min(time * gradient * row_norm * SEPARATION, unit)
    distance = time * gradient
    feature = 2 * weight_noise / distance if distance > 0 else math.inf
    return Predictions(row_norm * weight_noise, signal, feature, unit, binary)


def warn(solver: str, n: int, outlook: Outlook | None) -> None:
    """Warn of a hopeless plan, and say what would help."""
    if outlook is not None and outlook.is_hopeless:
        warnings.warn(f"{solver}: {outlook.complaint(n)}", HopelessPlanWarning, stacklevel=4)
