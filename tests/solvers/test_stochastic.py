"""The stochastic solvers as a user meets them: what they compute, what they promise, and what they refuse."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from unittest import mock

import numpy as np
import pytest
from scipy import sparse

from dptoolkit import losses, solvers
from dptoolkit.accounting import Ledger, RandomRounds, Subsampled, account
from dptoolkit.accounting.events import Gaussian, flatten
from dptoolkit.errors import BudgetExceeded, InvalidValue
from dptoolkit.kernels import reference
from dptoolkit.kernels import stochastic as kernel
from dptoolkit.solvers import _scsg, _sgd
from dptoolkit.solvers.engine import snapshots
from dptoolkit.solvers.engine.bounds import constant
from dptoolkit.solvers.engine.snapshots import ranked_means, uniform_rows
from tests import compiled
from tests.strategies import FORMS, in_form

N, D = 60, 12
BOUNDS = {"loss": "logistic", "row_norm": 1.0, "sparsity": 4}
BUDGET = {"epsilon": 2.0, "delta": 1e-4}
SHAPES = {
    "dp_sgd_ht": {"steps": 20, "batch_size": 8},
    "dp_scsg_ht": {"epochs": 4, "snapshot_size": 24, "batch_size": 8},
    "dp_svrg_ht": {"epochs": 3, "batch_size": 20},
}
PLAIN = {"dp_sgd_ht": solvers.sgd_ht, "dp_scsg_ht": solvers.scsg_ht, "dp_svrg_ht": solvers.svrg_ht}


def data(seed=0, n=N, d=D, density=0.5):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * (rng.random((n, d)) < density)
    w = np.zeros(d)
    w[:3] = 3.0, -2.0, 2.0
    return X, (rng.random(n) < 1 / (1 + np.exp(-X @ w))).astype(float)


def fit(name, X=None, y=None, rng=1, **more):
    X, y = data() if X is None else (X, y)
    return getattr(solvers, name)(X, y, rng=rng, **BOUNDS | BUDGET | SHAPES[name] | more)


def plan(name, **more):
    return solvers.plan(name, n=N, d=D, **BOUNDS | BUDGET | SHAPES[name] | more)


# --- the same computation as something simpler ------------------------------------------------------------


@pytest.mark.parametrize("loss", losses.SCALAR)
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("solver", ["sgd_ht", "svrg_ht"])
def test_full_batches_without_noise_are_gradient_hard_thresholding(solver, intercept, loss):
    """A batch of all rows is the gradient; a snapshot of all rows plus what has changed since is it too."""
    X, y = data()
    shape = {"steps": 7, "batch_size": N} if solver == "sgd_ht" else {"epochs": 7, "batch_size": N, "option": "II"}
    found = getattr(solvers, solver)(
        X, y, loss=loss, sparsity=4, step_size=0.3, fit_intercept=intercept, rng=0, **shape
    )
    design = np.hstack([X, np.ones((N, 1))]) if intercept else X
    w = np.zeros(design.shape[1])
    for _ in range(7):
        w = reference.threshold_step(
            design, y, w, losses.get(loss), 0.3, np.zeros(len(w)), 4, protected=1 if intercept else 0
        )
    assert np.allclose(np.append(found.coef, found.intercept) if intercept else found.coef, w, atol=1e-12)
    assert np.count_nonzero(found.coef) == 4


def test_inner_steps_from_one_snapshot_are_gradient_hard_thresholding():
    """Several inner steps on all rows: gradient(w) - gradient(s) + gradient(s) is gradient(w), L2 term included."""
    X, y = data()
    for count in range(1, 6):
        rows = kernel_records(X, y)
        means = ranked_means(X.T @ (0.5 - y) / N, D, D, 0.0, None)
        support, values = np.zeros(4, np.int64), np.zeros(4)
        filled = kernel.reduced_steps(
            np.random.default_rng(0), np.full(count, N), rows, N, 0.3, 0.2, 0.0, math.inf, 0.0, D, 0, 4, means,
            support, values, 0,
        )  # fmt: skip
        w = np.zeros(D)
        for _ in range(count):
            r = losses.get("logistic").clipped_residual(X @ w, y, math.inf, None)
            w = reference.hard_threshold(w - 0.3 * (X.T @ r / N + 0.2 * w), 4)
        found = np.zeros(D)
        found[support[:filled]] = values[:filled]
        assert np.allclose(found, w, atol=1e-12)


def kernel_records(X, y):
    M, n = sparse.csr_matrix(X), len(y)
    arrays = M.data, M.indices.view(np.uint32), M.indptr.astype(np.int64)
    return kernel.Records(kernel.LOGISTIC, *arrays, y, math.inf, np.full(n, np.inf), np.arange(n))


@pytest.mark.parametrize("more", [{}, {"l2": 0.1, "fit_intercept": True}], ids=["plain", "L2 and intercept"])
@pytest.mark.parametrize("name", SHAPES)
def test_an_infinite_budget_is_the_algorithm_without_privacy(name, more):
    X, y = data()
    private = fit(name, X, y, epsilon=math.inf, row_norm=1e6, step_size=0.4, **more)
    arguments = {key: value for key, value in BOUNDS.items() if key != "row_norm"}
    public = PLAIN[name](X, y, step_size=0.4, rng=1, **arguments, **SHAPES[name], **more)
    assert np.array_equal(private.coef, public.coef) and private.intercept == public.intercept
    assert private.guarantee.epsilon(0.5) == math.inf and public.guarantee is None


def test_l2_shrinks():
    X, y = data()
    sizes = [np.linalg.norm(fit("dp_sgd_ht", X, y, epsilon=math.inf, l2=l2).coef) for l2 in (0.0, 0.05, 0.2)]
    assert sizes[0] > sizes[1] > sizes[2] > 0


@pytest.mark.every(3)
@pytest.mark.parametrize("name", SHAPES)
def test_strong_features_are_found(name):
    """Without noise and with little: the three features that matter are among the four kept."""
    X, y = data(seed=3, n=3000, d=30)
    more = {"sgd": {"steps": 150, "batch_size": 200}, "scsg": {"snapshot_size": 1500, "batch_size": 150}}
    shape = more.get(name.split("_")[1], {"batch_size": 200})
    for epsilon in (math.inf, 50.0):
        found = fit(name, X, y, epsilon=epsilon, row_norm=4.0, step_size=1.0, **shape)
        assert {0, 1, 2} <= set(np.flatnonzero(found.coef))
        assert np.sign(found.coef[:3]).tolist() == [1, -1, 1]


# --- determinism ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHAPES)
def test_a_seed_fixes_the_fit(name):
    first, again, other = fit(name), fit(name), fit(name, rng=2)
    assert np.array_equal(first.coef, again.coef) and not np.array_equal(first.coef, other.coef)
    assert np.array_equal(first.coef, fit(name, rng=np.random.default_rng(1)).coef)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("more", [{}, {"row_norm": 0.3, "fit_intercept": True}], ids=["plain", "clipped, intercept"])
@pytest.mark.parametrize("name", SHAPES)
def test_dense_and_sparse_input_give_the_same_bits(name, more, form):
    X, y = data()
    dense, other = fit(name, X, y, **more), fit(name, in_form(X, form), y, **more)
    assert np.array_equal(dense.coef, other.coef) and dense.intercept == other.intercept


def test_watching_changes_nothing():
    ends = [fit("dp_sgd_ht", trace=every) for every in (False, True, 7)]
    assert all(np.array_equal(ends[0].coef, end.coef) for end in ends)
    assert [step for step, _, _ in ends[2].history["iterates"]] == [7, 14, 20]
    step, support, values = ends[1].history["iterates"][-1]
    assert step == 20 and np.array_equal(ends[0].coef[support], values)
    traced = fit("dp_scsg_ht", trace=True)
    assert np.array_equal(traced.coef, fit("dp_scsg_ht").coef)
    assert [step for step, _, _ in traced.history["iterates"]] == np.cumsum(traced.history["inner_steps"]).tolist()


def test_svrg_is_scsg_with_all_rows():
    """The same releases and, from the same draws, the same weights; a seed means other draws, as for any two plans."""
    ours, theirs = plan("dp_svrg_ht"), plan("dp_scsg_ht", epochs=3, snapshot_size=N, batch_size=20)
    assert ours.releases == theirs.releases and ours.event == theirs.event and ours.fingerprint != theirs.fingerprint
    one, two = (solvers.bind(made, *data()).fit(np.random.default_rng(1)) for made in (ours, theirs))
    assert np.array_equal(one[0], two[0]) and np.array_equal(one[1]["inner_steps"], two[1]["inner_steps"])


def test_kernels_are_found_compiled_by_the_next_process(root):
    """A second process loads both kernels from the cache; a miss would cost it many seconds."""
    fit("dp_sgd_ht")
    fit("dp_scsg_ht")
    compiled.hand_over()
    code = (
        "import json\n"
        "from tests.solvers.test_stochastic import fit, kernel\n"
        "fit('dp_sgd_ht'), fit('dp_scsg_ht')\n"
        "print(json.dumps([[sum(s.cache_hits.values()), sum(s.cache_misses.values())]\n"
        "                  for s in (kernel.compiled_sgd_steps.stats, kernel.compiled_reduced_steps.stats)]))"
    )
    environment = os.environ | {"PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[1, 0], [1, 0]]


# --- plans and guarantees --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHAPES)
def test_the_plan_is_the_plan_of_the_fit(name):
    assert fit(name).plan == plan(name)


SAMPLINGS = [
    {}, {"sampling": "poisson"}, {"sampling": "poisson", "adjacency": "replace-one"}, {"adjacency": "replace-one"},
]  # fmt: skip


VARIANTS = [(name, more) for name in SHAPES for more in ({}, {"loss": "squared", "grad_norm": 1.0}, {"loss": "hinge"})]
VARIANTS += [("dp_scsg_ht", {"option": "II"}), ("dp_svrg_ht", {"option": "II"})]


@pytest.mark.every(3)
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize(("name", "more"), VARIANTS, ids=str)
def test_the_budget_is_met_and_used_up(name, more, sampling):
    for epsilon in (0.5, 4.0):
        found = plan(name, **{"epsilon": epsilon} | more | sampling).guarantee.epsilon(1e-4)
        assert epsilon * (1 - 2e-3) <= found <= epsilon * (1 + 1e-9)


def test_what_is_charged():
    """Every step once, every snapshot once an epoch, the random loop as such; rates are batch over n.

    Of three inner steps an epoch the first, at the snapshot, shows nothing.
    """
    ((step, count),) = flatten(plan("dp_sgd_ht").event)
    assert (step.rate, step.scheme, count) == (8 / N, "without-replacement", 20)
    (loop, loops), (snapshot, snapshots) = flatten(plan("dp_scsg_ht").event)
    assert isinstance(loop, RandomRounds) and isinstance(loop.event, Subsampled)
    assert (loop.rounds.gamma, loop.event.rate, loops) == (24 / 32, 8 / N, 4)
    assert (snapshot.rate, snapshots) == (24 / N, 4)
    (inner, steps), (snapshot, snapshots) = flatten(plan("dp_scsg_ht", option="II").event)
    assert (inner.rate, steps, snapshot.rate, snapshots) == (8 / N, 4 * (3 - 1), 24 / N, 4)
    _, (snapshot, snapshots) = flatten(plan("dp_svrg_ht").event)
    assert (snapshot.rate, snapshots) == (1.0, 3)


def test_sensitivities_and_the_expected_batch_size():
    logistic, squared = plan("dp_scsg_ht"), plan("dp_scsg_ht", loss="squared", grad_norm=3.0)
    assert [r.sensitivity for r in logistic.releases] == [2 / 8, 2 / 24]
    assert [r.sensitivity for r in squared.releases] == [4 * 3 / 8, 2 * 3 / 24]
    zero_out = plan("dp_scsg_ht", sampling="poisson")
    assert [r.sensitivity for r in zero_out.releases] == [1 / 8, 1 / 24]
    assert plan("dp_sgd_ht").sensitivity == 2 / 8


@pytest.mark.parametrize("size", [0, 1, 9])
def test_sums_are_divided_by_the_expected_size(size):
    """Rows that are all the same: whatever a Poisson batch's size turns out to be, each adds 1/b of its gradient."""
    X, y = np.ones((N, 1)), np.ones(N)
    sampled = {"sparsity": 1, "sampling": "poisson", "epsilon": math.inf, "step_size": 1.0}
    forced = mock.Mock(side_effect=lambda rng, scheme, n, b, count: np.full(count, size))
    with mock.patch.object(_sgd, "batch_sizes", forced):
        assert fit("dp_sgd_ht", X, y, steps=1, **sampled).coef[0] == pytest.approx(0.5 * size / 8)
    inner, outer = (mock.patch.object(module, "batch_sizes", forced) for module in (_scsg, snapshots))
    with inner, outer:
        # One snapshot and one inner step, in which nothing has changed since.
        found = fit("dp_scsg_ht", X, y, epochs=1, snapshot_size=8, option="II", **sampled)
    assert found.coef[0] == pytest.approx(0.5 * size / 8)


