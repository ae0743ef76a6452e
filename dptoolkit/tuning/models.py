"""A private choice of a model among candidates within one budget: what ``dptoolkit tune`` and PrivateSearchCV share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dptoolkit import solvers
from dptoolkit._validate import invalid, unheard
from dptoolkit.accounting import BestOf, Ledger
from dptoolkit.errors import DpToolkitError
from dptoolkit.models import routes
from dptoolkit.models.fitting import (
    caveats,
    check_names_for_bounds,
    checked_records,
    names_of,
    prepared,
    steps_of,
    warn_of_clipping,
)
from dptoolkit.models.joint import ChosenPlan
from dptoolkit.models.model import Model
from dptoolkit.models.routes import REGRESSION
from dptoolkit.solvers.frame.secure import noise_kind
from dptoolkit.solvers.frame.settings import keywords
from dptoolkit.solvers.registry import SOLVERS
from dptoolkit.tuning.choice import TuningPlan, check_candidates
from dptoolkit.tuning.choice import plan as make_plan
from dptoolkit.tuning.search import tune_by

# What all candidates share: the budget and what is public.
SHARED = (
    "epsilon",
    "delta",
    "adjacency",
    "classes",
    "calibration",
    "loss",
    "label_bound",
    "random_state",
    "randomness",
)
# The terms of the choice itself: the arguments of ``tuning.plan`` that are not the solver's.
TERMS = ("epsilon", "delta", "expected_runs", "law", "validation", "score_bound", "randomness")


@dataclass(frozen=True)
class Search:
    """A choice to be made on n rows of d features: candidates of one solver, and what they share.

    ``solver`` is the name that was asked for and ``solver_name`` the one that runs. ``terms`` holds the arguments
    that ``TERMS`` names.
    """

    task: str
    solver: str
    solver_name: str
    candidates: tuple[Mapping[str, Any], ...]
    shared: Mapping[str, Any]
    terms: Mapping[str, Any]
    n: int
    d: int

    @cached_property
    def plan(self) -> TuningPlan:
        """The plan of the choice, made once; it needs no data."""
        return make_plan(self.solver_name, self.candidates, n=self.n, d=self.d, **self.terms, **self.shared)

    @cached_property
    def ruled(self) -> tuple[str, ...]:
        """The settings that candidates differ in for which the solver has a rule, which costs nothing."""
        free = {entry.name for entry in keywords(solvers.settings_class(self.solver_name)) if entry.default is None}
        names = sorted({name for candidate in self.candidates for name in candidate} & free)
        return tuple(name for name in names if self._plans_without(name))

    def _plans_without(self, name: str) -> bool:
        rest = {key: value for key, value in {**self.shared, **self.candidates[0]}.items() if key != name}
        budget = {key: self.terms[key] for key in ("epsilon", "delta")}
        try:
            with unheard():
                solvers.plan(self.solver_name, n=self.n, d=self.d, **rest, **budget)
        except DpToolkitError:
            return False
        return True

    @property
    def rule(self) -> str:
        """A sentence on the settings in which candidates differ although the solver has a rule for them."""
        if not self.ruled:
            return f"{self.solver_name} has no rule for these settings."
        return f"{self.solver_name} has a rule for {', '.join(self.ruled)}: leaving that out is free, and often better."

    @property
    def advice(self) -> str:
        """What the choice costs, and which settings a rule would choose without cost."""
        return f"{self.plan.cost()} {self.rule}"


@dataclass(frozen=True)
class Choice:
    """The model of the best run, the number of its candidate, its noisy score, and the plan of the whole choice."""

    model: Model
    number: int
    score: float
    plan: TuningPlan


def terms_of(source: Any) -> dict[str, Any]:
    """The arguments of a choice from the attributes of an estimator or of a parsed command line."""
    return {name: getattr(source, name) for name in TERMS}


def refuse_shared(candidates: Sequence[Mapping[str, Any]]) -> None:
    """Refuse candidates with a setting that must be the same for all."""
    for name in (name for candidate in candidates for name in candidate):
        if name in SHARED:
            raise invalid(name, "a setting of candidates", "the same for all of them", "Give it once, for all.")


def own_and_shared(
    entries: Sequence[Mapping[str, Any]], candidates: Sequence[Mapping[str, Any]]
) -> tuple[tuple[dict[str, Any], ...], dict[str, Any]]:
    """(each entry's own arguments, those that all share): own are those that candidates name or entries differ in."""
    own = {key for candidate in candidates for key in candidate} | {
        key
        for entry in entries
        for key in entry
        if any(key not in other or other[key] != entry[key] for other in entries)
    }
    shared = {key: value for key, value in entries[0].items() if key not in own}
    return tuple({key: value for key, value in entry.items() if key in own} for entry in entries), shared


def search(
    candidates: Sequence[Mapping[str, Any]], *, task: str, solver: str | None, n: int, d: int, classes: int | None,
    adjacency: str, terms: Mapping[str, Any], options: Mapping[str, Any],
) -> Search:  # fmt: skip
    """The search among candidates for n rows of d features.

    Parameters
    ----------
    candidates : sequence of mapping
        The arguments of the solver in which candidates differ.
    task : {"classification", "regression"}
        As in ``models.fit``.
    solver : str or None
        As in ``models.fit``.
    n : int
        The number of rows, which is public.
    d : int
        The number of features, which is public.
    classes : int or None
        The number of classes; None for regression.
    adjacency : {"replace-one", "zero-out"}
        As in ``models.fit``.
    terms : mapping of str to object
        The arguments of ``tuning.plan`` that ``TERMS`` names. In regression ``score_bound`` is ``label_bound`` unless
        it is given.
    options : mapping of str to object
        The arguments of the solver that all candidates share.

    Privacy
    -------
    Touches no data. All arguments are public.
    """
    name = routes.solver_name(task, solver)
    solver_name, times = routes.solver_for(name, classes)
    if times > 1:
        names = ", ".join(key for key, row in SOLVERS.items() if row.several is not None)
        repair = f"It fits each class by itself. These solvers fit one model for all classes: {names}."
        raise invalid("classes", classes, f"2 for a private choice with {name}", repair)
    check_candidates(candidates)
    if terms.get("validation") == "public":
        raise invalid("validation", "public", "a share of rows", "Use tuning.tune(..., public=(X, y)).")
    refuse_shared(candidates)
    entries = [routes.arguments(task, name, d, classes, dict(options) | dict(own)) for own in candidates]
    own, shared = own_and_shared(entries, candidates)
    if task == REGRESSION and terms.get("score_bound") is None:
        terms = {**terms, "score_bound": options.get("label_bound")}
    return Search(task, name, solver_name, own, shared | {"adjacency": adjacency}, dict(terms), n, d)


def choose(
    X: Any, y: Any, candidates: Sequence[Mapping[str, Any]], *, task: str, solver: str | None = None,
    classes: Any = None, adjacency: str = "replace-one", n_features: int | None = None, rng: Any = None,
    ledger: Ledger | None = None, feature_names: Any = None, terms: Mapping[str, Any], announce: Any = None,
    **options: Any,
) -> Choice:  # fmt: skip
    """A private model of the rows X and labels y, chosen among candidates.

    Parameters are those of ``models.fit`` and of ``search``; ``announce(search)`` is called before the data are used.

    Privacy
    -------
    Everything is released by ``tuning.tune_by``: the event is ``BestOf`` one run, planned without data, and the ledger
    is charged for it once, before the data are used. Public: n, d, the names of columns, the classes, which rows are
    held out, all arguments. Warnings and marked rows are as for ``models.fit``.
    """
    rows, targets, classes_of = checked_records(X, y, task, classes, n_features)
    count = None if classes_of is None else len(classes_of)
    n, d = rows.shape
    terms = {**terms, "randomness": noise_kind(terms.get("randomness"), rng)}
    names = names_of(X, feature_names, d)
    check_names_for_bounds(options.get("bounds"), X, names, d)
    options = routes.declared_bounds(options, d, names or ())
    question = search(
        candidates, task=task, solver=solver, n=n, d=d, classes=count, adjacency=adjacency, terms=terms, options=options
    )
    notes = caveats(task, question.solver, rows, classes_of, classes, options.get("bounds"), names)
    warn_of_clipping(task, y, options.get("label_bound"))
    if announce is not None:
        announce(question)
    best = tune_by(question.plan, rows, targets, rng=rng, ledger=ledger)
    number = next(k for k, candidate in enumerate(best.plan.candidates) if candidate is best.choice)
    result, event = best.model, best.plan.event
    assert result.plan is not None and isinstance(event, BestOf)
    plan = ChosenPlan(result.plan, event, n, best.plan.delta)
    model = Model(
        task, question.solver, np.atleast_2d(result.coef), np.atleast_1d(result.intercept), plan, best.guarantee,
        steps_of(result), (prepared(result),), classes_of, names,
    )  # fmt: skip
    return Choice(model.with_notes(*notes), number, best.score, best.plan)
