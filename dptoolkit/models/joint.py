"""Plans made of a solver's plan: one fit for each class against the rest, and a choice among candidates.

Their releases compose, and share one budget.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from dptoolkit._validate import invalid, unheard
from dptoolkit.accounting import BestOf, Guarantee, Repeated, account, calibrate
from dptoolkit.accounting.events import Event
from dptoolkit.models.notes import choice_notes
from dptoolkit.solvers import Plan
from dptoolkit.solvers.frame.outlook import Outlook
from dptoolkit.solvers.frame.plan import Release
from dptoolkit.solvers.frame.settings import Resolved, warn_of

# The factor on a class's epsilon where rounding puts the plans together above the budget.
_LESS = 0.9999


@dataclass(frozen=True, repr=False)
class PlanAround(Plan):
    """A plan that is made of another, ``part``: settings, n, d and releases follow from it."""

    is_one_fit: ClassVar[bool] = False

    settings: Resolved = field(init=False)
    n: int = field(init=False)
    d: int = field(init=False)
    releases: tuple[Release, ...] = field(init=False)
    published: None = field(init=False, compare=False)
    part: Plan

    def _adopt(self, **own: Any) -> None:
        """Set the fields that follow from the part, those in ``own`` to other values; a frozen class has no setter."""
        part = self.part
        usual = {"settings": part.settings, "n": part.n, "d": part.d, "releases": part.releases, "published": None,
                 "secure": part.secure}  # fmt: skip
        for name, value in (usual | own).items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True, repr=False)
class JointPlan(PlanAround):
    """The plan of ``count`` fits, all by the plan ``part``; epsilon and delta are the budget of all together.

    ``releases`` are those of all fits. ``settings`` are those of each, whose epsilon is its own share.

    Privacy
    -------
    A record takes part in every one of the fits: the event is ``count`` times that of one, and nothing is free.
    """

    count: int
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        self._adopt(releases=tuple(replace(r, count=self.count * r.count) for r in self.part.releases))
        super().__post_init__()

    @functools.cached_property
    def event(self) -> Event:
        """Everything that is released."""
        return Repeated(self.part.event, self.count)

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of all fits together, computed from ``event``."""
        return replace(super().guarantee, asked_delta=None if math.isinf(self.epsilon) else self.delta)

    def with_noise(self, *scales: float, factor: float = 1.0) -> JointPlan:
        """See ``Plan``; the noise of every fit."""
        return replace(self, part=self.part.with_noise(*scales, factor=factor))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: the budget, the number of fits, and the plan of one."""
        own = {"epsilon": "inf" if math.isinf(self.epsilon) else self.epsilon, "delta": self.delta}
        return {"count": self.count, **own, "part": self.part.to_dict()}

    def __repr__(self) -> str:
        return f"<JointPlan of {self.count} fits: epsilon {self.epsilon:g} at delta {self.delta:g}; each {self.part!r}>"

    def __str__(self) -> str:
        head = f"{self.count} fits, one for each class against the rest, within epsilon {self.epsilon:g} together"
        return f"{head}\n\n{super().__str__()}"

    @property
    def _head(self) -> str:
        whole = f"Plan for {self.solver}, all {self.count} fits: n={self.n:,}, d={self.d:,}, {self.adjacency}"
        return f"{whole}, calibration {self.calibration}\nEach fit: {self.settings}"


def joint_plan(plan_for: Callable[[float], Plan], count: int, epsilon: float, delta: float) -> JointPlan:
    """The plan of ``count`` equal fits that together keep the budget; plan_for(epsilon) is the plan of one.

    Two plans are made: one with the whole budget, which shows how epsilon depends on the noise, and the one that is
    returned. Only the latter is warned of.
    """
    with unheard():
        part = _part(plan_for, count, epsilon, delta)
    warn_of(part)
    return JointPlan(part, count, epsilon, delta)


def _part(plan_for: Callable[[float], Plan], count: int, epsilon: float, delta: float) -> Plan:
    """The plan of one of the fits, at the same delta."""
    single = plan_for(epsilon)
    if math.isinf(epsilon):
        return single
    factor = calibrate(lambda f: Repeated(single.with_noise(factor=f).event, count), epsilon, delta)
    share = account(single.with_noise(factor=factor).event).epsilon(delta)
    while share > 0:
        part = plan_for(share)
        if account(Repeated(part.event, count)).epsilon(delta) <= epsilon:
            return part
        share *= _LESS
    raise invalid(
        "classes",
        count,
        "fewer for this budget",
        "The budget is too small to be divided among so many classes.",
    )


# --- The plan of a model that was privately chosen among candidates -------------------------------------------


@dataclass(frozen=True, repr=False)
class ChosenPlan(PlanAround):
    """The plan ``part`` of the run that won, and ``choice``, the event of the choice that it won.

    ``rows`` counts all rows, those that were held out for scores too; ``delta`` is the one that was asked for.
    ``releases`` are those of the run that won.

    Privacy
    -------
    What the run gave away by itself says nothing: which run wins depends on every record. The guarantee is that of
    ``choice``, the best of a random number of runs.
    """

    choice: BestOf
    rows: int
    delta: float

    def __post_init__(self) -> None:
        self._adopt(n=self.rows)

    @functools.cached_property
    def event(self) -> Event:
        """Everything that is released."""
        return self.choice

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of the whole choice, computed from ``event``."""
        guarantee = account(self.event, adjacency=self.adjacency)
        return replace(guarantee, notes=choice_notes(self.n, self.secure), asked_delta=self.delta)

    def with_noise(self, *scales: float, factor: float = 1.0) -> Plan:
        """Refused: the event of a choice does not follow from the noise of the run that won."""
        raise invalid("plan", "a ChosenPlan", "the plan of one fit", "plan.part is that of the run that won.")

    @property
    def outlook(self) -> Outlook | None:
        """See ``Plan``; that of the run that won."""
        return self.part.outlook

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: the plan of the run that won, and the event of the choice."""
        return {"n": self.n, "delta": self.delta, "choice": self.choice.to_dict(), "part": self.part.to_dict()}

    def __repr__(self) -> str:
        return f"<ChosenPlan: the best of {self.choice.runs} runs; the one that won: {self.part!r}>"

    def __str__(self) -> str:
        return f"The best of a random number of runs\n\n{self.guarantee}\n\nThe run that won\n\n{self.part}"
