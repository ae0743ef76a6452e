"""Validation and clipping: after it, a row's bound is a fact, and nothing that the user passed was changed."""

from __future__ import annotations

import math
import tracemalloc
from fractions import Fraction
from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import sparse

from dptoolkit import data, losses, marks
from dptoolkit.data import rows as data_rows
from dptoolkit.errors import InvalidValue
from dptoolkit.solvers._pipeline_stages import Units
from tests.strategies import FORMS, in_form, matrices, messy_csr

BOUNDS = st.sampled_from((1e-100, 1e-3, 0.5, 1.0, 1.0000000000000002, math.pi, 1e5, 1e150))


def dense(rows):
    return rows.matrix.toarray() if rows.is_sparse else rows.matrix


def squared_norm(row):
    """Exact: every float is a fraction."""
    return sum((Fraction(float(v)) ** 2 for v in row), Fraction(0))


# --- clipping -----------------------------------------------------------------------------------------


@given(matrices(), BOUNDS, st.sampled_from(FORMS))
@example(np.array([[1.7e308, 1.7e308, -1.7e308]]), 1.0, "dense")
@example(np.array([[1e308, 3e307]]), 1e-13, "csr")
@example(np.array([[5e-324, 5e-324], [1e-310, 0.0]]), 1e-100, "dense")
@example(np.array([[0.6, 0.8], [3.0, 4.0]]), 1.0, "messy csr")
def test_clipped_rows_obey_the_bound_exactly(X, bound, form):
    rows = data.check_rows(in_form(X, form))
    before, after = dense(rows), dense(data.clip_rows(rows, bound))
    limit = Fraction(bound) ** 2
    for old, new in zip(before, after, strict=True):
        if np.array_equal(old, new):
            # Left alone: within rounding of a computed norm.
            assert squared_norm(new) <= limit * (1 + Fraction(1, 10**14))
        else:
            assert squared_norm(old) > limit * (1 - Fraction(1, 10**14)), "a short row was changed"
            assert squared_norm(new) <= limit, "longer than its bound"
            assert squared_norm(new) >= limit * (1 - Fraction(1, 10**12)), "clipped by more than need be"
            direction = old / np.max(np.abs(old)) / _relative_norm(old)
            np.testing.assert_allclose(new / bound, direction, rtol=1e-12, atol=1e-200)


@pytest.mark.parametrize("norm", [1.0, 0.98, 1e-200, 3e150])
@pytest.mark.parametrize("form", ["dense", "csr"])
def test_scaled_rows_are_never_longer_than_their_norm(norm, form):
    """Exactly, in fractions. Without the part in 1e13 that is taken off, rounding leaves about half of them longer."""
    X = np.random.default_rng(0).standard_normal((60, 23)) * np.logspace(-140, 140, 60)[:, None]
    after = dense(data.unit_rows(data.check_rows(in_form(X, form)), norm))
    limit = Fraction(norm) ** 2
    for row in after:
        assert limit * (1 - Fraction(1, 10**12)) <= squared_norm(row) <= limit
    # The twin: the same rows without that part.
    longer = [squared_norm(row / (1 - 1e-13)) > limit for row in after]
    assert 10 < sum(longer) < 50


@pytest.mark.parametrize("form", ["dense", "csr"])
def test_rows_in_units_of_their_bound_are_at_most_one_long(form):
    """Exactly, in fractions: rows at the bound, which clipping leaves as they are, and longer ones."""
    bound = 0.7
    X = np.random.default_rng(1).standard_normal((60, 23))
    X *= bound / np.sqrt((X * X).sum(axis=1, keepdims=True)) * np.where(np.arange(60) < 40, 1.0, 3.0)[:, None]
    after = dense(Units(bound).rows(data.check_rows(in_form(X, form))))
    assert all(squared_norm(row) <= 1 for row in after)
    assert any(squared_norm(row / (1 - 1e-13)) > 1 for row in after), "the twin"


def _relative_norm(row):
    scaled = row / np.max(np.abs(row))
    return np.sqrt((scaled * scaled).sum())


