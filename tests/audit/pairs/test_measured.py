"""Reach that is measured by runs: it is the formula's where there is one; counts of the sparsifier in large balls."""

from __future__ import annotations

import numpy as np
import pytest

from dptoolkit import audit, solvers
from dptoolkit.adjacency import Adjacency
from dptoolkit.audit import pairs, presets
from dptoolkit.audit.claims import as_claim
from dptoolkit.audit.pair import check_neighbours
from dptoolkit.audit.pairs._objective_perturbation import gamma_epsilon
from dptoolkit.audit.streams import Streams
from dptoolkit.audit.targets import PlanTarget
from dptoolkit.audit.theory.kept import measured_reach
from dptoolkit.audit.theory.replay import exact_count
from dptoolkit.errors import InvalidValue, PrivacyViolation
from dptoolkit.mechanisms.objective import GammaTerm, Squeeze
from dptoolkit.mechanisms.randomness import Generators
from tests.statistics import ALPHA

BUDGET = {"epsilon": 4.0, "delta": 1e-5}
ADMM = {"n": 40, "d": 2, "row_norm": 1.0, "rho": 0.5, "weight": 0.01, "steps": 3}


@pytest.mark.parametrize(("name", "adversary"), [("objective_perturbation", "final"), ("dp_admm", "releases")])
def test_measured_is_exact_where_that_is_known(name, adversary):
    """The spread of 400 runs has an error of 3.5 %, and five of these are allowed."""
    plan = presets.plan(name, 1.0, 1e-5)
    pair = presets.pair(plan)
    assert measured_reach(plan, pair, (adversary,))[adversary] == pytest.approx(pair.reach[adversary], rel=0.18)


@pytest.mark.parametrize(("name", "arguments", "low", "high"), [
    ("objective_perturbation", {"n": 100, "d": 3, "loss": "logistic", "l2": 0.05, "row_norm": 1.0}, 0.4, 0.8),
    ("dp_admm", ADMM | {"loss": "hinge"}, 0.7, 1.05),
    ("knowledge_transfer", {"n": 200, "d": 3, "loss": "huber", "sparsity": 1, "l2": 0.1, "row_norm": 2.0,
                            "teacher": "ridge"}, 0.85, 1.05),
    ("dp_multinomial_frank_wolfe", {"n": 100, "d": 4, "classes": 3, "steps": 6, "l1_radius": 0.2, "feature_bound": 1.0,
                                    "fit_intercept": True}, 0.7, 1.02),
    ("peeling_iht", {"n": 100, "d": 6, "sparsity": 2, "steps": 4, "step_size": 0.1, "radius": 50.0,
                     "feature_bound": 1.0, "label_bound": 1.0}, 0.75, 1.02),
])  # fmt: skip
def test_measured_reach(name, arguments, low, high):
    plan = solvers.plan(name, **arguments | BUDGET)
    pair = presets.pair(plan)
    reach = pair.reach["releases"]
    assert low <= reach <= high
    adversary = audit.strongest(pair)
    less = plan.with_noise(factor=1 / 3)
    with pytest.raises(PrivacyViolation):
        audit.assert_private(
            less, pair, as_claim(plan.guarantee), trials=2000, power=None, alpha=ALPHA, adversary=adversary
        )


@pytest.mark.parametrize("radius", [0.1, 3.0, 10.0])
def test_one_record_moves_the_count_in_balls_of_any_size(radius):
    plan = solvers.plan("sparsifier", n=80, d=16, l1_radius=radius, steps=10, feature_bound=1.0, epsilon=1.5,
                        delta=1e-5, count_share=1 / 3, count_steps=60)  # fmt: skip
    pair = pairs.sparsifier(plan)
    lower, upper = plan.settings.span
    assert exact_count(plan, pair.first) <= lower
    assert exact_count(plan, pair.second) >= upper


def test_selections_of_a_sparsifier_without_a_private_count():
    plan = solvers.plan("sparsifier", n=100, d=6, l1_radius=0.1, steps=8, feature_bound=1.0, epsilon=1.0, delta=1e-5,
                        count="fixed", number=2)  # fmt: skip
    assert 0.6 <= pairs.sparsifier(plan).reach["releases"] <= 1.02


# --- the sparsifier with an intercept ------------------------------------------------------------------

WITH_INTERCEPT = {"n": 80, "d": 9, "l1_radius": 0.1, "feature_bound": 1.0, "steps": 8, "epsilon": 4.0, "delta": 1e-5,
                  "fit_intercept": True}  # fmt: skip


@pytest.mark.parametrize("more", [{"loss": "logistic", "count_share": 0.3}, {"loss": "huber", "count_share": 0.3},
                                  {"loss": "logistic", "count": "fixed", "number": 3}], ids=str)  # fmt: skip
