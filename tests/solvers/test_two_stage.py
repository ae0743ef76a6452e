"""Two stages: votes of blocks, the budget of both stages together, noise, and a planted fault."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from dptoolkit import audit, losses, solvers
from dptoolkit.accounting import ExponentialMechanism, account
from dptoolkit.audit import presets
from dptoolkit.audit.claims import as_claim
from dptoolkit.data import check_rows
from dptoolkit.errors import InvalidValue
from dptoolkit.mechanisms.randomness import Generators
from dptoolkit.optimise import newton
from dptoolkit.solvers import _two_stage
from tests.solvers.capture import Spy

ARGUMENTS = {"loss": "huber", "l2": 0.1, "row_norm": 2.0, "sparsity": 3, "blocks": 5, "epsilon": 2.0, "delta": 1e-5}


def make_plan(n=200, d=20, **changes):
    return solvers.plan("two_stage", n=n, d=d, **ARGUMENTS | changes)


def sparse_problem(n=2000, d=30, seed=0):
    rng = np.random.default_rng(seed)
    X, truth = rng.standard_normal((n, d)), np.zeros(d)
    truth[[4, 9, 21]] = 1.0, -1.0, 0.8
    return X, X @ truth + 0.3 * rng.standard_normal(n), truth


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("law", ["gaussian", "gamma"])
def test_both_stages_together_spend_exactly_the_budget(share, law):
    plan = make_plan(vote_share=share, law=law)
    assert 2.0 * (1 - 1e-4) < plan.guarantee.epsilon(1e-5) <= 2.0
    votes = plan.releases[2]
    assert votes.event == ExponentialMechanism(2 / votes.scale) and votes.count == 3
    alone = account(_two_stage.Repeated(votes.event, 3)).epsilon(share * 1e-5)
    assert 2.0 * share * (1 - 1e-4) < alone <= 2.0 * share


def test_plans_survive_json():
    plan = make_plan(fit_intercept=True, constraint="l1", radius=2.0)
    record = json.loads(plan.to_json())
    again = solvers.plan(record["solver"], n=record["n"], d=record["d"], **record["settings"])
    assert again == plan and again.fingerprint == plan.fingerprint


@pytest.mark.parametrize(("change", "name"), [
    ({"blocks": 0}, "blocks"), ({"blocks": 201}, "blocks"), ({"sparsity": 21}, "sparsity"),
    ({"sparsity": 0}, "sparsity"), ({"vote_share": 0.0}, "vote_share"), ({"vote_share": 1.0}, "vote_share"),
    ({"calibration": "published"}, "calibration"),
    ({"constraint": "group-l1", "radius": 1.0, "group_size": 2}, "constraint"), ({"l2": 1e-6}, "l2 above"),
])  # fmt: skip
def test_bad_input_is_refused_by_name(change, name):
    with pytest.raises(InvalidValue, match=name):
        make_plan(**change)


# --- the votes ------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(st.sampled_from(["huber", "logistic", "squared"]), st.integers(1, 4), st.integers(1, 6), st.integers(0, 10**6),
       st.sampled_from([1.0, 1e-200, 1e300]), st.booleans())  # fmt: skip
def test_one_record_moves_each_count_by_at_most_one(loss, s, blocks, seed, size, zero_out):
    rng = np.random.default_rng(seed)
    n, d = 12, 6
    X, y = rng.standard_normal((n, d)), rng.integers(0, 2, n) * 1.0
    X2, y2 = X.copy(), y.copy()
    row = rng.integers(n)
    X2[row], y2[row] = (0.0 if zero_out else size * rng.standard_normal(d)), 1 - y[row]
    one, two = (_two_stage.count_votes(check_rows(a), b, losses.get(loss), s, blocks) for a, b in ((X, y), (X2, y2)))
    change = one - two
    assert np.abs(change).max() <= 1 and np.ptp(change) <= _two_stage.VOTE_RANGE
    assert one.sum() <= s * blocks and one.max() <= blocks


def test_some_pair_reaches_the_range_and_votes_counted_twice_exceed_it():
    """One count falls while another rises; a block that counts twice would move scores by 4."""
    plan = presets.plan("two_stage", 2.0, 1e-5)
    one, two = (solvers.bind(plan, c.X, c.y, c.counts).votes for c in audit.pairs.two_stage(plan))
    allowed = plan.releases[2].sensitivity
    assert np.ptp(one - two) == allowed
    assert np.ptp(2 * one - 2 * two) > allowed


def test_a_block_that_names_a_feature_twice_has_one_vote_for_it(monkeypatch):
    monkeypatch.setattr(_two_stage, "lasso_features", lambda *args: np.array([1, 1, 2]))
    votes = _two_stage.count_votes(check_rows(np.ones((4, 3))), np.ones(4), losses.get("huber"), 3, 2)
    np.testing.assert_array_equal(votes, [0, 2, 2])


@pytest.mark.parametrize("layout", [np.array, sparse.csr_matrix], ids=["dense", "csr"])
@pytest.mark.parametrize("loss", ["huber", "logistic", "squared"])
def test_every_block_finds_strong_features(loss, layout):
    X, y, truth = sparse_problem()
    y = (y > 0) * 1.0 if loss == "logistic" else y
    votes = _two_stage.count_votes(check_rows(layout(X)), y, losses.get(loss), 3, 10)
    np.testing.assert_array_equal(np.flatnonzero(votes >= 9), np.flatnonzero(truth))


def test_lasso_features_are_those_of_scikit_learn():
    linear_model = pytest.importorskip("sklearn.linear_model")
    X, y, _ = sparse_problem(100, 50)
    ours = _two_stage.lasso_features(X, y, losses.get("squared"), 3)
    scaled = X / np.linalg.norm(X, axis=0)
    _, active, _ = linear_model.lars_path(scaled, y, method="lasso", max_iter=3)
    assert set(ours.tolist()) == set(list(active)[:3])


@pytest.mark.parametrize("X", [np.zeros((4, 3)), np.full((4, 3), 1e308), np.full((1, 3), 5e-324)], ids=str)
def test_votes_never_fail(X):
    y = np.full(len(X), 1e308)
    assert len(_two_stage.lasso_features(X, y, losses.get("huber"), 2)) <= 2


# --- a fit ----------------------------------------------------------------------------------------


def test_the_draws_are_the_planned_noise_on_the_votes_then_on_the_chosen_features():
    X, y, truth = sparse_problem()
    spy = Spy(0)
    fit = solvers.two_stage(X, y, rng=spy, **ARGUMENTS | {"blocks": 100, "epsilon": 8.0})
    assert [name for name, _ in spy.draws] == ["standard_exponential", "standard_normal", "standard_normal"]
    gumbel = -fit.plan.releases[2].scale * np.log(spy.of("standard_exponential")[0])
    votes = solvers.bind(fit.plan, X, y).votes
    np.testing.assert_array_equal(fit.history["support"], np.sort(np.argsort(-(votes + gumbel))[:3]))
    assert all(z.shape == (3,) for z in spy.of("standard_normal"))
    np.testing.assert_array_equal(np.flatnonzero(fit.coef), np.flatnonzero(truth))
    assert np.linalg.norm(fit.coef - truth) < 0.5
    assert set(fit.history) == {"noise_scale", "output_scale", "support", "vote_scale"}


@pytest.mark.filterwarnings("ignore::dptoolkit.solvers.HopelessPlanWarning")
@pytest.mark.parametrize("law", ["gaussian", "gamma"])
@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
def test_the_noise_of_the_second_stage_is_the_plans(law, adjacency, monkeypatch):
    """With a minimiser that is always 0: the linear term that it was given, and the output noise that is left.

    One fit, and many at once, each on the support that its own votes chose.
    """
    X, y, _ = sparse_problem(60)
    plan = make_plan(n=60, d=30, law=law, adjacency=adjacency, fit_intercept=True)
    linear, output, _ = plan.releases
    given = []
    monkeypatch.setattr(newton, "minimise_rows", lambda problem, terms, tau: (given.append(terms), terms * 0.0)[1:] * 2)
    spies = [Spy(seed) for seed in range(4)]
    run = solvers.bind(plan, X, y)
    releases = run.fits(Generators(*spies), trace=True).releases[:, 0]
    terms = np.concatenate(given)
    supports = [np.flatnonzero(row) for row in releases]
    assert len({support.tobytes() for support in supports}) > 1 and all(len(support) == 4 for support in supports)
    for spy, support, row in zip(spies, supports, releases, strict=True):
        drawn = spy.of("standard_normal")
        np.testing.assert_allclose(row[support], output.scale * drawn[-1], rtol=1e-12)
        direction = drawn[0] / np.linalg.norm(drawn[0])
        own = terms[np.argmax(terms @ direction / np.linalg.norm(terms, axis=1))] / plan.n
        if law == "gaussian":
            np.testing.assert_allclose(own, linear.scale * drawn[0], rtol=1e-9)
        else:
            np.testing.assert_allclose(own / np.linalg.norm(own), direction, rtol=1e-9)
    second = run._second(supports[0][:3])
    assert (second.linear, second.output) == (linear, output)


@pytest.mark.filterwarnings("ignore::dptoolkit.solvers.HopelessPlanWarning")
@pytest.mark.parametrize("elsewhere", [0.0, 1.0])
@pytest.mark.parametrize("layout", [np.asarray, sparse.csr_matrix], ids=["dense", "csr"])
def test_under_zero_out_a_record_that_is_zero_on_the_support_has_no_intercept_either(layout, elsewhere):
    """Whatever its label, bit for bit, in the second stage; the twin, under replace-one, shows the label."""
    X, y, _ = sparse_problem(60)
    X[0] = 0.0
    X[0, 7] = elsewhere
    for adjacency, same in (("zero-out", True), ("replace-one", False)):
        plan = make_plan(n=60, d=30, adjacency=adjacency, fit_intercept=True)
        found = []
        for label in (-3.0, 3.0):
            labels = y.copy()
            labels[0] = label
            second = solvers.bind(plan, layout(X), labels)._second(np.array([4, 9, 21]))
            found.append(second(np.random.default_rng(0), True).releases)
        assert np.array_equal(*found) is same


def test_the_second_stage_is_objective_perturbation_on_the_support():
    X, y, _ = sparse_problem(300)
    fit = solvers.two_stage(X, y, rng=1, fit_intercept=True, **ARGUMENTS | {"epsilon": math.inf, "delta": 0.0})
    chosen = fit.history["support"]
    alone = solvers.objective_perturbation(
        X[:, chosen], y, loss="huber", l2=0.1, row_norm=2.0, epsilon=math.inf, fit_intercept=True
    )
    np.testing.assert_allclose(fit.coef[chosen], alone.coef, atol=1e-4)
    assert fit.intercept == pytest.approx(alone.intercept, abs=1e-4)


def test_the_worst_pair_stays_within_the_guarantee_and_less_noise_is_caught():
    plan = presets.plan("two_stage", 3.0, 1e-5)
    pair = presets.pair(plan)
    how = {"trials": 1500, "confidence": 1 - 1e-7, "rng": 0}
    assert not audit.audit(plan, pair, **how).violated
    assert audit.audit(plan.with_noise(factor=1 / 4), pair, as_claim(plan.guarantee), **how).violated
