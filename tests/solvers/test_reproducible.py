"""The same seed gives the same model: again, in a new process, and for CSR and dense rows where draws are shared."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from scipy import sparse

from dptoolkit import solvers
from tests.solvers.frame.test_plans import CALLS, data

# Numbers with all their digits, so that two processes can be compared exactly.
PROGRAM = """
import json, sys
import numpy as np
from scipy import sparse
from dptoolkit import solvers
from tests.solvers.frame.test_plans import CALLS, data
X, y = data()
found = {}
for name, arguments in CALLS.items():
    for layout in (np.array, sparse.csr_matrix):
        found[name + layout.__name__] = getattr(solvers, name)(layout(X), y, rng=11, **arguments).coef.ravel().tolist()
print(json.dumps(found))
"""


def fit(name, X, y, rng):
    return getattr(solvers, name)(X, y, rng=rng, **CALLS[name]).coef


def test_a_new_process_gives_the_same_models(root):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=root, capture_output=True, text=True, check=False, timeout=1800
    )
    assert done.returncode == 0, done.stderr
    elsewhere = json.loads(done.stdout)
    X, y = data()
    for name in CALLS:
        for layout in (np.array, sparse.csr_matrix):
            here = fit(name, layout(X), y, 11).ravel()
            assert here.tolist() == elsewhere[name + layout.__name__], (name, layout.__name__)


@pytest.mark.parametrize("layout", [np.array, sparse.csr_matrix], ids=["dense", "csr"])
@pytest.mark.parametrize("name", CALLS)
def test_seeds(name, layout):
    X, y = data()
    X = layout(X)
    seeded = fit(name, X, y, 3)
    assert np.array_equal(seeded, fit(name, X, y, 3))
    assert np.array_equal(seeded, fit(name, X, y, np.random.default_rng(3)))
    # Drawing from another generator in between changes nothing.
    np.random.default_rng(3).random(100)
    assert np.array_equal(seeded, fit(name, X, y, np.int64(3)))
    others = [fit(name, X, y, seed) for seed in range(4, 10)]
    assert any(not np.array_equal(seeded, other) for other in others)


@pytest.mark.parametrize("layout", [np.array, sparse.csr_matrix], ids=["dense", "csr"])
@pytest.mark.parametrize("name", CALLS)
def test_a_generator_moves_on_and_no_seed_means_fresh_noise(name, layout):
    X, y = data()
    X = layout(X)
    rng = np.random.default_rng(1)
    before = rng.bit_generator.state
    models = [fit(name, X, y, rng) for _ in range(6)]
    assert rng.bit_generator.state != before
    assert any(not np.array_equal(models[0], other) for other in models[1:])
    fresh = [fit(name, X, y, None) for _ in range(6)]
    assert any(not np.array_equal(fresh[0], other) for other in fresh[1:])


@pytest.mark.parametrize("name", ["dp_ight", "dp_multinomial_frank_wolfe", "peeling_iht"])
def test_layouts_share_their_draws(name):
    X, y = data()
    X[np.abs(X) < 0.5] = 0
    forms = [X, sparse.csr_matrix(X), sparse.csc_matrix(X), sparse.coo_array(X)]
    models = [fit(name, form, y, 2) for form in forms]
    for other in models[1:]:
        np.testing.assert_allclose(other, models[0], rtol=1e-9, atol=1e-12)


def test_an_infinite_budget_draws_nothing():
    X, y = data()
    for name, arguments in CALLS.items():
        if name == "sparsifier":
            continue
        rng = np.random.default_rng(1)
        before = rng.bit_generator.state
        for layout in (np.array, sparse.csr_matrix):
            getattr(solvers, name)(layout(X), y, rng=rng, **arguments | {"epsilon": float("inf")})
        assert rng.bit_generator.state == before, name
