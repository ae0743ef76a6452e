"""Algorithm 1 of Wang and Gu 2020 as printed: a teacher without noise, noisy answers to public rows, a student.

The noise is that of Theorem 4.3, or of Corollary 4.7 where there is no ridge. Neither has a finite epsilon.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from paper_checks.rates import Array


def published_student(
    X: Any,
    y: Array,
    public: Any,
    *,
    linear: bool,
    sparsity: int,
    ridge: float,
    modulus: float,
    covariance: float,
    step: float,
    student_step: float,
    epsilon: float,
    delta: float,
    draw: np.random.Generator,
    teacher_steps: int = 50,
    student_steps: int = 50,
) -> Array:
    """The weights of the student. gamma is read off the data, as Theorem 4.3 defines it.

    ``modulus`` is lambda in the noise, or mu where there is no ridge; ``covariance`` is beta~.
    """
    teacher = thresholded(X, y, linear, sparsity, ridge, step, teacher_steps)
    residuals = _fitted(X @ teacher, linear) - y
    gamma = float(np.max(np.abs(residuals) * largest_entries(X)))
    n, m = X.shape[0], public.shape[0]
    variance = 8 * m * covariance * sparsity * gamma**2 * math.log(2.5 / delta) / (n * epsilon * modulus) ** 2
    answers = public @ teacher + math.sqrt(variance) * draw.standard_normal(m)
    return thresholded(public, answers, True, sparsity, 0.0, student_step, student_steps)


def thresholded(X: Any, y: Array, linear: bool, sparsity: int, ridge: float, step: float, steps: int) -> Array:
    """IGHT with a ridge, from zero weights."""
    w = np.zeros(X.shape[1])
    # The step of a loss with the ridge on top is shorter, so that the iteration does not diverge.
    step = step / (1 + step * ridge)
    for _ in range(steps):
        w = w - step * (X.T @ (_fitted(_margins(X, w), linear) - y) / len(y) + ridge * w)
        w[np.argpartition(-np.abs(w), sparsity)[sparsity:]] = 0.0
    return w


def largest_entries(X: Any) -> Array:
    """The largest absolute entry of every row."""
    top = abs(X).max(axis=1)
    return np.asarray(top.todense() if hasattr(top, "todense") else top, dtype=float).ravel()


def _margins(X: Any, w: Array) -> Array:
    if not isinstance(X, np.ndarray):
        return np.asarray(X @ w)
    places = np.flatnonzero(w)
    return X[:, places] @ w[places]


def _fitted(margins: Array, linear: bool) -> Array:
    return margins if linear else np.asarray(1 / (1 + np.exp(-np.clip(margins, -500, 500))))
