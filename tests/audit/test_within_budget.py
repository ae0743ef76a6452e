"""Every private solver stays within its guarantee on its worst pair, and the same audit finds what is wrong.

A configuration is examined three times by one sequential test, for the adversary of the largest reach: with its own
noise the test must not refute the guarantee; with a third of it the test must; with noise too small by 1.5 it must in
nine of ten configurations: a row says how many of its own may miss that, and why. Other faults (a record counted twice,
a step or a release that is not charged, clipping 5 % too wide) are found by the same test in the rows of ``FAULTS``.

Each test of correct noise has a false-alarm probability of 1e-6 over the number of tests, so that all of them together
have at most 1e-6. Configurations are drawn by hypothesis, fixed by the "ci" profile, and the format of the rows with
them. A new solver needs a row here: a strategy for the arguments of ``solvers.plan``, and how many trials a test takes.

    python tests/audit/test_within_budget.py             # how many configurations find 1.5, and how many find 3
    python tests/audit/test_within_budget.py dp_ight     # of these solvers
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from dptoolkit import audit, solvers
from dptoolkit.audit import pairs, presets
from dptoolkit.audit.claims import as_claim

NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
TIMES = 10 if NIGHTLY else 1
LITTLE, MUCH = 1.5, 3.0
DENSE, CSR = "dense", "csr"
RELATIONS = st.sampled_from(["replace-one", "zero-out"])
BOUNDS = {
    "clipped": {"loss": "squared", "grad_norm": 0.7},
    "logistic": {"loss": "logistic", "row_norm": 2.0},
    "hinge": {"loss": "hinge", "row_norm": 1.0},
    "huber": {"loss": "huber", "row_norm": 1.0},
}
SCHEMES = st.sampled_from([
    {"sampling": "without-replacement", "adjacency": "replace-one"},
    {"sampling": "poisson", "adjacency": "zero-out"},
    {"sampling": "poisson", "adjacency": "replace-one"},
])  # fmt: skip


class Row(NamedTuple):
    """What is drawn for a solver: some arguments, some groups of them that belong together, and what is the same.

    ``examples`` is how many configurations are drawn: fewer where a trial takes long. ``loose`` is how many of them,
    named beside it, may miss noise too small by 1.5, because no pair is known that shows enough of them. ``formats``
    are those in which rows are given.
    """

    trials: int
    same: dict[str, Any]
    drawn: dict[str, st.SearchStrategy[Any]]
    groups: tuple[st.SearchStrategy[dict[str, Any]], ...] = ()
    examples: int = 4
    loose: int = 0
    formats: tuple[str, ...] = (DENSE,)

    def arguments(self) -> st.SearchStrategy[dict[str, Any]]:
        """Of ``solvers.plan``, and the format."""
        always = {"delta": st.sampled_from([1e-6, 1e-4]), "format": st.sampled_from(self.formats)}
        groups = st.tuples(st.fixed_dictionaries({**always, **self.drawn}), *self.groups)
        return groups.map(lambda drawn: {key: value for part in (self.same, *drawn) for key, value in part.items()})


def epsilons(*values: float) -> st.SearchStrategy[float]:
    return st.sampled_from(values)


BOTH = (DENSE, CSR)
ROWS = {
    "dp_ight": Row(
        20_000, {"n": 200, "d": 5},
        {"epsilon": epsilons(2.0, 4.0, 8.0), "sparsity": st.integers(2, 5), "steps": st.integers(1, 30),
         "step_size": st.sampled_from([0.2, 0.5, 1.0])},
        (st.sampled_from([BOUNDS["clipped"], BOUNDS["logistic"], BOUNDS["hinge"], BOUNDS["huber"]]),
         # A zero row moves the intercept, so zero-out neighbours have none.
         st.sampled_from([{"adjacency": "zero-out"}, {"adjacency": "replace-one", "fit_intercept": True},
                          {"adjacency": "replace-one"}])),
        examples=10, formats=BOTH,
    ),
    "dp_dual_averaging": Row(
        20_000, {"n": 200, "d": 5, "steps": 10},
        {"epsilon": epsilons(2.0, 4.0, 8.0), "sparsity": st.integers(2, 5), "adjacency": RELATIONS},
        (st.sampled_from([BOUNDS["logistic"], BOUNDS["clipped"] | {"step_size": 0.5}]),), examples=8, formats=BOTH,
    ),
    # So few records that the number of steps is sure, with less noise too.
    "dp_pipeline": Row(4_000, {"n": 40, "epsilon": 4.0}, {"d": st.sampled_from([2, 3])}, examples=2),
    "dp_sgd_ht": Row(
        20_000, {"n": 200, "d": 4, "sparsity": 2, "steps": 8},
        {"epsilon": epsilons(3.0, 8.0), "batch_size": st.sampled_from([50, 100, 200]),
         "step_size": st.sampled_from([0.2, 1.0])},
        (SCHEMES, st.sampled_from([BOUNDS["clipped"], BOUNDS["logistic"], BOUNDS["hinge"]])),
        loose=1,  # A part of the records without replacement: a reach of 0.70.
    ),
    "dp_scsg_ht": Row(
        4_000, presets.PRESETS["dp_scsg_ht"] | {"n": 1000, "snapshot_size": 1000, "epsilon": 8.0},
        {"batch_size": st.sampled_from([100, 250]), "grad_norm": epsilons(0.5, 2.0)}, examples=2,
    ),
    "dp_svrg_ht": Row(
        4_000, presets.PRESETS["dp_svrg_ht"] | {"epsilon": 8.0}, {"epochs": st.integers(8, 10)}, examples=1,
    ),
    "dp_frank_wolfe": Row(
        40_000, {"n": 50, "feature_bound": 1.0, "epsilon": 4.0, "l1_radius": 0.1},
        {"adjacency": RELATIONS, "steps": st.integers(6, 10), "d": st.just(5)},
        (st.sampled_from([{"loss": "logistic"}, {"loss": "huber"}, {"loss": "squared", "label_bound": 1.0}]),),
        loose=2,  # Zero-out neighbours: with less noise the first steps break the ties.
    ),
    "sparsifier": Row(
        4_000, {"n": 50, "d": 9, "l1_radius": 0.1, "feature_bound": 1.0},
        {"epsilon": epsilons(4.0, 8.0), "steps": st.integers(4, 8), "count_share": st.sampled_from([0.3, 0.5])},
        examples=3,
    ),
    "dp_multinomial_frank_wolfe": Row(
        6_000, {"n": 100, "l1_radius": 0.1, "feature_bound": 1.0, "selection": "vertex", "epsilon": 8.0, "d": 4},
        {"classes": st.sampled_from([10, 20]), "steps": st.integers(2, 4)}, examples=2,
        loose=2,  # The pair reaches 0.4 of the guarantee.
    ),
    "peeling_iht": Row(
        6_000, {"n": 40, "step_size": 1.0, "radius": 0.01, "feature_bound": 1.0, "label_bound": 1.0},
        {"epsilon": epsilons(6.0, 8.0), "adjacency": RELATIONS, "data": st.sampled_from(["full", "split"]),
         "steps": st.integers(1, 3), "d": st.sampled_from([4, 6]), "sparsity": st.integers(1, 2)}, formats=BOTH,
    ),
    "objective_perturbation": Row(
        4_000, presets.PRESETS["objective_perturbation"] | {"epsilon": 8.0}, {"n": st.sampled_from([50, 100])},
        examples=1, loose=1,  # The share of epsilon is large, that of total variation is small.
    ),
    "two_stage": Row(
        6_000, presets.PRESETS["two_stage"] | {"epsilon": 8.0}, {"n": st.sampled_from([20, 40])}, examples=2
    ),
    "knowledge_transfer": Row(
        3_000, {"n": 200, "d": 3, "loss": "huber", "sparsity": 1, "l2": 0.1, "features": "gaussian"},
        {"epsilon": epsilons(4.0, 8.0), "adjacency": RELATIONS,
         "teacher": st.sampled_from(["support", "ridge", "propose-test-release"])},
        (st.sampled_from([{"feature_bound": 0.5}, {"row_norm": 2.0}]),),
    ),
    "dp_admm": Row(
        2_000, {"n": 40, "d": 2, "row_norm": 1.0, "rho": 0.5, "weight": 0.01, "steps": 3},
        {"epsilon": epsilons(4.0, 8.0), "adjacency": RELATIONS,
         "loss": st.sampled_from(["huber", "logistic", "hinge"])},
        examples=3, loose=1,  # The logistic loss, whose slope is not constant.
    ),
}  # fmt: skip


class Case(NamedTuple):
    """What is run on which pair, what is claimed for it, by which attack of which adversary."""

    made: solvers.Plan
    pair: audit.Pair
    claim: Any
    adversary: str
    attack: Any = None


def case(name: str, arguments: dict[str, Any]) -> Case:
    """A correct solver on its worst pair, whose rows have the format that the arguments name."""
    given_ = dict(arguments)
    kind = given_.pop("format", DENSE)
    plan = solvers.plan(name, **given_)
    pair = presets.pair(plan)
    made = pair if kind == DENSE else replace(pair, first=_csr(pair.first), second=_csr(pair.second))
    return Case(plan, made, as_claim(plan.guarantee), audit.strongest(pair))


def _csr(data: Any) -> tuple[Any, Any]:
    X, y = data.expand()
    return sparse.csr_matrix(X), y


# --- faults --------------------------------------------------------------------------------------------


def counted_twice(right: Case) -> Case:
    """The record that differs occurs twice, and is charged once."""
    return right._replace(pair=pairs.grouped(right.pair, 2), attack=right.pair.scores[right.adversary])


def step_not_charged(right: Case) -> Case:
    """The first release happens once more than the claim knows."""
    first, *others = right.made.releases
    return right._replace(claim=_of(right.made, replace(first, count=first.count - 1), *others))


def release_not_charged(right: Case) -> Case:
    """The last release is left out of the event: the sparsifier's count, say."""
    return right._replace(claim=_of(right.made, *right.made.releases[:-1]))


