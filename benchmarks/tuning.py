"""Side by side: the default rule, a private choice, and a choice by the test rows without privacy.

python -m benchmarks.tuning
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from benchmarks.lib.intervals import interval
from dptoolkit import datasets, solvers, tuning

SEEDS = range(6)
EPSILONS = (0.5, 1.0, 4.0)
DELTA = 1e-5
FIXED: dict[str, Any] = {"loss": "logistic", "row_norm": 3.0, "sparsity": 8}
CANDIDATES = tuning.grid(step_size=[2.0, 5.0, 10.0, 20.0, 40.0], steps=[5, 10, 20])
TRAINING = 8000


def errors(epsilon: float, seed: int) -> list[float]:
    """Test errors of the rule, of the private choice, and of the best candidate by the test rows themselves."""
    data = datasets.make_khanna(rng=100 + seed)
    X, y = data.X[:TRAINING], data.y[:TRAINING]
    budget: dict[str, Any] = {"epsilon": epsilon, "delta": DELTA, "rng": seed}

    def error(model: solvers.FitResult) -> float:
        return float(np.mean((solvers.margins(model, data.X[TRAINING:]) > 0) != data.y[TRAINING:]))

    rule = error(solvers.dp_ight(X, y, **FIXED, **budget))
    choice = error(tuning.tune("dp_ight", CANDIDATES, X, y, **FIXED, **budget).model)
    free = min(error(solvers.dp_ight(X, y, **FIXED, **budget, **c)) for c in CANDIDATES)
    return [rule, choice, free]


def main() -> None:
    """Print the table."""
    print(f"dp_ight on the synthetic data of Khanna et al., {len(CANDIDATES)} candidates, {len(SEEDS)} seeds")
    print("epsilon  rule              private choice    best by the test rows, unpaid")
    for epsilon in EPSILONS:
        table = [errors(epsilon, seed) for seed in SEEDS]
        print(f"{epsilon:<9}" + "  ".join(f"{interval(column):<16}" for column in zip(*table, strict=True)))


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", solvers.HopelessPlanWarning)
        main()
