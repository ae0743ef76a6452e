"""Orders of growth of Wang and Gu 2019."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dptoolkit import solvers
from paper_checks.findings import Comparison, Finding, Order
from paper_checks.measure import gaussian_regression
from paper_checks.rates import Array, Growth, expression, grow, noisy_thresholding, upper_orders
from paper_checks.seeds import Rng

# The step is 1/(beta + mu) = 1/2, which halves the distance to the minimiser: twice the logarithm is enough steps.
_STEPS = 2.0


def _log_steps(n: float, rho: float, s: float, d: float, G: float) -> float:
    """The logarithm of Theorem 5.4 with kappa = mu = 1 and a truth of entries +-1."""
    return max(math.log(rho * n**2 * s / (G**2 * 2 * s * math.log(d))), 1.0)


def _private_error(rng: Rng, repetitions: int, **sizes: float) -> Array:
    """Squared errors with the noise of Theorem 5.2 and the number of steps of Theorem 5.4."""
    steps = math.ceil(_STEPS * _log_steps(**sizes))
    noise = math.sqrt(steps * sizes["G"] ** 2 / sizes["rho"]) / sizes["n"]
    draws = (rng("quadratic", str(sorted(sizes.items())), repetition) for repetition in range(repetitions))
    return noisy_thresholding(draws, int(sizes["d"]), int(sizes["s"]), int(2 * sizes["s"]), noise, steps)


_BASE = {"n": 2.0**13, "rho": 0.1, "s": 16.0, "d": 2.0**12, "G": 1.0}


def theorem_5_4(rng: Rng, exponents: Order, repetitions: int, tolerance: float) -> Finding:
    """The privacy part of the squared error along n, rho, s*, d and G."""
    ranges = {
        "n": [2.0**k for k in range(11, 17)], "rho": [0.01, 0.03, 0.1, 0.3, 1.0], "s": [4.0, 8.0, 16.0, 32.0, 64.0],
        "d": [2.0**k for k in range(9, 17)], "G": [0.25, 0.5, 1.0, 2.0, 4.0],
    }  # fmt: skip
    growths = grow(lambda **sizes: _private_error(rng, repetitions, **sizes), _BASE, ranges,
                   expression(exponents, _log_steps))  # fmt: skip
    return upper_orders(growths, tolerance)


def dimension(rng: Rng, exponents: Order, dense: float, repetitions: int, tolerance: float) -> Finding:
    """The privacy error along d: with 2 s* entries kept, and with all of them."""
    sizes = [2.0**k for k in range(7, 18)]
    (sparse,) = grow(lambda **at: _private_error(rng, repetitions, **at), _BASE, {"d": sizes},
                     expression(exponents, _log_steps))  # fmt: skip
    full = Growth("d, all entries kept", sizes, _dense_errors(rng, repetitions, sizes), [d**dense for d in sizes])
    rows = (sparse.comparison(tolerance),
            Comparison(f"d = {sizes[0]:g} to {sizes[-1]:g}, all entries kept: exponent", f"{dense:.2f}",
                       f"{full.exponent:.2f}", abs(full.exponent - dense) <= tolerance))  # fmt: skip
    words = f"exponent of d: {sparse.exponent:.2f} with 2 s* entries kept, {full.exponent:.2f} with all"
    verdict = "met" if all(row.agrees for row in rows) else "not reached here"
    return Finding(verdict, words, rows, charts=(sparse.chart(), full.chart()))


def _dense_errors(rng: Rng, repetitions: int, sizes: list[float]) -> Array:
    columns = []
    for d in sizes:
        steps = math.ceil(_STEPS * _log_steps(**_BASE | {"d": d}))
        noise = math.sqrt(steps / _BASE["rho"]) / _BASE["n"]
        draws = (rng("quadratic", f"dense {d}", repetition) for repetition in range(repetitions))
        columns.append(noisy_thresholding(draws, int(d), 16, int(d), noise, steps))
    return np.stack(columns, axis=1)


def enough_steps(rng: Rng, power: float, repetitions: int, tolerance: float) -> Finding:
    """The error after the printed number of steps, times n^power, beside the best over many numbers of steps."""

    def error(n: float, steps: int) -> float:
        noise = math.sqrt(steps / 0.1) / n
        draws = (rng("quadratic", f"{n} {steps}", repetition) for repetition in range(repetitions))
        return float(noisy_thresholding(draws, 2**11, 8, 16, noise, steps).mean())

    printed = {n: _log_steps(n=n, rho=0.1, s=8.0, d=2.0**11, G=1.0) * n**power for n in (2.0**k for k in range(9, 17))}
    return _enough(printed, error, tolerance)


_CANDIDATES = (2, 4, 6, 8, 11, 15, 20, 28, 40)


def _enough(printed: Mapping[float, float], error: Callable[[float, int], float], tolerance: float) -> Finding:
    """Whether the printed number of steps gives at most ``tolerance`` times the error of the best number."""
    rows = []
    for n, value in printed.items():
        steps = max(1, math.ceil(value))
        errors = {count: error(n, count) for count in sorted({steps, *_CANDIDATES})}
        best = min(errors, key=errors.__getitem__)
        ratio = errors[steps] / errors[best]
        rows.append(Comparison(f"n = {n:g}: error after {steps} steps / best, after {best}", f"<= {tolerance:g}",
                               f"{ratio:.2f}", ratio <= tolerance))  # fmt: skip
    worst = max(float(row.computed) for row in rows)
    words = f"the error after the printed number of steps is at most {worst:.2f} times the best"
    return Finding("met" if all(row.agrees for row in rows) else "not reached here", words, tuple(rows))


# --- the corollaries -------------------------------------------------------------------------------------------------


def corollary_5_6(rng: Rng, statistical: Order, privacy: Order, repetitions: int, tolerance: float) -> Finding:
    """Linear regression: the error without noise along n and s*, and with the printed noise on the quadratic."""
    growths = _statistical(rng, "squared", statistical, repetitions)
    growths += _printed_noise(rng, privacy, repetitions, _linear_gradient)
    return upper_orders(growths, tolerance)


def corollary_5_8(rng: Rng, statistical: Order, privacy: Order, repetitions: int, tolerance: float) -> Finding:
    """Logistic regression, likewise."""
    growths = _statistical(rng, "logistic", statistical, repetitions)
    growths += _printed_noise(rng, privacy, repetitions, lambda n, s: 1.0)
    return upper_orders(growths, tolerance)


def _linear_gradient(n: float, s: float) -> float:
    """G of Corollary 5.6 for K = 1, |theta*| = 1 and nu = 0.1."""
    return math.sqrt(2) * (math.sqrt(2 * 2 * s) + 0.1 * math.log(n))


def _printed_noise(rng: Rng, exponents: Order, repetitions: int, gradient: Any) -> list[Growth]:
    """The privacy part with the noise of the corollary, sqrt(T log(1/delta)) G/(n epsilon), and |theta*| = 1."""

    def errors(n: float, epsilon: float, s: float, d: float, delta: float) -> Array:
        steps = math.ceil(_STEPS * max(math.log((n * epsilon) ** 2 / s), 1.0))
        noise = math.sqrt(steps * math.log(1 / delta)) * gradient(n, s) / (n * epsilon)
        name = f"{n} {epsilon} {s} {d} {delta}"
        draws = (rng("quadratic", name, repetition) for repetition in range(repetitions))
        return noisy_thresholding(draws, int(d), int(s), int(2 * s), noise, steps, size=1 / math.sqrt(s))

    base = {"n": 2.0**18, "epsilon": 1.0, "s": 16.0, "d": 2.0**12, "delta": 0.01}
    ranges = {
        "n": [2.0**k for k in range(15, 21)], "epsilon": [0.25, 0.5, 1.0, 2.0, 4.0], "s": [4.0, 8.0, 16.0, 32.0, 64.0],
        "d": [2.0**k for k in range(9, 17)],
    }  # fmt: skip
    return grow(errors, base, ranges, expression(exponents))


def _statistical(rng: Rng, loss: str, exponents: Order, repetitions: int) -> list[Growth]:
    """Squared errors of plain hard thresholding on random designs, along n and s*."""

    def errors(n: float, s: float, d: float) -> Array:
        found = []
        for repetition in range(repetitions):
            draw = rng(f"{loss} {n} {s}", repetition=repetition)
            X, y, truth = gaussian_regression(draw, int(n), int(d), int(s), 1.0)
            if loss == "logistic":
                truth = truth * (2 / math.sqrt(s))
                y = (draw.random(int(n)) < 1 / (1 + np.exp(-X @ truth))).astype(float)
            # The curvature of the logistic loss is at most a quarter of that of the squared one.
            step = 0.6 if loss == "squared" else 2.4
            fit = solvers.ight(X, y, loss=loss, sparsity=int(2 * s), steps=150, step_size=step)
            found.append(float(np.sum((fit.coef - truth) ** 2)))
        return np.array(found)

    base = {"n": 2048.0, "s": 8.0, "d": 256.0}
    growths = grow(errors, base, {"n": [1024.0, 2048.0, 4096.0, 8192.0, 16384.0], "s": [2.0, 4.0, 8.0, 16.0]},
                   expression(exponents))  # fmt: skip
    return [Growth(f"without noise: {growth.size}", growth.values, growth.errors, growth.printed) for growth in growths]


def logistic_steps(rng: Rng, power: float, repetitions: int, tolerance: float) -> Finding:
    """The same for DP-IGHT with the published noise on logistic data; the constant of the number of steps is 3/2."""

    def error(n: float, steps: int) -> float:
        found = []
        for repetition in range(repetitions):
            draw = rng(f"logistic {n}", repetition=repetition)
            X, _, truth = gaussian_regression(draw, int(n), 100, 5, 1.0)
            X /= np.linalg.norm(X, axis=1)[:, None]
            truth *= 10.0
            y = (draw.random(int(n)) < 1 / (1 + np.exp(-X @ truth))).astype(float)
            fit = solvers.dp_ight(X, y, loss="logistic", sparsity=10, steps=steps, step_size=250.0, row_norm=1.0,
                                  epsilon=4.0, delta=0.01, calibration="published",
                                  rng=rng(f"logistic {n}", f"{steps} steps", repetition))  # fmt: skip
            found.append(float(np.sum((fit.coef - truth) ** 2)))
        return float(np.mean(found))

    sizes = [1024.0, 2048.0, 4096.0, 8192.0, 16384.0]
    return _enough({n: 1.5 * math.log((n * 4.0) ** 2 / 10) * n**power for n in sizes}, error, tolerance)
