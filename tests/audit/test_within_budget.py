"""Every private solver stays within its guarantee on its worst pair, and the same audit finds what is wrong.

A configuration is examined three times by one sequential test, for the adversary of the largest reach: with its own
noise the test must not refute the guarantee; with a third of it the test must; with noise too small by 1.5 it must too,
except for configurations that a row names as loose, with the reason, which may be one in ten. All three are on the pair
that is the worst for noise too small by 1.5, since that is where the fault would show. Other faults (a record counted
twice, a step or a release that is not charged, clipping 5 % too wide) are found by the same test in the rows of
``FAULTS``.

``make test`` examines two configurations of each solver, ``make check-full`` ten times as many as are listed here.

Each test of correct noise has a false-alarm probability of 1e-6 over the number of tests, so that all of them together
have at most 1e-6. Configurations, and the format of the rows with them, are drawn from a generator that the solver's
name seeds. Hypothesis cannot draw them: what it draws depends on the modules that a process has imported, so another
order of tests would ask for the power of other configurations. A new solver needs a row here: the values to draw the
arguments of ``solvers.plan`` from, and how many trials a test takes.

    python tests/audit/test_within_budget.py             # how many configurations find 1.5, and how many find 3
    python tests/audit/test_within_budget.py dp_ight     # of these solvers
"""

from __future__ import annotations

import os
import random
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import pytest
from scipy import sparse

from dptoolkit import audit, solvers
from dptoolkit.audit import pairs, presets
from dptoolkit.audit.claims import as_claim

NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
# Ten times the configurations, some of which need more trials than the few that every run draws.
TIMES, LONGER = (10, 4) if NIGHTLY else (1, 1)
# ``make test`` examines the first of what is drawn for a solver: two have both values of whatever has two.
FEW = None if os.environ.get("DPTOOLKIT_SLOW") else 2
LITTLE, MUCH = 1.5, 3.0
DENSE, CSR = "dense", "csr"
RELATIONS = ("replace-one", "zero-out")
BOUNDS = {
    "clipped": {"loss": "squared", "grad_norm": 0.7},
    "logistic": {"loss": "logistic", "row_norm": 2.0},
    "hinge": {"loss": "hinge", "row_norm": 1.0},
    "huber": {"loss": "huber", "row_norm": 1.0},
}
SCHEMES = (
    {"sampling": "without-replacement", "adjacency": "replace-one"},
    {"sampling": "poisson", "adjacency": "zero-out"},
    {"sampling": "poisson", "adjacency": "replace-one"},
)


class Row(NamedTuple):
    """What is drawn for a solver: some arguments, some groups of them that belong together, and what is the same.

    ``examples`` is how many configurations are drawn: fewer where a trial takes long. ``loose`` says of which arguments
    noise too small by 1.5 may be missed, because no pair is known that shows enough of them. ``formats`` are those in
    which rows are given.
    """

    trials: int
    same: dict[str, Any]
    drawn: dict[str, Sequence[Any]]
    groups: tuple[Sequence[dict[str, Any]], ...] = ()
    examples: int = 4
    loose: Callable[[dict[str, Any]], bool] = lambda arguments: False
    formats: tuple[str, ...] = (DENSE,)

    def parts(self) -> list[Sequence[dict[str, Any]]]:
        """Of the arguments of ``solvers.plan``, and the format: one of each is drawn."""
        values = {"delta": (1e-6, 1e-4), "format": self.formats} | self.drawn
        return [[self.same], *([{key: value} for value in values[key]] for key in values), *self.groups]


