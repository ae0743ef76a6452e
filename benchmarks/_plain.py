"""What a careful user would write in plain NumPy and SciPy: the same private steps, each a full pass over the data.

Noise scales do not change the time, so they are arguments and nothing here is calibrated.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
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


def dual_averaging_steps(
    X: Any, y: Array, sparsity: int, step_size: float, scale: float, steps: int, rng: np.random.Generator
) -> Array:
    """Logistic hard thresholding of the sum of all noisy gradients."""
    n, d = X.shape
    w, total = np.zeros(d), np.zeros(d)
    for _ in range(steps):
        total -= step_size * (X.T @ (expit(X @ w) - y) / n + rng.normal(0.0, scale, d))
        keep = np.argpartition(np.abs(total), d - sparsity)[d - sparsity :]
        w = np.zeros(d)
        w[keep] = total[keep]
    return w


def sgd_steps(
    X: Any, y: Array, sparsity: int, batch: int, step_size: float, scale: float, steps: int, rng: np.random.Generator
) -> Array:
    """Logistic steps with the noisy gradient of a batch, each followed by hard thresholding."""
    n, d = X.shape
    w = np.zeros(d)
    for _ in range(steps):
        chosen = rng.choice(n, batch, replace=False)
        rows = X[chosen]
        moved = w - step_size * (rows.T @ (expit(rows @ w) - y[chosen]) / batch + rng.normal(0.0, scale, d))
        keep = np.argpartition(np.abs(moved), d - sparsity)[d - sparsity :]
        w = np.zeros(d)
        w[keep] = moved[keep]
    return w


def reduced_epochs(
    X: Any, y: Array, sparsity: int, snapshot_size: int, batch: int, step_size: float, scale: float, epochs: int,
    rng: np.random.Generator,
) -> Array:
    """Logistic epochs: a noisy gradient of many rows, then batches of which only the change since then is added."""
    n, d = X.shape
    w = np.zeros(d)
    for _ in range(epochs):
        chosen, start = rng.choice(n, snapshot_size, replace=False), w
        rows = X[chosen]
        mean = rows.T @ (expit(rows @ start) - y[chosen]) / snapshot_size + rng.normal(0.0, scale, d)
        for _ in range(snapshot_size // batch):
            rows = X[rng.choice(n, batch, replace=False)]
            change = rows.T @ (expit(rows @ w) - expit(rows @ start)) / batch
            moved = w - step_size * (mean + change + rng.normal(0.0, scale, d))
            keep = np.argpartition(np.abs(moved), d - sparsity)[d - sparsity :]
            w = np.zeros(d)
            w[keep] = moved[keep]
    return w


def perturbed_minimiser(X: Any, y: Array, l2: float, linear: Array, start: Array, accuracy: float = 1e-9) -> Array:
    """The minimiser of the logistic loss with a quadratic and a linear term, by L-BFGS."""
    n, sign = len(y), 2 * y - 1

    def objective(w: Array) -> tuple[float, Array]:
        margins = X @ w
        value = float(np.mean(np.logaddexp(0, -sign * margins)) + 0.5 * l2 * w @ w + linear @ w)
        return value, np.asarray(X.T @ (expit(margins) - y)) / n + l2 * w + linear

    options = {"maxiter": 500, "ftol": 0.0, "gtol": accuracy}
    return np.asarray(minimize(objective, start, jac=True, method="L-BFGS-B", options=options).x)


def admm_steps(
    X: Any, y: Array, rho: float, weight: float, scale: float, steps: int, rng: np.random.Generator
) -> Array:
    """Noisy minimisers near a centre, each followed by soft thresholding."""
    d = X.shape[1]
    v, z, u = np.zeros(d), np.zeros(d), np.zeros(d)
    for _ in range(steps):
        w = perturbed_minimiser(X, y, rho, -rho * (z - u), v) + rng.normal(0.0, scale, d)
        z = np.sign(w + u) * np.maximum(np.abs(w + u) - weight / rho, 0.0)
        u += w - z
        v = w
    return z
