"""The league of tables: our default beside what a user would pick instead, on all rows, from the same public bounds.

    python -m benchmarks.league --data FOLDER --minutes 20    # compute cells that are missing, the most telling first
    python -m benchmarks.league --data FOLDER --part numbers  # the same for tables with a number as label
    python -m benchmarks.league --data FOLDER --part tune     # the settings of DP-SGD, on tables that had influence
    python -m benchmarks.league --part report                 # docs/frontier.md and its picture, from the saved results

A cell is a table, a number of training rows, an epsilon and a method. Each is saved to benchmarks/results when it is
computed, and is not computed again, so that a job that was stopped goes on; remove lines to have them anew. Cells are
computed in order: epsilon 1 with 5,000 and with all rows, then 1,000 and 50,000 rows, then the other budgets. It needs
diffprivlib, interpret-core, torch and opacus beside the extras "peers" and "plots"; methods that cannot be imported are
left out. Use one thread: OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lib.contenders import OPEN, PRIVATE, SGD_SETTINGS, ZERO_OUT, sgd, takes
from benchmarks.lib.tables import CHOSEN_ON, JUDGED_ON, Table, load

RESULTS = Path(__file__).parent / "results" / "league.jsonl"
TUNED = Path(__file__).parent / "results" / "league_tune.jsonl"
BUDGETS, SIZES = (1.0, 0.5, 2.0, 4.0), (5_000, None, 50_000, 1_000)
KEY = ("table", "rows", "epsilon", "method")
Cell = tuple[str, int | None, float | None, str]
# Fits on more rows than this are made once: their noise is small, and they take long. With few rows, where noise may
# hide the order, methods whose fits are quick get more seeds.
ONCE_FROM, SEEDS = 40_000, 3
FEW_ROWS, MORE_SEEDS, QUICK = 1_000, 10, ("dptoolkit", ZERO_OUT, "diffprivlib")


def cells() -> Iterator[Cell]:
    """All cells, the most telling first; None is all rows, and the epsilon of a method without privacy."""
    names = (*JUDGED_ON, *CHOSEN_ON)
    for group in ((1.0, (5_000, None)), (1.0, (50_000, 1_000)), *((epsilon, (5_000,)) for epsilon in BUDGETS[1:])):
        epsilon, sizes = group
        for rows in sizes:
            for name in names:
                yield from ((name, rows, epsilon, method) for method in PRIVATE)
                if epsilon == 1.0:
                    yield from ((name, rows, None, method) for method in OPEN)
    for epsilon in BUDGETS[1:]:
        yield from ((name, None, epsilon, method) for name in names for method in ("dptoolkit", "diffprivlib"))


def seeds(rows: int, method: str) -> int:
    """How many fits a cell with so many training rows gets."""
    if method not in PRIVATE or rows > ONCE_FROM:
        return 1
    return MORE_SEEDS if rows <= FEW_ROWS and method in QUICK else SEEDS


def has_rows(table: Table, rows: int | None) -> bool:
    """Whether the cell is one of its own: so many rows are there, and they are not all that there are."""
    return rows is None or len(table.y) > rows


def score(table: Table, cell: Cell) -> dict[str, Any]:
    """Errors of all seeds, and processor seconds of a fit."""
    _, rows, epsilon, method = cell
    is_private = method in PRIVATE
    errors, seconds = [], []
    for seed in range(seeds(min(rows or len(table.y), len(table.y)), method)):
        part = table.cut(rows, seed)
        begin = time.process_time()
        predict = (PRIVATE if is_private else OPEN)[method](part, epsilon or 0.0, seed)
        seconds.append(time.process_time() - begin)
        errors.append(round(float(np.mean(np.asarray(predict(table.X_test)) != table.y_test)), 5))
    about = {"n": len(part.y), "d": table.X.shape[1], "classes": table.classes, "plain": _plain(table)}
    return dict(zip(KEY, (table.name, rows, epsilon, method), strict=True)) | about | {
        "errors": errors, "seconds": round(float(np.median(seconds)), 2)
    }  # fmt: skip


def _plain(table: Table) -> float:
    """The error of always saying the most frequent label."""
    return round(1 - float(np.bincount(table.y_test.astype(int)).max()) / len(table.y_test), 5)


def read(path: Path = RESULTS) -> list[dict[str, Any]]:
    """Saved results. They are read anew if the file has changed, and are not to be changed by callers."""
    return _read(path, path.stat().st_mtime_ns) if path.exists() else []


@functools.lru_cache(maxsize=8)
def _read(path: Path, changed: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def save(result: dict[str, Any], path: Path = RESULTS) -> None:
    """Add a result to its file."""
    with path.open("a") as file:
        file.write(json.dumps(result) + "\n")
    print(json.dumps(result), flush=True)


def compete(
    home: Path, minutes: float, names: list[str] | None, methods: list[str] | None, longest: int | None
) -> None:
    """Compute missing cells until the processor time is used up."""
    done = {tuple(one[key] for key in KEY) for one in read()}
    lost: set[str] = set()
    last: Table | None = None
    for cell in cells():
        name, rows, _, method = cell
        if cell in done or method in lost or (names and name not in names) or (methods and method not in methods):
            continue
        if time.process_time() > 60 * minutes:
            print("The time is used up.")
            return
        if last is None or last.name != name:
            last = load(name, home)
        n = min(rows or len(last.y), len(last.y))
        if not has_rows(last, rows) or not takes(method, n, last.X.shape[1], last.classes):
            continue
        if longest is not None and n > longest:
            continue
        try:
            save(score(last, cell))
        except ImportError as problem:
            lost.add(method)
            print(f"{method} is left out: {problem}")


def tune(home: Path) -> None:
    """The errors of DP-SGD with each setting on tables that had influence, at epsilon 1 with 5,000 rows."""
    for name in ("a9a", "clinic"):
        table = load(name, home)
        for setting in SGD_SETTINGS:
            errors = []
            for seed in range(2):
                predict = sgd(table.cut(5_000, seed), 1.0, seed, setting)
                errors.append(float(np.mean(predict(table.X_test) != table.y_test)))
            save({"table": name, "setting": setting, "errors": errors}, TUNED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("compete", "numbers", "tune", "report"), default="compete")
    parser.add_argument("--data", type=Path, help="folder of the real data sets")
    parser.add_argument("--minutes", type=float, default=25.0, help="processor time after which no cell is begun")
    parser.add_argument("--tables", nargs="+", help="names of tables; all by default")
    parser.add_argument("--methods", nargs="+", help="names of methods; all by default")
    parser.add_argument("--longest", type=int, help="largest number of training rows of a cell that is computed")
    options = parser.parse_args()
    if options.part == "report":
        from benchmarks.lib.report import write

        write()
        return
    if options.data is None:
        parser.error("--data is needed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if options.part == "tune":
            tune(options.data)
        elif options.part == "numbers":
            from benchmarks import number_league

            number_league.compete(options.data, options.minutes, options.tables, options.methods)
        else:
            compete(options.data, options.minutes, options.tables, options.methods, options.longest)


if __name__ == "__main__":
    main()
