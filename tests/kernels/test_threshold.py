"""Hard-thresholding kernels against the specification in reference.py."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from dptoolkit.data import check_rows, kernel_arrays
from dptoolkit.kernels import reference, sums, threshold
from dptoolkit.kernels.sums import row_sums
from dptoolkit.kernels.threshold import largest, mean_residuals, support_margins
from dptoolkit.losses import LOSSES, SCALAR

# Few distinct values, so that ties are the rule.
TIED = st.lists(st.sampled_from((-2.0, -1.0, -0.0, 0.0, 5e-324, 1.0, 2.0, 1e300)), min_size=1, max_size=30)


@given(TIED, st.integers(1, 35))
def test_largest_is_hard_thresholding(values, count):
    w = np.array(values)
    kept = largest(w, count)
    assert len(kept) == min(count, len(w)) and (np.diff(kept) > 0).all()
    out = np.zeros_like(w)
    out[kept] = w[kept]
    assert np.array_equal(out, reference.hard_threshold(w, count))


@given(TIED, st.integers(1, 35), st.sampled_from((0.0, 1.0, 1.5, 2.0, 1e299, np.inf)))
def test_a_guess_of_the_border_changes_nothing(values, count, guess):
    w = np.array(values)
    assert np.array_equal(largest(w, count, guess), largest(w, count))


def test_ties_go_to_the_smaller_index():
    assert largest(np.array([1.0, -1.0, 1.0, 2.0]), 2).tolist() == [0, 3]
    assert np.array_equal(reference.hard_threshold(np.array([1.0, -1.0, 1.0, 2.0]), 2), [1, 0, 0, 2])


def test_protected_entries_are_kept_besides():
    w = np.array([3.0, -5.0, 4.0, 0.1])
    assert np.array_equal(reference.hard_threshold(w, 1, protected=1), [0, -5, 0, 0.1])


@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 40))
def test_margins_from_the_support(seed, n, d):
    rng = np.random.default_rng(seed)
    X = check_rows(sparse.random(n, d, 0.4, random_state=rng, format="csr"))
    support = np.sort(rng.choice(d, rng.integers(0, d + 1), replace=False))
    w = np.zeros(d)
    w[support] = rng.standard_normal(len(support))
    # Whatever was there before must not matter.
    margins = np.full(n, 1e9)
    support_margins(*kernel_arrays(X.transpose()), support, w[support], margins)
    np.testing.assert_allclose(margins, X.matrix @ w, rtol=1e-12, atol=1e-13)


@given(st.integers(0, 2**32), st.integers(1, 30), st.integers(1, 12))
def test_sums_of_some_rows(seed, n, d):
    rng = np.random.default_rng(seed)
    X = check_rows(sparse.random(n, d, 0.6, random_state=rng, format="csr"))
    r, out = rng.standard_normal(n), np.full((2, d), np.nan)
    border = int(rng.integers(0, n + 1))
    arrays = kernel_arrays(X.matrix)
    for part, (first, last) in zip(out, ((0, border), (border, n)), strict=True):
        row_sums(*arrays, r, part, first, last)
        np.testing.assert_allclose(part, X.matrix[first:last].T @ r[first:last], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_many_features_and_wide_indices(index):
    d = 70_000
    X = sparse.csr_matrix((np.array([2.0, 3.0]), np.array([65_536, d - 1]), np.array([0, 1, 2])), shape=(2, d))
    transposed = X.T.tocsr()
    transposed.indices, transposed.indptr = transposed.indices.astype(index), transposed.indptr.astype(index)
    arrays, margins = kernel_arrays(transposed), np.zeros(2)
    support_margins(*arrays, np.array([65_536, d - 1]), np.array([1.0, 10.0]), margins)
    assert margins.tolist() == [2.0, 30.0]
    out = np.zeros(d)
    row_sums(*kernel_arrays(X), np.array([1.0, -1.0]), out, 0, 2)
    assert np.flatnonzero(out).tolist() == [65_536, d - 1] and out[d - 1] == -3.0
    w = np.zeros(d)
    w[d - 1], w[65_536] = -5.0, 4.0
    assert largest(w, 1).tolist() == [d - 1] and largest(w, 2).tolist() == [65_536, d - 1]


@pytest.mark.parametrize("name", SCALAR)
@given(st.integers(0, 2**32), st.sampled_from((np.inf, 3.0, 0.5)), st.booleans())
def test_residuals_in_one_pass(name, seed, margin_bound, capped):
    rng = np.random.default_rng(seed)
    margin = np.concatenate([rng.standard_normal(20) * 10, [0.0, -0.0, 800.0, -800.0, 1e300, np.inf, -np.inf, np.nan]])
    y, out = (rng.random(len(margin)) < 0.5) * 1.0, np.full(len(margin), 7.0)
    caps = rng.choice([0.0, 0.1, 1.0, np.inf], len(margin))
    mean_residuals(LOSSES[name].id, margin, y, margin_bound, caps if capped else np.zeros(0), out)
    expected = LOSSES[name].clipped_residual(margin, y, margin_bound, caps if capped else None) / len(margin)
    np.testing.assert_allclose(out, expected, rtol=1e-13, atol=1e-17)


def test_a_record_without_a_margin_counts_as_nothing():
    """inf - inf in one record must not turn the whole gradient into NaN: that would tell everybody that it is there."""
    for name in ("squared", "logistic", "huber", "hinge"):
        r = LOSSES[name].clipped_residual(np.array([np.nan, 1.0]), np.zeros(2), np.inf, np.array([0.5, 0.5]))
        assert r[0] == 0 and r[1] > 0


@given(
    st.integers(0, 1000), st.integers(1, 40), st.integers(1, 150), st.integers(1, sums.LANES),
    st.sampled_from([np.int32, np.int64]), st.booleans(),
)  # fmt: skip
def test_sums_side_by_side_are_those_one_by_one_to_the_last_bit(seed, n, d, count, index, idle):
    """With idle lanes or without, in two halves that meet anywhere."""
    rng = np.random.default_rng(seed)
    X = sparse.random(n, d, 0.4, format="csr", random_state=rng, data_rvs=rng.standard_normal)
    X.indices, X.indptr = X.indices.astype(index), X.indptr.astype(index)
    X = check_rows(X)
    rows = rng.standard_normal((count, n))
    block = np.full((n, sums.LANES if idle else count), np.nan)
    sums.interleave(rows, block)
    np.testing.assert_array_equal(block[:, :count], rows.T)
    upper, lower, together = np.zeros((count, d)), np.zeros((count, d)), np.zeros((count, d))
    half = int(rng.integers(0, n + 1))
    for k, r in enumerate(rows):
        row_sums(*kernel_arrays(X.matrix), r, upper[k], 0, half)
        row_sums(*kernel_arrays(X.matrix), r, lower[k], half, n)
    sums.block_feature_sums(*kernel_arrays(X.transpose()), half, block, together)
    np.testing.assert_array_equal(together, upper + lower)


def test_decay_is_the_exponential_to_two_units_and_stays_within_its_ends():
    sizes = np.concatenate([np.linspace(0, 599.9, 5001), 10.0 ** np.linspace(-320, 2, 1001), [0.0, 5e-324]])
    found = np.array([threshold.decay(size) for size in sizes])
    np.testing.assert_allclose(found, np.exp(-sizes), rtol=2 * 2.0**-52)
    assert found.max() == threshold.decay(0.0) == 1.0
    ends = [threshold.decay(size) for size in (600.0, 1e300, np.inf, np.nan)]
    assert len(set(ends)) == 1 and 0 < ends[0] < 1e-260


@given(st.lists(st.floats(allow_subnormal=False), min_size=1, max_size=40), st.integers(0, 100), st.booleans())
def test_residuals_in_vectors_are_those_of_single_records(margins, seed, capped):
    rng = np.random.default_rng(seed)
    margins, y = np.array(margins), (rng.random(len(margins)) < 0.5) * 1.0
    caps = rng.choice([0.0, 0.1, 0.5, np.inf], len(margins)) if capped else np.full(len(margins), np.inf)
    out = np.empty(len(margins))
    mean_residuals(threshold.LOGISTIC, margins, y, np.inf, caps if capped else np.zeros(0), out)
    single = [
        threshold.clipped_residual(threshold.LOGISTIC, m, label, np.inf, cap)
        for m, label, cap in zip(margins, y, caps, strict=True)
    ]
    np.testing.assert_array_equal(out, np.array(single) / len(margins))
    assert (np.abs(out) <= np.minimum(caps, 1.0) / len(margins)).all()


@pytest.mark.parametrize("name", ["logistic", "squared", "huber", "hinge"])
@given(st.lists(st.floats(allow_subnormal=False), min_size=1, max_size=40), st.integers(0, 100))
def test_residuals_on_a_grid_are_those_of_the_row_rounded_and_clipped(name, margins, seed):
    rng, loss, inverse = np.random.default_rng(seed), LOSSES[name], 2.0**21
    margins, y = np.array(margins), (rng.random(len(margins)) < 0.5) * 1.0
    caps, counts = rng.choice([0.0, 10.0, 2.0**20], len(margins)), rng.integers(0, 4, len(margins)) * 1.0
    out = np.empty(len(margins))
    threshold.grid_residuals(loss.id, margins, y, inverse, caps, counts, out)
    assert np.array_equal(out, np.rint(out)) and (np.abs(out) <= caps * counts).all()
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = np.clip(np.nan_to_num(loss.residual(margins, y) * inverse, nan=0.0), -caps, caps) * counts
    wanted[np.isnan(margins)] = 0.0
    assert (np.abs(out - wanted) <= (0.5 + 1e-6) * counts).all()
