"""The generators have the laws that their papers state."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from dptoolkit import datasets
from dptoolkit.errors import InvalidValue


def test_ight_rows_and_truth() -> None:
    data = datasets.make_ight(n=300, d=1000, sparsity=10, rng=0)
    assert np.allclose(np.linalg.norm(data.X, axis=1), 20.0)  # uniform rows of norm about 36.5 are all scaled down
    assert np.count_nonzero(data.truth) == 10 and np.abs(data.truth).max() < 1
    assert data.task == "regression"


def test_ight_leaves_short_rows_alone() -> None:
    data = datasets.make_ight(n=200, d=4, sparsity=4, rng=0)
    assert np.linalg.norm(data.X, axis=1).max() <= 4.0
    assert np.abs(data.X).max() > 1.9


def test_transfer_rows_are_not_scaled_and_labels_follow_the_printed_rule() -> None:
    data = datasets.make_transfer(n=20_000, d=20, sparsity=5, rng=1)
    assert np.count_nonzero(data.truth) == 5 and 0.99 < np.abs(data.X).max() <= 1
    # The mean of n squares of N(0, 0.1) has standard deviation 0.1 sqrt(2/n) = 0.001: five of them.
    assert abs(np.square(data.y - data.X @ data.truth).mean() - 0.1) < 0.005
    binary = datasets.make_transfer(n=20_000, d=20, sparsity=5, task="binary", rng=1)
    margin = binary.X @ binary.truth
    assert binary.y[margin > 0.5].mean() > 0.6 > 0.4 > binary.y[margin < -0.5].mean()


def test_ight_noise_variance() -> None:
    data = datasets.make_ight(n=20_000, d=20, sparsity=5, rng=1)
    errors = data.y - data.X @ data.truth
    # The variance of 20 000 normal squares: standard error 1%, so 5% is five of them (two-sided rate 6e-7).
    assert np.var(errors) == pytest.approx(0.1, rel=0.05)


def test_ight_labels_follow_the_printed_rule_so_truth_has_the_usual_sign() -> None:
    data = datasets.make_ight(n=40_000, d=20, sparsity=5, task="binary", rng=2)
    probability = expit(data.X @ data.truth)
    excess = (data.y - probability).sum() / np.sqrt((probability * (1 - probability)).sum())
    slope = np.sum((data.y - 0.5) * (data.X @ data.truth))
    assert abs(excess) < 5  # a standard normal variable: rate 6e-7
    assert slope > 0


def test_khanna_covariance_labels_and_scaling() -> None:
    raw = datasets.make_khanna(n=100_000, p=10, scale=1.0, rng=0)
    expected = 0.5 ** np.abs(np.subtract.outer(np.arange(10), np.arange(10)))
    # Entries of a sample covariance of 100 000 rows have standard error at most 0.0045; 0.025 is over five of them.
    assert np.abs(np.cov(raw.X.T) - expected).max() < 0.025
    scaled = datasets.make_khanna(n=500, rng=0)
    assert scaled.X.shape == (500, 100)
    assert np.allclose(np.abs(scaled.X).max(axis=0), 1.0)
    assert list(scaled.truth[:8]) == [10, 9, 8, 7, 6, 5, 4, 0.5] and not scaled.truth[8:].any()
    assert np.array_equal(scaled.y, scaled.X @ scaled.truth > 0)


def test_rcv1_like_shape() -> None:
    data = datasets.make_rcv1_like(n=2000, d=5000, nonzeros=40, rng=0)
    assert data.X.shape == (2000, 5000) and data.X.has_canonical_format
    assert np.allclose(np.sqrt(data.X.multiply(data.X).sum(axis=1)), 1.0)
    assert 30 <= data.X.nnz / 2000 <= 45
    counts = np.sort(np.bincount(data.X.indices, minlength=5000))[::-1]
    assert counts[0] > 20 * counts[1000]  # a power law, not a uniform one
    assert set(np.unique(data.y)) == {0.0, 1.0}


def test_heavy_tailed_has_unit_variance_and_heavy_tails() -> None:
    data = datasets.make_heavy_tailed(n=5000, d=100, rng=0)
    assert np.std(data.X) == pytest.approx(1.0, rel=0.02)
    assert np.abs(data.X).max() > 8  # a normal sample of this size stays below 6.5 with probability 0.99996
    assert np.linalg.norm(data.truth) == pytest.approx(1.0)


@pytest.mark.parametrize("make", [
    lambda rng: datasets.make_ight(50, 20, 3, rng=rng), lambda rng: datasets.make_ight(50, 20, 3, "binary", rng=rng),
    lambda rng: datasets.make_transfer(50, 20, 3, rng=rng),
    lambda rng: datasets.make_khanna(50, rng=rng), lambda rng: datasets.make_heavy_tailed(50, 20, rng=rng),
    lambda rng: datasets.make_rcv1_like(50, 200, 10, rng=rng),
])  # fmt: skip
def test_a_seed_gives_the_same_data_again(make) -> None:
    first, second, other = make(7), make(7), make(8)
    assert np.array_equal(first.y, second.y) and np.array_equal(first.truth, second.truth)
    difference = first.X - second.X
    assert not (difference.data if hasattr(difference, "tocsr") else difference).any()
    assert not np.array_equal(first.y, other.y)


@pytest.mark.parametrize("call", [
    lambda: datasets.make_ight(10, 5, 6), lambda: datasets.make_ight(10, 5, 2, task="multiclass"),
    lambda: datasets.make_khanna(10, 7), lambda: datasets.make_khanna(10, scale=0.0),
    lambda: datasets.make_rcv1_like(10, 5, 6), lambda: datasets.make_heavy_tailed(tail=2.0),
    lambda: datasets.make_ight(0),
])  # fmt: skip
def test_impossible_requests_are_refused(call) -> None:
    with pytest.raises(InvalidValue, match="must be"):
        call()
