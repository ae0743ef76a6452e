"""Objective perturbation: plan, noise, certificate, what one record can do, and audits with planted faults."""

from __future__ import annotations

import json
import math
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, sparse, stats

from dptoolkit import audit, datasets, losses, solvers
from dptoolkit.accounting import Ledger, account
from dptoolkit.audit import presets
from dptoolkit.audit.claims import as_claim
from dptoolkit.data import prepare
from dptoolkit.errors import InvalidValue
from dptoolkit.optimise import minimise, newton
from dptoolkit.solvers import _objective_perturbation as perturbed
from dptoolkit.solvers.engine import objective
from tests.solvers.capture import Spy

BUDGET = {"epsilon": 1.0, "delta": 1e-5}
ALPHA = 1e-7
SETS = {
    "none": {},
    "l2": {"constraint": "l2", "radius": 0.7},
    "l1": {"constraint": "l1", "radius": 0.7},
    "group": {"constraint": "group-l1", "radius": 0.7, "group_size": 2},
}


def make_plan(n=100, d=3, **changes):
    given = {"loss": "logistic", "l2": 1 / n, "row_norm": 1.0, **BUDGET, **changes}
    return solvers.plan("objective_perturbation", n=n, d=d, **given)


def problem(n=60, d=5, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    return X, (X @ np.arange(d) + rng.standard_normal(n) > 0) * 1.0


# --- the plan -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("loss", "adjacency", "sigma"), [
    ("logistic", "zero-out", 4.70), ("logistic", "replace-one", 9.39), ("huber", "replace-one", 9.80),
])  # fmt: skip
def test_sigma_for_unit_gradients_a_quarter_of_curvature_and_lambda_one(loss, adjacency, sigma):
    """beta/lambda = 1/4 in all rows; the output noise of an inexact solve costs half a per cent."""
    beta = 0.25 if loss == "logistic" else 1.0
    plan = make_plan(loss=loss, adjacency=adjacency, l2=4 * beta / 100)
    assert sigma * 0.999 <= 100 * plan.noise <= sigma * 1.006
    assert plan.guarantee.epsilon(1e-5) <= 1.0
    assert plan.with_noise(factor=0.99).guarantee.epsilon(1e-5) > 1.0


def test_the_mean_and_the_sum_have_one_plan():
    """Ten times the records at a tenth of l2 is the same problem for one record: sigma = n * noise stays."""
    small, large = make_plan(n=100, l2=0.01), make_plan(n=1000, l2=0.001)
    assert 1000 * large.noise == pytest.approx(100 * small.noise, rel=1e-9)
    event = small.releases[0].event
    assert event == replace(large.releases[0].event, noise_multiplier=event.noise_multiplier)
    assert event.jacobian == pytest.approx(math.log(1.25)) and event.signed
    assert small.sensitivity == pytest.approx(2 / 100)


def test_much_regularisation_leaves_the_gaussian_mechanism():
    from dptoolkit.accounting import gaussian

    plan = make_plan(l2=1e6, adjacency="zero-out")
    assert 100 * plan.noise == pytest.approx(1 / gaussian.mu(1.0, 1e-5), rel=0.01)


def test_published_noise_states_claim_and_truth():
    plan = make_plan(l2=20.0, loss="huber", calibration="published", epsilon=0.5)
    sigma = math.sqrt(10 * math.log(1e5)) / 0.5
    assert 100 * plan.noise == pytest.approx(sigma)
    claim, truth = plan.guarantee.claimed, plan.guarantee.epsilon(1e-5)
    assert claim.epsilon == pytest.approx(0.25 + math.log1p(2 / 2000))
    assert truth > claim.epsilon, "false for replace-one: the shift is 2L"
    assert plan.guarantee.bounds(1e-5).lower > claim.epsilon
    fine = make_plan(l2=20.0, loss="huber", calibration="published", epsilon=0.5, adjacency="zero-out")
    assert fine.guarantee.epsilon(1e-5) <= fine.guarantee.claimed.epsilon


def test_gamma_noise_is_pure_but_for_the_output_noise():
    plan = make_plan(law="gamma", adjacency="zero-out")
    exact, hidden = (release.event for release in plan.releases)
    assert exact.epsilon == pytest.approx(1 / (100 * plan.noise) + math.log(1.25))
    assert 0.95 < exact.epsilon <= plan.guarantee.epsilon(1e-5) <= 1.0
    assert hidden.noise_multiplier > 100


