"""The pair of two_stage: votes change hands, the score is the exact likelihood ratio, and too little noise is found."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import log_expit

from dptoolkit import audit, solvers
from dptoolkit.accounting import gaussian
from dptoolkit.audit import pairs
from dptoolkit.audit.claims import as_claim
from dptoolkit.audit.pair import check_neighbours
from dptoolkit.audit.streams import Streams
from dptoolkit.audit.targets import PlanTarget
from dptoolkit.audit.theory import odds
from dptoolkit.errors import InvalidValue, PrivacyViolation
from tests.statistics import ALPHA, rejected

HUBER = {"n": 60, "d": 5, "loss": "huber", "row_norm": 1.0, "l2": 0.5, "epsilon": 6.0, "delta": 1e-5}
CASES = {
    "one feature": {"sparsity": 1, "blocks": 1},
    "two features, blocks": {"sparsity": 2, "blocks": 4},
    "intercept": {"sparsity": 1, "blocks": 2, "fit_intercept": True},
    "zero-out": {"sparsity": 1, "blocks": 3, "adjacency": "zero-out"},
}


def make(case, **more):
    return solvers.plan("two_stage", **HUBER | CASES[case] | more)


@pytest.mark.parametrize("case", CASES)
def test_all_votes_of_a_block_change_hands(case):
    plan = make(case)
    pair = pairs.two_stage(plan)
    check_neighbours(pair)
    one, two = pair.scores["final"].votes
    s = plan.settings.sparsity
    assert one[:s].tolist() == [1.0] * s and one.sum() == s
    if plan.adjacency.value == "replace-one":
        assert two[s : 2 * s].tolist() == [1.0] * s and two.sum() == s
    else:
        assert not two.any()


def outcomes(plan, pair, trials=4000):
    """Scores of runs of the solver on the first dataset, and on the second."""
    target = PlanTarget(plan, pair, "releases")
    runs = (target.run(np.full(trials, bit, dtype=np.int8), 0, Streams(bit, "stages")) for bit in (1, 0))
    return [pair.scores["releases"](seen) for seen in runs]


def check_ratio(first, second):
    """P1(ratio > e^t) = E2[ratio; ratio > e^t], for a few t; within five standard errors."""
    for t in (-0.5, 0.0, 0.5):
        found, wanted = (first > t).mean(), np.where(second > t, np.exp(second), 0.0)
        error = np.sqrt(found * (1 - found) / len(first) + wanted.var() / len(second))
        assert abs(found - wanted.mean()) <= 5 * error + 1e-12


@pytest.mark.parametrize("case", CASES)
def test_the_score_is_the_likelihood_ratio(case):
    plan = make(case)
    pair = pairs.two_stage(plan)
    first, second = outcomes(plan, pair)
    check_ratio(first, second)
    rejected(check_ratio, 1.3 * first, 1.3 * second)


@pytest.mark.parametrize("case", CASES)
def test_reach_is_what_the_kinds_of_supports_say(case):
    plan = make(case)
    pair = pairs.two_stage(plan)
    kinds = list(pair.scores["final"].kinds())
    assert sum(k.number * np.exp(k.first) for k in kinds) == pytest.approx(1.0, abs=1e-6)
    assert sum(k.number * np.exp(k.second) for k in kinds) == pytest.approx(1.0, abs=1e-6)
    low, high = plan.guarantee.bounds(1e-5)
    assert 0.85 * low <= pair.reach["releases"] * high <= 1.01 * high
    # The total variation that the kinds imply is that of the runs.
    advantage = sum(k.number * max(np.exp(k.first) - np.exp(k.second), 0.0) for k in kinds)
    first, second = outcomes(plan, pair)
    assert (first > 0).mean() - (second > 0).mean() >= advantage - 0.06


@pytest.mark.parametrize("case", ["one feature", "intercept"])
def test_too_little_noise_is_found(case):
    plan = make(case)
    pair = pairs.two_stage(plan)
    arguments = {"trials": 3000, "power": None, "alpha": ALPHA, "adversary": "releases"}
    audit.assert_private(plan, pair, as_claim(plan.guarantee), **arguments)
    with pytest.raises(PrivacyViolation):
        audit.assert_private(plan.with_noise(factor=0.25), pair, as_claim(plan.guarantee), **arguments)


@pytest.mark.parametrize("more", [{"loss": "logistic"}, {"sparsity": 3}, {"constraint": "l2", "radius": 1.0}])
def test_refusals(more):
    with pytest.raises(InvalidValue, match="for this pair"):
        pairs.two_stage(make("one feature", **more))


# --- a choice and a Gaussian after it ------------------------------------------------------------------------------


def test_outcomes_are_the_two_known_cases():
    """Without a choice it is one Gaussian, without a distance one randomised response."""
    alone = [odds.Outcome(2, math.log(0.5), math.log(0.5), 1.2)]
    assert odds.outcomes_epsilon(alone, 1e-5) == pytest.approx(gaussian.epsilon(1.2, 1e-5), rel=1e-6)
    up, down = (float(log_expit(x)) for x in (0.7, -0.7))
    choice = [odds.Outcome(1, up, down, 0.0), odds.Outcome(1, down, up, 0.0)]
    assert odds.outcomes_epsilon(choice, 1e-5) == pytest.approx(odds.rounds_epsilon(0.7, -0.7, 1, 1e-5), rel=1e-6)
    both = [odds.Outcome(1, up, down, 1.2), odds.Outcome(1, down, up, 1.2)]
    assert odds.outcomes_epsilon(both, 1e-5) > gaussian.epsilon(1.2, 1e-5)
    assert odds.outcomes_epsilon([odds.Outcome(1, 0.0, 0.0, 0.0)], 1e-5) == 0.0


TRANSFER = {"n": 60, "d": 4, "loss": "huber", "sparsity": 1, "l2": 0.5, "m": 10, "epsilon": 3.0, "delta": 1e-5}


@pytest.mark.parametrize("more", [
    {"teacher": "support", "feature_bound": 0.5}, {"teacher": "support", "feature_bound": 0.5, "adjacency": "zero-out"},
    {"teacher": "propose-test-release", "row_norm": 1.0},
])  # fmt: skip
def test_reach_of_a_teacher_on_a_support(more):
    plan = solvers.plan("knowledge_transfer", **TRANSFER | more)
    pair = pairs.knowledge_transfer(plan)
    low, high = plan.guarantee.bounds(1e-5)
    assert 0.8 * low <= pair.reach["releases"] * high <= 1.01 * high
    if plan.settings.teacher == "support":
        check_ratio(*outcomes(plan, pair))
        rejected(check_ratio, *(1.3 * seen for seen in outcomes(plan, pair)))


def test_no_reach_where_the_guarantee_has_none():
    """A test's own delta of 1e-4 leaves no epsilon at the 1e-5 of a reach; the pair still has its adversary."""
    more = {"teacher": "propose-test-release", "feature_bound": 0.5, "delta": 1e-4}
    pair = pairs.knowledge_transfer(solvers.plan("knowledge_transfer", **TRANSFER | more))
    assert dict(pair.reach) == {} and audit.strongest(pair) == "releases"


def test_the_pair_of_a_private_teacher_is_that_of_its_solver():
    """The final model of few steps shows some of the guarantee, and nothing beyond it."""
    plan = solvers.plan(
        "knowledge_transfer", n=200, d=5, loss="logistic", teacher="dp-ight", sparsity=1, steps=3, m=20, row_norm=1.0,
        epsilon=2.0, delta=1e-5,
    )  # fmt: skip
    pair = pairs.knowledge_transfer(plan)
    assert pair.description.startswith("kept coordinate") and list(pair.scores) == ["final"]
    report = audit.audit(plan, pair, plan.guarantee, trials=2_000, rng=0)
    assert not report.violated and report.epsilon_lower > 0
