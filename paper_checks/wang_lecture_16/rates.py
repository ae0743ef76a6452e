"""Orders of growth of Wang's lecture 16."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dptoolkit import datasets, solvers
from paper_checks.findings import Finding, Order
from paper_checks.rates import Array, Growth, below, expression, grow, noisy_thresholding, upper_orders
from paper_checks.seeds import Rng

_DELTA = 1e-5


def introduction(
    rng: Rng, convex: Order, strongly: Order, constant: float, repetitions: int, tolerance: float
) -> Finding:
    """The excess risk of objective perturbation along n and d.

    With a fixed ridge, exponents are compared. On convex problems the error is far below the bound, so it is compared
    with the bound itself, for weights of norm 2.
    """
    ranges = {"n": [1000.0, 2000.0, 4000.0, 8000.0, 16000.0], "d": [8.0, 16.0, 32.0, 64.0]}
    base = {"n": 4000.0, "d": 16.0}
    found = []
    for name, exponents, strong in (("convex", convex, False), ("strongly convex", strongly, True)):

        def measure(n: float, d: float, strong: bool = strong) -> Array:
            return _perturbed(rng, repetitions, int(n), int(d), strong)

        # sqrt(log(1/delta)) and |theta*| = 2 belong to the convex bound.
        factor = 1.0 if strong else 2 * math.sqrt(math.log(1 / _DELTA))
        growths = grow(measure, base, ranges, expression(exponents))
        growths = [Growth(f"{name}: {growth.size}", growth.values, growth.errors,
                          [factor * value for value in growth.printed]) for growth in growths]  # fmt: skip
        found.append(upper_orders(growths, tolerance) if strong else below(growths, constant))
    verdict = "bound met" if all(finding.verdict == "bound met" for finding in found) else "not reached here"
    words, charts = "; ".join(finding.computed for finding in found), found[0].charts + found[1].charts
    return Finding(verdict, words, found[0].rows + found[1].rows, charts=charts)


def _perturbed(rng: Rng, repetitions: int, n: int, d: int, strong: bool) -> Array:
    found = []
    for repetition in range(repetitions):
        draw = rng(f"logistic {n} {d}", repetition=repetition)
        X, y = _logistic(draw, n, d)
        noise = rng(f"logistic {n} {d}", f"strong {strong}", repetition)
        # Without strong convexity, the ridge that balances noise and bias: sqrt(d)/(n epsilon).
        # With it, a ridge that is large beside the curvature of the data: theirs falls as d grows, and must not count.
        l2 = 0.5 if strong else math.sqrt(d) / n
        settings: dict[str, Any] = {"loss": "logistic", "row_norm": 1.0, "delta": _DELTA, "rng": noise}
        fit = solvers.objective_perturbation(X, y, l2=l2, epsilon=1.0, **settings)
        ridge = l2 if strong else 0.0
        best = _minimum(X, y, ridge)
        found.append(max(_loss(X, y, fit.coef, ridge) - best, 1e-12))
    return np.array(found)


def _logistic(draw: np.random.Generator, n: int, d: int) -> tuple[Array, Array]:
    """Rows of norm 1 and labels from weights of norm 2, whatever d is."""
    X = draw.standard_normal((n, d))
    X /= np.linalg.norm(X, axis=1)[:, None]
    truth = np.zeros(d)
    truth[:4] = 1.0
    return X, (draw.random(n) < 1 / (1 + np.exp(-X @ truth))).astype(float)


def _loss(X: Array, y: Array, weights: Array, l2: float) -> float:
    margins = X @ weights
    return float(np.mean(np.logaddexp(0, margins) - y * margins)) + l2 / 2 * float(weights @ weights)


def _minimum(X: Array, y: Array, l2: float) -> float:
    """The smallest objective, by Newton's method."""
    weights = np.zeros(X.shape[1])
    for _ in range(12):
        chance = 1 / (1 + np.exp(-X @ weights))
        gradient = X.T @ (chance - y) / len(y) + l2 * weights
        curvature = (X * (chance * (1 - chance))[:, None]).T @ X / len(y) + (l2 + 1e-12) * np.eye(X.shape[1])
        weights = weights - np.linalg.solve(curvature, gradient)
    return _loss(X, y, weights, l2)


def theorem_16_3(rng: Rng, exponents: Order, sizes: list[str], repetitions: int, tolerance: float) -> Finding:
    """The excess risk of DP Frank-Wolfe for the squared loss on the L1 ball, T = (n epsilon)^(2/3), along sizes."""
    base = {"n": 4096.0, "epsilon": 4.0, "d": 64.0}
    ranges = {
        "n": [2.0**k for k in range(10, 16)], "epsilon": [1.0, 2.0, 4.0, 8.0, 16.0],
        "d": [64.0, 128.0, 256.0, 512.0, 1024.0],
    }  # fmt: skip

    def measure(n: float, epsilon: float, d: float) -> Array:
        found = []
        steps = max(2, round((n * epsilon / 10) ** (2 / 3)))
        for repetition in range(repetitions):
            draw = rng(f"lasso {n} {d}", repetition=repetition)
            X = draw.uniform(-1, 1, (int(n), int(d)))
            truth = np.zeros(int(d))
            truth[:3] = [0.5, -0.3, 0.2]
            y = np.clip(X @ truth + 0.1 * draw.standard_normal(int(n)), -1, 1)
            fit = solvers.dp_frank_wolfe(X, y, loss="squared", l1_radius=1.0, steps=steps, feature_bound=1.0,
                                         label_bound=1.0, epsilon=epsilon, delta=_DELTA, law="laplace",
                                         rng=rng(f"lasso {n} {d}", f"{epsilon}", repetition))  # fmt: skip
            best = solvers.frank_wolfe(X, y, loss="squared", l1_radius=1.0, steps=500)
            found.append(float(np.mean((X @ fit.coef - y) ** 2) - np.mean((X @ best.coef - y) ** 2)))
        return np.maximum(np.array(found), 1e-9)

    def log_factor(n: float, epsilon: float, d: float) -> float:
        return math.log(2 * d) * math.sqrt(math.log(n / _DELTA)) * math.log((n * epsilon) ** (2 / 3) / 0.05)

    growths = grow(measure, base, {size: ranges[size] for size in sizes}, expression(exponents, log_factor))
    return upper_orders(growths, tolerance)


