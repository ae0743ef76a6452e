"""Rules instead of tuning: whatever is left out follows from public numbers, is usable, and keeps the budget."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dptoolkit import solvers
from dptoolkit.accounting import gaussian
from dptoolkit.errors import InvalidValue
from dptoolkit.solvers.engine import bounds
from dptoolkit.solvers.frame import rules

pytestmark = [
    pytest.mark.filterwarnings("ignore::dptoolkit.solvers.DeltaWarning"),
    pytest.mark.filterwarnings("ignore::dptoolkit.solvers.HopelessPlanWarning"),
]
BUDGET = {"epsilon": 2.0, "delta": 1e-5}
# The least that a caller must say: loss, bounds, and the sparsity where a solver has one.
LEAST = {
    "dp_ight": {"loss": "logistic", "row_norm": 1.0, "sparsity": 3},
    "dp_dual_averaging": {"loss": "logistic", "row_norm": 1.0},
    "dp_sgd_ht": {"loss": "logistic", "row_norm": 1.0, "sparsity": 3},
    "dp_frank_wolfe": {"loss": "logistic", "feature_bound": 1.0},
    "objective_perturbation": {"loss": "logistic", "row_norm": 1.0},
    "two_stage": {"loss": "logistic", "row_norm": 1.0, "sparsity": 3, "blocks": 60},
    "dp_pipeline": {},
}


def problem(n):
    rng = np.random.default_rng(3)
    X = rng.standard_normal((n, 6))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    return X, (X[:, 0] - X[:, 1] > 0).astype(float)


@pytest.mark.parametrize("name", LEAST)
def test_bounds_and_budget_are_enough_to_learn(name):
    """A coin has 0.5; the seed is fixed."""
    X, y = problem(4000)
    fit = getattr(solvers, name)(X, y, **LEAST[name], **BUDGET, rng=1)
    assert np.mean((solvers.margins(fit, X) > 0) != y) < 0.2
    assert fit.guarantee.epsilon(1e-5) <= 2.0
    again = solvers.plan(name, n=4000, d=6, **fit.plan.settings.to_dict())
    assert again == fit.plan, "the plan says what was filled in"


@pytest.mark.parametrize("name", ["dp_sgd_ht", "dp_frank_wolfe", "objective_perturbation"])
@given(n=st.integers(1, 10**7), epsilon=st.floats(1e-3, 50.0), delta=st.sampled_from([1e-9, 1e-5, 0.01]),
       size=st.floats(1e-3, 1e3), loss=st.sampled_from(["logistic", "huber"]))  # fmt: skip
@settings(max_examples=6)
def test_rules_hold_for_all_public_numbers(name, n, epsilon, delta, size, loss):
    bound = "feature_bound" if name == "dp_frank_wolfe" else "row_norm"
    given_bounds = LEAST[name] | {"loss": loss, bound: size}
    plan = solvers.plan(name, n=n, d=50, epsilon=epsilon, delta=delta, **given_bounds)
    assert plan.guarantee.epsilon(delta) <= epsilon


@pytest.mark.every(2)
@pytest.mark.parametrize("n", [2000, 200_000])
def test_batches_are_hardly_noisier_than_whole_passes(n):
    """The noise that a margin carries in the end, beside that of the rule for all rows."""
    plan = solvers.plan("dp_sgd_ht", n=n, d=50, **LEAST["dp_sgd_ht"], **BUDGET)
    s = plan.settings
    assert s.batch_size < n
    noise = s.step_size * math.sqrt(s.steps) * plan.noise
    assert noise <= 1.15 * rules.MARGIN_NOISE
    shared = LEAST["dp_sgd_ht"] | BUDGET
    smaller = solvers.plan("dp_sgd_ht", n=n, d=50, **shared, batch_size=s.batch_size // 8)
    assert smaller.noise > 1.4 * plan.noise, "much smaller batches are noisier"


def test_batch_size_ends_at_all_rows():
    assert rules.batch_size(100, 20, math.inf) == rules.batch_size(100, 20, 2.0) == 100
    assert rules.batch_size(100, 1500, 1e-9) == 1


def test_penalty_holds_the_noise_of_a_margin_down():
    """row norm * noise / l2 bounds it; the noise has a little more than the rule counts, for the change of volume."""
    plan = solvers.plan("objective_perturbation", n=5000, d=50, loss="logistic", row_norm=2.0, **BUDGET)
    noise = 2.0 * plan.noise / plan.settings.l2
    assert rules.PERTURBED_MARGIN_NOISE * 0.9 <= noise <= rules.PERTURBED_MARGIN_NOISE * 1.1
    without = solvers.plan("objective_perturbation", n=5000, d=50, loss="logistic", row_norm=2.0, epsilon=math.inf)
    assert without.settings.l2 == pytest.approx(0.25 * 4 / 5000)


def test_selections_leave_the_signal_above_the_noise():
    """Gumbel noise on the mean gradient, times log(2d), is what the rule allows, unless there are the fewest steps."""
    for n in (20_000, 50_000):
        plan = solvers.plan("dp_frank_wolfe", n=n, d=500, loss="logistic", feature_bound=1.0, **BUDGET)
        s = plan.settings
        assert rules.FEWEST_VERTICES < s.steps < rules.MOST_VERTICES
        hidden = plan.noise / s.l1_radius * math.log(1000)
        assert 0.8 * rules.HIDDEN_SIGNAL <= hidden <= 1.2 * rules.HIDDEN_SIGNAL
    mu = gaussian.mu(2.0, 1e-5)
    assert rules.vertices(10, 10, 1.0, None, mu)[0] == rules.FEWEST_VERTICES
    assert rules.vertices(10**9, 10, 1.0, None, math.inf)[0] == rules.MOST_VERTICES


@pytest.mark.parametrize("level", [None, 1.0])
def test_the_intercept_of_selections_does_not_decide_all_labels(monkeypatch, level):
    """Rows of small entries and uneven labels: at the feature bound the intercept's column is chosen first."""
    if level is not None:
        monkeypatch.setattr(bounds, "INTERCEPT_LEVEL", level)
    rng = np.random.default_rng(0)
    X = 0.3 * rng.choice([-1.0, 1.0], (50_000, 8))
    X[:20_000, 0] = 0.3
    y = (X[:, 0] > 0).astype(float)
    fit = solvers.dp_frank_wolfe(X, y, loss="logistic", feature_bound=1.0, fit_intercept=True, rng=0, **BUDGET)
    first = int(fit.history["vertices"][0])
    error = np.mean((X @ fit.coef + fit.intercept > 0) != y)
    assert (first == 0 and error == 0) if level is None else first == 8


