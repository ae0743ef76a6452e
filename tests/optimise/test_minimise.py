"""The certified minimiser: it always arrives, its certificate is true, and a point further off is refused."""

from __future__ import annotations

import itertools
import math

import mpmath as mp
import numpy as np
import pytest
from scipy import sparse

from dptoolkit import data, losses
from dptoolkit.errors import InvalidValue
from dptoolkit.optimise import geometry, minimise

mp.mp.dps = 40
BALLS = {
    "none": None, "l2": geometry.l2_ball(1.0), "wide l2": geometry.l2_ball(100.0), "l1": geometry.l1_ball(1.5),
    "group": geometry.group_l1_ball(1.5, 4),
}  # fmt: skip
LOSSES = losses.CURVED
# The squared loss has a bounded gradient on a ball only.
CASES = [(loss, ball) for loss in LOSSES for ball in BALLS if (loss, ball) != ("squared", "none")]


def problem(loss="logistic", ball=None, *, n=60, d=11, l2=1.0, noise=3.0, seed=0, csr=False, duplicate=False):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * (rng.random((n, d)) < 0.6)
    if duplicate:
        X[:] = X[0]
    X = data.clip_rows(data.check_rows(X), 1.0).matrix
    score = X @ rng.standard_normal(d) * 4
    binary = losses.get(loss).task == losses.BINARY
    y = (score + rng.logistic(size=n) > 0).astype(float) if binary else np.clip(score, -3, 3)
    bound = 3.0 + ball.radius if loss == "squared" else 1.0
    return minimise.Problem(
        sparse.csr_matrix(X) if csr else X, y, losses.get(loss), l2, noise * rng.standard_normal(d), 1.0, bound, ball
    )


def exact_gradient(p, theta):
    """grad J by mpmath, 40 digits: nothing in common with the solver."""
    X = p.matrix.toarray() if sparse.issparse(p.matrix) else p.matrix
    with mp.workdps(40):
        out = [mp.mpf(p.l2) * t + mp.mpf(float(b)) for t, b in zip(theta, p.linear, strict=True)]
        for row, y in zip(X.tolist(), p.y.tolist(), strict=True):
            m = mp.fsum(mp.mpf(a) * t for a, t in zip(row, theta, strict=True))
            if p.loss.name == "logistic":
                r = 1 / (1 + mp.exp(-m)) - y
            elif p.loss.name == "hinge":
                sign = 2 * y - 1
                r = -sign * max(min((1 - sign * m) / mp.mpf(losses.HINGE_WIDTH), 1), 0)
            else:
                r = m - y
                r = max(min(r, 1), -1) if p.loss.name == "huber" else r
            out = [o + r * mp.mpf(a) for o, a in zip(out, row, strict=True)]
        return out


def exact_point(solution):
    return [mp.mpf(a) + mp.mpf(b) for a, b in zip(solution.theta.tolist(), solution.remainder.tolist(), strict=True)]


@pytest.mark.parametrize("tau", [1e-3, 1e-8, 1e-13, 1e-18, 1e-24])
@pytest.mark.parametrize(("loss", "ball"), CASES)
def test_every_tolerance_is_reached_and_verified_independently(loss, ball, tau):
    p = problem(loss, BALLS[ball], csr=tau > 1e-10)
    found = minimise.minimise(p, tau)
    assert found.bound <= tau
    assert minimise.verified_bound(p, found) <= tau
    if p.ball is None:
        gradient = exact_gradient(p, exact_point(found))
        assert float(mp.sqrt(mp.fsum(g * g for g in gradient))) <= tau


@pytest.mark.parametrize(("loss", "ball"), CASES)
def test_a_point_just_over_the_distance_is_refused(loss, ball):
    """tau/l2 away in any direction; the verification must say so, as J is l2-strongly convex."""
    p, tau = problem(loss, BALLS[ball], seed=3), 1e-6
    found = minimise.minimise(p, 1e-12)
    rng = np.random.default_rng(1)
    for _ in range(3):
        step = rng.standard_normal(p.d)
        step *= 1.001 * tau / p.l2 / np.linalg.norm(step)
        moved = found._replace(theta=found.theta + step)
        assert minimise.verified_bound(p, moved) > tau
        near = found._replace(theta=found.theta + step * 1e-4)
        assert minimise.verified_bound(p, near) <= 1e-3 * (p.l2 + p.curvature) * tau


