"""Public features: the rows for which a teacher predicts labels; given by the caller, or drawn from a public seed.

None of this depends on private data. What privacy rests on is an UPPER bound of the operator norm: answers X w of two
teachers w and w' differ by at most |X|_op |w - w'|.
"""

from __future__ import annotations

import functools
import hashlib
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy import linalg, sparse

from dptoolkit._validate import invalid
from dptoolkit.data import check_rows
from dptoolkit.mechanisms.randomness import as_generator
from dptoolkit.types import Array

NAMES = ("gaussian", "uniform", "identity")
# The largest eigenvalue of the covariance of a row drawn by name.
COVARIANCE = {"gaussian": 1.0, "uniform": 1 / 3}
# More entries than this (256 MB) are not drawn; nor is a Gram matrix made of a side longer than this.
MOST_ENTRIES, LONGEST_SIDE = 2**25, 6000
_UNIT = 2.0**-53


@dataclass(frozen=True, eq=False, repr=False)
class GivenFeatures:
    """A public matrix of the caller's own, known by its shape and a hash of its entries."""

    matrix: Any

    @classmethod
    def of(cls, value: Any, d: int) -> GivenFeatures:
        """The checked matrix: real, finite, d columns, not all zero."""
        if isinstance(value, GivenFeatures):
            matrix = value.matrix
        else:
            try:
                # A copy: what the caller does to the matrix later must not change a plan.
                matrix = check_rows(value).matrix.copy()
            except ValueError as problem:
                bound = "one of " + ", ".join(repr(name) for name in NAMES) + " or a real matrix, one public row each"
                raise invalid("features", type(value).__name__, f"{bound}: {problem}") from None
        if matrix.shape[1] != d:
            raise invalid("features", f"a matrix of shape {matrix.shape}", f"(m, {d}), as wide as the data")
        if not abs(matrix).max() > 0:
            raise invalid("features", "a matrix of zeros", "not zero everywhere")
        return cls(matrix)

    @cached_property
    def digest(self) -> str:
        """A hash of shape and entries."""
        m, sparse_ = self.matrix, hasattr(self.matrix, "indptr")
        parts = (m.data, m.indices.astype(np.int64), m.indptr.astype(np.int64)) if sparse_ else (m,)
        digest = hashlib.sha256(repr((m.shape, sparse_)).encode())
        for part in parts:
            digest.update(np.ascontiguousarray(part).tobytes())
        return digest.hexdigest()

    @cached_property
    def norm(self) -> float:
        """An upper bound of the operator norm."""
        return operator_norm(self.matrix)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GivenFeatures) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"<public matrix, {self.matrix.shape[0]} x {self.matrix.shape[1]}, sha256 {self.digest}>"


@functools.lru_cache(maxsize=2)
def draw(name: str, m: int, width: int, seed: int) -> Any:
    """The (m, width) matrix of a named distribution: entries N(0, 1) or uniform on (-1, 1), or the identity."""
    if name == "identity":
        return sparse.identity(width, format="csr")
    generator = as_generator(seed, f"public features: {name}, {m} x {width}")
    matrix = generator.standard_normal((m, width)) if name == "gaussian" else generator.uniform(-1, 1, (m, width))
    matrix.flags.writeable = False
    return matrix


@functools.lru_cache(maxsize=64)
def draw_norm(name: str, m: int, width: int, seed: int) -> float:
    """An upper bound of the operator norm of ``draw``."""
    return 1.0 if name == "identity" else operator_norm(draw(name, m, width, seed))


def operator_norm(matrix: Any) -> float:
    """An upper bound of the largest singular value, on the safe side of rounding.

    The largest eigenvalue of the smaller Gram matrix G, plus a bound on what rounding does: the products err by
    gamma(side) |X|_F^2, and the eigenvalues by a small multiple of units of |G|. Where both sides are long: for any
    v > 0 the largest eigenvalue of |X|^T |X| is at most the largest entry of |X|^T |X| v / v (Collatz and Wielandt),
    which is near the truth where few entries differ in sign.
    """
    largest = float(abs(matrix).max())
    if largest == 0:
        return 0.0
    unit = matrix / largest
    rows, columns = matrix.shape
    if min(rows, columns) > LONGEST_SIDE:
        return largest * math.sqrt(_collatz(abs(unit))) * (1 + 2.0**-40)
    gram = unit @ unit.T if rows <= columns else unit.T @ unit
    gram = np.asarray(gram.todense() if sparse.issparse(gram) else gram)
    k = len(gram)
    top = float(linalg.eigvalsh(gram, subset_by_index=[k - 1, k - 1])[0])
    slack = (max(rows, columns) + 16 * k + 64) * 2 * _UNIT * squares(unit)
    return largest * math.sqrt(max(top, 0.0) + slack) * (1 + 8 * _UNIT)


def squares(matrix: Any) -> float:
    """The squared Frobenius norm, rounded up."""
    entries = matrix.data if sparse.issparse(matrix) else matrix.ravel()
    return float(entries @ entries) * (1 + (len(entries) + 2) * 2 * _UNIT)


def _collatz(matrix: Any) -> float:
    """An upper bound of the largest eigenvalue of M^T M for M >= 0; rows and columns of zeros do not count."""
    filled = np.asarray((matrix != 0).sum(axis=0)).ravel() > 0
    part = matrix[:, filled]
    v: Array = np.ones(part.shape[1])
    best = math.inf
    for _ in range(20):
        after = np.asarray(part.T @ (part @ v)).ravel()
        best = min(best, float(np.max(after / v)))
        # A part of the old vector stays, so that no entry vanishes.
        v = after / float(after.max()) + 1e-3 * v
    return best
