"""What the kernels compute, in readable NumPy: the specification that tests compare them with."""

from __future__ import annotations

from collections.abc import Sequence
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
    matrix: Any,
    y: Array,
    w: Array,
    loss: Loss,
    step_size: float,
    noise: Array,
    sparsity: int,
    margin_bound: float = np.inf,
    caps: Array | None = None,
    protected: int = 0,
) -> Array:
    """One iteration of gradient hard thresholding with ``noise`` added to the mean gradient."""
    r = loss.clipped_residual(np.asarray(matrix @ w), y, margin_bound, caps)
    return hard_threshold(w - step_size * (mean_gradient(matrix, r) + noise), sparsity, protected)


def dual_step(
    matrix: Any,
    y: Array,
    total: Array,
    loss: Loss,
    step_size: float,
    noise: Array,
    sparsity: int,
    margin_bound: float = np.inf,
    caps: Array | None = None,
    protected: int = 0,
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


def dithered_levels(loss: Loss, margins: Array, y: Array, theta: Array, limit: float, count: int) -> Array:
    """Residuals rounded, up or down by theta in [0, 1), to levels 0 to count, which stand for -limit to limit."""
    share = (loss.residual(np.asarray(margins, dtype=np.float64), y) / limit + 1) / 2
    return np.clip(np.floor(share * count + theta), 0, count)


def dithered_path(
    matrix: Any,
    y: Array,
    loss: Loss,
    l1_radius: float,
    feature_bound: float,
    vertices: NDArray[Any],
    blocks: Sequence[tuple[int, int, float]],
    theta: Array,
    count: int,
) -> tuple[Array, list[Array]]:
    """(w, sum gradient with which each step compares vertices) of Frank-Wolfe with dithered residuals.

    A vertex is j for +e_j and d + j for -e_j. ``blocks`` holds (first step, number of steps, limit of residuals): at
    the start of a block every row gets the level of its margin, after a step the rows that contain the chosen feature.
    Entries and margins are in single precision, in units of the bound and of the largest margin in the ball.
    """
    n, d = matrix.shape
    full = np.asarray(matrix.toarray() if hasattr(matrix, "toarray") else matrix) / feature_bound
    X = np.clip(full, -1, 1).astype(np.float32)
    v, u, scale, level = np.zeros(d), np.zeros(n, np.float32), 1.0, np.zeros(n)
    gradients, reach = [], l1_radius * feature_bound
    for first, steps, limit in blocks:
        level = dithered_levels(loss, reach * scale * u.astype(np.float64), y, theta, limit, count)
        for t in range(first, min(first + steps, len(vertices) + 1)):
            residuals = level * (2 * limit / count) - limit
            gradients.append(feature_bound * (X.T.astype(np.float64) @ residuals))
            j, sign = vertices[t - 1] % d, 1.0 if vertices[t - 1] < d else -1.0
            mu = 2 / (t + 2)
            scale *= 1 - mu
            v[j] += mu * sign / scale
            u += np.float32(mu * sign / scale) * X[:, j]
            new = dithered_levels(loss, reach * scale * u.astype(np.float64), y, theta, limit, count)
            level = np.where(X[:, j] != 0, new, level)
    return l1_radius * scale * v, gradients


def textbook_path(
    matrix: Any, y: Array, loss: Loss, l1_radius: float, vertices: NDArray[Any]
) -> tuple[Array, list[Array]]:
    """(w, sum gradient with which each step compares vertices) of Frank-Wolfe with exact residuals."""
    dense = np.asarray(matrix.toarray() if hasattr(matrix, "toarray") else matrix)
    w: Array = np.zeros(dense.shape[1])
    gradients = []
    for t, vertex in enumerate(vertices, start=1):
        gradients.append(dense.T @ loss.residual(dense @ w, y))
        mu = 2 / (t + 2)
        w = (1 - mu) * w
        w[vertex % len(w)] += mu * l1_radius * (1.0 if vertex < len(w) else -1.0)
    return w, gradients


def dual_sweep(
    matrix: Any, y: Array, loss: Loss, l2: float, rows: Sequence[int], shares: Array, w: Array
) -> tuple[Array, Array]:
    """(shares, w) after a step of dual coordinate ascent for each of the ``rows``, one after the other."""
    shares, w = shares.copy(), w.copy()
    assert loss.curvature is not None
    for i in rows:
        x, at = matrix[i], y[i : i + 1]
        margin = x @ w[:, None]
        r, bend = loss.residual(margin, at)[0], loss.curvature(margin, at, False)[0]
        change = (r - shares[i]) / (1 + bend * (x @ x) / l2)
        shares[i] += change
        w -= change / l2 * x
    return shares, w


# --- secure noise: kernels/chacha.py and kernels/rounded.py -----------------------------------------------------

_WORD = 2**32 - 1
_COLUMNS = [(0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)]
_DIAGONALS = [(0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)]


def chacha20_block(state: Sequence[int], double_rounds: int = 10) -> list[int]:
    """The sixteen words of the block that begins with ``state``: RFC 8439, section 2.3."""
    x = [int(word) for word in state]
    for _ in range(double_rounds):
        for a, b, c, d in _COLUMNS + _DIAGONALS:
            x[a] = (x[a] + x[b]) & _WORD
            x[d] = _rotated(x[d] ^ x[a], 16)
            x[c] = (x[c] + x[d]) & _WORD
            x[b] = _rotated(x[b] ^ x[c], 12)
            x[a] = (x[a] + x[b]) & _WORD
            x[d] = _rotated(x[d] ^ x[a], 8)
            x[c] = (x[c] + x[d]) & _WORD
            x[b] = _rotated(x[b] ^ x[c], 7)
    return [(one + int(two)) & _WORD for one, two in zip(x, state, strict=True)]


def _rotated(word: int, bits: int) -> int:
    return ((word << bits) | (word >> (32 - bits))) & _WORD


def bin_counts(values: Array, edges: Array, times: NDArray[Any] | None = None) -> Array:
    """How many values lie in each bin, a value on an edge in the bin above it; ``times`` is how often each occurs.

    Values outside the edges count in the first or in the last bin.
    """
    place = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
    return np.bincount(place, times, minlength=len(edges) - 1).astype(np.float64)


def ranked(values: Array, borders: Array, below: Array) -> Array:
    """Twice the share below each value, less 1, by straight lines between the borders and constant beyond them."""
    return np.asarray(2 * np.interp(values, borders, below) - 1)


def bounded(rows: Array, norm: float, is_clip: bool) -> Array:
    """Every row scaled to this L2 norm; with ``is_clip``, longer rows only. Rows of zeros stay so."""
    largest = np.abs(rows).max(axis=1, keepdims=True)
    part = rows / np.where(largest > 0, largest, 1.0)
    relative = np.linalg.norm(part, axis=1, keepdims=True)
    with np.errstate(over="ignore"):
        stays = (largest == 0) | (is_clip & (largest * relative <= norm))
    return np.where(stays, rows, part * (norm / np.where(relative > 0, relative, 1.0)))
