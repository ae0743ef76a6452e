"""Compiled kernels are found again by the next process, and nothing is compiled or imported before it is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

FIT = """
import json, math, sys
import numpy as np
from scipy import sparse
from dptoolkit import solvers
assert "numba" not in sys.modules, "numba was imported too early"
rng = np.random.default_rng(0)
X, y = sparse.random(30, 40, 0.2, format="csr", random_state=1), np.arange(30) % 2
budget = {"epsilon": 1.0, "delta": 1e-6, "rng": 0}
l1 = {"l1_radius": 2.0, "steps": 4, "feature_bound": 1.0, "label_bound": 1.0}
solvers.dp_ight(X, y, loss="logistic", sparsity=3, steps=2, row_norm=1.0, **budget)
wide = sparse.random(30, 4000, 0.01, format="csr", random_state=1)
solvers.dp_ight(wide, y, loss="logistic", sparsity=3, steps=2, row_norm=1.0, **budget)
for loss in ("logistic", "huber", "squared", "hinge"):
    for law in ("gumbel", "laplace"):
        for rows in (X, X.toarray()):
            solvers.dp_frank_wolfe(rows, y, loss=loss, law=law, **l1, **budget)
unseeded = {name: value for name, value in budget.items() if name != "rng"}
for loss in ("logistic", "squared"):
    for rows in (X, X.toarray()):
        solvers.dp_frank_wolfe(rows, y, loss=loss, randomness="secure", **l1, **unseeded)
from dptoolkit.solvers.frame import rules
rules.WORTH, rules.RANKS_NOISE = 0, math.inf
solvers.dp_pipeline(X.toarray(), y, bounds=(0.0, 2.0), **budget)
from numba.core.dispatcher import Dispatcher
from dptoolkit.kernels import chacha, frank_wolfe, grids, selection, sums, tables, threshold
stats = {}
for module in (chacha, frank_wolfe, grids, selection, sums, tables, threshold):
    for name, kernel in vars(module).items():
        if isinstance(kernel, Dispatcher):
            hits, misses = kernel.stats.cache_hits, kernel.stats.cache_misses
            stats[name] = [sum(hits.values()), sum(misses.values())]
print(json.dumps(stats))
"""

IMPORT = """
import sys
import dptoolkit
import dptoolkit.solvers, dptoolkit.mechanisms, dptoolkit.accounting, dptoolkit.losses, dptoolkit.data
from dptoolkit.solvers import dp_ight
plan = dptoolkit.solvers.plan("dp_ight", n=10, d=3, loss="logistic", sparsity=1, steps=2, row_norm=1.0, epsilon=1.0,
                              delta=1e-6)
str(plan)
for law in ("gumbel", "laplace"):
    dptoolkit.solvers.plan("sparsifier", n=10, d=3, l1_radius=1.0, steps=2, feature_bound=1.0, epsilon=1.0, delta=1e-6,
                           count="fixed", number=1, law=law)
heavy = {"numba", "sklearn", "dp_accounting", "matplotlib"} & set(sys.modules)
assert not heavy, heavy
"""

DENSE = """
import sys
import numpy as np
from dptoolkit import solvers
X, y = np.random.default_rng(0).standard_normal((20, 3)), np.arange(20) % 2
setting = dict(classes=2, l1_radius=1.0, steps=3, epsilon=1.0, delta=1e-6, feature_bound=1.0)
solvers.dp_multinomial_frank_wolfe(X, y, randomness="fast", **setting)
assert "numba" not in sys.modules
"""

# What a fit calls from Python; the helpers are compiled into them.
ENTRANCES = {
    "support_margins", "iht_fit", "dithered_block", "dithered_laplace_block", "gram_block", "dense_steps",
    "scale", "rank", "bound", "count_bins", "margins", "add_rows",
}  # fmt: skip


def run(root, program, **environment):
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
        env=os.environ | environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_new_process_compiles_nothing_that_another_has_compiled(root):
    """In the folder of the processes that tests start, which may hold everything already."""
    run(root, FIT)
    again = json.loads(run(root, FIT))
    assert all(again[name][0] > 0 for name in ENTRANCES), again
    assert all(misses == 0 for _, misses in again.values()), again


@pytest.mark.slow
def test_the_second_process_compiles_nothing(root, tmp_path):
    first, second = (json.loads(run(root, FIT, NUMBA_CACHE_DIR=str(tmp_path))) for _ in range(2))
    for name in ENTRANCES:
        assert first[name][1] > 0, f"{name} came from somewhere else"
        assert second[name][0] > 0 and second[name][1] == 0, f"{name} was compiled again"
    assert all(misses == 0 for _, misses in second.values()), second


def test_importing_and_planning_load_nothing_heavy(root):
    run(root, IMPORT)


def test_dense_multinomial_with_fast_noise_needs_no_numba(root):
    run(root, DENSE)
