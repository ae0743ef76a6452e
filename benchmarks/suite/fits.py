"""Fits against plain steps: whole calls with planning, iterations alone, what was learnt, counted work, floors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.lib import plain
from benchmarks.lib.problems import Problem
from benchmarks.lib.race import turns
from benchmarks.suite import counts, shapes
from benchmarks.suite.cases import Case, arguments, cases
from dptoolkit import solvers

Row = dict[str, Any]
# The epsilons of the fits: one at which little can be learnt, and one at which much is learnt.
EPSILONS = (1.0, 100.0)
FRANK_WOLFE_EPSILONS = (1.0, 10.0, 100.0, 1000.0)
# No further round of a race is begun after so many seconds.
PATIENCE = 6.0
_FRESH = itertools.count(1)


def measure(shape: str, home: str | None, quick: bool) -> Iterator[Row]:
    """One row for every solver and epsilon on a shape; the largest shape has the two best known solvers only."""
    problem = shapes.load(shape, home, quick)
    some = ("dp_ight", "dp_frank_wolfe") if shape == "long" else None
    for epsilon in FRANK_WOLFE_EPSILONS:
        for case in cases(problem, epsilon):
            if quick and epsilon != EPSILONS[-1]:
                continue
            if epsilon not in EPSILONS and (case.solver != "dp_frank_wolfe" or case.note):
                continue
            if some is None or (case.solver in some and not case.note):
                yield fit_row(problem, case, epsilon, 1 if quick else 3)


def fit_row(problem: Problem, case: Case, epsilon: float, rounds: int) -> Row:
    """Seconds of every turn on one core, errors on the test rows, counted work of one fit."""
    X, y, (n, d) = problem.X, np.asarray(problem.y, dtype=float), problem.X.shape
    fit, plan = getattr(solvers, case.solver), solvers.plan(case.solver, n=n, d=d, **case.arguments)
    run, rng, results, plain_steps = solvers.bind(plan, X, y), np.random.default_rng(0), [], case.plain
    assert plain_steps is not None

    def whole() -> None:
        number = next(_FRESH)
        results.append(fit(X, y, rng=number, **case.with_fresh_budget(number)))

    rivals: dict[str, Callable[[], Any]] = {
        "whole": whole,
        "iterations": lambda: run.fit(rng),
        "plain": lambda: plain_steps(case.timed, rng),
    }
    times = {name: times_of.cpu for name, times_of in turns(rivals, rounds, PATIENCE).items()}
    share = case.steps / case.timed
    return {
        "shape": problem.name, "n": n, "d": d, "entries": shapes.entries_of(X), "solver": case.name,
        "epsilon": epsilon, "steps": case.steps, "timed": case.timed, "majority": problem.plain,
        "error": float(np.mean([problem.error(_margins(result, problem)) for result in results])),
        "whole": times["whole"], "iterations": times["iterations"], "plain": [share * one for one in times["plain"]],
        **work(case, X, y),
    }  # fmt: skip


def _margins(result: solvers.FitResult, problem: Problem) -> Any:
    coef = np.atleast_2d(result.coef)
    if len(coef) == 1:
        return np.asarray(problem.X_test @ coef[0])
    # Of two classes the second wins where its margin is larger.
    return np.asarray(problem.X_test @ (coef[1] - coef[0]))


def work(case: Case, X: Any, y: Any) -> Row:
    """Counted work of one fit: passes over X, random numbers, compilations after the first fit."""
    plan = solvers.plan(case.solver, n=X.shape[0], d=X.shape[1], **case.arguments)
    rng = np.random.default_rng(0)
    before = counts.place(rng)
    with counts.counted() as tally:
        solvers.bind(plan, X, y).fit(rng)
    return {
        "passes": tally.read() / shapes.entries_of(X),
        "draws": counts.draws(before, counts.place(rng)),
        "compilations": tally.compilations,
    }


# --- floors -------------------------------------------------------------------------------------------


def floors(shape: str, home: str | None, quick: bool) -> Iterator[Row]:
    """Floors, in seconds, that no solver can beat: a pass over the memory of X, a product, random numbers and reads."""
    problem = shapes.load(shape, home, quick)
    X, (n, d), rng = problem.X, problem.X.shape, np.random.default_rng(0)
    values = X.data if hasattr(X, "indices") else X
    indices = X.indices if hasattr(X, "indices") else np.zeros(0, np.int32)
    columns, r, out = X.T, rng.standard_normal(n), np.empty(d)
    some = rng.integers(0, values.size, 100_000)
    flat = np.ravel(values)
    rivals: dict[str, Callable[[], Any]] = {
        "memory": lambda: (values.sum(), indices.max(initial=0)),
        "product": lambda: columns @ r,
        "normals": lambda: rng.standard_normal(out=out),
        "gumbels": lambda: rng.gumbel(size=2 * d),
        "reads": lambda: flat[some],
    }
    best = {name: min(one.cpu) for name, one in turns(rivals, 3 if quick else 9).items()}
    yield {"shape": problem.name, "n": n, "d": d, "entries": shapes.entries_of(X), "size": shapes.size_of(X), **best}


# --- two cores ----------------------------------------------------------------------------------------


def two_cores(shape: str, home: str | None, quick: bool) -> Iterator[Row]:
    """Wall-clock seconds of 50 iterations of hard thresholding: ours, plain on one thread, plain on two."""
    problem = shapes.load(shape, home, quick)
    X, y, (n, d) = problem.X, np.asarray(problem.y, dtype=float), problem.X.shape
    options = arguments("dp_ight", (n, d), 1.0)
    plan = solvers.plan("dp_ight", n=n, d=d, **options)
    run, rng = solvers.bind(plan, X, y), np.random.default_rng(0)
    pair = plain.TwoCores(X, y, options["sparsity"], plan.noise)
    rivals: dict[str, Callable[[], Any]] = {"ours": lambda: run.fit(rng), "two threads": lambda: pair.run(50)}
    times = turns(rivals, 2 if quick else 7)
    yield {
        "shape": problem.name, "n": n, "d": d, "solver": "dp_ight", "steps": 50,
        **{name: one.wall for name, one in times.items()},
    }  # fmt: skip
