"""Descent along second moments: passes in blocks are the reference's, and one record moves them as planned."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from dptoolkit import losses
from dptoolkit.adjacency import Adjacency
from dptoolkit.data import Rows, check_rows, unit_rows
from dptoolkit.kernels import reference
from dptoolkit.solvers.engine import preconditioned
from dptoolkit.solvers.engine.preconditioned import (
    BoundedRecords,
    PreconditionedRun,
    moments_sensitivity,
    preconditioner,
    second_moments,
    unpacked,
)
from dptoolkit.solvers.engine.softmax import clipped_residuals
from dptoolkit.solvers.frame import rules

ROUNDING = 1 + 1e-12


def unit_matrix(rng, n, width):
    return unit_rows(check_rows(rng.standard_normal((n, width)))).matrix


def records(rng, n=50, width=5, loss="logistic", dtype=np.float64, is_sparse=False):
    X = unit_matrix(rng, n, width).astype(dtype)
    rows = Rows(sparse.csr_matrix(X), True) if is_sparse else Rows(X, False)
    y = np.eye(3)[rng.integers(0, 3, n)] if loss == "softmax" else rng.integers(0, 2, n).astype(float)
    return BoundedRecords(rows, y, losses.get(loss), np.full(n, 0.25), np.full(n, 1 / n))


# --- the passes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("block", [1, 64, 1 << 17])
@given(seed=st.integers(0, 10_000))
def test_the_mean_gradient_of_blocks_is_that_of_the_reference(block, dtype, is_sparse, seed):
    rng = np.random.default_rng(seed)
    own = records(rng, dtype=dtype, is_sparse=is_sparse)
    w = 5 * rng.standard_normal(5)
    X = np.asarray(own.rows.matrix.toarray() if is_sparse else own.rows.matrix, dtype=np.float64)
    expected = reference.mean_gradient(X, own.loss.clipped_residual(X @ w, own.y, math.inf, own.caps))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preconditioned, "_BLOCK", block)
        assert own.mean_gradient(w) == pytest.approx(expected, rel=1e-12, abs=1e-15)


@given(seed=st.integers(0, 10_000))
def test_the_mean_gradient_of_classes_is_that_of_the_softmax_run(seed):
    rng = np.random.default_rng(seed)
    own = records(rng, loss="softmax")
    W = 3 * rng.standard_normal((3, 5))
    r = clipped_residuals(own.rows.matrix @ W.T, own.y, own.caps)
    assert own.mean_gradient(W) == pytest.approx(r.T @ own.rows.matrix / 50, rel=1e-12, abs=1e-15)


def test_float32_rows_are_added_up_in_doubles():
    # In single precision 1 + 1e-8 is 1, so a sum of singles would lose all but the first record.
    n = 1001
    X = np.full((n, 1), 1e-8, dtype=np.float32)
    X[0] = 1.0
    own = BoundedRecords(Rows(X, False), np.zeros(n), losses.get("logistic"), np.full(n, 0.25), np.full(n, 1 / n))
    expected = 0.25 * (1 + 1000 * float(np.float32(1e-8)))
    assert own.mean_gradient(np.zeros(1))[0] * n == pytest.approx(expected, rel=1e-14)


def test_weights_that_overflow_spoil_no_other_record():
    X = np.array([[1.0, 0.0], [0.0, 1.0]])
    own = BoundedRecords(Rows(X, False), np.zeros(2), losses.get("logistic"), np.full(2, 0.25), np.full(2, 0.5))
    with np.errstate(invalid="ignore"):
        gradient = own.mean_gradient(np.array([np.inf, 0.0]))
    assert np.abs(gradient).max() <= 0.125


@given(seed=st.integers(0, 10_000), width=st.integers(1, 8))
def test_packed_moments_have_the_length_of_the_matrix_and_are_unpacked_again(seed, width):
    rng = np.random.default_rng(seed)
    X = unit_matrix(rng, 30, width)
    packed = second_moments(Rows(X, False), np.full(30, 1 / 30))
    assert np.linalg.norm(packed) == pytest.approx(np.linalg.norm(X.T @ X / 30), rel=1e-12)
    assert unpacked(packed, width) == pytest.approx(X.T @ X / 30, rel=1e-12, abs=1e-15)


# --- sensitivity ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adjacency", list(Adjacency))
@given(seed=st.integers(0, 10_000), width=st.integers(1, 6), n=st.integers(1, 9))
def test_one_record_moves_the_moments_by_no_more_than_their_sensitivity(adjacency, seed, width, n):
    rng = np.random.default_rng(seed)
    X = unit_matrix(rng, n, width)
    other = X.copy()
    other[0] = 0.0 if adjacency is Adjacency.ZERO_OUT else unit_matrix(rng, 1, width)[0] * rng.random()
    share = np.full(n, 1 / n)
    moved = np.linalg.norm(second_moments(Rows(X, False), share) - second_moments(Rows(other, False), share))
    assert moved <= moments_sensitivity(adjacency, n) * ROUNDING


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_orthogonal_records_reach_the_sensitivity_of_the_moments(adjacency):
    n, share = 7, np.full(7, 1 / 7)
    X = np.tile([1.0, 0.0], (n, 1))
    other = X.copy()
    other[0] = [0.0, 0.0] if adjacency is Adjacency.ZERO_OUT else [0.0, 1.0]
    moved = np.linalg.norm(second_moments(Rows(X, False), share) - second_moments(Rows(other, False), share))
    assert moved == pytest.approx(moments_sensitivity(adjacency, n), rel=1e-12)


def test_moments_without_the_factor_of_the_packing_would_move_less_than_they_are_charged_for():
    """A twin: the triangle without sqrt(2) off the diagonal is shorter, so its noise would be larger than needed."""
    x, z = np.array([1.0, 1.0]) / math.sqrt(2), np.array([1.0, -1.0]) / math.sqrt(2)
    change = np.outer(x, x) - np.outer(z, z)
    assert np.linalg.norm(change[np.triu_indices(2)]) == pytest.approx(1.0)
    assert np.linalg.norm(preconditioned._packed(change)) == pytest.approx(math.sqrt(2))


@pytest.mark.parametrize("loss", ["logistic", "softmax"])
@given(seed=st.integers(0, 10_000))
def test_one_record_moves_the_mean_gradient_by_no_more_than_twice_its_cap(loss, seed):
    rng = np.random.default_rng(seed)
    own = records(rng, n=6, loss=loss)
    other_X, other_y = own.rows.matrix.copy(), own.y.copy()
    other_X[0] = unit_matrix(rng, 1, 5)[0]
    other_y[0] = own.y[rng.integers(6)]
    other = BoundedRecords(Rows(other_X, False), other_y, own.loss, own.caps, own.share)
    weights = 10 * rng.standard_normal(own.shape)
    moved = np.linalg.norm(own.mean_gradient(weights) - other.mean_gradient(weights))
    assert moved <= 2 * 0.25 / 6 * ROUNDING


def test_a_wrong_record_opposite_to_itself_reaches_twice_its_cap():
    X = np.array([[1.0, 0.0]] * 4)
    y = np.zeros(4)
    share, caps, loss = np.full(4, 0.25), np.full(4, 0.25), losses.get("logistic")
    other = X.copy()
    other[0, 0] = -1.0
    one, two = (BoundedRecords(Rows(M, False), y, loss, caps, share).mean_gradient(np.zeros(2)) for M in (X, other))
    assert np.linalg.norm(one - two) == pytest.approx(2 * 0.25 / 4, rel=1e-12)


# --- the descent ------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 10_000))
def test_the_matrix_is_stable_for_moments_with_noise_within_the_ridge(seed):
    rng = np.random.default_rng(seed)
    width, curvature, noise = 6, 0.1875, 0.01
    X = unit_matrix(rng, 40, width)
    exact = second_moments(Rows(X, False), np.full(40, 1 / 40))
    noisy = exact + noise * rng.standard_normal(exact.shape)
    error = np.linalg.norm(unpacked(noisy - exact, width), 2)
    P = preconditioner(noisy, width, curvature, curvature * error)
    # Below 2, the descent of a quadratic with the exact moments converges in every direction.
    assert np.linalg.eigvals(P @ (curvature * unpacked(exact, width))).real.max() <= 1 / rules.SLACK * (1 + 1e-9)


def test_without_noise_it_reaches_the_minimum_of_ill_conditioned_columns_in_few_steps():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((4000, 6)) * np.logspace(0, -2, 6)
    y = (rng.random(4000) < 1 / (1 + np.exp(-X @ (1 / np.logspace(0, -2, 6))))).astype(float)
    rows = Rows(X / np.linalg.norm(X, axis=1).max(), False)
    share = np.full(4000, 1 / 4000)
    own = BoundedRecords(rows, y, losses.get("logistic"), np.full(4000, 1.0), share)
    P = preconditioner(second_moments(rows, share), 6, 0.25, 1e-9)
    w = PreconditionedRun(own, P, rules.PRECONDITIONED_STEPS, 0.0)(np.random.default_rng(0)).weights
    first, last = (np.linalg.norm(own.mean_gradient(v) @ P) for v in (np.zeros(6), w))
    assert last < 1e-4 * first


@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_a_trace_holds_the_noisy_gradients_and_what_follows_from_them(loss):
    own = records(np.random.default_rng(1), loss=loss)
    P = preconditioner(second_moments(own.rows, own.share), 5, 0.1875, 0.1)
    run = PreconditionedRun(own, P, 7, 0.3)
    kept, plain = run(np.random.default_rng(5), trace=True), run(np.random.default_rng(5))
    assert kept.releases.shape == kept.iterates.shape == (7, math.prod(own.shape))
    steps = -kept.releases.reshape(7, *own.shape) @ P
    assert kept.iterates[-1] == pytest.approx(steps.sum(axis=0).ravel(), rel=1e-12)
    assert np.array_equal(plain.weights, kept.weights)
    noise = kept.releases[0].reshape(own.shape) - own.mean_gradient(np.zeros(own.shape))
    assert noise == pytest.approx(0.3 * np.random.default_rng(5).standard_normal(own.shape), rel=1e-9)


# --- the rule ---------------------------------------------------------------------------------------------


@given(time=st.floats(1, 1e6), curvature=st.floats(0.05, 1), width=st.integers(1, 1000), noise=st.floats(1e-9, 1e-2))
def test_the_noise_of_a_margin_is_bounded_as_in_plain_descent(time, curvature, width, noise):
    """In a direction without curvature the steps amount to the time allowed, and the ridge covers the noise."""
    steps = rules.preconditioned_steps(time, curvature, width, noise)
    ridge = steps / (rules.SLACK * time)
    assert steps >= rules.PRECONDITIONED_STEPS
    assert ridge >= curvature * math.sqrt(2 * width) * noise * (1 - 1e-9)
    P = preconditioner(np.zeros(1), 1, curvature, ridge)
    assert steps * P[0, 0] == pytest.approx(time, rel=1e-9)


def test_noise_of_packed_moments_has_eigenvalues_about_as_the_rule_says():
    rng = np.random.default_rng(0)
    norms = [np.linalg.norm(unpacked(rng.standard_normal(100 * 101 // 2), 100), 2) for _ in range(20)]
    assert 0.9 <= np.mean(norms) / math.sqrt(200) <= 1.05


def test_second_moments_are_for_many_records_and_few_columns():
    # Time and noise are proportional to n mu and to its inverse.
    def decides(n_mu, width):
        return rules.is_preconditioned(1.5 * n_mu, 0.1875, width, 14.2 / n_mu)

    assert decides(140_000, 55)
    assert not decides(1_000, 55)
    assert not decides(20_000, 785)
    assert not decides(1e9, rules.MOST_COLUMNS + 1)
    borders = [min(n_mu for n_mu in np.logspace(3, 6, 200) if decides(n_mu, width)) for width in (10, 100, 1000)]
    assert borders == sorted(borders)
