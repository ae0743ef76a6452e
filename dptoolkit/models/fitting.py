"""One private fit of a model: labels, route, plan, budget, solver."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit import solvers
from dptoolkit._validate import invalid
from dptoolkit.accounting import Ledger
from dptoolkit.data import check_rows
from dptoolkit.models import routes
from dptoolkit.models.joint import JointPlan, joint_plan
from dptoolkit.models.model import Model
from dptoolkit.models.routes import CLASSIFICATION
from dptoolkit.solvers import FitResult
from dptoolkit.solvers.base import fit_guarantee, noise_source, reserve
from dptoolkit.solvers.pipeline import Preparation

# More labels than this are not taken for classes unless they are declared.
MOST_CLASSES = 20
CLASSES_NOTE = "the set of classes was read from the labels and is declared public; give classes to avoid that"


def fit(
    X: Any, y: Any, *, task: str, solver: str | None = None, classes: Any = None, epsilon: float = 2.0,
    delta: float = 1e-5, adjacency: str = "replace-one", n_features: int | None = None, rng: Any = None,
    ledger: Ledger | None = None, feature_names: Any = None, **options: Any,
) -> Model:
    """A private model of the rows X and their labels y.

    Parameters
    ----------
    X : (n, d) array or scipy.sparse matrix, one row a record.
    y : (n,) array: numbers for regression; numbers or strings, at least two different ones, for classification.
    task : "classification" or "regression".
    solver : the name of a solver, with dashes or underscores; by default the best one that needs no tuning.
    classes : the public set of labels; a label outside it is refused. None declares the set of labels in y public.
    epsilon : the budget of the whole fit, for all classes together, at ``delta``.
    delta : the budget of the whole fit.
    adjacency : which datasets are neighbours: "replace-one" or "zero-out".
    n_features : the public number of features; see the solvers.
    rng : fresh entropy, a seed or a Generator; see the solvers.
    ledger : refuses the fit, or is charged for it, before the data are used.
    feature_names : the names of the columns, which are kept with the model.
    options : the solver's own arguments, such as row_norm, sparsity or label_bound; None stands for its default.

    Privacy
    -------
    Everything is released by the solver's plan; fits of several classes are planned, and charged, together. Public: n,
    d, the classes, all options.
    """
    name = routes.solver_name(task, solver)
    rows = check_rows(X, n_features)
    labels = classes_of = None
    if task == CLASSIFICATION:
        classes_of = class_set(y, classes)
        labels = codes(y, classes_of)
    n, d = rows.shape
    count = None if classes_of is None else len(classes_of)
    runs, times = routes.solver_for(name, count)
    budget = {"delta": delta, "adjacency": adjacency}
    arguments = routes.arguments(task, name, d, count, options) | budget

    def plan_for(part: float) -> solvers.Plan:
        return solvers.plan(runs, n=n, d=d, epsilon=part, **arguments)

    targets = y if labels is None else labels
    if times == 1:
        result = getattr(solvers, runs)(rows.matrix, targets, epsilon=epsilon, rng=rng, ledger=ledger, **arguments)
        plan, guarantee, results = result.plan, result.guarantee, [result]
    else:
        plan = joint_plan(plan_for, times, epsilon, delta)
        guarantee, results = _one_against_the_rest(plan, runs, rows.matrix, targets, rng, ledger, arguments)
    coef = np.concatenate([np.atleast_2d(result.coef) for result in results])
    intercept = np.concatenate([np.atleast_1d(result.intercept) for result in results])
    how = tuple(prepared(result) for result in results)
    names = None if feature_names is None else tuple(str(entry) for entry in feature_names)
    steps = max(steps_of(result) for result in results)
    model = Model(task, name, coef, intercept, plan, guarantee, steps, how, classes_of, names)
    return model.with_notes(CLASSES_NOTE) if classes_of is not None and classes is None else model


def class_set(y: Any, classes: Any) -> NDArray[Any]:
    """The sorted classes, at least two: those given, or those in y.

    Labels that are read from y must be few: text or integers, at most MOST_CLASSES of them. A column of measurements or
    of identifiers would otherwise be published as classes, record by record.

    Privacy
    -------
    Without ``classes`` the set of labels in y is declared public: one record can change it, and no noise hides that.
    """
    labels = np.asarray(y if classes is None else classes)
    if labels.ndim != 1 or labels.dtype.kind not in "biufUSO":
        raise invalid("classes" if classes is not None else "y", f"an array of {labels.dtype}", "one label a row")
    try:
        distinct = np.unique(labels)
    except TypeError:
        name = "classes" if classes is not None else "y"
        raise invalid(name, "labels of several types", "all numbers or all strings", "Write them in one way.") from None
    if classes is None:
        _refuse_measurements(distinct)
    if len(distinct) < 2:
        repair = "A classifier needs two; give classes if one of them has no record here."
        raise invalid("classes", f"{len(distinct)} class", "at least two classes", repair)
    return distinct


def _refuse_measurements(distinct: NDArray[Any]) -> None:
    """Refuse labels that would be published as classes although they look like measurements or identifiers."""
    repair = "Labels would be published as classes: give classes to declare them, or choose the right labels."
    if distinct.dtype.kind == "f" and not np.array_equal(distinct, np.trunc(distinct)):
        raise invalid("y", "numbers that are not integers", "text or integers for classification", repair)
    if len(distinct) > MOST_CLASSES:
        words = f"more than {MOST_CLASSES} different labels"
        raise invalid("y", words, f"at most {MOST_CLASSES} classes that are not declared", repair)


def codes(y: Any, classes: NDArray[Any]) -> NDArray[np.float64]:
    """The number of each label's class.

    Privacy
    -------
    The classes are public. Each label is read on its own; one outside the classes is refused, and not shown.
    """
    labels = np.asarray(y)
    same_kind = (labels.dtype.kind in "USO") == (classes.dtype.kind in "USO")
    if labels.ndim != 1 or not same_kind or not np.isin(labels, classes).all():
        raise invalid("y", "an array with other labels", f"of the {len(classes)} classes", "Name all in classes.")
    return np.searchsorted(classes, labels).astype(np.float64)


def _one_against_the_rest(
    plan: JointPlan, runs: str, matrix: Any, labels: NDArray[np.float64], rng: Any, ledger: Ledger | None,
    arguments: Mapping[str, Any],
) -> tuple[Any, list[FitResult]]:  # fmt: skip
    """One fit a class, each with noise of its own; the ledger is charged once for all, before the first.

    Privacy
    -------
    From one seed, equal plans would draw equal noise, which cancels between classes. So all fits draw from ONE
    Generator, which advances.
    """
    source = noise_source(rng, ledger)
    reservation = reserve(ledger, plan)  # type: ignore[arg-type]
    generator = None if rng is None else source.generator
    epsilon, results = plan.part.settings.epsilon, []
    for number in range(plan.count):
        with warnings.catch_warnings():
            if number:
                # All fits have the same plan, so the warnings of the first one are enough.
                warnings.simplefilter("ignore")
            target = (labels == number).astype(np.float64)
            results.append(getattr(solvers, runs)(matrix, target, epsilon=epsilon, rng=generator, **arguments))
    if reservation is not None:
        reservation.confirm()
    return fit_guarantee(plan, source), results  # type: ignore[arg-type]


def prepared(result: FitResult) -> Preparation | None:
    """How rows are prepared; what was released about columns that are not kept is left out."""
    preparation = result.history.get("preparation")
    if preparation is None:
        return None
    return replace(preparation, means=np.where(preparation.weights > 0, preparation.means, 0.0))


def steps_of(result: FitResult) -> int:
    """The number of iterations of a fit; 1 where the solver has none of its own."""
    assert result.plan is not None
    settings = result.plan.settings
    own = getattr(settings, "steps", None) or getattr(settings, "epochs", None) or 1
    return int(result.history.get("steps", own))