def clipped_too_wide(right: Case) -> Case:
    """Gradients are clipped at 1.05 times the bound that the noise is for."""
    plan = right.made
    bound = 1.05 * plan.settings.grad_norm
    wide = replace(plan, settings=replace(plan.settings, grad_norm=bound))
    return right._replace(made=wide, pair=presets.pair(wide))


def _of(plan: solvers.Plan, *releases: Any) -> Any:
    return as_claim(replace(plan, releases=tuple(releases)).guarantee)


DELTA = {"delta": 1e-5}
TWO = {"n": 200, "d": 3, "sparsity": 2, "steps": 2, "step_size": 1.0, "epsilon": 8.0} | BOUNDS["clipped"] | DELTA
BATCHES = TWO | {"d": 4, "batch_size": 200}
BALL = {"n": 50, "feature_bound": 1.0, "epsilon": 4.0, "l1_radius": 0.1} | DELTA
PEELED = {"n": 40, "d": 4, "sparsity": 1, "steps": 2, "step_size": 1.0, "radius": 0.01, "feature_bound": 1.0,
          "label_bound": 1.0, "epsilon": 6.0} | DELTA  # fmt: skip
SPLIT = {"n": 40, "d": 2, "row_norm": 1.0, "rho": 0.5, "weight": 0.01, "steps": 2, "loss": "huber", "epsilon": 8.0}
TRANSFER = {"n": 200, "d": 3, "loss": "huber", "sparsity": 1, "l2": 0.1, "features": "gaussian", "teacher": "support",
            "feature_bound": 0.5, "epsilon": 4.0} | DELTA  # fmt: skip
