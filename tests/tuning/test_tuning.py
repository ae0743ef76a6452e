"""The private choice: its budget, its releases, and that nothing but the best run leaves it."""

import dataclasses
import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse, stats

from dptoolkit import accounting, audit, losses, solvers, tuning
from dptoolkit.accounting import BestOf, Ledger, rdp
from dptoolkit.errors import DpToolkitError, InvalidValue
from dptoolkit.mechanisms import GaussianNoise
from dptoolkit.solvers import FitResult
from dptoolkit.tuning import models as choosing
from dptoolkit.tuning import search
from dptoolkit.tuning.choice import Score, one_run

BUDGET = {"epsilon": 1.0, "delta": 1e-5}
LOGISTIC = {"loss": "logistic", "sparsity": 3, "row_norm": 1.0}
CHOICES = {
    "Gaussian": ("dp_ight", tuning.grid(steps=[5, 10], step_size=[1.0, 4.0]), LOGISTIC),
    "zCDP": (
        "dp_frank_wolfe",
        tuning.grid(l1_radius=[2.0, 8.0], steps=[5, 10]),
        {"loss": "logistic", "feature_bound": 1.0},
    ),
    "equal": ("dp_sgd_ht", tuning.grid(step_size=[1.0, 4.0]), LOGISTIC | {"batch_size": 50, "steps": 20}),
}


def rows(n=300, d=6, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) / d**0.5
    return X, (X[:, 0] > 0).astype(float)