@given(matrices(), BOUNDS, st.sampled_from(FORMS))
def test_clipping_twice_is_clipping_once(X, bound, form):
    once = data.clip_rows(data.check_rows(in_form(X, form)), bound)
    assert np.array_equal(dense(data.clip_rows(once, bound)), dense(once))
    once = data.clip_entries(data.check_rows(in_form(X, form)), bound)
    assert np.array_equal(dense(data.clip_entries(once, bound)), dense(once))


@given(matrices(), BOUNDS, st.sampled_from(FORMS))
def test_clipped_entries(X, bound, form):
    rows = data.clip_entries(data.check_rows(in_form(X, form)), bound)
    assert np.array_equal(dense(rows), np.clip(X, -bound, bound))


@given(matrices(), BOUNDS, st.integers(1, 9))
def test_blocks_of_rows_change_nothing(X, bound, size):
    """Also where a row is longer than a block, or empty, or the matrix is."""
    rows = data.check_rows(sparse.csr_matrix(X))
    norms, clipped = rows.row_norms(), dense(data.clip_rows(rows, bound))
    with mock.patch.object(data_rows, "_BLOCK", size):
        assert np.array_equal(rows.row_norms(), norms)
        assert np.array_equal(dense(data.clip_rows(rows, bound)), clipped)
        spans = [(some, entries) for some, entries, _ in rows._blocks()]
    assert [s.start for s, _ in spans][1:] == [s.stop for s, _ in spans][:-1]
    assert spans[0][0].start == 0 and spans[-1][0].stop == len(X) and spans[-1][1].stop == rows.matrix.nnz


def test_clipping_copies_the_values_and_little_else():
    X = sparse.random(4000, 3000, 0.05, format="csr", random_state=0)
    rows = data.check_rows(X)
    for clip in (data.clip_rows, data.clip_entries):
        tracemalloc.start()
        clipped = clip(rows, 0.1)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak <= X.data.nbytes + 3e6, "temporary arrays are small"
        assert np.shares_memory(clipped.matrix.indices, X.indices)
        assert abs(clipped.matrix).max() <= 0.1 < abs(X).max()


def test_short_rows_keep_every_bit():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((50, 7))
    X /= 1.001 * np.linalg.norm(X, axis=1, keepdims=True)
    X[::5] *= 100
    for form in FORMS:
        after = dense(data.clip_rows(data.check_rows(in_form(X, form)), 1.0))
        short = np.arange(50) % 5 != 0
        assert np.array_equal(after[short], X[short])
        assert (np.linalg.norm(after[~short], axis=1) > 0.999).all()


@pytest.mark.parametrize("form", ["dense", "csr"])
def test_very_long_rows_obey_the_bound(form):
    """Rounding errors of a sum over many entries are larger than those of a few."""
    X = np.abs(np.random.default_rng(1).standard_normal((1, 100_000)))
    rows = data.clip_rows(data.check_rows(in_form(X, form)), 1.0)
    assert all(squared_norm(row) <= 1 for row in dense(rows))
    assert np.array_equal(dense(data.clip_rows(rows, 1.0)), dense(rows))


@given(matrices(), st.sampled_from(FORMS))
def test_norms(X, form):
    rows = data.check_rows(in_form(X, form))
    for row, norm, largest in zip(X, rows.row_norms(), rows.largest_entries(), strict=True):
        assert largest == np.max(np.abs(row))
        exact = squared_norm(row)
        if exact == 0:
            assert norm == 0
        elif math.isinf(norm):
            assert exact > Fraction(1.7976e308) ** 2
        else:
            # Subnormal norms have few digits.
            slack = exact * Fraction(1, 10**14) + Fraction(5e-324) ** 2 * 10**6
            assert abs(Fraction(float(norm)) ** 2 - exact) <= slack