def theorem_16_5(rng: Rng, exponents: Order, sizes: list[str], repetitions: int, tolerance: float) -> Finding:
    """The privacy part of DP-IHT's squared error on a quadratic, with gradients of at most sqrt(2 s), along sizes."""
    base = {"n": 2.0**18, "epsilon": 1.0, "s": 16.0, "d": 2.0**12}
    ranges = {
        "n": [2.0**k for k in range(15, 21)], "epsilon": [0.25, 0.5, 1.0, 2.0, 4.0], "s": [4.0, 8.0, 16.0, 32.0, 64.0],
        "d": [2.0**k for k in range(9, 17)],
    }  # fmt: skip

    def measure(n: float, epsilon: float, s: float, d: float) -> Array:
        steps = math.ceil(2 * math.log((n * epsilon) ** 2 / s))
        noise = math.sqrt(2 * steps * math.log(1 / _DELTA) * 2 * s) / (n * epsilon)
        draws = (rng("quadratic", f"{n} {epsilon} {s} {d}", repetition) for repetition in range(repetitions))
        return noisy_thresholding(draws, int(d), int(s), int(2 * s), noise, steps)

    growths = grow(measure, base, {size: ranges[size] for size in sizes}, expression(exponents))
    return upper_orders(growths, tolerance)


def theorem_16_6(rng: Rng, exponents: Order, repetitions: int, tolerance: float) -> Finding:
    """The squared error of peeling on blocks of clipped rows with t-distributed entries, along n."""
    sizes = [2.0**k for k in range(14, 19)]
    errors = np.zeros((repetitions, len(sizes)))
    for place, n in enumerate(sizes):
        for repetition in range(repetitions):
            data = datasets.make_heavy_tailed(n=int(n), d=20, sparsity=3, rng=rng(f"heavy {n}", repetition=repetition))
            truth = np.asarray(data.truth)
            bound = math.log(n) / 2
            fit = solvers.peeling_iht(data.X, data.y, sparsity=3, steps=8, step_size=0.5,
                                      radius=2 * float(np.linalg.norm(truth)), feature_bound=bound,
                                      label_bound=2 * bound, data="split", epsilon=4.0, delta=_DELTA,
                                      rng=rng(f"heavy {n}", "peeling", repetition))  # fmt: skip
            errors[repetition, place] = np.sum((fit.coef - truth) ** 2)
    printed = expression(exponents)
    growth = Growth("n", sizes, errors, [printed(n=n) for n in sizes])
    return upper_orders([growth], tolerance)


def theorem_16_9(rng: Rng, exponents: Order, repetitions: int) -> Finding:
    """The excess risk of objective perturbation over the unit L1 and L2 balls beside the bound with constant 1."""
    base = {"n": 2000.0, "epsilon": 0.5, "d": 64.0}
    ranges = {"n": [500.0, 1000.0, 2000.0, 4000.0, 8000.0], "epsilon": [0.125, 0.25, 0.5, 1.0],
              "d": [32.0, 128.0, 512.0]}  # fmt: skip
    growths = []
    for ball in ("l1", "l2"):

        def measure(ball: str = ball, **sizes: float) -> Array:
            return _over_ball(rng, repetitions, ball, **sizes)

        def bound(ball: str = ball, **sizes: float) -> float:
            # The width of the ball; L = 1, beta = 1/4 and the diameter 1 of Theorem 16.9.
            width = math.sqrt(2 * math.log(2 * sizes["d"])) if ball == "l1" else math.sqrt(sizes["d"])
            return (width * math.sqrt(math.log(1 / _DELTA)) + 0.25) * expression(exponents)(**sizes)

        for growth in grow(measure, base, ranges, bound):
            growths.append(Growth(f"{ball} ball: {growth.size}", growth.values, growth.errors, growth.printed))
    return below(growths, 1.0)


def _over_ball(rng: Rng, repetitions: int, ball: str, n: float, epsilon: float, d: float) -> Array:
    found = []
    for repetition in range(repetitions):
        X, y = _logistic(rng(f"logistic {n} {d}", repetition=repetition), int(n), int(d))

        def fit(l2: float, budget: float, name: str, X: Array = X, y: Array = y, repetition: int = repetition) -> Array:
            found = solvers.objective_perturbation(
                X, y, loss="logistic", row_norm=1.0, constraint=ball, radius=1.0, l2=l2, epsilon=budget, delta=_DELTA,
                rng=rng(f"logistic {n} {d}", f"{ball} {epsilon} {name}", repetition),
            )  # fmt: skip
            return np.asarray(found.coef)

        # The ridge of the proof is 2 beta/(n epsilon); privacy at twice its epsilon pays for ln(1 + epsilon).
        private, best = fit(0.5 / (n * epsilon), 2 * epsilon, "private"), fit(1e-7, 1e9, "best")
        found.append(max(_loss(X, y, private, 0.0) - _loss(X, y, best, 0.0), 1e-9))
    return np.array(found)
