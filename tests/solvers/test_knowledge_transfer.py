"""Knowledge transfer: every teacher's movement, the budget of all releases together, noise, and planted faults."""

from __future__ import annotations

import json
import math
import tracemalloc
import warnings
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from dptoolkit import audit, losses, solvers
from dptoolkit.accounting import ApproxDp, Composed, ExponentialMechanism, Gaussian, Laplace, Ledger, Repeated, account
from dptoolkit.adjacency import Adjacency
from dptoolkit.audit import presets
from dptoolkit.audit.claims import as_claim
from dptoolkit.data import check_rows, clip_entries, clip_rows
from dptoolkit.errors import InvalidValue
from dptoolkit.mechanisms.stability import StabilityTest, top_with_gap
from dptoolkit.optimise import minimise
from dptoolkit.solvers import (
    _knowledge_transfer_features as public_features,
)
from dptoolkit.solvers import (
    _knowledge_transfer_teachers as teachers,
)
from dptoolkit.solvers import (
    _knowledge_transfer_teachers as transfer_run,
)
from dptoolkit.solvers._knowledge_transfer_teachers import Ridge
from tests.solvers.capture import Spy

ARGUMENTS = {"loss": "huber", "feature_bound": 1.0, "row_norm": 1.5, "sparsity": 3, "epsilon": 2.0, "delta": 1e-5}
TEACHERS = {
    "support": {},
    "ridge": {},
    "propose-test-release": {},
    "dp-ight": {"feature_bound": None, "steps": 5, "step_size": 0.1},
}
RELATIONS = list(Adjacency)


def make_plan(teacher="support", n=200, d=20, **changes):
    return solvers.plan("knowledge_transfer", n=n, d=d, teacher=teacher, **ARGUMENTS | TEACHERS[teacher] | changes)


def sparse_problem(n=4000, d=30, seed=0):
    rng = np.random.default_rng(seed)
    X, truth = rng.uniform(-1, 1, (n, d)), np.zeros(d)
    truth[[4, 9, 21]] = 1.0, -1.0, 0.8
    return X, X @ truth + 0.1 * rng.standard_normal(n), truth


# --- plans ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("adjacency", RELATIONS)
@pytest.mark.parametrize("teacher", TEACHERS)
@pytest.mark.parametrize("share", [0.2, 0.7])
def test_all_releases_together_spend_the_budget_and_no_more(teacher, adjacency, share):
    plan = make_plan(teacher, adjacency=adjacency, selection_share=share)
    assert 2.0 * (1 - 1e-4) < plan.guarantee.epsilon(1e-5) <= 2.0
    if teacher == "support":
        support = plan.releases[1]
        assert support.event == ExponentialMechanism(support.sensitivity / support.scale) and support.count == 3
        assert account(Repeated(support.event, 3)).epsilon(share * 1e-5) <= 2.0 * share


def test_the_failure_of_a_test_is_charged():
    test = make_plan("propose-test-release", selection_share=0.5).releases[1]
    laplace, failure = test.event.events
    assert laplace == Laplace(test.scale / test.sensitivity) and failure.epsilon == 0
    assert 0.5e-5 * (1 - 1e-6) < failure.delta <= 0.5e-5 * (1 + 1e-9)
    assert 1 / laplace.noise_multiplier <= 1.0


@pytest.mark.parametrize("teacher", TEACHERS)
def test_plans_survive_json(teacher):
    plan = make_plan(teacher)
    record = json.loads(plan.to_json())
    again = solvers.plan(record["solver"], n=record["n"], d=record["d"], **record["settings"])
    assert again == plan and again.fingerprint == plan.fingerprint


def test_a_given_matrix_is_known_by_its_entries():
    public = np.random.default_rng(0).standard_normal((300, 20))
    other = public.copy()
    other[150, 10] += 1e-9
    one, same, two, rare = (make_plan(features=f) for f in (public, public.copy(), other, sparse.csr_matrix(public)))
    assert one == same and one.fingerprint == same.fingerprint
    assert one != two and len({plan.fingerprint for plan in (one, two, rare)}) == 3
    assert one.settings.features.digest in one.to_json()
    # The same norm, so that only the entries tell them apart.
    swapped = make_plan(features=public[:, ::-1])
    assert swapped.settings.features != one.settings.features and swapped.fingerprint != one.fingerprint


