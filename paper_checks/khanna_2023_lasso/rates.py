"""Orders of growth of Khanna, Lu and Raff 2023: the excess risk of private Frank-Wolfe on logistic data."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
from scipy.special import expit

from dptoolkit import solvers
from paper_checks.findings import Comparison, Finding, Order
from paper_checks.rates import Array, Growth, below, expression, grow, upper_orders
from paper_checks.shared import Part, Shared

_DELTA = 1e-5


def corollary_3(
    shared: Shared, exponents: Order, sizes: list[str], repetitions: int, tolerance: float, constant: float
) -> Finding:
    """The excess risk with the published noise and T by the rule, along n, epsilon, p and the radius.

    Along n, epsilon and p exponents are compared. Along the radius the error follows no power: the best weights are two
    in small balls and four in large ones. There it is compared with ``constant`` times the bound itself.
    """
    growths = _growths(shared, exponents, sizes, repetitions)
    found = upper_orders([growth for growth in growths if growth.size != "radius"], tolerance)
    if "radius" not in sizes:
        return found
    beside = below([growth for growth in growths if growth.size == "radius"], constant)
    verdict = found.verdict if beside.verdict == "bound met" else beside.verdict
    words, rows = f"{found.computed}; along the radius {beside.computed}", found.rows + beside.rows
    return Finding(verdict, words, rows, charts=found.charts + beside.charts)


def theorem_1(
    shared: Shared, exponents: Order, smoothness: float, sizes: list[str], repetitions: int, tolerance: float
) -> Finding:
    """The same on the unit ball, and the largest second derivative of the logistic loss."""
    found = upper_orders(_growths(shared, exponents, sizes, repetitions), tolerance)
    margins = np.linspace(-20, 20, 40_001)
    largest = float(np.max(expit(margins) * expit(-margins)))
    row = Comparison("largest second derivative of the loss", f"<= {smoothness:g}", largest, largest <= smoothness)
    verdict = found.verdict if row.agrees else "bound broken"
    return replace(found, verdict=verdict, rows=(*found.rows, row))


def _growths(shared: Shared, exponents: Order, sizes: list[str], repetitions: int) -> list[Growth]:
    base = {"n": 16384.0, "epsilon": 8.0, "p": 64.0, "radius": 1.0}
    ranges = {
        "n": [2.0**k for k in range(11, 16)], "epsilon": [1.0, 2.0, 4.0, 8.0, 16.0],
        "p": [16.0, 32.0, 64.0, 128.0, 256.0], "radius": [0.5, 1.0, 2.0, 4.0, 8.0],
    }  # fmt: skip
    return grow(lambda **at: _excess(shared, repetitions, **at), base, {size: ranges[size] for size in sizes},
                expression(exponents, lambda **at: math.log(at["n"] * at["p"] / _DELTA)))  # fmt: skip


def _excess(shared: Shared, repetitions: int, n: float, epsilon: float, p: float, radius: float) -> Array:
    """One error per repetition; Theorem 1 is Corollary 3 on the unit ball, so both rest on the same runs."""

    def make() -> Part:
        return {"excess": _measured(shared, repetitions, n, epsilon, p, radius).tolist()}

    return np.array(shared.part(f"logistic {n} {epsilon} {p} {radius}, {repetitions} sets", make)["excess"])


def _measured(shared: Shared, repetitions: int, n: float, epsilon: float, p: float, radius: float) -> Array:
    rng = shared.source.of("rates")
    # Gamma = beta lambda^2 with beta = 1/4, L = 1.
    steps = max(2, round((radius / 4 * n * epsilon) ** (2 / 3)))
    found = []
    for repetition in range(repetitions):
        draw = rng(f"logistic {n} {p}", repetition=repetition)
        X = draw.uniform(-1, 1, (int(n), int(p)))
        truth = np.zeros(int(p))
        truth[:4] = [3.0, -3.0, 2.0, -2.0]
        y = (draw.random(int(n)) < expit(X @ truth)).astype(float)
        fit = solvers.dp_frank_wolfe(X, y, loss="logistic", l1_radius=radius, steps=steps, feature_bound=1.0,
                                     epsilon=epsilon, delta=_DELTA, calibration="published", law="laplace",
                                     rng=rng(f"logistic {n} {p}", f"{epsilon} {radius}", repetition))  # fmt: skip
        least = shared.part(f"least loss {n} {p} {radius} {repetition}", partial(_least, X, y, radius))
        found.append(_loss(X, y, fit.coef) - least["loss"])
    return np.maximum(np.array(found), 1e-9)


def _least(X: Array, y: Array, radius: float) -> Part:
    """The smallest loss on the ball, which no epsilon changes."""
    best = solvers.frank_wolfe(X, y, loss="logistic", l1_radius=radius, steps=1000)
    return {"loss": _loss(X, y, best.coef)}


def _loss(X: Array, y: Array, weights: Array) -> float:
    margins = X @ weights
    return float(np.mean(np.logaddexp(0, margins) - y * margins))
