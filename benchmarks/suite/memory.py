"""Peak memory of every private solver, each in a process of its own, against the size of X.

Some also on rows that were prepared in single precision and opened from a folder (dptoolkit.data.store).

A small fit comes first, so that imports and compiled code do not count; it is large enough for the compiled code of
large data. What is measured is how much more memory the process holds at its peak than before the fit, X and y being
there already; Linux resets that peak on request. Elsewhere it is the difference of the largest memory so far.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from benchmarks.suite import shapes
from benchmarks.suite.cases import arguments
from dptoolkit import data, datasets, solvers
from dptoolkit.data import store

# The solvers of a quick run.
QUICK = ("dp_ight", "dp_frank_wolfe", "dp_sgd_ht")
# What is added to the name of a solver that is given prepared rows.
_OPENED = ", opened in single precision"
_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def measure(home: str | None, quick: bool) -> Iterator[dict[str, Any]]:
    """One row per solver, at the size of RCV1."""
    problem = shapes.load("rcv1_sub", home, quick)
    with tempfile.TemporaryDirectory() as folder:
        sparse.save_npz(Path(folder, "rows.npz"), problem.X, compressed=False)
        np.save(Path(folder, "labels.npy"), problem.y)
        store.save(data.prepare(problem.X, dtype=np.float32, row_norm=1.0, feature_bound=1.0), Path(folder, "rows"))
        for name in (*(QUICK if quick else solvers.PRIVATE), *(name + _OPENED for name in QUICK)):
            command = [sys.executable, "-m", "benchmarks.suite.memory", name, folder]
            process = subprocess.run(command, capture_output=True, text=True, check=False)
            row = {"shape": problem.name, "solver": name, "size": shapes.size_of(problem.X)}
            if process.returncode != 0:
                yield row | {"failed": process.stderr.strip().splitlines()[-1][:200]}
            else:
                yield row | json.loads(process.stdout.splitlines()[-1])


def peak_of(name: str, folder: str) -> dict[str, int]:
    """Bytes above what the process held before the fit, and of the coefficients that it returns."""
    warnings.simplefilter("ignore")
    solver, opened = name.removesuffix(_OPENED), name.endswith(_OPENED)
    tiny = datasets.make_rcv1_like(n=2000, d=3000, nonzeros=20, rng=1)
    fit = getattr(solvers, solver)
    small = data.prepare(tiny.X, dtype=np.float32 if opened else np.float64)
    fit(small, tiny.y, rng=0, **arguments(solver, tiny.shape, 1.0))
    X = store.load(Path(folder, "rows")) if opened else sparse.load_npz(Path(folder, "rows.npz"))
    y = np.load(Path(folder, "labels.npy"))
    options, before = arguments(solver, X.shape, 1.0), _held()
    result = fit(X, y, rng=0, **options)
    return {"extra": _peak() - before, "result": int(np.asarray(result.coef).nbytes)}


def _held() -> int:
    if not _RESET.exists():
        return _peak()
    _RESET.write_text("5", encoding="ascii")
    return _line("VmRSS")


def _peak() -> int:
    return _line("VmHWM") if _RESET.exists() else 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _line(key: str) -> int:
    return next(1024 * int(line.split()[1]) for line in _STATUS.read_text().splitlines() if line.startswith(key))


if __name__ == "__main__":
    print(json.dumps(peak_of(*sys.argv[1:3])))
