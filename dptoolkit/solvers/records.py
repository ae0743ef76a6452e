"""The records that a plan was made for: checked against it, before anything else is done with them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit._validate import invalid
from dptoolkit.data import Array, Rows, check_rows
from dptoolkit.solvers.base import Plan


def planned_records(plan: Plan, X: Any, y: Any, counts: Any = None) -> tuple[Rows, Any]:
    """(rows, labels) as many as the plan says; ``counts`` says how often each given row occurs (default once)."""
    rows = X if isinstance(X, Rows) else check_rows(X)
    if counts is not None:
        rows, y = _repeat(rows, y, counts)
    if rows.shape != (plan.n, plan.d):
        raise invalid("X.shape", rows.shape, f"({plan.n}, {plan.d}), the plan's (n, d)", "Make a plan for these data.")
    return rows, y


def _repeat(rows: Rows, y: Any, counts: Any) -> tuple[Rows, Any]:
    often = np.asarray(counts)
    labels = np.asarray(y)
    if often.dtype.kind not in "iu" or often.shape != (rows.shape[0],) or (often < 0).any():
        raise invalid("counts", type(counts).__name__, f"{rows.shape[0]} integers >= 0, one for each row of X")
    if labels.shape != often.shape:
        raise invalid("y.shape", labels.shape, f"{often.shape}, one label per row of X")
    places = np.repeat(np.arange(len(often)), often)
    return Rows(rows.matrix[places], rows.is_sparse), labels[places]


def without_empty_rows(rows: Rows, y: Array) -> tuple[Rows, Array]:
    """The rows that have a feature: the others' gradient is zero at all weights. Sums over rows stay as they are."""
    filled: NDArray[np.bool_] = np.diff(rows.matrix.indptr) > 0 if rows.is_sparse else rows.matrix.any(axis=1)
    if filled.all():
        return rows, y
    return Rows(rows.matrix[filled], rows.is_sparse), y[filled]