@pytest.mark.parametrize("how", SETS)
def test_plans_survive_json_and_squared_loss_needs_a_ball(how):
    plan = make_plan(fit_intercept=True, **SETS[how])
    record = json.loads(plan.to_json())
    again = solvers.plan(record["solver"], n=record["n"], d=record["d"], **record["settings"])
    assert again == plan and again.fingerprint == plan.fingerprint
    if how != "none":
        squared = make_plan(loss="squared", label_bound=2.0, **SETS[how])
        assert squared.sensitivity == pytest.approx(2 * (0.7 + 2.0) / 100)
        logistic = make_plan(**SETS[how])
        assert logistic.sensitivity == pytest.approx(2 / (1 + math.exp(-0.7)) / 100), "slopes on the ball alone"


BAD = [
    ({"l2": 0.0}, "l2"), ({"l2": math.nan}, "l2"), ({"row_norm": None}, "row_norm"), ({"row_norm": -1.0}, "row_norm"),
    ({"loss": "softmax"}, "loss"), ({"loss": "squared"}, "constraint"), ({"law": "laplace"}, "law"),
    ({"constraint": "linf", "radius": 1.0}, "constraint"), ({"constraint": "l2"}, "radius"),
    ({"constraint": "group-l1", "radius": 1.0}, "group_size"), ({"group_size": 2}, "group_size"),
    ({"radius": 1.0}, "radius"),
    ({"label_bound": 1.0}, "label_bound"), ({"constraint": "l2", "radius": math.inf}, "radius"),
    ({"loss": "squared", "constraint": "l2", "radius": 1.0}, "label_bound"), ({"epsilon": 0.0}, "epsilon"),
    ({"delta": 0.0}, "delta"), ({"law": "gamma", "delta": 0.0}, "delta"), ({"adjacency": "swap"}, "adjacency"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "name"), BAD, ids=str)
def test_bad_input_is_refused_by_name(change, name):
    with pytest.raises(InvalidValue, match=name):
        make_plan(**change)


def test_a_budget_below_the_jacobian_is_refused_before_anything_is_drawn_or_spent():
    X, y = problem(100)
    spy, ledger = Spy(0), Ledger(10.0, 1e-3, allow_seeds=True)
    with pytest.raises(InvalidValue, match=r"no noise can reduce.*l2 above 0\.0014549") as refused:
        solvers.objective_perturbation(X, y, loss="logistic", l2=0.0014, row_norm=1.0, rng=spy, ledger=ledger, **BUDGET)
    assert not spy.draws and not ledger.entries and "epsilon" in str(refused.value)
    assert make_plan(l2=0.0015).guarantee.epsilon(1e-5) <= 1.0, "what the message proposes works"


def test_a_solve_that_fails_stays_charged_and_releases_nothing(monkeypatch):
    X, y = problem(100)

    def fail(*args):
        raise MemoryError

    monkeypatch.setattr(newton, "minimise_rows", fail)
    ledger = Ledger(10.0, 1e-3)
    with pytest.raises(MemoryError):
        solvers.objective_perturbation(X, y, loss="logistic", l2=0.01, row_norm=1.0, ledger=ledger, **BUDGET)
    assert account(ledger.event).epsilon(1e-5) == pytest.approx(1.0, rel=1e-3)


# --- the noise and the minimiser ------------------------------------------------------------------


def reference_minimiser(A, y, loss, l2, b, radius=None):
    """By SciPy, in the scaling of the mean; with a radius on the L2 ball."""
    terms = losses.get(loss)

    def value(w):
        return terms.objective(A @ w, y) + l2 / 2 * w @ w + b @ w

    def gradient(w):
        return A.T @ terms.residual(A @ w, y) / len(y) + l2 * w + b

    limits = () if radius is None else ({"type": "ineq", "fun": lambda w: radius**2 - w @ w, "jac": lambda w: -2 * w},)
    method, precise = ("SLSQP", {"ftol": 1e-16, "maxiter": 500}) if limits else ("BFGS", {"gtol": 1e-11})
    return optimize.minimize(
        value, np.zeros(A.shape[1]), jac=gradient, method=method, constraints=limits, options=precise
    ).x


