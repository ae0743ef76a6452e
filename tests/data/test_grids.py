"""Sums on grids are exact in any order, and move between neighbours by no more than is charged."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from dptoolkit import losses
from dptoolkit.data import check_rows, clip_rows, with_intercept
from dptoolkit.data.grids import (
    Grids,
    directions_on_grid,
    exact_sum,
    released_mean,
    residuals_on_grid,
    rows_on_grid,
)
from dptoolkit.errors import InvalidValue
from dptoolkit.kernels import grids as kernel

# Entries of all sizes, as the ends of the doubles.
ENTRIES = st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.3, 1e300, -1e300, 5e-324, -5e-324, 1e-9, 0.7, 2.0**-21, 1e140])


def noise(epsilon=1.0, contributions=2.0):
    return contributions * 5.0 / epsilon


def python_sum(X, r):
    """X^T r in Python's integers."""
    columns = np.asarray(X).T.tolist()
    weights = [int(value) for value in r]
    return [sum(int(x) * w for x, w in zip(column, weights, strict=True)) for column in columns]


# --- the choice of grids ----------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 20_242, 2**20, 2**20 + 1, 10**8, 2**29])
@pytest.mark.parametrize("row_norm, limit", [(1.0, 1.0), (0.3, 0.1), (1e140, 1e-140), (1e-140, 7.0), (2.0**0.5, 1.0)])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_partial_sums_stay_below_2_to_53(n, row_norm, limit, scale):
    grids = Grids.choose(n, row_norm, limit, scale * row_norm * limit)
    entry = math.isqrt(grids.row_cap)
    assert n * grids.residual_cap(limit) * entry <= 2**53
    assert Fraction(entry) * Fraction(grids.row_unit) <= Fraction(row_norm)
    assert grids.residual_bits >= 10 and entry < 2**24 + 1
    assert Fraction(scale * row_norm * limit) <= grids.multiplier(scale * row_norm * limit) * grids.unit
    assert grids.multiplier(scale * row_norm * limit) <= 2**41
    # The twin: grids with three more bits do not fit, where the sum is what limits them.
    if grids.row_bits + grids.residual_bits == 52 - (n - 1).bit_length():
        assert n * 8 * 2 ** (grids.row_bits + grids.residual_bits) >= 2**53


def test_the_bits_of_the_specification():
    for n, bits in ((20_242, (16, 21)), (10**6, (14, 18)), (10**8, (11, 14))):
        grids = Grids.choose(n, 1.0, 1.0, 8.0)
        assert (grids.residual_bits, grids.row_bits) == bits


def test_what_does_not_fit_is_refused():
    with pytest.raises(InvalidValue, match="n=536870913.*2\\^29"):
        Grids.choose(2**29 + 1, 1.0, 1.0, 1.0)
    with pytest.raises(InvalidValue, match="epsilon"):
        Grids.choose(100, 1.0, 1.0, 2.0**30)
    # Very much noise, as of epsilon 1e-3 in many steps, still has its ten bits.
    assert Grids.choose(100, 1.0, 1.0, 2.0**28).multiplier(2.0**28) <= 2**52
    grids = Grids.choose(100, 1.0, 1.0, 1.0)
    for bad in (-1.0, 1.1, math.nan):
        with pytest.raises(InvalidValue, match="limit"):
            grids.residual_cap(bad)
    with pytest.raises(InvalidValue, match="row_norm"):
        directions_on_grid(check_rows(np.eye(2)), Grids.choose(2, 2.0, 1.0, 1.0))


# --- rows --------------------------------------------------------------------------------------------------


