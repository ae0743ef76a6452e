"""Test errors of the private solvers with the settings of their own rules, on data that chose none of the constants.

    python -m benchmarks.default_errors --data FOLDER     # the table of docs/choosing.md

Two classes, rows of norm 1, delta 1e-5. Only solvers are here whose settings all follow from public numbers; the
sparsity of those that need one is half of the features, at most 100. All other arguments are the defaults. Intervals
are standard errors over the seeds of the noise.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.lib.intervals import interval
from benchmarks.lib.problems import Problem, load
from dptoolkit import solvers
from dptoolkit.accounting.report import table

SETS, EPSILONS, DELTA = ("phishing", "acq", "mnist, odd"), (1.0, 4.0), 1e-5
_UNIT: dict[str, Any] = {"loss": "logistic", "row_norm": 1.0}
SOLVERS: dict[str, dict[str, Any]] = {
    "dp_pipeline": {"loss": "logistic"},
    "dp_dual_averaging": _UNIT,
    "objective_perturbation": _UNIT,
    "dp_admm": _UNIT,
    "dp_ight": _UNIT,
    "dp_sgd_ht": _UNIT,
    "dp_frank_wolfe": {"loss": "logistic", "feature_bound": 1.0},
}
# Solvers that keep a number of features, which no rule chooses.
SPARSE = ("dp_ight", "dp_sgd_ht")


def errors(problem: Problem, solver: str, epsilon: float, seeds: int) -> list[float]:
    """Shares of wrong labels among the test rows."""
    n, d = problem.X.shape
    arguments = SOLVERS[solver] | ({"sparsity": min(100, d // 2)} if solver in SPARSE else {})
    plan = solvers.plan(solver, n=n, d=d, epsilon=epsilon, delta=DELTA, **arguments)
    fits = solvers.fit_many(plan, problem.rows, problem.y, seeds=range(seeds))
    return [problem.error(solvers.margins(fit, problem.X_test, n_features=d)) for fit in fits]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.default_errors", description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the real data sets")
    parser.add_argument("--seeds", type=int, default=5, help="number of fits per cell (default 5)")
    options = parser.parse_args(argv)
    problems = [load(name, options.data) for name in SETS]
    head = ["solver", *(f"{problem.name}, epsilon {epsilon:g}" for problem in problems for epsilon in EPSILONS)]
    rows = []
    with warnings.catch_warnings():
        # A plan that expects to find little is part of the table.
        warnings.simplefilter("ignore", solvers.HopelessPlanWarning)
        for solver in SOLVERS:
            cells = [interval(errors(problem, solver, epsilon, options.seeds), 3) for problem in problems
                     for epsilon in EPSILONS]  # fmt: skip
            rows.append([solver, *cells])
    rows.append(["most frequent label", *(f"{problem.plain:.3f}" for problem in problems for _ in EPSILONS)])
    for problem in problems:
        print(f"{problem.name}: {problem.X.shape[0]:,} x {problem.X.shape[1]:,}")
    print(table(head, rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
