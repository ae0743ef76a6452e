"""The constants of the loss table, and the diameters that shrink the noise near w = 0."""

from __future__ import annotations

import math
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.special import expit

from dptoolkit import losses
from dptoolkit.errors import InvalidValue
from dptoolkit.losses import LOSSES, SCALAR, logistic_diameter, squared_diameter

MARGINS = st.floats(-40, 40)


def label(name, y):
    return float(y > 0) if LOSSES[name].task == losses.BINARY else y


@pytest.mark.parametrize("name", SCALAR)
@given(margin=MARGINS, y=st.floats(-20, 20))
def test_residual_is_the_derivative_of_the_value(name, margin, y):
    loss, target, h = LOSSES[name], np.array([label(name, y)]), 1e-5
    up, down = (loss.objective(np.array([margin + s]), target) for s in (h, -h))
    assert loss.residual(np.array([margin]), target)[0] == pytest.approx((up - down) / (2 * h), abs=2e-5)


@given(st.lists(MARGINS, min_size=3, max_size=3), st.integers(0, 2))
def test_softmax_residual_is_the_derivative(margin, k):
    loss, target, h = LOSSES["softmax"], np.eye(3)[[k]], 1e-5
    found = loss.residual(np.array([margin]), target)[0]
    for j in range(3):
        step = h * np.eye(3)[[j]]
        up, down = (loss.objective(np.array([margin]) + sign * step, target) for sign in (1, -1))
        assert found[j] == pytest.approx((up - down) / (2 * h), abs=2e-5)
    assert np.abs(found).max() <= LOSSES["softmax"].residual_bound


@pytest.mark.parametrize("name", ["logistic", "huber", "hinge"])
@given(margin=st.floats(-1e308, 1e308), y=st.floats(-1e308, 1e308))
def test_residual_bound(name, margin, y):
    with np.errstate(over="ignore"):
        found = LOSSES[name].residual(np.array([margin]), np.array([label(name, y)]))[0]
    assert abs(found) <= LOSSES[name].residual_bound


@pytest.mark.parametrize("name", SCALAR)
@given(a=MARGINS, b=MARGINS, y=st.floats(-20, 20))
def test_smoothness(name, a, b, y):
    loss, target = LOSSES[name], np.array([label(name, y)])
    change = loss.residual(np.array([a]), target)[0] - loss.residual(np.array([b]), target)[0]
    assert abs(change) <= loss.smoothness * abs(a - b) * (1 + 1e-9) + 1e-13


@pytest.mark.parametrize("name", losses.CURVED)
@given(margin=MARGINS, y=st.floats(-20, 20))
def test_exact_residual_is_the_residual(name, margin, y):
    loss, target = LOSSES[name], label(name, y)
    assert loss.exact_residual is not None
    exact = float(loss.exact_residual(Decimal(margin), Decimal(target)))
    assert exact == pytest.approx(loss.residual(np.array([margin]), np.array([target]))[0], rel=1e-13, abs=1e-15)


def near_a_corner(name, margin, target, h):
    """Whether the residual has a corner within ``h`` of the margin, so that a difference is no derivative there."""
    if name == "huber":
        return abs(abs(margin - target) - losses.HUBER_THRESHOLD) <= h
    lead = (2 * target - 1) * margin
    return name == "hinge" and min(abs(lead - 1), abs(lead - 1 + losses.HINGE_WIDTH)) <= h


@pytest.mark.parametrize("name", losses.CURVED)
@given(at=MARGINS, other=MARGINS, y=st.floats(-20, 20))
# The hinge bends between its corners only, where few margins are drawn.
@example(at=0.75, other=2.0, y=1.0)
@example(at=-0.75, other=-2.0, y=-1.0)
def test_curvature_is_the_derivative_and_the_cautious_parabola_lies_above(name, at, other, y):
    loss, target, h = LOSSES[name], np.array([label(name, y)]), 1e-5
    assert loss.curvature is not None
    slope = loss.residual(np.array([at]), target)[0]
    up, down = (loss.residual(np.array([at + s]), target)[0] for s in (h, -h))
    if not near_a_corner(name, at, target[0], h):
        assert loss.curvature(np.array([at]), target, False)[0] == pytest.approx((up - down) / (2 * h), abs=2e-5)
    bend = loss.curvature(np.array([at]), target, True)[0]
    parabola = loss.objective(np.array([at]), target) + slope * (other - at) + bend * (other - at) ** 2 / 2
    assert parabola >= loss.objective(np.array([other]), target) - 1e-9 * (1 + abs(parabola))
    assert bend <= loss.smoothness


