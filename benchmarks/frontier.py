"""The rule of dp_pipeline without bounds of columns: what its constants are worth, and whether its targets are met.

    python -m benchmarks.frontier --data FOLDER --part must      # its targets on all rows of rcv1_sub and a9a
    python -m benchmarks.frontier --data FOLDER --part whole     # the rule at four budgets, all rows
    python -m benchmarks.frontier --data FOLDER --part grid      # nine settings, compared on the test rows
    python -m benchmarks.frontier --data FOLDER --part constants --sets rcv1_sub   # what each constant is worth

"whole" and "grid" save every result as it comes to benchmarks/results/, one file per part. What is there is not
computed again; remove lines to have them anew. ``--sets`` runs some of them. Rows have norm 1. Errors are shares of
wrong labels, for regression mean squared errors over the variance. Intervals are standard errors over the seeds.
Tables with bounds of their columns, beside other packages, are in benchmarks/league.py.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lib.intervals import interval
from benchmarks.lib.methods import Setting, pipeline_fits
from benchmarks.lib.problems import CHOSEN_ON, CLASSES, JUDGED_ON, NUMBERS, Problem, load
from dptoolkit.accounting.report import table

RESULTS = Path(__file__).parent / "results"
BUDGETS = ((2.0, 1e-5), (1.0, 1e-5), (4.0, 1e-5), (2.0, 0.01))
KEY = ("set", "n", "method", "setting", "epsilon", "delta")
Result = dict[str, Any]
# One constant changed at a time; the first is the rule as it is.
CONSTANTS: tuple[dict[str, float], ...] = (
    {}, {"RESIDUAL": 0.12}, {"RESIDUAL": 0.5}, {"MARGIN_NOISE": 0.4}, {"MARGIN_NOISE": 0.6}, {"MARGIN_NOISE": 1.2},
    {"SLACK": 1.1}, {"SLACK": 0.3}, {"CUT": 1.0}, {"CUT": 2.5}, {"TEMPERING": 0.0, "MEAN_POWER": 1.0},
    {"TEMPERING": 0.5, "MEAN_POWER": 0.5}, {"LEVEL": 0.1}, {"LEVEL": 0.4},
    {"MEANS_SHARE": 0.05, "DESCENT_SHARE": 0.92}, {"MEANS_SHARE": 0.2, "DESCENT_SHARE": 0.77},
)  # fmt: skip


def score(problem: Problem, setting: Setting, seeds: int, **more: Any) -> Result:
    """Fits of dp_pipeline from several seeds, tested: errors, losses, features and processor seconds a fit."""
    begin = time.process_time()
    fits = pipeline_fits(problem, setting, seeds, **more)
    seconds = (time.process_time() - begin) / seeds
    return {
        "errors": [round(problem.error(margins), 5) for margins in fits.margins],
        "losses": [round(problem.loss(margins), 4) for margins in fits.margins],
        "features": fits.features,
        "seconds": round(seconds, 3),
    }


# --- parts ------------------------------------------------------------------------------------------------


def whole(problem: Problem, seeds: int) -> None:
    """The rule at all budgets."""
    keys = [[one[name] for name in KEY] for one in read("whole")]
    for epsilon, delta in BUDGETS:
        key = [problem.name, problem.X.shape[0], "dp_pipeline", {}, epsilon, delta]
        if key not in keys:
            about = dict(zip(KEY, key, strict=True)) | {"d": problem.X.shape[1], "plain": round(problem.plain, 5)}
            save("whole", about | score(problem, {}, seeds, epsilon=epsilon, delta=delta))


def grid(problem: Problem, seeds: int) -> None:
    """The pipeline's rule beside the best of nine settings, picked on the TEST rows: more than tuning can give."""
    numbers = problem.kind == "numbers"
    clipping, noises = ((0.1, 0.25, 0.6), (0.1, 0.2, 0.4)) if numbers else ((0.12, 0.25, 0.5), (0.4, 0.8, 1.6))
    names = ("NUMBER_RESIDUAL", "NUMBER_NOISE") if numbers else ("RESIDUAL", "MARGIN_NOISE")
    keys = [[one[name] for name in KEY] for one in read("grid")]
    for setting in [{}, *(dict(zip(names, pair, strict=True)) for pair in itertools.product(clipping, noises))]:
        key = [problem.name, problem.X.shape[0], "dp_pipeline", setting, *BUDGETS[0]]
        if key not in keys:
            about = dict(zip(KEY, key, strict=True)) | {"d": problem.X.shape[1], "plain": round(problem.plain, 5)}
            epsilon, delta = BUDGETS[0]
            save("grid", about | score(problem, setting, seeds, epsilon=epsilon, delta=delta))


