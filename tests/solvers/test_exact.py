"""Without noise: the private solvers are the plain ones, and the plain ones reach what optimality conditions demand."""

from __future__ import annotations

import inspect
import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from dptoolkit import losses, solvers
from dptoolkit.errors import InvalidValue
from tests.solvers.frame.test_plans import EVERY

LAYOUTS = {"dense": np.array, "csr": sparse.csr_matrix}
BOUNDS = {  # wide enough that nothing is clipped
    "logistic": {"row_norm": 1e3},
    "huber": {"row_norm": 1e3},
    "hinge": {"row_norm": 1e3},
    "squared": {"row_norm": 1e3, "label_bound": 1e3, "margin_bound": 1e9},
    "squared, clipped gradients": {"grad_norm": 1e9},
}


def regression(seed=0, n=60, d=12, s=3, noise=0.1):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    w = np.zeros(d)
    w[:s] = 2.0 * np.arange(1, s + 1)
    return X, X @ w + noise * rng.standard_normal(n), w


def labels(loss, y):
    return (y > 0) * 1.0 if losses.get(loss).task == losses.BINARY else y


# --- an infinite budget -------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("mode", BOUNDS)
def test_infinite_budget_is_ight(mode, intercept, layout):
    X, y, _ = regression()
    loss = mode.split(",")[0]
    common = {"loss": loss, "sparsity": 4, "steps": 15, "step_size": 0.05, "fit_intercept": intercept}
    X, y = LAYOUTS[layout](X), labels(loss, y)
    private = solvers.dp_ight(X, y, epsilon=math.inf, **common, **BOUNDS[mode])
    plain = solvers.ight(X, y, **common)
    assert np.array_equal(private.coef, plain.coef) and private.intercept == plain.intercept
    assert math.isinf(private.guarantee.epsilon(1e-6)) and plain.guarantee is None
    assert private.plan.noise == 0 and set(private.history["noise_scale"]) <= {0.0}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("loss", losses.SCALAR)
def test_infinite_budget_is_frank_wolfe(loss, intercept, layout):
    X, y, _ = regression()
    X /= np.abs(X).max()
    common, y = {"loss": loss, "l1_radius": 4.0, "steps": 60}, labels(loss, y)
    private = solvers.dp_frank_wolfe(
        LAYOUTS[layout](X), y, epsilon=math.inf, feature_bound=1.0, label_bound=1e3, fit_intercept=intercept, **common
    )
    # The intercept is a column at a tenth of the feature bound.
    columns = np.hstack([X, np.full((len(X), 1), 0.1)]) if intercept else X
    plain = solvers.frank_wolfe(LAYOUTS[layout](columns), y, **common)
    assert np.array_equal(private.coef, plain.coef[: X.shape[1]])
    assert private.intercept == (0.1 * plain.coef[-1] if intercept else 0.0)
    assert np.array_equal(private.history["vertices"], plain.history["vertices"])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_clipping_happens_without_privacy_too(layout):
    """epsilon=inf is Frank-Wolfe on CLIPPED data."""
    X, y, _ = regression()
    y = labels("logistic", y)
    private = solvers.dp_frank_wolfe(
        LAYOUTS[layout](X), y, epsilon=math.inf, feature_bound=0.5, loss="logistic", l1_radius=4.0, steps=40
    )
    clipped = solvers.frank_wolfe(np.clip(X, -0.5, 0.5), y, loss="logistic", l1_radius=4.0, steps=40)
    np.testing.assert_allclose(private.coef, clipped.coef, rtol=1e-12)


def test_infinite_budgets_of_the_others():
    """Peeling and multinomial selections without noise, against a few plain lines."""
    X, y, _ = regression(n=40, d=6)
    A, b = np.clip(X, -1, 1), np.clip(y, -5, 5)
    peeled = solvers.peeling_iht(
        X, y, sparsity=2, steps=10, step_size=0.5, radius=20.0, epsilon=math.inf, feature_bound=1.0, label_bound=5.0
    )
    w = np.zeros(6)
    for _ in range(10):
        v = w - 0.5 * A.T @ (A @ w - b) / 40
        w = np.where(np.abs(v) >= np.sort(np.abs(v))[-2], v, 0.0)
    np.testing.assert_allclose(peeled.coef, w, rtol=1e-12)

    classes = np.digitize(y, [-3, 3])
    W = np.zeros((3, 6))
    for t in range(1, 31):
        gradient = (A.T @ (losses.softmax(A @ W.T) - np.eye(3)[classes])).T / 40
        k = np.unravel_index(np.argmax(np.abs(gradient)), W.shape)
        W = (1 - 2 / (t + 2)) * W
        W[k] -= 2 / (t + 2) * 5.0 * np.sign(gradient[k])
    softmax = solvers.dp_multinomial_frank_wolfe(
        X, classes, classes=3, l1_radius=5.0, steps=30, epsilon=math.inf, feature_bound=1.0
    )
    np.testing.assert_allclose(softmax.coef, W, rtol=1e-12)