@given(st.lists(st.lists(ENTRIES, min_size=3, max_size=3), min_size=1, max_size=6), st.booleans())
def test_rows_keep_their_norm_in_integers(data, fit_intercept):
    rows = clip_rows(check_rows(np.array(data)), 1.0)
    norm = 2.0**0.5 if fit_intercept else 1.0
    grids = Grids.choose(6, norm, 1.0, noise())
    rows = with_intercept(rows, 1.0) if fit_intercept else rows
    quantised = rows_on_grid(rows, grids, fit_intercept).matrix
    for row in quantised:
        assert sum(int(x) ** 2 for x in row) <= grids.row_cap
        assert all(x == int(x) and math.copysign(1.0, x) == (1.0 if x >= 0 else -1.0) for x in row)
    assert (np.abs(quantised * grids.row_unit - rows.matrix) <= 1.01 * grids.row_unit + 2.0**-19).all()
    if fit_intercept:
        assert (quantised[:, -1] * grids.row_unit == 1.0).all()


@given(st.lists(st.lists(ENTRIES, min_size=4, max_size=4), min_size=2, max_size=6))
def test_dense_and_sparse_rows_are_the_same(data):
    dense = clip_rows(check_rows(np.array(data)), 1.0)
    # The same clipped numbers: clipping itself adds up sparse and dense rows in different ways.
    scattered = check_rows(sparse.csr_matrix(dense.matrix))
    grids = Grids.choose(6, 1.0, 1.0, noise())
    np.testing.assert_array_equal(rows_on_grid(scattered, grids).matrix.toarray(), rows_on_grid(dense, grids).matrix)
    (one, lengths), (two, others) = directions_on_grid(scattered, grids), directions_on_grid(dense, grids)
    np.testing.assert_array_equal(one.matrix.toarray(), two.matrix)
    np.testing.assert_array_equal(lengths, others)
    assert all(sum(int(x) ** 2 for x in row) <= grids.row_cap for row in two.matrix)


def test_rounding_may_lengthen_a_row_and_is_then_undone():
    """10,000 entries of 0.6 units: to the nearest they are 1.67 times as long."""
    grids = Grids.choose(1, 1.0, 1.0, noise())
    short = check_rows(np.full((1, 10_000), 0.6 * grids.row_unit))
    assert rows_on_grid(short, grids).matrix.sum() == 10_000, "it is far below the bound, and may grow"
    coarse = Grids(1, 60 * grids.row_unit, 1.0, 6, 16)
    row = check_rows(np.full((1, 9_900), 0.6 * coarse.row_unit))
    assert np.linalg.norm(row.matrix) <= coarse.row_norm < np.sqrt(9_900) * coarse.row_unit
    assert (rows_on_grid(row, coarse).matrix == 0).all()


