"""Charts: curves of our own runs, as data that a report draws. No curve is read off a figure of a paper.

The papers' figures have no numbers in the text. Where a paper prints numbers that belong on a chart, such as the cells
of a table, they are a curve of kind "printed": marks without a line between them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from paper_checks.tables import Table

Array = NDArray[np.float64]
# Two-sided confidence of the intervals that charts show.
LEVEL = 0.95
# A line through measured points; points alone; a line to compare with; numbers that the paper prints.
LINE, POINTS, REFERENCE, PRINTED = "line", "points", "reference", "printed"
KINDS = (LINE, POINTS, REFERENCE, PRINTED)
# Methods without noise of figures and tables that have private ones too.
OPEN = ("IGHT", "LASSO")


@dataclass(frozen=True)
class Curve:
    """One method on a chart; ``lows`` and ``highs`` are the ends of an interval at every point, or empty."""

    name: str
    xs: tuple[float, ...]
    ys: tuple[float, ...]
    lows: tuple[float, ...] = ()
    highs: tuple[float, ...] = ()
    kind: str = LINE

    def __post_init__(self) -> None:
        bars = len(self.lows)
        if len(self.ys) != len(self.xs) or bars != len(self.highs) or bars not in (0, len(self.xs)):
            raise ValueError(f"curve {self.name!r}: xs, ys, lows and highs must be of one length; lows may be empty.")
        if self.kind not in KINDS:
            raise ValueError(f"kind={self.kind!r}: must be one of {', '.join(KINDS)}.")


@dataclass(frozen=True)
class Chart:
    """One panel.

    Attributes
    ----------
    title, x_label, y_label, note : str
        Words around the panel.
    curves : tuple of Curve
        A name has one colour in all panels of a finding.
    log_x, log_y : bool
        Whether an axis is logarithmic.
    rule : tuple of (str, float), or None
        A place on the x axis that the paper names, such as a number of epochs, with its words.
    shared : bool
        Whether the panel has the same axes as the other panels of the finding that are so marked.
    """

    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    log_x: bool = False
    log_y: bool = False
    rule: tuple[str, float] | None = None
    note: str = ""
    shared: bool = False


# --- curves from repetitions -----------------------------------------------------------------------------------------


def mean_curve(name: str, xs: Sequence[float], columns: Sequence[Array] | Array, kind: str = LINE) -> Curve:
    """Means and their intervals by Student's t; ``columns`` has the values of all repetitions for every place.

    A reference is a level to compare with and has no interval, and one repetition gives none.
    """
    values = [np.asarray(column, dtype=float) for column in columns]
    mean = _floats(column.mean() for column in values)
    if kind == REFERENCE or min(map(len, values)) < 2:
        return Curve(name, _floats(xs), mean, kind=kind)
    half = [_half_width(column) for column in values]
    lows, highs = (_floats(m + sign * h for m, h in zip(mean, half, strict=True)) for sign in (-1, 1))
    return Curve(name, _floats(xs), mean, lows, highs, kind)


def geometric_curve(name: str, xs: Sequence[float], columns: Sequence[Array] | Array) -> Curve:
    """Points at the geometric means of the columns, with the interval of the mean logarithm."""
    found = mean_curve(name, xs, [np.log(np.asarray(column, dtype=float)) for column in columns], POINTS)
    ys, lows, highs = (_floats(map(math.exp, part)) for part in (found.ys, found.lows, found.highs))
    return Curve(name, found.xs, ys, lows, highs, POINTS)


def course(
    name: str,
    runs: Sequence[Sequence[tuple[float, float]]],
    kind: str = LINE,
    start: float = 0.0,
    most: int = 24,
) -> Curve:
    """The mean of several runs, each a list of points (x, y), at the places of the first one, from ``start`` on.

    Of the places at most ``most`` are kept: on a small picture more would not be seen. Runs are read on straight lines
    between their points, up to where the first of them ends.
    """
    end = min(run[-1][0] for run in runs)
    places = [x for x, _ in runs[0] if start <= x <= end]
    places = [places[k] for k in sorted({round(k) for k in np.linspace(0, len(places) - 1, most)})]
    values = [np.interp(places, [x for x, _ in run], [y for _, y in run]) for run in runs]
    return mean_curve(name, places, np.array(values).T, kind)


def level(name: str, xs: Iterable[float], value: float) -> Curve:
    """A reference that is the same everywhere between the ends of ``xs``."""
    places = list(xs)
    return Curve(name, (min(places), max(places)), (value, value), kind=REFERENCE)


def printed(table: Table, names: Iterable[str], xs: Sequence[float], y_label: str) -> Chart:
    """A panel with the printed cells of a table and their deviations."""
    curves = []
    for name in names:
        means = np.array(table.mean[name][: len(xs)])
        spread = np.array(table.deviation.get(name, [0.0] * len(means))[: len(means)])
        lows, highs = _floats(means - spread), _floats(means + spread)
        curves.append(Curve(shown_name(name), _floats(xs), _floats(means), lows, highs, PRINTED))
    note = "The cells of its table, with the printed deviations."
    return Chart("printed in the paper", "epsilon, as claimed", y_label, tuple(curves), note=note, shared=True)


def shown_name(name: str) -> str:
    """The name of a method on a chart, which says so where it has no noise."""
    return f"{name}, without privacy" if name in OPEN else name


def alike(panels: Sequence[Chart], log: bool = True) -> tuple[Chart, ...]:
    """The panels with the same axes, logarithmic if ``log`` and all values are positive and differ by a factor of 5."""
    values = [y for panel in panels for curve in panel.curves for y in curve.ys if math.isfinite(y)]
    log_y = log and bool(values) and min(values) > 0 and max(values) > 5 * min(values)
    return tuple(replace(panel, log_y=log_y, shared=True) for panel in panels)


def within(panel: Chart, least: float, most: float) -> Chart:
    """The panel with intervals that end at the least and the largest possible value."""
    curves = tuple(
        replace(
            curve,
            lows=tuple(max(low, least) for low in curve.lows),
            highs=tuple(min(high, most) for high in curve.highs),
        )
        for curve in panel.curves
    )
    return replace(panel, curves=curves)


def intervals(repetitions: int) -> str:
    """What bars and bands are, in words."""
    if repetitions < 2:
        return "One run: no interval."
    return f"Means of {repetitions} runs with {LEVEL:.0%} intervals (Student's t)."


def _half_width(values: Array) -> float:
    quantile = float(stats.t.ppf((1 + LEVEL) / 2, len(values) - 1))
    return quantile * float(values.std(ddof=1)) / math.sqrt(len(values))


def _floats(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


# --- records ---------------------------------------------------------------------------------------------------------


def record(chart: Chart) -> dict[str, Any]:
    """The chart for JSON, small: values in four significant digits, places in six; infinities and NaN as strings."""
    curves = [
        {"name": curve.name, "kind": curve.kind, "xs": [_number(value, 6) for value in curve.xs]}
        | {key: [_number(value) for value in getattr(curve, key)] for key in ("ys", "lows", "highs")}
        for curve in chart.curves
    ]
    words = {key: getattr(chart, key) for key in ("title", "x_label", "y_label", "log_x", "log_y", "note", "shared")}
    rule = None if chart.rule is None else [chart.rule[0], _number(chart.rule[1], 6)]
    return words | {"rule": rule, "curves": curves}


def of_record(entry: Mapping[str, Any]) -> Chart:
    """The chart of a record."""
    curves = tuple(
        Curve(
            one["name"],
            _floats(one["xs"]),
            _floats(one["ys"]),
            _floats(one["lows"]),
            _floats(one["highs"]),
            one["kind"],
        )
        for one in entry["curves"]
    )
    rule = None if entry["rule"] is None else (str(entry["rule"][0]), float(entry["rule"][1]))
    return Chart(**{**entry, "curves": curves, "rule": rule})


def _number(value: float, digits: int = 4) -> float | str:
    short = float(f"{value:.{digits}g}")
    # The largest numbers would be rounded up to infinity.
    return short if math.isfinite(short) else value if math.isfinite(value) else str(value)
