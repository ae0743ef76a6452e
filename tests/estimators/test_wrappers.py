"""Estimators of scikit-learn that fit another one again and again: each of them is warned of, and noted."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn import calibration, ensemble, feature_selection, model_selection, multiclass, multioutput, semi_supervised
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.linear_model import RANSACRegressor
from sklearn.pipeline import make_pipeline

from dptoolkit import estimators, models
from dptoolkit.models.notes import PREPARED_NOTE, SEARCH_NOTE, WRAPPED_NOTE
from tests.estimators.cases import BINARY, CLASSIFIERS, NUMBERS, REGRESSORS, ROWS, SEARCHES, THREE, iht_classifier, name

X, Y, Z = ROWS[:200], BINARY[:200], NUMBERS[:200]
ONE = iht_classifier(steps=1, step_size=1.0)
NUMBER = estimators.PrivateIHTRegressor(row_norm=1.0, label_bound=1.0, steps=1, step_size=0.1)
PARTS = [("a", ONE), ("b", ONE)]
WRAPPERS = [
    (multiclass.OneVsRestClassifier(ONE), THREE[:200]), (multiclass.OneVsOneClassifier(ONE), THREE[:200]),
    (multiclass.OutputCodeClassifier(ONE, random_state=0), THREE[:200]),
    (multioutput.MultiOutputClassifier(ONE), np.column_stack([Y, 1 - Y])),
    (multioutput.ClassifierChain(ONE), np.column_stack([Y, 1 - Y])),
    (multioutput.MultiOutputRegressor(NUMBER), np.column_stack([Z, Z])),
    (ensemble.BaggingClassifier(ONE, 2), Y), (ensemble.BaggingRegressor(NUMBER, 2), Z),
    (ensemble.VotingClassifier(PARTS), Y), (ensemble.VotingRegressor([("a", NUMBER), ("b", NUMBER)]), Z),
    (ensemble.StackingClassifier(PARTS, cv=2), Y), (ensemble.StackingRegressor([("a", NUMBER)], cv=2), Z),
    (calibration.CalibratedClassifierCV(ONE, cv=2), Y),
    (feature_selection.RFE(ONE, n_features_to_select=11), Y), (feature_selection.RFECV(ONE, cv=2, step=6), Y),
    (feature_selection.SelectFromModel(ONE), Y),
    (feature_selection.SequentialFeatureSelector(ONE, n_features_to_select=1, cv=2), Y),
    (semi_supervised.SelfTrainingClassifier(ONE), Y.astype(int)),
    (RANSACRegressor(NUMBER, min_samples=50, random_state=0, max_trials=2), Z),
    (model_selection.GridSearchCV(ONE, {"sparsity": [3, 12]}, cv=2), Y),
    (model_selection.TunedThresholdClassifierCV(ONE, cv=2), Y),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("wrapper", "y"), WRAPPERS, ids=[name(wrapper) for wrapper, _ in WRAPPERS])
def test_a_wrapper_that_multiplies_fits_is_warned_of(wrapper, y):
    # Only the warning matters: some wrappers cannot use a model of a few noisy steps.
    with pytest.warns(estimators.TuningWarning, match="each of its fits spends epsilon 2"):
        wrapper.fit(X, y)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("call", [
    lambda: model_selection.cross_val_score(ONE, X, Y, cv=2),
    lambda: model_selection.cross_val_predict(ONE, X, Y, cv=2),
    lambda: model_selection.learning_curve(ONE, X, Y, cv=2, train_sizes=[0.5]),
    lambda: model_selection.validation_curve(ONE, X, Y, param_name="sparsity", param_range=[2], cv=2),
    lambda: model_selection.permutation_test_score(ONE, X, Y, cv=2, n_permutations=1),
    lambda: model_selection.cross_val_score(make_pipeline(estimators.ClipRows(1.0), ONE), X, Y, cv=2),
])  # fmt: skip
def test_functions_that_fit_again_are_warned_of(call):
    with pytest.warns(estimators.TuningWarning, match="a search or a cross-validation"):
        call()


def test_warnings_name_the_line_of_the_user():
    calls = (
        lambda: ONE.fit(X, Y),
        lambda: models.fit(X, Y, task="classification", solver="dp_ight", row_norm=1.0),
        lambda: multiclass.OneVsRestClassifier(ONE).fit(X, THREE[:200]),
        lambda: model_selection.cross_val_score(make_pipeline(estimators.ClipRows(1.0), ONE), X, Y, cv=2),
    )
    for call in calls:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            call()
        ours = [w for w in found if w.category in (models.ClassesWarning, estimators.TuningWarning)]
        assert ours and {w.filename for w in ours} == {__file__}


@pytest.mark.filterwarnings("ignore")
def test_the_parts_of_a_wrapper_say_that_they_are_parts():
    rest = multiclass.OneVsRestClassifier(ONE).fit(X, THREE[:200])
    for part in rest.estimators_:
        assert WRAPPED_NOTE in part.guarantee_.notes
    found = model_selection.GridSearchCV(ONE, {"sparsity": [3, 12]}, cv=2).fit(X, Y)
    assert SEARCH_NOTE in found.best_estimator_.guarantee_.notes
    # A search inside another estimator is both; the choice that is not counted is the stronger word.
    inner = ensemble.VotingClassifier([("a", model_selection.GridSearchCV(ONE, {"sparsity": [3]}, cv=2))]).fit(X, Y)
    assert SEARCH_NOTE in inner.estimators_[0].best_estimator_.guarantee_.notes


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fit", [
    lambda: ONE.fit(X, Y), lambda: make_pipeline(estimators.ClipRows(1.0), ONE).fit(X, Y)[-1],
    lambda: TransformedTargetRegressor(NUMBER, func=np.cbrt, inverse_func=np.power, check_inverse=False).fit(X, Z),
], ids=["alone", "pipeline", "transformed target"])  # fmt: skip
def test_one_fit_is_not_warned_of(fit):
    with warnings.catch_warnings():
        warnings.simplefilter("error", estimators.TuningWarning)
        fitted = fit()
    notes = getattr(fitted, "regressor_", fitted).guarantee_.notes
    assert not {SEARCH_NOTE, WRAPPED_NOTE} & set(notes)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("estimator", [*CLASSIFIERS, *REGRESSORS, SEARCHES[0]], ids=name)
def test_every_guarantee_says_that_earlier_fits_are_not_covered(estimator):
    y = Z if name(estimator).endswith("Regressor") else Y
    guarantee = clone(estimator).fit(X, y).guarantee_
    assert PREPARED_NOTE in guarantee.assumptions and PREPARED_NOTE in str(guarantee)


def test_advice_fits_the_task():
    regressor = estimators.PrivateSparseRegressor(row_norm=9.0, label_bound=9.0)
    with pytest.warns(estimators.TuningWarning, match="Charge every fit to one ledger") as found:
        multioutput.MultiOutputRegressor(regressor).fit(ROWS, np.column_stack([NUMBERS, NUMBERS]))
    assert not any("Classifiers" in str(w.message) for w in found)