def test_random_loops_cost_about_as_much_as_fixed_ones():
    """As many steps as they have on average, with the first of an epoch, which only a fixed number lets go free."""
    random = plan("dp_scsg_ht", option="I").noise
    every_step = property(lambda shape: shape.epochs * shape.steps)
    with mock.patch.object(_scsg.Shape, "inner_count", every_step):
        fixed = plan("dp_scsg_ht", option="II").noise
    assert random == pytest.approx(fixed, rel=0.1)
    assert plan("dp_scsg_ht", option="II").noise < 0.95 * fixed


@pytest.mark.every(3)
@pytest.mark.parametrize(("b", "epsilon", "multiplier"), [(64, 2.0, 0.8615), (256, 4.0, 0.8916), (1024, 8.0, 0.9265)])
def test_noise_of_sgd_at_the_size_of_rcv1(b, epsilon, multiplier):
    """20 passes over n = 20242 at delta 1e-5: batches without replacement in blocks of steps, not one joined pair."""
    found = solvers.plan(
        "dp_sgd_ht", n=20_242, d=47_236, loss="logistic", row_norm=1.0, sparsity=100, steps=round(20 * 20_242 / b),
        batch_size=b, epsilon=epsilon, delta=1e-5,
    )  # fmt: skip
    assert 0.993 * multiplier <= found.noise / found.sensitivity <= 1.001 * multiplier