@pytest.mark.parametrize("layout", [np.array, sparse.csr_matrix], ids=["dense", "csr"])
@pytest.mark.parametrize(("loss", "ball"), [
    ("logistic", None), ("huber", None), ("hinge", None), ("logistic", 0.3), ("squared", 0.3),
])  # fmt: skip
def test_every_draw_is_the_planned_noise_and_goes_where_it_should(loss, ball, layout):
    """Two draws: the linear term, scale plan.noise in the mean's scaling, and the output noise on the minimiser."""
    X, y = problem()
    y = y if loss in ("logistic", "hinge") else 2 * y - 1
    how = {} if ball is None else {"constraint": "l2", "radius": ball}
    how |= {"label_bound": 1.0} if loss == "squared" else {}
    spy = Spy(1)
    result = solvers.objective_perturbation(
        layout(X), y, loss=loss, l2=0.5, row_norm=2.0, fit_intercept=True, rng=spy, trace=True, **how, **BUDGET
    )
    assert [name for name, _ in spy.draws] == ["standard_normal"] * 2
    first, second = spy.of("standard_normal")
    assert first.shape == second.shape == (6,)
    linear, output = result.plan.releases
    assert (linear.law, output.law) == ("Gaussian linear term", "Gaussian")
    norms = np.linalg.norm(X, axis=1, keepdims=True)
    A = np.hstack([X * np.minimum(1.0, 2.0 / norms), np.ones((len(y), 1))])
    expected = reference_minimiser(A, y, loss, 0.5, result.plan.noise * first, ball) + output.scale * second
    tolerance = output.sensitivity / 2
    assert tolerance < output.scale / 10
    if ball is not None:
        expected *= min(1.0, ball / np.linalg.norm(expected))
    np.testing.assert_allclose(np.append(result.coef, result.intercept), expected, atol=tolerance + 3e-6)
    assert set(result.history) == {"noise_scale", "output_scale", "iterates"}, "nothing else is public"


def test_gamma_noise_has_its_length_and_a_uniform_direction():
    """|b| ~ Gamma(d, s): mean d s. 4000 draws; five standard errors are a false alarm of 1e-6."""
    plan, rng = make_plan(law="gamma", d=3), np.random.default_rng(0)
    draws = np.array([plan.releases[0].mechanism.draw(3, rng) for _ in range(4000)]) / plan.noise
    lengths = np.linalg.norm(draws, axis=1)
    assert abs(lengths.mean() - 3) < 5 * math.sqrt(3 / 4000)
    assert abs((lengths**2).mean() - 12) < 5 * math.sqrt((3 * 4 * 5 * 6 - 144) / 4000)
    assert (np.abs((draws / lengths[:, None]).mean(axis=0)) < 5 / math.sqrt(3 * 4000)).all()


@pytest.mark.parametrize("how", SETS)
def test_the_certificate_holds_when_it_is_recomputed_and_refuses_a_point_further_off(how):
    X, y = problem(30)
    plan = make_plan(n=30, d=5, l2=0.1, **SETS[how])
    run = solvers.bind(plan, X, y)
    task = run.problem(plan.noise * np.random.default_rng(3).standard_normal(5))
    found = minimise.minimise(task, run.tau)
    assert minimise.verified_bound(task, found) <= run.tau
    assert run.tau / run.sums.l2 * 2 == pytest.approx(plan.releases[1].sensitivity)
    away = np.zeros(5)
    away[1] = 1.01 * run.tau / run.sums.l2
    assert minimise.verified_bound(task, found._replace(theta=found.theta + away)) > run.tau * 0.99


@pytest.mark.parametrize("constraint", ["l2", "l1"])
def test_a_ball_that_holds_everything_costs_nothing(constraint):
    """The tolerance follows from where the minimiser can be, not from how large the ball was said to be."""
    X, y = problem()
    free, huge = (
        solvers.objective_perturbation(X, y, loss="logistic", l2=0.1, row_norm=1.0, rng=Spy(2), **how, **BUDGET)
        for how in ({}, {"constraint": constraint, "radius": 1e60})
    )
    assert huge.plan.noise == pytest.approx(free.plan.noise)
    assert huge.history["output_scale"] == pytest.approx(free.history["output_scale"])
    np.testing.assert_allclose(huge.coef, free.coef, atol=free.plan.releases[1].sensitivity)


