"""Table 1 of Wang and Gu 2019: the orders of growth of three methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dptoolkit import solvers
from paper_checks.findings import Finding
from paper_checks.measure import gaussian_regression
from paper_checks.rates import Array, Growth, upper_orders
from paper_checks.seeds import Rng

_RIDGE = 1e-3


def table_1(rng: Rng, exponents: Mapping[str, float], repetitions: int, tolerance: float) -> Finding:
    """The exponent of n in the error of three methods on one regression at epsilon 8, with tight noise.

    The rows of the table bound different quantities, which is kept here: excess risk for Frank-Wolfe, squared distance
    for the others.
    """
    sizes = [1000.0, 2000.0, 4000.0, 8000.0, 16000.0]
    errors = {name: np.zeros((repetitions, len(sizes))) for name in exponents}
    for place, n in enumerate(sizes):
        for repetition in range(repetitions):
            draw = rng(f"regression {n}", repetition=repetition)
            X, _, truth = gaussian_regression(draw, int(n), 40, 4, 0.0)
            X, truth = X / 4, truth / 2
            y = X @ truth + 0.02 * draw.standard_normal(int(n))
            for name in exponents:
                noise = rng(f"regression {n}", name, repetition)
                errors[name][repetition, place] = _error(name, X, y, truth, noise)
    growths = [
        Growth(f"n, {name}", sizes, errors[name], [n**exponent for n in sizes]) for name, exponent in exponents.items()
    ]
    return upper_orders(growths, tolerance)


def _error(name: str, X: Array, y: Array, truth: Array, noise: np.random.Generator) -> float:
    common: dict[str, Any] = {"epsilon": 8.0, "delta": 1e-5, "rng": noise}
    if name == "Frank-Wolfe":
        radius, steps = float(np.abs(truth).sum()), max(4, round((len(y) / 10) ** (2 / 3)))
        fit = solvers.dp_frank_wolfe(X, y, loss="squared", l1_radius=radius, steps=steps, feature_bound=1.0,
                                     label_bound=2.0, **common)  # fmt: skip
        return max(float(np.mean((X @ fit.coef - y) ** 2) - np.mean((X @ truth - y) ** 2)) / 2, 1e-9)
    if name == "Two stage":
        fit = solvers.two_stage(X, y, loss="huber", sparsity=4, blocks=40, row_norm=3.0, l2=_RIDGE, **common)
        # Its ridge is not part of what the noise costs.
        used = X[:, truth != 0]
        truth = truth.copy()
        truth[truth != 0] = np.linalg.solve(used.T @ used / len(y) + _RIDGE * np.eye(4), used.T @ y / len(y))
    else:
        fit = solvers.dp_ight(X, y, loss="squared", sparsity=4, steps=20, step_size=8.0, grad_norm=3.0,
                              **common)  # fmt: skip
    return float(np.sum((fit.coef - truth) ** 2))
