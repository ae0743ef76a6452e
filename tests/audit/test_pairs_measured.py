"""Reach that is measured by runs: it is the formula's where there is one; counts of the sparsifier in large balls."""

from __future__ import annotations

import pytest

from dptoolkit import audit, solvers
from dptoolkit.audit import pairs, presets
from dptoolkit.audit.claims import as_claim
from dptoolkit.audit.pairs.kept import measured_reach
from dptoolkit.audit.pairs.sparsify import exact_count
from dptoolkit.errors import PrivacyViolation
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
        )  # fmt: skip


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