FAULTS: tuple[tuple[Callable[[Case], Case], str, dict[str, Any], int], ...] = (
    (counted_twice, "dp_ight", TWO, 2_000),
    (counted_twice, "dp_dual_averaging", TWO, 2_000),
    (counted_twice, "dp_pipeline", {"n": 40, "d": 2, "epsilon": 4.0} | DELTA, 2_000),
    (counted_twice, "dp_frank_wolfe", BALL | {"loss": "logistic", "steps": 8, "d": 5}, 2_000),
    (counted_twice, "dp_multinomial_frank_wolfe", presets.PRESETS["dp_multinomial_frank_wolfe"] | DELTA
     | {"classes": 10, "steps": 3, "epsilon": 8.0}, 2_000),
    (counted_twice, "peeling_iht", PEELED, 3_000),
    (counted_twice, "dp_scsg_ht", presets.PRESETS["dp_scsg_ht"] | DELTA
     | {"n": 1000, "snapshot_size": 1000, "epsilon": 8.0}, 1_500),
    (counted_twice, "dp_svrg_ht", presets.PRESETS["dp_svrg_ht"] | DELTA | {"epsilon": 8.0}, 1_500),
    (counted_twice, "objective_perturbation", presets.PRESETS["objective_perturbation"] | DELTA | {"epsilon": 4.0},
     3_000),
    (counted_twice, "knowledge_transfer", TRANSFER, 2_000),
    (counted_twice, "dp_admm", SPLIT | DELTA, 2_000),
    (step_not_charged, "dp_ight", TWO, 5_000),
    (step_not_charged, "dp_dual_averaging", TWO, 5_000),
    (step_not_charged, "dp_sgd_ht", BATCHES, 8_000),
    (step_not_charged, "dp_frank_wolfe", BALL | {"loss": "logistic", "steps": 2, "d": 5}, 20_000),
    (step_not_charged, "dp_admm", SPLIT | DELTA, 4_000),
    (release_not_charged, "sparsifier", BALL | {"d": 9, "steps": 4, "count_share": 0.5}, 2_000),
    (release_not_charged, "peeling_iht", PEELED, 8_000),
    (release_not_charged, "two_stage", presets.PRESETS["two_stage"] | DELTA | {"epsilon": 8.0}, 4_000),
    (release_not_charged, "knowledge_transfer", TRANSFER, 2_000),
    # The first two find it after 35,000 trials, the last after 50,000.
    (clipped_too_wide, "dp_ight", TWO | {"epsilon": 12.0}, 150_000),
    (clipped_too_wide, "dp_dual_averaging", TWO | {"epsilon": 12.0}, 150_000),
    (clipped_too_wide, "dp_sgd_ht", BATCHES | {"epsilon": 12.0}, 150_000),
)  # fmt: skip


