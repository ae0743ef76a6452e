"""Private ADMM: its proxes, what one record can do to a minimiser, noise, certificate, and plain NumPy beside it."""

from __future__ import annotations

import json
import math
import tracemalloc
from dataclasses import replace

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, sparse

from dptoolkit import audit, losses, solvers
from dptoolkit.accounting import Gaussian, Ledger, Repeated, account, gaussian
from dptoolkit.audit import presets
from dptoolkit.audit.claims import as_claim
from dptoolkit.errors import InvalidValue
from dptoolkit.optimise import minimise, newton
from dptoolkit.solvers import _admm
from dptoolkit.solvers.frame import rules
from tests.solvers.capture import Spy

BUDGET = {"epsilon": 1.0, "delta": 1e-5}
LOSSES = {"logistic": {}, "huber": {}, "hinge": {}, "squared": {"radius": 1.5, "label_bound": 1.0}}
ALPHA = 1e-7


def make_plan(n=100, d=3, **changes):
    given = {"loss": "logistic", "row_norm": 1.0, **BUDGET, **changes}
    return solvers.plan("dp_admm", n=n, d=d, **given)


def problem(n=60, d=5, seed=0, loss="logistic"):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    y = (X @ np.arange(d) + rng.standard_normal(n) > 0) * 1.0
    return X, y if loss in ("logistic", "hinge") else 2 * y - 1


# --- the proxes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("penalty", "power"), [("l1", 1.0), ("l1/2", 0.5)])
@pytest.mark.parametrize("weight", [0.0, 1e-6, 0.3, 7.0])
def test_a_prox_minimises_what_it_says(penalty, power, weight):
    """Against a fine grid of z around every v, zero included; the penalty l1/2 has two local minima."""
    prox, inverse = _admm.PENALTIES[penalty]
    edge = weight if penalty == "l1" else 1.5 * weight ** (2 / 3)
    size = np.concatenate([np.linspace(0, 3, 40) * (edge or 1.0), [edge * (1 - 1e-9), edge * (1 + 1e-9), 1e6]])
    v = np.concatenate([size, -size])
    z = prox(v, weight)
    grid = np.linspace(0, 1, 4001)[:, None] * v

    def value(at):
        return (at - v) ** 2 / 2 + weight * np.abs(at) ** power

    best = value(grid).min(axis=0)
    assert (value(z) <= best + 1e-12 * (1 + v**2)).all()
    assert (z[np.abs(v) <= edge * (1 - 1e-9)] == 0).all() and (z[np.abs(v) >= edge * (1 + 1e-9) + 1e-300] != 0).all()
    if weight:
        assert inverse(edge) == pytest.approx(weight)


def test_large_weights_are_hardly_biased_by_square_roots():
    v = np.array([100.0])
    assert 100 - _admm.half_threshold(v, 1.0)[0] == pytest.approx(0.05, rel=0.01)
    assert 100 - _admm.soft_threshold(v, 1.0)[0] == 1.0


# --- the plan -------------------------------------------------------------------------------------


@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
@pytest.mark.parametrize("steps", [1, 4, 50])
def test_the_budget_is_used_up_by_gaussians_that_compose_exactly(adjacency, steps):
    plan = make_plan(adjacency=adjacency, steps=steps, rho=0.5)
    (release,) = plan.releases
    moved = 2 if adjacency == "replace-one" else 1
    # L = 1, n rho = 50; tau is a thousandth of L.
    assert release.sensitivity == pytest.approx((moved + 2e-3) / 50, rel=1e-9)
    assert release.count == steps and isinstance(release.event, Gaussian)
    assert plan.noise / plan.sensitivity == pytest.approx(math.sqrt(steps) / gaussian.mu(1.0, 1e-5), rel=1e-9)
    assert 1 - 1e-9 < account(Repeated(release.event, steps)).epsilon(1e-5) <= 1.0
    assert plan.guarantee.epsilon(1e-5) <= 1.0 < plan.with_noise(factor=0.999).guarantee.epsilon(1e-5)


