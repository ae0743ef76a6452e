"""Neighbouring datasets for audits: for every private solver the worst pair we know, made from its plan.

``pairs.<solver>(plan)`` is the pair of a solver. Its module is named in the table of solvers, and loads on first use.
"""

from __future__ import annotations

import importlib
from typing import Any

from dptoolkit.audit.pair import Counted, Pair, counted, grouped, strongest
from dptoolkit.solvers.registry import SOLVERS

__all__ = ["Counted", "Pair", "counted", "grouped", "natural", "selection", "strongest", "dp_fed_gd_ht",
           "dp_fed_sgd_ht", *SOLVERS]  # fmt: skip
# Functions that make pairs for more than one solver or for federated fits, by module.
_OTHERS = {
    "dp_fed_gd_ht": "_federated", "dp_fed_sgd_ht": "_federated", "natural": "_natural", "selection": "_frank_wolfe",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in SOLVERS:
        return getattr(importlib.import_module(SOLVERS[name].pair), name)
    if name in _OTHERS:
        return getattr(importlib.import_module(f"{__name__}.{_OTHERS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *SOLVERS})
