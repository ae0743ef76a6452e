"""How the time and the counted work of solvers grow with n, d, entries per row and steps, one at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.lib.race import turns
from benchmarks.suite.cases import Case, arguments
from benchmarks.suite.fits import work
from dptoolkit import datasets, solvers

QUICK = ("dp_ight", "dp_frank_wolfe", "dp_sgd_ht")
SOLVERS = ("dp_ight", "dp_dual_averaging", "dp_frank_wolfe", "peeling_iht", "dp_sgd_ht", "objective_perturbation")
EPSILON = 100.0
BASE = {"n": 5_000, "d": 20_000, "nonzeros": 40, "steps": 40}
FACTORS = (1, 2, 4, 8)
AXES = tuple(BASE)


def measure(quick: bool) -> Iterator[dict[str, Any]]:
    """One row for every solver, axis and size: the best CPU seconds of the iterations, passes over X, draws."""
    for axis in AXES:
        for factor in FACTORS[:2] if quick else FACTORS:
            size = BASE | {axis: factor * BASE[axis]}
            data = datasets.make_rcv1_like(n=size["n"], d=size["d"], nonzeros=size["nonzeros"], rng=0)
            jobs = {name: _case(name, data.shape, size["steps"]) for name in (QUICK if quick else SOLVERS)}
            if axis == "steps":
                jobs.pop("objective_perturbation", None)
            yield from _rows(jobs, data, axis, size[axis], 2 if quick else 4)


def _case(name: str, shape: tuple[int, int], steps: int) -> Case:
    options = arguments(name, shape, EPSILON)
    per = {"dp_frank_wolfe": 10, "dp_sgd_ht": 5}.get(name, 1)
    if "steps" in options:
        options["steps"] = per * steps
    return Case(name, options, options.get("steps", 1), 0)


def _rows(jobs: dict[str, Case], data: datasets.Dataset, axis: str, size: int, rounds: int) -> Iterator[dict[str, Any]]:
    n, d = data.shape
    rng = np.random.default_rng(0)

    def prepared(case: Case) -> Any:
        run = solvers.bind(solvers.plan(case.solver, n=n, d=d, **case.arguments), data.X, data.y)
        return lambda: run.fit(rng)

    times = turns({name: prepared(case) for name, case in jobs.items()}, rounds)
    for name, case in jobs.items():
        counts = work(case, data.X, data.y)
        yield {
            "solver": name, "axis": axis, "size": size, "cpu": min(times[name].cpu),
            "entries": counts["passes"] * data.X.nnz, "draws": counts["draws"],
        }  # fmt: skip


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The slope of the line through log values over log sizes."""
    return float(np.polyfit(np.log(sizes), np.log(np.maximum(values, 1e-12)), 1)[0])
