"""Sweeps in the dual: what they keep true, how fast they are whatever the data, and that nothing rests on them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import sparse

from dptoolkit import losses
from dptoolkit.kernels import dual as kernel
from dptoolkit.kernels import reference
from dptoolkit.optimise import dual, minimise

LOSSES = [name for name in losses.CURVED if losses.LOSSES[name].is_bounded]


def problem(loss="logistic", *, n=900, d=60, l2=40.0, noise=3.0, common=1.0, seed=0, order=None):
    """Sparse rows with a part that all of them have in common, in the order of their labels where that is asked for."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * (rng.random((n, d)) < 0.5) + common * rng.standard_normal(d)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    score = 4 * X @ rng.standard_normal(d)
    binary = losses.get(loss).task == losses.BINARY
    y = (score + rng.logistic(size=n) > 0).astype(float) if binary else np.clip(score, -3, 3)
    if order == "sorted":
        X, y = X[np.argsort(y)], np.sort(y)
    linear = noise * rng.standard_normal(d)
    return minimise.Problem(sparse.csr_matrix(X), y, losses.get(loss), l2, linear, 1.0 + 1e-9, 1.0)


def sweeps_of(p):
    return dual.Sweeps(p.matrix, p.y, p.loss, p.l2, p.linear)


def gradient(p, w):
    return p.matrix.T @ p.loss.residual(p.matrix @ w, p.y) + p.l2 * w + p.linear


def sweeps_needed(p, tau, most=60, mixing=True):
    sweeps = sweeps_of(p)
    for count in range(1, most + 1):
        sweeps.sweep()
        if np.linalg.norm(gradient(p, sweeps.w)) <= tau:
            return count
        if mixing:
            sweeps.mix()
    return math.inf