def test_an_infinite_budget_is_the_plain_minimiser():
    X, y = problem()
    result = solvers.objective_perturbation(X, y, loss="logistic", l2=0.1, row_norm=10.0, epsilon=math.inf)
    np.testing.assert_allclose(result.coef, reference_minimiser(X, y, "logistic", 0.1, np.zeros(5)), atol=1e-4)
    assert math.isinf(result.guarantee.epsilon(1e-5))


# --- what one record can do -----------------------------------------------------------------------


@settings(max_examples=60)
@given(
    st.sampled_from(losses.CURVED), st.sampled_from(["replace-one", "zero-out"]), st.booleans(), st.integers(0, 10**6)
)
def test_no_neighbour_moves_the_gradient_by_more_than_the_sensitivity(loss, adjacency, intercept, seed):
    """What the noise must hide is the difference of the two gradients at one point; under zero-out that of a zero row
    is nothing, its intercept included."""
    rng = np.random.default_rng(seed)
    n, d = 6, 3
    X, y = rng.standard_normal((n, d)) * 10 ** rng.uniform(-2, 2), rng.integers(0, 2, n) * 1.0
    X2, y2 = X.copy(), y.copy()
    X2[0] = 0.0 if adjacency == "zero-out" else -X[0] * rng.uniform(0, 2)
    y2[0] = 1 - y[0]
    how = {"constraint": "l2", "radius": 1.5} if loss == "squared" else {}
    how |= {"label_bound": 1.0} if loss == "squared" else {}
    plan = make_plan(n=n, d=d, l2=1.0, loss=loss, adjacency=adjacency, fit_intercept=intercept, **how)
    w = rng.standard_normal(d + intercept)
    w *= 1.5 * rng.random() / np.linalg.norm(w)

    def total(features, labels):
        run = solvers.bind(plan, features, labels)
        task = run.problem(np.zeros(d + intercept))
        return task.matrix.T @ task.loss.residual(task.matrix @ w, task.y)

    assert np.linalg.norm(total(X, y) - total(X2, y2)) <= n * plan.sensitivity * (1 + 1e-12)


@pytest.mark.parametrize(("constraint", "intercept"), [("l2", False), ("l2", True), ("l1", False)])
def test_on_a_ball_some_record_has_the_gradient_bound_of_the_squared_loss_and_none_more(constraint, intercept):
    """A margin is at most the norm of the row, its intercept included, times the radius: weights along it do that."""
    plan = make_plan(
        loss="squared",
        d=1,
        l2=1.0,
        row_norm=1.3,
        label_bound=2.0,
        constraint=constraint,
        radius=0.7,
        fit_intercept=intercept,
    )
    row = np.array([1.3, 1.0][: 1 + intercept])
    norm = float(np.linalg.norm(row))
    gradient = abs(row @ (0.7 * row / norm) + 2.0) * norm
    assert plan.settings.bounds.gradient == pytest.approx(gradient, rel=1e-12)
    assert plan.sensitivity * plan.n == pytest.approx(2 * gradient, rel=1e-12)
    directions = np.random.default_rng(0).standard_normal((1000, len(row)))
    weights = 0.7 * directions / np.linalg.norm(directions, axis=1, keepdims=True)
    assert (np.abs(weights @ row + 2.0) * norm <= plan.settings.bounds.gradient * (1 + 1e-12)).all()


@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
@pytest.mark.parametrize("intercept", [False, True])
def test_some_pair_moves_the_noise_by_the_whole_sensitivity(adjacency, intercept):
    """With an intercept the record pulls along (row_norm, 1); other rows pull it, half of them each way."""
    plan = make_plan(loss="huber", d=1, l2=1.0, adjacency=adjacency, fit_intercept=intercept)
    for b in (-2.0, 0.0, 0.5):
        assert shift_of_the_pair(plan, b) == pytest.approx(plan.sensitivity, rel=1e-6)


