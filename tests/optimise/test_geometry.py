"""Balls: norms, projections, Gaussian widths and the utility bound."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dptoolkit.errors import InvalidValue
from dptoolkit.optimise import geometry

BALLS = [geometry.l2_ball(1.5), geometry.l1_ball(1.5), geometry.group_l1_ball(1.5, 3), geometry.group_l1_ball(1.5, 100)]
VECTORS = arrays(np.float64, st.integers(1, 12), elements=st.floats(-1e3, 1e3, allow_subnormal=False))


def test_norms_of_a_known_vector():
    v = np.array([3.0, -4.0, 0.0, 12.0])
    assert geometry.l2_ball(2.0).gauge(v) == 6.5
    assert geometry.l2_ball(2.0).dual_norm(v) == 26.0
    assert geometry.l1_ball(2.0).gauge(v) == 9.5
    assert geometry.l1_ball(2.0).dual_norm(v) == 24.0
    assert geometry.group_l1_ball(2.0, 2).gauge(v) == 8.5
    assert geometry.group_l1_ball(2.0, 2).dual_norm(v) == 24.0
    # The last block is shorter.
    assert geometry.group_l1_ball(1.0, 3).gauge(v) == 17.0


@pytest.mark.parametrize("ball", BALLS)
@given(v=VECTORS, w=VECTORS)
def test_holder_and_the_dual_norm_is_reached(ball, v, w):
    d = min(len(v), len(w))
    v, w = v[:d], w[:d]
    assert v @ w <= ball.gauge(v) * ball.dual_norm(w) * (1 + 1e-12) + 1e-12
    # A far point in the direction of w projects on the face where <w, .> is largest.
    if np.abs(w).max() > 1e-3:
        best = ball.project(w / np.abs(w).max() * 1e9)
        assert best @ w == pytest.approx(ball.dual_norm(w), rel=1e-5)


@pytest.mark.parametrize("ball", BALLS)
@given(v=VECTORS)
def test_the_projection_is_in_the_ball_and_satisfies_the_variational_inequality(ball, v):
    point, error = ball.projection(v)
    assert ball.gauge(point) <= 1 + 1e-9
    if ball.gauge(v) <= 1 - 1e-9:
        assert (point == v).all() and error == 0
    # <v - p, u - p> <= 0 for every u of the ball, that is dual(v - p) = <v - p, p>.
    normal = v - point
    assert ball.dual_norm(normal) - normal @ point <= 1e-9 * (1 + np.linalg.norm(v))


@pytest.mark.parametrize("ball", BALLS)
def test_the_rounding_of_a_projection_is_within_its_bound_which_is_small(ball):
    rng = np.random.default_rng(0)
    for d, scale in itertools.product([1, 2, 30, 3000], [1e-1, 1.0, 1e4]):
        v = rng.standard_normal(d) * scale
        double, error = ball.projection(v)
        wide, _ = ball.projection(v.astype(np.longdouble))
        assert float(np.linalg.norm((double - wide).astype(float))) <= error
        assert error <= 1e-12 * (1 + scale) * d


@pytest.mark.parametrize("ball", BALLS)
@pytest.mark.parametrize("scale", [1e-320, 1e-200, 1e200, 1e307])
def test_extreme_vectors(ball, scale):
    v = np.array([1.0, -0.5, 0.25, 0.0]) * scale
    assert ball.dual_norm(v) >= scale and math.isfinite(ball.gauge(v) * 1e-3)
    point = ball.project(v)
    assert np.isfinite(point).all() and ball.gauge(point) <= 1 + 1e-12
    assert (ball.project(np.zeros(4)) == 0).all()


@pytest.mark.parametrize("ball", BALLS)
@pytest.mark.parametrize("d", [1, 2, 10, 1000])
def test_the_width_is_between_its_bounds(ball, d):
    """Error rate 1e-6 a case; the interval holds for any number of samples."""
    found = ball.width(d, samples=2000, rng=1)
    assert found.low <= found.estimate <= found.high
    assert found.low <= ball.width_bound(d)
    # Closed forms are not far off: 40% at most here, and exact for one block.
    assert ball.width_bound(d) <= found.high * 1.4
    if ball.blocks(d) == 1:
        assert found.low <= ball.width_bound(d) <= found.high
    assert ball.width(d, samples=50, rng=3) == ball.width(d, samples=50, rng=3)


def test_a_width_bound_that_forgets_the_blocks_is_refuted():
    """The twin: sqrt(log blocks) alone, without the size of a block, is below the width."""
    ball = geometry.group_l1_ball(1.0, 50)
    found = ball.width(1000, samples=2000, rng=1)
    assert math.sqrt(2 * math.log(ball.blocks(1000))) < found.low <= ball.width_bound(1000)


def test_known_widths():
    assert geometry.l2_ball(3.0).width_bound(1) == pytest.approx(3 * math.sqrt(2 / math.pi))
    assert geometry.l2_ball(1.0).width_bound(10**6) == pytest.approx(1000, rel=1e-6)
    assert geometry.l1_ball(1.0).width_bound(47236) == pytest.approx(math.sqrt(2 * math.log(2 * 47236)))


def test_the_utility_bound_holds_for_a_linear_loss():
    """Loss -<a, w> on the L2 ball: the private minimiser is a projection, and its excess can be averaged."""
    rng = np.random.default_rng(5)
    d, n, noise, l2, ball = 20, 50, 3.0, 2.0, geometry.l2_ball(1.0)
    a = rng.standard_normal(d)
    excess = []
    for _ in range(2000):
        w = ball.project((n * a - noise * rng.standard_normal(d)) / l2)
        excess.append(np.linalg.norm(a) - a @ w)
    bound = geometry.excess_risk_bound(width=ball.width_bound(d), noise=noise, l2=l2, radius=1.0, n=n)
    assert 0 < np.mean(excess) <= bound
    assert bound == pytest.approx((noise * ball.width_bound(d) + 1.0) / n)


def test_the_published_rate():
    rate = geometry.published_rate(
        gradient_bound=2.0, width=3.0, curvature=0.25, radius=2.0, epsilon=0.5, delta=math.exp(-4), n=100
    )
    assert rate == pytest.approx((2 * 3 * 2 + 1) / 50)


def test_bad_values():
    for make in (geometry.l2_ball, geometry.l1_ball, lambda r: geometry.group_l1_ball(r, 2)):
        for radius in (0.0, -1.0, math.nan, math.inf, "1"):
            with pytest.raises(InvalidValue, match="radius"):
                make(radius)
    with pytest.raises(InvalidValue, match="block"):
        geometry.group_l1_ball(1.0, 0)
    with pytest.raises(InvalidValue, match="vector"):
        geometry.l1_ball(1.0).gauge(np.array([1.0, math.nan]))
    with pytest.raises(InvalidValue, match="confidence"):
        geometry.l1_ball(1.0).width(3, confidence=1.0)
    with pytest.raises(InvalidValue, match="delta"):
        geometry.published_rate(gradient_bound=1, width=1, curvature=1, radius=1, epsilon=1, delta=0, n=1)