# --- hard thresholding --------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("loss", losses.SCALAR)
def test_ight_ends_at_a_fixed_point(loss, intercept, layout):
    """The gradient vanishes on the support, and no step off it would enter: step |g_j| <= smallest kept |w_j|."""
    X, y, _ = regression(noise=0.5)
    y = labels(loss, y)
    step = 0.8 / (losses.get(loss).smoothness * np.linalg.norm(X, 2) ** 2 / len(y))
    result = solvers.ight(
        LAYOUTS[layout](X),
        y,
        loss=loss,
        sparsity=3,
        steps=3000,
        step_size=step,
        fit_intercept=intercept,
        diagnostics=True,
    )
    w, support = result.coef, np.flatnonzero(result.coef)
    margin = X @ w + result.intercept
    r = losses.get(loss).residual(margin, y)
    gradient = X.T @ r / len(y)
    if losses.get(loss).task == losses.BINARY:
        # Nearly separable: the minimiser is far out, so look for progress only.
        assert np.abs(gradient[support]).max() < 0.02
    else:
        assert np.abs(gradient[support]).max() < 1e-10
        off = np.delete(gradient, support)
        assert step * np.abs(off).max() <= np.abs(w[support]).min()
        if intercept:
            assert abs(r.mean()) < 1e-10
    seen = result.history["not_private"]
    assert seen["objective"] == pytest.approx(losses.get(loss).objective(margin, y), rel=1e-12)
    assert len(seen["objectives"]) == 3000 and seen["objectives"][-1] == pytest.approx(seen["objective"], rel=1e-12)
    assert seen["objective"] <= min(seen["objectives"]) * (1 + 1e-9)


def test_ight_finds_the_truth():
    X, y, w = regression(noise=0.01)
    result = solvers.ight(X, y, loss="squared", sparsity=3, steps=500, step_size=0.5)
    np.testing.assert_allclose(result.coef, w, atol=0.02)
    # With the support known, what is left is least squares.
    expected = np.linalg.lstsq(X[:, :3], y, rcond=None)[0]
    np.testing.assert_allclose(result.coef[:3], expected, rtol=1e-9)


@given(st.integers(0, 2**32), st.sampled_from(losses.SCALAR), st.integers(1, 4))
def test_one_step_is_the_specification(seed, loss, s):
    from dptoolkit.kernels import reference

    rng = np.random.default_rng(seed)
    X, y = rng.standard_normal((5, 4)), labels(loss, rng.standard_normal(5))
    w = np.zeros(4)
    for _ in range(3):
        w = reference.threshold_step(X, y, w, losses.get(loss), 0.7, np.zeros(4), s)
    for layout in LAYOUTS.values():
        result = solvers.ight(layout(X), y, loss=loss, sparsity=s, steps=3, step_size=0.7)
        np.testing.assert_allclose(result.coef, w, rtol=1e-9, atol=1e-12)


# --- Frank-Wolfe --------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("loss", losses.SCALAR)
def test_duality_gap_certifies_frank_wolfe(loss, layout):
    """gap >= objective - optimum >= 0, the gap gets small, and the optimum is bracketed from both sides."""
    X, y, _ = regression(noise=0.5)
    y = labels(loss, y / 5)
    fits = [
        solvers.frank_wolfe(LAYOUTS[layout](X), y, loss=loss, l1_radius=1.5, steps=steps, diagnostics=True)
        for steps in (20, 200, 4000)
    ]
    found = [fit.history["not_private"] for fit in fits]
    best = found[-1]["objective"]
    for one in found:
        assert one["duality_gap"] >= one["objective"] - best - 1e-12
        assert one["duality_gap"] >= 0
    assert found[-1]["duality_gap"] < 5e-3
    assert np.abs(fits[-1].coef).sum() <= 1.5 * (1 + 1e-12)
    assert found[0]["objective"] > found[1]["objective"] > found[2]["objective"]


def test_lasso_agrees_with_scikit_learn():
    """Lasso with penalty alpha solves the constrained problem whose radius is the L1 norm of its own solution."""
    linear_model = pytest.importorskip("sklearn.linear_model", reason="scikit-learn is in the test extra")
    X, y, _ = regression(noise=0.5)
    model = linear_model.Lasso(alpha=0.3, fit_intercept=False, tol=1e-12, max_iter=100_000).fit(X, y)
    radius = np.abs(model.coef_).sum()
    result = solvers.frank_wolfe(X, y, loss="squared", l1_radius=radius, steps=20_000, diagnostics=True)
    loss = losses.get("squared")
    optimum = loss.objective(X @ model.coef_, y)
    objective, gap = (result.history["not_private"][k] for k in ("objective", "duality_gap"))
    assert optimum - 1e-9 <= objective <= optimum * (1 + 1e-4)
    assert objective - gap <= optimum + 1e-9
    np.testing.assert_allclose(result.coef, model.coef_, atol=0.02)