@pytest.mark.parametrize("name", SCALAR)
@given(a=MARGINS, b=MARGINS, y=st.floats(-20, 20), cap=st.floats(0.01, 2))
def test_smoothness_of_a_clipped_residual(name, a, b, y, cap):
    loss, target = LOSSES[name], np.array([label(name, y)])
    bound = loss.smoothness if loss.capped_smoothness is None else loss.capped_smoothness(cap)
    first, second = (np.clip(loss.residual(np.array([m]), target)[0], -cap, cap) for m in (a, b))
    assert abs(first - second) <= bound * abs(a - b) * (1 + 1e-9) + 1e-13


def test_constants_are_attained():
    assert LOSSES["logistic"].residual(np.array([50.0]), np.zeros(1))[0] == pytest.approx(1.0)
    assert LOSSES["huber"].residual(np.array([50.0]), np.zeros(1))[0] == 1.0
    assert LOSSES["softmax"].residual(np.array([[50.0, 0.0]]), np.array([[0.0, 1.0]]))[0, 0] == pytest.approx(1.0)
    hinge = LOSSES["hinge"].residual(np.array([50.0, -50.0, 0.75]), np.array([0.0, 1.0, 1.0]))
    assert hinge.tolist() == [1.0, -1.0, -0.5]
    h = 1e-4
    slope = [LOSSES["logistic"].residual(np.array([m]), np.zeros(1))[0] for m in (-h, h)]
    assert (slope[1] - slope[0]) / (2 * h) == pytest.approx(LOSSES["logistic"].smoothness, rel=1e-6)


@pytest.mark.parametrize("name", SCALAR)
@given(margin=st.floats(-60, 60), y=st.floats(-20, 20), wider=st.floats(0, 5))
def test_limits_hold_within_their_bounds_and_grow_with_them(name, margin, y, wider):
    loss, target = LOSSES[name], label(name, y)
    limit = loss.residual_limit(abs(margin), abs(target))
    assert abs(loss.residual(np.array([margin]), np.array([target]))[0]) <= limit * (1 + 1e-15)
    assert limit <= loss.residual_limit(abs(margin) + wider, abs(target)) <= loss.residual_bound


@pytest.mark.parametrize("name", SCALAR)
@given(a=MARGINS, b=MARGINS, y=st.floats(-20, 20))
def test_signed_losses_keep_their_sign(name, a, b, y):
    """What halves the noise of variance-reduced steps; and residuals never fall with the margin, which adapts it."""
    loss, target = LOSSES[name], np.array([label(name, y)])
    one, two = (float(loss.residual(np.array([m]), target)[0]) for m in (a, b))
    if loss.signed:
        assert one * two >= 0 and abs(one - two) <= loss.residual_bound
    assert (one - two) * (a - b) >= 0


def test_only_losses_that_keep_their_sign_are_called_signed():
    for loss in (LOSSES[name] for name in SCALAR):
        y = np.array([0.0, 1.0])
        found = [loss.residual(np.full(2, m), y) for m in (-30.0, 30.0)]
        assert loss.signed == bool((found[0] * found[1] >= 0).all())


def test_values_do_not_overflow():
    for name in ("logistic", "huber", "hinge"):
        assert np.isfinite(LOSSES[name].objective(np.array([700.0, -700.0]), np.array([0.0, 1.0])))
    assert LOSSES["softmax"].objective(np.array([[1e4, 0.0]]), np.array([[0.0, 1.0]])) == 1e4


def test_unknown_loss():
    with pytest.raises(InvalidValue, match="loss='hinges': must be one of"):
        losses.get("hinges")
    with pytest.raises(InvalidValue, match="loss='softmax': must be one of 'squared'"):
        losses.get("softmax", ("squared",))


# --- the diameter of logistic gradients ---------------------------------------------------------------

RADII = [0.0, 0.01, 0.3, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 10.0, 15.0, 25.0, 40.0, 100.0, 1000.0]


def planar_diameter(radius):
    """The largest distance found by a search much finer than the one under test, angles AND lengths, then refined."""
    first, second = np.linspace(0, np.pi, 721), np.linspace(0, np.pi, 721)
    best = 0.0
    for _ in range(5):
        a, b = _longest(radius, first), _longest(radius, second)
        distance = (a[0][:, None] - b[0][None]) ** 2 + (a[1][:, None] + b[1][None]) ** 2
        i, j = np.unravel_index(np.argmax(distance), distance.shape)
        best = max(best, float(np.sqrt(distance[i, j])))
        width = 2 * (first[1] - first[0])
        first, second = (np.clip(np.linspace(c - width, c + width, 301), 0, np.pi) for c in (first[i], second[j]))
    return best


def _longest(radius, angles):
    lengths = np.linspace(1e-3, 1, 1000)[:, None]
    size = (lengths * expit(radius * lengths * np.cos(angles))).max(axis=0)
    return size * np.cos(angles), size * np.sin(angles)