@pytest.mark.parametrize(("change", "name"), [
    ({"sparsity": 0}, "sparsity"), ({"sparsity": 21}, "sparsity"), ({"loss": "softmax"}, "loss"),
    ({"loss": "squared"}, "label_bound"), ({"label_bound": 1.0}, "label_bound"), ({"l2": 0.0}, "l2"),
    ({"row_norm": None, "feature_bound": None}, "row_norm"), ({"feature_bound": -1.0}, "feature_bound"),
    ({"radius": 0.0}, "radius"), ({"selection_share": 1.0}, "selection_share"), ({"student_steps": 0}, "student_steps"),
    ({"m": 2}, "m=2: must be >= sparsity"), ({"m": 10**9}, "features='identity'"), ({"m": 1.5}, "m=1.5"),
    ({"features": "cauchy"}, "features"), ({"features": np.zeros((9, 20))}, "zeros"), ({"steps": 3}, "steps"),
    ({"features": np.ones((9, 19))}, "as wide"), ({"features": np.full((9, 20), np.nan)}, "features"),
    ({"features": "identity", "m": 4}, "identity"), ({"features": np.ones((9, 20)), "m": 8}, "m=8"),
    ({"features": {"a": 1}}, "features"), ({"feature_seed": -1}, "feature_seed"), ({"step_size": 1.0}, "step_size"),
    ({"teacher": "ight"}, "flips its support"), ({"teacher": "guru"}, "teacher"),
    ({"calibration": "published"}, "teacher"), ({"teacher": "dp-ight"}, "feature_bound"),
    ({"teacher": None, "calibration": "published", "adjacency": "zero-out"}, "adjacency"),
])  # fmt: skip
def test_bad_input_is_refused_by_name_and_spends_nothing(change, name):
    ledger = Ledger(5.0, 1e-4)
    X, y, _ = sparse_problem(200)
    with pytest.raises(InvalidValue, match=name):
        solvers.knowledge_transfer(X[:, :20], y, ledger=ledger, **ARGUMENTS | {"teacher": "support"} | change)
    assert not ledger.entries and not ledger.reserved


# --- the choice of the support --------------------------------------------------------------------


def scores_of(X, y, loss, bound, by_entries):
    rows = clip_entries(check_rows(X), bound) if by_entries else clip_rows(check_rows(X), bound)
    return teachers.scores(rows, y, losses.get(loss))


def range_of(loss, relation, n, bound, by_entries, label=1.0):
    bounds = (None, bound) if by_entries else (bound, None)
    return teachers.scores_range(losses.get(loss), relation, n, *bounds, label if loss == "squared" else None)


@settings(max_examples=60)
@given(st.sampled_from(["huber", "logistic", "squared"]), st.integers(0, 10**6), st.sampled_from(RELATIONS),
       st.booleans(), st.sampled_from([1.0, 1e-200, 1e200]))  # fmt: skip
def test_one_record_moves_scores_by_at_most_the_range(loss, seed, relation, by_entries, size):
    rng = np.random.default_rng(seed)
    n, d, bound = int(rng.integers(1, 8)), 4, 0.7
    X, y = size * rng.standard_normal((n, d)), rng.integers(0, 2, n) * 1.0
    X2, y2 = X.copy(), y.copy()
    X2[0] = 0.0 if relation is Adjacency.ZERO_OUT else -X[0] * rng.choice([-1, 1], d)
    y2[0] = 1 - y[0]
    moved = scores_of(X, y, loss, bound, by_entries) - scores_of(X2, y2, loss, bound, by_entries)
    assert np.ptp(moved) <= range_of(loss, relation, n, bound, by_entries)


