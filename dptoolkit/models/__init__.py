"""Fitted models that predict, state their guarantee and are kept in files: what the estimators and the shell share.

``fit`` makes a model, ``plan`` says before what it will release, ``load`` reads one from its file. Nothing here needs
scikit-learn.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dptoolkit.models.files import load, save
    from dptoolkit.models.fitting import ClassesWarning, ClippingWarning, ScalesWarning, fit
    from dptoolkit.models.model import Model
    from dptoolkit.models.planning import plan

_HOMES = {
    "ClassesWarning": "fitting", "ClippingWarning": "fitting", "Model": "model", "ScalesWarning": "fitting",
    "fit": "fitting", "load": "files", "plan": "planning", "save": "files",
}  # fmt: skip
__all__ = ["ClassesWarning", "ClippingWarning", "Model", "ScalesWarning", "fit", "load", "plan", "save"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"dptoolkit.models.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'dptoolkit.models' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
