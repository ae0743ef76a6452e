"""Certified minimisers for many linear terms at once: plain Newton steps on small problems, the rest by ``minimise``.

What privacy rests on is the certificate, which is that of ``minimise`` in doubles: a gradient computed from scratch
whose norm, with a bound on its rounding errors, is at most tau. A row that a few steps do not take there is left to
``minimise``, which never gives up. No row depends on the others: one row alone has the same result to the last bit.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dptoolkit.optimise import minimise
from dptoolkit.optimise.minimise import Problem
from dptoolkit.types import Array

# Up to so many features, and entries of the matrix, a Hessian is cheaper than products with it.
_FEATURES, _ENTRIES = 32, 50_000
_STEPS = 12
_UNIT = 2.0**-53


def minimise_rows(problem: Problem, linears: Array, tau: float) -> tuple[Array, Array]:
    """(theta, remainder), two doubles an entry as in ``Solution``, for each row of ``linears`` in place of ``linear``.

    Each is within tau/l2 of the minimiser.
    """
    theta, remainder, certified = np.zeros_like(linears), np.zeros_like(linears), np.zeros(len(linears), dtype=bool)
    small = problem.d <= _FEATURES and problem.n * problem.d <= _ENTRIES and not hasattr(problem.matrix, "indptr")
    if small and problem.ball is None:
        theta, certified = _newton(problem, linears, tau)
    for i in np.flatnonzero(~certified):
        solution = minimise.minimise(replace(problem, linear=linears[i]), tau)
        theta[i], remainder[i] = solution.theta, solution.remainder
    return theta, remainder


def _newton(problem: Problem, linears: Array, tau: float) -> tuple[Array, NDArray[np.bool_]]:
    """(points, whether each is certified)."""
    theta = -linears / problem.l2
    with np.errstate(all="ignore"):
        gradient, at_zero = _gradients(problem, theta, linears), _gradients(problem, np.zeros_like(linears), linears)
        # The start is 0, or the minimum without data, whichever has the shorter gradient.
        nearer = _norms(at_zero) < _norms(gradient)
        theta[nearer], gradient[nearer] = 0.0, at_zero[nearer]
        failed = np.zeros(len(theta), dtype=bool)
        for _ in range(_STEPS):
            todo = np.flatnonzero(~_certified(problem, theta, gradient, linears, tau))
            if len(todo) == 0:
                break
            target = theta[todo] + _steps(problem, theta[todo], gradient[todo], failed[todo])
            slopes = _gradients(problem, target, linears[todo])
            better = _norms(slopes) < _norms(gradient[todo])
            failed[todo] = ~better
            theta[todo[better]], gradient[todo[better]] = target[better], slopes[better]
        return theta, _certified(problem, theta, gradient, linears, tau)


def _certified(problem: Problem, theta: Array, gradient: Array, linears: Array, tau: float) -> NDArray[np.bool_]:
    """The certificate of ``minimise`` in doubles, without a ball; NaN certifies nothing."""
    error = minimise.rounding_error(
        n=problem.n, nonzeros=problem.nonzeros, row_norm=problem.row_norm, residual_bound=problem.residual_bound,
        smoothness=problem.loss.smoothness, l2=problem.l2, theta_norm=_norms(theta) * (1 + 1e-9),
        linear_norm=_norms(linears) * (1 + 1e-9), unit=_UNIT,
    )  # fmt: skip
    return np.asarray(minimise.stretch(problem.d, _UNIT) * _norms(gradient) + error <= tau)


def _gradients(problem: Problem, theta: Array, linears: Array) -> Array:
    """grad J of each row, from scratch."""
    residuals = problem.loss.residual(_margins(problem, theta), problem.y)
    sums = (problem.matrix.T @ residuals[:, :, None])[:, :, 0]
    return np.asarray(sums + (problem.l2 * theta + linears))


def _margins(problem: Problem, theta: Array) -> Array:
    return np.asarray((problem.matrix @ theta[:, :, None])[:, :, 0])


def _steps(problem: Problem, theta: Array, gradient: Array, cautious: NDArray[np.bool_]) -> Array:
    """Newton steps; where the last one did not help, with the curvature of parabolas that lie above the losses."""
    margins, y, curvature = _margins(problem, theta), problem.y, problem.loss.curvature
    assert curvature is not None
    bends = np.where(cautious[:, None], curvature(margins, y, True), curvature(margins, y, False))
    hessians = (problem.matrix.T * bends[:, None, :]) @ problem.matrix + problem.l2 * np.eye(problem.d)
    return _solutions(hessians, -gradient)


def _solutions(matrices: Array, targets: Array) -> Array:
    """The solution of each system; 0 where the matrix is singular, which must not change the others."""
    try:
        return np.asarray(np.linalg.solve(matrices, targets[:, :, None])[:, :, 0])
    except np.linalg.LinAlgError:
        if len(targets) == 1:
            return np.zeros_like(targets)
    return np.concatenate([_solutions(matrices[i : i + 1], targets[i : i + 1]) for i in range(len(targets))])


def _norms(rows: Array) -> Array:
    return np.asarray(np.sqrt(np.square(rows).sum(axis=1)))
