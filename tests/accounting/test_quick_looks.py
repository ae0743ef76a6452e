"""Quick looks of searches are close to the answers; groups have trade-off curves; bits of the best run are exact."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dptoolkit.accounting import (
    BestOf,
    Composed,
    ExponentialMechanism,
    Gaussian,
    Laplace,
    Repeated,
    Subsampled,
    TruncatedNegativeBinomial,
    account,
    calibrate,
    selection,
    two_outcomes,
)
from dptoolkit.accounting._recursion import adaptive_values
from dptoolkit.accounting.pld import answers, dominating
from dptoolkit.accounting.pld.curve import rough_epsilon
from dptoolkit.accounting.pld.smooth import smooth_epsilon


@pytest.mark.parametrize("beyond", [None, 0.0])
@pytest.mark.parametrize(("epsilon0", "count", "per_range"), [(0.06, 40, 16), (0.3, 25, 64), (2.0, 7, 5)])
def test_the_compiled_recursion_gives_the_same_bits(epsilon0, count, per_range, beyond):
    step, cells = epsilon0 / per_range, per_range + 1
    at_high = np.expm1(step * np.arange(cells + 1) - cells * step) / math.expm1(-cells * step)
    points = selection._recursion_points(epsilon0, count, 1e-6, per_range)
    x, plain = step * np.arange(points), np.zeros(points)
    for number in range(count):
        n = min(points, (number + 1) * cells + 1)
        plain[:n] = selection._recursion_step(plain[:n], x, at_high, cells, beyond)
    compiled = adaptive_values(at_high, selection._fallen(x, cells), count, points, -1.0 if beyond is None else beyond)
    assert compiled.tobytes() == plain.tobytes()


@pytest.mark.parametrize(("cells", "error"), [(16, 8e-4), (32, 1e-4)])
@pytest.mark.parametrize(("epsilon0", "count", "delta"), [(0.06, 200, 1e-6), (0.2, 60, 1e-4), (0.01, 150, 1e-9)])
def test_coarse_recursions_are_close(epsilon0, count, delta, cells, error):
    rough = selection.rough_adaptive(epsilon0, count, delta, cells)
    assert rough == pytest.approx(selection.adaptive(epsilon0, count, delta), rel=error)


NEARLY_NORMAL = [
    Repeated(Subsampled(Gaussian(2.5), "poisson", 0.05), 500),
    Repeated(Laplace(20.0), 300),
    Composed(Repeated(Subsampled(Gaussian(2.3), "poisson", 0.1), 300), Gaussian(3.0)),
]


@pytest.mark.parametrize("event", NEARLY_NORMAL, ids=lambda e: type(e).__name__)
def test_an_expansion_is_close_where_the_law_is_nearly_normal(event):
    tree = answers._trees(event)[0]
    smooth = smooth_epsilon(tree, 1e-6)
    assert smooth == pytest.approx(answers._epsilon_of_tree(tree, 1e-6).value, rel=1e-3)


def test_a_skewed_law_is_looked_at_on_a_grid():
    event = Repeated(Subsampled(Gaussian(0.684), "poisson", 0.00316), 300)
    tree = answers._trees(event)[0]
    assert smooth_epsilon(tree, 1e-6) is None
    assert rough_epsilon(tree, 1e-6) == pytest.approx(answers._epsilon_of_tree(tree, 1e-6).value, rel=0.02)


@pytest.mark.parametrize("epsilon", [0.7, 11.0])
def test_many_selections_are_calibrated_by_the_recursion_also_at_large_epsilons(epsilon):
    # The delta of the recursion was refused where its epsilon was affordable: the noise was 4 % too large.
    def event(scale):
        return Repeated(ExponentialMechanism(1 / scale), 200)

    scale = calibrate(event, epsilon, 1e-6, relative_tolerance=1.5e-4)
    assert 1 - 4e-4 <= selection.adaptive(1 / scale, 200, 1e-6) / epsilon <= 1
    assert account(event(scale)).epsilon(1e-6) <= epsilon


def test_no_run_in_a_set_is_exact_where_nearly_every_run_is_in_it():
    runs = TruncatedNegativeBinomial(1.0, 0.1)
    bits = two_outcomes.best_of(dominating(Gaussian(1.0)), runs)
    # With eta = 1 the number of runs is geometric: E[r^N] = gamma r / (1 - (1 - gamma) r).
    x = np.concatenate([-np.geomspace(50, 1e-3, 32), np.zeros(1), np.geomspace(1e-3, 50, 32)])
    rest = dominating(Gaussian(1.0)).tails(x).p_below
    tiny = (rest > 1e-200) & (rest < 1e-10)
    assert np.count_nonzero(tiny) >= 3
    np.testing.assert_allclose(bits.not_p[: len(x)][tiny], (0.1 * rest / (1 - 0.9 * rest))[tiny], rtol=1e-10)
    assert account(BestOf(Gaussian(1.0), runs)).bounds(1e-10).lower > 0


def test_a_group_of_gaussian_records_has_the_curve_of_less_noise():
    group = account(Repeated(Gaussian(10.0), 20)).group(4)
    alone = account(Repeated(Gaussian(2.5), 20))
    alpha = np.array([0.0, 1e-3, 0.05, 0.5, 1.0])
    np.testing.assert_allclose(group.tradeoff(alpha), alone.tradeoff(alpha), rtol=1e-9)
    assert group.advantage == pytest.approx(alone.advantage, rel=1e-9)
    assert group.bayes_success(0.1) == pytest.approx(alone.bayes_success(0.1), rel=1e-9)


def test_a_group_without_an_event_has_the_curve_of_its_profile():
    guarantee = account(Subsampled(Laplace(2.0), "poisson", 0.2))
    group, alpha = guarantee.group(2), np.array([0.01, 0.05, 0.5])
    assert group.event is None
    curve = group.tradeoff(alpha)
    assert np.all(curve < guarantee.tradeoff(alpha))
    for epsilon in (0.2, 0.5, 1.0, 2.0):
        # Each point of the profile is a bound by itself, and the curve is nearly the largest of them.
        assert np.all(curve >= 1 - group.delta(epsilon) - math.exp(epsilon) * alpha - 1e-3)
