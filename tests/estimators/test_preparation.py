"""Preparation by public numbers, and the one way that voids the guarantee."""

from __future__ import annotations

import math

import numpy as np
import pytest
import sklearn
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import sparse
from sklearn.pipeline import make_pipeline

from dptoolkit import estimators, marks
from dptoolkit.errors import InvalidValue
from tests.estimators.cases import BINARY, ROWS, iht_classifier

TABLES = arrays(np.float64, (3, 4), elements=st.floats(-1e150, 1e150))
FORMS = pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix, sparse.csr_array], ids=lambda f: f.__name__)


@FORMS
@given(X=TABLES, bound=st.floats(1e-3, 1e3))
def test_rows_obey_the_bound_and_short_ones_stay(form, X, bound):
    found = estimators.ClipRows(bound).fit_transform(form(X))
    found = found.toarray() if sparse.issparse(found) else found
    norms = [math.hypot(*row) for row in X]
    for row, before, norm in zip(found, X, norms, strict=True):
        assert math.hypot(*row) <= bound
        if norm <= bound * (1 - 1e-9):
            assert (row == before).all()


@FORMS
@given(X=TABLES)
def test_one_record_does_not_change_the_others(form, X):
    """What a transformer does to a row must not depend on other rows: neighbours stay neighbours."""
    other = X.copy()
    other[0] = 1e5
    for transformer in (estimators.ClipRows(2.0), estimators.ScaleToBounds(-3.0, 3.0)):
        one, two = (transformer.fit(form(table)).transform(form(table)) for table in (X, other))
        one, two = (t.toarray() if sparse.issparse(t) else t for t in (one, two))
        assert (one[1:] == two[1:]).all()


def test_the_unsafe_way_does_change_the_others():
    X = np.ones((3, 2))
    other = X.copy()
    other[0] = 5.0
    with pytest.warns(estimators.UnsafeWarning):
        one, two = (estimators.MaxAbsScaling(unsafe=True).fit_transform(table) for table in (X, other))
    assert (one[1:] != two[1:]).all()


def test_columns_are_moved_to_the_unit_interval():
    X = np.array([[0.0, 10.0], [5.0, 30.0], [10.0, 99.0]])
    found = estimators.ScaleToBounds(lower=[0.0, 10.0], upper=[10.0, 50.0]).fit_transform(X)
    assert found.tolist() == [[-1.0, -1.0], [0.0, 0.0], [1.0, 1.0]]


@pytest.mark.parametrize(("bounds", "word"), [
    ({"lower": 1.0, "upper": 0.0}, "lower below upper"), ({"upper": math.inf}, "finite"), ({"lower": "a"}, "number"),
    ({"lower": [0.0, 0.0, 0.0]}, "2 numbers"), ({"lower": [-1.0]}, "2 numbers"), ({"upper": [[1.0, 1.0]]}, "2 numbers"),
    ({"lower": None}, "lower=None: must be given"), ({"upper": None}, "upper=None: must be given"),
    ({"lower": {"a": 0.0, "b": 0.0}}, "X has no names"),
])  # fmt: skip
def test_bad_bounds_are_refused(bounds, word):
    with pytest.raises(InvalidValue, match=word):
        estimators.ScaleToBounds(**({"lower": -1.0, "upper": 1.0} | bounds)).fit(np.ones((3, 2)))


@pytest.mark.filterwarnings("ignore::dptoolkit.estimators.UnsafeWarning")
@pytest.mark.parametrize(
    ("name", "how"),
    [("ClipRows", {"row_norm": 1.0}), ("ScaleToBounds", {"lower": 0, "upper": 1}), ("MaxAbsScaling", {"unsafe": True})],
)
def test_no_error_shows_an_entry(name, how):
    rows = np.array([["Jane Doe", 1.0], ["2", 3.0]], dtype=object)
    transformer = getattr(estimators, name)(**how).fit(np.ones((2, 2)))
    for call in (transformer.transform, transformer.fit):
        with pytest.raises(ValueError, match="numbers") as found:
            call(rows)
        assert "Jane" not in str(found.value)


def test_sparse_rows_need_bounds_around_zero():
    with pytest.raises(InvalidValue, match="-upper for a sparse X"):
        estimators.ScaleToBounds(0.0, 1.0).fit(sparse.csr_matrix(np.eye(2)))


def test_the_unsafe_way_must_be_asked_for():
    with pytest.raises(InvalidValue, match="unsafe=False"):
        estimators.MaxAbsScaling().fit(ROWS)


