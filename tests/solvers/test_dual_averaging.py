"""dp_dual_averaging: the queries move by no more than planned, the noise is the planned noise, sums are kept."""

from __future__ import annotations

import math
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from dptoolkit import audit, losses, solvers
from dptoolkit.audit import presets
from dptoolkit.data import check_rows
from dptoolkit.errors import InvalidValue
from dptoolkit.kernels import reference
from dptoolkit.solvers.engine import descent
from dptoolkit.solvers.engine.gradients import MeanGradient
from dptoolkit.solvers.frame import rules
from tests.strategies import neighbours

BUDGET = {"epsilon": 1.0, "delta": 1e-6, "steps": 3, "step_size": 0.5}
MODES = {
    "logistic": {"loss": "logistic", "row_norm": 1.5},
    "logistic, adaptive": {"loss": "logistic", "row_norm": 1.5, "adaptive": True},
    "hinge": {"loss": "hinge", "row_norm": 0.9},
    "huber": {"loss": "huber", "row_norm": 0.7},
    "squared, clipped gradients": {"loss": "squared", "grad_norm": 2.0},
    "squared, labels and margins": {"loss": "squared", "row_norm": 1.2, "label_bound": 2.0, "margin_bound": 1.5},
}
TASKS = {mode: losses.get(arguments["loss"]).task for mode, arguments in MODES.items()}


def problem(seed, n, d):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * (rng.random((n, d)) < 0.7)
    return X, (rng.random(n) < 0.5).astype(float)


def plain_loop(X, y, plan, noise=None):
    """The solver in plain NumPy, with the given standard normals, one row per step."""
    s = plan.settings
    rows, labels, caps = s.bounds.clip(check_rows(X), np.asarray(y, dtype=float))
    matrix, free = np.asarray(rows.matrix), plan.d
    noise_at, total = s.noise_law(plan), np.zeros(matrix.shape[1])
    kept = free if s.sparsity is None else s.sparsity
    protected = matrix.shape[1] - free
    for t in range(s.steps):
        w = reference.hard_threshold(total, kept, protected)
        blur = 0.0 if noise is None else noise_at(w) * noise[t]
        total = reference.dual_step(
            matrix, labels, total, s.loss_row, s.step_size, blur, kept, s.bounds.largest_margin, caps, protected
        )
    return reference.hard_threshold(total, kept, protected)


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("sparsity", [2, None])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_without_noise_it_is_the_plain_loop(mode, intercept, sparsity, small):
    X, y = problem(1, 30, 6)
    arguments = BUDGET | {"steps": 12, "sparsity": sparsity, "fit_intercept": intercept} | MODES[mode]
    arguments |= {"epsilon": math.inf}
    with mock.patch.object(descent, "SMALL", 50_000 if small else 0):
        for form in (X, sparse.csr_matrix(X)):
            fit = solvers.dp_dual_averaging(form, y, **arguments)
            expected = plain_loop(X, y, fit.plan)
            found = np.append(fit.coef, fit.intercept) if intercept else fit.coef
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("sparsity", [3, None])
@pytest.mark.parametrize("mode", MODES)
def test_the_noise_is_that_of_the_plan(mode, sparsity, small):
    """The run with recorded normals equals the specification with the plan's noise; nine tenths of it do not."""
    X, y = problem(2, 40, 7)
    plan = solvers.plan("dp_dual_averaging", n=40, d=7, **BUDGET | {"sparsity": sparsity} | MODES[mode])
    normals = np.random.default_rng(5).standard_normal((plan.settings.steps, 7))
    with mock.patch.object(descent, "SMALL", 50_000 if small else 0):
        run = solvers.bind(plan, X, y)
        found = run(np.random.default_rng(5)).weights
    np.testing.assert_allclose(found, plain_loop(X, y, plan, normals), rtol=1e-10, atol=1e-13)
    assert not np.allclose(found, plain_loop(X, y, plan, 0.9 * normals), rtol=1e-3)