def test_duplicates_are_summed_before_norms_are_taken():
    """1000 and -999.5 in one place are 0.5: clipping each entry, or squaring each, would be wrong."""
    X = sparse.csr_matrix((np.array([1000.0, -999.5, 0.0]), np.array([1, 1, 0]), np.array([0, 3])), shape=(1, 2))
    rows = data.check_rows(X)
    assert rows.row_norms() == [0.5]
    assert np.array_equal(dense(data.clip_rows(rows, 1.0)), [[0.0, 0.5]])
    assert np.array_equal(dense(data.clip_entries(rows, 1.0)), [[0.0, 0.5]])
    assert X.nnz == 3 and not X.has_canonical_format, "the caller's matrix was changed"


def test_a_remembered_flag_is_not_believed():
    """scipy keeps the answer to has_canonical_format, but indices may change: row (1, 1) is then (2, 0)."""
    X = sparse.csr_matrix((np.ones(2), np.array([0, 1]), np.array([0, 2])), shape=(1, 2))
    assert X.has_canonical_format
    X.indices[1] = 0
    rows = data.check_rows(X)
    assert rows.row_norms() == [2.0] and rows.largest_entries() == [2.0] and rows.matrix.nnz == 1


@pytest.mark.parametrize("index", [-1, 2, 10**6])
def test_indices_outside_the_matrix(index):
    """They would be read from, and written to, memory that is not ours."""
    X = sparse.csr_matrix((np.ones(2), np.array([0, 1]), np.array([0, 2])), shape=(1, 2))
    X.indices[1] = index
    with pytest.raises(InvalidValue, match="X='a CSR matrix with wrong indices': must be well-formed"):
        data.check_rows(X)


@given(matrices())
def test_messy_csr_becomes_canonical(X):
    rows = data.check_rows(messy_csr(X))
    assert rows.matrix.has_canonical_format
    assert np.array_equal(rows.matrix.toarray(), X)
    assert rows.matrix.nnz == np.count_nonzero(X)
    assert np.array_equal(rows.transpose().toarray(), X.T)


# --- caps of residuals ----------------------------------------------------------------------------------


def capped_too_high(caps, rows, bound):
    """Rows that a residual at its cap makes longer than the bound, in exact fractions."""
    return [
        i for i, cap in enumerate(caps)
        # A cap below the normal doubles has few digits; ``LARGEST`` keeps the rows of a fit from coming there.
        if 1e-300 < cap < math.inf and Fraction(float(cap)) ** 2 * squared_norm(rows[i]) > Fraction(bound) ** 2
    ]  # fmt: skip


@given(matrices(), BOUNDS, st.sampled_from(FORMS))
def test_a_residual_at_its_cap_keeps_the_gradient_within_the_bound(X, bound, form):
    rows = data.check_rows(in_form(X, form))
    assert not capped_too_high(rows.caps(bound), dense(rows), bound)


@pytest.mark.parametrize("form", ["dense", "csr"])
def test_caps_without_a_margin_for_rounding_are_caught(form):
    X = np.random.default_rng(0).standard_normal((200, 7))
    rows = data.check_rows(in_form(X, form))
    assert not capped_too_high(rows.caps(1.0), X, 1.0)
    # The broken twin: 1 / norm, rounded to nearest.
    assert capped_too_high(rows.caps(1.0) / (1 - 1e-13), X, 1.0)


# --- the intercept column -----------------------------------------------------------------------------


@given(matrices(), st.sampled_from(FORMS), st.sampled_from((1.0, 0.25)))
def test_intercept_column(X, form, level):
    rows = data.with_intercept(data.check_rows(in_form(X, form)), level)
    assert np.array_equal(dense(rows), np.hstack([X, np.full((len(X), 1), level)]))


def test_joint_norm():
    assert data.joint_norm(2.0, False) == 2.0
    assert data.joint_norm(2.0, True) == pytest.approx(math.sqrt(5))
    rows = data.with_intercept(data.clip_rows(data.check_rows([[9.0, 9.0]]), 2.0), 1.0)
    assert rows.row_norms()[0] <= data.joint_norm(2.0, True)


# --- what is refused ----------------------------------------------------------------------------------