def test_the_mean_and_the_sum_have_one_plan():
    small, large = make_plan(n=100, rho=1.0, steps=3, weight=0.1), make_plan(n=1000, rho=0.1, steps=3, weight=0.01)
    assert large.noise == pytest.approx(small.noise, rel=1e-9) and large.sensitivity == pytest.approx(small.sensitivity)


@pytest.mark.parametrize("loss", LOSSES)
def test_defaults_follow_from_public_numbers(loss):
    """The noise of all updates together is the margin noise of the rules; the penalty makes zeros of one update's."""
    plan = make_plan(n=2000, d=30, loss=loss, **LOSSES[loss])
    chosen = plan.settings
    time = chosen.steps / chosen.rho
    noise = math.sqrt(chosen.steps) * plan.noise * chosen.bounds.joint_norm
    assert noise == pytest.approx(rules.margin_noise(chosen.bounds), rel=2e-3)
    assert time == pytest.approx(rules.total_time(chosen.bounds, plan.adjacency, 2000, gaussian.mu(1.0, 1e-5)))
    edge = rules.THRESHOLD * plan.noise
    for factor, kept in ((0.999, False), (1.001, True)):
        z, _ = chosen.splitting(30).following(np.full(30, factor * edge), np.zeros(30))
        assert bool(z.any()) is kept


@pytest.mark.parametrize("loss", LOSSES)
def test_plans_survive_json(loss):
    plan = make_plan(loss=loss, fit_intercept=True, penalty="l1", **LOSSES[loss])
    record = json.loads(plan.to_json())
    again = solvers.plan(record["solver"], n=record["n"], d=record["d"], **record["settings"])
    assert again == plan and again.fingerprint == plan.fingerprint


BAD = [
    ({"loss": "softmax"}, "loss"), ({"penalty": "l0"}, "penalty"), ({"row_norm": None}, "row_norm"),
    ({"row_norm": -1.0}, "row_norm"), ({"rho": 0.0}, "rho"), ({"rho": math.nan}, "rho"), ({"weight": -1.0}, "weight"),
    ({"steps": 0}, "steps"), ({"steps": 2.0}, "steps"), ({"loss": "squared"}, "radius"),
    ({"loss": "squared", "radius": 1.0}, "label_bound"), ({"label_bound": 1.0}, "label_bound"),
    ({"radius": 0.0}, "radius"), ({"epsilon": 0.0}, "epsilon"), ({"delta": 0.0}, "delta"),
    ({"epsilon": math.inf}, "rho"), ({"epsilon": math.inf, "rho": 1.0}, "weight"), ({"adjacency": "swap"}, "adjacency"),
    ({"calibration": "published"}, "No published constant"), ({"fit_intercept": "no"}, "fit_intercept"),
    ({"row_norm": 1e140, "epsilon": 1e-10}, "rho"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "name"), BAD, ids=str)
def test_bad_input_is_refused_by_name_and_spends_nothing(change, name):
    with pytest.raises(InvalidValue, match=name):
        make_plan(**change)
    X, y = problem()
    spy, ledger = Spy(0), Ledger(10.0, 1e-3, allow_seeds=True)
    with pytest.raises(InvalidValue):
        solvers.dp_admm(X, y, rng=spy, ledger=ledger, **{"loss": "logistic", "row_norm": 1.0} | BUDGET | change)
    assert not spy.draws and not ledger.entries


def test_a_solve_that_fails_stays_charged_and_releases_nothing(monkeypatch):
    X, y = problem()

    def fail(*args):
        raise MemoryError

    monkeypatch.setattr(newton, "minimise_rows", fail)
    ledger = Ledger(10.0, 1e-3)
    with pytest.raises(MemoryError):
        solvers.dp_admm(X, y, loss="logistic", row_norm=1.0, ledger=ledger, **BUDGET)
    assert account(ledger.event).epsilon(1e-5) == pytest.approx(1.0, rel=1e-6)


