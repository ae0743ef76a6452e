"""The private search: one budget for the whole choice, charged before the data are used, and nothing but the winner."""

from __future__ import annotations

import dataclasses
import json
import math
import pickle

import pytest
from sklearn.base import clone
from sklearn.model_selection import ParameterGrid, cross_val_score
from sklearn.pipeline import make_pipeline

from dptoolkit import estimators, models, tuning
from dptoolkit.accounting import BestOf, Gaussian, Ledger, account
from dptoolkit.errors import BudgetExceeded, InvalidValue
from dptoolkit.models import files
from dptoolkit.models.notes import CLASSES_NOTE
from dptoolkit.tuning import models as choosing
from dptoolkit.tuning import search as runs
from tests.estimators.cases import BINARY, NUMBERS, ROWS, SEARCHES, THREE, iht_classifier
from tests.models.test_models import write

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
GRID = {"step_size": [1.0, 4.0], "steps": [5, 10]}
IHT, SPARSE, NUMBERED = SEARCHES


def iht(**more):
    return estimators.PrivateSearchCV(iht_classifier(classes=[0, 1]), GRID, **more)


def states_the_choice(search):
    """Whether a fitted search states at least what its runs, and the choice among them, give away."""
    stated = search.guarantee_.epsilon(1e-5)
    return stated == search.best_estimator_.guarantee_.epsilon(1e-5) >= account(search.plan_.event).epsilon(1e-5)


def test_the_guarantee_is_that_of_the_tuning_plan():
    found = iht(epsilon=1.0, random_state=0).fit(ROWS, BINARY)
    direct = tuning.plan(
        "dp_ight", list(ParameterGrid(GRID)), n=len(ROWS), d=12, epsilon=1.0, delta=1e-5, loss="logistic",
        row_norm=1.0, sparsity=12, fit_intercept=True, adjacency="replace-one",
    )  # fmt: skip
    assert found.plan_.event == direct.event and found.guarantee_.event == direct.event
    assert isinstance(direct.event, BestOf)
    assert 0.99 < found.guarantee_.epsilon(1e-5) <= 1.0
    assert states_the_choice(found)


def test_a_choice_that_is_not_charged_is_seen(monkeypatch):
    """The failing twin: the winner's own guarantee instead of that of the choice, and a run with the whole budget."""
    plain = runs.tune_by

    def uncharged(*arguments, **more):
        found = plain(*arguments, **more)
        return dataclasses.replace(found, guarantee=found.model.plan.guarantee)

    monkeypatch.setattr(choosing, "tune_by", uncharged)
    assert not states_the_choice(iht(epsilon=1.0, random_state=0).fit(ROWS, BINARY))


def test_a_ledger_is_charged_once_and_refuses_before_the_data_are_used(monkeypatch):
    ledger = Ledger(1.5, 1e-5)
    found = iht(epsilon=1.0).fit(ROWS, BINARY, ledger=ledger)
    assert [(entry.event, entry.count) for entry in ledger.entries] == [(found.plan_.event, 1)]
    monkeypatch.setattr(runs, "_best_run", lambda *a: pytest.fail("the data were used"))
    with pytest.raises(BudgetExceeded):
        iht(epsilon=1.0).fit(ROWS, BINARY, ledger=ledger)
    assert len(ledger.entries) == 1


def test_the_charge_stays_if_a_run_fails(monkeypatch):
    """It is made before the first run: a fit that dies half-way has used the data."""

    def dies(*arguments):
        raise RuntimeError("half-way")

    monkeypatch.setattr(runs, "_best_run", dies)
    ledger = Ledger(1.5, 1e-5)
    with pytest.raises(RuntimeError):
        iht(epsilon=1.0).fit(ROWS, BINARY, ledger=ledger)
    assert ledger.guarantee.epsilon(1e-5) > 0.99


@pytest.mark.parametrize(("search", "y"), [(IHT, BINARY), (SPARSE, BINARY), (SPARSE, THREE), (NUMBERED, NUMBERS)])
def test_a_search_predicts_as_its_best_estimator_and_keeps_nothing_else(search, y):
    found = clone(search).fit(ROWS, y)
    assert states_the_choice(found) and found.guarantee_.epsilon(1e-5) <= 2.0
    assert (found.predict(ROWS) == found.best_estimator_.predict(ROWS)).all()
    assert found.score(ROWS, y) == found.best_estimator_.score(ROWS, y)
    assert found.best_params_ == found.candidates_[found.best_index_] and found.n_features_in_ == 12
    fitted = {name for name in vars(found) if name.endswith("_")}
    assert fitted - {"classes_"} == {
        "best_estimator_", "best_index_", "best_params_", "best_score_", "candidates_", "guarantee_", "n_features_in_",
        "plan_",
    }  # fmt: skip
    assert hasattr(found, "predict_proba") == hasattr(found, "classes_") == (search is not NUMBERED)
    again = pickle.loads(pickle.dumps(found))
    assert (again.predict(ROWS) == found.predict(ROWS)).all()
    assert again.guarantee_.epsilon(1e-5) == found.guarantee_.epsilon(1e-5)


