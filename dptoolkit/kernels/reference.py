"""What the kernels compute, in readable NumPy: the specification that tests compare them with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from dptoolkit.losses import Loss

Array = NDArray[np.float64]


def hard_threshold(w: Array, sparsity: int, protected: int = 0) -> Array:
    """The ``sparsity`` largest |w_j| kept, the rest zero; the last ``protected`` entries are kept besides.

    Ties go to the smaller index.
    """
    free = len(w) - protected
    out = np.zeros_like(w)
    keep = np.argsort(-np.abs(w[:free]), kind="stable")[:sparsity]
    out[keep] = w[keep]
    out[free:] = w[free:]
    return out


def mean_gradient(matrix: Any, r: Array) -> Array:
    """(1/n) sum_i r_i x_i."""
    return np.asarray(matrix.T @ r) / matrix.shape[0]


def threshold_step(
    matrix: Any, y: Array, w: Array, loss: Loss, step_size: float, noise: Array, sparsity: int,
    margin_bound: float = np.inf, caps: Array | None = None, protected: int = 0,
) -> Array:
    """One iteration of gradient hard thresholding with ``noise`` added to the mean gradient."""
    r = loss.clipped_residual(np.asarray(matrix @ w), y, margin_bound, caps)
    return hard_threshold(w - step_size * (mean_gradient(matrix, r) + noise), sparsity, protected)


def dual_step(
    matrix: Any, y: Array, total: Array, loss: Loss, step_size: float, noise: Array, sparsity: int,
    margin_bound: float = np.inf, caps: Array | None = None, protected: int = 0,
) -> Array:
    """One iteration of dual averaging: ``total`` is the sum of all steps, the weights are its largest entries."""
    w = hard_threshold(total, sparsity, protected)
    r = loss.clipped_residual(np.asarray(matrix @ w), y, margin_bound, caps)
    return np.asarray(total - step_size * (mean_gradient(matrix, r) + noise))


def vertex_weights(gradient: Array, sharpness: float) -> Array:
    """Probabilities of the vertices +e_1, ..., +e_d, -e_1, ..., -e_d: those of exp(-sharpness <s, gradient>)."""
    scores = -sharpness * np.concatenate([gradient, -gradient])
    weights = np.exp(scores - scores.max())
    return np.asarray(weights / weights.sum())


def frank_wolfe_path(
    matrix: Any, y: Array, loss: Loss, l1_radius: float, vertices: NDArray[Any], refresh_at: NDArray[Any]
) -> tuple[Array, Array]:
    """(w, sum gradient in use) after taking the given vertices, with lazily updated rows.

    A vertex is j for +e_j and d + j for -e_j. Between two times in ``refresh_at`` only the rows that contain the chosen
    feature get a new residual; for the squared loss the gradient is linear in w and always exact.
    """
    n, d = matrix.shape
    dense = np.asarray(matrix.toarray() if hasattr(matrix, "toarray") else matrix)
    w, r = np.zeros(d), loss.residual(np.zeros(n), y)
    for t, vertex in enumerate(vertices, start=1):
        if t in refresh_at or loss.linear:
            r = loss.residual(dense @ w, y)
        j, sign = vertex % d, 1.0 if vertex < d else -1.0
        mu = 2 / (t + 2)
        w = (1 - mu) * w
        w[j] += mu * sign * l1_radius
        touched = dense[:, j] != 0
        r = np.where(touched, loss.residual(dense @ w, y), r)
    if loss.linear:
        r = loss.residual(dense @ w, y)
    return w, dense.T @ r
