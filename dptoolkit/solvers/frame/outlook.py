"""How well a plan can be expected to learn, from public numbers alone; a hopeless one is warned of beforehand.

An outlook compares the noise of a plan with the signal that real data usually have. It knows n, d, the bounds, the
settings and the budget, and nothing about the data, so it is an estimate: docs/rules.md says how it was measured.

Privacy
-------
An outlook is computed from the plan, which is made without data. It reads no record and changes no plan.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scipy.special import ndtr, ndtri

from dptoolkit import _validate
from dptoolkit.accounting import gaussian

if TYPE_CHECKING:
    from dptoolkit.solvers.frame.plan import Plan

# The separation of rows is |mean of x over one class - mean over the other|^2 / 4, over row norm^2. On fourteen real
# sets of rows of norm 1 it is 0.002 to 0.08, and half of them are below 0.013.
SEPARATION = 0.01
# A classifier whose error is above this is hardly better than guessing, which has 0.5 for two classes. A plan is called
# hopeless if that is its error on rows that are separated as well as on most real data.
COIN = 0.4
# The error on such rows with the number of rows, or the epsilon, that is recommended instead.
USEFUL = 0.16
# Beyond such a margin a record counts as right and hardly pulls any more.
USEFUL_MARGIN = 4.0
# Labels of a regression: their standard deviation as a part of their bound, if the bound is about three of them.
SPREAD = 1 / 3
# The mean of +-x_j over the largest entry. On nineteen real sets the best feature has 0.015 to 0.04 for words, and up
# to 0.53 for others.
FEATURE = 0.1
# A larger epsilon is not recommended: its guarantee would be weak.
LARGEST_EPSILON = 10.0
# With more rows than this, a number would be of no help.
_MOST_ROWS = 1e12


class HopelessPlanWarning(UserWarning):
    """The noise of a plan is larger than the signal that data of this size usually have."""


def rounded_up(value: float) -> float:
    """The next number with one significant digit: 431 becomes 500. An outlook is an estimate, and looks like one."""
    unit = 10.0 ** math.floor(math.log10(value))
    # Rounding must not turn 0.3 into 0.4.
    return float(f"{math.ceil(value / unit * (1 - 1e-9)) * unit:.1g}")


class Outlook(ABC):
    """How well a plan can be expected to learn; it is printed with the plan."""

    @property
    @abstractmethod
    def shortage(self) -> float:
        """How many times the rows are needed for a useful model."""

    @property
    @abstractmethod
    def is_hopeless(self) -> bool:
        """Whether the noise is too large for what most data of this size could show."""

    @abstractmethod
    def complaint(self, plan: Plan) -> str:
        """What is wrong with a hopeless plan, and what would help."""

    @abstractmethod
    def lines(self) -> list[str]:
        """What is printed."""

    def more_data(self, plan: Plan) -> str:
        """How many rows would be enough and, if a reasonable one would be, which epsilon."""
        enough = self.shortage * plan.n
        if enough > _MOST_ROWS:
            return "far more rows"
        rows = f"about {rounded_up(enough):,.0f} rows"
        # Twice as many rows are as good as twice the mu.
        epsilon = _larger_epsilon(self.shortage, plan.settings.epsilon, plan.settings.delta)
        return f"{rows}, or epsilon {rounded_up(epsilon):g}" if epsilon <= LARGEST_EPSILON else rows

    def __str__(self) -> str:
        return "Outlook, from public numbers alone\n" + "\n".join(f"- {line}" for line in self.lines())


@functools.lru_cache(maxsize=256)
def _larger_epsilon(factor: float, epsilon: float, delta: float) -> float:
    """The epsilon whose mu is ``factor`` times that of the budget; it is remembered, because fits are repeated."""
    mu = factor * gaussian.mu(epsilon, delta)
    # From a mu of 10 on, epsilon is far above any that is of use.
    return gaussian.epsilon(mu, delta) if mu < LARGEST_EPSILON else math.inf


def _introduction(plan: Plan) -> str:
    return f"the noise is too large for {plan.n:,} rows at epsilon {plan.settings.epsilon:g}"


@dataclass(frozen=True)
class Descent(Outlook):
    """The noise of a margin beside its signal, at the end of a noisy descent.

    ``noise`` is the standard deviation of a margin's noise for a row at the bound, ``signal`` the mean margin of such a
    row on most real data (SEPARATION) if nothing holds it back. ``remedy`` says what helps against noise that is larger
    than any useful margin, however many rows there are.
    """

    noise: float
    signal: float
    remedy: str

    @property
    @abstractmethod
    def largest(self) -> float:
        """The largest signal that is of use: beyond it a descent only gathers noise."""

    def ratio(self, signal: float) -> float:
        """A signal in units of the noise."""
        return signal / self.noise if self.noise > 0 else math.inf

    @property
    def error(self) -> float:
        """The share of wrong signs with that signal and that noise; guessing has 0.5."""
        return float(ndtr(-self.ratio(min(self.signal, self.largest))))

    @property
    def shortage(self) -> float:
        """See ``Outlook``."""
        ratio = self.ratio(self.signal)
        return float(ndtri(1 - USEFUL)) / ratio if ratio > 0 else math.inf

    @property
    def is_hopeless(self) -> bool:
        """See ``Outlook``."""
        return self.error > COIN

    @property
    def is_too_long(self) -> bool:
        """Whether there are rows enough, and noise that is too large all the same."""
        return self.is_hopeless and float(ndtr(-self.ratio(self.signal))) <= COIN


@dataclass(frozen=True)
class Classes(Descent):
    """A classifier. ``feature`` is the mean of +-x_j, over the row norm, whose weight is two s.d. of its noise.

    With K classes each has 2/K of the rows that it has with two, and so much less signal.
    """

    feature: float
    classes: int = 2

    @property
    def largest(self) -> float:
        """See ``Descent``."""
        return USEFUL_MARGIN

    def lines(self) -> list[str]:
        """See ``Outlook``."""
        lines = [
            f"noise adds up to {self.noise:.3g} (s.d.) to a score; {USEFUL_MARGIN:.3g} is a confident score",
            f"a feature stands out if its mean, with the label's sign, is over {self.feature:.3g} of a row's norm",
        ]
        if self.classes == 2:
            best = f"{self.error:.2f} (guessing: 0.5)" if self.error >= 0.01 else "below 0.01"
            lines.append(f"error by noise alone, on rows separated as well as in most real data: {best}")
        elif self.is_hopeless:
            lines.append(f"on most real data hardly better than guessing among {self.classes} classes")
        return lines

    def complaint(self, plan: Plan) -> str:
        """See ``Outlook``."""
        if self.is_too_long:
            return f"the noise of a score, {self.noise:.3g} (s.d.), is above any useful score. {self.remedy}"
        guess = f" (error {self.error:.2f})" if self.classes == 2 else f" among {self.classes} classes"
        return (
            f"{_introduction(plan)}: on most real data it is hardly better than guessing{guess}. What helps: "
            f"{self.more_data(plan)}. Fewer features do not help."
        )


@dataclass(frozen=True)
class Targets(Descent):
    """A regression, whose labels are within ``bound`` and have a usual spread (SPREAD)."""

    bound: float

    @property
    def largest(self) -> float:
        """See ``Descent``; the usual standard deviation of labels with this bound."""
        return SPREAD * self.bound

    def lines(self) -> list[str]:
        """See ``Outlook``."""
        if self.noise == 0:
            return ["predictions carry no noise"]
        cost = (self.noise / self.largest) ** 2
        return [
            f"noise adds up to {self.noise:.3g} (s.d.) to a prediction; labels are assumed within {self.bound:.3g}",
            f"it takes up to {cost:.2g} off r2 where the labels' s.d. is a third of that bound",
            f"labels whose s.d. is below {self.noise:.3g} may be predicted worse than by their mean (r2 below 0): "
            "subtract a public middle from the labels, then give the smallest bound that is known without the data",
        ]

    @property
    def is_hopeless(self) -> bool:
        """See ``Outlook``; also where the noise is above the spread of the labels."""
        return super().is_hopeless or self.noise > self.largest

    def complaint(self, plan: Plan) -> str:
        """See ``Outlook``."""
        if self.is_too_long:
            return (
                f"the noise of a prediction, {self.noise:.3g} (s.d.), is above the usual spread of labels within "
                f"{self.bound:.3g}. {self.remedy}"
            )
        # A loss whose slopes are at most 1, in the unit of the labels, takes no bound on them.
        has_bound = plan.settings.label_limit is not None
        labels = f"labels divided by a public bound to lie within {self.bound:.3g}"
        smaller = "a smaller public label_bound" if has_bound else labels
        return (
            f"{_introduction(plan)}: on most real data it is hardly better than predicting the mean (r2 near or below "
            f"0). What helps: {self.more_data(plan)}, or {smaller}, after a public middle has been subtracted from the "
            "labels."
        )


@dataclass(frozen=True)
class Selections(Outlook):
    """The noise of a selection among vertices beside the signal that a feature usually has.

    ``noise`` is the scale of a score's noise in units of the largest score that any record allows, so that a vertex
    whose mean of +-x_j is m of ``feature_bound``, where all others have none, is exp(m/noise) times as likely as each
    of them. For a regression, +- is the label over its bound.
    """

    noise: float
    vertices: int
    spread: float = 1.0

    @property
    def feature(self) -> float:
        """The mean of +-x_j, over the bound of x_j, at which a lone feature is chosen once in two selections."""
        return self.noise * math.log(max(self.vertices - 1, 1))

    @property
    def usual(self) -> float:
        """The mean that the best feature of most real data has."""
        return FEATURE * self.spread

    @property
    def shortage(self) -> float:
        """See ``Outlook``; features of half the usual mean are found then."""
        return self.feature / (self.usual / 2)

    @property
    def is_hopeless(self) -> bool:
        """See ``Outlook``; whether twice the usual mean would mostly be missed."""
        return self.feature > 2 * self.usual

    @property
    def _sign(self) -> str:
        return "with the label's sign" if self.spread == 1 else "times the label over its bound"

    def lines(self) -> list[str]:
        """See ``Outlook``."""
        return [
            f"a selection finds a lone feature more often than not if its mean, {self._sign}, is over "
            f"{self.feature:.3g} of feature_bound",
            f"the best feature of real data usually has {self.usual:.2g}; the best words of a text 0.015 to 0.04",
        ]

    def complaint(self, plan: Plan) -> str:
        """See ``Outlook``."""
        return (
            f"{_introduction(plan)}: a selection mostly misses features whose mean, {self._sign}, is below "
            f"{self.feature:.3g} of feature_bound, and the best feature of real data usually has {self.usual:.2g}. "
            f"What helps: {self.more_data(plan)}, fewer steps, or a smaller public feature_bound. Text needs five "
            "times as many rows."
        )


def descent(
    *, time: float, weight_noise: float, gradient: float, row_norm: float, remedy: str, classes: int | None = 2,
    label_bound: float | None = None,
) -> Outlook:  # fmt: skip
    """The outlook of a noisy descent: ``weight_noise`` is the standard deviation of a weight's noise at its end.

    ``classes`` None stands for a regression. Without ``label_bound`` the largest residual stands for it.
    """
    noise = row_norm * weight_noise
    if classes is None:
        largest = gradient / row_norm
        bound = largest if label_bound is None else label_bound
        residual = min(largest, SPREAD * bound)
        return Targets(noise, time * row_norm * row_norm * residual * SEPARATION, remedy, bound)
    distance = time * gradient
    feature = 2 * weight_noise / distance if distance > 0 else math.inf
    return Classes(noise, distance * row_norm * SEPARATION * 2 / classes, remedy, feature, classes)


def warn(plan: Plan) -> None:
    """Warn of a hopeless plan, and say what would help."""
    outlook = plan.outlook
    if outlook is not None and outlook.is_hopeless:
        _validate.warn(f"{plan.solver}: {outlook.complaint(plan)}", HopelessPlanWarning)