@pytest.mark.parametrize("classes", [2, 3, 20])
def test_softmax_is_measured_by_a_record_s_first_residual(classes):
    """Noise and clipping are 0.8 and half of it; for two classes that is the logistic fit with half the time."""
    first = np.linalg.norm(np.eye(classes)[0] - 1 / classes)
    shared = {"n": 5000, "d": 10, "loss": "softmax", "classes": classes} | BUDGET
    descent = solvers.plan("dp_dual_averaging", row_norm=1.0, **shared)
    s = descent.settings
    assert s.grad_norm == pytest.approx(first / 2)
    assert s.step_size * math.sqrt(s.steps) * descent.noise == pytest.approx(0.8 * first, rel=1e-3)
    piped = solvers.plan("dp_pipeline", **shared).settings
    assert (piped.grad_norm, piped.margin_noise) == pytest.approx((first / 2, 0.8 * first))
    binary = solvers.plan("dp_dual_averaging", n=5000, d=10, loss="logistic", row_norm=1.0, **BUDGET).settings
    if classes == 2:
        assert s.steps * s.step_size == pytest.approx(binary.steps * binary.step_size / 2)


@pytest.mark.parametrize(("name", "wrong"), [
    ("dp_sgd_ht", {"steps": 0}), ("dp_sgd_ht", {"batch_size": 0}), ("dp_sgd_ht", {"batch_size": 1001}),
    ("dp_sgd_ht", {"row_norm": None}), ("dp_frank_wolfe", {"steps": 0}), ("dp_frank_wolfe", {"l1_radius": -1.0}),
    ("dp_frank_wolfe", {"feature_bound": None}), ("objective_perturbation", {"l2": 0.0}),
    ("objective_perturbation", {"row_norm": None}),
])  # fmt: skip
def test_bad_values_are_still_refused(name, wrong):
    with pytest.raises(InvalidValue):
        solvers.plan(name, n=1000, d=6, **LEAST[name] | BUDGET | wrong)


def test_what_is_given_is_taken():
    plan = solvers.plan("dp_sgd_ht", n=1000, d=6, **LEAST["dp_sgd_ht"], **BUDGET, steps=7, batch_size=50)
    assert (plan.settings.steps, plan.settings.batch_size) == (7, 50)
    plan = solvers.plan("dp_frank_wolfe", n=1000, d=6, **LEAST["dp_frank_wolfe"], **BUDGET, steps=7)
    assert plan.settings.steps == 7 and plan.settings.l1_radius > 0
    plan = solvers.plan("dp_frank_wolfe", n=1000, d=6, **BUDGET, loss="squared", feature_bound=2.0, label_bound=5.0)
    assert plan.settings.l1_radius == 2.5
