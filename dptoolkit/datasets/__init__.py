"""Data to try things on: the papers' generators, readers of common files, and a registry of real sets.

Everything here is loaded on first use; importing this package imports neither scikit-learn nor numba.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dptoolkit.datasets.dataset import Dataset
    from dptoolkit.datasets.readers import WidthWarning, read_libsvm
    from dptoolkit.datasets.registry import describe, load, names
    from dptoolkit.datasets.synthetic import make_heavy_tailed, make_ight, make_khanna, make_rcv1_like, make_transfer
    from dptoolkit.datasets.tables import Table, read_csv, read_parquet

_HOMES = {
    "Dataset": "dataset",
    "Table": "tables",
    "WidthWarning": "readers",
    "describe": "registry",
    "load": "registry",
    "make_heavy_tailed": "synthetic",
    "make_ight": "synthetic",
    "make_khanna": "synthetic",
    "make_rcv1_like": "synthetic",
    "make_transfer": "synthetic",
    "names": "registry",
    "read_csv": "tables",
    "read_libsvm": "readers",
    "read_parquet": "tables",
}
__all__ = [
    "Dataset", "Table", "WidthWarning", "describe", "load", "make_heavy_tailed", "make_ight", "make_khanna",
    "make_rcv1_like", "make_transfer", "names", "read_csv", "read_libsvm", "read_parquet",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"dptoolkit.datasets.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'dptoolkit.datasets' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