@pytest.mark.parametrize("name", ["dp_sgd_ht", "dp_scsg_ht"])
def test_published_noise_says_what_it_gives_and_which_conditions_fail(name):
    large = {"epsilon": 8.0, "delta": 1e-5}
    found = plan(name, calibration="published", **large)
    assert found.guarantee.claimed[:2] == (8.0, 1e-5)
    assert not found.published.conditions_hold and len(found.published.conditions) in (2, 3)
    truth = found.guarantee.epsilon(1e-5)
    assert truth == pytest.approx(account(found.event).epsilon(1e-5)) and truth != pytest.approx(8.0, rel=0.01)
    printed = re.search(r"Liang et al. 2023.* claims epsilon 8 at .*; this noise gives ([0-9.]+)", str(found))
    assert float(printed[1]) == pytest.approx(truth, rel=1e-3)
    assert found.settings.adaptive is False


def test_published_noise_inside_its_conditions_holds():
    """A case where Theorem 4.1 applies: 70 passes over the size of RCV1, with small batches and a large epsilon."""
    found = solvers.plan(
        "dp_sgd_ht", n=20_242, d=10, loss="logistic", row_norm=1.0, sparsity=2, steps=70 * 202, batch_size=100,
        epsilon=8.0, delta=1e-5, calibration="published",
    )  # fmt: skip
    assert found.published.conditions_hold
    assert found.guarantee.epsilon(1e-5) <= 8.0