# --- the noise and the minimisers -----------------------------------------------------------------


def clipped(X, row_norm, intercept=True):
    A = X * np.minimum(1.0, row_norm / np.linalg.norm(X, axis=1, keepdims=True))
    return np.hstack([A, np.ones((len(X), 1))]) if intercept else A


def plain_update(A, y, loss, rho, centre, radius=None):
    """The w-update by SciPy, in the scaling of the mean; with a radius on the L2 ball."""
    terms = losses.get(loss)

    def value(w):
        return terms.objective(A @ w, y) + rho / 2 * (w - centre) @ (w - centre)

    def gradient(w):
        return A.T @ terms.residual(A @ w, y) / len(y) + rho * (w - centre)

    limits = () if radius is None else ({"type": "ineq", "fun": lambda w: radius**2 - w @ w, "jac": lambda w: -2 * w},)
    method, precise = ("SLSQP", {"ftol": 1e-16, "maxiter": 500}) if limits else ("BFGS", {"gtol": 1e-10})
    start = centre if radius is None else centre * min(1.0, radius / max(np.linalg.norm(centre), 1e-300))
    return optimize.minimize(value, start, jac=gradient, method=method, constraints=limits, options=precise).x


def plain_prox(v, weight, penalty):
    """Written here anew: the soft threshold, or the larger root of z^(3/2) - v z^(1/2) + weight/2 = 0 where it pays."""
    if penalty == "l1":
        return np.sign(v) * np.maximum(np.abs(v) - weight, 0.0)
    out = np.zeros_like(v)
    for j, value in enumerate(v):
        roots = np.roots([1.0, 0.0, -abs(value), weight / 2])
        tops = [r.real**2 for r in roots if abs(r.imag) < 1e-9 and r.real > 0]
        cost = {z: (z - abs(value)) ** 2 / 2 + weight * math.sqrt(z) for z in [0.0, *tops]}
        out[j] = math.copysign(min(cost, key=cost.get), value)
    return out


@pytest.mark.parametrize("layout", [np.array, sparse.csr_matrix], ids=["dense", "csr"])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("penalty", ["l1", "l1/2"])
def test_every_draw_is_the_planned_noise_and_everything_else_is_plain_admm(loss, penalty, layout):
    X, y = problem(loss=loss)
    how = LOSSES[loss] | {"rho": 0.3, "weight": 0.05, "steps": 4, "epsilon": 50.0, "delta": 1e-5}
    spy = Spy(1)
    fit = solvers.dp_admm(
        layout(X), y, loss=loss, row_norm=2.0, fit_intercept=True, penalty=penalty, rng=spy, trace=True, **how
    )
    assert [name for name, _ in spy.draws] == ["standard_normal"] * 4
    assert fit.history["noise_scale"] == [fit.plan.noise] * 4
    assert set(fit.history) == {"noise_scale", "iterates"}, "nothing else is public"
    A, z, u = clipped(X, 2.0), np.zeros(6), np.zeros(6)
    tolerance = fit.plan.sensitivity
    for draw, (_, support, values) in zip(spy.of("standard_normal"), fit.history["iterates"], strict=True):
        w = plain_update(A, y, loss, 0.3, z - u, how.get("radius")) + fit.plan.noise * draw
        v = w + u
        z = np.append(plain_prox(v[:5], 0.05 / 0.3, penalty), v[5])
        u = v - z
        got = np.zeros(6)
        got[support] = values
        np.testing.assert_allclose(got, z, atol=4 * tolerance * 1e-3 + 1e-5)
    np.testing.assert_array_equal(np.append(fit.coef, fit.intercept), got)


