"""Sixteen fits at once against sixteen fits one by one, at the size of RCV1.

    taskset -c 1 python -m benchmarks.many                       # one core; synthetic rows of RCV1's shape
    python -m benchmarks.many --data FOLDER                      # the real rcv1_sub, see dptoolkit.datasets.load

Fits one by one are made twice: each from X, which it validates, clips and lays out for itself, and each from what
data.prepare returned, so that nothing is left to share but the iteration. A step of Frank-Wolfe reads a small part of
X, the rows of the feature that it chooses: its fits share the prepared data and the pass that they begin with. What
remains is counted: how much of it runs have in common, and how long a plain pass would take over as many entries.
Rivals take turns; what counts is the processor time of the best of each, which adds up that of all
threads, so that more cores do not help anybody. By the clock they do, and it is printed beside: fits together of
Frank-Wolfe use all cores of the process, and one by one they use one.
tests/solvers/frame/test_many.py counts the passes over X, which do not depend on the machine.
"""

from __future__ import annotations

import argparse
import warnings
from typing import Any

import numpy as np

from benchmarks.lib.race import Check, race, show
from benchmarks.suite.counts import counted
from dptoolkit import datasets, solvers
from dptoolkit.data import prepare
from dptoolkit.datasets import Dataset
from dptoolkit.solvers.engine.gradients import processors

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


def compare(name: str, data: Dataset, rounds: int) -> list[Check]:
    """The throughput of fits together, as a multiple of that of fits one by one: from X, and from prepared data."""
    solver, arguments = CASES[name]
    n, d = data.shape
    plan, rows = solvers.plan(solver, n=n, d=d, **arguments), prepare(data.X)
    fit = getattr(solvers, solver)
    rivals = {
        "alone": lambda: [fit(data.X, data.y, rng=seed, **arguments) for seed in range(RUNS)],
        "prepared": lambda: [fit(rows, data.y, rng=seed, **arguments) for seed in range(RUNS)],
        "together": lambda: solvers.fit_many(plan, data.X, data.y, seeds=range(RUNS)),
        "together, prepared": lambda: solvers.fit_many(plan, rows, data.y, seeds=range(RUNS)),
    }
    raced = race(rivals, rounds)
    best = {rival: times.cpu for rival, times in raced.items()}
    print(f"  {name}: cpu " + ", ".join(f"{seconds:.2f} s {rival}" for rival, seconds in best.items()))
    clock = ", ".join(f"{times.wall:.2f} s {rival}" for rival, times in raced.items())
    print(f"    by the clock, {processors()} cores: {clock}")
    if solver == "dp_frank_wolfe":
        own = 1000 * best["together, prepared"] / RUNS
        print(f"    {_own_work(plan, rows, data)}, all of a fit {own:.1f} ms")
    return [
        Check(f"{name}: throughput of {RUNS} runs", best["alone"] / best["together"], 3, True),
        Check(f"{name}: the same, data prepared", best["prepared"] / best["together, prepared"], 3, True),
    ]


def _own_work(plan: solvers.Plan, rows: Any, data: Dataset) -> str:
    """What fits do besides the pass that they share, and the time of a plain pass over as many entries."""
    with counted() as work:
        fits = solvers.fit_many(plan, rows, data.y, seeds=range(RUNS))
    features = np.array([fit.history["vertices"] % plan.d for fit in fits])
    lengths = np.diff(data.X.tocsc().indptr)
    checked, common = lengths[features].sum(), sum(lengths[np.unique(step)].sum() for step in features.T)
    touched, r = work.read("dithered_block"), np.ones(plan.n)
    seconds = race({"pass": lambda: data.X.T @ r}, 9)["pass"].cpu / data.X.nnz * (checked + touched) / RUNS
    return (
        f"rows checked {checked:,}; were those of several runs at one step checked together, {common:,}\n"
        f"    entries touched {touched:,}; a plain pass over a fit's share of both takes {1000 * seconds:.1f} ms"
    )


def main() -> int:
    """Print the table; 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="FOLDER", help="folder with rcv1_sub; default: synthetic rows of its shape")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", metavar="TEXT", default="", help="run only cases whose name contains this text")
    options = parser.parse_args()
    warnings.simplefilter("ignore", solvers.HopelessPlanWarning)
    data = datasets.load("rcv1_sub", data_home=options.data) if options.data else datasets.make_rcv1_like(rng=0)
    chosen = [name for name in CASES if options.only in name]
    checks = [check for name in chosen for check in compare(name, data, options.rounds)]
    show("Many fits at once", checks)
    return 0 if all(check.passed for check in checks) else 1


if __name__ == "__main__":
    raise SystemExit(main())
