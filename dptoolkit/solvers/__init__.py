"""Sparse solvers, private and not. ``plan`` makes the plan of a private fit without any data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dptoolkit._validate import one_of
from dptoolkit.solvers.base import DeltaWarning, FitResult, Plan, Release, Run
from dptoolkit.solvers.gradient_iht import dp_ight, ight, plan_dp_ight, prepare_dp_ight
from dptoolkit.solvers.l1_frank_wolfe import dp_frank_wolfe, frank_wolfe, plan_dp_frank_wolfe, prepare_dp_frank_wolfe
from dptoolkit.solvers.multinomial import dp_multinomial_frank_wolfe, plan_dp_multinomial_frank_wolfe
from dptoolkit.solvers.peeling import peeling_iht, plan_peeling_iht
from dptoolkit.solvers.sgd_thresholding import dp_sgd_ht, plan_dp_sgd_ht, prepare_dp_sgd_ht, sgd_ht
from dptoolkit.solvers.sparsify import plan_sparsifier, prepare_sparsifier, sparsifier
from dptoolkit.solvers.variance_reduced import (
    dp_scsg_ht,
    dp_svrg_ht,
    plan_dp_scsg_ht,
    plan_dp_svrg_ht,
    prepare_dp_scsg_ht,
    scsg_ht,
    svrg_ht,
)

_PLANS: dict[str, Callable[..., Plan]] = {
    "dp_ight": plan_dp_ight,
    "dp_frank_wolfe": plan_dp_frank_wolfe,
    "sparsifier": plan_sparsifier,
    "dp_multinomial_frank_wolfe": plan_dp_multinomial_frank_wolfe,
    "peeling_iht": plan_peeling_iht,
    "dp_sgd_ht": plan_dp_sgd_ht,
    "dp_scsg_ht": plan_dp_scsg_ht,
    "dp_svrg_ht": plan_dp_svrg_ht,
}

# A dp_svrg_ht plan is a dp_scsg_ht plan.
_PREPARE: dict[str, Callable[..., Run]] = {
    "dp_ight": prepare_dp_ight,
    "dp_sgd_ht": prepare_dp_sgd_ht,
    "dp_scsg_ht": prepare_dp_scsg_ht,
    "dp_frank_wolfe": prepare_dp_frank_wolfe,
    "sparsifier": prepare_sparsifier,
}

__all__ = [
    "DeltaWarning", "FitResult", "Plan", "Release", "dp_frank_wolfe", "dp_ight", "dp_multinomial_frank_wolfe",
    "dp_scsg_ht", "dp_sgd_ht", "dp_svrg_ht", "frank_wolfe", "ight", "peeling_iht", "plan", "prepare", "scsg_ht",
    "sgd_ht", "sparsifier", "svrg_ht",
]  # fmt: skip


def plan(name: str, *, n: int, d: int, **arguments: Any) -> Plan:
    """The plan of solver ``name`` for n rows and d features, from the solver's own arguments."""
    one_of("name", name, tuple(_PLANS))
    return _PLANS[name](n=n, d=d, **arguments)


def prepare(plan: Plan, X: Any, y: Any, counts: Any = None) -> Run:
    """The solver of a plan on these data: run(rng, trace=False) is one fit, as often as wanted.

    Validation and clipping are done here, once, from the plan alone; the solvers themselves run what this returns.
    ``counts`` says how often each row occurs.

    Privacy
    -------
    Every call of what is returned spends the plan's event; no ledger is charged. It is meant for audits.
    """
    one_of("plan.solver", plan.solver, tuple(_PREPARE))
    return _PREPARE[plan.solver](plan, X, y, counts)
