"""What the stochastic classifier and regressor share: the solver and the arguments of a method."""

from __future__ import annotations

from typing import Any

from dptoolkit._validate import one_of

_SOLVERS = {"sgd": "dp_sgd_ht", "svrg": "dp_svrg_ht", "scsg": "dp_scsg_ht"}
# Of the records: a batch, and a snapshot of "scsg". n is public.
_BATCH, _SNAPSHOT = 10, 2


def stochastic_solver(method: str) -> str:
    """The solver of a method."""
    return _SOLVERS[one_of("method", method, tuple(_SOLVERS))]


def stochastic_options(estimator: Any, n: int) -> dict[str, Any]:
    """The solver's arguments for n records."""
    names = ["row_norm", "sparsity", "step_size", "fit_intercept", "steps" if estimator.method == "sgd" else "epochs"]
    size = max(1, n // _BATCH) if estimator.batch_size is None else estimator.batch_size
    options = {name: getattr(estimator, name) for name in names} | {"batch_size": size}
    return options | ({"snapshot_size": max(size, n // _SNAPSHOT)} if estimator.method == "scsg" else {})
