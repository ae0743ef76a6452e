"""Sixteen fits at once against sixteen fits one by one, at the size of RCV1.

    NUMBA_NUM_THREADS=1 python -m benchmarks.many                # synthetic rows of RCV1's shape
    python -m benchmarks.many --data FOLDER                      # the real rcv1_sub, see dptoolkit.datasets.load

Both take turns; what counts is the processor time of the best of each. The counted passes over X do not depend on the
machine, and a test holds them.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from benchmarks._race import Check, race, show
from dptoolkit import datasets, solvers
from dptoolkit.datasets import Dataset
from dptoolkit.kernels import threshold

RUNS = 16
BUDGET: dict[str, Any] = {"loss": "logistic", "row_norm": 1.0, "epsilon": 1.0, "delta": 1e-6}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "dp_ight, sparsity 50": ("dp_ight", {"sparsity": 50, "steps": 50}),
    "dp_dual_averaging, sparsity 50": ("dp_dual_averaging", {"sparsity": 50, "steps": 50}),
    "dp_dual_averaging, all features": ("dp_dual_averaging", {"steps": 20}),
}


class Work:
    """How many entries of sparse X were read for sums over its rows, and how many X has."""

    entries, size = 0, 0

    @property
    def passes(self) -> float:
        """Whole passes over X."""
        return self.entries / self.size


@contextmanager
def counted() -> Iterator[Work]:
    """Count what the kernels that compute X^T r read during a ``with`` block."""
    work = Work()

    def watched(kernel: Any) -> Any:
        def sums(data: Any, indices: Any, indptr: Any, r: Any, out: Any, first: int, last: int) -> None:
            work.entries, work.size = work.entries + int(indptr[last] - indptr[first]), len(data)
            kernel(data, indices, indptr, r, out, first, last)

        return sums

    names = ("feature_sums", "block_feature_sums")
    with mock.patch.multiple(threshold, **{name: watched(getattr(threshold, name)) for name in names}):
        yield work


def compare(name: str, data: Dataset, rounds: int) -> list[Check]:
    """The throughput of fits together, as a multiple of that of fits one by one."""
    solver, arguments = CASES[name]
    n, d = data.shape
    plan = solvers.plan(solver, n=n, d=d, **BUDGET, **arguments)
    fit = getattr(solvers, solver)
    rivals = {
        "alone": lambda: [fit(data.X, data.y, rng=seed, **BUDGET, **arguments) for seed in range(RUNS)],
        "together": lambda: solvers.fit_many(plan, data.X, data.y, seeds=range(RUNS)),
    }
    passes = {}
    for rival, run in rivals.items():
        with counted() as work:
            run()
        passes[rival] = work.passes
    best = race(rivals, rounds)
    print(f"  {name}: cpu {best['alone'].cpu:.2f} s alone, {best['together'].cpu:.2f} s together")
    return [
        Check(f"{name}: throughput of {RUNS} runs", best["alone"].cpu / best["together"].cpu, 3, True),
        Check(f"{name}: passes over X", passes["alone"] / passes["together"], RUNS, True),
    ]


def main() -> int:
    """Print the table; 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="FOLDER", help="folder with rcv1_sub; default: synthetic rows of its shape")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    warnings.simplefilter("ignore", solvers.HopelessPlanWarning)
    data = datasets.load("rcv1_sub", data_home=options.data) if options.data else datasets.make_rcv1_like(rng=0)
    checks = [check for name in CASES for check in compare(name, data, options.rounds)]
    show("Many fits at once", checks)
    return 0 if all(check.passed for check in checks) else 1


if __name__ == "__main__":
    raise SystemExit(main())
