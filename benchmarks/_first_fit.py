"""The first private fit in a new process: imports, kernels and accounting included."""

from __future__ import annotations

import os
import subprocess
import sys

from benchmarks._race import Best

_CODE = """
import time
start, used = time.perf_counter(), time.process_time()
import numpy as np
from scipy import sparse
from dptoolkit import solvers
generator = np.random.default_rng(0)
n, d, width = 2000, 5000, 20
columns = np.sort(generator.integers(0, d, (n, width)), axis=1).ravel()
X = sparse.csr_matrix((generator.random(n * width) / width, columns, np.arange(0, n * width + 1, width)), shape=(n, d))
y = generator.integers(0, 2, n)
budget = dict(loss="logistic", epsilon=1.0, delta=1e-6, rng=0)
if {solver!r} == "dp_ight":
    solvers.dp_ight(X, y, sparsity=10, steps=10, row_norm=1.0, **budget)
elif {solver!r} == "dp_sgd_ht":
    solvers.dp_sgd_ht(X, y, sparsity=10, steps=20, batch_size=64, step_size=1.0, row_norm=1.0, **budget)
elif {solver!r} == "dp_scsg_ht":
    solvers.dp_scsg_ht(
        X, y, sparsity=10, epochs=2, snapshot_size=640, batch_size=64, step_size=1.0, row_norm=1.0, **budget)
else:
    solvers.dp_frank_wolfe(X, y, l1_radius=10.0, steps=50, feature_bound=1.0, **budget)
print(time.perf_counter() - start, time.process_time() - used)
"""


def first_fit(solver: str, cache: str) -> Best:
    """Seconds in a new interpreter whose compiled kernels live in the folder ``cache``."""
    environment = os.environ | {"NUMBA_CACHE_DIR": cache}
    # As for any user, bytecode is kept from the first run on.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [sys.executable, "-c", _CODE.format(solver=solver)], env=environment, capture_output=True, text=True, check=True
    )
    return Best(*map(float, done.stdout.split()))