@pytest.mark.parametrize(
    ("loss", "intercept", "share"), [("logistic", False, 0.7), ("logistic", True, 0.55), ("hinge", False, 0.7)]
)
def test_two_records_across_a_crowd_move_the_noise_by_more_than_one_gradient(loss, intercept, share):
    """Slopes of one sign, replace-one: a label that changes moves it by half of the sensitivity at most."""
    plan = make_plan(n=2000, d=2, loss=loss, l2=1e-3, fit_intercept=intercept, epsilon=3.0)
    assert shift_of_the_pair(plan, 0.3) > share * plan.sensitivity


def shift_of_the_pair(plan, b):
    pair = audit.pairs.objective_perturbation(plan)
    runs = [solvers.bind(plan, data.X, data.y, data.counts) for data in pair]
    direction = pair.scores["final"].direction
    term = np.full(len(direction), b * plan.noise)
    one, two = (minimise.minimise(run.problem(term), run.tau).theta for run in runs)
    return float((one - two) @ direction) * plan.settings.l2


# --- audits, with planted faults ------------------------------------------------------------------


def audited(mechanism, pair, claim, trials):
    return audit.audit(mechanism, pair, claim, trials=trials, confidence=1 - ALPHA, rng=0)


@pytest.mark.parametrize(("loss", "adjacency"), [
    ("huber", "replace-one"), *(pytest.param(*other, marks=pytest.mark.slow) for other in (
        ("huber", "zero-out"), ("logistic", "replace-one"), ("logistic", "zero-out"))),
])  # fmt: skip
def test_the_worst_pair_stays_within_the_guarantee(loss, adjacency):
    plan = make_plan(n=50, d=1, loss=loss, l2=1.0, adjacency=adjacency, epsilon=3.0)
    report = audited(plan, presets.pair(plan), None, 1200)
    assert not report.violated and report.epsilon_lower <= 3.0


def test_a_shift_of_one_gradient_where_two_move_is_caught():
    """Replacing a record moves the noise by 2L; noise for L is half of what the plan has."""
    plan = presets.plan("objective_perturbation", 3.0, 1e-5)
    pair = presets.pair(plan)
    assert pair.reach["final"] > 0.9
    assert audited(plan.with_noise(factor=0.5), pair, as_claim(plan.guarantee), 3000).violated


def squeezed(kappa):
    """A record of curvature kappa lambda where the minimiser lies, against none: density at 0 grows by 1 + kappa.

    The noise is as large as the gradient bound.
    """
    plan = make_plan(n=10, d=1, loss="huber", l2=0.1 / kappa, adjacency="zero-out", epsilon=5.0)
    plan = plan.with_noise(plan.sensitivity, plan.releases[1].scale)
    return plan, [solvers.bind(plan, np.array([[first], *[[0.0]] * 9]), np.zeros(10)) for first in (1.0, 0.0)]


def delta_below(runs, epsilon, trials=3000):
    """A lower bound on delta at epsilon from the event |w| < 1, each frequency at confidence 1 - 1e-7."""
    rng = np.random.default_rng(0)
    inside, outside = (sum(abs(float(run(rng).weights[0])) < 1 for _ in range(trials)) for run in runs)
    least = stats.beta.ppf(ALPHA, inside, trials - inside + 1)
    most = stats.beta.ppf(1 - ALPHA, outside + 1, trials - outside)
    return least - math.exp(epsilon) * most


def test_a_jacobian_that_is_left_out_is_caught():
    plan, runs = squeezed(9.0)
    event = plan.releases[0].event
    assert event.jacobian == pytest.approx(math.log(10)) and event.noise_multiplier == pytest.approx(1.0)
    found = delta_below(runs, 1.0)
    assert account(replace(event, jacobian=0.0)).delta(1.0) < found <= plan.guarantee.delta(1.0)


def test_a_regulariser_that_is_not_multiplied_by_n_is_caught():
    """The solve takes l2 for lambda, as if the mean were the sum: ten times the squeeze that is charged."""
    plan, runs = squeezed(0.9)
    assert delta_below(runs, 1.0) <= plan.guarantee.delta(1.0)
    for run in runs:
        run.sums = replace(run.sums, mean_l2=run.sums.mean_l2 / plan.n)
    assert delta_below(runs, 1.0) > plan.guarantee.delta(1.0)


def test_without_output_noise_nothing_is_guaranteed():
    plan = make_plan()
    assert math.isinf(plan.with_noise(plan.noise, 0.0).guarantee.epsilon(1e-5))