def test_the_certificate_of_the_solver_refuses_it_too():
    p, tau = problem(), 1e-6
    level = minimise._Level(p, np.float64, "double")
    found = minimise.minimise(p, 1e-12)
    step = np.zeros(p.d)
    step[0] = 1.001 * tau / p.l2
    for theta, accepted in ((found.theta, True), (found.theta + step, False)):
        bound = minimise._certificate(p, level, theta, level.gradient(theta)).bound
        assert (bound <= tau) is accepted


def test_a_wrong_normal_is_refused():
    """A normal that the ball does not have at the point cancels the gradient on paper only."""
    p = problem("logistic", BALLS["l1"])
    inside = minimise.Solution(np.zeros(p.d), np.zeros(p.d), np.zeros((2, p.d)), 0.0, "double", 0)
    gradient = np.array([float(g) for g in exact_gradient(p, [mp.mpf(0)] * p.d)])
    forged = inside._replace(normal=np.stack([-gradient, np.zeros(p.d)]))
    assert minimise.verified_bound(p, forged) > 0.1


@pytest.mark.parametrize("loss", ["logistic", "huber", "hinge"])
@pytest.mark.parametrize("scale", [1.0, 1e3, 1e6])
def test_the_rounding_error_is_within_its_bound_and_the_bound_is_not_idle(loss, scale):
    """Doubles against 40 digits, far from the minimiser too."""
    p = problem(loss, n=150, d=5, seed=2)
    level = minimise._Level(p, np.float64, "double")
    theta = np.random.default_rng(4).standard_normal(p.d) * scale
    exact = exact_gradient(p, [mp.mpf(t) for t in theta.tolist()])
    got = level.gradient(theta)
    error = float(mp.sqrt(mp.fsum((mp.mpf(a) - b) ** 2 for a, b in zip(got.tolist(), exact, strict=True))))
    assert 0 < error <= minimise._error_at(p, level, theta) <= 1e-10 * (1 + scale)


def test_a_certificate_without_its_rounding_error_would_be_false():
    """The twin: the computed gradient alone accepts points that the exact one refutes; the certificate does not."""
    refuted = 0
    for seed in range(10):
        p = problem(seed=seed)
        theta = minimise.minimise(p, 1e-10).theta
        level = minimise._Level(p, np.float64, "double")
        for _ in range(20):
            theta = theta - level.gradient(theta) / (p.l2 + p.curvature / 4)
        computed = level.norm(level.gradient(theta))
        exact = float(mp.sqrt(mp.fsum(g * g for g in exact_gradient(p, [mp.mpf(t) for t in theta.tolist()]))))
        refuted += exact > 1.01 * computed
        assert minimise._certificate(p, level, theta, level.gradient(theta)).bound >= exact
    assert refuted > 0


@pytest.mark.parametrize("off", [1e-3, 1e-9, 0.0])
def test_a_projection_that_errs_is_part_of_the_certificate(off, monkeypatch):
    """One feature, rows at their bound, squared loss: a gradient step leads to the minimum without the ball.

    From the point that is off by what the projection admits, the gradient and the computed normal then cancel exactly,
    so that only the projection's own error tells how far the point is from the minimiser, which is the radius.
    """
    ball = geometry.l2_ball(1.0)
    p = minimise.Problem(np.ones((8, 1)), np.full(8, 4.0), losses.get("squared"), 0.5, np.zeros(1), 1.0, 5.0, ball)
    level = minimise._Level(p, np.float64, "double")
    monkeypatch.setattr(level, "project", lambda ball, v: (np.array([ball.radius + off]), off))
    theta = np.array([0.25])
    found = minimise._certificate(p, level, theta, level.gradient(theta))
    distance = p.l2 * abs(float(found.point[0]) - ball.radius)
    assert found.norm <= 1e-12, "the subgradient alone shows nothing of it"
    assert distance <= found.bound
    assert found.bound <= 100 * (p.l2 + p.curvature) * off + 1e-12, "and the certificate is not idle"
    # The twin: a projection that does not admit its error.
    monkeypatch.setattr(level, "project", lambda ball, v: (np.array([ball.radius + off]), 0.0))
    silent = minimise._certificate(p, level, theta, level.gradient(theta)).bound
    assert (silent < distance) is (off > 0)


