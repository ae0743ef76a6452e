"""Sparse solvers, private and not. ``plan`` makes the plan of a private fit without any data."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dptoolkit._validate import one_of
from dptoolkit.solvers.base import DeltaWarning, FitResult, Plan, Release, Run

if TYPE_CHECKING:
    from dptoolkit.solvers.gradient_iht import dp_ight, ight
    from dptoolkit.solvers.l1_frank_wolfe import dp_frank_wolfe, frank_wolfe
    from dptoolkit.solvers.multinomial import dp_multinomial_frank_wolfe
    from dptoolkit.solvers.peeling import peeling_iht
    from dptoolkit.solvers.sgd_thresholding import dp_sgd_ht, sgd_ht
    from dptoolkit.solvers.sparsify import sparsifier
    from dptoolkit.solvers.variance_reduced import dp_scsg_ht, dp_svrg_ht, scsg_ht, svrg_ht

# Solvers load on first use: a fit waits for its own module only.
_MODULES = {
    "dp_ight": "gradient_iht", "ight": "gradient_iht", "dp_frank_wolfe": "l1_frank_wolfe",
    "frank_wolfe": "l1_frank_wolfe", "sparsifier": "sparsify", "dp_multinomial_frank_wolfe": "multinomial",
    "peeling_iht": "peeling", "dp_sgd_ht": "sgd_thresholding", "sgd_ht": "sgd_thresholding",
    "dp_scsg_ht": "variance_reduced", "dp_svrg_ht": "variance_reduced", "scsg_ht": "variance_reduced",
    "svrg_ht": "variance_reduced",
}  # fmt: skip
_PRIVATE = tuple(name for name in _MODULES if name.startswith("dp_") or name in ("sparsifier", "peeling_iht"))

__all__ = [
    "DeltaWarning", "FitResult", "Plan", "Release", "dp_frank_wolfe", "dp_ight", "dp_multinomial_frank_wolfe",
    "dp_scsg_ht", "dp_sgd_ht", "dp_svrg_ht", "frank_wolfe", "ight", "peeling_iht", "plan", "prepare", "scsg_ht",
    "sgd_ht", "sparsifier", "svrg_ht",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'dptoolkit.solvers' has no attribute {name!r}")
    return getattr(_module(name), name)


def __dir__() -> list[str]:
    return sorted(__all__)


def _module(name: str) -> Any:
    return importlib.import_module(f"dptoolkit.solvers.{_MODULES[name]}")


def plan(name: str, *, n: int, d: int, **arguments: Any) -> Plan:
    """The plan of solver ``name`` for n rows and d features, from the solver's own arguments."""
    made: Plan = plan_function(name)(n=n, d=d, **arguments)
    return made


def plan_function(name: str) -> Callable[..., Plan]:
    """The function that makes the plan of solver ``name``; its signature lists the arguments."""
    found: Callable[..., Plan] = getattr(_module(one_of("name", name, _PRIVATE)), f"plan_{name}")
    return found


def prepare(plan: Plan, X: Any, y: Any, counts: Any = None) -> Run:
    """The solver of a plan on these data: run(rng, trace=False) is one fit, as often as wanted.

    Validation and clipping are done here, once, from the plan alone; the solvers themselves run what this returns.
    ``counts`` says how often each row occurs.

    Privacy
    -------
    Every call of what is returned spends the plan's event; no ledger is charged. It is meant for audits.
    """
    one_of("plan.solver", plan.solver, _PRIVATE)
    made: Run = getattr(_module(plan.solver), f"prepare_{plan.solver}")(plan, X, y, counts)
    return made
