"""How many entries Wang and Gu 2019 keep so that the truth is recovered."""

from __future__ import annotations

import math

import numpy as np

from dptoolkit import solvers
from paper_checks.findings import Comparison, Finding
from paper_checks.rates import Array
from paper_checks.seeds import Rng


def threshold(rng: Rng, power: float, repetitions: int) -> Finding:
    """Whether keeping kappa^power s* entries is enough without noise, for condition numbers 1 to 8."""
    n, d, true = 2000, 400, 2
    rows = []
    for kappa in (1.0, 2.0, 4.0, 8.0):
        kept = max(1, min(int(kappa**power * true), d // 2))
        good = 0
        for repetition in range(repetitions):
            X, y, truth = _correlated(rng(f"kappa {kappa}", repetition=repetition), n, d, true, kappa)
            largest = float(np.linalg.norm(X, 2)) ** 2 / n
            fit = solvers.ight(X, y, loss="squared", sparsity=kept, steps=300, step_size=1 / largest)
            good += float(np.sum((fit.coef - truth) ** 2)) < 0.05 * float(np.sum(truth**2))
        rows.append(Comparison(f"kappa = {kappa:g}, {kept} entries kept: recovered", f"{repetitions} of {repetitions}",
                               f"{good} of {repetitions}", good == repetitions))  # fmt: skip
    verdict = "bound met" if all(row.agrees for row in rows) else "not reached here"
    words = f"truth recovered within 5 % in {sum(row.agrees for row in rows)} of {len(rows)} condition numbers"
    return Finding(verdict, words, tuple(rows))


def _correlated(draw: np.random.Generator, n: int, d: int, true: int, kappa: float) -> tuple[Array, Array, Array]:
    """Normal rows whose neighbouring pairs of columns have a correlation that gives condition number kappa."""
    correlation = (kappa - 1) / (kappa + 1)
    X = draw.standard_normal((n, d))
    X[:, 1::2] = correlation * X[:, ::2] + math.sqrt(1 - correlation**2) * X[:, 1::2]
    truth = np.zeros(d)
    # One of a pair at most: its partner is what a greedy method confuses it with.
    truth[2 * draw.choice(d // 2, true, replace=False)] = draw.choice([-1.0, 1.0], true)
    return X, X @ truth + 0.05 * draw.standard_normal(n), truth
