"""What the estimators promise beyond scikit-learn's conventions: guarantees, public facts, refusals."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
import warnings

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline

from dptoolkit import estimators
from dptoolkit.accounting import Ledger
from dptoolkit.errors import BudgetExceeded, InvalidValue
from dptoolkit.models.notes import CLASSES_NOTE
from dptoolkit.solvers.frame.fit import SEEDED_NOTE
from tests.estimators.cases import (
    BINARY,
    CLASSIFIERS,
    MORE_METHODS,
    NUMBERS,
    REGRESSORS,
    ROWS,
    THREE,
    iht_classifier,
    name,
)

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
EVERY = [*CLASSIFIERS, *REGRESSORS, *MORE_METHODS]


def labels(estimator):
    return NUMBERS if name(estimator).endswith("Regressor") else BINARY


@pytest.fixture
def sparse_classifier():
    return estimators.PrivateSparseClassifier(random_state=0)


# --- the guarantee -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", EVERY, ids=name)
def test_the_budget_is_kept_and_used(estimator):
    fitted = clone(estimator).fit(ROWS, labels(estimator))
    assert 0.99 * 2.0 < fitted.guarantee_.epsilon(1e-5) <= 2.0
    assert fitted.guarantee_.event == fitted.plan_.event
    assert fitted.n_iter_ >= 1


@pytest.mark.parametrize("estimator", [*CLASSIFIERS, *MORE_METHODS[:2]], ids=name)
def test_several_classes_share_one_budget(estimator):
    fitted = clone(estimator).fit(ROWS, THREE)
    assert 0.99 * 2.0 < fitted.guarantee_.epsilon(1e-5) <= 2.0
    assert fitted.guarantee_.event == fitted.plan_.event
    assert fitted.coef_.shape == (3, 12) and fitted.intercept_.shape == (3,)
    assert list(fitted.classes_) == ["low", "middle", "top"]
    shares = fitted.predict_proba(ROWS)
    assert np.allclose(shares.sum(axis=1), 1) and (shares >= 0).all()
    assert (fitted.classes_[shares.argmax(axis=1)] == fitted.predict(ROWS)).all()


def test_classes_do_not_share_their_noise():
    """Rows of zeros leave nothing but noise: noise that two classes share would cancel in their difference."""
    estimator = iht_classifier(random_state=0, fit_intercept=False, steps=1, step_size=1.0)
    coef = estimator.fit(np.zeros((300, 5)), np.arange(300) % 3).coef_
    assert (np.abs(coef[0] - coef[1]) > 0).all() and (np.abs(coef[1] - coef[2]) > 0).all()


@pytest.mark.parametrize("estimator", [*CLASSIFIERS, *REGRESSORS], ids=name)
def test_models_are_better_than_a_guess(estimator):
    score = clone(estimator).fit(ROWS, labels(estimator)).score(ROWS, labels(estimator))
    assert score > (0.85 if labels(estimator) is BINARY else 0.1)


def test_three_classes_are_learnt(sparse_classifier):
    assert sparse_classifier.fit(ROWS, THREE).score(ROWS, THREE) > 0.6


def test_the_guarantee_says_what_was_taken_from_the_data_and_whether_it_is_a_release():
    seeded = estimators.PrivateSparseClassifier(random_state=0).fit(ROWS, BINARY)
    assert {SEEDED_NOTE, CLASSES_NOTE} <= set(seeded.guarantee_.notes)
    fresh = estimators.PrivateSparseClassifier(classes=[0, 1]).fit(ROWS, BINARY)
    assert not {SEEDED_NOTE, CLASSES_NOTE} & set(fresh.guarantee_.notes)
    several = estimators.PrivateSparseClassifier(random_state=0).fit(ROWS, THREE)
    assert {SEEDED_NOTE, CLASSES_NOTE} <= set(several.guarantee_.notes)


@pytest.mark.parametrize("seed", [7, np.random.RandomState(7)], ids=["int", "RandomState"])
def test_a_seed_repeats_a_fit(seed):
    one, two = (iht_classifier(random_state=clone_of(seed)).fit(ROWS, BINARY) for _ in range(2))
    assert (one.coef_ == two.coef_).all()
    assert SEEDED_NOTE in one.guarantee_.notes


def clone_of(seed):
    return pickle.loads(pickle.dumps(seed))


def test_without_a_seed_noise_is_fresh():
    one, two = (iht_classifier().fit(ROWS, BINARY) for _ in range(2))
    assert (one.coef_ != two.coef_).any()


# --- a ledger ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("y", [BINARY, THREE], ids=["two", "three"])
def test_a_ledger_is_charged_once_for_all_classes(y):
    ledger = Ledger(2.5, 1e-5)
    fitted = estimators.PrivateSparseClassifier().fit(ROWS, y, ledger=ledger)
    assert [(entry.event, entry.count) for entry in ledger.entries] == [(fitted.plan_.event, 1)]
    with pytest.raises(BudgetExceeded):
        estimators.PrivateSparseClassifier().fit(ROWS, y, ledger=ledger)


def test_a_ledger_refuses_a_seed_and_marked_rows():
    ledger = Ledger(2.5, 1e-5)
    with pytest.raises(InvalidValue, match="unpredictable"):
        estimators.PrivateSparseClassifier(random_state=0).fit(ROWS, THREE, ledger=ledger)
    marked = estimators.MaxAbsScaling(unsafe=True).fit_transform(ROWS)
    with pytest.raises(InvalidValue, match="left out"):
        estimators.PrivateSparseClassifier().fit(marked, BINARY, ledger=ledger)
    assert ledger.entries == ()


# --- public facts --------------------------------------------------------------------------------------------


def test_classes_may_be_given_and_one_may_be_absent():
    fitted = estimators.PrivateSparseClassifier(classes=["top", "low", "middle", "none"]).fit(ROWS, THREE)
    assert list(fitted.classes_) == ["low", "middle", "none", "top"]
    assert fitted.coef_.shape[0] == 4


def test_a_label_outside_the_classes_is_refused_and_not_shown():
    secret = np.where(np.arange(len(BINARY)) == 5, "somebody", "a")
    with pytest.raises(InvalidValue, match="other labels") as caught:
        estimators.PrivateSparseClassifier(classes=["a", "b"]).fit(ROWS, secret)
    assert "somebody" not in str(caught.value)


def test_text_in_the_rows_is_refused_and_not_shown(sparse_classifier):
    X = ROWS.astype(object)
    X[3, 2] = "somebody"
    with pytest.raises(ValueError, match="numbers") as caught:
        sparse_classifier.fit(X, BINARY)
    assert "somebody" not in str(caught.value)
    with pytest.raises(ValueError, match="numbers") as caught:
        estimators.PrivateSparseRegressor(row_norm=1.0, label_bound=1.0).fit(ROWS, np.array(["somebody"] * len(BINARY)))
    assert "somebody" not in str(caught.value)


@pytest.mark.parametrize("estimator", [CLASSIFIERS[0], REGRESSORS[0]], ids=name)
def test_weights_are_refused_with_the_reason(estimator):
    with pytest.raises(ValueError, match="sample_weight: must be left out"):
        clone(estimator).fit(ROWS, labels(estimator), sample_weight=np.ones(len(ROWS)))
    clone(estimator).fit(ROWS, labels(estimator), sample_weight=None)
    with pytest.raises(TypeError, match="sample_wieght"):
        clone(estimator).fit(ROWS, labels(estimator), sample_wieght=1)


@pytest.mark.parametrize(("options", "word"), [
    ({"epsilon": 0.0}, "epsilon"), ({"delta": 0.0}, "delta"), ({"row_norm": -1.0}, "row_norm"),
    ({"sparsity": 13}, "sparsity"), ({"adjacency": "both"}, "adjacency"), ({"random_state": "x"}, "random_state"),
    ({"classes": ["a"]}, "classes"),
])  # fmt: skip
def test_bad_parameters_are_refused_by_name(options, word):
    for y in (BINARY, THREE):
        with pytest.raises(ValueError, match=word):
            estimators.PrivateSparseClassifier(**options).fit(ROWS, y)


# --- input ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", EVERY, ids=name)
def test_dense_and_sparse_rows_give_the_same_model(estimator):
    y = labels(estimator)
    dense, csr = (clone(estimator).fit(X, y) for X in (ROWS, sparse.csr_matrix(ROWS)))
    if name(estimator).startswith("PrivateLasso"):
        # Frank-Wolfe draws its vertices in another order from sparse rows.
        assert csr.guarantee_.event == dense.guarantee_.event
    else:
        assert np.allclose(dense.coef_, csr.coef_, atol=1e-5)
    score = csr.decision_function if hasattr(csr, "decision_function") else csr.predict
    assert np.allclose(score(ROWS[:50]), score(sparse.csr_array(ROWS[:50])))


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames_name_the_features(library, sparse_classifier):
    frames = pytest.importorskip(library)
    columns = [f"feature {j}" for j in range(12)]
    table = frames.DataFrame(dict(zip(columns, ROWS.T, strict=True)))
    fitted = sparse_classifier.fit(table, BINARY)
    assert list(fitted.feature_names_in_) == columns
    assert fitted.model_.feature_names == tuple(columns)
    assert (fitted.predict(table) == clone(sparse_classifier).fit(ROWS, BINARY).predict(ROWS)).all()
    with pytest.raises(ValueError, match="feature names"):
        fitted.predict(frames.DataFrame(dict(zip(reversed(columns), ROWS.T, strict=True))))


def test_other_columns_are_refused(sparse_classifier):
    fitted = sparse_classifier.fit(ROWS, BINARY)
    with pytest.raises(ValueError, match="12 features"):
        fitted.predict(ROWS[:, :5])


# --- at home in scikit-learn ---------------------------------------------------------------------------------


def test_a_search_warns_loudly_and_marks_the_guarantee():
    search = GridSearchCV(iht_classifier(random_state=0), {"sparsity": [3, 12]}, cv=2)
    with pytest.warns(estimators.TuningWarning, match="not free"):
        search.fit(ROWS, BINARY)
    assert any("search" in note for note in search.best_estimator_.guarantee_.notes)
    with pytest.warns(estimators.TuningWarning):
        cross_val_score(make_pipeline(estimators.ClipRows(1.0), iht_classifier()), ROWS, BINARY, cv=2)


def test_a_plain_fit_does_not_warn_of_tuning():
    with warnings.catch_warnings():
        warnings.simplefilter("error", estimators.TuningWarning)
        fitted = clone(iht_classifier()).fit(ROWS, BINARY)
    assert not any("search" in note for note in fitted.guarantee_.notes)


@pytest.mark.parametrize("estimator", [CLASSIFIERS[0], REGRESSORS[0]], ids=name)
def test_pickles_and_sparse_coefficients_predict_the_same(estimator):
    fitted = clone(estimator).set_params(sparsity=3).fit(ROWS, labels(estimator))
    before, coef = fitted.predict(ROWS), fitted.coef_.copy()
    assert np.count_nonzero(coef) <= 3
    again = pickle.loads(pickle.dumps(fitted))
    assert (again.predict(ROWS) == before).all()
    assert str(again.guarantee_) == str(fitted.guarantee_) and again.plan_ == fitted.plan_
    assert sparse.issparse(again.sparsify().coef_)
    assert (again.predict(ROWS) == before).all()
    assert (again.densify().coef_ == coef).all()


def test_scikit_learn_is_named_where_it_is_missing():
    code = (
        "import sys; sys.modules['sklearn'] = None\n"
        "import dptoolkit.estimators as e\n"
        "try:\n    e.PrivateSparseClassifier\n"
        "except ImportError as problem:\n    print(problem)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'dptoolkit[sklearn]'" in done.stdout


@pytest.mark.parametrize("spoilt", ["one row", "complex", "text"])
def test_no_refusal_shows_an_entry(spoilt):
    """Messages of scikit-learn and NumPy show the array that they refuse, or an entry of it."""
    X, y = np.full((6, 2), 0.123456789), np.arange(6) % 2
    bad = {"one row": X[0], "complex": X + 1j, "text": X.astype(str).astype(object)}
    if spoilt == "text":
        bad["text"][0, 0] = "secret0.123"
    model = iht_classifier(epsilon=1.0, classes=[0, 1], random_state=0).fit(X, y)
    for call in (model.predict, lambda rows: iht_classifier(classes=[0, 1]).fit(rows, y)):
        with pytest.raises(ValueError, match="must be") as caught:
            call(bad[spoilt])
        assert "0.123" not in str(caught.value) and caught.value.__cause__ is None


def test_a_fit_without_privacy_is_saved_and_read(tmp_path):
    model = estimators.PrivateSparseClassifier(epsilon=math.inf, classes=[0, 1]).fit(ROWS, BINARY)
    model.save(tmp_path / "m.json")
    again = estimators.load(tmp_path / "m.json")
    assert math.isinf(again.epsilon) and math.isinf(again.guarantee_.epsilon(1e-5))
    assert (again.predict(ROWS) == model.predict(ROWS)).all()
