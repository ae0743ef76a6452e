"""The pair with a control coordinate: neighbours within the bounds, likelihoods exact, missing noise is found."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from dptoolkit import audit, solvers
from dptoolkit.adjacency import Adjacency
from dptoolkit.audit import pairs
from dptoolkit.audit.claims import as_claim
from dptoolkit.audit.pair import check_neighbours, counted
from dptoolkit.audit.streams import Streams
from dptoolkit.audit.targets import PlanTarget
from dptoolkit.audit.theory.replay import Replay, _Rows
from dptoolkit.data import Rows
from dptoolkit.errors import InvalidValue, PrivacyViolation
from tests.statistics import ALPHA

BALL = {"n": 100, "d": 6, "steps": 6, "feature_bound": 1.0, "epsilon": 4.0, "delta": 1e-5}
PLANS = {
    "hinge": {"loss": "hinge", "l1_radius": 2.0},
    "logistic, intercept": {"loss": "logistic", "l1_radius": 1.0, "fit_intercept": True},
    "huber, intercept": {"loss": "huber", "l1_radius": 1.0, "fit_intercept": True},
}
REACH = {"hinge": 0.74, "logistic, intercept": 0.63, "huber, intercept": 0.81}


@pytest.fixture(scope="module", params=PLANS)
def made(request):
    plan = solvers.plan("dp_frank_wolfe", **BALL | PLANS[request.param])
    return request.param, plan, pairs.dp_frank_wolfe(plan)


def log_ratios(plan, pair, trials):
    source = Streams(1, "test")
    bits = source.bits(0, trials)
    return bits == 1, pair.scores["releases"](PlanTarget(plan, pair, "releases").run(bits, 0, source))


def test_neighbours_within_the_bounds(made):
    _, plan, pair = made
    check_neighbours(pair)
    assert "control coordinate" in pair.description
    for data in pair:
        assert (data.n, data.X.shape[1]) == (plan.n, plan.d)
        assert np.abs(data.X).max() <= plan.settings.feature_bound


def test_the_likelihood_ratio_is_exact(made):
    """E[e^-L | first] = E[e^L | second] = 1 for the exact log ratio L, by 5 standard errors, and not for 2 L."""
    _, plan, pair = made
    first, ratio = log_ratios(plan, pair, 6000)
    for values in (-ratio[first], ratio[~first]):
        weights = np.exp(values)
        assert abs(weights.mean() - 1) <= 5 * weights.std() / np.sqrt(len(weights))
        wrong = np.exp(2 * values)
        assert abs(wrong.mean() - 1) > 5 * wrong.std() / np.sqrt(len(wrong))


def test_gradients_are_those_of_the_solver(made):
    """On the rows that the solver makes of the pair, with its intercept, at any weights."""
    _, plan, pair = made
    settings, rng = plan.settings, np.random.default_rng(0)
    weights = rng.normal(size=(5, settings.width(plan.d)))
    for data in pair:
        rows, labels = settings.bounds.clip(Rows(data.X, False), data.y)
        for w, found in zip(weights, _Rows(plan, data).gradient(weights[:, None]), strict=True):
            slopes = settings.loss_row.residual(rows.matrix @ w, labels) * data.counts
            np.testing.assert_allclose(found[0], settings.l1_radius / plan.n * rows.matrix.T @ slopes, atol=1e-12)


def test_reach(made):
    name, _, pair = made
    assert pair.reach["releases"] == pytest.approx(REACH[name], abs=0.06)
    assert 0 < pair.reach["final"] <= 1.02 * pair.reach["releases"]


def test_the_guarantee_holds_and_a_third_of_the_noise_is_found(made):
    """One sequential test with a false-alarm rate of 1e-6."""
    _, plan, pair = made
    how = {"trials": 4000, "power": None, "alpha": ALPHA, "adversary": "releases"}
    audit.assert_private(plan, pair, as_claim(plan.guarantee), **how)
    with pytest.raises(PrivacyViolation):
        audit.assert_private(plan.with_noise(factor=1 / 3), pair, as_claim(plan.guarantee), **how)


@pytest.mark.parametrize("more", [{"adjacency": "zero-out"}, {"law": "laplace"}], ids=str)
def test_intercepts_for_which_no_pair_is_known(more):
    plan = solvers.plan("dp_frank_wolfe", **BALL | PLANS["huber, intercept"] | more)
    with pytest.raises(InvalidValue, match="fit_intercept"):
        pairs.dp_frank_wolfe(plan)


# --- natural data --------------------------------------------------------------------------------------

NATURAL = {
    "logistic": ("dp_frank_wolfe", {"loss": "logistic"}),
    "logistic, zero-out": ("dp_frank_wolfe", {"loss": "logistic", "adjacency": "zero-out"}),
    "squared, intercept": ("dp_frank_wolfe", {"loss": "squared", "label_bound": 1.0, "fit_intercept": True}),
    "vertex": ("dp_multinomial_frank_wolfe", {"classes": 3}),
    "columns": ("dp_multinomial_frank_wolfe", {"classes": 3, "selection": "columns"}),
}


@pytest.mark.parametrize("name", NATURAL)
def test_natural_data(name):
    """The score is the exact likelihood ratio, by 5 standard errors, and no worse record shows much more."""
    solver, more = NATURAL[name]
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.5, 1.5, (30, 4))
    y = rng.integers(0, 3 if "classes" in more else 2, 30).astype(float)
    plan = solvers.plan(solver, n=30, d=4, l1_radius=0.5, steps=6, feature_bound=1.0, epsilon=6.0, delta=1e-5, **more)
    pair = pairs.natural(plan, sparse.csr_matrix(X), y)
    (X1, y1), (X2, y2) = pair
    differ = (X1 != X2).any(axis=1) | (y1 != y2)
    assert differ.sum() == 1 and np.array_equal(X1, X)
    first, ratio = log_ratios(plan, pair, 4000)
    for values in (-ratio[first], ratio[~first]):
        weights = np.exp(values)
        assert abs(weights.mean() - 1) <= 5 * weights.std() / np.sqrt(len(weights))
    assert (ratio[first].mean() - ratio[~first].mean()) / ratio.std() * np.sqrt(1000) > 6, "it tells them apart"
    audit.assert_private(plan, pair, as_claim(plan.guarantee), trials=4000, power=None, alpha=ALPHA)
    # What the choice of the record maximises: the leak of the first selection.
    leaks = [
        Replay(plan, counted(*bounded(X, y)), counted(*bounded(*change(plan, X, y, i)))).first_spread()
        for i in range(30)
    ]
    assert leaks[int(np.flatnonzero(differ)[0])] >= 0.8 * max(leaks)


def bounded(X, y):
    return np.clip(X, -1.0, 1.0), y


def change(plan, X, y, i):
    X2, y2 = X.copy(), y.copy()
    if plan.adjacency is Adjacency.ZERO_OUT:
        X2[i] = 0.0
    else:
        y2[i] = {"squared": -y[i]}.get(getattr(plan.settings, "loss", ""), 1 - y[i])
        if hasattr(plan.settings, "classes"):
            y2[i] = (y[i] + 1) % 3
    return X2, y2


def test_natural_data_need_gumbel_noise():
    plan = solvers.plan("dp_frank_wolfe", law="laplace", **BALL | PLANS["hinge"])
    with pytest.raises(InvalidValue, match="law"):
        pairs.natural(plan, np.ones((plan.n, plan.d)), np.zeros(plan.n))