BAD_ROWS = {
    "one dimension": np.ones(3),
    "three dimensions": np.ones((2, 2, 2)),
    "a number": 3.0,
    "no rows": np.ones((0, 3)),
    "no columns": np.ones((3, 0)),
    "no rows, sparse": sparse.csr_matrix((0, 3)),
    "NaN": np.array([[1.0, np.nan]]),
    "infinity": np.array([[1.0, -np.inf]]),
    "NaN, sparse": sparse.csr_matrix(np.array([[0.0, np.nan]])),
    "an infinite sum of duplicates": sparse.csr_matrix((np.full(2, 1.5e308), np.zeros(2, int), [0, 2]), shape=(1, 1)),
    "complex": np.array([[1 + 2j]]),
    "complex, sparse": sparse.csr_matrix(np.array([[1 + 2j]])),
    "complex objects": [[1 + 2j]],
    "strings": np.array([["1", "2"]]),
    "strings in a list": [["1", "2"]],
    "strings among numbers": np.array([[1, "2"]], dtype=object),
    "dates": np.array([["2020-01-01"]], dtype="M8[D]"),
    "None": None,
    "a missing entry": [[1.0, None]],
    "ragged": [[1.0, 2.0], [1.0]],
    "a huge integer": [[10**400]],
    "masked entries": np.ma.masked_array([[1.0, 2.0]], mask=[[False, True]]),
    "one sparse dimension": sparse.coo_array(np.ones(3)),
}


@pytest.mark.parametrize("name", BAD_ROWS)
@pytest.mark.filterwarnings("error")
def test_bad_rows(name):
    with pytest.raises(InvalidValue, match="X.*must be"):
        data.check_rows(BAD_ROWS[name])


GOOD_ROWS = [
    [[1, 2]], [[True, False]], np.array([[1, 2]], dtype=np.int8), np.matrix([[1.0, 2.0]]),
    np.array([[1, 2.5]], dtype=object), np.array([[1.0, 2.0]], dtype=np.float32), sparse.eye(2, dtype=bool).tocsr(),
]  # fmt: skip


@pytest.mark.parametrize("X", GOOD_ROWS)
def test_good_rows(X):
    rows = data.check_rows(X)
    assert rows.matrix.dtype == np.float64
    assert rows.shape[1] == 2


@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_a_clean_array_is_taken_as_it_is_where_no_copy_is_asked_for_and_cannot_be_written_to(kind):
    X = np.arange(6, dtype=kind).reshape(3, 2)
    rows = data.check_rows(X, copy=False)
    assert np.shares_memory(rows.matrix, X) and rows.matrix.dtype == kind
    with pytest.raises(ValueError, match="read-only"):
        rows.matrix[0, 0] = 7.0
    assert X.flags.writeable, "the caller's array is as it was"
    assert not np.shares_memory(data.check_rows(X).matrix, X) and data.check_rows(X).matrix.dtype == np.float64
    wider = data.check_rows(X, 3, copy=False)
    assert wider.shape == (3, 3) and not wider.matrix[:, 2].any()
    # A last entry that is missing is found, whatever the parts are in which entries are looked up.
    for bad in (math.nan, math.inf):
        X[2, 1] = bad
        for size in (1, 5, 1 << 16):
            with mock.patch.object(data_rows, "_BLOCK", size), pytest.raises(ValueError, match="NaN or infinity"):
                data.check_rows(X, copy=False)


@pytest.mark.parametrize(
    "X", [[[1.0, 2.0]], np.array([[1, 2]]), np.array([[1.0, 2.0], [3.0, 4.0]], order="F"), np.ones((2, 4))[:, ::2],
          np.ones((2, 2)).astype(">f8"), np.matrix([[1.0, 2.0]]), np.ma.array([[1.0, 2.0]]),
          np.ones((2, 2), np.float16), marks.marked(np.ones((2, 2)))],
)  # fmt: skip
def test_other_arrays_are_converted_as_before_also_where_no_copy_is_asked_for(X):
    rows = data.check_rows(X, copy=False)
    assert type(rows.matrix) is np.ndarray and rows.matrix.dtype == np.float64 and rows.matrix.flags.c_contiguous
    assert not np.shares_memory(rows.matrix, np.asarray(X))
    np.testing.assert_array_equal(rows.matrix, np.asarray(X))
    assert rows.is_marked == marks.is_marked(X)


