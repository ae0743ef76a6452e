"""A private choice of a model among candidates within one budget: what ``dptoolkit tune`` and PrivateSearchCV share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dptoolkit import marks, solvers, tuning
from dptoolkit._validate import invalid, unheard
from dptoolkit.accounting import BestOf, Ledger
from dptoolkit.data import check_rows
from dptoolkit.errors import DpToolkitError
from dptoolkit.models import routes
from dptoolkit.models.fitting import caveats, class_set, codes, names_of, prepared, steps_of, warn_of_clipping
from dptoolkit.models.joint import ChosenPlan
from dptoolkit.models.model import Model
from dptoolkit.models.routes import CLASSIFICATION
from dptoolkit.solvers.frame.settings import keywords
from dptoolkit.tuning import TuningPlan

# What all candidates share: the budget and what is public.
SHARED = ("epsilon", "delta", "adjacency", "classes", "calibration", "loss", "label_bound", "random_state")


@dataclass(frozen=True)
class Search:
    """A choice to be made: candidates of one solver, what they share, and ``how`` they are run and scored."""

    task: str
    solver: str
    solver_name: str
    candidates: tuple[Mapping[str, Any], ...]
    shared: Mapping[str, Any]
    how: Mapping[str, Any]

    def plan(self, n: int, d: int) -> TuningPlan:
        """The plan of the choice; needs no data."""
        return tuning.plan(self.solver_name, self.candidates, n=n, d=d, **self.how, **self.shared)

    def ruled(self, n: int, d: int) -> tuple[str, ...]:
        """The settings that candidates differ in for which the solver has a rule, which costs nothing."""
        free = {entry.name for entry in keywords(solvers.settings_class(self.solver_name)) if entry.default is None}
        names = sorted({name for candidate in self.candidates for name in candidate} & free)
        return tuple(name for name in names if self._plans_without(name, n, d))

    def _plans_without(self, name: str, n: int, d: int) -> bool:
        rest = {key: value for key, value in {**self.shared, **self.candidates[0]}.items() if key != name}
        budget = {key: self.how[key] for key in ("epsilon", "delta")}
        try:
            with unheard():
                solvers.plan(self.solver_name, n=n, d=d, **rest, **budget)
        except DpToolkitError:
            return False
        return True

    def rule(self, plan: TuningPlan) -> str:
        """A sentence on the settings in which candidates differ although the solver has a rule for them; "" if none."""
        names = self.ruled(plan.n, plan.plans[0].d)
        if not names:
            return f"{self.solver_name} has no rule for these settings."
        return f"{self.solver_name} has a rule for {', '.join(names)}: leaving that out is free, and often better."

    def advice(self, plan: TuningPlan) -> str:
        """What the choice costs, and which settings a rule would choose without cost."""
        return f"{plan.cost()} {self.rule(plan)}"


@dataclass(frozen=True)
class Choice:
    """The model of the best run, the number of its candidate, its noisy score, and the plan of the whole choice."""

    model: Model
    number: int
    score: float
    plan: TuningPlan


def refuse_shared(name: str) -> None:
    """Refuse a setting of a candidate that must be the same for all."""
    if name in SHARED:
        raise invalid(name, "a setting of candidates", "the same for all of them", "Give it once, for all.")


def search(
    candidates: Sequence[Mapping[str, Any]], *, task: str, solver: str | None, d: int, classes: int | None,
    adjacency: str, how: Mapping[str, Any], options: Mapping[str, Any],
) -> Search:  # fmt: skip
    """The search among candidates, each a mapping of the solver's arguments; ``options`` are those that all share.

    ``how`` are the arguments of ``tuning.plan`` besides: epsilon, delta, expected_runs, law, validation, score_bound.
    """
    name = routes.solver_name(task, solver)
    solver_name, times = routes.solver_for(name, classes)
    if times > 1:
        names = ", ".join(key for key, route in routes.ROUTES.items() if route.several is not None)
        repair = f"It would fit each class by itself. One model for all classes, as a choice needs, have {names}."
        raise invalid("classes", classes, f"2 for a private choice with {name}", repair)
    if not candidates:
        raise invalid("candidates", candidates, "at least one mapping of settings", "For example {'steps': 20}.")
    if how.get("validation") == "public":
        raise invalid("validation", "public", "a share of rows", "Use tuning.tune(..., public=(X, y)).")
    for key in (key for candidate in candidates for key in candidate):
        refuse_shared(key)
    entries = [routes.arguments(task, name, d, classes, dict(options) | dict(own)) for own in candidates]
    differ = {key for own in candidates for key in own} | {
        key
        for entry in entries
        for key in entry
        if any(key not in other or other[key] != entry[key] for other in entries)
    }
    common = {key: value for key, value in entries[0].items() if key not in differ}
    own = tuple({key: value for key, value in entry.items() if key in differ} for entry in entries)
    return Search(task, name, solver_name, own, common | {"adjacency": adjacency}, dict(how))


def choose(
    X: Any, y: Any, candidates: Sequence[Mapping[str, Any]], *, task: str, solver: str | None = None,
    classes: Any = None, adjacency: str = "replace-one", n_features: int | None = None, rng: Any = None,
    ledger: Ledger | None = None, feature_names: Any = None, how: Mapping[str, Any], announce: Any = None,
    **options: Any,
) -> Choice:  # fmt: skip
    """A private model of the rows X and labels y, chosen among candidates.

    Parameters are those of ``models.fit`` and of ``search``; ``announce(search, plan)`` is called before the data are
    used.

    Privacy
    -------
    Everything is released by ``tuning.tune``: the event is ``BestOf`` one run, planned without data, and the ledger is
    charged for it once, before the data are used. Public: n, d, the names of columns, the classes, which rows are held
    out, all arguments. Warnings and marked rows are as for ``models.fit``.
    """
    rows = check_rows(X, n_features)
    classes_of = class_set(y, classes) if task == CLASSIFICATION else None
    targets = y if classes_of is None else marks.like(y, codes(y, classes_of))
    count = None if classes_of is None else len(classes_of)
    n, d = rows.shape
    question = search(
        candidates, task=task, solver=solver, d=d, classes=count, adjacency=adjacency, how=how, options=options
    )
    names = names_of(X, feature_names, d)
    notes = caveats(task, question.solver, rows, classes_of, classes)
    warn_of_clipping(task, y, options.get("label_bound"))
    if announce is not None:
        announce(question, question.plan(n, d))
    best = tuning.tune(
        question.solver_name, question.candidates, rows, targets, rng=rng, ledger=ledger,
        **question.how, **question.shared,
    )  # fmt: skip
    number = next(k for k, candidate in enumerate(best.plan.candidates) if candidate is best.choice)
    result, event = best.model, best.plan.event
    assert result.plan is not None and isinstance(event, BestOf)
    plan = ChosenPlan(result.plan, event, n, best.plan.delta)
    model = Model(
        task, question.solver, np.atleast_2d(result.coef), np.atleast_1d(result.intercept), plan, best.guarantee,
        steps_of(result), (prepared(result),), classes_of, names,
    )  # fmt: skip
    return Choice(model.with_notes(*notes), number, best.score, best.plan)
