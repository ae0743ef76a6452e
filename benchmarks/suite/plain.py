"""The steps of the solvers as a good engineer writes them in NumPy and SciPy, beside those of benchmarks/_plain.py.

Calibration, validation, clipping and transposing are free for them. Noise scales do not change the time.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, sparse
from scipy.special import expit

Array = NDArray[np.float64]


def kept(values: Array, count: int) -> Array:
    """The ``count`` largest values by size, the others zero."""
    w, d = np.zeros_like(values), len(values)
    keep = np.argpartition(np.abs(values), d - count)[d - count :]
    w[keep] = values[keep]
    return w


def dual_averaging_steps(X: Any, y: Array, sparsity: int, scale: float, steps: int, rng: np.random.Generator) -> Array:
    """Sums of noisy gradients, of which the largest entries are the weights."""
    n, d = X.shape
    total, w = np.zeros(d), np.zeros(d)
    for _ in range(steps):
        total -= 4.0 * (X.T @ (expit(X @ w) - y) / n + rng.normal(0.0, scale, d))
        w = kept(total, sparsity)
    return w


def frank_wolfe_steps(
    X: Any, columns: Any, y: Array, loss: str, radius: float, scale: float, steps: int, rng: np.random.Generator
) -> Array:
    """Frank-Wolfe with margins that follow the iterate: a step is one X^T r, 2d Gumbel numbers and a column."""
    n, d = X.shape
    rows, w, margins = X.T, np.zeros(d), np.zeros(n)
    for t in range(1, steps + 1):
        said = expit(margins) if loss == "logistic" else margins
        gradient = radius / n * (rows @ (said - y))
        noisy = np.concatenate([-gradient, gradient])
        vertex = int(np.argmax(noisy + rng.gumbel(0.0, scale, 2 * d) if scale > 0 else noisy))
        j, mu = vertex % d, 2 / (t + 2)
        push = mu * (radius if vertex < d else -radius)
        w *= 1 - mu
        w[j] += push
        margins *= 1 - mu
        if sparse.issparse(X):
            column = slice(columns.indptr[j], columns.indptr[j + 1])
            margins[columns.indices[column]] += push * columns.data[column]
        else:
            margins += push * columns[:, j]
    return w


def sgd_steps(
    X: Any, y: Array, sparsity: int, batch: int, scale: float, steps: int, rng: np.random.Generator
) -> Array:
    """Steps on batches, each with d normals and a partition."""
    n, d = X.shape
    w = np.zeros(d)
    for _ in range(steps):
        chosen = rng.choice(n, batch, replace=False)
        rows = X[chosen]
        gradient = rows.T @ ((expit(rows @ w) - y[chosen]) / batch) + rng.normal(0.0, scale, d)
        w = kept(w - gradient, sparsity)
    return w


def reduced_steps(
    X: Any, y: Array, sparsity: int, batch: int, snapshot: int, scale: float, epochs: int, rng: np.random.Generator
) -> Array:
    """Epochs of a snapshot gradient and snapshot/batch inner steps, each with d normals and a partition."""
    n, d = X.shape
    w = np.zeros(d)
    for _ in range(epochs):
        start, some = w, np.arange(n) if snapshot == n else rng.choice(n, snapshot, replace=False)
        rows = X if snapshot == n else X[some]
        mean = rows.T @ (expit(rows @ start) - y[some]) / len(some) + rng.normal(0.0, scale, d)
        for _ in range(snapshot // batch):
            rows = X[rng.choice(n, batch, replace=False)]
            change = rows.T @ ((expit(rows @ w) - expit(rows @ start)) / batch)
            w = kept(w - (change + mean + rng.normal(0.0, scale, d)), sparsity)
    return w


def perturbed_minimum(X: Any, y: Array, l2: float, scale: float, rng: np.random.Generator, start: Any = None) -> Array:
    """The minimiser of mean logistic loss + (l2/2)|w|^2 + <b, w> by SciPy's L-BFGS."""
    n, d = X.shape
    b = rng.normal(0.0, scale, d)

    def objective(w: Array) -> tuple[float, Array]:
        margins = X @ w
        value = np.mean(np.logaddexp(0.0, margins) - y * margins) + l2 / 2 * (w @ w) + b @ w
        return float(value), X.T @ ((expit(margins) - y) / n) + l2 * w + b

    first = np.zeros(d) if start is None else start
    options = {"gtol": 1e-7, "ftol": 0.0, "maxiter": 500}
    return np.asarray(optimize.minimize(objective, first, jac=True, method="L-BFGS-B", options=options).x)


def admm_steps(X: Any, y: Array, rho: float, scale: float, steps: int, rng: np.random.Generator) -> Array:
    """Noisy minimisers near z - u, each search from the last one, and soft thresholds."""
    n, d = X.shape
    w, z, u = np.zeros(d), np.zeros(d), np.zeros(d)
    for _ in range(steps):
        centre = z - u

        def objective(v: Array, centre: Array = centre) -> tuple[float, Array]:
            margins, away = X @ v, v - centre
            value = np.mean(np.logaddexp(0.0, margins) - y * margins) + rho / 2 * (away @ away)
            return float(value), X.T @ ((expit(margins) - y) / n) + rho * away

        options = {"gtol": 1e-7, "ftol": 0.0, "maxiter": 500}
        w = optimize.minimize(objective, w, jac=True, method="L-BFGS-B", options=options).x
        w = w + rng.normal(0.0, scale, d)
        z = np.sign(w + u) * np.maximum(np.abs(w + u) - 1e-3, 0.0)
        u = u + w - z
    return np.asarray(z)


class TwoCores:
    """Hard thresholding on two cores: each of two threads has half of the rows for margins, half of the columns after.

    SciPy's products and NumPy's normals leave the interpreter lock, so that both threads work.
    """

    def __init__(self, X: Any, y: Array, sparsity: int, scale: float) -> None:
        n, d = X.shape
        self.y, self.sparsity, self.scale = y, sparsity, scale
        self.rows = [slice(0, n // 2), slice(n // 2, n)]
        turned = X.T.tocsr() if sparse.issparse(X) else np.ascontiguousarray(X.T)
        ends = (0, _middle(turned), d)
        self.columns = [slice(*ends[:2]), slice(*ends[1:])]
        self.upper, self.turned = [X[part] for part in self.rows], [turned[part] for part in self.columns]
        self.rngs = [np.random.default_rng(k) for k in range(2)]
        self.residuals, self.gradient, self.pool = np.zeros(n), np.zeros(d), ThreadPoolExecutor(2)

    def run(self, steps: int) -> Array:
        w = np.zeros(len(self.gradient))
        for _ in range(steps):
            list(self.pool.map(self._half_of_residuals, (0, 1), (w, w)))
            list(self.pool.map(self._half_of_gradient, (0, 1)))
            w = kept(w - 4.0 * self.gradient, self.sparsity)
        return w

    def _half_of_residuals(self, k: int, w: Array) -> None:
        part = self.rows[k]
        self.residuals[part] = (expit(self.upper[k] @ w) - self.y[part]) / len(self.y)

    def _half_of_gradient(self, k: int) -> None:
        part = self.columns[k]
        self.gradient[part] = self.turned[k] @ self.residuals
        self.gradient[part] += self.scale * self.rngs[k].standard_normal(part.stop - part.start)


def _middle(turned: Any) -> int:
    """The feature before which half of the entries are."""
    if sparse.issparse(turned):
        return int(np.searchsorted(turned.indptr, turned.nnz // 2))
    return int(turned.shape[0] // 2)