@pytest.mark.parametrize("form", ["dense", "csr"])
@given(size=st.integers(1, 40))
def test_blocks_of_doubles_are_copies_of_the_entries(form, size):
    X = np.random.default_rng(0).standard_normal((9, 4)).astype(np.float32)
    rows = data.check_rows(in_form(X.astype(float), form)) if form == "csr" else data.check_rows(X, copy=False)
    for columns in (None, [2, 0]):
        found, places = [], []
        with mock.patch.object(data_rows, "_BLOCK_ENTRIES", size):
            for some, block in rows.dense_blocks(columns):
                assert block.dtype == np.float64 and block.flags.c_contiguous and not np.shares_memory(block, X)
                found.append(block.copy())
                places.append(some)
                block[:] = math.nan
        assert [some.start for some in places] == [0, *(some.stop for some in places[:-1])] and places[-1].stop == 9
        np.testing.assert_array_equal(np.concatenate(found), X if columns is None else X[:, columns])


@pytest.mark.parametrize("loss", ["logistic", "squared"])
@pytest.mark.parametrize(
    "y", [[0, 1], [[0], [1], [1]], [0, 1, np.nan], [0, 1, np.inf], [0, 1, 1j], ["0", "1", "1"], None, [0, 1, None],
          [0, 1, 10**400], np.array([0, 1, 1 + 0j])],
)  # fmt: skip
@pytest.mark.filterwarnings("error")
def test_bad_labels(y, loss):
    with pytest.raises(InvalidValue, match="y.*must be"):
        data.check_labels(y, 3, losses.get(loss))


@pytest.mark.parametrize("y", [[0, 1, 2], [-1, 0, 1], [-1, 0, 0], [0.5, 0, 1], [-1, 1, 3], [-1, 1, 1], [0, 1, 77.25]])
def test_labels_outside_a_binary_task(y):
    """The label set is a convention: it is not told from the data, and a label that breaks it is not shown."""
    with pytest.raises(InvalidValue) as problem:
        data.check_labels(y, 3, losses.get("logistic"))
    assert str(problem.value) == (
        "y='an array with other labels': must be 0 or 1 for loss 'logistic'. "
        "For other labels give label_values, for example (-1, 1)."
    )


def test_labels():
    logistic = losses.get("logistic")
    assert np.array_equal(data.check_labels([-1, 1, 1], 3, logistic, (-1, 1)), [0, 1, 1])
    assert np.array_equal(data.check_labels([0, 1, 1], 3, logistic), [0, 1, 1])
    assert np.array_equal(data.check_labels([1, 2, 1], 3, logistic, [1, 2.0]), [0, 1, 0])
    # What is no -1 under one convention is none under the other: no record changes what the OTHERS mean.
    assert np.array_equal(data.check_labels([1, 1, 1], 3, logistic), [1, 1, 1])
    assert np.array_equal(data.check_labels([1, 1, 1], 3, logistic, (-1, 1)), [1, 1, 1])
    assert np.array_equal(data.check_labels([True, False], 2, logistic), [1, 0])
    assert np.array_equal(data.check_labels([2, -3.5], 2, losses.get("squared")), [2, -3.5])
    with pytest.raises(InvalidValue, match="must be -1 or 1"):
        data.check_labels([0, 1, 1], 3, logistic, (-1, 1))


@pytest.mark.parametrize("values", [(1, -1), (0, 0), (0,), (0, 1, 2), "01", 3, (0, np.nan), (0, np.inf), (None, 1)])
def test_bad_label_values(values):
    with pytest.raises(InvalidValue, match="label_values=.*must be two numbers, the smaller first"):
        data.check_labels([0, 1, 1], 3, losses.get("logistic"), values)


def test_numbers_have_no_label_values():
    with pytest.raises(InvalidValue, match="label_values=.*must be None for loss 'squared'"):
        data.check_labels([0, 1, 1], 3, losses.get("squared"), (0, 1))