# --- ledger and refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHAPES)
def test_the_ledger_pays(name):
    ledger = Ledger(epsilon=3.0, delta=1e-4, allow_seeds=True)
    fit(name, ledger=ledger)
    assert ledger.guarantee.epsilon(1e-4) == pytest.approx(2.0, rel=5e-3)
    generator = np.random.default_rng(7)
    state, spent = generator.bit_generator.state, ledger.to_json()
    with pytest.raises(BudgetExceeded):
        fit(name, ledger=ledger, rng=generator, epsilon=2.9)
    assert generator.bit_generator.state == state and ledger.to_json() == spent


WRONG = {
    "batch_size": [0, -3, N + 1, 2.0, True, None],
    "step_size": [0.0, -1.0, math.nan, math.inf, "1"],
    "l2": [-0.1, math.nan],
    "sparsity": [0, D + 1, 2.5],
    "epsilon": [0.0, -1.0, math.nan],
    "delta": [0.0, 1.0, -0.1],
    "row_norm": [None, 0.0, -1.0, math.inf],
    "loss": ["hinges", "softmax", None],
    "sampling": ["with-replacement", "shuffle", None],
    "adjacency": ["zero-out", "add-remove"],
    "calibration": ["loose", None],
    "rng": [-1, 1.5, "seed"],
    "ledger": ["a ledger"],
    "trace": [0, 2.5, "yes", None],
}
WRONG_HERE = {
    "dp_sgd_ht": {"steps": [0, 1.5]},
    "dp_scsg_ht": {"epochs": [0, 2.0], "snapshot_size": [0, 7, N + 1, 24.0], "option": ["III", 1, None]},
    "dp_svrg_ht": {"epochs": [0, 2.0], "option": ["III"]},
}
REFUSED = [
    (name, key, value)
    for name in SHAPES
    for key, values in (WRONG | WRONG_HERE[name]).items()
    for value in values
    # dp_sgd_ht has a rule for its batches.
    if not (name == "dp_sgd_ht" and key == "batch_size" and value is None)
]
TOGETHER = [
    ({"calibration": "published", "sampling": "poisson"}, "sampling"),
    ({"calibration": "published", "epsilon": math.inf}, "epsilon"),
    ({"sampling": "without-replacement", "adjacency": "zero-out"}, "adjacency"),
    ({"loss": "squared"}, "grad_norm"),
    ({"loss": "squared", "grad_norm": 1.0, "row_norm": None}, "step_size"),
]


