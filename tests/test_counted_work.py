"""How much work a fit does, counted: passes over X, random numbers, compilations. No clock is read here."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from benchmarks.suite import counts
from dptoolkit import datasets, solvers
from dptoolkit.accounting import objective
from dptoolkit.data import prepare

BUDGET = {"epsilon": 1.0, "delta": 1e-6}
ROWS = {"loss": "logistic", "row_norm": 1.0}

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def data():
    """Large enough for the compiled sums of large data."""
    found = datasets.make_rcv1_like(n=6000, d=9000, nonzeros=40, rng=0)
    assert found.X.nnz > 200_000
    return found


def work(name, data, **arguments):
    """(entries read, by function; random numbers drawn) of one fit."""
    n, d = data.shape
    plan = solvers.plan(name, n=n, d=d, **BUDGET | arguments)
    rng = np.random.default_rng(0)
    before = counts.place(rng)
    with counts.counted() as found:
        solvers.bind(plan, data.X, data.y).fit(rng)
    return found, counts.draws(before, counts.place(rng))


@pytest.mark.parametrize("number", [0, 1, 7, 1000, 123_457])
def test_draws_are_the_distance_between_two_places_of_a_stream(number):
    rng = np.random.default_rng(5)
    before = counts.place(rng)
    rng.random(number)
    assert counts.draws(before, counts.place(rng)) == number
    with pytest.raises(ValueError, match="two streams"):
        counts.draws(before, counts.place(np.random.default_rng(6)))


def test_one_pass_too_many_is_seen_and_nothing_is_counted_afterwards(data):
    with counts.counted() as found:
        data.X @ np.ones(data.shape[1])
        data.X.T @ np.ones((data.shape[0], 3))
    assert found.read() == 2 * data.X.nnz
    data.X @ np.ones(data.shape[1])
    assert found.read() == 2 * data.X.nnz


@pytest.mark.parametrize("name", ["dp_ight", "dp_dual_averaging"])
def test_thresholding_makes_one_pass_and_one_vector_of_normals_a_step(data, name):
    found, drawn = work(name, data, sparsity=20, steps=30, **ROWS)
    assert found.read("row_sums") == 30 * data.X.nnz
    assert found.read() < 33 * data.X.nnz, "margins come from the columns of the support"
    assert 30 * 9000 <= drawn < 1.03 * 30 * 9000


@pytest.mark.parametrize("epsilon, passes", [(1.0, 0.004), (10.0, 0.004), (100.0, 0.01), (1000.0, 0.02)])
def test_a_selection_of_frank_wolfe_costs_a_small_part_of_a_pass(data, epsilon, passes):
    """Also where it learns, and columns that many rows have are chosen again and again."""
    found, drawn = work(
        "dp_frank_wolfe", data, loss="logistic", l1_radius=50.0, steps=1000, feature_bound=1.0, epsilon=epsilon
    )
    assert 0 < found.read() < passes * 1000 * data.X.nnz
    assert drawn < data.shape[0] + 10 * 1000, "a number for every row, then a few a selection"


@pytest.mark.parametrize("epsilon", [1.0, 100.0, 1000.0])
def test_frank_wolfe_weighs_a_feature_once_and_then_hardly_ever(data, epsilon):
    """Not at every refresh, of which there are nine, nor whenever a row that has it is pushed."""
    n, d = data.shape
    ball = {"loss": "logistic", "l1_radius": 50.0, "steps": 1000, "feature_bound": 1.0}
    plan = solvers.plan("dp_frank_wolfe", n=n, d=d, **BUDGET | ball | {"epsilon": epsilon})
    done = np.zeros(4, np.int64)
    solvers.bind(plan, data.X, data.y).counted(np.random.default_rng(0), False, done)
    _, pushed, entries, weighted = done.tolist()
    assert d <= weighted < d + 1000
    assert pushed > 3000 and entries > 15 * d


def test_a_lazy_step_reads_its_batch_and_does_not_draw_more_in_more_dimensions():
    drawn = []
    for d in (9_000, 90_000):
        wide = datasets.make_rcv1_like(n=2000, d=d, nonzeros=20, rng=0)
        found, count = work("dp_sgd_ht", wide, sparsity=20, steps=50, batch_size=32, step_size=1.0, **ROWS)
        assert found.read() == pytest.approx(50 * 32 / 2000 * wide.X.nnz, rel=1e-3)
        drawn.append(count)
    assert drawn[1] < 1.5 * drawn[0]


def test_an_epoch_reads_one_snapshot_and_its_batches(data):
    found, _ = work(
        "dp_scsg_ht", data, sparsity=20, epochs=3, batch_size=32, snapshot_size=640, step_size=1.0, option="II", **ROWS
    )
    assert found.read("reduced_steps") == pytest.approx(3 * 640 / 6000 * data.X.nnz, rel=1e-3)
    assert found.read() < 3 * (3 * 640) / 6000 * 1.1 * data.X.nnz, "margins, sums and batches of as many rows each"


def test_an_epoch_draws_what_the_features_of_the_data_need():
    """The same rows with more columns of zeros: a number for every feature, and few for all others."""
    found = datasets.make_rcv1_like(n=500, d=2000, nonzeros=20, rng=0)
    features, drawn = len(np.unique(found.X.indices)), []
    for d in (100_000, 1_000_000):
        wide = replace(found, X=sparse.csr_matrix((found.X.data, found.X.indices, found.X.indptr), shape=(500, d)))
        arguments = {"sparsity": 20, "epochs": 3, "batch_size": 50, "step_size": 1.0, "option": "II"}
        drawn.append(work("dp_svrg_ht", wide, **arguments, **ROWS)[1])
        assert drawn[-1] < 3 * (1.1 * features + 10 * 50 * 20), "features of the data, then those of ten batches"
    assert drawn[1] < 1.5 * drawn[0]


def test_a_peeling_step_is_one_pass(data):
    found, _ = work(
        "peeling_iht", data, sparsity=20, steps=20, step_size=0.5, radius=1.0, label_bound=1.0, feature_bound=1.0
    )
    assert found.read() < 21.5 * data.X.nnz


def test_the_minimum_of_a_perturbed_objective_is_found_in_few_passes(data):
    found, drawn = work("objective_perturbation", data, l2=1e-3, **ROWS)
    assert found.read() <= 12 * data.X.nnz, "sweeps, and two passes for the certificate"
    assert drawn < 1.03 * 2 * 9000


@pytest.mark.parametrize("epsilon", [1.0, 100.0])
def test_an_update_of_admm_is_a_few_sweeps_and_a_certificate(data, epsilon):
    found, _ = work("dp_admm", data, epsilon=epsilon, steps=5, **ROWS)
    assert found.read("sweep") <= 5 * 8 * data.X.nnz
    assert found.read() <= 5 * 11 * data.X.nnz


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 10.0, 100.0])
@pytest.mark.parametrize("name, most", [("objective_perturbation", 3), ("two_stage", 9)])
def test_a_plan_looks_at_few_noises(name, most, epsilon):
    """Each costs a dominating pair: the closed form's, a step further, and that of the plan itself."""
    own = {"objective_perturbation": {"l2": 1e-3}, "two_stage": {"l2": 1e-2, "sparsity": 50, "blocks": 10}}[name]
    objective.pair.cache_clear()
    solvers.plan(name, n=20_000, d=1000, epsilon=epsilon, delta=1.2345e-6, **ROWS, **own).guarantee.epsilon(1e-6)
    assert 2 <= objective.pair.cache_info().misses <= most


def test_a_second_fit_compiles_nothing_and_prepared_rows_are_transposed_once(data):
    prepared = prepare(data.X)
    arguments = {**BUDGET, **ROWS, "sparsity": 20, "steps": 2}
    solvers.dp_ight(prepared, data.y, rng=0, **arguments)
    with counts.counted() as found:
        solvers.dp_ight(prepared, data.y, rng=1, **arguments)
    assert found.compilations == 0
    assert found.read("row_sums") == 2 * data.X.nnz