# --- size -----------------------------------------------------------------------------------------


def test_many_features_take_memory_like_the_data():
    """RCV1's width: an array of n x d entries would take 300 MB, one of d x d 18 GB."""
    rng, n, d = np.random.default_rng(0), 800, 47236
    X = sparse.random(n, d, density=60 / d, random_state=1, format="csr")
    y = (rng.random(n) < 0.5) * 1.0
    plan = make_plan(n=n, d=d, l2=1e-2)
    # Once before: what a first fit compiles and imports also takes memory.
    solvers.bind(plan, X, y)(np.random.default_rng(0))
    tracemalloc.start()
    run = solvers.bind(plan, X, y)
    weights = run(np.random.default_rng(0)).weights
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert weights.shape == (d,) and np.isfinite(weights).all()
    assert peak < 15e6, f"{peak / 1e6:.0f} MB"


@pytest.mark.parametrize("name", ["objective_perturbation", "dp_admm"])
def test_many_rows_take_less_memory_than_a_copy_of_them(name):
    """Rows that need no clipping are used where they are: the entries' places alone would be a third of a copy."""
    data = datasets.make_rcv1_like(n=6000, d=3000, nonzeros=60, rng=0)
    plan = solvers.plan(name, n=6000, d=3000, loss="logistic", row_norm=1.0, epsilon=8.0, delta=1e-5)
    rows = prepare(data.X)
    solvers.bind(plan, rows, data.y)(np.random.default_rng(0))
    tracemalloc.start()
    solvers.bind(plan, rows, data.y)(np.random.default_rng(0))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    size = data.X.data.nbytes + data.X.indices.nbytes
    assert peak < 0.4 * size, f"{peak / size:.2f} of the rows"


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_matrix])
def test_rows_of_zeros_are_seen_whether_their_zeros_are_stored_or_not(kind):
    dense = np.array([[0.0, 0.0], [0.0, 1e-300], [-0.0, 0.0], [3.0, 0.0], [0.0, 0.0]])
    wanted = [False, True, False, True, False]
    assert objective._has_entries(kind(dense)).tolist() == wanted
    stored = sparse.csr_matrix((dense.ravel(), np.tile([0, 1], 5), np.arange(0, 11, 2)), shape=(5, 2))
    assert stored.nnz == 10 and objective._has_entries(stored).tolist() == wanted
    assert not objective._has_entries(kind(np.zeros((3, 2)))).any()


def test_a_run_is_the_same_from_the_same_seed_and_not_from_another_plan():
    X, y = problem()
    how = {"loss": "logistic", "l2": 0.1, "row_norm": 1.0, "delta": 1e-5, "rng": 7}
    one, two = (solvers.objective_perturbation(X, y, epsilon=1.0, **how).coef for _ in range(2))
    np.testing.assert_array_equal(one, two)
    assert not np.allclose(one, solvers.objective_perturbation(X, y, epsilon=1.0000001, **how).coef)


def test_the_multiplier_is_that_of_both_events():
    plan = make_plan(adjacency="zero-out")
    linear, output = plan.releases
    both = perturbed.events(linear.law, linear.squeeze, linear.scale / linear.sensitivity)
    assert account(both).epsilon(1e-5) == pytest.approx(plan.guarantee.epsilon(1e-5), rel=1e-9)
    assert output.event.noise_multiplier == pytest.approx(10 * 100 * plan.noise, rel=1e-9)


@pytest.mark.filterwarnings("ignore::dptoolkit.solvers.HopelessPlanWarning")
def test_the_second_double_of_a_minimiser_goes_into_the_noise(monkeypatch):
    """A certified point has two doubles an entry: without the second it is another point than the certified one."""
    X, y = problem()
    run = solvers.bind(make_plan(n=60, d=5), X, y)
    released = {}
    for size in (0.0, 1.0):
        pair = np.full((1, 5), 2.0), np.full((1, 5), size)
        monkeypatch.setattr(newton, "minimise_rows", lambda problem, linears, tau, pair=pair: pair)
        released[size] = run(np.random.default_rng(0), True).releases[0]
    np.testing.assert_allclose(released[1.0] - released[0.0], 1.0, rtol=1e-9)