def test_logistic_regression_agrees_with_scikit_learn():
    linear_model = pytest.importorskip("sklearn.linear_model", reason="scikit-learn is in the test extra")
    X, y, _ = regression(seed=4, n=120, noise=8.0)
    y = labels("logistic", y)
    model = linear_model.LogisticRegression(
        l1_ratio=1.0, solver="liblinear", C=0.2, fit_intercept=False, tol=1e-10, max_iter=10_000
    )
    try:
        model.fit(X, y)
    except ValueError:  # scikit-learn before 1.8 has another name for it
        model.set_params(penalty="l1", l1_ratio=None).fit(X, y)
    w = model.coef_[0]
    radius = np.abs(w).sum()
    result = solvers.frank_wolfe(X, y, loss="logistic", l1_radius=radius, steps=20_000, diagnostics=True)
    optimum = losses.get("logistic").objective(X @ w, y)
    objective, gap = (result.history["not_private"][k] for k in ("objective", "duality_gap"))
    assert optimum - 1e-8 <= objective <= optimum * (1 + 1e-4)
    assert objective - gap <= optimum + 1e-8
    assert 0 < np.count_nonzero(w) < len(w), "the problem must be a sparse one"


@pytest.mark.parametrize("name", EVERY)
def test_diagnostics_and_traces_are_asked_for(name):
    """Of every private solver: looking changes nothing, and a trace ends at the result."""
    X, y, _ = regression()
    y = labels("logistic", y)
    solve = partial(getattr(solvers, name), X, y, rng=1, **EVERY[name])
    plain = solve()
    assert "not_private" not in plain.history and "iterates" not in plain.history
    with_them = solve(diagnostics=True)
    assert math.isfinite(with_them.history["not_private"]["objective"])
    assert np.array_equal(with_them.coef, plain.coef)
    for trace in (True, 2):
        traced = solve(trace=trace)
        assert np.array_equal(traced.coef, plain.coef)
        step, support, values = traced.history["iterates"][-1]
        # What comes after the last step drops weights, or scales them all.
        if name not in ("sparsifier", "dp_pipeline"):
            last = np.zeros(plain.coef.size)
            last[support] = values
            np.testing.assert_allclose(last, plain.coef.ravel(), rtol=1e-12, atol=1e-15)
        assert step > 0 and not {"X", "y"} & set(traced.history)


PLAIN = {
    "ight": {"sparsity": 3, "steps": 7, "step_size": 0.5},
    "frank_wolfe": {"l1_radius": 2.0, "steps": 7},
    "admm": {"weight": 0.01, "rho": 0.5, "steps": 7},
    "sgd_ht": {"sparsity": 3, "steps": 7, "batch_size": 9, "step_size": 0.5, "rng": 0},
    "svrg_ht": {"sparsity": 3, "epochs": 7, "batch_size": 9, "step_size": 0.1, "rng": 0},
}


@pytest.mark.parametrize("name", PLAIN)
def test_a_fit_without_privacy_can_be_traced(name):
    """By the same argument as a private fit: looking changes nothing, and every second iterate ends with the last."""
    X, y, _ = regression()
    y = labels("logistic", y)
    assert "trace" in inspect.signature(getattr(solvers, name)).parameters
    solve = partial(getattr(solvers, name), X, y, loss="logistic", fit_intercept=True, **PLAIN[name])
    plain, traced = solve(), solve(trace=2)
    assert "iterates" not in plain.history and len(traced.history["iterates"]) == 4
    _, support, values = traced.history["iterates"][-1]
    last = np.zeros(X.shape[1] + 1)
    last[support] = values
    for result in (plain, traced):
        np.testing.assert_allclose(last, [*result.coef, result.intercept], rtol=1e-12, atol=1e-15)
    with pytest.raises(InvalidValue, match=r"^trace=0"):
        solve(trace=0)


def test_default_step_is_one_over_the_smoothness():
    for loss in losses.SCALAR:
        more = {"label_bound": 1.0, "margin_bound": 1.0} if loss == "squared" else {}
        for intercept in (False, True):
            plan = solvers.plan(
                "dp_ight",
                n=10,
                d=3,
                loss=loss,
                sparsity=1,
                steps=1,
                epsilon=1.0,
                delta=1e-6,
                row_norm=2.0,
                fit_intercept=intercept,
                **more,
            )
            squares = 4.0 + intercept
            assert plan.settings.step_size == pytest.approx(1 / (losses.get(loss).smoothness * squares))
