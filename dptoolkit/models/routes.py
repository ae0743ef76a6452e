"""Which solver fits which task, and with which arguments: the one place that knows."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from dptoolkit import losses, solvers
from dptoolkit._validate import invalid, magnitude, one_of, real
from dptoolkit.data import joint_norm
from dptoolkit.solvers.settings import keywords

CLASSIFICATION, REGRESSION = "classification", "regression"
TASKS = (CLASSIFICATION, REGRESSION)
# The solver of a task if none is named: good with bounds and budget alone.
DEFAULT = {CLASSIFICATION: "dp_pipeline", REGRESSION: "dp_dual_averaging"}
# The part of epsilon that the squeeze of objective perturbation takes where l2 is left out. On a9a, mushrooms, phishing
# and a synthetic set an eighth and a thirty-second did as well.
_SQUEEZE_SHARE = 1 / 16


@dataclass(frozen=True)
class Route:
    """What a solver is given for each task that it can do, besides what the caller chooses.

    ``several`` is the solver for more than two classes, if one of its own is known; otherwise there is one fit a class
    against the rest, and they share the budget.
    """

    fixed: Mapping[str, Mapping[str, Any]]
    several: str | None = None


_LOGISTIC, _SQUARED, _HUBER = {"loss": "logistic"}, {"loss": "squared"}, {"loss": "huber"}
_EITHER = {CLASSIFICATION: _LOGISTIC, REGRESSION: _SQUARED}
_ROBUST = {CLASSIFICATION: _LOGISTIC, REGRESSION: _HUBER}
ROUTES: Mapping[str, Route] = {
    "dp_pipeline": Route({CLASSIFICATION: {}}),
    "dp_dual_averaging": Route(_EITHER),
    "dp_ight": Route(_EITHER),
    "dp_frank_wolfe": Route(_EITHER, several="dp_multinomial_frank_wolfe"),
    "dp_sgd_ht": Route(_EITHER),
    "dp_scsg_ht": Route(_EITHER),
    "dp_svrg_ht": Route(_EITHER),
    "objective_perturbation": Route(_ROBUST),
    "two_stage": Route(_ROBUST),
    "peeling_iht": Route({REGRESSION: {}}),
}


def chosen(task: str, solver: str | None) -> str:
    """The name of the solver for a task, with underscores; the task's own if none is named."""
    one_of("task", task, TASKS)
    if solver is None:
        return DEFAULT[task]
    able = tuple(name for name, route in ROUTES.items() if task in route.fixed)
    return one_of("solver", str(solver).replace("-", "_"), able, f"Those can do {task}.")


def solver_for(solver: str, classes: int | None) -> tuple[str, int]:
    """(the solver that runs, how many times): for numbers and two classes the named one, once."""
    if classes is None or classes == 2:
        return solver, 1
    several = ROUTES[solver].several
    return (solver, classes) if several is None else (several, 1)


def arguments(
    task: str, solver: str, n: int, d: int, classes: int | None, epsilon: float, options: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of the solver that runs, where the caller named ``solver`` and gave ``options``.

    Bounds are translated: a row of norm R has entries of at most R, and predictions of labels within B are clipped to
    B. ``dp_pipeline`` scales every row to norm 1, so a bound on the norm tells it nothing.
    """
    runs, times = solver_for(solver, classes)
    given = {name: value for name, value in options.items() if value is not None}
    if "row_norm" in given:
        magnitude("row_norm", given["row_norm"])
    known = {entry.name for entry in fields(solvers.settings_class(runs))}
    fixed = ROUTES[solver].fixed[task]
    for name in given:
        if name in fixed:
            raise invalid(name, given[name], f"left out for {task}", f"It is {fixed[name]!r}.")
    if "feature_bound" in known and "row_norm" in given and "row_norm" not in known:
        given.setdefault("feature_bound", given["row_norm"])
    if "margin_bound" in known and "label_bound" in given and "grad_norm" not in given:
        given.setdefault("margin_bound", given["label_bound"])
    if "row_norm" not in known:
        given.pop("row_norm", None)
    if "sparsity" in known:
        given.setdefault("sparsity", None if solver in ("dp_pipeline", "dp_dual_averaging") else d)
    if "fit_intercept" in known:
        given.setdefault("fit_intercept", True)
    if "classes" in known:
        given["classes"] = classes
    if solver == "objective_perturbation" and "l2" not in given and "row_norm" in given:
        norm = joint_norm(given["row_norm"], bool(given["fit_intercept"]))
        given["l2"] = _l2(losses.get(fixed["loss"]).smoothness * norm * norm, n, epsilon, times)
    chosen = {name: value for name, value in fixed.items() if name in known} | given
    _check_names(runs, chosen)
    return chosen


def _check_names(runs: str, chosen: Mapping[str, Any]) -> None:
    """Refuse options that the solver does not have, and a call without those that it needs."""
    needed = {entry.name: entry.default is entry.empty for entry in keywords(solvers.settings_class(runs))}
    for name in chosen:
        if name not in needed:
            near = difflib.get_close_matches(name, needed, 1)
            hint = f"Did you mean {near[0]!r}?" if near else f"It takes {', '.join(needed)}."
            raise invalid(name, chosen[name], f"left out for {runs}", hint)
    for name, is_needed in needed.items():
        if is_needed and name not in chosen and name != "epsilon":
            text = solvers.settings_class(runs).__dataclass_fields__[name].metadata["text"]
            raise invalid(name, None, f"given for {runs}", text)


def _l2(curvature: float, n: int, epsilon: float, times: int) -> float:
    """The l2 at which the squeeze log(1 + curvature / (n l2)) is a small part of the budget of one of the fits."""
    budget = real("epsilon", epsilon, low=0.0, open_low=True)
    return curvature / (n * math.expm1(_SQUEEZE_SHARE * min(budget / times, 16.0)))
