"""Figure 1 of Wang and Gu 2019: relative error against epsilon on the paper's synthetic data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from paper_checks.columns import shared_figure
from paper_checks.curves import SIGN, STUDENT, TIGHT, Figure, close, measure, needed_budget, order, with_charged
from paper_checks.findings import Comparison, Finding
from paper_checks.seeds import Rng
from paper_checks.shared import Shared
from paper_checks.wang_gu_2019_ight.methods import CLIPPED, PLAIN, maker, methods, relative_error

_BASELINE_SETS = 2  # data sets for the error without privacy, at the large size
RIVALS = {"Frank-Wolfe": [CLIPPED, PLAIN], "Two stage": ["Two stage"]}


def figure_1(shared: Shared, task: str, budgets: list[float], repetitions: int, size: int = 1000) -> Figure:
    """All four methods with n = d = ``size``."""
    return shared_figure(
        shared, f"figure 1 {task} {size}", methods(task, size), budgets, maker(task, size), relative_error, repetitions
    )


def lowest(shared: Shared, task: str, budgets: list[float], best: str, repetitions: int, size: int = 1000) -> Finding:
    """Whether DP-IGHT has the lowest error of the private methods at every epsilon."""
    figure = figure_1(shared, task, budgets, repetitions, size)
    found = replace(_ranking(figure, best), charts=figure.charts(both=RIVALS["Two stage"]))
    return with_charged(found, figure)


def _ranking(figure: Figure, best: str, test: str = SIGN) -> Finding:
    """DP-IGHT against all rivals; another method, for a planted fault, against DP-IGHT under a single reading."""
    if best == "DP-IGHT":
        return order(figure, best, RIVALS, test=test)
    return order(figure, best, {"DP-IGHT": ["DP-IGHT"]}, noises=(TIGHT,), test=test)


def large(rng: Rng, task: str, budgets: list[float], best: str, repetitions: int, size: int) -> Finding:
    """The same at five times the size, by Student's tests: fewer data sets, and one for the choice of settings."""
    every = {method.name: method for method in methods(task, size)}
    plain, make = every.pop("IGHT"), maker(task, size)
    figure = measure(list(every.values()), budgets, make, relative_error, rng, repetitions, tuning=1)
    # Without noise there is one error for all epsilons.
    alone = measure([plain], budgets[:1], make, relative_error, rng, _BASELINE_SETS, tuning=1).means(TIGHT, "IGHT")[0]
    found = _ranking(figure, best, STUDENT)
    words = f"{found.computed}; without privacy {alone:.3f} (mean of {_BASELINE_SETS} data sets)"
    drawn = Figure(budgets, {**figure.errors, (TIGHT, "IGHT"): np.full((1, len(budgets)), alone)}, figure.chosen)
    charts = drawn.charts(both=RIVALS["Two stage"])
    return with_charged(Finding(found.verdict, words, found.rows, charts=charts), figure)


def near(
    shared: Shared, task: str, budgets: list[float], factor: float, repetitions: int, method: str = "DP-IGHT"
) -> Finding:
    """Whether DP-IGHT with the published noise is close to IGHT."""
    figure = figure_1(shared, task, budgets, repetitions)
    return replace(close(figure, method, "IGHT", factor), charts=figure.charts(both=RIVALS["Two stage"]))


def needed(shared: Shared, budgets: list[float], level: float, repetitions: int) -> Finding:
    """The smallest epsilon at which any private method has a relative error below ``level``."""
    figure = figure_1(shared, "regression", budgets, repetitions)
    found = needed_budget(figure, ["DP-IGHT", CLIPPED, PLAIN, "Two stage"], level)
    least = min(found.values())
    rows = tuple(Comparison(f"{name}: smallest epsilon below {level:g}", f"> {budgets[0]:g}", value, value > budgets[0])
                 for name, value in found.items())  # fmt: skip
    start = f"from epsilon {least:g} on" if least <= max(budgets) else "at no epsilon"
    words = f"relative error below {level:g} {start}, with tight noise"
    charts = figure.charts(both=RIVALS["Two stage"])
    return Finding("met" if least > budgets[0] else "not reached here", words, rows, charts=charts)