@pytest.mark.parametrize("loss", LOSSES)
def test_the_certificate_holds_when_it_is_recomputed_and_refuses_a_point_further_off(loss):
    """The gradient of the sum plus (n rho/2)|w - c|^2 in 40 digits, with nothing of the solver's."""
    X, y = problem(30, loss=loss)
    plan = make_plan(n=30, d=5, loss=loss, rho=0.2, **LOSSES[loss])
    run = solvers.bind(plan, X, y)
    assert 2 * run.tau + 2 * run.sums.gradient <= plan.sensitivity * run.sums.l2
    assert run.tau == pytest.approx(1e-3 * run.sums.gradient, rel=1e-6)
    centre = 0.2 * np.random.default_rng(3).standard_normal(5)
    task = run.problem(centre)
    found = minimise.minimise(task, run.tau)
    assert minimise.verified_bound(task, found) <= run.tau
    w = [mp.mpf(a) + mp.mpf(b) for a, b in zip(found.theta.tolist(), found.remainder.tolist(), strict=True)]
    assert sum_gradient(clipped(X, 1.0, intercept=False), y, loss, 30 * 0.2, centre, w) <= run.tau
    away = np.zeros(5)
    away[1] = 2.01 * run.tau / run.sums.l2
    assert minimise.verified_bound(task, found._replace(theta=found.theta + away)) > run.tau


def sum_gradient(A, y, loss, weight, centre, w):
    """|gradient| by mpmath; the minimisers of this test lie inside the ball."""
    out = [mp.mpf(weight) * (a - mp.mpf(float(c))) for a, c in zip(w, centre, strict=True)]
    for row, label in zip(A.tolist(), y.tolist(), strict=True):
        m = mp.fsum(mp.mpf(a) * b for a, b in zip(row, w, strict=True))
        s = 2 * label - 1
        r = {
            "logistic": lambda m=m, y=label: 1 / (1 + mp.exp(-m)) - y,
            "squared": lambda m=m, y=label: m - y,
            "huber": lambda m=m, y=label: max(min(m - y, 1), -1),
            "hinge": lambda m=m, s=s: -s * max(min((1 - s * m) * 2, 1), 0),
        }[loss]()
        out = [o + r * mp.mpf(a) for o, a in zip(out, row, strict=True)]
    return float(mp.sqrt(mp.fsum(o * o for o in out)))


@pytest.mark.parametrize("penalty", ["l1", "l1/2"])
def test_without_noise_and_with_loose_bounds_it_is_admm_without_privacy(penalty):
    X, y = problem()
    how = {"loss": "logistic", "rho": 0.2, "weight": 0.03, "steps": 30, "penalty": penalty, "fit_intercept": True}
    private = solvers.dp_admm(X, y, row_norm=10.0, epsilon=math.inf, **how)
    public = solvers.admm(X, y, **how)
    np.testing.assert_allclose(private.coef, public.coef, atol=30 * private.plan.sensitivity)
    assert math.isinf(private.guarantee.epsilon(1e-5)) and public.guarantee is None


@pytest.mark.parametrize("layout", [np.array, sparse.csr_matrix], ids=["dense", "csr"])
def test_admm_finds_the_lasso_optimum(layout):
    """The KKT conditions of mean (y - Xw)^2/2 + weight |w|_1, to the precision of the iteration."""
    rng = np.random.default_rng(0)
    X, truth, weight = rng.standard_normal((80, 12)), np.zeros(12), 0.1
    truth[[2, 7]] = 1.0, -0.6
    y = X @ truth + 0.2 * rng.standard_normal(80)
    w = solvers.admm(layout(X), y, loss="squared", penalty="l1", weight=weight, rho=1.0, steps=150).coef
    slope = X.T @ (X @ w - y) / 80
    kept = w != 0
    assert 2 <= kept.sum() < 12
    np.testing.assert_allclose(slope[kept], -weight * np.sign(w[kept]), atol=1e-6)
    assert (np.abs(slope[~kept]) <= weight + 1e-6).all()