def test_a_dropped_coordinate_keeps_its_sum():
    """Feature 2 leads at once, and feature 1 adds up unseen until its sum is larger; dp_ight never finds it."""
    X, y = np.eye(2), np.array([0.3, 0.31])
    arguments = {"loss": "squared", "grad_norm": 1.0, "sparsity": 1, "step_size": 0.1, "steps": 40}
    path = solvers.dp_dual_averaging(X, y, epsilon=math.inf, trace=True, **arguments).history["iterates"]
    seen = [int(support[0]) for _, support, _ in path]
    assert seen[0] == 1 and 0 in seen
    came = seen.index(0)
    # All its gradients so far were 0.3 / 2, at weight 0.
    assert path[came][2][0] == pytest.approx((came + 1) * 0.1 * 0.15)
    forgetful = solvers.dp_ight(X, y, epsilon=math.inf, trace=True, **arguments).history["iterates"]
    assert all(support[0] == 1 for _, support, _ in forgetful)


# --- sensitivity ---------------------------------------------------------------------------------------


def mean_gradient(X, y, plan, w):
    s = plan.settings
    rows, labels, caps = s.bounds.clip(s.validated_rows(X), s.labels(y, X.shape[0]))
    support = np.arange(len(w))
    return np.array(MeanGradient(rows, labels, s.loss_row, s.bounds.largest_margin, caps).noisy(support, w, 0.0, None))


@pytest.mark.parametrize("mode", MODES)
def test_one_record_moves_the_gradient_by_no_more_than_planned(mode):
    @given(neighbours(TASKS[mode]), st.integers(0, 2**31))
    def check(pair, seed):
        n, d = pair.X.shape
        plan = solvers.plan("dp_dual_averaging", n=n, d=d, **BUDGET | MODES[mode])
        noise_at = plan.settings.noise_law(plan)
        for size in (0.0, 0.3, 1.0, 10.0, 1e3):
            w = size * np.random.default_rng(seed).standard_normal(d)
            moved = np.linalg.norm(mean_gradient(pair.X, pair.y, plan, w) - mean_gradient(pair.X2, pair.y2, plan, w))
            assert moved <= plan.sensitivity * noise_at(w) / plan.noise * (1 + 1e-12)

    check()


@pytest.mark.parametrize("mode", MODES)
def test_some_record_moves_it_that_much(mode):
    """The same row with the opposite label, at w = 0; where margins are bounded too, labels are over half of it."""
    plan = solvers.plan("dp_dual_averaging", n=3, d=2, **BUDGET | MODES[mode])
    w, X = np.zeros(2), np.zeros((3, 2))
    X[0, 0] = plan.settings.row_norm or 1.0
    low, high = (-1e6, 1e6) if TASKS[mode] == losses.REGRESSION else (0.0, 1.0)
    first, second = (mean_gradient(X, np.array([label, 0.0, 0.0]), plan, w) for label in (low, high))
    allowed = plan.sensitivity * plan.settings.noise_law(plan)(w) / plan.noise
    share = 0.5 if mode == "squared, labels and margins" else 0.999
    assert np.linalg.norm(first - second) >= share * allowed


# --- settings ------------------------------------------------------------------------------------------


def test_rule_fills_what_was_left_out():
    plan = solvers.plan("dp_dual_averaging", n=20_000, d=50, loss="logistic", row_norm=2.0, epsilon=1.0, delta=1e-6)
    s = plan.settings
    assert s.grad_norm == pytest.approx(rules.RESIDUAL * 2.0)
    assert rules.FEWEST <= s.steps <= rules.MOST
    # The noise of a margin is at most what was chosen: row norm, times steps, times their noise.
    noise = 2.0 * s.step_size * math.sqrt(s.steps) * plan.noise
    assert noise <= rules.MARGIN_NOISE * (1 + 1e-9)
    assert plan.guarantee.epsilon(1e-6) <= 1.0


@given(st.integers(1, 10**7), st.floats(1e-3, 50.0), st.sampled_from([1e-9, 1e-5, 0.01]), st.floats(1e-3, 1e3),
       st.sampled_from(["logistic", "hinge", "huber"]), st.sampled_from(["replace-one", "zero-out"]))  # fmt: skip
