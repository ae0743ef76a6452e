"""Figures 1 to 5 of Khanna, Lu and Raff 2023 and the sentences on them, from the runs of related.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paper_checks.charts import Chart
from paper_checks.curves import PUBLISHED, TIGHT, Figure, order, with_charged
from paper_checks.findings import Comparison, Finding, readings
from paper_checks.khanna_2023_lasso.plain import KDDCUP, SYNTHETIC, without_noise
from paper_checks.khanna_2023_lasso.problems import kddcup_parts, synthetic_rows
from paper_checks.khanna_2023_lasso.related import (
    SPARSIFIER,
    Outcome,
    ight,
    kddcup,
    stages,
    synthetic,
)
from paper_checks.shared import Shared

Array = NDArray[Any]
TRUE, FEATURES = 8, 100
_RIVALS = {"IGHT": [ight(8), ight(15)], "Two stage": [stages(8), stages(15)]}


def metric(found: Outcome, name: str, key: tuple[str, str]) -> Array:
    """What a figure shows, as an error: missed zeros, 1 - F1, or the test error."""
    if name == "error":
        return found.errors[key]
    chosen = found.weights[key] != 0
    wrong = chosen[..., TRUE:].sum(axis=-1)
    lost = _lost(found, key)
    if name == "zeros":
        return np.asarray(wrong, float)
    return np.asarray(1 - 2 * (TRUE - lost) / (2 * (TRUE - lost) + wrong + lost))


def _lost(found: Outcome, key: tuple[str, str], first: int = 0) -> Array:
    """How many of the true weights are zero."""
    chosen = found.weights[key][..., first : first + TRUE] != 0
    return np.asarray(TRUE - chosen.sum(axis=-1), float)


def best_of(shared: Shared, name: str, best: str, budgets: list[float], repetitions: int) -> Finding:
    """Whether ``best`` is ahead of the others in Figure 1 (zeros), 3 (f1) or 4 (error)."""
    found = synthetic(shared, budgets, repetitions)
    charts = pictures(found, without_noise(shared, SYNTHETIC, synthetic_rows, repetitions), name, budgets)
    return replace(judge_best(found, name, best, budgets), charts=charts)


def judge_best(found: Outcome, name: str, best: str, budgets: list[float]) -> Finding:
    """The order on one metric; the figures' other methods against ``best``."""
    figure = Figure(budgets, {key: metric(found, name, key) for key in found.errors}, found.chosen)
    rivals = {rival: curves for rival, curves in _RIVALS.items() if best not in curves}
    if best != SPARSIFIER:
        rivals = {SPARSIFIER: [SPARSIFIER]}
    return with_charged(_settings_open(order(figure, best, rivals)), figure)


# How the figures show a metric: the words at the axis, the shown value for the error, and the largest possible one.
_SHOWN: dict[str, tuple[str, Callable[[Array], Array], float]] = {
    "zeros": (f"zeros found, of {FEATURES - TRUE}", lambda wrong: FEATURES - TRUE - wrong, FEATURES - TRUE),
    "lost": (f"true weights set to zero, of {TRUE}", lambda lost: lost, TRUE),
    "f1": ("F1 score of the support", lambda error: 1 - error, 1),
    "error": ("test error", lambda error: error, 1),
}


def pictures(found: Outcome, plain: Outcome, name: str, budgets: list[float]) -> tuple[Chart, ...]:
    """All methods on one metric, as the figure shows it."""
    words, shown, most = _SHOWN[name]
    values = {key: shown(metric(one, name, key)) for one in (plain, found) for key in one.errors}
    values = {key: value + np.zeros(len(budgets)) for key, value in values.items()}
    both = [reading for reading in _RIVALS["Two stage"] if (TIGHT, reading) in values]
    return Figure(budgets, values, found.chosen).charts(words, both=both, log=name == "error", most=most)


def _settings_open(found: Finding) -> Finding:
    """The settings of the other methods are not stated, and they decide: the opposite order is no verdict."""
    return replace(found, verdict="not reached here") if found.verdict == "order reversed" else found


def few_lost(shared: Shared, budgets: list[float], repetitions: int, tolerance: float, first: int = 0) -> Finding:
    """Figure 2: how many of the eight true weights Sparsifier sets to zero."""
    found = synthetic(shared, budgets, repetitions)
    charts = pictures(found, without_noise(shared, SYNTHETIC, synthetic_rows, repetitions), "lost", budgets)
    return replace(judge_lost(found, budgets, tolerance, first), charts=charts)


def judge_lost(found: Outcome, budgets: list[float], tolerance: float, first: int = 0) -> Finding:
    """Almost none is read as at most ``tolerance`` of eight on average; the other methods are shown.

    ``first`` is the place of the first true weight, and another one for a planted fault.
    """
    rows: list[tuple[str, Any, Any, bool]] = []
    others: list[tuple[str, Any, Any, bool]] = []
    for key in found.errors:
        values = _lost(found, key, first)
        for place, epsilon in enumerate(budgets):
            mean = float(values[:, place].mean())
            row = (
                f"{key[1]}, {key[0]}, epsilon {epsilon:g}: true weights lost",
                f"<= {tolerance:g}",
                mean,
                mean <= tolerance,
            )
            (rows if key[1] == SPARSIFIER else others).append(row)
    means = {noise: _lost(found, (noise, SPARSIFIER), first).mean(axis=0) for noise in (PUBLISHED, TIGHT)}
    words = "; ".join(f"{noise}: " + ", ".join(f"{v:.1f}" for v in values) for noise, values in means.items())
    shown = ", ".join(f"{epsilon:g}" for epsilon in budgets)
    verdict = readings(rows, f"of 8 true weights lost at epsilon {shown}: {words}", "not reached here")
    return replace(verdict, rows=(*verdict.rows, *(Comparison(*row) for row in others)))


def on_kddcup(shared: Shared, best: str, budgets: list[float], repetitions: int) -> Finding:
    """Figure 5: whether Sparsifier is below private IGHT. Two stage is shown."""
    found = kddcup(shared, budgets, repetitions)
    plain = without_noise(shared, KDDCUP, kddcup_parts(shared.data_home), repetitions)
    return replace(judge_kddcup(found, best, budgets), charts=pictures(found, plain, "error", budgets))


def judge_kddcup(found: Outcome, best: str, budgets: list[float]) -> Finding:
    """The order of the two methods that have published noise."""
    figure = Figure(budgets, found.errors, found.chosen)
    other = ight(15) if best == SPARSIFIER else SPARSIFIER
    ranked = _settings_open(order(figure, best, {other: [other]}))
    rows = tuple(
        Comparison(f"Two stage on 8,000 rows, epsilon {epsilon:g}: test error", "performs well", mean, True)
        for epsilon, mean in zip(budgets, figure.means(TIGHT, stages(15)), strict=True)
    )
    detail = "A part of the data, and an encoding of ours."
    return replace(ranked, rows=(*ranked.rows, *rows), detail=detail)
