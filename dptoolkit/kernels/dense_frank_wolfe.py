"""Frank-Wolfe over the L1 ball on dense rows, many steps in one call, with the noise of every selection given.

The noise is drawn by the caller: handing a Generator to a compiled function costs more than the steps of a small
problem. Margins follow the iterate, u <- (1 - mu) u +- mu radius x_j, so a step passes over the rows once.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

SQUARED, LOGISTIC, HUBER = 0, 1, 2


@njit(cache=True, nogil=True, error_model="numpy")
def residual(loss: int, margin: float, y: float) -> float:
    """d loss / d margin of one row (the same table as losses.residual)."""
    if loss == LOGISTIC:
        if margin >= 0:
            return 1.0 / (1.0 + math.exp(-margin)) - y
        e = math.exp(margin)
        return e / (1.0 + e) - y
    difference = margin - y
    if loss == HUBER:
        return min(max(difference, -1.0), 1.0)
    return difference


@njit(cache=True, nogil=True, error_model="numpy")
def residual_limit(loss: int, margin: float, label: float) -> float:
    """The largest |residual| of a record whose |margin| is at most ``margin`` (l1_frank_wolfe.residual_limit)."""
    if loss == LOGISTIC:
        return 1.0 / (1.0 + math.exp(-margin))
    if loss == HUBER:
        return min(1.0, margin + label)
    return margin + label


@njit(cache=True, nogil=True, error_model="numpy")
def choose(gradient: NDArray[Any], scale: float, noise: NDArray[Any]) -> int:
    """The vertex of the largest noisy score: j for +e_j, of score -gradient_j, and d + j for -e_j, of +gradient_j."""
    d = gradient.shape[0]
    best, highest = 0, -np.inf
    for j in range(d):
        up = scale * noise[j] - gradient[j]
        if up > highest:
            best, highest = j, up
    for j in range(d):
        down = scale * noise[d + j] + gradient[j]
        if down > highest:
            best, highest = d + j, down
    return best


@njit(cache=True, nogil=True, error_model="numpy")
def steps(
    matrix: NDArray[Any], y: NDArray[Any], loss: int, noise: NDArray[Any], first: int, radius: float, n: int,
    scale: float, adaptive: bool, feature_bound: float, label_bound: float, lipschitz: float, w: NDArray[Any],
    u: NDArray[Any], gradient: NDArray[Any], scales: NDArray[Any], vertices: NDArray[Any], iterates: NDArray[Any],
) -> None:
    """One step for each row of ``noise``; updates the weights w and the margins u in place.

    ``scale`` multiplies the noise; if ``adaptive``, times residual bound at |w|_1 over ``lipschitz``. ``gradient`` is
    work space. Iterates are kept if there is room for them.
    """
    m, d = matrix.shape
    for step in range(noise.shape[0]):
        norm = 0.0
        for j in range(d):
            norm += abs(w[j])
            gradient[j] = 0.0
        for i in range(m):
            # Divided before it is summed, so that no sum of bounded entries overflows.
            r = residual(loss, u[i], y[i]) * (radius / n)
            for j in range(d):
                gradient[j] += r * matrix[i, j]
        used = scale
        if adaptive:
            limit = residual_limit(loss, feature_bound * min(norm, radius), label_bound)
            used = scale * min(feature_bound * limit / lipschitz, 1.0)
        vertex = choose(gradient, used, noise[step])
        scales[step], vertices[step] = used, vertex
        mu = 2.0 / (first + step + 2.0)
        chosen = vertex % d
        push = mu * radius if vertex < d else -mu * radius
        for j in range(d):
            w[j] *= 1.0 - mu
        w[chosen] += push
        for i in range(m):
            u[i] = (1.0 - mu) * u[i] + push * matrix[i, chosen]
        if iterates.shape[0] > 0:
            iterates[step, :] = w
