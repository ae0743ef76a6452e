"""What is fitted: the arguments of every solver on every shape, and the plain steps that do the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from benchmarks.lib import plain as _plain
from benchmarks.lib.problems import Problem
from dptoolkit import solvers

Array = NDArray[np.float64]
DELTA, BATCH, L2 = 1e-6, 64, 1e-3
# The plain minimisers stop where n times the mean gradient is this: the tolerance that ours are certified to, in units
# of one record's gradient.
PERTURBED_ACCURACY, ADMM_ACCURACY = 1e-5, 1e-3
# (steps, rng) -> so many plain steps.
Plain = Callable[[int, np.random.Generator], Any]


@dataclass(frozen=True)
class Case:
    """A fit: ``steps`` of it are counted, of which ``timed`` are timed of the plain loop."""

    solver: str
    arguments: dict[str, Any]
    steps: int
    timed: int
    plain: Plain | None = None
    note: str = ""

    @property
    def name(self) -> str:
        return self.solver + (f", {self.note}" if self.note else "")

    def with_fresh_budget(self, count: int) -> dict[str, Any]:
        """The arguments with another last digit of delta, so that no plan is remembered."""
        return self.arguments | {"delta": DELTA * (1 - 1e-12 * count)}


def arguments(solver: str, shape: tuple[int, int], epsilon: float) -> dict[str, Any]:
    """Arguments with which a solver takes some tenths of a second at the size of RCV1."""
    (n, d), budget = shape, {"epsilon": epsilon, "delta": DELTA}
    keep = {"sparsity": min(50, d // 3)}
    rows = {"loss": "logistic", "row_norm": 1.0}
    entries = {"feature_bound": 1.0}
    batches = {**rows, **keep, "step_size": 1.0, "batch_size": min(BATCH, n // 20)}
    ball = {"l1_radius": 50.0 if d > 10_000 else 20.0, **entries}
    own: dict[str, dict[str, Any]] = {
        "dp_ight": {**rows, **keep, "steps": 50, "step_size": 4.0},
        "dp_dual_averaging": {**rows, **keep, "steps": 50, "step_size": 4.0},
        "dp_frank_wolfe": {"loss": "logistic", **ball, "steps": 1000},
        "sparsifier": {**ball, "steps": 200, "count": "fixed", "number": 20},
        "dp_multinomial_frank_wolfe": {"classes": 2, **ball, "steps": 50},
        "peeling_iht": {**keep, "steps": 50, "step_size": 0.5, "radius": 1.0, "label_bound": 1.0, **entries},
        "dp_sgd_ht": {**batches, "steps": 300},
        "dp_svrg_ht": {**batches, "epochs": 2, "option": "II"},
        "dp_scsg_ht": {**batches, "epochs": 10, "snapshot_size": min(640, n // 4), "option": "II"},
        "objective_perturbation": {**rows, "l2": L2},
        "dp_admm": {**rows, "steps": 5},
        "dp_pipeline": {"loss": "logistic"},
        "two_stage": {**rows, **keep, "blocks": 10, "l2": 1e-2},
        "knowledge_transfer": {"loss": "logistic", "row_norm": 1.0, **keep, "student_steps": 10, "m": 200},
    }
    return own[solver] | budget


def cases(problem: Problem, epsilon: float) -> list[Case]:
    """Every solver with a plain rival, on this problem."""
    X, y, shape = problem.X, np.asarray(problem.y, dtype=float), problem.X.shape
    columns = X.tocsc() if sparse.issparse(X) else X
    options = {name: arguments(name, shape, epsilon) for name in solvers.PRIVATE}
    noise = {name: solvers.plan(name, n=shape[0], d=shape[1], **options[name]).noise for name in RIVALS}
    keep, radius = options["dp_ight"]["sparsity"], options["dp_frank_wolfe"]["l1_radius"]
    batch, snapshot = options["dp_sgd_ht"]["batch_size"], options["dp_scsg_ht"]["snapshot_size"]
    one_hot = np.eye(2)[y.astype(int)]
    admm = solvers.plan("dp_admm", n=shape[0], d=shape[1], **options["dp_admm"]).settings
    return [
        Case("dp_ight", options["dp_ight"], 50, 20, lambda steps, rng: _plain.ight_steps(
            X, y, "logistic", keep, 4.0, noise["dp_ight"], steps, rng)),
        Case("dp_dual_averaging", options["dp_dual_averaging"], 50, 20, lambda steps, rng: _plain.dual_averaging_steps(
            X, y, keep, 4.0, noise["dp_dual_averaging"], steps, rng)),
        Case("dp_frank_wolfe", options["dp_frank_wolfe"], 1000, 20,
             lambda steps, rng: _plain.incremental_frank_wolfe_steps(
                 X, columns, y, "logistic", radius, noise["dp_frank_wolfe"], steps, rng)),
        Case("dp_frank_wolfe", options["dp_frank_wolfe"] | {"loss": "squared", "label_bound": 1.0}, 1000, 20,
             lambda steps, rng: _plain.incremental_frank_wolfe_steps(
                 X, columns, y, "squared", radius, noise["dp_frank_wolfe"], steps, rng), "squared loss"),
        Case("dp_multinomial_frank_wolfe", options["dp_multinomial_frank_wolfe"], 50, 10,
             lambda steps, rng: _plain.multinomial_steps(
                 X, one_hot, radius, noise["dp_multinomial_frank_wolfe"], steps, rng)),
        Case("peeling_iht", options["peeling_iht"], 50, 20, lambda steps, rng: _plain.peeling_steps(
            X, y, keep, 0.5, 1.0, noise["peeling_iht"], steps, rng)),
        Case("dp_sgd_ht", options["dp_sgd_ht"], 300, 50, lambda steps, rng: _plain.sgd_steps(
            X, y, keep, batch, 1.0, noise["dp_sgd_ht"], steps, rng)),
        Case("dp_scsg_ht", options["dp_scsg_ht"], 10, 2, lambda steps, rng: _plain.reduced_epochs(
            X, y, keep, snapshot, batch, 1.0, noise["dp_scsg_ht"], steps, rng)),
        Case("dp_svrg_ht", options["dp_svrg_ht"], 2, 1, lambda steps, rng: _plain.reduced_epochs(
            X, y, keep, shape[0], batch, 1.0, noise["dp_svrg_ht"], steps, rng)),
        Case("objective_perturbation", options["objective_perturbation"], 1, 1,
             lambda steps, rng: _plain.perturbed_minimiser(
                 X, y, L2, rng.normal(0.0, noise["objective_perturbation"], shape[1]), np.zeros(shape[1]),
                 PERTURBED_ACCURACY / shape[0])),
        Case("dp_admm", options["dp_admm"], 5, 5, lambda steps, rng: _plain.admm_steps(
            X, y, admm.rho, admm.weight, noise["dp_admm"], steps, rng, ADMM_ACCURACY / shape[0])),
    ]  # fmt: skip


RIVALS = (
    "dp_ight", "dp_dual_averaging", "dp_frank_wolfe", "dp_multinomial_frank_wolfe", "peeling_iht", "dp_sgd_ht",
    "dp_scsg_ht", "dp_svrg_ht", "objective_perturbation", "dp_admm",
)  # fmt: skip
# Solvers without a plain rival: they run parts of the others, or search, and cannot be written as a short loop. Only
# their memory is measured.
WITHOUT_RIVAL = tuple(name for name in solvers.PRIVATE if name not in RIVALS)
