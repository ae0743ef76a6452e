"""Tables 4 and 5 beside ours, from the shared runs of real_data.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from paper_checks.charts import Chart, Curve, alike, level, mean_curve, printed
from paper_checks.curves import CHARGED, PUBLISHED, TIGHT, Array
from paper_checks.findings import Comparison, Finding, readings
from paper_checks.liang_2023_stochastic_ht import real_data
from paper_checks.liang_2023_stochastic_ht.problems import (
    BUDGETS,
    FEW,
    GD,
    RCV1,
    REPETITIONS,
    SCSG,
    SCSG_PLAIN,
    SGD,
    TRIALS,
    XRAY,
)
from paper_checks.shared import Shared
from paper_checks.tables import Table

_PRIVATE, _NOISES = (GD, SGD, SCSG), (PUBLISHED, TIGHT)


def table_on_stand_in(shared: Shared, table: Table, factor: float) -> Finding:
    """Every cell of Table 4 beside ours; they agree if their ratios to the loss without privacy do, within a factor."""
    base = _open_losses(shared, RCV1).mean()
    printed_base = table.mean[SCSG_PLAIN][0]
    rows = [Comparison(f"{SCSG_PLAIN}, without privacy", printed_base, float(base), True)]
    found: dict[str, list[bool]] = {noise: [] for noise in _NOISES}
    for noise, method, column in _cells():
        printed = table.mean[method][column]
        cell = _cell(shared, RCV1, method, noise, column)
        ratio = np.mean(cell["losses"]) / base * printed_base / printed
        found[noise].append(bool(1 / factor <= ratio <= factor))
        rows.append(_row(noise, method, column, printed, cell, found[noise][-1]))
    each: list[tuple[str, Any, Any, bool]] = [
        (f"{noise}: cells within {factor:g} of the printed ratio", "15 of 15", f"{sum(marks)} of 15", all(marks))
        for noise, marks in found.items()
    ]
    words = "; ".join(f"{noise}: {sum(marks)} of 15 cells" for noise, marks in found.items())
    judged = readings(each, f"ratio to the loss without privacy within {factor:g}: {words}", "not reached here")
    shown = (*judged.rows, *rows, *_charged(shared, RCV1))
    return replace(judged, rows=shown, charts=_charts(shared, RCV1, table))


def table_on_same_rows(shared: Shared, table: Table, tolerance: float) -> Finding:
    """Every cell of Table 5 beside ours with the published noise: better, met or not reached here.

    ``tolerance`` counts standard errors of both means.
    """
    rows, lower, higher, means = [], 0, 0, []
    for noise, method, column in _cells():
        cell = _cell(shared, XRAY, method, noise, column)
        printed, losses = table.mean[method][column], np.array(cell["losses"])
        error = np.sqrt(table.deviation[method][column] ** 2 / table.facts["folds"] + losses.var(ddof=1) / len(losses))
        gap = losses.mean() - printed
        if noise == PUBLISHED:
            lower += int(gap < -tolerance * error)
            higher += int(gap > tolerance * error)
            means.append(float(losses.mean()))
        rows.append(_row(noise, method, column, printed, cell, bool(gap <= tolerance * error)))
    base = float(_open_losses(shared, XRAY).mean())
    rows.insert(0, Comparison(f"{SCSG_PLAIN}, without privacy", table.mean[SCSG_PLAIN][0], base, True))
    verdict = "not reached here" if higher else "better" if lower else "met"
    words = (f"published noise: {min(means):.3f} to {max(means):.3f}, lower than printed in {lower} of 15 cells, "
             f"higher in {higher}; {base:.3f} without privacy")  # fmt: skip
    return Finding(verdict, words, (*rows, *_charged(shared, XRAY)), charts=_charts(shared, XRAY, table))


def _charts(shared: Shared, data: str, table: Table) -> tuple[Chart, ...]:
    """Our losses against epsilon, and the printed cells of the same methods."""
    open_loss = level(f"{SCSG_PLAIN} without privacy", BUDGETS, float(_open_losses(shared, data).mean()))
    panels = []
    for noise in _NOISES:
        cells = {method: [_cell(shared, data, method, noise, k) for k in range(len(BUDGETS))] for method in _PRIVATE}
        drawn = [mean_curve(name, BUDGETS, [np.array(one["losses"]) for one in own]) for name, own in cells.items()]
        note = f"Means with 95% intervals (Student's t) of {FEW} or {REPETITIONS} fits."
        words = "epsilon, as claimed" if noise == PUBLISHED else "epsilon"
        panels.append(Chart(noise, words, "held-out loss", (*drawn, open_loss), note=note))
    return alike([*panels, printed(table, _PRIVATE, BUDGETS, "held-out loss")])


def _cells() -> list[tuple[str, str, int]]:
    return [(noise, method, column) for noise in _NOISES for method in _PRIVATE for column in range(len(BUDGETS))]


def _cell(shared: Shared, data: str, method: str, noise: str, column: int) -> Any:
    return real_data.private(shared, data, method, noise)[f"{BUDGETS[column]:g}"]


def _row(noise: str, method: str, column: int, printed: float, cell: Any, agrees: bool) -> Comparison:
    """A cell; with published noise as two numbers, of which pictures are made."""
    mean, spread = np.mean(cell["losses"]), np.std(cell["losses"], ddof=1)
    label = f"{method}, claimed epsilon {BUDGETS[column]:g}"
    if noise == PUBLISHED:
        return Comparison(f"{label}, true {cell['true']:.2f} (deviation {spread:.3f})", printed, float(mean), agrees)
    return Comparison(f"{label}, {noise}", printed, f"{mean:.4f} +- {spread:.4f}", agrees)


_NO_CHOICE = "not possible: other batches give away other things, so one event cannot stand for all settings"


def _charged(shared: Shared, data: str) -> list[Comparison]:
    """What a private choice of the setting costs; shown only, as the paper charges no choice."""
    rows = []
    for key, losses in real_data.charged(shared, data).items():
        free = np.mean(real_data.private(shared, data, GD, TIGHT)[key]["losses"])
        words = f"{np.mean(losses):.3g} against {free:.3g} with the choice not charged"
        rows.append(Comparison(f"{CHARGED}, {TIGHT}, epsilon {key}: {GD}", "", words, True))
    return rows + [Comparison(f"{CHARGED}: {name}", "", _NO_CHOICE, True) for name in (SGD, SCSG)]


def _open_losses(shared: Shared, data: str) -> Array:
    return np.array(real_data.open_fits(shared, data, SCSG_PLAIN)["losses"])


def noise_that_reaches(shared: Shared, epsilon: float, factors: list[float], gap: float) -> Finding:
    """The largest multiple of DP-SCSG-HT's published noise whose loss is within ``gap`` of that without privacy."""
    base = float(_open_losses(shared, RCV1).mean())
    found = real_data.scaled(shared, epsilon, factors)
    rows = []
    for factor in factors:
        one = found[f"{factor:g}"]
        label = f"{factor:g} times the published noise, true epsilon {one['true']:.3g}: loss"
        rows.append(Comparison(label, base + gap, one["loss"], one["loss"] <= base + gap))
    reached = [factor for factor, row in zip(factors, rows, strict=True) if row.agrees]
    first = f"{max(reached):g}" if reached else f"less than {min(factors):g}"
    epsilon_then = f", true epsilon {found[f'{max(reached):g}']['true']:.3g}" if reached else ""
    words = (f"loss {rows[0].computed:.3f} with the published noise; within {gap:g} of the {base:.3f} without privacy "
             f"at {first} times that noise{epsilon_then}")  # fmt: skip
    losses = Curve("DP-SCSG-HT", tuple(factors), tuple(found[f"{factor:g}"]["loss"] for factor in factors))
    open_loss = level(f"{SCSG_PLAIN} without privacy", factors, base)
    chart = Chart("loss against noise", "multiple of the published noise", "held-out loss", (losses, open_loss),
                  log_x=True, rule=("as published", 1.0), note=f"Means of {TRIALS} runs each.")  # fmt: skip
    return Finding("met" if 1.0 in reached else "not reached here", words, tuple(rows), charts=(chart,))