@pytest.mark.parametrize(("name", "key", "value"), REFUSED)
def test_bad_values_are_named_and_cost_nothing(name, key, value):
    refused(name, {key: value}, "sampling|adjacency" if key == "adjacency" else key)


@pytest.mark.parametrize(("arguments", "named"), TOGETHER)
@pytest.mark.parametrize("name", SHAPES)
def test_bad_combinations_are_named_and_cost_nothing(name, arguments, named):
    refused(name, arguments, named)


def refused(name, arguments, named):
    X, y = data()
    generator, ledger = np.random.default_rng(7), Ledger(epsilon=10.0, delta=1e-3, allow_seeds=True)
    state = generator.bit_generator.state
    with pytest.raises(InvalidValue, match=rf"^({named})\b"):
        fit(name, X, y, **{"rng": generator, "ledger": ledger} | arguments)
    assert generator.bit_generator.state == state and ledger.entries == ()


@pytest.mark.parametrize("name", SHAPES)
def test_bad_data_are_named(name):
    X, y = data()
    for bad_X, bad_y, named in (
        (X + np.nan, y, "X"), (X[0], y, "X"), (X, y[:-1], "y"), (X, y + 0.5, "y"),
        (sparse.csr_matrix(X) * math.inf, y, "X"), (X * 1j, y, "X"),
    ):  # fmt: skip
        with np.errstate(invalid="ignore"), pytest.raises(InvalidValue, match=f"^{named}"):
            fit(name, bad_X, bad_y)


def test_adaptive_noise_needs_public_smoothness():
    with pytest.raises(InvalidValue, match="adaptive"):
        plan("dp_scsg_ht", loss="squared", grad_norm=1.0, row_norm=None, step_size=0.1, adaptive=True)
    with pytest.raises(InvalidValue, match="adaptive"):
        plan("dp_scsg_ht", calibration="published", adaptive=True)
    assert not plan("dp_scsg_ht", loss="squared", grad_norm=1.0, row_norm=None, step_size=0.1).settings.adaptive


# --- numbers that overflow -----------------------------------------------------------------------------------


