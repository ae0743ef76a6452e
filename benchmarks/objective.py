"""Objective perturbation at RCV1's size beside scikit-learn on the same objective without noise, and its peak memory.

    python -m benchmarks.objective

Both minimise mean logistic loss + (l2/2)|w|^2; ours with a linear term, to a certified tolerance. Then a fit of dp_admm
with its defaults. Seconds are those of the process, so that other work on the machine does not count; warm-up is not
timed.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np

from dptoolkit import datasets, solvers
from dptoolkit.accounting.report import table

L2S = (1e-4, 1e-3)


def seconds(call: Callable[[], Any]) -> float:
    """The best of two runs."""
    times = []
    for _ in range(2):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times)


def measure(data: datasets.Dataset, l2: float) -> list[str]:
    """One row: seconds of ours, lbfgs and liblinear, and our peak memory in MB beside that of the data."""
    from sklearn.linear_model import LogisticRegression

    n, d = data.shape
    plan = solvers.plan(
        "objective_perturbation", n=n, d=d, loss="logistic", l2=l2, row_norm=1.0, epsilon=1.0, delta=1e-6
    )

    def ours() -> None:
        solvers.bind(plan, data.X, data.y)(np.random.default_rng(0))

    def theirs(solver: str) -> Callable[[], Any]:
        model = LogisticRegression(C=1 / (n * l2), fit_intercept=False, solver=solver, max_iter=1000)
        return lambda: model.fit(data.X, data.y)

    times = [seconds(ours), seconds(theirs("lbfgs")), seconds(theirs("liblinear"))]
    return [f"{l2:g}", *(f"{t:.2f}" for t in times), f"{peak_memory(ours) / 1e6:.0f}"]


def peak_memory(call: Callable[[], Any]) -> int:
    """The bytes that a run allocates at most, besides the data."""
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def measure_admm(data: datasets.Dataset) -> str:
    """Seconds and memory of one fit by dp_admm."""
    n, d = data.shape
    plan = solvers.plan("dp_admm", n=n, d=d, loss="logistic", row_norm=1.0, epsilon=1.0, delta=1e-6)

    def ours() -> None:
        solvers.bind(plan, data.X, data.y)(np.random.default_rng(0))

    return f"dp_admm, {plan.settings.steps} updates: {seconds(ours):.2f} s, {peak_memory(ours) / 1e6:.0f} MB"


def main() -> int:
    data = datasets.make_rcv1_like(rng=0)
    n, d = data.shape
    size = (data.X.data.nbytes + data.X.indices.nbytes + data.X.indptr.nbytes) / 1e6
    print(f"{n} rows, {d} features, {size:.0f} MB of data")
    head = ["l2", "ours, s", "lbfgs, s", "liblinear, s", "our peak, MB"]
    print(table(head, [measure(data, l2) for l2 in L2S]))
    print(measure_admm(data))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
