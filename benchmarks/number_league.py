"""The league of tables with a number as label: the part "numbers" of benchmarks/league.py.

The measure is the mean squared error over the variance of the test labels: 1 is what predicting their mean gives.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import league
from benchmarks.lib.number_contenders import OPEN, PRIVATE
from benchmarks.lib.numbers import CHOSEN_ON, JUDGED_ON, NumberTable, load

RESULTS = Path(__file__).parent / "results" / "league_numbers.jsonl"
SIZES = (None, 1_000)
# Fits are quick, noise is large, and the two smallest tables have few test rows.
SEEDS = 5


def cells() -> Iterator[league.Cell]:
    """All cells, table by table."""
    for name in (*JUDGED_ON, *CHOSEN_ON):
        for rows in SIZES:
            for epsilon in league.BUDGETS:
                yield from ((name, rows, epsilon, method) for method in PRIVATE)
            yield from ((name, rows, None, method) for method in OPEN)


def score(table: NumberTable, cell: league.Cell) -> dict[str, Any]:
    """Errors of all seeds, and processor seconds of a fit."""
    _, rows, epsilon, method = cell
    errors, seconds = [], []
    for seed in range(SEEDS if method in PRIVATE else 1):
        part = table.cut(rows, seed)
        begin = time.process_time()
        predict = (PRIVATE | OPEN)[method](part, epsilon or 0.0, seed)
        seconds.append(time.process_time() - begin)
        left = np.mean((np.asarray(predict(table.X_test)) - table.y_test) ** 2) / np.var(table.y_test)
        errors.append(round(float(left), 5))
    return dict(zip(league.KEY, (table.name, rows, epsilon, method), strict=True)) | {
        "n": len(part.y), "d": table.X.shape[1], "errors": errors, "seconds": round(float(np.median(seconds)), 2)
    }  # fmt: skip


def compete(home: Path, minutes: float, names: list[str] | None, methods: list[str] | None) -> None:
    """Compute missing cells until the processor time is used up."""
    done = {tuple(one[key] for key in league.KEY) for one in league.read(RESULTS)}
    table: NumberTable | None = None
    for cell in cells():
        name, rows, _, method = cell
        if cell in done or (names and name not in names) or (methods and method not in methods):
            continue
        if time.process_time() > 60 * minutes:
            print("The time is used up.")
            return
        if table is None or table.name != name:
            table = load(name, home)
        if league.has_rows(table, rows):
            league.save(score(table, cell), RESULTS)
