"""Measurements that several papers' items share: iterates of a fit, linear convergence, accuracy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit import solvers
from paper_checks.charts import Chart, course
from paper_checks.findings import Comparison, Finding

Array = NDArray[np.float64]


def gaussian_regression(
    rng: np.random.Generator, n: int, d: int, sparsity: int, noise: float
) -> tuple[Array, Array, Array]:
    """Standard normal rows, a sparse truth of +-1 entries, labels with normal noise of that deviation."""
    X = rng.standard_normal((n, d))
    truth = np.zeros(d)
    truth[rng.choice(d, sparsity, replace=False)] = rng.choice([-1.0, 1.0], sparsity)
    return X, X @ truth + noise * rng.standard_normal(n), truth


def errors_of(result: Any, truth: Array) -> Array:
    """The distance of every traced iterate from the truth."""
    distances = []
    for _, places, values in result.history["iterates"]:
        weights = np.zeros(len(truth))
        weights[places] = values
        distances.append(float(np.linalg.norm(weights - truth)))
    return np.array(distances)


def iterate_errors(X: Array, y: Array, truth: Array, sparsity: int, steps: int, step_size: float) -> Array:
    """Distances of plain hard thresholding from the truth, step by step."""
    fit = solvers.ight(X, y, loss="squared", sparsity=sparsity, steps=steps, step_size=step_size, trace=True)
    return np.concatenate([[float(np.linalg.norm(truth))], errors_of(fit, truth)])


def linear_convergence(curves: Sequence[tuple[str, Array]], tolerance: float) -> Finding:
    """Whether each curve falls at least geometrically until it is within ``tolerance`` times its floor.

    The floor is the last value. The rate is the largest ratio of successive errors on the way, which must be below 1.
    """
    rows, drawn = [], []
    for label, errors in curves:
        drawn.append(course(label, [list(enumerate(map(float, errors)))], most=64))
        floor = errors[-1]
        above = np.flatnonzero(errors > tolerance * floor)
        last = int(above[-1]) + 1 if len(above) else 0
        ratios = errors[1 : last + 1] / errors[:last]
        falls = bool(len(ratios)) and bool(np.all(np.isfinite(ratios))) and float(ratios.max()) < 1
        rate = float(ratios.max()) if len(ratios) else float("nan")
        rows.append(
            Comparison(f"{label}: {last} steps to {tolerance:g} times the floor", "rate < 1", f"{rate:.3f}", falls)
        )
    good = sum(row.agrees for row in rows)
    words = f"the error falls by a factor below 1 in every step, until the floor, in {good} of {len(rows)} runs"
    chart = Chart(
        "plain hard thresholding, from zero weights", "steps", "distance from the truth", tuple(drawn), log_y=True
    )
    return Finding("met" if good == len(rows) else "not reached here", words, tuple(rows), charts=(chart,))


def accuracy(X: Array, y: Array, weights: Array) -> float:
    """The share of labels (0 or 1) that the sign of the margin predicts."""
    return float(np.mean((X @ weights > 0) == (y > 0.5)))


def auc(X: Array, y: Array, weights: Array) -> float:
    """The share of pairs of unlike labels that the margins order correctly, ties counted half."""
    scores = X @ weights
    order = np.argsort(scores, kind="stable")
    ranks = np.empty(len(scores))
    ranks[order] = np.arange(1, len(scores) + 1)
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.bincount(inverse, ranks) / counts)[inverse]
    positive = y > 0.5
    few = positive.sum()
    return float((ranks[positive].sum() - few * (few + 1) / 2) / (few * (len(y) - few)))


def post_processing(rng: np.random.Generator, gain: float, maps: int = 50) -> tuple[float, float]:
    """The largest ratio of delta(1), and of a Renyi divergence, after a map of the outcomes to that before it.

    Two laws on 200 outcomes. Most maps merge the outcomes into 20, at random; the first only renames them, so that the
    ratio 1 is reached. ``gain`` multiplies what comes out, and is 1 but for a planted fault.
    """
    first, second = (rng.dirichlet(np.full(200, 0.3)) + 1e-6 for _ in range(2))
    first, second = first / first.sum(), second / second.sum()
    before = _divergences(first, second)
    targets = [rng.permutation(200), *(rng.integers(20, size=200) for _ in range(maps))]
    after = [_divergences(_mapped(first, target), _mapped(second, target)) for target in targets]
    deltas, renyi = (gain * max(values) for values in zip(*after, strict=True))
    return deltas / before[0], renyi / before[1]


def _mapped(law: Array, target: NDArray[np.int64]) -> Array:
    return np.asarray(np.bincount(target, law), float)


def _divergences(first: Array, second: Array, order: float = 2.0) -> tuple[float, float]:
    seen = (first > 0) & (second > 0)
    delta = float(np.maximum(first - math.e * second, 0).sum())
    renyi = float(np.log(np.sum(first[seen] ** order * second[seen] ** (1 - order))) / (order - 1))
    return delta, renyi
