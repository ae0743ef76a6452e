"""Orders of growth of Wang and Gu 2020.

The student is followed on quadratics: the teacher's loss is |theta - theta*|^2/2 plus the ridge, and the public rows
have covariance beta~ I. The student then sees the teacher plus normal noise of deviation sigma/sqrt(m beta~) on every
coordinate, and n and epsilon enter through the printed noise and the printed ridge alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from paper_checks.findings import Finding, Order
from paper_checks.rates import Array, Growth, expression, grow, hard_threshold, noisy_thresholding, upper_orders
from paper_checks.seeds import Rng

_PUBLIC = 1 / 3  # beta~ of rows that are uniform on [-1, 1]
_BASE = {"n": 2.0**18, "epsilon": 1.0, "s": 16.0, "d": 2.0**12, "K": 1.0}
_RANGES = {
    "n": [2.0**k for k in range(16, 22)], "epsilon": [0.25, 0.5, 1.0, 2.0, 4.0], "s": [4.0, 8.0, 16.0, 32.0, 64.0],
    "d": [2.0**k for k in range(9, 17)], "K": [0.25, 0.5, 1.0, 2.0, 4.0],
}  # fmt: skip
_LOG = math.log(2.5 / 0.01)

# gamma, the largest entry of a record's gradient, as a function of K and s*.
GAMMA: Mapping[str, Callable[[float, float], float]] = {
    "constant": lambda K, s: 1.0,
    "linear": lambda K, s: K**2 * math.sqrt(s),
    "logistic": lambda K, s: K,
}


def student(
    rng: Rng, exponents: Order, gamma: str, ridge: bool, sizes: list[str], repetitions: int, tolerance: float
) -> Finding:
    """The student's squared error along sizes, with the ridge of the theorem and its noise, or without a ridge."""
    growths = grow(lambda **at: _errors(rng, repetitions, GAMMA[gamma], ridge, **at), _BASE,
                   {size: _RANGES[size] for size in sizes}, expression(exponents))  # fmt: skip
    return upper_orders(growths, tolerance)


def _errors(
    rng: Rng,
    repetitions: int,
    gamma: Callable[[float, float], float],
    ridge: bool,
    n: float,
    epsilon: float,
    s: float,
    d: float,
    K: float,
) -> Array:
    largest = gamma(K, s)
    weight = math.sqrt(largest * math.sqrt(s * math.log(d) * _LOG) / (n * epsilon)) if ridge else 0.0
    # Theorem 4.3 with m = n; without a ridge, Corollary 4.7 with mu = 1.
    sigma = math.sqrt(8 * n * _PUBLIC * 2 * s * _LOG) * largest / (n * epsilon * (weight if ridge else 1.0))
    noise = sigma / math.sqrt(n * _PUBLIC)
    found = []
    for repetition in range(repetitions):
        draw = rng("quadratic", f"{ridge} {n} {epsilon} {s} {d} {K}", repetition)
        truth = np.zeros(int(d))
        truth[draw.choice(int(d), int(s), replace=False)] = draw.choice([-1.0, 1.0], int(s))
        answers = truth / (1 + weight) + noise * draw.standard_normal(int(d))
        found.append(float(np.sum((hard_threshold(answers, int(2 * s)) - truth) ** 2)))
    return np.array(found)


def table_1(rng: Rng, exponents: Mapping[str, Order], repetitions: int, tolerance: float) -> Finding:
    """The rows of the table whose error is a squared distance, along n epsilon and s*, for K~ = K = 1."""
    growths: list[Growth] = []
    for method, order in exponents.items():
        measure = _METHODS[method](rng, repetitions)
        printed = expression({"n" if symbol == "n_eps" else symbol: power for symbol, power in order.items()})
        for growth in grow(measure, _BASE, {"n": _RANGES["n"], "s": _RANGES["s"]}, printed):
            growths.append(Growth(f"{method}: {growth.size}", growth.values, growth.errors, growth.printed))
    return upper_orders(growths, tolerance)


def _transfer(ridge: bool) -> Callable[[Rng, int], Callable[..., Array]]:
    def method(rng: Rng, repetitions: int) -> Callable[..., Array]:
        return lambda **at: _errors(rng, repetitions, GAMMA["linear"], ridge, **at)

    return method


def _gradient_noise(rng: Rng, repetitions: int) -> Callable[..., Array]:
    """DP-IGHT with gradients of at most sqrt(2 s) and noise sqrt(6 T log(1/delta)) G/(n epsilon)."""

    def errors(n: float, epsilon: float, s: float, d: float, K: float) -> Array:
        steps = math.ceil(2 * math.log((n * epsilon) ** 2 / s))
        noise = math.sqrt(6 * steps * _LOG * 2 * s) * K / (n * epsilon)
        draws = (rng("quadratic", f"gradient {n} {epsilon} {s} {d}", repetition) for repetition in range(repetitions))
        return noisy_thresholding(draws, int(d), int(s), int(2 * s), noise, steps)

    return errors


_METHODS: Mapping[str, Callable[[Rng, int], Callable[..., Array]]] = {
    "DP-IGHT": _gradient_noise,
    "DPSL-KT with ridge": _transfer(True),
    "DPSL-KT without": _transfer(False),
}
