"""The runs behind Figures 1 to 5 of Khanna, Lu and Raff 2023: Sparsifier, private IGHT and Two stage.

All methods have five settings, chosen at each epsilon by the error on validation rows of data sets that are used for
nothing else. Sparsifier has the paper's five radii. How many weights IGHT and Two stage keep is not stated: 8, which is
the truth, or 15, Sparsifier's mean. The ADMM curves are another paper's numbers, which the text does not give.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit import solvers
from paper_checks.curves import CHARGED, PUBLISHED, TIGHT
from paper_checks.khanna_2023_lasso import paths
from paper_checks.khanna_2023_lasso.fits import error, privately, two_stages
from paper_checks.khanna_2023_lasso.outcomes import Outcome, as_part, of_part
from paper_checks.khanna_2023_lasso.problems import Split, kddcup_parts, synthetic_rows
from paper_checks.khanna_2023_lasso.runs import (
    COUNT_EPSILON,
    RADIUS,
    SPARSIFIER,
    STEPS,
    cut,
    noise_scale,
    private_count,
)
from paper_checks.seeds import Source
from paper_checks.shared import Part, Shared

Array = NDArray[Any]
RADII = [float(value) for value in np.geomspace(1, 50, 5)]
_LENGTHS = [0.1, 0.5, 2.0, 8.0, 30.0]
_RIDGES = [1.1, 2.0, 8.0, 32.0, 128.0]
# Data sets for the choice that is charged, which needs a fit for every run.
_CHARGED_SETS = 4


def ight(kept: int) -> str:
    """The name of IGHT that keeps so many weights."""
    return f"IGHT, {kept} weights"


def stages(kept: int) -> str:
    """The name of Two stage that keeps so many weights."""
    return f"Two stage, {kept} weights"


def synthetic(shared: Shared, budgets: list[float], repetitions: int) -> Outcome:
    """All methods on the paper's generator."""

    def run() -> Part:
        source = shared.source.of("figures")
        return as_part(outcome(synthetic_rows, source, budgets, repetitions, (8, 15), charged=_CHARGED_SETS))

    return of_part(shared.part(f"figures {budgets} {repetitions} sets", run))


def kddcup(shared: Shared, budgets: list[float], repetitions: int) -> Outcome:
    """All methods on 48,000 training rows, of which each step reads 8,000."""

    def run() -> Part:
        reported, others = (kddcup_parts(shared.data_home, half) for half in (0, 1))
        source = shared.source.of("figures")
        return as_part(outcome(reported, source, budgets, repetitions, (15,), pad=150, make_tuning=others))

    return of_part(shared.part(f"figure 5 {budgets} {repetitions} sets", run, data=("kddcup99",)))


def outcome(
    make: Callable[[np.random.Generator], Split], rng: Source, budgets: Sequence[float], repetitions: int,
    sizes: Sequence[int], pad: int = 0, tuning: int = 2, charged: int = 0,
    make_tuning: Callable[[np.random.Generator], Split] | None = None,
) -> Outcome:  # fmt: skip
    """Settings by the mean error on validation rows of ``tuning`` data sets, then errors on the test rows of others.

    Where rows are drawn from one file, ``make_tuning`` gives data sets without the rows that are reported. The first
    ``charged`` of those that are reported are also fitted with the choice charged to the same epsilon and delta.
    """
    others = [(make_tuning or make)(rng("tuning data", repetition=number)) for number in range(tuning)]
    grids = {(noise, name): grid for noise in (PUBLISHED, TIGHT) for name, grid in _grids(noise, sizes).items()}
    jobs = [(key, place, number) for key in grids for place in range(len(budgets)) for number in range(5)]
    trials = [fitted(data, rng.of(f"tuning {k}"), [(*key, budgets[place], grids[key][number])
              for key, place, number in jobs]) for k, data in enumerate(others)]  # fmt: skip
    scores = np.mean([[error(data.validation, w) for w in found]
                      for data, found in zip(others, trials, strict=True)], axis=0)  # fmt: skip
    table = scores.reshape(len(grids), len(budgets), 5).argmin(axis=2)
    chosen = {key: [grid[number] for number in row] for (key, grid), row in zip(grids.items(), table, strict=True)}
    final = [(*key, epsilon, setting) for key in grids for epsilon, setting in zip(budgets, chosen[key], strict=True)]
    weights, errors = [], []
    free = {name: grid for (noise, name), grid in grids.items() if noise == PUBLISHED}
    beside: dict[str, list[list[Array]]] = {name: [] for name in free if charged}
    missed: dict[str, list[list[float]]] = {name: [] for name in beside}
    for number in range(repetitions):
        data = make(rng("data", repetition=number))
        found = fitted(data, rng.of(f"set {number}"), final)
        errors.append([error(data.test, w) for w in found])
        weights.append([np.pad(w, (0, max(pad - len(w), 0))) for w in found])
        for name in beside if number < charged else ():
            own = [privately(data, name, free[name], epsilon, rng(CHARGED, f"{name} {epsilon:g}", number))
                   for epsilon in budgets]  # fmt: skip
            beside[name].append(own)
            missed[name].append([error(data.test, w) for w in own])
    shape = (repetitions, len(grids), len(budgets))
    w, e = np.array(weights).reshape(*shape, -1), np.array(errors).reshape(shape)
    every = {key: w[:, k] for k, key in enumerate(grids)}, {key: e[:, k] for k, key in enumerate(grids)}
    for name in beside:
        key = TIGHT, f"{name}, {CHARGED}"
        every[0][key], every[1][key], chosen[key] = np.array(beside[name]), np.array(missed[name]), []
    return Outcome(*every, chosen)


