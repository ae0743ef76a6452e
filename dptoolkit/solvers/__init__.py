"""Sparse solvers, private and not. ``plan`` makes the plan of a private fit without any data."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dptoolkit._validate import one_of
from dptoolkit.solvers.frame.fit import FitResult, bind, planned
from dptoolkit.solvers.frame.outlook import HopelessPlanWarning
from dptoolkit.solvers.frame.plan import Plan, Release
from dptoolkit.solvers.frame.secure import FAST
from dptoolkit.solvers.frame.settings import DeltaWarning, Settings, build
from dptoolkit.solvers.registry import SOLVERS, Solver

if TYPE_CHECKING:
    # What editors and type checkers see; a test holds these names to the table of solvers.
    from dptoolkit.solvers._admm import admm as admm
    from dptoolkit.solvers._admm import dp_admm as dp_admm
    from dptoolkit.solvers._dual_averaging import dp_dual_averaging as dp_dual_averaging
    from dptoolkit.solvers._frank_wolfe import dp_frank_wolfe as dp_frank_wolfe
    from dptoolkit.solvers._frank_wolfe import frank_wolfe as frank_wolfe
    from dptoolkit.solvers._ight import dp_ight as dp_ight
    from dptoolkit.solvers._ight import ight as ight
    from dptoolkit.solvers._knowledge_transfer import knowledge_transfer as knowledge_transfer
    from dptoolkit.solvers._multinomial_frank_wolfe import dp_multinomial_frank_wolfe as dp_multinomial_frank_wolfe
    from dptoolkit.solvers._objective_perturbation import objective_perturbation as objective_perturbation
    from dptoolkit.solvers._peeling import peeling_iht as peeling_iht
    from dptoolkit.solvers._pipeline import dp_pipeline as dp_pipeline
    from dptoolkit.solvers._scsg import dp_scsg_ht as dp_scsg_ht
    from dptoolkit.solvers._scsg import dp_svrg_ht as dp_svrg_ht
    from dptoolkit.solvers._scsg import scsg_ht as scsg_ht
    from dptoolkit.solvers._scsg import svrg_ht as svrg_ht
    from dptoolkit.solvers._sgd import dp_sgd_ht as dp_sgd_ht
    from dptoolkit.solvers._sgd import sgd_ht as sgd_ht
    from dptoolkit.solvers._sparsifier import sparsifier as sparsifier
    from dptoolkit.solvers._two_stage import two_stage as two_stage
    from dptoolkit.solvers.frame.fit import margins as margins
    from dptoolkit.solvers.frame.many import fit_many as fit_many

# Functions for all solvers that load on first use, by module.
_FRAME = {"margins": "frame.fit", "fit_many": "frame.many"}
__all__ = ["DeltaWarning", "FitResult", "HopelessPlanWarning", "Plan", "Release", "bind", "fit_many", "margins", "plan"]


def __getattr__(name: str) -> Any:
    # Solvers load on first use: a fit waits for its own module only.
    if name == "PRIVATE":
        return tuple(SOLVERS)
    if name in _FRAME:
        value = getattr(importlib.import_module(f"dptoolkit.solvers.{_FRAME[name]}"), name)
    elif name in _functions():
        value = _functions()[name].part(name)
    else:
        raise AttributeError(f"module 'dptoolkit.solvers' has no attribute {name!r}")
    globals()[name] = value
    return value


def _functions() -> dict[str, Solver]:
    """The row of every public function, with and without privacy."""
    return {name: row for row in SOLVERS.values() for name in (row.name, row.plain) if name is not None}


def __dir__() -> list[str]:
    return sorted({*__all__, *_functions()})


__all__ += _functions()


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
    randomness : {"secure", "fast"} or None, default None
        The noise of the fit; see the solver. None is "fast": such a plan serves audits and fits with seeds as well.
    **arguments : Any
        The solver's own arguments, without X, y and those of every fit (rng, ledger, ...).

    Returns
    -------
    Plan
        What the fit would release. ``print`` shows it as tables.

    Privacy
    -------
    Touches no data.
    """
    return planned(build(settings_class(name), arguments), n, d, FAST if randomness is None else randomness)


def settings_class(name: str) -> type[Settings]:
    """The settings class of a private solver."""
    one_of("name", name, tuple(SOLVERS))
    row = SOLVERS[name]
    kind: type[Settings] = row.part(row.settings)
    return kind
