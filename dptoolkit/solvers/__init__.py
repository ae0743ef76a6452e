"""Sparse solvers, private and not. ``plan`` makes the plan of a private fit without any data."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dptoolkit._validate import one_of
from dptoolkit.solvers.frame.fit import FitResult, bind, planned
from dptoolkit.solvers.frame.outlook import HopelessPlanWarning
from dptoolkit.solvers.frame.plan import Plan, Release
from dptoolkit.solvers.frame.settings import DeltaWarning, Settings, build

if TYPE_CHECKING:
    from dptoolkit.solvers._admm import admm, dp_admm
    from dptoolkit.solvers._dual_averaging import dp_dual_averaging
    from dptoolkit.solvers._frank_wolfe import dp_frank_wolfe, frank_wolfe
    from dptoolkit.solvers._ight import dp_ight, ight
    from dptoolkit.solvers._knowledge_transfer import knowledge_transfer
    from dptoolkit.solvers._multinomial_frank_wolfe import dp_multinomial_frank_wolfe
    from dptoolkit.solvers._objective_perturbation import objective_perturbation
    from dptoolkit.solvers._peeling import peeling_iht
    from dptoolkit.solvers._pipeline import dp_pipeline
    from dptoolkit.solvers._scsg import dp_scsg_ht, dp_svrg_ht, scsg_ht, svrg_ht
    from dptoolkit.solvers._sgd import dp_sgd_ht, sgd_ht
    from dptoolkit.solvers._sparsifier import sparsifier
    from dptoolkit.solvers._two_stage import two_stage
    from dptoolkit.solvers.frame.fit import margins
    from dptoolkit.solvers.frame.many import fit_many

# Solvers load on first use: a fit waits for its own module only.
_MODULES = {
    "dp_ight": "_ight", "ight": "_ight", "dp_frank_wolfe": "_frank_wolfe",
    "frank_wolfe": "_frank_wolfe", "sparsifier": "_sparsifier",
    "dp_multinomial_frank_wolfe": "_multinomial_frank_wolfe",
    "peeling_iht": "_peeling", "dp_sgd_ht": "_sgd", "sgd_ht": "_sgd",
    "dp_scsg_ht": "_scsg", "dp_svrg_ht": "_scsg", "scsg_ht": "_scsg",
    "svrg_ht": "_scsg", "dp_dual_averaging": "_dual_averaging", "dp_pipeline": "_pipeline",
    "margins": "frame.fit", "objective_perturbation": "_objective_perturbation", "two_stage": "_two_stage",
    "knowledge_transfer": "_knowledge_transfer", "fit_many": "frame.many",
    "dp_admm": "_admm", "admm": "_admm",
}  # fmt: skip
_PUBLIC = ("admm", "ight", "frank_wolfe", "sgd_ht", "scsg_ht", "svrg_ht", "margins", "fit_many")
PRIVATE = tuple(name for name in _MODULES if name not in _PUBLIC)

__all__ = [
    "DeltaWarning", "FitResult", "HopelessPlanWarning", "Plan", "Release", "admm", "dp_admm", "dp_dual_averaging",
    "dp_frank_wolfe", "dp_ight", "dp_multinomial_frank_wolfe", "dp_pipeline", "dp_scsg_ht", "dp_sgd_ht",
    "dp_svrg_ht", "fit_many", "frank_wolfe", "ight", "knowledge_transfer", "margins", "objective_perturbation",
    "peeling_iht", "plan", "bind", "scsg_ht", "sgd_ht", "sparsifier", "svrg_ht", "two_stage",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'dptoolkit.solvers' has no attribute {name!r}")
    value = globals()[name] = getattr(_module(name), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


def _module(name: str) -> Any:
    return importlib.import_module(f"dptoolkit.solvers.{_MODULES[name]}")


def plan(name: str, *, n: int, d: int, randomness: str | None = None, **arguments: Any) -> Plan:
    """The plan of a private fit, made without any data: releases, noise, event and guarantee.

    Parameters
    ----------
    name : str
        The name of a private solver, one of ``PRIVATE``.
    n : int
        The number of rows of the data, which is public.
    d : int
        The number of features of the data, which is public.
    randomness : "secure", "fast" or None, default None
        The noise of the fit; see the solver.
    **arguments
        The solver's own arguments, without X, y and those of the frame (rng, ledger, ...).

    Returns
    -------
    Plan
        What the fit would release. ``print`` shows it as tables.

    Privacy
    -------
    Touches no data.
    """
    return planned(build(settings_class(name), arguments), n, d, randomness)


def settings_class(name: str) -> type[Settings]:
    """The settings class of a private solver."""
    one_of("name", name, PRIVATE)
    # In Python 3.10 an alias such as list[int] passes for a type, and is no class.
    members = vars(_module(name)).values()
    classes = (kind for kind in members if isinstance(kind, type) and not hasattr(kind, "__args__"))
    return next(kind for kind in classes if issubclass(kind, Settings) and getattr(kind, "solver", None) == name)
