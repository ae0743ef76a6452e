"""Every private solver stays within its guarantee on its worst pair, and the same audit finds noise that is too small.

A configuration is examined three times by one sequential test, for the adversary of the largest reach: with its own
noise the test must not refute the guarantee; with a third of it the test must; with noise too small by 1.5 it must in
nine of ten configurations, except in rows that say otherwise. Each test of correct noise has a false-alarm probability
of 1e-6 over the number of tests, so the suite as a whole has at most 1e-6. Configurations are drawn by hypothesis, and
fixed by the "ci" profile.

A new solver needs a row here: a strategy for the arguments of ``solvers.plan``, and how many trials a test may take.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dptoolkit import audit, solvers
from dptoolkit.audit import presets
from dptoolkit.audit.claims import as_claim
from dptoolkit.errors import PrivacyViolation

NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
TIMES = 10 if NIGHTLY else 1
LITTLE, MUCH = 1.5, 3.0
RELATIONS = st.sampled_from(["replace-one", "zero-out"])
BOUNDS = {
    "clipped": {"loss": "squared", "grad_norm": 0.7},
    "logistic": {"loss": "logistic", "row_norm": 2.0},
    "hinge": {"loss": "hinge", "row_norm": 1.0},
    "huber": {"loss": "huber", "row_norm": 1.0},
    "bounded": {"loss": "squared", "row_norm": 1.0, "label_bound": 2.0, "margin_bound": 1.0},
}
SCHEMES = st.sampled_from([
    {"sampling": "without-replacement", "adjacency": "replace-one"},
    {"sampling": "poisson", "adjacency": "zero-out"},
    {"sampling": "poisson", "adjacency": "replace-one"},
])  # fmt: skip


class Row(NamedTuple):
    """What is drawn for a solver: some arguments, some groups of them that belong together, and what is the same.

    ``examples`` is how many configurations are drawn: fewer where a trial takes long. ``little`` is the factor of
    missing noise that is found in nine of ten: 1.5, or where the pair is loose or trials are slow, 3. ``loose`` is how
    many of the examples, named beside it, may miss that, because no pair is known that shows enough of them.
    """

    trials: int
    same: dict[str, Any]
    drawn: dict[str, st.SearchStrategy[Any]]
    groups: tuple[st.SearchStrategy[dict[str, Any]], ...] = ()
    examples: int = 4
    little: float = LITTLE
    loose: int = 0

    def arguments(self) -> st.SearchStrategy[dict[str, Any]]:
        """Of ``solvers.plan``."""
        delta = {"delta": st.sampled_from([1e-6, 1e-4])}
        groups = st.tuples(st.fixed_dictionaries({**delta, **self.drawn}), *self.groups)
        return groups.map(lambda drawn: {key: value for part in (self.same, *drawn) for key, value in part.items()})


def epsilons(*values: float) -> st.SearchStrategy[float]:
    return st.sampled_from(values)


ROWS = {
    "dp_ight": Row(
        20_000, {"n": 200, "d": 5},
        {"epsilon": epsilons(2.0, 4.0, 8.0), "sparsity": st.integers(2, 5), "steps": st.integers(1, 30),
         "step_size": st.sampled_from([0.2, 0.5, 1.0]), "adjacency": RELATIONS},
        (st.sampled_from(list(BOUNDS.values())),),
    ),
    "dp_dual_averaging": Row(
        20_000, {"n": 200, "d": 5, "steps": 10},
        {"epsilon": epsilons(2.0, 4.0, 8.0), "sparsity": st.integers(2, 5), "adjacency": RELATIONS},
        (st.sampled_from([BOUNDS["logistic"], BOUNDS["clipped"] | {"step_size": 0.5}]),),
    ),
    # So few records that the number of steps is sure, with less noise too.
    "dp_pipeline": Row(4_000, {"n": 40, "epsilon": 4.0}, {"d": st.sampled_from([2, 3])}, examples=2),
    "dp_sgd_ht": Row(
        20_000, {"n": 200, "d": 4, "sparsity": 2, "steps": 8},
        {"epsilon": epsilons(3.0, 8.0), "batch_size": st.sampled_from([50, 100, 200]),
         "step_size": st.sampled_from([0.2, 1.0])},
        (SCHEMES, st.sampled_from([BOUNDS["clipped"], BOUNDS["logistic"], BOUNDS["hinge"]])),
        loose=1,  # A quarter of the records without replacement: a reach of 0.70.
    ),
    "dp_scsg_ht": Row(
        6_000, presets.PRESETS["dp_scsg_ht"] | {"n": 1000, "snapshot_size": 1000, "epsilon": 8.0},
        {"batch_size": st.sampled_from([100, 250]), "grad_norm": epsilons(0.5, 2.0)}, examples=2,
    ),
    "dp_svrg_ht": Row(
        6_000, presets.PRESETS["dp_svrg_ht"] | {"epsilon": 8.0},
        {"epochs": st.integers(2, 10), "step_size": st.sampled_from([0.01, 0.1])}, examples=2, little=MUCH,
    ),
    "dp_frank_wolfe": Row(
        10_000, {"n": 50, "feature_bound": 1.0},
        {"epsilon": epsilons(6.0, 8.0), "adjacency": RELATIONS, "steps": st.integers(4, 10),
         "d": st.sampled_from([2, 5]), "l1_radius": st.sampled_from([0.1, 0.5])},
        (st.sampled_from([{"loss": "logistic"}, {"loss": "huber"}, {"loss": "squared", "label_bound": 1.0}]),),
        loose=1,  # Logistic loss on two features: with less noise the first steps break the ties.
    ),
    "sparsifier": Row(
        4_000, {"n": 50, "d": 9, "l1_radius": 0.1, "feature_bound": 1.0},
        {"epsilon": epsilons(4.0, 8.0), "steps": st.integers(4, 8), "count_share": st.sampled_from([0.3, 0.5])},
        examples=3,
    ),
    "dp_multinomial_frank_wolfe": Row(
        5_000, {"n": 100, "l1_radius": 0.1, "feature_bound": 1.0, "selection": "vertex"},
        {"epsilon": epsilons(4.0, 8.0), "d": st.sampled_from([4, 6]), "classes": st.sampled_from([10, 20]),
         "steps": st.integers(2, 5)}, examples=2, little=MUCH,
    ),
    "peeling_iht": Row(
        10_000, {"n": 40, "step_size": 1.0, "radius": 0.01, "feature_bound": 1.0, "label_bound": 1.0},
        {"epsilon": epsilons(6.0, 8.0), "adjacency": RELATIONS, "data": st.sampled_from(["full", "split"]),
         "steps": st.integers(1, 3), "d": st.sampled_from([4, 6]), "sparsity": st.integers(1, 2)},
    ),
    "objective_perturbation": Row(
        5_000, presets.PRESETS["objective_perturbation"] | {"epsilon": 8.0},
        {"adjacency": RELATIONS, "n": st.sampled_from([50, 100])}, examples=2, little=MUCH,
    ),
    "two_stage": Row(
        6_000, presets.PRESETS["two_stage"] | {"epsilon": 8.0}, {"n": st.sampled_from([20, 40])}, examples=2
    ),
    "knowledge_transfer": Row(
        3_000, {"n": 200, "d": 3, "loss": "huber", "sparsity": 1, "l2": 0.1},
        {"epsilon": epsilons(4.0, 8.0), "adjacency": RELATIONS,
         "teacher": st.sampled_from(["support", "ridge", "propose-test-release"]),
         "features": st.sampled_from(["gaussian", "identity"])},
        (st.sampled_from([{"feature_bound": 0.5}, {"row_norm": 2.0}]),),
    ),
    "dp_admm": Row(
        2_000, {"n": 40, "d": 2, "row_norm": 1.0, "rho": 0.5, "weight": 0.01, "steps": 3},
        {"epsilon": epsilons(4.0, 8.0), "adjacency": RELATIONS,
         "loss": st.sampled_from(["huber", "logistic", "hinge"])},
        examples=3, loose=1,  # The logistic loss, whose slope is not constant.
    ),
}  # fmt: skip
ALPHA = 1e-6 / (TIMES * sum(row.examples for row in ROWS.values()))


def examine(name: str, arguments: dict[str, Any], trials: int, little: float) -> bool:
    """Whether noise too small by ``little`` is found; the plan's own must pass, and a third of it must be found."""
    plan = solvers.plan(name, **arguments)
    pair = presets.pair(plan)
    adversary = audit.strongest(pair)

    def passes(factor: float) -> bool:
        made = plan if factor == 1 else plan.with_noise(factor=1 / factor)
        try:
            audit.assert_private(
                made, pair, as_claim(plan.guarantee), trials=trials, power=None, alpha=ALPHA, adversary=adversary
            )  # fmt: skip
        except PrivacyViolation:
            return False
        return True

    assert passes(1.0), f"the plan's own noise was refuted: {plan}"
    assert not passes(MUCH), f"a third of the noise was not found by {adversary}: {plan}"
    return little == MUCH or not passes(little)


@pytest.mark.filterwarnings("ignore::dptoolkit.solvers.outlook.HopelessPlanWarning")
@pytest.mark.parametrize("name", list(ROWS))
def test_stays_within_and_a_twin_does_not(name):
    row, found = ROWS[name], []

    @settings(max_examples=TIMES * row.examples)
    @given(row.arguments())
    def every_example(arguments):
        found.append((examine(name, arguments, row.trials, row.little), arguments))

    every_example()
    missed = [arguments for caught, arguments in found if not caught]
    most = max(0.1 * len(found), TIMES * row.loose)
    assert len(missed) <= most, f"noise too small by {row.little} was not found in {missed}"


def test_every_private_solver_has_a_row():
    assert set(ROWS) == set(presets.PRESETS)
