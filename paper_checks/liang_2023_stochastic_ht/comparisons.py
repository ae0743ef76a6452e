"""Figures 1 and 2 and the sentences on them and on Tables 4 and 5, judged from the shared runs of real_data.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from paper_checks.charts import Chart, course, intervals, level
from paper_checks.curves import PUBLISHED, TIGHT, Array, paired
from paper_checks.findings import Comparison, Finding
from paper_checks.liang_2023_stochastic_ht import real_data
from paper_checks.liang_2023_stochastic_ht.problems import COMPARED, GD, RCV1, SCSG, SCSG_PLAIN, SGD
from paper_checks.shared import Shared

_NOISES = (PUBLISHED, TIGHT)
_AXES = {"epochs": 0, "thresholdings": 1}


# --- rankings --------------------------------------------------------------------------------------------------------


def lowest(shared: Shared, data: list[str], best: str, rivals: list[str], noises: list[str]) -> Finding:
    """Whether ``best`` has the lowest held-out loss, at the budgets of the figures."""
    pairs = []
    for name in data:
        for noise in noises:
            own = real_data.private(shared, name, best, noise)
            for rival in rivals:
                other = real_data.private(shared, name, rival, noise)
                for epsilon in COMPARED:
                    key = f"{epsilon:g}"
                    label = f"{name}, {noise}, claimed epsilon {key}: {best} (true {own[key]['true']:.2f}) against "
                    label += f"{rival} (true {other[key]['true']:.2f})"
                    pairs.append((label, np.array(own[key]["losses"]), np.array(other[key]["losses"])))
    return paired(pairs)


def without_privacy(shared: Shared, best: str, rival: str, passes: list[float], margin: float = 0.0) -> Finding:
    """Whether ``best`` has the lower objective after as many passes over RCV1, without noise.

    ``margin`` is added to the objective of ``best``, and is 0 but for a planted fault.
    """
    own, other = (real_data.open_fits(shared, RCV1, method)["curves"] for method in (best, rival))
    pairs = [
        (f"objective after {at:g} passes: {best} against {rival}", _values(own, 0, at) + margin, _values(other, 0, at))
        for at in passes
    ]
    courses = [(best, own), (rival, other)]
    drawn = tuple(course(name, _points(runs, 0)) for name, runs in courses)
    chart = Chart("without privacy", "epochs so far", "objective", drawn, note=intervals(len(own)))
    return replace(_with_courses(paired(pairs), courses, 0), charts=(chart,))


# --- Figures 1 and 2 -------------------------------------------------------------------------------------------------


def figure(
    shared: Shared, data: str, epsilon: float, axis: str, at: float, methods: list[str], rival: str, margin: float = 0.0
) -> Finding:
    """Whether each method has a lower objective than ``rival`` after ``at`` epochs or thresholdings.

    ``margin`` is added to the objective of the methods, and is 0 but for a planted fault.
    """
    place = _AXES[axis]
    pairs, courses, charts = [], [], []
    for noise in _NOISES:
        curves = {name: _curves(shared, data, name, noise, epsilon) for name in (*methods, rival)}
        true = {name: _true(shared, data, name, noise, epsilon) for name in curves}
        charts.append(_chart(shared, data, noise, axis, at, curves, true))
        courses += [(f"{noise}, {name} (true epsilon {true[name]:.2f})", found) for name, found in curves.items()]
        pairs += [
            (f"{noise}: objective after {at:g} {axis}, {name} against {rival}",
             _values(curves[name], place, at) + margin, _values(curves[rival], place, at))
            for name in methods
        ]  # fmt: skip
    return replace(_with_courses(paired(pairs), courses, place), charts=tuple(charts))


def _chart(
    shared: Shared, data: str, noise: str, axis: str, at: float, curves: dict[str, Any], true: dict[str, float]
) -> Chart:
    """The objective of all methods along the run. Thresholdings are far apart, so that their axis is logarithmic."""
    place = _AXES[axis]
    drawn = [course(name, _points(runs, place), start=float(place)) for name, runs in curves.items()]
    base = float(np.mean([run[-1][2] for run in real_data.open_fits(shared, data, SCSG_PLAIN)["curves"]]))
    drawn.append(level(f"{SCSG_PLAIN} without privacy, at its end", [x for one in drawn for x in one.xs], base))
    budgets = ", ".join(f"{name} {value:.3g}" for name, value in true.items())
    rule = (f"{at:g} {axis}", at) if axis == "epochs" else None
    note = f"{intervals(len(next(iter(curves.values()))))} True epsilon: {budgets}."
    return Chart(
        noise, f"{axis} so far", "objective", tuple(drawn), log_x=place == 1, rule=rule, note=note, shared=True
    )


def _points(runs: Any, place: int) -> list[list[tuple[float, float]]]:
    """Of every run the points (epochs or thresholdings, objective)."""
    return [[(point[place], point[2]) for point in run] for run in runs]


def fewer_epochs(shared: Shared, data: list[str], factor: float, share: float) -> Finding:
    """Whether both stochastic methods need fewer epochs than DP-GD-HT, by a factor, to come near its best objective.

    Near is where all but ``share`` of the fall of DP-GD-HT's curve is done; whoever never comes there needs infinitely
    many. Near their own best would show nothing: their runs end after 21 epochs.
    """
    pairs = []
    for name in data:
        for noise in _NOISES:
            for epsilon in COMPARED:
                slow = _curves(shared, name, GD, noise, epsilon)
                levels = [_near(curve, share) for curve in slow]
                for method in (SGD, SCSG):
                    fast = _curves(shared, name, method, noise, epsilon)
                    label = f"{name}, {noise}, epsilon {epsilon:g}: {factor:g} times {method}'s epochs against {GD}'s"
                    pairs.append((label, factor * _epochs(fast, levels), _epochs(slow, levels)))
    return paired(pairs)


def _near(curve: Sequence[Sequence[float]], share: float) -> float:
    start, least = curve[0][2], min(point[2] for point in curve)
    return least + share * (start - least)


def _epochs(curves: Sequence[Sequence[Sequence[float]]], levels: Sequence[float]) -> Array:
    """The first epoch at which each curve is at its level."""
    return np.array([
        next((point[0] for point in curve if point[2] <= level), np.inf)
        for curve, level in zip(curves, levels, strict=True)
    ])  # fmt: skip


def _curves(shared: Shared, data: str, method: str, noise: str, epsilon: float) -> Any:
    return real_data.private(shared, data, method, noise)[f"{epsilon:g}"]["curves"]


def _true(shared: Shared, data: str, method: str, noise: str, epsilon: float) -> float:
    return float(real_data.private(shared, data, method, noise)[f"{epsilon:g}"]["true"])


def _values(curves: Any, place: int, at: float) -> Array:
    """The objective of every curve there, on straight lines between its points."""
    return np.array([np.interp(at, [p[place] for p in curve], [p[2] for p in curve]) for curve in curves])


def _with_courses(found: Finding, courses: Sequence[tuple[str, Any]], place: int) -> Finding:
    """The finding with a few points of every mean curve."""
    rows = []
    for name, curves in courses:
        last = min(curve[-1][place] for curve in curves)
        shown = sorted({*(at for at in (5.0, 10.0, 20.0, 50.0) if at < last), last})
        means = ", ".join(f"{at:g}: {_values(curves, place, at).mean():.3f}" for at in shown)
        rows.append(Comparison(f"{name}: mean objective", "", means, True))
    return replace(found, rows=(*found.rows, *rows))
