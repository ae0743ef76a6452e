"""Sixteen fits at once against sixteen fits one by one, at the size of RCV1.

    NUMBA_NUM_THREADS=1 python -m benchmarks.many                # synthetic rows of RCV1's shape
    python -m benchmarks.many --data FOLDER                      # the real rcv1_sub, see dptoolkit.datasets.load

Frank-Wolfe shares no passes, since a step of it reads a small part of X: its fits share the prepared data.
Both take turns; what counts is the processor time of the best of each. tests/solvers/test_fit_many.py counts the passes
over X, which do not depend on the machine.
"""

from __future__ import annotations

import argparse
import warnings
from typing import Any

from benchmarks._race import Check, race, show
from dptoolkit import datasets, solvers
from dptoolkit.datasets import Dataset

RUNS = 16
BUDGET: dict[str, Any] = {"loss": "logistic", "epsilon": 1.0, "delta": 1e-6}
ROWS: dict[str, Any] = {**BUDGET, "row_norm": 1.0}
BALL: dict[str, Any] = {**BUDGET, "feature_bound": 1.0, "l1_radius": 50.0, "steps": 1000}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "dp_ight, sparsity 50": ("dp_ight", {**ROWS, "sparsity": 50, "steps": 50}),
    "dp_dual_averaging, sparsity 50": ("dp_dual_averaging", {**ROWS, "sparsity": 50, "steps": 50}),
    "dp_dual_averaging, all features": ("dp_dual_averaging", {**ROWS, "steps": 20}),
    "dp_frank_wolfe, epsilon 1": ("dp_frank_wolfe", BALL),
    "dp_frank_wolfe, epsilon 100": ("dp_frank_wolfe", {**BALL, "epsilon": 100.0}),
}


def compare(name: str, data: Dataset, rounds: int) -> Check:
    """The throughput of fits together, as a multiple of that of fits one by one."""
    solver, arguments = CASES[name]
    n, d = data.shape
    plan = solvers.plan(solver, n=n, d=d, **arguments)
    fit = getattr(solvers, solver)
    rivals = {
        "alone": lambda: [fit(data.X, data.y, rng=seed, **arguments) for seed in range(RUNS)],
        "together": lambda: solvers.fit_many(plan, data.X, data.y, seeds=range(RUNS)),
    }
    best = race(rivals, rounds)
    print(f"  {name}: cpu {best['alone'].cpu:.2f} s alone, {best['together'].cpu:.2f} s together")
    return Check(f"{name}: throughput of {RUNS} runs", best["alone"].cpu / best["together"].cpu, 3, True)


def main() -> int:
    """Print the table; 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="FOLDER", help="folder with rcv1_sub; default: synthetic rows of its shape")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    warnings.simplefilter("ignore", solvers.HopelessPlanWarning)
    data = datasets.load("rcv1_sub", data_home=options.data) if options.data else datasets.make_rcv1_like(rng=0)
    checks = [compare(name, data, options.rounds) for name in CASES]
    show("Many fits at once", checks)
    return 0 if all(check.passed for check in checks) else 1


if __name__ == "__main__":
    raise SystemExit(main())