def test_long_double_is_as_precise_as_it_says():
    if np.finfo(np.longdouble).eps >= 2.0**-60:
        pytest.skip("no long double on this machine")
    p = problem(n=150, d=5, seed=2)
    level = minimise._Level(p, np.longdouble, "extended")
    theta = level.cast(np.random.default_rng(4).standard_normal(p.d))
    exact = exact_gradient(p, [mp.mpf(float(t)) for t in theta])
    first, rest = level.pair(level.gradient(theta))
    parts = zip(first.tolist(), rest.tolist(), exact, strict=True)
    error = float(mp.sqrt(mp.fsum((mp.mpf(a) + mp.mpf(b) - e) ** 2 for a, b, e in parts)))
    assert error <= minimise._error_at(p, level, theta) < 1e-14


@pytest.mark.parametrize("case", [
    {"n": 1, "d": 1}, {"n": 1, "d": 40}, {"d": 1}, {"duplicate": True}, {"l2": 1e-4, "noise": 0.1}, {"l2": 1e6},
    {"noise": 1e8}, {"noise": 0.0}, {"noise": 1e-300},
])  # fmt: skip
@pytest.mark.parametrize("ball", ["none", "l2", "l1"])
def test_hard_cases_arrive(case, ball):
    for loss in [loss for loss, other in CASES if other == ball]:
        p = problem(loss, BALLS[ball], **case)
        tau = 1e-7 * max(1.0, case.get("noise", 1.0))
        found = minimise.minimise(p, tau)
        assert found.bound <= tau and minimise.verified_bound(p, found) <= tau


@pytest.mark.parametrize("loss", ["logistic", "huber", "hinge"])
@pytest.mark.parametrize(("l2", "noise", "seed"), [(1e-4, 3.0, 0), (3.5e-4, 1.1, 842057), (1e-6, 30.0, 1)])
def test_nearly_straight_losses_do_not_need_the_slow_path(loss, l2, noise, seed):
    """Far out the second derivative vanishes; gradient steps alone would take millions here."""
    p = problem(loss, n=99, d=43, l2=l2, noise=noise, seed=seed)
    found = minimise.minimise(p, 1e-6)
    assert found.bound <= 1e-6 and found.gradients < 2000


@pytest.mark.parametrize("block", [1, 3, 4])
def test_equal_rows_and_a_small_l2_on_a_ball_do_not_need_the_slow_path(block):
    ball = geometry.group_l1_ball(22.6, block)
    p = problem("huber", ball, n=98, d=5, l2=2e-4, noise=0.06, seed=400834, csr=True, duplicate=True)
    found = minimise.minimise(p, 1e-10)
    assert found.gradients < 5000 and minimise.verified_bound(p, found) <= 1e-10


def test_rows_and_columns_of_zeros():
    zero = minimise.Problem(sparse.csr_matrix((4, 3)), np.ones(4), losses.get("logistic"), 2.0, np.ones(3), 1.0, 1.0)
    found = minimise.minimise(zero, 1e-12)
    assert found.theta == pytest.approx(-0.5 * np.ones(3))


