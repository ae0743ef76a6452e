"""What a careful user would write in plain NumPy and SciPy: the same private steps, each a full pass over the data.

Noise scales do not change the time, so they are arguments and nothing here is calibrated.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax

Array = NDArray[np.float64]


def residual(loss: str, margins: Array, y: Array) -> Array:
    """d loss / d margin."""
    return np.asarray(expit(margins) - y if loss == "logistic" else margins - y)


def ight_steps(
    X: Any, y: Array, loss: str, sparsity: int, step_size: float, scale: float, steps: int, rng: np.random.Generator
) -> Array:
    """Noisy gradient steps, each followed by hard thresholding."""
    n, d = X.shape
    w = np.zeros(d)
    for _ in range(steps):
        gradient = X.T @ residual(loss, X @ w, y) / n + rng.normal(0.0, scale, d)
        moved = w - step_size * gradient
        keep = np.argpartition(np.abs(moved), d - sparsity)[d - sparsity :]
        w = np.zeros(d)
        w[keep] = moved[keep]
    return w


def frank_wolfe_steps(
    X: Any, y: Array, loss: str, l1_radius: float, scale: float, steps: int, rng: np.random.Generator
) -> Array:
    """Frank-Wolfe steps to the vertex with the smallest score after Laplace noise, if any, on all 2d of them."""
    n, d = X.shape
    w = np.zeros(d)
    for t in range(1, steps + 1):
        gradient = X.T @ residual(loss, X @ w, y) / n
        scores = l1_radius * np.concatenate([gradient, -gradient])
        if scale > 0:
            scores += rng.laplace(0.0, scale, 2 * d)
        vertex = int(np.argmin(scores))
        w *= 1 - 2 / (t + 2)
        w[vertex % d] += 2 / (t + 2) * (l1_radius if vertex < d else -l1_radius)
    return w


def incremental_frank_wolfe_steps(
    X: Any, columns: Any, y: Array, l1_radius: float, scale: float, steps: int, rng: np.random.Generator
) -> Array:
    """Logistic Frank-Wolfe with margins that follow the iterate: a step is one X^T r, 2d Gumbel numbers and a column.

    ``columns`` is X as CSC, which is not counted here.
    """
    n, d = X.shape
    rows, w, margins = X.T, np.zeros(d), np.zeros(n)
    for t in range(1, steps + 1):
        gradient = l1_radius / n * (rows @ (expit(margins) - y))
        vertex = int(np.argmax(np.concatenate([-gradient, gradient]) + rng.gumbel(0.0, scale, 2 * d)))
        j, mu = vertex % d, 2 / (t + 2)
        push = mu * (l1_radius if vertex < d else -l1_radius)
        w *= 1 - mu
        w[j] += push
        margins *= 1 - mu
        column = slice(columns.indptr[j], columns.indptr[j + 1])
        margins[columns.indices[column]] += push * columns.data[column]
    return w


def peeling_steps(
    X: Any, y: Array, sparsity: int, step_size: float, radius: float, scale: float, steps: int, rng: np.random.Generator
) -> Array:
    """Gradient steps of which the entries largest after Gumbel noise are kept, with Gaussian noise, in an L2 ball."""
    n, d = X.shape
    w = np.zeros(d)
    for _ in range(steps):
        moved = w - step_size * (X.T @ (X @ w - y)) / n
        scores = np.abs(moved) + rng.gumbel(0.0, scale, d)
        keep = np.argpartition(scores, d - sparsity)[d - sparsity :]
        w = np.zeros(d)
        w[keep] = moved[keep] + rng.normal(0.0, scale, sparsity)
        w *= min(1.0, radius / np.linalg.norm(w))
    return w


def multinomial_steps(
    X: Any, labels: Array, l1_radius: float, scale: float, steps: int, rng: np.random.Generator
) -> Array:
    """Frank-Wolfe steps of softmax regression to one of the 2Kd vertices, chosen after Gumbel noise on all of them."""
    (n, d), classes = X.shape, labels.shape[1]
    w = np.zeros((classes, d))
    for t in range(1, steps + 1):
        gradient = (X.T @ (softmax(X @ w.T, axis=1) - labels)).T / n
        scores = l1_radius * np.stack([gradient, -gradient]) - rng.gumbel(0.0, scale, (2, classes, d))
        sign, k, j = np.unravel_index(int(np.argmin(scores)), scores.shape)
        w *= 1 - 2 / (t + 2)
        w[k, j] += 2 / (t + 2) * (l1_radius if sign == 0 else -l1_radius)
    return w
