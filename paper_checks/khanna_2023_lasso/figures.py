"""Figures 1 to 5 of Khanna, Lu and Raff 2023 and the sentences on them, from the runs of related.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paper_checks.curves import PUBLISHED, TIGHT, Figure, order, with_charged
from paper_checks.findings import Comparison, Finding, readings
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
    """What a figure shows, as an error: missed zeros, lost nonzeros, 1 - F1, or the test error."""
    if name == "error":
        return found.errors[key]
    chosen = found.weights[key] != 0
    wrong = chosen[..., TRUE:].sum(axis=-1)
    lost = TRUE - chosen[..., :TRUE].sum(axis=-1)
    if name == "zeros":
        return np.asarray(wrong, float)
    if name == "lost":
        return np.asarray(lost, float)
    return np.asarray(1 - 2 * (TRUE - lost) / (2 * (TRUE - lost) + wrong + lost))


def best_of(shared: Shared, name: str, best: str, budgets: list[float], repetitions: int) -> Finding:
    """Whether ``best`` is ahead of the others in Figure 1 (zeros), 3 (f1) or 4 (error)."""
    found = synthetic(shared, budgets, repetitions)
    return judge_best(found, name, best, budgets)


def judge_best(found: Outcome, name: str, best: str, budgets: list[float]) -> Finding:
    """The order on one metric; the figures' other methods against ``best``."""
    figure = Figure(budgets, {key: metric(found, name, key) for key in found.errors}, found.chosen)
    rivals = {rival: curves for rival, curves in _RIVALS.items() if best not in curves}
    if best != SPARSIFIER:
        rivals = {SPARSIFIER: [SPARSIFIER]}
    return with_charged(_settings_open(order(figure, best, rivals)), figure)


def _settings_open(found: Finding) -> Finding:
    """The settings of the other methods are not stated, and they decide: the opposite order is no verdict."""
    return replace(found, verdict="not reached here") if found.verdict == "order reversed" else found


def few_lost(shared: Shared, budgets: list[float], repetitions: int, tolerance: float) -> Finding:
    """Figure 2: how many of the eight true weights Sparsifier sets to zero."""
    return judge_lost(synthetic(shared, budgets, repetitions), budgets, tolerance)


def judge_lost(found: Outcome, budgets: list[float], tolerance: float) -> Finding:
    """Almost none is read as at most ``tolerance`` of eight on average; the other methods are shown."""
    rows: list[tuple[str, Any, Any, bool]] = []
    others: list[tuple[str, Any, Any, bool]] = []
    for key in found.errors:
        values = metric(found, "lost", key)
        for place, epsilon in enumerate(budgets):
            mean = float(values[:, place].mean())
            row = (
                f"{key[1]}, {key[0]}, epsilon {epsilon:g}: true weights lost",
                f"<= {tolerance:g}",
                mean,
                mean <= tolerance,
            )
            (rows if key[1] == SPARSIFIER else others).append(row)
    means = {noise: metric(found, "lost", (noise, SPARSIFIER)).mean(axis=0) for noise in (PUBLISHED, TIGHT)}
    words = "; ".join(f"{noise}: " + ", ".join(f"{v:.1f}" for v in values) for noise, values in means.items())
    shown = ", ".join(f"{epsilon:g}" for epsilon in budgets)
    verdict = readings(rows, f"of 8 true weights lost at epsilon {shown}: {words}", "not reached here")
    return Finding(verdict.verdict, verdict.computed, (*verdict.rows, *(Comparison(*row) for row in others)))


def on_kddcup(shared: Shared, best: str, budgets: list[float], repetitions: int) -> Finding:
    """Figure 5: whether Sparsifier is below private IGHT. Two stage is shown."""
    found = kddcup(shared, budgets, repetitions)
    return judge_kddcup(found, best, budgets)


def judge_kddcup(found: Outcome, best: str, budgets: list[float]) -> Finding:
    """The order of the two methods that have published noise."""
    figure = Figure(budgets, found.errors, found.chosen)
    other = ight(15) if best == SPARSIFIER else SPARSIFIER
    ranked = _settings_open(order(figure, best, {other: [other]}))
    rows = tuple(
        Comparison(f"Two stage on 8,000 rows, epsilon {epsilon:g}: test error", "performs well", mean, True)
        for epsilon, mean in zip(budgets, figure.means(TIGHT, stages(15)), strict=True)
    )
    return Finding(
        ranked.verdict, ranked.computed, (*ranked.rows, *rows), "A part of the data, and an encoding of ours."
    )
