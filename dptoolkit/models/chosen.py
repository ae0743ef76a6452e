"""The plan of a model that was privately chosen among candidates: one run's plan, and what the whole choice costs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from dptoolkit.accounting import BestOf, Guarantee, account
from dptoolkit.models.joint import PlanAround
from dptoolkit.solvers import Plan
from dptoolkit.tuning.choice import choice_notes


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
