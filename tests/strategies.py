"""Hypothesis strategies: neighbouring data sets, dense and CSR, with the corners where clipping and norms go wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st
from scipy import sparse

# Zeros of both signs, subnormals, exact bounds, and entries whose square overflows.
CORNERS = (0.0, -0.0, 5e-324, -1e-310, 1e-160, 1.0, -1.0, 1e160, -1e300, 1e308, -1.7e308)
FORMS = ("dense", "csr", "messy csr", "csc", "coo")


@dataclass(frozen=True)
class Pair:
    """Two data sets of the same size that differ in row ``index`` alone, in one of the FORMS."""

    X: Any
    y: Any
    X2: Any
    y2: Any
    index: int
    form: str


def entries() -> st.SearchStrategy[float]:
    """One entry of X: ordinary, or a corner."""
    ordinary = st.floats(-3, 3, allow_subnormal=True)
    return st.one_of(ordinary, st.just(0.0), st.sampled_from(CORNERS))


def labels(task: str) -> st.SearchStrategy[float]:
    """One label of the task: "binary" (0/1), "regression", or "3 classes"."""
    if task == "binary":
        return st.sampled_from((0.0, 1.0))
    if task == "regression":
        return st.one_of(st.floats(-5, 5), st.sampled_from((0.0, 1e300, -1e308, 5e-324)))
    return st.integers(0, int(task.split()[0]) - 1).map(float)


@st.composite
def matrices(draw: Any, n: int | None = None, d: int | None = None) -> np.ndarray:
    """A small dense matrix, now and then with a zero row."""
    n = draw(st.integers(1, 4)) if n is None else n
    d = draw(st.integers(1, 4)) if d is None else d
    row = st.one_of(st.lists(entries(), min_size=d, max_size=d), st.just([0.0] * d))
    return np.array(draw(st.lists(row, min_size=n, max_size=n)), dtype=float)


@st.composite
def neighbours(draw: Any, task: str, zero_out: bool = False, least_rows: int = 1) -> Pair:
    """A pair of neighbours: one row and its label replaced, or the row set to zero (its label is then irrelevant)."""
    X = draw(matrices(n=draw(st.integers(least_rows, 5)), d=draw(st.integers(1, 4))))
    n, d = X.shape
    y = np.array(draw(st.lists(labels(task), min_size=n, max_size=n)))
    index = draw(st.integers(0, n - 1))
    X2, y2 = X.copy(), y.copy()
    X2[index] = 0.0 if zero_out else draw(matrices(n=1, d=d))[0]
    y2[index] = draw(labels(task))
    form = draw(st.sampled_from(FORMS))
    return Pair(in_form(X, form), y, in_form(X2, form), y2, index, form)


def in_form(X: np.ndarray, form: str) -> Any:
    """The same matrix as an array, or in one of scipy's formats."""
    if form == "dense":
        return X.copy()
    if form == "messy csr":
        return messy_csr(X)
    return getattr(sparse, form + "_matrix")(X)


def messy_csr(X: np.ndarray) -> Any:
    """A CSR matrix that is legal and ugly: columns in reverse order, every entry split in two where halves are exact,
    explicit zeros elsewhere."""
    n, d = X.shape
    data, indices, indptr = [], [], [0]
    for row in X:
        for j in range(d - 1, -1, -1):
            half = row[j] / 2
            parts = (half, half) if half + half == row[j] else (row[j], 0.0)
            data += parts
            indices += [j, j]
        indptr.append(len(data))
    return sparse.csr_matrix((np.array(data), np.array(indices, dtype=np.int32), np.array(indptr)), shape=(n, d))
