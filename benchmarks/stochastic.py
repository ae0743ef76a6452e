"""The lazy steps of the stochastic solvers against dense ones, and their memory.

    python -m benchmarks.stochastic
    python -m benchmarks.stochastic --strict      # exit code 1 if a target is missed

Times are CPU seconds, the best of many turns: other work on the machine does not count, so the ratios hold on a busy
one too. Run it with one thread (OPENBLAS_NUM_THREADS=1).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import expit

from benchmarks.lib.race import Check, race, show, verdict
from benchmarks.measure import in_fresh_process
from dptoolkit import solvers
from dptoolkit.accounting.report import table

Array = NDArray[np.float64]

ROWS, BATCH, SPARSITY = 20_000, 64, 100
WIDTHS = (50_000, 1_000_000, 20_000_000)
# Entries of a row: short texts or clicks, and RCV1.
ROW_LENGTHS = (20, 75)
STEP_SIZE, SCALE = 1.0, 0.01
LAZY_STEPS = 300
# Of an epoch: the rows of its snapshot, and its inner steps.
SNAPSHOT, INNER = 100 * BATCH, 100
FIT: dict[str, Any] = {
    "loss": "logistic", "sparsity": SPARSITY, "batch_size": BATCH, "step_size": STEP_SIZE, "row_norm": 1.0,
    "epsilon": 4.0, "delta": 1e-6,
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Print every table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stochastic", description=__doc__.splitlines()[0])
    parser.add_argument("--strict", action="store_true", help="exit code 1 if a target is missed")
    options = parser.parse_args(argv)
    # Few steps in many dimensions learn nothing, which is not what is measured.
    warnings.simplefilter("ignore", solvers.HopelessPlanWarning)
    checks = []
    for length in ROW_LENGTHS:
        checks += _step_table(length)
    for length in ROW_LENGTHS:
        checks += _reduced_table(length)
    checks += _memory()
    show("Targets", checks)
    return verdict(checks, options.strict)


def cpu_race(rivals: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """CPU seconds of the fastest of ``rounds`` turns of each."""
    return {name: best.cpu for name, best in race(rivals, rounds).items()}


def micro(value: float) -> str:
    return f"{value * 1e6:,.0f} us"


# --- data of one shape in any dimension -------------------------------------------------------------------


def make_rows(width: int, length: int) -> tuple[Any, Array]:
    """Rows with ``length`` entries at uniformly random columns, so that batches touch as many in every dimension."""
    rng = np.random.default_rng(0)
    columns = np.sort(rng.integers(0, width, (ROWS, length), dtype=np.int32), axis=1).ravel()
    values = rng.standard_normal(ROWS * length) / np.sqrt(length)
    X = sparse.csr_matrix((values, columns, np.arange(0, ROWS * length + 1, length)), shape=(ROWS, width))
    X.sum_duplicates()
    return X, (rng.random(ROWS) < 0.5).astype(float)


# --- plain steps ----------------------------------------------------------------------------------------


class LazySteps:
    """The steps of a fit on prepared data, each call some hundred: the noise is planned before."""

    def __init__(self, X: Any, y: Array, solver: str = "dp_sgd_ht", **more: Any) -> None:
        n, d = X.shape
        shape = more or {"steps": LAZY_STEPS}
        self.run: Any = solvers.bind(solvers.plan(solver, n=n, d=d, **FIT, **shape), X, y)
        self.rng = np.random.default_rng(1)

    def __call__(self) -> None:
        self.run.fit(self.rng)


class DenseStep:
    """The same step as NumPy and SciPy do it: batch gradient, d normals, a partition."""

    def __init__(self, X: Any, y: Array) -> None:
        self.X, self.y, self.rng, self.w = X, y, np.random.default_rng(2), np.zeros(X.shape[1])

    def __call__(self) -> None:
        d = len(self.w)
        places = self.rng.choice(len(self.y), BATCH, replace=False)
        rows = self.X[places]
        gradient = rows.T @ ((expit(rows @ self.w) - self.y[places]) / BATCH)
        gradient += SCALE * self.rng.standard_normal(d)
        target = self.w - STEP_SIZE * gradient
        keep = np.argpartition(np.abs(target), d - SPARSITY)[d - SPARSITY :]
        self.w = np.zeros(d)
        self.w[keep] = target[keep]


def _step_table(length: int) -> list[Check]:
    lazy, dense = {}, {}
    for width in WIDTHS:
        X, y = make_rows(width, length)
        rounds = 12 if width < WIDTHS[-1] else 4
        best = cpu_race({"lazy": LazySteps(X, y), "dense": DenseStep(X, y)}, rounds)
        lazy[width], dense[width] = best["lazy"] / LAZY_STEPS, best["dense"]
    rows = [[f"{w:,}", micro(lazy[w]), micro(dense[w]), f"{dense[w] / lazy[w]:,.0f}x"] for w in WIDTHS]
    setting = f"batch {BATCH}, {length} entries per row, k = {SPARSITY}"
    print(f"\nOne step of dp_sgd_ht, {setting}\n\n" + table(["d", "lazy", "dense NumPy", "ratio"], rows), flush=True)
    spread = max(lazy.values()) / min(lazy.values())
    middle, last = WIDTHS[1:]
    return [
        Check(f"slowest over fastest of the three d, {length} a row", spread, 2.0, at_least=False),
        Check(f"dense over lazy at d = {middle:,}, {length} a row", dense[middle] / lazy[middle], 100.0, True),
        Check(f"dense over lazy at d = {last:,}, {length} a row", dense[last] / lazy[last], 1000.0, True),
    ]


# --- variance-reduced epochs --------------------------------------------------------------------------------


class DenseEpoch(DenseStep):
    """An epoch with d normals and a partition in every inner step."""

    def __call__(self) -> None:
        d, n, snapshot = len(self.w), len(self.y), self.w.copy()
        places = self.rng.choice(n, SNAPSHOT, replace=False)
        rows = self.X[places]
        mean = rows.T @ ((expit(rows @ snapshot) - self.y[places]) / SNAPSHOT) + SCALE * self.rng.standard_normal(d)
        for _ in range(INNER):
            rows = self.X[self.rng.choice(n, BATCH, replace=False)]
            gradient = rows.T @ ((expit(rows @ self.w) - expit(rows @ snapshot)) / BATCH)
            gradient += mean + SCALE * self.rng.standard_normal(d)
            target = self.w - STEP_SIZE * gradient
            keep = np.argpartition(np.abs(target), d - SPARSITY)[d - SPARSITY :]
            self.w = np.zeros(d)
            self.w[keep] = target[keep]


def _reduced_table(length: int) -> list[Check]:
    """Dense epochs only where they take seconds, not minutes."""
    rows, lazy, ratios = [], {}, {}
    for width in WIDTHS:
        X, y = make_rows(width, length)
        rivals: dict[str, Callable[[], Any]] = {
            "lazy": LazySteps(X, y, "dp_scsg_ht", epochs=1, snapshot_size=SNAPSHOT, option="II")
        }
        if width < WIDTHS[-1]:
            rivals["dense"] = DenseEpoch(X, y)
        best = cpu_race(rivals, 1 if width == WIDTHS[1] else 4)
        lazy[width] = best["lazy"]
        if "dense" in best:
            ratios[width] = best["dense"] / best["lazy"]
        against = [micro(best["dense"]), f"{ratios[width]:,.0f}x"] if "dense" in best else ["-", "-"]
        rows.append([f"{width:,}", micro(best["lazy"]), *against])
    sizes = f"snapshot of {SNAPSHOT:,} rows, {INNER} inner batches of {BATCH}"
    setting = f"{sizes}, {length} entries per row, k = {SPARSITY}"
    header = ["d", "lazy", "dense NumPy", "ratio"]
    print(f"\nAn epoch of dp_scsg_ht, {setting}\n\n" + table(header, rows), flush=True)
    growth = lazy[WIDTHS[-1]] / lazy[WIDTHS[1]]
    return [
        *(Check(f"dense over lazy epoch at d = {d:,}, {length} a row", r, 1.5, True) for d, r in ratios.items()),
        Check(f"epoch at d = {WIDTHS[-1]:,} over d = {WIDTHS[1]:,}, {length} a row", growth, 3.0, at_least=False),
    ]


# --- memory -------------------------------------------------------------------------------------------------

# The largest memory since a reset, which Linux keeps for every process.
_MEMORY = """
import numpy as np
from scipy import sparse
from dptoolkit import solvers