def test_no_error_is_multiplied_by_more_than_the_constant_says():
    s = np.geomspace(1e-6, 1e6, 200_001)
    factors = np.exp(-s) - -np.expm1(-s) / s
    assert factors.max() <= 0
    assert dual._OVERSHOT <= factors.min() <= dual._OVERSHOT + 1e-4


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("block", [1, 3, 16])
def test_the_kernel_is_the_reference(name, block):
    p = problem(name, n=50, d=9, l2=2.0)
    rng = np.random.default_rng(1)
    order = rng.permutation(-(-p.n // block))
    rows = [i for k in order for i in range(k * block, min(k * block + block, p.n))]
    assert sorted(rows) == list(range(p.n))
    shares, w = rng.standard_normal(p.n) / 9, rng.standard_normal(p.d)
    wanted = reference.dual_sweep(p.matrix.toarray(), p.y, p.loss, p.l2, rows, shares, w)
    arrays, squares = dual.kernel_arrays(p.matrix), np.empty(p.n)
    kernel.row_squares(arrays[0], arrays[2], squares)
    assert squares == pytest.approx(np.ones(p.n))
    kernel.sweep(p.loss.id, *arrays, squares, p.y, p.l2, order, block, shares, w)
    np.testing.assert_allclose(shares, wanted[0], rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(w, wanted[1], rtol=1e-12, atol=1e-13)


def test_weights_and_shares_belong_together():
    """Through sweeps and mixing: the error of either would stay in the weights for ever."""
    p = problem()
    sweeps = sweeps_of(p)
    for _ in range(5):
        moved = sweeps.sweep()
        assert moved == pytest.approx(p.l2 * np.linalg.norm(sweeps.w - sweeps._from[0]))
        for _ in range(2):
            together = -(p.linear + p.matrix.T @ sweeps._shares) / p.l2
            np.testing.assert_allclose(sweeps.w, together, rtol=1e-11, atol=1e-12)
            sweeps.mix()
        sweeps._before, sweeps._from = sweeps._from, (sweeps.w, sweeps._shares)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("common", [0.0, 1.0, 10.0])
@pytest.mark.parametrize("l2", [2.0, 40.0, 1e4])
def test_few_sweeps_are_enough_whatever_the_conditioning(name, common, l2):
    """The curvature of all rows together is up to 900 times that of the regulariser here."""
    p = problem(name, l2=l2, common=common)
    assert sweeps_needed(p, 1e-8 * np.linalg.norm(gradient(p, 0 * p.linear))) <= 40


def test_mixing_saves_sweeps():
    """0.3 a sweep without it. By strict counts on one problem, which is not the smallest."""
    p = problem(n=4000, l2=200.0)
    with_it, without = (sweeps_needed(p, 1e-6, mixing=mixing) for mixing in (True, False))
    assert with_it <= 0.8 * without


def test_rows_sorted_by_label_are_no_harder():
    p = problem(order="sorted", n=4000)
    assert sweeps_needed(p, 1e-6) <= 20
    # The twin: in the order of the rows it takes far longer.
    in_order = sweeps_of(p)
    in_order._order = type("InOrder", (), {"permutation": staticmethod(np.arange)})
    for _ in range(20):
        in_order.sweep()
        in_order.mix()
    assert np.linalg.norm(gradient(p, in_order.w)) > 1e-3


# --- in the search ------------------------------------------------------------------------------------


def watched(monkeypatch, change=lambda sweeps, moved: moved):
    """How many sweeps are made, each with its outcome changed."""
    done, real = [], dual.Sweeps.sweep

    def sweep(self):
        done.append(real(self))
        return change(self, done[-1])

    monkeypatch.setattr(dual.Sweeps, "sweep", sweep)
    return done


@pytest.mark.parametrize("name", LOSSES)
def test_many_sparse_rows_are_swept_and_the_point_is_certified(name, monkeypatch):
    done = watched(monkeypatch)
    p = problem(name)
    for tau in (1e-3, 1e-8):
        found = minimise.minimise(p, tau)
        assert found.bound <= tau and minimise.verified_bound(p, found) <= tau
        assert found.precision == "double" and found.gradients <= 4
    assert 4 <= len(done) <= 60


def test_a_sweep_too_few_is_not_accepted(monkeypatch):
    """Sweeps that pretend to have arrived are refused by the certificate, and the search goes on without them."""
    done = watched(monkeypatch, lambda sweeps, moved: 0.0)
    p, tau = problem(), 1e-8
    found = minimise.minimise(p, tau)
    assert minimise.verified_bound(p, found) <= tau
    assert 1 < len(done) < 10 and found.gradients > 4


@pytest.mark.parametrize("spoilt", [math.nan, math.inf, 1e200])
def test_sweeps_that_go_astray_change_nothing_but_the_time(spoilt, monkeypatch):
    def astray(sweeps, moved):
        sweeps.w = np.full_like(sweeps.w, spoilt)
        return moved

    monkeypatch.setattr(minimise, "_levels", few_levels(minimise._levels))
    done = watched(monkeypatch, astray)
    p, tau = problem(), 1e-8
    with np.errstate(all="ignore"):
        found = minimise.minimise(p, tau)
    assert done and minimise.verified_bound(p, found) <= tau


def few_levels(levels):
    """A search that does not arrive fails instead of trying more and more digits."""
    return lambda p: itertools.islice(levels(p), 2)


def test_what_sweeps_are_not_for_does_without(monkeypatch):
    """A row that bends more than the regulariser, few entries, dense rows."""
    done = watched(monkeypatch)
    for p in (problem(l2=0.2), problem(n=100), problem()):
        dense = minimise.Problem(p.matrix.toarray(), p.y, p.loss, p.l2, p.linear, p.row_norm, 1.0)
        for one in (dense, p) if p.n * p.d < 20_000 or p.l2 < 0.25 else (dense,):
            assert minimise.minimise(one, 1e-6).bound <= 1e-6
    assert not done


def test_a_tolerance_beyond_doubles_is_reached_from_there():
    p = problem()
    found = minimise.minimise(p, 1e-12)
    assert found.precision == "extended" and minimise.verified_bound(p, found) <= 1e-12