@pytest.mark.parametrize("by_entries", [True, False])
@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("loss", ["huber", "logistic", "squared"])
def test_some_pair_reaches_the_range_and_scores_counted_twice_exceed_it(loss, relation, by_entries):
    n, bound = 5, 0.7
    size = bound if by_entries else bound / math.sqrt(2)
    X, y = np.full((n, 2), size), np.ones(n)
    X[0] = size, -size
    X2 = X.copy()
    X2[0] *= -1 if relation is Adjacency.REPLACE_ONE else 0
    moved = np.ptp(scores_of(X, y, loss, bound, by_entries) - scores_of(X2, y, loss, bound, by_entries))
    allowed = range_of(loss, relation, n, bound, by_entries)
    assert 0.999999 * allowed < moved <= allowed
    assert 2 * moved > allowed


def test_a_test_of_stability_is_private_in_both_cases():
    """Neighbours either choose alike, or both have gaps within the sensitivity; the gap moves by no more than that."""
    rng = np.random.default_rng(0)
    flips = 0
    for _ in range(2000):
        scores = rng.uniform(0, 1, 6)
        neighbour = scores + rng.uniform(0, 0.2) + rng.uniform(-0.1, 0.1, 6)
        moved = np.ptp(neighbour - scores)
        (one, gap), (two, gap2) = top_with_gap(scores, 3), top_with_gap(neighbour, 3)
        assert abs(gap - gap2) <= moved + 1e-12
        if not np.array_equal(one, two):
            flips += 1
            assert max(gap, gap2) <= moved
    assert flips > 100


@pytest.mark.parametrize("threshold", [0.0, 0.4, 1.0, 3.0])
def test_a_test_is_passed_as_often_as_it_says(threshold):
    """At a gap of the sensitivity, the most at which a neighbour may choose otherwise: 6 standard errors of 4000."""
    test = StabilityTest(0.5, 1.0, threshold)
    rng = np.random.default_rng(1)
    passed = np.mean([test.test(1.0, rng)[0] for _ in range(4000)])
    assert passed == pytest.approx(test.failure, abs=6 * math.sqrt(0.25 / 4000))
    expected = Composed(Laplace(0.5), ApproxDp(0.0, test.failure))
    assert test.event == expected


# --- the ridge ------------------------------------------------------------------------------------


def ridge(loss, n=6, width=3, row_norm=0.8, l2=0.05, radius=None, relation=Adjacency.REPLACE_ONE):
    label = 1.3 if loss == "squared" else None
    return Ridge(losses.get(loss), n, width, row_norm, l2, label, radius, relation)


@settings(max_examples=40)
@given(st.sampled_from(["huber", "logistic", "squared"]), st.integers(0, 10**6), st.sampled_from(RELATIONS),
       st.sampled_from([1e-3, 0.1, 10.0]), st.sampled_from([None, 0.5]))  # fmt: skip
def test_one_record_moves_a_ridge_by_at_most_its_movement(loss, seed, relation, l2, radius):
    teacher = ridge(loss, l2=l2, radius=radius, relation=relation)
    rng = np.random.default_rng(seed)
    X, y = 2 * rng.standard_normal((6, 3)), rng.integers(0, 2, 6) * 1.0
    X2, y2 = X.copy(), y.copy()
    X2[0] = 0.0 if relation is Adjacency.ZERO_OUT else -X[0]
    y2[0] = 1 - y[0]
    one, two = (teacher.fit(check_rows(a), b) for a, b in ((X, y), (X2, y2)))
    assert np.linalg.norm(one - two) <= teacher.movement
    assert max(np.linalg.norm(one), np.linalg.norm(two)) <= teacher.largest + teacher.tau / teacher.sums.l2


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(("loss", "l2"), [("huber", 0.1), ("logistic", 1e3), ("squared", 1e5)])
def test_some_pair_reaches_the_movement(loss, l2, relation):
    """Straight losses reach all of it, the others where the ridge is strong."""
    teacher = ridge(loss, l2=l2, relation=relation)
    far = {"huber": 1e3, "logistic": 1.0, "squared": 1.3}[loss]
    X, y = np.zeros((6, 3)), np.zeros(6)
    X[0, 0], y[0] = 0.8, far
    X2, y2 = X.copy(), y.copy()
    if relation is Adjacency.ZERO_OUT:
        X2[0] = 0.0
    else:
        y2[0] = 0.0 if loss == "logistic" else -far
    moved = np.linalg.norm(teacher.fit(check_rows(X), y) - teacher.fit(check_rows(X2), y2))
    assert 0.99 * teacher.movement < moved <= teacher.movement


