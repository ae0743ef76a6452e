"""Sixteen fits at once against sixteen fits one by one, and where the time of a step goes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.lib.race import turns
from benchmarks.many import CASES, RUNS
from benchmarks.suite import counts, shapes
from dptoolkit import solvers
from dptoolkit.solvers.engine.draws import fill_normals


def measure(home: str | None, quick: bool) -> Iterator[dict[str, Any]]:
    """One row a case: CPU seconds of both, and the passes over X that each makes."""
    problem = shapes.load("rcv1_sub", home, quick)
    X, y, (n, d) = problem.X, problem.y, problem.X.shape
    for name, (solver, arguments) in CASES.items():
        plan, fit = solvers.plan(solver, n=n, d=d, **arguments), getattr(solvers, solver)

        def alone(fit: Any = fit, options: Any = arguments) -> None:
            for seed in range(RUNS):
                fit(X, y, rng=seed, **options)

        def together(plan: Any = plan) -> None:
            solvers.fit_many(plan, X, y, seeds=range(RUNS))

        times = turns({"alone": alone, "together": together}, 1 if quick else 3)
        passes = {}
        for rival, run in (("alone", alone), ("together", together)):
            with counts.counted() as work:
                run()
            passes[rival] = work.read() / X.nnz
        yield {
            "shape": problem.name, "case": name, "runs": RUNS, "steps": arguments["steps"], "d": d,
            "alone": times["alone"].cpu, "together": times["together"].cpu,
            "passes_alone": passes["alone"], "passes_together": passes["together"],
            "normals": _normals(d, RUNS * arguments["steps"]) if "row_norm" in arguments else None,
        }  # fmt: skip


def _normals(d: int, count: int) -> float:
    """Seconds for the vectors of d normals that the fits draw, as they draw them: no sharing of passes removes them."""
    rng, out = np.random.default_rng(0), np.empty(d)
    seconds = turns({"normals": lambda: fill_normals(rng, out)}, 15)["normals"].cpu
    return min(seconds) * count
