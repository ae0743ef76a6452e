"""The Dataset that every generator and loader returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dptoolkit.types import Array

REGRESSION, BINARY, MULTICLASS = "regression", "binary", "multiclass"


@dataclass(frozen=True)
class Dataset:
    """Rows X (a float64 array or CSR matrix), labels y, and the task that names the losses that fit.

    Labels are numbers for "regression", 0/1 for "binary", 0, ..., K-1 for "multiclass". ``truth`` holds, for synthetic
    sets, the coefficients that a fit without noise and with enough rows would find; None for real ones.
    """

    X: Any
    y: Array
    task: str
    name: str = ""
    description: str = ""
    truth: Array | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(n, d)."""
        return int(self.X.shape[0]), int(self.X.shape[1])

    def __repr__(self) -> str:
        n, d = self.shape
        kind = "sparse" if hasattr(self.X, "nnz") else "dense"
        return f"Dataset({self.name!r}, {self.task}, n={n}, d={d}, {kind})"
