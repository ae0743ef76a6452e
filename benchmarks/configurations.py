"""Every private solver at its preset and at five other configurations, for tables of what audits find there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dptoolkit import solvers
from dptoolkit.audit import presets
from dptoolkit.solvers.frame.plan import Plan

DELTA = 1e-5
_ROWS: dict[str, Any] = {"n": 200, "d": 16}
_CLIPPED: dict[str, Any] = {"loss": "squared", "grad_norm": 1.0, "step_size": 1.0}
_LOGISTIC: dict[str, Any] = {"loss": "logistic", "row_norm": 1.0}
_IGHT: dict[str, Any] = _ROWS | {"sparsity": 5, "steps": 12}
_SGD: dict[str, Any] = {"n": 400, "d": 8, "sparsity": 3, "steps": 12}
_SCSG: dict[str, Any] = {"n": 1000, "d": 4, "sparsity": 2, "batch_size": 100}
_BALL: dict[str, Any] = {"n": 200, "d": 16, "steps": 12, "feature_bound": 1.0}
_PEEL: dict[str, Any] = {"n": 200, "d": 16, "sparsity": 4, "steps": 5, "step_size": 0.5, "feature_bound": 1.0,
                         "label_bound": 1.0}  # fmt: skip
_MINIMISED: dict[str, Any] = {"n": 200, "d": 5, "row_norm": 1.0, "l2": 0.05}
_ADMM: dict[str, Any] = {"n": 100, "d": 4, "row_norm": 1.0, "rho": 0.5, "weight": 0.01, "steps": 3}
_TRANSFER: dict[str, Any] = {"n": 200, "d": 5, "loss": "huber", "sparsity": 1, "l2": 0.1, "m": 20}
_ZERO_OUT: dict[str, Any] = {"adjacency": "zero-out"}

# By solver five configurations beside the preset: losses, bounds, radius, intercept, relation, sampling, steps, budget.
CONFIGURATIONS: Mapping[str, Sequence[dict[str, Any]]] = {
    "dp_ight": (
        _IGHT | _LOGISTIC | {"step_size": 0.7, "epsilon": 1.5},
        _IGHT | _LOGISTIC | {"step_size": 2.0, "epsilon": 1.0, "fit_intercept": True},
        _IGHT | {"loss": "hinge", "row_norm": 2.0, "step_size": 0.5, "epsilon": 2.0} | _ZERO_OUT,
        _IGHT | {"loss": "squared", "row_norm": 1.0, "label_bound": 1.0, "margin_bound": 1.0, "step_size": 0.5,
                 "epsilon": 1.0},
        _IGHT | {"loss": "huber", "row_norm": 1.0, "step_size": 0.5, "epsilon": 4.0, "steps": 50},
    ),
    "dp_dual_averaging": (
        _IGHT | _LOGISTIC | {"step_size": 0.7, "epsilon": 1.5},
        _IGHT | _LOGISTIC | {"epsilon": 4.0} | _ZERO_OUT,
        _IGHT | {"loss": "softmax", "classes": 3, "row_norm": 1.0, "epsilon": 2.0},
        _IGHT | {"loss": "softmax", "classes": 4, "row_norm": 1.0, "step_size": 0.5, "epsilon": 1.0, "sparsity": None},
        _IGHT | _LOGISTIC | {"step_size": 0.5, "epsilon": 2.0, "fit_intercept": True},
    ),
    "dp_pipeline": (
        {"n": 60, "d": 3, "epsilon": 2.0, "loss": "squared", "row_norm": 1.0, "label_bound": 1.0},
        {"n": 400, "d": 10, "epsilon": 2.0},
        {"n": 2000, "d": 20, "epsilon": 1.0, "sparsity": 5},
        {"n": 60, "d": 3, "epsilon": 4.0, "loss": "softmax", "classes": 3},
        {"n": 60, "d": 3, "epsilon": 1.0, "grad_norm": 0.5},
    ),
    "dp_sgd_ht": (
        _SGD | _CLIPPED | {"batch_size": 100, "epsilon": 2.0},
        _SGD | _LOGISTIC | {"batch_size": 100, "step_size": 1.0, "epsilon": 3.0, "sampling": "poisson"} | _ZERO_OUT,
        _SGD | _LOGISTIC | {"batch_size": 200, "step_size": 1.0, "epsilon": 3.0, "sampling": "poisson",
                            "adjacency": "replace-one"},
        _SGD | _LOGISTIC | {"batch_size": 200, "step_size": 1.0, "epsilon": 4.0, "fit_intercept": True},
        _SGD | _CLIPPED | {"batch_size": 40, "epsilon": 4.0, "sampling": "poisson", "adjacency": "replace-one",
                           "steps": 40},
    ),
    "dp_scsg_ht": (
        _SCSG | _CLIPPED | {"snapshot_size": 800, "epochs": 2, "option": "II", "epsilon": 4.0},
        _SCSG | _CLIPPED | {"snapshot_size": 500, "epochs": 1, "option": "I", "epsilon": 4.0, "sampling": "poisson",
                            "adjacency": "replace-one"},
        _SCSG | _LOGISTIC | {"snapshot_size": 1000, "epochs": 2, "option": "II", "epsilon": 4.0, "step_size": 0.5},
        _SCSG | _CLIPPED | {"snapshot_size": 1000, "epochs": 1, "option": "II", "epsilon": 8.0, "sampling": "poisson"}
        | _ZERO_OUT,
        _SCSG | _LOGISTIC | {"snapshot_size": 500, "epochs": 2, "option": "I", "epsilon": 2.0, "step_size": 0.5,
                             "sampling": "poisson"} | _ZERO_OUT,
    ),
    "dp_svrg_ht": (
        _SCSG | _LOGISTIC | {"epochs": 2, "option": "II", "epsilon": 4.0, "step_size": 0.5},
        _SCSG | _CLIPPED | {"epochs": 1, "option": "II", "epsilon": 4.0},
        _SCSG | _CLIPPED | {"epochs": 2, "option": "I", "epsilon": 2.0, "sampling": "poisson"} | _ZERO_OUT,
        _SCSG | _LOGISTIC | {"epochs": 3, "option": "I", "epsilon": 4.0, "step_size": 0.2, "sampling": "poisson"}
        | _ZERO_OUT,
        _SCSG | _LOGISTIC | {"epochs": 1, "option": "II", "epsilon": 2.0, "step_size": 0.5, "fit_intercept": True},
    ),
    "dp_frank_wolfe": (
        _BALL | {"loss": "logistic", "l1_radius": 3.0, "epsilon": 1.5},
        _BALL | {"loss": "logistic", "l1_radius": 10.0, "epsilon": 2.0, "steps": 20} | _ZERO_OUT,
        _BALL | {"loss": "huber", "l1_radius": 3.0, "epsilon": 1.0, "fit_intercept": True},
        _BALL | {"loss": "squared", "label_bound": 1.0, "l1_radius": 1.0, "epsilon": 2.0},
        _BALL | {"loss": "hinge", "l1_radius": 2.0, "epsilon": 4.0},
    ),
    "sparsifier": (
        _BALL | {"loss": "logistic", "l1_radius": 3.0, "epsilon": 1.5},
        _BALL | {"loss": "logistic", "l1_radius": 0.5, "epsilon": 4.0, "count_share": 0.5} | _ZERO_OUT,
        _BALL | {"loss": "huber", "l1_radius": 2.0, "epsilon": 2.0, "count_share": 0.3},
        _BALL | {"loss": "logistic", "l1_radius": 3.0, "epsilon": 1.5, "count": "fixed", "number": 4},
        _BALL | {"loss": "logistic", "l1_radius": 1.0, "epsilon": 2.0, "fit_intercept": True},
    ),
    "dp_multinomial_frank_wolfe": (
        _BALL | {"classes": 3, "l1_radius": 3.0, "epsilon": 1.5},
        _BALL | {"classes": 3, "l1_radius": 1.0, "epsilon": 1.5, "selection": "columns"},
        _BALL | {"classes": 10, "l1_radius": 5.0, "epsilon": 4.0} | _ZERO_OUT,
        _BALL | {"classes": 2, "l1_radius": 1.0, "epsilon": 2.0, "selection": "columns"} | _ZERO_OUT,
        _BALL | {"classes": 4, "l1_radius": 0.5, "epsilon": 2.0, "fit_intercept": True},
    ),
    "peeling_iht": (
        _PEEL | {"radius": 1.0, "epsilon": 1.5},
        _PEEL | {"radius": 5.0, "epsilon": 4.0} | _ZERO_OUT,
        _PEEL | {"radius": 20.0, "epsilon": 2.0, "sparsity": 8},
        _PEEL | {"radius": 2.0, "epsilon": 2.0, "data": "split"},
        _PEEL | {"radius": 1.0, "epsilon": 2.0, "step_size": 0.05, "steps": 20},
    ),
    "objective_perturbation": (
        _MINIMISED | {"loss": "logistic", "epsilon": 2.0},
        _MINIMISED | {"loss": "logistic", "epsilon": 1.0, "l2": 1.0} | _ZERO_OUT,
        _MINIMISED | {"loss": "hinge", "epsilon": 4.0, "l2": 0.1},
        _MINIMISED | {"loss": "huber", "epsilon": 1.0, "fit_intercept": True},
        _MINIMISED | {"loss": "huber", "epsilon": 2.0, "law": "gamma"},
    ),
    "two_stage": (
        _MINIMISED | {"loss": "huber", "epsilon": 2.0, "sparsity": 1, "blocks": 1},
        _MINIMISED | {"loss": "huber", "epsilon": 4.0, "sparsity": 2, "blocks": 4, "l2": 0.5},
        _MINIMISED | {"loss": "huber", "epsilon": 4.0, "sparsity": 1, "blocks": 1} | _ZERO_OUT,
        _MINIMISED | {"loss": "logistic", "epsilon": 4.0, "sparsity": 1, "blocks": 1},
        _MINIMISED | {"loss": "huber", "epsilon": 2.0, "sparsity": 1, "blocks": 1, "fit_intercept": True},
    ),
    "knowledge_transfer": (
        _TRANSFER | {"feature_bound": 0.5, "epsilon": 2.0, "teacher": "support"},
        _TRANSFER | {"row_norm": 2.0, "epsilon": 4.0, "teacher": "ridge", "features": "gaussian"},
        _TRANSFER | {"row_norm": 1.0, "epsilon": 4.0, "teacher": "propose-test-release"} | _ZERO_OUT,
        _TRANSFER | {"feature_bound": 0.5, "epsilon": 2.0, "teacher": "support", "sparsity": 2},
        _TRANSFER | {"row_norm": 1.0, "epsilon": 2.0, "teacher": "dp-ight", "steps": 10, "loss": "logistic",
                     "l2": None},
    ),
    "dp_admm": (
        _ADMM | {"loss": "logistic", "epsilon": 4.0} | _ZERO_OUT,
        _ADMM | {"loss": "logistic", "epsilon": 4.0},
        _ADMM | {"loss": "huber", "epsilon": 1.0, "steps": 10, "fit_intercept": True},
        _ADMM | {"loss": "hinge", "epsilon": 8.0},
        _ADMM | {"loss": "huber", "epsilon": 2.0, "penalty": "l1"} | _ZERO_OUT,
    ),
}  # fmt: skip


def configurations(solver: str) -> Iterator[tuple[str, Plan]]:
    """(name, plan) of the preset with epsilon 1 and of the five others."""
    yield "preset, epsilon=1", presets.plan(solver, 1.0, DELTA)
    for arguments in CONFIGURATIONS[solver]:
        yield named(arguments), solvers.plan(solver, **{"delta": DELTA} | arguments)


def named(arguments: Mapping[str, Any]) -> str:
    """The arguments in one line: values that say what they are alone, others with their names."""
    return ", ".join(str(v) if isinstance(v, str) else f"{key}={v}" for key, v in arguments.items())