def _grids(noise: str, sizes: Sequence[int]) -> dict[str, list[float]]:
    grids = {SPARSIFIER: RADII} | {ight(kept): _LENGTHS for kept in sizes}
    return grids | ({stages(kept): _RIDGES for kept in sizes} if noise == TIGHT else {})


# What is fitted: noise, method, epsilon, setting.
Job = tuple[str, str, float, float]


def fitted(data: Split, rng: Source, jobs: Sequence[Job]) -> list[Array]:
    """The weights of every job. Jobs of one kind share the passes over the data."""
    out: dict[Job, Array] = {}
    for noise in (PUBLISHED, TIGHT):
        same = [job for job in jobs if job[:2] == (noise, SPARSIFIER)]
        if same:
            out |= zip(same, _sparsified(data, rng, noise, same), strict=True)
    same = [job for job in jobs if job[1].startswith("IGHT")]
    out |= zip(same, _thresholded(data, rng, same), strict=True)
    for job in jobs:
        if job[1].startswith("Two stage"):
            out[job] = two_stages(data, _size(job), job[2], job[3], rng(solver=f"{job}"))
    return [out[job] for job in jobs]


def _size(job: Job) -> int:
    return int(job[1].split()[-2])


def _sparsified(data: Split, rng: Source, noise: str, jobs: Sequence[Job]) -> list[Array]:
    """Algorithm 2 with T = 1000; the radius is the job's setting."""
    features = data.X.shape[1]
    scales = [setting / RADIUS * noise_scale(noise, data.train, features, STEPS, epsilon - COUNT_EPSILON)
              for _, _, epsilon, setting in jobs]  # fmt: skip
    law = paths.LAPLACE if noise == PUBLISHED else paths.GUMBEL
    path = paths.frank_wolfe(
        data.X.astype(np.float32), data.y, np.ones((len(jobs), len(data.y)), bool), np.array([job[3] for job in jobs]),
        np.array(scales), STEPS - 1, rng(solver=f"{SPARSIFIER} {noise}"), law,
    )  # fmt: skip
    kept = private_count(8.0, features, len(jobs), rng(solver=f"count {noise}"))
    return list(cut(path.weights[STEPS - 1], kept).astype(float))


def _thresholded(data: Split, rng: Source, jobs: Sequence[Job]) -> list[Array]:
    """Private IGHT with the figures' 1000 iterations; the length of a step is the job's setting."""
    lengths, kept = np.array([job[3] for job in jobs]), np.array([_size(job) for job in jobs])
    scales = np.array([_ight_noise(job[0], job[2], data.train, data.X.shape[1], data.row_norm) for job in jobs])
    found = paths.hard_thresholding(data.X, data.y, data.row_norm, lengths, kept, scales, STEPS, rng(solver="IGHT"))
    return list(found.astype(float))


@functools.cache
def _ight_noise(noise: str, epsilon: float, n: int, d: int, row_norm: float) -> float:
    plan = solvers.plan(
        "dp_ight", n=n, d=d, loss="logistic", sparsity=1, steps=STEPS, step_size=1.0, row_norm=row_norm,
        epsilon=epsilon, delta=1 / n, calibration="published" if noise == PUBLISHED else "tight",
    )  # fmt: skip
    return float(plan.releases[0].scale)
