"""dp_pipeline: every stage moves by no more than planned and some by that much, its noise is the plan's, and prediction
prepares rows as the fit did."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from scipy.special import expit

from dptoolkit import audit, solvers
from dptoolkit.accounting import Composed
from dptoolkit.adjacency import Adjacency
from dptoolkit.audit import presets
from dptoolkit.data import Rows, check_rows, unit_rows
from dptoolkit.errors import InvalidValue
from dptoolkit.solvers import _pipeline_stages as scaling
from dptoolkit.solvers import _pipeline_stages as stages
from dptoolkit.solvers._pipeline import DESCENT, EIGENVALUE, MEANS, SCALE
from dptoolkit.solvers._pipeline_stages import Preparation
from dptoolkit.solvers.frame import rules
from tests.solvers.capture import Spy
from tests.strategies import neighbours

ROUNDING = 1 + 1e-10
REPLACE, ZERO = Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT
pytestmark = pytest.mark.filterwarnings("ignore::dptoolkit.solvers.DeltaWarning")


def problem(seed, n, d):
    rng = np.random.default_rng(seed)
    X = np.abs(rng.standard_normal((n, d))) * (rng.random((n, d)) < 0.5)
    return X, (X[:, 0] + 0.1 * rng.standard_normal(n) > X[:, 1]).astype(float)


def make_plan(n, d, epsilon=2.0, delta=1e-5, **more):
    return solvers.plan("dp_pipeline", n=n, d=d, epsilon=epsilon, delta=delta, **more)


def both(pair, query, adjacency):
    """The query on both data sets: one record replaced, or left out."""
    n = pair.X.shape[0]
    first = query(check_rows(pair.X), pair.y, np.full(n, 1 / n))
    if adjacency is REPLACE:
        return first, query(check_rows(pair.X2), pair.y2, np.full(n, 1 / n))
    share = np.full(n, 1 / n)
    share[pair.index] = 0.0
    return first, query(check_rows(pair.X), pair.y, share)


# --- sensitivities ---------------------------------------------------------------------------------------


@given(neighbours("binary"))
def test_unit_rows_have_norm_one_or_zero(pair):
    rows = unit_rows(check_rows(pair.X))
    norms = rows.row_norms()
    assert (norms <= 1).all()
    assert (np.isclose(norms, 1, atol=1e-12) | (check_rows(pair.X).largest_entries() == 0)).all()


@given(neighbours("binary"), st.sampled_from([REPLACE, ZERO]))
def test_column_means_move_by_no_more_than_planned(pair, adjacency):
    def query(rows, y, share):
        return stages.column_means(unit_rows(rows), share)

    first, second = both(pair, query, adjacency)
    planned = make_plan(*pair.X.shape, adjacency=adjacency).releases[MEANS].sensitivity
    assert np.linalg.norm(first - second) <= planned * ROUNDING


@given(neighbours("binary"), st.sampled_from([REPLACE, ZERO]), st.integers(0, 2**31))
def test_the_eigenvalue_moves_by_no_more_than_planned(pair, adjacency, seed):
    rng = np.random.default_rng(seed)
    d = pair.X.shape[1]
    prepared = Preparation.of(rng.standard_normal(d), 0.1)

    def query(rows, y, share):
        return stages.plane_eigenvalue(prepared(unit_rows(rows)), prepared.direction, share)

    first, second = both(pair, query, adjacency)
    planned = make_plan(*pair.X.shape, adjacency=adjacency).releases[EIGENVALUE].sensitivity
    assert abs(first - second) <= planned * ROUNDING


@given(neighbours("binary"), st.sampled_from([REPLACE, ZERO]), st.integers(1, 15), st.floats(0, 1e3))
def test_the_slope_moves_by_no_more_than_its_noise_is_for(pair, adjacency, trial, size):
    scale = math.exp(1.5 * (trial / 8 - 1))

    def query(rows, y, share):
        margins = size * np.asarray(unit_rows(rows).matrix @ np.ones(rows.shape[1]))
        return scaling.slope((2 * y - 1) * margins, scale, share)

    first, second = both(pair, query, adjacency)
    n = pair.X.shape[0]
    allowed = scaling.slope_range(adjacency, scale) / n
    assert abs(first - second) <= allowed * ROUNDING
    assert allowed <= make_plan(*pair.X.shape, adjacency=adjacency).releases[SCALE].sensitivity * ROUNDING


@given(st.floats(-1.5, 1.5))
def test_slope_range_is_the_range(log_scale):
    """Over all margins, on a fine grid: never above, and above 0.9999 of it."""
    scale = math.exp(log_scale)
    t = np.linspace(-rules.LARGEST_MARGIN, rules.LARGEST_MARGIN, 200_001)
    slopes = -t * expit(-scale * t)
    for adjacency, reached in ((REPLACE, np.ptp(slopes)), (ZERO, np.abs(slopes).max())):
        assert 0.9999 * scaling.slope_range(adjacency, scale) <= reached <= scaling.slope_range(adjacency, scale)


class Constant:
    """A source of noise whose every number is ``sign``."""

    def __init__(self, sign):
        self.sign = sign

    def standard_normal(self, shape=()):
        return np.full(shape, float(self.sign))


@pytest.mark.parametrize("many", [(), (3,)], ids=["one fit", "many fits"])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("classes", [None, 3])
@pytest.mark.parametrize("adjacency", [REPLACE, ZERO])
def test_the_noise_of_every_slope_is_for_the_range_at_its_own_scale(adjacency, classes, sign, many):
    """At zero weights a slope is its noise alone. The ranges differ by up to a quarter."""
    more = {} if classes is None else {"loss": "softmax", "classes": classes}
    plan = make_plan(50, 2, adjacency=adjacency, **more)
    labels = np.zeros(50) if classes is None else np.eye(3)[np.zeros(50, dtype=int)]
    run = plan.settings.bind(plan, check_rows(np.ones((50, 2))), labels)
    weights = np.zeros((*many, 2) if classes is None else (*many, classes, 2))
    slopes, _ = run._scaled(Rows(np.ones((50, 2)), False), weights, Constant(sign))
    release, log, move, ranges = plan.releases[SCALE], 0.0, 1.5, []
    for i in range(rules.HALVINGS):
        ranges.append(scaling.any_slope_range(adjacency, math.exp(log), classes) / plan.n)
        np.testing.assert_allclose(slopes[..., i], sign * ranges[-1] * release.scale / release.sensitivity, rtol=1e-12)
        move /= 2
        log -= sign * move
    smallest = scaling.scale_table(adjacency, classes)[1].min() / plan.n
    assert max(ranges) > 1.02 * smallest, "noise for the smallest range would be seen"


def test_column_means_and_eigenvalue_reach_what_is_planned():
    plan = make_plan(4, 2)
    share = np.full(4, 0.25)
    other = np.eye(2)[[0, 0, 0]]
    one, two = (unit_rows(Rows(np.vstack([other, row]), False)) for row in np.eye(2))
    moved = np.linalg.norm(stages.column_means(one, share) - stages.column_means(two, share))
    assert moved >= 0.9999 * plan.releases[MEANS].sensitivity
    prepared = Preparation(np.array([1.0, 1e-9]), np.array([1.0, 1.0]), rules.LEVEL)
    along, across = (stages.plane_eigenvalue(prepared(rows), prepared.direction, share) for rows in (one, two))
    assert along - across >= 0.9 * plan.releases[EIGENVALUE].sensitivity
    # Zero-out: the record that is left out has the whole of the mean to itself.
    left = make_plan(4, 2, adjacency="zero-out").releases[MEANS].sensitivity
    gone = np.array([0.25, 0.25, 0.25, 0.0])
    assert np.linalg.norm(stages.column_means(two, share) - stages.column_means(two, gone)) >= 0.9999 * left


def test_one_label_moves_the_gradient_as_planned():
    """The same row with the other label, near weights of zero: both residuals are at their bound."""
    plan = make_plan(3, 2, epsilon=math.inf)
    X = np.eye(2)[[0, 1, 1]]
    traces = [solvers.bind(plan, X, np.array([y, 0.0, 1.0]))(np.random.default_rng(0), True) for y in (0.0, 1.0)]
    first, second = (trace.releases[2] for trace in traces)
    planned = make_plan(3, 2).releases[DESCENT].sensitivity
    assert 0.9999 * planned <= np.linalg.norm(first - second) <= planned * ROUNDING


# --- plan -------------------------------------------------------------------------------------------------


@given(st.floats(1e-3, 50.0), st.sampled_from([1e-12, 1e-6, 1e-5, 0.01]), st.integers(1, 10**7),
       st.sampled_from(["replace-one", "zero-out"]))  # fmt: skip
def test_the_guarantee_is_at_most_the_budget_and_uses_it_up(epsilon, delta, n, adjacency):
    plan = make_plan(n, 5, epsilon=epsilon, delta=delta, adjacency=adjacency)
    assert epsilon * (1 - 1e-6) <= plan.guarantee.epsilon(delta) <= epsilon
    assert isinstance(plan.event, Composed) and len(plan.releases) == 4


def test_the_printed_budget_of_the_issue():
    plan = make_plan(20_242, 47_236)
    assert plan.guarantee.epsilon(1e-5) <= 2.0
    text = str(plan)
    for query in ("mean gradient", "column means", "largest eigenvalue", "slope in the scale"):
        assert query in text
    assert solvers.plan("dp_pipeline", n=20_242, d=47_236, **plan.settings.to_dict()) == plan


@pytest.mark.parametrize("wrong", [
    {"sparsity": 0}, {"sparsity": 9}, {"grad_norm": 0.0}, {"grad_norm": 2.0}, {"margin_noise": math.nan},
    {"calibration": "published"}, {"epsilon": 0.0}, {"delta": 0.0},
])  # fmt: skip
def test_bad_settings_are_refused(wrong):
    with pytest.raises(InvalidValue):
        make_plan(100, 5, **wrong)


# --- the run ----------------------------------------------------------------------------------------------


def specification(X, y, plan, normals=None):
    """All stages in plain NumPy, with the given standard normals in order: (weights, margins of the rows)."""
    drawn = iter(normals if normals is not None else [])
    scales = [release.scale for release in plan.releases]

    def noise(size):
        return next(drawn) if normals is not None else np.zeros(size)

    n, d = X.shape
    norms = np.linalg.norm(X, axis=1, keepdims=True)
    unit = np.divide(X, norms, out=np.zeros_like(X), where=norms > 0)
    means = np.abs(unit).mean(axis=0) + scales[MEANS] * noise(d)
    kept = np.flatnonzero(means > 1.5 * scales[MEANS])
    weighted = unit[:, kept] * means[kept] ** -0.25
    norms = np.linalg.norm(weighted, axis=1, keepdims=True)
    rows = np.hstack(
        [np.sqrt(0.96) * np.divide(weighted, norms, out=np.zeros_like(weighted), where=norms > 0), np.full((n, 1), 0.2)]
    )
    direction = means[kept] ** 0.75 / np.linalg.norm(means[kept] ** 0.75)
    plane = np.column_stack([np.abs(rows[:, :-1]) @ direction, rows[:, -1]])
    eigenvalue = np.linalg.eigvalsh(plane.T @ plane / n)[-1] + scales[EIGENVALUE] * noise(1)[0]
    bound = min(max(eigenvalue + 2 * scales[EIGENVALUE], 0.04), 1.0)
    steps, step = plan.settings.schedule(plan, bound)
    z = np.zeros(len(kept) + 1)
    for _ in range(steps):
        s = plan.settings.sparsity
        w = z.copy()
        if s is not None and s < len(kept):
            w[np.argsort(-np.abs(z[:-1]))[s:]] = 0.0
        residual = np.clip(expit(rows @ w) - y, -0.25, 0.25)
        z -= step * (rows.T @ residual / n + scales[DESCENT] * math.sqrt(steps) * noise(len(z)))
    w = z.copy()
    if s is not None and s < len(kept):
        w[np.argsort(-np.abs(z[:-1]))[s:]] = 0.0
    t = np.clip((2 * y - 1) * (rows @ w), -6, 6)
    low, high = -1.5, 1.5
    for _ in range(4):
        c = math.exp((low + high) / 2)
        ranged = scaling.slope_range(plan.adjacency, c) / scaling.largest_slope(plan.adjacency)
        slope = np.mean(-t * expit(-c * t)) + scales[SCALE] * ranged * noise(1)[0]
        low, high = (low, (low + high) / 2) if slope > 0 else ((low + high) / 2, high)
    out = np.zeros(d + 1)
    out[kept], out[-1] = w[:-1], 0.2 * w[-1]
    return out * math.exp((low + high) / 2), rows @ w * math.exp((low + high) / 2)


@pytest.mark.parametrize("sparsity", [None, 2])
@pytest.mark.parametrize("epsilon", [math.inf, 3.0])
@pytest.mark.parametrize("form", [np.array, sparse.csr_matrix])
def test_a_run_is_the_specification_with_its_recorded_noise(form, epsilon, sparsity):
    X, y = problem(3, 200, 6)
    plan = make_plan(*X.shape, epsilon=epsilon, sparsity=sparsity)
    spy = Spy(1)
    found = solvers.bind(plan, form(X), y)(spy).weights
    normals = [drawn.ravel() for drawn in spy.of("standard_normal")] if math.isfinite(epsilon) else None
    expected, _ = specification(X, y, plan, normals)
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-10)
    if normals is not None:
        weaker, _ = specification(X, y, plan, [0.9 * drawn for drawn in normals])
        assert not np.allclose(found, weaker, rtol=1e-3)


@pytest.mark.parametrize("form", [np.array, sparse.csr_matrix])
def test_margins_prepare_new_rows_as_the_fit_did(form):
    X, y = problem(4, 300, 8)
    fit = solvers.dp_pipeline(form(X), y, epsilon=math.inf)
    _, expected = specification(X, y, fit.plan)
    np.testing.assert_allclose(solvers.margins(fit, form(X)), expected, rtol=1e-8, atol=1e-10)
    # One by one, at other lengths and with a row of zeros: rows do not know of each other.
    alone = [solvers.margins(fit, form(7.0 * X[[i]]))[0] for i in range(5)]
    np.testing.assert_allclose(alone, expected[:5], rtol=1e-8, atol=1e-10)
    assert solvers.margins(fit, form(np.zeros((1, 8))))[0] == pytest.approx(fit.intercept)
    narrow = solvers.margins(fit, form(X[:, :5]), n_features=8)
    assert narrow.shape == (300,)
    with pytest.raises(InvalidValue):
        solvers.margins(fit, form(X[:, :5]))


def test_margins_of_other_solvers_are_plain():
    X, y = problem(5, 50, 3)
    fit = solvers.dp_dual_averaging(X, y, loss="logistic", row_norm=1.0, epsilon=1.0, delta=1e-6, rng=0)
    np.testing.assert_array_equal(solvers.margins(fit, X), X @ fit.coef)


def test_counts_stand_for_rows():
    X, y = problem(6, 40, 4)
    plan = make_plan(80, 4)
    counted = solvers.bind(plan, X, y, np.full(40, 2))(np.random.default_rng(1)).weights
    written = solvers.bind(plan, np.vstack([X, X]), np.append(y, y))(np.random.default_rng(1)).weights
    np.testing.assert_allclose(counted, written, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_the_smallest_data_and_features_that_nobody_has(n):
    for X in (np.zeros((n, 3)), np.full((n, 3), 1e300), np.full((n, 3), 5e-324), np.eye(n, 3)):
        fit = solvers.dp_pipeline(X, np.zeros(n), epsilon=1.0, delta=1e-6, rng=0)
        assert np.isfinite(fit.coef).all() and math.isfinite(fit.intercept)
        assert np.isfinite(solvers.margins(fit, X)).all()


def test_it_learns():
    X, y = problem(7, 4000, 20)
    fit = solvers.dp_pipeline(X, y, epsilon=2.0, delta=1e-5, rng=1)
    assert np.mean((solvers.margins(fit, X) > 0) == y) > 0.8
    sparse_fit = solvers.dp_pipeline(X, y, epsilon=2.0, delta=1e-5, sparsity=2, rng=1, trace=10, diagnostics=True)
    assert set(np.flatnonzero(sparse_fit.coef)) == {0, 1}
    assert sparse_fit.history["not_private"]["objective"] < math.log(2)
    assert len(sparse_fit.history["iterates"][-1][1]) <= 3


# --- audit ------------------------------------------------------------------------------------------------


def test_audit_of_the_whole_pipeline_and_a_twin_that_fails():
    """False alarms: 1e-6. The pair shows the descent, 87 % of the budget's mu^2."""
    plan = presets.plan("dp_pipeline", 2.0, 1e-5)
    pair = presets.pair(plan)
    assert pair.reach["releases"] > 0.9
    how = {"trials": 3000, "adversary": "releases", "confidence": 1 - 1e-6, "rng": 3}
    honest = audit.audit(plan, pair, plan.guarantee, **how)
    assert not honest.violated and honest.epsilon_lower <= 2.0
    assert audit.audit(plan.with_noise(factor=0.5), pair, plan.guarantee, **how).violated


def test_the_final_model_shows_part_of_it_and_large_plans_have_no_ratio():
    """Without noise to speak of the margin of the row tells the two apart; with the plan's it stays within."""
    plan = presets.plan("dp_pipeline", 2.0, 1e-5)
    how = {"trials": 1500, "adversary": "final", "confidence": 1 - 1e-6, "rng": 3}
    assert not audit.audit(plan, presets.pair(plan), plan.guarantee, **how).violated
    assert audit.audit(plan.with_noise(factor=0.02), presets.pair(plan), plan.guarantee, **how).violated
    assert set(audit.pairs.dp_pipeline(make_plan(20_000, 3)).scores) == {"final"}
