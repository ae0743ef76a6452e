"""What a fit gave: its weights, how its error falls with the budget, which features it found, how it converged."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dptoolkit._validate import invalid
from dptoolkit.plots.style import COLOURS, budgets, describe, grid

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dptoolkit.solvers.frame.fit import FitResult

# The number of weights that fit into one picture with their names.
_MOST_WEIGHTS = 25


def weights(result: Any, names: Sequence[str] | None = None) -> Figure:
    """The largest weights of a linear model, with the sign in colour.

    Parameters
    ----------
    result : FitResult, Model or object
        The fit, the model or the fitted estimator that holds the weights. Each of several classes gets a picture.
    names : sequence of str or None, default None
        The names of the features. None uses those of the model or the estimator.

    Returns
    -------
    Figure
        A matplotlib figure; ``plots.save`` writes it to a file.
    """
    model = getattr(result, "model_", result)
    if not hasattr(model, "coef"):
        raise invalid("result", type(result).__name__, "a FitResult, a Model or a fitted estimator", "Fit it first.")
    # An estimator's own coefficients may have been changed since the fit.
    coef = getattr(result, "coef_", model.coef)
    coef = np.atleast_2d(coef.toarray() if hasattr(coef, "toarray") else np.asarray(coef, dtype=float))
    known = getattr(model, "feature_names", None) if names is None else names
    if known is not None and len(known) != coef.shape[1]:
        raise invalid("names", f"{len(known)} names", f"{coef.shape[1]}, one for each feature")
    titles = _titles(model, len(coef))
    columns = min(len(coef), _MOST_COLUMNS)
    figure, panels = grid(math.ceil(len(coef) / columns), columns, "Weights of the model")
    for axes, row, title in zip(panels, coef, titles, strict=False):
        _bars(axes, row, known, title, _budget(model))
    for axes in panels[len(coef) :]:
        axes.set_visible(False)
    figure.subplots_adjust(left=0.25 / columns, right=0.97)
    return figure


# Pictures of classes beside each other.
_MOST_COLUMNS = 3


def _titles(model: Any, count: int) -> list[str]:
    """What each row of weights is for: its class, where the model has several."""
    classes = getattr(model, "classes", None)
    return [""] if count == 1 else [f"{label}: " for label in (range(count) if classes is None else classes.tolist())]


def _bars(axes: Any, coef: Any, names: Sequence[str] | None, title: str, detail: str) -> None:
    largest = np.argsort(-np.abs(coef), kind="stable")[:_MOST_WEIGHTS]
    largest = largest[coef[largest] != 0][::-1]
    count = int(np.count_nonzero(coef))
    describe(axes, f"{title or 'The '}{len(largest)} largest of {count:,} weights", detail, "weight", "")
    labels = [f"feature {j}" if names is None else str(names[j]) for j in largest]
    axes.barh(range(len(largest)), coef[largest], color=[COLOURS[0 if coef[j] > 0 else 1] for j in largest], height=0.6)
    # Names may repeat, and dollar signs in them are not mathematics.
    axes.set_yticks(range(len(largest)), [label.replace("$", r"\$") for label in labels])
    axes.tick_params(axis="y", labelsize=8)
    axes.grid(axis="y", visible=False)


def _budget(model: Any) -> str:
    """The solver, and what its guarantee says at the delta that was asked for."""
    if model.plan is None:
        return "not private"
    delta = model.guarantee.asked_delta
    nothing = "no noise" if math.isinf(model.plan.settings.epsilon) else "no guarantee"
    words = nothing if delta is None else f"epsilon {model.guarantee.epsilon(delta):.3g} at delta {delta:g}"
    return f"{model.plan.solver}, {words}"


def errors(
    epsilons: Sequence[float], series: Mapping[str, Any], *, chance: float | None = None,
    true_epsilons: Mapping[str, Sequence[float]] | None = None, title: str = "Error against epsilon",
    measure: str = "error",
) -> Figure:  # fmt: skip
    """Errors against the budget, with bands over repetitions; the first series is the thickest line.

    Parameters
    ----------
    epsilons : sequence of float
        The budgets.
    series : mapping of str to array-like
        The errors of each solver: one per budget, or a table with one row per repetition.
    chance : float or None, default None
        The error of a baseline that ignores the features.
    true_epsilons : mapping of str to sequence of float, or None, default None
        For solvers with published noise, the epsilon that each budget really costs. Their points are drawn there, with
        arrows from the claimed budgets.
    title : str, default "Error against epsilon"
        The title of the picture.
    measure : str, default "error"
        The name of the vertical axis.
    """
    figure, (axes,) = grid(1, 1, title)
    describe(axes, measure.capitalize(), "bands: twice the standard error of the mean", "true epsilon", measure)
    looks = {name: i % len(COLOURS) for i, name in enumerate(series)}
    budgets(axes, epsilons, series, looks, chance, true_epsilons)
    return figure


def support(truth: Any, results: Mapping[str, FitResult]) -> Figure:
    """Which of the true features each fit found, and how many of those that it kept are true.

    Parameters
    ----------
    truth : array-like of shape (d,)
        The true weights, some of them not zero.
    results : mapping of str to FitResult
        The fits to compare, by name.
    """
    real = np.asarray(truth) != 0
    if not real.any():
        raise invalid("truth", "no feature that is not zero", "the true weights, some of them not zero")
    figure, (axes,) = grid(1, 1, "Support recovery")
    describe(axes, f"{int(real.sum())} true features", "shares, 1 is best", "", "share")
    places = np.arange(len(results))
    for offset, name, colour in ((-0.2, "found among the true", 0), (0.2, "true among the kept", 2)):
        shares = [_share(real, np.asarray(r.coef) != 0, of_chosen=colour == 2) for r in results.values()]
        axes.bar(places + offset, shares, width=0.38, color=COLOURS[colour], label=name)
    axes.set_xticks(places, list(results))
    axes.set_xlim(-1, max(len(results), 2))
    axes.set_ylim(0, 1.05)
    axes.legend(frameon=False, fontsize=9)
    figure.subplots_adjust(right=0.97)
    return figure


def _share(truth: Any, support: Any, of_chosen: bool) -> float:
    hits = float(np.count_nonzero(truth & support))
    total = np.count_nonzero(support if of_chosen else truth)
    return hits / total if total else 0.0


def convergence(result: FitResult, objective: Callable[[Any], float], *, measure: str = "objective") -> Figure:
    """``objective(weights)`` at every iterate that the fit kept (``trace=True``).

    Parameters
    ----------
    result : FitResult
        A fit that was made with ``trace=True``.
    objective : callable
        The value to draw, from the weights of an iterate.
    measure : str, default "objective"
        The name of the vertical axis.

    Privacy
    -------
    The iterates are released, the objective is not: on private data this picture is NOT private. Use public rows.
    """
    iterates = result.history.get("iterates")
    if not iterates:
        raise invalid("result", "a fit without iterates", "one made with trace=True")
    # The iterates include an intercept's weight, where there is one, behind those of the features.
    last = max(int(max(places, default=0)) for _, places, _ in iterates)
    size = max(len(result.coef), last + 1)
    steps, values = [], []
    for step, places, entries in iterates:
        w = np.zeros(size)
        w[np.asarray(places, dtype=int)] = entries
        steps.append(step)
        values.append(float(objective(w)))
    figure, (axes,) = grid(1, 1, "Convergence")
    describe(axes, measure.capitalize(), "computed from the data: not private unless they are public", "step", measure)
    axes.plot(steps, values, color=COLOURS[0])
    figure.subplots_adjust(right=0.97)
    return figure