@pytest.mark.parametrize("l2", [1e-4, 0.3])
def test_the_largest_ridge_of_the_squared_loss_is_reached(l2):
    """Rows of size sqrt(l2) with labels at their bound; so the ball in which it is looked for never cuts it."""
    teacher = ridge("squared", l2=l2)
    X = np.zeros((6, 3))
    X[:, 0] = math.sqrt(l2)
    found = np.linalg.norm(teacher.fit(check_rows(X), np.full(6, 1.3)))
    assert found == pytest.approx(1.3 / (2 * math.sqrt(l2)), rel=1e-3)
    assert found <= teacher.largest * (1 + 1e-9)


@pytest.mark.parametrize("layout", [np.array, sparse.csr_matrix], ids=["dense", "csr"])
@pytest.mark.parametrize("loss", ["huber", "logistic", "squared"])
def test_the_certificate_holds_and_a_point_beyond_it_is_refused(loss, layout):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((50, 3)), rng.integers(0, 2, 50) * 1.0
    teacher = ridge(loss, n=50)
    problem = teacher.problem(check_rows(layout(X)), y)
    found = minimise.minimise(problem, teacher.tau)
    assert minimise.verified_bound(problem, found) <= teacher.tau
    # Without a computer's help: the gradient of the sum at what is taught (the squared loss stays inside its ball).
    theta = teacher.fit(check_rows(layout(X)), y)
    dense = clip_rows(check_rows(X), 0.8).matrix
    gradient = dense.T @ teacher.loss.residual(dense @ theta, y) + teacher.sums.l2 * theta
    assert np.linalg.norm(gradient) <= teacher.tau
    off = found._replace(theta=found.theta + 1.1 * teacher.tau / teacher.sums.l2 * np.array([1.0, 0, 0]))
    assert minimise.verified_bound(problem, off) > teacher.tau


@pytest.mark.parametrize("loss", ["huber", "logistic", "squared"])
def test_both_teachers_are_charged_for_their_rounding(loss):
    """Each rounds its entries to doubles, in opposite directions at worst. With many records that is what counts."""
    teacher = ridge(loss, n=10**6)
    exact = Fraction(teacher.sums.movement(teacher.adjacency, teacher.tau))
    both = 2 * Fraction(2) ** -53 * Fraction(teacher.furthest)
    assert exact + both <= Fraction(teacher.movement) <= exact + both * Fraction(101, 100)


