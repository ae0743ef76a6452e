"""Sparse solvers, private and not. ``plan`` makes the plan of a private fit without any data."""

from __future__ import annotations

from typing import Any

from dptoolkit._validate import one_of
from dptoolkit.solvers.base import DeltaWarning, FitResult, Plan, Release
from dptoolkit.solvers.gradient_iht import dp_ight, ight, plan_dp_ight
from dptoolkit.solvers.l1_frank_wolfe import dp_frank_wolfe, frank_wolfe, plan_dp_frank_wolfe
from dptoolkit.solvers.multinomial import dp_multinomial_frank_wolfe, plan_dp_multinomial_frank_wolfe
from dptoolkit.solvers.peeling import peeling_iht, plan_peeling_iht
from dptoolkit.solvers.sparsify import plan_sparsifier, sparsifier

_PLANS = {
    "dp_ight": plan_dp_ight,
    "dp_frank_wolfe": plan_dp_frank_wolfe,
    "sparsifier": plan_sparsifier,
    "dp_multinomial_frank_wolfe": plan_dp_multinomial_frank_wolfe,
    "peeling_iht": plan_peeling_iht,
}

__all__ = [
    "DeltaWarning", "FitResult", "Plan", "Release", "dp_frank_wolfe", "dp_ight", "dp_multinomial_frank_wolfe",
    "frank_wolfe", "ight", "peeling_iht", "plan", "sparsifier",
]  # fmt: skip


def plan(name: str, *, n: int, d: int, **arguments: Any) -> Plan:
    """The plan of solver ``name`` for n rows and d features, from the solver's own arguments."""
    one_of("name", name, tuple(_PLANS))
    return _PLANS[name](n=n, d=d, **arguments)