@pytest.mark.parametrize("radius", RADII)
def test_diameter_is_never_too_small_and_nearly_tight(radius):
    found, bound = planar_diameter(radius), logistic_diameter(radius)
    assert max(found, 1.0) <= bound <= 2.0
    assert bound <= 1.001 * found
    assert bound <= 2 * expit(radius), "the closed form is a bound too"


@given(st.floats(0, 50), st.integers(0, 2**32))
def test_diameter_against_random_pairs(radius, seed):
    """Pairs drawn at random in three dimensions, each improved by small moves: none is farther apart than the bound,
    and the best is nearly as far."""
    rng = np.random.default_rng(seed)
    best, pairs = 0.0, rng.standard_normal((2, 4000, 3))
    for spread in 0.3 ** np.arange(10):
        pairs /= np.maximum(np.linalg.norm(pairs, axis=2, keepdims=True), 1.0)
        g = expit(radius * pairs[..., :1]) * pairs
        distance = np.linalg.norm(g[0] - g[1], axis=1)
        best = max(best, float(distance.max()))
        top = pairs[:, np.argsort(distance)[-40:]]
        pairs = np.repeat(top, 100, axis=1) + spread * rng.standard_normal((2, 4000, 3))
    assert best <= logistic_diameter(radius) * (1 + 1e-12) <= 1.005 * best


@given(st.floats(0, 1e4))
def test_the_line_is_above_the_sigmoid(radius):
    """What the proof of the diameter rests on."""
    level, slope = losses._line_above_sigmoid(radius)
    t = np.concatenate([np.linspace(-1, 1, 1001), np.linspace(-30, 30, 1001) / max(radius, 30)])
    assert (level + slope * t >= expit(radius * t) - 1e-14).all()


# From an independent two-dimensional maximisation, three digits.
@pytest.mark.parametrize(
    ("radius", "diameter"), [(0, 1.0), (0.5, 1.029), (1, 1.099), (2, 1.270), (3, 1.419), (5, 1.617), (10, 1.821)]
)
def test_known_diameters(radius, diameter):
    assert diameter - 5e-4 <= logistic_diameter(radius) <= 1.001 * diameter + 5e-4


@pytest.mark.parametrize("radius", [0.5, 2.0, 5.0, 20.0])
def test_diameter_holds_in_more_dimensions(radius):
    """Records of any length in five dimensions, either label: no pair is farther apart. Half lie near the rim."""
    rng = np.random.default_rng(7)
    x = rng.standard_normal((1500, 5))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    x[::2] *= rng.random((750, 1)) ** 0.2
    w = radius * np.eye(5)[0]
    for y in (0.0, 1.0):
        g = (expit(x @ w) - y)[:, None] * x
        # Different labels too: the set for label 1 is minus the set for label 0.
        mirrored = (expit(x @ w) - (1 - y))[:, None] * x
        for other in (g, mirrored):
            squares = (g * g).sum(1)[:, None] + (other * other).sum(1)[None] - 2 * g @ other.T
            assert np.sqrt(squares.max()) <= logistic_diameter(radius)


def test_diameter_ends_and_order():
    assert logistic_diameter(0.0) == 1.0
    assert logistic_diameter(1e6) == pytest.approx(2.0, abs=1e-12)
    assert logistic_diameter(1e300) == pytest.approx(2.0)
    assert logistic_diameter(math.nan) == logistic_diameter(math.inf) == 2.0
    grid = [logistic_diameter(r) for r in np.concatenate([np.linspace(0, 60, 400), np.geomspace(61, 2e4, 50)])]
    assert (np.diff(grid) >= 0).all()


# --- the diameter of squared-loss gradients with clipped margins ------------------------------------------

LABELS = st.floats(-2, 2).map(lambda e: 10.0**e)


@given(st.floats(0, 30), LABELS, LABELS, st.integers(0, 2**32))
def test_squared_diameter_against_random_pairs(ratio, margin, label, seed):
    """Pairs of records drawn at random in three dimensions, each improved by small moves: none is farther apart."""
    radius, rng = ratio * margin, np.random.default_rng(seed)
    best, rows, labels = 0.0, rng.standard_normal((2, 2000, 3)), rng.uniform(-1, 1, (2, 2000))
    for spread in 0.3 ** np.arange(8):
        rows /= np.maximum(np.linalg.norm(rows, axis=2, keepdims=True), 1.0)
        residuals = np.clip(radius * rows[..., 0], -margin, margin) - label * np.clip(labels, -1, 1)
        g = residuals[..., None] * rows
        distance = np.linalg.norm(g[0] - g[1], axis=1)
        best = max(best, float(distance.max()))
        top = np.argsort(distance)[-20:]
        rows = np.repeat(rows[:, top], 100, axis=1) + spread * rng.standard_normal((2, 2000, 3))
        labels = np.repeat(labels[:, top], 100, axis=1) + spread * rng.standard_normal((2, 2000))
    bound = squared_diameter(radius, margin, label)
    assert best <= bound * (1 + 1e-12)
    # Nothing is lost where no margin is clipped; elsewhere the line may lie above the corner.
    assert bound <= (1.005 if ratio <= 1 else 1.06) * best


