"""A league table of private solvers on real data, with their rules and tuned alike on data that are not judged.

    python -m benchmarks.frontier --data FOLDER --part tune      # five settings of every solver on TUNED_ON, 2,000 rows
    python -m benchmarks.frontier --data FOLDER --part league    # rules and the best settings of "tune", four budgets
    python -m benchmarks.frontier --data FOLDER --part whole     # the same for the quick solvers on all rows
    python -m benchmarks.frontier --data FOLDER --part grid      # nine settings of dp_pipeline, by the test rows
    python -m benchmarks.frontier --part report                  # docs/frontier.md and its plot, from the saved results
    python -m benchmarks.frontier --data FOLDER --part must      # dp_pipeline on all rows of rcv1_sub and a9a
    python -m benchmarks.frontier --data FOLDER --part constants --sets rcv1_sub   # what each constant is worth

The first four save every result as it comes to benchmarks/results/, one file per part. What is there is not computed
again, so that a job that was stopped goes on; remove lines to have them anew. ``--sets`` and ``--methods`` run some of
them. Rows have norm 1, and all solvers get the same public bounds. Errors are shares of wrong labels, for numbers mean
squared errors over the variance. Intervals are standard errors over the seeds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
import warnings
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lib.methods import METHODS, QUICK, Method, Setting
from benchmarks.lib.problems import CHOSEN_ON, CHOSEN_ON_ALSO, CLASSES, JUDGED_ON, NUMBERS, Problem, load
from dptoolkit.accounting.report import table
from dptoolkit.distributed import Executor, executor

RESULTS = Path(__file__).parent / "results"
BUDGETS = ((2.0, 1e-5), (1.0, 1e-5), (4.0, 1e-5), (2.0, 0.01))
# Rows of the league in which slow solvers take part.
FEW = 2000
# What every solver is tuned on, by the kind of labels.
TUNED_ON = (*CHOSEN_ON, *CHOSEN_ON_ALSO)
KEY = ("set", "n", "method", "setting", "epsilon", "delta")
Result = dict[str, Any]
# One constant changed at a time; the first is the rule as it is.
CONSTANTS: tuple[dict[str, float], ...] = (
    {}, {"RESIDUAL": 0.12}, {"RESIDUAL": 0.5}, {"MARGIN_NOISE": 0.4}, {"MARGIN_NOISE": 0.6}, {"MARGIN_NOISE": 1.2},
    {"SLACK": 1.1}, {"SLACK": 0.3}, {"CUT": 1.0}, {"CUT": 2.5}, {"TEMPERING": 0.0, "MEAN_POWER": 1.0},
    {"TEMPERING": 0.5, "MEAN_POWER": 0.5}, {"LEVEL": 0.1}, {"LEVEL": 0.4},
    {"MEANS_SHARE": 0.05, "DESCENT_SHARE": 0.92}, {"MEANS_SHARE": 0.2, "DESCENT_SHARE": 0.77},
)  # fmt: skip


def score(problem: Problem, name: str, setting: Setting, seeds: int, **more: Any) -> Result:
    """Fits of a method from several seeds, tested: errors, losses, features and processor seconds a fit."""
    begin = time.process_time()
    fits = METHODS[name].fits(problem, setting, seeds, **more)
    seconds = (time.process_time() - begin) / seeds
    return {
        "errors": [round(problem.error(margins), 5) for margins in fits.margins],
        "losses": [round(problem.loss(margins), 4) for margins in fits.margins],
        "features": fits.features,
        "seconds": round(seconds, 3),
    }


# --- parts ------------------------------------------------------------------------------------------------


def tune(problem: Problem, method: Method) -> Iterator[tuple[Setting, float, float]]:
    """Every setting at the first budget."""
    yield from ((setting, *BUDGETS[0]) for setting in method.settings[problem.kind])


def best_setting(name: str, kind: str, tuned: list[Result]) -> Setting | None:
    """The setting with the least error, over that of the plain answer, on average over the sets of "tune".

    None where the method was not tuned.
    """
    settings = METHODS[name].settings.get(kind, ())
    ratios = []
    for setting in settings:
        own = [one for one in tuned if (one["method"], one["kind"], one["setting"]) == (name, kind, setting)]
        ratios.append(float(np.mean([np.mean(one["errors"]) / one["plain"] for one in own])) if own else np.inf)
    return settings[int(np.argmin(ratios))] if ratios and min(ratios) < np.inf else None


def compete(part: str, problem: Problem, name: str) -> Iterator[tuple[Setting, float, float]]:
    """The rule at all budgets, and the best setting of "tune" if it is another.

    On all rows only dp_pipeline has all budgets; the others have the first.
    """
    best = best_setting(name, problem.kind, read("tune"))
    several: list[Setting] = [{}] if METHODS[name].rule else []
    if best is not None and best not in several:
        several.append(best)
    budgets = BUDGETS if part == "league" or name == "dp_pipeline" else BUDGETS[:1]
    yield from ((setting, *budget) for setting in several for budget in budgets)


def scored(problem: Problem, seeds: int, about: Result) -> Result:
    """A line of a part; it depends on these arguments alone, wherever it is computed."""
    with warnings.catch_warnings():
        # As in ``main``, for workers.
        warnings.simplefilter("ignore", UserWarning)
        name, setting, epsilon, delta = (about[key] for key in ("method", "setting", "epsilon", "delta"))
        return about | score(problem, name, setting, seeds, epsilon=epsilon, delta=delta)


def run(part: str, problem: Problem, names: Iterable[str], seeds: int, place: Executor) -> None:
    """Compute and save what is missing of a part on one set."""
    n, d = problem.X.shape
    keys = [[one[name] for name in KEY] for one in read(part)]
    missing = []
    for name in names:
        method = METHODS[name]
        if not method.takes(problem):
            continue
        cells = tune(problem, method) if part == "tune" else compete(part, problem, name)
        for setting, epsilon, delta in cells:
            key = [problem.name, n, name, setting, epsilon, delta]
            if key in keys:
                continue
            about = dict(zip(KEY, key, strict=True)) | {"d": d, "kind": problem.kind, "plain": round(problem.plain, 5)}
            missing.append(about)
    for _, one in place.each(partial(scored, problem, seeds), missing):
        save(part, one)


def grid(problem: Problem, seeds: int, place: Executor) -> None:
    """The pipeline's rule beside the best of nine settings, picked on the TEST rows: more than tuning can give."""
    numbers = problem.kind == "numbers"
    clipping, noises = ((0.1, 0.25, 0.6), (0.1, 0.2, 0.4)) if numbers else ((0.12, 0.25, 0.5), (0.4, 0.8, 1.6))
    names = ("NUMBER_RESIDUAL", "NUMBER_NOISE") if numbers else ("RESIDUAL", "MARGIN_NOISE")
    keys = [[one[name] for name in KEY] for one in read("grid")]
    missing = []
    for setting in [{}, *(dict(zip(names, pair, strict=True)) for pair in itertools.product(clipping, noises))]:
        key = [problem.name, problem.X.shape[0], "dp_pipeline", setting, *BUDGETS[0]]
        if key not in keys:
            about = dict(zip(KEY, key, strict=True)) | {"d": problem.X.shape[1], "plain": round(problem.plain, 5)}
            missing.append(about)
    for _, one in place.each(partial(scored, problem, seeds), missing):
        save("grid", one)