BOTH = (DENSE, CSR)
ROWS = {
    "dp_ight": Row(
        12_000, {"n": 200},
        {"d": (5, 20), "epsilon": (2.0, 4.0, 8.0), "sparsity": range(2, 6),
         "steps": range(1, 31), "step_size": (0.2, 0.5, 1.0)},
        ((BOUNDS["clipped"], BOUNDS["logistic"], BOUNDS["hinge"], BOUNDS["huber"]),
         # A zero row moves the intercept, so zero-out neighbours have none.
         ({"adjacency": "zero-out"}, {"adjacency": "replace-one", "fit_intercept": True},
                          {"adjacency": "replace-one"})),
        examples=10, formats=BOTH,
    ),
    "dp_dual_averaging": Row(
        6_000, {"n": 200, "d": 5},
        {"epsilon": (2.0, 4.0, 8.0), "sparsity": range(2, 6), "adjacency": RELATIONS,
         "steps": range(1, 21)},
        ((BOUNDS["logistic"], BOUNDS["clipped"] | {"step_size": 0.5},
          {"loss": "softmax", "classes": 3, "row_norm": 1.0}),),
        examples=9, formats=BOTH,
    ),
    # So few records that the number of steps is sure, with less noise too.
    "dp_pipeline": Row(6_000, {"n": 40, "epsilon": 4.0}, {"d": (2, 3)}, examples=2),
    "dp_sgd_ht": Row(
        6_000, {"n": 200, "d": 4, "sparsity": 2},
        {"epsilon": (4.0, 8.0), "batch_size": (50, 100, 200), "steps": range(4, 13),
         "step_size": (0.2, 1.0)},
        (SCHEMES, (BOUNDS["clipped"], BOUNDS["logistic"], BOUNDS["hinge"])),
        examples=6, loose=lambda given: given["sampling"] == "without-replacement" and given["batch_size"] < 200
        and given["loss"] != "squared",  # Reach 0.65 to 0.84.
    ),
    "dp_scsg_ht": Row(
        4_000, presets.PRESETS["dp_scsg_ht"] | {"n": 1000, "snapshot_size": 1000, "epsilon": 8.0},
        {"batch_size": (100, 250), "grad_norm": (0.5, 2.0)}, examples=2,
    ),
    "dp_svrg_ht": Row(
        4_000, presets.PRESETS["dp_svrg_ht"] | {"epsilon": 8.0}, {"epochs": range(8, 11)}, examples=1,
    ),
    # A larger radius moves the residuals of other losses than Huber's, and little is found with two steps.
    "dp_frank_wolfe": Row(
        40_000, {"n": 50, "feature_bound": 1.0},
        {"epsilon": (2.0, 4.0, 8.0), "adjacency": RELATIONS, "steps": range(3, 13),
         "d": range(3, 9)},
        (({"loss": "huber", "l1_radius": 0.1}, {"loss": "huber", "l1_radius": 3.0},
                          {"loss": "logistic", "l1_radius": 0.1},
                          {"loss": "squared", "l1_radius": 0.1, "label_bound": 1.0}),),
        examples=6,
    ),
    "sparsifier": Row(
        6_000, {"n": 50, "d": 9, "l1_radius": 0.1, "feature_bound": 1.0},
        {"epsilon": (4.0, 8.0), "steps": range(4, 9), "count_share": (0.3, 0.5),
         "fit_intercept": (False, False, True)},
        examples=3,
    ),
    "dp_multinomial_frank_wolfe": Row(
        8_000, {"n": 100, "d": 4, "feature_bound": 1.0},
        {"epsilon": (4.0, 8.0), "classes": (3, 5, 10), "steps": range(2, 5),
         "l1_radius": (0.1, 1.0), "adjacency": RELATIONS,
         "selection": ("vertex", "vertex", "columns")},
        examples=4, loose=lambda given: given["selection"] == "columns",  # Reach 0.35 to 0.65.
    ),
    "peeling_iht": Row(
        8_000, {"n": 40, "step_size": 1.0, "feature_bound": 1.0, "label_bound": 1.0},
        {"epsilon": (4.0, 8.0), "adjacency": RELATIONS, "data": ("full", "split"),
         "radius": (0.01, 0.1), "steps": range(1, 4), "d": (4, 6),
         "sparsity": range(1, 3)}, examples=6, formats=BOTH,
    ),
    "objective_perturbation": Row(
        50_000, {"row_norm": 1.0},
        {"n": (50, 100, 200), "d": range(1, 4), "epsilon": (4.0, 8.0),
         "l2": (0.3, 1.0), "adjacency": RELATIONS},
        # The loss of gamma noise is bounded, and where epsilon is large its bound is seldom seen.
        (({"loss": "huber"}, {"loss": "huber"}, {"loss": "huber", "law": "gamma", "epsilon": 2.0},
          {"loss": "logistic"}),),
        examples=8, loose=lambda given: given["loss"] == "logistic",  # A slope that is not constant: reach 0.5.
    ),
    "two_stage": Row(
        8_000, presets.PRESETS["two_stage"],
        {"n": (20, 40), "epsilon": (4.0, 8.0), "l2": (0.3, 1.0)},
        examples=3,
    ),
    "knowledge_transfer": Row(
        8_000, {"n": 200, "d": 3, "loss": "huber", "sparsity": 1, "l2": 0.1},
        {"features": ("gaussian", "identity"),
         "teacher": ("support", "ridge", "propose-test-release")},
        (({"feature_bound": 0.5}, {"row_norm": 2.0}),
         # With a zero row little is found at epsilon 8, where a teacher's support is nearly sure.
         ({"epsilon": 2.0, "adjacency": "replace-one"}, {"epsilon": 4.0, "adjacency": "replace-one"},
                          {"epsilon": 8.0, "adjacency": "replace-one"}, {"epsilon": 2.0, "adjacency": "zero-out"},
                          {"epsilon": 4.0, "adjacency": "zero-out"})),
        examples=6,
    ),
    "dp_admm": Row(
        10_000, {"n": 40, "d": 2, "row_norm": 1.0, "rho": 0.5, "weight": 0.01},
        {"epsilon": (2.0, 4.0, 8.0), "adjacency": RELATIONS, "steps": range(1, 6),
         "loss": ("huber", "hinge", "logistic")},
        examples=6, loose=lambda given: given["loss"] == "logistic",  # A slope that is not constant: reach 0.5.
    ),
}  # fmt: skip