def test_a_tolerance_that_is_not_charged_is_exceeded(monkeypatch):
    """Teachers that err by all they may, in opposite directions, move by more than exact ones can."""
    teacher = ridge("huber")
    X, y = np.zeros((6, 3)), np.zeros(6)
    X[0, 0], y[0] = 0.8, 1e3
    real = minimise.minimise

    def worst(problem, tau):
        found = real(problem, tau * 1e-6)
        return found._replace(theta=found.theta + 0.999 * tau / problem.l2 * np.sign(found.theta[0]) * np.eye(3)[0])

    monkeypatch.setattr(minimise, "minimise", worst)
    moved = np.linalg.norm(teacher.fit(check_rows(X), y) - teacher.fit(check_rows(X), -y))
    exact = 2 * teacher.sums.gradient / teacher.sums.l2
    assert exact < moved <= teacher.movement


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("loss", ["huber", "logistic", "squared"])
def test_the_second_double_of_a_certified_teacher_is_dropped_and_charged(loss, relation, monkeypatch):
    """A certified point has two doubles an entry, of which a teacher keeps the first; computed in fractions."""
    teacher = ridge(loss, relation=relation)
    size = (teacher.largest + teacher.tau / teacher.sums.l2) * (1 - 1e-12)
    theta = size * np.array([0.6, 0.8, 0.0])
    # The most that a second double can be is half a unit of the first one's last digit.
    remainder = 0.999 * np.spacing(theta) / 2 * np.array([1.0, 1.0, 0.0])
    point = minimise.Solution(theta, remainder, np.zeros((2, 3)), 0.0, "extended", 0)
    monkeypatch.setattr(minimise, "minimise", lambda problem, tau: point)
    taught = teacher.fit(check_rows(np.zeros((6, 3))), np.zeros(6))
    off = [Fraction(a) - Fraction(b) - Fraction(c) for a, b, c in zip(taught, theta, remainder, strict=True)]
    assert sum(part * part for part in off) > 0, "twin: with both doubles there would be nothing to charge"
    exact = Fraction(teacher.sums.sensitivity(relation)) + 2 * Fraction(teacher.tau)
    charged = Fraction(teacher.movement) - exact / Fraction(teacher.sums.l2)
    assert charged >= 0 and charged**2 >= 4 * sum(part * part for part in off)


def test_the_default_l2_falls_with_the_budget_and_the_data():
    loose, strict, many = (make_plan(epsilon=e, n=n).settings.l2 for e, n in ((8.0, 200), (0.5, 200), (8.0, 4000)))
    assert many < loose < strict


# --- public features ------------------------------------------------------------------------------


@settings(max_examples=40)
@given(st.integers(1, 30), st.integers(1, 30), st.integers(0, 10**6), st.booleans(), st.sampled_from([1e-120, 1, 1e90]))
def test_the_operator_norm_is_bounded_from_above_and_tightly(m, d, seed, rare, size):
    rng = np.random.default_rng(seed)
    matrix = size * rng.standard_normal((m, d)) * (rng.random((m, d)) < 0.3 if rare else 1.0)
    matrix[0, 0] = size
    bound = public_features.operator_norm(sparse.csr_matrix(matrix) if rare else matrix)
    true = np.linalg.norm(matrix, 2)
    assert true * (1 - 1e-14) <= bound <= true * (1 + 1e-6)


def test_long_matrices_have_an_upper_bound_too(monkeypatch):
    monkeypatch.setattr(public_features, "LONGEST_SIDE", 0)
    rng = np.random.default_rng(0)
    matrix = sparse.random(60, 40, 0.1, random_state=rng, format="csr")
    true = np.linalg.norm(matrix.toarray(), 2)
    assert true <= public_features.operator_norm(matrix) <= 1.1 * true
    signed = matrix.multiply(rng.choice([-1, 1], (60, 40))).tocsr()
    assert np.linalg.norm(signed.toarray(), 2) <= public_features.operator_norm(signed)


def test_features_are_drawn_from_the_public_seed_alone():
    one, two = (make_plan(feature_seed=seed).settings.matrix(20) for seed in (0, 1))
    assert one.shape == (300, 3) and not np.array_equal(one, two)
    np.testing.assert_array_equal(one, make_plan(epsilon=1.0).settings.matrix(20))
    assert np.abs(make_plan(features="uniform").settings.matrix(20)).max() <= 1


def answers_apart(plan, pair):
    """How far the exact answers are apart on a pair, for a ridge on all features."""
    one, two = (solvers.bind(plan, c.X, c.y, c.counts).ridge(None) for c in pair)
    return np.linalg.norm(plan.settings.matrix(plan.d) @ (one - two))


@pytest.mark.parametrize("adjacency", RELATIONS)
@pytest.mark.parametrize("features", ["gaussian", "identity", "given"])
def test_answers_move_by_the_sensitivity_and_no_more(features, adjacency):
    public = np.random.default_rng(1).standard_normal((9, 4)) if features == "given" else features
    plan = make_plan("ridge", n=30, d=4, features=public, feature_bound=None, l2=0.5, adjacency=adjacency)
    moved = answers_apart(plan, presets.pair(plan))
    assert 0.9999 * plan.sensitivity < moved <= plan.sensitivity