def must(home: Path) -> None:
    """The targets of dp_pipeline, with its rule on all rows, five seeds: are its errors small enough?"""
    cases = (("rcv1_sub", 2.0, 1e-5, None, 0.055), ("rcv1_sub", 2.0, 0.01, None, 0.047),
             ("rcv1_sub", 2.0, 1e-5, 1000, 0.056), ("a9a", 2.0, 1e-5, None, 0.152))  # fmt: skip
    lines = []
    for name, epsilon, delta, sparsity, limit in cases:
        result = score(load(name, home), "dp_pipeline", {}, 5, epsilon=epsilon, delta=delta, sparsity=sparsity)
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
        results = [score(p, "dp_pipeline", change, seeds, epsilon=2.0, delta=1e-5) for p in sets]
        text = ", ".join(f"{name}={value:g}" for name, value in change.items()) or "the rule"
        lines.append([text, *(interval(one["errors"]) for one in results)])
    print(table(["constants", *(problem.name for problem in sets)], lines))


def interval(errors: list[float]) -> str:
    """Mean and standard error."""
    spread = np.std(errors, ddof=1) / np.sqrt(len(errors)) if len(errors) > 1 else float("nan")
    return f"{np.mean(errors):.4f} +- {spread:.4f}"


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
    parts = ("tune", "league", "whole", "grid", "report", "must", "constants")
    parser.add_argument("--part", choices=parts, required=True)
    parser.add_argument("--data", type=Path, help="folder of the real data sets")
    parser.add_argument("--sets", nargs="+")
    parser.add_argument("--methods", nargs="+", choices=METHODS)
    parser.add_argument("--seeds", type=int, help="number of seeds; default 5, and 2 for tuning")
    parser.add_argument("--rows", type=int, help="largest number of training rows; default: that of the part")
    parser.add_argument("--workers", type=int, metavar="N", help="number of processes, default 1")
    parser.add_argument("--scheduler", metavar="ADDRESS", help="run on the workers of a Dask scheduler")
    options = parser.parse_args()
    if options.part == "report":
        from benchmarks.lib.report import write

        write()
        return
    part, seeds = options.part, options.seeds or (2 if options.part == "tune" else 5)
    every = TUNED_ON if part == "tune" else (*CHOSEN_ON, *JUDGED_ON, *CLASSES, *NUMBERS)
    rows = options.rows or (None if part in ("whole", "constants") else FEW)
    problems = (load(name, options.data, rows) for name in options.sets or every)
    workers = options.workers or (None if options.scheduler else 1)
    with executor(workers, scheduler=options.scheduler) as place, warnings.catch_warnings():
        # A delta of 0.01 is the papers'; hopeless sets are part of the table.
        warnings.simplefilter("ignore", UserWarning)
        if part == "must":
            must(options.data)
        elif part == "constants":
            constants(problems, seeds)
        elif part == "grid":
            for problem in problems:
                grid(problem, seeds, place)
        else:
            for problem in problems:
                # On few rows "whole" would be "league" again.
                if part != "whole" or problem.X.shape[0] > FEW:
                    run(part, problem, options.methods or (QUICK if part == "whole" else METHODS), seeds, place)


if __name__ == "__main__":
    main()
