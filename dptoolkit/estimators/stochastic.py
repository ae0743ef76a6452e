"""What the stochastic classifier and regressor share: the solver and the arguments of a method."""

from __future__ import annotations

from typing import Any

from dptoolkit._validate import one_of

_SOLVERS = {"sgd": "dp_sgd_ht", "svrg": "dp_svrg_ht", "scsg": "dp_scsg_ht"}
# Parts of the records: a batch of "svrg" and "scsg", a snapshot of "scsg". n is public.
_BATCH, _SNAPSHOT = 10, 2


def stochastic_solver(method: str) -> str:
    """The solver of a method."""
    return _SOLVERS[one_of("method", method, tuple(_SOLVERS))]


def stochastic_options(estimator: Any, n: int) -> dict[str, Any]:
    """The solver's arguments for n records; what "sgd" is not given follows from its rule."""
    names = ["row_norm", "sparsity", "step_size", "fit_intercept", "batch_size"]
    if estimator.method == "sgd":
        return {name: getattr(estimator, name) for name in [*names, "steps"]}
    options = {name: getattr(estimator, name) for name in [*names, "epochs"]}
    if estimator.batch_size is None:
        options["batch_size"] = max(1, n // _BATCH)
    if estimator.method == "scsg":
        options["snapshot_size"] = max(options["batch_size"], n // _SNAPSHOT)
    return options
