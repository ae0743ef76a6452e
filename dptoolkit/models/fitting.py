"""One private fit of a model: labels, route, plan, budget, solver."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit import marks, progress, solvers
from dptoolkit._validate import invalid, warn
from dptoolkit.accounting import Ledger
from dptoolkit.data import Rows, check_rows
from dptoolkit.data.column_bounds import ColumnBounds, is_by_name
from dptoolkit.models import routes
from dptoolkit.models.joint import JointPlan
from dptoolkit.models.model import Model
from dptoolkit.models.notes import CLASSES_NOTE, UNITS_NOTE
from dptoolkit.models.planning import class_plan
from dptoolkit.models.routes import CLASSIFICATION
from dptoolkit.solvers import FitResult
from dptoolkit.solvers._pipeline_stages import Preparation
from dptoolkit.solvers.frame.fit import fit_guarantee, fit_stream, is_secure, noise_source, record, reserve, result_of
from dptoolkit.solvers.frame.secure import noise_kind
from dptoolkit.solvers.registry import SOLVERS
from dptoolkit.tables import column_names

# Labels that may be declared public by leaving out ``classes``: with more of them, or with fractions, y is more likely
# a measurement or the identity of a record, which would all be published.
MOST_CLASSES = 20
# Columns whose largest entries differ by more than this factor are on different scales.
_OTHER_SCALE = 10.0


class ClassesWarning(UserWarning):
    """The set of classes was read from the labels, and will be published with the model."""


class ClippingWarning(UserWarning):
    """Most labels, or values of a column, lie beyond the bounds that were declared, which may be in another unit."""


class ScalesWarning(UserWarning):
    """The columns of a dense table are on very different scales, which costs accuracy."""


def fit(
    X: Any,
    y: Any,
    *,
    task: str,
    solver: str | None = None,
    classes: Any = None,
    epsilon: float = 2.0,
    delta: float = 1e-5,
    adjacency: str = "replace-one",
    n_features: int | None = None,
    rng: Any = None,
    randomness: str | None = None,
    ledger: Ledger | None = None,
    feature_names: Any = None,
    verbose: Any = False,
    **options: Any,
) -> Model:
    """A private model of the rows X and their labels y.

    Parameters
    ----------
    X : array-like or sparse matrix of shape (n, d)
        One row per record.
    y : array-like of shape (n,)
        The labels: real numbers for regression; numbers or strings, at least two different ones, for classification.
    task : {"classification", "regression"}
        What is predicted.
    solver : str or None, default None
        The name of a solver, with dashes or underscores. None uses the best one that needs no tuning.
    classes : sequence of str or int, or None, default None
        The public set of labels; a label outside it is refused. None declares the set of labels in y public, with a
        warning that names them; fractions and more than 20 labels are then refused.
    epsilon : float, default 2.0
        The budget of the whole fit, for all classes together, at ``delta``.
    delta : float, default 1e-5
        The delta of the budget.
    adjacency : {"replace-one", "zero-out"}, default "replace-one"
        Which datasets are neighbours.
    n_features : int or None, default None
        The public number of features: a narrower X gets columns of zeros, a wider one is refused.
    rng : int, numpy.random.Generator or None, default None
        A seed, a Generator, or None for fresh entropy. Never publish a fit that was made with a seed.
    randomness : {"secure", "fast"} or None, default None
        The noise, as in every solver: "secure" resists attacks on the last digits of the model, and takes no ``rng``.
    ledger : Ledger or None, default None
        The ledger to charge before the data are used; it may refuse.
    feature_names : sequence of str or None, default None
        The names of the columns, which are kept with the model. None uses those of X if it is a table.
    verbose : bool or int, default False
        Whether to print the current step on stderr, and after the fit the outlook of the plan.
    **options : Any
        The solver's own arguments, such as bounds, row_norm, sparsity or label_bound; None stands for the default.
        ``bounds`` are public bounds of the columns of a table, in their units: (lower, upper), or a mapping from the
        name of a column to such a pair, in which "*" stands for all columns that are not named. Two labelled Series of
        pandas are read by their labels. Bounds up to a hundred times too wide cost little; beyond that the error rises.
        Columns whose bounds are not exactly 0 and 1 become ranks: ``numeric=()`` keeps pixels as they are.

    Privacy
    -------
    Everything is released by the solver's plan; fits of several classes are planned, and charged, together. Public: n,
    d, the names of columns, the classes, all options. Marked rows (``marks``) have a void guarantee. Warnings about
    classes, scales and clipped labels look at the data: they are for the person who holds the data, and no guarantee
    depends on them.
    """
    name, is_shown = routes.solver_name(task, solver), _is_verbose(verbose)
    # A table with bounds of its columns is read in blocks, and needs no copy (``Settings.reads_in_place``).
    copy = options.get("bounds") is None
    rows, targets, classes_of = checked_records(X, y, task, classes, n_features, copy=copy)
    n, d = rows.shape
    count = None if classes_of is None else len(classes_of)
    solver_name, times = routes.solver_for(name, count)
    budget = {"delta": delta, "adjacency": adjacency}
    names = names_of(X, feature_names, d)
    check_names_for_bounds(options.get("bounds"), X, names, d)
    arguments = routes.arguments(task, name, d, count, routes.declared_bounds(options, d, names or ())) | budget

    notes = caveats(task, name, rows, classes_of, classes, arguments.get("bounds"), names)
    warn_of_clipping(task, y, options.get("label_bound"))
    with _told(solver_name, n, d, is_shown):
        if times == 1:
            own = {"rng": rng, "randomness": randomness, "ledger": ledger}
            result = getattr(solvers, solver_name)(rows, targets, epsilon=epsilon, **own, **arguments)
            plan, guarantee, results = result.plan, result.guarantee, [result]
        else:
            plan = class_plan(solver_name, times, n, d, epsilon, arguments, noise_kind(randomness, rng))
            guarantee, results = _one_against_the_rest(plan, rows, targets, rng, ledger)
    if is_shown and plan.outlook is not None:
        print(plan.outlook, file=sys.stderr)
    coef = np.concatenate([np.atleast_2d(result.coef) for result in results])
    intercept = np.concatenate([np.atleast_1d(result.intercept) for result in results])
    how = tuple(prepared(result) for result in results)
    steps = max(steps_of(result) for result in results)
    model = Model(task, name, coef, intercept, plan, guarantee, steps, how, classes_of, names)
    return model.with_notes(*notes)


def checked_records(
    X: Any, y: Any, task: str, classes: Any, n_features: int | None, *, copy: bool = True
) -> tuple[Rows, Any, NDArray[Any] | None]:
    """(rows, targets, classes): for classification the targets are the numbers of the classes.

    ``copy`` is that of ``check_rows``.

    Privacy
    -------
    Nothing is released. Without ``classes`` the set of labels in y is declared public (``class_set``).
    """
    rows = check_rows(X, n_features, copy=copy)
    if task != CLASSIFICATION:
        return rows, y, None
    classes_of = class_set(y, classes)
    return rows, marks.like(y, codes(y, classes_of)), classes_of


def _is_verbose(verbose: Any) -> bool:
    if not isinstance(verbose, (bool, int, np.bool_, np.integer)):
        raise invalid("verbose", verbose, "True, False or a whole number", "True shows progress, False does not.")
    return bool(verbose) and sys.stderr is not None


@contextlib.contextmanager
def _told(solver_name: str, n: int, d: int, is_shown: bool) -> Iterator[None]:
    """Show the progress of a fit on stderr, its beginning and its end at once."""
    if not is_shown:
        yield
        return
    print(f"{solver_name}: {n:,} rows of {d:,} features", file=sys.stderr)
    start = time.monotonic()
    with progress.reported(solver_name):
        yield
    print(f"{solver_name}: fitted in {time.monotonic() - start:.3g} s", file=sys.stderr)


def names_of(X: Any, feature_names: Any, d: int) -> tuple[str, ...] | None:
    """The names of the d columns as they are kept with a model: those given, or those of the table X if it has d."""
    if feature_names is None:
        names = column_names(X)
        return names if names is not None and len(names) == d else None
    given = tuple(str(entry) for entry in feature_names)
    if len(given) != d:
        raise invalid("feature_names", f"{len(given)} names", f"{d} names, one for every column")
    return given


def check_names_for_bounds(bounds: Any, X: Any, names: tuple[str, ...] | None, d: int) -> None:
    """Refuse bounds by name for a table X whose own names cannot be used, and say why.

    Privacy
    -------
    Names of columns, d and the bounds are public.
    """
    if names is not None or not is_by_name(bounds):
        return
    own, listed = column_names(X), getattr(X, "columns", None)
    if own is not None:
        repair = f"X has names for {len(own)} of {d} columns, as n_features says: give feature_names for all of them."
    elif listed is not None and not callable(listed):
        repair = "The names of the columns of X are not all text: rename the columns, or give feature_names."
    else:
        return
    raise invalid("bounds", "a mapping", "(lower, upper) for an X without usable names", repair)


def caveats(
    task: str, solver: str, rows: Rows, classes_of: NDArray[Any] | None, classes: Any,
    bounds: ColumnBounds | None = None, names: tuple[str, ...] | None = None,
) -> tuple[str, ...]:  # fmt: skip
    """The notes that a guarantee carries about what was left undeclared, after warnings about the same.

    Labels that are read from y must be few: text or integers, at most MOST_CLASSES of them. A column of measurements or
    of identifiers would otherwise be published as classes, record by record.

    Privacy
    -------
    The notes depend on the arguments alone and on whether X is sparse. The warnings look at the data: they show the
    classes, which are about to be published, and no other value.
    """
    notes = []
    if classes_of is not None and classes is None:
        warn_of_classes(classes_of)
        notes.append(CLASSES_NOTE)
    if bounds is not None:
        warn_of_bounds(rows, bounds, names)
    elif not rows.is_sparse:
        warn_of_scales(rows)
        if task in SOLVERS[solver].unit_rows:
            notes.append(UNITS_NOTE)
    return tuple(notes)


def warn_of_classes(classes_of: NDArray[Any]) -> None:
    """Warn that these classes were read from the labels and will be published with the model."""
    warn(
        f"classes=None: the {len(classes_of)} classes {classes_of.tolist()!r} were read from y and will be published "
        "with the model. One record with a label of its own would change them, and no noise hides that. If these "
        "labels are public knowledge, declare them as classes.",
        ClassesWarning,
    )


def warn_of_scales(rows: Rows) -> None:
    """Warn if the largest entries of the columns of a dense table differ very much.

    Privacy
    -------
    Whether it warns depends on the data, so the warning is for the person who holds them. It shows no value.
    """
    largest = np.maximum(rows.matrix.max(axis=0), -rows.matrix.min(axis=0))
    largest = largest[largest > 0]
    if len(largest) < 2 or largest.max() / _OTHER_SCALE <= largest.min():
        return
    warn(
        f"X: its columns are on scales that differ by more than a factor of {_OTHER_SCALE:g}. One bound, and noise of "
        "one size, apply to all columns of a row, so columns in small units are lost beside those in large units. "
        "Declare bounds of the columns that are public knowledge, for example bounds=([0, 0], [120, 300]) for "
        "dp_pipeline, or use dptoolkit.estimators.ScaleToBounds(lower, upper).",
        ScalesWarning,
    )


def warn_of_bounds(rows: Rows, bounds: ColumnBounds, names: tuple[str, ...] | None) -> None:
    """Warn of columns most of whose values lie outside their bounds, which may be in another unit.

    Privacy
    -------
    Whether it warns, and of which columns, depends on the data, so the warning is for the person who holds them. It
    shows no value.
    """
    outside = bounds.outside(rows)
    places = np.flatnonzero(2 * outside > rows.shape[0]).tolist()
    if not places:
        return
    listed = ", ".join(f"column {j}" if names is None else repr(names[j]) for j in places[:5])
    warn(
        f"bounds: should hold most values of every column, in its unit. More than half of the values of {listed}"
        f"{', ...' if len(places) > 5 else ''} lie outside, and are clipped. Choose bounds without looking at the "
        "data.",
        ClippingWarning,
    )


def warn_of_clipping(task: str, y: Any, label_bound: Any) -> None:
    """Warn if most numbers to predict lie beyond their bound: all of them would be the bound, as far as a fit can see.

    Privacy
    -------
    Whether it warns depends on the data, so the warning is for the person who holds them. It shows no label.
    """
    if task == CLASSIFICATION or not isinstance(label_bound, (int, float, np.number)):
        return
    try:
        labels = np.asarray(marks.plain(y))
    except ValueError:
        return  # The fit refuses what is no array.
    if labels.dtype.kind not in "biuf":
        return
    if 2 * np.count_nonzero(np.abs(labels.astype(np.float64)) > float(label_bound)) <= labels.size:
        return
    warn(
        f"label_bound={float(label_bound):g}: should be as large as most labels can be, in their unit. More than half "
        "of them lie beyond it, and are clipped to it. Choose it without looking at the data.",
        ClippingWarning,
    )


def class_set(y: Any, classes: Any) -> NDArray[Any]:
    """The sorted classes, at least two: those given, or those in y, which must be integers or text, and few.

    Parameters
    ----------
    y : (n,) array
        The labels; not looked at where ``classes`` are given.
    classes : sequence or None
        The public labels: numbers or strings, any number of them.

    Privacy
    -------
    Without ``classes`` the set of labels in y is declared public: one record can change it, and no noise hides that. So
    labels that look like measurements or identities are refused, and not shown.
    """
    name = "y" if classes is None else "classes"
    distinct = np.unique(label_array(name, y if classes is None else classes))
    if classes is None:
        _check_publishable(distinct)
    if len(distinct) < 2:
        repair = "Classification needs two. Give classes if one of them has no record."
        raise invalid("classes", f"{len(distinct)} class", "at least two classes", repair)
    return distinct


def _check_publishable(distinct: NDArray[Any]) -> None:
    """Refuse labels that were not declared and are no classes by the look of them."""
    if distinct.dtype.kind == "f" and not np.equal(distinct, np.floor(distinct)).all():
        repair = (
            "If these are classes, declare them, for example classes=[0.5, 1.5]. If y is a measurement, use regression."
        )
        raise invalid("y", "labels with fractions", "integers or text where classes=None", repair)
    if len(distinct) > MOST_CLASSES:
        repair = (
            "All of them would be published with the model. If they are public knowledge, declare them in classes; "
            "otherwise check that y is the column of labels."
        )
        raise invalid("y", "an array with more labels", f"of at most {MOST_CLASSES} labels where classes=None", repair)


def label_array(name: str, values: Any) -> NDArray[Any]:
    """Class labels as an array: all text, or all numbers, none of them missing.

    Privacy
    -------
    Each label is read on its own; none is shown.
    """
    values = list(values) if isinstance(values, (set, frozenset, range)) else values
    # NumPy would turn the numbers of a mixed list into text.
    labels = np.array(values, dtype=object) if isinstance(values, (list, tuple)) else np.asarray(values)
    if labels.ndim != 1 or labels.dtype.kind not in "biufUSO":
        raise invalid(name, f"an array of {labels.dtype}", "one label per row", "Labels are numbers or text.")
    if labels.dtype.kind == "O":
        labels = _of_one_type(name, labels)
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise invalid(name, "labels with NaN or infinity", "all text, or all finite numbers")
    return np.asarray(values) if isinstance(values, (list, tuple)) else labels


def _of_one_type(name: str, labels: NDArray[Any]) -> NDArray[Any]:
    """An array of objects that are all text, as it is, or all numbers, as an array of numbers."""
    kinds = {next((kind for kind in (str, bytes) if isinstance(entry, kind)), None) for entry in labels}
    if len(kinds) > 1:
        repair = "Write all labels in the same way, and give records without a label a label of their own."
        raise invalid(name, "labels of several types", "all text, or all numbers", repair)
    if None not in kinds:
        return labels
    numbers = np.array(labels.tolist())
    if numbers.ndim != 1 or numbers.dtype.kind not in "biuf":
        raise invalid(name, "labels that are neither text nor numbers", "all text, or all finite numbers")
    return numbers


def codes(y: Any, classes: NDArray[Any]) -> NDArray[np.float64]:
    """The number of each label's class.

    Privacy
    -------
    The classes are public. Each label is read on its own; one outside the classes is refused, and not shown.
    """
    labels = label_array("y", y)
    same_kind = (labels.dtype.kind in "USO") == (classes.dtype.kind in "USO")
    if labels.ndim != 1 or not same_kind or not np.isin(labels, classes).all():
        raise invalid(
            "y",
            "an array with other labels",
            f"labels of the {len(classes)} classes",
            "List all of them in classes.",
        )
    return np.searchsorted(classes, labels).astype(np.float64)


def _one_against_the_rest(
    plan: JointPlan, rows: Rows, labels: NDArray[np.float64], rng: Any, ledger: Ledger | None
) -> tuple[Any, list[FitResult]]:
    """One fit per class, all by the plan's part, each with noise of its own.

    The ledger is charged once for all, before the first.

    Privacy
    -------
    From one seed, equal plans would draw equal noise, which cancels between classes. So all fits draw from ONE
    Generator, which advances. What a fit would refuse is refused before the charge, and so is what it warns of where
    warnings are errors.
    """
    source, part, settings = noise_source(rng, ledger, is_secure=is_secure(plan)), plan.part, plan.settings
    own_rows = settings.validated_rows(rows)

    def targets(number: int) -> NDArray[np.float64]:
        return settings.labels((labels == number).astype(np.float64), own_rows.shape[0])

    targets(0)
    is_void = marks.is_marked(rows, labels)
    reservation = reserve(ledger, plan, is_void)
    results = []
    for number in progress.steps(plan.count, "class"):
        run = settings.bind(part, own_rows, targets(number))
        # Without a seed every fit has entropy of its own.
        own_source = noise_source(None if rng is None else source.generator, None)
        weights, history = run.fit(fit_stream(part, own_source))
        results.append(result_of(part, own_source, is_void, run, weights, history, diagnose=False))
    record(reservation)
    return fit_guarantee(plan, source, is_void), results


def prepared(result: FitResult) -> Preparation | None:
    """How rows are prepared; what was released about columns that are not kept is left out."""
    preparation = result.history.get("preparation")
    if preparation is None:
        return None
    return replace(preparation, means=np.where(preparation.weights > 0, preparation.means, 0.0))


def steps_of(result: FitResult) -> int:
    """The number of iterations of a fit; 1 where the solver has none of its own."""
    assert result.plan is not None
    return int(result.history.get("steps", result.plan.settings.iterations))
