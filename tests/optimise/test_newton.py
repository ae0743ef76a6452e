"""Minimisers of many linear terms at once: certified like single ones, and each as if it were alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from dptoolkit import losses
from dptoolkit.optimise import minimise, newton
from dptoolkit.optimise.geometry import l2_ball
from dptoolkit.optimise.minimise import Problem, Solution, verified_bound

LOSSES = [name for name in losses.CURVED if losses.LOSSES[name].is_bounded]


def make(loss, n=12, d=3, l2=0.7, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    X /= np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1.0)
    y = rng.integers(0, 2, n).astype(float)
    return Problem(X, y, losses.get(loss), l2, np.zeros(d), 1.0, losses.get(loss).residual_bound)


def certified(problem, linear, theta, remainder, tau):
    """By decimals, from scratch."""
    found = Solution(theta, remainder, np.zeros((2, len(theta))), tau, "double", 0)
    return verified_bound(replace(problem, linear=linear), found) <= tau


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e4])
def test_every_row_is_certified_and_none_depends_on_the_others(loss, size, monkeypatch):
    problem, tau = make(loss), 1e-8 * max(size, 1.0)
    linears = size * np.random.default_rng(1).normal(size=(40, 3))
    alone = [newton.minimise_rows(problem, row[None], tau) for row in linears]
    left = []
    real = minimise.minimise
    monkeypatch.setattr(minimise, "minimise", lambda *args: left.append(1) or real(*args))
    theta, remainder = newton.minimise_rows(problem, linears, tau)
    assert len(left) <= 20, "most are to be found by plain Newton steps"
    for i, row in enumerate(linears):
        assert certified(problem, row, theta[i], remainder[i], tau)
        assert np.array_equal(theta[i], alone[i][0][0]) and np.array_equal(remainder[i], alone[i][1][0])


def test_a_singular_system_does_not_change_the_others():
    """Rows so long that l2 is rounded away where the loss is curved: only there the Hessian is singular."""
    X = np.full((1, 2), 1e20)
    loss = losses.get("logistic")
    problem = Problem(X, np.ones(1), loss, 1.0, np.zeros(2), 2e20, loss.residual_bound)
    linears = np.array([[0.0, 0.0], [1e24, 3e24], [3.0, -1e24]])
    many, _ = newton._newton(problem, linears, 1e10)
    for i in range(3):
        assert np.array_equal(newton._newton(problem, linears[i : i + 1], 1e10)[0][0], many[i])


def test_what_newton_steps_cannot_do_is_left_to_the_search(monkeypatch):
    """A ball, sparse rows, many features, and a tau that doubles cannot show."""
    problem, linears = make("logistic"), np.array([[1.0, -2.0, 0.5], [0.0, 0.0, 1e-9]])
    wide = make("logistic", d=newton._FEATURES + 1)
    cases = [
        (replace(problem, ball=l2_ball(0.3)), linears, 1e-8),
        (replace(problem, matrix=sparse.csr_matrix(problem.matrix)), linears, 1e-8),
        (wide, np.ones((2, wide.d)), 1e-8),
        (problem, linears, 1e-17),
    ]
    left = []
    real = minimise.minimise
    monkeypatch.setattr(minimise, "minimise", lambda *args: left.append(1) or real(*args))
    for given, terms, tau in cases:
        theta, remainder = newton.minimise_rows(given, terms, tau)
        for i, row in enumerate(terms):
            solution = real(replace(given, linear=row), tau)
            assert np.array_equal(theta[i], solution.theta) and np.array_equal(remainder[i], solution.remainder)
    assert len(left) == 8
    assert newton.minimise_rows(problem, np.zeros((0, 3)), 1e-8)[0].shape == (0, 3)


def test_a_certificate_is_never_more_generous_than_the_search(monkeypatch):
    """Any point that is called certified is so by decimals; here points of all distances from the minimiser."""
    problem, rng = make("logistic"), np.random.default_rng(2)
    linears = rng.normal(size=(200, 3))
    best, _ = newton.minimise_rows(problem, linears, 1e-10)
    theta = best + 10.0 ** rng.uniform(-9, -3, size=(200, 1)) * rng.normal(size=(200, 3))
    tau = 1e-6
    said = newton._certified(problem, theta, newton._gradients(problem, theta, linears), linears, tau)
    assert 20 < said.sum() < 180
    for i in np.flatnonzero(said):
        assert certified(problem, linears[i], theta[i], np.zeros(3), tau)


def test_a_certificate_has_its_own_rounding_errors_in_it():
    """At the end of the steps a computed gradient is rounding error. A tau between it and the exact one proves nothing.

    The exact gradients are by decimals. The twin, a certificate without rounding, accepts every one of these points.
    """
    problem, rng = make("logistic", n=40), np.random.default_rng(5)
    linears = rng.normal(size=(60, 3))
    theta, _ = newton.minimise_rows(problem, linears, 1e-12)
    gradient = newton._gradients(problem, theta, linears)
    seen = 0
    for i, row in enumerate(linears):
        found = Solution(theta[i], np.zeros(3), np.zeros((2, 3)), 0.0, "double", 0)
        exact = verified_bound(replace(problem, linear=row), found)
        computed = float(newton._norms(gradient[[i]])[0])
        if not 1.01 * computed < exact:
            continue
        seen, tau = seen + 1, (1.01 * computed + exact) / 2
        assert minimise.stretch(3, 2.0**-53) * computed <= tau
        assert not newton._certified(problem, theta[[i]], gradient[[i]], linears[[i]], tau)[0]
    assert seen > 5
    # A gradient that is computed as exactly 0 proves no more than its rounding error.
    zero = np.zeros((1, 3))
    assert not newton._certified(problem, theta[:1], zero, linears[:1], 1e-16)[0]
    assert newton._certified(problem, theta[:1], zero, linears[:1], 1e-12)[0]
