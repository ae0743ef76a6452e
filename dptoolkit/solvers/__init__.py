"""Sparse solvers, private and not. ``plan`` makes the plan of a private fit without any data."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dptoolkit._validate import one_of
from dptoolkit.solvers.base import FitResult, prepare
from dptoolkit.solvers.outlook import HopelessPlanWarning
from dptoolkit.solvers.plan import Plan, Release
from dptoolkit.solvers.settings import DeltaWarning, Settings, build

if TYPE_CHECKING:
    from dptoolkit.solvers.dual_averaging import dp_dual_averaging
    from dptoolkit.solvers.gradient_iht import dp_ight, ight
    from dptoolkit.solvers.l1_frank_wolfe import dp_frank_wolfe, frank_wolfe
    from dptoolkit.solvers.many import fit_many
    from dptoolkit.solvers.multinomial import dp_multinomial_frank_wolfe
    from dptoolkit.solvers.peeling import peeling_iht
    from dptoolkit.solvers.perturbed_objective import objective_perturbation
    from dptoolkit.solvers.pipeline import dp_pipeline
    from dptoolkit.solvers.preparation import margins
    from dptoolkit.solvers.sgd_thresholding import dp_sgd_ht, sgd_ht
    from dptoolkit.solvers.sparsify import sparsifier
    from dptoolkit.solvers.splitting import admm, dp_admm
    from dptoolkit.solvers.stages import two_stage
    from dptoolkit.solvers.transfer import knowledge_transfer
    from dptoolkit.solvers.variance_reduced import dp_scsg_ht, dp_svrg_ht, scsg_ht, svrg_ht

# Solvers load on first use: a fit waits for its own module only.
_MODULES = {
    "dp_ight": "gradient_iht", "ight": "gradient_iht", "dp_frank_wolfe": "l1_frank_wolfe",
    "frank_wolfe": "l1_frank_wolfe", "sparsifier": "sparsify", "dp_multinomial_frank_wolfe": "multinomial",
    "peeling_iht": "peeling", "dp_sgd_ht": "sgd_thresholding", "sgd_ht": "sgd_thresholding",
    "dp_scsg_ht": "variance_reduced", "dp_svrg_ht": "variance_reduced", "scsg_ht": "variance_reduced",
    "svrg_ht": "variance_reduced", "dp_dual_averaging": "dual_averaging", "dp_pipeline": "pipeline",
    "margins": "preparation", "objective_perturbation": "perturbed_objective", "two_stage": "stages",
    "knowledge_transfer": "transfer", "fit_many": "many",
    "dp_admm": "splitting", "admm": "splitting",
}  # fmt: skip
_PUBLIC = ("admm", "ight", "frank_wolfe", "sgd_ht", "scsg_ht", "svrg_ht", "margins", "fit_many")
PRIVATE = tuple(name for name in _MODULES if name not in _PUBLIC)

__all__ = [
    "DeltaWarning", "FitResult", "HopelessPlanWarning", "Plan", "Release", "admm", "dp_admm", "dp_dual_averaging",
    "dp_frank_wolfe", "dp_ight", "dp_multinomial_frank_wolfe", "dp_pipeline", "dp_scsg_ht", "dp_sgd_ht",
    "dp_svrg_ht", "fit_many", "frank_wolfe", "ight", "knowledge_transfer", "margins", "objective_perturbation",
    "peeling_iht", "plan", "prepare", "scsg_ht", "sgd_ht", "sparsifier", "svrg_ht", "two_stage",
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
    """The plan of a private fit, made without any data: releases, noise, event and guarantee.

    Parameters
    ----------
    name : str
        The name of a private solver, one of ``PRIVATE``.
    n : int
        The number of rows of the data, which is public.
    d : int
        The number of features of the data, which is public.
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
    return build(settings_class(name), arguments).plan(n, d)


def settings_class(name: str) -> type[Settings]:
    """The settings class of a private solver."""
    one_of("name", name, PRIVATE)
    # In Python 3.10 an alias such as list[int] passes for a type, and is no class.
    members = vars(_module(name)).values()
    classes = (kind for kind in members if isinstance(kind, type) and not hasattr(kind, "__args__"))
    return next(kind for kind in classes if issubclass(kind, Settings) and getattr(kind, "solver", None) == name)