def test_gradient_steps_alone_arrive_where_newton_does(monkeypatch):
    """The guaranteed path: Newton steps that never help change the time, not the outcome."""
    monkeypatch.setattr(minimise, "_newton", lambda problem, level, start, tau, curvature: start)
    monkeypatch.setattr(minimise, "_face_newton", lambda problem, level, start, tau, curvature: start)
    few_precisions(monkeypatch)
    for loss, ball in CASES:
        for l2 in (5.0, 1e30):
            p = problem(loss, BALLS[ball], l2=l2)
            found = minimise.minimise(p, 1e-10)
            assert found.bound <= 1e-10 and minimise.verified_bound(p, found) <= 1e-10
            assert found.gradients <= 3 * (1 + p.curvature / (2 * p.l2)) * math.log(3 * (1 + p.curvature / p.l2) * 1e13)


@pytest.mark.parametrize("block", ["no ball", None, 1, 4])
@pytest.mark.parametrize(("size", "l2"), [(1e-100, 1e-140), (1e-139, 1e-138), (1e-60, 1e138), (1e69, 1e138)])
def test_public_bounds_of_any_magnitude_arrive(size, l2, block, monkeypatch):
    """Products of three such numbers underflow: a search that stands still for that must not go on for ever."""
    few_precisions(monkeypatch)
    usual = problem("logistic")
    around = None if block == "no ball" else geometry.Ball(size / l2, block)
    p = minimise.Problem(usual.matrix * size, usual.y, usual.loss, l2, usual.linear * size, size, 1.0, around)
    found = minimise.minimise(p, 1e-3 * size)
    assert minimise.verified_bound(p, found) <= 1e-3 * size and found.precision != "decimal"


def few_precisions(monkeypatch):
    """A search that does not arrive fails instead of trying more and more digits."""
    levels = minimise._levels
    monkeypatch.setattr(minimise, "_levels", lambda p: itertools.islice(levels(p), 3))


def test_without_long_double_decimals_take_over(monkeypatch):
    monkeypatch.setattr(minimise.np, "longdouble", np.float64)
    p = problem()
    found = minimise.minimise(p, 1e-14)
    assert found.precision == "decimal" and minimise.verified_bound(p, found) <= 1e-14


def test_dense_and_csr_agree():
    for ball in BALLS.values():
        dense, rows = (minimise.minimise(problem("logistic", ball, csr=csr), 1e-12) for csr in (False, True))
        assert dense.theta == pytest.approx(rows.theta, abs=3e-12)


def test_the_minimum_on_a_ball_beats_other_points_of_it():
    rng = np.random.default_rng(0)
    for name in ("l2", "l1", "group"):
        p = problem("logistic", BALLS[name])

        def value(w, p=p):
            return p.n * p.loss.objective(p.matrix @ w, p.y) + p.l2 / 2 * w @ w + p.linear @ w

        best = minimise.minimise(p, 1e-10).theta
        assert p.ball.gauge(best) <= 1 + 1e-12
        for scale in (1e-3, 0.1, 10.0):
            other = p.ball.project(best + scale * rng.standard_normal(p.d))
            assert value(best) < value(other)


def test_mean_and_sum_scaling_have_the_same_minimiser():
    """mean loss + (l2/2)|w|^2 + <b, w> is the sum with n l2 and n b; forgetting the n is seen at once."""
    p, mean_l2 = problem(n=60, noise=3.0), 0.05
    mean_b = p.linear / p.n
    whole = minimise.Problem(p.matrix, p.y, p.loss, p.n * mean_l2, p.n * mean_b, 1.0, 1.0)
    forgotten = minimise.Problem(p.matrix, p.y, p.loss, mean_l2, p.n * mean_b, 1.0, 1.0)

    def mean_gradient(w):
        return p.matrix.T @ p.loss.residual(p.matrix @ w, p.y) / p.n + mean_l2 * w + mean_b

    assert np.linalg.norm(mean_gradient(minimise.minimise(whole, 1e-10).theta)) <= 1e-10 / p.n * 1.01
    assert np.linalg.norm(mean_gradient(minimise.minimise(forgotten, 1e-10).theta)) > 1e-3


