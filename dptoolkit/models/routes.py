"""Which solver fits which task, and with which arguments, by the table of solvers."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any

from dptoolkit import solvers
from dptoolkit._validate import invalid, magnitude, one_of
from dptoolkit.data.column_bounds import OTHERS, ColumnBounds, is_by_name
from dptoolkit.solvers.frame.settings import keywords
from dptoolkit.solvers.registry import CLASSIFICATION, REGRESSION, SOLVERS, TASKS

__all__ = [
    "CLASSIFICATION", "REGRESSION", "TASKS", "arguments", "declared_bounds", "solver_for", "solver_name", "solvers_for",
]  # fmt: skip

# The solver of a task if none is named: good with bounds and budget alone.
DEFAULT = {CLASSIFICATION: "dp_pipeline", REGRESSION: "dp_pipeline"}


def solvers_for(task: str) -> tuple[str, ...]:
    """The names of the solvers that can do a task."""
    return tuple(name for name, row in SOLVERS.items() if task in row.tasks)


def solver_name(task: str, solver: str | None) -> str:
    """The name of the solver for a task, with underscores; the task's own if none is named."""
    one_of("task", task, TASKS)
    if solver is None:
        return DEFAULT[task]
    return one_of("solver", str(solver).replace("-", "_"), solvers_for(task), f"Those can do {task}.")


def solver_for(solver: str, classes: int | None) -> tuple[str, int]:
    """(the solver that runs, how many times): for numbers and two classes the named one, once."""
    if classes is None or classes == 2:
        return solver, 1
    several = SOLVERS[solver].several
    return (solver, classes) if several is None else (several[0], 1)


def arguments(task: str, solver: str, d: int, classes: int | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of the solver that runs, where the caller named ``solver`` and gave ``options``.

    Bounds are translated: a row of norm R has entries of at most R, and predictions of labels within B are clipped to
    B. A solver that scales every row to norm 1 is given no bound on the norm, which would change nothing. Whatever else
    is left out is left to the solver, which has a rule for it or says that it has none.
    """
    runner, times = solver_for(solver, classes)
    own = {name: value for name, value in options.items() if value is not None}
    if "row_norm" in own:
        magnitude("row_norm", own["row_norm"])
    row, names = SOLVERS[solver], {entry.name: entry for entry in fields(solvers.settings_class(runner))}
    is_one_model = classes is not None and classes > 2 and times == 1
    fixed = row.several[1] if is_one_model and row.several is not None else row.tasks[task]
    for name in own:
        if name in fixed:
            raise invalid(name, own[name], f"left out for {task}", f"It is {fixed[name]!r}.")
    if "feature_bound" in names and "row_norm" in own and "row_norm" not in names:
        own.setdefault("feature_bound", own["row_norm"])
    if "margin_bound" in names and "label_bound" in own and "grad_norm" not in own:
        own.setdefault("margin_bound", own["label_bound"])
    if "row_norm" not in names or task in row.unit_rows:
        own.pop("row_norm", None)
    # A solver without a default number of features keeps all of them.
    if "sparsity" in names:
        own.setdefault("sparsity", d if names["sparsity"].default is MISSING else names["sparsity"].default)
    if "fit_intercept" in names:
        own.setdefault("fit_intercept", True)
    if is_one_model:
        own["classes"] = classes
    full = dict(fixed) | own
    _check_names(runner, full)
    return full


def declared_bounds(options: Mapping[str, Any], d: int, names: Sequence[str] | None) -> dict[str, Any]:
    """The options with bounds of d columns by place, where they were given by name.

    Without names, the columns of a mapping are taken in its own order, and "*" stands for those that follow.

    Privacy
    -------
    Touches no data. Bounds and names of columns are public.
    """
    own = dict(options)
    if own.get("bounds") is None:
        return own
    known = names
    if known is None and is_by_name(own["bounds"]):
        named = [str(name) for name in own["bounds"] if name != OTHERS]
        known = (*named, *(f"column {place}" for place in range(len(named), d)))
        if len(known) > d:
            raise invalid("bounds", f"a mapping of {len(named)} names", f"bounds of {d} columns")
    bounds = ColumnBounds.of(own["bounds"], d, own.get("numeric"), known)
    own["bounds"] = bounds
    if own.get("numeric") is not None:
        own["numeric"] = bounds.numeric
    return own


def _check_names(solver: str, arguments: Mapping[str, Any]) -> None:
    """Refuse options that the solver does not have, and a call without those that it needs."""
    requirements = {entry.name: entry.default is entry.empty for entry in keywords(solvers.settings_class(solver))}
    for name in arguments:
        if name not in requirements:
            near = difflib.get_close_matches(name, requirements, 1)
            hint = f"Did you mean {near[0]!r}?" if near else f"It takes {', '.join(requirements)}."
            raise invalid(name, arguments[name], f"left out for {solver}", hint)
    for name, is_needed in requirements.items():
        if is_needed and name not in arguments and name != "epsilon":
            text = solvers.settings_class(solver).__dataclass_fields__[name].metadata["text"]
            raise invalid(name, None, f"given for {solver}", text)
