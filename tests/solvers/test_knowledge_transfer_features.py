"""Public bounds, sensitivities and steps lie in one range, inside which nothing over- or underflows before noise."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest

from dptoolkit import solvers
from dptoolkit._validate import LARGEST, SMALLEST
from dptoolkit.data import check_rows, clip_rows
from dptoolkit.errors import InvalidValue
from dptoolkit.mechanisms import GaussianNoise, LaplaceNoise, NoisyMaximum
from dptoolkit.solvers import _ight

BUDGET = {"epsilon": 1.0, "delta": 1e-6}
THRESHOLDING = {"loss": "squared", "sparsity": 2, "step_size": 0.5, "grad_norm": 1.0, "row_norm": 1.0, **BUDGET}
BOUNDED = {**THRESHOLDING, "grad_norm": None, "label_bound": 1.0, "margin_bound": 1.0}
SHAPES = {
    "dp_ight": {"steps": 2},
    "dp_sgd_ht": {"steps": 2, "batch_size": 5},
    "dp_scsg_ht": {"epochs": 1, "snapshot_size": 10, "batch_size": 5},
}
BALL = {"l1_radius": 1.0, "steps": 2, "feature_bound": 1.0, **BUDGET}
CALLS = [(name, THRESHOLDING | shape) for name, shape in SHAPES.items()]
CALLS += [(name, BOUNDED | shape) for name, shape in SHAPES.items()]
CALLS += [
    ("dp_frank_wolfe", {"loss": "squared", "label_bound": 1.0, **BALL}),
    ("dp_multinomial_frank_wolfe", {"classes": 3, **BALL}),
    ("peeling_iht", {"sparsity": 2, "steps": 2, "step_size": 0.5, "radius": 1.0, "feature_bound": 1.0,
                     "label_bound": 1.0, **BUDGET}),
]  # fmt: skip
BOUNDS = ("row_norm", "grad_norm", "label_bound", "margin_bound", "step_size", "l1_radius", "feature_bound", "radius")
ARGUMENTS = [(name, call, bound) for name, call in CALLS for bound in BOUNDS if call.get(bound) is not None]


@pytest.mark.parametrize("value", [1e-141, 1e-170, 5e-324, 1e141, 1e300, math.inf, math.nan])
@pytest.mark.parametrize(("name", "call", "bound"), ARGUMENTS, ids=str)
def test_bounds_outside_the_range_are_refused(name, call, bound, value):
    with pytest.raises(InvalidValue, match=f"{bound}=.*must be"):
        solvers.plan(name, n=20, d=5, **call | {bound: value})


@pytest.mark.parametrize("value", [SMALLEST, LARGEST])
@pytest.mark.parametrize(("name", "call", "bound"), ARGUMENTS, ids=str)
def test_a_plan_inside_the_range_has_noise(name, call, bound, value):
    """Or its sensitivity, a product of bounds, is outside it and refused by the same rule."""
    try:
        plan = solvers.plan(name, n=20, d=5, **call | {bound: value})
    except InvalidValue as error:
        assert "sensitivity of the" in str(error) or "step_size" in str(error)
        return
    for release in plan.releases:
        assert SMALLEST <= release.sensitivity <= LARGEST and 0 < release.scale < math.inf


@pytest.mark.parametrize("value", [1e-100, 1e100])
@pytest.mark.parametrize(("name", "call"), [
    ("knowledge_transfer", {"sparsity": 2}), ("objective_perturbation", {}),
], ids=str)  # fmt: skip
def test_a_rule_gives_no_l2_that_would_be_refused(name, call, value):
    """Otherwise the plan could not be made again from its own settings, as files of models do."""
    with pytest.raises(InvalidValue, match="l2=.*Give l2"):
        solvers.plan(name, n=20, d=5, loss="huber", row_norm=value, **call, **BUDGET)


def test_long_rows_give_no_warning():
    """A warning of NumPy would tell whether rows are as long as their public bound."""
    call = {"loss": "squared", "label_bound": 1.0, "row_norm": 1e100, "l2": 1e140, "radius": 1e-41, "teacher": "ridge"}
    plan = solvers.plan("knowledge_transfer", n=4, d=2, sparsity=1, **call, epsilon=1.0, delta=1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = solvers.bind(plan, np.full((4, 2), 1e300), np.ones(4))
        assert np.isfinite(run.fit(np.random.default_rng(0))[0]).all()


@pytest.mark.parametrize("l2", [-1.0, 1e141, math.inf, math.nan])
@pytest.mark.parametrize("name", ["dp_sgd_ht", "dp_scsg_ht"])
def test_l2_is_in_the_range_or_0(name, l2):
    with pytest.raises(InvalidValue, match="l2=.*must be"):
        solvers.plan(name, n=20, d=5, **THRESHOLDING | SHAPES[name] | {"l2": l2})


@pytest.mark.parametrize("make", [GaussianNoise, LaplaceNoise, NoisyMaximum])
def test_mechanisms_keep_to_the_range(make):
    for scale, sensitivity in ((1.0, 1e-141), (1.0, 1e141), (1.0, 5e-324), (1e-170, 1.0), (5e-324, 1.0)):
        with pytest.raises(InvalidValue, match="must be"):
            make(scale, sensitivity)
    make(0.0, SMALLEST), make(1e-150, SMALLEST), make(1e150, LARGEST)


def test_inner_noise_at_the_smallest_bound():
    """The noise of inner steps, a product of the bound, the noise multiplier, the step and a small distance, is none
    of these times 0."""
    X, y = np.eye(4), np.array([1.0, -1.0, 1.0, -1.0])
    fits = [
        solvers.dp_scsg_ht(
            X, y, loss="squared", sparsity=4, epochs=3, snapshot_size=4, batch_size=2, option="II", step_size=SMALLEST,
            row_norm=1.0, grad_norm=1e-138, epsilon=1.0, delta=1e-3, rng=seed,
        ).coef
        for seed in (1, 2)
    ]  # fmt: skip
    assert np.all(fits[0] != 0) and not np.array_equal(*fits)


def test_caps_keep_gradients_within_their_bound():
    """Rows from the smallest doubles to the longest allowed: the factor is exact where the norm has lost its digits."""
    X = np.array([[5e-324, 5e-324], [1e-310, 3e-310], [1e-160, 1e-160], [3.0, 4.0], [1e140, 1e140], [0.0, 0.0]])
    rows = clip_rows(check_rows(X), LARGEST)
    for bound in (SMALLEST, 1e-16, 1.0, LARGEST):
        caps = rows.caps(bound)
        assert caps[-1] == math.inf
        for row, cap in zip(rows.matrix[:-1], caps[:-1], strict=True):
            largest = min(cap, 1.7e308)
            gradient = [largest * x for x in row]
            assert math.hypot(*gradient) <= bound * (1 + 1e-12)
    # The norm of the first row is a double that is 1.41 times too small.
    assert 1e-16 / rows.row_norms()[0] * math.hypot(5e-324 * 1e160, 5e-324 * 1e160) / 1e160 > 1.3e-16


@pytest.mark.parametrize("name", ["dp_sgd_ht", "dp_scsg_ht"])
def test_the_default_step_counts_the_l2_term(name):
    arguments = {"loss": "logistic", "sparsity": 3, "row_norm": 1.0, **SHAPES[name]}
    plan = solvers.plan(name, n=40, d=3, l2=1.0, **arguments, **BUDGET)
    assert plan.settings.step_size == pytest.approx(1 / (0.25 + 1.0))
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((40, 3)), np.arange(40) % 2
    many = {"dp_sgd_ht": {"steps": 400}, "dp_scsg_ht": {"epochs": 200}}[name]
    for l2 in (1.0, 100.0):
        fit = getattr(solvers, name)(X, y, l2=l2, epsilon=math.inf, rng=0, **arguments | many)
        assert np.linalg.norm(fit.coef) <= 1.0, "1 / smoothness is 4: weights would grow threefold a step"


def test_an_infinite_budget_bounds_records_all_the_same():
    """epsilon=inf is ight on bounded records, so with public bounds that clip it is not ight on the records given."""
    rng = np.random.default_rng(1)
    X, y = 3 * rng.standard_normal((30, 4)), (rng.random(30) < 0.5) * 1.0
    common = {"loss": "logistic", "sparsity": 2, "steps": 8, "step_size": 0.5}
    private = solvers.dp_ight(X, y, epsilon=math.inf, row_norm=1.0, **common)
    clipped = clip_rows(check_rows(X), 1.0).matrix
    assert np.array_equal(private.coef, solvers.ight(clipped, y, **common).coef)
    assert not np.allclose(private.coef, solvers.ight(X, y, **common).coef)
    assert "records are still clipped" in _ight.dp_ight.__doc__


def test_peeling_charges_the_last_bit_of_its_iterate():
    """v = w - step * gradient is rounded to w's last bit, which a step of 1e-30 is far below; noise covers the bit."""
    calm = {"sparsity": 2, "steps": 2, "feature_bound": 1.0, "label_bound": 1.0, **BUDGET}
    for radius in (1.0, 1e10):
        plan = solvers.plan("peeling_iht", n=20, d=5, step_size=1e-30, radius=radius, **calm)
        gap = np.spacing(0.99 * radius)
        assert plan.sensitivity / 2 >= gap and plan.releases[1].sensitivity >= gap
    ordinary = solvers.plan("peeling_iht", n=20, d=5, step_size=0.5, radius=1.0, **calm)
    assert ordinary.sensitivity == pytest.approx(4 * 0.5 * (math.sqrt(2) + 1) / 20, rel=1e-12)
