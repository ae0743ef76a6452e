"""Kernels of tables compute what their reference does, each row from its own entries; no bounded row is too long."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba.core.dispatcher import Dispatcher

from dptoolkit.data import Rows
from dptoolkit.data.column_bounds import ColumnBounds
from dptoolkit.errors import InvalidValue
from dptoolkit.kernels import reference, tables
from dptoolkit.solvers._pipeline_ranks import BinCounts, Ranks
from tests.strategies import matrices

# Borders of one column: in order, and none of them twice.
BORDERS = st.lists(st.floats(-1, 1, allow_subnormal=False).map(lambda x: round(x, 6)), min_size=2, max_size=40)
VALUES = st.lists(st.one_of(st.floats(-2, 2), st.sampled_from((-1.0, 0.0, 1.0, -math.inf, math.inf))), min_size=1)


def borders_of(drawn):
    own = np.unique(np.array(drawn) + 0.0)
    return own if len(own) > 1 else np.array([own[0], own[0] + 1])


@given(st.lists(BORDERS, min_size=1, max_size=3), VALUES, st.integers(0, 10**6))
def test_counts_are_those_of_the_reference(drawn, values, seed):
    """Columns with different numbers of bins, and values on borders and beyond them."""
    edges = [borders_of(own) for own in drawn]
    rng = np.random.default_rng(seed)
    everything = np.concatenate([values, *edges])
    block = np.stack([rng.permutation(everything) for _ in edges], axis=1)
    times = rng.integers(0, 4, len(block)).astype(float)
    own = BinCounts(edges)
    own.add(block, times)
    own.add(block, np.ones(len(block)))
    for k, (found, borders) in enumerate(zip(own.totals(), edges, strict=True)):
        np.testing.assert_array_equal(found, reference.bin_counts(block[:, k], borders, times + 1))


@given(st.lists(BORDERS, min_size=1, max_size=3), VALUES, st.integers(0, 10**6))
def test_ranks_are_those_of_the_reference_and_stay_within_their_ends(drawn, values, seed):
    rng = np.random.default_rng(seed)
    ranks = []
    for own in map(borders_of, drawn):
        below = np.concatenate([[0.0], np.cumsum(rng.random(len(own) - 1) * rng.integers(0, 2, len(own) - 1))])
        ranks.append((own, np.minimum(below / max(below[-1], 1e-9), 1.0)))
    everything = np.concatenate([values, *(borders for borders, _ in ranks)])
    # The column between them is not ranked.
    block = np.stack([rng.permutation(everything) for _ in range(len(ranks) + 1)], axis=1)
    columns = [k if k == 0 else k + 1 for k in range(len(ranks))]
    made = block.copy()
    Ranks(columns, ranks)(made)
    for k, (borders, below) in zip(columns, ranks, strict=True):
        np.testing.assert_allclose(made[:, k], reference.ranked(block[:, k], borders, below), atol=1e-13)
        assert (2 * below[0] - 1 <= made[:, k]).all() and (made[:, k] <= 2 * below[-1] - 1).all()
    if block.shape[1] > 1:
        np.testing.assert_array_equal(made[:, 1], block[:, 1])


def test_a_steep_line_leads_to_its_ends_and_not_to_infinity():
    tiny = 1e-310
    ranks = [(np.array([0.0, tiny]), np.array([0.0, 1.0]))]
    block = np.array([[0.0], [tiny / 2], [tiny], [1.0]])
    with np.errstate(over="ignore"):
        Ranks((0,), ranks)(block)
    assert np.isfinite(block).all() and (np.abs(block) <= 1).all()


@given(matrices(), st.sampled_from([(-2.0, 3.0), (0.0, 1.0), (5.0, 5.0), (-1e300, 1e300), (-8.0, -2.0)]))
def test_columns_are_scaled_as_column_bounds_say_and_counted_outside_of_them(X, pair):
    bounds = ColumnBounds.of(pair, X.shape[1])
    block = X.copy()
    bounds.scale(block)
    np.testing.assert_array_equal(block, bounds.scaled(X))
    outside = np.zeros(X.shape[1], np.int64)
    tables.count_outside(X, *(np.array(own) for own in (bounds.lower, bounds.upper)), outside)
    np.testing.assert_array_equal(outside, ((pair[0] > X) | (pair[1] < X)).sum(axis=0))
    np.testing.assert_array_equal(bounds.outside(Rows(X, False)), outside)


@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 10**6))
def test_nan_at_any_place_is_told_and_infinity_is_clipped(n, d, seed):
    rng = np.random.default_rng(seed)
    bounds = ColumnBounds.of((-2.0, 3.0), d)
    block = rng.choice([0.5, -0.0, 5e-324, 1e308, math.inf, -math.inf], (n, d))
    made = block.copy()
    bounds.scale(made)
    np.testing.assert_array_equal(made, bounds.scaled(block))
    block[rng.integers(n), rng.integers(d)] = math.nan
    with pytest.raises(InvalidValue, match="NaN"):
        bounds.scale(block)


# --- rows of bounded length -----------------------------------------------------------------------------------


def squares(row):
    return sum(Fraction(float(entry)) ** 2 for entry in row)


@given(matrices(), st.sampled_from([1.0, 0.98, 3.0]), st.booleans())
def test_bounded_rows_are_those_of_the_reference_and_never_longer(X, norm, is_clip):
    """The length is looked up in exact fractions, also of rows whose squares overflow or underflow."""
    block = X.copy()
    tables.bound(block, norm, is_clip)
    np.testing.assert_allclose(block, reference.bounded(X, norm, is_clip), rtol=1e-12, atol=5e-324)
    limit = Fraction(norm) ** 2
    for row, before in zip(block, X, strict=True):
        assert squares(row) <= limit
        if squares(before) > limit or (not is_clip and np.abs(before).max() > 1e-300):
            assert squares(row) >= limit * Fraction(1 - 1e-11)


@pytest.mark.parametrize("width", [1, 7, 64, 5000])
@pytest.mark.parametrize("is_clip", [False, True])
def test_wide_rows_of_equal_entries_are_never_longer(width, is_clip):
    """Where all squares round alike, errors of their sum add up."""
    values = np.random.default_rng(width).uniform(0.1, 1.0, 200) * (2 if is_clip else 1)
    block = np.repeat(values[:, None] / (math.sqrt(width) if not is_clip else 1.0), width, axis=1)
    tables.bound(block, 1.0, is_clip)
    kept = block[np.linalg.norm(block, axis=1) > 0.5]
    assert len(kept) > 50 and all(Fraction(float(row[0])) ** 2 * width <= 1 for row in kept)


def test_a_row_that_rounding_puts_at_the_bound_is_clipped_as_longer():
    """Its length in doubles may be 1 where it is above 1 by a rounding."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((2000, 9))
    rows /= np.linalg.norm(rows, axis=1)[:, None]
    assert any(squares(row) > 1 for row in rows)
    tables.bound(rows, 1.0, True)
    assert all(squares(row) <= 1 for row in rows)


