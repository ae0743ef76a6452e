"""Figure 2 of Wang and Gu 2020: relative error against epsilon on the paper's synthetic data, judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from paper_checks.columns import shared_figure
from paper_checks.curves import PUBLISHED, STUDENT, TIGHT, Figure, measure, order, with_charged
from paper_checks.findings import Comparison, Finding, readings
from paper_checks.seeds import Rng
from paper_checks.shared import Shared
from paper_checks.wang_gu_2020_kt.methods import (
    CLIPPED,
    GRID,
    NONE,
    PLAIN,
    RULE,
    SMALL,
    SOUND,
    Size,
    maker,
    methods,
    relative_error,
)

_BASELINE_SETS = 2  # data sets for the error without privacy, at the large size
FORMS = {PUBLISHED: [GRID, RULE, NONE], TIGHT: [SOUND]}
RIVALS = {"Frank-Wolfe": [CLIPPED, PLAIN], "Two stage": ["Two stage"], "DP-IGHT": ["DP-IGHT"]}


def figure_2(shared: Shared, task: str, budgets: list[float], repetitions: int) -> Figure:
    """All methods at n = 800, d = 1000; the baselines for linear regression only, as in the paper."""
    return shared_figure(
        shared, f"figure 2 {task}", methods(task, SMALL), budgets, maker(task, SMALL), relative_error, repetitions
    )


def lowest(shared: Shared, task: str, budgets: list[float], best: str, repetitions: int) -> Finding:
    """Whether DPSL-KT has the lowest error of the private methods at every epsilon."""
    figure = figure_2(shared, task, budgets, repetitions)
    if best == "DPSL-KT":
        found = order(figure, best, RIVALS if task == "regression" else {"DP-IGHT": ["DP-IGHT"]}, forms=FORMS)
    else:
        # For a planted fault, under a single reading.
        rivals = {"Frank-Wolfe": [CLIPPED]} if task == "regression" else {"IGHT": ["IGHT"]}
        found = order(figure, best, rivals, noises=(TIGHT,))
    return with_charged(replace(found, charts=figure.charts(both=RIVALS["Two stage"])), figure)


def large(rng: Rng, task: str, budgets: list[float], best: str, repetitions: int, size: list[int]) -> Finding:
    """The same at five times the size, by Student's tests: fewer data sets, and one for the choice of settings."""
    shape = Size(*size)
    every = {method.name: method for method in methods(task, shape)}
    plain = every.pop("IGHT")
    make = maker(task, shape)
    figure = measure(list(every.values()), budgets, make, relative_error, rng, repetitions, tuning=1)
    # Without noise there is one error for all epsilons.
    alone = measure([plain], budgets[:1], make, relative_error, rng, _BASELINE_SETS, tuning=1).means(TIGHT, "IGHT")[0]
    rivals = RIVALS if task == "regression" else {"DP-IGHT": ["DP-IGHT"]}
    if best == "DPSL-KT":
        found = order(figure, best, rivals, forms=FORMS, test=STUDENT)
    else:
        found = order(figure, best, {"DPSL-KT": [SOUND]}, noises=(TIGHT,), test=STUDENT)
    words = f"{found.computed}; without privacy {alone:.3f} (mean of {_BASELINE_SETS} data sets)"
    drawn = Figure(budgets, {**figure.errors, (TIGHT, "IGHT"): np.full((1, len(budgets)), alone)}, figure.chosen)
    charts = drawn.charts(both=RIVALS["Two stage"])
    return with_charged(Finding(found.verdict, words, found.rows, charts=charts), figure)


def near(
    shared: Shared, budgets: list[float], factor: float, repetitions: int, forms: Sequence[str] = FORMS[PUBLISHED]
) -> Finding:
    """Whether a reading of DPSL-KT with its published noise is close to IGHT at every epsilon."""
    figure = figure_2(shared, "regression", budgets, repetitions)
    least = figure.means(TIGHT, "IGHT")
    rows = []
    for form in forms:
        ratios = [own / base for own, base in zip(figure.means(PUBLISHED, form), least, strict=True)]
        shown = ", ".join(f"{ratio:.2g}" for ratio in ratios)
        rows.append((f"{form}: mean error over that of IGHT", f"<= {factor:g}", shown, max(ratios) <= factor))
    words = "; ".join(f"{row[0].split(':')[0]}: {row[2]} times the error of IGHT" for row in rows)
    return replace(readings(rows, words, "not reached here"), charts=figure.charts(both=RIVALS["Two stage"]))


def recovers(shared: Shared, epsilon: float, level: float, repetitions: int) -> Finding:
    """Whether DPSL-KT is below ``level`` at the smallest epsilon while every other method is above it."""
    figure = figure_2(shared, "regression", [epsilon], repetitions)
    # The others as the papers set them: their published noise, where there is one.
    others = {name: figure.means(PUBLISHED, name)[0] for curves in RIVALS.values() for name in curves}
    fail = min(others.values()) > level
    rows: list[tuple[str, Any, Any, bool]] = []
    for form in FORMS[PUBLISHED]:
        own = figure.means(PUBLISHED, form)[0]
        rows.append((f"{form}: mean relative error", f"<= {level:g}", own, own <= level and fail))
    shown = ", ".join(f"{name} {value:.2f}" for name, value in others.items())
    words = "; ".join(f"{row[0].split(':')[0]}: {row[2]:.2f}" for row in rows) + f" (others: {shown})"
    found = readings(rows, words, "not reached here")
    extra = tuple(
        Comparison(f"{name}: mean relative error", f"> {level:g}", v, v > level) for name, v in others.items()
    )
    return Finding(found.verdict, found.computed, (*found.rows, *extra))
