"""Orders of growth of Liang et al. 2023: the error of DP-SGD-HT, and the number of record gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dptoolkit import solvers
from paper_checks.family import RULE, decide, sign
from paper_checks.findings import Comparison, Finding, Order
from paper_checks.rates import Array, expression, grow, noisy_thresholding, upper_orders
from paper_checks.seeds import Rng

_DELTA = 1e-5


def theorem_4_3(rng: Rng, exponents: Order, dimension: float, repetitions: int, tolerance: float) -> Finding:
    """The privacy part of the squared error on a quadratic with the noise of Theorem 4.1, along n, epsilon and d.

    The printed order has no d: it is read as a bound that is free of d, and as one whose constant depends on it.
    """

    def log_steps(n: float, epsilon: float, d: float) -> float:
        return math.log((n * epsilon) ** 2 / math.log(1 / _DELTA))

    def measure(n: float, epsilon: float, d: float) -> Array:
        steps = math.ceil(2 * log_steps(n, epsilon, d))
        order = 1 + 2 * math.log(1 / _DELTA) / epsilon
        noise = math.sqrt(40 * order * steps / epsilon) / n
        draws = (rng("quadratic", f"{n} {epsilon} {d}", repetition) for repetition in range(repetitions))
        return noisy_thresholding(draws, int(d), 16, 32, noise, steps)

    base = {"n": 2.0**16, "epsilon": 0.5, "d": 2.0**12}
    ranges = {"n": [2.0**k for k in range(14, 20)], "epsilon": [0.1, 0.2, 0.4, 0.8, 1.6],
              "d": [2.0**k for k in range(9, 17)]}  # fmt: skip
    *others, along_d = grow(measure, base, ranges, expression(exponents, log_steps))
    found = upper_orders(others, tolerance)
    free = abs(along_d.exponent - dimension) <= along_d.margin
    row = Comparison("d = 512 to 65536, if the bound is free of d: exponent", f"{dimension:g}",
                     f"{along_d.exponent:.2f} +- {along_d.margin:.2f}", free)  # fmt: skip
    verdict = found.verdict if free or found.verdict != "bound met" else "depends on reading"
    words = f"{found.computed}, d {along_d.exponent:.2f}"
    detail = "The growth in d is that of log d, which a constant may hide."
    return Finding(verdict, words, (*found.rows, row), detail, charts=(*found.charts, along_d.chart()))


# --- numbers of record gradients --------------------------------------------------------------------------------

_STEPS = (2, 4, 8, 16, 32, 64, 128)
_STEP_SIZES = (25.0, 100.0, 400.0)


def fewer_gradients(rng: Rng, batches: list[int], share: float, repetitions: int) -> Finding:
    """Record gradients until the objective is within 10 % of the best that any method reaches, at equal budgets.

    Every method has the same numbers of steps and step sizes to choose from, with the noise that each needs.
    """
    n = 4096
    counts = [_counts(rng, n, batches, repetition) for repetition in range(repetitions)]
    whole = np.array([share * count[n] for count in counts])
    tests = [sign(np.array([count[batch] for count in counts]), whole) for batch in batches]
    # One batch size that needs fewer is enough.
    found, rows = decide(tests, needed=1), []
    for batch, test, fewer in zip(batches, tests, found.lower, strict=True):
        rows.append(Comparison(f"batches of {batch}, median {_median(counts, batch)}: fewer than all records", "lower",
                               test.effect, fewer))  # fmt: skip
    words = ", ".join(f"{size} a step: {_median(counts, size)}" for size in (*batches, n))
    return Finding("order kept" if found.kept else "tie", f"median record gradients, {words} ({RULE})", tuple(rows))


def _median(counts: Sequence[Mapping[int, float]], size: int) -> str:
    """The median count in words; infinite where most repetitions do not come to the target."""
    found = float(np.median([count[size] for count in counts]))
    return f"{found:,.0f}" if math.isfinite(found) else "target not reached"


def _counts(rng: Rng, n: int, batches: list[int], repetition: int) -> dict[int, float]:
    """For each batch size, all records included, the fewest record gradients to the target; infinite if not reached."""
    draw = rng(f"logistic {n}", repetition=repetition)
    X = draw.standard_normal((n, 200))
    X /= np.linalg.norm(X, axis=1)[:, None]
    truth = np.zeros(200)
    truth[:5] = 20.0
    y = (draw.random(n) < 1 / (1 + np.exp(-X @ truth))).astype(float)
    losses = {
        (batch, steps): min(_objective(X, y, batch, steps, size, rng, repetition) for size in _STEP_SIZES)
        for batch in (*batches, n) for steps in _STEPS
    }  # fmt: skip
    target = 1.1 * min(losses.values())
    return {batch: min((batch * steps for (size, steps), loss in losses.items() if size == batch and loss <= target),
                       default=math.inf) for batch in (*batches, n)}  # fmt: skip


def _objective(X: Array, y: Array, batch: int, steps: int, step_size: float, rng: Rng, repetition: int) -> float:
    n = len(y)
    common: dict[str, Any] = {
        "loss": "logistic", "sparsity": 10, "steps": steps, "step_size": step_size, "row_norm": 1.0, "epsilon": 4.0,
        "delta": _DELTA, "rng": rng(f"logistic {n}", f"{batch} {steps} {step_size}", repetition),
    }  # fmt: skip
    fit = solvers.dp_ight(X, y, **common) if batch == n else solvers.dp_sgd_ht(X, y, batch_size=batch, **common)
    return _loss(X, y, np.asarray(fit.coef))


def _loss(X: Array, y: Array, weights: Array) -> float:
    margins = X @ weights
    return float(np.mean(np.logaddexp(0, margins) - y * margins))
