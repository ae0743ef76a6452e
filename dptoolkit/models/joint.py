"""Plans around a solver's plan: one fit for each class against the rest, and a choice among candidates.

Their releases compose, and share one budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from dptoolkit._validate import invalid, unheard
from dptoolkit.accounting import BestOf, Guarantee, Repeated, account, calibrate
from dptoolkit.accounting.events import Event
from dptoolkit.accounting.report import Printed
from dptoolkit.models.notes import choice_notes
from dptoolkit.solvers import Plan

# The factor on a class's epsilon where rounding puts the plans together above the budget.
_LESS = 0.9999


class PlanAround(Printed):
    """A plan that is made of another, ``part``, from which it takes whatever it does not define itself."""

    part: Plan

    def __getattr__(self, name: str) -> Any:
        # Settings, releases, d, adjacency, sensitivity, noise, ...
        if name.startswith("__") or name == "part":
            raise AttributeError(name)
        return getattr(self.part, name)


@dataclass(frozen=True, repr=False)
class JointPlan(PlanAround):
    """The plan of ``count`` fits, all by the plan ``part``; epsilon and delta are the budget of all together.

    Privacy
    -------
    A record takes part in every one of the fits: the event is ``count`` times that of one, and nothing is free.
    """

    part: Plan
    count: int
    epsilon: float
    delta: float

    @property
    def event(self) -> Event:
        """Everything that is released."""
        return Repeated(self.part.event, self.count)

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of all fits together, computed from ``event``."""
        delta = None if math.isinf(self.epsilon) else self.delta
        notes = self.part.guarantee.notes
        return replace(account(self.event, adjacency=self.part.adjacency), notes=notes, asked_delta=delta)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: the budget, the number of fits, and the plan of one."""
        own = {"epsilon": "inf" if math.isinf(self.epsilon) else self.epsilon, "delta": self.delta}
        return {"count": self.count, **own, "part": self.part.to_dict()}

    def __repr__(self) -> str:
        return f"<JointPlan of {self.count} fits: epsilon {self.epsilon:g} at delta {self.delta:g}; each {self.part!r}>"

    def __str__(self) -> str:
        head = f"{self.count} fits, one for each class against the rest, within epsilon {self.epsilon:g} together"
        return f"{head}\n\n{self.guarantee}\n\nEach of them\n\n{self.part}"


def joint_plan(plan_for: Callable[[float], Plan], count: int, epsilon: float, delta: float) -> JointPlan:
    """The plan of ``count`` equal fits that together keep the budget; plan_for(epsilon) is the plan of one."""
    # Plans that are made on the way must not warn; the last one does.
    with unheard():
        part = _part(plan_for, count, epsilon, delta)
    return JointPlan(plan_for(part), count, epsilon, delta)


def _part(plan_for: Callable[[float], Plan], count: int, epsilon: float, delta: float) -> float:
    """The epsilon of one of the fits, at the same delta."""
    single = plan_for(epsilon)
    if math.isinf(epsilon):
        return epsilon
    factor = calibrate(lambda f: Repeated(single.with_noise(factor=f).event, count), epsilon, delta)
    part = account(single.with_noise(factor=factor).event).epsilon(delta)
    while part > 0 and account(Repeated(plan_for(part).event, count)).epsilon(delta) > epsilon:
        part *= _LESS
    if part <= 0:
        raise invalid("classes", count, "fewer for this budget", "Each of so many classes would get nothing of it.")
    return part


# --- The plan of a model that was privately chosen among candidates: one run's plan, and what the [...] -------


@dataclass(frozen=True, repr=False)
class ChosenPlan(PlanAround):
    """The plan ``part`` of the run that won, and the ``event`` of the choice that it won.

    ``n`` counts all rows, those that were held out for scores too; ``delta`` is the one that was asked for.

    Privacy
    -------
    What the run gave away by itself says nothing: which run wins depends on every record. The guarantee is that of
    ``event``, the best of a random number of runs.
    """

    part: Plan
    event: BestOf
    n: int
    delta: float

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of the whole choice, computed from ``event``."""
        guarantee = account(self.event, adjacency=self.part.adjacency)
        return replace(guarantee, notes=choice_notes(self.n), asked_delta=self.delta)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: the plan of the run that won, and the event of the choice."""
        return {"n": self.n, "delta": self.delta, "choice": self.event.to_dict(), "part": self.part.to_dict()}

    def __repr__(self) -> str:
        return f"<ChosenPlan: the best of {self.event.runs} runs; the one that won: {self.part!r}>"

    def __str__(self) -> str:
        return f"The best of a random number of runs\n\n{self.guarantee}\n\nThe run that won\n\n{self.part}"
