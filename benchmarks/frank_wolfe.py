"""Private Frank-Wolfe where it learns and where it does not: whole calls against a plain loop, with counted work.

    python -m benchmarks.frank_wolfe                       # synthetic rows alone
    python -m benchmarks.frank_wolfe --data FOLDER         # and the real rcv1_sub, a9a and mnist
    python -m benchmarks.frank_wolfe --strict              # exit code 1 if a target is missed

Run it with NUMBA_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1, one core against one core. Times are processor time, the best
of several turns that the rivals take one after the other. A whole call includes validation, clipping, both
orientations of the data and planning: every call has a budget of its own, so that no accounting is remembered.
The plain loop keeps its margins up to date, as a good engineer would, and draws 2d Gumbel numbers a step; of its steps
some are timed.
"""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.lib.plain import incremental_frank_wolfe_steps
from benchmarks.lib.race import Check, race, show, verdict
from dptoolkit import datasets, losses, solvers
from dptoolkit.datasets import Dataset
from dptoolkit.solvers.engine.vertex_paths import WORK

STEPS, PLAIN_STEPS, DELTA = 1000, 20, 1e-6
EPSILONS = (1.0, 10.0, 100.0, 1000.0)


def arguments(radius: float, epsilon: float) -> dict[str, Any]:
    """The arguments that all fits of this benchmark have in common."""
    return {"loss": "logistic", "l1_radius": radius, "steps": STEPS, "feature_bound": 1.0, "epsilon": epsilon,
            "delta": DELTA}  # fmt: skip


def whole_call(data: Dataset, radius: float, epsilon: float, target: float, rounds: int) -> Check:
    """A whole private fit against as many plain steps; prints the counted work of a step beside the time."""
    X, y, call = data.X, np.asarray(data.y, dtype=float), arguments(radius, epsilon)
    # The plain loop gets its columns for nothing.
    columns, generator = X.tocsc(), np.random.default_rng(0)
    turn = itertools.count(1)
    plan = solvers.plan("dp_frank_wolfe", n=X.shape[0], d=X.shape[1], **call)
    best = race(
        {
            "ours": lambda: solvers.dp_frank_wolfe(X, y, rng=0, **call | {"delta": DELTA * (1 + 1e-3 * next(turn))}),
            "plain": lambda: incremental_frank_wolfe_steps(
                X, columns, y, "logistic", radius, plan.noise, PLAIN_STEPS, generator
            ),
        },
        rounds,
    )
    ours, plain = best["ours"].cpu, best["plain"].cpu * STEPS / PLAIN_STEPS
    work = np.zeros(len(WORK), dtype=np.int64)
    run: Any = solvers.bind(plan, X, y)
    run.counted(np.random.default_rng(0), False, work)
    counts = ", ".join(f"{name} {value / STEPS:,.0f}" for name, value in zip(WORK, work, strict=True))
    times = f"ours {1e3 * ours:.0f} ms, plain {1e3 * plain:.0f} ms"
    print(f"  {data.name}, epsilon {epsilon:g}: {times}; a step: {counts}")
    return Check(f"{data.name}, radius {radius:g}, epsilon {epsilon:g}: plain / ours", plain / ours, target, True)


def objective_gap(data: Dataset, radius: float, epsilon: float, seeds: int) -> Check:
    """How much worse the mean final objective is than that of the textbook iteration."""
    X, y, loss = data.X, np.asarray(data.y, dtype=float), losses.get("logistic")

    def mean_objective(refresh: float) -> float:
        fits = [
            solvers.dp_frank_wolfe(X, y, rng=seed, refresh=refresh, **arguments(radius, epsilon))
            for seed in range(seeds)
        ]
        return float(np.mean([loss.objective(np.asarray(X @ fit.coef), y) for fit in fits]))

    dithered, exact = mean_objective(0.25), mean_objective(1.0)
    zero = loss.objective(np.zeros(len(y)), y)
    print(f"  {data.name}, epsilon {epsilon:g}: {dithered:.5f}, textbook {exact:.5f}, zero weights {zero:.5f}")
    gap = 100 * (dithered / exact - 1)
    return Check(f"{data.name}, radius {radius:g}, epsilon {epsilon:g}: objective above textbook", gap, 1, False, "%")


def real(name: str, home: str) -> Dataset:
    """A real set with entries of at most 1; mnist's labels are whether the digit is at least 5."""
    data = datasets.load(name, data_home=home)
    if name != "mnist":
        return data
    X = data.X.astype(float)
    y = (np.asarray(data.y) >= 5).astype(np.float64)
    return Dataset(X / 255.0 if X.max() > 1 else X, y, "binary", name, "digit >= 5")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.frank_wolfe", description=__doc__.splitlines()[0])
    parser.add_argument("--data", metavar="FOLDER", help="folder with the real sets; default: DPTOOLKIT_DATA")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds (default 3)")
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds to compare objectives (default 1)")
    parser.add_argument("--strict", action="store_true", help="exit code 1 if a target is missed")
    options = parser.parse_args(argv)
    home = options.data or os.environ.get("DPTOOLKIT_DATA")
    cases: list[tuple[Dataset, float, tuple[float, ...], float, tuple[float, ...]]]
    cases = [(datasets.make_rcv1_like(n=300_000, rng=0), 50.0, EPSILONS, 20.0, ())]
    if home:
        cases = [
            (real("rcv1_sub", home), 50.0, EPSILONS, 40.0, EPSILONS),
            (real("a9a", home), 20.0, (100.0, 1000.0), 5.0, (100.0, 1000.0)),
            (real("mnist", home), 20.0, (100.0, 1000.0), 10.0, (100.0,)),
            *cases,
        ]
    checks = []
    for data, radius, epsilons, target, compared in cases:
        own_checks = [whole_call(data, radius, epsilon, target, options.rounds) for epsilon in epsilons]
        own_checks += [objective_gap(data, radius, epsilon, options.seeds) for epsilon in compared]
        checks += show(data.name, own_checks)
    return verdict(checks, options.strict)


if __name__ == "__main__":
    raise SystemExit(main())
