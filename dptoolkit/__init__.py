"""dptoolkit: sparse learning under differential privacy, with an epsilon you can believe."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_SUBPACKAGES = (
    "accounting", "audit", "datasets", "estimators", "federated", "mechanisms", "models", "solvers", "tuning",
)  # fmt: skip
__all__ = ["__version__", *_SUBPACKAGES]


def __getattr__(name: str) -> Any:
    # Subpackages load on first use: importing dptoolkit must stay cheap.
    if name in _SUBPACKAGES:
        return importlib.import_module(f"dptoolkit.{name}")
    raise AttributeError(f"module 'dptoolkit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
