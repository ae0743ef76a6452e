"""What solvers that minimise share: the scaling of the sum, and records whose gradients obey a public bound."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit._validate import invalid
from dptoolkit.accounting import objective
from dptoolkit.adjacency import Adjacency
from dptoolkit.data import Rows
from dptoolkit.solvers.engine.bounds import GradientBounds
from dptoolkit.types import Array

# A factor on the noise, so that rounding cannot put the plan above its budget.
ROUNDING = 1 + 1e-12


@dataclass(frozen=True)
class SumScaling:
    """The numbers of one problem in the scaling of the sum: the only place that converts to and from the mean."""

    n: int
    mean_l2: float
    gradient: float
    curvature: float

    @property
    def l2(self) -> float:
        """lambda: the weight of |w|^2/2 beside the sum of losses."""
        return self.up(self.mean_l2)

    @property
    def jacobian(self) -> float:
        """log(1 + beta/lambda)."""
        return objective.jacobian(self.curvature, self.l2)

    def sensitivity(self, adjacency: Adjacency) -> float:
        """How far one record moves the gradient of the sum."""
        return objective.sensitivity(self.gradient, adjacency)

    def movement(self, adjacency: Adjacency, tau: float) -> float:
        """How far one record moves the minimiser, found on both data sets to within tau/lambda."""
        return (self.sensitivity(adjacency) + 2 * tau) / self.l2

    def tolerance(self, adjacency: Adjacency, movement: float) -> float:
        """The tau of a ``movement`` that was enlarged by ROUNDING."""
        return (movement * self.l2 / ROUNDING - self.sensitivity(adjacency)) / 2

    def up(self, mean: Any) -> Any:
        """A number in the mean's scaling, in the sum's."""
        return self.n * mean

    def down(self, total: Any) -> Any:
        """A number in the sum's scaling, in the mean's."""
        return total / self.n

    def check_affordable(self, epsilon: float, name: str = "epsilon") -> None:
        """Refuse an epsilon that no noise can reach: the Jacobian alone costs log(1 + beta/lambda)."""
        if epsilon > self.jacobian:
            return
        least = self.down(self.curvature / math.expm1(epsilon)) if epsilon < 700 else 0.0
        raise invalid(
            name,
            epsilon,
            f"> log(1 + curvature/(n l2)) = {self.jacobian:.6g}, which no noise can reduce",
            f"Use a larger epsilon, or l2 above {least:.6g}.",
        )


def bounded_records(bounds: GradientBounds, adjacency: Adjacency, rows: Rows, y: Array) -> tuple[Any, Array]:
    """(matrix, labels) of a sum of losses: clipped to the bounds, with the intercept, without rows of zeros.

    Privacy
    -------
    Each record is changed on its own, by public numbers. Under zero-out a row of zeros contributes nothing.
    """
    bounded, labels, _ = bounds.clip(rows, y)
    matrix = bounded.matrix
    if bounds.fit_intercept and adjacency is Adjacency.ZERO_OUT:
        matrix = _without_absent(matrix, rows)
    return _filled(matrix, labels)


def _without_absent(matrix: Any, rows: Rows) -> Any:
    """The matrix without the intercept entry in rows of zeros: under zero-out such a row must contribute nothing."""
    present = (rows.largest_entries() > 0).astype(float)
    return matrix.multiply(present[:, None]).tocsr() if rows.is_sparse else matrix * present[:, None]


def _filled(matrix: Any, y: Array) -> tuple[Any, Array]:
    """(matrix, labels) without rows of zeros, whose loss is constant; one row is left in any case."""
    filled = np.flatnonzero(_has_entries(matrix))
    if len(filled) == len(y):
        return matrix, y
    filled = filled if len(filled) else np.zeros(1, dtype=np.intp)
    return matrix[filled], y[filled]


def _has_entries(matrix: Any) -> NDArray[np.bool_]:
    """Whether each row has an entry other than 0. The entries are not copied: they may be most of the memory."""
    if not hasattr(matrix, "indptr"):
        return np.asarray(matrix.any(axis=1))
    found: NDArray[np.bool_] = np.diff(matrix.indptr) > 0
    if not matrix.data.all():
        found[found] = np.logical_or.reduceat(matrix.data != 0, matrix.indptr[:-1][found])
    return found
