"""Softmax by dp_dual_averaging: one record moves all classes together by no more than planned; some by that much."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from dptoolkit import audit, losses, solvers
from dptoolkit.data import check_rows
from dptoolkit.errors import InvalidValue
from dptoolkit.solvers.engine.softmax import clipped_residuals
from tests.strategies import neighbours

ROUNDING = 1 + 1e-12
SHARED = {"loss": "softmax", "row_norm": 1.5, "epsilon": 1.0, "delta": 1e-6, "steps": 3, "step_size": 0.5}
pytestmark = [
    pytest.mark.filterwarnings("ignore::dptoolkit.solvers.DeltaWarning"),
    pytest.mark.filterwarnings("ignore::dptoolkit.solvers.HopelessPlanWarning"),
]


def make_plan(n, d, classes=3, **more):
    return solvers.plan("dp_dual_averaging", n=n, d=d, classes=classes, **SHARED | more)


def problem(seed, n=40, d=7, classes=3):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, d)) * (rng.random((n, d)) < 0.7), rng.integers(0, classes, n)


def mean_gradient(plan, X, y, weights):
    return solvers.bind(plan, X, y).mean_gradient(weights)


# --- sensitivity ------------------------------------------------------------------------------------------


@given(neighbours("binary"), st.integers(2, 5), st.sampled_from(["replace-one", "zero-out"]), st.floats(0.05, 3.0),
       st.integers(0, 2**31))  # fmt: skip
def test_one_record_moves_the_gradient_by_no_more_than_planned(pair, classes, adjacency, grad_norm, seed):
    rng = np.random.default_rng(seed)
    n, d = pair.X.shape
    plan = make_plan(n, d, classes, adjacency=adjacency, grad_norm=grad_norm)
    # Labels of several classes; the record that differs may have any other.
    y = rng.integers(0, classes, n)
    y2 = y.copy()
    y2[pair.index] = rng.integers(0, classes)
    for size in (0.0, 1.0, 1e3):
        w = size * rng.standard_normal((classes, d))
        first = mean_gradient(plan, pair.X, y, w)
        if adjacency == "replace-one":
            second = mean_gradient(plan, pair.X2, y2, w)
        else:
            gone = pair.X.copy() if not sparse.issparse(pair.X) else pair.X.tolil(copy=True)
            gone[pair.index] = 0.0
            second = mean_gradient(plan, gone if not sparse.issparse(pair.X) else gone.tocsr(), y, w)
        assert np.linalg.norm(first - second) <= plan.sensitivity * ROUNDING


@pytest.mark.parametrize("classes", [2, 3, 20])
@pytest.mark.parametrize("grad_norm", [None, 0.3])
def test_a_row_and_its_negative_move_it_that_much(classes, grad_norm):
    """At weights that are sure of another class residuals are sqrt(2) long, and clipping leaves what it allows."""
    plan = make_plan(3, 2, classes, grad_norm=grad_norm)
    w = np.zeros((classes, 2))
    # Along the other coordinate all rows say class 1; the label of the first record is 0.
    w[1, 1] = 1e6
    X = np.array([[1.5, 0.01], [0.0, 0.0], [0.0, 0.0]])
    other = X * np.array([[-1.0, 1.0]] * 3)
    moved = np.linalg.norm(mean_gradient(plan, X, [0, 0, 0], w) - mean_gradient(plan, other, [0, 0, 0], w))
    assert 0.99 * plan.sensitivity <= moved <= plan.sensitivity * ROUNDING


def test_separate_clipping_of_the_classes_would_be_too_much():
    """The planted fault: each entry within the cap instead of all together. The bound of the test above breaks."""
    margins, labels = np.array([[0.0, 50.0, 0.0]]), np.eye(3)[[0]]
    cap = np.array([0.3])
    together = clipped_residuals(margins, labels, cap)
    one_by_one = np.clip(losses.get("softmax").residual(margins, labels), -0.3, 0.3)
    assert np.linalg.norm(together) <= 0.3 < np.linalg.norm(one_by_one)


@given(st.integers(2, 30), st.integers(0, 2**31), st.floats(0, 100))
def test_residuals_are_at_most_the_square_root_of_two_long(classes, seed, size):
    rng = np.random.default_rng(seed)
    y = np.eye(classes)[rng.integers(0, classes, 5)]
    r = clipped_residuals(size * rng.standard_normal((5, classes)), y, None)
    assert (np.linalg.norm(r, axis=1) <= losses.get("softmax").residual_norm(math.inf, math.inf) * ROUNDING).all()


def test_overflowing_records_count_as_zero():
    r = clipped_residuals(np.array([[np.inf, np.inf], [np.nan, 0.0], [1.0, 2.0]]), np.eye(2)[[0, 1, 1]], np.ones(3))
    assert not r[:2].any() and r[2].any()


# --- the run ----------------------------------------------------------------------------------------------


def plain_loop(X, y, plan, noise=None):
    s = plan.settings
    rows, _, caps = s.bounds.clip(check_rows(X), np.zeros(0))
    A, Y, total = np.asarray(rows.matrix), np.eye(s.classes)[y], np.zeros((s.classes, rows.shape[1]))

    def threshold(z):
        w = z.copy()
        if s.sparsity is not None:
            lengths = np.linalg.norm(z[:, : plan.d], axis=0)
            w[:, np.argsort(-lengths)[s.sparsity :]] = 0.0
        return w

    for t in range(s.steps):
        m = A @ threshold(total).T
        e = np.exp(m - m.max(axis=1, keepdims=True))
        r = e / e.sum(axis=1, keepdims=True) - Y
        if caps is not None:
            r *= np.minimum(1.0, caps / np.linalg.norm(r, axis=1))[:, None]
        blur = 0.0 if noise is None else plan.noise * noise[t]
        total = total - s.step_size * (r.T @ A / plan.n + blur)
    return threshold(total)


@pytest.mark.parametrize("form", [np.array, sparse.csr_matrix])
@pytest.mark.parametrize("sparsity", [None, 2])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("grad_norm", [None, 0.4])
def test_a_run_is_the_specification_with_the_noise_of_the_plan(form, sparsity, intercept, grad_norm):
    X, y = problem(1)
    plan = make_plan(40, 7, sparsity=sparsity, fit_intercept=intercept, grad_norm=grad_norm)
    normals = np.random.default_rng(5).standard_normal((3, 3, 7 + intercept))
    found = solvers.bind(plan, form(X), y)(np.random.default_rng(5)).weights
    np.testing.assert_allclose(found, plain_loop(X, y, plan, normals), rtol=1e-9, atol=1e-12)
    assert not np.allclose(found, plain_loop(X, y, plan, 0.9 * normals), rtol=1e-3)
    quiet = make_plan(40, 7, sparsity=sparsity, fit_intercept=intercept, grad_norm=grad_norm, epsilon=math.inf)
    found = solvers.bind(quiet, form(X), y)(np.random.default_rng(5)).weights
    np.testing.assert_allclose(found, plain_loop(X, y, quiet), rtol=1e-9, atol=1e-12)


def test_two_classes_are_logistic_regression():
    """The difference of the two rows of weights is the logistic fit with half the time, clipped alike."""
    X, y = problem(2, classes=2)
    X *= 0.3
    shared = {"row_norm": 1.5, "epsilon": math.inf, "steps": 30}
    two = solvers.dp_dual_averaging(
        X, y, loss="softmax", classes=2, step_size=1.0, grad_norm=math.sqrt(2) * 0.3, **shared
    )
    one = solvers.dp_dual_averaging(X, y, loss="logistic", step_size=2.0, grad_norm=0.3, **shared)
    np.testing.assert_allclose(two.coef[1] - two.coef[0], one.coef, rtol=1e-9)


def test_a_fit_has_the_shape_of_the_classes_and_learns():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((3000, 10))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    y = X[:, :3].argmax(axis=1)
    shared = {"loss": "softmax", "classes": 3, "row_norm": 1.0, "epsilon": 2.0, "delta": 1e-5, "rng": 1}
    fit = solvers.dp_dual_averaging(X, y, **shared, fit_intercept=True, trace=10, diagnostics=True)
    assert fit.coef.shape == (3, 10) and fit.intercept.shape == (3,)
    assert np.mean(solvers.margins(fit, X).argmax(axis=1) != y) < 0.2
    assert fit.history["not_private"]["objective"] < math.log(3)
    assert fit.guarantee.epsilon(1e-5) <= 2.0
    three = solvers.dp_dual_averaging(X, y, **shared, sparsity=3)
    assert set(np.flatnonzero(three.coef.any(axis=0))) == {0, 1, 2}
    assert (three.intercept == 0).all()


def test_counts_stand_for_rows():
    X, y = problem(6)
    plan = make_plan(80, 7)
    counted = solvers.bind(plan, X, y, np.full(40, 2))(np.random.default_rng(1)).weights
    written = solvers.bind(plan, np.vstack([X, X]), np.append(y, y))(np.random.default_rng(1)).weights
    np.testing.assert_allclose(counted, written, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("wrong", [
    {"classes": None}, {"classes": 1}, {"classes": 2.5}, {"loss": "logistic"}, {"adaptive": True}, {"label_bound": 1.0},
])  # fmt: skip
def test_bad_settings_are_refused(wrong):
    with pytest.raises(InvalidValue):
        solvers.plan("dp_dual_averaging", n=100, d=4, **{"classes": 3} | SHARED | wrong)


def test_bad_labels_are_refused():
    X, _ = problem(1)
    for y, more in ((np.full(40, 3), {}), (np.full(40, 0.5), {}), (np.zeros(40), {"label_values": (0, 1)})):
        with pytest.raises(InvalidValue):
            solvers.dp_dual_averaging(X, y, classes=3, **SHARED, **more)


# --- audit ------------------------------------------------------------------------------------------------


def test_audit_of_a_row_and_its_negative_and_a_twin_that_fails():
    """False alarms: 1e-6. All residuals are clipped, so that the sum of the gradients tells all there is."""
    plan = make_plan(20, 1, 3, grad_norm=0.1, row_norm=1.0, steps=5, step_size=0.01, delta=1e-5)
    ours, theirs = ((np.vstack([[[sign]], np.zeros((19, 1))]), np.zeros(20)) for sign in (1.0, -1.0))

    def mechanism(noisy):
        def run(dataset, rng):
            trace = solvers.bind(noisy, *dataset)(rng, True)
            # The direction of the residuals at weights near zero: (-2, 1, 1)/sqrt(6).
            return trace.releases.sum(axis=0) @ np.array([-2.0, 1.0, 1.0])

        return run

    how = {"trials": 4000, "confidence": 1 - 1e-6, "rng": 3}
    honest = audit.audit(mechanism(plan), (ours, theirs), plan.guarantee, **how)
    assert not honest.violated and honest.epsilon_lower <= 1.0
    assert audit.audit(mechanism(plan.with_noise(factor=0.4)), (ours, theirs), plan.guarantee, **how).violated
