"""Which labels may be published without being declared, and what a fit says about that."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy import sparse

from dptoolkit import data, models, solvers
from dptoolkit.accounting import Ledger
from dptoolkit.errors import InvalidValue
from dptoolkit.models import files
from dptoolkit.models.fitting import MOST_CLASSES, class_set, codes
from dptoolkit.models.notes import CLASSES_NOTE, UNITS_NOTE
from dptoolkit.tuning import models as choosing
from tests.estimators.cases import BINARY, NUMBERS, ROWS, THREE

TERMS = {"epsilon": 1.0, "delta": 1e-5, "validation": 0.2, "score_bound": None}


def fitted(y, **more):
    return models.fit(ROWS, y, task="classification", epsilon=1.0, rng=0, **more)


def chosen(y, **more):
    candidates = [{"sparsity": 2}, {"sparsity": 3}]
    found = choosing.choose(ROWS, y, candidates, task="classification", rng=0, terms=TERMS, **more)
    return found.model


WAYS = pytest.mark.parametrize("fit", [fitted, chosen], ids=["fit", "choose"])


@pytest.mark.parametrize("y", [
    [0, 1, 1], [True, False], ["a", "b"], [-1.0, 1.0], np.array([b"no", b"yes"]), np.array([1, 2], dtype=object),
    np.array(["x", "y"], dtype=object), np.arange(MOST_CLASSES), list("abcdefghijklmnopqrst"),
], ids=lambda y: str(np.asarray(y).dtype) + str(len(y)))  # fmt: skip
def test_few_integers_or_texts_may_be_read_from_the_labels(y):
    assert list(class_set(y, None)) == sorted(set(np.asarray(y).tolist()))


@pytest.mark.parametrize(("y", "words"), [
    ([0.5, 1.5, 1.5], "labels with fractions"), (np.linspace(15, 40, 216), "labels with fractions"),
    (np.arange(MOST_CLASSES + 1), "of at most 20 labels"), (np.arange(500.0), "of at most 20 labels"),
    ([f"patient {k}" for k in range(500)], "of at most 20 labels"),
    ([0.0, np.nan], "NaN"), ([0.0, np.inf], "infinity"), (["a", 1], "several types"), (["a", None], "several types"),
    (np.array(["a", 1.0], dtype=object), "several types"), (np.array(["a", np.nan], dtype=object), "several types"),
    (np.array(["2020-01-01", "2020-01-02"], dtype="M8[D]"), "one label per row"),
    ([[0, 1], [1, 0]], "one label per row"),
    ([None, None], "neither text nor numbers"), (["a", b"a"], "several types"), ([1, 1], "at least two"),
], ids=lambda value: str(value)[:30].strip())  # fmt: skip
def test_other_labels_are_refused_and_not_shown(y, words):
    with pytest.raises(InvalidValue, match=words) as found:
        class_set(y, None)
    assert "patient" not in str(found.value) and "0.5" not in str(found.value).replace("example classes=[0.5, 1.5]", "")


@pytest.mark.parametrize("classes", [[0.5, 1.5], range(30), [f"patient {k}" for k in range(500)]], ids=["a", "b", "c"])
def test_declared_classes_are_free(classes):
    declared = list(classes)
    assert sorted(class_set([], declared)) == sorted(declared)
    assert codes(declared[:2], class_set([], declared)).tolist() == [0.0, 1.0]


@pytest.mark.parametrize("classes", [[0.0, np.nan], ["a", 1], [["a"], ["b"]]], ids=str)
def test_declared_classes_must_be_labels(classes):
    with pytest.raises(InvalidValue, match="classes="):
        class_set([0, 1], classes)


@WAYS
def test_the_classes_that_will_be_published_are_named(fit):
    with pytest.warns(models.ClassesWarning, match=r"3 classes \['low', 'middle', 'top'\] were read from y"):
        model = fit(THREE)
    assert CLASSES_NOTE in model.guarantee.notes
    with warnings.catch_warnings():
        warnings.simplefilter("error", models.ClassesWarning)
        assert CLASSES_NOTE not in fit(THREE, classes=["low", "middle", "top"]).guarantee.notes


@WAYS
def test_a_measurement_is_not_published_as_classes(fit):
    with pytest.raises(InvalidValue, match="use regression"):
        fit(ROWS[:, 0])
    with pytest.raises(InvalidValue, match="check that y is the column of labels"):
        fit(np.arange(len(ROWS)) % 500)


# --- scales of columns ---------------------------------------------------------------------------------------


def fitted_to(X, **more):
    return models.fit(X, BINARY, task="classification", classes=[0, 1], epsilon=1.0, rng=0, **more)


def test_columns_in_other_units_are_warned_of_and_no_value_is_shown():
    units = np.ones(12)
    units[3] = 271.0
    with pytest.warns(models.ScalesWarning, match="ScaleToBounds") as found:
        raw = fitted_to(ROWS * units)
    text = str(next(w.message for w in found if w.category is models.ScalesWarning))
    assert "271" not in text and f"{np.abs(ROWS[:, 3]).max() * 271:.4f}"[:6] not in text
    with warnings.catch_warnings():
        warnings.simplefilter("error", models.ScalesWarning)
        even = fitted_to(ROWS)
        # Columns of zeros have no scale; indicators of rare things have that of common ones.
        fitted_to(np.column_stack([ROWS, np.zeros(len(ROWS)), np.eye(len(ROWS))[:, 0]]))
        from scipy import sparse

        assert UNITS_NOTE not in fitted_to(sparse.csr_matrix(ROWS * units)).guarantee.notes
    # The note stands for every dense table, so that it says nothing about the data.
    assert raw.guarantee.notes == even.guarantee.notes and UNITS_NOTE in raw.guarantee.notes


def test_bounds_that_were_declared_need_no_note_on_units():
    assert UNITS_NOTE not in fitted_to(ROWS, solver="dp_ight", row_norm=1.0).guarantee.notes


# --- tables --------------------------------------------------------------------------------------------------


class Table:
    """What a library that nobody has heard of may pass: an array with names."""

    def __init__(self, array, columns):
        self.array, self.columns = array, columns

    def __array__(self, dtype=None, copy=None):
        return np.array(self.array, dtype=dtype)


def test_the_names_of_a_table_are_kept_and_compared():
    names = [f"feature {j}" for j in range(12)]
    model = models.fit(Table(ROWS, names), BINARY, task="classification", classes=[0, 1], epsilon=1.0, rng=0)
    assert model.feature_names == tuple(names)
    assert (model.predict(Table(ROWS, names)) == model.predict(ROWS)).all()
    with pytest.raises(InvalidValue, match="in another order"):
        model.predict(Table(ROWS, names[::-1]))
    with pytest.raises(InvalidValue, match="does not have: 'feature 0'"):
        model.predict(Table(ROWS, ["another", *names[1:]]))
    wider = models.fit(Table(ROWS, names), BINARY, task="classification", classes={0, 1}, n_features=13)
    assert wider.feature_names is None and wider.n_features == 13
    with pytest.raises(InvalidValue, match="12 names, one for every column"):
        models.fit(ROWS, BINARY, task="classification", classes=[0, 1], feature_names=names[1:])
    assert models.fit(Table(ROWS, range(12)), BINARY, task="classification", classes=[0, 1]).feature_names is None


# --- labels beyond their bound -------------------------------------------------------------------------------


def numbers_fitted(y, **more):
    return models.fit(ROWS, y, task="regression", epsilon=1.0, row_norm=9.0, rng=0, **more)


def numbers_chosen(y, label_bound):
    terms = {"epsilon": 1.0, "delta": 1e-5, "score_bound": label_bound}
    return choosing.choose(ROWS, y, [{"sparsity": 1}, {"sparsity": 2}], task="regression", solver="dp_pipeline", rng=0,
                           terms=terms, row_norm=9.0, label_bound=label_bound)  # fmt: skip


@pytest.mark.filterwarnings("ignore::dptoolkit.solvers.HopelessPlanWarning")
@pytest.mark.parametrize("fit", [numbers_fitted, numbers_chosen], ids=["fit", "choose"])
def test_a_bound_in_another_unit_is_warned_of(fit):
    """Labels near 150 with a bound of 1 are all clipped to 1: the model would learn nothing, without a word."""
    with pytest.warns(models.ClippingWarning, match=r"^label_bound=1: should be .* half") as found:
        fit(150.0 + NUMBERS, label_bound=1.0)
    assert all("150" not in str(w.message) for w in found)
    with warnings.catch_warnings():
        warnings.simplefilter("error", models.ClippingWarning)
        fit(150.0 + NUMBERS, label_bound=300.0)
        fit(np.where(np.arange(len(NUMBERS)) % 3 == 0, 900.0, 1.0), label_bound=1.0)


@pytest.mark.parametrize("solver", ["dp_ight", "dp_sgd_ht", "objective_perturbation"])
def test_a_fit_of_several_classes_that_is_refused_spends_nothing(solver):
    """A fit for each class refused what it was given after the charge for all of them."""
    rows, ledger = sparse.csr_matrix(np.eye(60, 4)), Ledger(100.0, 1e-3)
    three = np.arange(60) % 3

    def fit(X, y):
        models.fit(X, y, task="classification", solver=solver, classes=[0, 1, 2], row_norm=1.0, ledger=ledger)

    with pytest.raises(InvalidValue, match="y.shape"):
        fit(rows, three[:5])
    with warnings.catch_warnings():
        warnings.simplefilter("error", solvers.HopelessPlanWarning)
        with pytest.raises(solvers.HopelessPlanWarning):
            fit(rows, three)
    if solver == "objective_perturbation":
        with pytest.raises(InvalidValue, match="single precision"):
            fit(data.prepare(rows, dtype=np.float32), three)
    assert ledger.entries == ()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_fits_leave_the_filters_of_warnings_alone(monkeypatch):
    """They belong to all threads: of two fits at a time one could leave behind a filter that hides every warning."""

    def refused(*_, **__):
        raise AssertionError("the filters are touched")

    with monkeypatch.context() as patch:
        patch.setattr(warnings, "simplefilter", refused)
        model = fitted(THREE, solver="dp_ight", row_norm=1.0, steps=2)
        assert files.from_record(files.to_record(model)).plan == model.plan
        chosen(BINARY)
