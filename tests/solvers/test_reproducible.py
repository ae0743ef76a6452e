"""The same seed gives the same model: again, in a new process, and for CSR and dense rows where draws are shared."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from scipy import sparse

from dptoolkit import solvers
from tests.solvers.test_plans import CALLS, data

_L1 = CALLS["dp_frank_wolfe"]
# Name: solver and arguments. Frank-Wolfe has a kernel for the squared loss, and another way to draw Laplace noise.
FITS = {name: (name, arguments) for name, arguments in CALLS.items()} | {
    "squared": ("dp_frank_wolfe", _L1 | {"loss": "squared", "label_bound": 1.0}),
    "laplace": ("dp_frank_wolfe", _L1 | {"noise": "laplace"}),
    "published": ("peeling_iht", CALLS["peeling_iht"] | {"calibration": "published"}),
}
# Numbers with all their digits, so that two processes can be compared exactly.
PROGRAM = """
import json, sys
import numpy as np
from scipy import sparse
from dptoolkit import solvers
from tests.solvers.test_reproducible import FITS, data, fit
X, y = data()
found = {}
for name in FITS:
    for layout in (np.array, sparse.csr_matrix):
        found[name + layout.__name__] = fit(name, layout(X), y, 11).ravel().tolist()
print(json.dumps(found))
"""


def fit(name, X, y, rng):
    solver, arguments = FITS[name]
    return getattr(solvers, solver)(X, y, rng=rng, **arguments).coef


def test_a_new_process_gives_the_same_models(root):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=root, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    elsewhere = json.loads(done.stdout)
    X, y = data()
    for name in FITS:
        for layout in (np.array, sparse.csr_matrix):
            here = fit(name, layout(X), y, 11).ravel()
            assert here.tolist() == elsewhere[name + layout.__name__], (name, layout.__name__)


@pytest.mark.parametrize("layout", [np.array, sparse.csr_matrix], ids=["dense", "csr"])
@pytest.mark.parametrize("name", FITS)
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
@pytest.mark.parametrize("name", FITS)
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


@pytest.mark.parametrize("name", ["dp_ight", "dp_multinomial_frank_wolfe", "peeling_iht", "published"])
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
