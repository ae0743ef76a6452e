"""What estimators refuse or ask for: bounds, names, dates, missing entries, mixed labels, seeds."""

from __future__ import annotations

import datetime
import inspect
import warnings

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.pipeline import make_pipeline

from dptoolkit import estimators, models
from dptoolkit.accounting import Ledger
from dptoolkit.errors import InvalidValue
from tests.estimators.cases import BINARY, CLASSIFIERS, NUMBERS, REGRESSORS, ROWS, SEARCHES, THREE, iht_classifier, name

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
BOUNDS = ("row_norm", "feature_bound", "label_bound")
EVERY = [*CLASSIFIERS, *REGRESSORS]
NAMES = [f"feature {j}" for j in range(12)]


def labels(estimator):
    return NUMBERS if name(estimator).endswith("Regressor") else BINARY


# --- bounds --------------------------------------------------------------------------------------------------


NEEDED = [
    (e, bound) for e in EVERY for bound in BOUNDS if bound in e.get_params() and name(e) != "PrivateSparseClassifier"
]


@pytest.mark.parametrize(("estimator", "bound"), NEEDED, ids=[f"{name(e)} {bound}" for e, bound in NEEDED])
def test_a_bound_has_no_default(estimator, bound):
    assert inspect.signature(type(estimator)).parameters[bound].default is None
    kept = {key: value for key, value in estimator.get_params().items() if key != bound}
    ledger = Ledger(9.0, 1e-5)
    words = rf"{bound}=None: must be given\. It is .* in the unit of .*: for example \d"
    with pytest.raises(InvalidValue, match=words):
        type(estimator)(**(kept | {"random_state": None})).fit(ROWS, labels(estimator), ledger=ledger)
    assert ledger.entries == ()


def test_the_default_classifier_needs_a_budget_alone():
    """It scales every row to norm 1, so that a bound on rows tells it nothing."""
    given = estimators.PrivateSparseClassifier(epsilon=2.0, delta=1e-5, row_norm=1.0, sparsity=None, random_state=0)
    other = estimators.PrivateSparseClassifier(row_norm=50.0, random_state=0)
    assert (given.fit(ROWS, BINARY).coef_ == other.fit(ROWS, BINARY).coef_).all()


def test_the_candidates_of_a_search_need_bounds():
    search = estimators.PrivateSearchCV(estimators.PrivateIHTClassifier(), {"steps": [1, 2]})
    with pytest.raises(InvalidValue, match="row_norm=None: must be given"):
        search.fit(ROWS, BINARY)
    search = estimators.PrivateSearchCV(estimators.PrivateIHTRegressor(row_norm=1.0), {"steps": [1, 2]})
    with pytest.raises(InvalidValue, match="label_bound=None: must be given"):
        search.fit(ROWS, NUMBERS)
    search = estimators.PrivateSearchCV(estimators.PrivateIHTClassifier(), {"row_norm": [1.0, None]})
    with pytest.raises(InvalidValue, match="row_norm=None: must be given"):
        search.fit(ROWS, BINARY)
    search = estimators.PrivateSearchCV(estimators.PrivateIHTClassifier(), {"row_norm": [1.0, 2.0]}, random_state=0)
    assert search.fit(ROWS, BINARY).guarantee_.epsilon(1e-5) <= 2.0


def test_rows_are_clipped_to_a_bound_that_was_given():
    with pytest.raises(InvalidValue, match="row_norm=None: must be given"):
        estimators.ClipRows().fit(ROWS)


# --- labels --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", [CLASSIFIERS[0], CLASSIFIERS[1], SEARCHES[1]], ids=name)
def test_identities_are_not_published_as_classes(estimator):
    with pytest.raises(InvalidValue, match="of at most 20 labels"):
        clone(estimator).fit(ROWS[:500], np.arange(500))
    with pytest.raises(ValueError, match=r"fractions|continuous"):
        clone(estimator).fit(ROWS, ROWS[:, 0])


def test_the_classes_are_named():
    with pytest.warns(models.ClassesWarning, match=r"\['low', 'middle', 'top'\]"):
        estimators.PrivateSparseClassifier(random_state=0).fit(ROWS, THREE)


def test_declared_classes_may_have_fractions():
    halves = np.where(BINARY > 0, 0.5, 1.5)
    fitted = estimators.PrivateSparseClassifier(classes=[0.5, 1.5], random_state=0).fit(ROWS, halves)
    assert set(fitted.predict(ROWS)) == {0.5, 1.5}