# --- tests ---------------------------------------------------------------------------------------------

ALPHA = 1e-6 / (TIMES * sum(row.examples for row in ROWS.values()) + len(FAULTS))


def refuted(case: Case, trials: int) -> bool:
    """Whether the sequential test refutes the claim within so many trials."""
    report = audit.audit(
        case.made, case.pair, case.claim, trials=trials, mode="sequential", alpha=ALPHA, adversary=case.adversary,
        attack=case.attack, delta=case.made.settings.delta,
    )  # fmt: skip
    return report.violated


def finds(right: Case, factor: float, trials: int) -> bool:
    """Whether noise too small by ``factor`` is found."""
    return refuted(right._replace(made=right.made.with_noise(factor=1 / factor)), trials)


@pytest.mark.filterwarnings("ignore::dptoolkit.solvers.outlook.HopelessPlanWarning")
@pytest.mark.parametrize("name", list(ROWS))
def test_stays_within_and_a_twin_does_not(name):
    row, missed = ROWS[name], []

    @settings(max_examples=TIMES * row.examples)
    @given(row.arguments())
    def every_example(arguments):
        right = case(name, arguments)
        assert not refuted(right, row.trials), f"the plan's own noise was refuted: {right.made}"
        assert finds(right, MUCH, row.trials), f"a third of the noise was not found by {right.adversary}: {arguments}"
        if not finds(right, LITTLE, row.trials):
            missed.append(arguments)

    every_example()
    assert len(missed) <= TIMES * row.loose, f"noise too small by {LITTLE} was not found in {missed}"


@pytest.mark.filterwarnings("ignore::dptoolkit.solvers.outlook.HopelessPlanWarning")
@pytest.mark.parametrize(
    ("fault", "name", "arguments", "trials"), FAULTS, ids=[f"{fault[1]}-{fault[0].__name__}" for fault in FAULTS]
)
def test_another_fault_is_found(fault, name, arguments, trials):
    right = case(name, arguments)
    assert not refuted(right, trials), f"what is right was refuted: {right.made}"
    assert refuted(fault(right), trials), fault.__doc__


def test_every_private_solver_has_a_row_and_another_fault():
    assert set(ROWS) == {fault[1] for fault in FAULTS} == set(solvers.PRIVATE)


def test_most_configurations_find_little():
    """A test of one row cannot see the others, so the numbers that it allows to miss are added up here.

    The aim is one in ten. What misses is named in the rows, with the reason.
    """
    assert sum(row.loose for row in ROWS.values()) <= 0.15 * sum(row.examples for row in ROWS.values())


# --- the same as a table -------------------------------------------------------------------------------


def measure(names: list[str]) -> None:
    """Print how many configurations find each factor, solver by solver."""
    total = {LITTLE: 0, MUCH: 0, "configurations": 0}
    for name in names or list(ROWS):
        row, seen = ROWS[name], []

        @settings(max_examples=row.examples, derandomize=True, database=None, deadline=None)
        @given(row.arguments())
        def every_example(arguments, name=name, row=row, seen=seen):
            right = case(name, arguments)
            seen.append((arguments, {factor: finds(right, factor, row.trials) for factor in (LITTLE, MUCH)}))

        every_example()
        counts = {factor: sum(found[factor] for _, found in seen) for factor in (LITTLE, MUCH)}
        print(f"{name}: of {len(seen)}, {counts[LITTLE]} find {LITTLE:g} and {counts[MUCH]} find {MUCH:g}", flush=True)
        for arguments in (arguments for arguments, found in seen if not found[LITTLE]):
            print(f"    missed: {arguments}", flush=True)
        total = {key: total[key] + (len(seen) if key == "configurations" else counts[key]) for key in total}
    print(f"all: of {total['configurations']}, {total[LITTLE]} find {LITTLE:g} and {total[MUCH]} find {MUCH:g}")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    measure(sys.argv[1:])
