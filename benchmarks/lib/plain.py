"""The steps of the solvers as a good engineer writes them in NumPy and SciPy: the plain rivals of all benchmarks.

Calibration, validation, clipping and transposing are free for them. Noise scales do not change the time.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import minimize
from scipy.special import expit, softmax

Array = NDArray[np.float64]


def residual(loss: str, margins: Array, y: Array) -> Array:
    """d loss / d margin of the two losses that the plain rivals know: logistic and, for any other name, squared."""
    return np.asarray(expit(margins) - y if loss == "logistic" else margins - y)


def kept(values: Array, count: int) -> Array:
    """The ``count`` largest values by size, the others zero."""
    w, d = np.zeros_like(values), len(values)
    keep = np.argpartition(np.abs(values), d - count)[d - count :]
    w[keep] = values[keep]
    return w


def ight_steps(
    X: Any, y: Array, loss: str, sparsity: int, step_size: float, scale: float, steps: int, rng: np.random.Generator
) -> Array:
    """Noisy gradient steps, each followed by hard thresholding."""
    n, d = X.shape
    w = np.zeros(d)
    for _ in range(steps):
        gradient = X.T @ residual(loss, X @ w, y) / n + rng.normal(0.0, scale, d)
        w = kept(w - step_size * gradient, sparsity)
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
    X: Any, columns: Any, y: Array, loss: str, radius: float, scale: float, steps: int, rng: np.random.Generator
) -> Array:
    """Frank-Wolfe with margins that follow the iterate: a step is one X^T r, 2d Gumbel numbers and a column.

    ``columns`` is X as CSC, or dense as it is, which is not counted here.
    """
    n, d = X.shape
    rows, w, margins = X.T, np.zeros(d), np.zeros(n)
    for t in range(1, steps + 1):
        gradient = radius / n * (rows @ residual(loss, margins, y))
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


def peeling_steps(
    X: Any, y: Array, sparsity: int, step_size: float, radius: float, scale: float, steps: int, rng: np.random.Generator
) -> Array:
    """Gradient steps of which the entries largest after Gumbel noise are kept, with Gaussian noise, in an L2 ball."""
    n, d = X.shape
    w = np.zeros(d)
    for _ in range(steps):
        target = w - step_size * (X.T @ (X @ w - y)) / n
        scores = np.abs(target) + rng.gumbel(0.0, scale, d)
        keep = np.argpartition(scores, d - sparsity)[d - sparsity :]
        w = np.zeros(d)
        w[keep] = target[keep] + rng.normal(0.0, scale, sparsity)
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
        w = kept(total, sparsity)
    return w


def sgd_steps(
    X: Any, y: Array, sparsity: int, batch: int, step_size: float, scale: float, steps: int, rng: np.random.Generator
) -> Array:
    """Logistic steps with the noisy gradient of a batch, each followed by hard thresholding."""
    n, d = X.shape
    w = np.zeros(d)
    for _ in range(steps):
        places = rng.choice(n, batch, replace=False)
        rows = X[places]
        gradient = rows.T @ ((expit(rows @ w) - y[places]) / batch) + rng.normal(0.0, scale, d)
        w = kept(w - step_size * gradient, sparsity)
    return w


def reduced_epochs(
    X: Any,
    y: Array,
    sparsity: int,
    snapshot_size: int,
    batch: int,
    step_size: float,
    scale: float,
    epochs: int,
    rng: np.random.Generator,
) -> Array:
    """Logistic epochs: a noisy gradient of many rows, then batches of which only the change since then is added."""
    n, d = X.shape
    w = np.zeros(d)
    for _ in range(epochs):
        is_all, start = snapshot_size == n, w
        places = np.arange(n) if is_all else rng.choice(n, snapshot_size, replace=False)
        rows = X if is_all else X[places]
        mean = rows.T @ (expit(rows @ start) - y[places]) / snapshot_size + rng.normal(0.0, scale, d)
        for _ in range(snapshot_size // batch):
            rows = X[rng.choice(n, batch, replace=False)]
            change = rows.T @ ((expit(rows @ w) - expit(rows @ start)) / batch)
            w = kept(w - step_size * (mean + change + rng.normal(0.0, scale, d)), sparsity)
    return w


def perturbed_minimiser(X: Any, y: Array, l2: float, linear: Array, start: Array, accuracy: float = 1e-9) -> Array:
    """The minimiser of the logistic loss with a quadratic and a linear term, by L-BFGS.

    It ends where the gradient's L2 norm, which privacy rests on, is at most ``accuracy``.
    """
    n, norms = len(y), [np.inf]

    def objective(w: Array) -> tuple[float, Array]:
        margins = X @ w
        value = float(np.mean(np.logaddexp(0.0, margins) - y * margins) + l2 / 2 * (w @ w) + linear @ w)
        gradient = np.asarray(X.T @ ((expit(margins) - y) / n)) + l2 * w + linear
        norms[0] = float(np.linalg.norm(gradient))
        return value, gradient

    def end(_: Array) -> None:
        if norms[0] <= accuracy:
            raise StopIteration

    options = {"maxiter": 500, "ftol": 0.0, "gtol": 0.0}
    solution = minimize(objective, start, jac=True, method="L-BFGS-B", options=options, callback=end)
    return np.asarray(solution.x)


def admm_steps(
    X: Any,
    y: Array,
    rho: float,
    weight: float,
    scale: float,
    steps: int,
    rng: np.random.Generator,
    accuracy: float = 1e-9,
) -> Array:
    """Noisy minimisers near a centre, each search from the last one, followed by soft thresholding."""
    d = X.shape[1]
    v, z, u = np.zeros(d), np.zeros(d), np.zeros(d)
    for _ in range(steps):
        w = perturbed_minimiser(X, y, rho, -rho * (z - u), v, accuracy) + rng.normal(0.0, scale, d)
        z = np.sign(w + u) * np.maximum(np.abs(w + u) - weight / rho, 0.0)
        u += w - z
        v = w
    return z


class TwoCores:
    """Hard thresholding on two cores: each of two threads has half of the rows for margins, half of the columns after.

    SciPy's products and NumPy's normals leave the interpreter lock, so that both threads work.
    """

    def __init__(self, X: Any, y: Array, sparsity: int, scale: float) -> None:
        n, d = X.shape
        self.y, self.sparsity, self.scale = y, sparsity, scale
        self.rows = [slice(0, n // 2), slice(n // 2, n)]
        columns = X.T.tocsr() if sparse.issparse(X) else np.ascontiguousarray(X.T)
        ends = (0, _middle(columns), d)
        self.columns = [slice(*ends[:2]), slice(*ends[1:])]
        self.upper, self.turned = [X[part] for part in self.rows], [columns[part] for part in self.columns]
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


def _middle(columns: Any) -> int:
    """The feature before which half of the entries are."""
    if sparse.issparse(columns):
        return int(np.searchsorted(columns.indptr, columns.nnz // 2))
    return int(columns.shape[0] // 2)
