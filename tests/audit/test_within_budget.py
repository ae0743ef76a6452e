"""Every private solver stays within its guarantee on its worst pair, over generated configurations.

Each audit has a false-alarm probability of 1e-7 by its e-value and one of 1e-7 by its bound: less than 1e-5 for the
suite. The examples are fixed by the profile, so a run with the "ci" profile is deterministic.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dptoolkit import audit, solvers
from dptoolkit.audit import presets
from dptoolkit.audit.claims import as_claim
from dptoolkit.errors import PrivacyViolation

ALPHA = 1e-7
NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
EXAMPLES = settings(max_examples=40 if NIGHTLY else 4)
EPSILONS, DELTAS = st.sampled_from([0.5, 1.0, 3.0, 8.0]), st.sampled_from([1e-6, 1e-4])
BUDGET = st.fixed_dictionaries({"epsilon": EPSILONS, "delta": DELTAS})
ADJACENCY = st.sampled_from(["replace-one", "zero-out"])


def stays_within(plan: solvers.Plan, adversary: str, trials: int) -> None:
    # Few of these pairs are tight, so nothing is promised about what these trials would find.
    report = audit.assert_private(
        plan, presets.pair(plan), trials=trials, power=None, alpha=ALPHA, confidence=1 - ALPHA, adversary=adversary
    )
    assert report.epsilon_lower <= report.epsilon_claimed


@EXAMPLES
@given(BUDGET, ADJACENCY, st.sampled_from(["clipped", "logistic", "bounded"]), st.integers(1, 4), st.integers(1, 30),
       st.sampled_from(["final", "gradients", "support"]))  # fmt: skip
def test_dp_ight(budget, adjacency, bounds, sparsity, steps, adversary):
    how = {
        "clipped": {"loss": "squared", "grad_norm": 0.7, "step_size": 0.5},
        "logistic": {"loss": "logistic", "row_norm": 2.0, "step_size": 0.2},
        "bounded": {"loss": "squared", "row_norm": 1.0, "label_bound": 2.0, "margin_bound": 1.0, "step_size": 0.5},
    }[bounds]
    plan = solvers.plan("dp_ight", n=60, d=5, sparsity=sparsity, steps=steps, adjacency=adjacency, **how, **budget)
    stays_within(plan, adversary, 6000)


@EXAMPLES
@given(BUDGET, st.sampled_from([("without-replacement", "replace-one"), ("poisson", "zero-out"),
                                ("poisson", "replace-one")]),
       st.sampled_from([5, 20, 40]), st.sampled_from(["final", "iterates"]))  # fmt: skip
def test_dp_sgd_ht(budget, scheme, batch, adversary):
    sampling, adjacency = scheme
    plan = solvers.plan(
        "dp_sgd_ht", n=40, d=4, sparsity=2, steps=8, batch_size=batch, loss="squared", grad_norm=1.0, step_size=1.0,
        sampling=sampling, adjacency=adjacency, **budget,
    )  # fmt: skip
    stays_within(plan, adversary, 3000)


@EXAMPLES
@given(BUDGET, st.sampled_from(["I", "II"]), st.sampled_from(["final", "iterates"]))
def test_dp_scsg_ht(budget, option, adversary):
    # The number of inner steps of option I is random, and so is the length of the list of iterates.
    if option == "I":
        adversary = "final"
    plan = solvers.plan(
        "dp_scsg_ht", n=40, d=4, sparsity=2, epochs=2, snapshot_size=30, batch_size=10, option=option, loss="squared",
        grad_norm=1.0, step_size=0.5, **budget,
    )  # fmt: skip
    stays_within(plan, adversary, 1000)


@EXAMPLES
@given(BUDGET, ADJACENCY, st.sampled_from(["logistic", "squared", "huber"]), st.sampled_from(["gumbel", "laplace"]),
       st.sampled_from([0.1, 1.0]), st.sampled_from(["final", "releases"]))  # fmt: skip
def test_dp_frank_wolfe(budget, adjacency, loss, law, radius, adversary):
    plan = solvers.plan(
        "dp_frank_wolfe", n=50, d=3, loss=loss, l1_radius=radius, steps=8, feature_bound=1.0, label_bound=1.0,
        law=law, adjacency=adjacency, **budget,
    )  # fmt: skip
    stays_within(plan, adversary, 4000)


@EXAMPLES
@given(BUDGET, st.sampled_from(["final", "releases"]))
def test_sparsifier(budget, adversary):
    plan = solvers.plan(
        "sparsifier", n=50, d=9, l1_radius=0.1, steps=6, feature_bound=1.0, count_share=0.5, **budget,
    )  # fmt: skip
    stays_within(plan, adversary, 1500)


@EXAMPLES
@given(BUDGET, st.sampled_from(["vertex", "columns"]), st.sampled_from(["final", "releases"]))
def test_dp_multinomial_frank_wolfe(budget, selection, adversary):
    plan = solvers.plan(
        "dp_multinomial_frank_wolfe", n=30, d=2, classes=3, l1_radius=0.1, steps=4, feature_bound=1.0,
        selection=selection, **budget,
    )  # fmt: skip
    stays_within(plan, adversary, 800)


@EXAMPLES
@given(BUDGET, ADJACENCY, st.sampled_from(["full", "split"]))
def test_peeling_iht(budget, adjacency, data):
    plan = solvers.plan(
        "peeling_iht", n=40, d=6, sparsity=2, steps=2, step_size=1.0, radius=0.1, feature_bound=1.0, label_bound=1.0,
        data=data, adjacency=adjacency, **budget,
    )  # fmt: skip
    stays_within(plan, "releases", 800)


@EXAMPLES
@given(BUDGET, ADJACENCY, st.sampled_from(["support", "ridge", "propose-test-release"]),
       st.sampled_from([{"feature_bound": 0.5}, {"row_norm": 2.0}]), st.sampled_from(["gaussian", "identity"]),
       st.sampled_from(["final", "releases"]))  # fmt: skip
def test_knowledge_transfer(budget, adjacency, teacher, bounds, features, adversary):
    plan = solvers.plan(
        "knowledge_transfer", n=200, d=3, loss="huber", sparsity=1, l2=0.1, teacher=teacher, features=features,
        adjacency=adjacency, **bounds, **budget,
    )  # fmt: skip
    stays_within(plan, adversary, 500)


@EXAMPLES
@given(BUDGET, ADJACENCY, st.sampled_from(["huber", "logistic", "hinge"]), st.sampled_from(["final", "releases"]))
def test_dp_admm(budget, adjacency, loss, adversary):
    plan = solvers.plan(
        "dp_admm", n=40, d=2, loss=loss, row_norm=1.0, rho=0.5, weight=0.01, steps=3, adjacency=adjacency, **budget
    )
    stays_within(plan, adversary, 800)


@pytest.mark.parametrize("name", ["dp_ight", "dp_sgd_ht", "dp_frank_wolfe", "knowledge_transfer", "dp_admm"])
def test_the_same_audit_finds_a_third_of_the_noise(name):
    plan = presets.plan(name, 2.0, 1e-5)
    quiet = plan.with_noise(factor=1 / 3)
    trials = 1000 if name == "dp_admm" else 6000
    adversary = "releases" if name in ("dp_frank_wolfe", "dp_admm") else "final"
    with pytest.raises(PrivacyViolation):
        audit.assert_private(
            quiet, presets.pair(plan), as_claim(plan.guarantee), trials=trials, power=None, alpha=ALPHA,
            adversary=adversary,
        )  # fmt: skip