@pytest.mark.parametrize(
    "y", [[0, 3, 1], [0, -1, 1], [0, 0.5, 1], [0, np.nan, 1], ["0", "1", "2"], [0, 1], [[0, 1, 2]], None]
)
def test_bad_classes(y):
    with pytest.raises(InvalidValue, match="y.*must be"):
        data.check_classes(y, 3, 3)


def test_classes():
    assert np.array_equal(data.check_classes([2, 0.0, 1], 3, 3), [[0, 0, 1], [1, 0, 0], [0, 1, 0]])


# --- public width, and duplicates -----------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_a_public_width(form):
    X = np.array([[3.0, 4.0, 0.0], [0.1, 0.0, 0.2]])
    for width in (3, 5):
        rows = data.check_rows(in_form(X, form), width)
        assert rows.shape == (2, width)
        assert np.array_equal(dense(rows), np.hstack([X, np.zeros((2, width - 3))]))
    with pytest.raises(InvalidValue) as problem:
        data.check_rows(in_form(X, form), 2)
    assert "at most n_features=2 wide" in str(problem.value) and "3" not in str(problem.value)
    for bad in (0, -1, 2.0, True, "3"):
        with pytest.raises(InvalidValue, match="n_features="):
            data.check_rows(in_form(X, form), bad)


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int16, np.int32, np.float32, bool])
@pytest.mark.parametrize("form", ["coo", "csr", "csc", "bsr"])
def test_duplicates_are_added_up_as_floats(kind, form):
    """100 + 100 was -56 for bytes."""
    entries = np.array([100, 100, 100, 1]).astype(kind)
    X = sparse.coo_matrix((entries, ([0, 0, 0, 1], [1, 1, 1, 0])), shape=(2, 2))
    if form != "coo":
        X = {"csr": sparse.csr_matrix, "csc": sparse.csc_matrix, "bsr": sparse.bsr_matrix}[form](
            {"csr": (entries, [1, 1, 1, 0], [0, 3, 4]), "csc": (entries, [0, 0, 0, 1], [0, 0, 4]),
             "bsr": (entries.reshape(4, 1, 1), [1, 1, 1, 0], [0, 3, 4])}[form], shape=(2, 2))  # fmt: skip
    found = dense(data.check_rows(X))
    total = 3.0 * float(entries[0])
    expected = [[0, total], [0, float(entries[3])]] if form == "csc" else [[0, total], [float(entries[3]), 0]]
    assert np.array_equal(found, expected)


# --- kernel arrays ------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_kernel_arrays(index):
    matrix = sparse.csr_matrix(np.array([[0.0, 2.0], [3.0, 0.0]]))
    matrix.indices, matrix.indptr = matrix.indices.astype(index), matrix.indptr.astype(index)
    values, indices, indptr = data.kernel_arrays(matrix)
    assert values.tolist() == [2.0, 3.0] and indices.tolist() == [1, 0] and indptr.tolist() == [0, 1, 2]
    assert indices.dtype.kind == "u" and indices.dtype.itemsize == np.dtype(index).itemsize
    assert indptr.dtype == np.uint64


@pytest.mark.parametrize("form", FORMS)
def test_nothing_is_changed_in_place(form):
    X = np.array([[3.0, 4.0, 0.0], [0.1, 0.0, 0.2]])
    given_X = in_form(X, form)
    y = np.array([-1.0, 1.0])
    rows = data.check_rows(given_X)
    data.clip_rows(rows, 1.0)
    data.clip_entries(rows, 0.5)
    data.with_intercept(rows, 1.0)
    labels = data.check_labels(y, 2, losses.get("logistic"), (-1, 1))
    labels[:] = 7
    after = given_X if form == "dense" else given_X.toarray()
    assert np.array_equal(after, X) and np.array_equal(dense(rows), X) and y.tolist() == [-1.0, 1.0]
    if form == "messy csr":
        assert not given_X.has_canonical_format and given_X.nnz == 12