def step(start, scale, X=((1e150, -1e150, 0.0),), l2=0.0, cap=1e-150, reduced=False, slope=0.5):
    """One step of either kernel, keeping everything, from weights ``start``."""
    X = np.array(X)
    rows = kernel_records(X, np.zeros(len(X)))._replace(loss=kernel.SQUARED, caps=np.full(len(X), cap))
    rng, width = np.random.default_rng(0), X.shape[1]
    support, values = np.arange(width), np.array(start, dtype=float)
    sizes, common = np.array([len(X)]), (rows, len(X), 1.0, l2, scale)
    if reduced:
        means = ranked_means(np.zeros(width), width, width, 0.0, None)
        kernel.reduced_steps(rng, sizes, *common, slope, 0.0, width, 0, width, means, support, values, width)
    else:
        shares = np.array([0.0, 0.0, 1.0]), 1.0
        kernel.sgd_steps(rng, sizes, *common, *shares, width, 0, width, support, values, width)
    out = np.zeros(width)
    out[support] = values
    return out


def test_a_record_whose_margin_overflows_both_ways_counts_nothing():
    """inf - inf is not a number; it must not reach the weights, where one record would spoil all."""
    found = step([1e200, 1e200, 1.0], 0.0)
    assert np.array_equal(found, [1e200, 1e200, 1.0])
    # A margin that overflows one way has a residual of full size.
    assert step([1e200, -1e200, 1.0], 0.0, cap=1e55)[0] < 1e200


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("spoilt", [math.nan, math.inf])
def test_weights_that_are_no_numbers_do_not_switch_the_noise_off(spoilt, reduced):
    """The share of the noise is then the largest. (The table of shares here is 0 for small weights, to tell.)"""
    found = step([spoilt, 0.0, 0.0], 1.0, X=((1.0, 1.0, 1.0),), cap=1.0, reduced=reduced)
    assert np.all(found[1:] != 0) and len(set(np.abs(found[1:]))) == 2
    if not reduced:
        quiet = step([0.5, 0.0, 0.0], 1.0, X=((0.0, 0.0, 0.0),))
        assert np.array_equal(quiet[1:], [0.0, 0.0])


def test_nothing_is_written_beyond_the_end():
    """Weights that are no numbers become 0, whose places the search outside takes, and no more than those."""
    rows = kernel_records(np.zeros((2, 5000)), np.zeros(2))
    support, values = np.arange(3), np.full(3, math.nan)
    noise = constant(1.0).arguments
    filled = kernel.sgd_steps(
        np.random.default_rng(0), np.array([2]), rows, 2, 1.0, 0.0, *noise, 5000, 0, 3, support, values, 3
    )
    assert filled == 3 and support.max() < 5000 and np.isfinite(values).all()


def test_the_noise_multiplier_is_what_the_event_says():
    for name in SHAPES:
        found = plan(name)
        for release in found.releases:
            step_event = release.event.event if isinstance(release.event, RandomRounds) else release.event
            gaussian = step_event.event if isinstance(step_event, Subsampled) else step_event
            assert isinstance(gaussian, Gaussian)
            assert gaussian.noise_multiplier == pytest.approx(release.scale / release.sensitivity)


def test_the_rows_of_a_snapshot_are_uniform():
    """Every row, and every pair of neighbouring rows, comes as often as chance has it: 5.5 deviations, 1e-6 in all."""
    rng, runs = np.random.default_rng(0), 20_000
    for n, size, expected in ((6, 4, 4), (6, 4, 0)):
        found = np.zeros((runs, n), dtype=bool)
        for i in range(runs):
            rows = uniform_rows(rng, n, size, expected)
            assert len(rows) == size and (np.diff(rows) > 0).all()
            found[i, rows] = True
        both = found & np.roll(found, 1, axis=1)
        for seen, chance in ((found, size / n), (both, size * (size - 1) / (n * (n - 1)))):
            assert np.abs(seen.mean(axis=0) - chance).max() < 5.5 * np.sqrt(chance * (1 - chance) / runs)
    assert uniform_rows(rng, 5, 0, 3).tolist() == [] and uniform_rows(rng, 5, 5, 3).tolist() == [0, 1, 2, 3, 4]