@pytest.mark.parametrize("d", [1, 20_000_000])
def test_the_ends_of_widths(d):
    grids = Grids.choose(1, 1.0, 1.0, noise())
    one = rows_on_grid(check_rows(np.ones((1, 1))), grids)
    assert exact_sum(one, residuals_on_grid(np.ones(1), grids)) == [2 ** (grids.row_bits + grids.residual_bits)]
    wide = sparse.csr_matrix((np.full(1000, 1000**-0.5), (np.zeros(1000), np.arange(1000) * (d // 1000))), (1, d)) \
        if d > 1 else sparse.csr_matrix([[0.5]])  # fmt: skip
    rows = rows_on_grid(check_rows(wide), grids)
    assert 0 < sum(int(x) ** 2 for x in rows.matrix.data) <= grids.row_cap


def test_a_long_row_of_twenty_million_entries_does_not_overflow():
    """The sum of squares is left as soon as it exceeds the cap; twice 2^48 fit in 64 bits."""
    values, out = np.full(20_000_000, 3e-4), np.empty(20_000_000)
    kernel.rows_on_grid(values, np.array([0, len(values)], np.uint64), 2.0**24, 2**48, 0, out)
    assert not out.any(), "its norm is 1.3"
    values *= 0.7
    kernel.rows_on_grid(values, np.array([0, len(values)], np.uint64), 2.0**24, 2**48, 0, out)
    assert out.any()


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300])
def test_rows_that_were_not_clipped_become_zeros(bad):
    values, out = np.array([bad, 0.5, 0.5, 0.5]), np.ones(4)
    kernel.rows_on_grid(values, np.array([0, 2, 4], np.uint64), 2.0**20, 2**40, 0, out)
    assert out.tolist() == [0.0, 0.0, 2.0**19, 2.0**19]


# --- sums --------------------------------------------------------------------------------------------------


def example(n, d, seed, density=1.0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * (rng.random((n, d)) < density)
    r = np.clip(rng.standard_normal(n), -1, 1)
    return clip_rows(check_rows(X), 1.0), r


@pytest.mark.parametrize("n, d", [(1, 1), (1, 5), (4000, 7), (37, 300)])
def test_any_order_gives_the_same_integers(n, d):
    rows, r = example(n, d, n, 0.4)
    grids = Grids.choose(n, 1.0, 1.0, noise())
    X, weights = rows_on_grid(rows, grids), residuals_on_grid(r, grids)
    expected = python_sum(X.matrix, weights)
    assert exact_sum(X, weights).tolist() == expected
    scattered = check_rows(sparse.csr_matrix(rows.matrix))
    assert exact_sum(rows_on_grid(scattered, grids), weights).tolist() == expected
    rng = np.random.default_rng(1)
    for _ in range(5):
        order = rng.permutation(n)
        assert (X.matrix[order].T @ weights[order]).tolist() == expected
        assert (np.asfortranarray(X.matrix[order]).T @ weights[order]).tolist() == expected
        halves = [X.matrix[order[k::2]].T @ weights[order[k::2]] for k in (0, 1)]
        assert (halves[0] + halves[1]).tolist() == expected
    # Single precision holds the entries exactly.
    np.testing.assert_array_equal(X.matrix.astype(np.float32), X.matrix)


def test_without_grids_the_order_shows():
    """The broken twin: the same sums of doubles."""
    rows, r = example(4000, 7, 4000, 0.4)
    order = np.random.default_rng(1).permutation(4000)
    one, two = rows.matrix.T @ r, np.sum(rows.matrix[order] * r[order, None], axis=0)
    assert (one != two).any()


def test_the_largest_sums_of_the_largest_data():
    """2^29 records at the ends of their ranges: the running sum of doubles meets only integers of at most 2^53."""
    grids = Grids.choose(2**29, 1.0, 1.0, noise())
    cap, entry = grids.residual_cap(1.0), math.isqrt(grids.row_cap)
    start = float((2**29 - 1000) * cap * entry)
    assert start == (2**29 - 1000) * cap * entry
    total = np.cumsum(np.concatenate([[start], np.full(1000, float(cap * entry))]))
    assert int(total[-1]) == 2**29 * cap * entry <= 2**53
    # The twin: with two more bits the last sums are no longer exact.
    odd = float(4 * cap * entry - 1)
    wrong = np.cumsum(np.concatenate([[(2**29 - 1000) * odd], np.full(1000, odd)]))
    assert int(wrong[-1]) != 2**29 * (4 * cap * entry - 1)


# --- residuals and sensitivity -----------------------------------------------------------------------------


@given(st.floats(allow_nan=True, allow_infinity=True), st.sampled_from([1.0, 0.3, 0.1 + 2.0**-50, 0.0]))
def test_residuals_stay_within_their_limit(value, limit):
    grids = Grids.choose(1000, 1.0, 1.0, noise())
    for theta in (None, np.array([0.0]), np.array([0.999])):
        (q,) = residuals_on_grid(np.array([value]), grids, limit, theta=theta)
        assert Fraction(abs(q)) * Fraction(grids.residual_unit) <= Fraction(limit) and q == int(q)
        if math.isnan(value):
            assert q == 0.0
        elif abs(value) <= limit:
            assert abs(q * grids.residual_unit - value) <= grids.residual_unit


def differences(records, others, grids, limit, **options):
    """Squared integer norms of r x - r' x' of pairs of records, (X, r) each."""
    sums = []
    for X, r in (records, others):
        rows = rows_on_grid(check_rows(X), grids, **options)
        sums.append([[int(x) * int(w) for x in row] for row, w in
                     zip(rows.matrix, residuals_on_grid(r, grids, limit), strict=True)])  # fmt: skip
    return [sum((a - b) ** 2 for a, b in zip(one, two, strict=True)) for one, two in zip(*sums, strict=True)]


def test_a_replaced_record_moves_the_sum_by_what_is_charged():
    """Opposite unit records at full residual, and records of scales from 1e-320 to 1e140."""
    rng = np.random.default_rng(2)
    X = rng.standard_normal((600, 5)) * 10.0 ** rng.integers(-320, 140, (600, 1))
    X = clip_rows(check_rows(X), 1.0).matrix
    X[300:] = clip_rows(check_rows(rng.standard_normal((300, 5)) * 1e3), 1.0).matrix
    r = np.where(np.arange(600) < 300, rng.standard_normal(600), 1.0)
    grids, limit = Grids.choose(600, 1.0, 1.0, noise()), 0.7
    squares = differences((X, r), (-X, r), grids, limit)
    allowed = (2 * Fraction(limit) / grids.unit) ** 2
    assert max(squares) <= allowed and max(squares) > 0.999 * allowed
    # The twin: rows to the nearest, without the check of their integer norm.
    plain = np.rint(X / grids.row_unit)
    beyond = sum(4 * sum(int(x) ** 2 for x in row) * grids.residual_cap(limit) ** 2 > allowed for row in plain)
    too_long = sum(sum(int(x) ** 2 for x in row) > grids.row_cap for row in plain)
    assert too_long > 50 and beyond + too_long > 50


def test_where_a_diameter_is_the_bound_the_rounding_of_residuals_must_be_charged():
    """Logistic records whose gradients are as far apart as the diameter: on the grid they are further apart."""
    grids, loss = Grids.choose(2**28, 1.0, 1.0, noise()), losses.get("logistic")
    cosines = np.linspace(0, 1, 2001)
    beyond, worst = 0, -1.0
    for radius in np.linspace(2.2, 4.0, 100):
        # Two rows at the same angle to w, on opposite sides of it: equal residuals, which round in the same way.
        r = loss.residual(radius * cosines, np.zeros(len(cosines)))
        across = np.sqrt(1 - cosines**2)
        best = int(np.argmax(r * across))
        (q,) = residuals_on_grid(r[best : best + 1], grids, loss.residual_limit(radius, math.inf))
        distance, diameter = 2 * q * grids.residual_unit * across[best], loss.diameter(radius, math.inf, math.inf)
        beyond += distance > diameter
        worst = max(worst, distance - grids.charged_diameter(diameter, 1))
    # The twin: without the charge half of the pairs are too far apart.
    assert beyond > 20 and worst <= 0


def test_what_is_charged():
    grids = Grids.choose(20_242, 1.0, 1.0, 10.0)
    assert grids.charged_sensitivity(1.0) == 1 + 2.0**-40
    assert grids.charged_sensitivity(1.0, 100) == pytest.approx(1 + grids.residual_unit, abs=1e-8)
    assert grids.charged_sensitivity(1.0, 2 * 10**7) > 1 + grids.residual_unit + 1.7e-8
    sums = np.array([2**52, -3])
    np.testing.assert_allclose(released_mean(sums, grids, 7), sums * float(grids.unit) / 7)


def test_clipped_gradients_keep_their_norm():
    """grad_norm with any rows: direction times (residual * norm), clipped."""
    rng = np.random.default_rng(3)
    X = rng.standard_normal((400, 6)) * 10.0 ** rng.integers(-150, 100, (400, 1))
    X[0], r = 0.0, rng.standard_normal(400) * 10.0 ** rng.integers(-100, 100, 400)
    grids = Grids.choose(400, 1.0, 0.1, 1.0)
    rows, lengths = directions_on_grid(check_rows(X), grids)
    q = residuals_on_grid(r, grids, lengths=lengths)
    for row, w in zip(rows.matrix, q, strict=True):
        assert sum((int(x) * int(w)) ** 2 for x in row) <= (Fraction(0.1) / grids.unit) ** 2
    assert lengths[0] == 0 and q[0] == 0 and (np.abs(q) == grids.residual_cap(0.1)).sum() > 50
    # Moderate gradients are what they were.
    fine = np.abs(r * lengths) < 0.1
    fine &= np.abs(r * lengths) > 1e-3
    assert fine.any()
    ours = rows.matrix[fine] * q[fine, None] * float(grids.unit)
    np.testing.assert_allclose(ours, X[fine] * r[fine, None], atol=3 * grids.residual_unit)


def test_rounding_to_the_nearest_has_no_visible_bias():
    """All-positive features, where rounding errors add up: nearest against truncation, the broken twin."""
    rng = np.random.default_rng(4)
    n = 2**20
    X = clip_rows(check_rows(np.abs(rng.standard_normal((n // 64, 4)))), 1.0)
    r = rng.uniform(-1, 1, n // 64)
    # A 64th of the records, so that errors that add up count 64 times.
    grids = Grids.choose(n, 1.0, 1.0, noise())
    rows, exact = rows_on_grid(X, grids), X.matrix.T @ r
    near = 64 * np.abs(exact_sum(rows, residuals_on_grid(r, grids)) * float(grids.unit) - exact).max()
    down = 64 * np.abs(rows.matrix.T @ np.trunc(r / grids.residual_unit) * float(grids.unit) - exact).max()
    theta = rng.random(n // 64)
    dithered = 64 * np.abs(exact_sum(rows, residuals_on_grid(r, grids, theta=theta)) * float(grids.unit) - exact).max()
    assert near < 0.02 * noise() and dithered < 0.05 * noise()
    assert not grids.needs_dither and Grids.choose(2**23, 1.0, 1.0, 1.0).needs_dither
    assert down < 0.2 * noise(), "random signs of residuals hide most of it"
    positive = np.abs(r)
    biased = np.abs(rows.matrix.T @ (np.trunc(positive / grids.residual_unit) - positive / grids.residual_unit)).max()
    fair = np.abs(rows.matrix.T @ (residuals_on_grid(positive, grids) - positive / grids.residual_unit)).max()
    assert biased > 20 * fair


# --- each record on its own --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_matrix], ids=["dense", "csr"])
@given(st.integers(0, 10_000), st.sampled_from([0.0, 1e300, 5e-324, 1.0]))
def test_a_record_is_rounded_by_itself_to_the_last_bit(kind, seed, other):
    """Whatever another record becomes: empty, enormous, the only one that is clipped."""
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(2, 40)), int(rng.integers(1, 30))
    X = rng.standard_normal((n, d)) * (rng.random((n, d)) < 0.5) * 0.3
    changed = X.copy()
    changed[0] = other
    grids = Grids.choose(n, 1.0, 1.0, noise())
    made = [rows_on_grid(clip_rows(check_rows(kind(data)), 1.0), grids).matrix for data in (X, changed)]
    one, two = (matrix.toarray() if sparse.issparse(matrix) else matrix for matrix in made)
    np.testing.assert_array_equal(one[1:], two[1:])


def test_a_path_that_is_chosen_by_the_number_of_entries_is_seen():
    """The broken twin: margins by one routine or another, after the data's density, differ in their last bits."""
    rng = np.random.default_rng(5)
    X, w = rng.standard_normal((50, 200)), rng.standard_normal(200)
    one, two = X @ w, np.array([sum(a * b for a, b in zip(row, w, strict=True)) for row in X])
    grids = Grids.choose(50, 1.0, 1.0, noise())
    assert (one != two).any()
    # One bit below and above the middle of two grid points: one grid unit apart.
    near = (np.array([1.5 - 2.0**-52, 1.5 + 2.0**-51])) * grids.residual_unit
    q = residuals_on_grid(near, grids)
    assert q[1] - q[0] == 1
