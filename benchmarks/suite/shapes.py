"""The data of the suite: real sets where a folder is given, synthetic rows of the same shape where not.

Every shape has a test part, so that a time can be read beside what was learnt in it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from benchmarks.lib import problems
from benchmarks.lib.problems import Problem
from dptoolkit import datasets

# Rows for training; a sixth as many are for testing.
ROWS = {"rcv1_sub": 20_242, "a9a": 32_561, "mnist": 20_000, "small": 2_000, "wide": 2_000, "long": 300_000}
# Shapes whose rows are always synthetic, even if there is a folder of real sets.
SYNTHETIC = ("small", "wide", "long")
_REAL = {"rcv1_sub": "rcv1_sub", "a9a": "a9a", "mnist": "mnist, odd"}


def load(name: str, home: str | None, quick: bool = False) -> Problem:
    """A shape by name, with rows of norm at most 1; ``quick`` takes an eighth of the rows."""
    rows = ROWS[name] // 8 if quick else ROWS[name]
    if home is None or name in SYNTHETIC:
        return _synthetic(name, rows)
    problem = problems.load(_REAL[name], Path(home), rows)
    if name != "mnist":
        return problem
    return Problem("mnist", _as_sparse(problem.X), problem.y, _as_sparse(problem.X_test), problem.y_test)


def _as_sparse(X: Any) -> Any:
    return X if sparse.issparse(X) else sparse.csr_matrix(X)


def _synthetic(name: str, rows: int) -> Problem:
    """Power-law texts, one entry for each of 14 questions, pixels of which a fifth are not zero, or dense columns."""
    rng, count = np.random.default_rng(0), rows + rows // 6
    if name in ("rcv1_sub", "long", "wide"):
        width, nonzeros = (1_000_000, 50) if name == "wide" else (47_236, 75)
        data = datasets.make_rcv1_like(n=count, d=width, nonzeros=nonzeros, rng=0)
        X, y = data.X, data.y
    elif name == "small":
        data = datasets.make_khanna(n=count, p=50, rng=0)
        X, y = data.X / np.linalg.norm(data.X, axis=1).max(), data.y
    else:
        X = _questions(rng, count) if name == "a9a" else _pixels(rng, count)
        margins = np.asarray(X @ (10 * rng.standard_normal(X.shape[1])))
        y = (rng.random(count) < 1 / (1 + np.exp(margins.mean() - margins))).astype(float)
    label = name if name in SYNTHETIC else f"{name}-like"
    return Problem(label, X[:rows], y[:rows], X[rows:], y[rows:])


def _questions(rng: np.random.Generator, count: int) -> Any:
    """14 one-hot answers in 123 columns."""
    starts = np.linspace(0, 123, 15).astype(int)
    columns = np.stack([rng.integers(a, b, count) for a, b in zip(starts[:-1], starts[1:], strict=True)], axis=1)
    values = np.full(count * 14, 1 / np.sqrt(14))
    return sparse.csr_matrix((values, columns.ravel(), np.arange(0, 14 * count + 1, 14)), shape=(count, 123))


def _pixels(rng: np.random.Generator, count: int) -> Any:
    """784 columns, some of them seldom and some often not zero, a fifth of all entries."""
    often = rng.random(784) ** 4
    X = sparse.csr_matrix((rng.random((count, 784)) < often) * rng.random((count, 784)))
    norms = np.sqrt(np.asarray(X.multiply(X).sum(axis=1)).ravel())
    return sparse.diags(1 / np.maximum(norms, 1e-12)).dot(X).tocsr()


def size_of(X: Any) -> int:
    """Bytes of X."""
    return int(X.data.nbytes + X.indices.nbytes + X.indptr.nbytes) if sparse.issparse(X) else int(X.nbytes)


def entries_of(X: Any) -> int:
    """Stored entries of X."""
    return int(X.nnz) if sparse.issparse(X) else int(X.size)