def test_the_search_finds_a_setting_that_works():
    """One feature of twelve learns little. A choice by chance would take twelve every time with probability 1/32; the
    seeds are fixed."""
    chosen = [
        estimators.PrivateSearchCV(
            iht_classifier(), {"sparsity": [1, 12]}, epsilon=8.0, expected_runs=20, law="geometric", random_state=seed
        )
        .fit(ROWS, BINARY)
        .best_params_["sparsity"]
        for seed in range(5)
    ]
    assert chosen == [12] * 5


def test_a_seed_repeats_and_is_named():
    one, two = (iht(random_state=3).fit(ROWS, BINARY) for _ in range(2))
    assert (one.best_estimator_.coef_ == two.best_estimator_.coef_).all()
    assert any("not a release" in note for note in one.guarantee_.notes)
    assert CLASSES_NOTE not in one.guarantee_.notes
    assert CLASSES_NOTE in clone(IHT).fit(ROWS, BINARY).guarantee_.notes


def test_marked_rows_void_the_guarantee_and_no_ledger_pays_for_them():
    marked = estimators.MaxAbsScaling(unsafe=True).fit_transform(ROWS)
    assert math.isinf(iht(random_state=0).fit(marked, BINARY).guarantee_.epsilon(1e-5))
    with pytest.raises(InvalidValue, match="No budget covers"):
        iht().fit(marked, BINARY, ledger=Ledger(9.0, 1e-5))


def test_a_search_in_a_search_warns():
    with pytest.warns(estimators.TuningWarning):
        cross_val_score(iht(random_state=0), ROWS, BINARY, cv=2)


@pytest.mark.parametrize(("search", "y", "words"), [
    (estimators.PrivateSearchCV(make_pipeline(iht_classifier()), GRID), BINARY, "a private estimator"),
    (estimators.PrivateSearchCV(iht_classifier(), {}), BINARY, "param_grid"),
    (estimators.PrivateSearchCV(iht_classifier(), {"epsilon": [1.0]}), BINARY, "same for all"),
    (estimators.PrivateSearchCV(iht_classifier(), {"stepps": [1]}), BINARY, "stepps"),
    (estimators.PrivateSearchCV(estimators.PrivateStochasticIHTClassifier(), {"method": ["sgd", "svrg"]}), BINARY,
     "one solver"),
    (iht(validation="public"), BINARY, "a share of rows"), (iht(expected_runs=1.0), BINARY, "expected_runs"),
    (estimators.PrivateSearchCV(iht_classifier(), GRID), THREE, "Only binary"),
    (estimators.PrivateSearchCV(iht_classifier(classes=["low", "middle", "top"]), GRID), THREE[:0],
     "sample"),
])  # fmt: skip
def test_bad_searches_are_refused_and_spend_nothing(search, y, words):
    ledger = Ledger(9.0, 1e-5)
    with pytest.raises(ValueError, match=words):
        search.fit(ROWS[: len(y)], y, ledger=ledger)
    assert ledger.entries == ()


def test_fits_of_one_class_against_the_rest_are_refused_with_what_can_be_had():
    with pytest.raises(InvalidValue, match="fit one model for all classes: dp_frank_wolfe"):
        choosing.choose(ROWS, THREE, [{"steps": 3}], task="classification", solver="dp_ight", terms={}, row_norm=1.0)


# --- files ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chosen():
    return clone(SPARSE).fit(ROWS, THREE)


def test_a_chosen_model_comes_back_with_the_guarantee_of_the_choice(tmp_path, chosen):
    chosen.best_estimator_.save(tmp_path / "model.json")
    again = estimators.load(tmp_path / "model.json")
    assert (again.predict(ROWS) == chosen.predict(ROWS)).all()
    assert again.guarantee_.event == chosen.plan_.event and again.plan_.n == len(ROWS)


def test_a_file_that_hides_the_choice_is_refused(tmp_path, chosen):
    record = json.loads(json.dumps(files.to_record(chosen.best_estimator_.model_)))
    assert models.load(write(tmp_path / "m.json", record)).n_features == 12
    cheaper = BestOf(Gaussian(50.0), chosen.plan_.runs).to_dict()
    for forged in (cheaper, record["plan"]["part"]["event"]):
        with pytest.raises(InvalidValue, match=r"m\.json"):
            models.load(write(tmp_path / "m.json", record | {"plan": record["plan"] | {"choice": forged}}))
    own = {key: record["guarantee"][key] for key in ("notes", "asked_delta")}
    alone = chosen.best_estimator_.plan_.part.guarantee.to_dict() | own
    with pytest.raises(InvalidValue, match="not that of its plan"):
        models.load(write(tmp_path / "m.json", record | {"guarantee": alone}))


def test_the_advice_names_the_settings_that_have_a_rule():
    how = {"epsilon": 1.0, "delta": 1e-5, "validation": 0.2, "score_bound": None}

    def advice(solver, candidates, **options):
        found = choosing.search(candidates, task="classification", solver=solver, n=4000, d=12, classes=2,
                                adjacency="replace-one", terms=how, options=options)  # fmt: skip
        return found.advice

    assert "dp_ight has a rule for step_size, steps: leaving that out is free" in advice(
        "dp_ight", tuning.grid(step_size=[1.0, 4.0], steps=[5, 10]), row_norm=1.0, sparsity=4
    )
    assert "dp_ight has no rule for these settings" in advice("dp_ight", tuning.grid(sparsity=[2, 4]), row_norm=1.0)