def make(kind, **more):
    solver, candidates, fixed = CHOICES[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", solvers.HopelessPlanWarning)
        return tuning.plan(solver, candidates, **({"n": 300, "d": 6} | BUDGET | fixed | more))


@pytest.mark.parametrize(
    ("kind", "law", "validation"),
    [("Gaussian", "geometric", 0.2), ("Gaussian", "logarithmic", "public"), ("zCDP", "logarithmic", 0.2),
     ("equal", "logarithmic", 0.2), ("equal", "geometric", "public")],
)  # fmt: skip
def test_the_budget_is_kept_and_used(kind, law, validation):
    plan = make(kind, law=law, validation=validation)
    assert 0.99 <= plan.guarantee.epsilon(BUDGET["delta"]) <= BUDGET["epsilon"]
    assert isinstance(plan.event, BestOf)
    # A choice costs: a run that cost as much as the whole budget would be charged nothing for it.
    assert plan.run_epsilon < 0.9 * BUDGET["epsilon"]


@given(st.lists(st.floats(0.5, 50.0), min_size=1, max_size=4), st.floats(0.5, 50.0) | st.none())
@settings(max_examples=30, deadline=None)
def test_one_run_is_no_better_than_any_candidate_or_the_score(multipliers, score):
    events = [accounting.Repeated(accounting.Gaussian(m), i + 1) for i, m in enumerate(multipliers)]
    scored = None if score is None else accounting.Gaussian(score)
    whole = rdp.composed(one_run(events, scored), rdp.DEFAULT_ORDERS)
    for event in [*events, *([] if scored is None else [scored])]:
        assert (rdp.composed(event, rdp.DEFAULT_ORDERS) <= whole * (1 + 1e-12)).all()


def test_candidates_that_give_away_different_things_are_refused():
    with pytest.raises(InvalidValue, match="give away the same"):
        tuning.plan("dp_sgd_ht", tuning.grid(batch_size=[20, 60]), n=300, d=6, steps=5, **LOGISTIC, **BUDGET)


@pytest.mark.parametrize(("solver", "candidates", "fixed"), [
    ("dp_ight", tuning.grid(adjacency=["replace-one", "zero-out"]), LOGISTIC | {"steps": 5, "step_size": 1.0}),
    ("dp_ight", tuning.grid(loss=["huber", "logistic"]),
     {"sparsity": 3, "row_norm": 1.0, "steps": 5, "step_size": 1.0, "score_bound": 1.0}),
    ("dp_dual_averaging", tuning.grid(classes=[3, 2]), {"loss": "softmax", "row_norm": 1.0}),
])  # fmt: skip
def test_candidates_for_other_neighbours_or_labels_are_refused(solver, candidates, fixed):
    """One guarantee has one adjacency, and labels are checked once: 10,000 is no label of a logistic loss."""
    with pytest.raises(InvalidValue, match="candidates=.*alike in"):
        tuning.plan(solver, candidates, n=300, d=6, **fixed, **BUDGET)


def test_candidates_may_have_other_losses_of_the_same_labels():
    plan = tuning.plan(
        "dp_ight", tuning.grid(loss=["hinge", "logistic"]), n=90_000, d=6, sparsity=3, row_norm=1.0, **BUDGET
    )
    assert [p.settings.loss for p in plan.plans] == ["hinge", "logistic"]


@given(st.integers(0, 10_000), st.booleans())
@settings(max_examples=60, deadline=None)
def test_the_sensitivity_of_scores_is_respected_and_attained(seed, regression):
    rng = np.random.default_rng(seed)
    score = Score(losses.get("huber"), 2.0) if regression else Score(losses.get("logistic"))
    X, y = rng.standard_normal((7, 3)), rng.integers(0, 2, 7) * 1.0
    model = FitResult(rng.standard_normal(3), 0.3, None, None, {})
    other_X, other_y = X.copy(), y.copy()
    other_X[4], other_y[4] = 100 * rng.standard_normal(3), rng.normal() * 100 if regression else 1 - y[4]
    moved = abs(score.of(model, X, y) - score.of(model, other_X, other_y))
    assert moved <= score.sensitivity(7) * (1 + 1e-12)
    # The worst neighbours: one prediction right, then as wrong as can be.
    X[0], y[0] = 100 * model.coef / (model.coef @ model.coef), 2.0 if regression else 1.0
    other_X, other_y = X.copy(), y.copy()
    other_y[0] = -2.0 if regression else 0.0
    attained = abs(score.of(model, X, y) - score.of(model, other_X, other_y))
    assert attained == pytest.approx(score.sensitivity(7))


def test_every_score_is_released_with_the_planned_noise(monkeypatch):
    drawn = []
    plain = GaussianNoise.release

    def spy(self, value, rng=None):
        drawn.append((self.scale, self.sensitivity))
        return plain(self, value, rng)

    monkeypatch.setattr(GaussianNoise, "release", spy)
    X, y = rows()
    solver, candidates, fixed = CHOICES["Gaussian"]
    result = tuning.tune(solver, candidates, X, y, rng=1, expected_runs=20, **BUDGET, **fixed)
    release = result.plan.score
    assert release.sensitivity == 1 / 60
    assert drawn and set(drawn) == {(release.scale, release.sensitivity)}


@pytest.mark.parametrize("law", ["geometric", "logarithmic"])
def test_the_number_of_runs_has_the_law_that_is_charged(law):
    """Chi-square at 1e-6; a law with twice the mean fails it."""
    runs, other = make("Gaussian", law=law).runs, make("Gaussian", law=law, expected_runs=16).runs
    rng = np.random.default_rng(0)
    draws = np.asarray([search.number_of_runs(runs, rng) for _ in range(20_000)])
    assert draws.min() == 1
    seen = np.bincount(np.minimum(draws, 31), minlength=32)[1:]

    def p_value(law_of_runs):
        tails = [law_of_runs.tail(k) for k in range(31)] + [0.0]
        return stats.chisquare(seen, -np.diff(tails) * len(draws)).pvalue

    assert p_value(runs) > 1e-6
    assert p_value(other) < 1e-6


def test_held_out_rows_are_never_trained_on_and_training_rows_never_scored(monkeypatch):
    X, y = rows()
    trained, scored = [], []
    plan = make("Gaussian")
    kind = type(plan.plans[0].settings)
    prepare, of = kind.bind, Score.of
    monkeypatch.setattr(kind, "bind", lambda self, p, r, *a: trained.append(r.matrix) or prepare(self, p, r, *a))
    monkeypatch.setattr(Score, "of", lambda self, m, r, *a: scored.append(r) or of(self, m, r, *a))
    solver, candidates, fixed = CHOICES["Gaussian"]
    tuning.tune(solver, candidates, X, y, rng=1, **BUDGET, **fixed)
    train, held_out = plan.held_out()
    assert sorted([*train, *held_out]) == list(range(300)) and len(held_out) == 60
    assert all(np.array_equal(matrix, X[train]) for matrix in trained) and trained
    assert all(np.array_equal(matrix, X[held_out]) for matrix in scored) and scored


def test_the_split_does_not_depend_on_the_data():
    first, second = make("Gaussian").held_out(), make("Gaussian", validation=0.2).held_out()
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_public_rows_are_scored_exactly_and_all_private_rows_trained_on():
    X, y = rows()
    solver, candidates, fixed = CHOICES["Gaussian"]
    result = tuning.tune(solver, candidates, X, y, public=rows(seed=5), rng=1, **BUDGET, **fixed)
    assert result.plan.training == 300 and result.plan.score is None
    assert result.score == Score(losses.get("logistic")).of(result.model, *rows(seed=5))


def test_a_ledger_is_charged_once_and_refuses_before_the_data_are_used(monkeypatch):
    X, y = rows()
    solver, candidates, fixed = CHOICES["Gaussian"]
    ledger = Ledger(epsilon=1.5, delta=1e-5, allow_seeds=True)
    result = tuning.tune(solver, candidates, X, y, ledger=ledger, rng=1, **BUDGET, **fixed)
    assert ledger.guarantee.epsilon(1e-5) == result.guarantee.epsilon(1e-5)
    monkeypatch.setattr(search, "_best_run", lambda *a: pytest.fail("the data were used"))
    with pytest.raises(DpToolkitError):
        tuning.tune(solver, candidates, X, y, ledger=ledger, rng=2, **BUDGET, **fixed)


def test_the_result_states_the_whole_choice():
    X, y = rows()
    solver, candidates, fixed = CHOICES["Gaussian"]
    result = tuning.tune(solver, candidates, sparse.csr_array(X), y, rng=1, **BUDGET, **fixed)
    assert result.choice in candidates
    assert result.model.guarantee.event == result.plan.event
    assert "not a release" in str(result.guarantee)
    assert "times the noise" in str(result.plan)
    again = tuning.tune(solver, candidates, sparse.csr_array(X), y, rng=1, **BUDGET, **fixed)
    assert np.array_equal(again.model.coef, result.model.coef)


def test_regression_scores_need_a_public_bound():
    X, _ = rows()
    fixed = {"loss": "huber", "sparsity": 3, "row_norm": 1.0}
    with pytest.raises(InvalidValue, match="score_bound"):
        tuning.plan("dp_ight", tuning.grid(steps=[3, 6]), n=300, d=6, **BUDGET, **fixed)
    steps = tuning.grid(steps=[3, 6])
    result = tuning.tune("dp_ight", steps, X, 3 * X[:, 0], score_bound=2.0, rng=0, **BUDGET, **fixed)
    assert result.plan.score.sensitivity == pytest.approx(4 / 60)


@pytest.mark.parametrize(
    "change",
    [{"candidates": []}, {"epsilon": 0.0}, {"epsilon": math.inf}, {"expected_runs": 1.0}, {"law": "fixed"},
     {"validation": 0.0}, {"validation": 1.0}, {"validation": "private"}, {"n": 1}, {"score_bound": 1.0},
     {"delta": 0.0}, {"expected_runs": math.nan}, {"n": 300, "expected_runs": 1e9}],
)  # fmt: skip
def test_bad_plans_are_refused(change):
    solver, candidates, fixed = CHOICES["Gaussian"]
    arguments = {"n": 300, "d": 6} | BUDGET | fixed | change
    with pytest.raises(InvalidValue):
        tuning.plan(solver, arguments.pop("candidates", candidates), **arguments)


def _released_weight(plan, rng, X, y):
    """An attack's view: the released model, on one-dimensional data with a public score that likes large weights."""
    scored = search.Rows(np.ones((1, 1)), False)
    best = search._best_run(plan, search.Rows(X, False), y, scored, np.full(1, 5.0), rng)
    return best[3].coef


def test_the_choice_keeps_its_guarantee_and_a_tenth_of_the_noise_does_not():
    """One record of ten flips its label; sequential test at 1e-6. The twin runs every fit with a tenth of the noise.

    The bound for the best of several runs is loose, so that smaller faults stay below it.
    """
    plan = tuning.plan(
        "dp_ight", tuning.grid(step_size=[0.9, 1.0]), n=10, d=1, loss="squared", sparsity=1, steps=1, grad_norm=1.0,
        epsilon=2.0, delta=1e-3, expected_runs=3, validation="public", score_bound=10.0,
    )  # fmt: skip
    X = np.ones((10, 1))
    pair = (np.r_[np.full(9, 0.0), 5.0], np.r_[np.full(9, 0.0), -5.0])

    def verdict(attacked):
        def mechanism(y, rng):
            return _released_weight(attacked, rng, X, y)

        return audit.audit(mechanism, pair, (2.0, 1e-3), trials=1_500, mode="sequential", alpha=1e-6, rng=0)

    assert not verdict(plan).violated
    thin = dataclasses.replace(plan, plans=tuple(p.with_noise(factor=0.1) for p in plan.plans))
    assert verdict(thin).violated


def test_a_plan_that_was_made_before_gives_the_same_choice():
    X, y = rows()
    arguments = {"loss": "logistic", "row_norm": 1.0, "step_size": 1.0, "epsilon": 2.0, "delta": 1e-5, "steps": 3}
    candidates = [{"sparsity": 2}, {"sparsity": 4}]
    direct = tuning.tune("dp_ight", candidates, X, y, rng=3, **arguments)
    planned = tuning.plan("dp_ight", candidates, n=300, d=6, **arguments)
    found = search.tune_by(planned, X, y, rng=3)
    assert (found.model.coef == direct.model.coef).all() and found.score == direct.score
    assert found.choice == direct.choice and found.guarantee == direct.guarantee


def test_a_model_is_chosen_by_one_plan(monkeypatch):
    """The plan that is announced is the plan that runs: it is made once."""
    X, y = rows()
    made, plain = [], choosing.make_plan
    monkeypatch.setattr(choosing, "make_plan", lambda *a, **k: made.append(plain(*a, **k)) or made[-1])
    monkeypatch.setattr(search, "make_plan", lambda *a, **k: pytest.fail("planned again"))
    announced = []
    terms = {"epsilon": 2.0, "delta": 1e-5, "score_bound": None}
    found = choosing.choose(
        X, y, [{"sparsity": 2}, {"sparsity": 4}], task="classification", solver="dp_ight", classes=[0, 1], rng=0,
        terms=terms, announce=announced.append, row_norm=1.0, steps=3,
    )  # fmt: skip
    assert len(made) == 1 and made[0] is found.plan is announced[0].plan


@pytest.mark.parametrize(("given", "used"), [(None, 1.5), (0.5, 0.5)])
def test_scores_of_regression_are_clipped_to_the_label_bound_unless_another_is_given(given, used):
    terms = {"epsilon": 2.0, "delta": 1e-5, "score_bound": given}
    found = choosing.search([{"sparsity": 2}, {"sparsity": 4}], task="regression", solver="dp_ight", n=300, d=6,
                            classes=None, adjacency="replace-one", terms=terms,
                            options={"row_norm": 1.0, "label_bound": 1.5, "steps": 3})  # fmt: skip
    assert found.plan.scoring.bound == used