# --- a tolerance that can be reached --------------------------------------------------------------


PUBLIC = {"row_norm": 1.0, "residual_bound": 1.0, "smoothness": 0.25, "noise": 10.0, "offset": 0.01}


def test_the_usual_tolerance_follows_the_rule_of_thumb():
    found = minimise.reachable_tolerance(n=1000, d=20, l2=1.0, **PUBLIC)
    assert found.scale == pytest.approx(0.05 * 10 / 251)
    assert 2 * found.tau / found.scale == pytest.approx(0.01)


@pytest.mark.parametrize("n", [1, 1000, 10**5, 10**9])
@pytest.mark.parametrize("d", [1, 47236, 10**7])
@pytest.mark.parametrize("radius", [None, 1.0])
def test_the_tolerance_is_above_the_rounding_error_of_long_double(n, d, radius):
    found = minimise.reachable_tolerance(n=n, d=d, l2=1.0, radius=radius, **PUBLIC)
    linear = 10 * math.sqrt(d)
    error = minimise.rounding_error(
        n=n, nonzeros=d, row_norm=1.0, residual_bound=1.0, smoothness=0.25, l2=1.0,
        theta_norm=min(n + linear, radius or math.inf), linear_norm=linear, unit=2.0**-64,
    )  # fmt: skip
    assert math.isfinite(found.scale) and found.tau >= 3.9 * error
    assert 2 * found.tau / found.scale == pytest.approx(0.01)


def test_planned_tolerances_are_reached_without_decimals():
    for n, d in ((50, 5), (3000, 40)):
        for ball in (None, BALLS["l1"]):
            tol = minimise.reachable_tolerance(n=n, d=d, l2=1.0, radius=ball and ball.radius, **PUBLIC)
            p = problem(ball=ball, n=n, d=d, noise=10.0, csr=True)
            assert minimise.minimise(p, tol.tau).precision in ("double", "extended")


def test_bad_values():
    p = problem()
    with pytest.raises(InvalidValue, match="tau=0"):
        minimise.minimise(p, 0.0)
    with pytest.raises(InvalidValue, match="l2=0"):
        problem(l2=0.0)
    with pytest.raises(InvalidValue, match="linear"):
        minimise.Problem(p.matrix, p.y, p.loss, 1.0, np.full(p.d, np.nan), 1.0, 1.0)
    with pytest.raises(InvalidValue, match="y.shape"):
        minimise.Problem(p.matrix, p.y[1:], p.loss, 1.0, p.linear, 1.0, 1.0)
    with pytest.raises(InvalidValue, match="two doubles an entry"):
        minimise.minimise(p, 1e-300)
    with pytest.raises(InvalidValue, match="ball=None"):
        minimise.Problem(p.matrix, p.y, losses.get("squared"), 1.0, p.linear, 1.0, 1.0)
    with pytest.raises(InvalidValue, match="softmax"):
        minimise.Problem(p.matrix, p.y, losses.get("softmax"), 1.0, p.linear, 1.0, 1.0)
    with pytest.raises(InvalidValue, match="offset"):
        minimise.reachable_tolerance(n=1, d=1, l2=1.0, **{**PUBLIC, "offset": 0.0})


def test_nothing_of_size_d_squared_is_made():
    """d = 47236: a square matrix would need 17 GB, so that arriving is the proof."""
    rng = np.random.default_rng(0)
    X = sparse.random(200, 47236, density=1e-3, format="csr", random_state=0)
    X = data.clip_rows(data.check_rows(X), 1.0).matrix
    for ball in (None, geometry.l1_ball(5.0), geometry.group_l1_ball(5.0, 10)):
        y = (rng.random(200) < 0.5).astype(float)
        p = minimise.Problem(X, y, losses.get("logistic"), 1.0, rng.standard_normal(47236), 1.0, 1.0, ball)
        found = minimise.minimise(p, 1e-7)
        assert found.bound <= 1e-7
        assert minimise.verified_bound(p, found) <= 1e-7