# --- passes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@given(seed=st.integers(0, 10**6), n=st.integers(1, 20), width=st.integers(1, 40))
def test_margins_and_sums_are_those_of_products_in_doubles(kind, seed, n, width):
    rng = np.random.default_rng(seed)
    rows, w, r = rng.standard_normal((n, width)).astype(kind), rng.standard_normal(width), rng.standard_normal(n)
    margins, total = np.empty(n), np.ones(width)
    tables.margins(rows, w, margins)
    np.testing.assert_allclose(margins, rows.astype(np.float64) @ w, rtol=0, atol=1e-13 * width)
    tables.add_rows(rows, r, total)
    np.testing.assert_allclose(total, 1 + r @ rows.astype(np.float64), rtol=0, atol=1e-13 * n)


def test_a_margin_is_the_same_wherever_its_row_stands():
    """A residual is rounded, so that the last bit of a margin counts; products of BLAS depend on the place of a row."""
    rng = np.random.default_rng(0)
    rows, w = rng.standard_normal((300, 55)).astype(np.float32), rng.standard_normal(55)
    out, other = np.empty(300), np.empty(300)
    order = rng.permutation(300)
    tables.margins(rows, w, out)
    tables.margins(np.ascontiguousarray(rows[order]), w, other)
    np.testing.assert_array_equal(out[order], other)
    for start in range(0, 300, 7):
        part = np.empty(len(rows[start : start + 7]))
        tables.margins(rows[start : start + 7], w, part)
        np.testing.assert_array_equal(part, out[start : start + 7])


def test_margins_keep_what_is_not_a_number():
    """Residuals are set to 0 where a margin is not a number, which a kernel without NaN would not see."""
    rows = np.array([[1.0, 1.0], [math.inf, -math.inf], [math.nan, 0.0], [math.inf, 0.0]], dtype=np.float32)
    out = np.empty(4)
    tables.margins(rows, np.ones(2), out)
    assert out[0] == 2 and np.isnan(out[1]) and np.isnan(out[2]) and out[3] == math.inf
    # A compiler that may assume numbers need not keep them, whether or not it does so today.
    kernels = {name: own for name, own in vars(tables).items() if isinstance(own, Dispatcher)}
    flags = {name: own.targetoptions.get("fastmath") or set() for name, own in kernels.items()}
    assert flags.pop("margins") == {"reassoc", "contract"} and len(flags) >= 7 and not any(flags.values())


def test_sums_of_whole_numbers_are_exact():
    """What secure noise is added to: products of whole numbers whose sum is below 2^53."""
    rng = np.random.default_rng(1)
    rows = rng.integers(-(2**19), 2**19, (4000, 9))
    r = rng.integers(-(2**21), 2**21, 4000)
    total = np.zeros(9)
    tables.add_rows(rows.astype(np.float32), r.astype(np.float64), total)
    assert total.tolist() == [sum(int(a) * int(b) for a, b in zip(r, column, strict=True)) for column in rows.T]