@lru_cache
def drawn(name: str) -> tuple[dict[str, Any], ...]:
    """The arguments of all configurations of a solver: the same in every run, and each value as often as the others."""
    row, generator = ROWS[name], random.Random(name)
    columns = [_shuffled(part, TIMES * row.examples, generator) for part in row.parts()]
    return tuple({key: value for part in parts for key, value in part.items()} for parts in zip(*columns, strict=True))


def _shuffled(values: Sequence[Any], count: int, generator: random.Random) -> list[Any]:
    """So many of them: all of them in some order, and again, until there are enough."""
    turns = -(-count // len(values))
    return [value for _ in range(turns) for value in generator.sample(values, len(values))][:count]


class Case(NamedTuple):
    """What is run on which pair, what is claimed for it, by which attack of which adversary."""

    made: solvers.Plan
    pair: audit.Pair
    claim: Any
    adversary: str
    attack: Any = None


def case(name: str, arguments: dict[str, Any], factor: float = 1.0) -> Case:
    """A correct solver on the worst pair for noise too small by ``factor``; the arguments name the format of rows."""
    given_ = dict(arguments)
    kind = given_.pop("format", DENSE)
    plan = solvers.plan(name, **given_)
    pair = presets.pair(plan.with_noise(factor=1 / factor))
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


def evidence(case: Case, trials: int) -> Any:
    """What the sequential test says of the claim within so many trials."""
    return audit.evidence(
        case.made, case.pair, case.claim, trials=LONGER * trials, alpha=ALPHA, adversary=case.adversary,
        attack=case.attack, delta=case.made.settings.delta,
    )  # fmt: skip


def refuted(case: Case, trials: int) -> bool:
    return evidence(case, trials).refuted


def stopped_at(right: Case, factor: float, trials: int) -> int | None:
    """After how many trials noise too small by ``factor`` is found."""
    return evidence(right._replace(made=right.made.with_noise(factor=1 / factor)), trials).stopped_at


def finds(right: Case, factor: float, trials: int) -> bool:
    return stopped_at(right, factor, trials) is not None


@pytest.mark.parametrize("name", list(ROWS))
def test_stays_within_and_a_twin_does_not(name):
    row = ROWS[name]
    for arguments in drawn(name)[:FEW]:
        right = case(name, arguments, LITTLE)
        assert not refuted(right, row.trials), f"the plan's own noise was refuted: {right.made}"
        assert finds(right, MUCH, row.trials), f"a third of the noise was not found by {right.adversary}: {arguments}"
        if not row.loose(arguments):
            assert finds(right, LITTLE, row.trials), f"noise too small by {LITTLE} was not found: {arguments}"


def fault_cases() -> list[Any]:
    """Faults of FAULTS; those of many trials are slow, but for one."""
    names = [f"{fault[1]}-{fault[0].__name__}" for fault in FAULTS]
    slow = [fault[3] > 100_000 and fault[1] != "dp_ight" for fault in FAULTS]
    return [
        pytest.param(*fault, id=name, marks=[pytest.mark.slow] * long)
        for fault, name, long in zip(FAULTS, names, slow, strict=True)
    ]


@pytest.mark.parametrize(("fault", "name", "arguments", "trials"), fault_cases())
def test_another_fault_is_found(fault, name, arguments, trials):
    right = case(name, arguments)
    assert not refuted(right, trials), f"what is right was refuted: {right.made}"
    assert refuted(fault(right), trials), fault.__doc__


def test_every_private_solver_has_a_row_and_another_fault():
    assert set(ROWS) == {fault[1] for fault in FAULTS} == set(solvers.PRIVATE)


def test_most_configurations_find_little():
    """At least nine of ten are not named as loose; of those, the test above has found every one."""
    loose = [ROWS[name].loose(arguments) for name in ROWS for arguments in drawn(name)]
    assert sum(loose) <= 0.1 * len(loose)


# --- the same as a table -------------------------------------------------------------------------------


def measure(names: list[str]) -> None:
    """Print how many configurations find each factor, solver by solver, and after how many trials."""
    total = {LITTLE: 0, MUCH: 0, "configurations": 0}
    for name in names or list(ROWS):
        began = time.process_time()
        for arguments in drawn(name):
            right = case(name, arguments, LITTLE)
            stops = {factor: stopped_at(right, factor, ROWS[name].trials) for factor in (LITTLE, MUCH)}
            total = {key: total[key] + (key == "configurations" or stops[key] is not None) for key in total}
            mark = " loose" if ROWS[name].loose(arguments) else ""
            print(f"{name}: {stops[LITTLE]} and {stops[MUCH]}{mark}: {arguments}", flush=True)
        print(f"    {time.process_time() - began:.1f} s", flush=True)
    print(f"of {total['configurations']}, {total[LITTLE]} find {LITTLE:g} and {total[MUCH]} find {MUCH:g}")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    measure(sys.argv[1:])
