"""The compiled fit of dp_ight: the same as the path of large data, the same noise, the same ties."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import sparse

from dptoolkit import losses, solvers
from dptoolkit.data import Rows, check_rows
from dptoolkit.kernels import reference, threshold
from dptoolkit.kernels.threshold import largest
from dptoolkit.mechanisms.randomness import Generators
from dptoolkit.solvers.engine import descent
from dptoolkit.solvers.engine.descent import ClippedRecords, IhtRun
from tests.solvers.capture import Spy, step_by_step

MODES = {
    "logistic": {"loss": "logistic", "row_norm": 1.0},
    "logistic, fixed noise": {"loss": "logistic", "row_norm": 1.0, "adaptive": False},
    "logistic, zero-out": {"loss": "logistic", "row_norm": 1.5, "adjacency": "zero-out"},
    "logistic, clipped gradients": {"loss": "logistic", "row_norm": 1.0, "grad_norm": 0.3},
    "huber": {"loss": "huber", "row_norm": 0.8},
    "hinge": {"loss": "hinge", "row_norm": 1.2},
    "hinge, clipped gradients": {"loss": "hinge", "row_norm": 1.2, "grad_norm": 0.5},
    "squared": {"loss": "squared", "grad_norm": 1.5},
    "squared, labels and margins": {"loss": "squared", "row_norm": 0.8, "label_bound": 1.0, "margin_bound": 0.5},
}


def problem(seed, n, d):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * (rng.random((n, d)) < 0.7)
    return X, (rng.random(n) < 0.5).astype(float)


def make_plan(mode, n, d, s, steps, epsilon=5.0, intercept=False, **more):
    given = {"step_size": 0.7, "epsilon": epsilon, "delta": 1e-9, "fit_intercept": intercept} | MODES[mode] | more
    return solvers.plan("dp_ight", n=n, d=d, sparsity=s, steps=steps, **given)


@pytest.mark.parametrize("mode", MODES)
def test_both_paths_give_the_same_fit(mode):
    sizes = st.tuples(st.integers(1, 12), st.integers(1, 9), st.integers(1, 6))

    @given(st.integers(0, 10**6), sizes, st.booleans(), st.booleans())
    def check(seed, size, intercept, as_csr):
        n, d, s = size
        X, y = problem(seed, n, d)
        plan = make_plan(mode, n, d, min(s, d), 6, intercept=intercept)
        form = sparse.csr_matrix(X) if as_csr else X
        small = solvers.bind(plan, form, y)
        with step_by_step():
            large = solvers.bind(plan, form, y)
        assert small.compiled_records is not None and large.compiled_records is None
        a, b = small(np.random.default_rng(seed), True), large(np.random.default_rng(seed), True)
        np.testing.assert_allclose(a.history["noise_scale"], b.history["noise_scale"], rtol=1e-12)
        for ours, theirs in ((a.weights, b.weights), (a.releases, b.releases), (a.iterates, b.iterates)):
            np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-11)
        assert np.array_equal(a.weights, a.iterates[-1])

    check()


@pytest.mark.filterwarnings("ignore::dptoolkit.solvers.HopelessPlanWarning")
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
@pytest.mark.parametrize("mode", MODES)
def test_one_record_moves_no_iterates_gradient_by_more_than_its_noise_is_for(mode, adjacency, intercept):
    """Every step of the compiled fit, of which audits see the first and the last: 40 steps, of which weights grow.

    The release less its noise is the gradient at the iterate before it; the neighbour's is computed by the same kernel
    at the same weights. In the first feature one record outweighs the others, which are opposite on it.
    """
    n, d, steps, shares, later = 6, 4, 40, [], 0.0
    for seed in range(3):
        X, y = problem(seed, n, d)
        X[:, 0], X[0], y[0] = 0.05, [3.0, 0.0, 0.1, 0.0], 1.0
        other, labels = X.copy(), y.copy()
        other[0], labels[0] = (-1) ** seed * X[0], 1.0 - y[0] if seed != 1 else y[0]
        plan = make_plan(mode, n, d, 2, steps, intercept=intercept, step_size=3.0, epsilon=50.0, adjacency=adjacency)
        run, twin = solvers.bind(plan, X, y), solvers.bind(plan, other, labels)
        if adjacency == "zero-out":
            # The record is left out, its intercept too.
            weights = run.compiled_records.weights.copy()
            weights[0] = 0.0
            twin.compiled_records = run.compiled_records._replace(weights=weights)
        trace = run(np.random.default_rng(seed), True)
        normals = np.random.default_rng(seed).standard_normal(trace.releases.shape)
        before = np.vstack([np.zeros(run.width), trace.iterates[:-1]])
        for w, release, noise, scale in zip(before, trace.releases, normals, trace.history["noise_scale"], strict=True):
            assert scale == plan.settings.noise_law(plan)(w)
            support, theirs = np.flatnonzero(w), np.empty(run.width)
            threshold.mean_gradient(twin.compiled_records, w, support, len(support), theirs)
            moved = np.linalg.norm(release - scale * noise - theirs)
            shares.append(moved / (scale / plan.noise * plan.sensitivity))
        later = max(later, *shares[-steps + 2 :])
    assert max(shares) <= 1 + 1e-9
    assert later > 0.3, "noise for less than that would be seen, at a later iterate too"


@pytest.mark.parametrize("mode", MODES)
def test_counted_rows_are_written_out_rows(mode):
    X, y = problem(3, 5, 6)
    counts = np.array([3, 0, 1, 7, 2])
    plan = make_plan(mode, 13, 6, 2, 8)
    which = np.repeat(np.arange(5), counts)
    for path in (False, True):
        whole = solvers.bind(plan, X[which], y[which])
        if path:
            with step_by_step():
                few = solvers.bind(plan, sparse.csr_matrix(X), y, counts)
        else:
            few = solvers.bind(plan, X, y, counts)
        a, b = few(np.random.default_rng(1), True), whole(np.random.default_rng(1), True)
        np.testing.assert_allclose(a.releases, b.releases, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(a.weights, b.weights, rtol=1e-9, atol=1e-12)


def test_data_must_be_the_plans():
    X, y = problem(0, 5, 3)
    plan = make_plan("huber", 6, 3, 2, 2)
    for counts in (None, [1, 1, 1, 1, 1], [2, 2, 2, 2, 2]):
        with pytest.raises(ValueError, match="the 6 rows of 3 features of the plan for dp_ight"):
            solvers.bind(plan, X, y, counts)
    for counts in ([2, 1, 1, 1], [3, -1, 1, 1, 1], [2.5, 0.5, 1, 1, 1]):
        with pytest.raises(ValueError, match="counts"):
            solvers.bind(plan, X, y, counts)
    with pytest.raises(ValueError, match="6 rows of 3"):
        solvers.bind(plan, X[:, :2], y, [2, 1, 1, 1, 1])
    solvers.bind(plan, X, y, [2, 1, 1, 1, 1])


@pytest.mark.parametrize("trace", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_many_fits_on_matrices_of_their_own_are_those_of_single_fits(mode, trace):
    """Bit for bit, each with its own matrix, caps and noise. Noise in another order is another fit: the broken twin."""
    plan = make_plan(mode, 9, 6, 2, 5)
    noise_at, bounds = plan.settings.noise_law(plan), plan.settings.bounds
    y, counts = problem(0, 9, 6)[1], np.array([1, 2, 0, 1, 1, 1, 1, 1, 1])
    parts = [bounds.clip(check_rows(problem(seed, 9, 6)[0]), y) for seed in range(3)]

    def run(rows, labels, caps):
        data = ClippedRecords(rows, labels, plan.settings.loss_row, bounds.largest_margin, caps, counts)
        return IhtRun(data, plan.settings.iteration, noise_at)

    caps = None if parts[0][2] is None else np.array([part[2] for part in parts])
    stack = run(Rows(np.array([part[0].matrix for part in parts]), False), parts[0][1], caps)
    together = stack.fits(Generators(*(np.random.default_rng(seed) for seed in (4, 5, 6))), trace)
    turned = stack.fits(Generators(*(np.random.default_rng(seed) for seed in (5, 4, 6))), trace)
    for k, part in enumerate(parts):
        alone = run(*part)(np.random.default_rng(4 + k), trace)
        assert np.array_equal(together.weights[k], alone.weights)
        assert np.array_equal(turned.weights[k], alone.weights) == (k == 2)
        if trace:
            assert np.array_equal(together.releases[k], alone.releases)
            assert np.array_equal(together.iterates[k], alone.iterates)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_every_draw_of_the_kernel(mode, intercept):
    """The kernel as plain Python with a recording generator: steps * width normals, each where it belongs."""
    X, y = problem(5, 9, 6)
    plan, width = make_plan(mode, 9, 6, 2, 5, intercept=intercept), 6 + intercept
    run = solvers.bind(plan, X, y)
    spy = Spy(4)
    w, scales = np.empty(width), np.empty(5)
    releases, iterates = np.empty((5, width)), np.empty((5, width))
    scratch = np.empty(width, np.int64), np.empty(width)
    nothing = np.empty((0, 0))
    threshold.iht_fit.py_func(
        spy, nothing, run.compiled_records, run.schedule(), w, *scratch, scales, releases, iterates
    )
    assert [name for name, _ in spy.draws] == ["standard_normal"] * (5 * width)
    normals = np.array(spy.of("standard_normal")).reshape(5, width)
    bounds = plan.settings.bounds
    bounded, labels, caps = bounds.clip(check_rows(X), y)
    before, noise_at, loss = np.zeros(width), plan.settings.noise_law(plan), losses.get(plan.settings.loss)
    for t in range(5):
        assert scales[t] == pytest.approx(noise_at(before), rel=1e-12)
        r = loss.clipped_residual(bounded.matrix @ before, labels, bounds.largest_margin, caps)
        exact = reference.mean_gradient(bounded.matrix, r)
        np.testing.assert_allclose(releases[t], exact + scales[t] * normals[t], rtol=1e-9, atol=1e-12)
        before = reference.hard_threshold(before - 0.7 * releases[t], 2, int(intercept))
        np.testing.assert_allclose(iterates[t], before, rtol=1e-9, atol=1e-12)
    assert np.array_equal(w, iterates[-1])
    # And the compiled one draws the same.
    again = run(np.random.Generator(np.random.PCG64(4)), True)
    np.testing.assert_allclose(again.releases, releases, rtol=1e-9, atol=1e-12)


def test_without_noise_it_is_ight():
    X, y = problem(7, 30, 8)
    X /= np.linalg.norm(X, axis=1, keepdims=True).max()
    for loss in losses.SCALAR:
        bounds = {"grad_norm": 1e6} if loss == "squared" else {"row_norm": 1.0}
        same = {"loss": loss, "sparsity": 3, "steps": 9, "step_size": 0.4}
        for form in (X, sparse.csr_matrix(X)):
            plain = solvers.ight(form, y, **same)
            private = solvers.dp_ight(form, y, epsilon=math.inf, rng=0, **same, **bounds)
            assert np.array_equal(plain.coef, private.coef)


def test_the_size_decides_and_a_recording_generator_sees_every_draw():
    X, y = problem(1, 10, 4)
    plan = make_plan("huber", 10, 4, 2, 3)
    assert solvers.bind(plan, X, y).compiled_records is not None
    spy = Spy(0)
    solvers.bind(plan, X, y)(spy)
    assert len(spy.draws) == 3
    wide = np.ones((10, descent.SMALL // 10 + 1))
    assert solvers.bind(make_plan("huber", 10, wide.shape[1], 2, 3), wide, y).compiled_records is None


def test_diagnostics_agree_on_both_paths():
    X, y = problem(2, 12, 5)
    same = {"loss": "logistic", "sparsity": 2, "steps": 4, "epsilon": 1.0, "delta": 1e-6, "row_norm": 1.0, "rng": 3}
    small = solvers.dp_ight(X, y, diagnostics=True, **same)
    with step_by_step():
        large = solvers.dp_ight(X, y, diagnostics=True, **same)
    key = "not_private"
    np.testing.assert_allclose(small.history[key]["objective"], large.history[key]["objective"], rtol=1e-9)
    assert key not in solvers.dp_ight(X, y, **same).history


# --- the largest entries -------------------------------------------------------------------------------

# Few different values make many ties.
LEVELS = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 3.5, math.inf, -math.inf, 5e-324])


@given(arrays(float, st.integers(1, 40), elements=st.one_of(LEVELS, st.floats(-3, 3))), st.integers(1, 45))
@example(np.array([1.0, 1.0, 1.0, 2.0]), 2)
@example(np.array([1.0, 2.0, -1.0, 1.0]), 3)
def test_ties_go_to_the_smaller_index_as_in_numpy(values, count):
    support = np.empty(max(len(values), count), np.int64)
    filled = threshold.keep_largest(values, len(values), count, support)
    assert np.sort(support[:filled]).tolist() == largest(values, count).tolist()


@given(arrays(float, st.integers(1, 20), elements=st.one_of(LEVELS, st.just(math.nan))), st.integers(1, 20))
def test_what_is_not_a_number_is_not_kept(values, count):
    support = np.empty(max(len(values), count), np.int64)
    filled = threshold.keep_largest(values, len(values), count, support)
    assert len(set(support[:filled].tolist())) == filled <= min(count, len(values))
    if count < len(values):
        assert not np.isnan(values[support[:filled]]).any()