def fit(X, y):
    return solvers.dp_sgd_ht(
        X, y, loss="logistic", sparsity=100, steps=2000, batch_size=64, step_size=1.0, epsilon=4.0, delta=1e-6,
        row_norm=1.0, rng=0)

def status(key):
    for line in open("/proc/self/status"):
        if line.startswith(key):
            return 1024 * int(line.split()[1])

fit(sparse.eye(100, format="csr"), np.ones(100))
X, y = sparse.load_npz({rows!r}), np.load({labels!r})
open("/proc/self/clear_refs", "w").write("5")
before = status("VmRSS")
fit(X, y)
print(X.data.nbytes + X.indices.nbytes + X.indptr.nbytes + y.nbytes, status("VmHWM") - before)
"""


def _memory() -> list[Check]:
    """How much more than before the fit is in use at its peak; the coefficients returned are an array of length d."""
    if not Path("/proc/self/clear_refs").exists():
        print("\nMemory is measured on Linux only.")
        return []
    with tempfile.TemporaryDirectory() as folder:
        rows, labels = str(Path(folder, "rows.npz")), str(Path(folder, "labels.npy"))
        X, y = make_rows(WIDTHS[-1], ROW_LENGTHS[-1])
        sparse.save_npz(rows, X, compressed=False)
        np.save(labels, y)
        data, extra = (float(word) for word in in_fresh_process(_MEMORY.format(rows=rows, labels=labels)))
    result = 8 * WIDTHS[-1]
    sizes = ", ".join(f"{name} {size / 1e6:.0f} MB" for name, size in (("data", data), ("coefficients", result)))
    print(f"\nA fit at d = {WIDTHS[-1]:,}: {sizes}, memory in use grows by {extra / 1e6:.0f} MB", flush=True)
    return [Check("growth of memory over that of data and coefficients", extra / (data + result), 1.5, False)]


if __name__ == "__main__":
    sys.exit(main())
