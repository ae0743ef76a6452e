"""The runs behind Tables 4 and 5, Figures 1 and 2 and the sentences on them, on rcv1_sub and on PneumoniaMNIST.

Rows are divided once: four fifths to fit, as in the paper's five folds, a tenth to choose settings and a tenth to
report. Rows of images are divided by their norm, so that l = 1; those of RCV1 have norm 1. The paper prints its grids
of step lengths and epochs and not its batches. Here every method has six settings: the step lengths 10, 1 and 0.1 of
the printed grid, times two numbers of epochs (DP-GD-HT) or two batch sizes. The stochastic methods make gradients of 21
passes, where an inner step of SCSG and SVRG counts two gradients per row. These two make B/b inner steps (option II),
for which Theorem 5.1 has less noise. The choice is not charged to epsilon, as in the paper.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dptoolkit import datasets, solvers
from dptoolkit.data import prepare
from paper_checks.curves import PUBLISHED
from paper_checks.seeds import Rng
from paper_checks.shared import Part, Shared

Array = NDArray[np.float64]
RCV1, XRAY = "rcv1_sub", "pneumoniamnist"
SPARSITY = {RCV1: 1000, XRAY: 200}
GD, SGD, SCSG, SCSG_PLAIN, SVRG_PLAIN = "DP-GD-HT", "DP-SGD-HT", "DP-SCSG-HT", "SCSG-HT", "SVRG-HT"
SOLVERS = {GD: "dp_ight", SGD: "dp_sgd_ht", SCSG: "dp_scsg_ht"}
DELTA, L2, PASSES = 1e-5, 1e-5, 21
BUDGETS = (2.0, 4.0, 6.0, 8.0, 10.0)
# The budgets of the figures, where methods are compared: as many repetitions as 20 sign tests at 1 % need.
COMPARED, REPETITIONS, FEW = (4.0, 6.0), 12, 3
# Fits of each setting for the choice: by one fit alone a setting can be chosen for its luck.
TRIALS = 2
# The budget at which the settings of each budget are chosen.
CHOSEN_AT = {2.0: 2.0, 4.0: 4.0, 6.0: 4.0, 8.0: 10.0, 10.0: 10.0}
STEPS = (10.0, 1.0, 0.1)


class Rows(NamedTuple):
    """Rows with labels 0 and 1."""

    X: Any
    y: Array


@dataclass(frozen=True)
class Problem:
    """A data set in three parts; ``prepared`` are the rows to fit, ready for the solvers."""

    name: str
    fitted: Rows
    choice: Rows
    report: Rows
    prepared: Any

    @property
    def n(self) -> int:
        """The number of rows to fit."""
        return len(self.fitted.y)


class Setting(NamedTuple):
    """A step length, and steps (DP-GD-HT) or a batch size in parts of n."""

    step: float
    number: int


def grid(method: str) -> list[Setting]:
    """The six settings of a method: 20 or 100 epochs of DP-GD-HT, batches of n/8 or n/32 rows of the others."""
    numbers = (20, 100) if method == GD else (8, 32)
    return [Setting(step, number) for number in numbers for step in STEPS]


def arguments(method: str, setting: Setting, n: int) -> dict[str, Any]:
    """The solver's arguments. A snapshot of SCSG has half of the rows, one of SVRG all; an outer loop costs 3 B."""
    if method == GD:
        return {"steps": setting.number, "step_size": setting.step}
    b = n // setting.number
    shared = {"step_size": setting.step, "batch_size": b, "l2": L2}
    if method == SGD:
        return shared | {"steps": PASSES * setting.number}
    share = 1 if method == SVRG_PLAIN else 2
    return shared | {"snapshot_size": b * (setting.number // share), "epochs": PASSES * share // 3, "option": "II"}


def plan(method: str, noise: str, epsilon: float, setting: Setting, problem: Problem) -> Any:
    """The plan of a private fit. The gradient of DP-GD-HT leaves out the penalty of 1e-5, which f(x) includes."""
    return _plan(method, noise, epsilon, setting, problem.name, problem.n, problem.fitted.X.shape[1])


@functools.cache
def _plan(method: str, noise: str, epsilon: float, setting: Setting, name: str, n: int, d: int) -> Any:
    return solvers.plan(
        SOLVERS[method], n=n, d=d, loss="logistic", sparsity=SPARSITY[name], row_norm=1.0, epsilon=epsilon, delta=DELTA,
        calibration="published" if noise == PUBLISHED else "tight", **arguments(method, setting, n),
    )  # fmt: skip


@functools.cache
def problem(name: str, source: Rng, data_home: str | None) -> Problem:
    """The three parts of a data set, from one random order of its rows."""
    data = datasets.load(name, data_home=data_home)
    X, y = data.X, data.y
    if name == XRAY:
        X = X / np.linalg.norm(X, axis=1, keepdims=True)
    count = len(y)
    order = source(name, "order of rows").permutation(count)
    parts = np.split(order, [4 * count // 5, 9 * count // 10])
    fitted, choice, report = (Rows(X[part], y[part]) for part in parts)
    return Problem(name, fitted, choice, report, prepare(fitted.X))


def loss(rows: Rows, weights: Array) -> Any:
    """The mean logistic loss of one vector of weights, or of each column."""
    margins = rows.X @ weights
    signs = rows.y if weights.ndim == 1 else rows.y[:, None]
    return np.mean(np.logaddexp(0.0, margins) - signs * margins, axis=0)


# --- parts of the shared runs -----------------------------------------------------------------------------------------


def private(shared: Shared, name: str, method: str, noise: str) -> Part:
    """Of a private method: settings, true epsilons, held-out losses and, at the budgets of the figures, curves."""
    return shared.part(f"{name} {method} {noise}", lambda: _private(shared, name, method, noise))


def _private(shared: Shared, name: str, method: str, noise: str) -> Part:
    at = problem(name, shared.source, shared.data_home)
    chosen = {epsilon: _chosen(shared, at, method, noise, epsilon) for epsilon in sorted(set(CHOSEN_AT.values()))}
    found: Part = {}
    for epsilon in BUDGETS:
        setting = chosen[CHOSEN_AT[epsilon]]
        one = plan(method, noise, epsilon, setting, at)
        compared = epsilon in COMPARED
        seeds = _seeds(shared, at, "fits to report", REPETITIONS if compared else FEW)
        every = max(1, len_of_run(method, setting, at.n) // 40) if compared else False
        fits = solvers.fit_many(one, at.prepared, at.fitted.y, seeds=seeds, trace=every)
        found[f"{epsilon:g}"] = {
            "setting": list(setting), "true": one.guarantee.epsilon(DELTA),
            "losses": [float(loss(at.report, fit.coef)) for fit in fits],
            "curves": [curve(at, method, setting, fit) for fit in fits] if compared else [],
        }  # fmt: skip
    return found


def _chosen(shared: Shared, at: Problem, method: str, noise: str, epsilon: float) -> Setting:
    """The setting with the smallest mean loss on the rows for the choice."""
    settings = grid(method)
    plans = [plan(method, noise, epsilon, setting, at) for setting in settings]
    fits = solvers.fit_many(plans, at.prepared, at.fitted.y, seeds=_seeds(shared, at, "fits to choose", TRIALS))
    return settings[int(np.argmin([np.mean([loss(at.choice, fit.coef) for fit in own]) for own in fits]))]


def _seeds(shared: Shared, at: Problem, use: str, count: int) -> list[int]:
    return [int(shared.source(at.name, use, repetition).integers(2**32)) for repetition in range(count)]


def open_fits(shared: Shared, name: str, method: str) -> Part:
    """Of SCSG-HT or SVRG-HT without privacy: the setting, held-out losses and curves."""
    return shared.part(f"{name} {method}", lambda: _open_fits(shared, name, method))


def _open_fits(shared: Shared, name: str, method: str) -> Part:
    at = problem(name, shared.source, shared.data_home)

    def fit(setting: Setting, draw: np.random.Generator, trace: bool = False) -> Any:
        return solvers.scsg_ht(at.prepared, at.fitted.y, loss="logistic", sparsity=SPARSITY[name], rng=draw,
                               trace=trace, **arguments(method, setting, at.n))  # fmt: skip

    def score(setting: Setting) -> float:
        draws = (shared.source(name, f"{method} {setting}", trial) for trial in range(TRIALS))
        return float(np.mean([loss(at.choice, fit(setting, draw).coef) for draw in draws]))

    best = min(grid(method), key=score)
    fits = [fit(best, shared.source(name, method, repetition), True) for repetition in range(REPETITIONS)]
    return {
        "setting": list(best), "losses": [float(loss(at.report, one.coef)) for one in fits],
        "curves": [curve(at, method, best, one) for one in fits],
    }  # fmt: skip


def scaled(shared: Shared, epsilon: float, factors: list[float]) -> Part:
    """DP-SCSG-HT on RCV1 with multiples of its published noise: the true epsilon and the loss of the best setting."""
    return shared.part(f"{RCV1} multiples {epsilon:g} {factors}", lambda: _scaled(shared, epsilon, factors))


def _scaled(shared: Shared, epsilon: float, factors: list[float]) -> Part:
    at = problem(RCV1, shared.source, shared.data_home)
    settings, found = grid(SCSG), {}
    for factor in factors:
        plans = [plan(SCSG, PUBLISHED, epsilon, setting, at).with_noise(factor=factor) for setting in settings]
        seeds = _seeds(shared, at, f"noise times {factor:g}", TRIALS)
        fits = solvers.fit_many(plans, at.prepared, at.fitted.y, seeds=seeds)
        best = int(np.argmin([np.mean([loss(at.choice, fit.coef) for fit in own]) for own in fits]))
        found[f"{factor:g}"] = {
            "setting": list(settings[best]), "true": plans[best].guarantee.epsilon(DELTA),
            "loss": float(np.mean([loss(at.report, fit.coef) for fit in fits[best]])),
        }  # fmt: skip
    return found


# --- curves ----------------------------------------------------------------------------------------------------------


def len_of_run(method: str, setting: Setting, n: int) -> int:
    """The number of points of a full trace: steps, or snapshots."""
    given = arguments(method, setting, n)
    return int(given["steps"] if "steps" in given else given["epochs"])


def curve(at: Problem, method: str, setting: Setting, fit: Any) -> list[list[float]]:
    """Passes over the rows, thresholdings and objective along a fit: f(x) is the loss on the fitted rows + penalty."""
    given = arguments(method, setting, at.n)
    points = [[0.0, 0.0, float(np.log(2.0))]]
    for place, (steps, weights) in enumerate(_iterates(fit, at.fitted.X.shape[1]), start=1):
        if method == GD:
            passes = float(steps)
        elif method == SGD:
            passes = steps * given["batch_size"] / at.n
        else:
            passes = (place * given["snapshot_size"] + 2 * steps * given["batch_size"]) / at.n
        value = float(loss(at.fitted, weights)) + L2 / 2 * float(weights @ weights)
        points.append([passes, float(steps), value])
    return points


def _iterates(fit: Any, d: int) -> Iterator[tuple[int, Array]]:
    for steps, places, values in fit.history["iterates"]:
        weights = np.zeros(d)
        weights[places] = values
        yield int(steps), weights
