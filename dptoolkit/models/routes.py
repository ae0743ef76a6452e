"""Which solver fits which task, and with which arguments: the one place that knows."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from dptoolkit import solvers
from dptoolkit._validate import invalid, magnitude, one_of
from dptoolkit.solvers.frame.settings import keywords

CLASSIFICATION, REGRESSION = "classification", "regression"
TASKS = (CLASSIFICATION, REGRESSION)
# The solver of a task if none is named: good with bounds and budget alone.
DEFAULT = {CLASSIFICATION: "dp_pipeline", REGRESSION: "dp_pipeline"}


@dataclass(frozen=True)
class Route:
    """The arguments that a solver gets for each task that it can do, besides those that the caller chooses.

    ``several`` is the solver for more than two classes, if it is one model for all of them, and the arguments that it
    gets; otherwise there is one fit a class against the rest, and they share the budget.
    """

    fixed: Mapping[str, Mapping[str, Any]]
    several: tuple[str, Mapping[str, Any]] | None = None


_LOGISTIC, _SOFTMAX, _SQUARED, _HUBER = ({"loss": loss} for loss in ("logistic", "softmax", "squared", "huber"))
_EITHER = {CLASSIFICATION: _LOGISTIC, REGRESSION: _SQUARED}
_ROBUST = {CLASSIFICATION: _LOGISTIC, REGRESSION: _HUBER}
ROUTES: Mapping[str, Route] = {
    "dp_pipeline": Route(_EITHER, several=("dp_pipeline", _SOFTMAX)),
    "dp_dual_averaging": Route(_EITHER, several=("dp_dual_averaging", _SOFTMAX)),
    "dp_ight": Route(_EITHER),
    "dp_frank_wolfe": Route(_EITHER, several=("dp_multinomial_frank_wolfe", {})),
    "dp_sgd_ht": Route(_EITHER),
    "dp_scsg_ht": Route(_EITHER),
    "dp_svrg_ht": Route(_EITHER),
    "objective_perturbation": Route(_ROBUST),
    "two_stage": Route(_ROBUST),
    "peeling_iht": Route({REGRESSION: {}}),
}


def solver_name(task: str, solver: str | None) -> str:
    """The name of the solver for a task, with underscores; the task's own if none is named."""
    one_of("task", task, TASKS)
    if solver is None:
        return DEFAULT[task]
    names = tuple(name for name, route in ROUTES.items() if task in route.fixed)
    return one_of("solver", str(solver).replace("-", "_"), names, f"Those can do {task}.")


def solver_for(solver: str, classes: int | None) -> tuple[str, int]:
    """(the solver that runs, how many times): for numbers and two classes the named one, once."""
    if classes is None or classes == 2:
        return solver, 1
    several = ROUTES[solver].several
    return (solver, classes) if several is None else (several[0], 1)


def arguments(task: str, solver: str, d: int, classes: int | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of the solver that runs, where the caller named ``solver`` and gave ``options``.

    Bounds are translated: a row of norm R has entries of at most R, and predictions of labels within B are clipped to
    B. A classifier's ``dp_pipeline`` scales every row to norm 1, so a bound on the norm tells it nothing. Whatever else
    is left out is left to the solver, which has a rule for it or says that it has none.
    """
    runs, times = solver_for(solver, classes)
    own = {name: value for name, value in options.items() if value is not None}
    if "row_norm" in own:
        magnitude("row_norm", own["row_norm"])
    names = {entry.name for entry in fields(solvers.settings_class(runs))}
    is_one_model = classes is not None and classes > 2 and times == 1
    several = ROUTES[solver].several
    fixed = several[1] if is_one_model and several is not None else ROUTES[solver].fixed[task]
    for name in own:
        if name in fixed:
            raise invalid(name, own[name], f"left out for {task}", f"It is {fixed[name]!r}.")
    if "feature_bound" in names and "row_norm" in own and "row_norm" not in names:
        own.setdefault("feature_bound", own["row_norm"])
    if "margin_bound" in names and "label_bound" in own and "grad_norm" not in own:
        own.setdefault("margin_bound", own["label_bound"])
    if "row_norm" not in names or (solver == "dp_pipeline" and task == CLASSIFICATION):
        own.pop("row_norm", None)
    if "sparsity" in names:
        own.setdefault("sparsity", None if solver in ("dp_pipeline", "dp_dual_averaging") else d)
    if "fit_intercept" in names:
        own.setdefault("fit_intercept", True)
    if is_one_model:
        own["classes"] = classes
    full = dict(fixed) | own
    _check_names(runs, full)
    return full


def _check_names(runs: str, arguments: Mapping[str, Any]) -> None:
    """Refuse options that the solver does not have, and a call without those that it needs."""
    requirements = {entry.name: entry.default is entry.empty for entry in keywords(solvers.settings_class(runs))}
    for name in arguments:
        if name not in requirements:
            near = difflib.get_close_matches(name, requirements, 1)
            hint = f"Did you mean {near[0]!r}?" if near else f"It takes {', '.join(requirements)}."
            raise invalid(name, arguments[name], f"left out for {runs}", hint)
    for name, is_needed in requirements.items():
        if is_needed and name not in arguments and name != "epsilon":
            text = solvers.settings_class(runs).__dataclass_fields__[name].metadata["text"]
            raise invalid(name, None, f"given for {runs}", text)