def test_an_operator_norm_that_is_too_small_is_exceeded(monkeypatch):
    real = public_features.operator_norm
    monkeypatch.setattr(public_features, "operator_norm", lambda matrix: 0.99 * real(matrix))
    public = np.random.default_rng(2).standard_normal((9, 4))
    plan = make_plan("ridge", n=30, d=4, features=public, feature_bound=None, l2=0.5)
    assert answers_apart(plan, presets.pair(plan)) > plan.sensitivity


def test_a_part_of_a_given_matrix_needs_less_noise_for_the_same_event():
    X, y, truth = sparse_problem()
    public = np.random.default_rng(3).standard_normal((400, 30))
    how = ARGUMENTS | {"epsilon": 50.0, "features": public}
    fit = solvers.knowledge_transfer(X, y, rng=0, **how)
    chosen = fit.history["support"]
    np.testing.assert_array_equal(chosen, np.flatnonzero(truth))
    norms = [np.linalg.norm(matrix, 2) for matrix in (public[:, chosen], public)]
    assert fit.history["noise_scale"] / fit.plan.noise == pytest.approx(norms[0] / norms[1], rel=1e-6)
    assert np.linalg.norm(fit.coef - truth) < 0.5


@pytest.mark.parametrize("layout", [np.asarray, sparse.csr_matrix])
@pytest.mark.parametrize("size", [0.0, 1e-300, 1e-145])
def test_a_support_of_empty_public_columns_is_answered_after_its_release(layout, size):
    X, y, truth = sparse_problem()
    public = np.random.default_rng(3).standard_normal((40, 30))
    public[:, truth != 0] *= size
    fit = solvers.knowledge_transfer(X, y, rng=0, **ARGUMENTS | {"epsilon": 50.0, "features": layout(public)})
    np.testing.assert_array_equal(fit.history["support"], np.flatnonzero(truth))
    assert fit.history["noise_scale"] > 0 and np.isfinite(fit.coef).all()


# --- a fit ----------------------------------------------------------------------------------------


def test_the_draws_are_the_planned_noise_on_the_scores_then_on_the_answers():
    X, y, truth = sparse_problem()
    spy = Spy(0)
    fit = solvers.knowledge_transfer(X, y, rng=spy, **ARGUMENTS | {"epsilon": 20.0})
    assert [name for name, _ in spy.draws] == ["standard_exponential", "standard_normal"]
    answers, support = fit.plan.releases
    gumbel = -support.scale * np.log(spy.of("standard_exponential")[0])
    run = solvers.bind(fit.plan, X, y)
    np.testing.assert_array_equal(fit.history["support"], np.sort(np.argsort(-(run.scores + gumbel))[:3]))
    np.testing.assert_array_equal(fit.history["support"], np.flatnonzero(truth))
    public = fit.plan.settings.matrix(30)
    noisy = public @ run.ridge(fit.history["support"]) + answers.scale * spy.of("standard_normal")[0]
    student = np.linalg.lstsq(public, noisy, rcond=None)[0]
    np.testing.assert_allclose(fit.coef[fit.history["support"]], student, rtol=1e-6)
    assert set(fit.history) == {"noise_scale", "support", "selection_scale"}


def test_a_test_draws_laplace_noise_and_refuses_what_one_record_decides():
    X, y, truth = sparse_problem()
    how = ARGUMENTS | {"teacher": "propose-test-release", "epsilon": 20.0}
    spy = Spy(0)
    fit = solvers.knowledge_transfer(X, y, rng=spy, **how)
    assert [name for name, _ in spy.draws] == ["standard_exponential"] * 2 + ["standard_normal"]
    first, second = spy.of("standard_exponential")
    run = solvers.bind(fit.plan, X, y)
    gap = top_with_gap(run.scores, 3)[1]
    assert fit.history["noisy_gap"] == pytest.approx(gap + fit.plan.releases[1].scale * (first - second)[0], rel=1e-12)
    assert fit.history["stable"] and set(np.flatnonzero(fit.coef)) == set(np.flatnonzero(truth))
    # Two features alike, of which one is to be chosen: one record decides.
    twice = np.column_stack([X[:, 4], X[:, 4], X[:, 9], X[:, 21]])
    refused = solvers.knowledge_transfer(twice, y, rng=0, **how | {"sparsity": 1})
    assert not refused.history["stable"] and not refused.coef.any() and "support" not in refused.history


