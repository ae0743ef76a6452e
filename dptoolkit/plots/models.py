"""What a fit gave: its weights, how its error falls with the budget, which features it found, how it converged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dptoolkit._validate import invalid
from dptoolkit.plots.style import COLOURS, budgets, describe, grid

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dptoolkit.solvers.base import FitResult

# The number of weights that fit into one picture with their names.
_MOST_WEIGHTS = 25


def weights(result: FitResult, names: Sequence[str] | None = None) -> Figure:
    """The largest weights of a linear model, with the sign in colour; ``names`` are those of the features."""
    coef = np.asarray(result.coef)
    if coef.ndim != 1:
        raise invalid("result", f"coefficients of shape {coef.shape}", "a model with one weight a feature")
    if names is not None and len(names) != len(coef):
        raise invalid("names", f"{len(names)} names", f"{len(coef)}, one for each feature")
    largest = np.argsort(-np.abs(coef), kind="stable")[:_MOST_WEIGHTS]
    largest = largest[coef[largest] != 0][::-1]
    figure, (axes,) = grid(1, 1, "Weights of the model")
    solver = "not private" if result.plan is None else f"{result.plan.solver}, {_budget(result)}"
    count = int(np.count_nonzero(coef))
    describe(axes, f"The {len(largest)} largest of {count:,} weights", solver, "weight", "")
    labels = [f"feature {j}" if names is None else str(names[j]) for j in largest]
    axes.barh(labels, coef[largest], color=[COLOURS[0 if coef[j] > 0 else 1] for j in largest], height=0.6)
    axes.tick_params(axis="y", labelsize=8)
    axes.grid(axis="y", visible=False)
    figure.subplots_adjust(left=0.25, right=0.97)
    return figure


def _budget(result: FitResult) -> str:
    assert result.plan is not None and result.guarantee is not None
    delta = result.plan.settings.delta
    return f"epsilon {result.guarantee.epsilon(delta):.3g} at delta {delta:g}" if delta else "no noise"


def errors(
    epsilons: Sequence[float], series: Mapping[str, Any], *, chance: float | None = None,
    true_epsilons: Mapping[str, Sequence[float]] | None = None, title: str = "Error against epsilon",
    measure: str = "error",
) -> Figure:  # fmt: skip
    """Errors against the budget, with bands over repetitions; the first series is the thickest line.

    Parameters
    ----------
    epsilons : the budgets.
    series : for each solver its errors, one for each budget, or a table with one row a repetition.
    chance : the error of a guess that ignores the data.
    true_epsilons : for solvers with published noise, the epsilon that each budget really costs. Their points stand
        there, and arrows lead there from the budgets that are claimed.
    title : the title of the picture.
    measure : the name of the vertical axis.
    """
    figure, (axes,) = grid(1, 1, title)
    describe(axes, measure.capitalize(), "bands: twice the standard error of the mean", "true epsilon", measure)
    looks = {name: i % len(COLOURS) for i, name in enumerate(series)}
    budgets(axes, epsilons, series, looks, chance, true_epsilons)
    return figure


def support(truth: Any, results: Mapping[str, FitResult]) -> Figure:
    """Which of the true features each fit found, and how many of those that it kept are true."""
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
