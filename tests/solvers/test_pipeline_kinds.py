"""dp_pipeline for several classes and for numbers: each stage moves by no more than planned, some by that much."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from dptoolkit import audit, solvers
from dptoolkit.adjacency import Adjacency
from dptoolkit.data import check_rows
from dptoolkit.errors import InvalidValue
from dptoolkit.solvers import _pipeline_stages as scaling
from dptoolkit.solvers._pipeline import DESCENT, EIGENVALUE, MEANS, SCALE
from dptoolkit.solvers._pipeline_stages import Preparation, Units, column_means, plane_eigenvalue
from dptoolkit.solvers.frame import rules
from tests.solvers.capture import Spy
from tests.strategies import neighbours

ROUNDING = 1 + 1e-10
NUMBERS = {"loss": "squared", "row_norm": 2.0, "label_bound": 5.0}
CLASSES = {"loss": "softmax", "classes": 3}
KINDS = {"numbers": NUMBERS, "classes": CLASSES, "two classes": {}}
pytestmark = [
    pytest.mark.filterwarnings("ignore::dptoolkit.solvers.DeltaWarning"),
    pytest.mark.filterwarnings("ignore::dptoolkit.solvers.HopelessPlanWarning"),
]


def make_plan(n, d, epsilon=2.0, delta=1e-5, **more):
    return solvers.plan("dp_pipeline", n=n, d=d, epsilon=epsilon, delta=delta, **more)


def numbers(seed, n, d):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * (rng.random((n, d)) < 0.5)
    return X, 2 * X[:, 0] - X[:, 1] + 1 + 0.1 * rng.standard_normal(n)


# --- sensitivities ---------------------------------------------------------------------------------------


@given(neighbours("binary"), st.floats(1e-3, 1e3), st.integers(0, 2**31))
def test_rows_and_means_and_eigenvalue_of_numbers_move_by_no_more_than_planned(pair, row_norm, seed):
    units = Units(row_norm, 1.0)
    first, second = (units.rows(check_rows(X)) for X in (pair.X, pair.X2))
    for rows in (first, second):
        assert (rows.row_norms() <= 1).all()
    n, d = pair.X.shape
    plan = make_plan(n, d, loss="squared", row_norm=row_norm, label_bound=1.0)
    share = np.full(n, 1 / n)
    moved = np.linalg.norm(column_means(first, share) - column_means(second, share))
    assert moved <= plan.releases[MEANS].sensitivity * ROUNDING
    prepared = Preparation.of(np.random.default_rng(seed).standard_normal(d), 0.1, units)
    ours, theirs = (prepared(rows) for rows in (first, second))
    for rows in (ours, theirs):
        assert (rows.row_norms() <= 1 + 1e-15).all()
    values = [plane_eigenvalue(rows, prepared.direction, share) for rows in (ours, theirs)]
    assert abs(values[0] - values[1]) <= plan.releases[EIGENVALUE].sensitivity * ROUNDING


@given(neighbours("regression"), st.sampled_from([0.05, 0.25, 2.0]), st.integers(0, 2**31))
@settings(max_examples=40)
def test_gradients_of_numbers_move_by_no_more_than_planned(pair, grad_norm, seed):
    """The first gradient of a run without noise, at random weights by way of the labels."""
    n, d = pair.X.shape
    shared = {"loss": "squared", "row_norm": 1.5, "label_bound": 2.0, "grad_norm": grad_norm}
    plan = make_plan(n, d, **shared)
    prepared = Preparation.of(np.ones(d), 0.1, plan.settings.units)
    w = 10 * np.random.default_rng(seed).standard_normal(d + 1)
    found = []
    for X, y in ((pair.X, pair.y), (pair.X2, pair.y2)):
        run = solvers.bind(plan, X, y)
        rows = prepared(run.rows)
        residual = np.clip(rows.matrix @ w - run.y, -rows.caps(grad_norm), rows.caps(grad_norm))
        assert (np.abs(run.y) <= 1).all()
        found.append(np.asarray(rows.matrix.T @ residual) / n)
    assert np.linalg.norm(found[0] - found[1]) <= plan.releases[DESCENT].sensitivity * ROUNDING


@pytest.mark.parametrize("kind", ["numbers", "classes"])
def test_one_record_moves_the_first_gradient_as_planned(kind):
    """A number at either end of its range; of three classes, a row against its negative with nine tenths of it."""
    grad_norm = {"numbers": 0.25, "classes": 0.3}[kind]
    plan = make_plan(3, 2, epsilon=math.inf, **KINDS[kind], grad_norm=grad_norm)
    planned = make_plan(3, 2, **KINDS[kind], grad_norm=grad_norm).releases[DESCENT].sensitivity
    X = 2.0 * np.eye(2)[[0, 1, 1]]
    ends = ((X, [5.0, 0, 0]), (X, [-5.0, 0, 0])) if kind == "numbers" else ((X, [0, 1, 2]), (-X, [0, 1, 2]))
    first, second = (solvers.bind(plan, *data)(np.random.default_rng(0), True).releases[2] for data in ends)
    if kind == "classes":
        # Only the first row may differ: the others' gradients are taken off.
        first, second = first * 1.0, second * 1.0
        others = ((np.vstack([0 * X[:1], s * X[1:]]), [0, 1, 2]) for s in (1.0, -1.0))
        rest = [solvers.bind(plan, *data)(np.random.default_rng(0), True).releases[2] for data in others]
        first, second = first - rest[0], second - rest[1]
    moved = np.linalg.norm(first - second)
    assert 0.9 * planned <= moved <= planned * (1.1 if kind == "classes" else ROUNDING)


@given(st.integers(2, 30), st.integers(0, 14), st.integers(0, 2**31))
def test_slopes_of_classes_stay_in_their_range(classes, trial, seed):
    scale = math.exp(1.5 * ((trial + 1) / 8 - 1))
    rng = np.random.default_rng(seed)
    m = np.vstack([rng.uniform(-8, 8, (200, classes)), rng.choice([-9.0, 9.0], (200, classes))])
    y = np.eye(classes)[rng.integers(0, classes, 400)]
    slopes = np.array([scaling.class_slope(m[[i]], y[[i]], scale, np.ones(1)) for i in range(400)])
    assert np.ptp(slopes) <= scaling.class_slope_range(Adjacency.REPLACE_ONE, scale, classes)
    assert np.abs(slopes).max() <= scaling.class_slope_range(Adjacency.ZERO_OUT, scale, classes)
    assert scaling.class_slope_range(Adjacency.REPLACE_ONE, scale, classes) <= scaling.largest_slope(
        Adjacency.REPLACE_ONE, classes
    )


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("scale", [0.5, 1.0, 3.0])
def test_the_range_of_the_slopes_is_reached(classes, scale):
    """All other classes level with each other: at the far end, and over a grid of leads."""
    y = np.eye(classes)[[0]]
    bound = rules.LARGEST_MARGIN

    def at(lead):
        m = np.full((1, classes), -lead / 2)
        m[0, 0] = lead / 2
        return scaling.class_slope(m, y, scale, np.ones(1))

    slopes = [at(lead) for lead in np.linspace(-2 * bound, 2 * bound, 4001)]
    assert np.ptp(slopes) >= 0.999 * scaling.class_slope_range(Adjacency.REPLACE_ONE, scale, classes)
    assert np.abs(slopes).max() >= 0.999 * scaling.class_slope_range(Adjacency.ZERO_OUT, scale, classes)


# --- plan -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["numbers", "classes"])
@given(epsilon=st.floats(1e-3, 50.0), delta=st.sampled_from([1e-12, 1e-5, 0.01]), n=st.integers(1, 10**7),
       adjacency=st.sampled_from(["replace-one", "zero-out"]))  # fmt: skip
@settings(max_examples=40)
def test_the_guarantee_is_at_most_the_budget_and_uses_it_up(kind, epsilon, delta, n, adjacency):
    plan = make_plan(n, 5, epsilon=epsilon, delta=delta, adjacency=adjacency, **KINDS[kind])
    assert epsilon * (1 - 1e-6) <= plan.guarantee.epsilon(delta) <= epsilon
    assert len(plan.releases) == (3 if kind == "numbers" else 4)
    assert solvers.plan("dp_pipeline", n=n, d=5, **plan.settings.to_dict()) == plan


@pytest.mark.parametrize("wrong", [
    {"loss": "squared"}, {"loss": "squared", "row_norm": 1.0}, {"loss": "squared", "label_bound": 1.0},
    {"loss": "softmax"}, {"loss": "hinge"}, {"classes": 3}, {"row_norm": 1.0}, {"label_bound": 1.0},
    CLASSES | {"row_norm": 1.0}, CLASSES | {"classes": 1}, NUMBERS | {"grad_norm": 2.5}, NUMBERS | {"row_norm": 0.0},
])  # fmt: skip
def test_bad_settings_are_refused(wrong):
    with pytest.raises(InvalidValue):
        make_plan(100, 5, **wrong)


# --- the run ----------------------------------------------------------------------------------------------


def specification(X, y, plan, normals):
    """All stages in plain NumPy for numbers or classes, with the given standard normals in order."""
    drawn, scales, s = iter(normals), [release.scale for release in plan.releases], plan.settings
    n, classes = len(X), s.classes
    norms = np.linalg.norm(X, axis=1, keepdims=True)
    rows, level = X / np.maximum(norms, 1e-300 if classes else 2.0), 0.2 if classes else rules.NUMBER_LEVEL
    means = np.abs(rows).mean(axis=0) + scales[MEANS] * next(drawn)
    kept = np.flatnonzero(means > 1.5 * scales[MEANS])
    length, rows = math.sqrt(1 - level**2), rows[:, kept]
    if classes:
        rows = rows * means[kept] ** -0.25
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        rows = np.divide(rows, norms, out=np.zeros_like(rows), where=norms > 0)
    rows = np.hstack([length * rows, np.full((n, 1), level)])
    direction = means[kept] ** (0.75 if classes else 1.0)
    plane = np.column_stack([np.abs(rows[:, :-1]) @ direction / np.linalg.norm(direction), rows[:, -1]])
    eigenvalue = np.linalg.eigvalsh(plane.T @ plane / n)[-1] + scales[EIGENVALUE] * float(next(drawn))
    steps, step = s.schedule(plan, min(max(eigenvalue + 2 * scales[EIGENVALUE], level**2), 1.0))
    Y = np.eye(classes)[y.astype(int)] if classes else np.clip(y / 5, -1, 1)[:, None]
    z = np.zeros((Y.shape[1], len(kept) + 1))
    for _ in range(steps):
        m = rows @ z.T
        r = np.exp(m) / np.exp(m).sum(axis=1, keepdims=True) - Y if classes else m - Y
        size = np.linalg.norm(r, axis=1) * (1.0 if classes else np.linalg.norm(rows, axis=1))
        r = r * np.minimum(1.0, s.grad_norm / np.maximum(size, 1e-300))[:, None]
        z = z - step * (r.T @ rows / n + scales[DESCENT] * math.sqrt(steps) * np.reshape(next(drawn), z.shape))
    c = 1.0
    if classes:
        m = np.clip(rows @ z.T, -6, 6)
        low, high = -1.5, 1.5
        for _ in range(4):
            c = math.exp((low + high) / 2)
            p = np.exp(c * m) / np.exp(c * m).sum(axis=1, keepdims=True)
            ranged = scaling.class_slope_range(plan.adjacency, c, classes)
            noise = scales[SCALE] * ranged / scaling.largest_slope(plan.adjacency, classes) * float(next(drawn))
            slope = np.mean(((p - Y) * m).sum(axis=1)) + noise
            low, high = (low, (low + high) / 2) if slope > 0 else ((low + high) / 2, high)
        c = math.exp((low + high) / 2)
    return c * rows @ z.T * (1.0 if classes else 5.0)


@pytest.mark.parametrize("kind", ["numbers", "classes"])
@pytest.mark.parametrize("form", [np.array, sparse.csr_matrix])
def test_margins_are_the_specification_with_the_recorded_noise(form, kind):
    X, y = numbers(3, 200, 6)
    if kind == "classes":
        y = X[:, :3].argmax(axis=1).astype(float)
    plan = make_plan(*X.shape, epsilon=3.0, **KINDS[kind])
    spy = Spy(1)
    trace = solvers.bind(plan, form(X), y)(spy, True)
    normals = spy.of("standard_normal")
    expected = specification(X, y, plan, normals)
    prepared = trace.history["preparation"]
    found = solvers.margins(solvers.FitResult(*plan.settings.model(trace.weights), None, plan, trace.history), form(X))
    if kind == "numbers":
        np.testing.assert_allclose(found, np.clip(expected[:, 0], -5, 5), rtol=1e-8, atol=1e-9)
        # Without bounds in the way the stored weights alone are the model.
        short = np.linalg.norm(X, axis=1) <= 2
        plain = X @ trace.weights[:-1] + trace.weights[-1]
        np.testing.assert_allclose(np.clip(plain, -5, 5)[short], found[short], rtol=1e-8, atol=1e-9)
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-9)
    # The first two draws decide on the number of steps.
    weaker = specification(X, y, plan, [*normals[:2], *(0.9 * drawn for drawn in normals[2:])])
    assert not np.allclose(weaker, expected, rtol=1e-3)
    steps, slopes = trace.history["steps"], 0 if kind == "numbers" else rules.HALVINGS
    assert trace.releases.shape == (2 + steps + slopes, trace.weights.size)
    assert len(prepared.kept) <= 6


def test_numbers_are_learnt_with_an_intercept():
    X, y = numbers(7, 5000, 20)
    fit = solvers.dp_pipeline(
        X, y, loss="squared", row_norm=4.0, label_bound=6.0, epsilon=2.0, delta=1e-5, rng=1, diagnostics=True
    )
    residual = solvers.margins(fit, X) - np.clip(y, -6, 6)
    assert np.mean(residual**2) < 0.1 * np.var(y)
    assert fit.history["not_private"]["objective"] == pytest.approx(np.mean((residual / 6) ** 2) / 2, rel=1e-6)
    assert (np.abs(solvers.margins(fit, 1e6 * X)) <= 6.0).all(), "predictions stay within the bound"
    few = solvers.dp_pipeline(
        X, y, loss="squared", row_norm=4.0, label_bound=6.0, sparsity=2, epsilon=2.0, delta=1e-5, rng=1
    )
    assert set(np.flatnonzero(few.coef)) == {0, 1}


def test_classes_are_learnt():
    rng = np.random.default_rng(5)
    X = rng.standard_normal((4000, 10))
    y = X[:, :3].argmax(axis=1)
    fit = solvers.dp_pipeline(X, y, **CLASSES, epsilon=2.0, delta=1e-5, rng=1, trace=10, diagnostics=True)
    assert fit.coef.shape == (3, 10) and fit.intercept.shape == (3,)
    assert np.mean(solvers.margins(fit, X).argmax(axis=1) != y) < 0.2
    assert fit.history["not_private"]["objective"] < 0.7 * math.log(3)


@pytest.mark.parametrize("kind", ["numbers", "classes"])
@pytest.mark.parametrize("n", [1, 3])
def test_the_smallest_data_and_features_that_nobody_has(kind, n):
    for X in (np.zeros((n, 3)), np.full((n, 3), 1e300), np.full((n, 3), 5e-324), np.eye(n, 3)):
        fit = solvers.dp_pipeline(X, np.zeros(n), **KINDS[kind], epsilon=1.0, delta=1e-6, rng=0)
        assert np.isfinite(fit.coef).all() and np.isfinite(solvers.margins(fit, X)).all()


def test_labels_far_beyond_their_bound_give_no_warning():
    """A warning of NumPy would tell of a label that nothing else shows."""
    plan = solvers.plan("dp_pipeline", n=2, d=1, **NUMBERS | {"label_bound": 1e-100}, epsilon=1.0, delta=1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert solvers.bind(plan, [[1.0], [1.0]], [1e300, -1e300]).y.tolist() == [1.0, -1.0]


# --- audit ------------------------------------------------------------------------------------------------


def test_audit_of_the_whole_pipeline_of_numbers_and_a_twin_that_fails():
    """False alarms: 1e-6. The pair shows the descent, 89 % of the budget's mu^2."""
    plan = make_plan(60, 3, **NUMBERS)
    pair = audit.pairs.dp_pipeline(plan)
    assert pair.reach["releases"] > 0.9
    how = {"trials": 2000, "adversary": "releases", "confidence": 1 - 1e-6, "rng": 3}
    honest = audit.audit(plan, pair, plan.guarantee, **how)
    assert not honest.violated and honest.epsilon_lower <= 2.0
    assert audit.audit(plan.with_noise(factor=0.5), pair, plan.guarantee, **how).violated