@pytest.mark.parametrize("layout", [np.array, sparse.csr_matrix], ids=["dense", "csr"])
def test_without_noise_it_is_ridge_on_the_largest_correlations(layout):
    X, y, _ = sparse_problem(500)
    how = {"loss": "squared", "sparsity": 3, "label_bound": 10.0, "feature_bound": 1.0, "l2": 0.1}
    chosen = np.sort(np.argsort(-np.abs(X.T @ y))[:3])
    part = X[:, chosen]
    by_hand = np.linalg.solve(part.T @ part / 500 + 0.1 * np.eye(3), part.T @ y / 500)
    for teacher in ("support", "propose-test-release"):
        fit = solvers.knowledge_transfer(layout(X), y, teacher=teacher, epsilon=math.inf, **how)
        np.testing.assert_array_equal(np.flatnonzero(fit.coef), chosen)
        np.testing.assert_allclose(fit.coef[chosen], by_hand, rtol=1e-4)
    full = solvers.knowledge_transfer(layout(X), y, teacher="ridge", epsilon=math.inf, **how)
    whole = np.linalg.solve(X.T @ X / 500 + 0.1 * np.eye(30), X.T @ y / 500)
    top = np.sort(np.argsort(-np.abs(whole))[:3])
    np.testing.assert_allclose(full.coef[top], whole[top], rtol=1e-4)
    assert np.count_nonzero(full.coef) == 3


def test_a_private_teacher_needs_no_second_noise():
    X, y, _ = sparse_problem(500)
    how = ARGUMENTS | TEACHERS["dp-ight"]
    plan = make_plan("dp-ight", n=500, d=30)
    alone = solvers.plan("dp_ight", n=500, d=30, **{k: v for k, v in how.items() if k != "feature_bound"})
    assert plan.releases == alone.releases and plan.releases[0].event == Gaussian(plan.noise / plan.sensitivity)
    one = solvers.bind(plan, X, y)(np.random.default_rng(0)).weights
    two = solvers.bind(alone, X, y)(np.random.default_rng(0)).weights
    np.testing.assert_allclose(one, two, atol=1e-9)


def test_the_student_of_a_private_teacher_shows_what_the_teacher_does():
    """The worst pair of dp_ight, seen through the student alone. False alarms 1e-6; half of the noise is refuted."""
    how = {"loss": "huber", "row_norm": 1.0, "sparsity": 2, "steps": 5, "step_size": 0.5, "epsilon": 2.0, "delta": 1e-5}
    plan = solvers.plan("knowledge_transfer", teacher="dp-ight", n=100, d=4, student_steps=10, m=20, **how)
    pair = audit.pairs.dp_ight(solvers.plan("dp_ight", n=100, d=4, **how))
    claim = as_claim(plan.guarantee)
    assert not audit.evidence(plan, pair, claim, trials=500, alpha=1e-6).refuted
    assert audit.evidence(plan.with_noise(factor=0.5), pair, claim, trials=1500, alpha=1e-6).refuted


@pytest.mark.parametrize("loss", ["logistic", "huber", "squared"])
def test_every_loss_finds_the_features(loss):
    X, y, truth = sparse_problem()
    y = (y > 0) * 1.0 if loss == "logistic" else y
    label = {"label_bound": 2.0} if loss == "squared" else {}
    fit = solvers.knowledge_transfer(X, y, rng=0, **ARGUMENTS | {"loss": loss, "epsilon": 8.0} | label)
    np.testing.assert_array_equal(np.flatnonzero(fit.coef), np.flatnonzero(truth))
    assert np.corrcoef(fit.coef, truth)[0, 1] > 0.9


