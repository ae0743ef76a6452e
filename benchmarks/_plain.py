"""What a careful user would write in plain NumPy and SciPy: the same private steps, each a full pass over the data.

Noise scales do not change the time, so they are arguments and nothing here is calibrated.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

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
    """Frank-Wolfe steps to the vertex with the smallest score after Laplace noise on all 2d of them."""
    n, d = X.shape
    w = np.zeros(d)
    for t in range(1, steps + 1):
        gradient = X.T @ residual(loss, X @ w, y) / n
        scores = l1_radius * np.concatenate([gradient, -gradient]) + rng.laplace(0.0, scale, 2 * d)
        vertex = int(np.argmin(scores))
        w *= 1 - 2 / (t + 2)
        w[vertex % d] += 2 / (t + 2) * (l1_radius if vertex < d else -l1_radius)
    return w