@pytest.mark.filterwarnings("ignore::dptoolkit.solvers.DeltaWarning")
def test_rule_is_stable_and_within_noise_for_all_public_numbers(n, epsilon, delta, norm, loss, adjacency):
    plan = solvers.plan(
        "dp_dual_averaging", n=n, d=3, loss=loss, row_norm=norm, epsilon=epsilon, delta=delta, adjacency=adjacency
    )
    s = plan.settings
    unit = rules.margin_noise(s.bounds)
    assert norm * s.step_size * math.sqrt(s.steps) * plan.noise <= unit * (1 + 1e-9)
    assert s.step_size * rules.residual_curvature(s.loss_row, s.grad_norm / norm if s.grad_norm else 1.0) * norm**2 < 2
    assert plan.guarantee.epsilon(delta) <= epsilon


def test_plan_rebuilds_from_its_json_and_dp_ight_takes_the_rule_too():
    plan = solvers.plan("dp_ight", n=500, d=9, sparsity=3, loss="logistic", row_norm=1.0, epsilon=1.0, delta=1e-6)
    again = solvers.plan("dp_ight", n=500, d=9, **plan.settings.to_dict())
    assert again == plan and plan.settings.steps >= rules.FEWEST and plan.settings.grad_norm == rules.RESIDUAL


@pytest.mark.parametrize("wrong", [
    {"steps": 0}, {"step_size": -1.0}, {"step_size": math.nan}, {"sparsity": 5}, {"sparsity": 0},
    {"calibration": "published"}, {"row_norm": None}, {"loss": "softmax"}, {"grad_norm": 0.0},
])  # fmt: skip
def test_bad_settings_are_refused(wrong):
    good = {"loss": "logistic", "row_norm": 1.0, "epsilon": 1.0, "delta": 1e-6}
    with pytest.raises(InvalidValue):
        solvers.plan("dp_dual_averaging", n=100, d=4, **good | wrong)


def test_without_a_row_bound_steps_must_be_given():
    arguments = {"loss": "squared", "grad_norm": 1.0, "epsilon": 1.0, "delta": 1e-6}
    with pytest.raises(InvalidValue, match="row_norm"):
        solvers.plan("dp_dual_averaging", n=100, d=4, **arguments)
    assert solvers.plan("dp_dual_averaging", n=100, d=4, steps=3, step_size=1.0, **arguments).settings.steps == 3


@pytest.mark.parametrize("norm", [1e-140, 1e-100, 1e100, 1e140])
def test_extreme_bounds_are_refused_in_words_or_planned(norm):
    """Never a step that is zero, infinite or not a number."""
    arguments = {"loss": "logistic", "row_norm": norm, "epsilon": 1.0, "delta": 1e-6}
    try:
        plan = solvers.plan("dp_dual_averaging", n=100, d=4, **arguments)
    except InvalidValue as refused:
        assert "extreme row_norm" in str(refused) or "Rescale" in str(refused)
    else:
        assert 1e-140 <= plan.settings.step_size <= 1e140


# --- audits --------------------------------------------------------------------------------------------


@pytest.mark.every(3)
@pytest.mark.parametrize("adversary", ["final", "iterates", "gradients"])
def test_audit_stays_within_the_budget_and_half_the_noise_does_not(adversary):
    """False alarms: 1e-6 each. The pair attains the guarantee, so that half the noise is seen in few trials."""
    plan = presets.plan("dp_dual_averaging", 1.0, 1e-5)
    pair = presets.pair(plan)
    honest = audit.audit(plan, pair, plan.guarantee, trials=20_000, adversary=adversary, confidence=1 - 1e-6, rng=3)
    assert not honest.violated and honest.epsilon_lower <= 1.0
    twin = audit.audit(plan.with_noise(factor=0.5), pair, plan.guarantee, trials=20_000, adversary=adversary,
                       confidence=1 - 1e-6, rng=3)  # fmt: skip
    assert twin.violated
