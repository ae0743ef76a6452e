"""Peeling on large sparse data, where sums and selections are compiled: the same fit as on the path of small data."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from dptoolkit import solvers
from dptoolkit.solvers import _peeling
from dptoolkit.solvers.engine import draws

BOUNDS = {"radius": 1.5, "label_bound": 1.0, "feature_bound": 1.0, "delta": 1e-6}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("epsilon", [1.0, 1e4, np.inf])
@pytest.mark.parametrize("data", ["full", "split"])
def test_both_paths_give_the_same_fit(data, epsilon, monkeypatch):
    n, d = 60, draws.WORTHWHILE
    X = sparse.random(n, d, 0.01, format="csr", random_state=1)
    X[5] = 0.0
    y = np.asarray(X @ np.random.default_rng(2).standard_normal(d))
    steps = {"steps": 4, "step_size": 0.8, "sparsity": 9}
    plan = solvers.plan("peeling_iht", n=n, d=d, epsilon=epsilon, data=data, **steps, **BOUNDS)
    traces = []
    for large in (True, False):
        monkeypatch.setattr(_peeling, "_WORTH_COMPILING", 1 if large else 10**9)
        monkeypatch.setattr(draws, "WORTHWHILE", d if large else d + 1)
        run = solvers.bind(plan, X, y)
        assert (run.parts[0].rows is not None) is large
        rng = np.random.default_rng(3)
        traces.append((run(rng, True), rng.bit_generator.random_raw()))
    (ours, word), (theirs, same) = traces
    assert word == same, "as many random numbers"
    np.testing.assert_allclose(ours.weights, theirs.weights, rtol=1e-9, atol=1e-13)
    np.testing.assert_allclose(ours.releases, theirs.releases, rtol=1e-9, atol=1e-13)
    np.testing.assert_array_equal(ours.weights, ours.iterates[-1])
