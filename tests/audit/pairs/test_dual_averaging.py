"""The pairs for the softmax loss: their scores are exact likelihood ratios, and those of gradients nearly tight."""

from __future__ import annotations

import numpy as np
import pytest

from dptoolkit import audit, solvers
from dptoolkit.audit import pairs
from dptoolkit.audit.claims import as_claim
from dptoolkit.audit.pair import check_neighbours
from dptoolkit.audit.pairs._dual_averaging import _Matrices
from dptoolkit.audit.streams import Streams
from dptoolkit.audit.targets import PlanTarget
from dptoolkit.errors import InvalidValue, PrivacyViolation
from tests.statistics import ALPHA

COMMON = {"n": 60, "d": 4, "loss": "softmax", "row_norm": 1.0, "steps": 5, "epsilon": 4.0, "delta": 1e-5}
PLANS = {
    "three classes": {"classes": 3, "sparsity": 2},
    "five classes, all kept": {"classes": 5, "step_size": 0.5},
    "intercept": {"classes": 4, "sparsity": 2, "fit_intercept": True},
    "zero-out": {"classes": 3, "adjacency": "zero-out"},
}
REACH = {"three classes": 0.97, "five classes, all kept": 0.97, "intercept": 0.75, "zero-out": 0.97}


def make(name, **more):
    return solvers.plan("dp_dual_averaging", **COMMON | PLANS[name] | more)


def ratios(plan, pair, trials):
    source = Streams(1, "test")
    bits = source.bits(0, trials)
    return bits == 1, pair.scores["releases"](PlanTarget(plan, pair, "releases").run(bits, 0, source))


@pytest.mark.parametrize("name", PLANS)
def test_neighbours_whose_score_is_the_likelihood_ratio(name):
    """E[e^-L | first] = E[e^L | second] = 1 for the exact log ratio L, by 5 standard errors, and not for 2 L."""
    plan = make(name, epsilon=2.0)
    pair = pairs.dp_dual_averaging(plan)
    check_neighbours(pair)
    first, ratio = ratios(plan, pair, 3000)
    for values in (-ratio[first], ratio[~first]):
        weights, wrong = np.exp(values), np.exp(2 * values)
        assert abs(weights.mean() - 1) <= 5 * weights.std() / np.sqrt(len(weights))
        assert abs(wrong.mean() - 1) > 5 * wrong.std() / np.sqrt(len(wrong))


@pytest.mark.parametrize("name", PLANS)
def test_gradients_and_thresholds_are_those_of_the_solver(name):
    plan = make(name)
    rng = np.random.default_rng(0)
    for data in pairs.dp_dual_averaging(plan):
        ours, run = _Matrices(plan, data), solvers.bind(plan, data.X, data.y, data.counts)
        for size in (0.1, 3.0):
            total = size * rng.standard_normal((5, *ours.shape))
            kept = ours.thresholded(total)
            for one, w, found in zip(total, kept, ours.mean(kept), strict=True):
                np.testing.assert_array_equal(run.thresholded(one), w)
                np.testing.assert_allclose(run.mean_gradient(w), found, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("name", PLANS)
def test_reach_and_what_an_audit_finds(name):
    """One sequential test with a false-alarm rate of 1e-6."""
    plan = make(name)
    pair = pairs.dp_dual_averaging(plan)
    assert REACH[name] <= pair.reach["releases"] <= 1.0 + 1e-9
    assert 0 < pair.reach["final"] <= pair.reach["releases"]
    how = {"trials": 2000, "power": None, "alpha": ALPHA, "adversary": "releases"}
    audit.assert_private(plan, pair, as_claim(plan.guarantee), **how)
    with pytest.raises(PrivacyViolation):
        audit.assert_private(plan.with_noise(factor=0.5), pair, as_claim(plan.guarantee), **how)


def test_a_zero_row_moves_an_intercept():
    with pytest.raises(InvalidValue, match="fit_intercept"):
        pairs.dp_dual_averaging(make("intercept", adjacency="zero-out"))


# --- dp_pipeline ---------------------------------------------------------------------------------------

# So few records that the number of steps is sure, with less noise too.
PIPELINE = {"n": 30, "d": 2, "epsilon": 4.0, "delta": 1e-5, "loss": "softmax"}


@pytest.mark.parametrize("classes", [3, 5])
def test_several_classes_of_the_pipeline(classes):
    """As above; the ratio is that of the descent alone, and the number of steps is sure."""
    small = solvers.plan("dp_pipeline", classes=classes, **PIPELINE | {"epsilon": 2.0})
    pair = pairs.dp_pipeline(small)
    check_neighbours(pair)
    first, ratio = ratios(small, pair, 4000)
    for values in (-ratio[first], ratio[~first]):
        weights, wrong = np.exp(values), np.exp(2 * values)
        assert abs(weights.mean() - 1) <= 5 * weights.std() / np.sqrt(len(weights))
        assert abs(wrong.mean() - 1) > 5 * wrong.std() / np.sqrt(len(wrong))
    plan = solvers.plan("dp_pipeline", classes=classes, **PIPELINE)
    pair = pairs.dp_pipeline(plan)
    assert 0.85 <= pair.reach["releases"] <= 1.0
    how = {"trials": 1500, "power": None, "alpha": ALPHA, "adversary": "releases"}
    audit.assert_private(plan, pair, as_claim(plan.guarantee), **how)
    with pytest.raises(PrivacyViolation):
        audit.assert_private(plan.with_noise(factor=1 / 3), pair, as_claim(plan.guarantee), **how)