def test_sparsifier_with_an_intercept(more):
    """The score of all releases is the exact ratio, by 5 standard errors; a third of the noise is found."""
    plan = solvers.plan("sparsifier", **WITH_INTERCEPT | more)
    pair = pairs.sparsifier(plan)
    check_neighbours(pair)
    if "count" not in more:
        lower, upper = plan.settings.span
        assert exact_count(plan, pair.first) <= lower and exact_count(plan, pair.second) >= upper
    source = Streams(1, "test")
    bits = source.bits(0, 4000)
    ratio = pair.scores["releases"](PlanTarget(plan, pair, "releases").run(bits, 0, source))
    for values in (-ratio[bits == 1], ratio[bits == 0]):
        weights, wrong = np.exp(values), np.exp(2 * values)
        assert abs(weights.mean() - 1) <= 5 * weights.std() / np.sqrt(len(weights))
        assert abs(wrong.mean() - 1) > 5 * wrong.std() / np.sqrt(len(wrong))
    assert 0.6 <= pair.reach["releases"] <= 1.02
    how = {"trials": 4000, "power": None, "alpha": ALPHA, "adversary": "releases"}
    audit.assert_private(plan, pair, as_claim(plan.guarantee), **how)
    with pytest.raises(PrivacyViolation):
        audit.assert_private(plan.with_noise(factor=1 / 3), pair, as_claim(plan.guarantee), **how)


@pytest.mark.parametrize("more", [{"adjacency": "zero-out"}, {"law": "laplace"}], ids=str)
def test_intercepts_of_a_sparsifier_for_which_no_pair_is_known(more):
    with pytest.raises(InvalidValue, match="fit_intercept|law"):
        pairs.sparsifier(solvers.plan("sparsifier", **WITH_INTERCEPT | {"loss": "logistic"} | more))


# --- gamma noise ---------------------------------------------------------------------------------------

GAMMA = {"n": 60, "loss": "huber", "row_norm": 1.0, "l2": 1.0, "law": "gamma", "epsilon": 3.0, "delta": 1e-5}


@pytest.mark.parametrize("d", [2, 3, 5, 12])
@pytest.mark.parametrize("shift", [0.7, 3.0])
def test_epsilon_of_moved_gamma_noise_is_that_of_draws(shift, d):
    """P(A) - e^epsilon Q(A) of the best event at the formula's epsilon for a delta of 0.02, by 5 standard errors."""
    term = GammaTerm(1.0, 1.0, Squeeze(0.0, False, Adjacency.REPLACE_ONE))
    b = term.draw_rows(d, Generators(*[np.random.default_rng(0)] * 40_000))
    move = shift * np.eye(1, d)[0]
    epsilon = gamma_epsilon(shift, d, 0.02)
    assert 0 < epsilon < shift
    ratio = np.linalg.norm(b + move, axis=1) - np.linalg.norm(b, axis=1)
    gain = np.maximum(-np.expm1(epsilon - ratio), 0.0)
    assert abs(gain.mean() - 0.02) <= 5 * gain.std() / np.sqrt(len(gain))
    # Twin: noise that is a tenth smaller.
    wrong = np.maximum(-np.expm1(epsilon - ratio / 0.9), 0.0)
    assert abs(wrong.mean() - 0.02) > 5 * wrong.std() / np.sqrt(len(wrong))


@pytest.mark.parametrize(
    "more", [{"d": 1}, {"d": 4}, {"d": 3, "fit_intercept": True}, {"d": 3, "adjacency": "zero-out"}], ids=str
)
def test_gamma_noise_of_objective_perturbation(more):
    """The score is the exact ratio: E[e^-L | first] = E[e^L | second] = 1 by 5 standard errors. The fault is found."""
    plan = solvers.plan("objective_perturbation", **GAMMA | more)
    pair = pairs.objective_perturbation(plan)
    source = Streams(1, "test")
    bits = source.bits(0, 6000)
    ratio = pair.scores["final"](PlanTarget(plan, pair, "final").run(bits, 0, source))
    for values in (-ratio[bits == 1], ratio[bits == 0]):
        weights = np.exp(values)
        assert abs(weights.mean() - 1) <= 5 * weights.std() / np.sqrt(len(weights)) + 1e-6
    assert 0.6 <= pair.reach["final"] <= 1.0
    how = {"trials": 6000, "power": None, "alpha": ALPHA}
    audit.assert_private(plan, pair, as_claim(plan.guarantee), **how)
    with pytest.raises(PrivacyViolation):
        audit.assert_private(plan.with_noise(factor=1 / 3), pair, as_claim(plan.guarantee), **how)