def test_wide_sparse_data_need_no_wide_matrix():
    """At d = 47,236 a fit holds scores, a few columns and m x s public features."""
    d = 47_236
    X = sparse.random(2000, d, 0.001, random_state=np.random.default_rng(0), format="csr")
    y = np.asarray(X[:, :50].sum(axis=1)).ravel() > 0
    how = {"loss": "logistic", "sparsity": 20, "row_norm": 1.0, "epsilon": 2.0, "delta": 1e-6}
    for teacher, most in (("support", 20e6), ("ridge", 20e6)):
        solvers.knowledge_transfer(X, y, rng=0, teacher=teacher, **how)
        tracemalloc.start()
        fit = solvers.knowledge_transfer(X, y, rng=0, teacher=teacher, **how)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert np.count_nonzero(fit.coef) == 20 and peak < most


# --- the published version ------------------------------------------------------------------------


def flip_plan(**changes):
    how = {"n": 101, "d": 2, "loss": "squared", "l2": 1.0, "row_norm": 1.0, "feature_bound": 1.0, "label_bound": 1.0,
           "sparsity": 1, "epsilon": 1.0, "delta": 1e-5, "calibration": "published"}  # fmt: skip
    return solvers.plan("knowledge_transfer", **how | changes)


def test_the_published_noise_is_that_of_the_theorem_and_guarantees_nothing():
    plan = flip_plan()
    # gamma = K (Y + K sqrt(s) Y/sqrt(lambda)) = 2, beta = 1 for Gaussian features, m = n.
    variance = 8 * 101 * 1 * 1 * 2**2 * math.log(2.5 / 1e-5) / (101 * 1.0 * 1.0) ** 2
    assert plan.noise == pytest.approx(math.sqrt(variance), rel=1e-12)
    assert plan.guarantee.epsilon(1e-5) == math.inf and plan.guarantee.claimed.epsilon == 1.0
    text = str(plan.guarantee)
    assert "flip the support" in text and "NOT certified" in text
    uniform = flip_plan(features="uniform")
    assert uniform.noise == pytest.approx(plan.noise / math.sqrt(3), rel=1e-12)


def test_one_record_flips_the_support_of_the_published_teacher():
    plan = flip_plan()
    one, two = (solvers.bind(plan, c.X, c.y, c.counts).ight() for c in presets.pair(plan))
    share = 51 / 101
    np.testing.assert_allclose([one, two], [[share / (share + 1), 0], [0, share / (share + 1)]], rtol=1e-9)
    assert np.linalg.norm(one - two) > 10 * plan.sensitivity / np.linalg.norm(plan.settings.matrix(2), 2)


def test_the_published_teacher_is_refuted_at_once():
    """300 trials are a fraction of a second; a true claim would be refuted with probability 1e-6."""
    plan = presets.plan("knowledge_transfer", 1.0, 1e-5, published=True)
    report = audit.audit(plan, presets.pair(plan), presets.claim(plan), trials=300, confidence=1 - 1e-6, rng=0)
    assert report.violated and report.epsilon_lower > 2


# --- planted faults on the worst pair -----------------------------------------------------------------


def test_a_support_of_the_exact_scores_is_caught(monkeypatch):
    """The teacher's own support instead of a private one: one record shows in the student's features."""
    plan = presets.plan("knowledge_transfer", 1.0, 1e-5)
    pair, how = presets.pair(plan), {"trials": 300, "confidence": 1 - 1e-7, "rng": 0}
    assert not audit.audit(plan, pair, **how).violated

    def exact(self, rng, histories):
        return [top_with_gap(self.scores, self.settings.sparsity)[0]] * len(rng)

    monkeypatch.setattr(transfer_run.TransferRun, "_supports", exact)
    assert audit.audit(plan, pair, as_claim(plan.guarantee), **how).violated


def test_logistic_plans_have_no_pair_and_say_so():
    with warnings.catch_warnings(), pytest.raises(InvalidValue, match="huber"):
        presets.pair(make_plan(loss="logistic"))
