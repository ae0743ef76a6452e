"""Data, methods and settings of Tables 4 and 5 and Figures 1 and 2, on rcv1_sub and on PneumoniaMNIST.

Rows are divided once: four fifths to fit, as in the paper's five folds, a tenth to choose settings and a tenth to
report. Rows of images are divided by their norm, so that l = 1; those of RCV1 have norm 1. The paper prints its grids
of step lengths and epochs and not its batches. Here every method has six settings: the step lengths 10, 1 and 0.1 of
the printed grid, times two numbers of epochs (DP-GD-HT) or two batch sizes. The stochastic methods make gradients of 21
passes, where an inner step of SCSG and SVRG counts two gradients per row. These two make B/b inner steps (option II),
for which Theorem 5.1 has less noise. The choice is not charged to epsilon, as in the paper.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dptoolkit import datasets, solvers
from dptoolkit.data import prepare
from paper_checks.curves import PUBLISHED
from paper_checks.seeds import Rng

Array = NDArray[np.float64]
RCV1, XRAY = "rcv1_sub", "pneumoniamnist"
SPARSITY = {RCV1: 1000, XRAY: 200}
GD, SGD, SCSG, SCSG_PLAIN, SVRG_PLAIN = "DP-GD-HT", "DP-SGD-HT", "DP-SCSG-HT", "SCSG-HT", "SVRG-HT"
SOLVERS = {GD: "dp_ight", SGD: "dp_sgd_ht", SCSG: "dp_scsg_ht"}
DELTA, L2, PASSES = 1e-5, 1e-5, 21
BUDGETS = (2.0, 4.0, 6.0, 8.0, 10.0)
# The budgets of the figures, where methods are compared: 18 unanimous pairs are enough for 16 tests (``family``).
COMPARED, REPETITIONS, FEW = (4.0, 6.0), 18, 3
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