@pytest.mark.parametrize(("margin", "label"), [(1.0, 1.0), (1e140, 1e-140), (1e-140, 1e140), (2.0, 3.0)])
def test_squared_diameter_ends_and_order(margin, label):
    assert squared_diameter(0.0, margin, label) == pytest.approx(2 * label)
    largest = 2 * (margin + label)
    for far in (1e5 * margin, math.inf, math.nan):
        assert squared_diameter(far, margin, label) == largest
    grid = [squared_diameter(r * margin, margin, label) for r in np.linspace(0, 40, 641)]
    assert (np.diff(grid) >= -1e-12 * largest).all() and grid[-1] <= largest
    assert grid[-1] >= 0.99 * largest


def test_a_diameter_that_clips_the_radius_is_seen():
    """Clipping margins does not make weights shorter: opposite rows at their corner are farther apart than that."""
    radius, margin, label = 6.0, 1.0, 1.0
    cosine = margin / radius
    apart = 2 * (label + margin) * math.sqrt(1 - cosine * cosine)
    assert squared_diameter(radius, margin, label) >= apart > losses._below_a_line(label, min(radius, margin))


# --- what a record of several classes can do ----------------------------------------------------------------


@given(st.lists(st.floats(0, 6), min_size=2, max_size=6), st.integers(0, 2**32))
def test_softmax_limit_against_random_records(margins, seed):
    """Margins within their bounds, most of them at the ends: no residual is above the limit, and one is at it."""
    bounds, rng = np.array(margins), np.random.default_rng(seed)
    ends = rng.choice([-1.0, 1.0], size=(4000, len(bounds)))
    inside = np.where(rng.random(ends.shape) < 0.8, ends, rng.uniform(-1, 1, ends.shape))
    limit = float(losses.softmax_limit(bounds))
    p = losses.softmax(bounds * np.concatenate([inside, 1 - 2 * np.eye(len(bounds))]))
    found = max(float(p.max()), float((1 - p).max()))
    assert found <= limit * (1 + 1e-12)
    # The class of the largest margin has it against itself, all others for themselves.
    assert found >= limit * (1 - 1e-12)


@given(st.lists(st.floats(0, 6), min_size=2, max_size=6), st.integers(0, 2**32))
def test_softmax_pair_limit_against_random_records(margins, seed):
    """As above, for half of the two largest residuals together: that of the label and of the likeliest other class."""
    bounds, rng = np.array(margins), np.random.default_rng(seed)
    ends = rng.choice([-1.0, 1.0], size=(4000, len(bounds)))
    inside = np.where(rng.random(ends.shape) < 0.8, ends, rng.uniform(-1, 1, ends.shape))
    limit = float(losses.softmax_pair_limit(bounds))
    p = losses.softmax(bounds * np.concatenate([inside, 2 * np.eye(len(bounds)) - 1]))
    residuals = np.abs(p[:, None, :] - np.eye(len(bounds)))
    found = float(np.sort(residuals, axis=2)[:, :, -2:].sum(axis=2).max()) / 2
    assert limit * (1 - 1e-12) <= found <= limit * (1 + 1e-12)
    assert limit <= losses.softmax_limit(bounds) * (1 + 1e-12)


def test_softmax_pair_limit_at_the_ends():
    assert float(losses.softmax_pair_limit(np.zeros(2))) == 0.5
    assert float(losses.softmax_pair_limit(np.zeros(10))) == 0.5
    two = np.array([1.3, 0.4])
    assert float(losses.softmax_pair_limit(two)) == pytest.approx(float(losses.softmax_limit(two)))
    for size in (700.0, 1e10, 1e300):
        assert float(losses.softmax_pair_limit(np.array([size, 0.0, 1.0]))) == 1.0


def test_softmax_limit_at_the_ends():
    assert float(losses.softmax_limit(np.zeros(2))) == 0.5
    assert float(losses.softmax_limit(np.zeros(10))) == pytest.approx(0.9)
    for size in (700.0, 1e10, 1e300):
        assert float(losses.softmax_limit(np.array([size, 0.0, 1.0]))) == 1.0
