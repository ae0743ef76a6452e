"""The tables of Liang et al. 2023 against themselves."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np

from paper_checks.family import RULE, decide, welch
from paper_checks.findings import Comparison, Finding, established, order_established, readings
from paper_checks.tables import Table

_PRIVATE = ("DP-GD-HT", "DP-SGD-HT", "DP-SCSG-HT")
# What the two values of a row are where a printed mean is compared with the next one.
_STEP = ("printed before", "printed after")
_DETAIL = "Unpaired tests on five folds; a paired test is not reported."


def ranking(table: Table, method: str, rivals: list[str]) -> Finding:
    """Whether printed means and deviations establish that ``method`` is below each rival."""
    rows = [row for rival in rivals for row in established(table, method, rival, table.facts["folds"])]
    return order_established(rows, _DETAIL)


def both_below(table: Table) -> Finding:
    """Whether both stochastic methods are below DP-GD-HT, with fewer epochs."""
    epochs = table.facts["epochs"]
    found = [row for method in _PRIVATE[1:] for row in established(table, method, "DP-GD-HT", table.facts["folds"])]
    ends = order_established(found, _DETAIL)
    fewer = all(epochs[method] < epochs["DP-GD-HT"] for method in _PRIVATE[1:])
    return Finding(
        ends.verdict if fewer else "inconsistent",
        f"{'fewer' if fewer else 'not fewer'} epochs; {ends.computed}",
        ends.rows,
        _DETAIL,
    )


def falling(table: Table, methods: list[str]) -> Finding:
    """Whether the printed means of each method fall with epsilon."""
    return _trend([table], methods)


def gap_shrinks(table: Table, second_table: Table, third_table: Table) -> Finding:
    """Whether the gap to the non-private baseline shrinks with epsilon in all three tables."""
    return _trend([table, second_table, third_table], list(_PRIVATE))


def _trend(tables: list[Table], methods: list[str]) -> Finding:
    """Kept if the fall from the first to the last column is established for all methods, reversed if a rise is."""
    ends, steps, places = [], [], []
    for table, method in product(tables, methods):
        cells = list(zip(table.mean[method], table.deviation[method], strict=True))
        folds = table.facts["folds"]
        ends.append(welch(cells[-1], cells[0], folds))
        for number in range(1, len(cells)):
            steps.append(welch(cells[number], cells[number - 1], folds))
            name = f"{table.id}: {method}, {table.columns[number - 1]} to {table.columns[number].split()[1]}"
            places.append((name, cells[number - 1][0], cells[number][0]))
    # Falls are asked for from end to end, and rises everywhere: two decisions share the item's part.
    fall, rise = decide(ends, parts=2), decide([*ends, *steps], parts=2)
    rows = tuple(
        Comparison(f"{name} ({test.effect})", before, after, not up)
        for (name, before, after), test, up in zip(places, steps, rise.higher[len(ends) :], strict=True)
    )
    falls = sum(after <= before for _, before, after in places)
    words = (f"{falls} of {len(rows)} steps do not rise; the fall from first to last column is established in "
             f"{sum(fall.lower)} of {len(ends)} cases, a rise in {sum(rise.higher)} ({RULE})")  # fmt: skip
    verdict = "order reversed" if any(rise.higher) else "order kept" if fall.kept else "tie"
    return Finding(verdict, words, rows, _DETAIL, _STEP)


def near_log_2(table: Table, tolerance: float) -> Finding:
    """How far the losses of Table 5 are from log 2, the loss of zero weights."""
    rows = []
    within = 0
    for method, means in table.mean.items():
        for name, mean, deviation in zip(table.columns, means, table.deviation[method], strict=True):
            rows.append(Comparison(f"{method}, {name}", mean, math.log(2), abs(mean - math.log(2)) <= tolerance))
            within += abs(mean - math.log(2)) <= deviation
    near = sum(row.agrees for row in rows)
    words = f"{near} of {len(rows)} losses within {tolerance:g} of log 2, {within} within one printed deviation"
    return Finding("tie" if near == len(rows) else "met", words, tuple(rows), marks=("printed", "log 2"))


def caption(table: Table, method: str, exceptions: list[str]) -> Finding:
    """Whether the method has the lowest printed mean of the private ones in all columns but the named ones."""
    rows = []
    for number, name in enumerate(table.columns):
        cells = {private: table.mean[private][number] for private in _PRIVATE}
        best = min(cells, key=cells.__getitem__)
        rows.append(
            Comparison(
                f"{name}: {method} against {best}", cells[method], cells[best], best == method or name in exceptions
            )
        )
    wrong = [row.label.split(":")[0] for row in rows if not row.agrees]
    words = f"not the lowest at {', '.join(wrong)}" if wrong else "lowest where it is said to be"
    marks = ("its printed mean", "lowest of the private ones")
    return Finding("inconsistent" if wrong else "met", words, tuple(rows), marks=marks)


def network(pools: int, view: int, tolerance: float) -> Finding:
    """Shapes and weights of the network of Table 6 on 28 x 28 images, with a pooling after both convolutions or one."""
    side = 28
    for number in range(2):
        side = side - 4
        side = side // 2 if number < pools else side
    flat = 16 * side * side
    weights = (25 + 1) * 6 + (6 * 25 + 1) * 16 + (256 + 1) * 120 + (120 + 1) * 84 + (84 + 1) * 10
    rows: list[tuple[str, Any, Any, bool]] = [
        ("entries after the convolutions, needed by the first linear layer", 256, flat, flat == 256),
        ("entries of the printed view", 256, view, view == 256),
        ("weights, with 16*4*4 inputs to the first linear layer", 44_426, weights, abs(weights - 44_426) <= tolerance),
    ]
    return readings(
        rows, f"{flat} entries for {view} in the view and 256 in the layer; {weights:,} weights", "inconsistent"
    )


def loss_sign(sign: float) -> Finding:
    """The minimiser of the mean of log(1 + exp(sign y z x)) on rows z = y: which label does the sign of z x predict?"""
    grid = np.linspace(-5, 5, 1001)
    label = np.array([[-1.0], [1.0]])
    best = float(grid[np.logaddexp(0, sign * label * label * grid).mean(axis=0).argmin()])
    row = Comparison("margin of a positive row at the minimiser of [-5, 5]", "positive", best, best > 0)
    words = f"the minimiser predicts the {'label' if best > 0 else 'opposite label'}"
    return Finding("met" if best > 0 else "misprint", words, (row,))