@FORMS
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_unsafe_way_voids_the_guarantee(form):
    unsafe = estimators.MaxAbsScaling(unsafe=True)
    pipeline = make_pipeline(unsafe, estimators.ClipRows(1.0), iht_classifier()).fit(form(ROWS), BINARY)
    guarantee = pipeline[-1].guarantee_
    assert math.isinf(guarantee.epsilon(1e-5))
    assert any(note.startswith("VOID") for note in guarantee.notes)
    safe = make_pipeline(estimators.ClipRows(1.0), iht_classifier()).fit(form(ROWS), BINARY)
    assert safe[-1].guarantee_.epsilon(1e-5) <= 2.0


def test_frames_come_out_where_they_are_asked_for():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"a": [1.0, 9.0], "b": [2.0, 0.0]})
    found = estimators.ClipRows(3.0).set_output(transform="pandas").fit_transform(table)
    assert list(found.columns) == ["a", "b"]
    # A frame would lose the mark that voids the guarantee.
    assert not hasattr(estimators.MaxAbsScaling(unsafe=True), "set_output")


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("library", ["pandas", "polars"])
@FORMS
def test_marked_rows_do_not_come_out_as_frames(library, form):
    pytest.importorskip(library)
    marked = estimators.MaxAbsScaling(unsafe=True).fit_transform(form(ROWS))
    own = estimators.ClipRows(1.0).set_output(transform=library)
    with pytest.raises(InvalidValue, match="would lose the mark"):
        own.fit_transform(marked)
    with sklearn.config_context(transform_output=library), pytest.raises(InvalidValue, match="would lose the mark"):
        estimators.ScaleToBounds(-1.0, 1.0).fit_transform(marked)
    assert marks.is_marked(estimators.ClipRows(1.0).set_output(transform="default").fit_transform(marked))


def test_scaled_columns_are_not_said_to_lack_scales():
    """The tutorial's way: the guarantee, and the sentence for a paper, must be true of rows that were scaled."""
    scaled = make_pipeline(estimators.ScaleToBounds(-5.0, 5.0), estimators.PrivateSparseClassifier(classes=[0, 1]))
    model = scaled.fit(ROWS, BINARY)[-1].model_
    assert "declared" not in str(model.guarantee) + model.summary()
    assert "every row was scaled to norm 1" in model.summary()


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("between", ["Normalizer", "PolynomialFeatures", "to sparse", "search"])
def test_a_pipeline_that_copies_marked_rows_has_no_guarantee(between):
    """The copy has no mark: an epsilon of 2 instead of infinity."""
    from sklearn import preprocessing
    from sklearn.ensemble import VotingClassifier
    from sklearn.model_selection import GridSearchCV

    step = preprocessing.FunctionTransformer(sparse.csr_matrix)
    if hasattr(preprocessing, between):
        step = getattr(preprocessing, between)()
    rest = [make_pipeline(estimators.MaxAbsScaling(unsafe=True), step), iht_classifier(classes=[0, 1])]
    pipe = make_pipeline(*rest)
    if between == "search":
        pipe = GridSearchCV(pipe, {"privateihtclassifier__epsilon": [2.0]}, cv=2).fit(ROWS, BINARY).best_estimator_
    assert math.isinf(pipe.fit(ROWS, BINARY)[-1].guarantee_.epsilon(1e-5))
    public = make_pipeline(preprocessing.Normalizer(), rest[-1]).fit(ROWS, BINARY)
    assert public[-1].guarantee_.epsilon(1e-5) <= 2.0
    # Beside it, not after it.
    both = VotingClassifier([("unsafe", pipe), ("public", rest[-1])]).fit(ROWS, BINARY)
    found = both.named_estimators_
    assert math.isinf(found["unsafe"][-1].guarantee_.epsilon(1e-5))
    assert found["public"].guarantee_.epsilon(1e-5) <= 2.0


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_labels_that_were_scaled_by_themselves_void_the_guarantee():
    """A column of marked rows, taken as labels."""
    y = estimators.MaxAbsScaling(unsafe=True).fit_transform(ROWS)[:, 0]
    regressor = estimators.PrivateSparseRegressor(row_norm=1.0, label_bound=1.0)
    assert math.isinf(regressor.fit(ROWS, y).guarantee_.epsilon(1e-5))
    assert regressor.fit(ROWS, np.array(y)).guarantee_.epsilon(1e-5) <= 2.0


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_bagging_of_marked_rows_has_no_guarantee():
    """It draws its records from a plain copy."""
    from sklearn.ensemble import BaggingClassifier

    X = estimators.MaxAbsScaling(unsafe=True).fit_transform(ROWS)
    for rows, is_void in ((X, True), (ROWS, False)):
        fitted = BaggingClassifier(iht_classifier(classes=[0, 1]), n_estimators=2).fit(rows, BINARY).estimators_
        assert [math.isinf(one.guarantee_.epsilon(1e-5)) for one in fitted] == [is_void] * 2