@pytest.mark.parametrize("y", [
    ["a", 1] * 50, np.array(["a", 1] * 50, dtype=object), np.array(["a", None] * 50, dtype=object),
    np.array(["a", np.nan] * 50, dtype=object),
], ids=["list", "objects", "None", "NaN"])  # fmt: skip
@pytest.mark.parametrize("classes", [None, ["a", "b"]], ids=["found", "declared"])
def test_text_and_numbers_are_not_mixed(y, classes):
    with pytest.raises(InvalidValue, match="y='labels of several types'"):
        estimators.PrivateSparseClassifier(classes=classes).fit(ROWS[:100], y)


# --- missing entries, dates ----------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", [CLASSIFIERS[0], REGRESSORS[0], SEARCHES[0], estimators.ClipRows(1.0)], ids=name)
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix], ids=["dense", "csr"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_no_imputer_is_recommended(estimator, form, value):
    X = ROWS[:50].copy()
    X[3, 2] = value
    with pytest.raises(InvalidValue, match="by a public constant") as found:
        clone(estimator).fit(form(X), labels(estimator)[:50])
    assert "impute" not in str(found.value).lower() and "sklearn" not in str(found.value)
    if hasattr(estimator, "predict"):
        with pytest.raises(InvalidValue, match="by a public constant"):
            clone(estimator).fit(ROWS, labels(estimator)).predict(form(X))
    with pytest.raises(InvalidValue, match="by a public constant"):
        models.fit(form(X), BINARY[:50], task="classification", classes=[0, 1])


@pytest.mark.parametrize("estimator", [CLASSIFIERS[0], REGRESSORS[0], SEARCHES[0], estimators.ClipRows(1.0)], ids=name)
def test_masked_entries_are_refused(estimator):
    """scikit-learn would fit to the numbers under the mask."""
    masked = np.ma.array(ROWS, mask=ROWS[3, 2] == ROWS)
    y = labels(estimator)
    with pytest.raises(InvalidValue, match="X='an array with masked entries'"):
        clone(estimator).fit(masked, y)
    if hasattr(estimator, "predict"):
        with pytest.raises(InvalidValue, match="y='an array with masked entries'"):
            clone(estimator).fit(ROWS, np.ma.array(y, mask=np.arange(len(y)) == 3))
        with pytest.raises(InvalidValue, match="masked"):
            clone(estimator).fit(np.ma.array(ROWS, mask=False), y).predict(masked)


def test_missing_labels_are_refused_in_the_same_manner():
    y = NUMBERS.copy()
    y[7] = np.nan
    with pytest.raises(InvalidValue, match="Every record needs a label"):
        clone(REGRESSORS[0]).fit(ROWS, y)


def tables(library, columns):
    """A table of a library; it is not there without the library."""
    return pytest.importorskip(library).DataFrame(columns)


@pytest.mark.parametrize("library", ["pandas", "polars"])
@pytest.mark.parametrize("also", [{}, {"age": [1.0, 2.0, 3.0]}], ids=["alone", "beside numbers"])
@pytest.mark.parametrize("kind", ["date and time", "duration"])
def test_columns_of_dates_are_refused_by_name(library, also, kind):
    days = [datetime.datetime(2020, 1, day) for day in (1, 2, 3)]
    entries = days if kind == "date and time" else [day - days[0] for day in days]
    X = tables(library, also | {"admitted": entries})
    for call in (
        lambda: estimators.PrivateSparseClassifier(classes=[0, 1]).fit(X, [0, 1, 1]),
        lambda: estimators.ClipRows(1.0).fit(X),
        lambda: models.fit(X, [0, 1, 1], task="classification", classes=[0, 1]),
    ):
        with pytest.raises(InvalidValue, match="dates or times in 'admitted'"):
            call()


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_columns_of_text_are_refused_by_name(library):
    X = tables(library, {"age": [1.0, 2.0, 3.0], "ward": ["secret", "secret", "other"]})
    # Before version 3 pandas has text in columns of objects unless told otherwise.
    X = X.astype({"ward": "string"}) if library == "pandas" else X
    for call in (
        lambda: estimators.PrivateSparseClassifier(classes=[0, 1]).fit(X, [0, 1, 1]),
        lambda: models.fit(X, [0, 1, 1], task="classification", classes=[0, 1]),
    ):
        with pytest.raises(InvalidValue, match="text in 'ward'") as found:
            call()
        assert "secret" not in str(found.value)


def test_other_kinds_of_dates_are_refused():
    days = [[datetime.date(2020, 1, day)] for day in (1, 2, 3)]
    with pytest.raises(InvalidValue, match="dates or times"):
        estimators.PrivateSparseClassifier(classes=[0, 1]).fit(np.array(days, dtype=object), [0, 1, 1])
    pandas = pytest.importorskip("pandas")
    with pytest.raises(InvalidValue, match="dates or times in 'week'"):
        estimators.ClipRows(1.0).fit(pandas.DataFrame({"week": pandas.period_range("2020-01-01", periods=3)}))


def test_arrays_of_dates_are_refused():
    X = np.array([["2020-01-01"], ["2020-01-02"], ["2020-01-03"]], dtype="M8[ns]")
    for array in (X, X - X[0]):
        with pytest.raises(InvalidValue, match="a table of dates or times"):
            estimators.PrivateSparseClassifier(classes=[0, 1]).fit(array, [0, 1, 1])
    with pytest.raises(ValueError, match="real numbers"):
        clone(REGRESSORS[0]).fit(ROWS[:3], X[:, 0])


# --- names ---------------------------------------------------------------------------------------------------


class Table:
    """What a library that scikit-learn does not know may pass: an array with names."""

    def __init__(self, array, columns):
        self.array, self.columns, self.shape = array, columns, array.shape

    def __array__(self, dtype=None, copy=None):
        return np.array(self.array, dtype=dtype)

    def __len__(self):
        return len(self.array)


def unknown(names):
    return Table(ROWS, names)


def of_library(library):
    def make(names):
        return tables(library, dict(zip(names, ROWS.T, strict=True)))

    return make


MAKERS = {"unknown": unknown, "pandas": of_library("pandas"), "polars": of_library("polars")}
NAMED = [CLASSIFIERS[0], REGRESSORS[0], SEARCHES[1], estimators.ClipRows(1.0), estimators.MaxAbsScaling(unsafe=True)]


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("estimator", NAMED, ids=name)
def test_swapped_columns_are_refused(make, estimator):
    fitted = clone(estimator).fit(make(NAMES), labels(estimator))
    assert list(fitted.feature_names_in_) == NAMES
    use = fitted.predict if hasattr(fitted, "predict") else fitted.transform
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        use(make(NAMES))
    for names in (NAMES[::-1], ["another", *NAMES[1:]]):
        with pytest.raises(ValueError, match="feature names"):
            use(make(names))
    again = fitted.fit(ROWS, labels(estimator))
    assert not hasattr(again, "feature_names_in_")


def test_a_model_keeps_the_names_of_any_table():
    fitted = clone(CLASSIFIERS[0]).fit(unknown(NAMES), BINARY)
    assert fitted.model_.feature_names == tuple(NAMES)
    assert (fitted.predict(unknown(NAMES)) == fitted.predict_proba(ROWS).argmax(axis=1)).all()


# --- bounds by name ------------------------------------------------------------------------------------------


LOWER, UPPER = ({key: size * (j + 1.0) for j, key in enumerate(NAMES)} for size in (-1, 1))


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_bounds_may_be_named_in_any_order(make):
    expected = estimators.ScaleToBounds(list(LOWER.values()), list(UPPER.values())).fit_transform(ROWS)
    turned = [dict(reversed(bounds.items())) for bounds in (LOWER, UPPER)]
    assert (estimators.ScaleToBounds(*turned).fit(make(NAMES)).transform(make(NAMES)) == expected).all()
    pipeline = make_pipeline(estimators.ScaleToBounds(*turned), iht_classifier(random_state=0))
    assert pipeline.fit(make(NAMES), BINARY)[-1].guarantee_.epsilon(1e-5) <= 2.0


def test_a_series_of_bounds_is_read_by_its_names():
    pandas = pytest.importorskip("pandas")
    table = MAKERS["pandas"](NAMES)
    expected = estimators.ScaleToBounds(LOWER, UPPER).fit_transform(table)
    turned = [pandas.Series(bounds)[::-1] for bounds in (LOWER, UPPER)]
    assert (estimators.ScaleToBounds(*turned).fit_transform(table) == expected).all()
    plain = [pandas.Series(list(bounds.values())) for bounds in (LOWER, UPPER)]
    assert (estimators.ScaleToBounds(*plain).fit_transform(table) == expected).all()


@pytest.mark.parametrize(("change", "words"), [
    (lambda bounds: bounds.pop("feature 3"), r"Columns without a bound: \['feature 3'\]"),
    (lambda bounds: bounds.update(age=1.0), r"Names that are no column of X: \['age'\]"),
])  # fmt: skip
def test_bounds_must_name_every_column(change, words):
    upper = dict(UPPER)
    change(upper)
    with pytest.raises(InvalidValue, match=words):
        estimators.ScaleToBounds(LOWER, upper).fit(unknown(NAMES))


# --- seeds ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", [CLASSIFIERS[0], REGRESSORS[0], SEARCHES[0]], ids=name)
@pytest.mark.parametrize("seed", ["x", -1, 1.5, True])
def test_a_bad_seed_is_refused_by_its_own_name(estimator, seed):
    with pytest.raises(InvalidValue, match=f"random_state={seed!r}: must be"):
        clone(estimator).set_params(random_state=seed).fit(ROWS, labels(estimator))


@pytest.mark.parametrize("estimator", [CLASSIFIERS[0], REGRESSORS[0], SEARCHES[0]], ids=name)
@pytest.mark.parametrize("seed", [0, np.random.default_rng(0), np.random.RandomState(0)], ids=["int", "new", "old"])
def test_a_ledger_refuses_a_seed_by_its_own_name(estimator, seed):
    ledger = Ledger(9.0, 1e-5)
    with pytest.raises(InvalidValue, match="random_state=.* Leave random_state out") as found:
        clone(estimator).set_params(random_state=seed).fit(ROWS, labels(estimator), ledger=ledger)
    assert "rng" not in str(found.value) and ledger.entries == ()


# --- tables as users have them -------------------------------------------------------------------------------


def fitters():
    """The two doors for a table: an estimator, and ``models.fit``."""
    budget = {"epsilon": 1.0, "classes": [0, 1]}
    return {
        "estimator": lambda table: estimators.PrivateSparseClassifier(**budget).fit(table, BINARY),
        "models.fit": lambda table: models.fit(table, BINARY, task="classification", **budget),
    }


@pytest.mark.parametrize("door", fitters())
def test_two_columns_of_one_name_are_refused(door):
    """Weights by name, and columns found by name, would be ambiguous."""
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    table = pandas.DataFrame(ROWS[:, :3], columns=["age", "bmi", "age"])
    with pytest.raises(InvalidValue, match=r"^X=\"columns of one name: 'age'\": must be of columns .* own. Rename"):
        fitters()[door](table)


@pytest.mark.parametrize("door", fitters())
def test_a_lazy_frame_is_refused_with_the_way_out(door):
    polars = pytest.importorskip("polars", reason="polars is not installed")
    table = polars.DataFrame({"age": ROWS[:, 0]}).lazy()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(InvalidValue, match=r"^X='LazyFrame': must be a table in memory\. Call X\.collect\(\)"):
            fitters()[door](table)


@pytest.mark.parametrize("door", fitters())
@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_columns_of_categories_are_refused_by_name(library, door):
    frames = pytest.importorskip(library, reason=f"{library} is not installed")
    sex = ["f" if number % 2 else "m" for number in range(len(ROWS))]
    how = {"pandas": {"dtype": "category"}, "polars": {"dtype": getattr(frames, "Categorical", None)}}[library]
    table = frames.DataFrame({"age": ROWS[:, 0], "sex": frames.Series(sex, **how)} if library == "pandas" else
                             {"age": ROWS[:, 0], "sex": frames.Series("sex", sex, **how)})  # fmt: skip
    with pytest.raises(InvalidValue, match=r"^X=\"text in 'sex'\": must be numbers"):
        fitters()[door](table)


@pytest.mark.parametrize("door", fitters())
def test_categories_that_are_numbers_are_numbers(door):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    table = pandas.DataFrame({"age": ROWS[:, 0], "stage": pandas.Categorical(np.arange(len(ROWS)) % 2)})
    assert fitters()[door](table) is not None


@pytest.mark.parametrize("door", fitters())
@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_columns_with_missing_cells_are_named(library, door):
    """As in the shell: all columns at once, and no record."""
    frames = pytest.importorskip(library, reason=f"{library} is not installed")
    holes = ROWS[:, 1].copy()
    holes[3] = np.nan
    table = frames.DataFrame({"age": ROWS[:, 0], "bmi": holes, "platelets": holes})
    with pytest.raises(InvalidValue, match=r"^X=\"NaN or infinity in 'bmi', 'platelets'\": must be finite\. Replace"):
        fitters()[door](table)


@pytest.mark.parametrize("door", fitters())
def test_missing_integers_of_pandas_are_named(door):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    holes = pandas.array([None, *range(len(ROWS) - 1)], dtype="Int64")
    table = pandas.DataFrame({"age": ROWS[:, 0], "visits": holes})
    with pytest.raises(InvalidValue, match=r"^X=\"NaN or infinity in 'visits'\": must be finite\. Replace"):
        fitters()[door](table)


@pytest.mark.parametrize("how", [{}, {"delta": 0.5}], ids=["too few rows", "delta"])
def test_warnings_of_a_fit_point_at_the_line_of_the_caller(how):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        estimators.PrivateSparseClassifier(classes=[0, 1], **how).fit(ROWS[:9], BINARY[:9])
    assert seen and {w.filename for w in seen} == {__file__}