def test_square_roots_find_the_support_with_less_bias():
    rng = np.random.default_rng(1)
    X, truth = rng.standard_normal((200, 15)), np.zeros(15)
    truth[[2, 7]] = 2.0, -1.5
    y = X @ truth + 0.2 * rng.standard_normal(200)
    found = {
        p: solvers.admm(X, y, loss="squared", penalty=p, weight=0.3, rho=1.0, steps=100).coef for p in ("l1", "l1/2")
    }
    assert set(np.flatnonzero(found["l1/2"])) == {2, 7}
    assert np.linalg.norm(found["l1/2"] - truth) < 0.5 * np.linalg.norm(found["l1"] - truth)


# --- what one record can do -----------------------------------------------------------------------


@settings(max_examples=60)
@given(
    st.sampled_from(list(LOSSES)), st.sampled_from(["replace-one", "zero-out"]), st.booleans(), st.integers(0, 10**6)
)
def test_no_neighbour_moves_a_minimiser_by_more_than_the_sensitivity(loss, adjacency, intercept, seed):
    """At any public centre; what is compared is what the run adds noise to."""
    rng = np.random.default_rng(seed)
    n, d = 6, 3
    X, y = rng.standard_normal((n, d)) * 10 ** rng.uniform(-2, 2), rng.integers(0, 2, n) * 1.0
    X2, y2 = X.copy(), y.copy()
    X2[0] = 0.0 if adjacency == "zero-out" else -X[0] * rng.uniform(0, 2)
    y2[0] = 1 - y[0]
    plan = make_plan(
        n=n, d=d, rho=10 ** rng.uniform(-3, 2), loss=loss, adjacency=adjacency, fit_intercept=intercept, **LOSSES[loss]
    )
    centre = rng.standard_normal(d + intercept) * 10 ** rng.uniform(-2, 1)
    one, two = (minimiser(plan, a, b, centre) for a, b in ((X, y), (X2, y2)))
    assert np.linalg.norm(one - two) <= plan.sensitivity


def minimiser(plan, X, y, centre, counts=None):
    run = solvers.bind(plan, X, y, counts)
    return minimise.minimise(run.problem(centre), run.tau).theta


@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
@pytest.mark.parametrize("loss", ["huber", "hinge", "logistic"])
def test_some_pair_moves_a_minimiser_by_nearly_the_whole_sensitivity(loss, adjacency):
    """Nearly: but for tau; for signed slopes but for what a crowd can push."""
    plan = make_plan(n=2000, d=2, loss=loss, rho=5.0, adjacency=adjacency)
    first, second = audit.pairs.dp_admm(plan)
    centre = np.array([0.0 if loss == "huber" else -200.0, 0.0])
    one, two = (minimiser(plan, c.X, c.y, centre, c.counts) for c in (first, second))
    assert 0.95 * plan.sensitivity < np.linalg.norm(one - two) <= plan.sensitivity


@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
def test_the_pair_with_an_intercept_is_as_tight(adjacency):
    plan = make_plan(n=20, d=2, loss="huber", rho=1.0, row_norm=2.0, adjacency=adjacency, fit_intercept=True)
    pair = audit.pairs.dp_admm(plan)
    one, two = (minimiser(plan, c.X, c.y, np.array([1.0, 0.0, -3.0]), c.counts) for c in pair)
    np.testing.assert_allclose((one - two) @ pair.scores["final"].direction, plan.sensitivity, rtol=3e-3)
    path = solvers.bind(plan, *pair.first.expand())(np.random.default_rng(0), trace=True).releases
    assert pair.scores["releases"](path.reshape(1, -1)).shape == (1,)