def must(home: Path) -> None:
    """The targets of dp_pipeline, with its rule on all rows, five seeds: are its errors small enough?"""
    cases = (("rcv1_sub", 2.0, 1e-5, None, 0.055), ("rcv1_sub", 2.0, 0.01, None, 0.047),
             ("rcv1_sub", 2.0, 1e-5, 1000, 0.056), ("a9a", 2.0, 1e-5, None, 0.152))  # fmt: skip
    lines = []
    for name, epsilon, delta, sparsity, limit in cases:
        result = score(load(name, home), {}, 5, epsilon=epsilon, delta=delta, sparsity=sparsity)
        mean = float(np.mean(result["errors"]))
        cells = [interval(result["errors"]), f"{limit:g}", "yes" if mean <= limit else "NO"]
        lines.append(
            [name, f"({epsilon:g}, {delta:g})", str(sparsity or "all"), *cells, f"{np.median(result['seconds']):.1f}"]
        )
    print(table(["data", "budget", "features", "error", "at most", "shown", "CPU s a fit"], lines))


def constants(problems: Iterator[Problem], seeds: int) -> None:
    """The error of dp_pipeline at (2, 1e-5) with one constant changed at a time."""
    sets, lines = list(problems), []
    for change in CONSTANTS:
        results = [score(p, change, seeds, epsilon=2.0, delta=1e-5) for p in sets]
        text = ", ".join(f"{name}={value:g}" for name, value in change.items()) or "the rule"
        lines.append([text, *(interval(one["errors"]) for one in results)])
    print(table(["constants", *(problem.name for problem in sets)], lines))


# --- files ------------------------------------------------------------------------------------------------


def read(part: str) -> list[Result]:
    """The saved results of a part."""
    path = RESULTS / f"frontier_{part}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def save(part: str, one: Result) -> None:
    """Add a result to its file."""
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / f"frontier_{part}.jsonl").open("a") as file:
        file.write(json.dumps(one) + "\n")
    print(one["set"], one["n"], one["method"], one["setting"], one["epsilon"], one["delta"], interval(one["errors"]),
          f"{one['seconds']:.2f} s", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("must", "whole", "grid", "constants"), required=True)
    parser.add_argument("--data", type=Path, required=True, help="folder of the real data sets")
    parser.add_argument("--sets", nargs="+")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rows", type=int, help="largest number of training rows; default: all, 2,000 for grid")
    options = parser.parse_args()
    rows = options.rows or (2000 if options.part == "grid" else None)
    names = options.sets or (*CHOSEN_ON, *JUDGED_ON, *CLASSES, *NUMBERS)
    problems = (load(name, options.data, rows) for name in names)
    with warnings.catch_warnings():
        # A delta of 0.01 is the papers'; hopeless sets are part of the table.
        warnings.simplefilter("ignore", UserWarning)
        if options.part == "must":
            must(options.data)
        elif options.part == "constants":
            constants(problems, options.seeds)
        else:
            for problem in problems:
                (grid if options.part == "grid" else whole)(problem, options.seeds)


if __name__ == "__main__":
    main()
