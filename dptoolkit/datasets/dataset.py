"""The Dataset that every generator and loader returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dptoolkit.types import Array

REGRESSION, BINARY, MULTICLASS = "regression", "binary", "multiclass"


@dataclass(frozen=True)
class Dataset:
    """Rows X, labels y, and the task, which decides which losses can be used.

    Attributes
    ----------
    X : ndarray or csr_array
        The rows, in double precision.
    y : ndarray
        The labels: real numbers for "regression", 0 and 1 for "binary", 0, ..., K-1 for "multiclass".
    task : {"regression", "binary", "multiclass"}
        What y is.
    name : str, default ""
        The name of the set.
    description : str, default ""
        One line about the set.
    truth : ndarray or None, default None
        For synthetic sets the coefficients that a fit without noise and with enough rows would find; None for real
        sets.
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