def test_a_sensitivity_of_one_gradient_or_of_rho_without_n_is_exceeded():
    """Planted faults: the pair of the test above moves the minimiser by more than either would allow for."""
    plan = make_plan(n=50, d=1, loss="huber", rho=1.0)
    first, second = audit.pairs.dp_admm(plan)
    one, two = (minimiser(plan, c.X, c.y, np.zeros(1), c.counts) for c in (first, second))
    moved = float(np.linalg.norm(one - two))
    assert moved > 1.9 * plan.sensitivity / 2
    run = solvers.bind(plan, first.X, first.y, first.counts)
    run.sums = replace(run.sums, mean_l2=run.sums.mean_l2 / plan.n)
    other = solvers.bind(plan, second.X, second.y, second.counts)
    other.sums = run.sums
    tau = 1e-3
    wrong = [minimise.minimise(r.problem(np.zeros(1)), tau).theta for r in (run, other)]
    assert float(np.linalg.norm(wrong[0] - wrong[1])) > 40 * plan.sensitivity


# --- audits ---------------------------------------------------------------------------------------


def test_the_preset_is_nearly_tight_and_half_the_noise_is_caught():
    plan = presets.plan("dp_admm", 2.0, 1e-5)
    pair = presets.pair(plan)
    assert pair.reach["releases"] > 0.99
    how = {"trials": 1500, "confidence": 1 - ALPHA, "rng": 0, "adversary": "releases"}
    report = audit.audit(plan, pair, **how)
    assert not report.violated and 0.3 < report.epsilon_lower <= 2.0
    assert audit.audit(plan.with_noise(factor=0.5), pair, as_claim(plan.guarantee), **how).violated


def test_minimisers_that_are_released_without_noise_at_one_update_are_caught():
    """A planted fault: the first update is released as it is, the others with their noise."""
    plan = presets.plan("dp_admm", 2.0, 1e-5)
    pair = presets.pair(plan)

    def faulty(data, rng):
        run = solvers.bind(plan, *data)
        exact = minimise.minimise(run.problem(np.zeros(plan.d)), run.tau).theta
        return np.concatenate([exact, run(rng, trace=True).releases[1:].ravel()])

    unscored = replace(pair, scores={}, reach={})
    assert audit.audit(faulty, unscored, plan.guarantee, trials=400, confidence=1 - ALPHA, rng=0).violated


# --- size -----------------------------------------------------------------------------------------


def test_many_features_take_memory_like_the_data():
    """RCV1's width: an array of n x d entries would take 150 MB, one of d x d 18 GB."""
    rng, n, d = np.random.default_rng(0), 400, 47236
    X = sparse.random(n, d, density=60 / d, random_state=1, format="csr")
    y = (rng.random(n) < 0.5) * 1.0
    plan = make_plan(n=n, d=d, epsilon=8.0)
    # Once before: what a first fit compiles and imports also takes memory.
    solvers.bind(plan, X, y)(np.random.default_rng(0))
    tracemalloc.start()
    weights = solvers.bind(plan, X, y)(np.random.default_rng(0)).weights
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert weights.shape == (d,) and np.count_nonzero(weights) < 0.05 * d
    assert peak < 15e6, f"{peak / 1e6:.0f} MB"


def test_a_run_is_the_same_from_the_same_seed_and_not_from_another_plan():
    X, y = problem()
    how = {"loss": "logistic", "row_norm": 1.0, "delta": 1e-5, "rng": 7, "weight": 0.0}
    one, two = (solvers.dp_admm(X, y, epsilon=1.0, **how).coef for _ in range(2))
    np.testing.assert_array_equal(one, two)
    assert not np.allclose(one, solvers.dp_admm(X, y, epsilon=1.0000001, **how).coef)


def test_the_second_double_of_a_minimiser_goes_into_the_noise(monkeypatch):
    """A certified point has two doubles an entry: without the second it is another point than the certified one."""
    X, y = problem()
    run = solvers.bind(make_plan(n=60, d=5), X, y)
    released = {}
    for size in (0.0, 1.0):
        pair = np.full((1, 5), 2.0), np.full((1, 5), size)
        monkeypatch.setattr(newton, "minimise_rows", lambda problem, linears, tau, pair=pair: pair)
        released[size] = run(np.random.default_rng(0), True).releases
    assert len(released[1.0]) >= 1
    np.testing.assert_allclose(released[1.0][0] - released[0.0][0], 1.0, rtol=1e-9)
